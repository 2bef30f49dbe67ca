//! A repository of an OCI registry: an image is an artifact of one layer, under the tag of its name.
//!
//! The blob is sent in chunks, which nobody sees; pushing the tag publishes it, by one step. Each management cluster that
//! uses an image says so by a tag of its own, `<name>.user.<id>`, on a small artifact of its own: so none overwrites what
//! another one says, in registries that know no conditions. A tag `<name>.protected`, made by hand, keeps an image.
//!
//! Caveats: an upload goes on where it broke off as long as the destination stays open; what is removed is the tag, and the
//! registry's own garbage collection frees the space.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use reqwest::Url;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::reader::Reader;
use super::shelf::{SPOKEN_NAME, until};
use super::web::{FIELDS, PATIENCE, of_source};
use super::{Claim, Destination, DestinationError, Image, Meter, Published, Removal};
use crate::api::condition::cut;
use crate::api::image_destination::OciDestination;
use crate::core::artifact::{Descriptor, Document, MANIFEST, Manifest, TITLE};
use crate::core::image::naming::{self, PROTECTED, USED_BY};
use crate::core::source::AllowList;
use crate::io::registry::Registry;
use crate::io::source::{Access, SourceError};
use crate::io::store::Digest;

/// What an image is.
pub const IMAGE: &str = "application/vnd.clusterstack.node-image.v1";
/// What says that a management cluster uses an image.
pub const USER: &str = "application/vnd.clusterstack.node-image.user.v1";
/// Annotation with the format of the image.
pub const FORMAT: &str = "io.clusterstack.node-image.format";
/// Annotation with all else that is said of the image, as JSON.
pub const PROPERTIES: &str = "io.clusterstack.node-image.properties";
/// Annotation with the id of a management cluster.
pub const CLUSTER: &str = "io.clusterstack.node-image.cluster";
/// Media type of `{}`.
const EMPTY: &str = "application/vnd.oci.empty.v1+json";
/// Bytes of a chunk.
const CHUNK: usize = 4 << 20;
/// How often a chunk is sent that does not arrive.
const TRIES: u32 = 4;
/// How long a chunk is waited for that is on its way when all is cancelled.
const GRACE: Duration = Duration::from_secs(5);
/// How often an image is looked at anew that others change.
const TURNS: usize = 5;
const UPLOADING: &str = "uploading to";
const PUBLISHING: &str = "publishing in";
const READING: &str = "reading from";
const REMOVING: &str = "removing from";

/// A repository of images.
pub(super) struct Oci {
    registry: Registry,
    /// What is being uploaded, by object and attempt.
    uploads: Mutex<HashMap<(String, u32), Upload>>,
}

#[derive(Clone)]
struct Upload {
    digest: String,
    place: Url,
}

/// An image under its tag.
struct Tagged {
    manifest: Digest,
    bytes: Bytes,
    /// Of the file.
    digest: String,
}

impl Oci {
    /// The repository that a spec names.
    ///
    /// # Errors
    /// Its name is none, or may not be used.
    pub fn new(spec: &OciDestination, access: &Access, allow: &AllowList) -> Result<Self, DestinationError> {
        // Nothing is downloaded, so that nothing is kept there.
        let registry = Registry::new(&spec.repository, access, allow, Path::new(""))
            .and_then(|registry| registry.patient(access, allow, PATIENCE));
        let location = crate::core::source::redact(&spec.repository);
        let registry = registry.map_err(|error| of_source("using repository", &location, &error, FIELDS))?;
        Ok(Self { registry, uploads: Mutex::default() })
    }

    fn location(&self, tag: &str) -> String {
        format!("{}:{tag}", self.registry.repository())
    }

    fn failed(&self, action: &'static str, tag: &str) -> impl Fn(SourceError) -> DestinationError {
        let location = self.location(tag);
        move |error| match error {
            // It says so for a repository without any tag too.
            SourceError::NoRepository { problem, .. } => {
                DestinationError::Refused { action, location: location.clone(), problem }
            }
            other => of_source(action, &location, &other, FIELDS),
        }
    }

