//! What the demo claims, and what came true.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::screen::{BAD, BOLD, GOOD, seconds};

/// One claim, in the order of the story.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Promise {
    V1Ready,
    V2Subscribed,
    V2Ready,
    V1Collected,
    V3Subscribed,
    V3Ready,
    V2Stays,
    EditPutBack,
    DeletedPutBack,
    V2Collected,
}

impl Promise {
    const ALL: [Self; 10] = [
        Self::V1Ready,
        Self::V2Subscribed,
        Self::V2Ready,
        Self::V1Collected,
        Self::V3Subscribed,
        Self::V3Ready,
        Self::V2Stays,
        Self::EditPutBack,
        Self::DeletedPutBack,
        Self::V2Collected,
    ];

    /// In words.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::V1Ready => "v1 is ready after the ClusterStack was created",
            Self::V2Subscribed => "v2 is subscribed after it was tagged (the source is read every 10 s)",
            Self::V2Ready => "v2 is ready",
            Self::V1Collected => "v1 is collected with all its objects: nobody uses it",
            Self::V3Subscribed => "v3 is subscribed after it was tagged",
            Self::V3Ready => "v3 is ready",
            Self::V2Stays => "v2 stays beside it: a Cluster uses it",
            Self::EditPutBack => "an object that was edited by hand is put back",
            Self::DeletedPutBack => "an object that was deleted by hand is put back",
            Self::V2Collected => "v2 is collected after the Cluster moved to v3",
        }
    }
}

/// How long each took that came true.
#[derive(Default)]
pub(super) struct Promises(BTreeMap<Promise, Duration>);

impl Promises {
    /// One came true.
    pub(super) fn came_true(&mut self, promise: Promise, after: Duration) {
        self.0.insert(promise, after);
    }

    /// Whether all did.
    pub(super) fn all_came_true(&self) -> bool {
        self.0.len() == Promise::ALL.len()
    }

    /// All of them as a table, coloured.
    pub(super) fn table(&self) -> String {
        let mut text = format!("{BOLD}What came true{BOLD:#}\n");
        for promise in Promise::ALL {
            let _ = match self.0.get(&promise) {
                Some(after) => writeln!(text, "  {GOOD}✓{GOOD:#} {:>7}  {}", seconds(*after), promise.text()),
                None => writeln!(text, "  {BAD}✗{BAD:#}       -  {}", promise.text()),
            };
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_come_true_is_said() {
        let mut promises = Promises::default();
        promises.came_true(Promise::V1Ready, Duration::from_millis(420));
        assert!(!promises.all_came_true());
        let text = anstream::adapter::strip_str(&promises.table()).to_string();
        assert!(text.contains("✓  0.42 s  v1 is ready after"), "{text}");
        assert!(text.contains("✗       -  v2 is collected after the Cluster moved"), "{text}");
        for promise in Promise::ALL {
            promises.came_true(promise, Duration::ZERO);
        }
        assert!(promises.all_came_true());
    }
}
