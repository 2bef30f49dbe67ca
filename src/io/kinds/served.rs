//! What an API server serves, as Helm tells charts. Of a cluster with many kinds the lists are hundreds of kilobytes: they come again only
//! where they have changed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use http::header::{ACCEPT, ETAG, HeaderValue, IF_NONE_MATCH};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroup;
use kube::Client;
use kube::client::Body;
use kube::core::discovery::v2::{ACCEPT_AGGREGATED_DISCOVERY_V2, APIGroupDiscovery, APIGroupDiscoveryList};

use super::resources;
use crate::core::manifest::join_api_version;

/// Where the lists are, in the aggregated form (KEP-3352).
const LISTS: [&str; 2] = ["/api", "/apis"];

/// What is served, and the marks (`ETag`, RFC 9110, 8.8.3) of both lists; none where it is more than they say.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) all: Arc<BTreeSet<String>>,
    marks: [Option<HeaderValue>; 2],
}

/// Asks what is served. The same as is `known` is not sent again. The groups that have just `changed` are asked for by themselves.
///
/// # Errors
/// What the API server said.
pub(super) async fn ask(client: &Client, known: Option<&Served>, changed: &[String]) -> Result<Served, kube::Error> {
    if let Some(known) = known.filter(|_| changed.is_empty())
        && known.is_current(client).await?
    {
        return Ok(known.clone());
    }
    let (mut all, marks) = read(client).await?;
    for group in changed {
        all.retain(|entry| entry.split('/').next() != Some(group));
        for version in versions_of(client, group).await? {
            with_kinds_of(client, version, &mut all).await?;
        }
    }
    Ok(Served { all: shared(all), marks: if changed.is_empty() { marks } else { [None, None] } })
}

