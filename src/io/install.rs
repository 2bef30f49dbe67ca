//! Applies an installation of the operator, removes what an earlier one left, and waits until it runs.

mod removal;
mod waiting;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use thiserror::Error;

use super::apply::refusal;
use super::helm;
use super::kinds::{Kind, Kinds};
use crate::api::{MANAGED_BY as OPERATOR, MANAGED_BY_LABEL};
use crate::core::cso::HELM;
use crate::core::immutable;
use crate::core::install::{
    INSTALLED_IN, MANAGED_BY, MANAGER, Owner, Waves, elsewhere, has_old_account, is_left, is_marked, key, leaving,
    left_by, owner,
};
use crate::core::manifest::ObjectKey;

/// Kinds that an earlier installation may have left: of other values, or of another version.
const LEFT: &[(&str, &str)] = &[
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("policy/v1", "PodDisruptionBudget"),
    ("monitoring.coreos.com/v1", "ServiceMonitor"),
    ("v1", "Service"),
    ("v1", "ConfigMap"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    ("v1", "ServiceAccount"),
];

/// Those of them that run the operator.
const WORKLOADS: &[(&str, &str)] = &[("apps/v1", "Deployment"), ("apps/v1", "StatefulSet")];

/// What the operator registers: without it Cluster API would wait for hooks that nobody answers.
const REGISTERED: &[(&str, &str)] = &[
    ("runtime.cluster.x-k8s.io", "ExtensionConfig"),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"),
];

/// Why it could not be installed.
#[derive(Debug, Error)]
pub enum InstallError {
    /// The API server said no, or nothing.
    #[error("{object} can't be {what}: {}", refusal(error).message)]
    Refused {
        /// The object.
        object: String,
        /// What was tried: "applied".
        what: &'static str,
        /// Its words.
        error: Box<kube::Error>,
    },
    /// The API server does not know the kind.
    #[error("{object}: the API server does not serve this kind")]
    NoKind {
        /// The object.
        object: String,
    },
    /// Fields differ that nobody can change once the object is there.
    #[error("{object}: {fields} can't be changed once it is there: {words}")]
    Immutable {
        /// The object.
        object: ObjectKey,
        /// The fields.
        fields: String,
        /// The API server's words.
        words: String,
        /// Whether it is one that `clusterstack install` made, or no workload.
        is_ours: bool,
    },
    /// Somebody else keeps it.
    #[error("{object} was installed with {by}{}", of_release(release.as_ref()))]
    Foreign {
        /// The object.
        object: String,
        /// Who: the value of `app.kubernetes.io/managed-by`, or the tool that applied our base.
        by: String,
        /// The release of Helm that keeps it: namespace, name, and the kinds of objects by which Helm knows it.
        release: Option<Release>,
    },
    /// Another installation of this cluster has it.
    #[error("{object} is of the installation in namespace {namespace}")]
    Elsewhere {
        /// The object.
        object: String,
        /// Where that one is.
        namespace: String,
    },
    /// What is being deleted is still there.
    #[error("{object} is being deleted, and after {} s still there: {why}", waited.as_secs())]
    Leaving {
        /// The object.
        object: ObjectKey,
        /// How long it was waited for.
        waited: Duration,
        /// What holds it.
        why: String,
    },
    /// It does not run in time.
    #[error("after {} s {waits}{}", waited.as_secs(), run_on(runs_on))]
    Timeout {
        /// How long it was waited for.
        waited: Duration,
        /// What was waited for last.
        waits: String,
        /// Workloads of an earlier form, which were left as they are.
        runs_on: Vec<String>,
    },
}

impl InstallError {
    /// Whether it is the API server that said no.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Refused { error, .. } => matches!(**error, kube::Error::Api(_)),
            Self::NoKind { .. } | Self::Immutable { .. } => true,
            Self::Foreign { .. } | Self::Elsewhere { .. } | Self::Leaving { .. } | Self::Timeout { .. } => false,
        }
    }
}

fn of_release(release: Option<&Release>) -> String {
    release.map(|(namespace, name, _)| format!(", as release {name} of namespace {namespace}")).unwrap_or_default()
}

fn run_on(workloads: &[String]) -> String {
    if workloads.is_empty() {
        String::new()
    } else {
        format!("; {}, the earlier form, stays as long", workloads.join(", "))
    }
}

/// What became of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was not there.
    Created,
    /// It was changed.
    Configured,
    /// It was so already.
    Unchanged,
    /// It was of an earlier installation.
    Removed,
    /// Its pods are exchanged, for their `ServiceAccount` is new.
    Restarted,
}

