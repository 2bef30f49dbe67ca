//! What the addon charts of a Cluster are given: its objects on the management cluster, and the values of its users.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};
use serde_json::{Map, Value};

use super::Pass;
use crate::api::cluster_addon::{ValuesKind, ValuesReference};
use crate::api::condition::Reason;
use crate::api::{CLUSTER_NAME_LABEL, ClusterAddonSpec};
use crate::core::addon::cluster::{Cluster, Reference, content, is_held};
use crate::core::addon::values::{self, ValuesError};
use crate::core::identity;
use crate::core::manifest::ObjectKey;
use crate::core::retry::ErrorClass;
use crate::core::secret_type::may_be_values;
use crate::core::status::Trouble;
use crate::io::apply::refusal;
use crate::io::inputs::{self, Inputs, Place, kubeconfig_name};
use crate::io::kinds::{Kind, Kinds};
use crate::io::observe;

/// What all addon charts of a Cluster are given.
pub(in crate::controllers) struct Given {
    /// `Cluster`, `ControlPlane` and `InfraCluster`.
    pub(in crate::controllers) data: Arc<Value>,
    /// The users' values, all layers merged.
    pub(in crate::controllers) user: Value,
    /// Some of these come from a Secret.
    pub(in crate::controllers) secret: bool,
}

impl Pass<'_> {
    /// Reads it, from the Cluster's namespace alone.
    pub(super) async fn given(&self) -> Result<Given, Trouble> {
        let asked = self.asks();
        self.ctx.inputs.settle(&self.place(), &asked.used());
        asked.given().await
    }

    /// Whether the Cluster's control plane waits for the version that is asked for. Until the one that it names is there, as in a restore,
    /// that is not known.
    pub(super) async fn is_held(&self) -> Result<bool, Trouble> {
        let control_plane = self.asks().referred(self.cluster.control_plane.as_ref()).await?;
        Ok(control_plane.is_some_and(|object| is_held(&object, &self.cluster.kubernetes_version)))
    }

    fn asks(&self) -> Asked<'_> {
        let (client, spec) = (self.ctx.clients.own(), &self.addon.spec);
        let (kinds, inputs) = (self.ctx.kinds.as_ref(), Some(&self.ctx.inputs));
        Asked { client, kinds, inputs, cluster: self.cluster, object: self.object, spec }
    }

    /// Namespace and name of the Cluster.
    pub(super) fn place(&self) -> Place {
        (self.cluster.namespace.clone(), self.cluster.name.clone())
    }
}

/// Whose values are read, and how.
pub(in crate::controllers) struct Asked<'a> {
    /// Reads the management cluster.
    pub(in crate::controllers) client: Client,
    /// The kinds that it serves.
    pub(in crate::controllers) kinds: &'a Kinds,
    /// Notices changes of what is read; `None` where nobody waits for them.
    pub(in crate::controllers) inputs: Option<&'a Arc<Inputs>>,
    /// The Cluster.
    pub(in crate::controllers) cluster: &'a Cluster,
    /// The same as charts see it.
    pub(in crate::controllers) object: &'a Value,
    /// What its ClusterAddon says of values.
    pub(in crate::controllers) spec: &'a ClusterAddonSpec,
}

