//! Flags of the operator, validated. The names are the Go operator's where they mean the same.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use thiserror::Error;

use crate::io::client::Rate;

mod environment;

pub use environment::{DefaultSource, EnvironmentError, SourceKind};

/// Flags of `clusterstack operator`.
#[derive(Args, Clone, Debug)]
pub struct Flags {
    /// Where metrics are served: `[host]:port`, `0` to serve none.
    #[arg(long, value_name = "ADDRESS", default_value = ":8080")]
    pub metrics_bind_address: String,

    /// Where `/healthz` and `/readyz` are served: `[host]:port`, `0` to serve none.
    #[arg(long, value_name = "ADDRESS", default_value = ":9440")]
    pub health_probe_bind_address: String,

    /// Where hooks are received that say that a source has something new, `POST /hook/<namespace>/<name>`: `[host]:port`,
    /// `0` to receive none.
    #[arg(long, value_name = "ADDRESS", default_value = "0")]
    pub receiver_bind_address: String,

    /// Work only while holding a Lease, so that one of several replicas is active.
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub leader_elect: bool,

    /// Namespace of the Lease; the pod's own by default.
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = "default")]
    pub leader_elect_namespace: String,

    /// Only objects of this namespace are worked on; all without it.
    #[arg(long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,

    /// Only objects with the label `cluster.x-k8s.io/watch-filter` of this value are worked on.
    #[arg(long, value_name = "VALUE")]
    pub watch_filter: Option<String>,

    /// Where fetched releases are kept. It is a cache: it may be lost at any time.
    #[arg(long, value_name = "DIR", default_value = "/tmp/downloads/")]
    pub release_dir: PathBuf,

    /// Largest size of the release directory in MiB; what nobody used longest goes first.
    #[arg(long, value_name = "MIB", default_value_t = 2048, value_parser = clap::value_parser!(u64).range(16..))]
    pub release_dir_size: u64,

    /// How much is logged.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: LogLevel,

    /// Log lines for people or for machines.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// Requests in a second to the API server over time.
    #[arg(long, value_name = "N", default_value_t = 50.0)]
    pub qps: f32,

    /// Requests to the API server at once.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub burst: u32,

    /// ClusterStacks worked on at once.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    pub clusterstack_concurrency: u16,

    /// ClusterStackReleases worked on at once.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    pub clusterstackrelease_concurrency: u16,

    /// A local source that ClusterStacks may use: the root of a `file://` source, or a `host[:port]` on a loopback or
    /// link-local address. May be given several times.
    #[arg(long, value_name = "ROOT|HOST", env = "CLUSTERSTACK_ALLOW_SOURCE", value_delimiter = ',')]
    pub allow_source: Vec<String>,

    /// Which of the environment's sources ClusterStacks get that name none: `GIT_PROVIDER=github`, `GIT_ORG_NAME`,
    /// `GIT_REPOSITORY_NAME`, `GIT_ACCESS_TOKEN`; or `OCI_REGISTRY`, `OCI_REPOSITORY`, and `OCI_ACCESS_TOKEN` or
    /// `OCI_USERNAME` and `OCI_PASSWORD`. Without the flag the one that is there.
    #[arg(long, value_name = "KIND")]
    pub source: Option<SourceKind>,

    /// ClusterStackSources worked on at once.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    pub clusterstacksource_concurrency: u16,

    /// ServiceAccount by which ClusterStacks without `serviceAccountName` apply; of the ClusterStack's own namespace.
    #[arg(long, value_name = "NAME")]
    pub default_service_account: Option<String>,

    /// ClusterStacks without `serviceAccountName` may apply cluster-scoped objects and objects of other namespaces, with
    /// the operator's own rights.
    #[arg(long)]
    pub allow_cluster_scope: bool,
}

/// Levels of logging.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Everything.
    Debug,
    /// What is done.
    Info,
    /// What goes wrong.
    Warn,
    /// What fails.
    Error,
}

