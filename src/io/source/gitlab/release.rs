//! What is read of GitLab's releases and packages.

use std::collections::BTreeMap;

use serde::Deserialize;
use sha2::{Digest, Sha256};
use url::Url;

use super::super::Tag;
use super::super::forge::download::Asset;
use super::super::forge::pages::{Listed, parts, text};
use super::super::forge::same_server;
use super::place::Place;
use crate::core::digest::hex;

/// A release as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Release {
    /// Null for who may not see the repository.
    #[serde(default)]
    tag_name: Option<String>,
    #[serde(default)]
    released_at: Option<String>,
    #[serde(default, rename = "upcoming_release")]
    upcoming: Option<bool>,
    #[serde(default)]
    assets: Assets,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
struct Assets {
    #[serde(default, deserialize_with = "parts")]
    links: Vec<Link>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Link {
    id: u64,
    name: String,
    url: String,
    #[serde(default)]
    direct_asset_url: Option<String>,
}

/// A generic package.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Package {
    pub(super) id: u64,
    name: String,
    /// Null for packages of some kinds.
    #[serde(default)]
    version: Option<String>,
}

/// A file of a package.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct PackageFile {
    id: u64,
    file_name: String,
    size: u64,
    #[serde(default)]
    file_sha256: Option<String>,
}

impl Listed for Release {
    fn weight(&self) -> usize {
        let texts = text(self.tag_name.as_ref()) + text(self.released_at.as_ref());
        size_of::<Self>() + texts + self.assets.links.iter().map(Link::weight).sum::<usize>()
    }
}

impl Listed for Package {
    fn weight(&self) -> usize {
        size_of::<Self>() + self.name.len() + text(self.version.as_ref())
    }
}

impl Listed for PackageFile {
    fn weight(&self) -> usize {
        size_of::<Self>() + self.file_name.len() + text(self.file_sha256.as_ref())
    }
}

/// Digest over texts, each with its length.
#[derive(Default)]
struct Revision(Sha256);

impl Revision {
    fn add(&mut self, text: &str) {
        self.0.update((text.len() as u64).to_be_bytes());
        self.0.update(text);
    }

    fn end(self) -> String {
        format!("sha256:{}", hex(&self.0.finalize()))
    }
}

impl Release {
    /// Its tag; `None` for a release of the future. Without links its revision is empty: packages have to be asked for.
    pub(super) fn tag(&self) -> Option<Tag> {
        let name = self.tag_name.clone().filter(|_| self.upcoming != Some(true))?;
        if self.assets.links.is_empty() {
            return Some(Tag { name, revision: String::new() });
        }
        let mut links: Vec<&Link> = self.assets.links.iter().collect();
        links.sort_by_key(|link| link.id);
        let mut revision = Revision::default();
        revision.add(self.released_at.as_deref().unwrap_or_default());
        for link in links {
            revision.add(&link.id.to_string());
            revision.add(&link.name);
            revision.add(&link.url);
            revision.add(link.direct_asset_url.as_deref().unwrap_or_default());
        }
        Some(Tag { name, revision: revision.end() })
    }

    /// What its links name.
    pub(super) fn assets(&self, place: &Place, with_token: bool) -> Vec<Asset> {
        let tag = self.tag_name.as_deref().unwrap_or_default();
        let asset = |link: &Link| {
            let url = link.target(place, tag, with_token)?;
            Some(Asset { name: link.file_name(&url), url, size: None, sha256: None })
        };
        self.assets.links.iter().filter_map(asset).collect()
    }
}

impl Link {
    fn weight(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.url.len() + text(self.direct_asset_url.as_ref())
    }

    /// Where the file is had. A token counts for the API alone, not for the pages that people see: a permanent link of
    /// the project is asked for by the API, where there is a token.
    fn target(&self, place: &Place, tag: &str, with_token: bool) -> Option<Url> {
        let own: Option<Url> = self.url.parse().ok();
        let direct: Option<Url> = self.direct_asset_url.as_ref().and_then(|url| url.parse().ok());
        let api = place.at(&[], "");
        let api = api.path().split("/projects/").next().unwrap_or_default();
        if let Some(own) = own.as_ref().filter(|own| same_server(own, &place.server) && own.path().starts_with(api)) {
            return Some(own.clone());
        }
        let downloads = format!("/-/releases/{tag}/downloads/");
        if let Some(direct) = direct.as_ref().filter(|direct| with_token && same_server(direct, &place.server))
            && let Some((_, path)) = direct.path().split_once(&downloads)
        {
            let path: Vec<&str> = path.split('/').collect();
            return Some(place.at(&[&["releases", tag, "downloads"], &path[..]].concat(), ""));
        }
        direct.or(own)
    }

    /// The name of the link if it is one of a file, else the last part of what it names.
    fn file_name(&self, url: &Url) -> String {
        let is_file = self.name.contains('.') && !self.name.contains(['/', ' ']);
        let last = url.path_segments().and_then(Iterator::last).filter(|last| !last.is_empty());
        if is_file { self.name.clone() } else { last.unwrap_or(&self.name).to_owned() }
    }
}

/// The package of a release: whose version is the release's tag, else whose name is; of several the newest.
pub(super) fn package_of<'a>(tag: &str, packages: &[&'a Package]) -> Option<&'a Package> {
    let newest =
        |is: &dyn Fn(&Package) -> bool| packages.iter().copied().filter(|p| is(p)).max_by_key(|package| package.id);
    newest(&|package| package.version.as_deref() == Some(tag)).or_else(|| newest(&|package| package.name == tag))
}

