//! What `--allow-source` permits.

use std::path::{Component, Path, PathBuf};

use thiserror::Error;
use url::Host;

use super::SourceUrl;

/// The local roots and hosts that the operator's `--allow-source` flags name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowList {
    roots: Vec<PathBuf>,
    hosts: Vec<(String, Option<u16>)>,
    plain_http: bool,
}

/// A value of `--allow-source` is neither a root nor a host.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("--allow-source {0:?} is neither a root nor a host: write file:///path, /path, host or host:port")]
pub struct AllowError(pub String);

impl AllowList {
    /// Reads the values of the flags: `file:///root`, `/root`, `host` or `host:port`.
    pub fn parse<'a>(flags: impl IntoIterator<Item = &'a str>) -> Result<Self, AllowError> {
        let mut list = Self::default();
        for flag in flags {
            let error = || AllowError(flag.to_owned());
            if flag.starts_with("file:") {
                let path = SourceUrl::parse(flag).ok().and_then(|url| url.local_path());
                list.roots.push(path.ok_or_else(error)?);
            } else if flag.starts_with('/') {
                list.roots.push(plain(Path::new(flag)).ok_or_else(error)?);
            } else {
                list.hosts.push(host(flag).ok_or_else(error)?);
            }
        }
        Ok(list)
    }

    /// The roots, as given.
    pub fn roots(&self) -> &[PathBuf] {
        &self.roots
    }

    /// The same list with other roots: for roots whose symbolic links were resolved.
    #[must_use]
    pub fn with_roots(&self, roots: Vec<PathBuf>) -> Self {
        Self { roots, ..self.clone() }
    }

    /// The same list, plain http allowed: for a source whose author chose it.
    #[must_use]
    pub fn with_plain_http(&self) -> Self {
        Self { plain_http: true, ..self.clone() }
    }

    /// Whether plain http to any host is allowed.
    pub fn holds_plain_http(&self) -> bool {
        self.plain_http
    }

    /// Whether a root is or holds `path`.
    pub fn holds_path(&self, path: &Path) -> bool {
        plain(path).is_some_and(|path| self.roots.iter().any(|root| path.starts_with(root)))
    }

    /// Whether a flag names the host, with any port or with none.
    pub fn holds_name(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.');
        self.hosts.iter().any(|(name, _)| name == host)
    }

    /// Whether a flag names a host on one port only.
    pub fn holds_ports(&self) -> bool {
        self.hosts.iter().any(|(_, only)| only.is_some())
    }

    /// Whether a flag names the host, with this port or with none.
    pub fn holds_host(&self, host: &str, port: u16) -> bool {
        let host = host.trim_end_matches('.');
        self.hosts.iter().any(|(name, only)| name == host && only.is_none_or(|only| only == port))
    }
}

/// An absolute path without `.` and without `..`.
fn plain(path: &Path) -> Option<PathBuf> {
    let parent = path.components().any(|part| matches!(part, Component::ParentDir));
    (path.is_absolute() && !parent).then(|| path.components().collect())
}

/// `host`, `host:port`, `[v6]`, `[v6]:port` or a bare IPv6 address; the host as [`SourceUrl::host`] gives it.
fn host(flag: &str) -> Option<(String, Option<u16>)> {
    if flag.contains(['/', '@']) || flag.is_empty() {
        return None;
    }
    if let Ok(address) = flag.parse::<std::net::Ipv6Addr>() {
        return Some((format!("[{address}]"), None));
    }
    let (name, port) = match flag.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port.parse().ok()?)),
        _ => (flag, None),
    };
    let name = Host::parse(name.trim_end_matches('.')).ok()?.to_string();
    Some((name, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_root_nor_host_is_an_error() {
        for flag in ["", "https://host/x", "host:port", "host:", "/srv/../etc", "file://host/srv", "a b", "user@host"] {
            assert_eq!(AllowList::parse([flag]), Err(AllowError(flag.to_owned())), "{flag}");
        }
    }
}
