//! Signatures that cosign made, by a key or keyless.
//!
//! Two forms are known: a layer with cosign's "simple signing" payload and the signature in its annotations, and a Sigstore
//! bundle. Keys are trusted as they are, without a transparency log, as Flux does; keyless signatures need the log.

mod key;
#[cfg(feature = "keyless")]
mod keyless;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::{CosignTrust, Keys, NotVerified, Signer};
use crate::core::digest::hex;
use key::Key;

/// Annotation with the signature of a payload.
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// Annotation with the certificate of a keyless signature.
const CERTIFICATE: &str = "dev.sigstore.cosign/certificate";
/// How media types of bundles begin.
const BUNDLE: &str = "application/vnd.dev.sigstore.bundle";
/// `critical.type` of cosign's payload.
const PAYLOAD_TYPE: &str = "cosign container image signature";
/// `payloadType` of a bundle's envelope.
const STATEMENT: &str = "application/vnd.in-toto+json";
/// `predicateType` of a signature; others are attestations of something else.
const SIGN: &str = "https://sigstore.dev/cosign/sign/v1";
/// The trust root of keyless signatures, among the keys.
const TRUSTED_ROOT: &str = "trusted_root.json";
/// Most signatures of an envelope that are looked at.
const MAX_SIGNATURES: usize = 256;

/// A signature as it lies in a registry: a layer of `sha256-<digest>.sig`, or a bundle among the referrers.
#[derive(Clone, Debug, Default)]
pub struct Signature {
    /// What was signed: the simple signing payload, or the bundle's JSON.
    pub payload: Vec<u8>,
    /// Annotations of the layer: `dev.cosignproject.cosign/signature` and its kin.
    pub annotations: std::collections::BTreeMap<String, String>,
    /// Media type of the layer.
    pub media_type: String,
}

/// How media types of what may hold signatures begin: cosign's own, and bundles of Sigstore.
const KINDS: [&str; 2] = ["application/vnd.dev.cosign.", BUNDLE];

/// Whether what is called so may be, or hold, signatures: the media type of a layer, the artifact type of a manifest.
pub fn is_of_signatures(kind: &str) -> bool {
    KINDS.iter().any(|begin| kind.starts_with(begin))
}

/// Whether a manifest of this artifact type, which says of which one it is, may hold signatures. Registries that don't tell
/// the type are asked for it.
pub fn may_sign(artifact_type: Option<&str>) -> bool {
    let kind = artifact_type.unwrap_or_default();
    kind.is_empty() || is_of_signatures(kind)
}

/// Checks signatures of one manifest as they come, until one is good: none of them is held.
pub struct Check<'t> {
    trust: &'t CosignTrust,
    keys: Result<Vec<Key>, NotVerified>,
    what: String,
    sha256: String,
    refusal: Option<NotVerified>,
}

impl<'t> Check<'t> {
    /// Of the manifest with digest `digest` (`sha256:…`).
    ///
    /// # Errors
    /// It is no such digest.
    pub fn new(trust: &'t CosignTrust, digest: &str) -> Result<Self, NotVerified> {
        let what = format!("artifact {digest}");
        let Some(sha256) = digest.strip_prefix("sha256:").filter(|hex| hex.len() == 64) else {
            let problem = format!("{digest} is no SHA-256 digest");
            return Err(NotVerified::Invalid { what, problem });
        };
        Ok(Self { trust, keys: keys(trust), sha256: sha256.to_owned(), what, refusal: None })
    }

    /// Who made this one, if it counts; why it does not is remembered.
    pub fn one(&mut self, signature: &Signature) -> Option<Signer> {
        let judged = match &self.keys {
            Ok(keys) => one(self.trust, keys, &self.sha256, signature),
            Err(problem) => Err(Refusal::Trust(problem.clone())),
        };
        let what = || self.what.clone();
        let (problem, before) = match judged {
            Ok(signer) => return Some(signer),
            // What others signed says nothing of whether our own keys can be used.
            Err(Refusal::Trust(problem)) => (problem, None),
            Err(_) if matches!(self.refusal, Some(NotVerified::Key { .. } | NotVerified::WrongKind(_))) => return None,
            Err(Refusal::Invalid(problem)) => (NotVerified::Invalid { what: what(), problem }, None),
            Err(Refusal::Identity(by)) => (NotVerified::UnknownIdentity { what: what(), by }, self.refusal.take()),
            Err(Refusal::Unknown(by)) => (NotVerified::UnknownSigner { what: what(), by }, self.refusal.take()),
        };
        self.refusal = before.or(Some(problem));
        None
    }

    /// Why none of them counts; `None` if there was none.
    pub fn refusal(self) -> Option<NotVerified> {
        self.refusal
    }
}

/// [`Check`] of several.
#[cfg(test)]
fn verify(trust: &CosignTrust, digest: &str, signatures: &[Signature]) -> Result<Signer, NotVerified> {
    let mut check = Check::new(trust, digest)?;
    if let Some(signer) = signatures.iter().find_map(|signature| check.one(signature)) {
        return Ok(signer);
    }
    let unsigned = NotVerified::Unsigned { what: check.what.clone() };
    Err(check.refusal().unwrap_or(unsigned))
}

