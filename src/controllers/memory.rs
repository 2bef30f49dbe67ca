//! What is remembered between passes. All of it may be lost: it saves work, it decides nothing that lasts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::api::cluster_stack_release::Resource as Row;
use crate::core::manifest::ObjectKey;
use crate::core::plan::{FIGHT_WINDOW, is_fight};
use crate::core::retry::STALLED;

/// How long the word of watches is taken for what an object applied, at most: what they can't see is found by then.
const WHOLE_LOOK: Duration = Duration::from_hours(1);

/// The memory, by UID of our objects.
#[derive(Default)]
pub struct Memory(Mutex<HashMap<String, Entry>>);

#[derive(Default)]
struct Entry {
    failures: u32,
    early_ends: u32,
    corrections: BTreeMap<ObjectKey, Correction>,
    sent_refused: Option<Instant>,
    definition_changed: bool,
    begun: Option<Instant>,
    rebuilt: Rebuilt,
    made: Option<u64>,
    asked: Option<String>,
    source_asked: Option<SourceAsked>,
    is_orphaning: bool,
    usable: Option<BTreeSet<String>>,
    created: Vec<String>,
    turn: Option<u64>,
    looked: Looked,
    left: Option<String>,
    unwritten: Option<Unwritten>,
}

/// When all that an object applied was looked at last.
#[derive(Default)]
struct Looked {
    began: Option<Instant>,
    /// What came of it is written.
    told: Option<Instant>,
    /// It is not written yet.
    untold: Option<Instant>,
}

/// What asks for the source of an object to be read.
struct SourceAsked {
    by: String,
    at: tokio::time::Instant,
    /// It said something since then. Kept, for what is seen of the object may not show yet that it was handled.
    is_answered: bool,
}

/// An inventory that could not be written.
struct Unwritten {
    /// The one that was there.
    over: Inventory,
    inventory: Inventory,
}

/// Rows of what is applied, and of what is retained.
pub type Inventory = (Vec<Row>, Vec<Row>);

/// How far the inventory of an object is rebuilt from labels.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Rebuilt {
    #[default]
    No,
    /// What there is was found in the pass that is under way.
    Found,
    /// It is written.
    Written,
}

struct Correction {
    times: Vec<Timestamp>,
    last: String,
    left_at: Option<Timestamp>,
}

impl Entry {
    fn is_known(&self) -> bool {
        !self.definition_changed && self.looked.told.is_some_and(|at| at.elapsed() < WHOLE_LOOK)
    }
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a failure in a row; how many there were before.
    pub fn failed(&self, uid: &str) -> u32 {
        let mut memory = self.lock();
        let entry = memory.entry(uid.to_owned()).or_default();
        entry.failures = entry.failures.saturating_add(1);
        entry.failures - 1
    }

    /// Ends a row of failures.
    pub fn succeeded(&self, uid: &str) {
        if let Some(entry) = self.lock().get_mut(uid) {
            entry.failures = 0;
        }
    }

    /// Counts a pass in a row that ended early, whatever it had found out by then; how many there were before.
    pub fn ended_early(&self, uid: &str) -> u32 {
        let mut memory = self.lock();
        let entry = memory.entry(uid.to_owned()).or_default();
        entry.early_ends = entry.early_ends.saturating_add(1);
        entry.early_ends - 1
    }

    /// Ends a row of passes that ended early.
    pub fn ended(&self, uid: &str) {
        if let Some(entry) = self.lock().get_mut(uid) {
            entry.early_ends = 0;
        }
    }

    /// Remembers that a pass over this object begins, and by which number of our share. Others may have written to it before.
    pub fn begins(&self, uid: &str, turn: u64) {
        let mut memory = self.lock();
        let entry = memory.entry(uid.to_owned()).or_default();
        if entry.turn.replace(turn) != Some(turn) {
            (entry.looked, entry.left, entry.unwritten) = (Looked::default(), None, None);
        }
        entry.made = entry.made.filter(|made| *made == turn);
    }

