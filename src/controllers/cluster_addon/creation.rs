//! Makes the ClusterAddon of a Cluster whose ClusterClass is of a release.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ObjectMeta, PartialObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::super::passes::has_read_all;
use super::super::seats::Seat;
use super::super::{Context, Doing, Error};
use super::{cluster_of, release_of, root_of};
use crate::api::{CLUSTER_ADDON_FINALIZER, ClusterAddon, ClusterAddonSpec, FIELD_MANAGER, SHARD_CLASS, WATCH_LABEL};
use crate::core::addon::cluster::{Cluster, addon_name, name_problem};
use crate::core::manifest::label;
use crate::core::retry::{self, ErrorClass};
use crate::core::share::{self, view::Role};
use crate::io::fence;

type Known = PartialObjectMeta<ClusterAddon>;

/// Makes the ClusterAddon of a Cluster, if it is ours and has none; tried until it is there, or not wanted.
pub(in crate::controllers) async fn make(
    namespace: String,
    cluster: String,
    ctx: Arc<Context>,
    intake: CancellationToken,
) {
    if ctx.settings.namespace.as_ref().is_some_and(|only| *only != namespace) || !has_read_all(&ctx).await {
        return;
    }
    for attempt in 0.. {
        match ensure(&namespace, &cluster, &ctx).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "a ClusterAddon could not be made; it is tried again"),
        }
        tokio::select! {
            () = intake.cancelled() => return,
            () = tokio::time::sleep(retry::delay(ErrorClass::Transient, attempt, rand::random())) => {}
        }
    }
}

/// Whether a Cluster, as it was last seen, may be ours to make one for. Nothing is asked for the many that are not: a
/// change of the class, of the release or of who works comes back here.
fn may_be_wanted(namespace: &str, name: &str, ctx: &Context) -> bool {
    ctx.watches.cluster_seen(namespace, name).is_none_or(|cluster| {
        let is_of_one = cluster.class.as_ref().is_some_and(|class| release_of(class, ctx).is_some());
        is_of_one && !cluster.deleting && ctx.seats.members.role(&root_of(&cluster, ctx)) == Role::Works
    })
}

/// `true` when it is there, or is not wanted.
async fn ensure(namespace: &str, name: &str, ctx: &Arc<Context>) -> Result<bool, Error> {
    if !may_be_wanted(namespace, name, ctx) {
        return Ok(true);
    }
    let there = there(namespace, name, ctx).await?;
    if there.as_ref().is_some_and(|there| ctx.is_ours(there)) {
        return Ok(true);
    }
    let Some((cluster, object)) = cluster_of(namespace, name, ctx).await? else { return Ok(true) };
    let is_ours = cluster.class.as_ref().is_some_and(|class| release_of(class, ctx).is_some());
    let addon = addon_of(&cluster, &object);
    if cluster.deleting || !is_ours || !ctx.is_ours(&addon) || ctx.moves.takes(&cluster.uid) {
        return Ok(true);
    }
    if let Some(problem) = name_problem(name) {
        tracing::warn!(cluster = format!("{namespace}/{name}"), "no addons: {problem}");
        return Ok(true);
    }
    let addon = Arc::new(addon);
    // Who has it then does it.
    let Seat::Taken(_, fence) = ctx.seat(&addon) else { return Ok(true) };
    match there {
        // It was somebody else's, as its Cluster was.
        Some(there) => fence::within(fence, take_over(&there, &cluster, ctx)).await,
        None => fence::within(fence, create((namespace, name), &addon, ctx)).await,
    }
}

/// The labels by which the ClusterAddon of a Cluster is worked on, where they are to be changed. One that was given to an
/// operator whose Cluster was to none stays with it.
pub(super) fn handed_down(
    cluster: &Cluster,
    addon: &BTreeMap<String, String>,
) -> BTreeMap<&'static str, Option<String>> {
    let own = [(SHARD_CLASS, &cluster.shard_class), (WATCH_LABEL, &cluster.watch_filter)].into_iter();
    let own = own.filter(|(_, value)| !value.is_empty()).map(|(key, value)| (key.to_owned(), value.clone())).collect();
    let mut labels = share::handed_down(&own, addon);
    labels.retain(|key, value| *key != WATCH_LABEL || value.is_some());
    labels
}

async fn take_over(there: &Known, cluster: &Cluster, ctx: &Context) -> Result<bool, Error> {
    let labels = handed_down(cluster, there.labels());
    let metadata = json!({"resourceVersion": there.resource_version(), "labels": labels});
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let (namespace, name) = (&cluster.namespace, there.name_any());
    let api: Api<ClusterAddon> = Api::namespaced(ctx.clients.own(), namespace);
    match api.patch_metadata(&name, &params, &Patch::Merge(json!({"metadata": metadata}))).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
        other => other.map(|_| true).doing(|| format!("labelling ClusterAddon {namespace}/{name} as its Cluster")),
    }
}

