//! Zips as nobody's tool writes them.

use std::io::Write as _;

use flate2::Crc;
use flate2::write::DeflateEncoder;

use super::*;

/// An entry of which each field may lie.
#[derive(Clone)]
struct Item {
    name: Vec<u8>,
    /// As the entry itself says it.
    local_name: Vec<u8>,
    method: u16,
    flags: u16,
    data: Vec<u8>,
    sum: u32,
    size: u32,
    mode: u32,
    /// Where the directory says that it begins, if not where it does.
    offset: Option<u32>,
}

fn item(name: &str, content: &[u8]) -> Item {
    let mut sum = Crc::new();
    sum.update(content);
    let name = name.as_bytes().to_vec();
    let size = u32::try_from(content.len()).unwrap();
    let (mode, data) = (0o100_644, content.to_vec());
    Item { local_name: name.clone(), name, method: 0, flags: 1 << 11, data, sum: sum.sum(), size, mode, offset: None }
}

fn deflated(name: &str, content: &[u8]) -> Item {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(content).unwrap();
    Item { method: 8, data: encoder.finish().unwrap(), ..item(name, content) }
}

fn with(item: Item, change: impl FnOnce(&mut Item)) -> Item {
    let mut item = item;
    change(&mut item);
    item
}

fn zip(items: &[Item]) -> Vec<u8> {
    let (mut body, mut directory) = (Vec::new(), Vec::new());
    for item in items {
        let start = item.offset.unwrap_or(u32::try_from(body.len()).unwrap());
        let common = |name: &[u8]| {
            let packed = u32::try_from(item.data.len()).unwrap();
            [
                &20_u16.to_le_bytes()[..],
                &item.flags.to_le_bytes(),
                &item.method.to_le_bytes(),
                &[0, 0, 0x21, 0],
                &item.sum.to_le_bytes(),
                &packed.to_le_bytes(),
                &item.size.to_le_bytes(),
                &u16::try_from(name.len()).unwrap().to_le_bytes(),
                &[0, 0],
            ]
            .concat()
        };
        body.extend([b"PK\x03\x04", &common(&item.local_name)[..], &item.local_name, &item.data].concat());
        let mode = (item.mode << 16).to_le_bytes();
        let made_by = [20, 3];
        let rest = [&[0; 6][..], &[0, 0], &mode, &start.to_le_bytes(), &item.name].concat();
        // Six zero bytes: the comment's length, the disk, inner attributes.
        directory.extend([b"PK\x01\x02", &made_by[..], &common(&item.name), &rest[..4], &rest[6..]].concat());
    }
    finish(body, &directory, items.len())
}

fn finish(mut body: Vec<u8>, directory: &[u8], count: usize) -> Vec<u8> {
    let (count, at) = (u16::try_from(count).unwrap().to_le_bytes(), u32::try_from(body.len()).unwrap().to_le_bytes());
    let size = u32::try_from(directory.len()).unwrap().to_le_bytes();
    body.extend_from_slice(directory);
    body.extend([b"PK\x05\x06", &[0; 4][..], &count, &count, &size, &at, &[0, 0]].concat());
    body
}

#[test]
fn a_zip_is_read_as_a_tar_is() {
    let items = [
        with(item("a/", b""), |item| item.mode = 0o040_755),
        item("a/b", b"stored"),
        deflated("a/c", &[7; 5000]),
        with(item("./d", b""), |item| item.mode = 0),
        item("\u{e9}", b"x"),
    ];
    let expected = tree(&[("a/b", b"stored"), ("a/c", &[7; 5000]), ("d", b""), ("\u{e9}", b"x")]);
    assert_eq!(unpack(&zip(&items), &Limits::default()).unwrap(), expected);
    assert_eq!(unpack(&zip(&[]), &Limits::default()).unwrap(), FileTree::new());
}

