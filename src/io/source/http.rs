//! HTTP to a source's server, with the guarantees that all sources over HTTP need.
//!
//! Guarantees: each URL, also of a redirect, is one that the operator's flags permit, and so is the address it resolves
//! to; a redirect never leads from https to http; credentials and cookies go to the first host and port alone; a server
//! that is silent for [`SILENCE`] is given up; no more than the bytes asked for are read.
//!
//! Caveats: through a proxy the proxy resolves names, so that only the proxy's own address is looked at.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Once};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use http::header::{AUTHORIZATION, COOKIE, LOCATION, PROXY_AUTHORIZATION};
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, Request, Response, Url, redirect};

use super::access::Access;
use super::error::SourceError;
use crate::core::limits::TooLarge;
use crate::core::source::{AllowList, Refused, SourceUrl, may_resolve_to, permitted};

/// How long a server may be silent.
pub const SILENCE: Duration = Duration::from_secs(20);
/// Redirects that are followed.
const REDIRECTS: usize = 5;
const USER_AGENT: &str = concat!("clusterstack/", env!("CARGO_PKG_VERSION"));

/// Where a redirect may lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirects {
    /// To any host that is permitted, without credentials.
    Anywhere,
    /// To another path or port of the host; another host is not even asked.
    SameHost,
}

/// A client for one source. Clones share connections. Debug shows no secrets.
#[derive(Clone)]
pub struct Http {
    client: Client,
    allow: AllowList,
    secrets: Arc<Vec<String>>,
    /// Plain http was asked for: it is allowed for the source, never for where https sends us.
    insecure: bool,
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").finish_non_exhaustive()
    }
}

impl Http {
    /// A client that reaches servers as `access` says, within what `allow` permits.
    ///
    /// # Errors
    /// A certificate, a key or the proxy's address can't be used.
    pub fn new(access: &Access, allow: &AllowList) -> Result<Self, SourceError> {
        provide_crypto();
        let unusable = |what: &str| {
            let what = what.to_owned();
            move |error: reqwest::Error| SourceError::Unusable { what, problem: words(&error) }
        };
        let mut builder = Client::builder()
            .user_agent(USER_AGENT)
            .connect_timeout(SILENCE)
            .read_timeout(SILENCE)
            .redirect(redirect::Policy::none())
            .dns_resolver(Arc::new(Resolver { allow: allow.clone() }));
        if let Some(authorities) = &access.tls.authorities {
            let certificates = reqwest::Certificate::from_pem_bundle(authorities.as_bytes());
            builder = builder.tls_certs_merge(certificates.map_err(unusable("ca.crt of certSecretRef"))?);
        }
        if let Some((certificate, key)) = &access.tls.identity {
            let identity = reqwest::Identity::from_pem(format!("{certificate}\n{key}").as_bytes());
            builder = builder.identity(identity.map_err(unusable("tls.crt and tls.key of certSecretRef"))?);
        }
        if let Some(proxy) = &access.proxy {
            permitted(&proxy.address, &allow.with_plain_http())?;
            let mut all = reqwest::Proxy::all(&proxy.address).map_err(unusable("address of proxySecretRef"))?;
            if let Some((user, password)) = &proxy.login {
                all = all.basic_auth(user, password);
            }
            builder = builder.proxy(all);
        } else {
            builder = builder.proxy(proxy_of_environment());
        }
        let client = builder.build().map_err(unusable("certSecretRef or proxySecretRef"))?;
        let secrets = access.secrets().into_iter().map(ToOwned::to_owned).collect();
        Ok(Self { client, allow: allow.clone(), secrets: Arc::new(secrets), insecure: access.insecure })
    }

    /// Builder of a request for [`Http::send`].
    pub fn request(&self, method: http::Method, url: Url) -> reqwest::RequestBuilder {
        self.client.request(method, url)
    }

    /// Sends a request and follows redirects. `action` is what is tried, for errors: `listing the releases of`.
    ///
    /// # Errors
    /// The URL is not permitted, or the server does not answer. An answer of any status is an answer.
    pub async fn send(
        &self,
        action: &'static str,
        mut request: Request,
        redirects: Redirects,
    ) -> Result<Response, SourceError> {
        let first = request.url().clone();
        for _ in 0..=REDIRECTS {
            self.check(request.url())?;
            let url = request.url().clone();
            let again = request.try_clone();
            let response = self.client.execute(request).await.map_err(|error| self.failed(action, &url, &error))?;
            if !response.status().is_redirection() || response.status() == http::StatusCode::NOT_MODIFIED {
                return Ok(response);
            }
            let Some(next) = response.headers().get(LOCATION).and_then(|to| url.join(to.to_str().ok()?).ok()) else {
                return Ok(response);
            };
            let Some(mut following) = again else { return Ok(response) };
            if url.scheme() == "https" && next.scheme() != "https" {
                let problem = format!("it sends on from https to {}", redacted(&next));
                return Err(SourceError::Untrusted { url: redacted(&url), problem });
            }
            if redirects == Redirects::SameHost && next.host_str() != first.host_str() {
                let problem = format!("it sends on to {}: set the source's URL to where it lies now", redacted(&next));
                return Err(SourceError::Untrusted { url: redacted(&url), problem });
            }
            let safe = matches!(*following.method(), http::Method::GET | http::Method::HEAD);
            if !safe && !matches!(response.status().as_u16(), 307 | 308) {
                return Ok(response);
            }
            if (next.scheme(), next.host_str(), next.port_or_known_default())
                != (first.scheme(), first.host_str(), first.port_or_known_default())
            {
                for header in [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION] {
                    following.headers_mut().remove(header);
                }
                for header in ["private-token", "job-token", "deploy-token"] {
                    following.headers_mut().remove(header);
                }
            }
            *following.url_mut() = next;
            request = following;
        }
        let problem = format!("more than {REDIRECTS} redirects");
        Err(SourceError::Unreachable { action, url: redacted(&first), problem })
    }

