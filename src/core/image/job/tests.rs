//! What is made for a build, and what a Job, a pod and their events say of it.

#![allow(clippy::needless_pass_by_value, reason = "what json! makes is handed over as it is")]

use serde_json::{Value, json};

use super::super::build::{Hope, Progress};
use super::super::log::Redactor;
use super::sight::{PodProgress, Seen, Sight, progress_in};
use super::*;
use crate::api::IMAGE_PROGRESS;

fn request() -> JobRequest {
    JobRequest {
        object: ImageObject {
            api_version: "infrastructure.clusterstack.x-k8s.io/v1alpha1".into(),
            kind: "ProviderNodeImageRelease".into(),
            namespace: "provider".into(),
            name: "ubuntu-2404-0a1b".into(),
            uid: "0b7c2f6e-uid".into(),
        },
        namespace: "provider".into(),
        template: Some(template()),
        default_pod: DefaultPod::default(),
        active_deadline_seconds: Some(600),
        ttl_seconds_after_finished: None,
        image: "ubuntu-2404".into(),
        inputs: "sha256:abc".into(),
        attempt: 3,
        cluster: "cluster-uid".into(),
        recipe: json!({"name": "ubuntu-2404", "steps": [{"name": "build", "build": {"command": ["evil"]}}]}),
        operator: Some(("clusterstack-system".into(), "clusterstack".into())),
    }
}

/// A pod with what a provider may ask for, also what a later Kubernetes knows alone.
fn template() -> Value {
    json!({
        "metadata": {"labels": {"team": "images", IMAGE_UID_LABEL: "forged"}, "annotations": {"a": "b"}},
        "spec": {
            "serviceAccountName": "builder",
            "restartPolicy": "OnFailure",
            "affinity": {"nodeAffinity": {}},
            "fieldOfTheFuture": {"kept": true},
            "volumes": [{"name": "work", "emptyDir": {}}],
            "initContainers": [{"name": "fetch", "terminationMessagePolicy": "File"}, {"name": "prepare"}],
            "containers": [
                {"name": "proxy", "image": "proxy:1", "env": [{"name": "P", "value": "q"}]},
                {
                    "name": "build", "image": "packer:1", "futureField": [1],
                    "env": [{"name": "TOKEN", "value": "s3cret"}, {"name": "CLUSTERSTACK_ATTEMPT", "value": "99"}],
                    "volumeMounts": [{"name": "work", "mountPath": "/work"}, {"name": "work", "mountPath": "/run/clusterstack/"}],
                },
            ],
        },
    })
}

fn made(change: impl FnOnce(&mut JobRequest)) -> Result<JobObjects, JobError> {
    let mut request = request();
    change(&mut request);
    request.objects()
}

