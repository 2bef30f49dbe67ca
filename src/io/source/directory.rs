//! Releases from a directory: `<path>/<release>/` holds the assets, or the stack's directory as it lies in Git.
//!
//! Guarantees: nothing outside of the roots that the operator's flags name is read, also not through links, nor when
//! somebody exchanges a name for one meanwhile; a link inside of a release is refused.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::PathBuf;

use async_trait::async_trait;
use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::rooted::{Directory, Entry};
use super::{Fetched, Listing, Source, SourceError, Tag, Wanted, assets};
use crate::core::bundle::{self, CLUSTER_CLASS};
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

    /// The directory, its links resolved, if a root still holds it.
    fn root(&self) -> Result<Directory, SourceError> {
        let missing = |error: std::io::Error| SourceError::NoRepository { url: self.url(), problem: error.to_string() };
        let path = fs::canonicalize(&self.path).map_err(missing)?;
        let mut roots = self.allow.roots().iter().filter_map(|root| fs::canonicalize(root).ok());
        let below = roots.find_map(|root| path.strip_prefix(&root).ok().map(|below| (root.clone(), below)));
        let Some((root, below)) = below else {
            return Err(SourceError::Refused(Refused::Link { url: self.url() }));
        };
        Directory::open(&root, below).map_err(missing)
    }

    fn tags(&self) -> Result<Vec<Tag>, SourceError> {
        let action = "listing";
        let local = |error: std::io::Error| SourceError::Local { action, url: self.url(), problem: error.to_string() };
        let mut tags = Vec::new();
        let root = self.root()?;
        for name in root.names().map_err(local)? {
            // Links are not followed, and a hidden directory is being written.
            let Ok(name) = name.map_err(local)?.into_string() else { continue };
            if name.starts_with('.') || !matches!(root.entry(name.as_ref()), Ok(Entry::Directory(_))) {
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
        let mut files = FileTree::new();
        let mut budget = Budget::default();
        match self.root()?.entry(tag.name.as_ref()) {
            Ok(Entry::Directory(directory)) => self.collect(tag, &directory, "", &mut files, &mut budget)?,
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
        directory: &Directory,
        prefix: &str,
        files: &mut FileTree,
        budget: &mut Budget,
    ) -> Result<(), SourceError> {
        let local = |error: std::io::Error| SourceError::Local {
            action: "reading",
            url: self.url(),
            problem: format!("{prefix}: {error}"),
        };
        for name in directory.names().map_err(local)? {
            let Ok(name) = name.map_err(local)?.into_string() else {
                return Err(layout(tag, prefix, "a name in it is not valid UTF-8"));
            };
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
            check_path(&path, &self.limits).map_err(|error| layout(tag, &path, &error.to_string()))?;
            let too_large = |limit| SourceError::TooLarge { of: format!("release {}", tag.name), limit };
            match directory.entry(name.as_ref()).map_err(local)? {
                Entry::Directory(inner) => {
                    budget.add(&self.limits, &path, 0).map_err(too_large)?;
                    self.collect(tag, &inner, &path, files, budget)?;
                }
                Entry::File(file) => {
                    let length = file.metadata().map_err(local)?.len();
                    budget.add(&self.limits, &path, length).map_err(too_large)?;
                    let mut content = Vec::new();
                    // Somebody may write to it meanwhile.
                    file.take(length).read_to_end(&mut content).map_err(local)?;
                    files.insert(path, Bytes::from(content));
                }
                Entry::Other => return Err(layout(tag, &path, "it is neither a file nor a directory")),
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
        let as_in_git = files.contains_key(&chart());
        let signer = signed(tag, release, trust, &files)?;
        let files = if as_in_git {
            files
        } else {
            let names: Vec<String> = files.keys().filter(|path| !path.contains('/')).cloned().collect();
            let unpacked = assets::wanted(tag, release, &names).and_then(|wanted| {
                let content = |name: String| Some((name.clone(), files.get(&name)?.clone()));
                let assets: BTreeMap<String, Bytes> = wanted.into_iter().filter_map(content).collect();
                assets::stack(tag, release, &assets, &self.limits)
            });
            unpacked.map_err(|error| error.signed_by(signer.as_ref()))?
        };
        let (path, component_ids) = (tag.name.clone(), BTreeMap::new());
        Ok(Fetched { url: self.url(), revision, path, files, component_ids, signer })
    }
}

/// What a stack has as it lies in Git.
fn chart() -> String {
    format!("{CLUSTER_CLASS}/Chart.yaml")
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
    let names = checksums::signature_names(&asked.file);
    let signatures: Vec<&[u8]> = names.iter().filter_map(|name| files.get(name)).map(AsRef::as_ref).collect();
    if signatures.is_empty() {
        return Err(unsigned());
    }
    let checked = checksums::verify_any(asked, sums, signatures).map_err(refuse)?;
    let own = |path: &str| path == asked.file || names.iter().any(|name| name == path);
    for (path, content) in files.iter().filter(|(path, _)| !own(path)) {
        checksums::check(&checked, path, content).map_err(refuse)?;
    }
    let (what, mut signed) = (format!("{}/{}", tag.name, asked.file), checked.names());
    if signed.contains(&chart()) {
        if let Some(missing) = signed.iter().find(|path| !own(path) && !files.contains_key(*path)) {
            let problem = format!("it is of a release with {missing}, which is not there: copy all of it");
            return Err(refuse(NotVerified::Invalid { what, problem }));
        }
        bundle::of_release(release, files).map_err(|problem| refuse(NotVerified::Invalid { what, problem }))?;
    } else {
        signed.retain(|path| !path.contains('/'));
        let there: Vec<String> = files.keys().cloned().collect();
        assets::complete(&what, tag, release, &signed, &there).map_err(refuse)?;
    }
    Ok(Some(checked.signer))
}

#[async_trait]
impl Source for DirectorySource {
    fn key(&self) -> String {
        format!("directory {}", self.path.display())
    }

    fn host(&self) -> String {
        self.path.display().to_string()
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
