//! A file of checksums (`SHA256SUMS`) with a detached signature.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::keyring::{Keyring, Purpose};
use super::{ChecksumTrust, NotVerified, Signer};
use crate::core::digest::hex;

/// The file of checksums where nobody names another one.
pub const CHECKSUMS: &str = "SHA256SUMS";
/// What a signature is called behind the name of the file that it is of, the one to prefer first.
const ENDS: [&str; 4] = [".asc", ".sig", ".gpg", ".minisig"];

/// What a signed file of checksums says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checksums {
    /// Who signed it.
    pub signer: Signer,
    /// SHA-256 in lowercase hexadecimal by name of the file.
    pub sums: BTreeMap<String, String>,
}

impl Checksums {
    /// Names of the files that were summed.
    pub fn names(&self) -> Vec<String> {
        self.sums.keys().cloned().collect()
    }
}

/// Names of the signature beside a file of checksums, the one to prefer first.
pub fn signature_names(file: &str) -> [String; 4] {
    ENDS.map(|end| format!("{file}{end}"))
}

/// Whether a file is called like the signature of another one.
pub fn is_signature(file: &str) -> bool {
    ENDS.iter().any(|end| file.ends_with(end))
}

/// Checks the detached `signature` of the file of checksums `sums` and reads it.
///
/// # Errors
/// The signature is not valid, of nobody whose key is there, or the file can't be read.
pub fn verify(trust: &ChecksumTrust, sums: &[u8], signature: &[u8]) -> Result<Checksums, NotVerified> {
    let keys = Keyring::read(&trust.keys)?;
    let signer = keys.verify(&trust.file, Purpose::File, sums, signature, trust.now)?;
    let sums = parse(sums).map_err(|problem| NotVerified::Invalid { what: trust.file.clone(), problem })?;
    Ok(Checksums { signer, sums })
}

/// [`verify`] by the first of several signatures that is good: one that is not voids none beside it.
///
/// # Errors
/// There is none, or none is good: what the first lacks.
pub fn verify_any<'s>(
    trust: &ChecksumTrust,
    sums: &[u8],
    signatures: impl IntoIterator<Item = &'s [u8]>,
) -> Result<Checksums, NotVerified> {
    let mut refusal = None;
    for signature in signatures {
        match verify(trust, sums, signature) {
            Ok(checksums) => return Ok(checksums),
            Err(problem) => _ = refusal.get_or_insert(problem),
        }
    }
    Err(refusal.unwrap_or(NotVerified::Unsigned { what: trust.file.clone() }))
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

/// Checks files against a file of checksums that is still to be signed. A file that it does not name is passed over, and all of them
/// where it is of another form.
///
/// # Errors
/// One of the files has another sum: which, and what to do.
pub fn agrees<'f>(sums: &[u8], files: impl IntoIterator<Item = (&'f str, &'f [u8])>) -> Result<(), String> {
    let sums = parse(sums).unwrap_or_default();
    for (name, content) in files {
        if sums.get(name).is_some_and(|expected| *expected != hex(&Sha256::digest(content))) {
            return Err(format!("it has another sum for {name}: make it anew, and sign it"));
        }
    }
    Ok(())
}

/// What `sha256sum`, `sha256sum --binary` and `sha256sum --tag` write. Sums of other kinds are passed over.
fn parse(content: &[u8]) -> Result<BTreeMap<String, String>, String> {
    let text = std::str::from_utf8(content).map_err(|_| "the file is not UTF-8".to_owned())?;
    let mut sums = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') || is_other_kind(line) {
            continue;
        }
        let (name, sum) = entry(line).ok_or_else(|| format!("line {} of the file is no checksum", number + 1))?;
        let name = name.strip_prefix("./").unwrap_or(name).to_owned();
        let sum = sum.to_ascii_lowercase();
        if sums.insert(name.clone(), sum.clone()).is_some_and(|before| before != sum) {
            return Err(format!("the file has two sums for {name}"));
        }
    }
    Ok(sums)
}

fn entry(line: &str) -> Option<(&str, &str)> {
    let is_sum = |sum: &str| sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit());
    if let Some(tagged) = line.strip_prefix("SHA256 (") {
        return tagged.rsplit_once(") = ").filter(|(name, sum)| !name.is_empty() && is_sum(sum));
    }
    let (sum, name) = line.split_once(' ')?;
    let name = name.strip_prefix([' ', '*']).filter(|name| !name.is_empty())?;
    is_sum(sum).then_some((name, sum))
}

/// `MD5 (name) = …` and the like.
fn is_other_kind(line: &str) -> bool {
    let kind = line.split_once(" (").filter(|_| line.contains(") = ")).map(|(kind, _)| kind);
    kind.is_some_and(|kind| kind != "SHA256" && kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'))
}

#[cfg(test)]
mod tests;