#[test]
fn the_pod_is_the_templates_with_what_is_ours() {
    let objects = made(|_| {}).unwrap();
    let spec = &objects.job["spec"];
    assert_eq!(
        spec["template"],
        json!({
            "metadata": {
                "labels": {
                    "team": "images", MANAGED_BY_LABEL: "clusterstack",
                    IMAGE_UID_LABEL: "0b7c2f6e-uid", IMAGE_ATTEMPT_LABEL: "3",
                },
                "annotations": {"a": "b", IMAGE_INPUTS: "sha256:abc"},
            },
            "spec": {
                "serviceAccountName": "builder",
                "restartPolicy": "Never",
                "affinity": {"nodeAffinity": {}},
                "fieldOfTheFuture": {"kept": true},
                "volumes": [
                    {"name": "work", "emptyDir": {}},
                    {"name": "clusterstack-recipe", "configMap": {"name": request().name()}},
                ],
                "initContainers": [
                    {"name": "fetch", "terminationMessagePolicy": "File"},
                    {"name": "prepare", "terminationMessagePolicy": "FallbackToLogsOnError"},
                ],
                "containers": [
                    {
                        "name": "proxy", "image": "proxy:1", "env": [{"name": "P", "value": "q"}],
                        "terminationMessagePolicy": "FallbackToLogsOnError",
                    },
                    {
                        "name": "build", "image": "packer:1", "futureField": [1],
                        "env": [
                            {"name": "TOKEN", "value": "s3cret"},
                            {"name": "CLUSTERSTACK_IMAGE_NAME", "value": "ubuntu-2404"},
                            {"name": "CLUSTERSTACK_INPUTS", "value": "sha256:abc"},
                            {"name": "CLUSTERSTACK_ATTEMPT", "value": "3"},
                            {"name": "CLUSTERSTACK_CLUSTER", "value": "cluster-uid"},
                            {"name": "CLUSTERSTACK_UID", "value": "0b7c2f6e-uid"},
                            {"name": "CLUSTERSTACK_RECIPE", "value": "/run/clusterstack/recipe.json"},
                        ],
                        "terminationMessagePolicy": "FallbackToLogsOnError",
                        "volumeMounts": [
                            {"name": "work", "mountPath": "/work"},
                            {"name": "clusterstack-recipe", "mountPath": "/run/clusterstack", "readOnly": true},
                        ],
                    },
                ],
            },
        })
    );
    // Until its result was read a Job must not go.
    let of_job = ["backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "podReplacementPolicy"];
    assert_eq!(of_job.map(|field| &spec[field]), [&json!(0), &json!(600), &Value::Null, &json!("Failed")]);
    assert_eq!(objects.job.pointer("/metadata/ownerReferences/0/uid"), Some(&json!("0b7c2f6e-uid")));
    assert_eq!(objects.recipe["metadata"]["name"], objects.job["metadata"]["name"]);
    let recipe: Value = serde_json::from_str(objects.recipe["data"]["recipe.json"].as_str().unwrap()).unwrap();
    assert_eq!(recipe, request().recipe);
}

#[test]
fn nothing_that_a_user_or_a_release_writes_gets_into_the_pod_but_names() {
    let plain = made(|_| {}).unwrap();
    let hostile = made(|request| {
        request.image = "$(TOKEN) $$(TOKEN)\n- name: x".into();
        request.recipe = json!({
            "template": {"spec": {"serviceAccountName": "admin", "containers": [{"name": "build", "image": "evil"}]}},
            "podTemplate": {"spec": {"hostPID": true}}, "serviceAccountName": "admin", "image": "evil",
            "steps": [{"name": "build", "build": {"command": ["sh"], "env": {"LD_PRELOAD": "x"}}}],
        });
    })
    .unwrap();
    let env = |objects: &JobObjects| objects.job.pointer("/spec/template/spec/containers/1/env").cloned().unwrap();
    let (before, after) = (env(&plain), env(&hostile));
    let name = after.as_array().unwrap().iter().find(|one| one["name"] == "CLUSTERSTACK_IMAGE_NAME").unwrap();
    // Kubernetes makes one dollar of two, and replaces nothing.
    assert_eq!(name["value"], "$$(TOKEN) $$$$(TOKEN)\n- name: x");
    // Beside the name of the image the pod is the same.
    let mut job = hostile.job.clone();
    *job.pointer_mut("/spec/template/spec/containers/1/env").unwrap() = before;
    assert_eq!(job, plain.job);
}

#[test]
fn a_template_that_can_not_be_used_is_told() {
    let with = |pointer: &str, value: Value| {
        let mut template = template();
        *template.pointer_mut(pointer).unwrap() = value;
        Some(template)
    };
    for (template, expected) in [
        (None, "is missing"),
        (Some(json!({})), "has no spec"),
        (Some(json!([])), "has no spec"),
        (with("/spec/containers/1/name", json!("main")), "none of its containers is named build"),
        (with("/spec/containers", json!({})), "none of its containers is named build"),
        (with("/spec/volumes/0/name", json!("clusterstack-recipe")), "the volume clusterstack-recipe is ours"),
        (with("/spec/volumes", json!({})), "its volumes are no list"),
        (with("/spec/containers/1/env", json!({})), "env of container build is no list"),
        (with("/metadata/labels", json!([])), "its labels are no object"),
        (with("/metadata", json!("x")), "its metadata is no object"),
    ] {
        let error = made(|request| request.template.clone_from(&template)).unwrap_err().to_string();
        assert!(error.contains(expected), "{template:?}: {error}");
    }
}

#[test]
fn a_build_never_runs_as_the_operator() {
    let operator = |name: &str| Some(("provider".to_owned(), name.to_owned()));
    let refused = |request: &mut JobRequest| request.operator = operator("builder");
    assert_eq!(made(refused).unwrap_err(), JobError::OurAccount("provider/builder".into()));
    for field in ["serviceAccountName", "serviceAccount"] {
        let account = |value: &str| {
            let mut template = template();
            template["spec"].as_object_mut().unwrap().remove("serviceAccountName");
            template["spec"][field] = value.into();
            Some(template)
        };
        for (named, own, allowed) in
            [("ours", "ours", false), ("", "default", false), ("", "ours", true), ("other", "ours", true)]
        {
            let result = made(|request| {
                request.operator = operator(own);
                request.template = account(named);
            });
            assert_eq!(result.is_ok(), allowed, "{field}: {named} {own}");
        }
    }
}

#[test]
fn names_are_stable_and_fit() {
    let name = |change: fn(&mut JobRequest)| {
        let mut request = request();
        change(&mut request);
        request.name()
    };
    assert_eq!(name(|_| {}), name(|_| {}));
    let others = [name(|r| r.attempt = 4), name(|r| r.object.uid = "other".into()), name(|_| {})];
    assert!(others[0] != others[1] && others[1] != others[2] && others[0] != others[2]);
    let long = name(|r| {
        r.object.name = "a.b-".repeat(60);
        r.attempt = u32::MAX;
    });
    assert!(long.len() <= 63 && !long.contains('.') && !long.contains("--"), "{long}");
}

#[test]
fn a_job_of_another_namespace_has_no_owner_that_would_be_collected() {
    let objects = made(|request| request.object.namespace = "team".into()).unwrap();
    assert_eq!(objects.job.pointer("/metadata/ownerReferences"), None);
    assert_eq!(objects.job["metadata"]["labels"][IMAGE_UID_LABEL], "0b7c2f6e-uid");
}

const DIGEST: &str = "sha256:0f8c3d7d9fb5c1c1a3f4f3f5c1a0b6f0c9e8d7a6b5c4d3e2f1a0b9c8d7e6f5a4";

fn job(conditions: Value) -> Value {
    json!({"metadata": {"name": "j"}, "status": {"conditions": conditions}})
}

fn failed_job(reason: &str) -> Value {
    job(json!([{"type": "Failed", "status": "True", "reason": reason, "message": "of the Job"}]))
}

fn pod(phase: &str, state: Value) -> Value {
    json!({"metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"}, "status": {
        "phase": phase,
        "containerStatuses": [{"name": "sidecar", "state": {"running": {}}}, {"name": "build", "state": state}],
    }})
}

