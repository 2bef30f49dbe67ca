//! What templates look up in the cluster, read with the rights that the objects are applied with.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::api::condition::Reason;
use crate::core::chart::Lookup;
use crate::core::identity::{self, Problem};
use crate::core::ownership::Owner;
use crate::core::retry::ErrorClass;
use crate::core::status::Trouble;
use crate::io::apply::refusal;
use crate::io::kinds::Kinds;
use crate::io::observe::{api, plain, segment};
use crate::io::seed;

/// Most lookups of one chart.
const MAX_LOOKUPS: usize = 256;
/// Most bytes of all answers together, as JSON.
const MAX_BYTES: usize = 16 << 20;
/// Objects of one page of a list.
const PAGE: u32 = 500;

/// Reads for templates.
#[derive(Clone)]
pub struct Reader<'a> {
    /// With the identity that applies.
    pub client: Client,
    /// The kinds that are served.
    pub kinds: &'a Kinds,
    /// The only namespace that is read; `None` leaves the judgement to the API server.
    pub only_namespace: Option<String>,
    /// The releases of the ClusterStack, whose Secrets alone are read where the rights are the operator's and not those of who brought
    /// the chart; `None` leaves the judgement to the API server.
    pub secrets_of: Option<BTreeSet<String>>,
}

impl Reader<'_> {
    /// The answers, as Helm gives them: an object, a list, or nothing where there is no such object; and what stands in
    /// the way of the others: a kind that is not served, rights that do not reach, an API server that does not answer.
    ///
    /// # Errors
    /// More lookups, or more to read, than a chart may have.
    pub async fn answers(
        &self,
        wanted: &BTreeSet<Lookup>,
    ) -> Result<(BTreeMap<Lookup, Value>, BTreeMap<Lookup, Trouble>), Trouble> {
        let too_much = |what: String| Trouble::new(ErrorClass::Invalid, Reason::RenderFailed, what);
        if wanted.len() > MAX_LOOKUPS {
            return Err(too_much(format!("the chart looks up more than {MAX_LOOKUPS} things")));
        }
        let (mut answers, mut failed) = (BTreeMap::new(), BTreeMap::new());
        let mut bytes = 0;
        for lookup in wanted {
            match self.answer(lookup).await {
                Ok(answer) => {
                    bytes += answer.to_string().len();
                    answers.insert(lookup.clone(), answer);
                }
                Err(trouble) => {
                    failed.insert(lookup.clone(), trouble);
                }
            }
            if bytes > MAX_BYTES {
                return Err(too_much(format!("what the chart looks up takes more than {} MiB", MAX_BYTES >> 20)));
            }
        }
        Ok((answers, failed))
    }

    async fn answer(&self, lookup: &Lookup) -> Result<Value, Trouble> {
        let waiting = |message: String| Trouble::new(ErrorClass::Waiting, Reason::RenderFailed, message);
        let Lookup { api_version, kind: kind_name, namespace, name } = lookup;
        let what = format!("the chart looks up {api_version} {kind_name} {}", place(namespace, name));
        let failed = |error: &kube::Error| {
            let refused = refusal(error);
            let class = match refused.reason {
                Reason::Forbidden | Reason::Invalid => ErrorClass::Waiting,
                _ => ErrorClass::Transient,
            };
            Trouble::new(class, Reason::RenderFailed, format!("{what}: {}", refused.message))
        };
        identity_of(lookup).map_err(|problem| {
            Trouble::new(ErrorClass::Invalid, Reason::RenderFailed, format!("{what}, whose {problem}"))
        })?;
        let kind = self.kinds.get(&self.client, api_version, kind_name).await.map_err(|error| failed(&error))?;
        let Some(kind) = kind else {
            return Err(waiting(format!("{what}, and no such kind is served: install its CustomResourceDefinition")));
        };
        let outside = |only: &str| !kind.namespaced || namespace.as_str() != only;
        if self.only_namespace.as_deref().is_some_and(outside) {
            let only = self.only_namespace.as_deref().unwrap_or_default();
            let message = format!("{what}, but only namespace {only} is read: set spec.serviceAccountName");
            return Err(waiting(message));
        }
        let guarded =
            self.secrets_of.as_ref().filter(|_| (api_version.as_str(), kind_name.as_str()) == ("v1", "Secret"));
        let foreign = || {
            let message = format!(
                "{what}, which no release of this ClusterStack applied: set spec.serviceAccountName to a ServiceAccount that may read it"
            );
            waiting(message)
        };
        if guarded.is_some() && name.is_empty() {
            return Err(foreign());
        }
        let api = api(&self.client, &kind, namespace);
        if name.is_empty() {
            let mut items: Vec<Value> = Vec::new();
            let mut params = ListParams::default().limit(PAGE);
            let mut bytes = 0;
            loop {
                let page = api.list(&params).await.map_err(|error| failed(&error))?;
                let objects = page.items.iter().map(|object| plain(object, &kind)).filter(|object| !is_seed(object));
                for object in objects {
                    bytes += object.to_string().len();
                    items.push(object);
                }
                match page.metadata.continue_.filter(|token| !token.is_empty() && bytes <= MAX_BYTES) {
                    Some(token) => params = params.continue_token(&token),
                    None => break,
                }
            }
            return Ok(json!({"apiVersion": api_version, "kind": format!("{kind_name}List"), "items": items}));
        }
        let object = api.get_opt(&segment(name)).await.map_err(|error| failed(&error))?;
        let object = object.map(|object| plain(&object, &kind)).filter(|object| !is_seed(object));
        if let (Some(releases), Some(object)) = (guarded, &object)
            && !is_of(object, releases)
        {
            return Err(foreign());
        }
        Ok(object.unwrap_or_else(|| json!({})))
    }
}

