//! What a watch has shown: the version of each object that it showed last, and whether its word can be taken.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

/// How long a watch has to be without an error to be believed: longer than the pauses between its attempts, so that one that is away
/// is not.
const WELL: Duration = Duration::from_mins(1);

/// Objects of one watch. Hashes stand for names and versions: there may be hundreds of thousands.
#[derive(Default)]
pub(in crate::io) struct Shown {
    hasher: RandomState,
    /// Whether all of its objects are known: between a list's end and the next list's begin.
    is_whole: bool,
    interrupted: Option<Instant>,
    objects: HashMap<u64, u64>,
    /// Of the list that is being read.
    listing: HashMap<u64, u64>,
}

/// A name, within one watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::io) struct Id(u64);

impl Shown {
    /// The name of an object.
    pub(in crate::io) fn id(&self, namespace: &str, name: &str) -> Id {
        Id(self.hasher.hash_one((namespace, name)))
    }

    /// A list begins: what was known may be out of date.
    pub(in crate::io) fn list_begins(&mut self) {
        self.is_whole = false;
        self.listing.clear();
    }

    /// An object is in the list.
    pub(in crate::io) fn lists(&mut self, id: Id, version: &str) {
        let version = self.hasher.hash_one(version);
        self.listing.insert(id.0, version);
    }

    /// The list is at its end. Those that were there before and are not any more, of whose deletion nothing else tells.
    pub(in crate::io) fn list_ends(&mut self) -> HashSet<Id> {
        self.is_whole = true;
        let before = std::mem::replace(&mut self.objects, std::mem::take(&mut self.listing));
        before.into_keys().filter(|id| !self.objects.contains_key(id)).map(Id).collect()
    }

    /// An object came or changed.
    pub(in crate::io) fn shows(&mut self, id: Id, version: &str) {
        let version = self.hasher.hash_one(version);
        self.objects.insert(id.0, version);
    }

    /// An object went, or is no longer among those that are watched.
    pub(in crate::io) fn loses(&mut self, id: Id) {
        self.objects.remove(&id.0);
    }

    /// The API server refused or did not answer, or its answer broke off.
    pub(in crate::io) fn breaks(&mut self, now: Instant) {
        self.interrupted = Some(now);
    }

    /// Whether an object is known to be in this version still, in which it was when it was looked at: it is the last one that was
    /// shown of it, and nothing broke off since.
    pub(in crate::io) fn vouches(&self, id: Id, version: &str, (looked, now): (Instant, Instant)) -> bool {
        let is_well = |at: Instant| at < looked && now.saturating_duration_since(at) >= WELL;
        self.is_whole
            && self.interrupted.is_none_or(is_well)
            && self.objects.get(&id.0) == Some(&self.hasher.hash_one(version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happens to a watch of which an object `a` was remembered in version `1`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Step {
        Begins,
        Lists(&'static str, &'static str),
        Ends,
        Shows(&'static str, &'static str),
        Loses(&'static str),
        Breaks,
        Waits(u64),
        /// The object is looked at, and is in version `1` still.
        Looks,
    }
    use Step::{Begins, Breaks, Ends, Lists, Looks, Loses, Shows, Waits};

    #[test]
    fn a_watch_vouches_for_what_it_showed_last() {
        let vouches = |steps: &[Step]| {
            let (mut shown, mut now) = (Shown::default(), Instant::now());
            let mut looked = now;
            for step in steps {
                take(&mut shown, *step, &mut now);
                if *step == Looks {
                    looked = now;
                }
            }
            shown.vouches(shown.id("n", "a"), "1", (looked, now))
        };
        for unfinished in [&[][..], &[Begins], &[Begins, Lists("a", "1")]] {
            assert!(!vouches(unfinished), "{unfinished:?}");
        }
        for (steps, expected) in [
            (&[][..], true),
            (&[Shows("b", "2")], true),
            (&[Loses("b")], true),
            // Another version: newer than what was remembered, or older.
            (&[Shows("a", "2")], false),
            (&[Shows("a", "2"), Shows("a", "1")], true),
            (&[Loses("a")], false),
            (&[Breaks], false),
            (&[Breaks, Waits(360)], false),
            (&[Breaks, Waits(1), Looks], false),
            (&[Breaks, Waits(1), Looks, Waits(58)], false),
            (&[Breaks, Waits(1), Looks, Waits(59)], true),
            (&[Breaks, Waits(60), Looks], true),
            (&[Breaks, Waits(60), Looks, Breaks, Waits(60)], false),
            // Read anew from the first.
            (&[Begins], false),
            (&[Begins, Lists("a", "1")], false),
            (&[Begins, Lists("a", "1"), Ends], true),
            (&[Begins, Lists("a", "2"), Ends], false),
            (&[Begins, Ends], false),
            // A list that broke off has shown nothing.
            (&[Begins, Lists("a", "1"), Breaks, Begins, Ends, Waits(60), Looks], false),
        ] {
            let all = [&[Begins, Lists("a", "1"), Ends], steps].concat();
            assert_eq!(vouches(&all), expected, "{steps:?}");
        }
    }

    fn take(shown: &mut Shown, step: Step, now: &mut Instant) -> HashSet<Id> {
        match step {
            Begins => shown.list_begins(),
            Lists(name, version) => shown.lists(shown.id("n", name), version),
            Ends => return shown.list_ends(),
            Shows(name, version) => shown.shows(shown.id("n", name), version),
            Loses(name) => shown.loses(shown.id("n", name)),
            Breaks => shown.breaks(*now),
            Waits(seconds) => *now += Duration::from_secs(seconds),
            Looks => {}
        }
        HashSet::new()
    }

    #[test]
    fn a_list_tells_what_went_while_nobody_watched() {
        let (mut shown, mut now) = (Shown::default(), Instant::now());
        let mut gone = |steps: &[Step]| {
            let all: Vec<HashSet<Id>> = steps.iter().map(|step| take(&mut shown, *step, &mut now)).collect();
            let names = ["a", "b", "c"].into_iter();
            let is_gone = |name: &&str| all.iter().any(|gone| gone.contains(&shown.id("n", name)));
            names.filter(is_gone).collect::<Vec<_>>()
        };
        assert!(gone(&[Begins, Lists("a", "1"), Lists("b", "1"), Ends, Shows("c", "1"), Loses("b")]).is_empty());
        assert_eq!(gone(&[Breaks, Begins, Lists("a", "2"), Ends]), ["c"]);
        assert_eq!(gone(&[Begins, Breaks, Begins, Ends]), ["a"]);
        assert!(gone(&[Begins, Ends]).is_empty());
    }
}
