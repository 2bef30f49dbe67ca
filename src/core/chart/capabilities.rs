//! What the cluster can do, as templates see it.

use std::collections::BTreeSet;

use super::HelmVersion;

/// Kubernetes' version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeVersion {
    /// `v1.34.2`; Helm 4 keeps what follows the numbers.
    pub version: String,
    /// `1`
    pub major: String,
    /// `34`
    pub minor: String,
}

impl KubeVersion {
    /// Reads a version as Kubernetes does: `1.34`, `v1.34.2`, `v1.34.2-gke.1`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = || format!("could not parse {text:?} as version");
        let body = text.trim().trim_start_matches('v');
        let end = body.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(body.len());
        let numbers: Vec<&str> = body[..end].split('.').collect();
        let valid = |part: &&str| !part.is_empty() && part.len() < 10 && !(part.len() > 1 && part.starts_with('0'));
        if numbers.len() < 2 || !numbers.iter().all(valid) {
            return Err(bad());
        }
        // What follows the numbers is dropped, as Helm does.
        Ok(Self { version: format!("v{}", numbers.join(".")), major: numbers[0].into(), minor: numbers[1].into() })
    }
}

impl KubeVersion {
    /// Reads a version as Helm 4 does: what follows the numbers is kept in it.
    ///
    /// # Errors
    /// As [`KubeVersion::parse`].
    pub fn parse_whole(text: &str) -> Result<Self, String> {
        let version = if text.starts_with('v') { text.to_owned() } else { format!("v{text}") };
        Ok(Self { version, ..Self::parse(text)? })
    }

    /// Its numbers alone: what a chart's constraint is held against.
    pub fn normalized(&self) -> String {
        Self::parse(&self.version).map_or_else(|_| self.version.clone(), |parsed| parsed.version)
    }
}

/// What the cluster offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Kubernetes' version.
    pub kube_version: KubeVersion,
    /// `v1`, `apps/v1`, `apps/v1/Deployment`
    pub api_versions: BTreeSet<String>,
    /// The version of Helm that charts are told.
    pub helm_version: String,
}

impl Default for Capabilities {
    /// What `helm template` of Helm 3.21.4 assumes without a cluster.
    fn default() -> Self {
        Self {
            kube_version: KubeVersion { version: "v1.34.2".into(), major: "1".into(), minor: "34".into() },
            api_versions: DEFAULT_VERSIONS.iter().map(|version| (*version).to_owned()).collect(),
            helm_version: "v3.21.4".into(),
        }
    }
}

impl Capabilities {
    /// What `helm template` of that Helm assumes without a cluster.
    pub fn of(helm: HelmVersion) -> Self {
        let mut capabilities = Self::default();
        if helm == HelmVersion::V4 {
            capabilities.helm_version = "v4.3.1".into();
            capabilities.api_versions.remove(GONE_VERSION);
            capabilities.api_versions.extend(LATER_VERSIONS.iter().map(|version| (*version).to_owned()));
        }
        capabilities
    }

    /// The defaults with another version of Kubernetes.
    pub fn for_kube_version(version: &str) -> Result<Self, String> {
        Ok(Self { kube_version: KubeVersion::parse(version)?, ..Self::default() })
    }
}

/// The groups and versions that client-go knows.
const DEFAULT_VERSIONS: &[&str] = &[
    "v1",
    "admissionregistration.k8s.io/v1",
    "admissionregistration.k8s.io/v1alpha1",
    "admissionregistration.k8s.io/v1beta1",
    "internal.apiserver.k8s.io/v1alpha1",
    "apps/v1",
    "apps/v1beta1",
    "apps/v1beta2",
    "authentication.k8s.io/v1",
    "authentication.k8s.io/v1alpha1",
    "authentication.k8s.io/v1beta1",
    "authorization.k8s.io/v1",
    "authorization.k8s.io/v1beta1",
    "autoscaling/v1",
    "autoscaling/v2",
    "batch/v1",
    "batch/v1beta1",
    "certificates.k8s.io/v1",
    "certificates.k8s.io/v1beta1",
    "certificates.k8s.io/v1alpha1",
    "coordination.k8s.io/v1alpha2",
    "coordination.k8s.io/v1beta1",
    "coordination.k8s.io/v1",
    "discovery.k8s.io/v1",
    "discovery.k8s.io/v1beta1",
    "events.k8s.io/v1",
    "events.k8s.io/v1beta1",
    "extensions/v1beta1",
    "flowcontrol.apiserver.k8s.io/v1",
    "flowcontrol.apiserver.k8s.io/v1beta1",
    "flowcontrol.apiserver.k8s.io/v1beta2",
    "flowcontrol.apiserver.k8s.io/v1beta3",
    "networking.k8s.io/v1",
    "networking.k8s.io/v1beta1",
    "node.k8s.io/v1",
    "node.k8s.io/v1alpha1",
    "node.k8s.io/v1beta1",
    "policy/v1",
    "policy/v1beta1",
    "rbac.authorization.k8s.io/v1",
    "rbac.authorization.k8s.io/v1beta1",
    "rbac.authorization.k8s.io/v1alpha1",
    "resource.k8s.io/v1",
    "resource.k8s.io/v1beta2",
    "resource.k8s.io/v1beta1",
    "resource.k8s.io/v1alpha3",
    "scheduling.k8s.io/v1alpha2",
    "scheduling.k8s.io/v1beta1",
    "scheduling.k8s.io/v1",
    "storage.k8s.io/v1beta1",
    "storage.k8s.io/v1",
    "storage.k8s.io/v1alpha1",
    "storagemigration.k8s.io/v1beta1",
    "apiextensions.k8s.io/v1beta1",
    "apiextensions.k8s.io/v1",
];

/// What the client-go of Helm 4.3 knows besides.
const LATER_VERSIONS: &[&str] =
    &["lifecycle.k8s.io/v1alpha1", "scheduling.k8s.io/v1alpha3", "storagemigration.k8s.io/v1"];

/// What it no longer knows.
const GONE_VERSION: &str = "scheduling.k8s.io/v1alpha2";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_kubernetes_reads_them() {
        for (text, version) in [("1.34", "v1.34"), ("v1.34.2", "v1.34.2"), ("1.30.1-gke.7", "v1.30.1")] {
            assert_eq!(KubeVersion::parse(text).unwrap().version, version);
        }
        for text in ["", "1", "v1.x", "1.02"] {
            assert!(KubeVersion::parse(text).is_err(), "{text}");
        }
    }
}
