//! Releases in a directory: as in Git and as assets, and what is refused.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clusterstack::core::limits::Limits;
use clusterstack::core::name::ReleaseName;
use clusterstack::core::source::{AllowList, Refused};
use clusterstack::io::source::directory::DirectorySource;
use clusterstack::io::source::{Fetched, Source, SourceError, Wanted};
use clusterstack::io::unpack;
use rustix::fs::{CWD, RenameFlags};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::{signed, wanted};

const TAG: &str = "docker-scs-1-30-v1";

fn release() -> ReleaseName {
    TAG.parse().unwrap()
}

fn source(directory: &TempDir) -> DirectorySource {
    let path = directory.path().to_str().unwrap();
    DirectorySource::new(path, &AllowList::parse([path]).unwrap(), Limits::default()).unwrap()
}

fn write(directory: &TempDir, path: &str, content: impl AsRef<[u8]>) {
    let path = directory.path().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

async fn fetch(source: &DirectorySource) -> Result<Fetched, SourceError> {
    let cancel = CancellationToken::new();
    let listing = source.list(&cancel).await?;
    let tag = listing.tags.iter().find(|tag| tag.name == TAG).expect("listed");
    let tag = source.resolve(tag, &cancel).await?;
    source.fetch(&wanted(&tag, &release()), &cancel).await
}

#[tokio::test]
async fn a_release_lies_there_as_in_git_or_as_assets() {
    let directory = TempDir::new().unwrap();
    write(&directory, &format!("{TAG}/cluster-class/Chart.yaml"), "name: x");
    write(&directory, ".tmp-being-written/x", "");
    write(&directory, "README.md", "");
    let fetched = fetch(&source(&directory)).await.unwrap();
    assert_eq!(fetched.files.keys().collect::<Vec<_>>(), ["cluster-class/Chart.yaml"]);

    let assets = TempDir::new().unwrap();
    let chart = [("x/Chart.yaml".to_owned(), Bytes::from("name: x"))].into();
    write(&assets, &format!("{TAG}/docker-scs-1-30-cluster-class-v1.tgz"), unpack::pack(&chart).unwrap());
    write(&assets, &format!("{TAG}/disk.qcow2"), "an image");
    assert_eq!(fetch(&source(&assets)).await.unwrap().files, fetched.files);
}

#[tokio::test]
async fn signed_files_count_whole_and_under_the_name_that_they_were_signed_for() {
    let keys = TempDir::new().unwrap();
    let Some(key) = signed::key(keys.path(), "ours") else { return };
    let trust = signed::summed_by(key);
    let (class, old) = ("docker-scs-1-30-cluster-class-v1.tgz", "docker-scs-1-30-cluster-class-v0-sha.old.tgz");
    let (chart, metadata, addon) = ("cluster-class/Chart.yaml", "metadata.yaml", "cluster-addon/Chart.yaml");
    let name = "name: docker-scs-1-30-cluster-class";
    for (case, text, signed, left_out, problem) in [
        ("genuine assets", "", &[class, metadata, "disk.qcow2"][..], "disk.qcow2", None),
        ("genuine assets without metadata", "", &[class], "", None),
        ("rollback of assets", "", &[old, metadata], metadata, Some("metadata.yaml, which is not there")),
        ("rollback of assets without metadata", "", &[old], "", Some("it may be another version's")),
        ("stages are left out", "", &[class, "clusteraddon.yaml"], "clusteraddon.yaml", Some("clusteraddon.yaml")),
        ("as in Git, with metadata", name, &[chart, metadata], "", None),
        ("as in Git, with the chart's version", "version: v1", &[chart, addon], "", None),
        ("as in Git, of another version", "version: v2", &[chart], "", Some("has the version \"v2\", not v1")),
        ("as in Git, of no version", name, &[chart], "", Some("has the version \"\", not v1")),
        ("as in Git, of another stack", "name: x", &[chart, metadata], "", Some("has the name \"x\", not docker-scs")),
        ("as in Git, without its addon", name, &[chart, metadata, addon], addon, Some(addon)),
        ("as in Git, without its metadata", name, &[chart, metadata], metadata, Some(metadata)),
    ] {
        let directory = TempDir::new().unwrap();
        let text = if text.starts_with("version") { format!("{name}\n{text}\n") } else { format!("{text}\n") };
        let packed = unpack::pack(&[(format!("x/{chart}"), Bytes::from(text.clone()))].into()).unwrap();
        let content = |path: &str| if path.ends_with(".tgz") { packed.clone() } else { Bytes::from(text.clone()) };
        let files = signed.iter().map(|path| ((*path).to_owned(), content(path))).collect();
        for (path, content) in signed::summed(keys.path(), "ours", &files) {
            if path != left_out {
                write(&directory, &format!("{TAG}/{path}"), content);
            }
        }
        let (source, cancel) = (source(&directory), CancellationToken::new());
        let tag = source.resolve(&source.list(&cancel).await.unwrap().tags[0], &cancel).await.unwrap();
        let release = release();
        let wanted = Wanted { trust: Some(&trust), ..wanted(&tag, &release) };
        match (source.fetch(&wanted, &cancel).await, problem) {
            (Ok(fetched), None) => assert!(fetched.signer.is_some(), "{case}"),
            (Err(error @ SourceError::NotVerified { .. }), Some(part)) => {
                assert!(error.to_string().contains(part), "{case}: {error}");
            }
            (found, _) => panic!("{case}: {found:?}"),
        }
    }
}

#[tokio::test]
async fn a_signature_that_is_none_voids_none_beside_it() {
    let keys = TempDir::new().unwrap();
    let Some(key) = signed::key(keys.path(), "ours") else { return };
    let trust = signed::summed_by(key);
    let chart = Bytes::from("name: docker-scs-1-30-cluster-class\nversion: v1\n");
    let files = signed::summed(keys.path(), "ours", &[("cluster-class/Chart.yaml".to_owned(), chart)].into());
    for (case, good) in [("beside a good one", true), ("alone", false)] {
        let directory = TempDir::new().unwrap();
        write(&directory, &format!("{TAG}/SHA256SUMS.asc"), "no signature");
        for (path, content) in files.iter().filter(|(path, _)| good || !path.ends_with(".sig")) {
            write(&directory, &format!("{TAG}/{path}"), content);
        }
        let (source, cancel) = (source(&directory), CancellationToken::new());
        let tag = source.resolve(&source.list(&cancel).await.unwrap().tags[0], &cancel).await.unwrap();
        let release = release();
        let fetched = source.fetch(&Wanted { trust: Some(&trust), ..wanted(&tag, &release) }, &cancel).await;
        assert_eq!(fetched.is_ok_and(|fetched| fetched.signer.is_some()), good, "{case}");
    }
}

#[tokio::test]
async fn what_changed_since_it_was_looked_at_is_not_taken() {
    let directory = TempDir::new().unwrap();
    write(&directory, &format!("{TAG}/cluster-class/Chart.yaml"), "name: x");
    let (source, cancel) = (source(&directory), CancellationToken::new());
    let tag = source.resolve(&source.list(&cancel).await.unwrap().tags[0], &cancel).await.unwrap();
    write(&directory, &format!("{TAG}/cluster-class/Chart.yaml"), "name: y");
    let moved = source.fetch(&wanted(&tag, &release()), &cancel).await;
    assert!(matches!(moved, Err(SourceError::TagMoved { .. })), "{moved:?}");
}

#[tokio::test]
async fn links_are_refused_and_roots_are_kept() {
    let directory = TempDir::new().unwrap();
    write(&directory, &format!("{TAG}/cluster-class/Chart.yaml"), "name: x");
    symlink("/etc/passwd", directory.path().join(TAG).join("values.yaml")).unwrap();
    let error = fetch(&source(&directory)).await.unwrap_err().to_string();
    assert!(error.contains("values.yaml"), "{error}");

    let (inside, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let link = inside.path().join("link");
    symlink(outside.path(), &link).unwrap();
    let allow = AllowList::parse([inside.path().to_str().unwrap()]).unwrap();
    let through = DirectorySource::new(link.to_str().unwrap(), &allow, Limits::default()).unwrap();
    let listed = through.list(&CancellationToken::new()).await;
    assert!(matches!(listed, Err(SourceError::Refused(Refused::Link { .. }))), "{listed:?}");
    assert!(DirectorySource::new(outside.path().to_str().unwrap(), &allow, Limits::default()).is_err());
}

#[tokio::test]
async fn who_exchanges_a_file_for_a_link_while_it_is_read_shows_nothing_of_what_it_leads_to() {
    let (directory, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(outside.path().join("secret"), "swordfish").unwrap();
    write(&directory, &format!("{TAG}/cluster-class/Chart.yaml"), "harmless!");
    symlink(outside.path().join("secret"), directory.path().join("link")).unwrap();
    let (file, link) = (directory.path().join(TAG).join("cluster-class/Chart.yaml"), directory.path().join("link"));
    let (source, done) = (source(&directory), Arc::new(AtomicBool::new(false)));
    let exchanger = std::thread::spawn({
        let done = Arc::clone(&done);
        move || {
            while !done.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(CWD, &file, CWD, &link, RenameFlags::EXCHANGE).unwrap();
            }
        }
    });
    let (started, mut read) = (Instant::now(), 0);
    while started.elapsed() < Duration::from_secs(2) {
        let result = fetch(&source).await;
        assert!(!format!("{result:?}").contains("swordfish"), "{result:?}");
        read += usize::from(result.is_ok());
    }
    done.store(true, Ordering::Relaxed);
    exchanger.join().unwrap();
    assert!(read > 0, "it was never read");
}

#[tokio::test]
async fn a_directory_that_is_gone_says_so() {
    let directory = TempDir::new().unwrap();
    let source = source(&directory);
    drop(directory);
    let error = source.list(&CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, SourceError::NoRepository { .. }), "{error}");
}
