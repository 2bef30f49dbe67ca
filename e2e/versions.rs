//! That the API can move: a `v1beta1` of the small kinds, made for this test alone, with conversions, and the stored objects
//! migrated forth and back while no operator runs. The released CRDs have `v1alpha1` and no conversion webhook.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clusterstack::api::{
    API_VERSION, ClusterStackSource, ClusterUpgradePlan, GROUP, OperatorShard, custom_resource_definitions,
};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::harness::{Authority, Operator, SETTINGS, Tls, World, check, install, wait_for, workload};

const NEXT: &str = "clusterstack.x-k8s.io/v1beta1";

/// What is elsewhere in `v1beta1`: of which kind, from where to where. All are there in both or in none.
const MOVED: &[(&str, &[&str], &[&str])] = &[
    ("ClusterStackSource", &["spec", "interval"], &["spec", "poll", "interval"]),
    ("ClusterStackSource", &["spec", "suspend"], &["spec", "poll", "suspended"]),
    ("ClusterStackSource", &["status", "nextPoll"], &["status", "poll", "next"]),
    ("ClusterUpgradePlan", &["spec", "cluster"], &["spec", "clusterRef", "name"]),
    ("ClusterUpgradePlan", &["spec", "release"], &["spec", "releaseRef", "name"]),
    ("ClusterUpgradePlan", &["status", "truncated"], &["status", "summaryIsCut"]),
    ("OperatorShard", &["status", "ready"], &["status", "state", "ready"]),
    ("OperatorShard", &["status", "leader"], &["status", "state", "leads"]),
    ("OperatorShard", &["status", "load"], &["status", "work", "load"]),
    ("OperatorShard", &["status", "share"], &["status", "work", "share"]),
];

/// Takes a field out of an object, and what is empty around it then.
fn take(object: &mut Value, path: &[&str]) -> Option<Value> {
    let (first, rest) = path.split_first()?;
    let map = object.as_object_mut()?;
    if rest.is_empty() {
        return map.remove(*first);
    }
    let inner = map.get_mut(*first)?;
    let taken = take(inner, rest);
    // `spec` and `status` are there or not by themselves.
    if taken.is_some() && !["spec", "status"].contains(first) && inner.as_object().is_some_and(|map| map.is_empty()) {
        map.remove(*first);
    }
    taken
}

fn put(object: &mut Value, path: &[&str], value: Value) {
    let Some((last, outer)) = path.split_last() else { return };
    let mut place = object;
    for name in outer {
        place = &mut place[*name];
    }
    place[*last] = value;
}

/// The object in another version of the API.
fn converted(mut object: Value, to: &str) -> Value {
    if object["apiVersion"] == to {
        return object;
    }
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    for (_, old, new) in MOVED.iter().filter(|(of, ..)| *of == kind) {
        let (from, into) = if to == NEXT { (old, new) } else { (new, old) };
        if let Some(value) = take(&mut object, from) {
            put(&mut object, into, value);
        }
    }
    object["apiVersion"] = to.into();
    object
}

/// Goes forth and back, and the types that serve it read the same.
fn round<K: Serialize + DeserializeOwned>(kind: &str, mut object: Value) {
    (object["apiVersion"], object["kind"]) = (API_VERSION.into(), kind.into());
    let typed: K = serde_json::from_value(object).expect("no object of this kind");
    let mut object = serde_json::to_value(typed).expect("JSON");
    (object["apiVersion"], object["kind"]) = (API_VERSION.into(), kind.into());
    let next = converted(object.clone(), NEXT);
    assert_ne!(next, object);
    let back = converted(next.clone(), API_VERSION);
    assert_eq!(back, object);
    assert_eq!(converted(back, NEXT), next);
}

fn word() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9-]{0,20}[a-z0-9]"
}

