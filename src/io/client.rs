//! Clients of the management cluster: the operator's own, and one per ServiceAccount that releases are applied as.

pub(super) mod again;
pub(super) mod escaped;
pub(super) mod ours;
pub mod shallow;
mod whole;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use http::{HeaderName, HeaderValue, Request, header::USER_AGENT};
use hyper_util::client::proxy::matcher::Matcher;
use kube::client::{Body, ClientBuilder};
use kube::config::KubeconfigError;
use kube::{Client, Config};
use thiserror::Error;
use tower::buffer::BufferLayer;
use tower::retry::RetryLayer;
use tower::{BoxError, Layer, Service};

use self::again::TriesAgain;
use self::ours::StillOurs;
use self::shallow::ShallowAnswers;
use self::whole::WholeAnswers;
pub(super) use self::whole::is_stream;
use crate::core::identity;
use crate::io::fence;

/// How long the API server may take for an answer that is not a watch: longer than the 30 s it may wait for an admission webhook
/// (`admissionregistration.k8s.io/v1`, `timeoutSeconds`), so that its answer names the one that it waited for.
const ANSWER: Duration = Duration::from_secs(36);

/// Requests that wait for a connection; more wait for a place.
pub(super) const QUEUE: usize = 1024;

/// Clients of ServiceAccounts that are kept; then they are made anew.
const IMPERSONATING: usize = 512;

/// How we call ourselves: an API server's audit log tells who it was.
pub const AGENT: HeaderValue = HeaderValue::from_static(concat!("clusterstack/", env!("CARGO_PKG_VERSION")));

/// Why there is no client.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Neither a kubeconfig nor a ServiceAccount of a pod was found, or it is unusable.
    #[error("no way to the API server: {0}; set KUBECONFIG, or run in a pod with a ServiceAccount")]
    Config(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The configuration does not give a client.
    #[error("the configuration of the API server gives no client: {0}")]
    Build(#[source] kube::Error),
    /// The name can't be sent as a header.
    #[error("{0:?} is no name of a ServiceAccount")]
    Name(String),
}

/// What is wrong with a kubeconfig, without its lines: what its reader shows of them may be a token or a key.
pub fn unquoted<E: std::error::Error + Send + Sync + 'static>(error: E) -> Box<dyn std::error::Error + Send + Sync> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(one) = cause {
        if let Some(KubeconfigError::Parse(parse)) = one.downcast_ref() {
            let place = parse.location().map(|at| format!(" at line {}, column {}", at.line(), at.column()));
            return format!("the kubeconfig can't be read: it is no YAML of its form{}", place.unwrap_or_default())
                .into();
        }
        cause = one.source();
    }
    Box::new(error)
}

/// Takes the environment's proxy back where `NO_PROXY` names the API server: kube compares it with the proxy's own name.
pub fn heed_no_proxy(config: &mut Config) {
    let of_environment =
        ["HTTPS_PROXY", "https_proxy"].iter().filter_map(|name| std::env::var(name).ok()).any(|text| {
            let proxy: Option<http::Uri> = text.trim().parse().ok();
            proxy.is_some() && proxy == config.proxy_url
        });
    if of_environment && Matcher::from_env().intercept(&config.cluster_url).is_none() {
        config.proxy_url = None;
    }
}

/// Makes clients and keeps those of ServiceAccounts.
pub struct Clients {
    config: Config,
    own: Client,
    bucket: TokenBucket,
    watching: Client,
    impersonating: Mutex<HashMap<(String, String), Client>>,
}

/// Limits of requests to the API server.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Requests in a second over time; 0 is no limit.
    pub qps: f32,
    /// Requests at once.
    pub burst: u32,
}

impl Clients {
    /// From `KUBECONFIG`, `~/.kube/config` or the pod's ServiceAccount, as `kubectl` would; `instance` tells this process
    /// from others in the API server's audit log.
    pub async fn infer(rate: Rate, instance: &str) -> Result<Self, ClientError> {
        let mut config = Config::infer().await.map_err(|error| ClientError::Config(unquoted(error)))?;
        heed_no_proxy(&mut config);
        Self::new(config, rate, instance)
    }

    /// From a configuration.
    pub fn new(mut config: Config, rate: Rate, instance: &str) -> Result<Self, ClientError> {
        let agent = concat!("clusterstack/", env!("CARGO_PKG_VERSION"));
        let agent = HeaderValue::from_str(&format!("{agent} ({instance})")).unwrap_or(AGENT);
        config.headers.push((USER_AGENT, agent));
        let mut watching = config.clone();
        watching.read_timeout = None;
        let watching = plain(watching).map_err(ClientError::Build)?;
        config.read_timeout = Some(ANSWER);
        config.reset_reader_on_write = true;
        config.connect_timeout = Some(Duration::from_secs(10));
        // kube's own retries don't ask whether the root is still ours, and wait as long as they are told to.
        config.default_retry = false;
        let bucket = TokenBucket::new(rate);
        let own = limited(config.clone(), &bucket)?;
        Ok(Self { config, own, bucket, watching, impersonating: Mutex::default() })
    }

    /// Other limits of requests from now on.
    pub fn set_rate(&self, rate: Rate) {
        self.bucket.set(rate);
    }

    /// With the operator's own rights.
    pub fn own(&self) -> Client {
        fence::guarded_own(&self.own)
    }

