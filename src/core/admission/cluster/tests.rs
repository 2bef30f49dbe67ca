use serde_json::{Value, json};

use super::*;
use crate::core::addon::cluster::read;

const V34: &str = "docker-x-1-34-v1";

fn cluster(class: &str, version: &str) -> Cluster {
    from(&json!({"topology": {"class": class, "version": version}}))
}

fn from(spec: &Value) -> Cluster {
    read(&json!({"metadata": {"namespace": "team", "name": "c"}, "spec": spec})).unwrap()
}

/// A release that is ready, with node images for the version with patch 7 of its minor and for those that are given.
fn release(name: &str, images: &[&str]) -> Release {
    let name: ReleaseName = name.parse().unwrap();
    let own = format!("v{}.7", name.kubernetes);
    let node_versions = images.iter().map(|version| (*version).to_owned()).chain([own.clone()]).collect();
    Release { name, is_ready: true, message: String::new(), is_deleting: false, kubernetes: own, node_versions }
}

/// A verdict over classes and versions before and after; classes that name a release of ours are of one.
struct Case {
    name: &'static str,
    before: Option<(&'static str, &'static str)>,
    after: (&'static str, &'static str),
    images: &'static [&'static str],
    chain: Chain,
    meant: &'static str,
    expected: &'static str,
}

const CASE: Case = Case {
    name: "",
    before: Some((V34, "v1.34.7")),
    after: (V34, "v1.34.7"),
    images: &[],
    chain: Chain::None,
    meant: "",
    expected: "",
};

impl Case {
    fn verdict(&self) -> Verdict {
        let known = |class: &str| class.starts_with("docker-").then(|| release(class, self.images));
        let before = self.before.map(|(class, version)| cluster(class, version));
        let after = cluster(self.after.0, self.after.1);
        write(&Change {
            before: before.as_ref(),
            after: &after,
            from: self.before.and_then(|(class, _)| known(class)).as_ref(),
            to: known(self.after.0).as_ref(),
            chain: &self.chain,
            meant: self.meant,
            stacks: &BTreeSet::new(),
        })
    }
}

fn judge(cases: impl IntoIterator<Item = Case>) {
    for case in cases {
        let said = case.verdict().refusal.unwrap_or_default();
        let is = said.contains(case.expected) && said.is_empty() == case.expected.is_empty();
        assert!(is, "{}: {said:?}", case.name);
    }
}

#[test]
fn a_class_of_another_stack_needs_the_annotation_that_names_it() {
    let to = |name, after, expected| Case { name, after, expected, ..CASE };
    judge([
        to("the next release", ("docker-x-1-34-v2", "v1.34.7"), ""),
        to(
            "another stack",
            ("docker-y-1-34-v1", "v1.34.7"),
            "is of stack docker-y, and the Cluster is of stack docker-x",
        ),
        to("another provider", ("openstack-x-1-34-v1", "v1.34.7"), "stack openstack-x"),
        to("none of ours", ("quick-start", "v1.34.7"), "is of no cluster stack, and"),
        Case { meant: "docker-y-1-34-v1", ..to("meant", ("docker-y-1-34-v1", "v1.34.7"), "") },
        Case {
            meant: "docker-y-1-34-v2",
            ..to("another meant", ("docker-y-1-34-v1", "v1.34.7"), "allow-class-change")
        },
        Case {
            before: Some(("quick-start", "v1.34.7")),
            ..to("of none before", (V34, "v1.34.7"), "of no cluster stack:")
        },
        Case { before: Some(("", "v1.34.7")), ..to("without a class before", (V34, "v1.34.7"), "") },
        Case { before: None, ..to("created", ("docker-y-1-34-v1", "v1.34.7"), "") },
    ]);
}

#[test]
fn a_version_is_one_of_the_minor_of_the_release() {
    let to = |name, after, expected| Case { name, after, expected, ..CASE };
    judge([
        to("another patch", (V34, "v1.34.9"), ""),
        to(
            "another minor",
            (V34, "v1.35.1"),
            "v1.35.1 is no version of Kubernetes 1.34, for which release docker-x-1-34-v1",
        ),
        to("the class alone", ("docker-x-1-35-v1", "v1.34.7"), "name v1.35.7, or a class for 1.34"),
        to("both", ("docker-x-1-35-v1", "v1.35.1"), ""),
        to("no version", (V34, "latest"), "\"latest\" is no version of Kubernetes: write it as v1.34.7"),
        to("a minor alone", (V34, "v1.34"), "\"v1.34\" is no version of Kubernetes"),
        Case { before: None, ..to("created without one", (V34, ""), "") },
        Case { before: None, ..to("created", (V34, "v1.33.1"), "no version of Kubernetes 1.34") },
        Case { before: None, ..to("created well", (V34, "v1.34.1"), "") },
        Case { before: Some((V34, "v1.33.1")), ..to("stored so", (V34, "v1.33.1"), "") },
    ]);
}

