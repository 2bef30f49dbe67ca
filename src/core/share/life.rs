//! Whether a replica lives, as others can tell from outside: by its Lease.
//!
//! What it said of itself last stays when it ends without a word.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;

use super::view::LEASE;

/// How many times over a Lease has to have run out: the clocks of its holder and of the API server differ, and an answer may be late.
const TIMES: i64 = 2;

/// Leases by their namespace, or why they could not be read.
pub type Leases = BTreeMap<String, Result<Vec<Lease>, String>>;

/// What a Lease says of its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// It lives.
    Lives,
    /// It does not; why that is known.
    Ended(String),
}

/// What the Leases say of the replica whose Lease has this name.
///
/// # Errors
/// They could not be read.
pub fn life(leases: &Leases, (namespace, name): (&str, &str), now: Timestamp) -> Result<Life, String> {
    let of_namespace = match leases.get(namespace) {
        Some(found) => found.as_ref().map_err(Clone::clone)?,
        None => return Err(format!("Leases of namespace {namespace} were not read")),
    };
    let lease = of_namespace.iter().find(|lease| lease.name_any() == name);
    Ok(lease.map_or_else(|| Life::Ended("its Lease is gone".to_owned()), |lease| of_lease(lease, now)))
}

fn of_lease(lease: &Lease, now: Timestamp) -> Life {
    let spec = lease.spec.clone().unwrap_or_default();
    if spec.holder_identity.is_none_or(|holder| holder.is_empty()) {
        return Life::Ended("its Lease was given back".to_owned());
    }
    let lasts =
        spec.lease_duration_seconds.map_or_else(|| i64::try_from(LEASE.as_secs()).unwrap_or(i64::MAX), i64::from);
    let Some(renewed) = spec.renew_time else {
        return Life::Ended("its Lease was never renewed".to_owned());
    };
    let age = now.duration_since(renewed.0).as_secs();
    if age <= lasts.saturating_mul(TIMES) {
        return Life::Lives;
    }
    Life::Ended(format!("its Lease of {lasts} s was renewed {age} s ago"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_lease_that_ran_out_is_no_life() {
        let now: Timestamp = "2026-01-01T00:01:12Z".parse().unwrap();
        let lease = |name: &str, holder: &str, renewed: &str| -> Lease {
            serde_json::from_value(json!({
                "metadata": {"name": name},
                "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed},
            }))
            .unwrap()
        };
        let leases: Leases = BTreeMap::from([
            (
                "cs".to_owned(),
                Ok(vec![
                    lease("fresh", "a", "2026-01-01T00:01:02.000000Z"),
                    // The clock of its holder is ahead.
                    lease("ahead", "a", "2026-01-01T00:05:00.000000Z"),
                    lease("late", "a", "2026-01-01T00:00:43.000000Z"),
                    lease("dead", "a", "2026-01-01T00:00:00.000000Z"),
                    lease("back", "", "2026-01-01T00:01:02.000000Z"),
                    Lease { metadata: lease("never", "a", "2026-01-01T00:01:02.000000Z").metadata, ..Lease::default() },
                ]),
            ),
            ("secret".to_owned(), Err("forbidden".to_owned())),
        ]);
        let of = |name| life(&leases, ("cs", name), now);
        for name in ["fresh", "ahead", "late"] {
            assert_eq!(of(name), Ok(Life::Lives), "{name}");
        }
        for (name, why) in [
            ("dead", "its Lease of 15 s was renewed 72 s ago"),
            ("back", "its Lease was given back"),
            ("never", "its Lease was given back"),
            ("none", "its Lease is gone"),
        ] {
            assert_eq!(of(name), Ok(Life::Ended(why.to_owned())), "{name}");
        }
        assert_eq!(life(&leases, ("secret", "a"), now), Err("forbidden".to_owned()));
        assert!(life(&leases, ("else", "a"), now).is_err());
    }
}
