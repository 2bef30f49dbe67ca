//! Credentials of a source.

use std::collections::BTreeMap;
use std::fmt;

use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::core::source::KnownHosts;

/// What a Secret holds for a source. Debug shows nothing of it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// User.
    pub username: Option<String>,
    /// Password or token.
    pub password: Option<String>,
    /// Key for SSH.
    pub ssh: Option<SshIdentity>,
    /// Keys of hosts of SSH.
    pub known_hosts: KnownHosts,
    /// A GitHub App.
    pub github_app: Option<GithubApp>,
}

/// A GitHub App and its installation. Debug shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct GithubApp {
    /// Its number or client id.
    pub id: String,
    /// Number of the installation.
    pub installation_id: String,
    /// Its private key, PEM.
    pub private_key: String,
}

/// A private key. Debug shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct SshIdentity {
    /// The key as OpenSSH writes it.
    pub private_key: String,
    /// Its passphrase.
    pub passphrase: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl fmt::Debug for GithubApp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GithubApp").finish_non_exhaustive()
    }
}

impl fmt::Debug for SshIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SshIdentity").finish_non_exhaustive()
    }
}

/// A Secret that can't be used. Names its keys, never their values.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CredentialError {
    /// No key of ours is in it.
    #[error(
        "it has none of the keys username, password, token and identity: add username and password (or token), identity and known_hosts, or githubAppID, githubAppInstallationID and githubAppPrivateKey"
    )]
    Empty,
    /// A value is no text.
    #[error("its key {0} is not valid UTF-8: write the value as text")]
    NoText(&'static str),
    /// A private key without known hosts: it would be offered to anybody.
    #[error("it has identity but no usable known_hosts: add known_hosts, for example from ssh-keyscan <host>")]
    NoKnownHosts,
    /// A GitHub App is half there.
    #[error(
        "githubAppID, githubAppInstallationID and githubAppPrivateKey belong together: add the missing ones, the first two as plain words"
    )]
    HalfApp,
}

impl Credentials {
    /// Reads the data of a Secret: `username` and `password` (or `token`, `bearerToken`), or `identity`,
    /// `known_hosts` and the identity's passphrase as `password`, or a GitHub App: Flux's keys. `ssh-privatekey`, of Kubernetes' own Secrets
    /// for SSH, is an `identity`.
    pub fn from_secret<V: AsRef<[u8]>>(data: &BTreeMap<String, V>) -> Result<Self, CredentialError> {
        let get = |key: &'static str| -> Result<Option<String>, CredentialError> {
            let Some(value) = data.get(key) else { return Ok(None) };
            let text = std::str::from_utf8(value.as_ref()).map_err(|_| CredentialError::NoText(key))?;
            Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
        };
        let line = |text: Option<String>| text.map(|text| text.trim_end_matches(['\r', '\n']).to_owned());
        let password = line(get("password")?.or(get("token")?).or(get("bearerToken")?));
        let username = line(get("username")?);
        let known_hosts = KnownHosts::parse(&get("known_hosts")?.unwrap_or_default());
        let app = [get("githubAppID")?, get("githubAppInstallationID")?, get("githubAppPrivateKey")?];
        let github_app = GithubApp::of(app)?;
        let credentials = match get("identity")?.or(get("ssh-privatekey")?) {
            Some(private_key) => {
                let ssh = Some(SshIdentity { private_key, passphrase: password });
                Self { username, password: None, ssh, known_hosts, github_app }
            }
            None => Self { username, password, ssh: None, known_hosts, github_app },
        };
        if credentials.password.is_none() && credentials.ssh.is_none() && credentials.github_app.is_none() {
            return Err(CredentialError::Empty);
        }
        if credentials.ssh.is_some() && credentials.known_hosts.is_empty() {
            return Err(CredentialError::NoKnownHosts);
        }
        Ok(credentials)
    }

    /// Feeds everything to a digest, so that two sources with other credentials are other sources.
    pub(super) fn digest(&self, digest: &mut Sha256) {
        let (identity, app) = (self.ssh.as_ref(), self.github_app.as_ref());
        let fields = [
            self.username.as_deref(),
            self.password.as_deref(),
            identity.map(|ssh| ssh.private_key.as_str()),
            identity.and_then(|ssh| ssh.passphrase.as_deref()),
            app.map(|app| app.id.as_str()),
            app.map(|app| app.installation_id.as_str()),
            app.map(|app| app.private_key.as_str()),
        ];
        for field in fields {
            let field = field.unwrap_or_default();
            digest.update((field.len() as u64).to_be_bytes());
            digest.update(field);
        }
        digest.update(format!("{:?}", self.known_hosts));
    }

    /// The texts that must not appear in a message.
    pub(super) fn secrets(&self) -> Vec<&str> {
        let passphrase = self.ssh.as_ref().and_then(|ssh| ssh.passphrase.as_deref());
        let app = self.github_app.as_ref().map(|app| app.private_key.as_str());
        [self.password.as_deref(), passphrase, app].into_iter().flatten().filter(|text| !text.is_empty()).collect()
    }
}

