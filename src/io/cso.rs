//! Reads an installation of the Go operator, and takes it out of the way.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::Selector;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::helm;
use super::kinds::Kinds;
use crate::api::GROUP;
use crate::core::cso::{Facts, LABEL, Origin, is_stopped, is_theirs, named, release, runs, unready};
use crate::core::install::NAME;
use crate::core::manifest::split_api_version;
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
    #[error("after {} s there still is of {what}: {left}", waited.as_secs())]
    Runs {
        /// The Deployment.
        what: String,
        /// Its pods, with their nodes.
        left: String,
        /// How long it was waited for.
        waited: Duration,
    },
}

impl CsoError {
    /// Whether it is the API server that said no.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { error, .. } if matches!(**error, kube::Error::Api(_)))
    }
}

fn refused(what: impl Into<String>) -> impl FnOnce(kube::Error) -> CsoError {
    let what = what.into();
    move |error| CsoError::Refused { what, error: Box::new(error) }
}

/// Kinds of CSO's installation that are in the way while nobody answers them, and its Deployment.
const WEBHOOKS: [(&str, &str); 2] = [
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"),
];
const EXTENSIONS: (&str, &str) = ("runtime.cluster.x-k8s.io", "ExtensionConfig");
const DEPLOYMENTS: (&str, &str) = ("apps", "Deployment");

/// Where a Secret or ConfigMap holds what it is for.
const CONTENT: [&str; 2] = ["data", "binaryData"];

