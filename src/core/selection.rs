//! Which releases a ClusterStack should have: subscription and collection in one table.
//!
//! ```text
//! tags ─offer→ [Found] ─sift→ open, withheld ─select→ create, keep, delete
//! ```

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::api::ClusterStackSpec;
use crate::api::cluster_stack::Channel;
use crate::core::name::{KubernetesMinor, NameError, ReleaseName, ReleaseVersion};
use crate::core::version_range::{RangeError, VersionRange};

mod gate;

pub use gate::{Approvals, Gate, Sifted, Withheld, has_gate, may_take, sift, unnamed};

/// What a ClusterStack asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Provider of the stack.
    pub provider: String,
    /// Name of the stack.
    pub stack: String,
    /// Kubernetes minor.
    pub kubernetes: KubernetesMinor,
    /// `stable` or `custom`.
    pub channel: String,
    /// Versions that have to be there.
    pub versions: Vec<ReleaseVersion>,
    /// Take the newest one found.
    pub auto_subscribe: bool,
    /// Unused ready releases that stay, the newest ready one counted.
    pub keep: usize,
    /// Only versions in this range are subscribed.
    pub range: Option<VersionRange>,
    /// In channel `custom`: which pre-release channels are subscribed; `custom` alone where it is empty.
    pub pre_releases: Vec<String>,
}

/// Why a spec can't be read. The API server refuses most of it; objects stored before may hold it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WishError {
    /// A version.
    #[error(transparent)]
    Name(#[from] NameError),
    /// `versionRange`.
    #[error("spec.versionRange: {0}")]
    Range(#[from] RangeError),
}

/// Unused ready releases that stay when the spec does not say.
pub const DEFAULT_KEEP: usize = 1;

impl Wish {
    /// Reads a spec.
    ///
    /// # Errors
    /// A version or a range that does not parse.
    pub fn of(spec: &ClusterStackSpec) -> Result<Self, WishError> {
        let channel = match spec.channel {
            Channel::Stable => "stable",
            Channel::Custom => "custom",
        };
        Ok(Self {
            provider: spec.provider.clone(),
            stack: spec.name.clone(),
            kubernetes: spec.kubernetes_version.parse()?,
            channel: channel.to_owned(),
            versions: spec.versions.iter().map(|version| version.parse()).collect::<Result<_, _>>()?,
            auto_subscribe: spec.auto_subscribe,
            keep: spec.keep.map_or(DEFAULT_KEEP, |keep| keep as usize),
            range: spec.version_range.as_deref().map(VersionRange::parse).transpose()?,
            pre_releases: spec.pre_releases.clone(),
        })
    }

    /// Whether a version is of a channel that is subscribed.
    fn is_in_channel(&self, version: &ReleaseVersion) -> bool {
        match &version.pre {
            Some(pre) if self.channel != "stable" && !self.pre_releases.is_empty() => {
                self.pre_releases.contains(&pre.channel)
            }
            _ => version.channel() == self.channel,
        }
    }

    /// The release of a version.
    pub fn release(&self, version: &ReleaseVersion) -> ReleaseName {
        ReleaseName {
            provider: self.provider.clone(),
            stack: self.stack.clone(),
            kubernetes: self.kubernetes,
            version: version.clone(),
        }
    }
}

/// A release that a source has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its name.
    pub name: ReleaseName,
    /// What its tag names; empty where the listing does not tell.
    pub revision: String,
}

/// What the tags of a source are for a wish.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Releases of the stack, Kubernetes minor, channel and range; newest first.
    pub found: Vec<Found>,
    /// Releases of the stack, Kubernetes minor and channel that are not in the range.
    pub out_of_range: usize,
    /// Tags that are no release of anything.
    pub passed_over: usize,
}

/// Sorts the tags of a source, names and revisions: what matches, and how many are no releases at all.
pub fn offer<'a>(wish: &Wish, tags: impl IntoIterator<Item = (&'a str, &'a str)>) -> Offer {
    let mut found = BTreeMap::new();
    let (mut out_of_range, mut passed_over) = (0, 0);
    for (tag, revision) in tags {
        match ReleaseName::of_stack(tag, &wish.provider, &wish.stack) {
            Some(name) if name.kubernetes == wish.kubernetes && wish.is_in_channel(&name.version) => {
                if wish.range.as_ref().is_some_and(|range| !range.holds(&name.version)) {
                    out_of_range += 1;
                    continue;
                }
                // Of two spellings of a version the first is taken, as when it is fetched.
                found.entry(name.version.clone()).or_insert_with(|| Found { name, revision: revision.to_owned() });
            }
            None if tag.parse::<ReleaseName>().is_err() => passed_over += 1,
            _ => {}
        }
    }
    Offer { found: found.into_values().rev().collect(), out_of_range, passed_over }
}

