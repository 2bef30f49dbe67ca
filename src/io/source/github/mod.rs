//! Releases on GitHub and their assets, by its REST API with octocrab.
//!
//! Guarantees: every request goes through [`Http`](super::http::Http); the token goes to the API's own host alone; an
//! unchanged list costs no quota, a used up quota is not asked again; an asset has the size and digest that the list said.
//!
//! Caveats: of GitHub's answers only what is needed is read, so that a field that GitHub changes does not hide a
//! release; octocrab's own models want all of them.

mod app;
mod client;
mod place;
mod release;

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use http::HeaderMap;
use http::header::{ACCEPT, HeaderValue};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::forge::pages::Page;
use super::forge::quotas::Quotas;
use super::forge::{FETCH, Hints, Judge, LIST, Subject, pages, signed, unique, within};
use super::http::Http;
use super::meter::SourceMetrics;
use super::{Access, Fetched, Listing, Source, SourceError, Tag, Wanted};
use crate::api::cluster_stack_source::Quota;
use crate::api::source::GithubSource as Spec;
use crate::core::digest::hex;
use crate::core::limits::Limits;
use crate::core::source::AllowList;

use client::Client;
use place::Place;
use release::Release;

const LISTING: &str = "listing the releases of";
const FETCHING: &str = "fetching a release from";
const HINTS: Hints = Hints {
    missing: "a private repository looks like this to whoever may not read it: check owner and repository, and the rights of the token",
    rights: "the token needs the right to read the contents of the repository",
};

/// A repository on GitHub or on a GitHub Enterprise server.
pub struct GithubSource {
    place: Place,
    key: String,
    client: Client,
    limits: Limits,
    /// As they were read last.
    pages: Mutex<Vec<Page<Release>>>,
}

impl GithubSource {
    /// The repository that `spec` names, if it may be used.
    ///
    /// # Errors
    /// The URL is not permitted or none, or a Secret can't be used.
    pub fn new(
        spec: &Spec,
        access: &Access,
        allow: &AllowList,
        limits: Limits,
        metrics: SourceMetrics,
        quotas: &Quotas,
    ) -> Result<Self, SourceError> {
        let place = Place::of(spec)?;
        access.permitted(place.api.as_str(), allow)?;
        let mut digest = Sha256::new();
        digest.update(place.api.as_str());
        access.digest(&mut digest);
        let key = format!("github {} {}", place.name(), &hex(&digest.finalize())[..16]);
        let http = Http::new(access, allow)?;
        let credentials = access.credentials.as_ref();
        let subject = Subject { hints: HINTS, has_login: credentials.is_some(), source: place.name() };
        let judge = Judge::new(http.clone(), subject, metrics, quotas.of(&place.api, access));
        let client = Client::new(http, judge, &place, credentials)?;
        Ok(Self { place, key, client, limits, pages: Mutex::default() })
    }

    async fn read(&self) -> Result<Vec<Release>, SourceError> {
        let first = self.place.at("releases?per_page=100");
        let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/vnd.github+json"))]);
        let known = self.pages.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let found = pages::read(&self.client, LISTING, &first, &headers, known).await?;
        let releases = found.iter().flat_map(|page| page.items.clone()).collect();
        *self.pages.lock().unwrap_or_else(PoisonError::into_inner) = found;
        Ok(releases)
    }

    fn known(&self, tag: &Tag) -> Option<Release> {
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let mut releases = pages.iter().flat_map(|page| &page.items);
        releases.find(|release| release.tag().is_some_and(|known| known == *tag)).cloned()
    }

    async fn fetch_now(&self, wanted: &Wanted<'_>) -> Result<Fetched, SourceError> {
        let tag = wanted.tag;
        let release = match self.known(tag) {
            Some(release) => release,
            None => self.look_again(tag).await?,
        };
        let offered = release.assets(&self.place);
        signed::fetch(&self.client, wanted, &offered, self.place.web.clone(), &self.limits).await
    }

    /// The release as it is now, if it is still what `tag` says.
    async fn look_again(&self, tag: &Tag) -> Result<Release, SourceError> {
        let releases = self.read().await?;
        let found = releases
            .into_iter()
            .find_map(|release| Some((release.tag()?, release)).filter(|(t, _)| t.name == tag.name));
        match found {
            None => Err(SourceError::NotFound { tag: tag.name.clone(), url: self.place.web.clone() }),
            Some((now, _)) if now.revision != tag.revision => {
                let (tag, expected) = (tag.name.clone(), tag.revision.clone());
                Err(SourceError::TagMoved { tag, expected, found: now.revision })
            }
            Some((_, release)) => Ok(release),
        }
    }
}

#[async_trait]
impl Source for GithubSource {
    fn key(&self) -> String {
        self.key.clone()
    }

    fn host(&self) -> String {
        self.place.host()
    }

    async fn list(&self, cancel: &CancellationToken) -> Result<Listing, SourceError> {
        let releases = within(LISTING, &self.place.web, LIST, cancel, self.read()).await?;
        Ok(Listing::new(unique(releases.iter().filter_map(Release::tag))))
    }

    async fn fetch(&self, wanted: &Wanted<'_>, cancel: &CancellationToken) -> Result<Fetched, SourceError> {
        within(FETCHING, &self.place.web, FETCH, cancel, self.fetch_now(wanted)).await
    }

    fn quota(&self) -> Option<Quota> {
        self.client.judge.quota()
    }
}
