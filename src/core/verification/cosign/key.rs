//! Public keys of cosign: ECDSA P-256 mostly, P-384, P-521, RSA and Ed25519.

use openssl::hash::MessageDigest;
use openssl::md::Md;
use openssl::pkey::{Id, PKey, Public};
use openssl::pkey_ctx::PkeyCtx;
use openssl::rsa::Padding;
use openssl::sign::Verifier;

use super::{Signer, fingerprint};

/// Bits that an RSA key must have.
const MIN_RSA: u32 = 2048;

/// A public key with its name in the Secret.
pub(super) struct Key {
    name: String,
    key: PKey<Public>,
}

impl Key {
    /// Reads a key in PEM.
    pub(super) fn read(name: &str, content: &[u8]) -> Result<Self, String> {
        let key = PKey::public_key_from_pem(content)
            .map_err(|_| "it is no public key in PEM, as cosign public-key writes it".to_owned())?;
        match key.id() {
            Id::EC | Id::ED25519 => {}
            Id::RSA if key.bits() >= MIN_RSA => {}
            Id::RSA => return Err(format!("its RSA key has less than {MIN_RSA} bits")),
            _ => return Err("it is of a kind that is not accepted: use ECDSA, Ed25519 or RSA".to_owned()),
        }
        Ok(Self { name: name.to_owned(), key })
    }

    /// Who signs with it.
    pub(super) fn signer(&self) -> Signer {
        let der = self.key.public_key_to_der().unwrap_or_default();
        Signer(format!("cosign key {} (SHA256:{})", self.name, fingerprint(&der)))
    }

    /// Whether the key made this signature of these bytes.
    pub(super) fn verifies(&self, data: &[u8], signature: &[u8]) -> bool {
        let verifies = |digest: Option<MessageDigest>| {
            let mut verifier = match digest {
                Some(digest) => Verifier::new(digest, &self.key)?,
                None => Verifier::new_without_digest(&self.key)?,
            };
            verifier.verify_oneshot(signature, data)
        };
        match self.key.id() {
            Id::ED25519 => verifies(None).unwrap_or(false),
            // Old cosign signs with SHA-256 whatever the curve.
            Id::EC => [Some(MessageDigest::sha256()), self.digest_of_curve()]
                .into_iter()
                .flatten()
                .any(|digest| verifies(Some(digest)).unwrap_or(false)),
            _ => verifies(Some(MessageDigest::sha256())).unwrap_or(false),
        }
    }

    fn digest_of_curve(&self) -> Option<MessageDigest> {
        match self.key.bits() {
            384 => Some(MessageDigest::sha384()),
            521 => Some(MessageDigest::sha512()),
            _ => None,
        }
    }

    /// Whether the key made this signature of bytes with this SHA-256. Ed25519 signs no digests.
    pub(super) fn verifies_digest(&self, sha256: &str, signature: &[u8]) -> bool {
        let digest = openssl::bn::BigNum::from_hex_str(sha256).and_then(|number| number.to_vec_padded(32));
        let verifies = |digest: &[u8]| {
            let mut context = PkeyCtx::new(&self.key)?;
            context.verify_init()?;
            if self.key.id() == Id::RSA {
                context.set_rsa_padding(Padding::PKCS1)?;
            }
            context.set_signature_md(Md::sha256())?;
            context.verify(digest, signature)
        };
        self.key.id() != Id::ED25519 && digest.and_then(|digest| verifies(&digest)).unwrap_or(false)
    }
}
