//! Dependencies point one way: `api ← core ← io ← controllers ← cli ← main`, and `core` is pure.

use std::fs;
use std::path::{Path, PathBuf};

/// The layers in order. Each may use those before it; `settings` is used by those after `io`, and `io` for its flags.
const LAYERS: &[&str] = &["api", "core", "io", "controllers", "cli"];

/// What a pure layer must not touch.
const IMPURE: &[&str] = &[
    "tokio",
    "std::fs",
    "std::env",
    "std::net::Tcp",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "SystemTime",
    "Timestamp::now",
    "Instant::now",
    "kube::Client",
    "kube::Api",
    "rand::",
    "tracing",
    "async fn",
    "git2",
    "println!",
    "eprintln!",
];

fn sources(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.push((path, text));
        }
    }
    found
}

/// The code of a file: without comments, and without the tests at its end.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let code = text.lines().enumerate().take_while(|(_, line)| !line.starts_with("#[cfg(test)]"));
    code.map(|(n, line)| (n + 1, line.split("//").next().unwrap_or_default()))
}

fn layer(name: &str) -> Vec<(PathBuf, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(name);
    let is_test = |path: &Path| {
        path.file_stem().is_some_and(|stem| stem == "tests") || path.components().any(|c| c.as_os_str() == "tests")
    };
    sources(&dir).into_iter().filter(|(path, _)| !is_test(path)).collect()
}

#[test]
fn imports_point_one_way() {
    let mut wrong = Vec::new();
    for (at, name) in LAYERS.iter().enumerate() {
        for (path, text) in layer(name) {
            for (line, code) in code(&text) {
                for above in &LAYERS[at + 1..] {
                    if code.contains(&format!("crate::{above}::")) || code.contains(&format!("clusterstack::{above}::"))
                    {
                        wrong.push(format!("{}:{line}: {name} uses {above}", path.display()));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_core_is_pure() {
    let mut wrong = Vec::new();
    for (path, text) in layer("core").into_iter().chain(layer("api")) {
        for (line, code) in code(&text) {
            for word in IMPURE.iter().filter(|word| code.contains(**word)) {
                wrong.push(format!("{}:{line}: {word} in a pure layer", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn library_code_never_ends_the_process() {
    for name in LAYERS {
        for (path, text) in layer(name) {
            assert!(
                !code(&text).any(|(_, line)| line.contains("process::exit")),
                "{} ends the process",
                path.display()
            );
        }
    }
}

#[test]
fn no_folder_is_called_after_nothing() {
    for (path, _) in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        for part in ["utils", "util", "common", "helpers", "manager", "misc"] {
            let names_it =
                path.components().any(|c| c.as_os_str() == part || c.as_os_str() == format!("{part}.rs").as_str());
            assert!(!names_it, "{} is called after nothing", path.display());
        }
    }
}
