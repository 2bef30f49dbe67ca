use std::collections::BTreeMap;

use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::rsa::Rsa;
use openssl::sign::Signer as Signing;
use serde_json::{Value, json};

use super::super::tests::{assert_outcome, keys};
use super::*;
use crate::core::verification::Keys;

pub(super) const HEX: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const OTHER: &str = "0000000000000000000000000000000000000000000000000000000000000000";

pub(super) fn digest() -> String {
    format!("sha256:{HEX}")
}

pub(super) fn ec(curve: Nid) -> PKey<Private> {
    PKey::from_ec_key(EcKey::generate(&EcGroup::from_curve_name(curve).unwrap()).unwrap()).unwrap()
}

pub(super) fn sign(key: &PKey<Private>, digest: Option<MessageDigest>, data: &[u8]) -> Vec<u8> {
    let mut signing = match digest {
        Some(digest) => Signing::new(digest, key).unwrap(),
        None => Signing::new_without_digest(key).unwrap(),
    };
    signing.sign_oneshot_to_vec(data).unwrap()
}

pub(super) fn payload_for(hex: &str, kind: &str) -> Vec<u8> {
    let image = json!({"docker-manifest-digest": format!("sha256:{hex}")});
    let identity = json!({"docker-reference": "registry.example/x"});
    json!({"critical": {"identity": identity, "image": image, "type": kind}, "optional": null}).to_string().into_bytes()
}

fn simple(payload: Vec<u8>, signature: &[u8]) -> Signature {
    Signature {
        payload,
        annotations: BTreeMap::from([(SIGNATURE.to_owned(), STANDARD.encode(signature))]),
        media_type: "application/vnd.dev.cosign.simplesigning.v1+json".to_owned(),
    }
}

fn trust(keys: Keys) -> CosignTrust {
    CosignTrust { keys, identities: Vec::new() }
}

pub(super) fn statement_for(hex: &str, kind: &str) -> Vec<u8> {
    let subject = json!([{"name": "x", "digest": {"sha256": hex}}]);
    json!({"_type": "https://in-toto.io/Statement/v1", "predicateType": kind, "subject": subject, "predicate": {}})
        .to_string()
        .into_bytes()
}

pub(super) fn bundled(content: &Value) -> Signature {
    let mut bundle = json!({
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"publicKey": {"hint": "x"}, "tlogEntries": []},
    });
    json_patch::merge(&mut bundle, content);
    Signature {
        payload: bundle.to_string().into_bytes(),
        media_type: "application/vnd.dev.sigstore.bundle.v0.3+json".to_owned(),
        ..Signature::default()
    }
}

fn envelope(key: &PKey<Private>, kind: &str, statement: &[u8]) -> Signature {
    let signature = sign(key, Some(MessageDigest::sha256()), &pre_authentication(kind, statement));
    let signatures = json!([{"sig": STANDARD.encode(signature)}]);
    let payload = STANDARD.encode(statement);
    bundled(&json!({"dsseEnvelope": {"payload": payload, "payloadType": kind, "signatures": signatures}}))
}

#[test]
fn every_kind_of_key_that_cosign_makes_or_takes_is_verified() {
    let sha256 = Some(MessageDigest::sha256());
    for (case, key, digests) in [
        ("P-256", ec(Nid::X9_62_PRIME256V1), vec![sha256]),
        ("P-384", ec(Nid::SECP384R1), vec![sha256, Some(MessageDigest::sha384())]),
        ("P-521", ec(Nid::SECP521R1), vec![sha256, Some(MessageDigest::sha512())]),
        ("RSA", PKey::from_rsa(Rsa::generate(2048).unwrap()).unwrap(), vec![sha256]),
        ("Ed25519", PKey::generate_ed25519().unwrap(), vec![None]),
    ] {
        let trust = trust(keys(&[("cosign.pub", &key.public_key_to_pem().unwrap())]));
        let payload = payload_for(HEX, PAYLOAD_TYPE);
        for by in digests {
            let signature = simple(payload.clone(), &sign(&key, by, &payload));
            assert_outcome(
                case,
                &verify(&trust, &digest(), &[signature]),
                "verified",
                "cosign key cosign.pub (SHA256:",
            );
        }
    }
}

