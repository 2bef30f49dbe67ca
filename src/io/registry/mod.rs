//! One repository of an OCI registry, by the distribution specification: tags, manifests, blobs, referrers; reading and
//! writing.
//!
//! Guarantees: what is given out by a digest has it; a blob that broke off goes on where it ended, also after a crash;
//! credentials go to the registry and to the token server that it names, by https or on the registry's own host, and
//! nowhere else; what a server may send is bounded.
//!
//! Caveats: where a tag points is the registry's word alone, until something is signed.

mod answer;
mod blob;
mod login;
mod push;
mod repository;
mod upload;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, LINK};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use reqwest::{Response, Url};
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use sha2::{Digest as _, Sha256};

use crate::api::cluster_stack_source::Quota;
use crate::core::artifact::{Descriptor, Document, INDEX, Index};
use crate::core::digest::hex;
use crate::core::limits::TooLarge;
use crate::core::source::AllowList;
use crate::io::source::answers::{HTML_PAGE, is_page, said_there, unreadable};
use crate::io::source::http::{Http, Redirects, redacted};
use crate::io::source::{Access, NO_REGISTRY_LOGIN, SourceError};
use crate::io::store::Digest;

pub use login::Right;
pub use repository::{Repository, is_tag};

use login::Logins;

/// Tags that are asked for at once.
const PAGE: usize = 1000;
/// How many tags a repository may have.
const MAX_TAGS: usize = 200_000;
/// How many pages a list may have, of tags or of referrers.
const MAX_PAGES: usize = 10_000;
/// Bytes of a page.
const PAGE_BYTES: u64 = 16 << 20;
/// Bytes of a manifest, as the specification suggests.
const MANIFEST_BYTES: u64 = 4 << 20;
/// Referrers that are looked at.
const MAX_REFERRERS: usize = 1000;
/// Bytes that their descriptions may take, and those of signatures, with what is noted on them.
const REFERRERS_BYTES: u64 = 8 << 20;

/// Manifests and lists of them that are understood, for `Accept`.
const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json";

const LISTING: &str = "listing the tags of";
const READING: &str = "reading from";
const DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

/// A repository, and how it is reached.
pub struct Registry {
    http: Http,
    repository: Repository,
    base: Url,
    logins: Logins,
    scratch: PathBuf,
    /// Bytes that parts of blobs may take there.
    parts: u64,
    quota: Mutex<Option<Quota>>,
    id: String,
}

/// A manifest or an index, its digest checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Of its bytes.
    pub digest: Digest,
    /// What it is.
    pub document: Document,
}

/// A request that can be sent again.
struct Ask<'a> {
    action: &'static str,
    right: Right,
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Option<&'a Bytes>,
}

#[derive(Deserialize)]
struct Page {
    tags: Option<Tags>,
}

/// The tags of a page. What is no tag is counted and not kept; what is too much is neither.
#[derive(Default)]
struct Tags {
    tags: Vec<String>,
    seen: usize,
}

impl<'de> Deserialize<'de> for Tags {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Self::default())
    }
}

impl<'de> Visitor<'de> for Tags {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of tags")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut from: A) -> Result<Self, A::Error> {
        while let Some(tag) = from.next_element::<String>()? {
            self.seen += 1;
            if self.seen > MAX_TAGS {
                while from.next_element::<IgnoredAny>()?.is_some() {}
                break;
            }
            if is_tag(&tag) {
                self.tags.push(tag);
            }
        }
        Ok(self)
    }
}

impl Registry {
    /// The repository called `repository`, reached as `access` says within what `allow` permits; `scratch` is a directory
    /// for blobs that are not whole yet, made when needed.
    ///
    /// # Errors
    /// The name is none, or it may not be used.
    pub fn new(repository: &str, access: &Access, allow: &AllowList, scratch: &Path) -> Result<Self, SourceError> {
        let repository = Repository::parse(repository)?;
        let base = repository.base(access.insecure)?;
        let plain = if access.insecure { allow.with_plain_http() } else { allow.clone() };
        crate::core::source::permitted(base.as_str(), &plain)?;
        let login = access.credentials.as_ref().and_then(|known| known.login(repository.host(), repository.path()));
        Ok(Self {
            http: Http::new(access, allow)?,
            base,
            logins: Logins::new(login),
            scratch: scratch.to_owned(),
            parts: blob::PARTS,
            quota: Mutex::default(),
            id: id(&repository, access),
            repository,
        })
    }

    /// The same, whose parts of blobs take at most `bytes`, all registries counted whose scratch directory it is. What is
    /// being downloaded counts, and is not given up for others.
    #[must_use]
    pub fn with_parts(self, bytes: u64) -> Self {
        Self { parts: bytes, ..self }
    }

