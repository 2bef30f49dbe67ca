//! All tags of the real repository: which give a release, which are refused, and why.

use std::fmt::Write;

use clusterstack::core::bundle::{AddonCharts, Bundle};
use clusterstack::core::files::FileTree;
use clusterstack::core::limits::Limits;
use clusterstack::core::name::ReleaseName;
use clusterstack::io::source::{Access, Fetched, Source};
use clusterstack::io::unpack::{expand_charts, pack_release, unpack_release};
use tokio_util::sync::CancellationToken;

use super::{git, repository, shared, wanted};

fn describe(bundle: &Bundle, path: &str) -> String {
    let addon = match &bundle.addon {
        None => "none".to_owned(),
        Some(AddonCharts::Single(_)) => "one chart".to_owned(),
        Some(AddonCharts::Stages { charts, .. }) => charts.keys().cloned().collect::<Vec<_>>().join("+"),
    };
    let version = bundle.addon_version.as_deref().unwrap_or("-");
    let images = bundle.node_images.images.len();
    format!(
        "{path} class {} k8s {} addon {addon} {version} images {images}",
        bundle.class_version, bundle.kubernetes_version
    )
}

/// The files as they come out of the store, charts expanded.
fn stored(fetched: &Fetched) -> FileTree {
    let limits = Limits::default();
    let packed = pack_release(&fetched.files, &fetched.component_ids).unwrap();
    let (files, ids) = unpack_release(&packed, &limits).unwrap();
    assert_eq!((&files, &ids), (&fetched.files, &fetched.component_ids));
    let files = expand_charts(files, &limits).unwrap();
    assert!(!files.keys().any(|path| path.ends_with(".tgz")), "{:?}", files.keys());
    files
}