/// An object of fields each of which may be missing.
fn some_of(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let each = fields.into_iter().map(|(name, value)| proptest::option::of(value).prop_map(move |value| (name, value)));
    let all: Vec<_> = each.collect();
    all.prop_map(|fields| fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
        .boxed()
}

fn of<T: Into<Value> + std::fmt::Debug + 'static>(
    strategy: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<Value> {
    strategy.prop_map(Into::into).boxed()
}

fn source() -> impl Strategy<Value = Value> {
    let spec = some_of(vec![
        ("interval", of((1_u32..100).prop_map(|minutes| format!("{minutes}m")))),
        ("suspend", of(any::<bool>())),
        ("offer", of(word().prop_map(|name| json!({"stacks": [format!("docker/{name}")]})))),
    ]);
    let status = some_of(vec![
        ("url", of(word())),
        ("nextPoll", of((0_i64..2_000_000_000).prop_map(|at| jiff::Timestamp::from_second(at).unwrap().to_string()))),
        ("lastHandledReconcileAt", of(word())),
    ]);
    (word(), spec, proptest::option::of(status)).prop_map(|(name, mut spec, status)| {
        spec["source"] = json!({"git": {"url": "https://git.example.com/x.git"}});
        let mut object = json!({"metadata": {"name": name, "annotations": {"a": "b"}}, "spec": spec});
        if let Some(status) = status {
            object["status"] = status;
        }
        object
    })
}

fn plan() -> impl Strategy<Value = Value> {
    let status = some_of(vec![
        ("from", of(word())),
        ("truncated", of(any::<bool>())),
        ("summary", of(proptest::collection::vec(word(), 0..4))),
    ]);
    (word(), word(), word(), status).prop_map(|(name, cluster, release, status)| {
        json!({"metadata": {"name": name}, "spec": {"cluster": cluster, "release": release}, "status": status})
    })
}

fn shard() -> impl Strategy<Value = Value> {
    let status = some_of(vec![
        ("ready", of(any::<bool>())),
        ("leader", of(any::<bool>())),
        ("version", of(word())),
        ("members", of(proptest::collection::vec(word(), 0..4))),
        ("load", of((0_u32..9).prop_map(|builds| json!({"buildsRunning": builds})))),
    ]);
    (word(), word(), status).prop_map(|(name, namespace, status)| {
        json!({"metadata": {"name": name}, "spec": {"leaseNamespace": namespace}, "status": status})
    })
}

proptest! {
    #[test]
    fn conversions_lose_nothing(source in source(), plan in plan(), shard in shard()) {
        round::<ClusterStackSource>("ClusterStackSource", source);
        round::<ClusterUpgradePlan>("ClusterUpgradePlan", plan);
        round::<OperatorShard>("OperatorShard", shard);
    }
}

/// How often objects were asked for in each version.
type Asked = Arc<Mutex<BTreeMap<String, usize>>>;

/// The conversion webhook.
struct Converter {
    address: SocketAddr,
    authority: Authority,
    asked: Asked,
    _end: DropGuard,
}

impl Converter {
    async fn start() -> Self {
        let tcp = TcpListener::bind("127.0.0.1:0").await.expect("no port");
        let (address, authority, asked) = (tcp.local_addr().expect("no address"), Authority::new(), Asked::default());
        let listener = Tls::over(tcp, authority.server("127.0.0.1", None));
        let routes = Router::new().route("/convert", post(convert)).with_state(Arc::clone(&asked));
        let end = CancellationToken::new();
        let ended = end.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = axum::serve(listener, routes) => {}
                () = ended.cancelled() => {}
            }
        });
        Self { address, authority, asked, _end: end.drop_guard() }
    }

    fn asked(&self, version: &str) -> usize {
        self.asked.lock().unwrap().get(version).copied().unwrap_or_default()
    }
}

async fn convert(State(asked): State<Asked>, body: String) -> String {
    let review: Value = serde_json::from_str(&body).unwrap();
    let request = &review["request"];
    let to = request["desiredAPIVersion"].as_str().unwrap();
    let objects = request["objects"].as_array().unwrap();
    *asked.lock().unwrap().entry(to.to_owned()).or_default() += objects.len();
    let objects: Vec<Value> = objects.iter().map(|object| converted(object.clone(), to)).collect();
    let response = json!({"uid": request["uid"], "convertedObjects": objects, "result": {"status": "Success"}});
    json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}).to_string()
}

/// One of the kinds in a version.
fn kind(version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, version.rsplit_once('/').unwrap().1, kind))
}

const KINDS: [&str; 3] = ["ClusterStackSource", "ClusterUpgradePlan", "OperatorShard"];

/// The test's objects, by kind and name, in a version.
async fn read(client: &Client, namespace: &str, version: &str) -> BTreeMap<(String, String), Value> {
    let mut found = BTreeMap::new();
    for name in KINDS {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind(version, name));
        for object in api.list(&ListParams::default()).await.expect("no list").items {
            let is_ours = object.namespace().is_none_or(|of| of == namespace);
            if is_ours {
                let key = (name.to_owned(), object.name_any());
                let mut object = serde_json::to_value(object).expect("JSON");
                object["kind"] = name.into();
                object["apiVersion"] = version.into();
                found.insert(key, object);
            }
        }
    }
    found
}

