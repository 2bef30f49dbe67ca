//! The world of one test: a namespace, a directory, a client, and short words for what tests do.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use clusterstack::api::condition::find;
use clusterstack::api::{ClusterStack, ClusterStackRelease, Condition, ConditionType, OperatorShard, RECONCILE_AT};
use k8s_openapi::api::core::v1::{Event, Namespace};
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::cluster_api;
use super::control_plane::{self, ControlPlane};
use super::git::Repo;
use super::operator::Operator;
use super::wait::{LONG, check, skipped, wait_for};

/// How many worlds there are at once.
static ROOM: Semaphore = Semaphore::const_new(6);

/// All that a test works with.
pub(crate) struct World {
    pub(crate) namespace: String,
    pub(crate) client: Client,
    pub(crate) plane: &'static ControlPlane,
    directory: tempfile::TempDir,
    leftovers: Mutex<Vec<(ApiResource, String)>>,
    /// Its control plane is nobody else's, and ends with it.
    owns_plane: bool,
    _room: SemaphorePermit<'static>,
}

/// A name that occurs once.
pub(crate) fn unique(prefix: &str) -> String {
    format!("{prefix}-{:06x}", rand::random::<u32>() & 0xff_ffff)
}

/// Group and version, and kind, as `kubectl` would be asked for them.
fn resource(api_version: &str, kind: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

impl World {
    /// A new namespace, called like the test.
    pub(crate) async fn new(name: &str) -> Self {
        let room = ROOM.acquire().await.expect("closed");
        Self::on(control_plane::get().await, room, name).await
    }

    /// One on a control plane where Cluster API's own managers run; `None`, and a visible word, where they can't.
    pub(crate) async fn with_cluster_api(name: &str, test: &str) -> Option<Self> {
        let room = ROOM.acquire().await.expect("closed");
        Some(Self::on(cluster_api::get(test).await?, room, name).await)
    }

    /// The same namespace on another control plane where Cluster API's managers run.
    pub(crate) async fn elsewhere(&self) -> Self {
        let room = ROOM.acquire().await.expect("closed");
        Self::in_namespace(cluster_api::other().await, room, self.namespace.clone()).await
    }

    /// One on a control plane on which nothing of ours is; `None`, and a visible word, where there is none.
    pub(crate) async fn installable(name: &str, test: &str) -> Option<Self> {
        let room = ROOM.acquire().await.expect("closed");
        let mut world = Self::on(control_plane::bare(name, test).await?, room, name).await;
        world.owns_plane = true;
        Some(world)
    }

    /// One on a control plane whose pods run; `None`, and a visible word, where there is none.
    pub(crate) async fn with_pods(name: &str, test: &str) -> Option<Self> {
        let room = ROOM.acquire().await.expect("closed");
        Some(Self::on(super::node::plane(test).await?, room, name).await)
    }

    /// Another namespace beside this one.
    pub(crate) async fn beside(&self, name: &str) -> Self {
        let room = ROOM.acquire().await.expect("closed");
        Self::on(self.plane, room, name).await
    }

    async fn on(plane: &'static ControlPlane, room: SemaphorePermit<'static>, name: &str) -> Self {
        Self::in_namespace(plane, room, unique(&format!("e2e-{name}"))).await
    }

    async fn in_namespace(plane: &'static ControlPlane, room: SemaphorePermit<'static>, namespace: String) -> Self {
        let client = plane.client().await;
        let world = Self {
            namespace: namespace.clone(),
            client: client.clone(),
            plane,
            directory: tempfile::tempdir().expect("no directory"),
            leftovers: Mutex::default(),
            owns_plane: false,
            _room: room,
        };
        let object = serde_json::from_value(json!({"metadata": {"name": namespace}})).expect("no namespace");
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await.expect("namespace");
        super::rights::own_namespace(&client, &namespace).await;
        world
    }

    /// The directory of real input; `None`, and a visible word, where it is missing.
    pub(crate) fn shared(test: &str) -> Option<PathBuf> {
        let shared = control_plane::shared();
        if shared.is_none() {
            skipped(format_args!("{test}: ../shared is missing (CLUSTERSTACK_SHARED names it elsewhere)"));
        }
        shared
    }

    /// A directory of this test; `file://` sources below it are allowed.
    pub(crate) fn dir(&self) -> &Path {
        self.directory.path()
    }

    /// Where its operators keep releases.
    pub(crate) fn store(&self) -> PathBuf {
        self.dir().join("store")
    }

    /// A new Git repository.
    pub(crate) fn repo(&self) -> Repo {
        Repo::new(&self.dir().join("repositories").join(unique("repo")))
    }

    /// Starts an operator, with the rights that are shipped.
    pub(crate) fn operator(&self, flags: &[&str]) -> Operator {
        Operator::start(self, self.plane.operator_kubeconfig(), flags)
    }

    /// A client with the operator's rights.
    pub(crate) async fn operator_client(&self) -> Client {
        control_plane::client_of(self.plane.operator_kubeconfig()).await
    }

    /// Any API in the test's namespace.
    pub(crate) fn api(&self, api_version: &str, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource(api_version, kind))
    }

    /// Any cluster-scoped API.
    pub(crate) fn cluster_api(&self, api_version: &str, kind: &str) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &resource(api_version, kind))
    }

    /// A cluster-scoped object that is deleted when the test ends.
    pub(crate) fn remove_at_end(&self, api_version: &str, kind: &str, name: &str) {
        self.leftovers.lock().unwrap().push((resource(api_version, kind), name.to_owned()));
    }

    /// An object, if it is there.
    pub(crate) async fn get(&self, api_version: &str, kind: &str, name: &str) -> Option<Value> {
        let found = self.api(api_version, kind).get_opt(name).await.expect("API server");
        found.map(|object| serde_json::to_value(object).expect("JSON"))
    }

    /// A ConfigMap, if it is there.
    pub(crate) async fn config_map(&self, name: &str) -> Option<Value> {
        self.get("v1", "ConfigMap", name).await
    }

    /// The value at a JSON pointer of a ConfigMap; null if there is none.
    pub(crate) async fn in_config_map(&self, name: &str, pointer: &str) -> Value {
        self.config_map(name).await.and_then(|map| map.pointer(pointer).cloned()).unwrap_or_default()
    }

    /// Applies an object in the test's namespace, by server-side apply as field manager `manager`.
    pub(crate) async fn apply_as(&self, manager: &str, object: &Value) -> Value {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).expect("no such field").to_owned();
        let api = self.api(&text("/apiVersion"), &text("/kind"));
        let params = PatchParams::apply(manager).force();
        let applied = api.patch(&text("/metadata/name"), &params, &Patch::Apply(object)).await;
        serde_json::to_value(applied.unwrap_or_else(|error| panic!("{object}: {error}"))).expect("JSON")
    }

    /// Applies an object in the test's namespace.
    pub(crate) async fn apply(&self, object: &Value) -> Value {
        self.apply_as("e2e", object).await
    }

    /// Merges a change into an object, as somebody called `manager`.
    pub(crate) async fn change(&self, manager: &str, (version, kind, name): (&str, &str, &str), change: Value) {
        let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
        let changed = self.api(version, kind).patch(name, &params, &Patch::Merge(change)).await;
        changed.unwrap_or_else(|error| panic!("{kind} {name}: {error}"));
    }

    /// Deletes an object.
    pub(crate) async fn delete(&self, api_version: &str, kind: &str, name: &str) {
        let deleted = self.api(api_version, kind).delete(name, &DeleteParams::default()).await;
        assert!(deleted.is_ok(), "{kind} {name}: {deleted:?}");
    }

    /// Waits until an object is gone.
    pub(crate) async fn gone(&self, api_version: &str, kind: &str, name: &str) {
        wait_for(format!("{kind} {name} to be gone"), || async {
            self.get(api_version, kind, name).await.map_or(Ok(()), |object| Err(format!("{object:#}")))
        })
        .await;
    }

    /// Waits until an object is there.
    pub(crate) async fn there(&self, api_version: &str, kind: &str, name: &str) -> Value {
        wait_for(format!("{kind} {name}"), || async {
            self.get(api_version, kind, name).await.ok_or_else(|| "nothing".to_owned())
        })
        .await
    }

    /// The API of ClusterStacks.
    pub(crate) fn stacks(&self) -> Api<ClusterStack> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The API of ClusterStackReleases.
    pub(crate) fn releases(&self) -> Api<ClusterStackRelease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// A ClusterStack `docker / x / 1.34` of a Git source; `spec` goes over it.
    pub(crate) async fn create_stack(&self, name: &str, url: &str, spec: Value) {
        let mut object = json!({
            "apiVersion": clusterstack::api::API_VERSION,
            "kind": "ClusterStack",
            "metadata": {"name": name},
            "spec": {
                "provider": "docker", "name": "x", "kubernetesVersion": "1.34",
                "noProvider": true, "interval": "10s", "source": {"git": {"url": url}},
            },
        });
        json_patch::merge(&mut object, &json!({"spec": spec}));
        let object: ClusterStack = serde_json::from_value(object).expect("no ClusterStack");
        self.stacks().create(&PostParams::default(), &object).await.expect("ClusterStack");
    }

    /// Merges a change into a ClusterStack.
    pub(crate) async fn change_stack(&self, name: &str, change: Value) {
        self.change("user", (clusterstack::api::API_VERSION, "ClusterStack", name), change).await;
    }

    /// Asks the operator to look again now.
    pub(crate) async fn look_again(&self, stack: &str) {
        self.change_stack(stack, json!({"metadata": {"annotations": {RECONCILE_AT: unique("at")}}})).await;
    }

    /// Asks the operator to look again and waits until it did.
    pub(crate) async fn looked_again(&self, stack: &str) {
        let at = unique("at");
        self.change_stack(stack, json!({"metadata": {"annotations": {RECONCILE_AT: at}}})).await;
        self.stack(stack, "to be looked at", |stack| {
            check(stack.status.as_ref().is_some_and(|status| status.last_handled_reconcile_at == at), &stack.status)
        })
        .await;
    }

    /// Waits until a ClusterStack is as `is` says.
    pub(crate) async fn stack<T>(
        &self,
        name: &str,
        what: &str,
        is: impl Fn(&ClusterStack) -> Result<T, String>,
    ) -> (ClusterStack, T) {
        wait_for(format!("ClusterStack {name} {what}"), || async {
            let stack = self.stacks().get_opt(name).await.map_err(debug)?.ok_or("no such object")?;
            let found = is(&stack)?;
            Ok((stack, found))
        })
        .await
    }

    /// Waits until a ClusterStackRelease is as `is` says.
    pub(crate) async fn release<T>(
        &self,
        name: &str,
        what: &str,
        is: impl Fn(&ClusterStackRelease) -> Result<T, String>,
    ) -> (ClusterStackRelease, T) {
        wait_for(format!("ClusterStackRelease {name} {what}"), || async {
            let release = self.releases().get_opt(name).await.map_err(debug)?.ok_or("no such object")?;
            let found = is(&release)?;
            Ok((release, found))
        })
        .await
    }

    /// Waits until a ClusterStack has a condition with a status and a reason; its message.
    pub(crate) async fn stack_says(&self, name: &str, type_: ConditionType, status: &str, reason: &str) -> String {
        let what = format!("to say {}={status}, {reason}", type_.as_str());
        self.stack(name, &what, |stack| {
            says(stack.status.as_ref().map_or(&[], |s| &s.conditions), type_, status, reason)
        })
        .await
        .1
    }

    /// Waits until a ClusterStackRelease has a condition with a status and a reason; its message.
    pub(crate) async fn release_says(&self, name: &str, type_: ConditionType, status: &str, reason: &str) -> String {
        let what = format!("to say {}={status}, {reason}", type_.as_str());
        self.release(name, &what, |release| {
            says(release.status.as_ref().map_or(&[], |s| &s.conditions), type_, status, reason)
        })
        .await
        .1
    }

    /// Waits until a ClusterStack is ready with exactly these usable versions, and nothing else is left of it.
    pub(crate) async fn ready(&self, stack: &str, usable: &str) -> ClusterStack {
        let what = format!("to be ready with {usable}");
        let ready = self.stack(stack, &what, |stack| {
            let status = stack.status.clone().unwrap_or_default();
            let is = find(&status.conditions, ConditionType::Ready).is_some_and(Condition::is_true);
            let others = status.summary.iter().filter(|release| !release.ready).count();
            check(is && status.usable_versions == usable && others == 0, &status)
        });
        ready.await.0
    }

    /// Waits until a ClusterStackRelease is ready.
    pub(crate) async fn release_ready(&self, name: &str) -> ClusterStackRelease {
        let ready = self.release(name, "to be ready", |release| {
            check(release.status.as_ref().is_some_and(|status| status.ready), &release.status)
        });
        ready.await.0
    }

    /// Waits until a ClusterStackRelease is gone.
    pub(crate) async fn release_gone(&self, name: &str) {
        self.gone(clusterstack::api::API_VERSION, "ClusterStackRelease", name).await;
    }

    /// Waits until a ClusterStack is gone.
    pub(crate) async fn stack_gone(&self, name: &str) {
        self.gone(clusterstack::api::API_VERSION, "ClusterStack", name).await;
    }

    /// Deletes a ClusterStack.
    pub(crate) async fn delete_stack(&self, name: &str) {
        self.delete(clusterstack::api::API_VERSION, "ClusterStack", name).await;
    }

    /// Waits for an event with this reason whose note holds `part`, on any object of the test.
    pub(crate) async fn event(&self, reason: &str, part: &str) {
        let api: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        wait_for(format!("an event {reason} with {part:?}"), || async {
            let events = api.list(&ListParams::default()).await.map_err(debug)?.items;
            let told =
                |event: &Event| (event.reason.clone().unwrap_or_default(), event.message.clone().unwrap_or_default());
            let is = events.iter().map(told).any(|(r, note)| r == reason && note.contains(part));
            check(is, events.iter().map(told).collect::<Vec<_>>())
        })
        .await;
    }

    /// What `kubectl` prints in the test's namespace.
    pub(crate) fn kubectl(&self, args: &[&str]) -> String {
        let output = std::process::Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(&self.plane.kubeconfig)
            .args(["--namespace", &self.namespace])
            .args(args)
            .output()
            .expect("no kubectl");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "kubectl {args:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }
}

