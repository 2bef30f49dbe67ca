//! An archive of any kind: refused, or within the limits, at good paths, and the same when packed again.
#![no_main]

use clusterstack::core::limits::{Limits, check_path};
use clusterstack::io::unpack::{pack, unpack};
use fuzz_targets::with_checksums;
use libfuzzer_sys::fuzz_target;

/// Small ones: what is over them is refused, not read.
const LIMITS: Limits = Limits {
    entries: 50,
    bytes: 1 << 20,
    file_bytes: 1 << 19,
    packed_bytes: 2 << 20,
    ratio: 200,
    depth: 8,
    path_bytes: 256,
};

fuzz_target!(|data: &[u8]| {
    look(data);
    if !data.starts_with(b"PK") && !data.starts_with(&[0x1f, 0x8b]) {
        look(&with_checksums(data));
    }
});

fn look(data: &[u8]) {
    let Ok(files) = unpack(data, &LIMITS) else { return };
    assert!(files.len() <= LIMITS.entries, "too many files");
    assert!(files.values().map(|content| content.len() as u64).sum::<u64>() <= LIMITS.bytes, "too many bytes");
    for path in files.keys() {
        assert_eq!(check_path(path, &LIMITS).as_ref(), Ok(path));
        assert!(!path.is_empty(), "a file without a name");
        let above: Vec<&str> = path.match_indices('/').map(|(end, _)| &path[..end]).collect();
        assert!(above.iter().all(|above| !files.contains_key(*above)), "a file below a file");
    }
    if let Ok(again) = pack(&files) {
        assert_eq!(unpack(&again, &LIMITS).as_ref(), Ok(&files));
    }
}
