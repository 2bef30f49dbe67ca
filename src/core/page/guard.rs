//! What a browser is told about the pages, and whom the server believes.

use std::net::IpAddr;

/// Headers of every answer, beside the policy.
pub const HEADERS: [(&str, &str); 6] = [
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),
    ("x-frame-options", "DENY"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

/// The Content-Security-Policy of a page with one style sheet: nothing else is loaded, run, framed or sent anywhere. Its icon
/// is an empty one in the page, for a browser would ask for one else.
pub fn policy(style: &str) -> String {
    format!(
        "default-src 'none'; style-src '{style}'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
}

/// Whether `Host` is a name of this machine that nobody else can give it: one who makes a name of theirs lead here (DNS
/// rebinding) has a browser send that name.
pub fn is_local(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((name, port)) => (name, port),
            None => return false,
        },
        None => host.find(':').map_or((host, ""), |at| host.split_at(at)),
    };
    let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    let is_loopback = name
        .parse::<IpAddr>()
        .map_or_else(|_| name.eq_ignore_ascii_case("localhost"), |address| address.to_canonical().is_loopback());
    is_port && is_loopback
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_others_can_give_are_not_local() {
        for (host, expected) in [
            ("localhost", true),
            ("LocalHost:8081", true),
            ("127.0.0.1:9444", true),
            ("127.88.1.2", true),
            ("[::1]:9444", true),
            ("[::ffff:127.0.0.1]", true),
            ("", false),
            (":9444", false),
            ("evil.example.org", false),
            ("evil.example.org:9444", false),
            ("localhost.evil.example.org", false),
            ("127.0.0.1.evil.example.org", false),
            ("10.0.0.1:9444", false),
            ("0.0.0.0:9444", false),
            ("[::1", false),
            ("[::1]evil", false),
            ("localhost:evil", false),
            ("localhost:80:80", false),
            ("2130706433", false),
        ] {
            assert_eq!(is_local(host), expected, "{host}");
        }
    }
}
