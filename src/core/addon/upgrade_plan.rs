//! The versions of Kubernetes that a Cluster goes through on its way to another one (GenerateUpgradePlan).
//!
//! Cluster API upgrades over several minors one by one, all in the target class: so its release needs node images of every
//! minor on the way. Which patch a minor is passed in is the newest that there is an image of; workers are left to Cluster
//! API, which takes them through as few of the same versions as the rules of Kubernetes ask for.

use std::collections::BTreeMap;

use semver::Version;
use thiserror::Error;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoPlan {
    /// The Cluster's class is of no release.
    #[error(
        "the Cluster's ClusterClass is of no release that clusterstack knows here, so nobody knows its node images"
    )]
    Unknown,
    /// What was asked is no version.
    #[error("{0:?} is no version of Kubernetes like v1.34.7")]
    NoVersion(String),
    /// It would go back.
    #[error("Kubernetes can't go back from {from} to {to}: name a version of {from} or newer in the Cluster")]
    Back {
        /// The version of the control plane.
        from: String,
        /// The version that is asked for.
        to: String,
    },
    /// Images are missing.
    #[error(
        "release {release} has no node image for Kubernetes {missing}, which is on the way from {from} to {to}; it has some for {has}: upgrade with the releases of the minors in between, one after the other"
    )]
    NoImage {
        /// The release of the target class.
        release: String,
        /// The minors that lack, `1.33`, separated by commas.
        missing: String,
        /// The version of the control plane.
        from: String,
        /// The version that is asked for.
        to: String,
        /// What there is.
        has: String,
    },
}

/// A whole version, with or without `v`.
pub fn version(text: &str) -> Option<Version> {
    text.strip_prefix('v').unwrap_or(text).parse().ok()
}

/// The version of Kubernetes that the name of an image holds, for example `kindest/node:v1.34.7` or
/// `ubuntu-2204-kube-v1.34.7`; without a `v` it may be that of anything.
pub fn version_in(name: &str) -> Option<Version> {
    let starts = name.match_indices('v').filter(|(at, _)| !name[..*at].ends_with(|c: char| c.is_ascii_alphanumeric()));
    starts.filter_map(|(at, _)| numbers(&name[at + 1..])).find(|found| found.major == 1)
}

fn numbers(text: &str) -> Option<Version> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let text = text[..end].trim_end_matches('.');
    Version::parse(&text.splitn(4, '.').take(3).collect::<Vec<_>>().join(".")).ok()
}

/// Major and minor, of a version with or without a patch.
fn minor(text: &str) -> Option<(u64, u64)> {
    let mut parts = text.strip_prefix('v').unwrap_or(text).split(['.', '+', '-']).map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

/// The versions that a control plane of version `from` goes through to `to`, which is the last one; none if it is there.
/// `known` are the versions that machines of the target class's release can run.
///
/// # Errors
/// Why there is no way.
pub fn plan(from: &str, to: &str, release: &str, known: &[String]) -> Result<Vec<String>, NoPlan> {
    let read = |text: &str| version(text).ok_or_else(|| NoPlan::NoVersion(text.to_owned()));
    let (start, end) = (read(from)?, read(to)?);
    if start.cmp_precedence(&end).is_gt() {
        return Err(NoPlan::Back { from: from.to_owned(), to: to.to_owned() });
    }
    if start == end {
        return Ok(Vec::new());
    }
    let mut newest: BTreeMap<(u64, u64), Option<Version>> = BTreeMap::new();
    for (place, text) in known.iter().filter_map(|text| Some((minor(text)?, text))) {
        let best = newest.entry(place).or_default();
        *best = best.take().max(version(text));
    }
    let (mut steps, mut missing) = (Vec::new(), Vec::new());
    for number in start.minor + 1..end.minor {
        match newest.get(&(end.major, number)) {
            Some(Some(version)) => steps.push(format!("v{version}")),
            _ => missing.push(format!("{}.{number}", end.major)),
        }
    }
    if !newest.contains_key(&(end.major, end.minor)) {
        missing.push(format!("{}.{}", end.major, end.minor));
    }
    if !missing.is_empty() {
        let has = if known.is_empty() { "none that is known".to_owned() } else { known.join(", ") };
        let (from, to, release) = (from.to_owned(), to.to_owned(), release.to_owned());
        return Err(NoPlan::NoImage { release, missing: missing.join(", "), from, to, has });
    }
    steps.push(to.to_owned());
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_minor_on_the_way_needs_an_image() {
        let known = |list: &str| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        for (name, from, to, images, expected) in [
            ("it is there", "v1.34.7", "v1.34.7", "v1.34.7", Ok("")),
            ("a patch", "v1.34.7", "v1.34.8", "v1.34.7", Ok("v1.34.8")),
            ("the next minor", "v1.33.5", "v1.34.7", "v1.34.7", Ok("v1.34.7")),
            ("a release that tells no patch", "v1.33.5", "v1.34.7", "v1.34", Ok("v1.34.7")),
            ("two minors", "v1.32.1", "v1.34.7", "v1.33.5 v1.33.9 v1.33.8 v1.34.7", Ok("v1.33.9 v1.34.7")),
            ("a build", "v1.34.7+a.1", "v1.34.7+a.2", "v1.34.7", Ok("v1.34.7+a.2")),
            ("one is missing", "v1.31.1", "v1.34.7", "v1.32.5 v1.34.7", Err("1.33")),
            ("a minor without a patch", "v1.32.1", "v1.34.7", "v1.33 v1.34.7", Err("1.33")),
            ("the target is missing", "v1.33.1", "v1.35.0", "v1.34.7", Err("1.35")),
            ("no image of its own minor", "v1.34.1", "v1.34.2", "", Err("1.34")),
            ("back", "v1.34.7", "v1.33.9", "v1.33.9 v1.34.7", Err("can't go back")),
            ("no version", "v1.34.7", "latest", "v1.34.7", Err("\"latest\" is no version")),
        ] {
            let found = plan(from, to, "docker-x-1-34-v1", &known(images));
            match expected {
                Ok(steps) => assert_eq!(found, Ok(known(steps)), "{name}"),
                Err(why) => {
                    let told = found.unwrap_err().to_string();
                    assert!(told.contains(why), "{name}: {told}");
                }
            }
        }
    }

    #[test]
    fn the_names_of_images_tell_their_version() {
        for (name, expected) in [
            ("kindest/node:v1.34.7", Some("1.34.7")),
            ("ubuntu-capi-image-v1.33.5-1762.qcow2", Some("1.33.5")),
            ("ubuntu-24.04.2-kube-v1.34", None),
            ("ubuntu-24.04.2", None),
            ("flatcar-v3510.2.0-kube-v1.34.1", Some("1.34.1")),
            ("dev1.34.7", None),
            ("controlplaneamd64", None),
        ] {
            assert_eq!(version_in(name).map(|found| found.to_string()).as_deref(), expected, "{name}");
        }
    }
}
