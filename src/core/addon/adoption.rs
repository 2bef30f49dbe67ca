//! What the Go operator left in a workload cluster. It empties its inventory when a stage is done, but labels what it
//! applies.

use serde_json::Value;

use crate::api::{CSO_FIELD_MANAGER, ClusterAddonSpec, ClusterAddonStatus, FIELD_MANAGER, OWNER_NAME_LABEL};
use crate::core::addon::helm_hooks::is_hook;
use crate::core::fields;
use crate::core::inventory::was_applied;
use crate::core::manifest::label;

/// Whether there may be objects of the Go operator that no inventory of ours holds: it worked on the Cluster, and we never
/// applied anything.
pub fn is_due(spec: &ClusterAddonSpec, status: &ClusterAddonStatus) -> bool {
    let never_applied = status.resources.iter().chain(&status.retained).all(|row| !was_applied(row));
    let has_stages_of_its_own = status.release.is_empty() && !status.stages.is_empty();
    never_applied && (!spec.cluster_stack.is_empty() || !status.resources.is_empty() || has_stages_of_its_own)
}

/// Whether a live object with the Go operator's label becomes ours: it applied it last, nobody else claims it, and it came
/// from no Helm hook, which are never pruned.
pub fn is_taken_over(live: &Value) -> bool {
    fields::entry(live, CSO_FIELD_MANAGER).is_some()
        && fields::entry(live, FIELD_MANAGER).is_none()
        && label(live, OWNER_NAME_LABEL).is_none()
        && !is_hook(live)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::cluster_addon::StageStatus;
    use crate::api::cluster_stack_release::Resource;
    use crate::core::inventory::ABOUT_TO_APPLY;
    use serde_json::json;

    #[test]
    fn it_is_looked_for_until_something_was_applied() {
        let spec = |release: &str| ClusterAddonSpec { cluster_stack: release.into(), ..ClusterAddonSpec::default() };
        let status = |release: &str, digests: &[&str], stages: usize| ClusterAddonStatus {
            release: release.into(),
            resources: digests.iter().map(|d| Resource { digest: (*d).into(), ..Resource::default() }).collect(),
            stages: vec![StageStatus::default(); stages],
            ..ClusterAddonStatus::default()
        };
        for (name, spec, status, expected) in [
            ("a new Cluster", spec(""), status("", &[], 0), false),
            ("the Go operator was done", spec("v1"), status("", &[], 0), true),
            ("it was in the middle of its first stages", spec(""), status("", &[], 2), true),
            ("its inventory is there", spec(""), status("", &[""], 0), true),
            ("our first pass was cut off", spec("v1"), status("v1", &["", ABOUT_TO_APPLY], 1), true),
            ("all of it was refused", spec("v1"), status("v1", &["", "a."], 1), true),
            ("we applied", spec("v1"), status("v1", &["a.b", ""], 1), false),
            ("ours, nothing applied yet", spec(""), status("v1", &[], 1), false),
        ] {
            assert_eq!(is_due(&spec, &status), expected, "{name}");
        }
    }

    #[test]
    fn only_what_it_applied_last_is_taken_over() {
        let of = |managers: &[&str], more: Value| {
            let entries = managers.iter().map(|m| json!({"manager": m, "operation": "Apply", "fieldsV1": {}}));
            let mut live = json!({"metadata": {"managedFields": entries.collect::<Vec<_>>()}});
            json_patch::merge(&mut live, &more);
            live
        };
        for (name, live, expected) in [
            ("its own", of(&["kubectl"], json!({})), true),
            ("ours by now", of(&["kubectl", "clusterstack"], json!({})), false),
            ("labelled by somebody", of(&["somebody"], json!({})), false),
            ("a hook", of(&["kubectl"], json!({"metadata": {"annotations": {"helm.sh/hook": "pre-install"}}})), false),
            ("another owner's", of(&["kubectl"], json!({"metadata": {"labels": {OWNER_NAME_LABEL: "x"}}})), false),
        ] {
            assert_eq!(is_taken_over(&live), expected, "{name}");
        }
    }
}
