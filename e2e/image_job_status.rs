//! What the object of an image says of its Job when that comes to grief, and what is done about it. The operator, Jobs and
//! their controller are real; what a kubelet says is played.

use std::time::Duration;

use clusterstack::api::image_release::ImagePhase;
use clusterstack::core::image::job::selector;
use kube::ResourceExt;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::harness::{Images, World, check, names, sum, wait_for, wait_within};

const CONTENT: &[u8] = b"a disk";
/// What the last lines of every container are.
const LAST: &str = "fetching packages\nno space left";

/// What befalls the first Job of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Evicted,
    JobDeleted,
    PodDeleted,
    Deadline,
    Failed,
    /// The container says that trying again is no use.
    Hopeless,
}

impl Fate {
    /// Whether this says it, with the last lines where there are some.
    fn is_told_by(self, message: &str) -> bool {
        let has = |part: &str| message.contains(part);
        match self {
            Self::Evicted => has("Evicted (The node was low on resource: ephemeral-storage)"),
            Self::JobDeleted => has("was deleted by somebody else"),
            // The Job's controller may be quicker than we are.
            Self::PodDeleted => {
                has("exited 143, its pod was deleted: fetching") || has("the Job failed and its pod is gone")
            }
            Self::Deadline => has("the Job took too long: Job was active longer than specified deadline"),
            Self::Failed => has("container build exited 1: fetching packages no space left"),
            Self::Hopeless => has("container build exited 78: fetching packages no space left"),
        }
    }
}

struct Case<'t> {
    t: &'t World,
    images: &'t Images<'t>,
    name: &'static str,
    fate: Fate,
}

/// What a kubelet says of container `build`.
fn container(phase: &str, state: Value) -> Value {
    let container =
        json!({"name": "build", "image": "none", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    json!({"phase": phase, "containerStatuses": [container]})
}

fn ended(code: i32, message: &str) -> Value {
    json!({"terminated": {"exitCode": code, "reason": "Error", "message": message}})
}

impl Case<'_> {
    /// The pod of an attempt, and its Job.
    async fn pod(&self, attempt: u32) -> (String, String) {
        let uid = self.images.api.get(self.name).await.unwrap().uid().unwrap();
        let labels = format!("{},clusterstack.x-k8s.io/attempt={attempt}", selector(&uid));
        wait_for(format!("the pod of attempt {attempt} at {}", self.name), || async {
            let pods = self.t.api("v1", "Pod").list(&ListParams::default().labels(&labels)).await.unwrap().items;
            let live = pods.into_iter().find(|pod| pod.metadata.deletion_timestamp.is_none()).ok_or("no pod")?;
            let job = |pod: &DynamicObject| pod.labels()["batch.kubernetes.io/job-name"].clone();
            Ok((live.name_any(), job(&live)))
        })
        .await
    }

    async fn says(&self, pod: &str, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        self.t.api("v1", "Pod").patch_status(pod, &PatchParams::default(), &patch).await.unwrap();
    }

    async fn befall(&self, attempt: u32) {
        let (pod, job) = self.pod(attempt).await;
        self.says(&pod, container("Running", json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}))).await;
        let is_held = |status: &clusterstack::api::image_release::ProviderNodeImageReleaseStatus| {
            status.phase == ImagePhase::Running && status.attempt == attempt
        };
        self.images.status_is(self.name, "to be built", is_held).await;
        let low = "The node was low on resource: ephemeral-storage";
        match self.fate {
            Fate::Evicted => self.says(&pod, json!({"phase": "Failed", "reason": "Evicted", "message": low})).await,
            Fate::JobDeleted => self.t.delete("batch/v1", "Job", &job).await,
            Fate::PodDeleted => {
                let now = DeleteParams::default().grace_period(0);
                self.t.api("v1", "Pod").delete(&pod, &now).await.unwrap();
                self.says(&pod, container("Failed", ended(143, LAST))).await;
            }
            // The Job controller sees to it.
            Fate::Deadline => {}
            Fate::Failed => self.says(&pod, container("Failed", ended(1, LAST))).await,
            Fate::Hopeless => self.says(&pod, container("Failed", ended(78, LAST))).await,
        }
    }

    /// The container has done its work, and says so.
    async fn succeed(&self, attempt: u32) {
        let (pod, _) = self.pod(attempt).await;
        let digest = format!("sha256:{}", sum(CONTENT));
        let to = self.images.destination();
        let record = json!({
            "digest": digest, "size": CONTENT.len(), "format": "raw", "properties": {}, "file": self.name, "users": [],
            "object": "a-job", "attempt": attempt,
        });
        std::fs::write(to.join(format!("{}.clusterstack.json", self.name)), record.to_string()).unwrap();
        std::fs::write(to.join(self.name), CONTENT).unwrap();
        let result = json!({"digest": digest, "size": CONTENT.len()}).to_string();
        self.says(&pod, container("Succeeded", ended(0, &result))).await;
    }

    async fn run(&self) {
        self.befall(1).await;
        let status = self.images.status_is(self.name, "to tell of its Job", |status| status.failures == 1).await;
        assert!(self.fate.is_told_by(&status.message), "{}: {:?}", self.name, status.message);
        assert!(status.log_tail.contains(&format!("Job {}/", self.t.namespace)), "{:?}", status.log_tail);
        let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready").unwrap();
        assert!(self.fate.is_told_by(&ready.message), "{ready:?}");
        if self.fate == Fate::Hopeless {
            assert_eq!((status.phase, status.attempt), (ImagePhase::Failed, 1));
            self.t.event("BuildFailed", &status.message).await;
            return;
        }
        assert_eq!(status.phase, ImagePhase::Queued, "it is tried again");
        assert!(status.not_before.is_some(), "at once");
        self.t.event("BuildRetried", &status.message).await;
        // The template has one retry.
        if matches!(self.fate, Fate::Failed | Fate::Evicted) {
            self.befall(2).await;
            let status = self.images.status_is(self.name, "to be given up", |s| s.phase == ImagePhase::Failed).await;
            assert_eq!((status.attempt, status.failures), (2, 2));
            self.t.event("BuildFailed", &status.message).await;
            // What befell it is over; a person asks for another try.
            assert!(self.images.ask(&["retry", self.name]).await.status.success());
            self.succeed(3).await;
        } else {
            self.succeed(2).await;
        }
        let done = self.images.status_is(self.name, "to succeed", |s| s.phase == ImagePhase::Succeeded).await;
        assert_eq!(done.digest, format!("sha256:{}", sum(CONTENT)));
    }
}

