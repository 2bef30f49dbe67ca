//! Metrics of builds.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Labels of a counter by what happened.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByEvent {
    /// `claimed`, `step_finished`, `step_repeated`, `retried`, `failed`, `cancelled`, `holder_lost`, `succeeded`, `removed`.
    pub event: &'static str,
}

/// Metrics of builds.
#[derive(Clone, Debug, Default)]
pub struct BuildMetrics {
    events: Family<ByEvent, Counter>,
    /// Builds that wait for a place.
    pub queued: Gauge,
    /// Builds that have one.
    pub running: Gauge,
}

impl BuildMetrics {
    /// Adds them to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("node_image_events", "What happened to builds of node images", self.events.clone());
        registry.register("node_images_queued", "Builds of node images that wait for a place", self.queued.clone());
        registry.register("node_images_running", "Builds of node images that have a place", self.running.clone());
    }

    /// Counts what happened.
    pub fn count(&self, event: &'static str) {
        self.events.get_or_create(&ByEvent { event }).inc();
    }

    /// How many wait, and how many have a place.
    pub fn set(&self, (queued, running): (usize, usize)) {
        self.queued.set(i64::try_from(queued).unwrap_or(i64::MAX));
        self.running.set(i64::try_from(running).unwrap_or(i64::MAX));
    }
}
