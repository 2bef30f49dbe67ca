//! What the API server takes as the group, version, kind, namespace and name of an object.
//!
//! A chart may render any text there, and what it renders becomes a part of the paths that the API server is asked for, with
//! the operator's own rights where kinds are discovered: what can't be one is refused before anything is asked.

use thiserror::Error;

use super::name::is_label;

/// Most characters of a DNS label (RFC 1123), of a version and of a kind (`CustomResourceDefinition.spec.names`).
const LABEL: usize = 63;

/// Most characters of a DNS subdomain (RFC 1123): of a group, and of the longest names of objects.
const SUBDOMAIN: usize = 253;

/// What is wrong with a part of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Problem {
    /// It is no text.
    #[error("is no text")]
    NoText,
    /// It is longer than the API server takes.
    #[error("has more than {0} characters")]
    TooLong(usize),
    /// It is no `apiVersion`.
    #[error("is no group and version, as apps/v1 or v1")]
    NoApiVersion,
    /// It is no kind.
    #[error("is no kind: letters and digits, a letter first")]
    NoKind,
    /// It is no namespace.
    #[error("is no DNS label: lower-case letters, digits and - within")]
    NoLabel,
    /// It is no part of a path.
    #[error("holds / or %, or is . or .., which no name of an object does")]
    NoPathSegment,
    /// It is no name of a Secret, ConfigMap or ServiceAccount.
    #[error("is no DNS subdomain: lower-case letters and digits, and - and . within")]
    NoSubdomain,
}

/// Checks an `apiVersion`: a version, or a group and a version. A group is a DNS subdomain, a version a DNS label that begins
/// with a letter (RFC 1035), as `CustomResourceDefinition` and `APIService` have it.
///
/// # Errors
/// What is wrong with it.
pub fn api_version(text: &str) -> Result<(), Problem> {
    let (group, version) = match text.split_once('/') {
        Some((group, version)) => (Some(group), version),
        None => (None, text),
    };
    if version.len() > LABEL {
        return Err(Problem::TooLong(LABEL));
    }
    if group.is_some_and(|group| group.len() > SUBDOMAIN) {
        return Err(Problem::TooLong(SUBDOMAIN));
    }
    let is_version = is_label(version) && version.starts_with(|c: char| c.is_ascii_lowercase());
    let is_group = group.is_none_or(|group| group.split('.').all(is_label));
    if is_version && is_group { Ok(()) } else { Err(Problem::NoApiVersion) }
}

/// Checks a kind.
///
/// # Errors
/// What is wrong with it.
pub fn kind(text: &str) -> Result<(), Problem> {
    if text.len() > LABEL {
        return Err(Problem::TooLong(LABEL));
    }
    let lower = text.to_ascii_lowercase();
    let is_kind = is_label(&lower) && lower.starts_with(|c: char| c.is_ascii_lowercase());
    if is_kind { Ok(()) } else { Err(Problem::NoKind) }
}

/// Checks a namespace; an empty one is none.
///
/// # Errors
/// What is wrong with it.
pub fn namespace(text: &str) -> Result<(), Problem> {
    if text.len() > LABEL {
        return Err(Problem::TooLong(LABEL));
    }
    if text.is_empty() || is_label(text) { Ok(()) } else { Err(Problem::NoLabel) }
}

/// Checks the length of a name, by what any kind takes. What else a name may hold is a kind's own matter.
///
/// # Errors
/// What is wrong with it.
pub fn name(text: &str) -> Result<(), Problem> {
    if text.len() > SUBDOMAIN { Err(Problem::TooLong(SUBDOMAIN)) } else { Ok(()) }
}

/// Checks a name as most kinds take it, Secrets, ConfigMaps and ServiceAccounts among them: a DNS subdomain (RFC 1123).
///
/// # Errors
/// What is wrong with it.
pub fn subdomain(text: &str) -> Result<(), Problem> {
    name(text)?;
    if text.split('.').all(is_label) { Ok(()) } else { Err(Problem::NoSubdomain) }
}

/// Checks what a name of any kind may hold (`path.ValidatePathSegmentName` of `k8s.io/apimachinery`).
///
/// # Errors
/// What is wrong with it.
pub fn path_segment(text: &str) -> Result<(), Problem> {
    let is_segment = !matches!(text, "." | "..") && !text.contains(['/', '%']);
    if is_segment { Ok(()) } else { Err(Problem::NoPathSegment) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_identity_is_told() {
        type Check = fn(&str) -> Result<(), Problem>;
        let long = "x".repeat(254);
        let label = "x".repeat(64);
        for (check, text, expected) in [
            (api_version as Check, "v1", Ok(())),
            (api_version, "apps/v1", Ok(())),
            (api_version, "infrastructure.cluster.x-k8s.io/v1beta1", Ok(())),
            (api_version, "coordination.k8s.io/v1/leases?watch=true&x=0", Err(Problem::NoApiVersion)),
            (api_version, "v1?watch=true", Err(Problem::NoApiVersion)),
            (api_version, "../v1", Err(Problem::NoApiVersion)),
            (api_version, "a..b/v1", Err(Problem::NoApiVersion)),
            (api_version, "/v1", Err(Problem::NoApiVersion)),
            (api_version, "apps/", Err(Problem::NoApiVersion)),
            (api_version, "apps/1", Err(Problem::NoApiVersion)),
            (api_version, "apps/v1#", Err(Problem::NoApiVersion)),
            (api_version, "", Err(Problem::NoApiVersion)),
            (api_version, &format!("{long}/v1"), Err(Problem::TooLong(253))),
            (api_version, &format!("apps/{label}"), Err(Problem::TooLong(63))),
            (kind, "ClusterClass", Ok(())),
            (kind, "pods/exec", Err(Problem::NoKind)),
            (kind, "1Pod", Err(Problem::NoKind)),
            (kind, &label, Err(Problem::TooLong(63))),
            (namespace, "", Ok(())),
            (namespace, "kube-system", Ok(())),
            (namespace, "a/b", Err(Problem::NoLabel)),
            (namespace, "Shop", Err(Problem::NoLabel)),
            (namespace, &label, Err(Problem::TooLong(63))),
            (name, "system:node", Ok(())),
            (name, &long, Err(Problem::TooLong(253))),
            (subdomain, "a.b-c", Ok(())),
            (subdomain, "", Err(Problem::NoSubdomain)),
            (subdomain, "deployer\n", Err(Problem::NoSubdomain)),
            (subdomain, "v1?x", Err(Problem::NoSubdomain)),
            (subdomain, "../x", Err(Problem::NoSubdomain)),
            (subdomain, &long, Err(Problem::TooLong(253))),
            (path_segment, "system:node", Ok(())),
            (path_segment, "a/b", Err(Problem::NoPathSegment)),
            (path_segment, "a%2Fb", Err(Problem::NoPathSegment)),
            (path_segment, "..", Err(Problem::NoPathSegment)),
        ] {
            assert_eq!(check(text), expected, "{text}");
        }
    }
}