/// A release that exists as an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Existing {
    /// Its name.
    pub name: ReleaseName,
    /// Whether Clusters can use it.
    pub ready: bool,
    /// Whether all its objects were applied: what is not ready then may have been, and may be again by itself.
    pub applied: bool,
    /// Whether it is being deleted already.
    pub deleting: bool,
}

/// Why a release stays, the strongest reason first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kept {
    /// Somebody uses it.
    InUse,
    /// `spec.versions` names it.
    InVersions,
    /// It is the newest one found.
    NewestFound,
    /// It is the newest ready one.
    NewestReady,
    /// It is within `spec.keep`, and ready, or not ready although all of it was applied.
    Kept,
    /// What would decide is not known now: use, what the source offers, or which release works while none does.
    Undecided,
}

impl Kept {
    /// The word in status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InUse => "InUse",
            Self::InVersions => "InVersions",
            Self::NewestFound => "NewestFound",
            Self::NewestReady => "NewestReady",
            Self::Kept => "Kept",
            Self::Undecided => "Undecided",
        }
    }
}

/// What is to be done with releases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// To create, newest first.
    pub create: Vec<ReleaseName>,
    /// To keep, with the reason, newest first.
    pub keep: Vec<(ReleaseName, Option<Kept>)>,
    /// To delete, newest first.
    pub delete: Vec<ReleaseName>,
    /// Wanted, and being deleted by somebody else: what wants them.
    pub missed: Vec<(ReleaseName, Kept)>,
}

