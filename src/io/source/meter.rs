//! What is counted of the requests to sources.

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
    /// `ok`, `not_modified`, `rate_limited`, `unauthorized`, `not_found`, `failed`, `unreachable`.
    pub outcome: &'static str,
}

/// Requests to sources, and what is left of their quotas. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct SourceMetrics {
    /// Requests by what came of them.
    pub requests: Family<ByOutcome, Counter>,
    /// Requests that are left until the quota begins anew.
    pub quota_remaining: Family<BySource, Gauge>,
    /// Requests in a period.
    pub quota_limit: Family<BySource, Gauge>,
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
        self.requests.get_or_create(&ByOutcome { source: source.to_owned(), outcome }).inc();
    }

    pub(super) fn note(&self, source: &str, quota: &Quota) {
        let gauge = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let labels = BySource { source: source.to_owned() };
        self.quota_remaining.get_or_create(&labels).set(gauge(quota.remaining));
        self.quota_limit.get_or_create(&labels).set(gauge(quota.limit));
    }
}
