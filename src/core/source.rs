//! Sources as plain data: which are allowed, and where a stack lies in a tree.

use std::net::IpAddr;

use thiserror::Error;
use url::{Host, Url};

use crate::core::files::FileTree;
use crate::core::name::ReleaseName;

/// What the operator's flags allow of local sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    roots: Vec<String>,
    hosts: Vec<String>,
}

/// Why a source is not used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// It is no URL.
    #[error("{0:?} is no URL: write https://…, ssh://… or file://…")]
    NoUrl(String),
    /// A scheme that is not served.
    #[error("{0}:// is not allowed for a Git source: use https or ssh")]
    Scheme(String),
    /// Unencrypted and not local.
    #[error("http:// to {0} is not encrypted: use https")]
    Unencrypted(String),
    /// A local file outside the allowed roots.
    #[error("file source {0} lies under no root that the operator allows: start it with --allow-source={0}")]
    Root(String),
    /// A local host that is not allowed.
    #[error(
        "{0} is a loopback or link-local address, which the operator does not allow: start it with --allow-source={0}"
    )]
    LocalHost(String),
}

impl Allowed {
    /// From the values of `--allow-source`: paths or `file://` URLs are roots, the rest `host[:port]`.
    pub fn new(values: &[String]) -> Self {
        let mut allowed = Self::default();
        for value in values {
            let path = value.strip_prefix("file://").unwrap_or(value);
            if path.starts_with('/') {
                allowed.roots.push(path.trim_end_matches('/').to_owned());
            } else {
                allowed.hosts.push(value.clone());
            }
        }
        allowed
    }

    /// Checks the URL of a source and gives it in its full form (`git@host:path` becomes `ssh://git@host/path`).
    ///
    /// # Errors
    /// Why it is not used.
    pub fn check(&self, text: &str) -> Result<Url, Refused> {
        let url = parse(text)?;
        match url.scheme() {
            "file" => {
                let path = url.path().trim_end_matches('/');
                let inside = |root: &String| path == root || path.starts_with(&format!("{root}/"));
                // `Url` has resolved `..` already; an encoded one is refused as well.
                if !self.roots.iter().any(inside) || path.contains("%2e") || path.contains("%2E") {
                    return Err(Refused::Root(path.to_owned()));
                }
                Ok(url)
            }
            "https" | "ssh" | "http" => {
                let host = host_and_port(&url);
                let named =
                    self.hosts.iter().any(|allowed| *allowed == host || Some(allowed.as_str()) == url.host_str());
                if named {
                    Ok(url)
                } else if is_local(&url) {
                    Err(Refused::LocalHost(host))
                } else if url.scheme() == "http" {
                    Err(Refused::Unencrypted(host))
                } else {
                    Ok(url)
                }
            }
            other => Err(Refused::Scheme(other.to_owned())),
        }
    }

    /// Whether an address that a host name resolves to may be used by that name.
    pub fn allows_address(&self, url: &Url, address: IpAddr) -> bool {
        let host = host_and_port(url);
        !is_local_address(address) || self.hosts.iter().any(|a| *a == host || Some(a.as_str()) == url.host_str())
    }
}

fn parse(text: &str) -> Result<Url, Refused> {
    if let Ok(url) = Url::parse(text) {
        return Ok(url);
    }
    // scp-like: [user@]host:path
    let scp =
        text.split_once(':').filter(|(host, path)| !host.is_empty() && !host.contains('/') && !path.starts_with("//"));
    scp.and_then(|(host, path)| Url::parse(&format!("ssh://{host}/{}", path.trim_start_matches('/'))).ok())
        .ok_or_else(|| Refused::NoUrl(redacted(text)))
}

fn host_and_port(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn is_local(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => is_local_address(address.into()),
        Some(Host::Ipv6(address)) => is_local_address(address.into()),
        Some(Host::Domain(name)) => {
            let name = name.trim_end_matches('.').to_ascii_lowercase();
            name.parse::<IpAddr>().map_or(name == "localhost" || name.ends_with(".localhost"), is_local_address)
        }
        None => true,
    }
}

/// Loopback, link-local and unspecified addresses: what only the operator's own machine reaches.
fn is_local_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local() || v4.is_unspecified(),
        IpAddr::V6(v6) => {
            let link_local = (v6.segments()[0] & 0xffc0) == 0xfe80;
            v6.is_loopback()
                || v6.is_unspecified()
                || link_local
                || v6.to_ipv4_mapped().is_some_and(|v4| is_local_address(v4.into()))
        }
    }
}

