//! What a replica leaves beside its Lease: its `OperatorShard`. Whoever comes finds it there also when somebody deleted the
//! Lease, and waits for the one who may not know it yet.

use std::collections::BTreeSet;

use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::patience::{Failed, Patience};
use crate::api::{API_VERSION, FIELD_MANAGER, OperatorShard, OperatorShardSpec};
use crate::io::stored;

/// The traces of those who share a namespace of Leases.
pub(super) struct Traces {
    api: Api<OperatorShard>,
    namespace: String,
    patience: Patience,
    /// Those of earlier lives of this process: nobody acts by them.
    own: BTreeSet<String>,
}

impl Traces {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Self {
            api: Api::all(client),
            namespace: namespace.to_owned(),
            patience: Patience::default(),
            own: BTreeSet::new(),
        }
    }

    /// Leaves one of this name; those of others that are there. None where the API server has no such kind.
    pub(super) async fn leave(&mut self, name: &str, identity: &str) -> Result<Vec<String>, String> {
        let client = self.api.clone().into_client();
        let params = ListParams::default();
        let listed = stored::list_cluster_wide::<OperatorShard>(&client, &params);
        let (listed, left_out) = match self.patience.answer(listed).await {
            // An installation of before has no such kind, and leaves no traces.
            Err(Failed::Gone) => return Ok(Vec::new()),
            listed => listed.map_err(|failed| failed.text("OperatorShards can't be listed"))?,
        };
        // No replica wrote such a one: nobody is waited for.
        for problem in left_out {
            tracing::warn!("{problem}; delete it");
        }
        for shard in listed.iter().filter(|shard| self.own.contains(&shard.name_any())) {
            // What stays is removed by the leader.
            let _ = self.patience.answer(self.api.delete(&shard.name_any(), &DeleteParams::default())).await;
        }
        self.own.insert(name.to_owned());
        let spec = OperatorShardSpec { lease_namespace: self.namespace.clone(), identity: identity.to_owned() };
        let trace =
            json!({"apiVersion": API_VERSION, "kind": "OperatorShard", "metadata": {"name": name}, "spec": spec});
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let left = self.patience.answer(self.api.patch(name, &params, &Patch::Apply(trace))).await;
        left.map_err(|failed| failed.text("an OperatorShard can't be written"))?;
        let others = listed.into_iter().filter(|shard| shard.spec.lease_namespace == self.namespace);
        Ok(others.map(|shard| shard.name_any()).filter(|other| !self.own.contains(other)).collect())
    }
}
