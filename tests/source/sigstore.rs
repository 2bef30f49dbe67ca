//! A Sigstore of our own: an authority for signers and a log that saw them.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::sign::Signer;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CustomExtension, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    SanType, date_time_ymd,
};
use serde_json::json;
use sha2::{Digest, Sha256};

/// In the life of the certificates, as a second.
pub const DURING: i64 = 1_767_270_000;
/// Who signs.
pub const SUBJECT: &str = "release@example.com";
/// Who vouches for it.
pub const ISSUER: &str = "https://issuer.example";
/// Issuer, as a string of ASN.1.
const ISSUER_V2: &[u64] = &[1, 3, 6, 1, 4, 1, 57264, 1, 8];

pub struct Sigstore {
    pub authority: CertifiedIssuer<'static, KeyPair>,
    pub log: PKey<Private>,
}

/// A certificate with its key.
pub struct Certified {
    pub pem: String,
    pub der: Vec<u8>,
    pub key: PKey<Private>,
}

pub fn sha256(data: &[u8]) -> Vec<u8> {
    Sha256::digest(data).to_vec()
}

pub fn b64(data: impl AsRef<[u8]>) -> String {
    STANDARD.encode(data)
}

fn hex(data: &[u8]) -> String {
    data.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// A signature over the SHA-256 of data.
pub fn sign(key: &PKey<Private>, data: &[u8]) -> Vec<u8> {
    Signer::new(MessageDigest::sha256(), key).unwrap().sign_oneshot_to_vec(data).unwrap()
}

impl Sigstore {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.not_before, params.not_after) = (date_time_ymd(2025, 1, 1), date_time_ymd(2035, 1, 1));
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
        let log = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
        Self { authority, log }
    }

    /// A certificate that lives on the first day of 2026.
    pub fn certificate(&self) -> Certified {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2026, 1, 2));
        params.subject_alt_names = vec![SanType::Rfc822Name(SUBJECT.try_into().unwrap())];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
        params.use_authority_key_identifier_extension = true;
        let text = [&[0x0c, u8::try_from(ISSUER.len()).unwrap()], ISSUER.as_bytes()].concat();
        params.custom_extensions = vec![CustomExtension::from_oid_content(ISSUER_V2, text)];
        let made = params.signed_by(&key, &self.authority).unwrap();
        let private = PKey::private_key_from_der(key.serialized_der()).unwrap();
        Certified { pem: made.pem(), der: made.der().to_vec(), key: private }
    }

    pub fn log_id(&self) -> Vec<u8> {
        sha256(&self.log.public_key_to_der().unwrap())
    }

    pub fn root(&self) -> Vec<u8> {
        let life = json!({"start": "2025-01-01T00:00:00Z"});
        json!({
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [{
                "baseUrl": "https://log.example",
                "hashAlgorithm": "SHA2_256",
                "publicKey": {
                    "rawBytes": b64(self.log.public_key_to_der().unwrap()),
                    "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                    "validFor": life,
                },
                "logId": {"keyId": b64(self.log_id())},
            }],
            "certificateAuthorities": [{
                "subject": {"organization": "example", "commonName": "authority"},
                "uri": "https://authority.example",
                "certChain": {"certificates": [{"rawBytes": b64(self.authority.der())}]},
                "validFor": life,
            }],
            "ctlogs": [],
            "timestampAuthorities": [],
        })
        .to_string()
        .into_bytes()
    }

    /// What the log keeps of a signature of `data`.
    pub fn entry(data: &[u8], signature: &[u8], by: &Certified) -> String {
        let hash = json!({"algorithm": "sha256", "value": hex(&sha256(data))});
        let signature = json!({"content": b64(signature), "publicKey": {"content": b64(&by.pem)}});
        let spec = json!({"data": {"hash": hash}, "signature": signature});
        b64(json!({"apiVersion": "0.0.1", "kind": "hashedrekord", "spec": spec}).to_string())
    }

    /// The log's promise for an entry. The fields are in the order of the canonical form.
    pub fn promise(&self, body: &str, at: i64) -> String {
        let log = hex(&self.log_id());
        let text = format!(r#"{{"body":"{body}","integratedTime":{at},"logID":"{log}","logIndex":7}}"#);
        b64(sign(&self.log, text.as_bytes()))
    }

    /// What cosign writes into the annotations of a signature of `payload`.
    pub fn annotations(&self, by: &Certified, payload: &[u8], at: i64) -> BTreeMap<String, String> {
        let signature = sign(&by.key, payload);
        let body = Self::entry(payload, &signature, by);
        let promise = self.promise(&body, at);
        let log = json!({"body": body, "integratedTime": at, "logIndex": 7, "logID": hex(&self.log_id())});
        let log = json!({"SignedEntryTimestamp": promise, "Payload": log});
        [
            ("dev.cosignproject.cosign/signature", b64(signature)),
            ("dev.sigstore.cosign/certificate", by.pem.clone()),
            ("dev.sigstore.cosign/chain", self.authority.pem()),
            ("dev.sigstore.cosign/bundle", log.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}
