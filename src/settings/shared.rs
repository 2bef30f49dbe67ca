//! Which of the settings that all replicas share are in force here: what a ConfigMap holds is taken, refused, or tried.

use std::collections::BTreeMap;

use super::Flags;
use super::overlay::version;
use crate::api::operator_shard::ShardSettings;

/// What a ConfigMap holds.
pub type Data = BTreeMap<String, String>;

/// What is to be done with settings that were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// They are known, or concern nothing here.
    Nothing,
    /// They were refused: that is to be told.
    Tell,
    /// They are in force at once.
    Live,
    /// They are, as soon as the operator has begun anew and works.
    Restart,
}

/// Settings that can be used.
#[derive(Clone, Debug, PartialEq)]
struct Usable {
    flags: Flags,
    data: Data,
}

impl Usable {
    fn of(base: &Flags, replica: &str, data: Data) -> Result<Self, String> {
        let flags = base.overlaid(&data, replica).map_err(|error| error.to_string())?;
        Ok(Self { flags, data })
    }
}

/// The settings of one replica.
#[derive(Debug)]
pub struct Shared {
    base: Flags,
    replica: String,
    /// In force, or tried.
    taken: Usable,
    /// What comes back if what is tried does not work.
    before: Option<Usable>,
    /// Whether the operator works with what was taken.
    works: bool,
    /// Whether `before` was good once: the flags alone may say less than they do with the ConfigMap.
    returns_to_good: bool,
    /// Whether nothing is to be done before other settings are found.
    is_held: bool,
    wanted: String,
    refused: String,
}

impl Shared {
    /// At the start: what the ConfigMap holds; where that can't be used, what was good `last`; else nothing is done.
    pub fn begin(base: Flags, replica: &str, found: Data, last: Option<Data>) -> Self {
        let wanted = version(&found);
        let usable = |data| Usable::of(&base, replica, data);
        let alone = || Usable { flags: base.clone(), data: Data::new() };
        let good = last.and_then(|last| usable(last).ok());
        let returns_to_good = good.is_some();
        let fallback = good.unwrap_or_else(alone);
        let (taken, before, refused) = match usable(found) {
            Ok(taken) => (taken, Some(fallback), String::new()),
            Err(why) => (fallback, None, why),
        };
        let is_held = !refused.is_empty() && !returns_to_good;
        let replica = replica.to_owned();
        Self { base, replica, taken, before, works: false, returns_to_good, is_held, wanted, refused }
    }

    /// Whether nothing may be done: what was found can't be used, nothing was good before, and the flags alone may take
    /// what the ConfigMap keeps from this operator.
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    /// The flags in force, or those that are tried.
    pub fn flags(&self) -> &Flags {
        &self.taken.flags
    }

    /// What the ConfigMap held when they were taken, if the operator works with them.
    pub fn good(&self) -> Option<&Data> {
        self.works.then_some(&self.taken.data)
    }

    /// What is told of them.
    pub fn said(&self) -> ShardSettings {
        let running = if self.works { version(&self.taken.data) } else { String::new() };
        ShardSettings { running, wanted: self.wanted.clone(), refused: self.refused.clone() }
    }

    /// The ConfigMap holds something else.
    pub fn find(&mut self, found: Data) -> Step {
        let wanted = version(&found);
        if wanted == self.wanted {
            return Step::Nothing;
        }
        self.wanted = wanted;
        match Usable::of(&self.base, &self.replica, found) {
            Err(why) => {
                self.refused = why;
                Step::Tell
            }
            Ok(next) => {
                self.refused.clear();
                self.is_held = false;
                let restarts = next.flags.needs_restart(&self.taken.flags);
                let previous = std::mem::replace(&mut self.taken, next);
                if !restarts {
                    return Step::Live;
                }
                // What was tried and never worked is nothing to come back to.
                if self.works {
                    self.before = Some(previous);
                    self.returns_to_good = true;
                }
                self.works = false;
                Step::Restart
            }
        }
    }

    /// The operator works with what was taken.
    pub fn confirm(&mut self) {
        self.works = true;
        self.before = None;
    }

