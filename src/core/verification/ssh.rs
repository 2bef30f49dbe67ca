//! Signatures by SSH keys (`ssh-keygen -Y sign`): whose key counts, and whether a signature holds.

use std::io::{self, Read};

use jiff::Timestamp;
use jiff::civil::DateTime;
use sha2::{Digest, Sha256, Sha512};
use signature::Verifier as _;
use ssh_key::{Algorithm, HashAlg, PublicKey, SshSig};

use super::{NotVerified, Signer};

/// How a signature begins.
pub(super) const SIGNATURE: &str = "-----BEGIN SSH SIGNATURE-----";
/// Bits that an RSA key must have.
const MIN_RSA: usize = 2048;

/// A key that may sign.
#[derive(Clone, Debug)]
pub(super) struct Allowed {
    key: PublicKey,
    /// Whose it is.
    principals: String,
    /// Patterns of what it may sign; nothing stands for everything.
    namespaces: Option<String>,
    after: Option<Timestamp>,
    before: Option<Timestamp>,
}

/// The keys of a file as `*.pub` has it: one on a line, with a comment.
///
/// # Errors
/// A line is no key.
pub(super) fn public_keys(text: &str) -> Result<Vec<Allowed>, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let keys: Vec<Allowed> = lines
        .map(|line| {
            let key = key(line)?;
            let principals = key.comment().to_owned();
            Ok(Allowed { key, principals, namespaces: None, after: None, before: None })
        })
        .collect::<Result<_, String>>()?;
    if keys.is_empty() { Err("it holds no SSH key".to_owned()) } else { Ok(keys) }
}

/// The keys of a file `allowed_signers`, as ssh-keygen(1) has it.
///
/// # Errors
/// A line can't be read, or asks for an authority, which is not supported.
pub(super) fn allowed_signers(text: &str) -> Result<Vec<Allowed>, String> {
    let mut signers = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        signers.push(allowed(line).map_err(|problem| format!("line {}: {problem}", number + 1))?);
    }
    if signers.is_empty() { Err("it names no signer".to_owned()) } else { Ok(signers) }
}

fn allowed(line: &str) -> Result<Allowed, String> {
    let (principals, rest) = word(line);
    let allowed = |rest: &str| -> Result<Allowed, String> {
        let key = key(rest)?;
        Ok(Allowed { key, principals: principals.replace('"', ""), namespaces: None, after: None, before: None })
    };
    if let Ok(plain) = allowed(rest) {
        return Ok(plain);
    }
    let (options, rest) = word(rest);
    let mut allowed = allowed(rest)?;
    for option in split(options) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let value = value.trim_matches('"');
        match name.to_ascii_lowercase().as_str() {
            "namespaces" => allowed.namespaces = Some(value.to_owned()),
            "valid-after" => allowed.after = Some(time(value)?),
            "valid-before" => allowed.before = Some(time(value)?),
            "cert-authority" => {
                return Err("cert-authority is not supported: name the keys themselves".to_owned());
            }
            other => return Err(format!("option {other} is not known")),
        }
    }
    Ok(allowed)
}

fn key(text: &str) -> Result<PublicKey, String> {
    if text.starts_with("-----BEGIN") {
        let what = if text.contains("PRIVATE KEY") {
            "it holds a private key: put in the public one"
        } else {
            "it is no public key as ssh-keygen writes it"
        };
        return Err(what.to_owned());
    }
    PublicKey::from_openssh(text).map_err(|error| format!("it is no SSH key: {error}"))
}

/// The first word, in which quotes hold blanks together, and what follows it.
fn word(text: &str) -> (&str, &str) {
    let mut quoted = false;
    let end = text.find(|c: char| {
        quoted ^= c == '"';
        c.is_whitespace() && !quoted
    });
    end.map_or((text, ""), |end| (&text[..end], text[end..].trim_start()))
}

/// Options, in which quotes hold commas together.
fn split(options: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    options.split(move |c: char| {
        quoted ^= c == '"';
        c == ',' && !quoted
    })
}

