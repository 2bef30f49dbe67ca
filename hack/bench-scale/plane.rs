//! A control plane of its own, gone at the end.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::audit::Counts;

/// A running control plane with our CRDs and Cluster API's.
pub(crate) struct Plane {
    project: PathBuf,
    dir: PathBuf,
}

impl Plane {
    /// Starts it, and installs the CRDs.
    pub(crate) fn start(project: &Path, clusterstack: &Path, crds: &Path) -> Result<Self> {
        let plane = Self::bare(project, "management")?;
        let own = plane.dir.join("crds");
        run(Command::new(clusterstack).args(["crds", "--dir"]).arg(&own))?;
        for crds in [&own, crds] {
            run(plane.kubectl().args(["apply", "--server-side", "--recursive", "--filename"]).arg(crds))?;
        }
        run(plane.kubectl().args(["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]))?;
        run(plane.kubectl().args(["create", "namespace", "clusterstack-system"]))?;
        Ok(plane)
    }

    /// Starts one without anything, as a workload cluster is at first.
    pub(crate) fn bare(project: &Path, name: &str) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("clusterstack-bench-{}-{name}", std::process::id()));
        let plane = Self { project: project.to_owned(), dir };
        run(Command::new(project.join("hack/controlplane/up"))
            .args(["--owner", &std::process::id().to_string()])
            .arg(&plane.dir))?;
        Ok(plane)
    }

    /// All of it is in here.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its administrator's.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    /// A client of its administrator.
    pub(crate) async fn client(&self) -> Result<Client> {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig())?;
        Ok(Client::try_from(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)?)
    }

    /// Where the audit log ends now.
    pub(crate) fn audit_end(&self) -> u64 {
        fs::metadata(self.audit()).map_or(0, |log| log.len())
    }

    /// What the operator asked for since a place in the audit log.
    pub(crate) fn counts(&self, from: u64) -> Result<Counts> {
        let mut log = File::open(self.audit()).context("the audit log")?;
        log.seek(SeekFrom::Start(from))?;
        let mut lines = String::new();
        log.read_to_string(&mut lines)?;
        Ok(Counts::of(&lines))
    }

    fn audit(&self) -> PathBuf {
        self.dir.join("audit.log")
    }

    fn kubectl(&self) -> Command {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(self.kubeconfig());
        command
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        let ended = run(Command::new(self.project.join("hack/controlplane/down")).arg(&self.dir));
        if let Err(error) = ended.and_then(|()| Ok(fs::remove_dir_all(&self.dir)?)) {
            eprintln!("bench: {}: {error}", self.dir.display());
        }
    }
}

/// Runs a command; what it prints is shown if it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let done = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    ensure!(done.status.success(), "{command:?}: {}\n{out}{err}", done.status);
    Ok(())
}
