//! Many Clusters of one ClusterStack, each with its addons. All have one API server as their workload cluster, where the objects
//! of each are called after it: what the operator does for them is what it does for as many API servers, but for these themselves.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clusterstack::api::{ClusterAddon, ClusterStack};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt};
use serde::Serialize;
use serde_json::json;

use crate::audit::Counts;
use crate::operator::Operator;
use crate::plane::{Plane, run};
use crate::{Cli, REPORTS, each};

/// Where the ClusterStack and its Clusters are.
const NAMESPACE: &str = "bench";
/// The release that they use, and its ClusterClass.
const RELEASE: &str = "docker-hello-1-34-v1";
/// How long each step may take.
const PATIENCE: Duration = Duration::from_mins(30);
/// How long nothing is asked for by an operator that is at rest.
const REST: Duration = Duration::from_secs(5);

/// The objects of a Cluster's addon.
const ADDON: &str = "\
{{- $name := .Values.cluster }}
apiVersion: v1
kind: ServiceAccount
metadata: {name: {{ $name }}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ $name }}}
data: {kubernetes: {{ .Capabilities.KubeVersion.Version | quote }}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: {{ $name }}}
rules: [{apiGroups: [''], resources: [configmaps], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: {{ $name }}}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ $name }}}
subjects: [{kind: ServiceAccount, name: {{ $name }}}]
---
apiVersion: v1
kind: Service
metadata: {name: {{ $name }}}
spec: {selector: {app: {{ $name }}}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ $name }}}
spec:
  # There is no kubelet.
  replicas: 0
  selector: {matchLabels: {app: {{ $name }}}}
  template:
    metadata: {labels: {app: {{ $name }}}}
    spec: {serviceAccountName: {{ $name }}, containers: [{name: web, image: example.org/web:v1}]}
";

/// Requests to the management cluster and to the workload cluster.
#[derive(Serialize)]
struct Both {
    management: Counts,
    workload: Counts,
}

/// What was found with a number of Clusters.
#[derive(Serialize)]
struct Found {
    clusters: usize,
    /// From the first creation of a Cluster to the last ClusterAddon that is ready.
    seconds: f64,
    /// Requests from the creation until the operator is at rest, but for Leases.
    requests: Both,
    /// Processor time in the same time, in seconds.
    cpu_seconds: f64,
    /// Resident memory with the ClusterStack and no Cluster, in MiB.
    memory_before: f64,
    /// With all ClusterAddons, at rest.
    memory_at_rest: f64,
    /// The most until then.
    memory_peak: f64,
    /// How long nothing happened, in seconds.
    quiet_seconds: u64,
    /// Requests in that time.
    quiet: Both,
    /// Processor time in that time, in seconds.
    quiet_cpu_seconds: f64,
    /// From the start of the operator anew until it has looked at each Cluster.
    restart_seconds: f64,
    /// Requests of the new process until it writes no more.
    restart: Both,
}

/// Measures each number that is asked for.
pub(crate) async fn measure(cli: &Cli) -> Result<()> {
    let of = async |clusters: &usize| measured(cli, *clusters).await.with_context(|| format!("{clusters} Clusters"));
    each(cli.output, &cli.clusters, of, table).await
}

