//! Trees of directories that tools made: of any depth, and with any modes.
//!
//! Guarantees: a walk takes the same stack and the same few open files for each tree, needs no path, which may be longer than
//! the system takes, and follows no link.

use std::ffi::{CStr, CString};
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, chmodat, fchmod, fstat, openat, statat, unlinkat};
use rustix::io::Errno;

/// What becomes of directories whose mode keeps us out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Modes {
    /// They stay as they are: a tool may still work there.
    Kept,
    /// Their owner may do all with them again.
    Given,
}

/// What is done on a walk.
trait Visitor {
    /// Something lies in a directory.
    fn meet(&mut self, at: BorrowedFd<'_>, name: &CStr, is_directory: bool) -> io::Result<()>;
    /// All below a directory was met.
    fn leave(&mut self, at: BorrowedFd<'_>, name: &CStr) -> io::Result<()>;
    /// What is below a directory can't be met.
    fn miss(&mut self, error: Errno) -> io::Result<()>;
}

/// Removes a directory with all that is in it, or whatever else has its name; nothing where that is not there.
///
/// # Errors
/// Something can't be removed.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    // The way there is the operator's own, and may have links in it.
    let above = match opened(CWD, &c_name(parent)?, Modes::Given, OFlags::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        above => above?,
    };
    let name = c_name(Path::new(name))?;
    match open(above.as_fd(), &name, Modes::Given) {
        Ok(top) => {
            walk(top, Modes::Given, &mut Removal)?;
            Removal.leave(above.as_fd(), &name)
        }
        Err(Errno::NOENT) => Ok(()),
        // No directory, or a link, which is not followed.
        Err(Errno::NOTDIR | Errno::LOOP) => Removal.meet(above.as_fd(), &name, false),
        Err(error) => Err(error.into()),
    }
}

/// Bytes on disk of all below a directory; what goes away meanwhile, or can't be read, does not count.
pub(super) fn usage(path: &Path, modes: Modes) -> u64 {
    let mut sum = Sum(0);
    if let Ok(name) = c_name(path)
        && let Ok(top) = open(CWD, &name, modes)
    {
        // Directories that are moved meanwhile end the walk: those met so far count.
        let _ = walk(top, modes, &mut sum);
    }
    sum.0
}

/// Gives the owner all rights over a directory again, and over those on the way to `inner` below it.
///
/// # Errors
/// One of them can't be opened: it is none, or it belongs to somebody else.
pub(super) fn give_way(path: &Path, inner: &Path) -> io::Result<()> {
    let mut here = open(CWD, &c_name(path)?, Modes::Given)?;
    for part in inner.parent().into_iter().flat_map(Path::components) {
        if let Component::Normal(name) = part {
            here = open(here.as_fd(), &c_name(Path::new(name))?, Modes::Given)?;
        }
    }
    Ok(())
}

struct Removal;

impl Visitor for Removal {
    fn meet(&mut self, at: BorrowedFd<'_>, name: &CStr, is_directory: bool) -> io::Result<()> {
        if is_directory { Ok(()) } else { gone(unlinkat(at, name, AtFlags::empty())) }
    }

    fn leave(&mut self, at: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
        gone(unlinkat(at, name, AtFlags::REMOVEDIR))
    }

    fn miss(&mut self, error: Errno) -> io::Result<()> {
        gone(Err(error))
    }
}

struct Sum(u64);

impl Visitor for Sum {
    fn meet(&mut self, at: BorrowedFd<'_>, name: &CStr, _: bool) -> io::Result<()> {
        if let Ok(found) = statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
            self.0 = self.0.saturating_add(u64::try_from(found.st_blocks).unwrap_or_default().saturating_mul(512));
        }
        Ok(())
    }

    fn leave(&mut self, _: BorrowedFd<'_>, _: &CStr) -> io::Result<()> {
        Ok(())
    }

    fn miss(&mut self, _: Errno) -> io::Result<()> {
        Ok(())
    }
}

/// A directory above the one where a walk is.
struct Above {
    /// Device and number, by which it is known again.
    id: (u64, u64),
    /// What the one below is called in it.
    below: CString,
    /// Directories in it that are to be walked yet.
    left: Vec<CString>,
}

