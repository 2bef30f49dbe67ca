//! URLs, as Go's `net/url` reads and writes them, and paths.

use std::fmt::Write as _;

use super::super::eval::{Fault, entries};
use super::super::value::{Value, lossy};
use super::dict::map;
use super::{Function, Out, Ty, text};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::new("urlParse", &[Ty::Str], |_, args| {
        let url = parse(&text(&args[0])).map_err(|error| format!("unable to parse url: {error}"))?;
        Ok(url.into_value())
    }),
    Function::new("urlJoin", &[Ty::Map], join),
    Function::new("base", &[Ty::Str], |_, args| Ok(Value::from(base(&text(&args[0]))))),
    Function::new("dir", &[Ty::Str], |_, args| Ok(Value::from(dir(&text(&args[0]))))),
    Function::new("clean", &[Ty::Str], |_, args| Ok(Value::from(clean(&text(&args[0]))))),
    Function::new("ext", &[Ty::Str], |_, args| Ok(Value::from(ext(&text(&args[0]))))),
    Function::new("isAbs", &[Ty::Str], |_, args| Ok(Value::Bool(text(&args[0]).starts_with('/')))),
    Function::new("osBase", &[Ty::Str], |_, args| Ok(Value::from(base(&text(&args[0]))))),
    Function::new("osDir", &[Ty::Str], |_, args| Ok(Value::from(dir(&text(&args[0]))))),
    Function::new("osClean", &[Ty::Str], |_, args| Ok(Value::from(clean(&text(&args[0]))))),
    Function::new("osExt", &[Ty::Str], |_, args| Ok(Value::from(ext(&text(&args[0]))))),
    Function::new("osIsAbs", &[Ty::Str], |_, args| Ok(Value::Bool(text(&args[0]).starts_with('/')))),
];

/// Go's `path.Base`.
pub(crate) fn base(path: &str) -> String {
    if path.is_empty() {
        return ".".into();
    }
    match path.trim_end_matches('/') {
        "" => "/".into(),
        path => path.rsplit('/').next().unwrap_or(path).into(),
    }
}

fn dir(path: &str) -> String {
    clean(path.rfind('/').map_or("", |at| &path[..=at]))
}

fn ext(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.rfind('.').map_or_else(String::new, |at| name[at..].to_owned())
}

/// Go's `path.Clean`.
pub(crate) fn clean(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => _ = parts.pop(),
            ".." if rooted => {}
            part => parts.push(part),
        }
    }
    match (rooted, parts.join("/")) {
        (true, path) => format!("/{path}"),
        (false, path) if path.is_empty() => ".".into(),
        (false, path) => path,
    }
}

/// Go's `url.QueryEscape`.
pub(crate) fn query_escape(text: &str) -> String {
    escape(text, |byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte)).replace("%20", "+")
}

fn escape(text: &str, keep: impl Fn(u8) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if keep(byte) {
            out.push(char::from(byte));
        } else {
            _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

fn escape_path(text: &str) -> String {
    escape(text, |byte| byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte))
}

/// Which part of a URL is read: what may stand there as it is, and what escaped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Host,
    /// The zone of an IPv6 address.
    Zone,
    Other,
}

fn is_of_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]<>\"".contains(&byte)
}

fn unescape(text: &str, part: Part) -> Result<String, String> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if byte != b'%' {
            if part != Part::Other && byte.is_ascii() && !is_of_host(byte) {
                return Err(format!("invalid character {:?} in host name", char::from(byte).to_string()));
            }
            out.push(byte);
            at += 1;
            continue;
        }
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        let code = hex.filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let allowed = |code: &u8| match part {
            Part::Other => true,
            Part::Host => *code >= 0x80 || *code == b'%',
            Part::Zone => matches!(*code, b'%' | b' ') || is_of_host(*code),
        };
        let Some(code) = code.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(allowed) else {
            let bad = lossy(&bytes[at..bytes.len().min(at + 3)]);
            return Err(format!("invalid URL escape {bad:?}"));
        };
        out.push(code);
        at += 3;
    }
    Ok(lossy(&out).into_owned())
}

#[derive(Default)]
struct Url {
    scheme: String,
    opaque: String,
    user: Option<(String, Option<String>)>,
    host: String,
    path: String,
    query: String,
    fragment: String,
}

