//! Whether a kubeconfig may be used: it comes from a Secret, and must not make the operator run a program or read a file.

use serde::Deserialize;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::core::yaml;

/// Most bytes of a kubeconfig.
pub const MAX_BYTES: usize = 1 << 20;

/// Why a kubeconfig is not used. The messages hold nothing of it but names of fields.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KubeconfigError {
    /// It is no kubeconfig.
    #[error("it is no kubeconfig")]
    Form,
    /// Two readers may take it for two different ones.
    #[error("it has more than one document: write all of it into one")]
    Documents,
    /// It is too large.
    #[error("it has more than {MAX_BYTES} bytes")]
    TooLarge,
    /// It would run a program or read a file.
    #[error(
        "{place} sets {field}, which would {harm}; put {instead} into the kubeconfig, or start the operator with --allow-any-kubeconfig"
    )]
    Refused {
        /// `users` or `clusters`.
        place: &'static str,
        /// The field.
        field: &'static str,
        /// What it would do.
        harm: &'static str,
        /// What to write instead.
        instead: &'static str,
    },
}

#[derive(Deserialize)]
struct Raw {
    #[serde(default)]
    clusters: Vec<Map<String, Value>>,
    #[serde(default)]
    users: Vec<Map<String, Value>>,
}

const RUNS: &str = "make the operator run a program";
const READS: &str = "make the operator read a file of its own";

/// What is refused: section, the name of its object, field, what it would do, what to write instead.
const REFUSED: &[(&str, &str, &str, &str, &str)] = &[
    ("users", "user", "exec", RUNS, "a token or a client certificate"),
    ("users", "user", "auth-provider", RUNS, "a token or a client certificate"),
    ("users", "user", "tokenFile", READS, "token"),
    ("users", "user", "client-certificate", READS, "client-certificate-data"),
    ("users", "user", "client-key", READS, "client-key-data"),
    ("clusters", "cluster", "certificate-authority", READS, "certificate-authority-data"),
];

/// The kubeconfig of a text, checked: all of it, whatever its current context. To be made into a client from what is given back, never
/// from the text again: another reader may see more in it.
///
/// # Errors
/// What speaks against using it.
pub fn check(text: &str) -> Result<Value, KubeconfigError> {
    if text.len() > MAX_BYTES {
        return Err(KubeconfigError::TooLarge);
    }
    // Errors of the parser may quote what they choked on.
    let mut documents = yaml::parse_all(text).map_err(|_| KubeconfigError::Form)?;
    let value = match (documents.pop(), documents.is_empty()) {
        (Some(document), true) => document.value,
        (None, _) => return Err(KubeconfigError::Form),
        (Some(_), false) => return Err(KubeconfigError::Documents),
    };
    let raw = Raw::deserialize(&value).map_err(|_| KubeconfigError::Form)?;
    if raw.clusters.is_empty() {
        return Err(KubeconfigError::Form);
    }
    for &(place, object, field, harm, instead) in REFUSED {
        let entries = if place == "users" { &raw.users } else { &raw.clusters };
        let sets = |entry: &Map<String, Value>| {
            entry.get(object).and_then(|object| object.get(field)).is_some_and(|v| !v.is_null())
        };
        if entries.iter().any(sets) {
            return Err(KubeconfigError::Refused { place, field, harm, instead });
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "
apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: https://127.0.0.1:6443, certificate-authority-data: QQ==}}]
users:
- name: u
  user: {client-certificate-data: QQ==, client-key-data: c2VjcmV0}
- name: other
  user: {token: swordfish}
";

    #[test]
    fn programs_and_files_are_refused_in_any_context() {
        assert_eq!(check(GOOD).map(drop), Ok(()));
        for (field, entry) in [
            ("exec", "{exec: {command: sh, args: [swordfish]}}"),
            ("auth-provider", "{auth-provider: {name: gcp}}"),
            ("tokenFile", "{tokenFile: /var/run/secrets/token}"),
            ("client-certificate", "{client-certificate: /x}"),
            ("client-key", "{client-key: /x}"),
        ] {
            let error = check(&GOOD.replace("{token: swordfish}", entry)).unwrap_err().to_string();
            assert!(error.contains(&format!("sets {field},")) && !error.contains("swordfish"), "{error}");
        }
        let error = check(&GOOD.replace("certificate-authority-data: QQ==", "certificate-authority: /x")).unwrap_err();
        assert!(error.to_string().starts_with("clusters sets certificate-authority,"));
    }

    #[test]
    fn there_is_no_second_document_that_somebody_else_reads() {
        let second = "users: [{name: v, user: {exec: {command: sh}}}]";
        for text in [format!("{GOOD}---\n{second}\n"), format!("--- {{}}\n---\n{GOOD}---\n{second}\n")] {
            assert_eq!(check(&text), Err(KubeconfigError::Documents), "{text}");
        }
        assert_eq!(check(&format!("---\n{GOOD}---\n")).map(drop), Ok(()));
        // The same for keys that are there twice: what was checked is what is used.
        let twice = check(&format!("{GOOD}{second}\n{second}\nusers: []\n"));
        assert!(twice.is_ok_and(|value| value["users"] == serde_json::json!([])));
    }

    #[test]
    fn what_is_no_kubeconfig_is_not_quoted() {
        for text in ["", "swordfish", "clusters: swordfish", "clusters: []", "users: [swordfish]", "{"] {
            assert_eq!(check(text), Err(KubeconfigError::Form), "{text}");
        }
    }
}
