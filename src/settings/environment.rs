//! The operator-wide source, from the variables that the Go operator reads: its deployment moves over unchanged.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::ValueEnum;
use thiserror::Error;

use crate::api::source::{GithubSource, OciSource, Source};
use crate::io::source::{Access, Credentials, Login};

/// Kinds of source that the environment can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SourceKind {
    /// `GIT_PROVIDER=github`, `GIT_ORG_NAME`, `GIT_REPOSITORY_NAME`, `GIT_ACCESS_TOKEN`.
    Github,
    /// `OCI_REGISTRY` (with `http://` in front: by plain http), `OCI_REPOSITORY`, and `OCI_ACCESS_TOKEN`, or `OCI_USERNAME` and `OCI_PASSWORD`, or all three.
    Oci,
}

/// The source of ClusterStacks that name none. Debug shows nothing of its credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultSource {
    /// Where releases come from.
    pub spec: Source,
    /// Who we are there.
    pub access: Access,
}

/// Variables that name no source.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EnvironmentError {
    /// One is missing.
    #[error("the environment variable {0} is not set: the default source needs it. Set it, or unset the others")]
    Missing(&'static str),
    /// Another Git hosting.
    #[error(
        "the environment variable GIT_PROVIDER is {0:?}: only \"github\" is known. Use a ClusterStackSource for others"
    )]
    Provider(String),
}

