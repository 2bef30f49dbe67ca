//! Flags of the operator, validated. The names are the Go operator's where they mean the same.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use thiserror::Error;

use crate::core::duration::go_duration;
use crate::io::client::Rate;

mod arguments;
pub mod environment;
pub mod overlay;
pub mod shared;
mod values;

pub(crate) use values::duration;
use values::{absolute, label, name, named_namespace, namespace, poll_interval, rate};

pub use environment::{DefaultSource, EnvironmentError, SourceKind};

/// Flags of `clusterstack operator`.
#[derive(Args, Clone, Debug, PartialEq)]
pub struct Flags {
    /// ConfigMap of `--leader-elect-namespace` whose settings count before flags, for all replicas: a key is the name of a
    /// flag without dashes. It is watched, and need not be there.
    #[arg(long, value_name = "NAME", env = "CLUSTERSTACK_SETTINGS", value_parser = name)]
    pub settings: Option<String>,

    /// How often a source is polled by ClusterStacks and ClusterStackSources that don't say; at least 10s.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = poll_interval)]
    pub default_interval: Duration,

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

    /// Where the web page is served, which shows all ClusterStacks to whoever reaches it: `[host]:port`, as a rule one of
    /// 127.0.0.1; `0` to serve none.
    #[arg(long, value_name = "ADDRESS", default_value = "0")]
    pub page_bind_address: String,

    /// Where Cluster API's runtime hooks are served, by TLS: `[host]:port`, `0` to serve none.
    #[arg(long, value_name = "ADDRESS", default_value = "0")]
    pub hook_bind_address: String,

    /// The Go operator's name for it: a port of all interfaces.
    #[arg(long, value_name = "PORT", conflicts_with = "hook_bind_address")]
    pub hook_port: Option<u16>,

    /// Where Cluster API reaches the hooks: a Service in front of the operator, of its own namespace.
    #[arg(long, value_name = "NAME[:PORT]", default_value = "clusterstack-hooks:443")]
    pub hook_service: String,

    /// Where Cluster API reaches the hooks if there is no Service: `https://host:port[/path]`.
    #[arg(long, value_name = "URL", conflicts_with = "hook_service")]
    pub hook_url: Option<url::Url>,

    /// How long the deletion of a Cluster waits for the stages of BeforeClusterDelete at most; then it goes on.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    pub hook_deletion_deadline: Duration,

    /// Where the admission webhook is served, by TLS: `[host]:port`, `0` to serve none and to withdraw its configuration.
    #[arg(long, value_name = "ADDRESS", default_value = "0")]
    pub webhook_bind_address: String,

    /// Where the API server reaches the webhook: a Service in front of the operator, of its own namespace.
    #[arg(long, value_name = "NAME[:PORT]", default_value = "clusterstack-webhook:443")]
    pub webhook_service: String,

    /// Where the API server reaches the webhook if there is no Service: `https://host:port[/path]`.
    #[arg(long, value_name = "URL", conflicts_with = "webhook_service")]
    pub webhook_url: Option<url::Url>,

    /// Keep a Lease, so that several replicas share the work. Without, a process takes itself for the only one.
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub leader_elect: bool,

