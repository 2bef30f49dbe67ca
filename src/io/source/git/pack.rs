//! What a server sends, looked at before libgit2 makes objects of it: some hundred KB can be gigabytes of them.
//!
//! libgit2 writes a pack to the disk as it comes and calls back for each entry; it applies changes (deltas) at the end. So
//! each entry is read here from that file first, in little memory, and the transfer ends at the first that is refused.
//!
//! Guarantees, for whoever goes on: each entry is as large as it says; a change, what it changes and its result are no
//! larger than `Bounds::object`; all that is unpacked to get at them is no more than `Bounds::work`; no object is there
//! twice, for libgit2 1.9 never frees the second one.

mod delta;
mod head;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use flate2::{Decompress, FlushDecompress, Status};
use git2::ObjectType;
use sha1::{Digest, Sha1};
use thiserror::Error;

use self::head::{Form, Head};
use crate::core::limits::TooLarge;

/// How libgit2 calls a pack that comes.
const COMING: &str = "pack_git2_";
/// Length of a pack's own header.
const HEADER: u64 = 12;
/// Longest header of an entry, with the name of what it changes.
const ENTRY_HEADER: usize = 32;
/// Bytes that are read at once, and unpacked at once.
const PIECE: usize = 4096;
const UNPACKED: usize = 8 * 1024;
/// What is kept of objects that others change: as much as libgit2 keeps, so that it has no more work than was counted.
const KEPT: usize = 16 * 1024 * 1024;
const LARGEST_KEPT: usize = 1024 * 1024;
/// How many changes may follow one another: what git can write.
const DEPTH: u32 = 4095;

/// How many objects a pack may hold, and how many bytes may be unpacked to know them.
pub(super) const MAX_OBJECTS: usize = 500_000;
pub(super) const MAX_UNPACKED: u64 = 8 << 30;

type Id = [u8; 20];

/// What a pack may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// How many objects.
    pub(super) objects: usize,
    /// Bytes of a change, of what it changes and of its result.
    pub(super) object: u64,
    /// Bytes that are unpacked, one after the other.
    pub(super) work: u64,
}

