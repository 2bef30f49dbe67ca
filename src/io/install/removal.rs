//! How an installation is taken away: what runs first, then what it needs to end well, then what it left.

use std::collections::HashSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use kube::core::PartialObjectMeta;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::waiting::LOOK;
use super::{Change, InstallError, Installer, LEFT, REGISTERED, WORKLOADS, text};
use crate::api::{API_VERSION, MANAGED_BY as OPERATOR, MANAGED_BY_LABEL, MEMBER_LABEL, OWNER_KIND_LABEL};
use crate::core::install::{
    INSTALLED_IN, NAME, Owner, Waves, ending, held, is_left, is_marked, is_spent, key, owner, traces,
};
use crate::core::manifest::ObjectKey;
use crate::core::share::view::{SLACK, TERM};

impl Installer<'_> {
    /// Whether nothing of the installation is another tool's, which would bring it back.
    ///
    /// # Errors
    /// The first that is, or a refusal.
    pub async fn keeps(&self) -> Result<(), InstallError> {
        for (api_version, kind) in LEFT {
            for object in self.ours(api_version, kind).await? {
                if let Owner::Other(by) = owner(&object) {
                    return Err(InstallError::Foreign { object: key(&object).to_string(), by, release: None });
                }
            }
        }
        Ok(())
    }

    /// Deletes what runs the operator, and what that registered: nobody is to wait for it. Gives all that ends.
    ///
    /// # Errors
    /// The first refusal.
    pub async fn stop(&self, tell: &mut impl FnMut(&ObjectKey, Change)) -> Result<Vec<Value>, InstallError> {
        let mut ends = Vec::new();
        for (api_version, kind) in WORKLOADS {
            for object in self.all(api_version, kind, &self.labels()).await? {
                // An earlier run may have deleted it.
                if object["metadata"]["deletionTimestamp"].is_null() {
                    self.delete(&object).await?;
                    tell(&key(&object), Change::Removed);
                }
                ends.push(object);
            }
        }
        self.withdraw(&Waves::default(), tell).await?;
        Ok(ends)
    }

    /// Waits until the pods of these have ended: they give back their Leases, by rights that they need for it; `tell` hears what is
    /// waited for. What is left after `limit`.
    ///
    /// # Errors
    /// A refusal.
    pub async fn wait_ended(
        &self,
        ends: &[Value],
        limit: Duration,
        tell: &mut impl FnMut(&str),
    ) -> Result<Vec<String>, InstallError> {
        let began = Instant::now();
        let mut left = Vec::new();
        for object in ends.iter().filter(|_| !self.is_dry) {
            let mut said = HashSet::new();
            while self.live(object).await?.is_some_and(|live| live["metadata"]["uid"] == object["metadata"]["uid"]) {
                let name = key(object).to_string();
                let waits = match self.pods_of(object).await.map(|pods| ending(&name, &pods)) {
                    Ok(Some(waits)) => waits,
                    Ok(None) => break,
                    // Who may not look at pods waits for all of it.
                    Err(_) => format!("{name} to be gone"),
                };
                if began.elapsed() > limit {
                    left.push(waits);
                    break;
                }
                if said.insert(waits.clone()) {
                    tell(&waits);
                }
                sleep(LOOK).await;
            }
        }
        Ok(left)
    }

    /// Deletes what is left when the operator has ended: what was installed, what the operator registered, and the keys for it, and
    /// what replicas that had no time to clean up left. Definitions of kinds and the namespace stay.
    ///
    /// # Errors
    /// The first refusal.
    pub async fn remove(
        &self,
        tell: &mut impl FnMut(&ObjectKey, Change),
        waiting: &mut impl FnMut(&str),
    ) -> Result<(), InstallError> {
        for (api_version, kind) in LEFT.iter().filter(|left| !WORKLOADS.contains(left)) {
            for object in self.ours(api_version, kind).await? {
                self.delete(&object).await?;
                tell(&key(&object), Change::Removed);
            }
        }
        if !self.is_dry {
            // A replica may have registered it anew as it ended.
            self.withdraw(&Waves::default(), tell).await?;
        }
        // Another operator of this namespace has them, too.
        if self.has_other_operator().await? {
            return Ok(());
        }
        self.remove_certificates(tell).await?;
        self.remove_traces(tell, waiting).await
    }

    /// Whether another operator than this installation's is in the namespace.
    async fn has_other_operator(&self) -> Result<bool, InstallError> {
        let is_ours =
            |object: &Value| is_marked(object) && object["metadata"]["labels"][INSTALLED_IN] == self.namespace;
        for (api_version, kind) in WORKLOADS {
            let operators = self.labelled(api_version, kind, &format!("app.kubernetes.io/name={NAME}")).await?;
            let is_here = |object: &Value| object["metadata"]["namespace"] == self.namespace;
            if operators.iter().any(|object| is_here(object) && !is_ours(object)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes the Leases of replicas that died, and what those said of themselves: nobody else would, and who comes would wait for
    /// them. One that renews its Lease, outside of this cluster, say, keeps both.
    async fn remove_traces(
        &self,
        tell: &mut impl FnMut(&ObjectKey, Change),
        waiting: &mut impl FnMut(&str),
    ) -> Result<(), InstallError> {
        let before = self.leases().await?;
        let held = held(&before);
        if !held.is_empty() && !self.is_dry {
            waiting(&format!("Leases that were not given back, until nobody acts by them: {}", held.join(", ")));
            sleep(TERM + SLACK).await;
        }
        let leases = if held.is_empty() || self.is_dry { before.clone() } else { self.leases().await? };
        let shards = self.labelled(API_VERSION, "OperatorShard", "").await?;
        for object in traces(&before, &leases, &shards, self.namespace) {
            // At once: who is installed next looks at them.
            self.delete_by(object, DeleteParams::background()).await?;
            tell(&key(object), Change::Removed);
        }
        Ok(())
    }

    /// The Leases of replicas in the namespace.
    async fn leases(&self) -> Result<Vec<Value>, InstallError> {
        let mut leases = self.labelled("coordination.k8s.io/v1", "Lease", MEMBER_LABEL).await?;
        leases.retain(|lease| lease["metadata"]["namespace"] == self.namespace);
        Ok(leases)
    }

    /// Removes the certificates, and their keys, of what the operator registered here.
    async fn remove_certificates(&self, tell: &mut impl FnMut(&ObjectKey, Change)) -> Result<(), InstallError> {
        let mut registered = Vec::new();
        for (group, kind) in REGISTERED {
            registered.extend(self.registered(group, kind).await?);
        }
        // Those were removed, or would be.
        registered.retain(|object| !is_left(object, self.namespace, &Waves::default()));
        let registered: Vec<&str> = registered.iter().map(|object| text(&object["metadata"]["name"])).collect();
        let failed =
            |error| InstallError::Refused { object: "Secret".to_owned(), what: "listed", error: Box::new(error) };
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), self.namespace);
        let of_operator = ListParams::default().labels(&format!("{MANAGED_BY_LABEL}={OPERATOR}"));
        // Without what they hold.
        let secrets = secrets.list_metadata(&of_operator).await.map_err(failed)?;
        // What a release applied is labelled as its own.
        let is_applied = |secret: &PartialObjectMeta<Secret>| secret.labels().contains_key(OWNER_KIND_LABEL);
        let spent =
            secrets.items.into_iter().filter(|secret| !is_applied(secret) && is_spent(&secret.name_any(), &registered));
        for secret in spent {
            let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": secret.metadata});
            self.delete(&object).await?;
            tell(&key(&object), Change::Removed);
        }
        Ok(())
    }
}