    /// Namespace of the Leases of the replicas, which share the work among them, and of the Secrets with the certificates
    /// of hooks and webhook; the pod's own by default.
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = "default", value_parser = named_namespace)]
    pub leader_elect_namespace: String,

    /// Work only on objects with the label `clusterstack.x-k8s.io/shard-class` of this value; without, on those that have no
    /// such label. May be given several times.
    #[arg(long, value_name = "NAME", env = "CLUSTERSTACK_SHARD_CLASS", value_delimiter = ',', value_parser = label)]
    pub shard_class: Vec<String>,

    /// Only objects of this namespace are worked on; all without it.
    #[arg(long, value_name = "NAMESPACE", value_parser = namespace)]
    pub namespace: Option<String>,

    /// Only objects with the label `cluster.x-k8s.io/watch-filter` of this value are worked on.
    #[arg(long, value_name = "VALUE", value_parser = label)]
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

    /// Where a collector of OpenTelemetry takes traces by HTTP, such as `http://otel-collector:4318`; none are made without.
    /// The other `OTEL_*` variables say the rest.
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT", hide_env_values = true)]
    pub otlp_endpoint: Option<String>,

    /// Requests in a second to the API server over time; 0 is no limit.
    #[arg(long, value_name = "N", default_value_t = 2000.0, value_parser = rate)]
    pub qps: f32,

    /// Requests to the API server at once.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub burst: u32,

    /// ClusterStacks worked on at once.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    pub clusterstack_concurrency: u16,

    /// ClusterStackReleases worked on at once.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    pub clusterstackrelease_concurrency: u16,

    /// ClusterAddons worked on at once.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    pub clusteraddon_concurrency: u16,

    /// Kubeconfigs of workload clusters may make the operator run programs and read its files.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set, value_parser = clap::builder::BoolishValueParser::new())]
    pub allow_any_kubeconfig: bool,

    /// A local source that ClusterStacks may use: the root of a `file://` source, or a `host[:port]` on a loopback or
    /// link-local address. May be given several times.
    #[arg(long, value_name = "ROOT|HOST", env = "CLUSTERSTACK_ALLOW_SOURCE", value_delimiter = ',')]
    pub allow_source: Vec<String>,

    /// Where node images are built: a directory for each build, and their logs. It should outlive the process, so that a
    /// build goes on where it was; what is lost is made anew.
    #[arg(long, value_name = "DIR", default_value = "/tmp/images/")]
    pub image_dir: PathBuf,

    /// A directory below which templates of node images may name one as destination. May be given several times.
    #[arg(long, value_name = "ROOT", env = "CLUSTERSTACK_ALLOW_IMAGE_DIRECTORY", value_delimiter = ',', value_parser = absolute)]
    pub allow_image_directory: Vec<PathBuf>,

    /// A program, or a directory of programs, that templates of node images may list as tools for builds beside the operator:
    /// they run as its user. `/usr/bin/qemu-img` always may. May be given several times.
    #[arg(long, value_name = "PATH", env = "CLUSTERSTACK_ALLOW_IMAGE_TOOL", value_delimiter = ',', value_parser = absolute)]
    pub allow_image_tool: Vec<PathBuf>,

    /// Node images built at once by tasks of this replica; 0 is no limit. Each template has a limit of its own beside it, and Jobs
    /// count apart.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub image_build_concurrency: u16,

    /// What Jobs of node images run whose template brings no pod: an image that holds `clusterstack`, as a rule the
    /// operator's own.
    #[arg(long, value_name = "IMAGE", env = "CLUSTERSTACK_IMAGE_JOB_IMAGE", default_value = "")]
    pub image_job_image: String,

    /// Which of the environment's sources ClusterStacks get that name none: `GIT_PROVIDER=github`, `GIT_ORG_NAME`,
    /// `GIT_REPOSITORY_NAME`, `GIT_ACCESS_TOKEN`; or `OCI_REGISTRY`, `OCI_REPOSITORY`, and `OCI_ACCESS_TOKEN` or
    /// `OCI_USERNAME` and `OCI_PASSWORD`. Without the flag the one that is there.
    #[arg(long, value_name = "KIND")]
    pub source: Option<SourceKind>,

    /// ClusterStackSources worked on at once.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    pub clusterstacksource_concurrency: u16,

    /// ServiceAccount by which ClusterStacks without `serviceAccountName` apply; of the ClusterStack's own namespace.
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub default_service_account: Option<String>,

    /// ClusterStacks without `serviceAccountName` may apply cluster-scoped objects and objects of other namespaces, with
    /// the operator's own rights.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set, value_parser = clap::builder::BoolishValueParser::new())]
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
    /// Where the web page is served.
    pub page: Option<SocketAddr>,
    /// Cluster API's runtime hooks.
    pub hooks: Option<HookSettings>,
    /// The admission webhook.
    pub webhook: Option<WebhookSettings>,
    /// Namespace of the replicas' Leases; `None` for a process that is alone.
    pub lease_namespace: Option<String>,
    /// The only namespace worked on.
    pub namespace: Option<String>,
    /// The only value of the watch filter's label worked on.
    pub watch_filter: Option<String>,
    /// The store of releases.
    pub release_dir: PathBuf,
    /// Its largest size in bytes.
    pub release_dir_size: u64,
    /// Whether kubeconfigs of workload clusters may run programs and read files.
    pub allow_any_kubeconfig: bool,
    /// Local sources that are allowed.
    pub allow_source: Vec<String>,
    /// Where node images are built.
    pub image_dir: PathBuf,
    /// Below which directories images may be brought.
    pub allow_image_directory: Vec<PathBuf>,
    /// Programs that templates may list as tools.
    pub allow_image_tool: Vec<PathBuf>,
    /// Image of the pods of Jobs whose template brings none; empty for none.
    pub image_job_image: String,
    /// The source of ClusterStacks that name none.
    pub default_source: Option<DefaultSource>,
    /// ServiceAccount for ClusterStacks that name none.
    pub default_service_account: Option<String>,
    /// Whether ClusterStacks without one may apply everywhere.
    pub allow_cluster_scope: bool,
}

