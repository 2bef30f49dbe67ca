//! A release as an OCI artifact: a layer for each file, titled with its name, as csctl publishes it and the Go operator
//! reads it; and the image layout that holds several of them.
//!
//! Equal files give equal bytes: there are no times in a manifest.

pub mod beside;
mod manifest;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::core::digest::hex;
use crate::core::metadata::Metadata;
use crate::core::name::ReleaseName;

pub use manifest::{Descriptor, Document, INDEX, Index, MANIFEST, Manifest, TITLE};

/// Media type of `{}`, which stands in for a configuration.
const EMPTY: &str = "application/vnd.oci.empty.v1+json";
/// What csctl calls a release.
const RELEASE: &str = "application/vnd.scs.cluster-stacks.v1";
/// Annotation of a manifest in an index: its tag.
pub const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// The marker file of a layout.
pub const LAYOUT: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;

/// What an artifact is made of, by digest.
pub type Blobs = BTreeMap<String, Bytes>;

/// A manifest with what it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// Its tag, if it has one.
    pub tag: Option<String>,
    /// Its bytes: the digest is over these.
    pub manifest: Bytes,
    /// What it needs.
    pub blobs: Blobs,
}

/// Why content is no artifact of a release.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ArtifactError {
    /// A manifest or index is none.
    #[error("{what} can't be read: {problem}")]
    Form {
        /// Which.
        what: String,
        /// What is wrong.
        problem: String,
    },
    /// Something is not what its digest says.
    #[error("{digest} {problem}: the archive or the registry is damaged, or somebody changed it")]
    Digest {
        /// The digest.
        digest: String,
        /// What is wrong.
        problem: String,
    },
    /// A layer's title is no file's name.
    #[error("a file of {tag} is called {title:?}: a name may hold no / and no \\ and may not begin with a dot")]
    Title {
        /// The release.
        tag: String,
        /// The title.
        title: String,
    },
    /// Two layers have one title.
    #[error("two files of {tag} are called {title:?}")]
    TitleTwice {
        /// The release.
        tag: String,
        /// The title.
        title: String,
    },
    /// Two manifests have one tag.
    #[error("{0} is there twice")]
    TagTwice(String),
}

/// The digest of content, `sha256:<hex>`.
pub fn digest(content: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(content)))
}

/// Whether a text is a digest that is understood here.
pub fn is_digest(text: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.strip_prefix("sha256:").is_some_and(|digits| digits.len() == 64 && digits.bytes().all(is_hex))
}

/// The tag under which cosign keeps what belongs to a manifest: `sha256-<hex>.sig`.
pub fn signature_tag(digest: &str, kind: &str) -> String {
    format!("{}.{kind}", digest.replace(':', "-"))
}

/// What csctl calls a file's type.
fn media_type(file: &str) -> &'static str {
    let is_archive = file.ends_with(".tgz");
    match file {
        "metadata.yaml" => "application/vnd.scs.metadata.layer.v1+yaml",
        "hashes.json" => "application/vnd.scs.hashes.layer.v1+yaml",
        "clusteraddon.yaml" | "cluster-addon-values.yaml" | "cluster-addon-values.yaml.tera" => {
            "application/vnd.scs.cluster-addon.config.layer.v1+yaml"
        }
        "node-images.yaml" => "application/vnd.scs.node-image.config.layer.v1+yaml",
        _ if is_archive && file.contains("-cluster-class-") => "application/vnd.scs.cluster-class.v1.tar+gzip",
        _ if is_archive && file.contains("-cluster-addon-") => "application/vnd.scs.cluster-addon.layer.v1.tar+gzip",
        _ if is_archive && file.contains("-node-image-") => "application/vnd.scs.node-image.layer.v1.tar+gzip",
        _ => "application/octet-stream",
    }
}

fn descriptor(media_type: &str, content: &[u8]) -> Descriptor {
    Descriptor {
        media_type: media_type.to_owned(),
        digest: digest(content),
        size: content.len() as u64,
        ..Descriptor::default()
    }
}

fn json(value: &impl Serialize) -> Bytes {
    // Texts and numbers alone can be written.
    Bytes::from(serde_json::to_vec(value).unwrap_or_default())
}

/// A file's name can't lead anywhere else.
fn is_title(title: &str) -> bool {
    !title.is_empty()
        && title.len() <= 255
        && !title.starts_with('.')
        && !title.contains(['/', '\\'])
        && !title.chars().any(char::is_control)
}