    /// Remembers the version in which a pass left this object.
    pub fn leaves(&self, uid: &str, version: Option<String>) {
        if let Some(entry) = self.lock().get_mut(uid) {
            entry.left = version;
        }
    }

    /// Whether this is the version in which the last pass left this object, after a look that is not long ago: what is seen of it is not
    /// behind that. Asked once a pass: one that comes to no end leaves nothing.
    pub fn takes_left(&self, uid: &str, version: Option<&str>) -> bool {
        let mut memory = self.lock();
        let Some(entry) = memory.get_mut(uid) else { return false };
        let left = entry.left.take();
        left.is_some() && left.as_deref() == version && entry.is_known()
    }

    /// A look at all that this object applied begins: what the one before found counts no more.
    pub fn begins_look(&self, uid: &str) {
        if let Some(entry) = self.lock().get_mut(uid) {
            entry.looked = Looked { began: Some(Instant::now()), ..Looked::default() };
        }
    }

    /// Remembers that all that this object applied was looked at; it counts when what came of it is written.
    pub fn looked(&self, uid: &str) {
        if let Some(entry) = self.lock().get_mut(uid) {
            entry.looked.untold = entry.looked.began.take();
        }
    }

    /// What this object applied is to be looked at in its next pass.
    pub fn look_again(&self, uid: &str) {
        if let Some(entry) = self.lock().get_mut(uid) {
            entry.looked = Looked::default();
        }
    }

    /// When all that this object applied was looked at, if that was lately, what came of it is written, and no definition of it
    /// changed since.
    pub fn last_look(&self, uid: &str) -> Option<Instant> {
        let memory = self.lock();
        memory.get(uid).filter(|entry| entry.is_known())?.looked.told
    }

    /// Whether the last pass over this object began with this number of our share, or a later one.
    pub fn has_begun(&self, uid: &str, turn: u64) -> bool {
        self.lock().get(uid).is_some_and(|entry| entry.turn >= Some(turn))
    }

    /// Forgets an object.
    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// Notes that what this object owns is to stay when it goes (`--cascade=orphan`): it says so itself for a moment only.
    pub fn orphans(&self, uid: &str) {
        self.lock().entry(uid.to_owned()).or_default().is_orphaning = true;
    }

    /// Whether what this object owns is to stay when it goes.
    pub fn is_orphaning(&self, uid: &str) -> bool {
        self.lock().get(uid).is_some_and(|entry| entry.is_orphaning)
    }

    /// A CustomResourceDefinition of what was refused changed: it may be taken now.
    pub fn definition_changed(&self, uid: &str) {
        self.lock().entry(uid.to_owned()).or_default().definition_changed = true;
    }

    /// Whether what was refused before is to be sent again: a definition changed since, or it is long ago.
    pub fn retries_refused(&self, uid: &str) -> bool {
        let mut memory = self.lock();
        let entry = memory.entry(uid.to_owned()).or_default();
        let due = std::mem::take(&mut entry.definition_changed)
            || entry.sent_refused.is_some_and(|at| at.elapsed() > STALLED);
        if due || entry.sent_refused.is_none() {
            entry.sent_refused = Some(Instant::now());
        }
        due
    }

    /// Whether `asked` is another than when this was last called; the first time it is not.
    pub fn asks_anew(&self, uid: &str, asked: &str) -> bool {
        let mut memory = self.lock();
        let before = memory.entry(uid.to_owned()).or_default().asked.replace(asked.to_owned());
        before.is_some_and(|before| before != asked)
    }

    /// Notes that `asked` asks for the source of this object to be read, unless something else does already. Since when: who asks is
    /// content with what is read after that.
    pub fn asked_since(&self, uid: &str, asked: &str) -> tokio::time::Instant {
        let mut memory = self.lock();
        let entry = memory.entry(uid.to_owned()).or_default();
        match &entry.source_asked {
            Some(before) if !before.is_answered || before.by == asked => before.at,
            _ => {
                let new = SourceAsked { by: asked.to_owned(), at: tokio::time::Instant::now(), is_answered: false };
                entry.source_asked.insert(new).at
            }
        }
    }

