//! A Node whose pods are processes of this machine (`hack/node`).

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::control_plane::{ControlPlane, ROOT};
use super::wait::skipped;

/// The image that is the program under test.
pub(crate) const IMAGE: &str = "registry.example.com/clusterstack:e2e";

/// A running Node. It ends, with its pods, when it goes out of scope.
pub(crate) struct Node {
    child: Child,
    directory: tempfile::TempDir,
}

impl Node {
    /// A Node that runs [`IMAGE`]; `None`, and a visible word, where it can't be built.
    pub(crate) fn start(plane: &ControlPlane, test: &str) -> Option<Self> {
        let built = Command::new(format!("{ROOT}/hack/node/build")).stdin(Stdio::null()).output();
        let Some(built) = built.ok().filter(|output| output.status.success()) else {
            skipped(format_args!("{test}: a Node is built with Go, which is missing"));
            return None;
        };
        let program = String::from_utf8(built.stdout).expect("no UTF-8");
        let directory = tempfile::tempdir().expect("no directory");
        // Its pods run as other users.
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("no directory");
        let mut child = Command::new(program.trim())
            .arg("-kubeconfig")
            .arg(&plane.kubeconfig)
            .arg("-dir")
            .arg(directory.path())
            .arg(format!("{IMAGE}={}", env!("CARGO_BIN_EXE_clusterstack")))
            // It ends with us.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("no Node");
        let mut line = String::new();
        let out = child.stdout.take().expect("no output");
        BufReader::new(out).read_line(&mut line).expect("no word of the Node");
        assert_eq!(line.trim(), "ready", "the Node does not start");
        Some(Self { child, directory })
    }

    /// Where the files of its pods are.
    pub(crate) fn dir(&self) -> &Path {
        self.directory.path()
    }

    /// What all pods logged.
    pub(crate) fn logs(&self) -> String {
        let pods = std::fs::read_dir(self.dir().join("pods")).into_iter().flatten().flatten();
        pods.map(|pod| std::fs::read_to_string(pod.path().join("log")).unwrap_or_default()).collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- pods\n{}", self.logs());
        }
    }
}