impl Artifact {
    /// Whether it is about another artifact, as a signature is.
    pub fn is_about_another(&self) -> bool {
        matches!(Document::parse(&self.manifest), Ok(Document::Manifest(manifest)) if manifest.subject.is_some())
    }

    /// The artifact of a release's assets.
    pub fn of_release(name: &ReleaseName, assets: &BTreeMap<String, Bytes>) -> Self {
        let config = Bytes::from_static(b"{}");
        let mut blobs = Blobs::from([(digest(&config), config.clone())]);
        let mut layers = Vec::new();
        for (file, content) in assets {
            let mut layer = descriptor(media_type(file), content);
            layer.annotations.insert(TITLE.to_owned(), file.clone());
            blobs.insert(layer.digest.clone(), content.clone());
            layers.push(layer);
        }
        let metadata =
            assets.get("metadata.yaml").and_then(|text| Metadata::parse(std::str::from_utf8(text).ok()?).ok());
        let kubernetes =
            metadata.map_or_else(|| format!("v{}", name.kubernetes), |metadata| metadata.kubernetes.to_string());
        let manifest = Manifest {
            schema_version: 2,
            media_type: MANIFEST.to_owned(),
            artifact_type: Some(RELEASE.to_owned()),
            config: descriptor(EMPTY, &config),
            layers,
            subject: None,
            annotations: BTreeMap::from([("kubernetesVersion".to_owned(), kubernetes)]),
        };
        Self { tag: Some(name.object_name()), manifest: json(&manifest), blobs }
    }

    /// The digest of its manifest.
    pub fn digest(&self) -> String {
        digest(&self.manifest)
    }

    /// The release it is, if its tag names one.
    pub fn release(&self) -> Option<ReleaseName> {
        self.tag.as_deref()?.parse().ok()
    }

    /// Its manifest, read.
    pub fn read(&self) -> Result<Manifest, ArtifactError> {
        let what = || self.tag.clone().unwrap_or_else(|| self.digest());
        serde_json::from_slice(&self.manifest).map_err(|error| ArtifactError::Form {
            what: format!("the manifest {}", what()),
            problem: error.to_string(),
        })
    }

    /// Its files by name: the layers with a title.
    pub fn files(&self) -> Result<BTreeMap<String, Bytes>, ArtifactError> {
        let tag = || self.tag.clone().unwrap_or_else(|| self.digest());
        let mut files = BTreeMap::new();
        let mut places = BTreeSet::new();
        for layer in self.read()?.layers {
            let Some(title) = layer.annotations.get(TITLE) else { continue };
            if !is_title(title) {
                return Err(ArtifactError::Title { tag: tag(), title: title.chars().take(80).collect() });
            }
            // On some disks two names that differ in case are one file.
            if !places.insert(title.to_lowercase()) {
                return Err(ArtifactError::TitleTwice { tag: tag(), title: title.clone() });
            }
            files.insert(title.clone(), held(&self.blobs, &layer)?);
        }
        Ok(files)
    }
}

/// The content of a descriptor, checked.
fn held(blobs: &Blobs, descriptor: &Descriptor) -> Result<Bytes, ArtifactError> {
    let Descriptor { digest: name, size, .. } = descriptor;
    let problem = |problem: &str| ArtifactError::Digest { digest: name.clone(), problem: problem.to_owned() };
    if !is_digest(name) {
        return Err(problem("is no sha256 digest"));
    }
    let content = blobs.get(name).ok_or_else(|| problem("is missing"))?;
    check(name, *size, content)?;
    Ok(content.clone())
}

/// Checks content against its digest and size.
pub fn check(name: &str, size: u64, content: &[u8]) -> Result<(), ArtifactError> {
    let problem = |problem: String| Err(ArtifactError::Digest { digest: name.to_owned(), problem });
    if content.len() as u64 != size {
        return problem(format!("has {} bytes instead of {size}", content.len()));
    }
    let found = digest(content);
    if found == name { Ok(()) } else { problem(format!("is really {found}")) }
}

