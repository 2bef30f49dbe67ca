//! Releases: listed, fetched, kept, rendered. Joins sources, store and charts; each release is rendered once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::cluster_stack_release::Artifact;
use crate::api::cluster_stack_source::Quota;
use crate::api::condition::{MAX_MESSAGE, Reason, cut};
use crate::api::source::{Pin, Source as Spec};
use crate::core::bundle::{Bundle, BundleError};
use crate::core::chart::{Drawn, InputDigest, Kept, Lookup, Needs};
use crate::core::limits::Limits;
use crate::core::manifest::{Manifest, manifests};
use crate::core::name::ReleaseName;
use crate::core::ownership::Owner;
use crate::core::pin;
use crate::core::retry::ErrorClass;
use crate::core::source::{AllowError, AllowList};
use crate::core::status::Trouble;
use crate::io::lookup::Reader;
use crate::io::render::{self, Subject};
use crate::io::seed;
use crate::io::source::meter::SourceMetrics;
use crate::io::source::open::Sources;
use crate::io::source::poller::Poller;
use crate::io::source::trust::{Demand, asked_of, trust};
use crate::io::source::{self, Listing, Source, Tag, trouble};
use crate::io::store::{Digest, Store, StoreError};
use crate::io::telemetry::Metrics;
use crate::io::unpack;
use crate::settings::{DefaultSource, Settings};

/// Rendered releases that are remembered.
const REMEMBERED: usize = 512;
/// Longest time for rendering a chart.
const RENDER: Duration = Duration::from_mins(1);

/// Most renderings of a chart in a row: each answers what the one before looked up.
const ROUNDS: usize = 8;
/// How often in a row somebody else may write the Secret first.
const CONFLICTS: usize = 8;

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
    /// How old the source's listing may be.
    pub max_age: Duration,
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
            max_age: Duration::ZERO,
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

/// What is to be rendered, and where what it asks for is found.
pub struct Job<'a> {
    /// The release.
    pub release: &'a FetchedRelease,
    /// Answers lookups.
    pub reader: &'a Reader<'a>,
    /// Reads and writes the seed.
    pub client: &'a Client,
    /// Whose seed it is.
    pub seed: &'a Owner,
    /// The releases of the target that exist.
    pub existing: &'a BTreeSet<String>,
}

/// What a release consists of.
pub struct Objects {
    /// In Helm's order, or what stands in the way.
    pub manifests: Result<Vec<Manifest>, Trouble>,
    /// What is to be told in events, in any case.
    pub told: Vec<(Reason, String)>,
    /// When a certificate in it is to be made anew.
    pub renew: Option<Timestamp>,
}

/// What came of one rendering.
#[derive(Clone)]
struct Attempt {
    manifests: Result<Vec<Manifest>, Trouble>,
    /// What it asked for in vain.
    lacks: Needs,
    /// Keys and certificates it used.
    drawn: Drawn,
    /// Lookups that had an answer.
    answered: BTreeSet<Lookup>,
    /// It asked for the time.
    asked_time: bool,
}

impl Attempt {
    /// Whether it is what would be rendered at that time too: no certificate is due.
    fn holds_at(&self, now: Timestamp) -> bool {
        self.renew().is_none_or(|at| now < at)
    }

    /// When the first of its certificates is to be made anew.
    fn renew(&self) -> Option<Timestamp> {
        self.drawn.values().filter_map(|kept| kept.renew).min()
    }

    /// The certificates that it made anew.
    fn renewed(&self, before: &Drawn) -> Vec<String> {
        let older = |place: &String, kept: &Kept| before.get(place).is_some_and(|old| old.generation < kept.generation);
        let renewed = self.drawn.iter().filter(|(place, kept)| older(place, kept));
        renewed
            .map(|(_, kept)| format!("two thirds of its life are over: made anew the certificate of {}", kept.of))
            .collect()
    }
}

type Place = (String, String, String);
/// The answers, as a digest, and the version of the Secret.
type Input = ([u8; 32], Option<String>);

