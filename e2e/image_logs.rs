//! The log of a build, followed by a user while it grows: from the operator's pod through the API server's proxy, and from
//! the pod of a Job through the API server and a kubelet. The API server is real; the pods' network and the kubelet's log
//! are played.

use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};

use clusterstack::api::image_release::ImagePhase;
use clusterstack::core::image::job::selector;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::harness::{
    Authority, ImageServer, Images, Operator, PutServer, TOKEN, World, check, skipped, sum, unique, wait_for,
};

const IMAGE: &str = "told";

/// A user who follows a log.
struct Reader {
    read: Arc<Mutex<String>>,
    child: tokio::process::Child,
    task: JoinHandle<()>,
}

impl Reader {
    fn start(t: &World) -> Self {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_clusterstack"));
        command.args(["images", "logs", "-f", IMAGE, "--namespace", &t.namespace]);
        command.env("KUBECONFIG", &t.plane.kubeconfig).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn().expect("no clusterstack");
        let mut output = child.stdout.take().expect("no output");
        let read = Arc::<Mutex<String>>::default();
        let kept = Arc::clone(&read);
        let task = tokio::spawn(async move {
            let mut part = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut part).await {
                kept.lock().unwrap().push_str(&String::from_utf8_lossy(&part[..length]));
            }
        });
        Self { read, child, task }
    }

    async fn has(&self, part: &str) {
        wait_for(format!("the log to say {part:?}"), || async {
            let read = self.read.lock().unwrap().clone();
            check(read.contains(part), read)
        })
        .await;
    }

    /// What it read in all, when it ended by itself.
    async fn ended(self) -> (Output, String) {
        let output = self.child.wait_with_output().await.unwrap();
        self.task.await.unwrap();
        (output, self.read.lock().unwrap().clone())
    }
}

/// Set where the test runs in a network of its own.
const INSIDE: &str = "CLUSTERSTACK_E2E_POD_NETWORK";
/// Address of the pod there: the API server leads nobody to loopback.
const ADDRESS: &str = "10.244.0.2";

