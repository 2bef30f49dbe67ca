//! Connections to the API servers of workload clusters. By HTTP/2 one carries all questions, and one all watches, as with client-go;
//! where the API server, or what stands in front of it, knows HTTP/1.1 alone, each question under way and each watch has its own.

use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Config;
use kube::client::{Body, ClientBuilder, ConfigExt, DynBody};
use tower::util::BoxService;
use tower::{BoxError, ServiceBuilder, ServiceExt};

/// How long a connection on which something is waited for may be silent before it is asked whether it is there. (client-go waits 30
/// seconds for both, `HTTP2_READ_IDLE_TIMEOUT_SECONDS`.)
const PING: Duration = Duration::from_secs(15);
/// How long the answer to that may take (client-go, `HTTP2_PING_TIMEOUT_SECONDS`).
const PONG: Duration = Duration::from_secs(15);
/// Bytes of an answer that an API server may send before they are read.
const ANSWER: u32 = 1 << 20;
/// The same of all answers of a connection.
const CONNECTION: u32 = 2 << 20;

/// What sends requests.
pub(super) type Sender = BoxService<Request<Body>, Response<Box<DynBody>>, BoxError>;

/// A client with connections of its own, to which layers are added. Through a proxy it is kube's own, which knows HTTP/1.1 alone.
///
/// # Errors
/// The configuration gives no client.
pub(super) fn client(config: Config) -> Result<ClientBuilder<Sender>, kube::Error> {
    if config.proxy_url.is_some() || config.cluster_url.scheme_str() != Some("https") {
        return ClientBuilder::try_from(config);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    let mut tls = HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?).https_only();
    if let Some(name) = config.tls_server_name.clone() {
        let name = name.try_into().map_err(|error| kube::Error::Service(Box::new(error)))?;
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let mut connector = TimeoutConnector::new(tls.enable_all_versions().wrap_connector(tcp));
    connector.set_connect_timeout(config.connect_timeout);
    let client: Client<_, Body> = legacy::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(PING)
        .http2_keep_alive_timeout(PONG)
        .http2_initial_stream_window_size(ANSWER)
        .http2_initial_connection_window_size(CONNECTION)
        .build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client)
        .map_response(|answer| answer.map(|body| Box::new(body.map_err(BoxError::from)) as Box<DynBody>))
        .map_err(BoxError::from);
    Ok(ClientBuilder::new(BoxService::new(service), config.default_namespace))
}
