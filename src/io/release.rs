//! Releases: listed, fetched, kept, rendered. Joins sources, store and charts; each release is rendered once.

mod addon_chart;
mod downloads;
mod preview;
mod rendering;
mod shelf;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use thiserror::Error;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::cluster_stack_release::Artifact;
use crate::api::cluster_stack_source::Quota;
use crate::api::condition::Reason;
use crate::api::source::{Pin, Source as Spec};
use crate::core::bundle::Bundle;
use crate::core::chart::Needs;
use crate::core::name::ReleaseName;
use crate::core::pin;
use crate::core::retry::ErrorClass;
use crate::core::source::{AllowError, AllowList};
use crate::core::status::Trouble;
use crate::core::taken::{self, Named, is_of_files, is_proved};
use crate::core::verification::Trust;
use crate::io::source::flights::{Ground, Waiter};
use crate::io::source::meter::SourceMetrics;
use crate::io::source::of_default::OfDefault;
use crate::io::source::open::{BLOBS, Sources};
use crate::io::source::poller::{Age, Polled, Poller};
use crate::io::source::trust::{Demand, asked_of, trust};
use crate::io::source::{self, Listing, Source, Tag, trouble};
use crate::io::store::{Store, StoreError};
use crate::io::telemetry::Metrics;
use crate::settings::{DefaultSource, Settings};

pub use preview::Previewed;
pub use rendering::{Job, Objects, Part, addon_key};

use downloads::{Ask, Downloads, Place as Download};
use rendering::Attempt;
use shelf::Shelf;

/// Rendered releases that are remembered.
const REMEMBERED: usize = 512;
/// The share of the release directory that parts of blobs may take: one in so many bytes.
const PARTS: u64 = 4;
/// How often the store is told that a release is in use which is not read from it any more.
const TELL: Duration = Duration::from_mins(1);

/// Why releases can't be served at all.
#[derive(Debug, Error)]
pub enum ReleasesError {
    /// The store's directory is unusable.
    #[error("--release-dir can't be used: {0}")]
    Store(#[from] StoreError),
    /// A flag is wrong.
    #[error("--allow-source: {0}")]
    Allow(#[from] AllowError),
}

/// Which release is wanted, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Namespace whose Secrets may be read: that of the object that holds the source.
    pub namespace: &'a str,
    /// Where it comes from; the operator's default without it.
    pub source: Option<&'a Spec>,
    /// Why the source is not to be asked. What is in the store is there nonetheless.
    pub held: Option<&'a Trouble>,
    /// Its name.
    pub name: &'a ReleaseName,
    /// Signatures that it must carry.
    pub verify: &'a [Demand],
    /// Digests that releases must have.
    pub pin: &'a [Pin],
    /// What was fetched before.
    pub had: Option<&'a Artifact>,
    /// What was refused before is to be downloaded again.
    pub insists: bool,
    /// How old the source's listing may be.
    pub max_age: Duration,
    /// What asks for another try of what was refused; the same text asks for none.
    pub again: &'a str,
    /// Who is told when the source answers later than it is waited for.
    pub waiter: Option<&'a Waiter>,
}

impl<'a> Wanted<'a> {
    /// A release whose source can't be told: to be `held`.
    pub fn of_nowhere(name: &'a ReleaseName) -> Self {
        Self {
            namespace: "",
            source: None,
            held: None,
            name,
            verify: &[],
            pin: &[],
            had: None,
            insists: false,
            max_age: Duration::ZERO,
            again: "",
            waiter: None,
        }
    }
}

/// A release that was fetched and understood.
#[derive(Clone, Debug)]
pub struct FetchedRelease {
    /// What was fetched.
    pub artifact: Artifact,
    /// Its files, understood.
    pub bundle: Arc<Bundle>,
    /// What the source has under its name now.
    pub upstream: Upstream,
}

/// What the source has under a release's name. What is applied stays in any case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upstream {
    /// What was fetched.
    Same,
    /// Something else, or nothing any more: what to say of it.
    Changed(String),
    /// The source does not answer.
    Unknown,
}

