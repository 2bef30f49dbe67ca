//! Destinations that know files only: a record beside each image says whose it is, what it is and who uses it.
//!
//! Guarantees: a record is written only where nobody changed it meanwhile, as far as the place can promise that; the file is
//! published after its record was, and removed before it; a file without a record is somebody else's.

use std::path::Path;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::reader::Reader;
use super::record::{Giving, Record, Taking};
use super::{Claim, Destination, DestinationError, Image, Meter, Published, Removal};
use crate::api::condition::cut;
use crate::core::image::naming;

/// How often a record is written anew that somebody else changed meanwhile.
const TRIES: usize = 20;
/// Bytes of a name that is refused, in messages.
pub(super) const SPOKEN_NAME: usize = 160;

/// What came of publishing a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placed {
    /// It has its name.
    Done,
    /// Something else has its name.
    Taken,
    /// Nothing was uploaded.
    Nothing,
}

/// A record, and the state of it that it was read in.
pub(super) struct Version<V> {
    pub record: Record,
    pub version: V,
}

/// Files under names.
#[async_trait]
pub(super) trait Shelf: Send + Sync {
    /// What tells a record from a later one.
    type Version: Send + Sync;

    /// What it is, for messages.
    fn name(&self) -> String;
    /// Where a file of it is, without secrets.
    fn location(&self, file: &str) -> String;
    /// The name that the file of an image has when it is published.
    async fn file_name(&self, image: &str, claim: &Claim) -> Result<String, DestinationError>;
    /// The record of an image.
    async fn record(&self, image: &str) -> Result<Option<Version<Self::Version>>, DestinationError>;
    /// Writes a record in place of the version, or where there is none; says whether it did, which it does not if another
    /// one is there.
    async fn write(
        &self,
        image: &str,
        record: &Record,
        instead: Option<&Self::Version>,
    ) -> Result<bool, DestinationError>;
    /// Removes a record of this version; another one stays.
    async fn erase(&self, image: &str, version: &Self::Version) -> Result<(), DestinationError>;
    /// Bytes of a published file.
    async fn size(&self, file: &str) -> Result<Option<u64>, DestinationError>;
    /// Brings a file there for this claim, where it is not published.
    async fn stage(
        &self,
        image: &Image,
        file: Reader,
        claim: &Claim,
        meter: &dyn Meter,
        cancel: &CancellationToken,
    ) -> Result<(), DestinationError>;
    /// Makes what an earlier attempt staged wholly that of the claim; whether it was there and could be.
    async fn adopt(&self, image: &Image, claim: &Claim, earlier: &Claim) -> Result<bool, DestinationError>;
    /// Gives what the claim staged its published name, unless something has it.
    async fn place(&self, image: &Image, file: &str, claim: &Claim) -> Result<Placed, DestinationError>;
    /// Removes a published file.
    async fn delete(&self, file: &str) -> Result<(), DestinationError>;
    /// Removes what attempts up to this one of the object staged, but for the file `keep`.
    async fn discard(&self, image: &str, claim: &Claim, keep: Option<&str>) -> Result<(), DestinationError>;
}

/// A destination made of files.
pub(super) struct Shelved<S>(pub S);

impl<S: Shelf> Shelved<S> {
    async fn published(&self, record: &Record) -> Result<bool, DestinationError> {
        match self.0.size(&record.file).await? {
            None => Ok(false),
            Some(size) if size == record.size => Ok(true),
            Some(size) => Err(DestinationError::Conflict {
                location: self.0.location(&record.file),
                found: format!("a file of {size} bytes"),
                wanted: format!("{} of {} bytes", record.digest, record.size),
            }),
        }
    }

    fn told(&self, record: Record) -> Published {
        Published { location: self.0.location(&record.file), digest: record.digest, users: record.users }
    }

    /// Whether a file without a record is somebody else's. Of ours the record comes first, and may have come since it
    /// was looked for.
    async fn is_foreign(&self, image: &str) -> Result<bool, DestinationError> {
        Ok(self.0.size(image).await?.is_some() && self.0.record(image).await?.is_none())
    }

