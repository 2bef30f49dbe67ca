//! The chart of `docs/templates.md` gives the same objects in both dialects.

use std::collections::BTreeSet;

use bytes::Bytes;
use clusterstack::core::chart::{Capabilities, Chart, Document, Lookup, Release, RenderInput, render};
use clusterstack::core::files::FileTree;
use serde_json::{Value, json};

/// The files on the page: each is a block of code behind a line with its path.
fn files() -> FileTree {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/templates.md")).unwrap();
    let mut files = FileTree::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(path) = line.strip_prefix("**`").and_then(|line| line.strip_suffix("`**")) else { continue };
        let code = lines.by_ref().skip_while(|line| !line.starts_with("```")).skip(1);
        let text: String = code.take_while(|line| *line != "```").flat_map(|line| [line, "\n"]).collect();
        assert!(files.insert(path.to_owned(), Bytes::from(text)).is_none(), "{path} is there twice");
    }
    files
}

/// The chart in one dialect.
fn chart(tera: bool) -> Chart {
    let mut files = files();
    files.retain(|path, _| !path.starts_with("templates/") || path.ends_with(".tera") == tera);
    Chart::load(&files).unwrap()
}

fn documents(chart: &Chart, values: &Value, token: Option<&str>) -> Result<Vec<Document>, String> {
    let capabilities = Capabilities::for_kube_version("v1.34.2").unwrap();
    let mut input = RenderInput::new(Release::new("shop", "org"), &capabilities, jiff::Timestamp::UNIX_EPOCH);
    input.values = values.clone();
    let lookup =
        Lookup { api_version: "v1".into(), kind: "Secret".into(), namespace: "org".into(), name: "web-token".into() };
    let answers = token.map(|token| (lookup.clone(), json!({"data": {"token": token}}))).into_iter().collect();
    input.lookups = &answers;
    let rendered = render(chart, &input).map_err(|error| error.to_string())?;
    assert_eq!(rendered.missing_lookups.contains(&lookup), token.is_none());
    Ok(rendered.documents)
}

#[test]
fn both_dialects_of_the_page_give_the_same_objects() {
    let (helm, tera) = (chart(false), chart(true));
    let long = "x".repeat(80);
    for (values, token) in [
        (json!({"host": "web.example.org"}), None),
        (json!({"host": "web.example.org"}), Some("b2xk")),
        (json!({"host": "h", "proxy": "http://p:3128", "nodeSelector": {"b": "yes", "a": "1"}, "ports": []}), None),
        (json!({"host": long, "env": {"B": "1", "A10": "", "A2": long}, "resources": {}}), None),
    ] {
        let objects = |chart| -> Vec<Value> {
            documents(chart, &values, token).unwrap().into_iter().map(|document| document.object).collect()
        };
        let (helm, tera) = (objects(&helm), objects(&tera));
        assert_eq!(helm, tera, "{values}");
        let kinds: BTreeSet<_> = helm.iter().filter_map(|object| object["kind"].as_str()).collect();
        assert!(kinds.is_superset(&["ConfigMap", "Deployment", "Secret"].into()), "{kinds:?}");
    }
}

#[test]
fn both_dialects_of_the_page_want_a_host() {
    for tera in [false, true] {
        let error = documents(&chart(tera), &json!({}), None).unwrap_err();
        assert!(error.contains("set host"), "{error}");
    }
}
