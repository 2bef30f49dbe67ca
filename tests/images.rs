//! `clusterstack images` against a stand-in for the API server: the image's object, a pod proxy that leads to what serves
//! logs, and the log of a Job's pod.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::Method;
use axum::response::Response;
use clusterstack::io::image::log_server::{Logs, Pod, routes};
use clusterstack::io::image::task::log_path;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tower::ServiceExt;

const INPUTS: &str = "sha256:0a1b";
const OBJECT: &str =
    "/apis/infrastructure.clusterstack.x-k8s.io/v1alpha1/namespaces/shop/providernodeimagereleases/ubuntu";
/// Longer than any of these tests takes.
const LATEST: Duration = Duration::from_secs(60);

/// What the stand-in holds.
#[derive(Default)]
struct World {
    status: Value,
    annotations: Value,
    /// Pods that serve logs.
    pods: HashMap<String, Arc<Logs>>,
    /// The user may not proxy to pods.
    is_denied: bool,
    /// The operator acts on annotations.
    acts: bool,
    /// The log of the Job's pod.
    pod_log: String,
}

type Shared = Arc<Mutex<World>>;

fn answer(code: u16, body: &Value) -> Response {
    let response = Response::builder().status(code).header("content-type", "application/json");
    response.body(Body::from(body.to_string())).unwrap()
}

fn refusal(code: u16, message: &str) -> Response {
    answer(code, &json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}))
}

fn object(world: &World) -> Value {
    json!({
        "apiVersion": "infrastructure.clusterstack.x-k8s.io/v1alpha1", "kind": "ProviderNodeImageRelease",
        "metadata": {"name": "ubuntu", "namespace": "shop", "uid": "u-1", "annotations": world.annotations},
        "spec": {"templateRef": {"name": "t"}, "inputs": INPUTS, "image": {"name": "ubuntu", "steps": []}},
        "status": world.status,
    })
}

async fn serve(State(world): State<Shared>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    if path == OBJECT && request.method() == Method::PATCH {
        let patch: Value = serde_json::from_slice(&to_bytes(request.into_body(), 9999).await.unwrap()).unwrap();
        let mut world = world.lock().unwrap();
        world.annotations = patch["metadata"]["annotations"].clone();
        if world.acts {
            let at = world.annotations["clusterstack.x-k8s.io/cancel-at"].clone();
            world.status = json!({"phase": "Cancelled", "attempt": 1, "lastHandledCancelAt": at});
        }
        return answer(200, &object(&world));
    }
    if path == OBJECT {
        return answer(200, &object(&world.lock().unwrap()));
    }
    if let Some(list) = OBJECT.strip_suffix("/ubuntu").filter(|list| path == *list) {
        let kind = list.rsplit('/').next().unwrap();
        return answer(200, &json!({"kind": kind, "metadata": {}, "items": [object(&world.lock().unwrap())]}));
    }
    match path.as_str() {
        "/api/v1/namespaces/shop/pods" => {
            assert!(request.uri().query().unwrap().contains("u-1"), "{}", request.uri());
            let pod = json!({"metadata": {"name": "job-1", "creationTimestamp": "2026-01-01T00:00:00Z"}});
            return answer(200, &json!({"metadata": {}, "items": [pod]}));
        }
        "/api/v1/namespaces/shop/pods/job-1/log" => {
            return Response::new(Body::from(world.lock().unwrap().pod_log.clone()));
        }
        _ => {}
    }
    let Some((pod, rest)) =
        path.strip_prefix("/api/v1/namespaces/system/pods/").and_then(|rest| rest.split_once(":9440/proxy"))
    else {
        return refusal(404, "no such path");
    };
    let (logs, is_denied) = {
        let world = world.lock().unwrap();
        (world.pods.get(pod).cloned(), world.is_denied)
    };
    if is_denied {
        return refusal(403, "pods \"op-0\" is forbidden: User \"ann\" cannot get resource \"pods/proxy\"");
    }
    let Some(logs) = logs else { return refusal(404, "pods not found") };
    let url = format!("{rest}?{}", request.uri().query().unwrap_or_default());
    routes(logs).oneshot(Request::get(url).body(Body::empty()).unwrap()).await.unwrap()
}

/// The stand-in, what it holds, and the directory of the kubeconfig and the logs.
struct Scene {
    world: Shared,
    dir: tempfile::TempDir,
}