fn ended(code: i64, reason: &str, message: &str) -> Value {
    json!({"terminated": {"exitCode": code, "reason": reason, "message": message}})
}

fn with(mut object: Value, change: Value) -> Value {
    json_patch::merge(&mut object, &change);
    object
}

/// What is seen, in one line.
fn said(job: Option<Value>, pods: Vec<Value>, events: Vec<Value>) -> String {
    match (Seen { job, pods, events }).judge() {
        Sight::Gone => "gone".to_owned(),
        Sight::Waiting { reason, message } => format!("waiting {reason}: {message}"),
        Sight::Running(None) => "running".to_owned(),
        Sight::Running(Some(PodProgress { progress, step })) => {
            format!("running {}/{} {step}", progress.done, progress.total.unwrap_or_default())
        }
        Sight::Succeeded(result) => format!("succeeded {} {} {}", &result.digest[..10], result.size, result.location),
        Sight::Failed { hope, message } => format!("failed {hope:?}: {message}"),
    }
}

#[test]
fn what_runs_or_waits_is_told() {
    let fine = || Some(job(json!([])));
    let warning =
        |reason: &str, time: &str| json!({"type": "Warning", "reason": reason, "message": "m", "lastTimestamp": time});
    let unscheduled = json!({"status": {"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"},
    ]}});
    let waits = |reason: &str| json!({"waiting": {"reason": reason, "message": "back-off"}});
    let annotated = |text: &str| {
        with(pod("Running", json!({"running": {}})), json!({"metadata": {"annotations": {IMAGE_PROGRESS: text}}}))
    };
    let sidecar = with(
        pod("Pending", json!({})),
        json!({"status": {"containerStatuses": [
            {"name": "sidecar", "state": waits("ErrImagePull")}, {"name": "build", "state": waits("ContainerCreating")},
        ]}}),
    );
    for (job, pods, events, expected) in [
        (None, vec![], vec![], "gone"),
        (
            Some(json!({"metadata": {"deletionTimestamp": "x"}})),
            vec![pod("Running", json!({"running": {}}))],
            vec![],
            "gone",
        ),
        (fine(), vec![], vec![], "waiting Pending: the Job has no pod yet"),
        (
            fine(),
            vec![],
            vec![json!({"type": "Normal", "reason": "Created"})],
            "waiting Pending: the Job has no pod yet",
        ),
        (fine(), vec![], vec![warning("FailedCreate", "2"), warning("Older", "1")], "waiting FailedCreate: m"),
        (
            Some(self::job(json!([{"type": "Suspended", "status": "True"}]))),
            vec![],
            vec![],
            "waiting Suspended: the Job is suspended",
        ),
        (fine(), vec![unscheduled], vec![warning("FailedScheduling", "1")], "waiting Unschedulable: 0/3 nodes"),
        (
            fine(),
            vec![pod("Pending", waits("ImagePullBackOff"))],
            vec![],
            "waiting ImagePullBackOff: container build: back-off",
        ),
        (fine(), vec![sidecar], vec![], "waiting ErrImagePull: container sidecar: back-off"),
        (
            fine(),
            vec![pod("Pending", waits("ContainerCreating"))],
            vec![warning("FailedMount", "1")],
            "waiting FailedMount: m",
        ),
        (
            fine(),
            vec![pod("Pending", waits("PodInitializing"))],
            vec![],
            "waiting Pending: the pod's containers are being started",
        ),
        (fine(), vec![pod("Running", json!({"running": {}}))], vec![], "running"),
        (fine(), vec![annotated("10/200 download")], vec![], "running 10/200 download"),
        (fine(), vec![annotated(" 7 ")], vec![], "running 7/0 "),
        (fine(), vec![annotated("half")], vec![], "running"),
        (fine(), vec![annotated("1/many x")], vec![], "running"),
        (fine(), vec![annotated("-1/5")], vec![], "running"),
    ] {
        assert_eq!(said(job, pods, events), expected);
    }
}

