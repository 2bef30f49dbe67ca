//! HTTP to a source's server, with the guarantees that all sources over HTTP need.
//!
//! Guarantees: each URL, also of a redirect, is one that the operator's flags permit, and so is the address it resolves
//! to; a redirect never leads from https to http; credentials and cookies go to the first host and port alone; a server
//! that is silent for [`SILENCE`] is given up; no more than the bytes asked for are read.
//!
//! Caveats: through a proxy the proxy resolves names, so that only the proxy's own address is looked at. On a machine
//! without authorities the client trusts those of the source alone.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use http::header::{AUTHORIZATION, COOKIE, LOCATION, PROXY_AUTHORIZATION};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, ClientBuilder, Request, Response, Url, redirect};

use super::access::Access;
use super::answers::{Redirected, no_answer};
use super::error::SourceError;
use super::tls::{self, Asked};
use crate::core::limits::TooLarge;
use crate::core::source::{AllowList, Refused, SourceUrl, may_resolve_to, permitted};

/// How long a server may be silent.
pub const SILENCE: Duration = Duration::from_secs(20);
/// What hyper says where a connection ended before the request went out.
const NOT_SENT: &str = "connection was not ready";
/// How often a request is sent again that was not sent.
const UNSENT: usize = 4;
/// What the tunnel says where a proxy wants a login.
const PROXY_LOGIN: &str = "proxy authorization required";
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
    /// To where a flag names host and port, if need be to a local address.
    named: Client,
    /// To all other hosts, never to a local address.
    strict: Client,
    /// Through a proxy.
    proxied: Option<Proxied>,
    allow: AllowList,
    secrets: Arc<Vec<String>>,
    /// Plain http was asked for: it is allowed for the source, never for where https sends us.
    insecure: bool,
    /// Whether a server wanted a certificate of ours, and there is none.
    asked: Asked,
    /// How long a server may be silent.
    silence: Duration,
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
        Self::patient(access, allow, SILENCE)
    }

    /// The same, for servers that may be silent for longer: while they take a large body, which counts as silence, or put
    /// together what they took.
    ///
    /// # Errors
    /// As of [`Http::new`].
    pub fn patient(access: &Access, allow: &AllowList, silence: Duration) -> Result<Self, SourceError> {
        let asked = Asked::default();
        let named = client(access, &asked, silence, Resolver::of(allow), ClientBuilder::no_proxy)?;
        let strict = if allow.holds_ports() {
            client(access, &asked, silence, Resolver::of(&AllowList::default()), ClientBuilder::no_proxy)?
        } else {
            named.clone()
        };
        Ok(Self {
            named,
            strict,
            proxied: Proxied::new(access, &asked, silence, allow)?,
            allow: allow.clone(),
            secrets: Arc::new(access.secrets()),
            insecure: access.insecure,
            asked,
            silence,
        })
    }

    /// Builder of a request for [`Http::send`].
    pub fn request(&self, method: http::Method, url: Url) -> reqwest::RequestBuilder {
        self.strict.request(method, url)
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
            let url = request.url().clone();
            match self.check(&url) {
                Err(SourceError::Refused(refused)) if url != first => {
                    return Err(SourceError::Led { action, url: redacted(&first), refused });
                }
                checked => checked?,
            }
            let again = request.try_clone();
            let redirected = (url != first).then(|| Redirected::new(&first, &url, |text| self.without_secrets(text)));
            let response = self.execute(request, &url).await;
            let mut response =
                response.map_err(|error| explained(redirected.as_ref(), self.failed(action, &url, &error)))?;
            if response.status() == http::StatusCode::PROXY_AUTHENTICATION_REQUIRED {
                return Err(self.proxy_login(action, &url));
            }
            if let Some(redirected) = redirected {
                response.extensions_mut().insert(redirected);
            }
            if !response.status().is_redirection() || response.status() == http::StatusCode::NOT_MODIFIED {
                return Ok(response);
            }
            let Some(next) = response.headers().get(LOCATION).and_then(|to| url.join(to.to_str().ok()?).ok()) else {
                return Ok(response);
            };
            let Some(mut following) = again else { return Ok(response) };
            if url.scheme() == "https" && next.scheme() != "https" {
                let problem = format!("it sends on from https to {}", self.shown(&next));
                return Err(SourceError::Untrusted { url: redacted(&first), problem });
            }
            if redirects == Redirects::SameHost && next.host_str() != first.host_str() {
                let problem =
                    format!("it sends on to {}: set the source's URL to where it lies now", self.shown(&next));
                return Err(SourceError::Untrusted { url: redacted(&first), problem });
            }
            let safe = matches!(*following.method(), http::Method::GET | http::Method::HEAD);
            if !safe && !matches!(response.status().as_u16(), 307 | 308) {
                return Ok(response);
            }
            if (next.scheme(), next.host_str(), next.port_or_known_default())
                != (first.scheme(), first.host_str(), first.port_or_known_default())
            {
                if *following.method() == http::Method::POST && following.body().is_some() {
                    // What is posted may be a login.
                    let problem =
                        format!("it sends on what was posted to {}, which is not the same server", self.shown(&next));
                    return Err(SourceError::Untrusted { url: redacted(&first), problem });
                }
                for header in [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION] {
                    following.headers_mut().remove(header);
                }
                for header in ["private-token", "job-token", "deploy-token", "x-auth-token"] {
                    following.headers_mut().remove(header);
                }
            }
            *following.url_mut() = next;
            request = following;
        }
        let problem = format!("more than {REDIRECTS} redirects");
        Err(SourceError::Unreachable { action, url: redacted(&first), problem })
    }

    /// Sends a request. One that was not sent because its connection ended first is sent again.
    async fn execute(&self, mut request: Request, url: &Url) -> Result<Response, reqwest::Error> {
        for _ in 0..UNSENT {
            let again = request.try_clone();
            match (self.client_for(url).execute(request).await, again) {
                (Err(error), Some(same)) if words(&error).contains(NOT_SENT) => request = same,
                (answer, _) => return answer,
            }
        }
        self.client_for(url).execute(request).await
    }

    /// The body of an answer, of at most `limit` bytes.
    ///
    /// # Errors
    /// It breaks off, or is larger.
    pub async fn body(&self, action: &'static str, response: Response, limit: u64) -> Result<Bytes, SourceError> {
        let url = response.url().clone();
        let redirected = response.extensions().get::<Redirected>().cloned();
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
            let chunk = chunk.map_err(|error| explained(redirected.as_ref(), self.failed(action, &url, &error)))?;
            if (body.len() + chunk.len()) as u64 > limit {
                return Err(too_large());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }

    /// An error of the transport, in words without secrets.
    pub fn failed(&self, action: &'static str, url: &Url, error: &reqwest::Error) -> SourceError {
        let silence = if error.is_connect() { SILENCE } else { self.silence };
        let problem = if error.is_timeout() { no_answer(silence) } else { self.without_secrets(&words(error)) };
        if let Some(refused) = refusal(error) {
            return SourceError::Led { action, url: redacted(url), refused };
        }
        if problem.contains(PROXY_LOGIN) {
            return self.proxy_login(action, url);
        }
        let url = redacted(url);
        if problem.contains("CertificateRequired") || (problem.contains(NOT_SENT) && self.asked.was()) {
            let problem =
                "it asks for a certificate of ours: put tls.crt and tls.key into a Secret that certSecretRef names";
            return SourceError::Unauthorized { action, url, problem: problem.to_owned() };
        }
        let certificate =
            ["certificate", "UnknownIssuer", "CaUsedAsEndEntity"].iter().any(|word| problem.contains(word));
        if certificate && error.is_connect() {
            let hint = if problem.contains("CaUsedAsEndEntity") {
                "its certificate is an authority's own (CA:TRUE), which TLS does not take from a server: give it one that is signed by the authority, and put the authority into ca.crt"
            } else {
                "if its authority is your own, put it into ca.crt of a Secret that certSecretRef names"
            };
            return SourceError::Untrusted { url, problem: format!("{problem}; {hint}") };
        }
        if problem.contains("InvalidContentType") && error.is_connect() {
            return SourceError::Unreachable { action, url, problem: format!("{problem}; {NO_TLS}") };
        }
        let own_proxy = self.proxied.as_ref().is_some_and(|proxied| proxied.only.is_none());
        if own_proxy && error.is_connect() {
            let problem =
                format!("the proxy of proxySecretRef can't be reached, or does not let us through: {problem}");
            return SourceError::Unreachable { action, url, problem };
        }
        SourceError::Unreachable { action, url, problem }
    }

    /// That a proxy wants a login, and where it is put: the proxy is the source's, or the operator's.
    fn proxy_login(&self, action: &'static str, url: &Url) -> SourceError {
        let problem = match &self.proxied {
            Some(Proxied { only: None, .. }) => {
                "the proxy on the way wants a login: put username and password into the Secret of proxySecretRef"
            }
            Some(_) => {
                "the proxy on the way wants a login: put it into the operator's HTTPS_PROXY or HTTP_PROXY, as http://user:password@host:port, or name a Secret with address, username and password in proxySecretRef"
            }
            None => {
                "a proxy on the way wants a login: name a Secret with address, username and password in proxySecretRef"
            }
        };
        SourceError::Unauthorized { action, url: redacted(url), problem: problem.to_owned() }
    }

    /// `text` without the secrets of this source.
    pub fn without_secrets(&self, text: &str) -> String {
        self.secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
    }

    /// A URL that a server said, for messages: it may repeat a login.
    pub(super) fn shown(&self, url: &Url) -> String {
        self.without_secrets(&redacted(url))
    }

    fn client_for(&self, url: &Url) -> &Client {
        match &self.proxied {
            Some(proxied) if proxied.leads_to(url) => &proxied.client,
            _ if self.is_named(url) => &self.named,
            _ => &self.strict,
        }
    }

    /// Whether a flag names host and port, so that the host may be a local one.
    fn is_named(&self, url: &Url) -> bool {
        SourceUrl::parse(url.as_str()).is_ok_and(|url| self.allow.holds_host(url.host(), url.port()))
    }

    fn check(&self, url: &Url) -> Result<(), SourceError> {
        let allow = if self.insecure { self.allow.with_plain_http() } else { self.allow.clone() };
        permitted(url.as_str(), &allow)?;
        Ok(())
    }
}