/// What is known of the tags of a source.
#[derive(Debug)]
pub struct Listed {
    /// The tags and what is left of the quota, or what stands in the way.
    pub found: Result<(Polled, Option<Quota>), Trouble>,
    /// It is from before somebody asked for it: the source was not asked again yet, or did not answer.
    pub is_late: bool,
}

type Place = (String, String, String);
/// The answers, as a digest, and the version of the Secret.
type Input = ([u8; 32], Option<String>);

/// A refusal for signatures: what was found of a revision after a poll.
struct Refused {
    polled: Instant,
    revision: String,
    trouble: Trouble,
}

/// The tag of a release, if there is one, and the poll that told of it.
struct Told {
    tag: Option<Tag>,
    polled: Instant,
}

/// Sources, the store and what was rendered.
pub struct Releases {
    sources: Sources,
    /// For those who name none.
    default: Option<DefaultSource>,
    poller: Poller,
    downloads: Downloads<Download, Artifact>,
    /// By source, name and the poll it belongs to.
    resolved: Downloads<(String, String, Instant), Tag>,
    /// Releases that were not signed as asked for, by source, tag and what was asked for.
    refused: Mutex<HashMap<Place, Refused>>,
    shelf: Arc<Shelf>,
    needs: Mutex<HashMap<Place, Needs>>,
    /// One input each: the last one.
    rendered: Mutex<HashMap<Place, (Input, Attempt)>>,
}

impl Releases {
    /// Opens the store.
    ///
    /// # Errors
    /// The directory can't be used, or a flag is wrong.
    pub async fn open(settings: &Settings, metrics: &Metrics) -> Result<Self, ReleasesError> {
        let allow = AllowList::parse(settings.allow_source.iter().map(String::as_str))?;
        let opened = Self::at(&settings.release_dir, settings.release_dir_size, allow).await?;
        let poller = Poller::counting(metrics.polls.clone(), metrics.poll_failures.clone());
        Ok(Self { default: settings.default_source.clone(), poller, ..opened })
    }

    /// A store of at most `size` bytes in a directory, with the local sources of `allow` and no source for those who name
    /// none: for those who only look.
    ///
    /// # Errors
    /// The directory can't be used.
    pub async fn at(dir: &Path, size: u64, allow: AllowList) -> Result<Self, ReleasesError> {
        let scratch = dir.join("scratch");
        let store = Store::open_beside(dir.join("sha256"), size, Some(scratch.join(BLOBS))).await?;
        Ok(Self {
            sources: Sources::new(allow, &scratch).with_parts(size / PARTS),
            default: None,
            poller: Poller::default(),
            downloads: Downloads::on(Ground::default()),
            resolved: Downloads::on(Ground::default()),
            refused: Mutex::default(),
            shelf: Arc::new(Shelf::new(store)),
            needs: Mutex::default(),
            rendered: Mutex::default(),
        })
    }

    /// Says where the digests of the artifacts that are in use are found: the store keeps them as long as it can.
    pub fn keep(&self, in_use: impl Fn() -> HashSet<String> + Send + Sync + 'static) {
        self.shelf.keep(in_use);
    }

    /// The same, whose requests to sources are counted in `metrics`.
    #[must_use]
    pub fn counted_in(self, metrics: SourceMetrics) -> Self {
        Self { sources: self.sources.counted_in(metrics), ..self }
    }

    /// The same, which asks sources in tasks on `ground`.
    #[must_use]
    pub fn on(self, ground: &Ground) -> Self {
        let (downloads, resolved) = (Downloads::on(ground.clone()), Downloads::on(ground.clone()));
        Self { poller: self.poller.on(ground.clone()), downloads, resolved, ..self }
    }

    /// The tags of a source, not older than `age` if it answers in time, and what is left of its quota; one poll for
    /// all who name it. `waiter` is told if it answers later.
    pub async fn listing(
        &self,
        client: &Client,
        namespace: &str,
        spec: Option<&Spec>,
        age: Age,
        waiter: &Waiter,
        cancel: &CancellationToken,
    ) -> Listed {
        let source = match self.source(client, namespace, spec).await {
            Ok(source) => source,
            Err(trouble) => return Listed { found: Err(trouble), is_late: false },
        };
        let polled = self.poller.poll(Arc::clone(&source), age, Some(waiter), cancel).await;
        let found = polled.map_err(|error| trouble(&error)).map(|polled| (polled, source.quota()));
        Listed { found, is_late: age.since.is_some_and(|since| !self.poller.has_answered(source.as_ref(), since)) }
    }

