//! Builds of node images: queued, claimed, carried on by another process, cancelled, held, tried again, and let go.
//!
//! The steps and the destination are in memory; the objects, and who writes them when, are real.

mod plant;

use std::collections::BTreeMap;
use std::time::Duration;

use clusterstack::api::image_release::{ImagePhase, ProviderNodeImageRelease as Image};
use clusterstack::api::{CANCEL_AT, IMAGE_DIGEST, INFRASTRUCTURE_API_VERSION, RETRY_AT};
use k8s_openapi::api::core::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use self::plant::{Plant, Process, image};
use crate::harness::{World, check, wait_for};

const TEMPLATE: &str = "ProviderClusterStackReleaseTemplate";

/// A template whose destination is `directory`; `spec` goes over it.
async fn template(t: &World, directory: &str, spec: Value) {
    let mut object = json!({
        "apiVersion": INFRASTRUCTURE_API_VERSION, "kind": TEMPLATE, "metadata": {"name": "t"},
        "spec": {
            "template": {"spec": {}}, "destination": {"directory": {"path": directory}},
            "build": {"concurrency": 4}, "imageGracePeriod": "0s",
        },
    });
    json_patch::merge(&mut object, &json!({"spec": spec}));
    t.apply(&object).await;
}

fn api(t: &World) -> Api<Image> {
    Api::namespaced(t.client.clone(), &t.namespace)
}

async fn make(t: &World, names: impl IntoIterator<Item = String>) {
    for name in names {
        api(t).create(&PostParams::default(), &image(&name, "t")).await.expect("image");
    }
}

async fn all(t: &World) -> Vec<Image> {
    api(t).list(&ListParams::default()).await.expect("images").items
}

fn phase(image: &Image) -> Option<ImagePhase> {
    image.status.as_ref().map(|status| status.phase)
}

/// Waits until every image is in a phase.
async fn all_are(t: &World, wanted: ImagePhase) -> Vec<Image> {
    wait_for(format!("all images to be {wanted:?}"), || async {
        let images = all(t).await;
        let seen: Vec<_> = images.iter().map(|image| (image.name_any(), phase(image))).collect();
        check(seen.iter().all(|(_, phase)| *phase == Some(wanted)), &seen).map(|()| images)
    })
    .await
}

async fn annotate(t: &World, name: &str, key: &str, value: &str) {
    let patch = json!({"metadata": {"annotations": {key: value}}});
    api(t).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("annotation");
}

/// Waits for an event on the image of this reason; its note.
async fn event(t: &World, name: &str, reason: &str) -> String {
    let events: Api<Event> = Api::namespaced(t.client.clone(), &t.namespace);
    wait_for(format!("an event {reason} on {name}"), || async {
        let events = events.list(&ListParams::default()).await.expect("events").items;
        let of_it = events.into_iter().filter(|event| event.involved_object.name.as_deref() == Some(name));
        let told: Vec<_> = of_it.map(|event| (event.reason.unwrap_or_default(), event.message)).collect();
        let found = told.iter().find(|(word, _)| word == reason).map(|(_, note)| note.clone().unwrap_or_default());
        found.ok_or_else(|| format!("{told:?}"))
    })
    .await
}

#[tokio::test]
async fn builds_queue_for_the_places_of_their_template_and_each_step_runs_once() {
    let t = World::new("imgqueue").await;
    let plant = Plant::new(Duration::from_millis(20));
    template(&t, "/images", json!({})).await;
    make(&t, (0..24).map(|n| format!("image-{n:02}"))).await;
    let process = Process::start(&t, &plant, "pod_1").await;
    let images = all_are(&t, ImagePhase::Succeeded).await;
    assert!(plant.most_at_once() <= 4, "{} builds ran at once", plant.most_at_once());
    assert_eq!(plant.runs(), BTreeMap::from_iter([(1, 24 * 3)]), "steps by how often they ran");
    for image in &images {
        let status = image.status.clone().unwrap();
        let name = &image.spec.image.name;
        assert_eq!((status.location, status.digest), (format!("memory/{name}"), plant.published(name).unwrap()));
        assert_eq!((status.attempt, status.repeated, status.holder), (1, 0, None));
    }
    assert!(event(&t, "image-00", "ImageReady").await.contains("at its destination"));
    wait_for("the work directories to go", || async { check(plant.work_directories() == 0, plant.work_directories()) })
        .await;
    process.end().await;
}

