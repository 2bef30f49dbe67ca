//! Signatures: whether who must have signed a release did. Pure: bytes and keys in, a signer or a refusal out.

pub mod checksums;
pub mod cosign;
pub mod file;
pub mod git;
mod keyring;
mod openpgp;
mod ssh;

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::api::source::{GitVerificationMode, OidcIdentity, Verify};
use crate::core::digest::hex;

/// What must hold of a release, with the keys to check it by.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// Signatures of tags and commits.
    pub git: Option<GitTrust>,
    /// Signatures of OCI artifacts.
    pub cosign: Option<CosignTrust>,
    /// Signed checksums of assets.
    pub checksums: Option<ChecksumTrust>,
}

impl Trust {
    /// A digest of what must be signed and of the keys, not of the time: the same decide the same.
    pub fn digest(&self) -> String {
        let mut digest = Sha256::new();
        let mut add = |part: &[u8]| {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        };
        let mut keys = |keys: &Keys| {
            add(&keys.0.len().to_be_bytes());
            keys.0.iter().for_each(|(name, key)| [name.as_bytes(), key].into_iter().for_each(&mut add));
        };
        [self.git.as_ref().map(|git| &git.keys), self.cosign.as_ref().map(|cosign| &cosign.keys)]
            .into_iter()
            .chain([self.checksums.as_ref().map(|checksums| &checksums.keys)])
            .for_each(|found| keys(found.unwrap_or(&Keys::default())));
        let mode = self.git.as_ref().map(|git| &git.mode);
        let identities = self.cosign.as_ref().map(|cosign| &cosign.identities);
        let file = self.checksums.as_ref().map(|checksums| &checksums.file);
        add(format!("{mode:?} {identities:?} {file:?}").as_bytes());
        format!("sha256:{}", hex(&digest.finalize()))
    }
}

/// A digest of what is asked for, without the keys: what was verified by the same needs no other look.
pub fn asked(verify: &Verify) -> String {
    let text = serde_json::to_string(verify).unwrap_or_default();
    format!("sha256:{}", hex(&Sha256::digest(text)))
}

/// Signatures of tags and commits.
#[derive(Clone, Debug, Default)]
pub struct GitTrust {
    /// What must be signed.
    pub mode: GitVerificationMode,
    /// By whom.
    pub keys: Keys,
    /// The time at which keys and signatures must be in force.
    pub now: Timestamp,
}

/// Signatures of OCI artifacts.
#[derive(Clone, Debug, Default)]
pub struct CosignTrust {
    /// Public keys under names that end in `.pub`, `trusted_root.json` for keyless signatures.
    pub keys: Keys,
    /// Whose keyless signature counts.
    pub identities: Vec<OidcIdentity>,
}

/// Signed checksums of assets.
#[derive(Clone, Debug, Default)]
pub struct ChecksumTrust {
    /// Name of the file of checksums.
    pub file: String,
    /// By whom it must be signed.
    pub keys: Keys,
    /// The time at which keys and signatures must be in force.
    pub now: Timestamp,
}

/// The files of a Secret with public keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Keys(pub BTreeMap<String, Vec<u8>>);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Who signed, for people: `SSH key SHA256:… (release@example.com)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signer(pub String);

/// Why a signature does not count.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotVerified {
    /// There is none.
    #[error("{what} is not signed: sign it, or ask for less in verify")]
    Unsigned {
        /// What should be signed.
        what: String,
    },
    /// There is one, of nobody who is trusted.
    #[error("{what} is signed by {by}, whose key is not in the Secret that verify names: add it if you trust it")]
    UnknownSigner {
        /// What is signed.
        what: String,
        /// The key's fingerprint, or the identity.
        by: String,
    },
    /// There is one, by an identity that nobody named.
    #[error("{what} is signed by {by}, which no entry of matchOIDCIdentity fits: add one if you trust it")]
    UnknownIdentity {
        /// What is signed.
        what: String,
        /// The identity and its issuer.
        by: String,
    },
    /// It does not fit what it should sign, or the key expired or was revoked.
    #[error("the signature of {what} is not valid: {problem}")]
    Invalid {
        /// What is signed.
        what: String,
        /// What is wrong.
        problem: String,
    },
    /// The keys can't be read.
    #[error("key {key} of the Secret that verify names can't be used: {problem}")]
    Key {
        /// Key of the Secret.
        key: String,
        /// What is wrong.
        problem: String,
    },
    /// The source has no signatures of the kind that is asked for.
    #[error("{0}")]
    WrongKind(String),
}

#[cfg(test)]
mod tests;
