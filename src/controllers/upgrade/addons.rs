//! The workload cluster's side: what of the new release's addons differs from what runs there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::{StreamExt, stream};
use kube::api::Patch;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::super::cluster_addon::{Asked, owner_named, seed_of_cluster};
use super::super::delivery::{Delivery, hold_unreadable};
use super::Planner;
use super::releases::{Present, Target};
use crate::api::cluster_stack_release::Resource as Row;
use crate::api::condition::Reason;
use crate::api::{ClusterAddon, ClusterAddonSpec};
use crate::core::addon::cluster::{Cluster, HELM_NAMESPACE, addon_name};
use crate::core::addon::stages;
use crate::core::addon::values;
use crate::core::addon_config::{Action, AddonConfig, CrdPolicy};
use crate::core::fields;
use crate::core::inventory::is_of_go_operator;
use crate::core::manifest::{Manifest, ObjectKey};
use crate::core::ownership::{self, Ownership};
use crate::core::plan::{Desired, ignored_pointers, is_own_key, key_of};
use crate::core::retry::ErrorClass;
use crate::core::status::Trouble;
use crate::core::upgrade::State;
use crate::core::upgrade::addons::{self, AddonChanges, Compared, Lasts, Refusal, Wanted};
use crate::io::apply::{forced, refusal, refusal_of};
use crate::io::kinds::Kind;
use crate::io::lookup::Reader;
use crate::io::observe::{self, Live};
use crate::io::release::{FetchedRelease, Job, Part};
use crate::io::workload::Workload;

/// How many objects are tried at once.
const AT_ONCE: usize = 8;

/// Kinds of addon charts that have no namespace.
const CLUSTER_SCOPED: [&str; 11] = [
    "Namespace",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "PriorityClass",
    "StorageClass",
    "IngressClass",
    "CSIDriver",
    "APIService",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
];

/// The objects of the charts, each with whether it is only made where there is none; and what the charts looked up.
#[derive(Default)]
struct Charts {
    objects: BTreeMap<String, Vec<(Manifest, bool)>>,
    looked_up: BTreeMap<String, BTreeSet<ObjectKey>>,
}

/// The addons of one Cluster.
struct Addons<'a> {
    planner: &'a Planner<'a>,
    cluster: &'a Cluster,
    /// The Cluster in the API.
    object: &'a Value,
    /// What its ClusterAddon says of values.
    spec: ClusterAddonSpec,
    /// The inventory.
    recorded: Vec<Row>,
}

impl Planner<'_> {
    /// What becomes of the addons; what stands in the way is said in it.
    pub(super) async fn addons(
        &self,
        cluster: &Cluster,
        object: &Value,
        (present, target): (&Present, &Target),
        to: &State,
    ) -> AddonChanges {
        let Some(fetched) = &target.fetched else {
            return AddonChanges::unknown(format!("the files of {} can't be had: {}", to.release, target.unfetched));
        };
        let api: Api<ClusterAddon> = Api::namespaced(self.client.clone(), &cluster.namespace);
        let addon = match api.get_opt(&addon_name(&cluster.name)).await {
            Ok(addon) => addon,
            Err(error) => {
                return AddonChanges::unknown(format!("the ClusterAddon can't be read: {}", refusal(&error).message));
            }
        };
        let status = addon.as_ref().and_then(|addon| addon.status.clone()).unwrap_or_default();
        let spec = addon.map(|addon| addon.spec).unwrap_or_default();
        let config = stages::of_charts(fetched.bundle.addon.as_ref());
        if config.stages.is_empty() && status.resources.is_empty() {
            return AddonChanges { compared: Compared::NoAddons, ..AddonChanges::unknown("") };
        }
        let work = Addons { planner: self, cluster, object, spec, recorded: status.resources };
        let found = match self.workloads.get(&self.client, &cluster.namespace, &cluster.name).await {
            Ok(workload) => work.tried(fetched, &config, &workload, to).await,
            Err(trouble) => work.as_rendered(present, fetched, &config, to, &trouble.message).await,
        }
        .unwrap_or_else(|trouble| AddonChanges::unknown(trouble.message));
        let stays = present.release.name_any() == to.release;
        if stays && !config.stages.is_empty() { found.without_upgrade(&config) } else { found }
    }
}

