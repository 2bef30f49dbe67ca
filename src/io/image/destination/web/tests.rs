//! How files are sent to slow servers, and what is said of those that are not trusted.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::super::http::HttpPut;
use super::super::{Image, glance};
use super::*;
use crate::api::image_destination::HttpDestination;
use crate::core::digest::hex;
use crate::io::source::access::Tls;

struct Nobody;

impl Meter for Nobody {
    fn done(&self, _: u64) {}
}

/// A file of so many bytes, which is an image.
async fn file(size: usize) -> (TempDir, Reader) {
    let directory = tempfile::tempdir().unwrap();
    let (path, content) = (directory.path().join("image"), vec![0; size]);
    std::fs::write(&path, &content).unwrap();
    let image = Image {
        name: "image".to_owned(),
        digest: format!("sha256:{}", hex(&Sha256::digest(&content))),
        size: size as u64,
        format: "raw".to_owned(),
        properties: serde_json::Map::new(),
        origins: Vec::new(),
    };
    let reader = Reader::open(&path, &image).await.unwrap();
    (directory, reader)
}

fn web(fields: Fields) -> Web {
    let access = Access { insecure: true, ..Access::default() };
    Web::new(&access, &AllowList::parse(["127.0.0.1"]).unwrap(), fields).unwrap()
}

#[tokio::test(start_paused = true)]
async fn only_a_server_that_takes_nothing_is_given_up() {
    // Bytes that lie on the way before more are taken, and bytes in a second.
    for (held, rate, is_taken) in
        [(1, 1 << 10, true), (1 << 20, 30 << 10, true), (3 << 20, 30 << 10, true), (1 << 20, 4 << 10, false)]
    {
        let (_directory, mut file) = file(4 << 20).await;
        let (sender, mut pieces) = mpsc::channel::<io::Result<Bytes>>(1);
        let taking = async move {
            let mut way = 0;
            while let Some(piece) = pieces.recv().await {
                way += piece.unwrap().len();
                if way >= held {
                    tokio::time::sleep(Duration::from_secs((way / rate) as u64)).await;
                    way = 0;
                }
            }
        };
        let failed = |problem| DestinationError::Unreachable { action: "a", location: String::new(), problem };
        let (fed, ()) = tokio::join!(feed(sender, &mut file, &Nobody, failed), taking);
        assert_eq!(fed.is_ok(), is_taken, "{held} {rate}: {fed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_may_take_longer_than_an_answer() {
    // More than lies on the way, a little of it each half minute.
    const PIECES: usize = 24;
    const LENGTH: usize = 1 << 20;
    // While a thread is at work the clock goes only where somebody moves it.
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let thread = tokio::task::spawn_blocking(move || ended.recv().is_ok());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("http://{}/image", listener.local_addr().unwrap())).unwrap();
    let server = async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let (mut head, mut piece) = (Vec::new(), vec![0; LENGTH]);
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await.unwrap());
        }
        for _ in 0..PIECES {
            socket.read_exact(&mut piece).await.unwrap();
            tokio::time::advance(Duration::from_secs(30)).await;
        }
        socket.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    };
    let (_directory, mut file) = file(PIECES * LENGTH).await;
    let (web, began, cancel) = (web(FIELDS), tokio::time::Instant::now(), CancellationToken::new());
    let request = web.request(Method::PUT, url);
    let (answer, ()) = tokio::join!(web.send_file("uploading to", request, &mut file, &Nobody, &cancel), server);
    assert_eq!(answer.unwrap().status(), StatusCode::CREATED);
    assert!(began.elapsed() > PATIENCE, "{:?}", began.elapsed());
    drop(end);
    thread.await.unwrap();
}

#[tokio::test]
async fn a_destination_is_told_of_fields_that_it_has() {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let config = builder.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("https://{}/", listener.local_addr().unwrap())).unwrap();
    let server = tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            drop(acceptor.accept(socket).await);
        }
    });
    let broken = Tls { authorities: Some("none".to_owned()), ..Tls::default() };
    let broken = Access { tls: broken, ..Access::default() };
    for (fields, untrusted, unusable) in [
        (FIELDS, "put it into ca.crt of a Secret that certSecretRef names", "ca.crt of certSecretRef can't be used"),
        (
            glance::FIELDS,
            "put it into cacert of the Secret that secretRef names",
            "cacert of the Secret of secretRef can't be used",
        ),
    ] {
        let web = web(fields);
        let error = web.send("reading from", web.request(Method::GET, url.clone())).await.unwrap_err().to_string();
        assert!(error.contains(untrusted), "{error}");
        let error = Web::new(&broken, &AllowList::default(), fields).err().unwrap().to_string();
        assert!(error.contains(unusable), "{error}");
    }
    server.abort();
}

#[test]
fn what_the_client_says_of_sources_is_not_said_of_destinations() {
    let proxy =
        "wants a login: put it into the operator's HTTPS_PROXY or HTTP_PROXY, as http://user:password@host:port";
    for (problem, expected) in [
        (
            &*format!("{proxy}, or name a Secret with address, username and password in proxySecretRef"),
            proxy.to_owned(),
        ),
        (
            "wants a login: name a Secret with address, username and password in proxySecretRef",
            "wants a login: set the operator's HTTPS_PROXY with it".to_owned(),
        ),
        ("no answer for 86400 s", "no answer any more".to_owned()),
        ("no answer for 20 s", "no answer for 20 s".to_owned()),
    ] {
        let error =
            SourceError::Unreachable { action: "uploading to", url: "u".to_owned(), problem: problem.to_owned() };
        for fields in [FIELDS, glance::FIELDS] {
            let said = of_source("uploading to", "", &error, fields).to_string();
            assert_eq!(said, format!("uploading to u failed: {expected}; it is tried again"));
        }
    }
}

#[test]
fn an_address_that_can_t_be_used_is_told_in_words_of_its_field() {
    let (access, allow) = (Access::default(), AllowList::default());
    for (text, expected) in [
        ("s3.example.org", "it is no URL (relative URL without a base): write https://host/path"),
        ("git@host:path", "it is no URL"),
        ("ftp://s3.example.org", "it is no https URL: write https://host/path"),
        ("ssh://git@host/path", "it is no https URL"),
    ] {
        let error = endpoint("using bucket", text, &access, &allow).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains("source URL"), "{text}: {error}");
    }
    for url in ["https://files.example.org/images?version=1", "https://files.example.org/images#top"] {
        let spec = HttpDestination { url: url.to_owned(), ..HttpDestination::default() };
        let error = HttpPut::new(&spec, None, &access, &allow).err().unwrap().to_string();
        assert!(error.contains("behind ? or #"), "{url}: {error}");
    }
}
