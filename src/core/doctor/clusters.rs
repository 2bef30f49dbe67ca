//! Clusters whose `ClusterClass` is a release's that nobody brings.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Facts, Finding, Grade, Read, UNANSWERED, named, some};
use crate::core::in_use;
use crate::core::name::ReleaseName;

const CHECK: &str = "clusters";

/// Namespace and name.
type Place = (String, String);

/// A restore of a backup that leaves the releases out, or a Cluster that was written for another management cluster, names a class
/// that an operator takes for nobody: Clusters alone make no release subscribed.
pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let (clusters, classes) = match (&facts.clusters, &facts.classes) {
        (Ok(clusters), Ok(classes)) => (clusters, classes),
        (Err(why), _) | (_, Err(why)) if is_unconverted(why) => {
            let remedy = "look at the pods of Cluster API, and at the certificate and Service of its webhooks, which convert them; until then \
                          the operator takes no release away and upgrades no addons";
            return vec![Finding::new(CHECK, Grade::Bad, why.clone(), remedy)];
        }
        (Err(why), _) | (_, Err(why)) => return vec![Finding::unknown(CHECK, why)],
    };
    let classes: BTreeSet<Place> = classes.iter().map(place).collect();
    let mut lacking: BTreeMap<Place, Vec<String>> = BTreeMap::new();
    for cluster in clusters.iter().filter(|cluster| cluster["metadata"]["deletionTimestamp"].is_null()) {
        let class = in_use::cluster(cluster).and_then(|cluster| cluster.class);
        if let Some(class) = class.filter(|class| !classes.contains(class)) {
            lacking.entry(class).or_default().push(named(cluster));
        }
    }
    lacking.iter().filter_map(|(class, clusters)| missing(class, clusters, facts)).collect()
}

/// Whether the API server can't read them itself: its cache of a kind is never filled, or read, while nobody converts the objects
/// (`storage is (re)initializing`, `conversion webhook for … failed`).
fn is_unconverted(why: &str) -> bool {
    [UNANSWERED, "(re)initializing", "conversion webhook"].iter().any(|words| why.contains(words))
}

fn missing((namespace, class): &Place, clusters: &[String], facts: &Facts) -> Option<Finding> {
    let stack = of_kind(facts, "ClusterStack").iter().find_map(|stack| {
        let spec = |field: &str| stack["spec"][field].as_str().unwrap_or_default();
        let release = ReleaseName::of_stack(class, spec("provider"), spec("name"))?;
        let is_its_own = stack["metadata"]["namespace"] == **namespace
            && spec("kubernetesVersion").parse().is_ok_and(|kubernetes| release.kubernetes == kubernetes);
        is_its_own.then(|| (named(stack), release))
    });
    let is_there = of_kind(facts, "ClusterStackRelease")
        .iter()
        .any(|release| place(release).0 == *namespace && release["metadata"]["name"] == **class);
    let remedy = match stack {
        Some((stack, _)) if is_there => format!(
            "its release is there: clusterstack tree shows what ClusterStack {stack} lacks, or whether its ClusterClass has another name"
        ),
        Some((stack, release)) => format!(
            "name {} in spec.versions of ClusterStack {stack}, or have the Clusters use a class that is there",
            release.version
        ),
        // Of a stack of somebody else, or of none: Cluster API says of it what is to be said.
        None if class.parse::<ReleaseName>().is_err() => return None,
        None => format!(
            "create the ClusterStack in namespace {namespace} that brings it, with this version in its spec.versions"
        ),
    };
    let clusters = some(clusters.iter().map(String::as_str));
    let message = format!("ClusterClass {namespace}/{class} is not there, and used by Clusters {clusters}");
    Some(Finding::new(CHECK, Grade::Bad, message, remedy))
}

/// The objects of a kind, as far as they could be read.
fn of_kind<'a>(facts: &'a Facts, kind: &str) -> &'a [Value] {
    let found: Option<&Read<Vec<Value>>> = facts.objects.iter().find(|(name, _)| *name == kind).map(|(_, found)| found);
    found.and_then(|found| found.as_deref().ok()).unwrap_or_default()
}

fn place(object: &Value) -> Place {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::core::doctor::tests::healthy;

    #[test]
    fn a_cluster_whose_class_nobody_brings_is_told_who_could() {
        let named = |name: &str| json!({"metadata": {"namespace": "a", "name": name}});
        let stack = json!({"metadata": {"namespace": "a", "name": "x"},
            "spec": {"provider": "docker", "name": "scs", "kubernetesVersion": "1.34"}});
        for (namespace, class, releases, expected) in [
            ("a", "docker-scs-1-34-v2", vec![], None),
            ("a", "docker-scs-1-34-v1", vec![], Some("name v1 in spec.versions of ClusterStack a/x")),
            ("a", "docker-scs-1-34-v1", vec!["docker-scs-1-34-v1"], Some("its release is there")),
            ("a", "docker-scs-1-33-v1", vec![], Some("create the ClusterStack in namespace a")),
            ("b", "docker-scs-1-34-v1", vec![], Some("create the ClusterStack in namespace b")),
            ("a", "quick-start", vec![], None),
        ] {
            let mut facts = healthy();
            let topology = json!({"classRef": {"name": class, "namespace": namespace}});
            let metadata = json!({"namespace": "t", "name": "c"});
            let mut going = json!({"metadata": metadata, "spec": {"topology": {"class": "docker-scs-1-34-v9"}}});
            going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            facts.clusters = Ok(vec![json!({"metadata": metadata, "spec": {"topology": topology}}), going]);
            facts.classes = Ok(vec![named("docker-scs-1-34-v2")]);
            facts.objects = vec![
                ("ClusterStack", Ok(vec![stack.clone()])),
                ("ClusterStackRelease", Ok(releases.into_iter().map(named).collect())),
            ];
            let found = check(&facts);
            let said = format!("{namespace}/{class}: {found:#?}");
            let Some(expected) = expected else {
                assert!(found.is_empty(), "{said}");
                continue;
            };
            let [only] = found.as_slice() else { panic!("{said}") };
            assert!(
                only.grade == Grade::Bad && only.message.contains(class) && only.message.ends_with("t/c"),
                "{said}"
            );
            assert!(only.remedy.starts_with(expected), "{said}");
        }
        let facts = Facts { classes: Err("no".into()), ..healthy() };
        assert_eq!(check(&facts)[0].grade, Grade::Unknown);
    }
}
