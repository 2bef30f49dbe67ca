//! Keyless signatures: a certificate that lived for minutes, and a log that saw it live. Everything is checked offline
//! against the trust root of the Secret, by Sigstore's own crate; the certificate's chain holds at the time that the log or
//! a timestamp authority vouches for.
//!
//! Caveat: the crate asks the clock whether a time lies in the future, and whether a log's key is in use.

mod provider;

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use regex::Regex;
use serde::Deserialize;
use serde_json::json;
use sigstore_trust_root::TrustedRoot;
use sigstore_verify::types::{Artifact, Bundle, Sha256Hash, SignatureContent};
use sigstore_verify::{VerificationPolicy, Verifier};

use super::{CERTIFICATE, Refusal, TRUSTED_ROOT, statement};
use crate::core::verification::{CosignTrust, NotVerified, Signer};

/// Annotation with the certificates above the signer's.
const CHAIN: &str = "dev.sigstore.cosign/chain";
/// Annotation with what the log said.
const LOG: &str = "dev.sigstore.cosign/bundle";

/// What keyless signatures are checked by.
pub(super) struct Keyless<'a> {
    verifier: Verifier,
    policy: VerificationPolicy,
    /// Issuer and subject.
    identities: Vec<(Regex, Regex)>,
    sha256: &'a str,
}

/// The annotation [`LOG`].
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Log {
    signed_entry_timestamp: String,
    payload: LogPayload,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LogPayload {
    body: String,
    integrated_time: i64,
    log_index: u64,
    #[serde(rename = "logID")]
    log_id: String,
}

impl<'a> Keyless<'a> {
    pub(super) fn new(trust: &CosignTrust, sha256: &'a str) -> Result<Self, Refusal> {
        provider::install();
        let unusable = |problem: String| Refusal::Trust(NotVerified::Key { key: TRUSTED_ROOT.to_owned(), problem });
        let root = trust.keys.0.get(TRUSTED_ROOT).map(Vec::as_slice).unwrap_or_default();
        let root = std::str::from_utf8(root).map_err(|error| unusable(error.to_string()))?;
        let root = TrustedRoot::from_json(root).map_err(|error| unusable(error.to_string()))?;
        // An authority that submits its certificates to no log has none in its root.
        let policy = VerificationPolicy::any_identity();
        let policy = if root.ctlogs.is_empty() { policy.skip_sct() } else { policy };
        let verifier = Verifier::new(&root).map_err(|error| unusable(error.to_string()))?;
        let identities = trust.identities.iter().map(|identity| {
            let regex = |field: &str, pattern: &str| {
                Regex::new(pattern).map_err(|error| {
                    let message = format!("{field} of matchOIDCIdentity is no regular expression: {error}");
                    Refusal::Trust(NotVerified::WrongKind(message))
                })
            };
            Ok((regex("issuer", &identity.issuer)?, regex("subject", &identity.subject)?))
        });
        Ok(Self { verifier, policy, identities: identities.collect::<Result<_, Refusal>>()?, sha256 })
    }

    /// Checks a Sigstore bundle of the manifest.
    pub(super) fn bundle(&self, json: &[u8]) -> Result<Signer, Refusal> {
        let text = std::str::from_utf8(json).map_err(|_| Refusal::Invalid("its bundle is not UTF-8".to_owned()))?;
        let bundle =
            Bundle::from_json(text).map_err(|error| Refusal::Invalid(format!("its bundle can't be read: {error}")))?;
        let hash = Sha256Hash::from_hex(self.sha256).map_err(|error| Refusal::Invalid(error.to_string()))?;
        let signer = self.check(hash, &bundle)?;
        if let SignatureContent::DsseEnvelope(envelope) = &bundle.content {
            statement(envelope.payload.as_bytes(), self.sha256).map_err(Refusal::Invalid)?;
        }
        Ok(signer)
    }

    /// Checks a signature in annotations of its layer, whose payload was found to be one for the manifest.
    pub(super) fn annotations(
        &self,
        payload: &[u8],
        signature: &[u8],
        annotations: &BTreeMap<String, String>,
    ) -> Result<Signer, Refusal> {
        let bundle = assembled(payload, signature, annotations).map_err(Refusal::Invalid)?;
        self.check(payload, &bundle)
    }

    fn check<'b>(&self, artifact: impl Into<Artifact<'b>>, bundle: &Bundle) -> Result<Signer, Refusal> {
        let result = self
            .verifier
            .verify(artifact, bundle, &self.policy)
            .map_err(|error| Refusal::Invalid(format!("its keyless signature does not hold: {error}")))?;
        let subject = result.identity().map(|name| name.as_str().to_owned()).unwrap_or_default();
        let issuer = result.issuer().unwrap_or_default();
        let by = format!("{subject}, by {issuer}");
        let is_trusted =
            |(of_issuer, of_subject): &(Regex, Regex)| of_issuer.is_match(issuer) && of_subject.is_match(&subject);
        // A certificate without a subject would match a pattern that matches anything.
        if subject.is_empty() || issuer.is_empty() || !self.identities.iter().any(is_trusted) {
            return Err(Refusal::Identity(by));
        }
        Ok(Signer(by))
    }
}

