use super::*;

const CLASS: &str = "apiVersion: v2\nname: docker-scs-1-34-cluster-class\nversion: v1\n";
const STAGES: &str = "addonStages:\n  AfterControlPlaneInitialized:\n    - {name: cni, action: apply}\n";

fn stack(changes: &[(&str, Option<&str>)]) -> FileTree {
    let mut files: FileTree = [
        ("csctl.yaml", "config: {kubernetesVersion: v1.34.7, clusterStackName: scs, provider: {type: docker}}"),
        ("cluster-class/Chart.yaml", CLASS),
        ("cluster-class/templates/class.yaml", "kind: ClusterClass\nversion: << .ClusterClassVersion >>\n"),
        ("cluster-addon/cni/Chart.yaml", "apiVersion: v2\nname: cni\nversion: v1\n"),
        ("cluster-addon/cni/overwrite.yaml", "values: |\n  a: b\n"),
        ("clusteraddon.yaml", STAGES),
        ("cluster-addon-values.yaml", "values: |\n  image: << .NodeImageVersion >>\n"),
        ("README.md", "for people"),
    ]
    .into_iter()
    .map(|(path, text)| (path.to_owned(), Bytes::from(text)))
    .collect();
    for (path, text) in changes {
        match text {
            Some(text) => files.insert((*path).to_owned(), Bytes::from((*text).to_owned())),
            None => files.remove(*path),
        };
    }
    files
}

fn pack(files: &FileTree, mode: &Mode, previous: Option<&Previous>) -> Result<Package, PackageError> {
    package(files, files, mode, previous)
}

fn version(text: &str) -> ReleaseVersion {
    text.parse().unwrap()
}

fn previous(package: &Package) -> Previous {
    Previous::read(&package.files).unwrap()
}

#[test]
fn a_stack_becomes_assets() {
    let package = pack(&stack(&[]), &Mode::Stable(None), None).unwrap();
    assert_eq!(package.name.object_name(), "docker-scs-1-34-v1");
    let names: Vec<&String> = package.files.keys().collect();
    assert_eq!(names, ["cluster-addon-values.yaml", "clusteraddon.yaml", "hashes.json", "metadata.yaml"]);
    assert_eq!(
        package.files["metadata.yaml"],
        "apiVersion: metadata.clusterstack.x-k8s.io/v1alpha1\nversions:\n  clusterStack: v1\n  kubernetes: v1.34.7\n  components:\n    clusterAddon: v1\n    nodeImage: v1\n"
    );
    assert_eq!(package.files["cluster-addon-values.yaml"], "values: |\n  image: v1\n");
    let class = &package.archives["docker-scs-1-34-cluster-class-v1.tgz"];
    assert_eq!(class["docker-scs-1-34-cluster-class/templates/class.yaml"], "kind: ClusterClass\nversion: v1\n");
    let addon = &package.archives["docker-scs-1-34-cluster-addon-v1.tgz"];
    assert_eq!(addon.keys().collect::<Vec<_>>(), ["cni/Chart.yaml", "cni/overwrite.yaml"]);
}

#[test]
fn a_list_of_images_that_would_be_refused_is_noted() {
    let list = |name: &str| {
        format!(
            "apiVersion: nodeimages.clusterstack.x-k8s.io/v1alpha1\nimages:\n- name: '{name}'\n  url: https://x/y\n"
        )
    };
    for (text, expected) in [
        (list("ubuntu"), None),
        ("dockerImages: [a]\n".to_owned(), None),
        (list(""), Some("its name is empty")),
        (list("ubuntu").replace("https", "ftp"), Some("ftp is not asked for")),
    ] {
        let package = pack(&stack(&[("node-images.yaml", Some(&text))]), &Mode::Stable(None), None).unwrap();
        let noted = package.remarks.iter().find(|remark| remark.starts_with("the built-in provider will refuse"));
        assert_eq!(noted.is_some(), expected.is_some(), "{text}: {:?}", package.remarks);
        assert!(noted.is_none_or(|noted| noted.contains(expected.unwrap())), "{noted:?}");
    }
}

