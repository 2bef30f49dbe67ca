//! Repositories on the operator's own disk: what may be reached, and what a tree may hold.

use std::os::unix::fs::symlink;
use std::path::Path;

use clusterstack::core::name::ReleaseName;
use clusterstack::core::source::Refused;
use clusterstack::io::source::git::{Git, GitSource};
use clusterstack::io::source::{Access, Fetched, Source, SourceError, Tag};
use tokio_util::sync::CancellationToken;

use super::repository::{self, Repository};
use super::{git, wanted};

const TAG: &str = "docker-scs-1-30-v1";

fn release() -> ReleaseName {
    TAG.parse().unwrap()
}

fn source(git: &Git, repository: &Repository) -> GitSource {
    git.source(&repository.url(), None, Access::default()).unwrap()
}

async fn fetch(source: &GitSource) -> Result<Fetched, SourceError> {
    let cancel = CancellationToken::new();
    let listing = source.list(&cancel).await?;
    let tag = listing.tags.iter().find(|tag| tag.name == TAG).unwrap();
    source.fetch(&wanted(tag, &release()), &cancel).await
}

fn allowed(root: &Path) -> Git {
    git(root, &[root.to_str().unwrap()])
}

#[tokio::test]
async fn links_and_git_files_do_not_leave_the_permitted_root() {
    let directory = tempfile::tempdir().unwrap();
    let secret = Repository::new(directory.path().join("secret"));
    secret.write_stack("stacks/docker/scs").commit();
    secret.tag(TAG);
    let root = directory.path().join("root");
    std::fs::create_dir(&root).unwrap();
    symlink(&secret.path, root.join("link")).unwrap();
    std::fs::create_dir(root.join("worktree")).unwrap();
    std::fs::write(root.join("worktree/.git"), format!("gitdir: {}/.git\n", secret.path.display())).unwrap();
    let git = git(directory.path(), &[root.to_str().unwrap()]);
    for name in ["link", "worktree", "link/.git"] {
        let source = git.source(&format!("file://{}/{name}", root.display()), None, Access::default()).unwrap();
        let error = source.list(&CancellationToken::new()).await.unwrap_err();
        assert!(matches!(error, SourceError::Refused(Refused::Root { .. } | Refused::Link { .. })), "{name}: {error}");
    }
    // Objects that lie elsewhere, also two steps away.
    for (name, alternates) in [
        ("borrows", secret.path.join(".git/objects").display().to_string()),
        ("relative", "../../../../secret/.git/objects".to_owned()),
        ("again", root.join("borrows/.git/objects").display().to_string()),
    ] {
        let repository = Repository::new(root.join(name));
        std::fs::write(repository.path.join(".git/objects/info/alternates"), format!("{alternates}\n")).unwrap();
        let source = git.source(&format!("file://{}/{name}", root.display()), None, Access::default()).unwrap();
        let error = source.list(&CancellationToken::new()).await.unwrap_err();
        assert!(matches!(error, SourceError::Refused(Refused::Link { .. })), "{name}: {error}");
    }
    // Single parts of a repository that lie elsewhere.
    for part in ["refs/tags", "objects/pack", "objects/ab", "packed-refs"] {
        let name = part.replace('/', "-");
        let repository = Repository::new(root.join(&name));
        repository.write_stack("stacks/docker/scs").commit();
        repository.tag(TAG);
        let (own, other) = (repository.path.join(".git").join(part), secret.path.join(".git").join(part));
        let _ = std::fs::remove_dir_all(&own);
        if part == "packed-refs" {
            std::fs::write(&other, "").unwrap();
        } else {
            std::fs::create_dir_all(&other).unwrap();
        }
        symlink(&other, &own).unwrap();
        let source = git.source(&format!("file://{}/{name}", root.display()), None, Access::default()).unwrap();
        let error = source.list(&CancellationToken::new()).await.unwrap_err();
        assert!(matches!(error, SourceError::Refused(Refused::Link { .. })), "{name}: {error}");
    }
    // Within the root they may.
    let lender = Repository::new(root.join("lender"));
    lender.write_stack("stacks/docker/scs").commit();
    lender.tag(TAG);
    let status = std::process::Command::new("git")
        .args(["clone", "-q", "--shared"])
        .args([&lender.path, &root.join("shares")])
        .status()
        .unwrap();
    assert!(status.success());
    let source = git.source(&format!("file://{}/shares", root.display()), None, Access::default()).unwrap();
    assert_eq!(source.list(&CancellationToken::new()).await.unwrap().tags.len(), 1);

    let linked = directory.path().join("linked");
    symlink(directory.path(), &linked).unwrap();
    let git = super::git(directory.path(), &[linked.to_str().unwrap()]);
    let through_link = git.source(&format!("file://{}/secret", linked.display()), None, Access::default()).unwrap();
    assert_eq!(through_link.list(&CancellationToken::new()).await.unwrap().tags.len(), 1);
}