/// Runs a test of this program in a network of its own, where the pod's address is on this machine.
async fn in_a_network(test: &str) {
    let script = format!("ip link set lo up && ip addr add {ADDRESS}/32 dev lo && exec \"$@\"");
    let made =
        tokio::process::Command::new("unshare").args(["--net", "sh", "-c", &script, "sh", "true"]).output().await;
    if !made.as_ref().is_ok_and(|made| made.status.success()) {
        return skipped(format_args!("{test}: no network of its own can be made: {made:?}"));
    }
    let mut command = tokio::process::Command::new("unshare");
    command.args(["--net", "sh", "-c", &script, "sh"]).arg(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--nocapture"]).env(INSIDE, "1").output().await.unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test]
async fn the_log_of_a_task_is_followed_through_the_api_servers_pod_proxy() {
    if std::env::var_os(INSIDE).is_none() {
        return in_a_network("image_logs::the_log_of_a_task_is_followed_through_the_api_servers_pod_proxy").await;
    }
    let t = World::new("imglogs").await;
    let content = b"a disk ".repeat(10_000);
    let (images, disks, shelf) = (Images::of(&t), ImageServer::new(&content).await, PutServer::new(true).await);
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "shelf"}, "stringData": {"token": TOKEN}});
    t.apply(&secret).await;
    let http =
        json!({"url": format!("http://{}/images", shelf.host), "insecure": true, "secretRef": {"name": "shelf"}});
    images.template(json!({"destination": {"directory": null, "http": http}})).await;
    shelf.held.lock().unwrap().push("PUT *.part".into());
    let pod = json!({
        "metadata": {"name": "builder-0"}, "spec": {"containers": [{"name": "operator", "image": "none"}]},
    });
    let pods: Api<Pod> = Api::namespaced(t.client.clone(), &t.namespace);
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let status = json!({"status": {"phase": "Running", "podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}]}});
    pods.patch_status("builder-0", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let mut flags = images.flags(&disks.host());
    let probes = format!("{ADDRESS}:0");
    flags.extend(["--allow-source".into(), shelf.host.clone(), "--health-probe-bind-address".into(), probes]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let env = [("POD_NAME", Path::new("builder-0")), ("POD_NAMESPACE", Path::new(&t.namespace))];
    let _operator = Operator::start_with(&t, &t.plane.kubeconfig, &flags, &env);
    let steps = json!([{"download": {"url": disks.url("disk.raw"), "checksum": format!("sha256:{}", sum(&content))}}]);
    images.make(&json!({"name": IMAGE, "format": "raw", "steps": steps})).await;

    images.status_is(IMAGE, "to be uploaded", |status| status.step == "upload" && status.log.is_some()).await;
    let reader = Reader::start(&t);
    reader.has("step download begins").await;
    reader.has("step upload begins").await;
    assert!(!reader.read.lock().unwrap().contains("step register"), "it was held");
    shelf.held.lock().unwrap().clear();
    let (output, read) = reader.ended().await;
    assert!(output.status.success(), "{output:?}");
    assert!(read.contains("step register begins"), "{read}");
    for step in ["download", "upload", "register"] {
        assert_eq!(read.matches(&format!("step {step} begins")).count(), 1, "{read}");
    }
    images.are(&[IMAGE.to_owned()], ImagePhase::Succeeded).await;
}

/// Lines of a container with their times, as a kubelet keeps them.
type Lines = Arc<Mutex<Vec<(Timestamp, String)>>>;

/// The part of a kubelet that gives logs. Its Node goes when the test does: nobody else asks for it.
struct LogKubelet {
    node: String,
    lines: Lines,
    task: JoinHandle<()>,
}

impl Drop for LogKubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl LogKubelet {
    async fn start(t: &World) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let acceptor = Authority::new().server("127.0.0.1", None);
        let (node, lines) = (unique("logs"), Lines::default());
        let kept = Arc::clone(&lines);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, lines) = (acceptor.clone(), Arc::clone(&kept));
                tokio::spawn(async move {
                    let mut stream = acceptor.accept(stream).await.ok()?;
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        head.push(stream.read_u8().await.ok()?);
                    }
                    let answer = answer(&String::from_utf8_lossy(&head), &lines.lock().unwrap());
                    stream.write_all(answer.as_bytes()).await.ok()?;
                    stream.shutdown().await.ok()
                });
            }
        });
        let nodes: Api<Node> = Api::all(t.client.clone());
        let object = json!({"metadata": {"name": node}});
        nodes.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        t.remove_at_end("v1", "Node", &node);
        let status = json!({"status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }});
        nodes.patch_status(&node, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
        Self { node, lines, task }
    }

    fn writes(&self, line: &str) {
        self.lines.lock().unwrap().push((Timestamp::now(), line.to_owned()));
    }
}

/// `GET /containerLogs/<namespace>/<pod>/<container>?sinceTime=…&timestamps=true`.
fn answer(head: &str, lines: &[(Timestamp, String)]) -> String {
    let target = head.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    let url = url::Url::parse(&format!("https://kubelet{target}")).unwrap();
    if !(url.path().starts_with("/containerLogs/") && url.path().ends_with("/build")) {
        return "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned();
    }
    let of = |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
    let since: Option<Timestamp> = of("sinceTime").and_then(|text| text.parse().ok());
    let has_times = of("timestamps").as_deref() == Some("true");
    let new = lines.iter().filter(|(at, _)| since.is_none_or(|since| *at >= since));
    let body: String =
        new.map(|(at, line)| if has_times { format!("{at:.9} {line}\n") } else { format!("{line}\n") }).collect();
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn the_log_of_a_job_is_followed_through_the_api_server_and_the_kubelet() {
    let t = World::new("imgjoblog").await;
    let kubelet = LogKubelet::start(&t).await;
    t.allow_image_jobs().await;
    let images = Images::of(&t);
    t.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "builder"}})).await;
    let container = json!({"name": "build", "image": "none"});
    let pod = json!({"spec": {"serviceAccountName": "builder", "nodeName": kubelet.node, "containers": [container]}});
    let build = json!({"executor": "Job", "retries": 0, "job": {"template": pod, "activeDeadlineSeconds": 600}});
    images.template(json!({"build": build})).await;
    let _operator = images.operator(&images.flags("127.0.0.1:1"));
    let steps =
        json!([{"download": {"url": "https://images.example.org/a.raw", "checksum": format!("sha256:{}", sum(b"x"))}}]);
    images.make(&json!({"name": IMAGE, "format": "raw", "steps": steps})).await;
    let labels = selector(&images.api.get(IMAGE).await.unwrap().uid().unwrap());
    let pods: Api<Pod> = Api::namespaced(t.client.clone(), &t.namespace);
    let pod = wait_for("the pod of the Job", || async {
        let found = pods.list(&ListParams::default().labels(&labels)).await.unwrap().items;
        found.first().map(ResourceExt::name_any).ok_or("no pod".to_owned())
    })
    .await;
    let says = async |phase: &str, state: Value| {
        let container =
            json!({"name": "build", "image": "none", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        let status = json!({"status": {"phase": phase, "containerStatuses": [container]}});
        pods.patch_status(&pod, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    };
    says("Running", json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}})).await;
    images.status_is(IMAGE, "to be built", |status| status.phase == ImagePhase::Running).await;
    kubelet.writes("fetching packages");
    let reader = Reader::start(&t);
    reader.has("fetching packages\n").await;
    kubelet.writes("no space left");
    kubelet.writes("no space left");
    reader.has("no space left\nno space left\n").await;
    says("Failed", json!({"terminated": {"exitCode": 78, "reason": "Error", "message": "no space left"}})).await;
    let (output, read) = reader.ended().await;
    assert_eq!(read, "fetching packages\nno space left\nno space left\n", "{output:?}");
    images.are(&[IMAGE.to_owned()], ImagePhase::Failed).await;
}
