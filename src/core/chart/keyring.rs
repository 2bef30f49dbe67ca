//! What random functions draw from, and the keys and certificates they made: kept, so that each rendering of a target
//! finds the same ones again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::Lookup;

/// What random functions draw from. Debug does not show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub [u8; 32]);

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(..)")
    }
}

/// A private key, with its certificate if it has one. Debug does not show them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
    /// Where it is made, for people: the function and its template.
    #[serde(default)]
    pub of: String,
    /// PEM.
    pub key: String,
    /// PEM; empty for a key alone.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub certificate: String,
    /// How often it was made anew.
    #[serde(default)]
    pub generation: u32,
    /// When it is to be made anew: at two thirds of the certificate's life. A key alone never is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renew: Option<Timestamp>,
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("generation", &self.generation).field("renew", &self.renew).finish_non_exhaustive()
    }
}

/// What a rendering asked for and did not get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// What it looked up.
    pub lookups: BTreeSet<Lookup>,
    /// Something to draw from.
    pub seed: bool,
    /// The time.
    pub time: bool,
}

impl Needs {
    /// Takes in what else is needed; whether that is anything new.
    pub fn extend(&mut self, more: &Self) -> bool {
        let before = self.lookups.len();
        self.lookups.extend(more.lookups.iter().cloned());
        let had = (self.seed, self.time);
        self.seed |= more.seed;
        self.time |= more.time;
        had != (self.seed, self.time) || self.lookups.len() > before
    }
}

/// Keys and certificates by the place of the draw that made them.
pub type Drawn = BTreeMap<String, Kept>;

/// When a certificate that is valid from `start` for `days` is to be made anew. One that is never valid is never made anew.
pub fn renewal(start: Timestamp, days: i64) -> Option<Timestamp> {
    if days <= 0 {
        return None;
    }
    let life = SignedDuration::from_secs(days.checked_mul(86_400)?);
    start.checked_add(life / 3 * 2).ok()
}

/// The keyring of a target: what was drawn, and which of its releases use it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Keyring(BTreeMap<String, Entry>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    kept: Kept,
    /// Names of releases.
    used_by: BTreeSet<String>,
}

impl Keyring {
    /// What can be found again.
    pub fn drawn(&self) -> Drawn {
        self.0.iter().map(|(place, entry)| (place.clone(), entry.kept.clone())).collect()
    }

    /// After a rendering of `release` that used `drawn`: what it no longer uses, and what only releases use that are not
    /// among `existing`, is let go.
    #[must_use]
    pub fn settled(&self, release: &str, drawn: &Drawn, existing: &BTreeSet<String>) -> Self {
        let mut entries = self.0.clone();
        for entry in entries.values_mut() {
            entry.used_by.retain(|user| user != release && existing.contains(user));
        }
        for (place, kept) in drawn {
            let new = Entry { kept: kept.clone(), used_by: BTreeSet::new() };
            let entry = entries.entry(place.clone()).or_insert(new);
            entry.kept.clone_from(kept);
            entry.used_by.insert(release.to_owned());
        }
        entries.retain(|_, entry| !entry.used_by.is_empty());
        Self(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(places: &[&str]) -> Drawn {
        let kept = |place: &str| Kept {
            of: String::new(),
            key: place.into(),
            certificate: String::new(),
            generation: 0,
            renew: None,
        };
        places.iter().map(|place| ((*place).to_owned(), kept(place))).collect()
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn what_no_release_uses_is_let_go() {
        let both = names(&["v1", "v2"]);
        let ring =
            Keyring::default().settled("v1", &drawn(&["a", "b"]), &both).settled("v2", &drawn(&["b", "c"]), &both);
        let places = |ring: &Keyring| ring.drawn().into_keys().collect::<Vec<_>>().concat();
        assert_eq!(places(&ring), "abc");
        assert_eq!(places(&ring.settled("v1", &drawn(&["b"]), &both)), "bc", "v1 no longer uses a");
        assert_eq!(places(&ring.settled("v2", &drawn(&["b", "c"]), &names(&["v2"]))), "bc", "v1 is gone");
        assert_eq!(ring.settled("v2", &drawn(&["b", "c"]), &both), ring, "nothing changed");
        let text = serde_json::to_string(&ring).unwrap();
        assert_eq!(serde_json::from_str::<Keyring>(&text).unwrap(), ring);
    }

    #[test]
    fn a_certificate_is_renewed_at_two_thirds_of_its_life() {
        let start = Timestamp::from_second(0).unwrap();
        assert_eq!(renewal(start, 3), Some(Timestamp::from_second(2 * 86_400).unwrap()));
        assert_eq!(renewal(start, i64::MAX), None);
        assert_eq!((renewal(start, 0), renewal(start, -5)), (None, None));
        assert_eq!(renewal(start, 100_000_000), None, "past what a timestamp can say");
    }

    #[test]
    fn debug_shows_nothing_secret() {
        let shown = format!("{:?} {:?}", Seed([77; 32]), drawn(&["secret"])["secret"]);
        assert!(!shown.contains("77") && !shown.contains("secret"), "{shown}");
    }
}