/// The message of a condition with a status and a reason.
fn says(conditions: &[Condition], type_: ConditionType, status: &str, reason: &str) -> Result<String, String> {
    find(conditions, type_)
        .filter(|condition| condition.status == status && condition.reason == reason)
        .map(|condition| condition.message.clone())
        .ok_or_else(|| debug(conditions))
}

pub(super) fn debug(value: impl Debug) -> String {
    format!("{value:#?}")
}

impl Drop for World {
    /// Removes what operators of other tests may see, also when nobody is there to see to finalizers, and the namespace. A
    /// control plane that ends with the tests keeps it: hundreds that go hold up the one whose end a test waits for.
    fn drop(&mut self) {
        if self.owns_plane {
            return control_plane::end(self.plane);
        }
        let (kubeconfig, namespace) = (self.plane.kubeconfig.clone(), self.namespace.clone());
        let keeps = control_plane::ends_with_the_tests(self.plane);
        let leftovers = self.leftovers.lock().map(|mut all| std::mem::take(&mut *all)).unwrap_or_default();
        let cleaned = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let clean = clean(&kubeconfig, &namespace, keeps, leftovers);
            let _ = runtime.block_on(async { tokio::time::timeout(LONG, clean).await });
            Ok::<(), std::io::Error>(())
        });
        let _ = cleaned.join();
    }
}

