//! Tests against a real API server, with the real binary: one behaviour per file.
//!
//! They start the control plane of `hack/controlplane` themselves. `CLUSTERSTACK_USE_KUBECONFIG=1` takes the cluster of
//! `KUBECONFIG` instead, `KUBEBUILDER_ASSETS` an etcd and a kube-apiserver of there. Most of the time a test waits, so
//! more tests at once than there are cores are well: `cargo test --test e2e -- --test-threads=6`.
//!
//! Tests with Cluster API's own managers (`hack/cluster-api`) start a control plane of their own with them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::pedantic, missing_docs)]
#![expect(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "tests end by panicking")]

mod harness;

mod addon;
mod addon_values;
mod admission;
mod api;
mod broken;
mod charts;
mod cluster_api;
mod cluster_api_addons;
mod credentials;
mod defaults;
mod delete;
mod diff;
mod directory;
mod doctor;
mod drift;
mod faults;
mod flaky;
mod flux;
mod forge;
mod gitlab;
mod helm_hooks;
mod hooks;
mod image_full;
mod image_glance;
mod image_job;
mod image_job_status;
mod image_killed;
mod image_logs;
mod image_move;
mod image_pods;
mod image_queue;
mod image_release;
mod image_sample;
mod image_stop;
mod image_users;
mod install;
mod installed;
mod migrate_command;
mod migration;
mod moves;
mod node_images;
mod oci;
mod page;
mod people;
mod pod_template;
mod provider;
mod provider_contract;
mod prune;
mod publish;
mod real;
mod real_sources;
mod reconcile;
mod reinstalled;
mod replicas;
mod restart;
mod rights;
mod secrets;
mod seed;
mod select;
mod shared_settings;
mod shop;
mod signals;
mod silent;
mod source;
mod source_faults;
mod ssh;
mod stages;
mod traces;
mod trust;
mod upgrade;
mod versions;
mod workload_cluster;
