//! Clients of workload clusters, made from the Secrets that Cluster API keeps: one per cluster, as long as its kubeconfig
//! stays the same.

mod bounded;
mod breaker;
mod connection;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::USER_AGENT;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tower::buffer::BufferLayer;
use tower::retry::RetryLayer;

use self::bounded::{BoundedAnswers, Logins};
use self::breaker::Breaker;
use crate::api::condition::Reason;
use crate::core::addon::circuit::{Circuit, Gate};
use crate::core::addon::kubeconfig;
use crate::core::retry::ErrorClass;
use crate::core::status::Trouble;
use crate::io::apply::refusal;
use crate::io::client::again::TriesAgain;
use crate::io::client::escaped;
use crate::io::client::ours::StillOurs;
use crate::io::client::{AGENT, QUEUE};
use crate::io::drift::{self, Drift};
use crate::io::fence;
use crate::io::inputs::kubeconfig_name;
use crate::io::kinds::Kinds;

/// How long a connection may take to come up.
const CONNECT: Duration = Duration::from_secs(5);
/// How long the answer to the first question may take: whether the API server is there.
const PROBE: Duration = Duration::from_secs(5);
/// Key of the kubeconfig in its Secret (Cluster API contract).
const KEY: &str = "value";

/// A workload cluster that can be talked to.
#[derive(Clone)]
pub struct Workload {
    /// Its client.
    pub client: Client,
    /// The kinds that it serves.
    pub kinds: Arc<Kinds>,
    /// Watches of what was applied.
    pub drift: Arc<Drift>,
    /// The version of the Secret that its kubeconfig was read from.
    pub secret_version: Option<String>,
    breaker: Breaker,
}

type Place = (String, String);
type Known = ([u8; 32], Workload);

/// How the workload clusters answered of late, by namespace and name of their Cluster. May be lost: then each is asked.
#[derive(Default)]
pub struct Circuits(Mutex<HashMap<Place, Standing>>);

#[derive(Default)]
struct Standing {
    circuit: Circuit,
    /// A pass that asks it began and did not end yet, or ended by force, or took long.
    doubtful: bool,
}

impl Circuits {
    fn with<T>(&self, namespace: &str, cluster: &str, act: impl FnOnce(&mut Standing) -> T) -> T {
        let mut standings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        act(standings.entry((namespace.to_owned(), cluster.to_owned())).or_default())
    }

    /// Whether it may be asked, and whether the last pass did not end well; nothing is kept for it.
    fn now(&self, namespace: &str, cluster: &str) -> (Gate, bool) {
        let standings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let standing = standings.get(&(namespace.to_owned(), cluster.to_owned()));
        standing.map_or((Gate::Closed, false), |known| (known.circuit.gate(Timestamp::now()), known.doubtful))
    }

    /// Whether a pass would ask a cluster that did not answer well last time.
    pub fn is_doubtful(&self, namespace: &str, cluster: &str) -> bool {
        match self.now(namespace, cluster) {
            (Gate::Closed, doubtful) => doubtful,
            (Gate::HalfOpen, _) => true,
            (Gate::Open(_), _) => false,
        }
    }

    /// Its kubeconfig changed: what was known of it does not count any more.
    pub fn close(&self, namespace: &str, cluster: &str) {
        self.forget(&(namespace.to_owned(), cluster.to_owned()));
    }

    /// When it is asked again, where nobody may ask it now.
    pub fn next(&self, namespace: &str, cluster: &str) -> Option<Timestamp> {
        match self.now(namespace, cluster).0 {
            Gate::Open(next) => Some(next),
            Gate::Closed | Gate::HalfOpen => None,
        }
    }

    fn forget(&self, place: &Place) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(place);
    }

    pub(super) fn failed(&self, namespace: &str, cluster: &str, why: &str) -> Trouble {
        self.with(namespace, cluster, |standing| {
            standing.circuit.failed(why, rand::random(), Timestamp::now());
            unreachable(&standing.circuit)
        })
    }
}

fn unreachable(circuit: &Circuit) -> Trouble {
    Trouble::new(ErrorClass::Transient, Reason::ClusterUnreachable, circuit.message())
}

/// The clients, by namespace and name of their Cluster.
pub struct Workloads {
    known: Mutex<HashMap<Place, Known>>,
    circuits: Arc<Circuits>,
    /// For watches of drift.
    room: Arc<Semaphore>,
    allow_any: bool,
}

