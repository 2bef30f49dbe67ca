//! Archives: written so that equal files give equal bytes, read as hostile until proven otherwise.
//!
//! Guarantees: what is read stays in memory, within [`Limits`], at paths inside of the root; links, devices and two
//! files at one place (also where only upper and lower case, or the way letters are composed, differ) are refused,
//! whoever made the archive. Of a packaged chart, which is never written to a disk, the later of two files at one path
//! counts, as in Helm.

mod heads;
mod zipped;

use std::collections::BTreeMap;
use std::io::{self, Cursor, Read};

use bytes::Bytes;
use flate2::bufread::GzDecoder;
use flate2::read::MultiGzDecoder;
use icu_normalizer::ComposingNormalizerBorrowed;
use libdeflater::Decompressor;
use memchr::memmem;
use tar::{Archive, Builder, Entries, Entry, EntryType, Header};
use thiserror::Error;

use self::heads::{Heads, Looked};
use crate::core::files::FileTree;
use crate::core::limits::{BadPath, Budget, Limits, TooLarge, check_path};

/// Where a packed release holds the ids of its components.
const COMPONENT_IDS: &str = ".clusterstack/component-ids.json";
/// What a gzip starts with, and each further member of one.
const GZIP: &[u8] = b"\x1f\x8b";
const DEFLATED_MEMBER: &[u8] = b"\x1f\x8b\x08";
/// Directory of a chart with the charts it depends on.
const CHARTS: &str = "charts/";

/// Why an archive is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UnpackError {
    /// It is damaged, or none.
    #[error("it is no tar, tar.gz or zip, or damaged: {0}")]
    Damaged(String),
    /// A path is outside of the root, or no path.
    #[error(transparent)]
    Path(BadPath),
    /// Something is neither file nor directory.
    #[error("{path:?} is a {kind}: only files and directories may be in it")]
    Kind {
        /// Where.
        path: String,
        /// What it is.
        kind: &'static str,
    },
    /// Two entries are at one place.
    #[error("{first:?} and {second:?} are at one place: remove one")]
    Collision {
        /// The earlier one.
        first: String,
        /// The later one.
        second: String,
    },
    /// A limit was passed.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// An archive among the files is refused.
    #[error("{archive}: {error}")]
    Inner {
        /// Where it lies.
        archive: String,
        /// What is wrong with it.
        error: Box<UnpackError>,
    },
    /// Files can't be packed.
    #[error("files can't be packed: {0}")]
    Pack(String),
}

impl From<BadPath> for UnpackError {
    fn from(error: BadPath) -> Self {
        match error {
            BadPath::TooLarge(limit) => Self::TooLarge(limit),
            other => Self::Path(other),
        }
    }
}

/// A tar of the files: sorted, without times and owners, so that equal files give equal bytes.
pub fn pack(files: &FileTree) -> Result<Bytes, UnpackError> {
    let error = |error: io::Error| UnpackError::Pack(error.to_string());
    let mut builder = Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(0);
        builder.append_data(&mut header, path, content.as_ref()).map_err(error)?;
    }
    builder.into_inner().map(Bytes::from).map_err(error)
}

/// Reads a tar, tar.gz or zip.
pub fn unpack(archive: &[u8], limits: &Limits) -> Result<FileTree, UnpackError> {
    Unpacker { limits, budget: Budget::default(), places: Places::Single }.read(archive)
}

/// Reads a packaged chart.
pub fn unpack_chart(archive: &[u8], limits: &Limits) -> Result<FileTree, UnpackError> {
    Unpacker { limits, budget: Budget::default(), places: Places::Later }.read(archive)
}

/// [`pack`] of a release with the ids of its components: what the store keeps.
///
/// # Errors
/// Two files are at one place, which a Git repository may have: [`unpack_release`] would refuse it.
pub fn pack_release(files: &FileTree, component_ids: &BTreeMap<String, String>) -> Result<Bytes, UnpackError> {
    let mut places = BTreeMap::new();
    files.keys().try_for_each(|path| occupy(&mut places, path, true))?;
    let mut files = files.clone();
    let ids = serde_json::to_vec(component_ids).map_err(|error| UnpackError::Pack(error.to_string()))?;
    files.insert(COMPONENT_IDS.to_owned(), Bytes::from(ids));
    pack(&files)
}

