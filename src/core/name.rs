//! Release names: the only parser and printer of them.
//!
//! A release name is `<provider>-<name>-<major>-<minor>-v<N>[-<channel>.<patch>]`. Tags and object names write the dot
//! of the pre-release part as `-`; both spellings are the same release.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Whether it is a DNS label of any length: what parts of names of objects are made of (RFC 1123).
pub fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// A minor version of Kubernetes, printed `1.31`; in release names `1-31`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KubernetesMinor {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
}

/// The version of a release: `v2`, or with a pre-release part `v0-sha.hdl6pjy`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReleaseVersion {
    /// The number behind `v`.
    pub number: u64,
    /// Channel and patch of a pre-release; `None` is the stable channel.
    pub pre: Option<PreRelease>,
}

/// The pre-release part of a version: `sha.hdl6pjy`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PreRelease {
    /// Channel, for example `alpha`, `rc`, `sha`, `custom`.
    pub channel: String,
    /// What counts within the channel: a number or a hash.
    pub patch: String,
}

/// One immutable version of a cluster stack for one Kubernetes minor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReleaseName {
    /// Infrastructure provider, for example `openstack`. May contain `-`.
    pub provider: String,
    /// Name of the cluster stack. May contain `-`.
    pub stack: String,
    /// The Kubernetes minor it is made for.
    pub kubernetes: KubernetesMinor,
    /// Its version.
    pub version: ReleaseVersion,
}

/// Why a text is no release name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    /// The Kubernetes version is no `<major>.<minor>`.
    #[error("{0:?} is no Kubernetes version: write it as <major>.<minor>, for example 1.31")]
    KubernetesVersion(String),
    /// The version is no `v<N>` and no `v<N>-<channel>.<patch>`.
    #[error(
        "{0:?} is no release version: write v<number>, for example v2, or v<number>-<channel>.<patch>, for example v0-sha.hdl6pjy"
    )]
    Version(String),
    /// The whole is no release name.
    #[error("{0:?} is no release name: expected <provider>-<name>-<major>-<minor>-v<number>[-<channel>.<patch>]")]
    Release(String),
}

impl FromStr for KubernetesMinor {
    type Err = NameError;

    /// Reads `1.31`.
    fn from_str(text: &str) -> Result<Self, NameError> {
        let error = || NameError::KubernetesVersion(text.to_owned());
        let (major, minor) = text.split_once('.').ok_or_else(error)?;
        Ok(Self { major: number(major).ok_or_else(error)?, minor: number(minor).ok_or_else(error)? })
    }
}

impl fmt::Display for KubernetesMinor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl KubernetesMinor {
    /// As release names and paths write it: `1-31`.
    pub fn dashed(self) -> String {
        format!("{}-{}", self.major, self.minor)
    }
}

/// A decimal number without sign or leading zero.
fn number<T: FromStr>(text: &str) -> Option<T> {
    let canonical = text == "0" || (!text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit()));
    if canonical { text.parse().ok() } else { None }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric())
}

impl FromStr for ReleaseVersion {
    type Err = NameError;

    /// Reads `v2`, `v0-sha.abc` and `v0-sha-abc`.
    fn from_str(text: &str) -> Result<Self, NameError> {
        let error = || NameError::Version(text.to_owned());
        let rest = text.strip_prefix('v').ok_or_else(error)?;
        let (digits, pre) = match rest.split_once('-') {
            None => (rest, None),
            Some((digits, pre)) => {
                let (channel, patch) = pre.split_once(['.', '-']).ok_or_else(error)?;
                // `stable` is how a version without a pre-release part is called.
                if !is_word(channel) || !is_word(patch) || channel == "stable" {
                    return Err(error());
                }
                (digits, Some(PreRelease { channel: channel.to_owned(), patch: patch.to_owned() }))
            }
        };
        Ok(Self { number: number(digits).ok_or_else(error)?, pre })
    }
}

