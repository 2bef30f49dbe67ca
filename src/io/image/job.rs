//! Executor `Job`: a build is carried out by a Kubernetes Job, which goes on whether we are there or not.
//!
//! Guarantees: a Job is created once per object and attempt, whoever asks and how often; one of an earlier attempt that
//! makes the same is taken over; what ended well counts only if the destination has it.

mod watch;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::{AsyncRead, AsyncReadExt};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, LogParams, Patch, PatchParams, PostParams, Preconditions,
};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::watch::new_lines;

use self::watch::Watch;
use super::destination::{Claim, Destination, DestinationError, Image};
use super::task::{Report, StepError, Steps};
use crate::api::{FIELD_MANAGER, IMAGE_ATTEMPT_LABEL, IMAGE_INPUTS};
use crate::core::image::build::{Hope, Output, Place};
use crate::core::image::job::sight::{JobResult, Seen, Sight};
use crate::core::image::job::{self, JobError, JobObjects, JobRequest};
use crate::io::apply::refusal;
use crate::io::fence;

/// Pause between two looks at a Job that has just begun; it grows to [`SLOW`].
const QUICK: Duration = Duration::from_millis(500);
/// Longest pause between two looks.
const SLOW: Duration = Duration::from_secs(5);
/// Lines of a log that are read at a look.
const LINES: i64 = 200;
/// Bytes of a log that are kept at a look: the last ones.
const LOG: usize = 64 * 1024;
/// Bytes of a log that are read at a look at most. A kubelet counts them from the first of the lines, so they end where it pleases.
const READ: i64 = 16 * 1024 * 1024;
/// How long Jobs and their pods are waited for that were deleted: longer than a pod may take to end by default.
const GOING: Duration = Duration::from_secs(45);

/// The last whole lines of what comes.
async fn end_of(mut stream: impl AsyncRead + Unpin) -> String {
    let (mut log, mut is_cut, mut chunk) = (Vec::new(), false, [0; 8192]);
    while let Ok(read @ 1..) = stream.read(&mut chunk).await {
        log.extend_from_slice(&chunk[..read]);
        if log.len() > 2 * LOG {
            log.drain(..log.len() - LOG);
            is_cut = true;
        }
    }
    let from = log.len().saturating_sub(LOG);
    let log = String::from_utf8_lossy(&log[from..]);
    match log.split_once('\n') {
        Some((_, whole)) if is_cut || from > 0 => whole.to_owned(),
        _ => log.into_owned(),
    }
}

/// The operator's rights over Jobs of builds.
#[derive(Clone)]
pub struct Jobs {
    client: Client,
    /// Our own ServiceAccount, if we are one.
    account: Arc<OnceCell<Option<(String, String)>>>,
}

impl Jobs {
    /// By the operator's client.
    pub fn new(client: Client) -> Self {
        Self { client, account: Arc::default() }
    }

    /// The ServiceAccount that this client is: namespace and name; `None` if it is something else.
    ///
    /// # Errors
    /// The API server does not say.
    pub async fn account(&self) -> Result<Option<(String, String)>, kube::Error> {
        let ask = || async {
            let api: Api<SelfSubjectReview> = Api::all(fence::guarded(&self.client));
            let answer = api.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
            let user = answer.status.and_then(|status| status.user_info).and_then(|user| user.username);
            let user = user.unwrap_or_default();
            let account = user.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
            Ok(account.map(|(namespace, name)| (namespace.to_owned(), name.to_owned())))
        };
        self.account.get_or_try_init(ask).await.cloned()
    }

    /// Creates the recipe and the Job, each if it is not there.
    ///
    /// # Errors
    /// What the API server said.
    pub async fn create(&self, namespace: &str, objects: &JobObjects) -> Result<(), kube::Error> {
        self.create_one(namespace, &ApiResource::erase::<ConfigMap>(&()), &objects.recipe).await?;
        self.create_one(namespace, &ApiResource::erase::<Job>(&()), &objects.job).await
    }

    /// As it is: typed, fields that this version does not know would be lost.
    async fn create_one(&self, namespace: &str, kind: &ApiResource, object: &Value) -> Result<(), kube::Error> {
        let object: DynamicObject = serde_json::from_value(object.clone()).map_err(kube::Error::SerdeError)?;
        let api: Api<DynamicObject> = Api::namespaced_with(fence::guarded(&self.client), namespace, kind);
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        match api.create(&params, &object).await {
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
            created => created.map(drop),
        }
    }

