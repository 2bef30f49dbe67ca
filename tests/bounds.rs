//! The bounds of docs/bounds.md are those of the sources.

use std::fs;
use std::path::Path;

#[test]
fn each_bound_is_as_the_page_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/bounds.md")).unwrap();
    let flags = fs::read_to_string(root.join("src/settings.rs")).unwrap();
    let mut held = 0;
    for row in page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| --")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [what, bound, place, beyond] = cells[..] else { panic!("{row}") };
        if what == "what" {
            continue;
        }
        held += 1;
        assert!(!beyond.is_empty(), "{row}");
        let words: Vec<&str> = place.split('`').filter(|word| !word.trim().is_empty()).collect();
        if let [flag, ..] = words[..]
            && let Some(flag) = flag.strip_prefix("--")
        {
            assert!(flags.contains(&format!("pub {}:", flag.replace('-', "_"))), "there is no --{flag}");
            continue;
        }
        let [file, name] = words[..] else { panic!("{row}") };
        let text = fs::read_to_string(root.join("src").join(file)).unwrap_or_else(|_| panic!("there is no src/{file}"));
        let line = text.lines().find(|line| line.contains(&format!("const {name}: ")));
        let value = line.and_then(|line| line.trim_end_matches(';').split_once(" = ")).map(|(_, value)| value);
        assert_eq!(value, Some(bound.trim_matches('`')), "{what}: src/{file} {name}");
    }
    assert!(held >= 50, "{held}");
}
