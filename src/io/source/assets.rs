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
use crate::core::verification::NotVerified;
use crate::io::unpack;

/// What says of which version a release is.
const METADATA: &str = "metadata.yaml";

/// Files that are taken as they are.
const PLAIN: [&str; 5] =
    [METADATA, "csctl.yaml", "clusteraddon.yaml", "cluster-addon-values.yaml", "cluster-addon-values.yaml.tera"];

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
    let all: Vec<&String> = names.iter().filter(|name| version_of(release, component, name).is_some()).collect();
    let exact = all.iter().find(|name| is_exact(release, component, name));
    match (exact, all.as_slice()) {
        (Some(exact), _) => Ok(Some((**exact).clone())),
        (None, []) => Ok(None),
        (None, [only]) => Ok(Some((*only).clone())),
        (None, several) => {
            let several: Vec<&str> = several.iter().map(|name| name.as_str()).collect();
            Err(format!("which one is the {component} of {}: {}?", release.version, several.join(", ")))
        }
    }
}

/// The version in the name of a component's archive.
fn version_of<'a>(release: &ReleaseName, component: &str, name: &'a str) -> Option<&'a str> {
    let of = name.strip_prefix(&format!("{}-{component}-", release.stem()))?;
    ARCHIVES.iter().find_map(|end| of.strip_suffix(end))
}

/// Whether it is the archive of the release's own version.
fn is_exact(release: &ReleaseName, component: &str, name: &str) -> bool {
    let version = release.version.to_string();
    version_of(release, component, name).is_some_and(|of| of == version || of == version.replace('.', "-"))
}

/// Holds the names of signed files against the release that they are shown as: a signature alone does not say for which
/// one it was made.
///
/// # Errors
/// They could be another version's: there is neither `metadata.yaml`, which is held against the name later, nor a class
/// archive of this version.
pub fn of_release(what: &str, release: &ReleaseName, signed: &[String]) -> Result<(), NotVerified> {
    if signed.iter().any(|name| name == METADATA || is_exact(release, CLUSTER_CLASS, name)) {
        return Ok(());
    }
    let problem = format!(
        "nothing that is signed says that it is {release}, so it may be another version's: sign {METADATA} with it, or a {}-{CLUSTER_CLASS}-{}.tgz",
        release.stem(),
        release.version
    );
    Err(NotVerified::Invalid { what: what.to_owned(), problem })
}

/// Holds the names in a signed file of checksums, `what`, against the files that are there of a release: what was signed
/// of it must be there, and be of it. That those which are there were signed is looked at for each.
///
/// # Errors
/// Something is left out, or they could be another version's.
pub fn complete(
    what: &str,
    tag: &Tag,
    release: &ReleaseName,
    signed: &[String],
    there: &[String],
) -> Result<(), NotVerified> {
    let invalid = |problem: String| NotVerified::Invalid { what: what.to_owned(), problem };
    let needed = wanted(tag, release, signed).map_err(|error| invalid(error.to_string()))?;
    let missing: Vec<&str> = needed.iter().filter(|name| !there.contains(name)).map(String::as_str).collect();
    if missing.is_empty() {
        return of_release(what, release, signed);
    }
    Err(invalid(format!("it is of a release with {}, which is not there: publish all of it", missing.join(", "))))
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

    #[test]
    fn what_was_signed_is_there_and_of_this_release() {
        let (class, older) = ("docker-scs-1-30-cluster-class-v1.tgz", "docker-scs-1-30-cluster-class-v0-sha.a.tgz");
        let (addon, config) = ("docker-scs-1-30-cluster-addon-v1.tgz", "clusteraddon.yaml");
        let whole = vec![class, addon, config, "metadata.yaml"];
        let without = |name: &str| whole.iter().copied().filter(|kept| *kept != name).collect::<Vec<_>>();
        for (case, signed, there, problem) in [
            ("whole", whole.clone(), whole.clone(), None),
            ("no metadata, the archive has the version", vec![class, addon], vec![class, addon], None),
            ("an older archive, and metadata", vec![older, "metadata.yaml"], vec![older, "metadata.yaml"], None),
            ("signed images are not needed", vec![class, "disk.qcow2", "hashes.json"], vec![class], None),
            ("the sums of several versions", vec![class, older], vec![class], None),
            ("an older version", vec![older], vec![older], Some("it may be another version's")),
            ("an older version without its metadata", vec![older, "metadata.yaml"], vec![older], Some("metadata.yaml")),
            ("an older archive for this one", vec![class, older], vec![older], Some(class)),
            ("no metadata", whole.clone(), without("metadata.yaml"), Some("with metadata.yaml, which is not there")),
            ("no addon", whole.clone(), without(addon), Some(addon)),
            ("no stages", whole.clone(), without(config), Some(config)),
            ("no images", vec![class, "node-images.yaml"], vec![class], Some("node-images.yaml")),
            (
                "another stack's",
                vec!["docker-x-1-30-cluster-class-v1.tgz", "metadata.yaml"],
                vec![],
                Some("there is no"),
            ),
            ("nothing", vec![], vec![class], Some("there is no docker-scs-1-30-cluster-class-v1.tgz")),
        ] {
            let found = complete("SHA256SUMS", &tag(), &release(), &names(&signed), &names(&there));
            match (found, problem) {
                (Ok(()), None) => {}
                (Err(error), Some(part)) => assert!(error.to_string().contains(part), "{case}: {error}"),
                (found, _) => panic!("{case}: {found:?}"),
            }
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