    /// The Jobs of an object.
    ///
    /// # Errors
    /// What the API server said.
    pub async fn of(&self, namespace: &str, uid: &str) -> Result<Vec<Job>, kube::Error> {
        let api: Api<Job> = Api::namespaced(fence::guarded(&self.client), namespace);
        Ok(api.list(&ListParams::default().labels(&job::selector(uid))).await?.items)
    }

    /// A Job with its pods; their events where nothing runs.
    ///
    /// # Errors
    /// What the API server said.
    pub async fn see(&self, namespace: &str, name: &str) -> Result<Seen, kube::Error> {
        let jobs: Api<Job> = Api::namespaced(fence::guarded(&self.client), namespace);
        let Some(job) = jobs.get_opt(name).await? else { return Ok(Seen::default()) };
        let uid = job.uid().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(fence::guarded(&self.client), namespace);
        let of_job = ListParams::default().labels(&format!("batch.kubernetes.io/controller-uid={uid}"));
        let pods = pods.list(&of_job).await?.items;
        let mut uids = vec![uid];
        uids.extend(pods.iter().filter_map(ResourceExt::uid));
        let mut seen = Seen { job: Some(plain(&job)), pods: pods.iter().map(plain).collect(), events: Vec::new() };
        if matches!(seen.judge(), Sight::Waiting { .. }) {
            let events: Api<Event> = Api::namespaced(fence::guarded(&self.client), namespace);
            for uid in uids {
                let about = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
                // Who may not read events waits without knowing why.
                seen.events
                    .extend(events.list(&about).await.map(|list| list.items).unwrap_or_default().iter().map(plain));
            }
        }
        Ok(seen)
    }

    /// The last lines of container `build`, whatever bytes are in them; empty where they can't be read.
    pub async fn log(&self, namespace: &str, pod: &str) -> String {
        let pods: Api<Pod> = Api::namespaced(fence::guarded(&self.client), namespace);
        let params = LogParams {
            container: Some(job::CONTAINER.to_owned()),
            tail_lines: Some(LINES),
            limit_bytes: Some(READ),
            ..LogParams::default()
        };
        match pods.log_stream(pod, &params).await {
            Ok(stream) => end_of(stream).await,
            Err(_) => String::new(),
        }
    }

    /// Deletes the Jobs of an object that have not ended: a pod of theirs may come, or go on, when nobody waits for it any
    /// more. What has ended stays for its log, for `ttl` seconds: until now its result was needed. So long may sidecars run on.
    ///
    /// # Errors
    /// What the API server said.
    pub async fn give_up(&self, namespace: &str, uid: &str, ttl: i32) -> Result<(), kube::Error> {
        let jobs: Api<Job> = Api::namespaced(fence::guarded(&self.client), namespace);
        for job in self.of(namespace, uid).await? {
            let name = job.name_any();
            let seen = self.see(namespace, &name).await?;
            if !seen.has_ended() {
                delete(&jobs, &job, &DeleteParams::background()).await?;
                continue;
            }
            let patch = json!({"metadata": {"uid": job.uid()}, "spec": seen.kept_for(ttl, Timestamp::now())});
            let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
            if let Err(error) = jobs.patch(&name, &params, &Patch::Merge(patch)).await {
                let error = refusal(&error).message;
                tracing::warn!(namespace, job = name, error, "a Job that ended stays until its image's object goes");
            }
        }
        Ok(())
    }

    /// Deletes a Job that is of no use any more; its pod may take a while to go.
    pub async fn end(&self, namespace: &str, name: &str) {
        let jobs: Api<Job> = Api::namespaced(fence::guarded(&self.client), namespace);
        match jobs.delete(name, &DeleteParams::background()).await {
            Err(error) if !matches!(&error, kube::Error::Api(status) if status.code == 404) => {
                tracing::warn!(namespace, job = name, error = refusal(&error).message, "a Job can't be deleted");
            }
            _ => {}
        }
    }

