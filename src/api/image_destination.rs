//! Where node images are brought.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::source::SecretReference;

/// Where images are brought: exactly one of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.directory), has(self.http), has(self.s3), has(self.oci), has(self.glance)].filter(x, x).size() == 1").message("exactly one destination is needed: directory, http, s3, oci or glance"))]
pub struct Destination {
    /// A directory that the operator can write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<DirectoryDestination>,
    /// A server that takes files by HTTP PUT (`WebDAV`, Nexus, Artifactory, a generic package registry).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpDestination>,
    /// A bucket of S3 or of what is compatible with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Destination>,
    /// A repository of an OCI registry; each image is an artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oci: Option<OciDestination>,
    /// OpenStack's image service, version 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glance: Option<GlanceDestination>,
}

/// A directory that the operator can write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DirectoryDestination {
    /// Absolute path, below one that the operator's flag `--allow-image-directory` names.
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
}

/// A server that takes files by HTTP PUT.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpDestination {
    /// `https://…/`; files lie below it.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,
    /// Secret of this namespace with `username` and `password`, or `token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
    /// Secret of this namespace with `ca.crt`, and `tls.crt` and `tls.key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_secret_ref: Option<SecretReference>,
    /// Allow plain http, which anybody on the way can read and change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
}

/// A bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct S3Destination {
    /// `https://…` of the server.
    #[schemars(length(min = 1, max = 2048))]
    pub endpoint: String,
    /// The bucket.
    #[schemars(length(min = 1, max = 255))]
    pub bucket: String,
    /// Where in the bucket, for example `images/`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub prefix: String,
    /// The region; `us-east-1` without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub region: Option<String>,
    /// Secret of this namespace with `accessKeyId` and `secretAccessKey` (or `AWS_ACCESS_KEY_ID` and
    /// `AWS_SECRET_ACCESS_KEY`), and `sessionToken` where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
    /// Secret of this namespace with `ca.crt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_secret_ref: Option<SecretReference>,
    /// Allow plain http, which anybody on the way can read and change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
}

/// A repository of an OCI registry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OciDestination {
    /// `host[:port]/path`, with or without `oci://`; images are its tags.
    #[schemars(length(min = 1, max = 2048))]
    pub repository: String,
    /// Secret of this namespace with `username` and `password` (or `token`), or of type
    /// `kubernetes.io/dockerconfigjson`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
    /// Secret of this namespace with `ca.crt`, and `tls.crt` and `tls.key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_secret_ref: Option<SecretReference>,
    /// Allow plain http, which anybody on the way can read and change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
}

/// OpenStack's image service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GlanceDestination {
    /// Name of the cloud in `clouds.yaml`; the only one without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub cloud: Option<String>,
    /// Secret of this namespace with `clouds.yaml` (application credentials or a password), and `cacert` where the
    /// authority is one's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
    /// `https://…` of the image service, where the catalogue is not to be asked; without `secretRef` it is asked without
    /// a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub endpoint: Option<String>,
    /// Who may see the images; `private` without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Visibility>,
    /// Have the service download images itself (its import method `web-download`) that are brought as they lie at their
    /// publisher; what it got is compared with what we downloaded and verified, and sent where it differs or can't be got.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub web_download: bool,
    /// Protect them from deletion; such images are not removed by us either.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub protected: bool,
    /// Allow plain http, which anybody on the way can read and change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
}

/// Who may see an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Visibility {
    /// All.
    Public,
    /// All who know its id.
    Community,
    /// Those whom the owner names.
    Shared,
    /// The project of the owner.
    Private,
}
