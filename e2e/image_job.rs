//! Builds by Jobs: found again, judged, stopped. The Job controller is Kubernetes' own; what a kubelet and a destination say
//! is played.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use clusterstack::core::image::build::{Hope, Output, Place, Progress};
use clusterstack::core::image::job::{ImageObject, JobRequest, selector};
use clusterstack::io::image::destination::{Claim, Destination, DestinationError, Image, Meter, Published, Removal};
use clusterstack::io::image::job::{JobSteps, Jobs};
use clusterstack::io::image::task::{Report, StepError, Steps};
use kube::api::{ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::harness::{World, check, wait_for};

const DIGEST: &str = "sha256:0f8c3d7d9fb5c1c1a3f4f3f5c1a0b6f0c9e8d7a6b5c4d3e2f1a0b9c8d7e6f5a4";
const IMAGE: &str = "ubuntu";

/// A destination in memory.
#[derive(Default)]
struct Shelf {
    images: Mutex<BTreeMap<String, Published>>,
    abandoned: Mutex<Vec<u32>>,
}

impl Shelf {
    fn put(&self, digest: &str) {
        let image = Published { location: "shelf/1".into(), digest: digest.into(), users: vec!["another".into()] };
        self.images.lock().unwrap().insert(IMAGE.into(), image);
    }

    fn image(&self) -> Option<Published> {
        self.images.lock().unwrap().get(IMAGE).cloned()
    }
}

#[async_trait]
impl Destination for Shelf {
    fn name(&self) -> String {
        "the shelf".into()
    }

    async fn find(&self, name: &str, _: &CancellationToken) -> Result<Option<Published>, DestinationError> {
        Ok(self.images.lock().unwrap().get(name).cloned())
    }

    async fn upload(
        &self,
        _: &Image,
        _: &Path,
        _: &Claim,
        _: &dyn Meter,
        _: &CancellationToken,
    ) -> Result<(), DestinationError> {
        unreachable!("a Job brings its image itself")
    }

    async fn register(
        &self,
        image: &Image,
        claim: &Claim,
        _: &CancellationToken,
    ) -> Result<Published, DestinationError> {
        let mut images = self.images.lock().unwrap();
        let there = images.get_mut(&image.name).expect("not there");
        assert_eq!(there.digest, image.digest);
        there.users.push(claim.cluster.clone());
        Ok(there.clone())
    }

    async fn abandon(&self, _: &str, claim: &Claim, _: &CancellationToken) -> Result<(), DestinationError> {
        self.abandoned.lock().unwrap().push(claim.attempt);
        Ok(())
    }

    async fn remove(
        &self,
        _: &str,
        _: &str,
        _: &str,
        _: bool,
        _: &CancellationToken,
    ) -> Result<Removal, DestinationError> {
        unreachable!("nothing is removed here")
    }
}

/// What a build told.
#[derive(Default)]
struct Told {
    lines: Mutex<Vec<String>>,
    progress: Mutex<Vec<Progress>>,
}

impl Report for Told {
    fn progress(&self, progress: Progress) {
        self.progress.lock().unwrap().push(progress);
    }

    fn line(&self, line: &str) {
        self.lines.lock().unwrap().push(line.to_owned());
    }
}

/// An image's object, and what its builds share.
struct Build<'a> {
    t: &'a World,
    client: Client,
    object: ImageObject,
    shelf: Arc<Shelf>,
    told: Arc<Told>,
    no_progress: Duration,
}