/// A URL without what may be a secret: user and password, query and fragment.
pub fn redacted(text: &str) -> String {
    match Url::parse(text) {
        Ok(mut url) => {
            // Fails only for URLs that can't have them.
            let _ = url.set_password(None);
            if url.scheme() != "ssh" {
                let _ = url.set_username("");
            }
            url.set_query(None);
            url.set_fragment(None);
            url.to_string()
        }
        Err(_) => text.rsplit_once('@').map_or_else(|| text.to_owned(), |(_, rest)| rest.to_owned()),
    }
}

/// Where a release's stack may lie in the tree of its tag, best first. `path` may hold `{provider}`, `{name}` and
/// `{kubernetesVersion}` (as `1-30`); without it the places in use are tried.
pub fn candidate_paths(path: Option<&str>, release: &ReleaseName) -> Vec<String> {
    let minor = release.kubernetes.dashed();
    let filled = |template: &str| {
        template
            .replace("{provider}", &release.provider)
            .replace("{name}", &release.stack)
            .replace("{kubernetesVersion}", &minor)
            .trim_matches('/')
            .to_owned()
    };
    match path.filter(|path| !path.is_empty()) {
        Some(path) => vec![filled(path)],
        None => [
            "stacks/{provider}/{name}",
            "providers/{provider}/{name}/{kubernetesVersion}",
            "providers/{provider}/{name}",
        ]
        .into_iter()
        .map(filled)
        .collect(),
    }
}

/// Whether files are those of a stack: they hold the class chart.
pub fn is_stack(files: &FileTree) -> bool {
    files.contains_key("cluster-class/Chart.yaml")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_sources_need_a_flag() {
        let allowed = Allowed::new(&["/srv/git".into(), "127.0.0.1:8080".into(), "file:///data/".into()]);
        for (url, expected) in [
            ("https://example.com/a.git", Ok("https://example.com/a.git")),
            ("git@example.com:group/a.git", Ok("ssh://git@example.com/group/a.git")),
            ("file:///srv/git/a.git", Ok("file:///srv/git/a.git")),
            ("file:///data/x", Ok("file:///data/x")),
            ("http://127.0.0.1:8080/a", Ok("http://127.0.0.1:8080/a")),
            ("file:///srv/gitx", Err("--allow-source=/srv/gitx")),
            ("file:///srv/git/../secret", Err("--allow-source=/srv/secret")),
            ("file:///srv/git/%2e%2e/secret", Err("no root")),
            ("http://127.0.0.1:9090/a", Err("--allow-source=127.0.0.1:9090")),
            ("https://localhost/a", Err("loopback")),
            ("https://[::1]/a", Err("loopback")),
            ("https://[::ffff:127.0.0.1]/a", Err("loopback")),
            ("https://169.254.169.254/a", Err("link-local")),
            ("https://2130706433/a", Err("loopback")),
            ("ssh://0.0.0.0/a", Err("loopback")),
            ("http://example.com/a", Err("not encrypted")),
            ("ext::sh -c touch", Err("")),
            ("git://example.com/a", Err("git:// is not allowed")),
            ("nonsense", Err("no URL")),
        ] {
            match (allowed.check(url), expected) {
                (Ok(found), Ok(wanted)) => assert_eq!(found.as_str(), wanted),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{url}: {error}"),
                (found, _) => panic!("{url}: {found:?}"),
            }
        }
    }

    #[test]
    fn secrets_leave_no_trace() {
        for (text, shown) in [
            ("https://user:token@example.com/a.git", "https://example.com/a.git"),
            ("https://token@example.com/a.git?private_token=x#y", "https://example.com/a.git"),
            ("ssh://git:pw@example.com/a", "ssh://git@example.com/a"),
        ] {
            assert_eq!(redacted(text), shown);
        }
    }

    #[test]
    fn a_stack_lies_where_the_path_says_or_in_a_usual_place() {
        let release: ReleaseName = "openstack-scs-1-30-v3".parse().unwrap();
        assert_eq!(
            candidate_paths(None, &release),
            ["stacks/openstack/scs", "providers/openstack/scs/1-30", "providers/openstack/scs"]
        );
        assert_eq!(
            candidate_paths(Some("/x/{provider}-{name}/{kubernetesVersion}/"), &release),
            ["x/openstack-scs/1-30"]
        );
    }
}