/// Manifests as the files of an image layout, tagged ones first.
pub fn to_layout(artifacts: &[Artifact]) -> BTreeMap<String, Bytes> {
    let mut files = BTreeMap::from([("oci-layout".to_owned(), Bytes::from_static(LAYOUT.as_bytes()))]);
    let mut manifests: Vec<Descriptor> = Vec::new();
    for artifact in artifacts {
        let mut entry = descriptor(MANIFEST, &artifact.manifest);
        let read = artifact.read().ok();
        entry.artifact_type = read.as_ref().and_then(|manifest| manifest.artifact_type.clone());
        if let Some(kind) = read.map(|manifest| manifest.media_type).filter(|kind| !kind.is_empty()) {
            entry.media_type = kind;
        }
        entry.annotations.extend(artifact.tag.iter().map(|tag| (REF_NAME.to_owned(), tag.clone())));
        files.insert(blob_path(&entry.digest), artifact.manifest.clone());
        files.extend(artifact.blobs.iter().map(|(digest, content)| (blob_path(digest), content.clone())));
        if !manifests.contains(&entry) {
            manifests.push(entry);
        }
    }
    let tag = |entry: &Descriptor| entry.annotations.get(REF_NAME).cloned();
    manifests.sort_by_key(|entry| (tag(entry).is_none(), tag(entry), entry.digest.clone()));
    let index = Index { schema_version: 2, media_type: INDEX.to_owned(), manifests };
    files.insert("index.json".to_owned(), json(&index));
    files
}

fn blob_path(digest: &str) -> String {
    format!("blobs/{}", digest.replacen(':', "/", 1))
}

