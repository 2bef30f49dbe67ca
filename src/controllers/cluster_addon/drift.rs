//! Follows what was applied to a workload cluster, so that a change of it leads to a pass.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Pass;
use crate::core::manifest::ObjectKey;
use crate::core::ownership::Owner;
use crate::core::plan::{Action, Plan};
use crate::io::apply::Outcome;
use crate::io::drift::{Followed, Follower};
use crate::io::kinds::Kind;
use crate::io::observe::Live;
use crate::io::workload::Workload;

impl Pass<'_> {
    /// The objects of a plan as they are now are watched from now on.
    pub(super) fn follow(
        &self,
        (workload, owner): (&Workload, &Owner),
        (plan, outcomes): (&Plan, &BTreeMap<ObjectKey, Outcome>),
        (kinds, live): (&BTreeMap<ObjectKey, Kind>, &Live),
    ) {
        let followed =
            plan.steps.iter().filter(|step| !matches!(step.action, Action::Hold { .. })).filter_map(|step| {
                let key = &step.manifest.key;
                let sent = outcomes.get(key).and_then(|outcome| outcome.result.as_ref().ok());
                let version = sent.or_else(|| live.objects.get(key))?.pointer("/metadata/resourceVersion");
                let version = version.and_then(Value::as_str)?.to_owned();
                Some(Followed { key: key.clone(), kind: kinds.get(key)?.clone(), version })
            });
        let follower =
            Follower { cluster: self.place(), selector: owner.selector(), watches: self.ctx.watches.clone() };
        workload.drift.follow(&follower, followed.collect());
    }
}
