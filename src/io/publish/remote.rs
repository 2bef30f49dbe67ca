//! A repository of a registry on the network, to publish to and to bundle from.

use std::collections::BTreeMap;
use std::path::Path;

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
}

/// The repository `host/path` of a registry.
pub struct Remote {
    name: String,
    registry: Registry,
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
        Ok(Self { name, registry })
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

/// What went wrong and what to do, for who types a command: nothing is tried again, and there is no Secret.
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
        match self.registry.tags().await {
            // Nothing was pushed to it yet.
            Err(SourceError::NoRepository { .. }) => Ok(Vec::new()),
            other => other.map_err(self.failed("listing the tags of")),
        }
    }

    async fn get_manifest(&self, reference: &str) -> Result<Option<Bytes>, PublishError> {
        self.registry.manifest_bytes(reference).await.map_err(self.failed("reading from"))
    }

    async fn put_manifest(&self, tag: Option<&str>, manifest: &Bytes) -> Result<(), PublishError> {
        let read: Option<Value> = serde_json::from_slice(manifest).ok();
        let media_type = read.as_ref().and_then(|read| read.get("mediaType")?.as_str()).unwrap_or(MANIFEST);
        let digest = Digest::of(manifest).to_string();
        let pushed = self.registry.push_manifest(tag.unwrap_or(&digest), media_type, manifest.clone()).await;
        pushed.map(drop).map_err(self.failed("pushing to"))
    }

    async fn blob_exists(&self, digest: &str) -> Result<bool, PublishError> {
        let digest = self.digest(digest)?;
        self.registry.has_blob("asking", &digest).await.map_err(self.failed("asking"))
    }

    async fn get_blob(&self, digest: &str, size: u64) -> Result<Bytes, PublishError> {
        let digest = self.digest(digest)?;
        self.registry.blob(&digest, size, size).await.map_err(self.failed("reading from"))
    }

    async fn put_blob(&self, _digest: &str, content: &Bytes) -> Result<(), PublishError> {
        self.registry.push_blob(content).await.map(drop).map_err(self.failed("pushing to"))
    }

    async fn referrers(&self, digest: &str) -> Result<Vec<Descriptor>, PublishError> {
        let digest = self.digest(digest)?;
        self.registry.referrers(&digest).await.map_err(self.failed("reading from"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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
