//! A release's files, understood: which Kubernetes version, which charts, in which version.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use crate::core::files::{self, FileTree};
use crate::core::name::{KubernetesMinor, ReleaseName, ReleaseVersion};
use crate::core::yaml;

/// A release, ready to render.
#[derive(Clone, Debug, PartialEq)]
pub struct Bundle {
    /// Its name.
    pub name: ReleaseName,
    /// Kubernetes version with its patch where the release tells it: `v1.34.7`, else the minor: `v1.34`.
    pub kubernetes_version: String,
    /// The class chart; its version is the release's.
    pub class_chart: FileTree,
}

/// Why files are no release.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BundleError {
    /// There is no class chart.
    #[error("the release has no cluster-class/Chart.yaml")]
    NoClassChart,
    /// A file can't be read.
    #[error("{file} can't be read: {error}")]
    File {
        /// The file.
        file: &'static str,
        /// Why.
        error: String,
    },
    /// metadata.yaml says another thing than the tag.
    #[error(
        "metadata.yaml contradicts the tag: it says {field} {found}, the tag {name} says {wanted}; tag a corrected release"
    )]
    Contradiction {
        /// The field.
        field: &'static str,
        /// What metadata.yaml says.
        found: String,
        /// What the tag says.
        wanted: String,
        /// The release.
        name: String,
    },
}

