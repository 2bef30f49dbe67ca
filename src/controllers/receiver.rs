//! The receiver: an HTTP endpoint by which Git hosts and registries say that a source has something new.
//!
//! Guarantees: nothing is done for who does not know the token of the object; who does not know it learns nothing about
//! which objects there are; a body is bounded; a Secret is read once in [`tokens::LIFE`], however many ask; who does not
//! know a token keeps nobody out who does; many hooks at once are one poll.

mod tokens;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware;
use axum::routing::post;
use futures::channel::mpsc::UnboundedSender;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::seats::Rooted;
use super::served::not_too_large;
use super::{Context, Poked, pokes};
use crate::api::source::Receiver;
use crate::api::{ClusterStack, ClusterStackSource};
use crate::core::share::view::Role;
use crate::core::source::hook::{MAX_BODY, is_proof};
use crate::io::members::Word;
use crate::io::source::open::secret_data;
use crate::io::tls_server::in_time;

pub(super) use tokens::Tokens;

/// Hooks of one object within this time are one.
const DEBOUNCE: Duration = Duration::from_secs(2);
/// Refusals in a second, over all objects; who comes more often is told that it is too often.
const RATE: f64 = 20.0;
/// Refusals at once.
const BURST: f64 = 60.0;
/// When a refusal is answered: by the time it takes nobody learns whether a Secret was read for it.
const REFUSED: Duration = Duration::from_millis(200);
/// Key of the Secret.
const TOKEN: &str = "token";

/// Where hooks lead.
pub(super) struct Hooks {
    pub(super) ctx: Arc<Context>,
    pub(super) to_stacks: UnboundedSender<ObjectRef<ClusterStack>>,
    pub(super) to_sources: UnboundedSender<ObjectRef<ClusterStackSource>>,
    pub(super) tasks: TaskTracker,
    pub(super) intake: CancellationToken,
    pub(super) bucket: Bucket,
    /// What the Secrets hold.
    pub(super) tokens: Tokens,
    /// Objects that were told about, and when their pass comes.
    pub(super) told: Mutex<HashMap<Poked, Instant>>,
}

/// Tokens that fill up over time.
pub(super) struct Bucket(Mutex<(f64, Instant)>);

impl Bucket {
    /// A full one.
    pub(super) fn full() -> Self {
        Self(Mutex::new((BURST, Instant::now())))
    }

    fn take(&self) -> bool {
        let mut bucket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let filled = (bucket.0 + now.duration_since(bucket.1).as_secs_f64() * RATE).min(BURST);
        let is_there = filled >= 1.0;
        *bucket = (if is_there { filled - 1.0 } else { filled }, now);
        is_there
    }
}

/// Routes of the receiver.
pub(super) fn routes(hooks: Arc<Hooks>) -> Router {
    Router::new()
        .route("/hook/{namespace}/{name}", post(receive))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(MAX_BODY, not_too_large))
        .layer(middleware::from_fn(in_time))
        .with_state(hooks)
}

/// An object that hooks may be about.
enum Target {
    Source(Arc<ClusterStackSource>),
    Stack(Arc<ClusterStack>),
}

impl Target {
    fn kind(&self) -> &'static str {
        match self {
            Self::Source(_) => "ClusterStackSource",
            Self::Stack(_) => "ClusterStack",
        }
    }

    fn receiver(&self) -> Option<&Receiver> {
        match self {
            Self::Source(source) => source.spec.receiver.as_ref(),
            Self::Stack(stack) => stack.spec.receiver.as_ref(),
        }
    }
}

/// Who does not know the token gets one answer, whatever the name.
async fn receive(
    State(hooks): State<Arc<Hooks>>,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, &'static str) {
    let refused_at = Instant::now() + REFUSED;
    let headers: BTreeMap<String, String> = headers
        .iter()
        .filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned())))
        .collect();
    let mut is_known = false;
    for target in hooks.targets(&namespace, &name) {
        if hooks.is_proven(&target, &namespace, &headers, &body).await {
            hooks.tell(target);
            is_known = true;
        }
    }
    if is_known {
        return (StatusCode::ACCEPTED, "accepted\n");
    }
    drop(body);
    let is_rare = hooks.bucket.take();
    tokio::time::sleep_until(refused_at).await;
    if is_rare {
        (StatusCode::UNAUTHORIZED, "not authorized\n")
    } else {
        (StatusCode::TOO_MANY_REQUESTS, "too many requests\n")
    }
}

