//! Builds that are taken over: after a kill, on another disk, without a checkpoint; and builds that are given up.

use std::process::{Child, Command, Stdio};

use clusterstack::core::image::build::{Hope, Place};
use serde_json::json;

use super::*;

const RUNNER: &str = "CLUSTERSTACK_TEST_IMAGE_RUNNER";
const SLOW: &str = "echo begun > begun; trap '' TERM; sleep 3575; echo never > out.raw";

/// No test by itself: the process that the test below starts and kills.
#[tokio::test]
async fn a_runner_that_is_killed() {
    let Ok(root) = std::env::var(RUNNER) else { return };
    let mut site = Site::new();
    std::fs::remove_dir(site.root.path()).unwrap();
    std::os::unix::fs::symlink(&root, site.root.path()).unwrap();
    // Its supervisor waits longer than the test.
    site.settings.grace = Duration::from_secs(60);
    site.build(&site.scripted(SLOW)).await.unwrap();
}

fn runner(root: &Path) -> Child {
    let test = ["--exact", "image::resume::a_runner_that_is_killed", "--nocapture"];
    let this = std::env::current_exe().unwrap();
    Command::new(this).args(test).env(RUNNER, root).stdout(Stdio::null()).spawn().unwrap()
}

fn count(mark: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(mark)).count()
}

/// Its tool ignores SIGTERM, and its supervisor waits a minute for it: both outlive it.
#[tokio::test]
async fn a_tool_that_outlives_its_operator_is_found_and_ended() {
    let mut site = Site::new();
    let mut first = runner(site.root.path());
    until("the tool runs", || files(&site.directory()).iter().any(|path| path.ends_with("begun"))).await;
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(count("sleep\u{0}3575") > 0);
    site.attempt = 2;
    let task = site.task(&site.scripted(SLOW));
    assert_eq!(task.recover(&[], &site.cancel).await, Ok(Vec::new()));
    assert_eq!(count("sleep\u{0}3575"), 0);
    assert!(task.discard(&site.cancel).await.is_ok());
}

#[tokio::test]
async fn one_process_at_a_time_works_in_a_directory() {
    let site = Site::new();
    // What it writes to lies out of its own directory, to be seen by the test.
    let build = site.scripted(&format!(
        "cd {}; echo one >> order; sleep 1; echo two >> order; cd -; echo x > out.raw",
        site.root.path().display()
    ));
    let (task, other) = (site.task(&build), site.task(&build));
    let (one, two) =
        tokio::join!(task.run(0, &[], &site.told, &site.cancel), other.run(0, &[], &site.told, &site.cancel));
    assert!(one.is_ok() && two.is_ok(), "{one:?} {two:?}\n{}", site.told.text());
    let order = std::fs::read_to_string(site.root.path().join("order")).unwrap();
    assert_eq!(order, "one\ntwo\none\ntwo\n");
}

async fn three_steps() -> (Site, Pipeline, Vec<Output>, Server) {
    let (site, content) = (Site::new(), bytes(100_000));
    let server = Server::new(&content).await;
    let sum = format!("sha256:{}", sha256(&content));
    let build = steps(&json!([
        {"download": {"url": server.url("a.raw"), "checksum": sum}}, {"verify": {"checksum": sum}},
        {"compress": {"algorithm": "zstd"}},
    ]));
    let mut finished = Vec::new();
    let task = site.task(&build);
    for step in 0..3 {
        finished.push(task.run(step, &finished, &site.told, &site.cancel).await.unwrap());
    }
    (site, build, finished, server)
}

#[tokio::test]
async fn an_output_counts_only_while_it_is_there_and_right() {
    let (site, build, finished, _server) = three_steps().await;
    let task = site.task(&build);
    assert_eq!(task.lost(&finished, &site.cancel).await, Ok(None));
    assert_eq!(task.recover(&[], &site.cancel).await.as_ref(), Ok(&finished));

    let packed = site.file("a.raw.zst");
    let whole = std::fs::read(&packed).unwrap();
    std::fs::write(&packed, [&whole[..whole.len() - 1], b"x"].concat()).unwrap();
    assert_eq!(task.lost(&finished, &site.cancel).await, Ok(Some(2)));
    assert_eq!(task.recover(&[], &site.cancel).await.unwrap(), finished[..2]);

    let another_disk = Output { place: Place::WorkDirectory("other".into()), ..finished[0].clone() };
    assert_eq!(task.lost(&[another_disk], &site.cancel).await, Ok(Some(0)));

    std::fs::remove_file(site.file("a.raw")).unwrap();
    assert_eq!(task.lost(&finished, &site.cancel).await, Ok(Some(0)));
    std::fs::remove_dir_all(site.directory()).unwrap();
    assert_eq!(task.lost(&finished, &site.cancel).await, Ok(Some(0)));
    assert_eq!(task.recover(&[], &site.cancel).await, Ok(Vec::new()));
}

