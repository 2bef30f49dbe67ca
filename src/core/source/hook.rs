//! What a hook has to carry to be believed: signatures and tokens of those who send them.

use std::collections::BTreeMap;

use hmac::{Hmac, Mac as _};
use sha2::{Digest as _, Sha256};

/// Largest body of a hook: what GitHub sends at most is 25 MiB, what matters to us fits in here.
pub const MAX_BODY: usize = 1024 * 1024;

/// Whether a request proves that its sender knows `token`: a signature over its body, or the token itself.
///
/// | header | of |
/// | --- | --- |
/// | `X-Hub-Signature-256: sha256=<hex>` | GitHub, Gitea |
/// | `X-Signature: sha256=<hex>` | Flux's notification-controller (generic-hmac) |
/// | `X-Gitlab-Token: <token>` | GitLab |
/// | `Authorization: Bearer <token>`, or `<token>` alone | registries (distribution, Harbor, Zot) |
///
/// The first of them that is there decides, so that a false signature is not mended by anything beside it. Names of headers
/// are in lower case. An empty token proves nothing.
pub fn is_proof(token: &[u8], headers: &BTreeMap<String, String>, body: &[u8]) -> bool {
    if token.is_empty() {
        return false;
    }
    for name in ["x-hub-signature-256", "x-signature"] {
        if let Some(signature) = headers.get(name) {
            return signature.strip_prefix("sha256=").and_then(unhex).is_some_and(|sum| is_signed(token, body, &sum));
        }
    }
    if let Some(sent) = headers.get("x-gitlab-token") {
        return is_same(token, sent.as_bytes());
    }
    let Some(sent) = headers.get("authorization") else { return false };
    let bearer = sent.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    is_same(token, bearer.map_or(sent.as_str(), |(_, token)| token.trim()).as_bytes())
}

fn is_signed(token: &[u8], body: &[u8], sum: &[u8]) -> bool {
    // HMAC takes keys of any length.
    Hmac::<Sha256>::new_from_slice(token).is_ok_and(|mac| mac.chain_update(body).verify_slice(sum).is_ok())
}

/// Whether both are the same, in a time that tells nothing: their digests are compared, by a check that does not stop at
/// the first difference.
fn is_same(token: &[u8], sent: &[u8]) -> bool {
    let keyed = |text: &[u8]| Hmac::<Sha256>::new_from_slice(&Sha256::digest(token)).map(|mac| mac.chain_update(text));
    match (keyed(token), keyed(sent)) {
        (Ok(own), Ok(sent)) => own.verify(&sent.finalize().into_bytes()).is_ok(),
        _ => false,
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let bytes = text.as_bytes();
    bytes
        .len()
        .is_multiple_of(2)
        .then(|| bytes.chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As GitHub's documentation gives it: "Hello, World!" signed by "It's a Secret to Everybody".
    const SECRET: &str = "It's a Secret to Everybody";
    const BODY: &str = "Hello, World!";
    const SUM: &str = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";

    #[test]
    fn a_hook_is_believed_by_its_signature_or_its_token() {
        let signed = format!("sha256={SUM}");
        let upper = format!("sha256={}", SUM.to_uppercase());
        let bearer = format!("Bearer {SECRET}");
        for (name, headers, body, expected) in [
            ("github", vec![("x-hub-signature-256", signed.as_str())], BODY, true),
            ("github, another body", vec![("x-hub-signature-256", &signed)], "Hello, world!", false),
            ("github, no prefix", vec![("x-hub-signature-256", SUM)], BODY, false),
            ("github, cut", vec![("x-hub-signature-256", &signed[..40])], BODY, false),
            ("github, empty", vec![("x-hub-signature-256", "sha256=")], BODY, false),
            ("github, no hex", vec![("x-hub-signature-256", "sha256=zz")], BODY, false),
            ("github by sha1", vec![("x-hub-signature", &signed)], BODY, false),
            ("generic", vec![("x-signature", &signed)], BODY, true),
            ("generic in capitals", vec![("x-signature", &upper)], BODY, true),
            ("gitlab", vec![("x-gitlab-token", SECRET)], "anything", true),
            ("gitlab, another", vec![("x-gitlab-token", "It's")], "anything", false),
            ("gitlab, empty", vec![("x-gitlab-token", "")], "anything", false),
            ("a registry", vec![("authorization", &bearer)], "anything", true),
            ("a registry without a scheme", vec![("authorization", SECRET)], "anything", true),
            ("a registry, another", vec![("authorization", "Bearer x")], "anything", false),
            ("a registry, basic", vec![("authorization", "Basic eDp5")], "anything", false),
            ("nothing", vec![], BODY, false),
            (
                "a false signature is not mended by a token",
                vec![("x-hub-signature-256", "sha256=00"), ("x-gitlab-token", SECRET)],
                BODY,
                false,
            ),
        ] {
            let headers = headers.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            assert_eq!(is_proof(SECRET.as_bytes(), &headers, body.as_bytes()), expected, "{name}");
        }
    }

    #[test]
    fn an_empty_token_proves_nothing() {
        let headers = BTreeMap::from([("x-gitlab-token".to_owned(), String::new())]);
        assert!(!is_proof(b"", &headers, b""));
    }
}
