//! What a Job, its pod and their events say of a build. Container `build` is what counts: sidecars that never end keep no
//! build from being judged.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::build::{Hope, Progress};
use super::CONTAINER;
use crate::api::IMAGE_PROGRESS;

/// Exit codes of `sysexits.h` that say that trying again is no use: usage, data, configuration.
const HOPELESS: [i64; 3] = [64, 65, 78];
/// What a line of a log begins with that says how far the build is.
const PROGRESS_LINE: &str = "clusterstack-progress ";
/// Reason of the event of a Job for which no pod can be made.
const NOT_MADE: &str = "FailedCreate";
/// Longest part of a termination message that is told.
const TOLD: usize = 1024;

/// What container `build` made, as its termination message says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobResult {
    /// `sha256:` and hex digits, of the file at the destination.
    pub digest: String,
    /// Of the file, in bytes.
    pub size: u64,
    /// Where the image is, without secrets.
    #[serde(default)]
    pub location: String,
}

/// How far the pod says it is: `done[/total] [step]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodProgress {
    /// In bytes, or whatever the pod counts.
    pub progress: Progress,
    /// Name of its step; empty where it names none.
    pub step: String,
}

/// What was seen of a Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    /// There is no Job, or it is being deleted.
    Gone,
    /// Nothing runs yet.
    Waiting {
        /// One CamelCase word: `Unschedulable`, `ImagePullBackOff`, `FailedCreate`.
        reason: String,
        /// For people; may be empty.
        message: String,
    },
    /// Container `build` runs.
    Running(Option<PodProgress>),
    /// Container `build` ended well.
    Succeeded(JobResult),
    /// It ended otherwise.
    Failed {
        /// Whether trying again can help.
        hope: Hope,
        /// Why, for people.
        message: String,
    },
}

impl Sight {
    /// Whether what it waits for may come by itself, however long that takes: a node, an image, room in a quota. A pod that
    /// is refused for anything else waits for somebody who mends it.
    pub fn may_come(&self) -> bool {
        !matches!(self, Self::Waiting { reason, message } if reason == NOT_MADE && !message.contains("exceeded quota"))
    }
}

/// A Job, its pods, and the warnings of their events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// The Job.
    pub job: Option<Value>,
    /// Its pods.
    pub pods: Vec<Value>,
    /// Events about the Job and its pods.
    pub events: Vec<Value>,
}

impl Seen {
    /// The pod that counts: the last one that was made.
    pub fn pod(&self) -> Option<&Value> {
        let made = |pod: &&Value| text(pod, "/metadata/creationTimestamp").to_owned();
        self.pods.iter().max_by_key(made)
    }

    /// The same without secrets in what is told of it. That is done before a long message is cut, which would leave a part of
    /// one. What a container wrote that ended well is a result and no message.
    #[must_use]
    pub fn masked(mut self, mask: &dyn Fn(&str) -> String) -> Self {
        for object in self.job.iter_mut().chain(&mut self.pods).chain(&mut self.events) {
            mask_messages(object, mask);
        }
        self
    }

    /// Whether the Job says that it has ended.
    fn is_over(&self) -> bool {
        let of_job =
            |job: &Value| ["Failed", "FailureTarget", "Complete"].iter().any(|type_| condition(job, type_).is_some());
        self.job.as_ref().is_some_and(of_job)
    }

    /// What the spec of a Job has to say that has come to an end, so that it stays `ttl` seconds for its log, and no longer. While
    /// a sidecar runs beside container `build` the Job has not ended, and its time to live does not begin: it ends by a deadline.
    pub fn kept_for(&self, ttl: i32, now: Timestamp) -> Value {
        let started = self.job.as_ref().and_then(|job| text(job, "/status/startTime").parse::<Timestamp>().ok());
        match started.filter(|_| !self.is_over()) {
            Some(started) => {
                let deadline = now.duration_since(started).as_secs().max(0).saturating_add(i64::from(ttl.max(1)));
                json!({"ttlSecondsAfterFinished": ttl, "activeDeadlineSeconds": deadline})
            }
            None => json!({"ttlSecondsAfterFinished": ttl}),
        }
    }

    /// Whether it has come to an end by itself: the Job says so, its pod does, or container `build` has ended.
    pub fn has_ended(&self) -> bool {
        let of_pod = |pod: &Value| {
            matches!(text(pod, "/status/phase"), "Failed" | "Succeeded") || state(pod, "terminated").is_some()
        };
        self.is_over() || self.pod().is_some_and(of_pod)
    }

