//! One conversation with a repository, on a thread of its own.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use git2::{Commit, ErrorCode, ObjectType, Oid, Reference, Repository, RepositoryOpenFlags, Tree};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::super::http::Http;
use super::super::{Access, Fetched, SourceError, Tag};
use super::remote;
use super::tree::Reader;
use crate::core::limits::{Limits, TooLarge};
use crate::core::source::{AllowList, Refused, SourceUrl, permitted_address};
use crate::core::verification::git::{Subject, verify};
use crate::core::verification::{NotVerified, Signer, Trust};

const TAGS: &str = "refs/tags/";
/// Where a commit is put that is fetched by its id.
const REVISION: &str = "refs/clusterstack/revision";
/// What libgit2 makes of an error of the server in answer to what is wanted.
const REFUSALS: [&str; 3] = ["unexpected packet type", "unexpected pkt type", "not our ref"];
/// How many tags a repository may have.
const MAX_TAGS: usize = 200_000;
/// How many tags of tags may lead to a commit.
const MAX_NESTED: usize = 8;
const NESTED: &str = "it is a tag of a tag of a tag, and so on";
/// How many repositories may borrow objects of one another in a row, as in Git.
const ALTERNATES: usize = 5;
/// How many files and directories of a repository on our own disk are looked at for links.
const MAX_ENTRIES: usize = 100_000;
/// How large a tag or a commit may be, in bytes.
const MAX_OBJECT: usize = 1024 * 1024;
/// How large one directory of a tree may be, in bytes: enough for more names than a release may have.
const MAX_TREE: usize = 4 * 1024 * 1024;

/// What a conversation needs.
pub(super) struct Session {
    pub(super) action: &'static str,
    pub(super) url: SourceUrl,
    pub(super) access: Arc<Access>,
    pub(super) allow: AllowList,
    pub(super) scratch: PathBuf,
    pub(super) limits: Limits,
    pub(super) stop: CancellationToken,
    /// By which https is spoken, made once per source.
    pub(super) http: Result<Http, SourceError>,
    pub(super) runtime: Handle,
}

impl Session {
    /// The client for http(s).
    pub(super) fn http(&self) -> Result<&Http, SourceError> {
        self.http.as_ref().map_err(Clone::clone)
    }

    /// The addresses of an SSH host. Refuses one whose name leads to the operator's machine.
    pub(super) fn addresses(&self) -> Result<Vec<SocketAddr>, SourceError> {
        let host = self.url.host().trim_matches(['[', ']']);
        let unknown = |error: std::io::Error| SourceError::Unreachable {
            action: self.action,
            url: self.url.redacted(),
            problem: error.to_string(),
        };
        let addresses: Vec<_> = (host, self.url.port()).to_socket_addrs().map_err(unknown)?.collect();
        for address in &addresses {
            permitted_address(&self.url, address.ip(), &self.allow)?;
        }
        Ok(addresses)
    }

    /// The tags, peeled.
    pub(super) fn list(&self) -> Result<Vec<Tag>, SourceError> {
        let tags = if let Some(path) = self.url.local_path() {
            self.local_tags(&self.open(&path)?)?
        } else {
            peeled(remote::list(self)?)
        };
        if tags.len() > MAX_TAGS {
            let limit = TooLarge { what: "the number of tags".to_owned(), limit: MAX_TAGS as u64 };
            return Err(SourceError::TooLarge { of: self.url.redacted(), limit });
        }
        Ok(tags)
    }

    /// The stack at a tag, in the first of `places` that holds one.
    pub(super) fn fetch(&self, tag: &Tag, places: &[String], trust: Option<&Trust>) -> Result<Fetched, SourceError> {
        let name = format!("{TAGS}{}", tag.name);
        // A name with these would be a pattern when it is fetched.
        if !Reference::is_valid_name(&name) || tag.name.contains(['*', ':']) {
            return Err(layout(tag, "tag", "its name is no name of a Git tag"));
        }
        if let Some(path) = self.url.local_path() {
            return self.read(&self.open(&path)?, &name, tag, places, trust);
        }
        let scratch = remote::fetch(self, &name, &name)?;
        self.read(&scratch.repository, &name, tag, places, trust)
    }

