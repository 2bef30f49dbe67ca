//! What a release says of its versions: `metadata.yaml` of a release made by csctl, `csctl.yaml` of its sources.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use crate::core::name::{KubernetesMinor, NameError, ReleaseVersion};
use crate::core::yaml;

/// A full version of Kubernetes, printed with its `v` as the Go operator shows it: `v1.30.11`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KubernetesVersion {
    /// Its minor.
    pub minor: KubernetesMinor,
    /// The patch, with what may follow it: `11`, `0-rc.1`.
    patch: String,
}

/// Why a `metadata.yaml` or `csctl.yaml` can't be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MetadataError {
    /// It is no YAML, or not of the expected form.
    #[error("{0}")]
    Form(String),
    /// A version is none.
    #[error("{field}: {error}")]
    Version {
        /// Where it stands.
        field: &'static str,
        /// What is wrong.
        error: NameError,
    },
    /// It is a file of another kind.
    #[error("{place}{field} is {found:?}: {expected}")]
    Another {
        /// The line, if it could be told, as it begins a message.
        place: String,
        /// Where it stands.
        field: &'static str,
        /// What stands there.
        found: String,
        /// What is expected.
        expected: &'static str,
    },
    /// The Kubernetes version is none.
    #[error("{field} is {found:?}: write the full version, for example v1.30.11")]
    Kubernetes {
        /// Where it stands.
        field: &'static str,
        /// What stands there.
        found: String,
    },
}

/// `metadata.yaml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Version of the cluster stack: that of the release.
    pub cluster_stack: ReleaseVersion,
    /// Version of Kubernetes.
    pub kubernetes: KubernetesVersion,
    /// Version of the addon charts.
    pub cluster_addon: Option<ReleaseVersion>,
    /// Version of the node images.
    pub node_image: Option<ReleaseVersion>,
}

/// `csctl.yaml`, as far as a release depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Csctl {
    /// Version of Kubernetes.
    pub kubernetes: KubernetesVersion,
    /// Provider, if given.
    pub provider: Option<String>,
    /// Name of the cluster stack, if given.
    pub cluster_stack: Option<String>,
}

impl KubernetesVersion {
    /// Reads `v1.30.11`, `1.30.11` and `v1.30.0-rc.1`.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix('v').unwrap_or(text).splitn(3, '.');
        let minor = KubernetesMinor::from_str(&format!("{}.{}", parts.next()?, parts.next()?)).ok()?;
        let patch = parts.next()?;
        let digits = patch.split(['-', '+']).next()?;
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let is_plain = patch.bytes().all(|b| b.is_ascii_alphanumeric() || b"-+.".contains(&b));
        (is_number && is_plain && patch.len() <= 64).then(|| Self { minor, patch: patch.to_owned() })
    }

    fn read(field: &'static str, text: &str) -> Result<Self, MetadataError> {
        Self::parse(text.trim()).ok_or_else(|| MetadataError::Kubernetes { field, found: text.to_owned() })
    }
}

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}", self.minor, self.patch)
    }
}

/// What csctl writes; older releases leave it out.
const API_VERSION: &str = "metadata.clusterstack.x-k8s.io/v1alpha1";
const WRITE_IT: &str = "write metadata.clusterstack.x-k8s.io/v1alpha1, the only one that is known, or leave it out";
const NO_KIND: &str = "a metadata.yaml has no kind: is it another file?";