#[test]
fn hostile_zips_are_refused() {
    let limits =
        Limits { entries: 50, bytes: 10_000, file_bytes: 9_000, packed_bytes: 100_000, depth: 4, ..Limits::default() };
    let mode = |mode: u32| zip(&[with(item("a", b"x"), |item| item.mode = mode)]);
    let one = |item: Item| zip(&[item]);
    let two = |a: &str, b: &str| zip(&[item(a, b"1"), item(b, b"2")]);
    let named =
        |name: &[u8]| one(with(item("a", b"x"), |item| (item.name, item.local_name) = (name.to_vec(), name.to_vec())));
    let many: Vec<Item> = (0..60).map(|n| item(&format!("f{n}"), b"x")).collect();
    let half = [0; 6_000];
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("absolute", named(b"/etc/passwd"), "not inside of the root"),
        ("parent", named(b"../x"), "not inside of the root"),
        ("parent within", named(b"a/../../x"), "not inside of the root"),
        ("no name", named(b"."), "not inside of the root"),
        ("backslash", named(b"..\\x"), "backslash"),
        ("zero byte", named(b"a\0b"), "control characters"),
        ("not UTF-8", named(b"\xff"), "control characters"),
        ("symlink", mode(0o120_777), "symbolic link"),
        ("device", mode(0o020_666), "device"),
        ("block device", mode(0o060_666), "device"),
        ("pipe", mode(0o010_666), "pipe"),
        ("socket", mode(0o140_666), "unknown kind"),
        ("directory without a slash", mode(0o040_755), "unknown kind"),
        ("directory with contents", one(item("a/", b"x")), "damaged or unknown kind or contents"),
        ("encrypted", one(with(item("a", b"x"), |item| item.flags |= 1)), "encrypted"),
        ("unknown method", one(with(item("a", b"x"), |item| item.method = 12)), "not known"),
        ("twice", two("a", "a"), "damaged"),
        ("twice, spelt differently", two("a/b", "./a//b"), "at one place"),
        ("case", two("a/b", "a/B"), "at one place"),
        ("composed", two("\u{e9}", "e\u{301}"), "at one place"),
        ("file below file", two("a", "a/b"), "at one place"),
        ("deep", named(b"a/b/c/d/e"), "depth"),
        ("many", zip(&many), "number of files"),
        ("big file", one(deflated("a", &[0; 9_001])), "size of \"a\""),
        ("big files", zip(&[deflated("a", &half), deflated("b", &half)]), "size of all files"),
        ("wrong sum", one(with(item("a", b"x"), |item| item.sum ^= 1)), "damaged"),
        ("longer than it says", one(with(deflated("a", &half), |item| item.size = 10)), "damaged"),
        ("shorter than it says", one(with(deflated("a", b"x"), |item| item.size = 5_000)), "damaged"),
        ("stored, shorter than it says", one(with(item("a", b"x"), |item| item.size = 5_000)), "damaged"),
        ("huge by its own word", one(with(item("a", b"x"), |item| item.size = 0xffff_fff0)), "size of \"a\""),
        ("another name inside", one(with(item("a", b"x"), |item| item.local_name = b"b".to_vec())), "damaged"),
        ("overlap", zip(&[item("a", b"x"), with(item("b", b"x"), |item| item.offset = Some(0))]), "damaged"),
        ("beyond the end", one(with(item("a", b"x"), |item| item.offset = Some(1 << 30))), "damaged"),
        ("not in the directory", finish(zip(&[item("a", b"x")])[..32].to_vec(), b"", 0), "damaged"),
        ("fewer than it says", finish(zip(&[item("a", b"x")])[..32].to_vec(), b"", 3), "damaged"),
        ("cut off", zip(&[item("a", b"x")])[..60].to_vec(), "damaged"),
        ("only its start", b"PK\x03\x04".to_vec(), "damaged"),
    ];
    for (name, archive, expected) in cases {
        let error = unpack(&archive, &limits).expect_err(name).to_string();
        let any = expected.split(" or ").any(|expected| error.contains(expected));
        assert!(any, "{name}: {error}");
    }
}

#[test]
fn zip_bombs_end_early() {
    let bomb = zip(&[deflated("a", &vec![0; 5 << 20])]);
    let error = unpack(&bomb, &Limits::default()).unwrap_err().to_string();
    assert!(error.contains("ratio"), "{error}");
    // All entries are one, which is packed once.
    let one = deflated("a", &vec![0; 1 << 20]);
    let overlapping: Vec<Item> = (0..1000)
        .map(|n| {
            let name = format!("{n:04}").into_bytes();
            let data = if n == 0 { one.data.clone() } else { Vec::new() };
            with(one.clone(), |item| {
                (item.name, item.local_name, item.data, item.offset) = (name.clone(), name, data, Some(0));
            })
        })
        .collect();
    assert!(unpack(&zip(&overlapping), &Limits::default()).is_err());
}

#[test]
fn each_damaged_byte_of_a_zip_is_survived() {
    let whole = zip(&[item("a/b", b"hello"), deflated("c", &[1; 300])]);
    let good = unpack(&whole, &Limits::default()).unwrap();
    for at in 0..whole.len() {
        for damage in [0, 0xff, whole[at] ^ 1] {
            let mut damaged = whole.clone();
            damaged[at] = damage;
            if let Ok(files) = unpack(&damaged, &Limits::default()) {
                assert!(files.values().zip(good.values()).all(|(found, content)| found == content), "at {at}");
            }
        }
    }
}