    /// Deletes the Jobs of an object but the one to `keep`, and waits until their pods are gone, too, but for [`GOING`] only; names
    /// those that are there still.
    ///
    /// # Errors
    /// What the API server said.
    pub async fn stop(&self, namespace: &str, uid: &str, keep: Option<&str>) -> Result<Vec<String>, kube::Error> {
        let began = Instant::now();
        let jobs: Api<Job> = Api::namespaced(fence::guarded(&self.client), namespace);
        let pods: Api<Pod> = Api::namespaced(fence::guarded(&self.client), namespace);
        let of_object = ListParams::default().labels(&job::selector(uid));
        let mut pause = QUICK;
        loop {
            let doomed: Vec<Job> = jobs
                .list(&of_object)
                .await?
                .items
                .into_iter()
                .filter(|job| Some(job.name_any().as_str()) != keep)
                .collect();
            let names: BTreeSet<String> = doomed.iter().map(ResourceExt::name_any).collect();
            for job in doomed.iter().filter(|job| job.metadata.deletion_timestamp.is_none()) {
                delete(&jobs, job, &DeleteParams::foreground()).await?;
            }
            // Also those whose Job went without them.
            let of_kept = |pod: &Pod| {
                keep.is_some() && pod.labels().get("batch.kubernetes.io/job-name").map(String::as_str) == keep
            };
            let left: Vec<Pod> = pods.list(&of_object).await?.items.into_iter().filter(|pod| !of_kept(pod)).collect();
            for pod in left.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
                delete(&pods, pod, &DeleteParams::default()).await?;
            }
            if names.is_empty() && left.is_empty() {
                break;
            }
            if began.elapsed() > GOING {
                let jobs = names.iter().map(|name| format!("Job {name}"));
                return Ok(left.iter().map(|pod| format!("Pod {}", pod.name_any())).chain(jobs).collect());
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(SLOW);
        }
        let maps: Api<ConfigMap> = Api::namespaced(fence::guarded(&self.client), namespace);
        for map in maps.list(&of_object).await?.items {
            if Some(map.name_any().as_str()) != keep {
                delete(&maps, &map, &DeleteParams::default()).await?;
            }
        }
        Ok(Vec::new())
    }
}

/// Deletes this very object; one that is gone is no error.
async fn delete<K>(api: &Api<K>, object: &K, params: &DeleteParams) -> Result<(), kube::Error>
where
    K: Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let preconditions = Preconditions { uid: object.uid(), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..params.clone() };
    match api.delete(&object.name_any(), &params).await {
        // Another one has its name by now.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        deleted => deleted.map(drop),
    }
}

fn plain(object: &impl serde::Serialize) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

/// Takes secrets out of a line.
pub type Mask = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// A build by a Job, as the one step [`job::STEP`].
///
/// A cancellation ends the waiting, not the Job: it goes on while the operator is away, and is found again. `discard` ends
/// it.
pub struct JobSteps {
    /// The way to Jobs.
    pub jobs: Jobs,
    /// What the Job is made of.
    pub request: JobRequest,
    /// Where the image has to be when the Job has ended well.
    pub destination: Arc<dyn Destination>,
    /// How the image is registered there.
    pub format: String,
    /// What is said of it there.
    pub properties: Map<String, Value>,
    /// How long container `build` may run without a sign: neither progress nor a line.
    pub no_progress: Duration,
    /// Takes secrets out of what is told.
    pub mask: Mask,
}

#[async_trait]
impl Steps for JobSteps {
    async fn lost(&self, finished: &[Output], cancel: &CancellationToken) -> Result<Option<usize>, StepError> {
        let Some(output) = finished.first() else { return Ok(None) };
        let found = self.destination.find(&self.request.image, cancel).await.map_err(|error| of_destination(&error))?;
        Ok((found.is_none_or(|found| found.digest != output.digest)).then_some(0))
    }

    async fn run(
        &self,
        step: usize,
        _finished: &[Output],
        report: &dyn Report,
        cancel: &CancellationToken,
    ) -> Result<Output, StepError> {
        if step != 0 {
            return Err(hopeless(format!("a Job is one step, and there is no step {step}")));
        }
        let result = tokio::select! {
            () = cancel.cancelled() => return Err(again("cancelled".to_owned())),
            result = self.build(report) => result?,
        };
        self.published(&result, cancel).await?;
        Ok(Output { digest: result.digest, place: Place::Destination })
    }

    async fn discard(&self, cancel: &CancellationToken) -> Result<(), StepError> {
        let stopped = tokio::select! {
            () = cancel.cancelled() => return Err(again("cancelled".to_owned())),
            stopped = self.stopped("deleting the Jobs of", None) => stopped,
        };
        stopped?;
        self.abandon(cancel).await
    }

    async fn abandon(&self, cancel: &CancellationToken) -> Result<(), StepError> {
        let ttl = self.request.ttl_seconds_after_finished.unwrap_or(job::KEPT);
        let given_up = self.jobs.give_up(&self.request.namespace, &self.request.object.uid, ttl).await;
        given_up.map_err(|error| self.refused("deleting the Jobs of", &error))?;
        let abandoned = self.destination.abandon(&self.request.image, &self.claim(), cancel).await;
        abandoned.map_err(|error| of_destination(&error))
    }

