//! Cluster API's own managers, on a control plane of their own that is started once.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tokio::sync::OnceCell;

use super::control_plane::{self, ControlPlane, ROOT};
use super::wait::skipped;

static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();
/// Another one, to move Clusters to.
static OTHER: OnceCell<ControlPlane> = OnceCell::const_new();

/// The control plane with the managers; `None`, and a visible word, where they can't be had.
pub(super) async fn get(test: &str) -> Option<&'static ControlPlane> {
    if control_plane::is_given() {
        skipped(format_args!(
            "{test}: Cluster API's managers run on hack/controlplane only, not on a given API server"
        ));
        return None;
    }
    let go = Command::new("go").arg("version").stdout(Stdio::null()).status();
    if !go.is_ok_and(|status| status.success()) {
        skipped(format_args!("{test}: Cluster API's managers are built with Go, which is missing"));
        return None;
    }
    Some(PLANE.get_or_init(|| start(directory())).await)
}

/// Another one like it. Only where there is the first.
pub(super) async fn other() -> &'static ControlPlane {
    OTHER.get_or_init(|| start(control_plane::directory().join("other-with-cluster-api"))).await
}

/// `clusterctl`, of the managers' version.
pub(crate) fn clusterctl() -> PathBuf {
    let built =
        Command::new(format!("{ROOT}/hack/cluster-api/build")).stderr(Stdio::inherit()).output().expect("no build");
    let program = String::from_utf8(built.stdout).expect("no path");
    Path::new(program.trim()).with_file_name("clusterctl")
}

fn directory() -> PathBuf {
    control_plane::directory().join("with-cluster-api")
}

async fn start(dir: PathBuf) -> ControlPlane {
    let mut plane = control_plane::ours(&dir);
    // They end with the control plane, and that with the process of the tests.
    control_plane::run(Command::new(format!("{ROOT}/hack/cluster-api/up")).arg(&dir));
    let client = plane.client().await;
    let definitions = clusterstack::api::custom_resource_definitions();
    futures::future::join_all(definitions.iter().map(|one| control_plane::install(&client, one))).await;
    plane.ship_rights(&client).await;
    plane
}

/// The addresses on which the managers listen.
pub(crate) fn listeners() -> Vec<IpAddr> {
    let sockets = sockets();
    let table = |name: &str| {
        let text = std::fs::read_to_string(Path::new("/proc/self/net").join(name)).expect("no table of sockets");
        text.lines().skip(1).map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    let lines = table("tcp").into_iter().chain(table("tcp6"));
    lines
        .filter_map(|line| {
            // Number, own address, the other's, state (0A: listening), five more, inode.
            let fields: Vec<&str> = line.split_whitespace().collect();
            (fields[3] == "0A" && sockets.contains(fields[9])).then(|| address(fields[1]))
        })
        .collect()
}

/// The inodes of the managers' sockets.
fn sockets() -> HashSet<String> {
    let supervisor = std::fs::read_to_string(directory().join("cluster-api/pid")).expect("no managers");
    let ours = |process: &Path| {
        let stat = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
        // The name, in parentheses, may hold anything; then state and parent.
        stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)) == Some(supervisor.trim())
    };
    let processes = std::fs::read_dir("/proc").expect("no /proc").flatten().map(|entry| entry.path());
    let open = processes.filter(|path| ours(path)).flat_map(|path| std::fs::read_dir(path.join("fd")).expect("ended"));
    let links = open.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())).collect()
}

/// An address as the kernel prints it: words in hexadecimal, each in the order of the machine, and a port.
fn address(text: &str) -> IpAddr {
    let digits = text.split(':').next().unwrap_or_default();
    let bytes: Vec<u8> = (0..digits.len() / 8)
        .flat_map(|at| u32::from_str_radix(&digits[at * 8..at * 8 + 8], 16).expect("no address").to_ne_bytes())
        .collect();
    match <[u8; 4]>::try_from(&bytes[..]) {
        Ok(bytes) => Ipv4Addr::from(bytes).into(),
        Err(_) => Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[..]).expect("no address")).to_canonical(),
    }
}
