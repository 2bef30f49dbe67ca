//! Who works on what, where there are several replicas: rendezvous hashing of the root of the work over the members.
//!
//! Guarantees: every replica that sees the same members says the same; a member that comes or goes moves only what it gets
//! or had. It takes no notice of load: see shard classes.

pub mod life;
pub mod view;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::api::{SHARD_CLASS, WATCH_LABEL};
use crate::core::digest::hex;

/// What is worked on as a whole by one replica: a ClusterStack with its releases, a Cluster with its addons, a node image
/// with its build, a ClusterStackSource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Root {
    /// UID of the object.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its watch filter; empty without.
    pub watch_filter: String,
    /// Its shard class; empty without.
    pub class: String,
}

/// What a replica takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Reach {
    /// The only namespace; `None` for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The only watch filter; `None` for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watch_filter: Option<String>,
    /// The shard classes; none for what has no class.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub classes: BTreeSet<String>,
    /// What it serves to the API server and to Cluster API, each under the name by which that is registered.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub serves: BTreeSet<String>,
    /// What a later version says beside it: kept, so that replicas of both agree on the members.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

impl Reach {
    /// Whether the flags that narrow an operator leave the root to it, whatever its class.
    fn sees(&self, root: &Root) -> bool {
        self.namespace.as_ref().is_none_or(|only| *only == root.namespace)
            && self.watch_filter.as_ref().is_none_or(|only| *only == root.watch_filter)
    }

    /// Whether it takes the class.
    fn serves(&self, root: &Root) -> bool {
        if self.classes.is_empty() { root.class.is_empty() } else { self.classes.contains(&root.class) }
    }
}

/// What is to be changed of the labels of an object so that who works on `owner` works on it: those that `owner` has
/// otherwise, with its values; `None` where it has none.
pub fn handed_down(
    owner: &BTreeMap<String, String>,
    object: &BTreeMap<String, String>,
) -> BTreeMap<&'static str, Option<String>> {
    let labels = [WATCH_LABEL, SHARD_CLASS].into_iter();
    labels.filter(|key| owner.get(*key) != object.get(*key)).map(|key| (key, owner.get(key).cloned())).collect()
}

/// A replica that lives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its name, which no other life of it has.
    pub id: String,
    /// When it came: sorts by age, the same to all who see it.
    pub since: String,
    /// What it takes.
    pub reach: Reach,
}

/// Who has a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner<'a> {
    /// This member works on it.
    Works(&'a str),
    /// No member takes its class; this one says so.
    Tells(&'a str),
    /// No member sees it.
    Nobody,
}

/// The members that live, in the order of their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    members: Vec<Member>,
    digest: String,
}

impl Members {
    /// These members.
    pub fn new(members: impl IntoIterator<Item = Member>) -> Self {
        let mut members: Vec<Member> = members.into_iter().collect();
        members.sort_by(|a, b| a.id.cmp(&b.id));
        members.dedup_by(|a, b| a.id == b.id);
        let mut hasher = Sha256::new();
        for Member { id, since, reach } in &members {
            let reach = serde_json::to_string(reach).unwrap_or_default();
            for part in [id, since, &reach] {
                hasher.update(part);
                hasher.update([0]);
            }
        }
        let digest = hex(&hasher.finalize()[..12]);
        Self { members, digest }
    }

    /// Names the set, with all that its decisions depend on.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The members.
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.members.iter()
    }

    /// Who has a root.
    pub fn owner(&self, root: &Root) -> Owner<'_> {
        let heaviest = |among: &dyn Fn(&Member) -> bool| {
            let candidates = self.members.iter().filter(|member| among(member));
            candidates.max_by_key(|member| (weight(&member.id, &root.uid), &member.id)).map(|member| member.id.as_str())
        };
        if let Some(id) = heaviest(&|member| member.reach.sees(root) && member.reach.serves(root)) {
            return Owner::Works(id);
        }
        heaviest(&|member| member.reach.sees(root)).map_or(Owner::Nobody, Owner::Tells)
    }

    /// Who does what one alone does: the eldest. Who comes takes it from nobody.
    pub fn eldest(&self) -> Option<&str> {
        self.first_of(|_| true)
    }

    /// Who of those that serve something registers it: the eldest of them.
    pub fn eldest_serving(&self, what: &str) -> Option<&str> {
        self.first_of(|member| member.reach.serves.contains(what))
    }

    fn first_of(&self, among: impl Fn(&Member) -> bool) -> Option<&str> {
        let candidates = self.members.iter().filter(|member| among(member));
        candidates.min_by_key(|member| (&member.since, &member.id)).map(|member| member.id.as_str())
    }
}

