//! A stand-in for a kubelet: a Node, and what becomes of the Pods that the scheduler puts on it. Kubernetes' own controllers
//! do the rest.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use super::world::unique;

/// A Node with its Pods. It goes when it is dropped.
pub(crate) struct Kubelet {
    /// The Node's name, and its label `e2e`.
    pub(crate) node: String,
    broken: Arc<Mutex<Vec<String>>>,
    client: Client,
    task: tokio::task::JoinHandle<()>,
}

impl Kubelet {
    /// A new Node. Its Pods run and are ready, those of Jobs succeed.
    pub(crate) async fn start(client: &Client) -> Self {
        let node = unique("node");
        let room = json!({"cpu": "64", "memory": "256Gi", "pods": "500"});
        let object = json!({
            "metadata": {"name": node, "labels": {"e2e": node}},
            // Nobody else's Pods come here but those that go anywhere.
            "spec": {"taints": [{"key": "e2e", "value": node, "effect": "NoSchedule"}]},
            "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
        });
        let nodes: Api<Node> = Api::all(client.clone());
        let created = serde_json::from_value(object.clone()).expect("no Node");
        nodes.create(&PostParams::default(), &created).await.expect("Node");
        let status = json!({"status": object["status"]});
        nodes.patch_status(&node, &PatchParams::default(), &Patch::Merge(status)).await.expect("Node");
        let broken = Arc::new(Mutex::new(Vec::new()));
        let task = tokio::spawn(run(client.clone(), node.clone(), Arc::clone(&broken)));
        Self { node, broken, client: client.clone(), task }
    }

    /// Pods whose names begin like this don't become ready, those of Jobs fail.
    pub(crate) fn breaks(&self, prefixes: &[String]) {
        *self.broken.lock().expect("poisoned") = prefixes.to_vec();
    }

    /// What a Pod needs to come here.
    pub(crate) fn place(&self) -> String {
        format!(
            "nodeSelector: {{e2e: {0}}}\n      tolerations: [{{key: e2e, operator: Exists, effect: NoSchedule}}]",
            self.node
        )
    }

    /// Takes the Node away.
    pub(crate) async fn end(self) {
        self.task.abort();
        let _ = Api::<Node>::all(self.client.clone()).delete(&self.node, &DeleteParams::default()).await;
    }
}

async fn run(client: Client, node: String, broken: Arc<Mutex<Vec<String>>>) {
    let pods: Api<Pod> = Api::all(client.clone());
    loop {
        let here = ListParams::default().fields(&format!("spec.nodeName={node}"));
        for pod in pods.list(&here).await.map(|list| list.items).unwrap_or_default() {
            let name = pod.name_any();
            let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
            if pod.metadata.deletion_timestamp.is_some() {
                let _ = api.delete(&name, &DeleteParams::default().grace_period(0)).await;
                continue;
            }
            let is_broken = broken.lock().expect("poisoned").iter().any(|prefix| name.starts_with(prefix.as_str()));
            let status = status(&pod, is_broken);
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
            let ready = |pod: &Pod| {
                let conditions = pod.status.clone().unwrap_or_default().conditions.unwrap_or_default();
                conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
            };
            let is_so =
                status["phase"] == phase.as_str() && (status["conditions"][0]["status"] == "True") == ready(&pod);
            if !is_so && !matches!(phase.as_str(), "Succeeded" | "Failed") {
                // One that went meanwhile is no loss.
                let _ =
                    api.patch_status(&name, &PatchParams::default(), &Patch::Merge(json!({"status": status}))).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn status(pod: &Pod, is_broken: bool) -> Value {
    let is_job = pod.owner_references().iter().any(|owner| owner.kind == "Job");
    let (phase, ready) = match (is_job, is_broken) {
        (true, true) => ("Failed", "False"),
        (true, false) => ("Succeeded", "False"),
        (false, true) => ("Running", "False"),
        (false, false) => ("Running", "True"),
    };
    json!({
        "phase": phase,
        "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    })
}
