//! A release's archive or a chart's files: unpacked, loaded, with subcharts, values and schemas, and rendered.
#![no_main]

use clusterstack::core::chart::{Chart, merged_values, render};
use clusterstack::core::files::FileTree;
use clusterstack::core::limits::{Limits, check_path};
use clusterstack::io::unpack::{expand_charts, pack, unpack};
use fuzz_targets::{files, input};
use libfuzzer_sys::fuzz_target;

/// Small ones: what is over them is refused, not read.
const LIMITS: Limits = Limits {
    entries: 200,
    bytes: 4 << 20,
    file_bytes: 1 << 20,
    packed_bytes: 5 << 20,
    ratio: 200,
    depth: 32,
    path_bytes: 1024,
};

fuzz_target!(|data: &[u8]| {
    let text = std::str::from_utf8(data).ok().filter(|text| text.starts_with("%% "));
    let tree = match text {
        Some(text) => {
            let tree = files(text);
            packs(&tree);
            tree
        }
        None => match unpack(&with_checksums(data), &LIMITS) {
            Ok(tree) => tree,
            Err(_) => return,
        },
    };
    let Ok(tree) = expand_charts(tree, &LIMITS) else { return };
    _ = Chart::load_directory(&tree);
    let Ok(chart) = Chart::load(&tree) else { return };
    _ = merged_values(&chart, &input());
    _ = render(&chart, &input());
});

/// A tar whose headers are damaged in one way less: otherwise nearly nothing would get past their checksums.
fn with_checksums(data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    let mut at = 0;
    while let Some(header) = data.get_mut(at..at + 512) {
        let size = std::str::from_utf8(&header[124..135]).ok().and_then(|size| usize::from_str_radix(size, 8).ok());
        if header.iter().any(|byte| *byte != 0) {
            header[148..156].fill(b' ');
            let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
            header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        at += 512 + size.unwrap_or(0).min(1 << 20).next_multiple_of(512);
    }
    data
}

/// What is packed unpacks to the same.
fn packs(tree: &FileTree) {
    let good = |path: &String| check_path(path, &LIMITS).is_ok_and(|normal| normal == *path && !path.is_empty());
    if !tree.keys().all(good) {
        return;
    }
    let Ok(archive) = pack(tree) else { return };
    if let Ok(unpacked) = unpack(&archive, &LIMITS) {
        assert_eq!(unpacked, *tree);
    }
}
