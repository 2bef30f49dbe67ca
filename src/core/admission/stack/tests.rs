use serde_json::{Value, json};

use super::*;

fn spec(change: &Value) -> ClusterStackSpec {
    let mut spec = json!({
        "provider": "docker", "name": "x", "kubernetesVersion": "1.34", "noProvider": true,
        "source": {"git": {"url": "file:///srv/git/x"}},
    });
    json_patch::merge(&mut spec, change);
    serde_json::from_value(spec).unwrap()
}

fn stack(name: &str, change: &Value) -> Stack {
    Stack { name: name.to_owned(), namespace: "team".to_owned(), spec: spec(change), is_deleting: false }
}

fn around() -> Around {
    Around { stacks: vec![stack("x", &json!({}))], source: Named::Nothing, users: Ok(BTreeMap::new()) }
}

fn allow() -> AllowList {
    AllowList::parse(["/srv/git"]).unwrap()
}

fn users(version: &str, clusters: &[&str]) -> BTreeMap<String, BTreeSet<User>> {
    let users = clusters.iter().map(|name| User::Cluster((*name).to_owned())).collect();
    BTreeMap::from([(version.to_owned(), users)])
}

/// Refused where it holds this text; the empty text is allowed.
fn said(before: Option<&Value>, after: &Stack, around: &Around) -> String {
    let verdict = write(before.map(spec).as_ref(), after, around, &allow());
    assert!(verdict.refusal.is_none() || verdict.warnings.is_empty(), "{verdict:?}");
    verdict.refusal.unwrap_or_default()
}

#[test]
fn a_second_of_the_same_releases_is_refused_and_a_stored_pair_stays() {
    let second = |change: Value| stack("y", &change);
    for (name, before, after, part) in [
        ("a pair", None, second(json!({})), "ClusterStack team/x has the releases of provider docker, name x"),
        ("itself", None, stack("x", &json!({})), ""),
        ("another provider", None, second(json!({"provider": "openstack"})), ""),
        ("another name", None, second(json!({"name": "z"})), ""),
        ("another version", None, second(json!({"kubernetesVersion": "1.33"})), ""),
        ("another channel", None, second(json!({"channel": "custom"})), ""),
        ("a stored pair", Some(json!({})), second(json!({"versions": ["v1"]})), ""),
        ("one that comes to it", Some(json!({"name": "z"})), second(json!({})), "change that one"),
    ] {
        let told = said(before.as_ref(), &after, &around());
        assert!(told.contains(part) && told.is_empty() == part.is_empty(), "{name}: {told}");
    }
    let mut around = around();
    around.stacks[0].is_deleting = true;
    assert!(said(None, &stack("y", &json!({})), &around).contains("wait until it is gone"));
    let leaving = Stack { is_deleting: true, ..stack("y", &json!({})) };
    assert_eq!(said(Some(&json!({"name": "z"})), &leaving, &around), "");
}

#[test]
fn only_a_change_to_what_is_not_allowed_is_refused() {
    let local = json!({"source": {"git": {"url": "file:///etc"}}});
    let elsewhere = json!({"source": {"git": {"url": "file:///root"}}});
    let shared = json!({"source": null, "sourceRef": {"namespace": "shop", "name": "s"}});
    let mut mended = local.clone();
    mended["versions"] = json!(["v1"]);
    for (name, before, after, source, part) in [
        ("created", None, &local, Named::Nothing, "\"file:///etc\" is a local path"),
        ("changed to it", Some(&elsewhere), &local, Named::Nothing, "local path"),
        ("stored so", Some(&local), &mended, Named::Nothing, ""),
        ("away from it", Some(&local), &json!({}), Named::Nothing, ""),
        ("of others", None, &shared, Named::NotAllowed, "shop/s does not exist or does not allow namespace team"),
        ("allowed", None, &shared, Named::Allowed, ""),
        ("not known", None, &shared, Named::Unknown("down".into()), ""),
    ] {
        let told = said(before, &stack("y", after), &Around { source, stacks: vec![], ..around() });
        assert!(told.contains(part) && told.is_empty() == part.is_empty(), "{name}: {told}");
    }
    assert_eq!(reference(None, &spec(&shared)).unwrap().name, "s");
    assert_eq!(reference(Some(&spec(&shared)), &spec(&shared)), None);
    assert_eq!(reference(None, &spec(&json!({}))), None);
}

