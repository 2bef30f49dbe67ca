//! Types of Secrets that others keep for themselves, which nobody may have read by the operator's rights.

/// The type of the Secrets that keep what charts drew at random.
pub const SEED: &str = "clusterstack.x-k8s.io/seed";
/// The type of what Cluster API keeps of a Cluster: its kubeconfig and its authorities (Cluster API's `ClusterSecretType`).
pub const CLUSTER: &str = "cluster.x-k8s.io/secret";

const OF_OTHERS: [&str; 5] =
    ["bootstrap.kubernetes.io/token", CLUSTER, "helm.sh/release.v1", "kubernetes.io/service-account-token", SEED];

/// Whether a Secret of this type is for nobody else to use: who may name one would get the operator to show it to a server,
/// or to a chart, of his choice.
pub fn is_of_others(of_type: &str) -> bool {
    OF_OTHERS.contains(&of_type)
}

/// Whether a Secret of this type may hold values for the addons of `cluster`; `labelled` is the Cluster that it is of, by its
/// label `cluster.x-k8s.io/cluster-name`. What Cluster API keeps of that very Cluster may: its addons have the whole cluster.
pub fn may_be_values(of_type: &str, labelled: Option<&str>, cluster: &str) -> bool {
    !is_of_others(of_type) || of_type == CLUSTER && labelled == Some(cluster)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_of_everybody_or_of_the_cluster() {
        let cases = [
            ("Opaque", None, true),
            ("Opaque", Some("other"), true),
            ("kubernetes.io/tls", None, true),
            (CLUSTER, Some("mine"), true),
            (CLUSTER, Some("other"), false),
            (CLUSTER, None, false),
            ("kubernetes.io/service-account-token", Some("mine"), false),
            ("bootstrap.kubernetes.io/token", None, false),
            ("helm.sh/release.v1", None, false),
            (SEED, Some("mine"), false),
        ];
        for (of_type, labelled, may) in cases {
            assert_eq!(may_be_values(of_type, labelled, "mine"), may, "{of_type} of {labelled:?}");
        }
    }
}
