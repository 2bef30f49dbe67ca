//! Reads who uses releases, afresh: Clusters, what Cluster API cloned from templates, ClusterAddons.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::try_join_all;
use futures::stream::{self, StreamExt, TryStreamExt};
use kube::Client;
use kube::api::{Api, ListParams};
use serde_json::Value;

use crate::api::{CLUSTER_NAME_LABEL, GROUP};
use crate::core::in_use::{self, AddonUse, Cloned, ClusterUse, Footprint, Place, Usage, World};
use crate::io::apply::refusal;
use crate::io::kinds::{Kind, Kinds};
use crate::io::observe::{api, plain, segment};

/// Group of Cluster API's core objects.
pub const CLUSTER_API: &str = "cluster.x-k8s.io";

/// Items of one page of a list.
const PAGE: u32 = 500;
/// Single objects that are asked for at once.
const AT_ONCE: usize = 8;

/// Everything that can use these releases. `templates` are the kinds (group, kind) of templates that they applied: clones of them
/// are looked for. A kind that is not served has no objects; any other trouble makes it all unknown.
pub async fn read(
    client: &Client,
    kinds: &Kinds,
    releases: &[Footprint],
    templates: &BTreeSet<(String, String)>,
) -> Usage {
    match world(client, kinds, releases, templates).await {
        Ok(world) => Usage::Known(world),
        Err(error) => Usage::Unknown(unknown(&error)),
    }
}

fn unknown(error: &kube::Error) -> String {
    format!("Clusters can't be listed: {}", refusal(error).message)
}

async fn world(
    client: &Client,
    kinds: &Kinds,
    releases: &[Footprint],
    templates: &BTreeSet<(String, String)>,
) -> Result<World, kube::Error> {
    let mut world = naming(client, kinds).await?;
    if !(world.clusters.is_empty() || templates.is_empty()) {
        add_clones(&mut world, client, kinds, releases, templates).await?;
        world.classes = classes(client, kinds, in_use::classes_of_others(releases, &world)).await?;
    }
    Ok(world)
}

/// Which of these releases somebody uses, by their names: read afresh, and only what decides. Most are named by a Cluster; what Cluster
/// API cloned, and which templates other ClusterClasses refer to, is read for those that are not.
///
/// # Errors
/// Why it is not known.
pub async fn used(
    client: &Client,
    kinds: &Kinds,
    releases: Vec<Footprint>,
    templates: &BTreeSet<(String, String)>,
) -> Result<BTreeSet<String>, String> {
    let all: BTreeSet<String> = releases.iter().map(|release| release.release.clone()).collect();
    let unused = match unused(client, kinds, releases, templates).await {
        Ok(unused) => unused,
        Err(error) => return Err(unknown(&error)),
    };
    let unused: BTreeSet<String> = unused.into_iter().map(|release| release.release).collect();
    Ok(&all - &unused)
}

async fn unused(
    client: &Client,
    kinds: &Kinds,
    mut open: Vec<Footprint>,
    templates: &BTreeSet<(String, String)>,
) -> Result<Vec<Footprint>, kube::Error> {
    let mut world = naming(client, kinds).await?;
    open.retain(|release| in_use::users(release, &world).is_empty());
    let has = |base: &str| open.iter().any(|release| release.templates.iter().any(|(kind, _)| kind == base));
    let of_open = |(_, kind): &&(String, String)| kind.strip_suffix("Template").is_some_and(has);
    let templates: BTreeSet<(String, String)> = templates.iter().filter(of_open).cloned().collect();
    if world.clusters.is_empty() || templates.is_empty() {
        return Ok(open);
    }
    add_clones(&mut world, client, kinds, &open, &templates).await?;
    open.retain(|release| in_use::users(release, &world).is_empty());
    world.classes = classes(client, kinds, in_use::classes_of_others(&open, &world)).await?;
    open.retain(|release| in_use::users(release, &world).is_empty());
    Ok(open)
}

/// Who names releases and their ClusterClasses.
async fn naming(client: &Client, kinds: &Kinds) -> Result<World, kube::Error> {
    let clusters = clusters(client, kinds).await?;
    // Later: one that notes a release that its Cluster is about to leave is seen by the one or the other.
    let addons = addons(client, kinds).await?;
    Ok(World { clusters, addons, ..World::default() })
}

/// Adds what Cluster API cloned from templates of these kinds, and where there are others of the same name.
async fn add_clones(
    world: &mut World,
    client: &Client,
    kinds: &Kinds,
    releases: &[Footprint],
    templates: &BTreeSet<(String, String)>,
) -> Result<(), kube::Error> {
    let clones = templates.iter().filter(|(_, kind)| kind.ends_with("Template")).map(|(group, kind)| async move {
        let base = kind.trim_end_matches("Template");
        let (of_template, of_machine) =
            tokio::try_join!(cloned(client, kinds, group, kind, base), cloned(client, kinds, group, base, base))?;
        Ok::<_, kube::Error>((of_template, of_machine))
    });
    for (of_template, of_machine) in try_join_all(clones).await? {
        world.templates.extend(of_template);
        world.machines.extend(of_machine);
    }
    if in_use::is_behind(releases, world) {
        // A Cluster is made before what is cloned for it.
        world.clusters = clusters(client, kinds).await?;
    }
    world.elsewhere = there(client, kinds, templates, in_use::doubtful(releases, world)).await?;
    Ok(())
}