/// What became of a Secret or ConfigMap that was to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// There is none.
    Nothing,
    /// It is copied.
    Written,
    /// One is there with other content.
    Kept,
}

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
        let deployments = self.all(DEPLOYMENTS, &format!("{}={}", LABEL.0, LABEL.1)).await?;
        let services = self.services(&deployments).await?;
        let theirs = |mut all: Vec<Value>| {
            all.retain(|registration| is_theirs(registration, &deployments, &services));
            all
        };
        let mut webhooks = Vec::new();
        for kind in WEBHOOKS {
            webhooks.extend(theirs(self.all(kind, "").await?));
        }
        let extensions = theirs(self.all(EXTENSIONS, "").await?);
        let operators = self.operators().await?;
        let mut unfinished: Vec<String> = operators.iter().filter_map(unready).collect();
        for deployment in deployments.iter().filter(|deployment| is_stopped(deployment)) {
            let left = self.left(deployment).await?;
            unfinished.extend(left.map(|left| format!("{}: {left}", named(deployment))));
        }
        Ok(Facts {
            webhooks,
            extensions,
            records: self.records(&deployments).await?,
            definitions: self.definitions().await?,
            operators: operators.iter().map(named).collect(),
            unfinished,
            stacks: self.all((GROUP, "ClusterStack"), "").await?,
            releases: self.all((GROUP, "ClusterStackRelease"), "").await?,
            addons: self.all((GROUP, "ClusterAddon"), "").await?,
            deployments,
        })
    }

    /// The Services beside its Deployments.
    async fn services(&self, deployments: &[Value]) -> Result<Vec<Value>, CsoError> {
        let namespaces = deployments.iter().filter_map(|object| object["metadata"]["namespace"].as_str());
        let mut services = Vec::new();
        for namespace in namespaces.collect::<BTreeSet<_>>() {
            let api: Api<Service> = Api::namespaced(self.client.clone(), namespace);
            let list = api.list(&ListParams::default()).await.map_err(refused("Services can't be listed"))?;
            services.extend(list.items.into_iter().map(|service| serde_json::to_value(service).unwrap_or_default()));
        }
        Ok(services)
    }

    /// In what Helm keeps its release.
    async fn records(&self, deployments: &[Value]) -> Result<Vec<&'static str>, CsoError> {
        let Some((namespace, name)) = deployments.iter().find_map(release) else { return Ok(Vec::new()) };
        let what = format!("what Helm keeps of release {name} in namespace {namespace} can't be listed");
        helm::records(self.client, namespace, name).await.map_err(refused(what))
    }

    /// What runs our operator, by whatever it was installed. What is being deleted runs it no more.
    async fn operators(&self) -> Result<Vec<Value>, CsoError> {
        let mut all = Vec::new();
        for kind in [DEPLOYMENTS, ("apps", "StatefulSet")] {
            all.extend(self.all(kind, &format!("app.kubernetes.io/name={NAME}")).await?);
        }
        all.retain(|object| object["metadata"]["deletionTimestamp"].is_null());
        Ok(all)
    }

    async fn definitions(&self) -> Result<Vec<Value>, CsoError> {
        let api: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let list = api.list_metadata(&ListParams::default()).await;
        let list = list.map_err(refused("CustomResourceDefinitions can't be listed"))?;
        Ok(list.items.into_iter().map(|object| json!({"metadata": object.metadata})).collect())
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
        for object in facts.webhooks.iter().chain(&facts.extensions) {
            self.delete(object, false).await?;
            tell(&format!("{} removed", named(object)));
        }
        for deployment in &facts.deployments {
            self.scale_to_zero(deployment, false).await?;
            self.stopped(deployment, limit).await?;
            tell(&format!("{} stopped", named(deployment)));
        }
        Ok(())
    }

    /// Asks the API server whether it would let [`stop`](Self::stop) do all that, and changes nothing.
    ///
    /// # Errors
    /// The first refusal.
    pub async fn rehearse(&self, facts: &Facts) -> Result<(), CsoError> {
        for object in facts.webhooks.iter().chain(&facts.extensions) {
            self.delete(object, true).await?;
        }
        for deployment in &facts.deployments {
            self.scale_to_zero(deployment, true).await?;
        }
        Ok(())
    }

    async fn api(&self, object: &Value) -> Result<Option<Api<DynamicObject>>, CsoError> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let (group, _) = split_api_version(&api_version);
        let found = self.kinds.preferred(self.client, group, &kind).await.map_err(refused(format!("{kind}s")))?;
        Ok(found.map(|found| match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &found.resource),
            None => Api::all_with(self.client.clone(), &found.resource),
        }))
    }

    async fn delete(&self, object: &Value, is_dry: bool) -> Result<(), CsoError> {
        let Some(api) = self.api(object).await? else { return Ok(()) };
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        match api.delete(name, &DeleteParams { dry_run: is_dry, ..DeleteParams::default() }).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            deleted => deleted.map(drop).map_err(refused(format!("{} can't be deleted", named(object)))),
        }
    }

    async fn scale_to_zero(&self, deployment: &Value, is_dry: bool) -> Result<(), CsoError> {
        let Some(api) = self.api(deployment).await? else { return Ok(()) };
        let name = deployment["metadata"]["name"].as_str().unwrap_or_default();
        let patch = Patch::Merge(json!({"spec": {"replicas": 0}}));
        let params = PatchParams { dry_run: is_dry, field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        let scaled = api.patch_scale(name, &params, &patch).await;
        scaled.map(drop).map_err(refused(format!("Deployment {name} can't be scaled")))
    }

    async fn stopped(&self, deployment: &Value, limit: Duration) -> Result<(), CsoError> {
        let began = Instant::now();
        while let Some(left) = self.left(deployment).await? {
            if began.elapsed() > limit {
                return Err(CsoError::Runs { what: named(deployment), left, waited: began.elapsed() });
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// What of a Deployment that was scaled to nothing still runs.
    async fn left(&self, deployment: &Value) -> Result<Option<String>, CsoError> {
        let Some(api) = self.api(deployment).await? else { return Ok(None) };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (name, namespace) = (text(&deployment["metadata"]["name"]), text(&deployment["metadata"]["namespace"]));
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let selector = LabelSelector::deserialize(&deployment["spec"]["selector"]).unwrap_or_default();
        // One that kube can't read is none that the API server took.
        let selector = Selector::try_from(selector).unwrap_or_default();
        let live = api.get(&name).await.map_err(refused(format!("Deployment {name} can't be read")))?;
        let live = serde_json::to_value(live).unwrap_or_default();
        let list = pods.list(&ListParams::default().labels_from(&selector)).await;
        let list = list.map_err(refused(format!("pods of Deployment {name} can't be listed")))?;
        let list: Vec<Value> = list.items.iter().filter_map(|pod| serde_json::to_value(pod).ok()).collect();
        Ok(runs(&live, &list))
    }

    /// Copies a Secret or ConfigMap with its variables into the namespace of our operator. One that is there with other content stays:
    /// it may have been changed since an earlier run.
    ///
    /// # Errors
    /// A refusal.
    pub async fn copy(&self, (kind, name): &Origin, from: &str, to: &str) -> Result<Copied, CsoError> {
        let resource = match *kind {
            "Secret" => ApiResource::erase::<Secret>(&()),
            _ => ApiResource::erase::<ConfigMap>(&()),
        };
        let at = |namespace: &str| Api::<DynamicObject>::namespaced_with(self.client.clone(), namespace, &resource);
        let found = at(from).get_opt(name).await.map_err(refused(format!("{kind} {from}/{name} can't be read")))?;
        let Some(found) = found else { return Ok(Copied::Nothing) };
        let there = at(to).get_opt(name).await.map_err(refused(format!("{kind} {to}/{name} can't be read")))?;
        let content = |object: &DynamicObject| CONTENT.map(|field| object.data.get(field).cloned());
        if there.is_some_and(|there| content(&there) != content(&found)) {
            return Ok(Copied::Kept);
        }
        let mut copy = json!({
            "apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name, "namespace": to},
        });
        for field in CONTENT.into_iter().chain(["type"]) {
            if let Some(value) = found.data.get(field) {
                copy[field] = value.clone();
            }
        }
        let params = PatchParams::apply(MANAGER).force();
        let written = at(to).patch(name, &params, &Patch::Apply(&copy)).await;
        written.map(|_| Copied::Written).map_err(refused(format!("{kind} {to}/{name} can't be written")))
    }
}
