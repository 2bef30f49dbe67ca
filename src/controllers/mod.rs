//! Controllers: observe, decide, act, report. Decisions are in `core`, effects in `io`.

mod admission;
mod asked;
mod changes;
pub mod cluster_addon;
pub mod cluster_stack;
pub mod cluster_stack_release;
pub mod cluster_stack_source;
mod controller;
mod deletion;
mod delivery;
mod faults;
mod finalizer;
mod handover;
mod image_provider;
mod image_releases;
mod memory;
mod moves;
pub mod node_images;
mod origin;
mod owned;
mod page;
mod passes;
mod pokes;
mod provider;
mod receiver;
mod release_owner;
mod rights;
mod run;
mod runtime_hooks;
mod seats;
mod served;
mod shard;
mod shared_settings;
mod subscription;
mod turns;
pub mod upgrade;
mod upgrade_plans;

pub use controller::Action;
pub use deletion::Searches;
pub use handover::Handover;
pub use memory::Memory;
pub use moves::Moves;
pub use owned::Owned;
pub use page::Caches;
pub use pokes::{Poked, Pokes};
pub use run::RunError;
pub use seats::Seats;
pub use shared_settings::run;
pub use turns::Lines;

use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use kube::runtime::reflector::Store;
use thiserror::Error;
use tokio::sync::{SetOnce, watch};
use tokio_util::sync::CancellationToken;

use crate::api::operator_shard::ShardSettings;
use crate::api::{ClusterStack, ClusterStackRelease, ClusterStackSource, RECONCILE_AT, Reason, WATCH_LABEL};
use crate::core::image::build::Hope;
use crate::core::retry::{self, ErrorClass};
use crate::io::apply::refusal;
use crate::io::client::{ClientError, Clients};
use crate::io::events::Events;
use crate::io::fence;
use crate::io::image::log_server::Logs;
use crate::io::image::task::StepError;
use crate::io::inputs::Inputs;
use crate::io::kinds::Kinds;
use crate::io::place::Standing;
use crate::io::release::Releases;
use crate::io::stored::Unreadable;
use crate::io::telemetry::Metrics;
use crate::io::watch::Watches;
use crate::io::workload::Workloads;
use crate::settings::{Live, Settings};

/// What the controllers share.
pub struct Context {
    /// Clients of the management cluster.
    pub clients: Clients,
    /// Which kinds it serves.
    pub kinds: Arc<Kinds>,
    /// Watches of applied objects.
    pub watches: Arc<Watches>,
    /// Events on our objects.
    pub events: Events,
    /// Objects that can't be read.
    pub unreadable: Unreadable,
    /// Metrics.
    pub metrics: Metrics,
    /// Sources and the store.
    pub releases: Releases,
    /// Logs of node images' builds.
    pub logs: Arc<Logs>,
    /// What it runs with.
    pub settings: Settings,
    /// What of that may change meanwhile.
    pub live: watch::Receiver<Live>,
    /// Which version of the shared settings that is; none without.
    pub said: watch::Receiver<Option<ShardSettings>>,
    /// ClusterStacks as last seen.
    pub stacks: Store<ClusterStack>,
    /// ClusterStackReleases as last seen.
    pub stack_releases: Store<ClusterStackRelease>,
    /// Which of these a ClusterStack has.
    pub owned: Owned,
    /// ClusterStackSources as last seen.
    pub sources: Store<ClusterStackSource>,
    /// What other controllers have watched, for the web page.
    pub caches: Caches,
    /// Clients of workload clusters.
    pub workloads: Workloads,
    /// Watches of what addons are made from.
    pub inputs: Arc<Inputs>,
    /// Whether all of them were read once.
    pub first_read: FirstRead,
    /// Which objects are ours, where other replicas have theirs.
    pub seats: Seats,
    /// Who is told when that changes.
    pub handover: Handover,
    /// Passes that wait for their turn.
    pub lines: Lines,
    /// Who was told to look at its source now.
    pub pokes: Pokes,
    /// What is remembered between passes and may be lost.
    pub memory: Memory,
    /// What was found by labels for releases that go.
    pub searches: Searches,
    /// What is taken to another management cluster.
    pub moves: Moves,
    /// Namespaces that stood a moment ago.
    pub standing: Standing,
    /// Ends the intake of work: nothing begins any more.
    pub intake: CancellationToken,
    /// Ends long reads when the process ends.
    pub cancel: CancellationToken,
}

/// Whether the kinds of ours were read once: a pass must not take for missing what was not read yet.
///
/// `Store::wait_until_ready` wakes one of those who wait; here many do.
#[derive(Default)]
pub struct FirstRead {
    stacks: SetOnce<()>,
    releases: SetOnce<()>,
    sources: SetOnce<()>,
}

impl FirstRead {
    async fn done(&self) {
        self.stacks.wait().await;
        self.releases.wait().await;
        self.sources.wait().await;
    }

    /// Whether it is; before that no pass begins.
    fn is_done(&self) -> bool {
        self.stacks.initialized() && self.releases.initialized() && self.sources.initialized()
    }
}

