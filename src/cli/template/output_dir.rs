//! Writes what each template rendered to a file of its own, as `helm template --output-dir` does.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::cli::output;
use crate::core::chart::Document;

/// Writes the documents below the directory that `directory_of` gives, and prints the name of each file. What a file
/// held before is gone; Helm appends hooks to it.
///
/// # Errors
/// A file that can't be written, or that would lie outside of the directory.
pub fn write<'a>(documents: &[Document], directory_of: impl Fn(&Document) -> &'a Path) -> Result<()> {
    let mut files: BTreeMap<PathBuf, String> = BTreeMap::new();
    for document in documents {
        let source = Path::new(&document.source);
        let is_below = source.components().all(|part| matches!(part, Component::Normal(_)));
        ensure!(is_below, "template {:?} has a name that leads out of the directory", document.source);
        let text = files.entry(directory_of(document).join(source)).or_default();
        // Writing to a String can't fail.
        let _ = writeln!(text, "---\n# Source: {}\n{}", document.source, document.text);
    }
    for (path, text) in files {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
        }
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        output::print(&format!("wrote {}\n", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn document(source: &str, text: &str, is_crd: bool) -> Document {
        Document { source: source.into(), object: Value::Null, text: text.into(), hook: None, is_crd }
    }

    #[test]
    fn each_template_has_its_file_and_none_lies_outside() {
        let dir = tempfile::tempdir().unwrap();
        let of_release = dir.path().join("web");
        let documents = [
            document("c/crds/x.yaml", "x: 1\n", true),
            document("c/templates/a.yaml", "a: 1", false),
            document("c/charts/d/templates/b.yaml", "b: 1", false),
            document("c/templates/a.yaml", "a: 2", false),
        ];
        for _ in 0..2 {
            write(&documents, |document| if document.is_crd { dir.path() } else { &of_release }).unwrap();
        }
        for (path, text) in [
            ("c/crds/x.yaml", "---\n# Source: c/crds/x.yaml\nx: 1\n\n"),
            (
                "web/c/templates/a.yaml",
                "---\n# Source: c/templates/a.yaml\na: 1\n---\n# Source: c/templates/a.yaml\na: 2\n",
            ),
            ("web/c/charts/d/templates/b.yaml", "---\n# Source: c/charts/d/templates/b.yaml\nb: 1\n"),
        ] {
            assert_eq!(fs::read_to_string(dir.path().join(path)).unwrap(), text, "{path}");
        }
        for outside in ["../x.yaml", "/x.yaml", "c/../../x.yaml"] {
            let error = write(&[document(outside, "", false)], |_| &of_release).unwrap_err();
            assert!(error.to_string().contains("leads out of the directory"), "{error}");
        }
    }
}
