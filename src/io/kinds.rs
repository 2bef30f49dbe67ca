//! Which kinds the API server serves: discovery, remembered until a CustomResourceDefinition changes.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::core::response::Status;
use kube::{Api, Client};
use serde_json::Value;

use crate::core::identity;
use crate::core::manifest::{join_api_version, split_api_version};

mod served;

use served::Served;

/// How long a kind that was not there is taken as not there; a CustomResourceDefinition ends it earlier.
const ABSENT: Duration = Duration::from_mins(1);

/// How long a refusal is remembered: rights that are given count after that.
const DENIED: Duration = Duration::from_secs(30);

/// How long the list of a group and version may take.
const ANSWER: Duration = Duration::from_secs(30);

/// Refusals remembered at most.
const MAX_DENIED: usize = 10_000;

/// How long after a change of its definitions a group is asked for by itself: the API server puts its lists of all groups
/// together once a minute (kube-aggregator, `discoveryManager`).
const LAGS: Duration = Duration::from_mins(3);

/// A kind that is served.
#[derive(Clone, Debug)]
pub struct Kind {
    /// How to ask for it.
    pub resource: ApiResource,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
}

type Group = (HashMap<String, Kind>, Instant);
/// The served versions of each group, the preferred one first; since when.
type Versions = (HashMap<String, Vec<String>>, Instant);

/// Discovery by group and version.
#[derive(Default)]
pub struct Kinds {
    groups: Mutex<HashMap<String, Group>>,
    versions: Mutex<Option<Versions>>,
    /// What charts are told is served, since when.
    served: Mutex<Option<(Served, Instant)>>,
    /// The groups whose definitions changed, and when.
    changed: Mutex<HashMap<String, Instant>>,
    /// Who may not list which kinds where, since when.
    denied: Mutex<HashMap<Denied, Instant>>,
    /// Counts the changes: what was read before one is not remembered after it.
    generation: AtomicU64,
}

/// Who, which resource, in which namespace.
type Denied = (String, String, String);

fn denied_key(who: &str, kind: &Kind, namespace: &str) -> Denied {
    (who.to_owned(), format!("{}.{}", kind.resource.plural, kind.resource.group), namespace.to_owned())
}

impl Kinds {
    /// Remembers for a while that somebody may not list a kind in a namespace, or everywhere.
    pub fn denied(&self, who: &str, kind: &Kind, namespace: &str) {
        let mut denied = self.denied.lock().unwrap_or_else(PoisonError::into_inner);
        if denied.len() >= MAX_DENIED {
            denied.retain(|_, since| since.elapsed() < DENIED);
        }
        if denied.len() < MAX_DENIED {
            denied.insert(denied_key(who, kind, namespace), Instant::now());
        }
    }

    /// Whether somebody was refused that lately.
    pub fn is_denied(&self, who: &str, kind: &Kind, namespace: &str) -> bool {
        let denied = self.denied.lock().unwrap_or_else(PoisonError::into_inner);
        denied.get(&denied_key(who, kind, namespace)).is_some_and(|since| since.elapsed() < DENIED)
    }

    /// The kind, `None` if the API server does not serve it. What can be no group, version or kind is not asked for.
    ///
    /// # Errors
    /// What the API server said, if it could not be asked.
    pub async fn get(&self, client: &Client, api_version: &str, kind: &str) -> Result<Option<Kind>, kube::Error> {
        if identity::api_version(api_version).is_err() || identity::kind(kind).is_err() {
            return Ok(None);
        }
        if let Some((kinds, read)) = self.lock().get(api_version) {
            match kinds.get(kind) {
                Some(kind) => return Ok(Some(kind.clone())),
                None if read.elapsed() < ABSENT => return Ok(None),
                None => {}
            }
        }
        let generation = self.generation();
        let kinds = read(client, api_version).await?;
        let found = kinds.get(kind).cloned();
        let mut groups = self.lock();
        if generation == self.generation() {
            groups.insert(api_version.to_owned(), (kinds, Instant::now()));
        }
        Ok(found)
    }

    /// The version of a kind that the API server prefers within its group, `None` if it serves the kind in none.
    pub async fn preferred(&self, client: &Client, group: &str, kind: &str) -> Result<Option<Kind>, kube::Error> {
        for api_version in self.versions(client, group).await? {
            if let Some(kind) = self.get(client, &api_version, kind).await? {
                return Ok(Some(kind));
            }
        }
        Ok(None)
    }

