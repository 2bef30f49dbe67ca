//! What the upgrade of a Cluster to another release would do, as a plan: nothing of it is carried out.

pub mod addons;
pub mod class;
pub mod difference;
pub mod objects;
pub mod patches;
pub mod rollout;
pub mod summary;
pub mod variables;

use serde::Serialize;

use self::addons::{AddonChanges, Compared};
use self::difference::{Fate, ObjectChange};
use self::rollout::{Rollout, Verdict};
use self::variables::VariableChange;
use crate::core::node_images::NodeImages;

/// A Cluster as it is, or as it would be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Object name of the release.
    pub release: String,
    /// Namespace and name of the ClusterClass.
    pub class: String,
    /// The version of Kubernetes.
    pub kubernetes_version: String,
}

/// Whether Cluster API would take it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Acceptance {
    /// `accepted`, `refused` or `unknown`.
    pub state: AcceptanceState,
    /// The API server's words, or why it was not asked.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl Acceptance {
    /// Nobody was asked; why.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self { state: AcceptanceState::Unknown, message: message.into() }
    }
}

/// The answer to a dry run of the Cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum AcceptanceState {
    /// It would be stored.
    Accepted,
    /// It would not.
    Refused,
    /// Nobody was asked.
    Unknown,
}

/// A node image that the new release boots and the present one does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageChange {
    /// Its name.
    pub name: String,
    /// Where it is downloaded.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// Whether an image of that name is of the present release, from elsewhere or with other options.
    pub replaces: bool,
}

/// The images that have to be built for the new release: those that differ from all of the present one.
pub fn images(before: &NodeImages, after: &NodeImages) -> Vec<ImageChange> {
    let is_new = |image: &&crate::core::node_images::NodeImage| !before.images.contains(image);
    let change = |image: &crate::core::node_images::NodeImage| ImageChange {
        name: image.name.clone(),
        url: image.url.clone().unwrap_or_default(),
        replaces: before.images.iter().any(|known| known.name == image.name),
    };
    after.images.iter().filter(is_new).map(change).collect()
}

/// What an upgrade would do. The field names are API of `clusterstack diff -o json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Namespace and name of the Cluster.
    pub cluster: String,
    /// As it is.
    pub from: State,
    /// As it would be.
    pub to: State,
    /// The ClusterClass, its templates and what else the release has beside them.
    pub objects: Vec<ObjectChange>,
    /// What becomes of the infrastructure, the control plane and the workers.
    pub rollouts: Vec<Rollout>,
    /// External patches: what they change is unknown.
    pub external_patches: Vec<String>,
    /// What would keep Cluster API from carrying it out.
    pub problems: Vec<String>,
    /// What could not be found out.
    pub unknown: Vec<String>,
    /// Whether Cluster API would take it.
    pub acceptance: Acceptance,
    /// The addons.
    pub addons: AddonChanges,
    /// The variables of the class.
    pub variables: Vec<VariableChange>,
    /// Node images that have to be built.
    pub images: Vec<ImageChange>,
}

impl Plan {
    /// Whether that nothing changes may be said: all that could is known.
    pub fn is_known(&self) -> bool {
        matches!(self.addons.compared, Compared::DryRun | Compared::NoAddons)
            && self.unknown.is_empty()
            && self.rollouts.iter().all(|rollout| rollout.verdict != Verdict::Unknown)
    }

    /// Whether anything would change but names.
    pub fn is_change(&self) -> bool {
        let is_moved = (&self.from.release, &self.from.class, &self.from.kubernetes_version)
            != (&self.to.release, &self.to.class, &self.to.kubernetes_version);
        is_moved
            || self.objects.iter().any(|object| object.fate != Fate::Rotated)
            || self.rollouts.iter().any(|rollout| !matches!(rollout.verdict, Verdict::Unchanged | Verdict::Unknown))
            || self.addons.is_change()
            || !self.variables.is_empty()
            || !self.images.is_empty()
    }
}

/// The version of Kubernetes that an upgrade goes to: the release's, or the Cluster's own where that is newer or the
/// release's can't be read. With a `v`, as Cluster API wants it.
pub fn version(cluster: &str, release: &str) -> String {
    let parsed = |text: &str| semver::Version::parse(text.trim_start_matches('v')).ok();
    match (parsed(cluster), parsed(release)) {
        (Some(own), Some(new)) if new > own => format!("v{new}"),
        (None, Some(new)) => format!("v{new}"),
        _ => cluster.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::node_images::NodeImage;

    #[test]
    fn an_upgrade_never_lowers_the_version() {
        for (cluster, release, expected) in [
            ("v1.34.2", "v1.34.7", "v1.34.7"),
            ("v1.34.7", "v1.34.2", "v1.34.7"),
            ("v1.33.9", "v1.34.0", "v1.34.0"),
            ("v1.34.2", "v1.34", "v1.34.2"),
            ("1.34.2", "1.34.3", "v1.34.3"),
            ("", "v1.34.2", "v1.34.2"),
        ] {
            assert_eq!(version(cluster, release), expected, "{cluster} {release}");
        }
    }

    #[test]
    fn images_that_differ_are_built() {
        let image = |name: &str, url: &str| NodeImage {
            name: name.into(),
            url: Some(url.into()),
            options: serde_json::Map::new(),
        };
        let list = |images: Vec<NodeImage>| NodeImages { images, ..NodeImages::default() };
        let found = images(
            &list(vec![image("a", "1"), image("b", "1")]),
            &list(vec![image("a", "1"), image("b", "2"), image("c", "1")]),
        );
        let shown: Vec<(&str, bool)> = found.iter().map(|image| (image.name.as_str(), image.replaces)).collect();
        assert_eq!(shown, [("b", true), ("c", false)]);
    }
}
