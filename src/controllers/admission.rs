//! The validating webhook: the server that the API server asks before it stores an object, and what it needs to be asked.
//!
//! Guarantees: an answer takes three seconds at most; every replica gives the same one; what can't be looked into is allowed
//! with a warning that says so. Nothing relies on it: what is refused here, the controllers hold as well.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Router, middleware};
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, META_API_VERSION_V1, META_KIND};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::RunError;
use super::served::{
    RETRY, SeenReleases, UPKEEP, WEBHOOK, below_path, client_config, names, not_too_large, registered_name, served_as,
    turn_of,
};
use crate::core::admission::Verdict;
use crate::core::install::WEBHOOK_CERTIFICATE;
use crate::core::source::AllowList;
use crate::io::apply::refusal;
use crate::io::client::Clients;
use crate::io::displaced::Displaced;
use crate::io::extension_config::Registered;
use crate::io::fence::{self, Fence};
use crate::io::hook_certificate::{self, Kept};
use crate::io::kinds::Kinds;
use crate::io::members::Members;
use crate::io::tls_server::{TlsServer, in_time};
use crate::io::usage::CLUSTER_API;
use crate::io::webhook_configuration::{self, ConfigurationError, Webhook};
use crate::settings::{HookPlace, Settings, WebhookSettings};

mod reading;

/// What is served, for messages.
const WHAT: &str = "admission webhook";
/// Where it is served.
const PATH: &str = "/validate";
/// Longest time for reading what an answer needs; the API server waits for five seconds.
const READ: Duration = Duration::from_secs(3);
/// Largest body: an object, and the one before it, are at most what etcd holds, and JSON is longer.
const MAX_BODY: usize = 8 * 1024 * 1024;
/// How long the first registration waits for the releases: without their classes it would take back those of a replica.
const FIRST_READ: Duration = Duration::from_secs(20);
/// Questions that are looked into at once.
const AT_ONCE: usize = 16;

/// What the handler works with.
struct Server {
    /// Without a limit on requests: an answer has to come in time.
    client: Client,
    kinds: Kinds,
    releases: Arc<SeenReleases>,
    allow: AllowList,
    /// Our own user name, as soon as it is known.
    operator: OnceLock<String>,
    room: Semaphore,
}

/// Starts the server in `tasks` until `end`; without one, sees that nobody asks for it.
pub(super) fn start(
    settings: &Settings,
    clients: &Clients,
    members: &Members,
    end: &CancellationToken,
    tasks: &TaskTracker,
) -> Result<(), RunError> {
    let name = registered_name(settings.namespace.as_deref(), settings.watch_filter.as_deref());
    let Some(webhook) = settings.webhook.clone() else {
        tasks.spawn(withdraw(clients.own(), members.clone(), name, end.clone()));
        return Ok(());
    };
    let client = clients.watching();
    let server = Arc::new(Server {
        releases: SeenReleases::watched(&client, settings.namespace.as_deref(), end, tasks),
        client,
        kinds: Kinds::default(),
        // What is no list was refused when the sources were opened.
        allow: AllowList::parse(settings.allow_source.iter().map(String::as_str)).unwrap_or_default(),
        operator: OnceLock::new(),
        room: Semaphore::new(AT_ONCE),
    });
    let served = TlsServer::bind(WHAT, webhook.address, routes(&server, &webhook.place), tasks)
        .map_err(|error| RunError::Serve { what: WHAT, address: webhook.address, error })?;
    let registration = Webhook {
        name,
        place: client_config(&webhook.place, &webhook.namespace, PATH),
        namespace: settings.namespace.clone(),
        watch_filter: settings.watch_filter.clone(),
        operator: None,
        classes: Vec::new(),
    };
    tasks.spawn(serve((served, server), registration, (webhook, members.clone()), (clients.own(), end.clone())));
    Ok(())
}