/// The bundle that annotations hold in parts.
fn assembled(payload: &[u8], signature: &[u8], annotations: &BTreeMap<String, String>) -> Result<Bundle, String> {
    use sha2::{Digest, Sha256};
    let missing = |name: &str| format!("its annotation {name} is missing");
    let log = annotations.get(LOG).ok_or_else(|| missing(LOG))?;
    let log: Log = serde_json::from_str(log).map_err(|error| format!("its annotation {LOG} can't be read: {error}"))?;
    let mut certificates = Vec::new();
    for name in [CERTIFICATE, CHAIN] {
        let Some(pem) = annotations.get(name) else { continue };
        let read = openssl::x509::X509::stack_from_pem(pem.as_bytes())
            .map_err(|_| format!("its annotation {name} is no certificate"))?;
        // The chain's root is trusted by the trust root only.
        for certificate in read.iter().filter(|c| name == CERTIFICATE || !is_root(c)) {
            let der = certificate.to_der().map_err(|error| error.to_string())?;
            certificates.push(json!({"rawBytes": STANDARD.encode(der)}));
        }
    }
    if !annotations.contains_key(CERTIFICATE) {
        return Err(missing(CERTIFICATE));
    }
    let log_id = openssl::bn::BigNum::from_hex_str(&log.payload.log_id)
        .and_then(|number| number.to_vec_padded(32))
        .map_err(|_| format!("its annotation {LOG} names no log"))?;
    let bundle = json!({
        "mediaType": "application/vnd.dev.sigstore.bundle+json;version=0.1",
        "verificationMaterial": {
            "x509CertificateChain": {"certificates": certificates},
            "tlogEntries": [{
                "logIndex": log.payload.log_index.to_string(),
                "logId": {"keyId": STANDARD.encode(log_id)},
                "kindVersion": {"kind": "hashedrekord", "version": "0.0.1"},
                "integratedTime": log.payload.integrated_time.to_string(),
                "inclusionPromise": {"signedEntryTimestamp": log.signed_entry_timestamp},
                "canonicalizedBody": log.payload.body,
            }],
        },
        "messageSignature": {
            "messageDigest": {"algorithm": "SHA2_256", "digest": STANDARD.encode(Sha256::digest(payload))},
            "signature": STANDARD.encode(signature),
        },
    });
    Bundle::from_json(&bundle.to_string()).map_err(|error| error.to_string())
}

fn is_root(certificate: &openssl::x509::X509) -> bool {
    let (subject, issuer) = (certificate.subject_name().to_der(), certificate.issuer_name().to_der());
    matches!((subject, issuer), (Ok(subject), Ok(issuer)) if subject == issuer)
}

#[cfg(test)]
mod tests;