/// Reads what [`pack_release`] wrote.
pub fn unpack_release(archive: &[u8], limits: &Limits) -> Result<(FileTree, BTreeMap<String, String>), UnpackError> {
    let mut files = unpack(archive, limits)?;
    let ids = files.remove(COMPONENT_IDS).unwrap_or_else(|| Bytes::from_static(b"{}"));
    let ids = serde_json::from_slice(&ids).map_err(|error| UnpackError::Damaged(error.to_string()))?;
    Ok((files, ids))
}

/// Replaces each `charts/<file>.tgz` of a chart, also of charts within it, by its files at `charts/<file>.tgz/`, where
/// the chart engine looks for them: `charts/cilium-1.16.6.tgz/cilium/Chart.yaml`.
pub fn expand_charts(mut files: FileTree, limits: &Limits) -> Result<FileTree, UnpackError> {
    let mut reader = Unpacker { limits, budget: Budget::default(), places: Places::Later };
    for (path, content) in &files {
        reader.budget.add(limits, path, content.len() as u64)?;
    }
    let mut archives: Vec<String> = files.keys().filter(|path| is_subchart(path, &files)).cloned().collect();
    let mut levels = 0;
    while !archives.is_empty() {
        levels += 1;
        if levels > limits.depth {
            return Err(
                TooLarge { what: "the depth of charts in charts".to_owned(), limit: limits.depth as u64 }.into()
            );
        }
        let mut next = Vec::new();
        for path in archives {
            let Some(archive) = files.remove(&path) else { continue };
            let inner = |error| UnpackError::Inner { archive: path.clone(), error: Box::new(error) };
            let inside = format!("{path}/");
            if let Some((first, _)) = files.range(inside.clone()..).next().filter(|(path, _)| path.starts_with(&inside))
            {
                return Err(UnpackError::Collision { first: first.clone(), second: path.clone() });
            }
            let mut new = FileTree::new();
            for (name, content) in reader.read(&archive).map_err(inner)? {
                new.insert(
                    check_path(&format!("{inside}{name}"), limits).map_err(|error| inner(error.into()))?,
                    content,
                );
            }
            next.extend(new.keys().filter(|path| is_subchart(path, &new)).cloned());
            files.extend(new);
        }
        archives = next;
    }
    Ok(files)
}

/// Whether `path` is an archive in the `charts` directory of a chart among `files`. As in Helm, names with a leading `.`
/// or `_` are passed over.
fn is_subchart(path: &str, files: &FileTree) -> bool {
    let Some((directory, name)) = path.rsplit_once('/') else { return false };
    let chart = format!("{directory}/");
    let Some(chart) = chart.strip_suffix(CHARTS).filter(|chart| chart.is_empty() || chart.ends_with('/')) else {
        return false;
    };
    name.strip_suffix(".tgz").is_some()
        && !name.starts_with(['.', '_'])
        && files.contains_key(&format!("{chart}Chart.yaml"))
}

struct Unpacker<'l> {
    limits: &'l Limits,
    budget: Budget,
    places: Places,
}

/// What of two files at one place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Places {
    /// They are refused.
    Single,
    /// Only those at one path are at one place, and the later one counts.
    Later,
}

/// What is at a place, its path as the archive writes it.
enum Place {
    File(String),
    Directory(String),
}