    /// The stack at a tag's commit, whatever the tag names now.
    pub(super) fn fetch_revision(
        &self,
        tag: &Tag,
        places: &[String],
        trust: Option<&Trust>,
    ) -> Result<Fetched, SourceError> {
        let id = Oid::from_str(&tag.revision).map_err(|_| layout(tag, "tag", "its revision is no id of a commit"))?;
        let read = |repository: &Repository| {
            let objects = repository.odb().map_err(|error| self.local(&error))?;
            if !objects.exists(id) {
                return Err(self.gone(tag, "the repository has no such commit"));
            }
            self.weigh(repository, id)?;
            let commit = repository.find_commit(id).map_err(|error| match error.code() {
                ErrorCode::NotFound => self.gone(tag, "the repository has no such commit"),
                _ => self.local(&error),
            })?;
            self.stack(repository, &commit, None, tag, places, trust)
        };
        if let Some(path) = self.url.local_path() {
            return read(&self.open(&path)?);
        }
        let scratch = remote::fetch(self, &tag.revision, REVISION).map_err(|error| match &error {
            SourceError::Unreachable { problem, .. } if problem.contains("cannot fetch a specific object") => {
                self.gone(tag, "the server gives no commits by their ids (uploadpack.allowReachableSHA1InWant)")
            }
            // libgit2 has no words for what a server says of a commit that it does not give.
            SourceError::Unreachable { problem, .. } if REFUSALS.iter().any(|text| problem.contains(text)) => {
                self.gone(tag, "the server does not give this commit")
            }
            _ => error,
        })?;
        read(&scratch.repository)
    }

    fn gone(&self, tag: &Tag, problem: &str) -> SourceError {
        let (revision, url) = (tag.revision.clone(), self.url.redacted());
        SourceError::RevisionGone { revision, url, problem: problem.to_owned() }
    }

    fn read(
        &self,
        repository: &Repository,
        name: &str,
        tag: &Tag,
        places: &[String],
        trust: Option<&Trust>,
    ) -> Result<Fetched, SourceError> {
        let reference = match repository.find_reference(name) {
            Ok(reference) => reference,
            Err(error) if error.code() == ErrorCode::NotFound => {
                return Err(SourceError::NotFound { tag: tag.name.clone(), url: self.url.redacted() });
            }
            Err(error) => return Err(self.local(&error)),
        };
        let (id, kind) = self.peel(repository, &reference, &tag.name)?;
        let found = id.to_string();
        if found != tag.revision {
            let (tag, expected) = (tag.name.clone(), tag.revision.clone());
            return Err(SourceError::TagMoved { tag, expected, found });
        }
        if kind != ObjectType::Commit {
            return Err(layout(tag, "tag", "it points at no commit"));
        }
        let commit = repository.find_commit(id).map_err(|error| self.local(&error))?;
        self.stack(repository, &commit, Some(&reference), tag, places, trust)
    }

    /// The stack at a commit, to which `reference` leads where there is one.
    fn stack(
        &self,
        repository: &Repository,
        commit: &Commit<'_>,
        reference: Option<&Reference<'_>>,
        tag: &Tag,
        places: &[String],
        trust: Option<&Trust>,
    ) -> Result<Fetched, SourceError> {
        let revision = commit.id().to_string();
        let signed = trust.map(|trust| self.signer(repository, reference, &revision, tag, trust));
        let signer = signed.transpose()?;
        let tree = self.tree(repository, commit.tree_id())?;
        let reader = Reader { session: self, repository, tag: &tag.name };
        let found = reader.stack(&tree, places).and_then(|stack| Ok((reader.files(&stack.tree)?, stack)));
        let (files, stack) = found.map_err(|error| error.signed_by(signer.as_ref()))?;
        let (url, component_ids) = (self.url.redacted(), stack.component_ids);
        Ok(Fetched { url, revision, path: stack.path, files, component_ids, signer })
    }

    /// Who signed, before anything is read but the tag and the commit.
    fn signer(
        &self,
        repository: &Repository,
        reference: Option<&Reference<'_>>,
        revision: &str,
        tag: &Tag,
        trust: &Trust,
    ) -> Result<Signer, SourceError> {
        let refuse = |problem| SourceError::NotVerified { release: tag.name.clone(), problem };
        let Some(asked) = trust.git.as_ref().filter(|_| trust.cosign.is_none() && trust.checksums.is_none()) else {
            let kind = "source git has no signatures but those of Git: ask for verify.git alone";
            return Err(refuse(NotVerified::WrongKind(kind.to_owned())));
        };
        let local = |error: git2::Error| self.local(&error);
        let resolved = reference.map(Reference::resolve).transpose().map_err(local)?;
        let mut id = resolved.and_then(|reference| reference.target());
        let mut tags = Vec::new();
        while let Some(object) = id.filter(|id| id.to_string() != revision) {
            if tags.len() == MAX_NESTED {
                return Err(layout(tag, "tag", NESTED));
            }
            tags.push(self.object(repository, object, tag)?);
            id = repository.find_tag(object).ok().map(|tag| tag.target_id());
        }
        let commit = Oid::from_str(revision).map_err(local)?;
        let commit = self.object(repository, commit, tag)?;
        verify(asked, &Subject { tag: &tag.name, tags: &tags, commit: &commit, revision }).map_err(refuse)
    }

