use std::sync::Mutex;

use http::{Request, Response};
use kube::client::Body;
use serde_json::Value;

use super::*;

/// An API server that has this under the name of the ClusterStack, and notes what is asked of it.
fn api_server(stack: Option<Value>, asked: &Arc<Mutex<Vec<String>>>) -> Client {
    let asked = Arc::clone(asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        let place = request.uri().path().rsplit('/').nth(1).unwrap_or_default().to_owned();
        asked.lock().unwrap().push(format!("{} {place}", request.method()));
        let metadata = if place == "clusterstacks" { stack.clone() } else { Some(json!({"name": "docker-x-1-34-v1"})) };
        let (code, answer) = match metadata {
            Some(metadata) => {
                (200, json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata}))
            }
            None => {
                (404, json!({"kind": "Status", "status": "Failure", "message": "", "reason": "NotFound", "code": 404}))
            }
        };
        let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
        async move { Ok::<_, std::convert::Infallible>(answer.unwrap()) }
    });
    Client::new(service, "team")
}

#[tokio::test]
async fn a_release_is_not_given_to_a_cluster_stack_that_goes() {
    let object = |kind: &str, name: &str| json!({"apiVersion": crate::api::API_VERSION, "kind": kind, "metadata": {"name": name, "namespace": "team", "uid": "a"}});
    let mut stack = object("ClusterStack", "x");
    stack["spec"] = json!({"provider": "docker", "name": "x", "kubernetesVersion": "1.34"});
    let stack: ClusterStack = serde_json::from_value(stack).unwrap();
    let mut release = object("ClusterStackRelease", "docker-x-1-34-v1");
    release["spec"] = json!({});
    let release: ClusterStackRelease = serde_json::from_value(release).unwrap();
    for (now, expected) in [
        (Some(json!({"name": "x", "uid": "a"})), true),
        // What the cache shows may be older than the release that the collector of garbage took from it.
        (Some(json!({"name": "x", "uid": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"})), false),
        (Some(json!({"name": "x", "uid": "b"})), false),
        (None, false),
    ] {
        let asked = Arc::default();
        assert_eq!(adopt(&release, &stack, api_server(now.clone(), &asked)).await.unwrap(), expected, "{now:?}");
        let asked = asked.lock().unwrap();
        assert_eq!(asked.iter().any(|asked| asked.starts_with("PATCH")), expected, "{now:?} {asked:?}");
    }
}
