//! What the tests share: a control plane, a world per test, operators, Git repositories, and waiting.
//!
//! A test says what must become true and waits for it; it never sleeps for a time.

mod audit;
mod bad_line;
mod black_hole;
#[allow(dead_code, reason = "shared with the tests without a cluster")]
#[path = "../../tests/source/certificates.rs"]
mod certificates;
mod cluster_api;
#[path = "../../tests/source/connect_proxy.rs"]
mod connect_proxy;
mod control_plane;
#[allow(dead_code, reason = "shared with the tests without a cluster")]
#[path = "../../tests/source/forge.rs"]
mod forge;
mod front;
mod git;
mod git_server;
mod github;
#[allow(dead_code, reason = "shared with the tests without a cluster")]
#[path = "../../tests/image/server.rs"]
mod image_server;
mod images;
mod kubelet;
mod leftovers;
mod node;
mod operator;
#[path = "../../tests/destination/program.rs"]
mod program;
mod proxy;
#[path = "../../tests/destination/put_server.rs"]
mod put_server;
#[allow(dead_code, reason = "shared with the tests without a cluster")]
#[path = "../../tests/source/registry.rs"]
mod registry;
mod rights;
#[allow(dead_code, reason = "shared with the unit tests")]
#[path = "../../tests/source/sigstore.rs"]
mod sigstore;
mod ssh_server;
mod stacks;
mod tunnel;
mod wait;
mod world;

pub(crate) use audit::Request;
pub(crate) use bad_line::{BadLine, Mishap};
pub(crate) use black_hole::BlackHole;
pub(crate) use certificates::Authority;
pub(crate) use cluster_api::{clusterctl, listeners};
pub(crate) use connect_proxy::ConnectProxy;
pub(crate) use control_plane::{ControlPlane, client_of, install, workload};
pub(crate) use forge::{Asked, StandIn, content, page, sum};
pub(crate) use front::Front;
pub(crate) use git::Repo;
pub(crate) use git_server::{GitServer, Mood, Tls};
pub(crate) use github::GitHub;
pub(crate) use image_server::Server as ImageServer;
pub(crate) use images::{Images, names};
pub(crate) use kubelet::Kubelet;
pub(crate) use leftovers::{install_small_kind, leave_behind, small_kind};
pub(crate) use node::{IMAGE, Node, SHELL};
pub(crate) use operator::{Operator, free_address};
pub(crate) use program::Server as Program;
pub(crate) use proxy::{Fault, Proxy, Weather};
pub(crate) use put_server::{PutServer, TOKEN};
pub(crate) use registry::{Liar, Lie, RegistryServer, assets, push};
pub(crate) use rights::{OPERATOR, may};
pub(crate) use sigstore::{DURING, ISSUER, SUBJECT, Sigstore};
pub(crate) use ssh_server::SshServer;
pub(crate) use stacks::{CLASS, CLUSTER_API, IN_MEMORY, INFRASTRUCTURE, SETTINGS, cluster, cluster_of};
pub(crate) use tunnel::Tunnel;
pub(crate) use wait::{QUICK, check, skipped, wait_for, wait_within};
pub(crate) use world::{World, unique};
