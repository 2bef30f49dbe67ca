//! Processes of tools: found by what they hold or by who started them, and ended. A process is looked at again between its
//! descriptor and its signal, so that none that got its number meanwhile is hit.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

const LOOK: Duration = Duration::from_millis(50);
/// How often processes are killed that do not go away: one may start another meanwhile.
const KILLS: usize = 100;

/// Ends those that hold the lock `file`, or have a directory in `path` as their own: by SIGTERM, after `grace` by SIGKILL.
/// Whether the lock is free at the end.
pub(super) async fn end_holders(path: &Path, file: &File, grace: Duration) -> bool {
    let is_free = || flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
    let Ok(lock) = file.metadata() else { return false };
    let (device, inode) = (lock.dev(), lock.ino());
    let is_ours = |pid: Pid| pid != getpid() && (holds(pid, device, inode) || works_in(pid, path));
    signal(&is_ours, Signal::TERM);
    let until = tokio::time::Instant::now() + grace;
    while tokio::time::Instant::now() < until && !is_free() {
        tokio::time::sleep(LOOK).await;
    }
    for _ in 0..KILLS {
        if signal(&is_ours, Signal::KILL) == 0 && is_free() {
            return true;
        }
        tokio::time::sleep(LOOK).await;
    }
    is_free()
}

/// Sends a signal to all that this process started, and that those started; how many there are.
pub(super) fn signal_descendants(signal: Signal) -> usize {
    let own = getpid();
    self::signal(&|pid| pid != own && is_alive(pid) && descends(pid, own), signal)
}

/// Sends a signal to all that `is_meant`; how many there are.
fn signal(is_meant: &dyn Fn(Pid) -> bool, signal: Signal) -> usize {
    let Ok(entries) = fs::read_dir("/proc") else { return 0 };
    let pids = entries.flatten().filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    let mut count = 0;
    for pid in pids.filter(|pid| is_meant(*pid)) {
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        if is_meant(pid) {
            count += 1;
            // It may have ended by itself.
            let _ = pidfd_send_signal(&process, signal);
        }
    }
    count
}

fn of(pid: Pid, name: &str) -> std::path::PathBuf {
    Path::new("/proc").join(pid.as_raw_nonzero().to_string()).join(name)
}

fn holds(pid: Pid, device: u64, inode: u64) -> bool {
    let Ok(open) = fs::read_dir(of(pid, "fd")) else { return false };
    open.flatten()
        .any(|entry| fs::metadata(entry.path()).is_ok_and(|found| (found.dev(), found.ino()) == (device, inode)))
}

fn works_in(pid: Pid, path: &Path) -> bool {
    fs::read_link(of(pid, "cwd")).is_ok_and(|cwd| cwd.starts_with(path))
}

/// State and parent: what stands behind the name in `/proc/<pid>/stat`, which may hold anything itself.
fn stat(pid: Pid) -> Option<(char, i32)> {
    let text = fs::read_to_string(of(pid, "stat")).ok()?;
    let mut words = text.rsplit_once(") ")?.1.split(' ');
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

fn is_alive(pid: Pid) -> bool {
    stat(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

fn descends(pid: Pid, from: Pid) -> bool {
    let mut next = pid;
    while let Some((_, parent)) = stat(next) {
        match Pid::from_raw(parent) {
            Some(parent) if parent == from => return true,
            Some(parent) => next = parent,
            None => return false,
        }
    }
    false
}
