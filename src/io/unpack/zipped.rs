//! Zip: what its directory says, if every entry says the same of itself.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};

use bytes::Bytes;
use zip::read::{ArchiveOffset, Config};
use zip::result::ZipError;
use zip::{CompressionMethod, ZipArchive};

use super::{UnpackError, Unpacker, occupy};
use crate::core::files::FileTree;
use crate::core::limits::{BadPath, TooLarge, check_path};

/// How an entry and an empty archive begin.
const STARTS: [&[u8]; 2] = [b"PK\x03\x04", b"PK\x05\x06"];
/// How an entry of the directory begins.
const LISTED: &[u8] = b"PK\x01\x02";
const KIND: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;

/// Whether it says that it is one.
pub(super) fn is_zip(archive: &[u8]) -> bool {
    STARTS.iter().any(|start| archive.starts_with(start))
}

impl Unpacker<'_> {
    /// Reads a zip whose size was checked.
    pub(super) fn zip(&mut self, archive: &[u8]) -> Result<FileTree, UnpackError> {
        let damaged = |error: ZipError| UnpackError::Damaged(error.to_string());
        // The directory is read as a whole: first it is looked at how long it may be.
        if archive.windows(LISTED.len()).filter(|window| *window == LISTED).count() > self.limits.entries {
            return Err(TooLarge { what: "the number of files".to_owned(), limit: self.limits.entries as u64 }.into());
        }
        let config = Config { archive_offset: ArchiveOffset::Known(0) };
        let mut zip = ZipArchive::with_config(config, Cursor::new(archive)).map_err(damaged)?;
        if zip.has_duplicate_names() {
            return Err(UnpackError::Damaged("two entries have one name".to_owned()));
        }
        zip.validate_header_consistency().map_err(damaged)?;
        let mut files = FileTree::new();
        let mut places = BTreeMap::new();
        for index in 0..zip.len() {
            let entry = zip.by_index_data(index).map_err(damaged)?;
            let raw = entry.name_raw().to_owned();
            let shown: String = String::from_utf8_lossy(&raw).chars().take(256).collect();
            let is_file = !raw.ends_with(b"/");
            let refuse = |kind| Err(UnpackError::Kind { path: shown.clone(), kind });
            match entry.unix_mode().unwrap_or_default() & KIND {
                0 => {}
                FILE if is_file => {}
                DIRECTORY if !is_file => {}
                0o120_000 => return refuse("symbolic link"),
                0o020_000 | 0o060_000 => return refuse("device"),
                0o010_000 => return refuse("pipe"),
                _ => return refuse("thing of an unknown kind"),
            }
            if entry.encrypted() {
                return refuse("encrypted file");
            }
            if !matches!(entry.compression(), CompressionMethod::Stored | CompressionMethod::Deflated) {
                return refuse("file packed in a way that is not known (store and deflate are)");
            }
            let size = entry.size();
            if !is_file && size != 0 {
                return refuse("directory with contents");
            }
            let Ok(name) = std::str::from_utf8(&raw) else {
                return Err(UnpackError::Path(BadPath::Characters(shown)));
            };
            let path = check_path(name, self.limits)?;
            if path.is_empty() {
                if is_file {
                    return Err(UnpackError::Path(BadPath::Outside(shown)));
                }
                continue;
            }
            self.budget.add(self.limits, &path, size)?;
            self.budget.check_ratio(self.limits, archive.len() as u64)?;
            occupy(&mut places, &path, is_file)?;
            if is_file {
                // One byte more than there should be is asked for: so the reader finds the end, and checks the sum.
                let mut content = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
                let file = zip.by_index(index).map_err(damaged)?;
                let read = file.take(size.saturating_add(1)).read_to_end(&mut content);
                read.map_err(|error| UnpackError::Damaged(format!("{path:?}: {error}")))?;
                if content.len() as u64 != size {
                    return Err(UnpackError::Damaged(format!("{path:?} is not as long as it says")));
                }
                files.insert(path, Bytes::from(content));
            }
        }
        Ok(files)
    }
}
