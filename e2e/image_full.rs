//! Disks that are full: that of the work directories, and that of the destination.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clusterstack::api::image_release::ImagePhase;
use serde_json::json;

use crate::harness::{ImageServer, Images, Operator, World, check, names, skipped, sum, wait_for};

const MIB: usize = 1 << 20;

/// A small disk that only an operator sees, and the files of it.
struct Disk {
    path: PathBuf,
    under: Vec<String>,
}

impl Disk {
    /// Of so many MiB, over this directory.
    fn over(path: PathBuf, size: usize) -> Self {
        std::fs::create_dir_all(&path).unwrap();
        let mount = format!("mount -t tmpfs -o size={size}m none '{}' && exec \"$0\" \"$@\"", path.display());
        Self { path, under: ["unshare", "--mount", "sh", "-c", &mount].map(Into::into).into() }
    }

    /// Whether this machine lets us.
    fn can_be(&self) -> bool {
        let tried = Command::new(&self.under[0]).args(&self.under[1..]).arg("true").output();
        tried.is_ok_and(|tried| tried.status.success())
    }

    /// It as the operator sees it.
    fn of(&self, operator: &Operator) -> PathBuf {
        Path::new("/proc").join(operator.pid().to_string()).join("root").join(self.path.strip_prefix("/").unwrap())
    }
}

/// Bytes that can't be made fewer.
fn noise(size: usize) -> Vec<u8> {
    (0..size).map(|_| rand::random()).collect()
}

/// Fills a disk but for so many MiB.
fn fill(disk: &Path, left: usize) -> PathBuf {
    let filler = disk.join("filler");
    let free = || rustix::fs::statvfs(disk).map(|s| usize::try_from(s.f_bavail * s.f_frsize).unwrap()).unwrap();
    assert!(free() < 100 * MIB, "it is another disk");
    std::fs::write(&filler, vec![0; free() - left * MIB]).unwrap();
    filler
}

#[tokio::test]
async fn a_full_disk_of_the_work_directories_is_told_and_stops_no_other_build() {
    let t = World::new("imgdisk").await;
    let images = Images::of(&t);
    let disk = Disk::over(t.dir().canonicalize().unwrap().join("disk"), 8);
    if !disk.can_be() {
        return skipped("a full disk of the work directories: no tmpfs can be mounted here");
    }
    let content = noise(3 * MIB);
    let server = ImageServer::new(&content).await;
    server.set(|mode| mode.files = [("small".to_owned(), b"small".to_vec())].into());
    let tool = t.dir().canonicalize().unwrap().join("fill");
    std::fs::write(&tool, "#!/bin/sh\nhead -c 3145728 /dev/urandom > big.raw\n").unwrap();
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
    images.template(json!({"build": {"retries": 50, "tools": [{"name": "fill", "path": tool}]}})).await;
    let mut flags = images.flags(&server.host());
    flags.extend(["--image-dir".into(), disk.path.join("work").display().to_string()]);
    flags.drain(0..2);
    let operator = images.operator_under("builder-0", &flags, &disk.under);
    operator.address("probes").await;
    let filler = fill(&disk.of(&operator), 2);

    let plain = |name: &str, file: &str, content: &[u8]| json!({"name": name, "url": server.url(file), "checksum": format!("sha256:{}", sum(content)), "format": "raw"});
    let built = json!({
        "name": "built", "format": "raw", "steps": [{"build": {"command": ["fill"], "output": "big.raw"}}],
    });
    let full = "the disk of the work directories is full: make room there";
    for entry in [plain("downloaded", "large", &content), built] {
        let name = entry["name"].as_str().unwrap();
        images.make(&entry).await;
        let status = images.status_is(name, "to pause", |s| s.failures > 0 && s.phase == ImagePhase::Queued).await;
        assert!(status.message.contains(full), "{}", status.message);
        t.event("BuildRetried", full).await;
        // What it had taken of the disk is free again.
        let small = format!("small-beside-{name}");
        images.make(&plain(&small, "small", b"small")).await;
        let small = images.are(&[small], ImagePhase::Succeeded).await;
        assert_eq!(small[0].status.as_ref().unwrap().attempt, 1);
    }
    std::fs::remove_file(filler).unwrap();
    let both = ["downloaded", "built"].map(ToOwned::to_owned);
    for name in &both {
        let answer = images.ask(&["retry", name]).await;
        assert!(answer.status.success(), "{answer:?}");
    }
    images.are(&both, ImagePhase::Succeeded).await;
    assert!(std::fs::read(images.destination().join("downloaded")).unwrap() == content);
    wait_for("the work directories to go", || async {
        let left = names(&disk.of(&operator).join("work"));
        check(left == ["logs"], left)
    })
    .await;
}

#[tokio::test]
async fn a_full_destination_is_told_and_takes_smaller_images_meanwhile() {
    let t = World::new("imgdest").await;
    let images = Images::of(&t);
    let disk = Disk::over(images.destination(), 4);
    if !disk.can_be() {
        return skipped("a full destination: no tmpfs can be mounted here");
    }
    let content = noise(2 * MIB);
    let server = ImageServer::new(&content).await;
    server.set(|mode| mode.files = [("small".to_owned(), b"small".to_vec())].into());
    images.template(json!({"build": {"retries": 50}})).await;
    let operator = images.operator_under("builder-0", &images.flags(&server.host()), &disk.under);
    operator.address("probes").await;
    let there = disk.of(&operator);
    let filler = fill(&there, 1);
    let entry = |name: &str, file: &str, content: &[u8]| json!({"name": name, "url": server.url(file), "checksum": format!("sha256:{}", sum(content)), "format": "raw"});
    images.make(&entry("large", "large", &content)).await;
    let status = images.status_is("large", "to pause", |s| s.failures > 0 && s.phase == ImagePhase::Queued).await;
    assert_eq!(status.step, "upload");
    assert!(status.message.contains("the disk there is full: make room"), "{}", status.message);
    t.event("BuildRetried", "the disk there is full").await;
    assert_eq!(names(&there), ["filler"], "what can't be brought there whole is not left there");
    images.make(&entry("small", "small", b"small")).await;
    let small = images.are(&["small".to_owned()], ImagePhase::Succeeded).await;
    assert_eq!(small[0].status.as_ref().unwrap().attempt, 1);
    std::fs::remove_file(filler).unwrap();
    assert!(images.ask(&["retry", "large"]).await.status.success());
    let large = images.are(&["large".to_owned()], ImagePhase::Succeeded).await;
    assert_eq!(images.begun(&large[0], "download"), 1, "only the upload is done again");
    assert!(std::fs::read(there.join("large")).unwrap() == content);
    assert_eq!(names(&there), ["large", "large.clusterstack.json", "small", "small.clusterstack.json"]);
}