/// What can be changed while the operator works.
#[derive(Clone, Debug, PartialEq)]
pub struct Live {
    /// How much is logged.
    pub log_level: LogLevel,
    /// How often a source is polled by who does not say.
    pub default_interval: Duration,
    /// Requests in a second to the API server over time; 0 is no limit.
    pub qps: f32,
    /// Requests to the API server at once.
    pub burst: u32,
    /// ClusterStacks at once.
    pub stack_concurrency: u16,
    /// ClusterStackReleases at once.
    pub release_concurrency: u16,
    /// ClusterAddons at once.
    pub addon_concurrency: u16,
    /// ClusterStackSources at once.
    pub source_concurrency: u16,
    /// Node images built at once by tasks; 0 is no limit.
    pub image_build_concurrency: u16,
    /// The only shard classes worked on; none for objects without.
    pub shard_classes: Vec<String>,
}

impl Live {
    /// Limits of requests to the API server.
    pub fn rate(&self) -> Rate {
        Rate { qps: self.qps, burst: self.burst }
    }

    /// The polling interval of a ClusterStack or ClusterStackSource: a Go duration of at least [`SHORTEST_INTERVAL`]; the
    /// default for none or an unreadable one (the API server refuses those).
    pub fn interval(&self, text: Option<&str>) -> Duration {
        text.and_then(go_duration).map_or(self.default_interval, |given| given.max(SHORTEST_INTERVAL))
    }
}

/// Where runtime hooks are served and reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookSettings {
    /// Where they are served.
    pub address: SocketAddr,
    /// Where Cluster API reaches them.
    pub place: HookPlace,
    /// Namespace of the operator.
    pub namespace: String,
    /// How long a deletion waits at most.
    pub deletion_deadline: Duration,
}

/// Where the admission webhook is served and reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookSettings {
    /// Where it is served.
    pub address: SocketAddr,
    /// Where the API server reaches it.
    pub place: HookPlace,
    /// Namespace of the operator.
    pub namespace: String,
}

/// Where runtime hooks, or the admission webhook, are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookPlace {
    /// A Service of the operator's namespace.
    Service {
        /// Its name.
        name: String,
        /// Its port.
        port: u16,
    },
    /// An `https` URL.
    Url(url::Url),
}

/// How often a source may be polled.
pub const SHORTEST_INTERVAL: Duration = Duration::from_secs(10);

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
    /// No place of the hooks.
    #[error("--{flag} {value:?} can't be called: write {form}")]
    HookPlace {
        /// The flag.
        flag: &'static str,
        /// What was given.
        value: String,
        /// What to give.
        form: &'static str,
    },
    /// The environment names half a source.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
}

impl Flags {
    /// Validates them.
    pub fn settings(self) -> Result<Settings, SettingsError> {
        let hooks = self.hooks()?;
        let webhook = self.webhook()?;
        Ok(Settings {
            hooks,
            webhook,
            metrics: address("metrics-bind-address", &self.metrics_bind_address)?,
            probes: address("health-probe-bind-address", &self.health_probe_bind_address)?,
            receiver: address("receiver-bind-address", &self.receiver_bind_address)?,
            page: address("page-bind-address", &self.page_bind_address)?,
            lease_namespace: self.leader_elect.then_some(self.leader_elect_namespace),
            namespace: self.namespace.filter(|namespace| !namespace.is_empty()),
            watch_filter: self.watch_filter.filter(|value| !value.is_empty()),
            release_dir: self.release_dir,
            release_dir_size: self.release_dir_size.saturating_mul(1024 * 1024),
            allow_any_kubeconfig: self.allow_any_kubeconfig,
            allow_source: self.allow_source.into_iter().filter(|place| !place.is_empty()).collect(),
            // Builds run elsewhere.
            image_dir: std::path::absolute(&self.image_dir).unwrap_or(self.image_dir),
            allow_image_directory: named(self.allow_image_directory),
            allow_image_tool: named(self.allow_image_tool),
            image_job_image: self.image_job_image,
            default_source: DefaultSource::read(self.source, |name| std::env::var(name).ok())?,
            default_service_account: self.default_service_account.filter(|name| !name.is_empty()),
            allow_cluster_scope: self.allow_cluster_scope,
        })
    }
}

