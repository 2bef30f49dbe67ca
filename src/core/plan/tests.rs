use super::*;
use serde_json::json;

use crate::api::cluster_stack_release::ResourceStatus;

static NO_SIBLINGS: BTreeMap<String, Sibling> = BTreeMap::new();
static NONE_OF_NEWER: BTreeSet<ObjectKey> = BTreeSet::new();
static ALL_READ: BTreeSet<ObjectKey> = BTreeSet::new();
static NO_FIGHTS: BTreeMap<ObjectKey, String> = BTreeMap::new();

/// What a plan is made from where nothing is out of the ordinary.
fn input<'a>(
    owner: &'a Owner,
    desired: &'a [Desired],
    recorded: &'a [Resource],
    live: &'a BTreeMap<ObjectKey, Value>,
) -> Input<'a> {
    Input {
        owner,
        desired,
        recorded,
        live,
        unread: &ALL_READ,
        ignore: &[],
        drift: DriftMode::Correct,
        fights: &NO_FIGHTS,
        retry_refused: false,
        siblings: &NO_SIBLINGS,
        of_newer: &NONE_OF_NEWER,
        leaves_secrets: false,
    }
}

fn owner() -> Owner {
    Owner { kind: "ClusterStackRelease".into(), namespace: "shop".into(), name: "docker-x-1-34-v1".into() }
}

fn desired(value: &str) -> Desired {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "shop"}, "data": {"k": value}});
    let manifest = Manifest::from_value(object).unwrap().with_labels(owner().labels());
    Desired { manifest, obstacle: None, create_only: false, replace: false, ignored: Vec::new() }
}

/// The live object after `value` was applied, `data.k` then changed to `now`.
fn live(value: &str, now: &str) -> Value {
    let mut object = desired(value).manifest.object;
    object["data"]["k"] = now.into();
    let labels: serde_json::Map<String, Value> =
        owner().labels().iter().map(|(key, _)| (format!("f:{key}"), json!({}))).collect();
    object["metadata"]["managedFields"] = json!([
        {"manager": "clusterstack", "operation": "Apply", "fieldsV1": {"f:data": {"f:k": {}}, "f:metadata": {"f:labels": labels}}},
        {"manager": "vandal", "operation": "Update", "fieldsV1": {"f:data": {"f:k": {}}}},
    ]);
    object
}

fn row(value: &str) -> Resource {
    let digest = format!("{}.{}", desired(value).manifest.digest(), owned_digest(&live(value, value), &[]).unwrap());
    Resource {
        version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "shop".into(),
        name: "a".into(),
        digest,
        ..Resource::default()
    }
}

