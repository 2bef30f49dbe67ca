//! A TLS server whose certificate comes from [`super::hook_certificate`] and changes while it runs.
//!
//! Guarantees: the socket is bound before anything is served; a certificate that can't be served leaves the one before in
//! place; connections are not broken by a new certificate, and are bounded as those without TLS are.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum_server::Handle;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use hyper_util::rt::TokioTimer;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::task::TaskTracker;

use super::opening::InTime;
use super::plain_server::Places;
use crate::io::hook_certificate::Identity;

/// Longest time for a request with its body.
const REQUEST: Duration = Duration::from_secs(4);

/// A server that listens, and serves as soon as it has a certificate.
pub struct TlsServer {
    /// What is served, for logs: `runtime hooks`.
    what: &'static str,
    routes: Router,
    /// Until there is a certificate.
    listener: Option<TcpListener>,
    /// What is served by, and its certificate.
    running: Option<(RustlsConfig, String)>,
    handle: Handle<SocketAddr>,
    tasks: TaskTracker,
}

impl TlsServer {
    /// Binds the address. The server runs in `tasks`.
    ///
    /// # Errors
    /// The address can't be bound.
    pub fn bind(what: &'static str, address: SocketAddr, routes: Router, tasks: &TaskTracker) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let handle = Handle::new();
        Ok(Self { what, routes, listener: Some(listener), running: None, handle, tasks: tasks.clone() })
    }

    /// Serves by this certificate from now on.
    ///
    /// # Errors
    /// It can't be served; the one before still is.
    pub fn serve(&mut self, identity: &Identity) -> Result<(), String> {
        if let Some((config, before)) = &mut self.running {
            if *before != identity.certificate {
                config.reload_from_config(tls(self.what, identity)?);
                before.clone_from(&identity.certificate);
            }
            return Ok(());
        }
        let config = RustlsConfig::from_config(tls(self.what, identity)?);
        let Some(listener) = self.listener.take() else { return Ok(()) };
        self.running = Some((config.clone(), identity.certificate.clone()));
        self.tasks.spawn(listen(self.what, listener, config, self.handle.clone(), self.routes.clone()));
        Ok(())
    }

    /// Ends it.
    pub fn shutdown(&self) {
        self.handle.shutdown();
    }
}

/// Refuses what takes too long to come and to be answered.
pub async fn in_time(request: Request, next: Next) -> Response {
    let late = |_| (StatusCode::REQUEST_TIMEOUT, "the request did not come in time\n").into_response();
    tokio::time::timeout(REQUEST, next.run(request)).await.unwrap_or_else(late)
}

fn tls(what: &str, identity: &Identity) -> Result<Arc<ServerConfig>, String> {
    let failed = |error: String| format!("the certificate of the {what} can't be served: {error}");
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).collect();
    let chain = chain.map_err(|error| failed(error.to_string()))?;
    // An error of the key might show it.
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).map_err(|_| failed("its key is no PEM".into()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = builder.and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    config.map(Arc::new).map_err(|error| failed(error.to_string()))
}

async fn listen(
    what: &'static str,
    listener: TcpListener,
    config: RustlsConfig,
    handle: Handle<SocketAddr>,
    routes: Router,
) {
    let bound = listener.local_addr().map(|address| address.to_string()).unwrap_or_default();
    let mut server = match axum_server::from_tcp(listener) {
        Ok(server) => {
            let inner = RustlsAcceptor::new(config).acceptor(Places::new());
            server.handle(handle).acceptor(InTime { inner, within: REQUEST })
        }
        Err(error) => return tracing::error!(%error, bound, "{what} can't be served"),
    };
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(REQUEST);
    tracing::info!(bound, "serving {what}");
    if let Err(error) = server.serve(routes.into_make_service()).await {
        tracing::error!(%error, bound, "server ended");
    }
}
