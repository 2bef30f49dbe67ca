//! A server that takes files by HTTP PUT, and gives them by GET.
//!
//! A server with MOVE (`WebDAV`) gets an upload under a name with its attempt and moves it to the image's, which publishes
//! it. On others the file keeps its name, and the record, which is written last and says what the file is called,
//! publishes it. Records are written by `If-None-Match` and `If-Match` where the server tells entity tags; where it does not
//! the last one to write wins.

use async_trait::async_trait;
use http::header::{ALLOW, AUTHORIZATION, CONTENT_LENGTH, ETAG, HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use http::{Method, StatusCode};
use reqwest::{RequestBuilder, Response, Url};
use tokio_util::sync::CancellationToken;

use super::reader::Reader;
use super::record::{Record, SUFFIX};
use super::shelf::{Placed, Shelf, Version, staged};
use super::web::{FIELDS, PATIENCE, Web, endpoint};
use super::{Claim, DestinationError, Image, Meter};
use crate::api::image_destination::HttpDestination;
use crate::core::source::AllowList;
use crate::io::source::Access;
use crate::io::source::http::redacted;

/// Attempts whose uploads are looked for.
const ATTEMPTS: u32 = 100;
const UPLOADING: &str = "uploading to";
const READING: &str = "reading from";
const WRITING: &str = "writing to";
const PUBLISHING: &str = "publishing at";
const REMOVING: &str = "removing from";

/// A server, and where on it.
pub(super) struct HttpPut {
    web: Web,
    base: Url,
    authorization: Option<HeaderValue>,
}

impl HttpPut {
    /// The server that a spec names; `authorization` goes to it and to nobody else.
    ///
    /// # Errors
    /// Its URL is none, or may not be used.
    pub fn new(
        spec: &HttpDestination,
        authorization: Option<HeaderValue>,
        access: &Access,
        allow: &AllowList,
    ) -> Result<Self, DestinationError> {
        let text = if spec.url.ends_with('/') { spec.url.clone() } else { format!("{}/", spec.url) };
        let base = endpoint("using server", &text, access, allow)?;
        if base.query().is_some() || base.fragment().is_some() {
            return Err(DestinationError::Refused {
                action: "using server",
                location: redacted(&base),
                problem: "it has something behind ? or #, and names of files are added to it: write https://host/path"
                    .to_owned(),
            });
        }
        Ok(Self { web: Web::new(access, allow, FIELDS)?, base, authorization })
    }

    fn url(&self, file: &str) -> Result<Url, DestinationError> {
        // Names are checked: they are no paths.
        self.base.join(&format!("./{file}")).map_err(|error| self.nonsense(READING, &error.to_string()))
    }

    fn request(&self, method: Method, file: &str) -> Result<RequestBuilder, DestinationError> {
        let request = self.web.request(method, self.url(file)?);
        Ok(match &self.authorization {
            Some(value) => request.header(AUTHORIZATION, value.clone()),
            None => request,
        })
    }

    fn nonsense(&self, action: &'static str, problem: &str) -> DestinationError {
        let problem = format!("its answer can't be used: {problem}");
        DestinationError::Unreachable { action, location: redacted(&self.base), problem }
    }

    async fn success(&self, action: &'static str, response: Response) -> Result<Response, DestinationError> {
        if response.status().is_success() {
            Ok(response)
        } else {
            Err(self.web.refusal(action, response, |_| None).await)
        }
    }

    /// Whether the server moves files.
    async fn moves(&self) -> Result<bool, DestinationError> {
        let response = self.web.send(PUBLISHING, self.request(Method::OPTIONS, "")?).await?;
        if matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return Err(self.web.refusal(PUBLISHING, response, |_| None).await);
        }
        let told = response.headers().get_all(ALLOW).into_iter().filter_map(|value| value.to_str().ok());
        Ok(told.flat_map(|line| line.split(',')).any(|method| method.trim() == "MOVE"))
    }

    /// Gives a file another name, unless something has it.
    async fn rename(&self, from: &str, file: &str) -> Result<Placed, DestinationError> {
        let verb = Method::from_bytes(b"MOVE").map_err(|error| self.nonsense(PUBLISHING, &error.to_string()))?;
        let request = self.request(verb, from)?;
        let request = request.header(HeaderName::from_static("destination"), self.url(file)?.as_str());
        let request = request.header(HeaderName::from_static("overwrite"), "F");
        let response = self.web.send_within(PUBLISHING, request, PATIENCE).await?;
        match response.status() {
            StatusCode::PRECONDITION_FAILED => Ok(Placed::Taken),
            StatusCode::NOT_FOUND => Ok(Placed::Nothing),
            _ => self.success(PUBLISHING, response).await.map(|_| Placed::Done),
        }
    }

    async fn remove(&self, file: &str) -> Result<(), DestinationError> {
        let response = self.web.send(REMOVING, self.request(Method::DELETE, file)?).await?;
        if matches!(response.status(), StatusCode::NOT_FOUND | StatusCode::GONE) {
            return Ok(());
        }
        self.success(REMOVING, response).await.map(drop)
    }
}

#[async_trait]
impl Shelf for HttpPut {
    /// The entity tag; empty where the server tells none.
    type Version = String;