/// The files, each name once: GitLab keeps those that were uploaded again, and gives the newest.
pub(super) fn newest(files: impl Iterator<Item = PackageFile>) -> Vec<PackageFile> {
    let mut by_name: BTreeMap<String, PackageFile> = BTreeMap::new();
    for file in files {
        if by_name.get(&file.file_name).is_none_or(|known| known.id < file.id) {
            by_name.insert(file.file_name.clone(), file);
        }
    }
    by_name.into_values().collect()
}

impl Package {
    /// What the package and its files are now.
    pub(super) fn revision(&self, files: &[PackageFile]) -> String {
        let mut revision = Revision::default();
        revision.add(&self.id.to_string());
        for file in files {
            revision.add(&file.id.to_string());
            revision.add(&file.file_name);
            revision.add(&file.size.to_string());
            revision.add(file.file_sha256.as_deref().unwrap_or_default());
        }
        revision.end()
    }

    /// Its files.
    pub(super) fn assets(&self, files: &[PackageFile], place: &Place) -> Vec<Asset> {
        let version = self.version.as_deref().unwrap_or_default();
        let asset = |file: &PackageFile| Asset {
            name: file.file_name.clone(),
            url: place.at(&["packages", "generic", &self.name, version, &file.file_name], ""),
            size: Some(file.size),
            sha256: file.file_sha256.as_ref().map(|sum| sum.to_lowercase()),
        };
        files.iter().map(asset).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn place() -> Place {
        let spec = crate::api::source::GitlabSource { project: "g/p".into(), ..Default::default() };
        Place::of(&spec).unwrap()
    }

    fn release(links: &Value) -> Release {
        let json = json!({"tag_name": "v1", "name": null, "released_at": "x", "assets": {"count": 1, "links": links}});
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn links_are_asked_for_where_a_token_counts() {
        let web = "https://gitlab.com/g/p/-/releases/v1/downloads/bin/a.tgz";
        let package = "https://gitlab.com/api/v4/projects/1/packages/generic/x/v1/a.tgz";
        let by_api = "https://gitlab.com/api/v4/projects/g%2Fp/releases/v1/downloads/bin/a.tgz";
        for (url, direct, with_token, expected) in [
            (package, Some(web), true, package),
            (package, None, false, package),
            ("https://store.example/a.tgz", Some(web), true, by_api),
            ("https://store.example/a.tgz", Some(web), false, web),
            ("https://store.example/a.tgz", None, true, "https://store.example/a.tgz"),
            ("https://store.example/api/v4/a.tgz", None, true, "https://store.example/api/v4/a.tgz"),
        ] {
            let assets = release(&json!([{"id": 1, "name": "a.tgz", "url": url, "direct_asset_url": direct}]))
                .assets(&place(), with_token);
            assert_eq!(assets[0].url.as_str(), expected, "{url} {direct:?} {with_token}");
        }
    }

    #[test]
    fn a_link_that_is_called_otherwise_has_the_name_of_its_file() {
        for (name, expected) in
            [("a.tgz", "a.tgz"), ("The class chart", "b.tgz"), ("charts/a.tgz", "b.tgz"), ("class", "b.tgz")]
        {
            let links = json!([{"id": 1, "name": name, "url": "https://store.example/x/b.tgz"}]);
            assert_eq!(release(&links).assets(&place(), false)[0].name, expected);
        }
    }

    #[test]
    fn a_changed_link_makes_another_revision() {
        let revision = |links: Value| release(&links).tag().unwrap().revision;
        let before = revision(json!([{"id": 1, "name": "a", "url": "https://x/a"}]));
        assert_ne!(before, revision(json!([{"id": 2, "name": "a", "url": "https://x/a"}])));
        assert_ne!(before, revision(json!([{"id": 1, "name": "a", "url": "https://x/b"}])));
        assert_eq!(revision(json!([])), "");
    }

    #[test]
    fn releases_of_the_future_are_left_out() {
        let of = |json: Value| serde_json::from_value::<Release>(json).unwrap().tag();
        assert_eq!(of(json!({"tag_name": "v1", "upcoming_release": true})), None);
        assert_eq!(of(json!({"tag_name": null})), None);
        assert!(of(json!({"tag_name": "v1", "upcoming_release": false})).is_some());
    }

    #[test]
    fn a_package_is_found_by_version_before_name() {
        let package = |id, name: &str, version: &str| Package { id, name: name.into(), version: Some(version.into()) };
        let all = [package(1, "x", "v1"), package(2, "y", "v1"), package(9, "v1", "7"), package(10, "v1.0", "8")];
        let found = |tag| package_of(tag, &all.iter().collect::<Vec<_>>()).map(|package| package.id);
        assert_eq!((found("v1"), found("v1.0"), found("v2")), (Some(2), Some(10), None));
    }

    #[test]
    fn of_a_file_that_was_uploaded_again_the_newest_counts() {
        let file = |id, name: &str| PackageFile { id, file_name: name.into(), size: 1, file_sha256: None };
        let files = newest([file(3, "a"), file(5, "b"), file(4, "a")].into_iter());
        assert_eq!(files.iter().map(|file| file.id).collect::<Vec<_>>(), [4, 5]);
    }
}
