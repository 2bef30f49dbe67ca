//! Keeps, while an upgrade is under way, what stages brought before whose turn has not come: an upgrade may wait for hours.
//!
//! Guarantee: nothing is sent but what was sent before. The chart of the release that brought it is rendered, and counts where that
//! gives what was applied; where it does not, as with other values, its objects stay as they are, and what is missing is told.

use std::collections::BTreeSet;

use kube::runtime::reflector::ObjectRef;

use super::super::cluster_stack_release;
use super::deliver::Rendered;
use super::work::Work;
use crate::api::cluster_addon::ChartStatus;
use crate::core::addon::stages::{self, left_behind};
use crate::core::addon_config::{Action, Stage};
use crate::core::status::AddonFacts;
use crate::io::release::{FetchedRelease, addon_key};

/// A chart that waits for its stage, as it was brought.
pub(super) struct Kept {
    /// Its stage, as the release that brought it has it.
    pub(super) stage: Stage,
    /// What it brought.
    pub(super) rendered: Rendered,
}

impl Work<'_> {
    /// Those of the charts that can be rendered as they were brought.
    pub(super) async fn kept(&mut self, charts: &[ChartStatus], facts: &AddonFacts) -> Vec<Kept> {
        let mut kept = Vec::new();
        for chart in charts {
            for name in self.brought_by(chart, facts) {
                let Some(release) = self.earlier(&name).await else { continue };
                let config = stages::of_charts(release.bundle.addon.as_ref());
                let applies = |stage: &&Stage| stage.name == chart.name && stage.action == Action::Apply;
                let Some(stage) = config.stages.values().flatten().find(applies) else { continue };
                // Nothing is made anew while it waits.
                let stage = Stage { replace: false, ..stage.clone() };
                match self.render_of(&release, &config, &chart.name).await {
                    Ok(rendered) if rendered.chart(&chart.name).rendering == chart.digest => {
                        kept.push(Kept { stage, rendered });
                        break;
                    }
                    Ok(_) => {}
                    Err(trouble) => {
                        tracing::debug!(release = name, why = trouble.message, "what it brought is not known any more");
                    }
                }
            }
        }
        kept
    }

    /// The releases that may have brought a chart, the likeliest first.
    fn brought_by(&self, chart: &ChartStatus, facts: &AddonFacts) -> Vec<String> {
        let status = self.pass.addon.status.clone().unwrap_or_default();
        let before = left_behind(&facts.release, &self.pass.addon.spec, &status);
        let mut names: Vec<String> = Vec::new();
        for name in [chart.release.clone()].into_iter().chain(before).chain([facts.release.clone()]) {
            if !name.is_empty() && !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// A release of this name, from the store; `None` where it is gone, or can't be had now.
    async fn earlier(&self, name: &str) -> Option<FetchedRelease> {
        if self.release.bundle.name.object_name() == name {
            return Some(self.release.clone());
        }
        let namespace = self.pass.cluster.class.as_ref().map(|class| class.0.as_str())?;
        let place = ObjectRef::new(name).within(namespace);
        let release = self.pass.ctx.stack_releases.get(&place)?;
        cluster_stack_release::fetched(&release, self.pass.ctx).await.ok()
    }

    /// By which names in the seed of the Cluster charts of this release, and of those that brought what is there yet, keep what they
    /// drew.
    pub(super) fn drawn_by(&self, release: &str) -> BTreeSet<String> {
        let status = self.pass.addon.status.clone().unwrap_or_default();
        let mut releases: BTreeSet<String> = [release.to_owned(), self.release.bundle.name.object_name()].into();
        releases.extend(left_behind(release, &self.pass.addon.spec, &status));
        releases.extend(status.charts.iter().map(|chart| chart.release.clone()).filter(|name| !name.is_empty()));
        let mut charts: BTreeSet<&str> = self.config.charts().into_iter().collect();
        charts.extend(status.charts.iter().map(|chart| chart.name.as_str()));
        releases.iter().flat_map(|release| charts.iter().map(move |chart| addon_key(release, chart))).collect()
    }
}