impl fmt::Display for ReleaseVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.number)?;
        if let Some(pre) = &self.pre {
            write!(f, "-{}.{}", pre.channel, pre.patch)?;
        }
        Ok(())
    }
}

impl ReleaseVersion {
    /// Whether it is a hash over the content (`v0-sha.hdl6pjy`), which has no order.
    pub fn is_by_content(&self) -> bool {
        self.channel() == "sha"
    }

    /// The channel: `stable` or that of the pre-release part.
    pub fn channel(&self) -> &str {
        self.pre.as_ref().map_or("stable", |pre| &pre.channel)
    }

    /// As object names and tags write it: without a dot.
    pub fn dashed(&self) -> String {
        self.to_string().replace('.', "-")
    }
}

impl Ord for ReleaseVersion {
    /// By number, then a pre-release before its release (as `SemVer` has it), then channel, then patch: numbers by value
    /// and before words, words as text (CSO compares patches as text, by which `10` comes before `9`).
    fn cmp(&self, other: &Self) -> Ordering {
        self.number.cmp(&other.number).then_with(|| match (&self.pre, &other.pre) {
            (None, None) => Ordering::Equal,
            (None, Some(_)) => Ordering::Greater,
            (Some(_), None) => Ordering::Less,
            (Some(a), Some(b)) => a.channel.cmp(&b.channel).then_with(|| compare_patch(&a.patch, &b.patch)),
        })
    }
}

impl PartialOrd for ReleaseVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn compare_patch(a: &str, b: &str) -> Ordering {
    match (a.parse::<u64>(), b.parse::<u64>()) {
        (Ok(x), Ok(y)) => x.cmp(&y).then_with(|| a.cmp(b)),
        (Ok(_), Err(_)) => Ordering::Less,
        (Err(_), Ok(_)) => Ordering::Greater,
        (Err(_), Err(_)) => a.cmp(b),
    }
}

impl FromStr for ReleaseName {
    type Err = NameError;

    /// Reads a tag or an object name from the right. Where provider or stack hold a `-` the split between them is a
    /// guess (the first `-`): use [`ReleaseName::of_stack`] when the ClusterStack is known.
    fn from_str(text: &str) -> Result<Self, NameError> {
        let error = || NameError::Release(text.to_owned());
        let (stem, kubernetes, version) = split_from_right(text).ok_or_else(error)?;
        let (provider, stack) = stem.split_once('-').ok_or_else(error)?;
        if provider.is_empty() || stack.is_empty() {
            return Err(error());
        }
        Ok(Self { provider: provider.to_owned(), stack: stack.to_owned(), kubernetes, version })
    }
}

/// `<stem>-<major>-<minor>-<version>` into its parts, the version being plain or with a pre-release part.
fn split_from_right(text: &str) -> Option<(&str, KubernetesMinor, ReleaseVersion)> {
    text.rmatch_indices("-v").find_map(|(at, _)| {
        let version = text[at + 1..].parse().ok()?;
        let (rest, minor) = text[..at].rsplit_once('-')?;
        let (stem, major) = rest.rsplit_once('-')?;
        let kubernetes = KubernetesMinor { major: number(major)?, minor: number(minor)? };
        Some((stem, kubernetes, version))
    })
}

impl ReleaseName {
    /// Reads `text` as a release of the given cluster stack, whose provider and name may hold `-`. `None` if it is one
    /// of another stack or no release at all.
    pub fn of_stack(text: &str, provider: &str, stack: &str) -> Option<Self> {
        let rest = text.strip_prefix(provider)?.strip_prefix('-')?.strip_prefix(stack)?;
        let (stem, kubernetes, version) = split_from_right(rest)?;
        stem.is_empty().then(|| Self { provider: provider.to_owned(), stack: stack.to_owned(), kubernetes, version })
    }

    /// The stack's name for a Kubernetes minor, `<provider>-<name>-<major>-<minor>`: CSO's Helm release name.
    pub fn stem(&self) -> String {
        format!("{}-{}-{}", self.provider, self.stack, self.kubernetes.dashed())
    }

