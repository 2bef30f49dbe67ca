//! Serves the web page: from what this replica watches anyway, so nothing is asked of the API server for it. Each replica
//! shows everything.
//!
//! Guarantees: nothing is changed by a request; one page is made at a time, and is shown to all who ask for it within
//! [`FRESH`]; who comes under another name than this machine's is refused where only this machine should reach it.

mod door;
mod kept;

use std::collections::{BTreeSet, HashMap};
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, RawQuery, State};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Router, body::Bytes};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::sync::{Semaphore, SetOnce};

use self::door::Door;
use self::kept::Kept;
use super::Context;
use crate::api::{
    ClusterAddon, ClusterStack, ClusterStackRelease, ProviderClusterStackRelease, ProviderNodeImageRelease,
};
use crate::core::in_use::ClusterUse;
use crate::core::page::{Asked, ClusterSeen, ListSeen, Markup, PageError, StackSeen};
use crate::core::tree::{ClusterView, classes_of, is_of};

/// For how long a page that was made is shown to others who ask for it.
const FRESH: Duration = Duration::from_secs(2);
/// How long one waits for the pages of others to be made.
const PATIENCE: Duration = Duration::from_secs(10);

/// What other controllers have watched, once they do.
#[derive(Default)]
pub struct Caches {
    /// ClusterAddons.
    pub addons: SetOnce<Store<ClusterAddon>>,
    /// ProviderClusterStackReleases of the built-in provider.
    pub provided: SetOnce<Store<ProviderClusterStackRelease>>,
    /// Node images of the built-in provider.
    pub images: SetOnce<Store<ProviderNodeImageRelease>>,
}

fn objects<K: kube::Resource<DynamicType = ()> + Clone + 'static>(cache: &SetOnce<Store<K>>) -> Vec<Arc<K>> {
    cache.get().map(Store::state).unwrap_or_default()
}

/// What makes pages.
pub(super) struct Pages {
    ctx: Arc<Context>,
    markup: Markup,
    door: Door,
    replica: String,
    turn: Semaphore,
    kept: Kept,
}

impl Pages {
    /// Pages that are served at `address` by `replica`.
    pub(super) fn new(ctx: Arc<Context>, address: SocketAddr, replica: String) -> Result<Arc<Self>, PageError> {
        let markup = Markup::new()?;
        let door = Door::new(markup.style_source(), address)?;
        Ok(Arc::new(Self { ctx, markup, door, replica, turn: Semaphore::new(1), kept: Kept::new(FRESH) }))
    }
}

/// Routes of the pages.
pub(super) fn routes(pages: Arc<Pages>) -> Router {
    let door = pages.door.clone();
    let routes = Router::new()
        .route("/", get(list))
        .route("/namespaces/{namespace}/clusterstacks/{name}", get(stack))
        .fallback(nothing)
        .with_state(pages);
    door.before(routes)
}

async fn list(State(pages): State<Arc<Pages>>, RawQuery(query): RawQuery) -> Response {
    let asked = match Asked::read(&query.unwrap_or_default()) {
        Ok(asked) => asked,
        Err(error) => return pages.notice(StatusCode::BAD_REQUEST, "Not understood", &error.to_string(), "./", None),
    };
    let key = asked.link();
    pages
        .answer(asked, key, "./", |pages, asked, now| {
            pages.markup.list(asked, &pages.all(), &pages.replica, now).map(Some)
        })
        .await
}

