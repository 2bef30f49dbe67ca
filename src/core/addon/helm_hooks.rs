//! The Helm hooks of an addon chart: which run when, in which order, and what comes next with one of them.
//!
//! ```text
//!            ┌──────── tried again ───────────┐
//!            ▼                                │
//! ─turn→ Creating ─created→ Running ─failed→ Failed
//!                              └─finished or gone→ Succeeded
//! ```
//!
//! What is about to be created is recorded before, with the run as an annotation on the object: a process that dies in
//! between finds out whether it was created, and a hook that is finished is not run again. A run whose chart renders to
//! something else meanwhile goes to its end as it began ([`earlier`]), as with Helm, which renders once.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::api::cluster_addon::{ChartStatus, HelmHookPhase, HelmHookStatus};
use crate::api::condition::{MAX_MESSAGE, cut};
use crate::api::{HELM_HOOK, HOOK_RUN, HOOK_TIMEOUT};
use crate::core::duration::{go_duration, spoken};
use crate::core::health::{self, Health};
use crate::core::manifest::{Manifest, ObjectKey, annotation, short_digest};

mod earlier;

pub use earlier::{Ended, api_version, earlier, ended, is_under_way, runs};

/// The event of tests, which run when somebody asks (`helm test`).
pub const TEST: &str = "test";
/// How long a hook may take that does not say (Helm's `--timeout`).
const TIMEOUT: SignedDuration = SignedDuration::from_mins(5);

/// A hook of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct HelmHook {
    /// Its object.
    pub manifest: Manifest,
    /// `pre-install`, `post-upgrade` and so on.
    pub events: Vec<String>,
    /// Lower ones run first.
    pub weight: i64,
    /// When its object is deleted.
    pub policies: Vec<String>,
}

/// When the object of a hook is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// An older one, before it is created.
    BeforeCreation,
    /// After all hooks of the event succeeded.
    Succeeded,
    /// After it failed.
    Failed,
}

impl HelmHook {
    /// Whether a delete policy is set. Without any it is `before-hook-creation`. Definitions are never deleted.
    pub fn has(&self, policy: Policy) -> bool {
        let word = match policy {
            Policy::BeforeCreation => "before-hook-creation",
            Policy::Succeeded => "hook-succeeded",
            Policy::Failed => "hook-failed",
        };
        let default = self.policies.is_empty() && policy == Policy::BeforeCreation;
        !self.is_definition() && (default || self.policies.iter().any(|known| known == word))
    }

    fn is_definition(&self) -> bool {
        self.manifest.key.kind == "CustomResourceDefinition"
    }

    /// Whether it runs at no other event than [`TEST`].
    pub fn is_test(&self) -> bool {
        self.events.iter().all(|event| event == TEST)
    }

    /// How long it may take.
    ///
    /// # Errors
    /// Its annotation [`HOOK_TIMEOUT`] is no duration.
    pub fn time_limit(&self) -> Result<SignedDuration, String> {
        let Some(text) = annotation(&self.manifest.object, HOOK_TIMEOUT) else { return Ok(TIMEOUT) };
        let limit = go_duration(text).filter(|limit| !limit.is_zero());
        limit
            .and_then(|limit| SignedDuration::try_from(limit).ok())
            .ok_or_else(|| format!("{HOOK_TIMEOUT} {text:?} is no duration: write 30m or 1h30m"))
    }

    /// Whether Helm waits for it: other kinds are done when they are created.
    pub fn is_waited_for(&self) -> bool {
        matches!((self.manifest.key.group.as_str(), self.manifest.key.kind.as_str()), ("batch", "Job") | ("", "Pod"))
    }
}

/// What happens to a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It comes to a cluster that did not have it.
    Install,
    /// It renders to something else than before.
    Upgrade,
    /// It goes.
    Delete,
}

impl Change {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Install => "install",
            Self::Upgrade => "upgrade",
            Self::Delete => "delete",
        }
    }

    /// The event before it.
    pub fn before(self) -> String {
        format!("pre-{}", self.as_str())
    }

    /// The event after it.
    pub fn after(self) -> String {
        format!("post-{}", self.as_str())
    }
}

