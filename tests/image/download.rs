//! Downloads: gone on with, from the right server, believed by their digest alone.

use clusterstack::core::image::build::Hope;
use clusterstack::core::image::log::Redactor;
use clusterstack::io::source::{Access, Credentials};
use serde_json::json;

use super::*;

const SIZE: usize = 3 << 20;

fn image(urls: &[String], content: &[u8]) -> Pipeline {
    let sum = format!("sha256:{}", sha256(content));
    pipeline(&json!({"name": "image", "url": urls[0], "mirrors": urls[1..], "checksum": sum}).to_string())
}

#[tokio::test]
async fn an_image_is_downloaded_uploaded_and_published_with_its_progress() {
    let (site, content) = (Site::new(), bytes(SIZE));
    let server = Server::new(&content).await;
    let image = image(&[server.url("a/disk.qcow2")], &content);
    let finished = site.build(&image).await.unwrap();
    assert_eq!(
        finished.iter().map(|output| output.digest.clone()).collect::<Vec<_>>(),
        vec![format!("sha256:{}", sha256(&content)); 3]
    );
    let (found, bytes) = site.shelf.published.lock().unwrap()["image"].clone();
    assert_eq!((found.format.as_str(), bytes == content), ("qcow2", true));
    let progress = site.told.progress.lock().unwrap().clone();
    assert!(progress.iter().any(|p| p.done == SIZE as u64 && p.total == Some(SIZE as u64)), "{progress:?}");
    assert_eq!(site.task(&image).lost(&finished, &site.cancel).await, Ok(None));
}

#[tokio::test]
async fn what_broke_off_goes_on_where_it_ended() {
    let (site, content) = (Site::new(), bytes(SIZE));
    let server = Server::new(&content).await;
    server.set(|mode| mode.breaks_after = Some(SIZE / 3 + 7));
    site.build(&image(&[server.url("disk")], &content)).await.unwrap();
    let asked = server.asked();
    assert_eq!(asked.len(), 3, "{asked:?}");
    assert!(asked[1].contains(&format!("range: bytes={}-", SIZE / 3 + 7)) && asked[1].contains("if-range: \"1\""));
    assert!(asked[2].contains(&format!("range: bytes={}-", 2 * (SIZE / 3 + 7))));
}

#[tokio::test]
async fn a_server_without_ranges_or_with_another_file_begins_anew() {
    for changes in [false, true] {
        let (site, content) = (Site::new(), bytes(SIZE));
        let (old, server) = (vec![7; SIZE], Server::new(&content).await);
        let image = image(&[server.url("disk")], &content);
        server.set(|mode| {
            (mode.breaks_after, mode.ranges) = (Some(SIZE / 2), changes);
            if changes {
                (mode.content, mode.etag) = (old, Some("\"0\"".into()));
            }
        });
        // Ends without a part that grows, or with one of a file that is another one later.
        let cancel = site.cancel.child_token();
        let task = site.task(&image);
        let first = tokio::time::timeout(Duration::from_millis(700), task.run(0, &[], &site.told, &cancel)).await;
        assert!(!matches!(first, Ok(Ok(_))));
        drop(first);
        server.set(|mode| {
            (mode.breaks_after, mode.etag, mode.content) = (None, Some("\"1\"".into()), content.clone());
        });
        site.build(&image).await.unwrap();
    }
}

#[tokio::test]
async fn a_download_that_was_cancelled_keeps_its_part() {
    let (site, content) = (Site::new(), bytes(SIZE));
    let server = Server::new(&content).await;
    server.set(|mode| mode.pause = Duration::from_millis(300));
    let image = image(&[server.url("disk")], &content);
    let task = site.task(&image);
    let cancelled = async {
        until("some of it", || site.told.progress.lock().unwrap().iter().any(|p| p.done > 300_000)).await;
        site.cancel.cancel();
    };
    let (outcome, ()) = tokio::join!(task.run(0, &[], &site.told, &site.cancel), cancelled);
    assert_eq!(outcome, Err(StepError::cancelled()));
    server.set(|mode| mode.pause = Duration::ZERO);
    let again = Site { cancel: CancellationToken::new(), attempt: 2, ..site };
    again.build(&image).await.unwrap();
    assert!(server.asked()[1].contains("range: bytes="), "{:?}", server.asked());
}

#[tokio::test]
async fn a_wrong_file_is_removed_and_the_next_mirror_asked() {
    let (site, content) = (Site::new(), bytes(SIZE));
    let mut spoilt = content.clone();
    spoilt[SIZE / 2] ^= 1;
    let (bad, good) = (Server::new(&spoilt).await, Server::new(&content).await);
    site.build(&image(&[bad.url("disk"), good.url("disk")], &content)).await.unwrap();
    assert!(site.told.text().contains("another checksum"));
    // The good one is not asked to go on from what was wrong.
    assert!(!good.asked()[0].contains("range:"));

    let site = Site::new();
    let error = site.build(&image(&[bad.url("disk")], &content)).await.unwrap_err();
    assert!(error.hope == Hope::None && error.message.contains("another checksum"), "{error:?}");
    assert!(files(&site.directory()).iter().all(|path| path.metadata().unwrap().len() < 1000));
}

