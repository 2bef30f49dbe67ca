//! A Node whose pods are processes of this machine (`hack/node`).

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tokio::sync::OnceCell;

use super::control_plane::{self, ControlPlane, ROOT};
use super::wait::skipped;

/// The image that is the program under test.
pub(crate) const IMAGE: &str = "registry.example.com/clusterstack:e2e";
/// An image with the programs of this machine.
pub(crate) const SHELL: &str = "registry.example.com/shell:e2e";

/// A running Node. It ends, with its pods, when it goes out of scope.
pub(crate) struct Node {
    child: Child,
    directory: tempfile::TempDir,
    limits_memory: bool,
}

impl Node {
    /// A Node that runs [`IMAGE`] and [`SHELL`]; `None`, and a visible word, where it can't be built.
    pub(crate) fn start(plane: &ControlPlane, test: &str) -> Option<Self> {
        let built = Command::new(format!("{ROOT}/hack/node/build")).stdin(Stdio::null()).output();
        let Some(built) = built.ok().filter(|output| output.status.success()) else {
            skipped(format_args!("{test}: a Node is built with Go, which is missing"));
            return None;
        };
        let program = String::from_utf8(built.stdout).expect("no UTF-8");
        // Below the one of this process, which a later one removes where nobody else could.
        let parent = control_plane::directory();
        std::fs::create_dir_all(&parent).expect("no directory");
        let directory = tempfile::tempdir_in(parent).expect("no directory");
        // Its pods run as other users.
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("no directory");
        let mut child = Command::new(program.trim())
            .arg("-kubeconfig")
            .arg(&plane.kubeconfig)
            .arg("-dir")
            .arg(directory.path())
            .arg(format!("{IMAGE}={}", env!("CARGO_BIN_EXE_clusterstack")))
            .arg(format!("{SHELL}=/bin/bash"))
            // It ends with us.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("no Node");
        let mut line = String::new();
        let out = child.stdout.take().expect("no output");
        BufReader::new(out).read_line(&mut line).expect("no word of the Node");
        if line.is_empty() && child.wait().is_ok_and(|status| status.code() == Some(3)) {
            skipped(format_args!("{test}: this user may make no namespaces for containers"));
            return None;
        }
        assert!(line.starts_with("ready"), "the Node does not start: {line}");
        Some(Self { child, directory, limits_memory: line.trim() == "ready" })
    }

    /// Whether the containers of the shared one can be given a limit of memory, which takes control groups.
    pub(crate) fn limits_memory() -> bool {
        PLANE.get().and_then(Option::as_ref).is_some_and(|(_, node)| node.limits_memory)
    }

    /// Where the files of its pods are.
    pub(crate) fn dir(&self) -> &Path {
        self.directory.path()
    }

    /// What all containers of all pods logged.
    pub(crate) fn logs(&self) -> String {
        let below = |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        let pods = below(self.dir().join("pods"));
        let files = pods.flat_map(below).filter(|path| !path.ends_with("volumes")).flat_map(below);
        let logs = files.filter(|path| path.extension().is_some_and(|end| end == "log"));
        logs.map(|log| std::fs::read_to_string(log).unwrap_or_default()).collect()
    }
}

static PLANE: OnceCell<Option<(ControlPlane, Node)>> = OnceCell::const_new();

/// A control plane whose pods run, on a [`Node`], shared by the tests that ask for one; `None`, and a visible word, where it
/// can't be.
pub(super) async fn plane(test: &str) -> Option<&'static ControlPlane> {
    let start = || async {
        let plane = control_plane::started("with-a-node", test).await?;
        let node = Node::start(&plane, test)?;
        Some((plane, node))
    };
    PLANE.get_or_init(start).await.as_ref().map(|(plane, _)| plane)
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
