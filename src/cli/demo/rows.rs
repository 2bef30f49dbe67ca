//! The live table as plain data: a row per release.

use super::world::World;
use crate::api::cluster_stack_release::ResourceStatus;
use crate::api::condition::{self, ConditionType};
use crate::api::{ClusterStack, ClusterStackRelease};
use crate::core::status;

/// One release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Its name.
    pub(super) name: String,
    /// Whether Clusters can use it.
    pub(super) ready: bool,
    /// `name`, `ready`, `phase`, `kept`, `synced`, `message`.
    pub(super) cells: [String; 6],
}

/// Titles of [`Row::cells`].
pub(super) const TITLES: [&str; 6] = ["RELEASE", "READY", "PHASE", "KEPT", "SYNCED", "MESSAGE"];

/// The releases that are there.
pub(super) fn rows(world: &World) -> Vec<Row> {
    world.releases.iter().map(|(name, release)| row(name, release, world.stacks.values().next())).collect()
}

fn row(name: &str, release: &ClusterStackRelease, stack: Option<&ClusterStack>) -> Row {
    let said = release.status.as_ref();
    let ready = said.is_some_and(|status| status.ready);
    let summary = stack.and_then(|stack| stack.status.as_ref()?.summary.iter().find(|row| row.name == name));
    let is_going = release.metadata.deletion_timestamp.is_some();
    let phase = if is_going { "being deleted" } else { status::phase(said) };
    let resources = said.map(|status| status.resources.as_slice()).unwrap_or_default();
    let synced = resources.iter().filter(|row| row.status == ResourceStatus::Synced).count();
    let why = said.and_then(|status| condition::find(&status.conditions, ConditionType::Ready));
    let message = if ready { String::new() } else { why.map(|c| c.message.clone()).unwrap_or_default() };
    let cells = [
        name.to_owned(),
        if ready { "True" } else { "False" }.to_owned(),
        if phase.is_empty() { "subscribed" } else { phase }.to_owned(),
        summary.map(|row| row.kept.clone()).unwrap_or_default(),
        format!("{synced}/{}", resources.len()),
        // Messages come from API servers and charts: line breaks and control characters would break the table.
        message
            .split(|c: char| c.is_whitespace() || c.is_control())
            .filter(|word| !word.is_empty())
            .collect::<Vec<_>>()
            .join(" "),
    ];
    Row { name: name.to_owned(), ready, cells }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::cluster_stack::{ClusterStackSpec, ClusterStackStatus, ReleaseSummary};
    use crate::api::cluster_stack_release::{ClusterStackReleaseSpec, ClusterStackReleaseStatus, Resource};

    fn cells(world: &World) -> Vec<String> {
        rows(world).into_iter().map(|row| row.cells.join("|")).collect()
    }

    #[test]
    fn a_row_says_how_far_a_release_is_and_why_it_stays() {
        let mut world = World::default();
        let mut release = ClusterStackRelease::new("docker-x-1-34-v1", ClusterStackReleaseSpec::default());
        world.releases.insert("docker-x-1-34-v1".into(), release.clone());
        assert_eq!(cells(&world), ["docker-x-1-34-v1|False|subscribed||0/0|"]);

        let synced = Resource { status: ResourceStatus::Synced, ..Resource::default() };
        let resources = vec![synced, Resource::default()];
        release.status = Some(ClusterStackReleaseStatus { ready: true, resources, ..Default::default() });
        world.releases.insert("docker-x-1-34-v1".into(), release);
        let kept = ReleaseSummary { name: "docker-x-1-34-v1".into(), kept: "InUse".into(), ..Default::default() };
        let mut stack = ClusterStack::new("x", ClusterStackSpec::default());
        stack.status = Some(ClusterStackStatus { summary: vec![kept], ..Default::default() });
        world.stacks.insert("x".into(), stack);
        assert_eq!(cells(&world), ["docker-x-1-34-v1|True|done|InUse|1/2|"]);
    }
}
