//! Ranges of release versions: `>=2 <5`, in Masterminds' syntax.

use thiserror::Error;

use crate::core::chart::{Constraint, Version};
use crate::core::name::ReleaseVersion;

/// A range of release versions. `v2` counts as `2.0.0`, `v2-beta.3` as `2.0.0-beta.3`.
///
/// A pre-release is judged by its place in the order: `v2-beta.3` comes before `v2`, so `>=2` leaves it out and `>=2-0`
/// takes it in.
#[derive(Clone, Debug)]
pub struct VersionRange {
    text: String,
    constraint: Constraint,
}

/// A range that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "version range {text:?} can't be read: {problem}; write comparisons such as \">=2 <5\", with || between alternatives"
)]
pub struct RangeError {
    /// What was given.
    pub text: String,
    /// What is wrong with it.
    pub problem: String,
}

impl VersionRange {
    /// Reads a range.
    pub fn parse(text: &str) -> Result<Self, RangeError> {
        match Constraint::parse(text) {
            Ok(constraint) => Ok(Self { text: text.to_owned(), constraint }),
            Err(problem) => Err(RangeError { text: text.to_owned(), problem }),
        }
    }

    /// Whether a version is in it.
    pub fn holds(&self, version: &ReleaseVersion) -> bool {
        let pre = version.pre.as_ref().map(|pre| format!("{}.{}", pre.channel, pre.patch)).unwrap_or_default();
        let version = Version {
            major: version.number,
            minor: 0,
            patch: 0,
            pre,
            metadata: String::new(),
            original: version.to_string(),
        };
        self.constraint.holds(&version)
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl PartialEq for VersionRange {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for VersionRange {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_versions_are_ordered_as_semantic_versions() {
        for (range, inside, outside) in [
            (">=2 <5", &["v2", "v3", "v4", "v5-rc.1"][..], &["v1", "v5", "v2-beta.3", "v10"][..]),
            (">= 2, < 5", &["v2", "v4"], &["v5"]),
            ("1 || >=7", &["v1", "v7", "v100"], &["v2", "v6", "v7-rc.1"]),
            ("*", &["v0", "v9"], &[]),
            ("!=3", &["v2", "v4"], &["v3"]),
            ("^2", &["v2"], &["v1", "v3"]),
            ("2 - 4", &["v2", "v3", "v4"], &["v1", "v5"]),
            (">2.0.0-beta.3", &["v2-beta.10", "v2-rc.1", "v2", "v3"], &["v2-beta.3", "v2-beta.2", "v2-alpha.9", "v1"]),
            (">=2-0", &["v2-beta.3", "v2"], &["v1"]),
            ("<1", &["v0", "v0-sha.0123", "v1-rc.1"], &["v1"]),
        ] {
            let range = VersionRange::parse(range).unwrap();
            for (versions, expected) in [(inside, true), (outside, false)] {
                for version in versions {
                    assert_eq!(range.holds(&version.parse().unwrap()), expected, "{version} in {}", range.as_str());
                }
            }
        }
    }

    #[test]
    fn what_is_no_range_says_how_one_looks() {
        for text in ["", "newest", ">=", "1..2", "v"] {
            let error = VersionRange::parse(text).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains(">=2 <5"), "{error}");
        }
    }
}
