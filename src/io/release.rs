//! Releases: listed, fetched, kept, rendered. Joins sources, store and charts; each release is rendered once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::api::cluster_stack::{GitSource, Source as Spec};
use crate::api::cluster_stack_release::Artifact;
use crate::api::condition::Reason;
use crate::core::bundle::Bundle;
use crate::core::files::FileTree;
use crate::core::manifest::{Manifest, manifests};
use crate::core::name::ReleaseName;
use crate::core::retry::ErrorClass;
use crate::core::source::Allowed;
use crate::core::status::Trouble;
use crate::io::render::{self, Subject};
use crate::io::source::git::{Credentials, Git};
use crate::io::source::poller::Poller;
use crate::io::source::{Listing, Source, SourceError, Tag};
use crate::io::store::Store;
use crate::io::unpack::{self, Limits};
use crate::settings::{DEFAULT_INTERVAL, Settings};

/// Rendered releases that are remembered.
const REMEMBERED: usize = 512;
/// Longest time for rendering a chart.
const RENDER: Duration = Duration::from_mins(1);

/// Why releases can't be served at all.
#[derive(Debug, Error)]
pub enum ReleasesError {
    /// The store's directory is unusable.
    #[error("--release-dir {dir} can't be used: {error}; name a directory that the operator can write")]
    Dir {
        /// The directory.
        dir: String,
        /// Why.
        error: std::io::Error,
    },
}

/// A release that was fetched and understood.
#[derive(Clone, Debug)]
pub struct FetchedRelease {
    /// What was fetched.
    pub artifact: Artifact,
    /// Its files, understood.
    pub bundle: Arc<Bundle>,
    /// What changed at the source since: the tag moved or is gone. What is applied stays.
    pub changed_upstream: Option<String>,
}

type Rendered = Arc<Result<Vec<Manifest>, Trouble>>;

/// Sources, the store and what was rendered.
pub struct Releases {
    poller: Poller,
    store: Store,
    allowed: Arc<Allowed>,
    bundles: Mutex<HashMap<(String, String), Arc<Bundle>>>,
    rendered: Mutex<HashMap<(String, String, String), Rendered>>,
}

impl Releases {
    /// Opens the store.
    ///
    /// # Errors
    /// The directory can't be used.
    pub fn open(settings: &Settings) -> Result<Self, ReleasesError> {
        let dir = &settings.release_dir;
        let store = Store::open(dir, settings.release_dir_size)
            .map_err(|error| ReleasesError::Dir { dir: dir.display().to_string(), error })?;
        Ok(Self {
            poller: Poller::default(),
            store,
            allowed: Arc::new(Allowed::new(&settings.allow_source)),
            bundles: Mutex::default(),
            rendered: Mutex::default(),
        })
    }

