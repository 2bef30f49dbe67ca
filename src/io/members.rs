//! The replicas that share the work: a Lease for each, kept, read and given back.
//!
//! What is decided from them is in [`crate::core::share::view`]. Leases are read by lists, which are as fresh as the API
//! server's own knowledge; a watch says when to look at once.

mod clock;
mod keeper;
mod lease;
mod patience;
mod trace;
mod word;

pub use word::Word;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use self::clock::Clock;
use self::keeper::Keeper;
use crate::core::share::view::{Role, Share};
use crate::core::share::{Member, Reach, Root};

/// A name for this process: its pod, or its host, with a random tail.
pub fn identity() -> String {
    let host = std::env::var("POD_NAME").or_else(|_| std::env::var("HOSTNAME")).unwrap_or_else(|_| "local".to_owned());
    format!("{host}_{:08x}", rand::random::<u32>())
}

/// The members as this replica sees them, and what is its own.
#[derive(Clone)]
pub struct Members(Arc<Shared>);

struct Shared {
    clock: Clock,
    state: Mutex<State>,
    changes: watch::Sender<Turn>,
    /// Up to which change those who work have stopped what they lost.
    heeded: watch::Sender<u64>,
    alone: bool,
    /// Where the Leases are.
    namespace: String,
    /// What others are told, the newest last.
    told: Mutex<Vec<(u64, Word)>>,
    tells: Notify,
    /// What others told us.
    heard: broadcast::Sender<Word>,
    /// What the API server has is older than what it had.
    rewound: CancellationToken,
}

struct State {
    share: Arc<Share>,
    /// Until when we may act; `None` for never, or for ever where it is alone.
    valid_until: Option<Duration>,
    /// Number of the set of members.
    number: u64,
    /// Writes that began under this set.
    writes: TaskTracker,
    /// Those that began before and may be under way.
    before: Vec<TaskTracker>,
}

/// A change of what is ours.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Its number.
    pub number: u64,
    /// What is ours now.
    pub share: Arc<Share>,
}

/// A write that is under way.
#[derive(Debug)]
pub struct Writing {
    _token: Option<TaskTrackerToken>,
}

/// The Lease of this process, to be given back at its end.
pub struct Membership {
    end: CancellationToken,
    keeping: Option<JoinHandle<()>>,
}

impl Members {
    /// A process that is alone: all is its own, and it keeps no Lease.
    pub fn alone() -> Self {
        Self::with(Share::alone(), true, "")
    }

    /// Waits until the API server has an older state than it had, as after a restore of etcd: what was read and is watched is of a
    /// time that never was. One that is alone keeps no Lease, and never sees it.
    pub async fn rewound(&self) {
        self.0.rewound.cancelled().await;
    }

    pub(super) fn with(share: Share, alone: bool, namespace: &str) -> Self {
        let share = Arc::new(share);
        let (changes, _) = watch::channel(Turn { number: 0, share: Arc::clone(&share) });
        let (heeded, _) = watch::channel(0);
        let writes = TaskTracker::new();
        let state = State { share, valid_until: None, number: 0, writes, before: Vec::new() };
        let namespace = namespace.to_owned();
        Self(Arc::new(Shared {
            clock: Clock::new(),
            state: Mutex::new(state),
            changes,
            heeded,
            alone,
            namespace,
            told: Mutex::default(),
            tells: Notify::new(),
            heard: broadcast::channel(word::KEPT).0,
            rewound: CancellationToken::new(),
        }))
    }

    /// Joins those whose Leases are in a namespace, as `identity`. It may act when all of them know of it, and on other
    /// objects when all know of another `reach`.
    pub fn join(client: Client, namespace: &str, identity: &str, reach: watch::Receiver<Reach>) -> (Self, Membership) {
        let members = Self::with(Share::default(), false, namespace);
        let end = CancellationToken::new();
        let api: Api<Lease> = Api::namespaced(client, namespace);
        let keeper = Keeper::new(api, members.clone(), identity, reach);
        let keeping = tokio::spawn(keeper.run(end.clone()));
        (members, Membership { end, keeping: Some(keeping) })
    }

    /// Whether no other replica is to be looked out for.
    pub fn is_alone(&self) -> bool {
        self.0.alone
    }

    /// Where the Leases are.
    pub fn namespace(&self) -> &str {
        &self.0.namespace
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.0.clock.now()
    }

    fn is_valid(&self, state: &State) -> bool {
        self.0.alone || state.valid_until.is_some_and(|until| self.now() < until)
    }

    /// Waits until this replica may act for the first time.
    pub async fn joined(&self) {
        let mut changes = self.changes();
        while !self.is_valid(&self.lock()) {
            // A term may begin without a change of what is ours.
            let _ = tokio::time::timeout(Duration::from_secs(1), changes.changed()).await;
        }
    }

