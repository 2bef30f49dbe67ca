//! The executable's own code in memory: most of it is used once, at the start, and would stay.

use std::io;
use std::time::Duration;

use rustix::mm::{Advice, madvise};
use tokio_util::sync::CancellationToken;

/// When code that is not used is let go for the first time, so that what the start still does is over.
const FIRST: Duration = Duration::from_secs(2);

/// How often it is done again.
const PAUSE: Duration = Duration::from_mins(1);

/// Lets go of code that is not used, now and every minute, until `end`. Where the kernel does not allow it, it stays.
pub async fn keep_small(end: CancellationToken) {
    let mut pause = FIRST;
    loop {
        tokio::select! {
            () = end.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        if let Err(error) = let_go() {
            tracing::debug!(%error, "code that is not used stays in memory");
            return;
        }
        pause = PAUSE;
    }
}

/// Tells the kernel that the executable's code is not needed just now: it goes from this process, and is what is reclaimed first
/// where memory is short. What is used again is mapped again from the page cache, a fault for each 64 KiB.
///
/// # Errors
/// Where the kernel does not tell what is mapped, or refuses (madvise(2), Linux 5.4).
fn let_go() -> io::Result<()> {
    let executable = std::fs::read_link("/proc/self/exe")?;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    for (start, len) in code_of(&maps, &executable.to_string_lossy()) {
        let start = std::ptr::with_exposed_provenance_mut(start);
        #[allow(
            unsafe_code,
            reason = "no other way to let go of pages; code of a file is never written to, so that none is lost"
        )]
        // SAFETY: the range is private code of a file, mapped for as long as the process lives: its pages are the file's.
        unsafe {
            madvise(start, len, Advice::LinuxCold)?;
            madvise(start, len, Advice::LinuxDontNeed)?;
        }
    }
    Ok(())
}

/// Start and length of the code of an executable, by what `/proc/self/maps` says (proc(5)). What may be written to, or was, as the
/// read-only data that the loader relocates, is none of it.
fn code_of(maps: &str, executable: &str) -> Vec<(usize, usize)> {
    let of = |line: &str| {
        let mut words = line.splitn(6, ' ');
        let (range, rights) = (words.next()?, words.next()?);
        let path = words.nth(3)?.trim_start();
        let (start, end) = range.split_once('-')?;
        let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
        (rights == "r-xp" && path == executable).then_some((start, end.checked_sub(start)?))
    };
    maps.lines().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0a00000-55d0c130e000 r--p 00000000 fe:00 1234                       /usr/bin/clusterstack
55d0c130e000-55d0c2fa3000 r-xp 0090d000 fe:00 1234                       /usr/bin/clusterstack
55d0c2fa3000-55d0c30d3000 r--p 025a1000 fe:00 1234                       /usr/bin/clusterstack
55d0c30d3000-55d0c30e4000 rw-p 026d0000 fe:00 1234                       /usr/bin/clusterstack
7f1d2c000000-7f1d2c021000 rw-p 00000000 00:00 0 \n\
7f1d3c426000-7f1d3c57b000 r-xp 00026000 fe:00 99                         /usr/lib/x86_64-linux-gnu/libc.so.6
7ffd6f1f2000-7ffd6f1f4000 r-xp 00000000 00:00 0                          [vdso]
nonsense
";

    #[test]
    fn code_is_what_is_executed_of_the_file_itself() {
        let code = (0x55d0_c130_e000, 0x55d0_c2fa_3000 - 0x55d0_c130_e000);
        assert_eq!(code_of(MAPS, "/usr/bin/clusterstack"), [code]);
        assert_eq!(code_of(MAPS, "/usr/bin/another"), []);
        let spaced = "1000-2000 r-xp 00000000 fe:00 1    /a b/c d (deleted)\n";
        assert_eq!(code_of(spaced, "/a b/c d (deleted)"), [(0x1000, 0x1000)]);
    }

    #[test]
    fn what_was_let_go_is_there_when_it_is_called() {
        let before = code_of(MAPS, "/usr/bin/clusterstack");
        for _ in 0..3 {
            let_go().unwrap();
            assert_eq!(code_of(MAPS, "/usr/bin/clusterstack"), before);
        }
    }
}