    fn foreign(&self, image: &str, wanted: &str) -> DestinationError {
        let found = "a file that no record of ours describes".to_owned();
        DestinationError::Conflict { location: self.0.location(image), found, wanted: wanted.to_owned() }
    }

    fn later(&self, action: &'static str, image: &str, problem: &str) -> DestinationError {
        DestinationError::Unreachable { action, location: self.0.location(image), problem: problem.to_owned() }
    }

    /// Makes the record of an image say that it is ours too.
    async fn take(&self, image: &Image, claim: &Claim) -> Result<Record, DestinationError> {
        let file = self.0.file_name(&image.name, claim).await?;
        for _ in 0..TRIES {
            let Some(found) = self.0.record(&image.name).await? else {
                if self.is_foreign(&image.name).await? {
                    return Err(self.foreign(&image.name, &image.digest));
                }
                let record = Record::new(image, claim, file.clone());
                if self.0.write(&image.name, &record, None).await? {
                    return Ok(record);
                }
                continue;
            };
            let published = self.published(&found.record).await?;
            match found.record.take(image, claim, file.clone(), published, Timestamp::now()) {
                Taking::Have => return Ok(found.record),
                Taking::Write(record) => {
                    if self.0.write(&image.name, &record, Some(&found.version)).await? {
                        return Ok(record);
                    }
                }
                Taking::EndRemoval => self.end_removal(&image.name, &found).await?,
                Taking::Wait => return Err(self.later("publishing", &image.name, "it is being removed")),
                Taking::Other(found) => {
                    let (location, wanted) = (self.0.location(&image.name), image.digest.clone());
                    return Err(DestinationError::Conflict { location, found, wanted });
                }
            }
        }
        Err(self.later("publishing", &image.name, "others change its record all the time"))
    }

    async fn end_removal(&self, image: &str, found: &Version<S::Version>) -> Result<(), DestinationError> {
        self.0.delete(&found.record.file).await?;
        self.0.erase(image, &found.version).await
    }

