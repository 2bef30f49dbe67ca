//! Cluster API's runtime hooks: the server that it calls, and what it needs to be called.
//!
//! Guarantees: an answer takes less than a second; it is read from the API alone, so every replica gives the same one and a
//! restart forgets nothing; a hook starts no work, it writes at most that it was called. An API server that does not answer
//! in time makes an upgrade wait, and a deletion for as long as its stages may take, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::RunError;
use super::cluster_addon::{read_cluster, release_among};
use super::served::{
    HOOKS, RETRY, SeenReleases, UPKEEP, below_path, client_config, names, not_too_large, registered_name, served_as,
    turn_of,
};
use crate::api::condition::Reason;
use crate::api::runtime_hooks::{
    API_VERSION, DISCOVERY, EXTENSION_GROUP, EXTENSION_KIND, HookRequest, HookResponse, RuntimeHook,
};
use crate::api::{ClusterAddon, FIELD_MANAGER, WATCH_LABEL};
use crate::core::addon::cluster::{self, Cluster, addon_name};
use crate::core::addon::hooks::{self, Answer, Seen};
use crate::core::addon::upgrade_plan::{self, NoPlan};
use crate::core::install::HOOK_CERTIFICATE;
use crate::core::manifest::label;
use crate::io::apply::refusal;
use crate::io::client::Clients;
use crate::io::displaced::Displaced;
use crate::io::events::{Events, reference};
use crate::io::extension_config::{self, Extension, Registered};
use crate::io::fence::{self, Fence};
use crate::io::hook_certificate::{self, Kept};
use crate::io::kinds::Kinds;
use crate::io::members::Members;
use crate::io::tls_server::{TlsServer, in_time};
use crate::io::usage::CLUSTER_API;
use crate::settings::{HookPlace, HookSettings, Settings};

/// Longest time for reading what an answer needs.
const READ: Duration = Duration::from_millis(800);
/// When a hook that waits is to be called again, in seconds.
const AGAIN: i32 = 10;
/// The same of a deletion: most have no stages, which the second call knows.
const SOON: i32 = 2;
/// Largest body: a Cluster is at most what etcd holds, and JSON is longer.
const MAX_BODY: usize = 4 * 1024 * 1024;

/// What the handlers work with.
struct Server {
    /// Without a limit on requests: an answer has to come in time.
    client: Client,
    /// For all that is not waited for.
    own: Client,
    kinds: Kinds,
    events: Events,
    releases: Arc<SeenReleases>,
    namespace: Option<String>,
    watch_filter: Option<String>,
    deletion_deadline: Duration,
    tasks: TaskTracker,
}

/// Starts the server, if there is to be one, in `tasks` until `end`.
pub(super) fn start(
    settings: &Settings,
    clients: &Clients,
    (members, instance): (&Members, String),
    end: &CancellationToken,
    tasks: &TaskTracker,
) -> Result<(), RunError> {
    let Some(hooks) = settings.hooks.clone() else { return Ok(()) };
    let client = clients.watching();
    let server = Arc::new(Server {
        events: Events::new(clients.own(), instance),
        own: clients.own(),
        client: client.clone(),
        kinds: Kinds::default(),
        releases: SeenReleases::watched(&client, settings.namespace.as_deref(), end, tasks),
        namespace: settings.namespace.clone(),
        watch_filter: settings.watch_filter.clone(),
        deletion_deadline: hooks.deletion_deadline,
        tasks: tasks.clone(),
    });
    let routes = routes(&server, &hooks.place);
    let served = TlsServer::bind("runtime hooks", hooks.address, routes, tasks).map_err(|error| RunError::Serve {
        what: "runtime hooks",
        address: hooks.address,
        error,
    })?;
    tasks.spawn(serve(served, server, (hooks, members.clone()), end.clone()));
    Ok(())
}

