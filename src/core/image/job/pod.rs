//! The pod of a Job whose template brings none: `clusterstack` itself carries the steps out.
//!
//! It needs nothing of the API server: description, settings and Secrets are mounted, and what it made is its termination
//! message. It keeps the Pod Security level `restricted`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{CONTAINER, DIRECTORY, JobError, SETTINGS_FILE};
use crate::api::image_destination::Destination;
use crate::api::image_template::{ExecutorKind, ImageBuild, ProviderClusterStackReleaseTemplateSpec as Template};
use crate::api::source::SecretReference;

/// Where Secrets lie in the pod, a directory each. Commands that name a path below `run/secrets` are refused.
const SECRETS: &str = "/run/secrets/clusterstack";
/// Where it works.
const WORK: &str = "/work";
/// Who it runs as; no user of any image in particular.
const USER: i64 = 65532;
/// What the volume holds beside the work directory: logs.
const LOGS: u64 = 64 << 20;

/// What the pod is made of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DefaultPod {
    /// The image, which holds `clusterstack` and the tools that releases use; empty where nobody named one.
    pub image: String,
    /// What the pod is told of the template; no Secret is in it.
    pub settings: Value,
    /// Names of Secrets, by the directory that they are mounted at.
    pub secrets: Vec<(String, String)>,
    /// Bytes that the work directory may hold.
    pub disk: u64,
    /// Whether images go to a directory, which only a pod with a volume has.
    pub needs_a_directory: bool,
}

/// What the pod is told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSettings {
    /// Where the image is brought.
    pub destination: Destination,
    /// How it is made.
    pub build: ImageBuild,
    /// What the operator's flag `--allow-source` says.
    #[serde(default)]
    pub allow: Vec<String>,
}

/// The directory of a Secret, by the field that names it.
pub fn folder(field: &str) -> String {
    field.trim_start_matches("spec.").replace('.', "-").to_ascii_lowercase()
}

impl DefaultPod {
    /// Of a template; `image` is the operator's, for templates that name none, and `disk` in bytes.
    ///
    /// # Errors
    /// The settings can't be written, which is a fault of ours.
    pub fn of(template: &Template, image: &str, allow: &[String], disk: u64) -> Result<Self, serde_json::Error> {
        let mut build = template.build.clone();
        let job = build.job.take().unwrap_or_default();
        let secrets = references(template).into_iter();
        let secrets = secrets.filter_map(|(field, secret)| Some((folder(field), secret?.name.clone()))).collect();
        // It runs the steps itself.
        build.executor = ExecutorKind::Task;
        let settings = PodSettings { destination: template.destination.clone(), build, allow: allow.to_vec() };
        Ok(Self {
            image: job.image.unwrap_or_else(|| image.to_owned()),
            settings: serde_json::to_value(settings)?,
            secrets,
            disk,
            needs_a_directory: template.destination.directory.is_some(),
        })
    }

    /// The `PodTemplateSpec`.
    ///
    /// # Errors
    /// Nobody named an image, or the destination can't be reached from it.
    pub fn template(&self) -> Result<Value, JobError> {
        if self.image.is_empty() {
            return Err(JobError::NoTemplate);
        }
        if self.needs_a_directory {
            return Err(JobError::NoDirectory);
        }
        let mut volumes =
            vec![json!({"name": "work", "emptyDir": {"sizeLimit": (self.disk.saturating_add(LOGS)).to_string()}})];
        let mut mounts = vec![json!({"name": "work", "mountPath": WORK})];
        for (number, (folder, secret)) in self.secrets.iter().enumerate() {
            let name = format!("secret-{number}");
            volumes.push(json!({"name": name, "secret": {"secretName": secret, "defaultMode": 0o440}}));
            mounts.push(json!({"name": name, "mountPath": format!("{SECRETS}/{folder}"), "readOnly": true}));
        }
        Ok(json!({"spec": {
            // What runs here is told by a release: nothing of the API server is within its reach.
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": CONTAINER,
                "image": self.image,
                "command": ["clusterstack", "image-build"],
                "args": ["--recipe-dir", DIRECTORY, "--secrets-dir", SECRETS, "--work-dir", WORK],
                "securityContext": {
                    "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": mounts,
            }],
            "volumes": volumes,
        }}))
    }
}

/// The Secrets that a template names for builds, by field.
pub fn references(template: &Template) -> Vec<(&'static str, Option<&SecretReference>)> {
    let build = &template.build;
    let (login, certificate) = destination_references(&template.destination);
    vec![
        ("spec.destination.secretRef", login),
        ("spec.destination.certSecretRef", certificate),
        ("secretRef", build.secret_ref.as_ref()),
        ("certSecretRef", build.cert_secret_ref.as_ref()),
        ("proxySecretRef", build.proxy_secret_ref.as_ref()),
        ("keysSecretRef", build.keys_secret_ref.as_ref()),
    ]
}

/// The Secrets that a destination names: its login, and its certificates.
pub fn destination_references(spec: &Destination) -> (Option<&SecretReference>, Option<&SecretReference>) {
    match spec {
        Destination { http: Some(to), .. } => (to.secret_ref.as_ref(), to.cert_secret_ref.as_ref()),
        Destination { s3: Some(to), .. } => (to.secret_ref.as_ref(), to.cert_secret_ref.as_ref()),
        Destination { oci: Some(to), .. } => (to.secret_ref.as_ref(), to.cert_secret_ref.as_ref()),
        Destination { glance: Some(to), .. } => (to.secret_ref.as_ref(), None),
        _ => (None, None),
    }
}

/// Adds what the pod is told to the ConfigMap beside the Job.
pub(super) fn add_settings(pod: &DefaultPod, map: &mut Value) {
    map["data"][SETTINGS_FILE] = serde_json::to_string_pretty(&pod.settings).unwrap_or_default().into();
}