async fn stack(
    State(pages): State<Arc<Pages>>,
    Path((namespace, name)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Response {
    const HOME: &str = "../../../";
    let asked = match Asked::read(&query.unwrap_or_default()) {
        Ok(Asked { refresh, .. }) => Asked { refresh, ..Asked::default() },
        Err(error) => return pages.notice(StatusCode::BAD_REQUEST, "Not understood", &error.to_string(), HOME, None),
    };
    let key = format!("{namespace}/{name}{}", asked.link());
    pages
        .answer(asked, key, HOME, move |pages, asked, now| match pages.one(&namespace, &name) {
            Some(seen) => pages.markup.stack(asked, &seen, &pages.replica, now).map(Some),
            None => Ok(None),
        })
        .await
}

fn nothing(State(pages): State<Arc<Pages>>, address: Uri) -> Ready<Response> {
    let address = address.into_parts().path_and_query;
    let home = home_of(address.as_ref().map_or("/", PathAndQuery::path));
    let message = "There is no page of this address.";
    ready(pages.notice(StatusCode::NOT_FOUND, "Nothing is here", message, &home, None))
}

/// The way from a path to the list: relative, for a proxy may serve all of it below a path of its own.
fn home_of(path: &str) -> String {
    match path.matches('/').count() {
        0 | 1 => "./".to_owned(),
        deep => "../".repeat(deep - 1),
    }
}

impl Pages {
    fn notice(&self, status: StatusCode, title: &str, message: &str, home: &str, refresh: Option<u16>) -> Response {
        match self.markup.notice((title, message), home, Timestamp::now()) {
            Ok(text) => html(status, text.into(), refresh),
            Err(error) => failed(&error),
        }
    }

    /// The page that `make` makes, if nobody has just asked for it; one at a time, beside the operator's own work.
    async fn answer(
        self: Arc<Self>,
        asked: Asked,
        key: String,
        home: &str,
        make: impl FnOnce(&Self, &Asked, Timestamp) -> Result<Option<String>, PageError> + Send + 'static,
    ) -> Response {
        let refresh = asked.refresh;
        if !self.ctx.first_read.is_done() {
            return self.later("Starting", "The operator has not read all objects yet.", home, refresh);
        }
        if let Some(page) = self.kept.get(&key) {
            return html(StatusCode::OK, page, refresh);
        }
        let Ok(Ok(_turn)) = tokio::time::timeout(PATIENCE, self.turn.acquire()).await else {
            return self.later("Busy", "Many ask at once. Try again in a moment.", home, refresh);
        };
        // Who held the turn may have made it.
        if let Some(page) = self.kept.get(&key) {
            return html(StatusCode::OK, page, refresh);
        }
        let pages = Arc::clone(&self);
        match tokio::task::spawn_blocking(move || make(&pages, &asked, Timestamp::now())).await {
            Ok(Ok(Some(text))) => html(StatusCode::OK, self.kept.put(key, text.into()), refresh),
            Ok(Ok(None)) => {
                let message = "It is not there, or not any more.";
                self.notice(StatusCode::NOT_FOUND, "No such ClusterStack", message, home, refresh)
            }
            Ok(Err(error)) => failed(&error),
            Err(error) => failed(&error),
        }
    }

    fn later(&self, title: &str, message: &str, home: &str, refresh: Option<u16>) -> Response {
        let mut response = self.notice(StatusCode::SERVICE_UNAVAILABLE, title, message, home, refresh);
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
        response
    }

    /// What the list shows.
    fn all(&self) -> ListSeen {
        let addons = objects(&self.ctx.caches.addons);
        let addons: HashMap<(Option<String>, &str), &ClusterAddon> =
            addons.iter().map(|addon| ((addon.namespace(), cluster_of(addon)), &**addon)).collect();
        let clusters = self.ctx.watches.clusters_seen().into_iter().map(|cluster| {
            let addon = addons.get(&(Some(cluster.namespace.clone()), cluster.name.as_str())).copied();
            ClusterSeen::new(cluster.class, addon)
        });
        ListSeen {
            clusters: clusters.collect(),
            clusters_unread: self.ctx.watches.clusters_are_unread(),
            stacks: self.ctx.stacks.state(),
            releases: self.ctx.stack_releases.state(),
        }
    }

    /// What the page of a ClusterStack shows; `None` where there is none.
    fn one(&self, namespace: &str, name: &str) -> Option<StackSeen> {
        let ctx = &self.ctx;
        let stack = ctx.stacks.get(&ObjectRef::<ClusterStack>::new(name).within(namespace))?;
        let releases = ctx.stack_releases.state();
        let releases: Vec<ClusterStackRelease> =
            releases.iter().filter(|release| is_of(release, &stack)).map(|release| (**release).clone()).collect();
        let classes: BTreeSet<(String, String)> = releases.iter().flat_map(classes_of).collect();
        let clusters = ctx.watches.clusters_seen().into_iter();
        let clusters = clusters.filter(|cluster| cluster.class.as_ref().is_some_and(|class| classes.contains(class)));
        let addons = objects(&ctx.caches.addons);
        let view = |cluster: crate::core::addon::cluster::Cluster| {
            let is_it = |addon: &&Arc<ClusterAddon>| {
                addon.namespace().as_deref() == Some(&cluster.namespace) && cluster_of(addon) == cluster.name
            };
            ClusterView {
                addon: addons.iter().find(is_it).map(|addon| (**addon).clone()),
                cluster: ClusterUse {
                    namespace: cluster.namespace,
                    name: cluster.name,
                    class: cluster.class,
                    reconciled: cluster.rolled_out,
                },
            }
        };
        Some(StackSeen {
            clusters: clusters.map(view).collect(),
            clusters_unread: ctx.watches.clusters_are_unread(),
            stack,
            releases,
            provided: objects(&ctx.caches.provided),
            images: objects(&ctx.caches.images),
        })
    }
}

fn cluster_of(addon: &ClusterAddon) -> &str {
    addon.spec.cluster_ref.name.as_deref().unwrap_or_default()
}

fn html(status: StatusCode, page: Bytes, refresh: Option<u16>) -> Response {
    let mut response = (status, [(header::CONTENT_TYPE, "text/html; charset=utf-8")], page).into_response();
    if let Some(seconds) = refresh {
        response.headers_mut().insert(header::REFRESH, HeaderValue::from(seconds));
    }
    response
}

fn failed(error: &dyn std::error::Error) -> Response {
    tracing::error!(%error, "a web page can't be made");
    (StatusCode::INTERNAL_SERVER_ERROR, "the page can't be made: the operator's log says why\n").into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_home_is_relative() {
        for (path, home) in
            [("/", "./"), ("/x", "./"), ("/x/", "../"), ("/namespaces/a/clusterstacks", "../../"), ("*", "./")]
        {
            assert_eq!(home_of(path), home, "{path}");
        }
    }
}
