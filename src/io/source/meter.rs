//! What is counted of the requests to sources.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::api::cluster_stack_source::Quota;

/// Labels of what is known of a source.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct BySource {
    /// Host and repository: `github.com/owner/repo`.
    pub source: String,
}

/// Labels of a counter of requests.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByOutcome {
    /// Host and repository: `github.com/owner/repo`.
    pub source: String,
    /// One of `OUTCOMES`.
    pub outcome: &'static str,
}

/// What can come of a request.
const OUTCOMES: [&str; 7] =
    ["ok", "not_modified", "rate_limited", "unauthorized", "not_found", "failed", "unreachable"];

/// Sources that are told of: whoever may name sources could name new ones for ever. The one that was asked least lately goes first.
const MOST_TOLD: usize = 1000;
/// For how long a source that nobody asks is told of.
const TOLD: Duration = Duration::from_hours(24);

/// Requests to sources, and what is left of their quotas. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct SourceMetrics {
    /// Requests by what came of them.
    pub requests: Family<ByOutcome, Counter>,
    /// Requests that are left until the quota begins anew.
    pub quota_remaining: Family<BySource, Gauge>,
    /// Requests in a period.
    pub quota_limit: Family<BySource, Gauge>,
    /// When each source was asked last.
    asked: Arc<Mutex<HashMap<String, Instant>>>,
}

impl SourceMetrics {
    /// Adds them to the metrics that are shown.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("source_requests", "Requests to sources by outcome", self.requests.clone());
        let left = "Requests left in the source's quota";
        registry.register("source_quota_remaining", left, self.quota_remaining.clone());
        registry.register("source_quota_limit", "Requests in a period of the source's quota", self.quota_limit.clone());
    }

    pub(super) fn count(&self, source: &str, outcome: &'static str) {
        debug_assert!(OUTCOMES.contains(&outcome), "{outcome} would not go with its source");
        self.told_of(source, Instant::now());
        self.requests.get_or_create(&ByOutcome { source: source.to_owned(), outcome }).inc();
    }

    pub(super) fn note(&self, source: &str, quota: &Quota) {
        self.told_of(source, Instant::now());
        let gauge = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let labels = BySource { source: source.to_owned() };
        self.quota_remaining.get_or_create(&labels).set(gauge(quota.remaining));
        self.quota_limit.get_or_create(&labels).set(gauge(quota.limit));
    }

    /// Tells no longer of those that were not asked for long, and makes room for one that is new.
    fn told_of(&self, source: &str, now: Instant) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = asked.get_mut(source) {
            *last = now;
            return;
        }
        let mut gone: Vec<String> =
            asked.extract_if(|_, last| now.duration_since(*last) > TOLD).map(|(source, _)| source).collect();
        if asked.len() >= MOST_TOLD
            && let Some(longest) = asked.iter().min_by_key(|(_, last)| **last).map(|(source, _)| source.clone())
        {
            asked.remove(&longest);
            gone.push(longest);
        }
        asked.insert(source.to_owned(), now);
        for source in gone {
            for outcome in OUTCOMES {
                self.requests.remove(&ByOutcome { source: source.clone(), outcome });
            }
            let labels = BySource { source };
            self.quota_remaining.remove(&labels);
            self.quota_limit.remove(&labels);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(registry: &Registry) -> usize {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        text.lines().filter(|line| line.contains("{source=")).count()
    }

    #[test]
    fn sources_that_nobody_asks_are_told_of_no_longer_and_never_too_many() {
        let metrics = SourceMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        metrics.note("a/r", &Quota { limit: 9, remaining: 5, ..Quota::default() });
        for outcome in OUTCOMES {
            metrics.count("a/r", outcome);
        }
        assert_eq!(shown(&registry), OUTCOMES.len() + 2);
        for n in 1..MOST_TOLD {
            metrics.count(&format!("b/{n}"), "ok");
        }
        assert_eq!(shown(&registry), OUTCOMES.len() + 1 + MOST_TOLD);
        metrics.count("b/new", "ok");
        assert_eq!(shown(&registry), MOST_TOLD, "the first one made room");
        metrics.told_of("c", Instant::now() + 2 * TOLD);
        assert_eq!(shown(&registry), 0, "none was asked since");
    }
}
