//! What is generated is what the sources say.

use std::collections::BTreeMap;
use std::path::Path;

use crate::cli::clusterstack;

fn files(directory: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|error| {
        panic!("{} can't be read ({error}): run hack/generate", directory.display());
    });
    entries
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read_to_string(&path).unwrap())
        })
        .collect()
}

#[test]
fn the_definitions_on_disk_are_those_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let new = tempfile::tempdir().unwrap();
    clusterstack(&["crds", "--dir", new.path().to_str().unwrap()]).succeeds();
    assert!(files(&root.join("crds")) == files(new.path()), "crds/ is not what the sources say: run hack/generate");
}

#[test]
fn the_reference_on_disk_is_that_of_the_sources() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/api.md");
    let there = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        there == clusterstack(&["reference"]).succeeds(),
        "docs/api.md is not what the sources say: run hack/generate"
    );
}
