//! What is withheld although the source has it: releases that wait for a human, or that are too new.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use jiff::Timestamp;

use super::{Existing, Found, Wish};
use crate::api::ClusterStackSpec;
use crate::api::cluster_stack::AvailableRelease;
use crate::api::condition::{Reason, whole_seconds};
use crate::api::source::Approval;
use crate::core::name::{ReleaseName, ReleaseVersion};

/// What a release has to pass before it is taken. Each rule that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    /// A human decides.
    pub manual: bool,
    /// What one decided.
    pub approvals: Approvals,
    /// How long a release must have been on offer.
    pub bake: Option<Duration>,
}

impl Gate {
    /// The gate of a spec; `annotation` holds the versions that were approved.
    pub fn of(spec: &ClusterStackSpec, annotation: Option<&str>, bake: Option<Duration>) -> Self {
        Self {
            manual: spec.approval == Some(Approval::Manual),
            approvals: Approvals::read(annotation.unwrap_or_default()),
            bake: bake.filter(|time| !time.is_zero()),
        }
    }
}

/// Whether a spec has releases wait before they are taken: what comes of one is then what was on offer, and not what its tag names
/// by now.
pub fn has_gate(spec: &ClusterStackSpec) -> bool {
    spec.approval == Some(Approval::Manual) || spec.bake_time.is_some()
}

/// Whether a release may be taken at this revision though it was made for another one: where releases wait for somebody or for a
/// time, that one was waited for. `approved` is the annotation.
pub fn may_take(spec: &ClusterStackSpec, approved: &str, version: &ReleaseVersion, revision: &str) -> bool {
    let is_it = |text: &String| text.parse::<ReleaseVersion>().is_ok_and(|named| named == *version);
    if spec.versions.iter().any(is_it) || !has_gate(spec) {
        return true;
    }
    spec.bake_time.is_none() && Approvals::read(approved).cover(version, revision)
}

/// The releases that a human approved: each with the revision that was looked at, or whatever its tag names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Approvals(BTreeMap<ReleaseVersion, Option<String>>);

impl Approvals {
    /// What an annotation approves: `v1@REVISION,v2`. What is no version approves nothing, nor does one whose revision is missing: a
    /// script that lacks it means no other.
    pub fn read(annotation: &str) -> Self {
        let mut all = Self::default();
        for entry in annotation.split(',') {
            let (version, revision) = match entry.split_once('@') {
                Some((_, revision)) if revision.trim().is_empty() => continue,
                Some((version, revision)) => (version, revision.trim()),
                None => (entry, ""),
            };
            if let Ok(version) = version.trim().parse() {
                all.approve(version, revision);
            }
        }
        all
    }

    /// Approves one more, of this revision; of any where that is empty. Whoever approved any revision approved this one too.
    pub fn approve(&mut self, version: ReleaseVersion, revision: &str) {
        let revision = (!revision.is_empty()).then(|| revision.to_owned());
        match self.0.entry(version) {
            Entry::Vacant(free) => drop(free.insert(revision)),
            Entry::Occupied(mut known) if known.get().is_some() => drop(known.insert(revision)),
            Entry::Occupied(_) => {}
        }
    }

    /// Whether a version is approved, of whatever revision.
    pub fn name(&self, version: &ReleaseVersion) -> bool {
        self.0.contains_key(version)
    }

    /// The versions, in their order.
    pub fn versions(&self) -> impl Iterator<Item = &ReleaseVersion> {
        self.0.keys()
    }

    /// Whether this release is approved. Where no revision is known there is none to compare: who asks finds it out before.
    pub fn cover(&self, version: &ReleaseVersion, revision: &str) -> bool {
        let approved = self.0.get(version);
        approved.is_some_and(|of| of.as_ref().is_none_or(|of| revision.is_empty() || of == revision))
    }
}

impl std::fmt::Display for Approvals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (n, (version, revision)) in self.0.iter().enumerate() {
            let (comma, at) = (if n == 0 { "" } else { "," }, if revision.is_some() { "@" } else { "" });
            write!(f, "{comma}{version}{at}{}", revision.as_deref().unwrap_or_default())?;
        }
        Ok(())
    }
}

/// A release that is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withheld {
    /// Its name.
    pub name: ReleaseName,
    /// What its tag names.
    pub revision: String,
    /// When it was first seen with this revision.
    pub first_seen: Timestamp,
    /// Why it is not taken.
    pub reason: Reason,
    /// When it will have been on offer for long enough, if that is still to come.
    pub baked: Option<Timestamp>,
}

