//! The way to the API server: flags, the client, and what its refusals mean.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use http::header::USER_AGENT;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use super::report::Hinted;
use crate::io::client::{self, AGENT, heed_no_proxy, unquoted};

/// How long the API server may take.
const ANSWER: Duration = Duration::from_secs(30);

/// Which API server.
#[derive(Args, Clone, Debug)]
pub struct ConnectionArgs {
    /// Kubeconfig to use instead of KUBECONFIG or ~/.kube/config
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

/// A connected API server.
#[derive(Clone)]
pub struct Connection {
    /// Its client.
    pub client: Client,
    /// The namespace of the kubeconfig's context.
    pub namespace: String,
    server: http::Uri,
}

impl ConnectionArgs {
    /// Connects.
    ///
    /// # Errors
    /// No kubeconfig, or one that can't be used.
    pub async fn connect(&self) -> Result<Connection> {
        let mut config = self.config().await?;
        config.headers.push((USER_AGENT, AGENT));
        let (server, namespace) = (config.cluster_url.clone(), config.default_namespace.clone());
        let client = client::plain(config).context("the kubeconfig gives no client")?;
        Ok(Connection { client, namespace, server })
    }

    async fn config(&self) -> Result<Config> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let hint = "name one with --kubeconfig or KUBECONFIG, and its context with --context";
        let config = if let Some(path) = &self.kubeconfig {
            let file = Kubeconfig::read_from(path).map_err(|error| {
                Hinted::new(format!("cannot use kubeconfig {}", path.display()), hint).because(unquoted(error))
            })?;
            Config::from_custom_kubeconfig(file, &options).await.map_err(unquoted)
        } else if let Some(merged) = named_by_environment() {
            let file = merged.map_err(|error| Hinted::new("cannot use KUBECONFIG", hint).because(unquoted(error)))?;
            Config::from_custom_kubeconfig(file, &options).await.map_err(unquoted)
        } else if self.context.is_some() {
            Config::from_kubeconfig(&options).await.map_err(unquoted)
        } else {
            Config::infer().await.map_err(unquoted)
        };
        let mut config = config.map_err(|error| Hinted::new("no way to the API server", hint).because(error))?;
        heed_no_proxy(&mut config);
        config.connect_timeout = Some(Duration::from_secs(10));
        Ok(config)
    }
}

/// The files of `KUBECONFIG` that are there, merged: as kubectl reads it, those that are missing are passed over. `None` without it, or
/// where it names one file alone.
fn named_by_environment() -> Option<Result<Kubeconfig, KubeconfigError>> {
    let all: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("KUBECONFIG")?).collect();
    let there: Vec<&PathBuf> = all.iter().filter(|path| path.exists()).collect();
    if all.len() < 2 || there.is_empty() {
        return None;
    }
    let merge = |merged: Kubeconfig, path: &&PathBuf| Kubeconfig::read_from(path).and_then(|next| merged.merge(next));
    Some(there.iter().try_fold(Kubeconfig::default(), merge))
}

/// What to do where the API server does not know who asks.
pub const LOG_IN: &str = "log in anew: it is wrong, or has ended; --kubeconfig and --context name another one";

impl Connection {
    /// What the API server answers, within a while.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn answer<T>(&self, question: impl Future<Output = T>) -> Result<T> {
        tokio::time::timeout(ANSWER, question).await.with_context(|| format!("{} does not answer", self.server))
    }

    /// What a failed request for objects of these kinds means.
    pub fn refused(&self, what: &str, kinds: &str, error: kube::Error) -> Hinted {
        match error {
            kube::Error::Api(status) if status.code == 404 => Hinted::new(
                format!("the API server {} does not serve {kinds}", self.server),
                "`clusterstack install` brings the CRDs with the operator, `clusterstack crds | kubectl apply --server-side -f -` them alone",
            ),
            kube::Error::Api(status) if status.code == 401 => {
                Hinted::new(format!("the API server {} does not take the login of the kubeconfig", self.server), LOG_IN)
                    .because(status.message)
            }
            kube::Error::Api(status) if status.code == 403 => Hinted::new(
                format!("{kinds} can't be {what}"),
                "ask for the right to do so, or name a namespace of yours with -n",
            )
            .because(status.message),
            error => {
                Hinted::new(format!("{} can't be asked for {kinds}", self.server), "check --kubeconfig and --context")
                    .because(error)
            }
        }
    }
}

/// Runs a command that talks to the API server.
///
/// # Errors
/// Those of the command.
pub fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?.block_on(work)
}