/// Go's `url.Parse`.
fn parse(raw: &str) -> Result<Url, String> {
    let (body, fragment) = raw.split_once('#').unwrap_or((raw, ""));
    let wrap = |whole: &str, error: String| format!("parse {whole:?}: {error}");
    let mut url = parse_body(body).map_err(|error| wrap(body, error))?;
    url.fragment = unescape(fragment, Part::Other).map_err(|error| wrap(raw, error))?;
    Ok(url)
}

fn parse_body(raw: &str) -> Result<Url, String> {
    if raw.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        return Err("net/url: invalid control character in URL".into());
    }
    let mut url = Url::default();
    let mut rest = raw;
    let scheme = raw.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte)).count();
    if raw.as_bytes().get(scheme) == Some(&b':') && (scheme == 0 || raw.as_bytes()[0].is_ascii_alphabetic()) {
        if scheme == 0 {
            return Err("missing protocol scheme".into());
        }
        url.scheme = raw[..scheme].to_ascii_lowercase();
        rest = &raw[scheme + 1..];
    }
    if let Some((path, query)) = rest.split_once('?') {
        rest = path;
        query.clone_into(&mut url.query);
    }
    if !rest.starts_with('/') {
        if !url.scheme.is_empty() {
            rest.clone_into(&mut url.opaque);
            return Ok(url);
        }
        if rest.split('/').next().is_some_and(|first| first.contains(':')) {
            return Err("first path segment in URL cannot contain colon".into());
        }
    }
    if let Some(authority) = rest.strip_prefix("//").filter(|_| !url.scheme.is_empty() || !rest.starts_with("///")) {
        let (authority, path) = authority.split_at(authority.find('/').unwrap_or(authority.len()));
        rest = path;
        let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
        url.host = parse_host(&url.scheme, host)?;
        url.user = user.map(parse_user).transpose()?;
    }
    url.path = unescape(rest, Part::Other)?;
    Ok(url)
}

fn parse_user(user: &str) -> Result<(String, Option<String>), String> {
    if user.bytes().any(|byte| !byte.is_ascii_alphanumeric() && !b"-._:~!$&'()*+,;=%@".contains(&byte)) {
        return Err("net/url: invalid userinfo".into());
    }
    let (name, password) = user.split_once(':').map_or((user, None), |(name, password)| (name, Some(password)));
    Ok((unescape(name, Part::Other)?, password.map(|password| unescape(password, Part::Other)).transpose()?))
}

fn parse_host(scheme: &str, host: &str) -> Result<String, String> {
    let check_port = |port: &str| match port.strip_prefix(':') {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => Ok(()),
        None if port.is_empty() => Ok(()),
        _ => Err(format!("invalid port {port:?} after host")),
    };
    let Some(open) = host.rfind('[') else {
        // Of several colons, Go 1.26 takes the first one for a port's where it knows the scheme.
        let colon = if matches!(scheme, "http" | "https") { host.find(':') } else { host.rfind(':') };
        check_port(colon.map_or("", |colon| &host[colon..]))?;
        return unescape(host, Part::Host);
    };
    if open > 0 {
        return Err("invalid IP-literal".into());
    }
    let close = host.rfind(']').ok_or("missing ']' in host")?;
    let (name, port) = (&host[1..close], &host[close + 1..]);
    check_port(port)?;
    let (address, zone) = name.split_at(name.find("%25").unwrap_or(name.len()));
    let (address, zone) = (unescape(address, Part::Host)?, unescape(zone, Part::Zone)?);
    // An escape below was read as what it stands for.
    if address.parse::<std::net::Ipv6Addr>().is_err() || zone == "%" {
        return Err(format!("invalid host: {address}{zone} is no IPv6 address"));
    }
    Ok(format!("[{address}{zone}]{port}"))
}

impl Url {
    fn user_info(&self) -> String {
        let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~$&+,;=".contains(&byte);
        match &self.user {
            None => String::new(),
            Some((name, None)) => escape(name, keep),
            Some((name, Some(password))) => format!("{}:{}", escape(name, keep), escape(password, keep)),
        }
    }

    /// Go's `Hostname`.
    fn hostname(&self) -> &str {
        let host = match self.host.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => &self.host,
        };
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    fn into_value(self) -> Value {
        let (user, hostname) = (self.user_info(), self.hostname().to_owned());
        Value::map(entries([
            ("scheme", self.scheme.into()),
            ("host", self.host.into()),
            ("hostname", hostname.into()),
            ("path", self.path.into()),
            ("query", self.query.into()),
            ("opaque", self.opaque.into()),
            ("fragment", self.fragment.into()),
            ("userinfo", user.into()),
        ]))
    }

