//! Manifests and indexes, as the OCI image specification has them.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// Media type of a manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of an index.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// The annotation of a layer with its file's name.
pub const TITLE: &str = "org.opencontainers.image.title";

/// What names a blob or a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// What it is.
    #[serde(default)]
    pub media_type: String,
    /// `sha256:…`.
    pub digest: String,
    /// Bytes.
    pub size: u64,
    /// Remarks: a layer's file, a manifest's tag.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// What it holds, of a manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
}

/// The manifest of an artifact.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Always 2.
    pub schema_version: u32,
    /// Its own media type; empty where it does not say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub media_type: String,
    /// What it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// A blob about it.
    pub config: Descriptor,
    /// Its files.
    #[serde(default, deserialize_with = "or_default")]
    pub layers: Vec<Descriptor>,
    /// The manifest that it is about: what a signature signs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Descriptor>,
    /// Remarks.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A list of manifests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    /// Always 2.
    pub schema_version: u32,
    /// Its own media type; empty where it does not say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub media_type: String,
    /// What is listed.
    #[serde(default, deserialize_with = "or_default")]
    pub manifests: Vec<Descriptor>,
}

/// What a reference names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// One artifact.
    Manifest(Box<Manifest>),
    /// Several.
    Index(Index),
}

impl Document {
    /// Reads a document. What it is must be clear from it alone, else two clients may take it for two things.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let has = |field: &str| value.get(field).is_some();
        let words = |error: serde_json::Error| error.to_string();
        let document = match (has("manifests"), has("config") || has("layers")) {
            (true, false) => Self::Index(serde_json::from_value(value).map_err(words)?),
            (false, true) => Self::Manifest(Box::new(serde_json::from_value(value).map_err(words)?)),
            (true, true) => return Err("it is a manifest and an index at once".to_owned()),
            (false, false) => return Err("it is neither a manifest nor an index".to_owned()),
        };
        let (version, media_type) = match &document {
            Self::Manifest(manifest) => (manifest.schema_version, &manifest.media_type),
            Self::Index(index) => (index.schema_version, &index.media_type),
        };
        let says_index = [".index.", ".list."].iter().any(|word| media_type.contains(word));
        if version != 2 {
            return Err(format!("its schemaVersion is {version}, not 2"));
        }
        if !media_type.is_empty() && says_index != matches!(document, Self::Index(_)) {
            return Err(format!("it says that it is {media_type:?}, which it is not"));
        }
        Ok(document)
    }
}

/// Nothing where there is `null`, as some clients write an empty list.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_one_thing() {
        let config = r#""config":{"mediaType":"x","digest":"sha256:0","size":2}"#;
        for (text, good) in [
            (format!(r#"{{"schemaVersion":2,{config},"layers":null,"annotations":null}}"#), true),
            (r#"{"schemaVersion":2,"manifests":[]}"#.to_owned(), true),
            (format!(r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}",{config},"layers":[]}}"#), true),
            (format!(r#"{{"schemaVersion":2,"mediaType":"{INDEX}",{config},"layers":[]}}"#), false),
            (format!(r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","manifests":[]}}"#), false),
            (format!(r#"{{"schemaVersion":2,{config},"layers":[],"manifests":[]}}"#), false),
            (format!(r#"{{"schemaVersion":1,{config},"layers":[]}}"#), false),
            (r#"{"schemaVersion":2,"config":{"digest":"sha256:0","size":-1}}"#.to_owned(), false),
            ("<html>".to_owned(), false),
        ] {
            assert_eq!(Document::parse(text.as_bytes()).is_ok(), good, "{text}");
        }
    }
}
