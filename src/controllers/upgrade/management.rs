//! The management cluster's side: the objects of both releases, what the Cluster consists of, and what the API server
//! would say to the Cluster.

use std::collections::BTreeMap;

use futures::{StreamExt, stream};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::super::deletion;
use super::super::release_owner::is_owned;
use super::releases::{Present, Target};
use super::{Planner, UpgradeError, api};
use crate::api::cluster_stack_release::Resource as Row;
use crate::api::condition::Reason;
use crate::api::{CLUSTER_NAME_LABEL, ClusterStackRelease};
use crate::core::addon::cluster::{Cluster, Reference};
use crate::core::manifest::{Manifest, ObjectKey, join_api_version, label};
use crate::core::plan::key_of;
use crate::core::retry::ErrorClass;
use crate::core::status::Trouble;
use crate::core::upgrade::class::{WorkerKind, references};
use crate::core::upgrade::objects::Side;
use crate::core::upgrade::{Acceptance, AcceptanceState, State};
use crate::io::apply::{forced, refusal, refusal_of};
use crate::io::kinds::Kind;
use crate::io::lookup::Reader;
use crate::io::observe;
use crate::io::release::{Job, Part};
use crate::io::usage::CLUSTER_API;

/// How many objects are asked for at once.
const AT_ONCE: usize = 8;

/// What a Cluster consists of.
#[derive(Default)]
pub(super) struct Parts {
    /// Its control plane.
    pub(super) control_plane: Option<Value>,
    /// Its workers, by kind and name in the topology.
    pub(super) workers: BTreeMap<(WorkerKind, String), Value>,
}

/// Reads of the management cluster, for a class of a namespace.
pub(super) struct Reading<'a> {
    pub(super) planner: &'a Planner<'a>,
    pub(super) class_namespace: &'a str,
}

