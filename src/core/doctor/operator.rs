//! The operator and what it stands on.

use std::collections::BTreeMap;

use kube::ResourceExt;
use serde_json::Value;

use super::{Asked, Finding, Grade, NO_LOGIN, Read, Workload, condition, named, objects_of, some};
use crate::api;
use crate::core::build_info::BUILD;
use crate::core::cso::is_stopped;
use crate::core::install::{leaving, told, waits_for};

/// How many minors of Kubernetes behind the one of this binary are looked upon as usual: those that its project supports.
const MINORS: u64 = 3;

fn minor(version: &str) -> Option<u64> {
    version.trim_start_matches('v').split('.').nth(1)?.parse().ok()
}

pub(super) fn kubernetes(version: &Read<String>) -> Finding {
    const CHECK: &str = "kubernetes";
    let version = match version {
        Ok(version) => version,
        Err(why) if why.starts_with(NO_LOGIN) => {
            return Finding::new(CHECK, Grade::Bad, why, "log in anew: it is wrong, or has ended");
        }
        Err(why) => {
            return Finding::new(CHECK, Grade::Bad, why, "look at the kubeconfig and at the API server");
        }
    };
    let (Some(there), Some(ours)) = (minor(version), minor(BUILD.kubernetes)) else {
        return Finding::new(CHECK, Grade::Unknown, format!("{version} is no version that can be compared"), "");
    };
    let message = format!("the API server is {version}; this binary was made for {}", BUILD.kubernetes);
    match there {
        newer if newer > ours => {
            Finding::new(CHECK, Grade::Warning, message, "take a release of clusterstack that was made for it")
        }
        old if old + MINORS < ours => {
            Finding::new(CHECK, Grade::Warning, message, "its Kubernetes is out of support: upgrade it")
        }
        _ => Finding::good(CHECK, message),
    }
}

/// Whether all that is wanted is there; the API server adds defaults.
fn holds(there: &Value, wanted: &Value) -> bool {
    match (there, wanted) {
        (Value::Object(there), Value::Object(wanted)) => {
            wanted.iter().all(|(key, wanted)| there.get(key).is_some_and(|there| holds(there, wanted)))
        }
        (Value::Array(there), Value::Array(wanted)) => {
            there.len() == wanted.len() && there.iter().zip(wanted).all(|(there, wanted)| holds(there, wanted))
        }
        (there, wanted) => there == wanted || there.as_f64().is_some_and(|number| wanted.as_f64() == Some(number)),
    }
}

/// Whether each version that is wanted is served.
fn serves_all(there: &Value, wanted: &Value) -> bool {
    let is_served =
        |name: &Value| objects_of(&there["versions"]).any(|one| one["name"] == *name && one["served"] == true);
    objects_of(&wanted["versions"]).all(|version| is_served(&version["name"]))
}

pub(super) fn definitions(found: &Read<Vec<Value>>) -> Vec<Finding> {
    const CHECK: &str = "definitions";
    const REMEDY: &str = "clusterstack install, or clusterstack crds | kubectl apply --server-side -f -";
    const GOES: &str = "that can't be stopped any more: see what its objects wait for (kubectl get KIND -A, finalizers; a release that \
                        is in use waits until it is not); clusterstack install waits until they are gone, and makes them anew";
    let found = match found {
        Ok(found) => found,
        Err(why) => return vec![Finding::unknown(CHECK, why)],
    };
    let (mut missing, mut going, mut pending) = (Vec::new(), Vec::new(), Vec::new());
    let (mut unserved, mut other) = (Vec::new(), Vec::new());
    let all = api::custom_resource_definitions();
    for wanted in &all {
        let name = wanted.name_any();
        let Some(there) = found.iter().find(|there| there["metadata"]["name"] == name) else {
            missing.push(name);
            continue;
        };
        // What a definition of ours can't be turned into is told by its own tests.
        let wanted = serde_json::to_value(&wanted.spec).unwrap_or_default();
        if !there["metadata"]["deletionTimestamp"].is_null() {
            going.push(name);
        } else if condition(there, "Established").is_none_or(|(status, ..)| status != "True") {
            pending.push(name);
        } else if !serves_all(&there["spec"], &wanted) {
            unserved.push(name);
        } else if !holds(&there["spec"], &wanted) {
            other.push(name);
        }
    }
    let mut findings = Vec::new();
    for (names, grade, what, remedy) in [
        (missing, Grade::Bad, "not installed", REMEDY),
        (going, Grade::Bad, "being deleted, with all their objects", GOES),
        (pending, Grade::Bad, "not established", REMEDY),
        (unserved, Grade::Bad, "not served in the version that this binary works with", REMEDY),
        (other, Grade::Warning, "of another version than this binary", REMEDY),
    ] {
        if !names.is_empty() {
            let names = some(names.iter().map(String::as_str));
            findings.push(Finding::new(CHECK, grade, format!("{what}: {names}"), remedy));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::good(CHECK, format!("all {} are installed, as this binary has them", all.len())));
    }
    findings
}

