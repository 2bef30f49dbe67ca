//! `clusterstack operator`: the process around the controllers.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{output, report};
use crate::io::members;
use crate::io::telemetry;
use crate::io::traces::{Collector, Traces};
use crate::settings::{Flags, LogFormat};

/// Exit code of a process that was told twice to end, as after SIGINT.
const ABORTED: u8 = 130;

/// Runs the operator until SIGTERM or SIGINT; a second signal doesn't wait for what is under way.
///
/// # Errors
/// Flags that can't be used, and what keeps the operator from working.
pub fn run(flags: Flags) -> Result<ExitCode> {
    with_small_pages();
    with_all_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    // A try to begin anew that failed has left the signal of a broken pipe as it is by default, which would end us.
    let _pipe = runtime.block_on(async { signal(SignalKind::pipe()) });
    let traces = traces_of(&flags, runtime.handle())?;
    telemetry::log(flags.log_level, flags.log_format, traces.as_ref());
    telemetry::log_panics();
    let format = flags.log_format;
    // What can't be used is said before anything begins.
    let result = match flags.clone().settings() {
        Ok(_) => runtime.block_on(until_stopped(flags)),
        Err(error) => Err(error.into()),
    };
    if let Some(traces) = traces {
        traces.end();
    }
    // What still runs is no longer waited for: a build of ours goes on from its checkpoint.
    runtime.shutdown_timeout(Duration::from_millis(100));
    match result {
        Err(error) if format == LogFormat::Json => Ok(report::logged(&error)),
        result => result,
    }
}

/// Takes as many open files as it may have, as every program in Go does: a connection is one, and containers begin with 1024 of them
/// where systemd's default counts. The tools of builds have a limit of their own.
fn with_all_files() {
    let files = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }) {
        output::note!("warning: no more than {:?} files can be open at once: {error}", files.current);
    }
}

/// Begins anew without large pages, which is inherited: what runs for months needs its memory more than the moment that small
/// pages cost, and the allocator has taken some megabytes in large ones before any code of ours runs. A kernel without them is no
/// failure, nor is an executable that can't be found again.
fn with_small_pages() {
    let has_none = rustix::thread::transparent_huge_pages_are_disabled();
    if has_none.unwrap_or(true) || rustix::thread::disable_transparent_huge_pages(true).is_err() {
        return;
    }
    let mut arguments = std::env::args_os();
    let (name, Ok(executable)) = (arguments.next(), std::env::current_exe()) else { return };
    let mut command = Command::new(executable);
    if let Some(name) = name {
        command.arg0(name);
    }
    // It returns only where it fails.
    let _ = command.args(arguments).exec();
}

/// Where traces are sent, if anywhere (OpenTelemetry's "General SDK Configuration").
fn traces_of(flags: &Flags, runtime: &Handle) -> Result<Option<Traces>> {
    let said = |name: &str| std::env::var(name).ok();
    if said("OTEL_SDK_DISABLED").is_some_and(|off| off.eq_ignore_ascii_case("true"))
        || said("OTEL_TRACES_EXPORTER").is_some_and(|exporter| exporter == "none")
    {
        return Ok(None);
    }
    let traces = said("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    let collector = Collector::of(flags.otlp_endpoint.as_deref(), traces.as_deref())?;
    let send = |collector| Traces::to(&collector, &members::identity(), runtime.clone());
    Ok(collector.map(send).transpose()?)
}

async fn until_stopped(flags: Flags) -> Result<ExitCode> {
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    let stop = CancellationToken::new();
    let work = crate::controllers::run(flags, stop.clone());
    tokio::pin!(work);
    tokio::select! {
        result = &mut work => return finished(result),
        signal = signals.next() => tracing::info!(signal, "asked to stop; ask again to stop at once"),
    }
    stop.cancel();
    tokio::select! {
        result = &mut work => finished(result),
        signal = signals.next() => {
            tracing::warn!(signal, "stopping at once");
            Ok(ExitCode::from(ABORTED))
        }
    }
}

fn finished<E: std::error::Error + Send + Sync + 'static>(result: Result<(), E>) -> Result<ExitCode> {
    result.map(|()| ExitCode::SUCCESS).context("the operator ended")
}

/// The signals that ask a process to end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