/// What of them is the user's and the operator's.
fn contents(objects: &BTreeMap<(String, String), Value>) -> BTreeMap<(String, String), Value> {
    let mut objects = objects.clone();
    for object in objects.values_mut() {
        for field in ["managedFields", "resourceVersion"] {
            object["metadata"].as_object_mut().unwrap().remove(field);
        }
    }
    objects
}

/// Writes every object as it is: it is stored in the version that is stored now.
async fn rewrite(client: &Client, namespace: &str, version: &str) {
    for ((name, _), object) in read(client, namespace, version).await {
        let object: DynamicObject = serde_json::from_value(object).expect("no object");
        let kind = kind(version, &name);
        let api: Api<DynamicObject> = match object.namespace() {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &kind),
            None => Api::all_with(client.clone(), &kind),
        };
        // The API server skips a write that changes nothing, but for one that is stored in another version.
        api.replace(&object.name_any(), &PostParams::default(), &object).await.expect("not written");
    }
}

/// Serves both versions, stores one of them, and says that nothing is stored in another.
async fn store(client: &Client, namespace: &str, converter: &Converter, stored: &str) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let webhook = json!({
        "conversionReviewVersions": ["v1"],
        "clientConfig": {
            "url": format!("https://{}/convert", converter.address),
            "caBundle": STANDARD.encode(converter.authority.pem()),
        },
    });
    for mut definition in small_kinds() {
        let name = definition.name_any();
        let mut next = definition.spec.versions[0].clone();
        next.name = "v1beta1".to_owned();
        next.additional_printer_columns = None;
        let open = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        next.schema = serde_json::from_value(open).unwrap();
        definition.spec.versions.push(next);
        for version in &mut definition.spec.versions {
            version.storage = stored.ends_with(&version.name);
        }
        definition.spec.conversion =
            Some(serde_json::from_value(json!({"strategy": "Webhook", "webhook": webhook})).unwrap());
        install(client, &definition).await;
        wait_for(format!("{name} to be served in both versions"), || async {
            let kind = kind(NEXT, &definition.spec.names.kind);
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
            api.list(&ListParams::default()).await.map(drop).map_err(|error| error.to_string())
        })
        .await;
    }
    // A server that has not heard of it yet stores the other version: what is read in the stored one is then converted.
    wait_for(format!("everything to be stored as {stored}"), || async {
        rewrite(client, namespace, stored).await;
        let before = converter.asked(stored);
        rewrite(client, namespace, stored).await;
        let asked = converter.asked(stored) - before;
        check(asked == 0, format!("{asked} objects were converted"))
    })
    .await;
    for definition in small_kinds() {
        let version = stored.rsplit_once('/').unwrap().1;
        let status = json!({"status": {"storedVersions": [version]}});
        let name = definition.name_any();
        definitions.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await.expect("status");
    }
}

fn small_kinds() -> Vec<CustomResourceDefinition> {
    let mut all = custom_resource_definitions();
    all.retain(|definition| KINDS.contains(&definition.spec.names.kind.as_str()));
    all
}

/// Runs the operator until it has polled the source.
async fn runs(t: &World, kubeconfig: &std::path::Path, newest: &str) {
    let operator = Operator::start(t, kubeconfig, &[]);
    let client = crate::harness::client_of(kubeconfig).await;
    let api: Api<ClusterStackSource> = Api::namespaced(client, &t.namespace);
    wait_for(format!("the source to offer {newest}"), || async {
        let source = api.get("shared").await.map_err(|error| error.to_string())?;
        let text = serde_json::to_string(&source.status).unwrap();
        check(text.contains(newest), text)
    })
    .await;
    wait_for("a poll", || async {
        let metrics = operator.get("metrics", "/metrics").await;
        check(
            metrics.lines().any(|line| line.starts_with("clusterstack_source_polls_total") && !line.ends_with(" 0")),
            metrics,
        )
    })
    .await;
    assert!(operator.terminate().await.success());
}