/// `YYYYMMDD[HHMM[SS]][Z]`. ssh-keygen takes it for local time without the `Z`; here it is UTC in any case.
fn time(text: &str) -> Result<Timestamp, String> {
    let problem = || format!("{text} is no time as YYYYMMDD[HHMM[SS]][Z]");
    let digits = text.trim_end_matches(['Z', 'z']);
    if !digits.is_ascii() || !matches!(digits.len(), 8 | 12 | 14) {
        return Err(problem());
    }
    let part =
        |from: usize, to: usize| digits.get(from..to).map_or(Ok(0), |part| part.parse::<i8>().map_err(|_| problem()));
    let year = digits[..4].parse::<i16>().map_err(|_| problem())?;
    DateTime::new(year, part(4, 6)?, part(6, 8)?, part(8, 10)?, part(10, 12)?, part(12, 14)?, 0)
        .and_then(|at| at.to_zoned(jiff::tz::TimeZone::UTC))
        .map(|at| at.timestamp())
        .map_err(|_| problem())
}

/// Checks the armored `signature`, made for `namespace`, of what `open` reads.
///
/// # Errors
/// It does not hold at `now`, or is of none of the keys.
pub(super) fn verify<'d>(
    keys: &[Allowed],
    what: &str,
    namespace: &str,
    open: &(dyn Fn() -> Box<dyn Read + 'd> + 'd),
    signature: &[u8],
    now: Timestamp,
) -> Result<Signer, NotVerified> {
    let invalid = |problem: String| NotVerified::Invalid { what: what.to_owned(), problem };
    let signature = SshSig::from_pem(signature).map_err(|error| invalid(format!("it can't be read: {error}")))?;
    let fingerprint = signature.public_key().fingerprint(HashAlg::Sha256);
    let mut of_key = keys.iter().filter(|allowed| allowed.key.key_data() == signature.public_key()).peekable();
    if of_key.peek().is_none() {
        return Err(NotVerified::UnknownSigner { what: what.to_owned(), by: format!("SSH key {fingerprint}") });
    }
    if signature.namespace() != namespace {
        let problem = format!("it was made for \"{}\", not for \"{namespace}\"", cut(signature.namespace()));
        return Err(invalid(problem));
    }
    strong(&signature).map_err(invalid)?;
    let mut refusal = String::new();
    for allowed in of_key {
        if let Err(problem) = allowed.may_sign(namespace, now) {
            refusal = format!("SSH key {fingerprint} {problem}");
            continue;
        }
        let signed = signed_data(&signature, open).map_err(|error| invalid(format!("reading it failed: {error}")))?;
        return match allowed.key.key_data().verify(&signed, signature.signature()) {
            Ok(()) if allowed.principals.is_empty() => Ok(Signer(format!("SSH key {fingerprint}"))),
            Ok(()) => Ok(Signer(format!("SSH key {fingerprint} ({})", allowed.principals))),
            Err(_) => Err(invalid("it does not fit what was signed".to_owned())),
        };
    }
    Err(invalid(refusal))
}

/// What was signed: not the file, but its digest with what it is for (`PROTOCOL.sshsig` of OpenSSH).
fn signed_data<'d>(signature: &SshSig, open: &(dyn Fn() -> Box<dyn Read + 'd> + 'd)) -> io::Result<Vec<u8>> {
    let mut file = open();
    let (name, digest) = match signature.hash_alg() {
        HashAlg::Sha256 => ("sha256", digest::<Sha256>(&mut file)?),
        HashAlg::Sha512 => ("sha512", digest::<Sha512>(&mut file)?),
        other => return Err(io::Error::other(format!("digest {other} is not known"))),
    };
    let mut data = b"SSHSIG".to_vec();
    for part in [signature.namespace().as_bytes(), signature.reserved(), name.as_bytes(), &digest] {
        let length = u32::try_from(part.len()).map_err(io::Error::other)?;
        data.extend_from_slice(&length.to_be_bytes());
        data.extend_from_slice(part);
    }
    Ok(data)
}

fn digest<D: Digest + io::Write>(file: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut digest = D::new();
    io::copy(file, &mut digest)?;
    Ok(digest.finalize().to_vec())
}

fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}

