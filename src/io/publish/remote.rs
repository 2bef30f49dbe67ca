//! A repository of a registry on the network, to publish to and to bundle from.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::Value;

use super::PublishError;
use super::registry::Registry as Repository;
use crate::core::artifact::{Descriptor, MANIFEST};
use crate::core::source::{AllowList, Refused};
use crate::io::registry::Registry;
use crate::io::source::access::Tls;
use crate::io::source::{Access, Credentials, NO_LOGIN, SourceError};
use crate::io::store::Digest;

/// How a registry is reached from the command line.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// A Docker configuration with logins, as `docker login` writes it.
    pub docker_config: Option<Vec<u8>>,
    /// Authorities beside the system's, PEM.
    pub authorities: Option<String>,
    /// Speak plain http.
    pub plain_http: bool,
    /// Is told what is tried again, and when.
    pub waits: Option<fn(&str)>,
}

/// Pauses between the tries of what a registry could not do just then: it restarts, or has too much to do.
const PAUSES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
/// Longest pause that a registry may ask for; who asks for more is told to whom it concerns.
const LONGEST: Duration = Duration::from_mins(1);

/// How long to wait for another try, where one is of use.
fn pause(error: &SourceError, own: Duration) -> Option<Duration> {
    match error {
        // What it says of the request itself it says again.
        SourceError::Unreachable { problem, .. } if is_of_request(problem) => None,
        SourceError::Unreachable { .. } | SourceError::TimedOut { .. } => Some(own),
        SourceError::RateLimited { after, .. } if *after <= LONGEST => Some(own.max(*after)),
        _ => None,
    }
}

/// Whether an answer is of the request: a status from 200 to 499 but 408, that of a server that did not get all of it in time.
fn is_of_request(problem: &str) -> bool {
    let status = problem.split_once(" answers ").and_then(|(_, rest)| rest.get(..3)?.parse::<u16>().ok());
    status.is_some_and(|status| (200..500).contains(&status) && status != 408)
}

/// The repository `host/path` of a registry.
pub struct Remote {
    name: String,
    registry: Registry,
    waits: Option<fn(&str)>,
    /// All tries of something were in vain: the rest is tried once.
    is_given_up: AtomicBool,
}

impl Remote {
    /// Opens it; `scratch` is a directory for what is downloaded.
    ///
    /// # Errors
    /// The name is none, or what it is reached by can't be used.
    pub fn open(repository: &str, reach: &Reach, scratch: &Path) -> Result<Self, PublishError> {
        let name = format!("oci://{repository}");
        let failed = |problem: String| PublishError::Target { target: name.clone(), problem };
        let logins = reach.docker_config.as_ref().map(|config| {
            Credentials::from_secret(&BTreeMap::from([(".dockerconfigjson".to_owned(), config.clone())]))
        });
        let access = Access {
            credentials: logins.transpose().map_err(|error| failed(format!("its login can't be used: {error}")))?,
            tls: Tls { authorities: reach.authorities.clone(), identity: None },
            proxy: None,
            insecure: reach.plain_http,
        };
        // Who types the command may reach what they can reach.
        let host = repository.split('/').next().unwrap_or_default();
        // Who gives out its tokens may listen on another port.
        let bare = host.rsplit_once(':').map_or(host, |(bare, _)| bare);
        let allow = AllowList::parse([host, bare]).map_err(|error| failed(error.to_string()))?;
        let registry = Registry::new(repository, &access, &allow, scratch).map_err(|error| failed(problem(error)))?;
        Ok(Self { name, registry, waits: reach.waits, is_given_up: AtomicBool::new(false) })
    }

    /// Asks again after a pause for what may succeed then. Nothing that is asked for does harm when it was done already.
    async fn again<T, F>(&self, mut ask: impl FnMut() -> F) -> Result<T, SourceError>
    where
        F: Future<Output = Result<T, SourceError>>,
    {
        let pauses = if self.is_given_up.load(Ordering::Relaxed) { &[][..] } else { &PAUSES[..] };
        for own in pauses {
            let error = match ask().await {
                Err(error) => error,
                done => return done,
            };
            let Some(pause) = pause(&error, *own) else { return Err(error) };
            if let Some(waits) = self.waits {
                waits(&format!("{}: {}; trying again in {} s", self.name, problem(error), pause.as_secs()));
            }
            tokio::time::sleep(pause).await;
        }
        let last = ask().await;
        self.is_given_up.store(last.is_err(), Ordering::Relaxed);
        last
    }