impl Flags {
    fn hooks(&self) -> Result<Option<HookSettings>, SettingsError> {
        let bound = match self.hook_port {
            Some(port) => format!(":{port}"),
            None => self.hook_bind_address.clone(),
        };
        let Some(address) = address("hook-bind-address", &bound)? else { return Ok(None) };
        let place = match &self.hook_url {
            Some(url) => hook_url("hook-url", url)?,
            None => hook_service("hook-service", &self.hook_service)?,
        };
        let (namespace, deletion_deadline) = (self.leader_elect_namespace.clone(), self.hook_deletion_deadline);
        Ok(Some(HookSettings { address, place, namespace, deletion_deadline }))
    }

    fn webhook(&self) -> Result<Option<WebhookSettings>, SettingsError> {
        let Some(address) = address("webhook-bind-address", &self.webhook_bind_address)? else { return Ok(None) };
        let place = match &self.webhook_url {
            Some(url) => hook_url("webhook-url", url)?,
            None => hook_service("webhook-service", &self.webhook_service)?,
        };
        Ok(Some(WebhookSettings { address, place, namespace: self.leader_elect_namespace.clone() }))
    }
}

/// A variable without a value gives an empty path.
fn named(paths: Vec<PathBuf>) -> Vec<PathBuf> {
    paths.into_iter().filter(|path| !path.as_os_str().is_empty()).collect()
}

fn hook_url(flag: &'static str, url: &url::Url) -> Result<HookPlace, SettingsError> {
    let is_plain = url.username().is_empty() && url.password().is_none();
    let is_whole = url.scheme() == "https" && url.has_host() && url.query().is_none() && url.fragment().is_none();
    if is_plain && is_whole {
        return Ok(HookPlace::Url(url.clone()));
    }
    let form = "https://host:port or https://host:port/path, with no user, query or fragment";
    // It may hold a password.
    let value = format!("{}://{}", url.scheme(), url.host_str().unwrap_or_default());
    Err(SettingsError::HookPlace { flag, value, form })
}

fn hook_service(flag: &'static str, text: &str) -> Result<HookPlace, SettingsError> {
    let (name, port) = text.split_once(':').unwrap_or((text, "443"));
    let is_label = |name: &str| {
        let plain = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        plain && name.len() <= 63 && name.starts_with(|c: char| c.is_ascii_lowercase()) && !name.ends_with('-')
    };
    match port.parse() {
        Ok(port) if port > 0 && is_label(name) => Ok(HookPlace::Service { name: name.to_owned(), port }),
        _ => {
            let form = "the name of a Service, or name:port";
            Err(SettingsError::HookPlace { flag, value: text.to_owned(), form })
        }
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
    fn hooks_are_reached_by_a_service_or_a_url() {
        let service = |name: &str, port| Some(HookPlace::Service { name: name.into(), port });
        for (text, expected) in [
            ("hooks", service("hooks", 443)),
            ("hooks:9442", service("hooks", 9442)),
            ("hooks:0", None),
            ("Hooks", None),
            ("hooks.system", None),
            ("", None),
        ] {
            assert_eq!(hook_service("hook-service", text).ok(), expected, "{text}");
        }
        for (text, is_taken) in [
            ("https://127.0.0.1:9442", true),
            ("https://hooks.example.com/clusterstack", true),
            ("http://127.0.0.1:9442", false),
            ("https://me:swordfish@hooks.example.com", false),
            ("https://hooks.example.com?a=b", false),
        ] {
            let place = hook_url("hook-url", &text.parse().unwrap());
            assert_eq!(place.is_ok(), is_taken, "{text}");
            assert!(!format!("{place:?}").contains("swordfish"));
        }
    }

    #[test]
    fn intervals_are_go_durations() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            flags: Flags,
        }
        let live = <Line as clap::Parser>::parse_from(["clusterstack"]).flags.live();
        for (text, seconds) in
            [("5m", 300), ("1h30m", 5400), ("90s", 90), ("1s", 10), ("1.5m", 90), ("x", 300), ("", 300)]
        {
            assert_eq!(live.interval(Some(text)), Duration::from_secs(seconds), "{text}");
        }
        assert_eq!(live.interval(None), Duration::from_mins(5));
    }
}
