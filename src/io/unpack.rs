//! Archives: hostile until proven otherwise.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Component, Path};

use bytes::Bytes;
use flate2::read::GzDecoder;
use thiserror::Error;

use crate::core::files::FileTree;

/// Bounds of an archive.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most entries.
    pub entries: usize,
    /// Most bytes of all files together.
    pub bytes: u64,
    /// How many times larger the files may be than the archive, once they pass 1 MiB.
    pub ratio: u64,
    /// Longest path in bytes.
    pub path: usize,
    /// Most directories in a path.
    pub depth: usize,
    /// Most archives within archives.
    pub nesting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { entries: 10_000, bytes: 256 * 1024 * 1024, ratio: 200, path: 1024, depth: 32, nesting: 8 }
    }
}

/// Why an archive is refused.
#[derive(Debug, Error)]
pub enum UnpackError {
    /// It can't be read.
    #[error("{archive} can't be read: {error}")]
    Read {
        /// The archive.
        archive: String,
        /// Why.
        error: std::io::Error,
    },
    /// An entry breaks a rule.
    #[error("{archive}: entry {entry:?} {why}")]
    Entry {
        /// The archive.
        archive: String,
        /// The entry's path.
        entry: String,
        /// The rule.
        why: &'static str,
    },
    /// A limit is passed.
    #[error("{archive} holds more than {what}")]
    Limit {
        /// The archive.
        archive: String,
        /// The limit.
        what: String,
    },
}

/// Files as one tar, always the same bytes for the same files.
///
/// # Errors
/// A path that tar can't hold.
pub fn pack(files: &FileTree) -> std::io::Result<Bytes> {
    let mut builder = tar::Builder::new(Vec::new());
    builder.mode(tar::HeaderMode::Deterministic);
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(0);
        builder.append_data(&mut header, path, &content[..])?;
    }
    builder.into_inner().map(Bytes::from)
}

/// Reads a tar.
///
/// # Errors
/// See [`UnpackError`].
pub fn untar(archive: &str, bytes: &[u8], limits: &Limits) -> Result<FileTree, UnpackError> {
    read_tar(archive, bytes, bytes.len() as u64, limits)
}

/// Reads a gzipped tar.
///
/// # Errors
/// See [`UnpackError`].
pub fn untar_gz(archive: &str, bytes: &[u8], limits: &Limits) -> Result<FileTree, UnpackError> {
    read_tar(archive, GzDecoder::new(bytes), bytes.len() as u64, limits)
}

fn read_tar(archive: &str, reader: impl Read, packed: u64, limits: &Limits) -> Result<FileTree, UnpackError> {
    let read_error = |error| UnpackError::Read { archive: archive.to_owned(), error };
    // Also bounds what headers and padding can hide, and a stream that never ends.
    let bound = limits.bytes.min((packed.saturating_mul(limits.ratio)).max(1024 * 1024));
    let overhead = 4096 * limits.entries as u64;
    let mut tar = tar::Archive::new(reader.take(bound + overhead));
    let (mut files, mut folded, mut bytes, mut entries) = (FileTree::new(), BTreeSet::new(), 0_u64, 0_usize);
    for entry in tar.entries().map_err(read_error)? {
        let mut entry = entry.map_err(read_error)?;
        entries += 1;
        let limit = |what| UnpackError::Limit { archive: archive.to_owned(), what };
        if entries > limits.entries {
            return Err(limit(format!("{} entries", limits.entries)));
        }
        let kind = entry.header().entry_type();
        if matches!(kind, tar::EntryType::XGlobalHeader) {
            continue;
        }
        let raw = entry.path_bytes().into_owned();
        let shown = String::from_utf8_lossy(&raw).into_owned();
        let refused = |why| UnpackError::Entry { archive: archive.to_owned(), entry: shown.clone(), why };
        let path = clean(&raw, limits).map_err(refused)?;
        match kind {
            tar::EntryType::Directory => continue,
            tar::EntryType::Regular | tar::EntryType::Continuous => {}
            tar::EntryType::Symlink | tar::EntryType::Link => return Err(refused("is a link")),
            _ => return Err(refused("is neither a file nor a directory")),
        }
        if path.is_empty() {
            return Err(refused("has no name"));
        }
        bytes += entry.size();
        if bytes > bound {
            return Err(limit(format!("{bound} bytes, or far more than its own size")));
        }
        if !folded.insert(path.to_lowercase()) {
            return Err(refused("is there twice, or differs from another only in case"));
        }
        let mut content = Vec::new();
        entry.read_to_end(&mut content).map_err(read_error)?;
        if content.len() as u64 != entry.size() {
            return Err(refused("is cut off"));
        }
        files.insert(path, Bytes::from(content));
    }
    Ok(files)
}