impl<'a> Build<'a> {
    async fn new(t: &'a World) -> Self {
        let name = "ubuntu-0a1b";
        t.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "builder"}})).await;
        // It stands for the image's object.
        let owner = t.apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})).await;
        let object = ImageObject {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            namespace: t.namespace.clone(),
            name: name.into(),
            uid: owner["metadata"]["uid"].as_str().unwrap().into(),
        };
        let no_progress = Duration::from_mins(1);
        Self { t, client: t.client.clone(), object, shelf: Arc::default(), told: Arc::default(), no_progress }
    }

    fn steps(&self, attempt: u32, account: &str) -> JobSteps {
        let container = |name: &str| json!({"name": name, "image": "none"});
        let template = json!({"spec": {
            "serviceAccountName": account, "containers": [container("sidecar"), container("build")],
        }});
        JobSteps {
            jobs: Jobs::new(self.client.clone()),
            request: JobRequest {
                object: self.object.clone(),
                namespace: self.t.namespace.clone(),
                template: Some(template),
                default_pod: Default::default(),
                active_deadline_seconds: None,
                ttl_seconds_after_finished: None,
                image: IMAGE.into(),
                inputs: "sha256:inputs".into(),
                attempt,
                cluster: "here".into(),
                recipe: json!({"name": IMAGE}),
                operator: None,
            },
            destination: self.shelf.clone(),
            format: "qcow2".into(),
            properties: serde_json::Map::new(),
            no_progress: self.no_progress,
            mask: Arc::new(|line: &str| line.replace("s3cret", "***")),
        }
    }

    /// Begins an attempt; what stops it, and what comes of it.
    fn begin(&self, attempt: u32) -> (CancellationToken, JoinHandle<Result<Output, StepError>>) {
        let (steps, told, cancel) = (self.steps(attempt, "builder"), self.told.clone(), CancellationToken::new());
        let token = cancel.clone();
        (cancel, tokio::spawn(async move { steps.run(0, &[], told.as_ref(), &token).await }))
    }

    fn labelled(&self) -> ListParams {
        ListParams::default().labels(&selector(&self.object.uid))
    }

    async fn names(&self, api_version: &str, kind: &str) -> Vec<String> {
        let found = self.t.api(api_version, kind).list(&self.labelled()).await.unwrap().items;
        found.iter().map(ResourceExt::name_any).collect()
    }

    /// What the kubelet says of the pod of an attempt.
    async fn pod_says(&self, attempt: u32, status: Value) -> String {
        let pods = self.t.api("v1", "Pod");
        let of =
            self.labelled().labels(&format!("{},clusterstack.x-k8s.io/attempt={attempt}", selector(&self.object.uid)));
        wait_for(format!("the pod of attempt {attempt}"), || async {
            let pod = pods.list(&of).await.unwrap().items.first().map(ResourceExt::name_any).ok_or("no pod")?;
            let patch = Patch::Merge(json!({"status": status}));
            pods.patch_status(&pod, &PatchParams::default(), &patch).await.map_err(|e| e.to_string())?;
            Ok(pod)
        })
        .await
    }

    async fn told(&self, part: &str) {
        wait_for(format!("{part:?} to be told"), || async {
            let lines = self.told.lines.lock().unwrap().clone();
            check(lines.iter().any(|line| line.contains(part)), lines)
        })
        .await;
    }
}

/// Container `build` in a state, beside a sidecar that never ends.
fn containers(phase: &str, state: Value) -> Value {
    let of = |name: &str, state: Value| json!({"name": name, "image": "none", "imageID": "", "ready": true, "restartCount": 0, "state": state});
    let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    json!({"phase": phase, "containerStatuses": [of("sidecar", running), of("build", state)]})
}

fn ended(code: i32, message: &str) -> Value {
    json!({"terminated": {"exitCode": code, "reason": "Error", "message": message}})
}

