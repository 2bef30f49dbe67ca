//! `OperatorShard`: says what this replica has of the work. The leader removes those whose replica is gone.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Api, Resource, ResourceExt};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Context, Doing, Error};
use crate::api::operator_shard::{ShardLoad, ShardShare};
use crate::api::{API_VERSION, FIELD_MANAGER, MEMBER_LABEL, OperatorShard, OperatorShardSpec, OperatorShardStatus};
use crate::core::share::view::Share;
use crate::io::fence::{self, Fence};
use crate::io::stored;

/// How often it is looked whether there is something to say.
const LOOK: Duration = Duration::from_secs(2);
/// How often counts alone are written at most.
const COUNTS: Duration = Duration::from_secs(30);
/// How often what is left of others is looked for.
const COLLECT: Duration = Duration::from_secs(30);
/// The same where nothing was left: whoever goes changes the members, and that is seen at once.
const COLLECTED: Duration = Duration::from_mins(10);

/// What was written last, for which Lease and when.
struct Said {
    name: String,
    status: OperatorShardStatus,
    at: Instant,
}

/// Says it until `stop`; then it is removed.
pub(super) async fn run(ctx: Arc<Context>, identity: String, stop: CancellationToken) {
    if ctx.seats.members.is_alone() {
        return;
    }
    let mut said: Option<Said> = None;
    let mut collected: Option<(Instant, Vec<String>, Duration)> = None;
    loop {
        if let Err(error) = turn(&ctx, &identity, &mut said).await {
            tracing::debug!(%error, "what this replica has is not said; trying again");
        }
        let members: Vec<String> = ctx.seats.members.list().into_iter().map(|member| member.id).collect();
        let is_due = collected.as_ref().is_none_or(|(at, those, pause)| at.elapsed() >= *pause || *those != members);
        if ctx.seats.members.leads() && is_due {
            let fence = Fence::of_leader(&ctx.seats.members);
            let is_over = fence::within(fence, collect(&ctx, &members)).await.unwrap_or_else(|error| {
                tracing::debug!(%error, "what is left of other replicas stays for now");
                false
            });
            collected = Some((Instant::now(), members, if is_over { COLLECTED } else { COLLECT }));
        }
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
    if let Some(Said { name, .. }) = said {
        // Where that fails, the leader does it.
        let _ = Api::<OperatorShard>::all(ctx.clients.own()).delete(&name, &DeleteParams::default()).await;
    }
}

/// Writes what is new.
async fn turn(ctx: &Context, identity: &str, said: &mut Option<Said>) -> Result<(), Error> {
    let share = ctx.seats.members.share();
    let client = ctx.clients.own();
    let api: Api<OperatorShard> = Api::all(client.clone());
    if said.as_ref().is_some_and(|said| said.name != share.me())
        && let Some(Said { name, .. }) = said.take()
    {
        // That of a Lease that was lost; the leader removes it otherwise.
        let _ = api.delete(&name, &DeleteParams::default()).await;
    }
    if share.me().is_empty() {
        return Ok(());
    }
    let kind = ctx.kinds.get(&client, API_VERSION, "OperatorShard").await;
    // An installation of before has no such kind.
    if kind.doing(|| "asking for kind OperatorShard".to_owned())?.is_none() {
        return Ok(());
    }
    let status = status(ctx, &share, said.as_ref());
    let counts = |status: &OperatorShardStatus| {
        let (share, load) = (ShardShare::default(), ShardLoad::default());
        OperatorShardStatus { share, load, ..status.clone() }
    };
    let is_due = said.as_ref().is_none_or(|said| {
        counts(&said.status) != counts(&status) || said.status != status && said.at.elapsed() >= COUNTS
    });
    if !is_due {
        return Ok(());
    }
    let name = share.me().to_owned();
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let head = json!({"apiVersion": API_VERSION, "kind": OperatorShard::kind(&())});
    if said.is_none() {
        let lease_namespace = ctx.seats.members.namespace().to_owned();
        let mut object = head.clone();
        object["metadata"] = json!({"name": name});
        object["spec"] = json!(OperatorShardSpec { lease_namespace, identity: identity.to_owned() });
        let made = api.patch(&name, &params, &Patch::Apply(object)).await;
        made.doing(|| format!("writing OperatorShard {name}"))?;
    }
    let mut object = head;
    object["metadata"] = json!({"name": name});
    object["status"] = json!(status);
    let written = api.patch_status(&name, &params, &Patch::Apply(object)).await;
    *said = match written {
        Ok(_) => Some(Said { name, status, at: Instant::now() }),
        Err(error) => {
            // Somebody may have deleted it.
            *said = None;
            return Err(error).doing(|| format!("writing the status of OperatorShard {name}"));
        }
    };
    Ok(())
}

fn status(ctx: &Context, share: &Share, said: Option<&Said>) -> OperatorShardStatus {
    let members: Vec<String> = share.members().map(|member| member.id.clone()).collect();
    let before = said.filter(|said| said.status.members == members).and_then(|said| said.status.last_change.clone());
    let count = |kind: &str| u32::try_from(ctx.handover.count(kind, share)).unwrap_or(u32::MAX);
    let gauge = |value: i64| u32::try_from(value).unwrap_or_default();
    OperatorShardStatus {
        ready: share.is_settled(),
        leader: share.leads(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        shard_classes: ctx.live.borrow().shard_classes.clone(),
        settings: ctx.said.borrow().clone(),
        last_change: before.or_else(|| Some(Time(crate::api::condition::whole_seconds(Timestamp::now())))),
        members,
        share: ShardShare {
            cluster_stacks: count("ClusterStack"),
            releases: count("ClusterStackRelease"),
            sources: count("ClusterStackSource"),
            clusters: count("ClusterAddon"),
            node_images: count("ProviderNodeImageRelease"),
        },
        load: ShardLoad {
            builds_running: gauge(ctx.metrics.images.running.get()),
            builds_queued: gauge(ctx.metrics.images.queued.get()),
        },
    }
}

/// Removes those of our Leases' namespace whose Lease is gone, and says of those that are no members any more that nobody
/// works by them: their last word may be another. Whether nothing is left but what members have.
async fn collect(ctx: &Context, members: &[String]) -> Result<bool, Error> {
    let client = ctx.clients.own();
    let namespace = ctx.seats.members.namespace();
    let api: Api<OperatorShard> = Api::all(client.clone());
    // First those that there are: one that comes meanwhile has its Lease already.
    let listed = stored::list_cluster_wide::<OperatorShard>(&client, &ListParams::default()).await;
    let (shards, _) = match listed {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(true),
        listed => listed.doing(|| "listing OperatorShards".to_owned())?,
    };
    let leases: Api<Lease> = Api::namespaced(client, namespace);
    let leases = leases.list_metadata(&ListParams::default().labels(MEMBER_LABEL)).await;
    let leases = leases.doing(|| format!("listing Leases of {namespace}"))?;
    let live: HashSet<String> = leases.items.iter().map(ResourceExt::name_any).collect();
    let mut is_over = true;
    for shard in shards {
        let name = shard.name_any();
        if shard.spec.lease_namespace != namespace {
            continue;
        }
        // One whose Lease somebody deleted may not know it yet: the trace stays until it is over.
        if live.contains(&name) || members.contains(&name) {
            is_over &= members.contains(&name);
            let is_at_work = shard.status.as_ref().is_some_and(|status| status.ready || status.leader);
            if is_at_work && !members.contains(&name) {
                let status = json!({"status": {"ready": false, "leader": false}});
                match api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    written => drop(written.doing(|| format!("writing the status of OperatorShard {name}"))?),
                }
            }
            continue;
        }
        let preconditions = Some(Preconditions { uid: shard.uid(), resource_version: None });
        match api.delete(&name, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            deleted => drop(deleted.doing(|| format!("deleting OperatorShard {name}"))?),
        }
    }
    Ok(is_over)
}