#[tokio::test]
async fn builds_go_on_where_they_were_however_often_their_process_is_killed() {
    let t = World::new("imgkill").await;
    let plant = Plant::new(Duration::from_millis(150));
    // A process that is killed before a step ends uses a retry.
    template(&t, "/images", json!({"build": {"retries": 100}})).await;
    make(&t, (0..10).map(|n| format!("image-{n}"))).await;
    let mut kills = 0;
    for life in 0..12 {
        let process = Process::start(&t, &plant, &format!("pod_{life}")).await;
        tokio::time::sleep(Duration::from_millis(300 + rand::random::<u64>() % 900)).await;
        process.kill();
        kills += 1;
        if all(&t).await.iter().all(|image| phase(image) == Some(ImagePhase::Succeeded)) {
            break;
        }
    }
    let process = Process::start(&t, &plant, "pod_last").await;
    let images = all_are(&t, ImagePhase::Succeeded).await;
    let attempts: u32 = images.iter().map(|image| image.status.as_ref().unwrap().attempt).sum();
    eprintln!("{kills} kills, {attempts} attempts at 10 images, steps by how often they ended: {:?}", plant.runs());
    for image in &images {
        let status = image.status.as_ref().unwrap();
        assert_eq!(Some(&status.digest), plant.published(&image.spec.image.name).as_ref());
        assert_eq!(status.failures, 0);
    }
    // What had ended and was at hand never ran again: a step ends once.
    assert_eq!(plant.runs(), BTreeMap::from_iter([(1, 10 * 3)]));
    process.end().await;
}

#[tokio::test]
async fn a_build_that_takes_one_process_after_the_other_along_is_given_up() {
    let t = World::new("imgpoison").await;
    let plant = Plant::new(Duration::from_millis(10));
    plant.hold(1);
    template(&t, "/images", json!({"build": {"retries": 2}})).await;
    make(&t, ["one".to_owned()]).await;
    for life in 1..=3 {
        let process = Process::start(&t, &plant, &format!("pod_{life}")).await;
        wait_for("the second step", || async {
            let status = all(&t).await[0].status.clone().unwrap_or_default();
            let is_at_it = status.phase == ImagePhase::Running && status.step == "upload" && status.attempt == life;
            check(is_at_it && status.failures == life - 1, &status)
        })
        .await;
        process.kill();
    }
    let process = Process::start(&t, &plant, "pod_4").await;
    let images = all_are(&t, ImagePhase::Failed).await;
    let status = images[0].status.clone().unwrap();
    assert_eq!((status.attempt, status.failures, status.step.as_str()), (3, 3, "upload"));
    assert!(status.message.contains("pod_3, which built it, is gone without a word"), "{}", status.message);
    let note = event(&t, "one", "BuildHolderLost").await;
    assert!(note.contains(" is gone; another one goes on with step upload (2 of 3)"), "{note}");
    plant.release();
    annotate(&t, "one", RETRY_AT, "1").await;
    all_are(&t, ImagePhase::Succeeded).await;
    process.end().await;
}

