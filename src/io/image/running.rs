//! Builds that are at work in this process, by the UID of their object.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::executor::Stop;

/// Builds at work. Cancelling goes down: from the process to a build to its step.
#[derive(Clone)]
pub struct Running {
    tasks: TaskTracker,
    process: CancellationToken,
    builds: Arc<Mutex<HashMap<String, Work>>>,
}

#[derive(Clone)]
struct Work {
    attempt: u32,
    stop: CancellationToken,
    ended: CancellationToken,
}

impl Running {
    /// None yet; all stop when `process` is cancelled, and are waited for by `tasks`.
    pub fn new(tasks: TaskTracker, process: CancellationToken) -> Self {
        Self { tasks, process, builds: Arc::default() }
    }

    /// Whether nothing new is to begin, for the process ends.
    pub fn is_ending(&self) -> bool {
        self.process.is_cancelled()
    }

    /// The attempt of this object that is at work.
    pub fn attempt(&self, uid: &str) -> Option<u32> {
        self.lock().get(uid).map(|work| work.attempt)
    }

    /// Starts work for an attempt, unless one of this object is at work. `then` is called when it has ended.
    pub fn start<F: Future<Output = ()> + Send + 'static>(
        &self,
        uid: &str,
        attempt: u32,
        work: impl FnOnce(Stop) -> F,
        then: impl FnOnce() + Send + 'static,
    ) -> bool {
        let (stop, ended) = (self.process.child_token(), CancellationToken::new());
        {
            let mut builds = self.lock();
            if builds.contains_key(uid) {
                return false;
            }
            builds.insert(uid.to_owned(), Work { attempt, stop: stop.clone(), ended: ended.clone() });
        }
        let guard = Ended { running: self.clone(), uid: uid.to_owned(), tell: ended, then: Some(Box::new(then)) };
        let work = work(Stop { build: stop, process: self.process.clone() });
        self.tasks.spawn(async move {
            let _guard = guard;
            work.await;
        });
        true
    }

    /// Stops what is at work for an object, and waits for its end.
    pub async fn stop(&self, uid: &str) {
        let work = self.lock().get(uid).cloned();
        if let Some(work) = work {
            work.stop.cancel();
            work.ended.cancelled().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Work>> {
        self.builds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes work off the list, however it ends.
struct Ended {
    running: Running,
    uid: String,
    tell: CancellationToken,
    then: Option<Box<dyn FnOnce() + Send>>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.running.lock().remove(&self.uid);
        self.tell.cancel();
        if let Some(then) = self.then.take() {
            then();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_build_of_an_object_runs_and_stops_on_request() {
        let tasks = TaskTracker::new();
        let running = Running::new(tasks.clone(), CancellationToken::new());
        let (ended, mut told) = tokio::sync::mpsc::unbounded_channel();
        let until_stopped = |stop: Stop| async move { stop.build.cancelled().await };
        let said = ended.clone();
        assert!(running.start("a", 1, until_stopped, move || said.send("a").unwrap()));
        assert!(!running.start("a", 2, until_stopped, || ()));
        assert!(running.start("b", 7, until_stopped, move || ended.send("b").unwrap()));
        assert_eq!((running.attempt("a"), running.attempt("b"), running.attempt("c")), (Some(1), Some(7), None));
        running.stop("a").await;
        assert_eq!((running.attempt("a"), told.recv().await), (None, Some("a")));
        // Nothing is there to be stopped.
        running.stop("a").await;
        running.process.cancel();
        tasks.close();
        tasks.wait().await;
        assert_eq!((running.attempt("b"), told.recv().await), (None, Some("b")));
    }

    #[tokio::test]
    async fn work_that_breaks_off_is_off_the_list() {
        let running = Running::new(TaskTracker::new(), CancellationToken::new());
        let (ended, told) = tokio::sync::oneshot::channel();
        running.start("a", 1, |_| async { panic!("on purpose") }, move || ended.send(()).unwrap());
        told.await.unwrap();
        assert_eq!(running.attempt("a"), None);
    }
}