/// Walks all below a directory. The way up is by `..`, so that one directory is open at a time.
fn walk(top: OwnedFd, modes: Modes, visitor: &mut impl Visitor) -> io::Result<()> {
    let mut left = met(&top, visitor)?;
    let (mut here, mut above) = (top, Vec::new());
    loop {
        let Some(name) = left.pop() else {
            let Some(Above { id, below, left: others }) = above.pop() else { return Ok(()) };
            here = open(here.as_fd(), c"..", modes)?;
            if id_of(&here)? != id {
                return Err(io::Error::other("a directory was moved meanwhile"));
            }
            visitor.leave(here.as_fd(), &below)?;
            left = others;
            continue;
        };
        match open(here.as_fd(), &name, modes) {
            Ok(below) => {
                let inner = met(&below, visitor)?;
                if inner.is_empty() {
                    visitor.leave(here.as_fd(), &name)?;
                    continue;
                }
                above.push(Above { id: id_of(&here)?, below: name, left: mem::replace(&mut left, inner) });
                here = below;
            }
            Err(error) => visitor.miss(error)?,
        }
    }
}

/// Meets all that lies in a directory, and names the directories among it.
fn met(directory: &OwnedFd, visitor: &mut impl Visitor) -> io::Result<Vec<CString>> {
    let mut directories = Vec::new();
    let mut entries = match Dir::read_from(directory) {
        Ok(entries) => entries,
        Err(error) => return visitor.miss(error).map(|()| directories),
    };
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let is_directory = match entry.file_type() {
            // Some file systems don't say it in their lists.
            FileType::Unknown => statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_dir()),
            kind => kind.is_dir(),
        };
        visitor.meet(directory.as_fd(), name, is_directory)?;
        if is_directory {
            directories.push(name.to_owned());
        }
    }
    Ok(directories)
}

/// Opens a directory; a link is none.
fn open(at: BorrowedFd<'_>, name: &CStr, modes: Modes) -> Result<OwnedFd, Errno> {
    opened(at, name, modes, OFlags::NOFOLLOW)
}

fn opened(at: BorrowedFd<'_>, name: &CStr, modes: Modes, links: OFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | links;
    let again = || openat(at, name, flags, Mode::empty());
    let opened = match again() {
        Err(Errno::ACCESS) if modes == Modes::Given => {
            chmodat(at, name, Mode::RWXU, AtFlags::empty())?;
            again()?
        }
        opened => opened?,
    };
    if modes == Modes::Given {
        let mode = Mode::from_raw_mode(fstat(&opened)?.st_mode);
        if !mode.contains(Mode::RWXU) {
            // One of somebody else's is not ours to change; what can't be done in it says so.
            let _ = fchmod(&opened, mode | Mode::RWXU);
        }
    }
    Ok(opened)
}

/// Device and number of an open directory.
fn id_of(directory: &OwnedFd) -> io::Result<(u64, u64)> {
    let found = fstat(directory)?;
    Ok((found.st_dev, found.st_ino))
}

/// What is gone already is no error.
fn gone(removed: Result<(), Errno>) -> io::Result<()> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        removed => removed.map_err(io::Error::from),
    }
}

