//! A hand that edits and deletes what the operator applied.

use anyhow::{Context, Result};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Map, Value, json};

use crate::api::FIELD_MANAGER;
use crate::api::cluster_stack_release::Resource;
use crate::core::{fields, manifest};
use crate::io::kinds::Kinds;
use crate::io::observe::api;

/// What the hand calls itself.
const HAND: &str = "kubectl-edit";

/// An object that was edited or deleted.
pub(super) struct Touched {
    object: Api<DynamicObject>,
    name: String,
    was: Was,
    /// What was done, for people.
    pub(super) said: String,
}

enum Was {
    /// The field at this path had this value.
    Edited(Vec<String>, Value),
    /// It had this uid.
    Deleted(Option<String>),
}

impl Touched {
    /// Whether it is as it was.
    pub(super) async fn is_put_back(&self) -> Result<bool> {
        let live = self.object.get_opt(&self.name).await.with_context(|| format!("cannot read {}", self.name))?;
        let Some(live) = live else { return Ok(false) };
        Ok(match &self.was {
            Was::Edited(path, value) => at(&serde_json::to_value(&live)?, path) == Some(value),
            Was::Deleted(uid) => live.metadata.uid != *uid,
        })
    }
}

/// Edits the first field of an object that the operator applied and whose edit the API server takes: of a template of
/// machines where there is one, of the ClusterClass last.
pub(super) async fn edit(client: &Client, inventory: &[Resource]) -> Result<Touched> {
    let mut rows: Vec<&Resource> = inventory.iter().collect();
    rows.sort_by_key(|row| (row.kind == "ClusterClass", !row.kind.ends_with("MachineTemplate")));
    for row in rows {
        let Some((object, live)) = read(client, row).await? else { continue };
        for (path, value) in scalars(&live) {
            let new = edited(&value);
            let patch = path.iter().rev().fold(new.clone(), |inner, key| json!({ key: inner }));
            let params = PatchParams { field_manager: Some(HAND.into()), ..PatchParams::default() };
            if object.patch(&row.name, &params, &Patch::Merge(&patch)).await.is_ok() {
                let said = format!("{} {}: {} is {new} now, was {value}", row.kind, row.name, path.join("."));
                return Ok(Touched { object, name: row.name.clone(), was: Was::Edited(path, value), said });
            }
        }
    }
    anyhow::bail!("no applied object has a field that can be edited")
}

/// Deletes an applied object: a template where there is one, the ClusterClass last, and not the one that was edited.
pub(super) async fn delete(client: &Client, inventory: &[Resource], edited: &Touched) -> Result<Touched> {
    let mut rows: Vec<&Resource> = inventory.iter().collect();
    rows.sort_by_key(|row| {
        (
            edited.said.starts_with(&format!("{} {}:", row.kind, row.name)),
            row.kind == "ClusterClass",
            !row.kind.ends_with("Template"),
        )
    });
    let row = rows.first().context("no object was applied")?;
    let (object, live) = read(client, row).await?.with_context(|| format!("{} {} is not there", row.kind, row.name))?;
    let said = format!("{} {} is deleted", row.kind, row.name);
    object.delete(&row.name, &DeleteParams::default()).await.with_context(|| format!("cannot delete {}", row.name))?;
    let uid = live.pointer("/metadata/uid").and_then(Value::as_str).map(ToOwned::to_owned);
    Ok(Touched { object, name: row.name.clone(), was: Was::Deleted(uid), said })
}

async fn read(client: &Client, row: &Resource) -> Result<Option<(Api<DynamicObject>, Value)>> {
    let doing = || format!("cannot read {} {}", row.kind, row.name);
    let version = manifest::join_api_version(&row.group, &row.version);
    let Some(kind) = Kinds::default().get(client, &version, &row.kind).await.with_context(doing)? else {
        return Ok(None);
    };
    let object = api(client, &kind, &row.namespace);
    let live = object.get_opt(&row.name).await.with_context(doing)?;
    Ok(live.map(serde_json::to_value).transpose()?.map(|live| (object, live)))
}

/// The scalars of spec and data that the operator's apply owns.
fn scalars(live: &Value) -> Vec<(Vec<String>, Value)> {
    let mut found = Vec::new();
    let owned = fields::owned(live, FIELD_MANAGER).unwrap_or_default();
    for part in ["spec", "data"] {
        if let Some(Value::Object(below)) = owned.get(format!("f:{part}")) {
            collect(below, &[part.to_owned()], &mut found);
        }
    }
    found
}

fn collect(owned: &Map<String, Value>, path: &[String], found: &mut Vec<(Vec<String>, Value)>) {
    for (key, value) in owned {
        let Some(name) = key.strip_prefix("f:") else { continue };
        let path = [path, &[name.to_owned()]].concat();
        match value {
            Value::Object(below) => collect(below, &path, found),
            Value::String(_) | Value::Number(_) | Value::Bool(_) => found.push((path, value.clone())),
            Value::Array(_) | Value::Null => {}
        }
    }
}

fn edited(value: &Value) -> Value {
    match value {
        Value::Bool(value) => json!(!value),
        Value::Number(number) => json!(number.as_i64().unwrap_or_default() + 1),
        _ => json!("edited-by-hand"),
    }
}

fn at<'a>(object: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(object, |value, key| value.get(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_scalars_of_our_own_are_edited() {
        let fields = json!({"f:metadata": {"f:labels": {"f:l": {}}}, "f:spec": {
            "f:image": {}, "f:list": {}, "f:deep": {".": {}, "f:on": {}, "k:{\"n\":1}": {".": {}, "f:n": {}}}}});
        let entry = json!({"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields});
        let live = json!({
            "metadata": {"labels": {"l": "x"}, "managedFields": [entry]},
            "spec": {"image": "a", "list": [1], "deep": {"on": true, "theirs": 1}},
        });
        let found: Vec<String> =
            scalars(&live).iter().map(|(path, value)| format!("{}={value}", path.join("."))).collect();
        assert_eq!(found, ["spec.deep.on=true", "spec.image=\"a\""]);
        assert_eq!(edited(&json!(true)), json!(false));
        assert_eq!(at(&live, &["spec".into(), "image".into()]), Some(&json!("a")));
    }
}
