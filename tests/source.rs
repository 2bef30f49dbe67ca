//! Releases from real Git repositories and registries: on the disk, and behind real servers on loopback.

mod certificates;
mod connect_proxy;
mod directory;
mod forge;
mod github;
mod gitlab;
mod http;
mod https;
mod local;
mod oci;
mod oci_lies;
mod oci_login;
mod push;
mod registry;
mod remote;
mod repository;
mod server;
mod signed;
mod tags;

use std::path::{Path, PathBuf};

use clusterstack::core::name::ReleaseName;
use clusterstack::core::source::AllowList;
use clusterstack::io::source::git::Git;
use clusterstack::io::source::{Tag, Wanted};

/// Sources that may use these roots and hosts.
fn git(scratch: &Path, allow: &[&str]) -> Git {
    Git::new(AllowList::parse(allow.iter().copied()).unwrap(), scratch.join("scratch"), 4)
}

/// The directory with real input; `None`, and says so, where it is missing.
fn shared() -> Option<PathBuf> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    let shared = std::env::var_os("CLUSTERSTACK_SHARED").map_or_else(default, PathBuf::from);
    if shared.join("stacks/cluster-stacks.bundle").is_file() {
        return Some(shared);
    }
    eprintln!("SKIPPED: no real input at {} (set CLUSTERSTACK_SHARED)", shared.display());
    None
}

fn wanted<'a>(tag: &'a Tag, release: &'a ReleaseName) -> Wanted<'a> {
    Wanted { tag, release, trust: None, by_revision: false }
}
