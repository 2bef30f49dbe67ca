use std::cell::RefCell;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use git2::{Indexer, Oid};

use super::*;

const ZEROS: [u8; 900] = [0; 900];
const WHOLE: u8 = 3;
const BEFORE: u8 = 6;
const OF: u8 = 7;
const BOUNDS: Bounds = Bounds { objects: 100, object: 1000, work: 20_000 };

/// A pack as a server may make it.
struct Pack {
    bytes: Vec<u8>,
    count: u32,
}

impl Pack {
    fn new() -> Self {
        Self { bytes: b"PACK\0\0\0\x02\0\0\0\0".to_vec(), count: 0 }
    }

    /// Adds an entry that says it is `size` bytes; where it begins.
    fn add(&mut self, kind: u8, size: usize, base: &[u8], content: &[u8]) -> usize {
        self.add_packed(kind, size, base, &packed(content, Compression::default()))
    }

    fn add_packed(&mut self, kind: u8, size: usize, base: &[u8], content: &[u8]) -> usize {
        let at = self.bytes.len();
        let (mut rest, mut byte) = (size >> 4, kind << 4 | u8::try_from(size & 15).unwrap());
        while rest > 0 {
            self.bytes.push(byte | 0x80);
            byte = u8::try_from(rest & 0x7f).unwrap();
            rest >>= 7;
        }
        self.bytes.push(byte);
        self.bytes.extend_from_slice(base);
        self.bytes.extend_from_slice(content);
        self.count += 1;
        at
    }

    fn blob(&mut self, content: &[u8]) -> usize {
        self.add(WHOLE, content.len(), &[], content)
    }

    /// The change of what is at `base`.
    fn before(&mut self, base: usize, delta: &[u8]) -> usize {
        let mut distance = self.bytes.len() - base;
        let mut bytes = vec![u8::try_from(distance & 0x7f).unwrap()];
        while distance > 0x7f {
            distance = (distance >> 7) - 1;
            bytes.insert(0, u8::try_from(distance & 0x7f).unwrap() | 0x80);
        }
        self.add(BEFORE, delta.len(), &bytes, delta)
    }

    /// The change of an object by its content.
    fn of(&mut self, base: &[u8], delta: &[u8]) -> usize {
        let id = Oid::hash_object(ObjectType::Blob, base).unwrap();
        self.add(OF, delta.len(), id.as_bytes(), delta)
    }

    fn done(mut self) -> Vec<u8> {
        self.bytes[8..12].copy_from_slice(&self.count.to_be_bytes());
        let sum = Sha1::digest(&self.bytes);
        self.bytes.extend_from_slice(&sum);
        self.bytes
    }
}

fn packed(content: &[u8], level: Compression) -> Vec<u8> {
    let mut zlib = ZlibEncoder::new(Vec::new(), level);
    zlib.write_all(content).unwrap();
    zlib.finish().unwrap()
}

fn number(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7f {
        bytes.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
        value >>= 7;
    }
    bytes.push(u8::try_from(value).unwrap());
    bytes
}

/// What makes `times` times the first `piece` bytes out of `from` bytes, and `mark` behind.
fn copies(from: usize, piece: u16, times: usize, mark: u8) -> Vec<u8> {
    let [low, high] = piece.to_le_bytes();
    let mut delta = [number(from), number(usize::from(piece) * times + 1)].concat();
    (0..times).for_each(|_| delta.extend_from_slice(&[0xb0, low, high]));
    delta.extend_from_slice(&[1, mark]);
    delta
}

/// Gives a pack to libgit2 in pieces, as a fetch does: what was refused, and whether libgit2 made objects of changes.
fn index(pack: &[u8], bounds: Bounds) -> (Option<Bad>, Result<(), String>, bool) {
    let directory = tempfile::tempdir().unwrap();
    let inspector = RefCell::new(Inspector::new(directory.path().to_owned(), bounds));
    let (bad, changed) = (RefCell::new(None), RefCell::new(false));
    let mut indexer = Indexer::new(None, directory.path(), 0, false).unwrap();
    indexer.progress(|progress| {
        *changed.borrow_mut() |= progress.indexed_deltas() > 0;
        let looked = inspector.borrow_mut().look(progress.received_objects(), progress.total_objects());
        *bad.borrow_mut() = looked.err();
        bad.borrow().is_none()
    });
    let written = pack.chunks(100).try_for_each(|piece| indexer.write_all(piece));
    let done = match written {
        Ok(()) => indexer.commit().map(drop).map_err(|error| error.message().to_owned()),
        Err(error) => Err(error.to_string()),
    };
    (bad.take(), done, changed.take())
}

