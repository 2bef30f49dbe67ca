//! `docs/spec-edits.md` speaks of every field of the spec, and says "is refused" of exactly those that CEL refuses.

use std::collections::BTreeSet;

use clusterstack::api::ClusterStack;
use kube::CustomResourceExt;
use serde_json::Value;

fn documented() -> Vec<(String, String)> {
    let page = include_str!("../docs/spec-edits.md");
    page.lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|row| {
            let (field, rest) = row.split_once("` | ")?;
            Some((field.to_owned(), rest.split(" | ").next()?.to_owned()))
        })
        .collect()
}

fn spec() -> Value {
    let crd = serde_json::to_value(ClusterStack::crd()).unwrap();
    crd.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap().clone()
}

#[test]
fn every_field_of_the_spec_has_a_row() {
    let rows: BTreeSet<String> = documented().into_iter().map(|(field, _)| field).collect();
    let fields: BTreeSet<String> = spec()["properties"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(rows, fields);
}

#[test]
fn what_is_said_to_be_refused_is_refused() {
    let rules: Vec<String> = spec()["x-kubernetes-validations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| rule["rule"].as_str().unwrap().to_owned())
        .collect();
    for (field, edit) in documented() {
        let immutable = rules.iter().any(|rule| rule.contains(&format!("(self.{field} == oldSelf.{field})")));
        assert_eq!(immutable, edit == "is refused", "{field}: {edit}");
    }
}