/// Forms of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// What the operator runs with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where metrics are served.
    pub metrics: Option<SocketAddr>,
    /// Where probes are served.
    pub probes: Option<SocketAddr>,
    /// Where hooks are received.
    pub receiver: Option<SocketAddr>,
    /// Namespace of the leader's Lease; `None` without election.
    pub lease_namespace: Option<String>,
    /// The only namespace worked on.
    pub namespace: Option<String>,
    /// The only value of the watch filter's label worked on.
    pub watch_filter: Option<String>,
    /// The store of releases.
    pub release_dir: PathBuf,
    /// Its largest size in bytes.
    pub release_dir_size: u64,
    /// Limits of requests to the API server.
    pub rate: Rate,
    /// ClusterStacks at once.
    pub stack_concurrency: u16,
    /// ClusterStackReleases at once.
    pub release_concurrency: u16,
    /// Local sources that are allowed.
    pub allow_source: Vec<String>,
    /// The source of ClusterStacks that name none.
    pub default_source: Option<DefaultSource>,
    /// ClusterStackSources at once.
    pub source_concurrency: u16,
    /// ServiceAccount for ClusterStacks that name none.
    pub default_service_account: Option<String>,
    /// Whether ClusterStacks without one may apply everywhere.
    pub allow_cluster_scope: bool,
}

/// How often a source is polled when the ClusterStack does not say.
pub const DEFAULT_INTERVAL: Duration = Duration::from_mins(5);

/// Why flags are refused.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// An address is no address.
    #[error("--{flag} {value:?} is no address: write [host]:port, for example :8080, or 0 to serve nothing")]
    Address {
        /// The flag.
        flag: &'static str,
        /// What was given.
        value: String,
    },
    /// The environment names half a source.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
}

impl Flags {
    /// Validates them.
    pub fn settings(self) -> Result<Settings, SettingsError> {
        Ok(Settings {
            metrics: address("metrics-bind-address", &self.metrics_bind_address)?,
            probes: address("health-probe-bind-address", &self.health_probe_bind_address)?,
            receiver: address("receiver-bind-address", &self.receiver_bind_address)?,
            lease_namespace: self.leader_elect.then_some(self.leader_elect_namespace),
            namespace: self.namespace.filter(|namespace| !namespace.is_empty()),
            watch_filter: self.watch_filter.filter(|value| !value.is_empty()),
            release_dir: self.release_dir,
            release_dir_size: self.release_dir_size.saturating_mul(1024 * 1024),
            rate: Rate { qps: self.qps, burst: self.burst },
            stack_concurrency: self.clusterstack_concurrency,
            release_concurrency: self.clusterstackrelease_concurrency,
            allow_source: self.allow_source,
            default_source: DefaultSource::read(self.source, |name| std::env::var(name).ok())?,
            source_concurrency: self.clusterstacksource_concurrency,
            default_service_account: self.default_service_account,
            allow_cluster_scope: self.allow_cluster_scope,
        })
    }
}

/// `:8080` is all interfaces, `0` and the empty text nothing, as in controller-runtime.
fn address(flag: &'static str, value: &str) -> Result<Option<SocketAddr>, SettingsError> {
    if value.is_empty() || value == "0" {
        return Ok(None);
    }
    let full = if value.starts_with(':') { format!("[::]{value}") } else { value.replace("localhost:", "127.0.0.1:") };
    full.parse().map(Some).map_err(|_| SettingsError::Address { flag, value: value.to_owned() })
}

/// The polling interval of a ClusterStack: a Go duration of at least 10 s; the default for none or an unreadable one
/// (the API server refuses those).
pub fn interval(text: Option<&str>) -> Duration {
    text.and_then(go_duration).map_or(DEFAULT_INTERVAL, |given| given.max(Duration::from_secs(10)))
}

/// `1h30m`, `500ms`, `1.5s` as Go's `time.ParseDuration` reads them.
pub fn go_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = 0.0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let (seconds, unit) = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)]
            .into_iter()
            .find_map(|(unit, seconds)| rest.starts_with(unit).then_some((seconds, unit)))?;
        total += number * seconds;
        rest = &rest[unit.len()..];
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(total).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_controller_runtime_reads_them() {
        assert_eq!(address("f", ":8080").unwrap().unwrap().port(), 8080);
        assert_eq!(address("f", "127.0.0.1:0").unwrap().unwrap().port(), 0);
        assert_eq!(address("f", "localhost:1").unwrap().unwrap().to_string(), "127.0.0.1:1");
        assert_eq!(address("f", "0").unwrap(), None);
        assert!(address("f", "nonsense").unwrap_err().to_string().contains("--f \"nonsense\""));
    }

    #[test]
    fn intervals_are_go_durations() {
        for (text, seconds) in
            [("5m", 300), ("1h30m", 5400), ("90s", 90), ("1s", 10), ("1.5m", 90), ("x", 300), ("", 300)]
        {
            assert_eq!(interval(Some(text)), Duration::from_secs(seconds), "{text}");
        }
        assert_eq!(interval(None), DEFAULT_INTERVAL);
    }
}
