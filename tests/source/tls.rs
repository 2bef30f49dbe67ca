//! Git over https with an authority of one's own, with a client's certificate, and through a proxy.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use clusterstack::io::source::access::{Proxy, Tls};
use clusterstack::io::source::{Access, Source, SourceError};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::WebPkiClientVerifier;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::git;
use super::repository::Repository;
use super::server::Server;

const TAG: &str = "docker-scs-1-30-v1";

/// An authority that nobody knows.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn issue(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &self.0).unwrap();
        (certificate, key)
    }
}

/// TLS in front of a server: who connects must show a certificate of `clients`, if there is one.
async fn front(behind: String, authority: &Authority, clients: Option<&Authority>) -> String {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let (certificate, key) = authority.issue("127.0.0.1");
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = if let Some(clients) = clients {
        let mut roots = RootCertStore::empty();
        roots.add(clients.0.der().clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        builder.with_client_cert_verifier(verifier)
    } else {
        builder.with_no_client_auth()
    };
    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let config = builder.with_single_cert(vec![certificate.der().clone()], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let (acceptor, behind) = (acceptor.clone(), behind.clone());
            tokio::spawn(async move {
                let Ok(mut tls) = acceptor.accept(tcp).await else { return };
                let mut plain = TcpStream::connect(behind).await.unwrap();
                let _ = copy_bidirectional(&mut tls, &mut plain).await;
            });
        }
    });
    host
}

/// A proxy that wants a login and counts the connections that it made.
async fn proxy(login: &str) -> (String, Arc<AtomicUsize>) {
    let expected = format!("proxy-authorization: basic {}", base64::engine::general_purpose::STANDARD.encode(login))
        .to_lowercase();
    let connections: Arc<AtomicUsize> = Arc::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let (expected, counted) = (expected.clone(), Arc::clone(&counted));
            tokio::spawn(async move {
                let mut tcp = BufReader::new(tcp);
                let (mut target, mut knows, mut line) = (String::new(), false, String::new());
                while tcp.read_line(&mut line).await.unwrap() > 2 {
                    if let Some(rest) = line.strip_prefix("CONNECT ") {
                        rest.split(' ').next().unwrap().clone_into(&mut target);
                    }
                    knows |= line.trim().to_lowercase() == expected;
                    line.clear();
                }
                if !knows {
                    tcp.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n").await.unwrap();
                    return;
                }
                counted.fetch_add(1, Ordering::SeqCst);
                let mut there = TcpStream::connect(target).await.unwrap();
                tcp.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                let _ = copy_bidirectional(&mut tcp, &mut there).await;
            });
        }
    });
    (host, connections)
}

struct World {
    directory: TempDir,
    server: Server,
}

impl World {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let repository = Repository::new(directory.path().join("repos/r"));
        repository.write_stack("stacks/docker/scs").commit();
        repository.tag(TAG);
        let server = Server::new(directory.path().join("repos")).await;
        Self { directory, server }
    }

    /// Lists and fetches.
    async fn read(&self, host: &str, access: Access) -> Result<usize, SourceError> {
        let source =
            git(self.directory.path(), &["127.0.0.1"]).source(&format!("https://{host}/r/.git"), None, access).unwrap();
        let cancel = CancellationToken::new();
        let listing = source.list(&cancel).await?;
        let fetched = source.fetch(&super::wanted(&listing.tags[0], &TAG.parse().unwrap()), &cancel).await?;
        Ok(fetched.files.len())
    }
}

fn trusting(authority: &Authority) -> Access {
    Access { tls: Tls { authorities: Some(authority.pem()), identity: None }, ..Access::default() }
}

#[tokio::test]
async fn an_authority_of_ones_own_is_named_in_a_secret() {
    let (world, authority, other) = (World::new().await, Authority::new(), Authority::new());
    let host = front(world.server.host.clone(), &authority, None).await;
    assert!(world.read(&host, trusting(&authority)).await.unwrap() > 0);
    for access in [Access::default(), trusting(&other)] {
        let error = world.read(&host, access).await.unwrap_err();
        assert!(matches!(error, SourceError::Untrusted { .. }), "{error:?}");
        assert!(error.to_string().contains("certSecretRef"), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_wants_a_certificate_gets_ours() {
    let (world, authority, clients) = (World::new().await, Authority::new(), Authority::new());
    let host = front(world.server.host.clone(), &authority, Some(&clients)).await;
    let (certificate, key) = clients.issue("operator");
    let mut access = trusting(&authority);
    world.read(&host, access.clone()).await.unwrap_err();
    access.tls.identity = Some((certificate.pem(), key.serialize_pem()));
    assert!(world.read(&host, access.clone()).await.unwrap() > 0);
    access.tls.identity = Some((certificate.pem(), "no key".to_owned()));
    let error = world.read(&host, access).await.unwrap_err();
    assert!(matches!(error, SourceError::Unusable { .. }) && error.to_string().contains("tls.key"), "{error}");
}

#[tokio::test]
async fn a_proxy_is_used_with_its_login() {
    let (world, authority) = (World::new().await, Authority::new());
    let host = front(world.server.host.clone(), &authority, None).await;
    let (proxy, connections) = proxy("user:hunter2").await;
    let login = |password: &str| Some(("user".to_owned(), password.to_owned()));
    let through =
        |login| Access { proxy: Some(Proxy { address: format!("http://{proxy}"), login }), ..trusting(&authority) };
    assert!(world.read(&host, through(login("hunter2"))).await.unwrap() > 0);
    assert!(connections.load(Ordering::SeqCst) > 0);
    let error = world.read(&host, through(login("hunter3"))).await.unwrap_err();
    assert!(!error.to_string().contains("hunter3"), "{error}");
}
