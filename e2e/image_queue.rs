//! Many builds over few places: by the operator, with real files.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clusterstack::api::image_release::{ImagePhase, ProviderNodeImageRelease as Image};
use futures::StreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::harness::{ImageServer, Images, World, check, names, sum, wait_for, wait_within};

const BUILDS: usize = 200;
const PLACES: usize = 4;
/// On a machine that does much else; alone it is done in half a minute.
const PATIENCE: Duration = Duration::from_secs(300);

/// Every phase that every image was ever written in, in the order of the writes.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<(String, ImagePhase)>>>);

impl Seen {
    /// Watches a namespace until it is dropped with the test's runtime.
    fn watch(api: Api<Image>) -> Self {
        let seen = Self::default();
        let all = Arc::clone(&seen.0);
        tokio::spawn(async move {
            let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).applied_objects());
            while let Some(image) = events.next().await {
                let image = image.expect("the watch broke off");
                // Before its first pass it has what the definition says.
                if let Some(status) = image.status.as_ref().filter(|status| !status.conditions.is_empty()) {
                    all.lock().unwrap().push((image.name_any(), status.phase));
                }
            }
        });
        seen
    }

    fn all(&self) -> Vec<(String, ImagePhase)> {
        self.0.lock().unwrap().clone()
    }

    /// In which order images were first written in a phase.
    fn first(&self, phase: ImagePhase) -> Vec<String> {
        let mut known = HashSet::new();
        let all = self.all().into_iter().filter(|(_, one)| *one == phase);
        all.filter(|(name, _)| known.insert(name.clone())).map(|(name, _)| name).collect()
    }

    /// The most that ran at once, and how often how many ran.
    fn at_once(&self) -> (usize, BTreeMap<usize, usize>) {
        let (mut running, mut counts) = (HashSet::new(), BTreeMap::new());
        for (name, phase) in self.all() {
            if phase == ImagePhase::Running {
                running.insert(name)
            } else {
                running.remove(&name)
            };
            *counts.entry(running.len()).or_default() += 1;
        }
        (counts.keys().max().copied().unwrap_or_default(), counts)
    }
}

#[tokio::test]
async fn two_hundred_builds_share_four_places_first_come_first_served() {
    let t = World::new("imgmany").await;
    let images = Images::of(&t);
    let content = b"a small disk ".repeat(100);
    let server = ImageServer::new(&content).await;
    server.set(|mode| mode.held = vec!["disk".into()]);
    images.template(json!({"build": {"concurrency": PLACES}})).await;
    let seen = Seen::watch(images.api.clone());
    let mut flags = images.flags(&server.host());
    // What is measured is the queue, not the limit of requests.
    flags.extend(["--qps", "2000", "--burst", "2000"].map(Into::into));
    let _operator = images.operator(&flags);
    let began = Instant::now();
    let name = |number: usize| format!("image-{number:03}");
    for number in 0..BUILDS {
        let url = server.url(&format!("disk-{number}"));
        let checksum = format!("sha256:{}", sum(&content));
        images.make(&json!({"name": name(number), "url": url, "checksum": checksum, "format": "raw"})).await;
        // The next one comes when this one is in line.
        let until = Instant::now() + Duration::from_secs(60);
        while !seen.0.lock().unwrap().iter().rev().any(|(one, _)| *one == name(number)) {
            assert!(Instant::now() < until, "{} does not get into line", name(number));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    let in_line = began.elapsed();
    assert_eq!(seen.at_once().0, PLACES, "as many run as there are places");
    assert!(seen.first(ImagePhase::Succeeded).is_empty());
    server.set(|mode| mode.held.clear());
    wait_within(PATIENCE, "all to succeed", || async {
        let done = seen.first(ImagePhase::Succeeded).len();
        check(done == BUILDS, done)
    })
    .await;
    let (most, counts) = seen.at_once();
    let started = seen.first(ImagePhase::Running);
    let place: HashMap<String, usize> = started.iter().cloned().zip(0..).collect();
    let moved = (0..BUILDS).map(|number| place[&name(number)].abs_diff(number)).max().unwrap();
    let all = images.all().await;
    let attempts: u32 = all.iter().map(|image| image.status.as_ref().unwrap().attempt).sum();
    println!(
        "{BUILDS} builds over {PLACES} places: {} succeeded in {attempts} attempts, at most {most} ran at once (by number \
         of writes: {counts:?}), none started more than {moved} places from where it stood; in line after {in_line:.1?}, \
         done after {:.1?}",
        all.iter().filter(|image| image.status.as_ref().unwrap().phase == ImagePhase::Succeeded).count(),
        began.elapsed(),
    );
    assert_eq!((most, started.len(), attempts), (PLACES, BUILDS, u32::try_from(BUILDS).unwrap()));
    // Places that get free at once are taken at once, in any order.
    assert!(moved < PLACES, "{started:?}");
    assert_eq!(server.asked().len(), BUILDS, "each was downloaded once");
    assert_eq!(names(&images.destination()).len(), 2 * BUILDS, "an image and its record each");
    wait_for("the work directories to go", || async {
        check(names(&images.work()) == ["logs"], names(&images.work()).len())
    })
    .await;
}