#[tokio::test]
async fn what_is_no_repository_is_said_so() {
    let directory = tempfile::tempdir().unwrap();
    let git = allowed(directory.path());
    let inside = Repository::new(directory.path().join("r"));
    inside.write("sub/x", "x");
    for path in ["missing", "r/sub"] {
        let source =
            git.source(&format!("file://{}/{path}", directory.path().display()), None, Access::default()).unwrap();
        let error = source.list(&CancellationToken::new()).await.unwrap_err();
        assert!(matches!(error, SourceError::NoRepository { .. }) && !error.is_transient(), "{path}: {error}");
    }
}

#[tokio::test]
async fn the_stack_is_found_at_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let git = allowed(directory.path());
    let repository = Repository::new(directory.path().join("r"));
    let cancel = CancellationToken::new();
    let mut steps = Vec::new();
    // A directory without a cluster class is none; an older layout gives way to a newer one.
    repository.write("stacks/docker/scs/README.md", "x");
    for place in ["providers/docker/scs", "providers/docker/scs/1-30", "stacks/docker/scs"] {
        repository.write_stack(place).commit();
        repository.tag(TAG);
        steps.push((fetch(&source(&git, &repository)).await.unwrap().path, place));
    }
    assert!(steps.iter().all(|(found, place)| found == place), "{steps:?}");

    repository.write_stack(".").write_stack("clouds/docker/scs-1-30").commit();
    repository.tag(TAG);
    for (template, place) in [("clouds/{provider}/{name}-{kubernetesVersion}", "clouds/docker/scs-1-30"), ("/", "")] {
        let source = git.source(&repository.url(), Some(template.to_owned()), Access::default()).unwrap();
        assert_eq!(fetch(&source).await.unwrap().path, place);
    }
    for template in ["nowhere", "../r", "stacks/docker/scs/csctl.yaml"] {
        let source = git.source(&repository.url(), Some(template.to_owned()), Access::default()).unwrap();
        let error = fetch(&source).await.unwrap_err();
        assert_eq!(error, SourceError::NoStack { tag: TAG.to_owned(), tried: vec![template.to_owned()] });
    }
    let other: ReleaseName = "docker-other-1-30-v1".parse().unwrap();
    let listing = source(&git, &repository).list(&cancel).await.unwrap();
    let error =
        source(&git, &repository).fetch(&wanted(&listing.tags[0], &other), &cancel).await.unwrap_err().to_string();
    assert!(error.contains("providers/docker/other/1-30"), "{error}");
}

#[tokio::test]
async fn links_within_the_stack_are_followed() {
    let directory = tempfile::tempdir().unwrap();
    let repository = Repository::new(directory.path().join("r"));
    repository.write_stack("stacks/docker/scs");
    let stack = repository.path.join("stacks/docker/scs");
    symlink("../csctl.yaml", stack.join("cluster-class/file")).unwrap();
    symlink("file", stack.join("cluster-class/chain")).unwrap();
    symlink("cluster-class", stack.join("a-directory")).unwrap();
    symlink("a-directory/templates/class.yaml", stack.join("through")).unwrap();
    repository.commit();
    repository.tag(TAG);
    let files = fetch(&source(&allowed(directory.path()), &repository)).await.unwrap().files;
    assert_eq!(files["cluster-class/chain"], files["csctl.yaml"]);
    assert_eq!(files["a-directory/chain"], files["csctl.yaml"]);
    assert_eq!(files["through"], files["cluster-class/templates/class.yaml"]);
}