/// Reads the files of an image layout, every digest checked, also of what no manifest names.
pub fn from_layout(files: &BTreeMap<String, Bytes>) -> Result<Vec<Artifact>, ArtifactError> {
    let form = |what: &str, problem: String| ArtifactError::Form { what: what.to_owned(), problem };
    let missing =
        |what: &'static str| form(what, "it is missing; an archive of releases is an OCI image layout".to_owned());
    let marker = files.get("oci-layout").ok_or_else(|| missing("oci-layout"))?;
    let marker: serde_json::Value =
        serde_json::from_slice(marker).map_err(|error| form("oci-layout", error.to_string()))?;
    if marker.get("imageLayoutVersion").and_then(serde_json::Value::as_str) != Some("1.0.0") {
        return Err(form("oci-layout", "its imageLayoutVersion is not 1.0.0".to_owned()));
    }
    let mut blobs = Blobs::new();
    for (path, content) in files {
        let Some(name) = path.strip_prefix("blobs/") else { continue };
        let name = name.replacen('/', ":", 1);
        if !is_digest(&name) {
            return Err(form(path, "it is named by no sha256 digest".to_owned()));
        }
        check(&name, content.len() as u64, content)?;
        blobs.insert(name, content.clone());
    }
    let index = files.get("index.json").ok_or_else(|| missing("index.json"))?;
    let index: Index = serde_json::from_slice(index).map_err(|error| form("index.json", error.to_string()))?;
    let mut tags = BTreeSet::new();
    let mut artifacts = Vec::new();
    for entry in index.manifests {
        let tag = entry.annotations.get(REF_NAME).cloned();
        if let Some(tag) = &tag
            && !tags.insert(tag.clone())
        {
            return Err(ArtifactError::TagTwice(tag.clone()));
        }
        let mut artifact = Artifact { tag, manifest: held(&blobs, &entry)?, blobs: Blobs::new() };
        let manifest = artifact.read()?;
        for part in std::iter::once(&manifest.config).chain(&manifest.layers) {
            artifact.blobs.insert(part.digest.clone(), held(&blobs, part)?);
        }
        if artifact.release().is_some() {
            artifact.files()?;
        }
        artifacts.push(artifact);
    }
    Ok(artifacts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(tag: &str, files: &[(&str, &str)]) -> Artifact {
        let files = files.iter().map(|(name, text)| ((*name).to_owned(), Bytes::from((*text).to_owned()))).collect();
        Artifact::of_release(&tag.parse().unwrap(), &files)
    }

    fn layout() -> BTreeMap<String, Bytes> {
        let one =
            release("docker-scs-1-30-v1", &[("metadata.yaml", "a"), ("SHA256SUMS", "b"), ("SHA256SUMS.asc", "c")]);
        let mut signature = release("docker-scs-1-30-v1", &[("x", "signature")]);
        signature.tag = Some(signature_tag(&one.digest(), "sig"));
        to_layout(&[signature, release("docker-scs-1-30-v2", &[("metadata.yaml", "a")]), one])
    }

    #[test]
    fn a_layout_reads_back_as_it_was_written() {
        let read = from_layout(&layout()).unwrap();
        let tags: Vec<_> = read.iter().filter_map(|artifact| artifact.tag.as_deref()).collect();
        assert_eq!(tags[..2], ["docker-scs-1-30-v1", "docker-scs-1-30-v2"]);
        assert_eq!(tags[2], signature_tag(&read[0].digest(), "sig"));
        let files = read[0].files().unwrap();
        assert_eq!(files.keys().collect::<Vec<_>>(), ["SHA256SUMS", "SHA256SUMS.asc", "metadata.yaml"]);
        assert_eq!(to_layout(&read), layout());
    }

    #[test]
    fn a_manifest_is_what_the_go_operator_reads() {
        let metadata = "versions: {clusterStack: v1, kubernetes: v1.30.11}";
        let class = "docker-scs-1-30-cluster-class-v1.tgz";
        let artifact = release("docker-scs-1-30-v1", &[(class, "a"), ("metadata.yaml", metadata)]);
        let manifest: serde_json::Value = serde_json::from_slice(&artifact.manifest).unwrap();
        let layer = |title: &str, kind: &str, content: &str| {
            serde_json::json!({
                "mediaType": kind,
                "digest": digest(content.as_bytes()),
                "size": content.len(),
                "annotations": {TITLE: title},
            })
        };
        let expected = serde_json::json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": RELEASE,
            // `{}`, as every OCI client knows it.
            "config": {
                "mediaType": EMPTY,
                "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
                "size": 2,
            },
            "layers": [
                layer(class, "application/vnd.scs.cluster-class.v1.tar+gzip", "a"),
                layer("metadata.yaml", "application/vnd.scs.metadata.layer.v1+yaml", metadata),
            ],
            "annotations": {"kubernetesVersion": "v1.30.11"},
        });
        assert_eq!(manifest, expected);
    }

    #[test]
    fn one_changed_thing_is_one_error() {
        let blob = blob_path(&digest(b"b"));
        let index = |from: &str, to: &str| {
            let text = String::from_utf8(layout()["index.json"].to_vec()).unwrap();
            assert!(text.contains(from), "{from} in {text}");
            Bytes::from(text.replacen(from, to, 1))
        };
        for (path, content, expected) in [
            ("oci-layout", None, "oci-layout can't be read: it is missing"),
            ("oci-layout", Some(Bytes::from_static(b"{}")), "imageLayoutVersion"),
            ("index.json", None, "index.json can't be read: it is missing"),
            ("index.json", Some(Bytes::from_static(b"[")), "index.json can't be read"),
            (blob.as_str(), Some(Bytes::from_static(b"B")), "is really sha256:"),
            (blob.as_str(), None, "is missing"),
            ("blobs/sha256/../../x", Some(Bytes::from_static(b"B")), "named by no sha256 digest"),
            ("blobs/md5/00", Some(Bytes::from_static(b"B")), "named by no sha256 digest"),
            ("index.json", Some(index("1-30-v2", "1-30-v1")), "docker-scs-1-30-v1 is there twice"),
            ("index.json", Some(index("\"size\":", "\"size\":1")), "bytes instead of"),
            ("index.json", Some(index("sha256:", "sha512:")), "is no sha256 digest"),
        ] {
            let mut files = layout();
            match content {
                Some(content) => files.insert(path.to_owned(), content),
                None => files.remove(path),
            };
            let error = from_layout(&files).unwrap_err().to_string();
            assert!(error.contains(expected), "{path}: {error}");
        }
    }

    #[test]
    fn titles_stay_in_their_directory() {
        for (titles, expected) in [
            (vec!["../x"], "is called \"../x\""),
            (vec!["a/b"], "is called"),
            (vec![".hidden"], "is called"),
            (vec!["a\\b"], "is called"),
            (vec![""], "is called"),
            (vec!["a", "A"], "two files"),
        ] {
            let files: Vec<(&str, &str)> = titles.iter().map(|title| (*title, "x")).collect();
            let error = from_layout(&to_layout(&[release("docker-scs-1-30-v1", &files)])).unwrap_err().to_string();
            assert!(error.contains(expected), "{titles:?}: {error}");
        }
    }
}
