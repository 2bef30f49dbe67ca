//! Files by path: what an archive, a directory or a Git tree holds once it is read.

use std::collections::BTreeMap;

use bytes::Bytes;

/// Files of a chart or a release by their path relative to its root, `/`-separated, no leading `/`, no `.` or `..`.
pub type FileTree = BTreeMap<String, Bytes>;

/// The files below `prefix` (a path without a trailing `/`), their paths relative to it. An empty prefix gives all.
pub fn below(files: &FileTree, prefix: &str) -> FileTree {
    if prefix.is_empty() {
        return files.clone();
    }
    let prefix = format!("{prefix}/");
    files
        .range(prefix.clone()..)
        .take_while(|(path, _)| path.starts_with(&prefix))
        .map(|(path, content)| (path[prefix.len()..].to_owned(), content.clone()))
        .collect()
}
