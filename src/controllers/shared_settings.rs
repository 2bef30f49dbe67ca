//! Settings that all replicas share: a ConfigMap that each watches. What can be changed at once is, for the rest this
//! replica begins anew, and what can't be used is refused, in an event of the ConfigMap: then what was good stays.
//! Where nothing was, nothing is done before the ConfigMap is corrected.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource, ResourceExt};
use serde_json::json;
use tokio::sync::{SetOnce, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::run::{self, RunError};
use crate::api::SETTINGS_BEFORE;
use crate::api::condition::{MAX_MESSAGE, Reason, cut};
use crate::api::operator_shard::ShardSettings;
use crate::io::client::Clients;
use crate::io::events::Events;
use crate::io::members;
use crate::io::patient_watch::patient;
use crate::io::telemetry;
use crate::settings::shared::{Data, Shared, Step};
use crate::settings::{Flags, Live};

/// Who writes down which settings were good.
const MANAGER: &str = "clusterstack-settings";
/// Largest settings that are kept as the last good ones, in bytes.
const KEPT: usize = 64 * 1024;
/// When it is said that the API server does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a run of the operator is told from outside.
pub(super) struct Ongoing {
    /// What may change meanwhile.
    pub(super) live: watch::Receiver<Live>,
    /// Which version of the shared settings that is; none without.
    pub(super) said: watch::Receiver<Option<ShardSettings>>,
    /// Set when it has all that it needs to work.
    pub(super) started: Arc<SetOnce<()>>,
}

/// Runs the operator until `stop`, with the flags and what a ConfigMap says.
///
/// # Errors
/// What keeps it from starting or from working.
pub async fn run(flags: Flags, stop: CancellationToken) -> Result<(), RunError> {
    let Some(name) = flags.settings.clone().filter(|name| !name.is_empty()) else {
        let (_live, taken) = watch::channel(flags.live());
        let (_said, heard) = watch::channel(None);
        let ongoing = Ongoing { live: taken, said: heard, started: Arc::default() };
        return Box::pin(run::run(flags.settings()?, ongoing, stop)).await;
    };
    let (place, mut found, _watching) = Place::watched(&flags, name).await?;
    if !first(&mut found, &place, &stop).await {
        return Ok(());
    }
    let map = found.borrow_and_update().map();
    let mut shared = Shared::begin(flags, &place.replica, data_of(map.as_ref()), map.as_ref().and_then(last_good));
    let (said, heard) = watch::channel(None);
    loop {
        let map = found.borrow().map();
        place.refused(&shared, map).await;
        if shared.is_held() && !held(&mut shared, &mut found, &place, &stop).await? {
            return Ok(());
        }
        let (live, taken) = watch::channel(shared.flags().live());
        let (end, started) = (stop.child_token(), Arc::new(SetOnce::new()));
        let ongoing = Ongoing { live: taken, said: heard.clone(), started: Arc::clone(&started) };
        let settings = shared.flags().clone().settings()?;
        let mut work = Box::pin(run::run(settings, ongoing, end.clone()));
        let mut works = false;
        loop {
            telemetry::set_level(shared.flags().log_level);
            said.send_replace(Some(shared.said()));
            tokio::select! {
                result = &mut work => match result {
                    Err(error) if !stop.is_cancelled() && shared.fail(&error.to_string()) => {
                        if shared.is_held() {
                            // It may be no fault of the settings: who starts the process anew tries them again.
                            let map = found.borrow().map();
                            place.refused(&shared, map).await;
                            return Err(error);
                        }
                        break;
                    }
                    result => return result,
                },
                () = started.wait(), if !works => {
                    works = true;
                    shared.confirm();
                    place.keep(&shared).await;
                }
                Ok(()) = found.changed() => {
                    let map = found.borrow_and_update().map();
                    match shared.find(data_of(map.as_ref())) {
                        Step::Nothing => {}
                        Step::Tell => place.refused(&shared, map).await,
                        Step::Live => {
                            tracing::info!(settings = shared.said().running, "other settings are in force");
                            live.send_replace(shared.flags().live());
                            place.keep(&shared).await;
                        }
                        Step::Restart => {
                            tracing::info!(settings = shared.said().wanted, "beginning anew with other settings");
                            said.send_replace(Some(shared.said()));
                            end.cancel();
                            (&mut work).await?;
                            break;
                        }
                    }
                }
            }
        }
        if stop.is_cancelled() {
            return Ok(());
        }
    }
}

/// Waits for the first reading; `false` if the process ends before.
async fn first(found: &mut Found, place: &Place, stop: &CancellationToken) -> bool {
    let mut late = std::pin::pin!(tokio::time::sleep(PATIENCE));
    loop {
        tokio::select! {
            () = stop.cancelled() => return false,
            read = found.wait_for(|read| !matches!(read, Read::NotYet)) => return read.is_ok(),
            () = &mut late, if !late.is_elapsed() => {
                tracing::warn!(settings = place.name, "waiting for the API server to say what the ConfigMap holds");
            }
        }
    }
}

/// Does nothing, and is not ready, until the ConfigMap holds what can be used; `false` if the process ends before.
async fn held(
    shared: &mut Shared,
    found: &mut Found,
    place: &Place,
    stop: &CancellationToken,
) -> Result<bool, RunError> {
    let end = stop.child_token();
    let _end = end.clone().drop_guard();
    run::idle(&shared.flags().clone().settings()?, &end).await?;
    while shared.is_held() {
        tokio::select! {
            () = stop.cancelled() => return Ok(false),
            changed = found.changed() => if changed.is_err() { return Ok(false) },
        }
        let map = found.borrow_and_update().map();
        if shared.find(data_of(map.as_ref())) == Step::Tell {
            place.refused(shared, map).await;
        }
    }
    tracing::info!(settings = shared.said().wanted, "beginning with settings that can be used");
    Ok(true)
}

/// Where the ConfigMap is.
struct Place {
    api: Api<ConfigMap>,
    events: Events,
    name: String,
    /// Name of our pod.
    replica: String,
}

/// What was read of it.
#[derive(Clone, Debug)]
enum Read {
    NotYet,
    None,
    Some(Box<ConfigMap>),
}

impl Read {
    fn map(&self) -> Option<ConfigMap> {
        match self {
            Self::NotYet | Self::None => None,
            Self::Some(map) => Some((**map).clone()),
        }
    }
}

impl From<Option<ConfigMap>> for Read {
    fn from(map: Option<ConfigMap>) -> Self {
        map.map_or(Self::None, |map| Self::Some(Box::new(map)))
    }
}

/// As it changes.
type Found = watch::Receiver<Read>;

impl Place {
    /// Watches it.
    async fn watched(flags: &Flags, name: String) -> Result<(Self, Found, AbortOnDropHandle<()>), RunError> {
        let identity = members::identity();
        let clients = Clients::infer(flags.live().rate(), &identity).await?;
        let api: Api<ConfigMap> = Api::namespaced(clients.watching(), &flags.leader_elect_namespace);
        let (tell, found) = watch::channel(Read::NotYet);
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut events = patient(api.clone(), config);
        let watching = tokio::spawn(async move {
            let mut seen = None;
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::Init) => seen = None,
                    Ok(Event::InitApply(map)) => seen = Some(map),
                    Ok(Event::InitDone) => drop(tell.send_replace(seen.take().into())),
                    Ok(Event::Apply(map)) => drop(tell.send_replace(Some(map).into())),
                    Ok(Event::Delete(_)) => drop(tell.send_replace(Read::None)),
                    // Told where it is watched.
                    Err(_) => {}
                }
            }
        });
        let replica = identity.rsplit_once('_').map_or(identity.as_str(), |(pod, _)| pod).to_owned();
        let events = Events::new(clients.own(), identity);
        Ok((Self { api, events, name, replica }, found, AbortOnDropHandle::new(watching)))
    }

    /// Says why settings are refused.
    async fn refused(&self, shared: &Shared, map: Option<ConfigMap>) {
        let refused = shared.said().refused;
        if refused.is_empty() {
            return;
        }
        let then = if shared.is_held() {
            "refused, and nothing is done before they are corrected, for none were good before"
        } else {
            "refused, and the settings from before stay"
        };
        let note = cut(&format!("{then}: {refused}"), MAX_MESSAGE);
        tracing::error!(settings = self.name, "{note}");
        if let Some(map) = map {
            self.events.say_of(&map.object_ref(&()), Reason::SettingsInvalid, &note).await;
        }
    }

    /// Writes down that these settings are good, for those who begin when the ConfigMap holds others that are not.
    async fn keep(&self, shared: &Shared) {
        let Some(data) = shared.good() else { return };
        let Ok(text) = serde_json::to_string(data) else { return };
        let kept = match self.api.get_opt(&self.name).await {
            Ok(Some(map)) => map,
            Ok(None) => return,
            Err(error) => return tracing::debug!(%error, "the last good settings are not written down"),
        };
        if text.len() > KEPT || kept.annotations().get(SETTINGS_BEFORE) == Some(&text) {
            return;
        }
        let patch = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            // One that is made anew has settings of its own.
            "metadata": {"name": self.name, "uid": kept.uid(), "annotations": {SETTINGS_BEFORE: text}},
        });
        let written = self.api.patch(&self.name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(patch)).await;
        if let Err(error) = written {
            tracing::warn!(%error, settings = self.name, "the last good settings are not written down");
        }
    }
}

fn data_of(map: Option<&ConfigMap>) -> Data {
    map.and_then(|map| map.data.clone()).unwrap_or_default()
}

fn last_good(map: &ConfigMap) -> Option<Data> {
    map.annotations().get(SETTINGS_BEFORE).and_then(|text| serde_json::from_str(text).ok())
}
