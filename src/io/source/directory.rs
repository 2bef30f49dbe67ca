//! Releases from a directory: `<path>/<release>/` holds the assets, or the stack's directory as it lies in Git.
//!
//! Guarantees: nothing outside of the roots that the operator's flags name is read, also not through links; a link inside
//! of a release is refused.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::{Fetched, Listing, Source, SourceError, Tag, Wanted, assets};
use crate::core::bundle::CLUSTER_CLASS;
use crate::core::digest::hex;
use crate::core::files::FileTree;
use crate::core::limits::{Budget, Limits, check_path};
use crate::core::name::ReleaseName;
use crate::core::source::{AllowList, Refused};
use crate::core::verification::checksums;
use crate::core::verification::{NotVerified, Signer, Trust};

/// A directory with a directory for each release.
#[derive(Clone, Debug)]
pub struct DirectorySource {
    path: PathBuf,
    allow: AllowList,
    limits: Limits,
}

impl DirectorySource {
    /// The directory at `path`, if it may be read.
    ///
    /// # Errors
    /// No root that the flags name holds it.
    pub fn new(path: &str, allow: &AllowList, limits: Limits) -> Result<Self, Refused> {
        let path = PathBuf::from(path);
        if !allow.holds_path(&path) {
            return Err(Refused::Root { url: path.display().to_string() });
        }
        Ok(Self { path, allow: allow.clone(), limits })
    }

    fn url(&self) -> String {
        format!("file://{}", self.path.display())
    }

    async fn run<T: Send + 'static>(
        &self,
        action: &'static str,
        cancel: &CancellationToken,
        work: impl FnOnce(&Self) -> Result<T, SourceError> + Send + 'static,
    ) -> Result<T, SourceError> {
        let this = self.clone();
        let url = self.url();
        let task = tokio::task::spawn_blocking(move || work(&this));
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(SourceError::Cancelled { action, url }),
            result = task => result.unwrap_or_else(|error| {
                Err(SourceError::Local { action, url, problem: format!("a thread ended: {error}") })
            }),
        }
    }

    /// The directory with its links resolved, if a root still holds it.
    fn root(&self) -> Result<PathBuf, SourceError> {
        let missing = |error: std::io::Error| SourceError::NoRepository { url: self.url(), problem: error.to_string() };
        let path = fs::canonicalize(&self.path).map_err(missing)?;
        let roots = self.allow.roots().iter().filter_map(|root| fs::canonicalize(root).ok()).collect();
        if self.allow.with_roots(roots).holds_path(&path) {
            Ok(path)
        } else {
            Err(SourceError::Refused(Refused::Root { url: self.url() }))
        }
    }

    fn tags(&self) -> Result<Vec<Tag>, SourceError> {
        let action = "listing";
        let local = |error: std::io::Error| SourceError::Local { action, url: self.url(), problem: error.to_string() };
        let mut tags = Vec::new();
        for entry in fs::read_dir(self.root()?).map_err(local)? {
            let entry = entry.map_err(local)?;
            // Links are not followed, and a hidden directory is being written.
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.starts_with('.') || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            tags.push(Tag { name, revision: String::new() });
        }
        Ok(tags)
    }

    /// The files of a release and the digest over them.
    fn files(&self, tag: &Tag) -> Result<(FileTree, String), SourceError> {
        if tag.name.contains(['/', '\\']) || tag.name.starts_with('.') {
            return Err(layout(tag, &tag.name, "its name is no name of a directory"));
        }
        let directory = self.root()?.join(&tag.name);
        let mut files = FileTree::new();
        let mut budget = Budget::default();
        match fs::symlink_metadata(&directory) {
            Ok(metadata) if metadata.is_dir() => self.collect(tag, &directory, "", &mut files, &mut budget)?,
            _ => return Err(SourceError::NotFound { tag: tag.name.clone(), url: self.url() }),
        }
        let mut digest = Sha256::new();
        for (path, content) in &files {
            digest.update((path.len() as u64).to_be_bytes());
            digest.update(path);
            digest.update(Sha256::digest(content));
        }
        Ok((files, format!("sha256:{}", hex(&digest.finalize()))))
    }

    fn collect(
        &self,
        tag: &Tag,
        directory: &Path,
        prefix: &str,
        files: &mut FileTree,
        budget: &mut Budget,
    ) -> Result<(), SourceError> {
        let local = |error: std::io::Error| SourceError::Local {
            action: "reading",
            url: self.url(),
            problem: format!("{prefix}: {error}"),
        };
        for entry in fs::read_dir(directory).map_err(local)? {
            let entry = entry.map_err(local)?;
            let Ok(name) = entry.file_name().into_string() else {
                return Err(layout(tag, prefix, "a name in it is not valid UTF-8"));
            };
            let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
            check_path(&path, &self.limits).map_err(|error| layout(tag, &path, &error.to_string()))?;
            let metadata = fs::symlink_metadata(entry.path()).map_err(local)?;
            let too_large = |limit| SourceError::TooLarge { of: format!("release {}", tag.name), limit };
            if metadata.is_dir() {
                budget.add(&self.limits, &path, 0).map_err(too_large)?;
                self.collect(tag, &entry.path(), &path, files, budget)?;
            } else if metadata.is_file() {
                budget.add(&self.limits, &path, metadata.len()).map_err(too_large)?;
                let mut content = Vec::new();
                let file = fs::File::open(entry.path()).map_err(local)?;
                // Somebody may write to it meanwhile.
                file.take(metadata.len()).read_to_end(&mut content).map_err(local)?;
                files.insert(path, Bytes::from(content));
            } else {
                return Err(layout(tag, &path, "it is neither a file nor a directory"));
            }
        }
        Ok(())
    }

    fn fetch_now(&self, tag: &Tag, release: &ReleaseName, trust: Option<&Trust>) -> Result<Fetched, SourceError> {
        let (files, revision) = self.files(tag)?;
        if revision != tag.revision {
            let (tag, expected) = (tag.name.clone(), tag.revision.clone());
            return Err(SourceError::TagMoved { tag, expected, found: revision });
        }
        let as_in_git = files.contains_key(&format!("{CLUSTER_CLASS}/Chart.yaml"));
        let signer = signed(tag, release, trust, &files)?;
        let files = if as_in_git {
            files
        } else {
            let names: Vec<String> = files.keys().filter(|path| !path.contains('/')).cloned().collect();
            let wanted = assets::wanted(tag, release, &names)?;
            let assets: BTreeMap<String, Bytes> =
                wanted.into_iter().filter_map(|name| Some((name.clone(), files.get(&name)?.clone()))).collect();
            assets::stack(tag, release, &assets, &self.limits)?
        };
        let (path, component_ids) = (tag.name.clone(), BTreeMap::new());
        Ok(Fetched { url: self.url(), revision, path, files, component_ids, signer })
    }
}