    fn failed(&self, action: &'static str) -> impl Fn(SourceError) -> PublishError {
        let target = self.name.clone();
        move |error| PublishError::Remote { action, target: target.clone(), problem: problem(error) }
    }

    fn digest(&self, digest: &str) -> Result<Digest, PublishError> {
        let bad = |problem: String| PublishError::Remote { action: "reading from", target: self.name.clone(), problem };
        digest.parse().map_err(|error: crate::io::store::DigestError| bad(error.to_string()))
    }
}

/// What went wrong and what to do, for who types a command: it is not tried again for ever, and there is no Secret.
fn problem(error: SourceError) -> String {
    let said = match error {
        SourceError::Unreachable { problem, .. } | SourceError::Local { problem, .. } => problem,
        SourceError::Unauthorized { problem, .. } if problem.contains(NO_LOGIN) => {
            "it asks for a login: docker login makes one, or name a file with it in --registry-config".to_owned()
        }
        // It says what to do.
        SourceError::Unauthorized { problem, .. } if HINTS.iter().any(|(of_users, _)| problem.contains(of_users)) => {
            problem
        }
        SourceError::Unauthorized { problem, .. } => {
            format!("{problem}; check the login that docker login made or --registry-config names, and its rights")
        }
        SourceError::RateLimited { problem, after, .. } => format!("{problem}; try again in {} s", after.as_secs()),
        SourceError::TimedOut { after, .. } => format!("it took longer than {} s", after.as_secs()),
        SourceError::NoRepository { problem, .. } => format!("there is no such repository: {problem}"),
        SourceError::Unusable { what, problem } => format!("{what} can't be used: {problem}"),
        SourceError::Untrusted { problem, .. } => format!("it is not trusted: {problem}"),
        SourceError::Led { refused: Refused::Plain { host, .. }, .. } => {
            format!("it leads to {host} by plain http, which anybody on the way can change: --plain-http allows that")
        }
        SourceError::Led { refused: Refused::Host { host }, .. } => {
            format!("it leads to {host}, an address of this machine or of its link: name the registry by where it is")
        }
        other => other.to_string(),
    };
    HINTS.iter().fold(said, |said, (of_users, of_command)| said.replace(of_users, of_command))
}

/// What the client says to users of the operator, and what is said instead: commands have flags and an environment.
const HINTS: [(&str, &str); 7] = [
    ("put it into ca.crt of a Secret that certSecretRef names", "name a file with it in --ca-file"),
    ("put the authority into ca.crt", "name a file with the authority in --ca-file"),
    ("put tls.crt and tls.key into a Secret that certSecretRef names", "commands have none to show"),
    (", or name a Secret with address, username and password in proxySecretRef", ""),
    ("name a Secret with address, username and password in proxySecretRef", "set HTTPS_PROXY with it"),
    ("the operator's HTTPS_PROXY", "HTTPS_PROXY"),
    ("ca.crt of certSecretRef", "the file of --ca-file"),
];

#[async_trait]
impl Repository for Remote {
    fn name(&self) -> String {
        self.name.clone()
    }

    async fn tags(&self) -> Result<Vec<String>, PublishError> {
        match self.again(|| self.registry.tags()).await {
            // Nothing was pushed to it yet.
            Err(SourceError::NoRepository { .. }) => Ok(Vec::new()),
            other => other.map_err(self.failed("listing the tags of")),
        }
    }

    async fn get_manifest(&self, reference: &str) -> Result<Option<Bytes>, PublishError> {
        self.again(|| self.registry.manifest_bytes(reference)).await.map_err(self.failed("reading from"))
    }

    async fn put_manifest(&self, tag: Option<&str>, manifest: &Bytes) -> Result<(), PublishError> {
        let read: Option<Value> = serde_json::from_slice(manifest).ok();
        let media_type = read.as_ref().and_then(|read| read.get("mediaType")?.as_str()).unwrap_or(MANIFEST);
        let digest = Digest::of(manifest).to_string();
        let push = || self.registry.push_manifest(tag.unwrap_or(&digest), media_type, manifest.clone());
        let pushed = self.again(push).await;
        pushed.map(drop).map_err(self.failed("pushing to"))
    }

    async fn blob_exists(&self, digest: &str) -> Result<bool, PublishError> {
        let digest = self.digest(digest)?;
        self.again(|| self.registry.has_blob("asking", &digest)).await.map_err(self.failed("asking"))
    }

    async fn get_blob(&self, digest: &str, size: u64) -> Result<Bytes, PublishError> {
        let digest = self.digest(digest)?;
        self.again(|| self.registry.blob(&digest, size, size)).await.map_err(self.failed("reading from"))
    }

