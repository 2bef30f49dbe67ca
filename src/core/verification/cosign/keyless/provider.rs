//! Cryptography for Sigstore's crate, by the library that is here already.

use openssl::bn::BigNumContext;
use openssl::ec::{EcGroup, EcKey, EcPoint};
use openssl::error::ErrorStack;
use openssl::md::{Md, MdRef};
use openssl::nid::Nid;
use openssl::pkey::{Id, PKey, Public};
use openssl::pkey_ctx::PkeyCtx;
use openssl::rsa::{Padding, Rsa};
use openssl::sign::{RsaPssSaltlen, Verifier};
use sha2::{Digest, Sha256, Sha384, Sha512};
use sigstore_verify::crypto::provider::{CryptoProvider, HashContext};
use sigstore_verify::crypto::{Error, Result, SigningScheme, install_default_provider};
use sigstore_verify::types::HashAlgorithm;

static PROVIDER: Provider = Provider;

/// Makes it the one that Sigstore's crate uses; once it is, this does nothing.
pub(super) fn install() {
    let _ = install_default_provider(&PROVIDER);
}

#[derive(Debug)]
struct Provider;

struct Hash<D>(D);

impl<D: Digest + Send> HashContext for Hash<D> {
    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn finalize(self: Box<Self>) -> Vec<u8> {
        self.0.finalize().to_vec()
    }
}

impl CryptoProvider for Provider {
    fn hash(&self, algorithm: HashAlgorithm) -> Result<Box<dyn HashContext>> {
        match algorithm {
            HashAlgorithm::Sha2256 => Ok(Box::new(Hash(Sha256::new()))),
            HashAlgorithm::Sha2384 => Ok(Box::new(Hash(Sha384::new()))),
            HashAlgorithm::Sha2512 => Ok(Box::new(Hash(Sha512::new()))),
            other => Err(Error::UnsupportedAlgorithm(format!("digests of {other}"))),
        }
    }

    fn verify_raw(&self, scheme: SigningScheme, key: &[u8], data: &[u8], signature: &[u8]) -> Result<()> {
        let Some(algorithm) = scheme.hash_algorithm() else {
            return judged(scheme, ed25519(scheme, key, data, signature).unwrap_or(false));
        };
        let mut digest = self.hash(algorithm)?;
        digest.update(data);
        self.verify_prehashed(scheme, key, &digest.finalize(), signature)
    }

    fn verify_prehashed(&self, scheme: SigningScheme, key: &[u8], digest: &[u8], signature: &[u8]) -> Result<()> {
        judged(scheme, prehashed(scheme, key, digest, signature).unwrap_or(false))
    }
}

fn judged(scheme: SigningScheme, holds: bool) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Verification(format!("{} signature invalid", scheme.name()))) }
}

fn ed25519(scheme: SigningScheme, key: &[u8], data: &[u8], signature: &[u8]) -> std::result::Result<bool, ErrorStack> {
    if scheme != SigningScheme::Ed25519 {
        return Ok(false);
    }
    let key = PKey::public_key_from_raw_bytes(key, Id::ED25519)?;
    Verifier::new_without_digest(&key)?.verify_oneshot(signature, data)
}

fn prehashed(
    scheme: SigningScheme,
    key: &[u8],
    digest: &[u8],
    signature: &[u8],
) -> std::result::Result<bool, ErrorStack> {
    let (curve, padding) = match scheme {
        SigningScheme::EcdsaP256Sha256 | SigningScheme::EcdsaP256Sha384 => (Some(Nid::X9_62_PRIME256V1), None),
        SigningScheme::EcdsaP384Sha256 | SigningScheme::EcdsaP384Sha384 => (Some(Nid::SECP384R1), None),
        SigningScheme::RsaPkcs1Sha256 | SigningScheme::RsaPkcs1Sha384 | SigningScheme::RsaPkcs1Sha512 => {
            (None, Some(Padding::PKCS1))
        }
        SigningScheme::RsaPssSha256 | SigningScheme::RsaPssSha384 | SigningScheme::RsaPssSha512 => {
            (None, Some(Padding::PKCS1_PSS))
        }
        _ => return Ok(false),
    };
    let Some(md) = scheme.hash_algorithm().and_then(md) else { return Ok(false) };
    let key = match curve {
        Some(curve) => point(curve, key)?,
        None => PKey::from_rsa(Rsa::public_key_from_der_pkcs1(key)?)?,
    };
    let mut context = PkeyCtx::new(&key)?;
    context.verify_init()?;
    if let Some(padding) = padding {
        context.set_rsa_padding(padding)?;
    }
    context.set_signature_md(md)?;
    if padding == Some(Padding::PKCS1_PSS) {
        context.set_rsa_mgf1_md(md)?;
        context.set_rsa_pss_saltlen(RsaPssSaltlen::DIGEST_LENGTH)?;
    }
    context.verify(digest, signature)
}

fn point(curve: Nid, key: &[u8]) -> std::result::Result<PKey<Public>, ErrorStack> {
    let group = EcGroup::from_curve_name(curve)?;
    let mut context = BigNumContext::new()?;
    let point = EcPoint::from_bytes(&group, key, &mut context)?;
    let key = EcKey::from_public_key(&group, &point)?;
    key.check_key()?;
    PKey::from_ec_key(key)
}

fn md(algorithm: HashAlgorithm) -> Option<&'static MdRef> {
    match algorithm {
        HashAlgorithm::Sha2256 => Some(Md::sha256()),
        HashAlgorithm::Sha2384 => Some(Md::sha384()),
        HashAlgorithm::Sha2512 => Some(Md::sha512()),
        _ => None,
    }
}