    /// Notes that the source answered; what had asked.
    pub fn answered(&self, uid: &str) -> Option<String> {
        let mut memory = self.lock();
        let asked = memory.get_mut(uid)?.source_asked.as_mut()?;
        asked.is_answered = true;
        Some(asked.by.clone())
    }

    /// Forgets what asked for the source of this object to be read: nobody does any more.
    pub fn asks_no_more(&self, uid: &str) {
        if let Some(entry) = self.lock().get_mut(uid) {
            entry.source_asked = None;
        }
    }

    /// Whether this process rebuilt this object's inventory, and wrote it.
    pub fn has_rebuilt(&self, uid: &str) -> bool {
        self.lock().get(uid).is_some_and(|entry| entry.rebuilt == Rebuilt::Written)
    }

    /// Remembers that this object's inventory was rebuilt in this pass.
    pub fn rebuilt(&self, uid: &str) {
        self.lock().entry(uid.to_owned()).or_default().rebuilt = Rebuilt::Found;
    }

    /// Forgets what a pass found that came to no end: it is not written.
    pub fn begins_to_look(&self, uid: &str) {
        if let Some(entry) = self.lock().get_mut(uid).filter(|entry| entry.rebuilt == Rebuilt::Found) {
            entry.rebuilt = Rebuilt::No;
        }
    }

    /// Remembers that what this pass found of this object is written.
    pub fn wrote(&self, uid: &str) {
        if let Some(entry) = self.lock().get_mut(uid) {
            entry.unwritten = None;
            entry.looked.told = entry.looked.untold.take().or(entry.looked.told);
            if entry.rebuilt == Rebuilt::Found {
                entry.rebuilt = Rebuilt::Written;
            }
        }
    }

    /// Remembers the inventory that a pass could not write over another one: the next one goes on from it. Looking for what was
    /// applied by labels asks for every kind there is, which an API server in trouble is to be spared.
    pub fn could_not_write(&self, uid: &str, over: Inventory, inventory: Inventory) {
        if let Some(entry) = self.lock().get_mut(uid) {
            entry.unwritten = Some(Unwritten { over, inventory });
        }
    }

    /// The inventory that the last pass could not write over the one that is there; `None` where another one is.
    pub fn unwritten(&self, uid: &str, there: &Inventory) -> Option<Inventory> {
        let memory = self.lock();
        let unwritten = memory.get(uid)?.unwritten.as_ref()?;
        (unwritten.over == *there).then(|| unwritten.inventory.clone())
    }

    /// How long ago this was asked of this object for the first time.
    pub fn begun(&self, uid: &str) -> Duration {
        self.lock().entry(uid.to_owned()).or_default().begun.get_or_insert_with(Instant::now).elapsed()
    }

    /// Remembers that this process made this object just now, by which number of our share: nothing can have been applied for it,
    /// but for one of that name before.
    pub fn made(&self, uid: &str, turn: u64) {
        self.lock().entry(uid.to_owned()).or_default().made = Some(turn);
    }

    /// Whether this process made this object and did not take that up yet.
    pub fn is_new(&self, uid: &str) -> bool {
        self.lock().get(uid).is_some_and(|entry| entry.made.is_some())
    }

    /// Whether this process made this object and has not asked that before.
    pub fn takes_new(&self, uid: &str) -> bool {
        self.lock().get_mut(uid).is_some_and(|entry| entry.made.take().is_some())
    }

    /// Whether there are releases among those that are usable now which were not before: by the last status of this process, for a
    /// pass may see an older one, or by `seen`, the one that the pass saw, where there is none yet.
    pub fn has_more_usable(&self, uid: &str, seen: BTreeSet<String>, now: BTreeSet<String>) -> bool {
        let mut memory = self.lock();
        let before = memory.entry(uid.to_owned()).or_default().usable.get_or_insert(seen);
        let has_more = !now.is_subset(before);
        *before = now;
        has_more
    }

