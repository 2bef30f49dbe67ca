//! The way to an SSH host. libgit2 resolves names itself, reads as much as a server sends and can't be interrupted: so it
//! connects to a port of ours, and what it says goes on to the address that was looked at.
//!
//! Guarantees: one connection is taken; what the server sends is bounded; when the session is called off, both ends are
//! closed, and libgit2 gives up at once. The host's key is held against the host's name, in `remote`.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::super::SourceError;
use super::super::answers::no_answer;
use super::SILENCE;
use super::session::Session;

/// Bytes that are passed on at once.
const PIECE: usize = 16 * 1024;

/// A way to one host, until it is dropped.
pub(super) struct Relay {
    /// Where libgit2 connects to.
    pub(super) address: SocketAddr,
    is_over: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relay {
    /// Connects to the first of `addresses` that answers, on a thread that may block. The server may send `limit` bytes.
    ///
    /// # Errors
    /// None answers.
    pub(super) fn open(session: &Session, addresses: &[SocketAddr], limit: u64) -> Result<Self, SourceError> {
        let opened = session.runtime.block_on(async {
            tokio::select! {
                biased;
                () = session.stop.cancelled() => None,
                opened = open(addresses) => Some(opened),
            }
        });
        let (action, url) = (session.action, session.url.redacted());
        let Some(opened) = opened else { return Err(SourceError::Cancelled { action, url }) };
        let unreachable = |error: io::Error| SourceError::Unreachable { action, url, problem: error.to_string() };
        let (server, listener, address) = opened.map_err(unreachable)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (stop, tell) = (session.stop.clone(), Arc::clone(&is_over));
        let task = session.runtime.spawn(async move {
            let relay = async {
                let (client, _) = listener.accept().await?;
                drop(listener);
                pass_on(client, server, limit, &tell).await
            };
            tokio::select! {
                () = stop.cancelled() => {}
                // libgit2 sees that its connection ended, and says what it makes of it.
                _ = relay => {}
            }
        });
        Ok(Self { address, is_over, task })
    }

    /// Whether the server sent more than it may.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

async fn open(addresses: &[SocketAddr]) -> io::Result<(TcpStream, TcpListener, SocketAddr)> {
    let mut server = Err(io::Error::new(io::ErrorKind::NotFound, "the host's name has no address"));
    for address in addresses {
        server = match tokio::time::timeout(SILENCE, TcpStream::connect(address)).await {
            Ok(connected) => connected,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, no_answer(SILENCE))),
        };
        if server.is_ok() {
            break;
        }
    }
    let server = server?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    Ok((server, listener, address))
}

/// Passes on what either side says until both are done.
async fn pass_on(client: TcpStream, server: TcpStream, limit: u64, is_over: &AtomicBool) -> io::Result<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async {
        tokio::io::copy(&mut from_client, &mut to_server).await?;
        to_server.shutdown().await
    };
    let down = async {
        let (mut piece, mut left) = (vec![0; PIECE], limit);
        loop {
            let length = from_server.read(&mut piece).await?;
            if length == 0 {
                return to_client.shutdown().await;
            }
            let Some(rest) = left.checked_sub(length as u64) else {
                is_over.store(true, Ordering::Relaxed);
                return Err(io::ErrorKind::QuotaExceeded.into());
            };
            left = rest;
            to_client.write_all(&piece[..length]).await?;
        }
    };
    tokio::try_join!(up, down).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let connect = TcpStream::connect(listener.local_addr().unwrap());
        let (near, far) = tokio::join!(connect, listener.accept());
        (near.unwrap(), far.unwrap().0)
    }

    #[tokio::test]
    async fn what_either_side_says_is_passed_on_up_to_the_limit() {
        for (limit, expected, over) in [(5, "world", false), (4, "", true)] {
            let ((mut client, inner), (outer, mut server)) = (pair().await, pair().await);
            let is_over = AtomicBool::new(false);
            let talk = async {
                client.write_all(b"hello").await.unwrap();
                let mut heard = [0; 5];
                server.read_exact(&mut heard).await.unwrap();
                assert_eq!(&heard, b"hello");
                server.write_all(b"world").await.unwrap();
                drop(server);
                let mut heard = String::new();
                client.read_to_string(&mut heard).await.unwrap();
                drop(client);
                heard
            };
            let (passed, heard) = tokio::join!(pass_on(inner, outer, limit, &is_over), talk);
            assert_eq!((heard.as_str(), passed.is_err(), is_over.into_inner()), (expected, over, over), "{limit}");
        }
    }
}
