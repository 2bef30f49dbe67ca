//! Releases in a directory, one directory each.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use bytes::Bytes;

use super::{PublishError, Published, Release, digest};
use crate::core::limits::{Budget, Limits};
use crate::core::name::ReleaseName;
use crate::core::verification::checksums::{CHECKSUMS, is_signature, signature_names};

fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> PublishError {
    let path = path.to_owned();
    move |error| PublishError::Io { action, path, error }
}

/// What a directory that is called like a release holds: a release, or why it is none.
pub type Found = (ReleaseName, Result<Release, PublishError>);

/// The release in a directory that is called like it, or all in the directories below, by version. One that can't be read keeps
/// back none beside it.
///
/// # Errors
/// The directory can't be read, or there is nothing in it that is called like a release.
pub fn read(path: &Path) -> Result<Vec<Found>, PublishError> {
    let path = &fs::canonicalize(path).map_err(io("reading", path))?;
    if let Some(name) = named(path)
        && has_files(path)?
    {
        return Ok(vec![found(path, name)]);
    }
    let mut releases = Vec::new();
    for entry in fs::read_dir(path).map_err(io("reading", path))? {
        let directory = entry.map_err(io("reading", path))?.path();
        let is_directory = fs::symlink_metadata(&directory).is_ok_and(|metadata| metadata.is_dir());
        if let Some(name) = named(&directory).filter(|_| is_directory) {
            releases.push(found(&directory, name));
        }
    }
    // A branch ends with the newest.
    releases.sort_by_cached_key(|(name, _)| {
        (name.provider.clone(), name.stack.clone(), name.kubernetes, name.version.clone())
    });
    if releases.is_empty() {
        let problem = "neither it nor a directory in it is called like <provider>-<name>-<major>-<minor>-v<number>";
        return Err(PublishError::NoRelease { path: path.clone(), problem: problem.to_owned() });
    }
    Ok(releases)
}

fn found(path: &Path, name: ReleaseName) -> Found {
    (name.clone(), read_release(path, name))
}

fn named(path: &Path) -> Option<ReleaseName> {
    path.file_name()?.to_str()?.parse().ok()
}

fn has_files(path: &Path) -> Result<bool, PublishError> {
    let mut entries = fs::read_dir(path).map_err(io("reading", path))?;
    Ok(entries.any(|entry| entry.is_ok_and(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))))
}

fn read_release(path: &Path, name: ReleaseName) -> Result<Release, PublishError> {
    let problem = |problem: &str| PublishError::NoRelease { path: path.to_owned(), problem: problem.to_owned() };
    let limits = Limits::default();
    let (mut assets, mut budget) = (BTreeMap::new(), Budget::default());
    for entry in fs::read_dir(path).map_err(io("reading", path))? {
        let entry = entry.map_err(io("reading", path))?;
        let file = entry.file_name().into_string().map_err(|_| problem("a name in it is not UTF-8"))?;
        let metadata = fs::symlink_metadata(entry.path()).map_err(io("reading", path))?;
        if !metadata.is_file() {
            let text = format!("{file} is no file; `clusterstack package` makes assets of a stack's directory");
            return Err(problem(&text));
        }
        budget.add(&limits, &file, metadata.len())?;
        let mut content = Vec::new();
        let open = fs::File::open(entry.path()).map_err(io("reading", path))?;
        open.take(limits.file_bytes).read_to_end(&mut content).map_err(io("reading", path))?;
        assets.insert(file, Bytes::from(content));
    }
    Ok(Release { name, assets })
}

/// Writes a release below `target`: under a hidden name first, then renamed, so that nobody sees half of it.
pub fn write(target: &Path, release: &Release) -> Result<Published, PublishError> {
    let name = release.name.object_name();
    let place = target.join(&name);
    let revision = digest(&release.assets);
    if named(target).is_some() && target.is_dir() && has_files(target)? {
        let problem = "it is a release itself: name the directory that holds it".to_owned();
        return Err(PublishError::Target { target: target.display().to_string(), problem });
    }
    fs::create_dir_all(target).map_err(io("making", target))?;
    if let Some(published) = there(target, &place, release, &revision)? {
        return Ok(published);
    }
    let hidden =
        tempfile::Builder::new().prefix(&format!(".{name}.")).tempdir_in(target).map_err(io("writing to", target))?;
    for (file, content) in &release.assets {
        let path = hidden.path().join(file);
        fs::write(&path, content).map_err(io("writing", &path))?;
        // Whatever the umask: a release is for its readers.
        fs::set_permissions(&path, Permissions::from_mode(0o644)).map_err(io("writing", &path))?;
        let synced = fs::File::open(&path).and_then(|file| file.sync_all());
        synced.map_err(io("writing", &path))?;
    }
    // What is temporary is for its owner alone.
    fs::set_permissions(hidden.path(), Permissions::from_mode(0o755)).map_err(io("writing", hidden.path()))?;
    match fs::rename(hidden.path(), &place) {
        Ok(()) => {
            // The directory is no longer where it would be removed.
            let _ = hidden.keep();
            Ok(Published::New { revision })
        }
        // Somebody else was faster.
        Err(error) => match there(target, &place, release, &revision)? {
            Some(published) => Ok(published),
            None => Err(io("writing", &place)(error)),
        },
    }
}

