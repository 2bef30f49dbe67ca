//! The keys of a Secret, whatever kind they are of, and the detached signatures that they check.

use std::io::{ErrorKind, Read};

use jiff::Timestamp;
use minisign_verify as minisign;
use pgp::composed::SignedPublicKey;

use super::{Keys, NotVerified, Signer, openpgp, ssh};

/// The file with signers in OpenSSH's format.
const ALLOWED_SIGNERS: &str = "allowed_signers";
/// How a signature of minisign begins.
const MINISIGN: &str = "untrusted comment:";
/// Keys of a Secret that are for cosign; the same Secret may serve both.
const PEM_KEY: &str = "-----BEGIN PUBLIC KEY-----";
const TRUSTED_ROOT: &str = "trusted_root.json";
/// Bytes of a file that are read at once.
const PART: usize = 64 * 1024;

/// What was signed with an SSH key: the namespace of the signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Git's objects.
    Git,
    /// A file.
    File,
}

/// Keys, read.
#[derive(Debug, Default)]
pub(super) struct Keyring {
    openpgp: Vec<SignedPublicKey>,
    ssh: Vec<ssh::Allowed>,
    minisign: Vec<(String, minisign::PublicKey)>,
}

impl Keyring {
    /// Reads the files of a Secret.
    ///
    /// # Errors
    /// One can't be read, or none is there: what is misspelt must not go unnoticed.
    pub(super) fn read(keys: &Keys) -> Result<Self, NotVerified> {
        let mut ring = Self::default();
        for (name, content) in &keys.0 {
            ring.add(name, content).map_err(|problem| NotVerified::Key { key: name.clone(), problem })?;
        }
        if ring.openpgp.is_empty() && ring.ssh.is_empty() && ring.minisign.is_empty() {
            let key = format!("*.pub, {ALLOWED_SIGNERS} or *.asc");
            return Err(NotVerified::Key { key, problem: "there is none: add the signers' public keys".to_owned() });
        }
        Ok(ring)
    }

    fn add(&mut self, name: &str, content: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(content).unwrap_or_default().trim_start();
        if name == TRUSTED_ROOT || text.starts_with(PEM_KEY) {
            return Ok(());
        }
        if name == ALLOWED_SIGNERS {
            self.ssh.extend(ssh::allowed_signers(text)?);
        } else if name.ends_with(".pub") && !text.contains(openpgp::PUBLIC_KEY) && !text.is_empty() {
            match minisign::PublicKey::decode(text).or_else(|_| minisign::PublicKey::from_base64(text.trim())) {
                Ok(key) => self.minisign.push((name.to_owned(), key)),
                Err(_) if text.contains("minisign encrypted secret key") || text.contains("minisign secret key") => {
                    return Err("it holds a private key of minisign: put in the public one".to_owned());
                }
                Err(_) => self.ssh.extend(ssh::public_keys(text)?),
            }
        } else {
            if text.starts_with("-----BEGIN OPENSSH PRIVATE KEY") {
                return Err("it holds a private key of SSH: put in the public one (ssh-keygen -y), under a name that ends in .pub".to_owned());
            }
            if ["ssh-", "ecdsa-", "sk-"].iter().any(|start| text.starts_with(start)) {
                return Err("it holds a key of SSH: such keys are found under names that end in .pub".to_owned());
            }
            if text.starts_with("untrusted comment:") {
                return Err("it holds a key of minisign: such keys are found under names that end in .pub".to_owned());
            }
            self.openpgp.extend(openpgp::keyring(content).map_err(|error| {
                format!("{error}; it is no key of OpenPGP, and those of SSH and minisign are found under names that end in .pub")
            })?);
        }
        Ok(())
    }

    /// Checks the detached `signature` of `data`, which is `what` for people.
    ///
    /// # Errors
    /// It does not hold, or is of none of the keys.
    pub(super) fn verify(
        &self,
        what: &str,
        purpose: Purpose,
        data: &[u8],
        signature: &[u8],
        now: Timestamp,
    ) -> Result<Signer, NotVerified> {
        let begins = |text: &str| signature.starts_with(text.as_bytes());
        if begins(ssh::SIGNATURE) {
            let namespace = if purpose == Purpose::Git { "git" } else { "file" };
            ssh::verify(&self.ssh, what, namespace, &|| Box::new(data), signature, now)
        } else if begins(MINISIGN) && purpose == Purpose::File {
            self.minisign(what, &|| Box::new(data), signature)
        } else if openpgp::is_signature(signature) {
            openpgp::verify(&self.openpgp, what, &|| Box::new(data), signature, now)
        } else {
            let kinds = if purpose == Purpose::Git { "OpenPGP or SSH" } else { "OpenPGP, SSH or minisign" };
            let problem = format!("it is no signature of {kinds}");
            Err(NotVerified::Invalid { what: what.to_owned(), problem })
        }
    }

    /// Checks the detached `signature` of a file that is too large to be held; `None` where it is of another kind.
    pub(super) fn verify_file<'d>(
        &self,
        what: &str,
        open: &(dyn Fn() -> Box<dyn Read + 'd> + 'd),
        signature: &[u8],
        now: Timestamp,
    ) -> Option<Result<Signer, NotVerified>> {
        if signature.starts_with(ssh::SIGNATURE.as_bytes()) {
            Some(ssh::verify(&self.ssh, what, "file", open, signature, now))
        } else if signature.starts_with(MINISIGN.as_bytes()) {
            Some(self.minisign(what, open, signature))
        } else if openpgp::is_signature(signature) {
            Some(openpgp::verify(&self.openpgp, what, open, signature, now))
        } else {
            None
        }
    }

    /// Of what minisign hashes before it signs, which it always does by now.
    fn minisign<'d>(
        &self,
        what: &str,
        open: &(dyn Fn() -> Box<dyn Read + 'd> + 'd),
        signature: &[u8],
    ) -> Result<Signer, NotVerified> {
        let invalid = |problem: String| NotVerified::Invalid { what: what.to_owned(), problem };
        let text = String::from_utf8_lossy(signature);
        let signature = minisign::Signature::decode(&text).map_err(|error| invalid(error.to_string()))?;
        for (name, key) in &self.minisign {
            let mut judge = match key.verify_stream(&signature) {
                Ok(judge) => judge,
                Err(minisign::Error::UnexpectedKeyId) => continue,
                Err(minisign::Error::UnsupportedLegacyMode) => {
                    return Err(invalid(
                        "it is of minisign's older form, which is not supported: sign without -l".to_owned(),
                    ));
                }
                Err(error) => return Err(invalid(error.to_string())),
            };
            let (mut file, mut part) = (open(), vec![0; PART]);
            loop {
                match file.read(&mut part) {
                    Ok(0) => break,
                    Ok(read) => judge.update(&part[..read]),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(invalid(format!("reading it failed: {error}"))),
                }
            }
            judge.finalize().map_err(|error| invalid(error.to_string()))?;
            return Ok(Signer(format!("minisign key {name}")));
        }
        Err(NotVerified::UnknownSigner { what: what.to_owned(), by: "a minisign key".to_owned() })
    }
}
