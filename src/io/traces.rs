//! Traces by OpenTelemetry: that of a release leads from the poll that found it to each object that is applied of it.
//!
//! Spans are sent to a collector by OTLP over HTTP (binary), in batches, by a thread of their own; what the collector does not
//! take in time is dropped, and nothing waits for it. Where a trace goes on in another pass, its place is written down on the
//! object in W3C's form (`traceparent`, <https://www.w3.org/TR/trace-context/>).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use reqwest::redirect;
use thiserror::Error;
use tokio::runtime::Handle;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;
use url::Url;

use crate::core::build_info::BUILD;
use crate::core::source::redact;
use crate::io::apply::causes;
use crate::io::source::tls;

/// How long one batch may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the end of the process waits for the last batch.
const LAST: Duration = Duration::from_secs(3);
/// Where a collector takes traces, behind the address that all signals share (OTLP 1.x, "Endpoint URLs for OTLP/HTTP").
const PATH: &str = "v1/traces";
const KEY: &str = "traceparent";

/// Why no traces are sent.
#[derive(Debug, Error)]
#[error("traces can't be sent to {endpoint}: {problem}; check --otlp-endpoint and the variables OTEL_EXPORTER_OTLP_*")]
pub struct TracesError {
    endpoint: String,
    problem: String,
}

/// Where a collector is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector(Url);

impl Collector {
    /// `traces` is the address for traces as it is, `base` that of all signals, as `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` and
    /// `OTEL_EXPORTER_OTLP_ENDPOINT` say them. `None` where neither says anything.
    ///
    /// # Errors
    /// It is no URL of HTTP.
    pub fn of(base: Option<&str>, traces: Option<&str>) -> Result<Option<Self>, TracesError> {
        fn said(text: Option<&str>) -> Option<&str> {
            text.map(str::trim).filter(|text| !text.is_empty())
        }
        let Some((endpoint, path)) =
            said(traces).map(|text| (text, None)).or(said(base).map(|text| (text, Some(PATH))))
        else {
            return Ok(None);
        };
        let failed = |problem: String| TracesError { endpoint: redact(endpoint), problem };
        let mut url = Url::parse(endpoint).map_err(|error| failed(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(failed("it is no http:// or https:// URL".to_owned()));
        }
        if let Some(path) = path {
            url.set_path(&format!("{}/{path}", url.path().trim_end_matches('/')));
        }
        Ok(Some(Self(url)))
    }
}

/// Traces that are sent to a collector until this ends.
#[derive(Debug)]
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Sends by tasks on `runtime`. `OTEL_*` variables say the rest: headers, sampling, the sizes of batches, attributes.
    ///
    /// # Errors
    /// The variables say something that can't be used.
    pub fn to(collector: &Collector, instance: &str, runtime: Handle) -> Result<Self, TracesError> {
        let endpoint = redact(collector.0.as_str());
        let failed = |problem: String| TracesError { endpoint: endpoint.clone(), problem };
        let tls = tls::of_machine(authorities().map_err(failed)?).map_err(|error| failed(error.to_string()))?;
        let client = reqwest::Client::builder()
            .timeout(PATIENCE)
            // Its headers may hold a login.
            .redirect(redirect::Policy::none())
            .tls_backend_preconfigured(tls)
            .build()
            .map_err(|error| failed(error.to_string()))?;
        let sender = Sender { client, runtime, endpoint: endpoint.clone().into(), is_lost: AtomicBool::new(false) };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(sender)
            .with_endpoint(collector.0.as_str())
            .build()
            .map_err(|error| failed(error.to_string()))?;
        let own = [
            KeyValue::new("service.version", BUILD.version),
            KeyValue::new("service.instance.id", instance.to_owned()),
        ];
        let mut resource = Resource::builder().with_attributes(own);
        if !is_named() {
            resource = resource.with_service_name("clusterstack");
        }
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build());
        Ok(Self(provider.build()))
    }

    /// Takes our own spans; lines of the log stay in the log.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: tracing::Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer("clusterstack"))
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_target(false)
            .with_level(false)
            .with_filter(filter_fn(|metadata| metadata.is_span() && metadata.target().starts_with("clusterstack")))
    }

    /// Sends what is left, and waits for that for three seconds at most.
    pub fn end(self) {
        if let Err(error) = self.0.shutdown_with_timeout(LAST) {
            tracing::debug!(%error, "the last traces were not sent");
        }
    }
}

/// Whether the environment names the service, by a variable of its own or among the attributes. (OpenTelemetry takes an empty variable
/// for none.)
fn is_named() -> bool {
    let said = |name: &str| std::env::var(name).unwrap_or_default();
    let attributes = said("OTEL_RESOURCE_ATTRIBUTES");
    !said("OTEL_SERVICE_NAME").is_empty()
        || attributes.split(',').any(|one| one.trim_start().starts_with("service.name="))
}