impl Asked<'_> {
    /// Reads it, from the Cluster's namespace alone.
    pub(in crate::controllers) async fn given(&self) -> Result<Given, Trouble> {
        let control_plane = self.referred(self.cluster.control_plane.as_ref()).await?;
        let infrastructure = self.referred(self.cluster.infrastructure.as_ref()).await?;
        let data = values::data(self.object, control_plane.as_ref(), infrastructure.as_ref());
        let (mut layers, mut secret) = (Vec::new(), false);
        for reference in self.references()? {
            secret |= reference.kind == ValuesKind::Secret;
            layers.push(Value::Object(self.kept(&reference).await?));
        }
        layers.push(Value::Object(self.spec.values.clone()));
        Ok(Given { data: Arc::new(data), user: values::merged(layers), secret })
    }

    /// What the addons of the Cluster are made from, and its kubeconfig.
    fn used(&self) -> BTreeSet<ObjectKey> {
        let Cluster { namespace, name, .. } = self.cluster;
        let objects = [&self.cluster.control_plane, &self.cluster.infrastructure].into_iter().flatten();
        let objects = objects.map(|object| key_of(&object.group, &object.kind, namespace, &object.name));
        let values = self.references().unwrap_or_default();
        let values = values.into_iter().map(|reference| key_of("", word(reference.kind), namespace, &reference.name));
        let kubeconfig = key_of("", "Secret", namespace, &kubeconfig_name(name));
        objects.chain(values).chain([kubeconfig]).collect()
    }

    fn place(&self) -> Place {
        (self.cluster.namespace.clone(), self.cluster.name.clone())
    }

    /// Begins to notice changes of an object, before it is read.
    fn notice(&self, key: &ObjectKey, kind: Option<&Kind>) {
        if let Some(inputs) = self.inputs {
            inputs.uses(&self.place(), key, kind);
        }
    }

    /// What of an object was read.
    fn was_read(&self, key: &ObjectKey, content: Option<u64>) {
        if let Some(inputs) = self.inputs {
            inputs.read(&self.place(), key, content);
        }
    }

    async fn referred(&self, reference: Option<&Reference>) -> Result<Option<Value>, Trouble> {
        let Some(Reference { group, kind, name }) = reference else { return Ok(None) };
        if group.is_empty() {
            // Who may make Clusters would have read to him what he may not read: a Secret, for example.
            let message =
                format!("{kind} {name} is of no provider of Cluster API, so it is not read for the addons' values");
            return Err(Trouble::new(ErrorClass::Waiting, Reason::ValuesInvalid, message));
        }
        let client = self.client.clone();
        let failed = |error: &kube::Error| {
            let message = format!("{kind} {name} can't be read: {}", refusal(error).message);
            Trouble::new(ErrorClass::Transient, Reason::ValuesInvalid, message)
        };
        let served = self.kinds.preferred(&client, group, kind).await.map_err(|error| failed(&error))?;
        let missing = || {
            let message = format!("waiting for {kind} {name}, which the values of the addons may need");
            Trouble::new(ErrorClass::Waiting, Reason::ValuesInvalid, message)
        };
        // What is of no namespace is nobody's own.
        let served = served.filter(|kind| kind.namespaced).ok_or_else(missing)?;
        let key = key_of(group, kind, &self.cluster.namespace, name);
        self.notice(&key, Some(&served));
        let found = observe::api(&client, &served, &self.cluster.namespace).get_opt(&observe::segment(name)).await;
        let found = found.map_err(|error| failed(&error))?.map(|found| observe::plain(&found, &served));
        self.was_read(&key, found.as_ref().map(content));
        found.ok_or_else(missing).map(Some)
    }

    /// Where users keep values: what the Cluster's annotation names, then `spec.valuesFrom`.
    fn references(&self) -> Result<Vec<ValuesReference>, Trouble> {
        let mut references = Vec::new();
        for word in self.cluster.values.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let kind = match word.split_once('/') {
                Some(("ConfigMap", name)) => Some((ValuesKind::ConfigMap, name)),
                Some(("Secret", name)) => Some((ValuesKind::Secret, name)),
                _ => None,
            };
            let Some((kind, name)) = kind.filter(|(_, name)| !name.is_empty() && !name.contains('/')) else {
                let message = format!(
                    "annotation {} of the Cluster names {word:?}: write ConfigMap/<name> or Secret/<name>, separated by commas",
                    crate::api::ADDON_VALUES
                );
                return Err(Trouble::new(ErrorClass::Waiting, Reason::ValuesInvalid, message));
            };
            references.push(ValuesReference {
                kind,
                name: name.to_owned(),
                key: "values.yaml".to_owned(),
                optional: false,
            });
        }
        references.extend(self.spec.values_from.iter().cloned());
        Ok(references)
    }

    async fn kept(&self, reference: &ValuesReference) -> Result<Map<String, Value>, Trouble> {
        let ValuesReference { kind, name, key, optional } = reference;
        let (client, namespace) = (self.client.clone(), &self.cluster.namespace);
        let shown = format!("{} {name}", word(*kind));
        if let Err(problem) = identity::subdomain(name) {
            let message = format!("spec.valuesFrom names {} {name:?}: that {problem}", word(*kind));
            return Err(Trouble::new(ErrorClass::Invalid, Reason::ValuesInvalid, message));
        }
        let place = key_of("", word(*kind), namespace, name);
        self.notice(&place, None);
        let found = match kind {
            ValuesKind::ConfigMap => Api::<ConfigMap>::namespaced(client, namespace)
                .get_opt(&observe::segment(name))
                .await
                .map(|found| found.map(|map| (map.metadata, String::new(), map.data.unwrap_or_default().remove(key)))),
            ValuesKind::Secret => {
                Api::<Secret>::namespaced(client, namespace).get_opt(&observe::segment(name)).await.map(|found| {
                    let text = |bytes: ByteString| String::from_utf8_lossy(&bytes.0).into_owned();
                    found.map(|secret| {
                        let text = secret.data.unwrap_or_default().remove(key).map(text);
                        (secret.metadata, secret.type_.unwrap_or_default(), text)
                    })
                })
            }
        };
        if let Ok(found) = &found {
            let version = found.as_ref().map(|(metadata, ..)| inputs::version(metadata.resource_version.as_deref()));
            self.was_read(&place, version);
        }
        let found = found.map_err(|error| {
            let message = format!("{shown} can't be read: {}", refusal(&error).message);
            Trouble::new(ErrorClass::Transient, Reason::ValuesInvalid, message)
        })?;
        let waiting = |message: String| Trouble::new(ErrorClass::Waiting, Reason::ValuesInvalid, message);
        let invalid = |error: ValuesError| waiting(error.to_string());
        if let Some((metadata, of_type, _)) = &found {
            let labelled = metadata.labels.iter().flatten().find(|(label, _)| *label == CLUSTER_NAME_LABEL);
            if !may_be_values(of_type, labelled.map(|(_, of)| of.as_str()), &self.cluster.name) {
                return Err(waiting(format!(
                    "{shown} is of type {of_type}, which is for nobody else to use: correct what names it"
                )));
            }
        }
        match found.map(|(.., text)| text) {
            Some(Some(text)) => values::of_object(&format!("{shown}, key {key},"), &text).map_err(invalid),
            // As of references in pods (core/v1 ConfigMapKeySelector): the object or its key.
            None | Some(None) if *optional => Ok(Map::new()),
            None => Err(waiting(format!(
                "{shown} does not exist: create it, or correct what names it (an entry of valuesFrom may be optional)"
            ))),
            Some(None) => Err(waiting(format!("{shown} has no key {key}: add it, or correct what names it"))),
        }
    }
}

/// The identity of an object of the management cluster.
pub(super) fn key_of(group: &str, kind: &str, namespace: &str, name: &str) -> ObjectKey {
    let [group, kind, namespace, name] = [group, kind, namespace, name].map(ToOwned::to_owned);
    ObjectKey { group, kind, namespace, name }
}

fn word(kind: ValuesKind) -> &'static str {
    match kind {
        ValuesKind::ConfigMap => "ConfigMap",
        ValuesKind::Secret => "Secret",
    }
}
