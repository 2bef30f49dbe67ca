//! Sources that take a request and never answer: they hold up themselves and nobody else.

use std::time::Duration;

use clusterstack::api::condition::find;
use clusterstack::api::{ClusterStack, Condition, ConditionType, WATCH_LABEL};
use kube::api::{ListParams, PostParams};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::harness::{GitServer, Mood, QUICK, SETTINGS, World, check, unique, wait_for, wait_within};

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";
/// How many silent sources there are.
const SILENT: usize = 40;

/// Listens, takes every connection, and never answers. It ends when `tasks` goes out of scope.
async fn silent_server(tasks: &mut JoinSet<()>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("no port");
    let host = listener.local_addr().expect("no address").to_string();
    tasks.spawn(async move {
        let mut taken = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            taken.push(stream);
        }
    });
    host
}

/// A ClusterStack of this test's operator is ready with `usable`, soon.
async fn ready_soon(t: &World, stack: &str, usable: &str) {
    wait_within(QUICK, format!("ClusterStack {stack} to be ready with {usable}"), || async {
        let stack = t.stacks().get(stack).await.map_err(|error| error.to_string())?;
        let status = stack.status.unwrap_or_default();
        let is = find(&status.conditions, ConditionType::Ready).is_some_and(Condition::is_true);
        check(is && status.usable_versions == usable, status)
    })
    .await;
}

#[tokio::test]
async fn silent_sources_of_one_namespace_hold_up_no_other() {
    let (noisy, t) = (World::new("silent").await, World::new("heard").await);
    let mut tasks = JoinSet::new();
    let silent = silent_server(&mut tasks).await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let server = GitServer::start(repo.dir().parent().unwrap()).await;
    let url = server.url(&format!("{}/.git", repo.dir().file_name().unwrap().display()));
    let ours = unique("ours");
    let labelled = json!({"metadata": {"labels": {WATCH_LABEL: ours}}});
    for n in 0..SILENT {
        noisy.create_stack(&format!("s{n}"), &format!("http://{silent}/{n}.git"), json!({})).await;
        noisy.change_stack(&format!("s{n}"), labelled.clone()).await;
    }
    let flags = ["--watch-filter", &ours, "--allow-source", &silent, "--allow-source", server.host()];
    let operator = t.operator(&flags);
    wait_for("all to say what they wait for", || async {
        let stacks = noisy.stacks().list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let others: Vec<_> = stacks
            .iter()
            .map(|stack| find(&stack.status.clone().unwrap_or_default().conditions, ConditionType::Ready).cloned())
            .filter(|ready| {
                let reason = ready.as_ref().map(|ready| ready.reason.as_str());
                !matches!(reason, Some("Progressing" | "SourceUnreachable"))
            })
            .collect();
        check(others.is_empty(), others)
    })
    .await;

    t.create_stack("x", &url, json!({})).await;
    t.change_stack("x", labelled.clone()).await;
    ready_soon(&t, "x", "v1").await;

    // Four of a host are asked at once, 20 seconds each: whose turn comes first is not said.
    let message = wait_for("one of them to say that its source does not answer", || async {
        let stacks = noisy.stacks().list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let ready = |stack: &ClusterStack| {
            find(&stack.status.clone().unwrap_or_default().conditions, ConditionType::Ready).cloned()
        };
        let told = stacks.iter().filter_map(ready).find(|ready| ready.reason == "SourceUnreachable");
        told.map(|ready| ready.message).ok_or_else(|| "none".to_owned())
    })
    .await;
    assert!(message.contains(&silent), "{message}");
    repo.release(V2, SETTINGS);
    wait_within(Duration::from_secs(20), "v2 to be noticed", || async {
        let status = t.stacks().get("x").await.map_err(|error| error.to_string())?.status.unwrap_or_default();
        check(status.usable_versions == "v2", status)
    })
    .await;
    // Ends within the time that passes have, though polls are under way.
    assert!(operator.terminate().await.success());
}

