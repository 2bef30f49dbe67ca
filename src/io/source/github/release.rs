//! What is read of GitHub's releases.

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::super::Tag;
use super::super::forge::download::Asset;
use super::super::forge::pages::{Listed, parts, text};
use super::place::Place;
use crate::core::digest::hex;

/// A release as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Release {
    tag_name: String,
    #[serde(default)]
    draft: bool,
    #[serde(default, deserialize_with = "parts")]
    assets: Vec<Uploaded>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Uploaded {
    id: u64,
    name: String,
    size: u64,
    #[serde(default)]
    state: Option<String>,
    #[serde(default)]
    digest: Option<String>,
    #[serde(default)]
    updated_at: Option<String>,
}

impl Listed for Release {
    fn weight(&self) -> usize {
        size_of::<Self>() + self.tag_name.len() + self.assets.iter().map(Uploaded::weight).sum::<usize>()
    }
}

impl Uploaded {
    fn weight(&self) -> usize {
        let texts = [&self.state, &self.digest, &self.updated_at];
        size_of::<Self>() + self.name.len() + texts.into_iter().map(|it| text(it.as_ref())).sum::<usize>()
    }

    /// Whether all of it is there: an upload that was broken off stays as `starter`.
    fn is_whole(&self) -> bool {
        self.state.as_deref().is_none_or(|state| state == "uploaded")
    }
}

impl Release {
    /// Its tag; `None` for a draft, and for what has no assets and so is no cluster stack.
    pub(super) fn tag(&self) -> Option<Tag> {
        let mut assets: Vec<&Uploaded> = self.assets.iter().filter(|asset| asset.is_whole()).collect();
        if self.draft || assets.is_empty() {
            return None;
        }
        assets.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        let mut digest = Sha256::new();
        for asset in assets {
            let texts = [Some(&asset.name), asset.digest.as_ref(), asset.updated_at.as_ref()];
            for text in texts.map(|text| text.map_or("", String::as_str)) {
                digest.update((text.len() as u64).to_be_bytes());
                digest.update(text);
            }
            digest.update(asset.id.to_be_bytes());
            digest.update(asset.size.to_be_bytes());
        }
        Some(Tag { name: self.tag_name.clone(), revision: format!("sha256:{}", hex(&digest.finalize())) })
    }

    /// Its assets, by the API: that is where a token counts.
    pub(super) fn assets(&self, place: &Place) -> Vec<Asset> {
        let whole = self.assets.iter().filter(|asset| asset.is_whole());
        let asset = |asset: &Uploaded| Asset {
            name: asset.name.clone(),
            url: place.at(&format!("releases/assets/{}", asset.id)),
            size: Some(asset.size),
            sha256: asset.digest.as_ref().and_then(|digest| digest.strip_prefix("sha256:")).map(str::to_lowercase),
        };
        whole.map(asset).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn tag(change: &Value) -> Option<Tag> {
        let mut release = json!({"tag_name": "v1", "name": null, "draft": false, "prerelease": true, "assets": [
            {"id": 1, "name": "a", "size": 3, "state": "uploaded", "digest": "sha256:00", "updated_at": "x", "uploader": null},
            {"id": 2, "name": "b", "size": 4, "state": "uploaded", "digest": null, "updated_at": "y"},
        ]});
        json_patch::merge(&mut release, change);
        serde_json::from_value::<Release>(release).unwrap().tag()
    }

    #[test]
    fn a_replaced_asset_makes_another_revision() {
        let before = tag(&json!({})).unwrap();
        assert_eq!(tag(&json!({"name": "A title", "body": null})), Some(before.clone()));
        let asset =
            json!({"id": 1, "name": "a", "size": 3, "state": "uploaded", "digest": "sha256:00", "updated_at": "x"});
        for (field, value) in [
            ("id", json!(7)),
            ("name", json!("c")),
            ("size", json!(9)),
            ("digest", json!("sha256:01")),
            ("updated_at", json!("z")),
        ] {
            let mut asset = asset.clone();
            asset[field] = value;
            let now = tag(&json!({"assets": [asset, {"id": 2, "name": "b", "size": 4, "updated_at": "y"}]})).unwrap();
            assert_ne!(now.revision, before.revision, "{field}");
        }
    }

    #[test]
    fn drafts_and_releases_without_assets_are_left_out() {
        assert_eq!(tag(&json!({"draft": true})), None);
        assert_eq!(tag(&json!({"assets": []})), None);
        assert_eq!(tag(&json!({"assets": [{"id": 1, "name": "a", "size": 0, "state": "starter"}]})), None);
    }
}