    /// The same where it must be certain that a kind has no objects: an API server that has just started, or is changing, may
    /// list a group late. `None` only where no definition in force says that there is the kind. (Cluster API's contract names a
    /// definition after its kind, in the plural.)
    ///
    /// # Errors
    /// What the API server said; also where it has the definition and does not serve the kind.
    pub async fn certain(&self, client: &Client, group: &str, kind: &str) -> Result<Option<Kind>, kube::Error> {
        if let Some(found) = self.preferred(client, group, kind).await? {
            return Ok(Some(found));
        }
        let name = format!("{}s.{group}", kind.to_lowercase());
        let resource =
            ApiResource::from_gvk(&GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition"));
        let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
        let found = api.list(&ListParams::default().fields(&format!("metadata.name={name}"))).await?;
        if !found.items.iter().any(is_in_force) {
            return Ok(None);
        }
        self.forget(group);
        let message = format!("CustomResourceDefinition {name} is there, but {kind} is not served just now");
        Err(kube::Error::Api(Status::failure(&message, "ServiceUnavailable").with_code(503).boxed()))
    }

    async fn versions(&self, client: &Client, group: &str) -> Result<Vec<String>, kube::Error> {
        let known = |versions: &HashMap<String, Vec<String>>| versions.get(group).cloned().unwrap_or_default();
        if let Some((versions, read)) = &*self.lock_versions()
            && (versions.contains_key(group) || read.elapsed() < ABSENT)
        {
            return Ok(known(versions));
        }
        let generation = self.generation();
        let groups = client.list_api_groups().await?.groups.into_iter().map(|group| {
            let preferred = group.preferred_version.map(|version| version.group_version);
            let others = group.versions.into_iter().map(|version| version.group_version);
            let mut versions: Vec<String> = preferred.into_iter().collect();
            versions.extend(others.filter(|version| !versions.contains(version)).collect::<Vec<_>>());
            (group.name, versions)
        });
        let versions = groups.collect();
        let found = known(&versions);
        let mut known = self.lock_versions();
        if generation == self.generation() {
            *known = Some((versions, Instant::now()));
        }
        Ok(found)
    }

    /// Every kind that can be listed, one version each; without those of API servers beside this one that are down.
    pub async fn all(&self, client: &Client) -> Result<Vec<Kind>, kube::Error> {
        let mut versions = vec!["v1".to_owned()];
        let groups = client.list_api_groups().await?.groups;
        versions.extend(groups.into_iter().filter_map(|group| {
            let first = group.versions.into_iter().next();
            group.preferred_version.or(first).map(|version| version.group_version)
        }));
        let down = down_beside(client).await;
        let mut all = Vec::new();
        for version in versions {
            if down.contains(&version) {
                tracing::warn!(version, "the API server of this group is down: what it holds is left out");
                continue;
            }
            all.extend(read(client, &version).await?.into_values());
        }
        Ok(all)
    }

    /// Forgets a group: a CustomResourceDefinition of it came, changed or went.
    pub fn forget(&self, group: &str) {
        {
            let mut changed = self.lock_changed();
            changed.retain(|_, at| at.elapsed() < LAGS);
            changed.insert(group.to_owned(), Instant::now());
        }
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.lock().retain(|api_version, _| split_api_version(api_version).0 != group);
        *self.lock_versions() = None;
        *self.lock_served() = None;
    }

    /// Each group and version that is served, and each kind in it, as Helm tells charts: `apps/v1`, `apps/v1/Deployment`.
    /// Asked for once a minute at most, in two requests that have no answer where nothing has changed, and two more for a group whose
    /// definitions have just changed.
    ///
    /// # Errors
    /// What the API server said.
    pub async fn api_versions(&self, client: &Client) -> Result<Arc<BTreeSet<String>>, kube::Error> {
        let known = self.lock_served().clone();
        if let Some((served, read)) = &known
            && read.elapsed() < ABSENT
        {
            return Ok(Arc::clone(&served.all));
        }
        let known = known.map(|(served, _)| served);
        let generation = self.generation();
        let changed: Vec<String> =
            self.lock_changed().iter().filter(|(_, at)| at.elapsed() < LAGS).map(|(group, _)| group.clone()).collect();
        let served = served::ask(client, known.as_ref(), &changed).await?;
        let all = Arc::clone(&served.all);
        let mut known = self.lock_served();
        if generation == self.generation() {
            *known = Some((served, Instant::now()));
        }
        Ok(all)
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    fn lock_changed(&self) -> std::sync::MutexGuard<'_, HashMap<String, Instant>> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_served(&self) -> std::sync::MutexGuard<'_, Option<(Served, Instant)>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_versions(&self) -> std::sync::MutexGuard<'_, Option<Versions>> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Group>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the API server has no such path, rather than no such object there: the definition of the kind is gone since it was
/// asked for.
pub fn is_unserved(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 && !status.is_not_found())
}

/// Whether a CustomResourceDefinition is one whose kind is served, now or in a moment.
fn is_in_force(definition: &DynamicObject) -> bool {
    let list = |path: &str| definition.data.pointer(path).and_then(Value::as_array).into_iter().flatten();
    let established = |condition: &Value| condition["type"] == "Established" && condition["status"] == "True";
    definition.metadata.deletion_timestamp.is_none()
        && list("/status/conditions").any(established)
        && list("/spec/versions").any(|version| version["served"] == true)
}

/// What a group and version has, `None` if it is not served.
async fn resources(client: &Client, api_version: &str) -> Result<Option<APIResourceList>, kube::Error> {
    let list = async {
        match split_api_version(api_version) {
            ("", version) => client.list_core_api_resources(version).await,
            _ => client.list_api_group_resources(api_version).await,
        }
    };
    // An API server beside the real one (`APIService`) may send its list for ever.
    let Ok(list) = tokio::time::timeout(ANSWER, list).await else {
        let late = format!("the list of what {api_version} holds did not come within {} s", ANSWER.as_secs());
        return Err(kube::Error::Service(late.into()));
    };
    match list {
        Ok(list) => Ok(Some(list)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

async fn read(client: &Client, api_version: &str) -> Result<HashMap<String, Kind>, kube::Error> {
    let Some(list) = resources(client, api_version).await? else { return Ok(HashMap::new()) };
    let (group, version) = split_api_version(&list.group_version);
    Ok(list
        .resources
        .into_iter()
        .filter(|resource| !resource.name.contains('/') && resource.verbs.iter().any(|verb| verb == "list"))
        .map(|resource| {
            let served = ApiResource {
                group: group.to_owned(),
                version: version.to_owned(),
                api_version: join_api_version(group, version),
                kind: resource.kind.clone(),
                plural: resource.name,
            };
            (resource.kind, Kind { resource: served, namespaced: resource.namespaced })
        })
        .collect())
}

/// The groups and versions of API servers beside this one (an `APIService` names them) that are down. Their answer is not
/// waited for: the client would try again and again. Who may not read them waits.
async fn down_beside(client: &Client) -> BTreeSet<String> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("apiregistration.k8s.io", "v1", "APIService"));
    let services = Api::<DynamicObject>::all_with(client.clone(), &kind).list(&ListParams::default()).await;
    let is_down = |service: &DynamicObject| {
        let conditions = service.data.pointer("/status/conditions").and_then(Value::as_array);
        let mut available = conditions.into_iter().flatten().filter(|condition| condition["type"] == "Available");
        service.data.pointer("/spec/service").is_some_and(Value::is_object)
            && available.any(|condition| condition["status"] != "True")
    };
    let of = |service: DynamicObject| {
        let part = |name: &str| service.data["spec"][name].as_str().map(ToOwned::to_owned);
        Some(join_api_version(&part("group")?, &part("version")?))
    };
    services.map(|all| all.items.into_iter().filter(is_down).filter_map(of).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// An API server that serves no group and has this definition of Clusters; how often it was asked.
    fn server(definitions: Value) -> (Client, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::default());
        let count = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            count.fetch_add(1, Ordering::SeqCst);
            let is_list = request.uri().path().ends_with("/customresourcedefinitions");
            let is_one = request.uri().query().is_some_and(|query| query.contains("clusters.cluster.x-k8s.io"));
            let answer = if is_list {
                json!({"metadata": {}, "items": if is_one { definitions.clone() } else { json!([]) }})
            } else {
                json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []})
            };
            async move { Ok::<_, tower::BoxError>(Response::new(Body::from(answer.to_string().into_bytes()))) }
        });
        (Client::new(service, "default"), asked)
    }

    #[test]
    fn a_path_that_is_not_there_is_told_from_an_object_that_is_not() {
        let answer = |reason: &str, code: u16| kube::Error::Api(Status::failure("x", reason).with_code(code).boxed());
        for (error, expected) in [
            (answer("Failed to parse error data", 404), true),
            (answer("NotFound", 404), false),
            (answer("Failed to parse error data", 503), false),
            (answer("Forbidden", 403), false),
            (kube::Error::Service("down".into()), false),
        ] {
            assert_eq!(is_unserved(&error), expected, "{error}");
        }
    }

    #[tokio::test]
    async fn a_kind_is_absent_only_where_no_definition_in_force_says_otherwise() {
        let definition = |established: &str, served: bool, going: bool| {
            let mut definition = json!({
                "metadata": {"name": "clusters.cluster.x-k8s.io"},
                "spec": {"versions": [{"name": "v1beta1", "served": served}]},
                "status": {"conditions": [{"type": "Established", "status": established}]},
            });
            if going {
                definition["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            }
            definition
        };
        for (name, definitions, is_certain) in [
            ("none", json!([]), true),
            ("in force", json!([definition("True", true, false)]), false),
            ("its names are taken", json!([definition("False", true, false)]), true),
            ("no version is served", json!([definition("True", false, false)]), true),
            ("it goes", json!([definition("True", true, true)]), true),
        ] {
            let (client, _) = server(definitions);
            let found = Kinds::default().certain(&client, "cluster.x-k8s.io", "Cluster").await;
            assert_eq!(matches!(found, Ok(None)), is_certain, "{name}: {found:?}");
        }
    }

    #[tokio::test]
    async fn what_groups_there_are_is_asked_anew_after_a_definition_was_found_without_its_kind() {
        let in_force = json!([{
            "metadata": {"name": "clusters.cluster.x-k8s.io"},
            "spec": {"versions": [{"served": true}]},
            "status": {"conditions": [{"type": "Established", "status": "True"}]},
        }]);
        let (client, asked) = server(in_force);
        let kinds = Kinds::default();
        for _ in 0..2 {
            kinds.certain(&client, "cluster.x-k8s.io", "Cluster").await.unwrap_err();
        }
        assert_eq!(asked.load(Ordering::SeqCst), 4);
    }
}
