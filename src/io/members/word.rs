//! What members tell each other, in their Leases: objects that are to be looked at.

use std::collections::HashMap;

use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};

use crate::api::TOLD;

/// How many words stay in a Lease: those who listen do so at once.
pub(super) const KEPT: usize = 32;

/// An object that is to be looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Word {
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// As the annotation holds them.
pub(super) fn written(told: &[(u64, Word)]) -> Option<String> {
    (!told.is_empty()).then(|| serde_json::to_string(told).unwrap_or_default())
}

/// The number of the last word that was heard from each member.
#[derive(Default)]
pub(super) struct Heard(HashMap<String, u64>);

impl Heard {
    /// What is new in these Leases. What a member said before it was first seen is old.
    pub(super) fn news(&mut self, leases: &[Lease]) -> Vec<Word> {
        self.0.retain(|name, _| leases.iter().any(|lease| lease.name_any() == *name));
        let mut news = Vec::new();
        for lease in leases {
            let words: Vec<(u64, Word)> =
                lease.annotations().get(TOLD).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
            let newest = words.last().map_or(0, |(number, _)| *number);
            let before = self.0.insert(lease.name_any(), newest).unwrap_or(newest);
            news.extend(words.into_iter().filter(|(number, _)| *number > before).map(|(_, word)| word));
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_heard_once() {
        let word = |name: &str| Word { kind: "ClusterStack".into(), namespace: "team".into(), name: name.into() };
        let lease = |told: &[(u64, Word)]| {
            let mut lease = Lease::default();
            lease.metadata.name = Some("a".into());
            written(told).map(|text| lease.annotations_mut().insert(TOLD.into(), text));
            lease
        };
        let mut heard = Heard::default();
        assert_eq!(heard.news(&[lease(&[(4, word("old"))])]), []);
        let more = [(4, word("old")), (5, word("x")), (6, word("y"))];
        assert_eq!(heard.news(&[lease(&more)]), [word("x"), word("y")]);
        assert_eq!(heard.news(&[lease(&more[1..])]), []);
        let mut fresh = Heard::default();
        assert_eq!(fresh.news(&[lease(&[])]), []);
        assert_eq!(fresh.news(&[lease(&[(1, word("x"))])]), [word("x")]);
    }
}