/// What was found, sorted by what may be done with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sifted {
    /// The newest one that may be taken, and everything older; newest first.
    pub open: Vec<Found>,
    /// What is newer than that, newest first.
    pub withheld: Vec<Withheld>,
}

impl Sifted {
    /// When the first of the withheld ones will have been on offer for long enough.
    pub fn next_baked(&self) -> Option<Timestamp> {
        self.withheld.iter().filter(|release| release.reason == Reason::Baking).filter_map(|r| r.baked).min()
    }
}

/// Which of what was found, newest first, have to say what their tag names before they are sifted: those that wait for a human or for
/// time. Of more than `most`, which nobody is shown, only those that somebody approved.
pub fn unnamed<'f>(
    gate: &Gate,
    wish: &Wish,
    found: &'f mut [Found],
    existing: &[Existing],
    most: usize,
) -> Vec<&'f mut Found> {
    if !gate.manual && gate.bake.is_none() {
        return Vec::new();
    }
    let waiting = found.iter_mut().take_while(|release| !is_chosen(wish, existing, release)).enumerate();
    let shown = waiting.filter(|(place, release)| *place < most || gate.approvals.name(&release.name.version));
    shown.map(|(_, release)| release).filter(|release| release.revision.is_empty()).collect()
}

/// Sorts what was found, newest first. What exists was taken before and is not asked about again; what `spec.versions`
/// names was chosen by a human. `seen` is what the last pass withheld: it knows since when.
///
/// A tag that moved is another release: it has to be on offer for the whole time again.
pub fn sift(
    gate: &Gate,
    wish: &Wish,
    found: Vec<Found>,
    existing: &[Existing],
    seen: &[AvailableRelease],
    now: Timestamp,
) -> Sifted {
    let now = whole_seconds(now);
    let mut sifted = Sifted::default();
    for release in found {
        let is_open = !sifted.open.is_empty() || is_chosen(wish, existing, &release);
        match if is_open { None } else { withheld(gate, &release, seen, now) } {
            None => sifted.open.push(release),
            Some(withheld) => sifted.withheld.push(withheld),
        }
    }
    sifted
}

/// Whether a release was taken before, or `spec.versions` names it.
fn is_chosen(wish: &Wish, existing: &[Existing], release: &Found) -> bool {
    let version = &release.name.version;
    existing.iter().any(|e| !e.deleting && e.name.version == *version) || wish.versions.contains(version)
}