/// Why a pack is refused.
#[derive(Debug, Error)]
pub(super) enum Bad {
    /// It would become too large.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// It is no pack that git makes.
    #[error("it sends a pack that is broken: {0}")]
    Broken(&'static str),
    /// The file could not be read.
    #[error("the pack that comes can't be read: {0}")]
    Unread(#[from] std::io::Error),
}

/// Where an entry has its content from.
#[derive(Clone, Copy)]
enum Base {
    None,
    Entry(usize),
    /// An object that did not come yet.
    Object(Id),
}

/// What an entry is, once that is known.
#[derive(Clone, Copy)]
struct Known {
    kind: ObjectType,
    depth: u32,
}

struct Entry {
    at: u64,
    data: u64,
    size: u64,
    base: Base,
    known: Option<Known>,
}

/// What changes wait for.
#[derive(PartialEq, Eq, Hash)]
enum Awaited {
    Entry(usize),
    Object(Id),
}

/// Objects that others change.
#[derive(Default)]
struct Kept {
    objects: HashMap<usize, Rc<Vec<u8>>>,
    bytes: usize,
}

impl Kept {
    fn keep(&mut self, index: usize, content: &Rc<Vec<u8>>) {
        if content.len() > LARGEST_KEPT || self.objects.contains_key(&index) {
            return;
        }
        if self.bytes + content.len() > KEPT {
            *self = Self::default();
        }
        self.bytes += content.len();
        self.objects.insert(index, Rc::clone(content));
    }
}

/// Looks at a pack while it comes.
pub(super) struct Inspector {
    directory: PathBuf,
    bounds: Bounds,
    file: Option<File>,
    zlib: Decompress,
    /// Where the next entry begins.
    at: u64,
    entries: Vec<Entry>,
    objects: HashMap<Id, usize>,
    waiting: HashMap<Awaited, Vec<usize>>,
    kept: Kept,
    work: u64,
}

impl Inspector {
    /// Looks at the one pack that comes to `directory`.
    pub(super) fn new(directory: PathBuf, bounds: Bounds) -> Self {
        Self {
            directory,
            bounds,
            file: None,
            zlib: Decompress::new(true),
            at: HEADER,
            entries: Vec::new(),
            objects: HashMap::new(),
            waiting: HashMap::new(),
            kept: Kept::default(),
            work: 0,
        }
    }

    /// Looks at the entries that came since the last time: `received` of `total` are there.
    ///
    /// # Errors
    /// The pack is refused.
    pub(super) fn look(&mut self, received: usize, total: usize) -> Result<(), Bad> {
        if total > self.bounds.objects {
            let limit = self.bounds.objects as u64;
            return Err(TooLarge { what: "the number of objects".to_owned(), limit }.into());
        }
        // libgit2 notices that only at the end, when it has made objects of all.
        if received > total {
            return Err(Bad::Broken("it holds more objects than it says"));
        }
        while self.entries.len() < received {
            self.entry()?;
        }
        Ok(())
    }

    fn entry(&mut self) -> Result<(), Bad> {
        let mut header = [0; ENTRY_HEADER];
        let length = self.read(self.at, &mut header)?;
        let head = Head::parse(header.get(..length).unwrap_or_default()).ok_or(Bad::Broken("an object's header"))?;
        let (at, data) = (self.at, self.at + head.length);
        let index = self.entries.len();
        let base = match head.form {
            Form::Whole(_) => Base::None,
            // libgit2 would follow it to anywhere in the pack, and read there what nobody has weighed.
            Form::ChangeBefore(distance) => {
                let before = at.checked_sub(distance).ok_or(Bad::Broken("a change of what is not there"))?;
                let found = self.entries.binary_search_by_key(&before, |entry| entry.at);
                Base::Entry(found.map_err(|_| Bad::Broken("a change of what is no object"))?)
            }
            Form::ChangeOf(id) => self.objects.get(&id).map_or(Base::Object(id), |index| Base::Entry(*index)),
        };
        self.entries.push(Entry { at, data, size: head.size, base, known: None });
        let mut ready = Vec::new();
        if let Form::Whole(kind) = head.form {
            let mut digest = begin(kind, head.size);
            self.at = self.inflate(data, head.size, |piece| digest.update(piece))?;
            self.learn(index, digest.finalize().into(), Known { kind, depth: 0 }, &mut ready)?;
        } else {
            self.change_is_small(head.size)?;
            self.at = self.inflate(data, head.size, |_| {})?;
            match base {
                Base::Entry(of) if self.known(of).is_some() => ready.push(index),
                Base::Entry(of) => self.wait(Awaited::Entry(of), index),
                Base::Object(id) => self.wait(Awaited::Object(id), index),
                Base::None => {}
            }
        }
        while let Some(index) = ready.pop() {
            self.settle(index, &mut ready)?;
        }
        Ok(())
    }

    fn wait(&mut self, awaited: Awaited, index: usize) {
        self.waiting.entry(awaited).or_default().push(index);
    }

    fn known(&self, index: usize) -> Option<Known> {
        self.entries.get(index).and_then(|entry| entry.known)
    }

    /// Finds out which object a change makes, of one that is known.
    fn settle(&mut self, index: usize, ready: &mut Vec<usize>) -> Result<(), Bad> {
        let base = match self.entries.get(index).map(|entry| entry.base) {
            Some(Base::Entry(base)) => self.known(base),
            _ => None,
        };
        let Some(Known { kind, depth }) = base else { return Err(Bad::Broken("a change of nothing")) };
        if depth == DEPTH {
            let what = "the number of changes one after the other".to_owned();
            return Err(TooLarge { what, limit: u64::from(DEPTH) }.into());
        }
        let content = self.content(index)?;
        let mut digest = begin(kind, content.len() as u64);
        digest.update(content.as_slice());
        self.learn(index, digest.finalize().into(), Known { kind, depth: depth + 1 }, ready)
    }

    /// Notes which object an entry is, and which changes can be made now.
    fn learn(&mut self, index: usize, id: Id, known: Known, ready: &mut Vec<usize>) -> Result<(), Bad> {
        if self.objects.insert(id, index).is_some() {
            return Err(Bad::Broken("an object is in it twice"));
        }
        if let Some(entry) = self.entries.get_mut(index) {
            entry.known = Some(known);
        }
        for awaited in [Awaited::Entry(index), Awaited::Object(id)] {
            for waiting in self.waiting.remove(&awaited).unwrap_or_default() {
                if let Some(entry) = self.entries.get_mut(waiting) {
                    entry.base = Base::Entry(index);
                }
                ready.push(waiting);
            }
        }
        Ok(())
    }

    /// The content of a change, made as libgit2 makes it: from the nearest object that was kept.
    fn content(&mut self, index: usize) -> Result<Rc<Vec<u8>>, Bad> {
        let (mut changes, mut at) = (Vec::new(), index);
        let mut content = loop {
            if let Some(kept) = self.kept.objects.get(&at) {
                break Rc::clone(kept);
            }
            match self.entries.get(at).map(|entry| entry.base) {
                Some(Base::None) => break Rc::new(self.unpacked(at)?),
                Some(Base::Entry(base)) => {
                    changes.push(at);
                    at = base;
                }
                Some(Base::Object(_)) | None => return Err(Bad::Broken("a change of nothing")),
            }
        };
        while let Some(next) = changes.pop() {
            self.kept.keep(at, &content);
            let delta = self.unpacked(next)?;
            let made = delta::apply(&content, &delta, self.bounds.object)?;
            self.count(made.len() as u64)?;
            (content, at) = (Rc::new(made), next);
        }
        Ok(content)
    }

    /// What an entry holds, if that is small enough for memory.
    fn unpacked(&mut self, index: usize) -> Result<Vec<u8>, Bad> {
        let (data, size) = self.entries.get(index).map_or((0, 0), |entry| (entry.data, entry.size));
        self.change_is_small(size)?;
        let mut content = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
        self.inflate(data, size, |piece| content.extend_from_slice(piece))?;
        Ok(content)
    }

    fn change_is_small(&self, size: u64) -> Result<(), Bad> {
        let limit = self.bounds.object;
        let what = || "a change, or what it changes, in bytes".to_owned();
        if size > limit { Err(TooLarge { what: what(), limit }.into()) } else { Ok(()) }
    }

    fn count(&mut self, bytes: u64) -> Result<(), Bad> {
        self.work = self.work.saturating_add(bytes);
        let limit = self.bounds.work;
        let what = || "what its pack unpacks to in bytes".to_owned();
        if self.work > limit { Err(TooLarge { what: what(), limit }.into()) } else { Ok(()) }
    }

    /// Unpacks what begins at `data` and must be `size` bytes; where it ends.
    fn inflate(&mut self, data: u64, size: u64, mut sink: impl FnMut(&[u8])) -> Result<u64, Bad> {
        self.count(size)?;
        self.zlib.reset(true);
        let (mut packed, mut unpacked) = ([0; PIECE], [0; UNPACKED]);
        loop {
            let (used, made) = (self.zlib.total_in(), self.zlib.total_out());
            let length = self.read(data + used, &mut packed)?;
            let input = packed.get(..length).unwrap_or_default();
            let status = self.zlib.decompress(input, &mut unpacked, FlushDecompress::None);
            let status = status.map_err(|_| Bad::Broken("an object that can't be unpacked"))?;
            let more = self.zlib.total_out() - made;
            if self.zlib.total_out() > size {
                return Err(Bad::Broken("an object that is larger than it says"));
            }
            sink(usize::try_from(more).ok().and_then(|more| unpacked.get(..more)).unwrap_or_default());
            match status {
                Status::StreamEnd if self.zlib.total_out() == size => return Ok(data + self.zlib.total_in()),
                Status::StreamEnd => return Err(Bad::Broken("an object that is smaller than it says")),
                _ if more == 0 && self.zlib.total_in() == used => {
                    return Err(Bad::Broken("an object that ends in the middle"));
                }
                _ => {}
            }
        }
    }

    /// Reads what is there of `buffer`'s length.
    fn read(&mut self, at: u64, buffer: &mut [u8]) -> Result<usize, Bad> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(coming(&self.directory)?),
        };
        let mut length = 0;
        while let Some(rest) = buffer.get_mut(length..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, at + length as u64) {
                Ok(0) => break,
                Ok(more) => length += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(length)
    }
}

/// The pack that comes to a directory.
fn coming(directory: &Path) -> Result<File, Bad> {
    let mut found = None;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(COMING) && found.replace(entry.path()).is_some() {
            return Err(std::io::Error::other("there are two").into());
        }
    }
    Ok(File::open(found.ok_or(ErrorKind::NotFound).map_err(std::io::Error::from)?)?)
}

/// A digest that becomes an object's id.
fn begin(kind: ObjectType, size: u64) -> Sha1 {
    Sha1::new_with_prefix(format!("{} {size}\0", kind.str()))
}

#[cfg(test)]
mod tests;