/// A client with the certificates of `access`.
fn client(
    access: &Access,
    asked: &Asked,
    silence: Duration,
    resolver: Resolver,
    way: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> Result<Client, SourceError> {
    let mut builder = Client::builder()
        .user_agent(USER_AGENT)
        .connect_timeout(SILENCE)
        .read_timeout(silence)
        // The client's own is 30 s, also for a server that takes what is sent, but slowly.
        .tcp_user_timeout(silence)
        .redirect(redirect::Policy::none())
        .dns_resolver(Arc::new(resolver));
    builder = way(builder).tls_backend_preconfigured(tls::config(&access.tls, asked)?);
    builder.build().map_err(|error| SourceError::Unusable {
        what: "certSecretRef or proxySecretRef".to_owned(),
        problem: words(&error),
    })
}

/// The way through a proxy.
#[derive(Clone)]
struct Proxied {
    client: Client,
    /// Which URLs it is for; all where the source itself names the proxy.
    only: Option<Arc<Matcher>>,
}

impl Proxied {
    /// The proxy that the source names; else those that `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` say.
    fn new(access: &Access, asked: &Asked, silence: Duration, allow: &AllowList) -> Result<Option<Self>, SourceError> {
        let Some(own) = &access.proxy else { return Self::of_environment(access, asked, silence) };
        // The address may hold a login: it is not quoted.
        let what = || "address of proxySecretRef".to_owned();
        if Url::parse(&own.address).ok().is_none_or(|url| !url.has_host()) {
            let problem = "it is no URL: write http://proxy.example.com:3128".to_owned();
            return Err(SourceError::Unusable { what: what(), problem });
        }
        let address = permitted(&own.address, &allow.with_plain_http())?;
        let proxy = reqwest::Proxy::all(&own.address)
            .map_err(|error| SourceError::Unusable { what: what(), problem: words(&error) })?;
        let proxy = match &own.login {
            Some((user, password)) => proxy.basic_auth(user, password),
            None => proxy,
        };
        let named = allow.holds_host(address.host(), address.port());
        let resolver = if named { Resolver::anywhere() } else { Resolver::of(&AllowList::default()) };
        let client = client(access, asked, silence, resolver, |builder| builder.proxy(proxy))?;
        Ok(Some(Self { client, only: None }))
    }

    fn of_environment(access: &Access, asked: &Asked, silence: Duration) -> Result<Option<Self>, SourceError> {
        let names = ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy"];
        if names.iter().all(|name| std::env::var_os(name).is_none_or(|value| value.is_empty())) {
            return Ok(None);
        }
        let matcher = Arc::new(Matcher::from_env());
        let environment = Arc::clone(&matcher);
        let proxy = reqwest::Proxy::custom(move |url| {
            let found = environment.intercept(&url.as_str().parse().ok()?)?;
            let mut proxy: Url = found.uri().to_string().parse().ok()?;
            if let Some((user, password)) = login(&found) {
                let _ = (proxy.set_username(&user), proxy.set_password(Some(&password)));
            }
            Some(proxy)
        });
        // Who runs the operator says where its proxy is.
        let client = client(access, asked, silence, Resolver::anywhere(), |builder| builder.proxy(proxy))?;
        Ok(Some(Self { client, only: Some(matcher) }))
    }

    /// Whether a URL is asked through it; never our own machine by the environment's.
    fn leads_to(&self, url: &Url) -> bool {
        let Some(matcher) = &self.only else { return true };
        let local = SourceUrl::parse(url.as_str()).is_ok_and(|url| url.is_local_host());
        !local && url.as_str().parse().is_ok_and(|url| matcher.intercept(&url).is_some())
    }
}

/// User and password of a proxy of the environment: the matcher keeps those of HTTP proxies as the header alone.
fn login(found: &Intercept) -> Option<(String, String)> {
    if let Some((user, password)) = found.raw_auth() {
        return Some((user.to_owned(), password.to_owned()));
    }
    let encoded = found.basic_auth()?.to_str().ok()?.strip_prefix("Basic ")?;
    let text = String::from_utf8(STANDARD.decode(encoded).ok()?).ok()?;
    text.split_once(':').map(|(user, password)| (user.to_owned(), password.to_owned()))
}

fn explained(redirected: Option<&Redirected>, error: SourceError) -> SourceError {
    match redirected {
        Some(redirected) => redirected.explain(error),
        None => error,
    }
}

/// What is said where a server does not answer in TLS.
const NO_TLS: &str =
    "it speaks no TLS there: if plain http is meant, set insecure, or --plain-http on the command line";

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
    /// All that is resolved is the name of a proxy that may be local.
    anywhere: bool,
}