#[test]
fn a_minor_is_not_left_out_unless_the_class_goes_through_it() {
    let up = |name, chain, expected| Case {
        name,
        before: Some(("docker-x-1-32-v1", "v1.32.7")),
        after: (V34, "v1.34.7"),
        chain,
        expected,
        ..CASE
    };
    let versions = |list: &[&str]| Chain::Versions(list.iter().map(|version| (*version).to_owned()).collect());
    judge([
        up("no word of it", Chain::None, "Kubernetes 1.33 is left out, and ClusterClass docker-x-1-34-v1 says nothing"),
        Case { images: &["v1.33.5"], ..up("our hook", Chain::Ours, "") },
        Case {
            images: &["v1.31.5"],
            ..up("our hook without images", Chain::Ours, "no node image for Kubernetes 1.33")
        },
        up("somebody's hook", Chain::Another, ""),
        up("not known", Chain::Unknown("down".into()), ""),
        up("named versions", versions(&["v1.33.2", "v1.34.7"]), ""),
        up("not named", versions(&["v1.34.7"]), "does not name it in spec.kubernetesVersions"),
        Case { before: Some(("docker-x-1-33-v1", "v1.33.7")), ..up("one minor", Chain::None, "") },
        Case {
            before: Some(("docker-x-1-35-v1", "v1.35.1")),
            ..up("back", Chain::None, "can't go back from v1.35.1 to v1.34.7: keep a class for 1.35")
        },
    ]);
}

#[test]
fn other_clusters_are_not_touched() {
    judge([
        Case { before: None, after: ("quick-start", "v1.31.0"), ..CASE },
        Case { before: Some(("quick-start", "v1.30.0")), after: ("other", "v1.34.0"), ..CASE },
    ]);
    let without_topology = from(&json!({}));
    assert!(!is_judged(None, &without_topology));
    let leaving = Cluster { deleting: true, ..cluster(V34, "v1.33.1") };
    assert!(!is_judged(None, &leaving));
}

#[test]
fn what_is_moved_here_or_restored_is_warned_of_alone() {
    let paused = Cluster { paused: true, ..cluster(V34, "v1.33.1") };
    let (to, stacks) = (release(V34, &[]), BTreeSet::new());
    let change = Change {
        before: None,
        after: &paused,
        from: None,
        to: Some(&to),
        chain: &Chain::None,
        meant: "",
        stacks: &stacks,
    };
    let verdict = write(&change);
    assert!(verdict.refusal.is_none() && verdict.warnings[0].contains("no version of Kubernetes 1.34"), "{verdict:?}");
    let before = Cluster { kubernetes_version: "v1.34.7".into(), ..paused.clone() };
    assert!(write(&Change { before: Some(&before), ..change }).refusal.is_some());
}

#[test]
fn a_release_that_is_not_ready_is_warned_of() {
    let stacks = BTreeSet::from(["docker-x".to_owned()]);
    let ready = release(V34, &[]);
    let unready = Release { is_ready: false, ..ready.clone() };
    for (name, to, class, version, expected) in [
        ("ready", Some(&ready), V34, "v1.34.7", &[][..]),
        ("not ready", Some(&unready), V34, "v1.34.7", &["is not Ready: not yet"]),
        (
            "why",
            Some(&Release { message: "ConfigMap x: forbidden".into(), ..unready.clone() }),
            V34,
            "v1.34.7",
            &["is not Ready: ConfigMap x: forbidden"],
        ),
        ("going", Some(&Release { is_deleting: true, ..ready.clone() }), V34, "v1.34.7", &["is being deleted"]),
        ("no image", Some(&ready), V34, "v1.34.9", &["node images for v1.34.7 and none that it knows of for v1.34.9"]),
        ("none is known", Some(&Release { node_versions: vec![], ..ready.clone() }), V34, "v1.34.9", &[]),
        ("no such release", None, "docker-x-1-34-v9", "v1.34.7", &["of no release that is here"]),
        ("no release of that stack", None, "quick-start-1-34-v9", "v1.34.7", &[]),
    ] {
        let (before, after) = (cluster("docker-x-1-34-v0", "v1.34.1"), cluster(class, version));
        let from = release("docker-x-1-34-v0", &[]);
        let verdict = write(&Change {
            before: Some(&before),
            after: &after,
            from: Some(&from),
            to,
            chain: &Chain::None,
            meant: class,
            stacks: &stacks,
        });
        assert_eq!(verdict.refusal, None, "{name}");
        let is = verdict.warnings.iter().zip(expected).all(|(said, part)| said.contains(part));
        assert!(is && verdict.warnings.len() == expected.len(), "{name}: {verdict:?}");
    }
}

#[test]
fn a_class_tells_how_it_goes_over_several_minors() {
    for (spec, expected) in [
        (json!({}), Chain::None),
        (json!({"kubernetesVersions": []}), Chain::None),
        (
            json!({"kubernetesVersions": ["v1.33.1", "v1.34.7"]}),
            Chain::Versions(vec!["v1.33.1".into(), "v1.34.7".into()]),
        ),
        (
            json!({"upgrade": {"external": {"generateUpgradePlanExtension": "generate-upgrade-plan.clusterstack-team"}}}),
            Chain::Ours,
        ),
        (json!({"upgrade": {"external": {"generateUpgradePlanExtension": "plan.somebody"}}}), Chain::Another),
    ] {
        assert_eq!(chain(&json!({"spec": spec})), expected, "{spec}");
    }
}

#[test]
fn the_naming_rule_is_what_the_api_server_looks_for() {
    let pattern = regex::Regex::new(CLASS_PATTERN).unwrap();
    for (name, is) in [
        ("docker-x-1-34-v1", true),
        ("openstack-scs-1-34-v0-sha.abcdef", true),
        ("my-v2-stack-1-34-v2-beta-1", true),
        ("quick-start", false),
        ("quick-start-v2", false),
    ] {
        assert_eq!(pattern.is_match(name), is, "{name}");
        assert!(is || name.parse::<ReleaseName>().is_err(), "{name}");
    }
}
