//! What lies beside an image at a destination that knows nothing of images: whose it is, what it is, who uses it.
//!
//! The record is written before the image is published and removed after it, each time only if nobody changed it meanwhile.
//! So whoever owns the record owns the name; the image is there when the record and its file are.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Claim, Image, Removal};

/// How long a removal may take before somebody else ends it.
pub(super) const REMOVAL: SignedDuration = SignedDuration::from_mins(15);
/// Bytes of a record.
pub(super) const LARGEST: u64 = 1 << 20;
/// End of a record's name.
pub(super) use crate::core::image::naming::RECORD as SUFFIX;

/// Whose an image is, what it is, who uses it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    /// `sha256:` and hex digits, of the file.
    pub digest: String,
    /// Of the file, in bytes.
    pub size: u64,
    /// `qcow2`, `raw`, …
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub format: String,
    /// What is said of the image.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub properties: Map<String, Value>,
    /// The file's name, in the same place.
    pub file: String,
    /// Ids of the management clusters that use it.
    #[serde(default)]
    pub users: Vec<String>,
    /// Who published it: object and attempt.
    pub object: String,
    /// See `object`.
    pub attempt: u32,
    /// Set by hand, it keeps us from removing it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub protected: bool,
    /// Since when it is being removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removing: Option<Timestamp>,
}

/// What to do with what is at a name, to have our image there.
#[derive(Debug, PartialEq)]
pub(super) enum Taking {
    /// Write this record.
    Write(Record),
    /// It is as it should be.
    Have,
    /// End the removal that somebody else left.
    EndRemoval,
    /// Somebody removes it: come again.
    Wait,
    /// It belongs to an image of this digest.
    Other(String),
}

/// What to do with a record, to remove our image.
#[derive(Debug, PartialEq)]
pub(super) enum Giving {
    /// Nothing; this is what there is to say.
    Leave(Removal),
    /// Write this record: others use it.
    Write(Record, Vec<String>),
    /// Write this record, then remove the file and the record.
    Remove(Record),
    /// Remove the file and the record: somebody wanted to.
    EndRemoval,
}

impl Record {
    /// The first record of an image.
    pub fn new(image: &Image, claim: &Claim, file: String) -> Self {
        Self {
            digest: image.digest.clone(),
            size: image.size,
            format: image.format.clone(),
            properties: image.properties.clone(),
            file,
            users: vec![claim.cluster.clone()],
            object: claim.object.clone(),
            attempt: claim.attempt,
            protected: false,
            removing: None,
        }
    }

    /// Whether an earlier attempt of the claim's object wrote it, or this one.
    pub fn is_of(&self, claim: &Claim) -> bool {
        self.object == claim.object && self.attempt <= claim.attempt && self.users == [claim.cluster.as_str()]
    }

    /// What to do with this record, to have `image` there as `file`; `published` is whether its own file is there.
    pub fn take(&self, image: &Image, claim: &Claim, file: String, published: bool, now: Timestamp) -> Taking {
        if let Some(since) = self.removing {
            return if now.duration_since(since) > REMOVAL { Taking::EndRemoval } else { Taking::Wait };
        }
        // What our own cluster began and did not end is nobody else's.
        let left = !published && self.users == [claim.cluster.as_str()];
        if self.digest != image.digest && !left {
            return Taking::Other(self.digest.clone());
        }
        if !published && (left || self.users.is_empty()) {
            let mine = Self::new(image, claim, file);
            return if *self == mine { Taking::Have } else { Taking::Write(mine) };
        }
        let mut mine = self.clone();
        if !published {
            mine.file = file;
        }
        if !mine.users.contains(&claim.cluster) {
            mine.users.push(claim.cluster.clone());
            mine.users.sort();
        }
        if *self == mine { Taking::Have } else { Taking::Write(mine) }
    }

    /// What to do with this record, to take `cluster` from it.
    pub fn give(&self, digest: &str, cluster: &str, now: Timestamp) -> Giving {
        if self.digest != digest {
            return Giving::Leave(Removal::Foreign);
        }
        if self.protected {
            return Giving::Leave(Removal::Protected);
        }
        if self.removing.is_some() && self.users.is_empty() {
            return Giving::EndRemoval;
        }
        if !self.users.iter().any(|user| user == cluster) {
            return Giving::Leave(Removal::Foreign);
        }
        let users: Vec<_> = self.users.iter().filter(|user| *user != cluster).cloned().collect();
        if users.is_empty() {
            return Giving::Remove(Self { users, removing: Some(now), ..self.clone() });
        }
        Giving::Write(Self { users: users.clone(), ..self.clone() }, users)
    }
}

#[cfg(test)]
#[path = "record/tests.rs"]
mod tests;
