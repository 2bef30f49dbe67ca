use super::*;
use HelmHookPhase::{Creating, Failed, Running, Succeeded};

fn hook(kind: &str, name: &str, events: &str, weight: i64, policies: &str) -> HelmHook {
    let api_version = if kind == "Job" { "batch/v1" } else { "v1" };
    let words = |text: &str| text.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect();
    HelmHook {
        manifest: Manifest::from_value(json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": {"name": name, "annotations": {HELM_HOOK: events}},
        }))
        .unwrap(),
        events: words(events),
        weight,
        policies: words(policies),
    }
}

fn job(policies: &str) -> HelmHook {
    hook("Job", "migrate", "pre-install", 0, policies)
}

fn in_phase(hook: &HelmHook, phase: HelmHookPhase) -> HelmHookStatus {
    HelmHookStatus { phase, message: "no luck".into(), ..entry(hook, "pre-install", "r1") }
}

/// What lives after that run, with a status.
fn live(hook: &HelmHook, entry: &HelmHookStatus, status: Value) -> Value {
    let mut live = object(hook, entry);
    live["status"] = status;
    live
}

fn condition(type_: &str) -> Value {
    json!({"conditions": [{"type": type_, "status": "True", "reason": "Because", "message": "of it"}]})
}

#[test]
fn hooks_run_by_weight_then_by_name_then_by_kind() {
    let hooks = [
        hook("ServiceAccount", "z", "pre-install,pre-upgrade", 0, ""),
        hook("ConfigMap", "a", "pre-install", 5, ""),
        hook("ServiceAccount", "b", "pre-install", 0, ""),
        hook("Job", "b", "pre-install", 0, ""),
        hook("Job", "first", "pre-install", -5, ""),
        hook("Job", "other", "post-install", -9, ""),
    ];
    let order = |event: &str| -> Vec<String> {
        of_event(&hooks, event).iter().map(|hook| hook.manifest.key.to_string()).collect()
    };
    assert_eq!(order("pre-install"), ["Job first", "ServiceAccount b", "Job b", "ServiceAccount z", "ConfigMap a"]);
    assert_eq!(order("pre-upgrade"), ["ServiceAccount z"]);
    assert!(order("test").is_empty());
}

#[test]
fn what_changes_is_known_from_the_record() {
    let chart = |digest: &str, running: &str| ChartStatus {
        digest: digest.into(),
        running: running.into(),
        ..ChartStatus::default()
    };
    for (name, recorded, is_there, expected) in [
        ("new", None, false, Some(Change::Install)),
        ("there, and the record was lost or never made", None, true, Some(Change::Upgrade)),
        ("in the middle of the install", Some(chart("", "install")), true, Some(Change::Install)),
        (
            "in the middle of an upgrade without a record before",
            Some(chart("", "upgrade")),
            true,
            Some(Change::Upgrade),
        ),
        ("deleted half", Some(chart("", "delete")), true, Some(Change::Upgrade)),
        ("deleted", Some(chart("", "delete")), false, Some(Change::Install)),
        ("only its tests ran so far", Some(chart("", "")), true, Some(Change::Upgrade)),
        ("its tests ran, and somebody deleted it", Some(chart("", "")), false, Some(Change::Install)),
        ("applied", Some(chart("r2", "")), true, None),
        ("changed", Some(chart("r1", "")), true, Some(Change::Upgrade)),
        (
            "had no hooks, and has some now",
            Some(ChartStatus { without_hooks: true, ..chart("r1", "") }),
            true,
            Some(Change::Upgrade),
        ),
        ("in the middle of an upgrade", Some(chart("r1", "upgrade")), false, Some(Change::Upgrade)),
        (
            "back to what was applied, from an upgrade's middle",
            Some(chart("r2", "upgrade")),
            true,
            Some(Change::Upgrade),
        ),
    ] {
        assert_eq!(change(recorded.as_ref(), "r2", is_there), expected, "{name}");
    }
}