    /// Remembers a release that this object made, and that nobody was told of.
    pub fn created(&self, uid: &str, release: String) {
        self.lock().entry(uid.to_owned()).or_default().created.push(release);
    }

    /// The releases that this object made and that nobody was told of before.
    pub fn takes_created(&self, uid: &str) -> Vec<String> {
        self.lock().get_mut(uid).map(|entry| std::mem::take(&mut entry.created)).unwrap_or_default()
    }

    /// Remembers that an object was put back; what was wrong with it.
    pub fn corrected(&self, uid: &str, key: &ObjectKey, what: &str, now: Timestamp) {
        let mut memory = self.lock();
        let entry = memory.entry(uid.to_owned()).or_default();
        let correction = entry.corrections.entry(key.clone()).or_insert_with(|| Correction {
            times: Vec::new(),
            last: String::new(),
            left_at: None,
        });
        correction.times.retain(|at| now.duration_since(*at) < FIGHT_WINDOW);
        correction.times.push(now);
        what.clone_into(&mut correction.last);
    }

    /// Ends all fights of an object: somebody changed the spec or asked, so each of its objects is put back again.
    pub fn end_fights(&self, uid: &str) {
        if let Some(entry) = self.lock().get_mut(uid) {
            entry.corrections.clear();
        }
    }

    /// The objects that are fought over and left alone for a while, with the message.
    pub fn fights(&self, uid: &str, now: Timestamp) -> BTreeMap<ObjectKey, String> {
        let mut memory = self.lock();
        let Some(entry) = memory.get_mut(uid) else { return BTreeMap::new() };
        let mut fights = BTreeMap::new();
        for (key, correction) in &mut entry.corrections {
            if let Some(left) = correction.left_at {
                if now.duration_since(left) < FIGHT_WINDOW {
                    fights.insert(key.clone(), fight_message(correction));
                    continue;
                }
                correction.left_at = None;
                correction.times.clear();
            }
            if is_fight(&correction.times, now) {
                correction.left_at = Some(now);
                fights.insert(key.clone(), fight_message(correction));
            }
        }
        fights
    }
}

