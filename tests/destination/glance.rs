//! A real OpenStack image service, `hack/glance`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use clusterstack::api::image_destination::{Destination as Spec, GlanceDestination};
use clusterstack::api::source::SecretReference;
use clusterstack::core::source::AllowList;
use clusterstack::io::image::destination::{Claim, Destination, Image, Meter, Published, Reach, open};
use clusterstack::io::source::Access;
use clusterstack::io::source::http::{Http, Redirects};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use super::Server;
use super::conformance::{World, conforms};
use super::wire::Wire;

const SECRET: &str = "quite-a-secret";
const TOKEN: &str = "a-token-of-nobody";

struct Glance {
    _directory: TempDir,
    server: Server,
    wire: Wire,
}

impl Glance {
    async fn new() -> Option<Self> {
        Self::for_web_ports("443").await
    }

    /// One that may download from this port.
    async fn for_web_ports(port: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("hack/glance/serve.py");
        let server = Server::start("glance", |command| {
            command.arg(script).arg("--dir").arg(directory.path()).args(["--web-ports", port]);
            command.args(["--token", TOKEN, "--login", &format!("operator:{SECRET}")]);
        })?;
        let wire = Wire::to(&server.words[0]).await;
        Some(Self { _directory: directory, server, wire })
    }

    /// By the catalogue where there is no `endpoint`.
    fn with(&self, secret: &str, endpoint: Option<String>) -> Arc<dyn Destination> {
        self.opened(secret, endpoint, false)
    }

    fn opened(&self, secret: &str, endpoint: Option<String>, web_download: bool) -> Arc<dyn Destination> {
        let glance = GlanceDestination {
            web_download,
            secret_ref: Some(SecretReference { name: "glance".to_owned() }),
            endpoint,
            insecure: true,
            ..GlanceDestination::default()
        };
        let clouds = format!(
            "clouds:\n  here:\n    region_name: here\n    auth:\n      auth_url: http://{}\n      username: operator\n      \
             password: {secret}\n      project_name: images\n",
            self.server.words[1]
        );
        let reach = Reach {
            secret: Some([("clouds.yaml".to_owned(), clouds.into_bytes())].into_iter().collect()),
            allow: AllowList::parse(["127.0.0.1"]).unwrap(),
            ..Reach::default()
        };
        open(&Spec { glance: Some(glance), ..Spec::default() }, &reach).unwrap()
    }

    fn endpoint(&self) -> Option<String> {
        Some(format!("http://{}/v2", self.wire.host))
    }

    /// Asks the service itself.
    async fn ask(&self, method: &str, path: &str, kind: &str, body: Value) -> Vec<u8> {
        let access = Access { insecure: true, ..Access::default() };
        let http = Http::new(&access, &AllowList::parse(["127.0.0.1"]).unwrap()).unwrap();
        let url = format!("http://{}/v2/images{path}", self.server.words[0]).parse().unwrap();
        let mut request = http.request(method.parse().unwrap(), url).header("x-auth-token", TOKEN);
        if !body.is_null() {
            request = request.header("content-type", kind).body(body.to_string());
        }
        let answer = http.send("testing", request.build().unwrap(), Redirects::SameHost).await.unwrap();
        assert!(answer.status().is_success(), "{method} {path}: {}", answer.status());
        http.body("testing", answer, 1 << 30).await.unwrap().to_vec()
    }

    /// Brings bytes there under the name of an upload of ours, as an import leaves them that nobody compared.
    async fn leave(&self, image: &Image, claim: &Claim, bytes: &[u8]) {
        let body = json!({
            "name": format!(".{}.{}.{}.part", image.name, claim.object, claim.attempt), "container_format": "bare",
            "disk_format": "raw", "os_hidden": true, "visibility": "private", "clusterstack_digest": image.digest,
            "clusterstack_object": claim.object,
        });
        let made: Value = serde_json::from_slice(&self.ask("POST", "", "application/json", body).await).unwrap();
        let access = Access { insecure: true, ..Access::default() };
        let http = Http::new(&access, &AllowList::parse(["127.0.0.1"]).unwrap()).unwrap();
        let id = made["id"].as_str().unwrap();
        let url = format!("http://{}/v2/images/{id}/file", self.server.words[0]).parse().unwrap();
        let request = http.request("PUT".parse().unwrap(), url).header("x-auth-token", TOKEN);
        let request = request.header("content-type", "application/octet-stream").body(bytes.to_vec());
        let answer = http.send("testing", request.build().unwrap(), Redirects::SameHost).await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.status());
    }

    async fn list(&self, query: &str) -> Vec<Value> {
        let list: Value = serde_json::from_slice(&self.ask("GET", query, "", Value::Null).await).unwrap();
        list["images"].as_array().unwrap().clone()
    }
}

#[async_trait]
impl World for Glance {
    fn open(&self) -> Arc<dyn Destination> {
        self.with(SECRET, self.endpoint())
    }

    fn open_wrong(&self) -> Option<(Arc<dyn Destination>, &'static str)> {
        Some((self.with("wrong-secret", self.endpoint()), "wrong-secret"))
    }

    fn wire(&self) -> Option<&Wire> {
        Some(&self.wire)
    }

    async fn content(&self, image: &Published) -> Vec<u8> {
        let id = image.location.split_whitespace().nth(1).unwrap();
        let found: Value = serde_json::from_slice(&self.ask("GET", &format!("/{id}"), "", Value::Null).await).unwrap();
        assert_eq!((&found["visibility"], &found["os_hidden"]), (&json!("private"), &json!(false)));
        assert_eq!((&found["os_distro"], &found["disk_format"]), (&json!("ubuntu"), &json!("raw")));
        self.ask("GET", &format!("/{id}/file"), "", Value::Null).await
    }