    /// The files of a release that was fetched; `None` if they are not in the store.
    ///
    /// # Errors
    /// They can't be understood.
    pub async fn stored(&self, artifact: &Artifact, name: &ReleaseName) -> Result<Option<Arc<Bundle>>, Trouble> {
        self.shelf.stored(artifact, name).await
    }

    /// What a release contains that is not taken yet. It is fetched for that.
    ///
    /// # Errors
    /// What stands in the way.
    pub async fn contents(
        &self,
        client: &Client,
        wanted: &Wanted<'_>,
        cancel: &CancellationToken,
    ) -> Result<String, Trouble> {
        let source = self.source(client, wanted.namespace, wanted.source).await?;
        let Told { tag: Some(tag), polled } = self.tag(&source, wanted, cancel).await? else {
            return Err(not_found(wanted.name));
        };
        // As when it is taken: nothing is unpacked without the signatures that are asked for.
        let trust = trust(client, wanted.verify, Timestamp::now()).await?;
        let fetch = source::Wanted { tag: &tag, release: wanted.name, trust: trust.as_ref(), by_revision: false };
        let fetched = Box::pin(self.fetch_unless_refused(&source, &fetch, wanted, polled, cancel)).await?;
        Ok(fetched.bundle.contents())
    }

    /// What the tag of a release names now.
    ///
    /// # Errors
    /// What stands in the way; that the source has no such tag any more, too: nothing that was approved is to pass for it.
    pub async fn revision(
        &self,
        client: &Client,
        wanted: &Wanted<'_>,
        cancel: &CancellationToken,
    ) -> Result<String, Trouble> {
        let source = self.source(client, wanted.namespace, wanted.source).await?;
        let told = self.tag(&source, wanted, cancel).await?;
        told.tag.map(|tag| tag.revision).ok_or_else(|| not_found(wanted.name))
    }

    /// The files of a release: from the store if `had` is still there, else from the source, whose listing is not older
    /// than `max_age`. A tag that moved since is not followed: what it named is fetched, where the source still has it. What
    /// was not verified as `verify` asks is not taken from the store.
    ///
    /// # Errors
    /// What stands in the way.
    #[tracing::instrument(name = "fetch", skip_all, fields(release = %wanted.name))]
    pub async fn fetch(
        &self,
        client: &Client,
        wanted: &Wanted<'_>,
        cancel: &CancellationToken,
    ) -> Result<FetchedRelease, Trouble> {
        let &Wanted { namespace, source, held, name, verify, pin, had, .. } = wanted;
        let asked = asked_of(verify).unwrap_or_default();
        let source = match held {
            Some(trouble) => Err(trouble.clone()),
            None => self.source(client, namespace, source).await,
        };
        let tag = match &source {
            Ok(source) => self.tag(source, wanted, cancel).await,
            Err(trouble) => Err(trouble.clone()),
        };
        if let Some(artifact) = had.filter(|had| !had.digest.is_empty()) {
            pin::check(pin, name, &artifact.digest, &artifact.revision)?;
        }
        if let Some(artifact) = had.filter(|had| !had.digest.is_empty() && is_proved(had, &asked))
            && let Some(bundle) = self.shelf.stored(artifact, name).await?
        {
            let upstream = tag.map_or(Upstream::Unknown, |told| changed(artifact, told.tag.as_ref()));
            return Ok(FetchedRelease { artifact: artifact.clone(), bundle, upstream });
        }
        let source = source?;
        let told = tag?;
        if let Some(had) = had.filter(|had| !had.revision.is_empty()) {
            // That it was verified is known of what has its digest.
            let asks = if is_proved(had, &asked) { &[] } else { verify };
            let trust = trust(client, asks, Timestamp::now()).await?;
            let found = Box::pin(self.fetch_again(&source, had, &told, trust.as_ref(), wanted, cancel)).await;
            let now = told.tag.as_ref().map(|tag| Named { tag: &tag.name, revision: &tag.revision });
            return found.map_err(|trouble| taken::lost(had, now, (name, &asked), trouble));
        }
        let Told { tag: Some(tag), polled } = told else { return Err(not_found(name)) };
        let trust = trust(client, verify, Timestamp::now()).await?;
        let fetch = source::Wanted { tag: &tag, release: name, trust: trust.as_ref(), by_revision: false };
        Box::pin(self.fetch_unless_refused(&source, &fetch, wanted, polled, cancel)).await
    }