#[tokio::test]
async fn whatever_befalls_a_job_is_told_and_tried_again_as_the_template_says() {
    let t = World::new("imgfate").await;
    let images = Images::of(&t);
    t.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "builder"}})).await;
    let pod = json!({"spec": {"serviceAccountName": "builder", "containers": [{"name": "build", "image": "none"}]}});
    for (name, deadline) in [("t", 600), ("hurried", 6)] {
        let job = json!({"template": pod, "activeDeadlineSeconds": deadline});
        images
            .template_called(name, json!({"build": {"executor": "Job", "retries": 1, "concurrency": 16, "job": job}}))
            .await;
    }
    t.allow_image_jobs().await;
    let _operator = images.operator(&images.flags("127.0.0.1:1"));
    let cases = [
        ("evicted", Fate::Evicted),
        ("job-deleted", Fate::JobDeleted),
        ("pod-deleted", Fate::PodDeleted),
        ("late", Fate::Deadline),
        ("failed", Fate::Failed),
        ("hopeless", Fate::Hopeless),
    ]
    .map(|(name, fate)| Case { t: &t, images: &images, name, fate });
    for case in &cases {
        let template = if case.fate == Fate::Deadline { "hurried" } else { "t" };
        let steps = json!([{"download": {"url": "https://images.example.org/a.raw", "checksum": format!("sha256:{}", sum(CONTENT))}}]);
        images.make_by(template, &json!({"name": case.name, "format": "raw", "steps": steps})).await;
    }
    futures::future::join_all(cases.iter().map(Case::run)).await;
    let kinds = [("batch/v1", "Job"), ("v1", "Pod")];
    // The one that failed for good keeps its Job, for who looks for the reason.
    wait_within(Duration::from_secs(60), "the Jobs of those that succeeded to go", || async {
        let mut left = Vec::new();
        for (api_version, kind) in kinds {
            let all = t.api(api_version, kind).list(&ListParams::default()).await.unwrap().items;
            left.extend(all.iter().map(|one| format!("{kind} {}", one.name_any())));
        }
        check(left.len() <= 2, left)
    })
    .await;
    assert_eq!(names(&images.destination()).len(), 2 * (cases.len() - 1), "an image and its record each");
}