async fn measured(cli: &Cli, clusters: usize) -> Result<Found> {
    let say = |text: &str| eprintln!("bench: {clusters} Clusters: {text}");
    let plane = Plane::start(&cli.project, &cli.clusterstack, &cli.crds)?;
    let workload = Plane::bare(&cli.project, "workload")?;
    let planes = [&plane, &workload];
    let ends = || planes.map(Plane::audit_end);
    let since = |[management, of_workload]: [u64; 2]| {
        anyhow::Ok(Both { management: plane.counts(management)?, workload: workload.counts(of_workload)? })
    };
    let client = plane.client().await?;
    let source = package(&cli.project, &cli.clusterstack, plane.dir())?;
    create::<Namespace>(Api::all(client.clone()), json!({"metadata": {"name": NAMESPACE}})).await?;
    let mut operator = Operator::start(&cli.clusterstack, &plane, &source, &cli.flags)?;
    subscribe(&client, &source).await?;
    operator.settled(&planes, REST).await?;
    let before = operator.memory()?;

    say("creating them");
    let (marks, cpu) = (ends(), operator.cpu()?);
    let kubeconfig = fs::read_to_string(workload.kubeconfig())?;
    let seconds = until_ready(&client, (clusters, cli.concurrency), &kubeconfig).await?.as_secs_f64();
    say(&format!("all ClusterAddons ready after {seconds:.2} s"));
    operator.wrote_all(&planes, REST).await?;
    let (requests, cpu_seconds, memory) = (since(marks)?, operator.cpu()? - cpu, operator.memory()?);

    // What is said by the clock is said.
    tokio::time::sleep(REPORTS).await;
    say(&format!("nothing happens for {} s", cli.quiet));
    let (marks, cpu) = (ends(), operator.cpu()?);
    tokio::time::sleep(Duration::from_secs(cli.quiet)).await;
    let (quiet, quiet_cpu_seconds, at_rest) = (since(marks)?, operator.cpu()? - cpu, operator.memory()?);

    say("the operator starts anew");
    operator.end()?;
    let (marks, begin) = (ends(), Instant::now());
    let mut operator = Operator::start(&cli.clusterstack, &plane, &source, &cli.flags)?;
    let restart_seconds = looked_at_all(&workload, marks[1], clusters, begin).await?.as_secs_f64();
    operator.wrote_all(&planes, REST).await?;
    let restart = since(marks)?;
    operator.end()?;
    Ok(Found {
        clusters,
        seconds,
        requests,
        cpu_seconds,
        memory_before: before.resident,
        memory_at_rest: at_rest.resident,
        memory_peak: memory.peak,
        quiet_seconds: cli.quiet,
        quiet,
        quiet_cpu_seconds,
        restart_seconds,
        restart,
    })
}

