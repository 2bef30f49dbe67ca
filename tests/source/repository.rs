//! Git repositories for tests, made with the `git` command.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs `git` and returns what it prints.
pub fn git(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .current_dir(directory)
        .args(["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "protocol.file.allow=always"])
        .args(arguments)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .output()
        .unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A repository with a work tree.
pub struct Repository {
    pub path: PathBuf,
}

impl Repository {
    /// An empty repository at `path`.
    pub fn new(path: PathBuf) -> Self {
        std::fs::create_dir_all(&path).unwrap();
        git(&path, &["init", "-q", "-b", "main"]);
        Self { path }
    }

    /// Writes a file.
    pub fn write(&self, path: &str, content: &str) -> &Self {
        let path = self.path.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        self
    }

    /// Writes a small stack of docker/scs for Kubernetes 1.30 to `directory`.
    pub fn write_stack(&self, directory: &str) -> &Self {
        self.write(
            &format!("{directory}/csctl.yaml"),
            "config: {clusterStackName: scs, kubernetesVersion: v1.30.11, provider: {type: docker}}\n",
        )
        .write(&format!("{directory}/cluster-class/Chart.yaml"), "name: docker-scs-1-30-cluster-class\nversion: v1\n")
        .write(&format!("{directory}/cluster-class/templates/class.yaml"), "kind: ClusterClass\n")
        .write(&format!("{directory}/cluster-addon/Chart.yaml"), "name: addon\nversion: v1\n")
    }

    /// Commits everything and returns the commit's id.
    pub fn commit(&self) -> String {
        git(&self.path, &["add", "-A"]);
        git(&self.path, &["commit", "-q", "--allow-empty", "-m", "a commit"]);
        git(&self.path, &["rev-parse", "HEAD"])
    }

    /// Tags HEAD, moving a tag that exists.
    pub fn tag(&self, name: &str) -> &Self {
        git(&self.path, &["tag", "-f", name]);
        self
    }

    /// Its `file://` URL.
    pub fn url(&self) -> String {
        format!("file://{}", self.path.display())
    }
}

/// A bare clone of the bundle of the real repository.
pub fn real(shared: &Path, at: &Path) -> PathBuf {
    let bundle = shared.join("stacks/cluster-stacks.bundle");
    let path = at.join("cluster-stacks.git");
    git(at, &["clone", "-q", "--mirror", bundle.to_str().unwrap(), path.to_str().unwrap()]);
    path
}