fn layout(tag: &Tag, path: &str, problem: &str) -> SourceError {
    SourceError::Layout { tag: tag.name.clone(), path: path.to_owned(), problem: problem.to_owned() }
}

/// Checks the signed checksums that `trust` asks for against every file.
fn signed(
    tag: &Tag,
    release: &ReleaseName,
    trust: Option<&Trust>,
    files: &FileTree,
) -> Result<Option<Signer>, SourceError> {
    let Some(trust) = trust else { return Ok(None) };
    let refuse = |problem| SourceError::NotVerified { release: release.to_string(), problem };
    let Some(asked) = trust.checksums.as_ref().filter(|_| trust.git.is_none() && trust.cosign.is_none()) else {
        let kind = "a directory has no signatures but verify.checksums: ask for that alone";
        return Err(refuse(NotVerified::WrongKind(kind.to_owned())));
    };
    let unsigned = || refuse(NotVerified::Unsigned { what: format!("{}/{}", tag.name, asked.file) });
    let sums = files.get(&asked.file).ok_or_else(unsigned)?;
    let signature = checksums::signature_names(&asked.file).into_iter().find_map(|name| files.get(&name));
    let checked = checksums::verify(asked, sums, signature.ok_or_else(unsigned)?).map_err(refuse)?;
    let own =
        |path: &str| path == asked.file || checksums::signature_names(&asked.file).iter().any(|name| name == path);
    for (path, content) in files.iter().filter(|(path, _)| !own(path)) {
        checksums::check(&checked, path, content).map_err(refuse)?;
    }
    Ok(Some(checked.signer))
}

#[async_trait]
impl Source for DirectorySource {
    fn key(&self) -> String {
        format!("directory {}", self.path.display())
    }

    async fn list(&self, cancel: &CancellationToken) -> Result<Listing, SourceError> {
        Ok(Listing::new(self.run("listing", cancel, Self::tags).await?))
    }

    async fn resolve(&self, tag: &Tag, cancel: &CancellationToken) -> Result<Tag, SourceError> {
        let tag = tag.clone();
        self.run("reading", cancel, move |this| {
            let (_, revision) = this.files(&tag)?;
            Ok(Tag { revision, ..tag })
        })
        .await
    }

    async fn fetch(&self, wanted: &Wanted<'_>, cancel: &CancellationToken) -> Result<Fetched, SourceError> {
        let (tag, release, trust) = (wanted.tag.clone(), wanted.release.clone(), wanted.trust.cloned());
        self.run("reading", cancel, move |this| this.fetch_now(&tag, &release, trust.as_ref())).await
    }
}
