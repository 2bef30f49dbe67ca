use serde_json::Value;

use self::sigstore::{Certified, DURING, SUBJECT, Sigstore, b64, sha256, sign};
use super::super::tests::{HEX, bundled, digest, payload_for, statement_for};
use super::super::{PAYLOAD_TYPE, SIGN, STATEMENT, Signature, pre_authentication, verify};
use super::*;
use crate::api::source::OidcIdentity;
use crate::core::digest::hex;
use crate::core::verification::Keys;
use crate::core::verification::tests::assert_outcome;

#[path = "../../../../../tests/source/sigstore.rs"]
mod sigstore;

/// After the life of the certificates.
const AFTER: i64 = 1_770_000_000;

impl Sigstore {
    /// As cosign writes it into annotations.
    fn annotated(&self, by: &Certified, payload: Vec<u8>, at: i64) -> Signature {
        let annotations = self.annotations(by, &payload, at);
        Signature { payload, annotations, media_type: "application/vnd.dev.cosign.simplesigning.v1+json".to_owned() }
    }

    /// What the log keeps of an envelope.
    fn envelope_entry(envelope: &Value, statement: &[u8], signature: &[u8], by: &Certified) -> String {
        let hash = |data: &[u8]| json!({"algorithm": "sha256", "value": hex(&sha256(data))});
        let signatures = json!([{"signature": b64(signature), "verifier": b64(&by.pem)}]);
        let spec = json!({
            "envelopeHash": hash(envelope.to_string().as_bytes()), "payloadHash": hash(statement), "signatures": signatures,
        });
        b64(json!({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec}).to_string())
    }

    /// A bundle with the proof that the entry is the log's only one.
    fn bundled(&self, by: &Certified, (kind, body): (&str, String), content: &Value, at: i64) -> Signature {
        let promise = self.promise(&body, at);
        let leaf = sha256(&[&[0], STANDARD.decode(&body).unwrap().as_slice()].concat());
        let head = format!("log.example\n1\n{}\n", b64(&leaf));
        let head_signature = sign(&self.log, head.as_bytes());
        let head_signature = b64([&self.log_id()[..4], &head_signature].concat());
        let proof = json!({
            "logIndex": "0", "treeSize": "1", "rootHash": b64(&leaf), "hashes": [],
            "checkpoint": {"envelope": format!("{head}\n\u{2014} log.example {head_signature}\n")},
        });
        let entry = json!({
            "logIndex": "7",
            "logId": {"keyId": b64(self.log_id())},
            "kindVersion": {"kind": kind, "version": "0.0.1"},
            "integratedTime": at.to_string(),
            "inclusionPromise": {"signedEntryTimestamp": promise},
            "inclusionProof": proof,
            "canonicalizedBody": body,
        });
        let certificate = json!({"rawBytes": b64(&by.der)});
        let mut all =
            json!({"verificationMaterial": {"publicKey": null, "certificate": certificate, "tlogEntries": [entry]}});
        json_patch::merge(&mut all, content);
        bundled(&all)
    }

    fn statement(&self, by: &Certified, statement: &[u8], at: i64) -> Signature {
        let signed = pre_authentication(STATEMENT, statement);
        let signature = sign(&by.key, &signed);
        let signatures = json!([{"sig": b64(&signature)}]);
        let envelope = json!({"payload": b64(statement), "payloadType": STATEMENT, "signatures": signatures});
        let entry = Self::envelope_entry(&envelope, statement, &signature, by);
        self.bundled(by, ("dsse", entry), &json!({"dsseEnvelope": envelope}), at)
    }

    fn message(&self, by: &Certified, manifest: &[u8], at: i64) -> Signature {
        let signature = sign(&by.key, manifest);
        let digest = json!({"algorithm": "SHA2_256", "digest": b64(sha256(manifest))});
        let content = json!({"messageSignature": {"messageDigest": digest, "signature": b64(&signature)}});
        let entry = Self::entry(manifest, &signature, by);
        self.bundled(by, ("hashedrekord", entry), &content, at)
    }
}

fn trust(root: &[u8], issuer: &str, subject: &str) -> CosignTrust {
    CosignTrust {
        keys: Keys([(TRUSTED_ROOT.to_owned(), root.to_vec())].into()),
        identities: vec![OidcIdentity { issuer: issuer.into(), subject: subject.into() }],
    }
}