#[tokio::test]
async fn stored_objects_migrate_to_another_version_and_back() {
    let Some(plane) = workload().await else { return };
    let t = World::new("versions").await;
    let client = plane.client().await;
    for definition in custom_resource_definitions() {
        install(&client, &definition).await;
    }
    let namespace = t.namespace.clone();
    let object = serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap();
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await.expect("namespace");
    let repo = t.repo();
    repo.release("docker-x-1-34-v1", SETTINGS);
    let apply = async |name: &str, object: Value| {
        let kind = kind(API_VERSION, name);
        let api: Api<DynamicObject> = match name {
            "OperatorShard" => Api::all_with(client.clone(), &kind),
            _ => Api::namespaced_with(client.clone(), &namespace, &kind),
        };
        let (mut whole, called) = (object.clone(), object["metadata"]["name"].as_str().unwrap().to_owned());
        (whole["apiVersion"], whole["kind"]) = (API_VERSION.into(), name.into());
        let status = whole.as_object_mut().unwrap().remove("status");
        let params = PatchParams::apply("e2e").force();
        api.patch(&called, &params, &Patch::Apply(&whole)).await.expect("not applied");
        if let Some(status) = status {
            let status = json!({"status": status});
            api.patch_status(&called, &PatchParams::default(), &Patch::Merge(&status)).await.expect("no status");
        }
    };
    let url = repo.url();
    apply(
        "ClusterStackSource",
        json!({"metadata": {"name": "shared"}, "spec": {"interval": "10s", "source": {"git": {"url": url}}}}),
    )
    .await;
    runs(&t, &plane.kubeconfig, "docker-x-1-34-v1").await;

    // No operator runs from here on.
    let made = json!({"metadata": {"name": "made"}, "spec": {"suspend": true, "source": {"git": {"url": url}}}});
    apply("ClusterStackSource", made).await;
    let plan = json!({"metadata": {"name": "c"}, "spec": {"cluster": "c", "release": "docker-x-1-34-v1"},
        "status": {"from": "docker-x-1-34-v0", "truncated": true, "summary": ["changes: a"]}});
    apply("ClusterUpgradePlan", plan).await;
    let replica = json!({"metadata": {"name": namespace}, "spec": {"leaseNamespace": namespace},
        "status": {"ready": true, "leader": false, "share": {"releases": 3}, "load": {"buildsRunning": 1}}});
    apply("OperatorShard", replica).await;
    let before = contents(&read(&client, &namespace, API_VERSION).await);
    assert_eq!(before.len(), 4, "{before:#?}");

    let converter = Converter::start().await;
    store(&client, &namespace, &converter, NEXT).await;
    let next = contents(&read(&client, &namespace, NEXT).await);
    let expected = before.iter().map(|(key, object)| (key.clone(), converted(object.clone(), NEXT))).collect();
    assert_eq!(next, expected);
    assert_eq!(next[&("ClusterStackSource".to_owned(), "made".to_owned())]["spec"]["poll"]["suspended"], true);
    assert_eq!(contents(&read(&client, &namespace, API_VERSION).await), before);

    // An operator that knows the old version alone works on what is stored in the new one.
    for name in ["c"] {
        let api: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), &namespace, &kind(API_VERSION, "ClusterUpgradePlan"));
        api.delete(name, &kube::api::DeleteParams::default()).await.expect("not deleted");
    }
    repo.release("docker-x-1-34-v2", SETTINGS);
    runs(&t, &plane.kubeconfig, "docker-x-1-34-v2").await;

    // And back, with the conversion webhook gone.
    let between = contents(&read(&client, &namespace, API_VERSION).await);
    store(&client, &namespace, &converter, API_VERSION).await;
    for definition in small_kinds() {
        install(&client, &definition).await;
    }
    drop(converter);
    wait_for("the old version alone to be served", || async {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind(NEXT, KINDS[0]));
        check(api.list(&ListParams::default()).await.is_err(), "still served")
    })
    .await;
    let after = read(&client, &namespace, API_VERSION).await;
    assert_eq!(contents(&after), between);
    // Nothing changed, so nothing is written, but for when the next poll is due.
    runs(&t, &plane.kubeconfig, "docker-x-1-34-v2").await;
    let mut now = contents(&read(&client, &namespace, API_VERSION).await);
    let mut then = contents(&after);
    for objects in [&mut now, &mut then] {
        for object in objects.values_mut() {
            take(object, &["status", "nextPoll"]);
        }
    }
    assert_eq!(now, then);
}
