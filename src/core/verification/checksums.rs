//! A file of checksums (`SHA256SUMS`) with a detached signature.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::{ChecksumTrust, NotVerified, Signer};
use crate::core::digest::hex;

/// What a signed file of checksums says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checksums {
    /// Who signed it.
    pub signer: Signer,
    /// SHA-256 in lowercase hexadecimal by name of the file.
    pub sums: BTreeMap<String, String>,
}

/// Names of the signature beside a file of checksums, the one to prefer first.
pub fn signature_names(file: &str) -> [String; 3] {
    [format!("{file}.asc"), format!("{file}.sig"), format!("{file}.gpg")]
}

/// Checks the detached `signature` of the file of checksums `sums` and reads it.
///
/// # Errors
/// The signature is not valid, of nobody whose key is there, or the file can't be read.
pub fn verify(trust: &ChecksumTrust, sums: &[u8], signature: &[u8]) -> Result<Checksums, NotVerified> {
    let _ = (trust, sums, signature);
    Err(NotVerified::WrongKind("signed checksums are not checked by this version".to_owned()))
}

/// Checks one file against the signed sums.
///
/// # Errors
/// It is not among them, or has another sum.
pub fn check(checksums: &Checksums, name: &str, content: &[u8]) -> Result<(), NotVerified> {
    let invalid = |problem: &str| NotVerified::Invalid { what: name.to_owned(), problem: problem.to_owned() };
    let expected = checksums.sums.get(name).ok_or_else(|| invalid("it is not in the signed file of checksums"))?;
    let found = hex(&Sha256::digest(content));
    if found == *expected { Ok(()) } else { Err(invalid("it has another SHA-256 than the signed file says")) }
}
