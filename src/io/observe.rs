//! One reading of the live objects per pass.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, stream};
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::{Value, json};

use crate::api::{OWNER_KIND_LABEL, OWNER_NAME_LABEL};
use crate::core::manifest::{Manifest, ObjectKey, label_value};
use crate::core::ownership::Owner;
use crate::io::kinds::{Kind, Kinds};

/// An object to look at: its identity and how to ask for its kind.
#[derive(Clone, Debug)]
pub struct Target {
    /// Identity.
    pub key: ObjectKey,
    /// Kind.
    pub kind: Kind,
}

/// Which kinds are asked for by one list of what carries the owner's labels, instead of one object after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lists {
    /// None: nothing is expected to be there.
    None,
    /// Those of which there are several targets in a namespace.
    OfSeveral,
    /// All: what carries the labels and is no target is found too.
    All,
}

/// What was read.
#[derive(Default)]
pub struct Live {
    /// The objects that are there.
    pub objects: BTreeMap<ObjectKey, Value>,
    /// Objects that could not be read, with the error.
    pub unreadable: BTreeMap<ObjectKey, kube::Error>,
}

impl Live {
    /// Which could not be read.
    pub fn unread(&self) -> BTreeSet<ObjectKey> {
        self.unreadable.keys().cloned().collect()
    }

    /// Adds what was read later, which counts.
    pub fn extend(&mut self, later: Self) {
        self.unreadable.retain(|key, _| !later.objects.contains_key(key));
        self.objects.extend(later.objects);
        self.unreadable.extend(later.unreadable);
    }
}

/// What can't stand in a path as it is (RFC 3986, 3.3).
const NO_SEGMENT: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'/')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// A name as a part of a request's path. A chart may give an object any name: the API server says what is wrong with it, and
/// that there is no such object, where the client alone would ask for nothing.
pub fn segment(name: &str) -> Cow<'_, str> {
    match name {
        "." => "%2E".into(),
        ".." => "%2E%2E".into(),
        _ => utf8_percent_encode(name, NO_SEGMENT).into(),
    }
}

/// The API of a kind in a namespace, or of all where it has none.
pub fn api(client: &Client, kind: &Kind, namespace: &str) -> Api<DynamicObject> {
    if kind.namespaced && !namespace.is_empty() {
        Api::namespaced_with(client.clone(), &segment(namespace), &kind.resource)
    } else {
        Api::all_with(client.clone(), &kind.resource)
    }
}

/// A live object as plain data, with the type that a list leaves out of its items.
pub fn plain(object: &DynamicObject, kind: &Kind) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Value::Object(map) = &mut value {
        map.insert("apiVersion".into(), kind.resource.api_version.clone().into());
        map.insert("kind".into(), kind.resource.kind.clone().into());
    }
    value
}

/// Reads the targets: by `lists` of what carries the owner's labels, the rest one by one. What a list has and is no
/// target is read too.
#[tracing::instrument(name = "observe", skip_all, fields(objects = targets.len()))]
pub async fn live(client: &Client, owner: &Owner, targets: &[Target], lists: Lists) -> Live {
    let mut live = Live::default();
    let mut groups: BTreeMap<(String, String, String), Vec<&Target>> = BTreeMap::new();
    for target in targets {
        let key = &target.key;
        groups.entry((key.group.clone(), key.kind.clone(), key.namespace.clone())).or_default().push(target);
    }
    let is_listed = |group: &&Vec<&Target>| match lists {
        Lists::None => false,
        Lists::OfSeveral => group.len() > 1,
        Lists::All => true,
    };
    let lists = groups
        .values()
        .filter(is_listed)
        .filter_map(|group| group.first())
        .map(|target| labelled(client, owner, target));
    let mut lists = stream::iter(lists.collect::<Vec<_>>()).buffer_unordered(8);
    while let Some(found) = lists.next().await {
        // Where listing is not allowed the objects are asked for one by one.
        live.objects.extend(found.unwrap_or_default());
    }
    drop(lists);
    let missing = targets.iter().filter(|target| !live.objects.contains_key(&target.key));
    let gets: Vec<_> = missing.map(|target| get(client, target)).collect();
    let mut gets = stream::iter(gets).buffer_unordered(8);
    while let Some((key, result)) = gets.next().await {
        match result {
            Ok(Some(object)) => {
                live.objects.insert(key, object);
            }
            Ok(None) => {}
            Err(error) => {
                live.unreadable.insert(key, error);
            }
        }
    }
    drop(gets);
    live
}

async fn labelled(client: &Client, owner: &Owner, of: &Target) -> Result<Vec<(ObjectKey, Value)>, kube::Error> {
    let list = api(client, &of.kind, &of.key.namespace).list(&ListParams::default().labels(&owner.selector())).await?;
    Ok(list.items.iter().filter_map(|object| keyed(object, &of.kind)).collect())
}

fn keyed(object: &DynamicObject, kind: &Kind) -> Option<(ObjectKey, Value)> {
    let value = plain(object, kind);
    Some((Manifest::from_value(value.clone()).ok()?.key, value))
}

async fn get(client: &Client, target: &Target) -> (ObjectKey, Result<Option<Value>, kube::Error>) {
    let result = api(client, &target.kind, &target.key.namespace).get_opt(&segment(&target.key.name)).await;
    let result = match result {
        // By the API server's word it is no name of an object.
        Err(kube::Error::Api(status)) if status.code == 400 => Ok(None),
        result => result,
    };
    (target.key.clone(), result.map(|object| object.map(|object| plain(&object, &target.kind))))
}

