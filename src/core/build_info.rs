//! What this binary is: its version, what it was made of, and what it was made for.

use serde::Serialize;

/// Version and origin of this binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BuildInfo {
    /// Semantic version of the release.
    pub version: &'static str,
    /// Git commit, `unknown` where the build was not told: `CLUSTERSTACK_COMMIT`.
    pub commit: &'static str,
    /// Day or time of that commit, `unknown` where the build was not told: `CLUSTERSTACK_DATE`.
    pub date: &'static str,
    /// The minor of Kubernetes whose types it has, and with which it is tested.
    pub kubernetes: &'static str,
    /// Contracts of Cluster API that it reads.
    pub cluster_api: &'static str,
    /// Versions of Helm that charts are rendered like.
    pub helm: &'static str,
}

/// This binary.
pub const BUILD: BuildInfo = BuildInfo {
    version: env!("CARGO_PKG_VERSION"),
    commit: or_unknown(option_env!("CLUSTERSTACK_COMMIT")),
    date: or_unknown(option_env!("CLUSTERSTACK_DATE")),
    kubernetes: "1.36",
    cluster_api: "v1beta1, v1beta2",
    helm: "3.21, 4.3",
};

const fn or_unknown(given: Option<&'static str>) -> &'static str {
    match given {
        Some(given) if !given.is_empty() => given,
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_the_kubernetes_that_it_was_built_with() {
        let manifest = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let feature = format!("\"v{}\"", BUILD.kubernetes.replace('.', "_"));
        assert!(manifest.contains(&feature), "{feature}");
    }

    #[test]
    fn it_says_the_helm_that_it_is_compared_with() {
        for (number, module) in [("3.21", "hack/oracle/go.mod"), ("4.3", "hack/oracle/four/go.mod")] {
            let text = std::fs::read_to_string(format!("{}/{module}", env!("CARGO_MANIFEST_DIR"))).unwrap();
            assert!(text.contains(&format!(" v{number}.")), "{module}");
            assert!(BUILD.helm.contains(number));
        }
    }
}
