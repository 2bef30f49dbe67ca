//! Passes: who has an object makes one when it is due, in line, inside of its fence; a pass that takes too long or panics
//! ends, and all others go on.

use std::borrow::Cow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::runtime::reflector::ObjectRef;
use kube::{Client, Resource, ResourceExt};
use tracing::{Instrument, Span, field};

use super::seats::{Rooted, Seat, Trace};
use super::{Action, Context, Error, PASS, cluster_stack, cluster_stack_release, cluster_stack_source};
use crate::api::{ClusterStack, ClusterStackRelease, ClusterStackSource};
use crate::core::share::view::Role;
use crate::io::fence;
use crate::io::report::{self};
use crate::io::telemetry::{ByController, Metrics};
use crate::io::traces;

pub(super) async fn timed_stack(stack: Arc<ClusterStack>, ctx: Arc<Context>) -> Result<Action, Error> {
    if !has_read_all(&ctx).await {
        return Ok(Action::await_change());
    }
    if let Seat::Free(next) = ctx.seat_of_pass(&stack) {
        return Ok(next);
    }
    let Some(_turn) = ctx.lines.stacks.next().await else { return Ok(Action::await_change()) };
    // It may have changed while it waited.
    let Some(stack) = ctx.stacks.get(&ObjectRef::from_obj(&*stack)) else { return Ok(Action::await_change()) };
    seated(&ctx, &stack, |role| {
        let (stack, ctx) = (Arc::clone(&stack), Arc::clone(&ctx));
        let pass = async move {
            match role {
                Role::Works => cluster_stack::reconcile(stack, ctx).await,
                Role::Tells | Role::Nothing => cluster_stack::unserved(&stack, &ctx).await,
            }
        };
        Box::pin(pass)
    })
    .await
}

pub(super) async fn timed_release(release: Arc<ClusterStackRelease>, ctx: Arc<Context>) -> Result<Action, Error> {
    if !has_read_all(&ctx).await {
        return Ok(Action::await_change());
    }
    if let Seat::Free(next) = ctx.seat_of_pass(&release) {
        return Ok(next);
    }
    let of = ObjectRef::from_obj(&*release).to_string();
    let Some(turn) = ctx.lines.turn(&ctx.lines.releases, of).await else { return Ok(Action::await_change()) };
    // It may have changed while it waited.
    let Some(release) = ctx.stack_releases.get(&ObjectRef::from_obj(&*release)) else {
        return Ok(Action::await_change());
    };
    let pass = seated(&ctx, &release, |role| {
        let (release, ctx) = (Arc::clone(&release), Arc::clone(&ctx));
        let pass = async move {
            match role {
                Role::Works => cluster_stack_release::reconcile(release, ctx).await,
                // Its ClusterStack says it.
                Role::Tells | Role::Nothing => Ok(Action::await_change()),
            }
        };
        Box::pin(pass)
    });
    turn.within(pass).await
}

pub(super) async fn timed_source(source: Arc<ClusterStackSource>, ctx: Arc<Context>) -> Result<Action, Error> {
    if !has_read_all(&ctx).await {
        return Ok(Action::await_change());
    }
    if let Seat::Free(next) = ctx.seat_of_pass(&source) {
        return Ok(next);
    }
    let Some(_turn) = ctx.lines.sources.next().await else { return Ok(Action::await_change()) };
    // It may have changed while it waited.
    let Some(source) = ctx.sources.get(&ObjectRef::from_obj(&*source)) else { return Ok(Action::await_change()) };
    seated(&ctx, &source, |role| {
        let (source, ctx) = (Arc::clone(&source), Arc::clone(&ctx));
        let pass = async move {
            match role {
                Role::Works => cluster_stack_source::reconcile(source, ctx).await,
                Role::Tells | Role::Nothing => cluster_stack_source::unserved(&source, &ctx).await,
            }
        };
        Box::pin(pass)
    })
    .await
}

/// Makes a pass over an object in its role, inside of its fence, if it is ours.
pub(super) async fn seated<K: Rooted + Resource<DynamicType = ()> + Send + Sync + 'static>(
    ctx: &Arc<Context>,
    object: &Arc<K>,
    pass: impl FnOnce(Role) -> BoxFuture<'static, Result<Action, Error>>,
) -> Result<Action, Error> {
    match ctx.seat(object) {
        Seat::Free(next) => Ok(next),
        Seat::Taken(role, fence) => {
            let own = ctx.clients.own();
            let span = span_of(&**object);
            let pass = fence::within(fence, async { caught(&**object, &own, pass(role)).await });
            let next = traced(span, Box::pin(timed(kind_of::<K>(), &ctx.metrics, pass))).await?;
            ctx.memory.ended(&object.meta().uid.clone().unwrap_or_default());
            Ok(next)
        }
    }
}

