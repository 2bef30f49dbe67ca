//! Real charts render to the objects that Helm 3.21 made of them.
//!
//! The charts and Helm's output lie in `../shared/charts`, or where `CLUSTERSTACK_SHARED` says. Without them the test
//! says so and checks nothing.

#![allow(clippy::unwrap_used, reason = "helpers of a test")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use clusterstack::core::chart::{Capabilities, Chart, Release, RenderInput, Seed, render};
use clusterstack::core::files::FileTree;
use clusterstack::core::yaml;
use serde_json::Value;

pub fn shared() -> Option<PathBuf> {
    let root = std::env::var_os("CLUSTERSTACK_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared"), PathBuf::from);
    let charts = root.join("charts");
    charts.is_dir().then_some(charts)
}

/// The files of a packaged chart; `charts/*.tgz` in it are unpacked to folders of the same name.
pub fn unpack(archive: &[u8]) -> FileTree {
    let mut files = FileTree::new();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(archive));
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path = entry.path().unwrap().to_string_lossy().into_owned();
        let path = path.split_once('/').unwrap().1.to_owned();
        let mut data = Vec::new();
        entry.read_to_end(&mut data).unwrap();
        if path.starts_with("charts/") && path.strip_suffix(".tgz").is_some() && path.matches('/').count() == 1 {
            for (inner, data) in unpack(&data) {
                files.insert(format!("{path}/chart/{inner}"), data);
            }
        } else {
            files.insert(path, Bytes::from(data));
        }
    }
    files
}

/// What identifies an object.
fn key(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!(
        "{} {} {}/{}",
        text(&object["apiVersion"]),
        text(&object["kind"]),
        text(&object["metadata"]["namespace"]),
        text(&object["metadata"]["name"])
    )
}

/// The paths at which two values differ.
fn differences(path: &str, ours: &Value, helms: &Value, out: &mut Vec<String>) {
    match (ours, helms) {
        (Value::Object(ours), Value::Object(helms)) => {
            for name in ours.keys().chain(helms.keys().filter(|name| !ours.contains_key(*name))) {
                let get = |map: &serde_json::Map<String, Value>| map.get(name).cloned();
                match (get(ours), get(helms)) {
                    (Some(ours), Some(helms)) => differences(&format!("{path}.{name}"), &ours, &helms, out),
                    (ours, helms) => out.push(format!("{path}.{name}: ours {ours:?}, Helm's {helms:?}")),
                }
            }
        }
        (Value::Array(ours), Value::Array(helms)) if ours.len() == helms.len() => {
            for (index, (ours, helms)) in ours.iter().zip(helms).enumerate() {
                differences(&format!("{path}[{index}]"), ours, helms, out);
            }
        }
        _ if ours == helms => {}
        _ => out.push(format!("{path}: ours {ours}, Helm's {helms}")),
    }
}

/// Written past the test harness, which hides what a passing test prints.
fn say(text: &str) {
    _ = std::io::Write::write_all(&mut std::io::stderr(), format!("golden: {text}\n").as_bytes());
}

struct Case {
    name: String,
    values: Option<PathBuf>,
    expected: Option<PathBuf>,
    /// Objects that differ from run to run are missing from the expected file.
    random: bool,
}

fn cases(folder: &Path) -> Vec<Case> {
    let mut names: BTreeMap<String, bool> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        if let Some(case) = name.strip_suffix(".expected.yaml") {
            names.insert(case.to_owned(), true);
        } else if let Some(case) = name.strip_suffix(".error.txt") {
            names.insert(case.to_owned(), false);
        }
    }
    let case = |(name, renders): (String, bool)| {
        let file = |suffix: &str| folder.join(format!("{name}.{suffix}"));
        Case {
            values: Some(file("values.yaml")).filter(|path| path.is_file()),
            expected: renders.then(|| file("expected.yaml")),
            random: file("random").is_file(),
            name,
        }
    };
    names.into_iter().map(case).collect()
}

fn check(chart: &Chart, case: &Case) -> Result<(), String> {
    let capabilities = Capabilities::for_kube_version("v1.34.2").unwrap();
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let mut input = RenderInput::new(Release::new("demo", "demo-ns"), &capabilities, now);
    input.seed = Some(Seed([7; 32]));
    if let Some(path) = &case.values {
        input.values = yaml::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    }
    let rendered = render(chart, &input);
    let Some(expected) = &case.expected else {
        return if rendered.is_err() { Ok(()) } else { Err("Helm refuses it, we don't".into()) };
    };
    let rendered = rendered.map_err(|error| error.to_string())?;
    let expected = yaml::parse_all(&std::fs::read_to_string(expected).unwrap()).unwrap();
    let mut ours: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for document in &rendered.documents {
        ours.entry(key(&document.object)).or_default().push(&document.object);
    }
    let mut report = String::new();
    for document in &expected {
        let key = key(&document.value);
        let Some(found) = ours.get_mut(&key).filter(|found| !found.is_empty()) else {
            _ = writeln!(report, "missing: {key}");
            continue;
        };
        let found = found.remove(0);
        let mut paths = Vec::new();
        differences("", found, &document.value, &mut paths);
        for path in paths.iter().take(5) {
            _ = writeln!(report, "{key} {}", path.chars().take(2000).collect::<String>());
        }
    }
    if !case.random {
        for key in ours.iter().filter(|(_, left)| !left.is_empty()).map(|(key, _)| key) {
            _ = writeln!(report, "not in Helm's output: {key}");
        }
        let order = |objects: Vec<&Value>| objects.into_iter().map(key).collect::<Vec<_>>();
        let (ours, helms) = (
            order(
                rendered
                    .documents
                    .iter()
                    .filter(|document| !document.is_crd)
                    .map(|document| &document.object)
                    .collect(),
            ),
            order(expected.iter().map(|document| &document.value).collect()),
        );
        let helms: Vec<_> = helms.into_iter().filter(|key| ours.contains(key)).collect();
        if report.is_empty() && ours != helms {
            let at = ours.iter().zip(&helms).position(|(a, b)| a != b).unwrap_or(0);
            _ = writeln!(report, "order differs from {at} on: ours {:?}, Helm's {:?}", ours.get(at), helms.get(at));
        }
    }
    if report.is_empty() { Ok(()) } else { Err(report) }
}

#[test]
fn real_charts_render_as_helm_renders_them() {
    let Some(charts) = shared() else {
        say("SKIPPED: no shared/charts beside the project; set CLUSTERSTACK_SHARED to check against Helm");
        return;
    };
    let mut folders: Vec<_> = std::fs::read_dir(charts).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    let only = std::env::var("GOLDEN").unwrap_or_default();
    let (mut passed, mut failed) = (0, String::new());
    for folder in folders {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        if !name.contains(&only) {
            continue;
        }
        let chart = Chart::load(&unpack(&std::fs::read(folder.join("chart.tgz")).unwrap()));
        for case in cases(&folder) {
            let result = match &chart {
                Ok(chart) => check(chart, &case),
                Err(_) if case.expected.is_none() => Ok(()),
                Err(error) => Err(error.to_string()),
            };
            match result {
                Ok(()) => passed += 1,
                Err(report) => _ = writeln!(failed, "== {name} {}\n{report}", case.name),
            }
        }
    }
    say(&format!("{passed} cases as Helm renders them"));
    assert!(failed.is_empty(), "{failed}");
}
