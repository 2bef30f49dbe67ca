//! What templates look up in the cluster, read with the rights that the objects are applied with.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::api::condition::Reason;
use crate::core::chart::Lookup;
use crate::core::retry::ErrorClass;
use crate::core::status::Trouble;
use crate::io::apply::refusal;
use crate::io::kinds::Kinds;
use crate::io::observe::{api, plain};

/// Reads for templates.
#[derive(Clone)]
pub struct Reader<'a> {
    /// With the identity that applies.
    pub client: Client,
    /// The kinds that are served.
    pub kinds: &'a Kinds,
    /// The only namespace that is read; `None` leaves the judgement to the API server.
    pub only_namespace: Option<String>,
}

impl Reader<'_> {
    /// The answers, as Helm gives them: an object, a list, or nothing where there is no such object.
    ///
    /// # Errors
    /// A kind that is not served, rights that do not reach, an API server that does not answer.
    pub async fn answers(&self, wanted: &BTreeSet<Lookup>) -> Result<BTreeMap<Lookup, Value>, Trouble> {
        let mut answers = BTreeMap::new();
        for lookup in wanted {
            answers.insert(lookup.clone(), self.answer(lookup).await?);
        }
        Ok(answers)
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
        let api = api(&self.client, &kind, namespace);
        if name.is_empty() {
            let list = api.list(&ListParams::default()).await.map_err(|error| failed(&error))?;
            let items: Vec<Value> = list.items.iter().map(|object| plain(object, &kind)).collect();
            return Ok(json!({"apiVersion": api_version, "kind": format!("{kind_name}List"), "items": items}));
        }
        let object = api.get_opt(name).await.map_err(|error| failed(&error))?;
        Ok(object.map_or_else(|| json!({}), |object| plain(&object, &kind)))
    }
}

fn place(namespace: &str, name: &str) -> String {
    match (namespace, name) {
        ("", "") => "in all namespaces".to_owned(),
        (namespace, "") => format!("in namespace {namespace}"),
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}
