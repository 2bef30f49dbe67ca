//! A release's archive or a chart's files: unpacked, loaded, with subcharts, values and schemas, and rendered.
#![no_main]

use clusterstack::core::chart::{Chart, merged_values, render};
use clusterstack::core::files::FileTree;
use clusterstack::core::limits::{Limits, check_path};
use clusterstack::io::unpack::{expand_charts, pack, unpack};
use fuzz_targets::{files, input, with_checksums};
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