/// What the rendering of a chart changes, seen from what is recorded; `None` where its hooks are done. `is_there` says
/// whether objects of the chart are in the cluster, as ours: for records that were lost, never made, or say nothing.
pub fn change(recorded: Option<&ChartStatus>, rendering: &str, is_there: bool) -> Option<Change> {
    match recorded.filter(|chart| is_telling(chart)) {
        // Of an upgrade that was left in its middle the record and hooks are still there: it is one to go back, too.
        Some(chart) if chart.digest == rendering && chart.running != Change::Upgrade.as_str() => None,
        Some(chart) if chart.running == Change::Install.as_str() => Some(Change::Install),
        None if !is_there => Some(Change::Install),
        Some(_) | None => Some(Change::Upgrade),
    }
}

/// Whether a record tells what is installed of its chart. One of tests or of a removal alone does not.
pub fn is_telling(chart: &ChartStatus) -> bool {
    let comes = [Change::Install, Change::Upgrade].map(Change::as_str);
    !chart.digest.is_empty() || comes.contains(&chart.running.as_str())
}

/// Whether a chart may have hooks beside its tests, by its record: one that has them is recorded before it is applied.
pub fn may_have_hooks(recorded: Option<&ChartStatus>) -> bool {
    recorded.is_some_and(|chart| !chart.running.is_empty() || (!chart.digest.is_empty() && !chart.without_hooks))
}

/// The rendering that the hooks of a change run for. What a chart renders to may change while they do, as what it asks the
/// cluster for does: as long as release and values (`inputs`) are the same, and none of the hooks failed, it is still the one
/// that they began with.
pub fn rendering_of_run(recorded: Option<&ChartStatus>, change: Change, inputs: &str, rendering: &str) -> String {
    let has_failed =
        |chart: &ChartStatus| chart.hooks.iter().any(|run| run.event != TEST && run.phase == HelmHookPhase::Failed);
    let same = recorded.filter(|chart| chart.running == change.as_str() && !has_failed(chart));
    let begun = same.and_then(|chart| chart.begun.split_once('.')).filter(|(with, _)| *with == inputs);
    begun.map_or(rendering, |(_, begun)| begun).to_owned()
}

/// How it is recorded what a change began with.
pub fn begun(inputs: &str, rendering: &str) -> String {
    format!("{inputs}.{rendering}")
}

/// Records that a chart is applied as it renders now in this release, with all of its hooks.
pub fn complete(chart: &mut ChartStatus, (release, rendering): (&str, &str), hooks: &[HelmHook]) {
    rendering.clone_into(&mut chart.digest);
    release.clone_into(&mut chart.release);
    chart.running.clear();
    chart.begun.clear();
    chart.without_hooks = hooks.is_empty();
    if chart.without_hooks {
        chart.hooks.retain(|run| run.event == TEST);
    }
}

/// Digest of all that a chart rendered to.
pub fn rendering(objects: &[Manifest], hooks: &[HelmHook]) -> String {
    let all = objects.iter().chain(hooks.iter().map(|hook| &hook.manifest));
    short_digest(&Value::Array(all.map(|manifest| manifest.object.clone()).collect()))
}

/// The hooks of an event in the order in which Helm runs them (`hookByWeight`, Helm 3.21): by weight, then by name; of two
/// with one name the order of kinds decides, in which they are rendered.
pub fn of_event<'a>(hooks: &'a [HelmHook], event: &str) -> Vec<&'a HelmHook> {
    let mut all: Vec<&HelmHook> = hooks.iter().filter(|hook| hook.events.iter().any(|known| known == event)).collect();
    all.sort_by(|a, b| (a.weight, &a.manifest.key.name).cmp(&(b.weight, &b.manifest.key.name)));
    all
}

/// A hook that is not run yet, as it is recorded.
pub fn entry(hook: &HelmHook, event: &str, rendering: &str) -> HelmHookStatus {
    let ObjectKey { kind, namespace, name, .. } = hook.manifest.key.clone();
    let digest = short_digest(&json!([event, rendering, hook.manifest.object]));
    HelmHookStatus { event: event.to_owned(), kind, namespace, name, digest, ..HelmHookStatus::default() }
}

