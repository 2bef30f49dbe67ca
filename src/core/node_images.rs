//! `node-images.yaml`: the images that nodes of a release boot, in the forms that cluster stacks hold.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::core::yaml;

/// The files that hold the list, the one that counts first.
pub const FILES: [&str; 2] = ["node-images.yaml", "node-images/config.yaml"];

/// Of the form that is no other provider's: `images` with `name`, `url` or `steps`, `checksum` and `format`.
pub const API_VERSION: &str = "nodeimages.clusterstack.x-k8s.io/v1alpha1";

/// One image.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeImage {
    /// What it is called.
    pub name: String,
    /// Where its file is downloaded; `None` for an image known by its name only.
    pub url: Option<String>,
    /// What else is said of it, for the provider.
    pub options: Map<String, Value>,
}

/// The list of images.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeImages {
    /// The group and version of the provider whose form it is, for example
    /// `openstack.infrastructure.clusterstack.x-k8s.io/v1alpha1`.
    pub api_version: String,
    /// The images.
    pub images: Vec<NodeImage>,
    /// Whether it is in a form that is not read here: the images in it are known to its own provider alone.
    pub is_anothers: bool,
}

/// The list is no YAML, or not of a known form.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct NodeImagesError(String);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a list of images")]
struct Raw {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    docker_images: Option<Vec<String>>,
    #[serde(default, rename = "openStackNodeImages")]
    openstack: Option<Vec<RawOpenStack>>,
}

/// Our own form, for any provider.
#[derive(Deserialize)]
struct RawList {
    images: Vec<RawImage>,
}

#[derive(Deserialize)]
struct RawImage {
    name: String,
    #[serde(default)]
    url: Option<String>,
    #[serde(flatten)]
    options: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawOpenStack {
    url: String,
    /// Not of that provider's own form: what the built-in provider holds the download against.
    #[serde(default)]
    checksum: Option<String>,
    create_opts: RawCreateOptions,
}

#[derive(Deserialize)]
struct RawCreateOptions {
    name: String,
    #[serde(flatten)]
    options: Map<String, Value>,
}

impl NodeImages {
    /// Reads the text of such a file. A list in a form of another provider is left to that provider and read as empty.
    pub fn parse(text: &str) -> Result<Self, NodeImagesError> {
        let raw: Raw = read(text)?;
        let is_anothers = raw.api_version != API_VERSION && raw.docker_images.is_none() && raw.openstack.is_none();
        let own = if raw.api_version == API_VERSION { read::<RawList>(text)?.images } else { Vec::new() };
        let lacks = |image: &RawImage| image.url.is_none() && !image.options.contains_key("steps");
        if let Some(number) = own.iter().position(lacks) {
            return Err(NodeImagesError(format!("images[{number}]: neither `url` nor `steps` says how it is made")));
        }
        let own = own.into_iter().map(|image| NodeImage { name: image.name, url: image.url, options: image.options });
        let docker = raw.docker_images.unwrap_or_default().into_iter();
        let docker = docker.map(|name| NodeImage { name, url: None, options: Map::new() });
        let openstack = raw.openstack.unwrap_or_default().into_iter().map(|image| {
            let mut options = image.create_opts.options;
            if let Some(checksum) = image.checksum {
                options.insert("checksum".to_owned(), checksum.into());
            }
            NodeImage { name: image.create_opts.name, url: Some(image.url), options }
        });
        Ok(Self { api_version: raw.api_version, images: own.chain(docker).chain(openstack).collect(), is_anothers })
    }
}

fn read<T: DeserializeOwned>(text: &str) -> Result<T, NodeImagesError> {
    yaml::from_str(text).map_err(|error| NodeImagesError(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_any_provider_are_downloads_with_a_checksum() {
        let list = NodeImages::parse(
            "apiVersion: nodeimages.clusterstack.x-k8s.io/v1alpha1\nimages:\n- {name: ubuntu, url: 'https://x/y.qcow2', checksum: 'sha256:00', format: qcow2}",
        )
        .unwrap();
        let [image] = &list.images[..] else { panic!("{list:?}") };
        assert_eq!((image.name.as_str(), image.url.as_deref()), ("ubuntu", Some("https://x/y.qcow2")));
        assert_eq!(image.options["checksum"], "sha256:00");
        let neither = format!("apiVersion: {API_VERSION}\nimages: [{{name: x}}]");
        let error = NodeImages::parse(&neither).unwrap_err().to_string();
        assert!(error.contains("images[0]: neither `url` nor `steps`"), "{error}");
    }

    #[test]
    fn images_of_docker_are_names() {
        let list = NodeImages::parse("apiVersion: docker/v1\ndockerImages: [controlplaneamd64, workeramd64]").unwrap();
        assert_eq!(
            list.images.iter().map(|i| i.name.as_str()).collect::<Vec<_>>(),
            ["controlplaneamd64", "workeramd64"]
        );
        assert_eq!(list.images[0].url, None);
    }

    #[test]
    fn images_of_openstack_are_downloads() {
        let list = NodeImages::parse(
            "openStackNodeImages:\n- url: https://x/y.qcow2\n  createOpts: {name: ubuntu, disk_format: qcow2}",
        )
        .unwrap();
        assert_eq!(list.images[0].name, "ubuntu");
        assert_eq!(list.images[0].url.as_deref(), Some("https://x/y.qcow2"));
        assert_eq!(list.images[0].options["disk_format"], "qcow2");
        let checked = "openStackNodeImages: [{url: 'https://x/y', checksum: 'sha256:00', createOpts: {name: u}}]";
        assert_eq!(NodeImages::parse(checked).unwrap().images[0].options["checksum"], "sha256:00");
    }

    #[test]
    fn an_image_without_url_is_an_error() {
        let error = NodeImages::parse("openStackNodeImages: [{createOpts: {name: x}}]").unwrap_err().to_string();
        assert!(error.contains("url"), "{error}");
    }

    #[test]
    fn another_providers_form_is_left_to_it() {
        for (text, expected) in [
            ("apiVersion: other/v1\nimages: [{a: b}]", true),
            ("nodeImages: []", true),
            ("apiVersion: docker/v1\ndockerImages: []", false),
            ("apiVersion: nodeimages.clusterstack.x-k8s.io/v1alpha1\nimages: []", false),
        ] {
            let list = NodeImages::parse(text).unwrap();
            assert_eq!((list.images.len(), list.is_anothers), (0, expected), "{text}");
        }
    }
}