    /// The tags of a source, not older than `max_age`; one poll for all who name the source.
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
    ) -> Result<Arc<Listing>, Trouble> {
        let source = self.source(client, namespace, spec).await.map_err(|error| error.trouble())?;
        self.poller.list(&source, max_age, cancel).await.map_err(|error| error.trouble())
    }

    /// The files of a release: from the store if `had` is still there, else from the source. A tag that moved since is
    /// not followed.
    ///
    /// # Errors
    /// What stands in the way.
    pub async fn fetch(
        &self,
        client: &Client,
        namespace: &str,
        spec: Option<&Spec>,
        name: &ReleaseName,
        had: Option<&Artifact>,
        cancel: &CancellationToken,
    ) -> Result<FetchedRelease, Trouble> {
        let source = self.source(client, namespace, spec).await;
        let listing = match &source {
            Ok(source) => self.poller.list(source, DEFAULT_INTERVAL, cancel).await,
            Err(error) => Err(error.clone()),
        };
        let tag = listing.as_ref().ok().map(|listing| listing.tag_of(name).cloned());
        if let Some(artifact) = had
            && let Some(bundle) = self.stored(artifact, name).await?
        {
            let changed_upstream = tag.and_then(|tag| changed(artifact, tag.as_ref()));
            return Ok(FetchedRelease { artifact: artifact.clone(), bundle, changed_upstream });
        }
        let source = source.map_err(|error| error.trouble())?;
        listing.map_err(|error| error.trouble())?;
        let Some(tag) = tag.flatten() else {
            let error = SourceError::NoTag { url: source.shown(), release: name.object_name() };
            return Err(error.trouble());
        };
        if let Some(had) = had.filter(|had| had.revision != tag.revision && !had.revision.is_empty()) {
            let message = format!(
                "tag {} names {} now, but {} was applied and is in the store no more; what is applied stays. \
                 Move the tag back, or delete this release to take the new one",
                tag.name, tag.revision, had.revision
            );
            return Err(Trouble::new(ErrorClass::Invalid, Reason::ArtifactChanged, message));
        }
        self.fetch_now(&source, &tag, name, cancel).await
    }

    async fn fetch_now(
        &self,
        source: &Git,
        tag: &Tag,
        name: &ReleaseName,
        cancel: &CancellationToken,
    ) -> Result<FetchedRelease, Trouble> {
        tracing::info!(release = %name, url = source.shown(), revision = tag.revision, "fetching");
        let fetched = source.fetch(tag, name, cancel).await.map_err(|error| error.trouble())?;
        let store = self.store.clone();
        let (digest, files) = blocking(move || {
            let packed = unpack::pack(&fetched.files)?;
            Ok::<_, std::io::Error>((store.put(&packed)?, fetched.files))
        })
        .await?
        .map_err(|error| {
            let message = format!("the release can't be stored: {error}; look at the disk behind --release-dir");
            Trouble::new(ErrorClass::Transient, Reason::FetchFailed, message)
        })?;
        let artifact = Artifact { revision: tag.revision.clone(), digest, url: source.shown() };
        let bundle = self.understand(&artifact, name, &files)?;
        Ok(FetchedRelease { artifact, bundle, changed_upstream: None })
    }

    /// The bundle of a stored artifact; `None` if it is not in the store.
    async fn stored(&self, artifact: &Artifact, name: &ReleaseName) -> Result<Option<Arc<Bundle>>, Trouble> {
        let key = (artifact.digest.clone(), name.object_name());
        if let Some(bundle) = lock(&self.bundles).get(&key) {
            return Ok(Some(Arc::clone(bundle)));
        }
        let (store, digest) = (self.store.clone(), artifact.digest.clone());
        let files: Option<FileTree> = blocking(move || {
            let packed = store.get(&digest)?;
            // What we packed ourselves and whose digest was checked: no limit of ours refuses it.
            unpack::untar(&digest, &packed, &Limits { ratio: u64::MAX, ..Limits::default() }).ok()
        })
        .await?;
        files.map(|files| self.understand(artifact, name, &files)).transpose()
    }

    fn understand(&self, artifact: &Artifact, name: &ReleaseName, files: &FileTree) -> Result<Arc<Bundle>, Trouble> {
        let bundle = Bundle::from_files(name, files)
            .map_err(|error| Trouble::new(ErrorClass::Invalid, Reason::ReleaseInvalid, error.to_string()))?;
        let bundle = Arc::new(bundle);
        let mut bundles = lock(&self.bundles);
        if bundles.len() >= REMEMBERED {
            bundles.clear();
        }
        bundles.insert((artifact.digest.clone(), name.object_name()), Arc::clone(&bundle));
        Ok(bundle)
    }

    /// The objects of a release's class chart. The same release in the same namespace is rendered once.
    ///
    /// # Errors
    /// The chart does not render, or what it renders are no objects.
    pub async fn render(
        &self,
        release: &FetchedRelease,
        namespace: &str,
        since: Timestamp,
    ) -> Result<Vec<Manifest>, Trouble> {
        let named = format!("{} {since}", release.bundle.name);
        let key = (release.artifact.digest.clone(), named, namespace.to_owned());
        if let Some(rendered) = lock(&self.rendered).get(&key).cloned() {
            return (*rendered).clone();
        }
        // Set when this future is dropped: a rendering that nobody waits for any more ends.
        let stop = StopOnDrop::default();
        let (bundle, stopped) = (Arc::clone(&release.bundle), Arc::clone(&stop.0));
        let subject =
            Subject { release: bundle.name.stem(), namespace: namespace.to_owned(), since, stop: Some(stopped) };
        let work = blocking(move || render_bundle(&bundle, &subject));
        let done = tokio::time::timeout(RENDER, work).await.unwrap_or_else(|_| {
            let message = format!("the chart did not render within {} s", RENDER.as_secs());
            Ok(Err(Trouble::new(ErrorClass::Invalid, Reason::RenderFailed, message)))
        });
        let rendered: Rendered = Arc::new(done?);
        let mut all = lock(&self.rendered);
        if all.len() >= REMEMBERED {
            all.clear();
        }
        all.insert(key, Arc::clone(&rendered));
        (*rendered).clone()
    }

    async fn source(&self, client: &Client, namespace: &str, spec: Option<&Spec>) -> Result<Git, SourceError> {
        let Some(spec) = spec else {
            return Err(SourceError::Spec(
                "spec.source is missing: say where releases come from, for example spec.source.git.url".into(),
            ));
        };
        match spec {
            Spec { git: Some(git), github: None, gitlab: None, oci: None, directory: None } => {
                let credentials = credentials(client, namespace, git).await?;
                Git::new(&git.url, git.path.clone(), credentials, &self.allowed)
            }
            _ => {
                Err(SourceError::Spec("this version of the operator reads releases from spec.source.git alone".into()))
            }
        }
    }
}

