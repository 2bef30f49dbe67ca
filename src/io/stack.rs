//! A stack's directory on the disk of somebody who writes it.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use thiserror::Error;

use super::unpack::{self, UnpackError};
use crate::core::files::FileTree;
use crate::core::limits::{Budget, Limits, TooLarge, check_path};

/// What is never part of a stack.
const LEFT_OUT: [&str; 2] = [".git", ".release"];

/// The files of a stack.
#[derive(Clone, Debug, Default)]
pub struct Stack {
    /// As they lie there.
    pub files: FileTree,
    /// With the archives below each `charts/` unpacked.
    pub expanded: FileTree,
}

/// Why a directory can't be read.
#[derive(Debug, Error)]
pub enum StackError {
    /// The disk says no.
    #[error("cannot read {path}: {error}")]
    Io {
        /// What.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// It holds what no stack does.
    #[error("{path} {problem}")]
    Form {
        /// Where.
        path: PathBuf,
        /// What.
        problem: String,
    },
    /// It is too large.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// A vendored chart can't be unpacked.
    #[error("a vendored chart can't be unpacked: {0}")]
    Unpack(#[from] UnpackError),
}

/// Reads a stack. Links are followed where they stay inside of it, as they are in Git.
pub fn read(root: &Path) -> Result<Stack, StackError> {
    let files = files(root)?;
    let expanded = unpack::expand_charts(files.clone(), &Limits::default())?;
    Ok(Stack { files, expanded })
}

fn files(root: &Path) -> Result<FileTree, StackError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |error| StackError::Io { path, error }
    };
    let form = |path: &Path, problem: &str| StackError::Form { path: path.to_owned(), problem: problem.to_owned() };
    let limits = Limits::default();
    let real = fs::canonicalize(root).map_err(io(root))?;
    let (mut files, mut budget) = (FileTree::new(), Budget::default());
    let mut todo = vec![(root.to_owned(), String::new())];
    while let Some((directory, prefix)) = todo.pop() {
        for entry in fs::read_dir(&directory).map_err(io(&directory))? {
            let entry = entry.map_err(io(&directory))?;
            let path = entry.path();
            let name = entry.file_name().into_string().map_err(|_| form(&path, "has a name that is not UTF-8"))?;
            if prefix.is_empty() && LEFT_OUT.contains(&name.as_str()) {
                continue;
            }
            let name = format!("{prefix}{name}");
            check_path(&name, &limits).map_err(|error| form(&path, &format!("can't be part of a stack: {error}")))?;
            let inside = fs::canonicalize(&path).map_err(io(&path))?.starts_with(&real);
            if !inside {
                return Err(form(&path, "leads out of the stack: copy what it leads to"));
            }
            let metadata = fs::metadata(&path).map_err(io(&path))?;
            budget.add(&limits, &name, if metadata.is_file() { metadata.len() } else { 0 })?;
            if metadata.is_dir() {
                todo.push((path, format!("{name}/")));
            } else if metadata.is_file() {
                let mut content = Vec::new();
                let file = fs::File::open(&path).map_err(io(&path))?;
                file.take(limits.file_bytes).read_to_end(&mut content).map_err(io(&path))?;
                files.insert(name, Bytes::from(content));
            } else {
                return Err(form(&path, "is neither a file nor a directory"));
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_read_without_what_is_not_part_of_it() {
        let root = tempfile::tempdir().unwrap();
        for path in ["csctl.yaml", "cluster-class/Chart.yaml", ".git/HEAD", "cluster-class/.helmignore"] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "a: b\n").unwrap();
        }
        std::os::unix::fs::symlink("csctl.yaml", root.path().join("link.yaml")).unwrap();
        let stack = read(root.path()).unwrap();
        let paths: Vec<&String> = stack.files.keys().collect();
        assert_eq!(paths, ["cluster-class/.helmignore", "cluster-class/Chart.yaml", "csctl.yaml", "link.yaml"]);
        std::os::unix::fs::symlink("/etc/hostname", root.path().join("out")).unwrap();
        assert!(read(root.path()).unwrap_err().to_string().contains("leads out of the stack"));
        assert!(read(&root.path().join("gone")).unwrap_err().to_string().contains("cannot read"));
    }
}