impl Served {
    /// Whether neither list has changed.
    async fn is_current(&self, client: &Client) -> Result<bool, kube::Error> {
        for (path, mark) in LISTS.into_iter().zip(&self.marks) {
            let Some(mark) = mark else { return Ok(false) };
            if list(client, path, Some(mark)).await?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

type Listed = (APIGroupDiscoveryList, Option<HeaderValue>);

/// A list and its mark; `None` where it is the one that has this mark.
async fn list(client: &Client, path: &str, mark: Option<&HeaderValue>) -> Result<Option<Listed>, kube::Error> {
    let request = || Request::get(path).header(ACCEPT, ACCEPT_AGGREGATED_DISCOVERY_V2);
    let asked = match mark {
        Some(mark) => request().header(IF_NONE_MATCH, mark),
        None => request(),
    };
    let answer = client.send(asked.body(Body::empty()).map_err(kube::Error::HttpError)?).await?;
    match answer.status() {
        StatusCode::OK => {}
        StatusCode::NOT_MODIFIED if mark.is_some() => return Ok(None),
        // Asked again for what the client makes of it.
        _ => {
            let again = request().body(Vec::new()).map_err(kube::Error::HttpError)?;
            return Ok(Some((client.request(again).await?, None)));
        }
    }
    let mark = answer.headers().get(ETAG).cloned();
    let body = answer.into_body().collect().await?.to_bytes();
    Ok(Some((serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?, mark)))
}

async fn read(client: &Client) -> Result<(BTreeSet<String>, [Option<HeaderValue>; 2]), kube::Error> {
    let (mut all, mut marks) = (BTreeSet::new(), [None, None]);
    for (path, mark) in LISTS.into_iter().zip(&mut marks) {
        match list(client, path, None).await {
            Ok(Some((list, of_list))) => {
                list.items.iter().for_each(|group| with_kinds(group, &mut all));
                *mark = of_list;
            }
            // Older API servers answer otherwise.
            Ok(None) | Err(kube::Error::SerdeError(_)) => {}
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 406) => {}
            Err(error) => return Err(error),
        }
    }
    // One that does not know that form gave nothing: asked version by version.
    if !all.contains("v1") {
        marks = [None, None];
        let groups = client.list_api_groups().await?.groups;
        let versions = groups.into_iter().flat_map(|group| group.versions).map(|version| version.group_version);
        for version in std::iter::once("v1".to_owned()).chain(versions) {
            with_kinds_of(client, version, &mut all).await?;
        }
    }
    Ok((all, marks))
}

/// The versions of a group as its own document says, none if it is not served.
async fn versions_of(client: &Client, group: &str) -> Result<Vec<String>, kube::Error> {
    let request = Request::get(format!("/apis/{group}")).body(Vec::new()).map_err(kube::Error::HttpError)?;
    match client.request::<APIGroup>(request).await {
        Ok(group) => Ok(group.versions.into_iter().map(|version| version.group_version).collect()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// With the kinds of subresources, as Helm has it (`action.GetVersionSet`).
async fn with_kinds_of(client: &Client, version: String, all: &mut BTreeSet<String>) -> Result<(), kube::Error> {
    if let Some(list) = resources(client, &version).await? {
        all.extend(list.resources.into_iter().map(|resource| format!("{version}/{}", resource.kind)));
        all.insert(version);
    }
    Ok(())
}

fn with_kinds(group: &APIGroupDiscovery, all: &mut BTreeSet<String>) {
    let name = group.metadata.as_ref().and_then(|metadata| metadata.name.clone()).unwrap_or_default();
    for version in &group.versions {
        let api_version = join_api_version(&name, version.version.as_deref().unwrap_or_default());
        let subresources = version.resources.iter().flat_map(|resource| &resource.subresources);
        let kinds = version.resources.iter().filter_map(|resource| resource.response_kind.as_ref());
        let kinds = kinds.chain(subresources.filter_map(|subresource| subresource.response_kind.as_ref()));
        all.extend(kinds.filter_map(|kind| Some(format!("{api_version}/{}", kind.kind.as_ref()?))));
        all.insert(api_version);
    }
}

/// What API servers serve, each that differs once: a fleet of clusters has few, of hundreds of texts.
static SERVED: Mutex<Vec<Weak<BTreeSet<String>>>> = Mutex::new(Vec::new());

fn shared(all: BTreeSet<String>) -> Arc<BTreeSet<String>> {
    let mut known = SERVED.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|one| one.strong_count() > 0);
    if let Some(same) = known.iter().filter_map(Weak::upgrade).find(|one| **one == all) {
        return same;
    }
    let all = Arc::new(all);
    known.push(Arc::downgrade(&all));
    all
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use http::Response;
    use serde_json::json;

    use super::*;

    /// An API server that gives its lists marks, or none.
    #[derive(Clone, Default)]
    struct Server {
        marks: bool,
        /// Its second group has come.
        more: Arc<AtomicBool>,
        answered: Arc<Mutex<Vec<(String, u16)>>>,
    }

    impl Server {
        fn client(&self) -> Client {
            let own = self.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                let answer = own.answer(&request);
                async move { answer }
            });
            Client::new(service, "default")
        }

        fn answer(&self, request: &Request<Body>) -> Result<Response<Body>, http::Error> {
            let group = |name: &str| {
                let kind = json!({"group": name, "version": "v1", "kind": "Thing"});
                let thing = json!({"resource": "things", "responseKind": kind, "scope": "Cluster"});
                json!({"metadata": {"name": name}, "versions": [{"version": "v1", "resources": [thing]}]})
            };
            let path = request.uri().path();
            let groups = match (path, self.more.load(Ordering::SeqCst)) {
                ("/api", _) => vec![group("")],
                (_, false) => vec![group("a.example.org")],
                (_, true) => vec![group("a.example.org"), group("b.example.org")],
            };
            let mark = format!("\"{path}-{}\"", groups.len());
            let is_known = self.marks && request.headers().get(IF_NONE_MATCH).is_some_and(|known| *known == mark);
            self.answered.lock().unwrap().push((path.to_owned(), if is_known { 304 } else { 200 }));
            if is_known {
                return Response::builder().status(StatusCode::NOT_MODIFIED).body(Body::empty());
            }
            let list = json!({"metadata": {}, "items": groups});
            let answer = Response::builder();
            let answer = if self.marks { answer.header(ETAG, mark) } else { answer };
            answer.body(Body::from(list.to_string().into_bytes()))
        }

        fn answered(&self) -> Vec<(String, u16)> {
            std::mem::take(&mut *self.answered.lock().unwrap())
        }
    }

    #[tokio::test]
    async fn what_has_not_changed_is_not_sent_again() {
        for marks in [true, false] {
            let server = Server { marks, ..Server::default() };
            let client = server.client();
            let first = ask(&client, None, &[]).await.unwrap();
            assert!(first.all.contains("v1/Thing") && first.all.contains("a.example.org/v1/Thing"), "{:?}", first.all);
            server.answered();
            let second = ask(&client, Some(&first), &[]).await.unwrap();
            let expected = if marks { 304 } else { 200 };
            assert_eq!(server.answered(), [("/api".to_owned(), expected), ("/apis".to_owned(), expected)]);
            assert!(Arc::ptr_eq(&first.all, &second.all));
            server.more.store(true, Ordering::SeqCst);
            let third = ask(&client, Some(&second), &[]).await.unwrap();
            assert!(third.all.contains("b.example.org/v1/Thing"), "{:?}", third.all);
        }
    }

    #[test]
    fn what_several_serve_is_kept_once() {
        let set = |name: &str| BTreeSet::from([format!("test.example.org/{name}")]);
        let (one, same, other) = (shared(set("v1")), shared(set("v1")), shared(set("v2")));
        assert!(Arc::ptr_eq(&one, &same) && !Arc::ptr_eq(&one, &other));
        let gone = Arc::downgrade(&other);
        drop(other);
        assert!(gone.upgrade().is_none());
    }
}
