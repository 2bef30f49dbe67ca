//! Releases that are a handful of files: which files belong to a release, and the stack's directory made of them.
//!
//! What CSO and csctl publish: `metadata.yaml`, `clusteraddon.yaml`, `cluster-addon-values.yaml`, `node-images.yaml`,
//! `<provider>-<name>-<minor>-cluster-class-<version>.tgz` (a Helm chart) and `…-cluster-addon-<version>.tgz` (a chart, or
//! a directory for each stage).

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{SourceError, Tag};
use crate::core::bundle::{CLUSTER_ADDON, CLUSTER_CLASS};
use crate::core::files::FileTree;
use crate::core::limits::Limits;
use crate::core::name::ReleaseName;
use crate::core::node_images;
use crate::io::unpack;

/// Files that are taken as they are.
const PLAIN: [&str; 5] =
    ["metadata.yaml", "csctl.yaml", "clusteraddon.yaml", "cluster-addon-values.yaml", "cluster-addon-values.yaml.tera"];

/// How names of archives end.
const ARCHIVES: [&str; 3] = [".tgz", ".tar.gz", ".zip"];

/// Which of the files `names` belong to the release, without what it does not need (other charts, checksums, images).
///
/// # Errors
/// There is no chart of the ClusterClass, or more than one that could be it.
pub fn wanted(tag: &Tag, release: &ReleaseName, names: &[String]) -> Result<Vec<String>, SourceError> {
    let mut wanted: Vec<String> = names
        .iter()
        .filter(|name| PLAIN.contains(&name.as_str()) || node_images::FILES.contains(&name.as_str()))
        .cloned()
        .collect();
    let problem = |problem: String| SourceError::Layout { tag: tag.name.clone(), path: "assets".to_owned(), problem };
    match chart(release, CLUSTER_CLASS, names) {
        Ok(Some(name)) => wanted.push(name),
        Ok(None) => {
            return Err(problem(format!(
                "there is no {}-{CLUSTER_CLASS}-{}.tgz among the {} assets",
                release.stem(),
                release.version,
                names.len()
            )));
        }
        Err(several) => return Err(problem(several)),
    }
    wanted.extend(chart(release, CLUSTER_ADDON, names).map_err(problem)?);
    wanted.sort();
    Ok(wanted)
}

/// The archive of a component: the one of the release's version if there is one, else the only one. The addon's version
/// may be an older one than the release's.
fn chart(release: &ReleaseName, component: &str, names: &[String]) -> Result<Option<String>, String> {
    let prefix = format!("{}-{component}-", release.stem());
    let all: Vec<&String> = names
        .iter()
        .filter(|name| name.starts_with(&prefix) && ARCHIVES.iter().any(|end| name.ends_with(end)))
        .collect();
    let version = release.version.to_string();
    let exact = all.iter().find(|name| {
        let of = &name[prefix.len()..];
        let of = ARCHIVES.iter().find_map(|end| of.strip_suffix(end)).unwrap_or(of);
        of == version || of == version.replace('.', "-")
    });
    match (exact, all.as_slice()) {
        (Some(exact), _) => Ok(Some((**exact).clone())),
        (None, []) => Ok(None),
        (None, [only]) => Ok(Some((*only).clone())),
        (None, several) => {
            let several: Vec<&str> = several.iter().map(|name| name.as_str()).collect();
            Err(format!("which one is the {component} of {version}: {}?", several.join(", ")))
        }
    }
}

/// The stack's directory as it lies in Git, made of the assets that [`wanted`] named.
///
/// # Errors
/// An archive is refused: [`unpack::UnpackError`] says why.
pub fn stack(
    tag: &Tag,
    release: &ReleaseName,
    assets: &BTreeMap<String, Bytes>,
    limits: &Limits,
) -> Result<FileTree, SourceError> {
    let mut files = FileTree::new();
    for (name, content) in assets {
        let component = [CLUSTER_CLASS, CLUSTER_ADDON]
            .into_iter()
            .find(|component| name.starts_with(&format!("{}-{component}-", release.stem())));
        let Some(component) = component else {
            files.insert(name.clone(), content.clone());
            continue;
        };
        let unpacked = unpack::unpack(content, limits).map_err(|error| SourceError::Layout {
            tag: tag.name.clone(),
            path: name.clone(),
            problem: error.to_string(),
        })?;
        let one_chart = component == CLUSTER_CLASS || !assets.contains_key("clusteraddon.yaml");
        let root = if one_chart { chart_root(&unpacked) } else { None };
        for (path, content) in unpacked {
            let path = root.as_ref().and_then(|root| path.strip_prefix(root.as_str())).unwrap_or(&path);
            files.insert(format!("{component}/{path}"), content);
        }
    }
    Ok(files)
}

