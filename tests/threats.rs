//! The threat model of docs/security.md names its tests: each of them exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Names of all test functions below a directory.
pub(crate) fn tests_below(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tests_below(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let mut is_test = false;
            for line in text.lines().map(str::trim) {
                if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                    is_test = true;
                } else if let (true, Some((_, rest))) = (is_test, line.split_once("fn ")) {
                    found.extend(rest.split_once('(').map(|(name, _)| name.to_owned()));
                    is_test = false;
                }
            }
        }
    }
}

#[test]
fn each_threat_has_tests_and_each_of_them_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tests = BTreeSet::new();
    for dir in ["src", "tests", "e2e"] {
        tests_below(&root.join(dir), &mut tests);
    }
    let page = fs::read_to_string(root.join("docs/security.md")).unwrap();
    let table = page.split_once("## Threats and their tests").expect("no table").1;
    let table = table.split_once("\n## ").expect("no end").0;
    let mut threats = 0;
    for row in table.lines().filter(|line| line.starts_with("| ")).skip(2) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [threat, answer, named] = cells[..] else { panic!("{row}") };
        if threat.starts_with("**") {
            continue;
        }
        threats += 1;
        assert!(!answer.is_empty() && !named.is_empty(), "{row}");
        for name in named.split(',').map(|name| name.trim().trim_matches('`')) {
            assert!(tests.contains(name), "{threat}: there is no test {name}");
        }
    }
    assert!(threats > 20, "{threats}");
}
