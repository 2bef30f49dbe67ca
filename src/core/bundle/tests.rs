use bytes::Bytes;

use super::*;

fn tree(files: &[(&str, &str)]) -> FileTree {
    files.iter().map(|(path, text)| ((*path).to_owned(), Bytes::from((*text).to_owned()))).collect()
}

fn stack() -> FileTree {
    tree(&[
        ("csctl.yaml", "config: {clusterStackName: scs, kubernetesVersion: v1.30.11, provider: {type: openstack}}"),
        ("cluster-class/Chart.yaml", "apiVersion: v2\nname: openstack-scs-1-30-cluster-class\nversion: v1\n"),
        ("cluster-class/templates/class.yaml", "kind: ClusterClass\n"),
        ("cluster-addon/cni/Chart.yaml", "apiVersion: v2\nname: cni\nversion: v7\n"),
        ("cluster-addon/cni/overwrite.yaml", "values: x\n"),
        ("clusteraddon.yaml", "addonStages: {AfterControlPlaneInitialized: [{name: cni, action: apply}]}"),
    ])
}

fn with(mut files: FileTree, path: &str, text: &str) -> FileTree {
    files.insert(path.to_owned(), Bytes::from(text.to_owned()));
    files
}

fn bundle(name: &str, files: &FileTree) -> Result<Bundle, BundleError> {
    Bundle::from_files(&name.parse().unwrap(), files, &BTreeMap::new())
}

fn chart_yaml(chart: &FileTree) -> &str {
    std::str::from_utf8(&chart["Chart.yaml"]).unwrap()
}

#[test]
fn the_class_chart_gets_the_version_of_the_release() {
    let bundle = bundle("openstack-scs-1-30-v3", &stack()).unwrap();
    assert_eq!(bundle.class_version, "v3");
    assert_eq!(bundle.kubernetes_version, "v1.30.11");
    assert_eq!(
        chart_yaml(&bundle.class_chart),
        "apiVersion: v2\nname: openstack-scs-1-30-cluster-class\nversion: \"v3\"\n"
    );
    assert!(bundle.class_chart.contains_key("templates/class.yaml"));
    assert_eq!(bundle.remarks, Vec::<String>::new());
}

#[test]
fn the_version_of_a_prerelease_has_its_dot_in_both_spellings() {
    for name in ["openstack-scs-1-30-v0-sha-e21ba15", "openstack-scs-1-30-v0-sha.e21ba15"] {
        let bundle = bundle(name, &stack()).unwrap();
        assert_eq!(bundle.class_version, "v0-sha.e21ba15");
        assert!(chart_yaml(&bundle.class_chart).contains("version: \"v0-sha.e21ba15\"\n"));
    }
}

#[test]
fn the_rest_of_a_chart_yaml_stays_as_it_is() {
    let chart = "# a comment\nversion: v1 # old\nname: x\nappVersion: 1.10\ndependencies:\n- name: y\n  version: 1.2\n";
    let bundle = bundle("openstack-scs-1-30-v3", &with(stack(), "cluster-class/Chart.yaml", chart)).unwrap();
    assert_eq!(chart_yaml(&bundle.class_chart), chart.replace("version: v1 # old", "version: \"v3\""));
}

#[test]
fn a_chart_without_a_plain_version_is_refused() {
    for chart in ["name: x\n", "{name: x, version: v1}\n", "name: x\nversion:\n  v1\n", "name: [\nversion: v1\n"] {
        let error = bundle("openstack-scs-1-30-v3", &with(stack(), "cluster-class/Chart.yaml", chart)).unwrap_err();
        assert!(matches!(error, BundleError::ChartVersion { .. }), "{chart}: {error}");
    }
}

#[test]
fn placeholders_are_filled_as_csctl_does() {
    let files = with(stack(), "cluster-class/Chart.yaml", "name: x\nversion: << .ClusterClassVersion >>\n");
    let files = with(files, "cluster-class/templates/a.yaml", "a: << .ClusterClassVersion >>/<< .NodeImageVersion >>.");
    let files = with(files, "cluster-class/templates/b.sh", "cat <<EOT >x\n<< .Other >>");
    let bundle = bundle("openstack-scs-1-30-v3", &files).unwrap();
    assert_eq!(bundle.class_chart["templates/a.yaml"], "a: v3/.");
    assert_eq!(bundle.class_chart["templates/b.sh"], "cat <<EOT >x\n<< .Other >>");
    assert!(chart_yaml(&bundle.class_chart).contains("version: \"v3\"\n"));
}

#[test]
fn metadata_gives_the_versions_of_components() {
    let metadata = "versions: {clusterStack: v3, kubernetes: v1.30.2, components: {clusterAddon: v2, nodeImage: v1}}";
    let mut files = with(stack(), "metadata.yaml", metadata);
    files.remove("csctl.yaml");
    let bundle = bundle("openstack-scs-1-30-v3", &files).unwrap();
    assert_eq!(bundle.kubernetes_version, "v1.30.2");
    assert_eq!(bundle.addon_version.as_deref(), Some("v2"));
}