/// Serves as soon as there is a certificate, and keeps certificate and configuration as they have to be.
///
/// Every replica serves that has the flag; the eldest of them makes the certificate and registers.
async fn serve(
    (mut served, server): (TlsServer, Arc<Server>),
    mut registration: Webhook,
    (webhook, members): (WebhookSettings, Members),
    (own, end): (Client, CancellationToken),
) {
    let names = names(&webhook.place, &webhook.namespace);
    let secret = format!("{}{WEBHOOK_CERTIFICATE}", registration.name);
    let kept = Kept { namespace: &webhook.namespace, name: &secret, names: &names, what: WHAT };
    let mut told = String::new();
    let duty = served_as(WEBHOOK, &registration.name);
    let resource = ApiResource::erase::<ValidatingWebhookConfiguration>(&());
    let (name, place) = (registration.name.clone(), registration.place.clone());
    let mut displaced = Displaced::by("ValidatingWebhookConfiguration", &name, &place);
    tokio::select! {
        () = end.cancelled() => return,
        _ = tokio::time::timeout(FIRST_READ, server.releases.read()) => {}
    }
    loop {
        // Cluster API may come, or serve another version, while we run.
        server.kinds.forget(CLUSTER_API);
        registration.operator = server.operator(&own).await;
        registration.classes = reading::classes_of_other_names(&server.releases);
        let registers = members.registers(&duty);
        let found = fence::within(Fence::of_registrar(&members, &duty), async {
            hook_certificate::ensure(&fence::guarded(&own), kept, (Timestamp::now(), registers)).await
        });
        let said = match found.await {
            Err(error) => Err(error.to_string()),
            Ok(identity) => {
                // Who is told of a new authority first trusts what it signs.
                let registered = if registers {
                    let register = async {
                        let client = fence::guarded(&own);
                        let done = webhook_configuration::register(&client, &registration, &identity.bundle).await?;
                        let is_unserved = |name: &str| members.is_unserved(&served_as(WEBHOOK, name));
                        displaced.remove(&client, &resource, is_unserved).await;
                        Ok::<_, ConfigurationError>(done)
                    };
                    fence::within(Fence::of_registrar(&members, &duty), register).await
                } else {
                    Ok(Registered::Unchanged)
                };
                served.serve(&identity).and_then(|()| registered.map_err(|error| error.to_string()))
            }
        };
        let pause = if said.is_ok() && registration.operator.is_some() { UPKEEP } else { RETRY };
        tell(&mut told, &registration.name, said);
        tokio::select! {
            () = end.cancelled() => return served.shutdown(),
            () = tokio::time::sleep(pause) => {}
            () = turn_of(&members, &duty, registers) => {}
            () = other_classes(&server.releases, &registration.classes) => {}
        }
    }
}

/// Waits until releases bring ClusterClasses of other names than these.
async fn other_classes(releases: &SeenReleases, known: &[String]) {
    loop {
        releases.changed().await;
        if reading::classes_of_other_names(releases) != known {
            return;
        }
    }
}

/// Logs what came of it, once.
fn tell(told: &mut String, name: &str, said: Result<Registered, String>) {
    match said {
        Ok(Registered::Written) => tracing::info!("ValidatingWebhookConfiguration {name} was applied"),
        Ok(_) => told.clear(),
        Err(text) if *told == text => {}
        Err(text) => {
            tracing::warn!("{text}");
            *told = text;
        }
    }
}

/// Takes our configuration away where no replica serves it. Who may not read it never made it.
async fn withdraw(client: Client, members: Members, name: String, end: CancellationToken) {
    let duty = served_as(WEBHOOK, &name);
    loop {
        let is_unserved = members.is_unserved(&duty);
        let removed = if is_unserved { webhook_configuration::withdraw(&client, &name).await } else { Ok(false) };
        match removed {
            Ok(true) => tracing::info!("ValidatingWebhookConfiguration {name} was removed: no webhook is served"),
            Ok(false) => {}
            Err(kube::Error::Api(status)) if status.code == 403 => {
                return tracing::debug!("ValidatingWebhookConfiguration {name} may not be looked at");
            }
            Err(error) => tracing::warn!(%error, "ValidatingWebhookConfiguration {name} can't be removed"),
        }
        tokio::select! {
            () = end.cancelled() => return,
            () = tokio::time::sleep(if is_unserved { UPKEEP } else { RETRY }) => {}
        }
    }
}

fn routes(server: &Arc<Server>, place: &HookPlace) -> Router {
    let routes = Router::new()
        .route(PATH, post(validate))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(MAX_BODY, not_too_large))
        .layer(middleware::from_fn(in_time))
        .with_state(Arc::clone(server));
    below_path(place, routes)
}