    /// What was fetched before, and nothing else: by its tag, or by its revision where the tag names something else now. Where that
    /// can't be had, what the tag names now is the same release if it has the same files.
    async fn fetch_again(
        &self,
        source: &Arc<dyn Source>,
        had: &Artifact,
        told: &Told,
        trust: Option<&Trust>,
        wanted: &Wanted<'_>,
        cancel: &CancellationToken,
    ) -> Result<FetchedRelease, Trouble> {
        let now = told.tag.as_ref();
        let fetch = |tag, by_revision| source::Wanted { tag, release: wanted.name, trust, by_revision };
        let by_tag = async |tag| self.fetch_same(source, had, &fetch(tag, false), told, (wanted, cancel)).await;
        if let Some(tag) = now.filter(|tag| tag.revision == had.revision) {
            return by_tag(tag).await;
        }
        let name = now.map_or_else(|| wanted.name.to_string(), |tag| tag.name.clone());
        let tag = Tag { name, revision: had.revision.clone() };
        let by_revision = if source.keeps_revisions() {
            self.fetch_same(source, had, &fetch(&tag, true), told, (wanted, cancel)).await
        } else {
            let message = "the source gives what its tag names alone";
            Err(Trouble::new(ErrorClass::Invalid, Reason::ArtifactChanged, message))
        };
        let gone = match by_revision {
            Err(trouble) if trouble.reason == Reason::ArtifactChanged => trouble,
            other => return other,
        };
        let Some(tag) = now.filter(|_| !had.digest.is_empty()) else { return Err(gone) };
        by_tag(tag).await.map_err(|trouble| if is_of_files(&trouble) { gone } else { trouble })
    }