async fn clean(kubeconfig: &Path, namespace: &str, keeps: bool, leftovers: Vec<(ApiResource, String)>) {
    let client = control_plane::client_of(kubeconfig).await;
    for (resource, name) in leftovers {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let _ = api.delete(&name, &DeleteParams::background()).await;
    }
    // Those of operators that were killed.
    let shards: Api<OperatorShard> = Api::all(client.clone());
    for shard in shards.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
        if shard.spec.lease_namespace == namespace {
            let _ = shards.delete(&shard.name_any(), &DeleteParams::default()).await;
        }
    }
    if !keeps {
        let _ = Api::<Namespace>::all(client.clone()).delete(namespace, &DeleteParams::background()).await;
    }
    let of_clusters = ["Cluster", "ClusterClass"].map(|kind| (super::stacks::CLUSTER_API, kind));
    let ours = ["ClusterStack", "ClusterStackRelease", "ClusterStackSource", "ClusterAddon"];
    let of_images = ["ProviderClusterStackRelease", "ProviderClusterStackReleaseTemplate", "ProviderNodeImageRelease"];
    let ours = ours.map(|kind| (clusterstack::api::API_VERSION, kind));
    let of_images = of_images.map(|kind| (clusterstack::api::INFRASTRUCTURE_API_VERSION, kind));
    for (api_version, kind) in ours.into_iter().chain(of_images).chain(of_clusters) {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource(api_version, kind));
        for object in api.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
            let name = object.name_any();
            let _ = api.delete(&name, &DeleteParams::background()).await;
            let patch = json!({"metadata": {"finalizers": null}});
            let _ = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
        }
    }
}
