//! Which releases a ClusterStack should have: subscription and collection in one table.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::ClusterStackSpec;
use crate::api::cluster_stack::Channel;
use crate::core::name::{KubernetesMinor, NameError, ReleaseName, ReleaseVersion};

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
}

/// Unused ready releases that stay when the spec does not say.
pub const DEFAULT_KEEP: usize = 1;

impl Wish {
    /// Reads a spec.
    ///
    /// # Errors
    /// A version that does not parse; the API server refuses those, objects stored before may hold them.
    pub fn of(spec: &ClusterStackSpec) -> Result<Self, NameError> {
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
        })
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

/// What the tags of a source are for a wish.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Releases of the stack, Kubernetes minor and channel; newest first.
    pub found: Vec<ReleaseName>,
    /// Tags that are no release of anything.
    pub passed_over: usize,
}

/// Sorts the tags of a source: what matches, and how many are no releases at all.
pub fn offer<'a>(wish: &Wish, tags: impl IntoIterator<Item = &'a str>) -> Offer {
    let mut found = BTreeMap::new();
    let mut passed_over = 0;
    for tag in tags {
        match ReleaseName::of_stack(tag, &wish.provider, &wish.stack) {
            Some(name) if name.kubernetes == wish.kubernetes && name.version.channel() == wish.channel => {
                found.insert(name.version.clone(), name);
            }
            None if tag.parse::<ReleaseName>().is_err() => passed_over += 1,
            _ => {}
        }
    }
    Offer { found: found.into_values().rev().collect(), passed_over }
}

/// A release that exists as an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Existing {
    /// Its name.
    pub name: ReleaseName,
    /// Whether Clusters can use it.
    pub ready: bool,
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
    /// It is ready and within `spec.keep`.
    Kept,
    /// What would decide is not known now: use, or what the source offers.
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
}

/// Decides. `found` is what the source offers, `None` while it can't be read; `in_use` holds the releases in use, `None`
/// while that is not known. Nothing is deleted on half the knowledge.
pub fn select(
    wish: &Wish,
    found: Option<&[ReleaseName]>,
    existing: &[Existing],
    in_use: Option<&BTreeSet<ReleaseVersion>>,
) -> Selection {
    let newest_found = if wish.auto_subscribe { found.and_then(<[_]>::first) } else { None };
    let wanted: BTreeSet<&ReleaseVersion> =
        wish.versions.iter().chain(newest_found.map(|name| &name.version)).collect();

    let mut ordered: Vec<&Existing> = existing.iter().collect();
    ordered.sort_by(|a, b| b.name.version.cmp(&a.name.version));
    let newest_ready = ordered.iter().find(|e| e.ready && !e.deleting).map(|e| &e.name.version);
    // The newest ready one counts, whatever else keeps it.
    let mut slots = wish.keep.saturating_sub(usize::from(newest_ready.is_some()));
    let knows_all = in_use.is_some() && (found.is_some() || !wish.auto_subscribe);

    let mut selection = Selection::default();
    for release in ordered {
        let version = &release.name.version;
        let kept = if in_use.is_some_and(|used| used.contains(version)) {
            Some(Kept::InUse)
        } else if wish.versions.contains(version) {
            Some(Kept::InVersions)
        } else if newest_found.is_some_and(|newest| newest.version == *version) {
            Some(Kept::NewestFound)
        } else if newest_ready == Some(version) {
            Some(Kept::NewestReady)
        } else if release.ready && slots > 0 {
            slots -= 1;
            Some(Kept::Kept)
        } else if knows_all {
            None
        } else {
            Some(Kept::Undecided)
        };
        match kept {
            _ if release.deleting => selection.keep.push((release.name.clone(), None)),
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
        }
    }

    fn versions(list: &[&str]) -> Vec<ReleaseVersion> {
        list.iter().map(|v| v.parse().unwrap()).collect()
    }

    fn names(list: &[&str]) -> Vec<ReleaseName> {
        versions(list).iter().map(|v| wish().release(v)).collect()
    }

    /// `v2` is ready, `v2!` is not, `v2-` is being deleted.
    fn existing(list: &[&str]) -> Vec<Existing> {
        list.iter()
            .map(|text| {
                let version: ReleaseVersion = text.trim_end_matches(['!', '/']).parse().unwrap();
                Existing { name: wish().release(&version), ready: !text.ends_with('!'), deleting: text.ends_with('/') }
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
            let found = case.found.map(names);
            let used = case.used.map(|used| versions(used).into_iter().collect());
            let selection = select(&wish, found.as_deref(), &existing(case.existing), used.as_ref());
            assert_eq!(shown(&selection), case.expected, "{}", case.name);
        }
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
        let stable = offer(&wish(), tags);
        assert_eq!(stable, Offer { found: names(&["v10", "v2", "v1"]), passed_over: 3 });
    }

    #[test]
    fn both_spellings_of_a_hash_are_one_release() {
        let custom =
            Wish { channel: "custom".into(), auto_subscribe: false, versions: versions(&["v0-sha.abc"]), ..wish() };
        let there = [Existing { name: custom.release(&"v0-sha-abc".parse().unwrap()), ready: true, deleting: false }];
        let selection = select(&custom, None, &there, Some(&BTreeSet::new()));
        assert_eq!(shown(&selection), "+[] =[v0-sha.abc:InVersions] -[]");
    }
}
