//! What the fuzz targets share: bounded memory, small limits, a chart from one text.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use clusterstack::core::chart::{Capabilities, Chart, Limits, Release, RenderInput, Seed};
use clusterstack::core::files::FileTree;
use jiff::Timestamp;

/// Bytes that may be in use at once. libFuzzer looks at the memory once a second: what is freed before, it overlooks.
const MEMORY: usize = 384 << 20;

/// The system's memory, bounded: wanting more is a crash.
struct Bounded;

#[global_allocator]
static BOUNDED: Bounded = Bounded;
static USED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all but the counting is the system's.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let before = USED.fetch_add(layout.size(), Ordering::Relaxed);
        if before.saturating_add(layout.size()) > MEMORY {
            USED.fetch_sub(layout.size(), Ordering::Relaxed);
            return std::ptr::null_mut();
        }
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

/// Small enough that a template that does all it may ends in a moment.
pub const LIMITS: Limits = Limits { include_depth: 50, output: 1 << 16, steps: 20_000 };

static CAPABILITIES: LazyLock<Capabilities> = LazyLock::new(|| Capabilities::for_kube_version("v1.34.2").unwrap());

/// The input of every rendering.
pub fn input() -> RenderInput<'static> {
    let mut input = RenderInput::new(Release::new("demo", "demo-ns"), &CAPABILITIES, Timestamp::UNIX_EPOCH);
    input.limits = LIMITS;
    input.seed = Some(Seed([1; 32]));
    let cluster = serde_json::json!({"metadata": {"name": "demo"}, "spec": {"replicas": 3, "hosts": ["a", "b"]}});
    input.extra = BTreeMap::from([("Cluster".to_owned(), cluster)]);
    input
}

/// The files of a text: a line `%% path` starts each.
pub fn files(text: &str) -> FileTree {
    let mut files = FileTree::new();
    for part in text.strip_prefix("%% ").unwrap_or(text).split("\n%% ") {
        let (path, content) = part.split_once('\n').unwrap_or((part, ""));
        files.insert(path.to_owned(), Bytes::copy_from_slice(content.as_bytes()));
    }
    files
}

/// A chart with these files besides the ones that it needs.
pub fn chart(more: &[(&str, &str)]) -> Option<Chart> {
    let mut files = FileTree::from([
        ("Chart.yaml".to_owned(), Bytes::from_static(b"apiVersion: v2\nname: fuzz\nversion: 1.2.3\nappVersion: 1.0\n")),
        ("files/a.txt".to_owned(), Bytes::from_static(b"one\ntwo\n")),
    ]);
    files.extend(more.iter().map(|(path, text)| ((*path).to_owned(), Bytes::copy_from_slice(text.as_bytes()))));
    Chart::load(&files).ok()
}

/// Values and templates, apart from each other by lines `%%`.
pub fn parts(text: &str) -> (&str, &str, &str) {
    let (values, template) = text.split_once("\n%%\n").unwrap_or(("", text));
    let (template, partial) = template.split_once("\n%%\n").unwrap_or((template, ""));
    (values, template, partial)
}

/// A tar whose headers are damaged in one way less: otherwise nearly nothing would get past their checksums.
pub fn with_checksums(data: &[u8]) -> Vec<u8> {
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
