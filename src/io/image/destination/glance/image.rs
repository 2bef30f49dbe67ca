//! Images as the service has them.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::{Claim, Image};

/// What a tag with the id of a management cluster begins with.
const USER: &str = "clusterstack-user=";
/// What only the service, or the provider's template, says of an image.
const NOT_SET: &[&str] = &[
    "checksum",
    "created_at",
    "direct_url",
    "file",
    "id",
    "locations",
    "name",
    "os_hidden",
    "owner",
    "protected",
    "schema",
    "self",
    "size",
    "status",
    "stores",
    "updated_at",
    "virtual_size",
    "visibility",
];
/// Properties that hold numbers.
const NUMBERS: &[&str] = &["min_disk", "min_ram"];

/// An image, as far as we look at it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Found {
    pub id: String,
    pub name: Option<String>,
    pub status: String,
    pub size: Option<u64>,
    #[serde(default)]
    pub protected: bool,
    #[serde(rename = "os_hidden", default)]
    pub hidden: bool,
    #[serde(default)]
    pub created_at: String,
    #[serde(default)]
    pub tags: Vec<String>,
    #[serde(rename = "os_hash_algo")]
    pub hash: Option<String>,
    #[serde(rename = "os_hash_value")]
    pub hash_value: Option<String>,
    /// Of the file, as we wrote it.
    #[serde(rename = "clusterstack_digest")]
    pub digest: Option<String>,
}

impl Found {
    /// Ids of the management clusters that use it.
    pub fn users(&self) -> Vec<String> {
        let mut users: Vec<_> =
            self.tags.iter().filter_map(|tag| tag.strip_prefix(USER)).map(ToOwned::to_owned).collect();
        users.sort();
        users
    }

    /// Whether the service's hash is that of the file, `None` where it has no hash that we know.
    pub fn is_hashed_as(&self, image: &Image, sha512: Option<&str>) -> Option<bool> {
        let hash = match self.hash.as_deref() {
            Some("sha256") => image.digest.strip_prefix("sha256:"),
            Some("sha512") => sha512,
            _ => None,
        };
        hash.map(|hash| Some(hash) == self.hash_value.as_deref())
    }

    /// Whether it is, or will be, an image.
    pub fn is_there(&self) -> bool {
        !matches!(self.status.as_str(), "deleted" | "pending_delete" | "killed")
    }
}

pub(super) fn user_tag(cluster: &str) -> String {
    format!("{USER}{cluster}")
}

/// Whether we brought it, or use it.
pub(super) fn is_ours(found: &Found, digest: &str, cluster: &str) -> bool {
    found.digest.as_deref() == Some(digest) && found.users().iter().any(|user| user == cluster)
}

/// What an image is made with; its properties are texts, but for a few.
pub(super) fn body(image: &Image, claim: &Claim, name: &str) -> Value {
    let mut body = Map::new();
    let mut tags = vec![Value::String(user_tag(&claim.cluster))];
    for (key, value) in &image.properties {
        let key = key.as_str();
        if key == "tags" {
            let told = value.as_array().into_iter().flatten().filter_map(Value::as_str);
            tags.extend(told.filter(|tag| !tag.starts_with(USER)).map(|tag| Value::String(tag.to_owned())));
        } else if NUMBERS.contains(&key) {
            let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
            body.extend(number.map(|number| (key.to_owned(), json!(number))));
        } else if !NOT_SET.contains(&key)
            && !["os_glance", "os_hash", "clusterstack_"].iter().any(|p| key.starts_with(p))
        {
            let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
            body.insert(key.to_owned(), Value::String(text));
        }
    }
    body.entry("container_format").or_insert_with(|| json!("bare"));
    let format = if image.format.is_empty() { "raw" } else { &image.format };
    body.entry("disk_format").or_insert_with(|| json!(format));
    body.extend([
        ("name".to_owned(), json!(name)),
        ("visibility".to_owned(), json!("private")),
        ("os_hidden".to_owned(), json!(true)),
        ("tags".to_owned(), Value::Array(tags)),
        ("clusterstack_digest".to_owned(), json!(image.digest)),
        ("clusterstack_object".to_owned(), json!(claim.object)),
    ]);
    Value::Object(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_an_image_is_no_more_than_what_a_release_may_say() {
        let properties = json!({
            "os_distro": "ubuntu", "min_disk": "20", "min_ram": 512, "hw_rescue": true, "tags": ["lts", "clusterstack-user=x"],
            "visibility": "public", "protected": true, "owner": "me", "clusterstack_digest": "sha256:no", "name": "other",
            "os_hash_value": "no", "hw_disk_bus": "scsi", "disk_format": "vhd",
        });
        let image = Image {
            name: "ubuntu".into(),
            digest: "sha256:aa".into(),
            size: 1,
            format: "qcow2".into(),
            properties: properties.as_object().unwrap().clone(),
            origins: Vec::new(),
        };
        let claim = Claim { object: "o".into(), attempt: 3, cluster: "c".into() };
        assert_eq!(
            body(&image, &claim, ".ubuntu.o.3.part"),
            json!({
                "name": ".ubuntu.o.3.part", "container_format": "bare", "disk_format": "vhd", "visibility": "private",
                "os_hidden": true, "tags": ["clusterstack-user=c", "lts"], "os_distro": "ubuntu", "min_disk": 20,
                "min_ram": 512, "hw_rescue": "true", "hw_disk_bus": "scsi", "clusterstack_digest": "sha256:aa",
                "clusterstack_object": "o",
            })
        );
    }
}