/// The ClusterAddon of a Cluster, if it exists.
async fn there(namespace: &str, name: &str, ctx: &Context) -> Result<Option<Known>, Error> {
    let named = addon_name(name);
    let api: Api<ClusterAddon> = Api::namespaced(ctx.clients.own(), namespace);
    let known = api.get_metadata_opt(&named).await.doing(|| format!("reading ClusterAddon {namespace}/{named}"))?;
    // One that is going goes first.
    Ok(known.filter(|known| known.metadata.deletion_timestamp.is_none()))
}

async fn create((namespace, name): (&str, &str), addon: &ClusterAddon, ctx: &Context) -> Result<bool, Error> {
    let named = addon_name(name);
    let api: Api<ClusterAddon> = Api::namespaced(ctx.clients.own(), namespace);
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    match api.create(&params, addon).await {
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(false),
        other => other.map(|_| true).doing(|| format!("creating ClusterAddon {namespace}/{named}")),
    }
}

/// The object as the Go operator makes it.
fn addon_of(cluster: &Cluster, object: &Value) -> ClusterAddon {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind) = (text("/apiVersion"), text("/kind"));
    let copied = |key: &str| label(object, key).map(|value| (key.to_owned(), value.to_owned()));
    let labels: BTreeMap<String, String> = [WATCH_LABEL, SHARD_CLASS].into_iter().filter_map(copied).collect();
    ClusterAddon {
        metadata: ObjectMeta {
            name: Some(addon_name(&cluster.name)),
            namespace: Some(cluster.namespace.clone()),
            labels: (!labels.is_empty()).then_some(labels),
            finalizers: Some(vec![CLUSTER_ADDON_FINALIZER.to_owned()]),
            owner_references: Some(vec![OwnerReference {
                api_version: api_version.clone(),
                kind: kind.clone(),
                name: cluster.name.clone(),
                uid: cluster.uid.clone(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: ClusterAddonSpec {
            cluster_ref: ObjectReference {
                api_version: Some(api_version),
                kind: Some(kind),
                name: Some(cluster.name.clone()),
                namespace: Some(cluster.namespace.clone()),
                uid: Some(cluster.uid.clone()),
                ..ObjectReference::default()
            },
            ..ClusterAddonSpec::default()
        },
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::addon::cluster;

    #[test]
    fn it_is_called_and_owned_as_by_the_go_operator() {
        let object = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": "c", "namespace": "team", "uid": "u-1", "labels": {WATCH_LABEL: "blue"}},
            "spec": {"topology": {"classRef": {"name": "docker-x-1-34-v1"}}},
        });
        let addon = addon_of(&cluster::read(&object).unwrap(), &object);
        let json = serde_json::to_value(&addon).unwrap();
        assert_eq!(json["metadata"]["name"], "cluster-addon-c");
        assert_eq!(json["metadata"]["labels"][WATCH_LABEL], "blue");
        assert_eq!(json["metadata"]["ownerReferences"][0]["uid"], "u-1");
        assert_eq!(json["metadata"]["ownerReferences"][0].get("controller"), None);
        assert_eq!(
            json["spec"],
            json!({"clusterRef": {
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "c", "namespace": "team", "uid": "u-1",
            }})
        );
    }

    #[test]
    fn the_object_is_handed_over_with_its_cluster() {
        let cluster = |labels: Value| {
            let metadata = json!({"name": "c", "namespace": "team", "labels": labels});
            cluster::read(&json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": metadata}))
        };
        let labels =
            |filter: &str| BTreeMap::from([(WATCH_LABEL.to_owned(), filter.to_owned()), ("team".into(), "a".into())]);
        for (of_cluster, of_addon, changes) in [
            (json!({}), BTreeMap::new(), json!({})),
            (json!({WATCH_LABEL: "blue"}), labels("blue"), json!({})),
            (json!({WATCH_LABEL: "blue"}), labels("green"), json!({WATCH_LABEL: "blue"})),
            (json!({WATCH_LABEL: "blue", SHARD_CLASS: "far"}), labels("blue"), json!({SHARD_CLASS: "far"})),
            // Its user said whose it is.
            (json!({}), labels("green"), json!({})),
            (json!({}), BTreeMap::from([(SHARD_CLASS.to_owned(), "far".to_owned())]), json!({SHARD_CLASS: null})),
        ] {
            let cluster = cluster(of_cluster).unwrap();
            assert_eq!(json!(handed_down(&cluster, &of_addon)), changes, "{cluster:?} {of_addon:?}");
        }
    }
}
