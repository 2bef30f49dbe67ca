//! Break one thing in a provider that is well, and one check says so.

use serde_json::{Value, json};

use super::*;

fn definition() -> Value {
    json!({
        "metadata": {"labels": {PROVIDER_CONTRACT_LABEL: PROVIDER_CONTRACT}},
        "spec": {"scope": "Namespaced", "versions": [{
            "name": "v1",
            "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object"},
                "status": {"type": "object", "properties": {
                    "ready": {"type": "boolean"},
                    "failureReason": {"type": "string"},
                    "failureMessage": {"type": "string"},
                }},
            }}},
        }]},
    })
}

fn template() -> Value {
    let free = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let inner = json!({"type": "object", "properties": {"spec": free}});
    json!({"spec": {"scope": "Namespaced", "versions": [{"name": "v1", "schema": {"openAPIV3Schema": {
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {"template": inner}}},
    }}}]}})
}

/// What is not passed, as `name: outcome`.
fn wrong(checks: &[Check]) -> Vec<String> {
    let bad = checks.iter().filter(|check| check.outcome != Outcome::Passed);
    bad.inspect(|check| assert!(check.outcome == Outcome::Skipped || !check.todo.is_empty(), "{check:?}"))
        .map(|check| format!("{}: {:?}", check.name, check.outcome))
        .collect()
}

const SCHEMA: &str = "/spec/versions/0/schema/openAPIV3Schema/properties";

#[test]
fn each_flaw_of_a_definition_is_one_finding() {
    assert_eq!(wrong(&of_definition(&definition(), "v1")), [""; 0]);
    assert_eq!(wrong(&of_definition(&definition(), "v2")), ["definition: Skipped"]);
    let free = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let text = json!({"type": "string"});
    for (pointer, key, value, expected) in [
        ("/spec", "scope", json!("Cluster"), "scope: Failed"),
        ("/spec/versions/0", "subresources", json!({}), "status subresource: Failed"),
        ("/metadata", "labels", json!({}), "contract label: Advised"),
        ("/metadata/labels", PROVIDER_CONTRACT_LABEL, json!("v9"), "contract label: Advised"),
        (&format!("{SCHEMA}/status/properties"), "ready", text, "status.ready: Failed"),
        (
            &format!("{SCHEMA}/status/properties"),
            "failureReason",
            json!({"type": "integer"}),
            "status.failureReason: Failed",
        ),
        (SCHEMA, "status", free, ""),
    ] {
        let mut broken = definition();
        broken.pointer_mut(pointer).unwrap()[key] = value;
        let expected: Vec<&str> = [expected].into_iter().filter(|one| !one.is_empty()).collect();
        assert_eq!(wrong(&of_definition(&broken, "v1")), expected, "{pointer}/{key}");
    }
    for (name, expected) in [("ready", "status.ready: Failed"), ("failureMessage", "status.failureMessage: Advised")] {
        let mut broken = definition();
        let fields = broken.pointer_mut(&format!("{SCHEMA}/status/properties")).unwrap();
        fields.as_object_mut().unwrap().remove(name);
        assert_eq!(wrong(&of_definition(&broken, "v1")), [expected]);
    }
}

#[test]
fn a_template_has_what_is_cloned() {
    assert_eq!(wrong(&of_template_definition(&template(), "v1")), [""; 0]);
    let mut broken = template();
    broken.pointer_mut(&format!("{SCHEMA}/spec/properties")).unwrap()["template"] = json!({"type": "object"});
    assert_eq!(wrong(&of_template_definition(&broken, "v1")), ["spec.template.spec: Failed"]);
    broken = template();
    broken["spec"]["scope"] = json!("Cluster");
    assert_eq!(wrong(&of_template_definition(&broken, "v1")), ["template scope: Failed"]);
}

#[test]
fn roles_grant_what_they_name_or_they_do_not() {
    let needs = needs("shop.example.com", "shops", "shoptemplates");
    let rule = |groups: Value, resources: Value, verbs: Value| json!({"rules": [{"apiGroups": groups, "resources": resources, "verbs": verbs}]});
    let verbs = json!(["get", "list", "watch", "create"]);
    let whole = rule(json!(["shop.example.com"]), json!(["shops", "shoptemplates"]), verbs.clone());
    let all = rule(json!(["*"]), json!(["*"]), json!(["*"]));
    let other = rule(json!(["other.example.com"]), json!(["*"]), json!(["*"]));
    let objects = rule(json!(["shop.example.com"]), json!(["shops"]), verbs);
    let templates = rule(json!(["shop.example.com"]), json!(["shoptemplates"]), json!(["get"]));
    let mut named = all.clone();
    named["rules"][0]["resourceNames"] = json!(["one"]);
    for (roles, missing) in [
        (vec![whole], 0),
        (vec![all], 0),
        (vec![objects.clone(), templates.clone()], 0),
        (vec![objects], 1),
        (vec![templates], 4),
        (vec![other], 5),
        (vec![named], 5),
        (vec![json!({}), json!({"rules": null})], 5),
    ] {
        assert_eq!(not_granted(&roles, &needs).len(), missing, "{roles:?}");
    }
    assert_eq!(not_granted(&[], &needs)[0], "get shops.shop.example.com");
    assert_eq!(of_rights(&[], "ClusterRoles grant").outcome, Outcome::Passed);
    assert_eq!(of_rights(&["get x.y".into()], "").outcome, Outcome::Failed);
}

#[test]
fn the_answer_of_a_provider_is_judged() {
    let made = json!({"metadata": {
        "ownerReferences": [{"uid": "u"}], "labels": {"a": "b"}, "annotations": {"c": "d"},
    }});
    let object = |change: Value| {
        let mut object = made.clone();
        object["metadata"]["labels"]["theirs"] = json!("kept");
        json_patch::merge(&mut object, &change);
        object
    };
    for (change, expected) in [
        (json!({"status": {"ready": true}}), vec![]),
        (json!({"status": {"ready": false}}), vec!["becomes ready: Failed"]),
        (json!({"status": {"failureReason": "R", "failureMessage": "m"}}), vec!["becomes ready: Failed"]),
        (json!({"status": {"failureReason": "R"}}), vec!["becomes ready: Failed", "failure message: Advised"]),
        (json!({"status": {"ready": true}, "metadata": {"labels": null}}), vec!["metadata kept: Failed"]),
        (
            json!({"status": {"ready": true}, "metadata": {"ownerReferences": [{"uid": "v"}]}}),
            vec!["metadata kept: Failed"],
        ),
        (json!({"status": {"ready": true}, "metadata": {"annotations": {"c": "e"}}}), vec!["metadata kept: Failed"]),
    ] {
        assert_eq!(wrong(&of_answer(&object(change.clone()), &made)), expected, "{change}");
    }
}

#[test]
fn what_holds_an_object_is_named() {
    assert_eq!(of_deletion(None).outcome, Outcome::Passed);
    let held = of_deletion(Some(&json!({"metadata": {"finalizers": ["shop.example.com/x"]}})));
    assert_eq!((held.outcome, held.message.as_str()), (Outcome::Failed, "shop.example.com/x hold it"));
    assert_eq!(of_deletion(Some(&json!({}))).message, "it is still there");
}