/// Serves as soon as there is a certificate, and keeps certificate and registration as they have to be.
///
/// Every replica serves that has the flag; the eldest of them makes the certificate and registers.
async fn serve(
    mut served: TlsServer,
    server: Arc<Server>,
    (hooks, members): (HookSettings, Members),
    end: CancellationToken,
) {
    let extension = server.extension(&hooks);
    let names = names(&hooks.place, &hooks.namespace);
    let secret = format!("{}{HOOK_CERTIFICATE}", extension.name);
    let kept = Kept { namespace: &hooks.namespace, name: &secret, names: &names, what: "runtime hooks" };
    let mut told = String::new();
    let duty = served_as(HOOKS, &extension.name);
    let mut displaced = Displaced::by(EXTENSION_KIND, &extension.name, &extension.place);
    loop {
        // Cluster API may come, or serve another version, while we run.
        for group in [CLUSTER_API, EXTENSION_GROUP] {
            server.kinds.forget(group);
        }
        let registers = members.registers(&duty);
        let found = fence::within(Fence::of_registrar(&members, &duty), async {
            hook_certificate::ensure(&fence::guarded(&server.own), kept, (Timestamp::now(), registers)).await
        });
        let said = match found.await {
            Err(error) => Err(error.to_string()),
            Ok(identity) => {
                // Who is told of a new authority first trusts what it signs.
                let registered = if registers {
                    let register = async {
                        let client = fence::guarded(&server.own);
                        let done =
                            extension_config::register(&client, &server.kinds, &extension, &identity.bundle).await?;
                        let kind = server.kinds.preferred(&client, EXTENSION_GROUP, EXTENSION_KIND).await?;
                        if let Some(kind) = kind {
                            let is_unserved = |name: &str| members.is_unserved(&served_as(HOOKS, name));
                            displaced.remove(&client, &kind.resource, is_unserved).await;
                        }
                        Ok(done)
                    };
                    fence::within(Fence::of_registrar(&members, &duty), register).await
                } else {
                    Ok(Registered::Unchanged)
                };
                let served = served.serve(&identity);
                served.and_then(|()| registered.map_err(|error| registration_error(&extension.name, &error)))
            }
        };
        let pause = if said.is_ok() { UPKEEP } else { RETRY };
        tell(&mut told, &extension.name, said);
        tokio::select! {
            () = end.cancelled() => return served.shutdown(),
            () = tokio::time::sleep(pause) => {}
            () = turn_of(&members, &duty, registers) => {}
        }
    }
}

fn registration_error(name: &str, error: &kube::Error) -> String {
    format!(
        "ExtensionConfig {name} can't be applied, so Cluster API calls no hook, and stages gate no upgrade: {error}"
    )
}

/// Logs what came of it, once.
fn tell(told: &mut String, name: &str, said: Result<Registered, String>) {
    let (text, is_error) = match said {
        Ok(Registered::NotServed) => {
            ("no ExtensionConfig is served: stages run, and gate no upgrade".to_owned(), false)
        }
        Ok(Registered::Unchanged) => return told.clear(),
        Ok(Registered::Written) => (format!("ExtensionConfig {name} was applied"), false),
        Err(text) => (text, true),
    };
    if *told == text {
        return;
    }
    if is_error {
        tracing::warn!("{text}");
    } else {
        tracing::info!("{text}");
    }
    *told = text;
}

/// As Cluster API makes the paths; those of a URL with a path come with it.
fn routes(server: &Arc<Server>, place: &HookPlace) -> Router {
    let routes = Router::new()
        .route(&format!("/{API_VERSION}/{}", DISCOVERY.to_lowercase()), post(discover))
        .route(&format!("/{API_VERSION}/{{hook}}/{{handler}}"), post(call))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(MAX_BODY, not_too_large))
        .layer(middleware::from_fn(in_time))
        .with_state(Arc::clone(server));
    below_path(place, routes)
}

/// A request that can't be answered.
type Refusal = (StatusCode, String);

/// The request, if it is one of this hook.
fn understood(hook: &str, body: Result<Bytes, BytesRejection>) -> Result<HookRequest, Refusal> {
    let body = body.map_err(|error| (error.status(), format!("{error}\n")))?;
    let bad = |why: String| (StatusCode::BAD_REQUEST, format!("no {hook}Request of {API_VERSION}: {why}\n"));
    let request: HookRequest = serde_json::from_slice(&body).map_err(|error| bad(error.to_string()))?;
    let HookRequest { api_version, kind, .. } = &request;
    if api_version != API_VERSION || *kind != format!("{hook}Request") {
        return Err(bad(format!("its apiVersion is {api_version:?}, its kind {kind:?}")));
    }
    Ok(request)
}

fn json_of(response: &HookResponse) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], json!(response).to_string()).into_response()
}

async fn discover(body: Result<Bytes, BytesRejection>) -> Result<Response, Refusal> {
    understood(DISCOVERY, body)?;
    Ok(json_of(&HookResponse::discovery()))
}