    /// With the operator's own rights, for watches: no limit on how long an answer takes.
    pub fn watching(&self) -> Client {
        self.watching.clone()
    }

    /// With the rights of a ServiceAccount, by impersonation.
    pub fn of_service_account(&self, namespace: &str, name: &str) -> Result<Client, ClientError> {
        let key = (namespace.to_owned(), name.to_owned());
        let mut clients = self.impersonating.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(client) = clients.get(&key) {
            return Ok(fence::guarded(client));
        }
        let mut config = self.config.clone();
        // A name that can't be said is nobody's, and so is that: what it asks for is refused like what a missing one asks for.
        let name = if identity::subdomain(name).is_ok() { name } else { &name.escape_default().to_string() };
        let user = format!("system:serviceaccount:{namespace}:{name}");
        let value = HeaderValue::from_str(&user).map_err(|_| ClientError::Name(user))?;
        config.headers.push((HeaderName::from_static("impersonate-user"), value));
        let client = steady(config)?;
        if clients.len() >= IMPERSONATING {
            clients.clear();
        }
        clients.insert(key, client.clone());
        Ok(fence::guarded(&client))
    }
}

/// A client that reads all objects of a kind, though one of them may be nested too deep.
///
/// # Errors
/// The configuration gives no client.
pub fn plain(config: Config) -> Result<Client, kube::Error> {
    Ok(ClientBuilder::try_from(config)?.with_layer(&ShallowAnswers).with_layer(&escaped::layer()).build())
}

/// `burst` requests may go at once; they come back at `qps`.
fn limited(config: Config, bucket: &TokenBucket) -> Result<Client, ClientError> {
    let builder = ClientBuilder::try_from(config).map_err(ClientError::Build)?;
    let builder = builder.with_layer(&BufferLayer::new(QUEUE)).with_layer(&StillOurs).with_layer(bucket);
    let builder = builder.with_layer(&WholeAnswers).with_layer(&RetryLayer::new(TriesAgain::of_reads()));
    Ok(builder.with_layer(&ShallowAnswers).with_layer(&escaped::layer()).build())
}

/// A client that reads again what fails in passing.
fn steady(config: Config) -> Result<Client, ClientError> {
    let builder = ClientBuilder::try_from(config).map_err(ClientError::Build)?;
    let builder = builder.with_layer(&BufferLayer::new(QUEUE)).with_layer(&StillOurs);
    let builder = builder.with_layer(&WholeAnswers).with_layer(&RetryLayer::new(TriesAgain::of_reads()));
    Ok(builder.with_layer(&ShallowAnswers).with_layer(&escaped::layer()).build())
}

/// A token bucket, as client-go limits its requests: a full one lets `burst` requests go at once, and it fills again
/// evenly. (tower's own limit lets everything wait for the end of a window.)
#[derive(Clone)]
struct TokenBucket(Arc<Mutex<Tokens>>);

struct Tokens {
    rate: Rate,
    left: f64,
    at: Instant,
}

impl TokenBucket {
    fn new(rate: Rate) -> Self {
        Self(Arc::new(Mutex::new(Tokens { rate, left: f64::from(rate.burst), at: Instant::now() })))
    }

    fn set(&self, rate: Rate) {
        let mut tokens = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A burst may have grown: it fills up from where it is.
        tokens.left = tokens.left.min(f64::from(rate.burst));
        tokens.rate = rate;
    }

    /// Takes a token; how long the request has to wait for it.
    fn take(&self, now: Instant) -> Duration {
        let mut tokens = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if tokens.rate.qps <= 0.0 || tokens.rate.burst == 0 {
            (tokens.left, tokens.at) = (0.0, now);
            return Duration::ZERO;
        }
        let refilled = now.duration_since(tokens.at).as_secs_f64() * f64::from(tokens.rate.qps);
        tokens.left = (tokens.left + refilled).min(f64::from(tokens.rate.burst)) - 1.0;
        tokens.at = now;
        Duration::from_secs_f64((-tokens.left / f64::from(tokens.rate.qps)).max(0.0))
    }
}

impl<S> Layer<S> for TokenBucket {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, bucket: self.clone() }
    }
}

/// A service whose requests wait for their token.
#[derive(Clone)]
struct Limited<S> {
    inner: S,
    bucket: TokenBucket,
}

impl<S> Service<Request<Body>> for Limited<S>
where
    S: Service<Request<Body>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut std::task::Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let wait = self.bucket.take(Instant::now());
        // The one that was asked whether it is ready is the one to call.
        let next = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, next);
        Box::pin(async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            ready.call(request).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_at_once_and_the_rest_evenly() {
        let bucket = TokenBucket::new(Rate { qps: 10.0, burst: 3 });
        let start = Instant::now();
        let waits: Vec<u128> = (0..5).map(|_| bucket.take(start).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200]);
        assert_eq!(bucket.take(start + Duration::from_secs(10)), Duration::ZERO);
        bucket.set(Rate { qps: 0.0, burst: 3 });
        assert!((0..100).all(|_| bucket.take(start + Duration::from_secs(10)).is_zero()));
        bucket.set(Rate { qps: 1.0, burst: 2 });
        let waits: Vec<u64> = (0..3).map(|_| bucket.take(start + Duration::from_secs(12)).as_secs()).collect();
        assert_eq!(waits, [0, 0, 1]);
    }
}