/// Where a release is there as it is wanted, with nothing beside it but sums and signatures of it: that it is. A release that was made
/// is signed where it lies.
///
/// # Errors
/// It can't be read.
pub fn signed(target: &Path, release: &Release) -> Result<Option<Published>, PublishError> {
    let place = target.join(release.name.object_name());
    if !place.is_dir() {
        return Ok(None);
    }
    let found = read_release(&place, release.name.clone())?.assets;
    let is_sum = |file: &String| {
        file == CHECKSUMS || is_signature(file) || signature_names(file).iter().any(|name| found.contains_key(name))
    };
    let as_wanted = release.assets.iter().all(|(file, content)| found.get(file) == Some(content));
    let beside = found.keys().filter(|file| !release.assets.contains_key(*file)).all(is_sum);
    Ok((as_wanted && beside).then(|| Published::Unchanged { revision: digest(&release.assets) }))
}

fn there(target: &Path, place: &Path, release: &Release, revision: &str) -> Result<Option<Published>, PublishError> {
    if !place.exists() {
        return Ok(None);
    }
    let differs = |found: String| PublishError::Differs {
        release: release.name.object_name(),
        target: target.display().to_string(),
        found,
    };
    let found = read_release(place, release.name.clone()).map_err(|error| differs(error.to_string()))?;
    if found.assets == release.assets {
        Ok(Some(Published::Unchanged { revision: revision.to_owned() }))
    } else {
        Err(differs(digest(&found.assets)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(content: &'static str) -> Release {
        Release {
            name: "docker-scs-1-30-v1".parse().unwrap(),
            assets: BTreeMap::from([("metadata.yaml".to_owned(), Bytes::from_static(content.as_bytes()))]),
        }
    }

    #[test]
    fn a_release_that_was_signed_where_it_lies_is_the_same() {
        let target = tempfile::tempdir().unwrap();
        assert_eq!(signed(target.path(), &release("a")).unwrap(), None);
        write(target.path(), &release("a")).unwrap();
        let place = target.path().join(release("a").name.object_name());
        for file in ["SHA256SUMS", "SHA256SUMS.asc", "metadata.yaml.sig"] {
            fs::write(place.join(file), "x").unwrap();
        }
        let found = |content| signed(target.path(), &release(content)).unwrap();
        assert!(matches!(found("a"), Some(Published::Unchanged { .. })));
        assert_eq!(found("b"), None);
        fs::write(place.join("more.tgz"), "x").unwrap();
        assert_eq!(found("a"), None);
    }

    #[test]
    fn a_release_is_written_once_and_never_changed() {
        let target = tempfile::tempdir().unwrap();
        let new = write(target.path(), &release("a")).unwrap();
        let Published::New { revision } = new else { panic!("{new:?}") };
        assert_eq!(write(target.path(), &release("a")).unwrap(), Published::Unchanged { revision });
        let error = write(target.path(), &release("b")).unwrap_err().to_string();
        assert!(error.contains("has a release docker-scs-1-30-v1 with other content"), "{error}");
        let read = |path: &Path| -> Vec<Release> {
            read(path).unwrap().into_iter().map(|(_, found)| found.unwrap()).collect()
        };
        assert_eq!(read(target.path()), [release("a")]);
        assert_eq!(read(&target.path().join("docker-scs-1-30-v1")), [release("a")]);
        assert_eq!(fs::read_dir(target.path()).unwrap().count(), 1, "nothing temporary is left");
        let mode = fs::metadata(target.path().join("docker-scs-1-30-v1")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        let file = fs::metadata(target.path().join("docker-scs-1-30-v1/metadata.yaml")).unwrap().permissions().mode();
        assert_eq!(file & 0o777, 0o644);
        // A release is no place for releases.
        let error = write(&target.path().join("docker-scs-1-30-v1"), &release("a")).unwrap_err().to_string();
        assert!(error.contains("is a release itself"), "{error}");
    }

    #[test]
    fn releases_are_read_in_the_order_of_their_versions() {
        let target = tempfile::tempdir().unwrap();
        let names = ["docker-a-1-34-v2", "docker-a-1-34-v10", "docker-a-1-35-v1", "docker-b-1-34-v1"];
        for name in names.iter().rev() {
            fs::create_dir(target.path().join(name)).unwrap();
            fs::write(target.path().join(name).join("metadata.yaml"), "a").unwrap();
        }
        let read: Vec<String> = read(target.path()).unwrap().iter().map(|(name, _)| name.object_name()).collect();
        assert_eq!(read, names);
    }

    #[test]
    fn what_is_no_release_is_refused_and_keeps_back_none_beside_it() {
        let target = tempfile::tempdir().unwrap();
        assert!(read(target.path()).unwrap_err().to_string().contains("neither it nor"));
        fs::create_dir_all(target.path().join("docker-scs-1-29-v1/cluster-class")).unwrap();
        write(target.path(), &release("a")).unwrap();
        let all = read(target.path()).unwrap();
        assert!(all[0].1.as_ref().unwrap_err().to_string().contains("cluster-class is no file"));
        assert_eq!(all[1].1.as_ref().unwrap(), &release("a"));
    }
}
