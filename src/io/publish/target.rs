//! Where releases are published to, as a user writes it.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::git::Git;
use super::registry::{Layout, Registry, push};
use super::remote::{Reach, Remote};
use super::{PublishError, Published, Release, directory};
use crate::core::source::{Scheme, SourceUrl};
use crate::io::registry::Repository;
use crate::io::source::SourceError;

/// Where releases go.
#[derive(Clone, Debug)]
pub enum Target {
    /// A directory with a directory for each release.
    Directory(PathBuf),
    /// A directory that is an OCI image layout.
    Layout(PathBuf),
    /// A repository of a registry: `host/repository`.
    Oci(String),
    /// A Git repository.
    Git(Git),
}

impl FromStr for Target {
    type Err = PublishError;

    /// Reads `dir:///path`, `layout:path`, `oci://host/repository`, `git+https://…`, `git+ssh://…`, `git+file:///…` and a plain path.
    fn from_str(text: &str) -> Result<Self, PublishError> {
        let bad = |problem: &str| PublishError::Target { target: redacted(text), problem: problem.to_owned() };
        if let Some(url) = text.strip_prefix("git+") {
            let url = SourceUrl::parse(url).map_err(|error| bad(&error.to_string()))?;
            if url.scheme() == Scheme::Http {
                return Err(bad("plain http shows a login to anybody on the way: write git+https://… or git+ssh://…"));
            }
            return Ok(Self::Git(Git { url, branch: None, path: None, ca_file: None }));
        }
        if let Some(repository) = text.strip_prefix("oci://") {
            let repository = repository.trim_end_matches('/');
            return match Repository::parse(repository) {
                Ok(_) => Ok(Self::Oci(repository.to_owned())),
                Err(SourceError::NoRepositoryName { problem, .. }) => {
                    Err(bad(&format!("{problem}: write oci://host/repository")))
                }
                Err(error) => Err(bad(&error.to_string())),
            };
        }
        let path = |path: &str| if path.is_empty() { Err(bad("its path is missing")) } else { Ok(PathBuf::from(path)) };
        if let Some(rest) = text.strip_prefix("layout:") {
            return Ok(Self::Layout(path(rest.strip_prefix("//").unwrap_or(rest))?));
        }
        if let Some(rest) = text.strip_prefix("dir:") {
            return Ok(Self::Directory(path(rest.strip_prefix("//").unwrap_or(rest))?));
        }
        if text.contains("://") {
            return Err(bad(
                "write oci://host/repository, dir:///path, layout:path, git+https://…, git+ssh://… or a path",
            ));
        }
        if let Some(instead) = meant(text) {
            return Err(bad(&format!("write {instead}, or dir:{} for a directory", redacted(text))));
        }
        Ok(Self::Directory(path(text)?))
    }
}

/// What a text may mean that looks like the address of a server and has no scheme: a directory would be made and nothing published.
fn meant(text: &str) -> Option<&'static str> {
    let (first, rest) = text.split_once('/').unwrap_or((text, ""));
    let is_host = first.contains('.') && !first.starts_with('.') && !rest.is_empty();
    match first.split_once(':') {
        Some((_, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => {
            Some("oci://host:port/repository")
        }
        Some(_) => Some("git+ssh://user@host/path"),
        None if is_host => Some("oci://host/repository or git+https://host/path"),
        None => None,
    }
}

fn redacted(text: &str) -> String {
    crate::core::source::redact(text)
}

/// Opens the repository of a registry, reached as `reach` says, or the one on disk; `scratch` is a directory for what is
/// downloaded.
pub fn open(target: &Target, reach: &Reach, scratch: &Path) -> Result<Option<Box<dyn Registry>>, PublishError> {
    match target {
        Target::Layout(path) => Ok(Some(Box::new(Layout::open(path)?))),
        Target::Oci(repository) => Ok(Some(Box::new(Remote::open(repository, reach, scratch)?))),
        Target::Directory(_) | Target::Git(_) => Ok(None),
    }
}

/// Publishes a release to a target. It is checked before anything is written.
pub async fn publish(
    target: &Target,
    registry: Option<&dyn Registry>,
    release: &Release,
) -> Result<Published, PublishError> {
    release.stack()?;
    // What nobody would read there goes nowhere: a name with a dot before it, two that differ in case.
    if !matches!(target, Target::Git(_)) {
        release.artifact().files()?;
    }
    match (target, registry) {
        (_, Some(registry)) => push(registry, &release.artifact()).await,
        (Target::Directory(path), None) => directory::write(path, release),
        (Target::Git(git), None) => git.publish(release),
        (Target::Layout(_) | Target::Oci(_), None) => {
            let problem = "it was not opened".to_owned();
            Err(PublishError::Target { target: format!("{target:?}"), problem })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_told_apart() {
        for (text, expected) in [
            ("out", "Directory(\"out\")"),
            ("./a.b/c", "Directory(\"./a.b/c\")"),
            ("../a:b", "Directory(\"../a:b\")"),
            ("dir:a.b/c", "Directory(\"a.b/c\")"),
            ("/srv/releases", "Directory(\"/srv/releases\")"),
            ("dir:///srv/releases", "Directory(\"/srv/releases\")"),
            ("layout:out", "Layout(\"out\")"),
            ("oci://registry.example.com/stacks", "Oci(\"registry.example.com/stacks\")"),
        ] {
            assert_eq!(format!("{:?}", text.parse::<Target>().unwrap()), expected);
        }
        let git = "git+https://user:secret@git.example.com/stacks.git".parse::<Target>();
        assert!(!format!("{git:?}").contains("secret"), "{git:?}");
        for text in [
            "oci://registry",
            "ftp://x/y",
            "dir:",
            "git+nonsense",
            "git+http://u:secret@x/y",
            "layout://",
            "https://a:secret@x/y",
            "oci://user:secret@host/x",
            "oci://host:99999/x",
            "git@github.com:a/b.git",
            "registry.example.com/platform/stacks",
            "localhost:5000/stacks",
        ] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains("is no target") && !error.contains("secret"), "{error}");
        }
    }
}