fn strong(signature: &SshSig) -> Result<(), String> {
    match signature.algorithm() {
        Algorithm::Rsa { hash: None } => return Err("ssh-rsa uses SHA-1: sign with rsa-sha2-512".to_owned()),
        Algorithm::Dsa => return Err("DSA is not accepted".to_owned()),
        _ => {}
    }
    let bits = signature.public_key().rsa().and_then(|key| key.n.as_positive_bytes()).map(|n| n.len() * 8);
    if bits.is_some_and(|bits| bits < MIN_RSA) {
        return Err(format!("its RSA key has less than {MIN_RSA} bits"));
    }
    Ok(())
}

impl Allowed {
    fn may_sign(&self, namespace: &str, now: Timestamp) -> Result<(), String> {
        if let Some(patterns) = &self.namespaces
            && !matches_list(patterns, namespace)
        {
            return Err(format!("may sign for {patterns} only"));
        }
        if let Some(after) = self.after.filter(|after| now < *after) {
            return Err(format!("is not valid before {after}"));
        }
        if let Some(before) = self.before.filter(|before| now >= *before) {
            return Err(format!("is not valid since {before}"));
        }
        Ok(())
    }
}

/// A list of patterns as `ssh_config(5)` has it: `*`, `?`, and `!` for what must not match.
fn matches_list(patterns: &str, text: &str) -> bool {
    let mut found = false;
    for pattern in patterns.split(',').map(str::trim) {
        match pattern.strip_prefix('!') {
            Some(pattern) if matches(pattern.as_bytes(), text.as_bytes()) => return false,
            Some(_) => {}
            None => found |= matches(pattern.as_bytes(), text.as_bytes()),
        }
    }
    found
}

fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => {
            matches(rest, text) || text.split_first().is_some_and(|(_, text)| matches(pattern, text))
        }
        (Some((b'?', rest)), Some((_, text))) => matches(rest, text),
        (Some((wanted, rest)), Some((found, text))) => wanted == found && matches(rest, text),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA194odDvVXOfwTzUAUzsAq1bzICQN5cFbdDZoinjLGn";

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn allowed_signers_are_read_as_ssh_keygen_reads_them() {
        let text = format!(
            "# signers\n\n*@a.example,b@b.example {KEY} a comment\n\"c d\" namespaces=\"git,file\",valid-after=\"20260101\",valid-before=20270101120000Z {KEY}\n"
        );
        let signers = allowed_signers(&text).unwrap();
        assert_eq!(signers[0].principals, "*@a.example,b@b.example");
        assert_eq!(signers[1].principals, "c d");
        assert_eq!(signers[1].after, Some(at("2026-01-01T00:00:00Z")));
        assert_eq!(signers[1].before, Some(at("2027-01-01T12:00:00Z")));
        for (namespace, now, may) in [
            ("git", "2026-06-01T00:00:00Z", true),
            ("file", "2026-06-01T00:00:00Z", true),
            ("mail", "2026-06-01T00:00:00Z", false),
            ("git", "2025-12-31T23:59:59Z", false),
            ("git", "2027-01-01T12:00:00Z", false),
        ] {
            assert_eq!(signers[1].may_sign(namespace, at(now)).is_ok(), may, "{namespace} {now}");
        }
    }

    #[test]
    fn what_can_not_be_read_is_an_error_with_its_line() {
        for (line, problem) in [
            (format!("a cert-authority {KEY}"), "line 2: cert-authority is not supported"),
            (format!("a touch-required {KEY}"), "line 2: option touch-required is not known"),
            (format!("a valid-after=\"soon\" {KEY}"), "line 2: soon is no time"),
            ("a ssh-ed25519 AAAA".to_owned(), "line 2: it is no SSH key"),
        ] {
            let found = allowed_signers(&format!("# first\n{line}\n")).unwrap_err();
            assert!(found.starts_with(problem), "{found}");
        }
        assert!(allowed_signers("# nobody\n").is_err() && public_keys("\n").is_err());
    }

    #[test]
    fn namespaces_are_lists_of_patterns() {
        for (patterns, matched) in [
            ("git", true),
            ("*", true),
            ("g?t", true),
            ("file,gi*", true),
            ("!git,*", false),
            ("file", false),
            ("", false),
        ] {
            assert_eq!(matches_list(patterns, "git"), matched, "{patterns}");
        }
    }
}