/// Finds what carries the owner's labels among all kinds, by metadata-only lists: the inventory, rebuilt.
///
/// # Errors
/// The first list that fails: half an inventory is none. Only what an API server that is down beside this one (an `APIService`)
/// holds is left out: nothing of it could be read or deleted.
pub async fn rebuild(client: &Client, kinds: &Kinds, owner: &Owner) -> Result<Vec<Target>, kube::Error> {
    labelled_anywhere(client, kinds, &owner.selector()).await
}

/// The same for several owners of one kind, by one search for all of them: what each has, in their order.
///
/// # Errors
/// The first list that fails.
pub async fn rebuild_all(client: &Client, kinds: &Kinds, owners: &[Owner]) -> Result<Vec<Vec<Target>>, kube::Error> {
    let Some(kind) = owners.first().map(|owner| owner.kind.as_str()) else { return Ok(Vec::new()) };
    let names: BTreeSet<String> = owners.iter().map(|owner| label_value(&owner.name)).collect();
    let names = names.into_iter().collect::<Vec<_>>().join(",");
    let selector = format!("{OWNER_KIND_LABEL}={kind},{OWNER_NAME_LABEL} in ({names})");
    let found = labelled_by(&[(client, "", "")], client, kinds, &selector).await?;
    let of = |owner: &Owner| {
        let is_of = |(_, labels): &&(Target, Value)| owner.is_of(labels);
        found.iter().filter(is_of).map(|(target, _)| target.clone()).collect()
    };
    Ok(owners.iter().map(of).collect())
}

/// The same where objects were applied by somebody else than `client`, by `account` of the owner's namespace (the operator if it
/// is none): what that one may not list is asked for by `applier`, everywhere, and in the owner's namespace where even that is too much.
///
/// # Errors
/// The first list that fails.
pub async fn rebuild_as(
    client: &Client,
    (applier, account): (&Client, Option<&str>),
    kinds: &Kinds,
    owner: &Owner,
) -> Result<Vec<Target>, kube::Error> {
    let who = account.map(|account| format!("{}/{account}", owner.namespace)).unwrap_or_default();
    let asked = [(client, "", ""), (applier, &*who, ""), (applier, &*who, owner.namespace.as_str())];
    Ok(targets_of(labelled_by(&asked, client, kinds, &owner.selector()).await?))
}

/// Finds what a label selector picks among all kinds, by metadata-only lists.
///
/// # Errors
/// The first list that fails.
pub async fn labelled_anywhere(client: &Client, kinds: &Kinds, selector: &str) -> Result<Vec<Target>, kube::Error> {
    Ok(targets_of(labelled_by(&[(client, "", "")], client, kinds, selector).await?))
}

fn targets_of(found: Vec<(Target, Value)>) -> Vec<Target> {
    found.into_iter().map(|(target, _)| target).collect()
}

/// Each kind is asked for with the first of `asked` that may: whose client, who that is (empty: the operator), and in which
/// namespace. Who was refused is not asked again at once: a hundred releases that go would be refused a hundred times. With each
/// object its labels, as in the object itself.
async fn labelled_by(
    asked: &[(&Client, &str, &str)],
    discovery: &Client,
    kinds: &Kinds,
    selector: &str,
) -> Result<Vec<(Target, Value)>, kube::Error> {
    let all = kinds.all(discovery).await?;
    let lists = all.iter().filter(|kind| kind.resource.group != "metrics.k8s.io").map(|kind| {
        async move {
            let params = ListParams::default().labels(selector);
            let fits = |namespace: &str| namespace.is_empty() || kind.namespaced;
            for (client, who, namespace) in asked.iter().filter(|(_, _, namespace)| fits(namespace)) {
                if kinds.is_denied(who, kind, namespace) {
                    continue;
                }
                match api(client, kind, namespace).list_metadata(&params).await {
                    Ok(list) => {
                        return Ok(list.items.into_iter().map(|item| (item.metadata, kind.clone())).collect());
                    }
                    Err(kube::Error::Api(status)) if status.code == 403 => kinds.denied(who, kind, namespace),
                    // What can't be listed that way (not an allowed method) can't have been applied by us.
                    Err(kube::Error::Api(status)) if matches!(status.code, 404 | 405) => break,
                    Err(error) => return Err(error),
                }
            }
            // Nor what nobody may list.
            Ok(Vec::new())
        }
    });
    let mut lists = stream::iter(lists.collect::<Vec<_>>()).buffer_unordered(8);
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    while let Some(items) = lists.next().await {
        for (metadata, kind) in items? {
            let key = ObjectKey {
                group: kind.resource.group.clone(),
                kind: kind.resource.kind.clone(),
                namespace: metadata.namespace.unwrap_or_default(),
                name: metadata.name.unwrap_or_default(),
            };
            if seen.insert(key.clone()) {
                found.push((Target { key, kind }, json!({"metadata": {"labels": metadata.labels}})));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_makes_a_path() {
        for (name, expected) in [
            ("docker-hello-1-34-v1", "docker-hello-1-34-v1"),
            ("system:node.a_b", "system:node.a_b"),
            ("<script>", "%3Cscript%3E"),
            ("a b/../c?d#e%", "a%20b%2F..%2Fc%3Fd%23e%25"),
            ("ü", "%C3%BC"),
            (".", "%2E"),
            ("..", "%2E%2E"),
        ] {
            assert_eq!(segment(name), expected);
            assert!(format!("/api/v1/namespaces/{}", segment(name)).parse::<http::Uri>().is_ok(), "{name}");
        }
    }
}