impl Unpacker<'_> {
    fn read(&mut self, archive: &[u8]) -> Result<FileTree, UnpackError> {
        self.budget.begin_archive();
        let packed = archive.len() as u64;
        if packed > self.limits.packed_bytes {
            let limit = self.limits.packed_bytes;
            return Err(TooLarge { what: "the size of the archive in bytes".to_owned(), limit }.into());
        }
        if zipped::is_zip(archive) {
            return self.zip(archive);
        }
        if let Some(tar) = inflated(archive, self.limits) {
            // Files are parts of one buffer: no copies, and no memory of their own.
            let part = |entry: &mut Entry<'_, Cursor<&[u8]>>, size: u64| {
                let start = entry.raw_file_position();
                let end = start.checked_add(size).filter(|end| *end <= tar.len() as u64)?;
                Some(tar.slice(usize::try_from(start).ok()?..usize::try_from(end).ok()?))
            };
            Heads::new().feed(&tar).map_err(damaged)?;
            let mut reader = Archive::new(Cursor::new(&*tar));
            return self
                .entries(reader.entries_with_seek().map_err(damaged)?, packed, |entry, size| Ok(part(entry, size)));
        }
        // Headers and padding count as well: an archive of empty entries is no way around the limit.
        let most = self.limits.bytes.saturating_add(self.limits.entries as u64 * 4096);
        if archive.starts_with(GZIP) {
            let mut reader = Archive::new(Looked::new(MultiGzDecoder::new(archive).take(most)));
            let read = reader.entries().map_err(damaged).and_then(|entries| self.entries(entries, packed, copied));
            let read = read.and_then(|files| self.checked(reader.into_inner().into_inner()).map(|()| files));
            read.map_err(|error| match error {
                UnpackError::Damaged(problem) => UnpackError::Damaged(behind(archive, most).unwrap_or(problem)),
                other => other,
            })
        } else {
            let mut reader = Archive::new(Looked::new(archive.take(most)));
            self.entries(reader.entries().map_err(damaged)?, packed, copied)
        }
    }

    /// Reads what follows the last entry: a gzip's checksum stands at its very end, and a tar ends before.
    fn checked(&self, mut rest: io::Take<impl Read>) -> Result<(), UnpackError> {
        io::copy(&mut rest, &mut io::sink()).map_err(damaged)?;
        if rest.limit() == 0 {
            let what = "the size of the unpacked archive in bytes".to_owned();
            return Err(TooLarge { what, limit: self.limits.bytes }.into());
        }
        Ok(())
    }

    /// The files among `entries`; `content` gives the next bytes of one, or nothing if the archive ends before.
    fn entries<R: Read>(
        &mut self,
        entries: Entries<'_, R>,
        packed: u64,
        content: impl Fn(&mut Entry<'_, R>, u64) -> io::Result<Option<Bytes>>,
    ) -> Result<FileTree, UnpackError> {
        let mut files = FileTree::new();
        let mut places = BTreeMap::new();
        let mut any = false;
        for entry in entries {
            any = true;
            let mut entry = entry.map_err(damaged)?;
            let Some(path) = self.path(&entry)? else { continue };
            if is_sparse(&mut entry)? {
                return Err(UnpackError::Kind { path, kind: "sparse file" });
            }
            let is_file = entry.header().entry_type() != EntryType::Directory;
            let size = if is_file { entry.size() } else { 0 };
            self.budget.add(self.limits, &path, size)?;
            self.budget.check_ratio(self.limits, packed)?;
            if self.places == Places::Single {
                occupy(&mut places, &path, is_file)?;
            }
            if is_file {
                let content = content(&mut entry, size).map_err(damaged)?;
                let content = content.ok_or_else(|| UnpackError::Damaged(format!("it ends within {path:?}")))?;
                files.insert(path, content);
            }
        }
        // The reader takes nothing, and a text, for an empty archive.
        match packed {
            0 => Err(UnpackError::Damaged("it is empty".into())),
            1..512 if !any => Err(UnpackError::Damaged("it is too short".into())),
            _ => Ok(files),
        }
    }

    /// The path of an entry; `None` for the root and for what only describes the archive.
    fn path<R: Read>(&self, entry: &Entry<'_, R>) -> Result<Option<String>, UnpackError> {
        let bytes = entry.path_bytes();
        let path = String::from_utf8_lossy(&bytes);
        let kind = match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous | EntryType::Directory => None,
            EntryType::XGlobalHeader => return Ok(None),
            EntryType::Link => Some("hard link"),
            EntryType::Symlink => Some("symbolic link"),
            EntryType::Char | EntryType::Block => Some("device"),
            EntryType::Fifo => Some("pipe"),
            EntryType::GNUSparse => Some("sparse file"),
            _ => Some("thing of an unknown kind"),
        };
        if let Some(kind) = kind {
            return Err(UnpackError::Kind { path: path.chars().take(256).collect(), kind });
        }
        if std::str::from_utf8(&bytes).is_err() {
            return Err(UnpackError::Path(BadPath::Characters(path.chars().take(256).collect())));
        }
        let normal = check_path(&path, self.limits)?;
        let is_file = entry.header().entry_type() != EntryType::Directory;
        if normal.is_empty() && is_file {
            return Err(UnpackError::Path(BadPath::Outside(path.into_owned())));
        }
        Ok(Some(normal).filter(|path| !path.is_empty()))
    }
}