#[test]
fn a_pod_that_is_refused_is_not_waited_for_as_one_that_may_come() {
    let seen = |reason: &str, message: &str, pods: Vec<Value>| {
        let event = json!({"type": "Warning", "reason": reason, "message": message, "lastTimestamp": "1"});
        Seen { job: Some(job(json!([]))), pods, events: vec![event] }
    };
    let level =
        "Error creating: pods \"j-1\" is forbidden: violates PodSecurity \"restricted:latest\": hostNetwork=true";
    let Sight::Failed { hope, message } = seen("FailedCreate", level, vec![]).judge() else {
        panic!("it is waited for");
    };
    assert!(hope == Hope::Retry && message.contains(level), "{message}");
    assert!(message.contains("pod-security.kubernetes.io/enforce") && message.contains("template"), "{message}");
    assert!(!seen("FailedCreate", level, vec![]).has_ended());
    let failed = json!([{"type": "Failed", "status": "True"}]);
    assert!(Seen { job: Some(job(failed)), ..Seen::default() }.has_ended());
    // A pod that never came to its container keeps its log, too.
    for (phase, has_ended) in [("Failed", true), ("Running", false), ("Pending", false)] {
        let of_init = json!({"status": {"phase": phase}});
        assert_eq!(Seen { pods: vec![of_init], ..Seen::default() }.has_ended(), has_ended, "{phase}");
    }
    // One that was made nevertheless is looked at itself.
    let runs = seen("FailedCreate", level, vec![pod("Running", json!({"running": {}}))]);
    assert_eq!(runs.judge(), Sight::Running(None));
    for (reason, message, may_come) in [
        ("FailedCreate", "Error creating: pods \"j-1\" is forbidden: exceeded quota: q, requested: pods=1", true),
        ("FailedCreate", "Error creating: pods \"j-1\" is forbidden: maximum cpu usage per Container is 2", false),
        ("FailedCreate", "Error creating: admission webhook \"w\" denied the request: no", false),
        ("FailedScheduling", "0/3 nodes are available", true),
        ("FailedMount", "forbidden", true),
    ] {
        let sight = seen(reason, message, vec![]).judge();
        assert!(matches!(sight, Sight::Waiting { .. }), "{sight:?}");
        assert_eq!(sight.may_come(), may_come, "{message}");
    }
    assert!(Sight::Running(None).may_come() && Sight::Gone.may_come());
}

