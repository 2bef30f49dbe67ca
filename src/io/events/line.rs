//! The line of events.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::condition::Reason;

/// Events that wait; what is said beyond that is written by who says it.
pub(super) const WAITING: usize = 4096;

/// How late an event may be for what matters more.
const LATE: Duration = Duration::from_secs(30);

/// How often it is looked whether there is room.
const LOOK: Duration = Duration::from_millis(50);

/// How long the end of the process waits for what was said.
const LAST: Duration = Duration::from_secs(3);

/// What was said of an object.
pub(super) struct Said {
    pub(super) at: Instant,
    pub(super) object: ObjectReference,
    pub(super) reason: Reason,
    pub(super) note: String,
}

/// Writes what is said, in its order: when there is room, or late, or at the end.
pub(super) async fn written<W: Future<Output = ()>>(
    mut line: mpsc::Receiver<Said>,
    has_room: impl Fn() -> bool,
    write: impl Fn(Said) -> W,
    end: CancellationToken,
) {
    let all = async {
        loop {
            let said = tokio::select! {
                biased;
                () = end.cancelled(), if !line.is_closed() => {
                    // What is in line comes still.
                    line.close();
                    continue;
                }
                said = line.recv() => said,
            };
            let Some(said) = said else { return };
            while !(has_room() || said.at.elapsed() >= LATE || end.is_cancelled()) {
                tokio::time::sleep(LOOK).await;
            }
            write(said).await;
        }
    };
    let last = async {
        end.cancelled().await;
        tokio::time::sleep(LAST).await;
    };
    tokio::select! {
        () = all => {}
        () = last => tracing::warn!("events are lost: the API server does not take them"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;

    fn said(note: &str) -> Said {
        Said { at: Instant::now(), object: ObjectReference::default(), reason: Reason::Ready, note: note.to_owned() }
    }

    /// A line, whether there is room, and what was written.
    struct Line {
        say: mpsc::Sender<Said>,
        has_room: Arc<AtomicBool>,
        written: Arc<Mutex<Vec<String>>>,
        end: CancellationToken,
        work: tokio::task::JoinHandle<()>,
    }

    /// `takes`: how long each takes to be written.
    fn line(takes: Duration) -> Line {
        let (say, line) = mpsc::channel(WAITING);
        let (has_room, notes, end) =
            (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Vec<String>>>::default(), CancellationToken::new());
        let (room, into, stop) = (Arc::clone(&has_room), Arc::clone(&notes), end.clone());
        let write = move |said: Said| {
            let into = Arc::clone(&into);
            async move {
                tokio::time::sleep(takes).await;
                into.lock().unwrap().push(said.note);
            }
        };
        let work = tokio::spawn(written(line, move || room.load(Ordering::Relaxed), write, stop));
        Line { say, has_room, written: notes, end, work }
    }

    impl Line {
        fn written(&self) -> Vec<String> {
            self.written.lock().unwrap().clone()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn events_wait_for_room_but_not_for_ever() {
        let line = line(Duration::ZERO);
        line.say.send(said("a")).await.unwrap();
        tokio::time::sleep(LATE.saturating_sub(2 * LOOK)).await;
        assert!(line.written().is_empty());
        line.say.send(said("b")).await.unwrap();
        tokio::time::sleep(3 * LOOK).await;
        assert_eq!(line.written(), ["a"]);
        line.has_room.store(true, Ordering::Relaxed);
        tokio::time::sleep(LOOK).await;
        assert_eq!(line.written(), ["a", "b"]);
        // There is room: nothing waits.
        line.say.send(said("c")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(line.written(), ["a", "b", "c"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_said_is_written_at_the_end() {
        let line = line(Duration::ZERO);
        for note in ["a", "b"] {
            line.say.send(said(note)).await.unwrap();
        }
        line.end.cancel();
        line.work.await.unwrap();
        assert_eq!(*line.written.lock().unwrap(), ["a", "b"]);
        assert!(line.say.try_send(said("c")).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_takes_nothing_holds_no_end_up() {
        let line = line(Duration::from_secs(2));
        for note in ["a", "b", "c"] {
            line.say.send(said(note)).await.unwrap();
        }
        let begin = Instant::now();
        line.end.cancel();
        line.work.await.unwrap();
        assert_eq!(*line.written.lock().unwrap(), ["a"]);
        assert_eq!(begin.elapsed(), LAST);
    }
}
