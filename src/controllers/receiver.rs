//! The receiver: an HTTP endpoint by which Git hosts and registries say that a source has something new.
//!
//! Guarantees: nothing is done for who does not know the token of the object; who does not know it learns nothing about
//! which objects there are; a body is bounded, and so are requests in a second; many hooks at once are one poll.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use futures::channel::mpsc::UnboundedSender;
use kube::runtime::reflector::ObjectRef;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Context, Poked, pokes};
use crate::api::source::Receiver;
use crate::api::{ClusterStack, ClusterStackSource};
use crate::core::source::hook::{MAX_BODY, is_proof};
use crate::io::source::open::secret_data;

/// Hooks of one object within this time are one.
const DEBOUNCE: Duration = Duration::from_secs(2);
/// Requests in a second, over all objects.
const RATE: f64 = 20.0;
/// Requests at once.
const BURST: f64 = 60.0;
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
        .with_state(hooks)
}

/// An object that hooks may be about.
enum Target {
    Source(Arc<ClusterStackSource>),
    Stack(Arc<ClusterStack>),
}

impl Target {
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
    if !hooks.bucket.take() {
        return (StatusCode::TOO_MANY_REQUESTS, "too many requests\n");
    }
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
    if is_known { (StatusCode::ACCEPTED, "accepted\n") } else { (StatusCode::UNAUTHORIZED, "not authorized\n") }
}

impl Hooks {
    /// The objects of that name that have a receiver: of both kinds, each with its own token.
    fn targets(&self, namespace: &str, name: &str) -> Vec<Target> {
        let sources = self.ctx.sources.get(&ObjectRef::new(name).within(namespace)).map(Target::Source);
        let stacks = self.ctx.stacks.get(&ObjectRef::new(name).within(namespace)).map(Target::Stack);
        sources.into_iter().chain(stacks).filter(|target| target.receiver().is_some()).collect()
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
        match secret_data(&self.ctx.clients.own(), namespace, &receiver.secret_ref, field).await {
            Ok(data) => data.get(TOKEN).is_some_and(|token| is_proof(token.trim_ascii(), headers, body)),
            Err(trouble) => {
                tracing::warn!(reason = %trouble.reason, message = trouble.message, "a hook can't be checked");
                false
            }
        }
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
            hooks.ctx.pokes.add(object);
            // The channels end with the controllers.
            let _ = match target {
                Target::Source(source) => hooks.to_sources.unbounded_send(ObjectRef::from_obj(&*source)).is_ok(),
                Target::Stack(stack) => hooks.to_stacks.unbounded_send(ObjectRef::from_obj(&*stack)).is_ok(),
            };
        });
    }
}