    async fn put_blob(&self, _digest: &str, content: &Bytes) -> Result<(), PublishError> {
        self.again(|| self.registry.push_blob(content)).await.map(drop).map_err(self.failed("pushing to"))
    }

    async fn referrers(&self, digest: &str) -> Result<Vec<Descriptor>, PublishError> {
        let digest = self.digest(digest)?;
        self.again(|| self.registry.referrers(&digest)).await.map_err(self.failed("reading from"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_tried_again() {
        let (action, url, problem) = ("pushing to", String::new(), String::new());
        let limited = |after| SourceError::RateLimited { url: url.clone(), problem: problem.clone(), after };
        let answers = |said: &str| SourceError::Unreachable { action, url: url.clone(), problem: said.to_owned() };
        let secs = Duration::from_secs;
        let own = secs(2);
        for (error, expected) in [
            (SourceError::Unreachable { action, url: url.clone(), problem: problem.clone() }, Some(own)),
            (answers("the registry answers 503 Service Unavailable"), Some(own)),
            (answers("the registry answers 408 Request Timeout"), Some(own)),
            (answers("the registry answers 405 Method Not Allowed; UNSUPPORTED: read-only"), None),
            (answers("it answers 200 OK to a blob"), None),
            (SourceError::TimedOut { action, url: url.clone(), after: secs(60) }, Some(own)),
            (limited(secs(1)), Some(own)),
            (limited(secs(30)), Some(secs(30))),
            (limited(secs(61)), None),
            (SourceError::Unauthorized { action, url: url.clone(), problem: problem.clone() }, None),
            (SourceError::NoRepository { url: url.clone(), problem: problem.clone() }, None),
        ] {
            assert_eq!(pause(&error, own), expected, "{error}");
        }
    }

    #[test]
    fn nothing_is_said_that_holds_for_an_operator_alone() {
        let (action, url) = ("reading from", "registry.example.com/a".to_owned());
        let text = || "it answers 500".to_owned();
        let unauthorized =
            |problem: &str| SourceError::Unauthorized { action, url: url.clone(), problem: problem.to_owned() };
        let untrusted = |problem: &str| SourceError::Untrusted { url: url.clone(), problem: problem.to_owned() };
        let led = |refused| SourceError::Led { action, url: url.clone(), refused };
        for (error, part) in [
            (SourceError::Unreachable { action, url: url.clone(), problem: text() }, "it answers 500"),
            (SourceError::Local { action, url: url.clone(), problem: text() }, "it answers 500"),
            (unauthorized(NO_LOGIN), "docker login"),
            (unauthorized("it answers 403"), "--registry-config"),
            (
                SourceError::RateLimited { url: url.clone(), problem: text(), after: Duration::from_mins(1) },
                "try again in 60 s",
            ),
            (SourceError::TimedOut { action, url: url.clone(), after: Duration::from_mins(2) }, "120 s"),
            (SourceError::NoRepository { url: url.clone(), problem: text() }, "it answers 500"),
            (SourceError::Unusable { what: "an authority".to_owned(), problem: text() }, "an authority"),
            (SourceError::Unusable { what: "ca.crt of certSecretRef".to_owned(), problem: text() }, "--ca-file"),
            (
                untrusted("if its authority is your own, put it into ca.crt of a Secret that certSecretRef names"),
                "--ca-file",
            ),
            (
                unauthorized(
                    "it asks for a certificate of ours: put tls.crt and tls.key into a Secret that certSecretRef names",
                ),
                "it asks for a certificate of ours: commands have none to show",
            ),
            (
                unauthorized(
                    "the proxy on the way wants a login: put it into the operator's HTTPS_PROXY or HTTP_PROXY, as http://user:password@host:port, or name a Secret with address, username and password in proxySecretRef",
                ),
                "wants a login: put it into HTTPS_PROXY or HTTP_PROXY, as http://user:password@host:port",
            ),
            (led(Refused::Plain { url: url.clone(), host: "x.example.com".to_owned() }), "--plain-http"),
            (led(Refused::Host { host: "127.0.0.2".to_owned() }), "127.0.0.2"),
        ] {
            let said = problem(error);
            assert!(said.contains(part), "{said}");
            assert!(
                !["tried again", "asked again", "Secret", "secretRef", "operator", "--allow-source"]
                    .iter()
                    .any(|word| said.contains(word)),
                "{said}"
            );
        }
    }
}