/// A release of Helm: namespace, name, and the kinds of objects by which Helm knows it.
type Release = (String, String, Vec<&'static str>);
/// The same by namespace and name.
type Releases = BTreeMap<(String, String), Vec<&'static str>>;

/// A cluster to install in.
pub struct Installer<'a> {
    client: &'a Client,
    namespace: &'a str,
    kinds: Kinds,
    is_dry: bool,
    /// Names of definitions that may be taken over from who installed them.
    takes: &'a [String],
}

impl<'a> Installer<'a> {
    /// The operator's `namespace`; `is_dry`: the API server is asked, and nothing is stored.
    pub fn new(client: &'a Client, namespace: &'a str, is_dry: bool) -> Self {
        Self { client, namespace, kinds: Kinds::default(), is_dry, takes: &[] }
    }

    /// Takes these CRDs over from Helm, which has forgotten them; what else is another's stays so.
    #[must_use]
    pub fn taking(self, definitions: &'a [String]) -> Self {
        Self { takes: definitions, ..self }
    }

    /// Applies everything in its order; `tell` is told of each object. CRDs that a release of Helm left behind are taken over, and
    /// what runs with tokens of a `ServiceAccount` that was not there is restarted.
    ///
    /// # Errors
    /// The first refusal. What was installed by Helm, say, is left to Helm: then nothing is changed.
    pub async fn apply(&self, waves: &Waves, tell: &mut impl FnMut(&ObjectKey, Change)) -> Result<(), InstallError> {
        let left = self.nobody_elses(waves).await?;
        let mut made = Vec::new();
        for object in waves.objects() {
            let (before, after) = self.apply_one(object, tell).await?;
            match before {
                None => made.push(key(object)),
                Some(before) if has_old_account(&before, &after, &made) => {
                    self.restart(object).await?;
                    tell(&key(object), Change::Restarted);
                }
                Some(_) => {}
            }
            if self.may_take(object) || left.contains(&key(object)) {
                self.take(object).await?;
            }
            if object["kind"] == "CustomResourceDefinition" && !self.is_dry {
                self.established(object).await?;
            }
        }
        Ok(())
    }

    /// Removes what an earlier installation has that this one has not.
    ///
    /// # Errors
    /// The first refusal.
    pub async fn prune(&self, waves: &Waves, tell: &mut impl FnMut(&ObjectKey, Change)) -> Result<(), InstallError> {
        let wanted: Vec<ObjectKey> = waves.objects().map(key).collect();
        for (api_version, kind) in LEFT {
            for object in self.ours(api_version, kind).await? {
                if !wanted.contains(&key(&object)) {
                    self.delete(&object).await?;
                    tell(&key(&object), Change::Removed);
                }
            }
        }
        Ok(())
    }

    /// What runs the operator by an earlier form than the one that is wanted.
    async fn earlier(&self, waves: &Waves) -> Result<Vec<ObjectKey>, InstallError> {
        let wanted: Vec<ObjectKey> = waves.workloads.iter().map(key).collect();
        let mut earlier = Vec::new();
        for (api_version, kind) in WORKLOADS {
            earlier.extend(self.ours(api_version, kind).await?.iter().map(key));
        }
        earlier.retain(|object| !wanted.contains(object));
        Ok(earlier)
    }

    /// All that was installed of a kind, without definitions of kinds.
    async fn ours(&self, api_version: &str, kind: &str) -> Result<Vec<Value>, InstallError> {
        self.labelled(api_version, kind, &self.labels()).await
    }

    /// Labels of all that was installed here.
    fn labels(&self) -> String {
        format!("{MANAGED_BY_LABEL}={MANAGED_BY},{INSTALLED_IN}={}", self.namespace)
    }

    async fn labelled(&self, api_version: &str, kind: &str, labels: &str) -> Result<Vec<Value>, InstallError> {
        let mut found = self.all(api_version, kind, labels).await?;
        // Those on their way out wait for nobody here.
        found.retain(|object| object["metadata"]["deletionTimestamp"].is_null());
        Ok(found)
    }

