//! The API server of a workload cluster as each side knows it: Cluster API's managers reach their backend in memory, which
//! plays the machines, our operator a real API server, which takes addons. Both by one kubeconfig.

use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::certificates::Authority;

/// How our operator calls itself.
const OURS: &str = "user-agent: clusterstack/";

/// A front that ends when it goes out of scope.
pub(crate) struct Front {
    kubeconfig: String,
    task: JoinHandle<()>,
}

impl Drop for Front {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An API server, and who asks it.
struct Backend {
    host: String,
    tls: TlsConnector,
}

impl Front {
    /// In front of what the kubeconfig `machines` leads to, and of the API server of the kubeconfig at `addons`.
    pub(crate) async fn new(machines: &str, addons: &Path) -> Self {
        let mut config: Value = clusterstack::core::yaml::from_str(machines).expect("no kubeconfig");
        let backends =
            Arc::new([Backend::of(machines), Backend::of(&std::fs::read_to_string(addons).expect("kubeconfig"))]);
        let authority = Authority::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("no port");
        let cluster = &mut config["clusters"][0]["cluster"];
        cluster["server"] = format!("https://{}", listener.local_addr().expect("no address")).into();
        cluster["certificate-authority-data"] = STANDARD.encode(authority.pem()).into();
        let acceptor = authority.server("127.0.0.1", None);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, acceptor.clone(), Arc::clone(&backends)));
            }
        });
        Self { kubeconfig: config.to_string(), task }
    }

    /// What leads to it.
    pub(crate) fn kubeconfig(&self) -> &str {
        &self.kubeconfig
    }
}

impl Backend {
    fn of(kubeconfig: &str) -> Self {
        let config: Value = clusterstack::core::yaml::from_str(kubeconfig).expect("no kubeconfig");
        let (cluster, user) = (&config["clusters"][0]["cluster"], &config["users"][0]["user"]);
        let pem = |of: &Value, name: &str| match of[format!("{name}-data")].as_str() {
            Some(data) => STANDARD.decode(data).expect("no base64"),
            None => std::fs::read(of[name].as_str().expect(name)).expect(name),
        };
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(&pem(cluster, "certificate-authority")).expect("no authority");
        roots.add(authority).expect("authority");
        let chain =
            CertificateDer::pem_slice_iter(&pem(user, "client-certificate")).collect::<Result<_, _>>().expect("PEM");
        let key = PrivateKeyDer::from_pem_slice(&pem(user, "client-key")).expect("no key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("TLS");
        let tls = builder.with_root_certificates(roots).with_client_auth_cert(chain, key).expect("identity");
        let host = cluster["server"].as_str().and_then(|url| url.strip_prefix("https://")).expect("no server");
        Self { host: host.trim_end_matches('/').to_owned(), tls: TlsConnector::from(Arc::new(tls)) }
    }
}

/// Who asks first on a connection asks all the time.
async fn serve(client: TcpStream, acceptor: TlsAcceptor, backends: Arc<[Backend; 2]>) -> Option<()> {
    let mut client = acceptor.accept(client).await.ok()?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.ok()?);
    }
    let is_ours = String::from_utf8_lossy(&head).to_lowercase().contains(OURS);
    let backend = &backends[usize::from(is_ours)];
    let name = ServerName::try_from(backend.host.rsplit_once(':')?.0.to_owned()).ok()?;
    let server = TcpStream::connect(&backend.host).await.ok()?;
    let server = backend.tls.connect(name, server).await.ok()?;
    let (mut from_client, mut to_client) = split(client);
    let (mut from_server, mut to_server) = split(server);
    to_server.write_all(&addressed(&head, &backend.host)).await.ok()?;
    let asked = async {
        // As large as any record: a request's head comes in one.
        let mut chunk = vec![0; 1 << 16];
        loop {
            match from_client.read(&mut chunk).await {
                Ok(length) if length > 0 => {
                    to_server.write_all(&addressed(&chunk[..length], &backend.host)).await.ok()?
                }
                _ => return to_server.shutdown().await.ok(),
            }
        }
    };
    let answered = async {
        let _ = copy(&mut from_server, &mut to_client).await;
        to_client.shutdown().await.ok()
    };
    tokio::join!(asked, answered);
    Some(())
}

/// The backend in memory knows its clusters by the host that is asked.
fn addressed(bytes: &[u8], host: &str) -> Vec<u8> {
    const NAME: &[u8] = b"\r\nHost: ";
    let Some(at) = bytes.windows(NAME.len()).position(|window| window.eq_ignore_ascii_case(NAME)) else {
        return bytes.to_vec();
    };
    let value = at + NAME.len();
    let length = bytes[value..].iter().position(|byte| *byte == b'\r').unwrap_or_default();
    [&bytes[..value], host.as_bytes(), &bytes[value + length..]].concat()
}
