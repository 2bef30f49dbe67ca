//! When a release was first rendered from an input: what `now` gives in each later rendering of it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Seed;
use super::go_template::functions::encoding::hex;
use super::go_template::functions::random::hmac_sha256;

/// Says whether two inputs are the same, and nothing of what is in them: lookups may have found Secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InputDigest(String);

impl InputDigest {
    /// Of a digest of the input, keyed with the seed of the target: nobody can try out what the input may be.
    pub fn new(seed: &Seed, input: &[u8]) -> Self {
        let digest = hmac_sha256(&seed.0, input);
        Self(hex(&digest[..16]))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct First {
    input: InputDigest,
    at: Timestamp,
}

/// The times of a target, by the names of its releases: of each that asks for the time, for the input it has now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Times(BTreeMap<String, First>);

impl Times {
    /// When the release was first rendered from that input. `None`: never yet.
    pub fn first(&self, release: &str, input: &InputDigest) -> Option<Timestamp> {
        self.0.get(release).filter(|first| first.input == *input).map(|first| first.at)
    }

    /// After a rendering of `release` that asked for the time and got `first`, or did not ask. Releases that are not among
    /// `existing` are let go.
    #[must_use]
    pub fn settled(&self, release: &str, first: Option<(InputDigest, Timestamp)>, existing: &BTreeSet<String>) -> Self {
        let mut times = self.0.clone();
        times.retain(|name, _| name != release && existing.contains(name));
        if let Some((input, at)) = first {
            times.insert(release.to_owned(), First { input, at });
        }
        Self(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_stays_with_its_input_and_goes_with_its_release() {
        let seed = Seed([7; 32]);
        let (one, other) = (InputDigest::new(&seed, b"one"), InputDigest::new(&seed, b"other"));
        let at = |second| Timestamp::from_second(second).unwrap();
        let both: BTreeSet<String> = ["v1".to_owned(), "v2".to_owned()].into();
        let times = Times::default().settled("v1", Some((one.clone(), at(1))), &both);
        let times = times.settled("v2", Some((one.clone(), at(2))), &both);
        assert_eq!((times.first("v1", &one), times.first("v2", &one)), (Some(at(1)), Some(at(2))));
        assert_eq!(times.first("v1", &other), None, "another input");
        assert_eq!(times.first("v3", &one), None);
        assert_eq!(times.settled("v1", Some((one.clone(), at(1))), &both), times, "nothing changed");
        let changed = times.settled("v1", Some((other.clone(), at(3))), &both);
        assert_eq!((changed.first("v1", &one), changed.first("v1", &other)), (None, Some(at(3))));
        assert_eq!(times.settled("v1", None, &both).first("v1", &one), None, "it no longer asks");
        let left = times.settled("v2", Some((one.clone(), at(2))), &["v2".to_owned()].into());
        assert_eq!((left.first("v1", &one), left.first("v2", &one)), (None, Some(at(2))), "v1 is gone");
        let text = serde_json::to_string(&times).unwrap();
        assert_eq!(serde_json::from_str::<Times>(&text).unwrap(), times);
    }

    #[test]
    fn a_digest_depends_on_the_seed() {
        assert_ne!(InputDigest::new(&Seed([1; 32]), b"x"), InputDigest::new(&Seed([2; 32]), b"x"));
    }
}
