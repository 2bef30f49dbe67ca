//! Releases that were fetched: in the store, and understood in memory.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{REMEMBERED, TELL, lock};
use crate::api::cluster_stack_release::Artifact;
use crate::api::condition::{MAX_MESSAGE, Reason, cut};
use crate::core::bundle::{Bundle, BundleError};
use crate::core::files::FileTree;
use crate::core::limits::Limits;
use crate::core::name::ReleaseName;
use crate::core::retry::ErrorClass;
use crate::core::status::Trouble;
use crate::io::source::{self, Source, trouble};
use crate::io::store::{Digest, Store};
use crate::io::unpack;

/// Most bytes of the releases that stay understood in memory, unpacked. Others are read from the store.
const KEPT: usize = 128 << 20;

/// A release that is understood.
struct Known {
    bundle: Arc<Bundle>,
    /// When the store was last told that it is in use.
    told: Instant,
    used: Instant,
    bytes: usize,
}

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
        let bundle = Bundle::from_files(name, &fetched.files, &fetched.component_ids);
        let _ = self.understood(&artifact, name, bundle, bytes_of(&fetched.files));
        Ok(artifact)
    }

    /// The bundle of a stored artifact; `None` if it is not in the store.
    pub(super) async fn stored(&self, artifact: &Artifact, name: &ReleaseName) -> Result<Option<Arc<Bundle>>, Trouble> {
        let key = (artifact.digest.clone(), name.object_name());
        let Ok(digest) = artifact.digest.parse::<Digest>() else { return Ok(None) };
        let known = lock(&self.bundles).get_mut(&key).map(|known| {
            known.used = Instant::now();
            let due = known.told.elapsed() > TELL;
            if due {
                known.told = known.used;
            }
            (Arc::clone(&known.bundle), due)
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
        self.understood(artifact, name, Bundle::from_files(name, &files, &ids), bytes_of(&files)).map(Some)
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
        bytes: usize,
    ) -> Result<Arc<Bundle>, Trouble> {
        let bundle =
            bundle.map_err(|error| Trouble::new(ErrorClass::Invalid, Reason::ReleaseInvalid, error.to_string()))?;
        let bundle = Arc::new(bundle);
        let mut bundles = lock(&self.bundles);
        make_room(&mut bundles, bytes);
        let now = Instant::now();
        let known = Known { bundle: Arc::clone(&bundle), told: now, used: now, bytes };
        bundles.insert((artifact.digest.clone(), name.object_name()), known);
        Ok(bundle)
    }
}

/// Forgets those that were not used for longest, until there is room for one more of `bytes`, or nothing left.
fn make_room(bundles: &mut HashMap<(String, String), Known>, bytes: usize) {
    let mut all: usize = bundles.values().map(|known| known.bytes).sum();
    while bundles.len() >= REMEMBERED || all.saturating_add(bytes) > KEPT {
        let Some(oldest) = bundles.iter().min_by_key(|(_, known)| known.used).map(|(key, _)| key.clone()) else {
            return;
        };
        all -= bundles.remove(&oldest).map_or(0, |known| known.bytes);
    }
}

fn bytes_of(files: &FileTree) -> usize {
    files.values().map(Bytes::len).sum()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_in_memory_is_bounded_by_its_bytes() {
        let name: ReleaseName = "docker-x-1-34-v1".parse().unwrap();
        let files = FileTree::from([
            ("metadata.yaml".to_owned(), Bytes::from_static(b"apiVersion: metadata.clusterstack.x-k8s.io/v1alpha1\nversions: {clusterStack: v1, kubernetes: v1.34.7, components: {}}\n")),
            ("cluster-class/Chart.yaml".to_owned(), Bytes::from_static(b"apiVersion: v2\nname: x\nversion: v1\n")),
        ]);
        let bundle = Arc::new(Bundle::from_files(&name, &files, &std::collections::BTreeMap::new()).unwrap());
        let key = |n: usize| (n.to_string(), String::new());
        let mut bundles = HashMap::new();
        for n in 0..4 {
            tokio::time::advance(Duration::from_secs(1)).await;
            let now = Instant::now();
            let known = Known { bundle: Arc::clone(&bundle), told: now, used: now, bytes: KEPT / 4 };
            make_room(&mut bundles, known.bytes);
            bundles.insert(key(n), known);
        }
        assert_eq!(bundles.len(), 4);
        tokio::time::advance(Duration::from_secs(1)).await;
        bundles.get_mut(&key(0)).unwrap().used = Instant::now();
        make_room(&mut bundles, 1);
        assert!(bundles.len() == 3 && bundles.contains_key(&key(0)), "the one that was not used for longest goes");
        make_room(&mut bundles, 2 * KEPT);
        assert!(bundles.is_empty(), "one that is larger stands alone");
    }
}
