//! Whether the operator's flags allow a source, as far as its text tells.

use crate::api::source::{Source, Verify};
use crate::core::source::{AllowList, Refused, permitted};

/// Why a source is refused; `None` if it may be tried.
///
/// Only what no change elsewhere can make right: where a name resolves to, and whether anybody answers, is not looked at.
pub fn refused(source: &Source, allow: &AllowList) -> Option<String> {
    let insecure = is_insecure(source);
    let allow = if insecure { allow.with_plain_http() } else { allow.clone() };
    let web = |url: &str| permitted(url, &allow).err().filter(|refused| !matches!(refused, Refused::NoUrl { .. }));
    let found = if let Some(git) = &source.git {
        permitted(&git.url, &allow).err()
    } else if let Some(github) = &source.github {
        [&github.url, &github.api_url].into_iter().flatten().find_map(|url| web(url))
    } else if let Some(gitlab) = &source.gitlab {
        gitlab.url.as_deref().and_then(web)
    } else if let Some(oci) = &source.oci {
        let bare = oci.repository.strip_prefix("oci://").unwrap_or(&oci.repository);
        let scheme = if insecure { "http" } else { "https" };
        web(&format!("{scheme}://{}", bare.split('/').next().unwrap_or_default()))
    } else {
        let directory = source.directory.as_ref()?;
        let is_held = allow.holds_path(std::path::Path::new(&directory.path));
        (!is_held).then(|| Refused::Root { url: directory.path.clone() })
    };
    found.map(|refused| refused.to_string())
}

/// What is unwise about a source and the signatures that are asked of it. `digests` are pinned.
pub fn warnings(source: &Source, verify: Option<&Verify>, digests: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    if is_insecure(source) {
        warnings.push(
            "insecure: anybody on the way can read and change what is fetched; use https, with certSecretRef for an \
             authority of your own"
                .to_owned(),
        );
    }
    let is_local = source.directory.is_some()
        || source.git.as_ref().is_some_and(|git| git.url.to_lowercase().starts_with("file:"));
    if verify.is_none() && !digests && !is_local {
        warnings.push(
            "nobody checks who made these releases: ask for signatures in spec.verify, or name digests in spec.pin of a \
             ClusterStack"
                .to_owned(),
        );
    }
    warnings
}

fn is_insecure(source: &Source) -> bool {
    source.git.as_ref().is_some_and(|git| git.insecure)
        || source.github.as_ref().is_some_and(|github| github.insecure)
        || source.gitlab.as_ref().is_some_and(|gitlab| gitlab.insecure)
        || source.oci.as_ref().is_some_and(|oci| oci.insecure)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn source(source: Value) -> Source {
        serde_json::from_value(source).unwrap()
    }

    #[test]
    fn a_source_outside_of_the_flags_is_refused() {
        let allow = AllowList::parse(["/srv/git", "127.0.0.1:5000"]).unwrap();
        for (given, part) in [
            (json!({"git": {"url": "https://git.example.com/x"}}), ""),
            (json!({"git": {"url": "git@git.example.com:x"}}), ""),
            (json!({"git": {"url": "file:///srv/git/x"}}), ""),
            (json!({"git": {"url": "file:///etc"}}), "is a local path"),
            (json!({"git": {"url": "file:///srv/git/../x"}}), "holds a \"..\""),
            (json!({"git": {"url": "https://localhost/x"}}), "loopback"),
            (json!({"git": {"url": "http://git.example.com/x"}}), "plain http"),
            (json!({"git": {"url": "http://git.example.com/x", "insecure": true}}), ""),
            (json!({"git": {"url": "http://127.0.0.1/x", "insecure": true}}), "loopback"),
            (json!({"git": {"url": "ftp://git.example.com/x"}}), "not supported"),
            (json!({"git": {"url": "stacks"}}), "can't be read"),
            (json!({"github": {"owner": "o", "repo": "r"}}), ""),
            (json!({"github": {"url": "https://[::1]/o/r"}}), "loopback"),
            (json!({"github": {"owner": "o", "repo": "r", "apiUrl": "https://169.254.169.254"}}), "link-local"),
            (json!({"gitlab": {"project": "g/p"}}), ""),
            (json!({"gitlab": {"url": "http://git.example.com", "project": "g/p"}}), "plain http"),
            (json!({"oci": {"repository": "oci://r.example.com/a/b"}}), ""),
            (json!({"oci": {"repository": "127.0.0.1:5000/a"}}), ""),
            (json!({"oci": {"repository": "127.0.0.1:5001/a", "insecure": true}}), "loopback"),
            (json!({"directory": {"path": "/srv/git/x"}}), ""),
            (json!({"directory": {"path": "/etc"}}), "is a local path"),
            (json!({}), ""),
        ] {
            let said = refused(&source(given.clone()), &allow).unwrap_or_default();
            assert!(said.contains(part) && said.is_empty() == part.is_empty(), "{given}: {said}");
        }
    }

    #[test]
    fn what_nobody_checks_is_warned_of() {
        let verify = Verify::default();
        for (given, verify, digests, expected) in [
            (json!({"git": {"url": "https://git.example.com/x"}}), None, false, &["who made"][..]),
            (json!({"git": {"url": "https://git.example.com/x"}}), Some(&verify), false, &[]),
            (json!({"git": {"url": "https://git.example.com/x"}}), None, true, &[]),
            (json!({"git": {"url": "file:///srv/x"}}), None, false, &[]),
            (json!({"directory": {"path": "/srv/x"}}), None, false, &[]),
            (json!({"oci": {"repository": "r/a", "insecure": true}}), None, false, &["insecure", "who made"]),
        ] {
            let said = warnings(&source(given.clone()), verify, digests);
            assert_eq!(said.len(), expected.len(), "{given}: {said:?}");
            assert!(said.iter().zip(expected).all(|(said, part)| said.contains(part)), "{given}: {said:?}");
        }
    }
}
