//! What replicas say of themselves, and whether they live.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::{Finding, Grade, Read, some};
use crate::api::{OperatorShard, OperatorShardStatus};
use crate::core::build_info::BUILD;
use crate::core::share::life::{Leases, Life, life};

const CHECK: &str = "replicas";
/// How long a replica that has come may take to say what it is, and all of them to agree who leads.
const SETTLES: SignedDuration = SignedDuration::from_secs(60);
const COME_BACK: &str = "start the operator, or see why it can't reach the API server: look at its pods and their logs; what is left of an \
                         operator that is not to come back goes by kubectl delete operatorshard NAME";
const WAITS: &str = "within a minute they agree; if not, look at the log of the one that is named and at its Lease";

pub(super) fn check(found: &Read<Vec<OperatorShard>>, leases: &Leases, now: Timestamp) -> Vec<Finding> {
    let found = match found {
        Ok(found) => found,
        Err(why) => return vec![Finding::unknown(CHECK, why)],
    };
    if found.is_empty() {
        let message = "no replica says that it works";
        let remedy = "start the operator; one with --leader-elect=false says nothing here";
        return vec![Finding::new(CHECK, Grade::Bad, message, remedy)];
    }
    let Seen { live, settling, gone, ended, unknown } = seen(found, leases, now);
    let mut findings = Vec::new();
    if !gone.is_empty() {
        let message = format!("not at work, whatever they said last: {}", some(gone.iter().map(String::as_str)));
        findings.push(Finding::new(CHECK, Grade::Bad, message, COME_BACK));
    }
    if live.is_empty() && settling.is_empty() && gone.is_empty() {
        let message = format!("no replica is at work; these have ended: {}", some(ended.iter().map(String::as_str)));
        findings.push(Finding::new(CHECK, Grade::Bad, message, COME_BACK));
    }
    findings.extend(of_words(&live));
    findings.extend(of_versions(&live));
    findings.extend(of_leaders(&live, &settling));
    if !settling.is_empty() {
        let names: Vec<String> = settling.iter().map(|shard| shard.name_any()).collect();
        let message = format!("just come, and not settled yet: {}", some(names.iter().map(String::as_str)));
        findings.push(Finding::new(CHECK, Grade::Unknown, message, "look again in a minute"));
    }
    if !unknown.is_empty() {
        let why: Vec<&str> = unknown.iter().map(String::as_str).collect();
        let message = format!("{} say what they are; whether they live is not known: {}", found.len(), why.join("; "));
        findings.push(Finding::unknown(CHECK, &message));
    } else if findings.is_empty() {
        findings.push(Finding::good(CHECK, format!("{} at work, one leads", live.len())));
    }
    findings
}

/// Replicas by what their Leases say.
#[derive(Default)]
struct Seen<'a> {
    /// Those that live, or of which it is not known.
    live: Vec<&'a OperatorShard>,
    /// Those that came a moment ago and have not found their place.
    settling: Vec<&'a OperatorShard>,
    /// Those that ended without a word, and why that is known.
    gone: Vec<String>,
    /// Those that ended and said so, of which traces are left: why that is known.
    ended: Vec<String>,
    /// Why it is not known.
    unknown: BTreeSet<String>,
}

fn seen<'a>(found: &'a [OperatorShard], leases: &Leases, now: Timestamp) -> Seen<'a> {
    let mut seen = Seen::default();
    for shard in found {
        let says_so = status(shard).ready || status(shard).leader;
        match life(leases, (&shard.spec.lease_namespace, &shard.name_any()), now) {
            Ok(Life::Ended(why)) if says_so => seen.gone.push(format!("{} ({why})", shard.name_any())),
            Ok(Life::Ended(why)) => seen.ended.push(format!("{} ({why})", shard.name_any())),
            _ if is_settling(shard, now) => seen.settling.push(shard),
            Ok(_) => seen.live.push(shard),
            Err(why) => {
                seen.live.push(shard);
                seen.unknown.insert(why);
            }
        }
    }
    seen
}

fn is_settling(shard: &OperatorShard, now: Timestamp) -> bool {
    let OperatorShardStatus { ready, version, .. } = status(shard);
    let is_new = shard.creation_timestamp().is_some_and(|made| now.duration_since(made.0) < SETTLES);
    is_new && (version.is_empty() || !ready)
}

fn status(shard: &OperatorShard) -> OperatorShardStatus {
    shard.status.clone().unwrap_or_default()
}

fn of_words(found: &[&OperatorShard]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut tell = |grade, shards: Vec<String>, what: &str, remedy: &str| {
        if !shards.is_empty() {
            let message = format!("{what}: {}", some(shards.iter().map(String::as_str)));
            findings.push(Finding::new(CHECK, grade, message, remedy));
        }
    };
    let with = |is: &dyn Fn(&OperatorShardStatus) -> bool| -> Vec<String> {
        found.iter().filter(|shard| is(&status(shard))).map(|shard| shard.name_any()).collect()
    };
    tell(Grade::Bad, with(&|status| !status.ready), "not at work", WAITS);
    let refused = |status: &OperatorShardStatus| status.settings.as_ref().is_some_and(|one| !one.refused.is_empty());
    let reasons = found.iter().filter_map(|shard| Some(status(shard).settings?.refused)).find(|text| !text.is_empty());
    let what = format!("settings refused ({})", reasons.unwrap_or_default());
    tell(Grade::Bad, with(&refused), &what, "correct the ConfigMap of --settings");
    let behind = |status: &OperatorShardStatus| {
        !refused(status) && status.settings.as_ref().is_some_and(|one| one.running != one.wanted)
    };
    tell(Grade::Warning, with(&behind), "settings not taken yet", "wait for the restart of these replicas");
    findings
}

fn of_versions(found: &[&OperatorShard]) -> Option<Finding> {
    let versions = found.iter().map(|shard| status(shard).version);
    let versions: BTreeSet<String> = versions.filter(|version| !version.is_empty()).collect();
    let versions: Vec<&str> = versions.iter().map(String::as_str).collect();
    if versions.len() > 1 {
        let message = format!("versions {} are at work together", versions.join(", "));
        let remedy = "that is right in a roll-out alone: see whether it has come to its end";
        return Some(Finding::new(CHECK, Grade::Warning, message, remedy));
    }
    (!versions.is_empty() && versions != [BUILD.version]).then(|| {
        let message = format!("they are of version {}, this binary is of {}", versions.join(", "), BUILD.version);
        Finding::new(CHECK, Grade::Warning, message, "use the binary of the operator's version")
    })
}

fn of_leaders(found: &[&OperatorShard], settling: &[&OperatorShard]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut leaders: BTreeMap<&str, usize> = BTreeMap::new();
    for shard in found.iter().chain(settling) {
        *leaders.entry(&shard.spec.lease_namespace).or_default() += usize::from(status(shard).leader);
    }
    // Who leads is found out with those that came.
    let is_settling = |namespace: &str| settling.iter().any(|shard| shard.spec.lease_namespace == namespace);
    let wrong = |(namespace, leaders): &(&&str, &usize)| **leaders != 1 && !(**leaders == 0 && is_settling(namespace));
    for (namespace, leaders) in leaders.iter().filter(wrong) {
        let message = format!("{leaders} of those of namespace {namespace} lead");
        findings.push(Finding::new(CHECK, Grade::Bad, message, WAITS));
    }
    if leaders.len() > 1 {
        let message = format!("operators of {} namespaces share this cluster", leaders.len());
        let remedy = "each must have namespaces or a --watch-filter of its own";
        findings.push(Finding::new(CHECK, Grade::Warning, message, remedy));
    }
    findings
}
