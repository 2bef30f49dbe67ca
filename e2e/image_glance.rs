//! Node images that are brought to a real OpenStack image service, which downloads by itself.

use clusterstack::api::image_release::ImagePhase;
use clusterstack::core::source::AllowList;
use clusterstack::io::source::Access;
use clusterstack::io::source::http::{Http, Redirects};
use serde_json::{Value, json};

use crate::harness::{ImageServer, Images, Program, World, check, sum, wait_for};

const TOKEN: &str = "a-token-of-nobody";
const SECRET: &str = "quite-a-secret";

/// The images that the service has, as it tells.
async fn listed(host: &str) -> Vec<Value> {
    let access = Access { insecure: true, ..Access::default() };
    let http = Http::new(&access, &AllowList::parse(["127.0.0.1"]).unwrap()).unwrap();
    let url = format!("http://{host}/v2/images").parse().unwrap();
    let request = http.request("GET".parse().unwrap(), url).header("x-auth-token", TOKEN).build().unwrap();
    let answer = http.send("testing", request, Redirects::SameHost).await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.status());
    let list: Value = serde_json::from_slice(&http.body("testing", answer, 1 << 20).await.unwrap()).unwrap();
    list["images"].as_array().unwrap().clone()
}

#[tokio::test]
async fn an_image_service_downloads_what_an_operator_has_verified() {
    let t = World::new("imgglance").await;
    let content = b"a disk ".repeat(100_000);
    let disks = ImageServer::new(&content).await;
    let images = Images::of(&t);
    let directory = t.dir().join("glance");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/hack/glance/serve.py");
    let Some(service) = Program::start("glance", |command| {
        let host = disks.host();
        let port = host.rsplit_once(':').unwrap().1;
        command.arg(script).arg("--dir").arg(&directory).args(["--web-ports", port]);
        command.args(["--token", TOKEN, "--login", &format!("operator:{SECRET}")]);
    }) else {
        return;
    };
    let [glance, keystone] = [&service.words[0], &service.words[1]];
    let auth = json!({
        "auth_url": format!("http://{keystone}"), "username": "operator", "password": SECRET, "project_name": "images",
    });
    let clouds = json!({"clouds": {"here": {"region_name": "here", "auth": auth}}}).to_string();
    t.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cloud"}, "stringData": {"clouds.yaml": clouds},
    }))
    .await;
    let destination = json!({"secretRef": {"name": "cloud"}, "insecure": true, "webDownload": true});
    images.template(json!({"destination": {"directory": null, "glance": destination}})).await;
    let operator = images.operator(&images.flags("127.0.0.1"));
    let checksum = format!("sha256:{}", sum(&content));
    let steps = json!([{"download": {"url": disks.url("disk.raw"), "checksum": checksum}}]);
    images.make(&json!({"name": "ubuntu", "format": "raw", "steps": steps})).await;

    let done = images.are(&["ubuntu".to_owned()], ImagePhase::Succeeded).await;
    let status = done[0].status.clone().unwrap();
    assert_eq!(status.digest, checksum);
    let there = listed(glance).await;
    let [image] = &there[..] else { panic!("{there:#?}") };
    assert_eq!(
        (&image["name"], &image["status"], &image["size"]),
        (&json!("ubuntu"), &json!("active"), &json!(content.len()))
    );
    assert!(status.location.contains(image["id"].as_str().unwrap()), "{}", status.location);
    // We downloaded to verify, the service for itself.
    assert_eq!(disks.asked().len(), 2, "{:?}", disks.asked());
    assert!(!operator.log().contains(SECRET) && !operator.log().contains(TOKEN), "a secret is in the log");

    images.delete("ubuntu").await;
    wait_for("the image to leave the service", || async {
        let left = listed(glance).await;
        check(left.is_empty(), left)
    })
    .await;
}
