//! Credentials of a source.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::core::source::KnownHosts;
use crate::core::spelled::spelled;

/// What a Secret holds for a source. Debug shows nothing of it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// User.
    pub username: Option<String>,
    /// Password or token.
    pub password: Option<String>,
    /// Whether the password is a token that Git over http is shown as such.
    pub bearer: bool,
    /// Key for SSH.
    pub ssh: Option<SshIdentity>,
    /// Keys of hosts of SSH.
    pub known_hosts: KnownHosts,
    /// A GitHub App.
    pub github_app: Option<GithubApp>,
    /// Logins of registries, from Docker's configuration: by `host[:port]` or `host[:port]/path`.
    pub registries: BTreeMap<String, Login>,
    /// The hosts that they are for; none names all that a source is on.
    pub hosts: Vec<String>,
    /// Where hosts are named: the Secrets with proxies and authorities by which they may be shown to them.
    pub via: Vec<String>,
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

/// How a registry is logged in to. Debug shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub enum Login {
    /// User and password.
    Basic {
        /// User.
        username: String,
        /// Password.
        password: String,
    },
    /// A token that is given to the registry's token server for another one.
    Identity(String),
    /// A token for the registry itself.
    Bearer(String),
    /// A token where the registry wants one, and user and password where it wants those.
    BearerOrBasic {
        /// Token for the registry itself.
        token: String,
        /// User.
        username: String,
        /// Password.
        password: String,
    },
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

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").finish_non_exhaustive()
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
        "it has no key that is known: add username and password, token or bearerToken; for ssh identity (or ssh-privatekey) and known_hosts; for a GitHub App githubAppID, githubAppInstallationID and githubAppPrivateKey; for a registry .dockerconfigjson"
    )]
    Empty,
    /// A value is no text.
    #[error("its key {0} is not valid UTF-8: write the value as text")]
    NoText(&'static str),
    /// It says for whom it is, and names nobody.
    #[error(
        "its key host names no host: write those that it is for, for example git.example.com, or take the key away"
    )]
    NoHost,
    /// A private key without known hosts: it would be offered to anybody.
    #[error("it has identity but no usable known_hosts: add known_hosts, for example from ssh-keyscan <host>")]
    NoKnownHosts,
    /// A GitHub App is half there.
    #[error(
        "githubAppID, githubAppInstallationID and githubAppPrivateKey belong together: add the missing ones, the first two as plain words"
    )]
    HalfApp,
    /// Docker's configuration is no JSON of its kind.
    #[error("its key .dockerconfigjson can't be read: write it as kubectl create secret docker-registry does")]
    NoDockerConfig,
}

/// Docker's `config.json`, as far as it is about logins.
#[derive(Deserialize)]
struct DockerConfig {
    auths: BTreeMap<String, DockerLogin>,
}

#[derive(Deserialize)]
struct DockerLogin {
    username: Option<String>,
    password: Option<String>,
    auth: Option<String>,
    #[serde(rename = "identitytoken")]
    identity: Option<String>,
    #[serde(rename = "registrytoken")]
    registry: Option<String>,
}

impl DockerLogin {
    fn login(self) -> Option<Login> {
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        // A file that a token was read from ends with a line break.
        let token = |text: Option<String>| given(text.map(|text| text.trim_end_matches(['\r', '\n']).to_owned()));
        if let Some(token) = token(self.registry) {
            return Some(Login::Bearer(token));
        }
        if let Some(token) = token(self.identity) {
            return Some(Login::Identity(token));
        }
        if let (Some(username), Some(password)) = (given(self.username), given(self.password)) {
            return Some(Login::Basic { username, password });
        }
        let text = String::from_utf8(STANDARD.decode(given(self.auth)?.trim()).ok()?).ok()?;
        let (username, password) = text.split_once(':')?;
        Some(Login::Basic { username: username.to_owned(), password: password.to_owned() })
    }
}

/// `https://index.docker.io/v1/` as `docker.io`, `Example.com/a/` as `example.com/a`.
fn registry_name(key: &str) -> String {
    let key = key.split_once("://").map_or(key, |(_, rest)| rest);
    let (host, path) = key.split_once('/').unwrap_or((key, ""));
    let host = host.to_ascii_lowercase();
    let path = path.trim_matches('/');
    match (host.as_str(), path) {
        ("docker.io" | "index.docker.io" | "registry-1.docker.io", "" | "v1" | "v2") => "docker.io".to_owned(),
        (_, "" | "v1" | "v2") => host,
        _ => format!("{host}/{path}"),
    }
}