#[tokio::test]
async fn one_bad_thing_in_a_tree_is_one_error() {
    let links: [(&str, &str); 7] = [
        ("../../../../etc/passwd", "leaves the stack"),
        ("/etc/passwd", "leaves the stack"),
        ("../../other/x", "leaves the stack"),
        ("missing", "to nothing"),
        ("bad", "holds it"),
        (".", "holds it"),
        ("bad/x", "to nothing"),
    ];
    for (target, expected) in links {
        let directory = tempfile::tempdir().unwrap();
        let repository = Repository::new(directory.path().join("r"));
        repository.write_stack("stacks/docker/scs").write("stacks/other/x", "x");
        symlink(target, repository.path.join("stacks/docker/scs/bad")).unwrap();
        repository.commit();
        repository.tag(TAG);
        let error = fetch(&source(&allowed(directory.path()), &repository)).await.unwrap_err();
        assert!(matches!(error, SourceError::Layout { .. }), "{target}: {error}");
        assert!(error.to_string().contains(expected) && error.to_string().contains("bad"), "{target}: {error}");
    }
}

#[tokio::test]
async fn submodules_and_tags_of_something_else_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let git = allowed(directory.path());
    let repository = Repository::new(directory.path().join("r"));
    repository.write_stack("stacks/docker/scs").commit();
    let other = Repository::new(directory.path().join("other"));
    other.write("x", "x").commit();
    repository::git(&repository.path, &["submodule", "add", "-q", &other.url(), "stacks/docker/scs/module"]);
    repository.commit();
    repository.tag(TAG);
    let error = fetch(&source(&git, &repository)).await.unwrap_err().to_string();
    assert!(error.contains("stacks") || error.contains("module"), "{error}");
    assert!(error.contains("submodule"), "{error}");

    // Elsewhere it does no harm, and in the place of the stack it is named.
    repository::git(&repository.path, &["mv", "stacks/docker/scs/module", "module"]);
    repository.commit();
    repository.tag(TAG);
    assert_eq!(fetch(&source(&git, &repository)).await.unwrap().path, "stacks/docker/scs");
    repository::git(&repository.path, &["rm", "-q", "-r", "stacks/docker/scs"]);
    repository::git(&repository.path, &["mv", "module", "stacks"]);
    repository.commit();
    repository.tag(TAG);
    let error = fetch(&source(&git, &repository)).await.unwrap_err().to_string();
    assert!(error.contains("stacks") && error.contains("submodule"), "{error}");
    repository.write_stack("providers/docker/scs").commit();
    repository.tag(TAG);
    assert_eq!(fetch(&source(&git, &repository)).await.unwrap().path, "providers/docker/scs");

    repository::git(&repository.path, &["tag", "-f", TAG, "HEAD:providers"]);
    let error = fetch(&source(&git, &repository)).await.unwrap_err().to_string();
    assert!(error.contains("points at no commit"), "{error}");
}

#[tokio::test]
async fn a_pointer_of_git_lfs_is_refused_by_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let repository = Repository::new(directory.path().join("r"));
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab\nsize 12345\n";
    // Elsewhere it does no harm.
    repository.write_stack("stacks/docker/scs").write("pictures/a.png", pointer).commit();
    repository.tag(TAG);
    fetch(&source(&allowed(directory.path()), &repository)).await.unwrap();
    repository.write("stacks/docker/scs/cluster-addon/charts/cni.tgz", pointer).commit();
    repository.tag(TAG);
    let error = fetch(&source(&allowed(directory.path()), &repository)).await.unwrap_err();
    assert!(matches!(error, SourceError::Layout { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("cluster-addon/charts/cni.tgz: it is a pointer of Git LFS"), "{said}");
}

#[tokio::test]
async fn a_large_stack_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let repository = Repository::new(directory.path().join("r"));
    repository.write_stack("stacks/docker/scs").write("large", &"x".repeat(5000));
    repository.write("stacks/docker/scs/a/b/c/d", &"x".repeat(2000)).commit();
    repository.tag(TAG);
    let mut git = allowed(directory.path());
    assert!(fetch(&source(&git, &repository)).await.is_ok());
    let default = git.limits;
    for (what, change) in [
        ("number of files", (3, 1 << 20, 1 << 20, 32, 1024)),
        ("size of all files", (100, 2000, 1 << 20, 32, 1024)),
        ("size of \"a/b/c/d\"", (100, 1 << 20, 1999, 32, 1024)),
        ("depth", (100, 1 << 20, 1 << 20, 3, 1024)),
        ("length", (100, 1 << 20, 1 << 20, 32, 15)),
    ] {
        git.limits = default;
        let limits = &mut git.limits;
        (limits.entries, limits.bytes, limits.file_bytes, limits.depth, limits.path_bytes) = change;
        let error = fetch(&source(&git, &repository)).await.unwrap_err();
        assert!(matches!(error, SourceError::TooLarge { .. }) && error.to_string().contains(what), "{what}: {error}");
    }
}

