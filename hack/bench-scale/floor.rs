//! The floor: the same objects applied by a bare client, which decides nothing and says nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clusterstack::api::ClusterStack;
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::{GroupVersionKind, TypeMeta};
use kube::{Client, Resource as _, ResourceExt};
use serde_json::Value;

use crate::stacks::Stacks;

/// An object as it is applied, and where.
pub(crate) struct Applied {
    kind: ApiResource,
    object: Value,
}

/// Creates the ClusterStacks, suspended, and applies their releases and all objects of these; how long it took.
pub(crate) async fn applied(
    client: &Client,
    stacks: &Stacks,
    samples: &BTreeMap<String, Vec<Applied>>,
    concurrency: usize,
) -> Result<Duration> {
    stacks.namespaces(client, "floor").await?;
    let begin = Instant::now();
    stream::iter(stacks.names("floor"))
        .map(|(namespace, name)| {
            let samples = &samples[&name];
            async move {
                let stack = stacks.create(client, &namespace, &name, true).await?;
                let mut owners = BTreeMap::from([(ClusterStack::kind(&()).into_owned(), stack.uid())]);
                for sample in samples {
                    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &sample.kind);
                    let object = owned(&sample.object, &owners);
                    let name = object["metadata"]["name"].as_str().unwrap_or_default();
                    let params = PatchParams::apply("floor").force();
                    let made =
                        api.patch(name, &params, &Patch::Apply(&object)).await.with_context(|| name.to_owned())?;
                    owners.insert(sample.kind.kind.clone(), made.uid());
                }
                anyhow::Ok(())
            }
        })
        .buffer_unordered(concurrency)
        .try_collect::<()>()
        .await?;
    Ok(begin.elapsed())
}

/// What the operator made of each name of a ClusterStack.
pub(crate) async fn samples(client: &Client, stacks: &Stacks) -> Result<BTreeMap<String, Vec<Applied>>> {
    let mut samples: BTreeMap<String, Vec<Applied>> = BTreeMap::new();
    let mut kinds: BTreeMap<String, ApiResource> = BTreeMap::new();
    for release in stacks.releases(client).await? {
        let owner = release.owner_references().first().context("a release without an owner")?.name.clone();
        let of_name = samples.entry(owner).or_default();
        let mut made = serde_json::to_value(&release)?;
        let status = made["status"].take();
        of_name.push(Applied {
            kind: ApiResource::erase::<clusterstack::api::ClusterStackRelease>(&()),
            object: bare(made),
        });
        for resource in status["resources"].as_array().into_iter().flatten() {
            let text = |name: &str| resource[name].as_str().unwrap_or_default();
            let gvk = GroupVersionKind::gvk(text("group"), text("version"), text("kind"));
            let id = format!("{gvk:?}");
            let kind = match kinds.get(&id) {
                Some(kind) => kind.clone(),
                None => kinds.entry(id).or_insert(kube::discovery::pinned_kind(client, &gvk).await?.0).clone(),
            };
            let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "bench-0", &kind);
            let mut object = api.get(text("name")).await?;
            object.types = Some(TypeMeta { api_version: kind.api_version.clone(), kind: kind.kind.clone() });
            of_name.push(Applied { kind, object: bare(serde_json::to_value(object)?) });
        }
    }
    Ok(samples)
}

/// With the owners that were made of the kinds that own it: the collector of garbage follows what has one.
fn owned(object: &Value, made: &BTreeMap<String, Option<String>>) -> Value {
    let mut object = object.clone();
    for owner in object["metadata"]["ownerReferences"].as_array_mut().into_iter().flatten() {
        if let Some(Some(uid)) = owner["kind"].as_str().and_then(|kind| made.get(kind)) {
            owner["uid"] = uid.as_str().into();
        }
    }
    object
}

/// Without what the API server adds.
fn bare(mut object: Value) -> Value {
    /// What of the metadata is the client's.
    const SENT: [&str; 5] = ["name", "labels", "annotations", "finalizers", "ownerReferences"];
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|name, _| SENT.contains(&name.as_str()));
    }
    if let Some(object) = object.as_object_mut() {
        object.remove("status");
    }
    object
}