async fn validate(
    State(server): State<Arc<Server>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, (StatusCode, String)> {
    let body = body.map_err(|error| (error.status(), format!("{error}\n")))?;
    let bad = |why: &str| (StatusCode::BAD_REQUEST, format!("no {META_KIND} of {META_API_VERSION_V1}: {why}\n"));
    let review: AdmissionReview<DynamicObject> =
        serde_json::from_slice(&body).map_err(|error| bad(&error.to_string()))?;
    if review.types.api_version != META_API_VERSION_V1 || review.types.kind != META_KIND {
        return Err(bad("its apiVersion or kind is another one"));
    }
    let request: AdmissionRequest<DynamicObject> = review.try_into().map_err(|_| bad("it has no request"))?;
    let verdict = server.verdict(&request).await;
    let text = json!(answer(&request, verdict).into_review()).to_string();
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

fn answer(request: &AdmissionRequest<DynamicObject>, verdict: Verdict) -> AdmissionResponse {
    let mut response = AdmissionResponse::from(request);
    response.warnings = (!verdict.warnings.is_empty()).then_some(verdict.warnings);
    if let Some(why) = verdict.refusal {
        response = response.deny(why);
        "Forbidden".clone_into(&mut response.result.reason);
        response.result.code = 403;
    }
    response
}

impl Server {
    /// What is said to a request. It is allowed where that can't be known.
    async fn verdict(&self, request: &AdmissionRequest<DynamicObject>) -> Verdict {
        let (kind, operation) = (&request.kind.kind, &request.operation);
        let name = format!("{}/{}", request.namespace.as_deref().unwrap_or_default(), request.name);
        let found = match tokio::time::timeout(READ, self.look(request)).await {
            Ok(found) => found,
            Err(_) => Err(format!("the API server did not answer within {} s", READ.as_secs())),
        };
        match found {
            Ok(verdict) => {
                tracing::debug!(kind, ?operation, name, ?verdict, "the webhook was asked");
                verdict
            }
            Err(why) => {
                tracing::warn!(kind, ?operation, name, why, "the webhook could not look into it: allowed");
                Verdict::warn(format!("clusterstack could not look into this, so it was not checked: {why}"))
            }
        }
    }

    async fn look(&self, request: &AdmissionRequest<DynamicObject>) -> Result<Verdict, String> {
        let _room = self.room.acquire().await.map_err(|error| error.to_string())?;
        reading::verdict(self, request).await
    }

    /// Our own user name: what we delete ourselves was looked at before. Asked for until there is an answer.
    async fn operator(&self, client: &Client) -> Option<String> {
        if let Some(known) = self.operator.get() {
            return Some(known.clone());
        }
        let api: Api<SelfSubjectReview> = Api::all(client.clone());
        match api.create(&PostParams::default(), &SelfSubjectReview::default()).await {
            Ok(review) => {
                let name = review.status?.user_info?.username?;
                Some(self.operator.get_or_init(|| name).clone())
            }
            Err(error) => {
                tracing::warn!(why = refusal(&error).message, "our own user name can't be asked for");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_forbidden_and_an_allowance_may_warn() {
        let request: AdmissionReview<DynamicObject> = serde_json::from_value(json!({
            "apiVersion": META_API_VERSION_V1, "kind": META_KIND,
            "request": {
                "uid": "u-1", "operation": "DELETE", "userInfo": {"username": "alice"}, "object": null, "oldObject": null,
                "kind": {"group": "clusterstack.x-k8s.io", "version": "v1alpha1", "kind": "ClusterStackRelease"},
                "resource": {"group": "clusterstack.x-k8s.io", "version": "v1alpha1", "resource": "clusterstackreleases"},
            },
        }))
        .unwrap();
        let request = request.try_into().unwrap();
        let told = |verdict| json!(answer(&request, verdict).into_review());
        let refused = told(Verdict { refusal: Some("in use".into()), warnings: vec![] });
        assert_eq!(refused["apiVersion"], META_API_VERSION_V1);
        assert_eq!(
            refused["response"],
            json!({"uid": "u-1", "allowed": false, "status": {"code": 403, "message": "in use", "reason": "Forbidden"}})
        );
        let warned = told(Verdict::warn("unwise".into()));
        assert_eq!(warned["response"], json!({"uid": "u-1", "allowed": true, "status": {}, "warnings": ["unwise"]}));
    }
}
