//! The operator as a process, and what it costs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::plane::Plane;

/// How long it may take to come to rest.
const PATIENCE: Duration = Duration::from_mins(30);

/// A running operator; killed when it goes out of scope.
pub(crate) struct Operator {
    child: Child,
    log: PathBuf,
}

/// Memory of a process, in MiB.
pub(crate) struct Memory {
    /// Resident now.
    pub(crate) resident: f64,
    /// Of that pages of files: the executable, which the kernel may drop and read again.
    pub(crate) files: f64,
    /// The most there was.
    pub(crate) peak: f64,
}

impl Operator {
    /// Starts it as one replica, as a Deployment would.
    pub(crate) fn start(clusterstack: &Path, plane: &Plane, source: &Path, flags: &[String]) -> Result<Self> {
        let log = plane.dir().join("operator.log");
        let file = File::options().create(true).append(true).open(&log)?;
        // It ends with us, however we do.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(clusterstack)
            .args(["operator", "--leader-elect-namespace", "clusterstack-system"])
            .args(["--metrics-bind-address", "127.0.0.1:0", "--health-probe-bind-address", "127.0.0.1:0"])
            .arg("--release-dir")
            .arg(plane.dir().join("releases"))
            .arg("--image-dir")
            .arg(plane.dir().join("images"))
            .arg("--allow-source")
            .arg(source)
            .args(flags)
            .env("KUBECONFIG", plane.kubeconfig())
            .env("POD_NAME", "bench-0")
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| clusterstack.display().to_string())?;
        Ok(Self { child, log })
    }

    /// Waits until it asked these for nothing but Leases for that long, and has asked for something; when that began.
    pub(crate) async fn settled(&mut self, planes: &[&Plane], rest: Duration) -> Result<Instant> {
        let begin = Instant::now();
        let ends = || planes.iter().map(|plane| plane.audit_end()).collect::<Vec<_>>();
        let (mut since, mut places, mut seen) = (begin, ends(), false);
        while !(seen && since.elapsed() >= rest || since.elapsed() >= 3 * rest) {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if let Some(status) = self.child.try_wait()? {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                bail!("the operator ended: {status}\n{}", log.lines().last().unwrap_or_default());
            }
            ensure!(begin.elapsed() < PATIENCE, "the operator does not come to rest");
            let now = ends();
            for (plane, place) in planes.iter().zip(places) {
                if plane.counts(place)?.all > 0 {
                    (since, seen) = (Instant::now(), true);
                }
            }
            places = now;
        }
        Ok(since)
    }

    /// Waits until it wrote nothing but Leases to these for that long: where it looks at many things by the clock it is never at rest.
    pub(crate) async fn wrote_all(&mut self, planes: &[&Plane], rest: Duration) -> Result<()> {
        let begin = Instant::now();
        let places = |planes: &[&Plane]| planes.iter().map(|plane| plane.audit_end()).collect::<Vec<_>>();
        let (mut since, mut before) = (begin, places(planes));
        while since.elapsed() < rest {
            tokio::time::sleep(Duration::from_millis(500)).await;
            ensure!(begin.elapsed() < PATIENCE, "the operator does not end to write");
            let now = places(planes);
            for (plane, place) in planes.iter().zip(before) {
                if plane.counts(place)?.writes > 0 {
                    since = Instant::now();
                }
            }
            before = now;
        }
        Ok(())
    }

    /// Processor time so far, in seconds.
    pub(crate) fn cpu(&self) -> Result<f64> {
        let stat = fs::read_to_string(self.proc("stat"))?;
        // The name of the command, in parentheses, may have blanks.
        let fields: Vec<&str> =
            stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).context("/proc/PID/stat");
        Ok((ticks(11)? + ticks(12)?) / 100.0)
    }

    /// Its memory.
    pub(crate) fn memory(&self) -> Result<Memory> {
        let status = fs::read_to_string(self.proc("status"))?;
        let of = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).context("/proc/PID/status")?;
            let kib: f64 = line.trim_end_matches("kB").trim().parse()?;
            anyhow::Ok(kib / 1024.0)
        };
        Ok(Memory { resident: of("VmRSS:")?, files: of("RssFile:")?, peak: of("VmHWM:")? })
    }

    /// Ends it as a kubelet does.
    pub(crate) fn end(&mut self) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw).context("no pid")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "the operator ended with {status}");
        Ok(())
    }

    fn proc(&self, file: &str) -> PathBuf {
        format!("/proc/{}/{file}", self.child.id()).into()
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
