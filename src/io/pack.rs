//! Archives of releases: equal files give equal bytes, whoever packs them when.
//!
//! Sorted, no times, no owners, one mode each for files and directories, a gzip header without time, name and system.
//! Directories are entries of their own: the Go operator makes no others when it unpacks.

use std::collections::BTreeSet;
use std::io::{self, Write};

use bytes::Bytes;
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

use super::unpack::UnpackError;
use crate::core::files::FileTree;

/// gzip's "unknown system".
const NO_SYSTEM: u8 = 255;

/// A tar.gz of the files.
pub fn tar_gz(files: &FileTree) -> Result<Bytes, UnpackError> {
    let gzip = GzBuilder::new().mtime(0).operating_system(NO_SYSTEM).write(Vec::new(), Compression::best());
    let error = |error: io::Error| UnpackError::Pack(error.to_string());
    let gzip = write(gzip, files).map_err(error)?;
    gzip.finish().map(Bytes::from).map_err(error)
}

/// Writes a tar of the files.
pub fn tar(out: impl Write, files: &FileTree) -> io::Result<()> {
    write(out, files)?.flush()
}

fn write<W: Write>(out: W, files: &FileTree) -> io::Result<W> {
    let mut builder = Builder::new(out);
    let mut directories = BTreeSet::new();
    for (path, content) in files {
        for (at, _) in path.match_indices('/') {
            let directory = &path[..=at];
            if directories.insert(directory.to_owned()) {
                let mut header = header(EntryType::Directory, 0o755, 0);
                builder.append_data(&mut header, directory, io::empty())?;
            }
        }
        let mut header = header(EntryType::Regular, 0o644, content.len() as u64);
        builder.append_data(&mut header, path, content.as_ref())?;
    }
    builder.into_inner()
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::Limits;
    use crate::io::unpack::unpack;

    #[test]
    fn equal_files_give_equal_bytes_that_say_nothing_of_when_and_where() {
        let long = format!("a/{}/values.yaml", "x".repeat(120));
        let files: FileTree = [("Chart.yaml", "a: 1"), ("a/b/c", "x"), ("a/b/d", ""), (long.as_str(), "y")]
            .into_iter()
            .map(|(path, text)| (path.to_owned(), Bytes::from(text)))
            .collect();
        let archive = tar_gz(&files).unwrap();
        assert_eq!(archive, tar_gz(&files.clone()).unwrap());
        // Flags, time and system of gzip's header (RFC 1952).
        assert_eq!(archive[3..8], [0; 5]);
        assert_eq!(archive[9], NO_SYSTEM);
        assert_eq!(unpack(&archive, &Limits::default()).unwrap(), files);
    }
}
