//! A directory that is read step by step from a root, by handles and not by paths: whoever exchanges a name for a link
//! meanwhile leads nowhere.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, open, openat, statat};

/// Links are not followed, and nothing waits for a writer.
const FLAGS: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// An open directory.
#[derive(Debug)]
pub(in crate::io) struct Directory(OwnedFd);

/// What a name in a directory is.
#[derive(Debug)]
pub(in crate::io) enum Entry {
    /// A directory.
    Directory(Directory),
    /// A regular file.
    File(File),
    /// A link, a device, a pipe or a socket: it is not opened.
    Other,
}

impl Directory {
    /// The directory at `path` below `root`.
    ///
    /// # Errors
    /// It is not there, or there is a link on the way.
    pub(in crate::io) fn open(root: &Path, path: &Path) -> io::Result<Self> {
        let mut directory = Self(open(root, FLAGS | OFlags::DIRECTORY, Mode::empty())?);
        for part in path.components() {
            let Component::Normal(name) = part else { return Err(io::ErrorKind::InvalidInput.into()) };
            directory = directory.directory(name)?;
        }
        Ok(directory)
    }

    /// The names in it, in any order.
    ///
    /// # Errors
    /// It can't be read.
    pub(in crate::io) fn names(&self) -> io::Result<impl Iterator<Item = io::Result<OsString>>> {
        let name = |entry: rustix::fs::DirEntry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
        let names = Dir::read_from(&self.0)?.map(move |entry| Ok(name(entry?)));
        Ok(names.filter(|name| !name.as_ref().is_ok_and(|name| name == "." || name == "..")))
    }

    /// What is there under a name of it.
    ///
    /// # Errors
    /// Nothing is, or it was exchanged while it was opened.
    pub(in crate::io) fn entry(&self, name: &OsStr) -> io::Result<Entry> {
        // A path is no name.
        if name.as_bytes().contains(&b'/') || name == ".." {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        match FileType::from_raw_mode(statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode) {
            FileType::Directory => self.directory(name).map(Entry::Directory),
            FileType::RegularFile => {
                let file = File::from(openat(&self.0, name, FLAGS, Mode::empty())?);
                Ok(if file.metadata()?.is_file() { Entry::File(file) } else { Entry::Other })
            }
            _ => Ok(Entry::Other),
        }
    }

    /// Its handle, to make, rename and remove names in it.
    pub(in crate::io) fn handle(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn directory(&self, name: &OsStr) -> io::Result<Self> {
        Ok(Self(openat(&self.0, name, FLAGS | OFlags::DIRECTORY, Mode::empty())?))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    fn read(entry: Entry) -> String {
        let Entry::File(mut file) = entry else { panic!("no file: {entry:?}") };
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn who_exchanges_a_name_for_a_link_leads_nowhere() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("file"), "secret").unwrap();
        fs::create_dir_all(inside.path().join("a/b")).unwrap();
        fs::write(inside.path().join("a/b/file"), "public").unwrap();
        let a = Directory::open(inside.path(), Path::new("a")).unwrap();
        let b = Directory::open(inside.path(), Path::new("a/b")).unwrap();
        assert_eq!(a.names().unwrap().map(Result::unwrap).collect::<Vec<_>>(), ["b"]);

        fs::rename(inside.path().join("a/b"), inside.path().join("a/c")).unwrap();
        symlink(outside.path(), inside.path().join("a/b")).unwrap();
        symlink(outside.path().join("file"), inside.path().join("a/link")).unwrap();
        // What is open stays what it was.
        assert_eq!(read(b.entry("file".as_ref()).unwrap()), "public");
        for name in ["b", "link"] {
            assert!(matches!(a.entry(name.as_ref()), Ok(Entry::Other)), "{name}");
            assert!(a.directory(name.as_ref()).is_err(), "{name}");
        }
        for path in ["a/b", "a/../a", "/etc"] {
            assert!(Directory::open(inside.path(), Path::new(path)).is_err(), "{path}");
        }
        for name in ["..", "../a", "c/file"] {
            assert!(a.entry(name.as_ref()).is_err(), "{name}");
        }
    }
}