#[tokio::test]
async fn a_source_that_takes_its_time_is_ready_as_soon_as_it_answered_and_stays_ready() {
    let t = World::new("slow").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let server = GitServer::start(repo.dir().parent().unwrap()).await;
    let url = server.url(&format!("{}/.git", repo.dir().file_name().unwrap().display()));
    server.set(Mood::Slow(Duration::from_secs(4)));
    let _operator = t.operator(&["--allow-source", server.host()]);
    t.create_stack("x", &url, json!({})).await;
    let message = t.stack_says("x", ConditionType::ReleasesSynced, "False", "Progressing").await;
    assert!(message.contains("did not answer yet"), "{message}");
    t.ready("x", "v1").await;
    let since = |stack: &clusterstack::api::ClusterStack| {
        let conditions = stack.status.clone().unwrap_or_default().conditions;
        find(&conditions, ConditionType::ReleasesSynced).map(|c| (c.status.clone(), c.last_transition_time.clone()))
    };
    let before = since(&t.stacks().get("x").await.unwrap());
    repo.release(V2, SETTINGS);
    t.ready("x", "v2").await;
    assert_eq!(since(&t.stacks().get("x").await.unwrap()), before);
}

#[tokio::test]
async fn an_admission_webhook_that_never_answers_holds_up_its_own_namespace_alone() {
    const STACKS: usize = 6;
    let (held_up, t) = (World::new("held-up").await, World::new("let-through").await);
    let mut tasks = JoinSet::new();
    let silent = silent_server(&mut tasks).await;
    let name = format!("silent-{}", held_up.namespace);
    t.remove_at_end("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", &name);
    let webhook = json!({
        "name": "silent.example.org", "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
        "timeoutSeconds": 30, "clientConfig": {"url": format!("https://{silent}/")},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": held_up.namespace}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}],
    });
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name}, "webhooks": [webhook],
    });
    let api = t.cluster_api("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration");
    api.create(&PostParams::default(), &serde_json::from_value(configuration).unwrap()).await.unwrap();

    // Each is one wave of forty, of which eight are sent at once.
    let many: String =
        (0..40).map(|n| SETTINGS.replace("Chart.Version }}", &format!("Chart.Version }}}}-{n}"))).collect();
    let repo = t.repo();
    for n in 0..STACKS {
        repo.release(&format!("docker-x{n}-1-34-v1"), &many);
    }
    repo.release(V1, SETTINGS);
    let ours = unique("ours");
    let labelled = json!({"metadata": {"labels": {WATCH_LABEL: ours}}});
    let _operator = t.operator(&["--watch-filter", &ours, "--clusterstackrelease-concurrency", "1"]);
    for n in 0..STACKS {
        held_up.create_stack(&format!("s{n}"), &repo.url(), json!({"name": format!("x{n}")})).await;
        held_up.change_stack(&format!("s{n}"), labelled.clone()).await;
    }
    wait_for("all of them to be subscribed", || async {
        let releases = held_up.releases().list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        check(releases.items.len() == STACKS, releases.items.len())
    })
    .await;
    t.create_stack("x", &repo.url(), json!({})).await;
    t.change_stack("x", labelled).await;
    t.ready("x", "v1").await;

    // Of those before it none, or hardly one, is at its end by now.
    let refused = async || {
        let releases = held_up.releases().list(&ListParams::default()).await.expect("API server");
        let refused = |conditions: &[Condition]| {
            find(conditions, ConditionType::Ready).filter(|ready| ready.message.contains("silent.example.org")).cloned()
        };
        let statuses = releases.iter().filter_map(|release| release.status.as_ref());
        statuses.filter_map(|status| refused(&status.conditions)).count()
    };
    let before = refused().await;
    assert!(before < STACKS / 2, "{before}");
    // They say what they wait for, by name.
    wait_for("all of them to name the webhook", || async {
        let told = refused().await;
        check(told == STACKS, told)
    })
    .await;
}
