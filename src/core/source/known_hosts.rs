//! `known_hosts` as OpenSSH writes it: which key a host of SSH must have.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use sha1::Sha1;

/// What is known of a host's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKey {
    /// It is the host's.
    Known,
    /// The host has another key of this type.
    Changed,
    /// Nothing is known of this host, or no key of this type.
    Unknown,
    /// It must not be used any more.
    Revoked,
}

/// The entries of a `known_hosts` file. Lines that can't be read are passed over, as in OpenSSH; so are certificate
/// authorities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownHosts {
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    revoked: bool,
    hosts: Hosts,
    key: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Hosts {
    Patterns(Vec<String>),
    Hashed { salt: Vec<u8>, digest: Vec<u8> },
}

impl KnownHosts {
    /// Reads the text of the file.
    pub fn parse(text: &str) -> Self {
        Self { entries: text.lines().filter_map(entry).collect() }
    }

    /// Whether it holds no entry at all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What is known of `key` (in the wire format) as the key of a host.
    pub fn check(&self, host: &str, port: u16, key: &[u8]) -> HostKey {
        let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
        let name = if port == 22 { host } else { format!("[{host}]:{port}") };
        let mut found = HostKey::Unknown;
        for entry in self.entries.iter().filter(|entry| entry.hosts.holds(&name)) {
            if entry.revoked {
                if entry.key == key {
                    return HostKey::Revoked;
                }
            } else if entry.key == key {
                found = HostKey::Known;
            } else if found == HostKey::Unknown && key_type(&entry.key) == key_type(key) {
                found = HostKey::Changed;
            }
        }
        found
    }
}

/// The first field of a key in the wire format: its type.
fn key_type(key: &[u8]) -> Option<&[u8]> {
    let (length, rest) = key.split_first_chunk()?;
    rest.get(..usize::try_from(u32::from_be_bytes(*length)).ok()?)
}

fn entry(line: &str) -> Option<Entry> {
    let mut words = line.split_whitespace().peekable();
    let revoked = match words.peek()? {
        word if word.starts_with('#') => return None,
        &"@revoked" => words.next().is_some(),
        word if word.starts_with('@') => return None,
        _ => false,
    };
    let (hosts, _key_type, key) = (words.next()?, words.next()?, words.next()?);
    let hosts = if let Some(hashed) = hosts.strip_prefix("|1|") {
        let (salt, digest) = hashed.split_once('|')?;
        Hosts::Hashed { salt: STANDARD.decode(salt).ok()?, digest: STANDARD.decode(digest).ok()? }
    } else {
        Hosts::Patterns(hosts.split(',').map(str::to_ascii_lowercase).collect())
    };
    Some(Entry { revoked, hosts, key: STANDARD.decode(key).ok()? })
}

impl Hosts {
    fn holds(&self, name: &str) -> bool {
        match self {
            Self::Patterns(patterns) => {
                let excluded = patterns.iter().filter_map(|p| p.strip_prefix('!')).any(|p| matches(p, name));
                !excluded && patterns.iter().any(|pattern| matches(pattern, name))
            }
            Self::Hashed { salt, digest } => {
                let Ok(mut mac) = Hmac::<Sha1>::new_from_slice(salt) else { return false };
                mac.update(name.as_bytes());
                mac.verify_slice(digest).is_ok()
            }
        }
    }
}

/// Whether `*` and `?` in `pattern` match `text`.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, t));
                p += 1;
            }
            Some(&c) if c == b'?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((after, from)) = star else { return false };
                star = Some((after, from + 1));
                p = after;
                t = from + 1;
            }
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(kind: &str, content: &str) -> Vec<u8> {
        let length = |text: &str| u32::try_from(text.len()).unwrap().to_be_bytes();
        [&length(kind)[..], kind.as_bytes(), &length(content)[..], content.as_bytes()].concat()
    }

    fn line(hosts: &str, key: &[u8]) -> String {
        format!("{hosts} ssh-x {} comment\n", STANDARD.encode(key))
    }

    #[test]
    fn a_key_is_known_changed_or_unknown() {
        let (right, wrong, other) = (key("ed25519", "right"), key("ed25519", "wrong"), key("rsa", "right"));
        let text = format!("# comment\n\nbroken line\n{}", line("github.com,10.0.0.1", &right));
        let hosts = KnownHosts::parse(&text);
        for (host, port, key, expected) in [
            ("github.com", 22, &right, HostKey::Known),
            ("GitHub.com", 22, &right, HostKey::Known),
            ("10.0.0.1", 22, &right, HostKey::Known),
            ("github.com", 22, &wrong, HostKey::Changed),
            ("github.com", 22, &other, HostKey::Unknown),
            ("github.com", 2222, &right, HostKey::Unknown),
            ("gitlab.com", 22, &right, HostKey::Unknown),
        ] {
            assert_eq!(hosts.check(host, port, key), expected, "{host}:{port}");
        }
        assert_eq!(KnownHosts::default().check("github.com", 22, &right), HostKey::Unknown);
    }

    #[test]
    fn ports_patterns_and_revocations_count() {
        let (a, b) = (key("ed25519", "a"), key("ed25519", "b"));
        let text = line("[git.example.com]:2222,*.corp,!bad.corp", &a) + "@revoked " + &line("*", &b);
        let hosts = KnownHosts::parse(&text);
        assert_eq!(hosts.check("git.example.com", 2222, &a), HostKey::Known);
        assert_eq!(hosts.check("git.corp", 22, &a), HostKey::Known);
        assert_eq!(hosts.check("bad.corp", 22, &a), HostKey::Unknown);
        assert_eq!(hosts.check("git.corp", 22, &b), HostKey::Revoked);
        assert_eq!(hosts.check("[2001:db8::1]", 22, &b), HostKey::Revoked);
    }

    #[test]
    fn hashed_hosts_are_found() {
        // ssh-keygen -H of "example.com".
        let salt = b"12345678901234567890";
        let mut mac = Hmac::<Sha1>::new_from_slice(salt).unwrap();
        mac.update(b"example.com");
        let hashed = format!("|1|{}|{}", STANDARD.encode(salt), STANDARD.encode(mac.finalize().into_bytes()));
        let hosts = KnownHosts::parse(&line(&hashed, &key("ed25519", "a")));
        assert_eq!(hosts.check("example.com", 22, &key("ed25519", "a")), HostKey::Known);
        assert_eq!(hosts.check("example.org", 22, &key("ed25519", "a")), HostKey::Unknown);
    }
}
