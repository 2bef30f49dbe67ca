//! What the operator asked for, from the API server's audit log.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

/// Requests by what they are.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Counts {
    /// All but those of Leases.
    pub(crate) all: usize,
    /// Of these the ones that write.
    pub(crate) writes: usize,
    /// Of these the ones to a status.
    pub(crate) status: usize,
    /// Those that list.
    pub(crate) lists: usize,
    /// Of Leases.
    pub(crate) leases: usize,
    /// Each verb and resource, or path where it is none of a resource.
    pub(crate) of: BTreeMap<String, usize>,
}

impl Counts {
    /// Of the lines of an audit log.
    pub(crate) fn of(lines: &str) -> Self {
        let mut counts = Self::default();
        for event in lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            counts.add(&event);
        }
        counts
    }

    fn add(&mut self, event: &Value) {
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        if !text("/userAgent").starts_with("clusterstack/") {
            return;
        }
        let (verb, resource, sub) = (text("/verb"), text("/objectRef/resource"), text("/objectRef/subresource"));
        if resource == "leases" {
            self.leases += 1;
            return;
        }
        self.all += 1;
        if !matches!(verb, "get" | "list" | "watch") {
            self.writes += 1;
            self.status += usize::from(sub == "status");
        }
        self.lists += usize::from(verb == "list");
        let path = text("/requestURI").split('?').next().unwrap_or_default();
        let name = match (resource, sub) {
            ("", _) => format!("{verb} {path}"),
            (_, "") => format!("{verb} {resource}"),
            _ => format!("{verb} {resource}/{sub}"),
        };
        *self.of.entry(name).or_default() += 1;
    }
}