    /// What it says.
    pub fn judge(&self) -> Sight {
        let pod = self.pod();
        // What it made counts, whatever became of the pod and of the Job.
        let ended = pod.and_then(|pod| state(pod, "terminated"));
        if let Some(ended) = ended.filter(|ended| ended["exitCode"] == 0) {
            return result(text(ended, "/message"));
        }
        let Some(job) = self.job.as_ref().filter(|job| job.pointer("/metadata/deletionTimestamp").is_none()) else {
            return Sight::Gone;
        };
        let of_job = condition(job, "Failed").or_else(|| condition(job, "FailureTarget"));
        if let Some(failed) = of_job.filter(|failed| failed["reason"] == "DeadlineExceeded") {
            return retry(format!("the Job took too long: {}", told(text(failed, "/message"))));
        }
        if let Some(pod) = pod {
            return of_pod(pod, ended).unwrap_or_else(|| self.waiting(pod));
        }
        if let Some(failed) = of_job {
            return retry(format!("the Job failed and its pod is gone: {}", told(text(failed, "/message"))));
        }
        if condition(job, "Complete").is_some() {
            return retry("the Job is complete, but its pod is gone, and with it the result".to_owned());
        }
        if condition(job, "Suspended").is_some() {
            return waiting("Suspended", "the Job is suspended");
        }
        match self.warning(None) {
            // The level of the namespace does not change by itself.
            Some(Sight::Waiting { reason, message })
                if reason == NOT_MADE && message.contains("violates PodSecurity") =>
            {
                retry(format!(
                    "no pod is made for the Job: {message}; correct spec.build.job.template, or ask for another level of the \
                     namespace (its label pod-security.kubernetes.io/enforce)"
                ))
            }
            warning => warning.unwrap_or_else(|| waiting("Pending", "the Job has no pod yet")),
        }
    }

    /// Why a pod does not run yet.
    fn waiting(&self, pod: &Value) -> Sight {
        let unscheduled = condition_of(pod, "PodScheduled", "False");
        if let Some(unscheduled) = unscheduled {
            let reason = text(unscheduled, "/reason");
            return waiting(if reason.is_empty() { "Unschedulable" } else { reason }, text(unscheduled, "/message"));
        }
        let lists = ["/status/initContainerStatuses", "/status/containerStatuses"];
        let states = lists.iter().flat_map(|list| statuses(pod, list)).filter_map(|one| {
            let state = one.pointer("/state/waiting")?;
            Some((text(one, "/name"), text(state, "/reason"), text(state, "/message")))
        });
        // These stand for "not its turn yet".
        let idle = ["", "PodInitializing", "ContainerCreating"];
        let mut states = states.filter(|(_, reason, _)| !idle.contains(reason));
        if let Some((name, reason, message)) = states.next() {
            return waiting(reason, &format!("container {name}: {}", told(message)));
        }
        // What was said of the Job before it had this pod is over.
        let uid = text(pod, "/metadata/uid");
        self.warning(Some(uid)).unwrap_or_else(|| waiting("Pending", "the pod's containers are being started"))
    }

    /// The last warning, of all or about the object of this UID.
    fn warning(&self, about: Option<&str>) -> Option<Sight> {
        let is_about = |event: &&Value| about.is_none_or(|uid| text(event, "/involvedObject/uid") == uid);
        let warnings = self.events.iter().filter(|event| event["type"] == "Warning").filter(is_about);
        let last = warnings.max_by_key(|event| {
            let times = ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", "/metadata/creationTimestamp"];
            let time = times.iter().map(|pointer| text(event, pointer)).find(|time| !time.is_empty());
            time.unwrap_or_default().to_owned()
        })?;
        Some(waiting(text(last, "/reason"), text(last, "/message")))
    }
}

/// What a pod says that ended badly, or runs.
fn of_pod(pod: &Value, ended: Option<&Value>) -> Option<Sight> {
    let why = why(pod);
    if let Some(ended) = ended {
        return Some(exited(CONTAINER, ended, &why));
    }
    if text(pod, "/status/phase") == "Failed" {
        let others = ["/status/initContainerStatuses", "/status/containerStatuses"];
        let mut others = others.iter().flat_map(|list| statuses(pod, list));
        let bad = others.find_map(|one| {
            let ended = one.pointer("/state/terminated").filter(|ended| ended["exitCode"] != 0)?;
            Some(exited(text(one, "/name"), ended, &why))
        });
        let why = if why.is_empty() { ": nothing says why".to_owned() } else { why };
        return Some(bad.unwrap_or_else(|| retry(format!("the pod failed{why}"))));
    }
    if text(pod, "/status/phase") == "Succeeded" {
        return Some(retry(format!("the pod ended, and does not say how container {CONTAINER} did")));
    }
    let runs = state(pod, "running").is_some();
    runs.then(|| Sight::Running(annotated(pod)))
}

/// How far a line of a log says the build is.
pub fn progress_in(log: &str) -> Option<PodProgress> {
    let last = log.lines().rev().find_map(|line| line.trim().strip_prefix(PROGRESS_LINE));
    progress(last?)
}