#[test]
fn a_chart_that_goes_is_asked_for_hooks_where_its_record_tells_of_any() {
    let chart = |digest: &str, running: &str| ChartStatus {
        digest: digest.into(),
        running: running.into(),
        ..ChartStatus::default()
    };
    for (name, recorded, expected) in [
        ("it has none", None, false),
        ("it has tests alone", Some(chart("", "")), false),
        ("applied", Some(chart("r1", "")), true),
        ("applied without any", Some(ChartStatus { without_hooks: true, ..chart("r1", "") }), false),
        ("gets its first ones", Some(ChartStatus { without_hooks: true, ..chart("r1", "upgrade") }), true),
        ("in the middle of the install", Some(chart("", "install")), true),
        ("in the middle of an upgrade", Some(chart("r1", "upgrade")), true),
        ("in the middle of its removal", Some(chart("", "delete")), true),
    ] {
        assert_eq!(may_have_hooks(recorded.as_ref()), expected, "{name}");
    }
}

#[test]
fn a_chart_that_is_applied_is_recorded_with_its_hooks_or_without() {
    let hook = job("");
    let runs = ["pre-upgrade", TEST].map(|event| entry(&hook, event, "r1"));
    let before =
        ChartStatus { digest: "r1".into(), running: "upgrade".into(), hooks: runs.into(), ..ChartStatus::default() };
    let after = |hooks: &[HelmHook]| {
        let mut chart = before.clone();
        complete(&mut chart, ("v2", "r2"), hooks);
        assert_eq!((chart.digest.as_str(), chart.running.as_str()), ("r2", ""));
        (chart.without_hooks, chart.hooks.into_iter().map(|run| run.event).collect::<Vec<_>>())
    };
    assert_eq!(after(std::slice::from_ref(&hook)), (false, vec!["pre-upgrade".to_owned(), TEST.to_owned()]));
    assert_eq!(after(&[]), (true, vec![TEST.to_owned()]), "it lost its hooks");
}

#[test]
fn a_change_runs_for_the_rendering_that_it_began_with() {
    let hook = job("");
    let of = |running: &str, begun: &str, phase| ChartStatus {
        running: running.into(),
        begun: begun.into(),
        hooks: vec![HelmHookStatus { phase, ..entry(&hook, "pre-install", "r1") }],
        ..ChartStatus::default()
    };
    for (name, recorded, expected) in [
        ("it begins", None, "r2"),
        ("of an operator that did not record it", Some(of("install", "", Running)), "r2"),
        ("what it asks the cluster for changed", Some(of("install", &begun("i", "r1"), Running)), "r1"),
        ("all so far succeeded", Some(of("install", &begun("i", "r1"), Succeeded)), "r1"),
        ("release or values changed", Some(of("install", &begun("j", "r1"), Running)), "r2"),
        ("another change", Some(of("upgrade", &begun("i", "r1"), Running)), "r2"),
        ("one failed, and it renders to something else", Some(of("install", &begun("i", "r1"), Failed)), "r2"),
    ] {
        assert_eq!(rendering_of_run(recorded.as_ref(), Change::Install, "i", "r2"), expected, "{name}");
    }
}

#[test]
fn delete_policies_are_helms() {
    for (policies, before, succeeded, failed) in [
        ("", true, false, false),
        ("before-hook-creation", true, false, false),
        ("hook-succeeded", false, true, false),
        ("hook-failed,before-hook-creation", true, false, true),
    ] {
        let hook = job(policies);
        let has = [Policy::BeforeCreation, Policy::Succeeded, Policy::Failed].map(|policy| hook.has(policy));
        assert_eq!(has, [before, succeeded, failed], "{policies}");
    }
    let definition = hook("CustomResourceDefinition", "x", "pre-install", 0, "hook-succeeded");
    assert!(!definition.has(Policy::Succeeded) && !definition.has(Policy::BeforeCreation));
}