impl Credentials {
    /// Reads the data of a Secret: `username` and `password` (or `token`), or `bearerToken`, which is shown as such to Git
    /// servers and is a `token` for others, or `identity`, `known_hosts` and the identity's passphrase as `password`, or a
    /// GitHub App: Flux's keys. `ssh-privatekey`, of Kubernetes' own Secrets for SSH, is an `identity`.
    /// `.dockerconfigjson` is Docker's configuration, with a login for each registry. `host` names the hosts that all of it is
    /// for, separated by commas or spaces, and `via` then the Secrets with a proxy or an authority by which they may be shown to them.
    pub fn from_secret<V: AsRef<[u8]>>(data: &BTreeMap<String, V>) -> Result<Self, CredentialError> {
        if let Some(config) = data.get(".dockerconfigjson") {
            // The parser's own words may quote a password.
            let config: DockerConfig =
                serde_json::from_slice(config.as_ref()).map_err(|_| CredentialError::NoDockerConfig)?;
            let logins =
                config.auths.into_iter().filter_map(|(key, login)| Some((registry_name(&key), login.login()?)));
            let registries: BTreeMap<_, _> = logins.collect();
            if registries.is_empty() {
                return Err(CredentialError::NoDockerConfig);
            }
            return Ok(Self { registries, hosts: hosts(data)?, via: words(data, "via")?, ..Self::default() });
        }
        let get = |key: &'static str| -> Result<Option<String>, CredentialError> {
            let Some(value) = data.get(key) else { return Ok(None) };
            let text = std::str::from_utf8(value.as_ref()).map_err(|_| CredentialError::NoText(key))?;
            Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
        };
        let line = |text: Option<String>| text.map(|text| text.trim_end_matches(['\r', '\n']).to_owned());
        let password = line(get("password")?.or(get("token")?));
        let bearer_token = line(get("bearerToken")?).filter(|_| password.is_none());
        let bearer = bearer_token.is_some();
        let password = password.or(bearer_token);
        let username = line(get("username")?);
        let known_hosts = KnownHosts::parse(&get("known_hosts")?.unwrap_or_default());
        let app = [get("githubAppID")?, get("githubAppInstallationID")?, get("githubAppPrivateKey")?];
        let github_app = GithubApp::of(app)?;
        let credentials = match get("identity")?.or(get("ssh-privatekey")?) {
            Some(private_key) => {
                let ssh = Some(SshIdentity { private_key, passphrase: password });
                Self { username, ssh, known_hosts, github_app, ..Self::default() }
            }
            None => Self { username, password, bearer, known_hosts, github_app, ..Self::default() },
        };
        let credentials = Self { hosts: hosts(data)?, via: words(data, "via")?, ..credentials };
        if credentials.password.is_none() && credentials.ssh.is_none() && credentials.github_app.is_none() {
            return Err(CredentialError::Empty);
        }
        if credentials.ssh.is_some() && credentials.known_hosts.is_empty() {
            return Err(CredentialError::NoKnownHosts);
        }
        Ok(credentials)
    }

    /// Whether they may be shown to a host, which is written with its port or, for its scheme's own, without.
    pub fn are_for(&self, host: &str) -> bool {
        let host = registry_name(host);
        let bare = host.rsplit_once(':').map_or(host.as_str(), |(bare, _)| bare);
        let of_scheme = |named: &str| [":443", ":80", ":22"].iter().any(|port| named.strip_suffix(port) == Some(&host));
        let is_it = |named: &String| {
            *named == host || named == bare || of_scheme(named) || (named == "github.com" && bare == "api.github.com")
        };
        self.hosts.is_empty() || self.hosts.iter().any(is_it)
    }

    /// Whether they may be shown by a proxy or an authority of a Secret of that name: what says for whom it is goes by no server that
    /// others choose.
    pub fn go_via(&self, secret: &str) -> bool {
        self.hosts.is_empty() || self.via.iter().any(|named| named == secret)
    }

    /// The login for a repository of a registry: of Docker's configuration the one whose path is the longest that holds it.
    /// A token without a user goes with any user's name, as registries that give out tokens want it.
    pub fn login(&self, host: &str, path: &str) -> Option<Login> {
        if let Some(password) = &self.password {
            let username = self.username.clone().unwrap_or_else(|| "token".to_owned());
            return Some(Login::Basic { username, password: password.clone() });
        }
        let holds = |key: &str| match key.split_once('/') {
            None => key == host,
            Some((of, prefix)) => {
                of == host && path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        };
        let found = self.registries.iter().filter(|(key, _)| holds(key)).max_by_key(|(key, _)| key.len());
        found.map(|(_, login)| login.clone())
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
        digest.update([u8::from(self.bearer)]);
        digest.update(format!("{:?}", self.hosts));
        digest.update(format!("{:?}", self.known_hosts));
        for (registry, login) in &self.registries {
            let (kind, user, secret) = match login {
                Login::Basic { username, password } => ("basic", username.as_str(), password),
                Login::Identity(token) => ("identity", "", token),
                Login::Bearer(token) => ("bearer", "", token),
                Login::BearerOrBasic { token, username, password } => {
                    digest.update((token.len() as u64).to_be_bytes());
                    digest.update(token);
                    ("bearer or basic", username.as_str(), password)
                }
            };
            for field in [registry, kind, user, secret] {
                digest.update((field.len() as u64).to_be_bytes());
                digest.update(field);
            }
        }
    }

    /// The texts that must not appear in a message, in each form that a server is shown and may repeat.
    pub(super) fn secrets(&self) -> Vec<String> {
        let user = self.username.as_deref();
        let passphrase = self.ssh.as_ref().and_then(|ssh| ssh.passphrase.as_deref());
        let app = self.github_app.as_ref().map(|app| app.private_key.as_str());
        let of_login = |login: &Login| match login {
            Login::Basic { username, password } => spellings(Some(username), password),
            Login::Identity(secret) | Login::Bearer(secret) => spellings(None, secret),
            Login::BearerOrBasic { token, username, password } => {
                [spellings(Some(username), password), spellings(None, token)].concat()
            }
        };
        let own = self.password.iter().flat_map(|password| spellings(user, password));
        let keys = [passphrase, app].into_iter().flatten().filter(|text| !text.is_empty()).map(ToOwned::to_owned);
        own.chain(keys).chain(self.registries.values().flat_map(of_login)).collect()
    }
}