#[test]
fn a_signature_counts_for_its_own_manifest_and_by_a_key_of_the_secret_only() {
    let (key, other) = (ec(Nid::X9_62_PRIME256V1), ec(Nid::X9_62_PRIME256V1));
    let public = key.public_key_to_pem().unwrap();
    let ours = trust(keys(&[("a.pub", &other.public_key_to_pem().unwrap()), ("b.pub", &public)]));
    let made = |payload: Vec<u8>, key: &PKey<Private>| {
        let signature = sign(key, Some(MessageDigest::sha256()), &payload);
        simple(payload, &signature)
    };
    let good = || made(payload_for(HEX, PAYLOAD_TYPE), &key);
    let third = ec(Nid::X9_62_PRIME256V1);
    let unknown = || made(payload_for(HEX, PAYLOAD_TYPE), &third);
    let tampered = Signature { payload: [&good().payload[..], b" "].concat(), ..good() };
    let no_base64 = Signature { annotations: BTreeMap::from([(SIGNATURE.to_owned(), "?".to_owned())]), ..good() };
    let of_other = || made(payload_for(OTHER, PAYLOAD_TYPE), &key);
    for (case, signatures, word, says) in [
        ("good", vec![good()], "verified", "cosign key b.pub"),
        ("one of several", vec![of_other(), unknown(), good()], "verified", "cosign key b.pub"),
        ("none", vec![], "unsigned", &digest()[..]),
        ("another key", vec![unknown()], "unknown", "a key of cosign"),
        ("another manifest", vec![of_other()], "invalid", "it is for sha256:0000"),
        (
            "another kind of payload",
            vec![made(payload_for(HEX, "atomic container signature"), &key)],
            "invalid",
            "no \"cosign",
        ),
        ("tampered", vec![tampered], "unknown", "a key of cosign"),
        ("no payload", vec![Signature { payload: b"{}".to_vec(), ..good() }], "invalid", "can't be read"),
        ("no signature", vec![Signature { annotations: BTreeMap::new(), ..good() }], "invalid", "is missing"),
        ("no base64", vec![no_base64], "invalid", "no base64"),
    ] {
        assert_outcome(case, &verify(&ours, &digest(), &signatures), word, says);
    }
    assert_outcome("no digest", &verify(&ours, "latest", &[good()]), "invalid", "no SHA-256 digest");
    for (case, files, says) in [
        ("no key", keys(&[]), "key *.pub"),
        ("a private key", keys(&[("a.pub", b"-----BEGIN ENCRYPTED COSIGN PRIVATE KEY-----\n")]), "key a.pub"),
        (
            "weak",
            keys(&[("a.pub", &PKey::from_rsa(Rsa::generate(1024).unwrap()).unwrap().public_key_to_pem().unwrap())]),
            "2048",
        ),
        ("SSH keys only", keys(&[("a.pub", b"ssh-ed25519 AAAA")]), "key *.pub"),
    ] {
        assert_outcome(case, &verify(&trust(files), &digest(), &[good()]), "key", says);
    }
}

#[test]
fn bundles_that_a_key_signed_are_verified() {
    let (key, other) = (ec(Nid::X9_62_PRIME256V1), ec(Nid::X9_62_PRIME256V1));
    let trust = trust(keys(&[("cosign.pub", &key.public_key_to_pem().unwrap())]));
    let manifest = b"test";
    let message = |key: &PKey<Private>, data: &[u8]| {
        let signature = STANDARD.encode(sign(key, Some(MessageDigest::sha256()), data));
        bundled(&json!({"messageSignature": {"signature": signature}}))
    };
    let certified = || {
        let material = json!({"publicKey": null, "certificate": {"rawBytes": ""}});
        bundled(&json!({"verificationMaterial": material, "messageSignature": {"signature": ""}}))
    };
    for (case, signature, word, says) in [
        ("statement", envelope(&key, STATEMENT, &statement_for(HEX, SIGN)), "verified", "cosign key cosign.pub"),
        ("message", message(&key, manifest), "verified", "cosign key cosign.pub"),
        ("another key", envelope(&other, STATEMENT, &statement_for(HEX, SIGN)), "unknown", "a key of cosign"),
        ("another key's message", message(&other, manifest), "unknown", "a key of cosign"),
        ("another message", message(&key, b"tess"), "unknown", "a key of cosign"),
        ("another artifact", envelope(&key, STATEMENT, &statement_for(OTHER, SIGN)), "invalid", "another artifact"),
        (
            "an attestation",
            envelope(&key, STATEMENT, &statement_for(HEX, "https://slsa.dev/provenance/v1")),
            "invalid",
            "an attestation of https://slsa.dev",
        ),
        ("no statement", envelope(&key, "text/plain", &statement_for(HEX, SIGN)), "invalid", "no in-toto statement"),
        ("nothing signed", bundled(&json!({})), "invalid", "holds no signature"),
        ("keyless, which is not asked for", certified(), "unknown", "a keyless identity"),
        ("no bundle", Signature { payload: b"[]".to_vec(), ..bundled(&json!({})) }, "invalid", "can't be read"),
    ] {
        assert_outcome(case, &verify(&trust, &digest(), &[signature]), word, says);
    }
}