pub(super) fn workloads(found: &Read<Vec<Workload>>) -> Vec<Finding> {
    const CHECK: &str = "operator";
    let found = match found {
        Ok(found) => found,
        Err(why) => return vec![Finding::unknown(CHECK, why)],
    };
    if found.is_empty() {
        let message = "neither a Deployment nor a StatefulSet of it is here";
        let remedy = "clusterstack install; one that was started otherwise shows among the replicas";
        return vec![Finding::new(CHECK, Grade::Warning, message, remedy)];
    }
    let mut findings = Vec::new();
    for workload in found {
        let kind = workload.object["kind"].as_str().unwrap_or_default();
        let name = format!("{kind} {}", named(&workload.object));
        if let Some(why) = leaving(&workload.object) {
            let remedy = "nothing, it goes on by itself; a pod whose node is gone for good goes by kubectl delete pod --force. \
                          clusterstack install makes it anew";
            findings.push(Finding::new(CHECK, Grade::Warning, format!("{name} is being deleted: {why}"), remedy));
            continue;
        }
        findings.push(match waits_for(&workload.object) {
            _ if workload.object["spec"]["replicas"] == 0 => {
                let remedy = "scale it up: kubectl scale --replicas, or clusterstack install";
                Finding::new(CHECK, Grade::Bad, format!("{name} is to have no replica, so nothing works"), remedy)
            }
            None => Finding::good(CHECK, format!("{name} is as it was rolled out")),
            Some(waits) => {
                let message = told(&name, &waits, &workload.pods);
                let remedy = "look at its pods: kubectl describe, kubectl logs --previous";
                Finding::new(CHECK, Grade::Bad, message, remedy)
            }
        });
        findings.extend(match &workload.missing_account {
            Some(account) => Some(no_account(&name, account)),
            None => workload.rights.as_ref().map(|rights| self::rights(&name, rights)),
        });
    }
    findings
}

fn no_account(workload: &str, account: &str) -> Finding {
    let message =
        format!("{workload} works as ServiceAccount {account}, which is not there: all of its requests are refused");
    let remedy = "clusterstack install, which makes it and restarts the pods: they hold tokens of the one that is gone";
    Finding::new("rights", Grade::Bad, message, remedy)
}

/// The Go operator, where it runs: it works on the same objects.
pub(super) fn cso(deployments: &[Value]) -> Vec<Finding> {
    let runs = |one: &&Value| !is_stopped(one) && leaving(one).is_none();
    let tell = |one: &Value| {
        let message = format!("Deployment {}, the Go operator (CSO), works on the same objects", named(one));
        Finding::new("operator", Grade::Bad, message, "clusterstack migrate-from-cso")
    };
    deployments.iter().filter(runs).map(tell).collect()
}

fn rights(workload: &str, asked: &Read<Vec<Asked>>) -> Finding {
    const CHECK: &str = "rights";
    let asked = match asked {
        Ok(asked) => asked,
        Err(why) => return Finding::unknown(CHECK, why),
    };
    let (mut missing, mut narrow): (ByRole<'_>, ByRole<'_>) = (BTreeMap::new(), BTreeMap::new());
    for one in asked.iter().filter(|one| one.namespace.is_empty() && !one.is_allowed) {
        let of = |other: &&Asked| (other.role, &other.what) == (one.role, &one.what) && !other.namespace.is_empty();
        let there: Vec<&Asked> = asked.iter().filter(of).collect();
        let denied: Vec<&str> =
            there.iter().filter(|other| !other.is_allowed).map(|other| other.namespace.as_str()).collect();
        match (one.may_be_narrow, there.is_empty(), denied.is_empty()) {
            (false, ..) => missing.entry(one.role).or_default().push(one.what.clone()),
            (true, true, _) => narrow.entry(one.role).or_default().push(one.what.clone()),
            (true, false, false) => {
                let what = format!("{} in {}", one.what, some(denied.into_iter()));
                missing.entry(one.role).or_default().push(what);
            }
            // Bound where it is needed.
            (true, false, true) => {}
        }
    }
    if !missing.is_empty() {
        let message = format!("{workload} may not {}", by_role(&missing));
        return Finding::new(
            CHECK,
            Grade::Bad,
            message,
            "clusterstack install, or apply the roles of deploy/ of its version",
        );
    }
    if !narrow.is_empty() {
        let message = format!("{workload} may not, in the whole cluster, {}", by_role(&narrow));
        let remedy = "bind the role, or bind it in the namespaces that need it: docs/rights.md";
        return Finding::new(CHECK, Grade::Warning, message, remedy);
    }
    Finding::good(CHECK, format!("{workload} may do all that it has to"))
}

/// What is not allowed, by the role that gives it.
type ByRole<'a> = BTreeMap<&'a str, Vec<String>>;

fn by_role(missing: &ByRole<'_>) -> String {
    let told = missing.iter().map(|(role, what)| format!("{} (role {role})", some(what.iter().map(String::as_str))));
    told.collect::<Vec<_>>().join("; ")
}

pub(super) fn cluster_api(versions: &Read<Vec<String>>) -> Finding {
    const CHECK: &str = "clusterApi";
    match versions {
        Err(why) => Finding::unknown(CHECK, why),
        Ok(versions) if versions.is_empty() => {
            let remedy = "install it before the first ClusterStack: clusterctl init";
            Finding::new(CHECK, Grade::Warning, "no Clusters of Cluster API are served", remedy)
        }
        Ok(versions) if versions.iter().any(|version| BUILD.cluster_api.split(", ").any(|ours| ours == version)) => {
            Finding::good(CHECK, format!("Clusters are served as {}", versions.join(", ")))
        }
        Ok(versions) => {
            let message = format!("Clusters are served as {}; {} is read", versions.join(", "), BUILD.cluster_api);
            Finding::new(CHECK, Grade::Bad, message, "take a release of clusterstack that was made for it")
        }
    }
}
