//! Reads what tells how an installation is. Whatever can't be read is said, and stops nothing else.

mod rights;
mod serving;

use std::collections::BTreeSet;
use std::time::Duration;

use futures::{StreamExt, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, ListParams};
use kube::{Client, ResourceExt};
use serde_json::Value;

use super::apply::refusal;
use super::kinds::{Kind, Kinds};
use super::{leases, stored};
use crate::api::{GROUP, INFRASTRUCTURE_GROUP, MANAGED_BY as OPERATOR, MANAGED_BY_LABEL, OperatorShard};
use crate::core::cso::LABEL as CSO;
use crate::core::doctor::{Facts, NO_LOGIN, Read, UNANSWERED, Workload};
use crate::core::install::INSTALLED_IN;

/// How many definitions are asked for at once.
const AT_ONCE: usize = 16;
/// How long the API server may take for one list.
const QUESTION: Duration = Duration::from_secs(10);
/// What the chart labels the operator with, whoever applied it.
const NAME_LABEL: &str = "app.kubernetes.io/name=clusterstack";

/// Cluster API's group.
const CLUSTER_API: &str = "cluster.x-k8s.io";

/// Kinds whose objects are looked at, in the order of the work.
const OBJECTS: &[(&str, &str)] = &[
    (GROUP, "ClusterStackSource"),
    (GROUP, "ClusterStack"),
    (GROUP, "ClusterStackRelease"),
    (INFRASTRUCTURE_GROUP, "ProviderNodeImageRelease"),
    (GROUP, "ClusterAddon"),
];

/// Reads all of it.
///
/// # Errors
/// Nobody answers, or nobody takes the login: each other question would have the same answer.
pub async fn facts(client: &Client) -> Read<Facts> {
    let version = match client.apiserver_version().await {
        Ok(info) => Ok(info.git_version),
        Err(kube::Error::Api(status)) if status.code != 401 => {
            Err(told("it does not say which version it is")(kube::Error::Api(status)))
        }
        Err(kube::Error::Api(status)) => return Err(format!("{NO_LOGIN}: {}", status.message)),
        Err(error) => return Err(refusal(&error).message),
    };
    let kinds = Kinds::default();
    let reader = Reader { client, kinds: &kinds };
    let mut objects = Vec::new();
    for (group, kind) in OBJECTS {
        objects.push((*kind, reader.all(group, kind, "").await));
    }
    let ours = format!("{MANAGED_BY_LABEL}={OPERATOR}");
    let needed = rights::Needed::by(&objects);
    let shards = reader.shards().await;
    let known = shards.as_deref().unwrap_or_default();
    let leases = leases::of_replicas(client, known).await;
    let now = leases::now(client).await;
    let webhooks = reader.all("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", &ours).await;
    let served = serving::of_webhooks(client, webhooks.as_deref().unwrap_or_default(), known, now).await;
    let of_cluster_api = (reader.all(CLUSTER_API, "Cluster", ""), reader.all(CLUSTER_API, "ClusterClass", ""));
    let (clusters, classes) = tokio::join!(of_cluster_api.0, of_cluster_api.1);
    Ok(Facts {
        kubernetes: version,
        definitions: reader.definitions().await,
        workloads: reader.workloads(&needed).await,
        // That Deployments can't be listed is told of our own.
        cso: reader.all("apps", "Deployment", &format!("{}={}", CSO.0, CSO.1)).await.unwrap_or_default(),
        shards,
        leases,
        now,
        cluster_api: reader.versions(CLUSTER_API, "Cluster").await,
        clusters,
        classes,
        hooks: reader.all("runtime.cluster.x-k8s.io", "ExtensionConfig", &ours).await,
        webhooks,
        served,
        objects,
    })
}

fn told(what: impl Into<String>) -> impl FnOnce(kube::Error) -> String {
    let what = what.into();
    move |error| format!("{what}: {}", refusal(&error).message)
}

struct Reader<'a> {
    client: &'a Client,
    kinds: &'a Kinds,
}

