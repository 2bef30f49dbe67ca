//! The image of the sample stacks: made by all kinds of step, from the files that the stack comes with.

use std::io::Read;

use clusterstack::api::INFRASTRUCTURE_API_VERSION;
use clusterstack::api::image_release::ImagePhase;
use serde_json::{Value, json};

use crate::harness::{ImageServer, Images, World, names};

const LIST: &str = include_str!("../stacks/docker/hello/node-images.yaml");
const DISK: &[u8] = include_bytes!("../stacks/docker/images/hello.raw");
const SIGNATURE: &[u8] = include_bytes!("../stacks/docker/images/hello.raw.sig");
const KEY: &str = include_str!("../stacks/docker/images/cosign.pub");

#[tokio::test]
async fn the_image_of_the_sample_stack_goes_through_every_kind_of_step() {
    if !std::path::Path::new("/usr/bin/qemu-img").is_file() {
        return crate::harness::skipped("the image of the sample stack: there is no /usr/bin/qemu-img");
    }
    let t = World::new("imgsample").await;
    let images = Images::of(&t);
    let server = ImageServer::new(DISK).await;
    server.set(|mode| mode.files = [(".sig".to_owned(), SIGNATURE.to_vec())].into());
    t.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"cosign.pub": KEY},
    }))
    .await;
    let tools = json!([{"name": "qemu-img", "path": "/usr/bin/qemu-img"}]);
    images.template(json!({"build": {"tools": tools, "keysSecretRef": {"name": "keys"}}})).await;
    let list: Value = serde_yaml::from_str(&LIST.replace("127.0.0.1:8088", &server.host())).unwrap();
    let entry = &list["images"][0];
    images.make(entry).await;
    let _operator = images.operator(&images.flags(&server.host()));
    let name = entry["name"].as_str().unwrap().to_owned();
    let made = &images.are(std::slice::from_ref(&name), ImagePhase::Succeeded).await[0];
    let steps = ["download", "verify", "build", "convert", "compress", "upload", "register"];
    let status = made.status.clone().unwrap();
    assert_eq!(status.steps.iter().map(|step| step.name.as_str()).collect::<Vec<_>>(), steps);
    assert_eq!(steps.map(|step| images.begun(made, step)), [1; 7]);
    assert_eq!(names(&images.destination()), [name.clone(), format!("{name}.clusterstack.json")]);
    let mut disk = Vec::new();
    let file = std::fs::File::open(images.destination().join(&name)).unwrap();
    zstd::Decoder::new(file).unwrap().read_to_end(&mut disk).unwrap();
    assert!(disk.starts_with(b"QFI\xfb"), "it is no qcow2");
    assert_eq!(
        t.get(INFRASTRUCTURE_API_VERSION, "ProviderNodeImageRelease", &name).await.unwrap()["status"]["attempt"],
        1
    );
}