    /// The same with those that are being deleted.
    async fn all(&self, api_version: &str, kind: &str, labels: &str) -> Result<Vec<Value>, InstallError> {
        let failed = |error| InstallError::Refused { object: kind.to_owned(), what: "listed", error: Box::new(error) };
        let Some(found) = self.kinds.get(self.client, api_version, kind).await.map_err(failed)? else {
            return Ok(Vec::new());
        };
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &found.resource);
        let list = api.list(&ListParams::default().labels(labels)).await.map_err(failed)?;
        Ok(list
            .items
            .into_iter()
            .map(|mut object| {
                object.types = Some(kube::api::TypeMeta { api_version: api_version.to_owned(), kind: kind.to_owned() });
                serde_json::to_value(object).unwrap_or_default()
            })
            .collect())
    }

    /// Whether nothing of it is another's; the definitions that Helm left behind.
    async fn nobody_elses(&self, waves: &Waves) -> Result<Vec<ObjectKey>, InstallError> {
        let mut left = Vec::new();
        let mut known = BTreeMap::new();
        for object in waves.objects() {
            let Some(live) = self.live(object).await? else { continue };
            if let Owner::Other(by) = owner(&live)
                && !self.may_take(object)
            {
                let release = self.release(&live, &mut known).await?;
                if !matches!(&release, Some((.., records)) if records.is_empty()) {
                    return Err(InstallError::Foreign { object: key(object).to_string(), by, release });
                }
                left.push(key(object));
            }
            if let Some(namespace) = elsewhere(&live, self.namespace) {
                let (object, namespace) = (key(object).to_string(), namespace.to_owned());
                return Err(InstallError::Elsewhere { object, namespace });
            }
        }
        Ok(left)
    }

    /// The release of Helm that leaves a definition behind, and in what Helm keeps it; `known` are those that were looked for.
    async fn release(&self, live: &Value, known: &mut Releases) -> Result<Option<Release>, InstallError> {
        let Some((namespace, name)) = left_by(live) else { return Ok(None) };
        let at = (namespace.to_owned(), name.to_owned());
        if !known.contains_key(&at) {
            let failed = |error| {
                let object = format!("release {name} of Helm in namespace {namespace}");
                InstallError::Refused { object, what: "looked for", error: Box::new(error) }
            };
            let records = helm::records(self.client, namespace, name).await.map_err(failed)?;
            known.insert(at.clone(), records);
        }
        Ok(known.get(&at).map(|records| (at.0, at.1, records.clone())))
    }

    fn may_take(&self, object: &Value) -> bool {
        object["kind"] == "CustomResourceDefinition"
            && self.takes.iter().any(|name| object["metadata"]["name"] == name.as_str())
    }

    /// Helm's names on it go, by which a release of that name would have it again.
    async fn take(&self, object: &Value) -> Result<(), InstallError> {
        let Some(kind) = self.kind(object).await? else { return Ok(()) };
        let patch = json!({"metadata": {"annotations": {HELM.0: null, HELM.1: null}}});
        let params =
            PatchParams { dry_run: self.is_dry, field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        let name = text(&object["metadata"]["name"]);
        let taken = self.api(&kind, object).patch(name, &params, &Patch::Merge(&patch)).await;
        taken.map(drop).map_err(|error| refused(object, "taken over", error))
    }

    /// The object that is there; `None` too where its kind is not.
    async fn live(&self, object: &Value) -> Result<Option<Value>, InstallError> {
        let failed = |error| refused(object, "read", error);
        let Some(kind) = self.kind(object).await? else { return Ok(None) };
        let live = self.api(&kind, object).get_opt(text(&object["metadata"]["name"])).await.map_err(failed)?;
        Ok(live.map(|live| serde_json::to_value(live).unwrap_or_default()))
    }

    /// Applies an object; gives it as it was, if it was there, and as it is.
    async fn apply_one(
        &self,
        object: &Value,
        tell: &mut impl FnMut(&ObjectKey, Change),
    ) -> Result<(Option<Value>, Value), InstallError> {
        let before = self.live(object).await?;
        let Some(kind) = self.kind(object).await? else {
            return Err(InstallError::NoKind { object: key(object).to_string() });
        };
        // It would be made anew when it is gone.
        if self.is_dry && before.as_ref().is_some_and(|before| leaving(before).is_some()) {
            tell(&key(object), Change::Created);
            return Ok((None, object.clone()));
        }
        let mut params = PatchParams::apply(MANAGER).force();
        params.dry_run = self.is_dry;
        let name = text(&object["metadata"]["name"]);
        let applied = self.api(&kind, object).patch(name, &params, &Patch::Apply(object)).await;
        let applied = match applied {
            // Its namespace would be made before.
            Err(kube::Error::Api(status))
                if self.is_dry && status.code == 404 && object["metadata"]["namespace"] == self.namespace =>
            {
                tell(&key(object), Change::Created);
                return Ok((None, object.clone()));
            }
            applied => applied.map_err(|error| unapplied(object, before.as_ref(), error))?,
        };
        let change = match &before {
            None => Change::Created,
            Some(before) if is_same(before, &applied) => Change::Unchanged,
            Some(_) => Change::Configured,
        };
        tell(&key(object), change);
        Ok((before, serde_json::to_value(applied).unwrap_or_default()))
    }

    /// Has all pods of a workload exchanged, as `kubectl rollout restart` does.
    async fn restart(&self, object: &Value) -> Result<(), InstallError> {
        let Some(kind) = self.kind(object).await? else { return Ok(()) };
        let annotations = json!({"kubectl.kubernetes.io/restartedAt": Timestamp::now().to_string()});
        let patch = json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
        // Not ours: what is applied the next time is to leave it.
        let manager = Some("kubectl-rollout".to_owned());
        let params = PatchParams { dry_run: self.is_dry, field_manager: manager, ..PatchParams::default() };
        let name = text(&object["metadata"]["name"]);
        let restarted = self.api(&kind, object).patch(name, &params, &Patch::Merge(&patch)).await;
        restarted.map(drop).map_err(|error| refused(object, "restarted", error))
    }

    /// Removes what the operator registered and no Service of this installation answers any more. An older replica would
    /// register it again.
    ///
    /// # Errors
    /// The first refusal.
    pub async fn withdraw(&self, waves: &Waves, tell: &mut impl FnMut(&ObjectKey, Change)) -> Result<(), InstallError> {
        for (group, kind) in REGISTERED {
            let registered = self.registered(group, kind).await?;
            // Another installation answers its own.
            for object in registered.into_iter().filter(|object| is_left(object, self.namespace, waves)) {
                self.delete(&object).await?;
                tell(&key(&object), Change::Removed);
            }
        }
        Ok(())
    }

    /// What operators registered of a kind.
    async fn registered(&self, group: &str, kind: &str) -> Result<Vec<Value>, InstallError> {
        let failed = |error| InstallError::Refused { object: kind.to_owned(), what: "listed", error: Box::new(error) };
        let found = self.kinds.preferred(self.client, group, kind).await.map_err(failed)?;
        let Some(found) = found else { return Ok(Vec::new()) };
        self.labelled(&found.resource.api_version, kind, &format!("{MANAGED_BY_LABEL}={OPERATOR}")).await
    }

    async fn delete(&self, object: &Value) -> Result<(), InstallError> {
        self.delete_by(object, DeleteParams::foreground()).await
    }

    async fn delete_by(&self, object: &Value, mut params: DeleteParams) -> Result<(), InstallError> {
        let Some(kind) = self.kind(object).await? else { return Ok(()) };
        let uid = object["metadata"]["uid"].as_str().map(str::to_owned);
        params.dry_run = self.is_dry;
        params.preconditions = Some(Preconditions { uid, resource_version: None });
        match self.api(&kind, object).delete(text(&object["metadata"]["name"]), &params).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(refused(object, "deleted", error)),
            Ok(_) => Ok(()),
        }
    }

    async fn kind(&self, object: &Value) -> Result<Option<Kind>, InstallError> {
        let found = self.kinds.get(self.client, text(&object["apiVersion"]), text(&object["kind"])).await;
        found.map_err(|error| refused(object, "looked for", error))
    }

    fn api(&self, kind: &Kind, object: &Value) -> Api<DynamicObject> {
        match object["metadata"]["namespace"].as_str() {
            Some(namespace) if kind.namespaced => Api::namespaced_with(self.client.clone(), namespace, &kind.resource),
            _ => Api::all_with(self.client.clone(), &kind.resource),
        }
    }
}