    /// A tag or commit as it is stored.
    fn object(&self, repository: &Repository, id: Oid, tag: &Tag) -> Result<Vec<u8>, SourceError> {
        let local = |error: git2::Error| self.local(&error);
        let kind = self.weigh(repository, id)?;
        if !matches!(kind, ObjectType::Tag | ObjectType::Commit) {
            return Err(layout(tag, "tag", "it points at no commit"));
        }
        let objects = repository.odb().map_err(local)?;
        Ok(objects.read(id).map_err(local)?.data().to_vec())
    }

    /// What kind an object is, before libgit2 makes it whole: what says how large it is weighs nothing. Files are weighed
    /// where they are counted.
    fn weigh(&self, repository: &Repository, id: Oid) -> Result<ObjectType, SourceError> {
        let (size, kind) =
            repository.odb().and_then(|objects| objects.read_header(id)).map_err(|error| self.local(&error))?;
        let (name, limit) = match kind {
            ObjectType::Tree => ("directory", MAX_TREE),
            ObjectType::Commit => ("commit", MAX_OBJECT),
            ObjectType::Tag => ("tag", MAX_OBJECT),
            ObjectType::Blob | ObjectType::Any => return Ok(kind),
        };
        if size > limit {
            let limit = TooLarge { what: "its size in bytes".to_owned(), limit: limit as u64 };
            return Err(SourceError::TooLarge { of: format!("{name} {id} of {}", self.url.redacted()), limit });
        }
        Ok(kind)
    }

    /// A directory that is not too large.
    pub(super) fn tree<'r>(&self, repository: &'r Repository, id: Oid) -> Result<Tree<'r>, SourceError> {
        self.weigh(repository, id)?;
        repository.find_tree(id).map_err(|error| self.local(&error))
    }

    /// What a tag leads to in the end, and its kind.
    fn peel(
        &self,
        repository: &Repository,
        reference: &Reference<'_>,
        name: &str,
    ) -> Result<(Oid, ObjectType), SourceError> {
        let mut id = self.target(reference)?;
        for _ in 0..=MAX_NESTED {
            match self.weigh(repository, id)? {
                ObjectType::Tag => id = repository.find_tag(id).map_err(|error| self.local(&error))?.target_id(),
                kind => return Ok((id, kind)),
            }
        }
        let tag = Tag { name: name.to_owned(), revision: String::new() };
        Err(layout(&tag, "tag", NESTED))
    }

    fn target(&self, reference: &Reference<'_>) -> Result<Oid, SourceError> {
        let resolved = reference.resolve().map_err(|error| self.local(&error))?;
        resolved.target().ok_or_else(|| self.disk(&"a reference leads to nothing"))
    }

    /// Opens a repository on our own disk. Its path was found to be under a permitted root as it is written; here that
    /// is asked again without symbolic links.
    fn open(&self, path: &Path) -> Result<Repository, SourceError> {
        let missing = |problem: String| SourceError::NoRepository { url: self.url.redacted(), problem };
        let path = fs::canonicalize(path).map_err(|error| missing(error.to_string()))?;
        let roots = self.allow.roots().iter().filter_map(|root| fs::canonicalize(root).ok()).collect();
        let allow = self.allow.with_roots(roots);
        let refused = || SourceError::Refused(Refused::Root { url: self.url.redacted() });
        if !allow.holds_path(&path) {
            return Err(refused());
        }
        let flags = RepositoryOpenFlags::NO_SEARCH;
        let repository = Repository::open_ext(&path, flags, &[] as &[&OsStr]).map_err(|error| match error.code() {
            ErrorCode::Owner => missing("it belongs to another user of the operator's machine".to_owned()),
            _ => missing(error.message().to_owned()),
        })?;
        // A work tree's `.git` may be a file that points elsewhere.
        let inside = |path: &Path| fs::canonicalize(path).is_ok_and(|path| allow.holds_path(&path));
        let objects = repository.commondir().join("objects");
        let mut left = MAX_ENTRIES;
        let is_inside = inside(repository.path())
            && inside(repository.commondir())
            && stays(&objects, &inside, ALTERNATES)
            && [repository.path(), repository.commondir()].into_iter().all(|directory| {
                ["HEAD", "packed-refs", "config", "refs", "shallow"]
                    .iter()
                    .all(|name| links_stay(&directory.join(name), &inside, &mut left))
            })
            && links_stay(&objects, &inside, &mut left);
        let led_out = || SourceError::Refused(Refused::Link { url: self.url.redacted() });
        if is_inside { Ok(repository) } else { Err(led_out()) }
    }

    fn local_tags(&self, repository: &Repository) -> Result<Vec<Tag>, SourceError> {
        let mut tags = Vec::new();
        for reference in repository.references_glob("refs/tags/*").map_err(|error| self.local(&error))? {
            self.go_on()?;
            let reference = reference.map_err(|error| self.local(&error))?;
            let Ok(Some(name)) = reference.name().map(|name| name.strip_prefix(TAGS)) else { continue };
            let revision = match self.peel(repository, &reference, name) {
                Ok((id, _)) => id,
                // The others are as good as before: who fetches this one is told.
                Err(SourceError::TooLarge { .. } | SourceError::Layout { .. }) => self.target(&reference)?,
                Err(error) => return Err(error),
            };
            tags.push(Tag { name: name.to_owned(), revision: revision.to_string() });
        }
        Ok(tags)
    }

    /// An error if the conversation was called off.
    pub(super) fn go_on(&self) -> Result<(), SourceError> {
        if self.stop.is_cancelled() {
            return Err(SourceError::Cancelled { action: self.action, url: self.url.redacted() });
        }
        Ok(())
    }

    /// Trouble with what is on our own disk.
    pub(super) fn local(&self, error: &git2::Error) -> SourceError {
        self.disk(&error.message())
    }

    /// Trouble with our own disk.
    pub(super) fn disk(&self, problem: &dyn Display) -> SourceError {
        SourceError::Local { action: self.action, url: self.url.redacted(), problem: problem.to_string() }
    }
}

