//! A wire to a server: it counts what goes there, and can be cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

pub struct Wire {
    /// `host:port`.
    pub host: String,
    state: Arc<State>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    /// Bytes sent to the server.
    sent: AtomicU64,
    down: AtomicBool,
    /// Connections are cut when so many bytes were sent.
    cut: AtomicU64,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Wire {
    pub async fn to(host: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let state = Arc::new(State { cut: AtomicU64::new(u64::MAX), ..State::default() });
        let (server, shared) = (host.to_owned(), Arc::clone(&state));
        let host = listener.local_addr().unwrap().to_string();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if !shared.down.load(Ordering::SeqCst) {
                    tokio::spawn(carry(client, server.clone(), Arc::clone(&shared)));
                }
            }
        });
        Self { host, state, task }
    }

    /// Bytes sent to the server so far.
    pub fn sent(&self) -> u64 {
        self.state.sent.load(Ordering::SeqCst)
    }

    /// Nobody answers any more, or again.
    pub fn set_down(&self, down: bool) {
        self.state.down.store(down, Ordering::SeqCst);
    }

    /// The connection that sends the byte after so many more ones is cut, once.
    pub fn cut_after(&self, bytes: u64) {
        self.state.cut.store(self.sent() + bytes, Ordering::SeqCst);
    }
}

async fn carry(client: TcpStream, server: String, state: Arc<State>) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    // Else small writes wait for each other's acknowledgement, 40 ms each time.
    if client.set_nodelay(true).and(server.set_nodelay(true)).is_err() {
        return;
    }
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let back = tokio::spawn(async move {
        let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
    });
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
        let sent = state.sent.fetch_add(length as u64, Ordering::SeqCst) + length as u64;
        if state.down.load(Ordering::SeqCst) || sent > state.cut.load(Ordering::SeqCst) {
            state.cut.store(u64::MAX, Ordering::SeqCst);
            break;
        }
        if to_server.write_all(&buffer[..length]).await.is_err() {
            break;
        }
    }
    drop(to_server);
    back.abort();
}
