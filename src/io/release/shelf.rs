//! Releases that were fetched: in the store, and understood in memory.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{REMEMBERED, TELL, lock};
use crate::api::cluster_stack_release::Artifact;
use crate::api::condition::{MAX_MESSAGE, Reason, cut};
use crate::core::bundle::{Bundle, BundleError};
use crate::core::limits::Limits;
use crate::core::name::ReleaseName;
use crate::core::retry::ErrorClass;
use crate::core::status::Trouble;
use crate::io::source::{self, Source, trouble};
use crate::io::store::{Digest, Store};
use crate::io::unpack;

/// A bundle, and when the store was last told that it is in use.
type Known = (Arc<Bundle>, Instant);

/// Gives the digests of the artifacts of all releases that exist.
type InUse = dyn Fn() -> HashSet<String> + Send + Sync;

/// Releases that were fetched.
pub(super) struct Shelf {
    store: Store,
    bundles: Mutex<HashMap<(String, String), Known>>,
    in_use: OnceLock<Box<InUse>>,
}

impl Shelf {
    pub(super) fn new(store: Store) -> Self {
        Self { store, bundles: Mutex::default(), in_use: OnceLock::new() }
    }

    pub(super) fn keep(&self, in_use: impl Fn() -> HashSet<String> + Send + Sync + 'static) {
        let _ = self.in_use.set(Box::new(in_use));
    }

    /// Brings a release from its source into the store.
    pub(super) async fn download(
        &self,
        source: &dyn Source,
        wanted: &source::Wanted<'_>,
        asked: String,
        cancel: &CancellationToken,
    ) -> Result<Artifact, Trouble> {
        let source::Wanted { tag, release: name, trust, .. } = *wanted;
        tracing::info!(release = %name, tag = tag.name, revision = tag.revision, "fetching");
        let fetched = source.fetch(wanted, cancel).await.map_err(|error| trouble(&error))?;
        let verified_by = fetched.signer.map(|signer| cut(&signer.0, MAX_MESSAGE)).unwrap_or_default();
        if trust.is_some() && verified_by.is_empty() {
            let message = format!("release {name} is not taken: its source did not say who signed it");
            return Err(Trouble::new(ErrorClass::Bug, Reason::NotVerified, message));
        }
        let not_stored = |error: String| {
            let message = format!("the release can't be stored: {error}");
            Trouble::new(ErrorClass::Transient, Reason::FetchFailed, message).signed_by(&verified_by)
        };
        let packed = unpack::pack_release(&fetched.files, &fetched.component_ids);
        let packed = packed.map_err(|error| {
            let message = format!("release {name}: {error}");
            Trouble::new(ErrorClass::Invalid, Reason::ReleaseInvalid, message).signed_by(&verified_by)
        })?;
        let digest =
            self.store.put_beside(packed, self.in_use()).await.map_err(|error| not_stored(error.to_string()))?;
        let artifact = Artifact {
            revision: fetched.revision,
            digest: digest.to_string(),
            url: fetched.url,
            verified_by,
            verify_digest: asked,
            // Said by who knows on whose behalf it was fetched.
            offered_by: String::new(),
        };
        // Remembered, so that nobody reads it from the store at once. What is wrong with it is said to who takes it.
        let _ = self.understood(&artifact, name, Bundle::from_files(name, &fetched.files, &fetched.component_ids));
        Ok(artifact)
    }

    /// The bundle of a stored artifact; `None` if it is not in the store.
    pub(super) async fn stored(&self, artifact: &Artifact, name: &ReleaseName) -> Result<Option<Arc<Bundle>>, Trouble> {
        let key = (artifact.digest.clone(), name.object_name());
        let Ok(digest) = artifact.digest.parse::<Digest>() else { return Ok(None) };
        let known = lock(&self.bundles).get_mut(&key).map(|(bundle, told)| {
            let due = told.elapsed() > TELL;
            if due {
                *told = Instant::now();
            }
            (Arc::clone(bundle), due)
        });
        if let Some((bundle, due)) = known {
            if due {
                self.store.used(&digest).await;
            }
            return Ok(Some(bundle));
        }
        let packed = self.store.get(&digest).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "the store can't be read: fetching again");
            None
        });
        let Some(packed) = packed else { return Ok(None) };
        // What we packed ourselves and whose digest was checked; should it be refused, it is fetched again.
        let Ok((files, ids)) = unpack::unpack_release(&packed, &Limits::default()) else { return Ok(None) };
        self.understood(artifact, name, Bundle::from_files(name, &files, &ids)).map(Some)
    }

    fn in_use(&self) -> HashSet<Digest> {
        let digests = self.in_use.get().map(|in_use| in_use()).unwrap_or_default();
        digests.iter().filter_map(|digest| digest.parse().ok()).collect()
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
        bundles.insert((artifact.digest.clone(), name.object_name()), (Arc::clone(&bundle), Instant::now()));
        Ok(bundle)
    }
}
