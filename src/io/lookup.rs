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
        Ok(object.unwrap_or_else(|| json!({})))
    }
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