/// Whether no symbolic link at a path, or in the directories below it, leads to what is not `inside`. `left` is how many
/// entries are looked at; whoever has more does not stay.
fn links_stay(path: &Path, inside: &impl Fn(&Path) -> bool, left: &mut usize) -> bool {
    let Some(rest) = left.checked_sub(1) else { return false };
    *left = rest;
    let Ok(metadata) = path.symlink_metadata() else { return true };
    if metadata.is_symlink() {
        let Ok(target) = fs::canonicalize(path) else { return true };
        return inside(&target) && links_stay(&target, inside, left);
    }
    if !metadata.is_dir() {
        return true;
    }
    let Ok(entries) = fs::read_dir(path) else { return true };
    entries.flatten().all(|entry| {
        let is_plain_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        is_plain_file || links_stay(&entry.path(), inside, left)
    })
}

/// Whether a directory of objects, and those that its `info/alternates` names, lie `inside`; `depth` of them in a row.
fn stays(objects: &Path, inside: &impl Fn(&Path) -> bool, depth: usize) -> bool {
    let lies = |path: &Path| !path.exists() || inside(path);
    if !lies(objects) || !lies(&objects.join("pack")) {
        return false;
    }
    let mut listed = Vec::new();
    let read = fs::File::open(objects.join("info/alternates"))
        .and_then(|file| file.take(MAX_OBJECT as u64).read_to_end(&mut listed));
    let text = match read {
        Ok(_) => String::from_utf8_lossy(&listed).into_owned(),
        Err(error) => return error.kind() == ErrorKind::NotFound,
    };
    let others = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    // Git reads a quoted path as C does: nobody needs one here.
    let is_good = |line: &str| !line.starts_with('"') && depth > 0 && stays(&objects.join(line), inside, depth - 1);
    others.into_iter().all(is_good)
}

fn layout(tag: &Tag, path: &str, problem: &str) -> SourceError {
    SourceError::Layout { tag: tag.name.clone(), path: path.to_owned(), problem: problem.to_owned() }
}

/// References as a server lists them, an annotated tag followed by `<name>^{}` with what it points at, as tags.
fn peeled(references: Vec<(String, String)>) -> Vec<Tag> {
    let mut tags = std::collections::BTreeMap::new();
    for (name, revision) in references {
        let Some(name) = name.strip_prefix(TAGS) else { continue };
        match name.strip_suffix("^{}") {
            Some(name) => tags.insert(name.to_owned(), revision),
            None => Some(tags.entry(name.to_owned()).or_insert(revision).clone()),
        };
    }
    tags.into_iter().map(|(name, revision)| Tag { name, revision }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotated_tags_are_peeled_in_either_order() {
        let list = |names: &[(&str, &str)]| {
            peeled(names.iter().map(|(name, id)| ((*name).to_owned(), (*id).to_owned())).collect())
        };
        let tag = |name: &str, revision: &str| Tag { name: name.to_owned(), revision: revision.to_owned() };
        let tags = list(&[
            ("HEAD", "0"),
            ("refs/heads/main", "0"),
            ("refs/tags/a", "1"),
            ("refs/tags/a^{}", "2"),
            ("refs/tags/b", "3"),
        ]);
        assert_eq!(tags, [tag("a", "2"), tag("b", "3")]);
        assert_eq!(list(&[("refs/tags/a^{}", "2"), ("refs/tags/a", "1")]), [tag("a", "2")]);
    }
}
