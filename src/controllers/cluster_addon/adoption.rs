//! Takes over what the Go operator applied to a workload cluster, so that its leftovers go with the first upgrade.

use super::super::delivery::row_of;
use super::super::{Doing, Error};
use super::work::Work;
use crate::api::cluster_stack_release::{Resource as Row, ResourceStatus};
use crate::api::{API_VERSION, CSO_OWNED_LABEL};
use crate::core::addon::adoption::{is_due, is_taken_over};
use crate::core::manifest::Manifest;
use crate::core::plan::key_of;
use crate::core::status::AddonFacts;
use crate::io::observe::{self, Lists};

impl Work<'_> {
    /// Puts into the inventory what the Go operator applied, before anything of ours is.
    pub(super) async fn adopt(&self, facts: &mut AddonFacts) -> Result<(), Error> {
        let addon = self.pass.addon;
        if !is_due(&addon.spec, &addon.status.clone().unwrap_or_default()) {
            return Ok(());
        }
        let (client, kinds) = (&self.workload.client, &*self.workload.kinds);
        let doing = || "finding what the Go operator applied to the workload cluster".to_owned();
        // On a management cluster releases carry the same label: there it says nothing of addons.
        if kinds.get(client, API_VERSION, "ClusterStackRelease").await.doing(doing)?.is_some() {
            return Ok(());
        }
        let (key, value) = CSO_OWNED_LABEL;
        let found = observe::labelled_anywhere(client, kinds, &format!("{key}={value}")).await.doing(doing)?;
        let live = observe::live(client, &self.delivery.owner, &found, Lists::OfSeveral).await;
        if let Some(error) = live.unreadable.into_values().next() {
            return Err(error).doing(doing);
        }
        let taken = live.objects.into_values().filter(is_taken_over);
        let taken = taken.filter_map(|object| Some(row_of(&Manifest::from_value(object).ok()?)));
        let known = |row: &Row| facts.resources.iter().any(|known| key_of(known) == key_of(row));
        let new: Vec<Row> =
            taken.filter(|row| !known(row)).map(|row| Row { status: ResourceStatus::Synced, ..row }).collect();
        if new.is_empty() {
            return Ok(());
        }
        tracing::info!(addon = ?addon.metadata.name, objects = new.len(), "took over what the Go operator applied");
        facts.resources.extend(new);
        super::write_intent(addon, self.pass.ctx, facts.clone()).await
    }
}
