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

#[test]
fn the_commands_on_disk_are_those_of_the_sources() {
    let there = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cli.md")).unwrap_or_default();
    let same = there == clusterstack(&["reference", "cli"]).succeeds();
    assert!(same, "docs/cli.md is not what the sources say: run hack/generate");
}

#[test]
fn the_rights_on_disk_are_those_of_the_sources() {
    for (of, path) in [
        ("rights", "docs/rights.md"),
        ("operator-rights", "deploy/operator-rights.yaml"),
        ("image-job-rights", "deploy/image-job-rights.yaml"),
        ("people-rights", "deploy/people-rights.yaml"),
    ] {
        let there = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap_or_default();
        let same = there == clusterstack(&["reference", of]).succeeds();
        assert!(same, "{path} is not what the sources say: run hack/generate");
    }
}

#[test]
fn no_category_is_called_like_a_kind() {
    // `kubectl get clusterstack x` would mean all kinds of such a category.
    let definitions = clusterstack::api::custom_resource_definitions();
    let names = definitions.iter().flat_map(|definition| {
        let names = &definition.spec.names;
        let short = names.short_names.iter().flatten();
        short.chain(&names.singular).chain([&names.plural]).cloned().chain([names.kind.to_lowercase()])
    });
    let names: Vec<String> = names.collect();
    for category in definitions.iter().flat_map(|definition| definition.spec.names.categories.iter().flatten()) {
        assert!(!names.contains(category), "{category}");
    }
}

/// The annotation in which plain `kubectl apply` keeps what it applied holds 256 KiB at most.
#[test]
fn each_definition_is_small_enough_for_plain_kubectl_apply() {
    for definition in clusterstack::api::custom_resource_definitions() {
        let size = serde_json::to_vec(&definition).unwrap().len();
        assert!(size < 250_000, "{} has {size} bytes as JSON", definition.metadata.name.unwrap_or_default());
    }
}