    /// Fetches files, and takes none but those that were fetched before.
    async fn fetch_same(
        &self,
        source: &Arc<dyn Source>,
        had: &Artifact,
        fetch: &source::Wanted<'_>,
        told: &Told,
        (wanted, cancel): (&Wanted<'_>, &CancellationToken),
    ) -> Result<FetchedRelease, Trouble> {
        let found = Box::pin(self.fetch_unless_refused(source, fetch, wanted, told.polled, cancel)).await?;
        if !had.digest.is_empty() && found.artifact.digest != had.digest {
            let message = format!("what it gives has the digest {}, not {}", found.artifact.digest, had.digest);
            return Err(Trouble::new(ErrorClass::Invalid, Reason::ArtifactChanged, message));
        }
        let artifact = if fetch.trust.is_some() || had.digest.is_empty() {
            found.artifact
        } else {
            // Who signed these files is known, wherever they come from now.
            Artifact { revision: found.artifact.revision, url: found.artifact.url, ..had.clone() }
        };
        let upstream = changed(&artifact, told.tag.as_ref());
        Ok(FetchedRelease { artifact, bundle: found.bundle, upstream })
    }

    /// Fetches a release, unless it was refused for its signature and nothing changed since: neither was the source
    /// polled again, nor are the keys or what is asked for others.
    async fn fetch_unless_refused(
        &self,
        source: &Arc<dyn Source>,
        fetch: &source::Wanted<'_>,
        wanted: &Wanted<'_>,
        polled: Instant,
        cancel: &CancellationToken,
    ) -> Result<FetchedRelease, Trouble> {
        let Some(trust) = fetch.trust else { return self.fetch_now(source, fetch, wanted, cancel).await };
        let place = (source.key(), fetch.tag.name.clone(), format!("{} {}", trust.digest(), wanted.again));
        if let Some(before) = lock(&self.refused).get(&place)
            && before.polled == polled
            && before.revision == fetch.tag.revision
        {
            return Err(before.trouble.clone());
        }
        let found = self.fetch_now(source, fetch, wanted, cancel).await;
        match &found {
            Err(trouble) if trouble.reason == Reason::NotVerified => {
                let (revision, trouble) = (fetch.tag.revision.clone(), trouble.clone());
                remember(&self.refused, place, Refused { polled, revision, trouble });
            }
            _ => drop(lock(&self.refused).remove(&place)),
        }
        found
    }

    /// The tag of a release with what it names; where the listing does not tell, it is found out once per poll.
    async fn tag(
        &self,
        source: &Arc<dyn Source>,
        wanted: &Wanted<'_>,
        cancel: &CancellationToken,
    ) -> Result<Told, Trouble> {
        let polled = self.poller.poll(Arc::clone(source), wanted.max_age, wanted.waiter, cancel).await;
        let polled = polled.map_err(|error| trouble(&error))?;
        let Some(tag) = tag_of(&polled.listing, wanted.name, wanted.had) else {
            return Ok(Told { tag: None, polled: polled.at });
        };
        if !tag.revision.is_empty() {
            return Ok(Told { tag: Some(tag.clone()), polled: polled.at });
        }
        let ask = Ask {
            place: (source.key(), tag.name.clone(), polled.at),
            host: source.host(),
            doing: format!("reading what tag {} names", tag.name),
            insists: false,
            expires: false,
            waiter: wanted.waiter,
        };
        let resolve = || {
            let (source, tag, cancel) = (Arc::clone(source), tag.clone(), cancel.clone());
            async move { source.resolve(&tag, &cancel).await.map_err(|error| trouble(&error)) }
        };
        let tag = self.resolved.once(ask, async |_| true, resolve).await?;
        Ok(Told { tag: Some(tag), polled: polled.at })
    }

    /// A release from the source, or from the store if somebody else downloaded it with the same rights.
    async fn fetch_now(
        &self,
        source: &Arc<dyn Source>,
        fetch: &source::Wanted<'_>,
        wanted: &Wanted<'_>,
        cancel: &CancellationToken,
    ) -> Result<FetchedRelease, Trouble> {
        let source::Wanted { tag, release: name, trust, by_revision } = *fetch;
        // Nothing is said to be verified that was not.
        let asked = trust.and_then(|_| asked_of(wanted.verify)).unwrap_or_default();
        let place = Download {
            source: source.fetch_key(),
            tag: (tag.name.clone(), tag.revision.clone()),
            by_revision,
            release: name.to_string(),
            trust: trust.map(|trust| format!("{asked} {}", trust.digest())).unwrap_or_default(),
        };
        let ask = Ask {
            host: source.host(),
            doing: format!("fetching {name}"),
            insists: wanted.insists,
            expires: !place.trust.is_empty(),
            waiter: wanted.waiter,
            place,
        };
        // What is there but can't be understood is there.
        let is_there = async |artifact: Artifact| !matches!(self.shelf.stored(&artifact, name).await, Ok(None));
        let download = || {
            let (shelf, source, cancel) = (Arc::clone(&self.shelf), Arc::clone(source), cancel.clone());
            let (tag, name, trust, asked) = (tag.clone(), name.clone(), trust.cloned(), asked.clone());
            async move {
                let wanted = source::Wanted { tag: &tag, release: &name, trust: trust.as_ref(), by_revision };
                tokio::select! {
                    artifact = shelf.download(source.as_ref(), &wanted, asked, &cancel) => artifact,
                    () = cancel.cancelled() => Err(cancelled(&name)),
                }
            }
        };
        let artifact = tokio::select! {
            artifact = self.downloads.once(ask, is_there, download) => artifact?,
            () = cancel.cancelled() => return Err(cancelled(name)),
        };
        // Its signatures held, whatever else is wrong with it.
        self.taken(artifact, name, wanted.pin).await
    }

    /// A release that was downloaded, if it has a pinned digest and can be understood.
    async fn taken(&self, artifact: Artifact, name: &ReleaseName, pin: &[Pin]) -> Result<FetchedRelease, Trouble> {
        let signed = |trouble: Trouble| trouble.signed_by(&artifact.verified_by);
        pin::check(pin, name, &artifact.digest, &artifact.revision).map_err(signed)?;
        let Some(bundle) = self.shelf.stored(&artifact, name).await.map_err(signed)? else {
            let message = format!("release {name} was evicted from the store at once: raise --release-dir-size");
            return Err(signed(Trouble::new(ErrorClass::Transient, Reason::FetchFailed, message)));
        };
        Ok(FetchedRelease { artifact, bundle, upstream: Upstream::Same })
    }

    async fn source(&self, client: &Client, namespace: &str, spec: Option<&Spec>) -> Result<Arc<dyn Source>, Trouble> {
        match (spec, &self.default) {
            (Some(spec), _) => self.sources.from_spec(client, namespace, spec).await,
            (None, Some(default)) => {
                let opened = self.sources.open(&default.spec, default.access.clone());
                let opened = opened.map_err(|error| trouble(&error))?;
                Ok(Arc::new(OfDefault::new(opened, &default.spec)))
            }
            (None, None) => {
                let message = "spec.source is missing: say where releases come from, for example spec.source.git.url, \
                               or name a ClusterStackSource in spec.sourceRef";
                Err(Trouble::new(ErrorClass::Invalid, Reason::SourceInvalid, message))
            }
        }
    }
}

fn cancelled(name: &ReleaseName) -> Trouble {
    let message = format!("fetching {name} was cancelled");
    Trouble::new(ErrorClass::Transient, Reason::SourceUnreachable, message)
}

fn not_found(name: &ReleaseName) -> Trouble {
    let message = format!("the source has no tag of release {name}: publish it, or take it out of spec.versions");
    Trouble::new(ErrorClass::Waiting, Reason::ReleaseNotFound, message)
}

/// The tag of a release, in either spelling of a pre-release version; of both, the one that names what was fetched before.
fn tag_of<'a>(listing: &'a Listing, release: &ReleaseName, had: Option<&Artifact>) -> Option<&'a Tag> {
    let is_it =
        |tag: &&Tag| ReleaseName::of_stack(&tag.name, &release.provider, &release.stack).as_ref() == Some(release);
    let mut all = listing.tags.iter().filter(is_it);
    let first = all.next()?;
    let is_had = |tag: &&Tag| had.is_some_and(|had| !had.revision.is_empty() && had.revision == tag.revision);
    Some(std::iter::once(first).chain(all).find(is_had).unwrap_or(first))
}

