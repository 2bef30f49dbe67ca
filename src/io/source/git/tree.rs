//! The files of a stack in a commit's tree.

use std::collections::BTreeMap;

use bytes::Bytes;
use git2::{ObjectType, Repository, Tree, TreeEntry};

use super::super::SourceError;
use super::session::Session;
use crate::core::bundle::{CLUSTER_ADDON, CLUSTER_CLASS};
use crate::core::files::{FileTree, below};
use crate::core::limits::{BadPath, Budget, TooLarge, check_path};

const LINK: i32 = 0o120_000;
const SUBMODULE: &str = "it is a submodule, and submodules are not fetched";
/// How a file begins that stands for one of Git LFS, and how large such a file is at most (its specification).
const LFS: &[u8] = b"version https://git-lfs.github.com/spec/v1\n";
const LARGEST_POINTER: usize = 1024;
/// How many links may be followed one after the other.
const MAX_HOPS: usize = 8;

/// Reads trees of one tag.
pub(super) struct Reader<'r> {
    pub(super) session: &'r Session,
    pub(super) repository: &'r Repository,
    pub(super) tag: &'r str,
}

/// A stack that was found.
pub(super) struct Stack<'r> {
    pub(super) path: String,
    pub(super) tree: Tree<'r>,
    pub(super) component_ids: BTreeMap<String, String>,
}

/// What a tree holds, before links are followed.
#[derive(Default)]
struct Found {
    files: FileTree,
    links: BTreeMap<String, String>,
    budget: Budget,
}

