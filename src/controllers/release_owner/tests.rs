use std::sync::{Arc, Mutex};

use http::{Request, Response};
use kube::client::Body;
use serde_json::Value;

use super::*;

/// An API server that has this under the name of the ClusterStack, answers changes of the release with a code, and notes what is asked.
fn api_server(stack: Option<Value>, change: u16, asked: &Arc<Mutex<Vec<String>>>) -> Client {
    let asked = Arc::clone(asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        let place = request.uri().path().rsplit('/').nth(1).unwrap_or_default().to_owned();
        asked.lock().unwrap().push(format!("{} {place}", request.method()));
        let metadata = if place == "clusterstacks" {
            stack.clone()
        } else {
            Some(json!({"name": "docker-x-1-34-v1", "resourceVersion": "2"}))
        };
        let metadata = metadata.filter(|_| request.method() != http::Method::PATCH || change == 200);
        let (code, answer) = if let Some(metadata) = metadata {
            (200, json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata}))
        } else {
            let code = if request.method() == http::Method::PATCH { change } else { 404 };
            let reason = if code == 404 { "NotFound" } else { "" };
            (code, json!({"kind": "Status", "status": "Failure", "message": "", "reason": reason, "code": code}))
        };
        let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
        async move { Ok::<_, std::convert::Infallible>(answer.unwrap()) }
    });
    Client::new(service, "team")
}

fn objects() -> (ClusterStack, ClusterStackRelease) {
    let object = |kind: &str, name: &str| json!({"apiVersion": crate::api::API_VERSION, "kind": kind, "metadata": {"name": name, "namespace": "team", "uid": "a"}});
    let mut stack = object("ClusterStack", "x");
    stack["spec"] = json!({"provider": "docker", "name": "x", "kubernetesVersion": "1.34"});
    let mut release = object("ClusterStackRelease", "docker-x-1-34-v1");
    release["spec"] = json!({});
    (serde_json::from_value(stack).unwrap(), serde_json::from_value(release).unwrap())
}

#[tokio::test]
async fn a_release_is_not_given_to_a_cluster_stack_that_goes() {
    let (stack, release) = objects();
    for (now, expected) in [
        (Some(json!({"name": "x", "uid": "a"})), true),
        // What the cache shows may be older than the release that the collector of garbage took from it.
        (Some(json!({"name": "x", "uid": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"})), false),
        (Some(json!({"name": "x", "uid": "b"})), false),
        (None, false),
    ] {
        let asked = Arc::default();
        assert_eq!(adopt(&release, &stack, api_server(now.clone(), 200, &asked)).await.unwrap(), expected, "{now:?}");
        let asked = asked.lock().unwrap();
        assert_eq!(asked.iter().any(|asked| asked.starts_with("PATCH")), expected, "{now:?} {asked:?}");
    }
}

#[tokio::test]
async fn a_release_that_changed_is_not_taken_for_one_that_was_let_go_of() {
    let (stack, release) = objects();
    for (code, is_good) in [(200, true), (404, true), (409, false), (500, false)] {
        let client = api_server(None, code, &Arc::default());
        assert_eq!(disown(&release, &stack, client).await.is_ok(), is_good, "{code}");
    }
    // Who takes it again is no such haste: its change has it looked at anew.
    let there = Some(json!({"name": "x", "uid": "a"}));
    assert!(adopt(&release, &stack, api_server(there, 409, &Arc::default())).await.unwrap());
}
