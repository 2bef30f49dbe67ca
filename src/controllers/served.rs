//! What the servers that Kubernetes and Cluster API call have in common: names, the releases that they know, and when their
//! upkeep is due.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use kube::Client;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{self, Store};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::changes::at_init_done;
use crate::api::ClusterStackRelease;
use crate::core::digest::hex;
use crate::io::members::Members;
use crate::io::stored::{self, Unreadable};
use crate::settings::{HookPlace, Settings};

/// How much of a body that is too large is read, and dropped, before it is refused.
const LINGER: usize = 16 * 1024 * 1024;
/// How long that may take.
const LINGER_TIME: Duration = Duration::from_secs(2);
/// How often certificates and registrations are looked at.
pub(super) const UPKEEP: Duration = Duration::from_mins(1);
/// How soon again when that failed.
pub(super) const RETRY: Duration = Duration::from_secs(3);

/// Refuses a body that says to be larger than the limit, once it was sent: whoever still sends when a connection ends may
/// never see the answer (RFC 9112, section 9.6).
pub(super) async fn not_too_large(State(limit): State<usize>, request: Request, next: Next) -> Response {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let Some(length) = length.filter(|length: &usize| *length > limit) else { return next.run(request).await };
    let drain = async {
        let mut parts = request.into_body().into_data_stream();
        let mut left = LINGER;
        while let Some(Ok(part)) = parts.next().await {
            let Some(rest) = left.checked_sub(part.len()) else { break };
            left = rest;
        }
    };
    let _ = tokio::time::timeout(LINGER_TIME, drain).await;
    let refusal = format!("{length} bytes are over the length limit of {limit}\n");
    (StatusCode::PAYLOAD_TOO_LARGE, refusal).into_response()
}

/// Releases as last seen, and whether all were read once. Followers answer too, who have no caches of controllers.
pub(super) struct SeenReleases {
    pub(super) store: Store<ClusterStackRelease>,
    is_read: AtomicBool,
    changed: Notify,
}

impl SeenReleases {
    /// Watches them in `tasks` until `end`.
    pub(super) fn watched(
        client: &Client,
        namespace: Option<&str>,
        end: &CancellationToken,
        tasks: &TaskTracker,
    ) -> Arc<Self> {
        let (store, writer) = reflector::store();
        // The controllers tell of what can't be read.
        let watch = stored::watch(client, namespace, store.clone(), Unreadable::silent());
        let releases = Arc::new(Self { store, is_read: AtomicBool::new(false), changed: Notify::new() });
        let seen = Arc::clone(&releases);
        let watch = watch.reflect(writer).inspect(move |event| {
            let Ok(event) = event else { return };
            at_init_done(|| seen.is_read.store(true, Ordering::Relaxed))(event);
            seen.changed.notify_one();
        });
        let until = end.clone();
        tasks.spawn(async move {
            tokio::select! {
                () = until.cancelled() => {}
                () = watch.for_each(|_| std::future::ready(())) => {}
            }
        });
        releases
    }

    /// Whether all were read once; before that nothing is known.
    pub(super) fn is_read(&self) -> bool {
        self.is_read.load(Ordering::Relaxed)
    }

    /// Waits until all were read once. For one who waits.
    pub(super) async fn read(&self) {
        while !self.is_read() {
            self.changed().await;
        }
    }