/// `done[/total] [step]`. The field of the status is an int64; a number that it can't hold is told as the largest one.
fn progress(text: &str) -> Option<PodProgress> {
    let (numbers, step) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    let (done, total) = match numbers.split_once('/') {
        Some((done, total)) => (done, Some(count(total)?)),
        None => (numbers, None),
    };
    let step: String = step.trim().chars().filter(|c| !c.is_control()).take(63).collect();
    Some(PodProgress { progress: Progress { done: count(done)?, total }, step })
}

fn count(digits: &str) -> Option<u64> {
    let count: u64 = digits.parse().ok()?;
    Some(count.min(i64::MAX.unsigned_abs()))
}

fn annotated(pod: &Value) -> Option<PodProgress> {
    progress(pod.pointer("/metadata/annotations")?.get(IMAGE_PROGRESS)?.as_str()?)
}

fn result(message: &str) -> Sight {
    let wanted = r#"{"digest": "sha256:…", "size": bytes, "location": "…"}"#;
    let wrong = |what: String| Sight::Failed {
        hope: Hope::None,
        message: format!(
            "container {CONTAINER} exited 0, but {what}: it has to write {wanted} to its termination message"
        ),
    };
    let found: JobResult = match serde_json::from_str(message) {
        Ok(found) => found,
        // What it wrote instead may hold anything.
        Err(_) if message.is_empty() => return wrong("gave no result".to_owned()),
        Err(error) => return wrong(format!("its result can't be read ({error})")),
    };
    let digits = found.digest.strip_prefix("sha256:").unwrap_or_default();
    if digits.len() != 64 || !digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return wrong("its result has no digest of the form sha256: and 64 hexadecimal digits".to_owned());
    }
    Sight::Succeeded(found)
}

/// A container that ended badly; `why` is what the pod says.
fn exited(name: &str, ended: &Value, why: &str) -> Sight {
    let code = ended["exitCode"].as_i64().unwrap_or_default();
    let reason = text(ended, "/reason");
    let reason = if matches!(reason, "" | "Error") { String::new() } else { format!(", {reason}") };
    let said = told(text(ended, "/message"));
    let colon = if said.is_empty() { "" } else { ": " };
    let hope = if name == CONTAINER && HOPELESS.contains(&code) { Hope::None } else { Hope::Retry };
    Sight::Failed { hope, message: format!("container {name} exited {code}{reason}{why}{colon}{said}") }
}

/// Why a pod was ended by somebody: evicted, preempted, deleted, its node shut down. Empty where nobody did.
fn why(pod: &Value) -> String {
    let reason = text(pod, "/status/reason");
    let target = condition_of(pod, "DisruptionTarget", "True");
    let reason = if reason.is_empty() { target.map_or("", |target| text(target, "/reason")) } else { reason };
    let message = text(pod, "/status/message");
    let message = if message.is_empty() { target.map_or("", |target| text(target, "/message")) } else { message };
    match (reason, message) {
        ("", "") if pod.pointer("/metadata/deletionTimestamp").is_some() => ", its pod was deleted".to_owned(),
        ("", "") => String::new(),
        (reason, "") => format!(", {reason}"),
        (reason, message) => format!(", {reason} ({})", told(message)),
    }
}

fn retry(message: String) -> Sight {
    Sight::Failed { hope: Hope::Retry, message }
}

fn waiting(reason: &str, message: &str) -> Sight {
    Sight::Waiting { reason: reason.to_owned(), message: told(message) }
}

/// The end of a text: what went wrong stands there.
fn told(text: &str) -> String {
    let text = text.trim();
    let from = text.len().saturating_sub(TOLD);
    let from = (from..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    text[from..].chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect()
}

/// Masks the messages of an object, however deep.
fn mask_messages(value: &mut Value, mask: &dyn Fn(&str) -> String) {
    match value {
        Value::Object(fields) if fields.get("exitCode").is_some_and(|code| code == 0) => {}
        Value::Object(fields) => {
            for (key, field) in fields {
                match field {
                    Value::String(text) if key == "message" => *text = mask(text),
                    field => mask_messages(field, mask),
                }
            }
        }
        Value::Array(fields) => fields.iter_mut().for_each(|field| mask_messages(field, mask)),
        _ => {}
    }
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn statuses<'a>(pod: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    pod.pointer(list).and_then(Value::as_array).into_iter().flatten()
}

/// The state of container `build`, if it is this one.
fn state<'a>(pod: &'a Value, state: &str) -> Option<&'a Value> {
    let build = statuses(pod, "/status/containerStatuses").find(|one| one["name"] == CONTAINER)?;
    build.pointer("/state")?.get(state).filter(|state| !state.is_null())
}

fn condition<'a>(object: &'a Value, type_: &str) -> Option<&'a Value> {
    condition_of(object, type_, "True")
}

fn condition_of<'a>(object: &'a Value, type_: &str, status: &str) -> Option<&'a Value> {
    statuses(object, "/status/conditions").find(|one| one["type"] == type_ && one["status"] == status)
}
