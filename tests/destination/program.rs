//! Servers that `hack/NAME/build` makes, as programs on loopback.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A server that ends with this, or with the test's process.
pub struct Server {
    /// `host:port`, and further words.
    pub words: Vec<String>,
    child: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts what `hack/NAME/build` makes; `None`, and says so, where it can't be made.
    pub fn start(name: &str, arguments: impl FnOnce(&mut Command)) -> Option<Self> {
        let program = build(name)?;
        let mut command = Command::new(program);
        arguments(&mut command);
        // It ends when its input does: when this process is gone.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("no server");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("no output")).read_line(&mut line).expect("no line");
        let words: Vec<_> = line.split_whitespace().map(ToOwned::to_owned).collect();
        assert!(!words.is_empty(), "{name} did not start");
        Some(Self { words, child })
    }
}

fn build(name: &str) -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("hack").join(name).join("build");
    let built = Command::new(&script).stderr(Stdio::inherit()).output().expect("no build script");
    if !built.status.success() {
        eprintln!("SKIPPED: there is no {name}: {} failed", script.display());
        return None;
    }
    Some(PathBuf::from(String::from_utf8(built.stdout).expect("no path").trim()))
}
