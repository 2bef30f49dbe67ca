//! Signatures of Git's tags and commits, by OpenPGP and by SSH keys.
//!
//! Guarantees: a signed tag counts only under its own name and for the commit that it names, by way of tags of tags too;
//! ids are computed here from the objects' bytes, so that no object can stand in for another.
//!
//! Caveat: a signed commit says nothing of the tag that names it. Who may push tags chooses among the signed commits.

use sha1::{Digest, Sha1};

use super::keyring::{Keyring, Purpose};
use super::{GitTrust, NotVerified, Signer, openpgp, ssh};
use crate::api::source::GitVerificationMode;
use crate::core::digest::hex;

/// Headers that hold signatures; the second one signs the object as it would be with SHA-256.
const SIGNATURES: [&str; 2] = ["gpgsig", "gpgsig-sha256"];

/// What is checked.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The tag's name, without `refs/tags/`.
    pub tag: &'a str,
    /// The tag objects as Git stores them, without header (`git cat-file tag`): first the one that the tag's name leads
    /// to, then the one that it names, and so on. None for a tag that is nothing but a name for a commit.
    pub tags: &'a [Vec<u8>],
    /// The commit object (`git cat-file commit`).
    pub commit: &'a [u8],
    /// The commit's id.
    pub revision: &'a str,
}

/// Checks the signatures that `trust` asks for.
///
/// # Errors
/// A signature is missing, not valid, of nobody whose key is there, or of something else.
pub fn verify(trust: &GitTrust, subject: &Subject<'_>) -> Result<Signer, NotVerified> {
    let keys = Keyring::read(&trust.keys)?;
    let check =
        |what: &str, signed: &Signed| keys.verify(what, Purpose::Git, &signed.payload, &signed.signature, trust.now);
    let commit_name = format!("commit {}", subject.revision);
    if id("commit", subject.commit) != subject.revision {
        return Err(NotVerified::Invalid { what: commit_name, problem: "it is another commit".to_owned() });
    }
    let tag = || {
        let what = format!("tag {}", subject.tag);
        let signed = signed_tag(subject, &what)?;
        check(&what, &signed)
    };
    let commit = || check(&commit_name, &signed_commit(subject.commit, &commit_name)?);
    match trust.mode {
        GitVerificationMode::Tag => tag(),
        GitVerificationMode::Commit => commit(),
        GitVerificationMode::TagAndCommit => {
            let (tag, commit) = (tag()?, commit()?);
            let both = if tag == commit { tag.0 } else { format!("{}; the commit by {}", tag.0, commit.0) };
            Ok(Signer(both))
        }
    }
}

struct Signed {
    payload: Vec<u8>,
    signature: Vec<u8>,
}

/// The id of an object.
fn id(kind: &str, content: &[u8]) -> String {
    let mut digest = Sha1::new();
    digest.update(format!("{kind} {}\0", content.len()));
    digest.update(content);
    hex(&digest.finalize())
}

/// The outermost tag, if it has this name and leads to the commit.
fn signed_tag(subject: &Subject<'_>, what: &str) -> Result<Signed, NotVerified> {
    let invalid = |problem: String| NotVerified::Invalid { what: what.to_owned(), problem };
    let Some(outermost) = subject.tags.first() else {
        return Err(NotVerified::Unsigned { what: format!("{what}, which is no annotated tag,") });
    };
    for (index, content) in subject.tags.iter().enumerate() {
        let named = Named::of(content).ok_or_else(|| invalid("it is no tag as Git writes it".to_owned()))?;
        if index == 0 && named.tag != subject.tag {
            return Err(invalid(format!("it was made for tag {}", named.tag)));
        }
        let (kind, next) = match subject.tags.get(index + 1) {
            Some(next) => ("tag", id("tag", next)),
            None => ("commit", subject.revision.to_owned()),
        };
        if (named.kind, named.object) != (kind, next.as_str()) {
            return Err(invalid(format!("it is for {} {}", named.kind, named.object)));
        }
    }
    let at = signature_at(outermost).ok_or_else(|| NotVerified::Unsigned { what: what.to_owned() })?;
    let (payload, signature) = outermost.split_at(at);
    let (payload, _) = without_signatures(payload);
    Ok(Signed { payload, signature: whole(signature).map_err(invalid)? })
}

/// What a tag says of itself.
struct Named<'a> {
    object: &'a str,
    kind: &'a str,
    tag: &'a str,
}

impl<'a> Named<'a> {
    /// The first three lines, in their order: a second one of a kind can't stand before them.
    fn of(content: &'a [u8]) -> Option<Self> {
        let mut lines = content.split(|byte| *byte == b'\n');
        let mut line = |name: &str| std::str::from_utf8(lines.next()?).ok()?.strip_prefix(name);
        Some(Self { object: line("object ")?, kind: line("type ")?, tag: line("tag ")? })
    }
}

/// Where the signature at the end of a tag begins: at the last line that begins one, as Git has it.
fn signature_at(content: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut found = None;
    for line in content.split_inclusive(|byte| *byte == b'\n') {
        if [openpgp::SIGNATURE, ssh::SIGNATURE].iter().any(|begin| line.starts_with(begin.as_bytes())) {
            found = Some(at);
        }
        at += line.len();
    }
    found
}

/// A signature with nothing behind its end: what stands there would be signed by nobody.
fn whole(signature: &[u8]) -> Result<Vec<u8>, String> {
    let text = std::str::from_utf8(signature).map_err(|_| "it is not UTF-8".to_owned())?;
    let end = text.find("-----END ").ok_or("it has no end")?;
    let last_line = text[end..].find('\n').map_or(text.len(), |length| end + length);
    if text[last_line..].trim().is_empty() {
        Ok(signature.to_vec())
    } else {
        Err("something follows its end".to_owned())
    }
}

/// An object without the headers that hold signatures, and the contents of those.
fn without_signatures(content: &[u8]) -> (Vec<u8>, Vec<(&'static str, Vec<u8>)>) {
    let mut rest = Vec::with_capacity(content.len());
    let mut found: Vec<(&'static str, Vec<u8>)> = Vec::new();
    let mut lines = content.split_inclusive(|byte| *byte == b'\n');
    let mut in_signature = false;
    for line in lines.by_ref() {
        if line == b"\n" {
            rest.extend_from_slice(line);
            break;
        }
        if let (true, Some((b' ', more))) = (in_signature, line.split_first()) {
            if let Some((_, signature)) = found.last_mut() {
                signature.extend_from_slice(more);
            }
            continue;
        }
        let named = |name: &&str| line.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b" "));
        let name = SIGNATURES.into_iter().find(named);
        in_signature = name.is_some();
        match name {
            Some(name) => found.push((name, line[name.len() + 1..].to_vec())),
            None => rest.extend_from_slice(line),
        }
    }
    lines.for_each(|line| rest.extend_from_slice(line));
    (rest, found)
}

fn signed_commit(content: &[u8], what: &str) -> Result<Signed, NotVerified> {
    let invalid = |problem: &str| NotVerified::Invalid { what: what.to_owned(), problem: problem.to_owned() };
    let (payload, signatures) = without_signatures(content);
    let mut own = signatures.into_iter().filter(|(name, _)| *name == SIGNATURES[0]);
    match (own.next(), own.next()) {
        (None, _) => Err(NotVerified::Unsigned { what: what.to_owned() }),
        (Some(_), Some(_)) => Err(invalid("it has more than one")),
        (Some((_, signature)), None) => {
            Ok(Signed { payload, signature: whole(&signature).map_err(|problem| invalid(&problem))? })
        }
    }
}

#[cfg(test)]
mod tests;
