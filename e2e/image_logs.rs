//! The log of a build, followed by a user while it grows, from the operator's pod through the API server's proxy. The API
//! server is real; the pods' network is played. That of a Job's pod is in `image_pods.rs`.

use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};

use clusterstack::api::image_release::ImagePhase;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::task::JoinHandle;

use crate::harness::{ImageServer, Images, Operator, PutServer, TOKEN, World, check, skipped, sum, wait_for};

const IMAGE: &str = "told";

/// A user who follows a log.
pub(crate) struct Reader {
    read: Arc<Mutex<String>>,
    child: tokio::process::Child,
    task: JoinHandle<()>,
}

impl Reader {
    pub(crate) fn start(t: &World, image: &str) -> Self {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_clusterstack"));
        command.args(["images", "logs", "-f", image, "--namespace", &t.namespace]);
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

    pub(crate) async fn has(&self, part: &str) {
        wait_for(format!("the log to say {part:?}"), || async {
            let read = self.read.lock().unwrap().clone();
            check(read.contains(part), read)
        })
        .await;
    }

    /// What it read in all, when it ended by itself.
    pub(crate) async fn ended(self) -> (Output, String) {
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
    let reader = Reader::start(&t, IMAGE);
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
