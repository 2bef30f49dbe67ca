//! From a stack's directory to where releases are found, and over an air gap, with the binary.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use clusterstack::core::bundle::Bundle;
use clusterstack::core::limits::Limits;
use clusterstack::core::name::ReleaseName;
use clusterstack::core::source::AllowList;
use clusterstack::io::publish::{Release, directory};
use clusterstack::io::source::Tag;
use clusterstack::io::source::directory::DirectorySource;
use clusterstack::io::source::git::Git;
use clusterstack::io::source::{Access, Source, Wanted};
use clusterstack::io::stack;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::cli::clusterstack;

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("stacks/docker").join(name)
}

/// A stack that may be changed.
fn copy(name: &str, to: &Path) -> PathBuf {
    for (path, content) in stack::read(&sample(name)).unwrap().files {
        let path = to.join("stack").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    to.join("stack")
}

fn package(stack: &Path, out: &Path, more: &[&str]) -> Value {
    let mut args = vec!["package", stack.to_str().unwrap(), "--out", out.to_str().unwrap(), "-o", "json"];
    args.extend(more);
    serde_json::from_str(&clusterstack(&args).succeeds()).unwrap()
}

fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let name = |entry: &fs::DirEntry| entry.file_name().into_string().unwrap();
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    entries.map(|entry| (name(&entry), fs::read(entry.path()).unwrap())).collect()
}

/// The files of a release as a subscriber of the directory gets them.
async fn subscribed(source: &dyn Source, release: &ReleaseName) -> BTreeMap<String, Bytes> {
    let stop = CancellationToken::new();
    let listing = source.list(&stop).await.unwrap();
    let tag = listing.tags.iter().find(|tag| tag.name == release.object_name()).unwrap().clone();
    let tag: Tag = source.resolve(&tag, &stop).await.unwrap();
    source.fetch(&Wanted { tag: &tag, release, trust: None, by_revision: false }, &stop).await.unwrap().files
}

#[tokio::test]
async fn the_assets_give_the_same_bundle_as_the_directory() {
    for (stack, release) in [("hello", "docker-hello-1-34-v1"), ("hello-tera", "docker-hello-tera-1-34-v1")] {
        let out = tempfile::tempdir().unwrap();
        let made = package(&sample(stack), out.path(), &[]);
        assert_eq!(made["release"], release);
        let name = ReleaseName::of_stack(release, "docker", stack).unwrap();
        let allow = AllowList::parse([out.path().to_str().unwrap()]).unwrap();
        let source = DirectorySource::new(out.path().to_str().unwrap(), &allow, Limits::default()).unwrap();
        let packaged = Bundle::from_files(&name, &subscribed(&source, &name).await, &BTreeMap::new()).unwrap();

        let mut in_git = stack::read(&sample(stack)).unwrap().files;
        // The addon's version is made of the tree where no metadata.yaml says it.
        in_git.insert("metadata.yaml".into(), fs::read(out.path().join(release).join("metadata.yaml")).unwrap().into());
        assert_eq!(packaged, Bundle::from_files(&name, &in_git, &BTreeMap::new()).unwrap(), "{stack}");
    }
}

#[test]
fn a_second_run_gives_equal_bytes() {
    let [first, second] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let stack = copy("hello", first.path());
    let made = package(&stack, first.path(), &["--mode", "hash"]);
    let release = made["release"].as_str().unwrap();
    assert!(release.starts_with("docker-hello-1-34-v0-sha-"), "{release}");
    assert_eq!(made["state"], "new");
    // Another copy at another time, written in another order.
    let again = package(&copy("hello", second.path()), second.path(), &["--mode", "hash"]);
    assert_eq!(made["digest"], again["digest"]);
    assert_eq!(files(&first.path().join(release)), files(&second.path().join(release)));
    assert_eq!(package(&stack, first.path(), &["--mode", "hash"])["state"], "unchanged");
}