impl Reading<'_> {
    /// The objects of the release that the upgrade goes to: the live ones, or as the API server would store them.
    pub(super) async fn target(
        &self,
        target: &Target,
        present: &Present,
        unknown: &mut Vec<String>,
    ) -> Result<Side, UpgradeError> {
        let release = target.name.object_name();
        let objects = match (&target.release, &target.fetched) {
            (Some(release), _) => self.live(rows(release), &BTreeMap::new(), unknown).await?,
            (None, Some(_)) => self.rendered(target, &present.releases, unknown).await?,
            (None, None) => Vec::new(),
        };
        let is_of_release = |object: &&Manifest| object.key.is_cluster_class() && object.key.name == release;
        let classes = || objects.iter().filter(|object| object.key.is_cluster_class());
        let class = classes().find(is_of_release).or_else(|| classes().next());
        let class = class.map_or_else(|| release.clone(), |class| class.key.name.clone());
        if present.class.1 != class && !objects.iter().any(|object| object.key.name == class) {
            unknown.push(format!("release {release} has no ClusterClass that can be read"));
        }
        let side = Side { release, class, objects };
        self.with_templates(side, unknown).await
    }

    /// The objects of the present release, in the versions that the target's are read in.
    pub(super) async fn present(
        &self,
        present: &Present,
        target: &[Manifest],
        unknown: &mut Vec<String>,
    ) -> Result<Side, UpgradeError> {
        let of = |object: &Manifest| ((object.key.group.clone(), object.key.kind.clone()), object.version.clone());
        let versions = target.iter().map(of).collect();
        let objects = self.live(rows(&present.release), &versions, unknown).await?;
        let side = Side { release: present.release.name_any(), class: present.class.1.clone(), objects };
        self.with_templates(side, unknown).await
    }

    async fn kind(&self, api_version: &str, kind: &str) -> Result<Option<Kind>, UpgradeError> {
        let found = self.planner.kinds.get(&self.planner.client, api_version, kind).await;
        found.map_err(|error| api(format!("asking for kind {kind} of {api_version}"), error))
    }

    /// The live objects of an inventory. One that can't be read is noted.
    async fn live(
        &self,
        rows: &[Row],
        versions: &BTreeMap<(String, String), String>,
        unknown: &mut Vec<String>,
    ) -> Result<Vec<Manifest>, UpgradeError> {
        let mut reads = Vec::new();
        for row in rows {
            let version = versions.get(&(row.group.clone(), row.kind.clone())).unwrap_or(&row.version);
            let kind = match self.kind(&join_api_version(&row.group, version), &row.kind).await? {
                Some(kind) => Some(kind),
                None => self.kind(&join_api_version(&row.group, &row.version), &row.kind).await?,
            };
            match kind {
                Some(kind) => reads.push(self.get(kind, key_of(row))),
                None => unknown.push(format!("{} is of a kind that is not served", key_of(row))),
            }
        }
        let found: Vec<(ObjectKey, Result<Option<Value>, kube::Error>)> =
            stream::iter(reads).buffered(AT_ONCE).collect().await;
        let mut objects = Vec::new();
        for (key, result) in found {
            match result {
                Ok(object) => objects.extend(object.and_then(|object| Manifest::from_value(object).ok())),
                Err(error) => unknown.push(format!("{key} can't be read: {}", refusal(&error).message)),
            }
        }
        Ok(objects)
    }

    async fn get(&self, kind: Kind, key: ObjectKey) -> (ObjectKey, Result<Option<Value>, kube::Error>) {
        let result =
            observe::api(&self.planner.client, &kind, &key.namespace).get_opt(&observe::segment(&key.name)).await;
        (key, result.map(|object| object.map(|object| observe::plain(&object, &kind))))
    }

    /// The objects that a release would apply, tried one by one. One that the API server refuses is taken as rendered.
    async fn rendered(
        &self,
        target: &Target,
        releases: &[ClusterStackRelease],
        unknown: &mut Vec<String>,
    ) -> Result<Vec<Manifest>, UpgradeError> {
        let Some(fetched) = &target.fetched else { return Ok(Vec::new()) };
        let planner = self.planner;
        // With the rights that it would be applied with.
        let namespace = target.stack.namespace().unwrap_or_default();
        let rights = planner.operator.map(|ctx| ctx.rights(&namespace, Some(&target.stack.spec))).transpose();
        let rights = rights.map_err(|error| UpgradeError::Fetch {
            name: target.name.to_string(),
            trouble: Trouble::new(ErrorClass::Waiting, Reason::SpecInvalid, error.message()),
        })?;
        let by_own_rights = rights.as_ref().is_some_and(|rights| rights.account.is_none());
        let client = rights.map_or_else(|| planner.client.clone(), |rights| rights.client);
        let owned = || {
            let owned = releases.iter().filter(|release| is_owned(release, &target.stack));
            owned.map(ResourceExt::name_any).chain([target.name.object_name()]).collect()
        };
        let reader = Reader {
            client: client.clone(),
            kinds: planner.kinds,
            only_namespace: Some(self.class_namespace.to_owned()),
            secrets_of: by_own_rights.then(owned),
        };
        let job = Job {
            release: fetched,
            part: Part::Class,
            reader: &reader,
            client: &planner.client,
            seed: &deletion::seed_of(&target.stack),
            existing: &std::collections::BTreeSet::new(),
        };
        let previewed = planner.releases.preview(&job, true).await;
        let previewed = previewed.map_err(|trouble| UpgradeError::Fetch { name: target.name.to_string(), trouble })?;
        let mut objects = Vec::new();
        for manifest in previewed.manifests {
            let Some(kind) = self.kind(&manifest.api_version(), &manifest.key.kind).await? else {
                unknown.push(format!("{} is of a kind that is not served", manifest.key));
                objects.push(manifest);
                continue;
            };
            let manifest = match (kind.namespaced, manifest.key.namespace.is_empty()) {
                (true, true) => manifest.in_namespace(self.class_namespace),
                (false, false) => manifest.without_namespace(),
                _ => manifest,
            };
            // The answer would tell what lives in other namespaces.
            if manifest.key.namespace != self.class_namespace {
                objects.push(manifest);
                continue;
            }
            let params = forced().dry_run();
            let tried = observe::api(&client, &kind, &manifest.key.namespace);
            match tried.patch(&observe::segment(&manifest.key.name), &params, &Patch::Apply(&manifest.object)).await {
                Ok(object) => objects.extend(Manifest::from_value(observe::plain(&object, &kind))),
                Err(error) => {
                    let why = refusal_of(&manifest, &error).message;
                    unknown.push(format!("{} is shown as rendered, for a dry run says: {why}", manifest.key));
                    objects.push(manifest);
                }
            }
        }
        Ok(objects)
    }

    /// With the templates that the class names and the release does not have itself.
    async fn with_templates(&self, mut side: Side, unknown: &mut Vec<String>) -> Result<Side, UpgradeError> {
        let class = side.objects.iter().find(|object| object.key.is_cluster_class() && object.key.name == side.class);
        let class = class.map(|class| class.object.clone()).unwrap_or_default();
        for (_, reference) in references(&class) {
            let (group, kind_name, name) = reference.key();
            let is_it = |object: &Manifest| {
                (&object.key.group, &object.key.kind, &object.key.name) == (&group, &kind_name, &name)
            };
            if side.objects.iter().any(is_it) {
                continue;
            }
            let Some(kind) = self.kind(&reference.api_version, &kind_name).await? else { continue };
            let namespace = self.class_namespace.to_owned();
            let (key, result) = self.get(kind, ObjectKey { group, kind: kind_name, namespace, name }).await;
            match result {
                Ok(object) => side.objects.extend(object.and_then(|object| Manifest::from_value(object).ok())),
                Err(error) => unknown.push(format!("{key} can't be read: {}", refusal(&error).message)),
            }
        }
        Ok(side)
    }

    /// What the Cluster consists of, as far as it can be read.
    pub(super) async fn parts(&self, cluster: &Cluster, unknown: &mut Vec<String>) -> Parts {
        let mut parts = Parts::default();
        if let Some(reference) = &cluster.control_plane {
            match self.referred(reference, &cluster.namespace).await {
                Ok(object) => parts.control_plane = object,
                Err(error) => {
                    let why = refusal(&error).message;
                    unknown.push(format!("{} {} can't be read: {why}", reference.kind, reference.name));
                }
            }
        }
        for (kind, name_label) in [
            (WorkerKind::MachineDeployment, "topology.cluster.x-k8s.io/deployment-name"),
            (WorkerKind::MachinePool, "topology.cluster.x-k8s.io/pool-name"),
        ] {
            match self.workers(cluster, kind).await {
                Ok(objects) => parts.workers.extend(
                    objects
                        .into_iter()
                        .filter_map(|object| Some(((kind, label(&object, name_label)?.to_owned()), object))),
                ),
                Err(error) => {
                    unknown.push(format!("{}s can't be listed: {}", kind.as_str(), refusal(&error).message));
                }
            }
        }
        parts
    }

    async fn referred(&self, reference: &Reference, namespace: &str) -> Result<Option<Value>, kube::Error> {
        let Planner { client, kinds, .. } = self.planner;
        // As where addons get their values: a core object, a Secret say, is none of a provider's.
        let kind = match reference.group.as_str() {
            "" => None,
            group => kinds.preferred(client, group, &reference.kind).await?,
        };
        let Some(kind) = kind.filter(|kind| kind.namespaced) else { return Ok(None) };
        let found = observe::api(client, &kind, namespace).get_opt(&observe::segment(&reference.name)).await?;
        Ok(found.map(|object| observe::plain(&object, &kind)))
    }

    async fn workers(&self, cluster: &Cluster, kind: WorkerKind) -> Result<Vec<Value>, kube::Error> {
        let Planner { client, kinds, .. } = self.planner;
        let Some(kind) = kinds.preferred(client, CLUSTER_API, kind.as_str()).await? else { return Ok(Vec::new()) };
        let params = ListParams::default().labels(&format!("{CLUSTER_NAME_LABEL}={}", cluster.name));
        let listed = observe::api(client, &kind, &cluster.namespace).list(&params).await?;
        Ok(listed.items.iter().map(|object| observe::plain(object, &kind)).collect())
    }

    /// A dry run of the Cluster with the new class and version. A class that is not there yet is not asked about.
    pub(super) async fn try_cluster(&self, cluster: &Value, target: &Target, to: &State) -> Acceptance {
        let text = |pointer: &str| cluster.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (_, class) = to.class.split_once('/').unwrap_or_default();
        if target.release.is_none() {
            let message = format!("ClusterClass {class} is not there before its release is subscribed");
            return Acceptance::unknown(message);
        }
        let mut topology = json!({"version": to.kubernetes_version});
        if cluster.pointer("/spec/topology/classRef").is_some_and(Value::is_object) {
            topology["classRef"] = json!({"name": class});
        } else {
            topology["class"] = class.into();
        }
        let api_version = text("/apiVersion");
        let found = self.planner.kinds.get(&self.planner.client, &api_version, "Cluster").await;
        let Ok(Some(kind)) = found else {
            return Acceptance::unknown(format!("no Cluster of {api_version} is served"));
        };
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        let patch = Patch::Merge(json!({"spec": {"topology": topology}}));
        let tried: Api<_> = observe::api(&self.planner.client, &kind, &text("/metadata/namespace"));
        match tried.patch(&text("/metadata/name"), &params, &patch).await {
            Ok(_) => Acceptance { state: AcceptanceState::Accepted, message: String::new() },
            Err(kube::Error::Api(status))
                if (400..500).contains(&status.code) && !matches!(status.code, 401 | 403 | 429) =>
            {
                Acceptance { state: AcceptanceState::Refused, message: status.message.clone() }
            }
            // An admission webhook refuses with 403 too: its words tell.
            Err(kube::Error::Api(status)) if status.message.starts_with("admission webhook") => {
                Acceptance { state: AcceptanceState::Refused, message: status.message.clone() }
            }
            Err(error) => Acceptance::unknown(format!("a dry run can't be done: {}", refusal(&error).message)),
        }
    }
}

fn rows(release: &ClusterStackRelease) -> &[Row] {
    release.status.as_ref().map(|status| status.resources.as_slice()).unwrap_or_default()
}
