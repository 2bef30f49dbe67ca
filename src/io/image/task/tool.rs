//! Runs a tool beside the operator, under a supervisor of its own.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{ChildStdout, Command};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::StepError;
use super::processes;
use super::supervisor::{Ended, Order, SUBCOMMAND};
use crate::core::image::log::Lines;

/// Bytes that are read at once.
const CHUNK: usize = 64 * 1024;
/// Bytes of output that are taken in a second; who writes more waits.
const BYTES_PER_SECOND: usize = 8 << 20;
/// Lines of a second that are kept.
const LINES_PER_SECOND: usize = 500;
/// How long is waited beyond a tool's grace before it is ended without its supervisor.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of what a supervisor says.
const ANSWER: u64 = 64 * 1024;

/// Runs a tool; `line` is given its output. When `cancel` is cancelled the tool and all that it started are ended first.
///
/// # Errors
/// It can't be started, or was cancelled. That it failed is no error.
pub(super) async fn run(
    launcher: &Path,
    order: &Order,
    cancel: &CancellationToken,
    line: &mut (dyn FnMut(&[u8]) + Send),
) -> Result<Ended, StepError> {
    let cannot = |what: &str, error: &dyn std::fmt::Display| {
        StepError::transient(format!("running {} failed: {what}: {error}; it is tried again", order.program.display()))
    };
    let mut child = Command::new(launcher)
        .arg(SUBCOMMAND)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| cannot("its supervisor can't be started", &error))?;
    let (Some(mut input), Some(output), Some(answer)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(cannot("its supervisor can't be started", &"it has no pipes"));
    };
    let text = serde_json::to_string(order).map_err(|error| cannot("its order can't be written", &error))?;
    let written = input.write_all(format!("{text}\n").as_bytes()).await;
    written.map_err(|error| cannot("its supervisor does not listen", &error))?;
    let mut said = Vec::new();
    let mut answer = answer.take(ANSWER);
    let ended = {
        let whole = async {
            let waited = async {
                let status = child.wait().await;
                if !status.as_ref().is_ok_and(ExitStatus::success) {
                    // It was killed, and left its tool alone, which keeps the output open.
                    end_without_supervisor(order).await;
                }
                status
            };
            let ((), _, status) = tokio::join!(pump(output, line), answer.read_to_end(&mut said), waited);
            status
        };
        tokio::pin!(whole);
        let cancelled = tokio::select! {
            status = &mut whole => Some(status),
            () = cancel.cancelled() => None,
        };
        if let Some(status) = cancelled {
            Some(status)
        } else {
            // The supervisor takes the end of its input as the word to stop.
            drop(input);
            tokio::time::timeout(order.grace + PATIENCE, &mut whole).await.ok()
        }
    };
    if ended.is_none() {
        let _ = child.start_kill();
        end_without_supervisor(order).await;
    }
    if cancel.is_cancelled() {
        return Err(StepError::cancelled());
    }
    match serde_json::from_slice(said.trim_ascii()) {
        Ok(Ended::Failed(problem)) => Err(cannot("it can't be started", &problem)),
        Ok(ended) => Ok(ended),
        // It was killed, and left its tool alone.
        Err(_) => {
            end_without_supervisor(order).await;
            Err(cannot("its supervisor ended early", &last_words(&said, ended.and_then(Result::ok))))
        }
    }
}

/// What a supervisor said, or how it ended if that was nothing.
fn last_words(said: &[u8], status: Option<ExitStatus>) -> String {
    match (String::from_utf8_lossy(said).trim(), status) {
        ("", Some(status)) => format!("it ended by {status} and said nothing"),
        ("", None) => "it said nothing".to_owned(),
        (said, _) => said.to_owned(),
    }
}

async fn end_without_supervisor(order: &Order) {
    if let (Ok(lock), Some(directory)) = (std::fs::File::open(&order.lock), order.lock.parent()) {
        processes::end_holders(directory, &lock, order.grace).await;
    }
}

/// Takes output to its end, at a bounded rate, and keeps a bounded number of lines.
async fn pump(mut output: ChildStdout, line: &mut (dyn FnMut(&[u8]) + Send)) {
    let mut lines = Lines::default();
    let mut buffer = vec![0; CHUNK];
    let (mut second, mut bytes, mut kept, mut left_out) = (Instant::now(), 0, 0_usize, 0_usize);
    loop {
        let read = output.read(&mut buffer).await.unwrap_or(0);
        if second.elapsed() >= Duration::from_secs(1) || read == 0 {
            if left_out > 0 {
                line(format!("({left_out} lines left out: more than {LINES_PER_SECOND} in a second)").as_bytes());
            }
            (second, bytes, kept, left_out) = (Instant::now(), 0, 0, 0);
        }
        let mut take = |text: &[u8]| {
            if kept < LINES_PER_SECOND {
                kept += 1;
                line(text);
            } else {
                left_out += 1;
            }
        };
        if read == 0 {
            lines.end(&mut take);
            return;
        }
        lines.take(&buffer[..read], &mut take);
        bytes += read;
        if bytes > BYTES_PER_SECOND {
            tokio::time::sleep_until(second + Duration::from_secs(1)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_supervisor_that_said_nothing_is_told_by_its_end() {
        for (said, status, expected) in [
            ("its lock is gone\n", Some(ExitStatus::from_raw(9)), "its lock is gone"),
            ("", Some(ExitStatus::from_raw(9)), "it ended by signal: 9 (SIGKILL) and said nothing"),
            (" \n", None, "it said nothing"),
        ] {
            assert_eq!(last_words(said.as_bytes(), status), expected);
        }
    }
}