/// Sources, the store and what was rendered.
pub struct Releases {
    sources: Sources,
    /// For those who name none.
    default: Option<DefaultSource>,
    poller: Poller,
    /// What releases contain that were looked into before they are taken, by source, tag and revision.
    contents: Mutex<HashMap<Place, Result<String, Trouble>>>,
    /// By source and name, with the poll it belongs to.
    resolved: Mutex<HashMap<(String, String), (Instant, Tag)>>,
    store: Store,
    bundles: Mutex<HashMap<(String, String), Arc<Bundle>>>,
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
        let dir = &settings.release_dir;
        Ok(Self {
            sources: Sources::new(allow, &dir.join("scratch")),
            default: settings.default_source.clone(),
            poller: Poller::counting(metrics.polls.clone(), metrics.poll_failures.clone()),
            contents: Mutex::default(),
            resolved: Mutex::default(),
            store: Store::open(dir.join("sha256"), settings.release_dir_size).await?,
            bundles: Mutex::default(),
            needs: Mutex::default(),
            rendered: Mutex::default(),
        })
    }

    /// The same, whose requests to sources are counted in `metrics`.
    #[must_use]
    pub fn counted_in(self, metrics: SourceMetrics) -> Self {
        Self { sources: self.sources.counted_in(metrics), ..self }
    }

    /// The tags of a source, not older than `max_age`, and what is left of its quota; one poll for all who name it.
    ///
    /// # Errors
    /// What stands in the way.
    pub async fn listing(
        &self,
        client: &Client,
        namespace: &str,
        spec: Option<&Spec>,
        max_age: Duration,
        cancel: &CancellationToken,
    ) -> Result<(Arc<Listing>, Option<Quota>), Trouble> {
        let source = self.source(client, namespace, spec).await?;
        let polled = self.poller.poll(source.as_ref(), max_age, cancel).await.map_err(|error| trouble(&error))?;
        Ok((polled.listing, source.quota()))
    }

    /// What a release contains that is not taken yet. It is fetched for that, once for each revision.
    ///
    /// # Errors
    /// What stands in the way; what is wrong with the release itself is remembered too.
    pub async fn contents(
        &self,
        client: &Client,
        wanted: &Wanted<'_>,
        cancel: &CancellationToken,
    ) -> Result<String, Trouble> {
        let source = self.source(client, wanted.namespace, wanted.source).await?;
        let Some(tag) = self.tag(source.as_ref(), wanted.name, wanted.max_age, cancel).await? else {
            return Err(not_found(wanted.name));
        };
        let place = (source.key(), tag.name.clone(), tag.revision.clone());
        if let Some(known) = lock(&self.contents).get(&place) {
            return known.clone();
        }
        // As when it is taken: nothing is unpacked without the signatures that are asked for.
        let trust = trust(client, wanted.verify, Timestamp::now()).await?;
        let asked = asked_of(wanted.verify).unwrap_or_default();
        let fetch = source::Wanted { tag: &tag, release: wanted.name, trust: trust.as_ref() };
        let found = Box::pin(self.fetch_now(source.as_ref(), &fetch, wanted.pin, asked, cancel)).await;
        let contents = found.map(|fetched| fetched.bundle.contents());
        if contents.as_ref().err().is_none_or(|trouble| trouble.class == ErrorClass::Invalid) {
            remember(&self.contents, place, contents.clone());
        }
        contents
    }

    /// The files of a release: from the store if `had` is still there, else from the source, whose listing is not older
    /// than `max_age`. A tag that moved since is not followed. What was not verified as `verify` asks is not taken from
    /// the store.
    ///
    /// # Errors
    /// What stands in the way.
    pub async fn fetch(
        &self,
        client: &Client,
        wanted: &Wanted<'_>,
        cancel: &CancellationToken,
    ) -> Result<FetchedRelease, Trouble> {
        let &Wanted { namespace, source, held, name, verify, pin, had, max_age } = wanted;
        let asked = asked_of(verify).unwrap_or_default();
        let source = match held {
            Some(trouble) => Err(trouble.clone()),
            None => self.source(client, namespace, source).await,
        };
        let tag = match &source {
            Ok(source) => self.tag(source.as_ref(), name, max_age, cancel).await,
            Err(trouble) => Err(trouble.clone()),
        };
        let is_proved = |artifact: &&Artifact| asked.is_empty() || artifact.verify_digest == asked;
        if let Some(artifact) = had {
            pin::check(pin, name, &artifact.digest, &artifact.revision)?;
        }
        if let Some(artifact) = had.filter(is_proved)
            && let Some(bundle) = self.stored(artifact, name).await?
        {
            let upstream = tag.map_or(Upstream::Unknown, |tag| changed(artifact, tag.as_ref()));
            return Ok(FetchedRelease { artifact: artifact.clone(), bundle, upstream });
        }
        let source = source?;
        let Some(tag) = tag? else {
            return Err(not_found(name));
        };
        if let Some(had) = had.filter(|had| had.revision != tag.revision && !had.revision.is_empty()) {
            let why = if is_proved(&had) { "is in the store no more" } else { "was not verified as verify asks" };
            let message = format!(
                "tag {} names {} now, but {} was applied and {why}; what is applied stays. \
                 Move the tag back, or delete this release to take the new one",
                tag.name, tag.revision, had.revision
            );
            return Err(Trouble::new(ErrorClass::Invalid, Reason::ArtifactChanged, message));
        }
        let trust = trust(client, verify, Timestamp::now()).await?;
        let wanted = source::Wanted { tag: &tag, release: name, trust: trust.as_ref() };
        Box::pin(self.fetch_now(source.as_ref(), &wanted, pin, asked, cancel)).await
    }

    /// The tag of a release with what it names; where the listing does not tell, it is found out once per poll.
    async fn tag(
        &self,
        source: &dyn Source,
        name: &ReleaseName,
        max_age: Duration,
        cancel: &CancellationToken,
    ) -> Result<Option<Tag>, Trouble> {
        let polled = self.poller.poll(source, max_age, cancel).await.map_err(|error| trouble(&error))?;
        let Some(tag) = tag_of(&polled.listing, name) else { return Ok(None) };
        if !tag.revision.is_empty() {
            return Ok(Some(tag.clone()));
        }
        let place = (source.key(), tag.name.clone());
        if let Some((at, tag)) = lock(&self.resolved).get(&place)
            && *at == polled.at
        {
            return Ok(Some(tag.clone()));
        }
        let tag = source.resolve(tag, cancel).await.map_err(|error| trouble(&error))?;
        remember(&self.resolved, place, (polled.at, tag.clone()));
        Ok(Some(tag))
    }

    async fn fetch_now(
        &self,
        source: &dyn Source,
        wanted: &source::Wanted<'_>,
        pin: &[Pin],
        asked: String,
        cancel: &CancellationToken,
    ) -> Result<FetchedRelease, Trouble> {
        let source::Wanted { tag, release: name, trust } = *wanted;
        tracing::info!(release = %name, tag = tag.name, revision = tag.revision, "fetching");
        let fetched = source.fetch(wanted, cancel).await.map_err(|error| trouble(&error))?;
        let verified_by = fetched.signer.map(|signer| cut(&signer.0, MAX_MESSAGE)).unwrap_or_default();
        if trust.is_some() && verified_by.is_empty() {
            let message = format!("release {name} is not taken: its source did not say who signed it");
            return Err(Trouble::new(ErrorClass::Bug, Reason::NotVerified, message));
        }
        let not_stored = |error: String| {
            Trouble::new(ErrorClass::Transient, Reason::FetchFailed, format!("the release can't be stored: {error}"))
        };
        let packed = unpack::pack_release(&fetched.files, &fetched.component_ids);
        let packed = packed.map_err(|error| not_stored(error.to_string()))?;
        pin::check(pin, name, &Digest::of(&packed).to_string(), &fetched.revision)?;
        let digest = self.store.put(packed).await.map_err(|error| not_stored(error.to_string()))?;
        let artifact = Artifact {
            revision: fetched.revision,
            digest: digest.to_string(),
            url: fetched.url,
            verified_by,
            verify_digest: asked,
        };
        let bundle = Bundle::from_files(name, &fetched.files, &fetched.component_ids);
        let bundle = self.understood(&artifact, name, bundle)?;
        Ok(FetchedRelease { artifact, bundle, upstream: Upstream::Same })
    }

    /// The bundle of a stored artifact; `None` if it is not in the store.
    async fn stored(&self, artifact: &Artifact, name: &ReleaseName) -> Result<Option<Arc<Bundle>>, Trouble> {
        let key = (artifact.digest.clone(), name.object_name());
        if let Some(bundle) = lock(&self.bundles).get(&key) {
            return Ok(Some(Arc::clone(bundle)));
        }
        let Ok(digest) = artifact.digest.parse::<Digest>() else { return Ok(None) };
        let packed = self.store.get(&digest).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "the store can't be read: fetching again");
            None
        });
        let Some(packed) = packed else { return Ok(None) };
        // What we packed ourselves and whose digest was checked; should it be refused, it is fetched again.
        let Ok((files, ids)) = unpack::unpack_release(&packed, &Limits::default()) else { return Ok(None) };
        self.understood(artifact, name, Bundle::from_files(name, &files, &ids)).map(Some)
    }

    fn understood(
        &self,
        artifact: &Artifact,
        name: &ReleaseName,
        bundle: Result<Bundle, BundleError>,
    ) -> Result<Arc<Bundle>, Trouble> {
        let bundle =
            bundle.map_err(|error| Trouble::new(ErrorClass::Invalid, Reason::ReleaseInvalid, error.to_string()))?;
        let bundle = Arc::new(bundle);
        let mut bundles = lock(&self.bundles);
        if bundles.len() >= REMEMBERED {
            bundles.clear();
        }
        bundles.insert((artifact.digest.clone(), name.object_name()), Arc::clone(&bundle));
        Ok(bundle)
    }

    /// The objects of a release's class chart. The same release with the same answers and the same seed is rendered once.
    ///
    /// A chart says what it lacks by asking: it is rendered again with the answers, until it asks for nothing new.
    ///
    /// # Errors
    /// The chart does not render, what it renders are no objects, or what it asks for can't be had.
    pub async fn render(&self, job: &Job<'_>) -> Result<Objects, Trouble> {
        let bundle = &job.release.bundle;
        let place = (job.release.artifact.digest.clone(), bundle.name.to_string(), job.seed.namespace.clone());
        let release = bundle.name.object_name();
        let mut needs = lock(&self.needs).get(&place).cloned().unwrap_or_default();
        let mut told = Vec::new();
        let (mut rounds, mut conflicts) = (0, 0);
        while rounds < ROUNDS && conflicts < CONFLICTS {
            let (answers, unanswered) = job.reader.answers(&needs.lookups).await?;
            let wanted = needs.seed || needs.time;
            let kept = if wanted { Some(seed::read_or_make(job.client, job.seed).await?) } else { None };
            if kept.as_ref().is_some_and(|kept| kept.is_new) {
                let note = format!(
                    "made Secret {}: random functions draw from it, and it keeps the time",
                    seed::name(job.seed)
                );
                told.push((Reason::SeedCreated, note));
            }
            let now = Timestamp::now();
            let answered = digest_of(&answers);
            let digest = kept.as_ref().map(|kept| InputDigest::new(&kept.seed, &input_of(&place, &answered)));
            let first =
                kept.as_ref().zip(digest.as_ref()).and_then(|(kept, digest)| kept.memory.times.first(&release, digest));
            let first = needs.time.then(|| first.unwrap_or(now));
            let input = (answered, kept.as_ref().map(|kept| kept.version.clone()));
            let known =
                lock(&self.rendered).get(&place).filter(|(of, known)| *of == input && known.holds_at(now)).cloned();
            let attempt = match known {
                Some((_, known)) => known,
                None => self.attempt(job, answers, kept.as_ref(), (first, now)).await?,
            };
            if needs.extend(&attempt.lacks) {
                rounds += 1;
                continue;
            }
            let trouble = attempt.lacks.lookups.iter().find_map(|lookup| unanswered.get(lookup));
            let trouble = trouble.or(attempt.manifests.as_ref().err()).cloned();
            // A rendering that fails may have asked for it too.
            let asked = digest.zip(first).filter(|_| attempt.asked_time || trouble.is_some());
            if let Some(trouble) = trouble {
                if let Some(kept) = kept.as_ref().filter(|_| asked.is_some()) {
                    let times = kept.memory.times.settled(&release, asked, job.existing);
                    let memory = seed::Memory { times, ..kept.memory.clone() };
                    if memory != kept.memory {
                        // Another one's write is as good: the next pass finds what it finds.
                        seed::write(job.client, job.seed, kept, memory).await?;
                    }
                }
                // What it asked for may have been a mistake: the next pass finds out anew.
                lock(&self.needs).remove(&place);
                return Ok(Objects { manifests: Err(trouble), told, renew: None });
            }
            needs.lookups.clone_from(&attempt.answered);
            remember(&self.needs, place.clone(), needs);
            let renew = attempt.renew();
            let Some(kept) = kept else {
                remember(&self.rendered, place, (input, attempt.clone()));
                return Ok(Objects { manifests: attempt.manifests, told, renew });
            };
            let renewed = attempt.renewed(&kept.memory.keyring.drawn());
            let memory = seed::Memory {
                keyring: kept.memory.keyring.settled(&release, &attempt.drawn, job.existing),
                times: kept.memory.times.settled(&release, asked, job.existing),
            };
            let kept = if memory == kept.memory {
                kept
            } else {
                // Kept before it is applied: a process that dies in between finds the same again.
                let Some(written) = seed::write(job.client, job.seed, &kept, memory).await? else {
                    conflicts += 1;
                    needs = lock(&self.needs).get(&place).cloned().unwrap_or_default();
                    continue;
                };
                written
            };
            told.extend(renewed.into_iter().map(|what| (Reason::CertificateRenewed, what)));
            remember(&self.rendered, place, ((answered, Some(kept.version)), attempt.clone()));
            return Ok(Objects { manifests: attempt.manifests, told, renew });
        }
        lock(&self.needs).remove(&place);
        let asked: Vec<String> =
            needs.lookups.iter().take(8).map(|l| format!("{} {}/{}", l.kind, l.namespace, l.name)).collect();
        let trouble = if conflicts < CONFLICTS {
            let message =
                format!("the chart looked up something new in each of {ROUNDS} renderings: {}", asked.join(", "));
            Trouble::new(ErrorClass::Invalid, Reason::RenderFailed, message)
        } else {
            let message = format!("Secret {} was changed by others again and again", seed::name(job.seed));
            Trouble::new(ErrorClass::Transient, Reason::RenderFailed, message)
        };
        Ok(Objects { manifests: Err(trouble), told, renew: None })
    }

    /// One rendering.
    async fn attempt(
        &self,
        job: &Job<'_>,
        answers: BTreeMap<Lookup, Value>,
        kept: Option<&seed::Kept>,
        (first, now): (Option<Timestamp>, Timestamp),
    ) -> Result<Attempt, Trouble> {
        // Set when this future is dropped: a rendering that nobody waits for any more ends.
        let stop = StopOnDrop::default();
        let subject = Subject {
            release: job.release.bundle.name.stem(),
            namespace: job.seed.namespace.clone(),
            first,
            seed: kept.map(|kept| kept.seed),
            drawn: kept.map(|kept| kept.memory.keyring.drawn()).unwrap_or_default(),
            answers,
            clock: now,
            stop: Some(Arc::clone(&stop.0)),
        };
        let bundle = Arc::clone(&job.release.bundle);
        let work = blocking(move || render_bundle(&bundle, &subject));
        tokio::time::timeout(RENDER, work).await.unwrap_or_else(|_| {
            let message = format!("the chart did not render within {} s", RENDER.as_secs());
            Err(Trouble::new(ErrorClass::Invalid, Reason::RenderFailed, message))
        })
    }

    async fn source(&self, client: &Client, namespace: &str, spec: Option<&Spec>) -> Result<Arc<dyn Source>, Trouble> {
        match (spec, &self.default) {
            (Some(spec), _) => self.sources.from_spec(client, namespace, spec).await,
            (None, Some(default)) => {
                self.sources.open(&default.spec, default.access.clone()).map_err(|error| trouble(&error))
            }
            (None, None) => {
                let message = "spec.source is missing: say where releases come from, for example spec.source.git.url, \
                               or name a ClusterStackSource in spec.sourceRef";
                Err(Trouble::new(ErrorClass::Invalid, Reason::SourceInvalid, message))
            }
        }
    }
}