#[test]
fn a_change_of_the_class_alone_is_a_release_with_the_old_addon() {
    let out = tempfile::tempdir().unwrap();
    let stack = copy("hello", out.path());
    package(&stack, out.path(), &[]);
    let previous = out.path().join("docker-hello-1-34-v1");
    let previous = ["--previous", previous.to_str().unwrap()];
    let args = ["package", stack.to_str().unwrap(), previous[0], previous[1]];
    let error = clusterstack(&args).fails(1);
    assert!(error.contains("nothing changed since v1"), "{error}");

    fs::write(
        stack.join("cluster-class/values.yaml"),
        "nodeImage: \"\"\nhealthCheck: {timeout: 1s, maxUnhealthy: 40%}\nkubeletExtraArgs: {}\n",
    )
    .unwrap();
    let made = package(&stack, out.path(), &previous);
    assert_eq!(made["release"], "docker-hello-1-34-v2");
    assert_eq!(made["versions"]["clusterAddon"], "v1");
    let assets = made["assets"].as_array().unwrap();
    for asset in ["docker-hello-1-34-cluster-class-v2.tgz", "docker-hello-1-34-cluster-addon-v1.tgz"] {
        assert!(assets.iter().any(|found| found == asset), "{assets:?}");
    }
    let error = clusterstack(&["package", stack.to_str().unwrap(), "--out", out.path().to_str().unwrap()]).fails(1);
    assert!(error.contains("has a release docker-hello-1-34-v1 with other content"), "{error}");
}

#[test]
fn releases_cross_an_air_gap_with_what_signs_them() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (assets, archive) = (place("assets"), place("out.tar"));
    package(&sample("hello"), Path::new(&assets), &[]);
    package(&sample("hello-tera"), Path::new(&assets), &["--version", "v7"]);
    let signed = format!("{assets}/docker-hello-1-34-v1");
    fs::write(format!("{signed}/SHA256SUMS"), "sums\n").unwrap();
    fs::write(format!("{signed}/SHA256SUMS.asc"), "signature\n").unwrap();
    let releases = ["docker-hello-1-34-v1", "docker-hello-tera-1-34-v7"];
    let bundle =
        |file: &str| clusterstack(&["bundle", releases[0], releases[1], "--source", &assets, "-f", file]).succeeds();
    bundle(&archive);
    let again = place("again.tar");
    bundle(&again);
    assert_eq!(fs::read(&archive).unwrap(), fs::read(&again).unwrap());
    let rows: Value =
        serde_json::from_str(&clusterstack(&["bundle", "inspect", &archive, "-o", "json"]).succeeds()).unwrap();
    assert_eq!(rows.as_array().unwrap().iter().map(|row| &row["release"]).collect::<Vec<_>>(), releases);
    assert_eq!(rows[0]["signatures"], serde_json::json!(["SHA256SUMS.asc"]));
    assert!(clusterstack(&["bundle", "inspect", &archive]).succeeds().starts_with("RELEASE "));

    let inside = place("inside");
    let told = clusterstack(&["bundle", "import", &archive, &inside]).succeeds();
    assert_eq!(told.matches(" imported ").count(), 2, "{told}");
    for release in releases {
        assert_eq!(files(&Path::new(&inside).join(release)), files(&Path::new(&assets).join(release)), "{release}");
    }
    let told = clusterstack(&["bundle", "import", &archive, &inside]).succeeds();
    assert_eq!(told.matches(" unchanged ").count(), 2, "{told}");

    // Through a registry on disk, and out of it again: the same bytes.
    let layout = format!("layout:{}", place("layout"));
    clusterstack(&["bundle", "import", &archive, &layout]).succeeds();
    let through = place("through.tar");
    clusterstack(&["bundle", releases[0], releases[1], "--source", &layout, "-f", &through]).succeeds();
    assert_eq!(fs::read(&through).unwrap(), fs::read(&archive).unwrap());

    // Damaged on the way: nothing is written.
    let mut bytes = fs::read(&archive).unwrap();
    let at = bytes.windows(9).position(|part| part == b"signature").unwrap();
    bytes[at] = b'S';
    fs::write(&archive, bytes).unwrap();
    let elsewhere = place("elsewhere");
    let error = clusterstack(&["bundle", "import", &archive, &elsewhere]).fails(1);
    assert!(error.contains("is really sha256:") && !Path::new(&elsewhere).exists(), "{error}");
    let error = clusterstack(&["bundle", "docker-hello-1-34-v9", "--source", &assets, "-f", &through]).fails(1);
    assert!(
        error.contains("no release docker-hello-1-34-v9") && error.contains("there are: docker-hello-1-34-v1"),
        "{error}"
    );
}