/// Users that a token without one goes with: of Git, and of registries.
const NAMELESS: [&str; 3] = ["git", "token", ""];

/// A password as it is, as Basic authentication shows it, and as it stands in URLs; the longest first, for one is a part of another.
pub(crate) fn spellings(user: Option<&str>, password: &str) -> Vec<String> {
    if password.is_empty() {
        return Vec::new();
    }
    let users: &[&str] = user.as_ref().map_or(&NAMELESS, std::slice::from_ref);
    let mut all: Vec<String> = users.iter().map(|user| STANDARD.encode(format!("{user}:{password}"))).collect();
    all.extend([password.to_owned(), utf8_percent_encode(password, URL_USER).to_string()]);
    all.extend(spelled(password));
    all.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    all.dedup();
    all
}

/// What is encoded in a URL's user part (URL Standard, userinfo percent-encode set).
const URL_USER: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'`')
    .add(b'{')
    .add(b'}')
    .add(b'/')
    .add(b':')
    .add(b';')
    .add(b'=')
    .add(b'@')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'|');

/// The hosts that a Secret is for, however they are written: as a registry or a URL too.
fn hosts<V: AsRef<[u8]>>(data: &BTreeMap<String, V>) -> Result<Vec<String>, CredentialError> {
    let host = |word: String| registry_name(&word).split('/').next().unwrap_or_default().to_owned();
    let hosts: Vec<String> = words(data, "host")?.into_iter().map(host).filter(|host| !host.is_empty()).collect();
    if hosts.is_empty() && data.contains_key("host") { Err(CredentialError::NoHost) } else { Ok(hosts) }
}