/// Decides. `found` is what may be taken of the source, newest first, `None` while it can't be read; `in_use` holds the releases in use, `None`
/// while that is not known. Nothing is deleted on half the knowledge. A release that was applied is not deleted while none is ready:
/// what keeps all of them from it may pass, as an admission webhook that is down.
pub fn select(
    wish: &Wish,
    found: Option<&[Found]>,
    existing: &[Existing],
    in_use: Option<&BTreeSet<ReleaseVersion>>,
) -> Selection {
    let newest_found = if wish.auto_subscribe { found.and_then(<[_]>::first) } else { None };
    let wanted: BTreeSet<&ReleaseVersion> =
        wish.versions.iter().chain(newest_found.map(|found| &found.name.version)).collect();

    let mut ordered: Vec<&Existing> = existing.iter().collect();
    ordered.sort_by(|a, b| b.name.version.cmp(&a.name.version));
    let ready = || ordered.iter().filter(|e| e.ready && !e.deleting).map(|e| &e.name.version);
    // A version by content is neither older nor newer than another: the one that is asked for counts.
    let asked = || ready().find(|version| wanted.contains(version));
    let newest_ready = match ready().next() {
        Some(newest) if newest.is_by_content() => asked().or(Some(newest)),
        newest => newest,
    };
    // The newest ready one counts, whatever else keeps it.
    let mut slots = wish.keep.saturating_sub(usize::from(newest_ready.is_some()));
    let knows_all = in_use.is_some() && (found.is_some() || !wish.auto_subscribe);

    // What is not ready for a while takes no place of what is.
    let mut spare = slots;
    let works = newest_ready.is_some();
    let mut selection = Selection::default();
    for release in ordered {
        let version = &release.name.version;
        let kept = if in_use.is_some_and(|used| used.contains(version)) {
            Some(Kept::InUse)
        } else if wish.versions.contains(version) {
            Some(Kept::InVersions)
        } else if newest_found.is_some_and(|newest| newest.name.version == *version) {
            Some(Kept::NewestFound)
        } else if newest_ready == Some(version) {
            Some(Kept::NewestReady)
        } else if release.ready && slots > 0 {
            (slots, spare) = (slots - 1, spare.saturating_sub(1));
            Some(Kept::Kept)
        } else if release.applied && spare > 0 {
            spare -= 1;
            Some(Kept::Kept)
        } else if knows_all && (works || !release.applied) {
            None
        } else {
            Some(Kept::Undecided)
        };
        match kept {
            _ if release.deleting => {
                let named = wish.versions.contains(version).then_some(Kept::InVersions);
                let newest = newest_found.filter(|newest| newest.name.version == *version);
                let missed = named.or(newest.map(|_| Kept::NewestFound));
                selection.missed.extend(missed.map(|why| (release.name.clone(), why)));
                selection.keep.push((release.name.clone(), None));
            }
            Some(kept) => selection.keep.push((release.name.clone(), Some(kept))),
            None => selection.delete.push(release.name.clone()),
        }
    }
    let there: BTreeSet<&ReleaseVersion> = existing.iter().map(|e| &e.name.version).collect();
    selection.create = wanted
        .into_iter()
        .rev()
        .filter(|version| !there.contains(version))
        .map(|version| wish.release(version))
        .collect();
    selection
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish() -> Wish {
        Wish {
            provider: "docker".into(),
            stack: "scs".into(),
            kubernetes: "1.34".parse().unwrap(),
            channel: "stable".into(),
            versions: vec![],
            auto_subscribe: true,
            keep: 1,
            range: None,
            pre_releases: vec![],
        }
    }

    fn versions(list: &[&str]) -> Vec<ReleaseVersion> {
        list.iter().map(|v| v.parse().unwrap()).collect()
    }

    fn names(list: &[&str]) -> Vec<ReleaseName> {
        versions(list).iter().map(|v| wish().release(v)).collect()
    }

    fn found(list: &[&str]) -> Vec<Found> {
        names(list).into_iter().map(|name| Found { name, revision: "r".to_owned() }).collect()
    }

    /// `v2` is ready, `v2!` is not, `v2~` is not although it was applied, `v2/` is being deleted.
    fn existing(list: &[&str]) -> Vec<Existing> {
        list.iter()
            .map(|text| {
                let version: ReleaseVersion = text.trim_end_matches(['!', '~', '/']).parse().unwrap();
                Existing {
                    name: wish().release(&version),
                    ready: !text.ends_with(['!', '~']),
                    applied: !text.ends_with('!'),
                    deleting: text.ends_with('/'),
                }
            })
            .collect()
    }

    fn shown(selection: &Selection) -> String {
        let list = |names: &[ReleaseName]| names.iter().map(|n| n.version.to_string()).collect::<Vec<_>>().join(" ");
        let keep = selection
            .keep
            .iter()
            .map(|(n, why)| format!("{}:{}", n.version, why.map_or("deleting", Kept::as_str)))
            .collect::<Vec<_>>()
            .join(" ");
        format!("+[{}] =[{keep}] -[{}]", list(&selection.create), list(&selection.delete))
    }

    struct Case {
        name: &'static str,
        versions: &'static [&'static str],
        auto: bool,
        keep: usize,
        found: Option<&'static [&'static str]>,
        existing: &'static [&'static str],
        used: Option<&'static [&'static str]>,
        expected: &'static str,
    }

    const PLAIN: Case = Case {
        name: "",
        versions: &[],
        auto: true,
        keep: 1,
        found: Some(&[]),
        existing: &[],
        used: Some(&[]),
        expected: "",
    };

    #[test]
    #[expect(clippy::too_many_lines, reason = "one table")]
    fn releases_are_created_kept_and_deleted() {
        let cases = [
            Case { name: "first poll", found: Some(&["v2", "v1"]), expected: "+[v2] =[] -[]", ..PLAIN },
            Case { name: "nothing found", expected: "+[] =[] -[]", ..PLAIN },
            Case { name: "no subscription", auto: false, found: Some(&["v2"]), expected: "+[] =[] -[]", ..PLAIN },
            Case {
                name: "versions alone",
                auto: false,
                versions: &["v1"],
                found: None,
                expected: "+[v1] =[] -[]",
                ..PLAIN
            },
            Case {
                name: "versions and newest",
                versions: &["v1"],
                found: Some(&["v2", "v1"]),
                expected: "+[v2 v1] =[] -[]",
                ..PLAIN
            },
            Case {
                name: "a new one comes, the old one stays until it is ready",
                found: Some(&["v2", "v1"]),
                existing: &["v1"],
                expected: "+[v2] =[v1:NewestReady] -[]",
                ..PLAIN
            },
            Case {
                name: "not ready yet",
                found: Some(&["v2", "v1"]),
                existing: &["v1", "v2!"],
                expected: "+[] =[v2:NewestFound v1:NewestReady] -[]",
                ..PLAIN
            },
            Case {
                name: "ready: the old one goes",
                found: Some(&["v2", "v1"]),
                existing: &["v1", "v2"],
                expected: "+[] =[v2:NewestFound] -[v1]",
                ..PLAIN
            },
            Case {
                name: "the old one is in use",
                found: Some(&["v2", "v1"]),
                existing: &["v1", "v2"],
                used: Some(&["v1"]),
                expected: "+[] =[v2:NewestFound v1:InUse] -[]",
                ..PLAIN
            },
            Case {
                name: "use is not known",
                found: Some(&["v2", "v1"]),
                existing: &["v1", "v2"],
                used: None,
                expected: "+[] =[v2:NewestFound v1:Undecided] -[]",
                ..PLAIN
            },
            Case {
                name: "of versions by content the one that is asked for counts",
                versions: &["v0-sha.aewgnup"],
                auto: false,
                found: None,
                existing: &["v0-sha.orqq5re", "v0-sha.aewgnup"],
                expected: "+[] =[v0-sha.aewgnup:InVersions] -[v0-sha.orqq5re]",
                ..PLAIN
            },
            Case {
                name: "the last ready one by content stays until the one that is asked for is ready",
                versions: &["v0-sha.aewgnup"],
                auto: false,
                found: None,
                existing: &["v0-sha.orqq5re", "v0-sha.aewgnup!"],
                expected: "+[] =[v0-sha.orqq5re:NewestReady v0-sha.aewgnup:InVersions] -[]",
                ..PLAIN
            },
            Case {
                name: "the source is down",
                found: None,
                existing: &["v1", "v2"],
                expected: "+[] =[v2:NewestReady v1:Undecided] -[]",
                ..PLAIN
            },
            Case {
                name: "the source is down but not asked",
                auto: false,
                found: None,
                existing: &["v1", "v2"],
                expected: "+[] =[v2:NewestReady] -[v1]",
                ..PLAIN
            },
            Case {
                name: "keep two",
                keep: 2,
                found: Some(&["v3"]),
                existing: &["v1", "v2", "v3"],
                expected: "+[] =[v3:NewestFound v2:Kept] -[v1]",
                ..PLAIN
            },
            Case {
                name: "keep none still keeps the newest ready",
                keep: 0,
                found: Some(&["v3"]),
                existing: &["v2", "v3!"],
                expected: "+[] =[v3:NewestFound v2:NewestReady] -[]",
                ..PLAIN
            },
            Case {
                name: "a broken newest never removes the last good one",
                found: Some(&["v4"]),
                existing: &["v1", "v2", "v3!", "v4!"],
                expected: "+[] =[v4:NewestFound v2:NewestReady] -[v3 v1]",
                ..PLAIN
            },
            Case {
                name: "nothing that was applied goes while none is ready",
                found: Some(&["v3"]),
                existing: &["v1~", "v2~", "v3!"],
                expected: "+[] =[v3:NewestFound v2:Kept v1:Undecided] -[]",
                ..PLAIN
            },
            Case {
                name: "what was never applied goes",
                found: Some(&["v3"]),
                existing: &["v1~", "v2!", "v3!"],
                expected: "+[] =[v3:NewestFound v1:Kept] -[v2]",
                ..PLAIN
            },
            Case {
                name: "what is not ready for a while is kept as if it were",
                keep: 2,
                found: Some(&["v3"]),
                existing: &["v1~", "v2~", "v3"],
                expected: "+[] =[v3:NewestFound v2:Kept] -[v1]",
                ..PLAIN
            },
            Case {
                name: "and takes no place of what is",
                keep: 2,
                found: Some(&["v4"]),
                existing: &["v1", "v2", "v3~", "v4"],
                expected: "+[] =[v4:NewestFound v3:Kept v2:Kept] -[v1]",
                ..PLAIN
            },
            Case {
                name: "the newest ready one is in use and counts",
                keep: 1,
                found: Some(&["v3"]),
                existing: &["v2", "v3"],
                used: Some(&["v3"]),
                expected: "+[] =[v3:InUse] -[v2]",
                ..PLAIN
            },
            Case {
                name: "the newest tag was deleted upstream",
                found: Some(&["v1"]),
                existing: &["v2"],
                expected: "+[v1] =[v2:NewestReady] -[]",
                ..PLAIN
            },
            Case {
                name: "a version left the spec",
                auto: false,
                versions: &["v2"],
                existing: &["v1", "v2"],
                expected: "+[] =[v2:InVersions] -[v1]",
                ..PLAIN
            },
            Case {
                name: "being deleted is neither deleted again nor counted as ready",
                found: Some(&["v2"]),
                existing: &["v2/", "v1"],
                expected: "+[] =[v2:deleting v1:NewestReady] -[]",
                ..PLAIN
            },
        ];
        for case in cases {
            let wish = Wish { versions: versions(case.versions), auto_subscribe: case.auto, keep: case.keep, ..wish() };
            let found = case.found.map(found);
            let used = case.used.map(|used| versions(used).into_iter().collect());
            let selection = select(&wish, found.as_deref(), &existing(case.existing), used.as_ref());
            assert_eq!(shown(&selection), case.expected, "{}", case.name);
        }
    }

    #[test]
    fn what_is_wanted_and_being_deleted_is_missed() {
        let wish = Wish { versions: versions(&["v1"]), ..wish() };
        let there = existing(&["v1/", "v2/", "v3/"]);
        let selection = select(&wish, Some(&found(&["v3", "v2", "v1"])), &there, Some(&BTreeSet::new()));
        let missed: Vec<String> =
            selection.missed.iter().map(|(name, why)| format!("{}:{}", name.version, why.as_str())).collect();
        assert_eq!(missed, ["v3:NewestFound", "v1:InVersions"]);
        assert!(selection.create.is_empty() && selection.delete.is_empty());
    }

    #[test]
    fn tags_are_sorted_into_found_and_passed_over() {
        let tags = [
            "docker-scs-1-34-v1",
            "docker-scs-1-34-v10",
            "docker-scs-1-34-v2",
            "docker-scs-1-33-v9",
            "docker-scs-1-34-v0-sha-abc",
            "openstack-scs2-1-34-v1",
            "openstack-scs-v5",
            "openstack-csp-helper-v0.2.0",
            "openstack-scs-1-29-v2-test",
        ];
        let stable = offer(&wish(), tags.map(|tag| (tag, "r")));
        assert_eq!(stable, Offer { found: found(&["v10", "v2", "v1"]), out_of_range: 0, passed_over: 3 });
    }

    #[test]
    fn a_range_and_pre_release_channels_narrow_what_is_found() {
        let tags = ["v1", "v2", "v3", "v2-beta.1", "v2-beta.10", "v3-rc.1", "v1-sha.abc", "v2-custom.1"]
            .map(|version| format!("docker-scs-1-34-{version}"));
        for (name, channel, pre_releases, range, expected, out_of_range) in [
            ("all stable ones", "stable", &[][..], None, "v3 v2 v1", 0),
            ("a range", "stable", &[], Some("<3"), "v2 v1", 1),
            ("nothing in the range", "stable", &[], Some(">=7"), "", 3),
            ("stable knows no pre-releases", "stable", &["beta"], None, "v3 v2 v1", 0),
            ("custom alone", "custom", &[], None, "v2-custom.1", 0),
            ("one channel", "custom", &["beta"], None, "v2-beta.10 v2-beta.1", 0),
            ("two channels", "custom", &["rc", "beta"], None, "v3-rc.1 v2-beta.10 v2-beta.1", 0),
            ("a hash", "custom", &["sha"], Some("<2"), "v1-sha.abc", 0),
            ("channels and a range", "custom", &["rc", "beta"], Some(">=2-beta.2"), "v3-rc.1 v2-beta.10", 1),
        ] {
            let wish = Wish {
                channel: channel.into(),
                pre_releases: pre_releases.iter().map(|channel| (*channel).to_owned()).collect(),
                range: range.map(|range| VersionRange::parse(range).unwrap()),
                ..wish()
            };
            let offer = offer(&wish, tags.iter().map(|tag| (tag.as_str(), "r")));
            let shown: Vec<String> = offer.found.iter().map(|found| found.name.version.to_string()).collect();
            assert_eq!((shown.join(" ").as_str(), offer.out_of_range), (expected, out_of_range), "{name}");
        }
    }

    #[test]
    fn a_range_that_can_not_be_read_is_the_specs_fault() {
        let spec = ClusterStackSpec {
            kubernetes_version: "1.34".into(),
            version_range: Some("newest".into()),
            ..ClusterStackSpec::default()
        };
        let error = Wish::of(&spec).unwrap_err().to_string();
        assert!(error.starts_with("spec.versionRange: version range \"newest\""), "{error}");
    }

    #[test]
    fn both_spellings_of_a_hash_are_one_release() {
        let custom =
            Wish { channel: "custom".into(), auto_subscribe: false, versions: versions(&["v0-sha.abc"]), ..wish() };
        let there = [Existing {
            name: custom.release(&"v0-sha-abc".parse().unwrap()),
            ready: true,
            applied: true,
            deleting: false,
        }];
        let selection = select(&custom, None, &there, Some(&BTreeSet::new()));
        assert_eq!(shown(&selection), "+[] =[v0-sha.abc:InVersions] -[]");
    }
}