    /// It can't work with what was taken; whether there is something to come back to.
    pub fn fail(&mut self, why: &str) -> bool {
        let Some(before) = self.before.take().filter(|before| !self.works && before.flags != self.taken.flags) else {
            return false;
        };
        self.taken = before;
        self.is_held = !self.returns_to_good;
        why.clone_into(&mut self.refused);
        true
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    fn data(entries: &[(&str, &str)]) -> Data {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn begin(found: &[(&str, &str)], last: Option<&[(&str, &str)]>) -> Shared {
        Shared::begin(Line::parse_from(["clusterstack"]).flags, "pod-0", data(found), last.map(data))
    }

    const LIVE: [(&str, &str); 1] = [("burst", "7")];
    const DEAD: [(&str, &str); 1] = [("release-dir", "/elsewhere")];
    const BAD: [(&str, &str); 1] = [("burst", "many")];

    #[test]
    fn what_can_be_changed_at_once_is() {
        let mut shared = begin(&[], None);
        shared.confirm();
        assert_eq!(shared.said().running, "none");
        assert_eq!((shared.find(data(&LIVE)), shared.flags().burst), (Step::Live, 7));
        let said = shared.said();
        assert!(said.running == said.wanted && said.refused.is_empty() && said.wanted.len() == 12);
        assert_eq!(shared.find(data(&LIVE)), Step::Nothing);
        // Of other replicas: it is known here too.
        assert_eq!(shared.find(data(&[("burst", "7"), ("else.release-dir", "/x")])), Step::Live);
    }

    #[test]
    fn what_cannot_be_used_leaves_what_was() {
        let mut shared = begin(&LIVE, None);
        shared.confirm();
        let good = shared.said().running;
        assert_eq!((shared.find(data(&BAD)), shared.flags().burst), (Step::Tell, 7));
        let said = shared.said();
        assert!(said.running == good && said.wanted != good && said.refused.contains("burst"), "{said:?}");
        assert_eq!(shared.good(), Some(&data(&LIVE)));
        // It was taken back.
        assert_eq!((shared.find(data(&LIVE)), shared.said().refused), (Step::Live, String::new()));
    }

    #[test]
    fn who_begins_with_what_cannot_be_used_takes_what_was_good_last() {
        let shared = begin(&BAD, Some(&LIVE));
        assert_eq!((shared.flags().burst, shared.said().refused.is_empty()), (7, false));
        let shared = begin(&BAD, Some(&BAD));
        assert_eq!((shared.flags().burst, shared.said().running), (1000, String::new()));
    }

    #[test]
    fn without_good_ones_from_before_nothing_is_done() {
        let mut shared = begin(&BAD, None);
        assert!(shared.is_held() && shared.said().refused.contains("burst"));
        assert_eq!((shared.find(data(&[("qsp", "1")])), shared.is_held()), (Step::Tell, true));
        assert!(matches!(shared.find(data(&LIVE)), Step::Live) && !shared.is_held());
        // The flags alone were never good either, and are nothing to come back to.
        let mut shared = begin(&BAD, None);
        assert!(shared.find(data(&DEAD)) == Step::Restart && !shared.fail("no such directory"));
        let mut shared = begin(&DEAD, None);
        assert!(!shared.is_held() && shared.fail("no such directory") && shared.is_held());
        assert!(!begin(&[], None).is_held() && begin(&BAD, Some(&BAD)).is_held());
        // What works, or did, goes on.
        assert!(!begin(&BAD, Some(&LIVE)).is_held());
        let mut shared = begin(&DEAD, Some(&LIVE));
        assert!(shared.fail("no such directory") && !shared.is_held());
        let mut shared = begin(&[], None);
        shared.confirm();
        assert_eq!((shared.find(data(&BAD)), shared.is_held()), (Step::Tell, false));
        assert!(shared.find(data(&DEAD)) == Step::Restart && shared.fail("no such directory") && !shared.is_held());
    }

    #[test]
    fn what_does_not_work_is_given_up() {
        let mut shared = begin(&LIVE, None);
        shared.confirm();
        let good = shared.said().running;
        assert_eq!((shared.find(data(&DEAD)), shared.said().running), (Step::Restart, String::new()));
        assert!(shared.good().is_none() && shared.fail("no such directory"));
        assert_eq!((shared.flags().burst, shared.said().refused.as_str()), (7, "no such directory"));
        shared.confirm();
        assert_eq!(shared.said().running, good);
        // With what was good nothing is to come back to: the process ends.
        assert!(!shared.fail("the API server is gone"));
        let mut first = begin(&DEAD, None);
        assert!(first.fail("no such directory") && !first.fail("again"));
    }
}
