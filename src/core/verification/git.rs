//! Signatures of Git's tags and commits, by OpenPGP and by SSH keys.

use super::{GitTrust, NotVerified, Signer};

/// Checks the signatures that `trust` asks for.
///
/// `tag` is the tag object as Git stores it, without header (`git cat-file tag`); `None` for a tag that is none but a name
/// for a commit. `commit` is the commit object (`git cat-file commit`).
///
/// # Errors
/// A signature is missing, not valid, or of nobody whose key is there.
pub fn verify(trust: &GitTrust, tag: Option<&[u8]>, commit: &[u8]) -> Result<Signer, NotVerified> {
    let _ = (trust, tag, commit);
    Err(NotVerified::WrongKind("signatures of Git are not checked by this version".to_owned()))
}