#[tokio::test]
async fn what_was_made_of_other_inputs_is_not_used() {
    let (site, _, finished, server) = three_steps().await;
    let content = bytes(100_000);
    let other = steps(&json!([
        {"download": {"url": server.url("a.raw"), "checksum": format!("sha256:{}", sha256(&content))}},
        {"compress": {"algorithm": "gzip"}},
    ]));
    let task = site.task(&other);
    assert_eq!(task.recover(&[], &site.cancel).await, Ok(Vec::new()));
    assert_eq!(task.lost(&finished[..1], &site.cancel).await, Ok(Some(0)));
    assert!(files(&site.directory()).iter().all(|path| path.file_name().unwrap() != "a.raw"));
}

#[tokio::test]
async fn an_upload_is_taken_over_by_the_next_attempt_and_a_published_image_is_not_uploaded_again() {
    let (mut site, build, mut finished, _server) = three_steps().await;
    let task = site.task(&build);
    finished.push(task.run(3, &finished, &site.told, &site.cancel).await.unwrap());
    assert_eq!(task.lost(&finished, &site.cancel).await, Ok(None));
    site.attempt = 2;
    assert_eq!(site.task(&build).lost(&finished, &site.cancel).await, Ok(None));
    // The attempt that it was taken from has it no more.
    assert!(site.shelf.uploaded.lock().unwrap().keys().all(|(_, attempt)| *attempt == 2));
    // It is gone where only its end was written down: it is uploaded again.
    site.shelf.uploaded.lock().unwrap().clear();
    site.attempt = 3;
    assert_eq!(site.task(&build).lost(&finished, &site.cancel).await, Ok(Some(3)));
    finished.truncate(3);
    site.go_on(&build, &mut finished).await.unwrap();
    assert_eq!(*site.shelf.uploads.lock().unwrap(), 2);

    // The checkpoint is lost, and the disk: the image is there, which is found by its digest.
    std::fs::remove_dir_all(site.directory()).unwrap();
    assert_eq!(site.task(&build).lost(&finished, &site.cancel).await, Ok(None));
    let again = site.build(&build).await.unwrap();
    assert_eq!(again.last(), finished.last());
    assert_eq!(*site.shelf.uploads.lock().unwrap(), 2);
}

#[tokio::test]
async fn a_cancelled_upload_leaves_nothing_and_discarding_removes_everything() {
    let (site, build, mut finished, _server) = three_steps().await;
    *site.shelf.stalls.lock().unwrap() = true;
    let cancelled = async {
        until("half of it", || site.told.progress.lock().unwrap().last().is_some_and(|p| p.done > 0)).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        site.cancel.cancel();
    };
    let (outcome, ()) = tokio::join!(site.go_on(&build, &mut finished), cancelled);
    assert_eq!(outcome, Err(StepError::cancelled()));
    *site.shelf.stalls.lock().unwrap() = false;
    let fresh = CancellationToken::new();
    site.task(&build).run(3, &finished, &site.told, &fresh).await.unwrap();
    site.task(&build).discard(&fresh).await.unwrap();
    assert!(!site.directory().exists() && site.shelf.uploaded.lock().unwrap().is_empty());
    site.task(&build).discard(&fresh).await.unwrap();
}

#[tokio::test]
async fn a_destination_that_is_down_is_tried_again() {
    let (site, build, mut finished, _server) = three_steps().await;
    *site.shelf.is_down.lock().unwrap() = true;
    let error = site.go_on(&build, &mut finished).await.unwrap_err();
    assert!(error.hope == Hope::Retry && finished.len() == 3, "{error:?}");
}
