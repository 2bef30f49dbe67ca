//! Traces, as a collector of OpenTelemetry gets them: that of a release leads from the poll to what is applied of it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use clusterstack::api::TRACEPARENT;
use kube::ResourceExt;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::harness::{Operator, SETTINGS, World, check, wait_for};

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";

/// Spans and the names of services that sent them, and the headers of the last batch.
#[derive(Clone, Default)]
struct Got {
    spans: Arc<Mutex<Vec<Span>>>,
    services: Arc<Mutex<Vec<String>>>,
    headers: Arc<Mutex<HeaderMap>>,
    /// Refuses all.
    broken: Arc<Mutex<bool>>,
}

/// A collector on loopback that keeps what it gets.
struct Collector {
    url: String,
    got: Got,
    _end: DropGuard,
}

async fn take(State(got): State<Got>, headers: HeaderMap, body: Bytes) -> StatusCode {
    if *got.broken.lock().unwrap() {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    let request = ExportTraceServiceRequest::decode(body).expect("no traces");
    *got.headers.lock().unwrap() = headers;
    for of_resource in request.resource_spans {
        for attribute in of_resource.resource.unwrap_or_default().attributes {
            if let (true, Some(Value::StringValue(name))) =
                (attribute.key == "service.name", attribute.value.and_then(|value| value.value))
            {
                got.services.lock().unwrap().push(name);
            }
        }
        got.spans.lock().unwrap().extend(of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
    }
    StatusCode::OK
}

impl Collector {
    async fn new() -> Self {
        let (got, end) = (Got::default(), CancellationToken::new());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let routes = Router::new().route("/v1/traces", post(take)).with_state(got.clone());
        let served = axum::serve(listener, routes).with_graceful_shutdown(end.clone().cancelled_owned());
        tokio::spawn(async move { served.await.unwrap() });
        Self { url, got, _end: end.drop_guard() }
    }

    fn spans(&self) -> Vec<Span> {
        self.got.spans.lock().unwrap().clone()
    }
}

fn operator(t: &World, url: &str) -> Operator {
    let environment = [
        ("OTEL_BSP_SCHEDULE_DELAY", Path::new("200")),
        ("OTEL_EXPORTER_OTLP_HEADERS", Path::new("authorization=Bearer%20swordfish")),
    ];
    let root = t.dir().canonicalize().unwrap();
    let flags = ["--otlp-endpoint", url, "--allow-source", root.to_str().unwrap()];
    Operator::start_with(t, t.plane.operator_kubeconfig(), &flags, &environment)
}

fn says(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|attribute| attribute.value.clone()?.value) {
        Some(Value::StringValue(text)) => text,
        other => format!("{other:?}"),
    }
}

/// The names of those above a span, nearest first.
fn above(span: &Span, all: &HashMap<Vec<u8>, Span>) -> Vec<String> {
    std::iter::successors(all.get(&span.parent_span_id), |span| all.get(&span.parent_span_id))
        .map(|span| span.name.clone())
        .collect()
}

#[tokio::test]
async fn one_trace_leads_from_the_poll_to_each_object_that_is_applied() {
    let t = World::new("traced").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    // What is there already is looked at.
    t.apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": V1}, "data": {"kept": "8"}})).await;
    let collector = Collector::new().await;
    let operator = operator(&t, &collector.url);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let (trace, all) = wait_for("the trace of the release", || async {
        let spans = collector.spans();
        let applied = spans.iter().find(|span| span.name == "apply" && says(span, "object").contains("ConfigMap"));
        let applied = applied.ok_or_else(|| format!("{:?}", spans.iter().map(|s| &s.name).collect::<Vec<_>>()))?;
        let of_trace: HashMap<_, _> = spans
            .iter()
            .filter(|span| span.trace_id == applied.trace_id)
            .map(|span| (span.span_id.clone(), span.clone()))
            .collect();
        let names = above(applied, &of_trace);
        let expected = ["reconcile ClusterStackRelease", "subscribe", "poll", "reconcile ClusterStack"];
        check(names == expected, &names)?;
        Ok((applied.trace_id.clone(), of_trace))
    })
    .await;
    for name in ["fetch", "render", "observe"] {
        let span = all.values().find(|span| span.name == name).unwrap_or_else(|| panic!("no {name} in the trace"));
        assert_eq!(above(span, &all)[0], "reconcile ClusterStackRelease");
    }
    let release = t.releases().get(V1).await.unwrap();
    let place = &release.annotations()[TRACEPARENT];
    let hex: String = trace.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(place.contains(&hex), "{place}: {hex}");
    assert!(collector.got.services.lock().unwrap().iter().all(|name| name == "clusterstack"));
    assert_eq!(collector.got.headers.lock().unwrap()["authorization"], "Bearer swordfish");

    // What fails is an error in its span; a later pass refers to the trace in which its release was found.
    repo.release(V2, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"..\"}\n");
    t.look_again("x").await;
    wait_for("a span that failed, and a pass that refers to the trace", || async {
        let spans = collector.spans();
        let failed = spans.iter().any(|span| {
            span.name == "apply"
                && span.status.as_ref().is_some_and(|status| status.code == 2 && !status.message.is_empty())
        });
        let refers = spans.iter().any(|span| {
            span.name == "reconcile ClusterStackRelease" && span.links.iter().any(|link| link.trace_id == trace)
        });
        check(failed && refers, (failed, refers))
    })
    .await;

    // Without a collector all goes on, and is said once.
    *collector.got.broken.lock().unwrap() = true;
    let lost = "traces can't be sent";
    wait_for("the loss to be told", || async {
        t.look_again("x").await;
        check(operator.log().contains(lost), "not told")
    })
    .await;
    repo.release("docker-x-1-34-v3", SETTINGS);
    t.look_again("x").await;
    t.ready("x", "v3").await;
    *collector.got.broken.lock().unwrap() = false;
    wait_for("the collector to be known as back", || async {
        t.look_again("x").await;
        check(operator.log().contains("traces are taken again"), "not told")
    })
    .await;
    let log = operator.log();
    assert_eq!(log.matches(lost).count(), 1, "{log}");
    assert!(!log.contains("swordfish"), "the header is shown");
}
