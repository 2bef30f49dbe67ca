//! Reads an installation of the Go operator, and takes it out of the way.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::kinds::Kinds;
use crate::api::GROUP;
use crate::core::cso::{Facts, LABEL};
use crate::io::apply::refusal;

/// Field manager of what is changed.
const MANAGER: &str = "clusterstack-migrate";
/// How often it is looked whether it has stopped.
const LOOK: Duration = Duration::from_millis(500);

/// What can be wrong.
#[derive(Debug, thiserror::Error)]
pub enum CsoError {
    /// The API server said no, or nothing.
    #[error("{what}: {}", refusal(error).message)]
    Refused {
        /// What was tried, on what.
        what: String,
        /// Its words.
        error: Box<kube::Error>,
    },
    /// It does not stop.
    #[error("after {} s {what} still has {replicas} replicas", waited.as_secs())]
    Runs {
        /// The Deployment.
        what: String,
        /// How many.
        replicas: i64,
        /// How long it was waited for.
        waited: Duration,
    },
}

fn refused(what: impl Into<String>) -> impl FnOnce(kube::Error) -> CsoError {
    let what = what.into();
    move |error| CsoError::Refused { what, error: Box::new(error) }
}

/// Kinds of CSO's installation that are in the way while nobody answers them, and its Deployment.
const WEBHOOKS: (&str, &str) = ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration");
const EXTENSIONS: (&str, &str) = ("runtime.cluster.x-k8s.io", "ExtensionConfig");
const DEPLOYMENTS: (&str, &str) = ("apps", "Deployment");

/// An installation of the Go operator.
pub struct Cso<'a> {
    client: &'a Client,
    kinds: Kinds,
}

impl<'a> Cso<'a> {
    /// The one in this cluster.
    pub fn new(client: &'a Client) -> Self {
        Self { client, kinds: Kinds::default() }
    }

    /// Reads it.
    ///
    /// # Errors
    /// The first refusal.
    pub async fn facts(&self) -> Result<Facts, CsoError> {
        let label = format!("{}={}", LABEL.0, LABEL.1);
        Ok(Facts {
            deployments: self.all(DEPLOYMENTS, &label).await?,
            webhooks: self.all(WEBHOOKS, &label).await?,
            extensions: self.all(EXTENSIONS, &label).await?,
            stacks: self.all((GROUP, "ClusterStack"), "").await?,
            addons: self.all((GROUP, "ClusterAddon"), "").await?,
        })
    }

    async fn all(&self, (group, kind): (&str, &str), labels: &str) -> Result<Vec<Value>, CsoError> {
        let failed = || refused(format!("{kind}s can't be listed"));
        let Some(found) = self.kinds.preferred(self.client, group, kind).await.map_err(failed())? else {
            return Ok(Vec::new());
        };
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &found.resource);
        let list = api.list(&ListParams::default().labels(labels)).await.map_err(failed())?;
        let plain = |mut object: DynamicObject| {
            object.metadata.managed_fields = None;
            object.types =
                Some(kube::api::TypeMeta { api_version: found.resource.api_version.clone(), kind: kind.to_owned() });
            serde_json::to_value(object).unwrap_or_default()
        };
        Ok(list.items.into_iter().map(plain).collect())
    }

    /// Removes its webhooks and hooks, for which API server and Cluster API would wait, then stops it; `tell` is told of
    /// each step.
    ///
    /// # Errors
    /// The first refusal, or it does not stop within `limit`.
    pub async fn stop(&self, facts: &Facts, limit: Duration, tell: &mut impl FnMut(&str)) -> Result<(), CsoError> {
        for (kind, objects) in [(WEBHOOKS, &facts.webhooks), (EXTENSIONS, &facts.extensions)] {
            for object in objects {
                self.delete(kind, object).await?;
                tell(&format!("{} removed", crate::core::cso::named(kind.1, object)));
            }
        }
        for deployment in &facts.deployments {
            self.scale_to_zero(deployment, limit).await?;
            tell(&format!("{} stopped", crate::core::cso::named("Deployment", deployment)));
        }
        Ok(())
    }

    async fn api(&self, (group, kind): (&str, &str), object: &Value) -> Result<Option<Api<DynamicObject>>, CsoError> {
        let found = self.kinds.preferred(self.client, group, kind).await.map_err(refused(format!("{kind}s")))?;
        Ok(found.map(|found| match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &found.resource),
            None => Api::all_with(self.client.clone(), &found.resource),
        }))
    }

    async fn delete(&self, kind: (&str, &str), object: &Value) -> Result<(), CsoError> {
        let Some(api) = self.api(kind, object).await? else { return Ok(()) };
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        match api.delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            deleted => deleted.map(drop).map_err(refused(format!("{} {name} can't be deleted", kind.1))),
        }
    }

    async fn scale_to_zero(&self, deployment: &Value, limit: Duration) -> Result<(), CsoError> {
        let Some(api) = self.api(DEPLOYMENTS, deployment).await? else { return Ok(()) };
        let name = deployment["metadata"]["name"].as_str().unwrap_or_default();
        let patch = Patch::Merge(json!({"spec": {"replicas": 0}}));
        let failed = || refused(format!("Deployment {name} can't be scaled"));
        api.patch_scale(name, &PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() }, &patch)
            .await
            .map_err(failed())?;
        let began = Instant::now();
        loop {
            let live = api.get(name).await.map_err(failed())?;
            let replicas = live.data.pointer("/status/replicas").and_then(Value::as_i64).unwrap_or_default();
            if replicas == 0 {
                return Ok(());
            }
            if began.elapsed() > limit {
                return Err(CsoError::Runs { what: format!("Deployment {name}"), replicas, waited: began.elapsed() });
            }
            sleep(LOOK).await;
        }
    }

    /// Copies the Secret with its variables into the namespace of our operator; whether there was one.
    ///
    /// # Errors
    /// A refusal.
    pub async fn copy_secret(&self, name: &str, from: &str, to: &str) -> Result<bool, CsoError> {
        let source: Api<Secret> = Api::namespaced(self.client.clone(), from);
        let found = source.get_opt(name).await.map_err(refused(format!("Secret {from}/{name} can't be read")))?;
        let Some(found) = found else { return Ok(false) };
        let copy: Secret = Secret {
            metadata: kube::api::ObjectMeta {
                name: Some(found.name_any()),
                namespace: Some(to.to_owned()),
                ..kube::api::ObjectMeta::default()
            },
            data: found.data,
            type_: found.type_,
            ..Secret::default()
        };
        let target: Api<Secret> = Api::namespaced(self.client.clone(), to);
        let params = PatchParams::apply(MANAGER).force();
        let written = target.patch(name, &params, &Patch::Apply(&copy)).await;
        written.map(|_| true).map_err(refused(format!("Secret {to}/{name} can't be written")))
    }
}
