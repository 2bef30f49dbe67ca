mod zip;

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};

use super::*;

fn tree(files: &[(&str, &[u8])]) -> FileTree {
    files.iter().map(|(path, content)| ((*path).to_owned(), Bytes::copy_from_slice(content))).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A tar with names as given, which a builder would not write.
fn raw(entries: &[(&[u8], EntryType, &[u8])]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, kind, content) in entries {
        let mut header = Header::new_gnu();
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name);
        header.set_entry_type(*kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        if matches!(kind, EntryType::Link | EntryType::Symlink) {
            header.set_link_name("target").unwrap();
        }
        if *kind == EntryType::GNUSparse {
            header.as_gnu_mut().unwrap().set_real_size(0);
        }
        header.set_cksum();
        builder.append(&header, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

fn file(name: &str) -> (&[u8], EntryType, &[u8]) {
    (name.as_bytes(), EntryType::Regular, b"x")
}

#[test]
fn equal_files_give_equal_bytes_and_come_back() {
    let long = format!("a/{}/file", "d".repeat(150));
    let files = tree(&[("b", b"2"), ("a/c", b""), (long.as_str(), b"3")]);
    let packed = pack(&files).unwrap();
    assert_eq!(packed, pack(&files.clone()).unwrap());
    assert_eq!(unpack(&packed, &Limits::default()).unwrap(), files);
    assert_eq!(unpack(&gzip(&packed), &Limits::default()).unwrap(), files);
    assert_eq!(unpack(&pack(&FileTree::new()).unwrap(), &Limits::default()).unwrap(), FileTree::new());
}

#[test]
fn a_gzip_with_another_checksum_is_damaged_however_it_is_read() {
    let packed = pack(&tree(&[("a", b"1"), ("b", b"2")])).unwrap();
    let whole = gzip(&packed);
    for (what, at) in [("checksum", whole.len() - 8), ("length", whole.len() - 4)] {
        let mut broken = whole.clone();
        broken[at] ^= 1;
        let refused = unpack(&broken, &Limits::default());
        assert!(matches!(refused, Err(UnpackError::Damaged(_))), "{what}: {refused:?}");
    }
    for cut in [1, 6, 8] {
        let refused = unpack(&whole[..whole.len() - cut], &Limits::default());
        assert!(matches!(refused, Err(UnpackError::Damaged(_))), "{cut}: {refused:?}");
    }
    // Stored and not deflated: the bytes themselves can be changed.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::none());
    encoder.write_all(&packed).unwrap();
    let mut stored = encoder.finish().unwrap();
    let at = stored.windows(2).position(|two| two == b"1\0").unwrap();
    stored[at] = b'9';
    assert!(matches!(unpack(&stored, &Limits::default()), Err(UnpackError::Damaged(_))));
    // Two members are one text: each is checked.
    let (first, second) = packed.split_at(512);
    let mut two = gzip(first);
    two.extend(gzip(second));
    assert_eq!(unpack(&two, &Limits::default()).unwrap().len(), 2);
    let last = two.len() - 8;
    two[last] ^= 1;
    assert!(matches!(unpack(&two, &Limits::default()), Err(UnpackError::Damaged(_))));
}

#[test]
fn nothing_is_no_archive_and_what_is_quoted_is_text() {
    let message = |bytes: &[u8]| unpack(bytes, &Limits::default()).unwrap_err().to_string();
    assert!(message(b"").ends_with("it is empty"), "{}", message(b""));
    let xz = [b"\xfd7zXZ\0".as_slice(), &[0x16; 600]].concat();
    assert!(!message(&xz).contains(|c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER), "{}", message(&xz));
}

#[test]
fn a_release_comes_back_with_the_ids_of_its_components() {
    let files = tree(&[("cluster-class/Chart.yaml", b"x")]);
    let ids = BTreeMap::from([("cluster-class".to_owned(), "abc".to_owned())]);
    let packed = pack_release(&files, &ids).unwrap();
    assert_eq!(unpack_release(&packed, &Limits::default()).unwrap(), (files.clone(), ids));
    let twice = [("c/values.yaml", "a"), ("c/VALUES.yaml", "b")];
    let twice = twice.map(|(path, text)| (path.to_owned(), Bytes::from_static(text.as_bytes()))).into();
    assert!(matches!(pack_release(&twice, &BTreeMap::new()), Err(UnpackError::Collision { .. })));
    let plain = pack(&files).unwrap();
    assert_eq!(unpack_release(&plain, &Limits::default()).unwrap(), (files, BTreeMap::new()));
}

/// `status.artifact.digest` is that of a packed release: with another form, of ours or of a library's, everything that is applied
/// would count as changed at the source after an upgrade of the operator. What changes it has to know both.
#[test]
fn a_release_is_packed_as_in_every_version_before() {
    let long = format!("cluster-class/templates/{}/objects.yaml", "deep/".repeat(40));
    let files = tree(&[("cluster-class/Chart.yaml", b"x"), (&long, b"long"), ("csctl.yaml", &[0xff; 1000])]);
    let ids = BTreeMap::from([("cluster-class".to_owned(), "abc".to_owned())]);
    let digest = crate::core::digest::hex(&Sha256::digest(pack_release(&files, &ids).unwrap()));
    assert_eq!(digest, "f573696ac33205b089c785a5464a9cba71c3a6e99ce3d2efbf28229d3d17512f");
}

#[test]
fn hostile_archives_are_refused() {
    let limits =
        Limits { entries: 50, bytes: 10_000, file_bytes: 9_000, packed_bytes: 100_000, depth: 4, ..Limits::default() };
    let many: Vec<String> = (0..60).map(|n| format!("f{n}")).collect();
    let many: Vec<_> = many.iter().map(|name| file(name)).collect();
    let big = vec![0; 9_001];
    let half = vec![0; 6_000];
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("absolute", raw(&[file("/etc/passwd")]), "not inside of the root"),
        ("parent", raw(&[file("../x")]), "not inside of the root"),
        ("parent within", raw(&[file("a/../../x")]), "not inside of the root"),
        ("backslash", raw(&[file("..\\x")]), "backslash"),
        ("control", raw(&[file("a\nb")]), "control characters"),
        ("not UTF-8", raw(&[(b"\xff", EntryType::Regular, b"x")]), "control characters"),
        ("no name", raw(&[file(".")]), "not inside of the root"),
        ("symlink", raw(&[(b"a", EntryType::Symlink, b"")]), "symbolic link"),
        ("hard link", raw(&[(b"a", EntryType::Link, b"")]), "hard link"),
        ("character device", raw(&[(b"a", EntryType::Char, b"")]), "device"),
        ("block device", raw(&[(b"a", EntryType::Block, b"")]), "device"),
        ("pipe", raw(&[(b"a", EntryType::Fifo, b"")]), "pipe"),
        ("sparse", raw(&[(b"a", EntryType::GNUSparse, b"")]), "sparse"),
        ("unknown kind", raw(&[(b"a", EntryType::new(b'Z'), b"")]), "unknown kind"),
        ("twice", raw(&[file("a"), file("a")]), "at one place"),
        ("twice, spelt differently", raw(&[file("a/b"), file("./a//b")]), "at one place"),
        ("case", raw(&[file("a/b"), file("a/B")]), "at one place"),
        ("case of a directory", raw(&[file("a/b"), file("A/c")]), "at one place"),
        ("file below file", raw(&[file("a"), file("a/b")]), "at one place"),
        ("file over directory", raw(&[file("a/b"), file("a")]), "at one place"),
        ("deep", raw(&[file("a/b/c/d/e")]), "depth"),
        ("many", raw(&many), "number of files"),
        ("big file", raw(&[(b"a", EntryType::Regular, &big)]), "size of \"a\""),
        (
            "big files",
            raw(&[(b"a", EntryType::Regular, &half), (b"b", EntryType::Regular, &half)]),
            "size of all files",
        ),
        ("big archive", vec![0; 100_001], "size of the archive"),
        ("no archive", b"hello".to_vec(), "damaged"),
        ("no archive, longer", vec![b'x'; 2_000], "damaged"),
        ("cut off", raw(&[(b"a", EntryType::Regular, &half)])[..2_000].to_vec(), "damaged"),
        ("cut off gzip", gzip(&raw(&[file("a")]))[..30].to_vec(), "damaged"),
        ("gzip of nothing", b"\x1f\x8b".to_vec(), "damaged"),
    ];
    for (name, archive, expected) in cases {
        let error = unpack(&archive, &limits).expect_err(name).to_string();
        assert!(error.contains(expected), "{name}: {error}");
        if !archive.starts_with(&[0x1f, 0x8b]) && archive.len() < 100_000 {
            let error = unpack(&gzip(&archive), &limits).expect_err(name).to_string();
            assert!(error.contains(expected), "{name}, compressed: {error}");
        }
    }
}

/// A record of a pax header.
fn record(key: &str, value: &str) -> Vec<u8> {
    let rest = format!(" {key}={value}\n");
    let length = (1..1000).find(|n| n.to_string().len() + rest.len() == *n).unwrap();
    format!("{length}{rest}").into_bytes()
}

#[test]
fn headers_that_override_others_are_held_to_the_same_rules() {
    let limits = Limits { path_bytes: 100, ..Limits::default() };
    let pax = |key: &str, value: &str| {
        let header = record(key, value);
        raw(&[(b"pax", EntryType::XHeader, &header), file("a")])
    };
    let long = |name: &[u8]| raw(&[(b"././@LongLink", EntryType::GNULongName, name), file("a")]);
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("pax path", pax("path", "../x"), "not inside of the root"),
        ("pax path, absolute", pax("path", "/x"), "not inside of the root"),
        ("pax path, zero byte", pax("path", "a\0b"), "control characters"),
        ("pax path, long", pax("path", &"x".repeat(101)), "length of the path"),
        ("pax size", pax("size", "1099511627776"), "size of \"a\""),
        ("pax size, more than there is", pax("size", "2000"), "damaged"),
        ("pax sparse", pax("GNU.sparse.major", "1"), "sparse"),
        ("pax sparse, older", pax("GNU.sparse.size", "9999999"), "sparse"),
        ("pax, broken", raw(&[(b"pax", EntryType::XHeader, b"x"), file("a")]), "damaged"),
        ("long name", long(b"../x\0"), "not inside of the root"),
        ("long name, long", long(&[b'x'; 200]), "length of the path"),
        ("long name, zero byte", long(b"a\0b\0"), "control characters"),
        ("two long names", [&long(b"a\0")[..1024], &long(b"../x\0")].concat(), "damaged"),
    ];
    for (name, archive, expected) in cases {
        let error = unpack(&archive, &limits).expect_err(name).to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
    let good = raw(&[(b"pax", EntryType::XHeader, &record("path", "b/\u{e9}")), file("a")]);
    assert_eq!(unpack(&good, &limits).unwrap(), tree(&[("b/\u{e9}", b"x")]));
}

#[test]
fn names_that_a_file_system_takes_for_one_are_refused() {
    for (first, second) in [("\u{e9}", "e\u{301}"), ("\u{c9}", "e\u{301}"), ("a/\u{212b}", "a/\u{e5}")] {
        let error = unpack(&raw(&[file(first), file(second)]), &Limits::default()).expect_err(first);
        assert!(matches!(error, UnpackError::Collision { .. }), "{first}: {error}");
    }
    unpack(&raw(&[file("\u{e9}"), file("e")]), &Limits::default()).unwrap();
}

#[test]
fn bombs_end_early() {
    let bomb = gzip(&raw(&[(b"a", EntryType::Regular, &vec![0; 40 << 20])]));
    let error = unpack(&bomb, &Limits::default()).unwrap_err().to_string();
    assert!(error.contains("ratio"), "{error}");
    // A name that never ends, which is no file and so not counted as one.
    let endless = gzip(&raw(&[(b"././@LongLink", EntryType::GNULongName, &vec![b'a'; 8 << 20])]));
    let limits = Limits { bytes: 1 << 20, entries: 100, ..Limits::default() };
    assert!(unpack(&endless, &limits).is_err());
}

#[test]
fn a_lie_about_the_size_is_found() {
    let mut archive = raw(&[(b"a", EntryType::Regular, b"x")]);
    let mut header = Header::new_gnu();
    header.as_mut_bytes().copy_from_slice(&archive[..512]);
    header.set_size(1 << 40);
    header.set_cksum();
    archive[..512].copy_from_slice(header.as_bytes());
    let error = unpack(&archive, &Limits::default()).unwrap_err().to_string();
    assert!(error.contains("size of \"a\""), "{error}");
}

#[test]
fn a_gzip_whose_end_does_not_fit_is_refused() {
    let files = tree(&[("a/b", b"x"), ("c", b"")]);
    let tar = pack(&files).unwrap();
    let whole = gzip(&tar);
    assert_eq!(inflated(&whole, &Limits::default()).unwrap(), tar);

    let (first, second) = tar.split_at(700);
    let members = [gzip(first), gzip(second)].concat();
    assert!(inflated(&members, &Limits::default()).is_none());
    assert_eq!(unpack(&members, &Limits::default()).unwrap(), files);

    for said in [0, 1, u32::try_from(tar.len()).unwrap() + 1, 3 << 20, u32::MAX] {
        let mut lying = whole.clone();
        let end = lying.len() - 4;
        lying[end..].copy_from_slice(&said.to_le_bytes());
        assert!(inflated(&lying, &Limits::default()).is_none(), "{said}");
        // Helm does not read so far. What was changed on its way is no release.
        let refused = unpack(&lying, &Limits::default());
        assert!(matches!(refused, Err(UnpackError::Damaged(_))), "{said}: {refused:?}");
    }
    let mut garbled = whole;
    let checksum = garbled.len() - 8;
    garbled[checksum] ^= 1;
    assert!(inflated(&garbled, &Limits::default()).is_none());
    assert!(matches!(unpack(&garbled, &Limits::default()), Err(UnpackError::Damaged(_))));
}

#[test]
fn directories_may_be_named_again_and_headers_are_passed_over() {
    let archive = raw(&[
        (b"pax_global_header", EntryType::XGlobalHeader, b""),
        (b"./", EntryType::Directory, b""),
        (b"a/", EntryType::Directory, b""),
        (b"a", EntryType::Directory, b""),
        file("a/b"),
        (b"a/", EntryType::Directory, b""),
    ]);
    assert_eq!(unpack(&archive, &Limits::default()).unwrap(), tree(&[("a/b", b"x")]));
}

fn tgz(files: &[(&str, &[u8])]) -> Vec<u8> {
    gzip(&pack(&tree(files)).unwrap())
}

#[test]
fn charts_in_charts_are_expanded() {
    let inner = tgz(&[("inner/Chart.yaml", b"inner"), ("inner/values.yaml", b"")]);
    let outer = tgz(&[("outer/Chart.yaml", b"outer"), ("outer/charts/inner-2.tgz", &inner)]);
    let files = tree(&[
        ("cluster-addon/cni/Chart.yaml", b"cni"),
        ("cluster-addon/cni/charts/outer-1.0.tgz", &outer),
        ("cluster-addon/cni/charts/_ignored.tgz", b"_"),
        ("cluster-addon/cni/charts/README.md", b"r"),
        ("cluster-addon/cni/charts/local/Chart.yaml", b"local"),
        ("cluster-addon/cni/charts/local/charts/inner.tgz", &inner),
        ("cluster-addon/cni/files/data.tgz", b"no chart"),
        ("elsewhere/charts/data.tgz", b"no chart either"),
    ]);
    let expanded = expand_charts(files, &Limits::default()).unwrap();
    assert_eq!(
        expanded.keys().map(String::as_str).collect::<Vec<_>>(),
        [
            "cluster-addon/cni/Chart.yaml",
            "cluster-addon/cni/charts/README.md",
            "cluster-addon/cni/charts/_ignored.tgz",
            "cluster-addon/cni/charts/local/Chart.yaml",
            "cluster-addon/cni/charts/local/charts/inner.tgz/inner/Chart.yaml",
            "cluster-addon/cni/charts/local/charts/inner.tgz/inner/values.yaml",
            "cluster-addon/cni/charts/outer-1.0.tgz/outer/Chart.yaml",
            "cluster-addon/cni/charts/outer-1.0.tgz/outer/charts/inner-2.tgz/inner/Chart.yaml",
            "cluster-addon/cni/charts/outer-1.0.tgz/outer/charts/inner-2.tgz/inner/values.yaml",
            "cluster-addon/cni/files/data.tgz",
            "elsewhere/charts/data.tgz",
        ]
    );
}

#[test]
fn of_a_packaged_chart_the_later_file_at_a_path_counts() {
    let entry = |name: &'static str, content: &'static [u8]| (name.as_bytes(), EntryType::Regular, content);
    let packed = gzip(&raw(&[
        entry("c/Chart.yaml", b"first"),
        entry("c/README.md", b"upper"),
        entry("c/readme.md", b"lower"),
        entry("c/./Chart.yaml", b"later"),
    ]));
    let files = tree(&[("c/Chart.yaml", b"later" as &[u8]), ("c/README.md", b"upper"), ("c/readme.md", b"lower")]);
    assert_eq!(unpack_chart(&packed, &Limits::default()).unwrap(), files);
    let chart = tree(&[("Chart.yaml", b"x"), ("charts/c-1.tgz", &packed)]);
    let expanded = expand_charts(chart, &Limits::default()).unwrap();
    assert!(files.iter().all(|(path, content)| expanded[&format!("charts/c-1.tgz/{path}")] == *content));
    assert!(matches!(unpack(&packed, &Limits::default()), Err(UnpackError::Collision { .. })));
    // The other rules hold, and what is written over counts.
    let limits = Limits { bytes: 12, entries: 3, ..Limits::default() };
    for bad in [
        raw(&[entry("a", b"12345678"), entry("a", b"12345678")]),
        raw(&[file("a"), file("a"), file("a"), file("a")]),
        raw(&[file("../a")]),
        raw(&[(b"a", EntryType::Symlink, b"")]),
    ] {
        assert!(unpack_chart(&gzip(&bad), &limits).is_err());
    }
}

#[test]
fn what_follows_behind_the_end_of_a_gzip_is_told() {
    let packed = gzip(&pack(&tree(&[("a", b"1")])).unwrap());
    let junk = [&packed, &b"junk"[..]].concat();
    for read in [unpack, unpack_chart] {
        let error = read(&junk, &Limits::default()).unwrap_err().to_string();
        assert!(error.contains("4 bytes follow behind its end"), "{error}");
        let cut = read(&packed[..packed.len() - 9], &Limits::default()).unwrap_err().to_string();
        assert!(!cut.contains("follow"), "{cut}");
    }
}

#[test]
fn hostile_charts_are_refused_by_name() {
    let chart = |archive: &[u8]| tree(&[("Chart.yaml", b"x"), ("charts/bad.tgz", archive)]);
    let error = expand_charts(chart(&raw(&[file("../x")])), &Limits::default()).unwrap_err().to_string();
    assert!(error.starts_with("charts/bad.tgz: ") && error.contains("not inside of the root"), "{error}");

    let mut both = chart(&tgz(&[("a/Chart.yaml", b"a")]));
    both.insert("charts/bad.tgz/Chart.yaml".to_owned(), Bytes::new());
    assert!(matches!(expand_charts(both, &Limits::default()), Err(UnpackError::Collision { .. })));

    let mut nested = tgz(&[("a/Chart.yaml", b"a")]);
    for _ in 0..6 {
        nested = tgz(&[("a/Chart.yaml", b"a"), ("a/charts/a.tgz", &nested)]);
    }
    let limits = Limits { depth: 5, ..Limits::default() };
    assert!(expand_charts(chart(&nested), &limits).unwrap_err().to_string().contains("depth"));

    // A subchart is weighed by itself, not with what the chart holds beside it.
    let mut large = chart(&tgz(&[("a/Chart.yaml", b"a"), ("a/values.yaml", &vec![b'#'; 50_000])]));
    large.insert("crds/large.yaml".to_owned(), Bytes::from(vec![b'#'; 20 << 20]));
    assert_eq!(expand_charts(large, &Limits::default()).unwrap().len(), 4);
    let bomb = tgz(&[("a/Chart.yaml", &vec![b'#'; 20 << 20])]);
    assert!(expand_charts(chart(&bomb), &Limits::default()).unwrap_err().to_string().contains("ratio"));

    let wide: Vec<(String, Vec<u8>)> =
        (0..20).map(|n| (format!("charts/{n}.tgz"), tgz(&[("a/b", &[0; 1000])]))).collect();
    let mut wide: FileTree = wide.into_iter().map(|(path, content)| (path, Bytes::from(content))).collect();
    wide.insert("Chart.yaml".to_owned(), Bytes::new());
    let limits = Limits { bytes: 15_000, ..Limits::default() };
    assert!(expand_charts(wide, &limits).unwrap_err().to_string().contains("size of all files"));
}