#[tokio::test]
async fn a_job_goes_on_without_us_and_counts_when_the_destination_has_its_image() {
    let t = World::new("imgjob").await;
    let build = Build::new(&t).await;
    let (cancel, first) = build.begin(1);
    let pod = build.pod_says(1, containers("Running", json!({"running": {}}))).await;
    let annotations = json!({"metadata": {"annotations": {"clusterstack.x-k8s.io/progress": "10/200 download"}}});
    t.change("build", ("v1", "Pod", &pod), annotations).await;
    build.told("step download").await;
    assert_eq!(build.told.progress.lock().unwrap().last(), Some(&Progress { done: 10, total: Some(200) }));
    let object = t.get("v1", "Pod", &pod).await.unwrap();
    assert_eq!(object["spec"]["serviceAccountName"], "builder");
    let recipe = build.names("v1", "ConfigMap").await;
    assert_eq!(t.in_config_map(&recipe[0], "/data/recipe.json").await, "{\n  \"name\": \"ubuntu\"\n}");

    // The operator goes, another comes with the next attempt: the Job is the same.
    cancel.cancel();
    first.await.unwrap().unwrap_err();
    let before = build.names("batch/v1", "Job").await;
    assert_eq!(before, recipe);
    let result = format!(r#"{{"digest": "{DIGEST}", "size": 5}}"#);
    build
        .pod_says(1, containers("Running", json!({"running": null, "terminated": ended(0, &result)["terminated"]})))
        .await;
    let error = build.begin(2).1.await.unwrap().unwrap_err();
    assert!(error.hope == Hope::Retry && error.message.contains("the shelf has no such image"), "{error:?}");
    build.shelf.put("sha256:another");
    let error = build.begin(2).1.await.unwrap().unwrap_err();
    assert!(error.message.contains("has one of sha256:another"), "{error:?}");
    build.shelf.put(DIGEST);
    let output = build.begin(2).1.await.unwrap().unwrap();
    assert_eq!(output, Output { digest: DIGEST.into(), place: Place::Destination });
    assert_eq!(build.names("batch/v1", "Job").await, before);
    assert_eq!(build.shelf.image().unwrap().users, ["another", "here"]);

    let (steps, cancel) = (build.steps(2, "builder"), CancellationToken::new());
    assert_eq!(steps.lost(std::slice::from_ref(&output), &cancel).await.unwrap(), None);
    build.shelf.put("sha256:another");
    assert_eq!(steps.lost(&[output], &cancel).await.unwrap(), Some(0));
    steps.discard(&cancel).await.unwrap();
    for (api_version, kind) in [("batch/v1", "Job"), ("v1", "Pod"), ("v1", "ConfigMap")] {
        assert_eq!(build.names(api_version, kind).await, [""; 0], "{kind} is left");
    }
    assert_eq!(*build.shelf.abandoned.lock().unwrap(), [2]);
    assert!(t.config_map("ubuntu-0a1b").await.is_some(), "what is not of the Job stays");
}

#[tokio::test]
async fn what_becomes_of_a_job_is_told_and_the_next_attempt_makes_another() {
    let t = World::new("imgjobfail").await;
    let build = Build::new(&t).await;
    let (_, deleted) = build.begin(1);
    build.pod_says(1, containers("Running", json!({"running": {}}))).await;
    build.told("Job ").await;
    t.delete("batch/v1", "Job", &build.names("batch/v1", "Job").await[0]).await;
    let error = deleted.await.unwrap().unwrap_err();
    assert!(error.hope == Hope::Retry && error.message.contains("deleted by somebody else"), "{error:?}");

    let (_, evicted) = build.begin(2);
    build.pod_says(2, json!({"phase": "Failed", "reason": "Evicted", "message": "low on s3cret disk"})).await;
    let error = evicted.await.unwrap().unwrap_err();
    assert!(error.hope == Hope::Retry && error.message.contains("Evicted (low on *** disk)"), "{error:?}");

    let (_, failed) = build.begin(3);
    build.pod_says(3, containers("Failed", ended(78, "no key for s3cret"))).await;
    let error = failed.await.unwrap().unwrap_err();
    assert_eq!((error.hope, error.message.as_str()), (Hope::None, "container build exited 78: no key for ***"));
    // Those before it are gone with their pods.
    let left = build.names("v1", "Pod").await;
    assert_eq!((build.names("batch/v1", "Job").await.len(), left.len()), (1, 1), "{left:?}");
}

#[tokio::test]
async fn a_job_that_is_of_no_use_is_not_taken_over_and_what_one_made_is_known() {
    let t = World::new("imgjobhung").await;
    let mut build = Build::new(&t).await;
    build.no_progress = Duration::from_secs(3);
    let (_, hung) = build.begin(1);
    build.pod_says(1, containers("Running", json!({"running": {}}))).await;
    let error = hung.await.unwrap().unwrap_err();
    assert!(error.hope == Hope::Retry && error.message.contains("showed no progress"), "{error:?}");

    // The next attempt has a Job of its own, which says that it made what is not there.
    build.no_progress = Duration::from_mins(1);
    let result = format!(r#"{{"digest": "{DIGEST}", "size": 5}}"#);
    let (_, lied) = build.begin(2);
    build.pod_says(2, containers("Running", ended(0, &result))).await;
    let is_missing = |error: StepError| {
        assert!(error.hope == Hope::Retry && error.message.contains("the shelf has no such image"), "{error:?}");
    };
    is_missing(lied.await.unwrap().unwrap_err());
    assert_eq!(build.steps(2, "builder").made().await.unwrap().as_deref(), Some(DIGEST));
    is_missing(build.begin(3).1.await.unwrap().unwrap_err());
    let (_, anew) = build.begin(4);
    build.pod_says(4, containers("Running", json!({"running": {}}))).await;
    build.shelf.put(DIGEST);
    build.pod_says(4, containers("Running", ended(0, &result))).await;
    anew.await.unwrap().unwrap();

    // Until somebody gave it up nothing made it go before its result was read.
    let jobs = build.names("batch/v1", "Job").await;
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    let ttl = async || t.get("batch/v1", "Job", &jobs[0]).await.unwrap()["spec"]["ttlSecondsAfterFinished"].clone();
    assert_eq!(ttl().await, Value::Null);
    build.steps(4, "builder").abandon(&CancellationToken::new()).await.unwrap();
    assert_eq!(ttl().await, json!(3600));
}

#[tokio::test]
async fn a_pod_that_may_not_be_ends_the_attempt() {
    let t = World::new("imgjobpsa").await;
    t.kubectl(&["label", "namespace", &t.namespace, "pod-security.kubernetes.io/enforce=restricted"]);
    let build = Build::new(&t).await;
    let error = build.begin(1).1.await.unwrap().unwrap_err();
    assert!(error.hope == Hope::Retry && error.message.contains("violates PodSecurity \"restricted"), "{error:?}");
    assert!(error.message.contains("pod-security.kubernetes.io/enforce"), "{error:?}");
    assert_eq!(build.names("v1", "Pod").await, [""; 0]);
    // Given up, it makes no pod later on.
    build.steps(1, "builder").abandon(&CancellationToken::new()).await.unwrap();
    wait_for("the Job to be gone", || async {
        let jobs = build.names("batch/v1", "Job").await;
        check(jobs.is_empty(), jobs)
    })
    .await;
    build.steps(1, "builder").discard(&CancellationToken::new()).await.unwrap();
}

#[tokio::test]
async fn the_rights_that_we_ship_are_enough_and_no_pod_runs_as_the_operator() {
    let t = World::new("imgjobrights").await;
    let mut build = Build::new(&t).await;
    let kubeconfig = Kubeconfig::read_from(&t.plane.kubeconfig).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.auth_info.impersonate = Some(format!("system:serviceaccount:{}:clusterstack", t.namespace));
    config.auth_info.impersonate_groups = Some(vec!["system:authenticated".into(), "system:serviceaccounts".into()]);
    build.client = Client::try_from(config).unwrap();
    let error = build.begin(1).1.await.unwrap().unwrap_err();
    assert!(error.hope == Hope::Retry && error.message.contains("cannot list resource \"jobs\""), "{error:?}");
    assert_eq!(build.names("batch/v1", "Job").await, [""; 0]);

    let rights = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/image-job-rights.yaml")).unwrap();
    let own = format!("{}-jobs", t.namespace);
    t.remove_at_end("rbac.authorization.k8s.io/v1", "ClusterRole", &own);
    let rights = rights.replace("clusterstack-image-jobs", &own).replace("clusterstack-system", &t.namespace);
    let file = t.dir().join("rights.yaml");
    std::fs::write(&file, rights.replace("namespace: images", &format!("namespace: {}", t.namespace))).unwrap();
    t.kubectl(&["apply", "-f", file.to_str().unwrap()]);

    let cancel = CancellationToken::new();
    let error = wait_for("the rights to be there", || async {
        let run = build.steps(1, "clusterstack").run(0, &[], build.told.as_ref(), &cancel).await;
        let error = run.unwrap_err();
        check(!error.message.contains("forbidden"), &error)?;
        Ok(error)
    })
    .await;
    assert!(error.hope == Hope::None && error.message.contains("which is the operator's"), "{error:?}");
    assert_eq!(build.names("batch/v1", "Job").await, [""; 0]);
    let (_, run) = build.begin(1);
    build.shelf.put(DIGEST);
    let result = format!(r#"{{"digest": "{DIGEST}", "size": 5}}"#);
    build.pod_says(1, containers("Running", ended(0, &result))).await;
    run.await.unwrap().unwrap();
    build.steps(1, "builder").discard(&cancel).await.unwrap();
    assert_eq!(build.names("v1", "Pod").await, [""; 0]);
}