impl Resolver {
    /// Names that `allow` holds may be local.
    fn of(allow: &AllowList) -> Self {
        Self { allow: allow.clone(), anywhere: false }
    }

    fn anywhere() -> Self {
        Self { allow: AllowList::default(), anywhere: true }
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (allow, anywhere) = (self.allow.clone(), self.anywhere);
        Box::pin(async move {
            let host = name.as_str().to_owned();
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host.as_str(), 0)).await?.collect();
            let may = |address: &SocketAddr| anywhere || may_resolve_to(&host, address.ip(), &allow);
            let good: Vec<SocketAddr> = found.iter().copied().filter(may).collect();
            if good.is_empty() && !found.is_empty() {
                return Err(Box::new(Refused::Host { host }) as Box<dyn std::error::Error + Send + Sync>);
            }
            Ok(Box::new(good.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_login_of_a_proxy_of_the_environment_is_known() {
        let login_of = |proxy: &str| {
            let matcher = Matcher::builder().all(proxy.to_owned()).build();
            login(&matcher.intercept(&"https://x.example.com/".parse().unwrap()).unwrap())
        };
        let expected = Some(("me".to_owned(), "s:word fish".to_owned()));
        assert_eq!(login_of("http://me:s%3Aword%20fish@proxy.example.com:3128"), expected);
        assert_eq!(login_of("http://proxy.example.com:3128"), None);
    }

    #[tokio::test]
    async fn a_flag_for_one_port_of_a_name_opens_no_other() {
        let allow = AllowList::parse(["git.example.com:8443", "other.example.com"]).unwrap();
        let http = Http::new(&Access::default(), &allow).unwrap();
        for (url, named) in [
            ("https://git.example.com:8443/x", true),
            ("https://other.example.com:1/x", true),
            ("https://git.example.com/x", false),
            ("https://git.example.com:8444/x", false),
            ("https://example.com/x", false),
        ] {
            let url = Url::parse(url).unwrap();
            assert_eq!(http.is_named(&url), named, "{url}");
            assert_eq!(std::ptr::eq(http.client_for(&url), &raw const http.named), named, "{url}");
        }
        // What the two differ in.
        let resolves = async |resolver: Resolver| resolver.resolve("localhost".parse().unwrap()).await.is_ok();
        assert!(resolves(Resolver::of(&AllowList::parse(["localhost:1"]).unwrap())).await);
        assert!(!resolves(Resolver::of(&AllowList::default())).await);
        assert!(resolves(Resolver::anywhere()).await);
    }
}