fn action(
    desired: &Desired,
    recorded: &[Resource],
    live: Option<Value>,
    change: impl FnOnce(&mut Input<'_>),
) -> Action {
    let live = live.map(|live| (desired.manifest.key.clone(), live)).into_iter().collect();
    let owner = owner();
    let mut input = input(&owner, std::slice::from_ref(desired), recorded, &live);
    change(&mut input);
    plan(&input).steps.remove(0).action
}

fn shown(action: &Action) -> String {
    match action {
        Action::Apply { why, migrate } => format!("apply {why:?}{}", if *migrate { " migrate" } else { "" }),
        Action::Unchanged { .. } => "unchanged".into(),
        Action::Hold { reason, .. } => format!("hold {reason}"),
    }
}

#[test]
fn what_is_created_only_is_left_as_it_is_once_it_is_there() {
    let only = Desired { create_only: true, ..desired("2") };
    let mut foreign = live("1", "1");
    foreign["metadata"]["labels"] = json!({crate::api::OWNER_NAME_LABEL: "other"});
    for (name, live, expected) in [
        ("missing", None, "apply New"),
        ("otherwise", Some(live("1", "1")), "unchanged"),
        ("somebody else's", Some(foreign), "unchanged"),
    ] {
        assert_eq!(shown(&action(&only, &[], live, |_| {})), expected, "{name}");
    }
}

#[test]
fn an_immutable_field_is_tried_again_only_where_the_object_may_be_replaced() {
    let mut refused = row("2");
    refused.reason = Some(Reason::ImmutableField);
    refused.digest = format!("{}.", desired("2").manifest.digest());
    let annotated = |key: &str, value: &str| {
        let mut live = live("1", "1");
        live["metadata"]["annotations"] = json!({key: value});
        live
    };
    let replaced = Desired { replace: true, ..desired("2") };
    for (name, desired, live, expected) in [
        ("not allowed", desired("2"), Some(live("1", "1")), "hold"),
        ("deleted by hand", desired("2"), None, "apply"),
        ("allowed by the stage", replaced.clone(), Some(live("1", "1")), "apply"),
        ("never deleted", replaced.clone(), Some(annotated(HELM_RESOURCE_POLICY, "keep")), "hold"),
        ("nobody of ours applied it", replaced, Some(nobodys()), "hold"),
    ] {
        let shown = shown(&action(&desired, std::slice::from_ref(&refused), live, |_| {}));
        assert!(shown.starts_with(expected), "{name}: {shown}");
    }
    let owner = owner();
    let may = |desired: &Desired, live: &Value, siblings: &BTreeMap<String, Sibling>| {
        let none = BTreeMap::new();
        let input = Input { siblings, ..input(&owner, std::slice::from_ref(desired), &[], &none) };
        may_be_replaced(&input, desired, Some(live))
    };
    let volume = ObjectKey { kind: "PersistentVolumeClaim".into(), ..ObjectKey::default() };
    let mut claim = Desired { replace: true, ..desired("2") };
    claim.manifest.key = volume;
    assert!(!may(&claim, &live("1", "1"), &NO_SIBLINGS));
    let mut object = desired("2").manifest.object;
    object["metadata"]["annotations"] = json!({REPLACE: "true"});
    let own = Desired { manifest: Manifest::from_value(object).unwrap(), ..desired("2") };
    assert!(may(&own, &live("1", "1"), &NO_SIBLINGS));
    assert!(!may(&own, &nobodys(), &NO_SIBLINGS));
    // What an older release has goes over to this one, and may be made anew for it.
    let mut older = live("1", "1");
    older["metadata"]["labels"][OWNER_NAME_LABEL] = "docker-x-1-34-v0".into();
    let siblings = BTreeMap::from([("docker-x-1-34-v0".to_owned(), Sibling::Older)]);
    assert!(may(&own, &older, &siblings) && !may(&own, &older, &NO_SIBLINGS));
}

/// A live object that somebody made by hand.
fn nobodys() -> Value {
    let mut live = live("1", "1");
    live["metadata"] = json!({"name": "a", "namespace": "shop", "managedFields": [{"manager": "kubectl"}]});
    live
}

#[test]
fn what_could_not_be_read_is_neither_deleted_nor_forgotten() {
    let (owner, wanted, live) = (owner(), desired("1"), BTreeMap::new());
    let named = |name: &str, row: Resource| Resource { name: name.into(), ..row };
    let refused = Resource { reason: Some(Reason::Forbidden), digest: NEVER_APPLIED.into(), ..row("1") };
    let recorded = [named("unread", row("1")), named("gone", row("1")), named("never there", refused)];
    let unread = [key_of(&recorded[0]), key_of(&recorded[2])].into();
    let input = Input { unread: &unread, ..input(&owner, std::slice::from_ref(&wanted), &recorded, &live) };
    let names = |keys: &[ObjectKey]| keys.iter().map(|key| key.name.clone()).collect::<Vec<_>>();
    let prune = plan(&input).prune;
    assert!(prune.delete.is_empty() && prune.retain.is_empty(), "{prune:?}");
    assert_eq!(
        (names(&prune.unread), names(&prune.forget)),
        (vec!["unread".into()], vec!["gone".into(), "never there".into()])
    );
}

#[test]
fn an_empty_render_prunes_nothing_unless_it_is_known_to_be_none() {
    let owner = owner();
    let live = BTreeMap::from([(desired("1").manifest.key, live("1", "1"))]);
    let recorded = [row("1")];
    let input = input(&owner, &[], &recorded, &live);
    assert_eq!(plan(&input), Plan { empty_render: true, ..Plan::default() });
    assert_eq!(unwanted(&input).delete, [desired("1").manifest.key]);
}

#[test]
fn an_object_is_sent_only_if_something_differs() {
    let drifted = r#"apply Drifted { fields: ["/data/k"], rivals: ["vandal"] }"#;
    let mut foreign = live("1", "1");
    foreign["metadata"]["labels"] = json!({crate::api::OWNER_NAME_LABEL: "other"});
    let mut refused = row("1");
    refused.reason = Some(Reason::Invalid);
    for (name, recorded, live, expected) in [
        ("new", vec![], None, "apply New"),
        ("unchanged", vec![row("1")], Some(live("1", "1")), "unchanged"),
        ("another value is wanted", vec![row("0")], Some(live("0", "0")), "apply Changed"),
        ("changed by hand", vec![row("1")], Some(live("1", "2")), drifted),
        ("deleted by hand", vec![row("1")], None, "apply Deleted"),
        ("status lost, nothing changed", vec![], Some(live("1", "1")), "unchanged"),
        ("status lost, changed by hand", vec![], Some(live("1", "2")), "apply Changed"),
        ("somebody else's", vec![row("1")], Some(foreign), "hold OwnedByOther"),
        ("refused before", vec![refused], None, "hold Invalid"),
    ] {
        assert_eq!(shown(&action(&desired("1"), &recorded, live, |_| {})), expected, "{name}");
    }
}

#[test]
fn what_two_releases_of_a_stack_have_in_common_belongs_to_the_newer_one() {
    let mut common = live("1", "1");
    common["metadata"]["labels"][OWNER_NAME_LABEL] = "docker-x-1-34-v9".into();
    for (sibling, expected) in
        [(None, "hold OwnedByOther"), (Some(Sibling::Older), "apply Changed"), (Some(Sibling::Newer), "unchanged")]
    {
        let siblings = sibling.map(|sibling| ("docker-x-1-34-v9".to_owned(), sibling)).into_iter().collect();
        let (owner, wanted) = (owner(), desired("1"));
        let live = [(wanted.manifest.key.clone(), common.clone())].into();
        let input = Input { siblings: &siblings, ..input(&owner, std::slice::from_ref(&wanted), &[], &live) };
        assert_eq!(shown(&plan(&input).steps[0].action), expected, "{sibling:?}");
    }
    // Somebody deletes it. A release that has it no longer does nothing about it.
    let (owner, wanted, live) = (owner(), desired("1"), BTreeMap::new());
    let left = Resource { digest: left_to_sibling("any"), ..row("1") };
    for (newer_has, expected) in [(true, "unchanged"), (false, "apply New")] {
        let of_newer = newer_has.then(|| wanted.manifest.key.clone()).into_iter().collect();
        let rows = [left.clone()];
        let input = Input { of_newer: &of_newer, ..input(&owner, std::slice::from_ref(&wanted), &rows, &live) };
        assert_eq!(shown(&plan(&input).steps[0].action), expected, "the newer one has it: {newer_has}");
    }
}

#[test]
fn secrets_that_nobody_applied_are_left_where_the_rights_are_not_the_charts_own() {
    let owner = owner();
    let of_kind = |kind: &str, labels: Value, managers: Value| {
        let metadata = json!({"name": "a", "namespace": "shop"});
        let wanted = json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": {"k": "eA=="}});
        let manifest = Manifest::from_value(wanted.clone()).unwrap().with_labels(owner.labels());
        let mut there = wanted;
        (there["metadata"]["labels"], there["metadata"]["managedFields"]) = (labels, managers);
        (Desired { manifest, obstacle: None, create_only: false, replace: false, ignored: Vec::new() }, there)
    };
    let by_kubectl = json!([{"manager": "kubectl", "operation": "Apply", "fieldsV1": {}}]);
    let by_us = json!([{"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": {"f:data": {"f:x": {}}}}]);
    for (kind, managers, leaves_secrets, is_left) in [
        ("Secret", &by_kubectl, true, true),
        ("Secret", &by_kubectl, false, false),
        ("Secret", &by_us, true, false),
        ("ConfigMap", &by_kubectl, true, false),
    ] {
        let (wanted, there) = of_kind(kind, json!({}), managers.clone());
        let live = BTreeMap::from([(wanted.manifest.key.clone(), there)]);
        let plan = plan(&Input { leaves_secrets, ..input(&owner, std::slice::from_ref(&wanted), &[], &live) });
        let held = matches!(&plan.steps[0].action, Action::Hold { reason: Reason::OwnedByOther, .. });
        assert_eq!(held, is_left, "{kind} {managers} {leaves_secrets}: {:?}", plan.steps[0].action);
    }
}

#[test]
fn what_was_refused_is_sent_again_when_asked_or_changed() {
    let mut refused = row("1");
    refused.reason = Some(Reason::Invalid);
    let recorded = [refused];
    assert_ne!(shown(&action(&desired("1"), &recorded, None, |input| input.retry_refused = true)), "hold Invalid");
    assert_ne!(shown(&action(&desired("2"), &recorded, None, |_| {})), "hold Invalid");
}

#[test]
fn drift_is_corrected_warned_of_or_left_to_a_rival() {
    let live = || Some(live("1", "2"));
    let recorded = [row("1")];
    assert_eq!(shown(&action(&desired("1"), &recorded, live(), |i| i.drift = DriftMode::Warn)), "hold Drifted");
    let fights = [(desired("1").manifest.key, "fought over".to_owned())].into();
    let (owner, desired_one) = (owner(), desired("1"));
    let live_map = [(desired_one.manifest.key.clone(), live().unwrap())].into();
    let input = Input { fights: &fights, ..input(&owner, std::slice::from_ref(&desired_one), &recorded, &live_map) };
    assert_eq!(shown(&plan(&input).steps[0].action), "hold DriftFight");
}

#[test]
fn ignored_fields_are_left_to_others() {
    let ignore = [IgnoreDifference {
        kind: "ConfigMap".into(),
        json_pointers: vec!["/data/k".into()],
        ..IgnoreDifference::default()
    }];
    let digest =
        format!("{}.{}", desired("1").manifest.digest(), owned_digest(&live("1", "1"), &["/data/k".into()]).unwrap());
    let recorded = [Resource { digest, ..row("1") }];
    let (owner, wanted) = (owner(), desired("1"));
    let live = [(wanted.manifest.key.clone(), live("1", "2"))].into();
    let without = input(&owner, std::slice::from_ref(&wanted), &recorded, &live);
    assert_eq!(shown(&plan(&Input { ignore: &ignore, ..without }).steps[0].action), "unchanged");
    let own = Desired { ignored: vec!["/data/k".into()], ..wanted.clone() };
    let planned = plan(&input(&owner, &[own], &recorded, &live));
    assert_eq!(shown(&planned.steps[0].action), "unchanged");
    // No longer left to others, it is sent, also where whoever took it has it alone.
    let key = wanted.manifest.key.clone();
    let mut taken = live[&key].clone();
    taken["metadata"]["managedFields"][0]["fieldsV1"]["f:data"] = json!({});
    let digest = format!("{}.{}", wanted.manifest.digest(), owned_digest(&taken, &["/data/k".into()]).unwrap());
    let recorded = [Resource { digest: digest.clone(), ..row("1") }];
    let live = [(key, taken)].into();
    let without = input(&owner, std::slice::from_ref(&wanted), &recorded, &live);
    assert_eq!(shown(&plan(&without).steps[0].action), "apply Changed");
    assert_eq!(shown(&plan(&Input { ignore: &ignore, ..without }).steps[0].action), "unchanged");
    // Earlier versions recorded no rules: nothing is written for that.
    let before = [Resource { digest: digest.split_once('-').unwrap().0.to_owned(), ..row("1") }];
    let planned = plan(&Input { ignore: &ignore, ..input(&owner, std::slice::from_ref(&wanted), &before, &live) });
    assert_eq!(planned.steps[0].action, Action::Unchanged { digest: before[0].digest.clone() });
}

#[test]
fn pruning_spares_what_holds_more_than_itself() {
    let object = |api: &str, kind: &str, name: &str, metadata: Value| {
        let mut object = json!({"apiVersion": api, "kind": kind, "metadata": metadata});
        object["metadata"]["name"] = name.into();
        let labels: serde_json::Map<_, _> = owner().labels().iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
        let given = object["metadata"]["labels"].as_object().cloned().unwrap_or_default();
        object["metadata"]["labels"] = Value::Object(labels.into_iter().chain(given).collect());
        object
    };
    let mut theirs = object("v1", "ConfigMap", "theirs", json!({}));
    theirs["metadata"]["labels"].take();
    theirs["metadata"]["managedFields"] = json!([{"manager": "kubectl-create", "operation": "Update", "fieldsV1": {}}]);
    let objects = [
        theirs,
        object("v1", "ConfigMap", "goes", json!({})),
        object("v1", "ConfigMap", "helm-keep", json!({"annotations": {"helm.sh/resource-policy": "keep"}})),
        object("v1", "ConfigMap", "disabled", json!({"annotations": {"clusterstack.x-k8s.io/prune": "disabled"}})),
        object("v1", "ConfigMap", "taken", json!({"labels": {crate::api::OWNER_NAME_LABEL: "other"}})),
        object("v1", "Namespace", "stays", json!({})),
        object("v1", "Namespace", "opted-in", json!({"annotations": {"clusterstack.x-k8s.io/prune": "enabled"}})),
        object("cluster.x-k8s.io/v1beta1", "ClusterClass", "class", json!({})),
        object("v1", "PersistentVolumeClaim", "data", json!({})),
    ];
    let live: BTreeMap<_, _> = objects.into_iter().map(|o| (Manifest::from_value(o.clone()).unwrap().key, o)).collect();
    let recorded: Vec<Resource> = live
        .keys()
        .map(|k| Resource { group: k.group.clone(), kind: k.kind.clone(), name: k.name.clone(), ..Resource::default() })
        .collect();
    let (owner, keeps) = (owner(), desired("1"));
    let mut input = input(&owner, std::slice::from_ref(&keeps), &recorded, &live);
    let names = |keys: &[ObjectKey]| keys.iter().map(|k| k.name.clone()).collect::<Vec<_>>();
    let prune = plan(&input).prune;
    assert_eq!(names(&prune.delete), ["class", "goes", "opted-in"]);
    assert_eq!(names(&prune.retain), ["disabled", "helm-keep", "stays", "data"]);
    assert_eq!(names(&prune.forget), ["taken", "theirs"]);

    input.desired = &[];
    let held = plan(&input);
    assert!(held.empty_render && held.prune == Prune::default());
}

#[test]
fn five_corrections_in_ten_minutes_are_a_fight() {
    let at = |minute: i64| Timestamp::from_second(minute * 60).unwrap();
    let five: Vec<_> = (0..5).map(at).collect();
    assert!(is_fight(&five, at(5)));
    assert!(!is_fight(&five[1..], at(5)));
    assert!(!is_fight(&five, at(10)));
}

#[test]
fn an_inventory_is_settled_where_it_says_what_is_wanted() {
    let named = |name: &str| {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "n"}});
        let manifest = Manifest::from_value(object).unwrap();
        Desired { manifest, obstacle: None, create_only: false, replace: false, ignored: Vec::new() }
    };
    let synced = |name: &str, half: &str| Resource {
        digest: format!("{}.{half}", named(name).manifest.digest()),
        version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "n".into(),
        name: name.into(),
        status: ResourceStatus::Synced,
        ..Resource::default()
    };
    let (a, b) = (synced("a", "owned"), synced("b", "owned"));
    let another = Resource { digest: "other.owned".into(), ..b.clone() };
    let refused = Resource { status: ResourceStatus::NotSynced, ..b.clone() };
    let elsewhere = Resource { namespace: "m".into(), ..b.clone() };
    for (what, rows, expected) in [
        ("all", vec![a.clone(), b.clone()], true),
        ("in another order", vec![b.clone(), a.clone()], true),
        ("none", vec![], false),
        ("one is not applied yet", vec![a.clone()], false),
        ("one is to go", vec![a.clone(), b.clone(), synced("c", "owned")], false),
        ("another content is wanted", vec![a.clone(), another], false),
        ("one is not synced", vec![a.clone(), refused], false),
        ("one is a newer release's", vec![a.clone(), synced("b", "")], false),
        ("one is elsewhere", vec![a.clone(), elsewhere], false),
    ] {
        assert_eq!(is_settled(&rows, &[named("a"), named("b")]), expected, "{what}");
    }
    assert!(!is_settled(&[], &[]));
    let held = Desired { obstacle: Some((Reason::Forbidden, String::new())), ..named("b") };
    assert!(!is_settled(&[a, b], &[named("a"), held]));
}

#[test]
fn a_release_that_clusters_could_not_use_is_not_applied() {
    let class = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "ClusterClass", "metadata": {"name": "a"}});
    let class = Desired { manifest: Manifest::from_value(class).unwrap(), ..desired("1") };
    for (desired, other, expected) in [
        (vec![], None, Some("renders no object")),
        (vec![], Some("docker-x-1-34-v1"), Some("renders no object")),
        (vec![desired("1")], Some("docker-x-1-34-v1"), Some("that of docker-x-1-34-v1 does")),
        // What is all of a stack whose charts have no class may be so.
        (vec![desired("1")], None, None),
        (vec![desired("1"), class], Some("docker-x-1-34-v1"), None),
    ] {
        let found = unusable(&desired, other);
        assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
        assert!(expected.is_none_or(|part| found.as_ref().is_some_and(|found| found.contains(part))), "{found:?}");
    }
}
