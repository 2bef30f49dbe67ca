//! The signatures of an artifact: looked at one after the other, until one is good.

use std::collections::BTreeSet;

use super::super::SourceError;
use super::OciSource;
use crate::core::artifact::{Descriptor, Document, signature_tag};
use crate::core::name::ReleaseName;
use crate::core::verification::cosign::{self, Check, Signature};
use crate::core::verification::{CosignTrust, NotVerified, Signer};
use crate::io::store::Digest;

/// Bytes of a signature: cosign's payload has less than one KiB, a bundle of Sigstore about ten.
const SIGNATURE: u64 = 64 << 10;
/// Bytes of all that are looked at.
const SIGNATURES: u64 = 8 << 20;
/// Signatures that are looked at, of all that refers to an artifact.
const MAX_SIGNATURES: usize = 256;

/// What was looked at so far.
struct Look<'s> {
    source: &'s OciSource,
    check: Check<'s>,
    /// Layers, by a digest over how their manifests describe them.
    seen: BTreeSet<String>,
    /// Bytes of what is said of them.
    described: u64,
    /// Bytes of them.
    bytes: u64,
    /// Whether some were left out for their size or number.
    left_out: bool,
    /// Why the first could not be read of those that could not.
    unread: Option<SourceError>,
}

/// Checks the signatures of the manifest `digest`: at its tag `sha256-<hex>.sig`, and among what refers to it. One that
/// can't be read voids none beside it.
pub(super) async fn verify(
    source: &OciSource,
    release: &ReleaseName,
    trust: &CosignTrust,
    digest: &Digest,
) -> Result<Signer, SourceError> {
    let refuse = |problem| SourceError::NotVerified { release: release.to_string(), problem };
    let check = Check::new(trust, &digest.to_string()).map_err(refuse)?;
    let mut look = Look { source, check, seen: BTreeSet::new(), described: 0, bytes: 0, left_out: false, unread: None };
    if let Some(signer) = look.all(digest).await? {
        return Ok(signer);
    }
    let left_out = if look.left_out { " (what is there is too large or too much to be looked at)" } else { "" };
    let what = format!("{}@{digest}{left_out}", source.url());
    match (look.unread, look.check.refusal()) {
        // It may be the good one.
        (Some(error), _) if error.is_transient() => Err(error),
        (Some(error), None) => Err(error),
        (_, problem) => Err(refuse(problem.unwrap_or(NotVerified::Unsigned { what }))),
    }
}

impl Look<'_> {
    async fn all(&mut self, digest: &Digest) -> Result<Option<Signer>, SourceError> {
        if let Some(signer) = self.manifest(&signature_tag(&digest.to_string(), "sig")).await? {
            return Ok(Some(signer));
        }
        let listed = self.source.registry.referrers(digest).await;
        let Some(listed) = self.readable(listed)? else { return Ok(None) };
        let may_sign = |found: &Descriptor| cosign::may_sign(found.artifact_type.as_deref());
        let referrers: BTreeSet<String> = listed.into_iter().filter(may_sign).map(|found| found.digest).collect();
        self.left_out |= referrers.len() > MAX_SIGNATURES;
        for referrer in referrers.into_iter().take(MAX_SIGNATURES) {
            // A reference that is no digest would be a tag, whose manifest nobody vouched for.
            if referrer.parse::<Digest>().is_err() {
                continue;
            }
            if let Some(signer) = self.manifest(&referrer).await? {
                return Ok(Some(signer));
            }
        }
        Ok(None)
    }

    /// Looks at the signatures in a manifest, if it is there.
    async fn manifest(&mut self, reference: &str) -> Result<Option<Signer>, SourceError> {
        let found = self.source.registry.manifest(reference).await;
        let Some(Some(found)) = self.readable(found)? else { return Ok(None) };
        let Document::Manifest(manifest) = found.document else { return Ok(None) };
        let mut layers = Vec::new();
        for layer in manifest.layers.into_iter().filter(|layer| cosign::is_of_signatures(&layer.media_type)) {
            let notes = layer.annotations.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
            self.described += notes as u64 + layer.media_type.len() as u64;
            layers.push(layer);
        }
        self.source.registry.bound_descriptions(self.described)?;
        layers.retain(|layer| self.is_new(layer));
        while let Some(first) = layers.first() {
            // Several may have signed one payload: it is downloaded once.
            let (digest, size) = (first.digest.clone(), first.size);
            let same = |layer: &mut Descriptor| layer.digest == digest && layer.size == size;
            let of_one: Vec<Descriptor> = layers.extract_if(.., same).collect();
            if let Some(signer) = self.payload(of_one).await? {
                return Ok(Some(signer));
            }
        }
        Ok(None)
    }

    /// Whether a layer is one to look at, and none that was looked at already.
    fn is_new(&mut self, layer: &Descriptor) -> bool {
        // An attestation may be as large as it likes: none of these is a signature of ours.
        if layer.size > SIGNATURE || self.seen.len() >= MAX_SIGNATURES {
            self.left_out = true;
            return false;
        }
        let Descriptor { media_type, digest, size, annotations, .. } = layer;
        let whole = format!("{media_type:?} {digest:?} {size} {annotations:?}");
        self.seen.insert(Digest::of(whole.as_bytes()).to_string())
    }

    /// Looks at layers that have one payload.
    async fn payload(&mut self, layers: Vec<Descriptor>) -> Result<Option<Signer>, SourceError> {
        let Some(first) = layers.first() else { return Ok(None) };
        if self.bytes.saturating_add(first.size) > SIGNATURES {
            self.left_out = true;
            self.bytes = SIGNATURES;
            return Ok(None);
        }
        self.bytes += first.size;
        let payload = self.source.blob(first, SIGNATURE).await;
        let Some(payload) = self.readable(payload)? else { return Ok(None) };
        let mut signature = Signature { payload: payload.to_vec(), ..Signature::default() };
        for Descriptor { media_type, annotations, .. } in layers {
            signature = Signature { annotations, media_type, ..signature };
            if let Some(signer) = self.check.one(&signature) {
                return Ok(Some(signer));
            }
        }
        Ok(None)
    }

    /// What could be read; why it could not is remembered, and the others are looked at.
    fn readable<T>(&mut self, read: Result<T, SourceError>) -> Result<Option<T>, SourceError> {
        match read {
            Ok(found) => Ok(Some(found)),
            // It is the same for the others.
            Err(error @ (SourceError::RateLimited { .. } | SourceError::Local { .. })) => Err(error),
            Err(error) => {
                self.unread.get_or_insert(error);
                Ok(None)
            }
        }
    }
}
