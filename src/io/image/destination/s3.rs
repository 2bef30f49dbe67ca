//! A bucket of S3, or of what is compatible with it.
//!
//! An upload is a multipart upload of the image's key: nobody sees anything of it before it is completed, which is the one
//! step that publishes it. A note beside, whose key holds object and attempt, says which upload that is, so that it goes on
//! or is aborted later. Records are written by `If-None-Match` and `If-Match`; a server without them is asked without.

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH};
use http::{Method, StatusCode};
use reqwest::{RequestBuilder, Response};
use rusty_s3::actions::{CompleteMultipartUpload, CreateMultipartUpload, ListObjectsV2, ListParts, S3Action};
use rusty_s3::{Bucket, Credentials, UrlStyle};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use super::reader::Reader;
use super::record::{Record, SUFFIX};
use super::shelf::{Placed, Shelf, Version, attempt_of, staged, staged_by, until};
use super::web::{FIELDS, PATIENCE, Web, endpoint};
use super::{Claim, DestinationError, Image, Meter};
use crate::api::image_destination::S3Destination;
use crate::core::source::AllowList;
use crate::io::source::Access;
use crate::io::source::http::redacted;

/// How long a signature holds.
const VALID: Duration = Duration::from_hours(1);
/// Bytes of a part, if so many parts are enough.
const PART: u64 = 16 << 20;
/// Parts that an upload may have, with some to spare.
const PARTS: u64 = 9000;
/// How often a part is sent that does not arrive.
const TRIES: u32 = 4;
/// Where notes of uploads are.
const NOTES: &str = ".clusterstack/";
const REGION: &str = "us-east-1";
const UPLOADING: &str = "uploading to";
const READING: &str = "reading from";
const WRITING: &str = "writing to";
const PUBLISHING: &str = "publishing in";
const REMOVING: &str = "removing from";

/// A bucket, and where in it.
pub(super) struct S3 {
    web: Web,
    bucket: Bucket,
    credentials: Option<Credentials>,
    prefix: String,
}

/// What is remembered of an upload.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Note {
    upload_id: String,
    digest: String,
    /// Bytes of a part but the last one.
    part: u64,
}

/// A part that arrived.
struct Part {
    number: u16,
    etag: String,
    size: u64,
}

