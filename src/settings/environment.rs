//! The operator-wide source, from the variables that the Go operator reads: its deployment moves over unchanged.

use clap::ValueEnum;
use thiserror::Error;

use crate::api::source::{GithubSource, OciSource, Source};
use crate::io::source::{Access, Credentials};

/// Kinds of source that the environment can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SourceKind {
    /// `GIT_PROVIDER=github`, `GIT_ORG_NAME`, `GIT_REPOSITORY_NAME`, `GIT_ACCESS_TOKEN`.
    Github,
    /// `OCI_REGISTRY`, `OCI_REPOSITORY`, and `OCI_ACCESS_TOKEN` or `OCI_USERNAME` and `OCI_PASSWORD`.
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
                Ok(Some(Self { spec, access: access(None, get("GIT_ACCESS_TOKEN")) }))
            }
            SourceKind::Oci => {
                let registry = needed("OCI_REGISTRY")?;
                let repository = in_registry(&registry, &needed("OCI_REPOSITORY")?);
                // The credentials are the registry's: another one never sees them.
                let is_there = host(&repository) == host(&registry);
                let login = get("OCI_USERNAME").zip(get("OCI_PASSWORD"));
                let (user, password) = match (get("OCI_ACCESS_TOKEN"), login) {
                    _ if !is_there => (None, None),
                    (Some(token), _) => (None, Some(token)),
                    (None, Some((user, password))) => (Some(user), Some(password)),
                    (None, None) => (None, None),
                };
                let spec = Source { oci: Some(OciSource { repository, ..OciSource::default() }), ..Source::default() };
                Ok(Some(Self { spec, access: access(user, password) }))
            }
        }
    }
}

fn access(username: Option<String>, password: Option<String>) -> Access {
    let credentials =
        password.map(|password| Credentials { username, password: Some(password), ..Credentials::default() });
    Access { credentials, ..Access::default() }
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

    /// Place, user and password.
    fn shown(source: &DefaultSource) -> (String, Option<&str>, Option<&str>) {
        let place = match (&source.spec.github, &source.spec.oci) {
            (Some(github), None) => format!("{} {}", github.owner, github.repo),
            (None, Some(oci)) => oci.repository.clone(),
            _ => String::new(),
        };
        let credentials = source.access.credentials.as_ref();
        (place, credentials.and_then(|c| c.username.as_deref()), credentials.and_then(|c| c.password.as_deref()))
    }

    #[test]
    fn the_variables_of_the_go_operator_name_a_source() {
        let oci = |more: &[(&'static str, &'static str)]| [&OCI[..], more].concat();
        let github = ("SovereignCloudStack cluster-stacks", None, Some("hunter2"));
        let at = "registry.example.com/kaas/cluster-stacks";
        for (name, kind, variables, expected) in [
            ("github", None, GITHUB.to_vec(), github),
            ("without a token", None, GITHUB[..3].to_vec(), (github.0, None, None)),
            ("an empty token", None, [&GITHUB[..3], &[("GIT_ACCESS_TOKEN", "")]].concat(), (github.0, None, None)),
            ("oci", None, oci(&[]), (at, None, None)),
            ("oci with a token", None, oci(&[("OCI_ACCESS_TOKEN", "t")]), (at, None, Some("t"))),
            (
                "oci with a login",
                None,
                oci(&[("OCI_USERNAME", "u"), ("OCI_PASSWORD", "p")]),
                (at, Some("u"), Some("p")),
            ),
            ("both", None, [&GITHUB[..], &OCI].concat(), github),
            ("both, told", Some(SourceKind::Oci), [&GITHUB[..], &OCI].concat(), (at, None, None)),
            (
                "a repository without its registry",
                None,
                vec![("OCI_REGISTRY", "registry.example.com"), ("OCI_REPOSITORY", "kaas/cluster-stacks")],
                (at, None, None),
            ),
            (
                "another registry gets no credentials",
                None,
                vec![("OCI_REGISTRY", "ghcr.io"), OCI[1], ("OCI_ACCESS_TOKEN", "t")],
                (at, None, None),
            ),
        ] {
            let source = read(kind, &variables).unwrap().unwrap();
            let (place, user, password) = shown(&source);
            assert_eq!((place.as_str(), user, password), expected, "{name}");
            assert!(!format!("{source:?}").contains("hunter2"), "{name}");
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
