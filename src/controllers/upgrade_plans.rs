//! Plans of the upgrades to releases that wait for approval, for `kubectl` to read. They are made in the background, once
//! for each Cluster, release and generation of the Cluster; no pass waits for one.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::release_owner::is_owned;
use super::upgrade::{Goal, Planner};
use super::{Context, Doing, Error};
use crate::api::cluster_stack::AvailableRelease;
use crate::api::condition::{MAX_MESSAGE, Reason, cut};
use crate::api::source::Approval;
use crate::api::{
    API_VERSION, ClusterStack, ClusterUpgradePlan, ClusterUpgradePlanSpec, ClusterUpgradePlanStatus, FIELD_MANAGER,
};
use crate::core::addon::helm_hooks::is_going;
use crate::core::in_use::{self, ClusterUse};
use crate::core::manifest::label_value;
use crate::core::upgrade::summary;
use crate::io::fence::{self, Fence};
use crate::io::{report, stored, usage};

/// How often it is looked whether a plan is wanted. What is known already costs no request but two lists.
const PAUSE: Duration = Duration::from_secs(15);
/// Longest time for a plan.
const PLAN: Duration = Duration::from_mins(2);

/// How long after a plan that failed it is tried again.
const AGAIN: Duration = Duration::from_mins(10);
/// Plans of which it is remembered when they were made.
const REMEMBERED: usize = 4096;

/// When plans were made, by namespace and name.
type Tried = BTreeMap<(String, String), Instant>;

/// An upgrade that is to be planned.
struct Wanted {
    /// Of the Cluster.
    namespace: String,
    cluster: String,
    /// The Cluster in the API.
    object: Value,
    release: AvailableRelease,
}

impl Wanted {
    /// `<cluster>-<release>`, as far as it fits, else its start and a digest.
    fn name(&self) -> String {
        let name = format!("{}-{}", self.cluster, self.release.name.replace('.', "-"));
        if name.len() <= 253 { name } else { label_value(&name).to_lowercase() }
    }

    fn spec(&self) -> ClusterUpgradePlanSpec {
        ClusterUpgradePlanSpec { cluster: self.cluster.clone(), release: self.release.name.clone() }
    }
}

/// Makes plans until `stop`.
pub(super) async fn run(ctx: Arc<Context>, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => return,
        () = ctx.first_read.done() => {}
    }
    // There may be some of the time before.
    let mut had = true;
    let mut tried = Tried::new();
    let mut pause = Duration::ZERO;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(std::mem::replace(&mut pause, PAUSE)) => {}
        }
        if !ctx.seats.members.leads() {
            // There may be some of who leads now.
            had = true;
            continue;
        }
        let fence = Fence::of_leader(&ctx.seats.members);
        let found = tokio::select! {
            () = stop.cancelled() => return,
            found = fence::within(fence, pass(&ctx, had, &mut tried)) => found,
        };
        match found {
            Ok(has) => had = has,
            Err(error) => tracing::warn!(%error, "plans of upgrades"),
        }
    }
}

/// Makes the plans that are missing and deletes those that nobody needs. Whether there are any.
async fn pass(ctx: &Context, had: bool, tried: &mut Tried) -> Result<bool, Error> {
    let waiting = waiting(ctx);
    if waiting.is_empty() && !had {
        return Ok(false);
    }
    let client = ctx.clients.own();
    let kind = ctx.kinds.get(&client, API_VERSION, "ClusterUpgradePlan").await;
    // An installation of before has no such kind.
    if kind.doing(|| "asking for kind ClusterUpgradePlan".to_owned())?.is_none() {
        return Ok(false);
    }
    let namespace = ctx.settings.namespace.as_deref();
    let listed = stored::list::<ClusterUpgradePlan>(&client, namespace, &ListParams::default()).await;
    let (listed, left_out) = listed.doing(|| "listing ClusterUpgradePlans".to_owned())?;
    for problem in left_out {
        tracing::warn!("{problem}; delete it");
    }
    let wanted = if waiting.is_empty() { Vec::new() } else { wanted(ctx, &waiting).await? };
    for one in &wanted {
        let is_it = |plan: &&ClusterUpgradePlan| {
            plan.namespace().as_deref() == Some(&one.namespace) && plan.name_any() == one.name()
        };
        let known = listed.iter().find(is_it);
        // Whatever becomes of one, all others go on: its namespace may be going.
        match AssertUnwindSafe(ensure(ctx, one, known, tried)).catch_unwind().await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, plan = one.name(), namespace = one.namespace, "a plan of an upgrade");
            }
            Err(_panic) => tracing::error!(plan = one.name(), namespace = one.namespace, "{}", Error::Panicked),
        }
    }
    let names: BTreeSet<(String, String)> = wanted.iter().map(|one| (one.namespace.clone(), one.name())).collect();
    let mut is_left = false;
    for plan in listed.iter().filter(|plan| plan.metadata.deletion_timestamp.is_none()) {
        let (namespace, name) = (plan.namespace().unwrap_or_default(), plan.name_any());
        if ctx.is_ours(plan) && !names.contains(&(namespace.clone(), name.clone())) {
            let plans: Api<ClusterUpgradePlan> = Api::namespaced(client.clone(), &namespace);
            match plans.delete(&name, &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => {
                    tracing::warn!(%error, plan = name, namespace, "a plan of an upgrade that nobody needs");
                    is_left = true;
                }
                Ok(_) => {}
            }
        }
    }
    Ok(is_left || !wanted.is_empty())
}