/// Checks a signature of a file, as `cosign sign-blob` writes it: base64, or a bundle.
///
/// # Errors
/// It is not valid, or of none of the keys; keyless signatures are of none.
pub(super) fn verify_blob(keys: &Keys, what: &str, sha256: &str, signature: &[u8]) -> Result<Signer, NotVerified> {
    let invalid = |problem: String| NotVerified::Invalid { what: what.to_owned(), problem };
    let unknown = |by: String| NotVerified::UnknownSigner { what: what.to_owned(), by };
    let keys = self::keys(&CosignTrust { keys: keys.clone(), identities: Vec::new() })?;
    let text = signature.trim_ascii();
    if text.starts_with(b"{") {
        let bundle: Bundle = serde_json::from_slice(text)
            .map_err(|error| invalid(format!("its bundle can't be read: {error}; sign with --new-bundle-format")))?;
        if bundle.is_keyless() {
            return Err(unknown("a keyless identity".to_owned()));
        }
        return bundle.verify(&keys, sha256).map_err(|refusal| match refusal {
            Refusal::Unknown(by) | Refusal::Identity(by) => unknown(by),
            Refusal::Invalid(problem) => invalid(problem),
            Refusal::Trust(problem) => problem,
        });
    }
    let made = STANDARD.decode(text).unwrap_or_else(|_| signature.to_vec());
    let found = keys.iter().find(|key| key.verifies_digest(sha256, &made)).map(Key::signer);
    found.ok_or_else(|| unknown("a key of cosign, or it is no signature of this file".to_owned()))
}

/// Why one signature does not count.
enum Refusal {
    /// Nobody we know made it.
    Unknown(String),
    /// An identity that nobody named made it.
    Identity(String),
    /// It does not hold.
    Invalid(String),
    /// What it is checked by can't be used.
    Trust(NotVerified),
}

/// The public keys of the Secret.
fn keys(trust: &CosignTrust) -> Result<Vec<Key>, NotVerified> {
    let mut keys = Vec::new();
    for (name, content) in &trust.keys.0 {
        // The same Secret may hold SSH keys for Git.
        let is_pem = content.trim_ascii_start().starts_with(b"-----BEGIN ");
        if name.ends_with(".pub") && is_pem {
            keys.push(Key::read(name, content).map_err(|problem| NotVerified::Key { key: name.clone(), problem })?);
        }
    }
    if keys.is_empty() && trust.identities.is_empty() {
        let problem = "there is none: add a public key of cosign, or name identities in matchOIDCIdentity".to_owned();
        return Err(NotVerified::Key { key: "*.pub".to_owned(), problem });
    }
    if !trust.identities.is_empty() && !trust.keys.0.contains_key(TRUSTED_ROOT) {
        let problem = "it is missing: matchOIDCIdentity needs it, and nothing is fetched from Sigstore".to_owned();
        return Err(NotVerified::Key { key: TRUSTED_ROOT.to_owned(), problem });
    }
    Ok(keys)
}

fn one(trust: &CosignTrust, keys: &[Key], sha256: &str, signature: &Signature) -> Result<Signer, Refusal> {
    if signature.media_type.starts_with(BUNDLE) {
        let bundle: Bundle = serde_json::from_slice(&signature.payload)
            .map_err(|error| Refusal::Invalid(format!("its bundle can't be read: {error}")))?;
        if bundle.is_keyless() {
            return keyless(trust, sha256, |by| by.bundle(&signature.payload));
        }
        return bundle.verify(keys, sha256);
    }
    payload(&signature.payload, sha256).map_err(Refusal::Invalid)?;
    let made = signature.annotations.get(SIGNATURE).map(|text| STANDARD.decode(text.trim()));
    let Some(Ok(made)) = made else {
        return Err(Refusal::Invalid(format!("its annotation {SIGNATURE} is missing or is no base64")));
    };
    if let Some(key) = keys.iter().find(|key| key.verifies(&signature.payload, &made)) {
        return Ok(key.signer());
    }
    if signature.annotations.contains_key(CERTIFICATE) {
        return keyless(trust, sha256, |by| by.annotations(&signature.payload, &made, &signature.annotations));
    }
    Err(Refusal::Unknown("a key of cosign".to_owned()))
}

/// Whether cosign's payload is one for the manifest.
fn payload(payload: &[u8], sha256: &str) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Payload {
        critical: Critical,
    }
    #[derive(Deserialize)]
    struct Critical {
        image: Image,
        r#type: String,
    }
    #[derive(Deserialize)]
    struct Image {
        #[serde(rename = "docker-manifest-digest")]
        digest: String,
    }
    let payload: Payload =
        serde_json::from_slice(payload).map_err(|error| format!("its payload can't be read: {error}"))?;
    if payload.critical.r#type != PAYLOAD_TYPE {
        return Err(format!("its payload is no \"{PAYLOAD_TYPE}\""));
    }
    let found = payload.critical.image.digest;
    if found == format!("sha256:{sha256}") { Ok(()) } else { Err(format!("it is for {}", cut(&found))) }
}