    fn uploads(&self) -> MutexGuard<'_, HashMap<(String, u32), Upload>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, name: &str) -> Result<(), DestinationError> {
        naming::as_tag(name).map_err(|what| DestinationError::Refused {
            action: PUBLISHING,
            location: self.registry.repository().to_string(),
            problem: format!("{:?} can't be a tag there: {what}", cut(name, SPOKEN_NAME)),
        })
    }

    fn conflict(&self, name: &str, found: &str, wanted: &str) -> DestinationError {
        DestinationError::Conflict { location: self.location(name), found: found.to_owned(), wanted: wanted.to_owned() }
    }

    /// What the tag of an image names.
    async fn tagged(&self, name: &str, wanted: &str) -> Result<Option<Tagged>, DestinationError> {
        let bytes = self.registry.manifest_bytes(name).await.map_err(self.failed(READING, name))?;
        let Some(bytes) = bytes else { return Ok(None) };
        let ours = |document: Document| match document {
            Document::Manifest(manifest) if manifest.artifact_type.as_deref() == Some(IMAGE) => {
                manifest.layers.first().map(|layer| layer.digest.clone())
            }
            _ => None,
        };
        let Some(digest) = Document::parse(&bytes).ok().and_then(ours) else {
            return Err(self.conflict(name, "something that is no image of ours", wanted));
        };
        Ok(Some(Tagged { manifest: Digest::of(&bytes), bytes, digest }))
    }

    /// Ids of those who use an image, and whether it is protected.
    async fn users(&self, name: &str) -> Result<(Vec<String>, bool), DestinationError> {
        let tags = match self.registry.tags().await {
            // There is none yet.
            Err(SourceError::NoRepository { .. }) => Vec::new(),
            other => other.map_err(self.failed(READING, name))?,
        };
        let (prefix, protected) = (format!("{name}{USED_BY}"), format!("{name}{PROTECTED}"));
        let protected = tags.contains(&protected);
        Ok((tags.iter().filter_map(|tag| tag.strip_prefix(&prefix)).map(ToOwned::to_owned).collect(), protected))
    }

    async fn push(&self, tag: &str, manifest: &Manifest) -> Result<(), DestinationError> {
        let failed = self.failed(PUBLISHING, tag);
        self.registry.push_blob(&Bytes::from_static(b"{}")).await.map_err(&failed)?;
        self.registry.push_manifest(tag, MANIFEST, bytes_of(manifest)).await.map_err(failed).map(drop)
    }

    /// Says that a management cluster uses an image.
    async fn add_user(&self, name: &str, digest: &str, cluster: &str) -> Result<(), DestinationError> {
        let annotations = BTreeMap::from([
            (CLUSTER.to_owned(), cluster.to_owned()),
            ("io.clusterstack.node-image.name".to_owned(), name.to_owned()),
            ("io.clusterstack.node-image.digest".to_owned(), digest.to_owned()),
        ]);
        self.push(&user_tag(name, cluster), &artifact(USER, empty(), annotations)).await
    }

    async fn take_user(&self, name: &str, cluster: &str) -> Result<(), DestinationError> {
        let tag = user_tag(name, cluster);
        let failed = self.failed(REMOVING, name);
        match self.registry.digest(&tag).await.map_err(&failed)? {
            Some(digest) => self.registry.delete_tag(&tag, &digest).await.map_err(failed),
            None => Ok(()),
        }
    }

    async fn told(&self, name: &str, digest: String) -> Result<Published, DestinationError> {
        let (users, _) = self.users(name).await?;
        Ok(Published { location: self.location(name), digest, users })
    }

    /// Where the rest of an upload goes, and what arrived of it: of the one that was begun, or of a new one.
    async fn begin(&self, image: &Image, claim: &Claim) -> Result<(Url, u64), DestinationError> {
        let key = (claim.object.clone(), claim.attempt);
        let failed = self.failed(UPLOADING, &image.name);
        let known = self.uploads().get(&key).cloned();
        if let Some(known) = known {
            if known.digest == image.digest
                && let Some(there) = self.registry.upload_offset(&known.place).await.map_err(&failed)?
            {
                return Ok(there);
            }
            self.registry.cancel_upload(&known.place).await.map_err(&failed)?;
        }
        let place = self.registry.begin_upload().await.map_err(failed)?;
        self.remember(image, claim, &place);
        Ok((place, 0))
    }

    fn remember(&self, image: &Image, claim: &Claim, place: &Url) {
        let upload = Upload { digest: image.digest.clone(), place: place.clone() };
        self.uploads().insert((claim.object.clone(), claim.attempt), upload);
    }

    /// Sends what of a piece did not arrive yet, until it does.
    async fn send(
        &self,
        image: &Image,
        claim: &Claim,
        (place, arrived): (Url, u64),
        (offset, piece): (u64, &Bytes),
    ) -> Result<(Url, u64), DestinationError> {
        let end = offset + piece.len() as u64;
        let (mut place, mut arrived) = (place, arrived);
        let mut pause = Duration::from_millis(500);
        let mut attempt = 1;
        while arrived < end {
            let from = usize::try_from(arrived.saturating_sub(offset)).unwrap_or(usize::MAX).min(piece.len());
            let sent = self.registry.send_chunk(&place, arrived, &piece.slice(from..)).await;
            match sent.map_err(self.failed(UPLOADING, &image.name)) {
                Ok(next) => (place, arrived) = (next, end),
                Err(error) if error.is_transient() && attempt < TRIES => {
                    tokio::time::sleep(pause).await;
                    (attempt, pause) = (attempt + 1, pause * 2);
                    let there = self.registry.upload_offset(&place).await;
                    match there.map_err(self.failed(UPLOADING, &image.name)) {
                        Ok(Some((next, there))) if there >= offset => (place, arrived) = (next, there),
                        // It forgot what had arrived: the whole upload begins anew.
                        Ok(_) => return Err(error),
                        Err(_) => {}
                    }
                }
                Err(error) => return Err(error),
            }
            self.remember(image, claim, &place);
        }
        Ok((place, arrived))
    }

    async fn send_all(
        &self,
        image: &Image,
        mut file: Reader,
        claim: &Claim,
        meter: &dyn Meter,
        cancel: &CancellationToken,
    ) -> Result<(), DestinationError> {
        let failed = self.failed(UPLOADING, &image.name);
        let digest = digest_of(image, &failed)?;
        if self.registry.has_blob(UPLOADING, &digest).await.map_err(&failed)? {
            meter.done(image.size);
            return Ok(());
        }
        let mut there = self.begin(image, claim).await?;
        let mut offset = 0;
        while let Some(piece) = file.next(CHUNK).await? {
            if cancel.is_cancelled() {
                return Err(DestinationError::Cancelled);
            }
            there = self.send(image, claim, there, (offset, &piece)).await?;
            offset += piece.len() as u64;
            meter.done(offset);
        }
        self.registry.end_upload(&there.0, &digest).await.map_err(failed)?;
        self.uploads().remove(&(claim.object.clone(), claim.attempt));
        Ok(())
    }

    async fn publish(&self, image: &Image, claim: &Claim) -> Result<Published, DestinationError> {
        let failed = self.failed(PUBLISHING, &image.name);
        let digest = digest_of(image, &failed)?;
        for turn in 0..TURNS {
            if let Some(tagged) = self.tagged(&image.name, &image.digest).await? {
                if tagged.digest != image.digest {
                    if turn > 0 {
                        self.take_user(&image.name, &claim.cluster).await?;
                    }
                    return Err(self.conflict(&image.name, &tagged.digest, &image.digest));
                }
                self.add_user(&image.name, &image.digest, &claim.cluster).await?;
                // Whoever removes it looks for users again afterwards; so it is there now, or somebody else's turn was first.
                if self.tagged(&image.name, &image.digest).await?.is_some() {
                    return self.told(&image.name, image.digest.clone()).await;
                }
            }
            if !self.registry.has_blob(PUBLISHING, &digest).await.map_err(&failed)? {
                self.take_user(&image.name, &claim.cluster).await?;
                let (location, problem) = (self.location(&image.name), "nothing was uploaded".to_owned());
                return Err(DestinationError::Unreachable { action: PUBLISHING, location, problem });
            }
            self.add_user(&image.name, &image.digest, &claim.cluster).await?;
            self.push(&image.name, &artifact(IMAGE, layer(image), annotations(image))).await?;
        }
        let (location, problem) = (self.location(&image.name), "others change it all the time".to_owned());
        Err(DestinationError::Unreachable { action: PUBLISHING, location, problem })
    }
}