/// ClusterStacks of ours with the newest release that waits for approval.
fn waiting(ctx: &Context) -> Vec<(Arc<ClusterStack>, AvailableRelease)> {
    let is_manual = |stack: &Arc<ClusterStack>| {
        ctx.is_ours(&**stack) && stack.spec.approval == Some(Approval::Manual) && !stack.spec.suspend
    };
    let newest = |stack: Arc<ClusterStack>| {
        let available = &stack.status.as_ref()?.available;
        let release = available.iter().find(|release| release.reason == Reason::WaitsForApproval.as_str())?.clone();
        Some((stack, release))
    };
    ctx.stacks.state().into_iter().filter(is_manual).filter_map(newest).collect()
}

/// The Clusters that have a release of one of the ClusterStacks.
async fn wanted(ctx: &Context, waiting: &[(Arc<ClusterStack>, AvailableRelease)]) -> Result<Vec<Wanted>, Error> {
    let listed = usage::cluster_objects(&ctx.clients.own(), &ctx.kinds).await;
    let listed = listed.doing(|| "listing Clusters".to_owned())?;
    // In the namespace of one that goes nothing may be made any more.
    let stay = listed.into_iter().filter(|object| !is_going(object));
    let clusters: Vec<(ClusterUse, Value)> =
        stay.filter_map(|object| Some((in_use::cluster(&object)?, object))).collect();
    let releases = ctx.stack_releases.state();
    let mut wanted = Vec::new();
    for (stack, available) in waiting {
        let own = releases.iter().filter(|release| is_owned(release, stack));
        let classes: BTreeSet<(String, String)> = own
            .flat_map(|release| {
                let rows = release.status.as_ref().map(|status| status.resources.as_slice()).unwrap_or_default();
                in_use::footprint(&release.name_any(), &release.namespace().unwrap_or_default(), rows).classes
            })
            .collect();
        let uses = |class: &(String, String)| classes.contains(class);
        for (cluster, object) in clusters.iter().filter(|(cluster, _)| cluster.class.as_ref().is_some_and(uses)) {
            if ctx.settings.namespace.as_ref().is_some_and(|only| *only != cluster.namespace) {
                continue;
            }
            wanted.push(Wanted {
                namespace: cluster.namespace.clone(),
                cluster: cluster.name.clone(),
                object: object.clone(),
                release: available.clone(),
            });
        }
    }
    Ok(wanted)
}

/// Plans one upgrade, unless it is planned already from the same.
async fn ensure(
    ctx: &Context,
    wanted: &Wanted,
    known: Option<&ClusterUpgradePlan>,
    tried: &mut Tried,
) -> Result<(), Error> {
    let generation = wanted.object.pointer("/metadata/generation").and_then(Value::as_i64);
    let of = (generation, wanted.release.revision.as_str());
    let place = (wanted.namespace.clone(), wanted.name());
    let computed = |plan: &ClusterUpgradePlan| {
        let status = plan.status.as_ref();
        let is_of = status.is_some_and(|status| (status.cluster_generation, status.revision.as_str()) == of);
        let failed = status.is_some_and(|status| !status.message.is_empty());
        // Somebody may have edited it.
        let is_it = plan.spec == wanted.spec();
        is_it && is_of && (!failed || tried.get(&place).is_some_and(|at| at.elapsed() < AGAIN))
    };
    if known.is_some_and(computed) {
        return Ok(());
    }
    if tried.len() >= REMEMBERED {
        tried.clear();
    }
    tried.insert(place, Instant::now());
    let planner = Planner {
        client: ctx.clients.own(),
        operator: Some(ctx),
        kinds: &ctx.kinds,
        releases: &ctx.releases,
        workloads: &ctx.workloads,
        cancel: ctx.cancel.clone(),
    };
    let goal = Goal::Named(wanted.release.name.clone());
    let work = Box::pin(planner.plan(&wanted.namespace, &wanted.cluster, &goal, None));
    let mut status = match tokio::time::timeout(PLAN, work).await {
        Ok(Ok(plan)) => summary::status(&plan),
        Ok(Err(error)) => failed(&error.to_string()),
        Err(_) => failed(&format!("it was not found out within {} s", PLAN.as_secs())),
    };
    status.cluster_generation = generation;
    status.revision = cut(&wanted.release.revision, 128);
    let plan = write(ctx, wanted).await?;
    let written = report::status(&ctx.clients.own(), &plan, plan.status.as_ref(), &status).await;
    written.map(drop).doing(|| format!("writing the status of ClusterUpgradePlan {}", wanted.name()))
}

fn failed(message: &str) -> ClusterUpgradePlanStatus {
    ClusterUpgradePlanStatus { message: cut(message, MAX_MESSAGE), ..Default::default() }
}

/// The object, owned by its Cluster.
async fn write(ctx: &Context, wanted: &Wanted) -> Result<ClusterUpgradePlan, Error> {
    let name = wanted.name();
    let spec = wanted.spec();
    let text = |pointer: &str| wanted.object.pointer(pointer).cloned();
    let owner = json!({
        "apiVersion": text("/apiVersion"), "kind": "Cluster",
        "name": text("/metadata/name"), "uid": text("/metadata/uid"),
    });
    let mut metadata = json!({"name": name, "ownerReferences": [owner]});
    if let Some(filter) = &ctx.settings.watch_filter {
        metadata["labels"] = json!({crate::api::WATCH_LABEL: filter});
    }
    let object = json!({"apiVersion": API_VERSION, "kind": "ClusterUpgradePlan", "metadata": metadata, "spec": spec});
    let api: Api<ClusterUpgradePlan> = Api::namespaced(ctx.clients.own(), &wanted.namespace);
    let params = PatchParams::apply(FIELD_MANAGER).force();
    api.patch(&name, &params, &Patch::Apply(&object)).await.doing(|| format!("writing ClusterUpgradePlan {name}"))
}
