//! Pushing: blobs and manifests.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, StatusCode};

use super::{Ask, Registry, told};
use crate::io::source::SourceError;
use crate::io::store::Digest;

const ACTION: &str = "pushing to";

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
        match told(response.headers()) {
            Some(other) if other != digest => {
                Err(self.damaged(&format!("manifest {reference}"), format!("the registry took {other}, not {digest}")))
            }
            _ => Ok(digest),
        }
    }
}