    /// Its name.
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// What it is with how it is reached, as a digest.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What is left of the registry's quota, if it told.
    pub fn quota(&self) -> Option<Quota> {
        self.quota.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All tags.
    ///
    /// # Errors
    /// There is no repository, or the registry does not answer as it should.
    pub async fn tags(&self) -> Result<Vec<String>, SourceError> {
        let first = self.url("tags/list")?;
        let mut next = Some(Url::parse_with_params(first.as_str(), [("n", PAGE.to_string())]).unwrap_or(first.clone()));
        let mut tags = Vec::new();
        let (mut pages, mut seen) = (0, 0);
        while let Some(url) = next {
            let asked_for_size = url != first;
            let response = self.ask(&Ask::get(LISTING, url.clone())).await?;
            // Some registries refuse a size of pages instead of giving a smaller one.
            if response.status() == StatusCode::BAD_REQUEST && pages == 0 && asked_for_size {
                next = Some(first.clone());
                continue;
            }
            let response = self.success(LISTING, response).await?;
            next = self.next(&url, response.headers())?;
            let body = self.http.body(LISTING, response, PAGE_BYTES).await?;
            let page: Page = serde_json::from_slice(&body)
                .map_err(|error| self.nonsense(LISTING, &unreadable(&HeaderMap::new(), &body, &error)))?;
            let page = page.tags.unwrap_or_default();
            tags.extend(page.tags);
            seen += page.seen;
            pages += 1;
            if seen > MAX_TAGS || pages > MAX_PAGES {
                return Err(self.too_large("the number of tags", MAX_TAGS as u64));
            }
        }
        tags.sort();
        tags.dedup();
        Ok(tags)
    }

    /// The digest of what `reference` names, a tag or a digest; `None` if there is no such thing. For a tag the registry's
    /// word: [`Registry::manifest`] by digest checks it.
    ///
    /// # Errors
    /// The registry does not answer as it should.
    pub async fn digest(&self, reference: &str) -> Result<Option<Digest>, SourceError> {
        let mut ask = Ask::get(READING, self.manifest_url(reference)?);
        ask.method = Method::HEAD;
        ask.accept(MANIFESTS);
        let response = self.ask(&ask).await?;
        match (response.status(), told(response.headers())) {
            (StatusCode::NOT_FOUND, _) => Ok(None),
            (StatusCode::OK, Some(digest)) => Ok(Some(digest)),
            // Not every registry knows HEAD, or tells.
            _ => Ok(self.manifest(reference).await?.map(|found| found.digest)),
        }
    }

    /// What `reference` names, a tag or a digest; `None` if there is no such thing.
    ///
    /// # Errors
    /// It has another digest, is no manifest, or the registry does not answer as it should.
    pub async fn manifest(&self, reference: &str) -> Result<Option<Found>, SourceError> {
        let Some(body) = self.manifest_bytes(reference).await? else { return Ok(None) };
        let damaged = |problem: String| self.damaged(&format!("manifest {reference}"), problem);
        let document = Document::parse(&body).map_err(damaged)?;
        Ok(Some(Found { digest: Digest::of(&body), document }))
    }

    /// The bytes of the manifest that `reference` names, a tag or a digest; `None` if there is no such thing.
    ///
    /// # Errors
    /// It has another digest than asked for or told, or the registry does not answer as it should.
    pub async fn manifest_bytes(&self, reference: &str) -> Result<Option<Bytes>, SourceError> {
        let mut ask = Ask::get(READING, self.manifest_url(reference)?);
        ask.accept(MANIFESTS);
        let response = self.ask(&ask).await?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let response = self.success(READING, response).await?;
        let told = told(response.headers());
        let body = self.http.body(READING, response, MANIFEST_BYTES).await?;
        if is_page(&HeaderMap::new(), &body) {
            return Err(self.nonsense(READING, HTML_PAGE));
        }
        let digest = Digest::of(&body);
        let damaged = |problem: String| self.damaged(&format!("manifest {reference}"), problem);
        let expected = reference.parse::<Digest>().ok().or(told);
        if let Some(expected) = expected.filter(|expected| *expected != digest) {
            return Err(damaged(format!("its digest is {digest}, not {expected}")));
        }
        Ok(Some(body))
    }

    /// What refers to the manifest `digest`, such as its signatures: by the registry's list, or where it has none by the
    /// tag `sha256-<hex>`.
    ///
    /// # Errors
    /// The registry does not answer as it should.
    pub async fn referrers(&self, digest: &Digest) -> Result<Vec<Descriptor>, SourceError> {
        let mut next = Some(self.url(&format!("referrers/{digest}"))?);
        let mut found = Vec::new();
        let (mut pages, mut bytes) = (0, 0);
        while let Some(url) = next {
            let mut ask = Ask::get(READING, url.clone());
            ask.accept(INDEX);
            let response = self.ask(&ask).await?;
            let is_index = response
                .headers()
                .get(CONTENT_TYPE)
                .is_some_and(|value| value.as_bytes().starts_with(INDEX.as_bytes()));
            if pages == 0 && (response.status() == StatusCode::NOT_FOUND || response.status().is_success() && !is_index)
            {
                return self.tagged_referrers(digest).await;
            }
            let response = self.success(READING, response).await?;
            next = self.next(&url, response.headers())?;
            let body = self.http.body(READING, response, MANIFEST_BYTES).await?;
            let index: Index =
                serde_json::from_slice(&body).map_err(|error| self.nonsense(READING, &error.to_string()))?;
            found.extend(index.manifests);
            pages += 1;
            bytes += body.len() as u64;
            self.bound_descriptions(bytes)?;
            if found.len() > MAX_REFERRERS || pages > MAX_PAGES {
                return Err(self.too_large("the number of referrers", MAX_REFERRERS as u64));
            }
        }
        Ok(found)
    }

    async fn tagged_referrers(&self, digest: &Digest) -> Result<Vec<Descriptor>, SourceError> {
        match self.manifest(&digest.to_string().replace(':', "-")).await?.map(|found| found.document) {
            Some(Document::Index(index)) => Ok(index.manifests.into_iter().take(MAX_REFERRERS).collect()),
            _ => Ok(Vec::new()),
        }
    }

    /// A URL below the repository's.
    fn url(&self, path: &str) -> Result<Url, SourceError> {
        self.base.join(path).map_err(|error| self.nonsense(READING, &error.to_string()))
    }

    /// The URL of what a tag or a digest names.
    fn manifest_url(&self, reference: &str) -> Result<Url, SourceError> {
        if !is_tag(reference) && reference.parse::<Digest>().is_err() {
            let problem = "it is no tag: write letters, digits, dots, dashes and underscores".to_owned();
            return Err(SourceError::NoRepositoryName { name: reference.chars().take(128).collect(), problem });
        }
        self.url(&format!("manifests/{reference}"))
    }

    /// Where a list goes on.
    fn next(&self, url: &Url, headers: &HeaderMap) -> Result<Option<Url>, SourceError> {
        let texts = headers.get_all(LINK).into_iter().filter_map(|value| value.to_str().ok());
        let links = texts.flat_map(|text| text.split(", <")).map(|link| link.trim_start_matches('<'));
        let mut next = links.filter_map(|link| link.split_once('>')).filter(|(_, rest)| rest.contains("next"));
        let Some((to, _)) = next.next() else { return Ok(None) };
        let next =
            url.join(to).map_err(|error| self.nonsense(LISTING, &format!("its next page is {to:?}: {error}")))?;
        if !self.is_own(&next) {
            return Err(self.nonsense(LISTING, &format!("its next page is on another server, {}", redacted(&next))));
        }
        if next == *url {
            return Err(self.nonsense(LISTING, "its next page is the same again"));
        }
        Ok(Some(next))
    }

    /// Whether a URL is of the registry itself.
    fn is_own(&self, url: &Url) -> bool {
        let place =
            |url: &Url| (url.scheme().to_owned(), url.host_str().map(ToOwned::to_owned), url.port_or_known_default());
        place(url) == place(&self.base)
    }

    /// Sends a request, and logs in if that is asked for. Any answer but a refusal for rights or for too many requests is
    /// an answer.
    async fn ask(&self, ask: &Ask<'_>) -> Result<Response, SourceError> {
        let own = self.is_own(&ask.url);
        let known = if own { self.logins.known(ask.right).await } else { None };
        let response = self.send(ask, known.clone()).await?;
        let mut refused = response.status() == StatusCode::UNAUTHORIZED;
        let mut response = response;
        // Who was sent on asks in somebody else's name.
        if refused
            && own
            && self.is_own(response.url())
            && let Some(header) =
                self.logins.answer(&self.http, &self.base, ask.right, response.headers(), known.as_ref()).await?
        {
            response = self.send(ask, Some(header)).await?;
            refused = response.status() == StatusCode::UNAUTHORIZED;
        }
        self.count(response.headers());
        if refused || matches!(response.status(), StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS) {
            return Err(self.refusal(ask.action, response).await);
        }
        Ok(response)
    }

    async fn send(&self, ask: &Ask<'_>, login: Option<HeaderValue>) -> Result<Response, SourceError> {
        let mut headers = ask.headers.clone();
        login::put(&mut headers, login);
        let mut request = self.http.request(ask.method.clone(), ask.url.clone()).headers(headers);
        if let Some(body) = ask.body {
            request = request.body(body.clone());
        }
        let request = request.build().map_err(|error| self.http.failed(ask.action, &ask.url, &error))?;
        self.http.send(ask.action, request, Redirects::Anywhere).await
    }

    async fn success(&self, action: &'static str, response: Response) -> Result<Response, SourceError> {
        if !response.status().is_success() {
            return Err(self.refusal(action, response).await);
        }
        if is_page(response.headers(), &[]) {
            return Err(self.nonsense(action, &said_there(response.extensions(), HTML_PAGE)));
        }
        Ok(response)
    }

    async fn refusal(&self, action: &'static str, response: Response) -> SourceError {
        let secrets = self.logins.secrets().await;
        let url = self.repository.to_string();
        match answer::refusal(&self.http, action, &url, response, &secrets).await {
            SourceError::Unauthorized { action, url, problem } if !self.logins.has_login() => {
                let problem = format!("{problem}; {NO_REGISTRY_LOGIN} {}", self.repository.host());
                SourceError::Unauthorized { action, url, problem }
            }
            other => other,
        }
    }

    /// Remembers what Docker Hub tells of its quota: `100;w=21600`.
    fn count(&self, headers: &HeaderMap) {
        let number = |name: &str| headers.get(name)?.to_str().ok()?.split(';').next()?.trim().parse().ok();
        if let (Some(limit), Some(remaining)) = (number("ratelimit-limit"), number("ratelimit-remaining")) {
            let quota = Quota { limit, remaining, reset: None };
            *self.quota.lock().unwrap_or_else(PoisonError::into_inner) = Some(quota);
        }
    }

    fn damaged(&self, what: &str, problem: String) -> SourceError {
        SourceError::Damaged { what: what.to_owned(), url: self.repository.to_string(), problem }
    }

    fn nonsense(&self, action: &'static str, problem: &str) -> SourceError {
        let problem = format!("the registry's answer can't be used: {problem}");
        SourceError::Unreachable { action, url: self.repository.to_string(), problem }
    }

    /// Refuses what is said of signatures where it takes more than so many bytes.
    ///
    /// # Errors
    /// It does.
    pub fn bound_descriptions(&self, bytes: u64) -> Result<(), SourceError> {
        let what = "the size of what is said of an artifact's signatures in bytes";
        if bytes > REFERRERS_BYTES { Err(self.too_large(what, REFERRERS_BYTES)) } else { Ok(()) }
    }

    fn too_large(&self, what: &str, limit: u64) -> SourceError {
        SourceError::TooLarge { of: self.repository.to_string(), limit: TooLarge { what: what.to_owned(), limit } }
    }
}

impl<'a> Ask<'a> {
    fn get(action: &'static str, url: Url) -> Self {
        Self { action, right: Right::Pull, method: Method::GET, url, headers: HeaderMap::new(), body: None }
    }