impl<'r> Reader<'r> {
    /// The first of `places` that holds a cluster-class chart.
    pub(super) fn stack(&self, root: &Tree<'r>, places: &[String]) -> Result<Stack<'r>, SourceError> {
        let mut submodule = None;
        for path in places {
            let (tree, class) = match self.place(root, path) {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                // Another place may hold the stack.
                Err(error @ SourceError::Layout { .. }) => {
                    submodule.get_or_insert(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if class.get_name("Chart.yaml").is_none() {
                continue;
            }
            let component_ids = [CLUSTER_CLASS, CLUSTER_ADDON]
                .into_iter()
                .filter_map(|name| Some((name.to_owned(), tree.get_name(name)?.id().to_string())))
                .collect();
            return Ok(Stack { path: path.clone(), tree, component_ids });
        }
        if let Some(submodule) = submodule {
            return Err(submodule);
        }
        let show = |path: &String| if path.is_empty() { "the root".to_owned() } else { path.clone() };
        Err(SourceError::NoStack { tag: self.tag.to_owned(), tried: places.iter().map(show).collect() })
    }

    /// The directory at `path` with the one of its class chart.
    fn place(&self, root: &Tree<'r>, path: &str) -> Result<Option<(Tree<'r>, Tree<'r>)>, SourceError> {
        let Some(tree) = self.descend(root, path)? else { return Ok(None) };
        Ok(self.child(&tree, CLUSTER_CLASS)?.map(|class| (tree, class)))
    }

    fn descend(&self, root: &Tree<'r>, path: &str) -> Result<Option<Tree<'r>>, SourceError> {
        let mut tree = root.clone();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            match self.child(&tree, part)? {
                Some(child) => tree = child,
                None => return Ok(None),
            }
        }
        Ok(Some(tree))
    }

    fn child(&self, tree: &Tree<'_>, name: &str) -> Result<Option<Tree<'r>>, SourceError> {
        let Some(entry) = tree.get_name(name) else { return Ok(None) };
        if entry.kind() == Some(ObjectType::Commit) {
            return Err(self.layout(name, SUBMODULE));
        }
        if entry.kind() != Some(ObjectType::Tree) {
            return Ok(None);
        }
        self.session.tree(self.repository, entry.id()).map(Some)
    }

    /// All files of the stack, links within it followed.
    pub(super) fn files(&self, stack: &Tree<'_>) -> Result<FileTree, SourceError> {
        let mut found = Found::default();
        self.walk(stack, "", &mut found)?;
        self.follow(&mut found)?;
        Ok(found.files)
    }

    fn walk(&self, tree: &Tree<'_>, at: &str, found: &mut Found) -> Result<(), SourceError> {
        for entry in tree {
            self.session.go_on()?;
            let name = std::str::from_utf8(entry.name_bytes()).map_err(|_| self.layout(at, "a name is not UTF-8"))?;
            let path = if at.is_empty() { name.to_owned() } else { format!("{at}/{name}") };
            self.check(&path)?;
            match entry.kind() {
                Some(ObjectType::Tree) => {
                    self.count(found, &path, 0)?;
                    let tree = self.session.tree(self.repository, entry.id())?;
                    self.walk(&tree, &path, found)?;
                }
                Some(ObjectType::Blob) => self.blob(&entry, path, found)?,
                Some(ObjectType::Commit) => {
                    return Err(self.layout(&path, SUBMODULE));
                }
                _ => return Err(self.layout(&path, "it is neither file nor directory")),
            }
        }
        Ok(())
    }

    fn blob(&self, entry: &TreeEntry<'_>, path: String, found: &mut Found) -> Result<(), SourceError> {
        let local = |error: git2::Error| self.session.local(&error);
        let (size, _) = self.repository.odb().and_then(|odb| odb.read_header(entry.id())).map_err(local)?;
        self.count(found, &path, size as u64)?;
        let blob = self.repository.find_blob(entry.id()).map_err(local)?;
        if entry.filemode() == LINK {
            let target =
                std::str::from_utf8(blob.content()).map_err(|_| self.layout(&path, "its target is not UTF-8"))?;
            found.links.insert(path, target.to_owned());
        } else if is_lfs_pointer(blob.content()) {
            return Err(
                self.layout(&path, "it is a pointer of Git LFS, which is not followed: put the file itself into Git")
            );
        } else {
            found.files.insert(path, Bytes::copy_from_slice(blob.content()));
        }
        Ok(())
    }

    /// Puts the files that links point at in the links' places. What points out of the stack is refused, as nothing
    /// outside of it belongs to the release.
    fn follow(&self, found: &mut Found) -> Result<(), SourceError> {
        let mut open = std::mem::take(&mut found.links);
        for _ in 0..MAX_HOPS {
            let mut later = BTreeMap::new();
            while let Some((link, target)) = open.pop_first() {
                let path = self.target(&link, &target)?;
                // A directory is complete when no link in it is left.
                let inside = format!("{path}/");
                let waits = open.keys().chain(later.keys()).any(|other| other.starts_with(&inside));
                if waits || !self.copy(&link, &path, found)? {
                    later.insert(link, target);
                }
            }
            open = later;
            if open.is_empty() {
                return Ok(());
            }
        }
        let link = open.into_keys().next().unwrap_or_default();
        Err(self.layout(&link, "it is a symbolic link to nothing in the stack, or to itself"))
    }

    /// Copies what is at `from` to `link`; whether there was anything.
    fn copy(&self, link: &str, from: &str, found: &mut Found) -> Result<bool, SourceError> {
        if format!("{link}/").starts_with(&format!("{from}/")) || from.is_empty() {
            return Err(self.layout(link, "it is a symbolic link to a directory that holds it"));
        }
        let copies: FileTree = if let Some(content) = found.files.get(from) {
            BTreeMap::from([(link.to_owned(), content.clone())])
        } else {
            let files = below(&found.files, from).into_iter();
            files.map(|(path, content)| (format!("{link}/{path}"), content)).collect()
        };
        for (path, content) in &copies {
            self.check(path)?;
            self.count(found, path, content.len() as u64)?;
        }
        let any = !copies.is_empty();
        found.files.extend(copies);
        Ok(any)
    }

    /// The path in the stack that a link points at.
    fn target(&self, link: &str, target: &str) -> Result<String, SourceError> {
        let outside = || self.layout(link, "it is a symbolic link that leaves the stack");
        if target.starts_with('/') {
            return Err(outside());
        }
        let mut parts: Vec<&str> = link.split('/').collect();
        parts.pop();
        for part in target.split('/').filter(|part| !part.is_empty() && *part != ".") {
            if part == ".." {
                parts.pop().ok_or_else(outside)?;
            } else {
                parts.push(part);
            }
        }
        Ok(parts.join("/"))
    }

    fn check(&self, path: &str) -> Result<(), SourceError> {
        match check_path(path, &self.session.limits) {
            Ok(_) => Ok(()),
            Err(BadPath::TooLarge(limit)) => Err(self.too_large(limit)),
            Err(other) => Err(self.layout(path, &other.to_string())),
        }
    }

    fn count(&self, found: &mut Found, path: &str, size: u64) -> Result<(), SourceError> {
        found.budget.add(&self.session.limits, path, size).map_err(|limit| self.too_large(limit))
    }

    fn too_large(&self, limit: TooLarge) -> SourceError {
        SourceError::TooLarge { of: format!("the stack at tag {}", self.tag), limit }
    }

    fn layout(&self, path: &str, problem: &str) -> SourceError {
        SourceError::Layout { tag: self.tag.to_owned(), path: path.to_owned(), problem: problem.to_owned() }
    }
}

/// Whether a file stands for one that Git LFS holds: taken as it is, a chart would be made of it that is none.
fn is_lfs_pointer(content: &[u8]) -> bool {
    content.len() < LARGEST_POINTER && content.starts_with(LFS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_of_git_lfs_is_known() {
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
        for (content, expected) in [
            (pointer.to_owned(), true),
            (format!("# {pointer}"), false),
            (format!("{pointer}{}", "x".repeat(1024)), false),
            ("version https://git-lfs.github.com/spec/v1-not".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(is_lfs_pointer(content.as_bytes()), expected, "{content}");
        }
    }
}