#[tokio::test]
async fn tags_commits_and_directories_are_weighed_before_they_are_read() {
    const LARGE: usize = 1024 * 1024;
    let directory = tempfile::tempdir().unwrap();
    let git = allowed(directory.path());
    let repository = Repository::new(directory.path().join("r"));
    let good = repository.write_stack("stacks/docker/scs").commit();
    let tree = repository::git(&repository.path, &["rev-parse", "HEAD^{tree}"]);
    let stored = git2::Repository::open(&repository.path).unwrap();
    let objects = stored.odb().unwrap();
    let write = |kind, text: &[u8]| objects.write(kind, text).unwrap().to_string();
    let commit = |tree: &str, size: usize| {
        let head = format!("tree {tree}\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\n");
        let message = "a".repeat(size - head.len());
        write(git2::ObjectType::Commit, format!("{head}{message}").as_bytes())
    };
    let tag = |size: usize| {
        let head = format!("object {good}\ntype commit\ntag {TAG}\ntagger a <a@b> 1 +0000\n\n");
        let message = "a".repeat(size - head.len());
        write(git2::ObjectType::Tag, format!("{head}{message}").as_bytes())
    };
    let id = git2::Oid::from_str(&tree).unwrap();
    // `name` leads to the good tree; the names make the directory large.
    let directory_of = |name: &str, entries: usize| {
        let mut content = Vec::new();
        let mut add = |name: &str| {
            content.extend_from_slice(format!("40000 {name}\0").as_bytes());
            content.extend_from_slice(id.as_bytes());
        };
        (0..entries).for_each(|i| add(&format!("{i:08}-{}", "x".repeat(220))));
        add(name);
        write(git2::ObjectType::Tree, &content)
    };
    let wide = directory_of("stacks", 17_000);
    let nested = {
        let mut content = b"40000 stacks\0".to_vec();
        content.extend_from_slice(git2::Oid::from_str(&wide).unwrap().as_bytes());
        write(git2::ObjectType::Tree, &content)
    };
    for (id, expected) in [
        (commit(&tree, LARGE), None),
        (commit(&tree, LARGE + 1), Some("commit")),
        (tag(LARGE), None),
        (tag(LARGE + 1), Some("tag")),
        (commit(&wide, 1000), Some("directory")),
        (commit(&nested, 1000), Some("directory")),
    ] {
        repository::git(&repository.path, &["update-ref", &format!("refs/tags/{TAG}"), &id]);
        let source = source(&git, &repository);
        assert_eq!(source.list(&CancellationToken::new()).await.unwrap().tags.len(), 1, "others would be listed");
        let fetched = fetch(&source).await;
        let Some(expected) = expected else {
            fetched.unwrap();
            continue;
        };
        let error = fetched.unwrap_err();
        assert!(matches!(error, SourceError::TooLarge { .. }), "{expected}: {error}");
        assert!(error.to_string().starts_with(expected), "{expected}: {error}");
    }
}

#[tokio::test]
async fn names_that_are_patterns_are_not_fetched() {
    let directory = tempfile::tempdir().unwrap();
    let repository = Repository::new(directory.path().join("r"));
    repository.write_stack("stacks/docker/scs").commit();
    let source = source(&allowed(directory.path()), &repository);
    for name in ["*", "a:b", "a b", "../heads/main", ""] {
        let tag = Tag { name: name.to_owned(), revision: "0".repeat(40) };
        let error = source.fetch(&wanted(&tag, &release()), &CancellationToken::new()).await.unwrap_err();
        assert!(matches!(error, SourceError::Layout { .. }), "{name:?}: {error}");
    }
}