impl Scene {
    async fn set(status: Value) -> Self {
        let world = Arc::new(Mutex::new(World { status, ..World::default() }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = axum::Router::new().fallback(serve).with_state(Arc::clone(&world));
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let dir = tempfile::tempdir().unwrap();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "shop"}}],
        });
        fs::write(dir.path().join("kubeconfig"), config.to_string()).unwrap();
        Self { world, dir }
    }

    fn root(&self) -> &Path {
        self.dir.path()
    }

    fn run(&self, args: &[&str]) -> Child {
        Command::new(env!("CARGO_BIN_EXE_clusterstack"))
            .arg("images")
            .args(args)
            .arg("--kubeconfig")
            .arg(self.dir.path().join("kubeconfig"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }

    async fn output(&self, args: &[&str]) -> (Output, String, String) {
        let output = tokio::time::timeout(LATEST, self.run(args).wait_with_output()).await.unwrap().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let (out, error) = (text(&output.stdout), text(&output.stderr));
        (output, out, error)
    }

    /// Starts a process that serves logs as this pod, and makes it the holder.
    fn holder(&self, pod: &str, root: &Path) {
        let place = Pod { namespace: "system".into(), name: pod.into() };
        let logs = Logs::new(root.to_owned(), Some(place));
        logs.served_at(9440);
        let log = logs.record("shop", "ubuntu", INPUTS).unwrap();
        let holder = json!({"identity": format!("{pod}_{:x}", 17), "heartbeat": "2026-01-01T00:00:00.000000Z"});
        let mut world = self.world.lock().unwrap();
        world.pods.insert(pod.to_owned(), logs);
        world.status =
            json!({"phase": "Running", "attempt": 1, "holder": holder, "log": log, "logTail": "last words\n"});
    }

    fn phase(&self, phase: &str) {
        let status = &mut self.world.lock().unwrap().status;
        status["phase"] = phase.into();
        status.as_object_mut().unwrap().remove("holder");
    }
}

fn write(root: &Path, text: &str) {
    let path = log_path(root, "shop", INPUTS);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    OpenOptions::new().create(true).append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

/// Reads until the output ends so.
async fn read_until(child: &mut Child, read: &mut String, end: &str) {
    let out = child.stdout.as_mut().unwrap();
    let more = async {
        while !read.ends_with(end) {
            let mut bytes = [0; 4096];
            let count = out.read(&mut bytes).await.unwrap();
            assert!(count > 0, "it ended with {read:?}");
            read.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        }
    };
    let is_there = tokio::time::timeout(LATEST, more).await;
    assert!(is_there.is_ok(), "no {end:?} in {read:?}");
}

#[tokio::test]
async fn each_line_of_a_log_comes_once_over_restart_move_and_end() {
    let scene = Scene::set(json!({"phase": "Queued"})).await;
    let root = scene.root().to_owned();
    let (mut child, mut read) = (scene.run(&["logs", "-f", "ubuntu"]), String::new());
    write(&root, "1\n2\n");
    scene.holder("op-0", &root);
    read_until(&mut child, &mut read, "2\n").await;
    // The container is started anew: the path of before is no good any more.
    scene.holder("op-0", &root);
    write(&root, "3\n");
    read_until(&mut child, &mut read, "3\n").await;
    // The pod is gone; another one goes on, with the volume. The log is put aside meanwhile.
    scene.world.lock().unwrap().pods.clear();
    write(&root, "4\n");
    let path = log_path(&root, "shop", INPUTS);
    fs::rename(&path, path.with_extension("log.1")).unwrap();
    write(&root, "5\n");
    scene.holder("op-1", &root);
    read_until(&mut child, &mut read, "5\n").await;
    // The next one has no volume.
    let other = root.join("other");
    write(&other, "of another node\n");
    scene.holder("op-2", &other);
    read_until(&mut child, &mut read, "node\n").await;
    write(&other, "the end\n");
    scene.phase("Succeeded");
    let ended = tokio::time::timeout(LATEST, child.wait_with_output()).await.unwrap().unwrap();
    read.push_str(std::str::from_utf8(&ended.stdout).unwrap());
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(read, "1\n2\n3\n4\n5\nof another node\nthe end\n", "{said}");
    assert!(ended.status.success() && said.contains("another log begins here"), "{said}");
}

#[tokio::test]
async fn without_a_pod_the_last_lines_are_shown_and_said_to_be_that() {
    let holder = json!({"identity": "laptop_17", "heartbeat": "2026-01-01T00:00:00.000000Z"});
    let scene = Scene::set(json!({"phase": "Running", "holder": holder, "logTail": "last words\n"})).await;
    let (output, out, error) = scene.output(&["logs", "ubuntu"]).await;
    assert_eq!((output.status.success(), out.as_str()), (true, "last words\n"), "{error}");
    assert!(error.contains("laptop_17 builds, which is no pod that serves logs"), "{error}");
    // A pod that is gone leaves them too.
    scene.holder("op-0", scene.root());
    scene.world.lock().unwrap().pods.clear();
    let (_, out, error) = scene.output(&["logs", "ubuntu"]).await;
    assert_eq!(out, "last words\n");
    assert!(error.contains("pod system/op-0 is gone"), "{error}");
}

#[tokio::test]
async fn who_may_not_proxy_to_the_pod_is_told_the_right() {
    let scene = Scene::set(Value::Null).await;
    scene.holder("op-0", scene.root());
    scene.world.lock().unwrap().is_denied = true;
    let (output, out, error) = scene.output(&["logs", "-f", "ubuntu"]).await;
    assert_eq!((output.status.code(), out.as_str()), (Some(1), ""));
    assert!(error.contains("`get` on pods/proxy in namespace system") && error.contains("User \"ann\""), "{error}");
}

#[tokio::test]
async fn the_log_of_a_job_is_that_of_its_pod() {
    let log = json!({"namespace": "shop", "path": "build"});
    let scene = Scene::set(json!({"phase": "Running", "log": log})).await;
    let (mut child, mut read) = (scene.run(&["logs", "-f", "ubuntu"]), String::new());
    scene.world.lock().unwrap().pod_log = "2026-01-01T00:00:01.5Z a\n2026-01-01T00:00:01.5Z b\n".into();
    read_until(&mut child, &mut read, "b\n").await;
    scene.world.lock().unwrap().pod_log.push_str("2026-01-01T00:00:01.5Z c\n2026-01-01T00:00:02Z \u{1b}[2Jd\n");
    scene.phase("Succeeded");
    let ended = tokio::time::timeout(LATEST, child.wait_with_output()).await.unwrap().unwrap();
    read.push_str(std::str::from_utf8(&ended.stdout).unwrap());
    assert_eq!(read, "a\nb\nc\n [2Jd\n");
}

#[tokio::test]
async fn cancelling_says_what_came_of_it() {
    let scene = Scene::set(json!({"phase": "Running", "attempt": 1})).await;
    let (output, _, error) = scene.output(&["cancel", "ubuntu", "--wait", "1s"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("the operator did not act on shop/ubuntu yet"), "{error}");
    scene.world.lock().unwrap().acts = true;
    let (output, out, error) = scene.output(&["cancel", "ubuntu"]).await;
    assert!(output.status.success(), "{error}");
    assert_eq!(out, "ubuntu: cancelled in attempt 1; `clusterstack images retry` starts it again\n");
    let (_, out, error) = scene.output(&["cancel", "ubuntu"]).await;
    assert_eq!((out.as_str(), error.as_str()), ("", "ubuntu: the build is cancelled already\n"));
}

#[tokio::test]
async fn watching_in_a_pipe_says_each_change_and_ends_with_the_builds() {
    let scene = Scene::set(json!({"phase": "Running", "step": "download"})).await;
    let (mut child, mut read) = (scene.run(&["--watch"]), String::new());
    read_until(&mut child, &mut read, "\n").await;
    scene.phase("Failed");
    let ended = tokio::time::timeout(LATEST, child.wait_with_output()).await.unwrap().unwrap();
    read.push_str(std::str::from_utf8(&ended.stdout).unwrap());
    assert_eq!(ended.status.code(), Some(1));
    let lines: Vec<Vec<&str>> = read.lines().map(|line| line.split_whitespace().take(3).collect()).collect();
    let expected = [["NAME", "PHASE", "STEP"], ["ubuntu", "Running", "download"], ["ubuntu", "Failed", "download"]];
    assert_eq!(lines, expected);
}
