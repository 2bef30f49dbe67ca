//! Logs, metrics and probes. Traces are in [`super::traces`].

use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tracing::Metadata;
use tracing_subscriber::filter::{FilterExt, LevelFilter, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, reload};

use super::log_lines::Lines;
use crate::core::build_info::BUILD;
use crate::io::image::meter::BuildMetrics;
use crate::io::source::meter::SourceMetrics;
use crate::io::traces::Traces;
use crate::settings::{LogFormat, LogLevel};

/// Changes how much is logged; nothing where `RUST_LOG` says it.
static RELOAD: OnceLock<reload::Handle<EnvFilter, tracing_subscriber::Registry>> = OnceLock::new();

/// Starts logging to standard error, and sending `traces`. `RUST_LOG` overrides the level, but for events of libraries that
/// may quote a Secret.
pub fn log(level: LogLevel, format: LogFormat, traces: Option<&Traces>) {
    // One that is empty, as a template makes it, says nothing.
    let of_environment = std::env::var("RUST_LOG").is_ok_and(|directives| !directives.trim().is_empty());
    let of_environment = of_environment.then(EnvFilter::try_from_default_env).and_then(Result::ok);
    let is_fixed = of_environment.is_some();
    let (filter, handle) = reload::Layer::new(of_environment.unwrap_or_else(|| filter(level)));
    // https://no-color.org, and terminals that know none.
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|said| !said.is_empty())
        || std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
    let colour = std::io::IsTerminal::is_terminal(&std::io::stderr()) && !is_plain;
    let lines = tracing_subscriber::fmt::layer();
    let lines = match format {
        LogFormat::Json => lines.with_writer(std::io::stderr).json().boxed(),
        LogFormat::Text => lines.with_writer(Lines { colour }).with_ansi(colour).boxed(),
    };
    let lines = lines.with_filter(filter.and(filter_fn(|metadata| metadata.is_event() && !may_quote(metadata))));
    let spans = traces.map(Traces::layer);
    // A second start in one process (tests) keeps the first logger.
    let begun = tracing_subscriber::registry().with(lines).with(spans).try_init();
    if begun.is_ok() && !is_fixed {
        let _ = RELOAD.set(handle);
    }
}

/// Logs as much as this from now on.
pub fn set_level(level: LogLevel) {
    if let Some(handle) = RELOAD.get() {
        // A logger that is gone logs nothing.
        let _ = handle.reload(filter(level));
    }
}

fn filter(level: LogLevel) -> EnvFilter {
    let level = match level {
        LogLevel::Debug => "debug",
        LogLevel::Info => "info",
        LogLevel::Warn => "warn",
        LogLevel::Error => "error",
    };
    // What the client could not read, it would log whole: it may be a Secret. That a request failed says who sent it, and
    // to which cluster.
    EnvFilter::new(format!(
        "{level},hyper=warn,hyper_util=warn,rustls=warn,tower=warn,kube_client=warn,kube_client::client=error,\
         kube_client::client::builder=off,kube_runtime=warn,h2=warn"
    ))
}

/// Whether an event of a library may hold what it sent or was sent, whatever `RUST_LOG` asks for.
fn may_quote(metadata: &Metadata<'_>) -> bool {
    let most = |target: &str| match target {
        "kube_client::client::builder" => Some(LevelFilter::OFF),
        "kube_client::client" => Some(LevelFilter::ERROR),
        "kube_client" => Some(LevelFilter::WARN),
        "h2" | "hyper" | "hyper_util" | "reqwest" => Some(LevelFilter::DEBUG),
        _ => None,
    };
    let mut target = metadata.target();
    loop {
        if let Some(most) = most(target) {
            return *metadata.level() > most;
        }
        let Some((parent, _)) = target.rsplit_once("::") else { return false };
        target = parent;
    }
}

/// Logs where a panic was. Its words are left out: they may quote anything.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        if EXPECTED.get() {
            return;
        }
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "a fault in the operator itself (a panic): please report it with this line");
    }));
}

thread_local! {
    /// Whether a panic of this thread is nothing to tell.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Calls what panics where others send nonsense, for there is no other way to ask; `None` where it did. Nobody is told.
pub fn unless_it_panics<T>(ask: impl FnOnce() -> T) -> Option<T> {
    EXPECTED.set(true);
    let answer = std::panic::catch_unwind(AssertUnwindSafe(ask));
    EXPECTED.set(false);
    answer.ok()
}

/// Labels of a counter by controller.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByController {
    /// The kind it works on.
    pub controller: &'static str,
    /// `success`, `error`.
    pub result: &'static str,
}

