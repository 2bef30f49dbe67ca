//! What a workload cluster gets when: which stages run, what their charts are given, when one is done.
//!
//! ```text
//! Cluster ─cluster→ class, version, references ┐
//! release: stages, charts, value templates ────┼─stages→ what to apply now ─values, render→ objects
//! ClusterAddon: progress, values of the user ──┘
//! ```

pub mod adoption;
pub mod circuit;
pub mod cluster;
pub mod condition;
pub mod essential;
pub mod helm_hooks;
pub mod hooks;
pub mod kubeconfig;
pub mod stages;
pub mod upgrade_plan;
pub mod values;
