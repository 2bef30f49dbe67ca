//! URLs of sources.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use url::{Host, Url};

use super::Refused;

/// How a source is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// TLS.
    Https,
    /// In the clear: only for hosts that the operator's flags name.
    Http,
    /// SSH, also as `git@host:path`.
    Ssh,
    /// A path on the operator's machine.
    File,
}

/// A source's URL that was read; whether it may be used is [`super::permitted`]'s to say. Debug shows no secret.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SourceUrl {
    scheme: Scheme,
    url: Url,
    host: String,
}

impl fmt::Debug for SourceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SourceUrl").field(&self.redacted()).finish()
    }
}

impl SourceUrl {
    /// Reads a URL, or `git@host:path` as SSH has it.
    pub fn parse(text: &str) -> Result<Self, Refused> {
        let refuse = |problem: &str| Refused::NoUrl { url: redact(text), problem: problem.to_owned() };
        if text.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(refuse("it is empty or holds white space"));
        }
        let full = from_scp(text);
        let url = Url::parse(full.as_deref().unwrap_or(text)).map_err(|error| refuse(&error.to_string()))?;
        let scheme = match url.scheme() {
            "https" => Scheme::Https,
            "http" => Scheme::Http,
            "ssh" => Scheme::Ssh,
            "file" => Scheme::File,
            other => return Err(Refused::Scheme { url: redact(text), scheme: other.to_owned() }),
        };
        if scheme == Scheme::File {
            return file(text, url);
        }
        let host = match url.host_str() {
            // SSH is no scheme for which hosts are normalised when a URL is parsed.
            Some(host) => Host::parse(host).map_err(|error| refuse(&error.to_string()))?.to_string(),
            None => return Err(refuse("it names no host")),
        };
        if host.starts_with('-') || host.is_empty() {
            return Err(refuse("it names no host"));
        }
        Ok(Self { scheme, url, host })
    }

    /// How it is reached.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The whole with user and password: for the connection only.
    pub fn secret_str(&self) -> &str {
        self.url.as_str()
    }

    /// The whole, but at another address: for a connection that leads there by another way.
    pub fn by_way_of(&self, address: SocketAddr) -> Option<String> {
        let mut url = self.url.clone();
        url.set_ip_host(address.ip()).ok()?;
        url.set_port(Some(address.port())).ok()?;
        Some(url.into())
    }

    /// For messages: without user and password, but with the user of an SSH URL.
    pub fn redacted(&self) -> String {
        let mut url = self.url.clone();
        let user = url.username().to_owned();
        let _ = url.set_password(None);
        let keep = self.scheme == Scheme::Ssh && !user.is_empty();
        let _ = url.set_username(if keep { &user } else { "" });
        // A token may stand there as well.
        url.set_query(None);
        url.set_fragment(None);
        url.into()
    }

    /// The user in the URL.
    pub fn username(&self) -> Option<&str> {
        Some(self.url.username()).filter(|user| !user.is_empty())
    }

    /// The texts of its user part that must not appear in a message.
    pub fn secrets(&self) -> Vec<String> {
        let user = self.username().filter(|_| self.scheme != Scheme::Ssh);
        let own = self.url.password().into_iter().chain(user).filter(|text| !text.is_empty());
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let mut all: Vec<String> = own.flat_map(|text| [text.to_owned(), decoded(text)]).collect();
        if let Some(password) = self.url.password() {
            let login = format!("{}:{}", decoded(self.url.username()), decoded(password));
            all.push(STANDARD.encode(login));
        }
        all.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        all.dedup();
        all
    }

    /// The host, normalised; empty for a local path. An IPv6 address stands in brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, the scheme's own if none is given; 0 for a local path.
    pub fn port(&self) -> u16 {
        let own = match self.scheme {
            Scheme::Https => 443,
            Scheme::Http => 80,
            Scheme::Ssh => 22,
            Scheme::File => 0,
        };
        self.url.port().unwrap_or(own)
    }

    /// `host`, or `host:port` where a port is given.
    pub fn host_and_port(&self) -> String {
        match self.url.port() {
            Some(port) => format!("{}:{port}", self.host),
            None => self.host.clone(),
        }
    }

    /// The path of a `file://` URL.
    pub fn local_path(&self) -> Option<PathBuf> {
        (self.scheme == Scheme::File).then(|| self.url.to_file_path().ok()).flatten()
    }

    /// Whether the host is a loopback, link-local or unspecified one or a cloud's metadata service, by address or by name.
    pub fn is_local_host(&self) -> bool {
        match Host::parse(&self.host) {
            Ok(Host::Ipv4(address)) => is_local_v4(address),
            Ok(Host::Ipv6(address)) => is_local_v6(address),
            Ok(Host::Domain(name)) => is_local_name(&name),
            Err(_) => true,
        }
    }
}

/// A text without what may be a secret in a URL, in its user part or behind its path, for texts that could not be read as a URL.
pub fn redact(text: &str) -> String {
    const BEHIND: [char; 2] = ['?', '#'];
    let (scheme, rest) = text.split_once("://").map_or(("", text), |(scheme, rest)| (scheme, rest));
    let rest = match rest.rsplit_once('@') {
        // A password that was not escaped, or a part of a query.
        Some((before, _)) if before.contains(BEHIND) => "…".to_owned(),
        Some((_, rest)) => rest.to_owned(),
        None => rest.to_owned(),
    };
    let rest = rest.find(BEHIND).map_or_else(|| rest.clone(), |at| format!("{}…", &rest[..=at]));
    if scheme.is_empty() { rest } else { format!("{scheme}://{rest}") }
}