#[test]
fn one_broken_thing_is_one_error() {
    let dependency = "apiVersion: v2\nname: cni\nversion: v1\ndependencies:\n- {name: cilium, version: 1.18.9, repository: 'https://x/'}\n";
    for (path, text, expected) in [
        ("csctl.yaml", None, "has no csctl.yaml"),
        ("csctl.yaml", Some("config: {}"), "csctl.yaml can't be used"),
        (
            "csctl.yaml",
            Some("config: {kubernetesVersion: v1.34.7, clusterStackName: scs}"),
            "has no config.provider.type",
        ),
        (
            "csctl.yaml",
            Some("config: {kubernetesVersion: v1.34.7, clusterStackName: Scs, provider: {type: docker}}"),
            "is \"Scs\"",
        ),
        ("cluster-class/Chart.yaml", None, "cluster-class/Chart.yaml"),
        ("cluster-class/Chart.yaml", Some("name: x\n"), "cluster-class can't be loaded"),
        ("clusteraddon.yaml", Some("addonStages: {Never: []}"), "unknown variant"),
        ("clusteraddon.yaml", None, "cluster-addon/Chart.yaml"),
        ("cluster-addon/cni/Chart.yaml", Some(dependency), "cluster-addon/cni needs cilium 1.18.9 from https://x/"),
        ("node-images.yaml", Some("openStackNodeImages: 1"), "node-images.yaml can't be used"),
    ] {
        let error = pack(&stack(&[(path, text)]), &Mode::Stable(None), None).unwrap_err().to_string();
        assert!(error.contains(expected), "{path}: {error}");
    }
}

#[test]
fn versions_follow_the_mode() {
    let first = pack(&stack(&[]), &Mode::Stable(Some(version("v3"))), None).unwrap();
    let node_image = ("node-images.yaml", Some("dockerImages: [a]"));
    let class = ("cluster-class/values.yaml", Some("a: b"));
    let addon = ("cluster-addon/cni/values.yaml", Some("a: b"));
    let stages =
        ("clusteraddon.yaml", Some("addonStages:\n  AfterClusterUpgrade:\n    - {name: cni, action: apply}\n"));
    let named = ("cluster-addon/cni/values.yaml", Some("a: << .ClusterClassVersion >>"));
    let custom = |text: &str| Mode::Custom { version: version(text), addon: None, node_image: None };
    for (changes, mode, expected) in [
        (vec![class], Mode::Stable(None), Ok(("v4", "v3", "v3"))),
        (vec![addon], Mode::Stable(None), Ok(("v4", "v4", "v3"))),
        (vec![stages], Mode::Stable(None), Ok(("v4", "v4", "v3"))),
        (vec![node_image], Mode::Stable(Some(version("v9"))), Ok(("v9", "v3", "v4"))),
        (vec![class], custom("v4-alpha.3"), Ok(("v4-alpha.3", "v3", "v3"))),
        (vec![addon], custom("v4-alpha.3"), Ok(("v4-alpha.3", "v4-alpha.3", "v3"))),
        (vec![], Mode::Stable(None), Err("nothing changed since v3")),
        (vec![class], Mode::Stable(Some(version("v3"))), Err("v3 does not follow v3")),
        (vec![class], Mode::Stable(Some(version("v4-rc.1"))), Err("no stable version")),
    ] {
        let made = pack(&stack(&changes), &mode, Some(&previous(&first)));
        match expected {
            Ok((stack, addon, image)) => {
                let versions = made.unwrap().versions;
                let found =
                    [versions.cluster_stack, versions.cluster_addon, versions.node_image].map(|v| v.to_string());
                assert_eq!(found, [stack, addon, image], "{changes:?}");
            }
            Err(part) => {
                let error = made.unwrap_err().to_string();
                assert!(error.contains(part), "{changes:?}: {error}");
            }
        }
    }
    // An addon that names the class's version is another one with each release.
    let first = pack(&stack(&[named]), &Mode::Stable(None), None).unwrap();
    let second = pack(&stack(&[named, class]), &Mode::Stable(None), Some(&previous(&first))).unwrap();
    assert_eq!(second.versions.cluster_addon, version("v2"));
}