/// `metadata.yaml` of a release.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
struct Metadata {
    versions: Versions,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct Versions {
    cluster_stack: String,
    kubernetes: String,
}

/// `csctl.yaml` of a stack's source.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
struct Csctl {
    config: CsctlConfig,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct CsctlConfig {
    #[serde(default)]
    kubernetes_version: String,
}

impl Bundle {
    /// Understands the files of a stack at its tag. `metadata.yaml`, where there is one, has to agree with the tag;
    /// without it the version is the tag's and `csctl.yaml` tells the Kubernetes patch version where it is one of the
    /// tag's minor (in real repositories it is at times behind: the tag wins).
    ///
    /// # Errors
    /// Files that are missing, can't be read or contradict the tag.
    pub fn from_files(name: &ReleaseName, files: &FileTree) -> Result<Self, BundleError> {
        let kubernetes_version = kubernetes_version(name, files)?;
        let class_chart = class_chart(name, files)?;
        Ok(Self { name: name.clone(), kubernetes_version, class_chart })
    }
}

fn kubernetes_version(name: &ReleaseName, files: &FileTree) -> Result<String, BundleError> {
    if let Some(metadata) = read::<Metadata>(files, "metadata.yaml")? {
        let Versions { cluster_stack, kubernetes } = metadata.versions;
        let contradiction = |field, found: &str, wanted: String| BundleError::Contradiction {
            field,
            found: found.to_owned(),
            wanted,
            name: name.object_name(),
        };
        if cluster_stack.parse::<ReleaseVersion>().ok().as_ref() != Some(&name.version) {
            return Err(contradiction("clusterStack", &cluster_stack, name.version.to_string()));
        }
        if minor_of(&kubernetes) != Some(name.kubernetes) {
            return Err(contradiction("kubernetes", &kubernetes, name.kubernetes.to_string()));
        }
        return Ok(with_v(&kubernetes));
    }
    let told = read::<Csctl>(files, "csctl.yaml")?.map(|csctl| csctl.config.kubernetes_version);
    let told = told.filter(|version| minor_of(version) == Some(name.kubernetes));
    Ok(told.map_or_else(|| format!("v{}", name.kubernetes), |version| with_v(&version)))
}

fn with_v(version: &str) -> String {
    if version.starts_with('v') { version.to_owned() } else { format!("v{version}") }
}

fn minor_of(version: &str) -> Option<KubernetesMinor> {
    let mut parts = version.trim_start_matches('v').splitn(3, '.');
    format!("{}.{}", parts.next()?, parts.next()?).parse().ok()
}

/// The class chart in the version of the release, as CSO's packaging writes it, so that with the release name
/// `<provider>-<name>-<major>-<minor>` a ClusterClass is called like the release.
fn class_chart(name: &ReleaseName, files: &FileTree) -> Result<FileTree, BundleError> {
    const FILE: &str = "cluster-class/Chart.yaml";
    let mut chart = files::below(files, "cluster-class");
    let Some(mut metadata) = read::<Value>(files, FILE)? else { return Err(BundleError::NoClassChart) };
    let Some(map) = metadata.as_object_mut() else {
        return Err(BundleError::File { file: FILE, error: "it is no mapping".into() });
    };
    map.insert("version".into(), name.version.to_string().into());
    chart.insert("Chart.yaml".into(), Bytes::from(yaml::to_string(&metadata)));
    Ok(chart)
}

fn read<T: serde::de::DeserializeOwned>(files: &FileTree, file: &'static str) -> Result<Option<T>, BundleError> {
    let Some(content) = files.get(file) else { return Ok(None) };
    let error = |error: String| BundleError::File { file, error };
    let text = std::str::from_utf8(content).map_err(|_| error("it is no UTF-8".into()))?;
    let value = yaml::parse(text).map_err(|e| error(e.to_string()))?;
    serde_json::from_value(value).map(Some).map_err(|e| error(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &[(&str, &str)]) -> FileTree {
        let chart = [("cluster-class/Chart.yaml", "apiVersion: v2\nname: docker-x-1-34-cluster-class\nversion: v1\n")];
        chart.iter().chain(list).map(|(path, text)| ((*path).to_owned(), Bytes::from((*text).to_owned()))).collect()
    }

    fn read(tag: &str, list: &[(&str, &str)]) -> Result<Bundle, BundleError> {
        Bundle::from_files(&tag.parse().unwrap(), &files(list))
    }

    #[test]
    fn versions_come_from_metadata_csctl_or_the_tag() {
        let metadata =
            |stack: &str, kubernetes: &str| format!("versions:\n  clusterStack: {stack}\n  kubernetes: {kubernetes}\n");
        let csctl = |version: &str| format!("config:\n  kubernetesVersion: {version}\n");
        for (name, file, text, expected) in [
            ("metadata", "metadata.yaml", metadata("v2", "v1.34.7"), Ok("v1.34.7")),
            (
                "metadata of another version",
                "metadata.yaml",
                metadata("v1", "v1.34.7"),
                Err("says clusterStack v1, the tag docker-x-1-34-v2 says v2"),
            ),
            ("metadata of another minor", "metadata.yaml", metadata("v2", "v1.33.1"), Err("says kubernetes v1.33.1")),
            ("metadata that is none", "metadata.yaml", "x: [".to_owned(), Err("metadata.yaml can't be read")),
            ("csctl", "csctl.yaml", csctl("v1.34.3"), Ok("v1.34.3")),
            ("csctl without a v", "csctl.yaml", csctl("1.34.3"), Ok("v1.34.3")),
            ("csctl left behind", "csctl.yaml", csctl("v1.3"), Ok("v1.34")),
            ("neither", "README.md", String::new(), Ok("v1.34")),
        ] {
            match (read("docker-x-1-34-v2", &[(file, &text)]), expected) {
                (Ok(bundle), Ok(version)) => assert_eq!(bundle.kubernetes_version, version, "{name}"),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{name}: {error}"),
                (found, _) => panic!("{name}: {found:?}"),
            }
        }
    }

    #[test]
    fn the_class_chart_is_versioned_like_the_release() {
        for (tag, version) in
            [("docker-x-1-34-v2", "version: v2\n"), ("docker-x-1-34-v0-sha-abc", "version: v0-sha.abc\n")]
        {
            let bundle = read(tag, &[]).unwrap();
            assert!(String::from_utf8_lossy(&bundle.class_chart["Chart.yaml"]).contains(version));
        }
        assert_eq!(
            Bundle::from_files(&"docker-x-1-34-v2".parse().unwrap(), &FileTree::new()),
            Err(BundleError::NoClassChart)
        );
    }
}