fn changed(artifact: &Artifact, tag: Option<&Tag>) -> Option<String> {
    match tag {
        None => Some("the source has no such tag any more; what is applied stays".to_owned()),
        Some(tag) if tag.revision != artifact.revision => Some(format!(
            "tag {} names {} now, {} is applied and stays; publish a change as a new release",
            tag.name, tag.revision, artifact.revision
        )),
        Some(_) => None,
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

fn render_bundle(bundle: &Bundle, subject: &Subject) -> Result<Vec<Manifest>, Trouble> {
    let failed = |error: String| Trouble::new(ErrorClass::Invalid, Reason::RenderFailed, error);
    let files =
        unpack::expand_charts(bundle.class_chart.clone(), &Limits::default()).map_err(|e| failed(e.to_string()))?;
    let documents = render::class_chart(&files, subject).map_err(|e| failed(e.to_string()))?;
    manifests(documents).map_err(|error| failed(error.to_string()))
}

/// The credentials in the Secret that a Git source names.
async fn credentials(client: &Client, namespace: &str, git: &GitSource) -> Result<Credentials, SourceError> {
    let Some(reference) = &git.secret_ref else { return Ok(Credentials::default()) };
    let name = format!("{namespace}/{}", reference.name);
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = match api.get_opt(&reference.name).await {
        Ok(Some(secret)) => secret,
        Ok(None) => {
            return Err(SourceError::Secret(format!("Secret {name} does not exist; create it or correct secretRef")));
        }
        Err(error) => {
            return Err(SourceError::Unreachable { url: format!("Secret {name}"), error: error.to_string() });
        }
    };
    let data = secret.data.unwrap_or_default();
    let get = |key: &str| {
        data.get(key)
            .and_then(|value| String::from_utf8(value.0.clone()).ok())
            .map(|text| text.trim_end_matches('\n').to_owned())
    };
    let found = Credentials {
        username: get("username"),
        password: get("password").or_else(|| get("token")),
        // A private key needs its last newline.
        identity: get("identity").or_else(|| get("ssh-privatekey")).map(|key| key + "\n"),
        known_hosts: get("known_hosts"),
    };
    if found.password.is_none() && found.identity.is_none() {
        let message = format!("Secret {name} holds neither password, token nor identity");
        return Err(SourceError::Secret(message));
    }
    Ok(found)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Trouble> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Trouble::new(ErrorClass::Bug, Reason::RenderFailed, format!("a worker failed: {error}")))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