fn fight_message(correction: &Correction) -> String {
    format!(
        "put back {} times in {} minutes, last {}; left alone for {} minutes: stop the other writer; for objects of a class, spec.ignoreDifferences of the ClusterStack may name the fields",
        correction.times.len(),
        FIGHT_WINDOW.as_mins(),
        correction.last,
        FIGHT_WINDOW.as_mins(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(minute * 60).unwrap()
    }

    #[test]
    fn what_was_just_made_is_new_once() {
        let memory = Memory::default();
        assert!(!memory.takes_new("u"));
        memory.made("u", 1);
        assert_eq!([memory.takes_new("v"), memory.takes_new("u"), memory.takes_new("u")], [false, true, false]);
    }

    #[test]
    fn what_another_may_have_taken_up_meanwhile_is_new_no_more() {
        let memory = Memory::default();
        memory.made("u", 1);
        memory.begins("u", 1);
        assert!(memory.is_new("u"));
        memory.begins("u", 2);
        assert!(!memory.is_new("u") && !memory.takes_new("u"));
    }

    #[test]
    fn a_release_that_was_made_is_told_of_once() {
        let memory = Memory::default();
        assert!(memory.takes_created("u").is_empty());
        memory.created("u", "v1".to_owned());
        memory.created("u", "v2".to_owned());
        assert!(memory.takes_created("v").is_empty());
        assert_eq!(memory.takes_created("u"), ["v1", "v2"]);
        assert!(memory.takes_created("u").is_empty());
    }

    #[test]
    fn what_begins_has_begun_when_it_was_first_asked_for() {
        let memory = Memory::default();
        assert!(memory.begun("u") < Duration::from_mins(1));
        let before = memory.begun("u");
        assert!(memory.begun("u") > before && memory.begun("v") < memory.begun("u"));
    }

    #[test]
    fn a_fight_is_left_for_a_while_and_taken_up_again() {
        let (memory, key) = (Memory::default(), ObjectKey::default());
        for minute in 0..4 {
            memory.corrected("u", &key, "changed by vandal: /data", at(minute));
            assert!(memory.fights("u", at(minute)).is_empty());
        }
        memory.corrected("u", &key, "changed by vandal: /data", at(4));
        let message = memory.fights("u", at(4)).remove(&key).unwrap();
        assert!(message.contains("5 times") && message.contains("vandal"), "{message}");
        assert!(!memory.fights("u", at(13)).is_empty());
        assert!(memory.fights("u", at(15)).is_empty());
    }

    #[test]
    fn a_fight_ends_when_somebody_asks() {
        let (memory, key) = (Memory::default(), ObjectKey::default());
        for minute in 0..5 {
            memory.corrected("u", &key, "changed by vandal: /data", at(minute));
        }
        assert!(!memory.fights("u", at(4)).is_empty());
        memory.end_fights("u");
        assert!(memory.fights("u", at(4)).is_empty());
    }

    #[test]
    fn who_asks_first_is_answered_first_however_many_come_after() {
        let memory = Memory::default();
        assert_eq!(memory.answered("u"), None);
        let first = memory.asked_since("u", "a");
        for later in ["a", "b", "c"] {
            assert_eq!(memory.asked_since("u", later), first);
        }
        assert_eq!(memory.answered("u").as_deref(), Some("a"));
        // It is not seen yet that it was handled.
        assert_eq!((memory.asked_since("u", "a"), memory.answered("u").as_deref()), (first, Some("a")));
        let second = memory.asked_since("u", "c");
        assert!(second > first);
        assert_eq!((memory.answered("u").as_deref(), memory.answered("v")), (Some("c"), None));
        memory.asked_since("u", "d");
        memory.asks_no_more("u");
        assert_eq!(memory.answered("u"), None);
    }

    #[test]
    fn a_changed_definition_lets_refused_objects_be_sent_once() {
        let memory = Memory::default();
        assert!(!memory.retries_refused("u"));
        memory.definition_changed("u");
        assert!(memory.retries_refused("u"));
        assert!(!memory.retries_refused("u"));
    }

    #[test]
    fn who_asks_for_the_first_time_does_not_ask_anew() {
        let memory = Memory::default();
        let asked: Vec<bool> = ["a", "a", "b", "b", "a"].iter().map(|asked| memory.asks_anew("uid", asked)).collect();
        assert_eq!(asked, [false, false, true, false, true]);
    }

    #[test]
    fn a_release_that_becomes_usable_is_more_once() {
        // What the last status said, what a pass saw that may be older, what is usable now.
        for (last, seen, now, expected) in [
            (None, &[][..], &[][..], false),
            (None, &[], &["v1"], true),
            (None, &["v1"], &["v1"], false),
            (None, &["v1"], &["v2", "v1"], true),
            (None, &["v2", "v1"], &["v2"], false),
            (Some(&["v1"][..]), &[], &["v1"], false),
            (Some(&["v1"]), &["v2"], &["v2", "v1"], true),
            (Some(&[]), &["v2"], &["v2"], true),
        ] {
            let memory = Memory::default();
            let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
            if let Some(last) = last {
                memory.has_more_usable("u", BTreeSet::new(), set(last));
            }
            let has_more = memory.has_more_usable("u", set(seen), set(now));
            assert_eq!(has_more, expected, "{last:?} {seen:?} {now:?}");
            assert!(!memory.has_more_usable("u", BTreeSet::new(), set(now)));
        }
    }

    #[test]
    fn who_has_begun_with_a_share_needs_no_other_pass_for_it() {
        let memory = Memory::default();
        assert!(!memory.has_begun("u", 0));
        memory.begins("u", 2);
        assert_eq!([1, 2, 3].map(|turn| memory.has_begun("u", turn)), [true, true, false]);
        memory.forget("u");
        assert!(!memory.has_begun("u", 1));
    }

    #[test]
    fn what_was_looked_at_counts_when_it_is_written_and_until_others_may_have_written() {
        let memory = Memory::default();
        let knows = || memory.last_look("u").is_some();
        memory.looked("u");
        assert!(!knows(), "nothing is remembered of what has no pass");
        let looks = || {
            memory.begins_look("u");
            assert!(!knows());
            memory.looked("u");
            assert!(!knows());
        };
        memory.begins("u", 1);
        looks();
        memory.wrote("u");
        assert!(knows());
        // A pass that does not look.
        memory.begins("u", 1);
        memory.wrote("u");
        assert!(knows());
        // One that looks, and comes to no end.
        looks();
        memory.begins("u", 1);
        assert!(!knows());
        looks();
        memory.wrote("u");
        memory.definition_changed("u");
        assert!(!knows());
        memory.retries_refused("u");
        assert!(knows());
        memory.look_again("u");
        assert!(!knows());
        looks();
        memory.wrote("u");
        memory.begins("u", 2);
        assert!(!knows());
    }

    #[test]
    fn a_version_that_was_left_counts_for_one_pass() {
        let memory = Memory::default();
        let ends = || {
            memory.begins_look("u");
            memory.looked("u");
            memory.wrote("u");
            memory.leaves("u", Some("7".to_owned()));
        };
        memory.begins("u", 1);
        ends();
        assert!(memory.takes_left("u", Some("7")) && !memory.takes_left("u", Some("7")));
        ends();
        assert!(!memory.takes_left("u", Some("8")) && !memory.takes_left("u", Some("7")));
        ends();
        memory.leaves("u", None);
        assert!(!memory.takes_left("u", None));
        ends();
        memory.look_again("u");
        assert!(!memory.takes_left("u", Some("7")));
        ends();
        memory.begins("u", 2);
        assert!(!memory.takes_left("u", Some("7")));
    }

    #[test]
    fn an_inventory_that_could_not_be_written_is_known_until_it_is() {
        let memory = Memory::default();
        let of = |name: &str| (vec![Row { name: name.into(), ..Row::default() }], Vec::new());
        let nothing = || (Vec::new(), Vec::new());
        memory.could_not_write("u", nothing(), of("a"));
        assert_eq!(memory.unwritten("u", &nothing()), None, "nothing is remembered of what has no pass");
        memory.begins("u", 1);
        memory.could_not_write("u", nothing(), of("a"));
        memory.begins("u", 1);
        assert_eq!(memory.unwritten("u", &nothing()), Some(of("a")));
        assert_eq!(memory.unwritten("v", &nothing()), None);
        // Somebody wrote another one meanwhile.
        assert_eq!(memory.unwritten("u", &of("b")), None);
        memory.wrote("u");
        assert_eq!(memory.unwritten("u", &nothing()), None);
        // Another replica may have had it meanwhile.
        memory.could_not_write("u", nothing(), of("a"));
        memory.begins("u", 2);
        assert_eq!(memory.unwritten("u", &nothing()), None);
    }

    #[test]
    fn failures_in_a_row_are_counted() {
        let memory = Memory::default();
        assert_eq!((memory.failed("u"), memory.failed("u")), (0, 1));
        memory.succeeded("u");
        assert_eq!(memory.failed("u"), 0);
        // Its status can't be written: what it found out before is no reason to try again at once.
        assert_eq!((memory.ended_early("u"), memory.ended_early("u")), (0, 1));
        memory.succeeded("u");
        assert_eq!(memory.ended_early("u"), 2);
        memory.ended("u");
        assert_eq!(memory.ended_early("u"), 0);
    }

    #[test]
    fn an_inventory_is_rebuilt_when_what_was_found_is_written() {
        let memory = Memory::default();
        let begins = |writes: bool| {
            memory.begins_to_look("u");
            let has = memory.has_rebuilt("u");
            if !has {
                memory.rebuilt("u");
            }
            if writes {
                memory.wrote("u");
            }
            has
        };
        // A pass that ends before it has written is repeated; one that found nothing writes nothing of it.
        assert!(!begins(false) && !begins(false));
        memory.begins_to_look("u");
        memory.wrote("u");
        assert!(!begins(true) && begins(true));
    }
}