impl Workloads {
    /// With `allow_any` a kubeconfig may run programs and read files of the operator's.
    pub fn new(allow_any: bool) -> Self {
        Self {
            known: Mutex::default(),
            circuits: Arc::default(),
            room: Arc::new(Semaphore::new(drift::MOST)),
            allow_any,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Place, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the clusters answered of late.
    pub fn circuits(&self) -> &Arc<Circuits> {
        &self.circuits
    }

    /// The client of a Cluster, whose API server answers. `own` reads the Secret, of the Cluster's namespace alone.
    ///
    /// # Errors
    /// What stands in the way; nothing of the kubeconfig is in it.
    pub async fn get(&self, own: &Client, namespace: &str, cluster: &str) -> Result<Workload, Trouble> {
        self.reach(own, (namespace, cluster), |_| {}).await
    }

    /// [`Self::get`] for a pass over a ClusterAddon, which calls [`Self::settle`] when it ended. `asked` says that somebody
    /// wants it to look now, whatever the cluster answered before.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn begin(
        &self,
        own: &Client,
        (namespace, cluster): (&str, &str),
        asked: bool,
    ) -> Result<Workload, Trouble> {
        let begins = |standing: &mut Standing| {
            if asked {
                standing.circuit.half_open();
            }
            standing.doubtful = true;
        };
        self.reach(own, (namespace, cluster), begins).await
    }

    async fn reach(
        &self,
        own: &Client,
        (namespace, cluster): (&str, &str),
        begins: impl FnOnce(&mut Standing),
    ) -> Result<Workload, Trouble> {
        let place = (namespace.to_owned(), cluster.to_owned());
        let name = kubeconfig_name(cluster);
        let api: Api<Secret> = Api::namespaced(own.clone(), namespace);
        let read = api.get_opt(&name).await.map_err(|error| {
            let message = format!("Secret {name} can't be read: {}", refusal(&error).message);
            Trouble::new(ErrorClass::Transient, Reason::ClusterUnreachable, message)
        })?;
        let secret_version = read.as_ref().and_then(|secret| secret.metadata.resource_version.clone());
        let text = read.and_then(|secret| secret.data?.remove(KEY)).map(|value| value.0);
        let Some(text) = text else {
            self.lock().remove(&place);
            let message =
                format!("waiting for Secret {name} with key {KEY}: Cluster API writes it with the control plane");
            return Err(Trouble::new(ErrorClass::Waiting, Reason::ClusterUnreachable, message));
        };
        let digest: [u8; 32] = Sha256::digest(&text).into();
        let known = self.lock().get(&place).cloned();
        let workload = match known {
            Some((of, known)) if of == digest => known,
            other => {
                if other.is_some() {
                    self.circuits.close(namespace, cluster);
                }
                let made = self.make(&name, &text).await?;
                self.lock().insert(place, (digest, made.clone()));
                made
            }
        };
        self.circuits.with(namespace, cluster, |standing| {
            begins(standing);
            match standing.circuit.gate(Timestamp::now()) {
                Gate::Open(_) => Err(unreachable(&standing.circuit)),
                Gate::Closed | Gate::HalfOpen => Ok(()),
            }
        })?;
        workload.breaker.close();
        match probe(&workload.client).await {
            Ok(()) => Ok(Workload { secret_version, client: fence::guarded(&workload.client), ..workload }),
            Err(why) => Err(self.failed(namespace, cluster, &why)),
        }
    }

    /// A pass that asked a cluster ended.
    ///
    /// # Errors
    /// It stopped answering in between.
    pub fn settle(&self, namespace: &str, cluster: &str, workload: &Workload) -> Result<(), Trouble> {
        if let Some(why) = workload.breaker.open() {
            return Err(self.failed(namespace, cluster, &why));
        }
        self.circuits.with(namespace, cluster, |standing| {
            standing.circuit.succeeded();
            standing.doubtful = workload.breaker.was_slow();
        });
        Ok(())
    }

    /// It did not answer. While it is not asked its connections are closed: what is sent on them would be read all the same.
    fn failed(&self, namespace: &str, cluster: &str, why: &str) -> Trouble {
        let trouble = self.circuits.failed(namespace, cluster, why);
        if self.circuits.next(namespace, cluster).is_some() {
            self.lock().remove(&(namespace.to_owned(), cluster.to_owned()));
        }
        trouble
    }

    /// Forgets a Cluster that is gone.
    pub fn forget(&self, namespace: &str, cluster: &str) {
        let place = (namespace.to_owned(), cluster.to_owned());
        self.lock().remove(&place);
        self.circuits.forget(&place);
    }

    async fn make(&self, secret: &str, text: &[u8]) -> Result<Workload, Trouble> {
        let refused = |why: String| {
            let message = format!("the kubeconfig in Secret {secret} is not used: {why}");
            Trouble::new(ErrorClass::Waiting, Reason::KubeconfigRefused, message)
        };
        // What went wrong may quote the kubeconfig.
        let broken = || refused("it is no kubeconfig that gives a client".to_owned());
        let text = std::str::from_utf8(text).map_err(|_| broken())?;
        let parsed: Kubeconfig = if self.allow_any {
            Kubeconfig::from_yaml(text).map_err(|_| broken())?
        } else {
            let checked = kubeconfig::check(text).map_err(|error| refused(error.to_string()))?;
            let parsed = serde_json::from_value(checked).map_err(|_| broken())?;
            if reaches_out(&parsed) {
                return Err(refused("it would make the operator run a program or read a file".to_owned()));
            }
            parsed
        };
        let named = parsed.current_context.clone().unwrap_or_default();
        if !parsed.contexts.iter().any(|context| context.name == named) {
            return Err(refused("its current-context is none of its contexts".to_owned()));
        }
        if let Some(missing) = missing_part(&parsed, &named) {
            return Err(refused(format!("its current-context names a {missing} that is not there")));
        }
        let answers = BoundedAnswers { logins: Logins::of(&parsed) };
        let config = Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await;
        let unread = || refused("its certificates, key or proxy can't be read".to_owned());
        let mut config = config.map_err(|_| unread())?;
        config.connect_timeout = Some(CONNECT);
        config.headers.push((USER_AGENT, AGENT));
        // Of answers there are bounds of their own, of watches too.
        config.read_timeout = None;
        // What is sent again is looked at first: the Cluster may be another replica's by then.
        config.default_retry = false;
        let breaker = Breaker::default();
        // Two: watches that take all that an API server offers of a connection leave the questions theirs.
        let watching = connection::client(config.clone()).map_err(|_| unread())?.with_layer(&answers).build();
        let builder = connection::client(config).map_err(|_| unread())?;
        Ok(Workload {
            client: builder
                .with_layer(&answers)
                .with_layer(&breaker)
                .with_layer(&BufferLayer::new(QUEUE))
                .with_layer(&StillOurs)
                .with_layer(&RetryLayer::new(TriesAgain::of_busy()))
                .with_layer(&escaped::layer())
                .build(),
            kinds: Arc::default(),
            drift: Arc::new(Drift::new(watching, Arc::clone(&self.room))),
            secret_version: None,
            breaker,
        })
    }
}

/// Whether what is used runs a program or reads a file, however its text says it.
fn reaches_out(kubeconfig: &Kubeconfig) -> bool {
    let users = kubeconfig.auth_infos.iter().filter_map(|named| named.auth_info.as_ref());
    let clusters = kubeconfig.clusters.iter().filter_map(|named| named.cluster.as_ref());
    users.into_iter().any(|user| {
        let files = [&user.token_file, &user.client_certificate, &user.client_key];
        user.exec.is_some() || user.auth_provider.is_some() || files.into_iter().any(Option::is_some)
    }) || clusters.into_iter().any(|cluster| cluster.certificate_authority.is_some())
}

/// What a context names and the kubeconfig does not have.
fn missing_part(kubeconfig: &Kubeconfig, context: &str) -> Option<&'static str> {
    let context = kubeconfig.contexts.iter().find(|named| named.name == context)?.context.as_ref()?;
    let user = context.user.as_deref().unwrap_or_default();
    if !kubeconfig.clusters.iter().any(|cluster| cluster.name == context.cluster) {
        return Some("cluster");
    }
    (!user.is_empty() && !kubeconfig.auth_infos.iter().any(|known| known.name == user)).then_some("user")
}

/// Whether the API server answers at all; why not.
async fn probe(client: &Client) -> Result<(), String> {
    match tokio::time::timeout(PROBE, client.apiserver_version()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(status))) if status.code == 401 => {
            Err("it does not know the kubeconfig's credentials (Unauthorized): have the Secret renewed, or correct it"
                .to_owned())
        }
        Ok(Err(error)) => Err(refusal(&error).message),
        Err(_) => Err(format!("no answer within {} s", PROBE.as_secs())),
    }
}
