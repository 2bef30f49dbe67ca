//! Git repositories with releases.

use std::path::{Path, PathBuf};
use std::process::Command;

use clusterstack::core::name::ReleaseName;

/// A repository with a work tree.
pub(crate) struct Repo {
    dir: PathBuf,
}

impl Repo {
    /// An empty one.
    pub(crate) fn new(dir: &Path) -> Self {
        std::fs::create_dir_all(dir).expect("no directory");
        let repo = Self { dir: dir.canonicalize().expect("no directory") };
        repo.git(&["init", "--quiet", "--initial-branch=main"]);
        repo
    }

    /// A bare copy of a bundle or repository, with all its tags.
    pub(crate) fn mirror(source: &Path, dir: &Path) -> Self {
        let parent = dir.parent().expect("no parent");
        run(parent, &["clone", "--quiet", "--mirror", &source.display().to_string(), &dir.display().to_string()]);
        Self { dir: dir.canonicalize().expect("no directory") }
    }

    /// Its directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its `file://` URL.
    pub(crate) fn url(&self) -> String {
        format!("file://{}", self.dir.display())
    }

    /// Commits a release of the stack that the tag names, with `templates` as its class chart, and tags it. An existing
    /// tag is moved.
    pub(crate) fn release(&self, tag: &str, templates: &str) -> &Self {
        let name: ReleaseName = tag.parse().expect("no release name");
        let stack = format!("stacks/{}/{}", name.provider, name.stack);
        let chart = format!("apiVersion: v2\nname: {}-cluster-class\nversion: v0\n", name.stem());
        let csctl = format!("config:\n  kubernetesVersion: v{}.7\n", name.kubernetes);
        self.write(&format!("{stack}/csctl.yaml"), &csctl);
        self.write(&format!("{stack}/cluster-class/Chart.yaml"), &chart);
        self.write(&format!("{stack}/cluster-class/values.yaml"), "color: blue\n");
        self.write(&format!("{stack}/cluster-class/templates/objects.yaml"), templates);
        self.tag(tag)
    }

    /// Writes a file of the work tree.
    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.dir.join(path);
        std::fs::create_dir_all(path.parent().expect("no parent")).expect("no directory");
        std::fs::write(&path, text).expect("no file");
    }

    /// Commits the work tree and tags it; an existing tag is moved.
    pub(crate) fn tag(&self, tag: &str) -> &Self {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message", tag]);
        self.git(&["tag", "--force", tag]);
        self
    }

    /// Makes a tag an annotated one of the commit that it names, signed with an SSH key.
    pub(crate) fn sign_tag(&self, tag: &str, key: &Path) {
        let key = format!("user.signingKey={}", key.display());
        let ssh = ["-c", "gpg.format=ssh", "-c", &key];
        self.git(
            &[&ssh[..], &["tag", "--force", "--sign", "--message", tag, tag, &format!("{tag}^{{commit}}")]].concat(),
        );
    }

    /// The commit that a tag names.
    pub(crate) fn commit_of(&self, tag: &str) -> String {
        run(&self.dir, &["rev-parse", &format!("{tag}^{{commit}}")]).trim().to_owned()
    }

    /// Deletes a tag.
    pub(crate) fn delete_tag(&self, tag: &str) {
        self.git(&["tag", "--delete", tag]);
    }

    /// Throws away what no branch and no tag leads to: all but the newest commit.
    pub(crate) fn forget(&self) {
        self.git(&["checkout", "--quiet", "--orphan", "anew"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message", "anew"]);
        for tag in self.tags() {
            self.git(&["tag", "--force", &tag, "anew"]);
        }
        self.git(&["branch", "--delete", "--force", "main"]);
        self.git(&["reflog", "expire", "--expire=now", "--all"]);
        self.git(&["gc", "--quiet", "--prune=now"]);
    }

    /// A tag on the commit of another one.
    pub(crate) fn tag_as(&self, tag: &str, commit: &str) {
        self.git(&["tag", "--force", tag, commit]);
    }

    /// Its tags.
    pub(crate) fn tags(&self) -> Vec<String> {
        run(&self.dir, &["tag", "--list"]).lines().map(ToOwned::to_owned).collect()
    }

    fn git(&self, args: &[&str]) {
        run(&self.dir, args);
    }
}

fn run(dir: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=e2e", "-c", "user.email=e2e@localhost", "-c", "gc.auto=0"])
        .args(args)
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .output()
        .expect("no git");
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
