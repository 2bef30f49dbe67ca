//! What ends the process before its time, so that it begins anew.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::SetOnce;
use tokio_util::sync::CancellationToken;

use super::run::{ENDING, RunError};
use crate::io::members::Members;

/// What ended by a panic and is needed by all: the process ends with it, to begin anew, and does not go on without.
#[derive(Clone, Default)]
pub(super) struct Faults(Arc<SetOnce<Fault>>);

/// Why the process ends.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// This ended by a panic.
    Panic(&'static str),
    /// The API server went back in time.
    Rewound,
}

impl From<Fault> for RunError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Panic(what) => Self::Fault(what),
            Fault::Rewound => Self::Rewound,
        }
    }
}

impl Faults {
    /// The same work; a panic in it is a fault.
    pub(super) fn watched<W: Future + Send>(
        &self,
        what: &'static str,
        work: W,
    ) -> impl Future<Output = ()> + Send + use<W> {
        let faults = Arc::clone(&self.0);
        async move {
            if AssertUnwindSafe(work).catch_unwind().await.is_err() {
                // The first one is told.
                let _ = faults.set(Fault::Panic(what));
            }
        }
    }

    /// Ends the process, too, when what is known turns out to be of a time that never was.
    pub(super) fn rewound(
        &self,
        members: Members,
        intake: CancellationToken,
    ) -> impl Future<Output = ()> + Send + use<> {
        let faults = Arc::clone(&self.0);
        async move {
            tokio::select! {
                () = intake.cancelled() => {}
                () = members.rewound() => drop(faults.set(Fault::Rewound)),
            }
        }
    }

    /// Goes on with `work` to its end, or ends it by both tokens at a fault.
    pub(super) async fn end<T>(
        &self,
        mut work: impl Future<Output = T> + Unpin,
        (intake, cancel): (&CancellationToken, &CancellationToken),
    ) -> Result<(), RunError> {
        tokio::select! {
            _ = &mut work => Ok(()),
            fault = self.0.wait() => {
                intake.cancel();
                cancel.cancel();
                let _ = tokio::time::timeout(ENDING, work).await;
                Err((*fault).into())
            }
        }
    }
}
