//! Tests against a real API server, with the real binary: one behaviour per file.
//!
//! They start the control plane of `hack/controlplane` themselves. `CLUSTERSTACK_USE_KUBECONFIG=1` takes the cluster of
//! `KUBECONFIG` instead, `KUBEBUILDER_ASSETS` an etcd and a kube-apiserver of there. Most of the time a test waits, so
//! more tests at once than there are cores are well: `cargo test --test e2e -- --test-threads=6`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::pedantic, missing_docs)]
#![expect(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "tests end by panicking")]

mod harness;

mod api;
mod broken;
mod delete;
mod directory;
mod drift;
mod flaky;
mod forge;
mod install;
mod migration;
mod oci;
mod provider;
mod prune;
mod publish;
mod real;
mod restart;
mod rights;
mod seed;
mod select;
mod signals;
mod source;
mod trust;
mod upgrade;