impl S3 {
    /// The bucket that a spec names.
    ///
    /// # Errors
    /// Its URL is none, or may not be used.
    pub fn new(
        spec: &S3Destination,
        credentials: Option<Credentials>,
        access: &Access,
        allow: &AllowList,
    ) -> Result<Self, DestinationError> {
        let endpoint = endpoint("using bucket", &spec.endpoint, access, allow)?;
        let location = redacted(&endpoint);
        let region = spec.region.clone().unwrap_or_else(|| REGION.to_owned());
        let bucket = Bucket::new(endpoint, UrlStyle::Path, spec.bucket.clone(), region).map_err(|error| {
            DestinationError::Refused { action: "using bucket", location, problem: error.to_string() }
        })?;
        Ok(Self { web: Web::new(access, allow, FIELDS)?, bucket, credentials, prefix: spec.prefix.clone() })
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn note_key(&self, name: &str) -> String {
        format!("{}{NOTES}{name}", self.prefix)
    }

    fn request<'a, A: S3Action<'a>>(&self, action: &A, headers: &[(HeaderName, &str)]) -> RequestBuilder {
        let method = match A::METHOD {
            rusty_s3::Method::Head => Method::HEAD,
            rusty_s3::Method::Get => Method::GET,
            rusty_s3::Method::Post => Method::POST,
            rusty_s3::Method::Put => Method::PUT,
            rusty_s3::Method::Delete => Method::DELETE,
        };
        let builder = self.web.request(method, action.sign(VALID));
        headers.iter().fold(builder, |builder, (name, value)| builder.header(name, *value))
    }

    async fn refusal(&self, action: &'static str, response: Response) -> DestinationError {
        self.web.refusal(action, response, said).await
    }

    async fn success(&self, action: &'static str, response: Response) -> Result<Response, DestinationError> {
        if response.status().is_success() { Ok(response) } else { Err(self.refusal(action, response).await) }
    }

    async fn text(&self, action: &'static str, response: Response) -> Result<String, DestinationError> {
        let response = self.success(action, response).await?;
        let body = self.web.body(action, response).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// An answer that is not what the protocol has.
    fn nonsense(&self, action: &'static str, problem: &impl ToString) -> DestinationError {
        let problem = format!("its answer can't be used: {}", problem.to_string());
        DestinationError::Unreachable { action, location: self.bucket.base_url().to_string(), problem }
    }

    /// A small object and its entity tag.
    async fn small(&self, key: &str) -> Result<Option<(Bytes, String)>, DestinationError> {
        let action = self.bucket.get_object(self.credentials.as_ref(), key);
        let response = self.web.send(READING, self.request(&action, &[])).await?;
        if response.status() == StatusCode::NOT_FOUND {
            let body = self.web.body(READING, response).await?;
            let no_bucket = said(&String::from_utf8_lossy(&body)).is_some_and(|said| said.starts_with("NoSuchBucket"));
            return if no_bucket { Err(self.no_bucket()) } else { Ok(None) };
        }
        let response = self.success(READING, response).await?;
        let etag = response.headers().get(ETAG).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        Ok(Some((self.web.body(READING, response).await?, etag)))
    }

    fn no_bucket(&self) -> DestinationError {
        DestinationError::Refused {
            action: READING,
            location: self.bucket.base_url().to_string(),
            problem: format!("there is no bucket {}: make it, or name another one", self.bucket.name()),
        }
    }

    /// Writes or removes an object under a condition, or without it where the server knows none; `false` if it does not hold.
    async fn conditional(
        &self,
        action: &'static str,
        condition: (HeaderName, &str),
        request: impl Fn(&[(HeaderName, &str)]) -> RequestBuilder,
    ) -> Result<bool, DestinationError> {
        let held = condition.1 != "\"\"" && !condition.1.is_empty();
        let mut response = self
            .web
            .send_within(action, request(if held { std::slice::from_ref(&condition) } else { &[] }), PATIENCE)
            .await?;
        if response.status() == StatusCode::NOT_IMPLEMENTED && held {
            response = self.web.send_within(action, request(&[]), PATIENCE).await?;
        }
        match response.status() {
            StatusCode::PRECONDITION_FAILED | StatusCode::CONFLICT => Ok(false),
            // It was removed meanwhile.
            StatusCode::NOT_FOUND if condition.0 == IF_MATCH => Ok(false),
            _ => {
                let answer = self.text(action, response).await?;
                // A long one begins with success before it has succeeded.
                if answer.contains("<Error>") {
                    return Err(self.nonsense(action, &said(&answer).unwrap_or_default()));
                }
                Ok(true)
            }
        }
    }

    async fn note(&self, staged: &str) -> Result<Option<Note>, DestinationError> {
        let Some((bytes, _)) = self.small(&self.note_key(staged)).await? else { return Ok(None) };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| self.nonsense(READING, &error))
    }

    /// The parts that arrived, in their order; `None` if there is no such upload.
    async fn parts(&self, key: &str, upload: &str) -> Result<Option<Vec<Part>>, DestinationError> {
        let mut parts = Vec::new();
        let mut from = None;
        loop {
            let mut action = self.bucket.list_parts(self.credentials.as_ref(), key, upload);
            if let Some(from) = from {
                action.set_part_number_marker(from);
            }
            let response = self.web.send(READING, self.request(&action, &[])).await?;
            if response.status() == StatusCode::NOT_FOUND {
                return Ok(None);
            }
            let text = self.text(READING, response).await?;
            let page = ListParts::parse_response(&text).map_err(|error| self.nonsense(READING, &error))?;
            let part =
                |part: rusty_s3::actions::PartsContent| Part { number: part.number, etag: part.etag, size: part.size };
            parts.extend(page.parts.into_iter().map(part));
            from = page.next_part_number_marker.filter(|next| Some(*next) > from);
            if from.is_none() {
                parts.sort_by_key(|part| part.number);
                return Ok(Some(parts));
            }
        }
    }

    /// The upload of a claim and its parts: the one that was begun with these bytes, or a new one.
    async fn begin(&self, image: &Image, claim: &Claim) -> Result<(Note, Vec<Part>), DestinationError> {
        let (key, staged) = (self.key(&image.name), staged(&image.name, claim));
        let part = PART.max(image.size.div_ceil(PARTS).next_multiple_of(1 << 20));
        if let Some(note) = self.note(&staged).await? {
            if note.digest == image.digest
                && note.part == part
                && let Some(parts) = self.parts(&key, &note.upload_id).await?
            {
                return Ok((note, parts));
            }
            self.drop_upload(&key, &staged).await?;
        }
        let mut action = self.bucket.create_multipart_upload(self.credentials.as_ref(), &key);
        action.headers_mut().insert("x-amz-meta-clusterstack-digest", image.digest.clone());
        let digest = (HeaderName::from_static("x-amz-meta-clusterstack-digest"), image.digest.as_str());
        let response = self.web.send(UPLOADING, self.request(&action, &[digest])).await?;
        let text = self.text(UPLOADING, response).await?;
        let begun = CreateMultipartUpload::parse_response(&text).map_err(|error| self.nonsense(UPLOADING, &error))?;
        let note = Note { upload_id: begun.upload_id().to_owned(), digest: image.digest.clone(), part };
        self.write_note(&staged, &note).await?;
        Ok((note, Vec::new()))
    }

    async fn write_note(&self, staged: &str, note: &Note) -> Result<(), DestinationError> {
        let bytes = serde_json::to_vec(note).map_err(|error| self.nonsense(UPLOADING, &error))?;
        let note_key = self.note_key(staged);
        let action = self.bucket.put_object(self.credentials.as_ref(), &note_key);
        let response = self.web.send(UPLOADING, self.request(&action, &[]).body(bytes)).await?;
        self.success(UPLOADING, response).await.map(drop)
    }

    /// Sends a part until it arrives.
    async fn send_part(&self, key: &str, note: &Note, number: u16, piece: &Bytes) -> Result<(), DestinationError> {
        let mut pause = Duration::from_millis(500);
        for attempt in 1.. {
            let action = self.bucket.upload_part(self.credentials.as_ref(), key, number, &note.upload_id);
            let request = self.request(&action, &[]).body(piece.clone());
            let sent = match self.web.send_within(UPLOADING, request, PATIENCE).await {
                Ok(response) => self.success(UPLOADING, response).await.map(drop),
                Err(error) => Err(error),
            };
            match sent {
                Err(error) if error.is_transient() && attempt < TRIES => tokio::time::sleep(pause).await,
                other => return other,
            }
            pause *= 2;
        }
        Ok(())
    }

    /// Aborts the upload that a note tells of, and removes the note.
    async fn drop_upload(&self, key: &str, staged: &str) -> Result<(), DestinationError> {
        if let Some(note) = self.note(staged).await? {
            let action = self.bucket.abort_multipart_upload(self.credentials.as_ref(), key, &note.upload_id);
            let response = self.web.send_within(REMOVING, self.request(&action, &[]), PATIENCE).await?;
            if response.status() != StatusCode::NOT_FOUND {
                self.success(REMOVING, response).await?;
            }
        }
        self.remove(&self.note_key(staged)).await
    }

    async fn remove(&self, key: &str) -> Result<(), DestinationError> {
        let action = self.bucket.delete_object(self.credentials.as_ref(), key);
        let response = self.web.send(REMOVING, self.request(&action, &[])).await?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(());
        }
        self.success(REMOVING, response).await.map(drop)
    }
}

