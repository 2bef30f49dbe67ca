//! The detached signature of a file that is too large to be held: by OpenPGP, an SSH key, minisign, or a key of cosign.

use std::io::Read;

use jiff::Timestamp;

use super::keyring::Keyring;
use super::{Keys, NotVerified, Signer, cosign, openpgp};

/// Largest signature, in bytes; a bundle of cosign is one too.
pub const LARGEST_SIGNATURE: u64 = 256 * 1024;

/// What was signed.
pub struct Signed<'d> {
    /// What it is, for people.
    pub what: &'d str,
    /// Its SHA-256 in hexadecimal digits.
    pub sha256: &'d str,
    /// Opens it at its beginning. A reading that fails makes the signature invalid: the caller looks whether one did.
    pub open: &'d (dyn Fn() -> Box<dyn Read + 'd> + 'd),
}

/// Checks the detached `signature`: OpenPGP in text or binary, SSH (`ssh-keygen -Y sign -n file`), minisign, or what
/// `cosign sign-blob` writes with an ECDSA or RSA key.
///
/// # Errors
/// It is of another kind, not valid, of none of `keys`, or there is no key of its kind.
pub fn verify(keys: &Keys, signed: &Signed<'_>, signature: &[u8], now: Timestamp) -> Result<Signer, NotVerified> {
    let plain = signature.trim_ascii_start();
    let is_of_the_ring = plain.starts_with(b"-----BEGIN SSH") || plain.starts_with(b"untrusted comment:");
    if is_of_the_ring || openpgp::is_signature(signature) {
        let ring = Keyring::read(keys)?;
        let signature = if is_of_the_ring { plain } else { signature };
        if let Some(judged) = ring.verify_file(signed.what, signed.open, signature, now) {
            return judged;
        }
    }
    cosign::verify_blob(keys, signed.what, signed.sha256, signature)
}

#[cfg(test)]
mod tests;