impl Hooks {
    /// The objects of that name that have a receiver: of both kinds, each with its own token.
    fn targets(&self, namespace: &str, name: &str) -> Vec<Target> {
        let sources = self.ctx.sources.get(&ObjectRef::new(name).within(namespace)).map(Target::Source);
        let stacks = self.ctx.stacks.get(&ObjectRef::new(name).within(namespace)).map(Target::Stack);
        sources.into_iter().chain(stacks).filter(|target| target.receiver().is_some()).collect()
    }

    /// Whether this replica works on it.
    fn is_ours(&self, target: &Target) -> bool {
        let root = match target {
            Target::Source(source) => source.root(&self.ctx),
            Target::Stack(stack) => stack.root(&self.ctx),
        };
        root.is_some_and(|root| self.ctx.seats.members.role(&root) == Role::Works)
    }

    /// Listens to what other replicas are told about objects of ours.
    pub(super) async fn listen(self: Arc<Self>) {
        let mut heard = self.ctx.seats.members.heard();
        loop {
            let word = tokio::select! {
                () = self.intake.cancelled() => return,
                word = heard.recv() => word,
            };
            let Word { kind, namespace, name } = match word {
                Ok(word) => word,
                // What was missed the interval does.
                Err(RecvError::Lagged(_)) => continue,
                Err(RecvError::Closed) => return,
            };
            let mine = self.targets(&namespace, &name).into_iter().find(|target| target.kind() == kind);
            if let Some(target) = mine.filter(|target| self.is_ours(target)) {
                self.tell(target);
            }
        }
    }

    async fn is_proven(
        &self,
        target: &Target,
        namespace: &str,
        headers: &BTreeMap<String, String>,
        body: &[u8],
    ) -> bool {
        let Some(receiver) = target.receiver() else { return false };
        let field = "spec.receiver.secretRef";
        let read = async || match secret_data(&self.ctx.clients.own(), namespace, &receiver.secret_ref, field).await {
            Ok(mut data) => data.remove(TOKEN),
            Err(trouble) => {
                tracing::warn!(reason = %trouble.reason, says = trouble.message, "a hook can't be checked");
                None
            }
        };
        let token = self.tokens.get((namespace, &receiver.secret_ref.name), read).await;
        token.is_some_and(|token| is_proof(token.trim_ascii(), headers, body))
    }

    /// The next pass polls. The first hook is acted on at once, those that follow closely are one more.
    fn tell(self: &Arc<Self>, target: Target) {
        let object = match &target {
            Target::Source(source) => pokes::of(&**source),
            Target::Stack(stack) => pokes::of(&**stack),
        };
        let now = Instant::now();
        let at = {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            told.retain(|_, at| now.saturating_duration_since(*at) < DEBOUNCE);
            match told.get(&object) {
                // One is to come already.
                Some(at) if *at > now => return,
                Some(at) => *at + DEBOUNCE,
                None => now,
            }
        };
        self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(object.clone(), at);
        let hooks = Arc::clone(self);
        self.tasks.spawn(async move {
            tokio::select! {
                () = hooks.intake.cancelled() => return,
                () = tokio::time::sleep_until(at) => {}
            }
            tracing::info!(kind = object.kind, namespace = object.namespace, name = object.name, "told to look now");
            if !hooks.is_ours(&target) {
                let Poked { kind, namespace, name } = object;
                return hooks.ctx.seats.members.tell(Word { kind, namespace, name });
            }
            hooks.ctx.pokes.add(object);
            // The channels end with the controllers.
            let _ = match target {
                Target::Source(source) => hooks.to_sources.unbounded_send(ObjectRef::from_obj(&*source)).is_ok(),
                Target::Stack(stack) => hooks.to_stacks.unbounded_send(ObjectRef::from_obj(&*stack)).is_ok(),
            };
        });
    }
}