#[async_trait]
impl Shelf for S3 {
    type Version = String;

    fn name(&self) -> String {
        format!("bucket {}", self.location(""))
    }

    fn location(&self, file: &str) -> String {
        self.bucket.object_url(&self.key(file)).to_string()
    }

    async fn file_name(&self, image: &str, _claim: &Claim) -> Result<String, DestinationError> {
        Ok(image.to_owned())
    }

    async fn record(&self, image: &str) -> Result<Option<Version<String>>, DestinationError> {
        let name = format!("{image}{SUFFIX}");
        let Some((bytes, version)) = self.small(&self.key(&name)).await? else { return Ok(None) };
        let record = serde_json::from_slice(&bytes).map_err(|error| DestinationError::Refused {
            action: READING,
            location: self.location(&name),
            problem: format!("it is no record of an image: {error}"),
        })?;
        Ok(Some(Version { record, version }))
    }

    async fn write(&self, image: &str, record: &Record, instead: Option<&String>) -> Result<bool, DestinationError> {
        let key = self.key(&format!("{image}{SUFFIX}"));
        let bytes = Bytes::from(serde_json::to_vec_pretty(record).map_err(|error| self.nonsense(WRITING, &error))?);
        let condition = instead.map_or((IF_NONE_MATCH, "*"), |version| (IF_MATCH, version.as_str()));
        let put = |headers: &[(HeaderName, &str)]| {
            let action = self.bucket.put_object(self.credentials.as_ref(), &key);
            self.request(&action, headers).body(bytes.clone())
        };
        self.conditional(WRITING, condition, put).await
    }

    async fn erase(&self, image: &str, version: &String) -> Result<(), DestinationError> {
        let key = self.key(&format!("{image}{SUFFIX}"));
        let delete = |headers: &[(HeaderName, &str)]| {
            self.request(&self.bucket.delete_object(self.credentials.as_ref(), &key), headers)
        };
        self.conditional(REMOVING, (IF_MATCH, version), delete).await.map(drop)
    }

    async fn size(&self, file: &str) -> Result<Option<u64>, DestinationError> {
        let key = self.key(file);
        let action = self.bucket.head_object(self.credentials.as_ref(), &key);
        let response = self.web.send(READING, self.request(&action, &[])).await?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let response = self.success(READING, response).await?;
        let length = response.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        length.map(Some).ok_or_else(|| self.nonsense(READING, &"it tells no size"))
    }

