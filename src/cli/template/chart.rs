//! A chart on disk: a directory or an archive.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bytes::Bytes;

use crate::cli::report::Hinted;
use crate::core::chart::Chart;
use crate::core::files::{FileTree, below};
use crate::core::limits::Limits;
use crate::io::unpack;

/// Reads a chart, its vendored subcharts unpacked.
///
/// # Errors
/// What is no chart, or one that Helm would refuse.
pub fn read(path: &Path) -> Result<Chart> {
    let limits = Limits::default();
    let is_directory = path.metadata().map_err(|error| missing(path, error))?.is_dir();
    let files = if is_directory { directory(path, &limits)? } else { archive(path, &limits)? };
    let is_chart = files.contains_key("Chart.yaml");
    let failed = || format!("{} can't be loaded", path.display());
    let files = unpack::expand_charts(files, &limits).with_context(failed)?;
    let chart = if is_directory { Chart::load_directory(&files) } else { Chart::load(&files) };
    match chart {
        Err(error) if !is_chart => Err(Hinted::new(failed(), hint(path)).because(error).into()),
        chart => chart.with_context(failed),
    }
}

fn missing(path: &Path, error: std::io::Error) -> anyhow::Error {
    let hint = "CHART is a directory with a Chart.yaml, or a .tgz of one; charts of repositories are not fetched";
    Hinted::new(format!("no chart at {}", path.display()), hint).because(error).into()
}

/// What may have been meant.
fn hint(path: &Path) -> String {
    let parts = ["cluster-class", "cluster-addon"].map(|part| path.join(part));
    let charts: Vec<String> =
        parts.iter().filter(|part| part.join("Chart.yaml").exists()).map(|part| part.display().to_string()).collect();
    if charts.is_empty() {
        "a chart is a directory with a Chart.yaml, or a .tgz of one".to_owned()
    } else {
        format!("it is a cluster stack; name one of its charts: {}", charts.join(", "))
    }
}

/// The files of an archive, without the folder that holds them all.
fn archive(path: &Path, limits: &Limits) -> Result<FileTree> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let files = unpack::unpack_chart(&bytes, limits).with_context(|| format!("cannot unpack {}", path.display()))?;
    let root = files.keys().find_map(|path| path.strip_suffix("/Chart.yaml").filter(|root| !root.contains('/')));
    Ok(root.map(|root| below(&files, root)).unwrap_or(files))
}

/// The files of a directory. Links are followed, as Helm follows them.
fn directory(root: &Path, limits: &Limits) -> Result<FileTree> {
    let mut files = FileTree::new();
    let mut bytes = 0;
    let mut todo: Vec<(PathBuf, String, usize)> = vec![(root.to_owned(), String::new(), 0)];
    while let Some((directory, prefix, depth)) = todo.pop() {
        let read = || format!("cannot read {}", directory.display());
        for entry in std::fs::read_dir(&directory).with_context(read)? {
            let entry = entry.with_context(read)?;
            let path = entry.path();
            let name = entry.file_name();
            let name = name.to_str().with_context(|| format!("the name of {} is no UTF-8", path.display()))?;
            anyhow::ensure!(
                !name.chars().any(char::is_control),
                "{name:?} in {} has control characters in its name",
                directory.display()
            );
            let metadata = path.metadata().with_context(|| match std::fs::read_link(&path) {
                Ok(to) => format!("cannot read {}, a link to {}", path.display(), to.display()),
                Err(_) => format!("cannot read {}", path.display()),
            })?;
            if metadata.is_dir() {
                anyhow::ensure!(depth < limits.depth, "{} is nested too deep for a chart", path.display());
                todo.push((path, format!("{prefix}{name}/"), depth + 1));
                continue;
            }
            bytes += metadata.len();
            let fits = bytes <= limits.bytes && files.len() < limits.entries;
            anyhow::ensure!(metadata.is_file(), "{} is neither a file nor a directory", path.display());
            anyhow::ensure!(fits, "{} holds too much for a chart", root.display());
            let content = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            files.insert(format!("{prefix}{name}"), Bytes::from(content));
        }
    }
    Ok(files)
}