/// A path of an archive as a relative one, or the rule that it breaks.
fn clean(raw: &[u8], limits: &Limits) -> Result<String, &'static str> {
    if raw.len() > limits.path {
        return Err("has too long a path");
    }
    let text = std::str::from_utf8(raw).map_err(|_| "is no UTF-8")?;
    if text.contains(['\\', '\0']) {
        return Err("has a backslash or a NUL in its path");
    }
    let mut parts = Vec::new();
    for component in Path::new(text).components() {
        match component {
            Component::Normal(part) => parts.push(part.to_str().ok_or("is no UTF-8")?),
            Component::CurDir => {}
            Component::ParentDir => return Err("leaves its root with `..`"),
            Component::RootDir | Component::Prefix(_) => return Err("has an absolute path"),
        }
    }
    if parts.len() > limits.depth {
        return Err("is nested too deep");
    }
    Ok(parts.join("/"))
}

/// Replaces each vendored `charts/<file>.tgz` by its files, at `charts/<file>.tgz/…`, where the
/// chart engine looks for them, also within them.
///
/// # Errors
/// See [`UnpackError`]; the limits hold for all of it together.
pub fn expand_charts(files: FileTree, limits: &Limits) -> Result<FileTree, UnpackError> {
    let mut out = FileTree::new();
    let mut bytes = 0_u64;
    expand_into(&mut out, files, "", limits, &mut bytes, 0)?;
    Ok(out)
}

fn expand_into(
    out: &mut FileTree,
    files: FileTree,
    prefix: &str,
    limits: &Limits,
    bytes: &mut u64,
    nesting: usize,
) -> Result<(), UnpackError> {
    for (path, content) in files {
        let path = format!("{prefix}{path}");
        let limit = |what| UnpackError::Limit { archive: path.clone(), what };
        if !is_vendored_chart(&path) {
            *bytes += content.len() as u64;
            if *bytes > limits.bytes || out.len() >= limits.entries {
                return Err(limit(format!("{} files or {} bytes with its subcharts", limits.entries, limits.bytes)));
            }
            out.insert(path, content);
            continue;
        }
        if nesting >= limits.nesting {
            return Err(limit(format!("{} charts within charts", limits.nesting)));
        }
        let below = untar_gz(&path, &content, limits)?;
        expand_into(out, below, &format!("{path}/"), limits, bytes, nesting + 1)?;
    }
    Ok(())
}

