//! The schema of core/v1's `PodTemplateSpec`, made of `k8s-openapi`'s types, for fields that keep one as it is.
//!
//! Descriptions are left out: they are Kubernetes' own and would make a definition too large for `kubectl apply`.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

const CORE: &str = "io.k8s.api.core.v1.";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";

/// Lists of core/v1 that are merged by keys: type, field, keys. The types of `k8s-openapi` don't tell; held to the API
/// server's own by `e2e/pod_template.rs`.
const MAPS: &[(&str, &str, &[&str])] = &[
    ("PodSpec", "containers", &["name"]),
    ("PodSpec", "ephemeralContainers", &["name"]),
    ("PodSpec", "hostAliases", &["ip"]),
    ("PodSpec", "imagePullSecrets", &["name"]),
    ("PodSpec", "initContainers", &["name"]),
    ("PodSpec", "resourceClaims", &["name"]),
    ("PodSpec", "schedulingGates", &["name"]),
    ("PodSpec", "topologySpreadConstraints", &["topologyKey", "whenUnsatisfiable"]),
    ("PodSpec", "volumes", &["name"]),
    ("Container", "env", &["name"]),
    ("Container", "ports", &["containerPort", "protocol"]),
    ("Container", "volumeDevices", &["devicePath"]),
    ("Container", "volumeMounts", &["mountPath"]),
    ("EphemeralContainer", "env", &["name"]),
    ("EphemeralContainer", "ports", &["containerPort", "protocol"]),
    ("EphemeralContainer", "volumeDevices", &["devicePath"]),
    ("EphemeralContainer", "volumeMounts", &["mountPath"]),
    ("ResourceRequirements", "claims", &["name"]),
    ("ObjectMeta", "ownerReferences", &["uid"]),
];

/// Lists that are sets.
const SETS: &[(&str, &str)] = &[("ObjectMeta", "finalizers"), ("ContainerRestartRuleOnExitCodes", "values")];

/// Defaults that keys of lists need, as core/v1 has them.
const DEFAULTS: &[(&str, &str, &str)] = &[("ContainerPort", "protocol", "TCP"), ("LocalObjectReference", "name", "")];

/// Maps that are taken as a whole.
const ATOMIC_MAPS: &[(&str, &str)] = &[("PodSpec", "nodeSelector")];

/// Types whose objects are taken as a whole.
const ATOMIC_TYPES: &[&str] = &[
    "ConfigMapKeySelector",
    "FileKeySelector",
    "LabelSelector",
    "LocalObjectReference",
    "NodeSelector",
    "NodeSelectorTerm",
    "ObjectFieldSelector",
    "OwnerReference",
    "ResourceFieldSelector",
    "SecretKeySelector",
    "TypedLocalObjectReference",
];

/// The schema, without references.
pub(super) fn schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut root = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<PodTemplateSpec>().to_value();
    let definitions = root.get_mut("$defs").map(Value::take).unwrap_or_default();
    let schema = resolved(&root, &definitions, "PodTemplateSpec");
    schemars::Schema::try_from(schema).unwrap_or_default()
}

/// A schema with what it refers to in place; `type_` is the type whose schema it is, where it has a name.
fn resolved(schema: &Value, definitions: &Value, type_: &str) -> Value {
    if let Some(name) = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next()) {
        let short = name.strip_prefix(CORE).or(name.strip_prefix(META)).unwrap_or(name);
        return resolved(&definitions[name], definitions, short);
    }
    let mut out = Map::new();
    for key in ["type", "format", "required", "x-kubernetes-int-or-string"] {
        if let Some(value) = schema.get(key) {
            out.insert(key.to_owned(), value.clone());
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(part) = schema.get(key).filter(|part| part.is_object()) {
            out.insert(key.to_owned(), resolved(part, definitions, ""));
        }
    }
    if ATOMIC_TYPES.contains(&type_) {
        out.insert("x-kubernetes-map-type".to_owned(), json!("atomic"));
    }
    if let Some(fields) = schema.get("properties").and_then(Value::as_object) {
        let fields = fields.iter().map(|(name, field)| (name.clone(), field_of(type_, name, field, definitions)));
        out.insert("properties".to_owned(), Value::Object(fields.collect()));
    } else if schema.get("type") == Some(&json!("object")) && schema.get("additionalProperties").is_none() {
        // Whatever stands there: the fields of a manager.
        out.insert("x-kubernetes-preserve-unknown-fields".to_owned(), Value::Bool(true));
    }
    Value::Object(out)
}

fn field_of(type_: &str, name: &str, field: &Value, definitions: &Value) -> Value {
    let mut schema = resolved(field, definitions, "");
    let is = |entry: (&str, &str)| entry == (type_, name);
    if schema["type"] == "array" {
        if let Some((.., keys)) = MAPS.iter().find(|(type_, field, _)| is((type_, field))) {
            schema["x-kubernetes-list-type"] = json!("map");
            schema["x-kubernetes-list-map-keys"] = json!(keys);
        } else {
            let kind = if SETS.iter().any(|set| is(*set)) { "set" } else { "atomic" };
            schema["x-kubernetes-list-type"] = json!(kind);
        }
    }
    if let Some((.., default)) = DEFAULTS.iter().find(|(type_, field, _)| is((type_, field))) {
        schema["default"] = json!(default);
    }
    if schema["format"] == "date-time" {
        // Templates are often written with `creationTimestamp: null`.
        schema["nullable"] = json!(true);
    }
    if schema["type"] == "object" && ATOMIC_MAPS.iter().any(|map| is(*map)) {
        schema["x-kubernetes-map-type"] = json!("atomic");
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_pod_is_there_and_none_is_described() {
        let schema = schema(&mut schemars::SchemaGenerator::default()).to_value();
        let text = schema.to_string();
        assert!(text.len() < 200_000, "{}", text.len());
        assert!(!text.contains("$ref") && !text.contains("https://"), "{text}");
        for (pointer, expected) in [
            (
                "/spec/properties/containers/items/properties/resources/properties/limits/additionalProperties/x-kubernetes-int-or-string",
                json!(true),
            ),
            ("/spec/properties/containers/x-kubernetes-list-map-keys", json!(["name"])),
            ("/spec/properties/containers/items/properties/ports/items/properties/protocol/default", json!("TCP")),
            ("/spec/properties/containers/items/properties/command/x-kubernetes-list-type", json!("atomic")),
            ("/spec/properties/securityContext/properties/fsGroup/format", json!("int64")),
            ("/metadata/properties/annotations/additionalProperties/type", json!("string")),
            ("/spec/properties/tolerations/items/properties/tolerationSeconds/type", json!("integer")),
        ] {
            assert_eq!(schema["properties"].pointer(pointer), Some(&expected), "{pointer}");
        }
    }
}
