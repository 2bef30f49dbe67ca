//! Files on a server that takes them by PUT.

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Bytes;
use clusterstack::api::image_destination::{Destination as Spec, HttpDestination};
use clusterstack::api::source::SecretReference;
use clusterstack::core::source::AllowList;
use clusterstack::io::image::destination::{Destination, Published, Reach, open};

use super::conformance::{World, conforms, gives_up_publishing};
use super::put_server::{Files, PutServer, TOKEN};
use super::wire::Wire;

struct Http {
    files: Files,
    wire: Wire,
    dav: bool,
    server: PutServer,
}

impl Http {
    async fn new(dav: bool) -> Self {
        let server = PutServer::new(dav).await;
        let (files, wire) = (Arc::clone(&server.files), Wire::to(&server.host).await);
        Self { files, wire, dav, server }
    }

    fn with(&self, secret: &str) -> Arc<dyn Destination> {
        let http = HttpDestination {
            url: format!("http://{}/node/images", self.wire.host),
            secret_ref: Some(SecretReference { name: "server".to_owned() }),
            insecure: true,
            ..HttpDestination::default()
        };
        let reach = Reach {
            secret: Some([("token".to_owned(), secret.as_bytes().to_vec())].into_iter().collect()),
            allow: AllowList::parse(["127.0.0.1"]).unwrap(),
            ..Reach::default()
        };
        open(&Spec { http: Some(http), ..Spec::default() }, &reach).unwrap()
    }

    fn file(name: &str) -> String {
        format!("/node/images/{name}")
    }

    fn record(name: &str) -> String {
        Self::file(&format!("{name}.clusterstack.json"))
    }
}

#[async_trait]
impl World for Http {
    fn open(&self) -> Arc<dyn Destination> {
        self.with(TOKEN)
    }

    fn open_wrong(&self) -> Option<(Arc<dyn Destination>, &'static str)> {
        Some((self.with("wrong-secret"), "wrong-secret"))
    }

    fn wire(&self) -> Option<&Wire> {
        Some(&self.wire)
    }

    async fn content(&self, image: &Published) -> Vec<u8> {
        let path = image.location.strip_prefix(&format!("http://{}", self.wire.host)).unwrap();
        self.files.lock().unwrap()[path].to_vec()
    }

    async fn bring(&self, name: &str) {
        self.files.lock().unwrap().insert(Self::file(name), Bytes::from_static(b"theirs"));
    }

    async fn has_brought(&self, name: &str) -> bool {
        let files = self.files.lock().unwrap();
        files[&Self::file(name)] == Bytes::from_static(b"theirs") && !files.contains_key(&Self::record(name))
    }

    async fn protect(&self, name: &str) {
        let mut files = self.files.lock().unwrap();
        let text = String::from_utf8(files[&Self::record(name)].to_vec()).unwrap();
        let text = text.replacen('{', "{\"protected\": true,", 1);
        files.insert(Self::record(name), Bytes::from(text));
    }

    /// Uploads that no record names.
    async fn litter(&self) -> Vec<String> {
        let files = self.files.lock().unwrap();
        let records = files.iter().filter(|(name, _)| name.ends_with(".clusterstack.json"));
        let records: Vec<_> = records.map(|(_, text)| String::from_utf8_lossy(text).into_owned()).collect();
        let names = files.keys().filter_map(|path| path.strip_prefix("/node/images/"));
        let staged = names.filter(|name| name.starts_with('.'));
        staged.filter(|name| !records.iter().any(|record| record.contains(*name))).map(ToOwned::to_owned).collect()
    }

    fn resumes(&self) -> bool {
        false
    }

    fn adopts(&self) -> bool {
        self.dav
    }

    fn has_conditions(&self) -> bool {
        self.dav
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_move_conforms() {
    conforms(&Http::new(true).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_move_and_conditions_conforms() {
    conforms(&Http::new(false).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_end_a_move_holds_nothing_up() {
    let http = Http::new(true).await;
    http.server.held.lock().unwrap().push("MOVE *".into());
    gives_up_publishing(&http).await;
    assert_eq!(http.server.holding(), 0, "the request goes on");
    assert!(http.files.lock().unwrap().is_empty());
}