    /// Waits until something of them changes. For one who waits.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// Each operator registers under a name of its own: one for all namespaces, or one for each namespace or filter. A DNS
/// label.
pub(super) fn registered_name(namespace: Option<&str>, filter: Option<&str>) -> String {
    let parts: Vec<&str> = ["clusterstack"].into_iter().chain(namespace).collect();
    let plain = parts.join("-");
    if filter.is_none() && plain.len() <= 63 {
        return plain;
    }
    let digest = hex(&Sha256::digest(json!([namespace, filter]).to_string()));
    format!("clusterstack-{}", &digest[..16])
}

/// The webhook, in what replicas tell each other.
pub(super) const WEBHOOK: &str = "webhook";
/// The runtime hooks.
pub(super) const HOOKS: &str = "hooks";

/// How a replica tells the others that it serves something that is registered under a name.
pub(super) fn served_as(what: &str, name: &str) -> String {
    format!("{what} {name}")
}

/// What a replica with these settings serves, for the others to know.
pub(super) fn all_served(settings: &Settings) -> BTreeSet<String> {
    let name = registered_name(settings.namespace.as_deref(), settings.watch_filter.as_deref());
    let served = [(WEBHOOK, settings.webhook.is_some()), (HOOKS, settings.hooks.is_some())];
    served.into_iter().filter(|(_, is_served)| *is_served).map(|(what, _)| served_as(what, &name)).collect()
}

/// Waits until it is another one's turn to register what this replica serves, or has become ours.
pub(super) async fn turn_of(members: &Members, duty: &str, registers: bool) {
    while members.registers(duty) == registers {
        tokio::time::sleep(RETRY).await;
    }
}

/// The names by which a server is called: those of its certificate. `namespace` is that of its Service.
pub(super) fn names(place: &HookPlace, namespace: &str) -> Vec<String> {
    match place {
        HookPlace::Service { name, .. } => {
            let short = format!("{name}.{namespace}.svc");
            vec![format!("{short}.cluster.local"), short]
        }
        HookPlace::Url(url) => match url.host() {
            Some(url::Host::Domain(name)) => vec![name.to_owned()],
            Some(url::Host::Ipv4(address)) => vec![address.to_string()],
            Some(url::Host::Ipv6(address)) => vec![address.to_string()],
            None => Vec::new(),
        },
    }
}

/// A `clientConfig` without its `caBundle`; `path` is empty, or begins with `/`.
pub(super) fn client_config(place: &HookPlace, namespace: &str, path: &str) -> Value {
    match place {
        HookPlace::Service { name, port } if path.is_empty() => {
            json!({"service": {"namespace": namespace, "name": name, "port": port}})
        }
        HookPlace::Service { name, port } => {
            json!({"service": {"namespace": namespace, "name": name, "port": port, "path": path}})
        }
        HookPlace::Url(url) => json!({"url": format!("{}{path}", url.as_str().trim_end_matches('/'))}),
    }
}

/// The routes, and the same below the path of a URL, with which calls come.
pub(super) fn below_path(place: &HookPlace, routes: Router) -> Router {
    let prefix = match place {
        HookPlace::Url(url) => url.path().trim_end_matches('/'),
        HookPlace::Service { .. } => "",
    };
    // What axum would take for a variable can't be a prefix.
    if prefix.is_empty() || prefix.contains(['{', '}']) {
        return routes;
    }
    Router::new().nest(prefix, routes.clone()).merge(routes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_registers_under_a_name_of_its_own() {
        assert_eq!(registered_name(None, None), "clusterstack");
        assert_eq!(registered_name(Some("team"), None), "clusterstack-team");
        let long = "x".repeat(63);
        let names = [
            registered_name(Some(&long), None),
            registered_name(None, Some("Blue.1")),
            registered_name(Some("team"), Some("Blue.1")),
        ];
        for name in &names {
            assert!(
                name.len() <= 63 && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            );
        }
        assert!(names[0] != names[1] && names[1] != names[2]);
    }

    #[test]
    fn the_certificate_has_the_names_that_are_called() {
        let url = |text: &str| HookPlace::Url(text.parse().unwrap());
        let service = HookPlace::Service { name: "hooks".into(), port: 443 };
        assert_eq!(names(&service, "system"), ["hooks.system.svc.cluster.local", "hooks.system.svc"]);
        assert_eq!(names(&url("https://[::1]:1/a"), "system"), ["::1"]);
        assert_eq!(names(&url("https://hooks.example.com"), "system"), ["hooks.example.com"]);
    }

    #[test]
    fn a_call_goes_to_a_service_or_a_url() {
        let url = HookPlace::Url("https://127.0.0.1:9443/a/".parse().unwrap());
        assert_eq!(client_config(&url, "system", "/validate"), json!({"url": "https://127.0.0.1:9443/a/validate"}));
        assert_eq!(client_config(&url, "system", ""), json!({"url": "https://127.0.0.1:9443/a"}));
        let service = HookPlace::Service { name: "hooks".into(), port: 443 };
        let mut expected = json!({"service": {"namespace": "system", "name": "hooks", "port": 443}});
        assert_eq!(client_config(&service, "system", ""), expected);
        expected["service"]["path"] = json!("/validate");
        assert_eq!(client_config(&service, "system", "/validate"), expected);
    }
}