/// What these ClusterClasses refer to. One that is not there refers to nothing.
async fn classes(
    client: &Client,
    kinds: &Kinds,
    asked: BTreeSet<(String, String)>,
) -> Result<BTreeMap<(String, String), BTreeSet<(String, String)>>, kube::Error> {
    if asked.is_empty() {
        return Ok(BTreeMap::new());
    }
    let Some(kind) = kinds.certain(client, CLUSTER_API, "ClusterClass").await? else { return Ok(BTreeMap::new()) };
    let kind = &kind;
    let gets = asked.into_iter().map(|(namespace, name)| async move {
        let class = api(client, kind, &namespace).get_opt(&segment(&name)).await?;
        let templates = class.map(|class| in_use::templates_of_class(&plain(&class, kind))).unwrap_or_default();
        Ok(((namespace, name), templates))
    });
    stream::iter(gets).buffer_unordered(AT_ONCE).try_collect().await
}

/// Which of these templates are there.
async fn there(
    client: &Client,
    kinds: &Kinds,
    templates: &BTreeSet<(String, String)>,
    asked: BTreeSet<Place>,
) -> Result<BTreeSet<Place>, kube::Error> {
    let gets = asked.into_iter().map(|place| async move {
        let of_kind = |(_, kind): &&(String, String)| kind.strip_suffix("Template") == Some(place.1.as_str());
        for (group, kind) in templates.iter().filter(of_kind) {
            let Some(kind) = kinds.certain(client, group, kind).await? else { continue };
            if api(client, &kind, &place.0).get_metadata_opt(&segment(&place.2)).await?.is_some() {
                return Ok(Some(place));
            }
        }
        Ok::<_, kube::Error>(None)
    });
    let found: Vec<Option<Place>> = stream::iter(gets).buffer_unordered(AT_ONCE).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

/// All Clusters of all namespaces, in the version that the API server prefers.
pub async fn clusters(client: &Client, kinds: &Kinds) -> Result<Vec<ClusterUse>, kube::Error> {
    clusters_in(client, kinds, "").await
}

/// Those of one namespace; of all, if it is empty.
///
/// # Errors
/// What the API server said.
pub async fn clusters_in(client: &Client, kinds: &Kinds, namespace: &str) -> Result<Vec<ClusterUse>, kube::Error> {
    let Some(kind) = kinds.certain(client, CLUSTER_API, "Cluster").await? else { return Ok(Vec::new()) };
    Ok(list_in(client, &kind, namespace).await?.iter().filter_map(in_use::cluster).collect())
}

/// The same, whole.
pub async fn cluster_objects(client: &Client, kinds: &Kinds) -> Result<Vec<Value>, kube::Error> {
    let Some(kind) = kinds.certain(client, CLUSTER_API, "Cluster").await? else { return Ok(Vec::new()) };
    list(client, &kind).await
}

async fn addons(client: &Client, kinds: &Kinds) -> Result<Vec<AddonUse>, kube::Error> {
    let Some(kind) = kinds.certain(client, GROUP, "ClusterAddon").await? else { return Ok(Vec::new()) };
    let addon = |object: &Value| {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(ToOwned::to_owned);
        Some(AddonUse {
            namespace: text("/metadata/namespace")?,
            name: text("/metadata/name")?,
            cluster: text("/spec/clusterRef/name").unwrap_or_default(),
            cluster_stack: text("/spec/clusterStack")?,
        })
    };
    Ok(list(client, &kind).await?.iter().filter_map(addon).collect())
}

async fn list(client: &Client, kind: &Kind) -> Result<Vec<Value>, kube::Error> {
    list_in(client, kind, "").await
}

async fn list_in(client: &Client, kind: &Kind, namespace: &str) -> Result<Vec<Value>, kube::Error> {
    let api = api(client, kind, namespace);
    let mut all = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = api.list(&params).await?;
        all.extend(page.items.iter().map(|object| plain(object, kind)));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}

/// Objects of a kind that belong to a Cluster and were cloned, by metadata alone.
async fn cloned(
    client: &Client,
    kinds: &Kinds,
    group: &str,
    kind: &str,
    base: &str,
) -> Result<Vec<Cloned>, kube::Error> {
    let Some(kind) = kinds.certain(client, group, kind).await? else { return Ok(Vec::new()) };
    let api: Api<kube::api::DynamicObject> = api(client, &kind, "");
    let mut all = Vec::new();
    let mut params = ListParams::default().labels(CLUSTER_NAME_LABEL).limit(PAGE);
    loop {
        let page = api.list_metadata(&params).await?;
        let objects = page.items.iter().filter_map(|item| serde_json::to_value(item).ok());
        all.extend(objects.filter_map(|object| in_use::cloned(base, &object)));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}

#[cfg(test)]
mod tests;
