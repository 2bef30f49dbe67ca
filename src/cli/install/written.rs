//! Writes files into a directory that may hold what was written before: what somebody changed there stays.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::super::report::Hinted;
use crate::core::digest::hex;

/// The file that says what was written, in the form of `sha256sum`.
const SUMS: &str = ".clusterstack-files";

/// Writes `files` below `dir`, and removes what was written there before and is no longer part of them.
///
/// # Errors
/// A file of them is there already and is not as it was written: nothing is changed then.
pub(super) fn write(dir: &Path, files: &BTreeMap<String, Vec<u8>>) -> Result<()> {
    let before = sums(dir)?;
    for path in files.keys().chain(before.keys()) {
        let Some(there) = read(&dir.join(path))? else { continue };
        let is_ours = files.get(path) == Some(&there) || before.get(path) == Some(&sum(&there));
        if !is_ours {
            let message = format!("{} is not as it was written by this command", dir.join(path).display());
            let hint = "nothing was changed: keep values and patches in files of your own, or name another directory";
            return Err(Hinted::new(message, hint).into());
        }
    }
    for path in before.keys().filter(|path| !files.contains_key(*path)) {
        let path = dir.join(path);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => {}
        }
    }
    for (path, content) in files {
        put(&dir.join(path), content)?;
    }
    let lines: Vec<String> = files.iter().map(|(path, content)| format!("{}  {path}", sum(content))).collect();
    put(&dir.join(SUMS), (lines.join("\n") + "\n").as_bytes())
}

fn put(path: &Path, content: &[u8]) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// What was written before: the sum of each file, by its path. Paths that lead out of the directory are not taken.
fn sums(dir: &Path) -> Result<BTreeMap<String, String>> {
    let text = read(&dir.join(SUMS))?.unwrap_or_default();
    let is_inside =
        |path: &str| Path::new(path).components().all(|part| matches!(part, std::path::Component::Normal(_)));
    let lines = String::from_utf8_lossy(&text);
    let pairs = lines.lines().filter_map(|line| line.split_once("  ")).filter(|(_, path)| is_inside(path));
    Ok(pairs.map(|(sum, path)| (path.to_owned(), sum.to_owned())).collect())
}

fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn sum(content: &[u8]) -> String {
    hex(&Sha256::digest(content))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(all: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
        all.iter().map(|(path, content)| ((*path).to_owned(), content.as_bytes().to_vec())).collect()
    }

    #[test]
    fn what_somebody_changed_stays_and_what_is_no_longer_part_goes() {
        let dir = tempfile::tempdir().unwrap();
        let read = |path: &str| fs::read_to_string(dir.path().join(path)).ok();
        let first = files(&[("values.yaml", "a"), ("templates/old.yaml", "b")]);
        write(dir.path(), &first).unwrap();
        write(dir.path(), &first).unwrap();
        fs::write(dir.path().join("mine.yaml"), "m").unwrap();

        let second = files(&[("values.yaml", "c")]);
        write(dir.path(), &second).unwrap();
        assert_eq!(
            [read("values.yaml"), read("templates/old.yaml"), read("mine.yaml")],
            [Some("c".to_owned()), None, Some("m".to_owned())]
        );

        fs::write(dir.path().join("values.yaml"), "edited").unwrap();
        let error = write(dir.path(), &first).unwrap_err().to_string();
        assert!(error.contains("values.yaml is not as it was written"), "{error}");
        assert_eq!([read("values.yaml"), read("templates/old.yaml")], [Some("edited".to_owned()), None]);
    }

    #[test]
    fn what_was_there_before_is_not_written_over() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("values.yaml"), "mine").unwrap();
        write(dir.path(), &files(&[("Chart.yaml", "x"), ("values.yaml", "ours")])).unwrap_err();
        assert!(!dir.path().join("Chart.yaml").exists());
        write(dir.path(), &files(&[("values.yaml", "mine")])).unwrap();
        fs::write(dir.path().join(SUMS), format!("{}  ../x\n", sum(b"x"))).unwrap();
        assert!(sums(dir.path()).unwrap().is_empty());
    }
}