/// Waits until the workload cluster was asked for its version as often as there are Clusters; since `begin`.
async fn looked_at_all(workload: &Plane, from: u64, clusters: usize, begin: Instant) -> Result<Duration> {
    while workload.counts(from)?.of.get("get /version").copied().unwrap_or_default() < clusters {
        ensure!(begin.elapsed() < PATIENCE, "not all Clusters are looked at");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(begin.elapsed())
}

/// A release of the sample stack with an addon whose objects are called after their Cluster; the directory that is its source.
fn package(project: &Path, clusterstack: &Path, dir: &Path) -> Result<PathBuf> {
    let (source, stack) = (dir.join("source"), dir.join("stack"));
    run(Command::new("cp").arg("-r").arg(project.join("stacks/docker/hello")).arg(&stack))?;
    fs::remove_dir_all(stack.join("cluster-addon"))?;
    let chart = stack.join("cluster-addon/web");
    fs::create_dir_all(chart.join("templates"))?;
    fs::write(chart.join("Chart.yaml"), "apiVersion: v2\nname: web\nversion: v1\n")?;
    fs::write(chart.join("overwrite.yaml"), "cluster: {{ .Cluster.metadata.name }}\n")?;
    fs::write(chart.join("templates/web.yaml"), ADDON)?;
    let stages = "addonStages:\n  AfterControlPlaneInitialized: [{name: web, action: apply}]\n  BeforeClusterUpgrade: [{name: web, action: apply}]\n";
    fs::write(stack.join("clusteraddon.yaml"), stages)?;
    run(Command::new(clusterstack).arg("package").arg(&stack).arg("--out").arg(&source).args(["--version", "v1"]))?;
    Ok(source)
}

async fn create<K>(api: Api<K>, object: serde_json::Value) -> Result<()>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + Serialize,
{
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

/// Creates the ClusterStack, and waits until it is Ready.
async fn subscribe(client: &Client, source: &Path) -> Result<()> {
    let api: Api<ClusterStack> = Api::namespaced(client.clone(), NAMESPACE);
    let spec = json!({
        "provider": "docker", "name": "hello", "kubernetesVersion": "1.34", "channel": "stable", "noProvider": true,
        "versions": ["v1"], "source": {"directory": {"path": source}},
    });
    create(api.clone(), json!({"apiVersion": "clusterstack.x-k8s.io/v1alpha1", "kind": "ClusterStack", "metadata": {"name": "hello"}, "spec": spec})).await?;
    let is_ready = |stack: Option<&ClusterStack>| {
        stack.and_then(|stack| stack.status.as_ref()).is_some_and(|status| status.usable_versions == "v1")
    };
    let ready = kube::runtime::wait::await_condition(api, "hello", is_ready);
    tokio::time::timeout(PATIENCE, ready).await.context("the ClusterStack is not ready")??;
    Ok(())
}

/// Creates the Clusters with their kubeconfigs; how long until all ClusterAddons are ready.
async fn until_ready(client: &Client, (clusters, concurrency): (usize, usize), kubeconfig: &str) -> Result<Duration> {
    let events = watcher::watcher(Api::<ClusterAddon>::all(client.clone()), watcher::Config::default());
    let mut events = std::pin::pin!(events);
    while !matches!(events.try_next().await?, Some(Event::InitDone) | None) {}
    let begin = Instant::now();
    let creation = stream::iter(0..clusters)
        .map(|at| cluster(client, format!("c{at}"), kubeconfig))
        .buffer_unordered(concurrency)
        .try_collect::<()>();
    let ready = async {
        let mut ready = BTreeSet::new();
        while ready.len() < clusters {
            match events.try_next().await? {
                Some(Event::Apply(addon)) if addon.status.as_ref().is_some_and(|status| status.ready) => {
                    ready.insert(addon.name_any());
                }
                Some(_) => {}
                None => bail!("the watch ended"),
            }
        }
        Ok(begin.elapsed())
    };
    let both = async { tokio::try_join!(creation, ready) };
    let ((), took) = tokio::time::timeout(PATIENCE, both).await.context("not all got ready")??;
    Ok(took)
}

/// What Cluster API has of a Cluster whose control plane answers.
async fn cluster(client: &Client, name: String, kubeconfig: &str) -> Result<()> {
    let secret = json!({
        "metadata": {"name": format!("{name}-kubeconfig")},
        "type": "cluster.x-k8s.io/secret", "stringData": {"value": kubeconfig},
    });
    create::<Secret>(Api::namespaced(client.clone(), NAMESPACE), secret).await?;
    let kind = GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta1", "Cluster");
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &ApiResource::from_gvk(&kind));
    let object = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Cluster", "metadata": {"name": name},
        "spec": {"topology": {"class": RELEASE, "version": "v1.34.7"}},
    });
    create(api, object).await
}

/// A Markdown table.
#[expect(clippy::cast_precision_loss, reason = "counts of requests, far below 2^52")]
fn table(all: &[Found]) -> String {
    let mut out = String::from(
        "| Clusters | all ready | requests each: management | workload | CPU each | before | at rest | peak | quiet: management | workload | CPU | restart | management | workload |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for found in all {
        let each = |counts: &Counts| counts.all as f64 / found.clusters as f64;
        let _ = writeln!(
            out,
            "| {} | {:.2} s | {:.1} | {:.1} | {:.1} ms | {:.0} MiB | {:.0} MiB | {:.0} MiB | {} in {} s | {} | {:.2} s | {:.2} s | {} | {} |",
            found.clusters,
            found.seconds,
            each(&found.requests.management),
            each(&found.requests.workload),
            1000.0 * found.cpu_seconds / found.clusters as f64,
            found.memory_before,
            found.memory_at_rest,
            found.memory_peak,
            found.quiet.management.all,
            found.quiet_seconds,
            found.quiet.workload.all,
            found.quiet_cpu_seconds,
            found.restart_seconds,
            found.restart.management.all,
            found.restart.workload.all,
        );
    }
    out
}