#[test]
fn what_contradicts_the_tag_is_refused() {
    let metadata = "versions: {clusterStack: v3, kubernetes: v1.30.2, components: {clusterAddon: v2, nodeImage: v1}}";
    let good = with(stack(), "metadata.yaml", metadata);
    assert!(bundle("openstack-scs-1-30-v3", &good).is_ok());
    let cases = [
        ("openstack-scs-1-30-v4", good.clone(), "metadata.yaml says versions.clusterStack v3"),
        ("openstack-scs-1-29-v3", good.clone(), "metadata.yaml says versions.kubernetes v1.30.2"),
        ("openstack-scs-1-29-v3", stack(), "csctl.yaml says config.kubernetesVersion v1.30.11"),
    ];
    for (name, files, expected) in cases {
        let error = bundle(name, &files).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn a_patch_version_that_nobody_tells_is_left_open() {
    let mut files = stack();
    files.remove("csctl.yaml");
    let bundle = bundle("openstack-scs-1-30-v3", &files).unwrap();
    assert_eq!((bundle.kubernetes_version.as_str(), bundle.remarks.len()), ("v1.30", 1));
}

#[test]
fn other_names_than_the_tags_are_remarked() {
    let bundle = bundle("docker-ferrol-1-30-v3", &stack()).unwrap();
    assert_eq!(bundle.remarks.len(), 3, "{:?}", bundle.remarks);
}

#[test]
fn one_broken_thing_is_one_error() {
    let without = |path: &str| {
        let mut files = stack();
        files.remove(path);
        files
    };
    for (files, expected) in [
        (without("cluster-class/Chart.yaml"), "the stack has no cluster-class/Chart.yaml"),
        (without("cluster-addon/cni/Chart.yaml"), "no cluster-addon/cni/Chart.yaml"),
        (without("clusteraddon.yaml"), "the stack has no cluster-addon/Chart.yaml"),
        (with(stack(), "csctl.yaml", "config: [}"), "csctl.yaml can't be used"),
        (with(stack(), "metadata.yaml", "versions: 1"), "metadata.yaml can't be used"),
        (with(stack(), "clusteraddon.yaml", "addonStages: {Never: []}"), "clusteraddon.yaml can't be used"),
        (with(stack(), "node-images.yaml", "dockerImages: 1"), "node-images.yaml can't be used"),
    ] {
        let error = bundle("openstack-scs-1-30-v3", &files).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let mut files = stack();
    files.insert("csctl.yaml".to_owned(), Bytes::from_static(b"\xff"));
    assert_eq!(bundle("openstack-scs-1-30-v3", &files), Err(BundleError::NoText("csctl.yaml".to_owned())));
}

#[test]
fn the_addon_version_changes_with_the_addon_only() {
    let version = |files: &FileTree, id: Option<&str>| {
        let ids = id.map(|id| (CLUSTER_ADDON.to_owned(), id.to_owned())).into_iter().collect();
        let bundle = Bundle::from_files(&"openstack-scs-1-30-v3".parse().unwrap(), files, &ids).unwrap();
        bundle.addon_version.unwrap()
    };
    let base = version(&stack(), Some("a"));
    assert!(base.parse::<crate::core::name::ReleaseVersion>().is_ok(), "{base}");
    assert_eq!(version(&with(stack(), "cluster-class/values.yaml", "a: b"), Some("a")), base);
    assert_ne!(version(&stack(), Some("b")), base);
    assert_ne!(version(&with(stack(), "cluster-addon-values.yaml", "a: b"), Some("a")), base);
    let content = version(&stack(), None);
    assert_eq!(version(&with(stack(), "cluster-class/values.yaml", "a: b"), None), content);
    assert_ne!(version(&with(stack(), "cluster-addon/cni/values.yaml", "a: b"), None), content);
}

#[test]
fn a_single_addon_chart_gets_the_addons_version() {
    let mut files = with(stack(), "cluster-addon/Chart.yaml", "name: addon\nversion: << .ClusterAddonVersion >>\n");
    files.remove("clusteraddon.yaml");
    let files = with(files, "cluster-addon-values.yaml", "values: |\n  a: {{ .Cluster.metadata.name }}\n");
    let bundle = bundle("openstack-scs-1-30-v3", &files).unwrap();
    let Some(AddonCharts::Single(chart)) = &bundle.addon else { panic!("{:?}", bundle.addon) };
    assert_eq!(chart_yaml(chart), format!("name: addon\nversion: \"{}\"\n", bundle.addon_version.unwrap()));
    assert!(bundle.addon_values.unwrap().text.contains(".Cluster"));
}

#[test]
fn a_release_may_have_no_addon() {
    let mut files = stack();
    files.retain(|path, _| !path.starts_with("cluster-addon/"));
    assert_eq!(bundle("openstack-scs-1-30-v3", &files), Err(BundleError::StageWithoutChart("cni".to_owned())));
    files.remove("clusteraddon.yaml");
    let bundle = bundle("openstack-scs-1-30-v3", &files).unwrap();
    assert_eq!((bundle.addon, bundle.addon_version), (None, None));
    assert_eq!(bundle.remarks.len(), 1);
}