/// The authorities of `OTEL_EXPORTER_OTLP_CERTIFICATE`, a file.
fn authorities() -> Result<Option<String>, String> {
    let Some(path) = std::env::var_os("OTEL_EXPORTER_OTLP_CERTIFICATE").filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    let text = std::fs::read_to_string(&path);
    text.map(Some).map_err(|error| format!("{} can't be read: {error}", path.to_string_lossy()))
}

/// Sends batches by the runtime: who asks is a thread without one.
#[derive(Debug)]
struct Sender {
    client: reqwest::Client,
    runtime: Handle,
    endpoint: Arc<str>,
    is_lost: AtomicBool,
}

#[async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let answer = self.runtime.spawn(async move {
            let mut answer = client.execute(request.try_into()?).await?;
            let mut response = http::Response::builder().status(answer.status());
            if let Some(headers) = response.headers_mut() {
                headers.extend(std::mem::take(answer.headers_mut()));
            }
            // What it answers says how many spans it refused, and no more.
            Ok::<_, reqwest::Error>((answer.status(), response))
        });
        let answer: Result<_, HttpError> = match answer.await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(error.without_url().into()),
            Err(ended) => Err(ended.into()),
        };
        let problem = match &answer {
            Ok((status, _)) if status.is_success() => None,
            Ok((status, _)) => Some(format!("it answers {status}")),
            Err(error) => Some(causes(&**error)),
        };
        let (endpoint, was_lost) = (&*self.endpoint, self.is_lost.swap(problem.is_some(), Ordering::Relaxed));
        match problem {
            Some(problem) if !was_lost => {
                tracing::warn!(endpoint, problem, "traces can't be sent: they are dropped until it takes them");
            }
            None if was_lost => tracing::info!(endpoint, "traces are taken again"),
            _ => {}
        }
        let (_, response) = answer?;
        Ok(response.body(Bytes::new())?)
    }
}

/// The place of the current span in its trace, in W3C's form; `None` where it is in none that is sent.
pub fn place() -> Option<String> {
    let context = Span::current().context();
    if !context.span().span_context().is_sampled() {
        return None;
    }
    let mut carrier = HashMap::new();
    TraceContextPropagator::new().inject_context(&context, &mut carrier);
    carrier.remove(KEY)
}

/// Makes a span, before it is entered, part of the trace of `place`. What is no place is passed over.
pub fn go_on(span: &Span, place: &str) {
    let context = read(place);
    if context.span().span_context().is_valid() {
        // A span that nobody takes has no parent.
        let _ = span.set_parent(context);
    }
}

/// Says in a span that it has to do with that of `place`.
pub fn refer(span: &Span, place: &str) {
    let context = read(place);
    if context.span().span_context().is_valid() {
        span.add_link(context.span().span_context().clone());
    }
}

fn read(place: &str) -> Context {
    let carrier = HashMap::from([(KEY.to_owned(), place.to_owned())]);
    TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier)
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn a_collector_is_where_the_variables_of_opentelemetry_say() {
        for (base, traces, expected) in [
            (None, None, None),
            (Some(""), Some(" "), None),
            (Some("http://c:4318"), None, Some("http://c:4318/v1/traces")),
            (Some("http://c:4318/otlp/"), None, Some("http://c:4318/otlp/v1/traces")),
            (Some("http://c:4318"), Some("https://t/in"), Some("https://t/in")),
        ] {
            let collector = Collector::of(base, traces).unwrap();
            assert_eq!(collector.as_ref().map(|collector| collector.0.as_str()), expected);
        }
        for wrong in ["c:4318", "grpc://c:4317", "http://"] {
            let error = Collector::of(Some(wrong), None).unwrap_err().to_string();
            assert!(error.contains("--otlp-endpoint"), "{error}");
        }
        let error = Collector::of(Some("ftp://me:swordfish@c"), None).unwrap_err().to_string();
        assert!(!error.contains("swordfish"), "{error}");
    }

    #[test]
    fn a_trace_goes_on_where_its_place_was_written_down() {
        let provider = SdkTracerProvider::builder().build();
        let traces = Traces(provider);
        let subscriber = tracing_subscriber::registry().with(traces.layer());
        tracing::subscriber::with_default(subscriber, || {
            assert_eq!(place(), None);
            let first = tracing::info_span!("first").in_scope(place).unwrap();
            let (version, rest) = first.split_once('-').unwrap();
            let trace = rest.split('-').next().unwrap();
            assert_eq!((version, trace.len()), ("00", 32));
            let later = tracing::info_span!("later");
            go_on(&later, &first);
            let later = later.in_scope(place).unwrap();
            assert!(later.contains(trace) && later != first, "{first} {later}");
            for nothing in ["", "00-0-0-01", "00-00000000000000000000000000000000-0000000000000000-01", "<script>"] {
                let other = tracing::info_span!("other");
                go_on(&other, nothing);
                refer(&other, nothing);
                let other = other.in_scope(place).unwrap();
                assert!(!other.contains(trace), "{other}");
            }
        });
    }
}