#[test]
fn a_version_in_use_can_not_be_dropped() {
    let with = |versions: Value| json!({"channel": "custom", "versions": versions});
    let all = with(json!(["v1-a.1", "v2-a.1"]));
    let names = |before: Option<&Value>, after: &Value| -> Vec<String> {
        dropped(before.map(spec).as_ref(), &spec(after)).iter().map(ToString::to_string).collect()
    };
    assert_eq!(names(Some(&all), &with(json!(["v2-a-1", "v1-a-1"]))), Vec::<String>::new());
    assert_eq!(names(Some(&all), &with(json!([]))), ["v1-a.1", "v2-a.1"]);
    assert_eq!(names(None, &all), Vec::<String>::new());
    let after = stack("x", &with(json!(["v2-a.1"])));
    let used = Around { users: Ok(users("v1-a.1", &["team/c"])), ..around() };
    let told = said(Some(&all), &after, &used);
    assert!(told.contains("version v1-a.1") && told.contains("in use by Cluster team/c."), "{told}");
    assert_eq!(said(Some(&all), &after, &Around { users: Ok(users("v1-a.1", &[])), ..around() }), "");
    let unknown = write(Some(&spec(&all)), &after, &Around { users: Err("no list".into()), ..around() }, &allow());
    assert!(unknown.refusal.is_none() && unknown.warnings.iter().any(|said| said.contains("no list")), "{unknown:?}");
}

#[test]
fn what_is_unwise_is_warned_of_when_it_is_written() {
    let remote = json!({"source": {"git": {"url": "https://git.example.com/x"}}});
    for (name, change, expected) in [
        ("local", json!({}), &[][..]),
        ("nobody checks", remote.clone(), &["who made these releases"]),
        ("the operator's source", json!({"source": null}), &[]),
        ("nothing to take", json!({"autoSubscribe": false}), &["no release will be taken"]),
        ("versions", json!({"autoSubscribe": false, "versions": ["v1"]}), &[]),
        ("pre-releases as they come", json!({"channel": "custom"}), &["as soon as it is there"]),
        ("asked before", json!({"channel": "custom", "approval": "manual"}), &[]),
        ("hashes", json!({"channel": "custom", "preReleases": ["sha"]}), &["are hashes"]),
    ] {
        let verdict = write(None, &stack("new", &change), &Around { stacks: vec![], ..around() }, &allow());
        assert_eq!(verdict.refusal, None, "{name}");
        let is = verdict.warnings.iter().zip(expected).all(|(said, part)| said.contains(part));
        assert!(is && verdict.warnings.len() == expected.len(), "{name}: {verdict:?}");
        let again = write(Some(&spec(&change)), &stack("new", &change), &around(), &allow());
        assert_eq!(again, Verdict::allow(), "{name}, unchanged");
    }
    let missing = json!({"source": null, "sourceRef": {"name": "s"}});
    let verdict =
        write(None, &stack("n", &missing), &Around { source: Named::Missing, stacks: vec![], ..around() }, &allow());
    assert!(
        verdict.refusal.is_none() && verdict.warnings[0].contains("team/s does not exist: create it"),
        "{verdict:?}"
    );
}

#[test]
fn a_shared_source_is_held_to_the_flags_too() {
    let source = |url: &str| ClusterStackSourceSpec {
        source: serde_json::from_value(json!({"git": {"url": url}})).unwrap(),
        ..ClusterStackSourceSpec::default()
    };
    let (bad, good, far) = (source("file:///etc"), source("file:///srv/git/x"), source("https://git.example.com/x"));
    assert!(write_source(None, &bad, &allow()).refusal.unwrap().contains("local path"));
    assert_eq!(write_source(None, &good, &allow()), Verdict::allow());
    assert_eq!(write_source(None, &far, &allow()).warnings.len(), 1);
    let suspended = ClusterStackSourceSpec { suspend: true, ..bad.clone() };
    assert_eq!(write_source(Some(&bad), &suspended, &allow()).refusal, None);
}
