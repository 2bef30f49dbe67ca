//! Hashes of a stack's components: what csctl writes into `hashes.json`, and what it leaves out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{ADDON_CONFIG, ADDON_VALUES, ADDON_VALUES_TERA, HASHES, METADATA};
use crate::core::bundle::{CLUSTER_ADDON, CLUSTER_CLASS};
use crate::core::digest::hex;
use crate::core::files::{FileTree, below};

/// Letters of a hash in a version.
const LETTERS: usize = 7;

/// Hashes of what a stack's directory holds, empty where there is nothing. Each is csctl's: Go's `h1:` over the names and
/// contents of all files of a directory, in lowercase letters and digits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hashes {
    /// Of everything.
    pub cluster_stack: String,
    /// Of `cluster-class`; csctl has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster_class_dir: String,
    /// Of `cluster-addon`.
    pub cluster_addon_dir: String,
    /// Of `cluster-addon-values.yaml`.
    pub cluster_addon_values: String,
    /// Of `clusteraddon.yaml`; csctl has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster_addon_config: String,
    /// Of `node-image`, `node-images` and `node-images.yaml`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_image_dir: String,
}

impl Hashes {
    /// The hashes of a stack's directory. What an earlier packaging left there (`metadata.yaml`, `hashes.json`) and hidden
    /// entries at its top, such as `.git`, don't count.
    pub fn of(files: &FileTree) -> Self {
        let counts = |path: &str| !path.starts_with('.') && path != METADATA && path != HASHES;
        let of_directory = |name: &str| tree(&below(files, name));
        let of_file = |name: &str| files.get(name).map(|content| text(content)).unwrap_or_default();
        let all = files.iter().filter(|(path, _)| counts(path)).map(|(path, content)| (path.clone(), content.clone()));
        Self {
            cluster_stack: tree(&all.collect()),
            cluster_class_dir: of_directory(CLUSTER_CLASS),
            cluster_addon_dir: of_directory(CLUSTER_ADDON),
            cluster_addon_values: of_file(ADDON_VALUES) + &of_file(ADDON_VALUES_TERA),
            cluster_addon_config: of_file(ADDON_CONFIG),
            node_image_dir: node_images(files),
        }
    }

    /// Reads a `hashes.json`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// With the hash of the published `clusteraddon.yaml` where csctl wrote none.
    pub(super) fn with_config(mut self, config: Option<&Bytes>) -> Self {
        if self.cluster_addon_config.is_empty() {
            self.cluster_addon_config = config.map(|content| text(content)).unwrap_or_default();
        }
        self
    }

    /// As `hashes.json`.
    pub fn to_json(&self) -> String {
        // Texts alone can be written.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Whether addons are the same: charts, values, stages.
    pub(super) fn same_addon(&self, other: &Self) -> bool {
        self.cluster_addon_dir == other.cluster_addon_dir
            && self.cluster_addon_values == other.cluster_addon_values
            && self.cluster_addon_config == other.cluster_addon_config
    }

    /// The stack's hash in a version.
    pub fn version_letters(&self) -> String {
        letters(&self.cluster_stack)
    }

    /// The addon's hash in a version.
    pub(super) fn addon_letters(&self) -> String {
        let parts = [&self.cluster_addon_dir, &self.cluster_addon_values, &self.cluster_addon_config];
        letters(&text(parts.map(String::as_str).join("\n").as_bytes()))
    }

    /// The node images' hash in a version; `None` without any.
    pub(super) fn node_image_letters(&self) -> Option<String> {
        (!self.node_image_dir.is_empty()).then(|| letters(&self.node_image_dir))
    }
}

/// The first letters of a hash. Digits alone would be a number, which in a version has no leading zero.
fn letters(hash: &str) -> String {
    let is_word = |part: &[u8]| part.iter().any(u8::is_ascii_alphabetic);
    let part = hash.as_bytes().windows(LETTERS).find(|part| is_word(part)).unwrap_or_default();
    String::from_utf8_lossy(part).into_owned()
}

fn node_images(files: &FileTree) -> String {
    // A stack that csctl knows has the same hash as there.
    let own = below(files, "node-image");
    if !own.is_empty() {
        return tree(&own);
    }
    let is_image = |path: &str| path == "node-images.yaml" || path.starts_with("node-images/");
    let images = files.iter().filter(|(path, _)| is_image(path)).map(|(path, content)| (path.clone(), content.clone()));
    tree(&images.collect())
}

/// Go's `dirhash.Hash1`; empty for no files.
fn tree(files: &FileTree) -> String {
    if files.is_empty() {
        return String::new();
    }
    let mut all = Sha256::new();
    for (path, content) in files {
        all.update(format!("{}  {path}\n", hex(&Sha256::digest(content))));
    }
    clean(&all.finalize())
}

fn text(content: &[u8]) -> String {
    clean(&Sha256::digest(content))
}

fn clean(digest: &[u8]) -> String {
    STANDARD.encode(digest).chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(files: &[(&str, &str)]) -> FileTree {
        files.iter().map(|(path, text)| ((*path).to_owned(), Bytes::from((*text).to_owned()))).collect()
    }

    #[test]
    fn directories_hash_as_in_go() {
        // `dirhash.Hash1` of a module with these two files is h1:, and base64 of the sum over these two lines.
        let expected = Sha256::digest(
            "87428fc522803d31065e7bce3cf03fe475096631e5e07bbd7a0fde60c4cf25c7  a\n\
             0263829989b6fd954f72baaf2fc64bc2e2f01d692d4de72986ea808f6e99813f  b/c\n",
        );
        assert_eq!(tree(&files(&[("a", "a\n"), ("b/c", "b\n")])), clean(&expected));
    }

    #[test]
    fn letters_are_never_a_number() {
        assert_eq!(letters("0123456789abc"), "456789a");
        assert_eq!(letters("a12345678"), "a123456");
    }

    #[test]
    fn every_component_counts() {
        let stack = [
            ("csctl.yaml", "a"),
            ("cluster-class/Chart.yaml", "b"),
            ("cluster-addon/cni/Chart.yaml", "c"),
            ("clusteraddon.yaml", "d"),
            ("cluster-addon-values.yaml", "e"),
            ("node-images.yaml", "f"),
        ];
        let before = Hashes::of(&files(&stack));
        for at in 0..stack.len() {
            let mut changed = stack;
            changed[at].1 = "changed";
            let after = Hashes::of(&files(&changed));
            assert_ne!(after.version_letters(), before.version_letters(), "{}", stack[at].0);
            let is_addon = ["cluster-addon", "clusteraddon"].iter().any(|name| stack[at].0.starts_with(name));
            assert_eq!(!after.same_addon(&before), is_addon, "{}", stack[at].0);
            assert_eq!(after.addon_letters() != before.addon_letters(), is_addon, "{}", stack[at].0);
            let is_image = stack[at].0 == "node-images.yaml";
            assert_eq!(after.node_image_letters() != before.node_image_letters(), is_image, "{}", stack[at].0);
        }
    }

    #[test]
    fn what_an_earlier_run_left_does_not_count() {
        let stack = files(&[("csctl.yaml", "a")]);
        let left = files(&[("csctl.yaml", "a"), ("metadata.yaml", "b"), ("hashes.json", "c"), (".git/HEAD", "d")]);
        assert_eq!(Hashes::of(&left), Hashes::of(&stack));
    }
}