    async fn made(&self) -> Result<Option<String>, StepError> {
        let (namespace, uid) = (&self.request.namespace, &self.request.object.uid);
        let there = self.jobs.of(namespace, uid).await.map_err(|error| self.refused("listing the Jobs of", &error))?;
        for job in there {
            let seen = self.jobs.see(namespace, &job.name_any()).await;
            let seen = seen.map_err(|error| self.refused("looking at a Job of", &error))?;
            if let Sight::Succeeded(result) = seen.judge() {
                return Ok(Some(result.digest));
            }
        }
        Ok(None)
    }
}

impl JobSteps {
    fn claim(&self) -> Claim {
        Claim {
            object: self.request.object.uid.clone(),
            attempt: self.request.attempt,
            cluster: self.request.cluster.clone(),
        }
    }

    /// Finds or makes the Job, and waits until container `build` has ended.
    async fn build(&self, report: &dyn Report) -> Result<JobResult, StepError> {
        let name = self.ensure().await?;
        report.line(&format!("Job {}/{name}", self.request.namespace));
        Watch::new(self, report, name).run().await
    }

    /// Deletes the Jobs of the object but the one to `keep`, with their pods.
    async fn stopped(&self, doing: &str, keep: Option<&str>) -> Result<(), StepError> {
        let left = self.jobs.stop(&self.request.namespace, &self.request.object.uid, keep).await;
        let left = left.map_err(|error| self.refused(doing, &error))?;
        if left.is_empty() {
            return Ok(());
        }
        let message = format!(
            "{doing} {} {}: {} of namespace {} did not go in {} s. What ran before may go on as long as they are there: look at their node and their finalizers, or delete them by force",
            self.request.object.kind,
            self.request.object.name,
            left.join(", "),
            self.request.namespace,
            GOING.as_secs(),
        );
        Err(StepError { hope: Hope::Later, message })
    }

    /// Name of the Job: of one that is there and makes the same, else of a new one. Others are stopped first.
    async fn ensure(&self) -> Result<String, StepError> {
        let (namespace, uid) = (&self.request.namespace, &self.request.object.uid);
        let there = self.jobs.of(namespace, uid).await.map_err(|error| self.refused("listing the Jobs of", &error))?;
        let own = self.request.name();
        let mut found = adopted(&there, &own, &self.request.inputs);
        if let Some(earlier) = found.filter(|name| *name != own) {
            // Its pod may have failed before the Job says so.
            let seen = self.jobs.see(namespace, earlier).await;
            let seen = seen.map_err(|error| self.refused("looking at an earlier Job of", &error))?;
            let is_of_use = match seen.judge() {
                Sight::Failed { .. } | Sight::Gone => false,
                // The next attempt looks again: what was brought may take a while to be seen. Those behind it begin anew.
                Sight::Succeeded(result) if attempt_of(&there, earlier) + 1 < self.request.attempt => {
                    let there = self.destination.find(&self.request.image, &CancellationToken::new()).await;
                    there.map_err(|error| of_destination(&error))?.is_some_and(|image| image.digest == result.digest)
                }
                _ => true,
            };
            found = found.filter(|_| is_of_use);
        }
        let name = found.unwrap_or(&own).to_owned();
        // A Job of other inputs, or a failed one, would write where this one does.
        self.stopped("deleting earlier Jobs of", Some(&name)).await?;
        if found.is_some() {
            return Ok(name);
        }
        let operator = self.jobs.account().await.map_err(|error| self.refused("asking who we are for", &error))?;
        let request = JobRequest { operator, ..self.request.clone() };
        let objects = request.objects().map_err(|error: JobError| hopeless(error.to_string()))?;
        let created = self.jobs.create(namespace, &objects).await;
        created.map_err(|error| self.refused("creating the Job of", &error)).map(|()| name)
    }

    /// That the destination has what the Job says it made; our id is added to it.
    async fn published(&self, result: &JobResult, cancel: &CancellationToken) -> Result<(), StepError> {
        let name = &self.request.image;
        let place = self.destination.name();
        let found = self.destination.find(name, cancel).await.map_err(|error| of_destination(&error))?;
        let Some(found) = found else {
            return Err(again(format!(
                "the Job says that it made {} of {}, but {place} has no such image: the container has to bring it there",
                name, result.digest
            )));
        };
        if found.digest != result.digest {
            return Err(again(format!(
                "the Job says that it made {} of {}, but {place} has one of {}",
                name, result.digest, found.digest
            )));
        }
        if found.users.contains(&self.request.cluster) {
            return Ok(());
        }
        let image = Image {
            name: name.clone(),
            digest: result.digest.clone(),
            size: result.size,
            format: self.format.clone(),
            properties: self.properties.clone(),
            origins: Vec::new(),
        };
        let registered = self.destination.register(&image, &self.claim(), cancel).await;
        registered.map(drop).map_err(|error| of_destination(&error))
    }