/// Why a release is not taken; `None` if it may be.
fn withheld(gate: &Gate, release: &Found, seen: &[AvailableRelease], now: Timestamp) -> Option<Withheld> {
    let object_name = release.name.object_name();
    let is_same = |revision: &str| revision.is_empty() || release.revision.is_empty() || revision == release.revision;
    let before = seen.iter().find(|seen| seen.name == object_name && is_same(&seen.revision));
    let first_seen = before.and_then(|seen| seen.first_seen.as_ref()).map_or(now, |time| time.0);
    let baked =
        gate.bake.map(|time| first_seen.checked_add(time).unwrap_or(Timestamp::MAX)).filter(|baked| *baked > now);
    let reason = if gate.manual && !gate.approvals.cover(&release.name.version, &release.revision) {
        Reason::WaitsForApproval
    } else if baked.is_some() {
        Reason::Baking
    } else {
        return None;
    };
    Some(Withheld { name: release.name.clone(), revision: release.revision.clone(), first_seen, reason, baked })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn at(hour: i64) -> Timestamp {
        Timestamp::from_second(hour * 3600).unwrap()
    }

    fn wish(versions: &[&str]) -> Wish {
        Wish::of(&ClusterStackSpec {
            provider: "docker".into(),
            name: "scs".into(),
            kubernetes_version: "1.34".into(),
            versions: versions.iter().map(|version| (*version).to_owned()).collect(),
            auto_subscribe: true,
            ..ClusterStackSpec::default()
        })
        .unwrap()
    }

    fn name(version: &str) -> ReleaseName {
        wish(&[]).release(&version.parse().unwrap())
    }

    /// `v2@5` was first seen at hour 5, `v2#x@5` with revision `x`.
    fn seen(text: &str) -> AvailableRelease {
        let (release, hour) = text.split_once('@').unwrap();
        let (version, revision) = release.split_once('#').unwrap_or((release, "r"));
        AvailableRelease {
            name: name(version).object_name(),
            revision: revision.to_owned(),
            first_seen: Some(Time(at(hour.parse().unwrap()))),
            ..AvailableRelease::default()
        }
    }

    fn shown(sifted: &Sifted) -> String {
        let open: Vec<String> = sifted.open.iter().map(|found| found.name.version.to_string()).collect();
        let withheld = sifted.withheld.iter().map(|release| {
            let until = release.baked.map(|at| format!("<{}", at.as_second() / 3600)).unwrap_or_default();
            format!("{}:{}@{}{until}", release.name.version, release.reason, release.first_seen.as_second() / 3600)
        });
        format!("[{}] [{}]", open.join(" "), withheld.collect::<Vec<_>>().join(" "))
    }

    struct Case {
        name: &'static str,
        manual: bool,
        approved: &'static str,
        bake: u64,
        versions: &'static [&'static str],
        found: &'static [&'static str],
        existing: &'static [&'static str],
        seen: &'static [&'static str],
        now: i64,
        expected: &'static str,
    }

    const PLAIN: Case = Case {
        name: "",
        manual: false,
        approved: "",
        bake: 0,
        versions: &[],
        found: &["v3", "v2", "v1"],
        existing: &[],
        seen: &[],
        now: 10,
        expected: "",
    };

    #[test]
    fn another_revision_is_taken_where_nobody_waits_for_one_or_it_was_approved() {
        let base = serde_json::json!({"provider": "docker", "name": "x", "kubernetesVersion": "1.34"});
        for (change, approved, expected) in [
            (serde_json::json!({}), "", true),
            (serde_json::json!({"approval": "manual"}), "", false),
            (serde_json::json!({"approval": "manual"}), "v1@old", false),
            (serde_json::json!({"approval": "manual"}), "v1@new", true),
            (serde_json::json!({"approval": "manual"}), "v1", true),
            (serde_json::json!({"approval": "manual"}), "v2", false),
            (serde_json::json!({"approval": "manual", "versions": ["v1"]}), "", true),
            (serde_json::json!({"bakeTime": "1h"}), "v1", false),
            (serde_json::json!({"bakeTime": "1h", "versions": ["v1"]}), "", true),
            (serde_json::json!({"bakeTime": "1h", "approval": "manual"}), "v1@new", false),
        ] {
            let mut spec = base.clone();
            json_patch::merge(&mut spec, &change);
            let spec: ClusterStackSpec = serde_json::from_value(spec).unwrap();
            assert_eq!(may_take(&spec, approved, &"v1".parse().unwrap(), "new"), expected, "{change} {approved}");
        }
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "one table")]
    fn releases_wait_for_a_human_and_for_their_time() {
        let cases = [
            Case { name: "no gate", expected: "[v3 v2 v1] []", ..PLAIN },
            Case {
                name: "approval without manual changes nothing",
                approved: "v1",
                expected: "[v3 v2 v1] []",
                ..PLAIN
            },
            Case {
                name: "manual: everything waits",
                manual: true,
                expected: "[] [v3:WaitsForApproval@10 v2:WaitsForApproval@10 v1:WaitsForApproval@10]",
                ..PLAIN
            },
            Case {
                name: "manual: what is newer than the approved one waits",
                manual: true,
                approved: "v2",
                expected: "[v2 v1] [v3:WaitsForApproval@10]",
                ..PLAIN
            },
            Case {
                name: "manual: another revision than the approved one waits",
                manual: true,
                approved: "v2@moved,v1@r",
                expected: "[v1] [v3:WaitsForApproval@10 v2:WaitsForApproval@10]",
                ..PLAIN
            },
            Case { name: "manual: the newest", manual: true, approved: "v1, v3", expected: "[v3 v2 v1] []", ..PLAIN },
            Case {
                name: "manual: what exists was taken before",
                manual: true,
                existing: &["v2"],
                expected: "[v2 v1] [v3:WaitsForApproval@10]",
                ..PLAIN
            },
            Case {
                name: "manual: what is being deleted waits again",
                manual: true,
                existing: &["v3/", "v2"],
                expected: "[v2 v1] [v3:WaitsForApproval@10]",
                ..PLAIN
            },
            Case {
                name: "manual: spec.versions counts as approved",
                manual: true,
                versions: &["v2"],
                expected: "[v2 v1] [v3:WaitsForApproval@10]",
                ..PLAIN
            },
            Case {
                name: "baking: the first release ever too",
                bake: 24,
                found: &["v1"],
                expected: "[] [v1:Baking@10<34]",
                ..PLAIN
            },
            Case {
                name: "baking: since it was first seen",
                bake: 24,
                found: &["v2", "v1"],
                existing: &["v1"],
                seen: &["v2@3"],
                expected: "[v1] [v2:Baking@3<27]",
                ..PLAIN
            },
            Case {
                name: "baked",
                bake: 24,
                found: &["v2", "v1"],
                existing: &["v1"],
                seen: &["v2@3"],
                now: 27,
                expected: "[v2 v1] []",
                ..PLAIN
            },
            Case {
                name: "an older one is baked first",
                bake: 24,
                seen: &["v3@20", "v2@3"],
                now: 30,
                expected: "[v2 v1] [v3:Baking@20<44]",
                ..PLAIN
            },
            Case {
                name: "a tag that moved bakes anew",
                bake: 24,
                found: &["v2"],
                seen: &["v2#other@3"],
                now: 26,
                expected: "[] [v2:Baking@26<50]",
                ..PLAIN
            },
            Case {
                name: "a listing without revisions",
                bake: 24,
                found: &["v2"],
                seen: &["v2#@3"],
                now: 26,
                expected: "[] [v2:Baking@3<27]",
                ..PLAIN
            },
            Case {
                name: "both: approved, still baking",
                manual: true,
                approved: "v3",
                bake: 24,
                found: &["v3"],
                seen: &["v3@5"],
                expected: "[] [v3:Baking@5<29]",
                ..PLAIN
            },
            Case {
                name: "both: baked, not approved",
                manual: true,
                bake: 24,
                found: &["v3"],
                seen: &["v3@5"],
                now: 40,
                expected: "[] [v3:WaitsForApproval@5]",
                ..PLAIN
            },
            Case {
                name: "versions neither bake nor wait",
                manual: true,
                bake: 24,
                versions: &["v3"],
                expected: "[v3 v2 v1] []",
                ..PLAIN
            },
        ];
        for case in cases {
            let gate = Gate {
                manual: case.manual,
                approvals: Approvals::read(case.approved),
                bake: Some(Duration::from_hours(case.bake)).filter(|time| !time.is_zero()),
            };
            let found = case.found.iter().map(|v| Found { name: name(v), revision: "r".to_owned() }).collect();
            let existing: Vec<Existing> = case
                .existing
                .iter()
                .map(|v| Existing {
                    name: name(v.trim_end_matches('/')),
                    ready: true,
                    applied: true,
                    deleting: v.ends_with('/'),
                })
                .collect();
            let seen: Vec<AvailableRelease> = case.seen.iter().map(|text| seen(text)).collect();
            let sifted = sift(&gate, &wish(case.versions), found, &existing, &seen, at(case.now));
            assert_eq!(shown(&sifted), case.expected, "{}", case.name);
        }
    }

    #[test]
    fn what_bakes_longer_than_time_lasts_is_never_taken() {
        let found = Found { name: name("v1"), revision: String::new() };
        for bake in [Duration::from_hours(99_999_999), Duration::MAX] {
            let gate = Gate { bake: Some(bake), ..Gate::default() };
            let withheld = withheld(&gate, &found, &[], at(0)).unwrap();
            assert_eq!((withheld.reason, withheld.baked), (Reason::Baking, Some(Timestamp::MAX)));
        }
    }

    #[test]
    fn the_next_pass_comes_when_the_first_one_is_baked() {
        let gate = Gate { bake: Some(Duration::from_hours(24)), ..Gate::default() };
        let found = ["v3", "v2"].map(|v| Found { name: name(v), revision: "r".to_owned() }).to_vec();
        let sifted = sift(&gate, &wish(&[]), found, &[], &[seen("v3@8"), seen("v2@2")], at(10));
        assert_eq!(sifted.next_baked(), Some(at(26)));
    }

    #[test]
    fn approvals_are_added_in_either_spelling_and_in_order() {
        for (annotation, version, revision, expected) in [
            (" v2,nonsense , v0-sha-abc", "v10", "", "v0-sha.abc,v2,v10"),
            ("", "v1", "", "v1"),
            ("v1", "v1", "", "v1"),
            ("", "v1", "abc", "v1@abc"),
            ("v1@abc, v2 @ d", "v1", "xyz", "v1@xyz,v2@d"),
            // Any revision is approved already.
            ("v1", "v1", "abc", "v1"),
            ("v1@abc", "v1", "", "v1"),
            // A revision is missing: nobody looked at one.
            ("v1@,v3@ ", "v2", "abc", "v2@abc"),
        ] {
            let mut all = Approvals::read(annotation);
            all.approve(version.parse().unwrap(), revision);
            assert_eq!(all.to_string(), expected, "{annotation:?}");
            assert_eq!(Approvals::read(expected), all);
        }
    }
}
