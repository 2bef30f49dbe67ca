//! The API server of the demo: that of `KUBECONFIG`, of an envtest directory, or of `hack/controlplane`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::{await_condition, conditions::is_crd_established};
use kube::{Api, Client, Config, ResourceExt};

use super::place::Place;
use super::process;
use crate::api::{self, ClusterStack};
use crate::cli::report::Hinted;
use crate::core::yaml;

/// The namespace of everything that the demo creates.
pub(super) const NAMESPACE: &str = "clusterstack-demo";
/// How long a definition may take until it is served.
const ESTABLISHED: Duration = Duration::from_mins(1);
/// Between two looks.
const TICK: Duration = Duration::from_millis(100);
/// Definitions that are created at once.
const AT_ONCE: usize = 32;
/// How long the operator may take to delete what it applied.
const GONE: Duration = Duration::from_mins(1);

/// Which API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The one that `KUBECONFIG` names.
    Given(Option<OsString>),
    /// etcd and kube-apiserver of a directory, as envtest has them.
    Envtest(PathBuf),
    /// All of a control plane.
    Own,
}

impl Choice {
    /// As the environment says.
    pub(super) fn of_environment() -> Self {
        let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        if set("CLUSTERSTACK_USE_KUBECONFIG").is_some_and(|value| value == "1") {
            Self::Given(set("KUBECONFIG"))
        } else {
            set("KUBEBUILDER_ASSETS").map_or(Self::Own, |dir| Self::Envtest(dir.into()))
        }
    }
}

/// A running API server.
pub(super) struct Cluster {
    /// As administrator.
    pub(super) client: Client,
    /// What `KUBECONFIG` has to be; what it is already where this is none.
    pub(super) kubeconfig: Option<OsString>,
    is_given: bool,
    has_namespace: bool,
}

/// An API of Cluster API in the demo's namespace.
pub(super) fn clusters(client: &Client, kind: &str, plural: &str) -> Api<DynamicObject> {
    let resource = ApiResource {
        group: "cluster.x-k8s.io".into(),
        version: "v1beta1".into(),
        api_version: "cluster.x-k8s.io/v1beta1".into(),
        kind: kind.into(),
        plural: plural.into(),
    };
    Api::namespaced_with(client.clone(), NAMESPACE, &resource)
}

impl Cluster {
    /// Starts it, where it is not given. It ends with this process.
    pub(super) async fn start(choice: Choice, root: &Path, place: &Place) -> Result<Self> {
        let dir = place.join("controlplane");
        let owner = OsString::from(std::process::id().to_string());
        let kubeconfig = match &choice {
            Choice::Given(kubeconfig) => {
                let config = Config::infer().await.context("CLUSTERSTACK_USE_KUBECONFIG=1, but no cluster is named")?;
                return Self::new(config, kubeconfig.clone(), true);
            }
            Choice::Envtest(assets) => {
                let args = [OsStr::new("--owner"), &owner, assets.as_os_str(), dir.as_os_str()];
                process::run(&root.join("hack/envtest"), &args).await?;
                dir.join("kubeconfig")
            }
            Choice::Own => {
                let args = [OsStr::new("--owner"), &owner, dir.as_os_str()];
                process::run(&root.join("hack/controlplane/up"), &args).await?;
                dir.join("kubeconfig")
            }
        };
        let read = Kubeconfig::read_from(&kubeconfig).context("the control plane left no kubeconfig")?;
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
        Self::new(config, Some(kubeconfig.into()), false)
    }

    fn new(config: Config, kubeconfig: Option<OsString>, is_given: bool) -> Result<Self> {
        Ok(Self {
            client: Client::try_from(config).context("the kubeconfig gives no client")?,
            kubeconfig,
            is_given,
            has_namespace: false,
        })
    }

    /// Whether something of the demo has to be deleted, because the cluster goes on.
    pub(super) fn is_to_be_cleaned(&self) -> bool {
        self.is_given && self.has_namespace
    }

    /// Installs our definitions and Cluster API's, and makes the namespace. What is there stays as it is.
    pub(super) async fn prepare(&mut self, root: &Path, place: &Place) -> Result<usize> {
        let mut definitions = api::custom_resource_definitions();
        let installed: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        if installed.get_metadata_opt("clusters.cluster.x-k8s.io").await.context("no answer")?.is_none() {
            let dir = place.join("cluster-api");
            process::run(&root.join("hack/cluster-api-crds"), &[dir.as_os_str()]).await?;
            definitions.extend(read(&dir)?);
        }
        let count = definitions.len();
        stream::iter(definitions).map(Ok).try_for_each_concurrent(AT_ONCE, |d| install(&self.client, d)).await?;
        self.make_namespace().await?;
        Ok(count)
    }

