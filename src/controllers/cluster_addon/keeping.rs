//! Keeps, while an upgrade is under way, what stages brought before whose turn has not come: an upgrade may wait for hours.
//!
//! Guarantee: nothing is sent but what was sent last. The chart of the release that brought it is rendered, and counts where that
//! gives what was applied; of its objects those count whose row says that they were sent so last, for another release may have got half
//! way with the chart. What does not count, as with other values, stays as it is, and what is missing is told.

use std::collections::BTreeSet;

use kube::runtime::reflector::ObjectRef;

use super::super::cluster_stack_release;
use super::deliver::Rendered;
use super::work::Work;
use crate::api::cluster_addon::ChartStatus;
use crate::core::addon::stages::{self, left_behind};
use crate::core::addon_config::{Action, AddonConfig, Stage};
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
                kept.extend(self.as_brought(&release, chart).await);
                // One that is known to have brought it, and gives something else, has other values.
                if name == chart.release || kept.last().is_some_and(|kept| kept.stage.name == chart.name) {
                    break;
                }
            }
        }
        kept
    }

    /// A chart as a release brought it, if it renders so still; once in a pass.
    async fn as_brought(&mut self, release: &FetchedRelease, chart: &ChartStatus) -> Option<Kept> {
        let config = stages::of_charts(release.bundle.addon.as_ref());
        // Nothing is made anew while it waits.
        let stage = Stage { replace: false, ..stage_of(&config, &chart.name)?.clone() };
        let key = (release.bundle.name.object_name(), chart.name.clone());
        if !self.brought.contains_key(&key) {
            let rendered = self.render_of(release, &config, &chart.name).await;
            let rendered = rendered.inspect_err(|trouble| {
                tracing::debug!(release = key.0, why = trouble.message, "what it brought is not known any more");
            });
            self.brought.insert(key.clone(), rendered.ok());
        }
        let rendered = self.brought.get(&key)?.as_ref();
        let rendered = rendered.filter(|rendered| rendered.chart(&chart.name).rendering == chart.digest)?;
        Some(Kept { stage, rendered: rendered.clone() })
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

    /// A release of this name; `None` where it is gone, or can't be had now. Asked for once in a pass.
    async fn earlier(&mut self, name: &str) -> Option<FetchedRelease> {
        if self.release.bundle.name.object_name() == name {
            return Some(self.release.clone());
        }
        if !self.earlier.contains_key(name) {
            let found = self.find(name).await;
            self.earlier.insert(name.to_owned(), found);
        }
        self.earlier.get(name).cloned().flatten()
    }

    async fn find(&self, name: &str) -> Option<FetchedRelease> {
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
        let mut charts: BTreeSet<&str> = self.config.charts().into_iter().collect();
        charts.extend(status.charts.iter().map(|chart| chart.name.as_str()));
        let all = releases.iter().flat_map(|release| charts.iter().map(move |chart| addon_key(release, chart)));
        all.chain(status.charts.iter().map(|chart| addon_key(&chart.release, &chart.name))).collect()
    }
}

/// What a release says of the stages that apply a chart, if all of them say the same: it is not known by which it was brought.
fn stage_of<'a>(config: &'a AddonConfig, chart: &str) -> Option<&'a Stage> {
    let applies = |stage: &&Stage| stage.name == chart && stage.action == Action::Apply;
    let mut all = config.stages.values().flatten().filter(applies);
    let first = all.next()?;
    let is_same = |other: &Stage| (other.crds, &other.ignore_differences) == (first.crds, &first.ignore_differences);
    all.all(is_same).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_is_kept_where_its_stages_say_the_same_of_it() {
        let config = |before: &str| {
            let text = format!(
                "addonStages:\n  AfterControlPlaneInitialized: [{{name: a, action: apply}}]\n  BeforeClusterUpgrade: [{{name: a, action: apply{before}}}]\n"
            );
            AddonConfig::parse(&text).unwrap()
        };
        for (before, expected) in [
            ("", true),
            (", replace: true, deadline: 3s", true),
            (", crds: Skip", false),
            (", ignoreDifferences: [{kind: Deployment, jsonPointers: [/spec/replicas]}]", false),
        ] {
            assert_eq!(stage_of(&config(before), "a").is_some(), expected, "{before}");
        }
        assert_eq!(stage_of(&config(""), "b"), None);
    }
}
