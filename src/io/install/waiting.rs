//! What an installation waits for.

use std::collections::HashSet;
use std::time::Duration;

use kube::api::{Api, DynamicObject, ListParams};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{InstallError, Installer, text};
use crate::core::install::{Waves, key, leaving, told, waits_for};

/// How often it is looked at what is waited for.
pub(super) const LOOK: Duration = Duration::from_millis(500);

impl Installer<'_> {
    pub(super) async fn established(&self, definition: &Value) -> Result<(), InstallError> {
        let began = Instant::now();
        loop {
            let live = self.live(definition).await?.unwrap_or_default();
            let conditions = live["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let is_established = conditions.iter().any(|one| one["type"] == "Established" && one["status"] == "True");
            let leaves = leaving(&live);
            if is_established && leaves.is_none() {
                return Ok(());
            }
            if began.elapsed() > Duration::from_secs(30) {
                let waited = began.elapsed();
                if let Some(why) = leaves {
                    return Err(InstallError::Leaving { object: key(definition), waited, why });
                }
                let waits = format!("{} is not established", key(definition));
                return Err(InstallError::Timeout { waited, waits, runs_on: Vec::new() });
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until what is being deleted is gone, for what is applied to it goes with it; `tell` hears what is waited for.
    ///
    /// # Errors
    /// It is not gone in time.
    pub async fn wait_gone(
        &self,
        waves: &Waves,
        limit: Duration,
        tell: &mut impl FnMut(&str),
    ) -> Result<(), InstallError> {
        let began = Instant::now();
        // What goes into a namespace that is being deleted is refused.
        for object in waves.objects().filter(|object| object["kind"] != "Namespace") {
            let mut said = HashSet::new();
            loop {
                let Some(why) = self.live(object).await?.as_ref().and_then(leaving) else { break };
                let waits = format!("{} is being deleted: {why}", key(object));
                if said.insert(waits.clone()) {
                    tell(&waits);
                }
                if began.elapsed() > limit {
                    return Err(InstallError::Leaving { object: key(object), waited: began.elapsed(), why });
                }
                sleep(LOOK).await;
            }
        }
        Ok(())
    }

    /// Waits until the operator runs as it was applied; `tell` hears what is waited for.
    ///
    /// # Errors
    /// It does not in time, with the reason of a pod.
    pub async fn wait(&self, waves: &Waves, limit: Duration, tell: &mut impl FnMut(&str)) -> Result<(), InstallError> {
        let began = Instant::now();
        for object in &waves.workloads {
            let mut said = HashSet::new();
            loop {
                let live = self.live(object).await?.unwrap_or_default();
                let Some(waits) = waits_for(&live) else { break };
                let pods = self.pods(object).await;
                let waits = told(&key(object).to_string(), &waits, &pods);
                if said.insert(waits.clone()) {
                    tell(&waits);
                }
                if began.elapsed() > limit {
                    let waited = began.elapsed();
                    // It only explains.
                    let runs_on = self.earlier(waves).await.unwrap_or_default();
                    let runs_on = runs_on.iter().map(ToString::to_string).collect();
                    return Err(InstallError::Timeout { waited, waits, runs_on });
                }
                sleep(LOOK).await;
            }
        }
        Ok(())
    }

    /// The pods of a workload; none where they can't be read, for they only explain.
    async fn pods(&self, workload: &Value) -> Vec<Value> {
        self.pods_of(workload).await.unwrap_or_default()
    }

    pub(super) async fn pods_of(&self, workload: &Value) -> Result<Vec<Value>, InstallError> {
        let failed = |error| InstallError::Refused { object: "Pod".to_owned(), what: "listed", error: Box::new(error) };
        let Some(kind) = self.kinds.get(self.client, "v1", "Pod").await.map_err(failed)? else { return Ok(Vec::new()) };
        let labels = workload["spec"]["selector"]["matchLabels"].as_object().into_iter().flatten();
        let labels: Vec<String> = labels.map(|(name, value)| format!("{name}={}", text(value))).collect();
        let namespace = text(&workload["metadata"]["namespace"]);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &kind.resource);
        let pods = api.list(&ListParams::default().labels(&labels.join(","))).await.map_err(failed)?;
        Ok(pods.items.iter().filter_map(|pod| serde_json::to_value(pod).ok()).collect())
    }
}
