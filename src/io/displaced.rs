//! What an operator registered under an earlier name, before it was given a namespace or a watch filter: removed, for its
//! authority is kept by nobody any more.
//!
//! Guarantees: what others answer, or another replica still serves, is left alone; while nothing is found the list is asked
//! for ever more rarely, and then no more.

use std::time::Duration;

use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Preconditions};
use kube::{Client, ResourceExt};
use serde_json::Value;
use tokio::time::Instant;

use crate::api::{MANAGED_BY, MANAGED_BY_LABEL};
use crate::core::install::is_displaced;

/// The pause after the first look that found nothing; it doubles with each. A replica that goes registers anew what was
/// removed while it was there.
const PAUSE: Duration = Duration::from_mins(1);
/// After a pause of this length nobody is there who could.
const LONGEST: Duration = Duration::from_mins(30);

/// Looks for registrations of one kind that this one took the place of.
#[derive(Debug)]
pub struct Displaced<'a> {
    kind: &'static str,
    name: &'a str,
    place: &'a Value,
    due: Instant,
    pause: Duration,
}

impl<'a> Displaced<'a> {
    /// By registrations of this `kind`, that of ours being called `name` and asking for `place`, its `clientConfig`.
    pub fn by(kind: &'static str, name: &'a str, place: &'a Value) -> Self {
        Self { kind, name, place, due: Instant::now(), pause: PAUSE }
    }

    /// Removes what is there under other names that nobody serves. It never fails: what could not be done is logged, and
    /// tried again when this is called again. Who may not list them made none under another name.
    pub async fn remove(&mut self, client: &Client, resource: &ApiResource, is_unserved: impl Fn(&str) -> bool) {
        if self.pause > LONGEST || Instant::now() < self.due {
            return;
        }
        match self.found(client, resource, is_unserved).await {
            Ok(true) => self.pause = PAUSE,
            Ok(false) => {
                self.due = Instant::now() + self.pause;
                self.pause *= 2;
            }
            Err(kube::Error::Api(status)) if status.code == 403 => {
                tracing::debug!("{} may not be listed or deleted: {}", self.kind, status.message);
                self.pause = LONGEST * 2;
            }
            Err(error) => tracing::warn!(%error, "what was registered by an earlier name can't be removed"),
        }
    }

    /// Whether there were any.
    async fn found(
        &self,
        client: &Client,
        resource: &ApiResource,
        is_unserved: impl Fn(&str) -> bool,
    ) -> Result<bool, kube::Error> {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), resource);
        let ours = ListParams::default().labels(&format!("{MANAGED_BY_LABEL}={MANAGED_BY}"));
        let mut is_found = false;
        for live in api.list(&ours).await?.items {
            let name = live.name_any();
            if !is_displaced(&serde_json::to_value(&live).unwrap_or_default(), self.name, self.place) {
                continue;
            }
            is_found = true;
            if !is_unserved(&name) {
                continue;
            }
            let preconditions = Some(Preconditions { uid: live.uid(), resource_version: None });
            match api.delete(&name, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                other => {
                    other?;
                    tracing::info!("{} {name} was removed: it is {} now", self.kind, self.name);
                }
            }
        }
        Ok(is_found)
    }
}