/// Whether one of these releases, which are of the object's namespace, applied an object.
fn is_of(object: &Value, releases: &BTreeSet<String>) -> bool {
    let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or_default();
    let owner = |name: &String| Owner {
        kind: "ClusterStackRelease".to_owned(),
        namespace: namespace.to_owned(),
        name: name.clone(),
    };
    releases.iter().any(|name| owner(name).is_of(object))
}

/// What can be looked up: the rest would be a path of its own.
fn identity_of(Lookup { api_version, kind, namespace, name }: &Lookup) -> Result<(), String> {
    let named = |field: &str, checked: Result<(), Problem>| checked.map_err(|problem| format!("{field} {problem}"));
    named("apiVersion", identity::api_version(api_version))?;
    named("kind", identity::kind(kind))?;
    named("namespace", identity::namespace(namespace))?;
    named("name", identity::name(name).and_then(|()| identity::path_segment(name)))
}

/// Nobody looks up what random functions draw from.
fn is_seed(object: &Value) -> bool {
    object.get("kind").and_then(Value::as_str) == Some("Secret")
        && object.get("type").and_then(Value::as_str) == Some(seed::TYPE)
}

fn place(namespace: &str, name: &str) -> String {
    match (namespace, name) {
        ("", "") => "in all namespaces".to_owned(),
        (namespace, "") => format!("in namespace {namespace}"),
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_of_the_cluster_stack_whose_releases_applied_it() {
        let long = format!("docker-{}-1-34-v1", "x".repeat(80));
        let releases = BTreeSet::from(["docker-x-1-34-v2".to_owned(), long.clone()]);
        for (kind, namespace, owner, expected) in [
            ("ClusterStackRelease", "shop", "docker-x-1-34-v2", true),
            ("ClusterStackRelease", "shop", long.as_str(), true),
            // Of another ClusterStack, whatever it is called.
            ("ClusterStackRelease", "shop", "docker-x-1-33-v1", false),
            ("ClusterStackRelease", "bank", "docker-x-1-34-v2", false),
            ("ClusterAddon", "shop", "docker-x-1-34-v2", false),
            ("", "", "", false),
        ] {
            let owner = Owner { kind: kind.to_owned(), namespace: namespace.to_owned(), name: owner.to_owned() };
            let labels: serde_json::Map<_, _> =
                owner.labels().into_iter().map(|(key, value)| (key.to_owned(), Value::String(value))).collect();
            let secret = json!({"kind": "Secret", "metadata": {"name": "x", "namespace": "shop", "labels": labels}});
            assert_eq!(is_of(&secret, &releases), expected, "{owner:?}");
        }
    }

    #[test]
    fn what_can_be_no_object_is_not_looked_up() {
        let lookup = |api_version: &str, namespace: &str, name: &str| Lookup {
            api_version: api_version.into(),
            kind: "ConfigMap".into(),
            namespace: namespace.into(),
            name: name.into(),
        };
        for (lookup, expected) in [
            (lookup("v1", "shop", "a"), None),
            (lookup("v1", "", ""), None),
            (lookup("v1/configmaps?watch=true&x=0", "shop", "a"), Some("apiVersion")),
            (lookup("v1", "a/b", "a"), Some("namespace")),
            (lookup("v1", "shop", "../../secrets"), Some("name")),
        ] {
            let problem = identity_of(&lookup).err();
            assert_eq!(problem.as_deref().and_then(|problem| problem.split(' ').next()), expected);
        }
    }
}
