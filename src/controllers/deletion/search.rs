//! Looks for what releases applied by the labels of objects, where nothing else tells: one search of all kinds for each, but one
//! for all of those that this process made itself and that never came to be applied.

use std::collections::BTreeMap;

use kube::ResourceExt;
use tokio::sync::Mutex;

use super::super::rights::Rights;
use super::super::{Context, Doing, Error};
use super::{lacks_inventory, owner_of};
use crate::api::ClusterStackRelease;
use crate::core::ownership::Owner;
use crate::io::observe::{self, Target};

/// How many releases are looked for at once, at most: their names are part of an address.
const AT_ONCE: usize = 50;

/// What was found for releases that had not asked yet, by UID.
#[derive(Default)]
pub struct Searches(Mutex<BTreeMap<String, Vec<Target>>>);

/// What the labels of objects say that the release applied.
pub(super) async fn labelled(
    release: &ClusterStackRelease,
    rights: &Rights,
    ctx: &Context,
) -> Result<Vec<Target>, Error> {
    let owner = owner_of(release);
    let doing = || format!("finding the objects of ClusterStackRelease {}", owner.name);
    let client = ctx.clients.own();
    if rights.account.is_none() && is_new(release, ctx) {
        // What others wait for, too: it is found by the time that they have their turn.
        let mut found = ctx.searches.0.lock().await;
        // What was found counts only where nothing can have been applied since.
        if let Some(targets) = found.remove(&uid(release)).filter(|_| is_new(release, ctx)) {
            return Ok(targets);
        }
        let all = beside(release, ctx);
        let owners: Vec<Owner> = all.iter().map(|(_, owner)| owner.clone()).collect();
        let targets = observe::rebuild_all(&client, &ctx.kinds, &owners).await.doing(doing)?;
        *found = all.into_iter().map(|(uid, _)| uid).zip(targets).collect();
        return Ok(found.remove(&uid(release)).unwrap_or_default());
    }
    observe::rebuild_as(&client, (&rights.client, rights.account.as_deref()), &ctx.kinds, &owner).await.doing(doing)
}

/// The release, and those that go, too, and will ask the same.
fn beside(release: &ClusterStackRelease, ctx: &Context) -> Vec<(String, Owner)> {
    let this = uid(release);
    let mut all = vec![(this.clone(), owner_of(release))];
    let others = ctx.stack_releases.state().into_iter().filter(|other| {
        other.metadata.deletion_timestamp.is_some()
            && uid(other) != this
            && lacks_inventory(other)
            && is_new(other, ctx)
    });
    all.extend(others.take(AT_ONCE - 1).map(|other| (uid(&other), owner_of(&other))));
    all
}

/// Whether this process made the release, and never came to sending anything for it.
fn is_new(release: &ClusterStackRelease, ctx: &Context) -> bool {
    ctx.memory.is_new(&uid(release))
}

fn uid(release: &ClusterStackRelease) -> String {
    release.uid().unwrap_or_default()
}