fn cut(text: &str) -> String {
    text.chars().take(128).collect()
}

#[cfg(feature = "keyless")]
fn keyless(
    trust: &CosignTrust,
    sha256: &str,
    check: impl FnOnce(&keyless::Keyless<'_>) -> Result<Signer, Refusal>,
) -> Result<Signer, Refusal> {
    if trust.identities.is_empty() {
        return Err(Refusal::Unknown("a keyless identity".to_owned()));
    }
    check(&keyless::Keyless::new(trust, sha256)?)
}

#[cfg(not(feature = "keyless"))]
struct Keyless;

#[cfg(not(feature = "keyless"))]
impl Keyless {
    fn refuse() -> Result<Signer, Refusal> {
        let message =
            "keyless signatures are not checked by this build: build it with the feature keyless, or name a public key";
        Err(Refusal::Trust(NotVerified::WrongKind(message.to_owned())))
    }

    #[allow(clippy::unused_self)]
    fn bundle(&self, _: &[u8]) -> Result<Signer, Refusal> {
        Self::refuse()
    }

    #[allow(clippy::unused_self)]
    fn annotations(
        &self,
        _: &[u8],
        _: &[u8],
        _: &std::collections::BTreeMap<String, String>,
    ) -> Result<Signer, Refusal> {
        Self::refuse()
    }
}

#[cfg(not(feature = "keyless"))]
fn keyless(
    trust: &CosignTrust,
    _: &str,
    check: impl FnOnce(&Keyless) -> Result<Signer, Refusal>,
) -> Result<Signer, Refusal> {
    if trust.identities.is_empty() {
        return Err(Refusal::Unknown("a keyless identity".to_owned()));
    }
    check(&Keyless)
}

/// A Sigstore bundle, as far as signatures by keys need it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bundle {
    verification_material: Material,
    message_signature: Option<MessageSignature>,
    dsse_envelope: Option<Envelope>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Material {
    certificate: Option<serde::de::IgnoredAny>,
    x509_certificate_chain: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct MessageSignature {
    signature: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload: String,
    payload_type: String,
    signatures: Vec<EnvelopeSignature>,
}

#[derive(Deserialize)]
struct EnvelopeSignature {
    sig: String,
}

impl Bundle {
    fn is_keyless(&self) -> bool {
        self.verification_material.certificate.is_some() || self.verification_material.x509_certificate_chain.is_some()
    }

    fn verify(&self, keys: &[Key], sha256: &str) -> Result<Signer, Refusal> {
        let invalid = |problem: &str| Refusal::Invalid(problem.to_owned());
        let decode = |text: &str| STANDARD.decode(text).map_err(|_| invalid("its bundle holds what is no base64"));
        let unknown = || Refusal::Unknown("a key of cosign".to_owned());
        if let Some(envelope) = &self.dsse_envelope {
            let payload = decode(&envelope.payload)?;
            if envelope.payload_type != STATEMENT {
                return Err(invalid("its bundle holds no in-toto statement"));
            }
            let signed = pre_authentication(&envelope.payload_type, &payload);
            for signature in envelope.signatures.iter().take(MAX_SIGNATURES) {
                // One that can't be read voids none beside it.
                let Ok(signature) = decode(&signature.sig) else { continue };
                if let Some(key) = keys.iter().find(|key| key.verifies(&signed, &signature)) {
                    statement(&payload, sha256).map_err(Refusal::Invalid)?;
                    return Ok(key.signer());
                }
            }
            return Err(unknown());
        }
        let message = self.message_signature.as_ref().ok_or_else(|| invalid("its bundle holds no signature"))?;
        let signature = decode(&message.signature)?;
        keys.iter().find(|key| key.verifies_digest(sha256, &signature)).map(Key::signer).ok_or_else(unknown)
    }
}

/// What is signed of an envelope (DSSE's pre-authentication encoding).
fn pre_authentication(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut signed = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    signed.extend_from_slice(payload);
    signed
}

/// Whether an in-toto statement is cosign's for the manifest.
fn statement(payload: &[u8], sha256: &str) -> Result<(), String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Statement {
        predicate_type: String,
        subject: Vec<Subject>,
    }
    #[derive(Deserialize)]
    struct Subject {
        digest: std::collections::BTreeMap<String, String>,
    }
    let statement: Statement =
        serde_json::from_slice(payload).map_err(|error| format!("its statement can't be read: {error}"))?;
    if statement.predicate_type != SIGN {
        return Err(format!("it is an attestation of {}, no signature", cut(&statement.predicate_type)));
    }
    let is_it = |subject: &Subject| subject.digest.get("sha256").is_some_and(|found| found == sha256);
    if statement.subject.iter().any(is_it) { Ok(()) } else { Err("it is for another artifact".to_owned()) }
}

/// The fingerprint of a key, for people.
fn fingerprint(spki: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    hex(&Sha256::digest(spki))
}

#[cfg(test)]
mod tests;