/// What is wrong with a gzip whose first member is whole, and is followed by what is none.
fn behind(archive: &[u8], most: u64) -> Option<String> {
    let mut first = GzDecoder::new(archive).take(most);
    io::copy(&mut first, &mut io::sink()).ok()?;
    let rest = first.into_inner().into_inner();
    (!rest.is_empty() && !rest.starts_with(GZIP)).then(|| format!("{} bytes follow behind its end", rest.len()))
}

#[expect(clippy::needless_pass_by_value, reason = "as errors are mapped")]
fn damaged(error: io::Error) -> UnpackError {
    // The reader quotes what it found, which may be anything.
    let is_text = |c: &char| !c.is_control() && *c != char::REPLACEMENT_CHARACTER;
    UnpackError::Damaged(error.to_string().chars().filter(is_text).take(256).collect())
}

/// What a gzip holds, inflated at once: three to five times as fast as piece by piece. Only where it is of one member and
/// says of itself a length that the limits allow; all else is read piece by piece, which finds out what is wrong.
fn inflated(archive: &[u8], limits: &Limits) -> Option<Bytes> {
    let length = u64::from(u32::from_le_bytes(*archive.last_chunk()?));
    if !archive.starts_with(GZIP)
        || length > limits.unpacked_bytes(archive.len() as u64)
        || memmem::find(&archive[GZIP.len()..], DEFLATED_MEMBER).is_some()
    {
        return None;
    }
    let mut tar = vec![0; usize::try_from(length).ok()?];
    let written = Decompressor::new().gzip_decompress(archive, &mut tar).ok()?;
    (written == tar.len()).then(|| Bytes::from(tar))
}

/// The next bytes of an entry. The limits were checked: what it says of its size costs no more than they allow.
fn copied<R: Read>(entry: &mut Entry<'_, R>, size: u64) -> io::Result<Option<Bytes>> {
    let mut content = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
    entry.take(size).read_to_end(&mut content)?;
    Ok((content.len() as u64 == size).then(|| Bytes::from(content)))
}

/// Whether it is a file with holes as newer tars write it: its contents are a map of the holes, then the rest.
fn is_sparse<R: Read>(entry: &mut Entry<'_, R>) -> Result<bool, UnpackError> {
    for extension in entry.pax_extensions().map_err(damaged)?.into_iter().flatten() {
        if extension.map_err(damaged)?.key_bytes().starts_with(b"GNU.sparse") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What two names have in common that some file system takes for one: letters composed, and small.
fn folded(path: &str) -> String {
    if path.is_ascii() {
        return path.to_ascii_lowercase();
    }
    let fold = |text: String| ComposingNormalizerBorrowed::new_nfc().normalize(&text).into_owned();
    fold(fold(path.to_owned()).to_lowercase())
}

/// Takes the places of a path and of the directories above it. A directory may be named again, in the same spelling.
fn occupy(places: &mut BTreeMap<String, Place>, path: &str, is_file: bool) -> Result<(), UnpackError> {
    let ends = path.match_indices('/').map(|(end, _)| (end, false)).chain([(path.len(), is_file)]);
    for (end, is_file) in ends {
        let part = &path[..end];
        let taken = match places.get(&folded(part)) {
            None => None,
            Some(Place::Directory(first)) if first == part && !is_file => continue,
            Some(Place::Directory(first) | Place::File(first)) => Some(first.clone()),
        };
        if let Some(first) = taken {
            return Err(UnpackError::Collision { first, second: path.to_owned() });
        }
        let place = if is_file { Place::File(part.to_owned()) } else { Place::Directory(part.to_owned()) };
        places.insert(folded(part), place);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