/// The words of a key of a Secret, which lists hosts or names.
fn words<V: AsRef<[u8]>>(data: &BTreeMap<String, V>, key: &'static str) -> Result<Vec<String>, CredentialError> {
    let Some(value) = data.get(key) else { return Ok(Vec::new()) };
    let text = std::str::from_utf8(value.as_ref()).map_err(|_| CredentialError::NoText(key))?;
    let words = text.split([',', ' ', '\n', '\r', '\t']).filter(|word| !word.is_empty());
    Ok(words.map(str::to_ascii_lowercase).collect())
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
    fn logins_of_registries_are_found_by_their_host_and_path() {
        let auth = STANDARD.encode("b:hunter2:x");
        let config = format!(
            r#"{{"auths": {{"https://index.docker.io/v1/": {{"username": "hub", "password": "p"}},
                "R.example.com:5000": {{"auth": "{auth}"}}, "r.example.com:5000/team": {{"identitytoken": "i"}},
                "empty.example.com": {{}}}}, "credsStore": "x"}}"#
        );
        let credentials = read(&[(".dockerconfigjson", &config)]).unwrap();
        let basic = |username: &str, password: &str| {
            Some(Login::Basic { username: username.to_owned(), password: password.to_owned() })
        };
        for (host, path, login) in [
            ("docker.io", "library/x", basic("hub", "p")),
            ("r.example.com:5000", "a/b", basic("b", "hunter2:x")),
            ("r.example.com:5000", "team/b", Some(Login::Identity("i".into()))),
            ("r.example.com:5000", "teams/b", basic("b", "hunter2:x")),
            ("r.example.com", "a/b", None),
            ("empty.example.com", "a", None),
            ("evil.example.com", "r.example.com:5000/a", None),
        ] {
            assert!(credentials.login(host, path) == login, "{host}/{path}");
        }
        assert!(read(&[("token", "t")]).unwrap().login("any", "a") == basic("token", "t"));
        for broken in ["", "{}", "{\"auths\": {}}", "hunter2"] {
            assert_eq!(read(&[(".dockerconfigjson", broken)]), Err(CredentialError::NoDockerConfig));
        }
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
    fn a_login_is_hidden_in_each_form_that_a_server_may_repeat() {
        let shown = |data: &[(&str, &str)], text: &str| {
            read(data).unwrap().secrets().iter().fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
        };
        for (data, text) in [
            (&[("username", "ann"), ("password", "p/ss word")][..], "p/ss word p%2Fss%20word YW5uOnAvc3Mgd29yZA=="),
            (&[("token", "swordfish")], "swordfish Z2l0OnN3b3JkZmlzaA== dG9rZW46c3dvcmRmaXNo c3dvcmRmaXNo"),
        ] {
            let shown = shown(data, text);
            assert!(shown.split(' ').all(|part| part == "***"), "{shown}");
        }
    }

    #[test]
    fn a_login_is_for_the_hosts_that_it_names() {
        let of = |hosts: &str| read(&[("token", "t"), ("host", hosts)]).unwrap();
        for (hosts, host, expected) in [
            ("git.example.com", "git.example.com", true),
            ("203.0.113.9:443", "203.0.113.9", true),
            ("203.0.113.9:443", "203.0.113.9:8443", false),
            ("https://git.example.com/platform", "git.example.com", true),
            ("docker.io", "registry-1.docker.io", true),
            ("index.docker.io", "docker.io", true),
            ("git.example.com", "git.example.com:443", true),
            ("git.example.com:8443", "git.example.com:443", false),
            ("git.example.com:8443", "Git.Example.com:8443", true),
            ("a.example.com, git.example.com", "git.example.com", true),
            ("git.example.com", "git.example.com.evil.example", false),
            ("github.com", "api.github.com:443", true),
            ("example.com", "git.example.com", false),
        ] {
            assert_eq!(of(hosts).are_for(host), expected, "{hosts:?} {host}");
        }
        assert!(read(&[("token", "t")]).unwrap().are_for("any.example.com"));
        for none in ["", ", "] {
            assert_eq!(read(&[("token", "t"), ("host", none)]), Err(CredentialError::NoHost));
        }
    }

    #[test]
    fn a_login_that_names_its_hosts_goes_by_what_it_names_alone() {
        for (host, via, secret, expected) in [
            ("git.example.com", "", "proxy", false),
            ("git.example.com", "ca, proxy", "proxy", true),
            ("git.example.com", "ca", "proxy", false),
        ] {
            let credentials = read(&[("token", "t"), ("host", host), ("via", via)]).unwrap();
            assert_eq!(credentials.go_via(secret), expected, "{host:?} {via:?} {secret}");
        }
        assert!(read(&[("token", "t")]).unwrap().go_via("proxy"));
    }

    #[test]
    fn debug_shows_no_secret() {
        let credentials =
            read(&[("identity", "hunter1"), ("password", "hunter2"), ("known_hosts", "h x AAAA")]).unwrap();
        assert!(!format!("{credentials:?} {:?}", credentials.ssh).contains("hunter"));
    }
}
