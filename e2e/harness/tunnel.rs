//! A proxy whose ways lead elsewhere: a public name is served from here, under a certificate of our own.

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::certificates::Authority;

/// A proxy that ends when it goes out of scope.
pub(crate) struct Tunnel {
    host: String,
    task: JoinHandle<()>,
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Tunnel {
    /// Leads who asks for `name` to the plain server at `to`, behind a certificate of `authority`; nobody else anywhere.
    pub(crate) async fn new(authority: &Authority, name: &str, to: &str) -> Self {
        let acceptor = authority.server(name, None);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("no port");
        let host = listener.local_addr().expect("no address").to_string();
        let (name, to) = (format!("{name}:443"), to.to_owned());
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, acceptor.clone(), name.clone(), to.clone()));
            }
        });
        Self { host, task }
    }

    /// For `HTTPS_PROXY`: by a name that `NO_PROXY=127.0.0.1` does not hold.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.host.replace("127.0.0.1", "localhost"))
    }
}

async fn serve(mut client: TcpStream, acceptor: TlsAcceptor, name: String, to: String) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    if head.strip_prefix("CONNECT ")?.split(' ').next()? != name {
        client.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n").await.ok()?;
        return None;
    }
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.ok()?;
    let mut tls = acceptor.accept(client).await.ok()?;
    let mut server = TcpStream::connect(&to).await.ok()?;
    copy_bidirectional(&mut tls, &mut server).await.ok()?;
    Some(())
}
