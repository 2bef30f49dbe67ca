//! Releases on GitLab, by its REST API: their links, or the generic package of the same name.
//!
//! Guarantees: every request goes through [`Http`](super::http::Http); the token goes to the server itself alone, not to
//! other hosts that links name; an unchanged page is not sent again; a server that says "not now" is left alone.
//!
//! Caveats: GitLab tells neither size nor digest of what a link names: what is behind a link may change unseen. Of
//! packages it tells both.

mod client;
mod place;
mod release;

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use http::HeaderMap;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::forge::download::Asset;
use super::forge::pages::Page;
use super::forge::quotas::Quotas;
use super::forge::{FETCH, Hints, Judge, LIST, Subject, pages, signed, unique, within};
use super::http::Http;
use super::meter::SourceMetrics;
use super::{Access, Fetched, Listing, Source, SourceError, Tag, Wanted};
use crate::api::cluster_stack_source::Quota;
use crate::api::source::GitlabSource as Spec;
use crate::core::digest::hex;
use crate::core::limits::Limits;
use crate::core::source::AllowList;

use client::Client;
use place::Place;
use release::{Package, PackageFile, Release};

const LISTING: &str = "listing the releases of";
const READING: &str = "reading the packages of";
const FETCHING: &str = "fetching a release from";
const HINTS: Hints = Hints {
    missing: "a private project looks like this to whoever may not read it: check project, and the rights of the token",
    rights: "the token needs the scope read_api, and the role Reporter in the project",
};

/// A project on GitLab.
pub struct GitlabSource {
    place: Place,
    key: String,
    client: Client,
    limits: Limits,
    /// As they were read last.
    releases: Mutex<Vec<Page<Release>>>,
    packages: Mutex<Vec<Page<Package>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GitlabSource {
    /// The project that `spec` names, if it may be used.
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
        access.permitted(place.server.as_str(), allow)?;
        let mut digest = Sha256::new();
        digest.update(place.server.as_str());
        access.digest(&mut digest);
        let key = format!("gitlab {} {}", place.name(), &hex(&digest.finalize())[..16]);
        let http = Http::new(access, allow)?;
        let credentials = access.credentials.as_ref();
        let subject = Subject { hints: HINTS, has_login: credentials.is_some(), source: place.name() };
        let judge = Judge::new(http.clone(), subject, metrics, quotas.of(&place.server, access));
        let client = Client::new(http, judge, place.server.clone(), credentials)?;
        let (releases, packages) = Default::default();
        Ok(Self { place, key, client, limits, releases, packages })
    }

    async fn read(&self) -> Result<Vec<Release>, SourceError> {
        let first = self.place.at(&["releases"], "per_page=100&order_by=created_at");
        let known = lock(&self.releases).clone();
        let found = pages::read(&self.client, LISTING, &first, &HeaderMap::new(), known).await?;
        let releases = found.iter().flat_map(|page| page.items.clone()).collect();
        *lock(&self.releases) = found;
        Ok(releases)
    }

    /// The release with this tag: as it was listed, else as it is now.
    async fn release(&self, tag: &Tag) -> Result<Release, SourceError> {
        let is_it = |release: &Release| release.tag().is_some_and(|found| found.name == tag.name);
        // Of packages the list tells nothing.
        let is_same = |release: &Release| {
            release.tag().is_some_and(|found| found.revision == tag.revision || found.revision.is_empty())
        };
        let known = lock(&self.releases).iter().flat_map(|page| &page.items).find(|r| is_it(r)).cloned();
        if let Some(known) = known.filter(is_same) {
            return Ok(known);
        }
        let missing = || SourceError::NotFound { tag: tag.name.clone(), url: self.place.web.clone() };
        self.read().await?.into_iter().find(is_it).ok_or_else(missing)
    }

    /// What the release consists of now, with its revision.
    async fn assets(&self, release: &Release, tag: &Tag) -> Result<(Vec<Asset>, String), SourceError> {
        if let Some(now) = release.tag().filter(|now| !now.revision.is_empty()) {
            return Ok((release.assets(&self.place, self.client.has_token()), now.revision));
        }
        let first = self.place.at(&["packages"], "package_type=generic&per_page=100&order_by=created_at&sort=desc");
        let known = lock(&self.packages).clone();
        let found = pages::read(&self.client, READING, &first, &HeaderMap::new(), known).await?;
        let packages: Vec<&Package> = found.iter().flat_map(|page| &page.items).collect();
        let package = release::package_of(&tag.name, &packages).cloned();
        *lock(&self.packages) = found;
        let Some(package) = package else {
            return Err(SourceError::Layout {
                tag: tag.name.clone(),
                path: "assets".to_owned(),
                problem: format!(
                    "the release has no links, and no generic package has the version or the name {}",
                    tag.name
                ),
            });
        };
        let files = self.place.at(&["packages", &package.id.to_string(), "package_files"], "per_page=100");
        let files: Vec<Page<PackageFile>> =
            pages::read(&self.client, READING, &files, &HeaderMap::new(), Vec::new()).await?;
        let files = release::newest(files.into_iter().flat_map(|page| page.items));
        Ok((package.assets(&files, &self.place), package.revision(&files)))
    }

    async fn fetch_now(&self, wanted: &Wanted<'_>) -> Result<Fetched, SourceError> {
        let tag = wanted.tag;
        let release = self.release(tag).await?;
        let (offered, found) = self.assets(&release, tag).await?;
        if found != tag.revision {
            let (tag, expected) = (tag.name.clone(), tag.revision.clone());
            return Err(SourceError::TagMoved { tag, expected, found });
        }
        signed::fetch(&self.client, wanted, &offered, self.place.web.clone(), &self.limits).await
    }
}

#[async_trait]
impl Source for GitlabSource {
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

    async fn resolve(&self, tag: &Tag, cancel: &CancellationToken) -> Result<Tag, SourceError> {
        let work = async {
            let release = self.release(tag).await?;
            let (_, revision) = self.assets(&release, tag).await?;
            Ok(Tag { revision, ..tag.clone() })
        };
        within(READING, &self.place.web, LIST, cancel, work).await
    }

    async fn fetch(&self, wanted: &Wanted<'_>, cancel: &CancellationToken) -> Result<Fetched, SourceError> {
        within(FETCHING, &self.place.web, FETCH, cancel, self.fetch_now(wanted)).await
    }

    fn quota(&self) -> Option<Quota> {
        self.client.judge.quota()
    }
}
