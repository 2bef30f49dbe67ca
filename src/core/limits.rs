//! What a release may weigh, and which paths its files may have.

use thiserror::Error;

/// Limits of a release or an archive. The default is generous for stacks (the largest known one has 100 files and 1 MiB)
/// and small for a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Files and directories.
    pub entries: usize,
    /// Bytes of all files together, unpacked.
    pub bytes: u64,
    /// Bytes of one file.
    pub file_bytes: u64,
    /// Bytes of an archive, or of what is downloaded: more than `bytes`, so that a release of that size can be packed.
    pub packed_bytes: u64,
    /// How many times larger than the archive its contents may be; not looked at below 4 MiB.
    pub ratio: u64,
    /// Directories in each other, and archives in archives.
    pub depth: usize,
    /// Bytes of a path.
    pub path_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entries: 10_000,
            bytes: 256 << 20,
            file_bytes: 64 << 20,
            packed_bytes: 320 << 20,
            ratio: 200,
            depth: 32,
            path_bytes: 1024,
        }
    }
}

impl Limits {
    /// How many bytes an archive of `packed` bytes may hold.
    pub fn unpacked_bytes(&self, packed: u64) -> u64 {
        packed.saturating_mul(self.ratio).max(RATIO_FROM).min(self.bytes)
    }
}

/// From how many unpacked bytes on the ratio is looked at.
const RATIO_FROM: u64 = 4 << 20;

/// A limit was passed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{what} is over the limit of {limit}")]
pub struct TooLarge {
    /// What is too large, with its path where one file is meant.
    pub what: String,
    /// The limit.
    pub limit: u64,
}

/// Why a path can't be a file's.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadPath {
    /// It leaves the root or names no place in it.
    #[error("path {0:?} is not inside of the root")]
    Outside(String),
    /// It holds characters that no path of a chart holds.
    #[error("path {0:?} holds control characters or a backslash")]
    Characters(String),
    /// It is too long or too deep.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// What was counted so far.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    entries: usize,
    bytes: u64,
    /// What was counted before the archive that is read.
    before: u64,
}

fn over(what: impl Into<String>, limit: u64) -> TooLarge {
    TooLarge { what: what.into(), limit }
}

impl Budget {
    /// Counts an entry of `size` bytes (0 for a directory) before it is read.
    pub fn add(&mut self, limits: &Limits, path: &str, size: u64) -> Result<(), TooLarge> {
        self.entries += 1;
        if self.entries > limits.entries {
            return Err(over("the number of files", limits.entries as u64));
        }
        if size > limits.file_bytes {
            return Err(over(format!("the size of {path:?} in bytes"), limits.file_bytes));
        }
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > limits.bytes {
            return Err(over("the size of all files in bytes", limits.bytes));
        }
        Ok(())
    }

    /// From here on entries are those of another archive, which is weighed by itself.
    pub fn begin_archive(&mut self) {
        self.before = self.bytes;
    }

    /// Says whether what was counted of the archive that is read is too much for its `packed` bytes.
    pub fn check_ratio(&self, limits: &Limits, packed: u64) -> Result<(), TooLarge> {
        let unpacked = self.bytes.saturating_sub(self.before);
        if unpacked > RATIO_FROM && unpacked > packed.saturating_mul(limits.ratio) {
            return Err(over("the ratio of unpacked to packed size", limits.ratio));
        }
        Ok(())
    }
}

/// The path as it stands in a [`FileTree`](crate::core::files::FileTree): without a leading `./`, a trailing `/` and
/// empty or `.` parts. The empty text is the root itself.
pub fn check_path(path: &str, limits: &Limits) -> Result<String, BadPath> {
    if path.len() > limits.path_bytes {
        let short: String = path.chars().take(64).collect();
        return Err(over(format!("the length of the path {short:?}..."), limits.path_bytes as u64).into());
    }
    if path.chars().any(|c| c.is_control() || c == '\\') {
        return Err(BadPath::Characters(path.to_owned()));
    }
    if path.starts_with('/') {
        return Err(BadPath::Outside(path.to_owned()));
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return Err(BadPath::Outside(path.to_owned()));
    }
    if parts.len() > limits.depth {
        return Err(over(format!("the depth of the path {path:?}"), limits.depth as u64).into());
    }
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        let limits = Limits { depth: 3, path_bytes: 20, ..Limits::default() };
        for (path, normal) in [("a/b", "a/b"), ("./a//b/.", "a/b"), ("a/", "a"), (".", ""), ("..a/b..", "..a/b..")] {
            assert_eq!(check_path(path, &limits).unwrap(), normal);
        }
        for path in ["/a", "..", "../a", "a/../b", "a/..", "a\\b", "a\0", "a\nb", "a/b/c/d", "aaaaaaaaaaaaaaaaaaaaaaa"]
        {
            assert!(check_path(path, &limits).is_err(), "{path:?}");
        }
    }

    #[test]
    fn a_budget_ends() {
        let limits = Limits { entries: 2, bytes: 10, file_bytes: 8, ..Limits::default() };
        assert!(Budget::default().add(&limits, "a", 9).is_err());
        let mut budget = Budget::default();
        budget.add(&limits, "a", 8).unwrap();
        assert!(budget.clone().add(&limits, "b", 3).is_err());
        budget.add(&limits, "b", 2).unwrap();
        assert!(budget.add(&limits, "c", 0).is_err());
    }

    #[test]
    fn a_small_archive_is_not_weighed_with_what_lies_beside_it() {
        let limits = Limits::default();
        let mut budget = Budget::default();
        budget.add(&limits, "a", 20 << 20).unwrap();
        budget.begin_archive();
        budget.add(&limits, "b", 100_000).unwrap();
        budget.check_ratio(&limits, 17_000).unwrap();
        budget.add(&limits, "c", 5 << 20).unwrap();
        assert!(budget.check_ratio(&limits, 17_000).is_err());
        budget.check_ratio(&limits, 30_000).unwrap();
    }
}