#[test]
fn keyless_signatures_in_annotations_and_bundles_are_verified_offline() {
    let ours = Sigstore::new();
    let theirs = Sigstore::new();
    let by = ours.certificate();
    let manifest = b"test";
    assert_eq!(hex(&sha256(manifest)), HEX);
    let payload = || payload_for(HEX, PAYLOAD_TYPE);
    let good = || ours.annotated(&by, payload(), DURING);
    let without = |name: &str| {
        let mut signature = good();
        signature.annotations.remove(name);
        signature
    };
    let changed = |name: &str, from: &str, to: &str| {
        let mut signature = good();
        let text = signature.annotations[name].replace(from, to);
        signature.annotations.insert(name.to_owned(), text);
        signature
    };
    let other_entry = {
        let mut signature = good();
        let other = ours.annotated(&by, payload_for(HEX, "x"), DURING);
        signature.annotations.insert(LOG.to_owned(), other.annotations[LOG].clone());
        signature
    };
    let no_proof = || {
        let mut signature = ours.message(&by, manifest, DURING);
        let mut bundle: Value = serde_json::from_slice(&signature.payload).unwrap();
        bundle["verificationMaterial"]["tlogEntries"][0]["inclusionProof"]["rootHash"] = json!(b64([0; 32]));
        signature.payload = bundle.to_string().into_bytes();
        signature
    };
    let broken = "does not hold";
    let attestation = statement_for(HEX, "https://slsa.dev/provenance/v1");
    for (case, signature, word, says) in [
        ("annotations", good(), "verified", "release@example.com, by https://issuer.example"),
        ("annotations without a chain", without(CHAIN), "verified", SUBJECT),
        ("statement", ours.statement(&by, &statement_for(HEX, SIGN), DURING), "verified", SUBJECT),
        ("message", ours.message(&by, manifest, DURING), "verified", SUBJECT),
        ("no log", without(LOG), "invalid", LOG),
        ("no certificate", without(CERTIFICATE), "unknown", "a key of cosign"),
        ("a time that the log did not sign", changed(LOG, "1767270000", "1767270001"), "invalid", broken),
        ("an entry for another signature", other_entry, "invalid", broken),
        ("after the certificate's life", ours.annotated(&by, payload(), AFTER), "invalid", broken),
        ("another authority", theirs.annotated(&theirs.certificate(), payload(), DURING), "invalid", broken),
        ("our log, another authority", ours.annotated(&theirs.certificate(), payload(), DURING), "invalid", broken),
        ("our authority, another log", theirs.annotated(&by, payload(), DURING), "invalid", broken),
        (
            "another manifest",
            ours.annotated(&by, payload_for(&"0".repeat(64), PAYLOAD_TYPE), DURING),
            "invalid",
            "it is for sha256:00",
        ),
        ("another artifact", ours.statement(&by, &statement_for(&"0".repeat(64), SIGN), DURING), "invalid", broken),
        ("an attestation", ours.statement(&by, &attestation, DURING), "invalid", "an attestation of"),
        ("another message", ours.message(&by, b"tess", DURING), "invalid", broken),
        ("no proof of the log", no_proof(), "invalid", broken),
        ("bundle after the certificate's life", ours.message(&by, manifest, AFTER), "invalid", broken),
    ] {
        let trust = trust(&ours.root(), "^https://issuer\\.example$", "^release@");
        assert_outcome(case, &verify(&trust, &digest(), &[signature]), word, says);
    }
}

#[test]
fn identities_are_matched_as_flux_matches_them() {
    let ours = Sigstore::new();
    let signature = ours.annotated(&ours.certificate(), payload_for(HEX, PAYLOAD_TYPE), DURING);
    for (issuer, subject, word, says) in [
        ("^https://issuer\\.example$", "^release@example\\.com$", "verified", SUBJECT),
        // A pattern without anchors matches a part.
        ("issuer", "example", "verified", SUBJECT),
        ("^https://issuer$", "example", "unknown", "release@example.com, by https://issuer.example"),
        ("issuer", "^other@", "unknown", SUBJECT),
        ("(", "x", "wrong kind", "issuer of matchOIDCIdentity"),
    ] {
        let trust = trust(&ours.root(), issuer, subject);
        assert_outcome(subject, &verify(&trust, &digest(), std::slice::from_ref(&signature)), word, says);
    }
    let mut without_root = trust(b"", "x", "y");
    assert_outcome("no root", &verify(&without_root, &digest(), std::slice::from_ref(&signature)), "key", TRUSTED_ROOT);
    without_root.keys = Keys::default();
    assert_outcome("root missing", &verify(&without_root, &digest(), &[signature]), "key", "it is missing");
}

/// From the test data of Sigstore's Rust crates (Apache-2.0): an attestation that a workflow on GitHub made, with Sigstore's
/// public log and its certificate's own log.
#[test]
fn what_the_public_sigstore_signed_is_verified() {
    let bundle = include_bytes!("attestation.json");
    let sha256 = "54303491a8418fbed24344b513546182c29b43bf282ceb433af65e2299f9271f";
    let root = sigstore_trust_root::SIGSTORE_PRODUCTION_TRUSTED_ROOT.as_bytes();
    let trust = trust(root, "^https://token\\.actions\\.githubusercontent\\.com$", "^https://github\\.com/prefix-dev/");
    let read = Bundle::from_json(std::str::from_utf8(bundle).unwrap()).unwrap();
    let by = |sha256| Keyless::new(&trust, sha256).ok().unwrap();
    let check = |hex: &'static str| by(hex).check(Sha256Hash::from_hex(hex).unwrap(), &read);
    let signer = check(sha256).ok().unwrap();
    assert!(signer.0.starts_with("https://github.com/prefix-dev/sigstore-example/"), "{}", signer.0);
    assert!(matches!(check(HEX), Err(Refusal::Invalid(_))));
    assert!(matches!(by(sha256).bundle(bundle), Err(Refusal::Invalid(problem)) if problem.contains("an attestation")));
}