impl Reader<'_> {
    /// All objects of a kind with these labels; none where it is not served.
    async fn all(&self, group: &str, kind: &str, labels: &str) -> Read<Vec<Value>> {
        let failed = || told(format!("{kind}s can't be listed"));
        let Some(found) = self.kinds.preferred(self.client, group, kind).await.map_err(failed())? else {
            return Ok(Vec::new());
        };
        // One that is never answered is to leave time for the others.
        match tokio::time::timeout(QUESTION, self.listed(&found, kind, labels)).await {
            Ok(listed) => listed.map_err(failed()),
            Err(_) => Err(format!("{kind}s can't be listed: {UNANSWERED} within {} s", QUESTION.as_secs())),
        }
    }

    async fn listed(&self, found: &Kind, kind: &str, labels: &str) -> Result<Vec<Value>, kube::Error> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &found.resource);
        let list = api.list(&ListParams::default().labels(labels)).await?;
        let plain = |object: DynamicObject| {
            let mut object = serde_json::to_value(object).unwrap_or_default();
            object["kind"] = kind.into();
            object
        };
        Ok(list.items.into_iter().map(plain).collect())
    }

    /// The definitions of our kinds, whoever brought them.
    async fn definitions(&self) -> Read<Vec<Value>> {
        let api: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let names: Vec<String> = crate::api::custom_resource_definitions().iter().map(ResourceExt::name_any).collect();
        let read = |name: String| {
            let api = api.clone();
            async move { api.get_opt(&name).await.map_err(told(format!("CustomResourceDefinition {name} can't be read"))) }
        };
        let found: Vec<Read<Option<CustomResourceDefinition>>> =
            stream::iter(names).map(read).buffered(AT_ONCE).collect().await;
        let found: Vec<Option<CustomResourceDefinition>> = found.into_iter().collect::<Result<_, _>>()?;
        Ok(found.into_iter().flatten().map(|one| serde_json::to_value(one).unwrap_or_default()).collect())
    }

    /// The versions of a kind that are served, without their group.
    async fn versions(&self, group: &str, kind: &str) -> Read<Vec<String>> {
        let failed = || told(format!("the versions of {group} can't be read"));
        let groups = self.client.list_api_groups().await.map_err(failed())?.groups;
        let mut versions = Vec::new();
        for version in groups.into_iter().filter(|one| one.name == group).flat_map(|one| one.versions) {
            if self.kinds.get(self.client, &version.group_version, kind).await.map_err(failed())?.is_some() {
                versions.push(version.version);
            }
        }
        Ok(versions)
    }

    async fn shards(&self) -> Read<Vec<OperatorShard>> {
        match stored::list_cluster_wide::<OperatorShard>(self.client, &ListParams::default()).await {
            Ok((shards, _)) => Ok(shards),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            Err(error) => Err(told("OperatorShards can't be listed")(error)),
        }
    }

    /// What runs the operator: by what our chart labels it with, or by what `clusterstack install` does.
    async fn workloads(&self, needed: &rights::Needed) -> Read<Vec<Workload>> {
        let mut workloads = Vec::new();
        for kind in ["Deployment", "StatefulSet"] {
            let mut known: BTreeSet<String> = BTreeSet::new();
            let mut found = self.all("apps", kind, NAME_LABEL).await?;
            found.extend(self.all("apps", kind, INSTALLED_IN).await?);
            for object in found {
                if !known.insert(text(&object["metadata"]["uid"]).to_owned()) {
                    continue;
                }
                let pods = self.pods(&object).await;
                let missing_account = rights::missing_account(self.client, &object).await;
                let rights = Some(rights::of_workload(self.client, &object, needed).await);
                workloads.push(Workload { object, pods, missing_account, rights });
            }
        }
        Ok(workloads)
    }

    /// The pods of a workload; none where they can't be read, for they only explain.
    async fn pods(&self, workload: &Value) -> Vec<Value> {
        let labels = workload["spec"]["selector"]["matchLabels"].as_object().into_iter().flatten();
        let labels: Vec<String> = labels.map(|(name, value)| format!("{name}={}", text(value))).collect();
        let namespace = text(&workload["metadata"]["namespace"]);
        let pods = self.all("", "Pod", &labels.join(",")).await.unwrap_or_default();
        pods.into_iter().filter(|pod| pod["metadata"]["namespace"] == namespace).collect()
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