#[test]
fn an_import_goes_on_with_the_next_release_and_brings_none_that_is_broken() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (assets, archive) = (place("assets"), place("out.tar"));
    package(&sample("hello"), Path::new(&assets), &[]);
    package(&sample("hello-tera"), Path::new(&assets), &[]);
    let releases = ["docker-hello-1-34-v1", "docker-hello-tera-1-34-v1"];
    clusterstack(&["bundle", releases[0], releases[1], "--source", &assets, "-f", &archive]).succeeds();
    // The first is there, with another README.
    let stack = copy("hello", directory.path());
    fs::write(stack.join("cluster-class/README.md"), "other\n").unwrap();
    let other = place("other");
    package(&stack, Path::new(&other), &[]);
    for target in [place("inside"), format!("layout:{}", place("layout"))] {
        clusterstack(&["push", &other, &target]).succeeds();
        let error = clusterstack(&["bundle", "import", &archive, &target]).fails(1);
        assert!(error.contains("1 not imported: docker-hello-1-34-v1: "), "{error}");
        assert!(error.contains("with other content"), "{error}");
        clusterstack(&["bundle", releases[1], "--source", &target, "-f", &place("again.tar")]).succeeds();
    }

    // A tag that leads to what is no such release.
    let layout = clusterstack::io::publish::registry::Layout::open(Path::new(&place("broken"))).unwrap();
    let files = [("metadata.yaml".to_owned(), Bytes::from("a: 1"))].into();
    let broken = clusterstack::core::artifact::Artifact::of_release(&releases[0].parse().unwrap(), &files);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(clusterstack::io::publish::registry::push(&layout, &broken)).unwrap();
    let source = format!("layout:{}", place("broken"));
    let file = place("broken.tar");
    let error = clusterstack(&["bundle", releases[0], "--source", &source, "-f", &file]).fails(1);
    assert!(error.contains("release docker-hello-1-34-v1 is broken") && !Path::new(&file).exists(), "{error}");
    clusterstack::io::publish::registry::write_archive(Path::new(&file), &[broken]).unwrap();
    let target = format!("layout:{}", place("new"));
    let error = clusterstack(&["bundle", "import", &file, &target]).fails(1);
    assert!(error.contains("release docker-hello-1-34-v1 is broken") && !Path::new(&place("new")).exists(), "{error}");
}

#[tokio::test]
async fn a_release_becomes_a_tag_that_nobody_moves() {
    let directory = tempfile::tempdir().unwrap();
    let assets = directory.path().join("assets");
    package(&sample("hello"), &assets, &[]);
    let repository = directory.path().join("releases.git");
    let git = git2::Repository::init_bare(&repository).unwrap();
    let target = format!("git+file://{}", repository.display());
    let push = |from: &Path, more: &[&str]| {
        let mut args = vec!["push", from.to_str().unwrap(), &target];
        args.extend(more);
        clusterstack(&args)
    };
    assert!(push(&assets, &["--branch", "main"]).succeeds().contains("docker-hello-1-34-v1 pushed to "));
    assert!(push(&assets, &["--branch", "main"]).succeeds().contains(" unchanged "));
    // Another stack keeps what is on the branch; without a branch it is a commit of its own.
    package(&sample("hello-tera"), &assets, &[]);
    let told = push(&assets, &["--branch", "main"]).succeeds();
    assert!(told.contains("docker-hello-tera-1-34-v1 pushed"), "{told}");
    let main = git.find_reference("refs/heads/main").unwrap().peel_to_commit().unwrap();
    assert_eq!((main.parent_count(), main.message()), (1, Ok("Release docker-hello-tera-1-34-v1\n")));
    for path in [
        "stacks/docker/hello/cluster-class/Chart.yaml",
        "stacks/hello/tera-1-34-v1",
        "stacks/docker/hello-tera/metadata.yaml",
    ] {
        assert_eq!(main.tree().unwrap().get_path(Path::new(path)).is_ok(), !path.contains("tera-1-34"), "{path}");
    }

    // Several at once put theirs on the branch one behind the other.
    let versions = ["v11", "v12", "v13", "v14"];
    std::thread::scope(|scope| {
        for version in versions {
            let from = directory.path().join(version);
            package(&sample("hello"), &from, &["--version", version]);
            let push = &push;
            scope.spawn(move || push(&from, &["--branch", "main"]).succeeds());
        }
    });
    let mut history = git.revwalk().unwrap();
    history.push_ref("refs/heads/main").unwrap();
    assert_eq!(history.count(), 2 + versions.len());

    let other = directory.path().join("other");
    let stack = copy("hello", directory.path());
    fs::write(stack.join("README.md"), "other\n").unwrap();
    fs::write(
        stack.join("cluster-class/values.yaml"),
        "nodeImage: x\nhealthCheck: {timeout: 1s, maxUnhealthy: 40%}\nkubeletExtraArgs: {}\n",
    )
    .unwrap();
    package(&stack, &other, &[]);
    let error = push(&other, &[]).fails(1);
    assert!(error.contains("has a release docker-hello-1-34-v1 with other content (commit "), "{error}");
    package(&stack, &other, &["--version", "v2"]);
    fs::remove_dir_all(other.join("docker-hello-1-34-v1")).unwrap();
    push(&other, &[]).succeeds();
    let orphan = git.find_reference("refs/tags/docker-hello-1-34-v2").unwrap().peel_to_commit().unwrap();
    assert_eq!(orphan.parent_count(), 0);

    // A subscriber of the repository gets what one of the directory gets.
    let name: ReleaseName = "docker-hello-1-34-v2".parse().unwrap();
    let allow = AllowList::parse([directory.path().to_str().unwrap()]).unwrap();
    let source = DirectorySource::new(other.to_str().unwrap(), &allow, Limits::default()).unwrap();
    let from_directory = Bundle::from_files(&name, &subscribed(&source, &name).await, &BTreeMap::new()).unwrap();
    let git = Git::new(allow, directory.path().join("scratch"), 1);
    let url = format!("file://{}", repository.display());
    let from_git = subscribed(&git.source(&url, None, Access::default()).unwrap(), &name).await;
    assert_eq!(Bundle::from_files(&name, &from_git, &BTreeMap::new()).unwrap(), from_directory);
}

