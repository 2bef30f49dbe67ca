//! Who else keeps CSO's installation, and would bring it back or take its CRDs away: Helm, Flux, Argo CD.

use serde_json::Value;

use super::{Facts, Note, named};

/// Annotations by which Helm names the release of an object: name, and namespace.
pub const HELM: (&str, &str) = ("meta.helm.sh/release-name", "meta.helm.sh/release-namespace");

/// What those set on what they apply.
const OTHERS: &[(&str, &str)] = &[
    ("helm.toolkit.fluxcd.io/name", "Flux (HelmRelease)"),
    ("kustomize.toolkit.fluxcd.io/name", "Flux (Kustomization)"),
    ("argocd.argoproj.io/instance", "Argo CD"),
    ("argocd.argoproj.io/tracking-id", "Argo CD"),
];

/// The release of Helm that an object is of: namespace and name.
pub fn release(object: &Value) -> Option<(&str, &str)> {
    let annotations = &object["metadata"]["annotations"];
    Some((annotations[HELM.1].as_str()?, annotations[HELM.0].as_str()?))
}

/// Which tool says that it applied an object, and would apply it again.
pub fn applied_by(object: &Value) -> Option<&'static str> {
    let metadata = &object["metadata"];
    let is_of = |key: &str| ["labels", "annotations"].iter().any(|map| metadata[*map][key].is_string());
    OTHERS.iter().find(|(key, _)| is_of(key)).map(|(_, tool)| *tool)
}

/// Names of the CRDs that may be taken over: those of CSO's own release, when Helm has forgotten it.
pub fn taken(facts: &Facts) -> Vec<String> {
    let of = facts.deployments.first().and_then(release).filter(|_| facts.records.is_empty());
    let ours = facts.definitions.iter().filter(|definition| of.is_some() && release(definition) == of);
    ours.filter_map(|definition| definition["metadata"]["name"].as_str()).map(str::to_owned).collect()
}

/// What has to be known of them.
pub fn notes(facts: &Facts) -> Vec<Note> {
    let mut notes = Vec::new();
    for deployment in &facts.deployments {
        let name = named(deployment);
        if let Some((namespace, release)) = release(deployment).filter(|_| !facts.records.is_empty()) {
            let message = format!(
                "Helm keeps it as release {release} of namespace {namespace}: `helm uninstall` would delete the CRDs, and with them \
                 all ClusterStacks"
            );
            let remedy = format!(
                "let Helm forget it: `kubectl delete {} -n {namespace} -l owner=helm,name={release}`, which deletes nothing that it \
                 installed; then run it again",
                facts.records.join(",")
            );
            notes.push(Note::new(name.clone(), true, message, remedy));
        }
        if let Some(other) = applied_by(deployment) {
            let message = format!("{other} keeps it, and would apply it again");
            let remedy = "suspend it there first, and remove it only then: removed while it is in force, its CRDs go, too, and with \
                          them all ClusterStacks";
            notes.push(Note::new(name, false, message, remedy));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn facts() -> Facts {
        let helm =
            |release: &str| json!({"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": "ns"});
        Facts {
            deployments: vec![
                json!({"kind": "Deployment", "metadata": {"name": "cso", "namespace": "ns", "annotations": helm("cso")}}),
            ],
            definitions: vec![
                json!({"metadata": {"name": "a", "annotations": helm("cso")}}),
                json!({"metadata": {"name": "b", "annotations": helm("other")}}),
                json!({"metadata": {"name": "c"}}),
            ],
            ..Facts::default()
        }
    }

    #[test]
    fn helm_has_to_forget_it_before_its_definitions_are_taken() {
        let mut facts = facts();
        assert_eq!((taken(&facts), notes(&facts)), (vec!["a".to_owned()], vec![]));
        facts.records = vec!["secret"];
        let [note] = &notes(&facts)[..] else { panic!("{:?}", notes(&facts)) };
        assert!(note.blocks && note.message.contains("release cso of namespace ns"), "{note:?}");
        assert!(note.remedy.contains("kubectl delete secret -n ns -l owner=helm,name=cso"), "{note:?}");
        assert_eq!(taken(&facts), Vec::<String>::new());
        // Without Helm none is Helm's to give.
        facts.records.clear();
        facts.deployments[0]["metadata"]["annotations"] = Value::Null;
        assert_eq!(taken(&facts), Vec::<String>::new());
    }

    #[test]
    fn who_would_apply_it_again_is_named() {
        for (map, key, expected) in [
            ("labels", "helm.toolkit.fluxcd.io/name", "Flux (HelmRelease)"),
            ("labels", "kustomize.toolkit.fluxcd.io/name", "Flux (Kustomization)"),
            ("labels", "argocd.argoproj.io/instance", "Argo CD"),
            ("annotations", "argocd.argoproj.io/tracking-id", "Argo CD"),
        ] {
            let mut facts = facts();
            facts.deployments[0]["metadata"][map] = json!({key: "x"});
            let [note] = &notes(&facts)[..] else { panic!("{key}: {:?}", notes(&facts)) };
            assert!(!note.blocks && note.message.starts_with(expected), "{note:?}");
        }
    }
}