#[test]
fn what_was_tried_as_a_pre_release_becomes_a_release_as_it_is() {
    let custom = Mode::Custom { version: version("v0-alpha.1"), addon: None, node_image: None };
    let tried = pack(&stack(&[]), &custom, None).unwrap();
    let made = pack(&stack(&[]), &Mode::Stable(None), Some(&previous(&tried))).unwrap();
    assert_eq!(made.versions, Versions::all(&version("v1")));
    let error = pack(&stack(&[]), &custom, Some(&previous(&tried))).unwrap_err().to_string();
    assert!(error.contains("nothing changed since v0-alpha.1"), "{error}");
}

#[test]
fn charts_whose_version_is_filled_in_are_packaged() {
    let chart = "apiVersion: v2\nname: cni\nversion: << .ClusterAddonVersion >>\n";
    let package = pack(&stack(&[("cluster-addon/cni/Chart.yaml", Some(chart))]), &Mode::Stable(None), None).unwrap();
    let addon = &package.archives["docker-scs-1-34-cluster-addon-v1.tgz"];
    assert_eq!(addon["cni/Chart.yaml"], "apiVersion: v2\nname: cni\nversion: v1\n");
}

#[test]
fn a_minor_begins_anew() {
    let first = pack(&stack(&[]), &Mode::Stable(None), None).unwrap();
    let csctl = "config: {kubernetesVersion: v1.35.0, clusterStackName: scs, provider: {type: docker}}";
    let error = pack(&stack(&[("csctl.yaml", Some(csctl))]), &Mode::Stable(None), Some(&previous(&first))).unwrap_err();
    assert!(error.to_string().contains("made for Kubernetes 1.34, this one for 1.35"), "{error}");
}

#[test]
fn the_hash_is_over_all_components() {
    let hash = |changes: &[(&str, Option<&str>)]| pack(&stack(changes), &Mode::Hash, None).unwrap().versions;
    let before = hash(&[]);
    assert_eq!(before.cluster_stack.channel(), "sha");
    assert_eq!(hash(&[]), before);
    let class = hash(&[("cluster-class/templates/class.yaml", Some("kind: Other"))]);
    assert_ne!(class.cluster_stack, before.cluster_stack, "csctl leaves the cluster class out");
    assert_eq!(class.cluster_addon, before.cluster_addon, "the addon is the same");
    let addon = hash(&[("cluster-addon/cni/values.yaml", Some("a: b"))]);
    assert_ne!(addon.cluster_stack, before.cluster_stack);
    assert_ne!(addon.cluster_addon, before.cluster_addon);
}

#[test]
fn a_release_of_csctl_can_be_the_previous_one() {
    let files = stack(&[]);
    let made = pack(&files, &Mode::Stable(None), None).unwrap();
    let hashes = Hashes::of(&files);
    let mut assets = made.files.clone();
    // csctl writes none of ours.
    let text = format!(
        r#"{{"clusterStack":"other","clusterAddonDir":"{}","clusterAddonValues":"{}"}}"#,
        hashes.cluster_addon_dir, hashes.cluster_addon_values
    );
    assets.insert(HASHES.to_owned(), text.into());
    let versions = pack(&files, &Mode::Stable(None), Some(&Previous::read(&assets).unwrap())).unwrap().versions;
    assert_eq!((versions.cluster_stack, versions.cluster_addon), (version("v2"), version("v1")));
    assets.remove(HASHES);
    let versions = pack(&files, &Mode::Stable(None), Some(&Previous::read(&assets).unwrap())).unwrap().versions;
    assert_eq!(versions.cluster_addon, version("v2"), "without hashes nobody knows");
    assets.remove(METADATA);
    assert!(Previous::read(&assets).unwrap_err().to_string().contains("metadata.yaml: there is none"));
}

#[test]
fn what_helm_would_not_package_is_left_out() {
    let files = stack(&[("cluster-class/.helmignore", Some("*.bak\n")), ("cluster-class/values.bak", Some("a: b"))]);
    let package = pack(&files, &Mode::Stable(None), None).unwrap();
    let class = &package.archives["docker-scs-1-34-cluster-class-v1.tgz"];
    assert!(!class.keys().any(|path| path.ends_with(".bak")), "{class:?}");
}