fn releases_in(directory: &str) -> Vec<Release> {
    directory::read(Path::new(directory)).unwrap().into_iter().map(|(_, release)| release.unwrap()).collect()
}

#[test]
fn pushing_tells_what_became_of_each() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let assets = place("assets");
    package(&sample("hello"), Path::new(&assets), &[]);
    let targets = [place("a"), format!("layout:{}", place("b"))];
    let rows = clusterstack(&["push", &assets, &targets[0], &targets[1], "-o", "json"]).succeeds();
    let rows: Value = serde_json::from_str(&rows).unwrap();
    assert_eq!(rows.as_array().unwrap().iter().filter(|row| row["state"] == "pushed").count(), 2, "{rows}");
    assert_eq!(releases_in(&targets[0]), releases_in(&assets));
    // What failed is told where failures are.
    fs::write(place("file"), "").unwrap();
    let error = clusterstack(&["push", &assets, &targets[0], &place("file")]).fails(1);
    assert!(error.contains(&format!("docker-hello-1-34-v1 failed to {}\n", place("file"))), "{error}");
    // One that can't be read keeps back none beside it, and is told by its name.
    fs::create_dir_all(place("assets/docker-hello-1-33-v1/charts")).unwrap();
    fs::write(place("assets/docker-hello-1-33-v1/metadata.yaml"), "").unwrap();
    let error = clusterstack(&["push", &assets, &place("d")]).fails(1);
    assert!(
        error.contains("1 of 2 not pushed: docker-hello-1-33-v1: ") && error.contains("charts is no file"),
        "{error}"
    );
    assert_eq!(releases_in(&place("d")), releases_in(&targets[0]));
    let archive = place("bundle.tar");
    clusterstack(&["bundle", "docker-hello-1-34-v1", "--source", &assets, "--file", &archive]).succeeds();
    let error = clusterstack(&["bundle", "docker-hello-1-33-v1", "--source", &assets, "--file", &archive]).fails(1);
    assert!(error.contains("charts is no file"), "{error}");
    fs::remove_dir_all(place("assets/docker-hello-1-33-v1")).unwrap();
    // Nor is one that is not what its checksums say: those who check them would refuse it, and its version were used up.
    let sums = place("assets/docker-hello-1-34-v1/SHA256SUMS");
    fs::write(&sums, format!("{}  metadata.yaml\n", "0".repeat(64))).unwrap();
    let error = clusterstack(&["push", &assets, &place("c")]).fails(1);
    assert!(
        error.contains("SHA256SUMS: it has another sum for metadata.yaml") && !Path::new(&place("c")).exists(),
        "{error}"
    );
    fs::remove_file(sums).unwrap();
    // A broken release is pushed nowhere.
    fs::remove_file(format!("{assets}/docker-hello-1-34-v1/docker-hello-1-34-cluster-class-v1.tgz")).unwrap();
    let error = clusterstack(&["push", &assets, &place("c")]).fails(1);
    assert!(error.contains("release docker-hello-1-34-v1 is broken") && !Path::new(&place("c")).exists(), "{error}");
    let error = clusterstack(&["push", &assets, "ftp://x/y"]).fails(1);
    assert!(error.contains("is no target"), "{error}");
}