/// The record of a hook's run for this rendering.
pub fn find<'a>(records: &'a [HelmHookStatus], entry: &HelmHookStatus) -> Option<&'a HelmHookStatus> {
    records.iter().find(|known| is_same(known, entry))
}

fn is_same(a: &HelmHookStatus, b: &HelmHookStatus) -> bool {
    // The digest is over the whole object; the namespace may be known later.
    (&a.event, &a.digest) == (&b.event, &b.digest)
}

/// Longest start of a name that is generated: with what comes behind it, it fits into a label, as with the API server's.
const LONGEST_START: usize = 63 - 8;

/// The object of a hook with a name. One that leaves it to the API server (`generateName`) is called after what it holds: it is
/// found again, and another one has another name.
#[must_use]
pub fn with_name(mut object: Value) -> Value {
    let metadata =
        |field: &str| object.pointer(&format!("/metadata/{field}"))?.as_str().filter(|text| !text.is_empty());
    let (None, Some(start)) = (metadata("name"), metadata("generateName")) else { return object };
    let start: String = start.chars().take(LONGEST_START).collect();
    let digest = short_digest(&object);
    let name = format!("{start}{}", &digest[..8]);
    object["metadata"]["name"] = name.into();
    object
}

/// Records how far a hook is.
pub fn record(records: &mut Vec<HelmHookStatus>, entry: HelmHookStatus) {
    match records.iter_mut().find(|known| is_same(known, &entry)) {
        Some(known) => *known = entry,
        None => records.push(entry),
    }
}

/// Whether all hooks of an event are recorded as done for this rendering.
pub fn all_done(records: &[HelmHookStatus], hooks: &[HelmHook], event: &str, rendering: &str) -> bool {
    of_event(hooks, event).into_iter().all(|hook| {
        let known = find(records, &entry(hook, event, rendering));
        known.is_some_and(|known| known.phase == HelmHookPhase::Succeeded)
    })
}

/// What the annotation [`HOOK_RUN`] of the object says that a run creates.
pub fn run(entry: &HelmHookStatus) -> String {
    format!("{}.{}", entry.digest, entry.retries)
}

/// The object that a run creates.
pub fn object(hook: &HelmHook, entry: &HelmHookStatus) -> Value {
    let mut object = hook.manifest.object.clone();
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        if let Value::Object(map) = annotations {
            map.insert(HOOK_RUN.to_owned(), run(entry).into());
        }
    }
    object
}

/// Whether a run created the live object.
pub fn is_of_run(live: &Value, entry: &HelmHookStatus) -> bool {
    annotation(live, HOOK_RUN) == Some(&run(entry))
}

/// Whether a live object came from a hook, whoever ran it: such objects are of no inventory.
pub fn is_hook(live: &Value) -> bool {
    annotation(live, HELM_HOOK).is_some()
}

/// What to do next with a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Record it with this phase; it may have to be created then.
    Enter(HelmHookPhase, String),
    /// Delete what is in the way, and look again.
    Clear,
    /// Create it.
    Create,
    /// Look again later; what it waits for.
    Wait(String),
    /// Nothing: it succeeded.
    Done,
    /// Nothing: it failed.
    Failed(String),
}

/// The next step of a hook. `recorded` is its record for this rendering, `live` what is in the cluster by its name.
pub fn next(
    hook: &HelmHook,
    recorded: Option<&HelmHookStatus>,
    live: Option<&Value>,
    retry: bool,
    now: Timestamp,
) -> Step {
    let Some(entry) = recorded else {
        return match hook.time_limit() {
            Ok(_) => Step::Enter(HelmHookPhase::Creating, String::new()),
            Err(message) => Step::Enter(HelmHookPhase::Failed, message),
        };
    };
    match (entry.phase, live) {
        (HelmHookPhase::Succeeded, _) => Step::Done,
        (HelmHookPhase::Failed, _) if retry => Step::Enter(HelmHookPhase::Creating, String::new()),
        (HelmHookPhase::Failed, _) => Step::Failed(entry.message.clone()),
        (HelmHookPhase::Creating, None) => Step::Create,
        (_, Some(live)) if is_of_run(live, entry) => in_time(of_object(hook, live), hook, started(entry, live), now),
        (HelmHookPhase::Creating, Some(live)) => in_the_way(hook, live),
        // Helm takes a hook that is gone for done: it deleted itself, or somebody did.
        (HelmHookPhase::Running, _) => Step::Enter(HelmHookPhase::Succeeded, String::new()),
    }
}

