//! Leader election by a Lease, as client-go does it: a holder's lease is over when its `renewTime` has not changed for
//! its duration by the observer's own clock; clocks are never compared.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Name of the Lease.
const NAME: &str = "clusterstack.clusterstack.x-k8s.io";
/// How long a lease lasts without renewal.
const DURATION: Duration = Duration::from_secs(15);
/// When a holder that could not renew gives up.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Pause between tries.
const RETRY: Duration = Duration::from_secs(2);

/// A name for this process: its pod, or its host, with a random tail.
pub fn identity() -> String {
    let host = std::env::var("POD_NAME").or_else(|_| std::env::var("HOSTNAME")).unwrap_or_else(|_| "local".to_owned());
    format!("{host}_{:08x}", rand::random::<u32>())
}

/// The leadership. Its token is cancelled when it is lost.
pub struct Leadership {
    lost: CancellationToken,
    end: CancellationToken,
    renewing: Option<JoinHandle<()>>,
}

impl Leadership {
    /// Resolves when the lease was lost; never without election.
    pub async fn cancelled(&self) {
        self.lost.cancelled().await;
    }

    /// Gives the lease back, so that another replica takes over at once.
    pub async fn release(mut self) {
        self.end.cancel();
        if let Some(renewing) = self.renewing.take() {
            // A task that panicked has nothing left to give back.
            let _ = renewing.await;
        }
    }
}

/// Waits until this process leads; `None` if `stop` came first. Without a namespace every process leads.
pub async fn lead(
    client: &Client,
    namespace: Option<&str>,
    identity: &str,
    stop: &CancellationToken,
) -> Option<Leadership> {
    let (lost, end) = (CancellationToken::new(), CancellationToken::new());
    let Some(namespace) = namespace else { return Some(Leadership { lost, end, renewing: None }) };
    let mut candidate =
        Candidate { api: Api::namespaced(client.clone(), namespace), identity: identity.to_owned(), seen: None };
    let mut announced = false;
    loop {
        match candidate.attempt().await {
            Ok(true) => break,
            Ok(false) if !announced => {
                tracing::info!(lease = %format!("{namespace}/{NAME}"), holder = candidate.holder(), "waiting for the lease");
                announced = true;
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, lease = %format!("{namespace}/{NAME}"), "the lease can't be read or written; trying again");
            }
        }
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
    tracing::info!(identity, "leading");
    let renewing = tokio::spawn(candidate.hold(lost.clone(), end.clone()));
    Some(Leadership { lost, end, renewing: Some(renewing) })
}

struct Candidate {
    api: Api<Lease>,
    identity: String,
    seen: Option<Seen>,
}

/// A lease as it was last seen, and since when it looks like this.
struct Seen {
    holder: String,
    renewed: Option<MicroTime>,
    since: Instant,
}

impl Candidate {
    fn holder(&self) -> &str {
        self.seen.as_ref().map_or("", |seen| &seen.holder)
    }

    /// Takes or renews the lease. `false` while somebody else holds it.
    async fn attempt(&mut self) -> Result<bool, kube::Error> {
        let Some(lease) = self.api.get_opt(NAME).await? else {
            let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(self.spec(None)) };
            return won(self.api.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if self.seen.as_ref().is_none_or(|seen| seen.holder != holder || seen.renewed != spec.renew_time) {
            self.seen = Some(Seen { holder: holder.clone(), renewed: spec.renew_time.clone(), since: Instant::now() });
        }
        let lasts =
            spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).map_or(DURATION, Duration::from_secs);
        let over = self.seen.as_ref().is_some_and(|seen| seen.since.elapsed() > lasts);
        if !holder.is_empty() && holder != self.identity && !over {
            return Ok(false);
        }
        self.write(lease, self.spec(Some(&spec))).await
    }

    /// Replaces the lease in exactly the version that was read.
    async fn write(&self, mut lease: Lease, spec: LeaseSpec) -> Result<bool, kube::Error> {
        lease.spec = Some(spec);
        won(self.api.replace(NAME, &PostParams::default(), &lease).await)
    }

    fn spec(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let same = before.filter(|spec| spec.holder_identity.as_deref() == Some(&self.identity));
        let transitions = before.and_then(|spec| spec.lease_transitions).unwrap_or_default();
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: same.and_then(|spec| spec.acquire_time.clone()).or_else(|| Some(now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(if same.is_some() { transitions } else { transitions.saturating_add(1) }),
            ..LeaseSpec::default()
        }
    }

    /// Renews until `end`, then gives the lease back; cancels `lost` when it could not be renewed in time.
    async fn hold(mut self, lost: CancellationToken, end: CancellationToken) {
        let mut renewed = Instant::now();
        loop {
            tokio::select! {
                () = end.cancelled() => return self.give_back().await,
                () = tokio::time::sleep(RETRY) => {}
            }
            let attempt = tokio::time::timeout(RENEW_DEADLINE, self.attempt()).await;
            match attempt {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => return lost.cancel(),
                Ok(Err(error)) => tracing::warn!(%error, "the lease was not renewed; trying again"),
                Err(_) => tracing::warn!("the API server did not answer a renewal in time"),
            }
            if renewed.elapsed() > RENEW_DEADLINE {
                return lost.cancel();
            }
        }
    }

    async fn give_back(&self) {
        let Ok(Some(lease)) = self.api.get_opt(NAME).await else { return };
        let spec = lease.spec.clone().unwrap_or_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return;
        }
        let free = LeaseSpec { holder_identity: None, lease_duration_seconds: Some(1), ..spec };
        if let Err(error) = self.write(lease, free).await {
            tracing::debug!(%error, "the lease was not given back; it runs out by itself");
        }
    }
}

/// Somebody else was faster: no error.
fn won(result: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}