    /// What the API server refused; quota and rights may come, a pod that is none stays none.
    fn refused(&self, doing: &str, error: &kube::Error) -> StepError {
        let is_invalid = matches!(error, kube::Error::Api(status) if matches!(status.code, 400 | 422));
        // Room comes when other Jobs go.
        let is_full = matches!(error, kube::Error::Api(status) if status.code == 403 && status.message.contains("exceeded quota"));
        let object = &self.request.object;
        let message = format!(
            "{doing} {} {} in namespace {}: {}",
            object.kind,
            object.name,
            self.request.namespace,
            (self.mask)(&refusal(error).message)
        );
        let hope = if is_invalid {
            Hope::None
        } else if is_full {
            Hope::Later
        } else {
            Hope::Retry
        };
        StepError { hope, message }
    }
}

/// The attempt that a Job was made for.
fn attempt_of(there: &[Job], name: &str) -> u32 {
    let attempt = |job: &Job| job.labels().get(IMAGE_ATTEMPT_LABEL).and_then(|n| n.parse().ok());
    there.iter().find(|job| job.name_any() == name).and_then(attempt).unwrap_or_default()
}

/// The Job to take over: the one of this attempt, or the last one that makes the same and has not failed.
fn adopted<'a>(there: &'a [Job], own: &str, inputs: &str) -> Option<&'a str> {
    let is_live = |job: &&Job| job.metadata.deletion_timestamp.is_none();
    let name = |job: &'a Job| job.metadata.name.as_deref();
    if let Some(own) = there.iter().filter(is_live).find(|job| name(job) == Some(own)) {
        return name(own);
    }
    let failed = |job: &Job| {
        let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions
            .into_iter()
            .flatten()
            .any(|one| one.status == "True" && (one.type_ == "Failed" || one.type_ == "FailureTarget"))
    };
    let same = |job: &&Job| job.annotations().get(IMAGE_INPUTS).map(String::as_str) == Some(inputs);
    let attempt =
        |job: &&Job| job.labels().get(IMAGE_ATTEMPT_LABEL).and_then(|n| n.parse::<u32>().ok()).unwrap_or_default();
    there.iter().filter(is_live).filter(same).filter(|job| !failed(job)).max_by_key(attempt).and_then(name)
}

fn again(message: String) -> StepError {
    StepError { hope: Hope::Retry, message }
}

fn hopeless(message: String) -> StepError {
    StepError { hope: Hope::None, message }
}

fn of_destination(error: &DestinationError) -> StepError {
    let hope = if error.is_transient() { Hope::Retry } else { Hope::None };
    StepError { hope, message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_job_that_makes_the_same_is_taken_over() {
        let job = |name: &str, attempt: u32, inputs: &str, condition: &str| -> Job {
            serde_json::from_value(json!({
                "metadata": {
                    "name": name,
                    "labels": {IMAGE_ATTEMPT_LABEL: attempt.to_string()}, "annotations": {IMAGE_INPUTS: inputs},
                },
                "status": {"conditions": [{"type": condition, "status": "True"}]},
            }))
            .unwrap()
        };
        let mut going = job("own", 5, "i", "");
        going.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        for (there, expected) in [
            (vec![], None),
            (vec![job("a-1", 1, "i", "")], Some("a-1")),
            (vec![job("a-2", 2, "i", "Complete"), job("a-10", 10, "i", "")], Some("a-10")),
            (vec![job("a-1", 1, "i", "Failed")], None),
            (vec![job("a-1", 1, "i", "FailureTarget")], None),
            (vec![job("a-1", 1, "other", "")], None),
            // Ours is judged, whatever became of it.
            (vec![job("a-1", 1, "i", ""), job("own", 5, "i", "Failed")], Some("own")),
            (vec![going], None),
        ] {
            assert_eq!(adopted(&there, "own", "i"), expected, "{there:?}");
        }
    }

    #[tokio::test]
    async fn the_end_of_a_log_is_whole_lines_whatever_bytes_it_has() {
        assert_eq!(end_of(&b"caf\xe9 1\ncaf\xe9 2"[..]).await, "caf\u{fffd} 1\ncaf\u{fffd} 2");
        let long = "x".repeat(1000) + "\n";
        let log = long.repeat(400) + "the last\n";
        let end = end_of(log.as_bytes()).await;
        assert!(end.ends_with("\nthe last\n") && end.len() <= LOG, "{}", end.len());
        assert!(end.lines().rev().skip(1).all(|line| line.len() == 1000));
    }
}