impl DefaultSource {
    /// The source that the variables name; `None` where they name none. With both kinds there, `kind` chooses, and GitHub
    /// without it, as in the Go operator.
    pub fn read(
        kind: Option<SourceKind>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, EnvironmentError> {
        let get = |name: &str| variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let kind = match kind {
            Some(kind) => kind,
            None if get("GIT_PROVIDER").is_some() => SourceKind::Github,
            None if get("OCI_REGISTRY").is_some() || get("OCI_REPOSITORY").is_some() => SourceKind::Oci,
            None => return Ok(None),
        };
        let needed = |name: &'static str| get(name).ok_or(EnvironmentError::Missing(name));
        match kind {
            SourceKind::Github => {
                let provider = needed("GIT_PROVIDER")?;
                if provider != "github" {
                    return Err(EnvironmentError::Provider(provider));
                }
                let github = GithubSource {
                    owner: needed("GIT_ORG_NAME")?,
                    repo: needed("GIT_REPOSITORY_NAME")?,
                    ..GithubSource::default()
                };
                let spec = Source { github: Some(github), ..Source::default() };
                let token = get("GIT_ACCESS_TOKEN");
                let credentials = token.map(|token| Credentials { password: Some(token), ..Credentials::default() });
                Ok(Some(Self { spec, access: Access { credentials, ..Access::default() } }))
            }
            SourceKind::Oci => {
                let (registry, plain) = scheme(needed("OCI_REGISTRY")?);
                let (repository, plain_there) = scheme(needed("OCI_REPOSITORY")?);
                let repository = in_registry(&registry, &repository);
                // The credentials are the registry's: another one never sees them.
                let is_there = host(&repository) == host(&registry);
                let basic = get("OCI_USERNAME").zip(get("OCI_PASSWORD"));
                let login = login(get("OCI_ACCESS_TOKEN"), basic).filter(|_| is_there);
                let registries = login.into_iter().map(|login| (host(&registry).to_ascii_lowercase(), login));
                let registries: BTreeMap<_, _> = registries.collect();
                let credentials =
                    (!registries.is_empty()).then(|| Credentials { registries, ..Credentials::default() });
                // The registry's word counts where the repository is in it.
                let insecure = plain_there || (plain && is_there);
                let access = Access { credentials, insecure, ..Access::default() };
                let oci = OciSource { repository, insecure, ..OciSource::default() };
                let spec = Source { oci: Some(oci), ..Source::default() };
                Ok(Some(Self { spec, access }))
            }
        }
    }
}

/// As the Go operator logs in: the token, in base64, is shown to the registry itself where it asks for one, and never
/// exchanged; user and password are for registries that ask for those.
fn login(token: Option<String>, basic: Option<(String, String)>) -> Option<Login> {
    let token = token.map(|token| STANDARD.encode(token));
    match (token, basic) {
        (Some(token), Some((username, password))) => Some(Login::BearerOrBasic { token, username, password }),
        (Some(token), None) => Some(Login::Bearer(token)),
        (None, Some((username, password))) => Some(Login::Basic { username, password }),
        (None, None) => None,
    }
}

/// A name without `http://`, which asks for plain http, or `https://`; and whether it asks.
fn scheme(name: String) -> (String, bool) {
    match (name.strip_prefix("http://"), name.strip_prefix("https://")) {
        (Some(bare), _) => (bare.to_owned(), true),
        (None, Some(bare)) => (bare.to_owned(), false),
        (None, None) => (name, false),
    }
}

/// The host of `host[:port]/path`, with or without a scheme.
fn host(reference: &str) -> &str {
    let bare = reference.split_once("://").map_or(reference, |(_, bare)| bare);
    bare.split('/').next().unwrap_or_default()
}

/// The Go operator wants the repository with its registry in front; one without is taken to be in `OCI_REGISTRY`.
fn in_registry(registry: &str, repository: &str) -> String {
    let first = host(repository);
    if repository.contains("://") || first.contains(['.', ':']) || first == "localhost" {
        return repository.to_owned();
    }
    format!("{}/{repository}", registry.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: Option<SourceKind>, variables: &[(&str, &str)]) -> Result<Option<DefaultSource>, EnvironmentError> {
        DefaultSource::read(kind, |name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    const GITHUB: [(&str, &str); 4] = [
        ("GIT_PROVIDER", "github"),
        ("GIT_ORG_NAME", "SovereignCloudStack"),
        ("GIT_REPOSITORY_NAME", "cluster-stacks"),
        ("GIT_ACCESS_TOKEN", "hunter2"),
    ];
    const OCI: [(&str, &str); 2] =
        [("OCI_REGISTRY", "registry.example.com"), ("OCI_REPOSITORY", "registry.example.com/kaas/cluster-stacks")];

    /// Place, and what is shown there.
    fn shown(source: &DefaultSource) -> (String, String) {
        let credentials = source.access.credentials.as_ref();
        match (&source.spec.github, &source.spec.oci) {
            (Some(github), None) => {
                let token = credentials.and_then(|known| known.password.clone());
                (format!("{} {}", github.owner, github.repo), token.unwrap_or_default())
            }
            (None, Some(oci)) => {
                let login = credentials.and_then(|known| known.login("registry.example.com", "kaas/cluster-stacks"));
                let login = match login {
                    None => String::new(),
                    Some(Login::Basic { username, password }) => format!("basic {username} {password}"),
                    Some(Login::Bearer(token)) => format!("bearer {token}"),
                    Some(Login::BearerOrBasic { token, username, password }) => {
                        format!("bearer {token} or basic {username} {password}")
                    }
                    Some(Login::Identity(_)) => "identity".to_owned(),
                };
                (oci.repository.clone(), login)
            }
            _ => Default::default(),
        }
    }

    #[test]
    fn the_variables_of_the_go_operator_name_a_source() {
        let oci = |more: &[(&'static str, &'static str)]| [&OCI[..], more].concat();
        let github = ("SovereignCloudStack cluster-stacks", "hunter2");
        let at = "registry.example.com/kaas/cluster-stacks";
        for (name, kind, variables, expected) in [
            ("github", None, GITHUB.to_vec(), github),
            ("without a token", None, GITHUB[..3].to_vec(), (github.0, "")),
            ("an empty token", None, [&GITHUB[..3], &[("GIT_ACCESS_TOKEN", "")]].concat(), (github.0, "")),
            ("oci", None, oci(&[]), (at, "")),
            ("oci with a token", None, oci(&[("OCI_ACCESS_TOKEN", "t")]), (at, "bearer dA==")),
            (
                "oci with both",
                None,
                oci(&[("OCI_ACCESS_TOKEN", "t"), ("OCI_USERNAME", "u"), ("OCI_PASSWORD", "p")]),
                (at, "bearer dA== or basic u p"),
            ),
            ("oci with a login", None, oci(&[("OCI_USERNAME", "u"), ("OCI_PASSWORD", "p")]), (at, "basic u p")),
            ("both", None, [&GITHUB[..], &OCI].concat(), github),
            ("both, told", Some(SourceKind::Oci), [&GITHUB[..], &OCI].concat(), (at, "")),
            (
                "a repository without its registry",
                None,
                vec![("OCI_REGISTRY", "registry.example.com"), ("OCI_REPOSITORY", "kaas/cluster-stacks")],
                (at, ""),
            ),
            (
                "another registry gets no credentials",
                None,
                vec![("OCI_REGISTRY", "ghcr.io"), OCI[1], ("OCI_ACCESS_TOKEN", "t")],
                (at, ""),
            ),
        ] {
            let source = read(kind, &variables).unwrap().unwrap();
            let (place, login) = shown(&source);
            assert_eq!((place.as_str(), login.as_str()), expected, "{name}");
            assert!(!format!("{source:?}").contains("hunter2"), "{name}");
        }
    }

    #[test]
    fn plain_http_is_a_choice() {
        let at = |registry: &str, repository: &str| {
            let source = read(None, &[("OCI_REGISTRY", registry), ("OCI_REPOSITORY", repository)]).unwrap().unwrap();
            let oci = source.spec.oci.unwrap();
            assert_eq!(oci.insecure, source.access.insecure);
            (oci.repository, oci.insecure)
        };
        let there = "registry.example.com/kaas/stacks";
        for (registry, repository, plain) in [
            ("registry.example.com", there, false),
            ("https://registry.example.com", "kaas/stacks", false),
            ("http://registry.example.com", "kaas/stacks", true),
            ("http://registry.example.com", there, true),
            ("http://registry.example.com/", "kaas/stacks", true),
            ("registry.example.com", "http://registry.example.com/kaas/stacks", true),
            ("http://other.example.com", there, false),
        ] {
            assert_eq!(at(registry, repository), (there.to_owned(), plain), "{registry} {repository}");
        }
    }

    #[test]
    fn without_variables_there_is_no_default() {
        assert_eq!(read(None, &[]), Ok(None));
        assert_eq!(read(None, &[("GIT_PROVIDER", ""), ("GIT_ACCESS_TOKEN", "t")]), Ok(None));
    }

    #[test]
    fn half_a_source_names_what_is_missing() {
        for (kind, variables, missing) in [
            (None, GITHUB[..2].to_vec(), "GIT_REPOSITORY_NAME"),
            (None, vec![OCI[1]], "OCI_REGISTRY"),
            (None, vec![OCI[0]], "OCI_REPOSITORY"),
            (Some(SourceKind::Github), OCI.to_vec(), "GIT_PROVIDER"),
        ] {
            assert_eq!(read(kind, &variables), Err(EnvironmentError::Missing(missing)));
        }
        let error = read(None, &[("GIT_PROVIDER", "gitea")]).unwrap_err().to_string();
        assert!(error.contains("gitea") && error.contains("github"), "{error}");
    }
}