#[tokio::test]
async fn the_end_of_the_process_is_written_down_and_the_next_one_goes_on() {
    let t = World::new("imgterm").await;
    let plant = Plant::new(Duration::from_millis(10));
    plant.hold(1);
    template(&t, "/images", json!({})).await;
    make(&t, ["one".to_owned()]).await;
    let process = Process::start(&t, &plant, "a_1").await;
    wait_for("the second step", || async {
        let status = all(&t).await[0].status.clone().unwrap_or_default();
        check(status.phase == ImagePhase::Running && status.step == "upload", &status)
    })
    .await;
    process.end().await;
    let status = all(&t).await[0].status.clone().unwrap();
    assert_eq!((status.phase, status.holder, status.step.as_str()), (ImagePhase::Queued, None, "upload"));
    plant.release();
    // Another pod: nothing is waited for.
    let process = Process::start(&t, &plant, "b_1").await;
    let images = all_are(&t, ImagePhase::Succeeded).await;
    let status = images[0].status.clone().unwrap();
    assert_eq!((status.attempt, status.repeated), (2, 0));
    process.end().await;
}

#[tokio::test]
async fn a_build_is_cancelled_held_and_tried_again_on_request() {
    let t = World::new("imgask").await;
    let plant = Plant::new(Duration::from_millis(10));
    plant.hold(1);
    template(&t, "/images", json!({})).await;
    make(&t, ["one".to_owned()]).await;
    let process = Process::start(&t, &plant, "a_1").await;
    all_are(&t, ImagePhase::Running).await;
    annotate(&t, "one", CANCEL_AT, "1").await;
    all_are(&t, ImagePhase::Cancelled).await;
    event(&t, "one", "BuildCancelled").await;
    wait_for("what it left to go", || async { check(plant.work_directories() == 0, plant.work_directories()) }).await;
    assert_eq!(plant.published("one"), None);

    annotate(&t, "one", RETRY_AT, "1").await;
    all_are(&t, ImagePhase::Running).await;
    let suspend = |suspend: bool| json!({"spec": {"suspend": suspend}});
    api(&t).patch("one", &PatchParams::default(), &Patch::Merge(suspend(true))).await.unwrap();
    all_are(&t, ImagePhase::Suspended).await;
    plant.release();
    api(&t).patch("one", &PatchParams::default(), &Patch::Merge(suspend(false))).await.unwrap();
    all_are(&t, ImagePhase::Succeeded).await;
    // What can't be changed is not.
    for change in
        [json!({"image": {"name": "other"}}), json!({"inputs": "other"}), json!({"templateRef": {"name": "u"}})]
    {
        let refused = api(&t).patch("one", &PatchParams::default(), &Patch::Merge(json!({"spec": change}))).await;
        assert!(refused.unwrap_err().to_string().contains("can't be changed"), "{change}");
    }
    process.end().await;
}

#[tokio::test]
async fn an_image_that_is_there_is_found_again_where_nobody_remembers_its_build() {
    let t = World::new("imgfound").await;
    let plant = Plant::new(Duration::from_millis(10));
    template(&t, "/images", json!({"imageDeletionPolicy": "Retain"})).await;
    make(&t, ["one".to_owned()]).await;
    let process = Process::start(&t, &plant, "a_1").await;
    let digest = all_are(&t, ImagePhase::Succeeded).await[0].status.clone().unwrap().digest;
    wait_for("its work directory to go", || async { check(plant.work_directories() == 0, plant.work_directories()) })
        .await;
    // As a restore from a backup does: without status, with what stands beside it.
    let remembered = all(&t).await[0].annotations()[IMAGE_DIGEST].clone();
    assert!(remembered.starts_with(&format!("{digest} of sha256:")), "{remembered}");
    let lost = Patch::Merge(json!({"status": null}));
    api(&t).patch_status("one", &PatchParams::default(), &lost).await.unwrap();
    let status = all_are(&t, ImagePhase::Succeeded).await[0].status.clone().unwrap();
    assert_eq!((status.digest, status.location), (digest.clone(), "one".to_owned()));
    assert_eq!(plant.runs(), BTreeMap::from_iter([(1, 3)]), "steps by how often they ran");

    // One that is made anew takes it when somebody says so, and only where it is what they say.
    api(&t).delete("one", &DeleteParams::default()).await.unwrap();
    t.gone(INFRASTRUCTURE_API_VERSION, "ProviderNodeImageRelease", "one").await;
    let mut again = image("one", "t");
    again.annotations_mut().insert(IMAGE_DIGEST.to_owned(), remembered);
    api(&t).create(&PostParams::default(), &again).await.unwrap();
    let status = all_are(&t, ImagePhase::Succeeded).await[0].status.clone().unwrap();
    assert_eq!((status.digest, plant.runs()), (digest, BTreeMap::from_iter([(1, 3)])));
    let mut other = image("other", "t");
    let inputs = "sha256:in";
    other.annotations_mut().insert(IMAGE_DIGEST.to_owned(), format!("sha256:{} of {inputs}", "0".repeat(64)));
    api(&t).create(&PostParams::default(), &other).await.unwrap();
    all_are(&t, ImagePhase::Succeeded).await;
    assert_eq!(plant.runs(), BTreeMap::from_iter([(1, 6)]));
    process.end().await;
}

