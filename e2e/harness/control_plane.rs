//! The API server of all tests, started once: the cluster of KUBECONFIG, an envtest directory, or `hack/controlplane`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::{await_condition, conditions::is_crd_established};
use kube::{Api, Client, Config, ResourceExt};
use tokio::sync::OnceCell;

use super::rights;
use super::wait::{LONG, wait_for};

/// The root of the repository.
pub(crate) const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A running control plane.
pub(crate) struct ControlPlane {
    pub(crate) kubeconfig: PathBuf,
    /// Only that of `hack/controlplane` has one.
    pub(crate) audit_log: Option<PathBuf>,
    /// Whether Kubernetes' controllers run: envtest has none.
    controllers: bool,
    /// Of the operator's ServiceAccount, with the rights that are shipped.
    operator: PathBuf,
}

static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();

/// The control plane, started by the first test that asks.
pub(crate) async fn get() -> &'static ControlPlane {
    PLANE.get_or_init(start).await
}

fn use_kubeconfig() -> bool {
    std::env::var("CLUSTERSTACK_USE_KUBECONFIG").is_ok_and(|v| v == "1")
}

/// Whether the environment names another control plane than that of `hack/controlplane`.
pub(super) fn is_given() -> bool {
    use_kubeconfig() || std::env::var_os("KUBEBUILDER_ASSETS").is_some()
}

/// Whether nothing of it is seen by anybody else, and later.
pub(super) fn ends_with_the_tests(plane: &ControlPlane) -> bool {
    !use_kubeconfig() && PLANE.get().is_some_and(|shared| std::ptr::eq(shared, plane))
}

async fn start() -> ControlPlane {
    let mut plane = if use_kubeconfig() {
        let kubeconfig = std::env::var_os("KUBECONFIG").expect("CLUSTERSTACK_USE_KUBECONFIG=1 needs KUBECONFIG");
        ControlPlane { kubeconfig: kubeconfig.into(), audit_log: None, controllers: true, operator: PathBuf::new() }
    } else if let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS") {
        envtest(Path::new(&assets))
    } else {
        ours(&directory())
    };
    let client = plane.client().await;
    wait_for("the API server", || async {
        client.apiserver_version().await.map(|_| ()).map_err(|error| error.to_string())
    })
    .await;
    install_definitions(&client).await;
    plane.ship_rights(&client).await;
    plane
}

/// A directory of this process, away from the source tree; those of processes that are gone are removed.
pub(super) fn directory() -> PathBuf {
    let parent = std::env::temp_dir().join("clusterstack-e2e");
    std::fs::create_dir_all(&parent).expect("no temporary directory");
    for entry in std::fs::read_dir(&parent).expect("no temporary directory").flatten() {
        if !Path::new("/proc").join(entry.file_name()).exists() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    parent.join(std::process::id().to_string())
}

/// The one of `hack/controlplane`, empty.
pub(super) fn ours(dir: &Path) -> ControlPlane {
    // It ends with the process of the tests.
    run(Command::new(format!("{ROOT}/hack/controlplane/up"))
        .args(["--owner", &std::process::id().to_string()])
        .arg(dir));
    ControlPlane {
        kubeconfig: dir.join("kubeconfig"),
        audit_log: Some(dir.join("audit.log")),
        controllers: true,
        operator: PathBuf::new(),
    }
}

/// etcd and kube-apiserver as envtest has them; they end with the process of the tests.
fn envtest(assets: &Path) -> ControlPlane {
    let dir = directory();
    run(Command::new(format!("{ROOT}/hack/envtest"))
        .args(["--owner", &std::process::id().to_string()])
        .arg(assets)
        .arg(&dir));
    ControlPlane { kubeconfig: dir.join("kubeconfig"), audit_log: None, controllers: false, operator: PathBuf::new() }
}

pub(super) fn run(command: &mut Command) {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = status.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}

static WORKLOAD: OnceCell<Option<ControlPlane>> = OnceCell::const_new();

/// The API server of a workload cluster, started by the first test that asks; `None`, and a visible word, where it can't be
/// built.
pub(crate) async fn workload() -> Option<&'static ControlPlane> {
    let start = || async {
        let dir = directory().join("workload");
        let up = Command::new(format!("{ROOT}/hack/controlplane/up"))
            .args(["--owner", &std::process::id().to_string()])
            .arg(&dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status();
        if !up.is_ok_and(|status| status.success()) {
            super::wait::skipped("addons: no second control plane can be started");
            return None;
        }
        Some(ControlPlane {
            kubeconfig: dir.join("kubeconfig"),
            audit_log: Some(dir.join("audit.log")),
            controllers: true,
            operator: PathBuf::new(),
        })
    };
    WORKLOAD.get_or_init(start).await.as_ref()
}

/// Real input that is too large for the repository; `None` where it is missing.
pub(crate) fn shared() -> Option<PathBuf> {
    let dir = std::env::var_os("CLUSTERSTACK_SHARED").map_or_else(|| Path::new(ROOT).join("../shared"), PathBuf::from);
    dir.join("stacks/cluster-stacks.bundle").is_file().then_some(dir)
}

/// An empty one with the kinds of Cluster API, to install the operator in, called `name`; `None`, and a visible word, on a
/// given cluster.
pub(super) async fn bare(name: &str, test: &str) -> Option<&'static ControlPlane> {
    if is_given() {
        super::wait::skipped(format_args!("{test}: it is installed on hack/controlplane only, not in a given cluster"));
        return None;
    }
    let plane = ours(&directory().join(format!("bare-{name}")));
    install_all(&plane.client().await, cluster_api_definitions()).await;
    // It ends with the process of the tests, if not before.
    Some(Box::leak(Box::new(plane)))
}

