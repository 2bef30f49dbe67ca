//! How a secret may be written where a message repeats it.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// What URLs keep as it is (RFC 3986, unreserved characters).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The same with `/`, as in a path.
const PATH: &AsciiSet = &UNRESERVED.remove(b'/');
/// What a part of a path keeps as it is (RFC 3986, pchar).
const PART: &AsciiSet = &UNRESERVED
    .remove(b':')
    .remove(b'@')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=');
/// The same with `/`.
const PARTS: &AsciiSet = &PART.remove(b'/');

/// The other forms of a text: in Base64 by both alphabets, with and without padding, and in URLs, with digits in capitals and small,
/// also as a query has a space.
pub fn spelled(text: &str) -> Vec<String> {
    let mut forms: Vec<String> =
        [STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD].map(|of| of.encode(text)).into();
    for set in [UNRESERVED, NON_ALPHANUMERIC, PATH, PART, PARTS] {
        let capitals = utf8_percent_encode(text, set).to_string();
        let small = small_digits(&capitals);
        forms.extend([capitals.replace("%20", "+"), small.replace("%20", "+"), capitals, small]);
    }
    forms.sort();
    forms.dedup();
    forms.retain(|form| form != text);
    forms
}

/// The same text with `%2F` as `%2f`.
fn small_digits(encoded: &str) -> String {
    let mut out = String::with_capacity(encoded.len());
    let mut digits = 0;
    for c in encoded.chars() {
        match c {
            '%' => digits = 3,
            _ => digits = usize::saturating_sub(digits, 1),
        }
        out.push(if digits > 0 { c.to_ascii_lowercase() } else { c });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_its_forms_in_base64_and_urls() {
        for (text, forms) in [
            ("a?b", &["YT9i"][..]),
            ("k>>?/A b", &["az4+Py9BIGI=", "az4-Py9BIGI", "k%3E%3E%3F%2FA%20b", "k%3e%3e%3f%2fA+b"]),
            ("x/yzw+q9=", &["x/yzw%2Bq9%3D", "x%2Fyzw+q9=", "x%2Fyzw%2Bq9%3D"]),
            ("a-B_1", &["a%2DB%5F1", "a%2dB%5f1"]),
        ] {
            let all = spelled(text);
            assert!(forms.iter().all(|form| all.iter().any(|one| one == form)), "{text}: {all:?}");
            assert!(!all.iter().any(|form| form == text));
        }
    }
}