/// Labels of a counter of objects by what was done.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByAction {
    /// `applied`, `unchanged`, `held`, `failed`, `pruned`, `corrected`.
    pub action: &'static str,
}

/// The operator's metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    /// Passes of the controllers.
    pub reconciles: Family<ByController, Counter>,
    /// How long they took, in seconds.
    pub reconcile_seconds: Family<ByController, Histogram>,
    /// How long releases were not Ready until they were, in seconds: since they said so.
    pub release_unready_seconds: Histogram,
    /// Objects by what was done with them.
    pub objects: Family<ByAction, Counter>,
    /// Polls of sources that reached the source.
    pub polls: Counter,
    /// Polls that failed.
    pub poll_failures: Counter,
    /// Requests to sources and their quotas.
    pub sources: SourceMetrics,
    /// Builds of node images.
    pub images: BuildMetrics,
    /// 1 while this replica does what one alone does.
    pub leader: Gauge,
    /// 1 while the ConfigMap of the settings holds what can't be used.
    pub settings_refused: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("clusterstack");
        let reconcile_seconds: Family<ByController, Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 16)));
        let metrics = Self {
            registry: Arc::default(),
            reconciles: Family::default(),
            reconcile_seconds,
            // Conditions have whole seconds.
            release_unready_seconds: Histogram::new(exponential_buckets(1.0, 2.0, 14)),
            objects: Family::default(),
            polls: Counter::default(),
            poll_failures: Counter::default(),
            sources: SourceMetrics::default(),
            images: BuildMetrics::default(),
            leader: Gauge::default(),
            settings_refused: Gauge::default(),
        };
        registry.register("reconciles", "Passes of the controllers", metrics.reconciles.clone());
        registry.register("reconcile_seconds", "Duration of a pass", metrics.reconcile_seconds.clone());
        let unready = metrics.release_unready_seconds.clone();
        registry.register("release_unready_seconds", "Time that releases were not ready until they were", unready);
        registry.register("objects", "Objects of releases by what was done with them", metrics.objects.clone());
        registry.register("source_polls", "Successful polls of sources", metrics.polls.clone());
        registry.register("source_poll_failures", "Failed polls of sources", metrics.poll_failures.clone());
        metrics.sources.register(&mut registry);
        metrics.images.register(&mut registry);
        let build = [("version", BUILD.version), ("commit", BUILD.commit), ("date", BUILD.date)];
        registry.register("build", "This program", Info::new(build));
        registry.register("leader", "Whether this replica does what one alone does", metrics.leader.clone());
        let refused = metrics.settings_refused.clone();
        registry.register("settings_refused", "Whether the settings' ConfigMap holds what can't be used", refused);
        Self { registry: Arc::new(registry), ..metrics }
    }
}

impl Metrics {
    /// Counts objects by what was done with them.
    pub fn count(&self, action: &'static str, objects: usize) {
        if objects > 0 {
            self.objects.get_or_create(&ByAction { action }).inc_by(objects as u64);
        }
    }

    /// All metrics in the OpenMetrics text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String can't fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// What the probes answer.
#[derive(Clone, Debug)]
pub struct Readiness {
    is_ready: Arc<AtomicBool>,
    /// What is said until it is.
    because: &'static str,
}

impl Default for Readiness {
    fn default() -> Self {
        Self::because("starting")
    }
}

impl Readiness {
    /// Not ready, and why.
    pub fn because(because: &'static str) -> Self {
        Self { is_ready: Arc::default(), because }
    }

    /// Says whether the operator is ready.
    pub fn set(&self, ready: bool) {
        self.is_ready.store(ready, Ordering::Relaxed);
    }

    fn answer(&self) -> (StatusCode, &'static str) {
        if self.is_ready.load(Ordering::Relaxed) {
            (StatusCode::OK, "ok")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, self.because)
        }
    }
}

/// Routes of the metrics server.
pub fn metrics_routes(metrics: Metrics) -> Router {
    let answer = move || async move {
        ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], metrics.text())
    };
    Router::new().route("/metrics", get(answer))
}

/// Routes of the probe server.
pub fn probe_routes(readiness: Readiness) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(move || async move { readiness.answer() }))
}
