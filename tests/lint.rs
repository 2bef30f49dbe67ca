//! `clusterstack lint` with the stacks that are there.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::cli::clusterstack;

fn sample(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("stacks/docker").join(name).to_str().unwrap().to_owned()
}

fn crds() -> Option<PathBuf> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    let crds = std::env::var_os("CLUSTERSTACK_SHARED").map_or_else(default, PathBuf::from).join("crds");
    if crds.is_dir() {
        return Some(crds);
    }
    eprintln!("SKIPPED: no CRDs at {} (set CLUSTERSTACK_SHARED)", crds.display());
    None
}

#[test]
fn the_stacks_here_are_clean() {
    for stack in ["hello", "hello-tera"] {
        let mut args = vec!["lint".to_owned(), sample(stack)];
        if let Some(crds) = crds() {
            args.extend(["--crds".to_owned(), crds.to_str().unwrap().to_owned()]);
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let told = clusterstack(&args).succeeds();
        let expected = if stack == "hello" { 0 } else { 1 };
        assert_eq!(told.lines().count(), expected + 1, "{told}");
        // Its name holds a dash, which only the Go operator minds.
        assert!(told.contains("name-dash") == (stack == "hello-tera") && told.contains("0 errors"), "{told}");
    }
}

#[test]
fn the_exit_code_says_what_is_in_the_way() {
    let warned = sample("hello-tera");
    clusterstack(&["lint", &warned]).succeeds();
    clusterstack(&["lint", &warned, "--strict"]).fails(1);
    let empty = tempfile::tempdir().unwrap();
    let told = clusterstack(&["lint", empty.path().to_str().unwrap(), "-o", "json"]).gives(1);
    let report: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(report["findings"][0]["rule"], "csctl");
    let gone = empty.path().join("gone");
    let error = clusterstack(&["lint", gone.to_str().unwrap()]).fails(2);
    assert!(error.contains("can't be looked at") && error.contains("hint:"), "{error}");
    for args in [["--crds", empty.path().to_str().unwrap()], ["--kubernetes", "one"], ["--server", "/nonexistent"]] {
        clusterstack(&["lint", &sample("hello"), args[0], args[1]]).fails(2);
    }
    clusterstack(&["lint"]).fails(2);
}

#[test]
fn pipelines_get_their_forms() {
    let stack = sample("hello-tera");
    let sarif: Value = serde_json::from_str(&clusterstack(&["lint", &stack, "-o", "sarif"]).succeeds()).unwrap();
    assert_eq!(sarif["runs"][0]["results"][0]["ruleId"], "name-dash");
    let xml = clusterstack(&["lint", &stack, "-o", "junit"]).succeeds();
    assert!(xml.starts_with("<?xml") && xml.contains("failures=\"0\""), "{xml}");
}

#[test]
fn values_that_a_schema_of_the_cluster_refuses_are_found() {
    let Some(crds) = crds() else { return };
    let directory = tempfile::tempdir().unwrap();
    let stack = directory.path().join("stack");
    for (path, content) in clusterstack::io::stack::read(Path::new(&sample("hello"))).unwrap().files {
        let path = stack.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let template = stack.join("cluster-class/templates/docker-cluster-template.yaml");
    let text = fs::read_to_string(&template).unwrap();
    fs::write(&template, text.replace("spec: {}", "spec: {notThere: true}")).unwrap();
    let args = ["lint", stack.to_str().unwrap(), "--crds", crds.to_str().unwrap()];
    let told = clusterstack(&args).gives(1);
    assert!(
        told.contains("cluster-class/templates/docker-cluster-template.yaml: error: DockerClusterTemplate "),
        "{told}"
    );
    assert!(told.contains("notThere") && told.contains("[object-schema]"), "{told}");
}

#[test]
fn the_page_lists_every_rule() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/publishing.md")).unwrap();
    for rule in clusterstack::core::lint::RULES {
        let severity = clusterstack::core::lint::report::level(rule.severity);
        let row = format!("| `{}` | {severity} | {} |", rule.id, rule.about);
        assert!(page.contains(&row), "docs/publishing.md lacks: {row}");
    }
}
