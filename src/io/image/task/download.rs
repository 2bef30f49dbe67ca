//! Downloads a file: goes on where the last try ended, asks mirrors in their order, and believes nothing but a digest.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt;
use http::header::{ACCEPT_ENCODING, CONTENT_RANGE, ETAG, IF_RANGE, LAST_MODIFIED, RANGE};
use http::{Method, StatusCode};
use reqwest::{RequestBuilder, Response};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::digest::{CHUNK, Sums, blocking, of_file};
use super::error::StepError;
use super::{Made, Settings, Site};
use crate::core::image::build::Hope;
use crate::core::image::pipeline::{Checksum, Download};
use crate::io::source::http::{Http, Redirects, redacted};

const ACTION: &str = "downloading";
/// Between two rounds over the mirrors, the last of which brought something.
const PAUSE: Duration = Duration::from_secs(1);
/// Bytes that a server has to send in the time that [`Bounds::trickle`] says: with fewer, 100 MiB take longer than any step may.
///
/// [`Bounds::trickle`]: crate::core::image::bounds::Bounds::trickle
const TRICKLE: u64 = 512 * 1024;

/// What is known of the part that lies there.
#[derive(Default, Serialize, Deserialize)]
struct Origin {
    url: String,
    /// What its server calls this state of the file.
    validator: Option<String>,
}

/// The part of a file that is there.
struct Part {
    path: PathBuf,
    origin_path: PathBuf,
    origin: Origin,
    file: File,
    sums: Sums,
    len: u64,
    /// It was not taken in one go from one server.
    is_stitched: bool,
}

/// Where it is tried.
#[derive(Clone, Copy)]
struct Server<'a> {
    http: &'a Http,
    url: &'a Url,
    /// Whether there is another one to ask if this one is slow.
    gives_way: bool,
}

/// Why one try failed.
enum Failure {
    /// The server, or what it sent; another one may do better.
    Server(StepError),
    /// Ours: no other server helps.
    Ours(StepError),
}

impl From<StepError> for Failure {
    fn from(error: StepError) -> Self {
        Self::Ours(error)
    }
}

/// A client that reaches servers as the provider says.
///
/// # Errors
/// A Secret holds what can't be used.
pub(super) fn client(settings: &Settings) -> Result<Http, StepError> {
    Ok(Http::new(&settings.access, &settings.allow)?)
}

/// A GET request, with our credentials if they are for this host.
pub(super) fn request(http: &Http, settings: &Settings, url: &Url) -> RequestBuilder {
    let request = http.request(Method::GET, url.clone()).header(ACCEPT_ENCODING, "identity");
    let host = url.host_str().unwrap_or_default();
    let is_named = settings.download_host.as_deref().is_some_and(|named| {
        named.eq_ignore_ascii_case(host)
            || url.port_or_known_default().is_some_and(|port| named.eq_ignore_ascii_case(&format!("{host}:{port}")))
    });
    // A release says where; it must not have us tell all who listen on the way.
    let is_safe = url.scheme() == "https"
        || url.port_or_known_default().is_some_and(|port| settings.allow.holds_host(host, port));
    let credentials = settings.access.credentials.as_ref().filter(|_| is_named && is_safe);
    match credentials.and_then(|credentials| Some((credentials, credentials.password.as_ref()?))) {
        Some((credentials, password)) => match &credentials.username {
            Some(username) if !credentials.bearer => request.basic_auth(username, Some(password)),
            _ => request.bearer_auth(password),
        },
        None => request,
    }
}