    async fn bring(&self, name: &str) {
        let image = json!({"name": name, "container_format": "bare", "disk_format": "raw"});
        self.ask("POST", "", "application/json", image).await;
    }

    async fn has_brought(&self, name: &str) -> bool {
        let found = self.list(&format!("?name={name}")).await;
        found.len() == 1 && found[0].get("clusterstack_digest").is_none()
    }

    async fn protect(&self, name: &str) {
        let found = self.list(&format!("?name={name}")).await;
        let path = format!("/{}", found[0]["id"].as_str().unwrap());
        let change = json!([{"op": "replace", "path": "/protected", "value": true}]);
        self.ask("PATCH", &path, "application/openstack-images-v2.1-json-patch", change).await;
    }

    async fn litter(&self) -> Vec<String> {
        let hidden = self.list("?os_hidden=true").await;
        hidden.iter().map(|image| image["name"].as_str().unwrap_or_default().to_owned()).collect()
    }

    fn resumes(&self) -> bool {
        false
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_service_conforms() {
    let Some(world) = Glance::new().await else { return };
    // The catalogue leads there too.
    let found = world.with(SECRET, None).find("nothing-yet", &tokio_util::sync::CancellationToken::new()).await;
    assert!(matches!(found, Ok(None)), "{found:?}");
    conforms(&world).await;
}

/// Serves files to whoever asks, and counts them.
struct Publisher {
    host: String,
    asked: Arc<AtomicUsize>,
}

impl Publisher {
    /// On a port that the image service may ask.
    async fn new(files: Vec<(&'static str, Vec<u8>)>) -> Self {
        let asked = Arc::new(AtomicUsize::new(0));
        let mut routes = axum::Router::new();
        for (path, content) in files {
            let (content, asked) = (axum::body::Bytes::from(content), Arc::clone(&asked));
            let answer = move || {
                asked.fetch_add(1, Ordering::SeqCst);
                std::future::ready(content.clone())
            };
            routes = routes.route(path, axum::routing::get(answer));
        }
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { host, asked }
    }

    fn port(&self) -> &str {
        self.host.rsplit_once(':').unwrap().1
    }

    fn url(&self, path: &str) -> reqwest::Url {
        format!("http://{}{path}", self.host).parse().unwrap()
    }
}

/// Remembers what is said.
#[derive(Default)]
struct Said(std::sync::Mutex<Vec<String>>);

impl Meter for Said {
    fn done(&self, _done: u64) {}

    fn says(&self, line: &str) {
        self.0.lock().unwrap().push(line.to_owned());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_service_downloads_by_itself_and_is_not_believed() {
    let content: Vec<u8> = (0_u32..1 << 20).flat_map(u32::to_le_bytes).collect();
    let mut other = content.clone();
    *other.last_mut().unwrap() ^= 1;
    let publisher = Publisher::new(vec![
        ("/disk.raw", content.clone()),
        ("/other.raw", other.clone()),
        ("/short.raw", vec![1; 1000]),
    ])
    .await;
    let Some(world) = Glance::for_web_ports(publisher.port()).await else { return };
    let to = world.opened(SECRET, world.endpoint(), true);
    let never = tokio_util::sync::CancellationToken::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("disk.raw");
    std::fs::write(&file, &content).unwrap();
    let digest = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let size = content.len() as u64;
    // What the origins are; how many of them the service asked; whether the file had to be sent.
    let cases: &[(&str, &[&str], usize, bool)] = &[
        ("one", &["/disk.raw"], 1, false),
        ("mirror", &["/gone.raw", "/disk.raw"], 1, false),
        ("other", &["/other.raw"], 1, true),
        ("short", &["/short.raw"], 1, true),
        ("gone", &["/gone.raw"], 0, true),
        ("made", &[], 0, true),
    ];
    for (name, origins, asked, sent) in cases {
        let image = Image {
            name: (*name).to_owned(),
            digest: format!("sha256:{digest}"),
            size,
            format: "raw".to_owned(),
            properties: Map::from_iter([("os_distro".to_owned(), "ubuntu".into())]),
            origins: origins.iter().map(|path| publisher.url(path)).collect(),
        };
        let claim = Claim { object: format!("object-{name}"), attempt: 1, cluster: "cluster".to_owned() };
        let (before, before_asked) = (world.wire.sent(), publisher.asked.load(Ordering::SeqCst));
        let said = Said::default();
        to.upload(&image, &file, &claim, &said, &never).await.unwrap();
        let said = said.0.into_inner().unwrap();
        assert_eq!(publisher.asked.load(Ordering::SeqCst) - before_asked, *asked, "{name}: {said:?}");
        assert_eq!(world.wire.sent() - before > size, *sent, "{name}: {said:?}");
        assert_eq!(said.iter().any(|line| line.contains("is sent instead")), *sent && !origins.is_empty(), "{said:?}");
        let published = to.register(&image, &claim, &never).await.unwrap();
        assert!(world.content(&published).await == content, "{name}: {said:?}");
    }
    // An operator that was killed left what it had not compared yet.
    let image = Image {
        name: "left".to_owned(),
        digest: format!("sha256:{digest}"),
        size,
        format: "raw".to_owned(),
        properties: Map::from_iter([("os_distro".to_owned(), "ubuntu".into())]),
        origins: vec![publisher.url("/disk.raw")],
    };
    let claim = Claim { object: "object-left".to_owned(), attempt: 1, cluster: "cluster".to_owned() };
    world.leave(&image, &claim, &other).await;
    to.upload(&image, &file, &claim, &Said::default(), &never).await.unwrap();
    let published = to.register(&image, &claim, &never).await.unwrap();
    assert!(world.content(&published).await == content, "what nobody compared was published");
    assert_eq!(world.litter().await, Vec::<String>::new());
}
