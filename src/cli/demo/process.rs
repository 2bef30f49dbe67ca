//! Processes of the demo: tools that are waited for, and the operator. Each is a group of its own, so that only the
//! demo decides when it ends, and each ends with the demo.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

/// How long the operator may take to finish what is under way.
const DRAIN: Duration = Duration::from_secs(15);

/// A process with its group, told to end when this is dropped.
struct Group(Child);

impl Group {
    fn start(command: &mut Command) -> Result<Self> {
        let name = command.as_std().get_program().display().to_string();
        let child = command.stdin(Stdio::null()).process_group(0).spawn();
        child.map(Self).with_context(|| format!("cannot run {name}"))
    }

    /// As long as the process is not waited for, its id is no other's.
    fn signal(&self, signal: Signal) {
        let pid = self.0.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // It may have ended by itself.
            let _ = kill_process_group(pid, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
    }
}

/// Runs a tool to its end. It tells its progress on standard error.
pub(super) async fn run(program: &Path, args: &[&OsStr]) -> Result<()> {
    let mut tool = Group::start(Command::new(program).args(args).stdout(Stdio::null()))?;
    let status = tool.0.wait().await.with_context(|| format!("cannot wait for {}", program.display()))?;
    if !status.success() {
        bail!("{} failed: {status}", program.display());
    }
    Ok(())
}

/// The operator as a child process.
pub(super) struct Operator {
    group: Group,
    log: PathBuf,
}

impl Operator {
    /// Starts this very program with its subcommand `operator`. It gets SIGTERM when the demo is killed.
    pub(super) fn start(kubeconfig: Option<&OsStr>, flags: &[&OsStr], log: PathBuf) -> Result<Self> {
        let this = std::env::current_exe().context("cannot tell where this program lies")?;
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM"]).arg(this).arg("operator").args(flags).env("NO_COLOR", "1");
        if let Some(kubeconfig) = kubeconfig {
            command.env("KUBECONFIG", kubeconfig);
        }
        command.stdout(Stdio::null()).stderr(file);
        Ok(Self { group: Group::start(&mut command)?, log })
    }

    /// Waits until it ends by itself, which it never should.
    pub(super) async fn ended(&mut self) -> std::io::Result<ExitStatus> {
        self.group.0.wait().await
    }

    /// Whether `/readyz` says so. Where it is served stands in the log.
    pub(super) fn is_ready(&self) -> bool {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        probes(&log).and_then(|address| readyz(address).ok()).unwrap_or(false)
    }

    /// The last lines of its log.
    pub(super) fn last_lines(&self, count: usize) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(count)..].join("\n")
    }

    /// Asks it to end, and insists after a while.
    pub(super) async fn stop(mut self) {
        self.group.signal(Signal::TERM);
        if tokio::time::timeout(DRAIN, self.group.0.wait()).await.is_err() {
            self.group.signal(Signal::KILL);
            let _ = self.group.0.wait().await;
        }
    }
}

fn probes(log: &str) -> Option<SocketAddr> {
    let line = log.lines().find(|line| line.contains("serving probes"))?;
    line.split_whitespace().find_map(|word| word.strip_prefix("bound=")?.parse().ok())
}

fn readyz(address: SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.starts_with("HTTP/1.1 200"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_the_probes_stands_in_the_log() {
        let log = "x INFO clusterstack: serving metrics bound=127.0.0.1:1\nx INFO clusterstack: serving probes bound=127.0.0.1:2\n";
        assert_eq!(probes(log), Some("127.0.0.1:2".parse().unwrap()));
        assert_eq!(probes("x INFO serving metrics bound=127.0.0.1:1"), None);
    }
}
