//! Servers without TLS: of metrics, probes, the receiver and the web page.
//!
//! Guarantees: who sends no request, sends it slowly or does not read the answer is not waited for; connections are bounded, also
//! those of one peer, and one too many is closed at once; at the end what is under way is finished, for a second.

use std::collections::HashMap;
use std::future::{Ready, ready};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::middleware::AddExtension;
use axum::{Extension, Router};
use axum_server::Handle;
use axum_server::accept::Accept;
use hyper_util::rt::TokioTimer;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tower::Layer;

use super::opening::InTime;

/// Connections of each address at once.
const CONNECTIONS: usize = 512;
/// Of those, connections of one peer: the rest is for others, as the kubelet's probes.
const PER_PEER: usize = 384;
/// How long a request's head is waited for, also that of the next one on a connection, and that something of an answer is read.
const HEAD: Duration = Duration::from_mins(1);
/// How long answers may go on at the end.
const ANSWERING: Duration = Duration::from_secs(1);

/// Serves routes until `cancel`; gives the address that was bound.
///
/// # Errors
/// The address can't be bound.
pub fn serve(address: SocketAddr, routes: Router, cancel: CancellationToken) -> io::Result<SocketAddr> {
    serve_for(address, routes, cancel, HEAD)
}

fn serve_for(address: SocketAddr, routes: Router, cancel: CancellationToken, head: Duration) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    let handle = Handle::new();
    let mut server =
        axum_server::from_tcp(listener)?.handle(handle.clone()).acceptor(InTime { inner: Places::new(), within: head });
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(head);
    tokio::spawn(async move {
        cancel.cancelled().await;
        handle.graceful_shutdown(Some(ANSWERING));
    });
    tokio::spawn(async move {
        if let Err(error) = server.serve(routes.into_make_service()).await {
            tracing::error!(%error, %bound, "server ended");
        }
    });
    Ok(bound)
}

/// Places for connections.
#[derive(Clone, Debug)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Places {
    /// As many as there are for an address.
    pub(super) fn new() -> Self {
        Self { free: Arc::new(Semaphore::new(CONNECTIONS)), taken: Arc::default() }
    }

    /// A place for a peer; `None` where there is none.
    fn take(&self, peer: IpAddr) -> Option<Place> {
        let held = Arc::clone(&self.free).try_acquire_owned().ok()?;
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let of_peer = taken.entry(peer).or_default();
        if *of_peer >= PER_PEER {
            return None;
        }
        *of_peer += 1;
        Some(Place { _held: Arc::new(Held { _place: held, peer, taken: Arc::clone(&self.taken) }) })
    }
}

/// A place, which is given back with the last part of its connection.
#[derive(Clone, Debug)]
pub(super) struct Place {
    _held: Arc<Held>,
}

#[derive(Debug)]
struct Held {
    _place: OwnedSemaphorePermit,
    peer: IpAddr,
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_peer) = taken.get_mut(&self.peer) {
            *of_peer -= 1;
            if *of_peer == 0 {
                taken.remove(&self.peer);
            }
        }
    }
}

impl<S> Accept<TcpStream, S> for Places {
    type Stream = TcpStream;
    type Service = AddExtension<S, Place>;
    type Future = Ready<io::Result<(TcpStream, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let accepted = stream.peer_addr().and_then(|peer| {
            let place = self.take(peer.ip().to_canonical());
            place.ok_or_else(|| io::Error::other("too many connections"))
        });
        ready(accepted.map(|place| (stream, Extension(place).layer(service))))
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn ask(stream: &mut TcpStream) -> String {
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        answer
    }

    #[tokio::test]
    async fn who_sends_nothing_is_not_waited_for() {
        let end = CancellationToken::new();
        let routes = Router::new().route("/", get(|| async { "here" }));
        let address =
            serve_for("127.0.0.1:0".parse().unwrap(), routes, end.clone(), Duration::from_millis(200)).unwrap();
        for sent in ["", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET / HT"] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(sent.as_bytes()).await.unwrap();
            let mut rest = Vec::new();
            let ended = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut rest)).await;
            assert!(ended.is_ok(), "{sent:?} is waited for");
        }
        end.cancel();
    }

    #[tokio::test]
    async fn who_does_not_read_is_not_waited_for() {
        let end = CancellationToken::new();
        let routes = Router::new().route("/", get(|| async { "x".repeat(64 << 20) }));
        let within = Duration::from_millis(200);
        let address = serve_for("127.0.0.1:0".parse().unwrap(), routes, end.clone(), within).unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        tokio::time::sleep(within * 5).await;
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
        assert!(ended.is_ok() && answer.len() < 64 << 20, "{} bytes came", answer.len());
        end.cancel();
    }

    #[test]
    fn one_peer_leaves_places_to_others() {
        let places = Places::new();
        let peer = |last: u8| IpAddr::from([10, 0, 0, last]);
        let mut held: Vec<Place> = (0..PER_PEER).map(|_| places.take(peer(1)).unwrap()).collect();
        assert!(places.take(peer(1)).is_none());
        let others: Vec<Place> = (PER_PEER..CONNECTIONS).map(|_| places.take(peer(2)).unwrap()).collect();
        assert!(places.take(peer(3)).is_none());
        held.pop();
        assert!(places.take(peer(3)).is_some());
        drop((held, others));
        assert!(places.taken.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn one_connection_too_many_is_closed_and_a_place_comes_back() {
        let end = CancellationToken::new();
        let routes = Router::new().route("/", get(|| async { "here" }));
        let address = serve("127.0.0.1:0".parse().unwrap(), routes, end.clone()).unwrap();
        let mut held = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET / HT").await.unwrap();
            held.push(stream);
        }
        // The last ones may not be accepted yet.
        let mut refused = false;
        for _ in 0..50 {
            refused = ask(&mut TcpStream::connect(address).await.unwrap()).await.is_empty();
            if refused {
                break;
            }
        }
        assert!(refused, "there is a place for everybody");
        held.truncate(CONNECTIONS / 2);
        let mut answer = String::new();
        for _ in 0..100 {
            answer = ask(&mut TcpStream::connect(address).await.unwrap()).await;
            if answer.ends_with("here") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(answer.ends_with("here"), "{answer}");
        end.cancel();
        for _ in 0..200 {
            if TcpStream::connect(address).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("it is still there");
    }
}
