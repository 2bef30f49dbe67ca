//! What an API server would say to a stack's objects, without one being stored.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use thiserror::Error;

use super::apply::refusal;
use super::kinds::Kinds;
use super::observe::{api, segment};
use crate::api::condition::Reason;
use crate::core::lint::{Finding, Rendered, finding};
use crate::core::manifest::Manifest;

/// Who we say we are: nothing is stored under it.
const MANAGER: &str = "clusterstack-lint";
/// How long the API server may take.
const ANSWER: Duration = Duration::from_secs(30);

/// A kubeconfig that can't be used.
#[derive(Debug, Error)]
#[error("kubeconfig {path} can't be used: {problem}")]
pub struct KubeconfigError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: String,
}

/// A client by a kubeconfig.
///
/// # Errors
/// The file is none, or gives no client.
pub async fn client(kubeconfig: &Path) -> Result<Client, KubeconfigError> {
    let failed = |error: String| {
        // The lines after the first quote the file, which holds keys.
        let problem = error.lines().next().unwrap_or_default().to_owned();
        KubeconfigError { path: kubeconfig.to_owned(), problem }
    };
    let file = Kubeconfig::read_from(kubeconfig).map_err(|error| failed(error.to_string()))?;
    let found = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    let mut found = found.map_err(|error| failed(error.to_string()))?;
    found.connect_timeout = Some(Duration::from_secs(10));
    found.read_timeout = Some(ANSWER);
    Client::try_from(found).map_err(|error| failed(error.to_string()))
}

/// Applies every object in a dry run; what is refused is found.
pub async fn check(client: &Client, rendered: &[Rendered], namespace: &str) -> Vec<Finding> {
    let kinds = Kinds::default();
    let mut findings = Vec::new();
    for chart in rendered {
        let own = Own::of(chart);
        let namespace = if chart.is_addon { "kube-system" } else { namespace };
        for (manifest, file) in &chart.objects {
            findings.extend(one(client, &kinds, &own, namespace, manifest, file).await);
        }
    }
    findings
}

/// What a chart brings along: in a dry run it is not there for the objects after it.
struct Own {
    kinds: BTreeSet<(String, String)>,
    namespaces: BTreeSet<String>,
}

impl Own {
    fn of(chart: &Rendered) -> Self {
        let mut own = Self { kinds: BTreeSet::new(), namespaces: BTreeSet::new() };
        for (manifest, _) in &chart.objects {
            let text =
                |pointer: &str| manifest.object.pointer(pointer).and_then(|text| text.as_str()).map(str::to_owned);
            match manifest.key.kind.as_str() {
                "Namespace" => _ = own.namespaces.insert(manifest.key.name.clone()),
                "CustomResourceDefinition" => {
                    own.kinds.extend(text("/spec/group").zip(text("/spec/names/kind")));
                }
                _ => {}
            }
        }
        own
    }
}

async fn one(
    client: &Client,
    kinds: &Kinds,
    own: &Own,
    namespace: &str,
    manifest: &Manifest,
    file: &str,
) -> Option<Finding> {
    let key = &manifest.key;
    let of = format!("{key} ({})", manifest.api_version());
    let kind = match kinds.get(client, &manifest.api_version(), &key.kind).await {
        Ok(Some(kind)) => kind,
        Ok(None) if own.kinds.contains(&(key.group.clone(), key.kind.clone())) => {
            return finding("server-later", Some(file), format!("{of}: its CRD is in the stack and not there yet"));
        }
        Ok(None) => return finding("server", Some(file), format!("{of}: the API server does not serve this kind")),
        Err(error) => return finding("server", Some(file), format!("{of}: {}", refusal(&error).message)),
    };
    let manifest = match (kind.namespaced, key.namespace.is_empty()) {
        (true, true) => manifest.clone().in_namespace(namespace),
        (false, false) => manifest.clone().without_namespace(),
        _ => manifest.clone(),
    };
    let params = PatchParams::apply(MANAGER).force().dry_run();
    let target = api(client, &kind, &manifest.key.namespace);
    let error = target.patch(&segment(&key.name), &params, &Patch::Apply(&manifest.object)).await.err()?;
    let refusal = refusal(&error);
    let waits = own.namespaces.contains(&manifest.key.namespace) && refusal.message.contains("not found");
    if waits && refusal.reason != Reason::Invalid {
        return finding("server-later", Some(file), format!("{of}: its namespace is in the stack and not there yet"));
    }
    finding("server", Some(file), format!("{of}: {}", refusal.message))
}
