//! The ClusterStacks and what they are made from: the sample stack under other names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clusterstack::api::{ClusterStack, ClusterStackRelease};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::{Client, Resource as _, ResourceExt};
use serde_json::{Value, json};

use crate::Size;
use crate::plane::run;

/// Stacks that one namespace has; each is of another name.
pub(crate) const IN_A_NAMESPACE: usize = 10;

/// How long all of them may take.
const PATIENCE: Duration = Duration::from_mins(30);

/// ClusterStacks to make.
pub(crate) struct Stacks {
    size: Size,
    source: PathBuf,
}

impl Stacks {
    /// Writes the releases to a directory, which is their source.
    pub(crate) fn package(size: Size, project: &Path, clusterstack: &Path, dir: &Path) -> Result<Self> {
        let (source, work) = (dir.join("source"), dir.join("stack"));
        for name in 0..size.stacks.min(IN_A_NAMESPACE) {
            if work.exists() {
                fs::remove_dir_all(&work)?;
            }
            run(Command::new("cp").arg("-r").arg(project.join("stacks/docker/hello")).arg(&work))?;
            let named = |text: &str| text.replace("clusterStackName: hello", &format!("clusterStackName: bench{name}"));
            edit(&work.join("csctl.yaml"), named)?;
            for release in 1..=size.releases {
                edit(&work.join("cluster-class/values.yaml"), |text| format!("{text}\n# {release}"))?;
                run(Command::new(clusterstack)
                    .arg("package")
                    .arg(&work)
                    .arg("--out")
                    .arg(&source)
                    .args(["--version", &format!("v{release}")]))?;
            }
        }
        Ok(Self { size, source })
    }

    /// Where the releases are.
    pub(crate) fn source(&self) -> &Path {
        &self.source
    }

    /// All: the namespace after a prefix, and the name.
    pub(crate) fn names(&self, prefix: &str) -> impl Iterator<Item = (String, String)> + use<> {
        let prefix = prefix.to_owned();
        (0..self.size.stacks)
            .map(move |at| (format!("{prefix}-{}", at / IN_A_NAMESPACE), format!("bench{}", at % IN_A_NAMESPACE)))
    }

    /// Makes their namespaces.
    pub(crate) async fn namespaces(&self, client: &Client, prefix: &str) -> Result<()> {
        let api: Api<Namespace> = Api::all(client.clone());
        let all: BTreeSet<String> = self.names(prefix).map(|(namespace, _)| namespace).collect();
        for name in all {
            let namespace = Namespace {
                metadata: kube::core::ObjectMeta { name: Some(name), ..Default::default() },
                ..Default::default()
            };
            api.create(&PostParams::default(), &namespace).await?;
        }
        Ok(())
    }

    /// Creates one.
    pub(crate) async fn create(
        &self,
        client: &Client,
        namespace: &str,
        name: &str,
        suspend: bool,
    ) -> Result<ClusterStack> {
        let versions: Vec<String> = (1..=self.size.releases).map(|release| format!("v{release}")).collect();
        let stack: ClusterStack = serde_json::from_value(json!({
            "apiVersion": ClusterStack::api_version(&()),
            "kind": ClusterStack::kind(&()),
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "provider": "docker", "name": name, "kubernetesVersion": "1.34", "channel": "stable",
                "noProvider": true, "versions": versions, "suspend": suspend,
                "source": {"directory": {"path": self.source}},
            },
        }))?;
        let api: Api<ClusterStack> = Api::namespaced(client.clone(), namespace);
        api.create(&PostParams::default(), &stack).await.with_context(|| format!("{namespace}/{name}"))
    }

    /// Creates all; how long until all are Ready.
    pub(crate) async fn until_ready(&self, client: &Client, concurrency: usize) -> Result<Duration> {
        let events = watcher::watcher(Api::<ClusterStack>::all(client.clone()), watcher::Config::default());
        let mut events = std::pin::pin!(events);
        // The watch is there before the first one is.
        while !matches!(events.try_next().await?, Some(Event::InitDone) | None) {}
        let begin = Instant::now();
        let creation = stream::iter(self.names("bench"))
            .map(|(namespace, name)| async move { self.create(client, &namespace, &name, false).await.map(|_| ()) })
            .buffer_unordered(concurrency)
            .try_collect::<()>();
        let ready = async {
            let mut ready = BTreeSet::new();
            while ready.len() < self.size.stacks {
                match events.try_next().await? {
                    Some(Event::Apply(stack)) if self.is_ready(&stack) => {
                        ready.insert((stack.namespace(), stack.name_any()))
                    }
                    Some(_) => continue,
                    None => bail!("the watch ended"),
                };
            }
            Ok(begin.elapsed())
        };
        let both = async { tokio::try_join!(creation, ready) };
        let ((), took) = tokio::time::timeout(PATIENCE, both).await.context("not all got Ready")??;
        Ok(took)
    }

    fn is_ready(&self, stack: &ClusterStack) -> bool {
        let status = serde_json::to_value(&stack.status).unwrap_or_default();
        let is_true = |condition: &&Value| condition["type"] == "Ready" && condition["status"] == "True";
        let ready = |release: &&Value| release["ready"] == true;
        let list = |name: &str| status[name].as_array().cloned().unwrap_or_default();
        list("conditions").iter().any(|condition| is_true(&condition))
            && list("summary").iter().filter(ready).count() == self.size.releases
    }

    /// The releases of the first ClusterStack of each name.
    pub(crate) async fn releases(&self, client: &Client) -> Result<Vec<ClusterStackRelease>> {
        let api: Api<ClusterStackRelease> = Api::namespaced(client.clone(), "bench-0");
        Ok(api.list(&kube::api::ListParams::default()).await?.items)
    }
}

fn edit(file: &Path, change: impl FnOnce(&str) -> String) -> Result<()> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    Ok(fs::write(file, change(&text))?)
}