async fn call(
    State(server): State<Arc<Server>>,
    Path((hook, handler)): Path<(String, String)>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refusal> {
    let Some(hook) = RuntimeHook::of_path(&hook, &handler) else {
        return Err((StatusCode::NOT_FOUND, "no such hook\n".to_owned()));
    };
    let request = understood(hook.as_str(), body)?;
    let bad = |what: &str| {
        let name = hook.as_str();
        (StatusCode::BAD_REQUEST, format!("no {name}Request of {API_VERSION}: it has no {what}\n"))
    };
    let text = |pointer: &str| request.cluster.as_ref()?.pointer(pointer)?.as_str().filter(|text| !text.is_empty());
    let namespace = text("/metadata/namespace").ok_or_else(|| bad("cluster.metadata.namespace"))?;
    let name = text("/metadata/name").ok_or_else(|| bad("cluster.metadata.name"))?;
    let to = request.to_kubernetes_version.as_deref().unwrap_or_default();
    let asks_for_version = matches!(hook, RuntimeHook::BeforeClusterUpgrade | RuntimeHook::GenerateUpgradePlan);
    if asks_for_version && to.is_empty() {
        return Err(bad("toKubernetesVersion"));
    }
    if hook == RuntimeHook::GenerateUpgradePlan {
        let from = request.from_control_plane_kubernetes_version.as_deref().filter(|from| !from.is_empty());
        let from = from.ok_or_else(|| bad("fromControlPlaneKubernetesVersion"))?;
        return Ok(json_of(&server.upgrade_plan((namespace, name), from, to).await));
    }
    Ok(json_of(&server.answer(hook, (namespace, name), to, request.cluster.as_ref()).await))
}

/// What was read for an answer, and the objects for reports.
#[derive(Default)]
struct Read {
    seen: Seen,
    object: Option<Value>,
    /// The release of its ClusterClass, and which versions of Kubernetes its machines can run.
    of_release: Option<(String, Vec<String>)>,
}

impl Server {
    /// `sent` is the Cluster as Cluster API sent it.
    async fn answer(&self, hook: RuntimeHook, cluster: (&str, &str), to: &str, sent: Option<&Value>) -> HookResponse {
        let shown = format!("{}/{}", cluster.0, cluster.1);
        let why = match tokio::time::timeout(READ, self.read(cluster)).await {
            Ok(Ok(read)) => {
                let answer = if hook == RuntimeHook::BeforeClusterDelete {
                    hooks::before_deletion(&read.seen, self.deletion_deadline, Timestamp::now())
                } else {
                    hooks::answer(hook, to, &read.seen)
                };
                tracing::debug!(hook = hook.as_str(), cluster = shown, ?answer, "a runtime hook was called");
                self.report(hook, &answer, read);
                return match answer.wait {
                    None => HookResponse::done(hook),
                    Some(message) if hook == RuntimeHook::BeforeClusterDelete => {
                        HookResponse::wait(hook, message, SOON)
                    }
                    Some(message) => HookResponse::wait(hook, message, AGAIN),
                };
            }
            Ok(Err(error)) => error,
            Err(_) => format!("the API server did not answer within {} ms", READ.as_millis()),
        };
        tracing::warn!(hook = hook.as_str(), cluster = shown, why, "a runtime hook could not be looked into");
        match hook {
            RuntimeHook::BeforeClusterUpgrade => {
                HookResponse::wait(hook, format!("clusterstack can't tell yet: {why}"), AGAIN)
            }
            RuntimeHook::BeforeClusterDelete => {
                let known = sent.filter(|object| self.is_ours(cluster.0, object)).and_then(cluster::read);
                let is_of_us = known.as_ref().is_some_and(|known| self.may_be_of_a_release(known));
                let known = known.filter(|_| is_of_us);
                let answer = hooks::unread_deletion(known.as_ref(), &why, self.deletion_deadline, Timestamp::now());
                let read = Read { object: sent.cloned(), ..Read::default() };
                self.report(hook, &answer, read);
                answer.wait.map_or(HookResponse::done(hook), |message| HookResponse::wait(hook, message, SOON))
            }
            _ => HookResponse::done(hook),
        }
    }

    /// Whether a Cluster is left to others.
    fn is_ours(&self, namespace: &str, object: &Value) -> bool {
        let is_here = self.namespace.as_deref().is_none_or(|only| only == namespace);
        is_here && self.watch_filter.as_deref().is_none_or(|value| label(object, WATCH_LABEL) == Some(value))
    }

    /// Before the releases are read, every class may be of one.
    fn may_be_of_a_release(&self, cluster: &Cluster) -> bool {
        let is_of_one = |class| !self.releases.is_read() || release_among(class, &self.releases.store).is_some();
        cluster.class.as_ref().is_some_and(is_of_one)
    }

    /// The versions on the way to the one that a Cluster asks for. Without an answer Cluster API does not start.
    async fn upgrade_plan(&self, cluster: (&str, &str), from: &str, to: &str) -> HookResponse {
        let found = match tokio::time::timeout(READ, self.read(cluster)).await {
            Ok(Ok(read)) => match read.of_release {
                Some((release, known)) => upgrade_plan::plan(from, to, &release, &known),
                None => Err(NoPlan::Unknown),
            }
            .map_err(|error| error.to_string()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(format!("the API server did not answer within {} ms", READ.as_millis())),
        };
        match found {
            Ok(versions) => HookResponse::upgrade_plan(versions),
            Err(why) => {
                tracing::warn!(
                    cluster = format!("{}/{}", cluster.0, cluster.1),
                    from,
                    to,
                    why,
                    "no plan for an upgrade"
                );
                HookResponse::failure(RuntimeHook::GenerateUpgradePlan, why)
            }
        }
    }

    async fn read(&self, (namespace, name): (&str, &str)) -> Result<Read, String> {
        // Those of other namespaces are not read: there may be no right to.
        if self.namespace.as_deref().is_some_and(|only| only != namespace) {
            return Ok(Read::default());
        }
        let failed = |error: kube::Error| format!("reading Cluster {namespace}/{name}: {}", refusal(&error).message);
        let found = read_cluster(&self.client, &self.kinds, namespace, name).await.map_err(failed)?;
        let Some((cluster, object)) = found.filter(|(_, object)| self.is_ours(namespace, object)) else {
            return Ok(Read::default());
        };
        if !self.releases.is_read() {
            return Err("the releases are being read".to_owned());
        }
        let release = cluster.class.as_ref().and_then(|class| release_among(class, &self.releases.store));
        let mut addon = None;
        if release.is_some() {
            let api: Api<ClusterAddon> = Api::namespaced(self.client.clone(), namespace);
            let named = addon_name(name);
            let failed =
                |error: kube::Error| format!("reading ClusterAddon {namespace}/{named}: {}", refusal(&error).message);
            addon = api.get_opt(&named).await.map_err(failed)?;
        }
        let of_release = release.map(|release| {
            let known = release.status.as_ref().map(|status| status.node_versions.clone()).unwrap_or_default();
            (release.name_any(), known)
        });
        let release = of_release.as_ref().map(|(name, _)| name.clone());
        Ok(Read { seen: Seen { cluster: Some(cluster), release, addon }, object: Some(object), of_release })
    }

    /// Writes the hook into the ClusterAddon and tells on the Cluster what it waits for; the answer does not wait for it.
    fn report(&self, hook: RuntimeHook, answer: &Answer, read: Read) {
        let addon = read.seen.addon.filter(|_| answer.record);
        let name = hook.as_str();
        let waits = answer.wait.as_ref().map(|why| (Reason::HookBlocked, format!("{name} waits: {why}")));
        let gave_up = answer.gave_up.as_ref().map(|why| (Reason::StageDeadlineExceeded, format!("{name}: {why}")));
        let about = waits.or(gave_up).zip(read.object.as_ref().map(reference));
        if addon.is_none() && about.is_none() {
            return;
        }
        let (client, events) = (self.own.clone(), self.events.clone());
        self.tasks.spawn(async move {
            if let Some(addon) = addon {
                record(&client, hook, &addon).await;
            }
            if let Some(((reason, note), cluster)) = about {
                events.say_of(&cluster, reason, &note).await;
            }
        });
    }

    fn extension(&self, hooks: &HookSettings) -> Extension {
        Extension {
            name: registered_name(self.namespace.as_deref(), self.watch_filter.as_deref()),
            place: client_config(&hooks.place, &hooks.namespace, ""),
            namespace: self.namespace.clone(),
            watch_filter: self.watch_filter.clone(),
        }
    }
}

/// Only over the version that was read: what was done meanwhile is not asked for again.
async fn record(client: &Client, hook: RuntimeHook, addon: &ClusterAddon) {
    let api: Api<ClusterAddon> = Api::namespaced(client.clone(), &addon.namespace().unwrap_or_default());
    let patch = json!({"metadata": {"resourceVersion": addon.resource_version()}, "spec": {"hook": hook.as_str()}});
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    match api.patch(&addon.name_any(), &params, &Patch::Merge(patch)).await {
        Ok(_) => {}
        // It was changed or deleted meanwhile: the next call looks again.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
        Err(error) => tracing::warn!(%error, addon = addon.name_any(), "a hook could not be recorded"),
    }
}