#[tokio::test]
async fn every_tag_of_the_real_repository_is_a_release_or_says_why_not() {
    let Some(shared) = shared() else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = repository::real(&shared, directory.path());
    let git = git(directory.path(), &[directory.path().to_str().unwrap()]);
    let source = git.source(&format!("file://{}", path.display()), None, Access::default()).unwrap();
    let cancel = CancellationToken::new();
    let listing = source.list(&cancel).await.unwrap();
    assert_eq!(listing.tags.len(), 40);
    let mut table = String::new();
    for tag in &listing.tags {
        let outcome = match tag.name.parse::<ReleaseName>() {
            Err(_) => "no release".to_owned(),
            Ok(name) => match source.fetch(&wanted(tag, &name), &cancel).await {
                Err(error) => format!("REFUSED {error}"),
                Ok(fetched) => match Bundle::from_files(&name, &stored(&fetched), &fetched.component_ids) {
                    Err(error) => format!("REFUSED {error}"),
                    Ok(bundle) => describe(&bundle, &fetched.path),
                },
            },
        };
        writeln!(table, "{}: {outcome}", tag.name).unwrap();
    }
    insta::assert_snapshot!(table, @r#"
    docker-ferrol-1-27-v1: providers/docker/ferrol/1-27 class v1 k8s v1.27.3 addon one chart v1 images 2
    docker-ferrol-1-27-v2: providers/docker/ferrol/1-27 class v2 k8s v1.27.3 addon one chart v2 images 2
    hetzner-baremetal-1-30-v0-sha-e21ba15: providers/hetzner/baremetal/1-30 class v0-sha.e21ba15 k8s v1.30.3 addon one chart v0-sha.ge0161a937950 images 0
    hetzner-baremetal-1-30-v0-sha-fe62bf8: providers/hetzner/baremetal/1-30 class v0-sha.fe62bf8 k8s v1.30.3 addon one chart v0-sha.ge22c35f50c36 images 0
    hetzner-baremetal-1-30-v0-sha-tkrilep: providers/hetzner/baremetal/1-30 class v0-sha.tkrilep k8s v1.30.5 addon one chart v0-sha.gc6d3e203a9ab images 0
    hetzner-baremetal-1-30-v1: providers/hetzner/baremetal/1-30 class v1 k8s v1.30.3 addon one chart v0-sha.gb49146e3bd0e images 0
    metal3-alpha-1-28-v0-sha-b08777e: providers/metal3/alpha/1-28 class v0-sha.b08777e k8s v1.28.9 addon one chart v0-sha.gdf9150b470e4 images 0
    metal3-alpha-1-28-v0-sha-b699b93: providers/metal3/alpha/1-28 class v0-sha.b699b93 k8s v1.28.9 addon one chart v0-sha.gdf9150b470e4 images 0
    openstack-alpha-1-27-v1: providers/openstack/alpha/1-27 class v1 k8s v1.27.14 addon one chart v0-sha.gc7c27fe990da images 1
    openstack-alpha-1-28-v3: REFUSED metadata.yaml says versions.clusterStack v2, but the release is named openstack-alpha-1-28-v3: publish it under the name that fits, or correct the file and publish a new version
    openstack-alpha-1-28-v4: REFUSED metadata.yaml says versions.kubernetes v1.27.3, but the release is named openstack-alpha-1-28-v4: publish it under the name that fits, or correct the file and publish a new version
    openstack-alpha-1-29-v1: providers/openstack/alpha/1-29 class v1 k8s v1.29.3 addon one chart v0-sha.gbbba15be86f0 images 1
    openstack-alpha-1-29-v2: providers/openstack/alpha/1-29 class v2 k8s v1.29.3 addon one chart v0-sha.gbbba15be86f0 images 1
    openstack-alpha-1-29-v3: providers/openstack/alpha/1-29 class v3 k8s v1.29.3 addon one chart v0-sha.gbbba15be86f0 images 1
    openstack-alpha-1-30-v1: providers/openstack/alpha/1-30 class v1 k8s v1.30.1 addon one chart v0-sha.g3841aef0bf5a images 1
    openstack-alpha-1-30-v2: providers/openstack/alpha/1-30 class v2 k8s v1.30.1 addon one chart v0-sha.g3841aef0bf5a images 1
    openstack-alpha-1-30-v4: providers/openstack/alpha/1-30 class v4 k8s v1.30.1 addon one chart v0-sha.g3841aef0bf5a images 1
    openstack-csp-helper-v0.2.0: no release
    openstack-csp-helper-v0.3.0: no release
    openstack-kamaji-1-30-v0-sha-11930ee: providers/openstack/kamaji/1-30 class v0-sha.11930ee k8s v1.30.1 addon one chart v0-sha.g2384af7f1fca images 1
    openstack-scs-1-27-v1: REFUSED the tree of tag openstack-scs-1-27-v1 holds no such stack: there is no cluster-class/Chart.yaml in stacks/openstack/scs, providers/openstack/scs/1-27, providers/openstack/scs; set source.git.path, or publish a new version with the stack in one of these places
    openstack-scs-1-27-v2: providers/openstack/scs/1-27 class v2 k8s v1.27.3 addon none - images 0
    openstack-scs-1-27-v3: providers/openstack/scs/1-27 class v3 k8s v1.27.5 addon one chart v2 images 1
    openstack-scs-1-27-v4: providers/openstack/scs/1-27 class v4 k8s v1.27.12 addon one chart v0-sha.gd4c01d4ffac7 images 1
    openstack-scs-1-28-v1: providers/openstack/scs/1-28 class v1 k8s v1.28.7 addon one chart v1 images 1
    openstack-scs-1-28-v2: providers/openstack/scs class v2 k8s v1.28.11 addon one chart v0-sha.g050c21314632 images 1
    openstack-scs-1-29-v1: providers/openstack/scs class v1 k8s v1.29.6 addon one chart v0-sha.g3aa94ba74ffb images 1
    openstack-scs-1-29-v2-test: no release
    openstack-scs-1-30-v1: providers/openstack/scs class v1 k8s v1.30.2 addon one chart v0-sha.ga08dffda4b1d images 1
    openstack-scs-1-30-v2: providers/openstack/scs class v2 k8s v1.30.11 addon ccm+cni+csi+metrics-server v0-sha.g5081e20ece51 images 0
    openstack-scs-1-30-v3: providers/openstack/scs class v3 k8s v1.30.11 addon ccm+cni+csi+metrics-server v0-sha.g3ce1e34e0f0d images 0
    openstack-scs-1-31-v2: providers/openstack/scs class v2 k8s v1.31.7 addon ccm+cni+csi+metrics-server v0-sha.gd94d565ad34a images 0
    openstack-scs-1-32-v1: providers/openstack/scs class v1 k8s v1.32.3 addon ccm+cni+csi+metrics-server v0-sha.g4cc4338a755b images 0
    openstack-scs-v5: no release
    openstack-scs2-1-33-v1: providers/openstack/scs2 class v1 k8s v1.33.4 addon ccm+cni+csi+metrics-server v0-sha.gd740bec769fa images 0
    openstack-scs2-1-33-v4: providers/openstack/scs2 class v4 k8s v1.33.7 addon ccm+cni+csi+metrics-server v0-sha.ged59ae3fda7b images 0
    openstack-scs2-1-33-v5: providers/openstack/scs2 class v5 k8s v1.33.10 addon ccm+cni+csi+metrics-server v0-sha.g7abc21bae59a images 0
    openstack-scs2-1-34-v1: providers/openstack/scs2 class v1 k8s v1.34.3 addon ccm+cni+csi+metrics-server v0-sha.gf70310a2cb61 images 0
    openstack-scs2-1-34-v2: providers/openstack/scs2 class v2 k8s v1.34.7 addon ccm+cni+csi+metrics-server v0-sha.g2d48f37e57b0 images 0
    openstack-wooctavia-1-27-v1: providers/openstack/wooctavia/1-27 class v1 k8s v1.27.12 addon one chart v0-sha.ga9c0cf0ad0f5 images 1
    "#);
}