/// What says of which kind a file is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawKind {
    #[serde(default)]
    api_version: Option<String>,
    #[serde(default)]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct RawMetadata {
    versions: RawVersions,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawVersions {
    cluster_stack: String,
    kubernetes: String,
    #[serde(default)]
    components: Option<RawComponents>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawComponents {
    #[serde(default)]
    cluster_addon: Option<String>,
    #[serde(default)]
    node_image: Option<String>,
}

impl Metadata {
    /// Reads the text of a `metadata.yaml`.
    ///
    /// # Errors
    /// It is a file of another kind, says something twice, or holds what is no version.
    pub fn parse(text: &str) -> Result<Self, MetadataError> {
        let form = |error: yaml::Error| MetadataError::Form(error.to_string());
        are_maps(&yaml::parse(text).map_err(form)?)?;
        // First: a file of another kind has other fields.
        let kind: RawKind = yaml::from_str_once(text).map_err(form)?;
        let another = |field: &'static str, found, expected| {
            let line = text.lines().position(|line| line.strip_prefix(field).is_some_and(|rest| rest.starts_with(':')));
            let place = line.map(|line| format!("line {}: ", line + 1)).unwrap_or_default();
            Err(MetadataError::Another { place, field, found, expected })
        };
        match (kind.api_version, kind.kind) {
            (Some(found), _) if found != API_VERSION => return another("apiVersion", found, WRITE_IT),
            (_, Some(found)) => return another("kind", found, NO_KIND),
            _ => {}
        }
        let raw: RawMetadata = yaml::from_str(text).map_err(form)?;
        let components = raw.versions.components.unwrap_or_default();
        Ok(Self {
            cluster_stack: version("versions.clusterStack", &raw.versions.cluster_stack)?,
            kubernetes: KubernetesVersion::read("versions.kubernetes", &raw.versions.kubernetes)?,
            cluster_addon: some("versions.components.clusterAddon", components.cluster_addon)?,
            node_image: some("versions.components.nodeImage", components.node_image)?,
        })
    }
}

/// A list would be read as fields in their order.
fn are_maps(file: &Value) -> Result<(), MetadataError> {
    let problem = |what: &str| Err(MetadataError::Form(format!("{what} is no map")));
    if file.is_null() {
        return Err(MetadataError::Form("it is empty".to_owned()));
    }
    for (what, pointer) in [("it", ""), ("versions", "/versions"), ("versions.components", "/versions/components")] {
        if file.pointer(pointer).is_some_and(|value| !value.is_object() && !value.is_null()) {
            return problem(what);
        }
    }
    Ok(())
}

fn version(field: &'static str, text: &str) -> Result<ReleaseVersion, MetadataError> {
    text.parse().map_err(|error| MetadataError::Version { field, error })
}

fn some(field: &'static str, text: Option<String>) -> Result<Option<ReleaseVersion>, MetadataError> {
    text.filter(|text| !text.is_empty()).map(|text| version(field, &text)).transpose()
}