#[test]
fn a_hook_goes_from_step_to_step() {
    let default = job("");
    let strict = job("hook-succeeded");
    let config = hook("ConfigMap", "settings", "pre-install", 0, "");
    let enter = |phase| Step::Enter(phase, String::new());
    let (creating, running) = (in_phase(&default, Creating), in_phase(&default, Running));
    let foreign = json!({"kind": "Job", "metadata": {"name": "migrate"}});
    let going = json!({"kind": "Job", "metadata": {"name": "migrate", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let own = |status: Value| live(&default, &creating, status);
    let exists = Step::Enter(
        Failed,
        "Job migrate exists already: delete it, or let its hook have the delete policy before-hook-creation".into(),
    );
    let waits = |what: &str| Step::Wait(what.into());
    for (name, hook, recorded, live, retry, expected) in [
        ("its turn has come", &default, None, None, false, enter(Creating)),
        ("nothing is in the way", &default, Some(creating.clone()), None, false, Step::Create),
        ("an older one is in the way", &default, Some(creating.clone()), Some(foreign.clone()), false, Step::Clear),
        (
            "an older one goes",
            &default,
            Some(creating.clone()),
            Some(going),
            false,
            waits("an older Job migrate to go"),
        ),
        ("it must not be deleted", &strict, Some(in_phase(&strict, Creating)), Some(foreign.clone()), false, exists),
        (
            "killed right after it was created",
            &default,
            Some(creating.clone()),
            Some(own(json!({}))),
            false,
            waits("Job migrate: Job is not started yet"),
        ),
        ("complete", &default, Some(running.clone()), Some(own(condition("Complete"))), false, enter(Succeeded)),
        (
            "failed",
            &default,
            Some(running.clone()),
            Some(own(condition("Failed"))),
            false,
            Step::Enter(Failed, "Because: of it".into()),
        ),
        ("gone, as a Job that deletes itself", &default, Some(running.clone()), None, false, enter(Succeeded)),
        ("somebody else's by now", &default, Some(running), Some(foreign), false, enter(Succeeded)),
        ("done", &default, Some(in_phase(&default, Succeeded)), None, true, Step::Done),
        ("it failed", &default, Some(in_phase(&default, Failed)), None, false, Step::Failed("no luck".into())),
        ("it failed and somebody asks", &default, Some(in_phase(&default, Failed)), None, true, enter(Creating)),
        (
            "no Job and no Pod",
            &config,
            Some(in_phase(&config, Running)),
            Some(live(&config, &in_phase(&config, Running), Value::Null)),
            false,
            enter(Succeeded),
        ),
    ] {
        let step = next(hook, recorded.as_ref(), live.as_ref(), retry, Timestamp::UNIX_EPOCH);
        match (&step, &expected) {
            (Step::Wait(is), Step::Wait(should)) if should.contains("not started") => {
                assert!(is.starts_with("Job migrate"), "{name}: {is}");
            }
            _ => assert_eq!(step, expected, "{name}"),
        }
    }
}

#[test]
fn what_an_earlier_run_left_is_replaced_whatever_its_policies_say() {
    let strict = job("hook-succeeded");
    let now = in_phase(&strict, Creating);
    let left = live(&strict, &entry(&strict, "pre-install", "r0"), json!({"active": 1}));
    let step = |hook: &HelmHook, live: &Value| next(hook, Some(&now), Some(live), false, Timestamp::UNIX_EPOCH);
    assert_eq!(step(&strict, &left), Step::Clear);
    let mut going = left.clone();
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert!(matches!(step(&strict, &going), Step::Wait(_)));
    // With a definition all of its objects would go.
    let definition = hook("CustomResourceDefinition", "x", "pre-install", 0, "");
    let left = live(&definition, &entry(&definition, "pre-install", "r0"), Value::Null);
    assert!(matches!(step(&definition, &left), Step::Enter(Failed, message) if message.contains("exists already")));
}

#[test]
fn what_runs_for_another_rendering_is_waited_for_to_its_end() {
    let hook = job("hook-succeeded");
    let hooks = [hook.clone()];
    let of = |rendering: &str, event: &str, phase| HelmHookStatus { phase, ..entry(&hook, event, rendering) };
    let now = runs(&hooks, Change::Upgrade, "r2");
    for (name, run, expected) in [
        ("of this rendering", of("r2", "pre-upgrade", Running), false),
        ("of another one", of("r1", "pre-upgrade", Running), true),
        ("about to be created", of("r1", "post-upgrade", Creating), true),
        ("of another change", of("r2", "pre-install", Running), true),
        ("over", of("r1", "pre-upgrade", Succeeded), false),
        ("failed", of("r1", "pre-upgrade", Failed), false),
        ("a test", of("r1", TEST, Running), false),
    ] {
        assert_eq!(!earlier(std::slice::from_ref(&run), &now).is_empty(), expected, "{name}");
    }

    let at = |seconds: i64| Timestamp::from_second(seconds).unwrap();
    let limited = |policies: &str| {
        let mut hook = job(policies);
        hook.manifest.object["metadata"]["annotations"][HOOK_TIMEOUT] = json!("10s");
        hook.manifest.object["metadata"]["annotations"][crate::api::HELM_HOOK_DELETE_POLICY] = json!(policies);
        hook
    };
    let hook = limited("hook-succeeded, before-hook-creation");
    let started = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
    let run = HelmHookStatus { phase: Running, started, ..entry(&hook, "pre-upgrade", "r1") };
    let over = |delete, failed: Option<&str>| Ended::Over { delete, failed: failed.map(str::to_owned) };
    let is = |status: Value, seconds| ended(&run, Some(&live(&hook, &run, status)), at(seconds));
    assert!(matches!(is(json!({"active": 1}), 10), Ended::NotYet(what) if what.starts_with("Job migrate")));
    assert_eq!(is(condition("Complete"), 11), over(true, None));
    assert_eq!(is(condition("Failed"), 1), over(false, Some("Because: of it")));
    let Ended::Over { delete: false, failed: Some(message) } = is(json!({"active": 1}), 11) else { panic!("it hangs") };
    assert!(message.contains("not finished within 10s"), "{message}");
    assert_eq!(ended(&run, None, at(1)), over(false, None), "gone, or never created");
    let other = HelmHookStatus { retries: 1, ..run.clone() };
    assert_eq!(ended(&other, Some(&live(&hook, &run, json!({"active": 1}))), at(1)), over(false, None));
    let hook = limited("hook-failed");
    let run = entry(&hook, "pre-upgrade", "r1");
    let run = HelmHookStatus { phase: Creating, ..run };
    assert_eq!(
        ended(&run, Some(&live(&hook, &run, condition("Failed"))), at(1)),
        over(true, Some("Because: of it")),
        "killed right after it was created"
    );
}

#[test]
fn a_pod_is_waited_for_until_it_ends() {
    let pod = hook("Pod", "check", "pre-install", 0, "");
    let entry = in_phase(&pod, Running);
    let step = |phase: &str| {
        next(&pod, Some(&entry), Some(&live(&pod, &entry, json!({"phase": phase}))), false, Timestamp::UNIX_EPOCH)
    };
    assert!(matches!(step("Pending"), Step::Wait(_)));
    assert!(matches!(step("Running"), Step::Wait(_)));
    assert_eq!(step("Succeeded"), Step::Enter(Succeeded, String::new()));
    assert!(matches!(step("Failed"), Step::Enter(Failed, _)));
}

#[test]
fn a_run_is_of_one_rendering_and_one_try() {
    let hook = job("");
    let first = entry(&hook, "pre-install", "r1");
    let again = HelmHookStatus { retries: 1, ..first.clone() };
    let live = object(&hook, &first);
    assert!(is_of_run(&live, &first) && is_hook(&live));
    assert!(!is_of_run(&live, &again), "what a failed try left is not taken for the next one");
    assert_ne!(first.digest, entry(&hook, "pre-install", "r2").digest);
    assert_ne!(first.digest, entry(&hook, "pre-upgrade", "r1").digest);
    let hooks = [hook];
    let mut records = vec![first.clone()];
    assert!(!all_done(&records, &hooks, "pre-install", "r1"));
    record(&mut records, HelmHookStatus { phase: Succeeded, ..first });
    assert_eq!(records.len(), 1);
    assert!(all_done(&records, &hooks, "pre-install", "r1"));
    assert!(!all_done(&records, &hooks, "pre-install", "r2"), "another rendering runs them again");
    assert!(all_done(&records, &hooks, "post-install", "r2"), "where there is none, none is waited for");
}

#[test]
fn a_hook_has_a_time_limit_of_its_own_or_that_of_helm() {
    let of = |limit: Option<&str>| {
        let mut hook = job("");
        if let Some(limit) = limit {
            hook.manifest.object["metadata"]["annotations"][HOOK_TIMEOUT] = json!(limit);
        }
        hook
    };
    let at = |seconds: i64| Timestamp::from_second(seconds).unwrap();
    for (limit, seconds, fails) in [
        (None, 300, None),
        (None, 301, Some("not finished within 5m, waiting for Job migrate")),
        (Some("1h30m"), 5400, None),
        (Some("1h30m"), 5401, Some("not finished within 1h30m")),
        (Some("1s"), 2, Some(HOOK_TIMEOUT)),
    ] {
        let hook = of(limit);
        let started = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
        let entry = HelmHookStatus { started, ..in_phase(&hook, Running) };
        let active = live(&hook, &entry, json!({"active": 1}));
        match (next(&hook, Some(&entry), Some(&active), false, at(seconds)), fails) {
            (Step::Wait(_), None) => {}
            (Step::Enter(Failed, message), Some(words)) => assert!(message.contains(words), "{message}"),
            (step, _) => panic!("{limit:?} after {seconds} s: {step:?}"),
        }
        let unrecorded = HelmHookStatus { started: None, ..in_phase(&hook, Creating) };
        let mut created = live(&hook, &unrecorded, json!({"active": 1}));
        created["metadata"]["creationTimestamp"] = json!("1970-01-01T00:00:00Z");
        let step = next(&hook, Some(&unrecorded), Some(&created), false, at(seconds));
        assert_eq!(matches!(step, Step::Wait(_)), fails.is_none(), "{step:?}");
        let complete = live(&hook, &entry, condition("Complete"));
        let step = next(&hook, Some(&entry), Some(&complete), false, at(seconds));
        assert_eq!(step, Step::Enter(Succeeded, String::new()), "finished late is finished");
    }
    for wrong in ["soon", "0s", "-1m"] {
        let step = next(&of(Some(wrong)), None, None, false, at(0));
        assert!(matches!(&step, Step::Enter(Failed, message) if message.contains(wrong)), "{step:?}");
    }
}

#[test]
fn a_hook_that_leaves_its_name_to_the_api_server_is_called_after_what_it_holds() {
    let job = |start: &str, image: &str| json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"generateName": start}, "spec": {"image": image}});
    let name = |object: Value| Manifest::from_value(with_name(object)).unwrap().key.name;
    let first = name(job("migrate-", "a"));
    assert!(first.starts_with("migrate-") && first.len() == "migrate-".len() + 8, "{first}");
    assert_eq!(first, name(job("migrate-", "a")));
    assert_ne!(first, name(job("migrate-", "b")));
    assert_eq!(name(job(&"x".repeat(200), "a")).len(), 63);
    for named in [json!({"metadata": {"name": "a", "generateName": "b-"}}), json!({"metadata": {}}), json!(5)] {
        assert_eq!(with_name(named.clone()), named);
    }
}
