//! The end of a Cluster: what the stages of BeforeClusterDelete delete before its machines go.
//!
//! They run because Cluster API called the hook, which waits for them for a while. Nothing of it holds a deletion by
//! itself.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use super::super::finalizer;
use super::super::{Error, cluster_stack_release};
use super::deliver::Delivered;
use super::work::{Turn, Work};
use super::{Pass, is_of_its_cluster, release_of};
use crate::api::CLUSTER_ADDON_FINALIZER;
use crate::api::cluster_addon::StageOutcome;
use crate::api::condition::Reason;
use crate::core::addon::essential;
use crate::core::addon::hooks::{self, Seen};
use crate::core::addon::stages::{self, current, enter, leave, left_behind, start, title, with_deletions_of};
use crate::core::addon_config::{AddonConfig, Hook};
use crate::core::manifest::ObjectKey;
use crate::core::plan::{self, key_of};
use crate::core::retry::ErrorClass;
use crate::core::status::{AddonFacts, StepState, Trouble};
use crate::io::release::FetchedRelease;

impl Pass<'_> {
    /// Whether Cluster API asked for what comes before the deletion.
    pub(super) fn is_before_deletion(&self) -> bool {
        let is_asked = self.addon.spec.hook == Hook::BeforeClusterDelete.as_str();
        self.cluster.deleting && is_asked && !self.cluster.paused && !self.addon.spec.suspend
    }

    /// Whether the object, which is being deleted, stays for the stages of BeforeClusterDelete. Cluster API asks for them
    /// where the hooks are served alone.
    pub(super) async fn stays(&self) -> bool {
        let Some(served) = &self.ctx.settings.hooks else { return false };
        let is_held =
            finalizer::is_on(self.addon, CLUSTER_ADDON_FINALIZER) && is_of_its_cluster(self.addon, &self.cluster.name);
        let release = self.cluster.class.as_ref().and_then(|class| release_of(class, self.ctx));
        let seen = Seen {
            cluster: Some(self.cluster.clone()),
            release: release.map(|release| release.name_any()),
            addon: Some(self.addon.clone()),
        };
        let stays =
            |config: Option<&AddonConfig>| hooks::stays(&seen, config, served.deletion_deadline, Timestamp::now());
        // Nothing is fetched for one that goes in any case.
        if !is_held || !stays(None) {
            return false;
        }
        let ending = self.ending().await.ok();
        stays(ending.as_ref().map(|ending| &ending.config))
    }

    /// The stages of the release that the Cluster names, and those of releases that an upgrade came from which was not done: of
    /// their addons some may be there yet.
    async fn ending(&self) -> Result<Ending, Trouble> {
        let mut releases = vec![self.release().await?];
        let namespace = self.cluster.class.as_ref().map(|class| class.0.as_str()).unwrap_or_default();
        let name = releases[0].bundle.name.object_name();
        let status = self.addon.status.clone().unwrap_or_default();
        for name in left_behind(&name, &self.addon.spec, &status) {
            // One that is gone said what it said.
            let place = ObjectRef::new(&name).within(namespace);
            let Some(release) = self.ctx.stack_releases.get(&place) else { continue };
            match cluster_stack_release::fetched(&release, self.ctx).await {
                Ok(release) => releases.push(release),
                Err(trouble) if trouble.class == ErrorClass::Transient => return Err(trouble),
                Err(trouble) => {
                    let why = trouble.message;
                    tracing::warn!(release = name, why, "its stages before the deletion of a Cluster are not known");
                }
            }
        }
        let configs: Vec<AddonConfig> =
            releases.iter().map(|release| stages::of_charts(release.bundle.addon.as_ref())).collect();
        let config = with_deletions_of(&configs[0], &configs[1..]);
        Ok(Ending { releases, config })
    }

    /// Runs the stages of BeforeClusterDelete as far as they come.
    pub(super) async fn before_deletion(&self, facts: &mut AddonFacts) -> Result<(), Error> {
        let ending = match self.ending().await {
            Ok(ending) => ending,
            Err(trouble) => {
                facts.downloaded = StepState::Failed(trouble);
                return Ok(());
            }
        };
        facts.downloaded = StepState::Done(String::new());
        let Ending { releases, config } = &ending;
        let previous = self.addon.status.clone().unwrap_or_default();
        facts.stages = stages::before_deletion(&previous, config, Timestamp::now());
        self.skip(facts).await;
        let Some(turn) = current(&facts.stages) else { return Ok(()) };
        let workload = match self.workload(false).await {
            Ok(Some(workload)) => workload,
            Ok(None) => return Ok(()),
            Err(trouble) => {
                let phase = facts.stages[turn].phase;
                enter(&mut facts.stages[turn], phase, &trouble.message, Timestamp::now());
                while self.leaves(config, &trouble.message, facts).await {}
                facts.reachable = StepState::Failed(trouble);
                return Ok(());
            }
        };
        facts.reachable = StepState::Done(String::new());
        let delivery = self.delivery(&workload);
        Work::new(self, &releases[0], config, &workload, delivery).end(releases, facts).await
    }
}