#[async_trait]
impl Destination for Oci {
    fn name(&self) -> String {
        format!("repository {}", self.registry.repository())
    }

    async fn find(&self, name: &str, cancel: &CancellationToken) -> Result<Option<Published>, DestinationError> {
        self.check(name)?;
        until(cancel, async {
            match self.tagged(name, "one of ours").await? {
                Some(tagged) => self.told(name, tagged.digest).await.map(Some),
                None => Ok(None),
            }
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
        self.check(&image.name)?;
        let file = Reader::open(file, image).await?;
        let work = self.send_all(image, file, claim, meter, cancel);
        let late = async {
            cancel.cancelled().await;
            tokio::time::sleep(GRACE).await;
        };
        // A chunk that is on its way is waited for: a registry goes on with what it has of it for a while.
        let done = tokio::select! {
            biased;
            done = work => done,
            () = late => Err(DestinationError::Cancelled),
        };
        match done {
            // What arrived is of a file that is not the image.
            Err(error @ DestinationError::File { .. }) => {
                self.abandon(&image.name, claim, cancel).await?;
                Err(error)
            }
            other => other,
        }
    }

    /// A blob is anybody's.
    async fn adopt(
        &self,
        image: &Image,
        _claim: &Claim,
        _earlier: u32,
        cancel: &CancellationToken,
    ) -> Result<bool, DestinationError> {
        self.check(&image.name)?;
        let failed = self.failed(READING, &image.name);
        let digest = digest_of(image, &failed)?;
        until(cancel, async { self.registry.has_blob(READING, &digest).await.map_err(&failed) }).await
    }

    async fn register(
        &self,
        image: &Image,
        claim: &Claim,
        cancel: &CancellationToken,
    ) -> Result<Published, DestinationError> {
        self.check(&image.name)?;
        until(cancel, self.publish(image, claim)).await
    }

    async fn abandon(&self, image: &str, claim: &Claim, cancel: &CancellationToken) -> Result<(), DestinationError> {
        until(cancel, async {
            let ours = |(object, attempt): &(String, u32)| *object == claim.object && *attempt <= claim.attempt;
            let given_up: Vec<_> =
                self.uploads().iter().filter(|(key, _)| ours(key)).map(|(key, up)| (key.clone(), up.clone())).collect();
            for (key, upload) in given_up {
                self.registry.cancel_upload(&upload.place).await.map_err(self.failed(REMOVING, image))?;
                self.uploads().remove(&key);
            }
            Ok(())
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
        self.check(image)?;
        until(cancel, async {
            let tagged = match self.tagged(image, digest).await {
                Err(DestinationError::Conflict { .. }) => return Ok(Removal::Foreign),
                other => other?,
            };
            let (users, protected) = self.users(image).await?;
            let ours = users.iter().any(|user| user == cluster);
            let Some(tagged) = tagged else {
                if ours && !dry_run {
                    self.take_user(image, cluster).await?;
                }
                return Ok(Removal::Absent);
            };
            if tagged.digest != digest || !ours {
                return Ok(Removal::Foreign);
            }
            if protected {
                return Ok(Removal::Protected);
            }
            let others: Vec<_> = users.into_iter().filter(|user| user != cluster).collect();
            if dry_run {
                return Ok(if others.is_empty() { Removal::Removed } else { Removal::UsedBy(others) });
            }
            if !others.is_empty() {
                self.take_user(image, cluster).await?;
                // Of several who leave at once, the last one to look removes it.
                let (others, _) = self.users(image).await?;
                if !others.is_empty() {
                    return Ok(Removal::UsedBy(others));
                }
            }
            let failed = self.failed(REMOVING, image);
            self.registry.delete_tag(image, &tagged.manifest).await.map_err(&failed)?;
            // Our own tag goes last: without it nobody would end a removal that broke off.
            self.take_user(image, cluster).await?;
            let (others, _) = self.users(image).await?;
            if others.is_empty() {
                return Ok(Removal::Removed);
            }
            // Somebody came to use it meanwhile.
            self.registry.push_manifest(image, MANIFEST, tagged.bytes).await.map_err(failed)?;
            Ok(Removal::UsedBy(others))
        })
        .await
    }
}

fn user_tag(name: &str, cluster: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '_' };
    format!("{name}{USED_BY}{}", cluster.chars().map(plain).take(40).collect::<String>())
}

fn digest_of(image: &Image, failed: &impl Fn(SourceError) -> DestinationError) -> Result<Digest, DestinationError> {
    image.digest.parse().map_err(|error: crate::io::store::DigestError| {
        failed(SourceError::Unusable { what: "the image's digest".to_owned(), problem: error.to_string() })
    })
}

fn empty() -> Descriptor {
    let digest = Digest::of(b"{}").to_string();
    Descriptor { media_type: EMPTY.to_owned(), digest, size: 2, ..Descriptor::default() }
}

fn layer(image: &Image) -> Descriptor {
    let media_type = if image.format == "qcow2" { "application/x-qemu-disk" } else { "application/octet-stream" };
    let name = if image.format.is_empty() { image.name.clone() } else { format!("{}.{}", image.name, image.format) };
    Descriptor {
        media_type: media_type.to_owned(),
        digest: image.digest.clone(),
        size: image.size,
        annotations: BTreeMap::from([(TITLE.to_owned(), name)]),
        artifact_type: None,
    }
}

fn annotations(image: &Image) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::new();
    if !image.format.is_empty() {
        annotations.insert(FORMAT.to_owned(), image.format.clone());
    }
    if !image.properties.is_empty() {
        annotations.insert(PROPERTIES.to_owned(), json(&image.properties));
    }
    annotations
}

fn json(properties: &Map<String, Value>) -> String {
    Value::Object(properties.clone()).to_string()
}

fn artifact(kind: &str, layer: Descriptor, annotations: BTreeMap<String, String>) -> Manifest {
    Manifest {
        schema_version: 2,
        media_type: MANIFEST.to_owned(),
        artifact_type: Some(kind.to_owned()),
        config: empty(),
        layers: vec![layer],
        subject: None,
        annotations,
    }
}

fn bytes_of(manifest: &Manifest) -> Bytes {
    // Texts and numbers alone can be written.
    Bytes::from(serde_json::to_vec(manifest).unwrap_or_default())
}