/// Whether the source names something else by now than what was fetched, or nothing any more; not where its list does not tell what
/// tags name.
pub fn has_moved(listing: &Listing, release: &ReleaseName, had: &Artifact) -> bool {
    tag_of(listing, release, Some(had)).is_none_or(|tag| !tag.revision.is_empty() && tag.revision != had.revision)
}

fn changed(artifact: &Artifact, tag: Option<&Tag>) -> Upstream {
    match tag {
        None => Upstream::Changed("the source has no such tag any more; what is applied stays".to_owned()),
        Some(tag) if tag.revision != artifact.revision => Upstream::Changed(format!(
            "tag {} names {} now, {} is applied and stays; publish a change as a new release",
            tag.name, tag.revision, artifact.revision
        )),
        Some(_) => Upstream::Same,
    }
}

fn remember<K: std::hash::Hash + Eq, V>(all: &Mutex<HashMap<K, V>>, key: K, value: V) {
    let mut all = lock(all);
    if all.len() >= REMEMBERED && !all.contains_key(&key) {
        all.clear();
    }
    all.insert(key, value);
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_has_moved_where_no_tag_of_it_names_what_it_was_made_from() {
        let name: ReleaseName = "docker-x-1-34-v1".parse().unwrap();
        let had = Artifact { revision: "a".into(), ..Artifact::default() };
        for (tags, expected) in [
            (&[("docker-x-1-34-v1", "a")][..], false),
            (&[("docker-x-1-34-v1", "b")], true),
            (&[("docker-x-1-34-v2", "a")], true),
            (&[], true),
            // A registry's list does not tell.
            (&[("docker-x-1-34-v1", "")], false),
        ] {
            let tag = |(name, revision): &(&str, &str)| Tag { name: (*name).into(), revision: (*revision).into() };
            let listing = Listing::new(tags.iter().map(tag).collect());
            assert_eq!(has_moved(&listing, &name, &had), expected, "{tags:?}");
        }
    }
}
