//! Pushing: blobs and manifests.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderName, Method, StatusCode};

use super::{Ask, Registry, told};
use crate::core::artifact::{Descriptor, Document, INDEX, Index};
use crate::io::source::SourceError;
use crate::io::store::Digest;

const ACTION: &str = "pushing to";
/// A registry that keeps a list of what refers to a manifest says so with this.
const SUBJECT: HeaderName = HeaderName::from_static("oci-subject");

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
        let mut place = self.begin_upload().await?;
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
        if let Some(other) = told(response.headers()).filter(|other| *other != digest) {
            let problem = format!("the registry took {other}, not {digest}");
            return Err(self.damaged(&format!("manifest {reference}"), problem));
        }
        if !response.headers().contains_key(SUBJECT) {
            self.list_referrer(&digest, media_type, &manifest).await?;
        }
        Ok(digest)
    }

    /// Lists a manifest that is about another one at that one's tag `sha256-<hex>`, for a registry that keeps no list of
    /// its own (distribution specification 1.1, "Pushing Manifests with Subject").
    async fn list_referrer(&self, digest: &Digest, media_type: &str, bytes: &Bytes) -> Result<(), SourceError> {
        let Ok(Document::Manifest(manifest)) = Document::parse(bytes) else { return Ok(()) };
        let subject = manifest.subject.as_ref().and_then(|subject| subject.digest.parse::<Digest>().ok());
        // What is no digest could be the tag of a release.
        let Some(subject) = subject else { return Ok(()) };
        let listed = Descriptor {
            media_type: media_type.to_owned(),
            digest: digest.to_string(),
            size: bytes.len() as u64,
            artifact_type: manifest.artifact_type.clone().or_else(|| Some(manifest.config.media_type.clone())),
            annotations: manifest.annotations.clone(),
        };
        let tag = subject.to_string().replace(':', "-");
        let mut index = match self.manifest(&tag).await?.map(|found| found.document) {
            Some(Document::Index(index)) => index,
            Some(Document::Manifest(_)) => {
                let problem = "it should be an index of what refers to it, and is an artifact".to_owned();
                return Err(self.damaged(&format!("tag {tag}"), problem));
            }
            None => Index { schema_version: 2, media_type: INDEX.to_owned(), manifests: Vec::new() },
        };
        if index.manifests.iter().any(|known| known.digest == listed.digest) {
            return Ok(());
        }
        index.manifests.push(listed);
        let written = serde_json::to_vec(&index).map_err(|error| self.nonsense(ACTION, &error.to_string()))?;
        Box::pin(self.push_manifest(&tag, INDEX, written.into())).await.map(drop)
    }
}