/// Ends one that nobody else uses: it takes processor time from the others.
pub(super) fn end(plane: &ControlPlane) {
    let directory = plane.kubeconfig.parent();
    let down = directory.map(|dir| Command::new(format!("{ROOT}/hack/controlplane/down")).arg(dir).status());
    if !down.is_some_and(|status| status.is_ok_and(|status| status.success())) {
        eprintln!("the control plane of {} goes on to the end of the tests", plane.kubeconfig.display());
    }
}

/// One of its own with our CRDs, those of Cluster API and the rights of operators; `None`, and a visible word, where another
/// one is to be used.
pub(super) async fn started(name: &str, test: &str) -> Option<ControlPlane> {
    if is_given() {
        super::wait::skipped(format_args!("{test}: pods run on hack/controlplane only, not in a given cluster"));
        return None;
    }
    let mut plane = ours(&directory().join(name));
    let client = plane.client().await;
    install_definitions(&client).await;
    plane.ship_rights(&client).await;
    Some(plane)
}

/// Installs our CRDs and those of Cluster API.
async fn install_definitions(client: &Client) {
    let ours = clusterstack::api::custom_resource_definitions();
    install_all(client, ours.into_iter().chain(cluster_api_definitions()).collect()).await;
}

async fn install_all(client: &Client, definitions: Vec<CustomResourceDefinition>) {
    futures::future::join_all(definitions.iter().map(|definition| install(client, definition))).await;
}

/// The CRDs of Cluster API: the ones of real input, else those of its Go modules.
fn cluster_api_definitions() -> Vec<CustomResourceDefinition> {
    // Several tests may ask at once: each has its own.
    let own = tempfile::tempdir().expect("no directory");
    let dir = shared().map_or_else(
        || {
            let dir = own.path().join("crds");
            run(Command::new(format!("{ROOT}/hack/cluster-api-crds")).arg(&dir));
            dir
        },
        |shared| shared.join("crds"),
    );
    let mut definitions = Vec::new();
    for entry in std::fs::read_dir(&dir).expect("no CRDs").flatten() {
        let text = std::fs::read_to_string(entry.path()).expect("unreadable CRD");
        definitions
            .push(serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", entry.path().display())));
    }
    definitions
}

/// Installs a CRD and waits until it is served.
pub(crate) async fn install(client: &Client, definition: &CustomResourceDefinition) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = definition.name_any();
    let params = PatchParams::apply("e2e").force();
    api.patch(&name, &params, &Patch::Apply(definition)).await.unwrap_or_else(|error| panic!("CRD {name}: {error}"));
    let established = tokio::time::timeout(LONG, await_condition(api, &name, is_crd_established())).await;
    established.unwrap_or_else(|_| panic!("CRD {name} is not established")).expect("no watch on CRDs");
}

impl ControlPlane {
    /// Whether objects go with their owners.
    pub(crate) fn collects_garbage(&self) -> bool {
        self.controllers
    }

    /// What operators of tests reach it by: the operator's own ServiceAccount.
    pub(crate) fn operator_kubeconfig(&self) -> &Path {
        &self.operator
    }

    /// Gives the operator's ServiceAccount the rights that are shipped, once.
    pub(super) async fn ship_rights(&mut self, client: &Client) {
        let directory = directory();
        std::fs::create_dir_all(&directory).expect("no directory");
        let directory =
            if self.audit_log.is_some() { self.kubeconfig.parent().expect("no directory") } else { &directory };
        self.operator = rights::ship(client, &self.kubeconfig, directory, self.controllers).await;
    }

    /// A client of the administrator; one per test, since it lives in the test's runtime.
    pub(crate) async fn client(&self) -> Client {
        client_of(&self.kubeconfig).await
    }
}

pub(crate) async fn client_of(kubeconfig: &Path) -> Client {
    let read = Kubeconfig::read_from(kubeconfig).expect("unreadable kubeconfig");
    let config =
        Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.expect("unusable kubeconfig");
    Client::try_from(config).expect("no client")
}