#[derive(Deserialize)]
#[serde(expecting = "config with kubernetesVersion")]
struct RawCsctl {
    config: RawCsctlConfig,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawCsctlConfig {
    kubernetes_version: String,
    #[serde(default)]
    cluster_stack_name: Option<String>,
    #[serde(default)]
    provider: Option<RawProvider>,
}

#[derive(Deserialize)]
struct RawProvider {
    #[serde(rename = "type", default)]
    kind: Option<String>,
}

impl Csctl {
    /// Reads the text of a `csctl.yaml`.
    pub fn parse(text: &str) -> Result<Self, MetadataError> {
        let raw: RawCsctl = yaml::from_str(text).map_err(|error| MetadataError::Form(error.to_string()))?;
        Ok(Self {
            kubernetes: KubernetesVersion::read("config.kubernetesVersion", &raw.config.kubernetes_version)?,
            provider: raw.config.provider.and_then(|provider| provider.kind).filter(|text| !text.is_empty()),
            cluster_stack: raw.config.cluster_stack_name.filter(|text| !text.is_empty()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str = "apiVersion: metadata.clusterstack.x-k8s.io/v1alpha1
versions:
  clusterStack: v0-sha.hipstsw
  kubernetes: v1.27.7
  components:
    clusterAddon: v2
    nodeImage: v3
";

    #[test]
    fn metadata_is_read() {
        let metadata = Metadata::parse(METADATA).unwrap();
        assert_eq!(metadata.cluster_stack.to_string(), "v0-sha.hipstsw");
        assert_eq!(metadata.kubernetes.to_string(), "v1.27.7");
        assert_eq!(metadata.kubernetes.minor.to_string(), "1.27");
        assert_eq!(metadata.cluster_addon.unwrap().to_string(), "v2");
        assert_eq!(metadata.node_image.unwrap().to_string(), "v3");
    }

    #[test]
    fn metadata_without_components_is_read() {
        let metadata = Metadata::parse("versions: {clusterStack: v1, kubernetes: 1.27.3}").unwrap();
        assert_eq!((metadata.cluster_addon, metadata.node_image), (None, None));
        assert_eq!(metadata.kubernetes.to_string(), "v1.27.3");
    }

    #[test]
    fn one_broken_field_is_one_error() {
        for (good, bad, expected) in [
            ("v0-sha.hipstsw", "one", "versions.clusterStack: \"one\" is no release version"),
            ("v1.27.7", "v1.27", "versions.kubernetes is \"v1.27\": write the full version"),
            (
                "clusterAddon: v2",
                "clusterAddon: two",
                "versions.components.clusterAddon: \"two\" is no release version",
            ),
            ("nodeImage: v3", "nodeImage: v-3", "versions.components.nodeImage"),
            ("versions:", "version:", "versions"),
            ("  kubernetes: v1.27.7\n", "", "kubernetes"),
            (
                "metadata.clusterstack.x-k8s.io/v1alpha1",
                "metadata.clusterstack.x-k8s.io/v2",
                "line 1: apiVersion is \"metadata.clusterstack.x-k8s.io/v2\": write metadata.clusterstack.x-k8s.io/v1alpha1",
            ),
            ("versions:", "kind: ConfigMap\nversions:", "line 2: kind is \"ConfigMap\": a metadata.yaml has no kind"),
            ("  kubernetes: v1.27.7\n", "  kubernetes: v1.27.7\n  kubernetes: v1.28.1\n", "line 5, column 3: the key"),
            (
                "    nodeImage: v3\n",
                "    nodeImage: v3\nversions: {}\n",
                "line 8, column 1: the key \"versions\" is there twice",
            ),
        ] {
            let error = Metadata::parse(&METADATA.replace(good, bad)).unwrap_err().to_string();
            assert!(error.contains(expected), "{bad}: {error}");
        }
    }

    #[test]
    fn what_is_no_map_is_told() {
        for (text, expected) in [
            ("", "it is empty"),
            ("# nothing\n", "it is empty"),
            ("- a\n", "it is no map"),
            ("versions: [v1, v1.34.0]\n", "versions is no map"),
            ("versions: {clusterStack: v1, kubernetes: v1.34.0, components: [v1]}", "versions.components is no map"),
        ] {
            assert_eq!(Metadata::parse(text).unwrap_err().to_string(), expected, "{text:?}");
        }
    }

    #[test]
    fn kubernetes_versions_are_full() {
        for (text, printed) in [("v1.30.11", "v1.30.11"), ("1.30.0", "v1.30.0"), ("v1.31.0-rc.1", "v1.31.0-rc.1")] {
            assert_eq!(KubernetesVersion::parse(text).unwrap().to_string(), printed);
        }
        for text in ["", "v1", "v1.30", "v1.30.", "v1.30.x", "v1.030.1", "vv1.30.1", "v1.30.1\n", "v1.30.1 x"] {
            assert_eq!(KubernetesVersion::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn csctl_is_read() {
        let csctl = Csctl::parse(
            "config: {clusterStackName: scs, kubernetesVersion: v1.30.11, provider: {type: openstack, config: {a: b}}}",
        )
        .unwrap();
        assert_eq!(csctl.kubernetes.to_string(), "v1.30.11");
        assert_eq!((csctl.provider.as_deref(), csctl.cluster_stack.as_deref()), (Some("openstack"), Some("scs")));
        assert!(Csctl::parse("config: {}").is_err());
    }
}