#[test]
fn a_job_whose_sidecar_runs_on_ends_by_a_deadline() {
    let now = "2026-01-01T01:00:00Z".parse().unwrap();
    let ttl = json!({"ttlSecondsAfterFinished": 600});
    for (started, condition, expected) in [
        (
            Some("2026-01-01T00:00:00Z"),
            json!([]),
            json!({"ttlSecondsAfterFinished": 600, "activeDeadlineSeconds": 4200}),
        ),
        // By clocks that differ.
        (
            Some("2026-01-01T02:00:00Z"),
            json!([]),
            json!({"ttlSecondsAfterFinished": 600, "activeDeadlineSeconds": 600}),
        ),
        (Some("2026-01-01T00:00:00Z"), json!([{"type": "Failed", "status": "True"}]), ttl.clone()),
        (Some("2026-01-01T00:00:00Z"), json!([{"type": "Complete", "status": "True"}]), ttl.clone()),
        (None, json!([]), ttl.clone()),
    ] {
        let mut job = job(condition);
        job["status"]["startTime"] = json!(started);
        let seen = Seen { job: Some(job), ..Seen::default() };
        assert_eq!(seen.kept_for(600, now), expected, "{seen:?}");
    }
}

#[test]
fn what_ended_is_judged_by_container_build() {
    let fine = || Some(job(json!([])));
    let result = format!(r#"{{"digest": "{DIGEST}", "size": 5, "location": "s3://x/y", "more": 1}}"#);
    let good = |phase: &str| pod(phase, ended(0, "Completed", &result));
    let evicted = json!({"status": {"reason": "Evicted", "message": "low on disk"}});
    let preempted = json!({"status": {"conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "for another"},
    ]}});
    let init = json!({"status": {"phase": "Failed", "containerStatuses": [], "initContainerStatuses": [
        {"name": "first", "state": ended(0, "", "")}, {"name": "fetch", "state": ended(64, "Error", "no such file")},
    ]}});
    let bare = |phase: &str| json!({"status": {"phase": phase}});
    let long = "x".repeat(5000) + "the end";
    let told = "x".repeat(1024 - 7) + "the end";
    for (job, pods, expected) in [
        // A sidecar goes on, the Job ran out of time, the pod was evicted later: the image is made.
        (fine(), vec![good("Running")], "succeeded sha256:0f8 5 s3://x/y".to_owned()),
        (Some(failed_job("DeadlineExceeded")), vec![good("Failed")], "succeeded sha256:0f8 5 s3://x/y".into()),
        (fine(), vec![with(good("Failed"), evicted.clone())], "succeeded sha256:0f8 5 s3://x/y".into()),
        (None, vec![good("Running")], "succeeded sha256:0f8 5 s3://x/y".into()),
        (
            fine(),
            vec![pod("Failed", ended(1, "Error", "disk full\n"))],
            "failed Retry: container build exited 1: disk full".into(),
        ),
        (
            fine(),
            vec![pod("Failed", ended(137, "OOMKilled", ""))],
            "failed Retry: container build exited 137, OOMKilled".into(),
        ),
        (
            fine(),
            vec![pod("Failed", ended(78, "Error", "no key"))],
            "failed None: container build exited 78: no key".into(),
        ),
        (fine(), vec![pod("Failed", ended(1, "", &long))], format!("failed Retry: container build exited 1: {told}")),
        (
            fine(),
            vec![with(pod("Failed", ended(137, "Error", "")), evicted.clone())],
            "failed Retry: container build exited 137, Evicted (low on disk)".into(),
        ),
        (
            fine(),
            vec![with(
                pod("Failed", ended(143, "Error", "")),
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            )],
            "failed Retry: container build exited 143, its pod was deleted".into(),
        ),
        (fine(), vec![with(bare("Failed"), evicted)], "failed Retry: the pod failed, Evicted (low on disk)".into()),
        (
            fine(),
            vec![with(bare("Failed"), preempted)],
            "failed Retry: the pod failed, PreemptionByScheduler (for another)".into(),
        ),
        (fine(), vec![bare("Failed")], "failed Retry: the pod failed: nothing says why".into()),
        (fine(), vec![init], "failed Retry: container fetch exited 64: no such file".into()),
        (
            fine(),
            vec![bare("Succeeded")],
            "failed Retry: the pod ended, and does not say how container build did".into(),
        ),
        (Some(failed_job("DeadlineExceeded")), vec![], "failed Retry: the Job took too long: of the Job".into()),
        (
            Some(failed_job("DeadlineExceeded")),
            vec![pod("Running", json!({"running": {}}))],
            "failed Retry: the Job took too long: of the Job".into(),
        ),
        (
            Some(failed_job("BackoffLimitExceeded")),
            vec![],
            "failed Retry: the Job failed and its pod is gone: of the Job".into(),
        ),
        (
            Some(self::job(json!([{"type": "Complete", "status": "True"}]))),
            vec![],
            "failed Retry: the Job is complete, but its pod is gone, and with it the result".into(),
        ),
    ] {
        assert_eq!(said(job, pods, vec![]), expected);
    }
}

