//! Blobs too large for memory: sent in chunks, so that one that broke off goes on; and what is removed again.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_RANGE, CONTENT_TYPE, HeaderValue, LOCATION, RANGE};
use http::{Method, StatusCode};
use reqwest::{Response, Url};

use super::{Ask, Registry, told};
use crate::core::source::AllowList;
use crate::io::source::http::Http;
use crate::io::source::{Access, SourceError};
use crate::io::store::Digest;

const ACTION: &str = "uploading to";
const REMOVING: &str = "removing from";

impl Registry {
    /// The same, which may be silent for longer: while it checks the digest of a large blob.
    ///
    /// # Errors
    /// As of [`Registry::new`].
    pub fn patient(self, access: &Access, allow: &AllowList, silence: Duration) -> Result<Self, SourceError> {
        Ok(Self { http: Http::patient(access, allow, silence)?, ..self })
    }

    /// Begins the upload of a blob, and says where its chunks go. The URL lets in whoever knows it.
    ///
    /// # Errors
    /// The registry does not take it.
    pub async fn begin_upload(&self) -> Result<Url, SourceError> {
        let begin = Ask::write(ACTION, Method::POST, self.url("blobs/uploads/")?, None);
        let response = self.success(ACTION, self.ask(&begin).await?).await?;
        self.place(&response)?.ok_or_else(|| self.nonsense(ACTION, "it does not say where to send a blob"))
    }

    /// Where the next chunk of an upload goes, and how many bytes arrived; `None` if there is no such upload.
    ///
    /// # Errors
    /// The registry does not answer as it should.
    pub async fn upload_offset(&self, place: &Url) -> Result<Option<(Url, u64)>, SourceError> {
        let ask = Ask::write(ACTION, Method::GET, place.clone(), None);
        let response = self.ask(&ask).await?;
        if matches!(response.status(), StatusCode::NOT_FOUND | StatusCode::GONE) {
            return Ok(None);
        }
        let response = self.success(ACTION, response).await?;
        let next = self.place(&response)?.unwrap_or_else(|| place.clone());
        let range = response.headers().get(RANGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let last = range.rsplit_once('-').and_then(|(_, last)| last.trim().parse::<u64>().ok());
        // "0-0" is said of one byte and of none; the next chunk is refused if it was one.
        Ok(Some((next, last.filter(|last| *last > 0).map_or(0, |last| last + 1))))
    }

    /// Sends a chunk that begins at `offset`, and says where the next one goes.
    ///
    /// # Errors
    /// The registry does not take it.
    pub async fn send_chunk(&self, place: &Url, offset: u64, chunk: &Bytes) -> Result<Url, SourceError> {
        let mut send = Ask::write(ACTION, Method::PATCH, place.clone(), Some(chunk));
        let range = format!("{offset}-{}", offset + (chunk.len() as u64).saturating_sub(1));
        let range = HeaderValue::from_str(&range).map_err(|error| self.nonsense(ACTION, &error.to_string()))?;
        send.headers.insert(CONTENT_RANGE, range);
        send.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        let response = self.success(ACTION, self.ask(&send).await?).await?;
        Ok(self.place(&response)?.unwrap_or_else(|| place.clone()))
    }

    /// Ends an upload: from then on the registry has the blob.
    ///
    /// # Errors
    /// What arrived has another digest, or the registry does not take it.
    pub async fn end_upload(&self, place: &Url, digest: &Digest) -> Result<(), SourceError> {
        let mut place = place.clone();
        place.query_pairs_mut().append_pair("digest", &digest.to_string());
        let end = Ask::write(ACTION, Method::PUT, place, None);
        let response = self.success(ACTION, self.ask(&end).await?).await?;
        match told(response.headers()) {
            Some(other) if other != *digest => {
                Err(self.damaged(&format!("blob {digest}"), format!("the registry took {other}")))
            }
            _ => Ok(()),
        }
    }

    /// Gives an upload up. One that is gone is as good.
    ///
    /// # Errors
    /// The registry does not answer as it should.
    pub async fn cancel_upload(&self, place: &Url) -> Result<(), SourceError> {
        // Where the next chunk would go may be another place than before: a chunk that broke off changed it.
        let Some((place, _)) = self.upload_offset(place).await? else { return Ok(()) };
        let response = self.ask(&Ask::write(REMOVING, Method::DELETE, place, None)).await?;
        if matches!(response.status(), StatusCode::NOT_FOUND | StatusCode::GONE | StatusCode::METHOD_NOT_ALLOWED) {
            return Ok(());
        }
        self.success(REMOVING, response).await.map(drop)
    }

    /// Removes a tag; where the registry removes only manifests, the manifest `digest` that it names, with all its tags.
    /// One that is gone is as good.
    ///
    /// # Errors
    /// The registry does not remove it.
    pub async fn delete_tag(&self, tag: &str, digest: &Digest) -> Result<(), SourceError> {
        let ask = Ask::write(REMOVING, Method::DELETE, self.manifest_url(tag)?, None);
        let mut response = self.ask(&ask).await?;
        if matches!(
            response.status(),
            StatusCode::BAD_REQUEST | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED
        ) {
            let url = self.manifest_url(&digest.to_string())?;
            response = self.ask(&Ask::write(REMOVING, Method::DELETE, url, None)).await?;
        }
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(());
        }
        self.success(REMOVING, response).await.map(drop)
    }

    /// Where an answer says that a blob is sent.
    fn place(&self, response: &Response) -> Result<Option<Url>, SourceError> {
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let place = location.and_then(|location| response.url().join(location).ok());
        if self.base.scheme() == "https" && place.as_ref().is_some_and(|place| place.scheme() != "https") {
            return Err(self.nonsense(ACTION, "it wants the blob in the clear"));
        }
        Ok(place)
    }
}