fn c_name(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use rustix::fs::mkdirat;
    use rustix::process::{Uid, geteuid};
    use rustix::thread::set_thread_res_uid;

    use super::*;

    /// Directories in directories, each with one more beside, and a file in the last.
    fn deep(root: &Path, levels: usize) {
        let mut here = open(CWD, &c_name(root).unwrap(), Modes::Kept).unwrap();
        for _ in 0..levels {
            mkdirat(&here, c"d", Mode::RWXU).unwrap();
            mkdirat(&here, c"beside", Mode::RWXU).unwrap();
            here = open(here.as_fd(), c"d", Modes::Kept).unwrap();
        }
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let file = openat(&here, c"file", flags, Mode::RUSR | Mode::WUSR).unwrap();
        rustix::io::write(&file, &vec![1; 100_000]).unwrap();
    }

    #[test]
    fn a_tree_of_any_depth_is_measured_and_removed_with_little_stack() {
        for levels in [0, 1, 100, 3_000] {
            let root = tempfile::tempdir().unwrap();
            let top = root.path().join("top");
            fs::create_dir(&top).unwrap();
            deep(&top, levels);
            let (used, top) = std::thread::Builder::new()
                .stack_size(128 * 1024)
                .spawn(move || {
                    let used = usage(&top, Modes::Kept);
                    remove(&top).unwrap();
                    (used, top)
                })
                .unwrap()
                .join()
                .unwrap();
            assert!(used >= 100_000, "{levels} levels: {used}");
            assert!(!top.exists(), "{levels} levels");
        }
    }

    #[test]
    fn links_are_removed_and_not_followed_and_what_is_not_there_is_no_error() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir_all(path("top/inner")).unwrap();
        fs::create_dir(path("elsewhere")).unwrap();
        fs::write(path("elsewhere/file"), vec![1; 100_000]).unwrap();
        symlink(path("elsewhere"), path("top/inner/link")).unwrap();
        symlink(path("elsewhere"), path("link")).unwrap();
        fs::write(path("plain"), "").unwrap();
        assert!(usage(&path("top"), Modes::Kept) < 100_000);
        // The directory of all images may be a link itself.
        symlink(root.path(), path("images")).unwrap();
        fs::create_dir(path("inside")).unwrap();
        remove(&path("images/inside")).unwrap();
        assert!(!path("inside").exists());
        for name in ["top", "link", "plain", "nothing", "nowhere/nothing"] {
            remove(&path(name)).unwrap();
            assert!(!path(name).exists() && !path(name).is_symlink(), "{name}");
        }
        assert!(path("elsewhere/file").is_file());
    }

    /// Does something as a user whom modes keep out, as they don't root.
    fn as_nobody(root: &Path, act: impl FnOnce() + Send + 'static) {
        let nobody = geteuid().is_root().then(|| Uid::from_raw(65_534));
        if let Some(nobody) = nobody {
            let mut there = vec![root.to_owned()];
            while let Some(path) = there.pop() {
                chown(&path, Some(nobody.as_raw()), None).unwrap();
                if path.is_dir() {
                    there.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                }
            }
        }
        let acting = move || {
            if let Some(nobody) = nobody {
                // Of this thread alone.
                set_thread_res_uid(nobody, nobody, nobody).unwrap();
            }
            act();
        };
        std::thread::spawn(acting).join().unwrap();
    }

    #[test]
    fn modes_that_a_tool_left_keep_nobody_out() {
        for mode in [0o000, 0o111, 0o333, 0o444, 0o500, 0o555, 0o666, 0o700] {
            let root = tempfile::tempdir().unwrap();
            let top = root.path().join("top");
            fs::create_dir_all(top.join("a/b")).unwrap();
            fs::write(top.join("a/b/file"), vec![1; 100_000]).unwrap();
            fs::set_permissions(top.join("a/b/file"), fs::Permissions::from_mode(0o000)).unwrap();
            for part in ["a/b", "a", ""] {
                fs::set_permissions(top.join(part), fs::Permissions::from_mode(mode)).unwrap();
            }
            as_nobody(root.path(), {
                let top = top.clone();
                move || {
                    assert!(usage(&top, Modes::Given) >= 100_000, "{mode:o}");
                    for part in ["a/b", "a", ""] {
                        fs::set_permissions(top.join(part), fs::Permissions::from_mode(mode)).unwrap();
                    }
                    remove(&top).unwrap();
                }
            });
            assert!(!top.exists(), "{mode:o}");
        }
    }

    #[test]
    fn the_way_to_a_file_is_given_back() {
        let root = tempfile::tempdir().unwrap();
        let top = root.path().join("top");
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::write(top.join("a/b/file"), "made").unwrap();
        for part in ["a/b", "a", ""] {
            fs::set_permissions(top.join(part), fs::Permissions::from_mode(0o000)).unwrap();
        }
        as_nobody(root.path(), {
            let (root, top) = (root.path().to_owned(), top.clone());
            move || {
                give_way(&top, Path::new("a/b/file")).unwrap();
                fs::rename(top.join("a/b/file"), root.join("file")).unwrap();
            }
        });
        assert!(give_way(&top, Path::new("a/none/file")).is_err());
    }
}