/// `git@host:path` as `ssh://git@host/path`; `None` if the text is not of that form.
fn from_scp(text: &str) -> Option<String> {
    if text.contains("://") {
        return None;
    }
    let (user, rest) = text.split_once('@')?;
    let is_user = !user.is_empty() && user.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    let (host, path) = rest.split_once(':')?;
    let is_host = !host.is_empty() && !host.contains('/');
    (is_user && is_host).then(|| format!("ssh://{user}@{host}/{}", path.trim_start_matches('/')))
}

fn file(text: &str, url: Url) -> Result<SourceUrl, Refused> {
    let refuse = |problem: &str| Refused::NoUrl { url: redact(text), problem: problem.to_owned() };
    // From the text, because parsing resolves the dots.
    if text.split(['/', '\\']).any(is_parent) {
        return Err(Refused::Traversal { url: redact(text) });
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(refuse("a path has no query and no fragment: write ? as %3F and # as %23"));
    }
    match url.host_str() {
        None | Some("" | "localhost") if url.to_file_path().is_ok() => {
            Ok(SourceUrl { scheme: Scheme::File, url, host: String::new() })
        }
        _ => Err(refuse("a file URL has an absolute path and no host")),
    }
}

/// Whether a part of a path is `..`, percent-encoded or not.
fn is_parent(part: &str) -> bool {
    part.to_ascii_lowercase().replace("%2e", ".") == ".."
}

/// Whether an address is a loopback, link-local or unspecified one, or a cloud's metadata service.
pub(super) fn is_local_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_local_v4(address),
        IpAddr::V6(address) => is_local_v6(address),
    }
}

/// Metadata services of clouds that are not on the link: they give credentials of the machine to who asks. Alibaba Cloud's,
/// and that of Azure's platform.
const METADATA_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16)];
/// Those of AWS and Google Cloud.
const METADATA_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)];

fn is_local_v4(address: Ipv4Addr) -> bool {
    // All of 0.0.0.0/8 is "this host on this network".
    address.is_loopback() || address.is_link_local() || address.octets()[0] == 0 || METADATA_V4.contains(&address)
}

fn is_local_v6(address: Ipv6Addr) -> bool {
    let embedded = embedded_v4(address).is_some_and(is_local_v4);
    let local = address.is_loopback() || address.is_unspecified() || address.is_unicast_link_local();
    local || embedded || METADATA_V6.contains(&address)
}

/// The IPv4 address to which packets for an IPv6 address go: `::a.b.c.d`, `::ffff:a.b.c.d`, through NAT64 (RFC 6052) and by
/// 6to4 (RFC 3056).
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let octets = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => Some(octets(high, low)),
        _ => address.to_ipv4(),
    }
}

fn is_local_name(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name.is_empty()
        || name == "localhost"
        || name.ends_with(".localhost")
        || name.starts_with("localhost.localdomain")
        || ["ip6-localhost", "ip6-loopback", "localhost4", "localhost6"].contains(&name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_a_secret_is_not_shown() {
        for (text, shown) in [
            ("https://example.com/a.git", "https://example.com/a.git"),
            ("https://joe:s3cret@example.com/a", "https://example.com/a"),
            ("http://joe:s3cret@h/api?t=S3cretZZ", "http://h/api?…"),
            ("http://h/x?private_token=S3cretZZ", "http://h/x?…"),
            ("http://h/x#S3cretZZ", "http://h/x#…"),
            ("http://h/x?t=S3cret@ZZ", "http://…"),
            ("http://joe:s?cret@h/x", "http://…"),
            ("h/x?token=S3cretZZ", "h/x?…"),
        ] {
            assert_eq!(redact(text), shown, "{text}");
        }
    }

    #[test]
    fn the_scp_form_becomes_ssh() {
        for (text, url) in [
            ("git@github.com:group/repo.git", "ssh://git@github.com/group/repo.git"),
            ("git@host:/srv/repo", "ssh://git@host/srv/repo"),
        ] {
            assert_eq!(SourceUrl::parse(text).unwrap().redacted(), url);
        }
    }

    #[test]
    fn a_way_changes_host_and_port_and_nothing_else() {
        for (text, way) in [
            ("git@example.com:group/repo.git", "ssh://git@127.0.0.1:4711/group/repo.git"),
            ("ssh://git@[2001:db8::1]:22/~/repo", "ssh://git@127.0.0.1:4711/~/repo"),
        ] {
            let address = "127.0.0.1:4711".parse().unwrap();
            assert_eq!(SourceUrl::parse(text).unwrap().by_way_of(address).unwrap(), way);
        }
    }

    #[test]
    fn messages_hold_no_user_and_password() {
        let url = SourceUrl::parse("https://token:hunter2@Example.com:8443/a.git?private_token=hunter2#x").unwrap();
        assert_eq!(url.redacted(), "https://example.com:8443/a.git");
        assert_eq!(url.host_and_port(), "example.com:8443");
        assert!(!format!("{url:?}").contains("hunter2"));
        let url = SourceUrl::parse("ssh://git:hunter2@example.com/a.git").unwrap();
        assert_eq!(url.redacted(), "ssh://git@example.com/a.git");
        assert_eq!(url.port(), 22);
    }
}