    fn write(action: &'static str, method: Method, url: Url, body: Option<&'a Bytes>) -> Self {
        Self { action, right: Right::Push, method, url, headers: HeaderMap::new(), body }
    }

    fn accept(&mut self, types: &'static str) {
        self.headers.insert(ACCEPT, HeaderValue::from_static(types));
    }
}

fn id(repository: &Repository, access: &Access) -> String {
    let mut digest = Sha256::new();
    digest.update(repository.to_string());
    digest.update([0]);
    access.digest(&mut digest);
    hex(&digest.finalize())[..16].to_owned()
}

/// The digest that a registry tells.
fn told(headers: &HeaderMap) -> Option<Digest> {
    headers.get(DIGEST)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_listed_as_a_tag_counts_whatever_it_is() {
        let list = |item: &str, times: usize| format!(r#"{{"name":"x","tags":[{}"v1"]}}"#, item.repeat(times));
        for (case, page, kept, seen) in [
            ("no tags", r#"{"name":"x","tags":null}"#.to_owned(), 0, 0),
            ("nothing of tags", r#"{"name":"x"}"#.to_owned(), 0, 0),
            ("what is no tag", list(r#""","a/b","#, 1), 1, 3),
            ("as many as there may be", list(r#""a","#, MAX_TAGS - 1), MAX_TAGS, MAX_TAGS),
            ("more", list(r#""a","#, MAX_TAGS), MAX_TAGS, MAX_TAGS + 1),
            ("texts without end that are none", list(r#""","#, 4_000_000), 0, MAX_TAGS + 1),
        ] {
            let page: Page = serde_json::from_str(&page).unwrap();
            let tags = page.tags.unwrap_or_default();
            assert_eq!((tags.tags.len(), tags.seen), (kept, seen), "{case}");
        }
        assert!(serde_json::from_str::<Page>(r#"{"tags":["a","#).is_err());
    }
}