    fn name(&self) -> String {
        format!("server {}", redacted(&self.base))
    }

    fn location(&self, file: &str) -> String {
        format!("{}{file}", redacted(&self.base))
    }

    async fn file_name(&self, image: &str, claim: &Claim) -> Result<String, DestinationError> {
        Ok(if self.moves().await? { image.to_owned() } else { staged(image, claim) })
    }

    async fn record(&self, image: &str) -> Result<Option<Version<String>>, DestinationError> {
        let name = format!("{image}{SUFFIX}");
        let response = self.web.send(READING, self.request(Method::GET, &name)?).await?;
        if matches!(response.status(), StatusCode::NOT_FOUND | StatusCode::GONE) {
            return Ok(None);
        }
        let response = self.success(READING, response).await?;
        let version = response.headers().get(ETAG).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        let body = self.web.body(READING, response).await?;
        let record = serde_json::from_slice(&body).map_err(|error| DestinationError::Refused {
            action: READING,
            location: self.location(&name),
            problem: format!("it is no record of an image: {error}"),
        })?;
        Ok(Some(Version { record, version }))
    }

    async fn write(&self, image: &str, record: &Record, instead: Option<&String>) -> Result<bool, DestinationError> {
        let body = serde_json::to_vec_pretty(record).map_err(|error| self.nonsense(WRITING, &error.to_string()))?;
        let request = self.request(Method::PUT, &format!("{image}{SUFFIX}"))?;
        let request = request.header("content-type", "application/json").body(body);
        let request = match instead.map(String::as_str) {
            None => request.header(IF_NONE_MATCH, "*"),
            // A weak tag is none for this.
            Some(version) if version.is_empty() || version.starts_with("W/") => request,
            Some(version) => request.header(IF_MATCH, version),
        };
        let response = self.web.send(WRITING, request).await?;
        if response.status() == StatusCode::PRECONDITION_FAILED {
            return Ok(false);
        }
        self.success(WRITING, response).await?;
        Ok(true)
    }

    async fn erase(&self, image: &str, version: &String) -> Result<(), DestinationError> {
        let request = self.request(Method::DELETE, &format!("{image}{SUFFIX}"))?;
        let weak = version.is_empty() || version.starts_with("W/");
        let request = if weak { request } else { request.header(IF_MATCH, version) };
        let response = self.web.send(REMOVING, request).await?;
        match response.status() {
            StatusCode::NOT_FOUND | StatusCode::GONE | StatusCode::PRECONDITION_FAILED => Ok(()),
            _ => self.success(REMOVING, response).await.map(drop),
        }
    }

    async fn size(&self, file: &str) -> Result<Option<u64>, DestinationError> {
        let response = self.web.send(READING, self.request(Method::HEAD, file)?).await?;
        if matches!(response.status(), StatusCode::NOT_FOUND | StatusCode::GONE) {
            return Ok(None);
        }
        let response = self.success(READING, response).await?;
        let length = response.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        length.map(Some).ok_or_else(|| self.nonsense(READING, "it tells no size"))
    }

    async fn stage(
        &self,
        image: &Image,
        mut file: Reader,
        claim: &Claim,
        meter: &dyn Meter,
        cancel: &CancellationToken,
    ) -> Result<(), DestinationError> {
        let name = staged(&image.name, claim);
        let request = self.request(Method::PUT, &name)?.header("content-type", "application/octet-stream");
        match self.web.send_file(UPLOADING, request, &mut file, meter, cancel).await {
            Ok(response) => self.success(UPLOADING, response).await.map(drop),
            // A server that refuses us may hang up before it has read the file: it is asked why.
            Err(error) if error.is_transient() && !cancel.is_cancelled() => match self.size(&name).await {
                Err(refused @ DestinationError::Refused { .. }) => Err(refused),
                _ => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    async fn adopt(&self, image: &Image, claim: &Claim, earlier: &Claim) -> Result<bool, DestinationError> {
        let (from, to) = (staged(&image.name, earlier), staged(&image.name, claim));
        let is_there = self.size(&from).await? == Some(image.size);
        Ok(is_there && self.moves().await? && self.rename(&from, &to).await? == Placed::Done)
    }

    async fn place(&self, image: &Image, file: &str, claim: &Claim) -> Result<Placed, DestinationError> {
        let from = staged(&image.name, claim);
        // Some servers keep what arrived of an upload that broke off.
        if self.size(&from).await? != Some(image.size) {
            return Ok(Placed::Nothing);
        }
        // Without MOVE it has its name already.
        if from == file {
            return Ok(Placed::Done);
        }
        self.rename(&from, file).await
    }

    async fn delete(&self, file: &str) -> Result<(), DestinationError> {
        self.remove(file).await
    }

    async fn discard(&self, image: &str, claim: &Claim, keep: Option<&str>) -> Result<(), DestinationError> {
        // There is no list to look at; the attempts before that had their own end.
        for attempt in claim.attempt.saturating_sub(ATTEMPTS)..=claim.attempt {
            let file = staged(image, &Claim { attempt, ..claim.clone() });
            if keep != Some(file.as_str()) {
                self.remove(&file).await?;
            }
        }
        Ok(())
    }
}