#[tokio::test]
async fn a_part_of_another_mirror_is_gone_on_with_and_a_wrong_one_taken_anew() {
    let (site, content) = (Site::new(), bytes(SIZE));
    let (first, second) = (Server::new(&content).await, Server::new(&content).await);
    first.set(|mode| mode.breaks_after = Some(SIZE / 2));
    site.build(&image(&[first.url("disk"), second.url("disk")], &content)).await.unwrap();
    assert!(second.asked()[0].contains("range: bytes="));

    let site = Site::new();
    first.set(|mode| mode.content = vec![3; SIZE]);
    site.build(&image(&[first.url("disk"), second.url("disk")], &content)).await.unwrap();
    assert!(site.told.text().contains("downloaded anew"));
}

#[tokio::test]
async fn a_server_that_trickles_gives_way_to_a_mirror_and_is_waited_for_where_there_is_none() {
    let (mut site, content) = (Site::new(), bytes(SIZE));
    site.settings.bounds.trickle = std::time::Duration::from_secs(1);
    let (slow, fast) = (Server::new(&content).await, Server::new(&content).await);
    slow.set(|mode| mode.held = vec!["disk".into()]);
    site.build(&image(&[slow.url("disk"), fast.url("disk")], &content)).await.unwrap();
    let asked = fast.asked();
    assert!(asked[0].contains("range: bytes="), "what came is gone on with: {asked:?}");
    assert!(site.told.text().contains("bytes in 1 s: another mirror is asked"), "{}", site.told.text());

    let mut alone = Site::new();
    alone.settings.bounds = site.settings.bounds.clone();
    let lonely = image(&[slow.url("disk")], &content);
    let build = alone.build(&lonely);
    let released = async {
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        slow.set(|mode| mode.held.clear());
    };
    let (built, ()) = tokio::join!(build, released);
    built.unwrap();
    assert_eq!(slow.asked().len(), 2, "{:?}", slow.asked());
}

#[tokio::test]
async fn what_a_server_says_decides_about_another_try() {
    let (site, content) = (Site::new(), bytes(1000));
    let server = Server::new(&content).await;
    let image = image(&[server.url("disk?token=hunter2")], &content);
    for (status, hope) in
        [(404, Hope::Retry), (503, Hope::Retry), (401, Hope::None), (403, Hope::None), (418, Hope::None)]
    {
        server.set(|mode| mode.status = Some(status));
        let error = site.build(&image).await.unwrap_err();
        assert!(error.hope == hope && error.message.contains(&status.to_string()), "{error:?}");
        assert!(!error.message.contains("hunter2"));
    }
    // It says that there is more than there is: the digest says that there is not.
    server.set(|mode| (mode.status, mode.announced) = (None, Some(2000)));
    site.build(&image).await.unwrap();
}

#[tokio::test]
async fn a_file_that_is_larger_than_the_disk_allows_is_not_taken() {
    let (mut site, content) = (Site::new(), bytes(SIZE));
    site.settings.bounds.disk = 1 << 20;
    let server = Server::new(&content).await;
    let error = site.build(&image(&[server.url("disk")], &content)).await.unwrap_err();
    assert!(error.hope == Hope::None && error.message.contains("build.limits.disk"), "{error:?}");
}

#[tokio::test]
async fn credentials_go_to_their_host_alone() {
    let (mut site, content) = (Site::new(), bytes(1000));
    let (server, other) = (Server::new(&content).await, Server::new(&content).await);
    server.set(|mode| mode.wants = Some("bearer hunter2".into()));
    let credentials = Credentials { password: Some("hunter2".into()), ..Credentials::default() };
    site.settings.access = Access { credentials: Some(credentials), ..Access::default() };
    site.settings.download_host = Some(server.host());
    site.settings.redactor = Redactor::new(["hunter2"]);
    other.set(|mode| mode.status = Some(503));
    site.build(&image(&[other.url("disk"), server.url("disk")], &content)).await.unwrap();
    assert!(!other.asked()[0].contains("authorization"));
}

#[tokio::test]
async fn nothing_is_downloaded_that_nothing_vouches_for_or_that_flags_forbid() {
    let content = bytes(1000);
    let server = Server::new(&content).await;
    let site = Site::new();
    let plain = steps(&json!([{"download": {"url": server.url("disk")}}]));
    let error = site.build(&plain).await.unwrap_err();
    assert!(error.hope == Hope::None && error.message.contains("names no checksum"), "{error:?}");
    let mut site = Site::new();
    site.settings.allow = AllowList::default();
    let error = site.build(&image(&[server.url("disk")], &content)).await.unwrap_err();
    assert!(error.hope == Hope::None && error.message.contains("--allow-source"), "{error:?}");
    assert!(server.asked().is_empty());
}

#[tokio::test]
async fn a_file_is_verified_by_what_follows_it() {
    let content = bytes(1000);
    let server = Server::new(&content).await;
    let verified = |sum: String| {
        steps(&json!([{"download": {"url": server.url("disk")}}, {"verify": {"checksum": format!("sha256:{sum}")}}]))
    };
    let site = Site::new();
    site.build(&verified(sha256(&content))).await.unwrap();
    let site = Site::new();
    let wrong = verified(sha256(b"another"));
    let mut finished = Vec::new();
    let error = site.go_on(&wrong, &mut finished).await.unwrap_err();
    assert!(error.hope == Hope::None && finished.len() == 1, "{error:?}");
    // Whoever tries again downloads again.
    assert_eq!(site.task(&wrong).lost(&finished, &site.cancel).await, Ok(Some(0)));
}