/// The weight of a member for a root; the heaviest has it (highest random weight, Thaler and Ravishankar 1996).
fn weight(id: &str, uid: &str) -> u64 {
    let digest = Sha256::new().chain_update(id).chain_update([0]).chain_update(uid).finalize();
    digest.iter().take(8).fold(0, |weight, byte| weight << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn member(id: &str, classes: &[&str]) -> Member {
        let classes = classes.iter().map(|&class| class.to_owned()).collect();
        Member { id: id.to_owned(), since: String::new(), reach: Reach { classes, ..Reach::default() } }
    }

    fn replicas(count: usize, seed: u64) -> Vec<Member> {
        (0..count).map(|n| member(&format!("operator-{n}-{:08x}", seed.wrapping_mul(0x9e37_79b9) >> n), &[])).collect()
    }

    fn root(n: usize) -> Root {
        Root { uid: format!("0a5c2d9e-{n:04x}-4f0e-9d53-{:012x}", n * 7919), ..Root::default() }
    }

    fn shares(members: &Members, roots: usize) -> BTreeMap<String, BTreeSet<usize>> {
        let mut shares: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
        for n in 0..roots {
            let root = root(n);
            let Owner::Works(id) = members.owner(&root) else { panic!("nobody has {root:?}") };
            shares.entry(id.to_owned()).or_default().insert(n);
        }
        shares
    }

    #[test]
    fn of_500_roots_nobody_has_more_than_one_and_a_half_times_the_mean() {
        for count in 2..=10 {
            for seed in 1..=20 {
                let shares = shares(&Members::new(replicas(count, seed)), 500);
                let most = shares.values().map(BTreeSet::len).max().unwrap();
                assert!(most * count * 2 <= 500 * 3, "{most} of 500 on one of {count}");
                assert_eq!(shares.len(), count);
            }
        }
    }

    proptest! {
        #[test]
        fn who_comes_takes_and_who_goes_gives_and_nothing_else_moves(count in 1_usize..10, seed in any::<u64>()) {
            let mut all = replicas(count, seed);
            let before = Members::new(all.clone());
            all.push(member("the-new-one", &[]));
            let after = Members::new(all);
            let mut moved = 0;
            for n in 0..500 {
                let (was, is) = (before.owner(&root(n)), after.owner(&root(n)));
                if was != is {
                    prop_assert_eq!(is, Owner::Works("the-new-one"));
                    moved += 1;
                }
            }
            // One share, as even as shares are.
            prop_assert!(moved * (count + 1) <= 500 * 7 / 4, "{} moved to one of {}", moved, count + 1);
        }

        #[test]
        fn the_order_in_which_members_are_seen_changes_nothing(count in 1_usize..10, seed in any::<u64>(), n in 0_usize..500) {
            let all = replicas(count, seed);
            let (one, other) = (Members::new(all.clone()), Members::new(all.into_iter().rev()));
            prop_assert_eq!(one.digest(), other.digest());
            prop_assert_eq!(one.owner(&root(n)), other.owner(&root(n)));
        }
    }

    #[test]
    fn a_class_is_for_those_who_serve_it() {
        let members = Members::new([member("a", &[]), member("b", &["big"]), member("c", &["big", "old"])]);
        for n in 0..50 {
            let of = |class: &str| Root { class: class.to_owned(), ..root(n) };
            assert_eq!(members.owner(&of("")), Owner::Works("a"));
            assert!(matches!(members.owner(&of("big")), Owner::Works("b" | "c")));
            assert_eq!(members.owner(&of("old")), Owner::Works("c"));
            assert!(matches!(members.owner(&of("nobody's")), Owner::Tells(_)));
        }
        let (only, nobody) = (Members::new([member("b", &["big"])]), Members::default());
        assert_eq!(only.owner(&root(1)), Owner::Tells("b"));
        assert_eq!(nobody.owner(&root(1)), Owner::Nobody);
    }

    #[test]
    fn an_operator_of_one_namespace_gets_nothing_of_another() {
        let narrow = |id: &str, namespace: &str| Member {
            reach: Reach { namespace: Some(namespace.to_owned()), ..Reach::default() },
            ..member(id, &[])
        };
        let members = Members::new([narrow("a", "one"), narrow("b", "two"), member("c", &[])]);
        let seen = |namespace: &str| -> BTreeSet<String> {
            let of = |n| Root { namespace: namespace.to_owned(), ..root(n) };
            let owner = |n| match members.owner(&of(n)) {
                Owner::Works(id) => id.to_owned(),
                other => panic!("{other:?}"),
            };
            (0..50).map(owner).collect()
        };
        assert_eq!(seen("one"), BTreeSet::from(["a".to_owned(), "c".to_owned()]));
        assert_eq!(seen("three"), BTreeSet::from(["c".to_owned()]));
        let filtered = Reach { watch_filter: Some("blue".into()), ..Reach::default() };
        assert!(!filtered.sees(&root(1)) && filtered.sees(&Root { watch_filter: "blue".into(), ..root(1) }));
    }

    #[test]
    fn what_some_serve_the_eldest_of_them_registers() {
        let serving = |id: &str, since: &str, what: &[&str]| {
            let serves = what.iter().map(|&what| what.to_owned()).collect();
            Member { since: since.to_owned(), reach: Reach { serves, ..Reach::default() }, ..member(id, &[]) }
        };
        let all =
            [serving("a", "1", &[]), serving("b", "2", &["webhook x"]), serving("c", "3", &["webhook x", "hooks x"])];
        let members = Members::new(all);
        assert_eq!(members.eldest_serving("webhook x"), Some("b"));
        assert_eq!(members.eldest_serving("hooks x"), Some("c"));
        assert_eq!(members.eldest_serving("hooks y"), None);
    }

    #[test]
    fn what_a_later_version_says_beside_is_kept() {
        let text = r#"{"classes":["big"],"later":{"a":1}}"#;
        let reach: Reach = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&reach).unwrap(), text);
    }

    #[test]
    fn an_object_has_the_labels_of_its_owner_and_keeps_its_own_others() {
        let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let blue = labels(&[(WATCH_LABEL, "blue"), ("team", "a")]);
        let green = labels(&[(WATCH_LABEL, "green"), (SHARD_CLASS, "far"), ("team", "b")]);
        let (value, far) = (|text: &str| Some(text.to_owned()), "far".to_owned());
        for (owner, object, changes) in [
            (&blue, &blue, vec![]),
            (&blue, &green, vec![(SHARD_CLASS, None), (WATCH_LABEL, value("blue"))]),
            (&green, &blue, vec![(SHARD_CLASS, Some(far)), (WATCH_LABEL, value("green"))]),
            (&labels(&[]), &blue, vec![(WATCH_LABEL, None)]),
        ] {
            let found = handed_down(owner, object);
            assert_eq!(found, changes.into_iter().collect(), "{owner:?} {object:?}");
        }
    }

    #[test]
    fn the_eldest_stays_the_eldest() {
        let aged = |id: &str, since: &str| Member { since: since.to_owned(), ..member(id, &[]) };
        let old = Members::new([aged("z", "2026-01-01T00:00:00Z"), aged("m", "2026-01-01T00:00:05Z")]);
        let more = Members::new(old.iter().cloned().chain([aged("a", "2026-01-01T00:01:00Z")]));
        assert_eq!((old.eldest(), more.eldest(), Members::default().eldest()), (Some("z"), Some("z"), None));
        assert_ne!(old.digest(), more.digest());
    }
}