    /// Name of its ClusterStackRelease and of its tag: `docker-scs-1-31-v0-sha-hdl6pjy`.
    pub fn object_name(&self) -> String {
        format!("{}-{}", self.stem(), self.version.dashed())
    }
}

impl fmt::Display for ReleaseName {
    /// With a dot in a pre-release version: `docker-scs-1-31-v0-sha.hdl6pjy`, as ClusterClasses are named.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.stem(), self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_the_right() {
        for (text, provider, stack, kubernetes, version, object) in [
            ("docker-scs-1-31-v2", "docker", "scs", "1.31", "v2", "docker-scs-1-31-v2"),
            (
                "docker-scs-1-31-v0-sha.hdl6pjy",
                "docker",
                "scs",
                "1.31",
                "v0-sha.hdl6pjy",
                "docker-scs-1-31-v0-sha-hdl6pjy",
            ),
            (
                "docker-scs-1-31-v0-sha-hdl6pjy",
                "docker",
                "scs",
                "1.31",
                "v0-sha.hdl6pjy",
                "docker-scs-1-31-v0-sha-hdl6pjy",
            ),
            (
                "openstack-my-v2-stack-1-30-v10",
                "openstack",
                "my-v2-stack",
                "1.30",
                "v10",
                "openstack-my-v2-stack-1-30-v10",
            ),
            ("docker-scs-1-31-v1-v2-x3", "docker", "scs", "1.31", "v1-v2.x3", "docker-scs-1-31-v1-v2-x3"),
        ] {
            let name: ReleaseName = text.parse().unwrap();
            assert_eq!(name.provider, provider, "{text}");
            assert_eq!(name.stack, stack, "{text}");
            assert_eq!(name.kubernetes.to_string(), kubernetes, "{text}");
            assert_eq!(name.version.to_string(), version, "{text}");
            assert_eq!(name.object_name(), object, "{text}");
        }
    }

    #[test]
    fn what_is_no_release_is_refused() {
        for text in [
            "",
            "openstack-scs-v5",
            "openstack-csp-helper-v0.2.0",
            "openstack-scs-1-29-v2-test",
            "docker-1-31-v2",
            "docker-scs-1-31-2",
            "docker-scs-1-031-v2",
            "docker-scs-1-31-v02",
            "docker-scs-1-31-v2-stable.1",
            "docker-scs-1-31-v99999999999999999999999",
            "docker-scs-1-31-v2-sha.a.b",
        ] {
            assert_eq!(text.parse::<ReleaseName>(), Err(NameError::Release(text.into())), "{text}");
        }
    }

    #[test]
    fn a_known_stack_may_hold_dashes() {
        let name = ReleaseName::of_stack("my-cloud-a-b-1-30-v1", "my-cloud", "a-b").unwrap();
        assert_eq!((name.provider.as_str(), name.stack.as_str()), ("my-cloud", "a-b"));
        assert_eq!(ReleaseName::of_stack("my-cloud-a-b-1-30-v1", "my-cloud", "a"), None);
        assert_eq!(ReleaseName::of_stack("openstack-scs2-1-34-v1", "openstack", "scs"), None);
        assert_eq!(ReleaseName::of_stack("openstack-scs-1-29-v2-test", "openstack", "scs"), None);
    }

    #[test]
    fn versions_are_ordered_by_number_and_patch() {
        let ordered = ["v0-sha.abc", "v1-alpha.2", "v1-alpha.10", "v1-beta.1", "v1", "v2", "v10"];
        let parsed: Vec<ReleaseVersion> = ordered.iter().map(|v| v.parse().unwrap()).collect();
        let mut sorted = parsed.clone();
        sorted.reverse();
        sorted.sort();
        assert_eq!(sorted, parsed);
    }

    #[test]
    fn both_spellings_are_one_version() {
        assert_eq!("v0-sha.abc".parse::<ReleaseVersion>(), "v0-sha-abc".parse());
    }
}
