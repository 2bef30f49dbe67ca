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

fn unescape(text: &str) -> Result<String, String> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' {
            let code = text.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
            if let Some(byte) = code {
                out.push(byte);
            } else {
                let bad: String = text[at..].chars().take(3).collect();
                return Err(format!("invalid URL escape {bad:?}"));
            }
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
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

fn parse(raw: &str) -> Result<Url, String> {
    let wrap = |error: String| format!("parse {raw:?}: {error}");
    if raw.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        return Err(wrap("net/url: invalid control character in URL".into()));
    }
    let (body, fragment) = raw.split_once('#').unwrap_or((raw, ""));
    let mut url = Url { fragment: unescape(fragment).map_err(wrap)?, ..Url::default() };
    let mut rest = body;
    if let Some(colon) = body.find(':') {
        let scheme = &body[..colon];
        let valid = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
        if colon == 0 {
            return Err(wrap("missing protocol scheme".into()));
        }
        if valid {
            url.scheme = scheme.to_ascii_lowercase();
            rest = &body[colon + 1..];
        }
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
            return Err(wrap("first path segment in URL cannot contain colon".into()));
        }
    }
    if let Some(authority) = rest.strip_prefix("//").filter(|_| !url.scheme.is_empty() || !rest.starts_with("///")) {
        let end = authority.find('/').unwrap_or(authority.len());
        let (authority, path) = authority.split_at(end);
        rest = path;
        let host = match authority.rsplit_once('@') {
            Some((user, host)) => {
                if user.bytes().any(|byte| !byte.is_ascii_alphanumeric() && !b"-._:~!$&'()*+,;=%@".contains(&byte)) {
                    return Err(wrap("net/url: invalid userinfo".into()));
                }
                url.user = Some(match user.split_once(':') {
                    Some((name, password)) => (unescape(name).map_err(wrap)?, Some(unescape(password).map_err(wrap)?)),
                    None => (unescape(user).map_err(wrap)?, None),
                });
                host
            }
            None => authority,
        };
        let port = host.rsplit_once(':').filter(|_| !host.ends_with(']')).map(|(_, port)| port);
        if let Some(port) = port.filter(|port| !port.bytes().all(|byte| byte.is_ascii_digit())) {
            return Err(wrap(format!("invalid port {:?} after host", format!(":{port}"))));
        }
        if host.contains(' ') {
            return Err(wrap("invalid character \" \" in host name".into()));
        }
        url.host = unescape(host).map_err(wrap)?;
    }
    url.path = unescape(rest).map_err(wrap)?;
    Ok(url)
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

    fn hostname(&self) -> &str {
        if let Some(end) = self.host.find(']').filter(|_| self.host.starts_with('[')) {
            return &self.host[1..end];
        }
        self.host.rsplit_once(':').map_or(&self.host, |(host, _)| host)
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
                out.push_str(&escape(&self.host, |byte| {
                    byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]<>\"".contains(&byte)
                }));
            }
            let path = escape_path(&self.path);
            if !path.is_empty() && !path.starts_with('/') && !self.host.is_empty() {
                out.push('/');
            }
            out.push_str(&path);
        } else {
            out.push_str(&self.opaque);
        }
        if !self.query.is_empty() {
            _ = write!(out, "?{}", self.query);
        }
        if !self.fragment.is_empty() {
            let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,/:;=?@".contains(&byte);
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
}
