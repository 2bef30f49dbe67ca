//! What a release contains, in a line: for those who decide whether it is taken.

use super::{AddonCharts, Bundle};

impl Bundle {
    /// `Kubernetes v1.34.7, cluster class v2, cluster addon v3, 2 node images`.
    pub fn contents(&self) -> String {
        let mut parts =
            vec![format!("Kubernetes {}", self.kubernetes_version), format!("cluster class {}", self.class_version)];
        if let Some(addon) = &self.addon {
            let version = self.addon_version.as_deref().unwrap_or_default();
            let stages = match addon {
                AddonCharts::Stages { charts, .. } => format!(" ({})", count(charts.len(), "chart")),
                AddonCharts::Single(_) => String::new(),
            };
            parts.push(format!("cluster addon {version}{stages}"));
        }
        if !self.node_images.images.is_empty() {
            parts.push(count(self.node_images.images.len(), "node image"));
        }
        parts.join(", ")
    }
}

fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::core::bundle::Bundle;
    use crate::core::files::FileTree;

    fn contents(files: &[(&str, &str)]) -> String {
        let files: FileTree =
            files.iter().map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec().into())).collect();
        Bundle::from_files(&"docker-scs-1-34-v2".parse().unwrap(), &files, &BTreeMap::new()).unwrap().contents()
    }

    #[test]
    fn the_parts_that_are_there_are_named() {
        let class = ("cluster-class/Chart.yaml", "apiVersion: v2\nname: c\nversion: 0.1.0\n");
        let addon = ("cluster-addon/Chart.yaml", "apiVersion: v2\nname: a\nversion: 0.1.0\n");
        let metadata = "metadataVersion: v1alpha1\nversions:\n  clusterStack: v2\n  kubernetes: v1.34.7\n  components:\n    clusterAddon: v5\n    nodeImage: v1\n";
        assert_eq!(contents(&[class]), "Kubernetes v1.34, cluster class v2");
        assert_eq!(
            contents(&[class, addon, ("metadata.yaml", metadata)]),
            "Kubernetes v1.34.7, cluster class v2, cluster addon v5"
        );
    }
}