impl Addons<'_> {
    /// Each object is tried in the workload cluster.
    async fn tried(
        &self,
        fetched: &FetchedRelease,
        config: &AddonConfig,
        workload: &Workload,
        to: &State,
    ) -> Result<AddonChanges, Trouble> {
        let charts = self.charts(fetched, config, Some(workload), to).await?;
        let delivery = self.delivery(workload);
        let (mut all, mut kinds) = (Vec::new(), BTreeMap::new());
        let mut ends = Vec::new();
        for (name, objects) in charts.objects {
            let ignored = config.ignored(&name);
            let (manifests, create_only): (Vec<Manifest>, Vec<bool>) = objects.into_iter().unzip();
            let (desired, served) = delivery.desired(manifests).await;
            let desired = desired.into_iter().zip(create_only);
            all.extend(desired.map(|(object, create_only)| {
                let of = |rules| ignored_pointers(rules, &object.manifest.key);
                let ignored = [of(&ignored), of(&self.spec.ignore_differences)].concat();
                Desired { create_only, ignored, ..object }
            }));
            kinds.extend(served);
            ends.push((name, all.len()));
        }
        let live = delivery
            .observe((&all, &kinds), (&self.recorded, &[]), None)
            .await
            .map_err(|error| Trouble::new(ErrorClass::Transient, Reason::ClusterUnreachable, error.to_string()))?;
        hold_unreadable(&mut all, &live);
        let tries: Vec<_> = all.into_iter().map(|object| self.try_one(object, workload, &kinds, &live)).collect();
        let mut tried = stream::iter(tries).buffered(AT_ONCE).collect::<Vec<Wanted>>().await.into_iter();
        let mut wanted: BTreeMap<String, Vec<Wanted>> = BTreeMap::new();
        let mut start = 0;
        for (name, end) in ends {
            wanted.insert(name, tried.by_ref().take(end - start).collect());
            start = end;
        }
        // What a chart looks up and has made itself stays as it is.
        let is_looked_up = |row: &Row| charts.looked_up.get(&row.stage).is_some_and(|all| all.contains(&key_of(row)));
        let recorded: Vec<Row> = self.recorded.iter().filter(|row| !is_looked_up(row)).cloned().collect();
        let unanswered = |one: &&Wanted| matches!(&one.after, Err(refusal) if refusal.lasts == Lasts::Unknown);
        let mut unanswered = wanted.values().flatten().filter(unanswered);
        let message = match (unanswered.next(), unanswered.count()) {
            (Some(Wanted { manifest, after: Err(refusal), .. }), more) => {
                format!("{} could not be tried: {}{}", manifest.key, refusal.message, and_more(more))
            }
            _ => String::new(),
        };
        Ok(addons::changes((Compared::DryRun, message), config, &wanted, &recorded, &live.objects))
    }

    fn delivery<'w>(&self, workload: &'w Workload) -> Delivery<'w> {
        Delivery::to_workload(workload, owner_named(&self.cluster.namespace, &addon_name(&self.cluster.name)))
    }

    async fn try_one(
        &self,
        object: Desired,
        workload: &Workload,
        kinds: &BTreeMap<ObjectKey, Kind>,
        live: &Live,
    ) -> Wanted {
        let Desired { mut manifest, obstacle, create_only, ignored, .. } = object;
        let before = live.objects.get(&manifest.key).cloned();
        if let Some(there) = &before {
            fields::keep_live(&mut manifest.object, there, &ignored, is_own_key);
        }
        let key = &manifest.key;
        if let (true, Some(there)) = (create_only, &before) {
            return Wanted { after: Ok(there.clone()), before, manifest };
        }
        let owner = owner_named(&self.cluster.namespace, &addon_name(&self.cluster.name));
        let by_go_operator = self.recorded.iter().any(|row| is_of_go_operator(row) && key_of(row) == *key);
        let other = before.as_ref().and_then(|before| match ownership::of(before, &owner, by_go_operator) {
            Ownership::Other(whose) => Some(format!("left alone, for it is {whose}")),
            Ownership::Ours | Ownership::Nobodys | Ownership::OfGoOperator => None,
        });
        let held = obstacle.map(|(reason, message)| {
            let lasts = match reason {
                Reason::NoKindMatch => Lasts::UntilTheRest,
                Reason::ApplyFailed => Lasts::Unknown,
                _ => Lasts::Yes,
            };
            Refusal { message, lasts }
        });
        let other = other.map(|message| Refusal { message, lasts: Lasts::Yes });
        let after = match (held.or(other), kinds.get(key)) {
            (Some(refusal), _) => Err(refusal),
            (None, None) => Err(Refusal { message: "its kind is not served".to_owned(), lasts: Lasts::UntilTheRest }),
            (None, Some(kind)) => {
                let params = forced().dry_run();
                let target = observe::api(&workload.client, kind, &key.namespace);
                let tried = target.patch(&observe::segment(&key.name), &params, &Patch::Apply(&manifest.object)).await;
                let refused = |error: &kube::Error| Refusal {
                    // The API server may quote what it refuses.
                    message: if key.kind == "Secret" {
                        "refused".to_owned()
                    } else {
                        refusal_of(&manifest, error).message
                    },
                    lasts: lasts(error),
                };
                tried.map(|object| observe::plain(&object, kind)).map_err(|error| refused(&error))
            }
        };
        Wanted { manifest, before, after }
    }

    /// The renderings of both releases, where the workload cluster can't be asked.
    async fn as_rendered(
        &self,
        present: &Present,
        fetched: &FetchedRelease,
        config: &AddonConfig,
        to: &State,
        why: &str,
    ) -> Result<AddonChanges, Trouble> {
        let Some(old) = &present.fetched else {
            let message = format!("{why}; and the files of the present release can't be had");
            return Ok(AddonChanges::unknown(message));
        };
        let from = State {
            class: format!("{}/{}", present.class.0, present.class.1),
            kubernetes_version: self.cluster.kubernetes_version.clone(),
            ..State::default()
        };
        let old_config = stages::of_charts(old.bundle.addon.as_ref());
        let before = self.charts(old, &old_config, None, &from).await?;
        let before: BTreeMap<ObjectKey, Value> = before
            .objects
            .into_values()
            .flatten()
            .map(|(object, _)| self.in_namespace(object))
            .map(|object| (object.key, object.object))
            .collect();
        let charts = self.charts(fetched, config, None, to).await?;
        let wanted = |(object, create_only): (Manifest, bool)| {
            let manifest = self.in_namespace(object);
            let before = before.get(&manifest.key).cloned();
            let stays = before.as_ref().filter(|_| create_only);
            Wanted { after: Ok(stays.unwrap_or(&manifest.object).clone()), before, manifest }
        };
        let wanted: BTreeMap<String, Vec<Wanted>> = charts
            .objects
            .into_iter()
            .map(|(name, objects)| (name, objects.into_iter().map(wanted).collect()))
            .collect();
        let compared = (Compared::Rendering, why.to_owned());
        Ok(addons::changes(compared, config, &wanted, &self.recorded, &BTreeMap::new()))
    }

    /// Nobody can be asked which kinds have no namespace: the inventory tells, and what is well known.
    fn in_namespace(&self, manifest: Manifest) -> Manifest {
        let key = &manifest.key;
        let recorded = |row: &Row| row.group == key.group && row.kind == key.kind && row.namespace.is_empty();
        let has_none = CLUSTER_SCOPED.contains(&key.kind.as_str()) || self.recorded.iter().any(recorded);
        match (has_none, key.namespace.is_empty()) {
            (true, false) => manifest.without_namespace(),
            (false, true) => manifest.in_namespace(HELM_NAMESPACE),
            _ => manifest,
        }
    }

    /// The objects of each chart that some stage applies, for the Cluster as it would be.
    async fn charts(
        &self,
        release: &FetchedRelease,
        config: &AddonConfig,
        workload: Option<&Workload>,
        to: &State,
    ) -> Result<Charts, Trouble> {
        let planner = self.planner;
        let object = moved(self.object, to);
        let (client, kinds) = (planner.client.clone(), planner.kinds);
        let asked = Asked { client, kinds, inputs: None, cluster: self.cluster, object: &object, spec: &self.spec };
        let given = asked.given().await?;
        let has_own = given.user.as_object().is_some_and(|map| !map.is_empty());
        if has_own && !config.allow_values {
            let message = values::ValuesError::NotAllowed.to_string();
            return Err(Trouble::new(ErrorClass::Waiting, Reason::ValuesInvalid, message));
        }
        let names: Vec<&str> = config.charts().into_iter().collect();
        let applied: BTreeSet<String> = addons::stages(config)
            .into_iter()
            .filter(|(_, _, action)| *action == Action::Apply)
            .map(|(_, name, _)| name)
            .collect();
        let (client, kinds) = workload
            .map_or((planner.client.clone(), planner.kinds), |workload| (workload.client.clone(), &*workload.kinds));
        let served = match workload {
            None => Arc::default(),
            Some(_) => kinds.api_versions(&client).await.map_err(|error| {
                let message = format!("what the workload cluster serves can't be read: {}", refusal(&error).message);
                Trouble::new(ErrorClass::Transient, Reason::RenderFailed, message)
            })?,
        };
        let reader = Reader { client, kinds, only_namespace: None, secrets_of: None };
        let seed = seed_of_cluster(&self.cluster.namespace, &self.cluster.name);
        let mut charts = Charts::default();
        for stage in &applied {
            let invalid = |error: values::ValuesError| {
                Trouble::new(ErrorClass::Waiting, Reason::ValuesInvalid, error.to_string())
            };
            let user = values::of_user(&given.user, stage, &names).map_err(invalid)?;
            let place = (self.cluster.namespace.as_str(), stage.as_str());
            let values = planner.releases.addon_values(release, place, &given.data, user, &served).await?;
            let job = Job {
                release,
                part: Part::Addon { stage, values: &values, secret_values: given.secret, served: &served },
                reader: &reader,
                client: &planner.client,
                seed: &seed,
                existing: &BTreeSet::new(),
            };
            let previewed = planner.releases.preview(&job, workload.is_some()).await.map_err(|mut trouble| {
                let of = if stage.is_empty() { "the addon chart".to_owned() } else { format!("stage {stage}") };
                trouble.message = format!("{of}: {}", trouble.message);
                trouble
            })?;
            let policy = config.crds_of_upgrade(stage);
            let definitions = previewed.definitions;
            let with_policy = |object: Manifest| match (definitions.contains(&object.key), policy) {
                (true, CrdPolicy::Skip) => None,
                (is_definition, policy) => Some((object, is_definition && policy == CrdPolicy::Create)),
            };
            charts.objects.insert(stage.clone(), previewed.manifests.into_iter().filter_map(with_policy).collect());
            charts.looked_up.insert(stage.clone(), previewed.looked_up);
        }
        Ok(charts)
    }
}

/// The Cluster with another class and version.
fn moved(cluster: &Value, to: &State) -> Value {
    let (_, class) = to.class.split_once('/').unwrap_or_default();
    let mut topology = json!({"version": to.kubernetes_version});
    if cluster.pointer("/spec/topology/classRef").is_some_and(Value::is_object) {
        topology["classRef"] = json!({"name": class});
    } else {
        topology["class"] = class.into();
    }
    let mut cluster = cluster.clone();
    json_patch::merge(&mut cluster, &json!({"spec": {"topology": topology}}));
    cluster
}

/// Whether what an API server says to a dry run is what it says to the upgrade.
fn lasts(error: &kube::Error) -> Lasts {
    match error {
        // Its namespace is missing.
        kube::Error::Api(status) if status.code == 404 => Lasts::UntilTheRest,
        // A webhook may take no dry run.
        kube::Error::Api(status) if !matches!(status.code, 400 | 408 | 429 | 500..) => Lasts::Yes,
        _ => Lasts::Unknown,
    }
}

fn and_more(more: usize) -> String {
    if more == 0 { String::new() } else { format!("; and {more} more") }
}
