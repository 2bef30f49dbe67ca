//! Pushing: the files of a release as an artifact, one layer for each.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use http::{Method, StatusCode};

use super::manifest::{Descriptor, MANIFEST, Manifest, TITLE};
use super::{Ask, Registry, told};
use crate::io::source::SourceError;
use crate::io::store::Digest;

const ACTION: &str = "pushing to";
/// Media type of an artifact that is a release.
pub const RELEASE: &str = "application/vnd.clusterstack.release.v1";
/// A config that says nothing, as the image specification has it.
const EMPTY: (&str, &[u8]) = ("application/vnd.oci.empty.v1+json", b"{}");

/// Pushes files as `tag`, and gives the manifest's digest: the same for the same files and annotations. Blobs that the
/// registry has are not sent again, and the tag is written last.
///
/// # Errors
/// The registry does not take it. What was sent until then names nothing.
pub async fn push(
    registry: &Registry,
    tag: &str,
    files: &BTreeMap<String, Bytes>,
    annotations: &BTreeMap<String, String>,
) -> Result<Digest, SourceError> {
    let manifest = manifest(files, annotations);
    for content in files.values() {
        registry.push_blob(content).await?;
    }
    registry.push_blob(&Bytes::from_static(EMPTY.1)).await?;
    let bytes = serde_json::to_vec(&manifest).map_err(|error| registry.nonsense(ACTION, &error.to_string()))?;
    registry.push_manifest(tag, MANIFEST, Bytes::from(bytes)).await
}

fn manifest(files: &BTreeMap<String, Bytes>, annotations: &BTreeMap<String, String>) -> Manifest {
    let descriptor = |media_type: &str, content: &[u8]| Descriptor {
        media_type: media_type.to_owned(),
        digest: Digest::of(content).to_string(),
        size: content.len() as u64,
        ..Descriptor::default()
    };
    let layers = files.iter().map(|(name, content)| Descriptor {
        annotations: BTreeMap::from([(TITLE.to_owned(), name.clone())]),
        ..descriptor(media_type(name), content)
    });
    Manifest {
        schema_version: 2,
        media_type: MANIFEST.to_owned(),
        artifact_type: Some(RELEASE.to_owned()),
        config: descriptor(EMPTY.0, EMPTY.1),
        layers: layers.collect(),
        subject: None,
        annotations: annotations.clone(),
    }
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit_once('.') {
        Some((_, "tgz" | "gz")) => "application/gzip",
        Some((_, "yaml" | "yml")) => "application/yaml",
        Some((_, "json")) => "application/json",
        _ => "application/octet-stream",
    }
}

impl Registry {
    /// Sends a blob, unless it is there.
    ///
    /// # Errors
    /// The registry does not take it.
    pub async fn push_blob(&self, content: &Bytes) -> Result<Digest, SourceError> {
        let digest = Digest::of(content);
        if self.has_blob(ACTION, &digest).await? {
            return Ok(digest);
        }
        let begin = Ask::write(ACTION, Method::POST, self.url("blobs/uploads/")?, None);
        let response = self.success(ACTION, self.ask(&begin).await?).await?;
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let place = location.and_then(|location| response.url().join(location).ok());
        let mut place = place.ok_or_else(|| self.nonsense(ACTION, "it does not say where to send a blob"))?;
        if self.base.scheme() == "https" && place.scheme() != "https" {
            return Err(self.nonsense(ACTION, "it wants the blob in the clear"));
        }
        place.query_pairs_mut().append_pair("digest", &digest.to_string());
        let mut send = Ask::write(ACTION, Method::PUT, place, Some(content));
        send.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        let response = self.success(ACTION, self.ask(&send).await?).await?;
        if response.status() != StatusCode::CREATED {
            return Err(self.nonsense(ACTION, &format!("it answers {} to a blob", response.status())));
        }
        Ok(digest)
    }

    /// Sends a manifest as `reference`, a tag or its own digest.
    ///
    /// # Errors
    /// The registry does not take it.
    pub async fn push_manifest(
        &self,
        reference: &str,
        media_type: &str,
        manifest: Bytes,
    ) -> Result<Digest, SourceError> {
        let digest = Digest::of(&manifest);
        let mut send = Ask::write(ACTION, Method::PUT, self.manifest_url(reference)?, Some(&manifest));
        let no_type = |_| self.nonsense(ACTION, &format!("{media_type:?} is no media type"));
        send.headers.insert(CONTENT_TYPE, HeaderValue::from_str(media_type).map_err(no_type)?);
        let response = self.success(ACTION, self.ask(&send).await?).await?;
        match told(response.headers()) {
            Some(other) if other != digest => {
                Err(self.damaged(&format!("manifest {reference}"), format!("the registry took {other}, not {digest}")))
            }
            _ => Ok(digest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_files_give_the_same_manifest() {
        let files = |order: &[&str]| -> BTreeMap<String, Bytes> {
            order.iter().map(|name| ((*name).to_owned(), Bytes::from((*name).to_owned()))).collect()
        };
        let notes = BTreeMap::from([("b".to_owned(), "2".to_owned()), ("a".to_owned(), "1".to_owned())]);
        let text = |order| serde_json::to_string(&manifest(&files(order), &notes)).unwrap();
        let first = text(&["metadata.yaml", "x.tgz"]);
        assert_eq!(first, text(&["x.tgz", "metadata.yaml"]));
        assert!(first.contains(r#""annotations":{"a":"1","b":"2"}"#), "{first}");
        // Known from the image specification.
        assert!(first.contains("sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"));
    }
}