fn not_found(name: &ReleaseName) -> Trouble {
    let message = format!("the source has no tag of release {name}: publish it, or take it out of spec.versions");
    Trouble::new(ErrorClass::Waiting, Reason::ReleaseNotFound, message)
}

/// The tag of a release, in either spelling of a pre-release version.
fn tag_of<'a>(listing: &'a Listing, release: &ReleaseName) -> Option<&'a Tag> {
    let is_it =
        |tag: &&Tag| ReleaseName::of_stack(&tag.name, &release.provider, &release.stack).as_ref() == Some(release);
    listing.tags.iter().find(is_it)
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

/// Tells a blocking worker to stop when the future that waits for it is dropped.
#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn render_bundle(bundle: &Bundle, subject: &Subject) -> Attempt {
    let failed = |error: String| Trouble::new(ErrorClass::Invalid, Reason::RenderFailed, error);
    let mut attempt = Attempt {
        manifests: Ok(Vec::new()),
        lacks: Needs::default(),
        drawn: Drawn::new(),
        answered: BTreeSet::new(),
        asked_time: false,
    };
    let rendered = match unpack::expand_charts(bundle.class_chart.clone(), &Limits::default()) {
        Ok(files) => render::class_chart(&files, subject),
        Err(error) => {
            attempt.manifests = Err(failed(error.to_string()));
            return attempt;
        }
    };
    match rendered {
        Ok(rendered) => {
            attempt.lacks.lookups = rendered.missing_lookups;
            attempt.answered = rendered.answered_lookups;
            attempt.drawn = rendered.drawn;
            attempt.asked_time = rendered.asked_time;
            attempt.manifests = manifests(rendered.objects).map_err(|error| failed(error.to_string()));
        }
        Err(error) => {
            attempt.lacks = error.lacks();
            attempt.manifests = Err(failed(error.shown(subject)));
        }
    }
    attempt
}

/// All that a rendering depends on but for what the Secret keeps.
fn input_of((artifact, release, namespace): &Place, answers: &[u8; 32]) -> Vec<u8> {
    [artifact.as_bytes(), release.as_bytes(), namespace.as_bytes(), answers].join(&0)
}

fn digest_of(answers: &BTreeMap<Lookup, Value>) -> [u8; 32] {
    let mut digest = Sha256::new();
    for (lookup, answer) in answers {
        digest.update(format!("{lookup:?}\0{answer}\0"));
    }
    digest.finalize().into()
}

fn remember<K: std::hash::Hash + Eq, V>(all: &Mutex<HashMap<K, V>>, key: K, value: V) {
    let mut all = lock(all);
    if all.len() >= REMEMBERED && !all.contains_key(&key) {
        all.clear();
    }
    all.insert(key, value);
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Trouble> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Trouble::new(ErrorClass::Bug, Reason::RenderFailed, format!("a worker failed: {error}")))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