#[tokio::test]
async fn a_failed_build_is_told_and_a_missing_template_waited_for() {
    let t = World::new("imgfail").await;
    let plant = Plant::new(Duration::from_millis(10));
    plant.fail(true);
    make(&t, ["one".to_owned()]).await;
    let process = Process::start(&t, &plant, "a_1").await;
    wait_for("the missing template to be told", || async {
        let status = all(&t).await[0].status.clone().unwrap_or_default();
        let told = status.conditions.iter().any(|c| c.type_ == "Ready" && c.reason == "ProviderTemplateNotFound");
        check(told, &status)
    })
    .await;
    template(&t, "/images", json!({"build": {"retries": 0}})).await;
    let images = all_are(&t, ImagePhase::Failed).await;
    assert!(images[0].status.as_ref().unwrap().message.contains("on purpose"));
    event(&t, "one", "BuildFailed").await;
    plant.fail(false);
    annotate(&t, "one", RETRY_AT, "now").await;
    all_are(&t, ImagePhase::Succeeded).await;
    process.end().await;
}

#[tokio::test]
async fn an_image_goes_with_its_object_unless_somebody_else_has_it() {
    let t = World::new("imggc").await;
    let plant = Plant::new(Duration::from_millis(5));
    template(&t, "/images", json!({})).await;
    // The same image twice, as two templates or two namespaces would have it.
    make(&t, ["one".to_owned(), "two".to_owned()]).await;
    let mut twin = image("one", "t");
    twin.metadata.name = Some("one-again".into());
    api(&t).create(&PostParams::default(), &twin).await.unwrap();
    let process = Process::start(&t, &plant, "a_1").await;
    all_are(&t, ImagePhase::Succeeded).await;
    let delete = async |name: &str| {
        api(&t).delete(name, &DeleteParams::default()).await.unwrap();
        t.gone(INFRASTRUCTURE_API_VERSION, "ProviderNodeImageRelease", name).await;
    };
    delete("one").await;
    assert!(event(&t, "one", "ImageRetained").await.contains("one-again has it too"));
    assert!(plant.published("one").is_some());
    delete("one-again").await;
    assert_eq!((plant.published("one"), plant.published("two").is_some()), (None, true));
    event(&t, "one-again", "ImageRemoved").await;

    template(&t, "/images", json!({"imageDeletionPolicy": "Retain"})).await;
    delete("two").await;
    assert!(plant.published("two").is_some());

    // One that is being built stops first, and leaves nothing.
    plant.hold(1);
    make(&t, ["three".to_owned()]).await;
    all_are(&t, ImagePhase::Running).await;
    delete("three").await;
    assert_eq!((plant.work_directories(), plant.published("three")), (0, None));
    process.end().await;
}