impl GithubApp {
    /// All of id, installation and key, or nothing.
    fn of(parts: [Option<String>; 3]) -> Result<Option<Self>, CredentialError> {
        let [id, installation_id, private_key] = parts;
        let (id, installation_id, private_key) = match (id, installation_id, private_key) {
            (None, None, None) => return Ok(None),
            (Some(id), Some(installation_id), Some(key)) => {
                (id.trim().to_owned(), installation_id.trim().to_owned(), key)
            }
            _ => return Err(CredentialError::HalfApp),
        };
        // They become part of a URL.
        let is_word =
            |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        if !is_word(&id) || !is_word(&installation_id) {
            return Err(CredentialError::HalfApp);
        }
        Ok(Some(Self { id, installation_id, private_key }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(data: &[(&str, &str)]) -> Result<Credentials, CredentialError> {
        let data: BTreeMap<_, _> = data.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes())).collect();
        Credentials::from_secret(&data)
    }

    #[test]
    fn secrets_are_read_in_the_forms_in_use() {
        let basic = read(&[("username", "u"), ("password", "hunter2\n")]).unwrap();
        assert_eq!((basic.username.as_deref(), basic.password.as_deref()), (Some("u"), Some("hunter2")));
        assert_eq!(read(&[("token", "t")]).unwrap().password.as_deref(), Some("t"));
        let ssh = read(&[("identity", "KEY"), ("known_hosts", "h ssh-x AAAA"), ("password", "p")]).unwrap();
        assert_eq!(ssh.ssh.unwrap().passphrase.as_deref(), Some("p"));
        assert_eq!(ssh.password, None);
    }

    #[test]
    fn unusable_secrets_say_what_is_missing() {
        assert_eq!(read(&[("username", "u")]), Err(CredentialError::Empty));
        assert_eq!(read(&[("identity", "KEY")]), Err(CredentialError::NoKnownHosts));
        assert_eq!(read(&[("identity", "KEY"), ("known_hosts", "?")]), Err(CredentialError::NoKnownHosts));
    }

    #[test]
    fn a_github_app_is_read_whole() {
        let all = [("githubAppID", "12\n"), ("githubAppInstallationID", "34"), ("githubAppPrivateKey", "hunter3")];
        let credentials = read(&all).unwrap();
        let app = credentials.github_app.as_ref().unwrap();
        assert_eq!((app.id.as_str(), app.installation_id.as_str()), ("12", "34"));
        assert_eq!(credentials.secrets(), ["hunter3"]);
        assert!(!format!("{credentials:?} {app:?}").contains("hunter"));
        let digest = |credentials: &Credentials| {
            let mut digest = Sha256::new();
            credentials.digest(&mut digest);
            digest.finalize()
        };
        let other = read(&[all[0], all[1], ("githubAppPrivateKey", "other")]).unwrap();
        assert_ne!(digest(&credentials), digest(&other));
        assert_eq!(read(&all[..2]), Err(CredentialError::HalfApp));
        assert_eq!(read(&[("githubAppID", "1/2"), all[1], all[2]]), Err(CredentialError::HalfApp));
    }

    #[test]
    fn debug_shows_no_secret() {
        let credentials =
            read(&[("identity", "hunter1"), ("password", "hunter2"), ("known_hosts", "h x AAAA")]).unwrap();
        assert!(!format!("{credentials:?} {:?}", credentials.ssh).contains("hunter"));
    }
}