    fn write(&self) -> String {
        let mut out = String::new();
        if !self.scheme.is_empty() {
            _ = write!(out, "{}:", self.scheme);
        }
        if self.opaque.is_empty() {
            if !self.scheme.is_empty() || !self.host.is_empty() || self.user.is_some() {
                if !self.host.is_empty() || !self.path.is_empty() || self.user.is_some() {
                    out.push_str("//");
                }
                if self.user.is_some() {
                    _ = write!(out, "{}@", self.user_info());
                }
                out.push_str(&escape(&self.host, is_of_host));
            }
            let path = if self.path == "*" { "*".to_owned() } else { escape_path(&self.path) };
            if !path.is_empty() && !path.starts_with('/') && !self.host.is_empty() {
                out.push('/');
            }
            if out.is_empty() && path.split('/').next().is_some_and(|first| first.contains(':')) {
                out.push_str("./");
            }
            out.push_str(&path);
        } else {
            out.push_str(&self.opaque);
        }
        if !self.query.is_empty() {
            _ = write!(out, "?{}", self.query);
        }
        if !self.fragment.is_empty() {
            let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~!$&()*+,/:;=?@".contains(&byte);
            _ = write!(out, "#{}", escape(&self.fragment, keep));
        }
        out
    }
}

fn join(_: &mut super::Eval<'_>, args: &[Value]) -> Out {
    let part = |key: &str| -> Result<String, Fault> {
        match map(&args[0]).and_then(|map| map.get(key)) {
            None => Ok(String::new()),
            Some(value @ (Value::Str(_) | Value::Raw(_))) => Ok(text(&value).into_owned()),
            Some(other) => {
                let kind = other.kind().name();
                Err(format!("unable to parse {key} key, must be of type string, but {kind} found").into())
            }
        }
    };
    let user = match part("userinfo")? {
        user if user.is_empty() => None,
        user => {
            let parsed = parse(&format!("proto://{user}@host"));
            parsed.map_err(|error| format!("unable to parse userinfo in dict: {error}"))?.user
        }
    };
    let url = Url {
        scheme: part("scheme")?,
        opaque: part("opaque")?,
        user,
        host: part("host")?,
        path: part("path")?,
        query: part("query")?,
        fragment: part("fragment")?,
    };
    Ok(Value::from(url.write()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_as_in_go() {
        for (path, cleaned) in
            [("a/b/../c", "a/c"), ("", "."), ("/..//a/", "/a"), ("../a", "../a"), ("a/./b", "a/b"), ("/", "/")]
        {
            assert_eq!(clean(path), cleaned);
        }
        assert_eq!((base("a/b/"), dir("a/b/c"), ext("a/b.tar.gz")), ("b".into(), "a/b".into(), ".gz".into()));
    }

    #[test]
    fn urls_come_back_as_they_were() {
        for url in
            ["https://user:pw@example.com:8080/a%20b?q=1#frag", "mailto:me@example.com", "/only/path", "http://h"]
        {
            assert_eq!(parse(url).unwrap().write(), url);
        }
        assert_eq!(parse("http://[::1]:80/").unwrap().hostname(), "::1");
    }

    #[test]
    fn hosts_are_those_that_go_takes() {
        // As Helm 3.21.4 answers, built with Go 1.26.
        for (url, host, name) in [
            ("http://h:", "h:", "h"),
            ("http://[::1%25eth0]:80/", "[::1%eth0]:80", "::1%eth0"),
            ("http://a%25b/", "a%b", "a%b"),
            ("http://%C3%A4/", "ä", "ä"),
            ("ftp://a:b:1/", "a:b:1", "a:b"),
            ("//u:p@h/p", "h", "h"),
            ("http://a<b>/", "a<b>", "a<b>"),
        ] {
            let parsed = parse(url).unwrap();
            assert_eq!((parsed.host.as_str(), parsed.hostname()), (host, name), "{url}");
        }
        for url in [
            "http://{",
            "http://a b",
            "http://a%20b",
            "http://a|b",
            "http://h:port",
            "http://a:b:1",
            "http://[::1",
            "http://a[::1]",
            "http://[1.2.3.4]/",
            "http://[::1]x",
            "http://[x]/",
            "http://[::1%25]/",
            ":x",
            "a:/%zz",
            "http://h/%+f",
            "a b:c",
            "http://u{@h/",
        ] {
            assert!(parse(url).is_err(), "{url}");
        }
    }
}