/// When a run began. Where its process died before it was recorded, its cluster says when.
fn started(entry: &HelmHookStatus, live: &Value) -> Option<Timestamp> {
    let created = || live.pointer("/metadata/creationTimestamp")?.as_str()?.parse().ok();
    entry.started.as_ref().map(|at| at.0).or_else(created)
}

/// A hook that is waited for longer than it may take has failed; its object stays, unless its policies say otherwise.
fn in_time(step: Step, hook: &HelmHook, started: Option<Timestamp>, now: Timestamp) -> Step {
    let (Step::Wait(what), Some(started), Ok(limit)) = (&step, started, hook.time_limit()) else { return step };
    if now.duration_since(started) <= limit {
        return step;
    }
    let limit = spoken(limit.unsigned_abs());
    let message =
        format!("not finished within {limit}, waiting for {what}; its annotation {HOOK_TIMEOUT} gives it longer");
    Step::Enter(HelmHookPhase::Failed, cut(&message, MAX_MESSAGE))
}

fn in_the_way(hook: &HelmHook, live: &Value) -> Step {
    let key = &hook.manifest.key;
    // What an earlier run of ours left may be replaced, whatever the policies say. Definitions are never deleted.
    let is_earlier = annotation(live, HOOK_RUN).is_some() && !hook.is_definition();
    if !is_earlier && !hook.has(Policy::BeforeCreation) {
        let message =
            format!("{key} exists already: delete it, or let its hook have the delete policy before-hook-creation");
        return Step::Enter(HelmHookPhase::Failed, message);
    }
    if is_going(live) { Step::Wait(format!("an older {key} to go")) } else { Step::Clear }
}

/// Whether a live object is being deleted.
pub fn is_going(live: &Value) -> bool {
    live.pointer("/metadata/deletionTimestamp").is_some_and(|at| !at.is_null())
}

/// What the object of a hook says.
fn of_object(hook: &HelmHook, live: &Value) -> Step {
    if !hook.is_waited_for() {
        return Step::Enter(HelmHookPhase::Succeeded, String::new());
    }
    let finished = if hook.manifest.key.kind == "Pod" { pod(live) } else { job(live) };
    match finished {
        Some(Ok(())) => Step::Enter(HelmHookPhase::Succeeded, String::new()),
        Some(Err(message)) => Step::Enter(HelmHookPhase::Failed, cut(&message, MAX_MESSAGE)),
        None => Step::Wait(match health::of(live) {
            Health::InProgress(message) if !message.is_empty() => format!("{}: {message}", hook.manifest.key),
            _ => hook.manifest.key.to_string(),
        }),
    }
}

fn job(live: &Value) -> Option<Result<(), String>> {
    let conditions = live.pointer("/status/conditions").and_then(Value::as_array)?;
    let text = |condition: &Value, field: &str| condition.get(field).and_then(Value::as_str).unwrap_or("").to_owned();
    conditions.iter().filter(|condition| text(condition, "status") == "True").find_map(|condition| {
        match text(condition, "type").as_str() {
            "Complete" => Some(Ok(())),
            "Failed" => Some(Err(format!("{}: {}", text(condition, "reason"), text(condition, "message")))),
            _ => None,
        }
    })
}

fn pod(live: &Value) -> Option<Result<(), String>> {
    let text = |pointer: &str| live.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    match text("/status/phase") {
        "Succeeded" => Some(Ok(())),
        "Failed" => Some(Err(format!("the Pod failed {} {}", text("/status/reason"), text("/status/message")))),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