/// `<chart>/` if everything lies in one directory, as in what `helm package` makes.
fn chart_root(files: &FileTree) -> Option<String> {
    let (first, _) = files.keys().next()?.split_once('/')?;
    let root = format!("{first}/");
    files.keys().all(|path| path.starts_with(&root)).then_some(root)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release() -> ReleaseName {
        "docker-scs-1-30-v1".parse().unwrap()
    }

    fn tag() -> Tag {
        Tag { name: "docker-scs-1-30-v1".into(), revision: String::new() }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_release_knows_its_assets() {
        let class = "docker-scs-1-30-cluster-class-v1.tgz";
        for (given, expected) in [
            (vec![class, "metadata.yaml"], Some(vec![class, "metadata.yaml"])),
            (
                vec![class, "docker-scs-1-30-cluster-class-v10.tgz", "SHA256SUMS", "node-images.yaml"],
                Some(vec![class, "node-images.yaml"]),
            ),
            (
                vec![class, "docker-scs-1-30-cluster-addon-v7.tgz", "docker-scs-1-31-cluster-addon-v1.tgz"],
                Some(vec!["docker-scs-1-30-cluster-addon-v7.tgz", class]),
            ),
            (vec!["docker-scs-1-30-cluster-class-v2.tgz"], Some(vec!["docker-scs-1-30-cluster-class-v2.tgz"])),
            (vec!["docker-scs-1-30-cluster-class-v2.tgz", "docker-scs-1-30-cluster-class-v3.tgz"], None),
            (vec!["docker-scs-1-30-cluster-class-v1.zip"], Some(vec!["docker-scs-1-30-cluster-class-v1.zip"])),
            (vec!["metadata.yaml"], None),
            (vec![class, "docker-scs-1-30-cluster-addon-v2.tgz", "docker-scs-1-30-cluster-addon-v3.tgz"], None),
        ] {
            let found = wanted(&tag(), &release(), &names(&given)).ok();
            assert_eq!(found, expected.map(|expected| names(&expected)), "{given:?}");
        }
    }

    fn tgz(files: &[(&str, &str)]) -> Bytes {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), Bytes::from((*text).to_owned()))).collect();
        unpack::pack(&files).unwrap()
    }

    #[test]
    fn archives_become_the_directory_of_a_stack() {
        let class = ("docker-scs-1-30-cluster-class-v1.tgz".to_owned(), tgz(&[("x-cluster-class/Chart.yaml", "a: 1")]));
        let addon = "docker-scs-1-30-cluster-addon-v1.tgz".to_owned();
        let stages = BTreeMap::from([
            class.clone(),
            (addon.clone(), tgz(&[("cni/Chart.yaml", "b: 1")])),
            ("clusteraddon.yaml".to_owned(), Bytes::from("c: 1")),
        ]);
        let paths =
            |assets| stack(&tag(), &release(), assets, &Limits::default()).unwrap().into_keys().collect::<Vec<_>>();
        assert_eq!(paths(&stages), ["cluster-addon/cni/Chart.yaml", "cluster-class/Chart.yaml", "clusteraddon.yaml"]);
        let single = BTreeMap::from([class, (addon, tgz(&[("x-cluster-addon/Chart.yaml", "b: 1")]))]);
        assert_eq!(paths(&single), ["cluster-addon/Chart.yaml", "cluster-class/Chart.yaml"]);
    }

    #[test]
    fn a_refused_archive_names_the_asset() {
        let assets = BTreeMap::from([("docker-scs-1-30-cluster-class-v1.tgz".to_owned(), Bytes::from_static(b"no"))]);
        let error = stack(&tag(), &release(), &assets, &Limits::default()).unwrap_err().to_string();
        assert!(error.contains("docker-scs-1-30-cluster-class-v1.tgz"), "{error}");
    }
}
