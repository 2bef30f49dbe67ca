//! The Job of a build: a pod of the provider's template, to which we add who we are, the recipe and where to find it.
//!
//! ```text
//! template's PodTemplateSpec ──┐
//! names, digests, attempt ─────┼─▶ Job ─▶ pod ─▶ container `build` ends ─▶ its termination message is the result
//! recipe ─▶ ConfigMap ─────────┘
//! ```
//!
//! Nothing of a release or of a user's object gets into the pod but names, digests and labels; the recipe is a file that
//! the provider's container may read. For the state machine a Job is one step, called [`STEP`].

use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::api::{FIELD_MANAGER, IMAGE_ATTEMPT_LABEL, IMAGE_INPUTS, IMAGE_UID_LABEL, MANAGED_BY, MANAGED_BY_LABEL};
use crate::core::digest::hex;

use pod::DefaultPod;

pub mod pod;
pub mod sight;
#[cfg(test)]
mod tests;

/// The one step of a build by a Job.
pub const STEP: &str = "job";
/// The container that makes the image.
pub const CONTAINER: &str = "build";
/// The volume with the recipe.
const VOLUME: &str = "clusterstack-recipe";
/// Where the recipe lies in container `build`.
const DIRECTORY: &str = "/run/clusterstack";
/// File name of the recipe, and key in its ConfigMap.
pub const FILE: &str = "recipe.json";
/// File name of what the pod of ours is told of the template.
pub const SETTINGS_FILE: &str = "settings.json";
/// How long a Job may take where the template says nothing.
const DEADLINE: i64 = 24 * 60 * 60;
/// How long a Job that ended is kept where the template says nothing, in seconds.
pub const KEPT: i32 = 60 * 60;
/// Longest name: the Job controller writes it into a label of the pod.
const LONGEST_NAME: usize = 63;

/// Why no Job can be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JobError {
    /// There is no pod.
    #[error(
        "spec.build.job.template is missing, and so is an image that holds clusterstack to do without: set \
         spec.build.job.image, the operator's flag --image-job-image, or a template with a container named {CONTAINER:?} \
         that makes the image"
    )]
    NoTemplate,
    /// It would be brought where no pod of ours is.
    #[error(
        "spec.destination.directory is not in a pod without spec.build.job.template: write one with a volume, or take \
         executor Task"
    )]
    NoDirectory,
    /// It is no pod with our container.
    #[error("spec.build.job.template can't be used: {0}")]
    Template(String),
    /// It would run with our rights.
    #[error(
        "spec.build.job.template runs as ServiceAccount {0}, which is the operator's: name another one in \
         spec.serviceAccountName"
    )]
    OurAccount(String),
}

/// The object that stands for the image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageObject {
    /// Its group and version.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// What a Job is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRequest {
    /// The object that stands for the image; it owns the Job where it is of the same namespace.
    pub object: ImageObject,
    /// Namespace of the provider's template, where the Job runs.
    pub namespace: String,
    /// The template's `PodTemplateSpec`, as it is.
    pub template: Option<Value>,
    /// What runs where there is none.
    pub default_pod: DefaultPod,
    /// How long the Job may take, in seconds.
    pub active_deadline_seconds: Option<i64>,
    /// How long a Job that ended is kept, in seconds.
    pub ttl_seconds_after_finished: Option<i32>,
    /// What the image is called at its destination.
    pub image: String,
    /// Digest over all that the build depends on.
    pub inputs: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// Id of the management cluster.
    pub cluster: String,
    /// How the image is made, for the provider's container to read.
    pub recipe: Value,
    /// The operator's own ServiceAccount, if it has one: namespace and name.
    pub operator: Option<(String, String)>,
}

/// What is created for a build.
#[derive(Clone, Debug, PartialEq)]
pub struct JobObjects {
    /// The Job.
    pub job: Value,
    /// The ConfigMap with the recipe, of the same name.
    pub recipe: Value,
}