    async fn stage(
        &self,
        image: &Image,
        mut file: Reader,
        claim: &Claim,
        meter: &dyn Meter,
        cancel: &CancellationToken,
    ) -> Result<(), DestinationError> {
        let key = self.key(&image.name);
        let work = async {
            let (note, there) = self.begin(image, claim).await?;
            let size = usize::try_from(note.part).unwrap_or(usize::MAX);
            let (mut number, mut done) = (0_u16, 0_u64);
            while let Some(piece) = file.next(size).await? {
                number += 1;
                let arrived = there.iter().any(|part| part.number == number && part.size == piece.len() as u64);
                if !arrived {
                    self.send_part(&key, &note, number, &piece).await?;
                }
                done += piece.len() as u64;
                meter.done(done);
            }
            Ok(())
        };
        let staged_as = staged(&image.name, claim);
        match until(cancel, work).await {
            // Its parts are of a file that is not the image.
            Err(error @ DestinationError::File { .. }) => {
                self.drop_upload(&key, &staged_as).await?;
                Err(error)
            }
            other => other,
        }
    }

    async fn adopt(&self, image: &Image, claim: &Claim, earlier: &Claim) -> Result<bool, DestinationError> {
        let from = staged(&image.name, earlier);
        let Some(note) = self.note(&from).await?.filter(|note| note.digest == image.digest) else { return Ok(false) };
        let parts = self.parts(&self.key(&image.name), &note.upload_id).await?.unwrap_or_default();
        if parts.iter().map(|part| part.size).sum::<u64>() != image.size {
            return Ok(false);
        }
        self.write_note(&staged(&image.name, claim), &note).await?;
        self.remove(&self.note_key(&from)).await?;
        Ok(true)
    }

    async fn place(&self, image: &Image, file: &str, claim: &Claim) -> Result<Placed, DestinationError> {
        let (key, staged) = (self.key(file), staged(&image.name, claim));
        let Some(note) = self.note(&staged).await? else { return Ok(Placed::Nothing) };
        let Some(parts) = self.parts(&key, &note.upload_id).await? else { return Ok(Placed::Nothing) };
        let arrived: u64 = parts.iter().map(|part| part.size).sum();
        if note.digest != image.digest || arrived != image.size {
            return Ok(Placed::Nothing);
        }
        // For servers that know no condition here.
        if self.size(file).await?.is_some() {
            return Ok(Placed::Taken);
        }
        let complete = |headers: &[(HeaderName, &str)]| {
            let tags = || parts.iter().map(|part| part.etag.as_str());
            let action =
                CompleteMultipartUpload::new(&self.bucket, self.credentials.as_ref(), &key, &note.upload_id, tags());
            let request = self.request(&action, headers);
            request.body(action.body())
        };
        let placed = self.conditional(PUBLISHING, (IF_NONE_MATCH, "*"), complete).await?;
        Ok(if placed { Placed::Done } else { Placed::Taken })
    }

    async fn delete(&self, file: &str) -> Result<(), DestinationError> {
        self.remove(&self.key(file)).await
    }

    async fn discard(&self, image: &str, claim: &Claim, _keep: Option<&str>) -> Result<(), DestinationError> {
        let prefix = self.note_key(&staged_by(image, &claim.object));
        let mut from: Option<String> = None;
        loop {
            let mut action = self.bucket.list_objects_v2(self.credentials.as_ref());
            action.with_prefix(prefix.as_str());
            if let Some(from) = &from {
                action.with_continuation_token(from.as_str());
            }
            let response = self.web.send(REMOVING, self.request(&action, &[])).await?;
            let text = self.text(REMOVING, response).await?;
            let page = ListObjectsV2::parse_response(&text).map_err(|error| self.nonsense(REMOVING, &error))?;
            for object in page.contents {
                let Some(name) = object.key.strip_prefix(&self.note_key("")) else { continue };
                if attempt_of(name, image, &claim.object).is_some_and(|attempt| attempt <= claim.attempt) {
                    self.drop_upload(&self.key(image), name).await?;
                }
            }
            match page.next_continuation_token {
                Some(next) if from.as_ref() != Some(&next) => from = Some(next),
                _ => return Ok(()),
            }
        }
    }
}

/// What S3 says in an error: its code and message. The rest of it may quote what was signed.
fn said(body: &str) -> Option<String> {
    let word = |tag: &str| {
        let (_, rest) = body.split_once(&format!("<{tag}>"))?;
        rest.split_once(&format!("</{tag}>")).map(|(word, _)| word.to_owned())
    };
    let code = word("Code")?;
    Some(word("Message").map_or_else(|| code.clone(), |message| format!("{code}: {message}")))
}