/// What ends a pass before its end. What a user can mend is said in a condition instead.
#[derive(Debug, Error)]
pub enum Error {
    /// The API server did not do what was asked.
    #[error("{doing}: {error}")]
    Api {
        /// What was tried, on what.
        doing: String,
        /// What it said.
        error: kube::Error,
    },
    /// No client could be made.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// What a build left half-made can't be removed.
    #[error("removing what the build of {object} left: {error}")]
    Tidying {
        /// The image's object.
        object: String,
        /// Why.
        error: StepError,
    },
    /// An object that decides what may be done can't be read.
    #[error("{0}")]
    Unreadable(String),
    /// A fault of ours. The log has its words; they may hold anything.
    #[error("a fault in the operator itself ended the pass: its log says where. Please report it")]
    Panicked,
    /// The pass took too long.
    #[error("the pass did not end within {} s", PASS.as_secs())]
    TimedOut,
}

impl Error {
    /// What was tried and what came of it, without what the API server's answer holds beside its words.
    fn message(&self) -> String {
        match self {
            Self::Api { doing, error } => format!("{doing}: {}", refusal(error).message),
            other => other.to_string(),
        }
    }

    /// Whether a write was not sent, for another replica has the object now.
    fn is_not_ours(&self) -> bool {
        matches!(self, Self::Api { error, .. } if fence::is_not_ours(error))
    }

    /// Whether what was decided on is not what is there any more.
    /// Whether something is wrong: that the object was changed meanwhile, or is another replica's by now, is usual.
    fn is_failure(&self) -> bool {
        !self.is_overtaken() && !self.is_not_ours()
    }

    fn is_overtaken(&self) -> bool {
        matches!(self, Self::Api { error: kube::Error::Api(status), .. } if status.code == 409 && status.reason == "Conflict")
    }

    fn class(&self) -> ErrorClass {
        match self {
            // It goes with its namespace.
            Self::Api { error, .. } if refusal(error).reason == Reason::NamespaceTerminating => ErrorClass::Waiting,
            Self::Api { .. } | Self::TimedOut | Self::Panicked => ErrorClass::Transient,
            Self::Tidying { error, .. } if error.hope == Hope::Retry => ErrorClass::Transient,
            Self::Client(_) | Self::Tidying { .. } | Self::Unreadable(_) => ErrorClass::Waiting,
        }
    }
}

/// Says what was tried when the API server refused.
trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> Doing<T> for Result<T, kube::Error> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|error| Error::Api { doing: what(), error })
    }
}

/// Longest time for one pass: an API server that never answers must not hold a worker for ever.
const PASS: Duration = Duration::from_mins(6);

impl Context {
    /// How often a source is polled whose object says this, or nothing.
    fn interval(&self, text: Option<&str>) -> Duration {
        self.live.borrow().interval(text)
    }

    /// Whether the flags leave this object to us.
    fn is_ours<K: ResourceExt>(&self, object: &K) -> bool {
        self.settings.watch_filter.as_ref().is_none_or(|value| object.labels().get(WATCH_LABEL) == Some(value))
    }

    /// The same for one that is worked on for another: by the label of that, where it is known.
    fn is_of_ours<K: seats::Rooted>(&self, object: &K) -> bool {
        let filter = self.settings.watch_filter.as_ref();
        filter.is_none_or(|value| object.root(self).is_some_and(|root| root.watch_filter == *value))
    }

    /// When to come back after an error of this class.
    fn after(&self, class: ErrorClass, uid: &str) -> Duration {
        retry::delay(class, self.memory.failed(uid), rand::random())
    }

    /// What is done with an error that ended a pass.
    fn on_error<K: ResourceExt>(&self, object: &K, error: &Error) -> Action {
        let name = format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any());
        let uid = object.uid().unwrap_or_default();
        let pause = |class| retry::delay(class, self.memory.ended_early(&uid), rand::random());
        if error.is_not_ours() {
            tracing::debug!(object = name, "another replica has it now");
            return Action::await_change();
        }
        if error.is_overtaken() {
            tracing::debug!(object = name, "it was changed meanwhile; it is looked at again");
            return Action::requeue(pause(ErrorClass::Transient));
        }
        tracing::warn!(object = name, %error, "pass ended early; it is tried again");
        Action::requeue(pause(error.class()))
    }
}

/// The annotation that asks to look again; empty without it. No longer than the status may repeat it.
fn reconcile_at<K: ResourceExt>(object: &K) -> String {
    asked_at(object, RECONCILE_AT)
}

/// The value of an annotation that asks for something, as far as a status can repeat it.
fn asked_at<K: ResourceExt>(object: &K, key: &str) -> String {
    let asked = object.annotations().get(key).map_or("", String::as_str);
    asked[..asked.floor_char_boundary(HANDLED_LENGTH)].to_owned()
}

/// Bytes of an annotation that `status.lastHandledReconcileAt` repeats at most: of the 1024 that it may have, a release needs some
/// for the generation of its ClusterStack.
const HANDLED_LENGTH: usize = 900;

/// A pause spread over its upper half, so that many objects don't come back together.
fn spread(pause: Duration) -> Duration {
    pause.mul_f64(0.75 + 0.25 * rand::random::<f64>())
}
