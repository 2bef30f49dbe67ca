//! Versions put into the files of a stack.

use std::collections::BTreeMap;
use std::fmt::Write;

use bytes::Bytes;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{BundleError, CHART};
use crate::core::files::{FileTree, below};
use crate::core::yaml;

/// Digits of an object id in a version.
const DIGITS: usize = 12;

/// The version of a component without a written one: `v0-sha.g` and a digest of its object id and of the files that
/// belong to it. The `g` keeps a digest of decimal digits from being a number, which in a version has no leading zero.
pub(super) fn of_component(
    files: &FileTree,
    component: &str,
    more: &[&str],
    component_ids: &BTreeMap<String, String>,
) -> String {
    let mut digest = Sha256::new();
    match component_ids.get(component) {
        Some(id) => digest.update(id),
        None => update(&mut digest, below(files, component).iter()),
    }
    update(&mut digest, more.iter().filter_map(|file| files.get_key_value(*file)));
    let mut version = String::from("v0-sha.g");
    for byte in &digest.finalize()[..DIGITS / 2] {
        let _ = write!(version, "{byte:02x}");
    }
    version
}

fn update<'a>(digest: &mut Sha256, files: impl Iterator<Item = (&'a String, &'a Bytes)>) {
    for (path, content) in files {
        digest.update((path.len() as u64).to_be_bytes());
        digest.update(path);
        digest.update((content.len() as u64).to_be_bytes());
        digest.update(content);
    }
}

/// Fills `<< .Key >>` in every text; a key without a value becomes empty, as in csctl. `None` if there is nothing to
/// fill.
pub(super) fn fill_in(files: &FileTree, values: &[(&str, Option<&String>)]) -> Option<FileTree> {
    let mut filled: Option<FileTree> = None;
    for (path, content) in files {
        let Ok(text) = std::str::from_utf8(content) else { continue };
        if !text.contains("<< .") {
            continue;
        }
        let new = values.iter().fold(text.to_owned(), |text, (key, value)| {
            text.replace(&format!("<< {key} >>"), value.map_or("", String::as_str))
        });
        if new != text {
            filled.get_or_insert_with(|| files.clone()).insert(path.clone(), Bytes::from(new));
        }
    }
    filled
}

/// Replaces the version in a chart's `Chart.yaml`. The rest of the file stays as it is, byte by byte: written anew, an
/// `appVersion: 1.10` would come out as `1.1`.
pub(super) fn set(chart: &mut FileTree, directory: &str, version: &str) -> Result<(), BundleError> {
    let file = format!("{directory}/{CHART}");
    let bytes = chart.get(CHART).ok_or_else(|| BundleError::Missing(file.clone()))?;
    let text = std::str::from_utf8(bytes).map_err(|_| BundleError::NoText(file.clone()))?;
    let error =
        |problem: String| BundleError::ChartVersion { file: file.clone(), version: version.to_owned(), problem };
    let mut found = false;
    let lines: Vec<String> = text
        .lines()
        .map(|line| {
            let is_version = ["version:", "\"version\":", "'version':"].iter().any(|key| line.starts_with(key));
            found |= is_version;
            if is_version { format!("version: \"{version}\"") } else { line.to_owned() }
        })
        .collect();
    let new = lines.join("\n") + "\n";
    if !found {
        return Err(error("it has no version: write version: v1 on a line of its own".to_owned()));
    }
    let value = yaml::parse(&new).map_err(|problem| error(problem.to_string()))?;
    if value.get("version").and_then(Value::as_str) != Some(version) {
        return Err(error("its version is not written on a line of its own: write version: v1".to_owned()));
    }
    chart.insert(CHART.to_owned(), Bytes::from(new));
    Ok(())
}

/// A text in a chart's `Chart.yaml`: its `name`, its `version`.
pub(super) fn chart_says(chart: &FileTree, field: &str) -> Option<String> {
    let value = yaml::parse(std::str::from_utf8(chart.get(CHART)?).ok()?).ok()?;
    Some(value.get(field)?.as_str()?.to_owned())
}