/// Ends a pass that takes too long, and one that panics: the object says it, and all others go on.
pub(super) async fn caught<K: Resource<DynamicType = ()> + ResourceExt>(
    object: &K,
    client: &Client,
    pass: impl Future<Output = Result<Action, Error>>,
) -> Result<Action, Error> {
    let pass = AssertUnwindSafe(tokio::time::timeout(PASS, pass)).catch_unwind();
    match pass.await {
        Ok(ended) => ended.unwrap_or(Err(Error::TimedOut)),
        Err(_panic) => {
            let error = Error::Panicked;
            if let Err(why) = report::internal_error(&fence::guarded(client), object, &error.to_string()).await {
                tracing::debug!(%why, "the fault is not told in the object's status");
            }
            Err(error)
        }
    }
}

/// The span of a pass over an object.
pub(super) fn span_of<K: Rooted>(object: &K) -> Span {
    let kind = kind_of::<K>();
    let span = tracing::info_span!(
        "reconcile",
        otel.name = format!("reconcile {kind}"),
        k8s.namespace.name = object.namespace().unwrap_or_default(),
        kind,
        name = object.name_any(),
        otel.status_code = field::Empty,
        otel.status_description = field::Empty,
    );
    match object.found_in() {
        Some(Trace::GoesOn(place)) => traces::go_on(&span, place),
        Some(Trace::Ended(place)) => traces::refer(&span, place),
        None => {}
    }
    span
}

/// A pass inside of its span, which says whether it failed.
pub(super) async fn traced(span: Span, pass: impl Future<Output = Result<Action, Error>>) -> Result<Action, Error> {
    let ended = pass.instrument(span.clone()).await;
    if let Err(error) = &ended
        && error.is_failure()
    {
        span.record("otel.status_code", "ERROR").record("otel.status_description", error.to_string());
    }
    ended
}

/// The kind, as metrics name it.
fn kind_of<K: Resource<DynamicType = ()>>() -> &'static str {
    match K::kind(&()) {
        Cow::Borrowed(kind) => kind,
        Cow::Owned(_) => "",
    }
}

/// Waits for the first reading of all kinds; `false` if the process ends before.
pub(super) async fn has_read_all(ctx: &Context) -> bool {
    tokio::select! {
        () = ctx.first_read.done() => true,
        () = ctx.intake.cancelled() => false,
    }
}

/// Measures a pass.
async fn timed(
    controller: &'static str,
    metrics: &Metrics,
    pass: impl Future<Output = Result<Action, Error>>,
) -> Result<Action, Error> {
    let start = Instant::now();
    let result = pass.await;
    let labels = ByController {
        controller,
        result: if result.as_ref().is_err_and(Error::is_failure) { "error" } else { "success" },
    };
    metrics.reconcile_seconds.get_or_create(&labels).observe(start.elapsed().as_secs_f64());
    metrics.reconciles.get_or_create(&labels).inc();
    result
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};
    use tower::BoxError;

    use super::*;

    #[tokio::test]
    async fn a_panic_is_a_condition_of_its_object() {
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let service = tower::service_fn(move |request: Request<Body>| {
            let tell = tell.clone();
            async move {
                let (path, body) = (request.uri().to_string(), request.into_body().collect_bytes().await?);
                let _ = tell.send((path, serde_json::from_slice::<Value>(&body)?));
                Ok::<_, BoxError>(Response::new(Body::from(body.to_vec())))
            }
        });
        let client = Client::new(service, "default");
        let stack: ClusterStack = serde_json::from_value(json!({
            "metadata": {"name": "x", "namespace": "team", "uid": "u-1", "generation": 3},
            "spec": {"provider": "docker", "name": "x", "kubernetesVersion": "1.34"},
        }))
        .unwrap();
        let fine = caught(&stack, &client, async { Ok(Action::await_change()) }).await;
        assert!(fine.is_ok() && told.try_recv().is_err());

        let ended = caught(&stack, &client, async { panic!("swordfish") }).await;
        assert!(matches!(ended, Err(Error::Panicked)));
        let (path, patch) = told.try_recv().unwrap();
        assert!(path.contains("/namespaces/team/clusterstacks/x/status?"), "{path}");
        assert!(path.contains("fieldManager=clusterstack-fault"), "{path}");
        let condition = &patch["status"]["conditions"][0];
        assert_eq!((&condition["type"], &condition["reason"]), (&json!("Ready"), &json!("InternalError")));
        assert!(!patch.to_string().contains("swordfish"), "{patch:#}");
    }
}
