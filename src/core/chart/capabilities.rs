//! What the cluster can do, as templates see it.

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
    /// `v1`, `apps/v1`, `apps/v1/Deployment`, in the order in which templates see them.
    pub api_versions: Vec<String>,
    /// The version of Helm that charts are told.
    pub helm_version: String,
}

impl Default for Capabilities {
    /// What `helm template` of Helm 3.21.4 assumes without a cluster.
    fn default() -> Self {
        Self::of(HelmVersion::V3)
    }
}

impl Capabilities {
    /// What `helm template` of that Helm assumes without a cluster.
    pub fn of(helm: HelmVersion) -> Self {
        let helm_version = match helm {
            HelmVersion::V3 => "v3.21.4",
            HelmVersion::V4 => "v4.3.1",
        };
        Self {
            kube_version: KubeVersion { version: "v1.34.2".into(), major: "1".into(), minor: "34".into() },
            api_versions: known(helm),
            helm_version: helm_version.into(),
        }
    }

    /// The defaults with another version of Kubernetes.
    pub fn for_kube_version(version: &str) -> Result<Self, String> {
        Ok(Self { kube_version: KubeVersion::parse(version)?, ..Self::default() })
    }
}

/// The groups and versions that the client-go of a Helm knows, in its order.
fn known(helm: HelmVersion) -> Vec<String> {
    let knows = |only: &Option<HelmVersion>| only.is_none_or(|only| only == helm);
    KNOWN.iter().filter(|(_, only)| knows(only)).map(|(version, _)| (*version).to_owned()).collect()
}

const BOTH: Option<HelmVersion> = None;
const THREE: Option<HelmVersion> = Some(HelmVersion::V3);
const FOUR: Option<HelmVersion> = Some(HelmVersion::V4);

/// Groups and versions in the order of client-go, and which Helm knows them.
const KNOWN: &[(&str, Option<HelmVersion>)] = &[
    ("v1", BOTH),
    ("admissionregistration.k8s.io/v1", BOTH),
    ("admissionregistration.k8s.io/v1alpha1", BOTH),
    ("admissionregistration.k8s.io/v1beta1", BOTH),
    ("internal.apiserver.k8s.io/v1alpha1", BOTH),
    ("apps/v1", BOTH),
    ("apps/v1beta1", BOTH),
    ("apps/v1beta2", BOTH),
    ("authentication.k8s.io/v1", BOTH),
    ("authentication.k8s.io/v1alpha1", BOTH),
    ("authentication.k8s.io/v1beta1", BOTH),
    ("authorization.k8s.io/v1", BOTH),
    ("authorization.k8s.io/v1beta1", BOTH),
    ("autoscaling/v1", BOTH),
    ("autoscaling/v2", BOTH),
    ("batch/v1", BOTH),
    ("batch/v1beta1", BOTH),
    ("certificates.k8s.io/v1", BOTH),
    ("certificates.k8s.io/v1beta1", BOTH),
    ("certificates.k8s.io/v1alpha1", BOTH),
    ("coordination.k8s.io/v1alpha2", BOTH),
    ("coordination.k8s.io/v1beta1", BOTH),
    ("coordination.k8s.io/v1", BOTH),
    ("discovery.k8s.io/v1", BOTH),
    ("discovery.k8s.io/v1beta1", BOTH),
    ("events.k8s.io/v1", BOTH),
    ("events.k8s.io/v1beta1", BOTH),
    ("extensions/v1beta1", BOTH),
    ("flowcontrol.apiserver.k8s.io/v1", BOTH),
    ("flowcontrol.apiserver.k8s.io/v1beta1", BOTH),
    ("flowcontrol.apiserver.k8s.io/v1beta2", BOTH),
    ("flowcontrol.apiserver.k8s.io/v1beta3", BOTH),
    ("lifecycle.k8s.io/v1alpha1", FOUR),
    ("networking.k8s.io/v1", BOTH),
    ("networking.k8s.io/v1beta1", BOTH),
    ("node.k8s.io/v1", BOTH),
    ("node.k8s.io/v1alpha1", BOTH),
    ("node.k8s.io/v1beta1", BOTH),
    ("policy/v1", BOTH),
    ("policy/v1beta1", BOTH),
    ("rbac.authorization.k8s.io/v1", BOTH),
    ("rbac.authorization.k8s.io/v1beta1", BOTH),
    ("rbac.authorization.k8s.io/v1alpha1", BOTH),
    ("resource.k8s.io/v1", BOTH),
    ("resource.k8s.io/v1beta2", BOTH),
    ("resource.k8s.io/v1beta1", BOTH),
    ("resource.k8s.io/v1alpha3", BOTH),
    ("scheduling.k8s.io/v1alpha2", THREE),
    ("scheduling.k8s.io/v1alpha3", FOUR),
    ("scheduling.k8s.io/v1beta1", BOTH),
    ("scheduling.k8s.io/v1", BOTH),
    ("storage.k8s.io/v1beta1", BOTH),
    ("storage.k8s.io/v1", BOTH),
    ("storage.k8s.io/v1alpha1", BOTH),
    ("storagemigration.k8s.io/v1", FOUR),
    ("storagemigration.k8s.io/v1beta1", BOTH),
    ("apiextensions.k8s.io/v1beta1", BOTH),
    ("apiextensions.k8s.io/v1", BOTH),
];

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