/// Downloads.
///
/// # Errors
/// No mirror has it, or what they have is something else. What came stays, for the next try.
pub(super) async fn run(site: &Site<'_>, download: &Download) -> Result<Made, StepError> {
    let http = client(site.settings)?;
    let mut part = Part::open(site, download.checksum.as_ref()).await?;
    let urls: Vec<&Url> = std::iter::once(&download.url).chain(&download.mirrors).collect();
    let gives_way = urls.len() > 1;
    let mut most = part.len;
    loop {
        let mut failures: Vec<StepError> = Vec::new();
        for url in &urls {
            let server = Server { http: &http, url, gives_way };
            match attempt(site, server, download.checksum.as_ref(), &mut part).await {
                Ok(()) => return part.done(),
                Err(Failure::Ours(error)) => return Err(error),
                Err(Failure::Server(error)) => {
                    site.watch.line(error.message.as_bytes());
                    failures.push(error);
                }
            }
        }
        if part.len <= most {
            return Err(summary(failures));
        }
        most = part.len;
        tokio::select! {
            () = site.cancel.cancelled() => return Err(StepError::cancelled()),
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

/// Trying again helps if it helps with one of them.
fn summary(failures: Vec<StepError>) -> StepError {
    let is_hopeless = failures.iter().all(|failure| failure.hope == Hope::None);
    let messages: Vec<String> = failures.into_iter().map(|failure| failure.message).collect();
    let message = messages.join("; then ");
    if is_hopeless { StepError::hopeless(message) } else { StepError::transient(message) }
}

async fn attempt(
    site: &Site<'_>,
    server: Server<'_>,
    checksum: Option<&Checksum>,
    part: &mut Part,
) -> Result<(), Failure> {
    let Server { http, url, .. } = server;
    // A second time only from the beginning: what lay there was of another file, or the server can't go on.
    for _ in 0..2 {
        let validator = part.validator(url);
        let resumed = part.len > 0 && (checksum.is_some() || validator.is_some());
        if !resumed {
            part.reset()?;
        }
        let mut asked = request(http, site.settings, url);
        if resumed {
            asked = asked.header(RANGE, format!("bytes={}-", part.len));
        }
        if let Some(validator) = validator.filter(|_| resumed) {
            asked = asked.header(IF_RANGE, validator);
        }
        let asked = asked.build().map_err(|error| StepError::hopeless(error.to_string()))?;
        let response = tokio::select! {
            () = site.cancel.cancelled() => return Err(StepError::cancelled().into()),
            response = http.send(ACTION, asked, Redirects::Anywhere) => response,
        };
        let response = response.map_err(|error| Failure::Server(error.into()))?;
        let total = match judge(url, &response, part.len, resumed)? {
            Answer::Rest(total) => total,
            Answer::Whole => {
                part.reset()?;
                response.content_length()
            }
            Answer::Complete => Some(part.len),
            Answer::Again => {
                part.reset()?;
                continue;
            }
        };
        if part.len > 0 && resumed {
            part.is_stitched = true;
        }
        part.came_from(url, &response)?;
        if total.is_none_or(|total| total > part.len) {
            body(site, server, response, total, part).await?;
        }
        let Some(checksum) = checksum else { return Ok(()) };
        let Some(found) = part.sums.differs(checksum) else { return Ok(()) };
        let was_stitched = part.is_stitched;
        part.reset()?;
        if !was_stitched {
            let wanted = String::from(checksum.clone());
            let found = format!("{}:{found}", wanted.split(':').next().unwrap_or_default());
            return Err(Failure::Server(StepError::hopeless(format!(
                "what {} sends has another checksum ({found}, not {wanted}): correct the list of images, or the server",
                redacted(url)
            ))));
        }
        site.watch.line(b"what was there and what came do not make the file: it is downloaded anew");
    }
    Err(Failure::Server(StepError::transient(format!(
        "{} sends neither the file nor a part of it; it is tried again",
        redacted(url)
    ))))
}

/// What an answer is.
enum Answer {
    /// What is missing; the size of the whole.
    Rest(Option<u64>),
    /// The file from its beginning.
    Whole,
    /// There is nothing beyond what is there.
    Complete,
    /// Nothing that goes with what is there.
    Again,
}

fn judge(url: &Url, response: &Response, len: u64, resumed: bool) -> Result<Answer, Failure> {
    let range = response.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok()).unwrap_or_default();
    let range = range.strip_prefix("bytes ").and_then(|range| range.split_once('/'));
    let total = range.and_then(|(_, total)| total.parse::<u64>().ok());
    let from = range.and_then(|(range, _)| range.split_once('-')).and_then(|(from, _)| from.parse::<u64>().ok());
    let status = response.status();
    match status {
        StatusCode::OK => Ok(Answer::Whole),
        StatusCode::PARTIAL_CONTENT if resumed && from == Some(len) => Ok(Answer::Rest(total)),
        StatusCode::RANGE_NOT_SATISFIABLE if resumed && total == Some(len) => Ok(Answer::Complete),
        StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE if resumed => Ok(Answer::Again),
        _ => Err(Failure::Server(refused(url, status))),
    }
}

/// What a status means. One that is not found may be published in a moment: the number of tries is bounded.
pub(super) fn refused(url: &Url, status: StatusCode) -> StepError {
    let at = redacted(url);
    match status.as_u16() {
        401 | 403 | 407 => StepError::hopeless(format!(
            "{at} does not let us in ({status}): check build.secretRef of the provider's template, and its key host"
        )),
        404 | 410 => StepError::transient(format!("{at} is not there ({status}): check its URL; it is tried again")),
        408 | 425 | 429 | 500..=599 => StepError::transient(format!("{at} answers {status}; it is tried again")),
        _ => StepError::hopeless(format!("{at} answers {status}: check its URL")),
    }
}

/// Takes the body. What came is kept, however it ends.
async fn body(
    site: &Site<'_>,
    Server { http, url, gives_way }: Server<'_>,
    response: Response,
    total: Option<u64>,
    part: &mut Part,
) -> Result<(), Failure> {
    let limit = site.settings.bounds.disk;
    let too_large = |size: u64| {
        let at = redacted(url);
        let message =
            format!("{at} is larger ({size} bytes) than build.limits.disk of the provider's template allows ({limit})");
        Failure::Server(StepError::hopeless(message))
    };
    if let Some(total) = total.filter(|total| *total > limit) {
        return Err(too_large(total));
    }
    let mut stream = response.bytes_stream();
    let mut buffer: Vec<u8> = Vec::with_capacity(CHUNK);
    let window = site.settings.bounds.trickle;
    let mut looks = tokio::time::interval_at(Instant::now() + window, window);
    // Time in which our own disk was slow is nobody's fault.
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut looked_at = part.len;
    let failure = loop {
        let chunk = tokio::select! {
            () = site.cancel.cancelled() => break Some(StepError::cancelled().into()),
            _ = looks.tick(), if gives_way => {
                let now = part.len + buffer.len() as u64;
                let came = now.saturating_sub(std::mem::replace(&mut looked_at, now));
                if came >= TRICKLE {
                    continue;
                }
                let message = format!("{} sent {came} bytes in {} s: another mirror is asked", redacted(url), window.as_secs());
                break Some(Failure::Server(StepError::transient(message)));
            }
            chunk = stream.next() => chunk,
        };
        let chunk = match chunk {
            None => break None,
            Some(Ok(chunk)) => chunk,
            Some(Err(error)) => break Some(Failure::Server(http.failed(ACTION, url, &error).into())),
        };
        buffer.extend_from_slice(&chunk);
        let now = part.len + buffer.len() as u64;
        if now > limit {
            part.reset()?;
            return Err(too_large(now));
        }
        site.watch.gauge().set(now, total);
        if buffer.len() >= CHUNK {
            buffer = part.append(buffer).await?;
        }
    };
    part.append(buffer).await?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    match total {
        Some(total) if part.len < total => Err(Failure::Server(StepError::transient(format!(
            "{} ended after {} of {total} bytes; it is tried again",
            redacted(url),
            part.len
        )))),
        Some(total) if part.len > total => {
            part.reset()?;
            let at = redacted(url);
            Err(Failure::Server(StepError::transient(format!("{at} sends more than it says; it is tried again"))))
        }
        _ => Ok(()),
    }
}

impl Part {
    /// What lies there already. Its digest is computed anew: nothing else says what it is.
    async fn open(site: &Site<'_>, checksum: Option<&Checksum>) -> Result<Self, StepError> {
        let directory = site.directory.part(site.number, site.name)?;
        let (path, origin_path) = (directory.join("data"), directory.join("origin"));
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let mut file = file.map_err(|error| StepError::file("opening", &path, &error))?;
        let gauge = site.watch.gauge().clone();
        let seen = move |done| gauge.set(done, None);
        let (sums, len) = of_file(path.clone(), Sums::for_checksum(checksum), site.cancel, seen).await?;
        file.seek(SeekFrom::End(0)).map_err(|error| StepError::file("opening", &path, &error))?;
        let origin = fs::read(&origin_path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        if len > 0 {
            site.watch.line(format!("{len} bytes are there already").as_bytes());
        }
        Ok(Self { path, origin_path, origin: origin.unwrap_or_default(), file, sums, len, is_stitched: false })
    }

    /// What the server at `url` called the state of the file that is there. Without a checksum only this says that the rest
    /// is of the same file.
    fn validator(&self, url: &Url) -> Option<String> {
        self.origin.validator.clone().filter(|_| self.origin.url == url.as_str())
    }

    fn reset(&mut self) -> Result<(), StepError> {
        let failed = |error| StepError::file("emptying", &self.path, &error);
        self.file.set_len(0).and_then(|()| self.file.rewind()).map_err(failed)?;
        self.sums.reset();
        (self.len, self.is_stitched) = (0, false);
        Ok(())
    }

    /// Notes where the bytes come from that follow.
    fn came_from(&mut self, url: &Url, response: &Response) -> Result<(), StepError> {
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok()).map(ToOwned::to_owned);
        // A weak one says nothing of bytes.
        let tag = header(ETAG).filter(|tag| tag.starts_with('"'));
        let validator = tag.or_else(|| header(LAST_MODIFIED));
        self.origin = Origin { url: url.as_str().to_owned(), validator };
        let text = serde_json::to_string(&self.origin).map_err(|error| StepError::transient(error.to_string()))?;
        let new = self.origin_path.with_extension("new");
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, &self.origin_path));
        written.map_err(|error| StepError::file("writing", &self.origin_path, &error))
    }

    /// Appends bytes; gives the buffer back, empty.
    async fn append(&mut self, bytes: Vec<u8>) -> Result<Vec<u8>, StepError> {
        let file = self.file.try_clone().map_err(|error| StepError::file("writing", &self.path, &error))?;
        let (mut sums, path) = (self.sums.clone(), self.path.clone());
        // What came is written also when the step is cancelled.
        let (sums, bytes) = blocking(&CancellationToken::new(), move |_| {
            let mut file = file;
            file.write_all(&bytes).map_err(|error| StepError::file("writing", &path, &error))?;
            sums.update(&bytes);
            Ok((sums, bytes))
        })
        .await
        .inspect_err(|_| {
            // A disk that is full took a part of it: what is there is what was counted.
            let _ = self.file.set_len(self.len).and_then(|()| self.file.seek(SeekFrom::End(0)));
        })?;
        self.len += bytes.len() as u64;
        self.sums = sums;
        let mut bytes = bytes;
        bytes.clear();
        Ok(bytes)
    }

    fn done(self) -> Result<Made, StepError> {
        if self.len == 0 {
            return Err(StepError::hopeless("the file is empty: correct the list of images, or the server"));
        }
        Ok(Made { digest: self.sums.digest(), path: self.path })
    }
}