impl JobRequest {
    /// Name of the Job of this attempt: the same whoever asks, and another one for each object and attempt.
    pub fn name(&self) -> String {
        // Digits of a digest, for a UID need not be random at its beginning.
        let digest = hex(&<sha2::Sha256 as sha2::Digest>::digest(self.object.uid.as_bytes()));
        let tail = format!("-{}-{}", &digest[..10], self.attempt);
        let room = LONGEST_NAME.saturating_sub(tail.len());
        let plain = self.object.name.replace('.', "-");
        let head: String = plain.chars().take(room).collect();
        format!("{}{tail}", head.trim_end_matches('-'))
    }

    /// The Job and its recipe.
    ///
    /// # Errors
    /// The template is missing, is no pod with a container `build`, or would run with the operator's rights.
    pub fn objects(&self) -> Result<JobObjects, JobError> {
        let pod = self.pod()?;
        let metadata = || {
            let mut metadata = json!({
                "name": self.name(),
                "namespace": self.namespace,
                "labels": self.labels(),
                "annotations": {IMAGE_INPUTS: self.inputs},
            });
            if let Some(owner) = self.owner() {
                metadata["ownerReferences"] = json!([owner]);
            }
            metadata
        };
        let job = json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata(),
            "spec": {
                // Retries are ours: those of a Job would not be counted, and its pods would share a work directory.
                "backoffLimit": 0,
                "completions": 1,
                "parallelism": 1,
                "podReplacementPolicy": "Failed",
                "activeDeadlineSeconds": self.active_deadline_seconds.unwrap_or(DEADLINE),
                "template": pod,
            },
        });
        let text = serde_json::to_string_pretty(&self.recipe).unwrap_or_default();
        let mut recipe = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(),
            "immutable": true,
            "data": {FILE: text},
        });
        if self.template.is_none() {
            pod::add_settings(&self.default_pod, &mut recipe);
        }
        Ok(JobObjects { job, recipe })
    }

    /// Labels by which the Job, its pod and its recipe are found again.
    fn labels(&self) -> Map<String, Value> {
        let labels = [
            (MANAGED_BY_LABEL, MANAGED_BY.to_owned()),
            (IMAGE_UID_LABEL, self.object.uid.clone()),
            (IMAGE_ATTEMPT_LABEL, self.attempt.to_string()),
        ];
        labels.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect()
    }

    /// An owner of another namespace would have the Job collected at once.
    fn owner(&self) -> Option<Value> {
        let object = &self.object;
        (object.namespace == self.namespace).then(|| {
            json!({
                "apiVersion": object.api_version, "kind": object.kind, "name": object.name, "uid": object.uid,
                "controller": true, "blockOwnerDeletion": true,
            })
        })
    }

    /// The template's pod with what is ours.
    fn pod(&self) -> Result<Value, JobError> {
        let unusable = |what: &str| JobError::Template(what.to_owned());
        let mut pod = self.template.clone().map_or_else(|| self.default_pod.template(), Ok)?;
        let spec = pod.pointer("/spec").and_then(Value::as_object).ok_or_else(|| unusable("it has no spec"))?;
        self.check_account(spec)?;
        if names(spec.get("volumes")).any(|name| name == VOLUME) {
            return Err(JobError::Template(format!("the volume {VOLUME} is ours: call yours otherwise")));
        }
        let at = names(spec.get("containers")).position(|name| name == CONTAINER).ok_or_else(|| {
            JobError::Template(format!(
                "none of its containers is named {CONTAINER}: name the one that makes the image so"
            ))
        })?;
        let metadata = object(&mut pod, "metadata").ok_or_else(|| unusable("its metadata is no object"))?;
        // A pod that is made by a Job gets its name from there.
        metadata.retain(|field, _| field == "labels" || field == "annotations" || field == "finalizers");
        let labels = member(metadata, "labels").ok_or_else(|| unusable("its labels are no object"))?;
        labels.extend(self.labels());
        let annotations = member(metadata, "annotations").ok_or_else(|| unusable("its annotations are no object"))?;
        annotations.insert(IMAGE_INPUTS.to_owned(), self.inputs.clone().into());
        let spec = object(&mut pod, "spec").ok_or_else(|| unusable("it has no spec"))?;
        spec.insert("restartPolicy".to_owned(), "Never".into());
        let volumes = list(spec, "volumes").ok_or_else(|| unusable("its volumes are no list"))?;
        volumes.push(json!({"name": VOLUME, "configMap": {"name": self.name()}}));
        let container = spec.get_mut("containers").and_then(|all| all.get_mut(at)).and_then(Value::as_object_mut);
        self.equip(container.ok_or_else(|| unusable("its containers are no objects"))?)?;
        // The last lines of each tell what went wrong also where logs can't be read.
        for list in ["initContainers", "containers"] {
            let all = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
            for container in all.filter_map(Value::as_object_mut) {
                container.entry("terminationMessagePolicy").or_insert_with(|| "FallbackToLogsOnError".into());
            }
        }
        Ok(pod)
    }

    /// The ServiceAccount is the one that the provider names, never ours.
    fn check_account(&self, spec: &Map<String, Value>) -> Result<(), JobError> {
        let Some((namespace, name)) = &self.operator else { return Ok(()) };
        let named = ["serviceAccountName", "serviceAccount"];
        let named = named.iter().filter_map(|field| spec.get(*field)?.as_str()).find(|name| !name.is_empty());
        if *namespace == self.namespace && named.unwrap_or("default") == name {
            return Err(JobError::OurAccount(format!("{namespace}/{name}")));
        }
        Ok(())
    }

    /// Gives container `build` its environment and the recipe. What the template says by the same names is replaced.
    fn equip(&self, container: &mut Map<String, Value>) -> Result<(), JobError> {
        let unusable = |what: &str| JobError::Template(format!("{what} of container {CONTAINER} is no list"));
        let ours: Vec<(&str, String)> = vec![
            ("CLUSTERSTACK_IMAGE_NAME", self.image.clone()),
            ("CLUSTERSTACK_INPUTS", self.inputs.clone()),
            ("CLUSTERSTACK_ATTEMPT", self.attempt.to_string()),
            ("CLUSTERSTACK_CLUSTER", self.cluster.clone()),
            ("CLUSTERSTACK_UID", self.object.uid.clone()),
            ("CLUSTERSTACK_RECIPE", format!("{DIRECTORY}/{FILE}")),
        ];
        let env = list(container, "env").ok_or_else(|| unusable("env"))?;
        env.retain(|one| !ours.iter().any(|(name, _)| one["name"] == *name));
        // `$(NAME)` would be replaced by the value of another variable, which may be a secret of the template.
        env.extend(ours.iter().map(|(name, value)| json!({"name": name, "value": value.replace('$', "$$")})));
        let mounts = list(container, "volumeMounts").ok_or_else(|| unusable("volumeMounts"))?;
        mounts.retain(|mount| mount["mountPath"].as_str().map(|path| path.trim_end_matches('/')) != Some(DIRECTORY));
        mounts.push(json!({"name": VOLUME, "mountPath": DIRECTORY, "readOnly": true}));
        Ok(())
    }
}

/// How a Job is found again: by the object that it is for.
pub fn selector(uid: &str) -> String {
    format!("{MANAGED_BY_LABEL}={FIELD_MANAGER},{IMAGE_UID_LABEL}={uid}")
}

fn names(list: Option<&Value>) -> impl Iterator<Item = &str> {
    list.and_then(Value::as_array).into_iter().flatten().map(|one| one["name"].as_str().unwrap_or_default())
}

fn object<'a>(value: &'a mut Value, field: &str) -> Option<&'a mut Map<String, Value>> {
    member(value.as_object_mut()?, field)
}

/// A member that is an object; made where it is missing or null.
fn member<'a>(map: &'a mut Map<String, Value>, field: &str) -> Option<&'a mut Map<String, Value>> {
    let value = map.entry(field).or_insert(Value::Null);
    if value.is_null() {
        *value = json!({});
    }
    value.as_object_mut()
}

/// A member that is a list; made where it is missing or null.
fn list<'a>(map: &'a mut Map<String, Value>, field: &str) -> Option<&'a mut Vec<Value>> {
    let value = map.entry(field).or_insert(Value::Null);
    if value.is_null() {
        *value = json!([]);
    }
    value.as_array_mut()
}
