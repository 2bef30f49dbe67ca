//! Keys and signatures made by the tools that people use.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use jiff::Timestamp;
use tempfile::TempDir;

use super::{ChecksumTrust, CosignTrust, Keys, NotVerified, Signer, Trust};

/// A directory for keys. An agent that gpg started ends with it.
pub(super) struct Tools {
    dir: TempDir,
}

impl Tools {
    /// `None`, with a word, where a tool is not there.
    pub(super) fn new(needs: &[&str]) -> Option<Self> {
        for tool in needs {
            // ssh-keygen knows no --version: it fails, but it is there.
            if Command::new(tool).arg("--version").stdin(Stdio::null()).output().is_err() {
                eprintln!("SKIPPED: {tool} is not here");
                return None;
            }
        }
        // The path of gpg-agent's socket must be short.
        let dir = tempfile::Builder::new().prefix("cs-").tempdir_in("/tmp").unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        Some(Self { dir })
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Runs a tool; its output.
    pub(super) fn run(&self, tool: &str, args: &[&str], input: &[u8]) -> Vec<u8> {
        let mut child = Command::new(tool)
            .args(args)
            .current_dir(self.dir())
            .env("GNUPGHOME", self.dir())
            .env("HOME", self.dir())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{tool} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    fn gpg(&self, args: &[&str], input: &[u8]) -> Vec<u8> {
        let batch = ["--batch", "--no-tty", "--yes", "--pinentry-mode", "loopback", "--passphrase", ""];
        self.run("gpg", &[&batch, args].concat(), input)
    }

    /// Makes a key; its public part, armored.
    pub(super) fn openpgp_key(&self, user: &str, when: &[&str], algorithm: &str, life: &str) -> Vec<u8> {
        self.gpg(&[when, &["--quick-gen-key", user, algorithm, "default", life]].concat(), b"");
        self.openpgp_export(user)
    }

    pub(super) fn openpgp_export(&self, user: &str) -> Vec<u8> {
        self.gpg(&["--armor", "--export", user], b"")
    }

    /// More options of gpg, for keys that are not as they should be.
    pub(super) fn openpgp(&self, args: &[&str], input: &[u8]) -> Vec<u8> {
        self.gpg(args, input)
    }

    /// A detached signature, armored.
    pub(super) fn openpgp_sign(&self, user: &str, options: &[&str], data: &[u8]) -> Vec<u8> {
        self.gpg(&[options, &["--local-user", user, "--armor", "--detach-sign"]].concat(), data)
    }

    /// Makes an SSH key; its public part.
    pub(super) fn ssh_key(&self, name: &str, kind: &[&str]) -> Vec<u8> {
        let file = self.dir().join(name);
        let comment = format!("{name}@example.com");
        self.run("ssh-keygen", &[&["-q", "-N", "", "-C", &comment, "-f", name], kind].concat(), b"");
        std::fs::read(file.with_extension("pub")).unwrap()
    }

    /// A detached signature of an SSH key.
    pub(super) fn ssh_sign(&self, name: &str, namespace: &str, data: &[u8]) -> Vec<u8> {
        self.run("ssh-keygen", &["-q", "-Y", "sign", "-n", namespace, "-f", name], data)
    }
}

impl Drop for Tools {
    fn drop(&mut self) {
        if self.dir().join("private-keys-v1.d").exists() {
            let home = self.dir().to_str().unwrap_or_default();
            let _ = Command::new("gpgconf").args(["--homedir", home, "--kill", "gpg-agent"]).output();
        }
    }
}

pub(super) fn keys(files: &[(&str, &[u8])]) -> Keys {
    Keys(files.iter().map(|(name, content)| ((*name).to_owned(), content.to_vec())).collect())
}

pub(super) fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// A word for how it ended, and what was said.
pub(super) fn outcome(result: &Result<Signer, NotVerified>) -> (&'static str, String) {
    match result {
        Ok(signer) => ("verified", signer.0.clone()),
        Err(problem) => {
            let word = match problem {
                NotVerified::Unsigned { .. } => "unsigned",
                NotVerified::UnknownSigner { .. } | NotVerified::UnknownIdentity { .. } => "unknown",
                NotVerified::Invalid { .. } => "invalid",
                NotVerified::Key { .. } => "key",
                NotVerified::WrongKind(_) => "wrong kind",
            };
            (word, problem.to_string())
        }
    }
}

/// Fails unless it ended in this way, with these words.
#[track_caller]
pub(super) fn assert_outcome(case: &str, result: &Result<Signer, NotVerified>, word: &str, says: &str) {
    let (found, text) = outcome(result);
    assert!(found == word && text.contains(says), "{case}: wanted {word} with \"{says}\", found {found}: {text}");
}

#[test]
fn another_key_is_another_trust_and_another_time_is_not() {
    let cosign = |keys: &[(&str, &[u8])]| Trust {
        cosign: Some(CosignTrust { keys: self::keys(keys), identities: Vec::new() }),
        ..Trust::default()
    };
    let sums = |now: i64| Trust {
        checksums: Some(ChecksumTrust {
            file: "SHA256SUMS".into(),
            keys: keys(&[("a.pub", b"a")]),
            now: jiff::Timestamp::from_second(now).unwrap(),
        }),
        ..Trust::default()
    };
    let first = cosign(&[("a.pub", b"a")]).digest();
    assert_eq!(first, cosign(&[("a.pub", b"a")]).digest());
    assert_eq!(sums(0).digest(), sums(1).digest());
    let others = [
        cosign(&[("a.pub", b"b")]).digest(),
        cosign(&[("b.pub", b"a")]).digest(),
        cosign(&[("a.pub", b"a"), ("b.pub", b"b")]).digest(),
        cosign(&[]).digest(),
        sums(0).digest(),
        Trust::default().digest(),
    ];
    assert!(others.iter().all(|other| *other != first), "{others:?}");
}