/// What is done before the deletion of a Cluster, and the releases that say so: that of the Cluster first.
struct Ending {
    releases: Vec<FetchedRelease>,
    config: AddonConfig,
}

impl<'a> Work<'a> {
    /// Deletes what the stages name, one after the other. The inventory tells what is of a stage; its chart is rendered for
    /// the hooks around it alone.
    async fn end(&mut self, releases: &'a [FetchedRelease], facts: &mut AddonFacts) -> Result<(), Error> {
        let nothing = (&[][..], &BTreeMap::new());
        let live = self.delivery.observe(nothing, (&facts.resources, &[]), None).await?;
        let keys: Vec<ObjectKey> = facts.resources.iter().map(key_of).collect();
        let prune = plan::prune(&self.delivery.owner, (&live.objects, &live.unread()), &facts.resources, &keys);
        let delivered = Delivered::nothing(prune, live);
        let gone =
            |key: &ObjectKey| !delivered.live.objects.contains_key(key) && !delivered.live.unreadable.contains_key(key);
        facts.resources.retain(|row| !gone(&key_of(row)));
        while let Some(turn) = current(&facts.stages) {
            self.pass.skip(facts).await;
            if current(&facts.stages) != Some(turn) {
                continue;
            }
            start(&mut facts.stages[turn], Timestamp::now());
            let has_it = |release: &&FetchedRelease| {
                let config = stages::of_charts(release.bundle.addon.as_ref());
                config.of(Hook::BeforeClusterDelete).iter().any(|stage| stage.name == facts.stages[turn].name)
            };
            if let Some(release) = releases.iter().find(has_it) {
                self.release = release;
            }
            if self.refuse(turn, &delivered, facts).await {
                continue;
            }
            if self.advance(turn, &delivered, facts).await? == Turn::Waits {
                let why = facts.stages[turn].message.clone();
                if !self.pass.leaves(self.config, &why, facts).await {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Leaves a stage that would delete what the cluster needs to its end.
    async fn refuse(&self, turn: usize, delivered: &Delivered, facts: &mut AddonFacts) -> bool {
        let name = &facts.stages[turn].name;
        let of_stage: BTreeSet<ObjectKey> =
            facts.resources.iter().filter(|row| row.stage == *name).map(key_of).collect();
        let mut needed = delivered.live.objects.iter().filter(|(key, _)| of_stage.contains(key));
        let found = needed.find_map(|(key, object)| Some((key, essential::of(object)?)));
        let Some((key, need)) = found else { return false };
        let why = format!("nothing is deleted: {key} is {}, which the cluster needs to its end", need.as_str());
        let note = format!("{}: {why}", title(&facts.stages, turn));
        leave(&mut facts.stages[turn], StageOutcome::Refused, &why, Timestamp::now());
        self.pass.tell(Reason::StageRefused, &note).await;
        true
    }
}