#[test]
fn what_git_makes_is_taken() {
    let base: Vec<u8> = (0..200_u8).collect();
    let mut pack = Pack::new();
    // Changes of what comes later, by way of another, and in a row.
    let made = [vec![7; 0], base[..50].to_vec(), b"x".to_vec()].concat();
    pack.of(&made, &copies(51, 10, 2, b'y'));
    let at = pack.of(&base, &copies(200, 50, 1, b'x'));
    pack.before(at, &copies(51, 51, 3, b'z'));
    let at = pack.blob(&base);
    let mut at = pack.before(at, &copies(200, 200, 1, 1));
    for index in 0..20_u16 {
        at = pack.before(at, &copies(201 + usize::from(index), 201 + index, 1, 2));
    }
    // Not held in memory, so it may be larger.
    pack.blob(&[1; 5000]);
    pack.blob(b"");
    let (bad, done, changed) = index(&pack.done(), BOUNDS);
    assert!(bad.is_none(), "{bad:?}");
    done.unwrap();
    assert!(changed);
}

type Build = fn(&mut Pack);

/// That none of these packs gets as far as to objects that are made of changes.
fn are_refused(rows: &[(&str, Build)]) {
    for (expected, build) in rows {
        let mut pack = Pack::new();
        build(&mut pack);
        let (bad, done, changed) = index(&pack.done(), BOUNDS);
        let said = bad.as_ref().map(ToString::to_string).unwrap_or_default();
        assert!(said.contains(expected), "{expected}: {bad:?} {done:?}");
        assert!(done.is_err(), "{expected}");
        assert!(!changed, "{expected}: libgit2 went on");
    }
}

#[test]
fn a_pack_that_would_be_large_ends_before_it_is() {
    are_refused(&[
        ("the result of a change", |pack| {
            let at = pack.blob(&ZEROS);
            pack.before(at, &copies(900, 500, 2, 1));
        }),
        ("the result of a change", |pack| {
            pack.of(&ZEROS, &copies(900, 900, 100, 1));
            pack.blob(&ZEROS);
        }),
        ("a change, or what it changes", |pack| {
            let at = pack.blob(&[0; 1001]);
            pack.before(at, &copies(1001, 1, 1, 1));
        }),
        ("a change, or what it changes", |pack| {
            let at = pack.blob(&ZEROS);
            pack.before(at, &copies(900, 1, 500, 1));
        }),
        ("unpacks to", |pack| {
            pack.blob(&vec![0; 20_001]);
        }),
        ("unpacks to", |pack| {
            let at = pack.blob(&ZEROS);
            for mark in 0..40 {
                pack.before(at, &copies(900, 900, 1, mark));
            }
        }),
        ("the number of objects", |pack| {
            for index in 0..101_u8 {
                pack.blob(&[index]);
            }
        }),
    ]);
}

#[test]
fn a_pack_that_lies_is_refused() {
    are_refused(&[
        ("larger than it says", |pack| {
            pack.add(WHOLE, 10, &[], &ZEROS);
        }),
        ("smaller than it says", |pack| {
            pack.add(WHOLE, 901, &[], &ZEROS);
        }),
        // libgit2 follows a distance to anywhere, and here it would find an object in the content of another.
        ("a change of what is no object", |pack| {
            let mut hidden = Pack::new();
            hidden.blob(&ZEROS);
            let content = &hidden.bytes[12..];
            let at = pack.add_packed(WHOLE, content.len(), &[], &packed(content, Compression::none()));
            let inside = pack.bytes[at..].windows(content.len()).position(|piece| piece == content).unwrap();
            pack.before(at + inside, &copies(900, 1, 1, 1));
        }),
        // libgit2 never frees the result of the second.
        ("in it twice", |pack| {
            let at = pack.blob(&ZEROS);
            pack.before(at, &copies(900, 900, 1, 1));
            pack.before(at, &copies(900, 900, 1, 1));
        }),
        ("more objects than it says", |pack| {
            let at = pack.blob(&ZEROS);
            for mark in 0..3 {
                pack.before(at, &copies(900, 1, 1, mark));
            }
            pack.count -= 1;
        }),
    ]);
}

#[test]
fn a_long_row_of_changes_is_refused() {
    let bounds = Bounds { objects: 10_000, object: 10_000, work: 1 << 30 };
    for (length, refused) in [(4095, false), (4096, true)] {
        let mut pack = Pack::new();
        let mut at = pack.blob(b"");
        for size in 0..length {
            at = pack.before(at, &[number(size), number(size + 1), grown(size), vec![1, 1]].concat());
        }
        let (bad, done, _) = index(&pack.done(), bounds);
        assert_eq!((bad.is_some(), done.is_err()), (refused, refused), "{length}: {bad:?} {done:?}");
    }
}

/// Copies the first `size` bytes.
fn grown(size: usize) -> Vec<u8> {
    let [low, high] = u16::try_from(size).unwrap().to_le_bytes();
    if size == 0 { Vec::new() } else { vec![0xb0, low, high] }
}

#[test]
fn kept_objects_are_few() {
    let mut kept = Kept::default();
    for index in 0..100 {
        kept.keep(index, &Rc::new(vec![0; LARGEST_KEPT]));
        assert!(kept.bytes <= KEPT && kept.objects.len() * LARGEST_KEPT == kept.bytes);
    }
    kept.keep(100, &Rc::new(vec![0; LARGEST_KEPT + 1]));
    assert!(!kept.objects.contains_key(&100));
}