#[test]
fn no_part_of_a_secret_is_told_where_a_message_is_cut() {
    let secret = "correct-horse-battery-staple";
    // It lies where the message is cut.
    let message = "x".repeat(3000) + secret + &"y".repeat(1024 - 10);
    let mask = |text: &str| Redactor::new([secret]).redacted(text);
    let seen = |code, message: &str| Seen {
        job: Some(job(json!([{"type": "Failed", "status": "True", "reason": "Odd", "message": message}]))),
        pods: vec![pod("Failed", ended(code, "Error", message))],
        events: vec![json!({"type": "Warning", "reason": "Odd", "message": message})],
    };
    let without_pods = |seen: Seen| Seen { pods: vec![], ..seen };
    let without_ends = |seen: Seen| Seen { job: Some(job(json!([]))), pods: vec![], ..seen };
    for seen in [seen(1, &message), without_pods(seen(1, &message)), without_ends(seen(1, &message))] {
        let told = format!("{:?}", seen.masked(&mask).judge());
        assert!(told.contains("yyyy") && !told.contains("staple"), "{told}");
    }
    // A result is read as it is.
    let made = format!(r#"{{"digest": "{DIGEST}", "size": 1, "message": "{secret}"}}"#);
    assert_eq!(seen(0, &made).masked(&mask), Seen { pods: seen(0, &made).pods, ..seen(0, &made).masked(&mask) });
    assert!(matches!(seen(0, &made).masked(&mask).judge(), Sight::Succeeded(_)));
}

#[test]
fn a_result_is_one_or_it_is_told() {
    let judged =
        |message: &str| said(Some(job(json!([]))), vec![pod("Succeeded", ended(0, "Completed", message))], vec![]);
    for (message, expected) in [
        ("", "gave no result"),
        ("done", "can't be read"),
        (r#"{"digest": "sha256:abc", "size": 1}"#, "no digest of the form"),
        (r#"{"size": 1}"#, "can't be read"),
        (&format!(r#"{{"digest": "{DIGEST}"}}"#), "can't be read"),
        (&format!(r#"{{"digest": "{}", "size": 1}}"#, DIGEST.to_uppercase()), "no digest of the form"),
    ] {
        let said = judged(message);
        assert!(said.starts_with("failed None: ") && said.contains(expected), "{said}");
    }
    assert_eq!(judged(&format!(r#"{{"digest": "{DIGEST}", "size": 1}}"#)), "succeeded sha256:0f8 1 ");
}

#[test]
fn the_last_line_that_counts_is_taken_from_a_log() {
    let found = |log: &str| progress_in(log).map(|found| (found.progress, found.step));
    let log =
        "clusterstack-progress 1/9 download\nother\n  clusterstack-progress 5/9 convert\nclusterstack-progress soon\n";
    assert_eq!(found(log), None, "an older line says how far it was");
    let log = "clusterstack-progress 1/9 download\nother\n  clusterstack-progress 5/9 convert\nmore\n";
    assert_eq!(found(log), Some((Progress { done: 5, total: Some(9) }, "convert".to_owned())));
    assert_eq!(found("nothing"), None);
}

#[test]
fn hope_is_for_what_may_change() {
    for (code, hope) in [(1, Hope::Retry), (64, Hope::None), (65, Hope::None), (78, Hope::None), (127, Hope::Retry)] {
        let seen = Seen { job: Some(job(json!([]))), pods: vec![pod("Failed", ended(code, "", ""))], events: vec![] };
        assert!(matches!(seen.judge(), Sight::Failed { hope: found, .. } if found == hope), "{code}");
    }
}

#[test]
fn without_a_template_a_small_pod_runs_the_steps() {
    use crate::api::image_template::{JobTemplate, ProviderClusterStackReleaseTemplateSpec as Template};
    let mut template: Template = serde_json::from_value(json!({
        "destination": {"s3": {"endpoint": "https://s3", "bucket": "b", "secretRef": {"name": "login"}}},
        "build": {
            "executor": "Job", "keysSecretRef": {"name": "keys"}, "stepTimeout": "2h",
            "job": {"activeDeadlineSeconds": 60},
        },
    }))
    .unwrap();
    let of = |template: &Template, image: &str| DefaultPod::of(template, image, &["127.0.0.1".to_owned()], 1 << 30);
    let small = |request: &mut JobRequest| {
        request.template = None;
        request.default_pod = of(&template, "operator:1").unwrap();
    };
    let objects = made(small).unwrap();
    let spec = &objects.job["spec"]["template"]["spec"];
    let container = &spec["containers"][0];
    assert_eq!(container["image"], "operator:1");
    assert_eq!(container["command"], json!(["clusterstack", "image-build"]));
    // As level `restricted` asks for, and with nothing of the API server.
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
    assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
    let mounted: Vec<(&str, &str)> = spec["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|volume| Some((volume["name"].as_str()?, volume.pointer("/secret/secretName")?.as_str()?)))
        .collect();
    assert_eq!(mounted, [("secret-0", "login"), ("secret-1", "keys")]);
    let paths: Vec<&str> =
        container["volumeMounts"].as_array().unwrap().iter().filter_map(|mount| mount["mountPath"].as_str()).collect();
    let secrets = ["/run/secrets/clusterstack/destination-secretref", "/run/secrets/clusterstack/keyssecretref"];
    assert_eq!(paths, [&["/work"], secrets.as_slice(), &["/run/clusterstack"]].concat());
    // It is told what the template says of builds, and no Secret.
    let told: pod::PodSettings = serde_json::from_str(objects.recipe["data"][SETTINGS_FILE].as_str().unwrap()).unwrap();
    assert_eq!(told.destination, template.destination);
    assert_eq!((told.build.step_timeout.as_deref(), told.build.job), (Some("2h"), None));
    assert_eq!(told.allow, ["127.0.0.1"]);
    assert_eq!(made(|_| {}).unwrap().recipe["data"].get(SETTINGS_FILE), None, "the provider's own pod is told nothing");

    // The template's image goes before the operator's; without both there is no pod, nor with a directory.
    template.build.job = Some(JobTemplate { image: Some("mine:2".into()), ..JobTemplate::default() });
    assert_eq!(of(&template, "operator:1").unwrap().image, "mine:2");
    let without = |request: &mut JobRequest| (request.template, request.default_pod) = (None, DefaultPod::default());
    assert_eq!(made(without), Err(JobError::NoTemplate));
    let mut local = template.clone();
    local.destination = serde_json::from_value(json!({"directory": {"path": "/images"}})).unwrap();
    let nowhere = |request: &mut JobRequest| {
        (request.template, request.default_pod) = (None, of(&local, "operator:1").unwrap());
    };
    assert_eq!(made(nowhere), Err(JobError::NoDirectory));
}
