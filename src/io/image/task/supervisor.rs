//! The process between the operator and a tool: it lives as long as the tool and all that the tool started.
//!
//! The operator starts its own executable with a hidden subcommand and writes an [`Order`] to its standard input. This process
//! takes the lock of the work directory, which the tool inherits, becomes the parent of whatever the tool leaves behind, and
//! starts itself once more: that process only sets limits and becomes the tool. When the tool ended, or standard input is
//! closed (the operator stops the step, or is gone), all that is left is ended. What came of it is written to standard error
//! as JSON; standard output is the tool's.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, Rlimit, Signal, getpid, set_child_subreaper, setrlimit};
use rustix::thread::set_no_new_privs;
use serde::{Deserialize, Serialize};

use super::processes::signal_descendants;

/// Name of the hidden subcommand.
pub const SUBCOMMAND: &str = "image-tool";
/// Its flag for the process that becomes the tool.
const BECOME: &str = "--become";
/// Seconds of processor time between the word to end and the end.
const CPU_ROOM: u64 = 5;
const LOOK: Duration = Duration::from_millis(20);
/// How long what a tool left behind may take to end by itself.
const LEFTOVERS: Duration = Duration::from_millis(500);

/// What a tool may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolLimits {
    /// Processor time in seconds, of each process.
    pub cpu_seconds: u64,
    /// Address space in bytes, of each process.
    pub memory: u64,
    /// Bytes of the largest file.
    pub file: u64,
    /// Open files of each process.
    pub open_files: u64,
}

/// What to run, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The executable.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Its whole environment.
    pub env: BTreeMap<String, String>,
    /// Where it runs.
    pub directory: PathBuf,
    /// The lock that it holds.
    pub lock: PathBuf,
    /// What it may use.
    pub limits: ToolLimits,
    /// How long it may take to end when it is told to.
    pub grace: Duration,
}

/// What came of a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Ended {
    /// It ended by itself, with this code.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
    /// It was told to end.
    Stopped,
    /// It was not started.
    Failed(String),
}

/// The hidden subcommand, with the arguments behind its name.
///
/// # Errors
/// The order can't be read, or nobody is left who would read the answer.
pub fn run(arguments: &[String]) -> io::Result<ExitCode> {
    if let Some((BECOME, rest)) = arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return Err(become_tool(rest));
    }
    let mut line = String::new();
    let mut input = BufReader::new(io::stdin());
    input.read_line(&mut line)?;
    let order: Order = serde_json::from_str(&line)?;
    let ended = supervise(&order, input).unwrap_or_else(Ended::Failed);
    writeln!(io::stderr(), "{}", serde_json::to_string(&ended)?)?;
    Ok(ExitCode::SUCCESS)
}

/// What the two threads that wait tell.
enum News {
    Ended(io::Result<ExitStatus>),
    Stop,
}

fn supervise(order: &Order, input: BufReader<io::Stdin>) -> Result<Ended, String> {
    let failed = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&order.lock);
    let lock = lock.map_err(failed("its lock can't be opened"))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| "another tool runs in the same work directory".to_owned())?;
    set_child_subreaper(Some(getpid())).map_err(|error| error.to_string())?;
    // What is started from here on holds the lock, as long as any of it lives.
    fcntl_setfd(&lock, FdFlags::empty()).map_err(|error| error.to_string())?;
    let this = std::env::current_exe().map_err(failed("this program can't be found"))?;
    let limits = &order.limits;
    let limits = [limits.cpu_seconds, limits.memory, limits.file, limits.open_files].map(|limit| limit.to_string());
    let output = || Ok::<_, io::Error>(Stdio::from(io::stdout().as_fd().try_clone_to_owned()?));
    let mut child = Command::new(this)
        .args([SUBCOMMAND, BECOME])
        .args(limits)
        .arg(&order.program)
        .args(&order.arguments)
        .env_clear()
        .envs(&order.env)
        .current_dir(&order.directory)
        .stdin(Stdio::null())
        .stdout(output().map_err(failed("its output can't be taken"))?)
        .stderr(output().map_err(failed("its output can't be taken"))?)
        .process_group(0)
        .spawn()
        .map_err(failed("it can't be started"))?;
    let (tell, news) = channel();
    wait_for_the_end_of_input(input, tell.clone());
    std::thread::spawn(move || tell.send(News::Ended(child.wait())));
    let (ended, patience) = match news.recv() {
        Ok(News::Ended(status)) => (Some(status), LEFTOVERS),
        Ok(News::Stop) | Err(_) => (None, order.grace),
    };
    end_all(patience);
    Ok(match ended {
        None => Ended::Stopped,
        Some(Err(error)) => return Err(format!("it can't be waited for: {error}")),
        Some(Ok(status)) => status.signal().map_or_else(|| Ended::Code(status.code().unwrap_or(-1)), Ended::Signal),
    })
}

/// The operator holds the other end: it is closed when the operator wants the tool to end, and when there is no operator.
fn wait_for_the_end_of_input(mut input: BufReader<io::Stdin>, tell: Sender<News>) {
    std::thread::spawn(move || {
        let mut byte = [0];
        while input.read(&mut byte).is_ok_and(|read| read > 0) {}
        tell.send(News::Stop)
    });
}

/// Ends all that was started, however deep: what is orphaned becomes our child.
fn end_all(patience: Duration) {
    let until = Instant::now() + patience;
    let mut left = signal_descendants(Signal::TERM);
    while left > 0 && Instant::now() < until {
        std::thread::sleep(LOOK);
        left = signal_descendants(Signal::CONT);
    }
    while signal_descendants(Signal::KILL) > 0 {
        std::thread::sleep(LOOK);
    }
}

/// Sets the limits and becomes the tool. Returns only if that fails; what is said then is in the tool's output.
fn become_tool(arguments: &[String]) -> io::Error {
    let [cpu, memory, file, open_files, program, arguments @ ..] = arguments else {
        return io::Error::other("it takes four limits, a program and its arguments");
    };
    let limits =
        [(Resource::Cpu, cpu), (Resource::As, memory), (Resource::Fsize, file), (Resource::Nofile, open_files)];
    // The kernel shall end a tool before it ends the operator; where we may not say so, it decides by itself.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    for (resource, limit) in limits.into_iter().map(|(resource, text)| (resource, text.parse::<u64>().ok())) {
        let Some(limit) = limit else { return io::Error::other("a limit is no number") };
        let room = if matches!(resource, Resource::Cpu) { CPU_ROOM } else { 0 };
        let most = rustix::process::getrlimit(resource).maximum;
        let most = most.map_or(limit.saturating_add(room), |most| most.min(limit.saturating_add(room)));
        let limit = Rlimit { current: Some(most.min(limit)), maximum: Some(most) };
        if let Err(error) = setrlimit(resource, limit) {
            return io::Error::other(format!("a limit can't be set: {error}"));
        }
    }
    let no_core = Rlimit { current: Some(0), maximum: Some(0) };
    if let Err(error) = setrlimit(Resource::Core, no_core).and_then(|()| set_no_new_privs(true)) {
        return io::Error::other(format!("a limit can't be set: {error}"));
    }
    let error = Command::new(program).args(arguments).exec();
    io::Error::other(format!("{program} can't be run: {error}"))
}