/// Whether a path is like `a/charts/b-1.0.tgz`.
fn is_vendored_chart(path: &str) -> bool {
    let place = path.strip_suffix(".tgz").and_then(|stem| stem.rsplit_once('/'));
    place.is_some_and(|(directory, _)| directory == "charts" || directory.ends_with("/charts"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    type Entry<'a> = (&'a str, tar::EntryType, &'a [u8]);

    fn archive(entries: &[Entry<'_>]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            if kind.is_symlink() || kind.is_hard_link() {
                header.set_link_name("/etc/passwd").unwrap();
            }
            // Past the checks of `set_path`, as a hostile archive does it.
            header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
            header.set_cksum();
            builder.append(&header, *content).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn gz(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn hostile_archives_are_refused_with_the_rule() {
        use tar::EntryType as T;
        let small = Limits { entries: 3, bytes: 1000, path: 40, depth: 4, ..Limits::default() };
        for (entries, part) in [
            (vec![("../evil", T::Regular, &b"x"[..])], "leaves its root"),
            (vec![("a/../../evil", T::Regular, b"x")], "leaves its root"),
            (vec![("/etc/passwd", T::Regular, b"x")], "absolute path"),
            (vec![("a\\..\\b", T::Regular, b"x")], "backslash"),
            (vec![("link", T::Symlink, b"")], "is a link"),
            (vec![("link", T::Link, b"")], "is a link"),
            (vec![("dev", T::Char, b"")], "neither a file"),
            (vec![("pipe", T::Fifo, b"")], "neither a file"),
            (vec![("a", T::Regular, b"1"), ("a", T::Regular, b"2")], "there twice"),
            (vec![("a", T::Regular, b"1"), ("A", T::Regular, b"2")], "only in case"),
            (vec![("a/b/c/d/e", T::Regular, b"1")], "nested too deep"),
            (vec![("a-very-long-name-that-passes-the-limit-of-forty", T::Regular, b"1")], "too long a path"),
            (
                vec![("1", T::Regular, b""), ("2", T::Regular, b""), ("3", T::Regular, b""), ("4", T::Regular, b"")],
                "3 entries",
            ),
            (vec![("big", T::Regular, &[0; 2000])], "1000 bytes"),
        ] {
            let error = untar("x.tar", &archive(&entries), &small).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn a_bomb_is_refused_by_its_ratio() {
        let bomb = gz(&archive(&[("zeros", tar::EntryType::Regular, &vec![0; 64 * 1024 * 1024])]));
        assert!(bomb.len() < 100_000);
        assert!(
            untar_gz("bomb.tgz", &bomb, &Limits::default())
                .unwrap_err()
                .to_string()
                .contains("far more than its own size")
        );
    }

    #[test]
    fn a_truncated_archive_is_an_error() {
        let whole = gz(&archive(&[("a", tar::EntryType::Regular, &[7; 5000])]));
        assert!(untar_gz("x.tgz", &whole[..whole.len() / 2], &Limits::default()).is_err());
        let tar = archive(&[("a", tar::EntryType::Regular, &[7; 5000])]);
        assert!(untar("x.tar", &tar[..1024], &Limits::default()).is_err());
    }

    #[test]
    fn packing_is_deterministic_and_comes_back() {
        let files: FileTree = [("b/c".to_owned(), Bytes::from("2")), ("a".to_owned(), Bytes::from("1"))].into();
        let packed = pack(&files).unwrap();
        assert_eq!(pack(&files).unwrap(), packed);
        assert_eq!(untar("x.tar", &packed, &Limits::default()).unwrap(), files);
    }

    #[test]
    fn vendored_charts_are_unpacked_in_their_place() {
        use tar::EntryType::Regular;
        let inner = gz(&archive(&[("leaf/Chart.yaml", Regular, b"name: leaf")]));
        let outer =
            gz(&archive(&[("sub/Chart.yaml", Regular, b"name: sub"), ("sub/charts/leaf-1.tgz", Regular, &inner)]));
        let files: FileTree =
            [("charts/sub-1.0.tgz".to_owned(), Bytes::from(outer)), ("files/x.tgz".to_owned(), Bytes::from("kept"))]
                .into();
        let paths: Vec<String> = expand_charts(files, &Limits::default()).unwrap().into_keys().collect();
        assert_eq!(
            paths,
            [
                "charts/sub-1.0.tgz/sub/Chart.yaml",
                "charts/sub-1.0.tgz/sub/charts/leaf-1.tgz/leaf/Chart.yaml",
                "files/x.tgz"
            ]
        );
    }
}
