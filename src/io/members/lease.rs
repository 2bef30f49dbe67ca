//! A member's Lease: how it is written and read.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::ResourceExt;
use kube::api::ObjectMeta;

use crate::api::{MANAGED_BY, MANAGED_BY_LABEL, MEMBER_LABEL, MEMBERS, REACH, TOLD};
use crate::core::share::view::{LEASE, Sight};
use crate::core::share::{Member, Reach};

/// Longest part of a pod's name in the name of a Lease.
const LONGEST: usize = 200;

/// The name of a Lease: that of the pod or host, with a tail that no other life of it has.
pub(super) fn name_of(identity: &str) -> String {
    let host = identity.rsplit_once('_').map_or(identity, |(host, _)| host).to_lowercase();
    let mut name: String =
        host.chars().map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' { c } else { '-' }).collect();
    name.truncate(LONGEST);
    let name = name.trim_matches('-');
    format!("{}-{:08x}", if name.is_empty() { "operator" } else { name }, rand::random::<u32>())
}

/// A new Lease.
pub(super) fn made(name: &str, identity: &str, reach: &Reach) -> Lease {
    let labels = [(MEMBER_LABEL, "true"), (MANAGED_BY_LABEL, MANAGED_BY)];
    let annotations = [(REACH.to_owned(), serde_json::to_string(reach).unwrap_or_default())];
    let now = MicroTime(Timestamp::now());
    Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()),
            annotations: Some(BTreeMap::from(annotations)),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(identity.to_owned()),
            lease_duration_seconds: i32::try_from(LEASE.as_secs()).ok(),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }),
    }
}

/// The same Lease renewed; it says that its holder acts by the members of this digest, and takes what it takes now.
pub(super) fn renewed(mut lease: Lease, published: &str, told: Option<String>, reach: &Reach) -> Lease {
    lease.annotations_mut().insert(REACH.to_owned(), serde_json::to_string(reach).unwrap_or_default());
    if let Some(told) = told {
        lease.annotations_mut().insert(TOLD.to_owned(), told);
    }
    lease.annotations_mut().insert(MEMBERS.to_owned(), published.to_owned());
    lease.spec.get_or_insert_default().renew_time = Some(MicroTime(Timestamp::now()));
    lease.metadata.managed_fields = None;
    lease
}

/// The same Lease given back.
pub(super) fn released(mut lease: Lease) -> Lease {
    lease.spec.get_or_insert_default().holder_identity = None;
    lease.metadata.managed_fields = None;
    lease
}

/// Whether it is as it was before it was last written: the API server has an older state than it had.
pub(super) fn is_older(now: &Lease, written: &Lease) -> bool {
    let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref().map(|at| at.0));
    now.uid() == written.uid() && renewed(now).zip(renewed(written)).is_some_and(|(now, written)| now < written)
}

/// Its holder. One that can't be read has the widest reach.
pub(super) fn member(lease: &Lease) -> Member {
    let spec = lease.spec.clone().unwrap_or_default();
    let reach = lease.annotations().get(REACH).and_then(|text| serde_json::from_str(text).ok());
    let made = lease.creation_timestamp().map(|at| at.0.to_string()).unwrap_or_default();
    let acquired = spec.acquire_time.map(|at| at.0.to_string()).unwrap_or_default();
    Member { id: lease.name_any(), since: format!("{made} {acquired}"), reach: reach.unwrap_or_default() }
}

/// What is to be known of it.
pub(super) fn sight(lease: &Lease) -> Sight {
    let spec = lease.spec.clone().unwrap_or_default();
    Sight {
        member: member(lease),
        renewed: spec.renew_time.map(|at| at.0.to_string()).unwrap_or_default(),
        lasts: spec
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(LEASE, Duration::from_secs),
        published: lease.annotations().get(MEMBERS).cloned().unwrap_or_default(),
        released: spec.holder_identity.is_none_or(|holder| holder.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_says_who_it_is_and_what_it_takes() {
        let reach = Reach { classes: ["big".to_owned()].into(), ..Reach::default() };
        let name = name_of("Clusterstack_Operator.7-x_0badcafe");
        assert!(name.starts_with("clusterstack-operator-7-x-") && name.len() == 34, "{name}");
        assert!(name_of("_1").starts_with("operator-"));
        let lease = renewed(made(&name, "pod_1", &Reach::default()), "digest", None, &reach);
        let seen = sight(&lease);
        assert_eq!((seen.member.id.as_str(), &seen.member.reach, seen.lasts), (name.as_str(), &reach, LEASE));
        assert_eq!((seen.published.as_str(), seen.released), ("digest", false));
        assert!(sight(&released(lease)).released);
        assert!(sight(&Lease::default()).released);
    }

    #[test]
    fn a_lease_that_was_renewed_before_what_was_written_is_older() {
        let lease = |uid: &str, second: i64| {
            let mut lease = made("a", "a", &Reach::default());
            lease.metadata.uid = Some(uid.to_owned());
            lease.spec.get_or_insert_default().renew_time = Some(MicroTime(Timestamp::from_second(second).unwrap()));
            lease
        };
        for (now, written, expected) in [
            (lease("1", 5), lease("1", 9), true),
            (lease("1", 9), lease("1", 9), false),
            // A renewal without an answer.
            (lease("1", 9), lease("1", 5), false),
            (lease("2", 5), lease("1", 9), false),
            (Lease::default(), lease("1", 9), false),
        ] {
            assert_eq!(is_older(&now, &written), expected, "{now:?} {written:?}");
        }
    }
}