    /// What may be done with a root now.
    pub fn role(&self, root: &Root) -> Role {
        let state = self.lock();
        if self.is_valid(&state) { state.share.role(root) } else { Role::Nothing }
    }

    /// Whether this replica does what one alone does.
    pub fn leads(&self) -> bool {
        let state = self.lock();
        self.is_valid(&state) && state.share.leads()
    }

    /// Whether this replica registers what it serves.
    pub fn registers(&self, what: &str) -> bool {
        let state = self.lock();
        self.is_valid(&state) && state.share.registers(what)
    }

    /// Whether no replica serves it, as far as that is known.
    pub fn is_unserved(&self, what: &str) -> bool {
        let state = self.lock();
        self.is_valid(&state) && state.share.is_unserved(what)
    }

    /// Number of the last change of what is ours.
    pub fn number(&self) -> u64 {
        self.lock().number
    }

    /// What is ours, whether or not the term lasts.
    pub fn share(&self) -> Arc<Share> {
        Arc::clone(&self.lock().share)
    }

    /// Begins a write, if what is ours is as `may` says; what is returned is kept until it is answered.
    pub fn enter(&self, may: impl FnOnce(&Share) -> bool) -> Option<Writing> {
        if self.0.alone {
            return Some(Writing { _token: None });
        }
        let state = self.lock();
        let may = self.is_valid(&state) && may(&state.share);
        may.then(|| Writing { _token: Some(state.writes.token()) })
    }

    /// Tells of changes of what is ours. Who is told stops what was lost and says so by [`Self::heed`].
    pub fn changes(&self) -> watch::Receiver<Turn> {
        self.0.changes.subscribe()
    }

    /// All that a change took from us has stopped, but for writes, which are waited for anyway.
    pub fn heed(&self, number: u64) {
        self.0.heeded.send_replace(number);
    }

    /// What is ours is this now. `moves` says that there are other members.
    pub(super) fn set(&self, share: Share, valid_until: Option<Duration>, moves: bool) {
        let turn = {
            let mut state = self.lock();
            state.share = Arc::new(share);
            state.valid_until = valid_until;
            state.number += 1;
            if moves {
                let writes = std::mem::take(&mut state.writes);
                writes.close();
                state.before.retain(|tracker| !tracker.is_empty());
                state.before.push(writes);
            }
            Turn { number: state.number, share: Arc::clone(&state.share) }
        };
        self.0.changes.send_replace(turn);
    }

    fn renewed(&self, valid_until: Option<Duration>) {
        self.lock().valid_until = valid_until;
    }

    /// Resolves when nothing is under way any more that began before the last change of members.
    pub(super) fn drained(&self) -> impl Future<Output = ()> + Send + use<> {
        let (before, number) = {
            let state = self.lock();
            (state.before.clone(), state.number)
        };
        let shared = Arc::clone(&self.0);
        async move {
            for writes in before {
                writes.wait().await;
            }
            // Nobody has begun to work where nobody listens.
            if shared.changes.receiver_count() > 0 {
                let mut heeded = shared.heeded.subscribe();
                let _ = heeded.wait_for(|heeded| *heeded >= number).await;
            }
        }
    }

    /// Tells the other members that an object is to be looked at, by our Lease.
    pub fn tell(&self, word: Word) {
        let mut told = self.0.told.lock().unwrap_or_else(PoisonError::into_inner);
        let number = told.last().map_or(1, |(last, _)| last + 1);
        told.push((number, word));
        let surplus = told.len().saturating_sub(word::KEPT);
        told.drain(..surplus);
        drop(told);
        self.0.tells.notify_one();
    }

    /// What other members tell.
    pub fn heard(&self) -> broadcast::Receiver<Word> {
        self.0.heard.subscribe()
    }

    /// The members that live.
    pub fn list(&self) -> Vec<Member> {
        self.share().members().cloned().collect()
    }
}

impl Membership {
    /// Of a process that is alone.
    pub fn none() -> Self {
        Self { end: CancellationToken::new(), keeping: None }
    }

    /// Gives the Lease back, so that others take over at once. Nothing may be under way any more.
    pub async fn release(mut self) {
        self.end.cancel();
        if let Some(keeping) = self.keeping.take() {
            // A task that panicked has nothing left to give back.
            let _ = keeping.await;
        }
    }

    /// Lets the Lease run out, for the API server may still be doing what was asked of it: others wait as they do for one that died.
    pub async fn abandon(mut self) {
        if let Some(keeping) = self.keeping.take() {
            keeping.abort();
            let _ = keeping.await;
        }
    }
}