    async fn make_namespace(&mut self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let metadata = ObjectMeta { name: Some(NAMESPACE.into()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        match namespaces.create(&PostParams::default(), &namespace).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Err(Hinted::new(
                format!("the cluster has a namespace {NAMESPACE} already: another demo runs there, or was left"),
                format!("end it with hack/demo --stop, or delete it: kubectl delete namespace {NAMESPACE}"),
            )
            .into()),
            result => {
                result.context("cannot make a namespace")?;
                self.has_namespace = true;
                Ok(())
            }
        }
    }

    /// Deletes what the demo created in a cluster that goes on, with the operator's help. Definitions stay, others may use
    /// them by now.
    pub(super) async fn clean(&self) -> Result<()> {
        if !self.is_to_be_cleaned() {
            return Ok(());
        }
        let cluster = clusters(&self.client, "Cluster", "clusters");
        let stacks: Api<ClusterStack> = Api::namespaced(self.client.clone(), NAMESPACE);
        let everything = ListParams::default();
        cluster.delete_collection(&DeleteParams::default(), &everything).await.context("cannot delete the Cluster")?;
        stacks.delete_collection(&DeleteParams::default(), &everything).await.context("cannot delete ClusterStacks")?;
        let emptied = async {
            while !stacks.list_metadata(&everything).await?.items.is_empty() {
                tokio::time::sleep(TICK).await;
            }
            Ok::<_, kube::Error>(())
        };
        let emptied = tokio::time::timeout(GONE, emptied).await;
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        namespaces.delete(NAMESPACE, &DeleteParams::default()).await.context("cannot delete the namespace")?;
        emptied.context("the ClusterStack is not gone yet")?.context("cannot list ClusterStacks")?;
        let gone = async {
            while namespaces.get_metadata_opt(NAMESPACE).await?.is_some() {
                tokio::time::sleep(TICK).await;
            }
            Ok::<_, kube::Error>(())
        };
        tokio::time::timeout(GONE, gone).await.context("the namespace is not gone yet")?.context("no answer")
    }
}

/// Ends the control plane of a directory, if one runs there.
pub(super) async fn stop(root: &Path, place: &Place) -> Result<()> {
    let dir = place.join("controlplane");
    let tool = if dir.join("envtest.pid").exists() { "hack/envtest" } else { "hack/controlplane/down" };
    let args = [OsStr::new("--stop"), dir.as_os_str()];
    let skipped = usize::from(tool == "hack/controlplane/down");
    process::run(&root.join(tool), &args[skipped..]).await
}

fn read(dir: &Path) -> Result<Vec<CustomResourceDefinition>> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<PathBuf>>>()?;
    let definition = |path: PathBuf| {
        let text = std::fs::read_to_string(&path)?;
        yaml::from_str(&text).with_context(|| format!("{} is no definition", path.display()))
    };
    paths.into_iter().map(definition).collect()
}

async fn install(client: &Client, definition: CustomResourceDefinition) -> Result<()> {
    let name = definition.name_any();
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    match api.create(&PostParams::default(), &definition).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        result => {
            result.with_context(|| format!("cannot install the definition {name}"))?;
        }
    }
    let established = await_condition(api, &name, is_crd_established());
    let served = async {
        established.await.context("cannot watch definitions")?;
        first_lists(client, &definition).await
    };
    let served = tokio::time::timeout(ESTABLISHED, served).await;
    served.with_context(|| format!("definition {name} is not served"))?
}

/// Lists the objects of a new definition once. The API server fills its cache then, and asks whoever lists meanwhile to
/// come back a second later (429).
async fn first_lists(client: &Client, definition: &CustomResourceDefinition) -> Result<()> {
    let spec = &definition.spec;
    for version in spec.versions.iter().filter(|version| version.served) {
        let resource = ApiResource {
            group: spec.group.clone(),
            version: version.name.clone(),
            api_version: format!("{}/{}", spec.group, version.name),
            kind: spec.names.kind.clone(),
            plural: spec.names.plural.clone(),
        };
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        while let Err(error) = api.list_metadata(&ListParams::default()).await {
            match error {
                // Established a moment ago: not every part of the API server knows it yet.
                kube::Error::Api(status) if matches!(status.code, 404 | 429 | 503) => tokio::time::sleep(TICK).await,
                error => return Err(error).with_context(|| format!("cannot list {}", resource.plural)),
            }
        }
    }
    Ok(())
}
