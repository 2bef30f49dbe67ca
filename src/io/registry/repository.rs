//! Names of repositories: `host[:port]/path`, with or without `oci://`.

use std::fmt;

use url::{Host, Url};

use crate::io::source::SourceError;

/// Docker Hub's name, and where its registry really is.
const DOCKER_HUB: (&str, &str) = ("docker.io", "registry-1.docker.io");
/// Bytes of a path, as the distribution specification has it for clients.
const PATH: usize = 255;

/// A repository of a registry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Repository {
    host: String,
    path: String,
}

impl Repository {
    /// Reads `host[:port]/path`. Unlike in Docker the host is never left out.
    ///
    /// # Errors
    /// It is none, or names a tag or a digest too.
    pub fn parse(text: &str) -> Result<Self, SourceError> {
        let refuse = |problem: &str| SourceError::NoRepositoryName {
            name: crate::core::source::redact(&text.chars().take(PATH).collect::<String>()),
            problem: problem.to_owned(),
        };
        let rest = text.strip_prefix("oci://").unwrap_or(text);
        if rest.contains("://") {
            return Err(refuse("it has another scheme than oci"));
        }
        if rest.contains('@') {
            return Err(refuse("it holds a digest or a user, which has no place in it"));
        }
        let (host, path) = rest.trim_end_matches('/').split_once('/').ok_or_else(|| refuse("it has no path"))?;
        let host = host_and_port(host).ok_or_else(|| refuse("it does not begin with a host"))?;
        if path.contains(':') {
            return Err(refuse("it names a tag: each release is a tag"));
        }
        if path.len() > PATH || !path.split('/').all(is_component) {
            return Err(refuse("its path is not made of lowercase letters, digits and single separators"));
        }
        let hub = host == DOCKER_HUB.0 || host == "index.docker.io";
        let host = if hub { DOCKER_HUB.0.to_owned() } else { host };
        let path = if hub && !path.contains('/') { format!("library/{path}") } else { path.to_owned() };
        Ok(Self { host, path })
    }

    /// `host` or `host:port`, as logins are looked up.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The path in the registry.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The last part of the path.
    pub fn last(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Where its API is: `https://host/v2/path/`.
    pub(super) fn base(&self, insecure: bool) -> Result<Url, SourceError> {
        let host = if self.host == DOCKER_HUB.0 { DOCKER_HUB.1 } else { &self.host };
        let scheme = if insecure { "http" } else { "https" };
        Url::parse(&format!("{scheme}://{host}/v2/{}/", self.path))
            .map_err(|error| SourceError::NoRepositoryName { name: self.to_string(), problem: error.to_string() })
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "oci://{}/{}", self.host, self.path)
    }
}

/// The host as URLs have it.
fn host_and_port(text: &str) -> Option<String> {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port.parse::<u16>().ok()?)),
        _ => (text, None),
    };
    // A name without a dot is a host only with its port: anybody else means a path on Docker Hub.
    let host = Host::parse(name).ok()?;
    if matches!(&host, Host::Domain(name) if !name.contains('.') && name != "localhost") && port.is_none() {
        return None;
    }
    Some(port.map_or_else(|| host.to_string(), |port| format!("{host}:{port}")))
}

/// Letters and digits, with `.`, `_`, `__` or dashes between them.
fn is_component(part: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let separators = part.split(alphanumeric).filter(|between| !between.is_empty());
    let mut well = true;
    for separator in separators {
        well &= matches!(separator, "." | "_" | "__") || separator.chars().all(|c| c == '-');
    }
    well && part.starts_with(alphanumeric) && part.ends_with(alphanumeric)
}

/// Whether a text is a tag.
pub fn is_tag(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    text.len() <= 128
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read() {
        for (text, printed, base) in [
            ("ghcr.io/a/b", "oci://ghcr.io/a/b", "https://ghcr.io/v2/a/b/"),
            (
                "oci://R.example.com:5000/x__y/z-1/",
                "oci://r.example.com:5000/x__y/z-1",
                "https://r.example.com:5000/v2/x__y/z-1/",
            ),
            ("registry:5000/a", "oci://registry:5000/a", "https://registry:5000/v2/a/"),
            ("docker.io/a", "oci://docker.io/library/a", "https://registry-1.docker.io/v2/library/a/"),
            ("index.docker.io/o/a", "oci://docker.io/o/a", "https://registry-1.docker.io/v2/o/a/"),
            ("[::1]:5000/a", "oci://[::1]:5000/a", "https://[::1]:5000/v2/a/"),
        ] {
            let repository = Repository::parse(text).unwrap();
            assert_eq!((repository.to_string().as_str(), repository.base(false).unwrap().as_str()), (printed, base));
        }
    }

    #[test]
    fn what_is_no_repository_is_refused() {
        for text in [
            "",
            "a",
            "a/b",
            "ghcr.io",
            "ghcr.io/",
            "ghcr.io/a:tag",
            "ghcr.io/a@sha256:0",
            "https://ghcr.io/a",
            "ghcr.io/../a",
            "ghcr.io/a//b",
            "ghcr.io/A",
            "ghcr.io/a._b",
            "ghcr.io/-a",
            "ghcr.io/a?x",
            "ghcr.io/a%2e",
            "user:hunter2@ghcr.io/a",
            "ghcr.io:99999/a",
        ] {
            let error = Repository::parse(text).map_err(|error| error.to_string());
            assert!(error.as_ref().is_err_and(|error| !error.contains("hunter2")), "{text}: {error:?}");
        }
    }

    #[test]
    fn tags_are_told_from_other_texts() {
        assert!(["v1", "_x", "docker-scs-1-30-v0-sha.abc"].into_iter().all(is_tag));
        assert!(!["", "-v1", ".v1", "a/b", "a+b", "a:b", "a b"].into_iter().any(is_tag) && !is_tag(&"a".repeat(129)));
    }
}
