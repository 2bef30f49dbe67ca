//! What the tests share: a control plane, a world per test, operators, Git repositories, and waiting.
//!
//! A test says what must become true and waits for it; it never sleeps for a time.

mod audit;
mod control_plane;
mod git;
mod git_server;
mod github;
mod leftovers;
mod operator;
mod proxy;
#[allow(dead_code, reason = "shared with the tests without a cluster")]
#[path = "../../tests/source/registry.rs"]
mod registry;
mod ssh_server;
mod stacks;
mod wait;
mod world;

pub(crate) use audit::Request;
pub(crate) use git::Repo;
pub(crate) use git_server::{GitServer, Mood};
pub(crate) use github::GitHub;
pub(crate) use leftovers::{install_small_kind, leave_behind, small_kind};
pub(crate) use operator::Operator;
pub(crate) use proxy::{Proxy, Weather};
pub(crate) use registry::{Liar, Lie, RegistryServer, assets};
pub(crate) use ssh_server::SshServer;
pub(crate) use stacks::{CLASS, CLUSTER_API, INFRASTRUCTURE, SETTINGS, cluster, cluster_of};
pub(crate) use wait::{QUICK, check, skipped, wait_for, wait_within};
pub(crate) use world::{World, unique};
