//! A provider of somebody else: the whole controller of a foreign kind, as docs/provider-contract.md asks for it.
//!
//! It knows nothing of clusterstack but the contract. `spec.flavor` says what becomes of an object.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::runtime::Controller;
use kube::runtime::controller::Action;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

const FINALIZER: &str = "shop.example.com/shelf";

/// The running controller of a namespace. It ends when it is dropped.
pub(crate) struct Shop(tokio::task::JoinHandle<()>);

impl Shop {
    /// Serves `ShopRelease` of this group in this namespace.
    pub(crate) fn open(client: &Client, namespace: &str, group: &str) -> Self {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", "ShopRelease"));
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
        let controller = Controller::new_with(api.clone(), watcher::Config::default(), kind);
        let runs = controller.run(reconcile, |_, _, _| Action::requeue(Duration::from_secs(1)), Arc::new(api));
        Self(tokio::spawn(runs.for_each(|_| async {})))
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn reconcile(object: Arc<DynamicObject>, api: Arc<Api<DynamicObject>>) -> Result<Action, kube::Error> {
    let flavor = object.data["spec"]["flavor"].as_str().unwrap_or_default();
    if object.metadata.deletion_timestamp.is_some() {
        if flavor != "sticky" {
            patch(&api, &object, json!({"metadata": {"finalizers": null}})).await?;
        }
        return Ok(Action::await_change());
    }
    if object.finalizers().is_empty() {
        patch(&api, &object, json!({"metadata": {"finalizers": [FINALIZER]}})).await?;
    }
    let status = match flavor {
        "idle" => return Ok(Action::await_change()),
        "greedy" => json!({"ready": false, "failureReason": "NoQuota", "failureMessage": "ask the shop for more"}),
        "rude" => {
            patch(&api, &object, json!({"metadata": {"ownerReferences": null, "labels": null}})).await?;
            json!({"ready": true})
        }
        _ => json!({"ready": true, "failureReason": null, "failureMessage": null}),
    };
    if object.data["status"]["ready"] != status["ready"] {
        let patch = Patch::Merge(json!({"status": status}));
        api.patch_status(&object.name_any(), &PatchParams::default(), &patch).await?;
    }
    Ok(Action::await_change())
}

async fn patch(api: &Api<DynamicObject>, object: &DynamicObject, patch: Value) -> Result<(), kube::Error> {
    api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
}
