//! What is left of replicas that ended without a chance to clean up: their Leases, and what they said of themselves.

use serde_json::Value;

/// Names of the replicas whose Leases nobody has given back: they may work still.
pub fn held(leases: &[Value]) -> Vec<&str> {
    let is_held = |lease: &&Value| lease["spec"]["holderIdentity"].as_str().is_some_and(|holder| !holder.is_empty());
    leases.iter().filter(is_held).map(name).collect()
}

/// What may go of `leases`, and of `shards` with that namespace: what is not of a replica that renewed its Lease since these were
/// read as `before`, for longer than one acts without.
pub fn traces<'a>(before: &[Value], leases: &'a [Value], shards: &'a [Value], namespace: &str) -> Vec<&'a Value> {
    let works = |lease: &&Value| {
        let known = before.iter().find(|known| name(known) == name(lease));
        let is_same = known.is_some_and(|known| known["spec"] == lease["spec"]);
        !held(std::slice::from_ref(*lease)).is_empty() && !is_same
    };
    let at_work: Vec<&str> = leases.iter().filter(works).map(name).collect();
    let shards = shards.iter().filter(|shard| shard["spec"]["leaseNamespace"] == namespace);
    leases.iter().chain(shards).filter(|object| !at_work.contains(&name(object))).collect()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease(name: &str, holder: &str, renewed: &str) -> Value {
        json!({"kind": "Lease", "metadata": {"name": name}, "spec": {"holderIdentity": holder, "renewTime": renewed}})
    }

    #[test]
    fn what_is_of_a_replica_that_works_stays() {
        let before = [lease("dead", "a", "1"), lease("back", "", "1"), lease("works", "b", "1")];
        assert_eq!(held(&before), ["dead", "works"]);
        let leases = [
            lease("dead", "a", "1"),
            lease("back", "", "1"),
            lease("works", "b", "2"),
            lease("came", "c", "1"),
            lease("ended", "", "2"),
        ];
        let shard = |name: &str, namespace: &str| json!({"kind": "OperatorShard", "metadata": {"name": name}, "spec": {"leaseNamespace": namespace}});
        let shards = [shard("dead", "ns"), shard("works", "ns"), shard("gone", "ns"), shard("other", "other")];
        let found: Vec<(&str, &str)> = traces(&before, &leases, &shards, "ns")
            .iter()
            .map(|object| (object["kind"].as_str().unwrap(), name(object)))
            .collect();
        assert_eq!(
            found,
            [
                ("Lease", "dead"),
                ("Lease", "back"),
                ("Lease", "ended"),
                ("OperatorShard", "dead"),
                ("OperatorShard", "gone"),
            ]
        );
    }
}
