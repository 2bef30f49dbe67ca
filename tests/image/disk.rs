//! Disks: converted by the real `qemu-img`, compressed, and refused where they would bring other files along.

use std::io::Read;
use std::process::Command;

use clusterstack::core::image::build::Hope;
use serde_json::{Value, json};

use super::*;

/// `qemu-img` with these arguments; `None`, with a word, where there is none.
fn qemu_img(arguments: &[&str]) -> Option<String> {
    let Ok(output) = Command::new("/usr/bin/qemu-img").args(arguments).output() else {
        eprintln!("SKIPPED: qemu-img is not here");
        return None;
    };
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

async fn converted(content: &[u8], name: &str, rest: Value) -> (Site, Result<Vec<Output>, StepError>) {
    let site = Site::new();
    let server = Server::new(content).await;
    let sum = format!("sha256:{}", sha256(content));
    let mut list = vec![json!({"download": {"url": server.url(name), "checksum": sum}})];
    list.extend(rest.as_array().unwrap().clone());
    let outcome = site.build(&steps(&Value::from(list))).await;
    (site, outcome)
}

#[tokio::test]
async fn a_disk_is_converted_there_and_back() {
    if qemu_img(&["--version"]).is_none() {
        return;
    }
    let content = bytes(4 << 20);
    let (site, outcome) = converted(
        &content,
        "disk.img",
        json!([{"convert": {"format": "qcow2"}}, {"name": "other", "convert": {"format": "vmdk"}},
               {"name": "third", "convert": {"format": "vhdx"}}, {"name": "back", "convert": {"format": "raw"}}]),
    )
    .await;
    outcome.unwrap();
    let published = site.shelf.published.lock().unwrap();
    let (image, found) = &published["image"];
    assert_eq!((image.format.as_str(), found.len()), ("raw", content.len()));
    assert!(*found == content);
    let said = qemu_img(&["info", "--output=json", &site.file("disk.qcow2").display().to_string()]).unwrap();
    assert!(said.contains("\"format\": \"qcow2\""), "{said}");
    assert!(site.told.progress.lock().unwrap().iter().any(|p| p.done > 0 && p.total.is_some()));
    assert!(!site.told.text().contains("/100%)"));
}

#[tokio::test]
async fn a_disk_that_names_other_files_is_refused() {
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("secret"), "the token of the operator").unwrap();
    let backing = ["create", "-f", "qcow2", "-F", "raw", "-b", &path("secret"), &path("evil.qcow2"), "1M"];
    if qemu_img(&backing).is_none() {
        return;
    }
    let data = format!("data_file={},data_file_raw=on", path("data"));
    qemu_img(&["create", "-f", "qcow2", "-o", &data, &path("data.qcow2"), "1M"]).unwrap();
    qemu_img(&["create", "-f", "vmdk", "-o", "subformat=monolithicFlat", &path("flat.vmdk"), "1M"]).unwrap();
    for (name, says) in [("evil.qcow2", "backing file"), ("data.qcow2", "another file"), ("flat.vmdk", "other files")] {
        let content = std::fs::read(path(name)).unwrap();
        // Also where its name says nothing.
        for served in [name, "disk"] {
            let (site, outcome) = converted(&content, served, json!([{"convert": {"format": "raw"}}])).await;
            let error = outcome.unwrap_err();
            assert!(error.hope == Hope::None && error.message.contains(says), "{name}: {error:?}");
            assert!(files(&site.directory()).iter().all(|path| path.file_name().unwrap() != "disk.raw"));
        }
        // Said to be raw, its bytes are only bytes.
        let (site, outcome) = converted(&content, "disk.raw", json!([{"convert": {"format": "qcow2"}}])).await;
        outcome.unwrap();
        let whole = qemu_img(&["info", "--output=json", &site.file("disk.qcow2").display().to_string()]).unwrap();
        assert!(!whole.contains("backing-filename"));
    }
}

#[tokio::test]
async fn a_damaged_disk_and_a_missing_qemu_img_are_said() {
    if qemu_img(&["--version"]).is_none() {
        return;
    }
    let (_, outcome) =
        converted(b"QFI\xfb nonsense of a disk", "disk.qcow2", json!([{"convert": {"format": "raw"}}])).await;
    assert_eq!(outcome.unwrap_err().hope, Hope::None);
    let (mut site, content) = (Site::new(), bytes(1000));
    site.settings.qemu_img = "/nowhere/qemu-img".into();
    let server = Server::new(&content).await;
    let sum = format!("sha256:{}", sha256(&content));
    let list = json!([{"download": {"url": server.url("a.raw"), "checksum": sum}}, {"convert": {"format": "qcow2"}}]);
    let error = site.build(&steps(&list)).await.unwrap_err();
    assert!(error.hope == Hope::None && error.message.contains("/nowhere/qemu-img"), "{error:?}");
}

#[tokio::test]
async fn what_is_compressed_is_the_same_when_it_is_read() {
    let content = [bytes(3 << 20), vec![0; 3 << 20]].concat();
    for algorithm in ["gzip", "zstd", "xz"] {
        let (site, outcome) = converted(&content, "disk.raw", json!([{"compress": {"algorithm": algorithm}}])).await;
        outcome.unwrap();
        let published = site.shelf.published.lock().unwrap();
        let (image, packed) = &published["image"];
        assert_eq!(image.properties["compression"], algorithm);
        assert!(packed.len() < content.len() * 6 / 10, "{algorithm}: {}", packed.len());
        let mut whole = Vec::new();
        match algorithm {
            "gzip" => drop(flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut whole).unwrap()),
            "zstd" => drop(zstd::Decoder::new(&packed[..]).unwrap().read_to_end(&mut whole).unwrap()),
            _ => drop(liblzma::read::XzDecoder::new(&packed[..]).read_to_end(&mut whole).unwrap()),
        }
        assert!(whole == content, "{algorithm}");
    }
}