    /// The body of an answer, of at most `limit` bytes.
    ///
    /// # Errors
    /// It breaks off, or is larger.
    pub async fn body(&self, action: &'static str, response: Response, limit: u64) -> Result<Bytes, SourceError> {
        let url = response.url().clone();
        let too_large = || SourceError::TooLarge {
            of: redacted(&url),
            limit: TooLarge { what: "an answer in bytes".to_owned(), limit },
        };
        let told = response.content_length();
        if told.is_some_and(|length| length > limit) {
            return Err(too_large());
        }
        let mut body = BytesMut::new();
        let mut stream = response.bytes_stream();
        while let Some(chunk) = stream.next().await {
            let chunk = chunk.map_err(|error| self.failed(action, &url, &error))?;
            if (body.len() + chunk.len()) as u64 > limit {
                return Err(too_large());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }

    /// An error of the transport, in words without secrets.
    pub fn failed(&self, action: &'static str, url: &Url, error: &reqwest::Error) -> SourceError {
        let problem = self.without_secrets(&words(error));
        let url = redacted(url);
        if let Some(refused) = refusal(error) {
            return SourceError::Refused(refused);
        }
        let certificate =
            ["certificate", "UnknownIssuer", "CaUsedAsEndEntity"].iter().any(|word| problem.contains(word));
        if certificate && error.is_connect() {
            let hint = "if its authority is your own, put it into ca.crt of a Secret that certSecretRef names";
            return SourceError::Untrusted { url, problem: format!("{problem}; {hint}") };
        }
        SourceError::Unreachable { action, url, problem }
    }

    /// `text` without the secrets of this source.
    pub fn without_secrets(&self, text: &str) -> String {
        self.secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
    }

    fn check(&self, url: &Url) -> Result<(), SourceError> {
        let allow = if self.insecure { self.allow.with_plain_http() } else { self.allow.clone() };
        permitted(url.as_str(), &allow)?;
        Ok(())
    }
}

/// The proxy that `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` name, but never on the way to our own machine.
fn proxy_of_environment() -> reqwest::Proxy {
    let environment = Matcher::from_env();
    reqwest::Proxy::custom(move |url| {
        if SourceUrl::parse(url.as_str()).is_ok_and(|url| url.is_local_host()) {
            return None;
        }
        let found = environment.intercept(&url.as_str().parse().ok()?)?;
        let mut proxy: Url = found.uri().to_string().parse().ok()?;
        if let Some((user, password)) = found.raw_auth() {
            let _ = (proxy.set_username(user), proxy.set_password(Some(password)));
        }
        Some(proxy)
    })
}

/// A URL for messages: without user, password and query, which may hold tokens of a store of blobs.
pub fn redacted(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    crate::core::source::redact(url.as_str())
}

/// An error with its causes; reqwest's own words stop at the first. Without the URL, which may hold secrets.
fn words(error: &reqwest::Error) -> String {
    let mut words = Vec::new();
    let mut next: Option<&dyn std::error::Error> = std::error::Error::source(error);
    while let Some(cause) = next {
        let text = cause.to_string();
        if words.last() != Some(&text) {
            words.push(text);
        }
        next = cause.source();
    }
    if words.is_empty() {
        words.push(if error.is_timeout() { "timed out".to_owned() } else { "no answer".to_owned() });
    }
    words.join(": ")
}

fn refusal(error: &reqwest::Error) -> Option<Refused> {
    let mut next: Option<&dyn std::error::Error> = std::error::Error::source(error);
    while let Some(cause) = next {
        if let Some(refused) = cause.downcast_ref::<Refused>() {
            return Some(refused.clone());
        }
        next = cause.source();
    }
    None
}

/// Resolves names, and gives only addresses that the operator may connect to.
#[derive(Debug)]
struct Resolver {
    allow: AllowList,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let allow = self.allow.clone();
        Box::pin(async move {
            let host = name.as_str().to_owned();
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host.as_str(), 0)).await?.collect();
            let may = |address: &SocketAddr| may_resolve_to(&host, address.ip(), &allow);
            let good: Vec<SocketAddr> = found.iter().copied().filter(may).collect();
            if good.is_empty() && !found.is_empty() {
                return Err(Box::new(Refused::Host { host }) as Box<dyn std::error::Error + Send + Sync>);
            }
            Ok(Box::new(good.into_iter()) as Addrs)
        })
    }
}

/// rustls wants to know once per process by what it computes.
fn provide_crypto() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Somebody else was first: as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}