/// Compared without what each write changes.
fn is_same(before: &Value, after: &DynamicObject) -> bool {
    let plain = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
            metadata.remove("resourceVersion");
            metadata.remove("generation");
        }
        if let Some(object) = object.as_object_mut() {
            object.remove("status");
            object.remove("apiVersion");
            object.remove("kind");
        }
        object
    };
    before["metadata"]["resourceVersion"] == after.resource_version().unwrap_or_default()
        || serde_json::to_value(after).is_ok_and(|after| plain(&after) == plain(before))
}

/// Why an object can't be applied.
fn unapplied(object: &Value, before: Option<&Value>, error: kube::Error) -> InstallError {
    let kube::Error::Api(status) = &error else { return refused(object, "applied", error) };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let causes = causes.map(|cause| (cause.field.as_str(), cause.message.as_str()));
    match immutable::fields(causes).filter(|_| status.code == 422) {
        Some(fields) => {
            let (fields, words) = (fields.join(", "), status.message.clone());
            let is_workload = WORKLOADS.iter().any(|(_, kind)| object["kind"] == *kind);
            let is_ours = !is_workload || before.is_none_or(is_marked);
            InstallError::Immutable { object: key(object), fields, words, is_ours }
        }
        None => refused(object, "applied", error),
    }
}

fn refused(object: &Value, what: &'static str, error: kube::Error) -> InstallError {
    InstallError::Refused { object: key(object).to_string(), what, error: Box::new(error) }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