    /// Takes our id from a record that was written for a file which is somebody else's.
    async fn give_back(&self, image: &str, claim: &Claim) -> Result<(), DestinationError> {
        match self.0.record(image).await? {
            Some(found) if found.record.is_of(claim) => self.0.erase(image, &found.version).await,
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl<S: Shelf> Destination for Shelved<S> {
    fn name(&self) -> String {
        self.0.name()
    }

    async fn find(&self, name: &str, cancel: &CancellationToken) -> Result<Option<Published>, DestinationError> {
        check_name(self, name)?;
        until(cancel, async {
            let Some(found) = self.0.record(name).await? else {
                let foreign = self.is_foreign(name).await?;
                return if foreign { Err(self.foreign(name, "one of ours")) } else { Ok(None) };
            };
            let there = found.record.removing.is_none() && self.published(&found.record).await?;
            Ok(there.then(|| self.told(found.record)))
        })
        .await
    }

    async fn upload(
        &self,
        image: &Image,
        file: &Path,
        claim: &Claim,
        meter: &dyn Meter,
        cancel: &CancellationToken,
    ) -> Result<(), DestinationError> {
        check_name(self, &image.name)?;
        let file = Reader::open(file, image).await?;
        self.0.stage(image, file, claim, meter, cancel).await
    }

    async fn adopt(
        &self,
        image: &Image,
        claim: &Claim,
        earlier: u32,
        cancel: &CancellationToken,
    ) -> Result<bool, DestinationError> {
        check_name(self, &image.name)?;
        let earlier = Claim { attempt: earlier, ..claim.clone() };
        until(cancel, self.0.adopt(image, claim, &earlier)).await
    }

    async fn register(
        &self,
        image: &Image,
        claim: &Claim,
        cancel: &CancellationToken,
    ) -> Result<Published, DestinationError> {
        check_name(self, &image.name)?;
        until(cancel, async {
            let record = self.take(image, claim).await?;
            if !self.published(&record).await? {
                match self.0.place(image, &record.file, claim).await? {
                    Placed::Done => {}
                    // Another attempt or cluster with the same record was quicker, or a stranger was.
                    Placed::Taken if self.published(&record).await.unwrap_or_default() => {}
                    Placed::Taken if self.0.size(&record.file).await?.is_none() => {
                        return Err(self.later("publishing", &image.name, "somebody else changed it meanwhile"));
                    }
                    Placed::Taken => {
                        self.give_back(&image.name, claim).await?;
                        return Err(self.foreign(&image.name, &image.digest));
                    }
                    Placed::Nothing => {
                        self.give_back(&image.name, claim).await?;
                        return Err(self.later("publishing", &image.name, "nothing was uploaded for this attempt"));
                    }
                }
                // A later attempt may have given it up meanwhile.
                if self.0.record(&image.name).await?.is_none_or(|found| found.record.digest != record.digest) {
                    self.0.delete(&record.file).await?;
                    return Err(self.later("publishing", &image.name, "it was given up meanwhile"));
                }
            }
            self.0.discard(&image.name, claim, Some(&record.file)).await?;
            Ok(self.told(record))
        })
        .await
    }

    async fn abandon(&self, image: &str, claim: &Claim, cancel: &CancellationToken) -> Result<(), DestinationError> {
        check_name(self, image)?;
        until(cancel, async {
            let found = self.0.record(image).await?;
            if let Some(found) = &found
                && found.record.is_of(claim)
                && self.0.size(&found.record.file).await?.is_none()
            {
                self.0.erase(image, &found.version).await?;
            }
            self.0.discard(image, claim, found.as_ref().map(|found| found.record.file.as_str())).await
        })
        .await
    }

    async fn remove(
        &self,
        image: &str,
        digest: &str,
        cluster: &str,
        dry_run: bool,
        cancel: &CancellationToken,
    ) -> Result<Removal, DestinationError> {
        check_name(self, image)?;
        until(cancel, async {
            for _ in 0..TRIES {
                let Some(found) = self.0.record(image).await? else {
                    let foreign = self.is_foreign(image).await?;
                    return Ok(if foreign { Removal::Foreign } else { Removal::Absent });
                };
                let (next, told) = match found.record.give(digest, cluster, Timestamp::now()) {
                    Giving::Leave(removal) => return Ok(removal),
                    Giving::EndRemoval if dry_run => return Ok(Removal::Removed),
                    Giving::EndRemoval => {
                        self.end_removal(image, &found).await?;
                        return Ok(Removal::Removed);
                    }
                    Giving::Write(next, users) => (next, Removal::UsedBy(users)),
                    Giving::Remove(next) => (next, Removal::Removed),
                };
                if dry_run {
                    return Ok(told);
                }
                // The next turn sees what was written, and ends the removal.
                if self.0.write(image, &next, Some(&found.version)).await? && told != Removal::Removed {
                    return Ok(told);
                }
            }
            Err(self.later("removing", image, "others change its record all the time"))
        })
        .await
    }
}

/// Gives up as soon as that is wanted.
pub(super) async fn until<T>(
    cancel: &CancellationToken,
    work: impl Future<Output = Result<T, DestinationError>> + Send,
) -> Result<T, DestinationError> {
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(DestinationError::Cancelled),
        result = work => result,
    }
}

/// A name that is one file's name anywhere, and no record's.
fn check_name<S: Shelf>(shelf: &Shelved<S>, name: &str) -> Result<(), DestinationError> {
    naming::as_file(name).map_err(|what| DestinationError::Refused {
        action: "bringing an image to",
        location: shelf.0.name(),
        problem: format!("{:?} can't be a file's name there: {what}", cut(name, SPOKEN_NAME)),
    })
}

/// Name of what an attempt staged. It begins with a dot, and ends with `.part`.
pub(super) fn staged(image: &str, claim: &Claim) -> String {
    format!("{}{}.part", staged_by(image, &claim.object), claim.attempt)
}

/// What the names of all that an object staged begin with.
pub(super) fn staged_by(image: &str, object: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    format!(".{image}.{}.", object.chars().map(plain).collect::<String>())
}

/// The attempt that staged a file of this name.
pub(super) fn attempt_of(name: &str, image: &str, object: &str) -> Option<u32> {
    name.strip_prefix(&staged_by(image, object))?.strip_suffix(".part")?.parse().ok()
}
