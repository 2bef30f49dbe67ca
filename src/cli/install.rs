//! `clusterstack install` and `uninstall`: the operator in a cluster, or the files by which others install it.

mod written;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::connection::{ConnectionArgs, LOG_IN, block_on};
use super::output::{self, Format};
use super::report::{self, Hinted};
use super::template::ValuesArgs;
use crate::core::chart::{Capabilities, Chart, HelmVersion, Release, RenderInput, render};
use crate::core::files::FileTree;
use crate::core::install::{self, INSTALLED_IN, MANAGED_BY, NAME, NAMESPACE, Overlay, Waves, waves};
use crate::core::manifest::ObjectKey;
use crate::core::name::is_label;
use crate::io::install::{Change, InstallError, Installer};
use crate::settings::{Flags, duration};

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack install                                  # two replicas in clusterstack-system, and wait until they run
  clusterstack install --set storage.size=50Gi --set flags.allow-cluster-scope=true
  clusterstack install --dry-run | less                 # what would be applied
  clusterstack install --dry-run=server                 # what the API server would say to it
  clusterstack install --kustomize DIR                  # a base with overlays
  clusterstack install --chart DIR                      # the Helm chart, with its values and their meaning

It is applied again to change or upgrade it: what is of an earlier form is changed, or removed when
the new one runs, and nothing that runs in clusters is touched.";

/// Examples of `uninstall`.
pub const UNINSTALL_EXAMPLES: &str = "\
Examples:
  clusterstack uninstall --dry-run
  clusterstack uninstall

It waits until the pods have ended, for they need their rights until then. The CRDs, and with them all ClusterStacks and what
they brought, stay; so does the namespace. Objects that are deleted while no operator runs wait for one.";

/// Flags of `clusterstack install`.
#[derive(Args, Clone, Debug)]
pub struct InstallArgs {
    #[command(flatten)]
    connection: ConnectionArgs,

    /// Namespace of the operator; it is made if it is not there
    #[arg(short, long, value_name = "NAMESPACE", default_value = NAMESPACE)]
    namespace: String,

    #[command(flatten)]
    values: ValuesArgs,

    /// Change nothing: print what would be applied, or ask the API server what it would say
    #[arg(long, value_name = "BY", num_args = 0..=1, require_equals = true, default_missing_value = "client")]
    dry_run: Option<DryRun>,

    /// Write a base of kustomize with overlays into this directory instead
    #[arg(long, value_name = "DIR", conflicts_with_all = ["dry_run", "chart"])]
    kustomize: Option<PathBuf>,

    /// Write the Helm chart into this directory instead
    #[arg(long, value_name = "DIR", conflicts_with_all = ["dry_run", "namespace", "files", "set", "set_string", "set_json", "set_file", "set_literal"])]
    chart: Option<PathBuf>,

    /// Do not wait until the operator runs: what is of an earlier form is removed at once
    #[arg(long)]
    no_wait: bool,

    /// How long it may take to run, and what is being deleted to be gone before
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    timeout: Duration,

    /// Form of what --dry-run prints: objects, YAML by default, or with --dry-run=server a list of what would become of them
    #[arg(short, long, value_name = "FORMAT", requires = "dry_run")]
    output: Option<Format>,
}

/// Flags of `clusterstack uninstall`.
#[derive(Args, Clone, Debug)]
pub struct UninstallArgs {
    #[command(flatten)]
    connection: ConnectionArgs,

    /// Namespace of the operator
    #[arg(short, long, value_name = "NAMESPACE", default_value = NAMESPACE)]
    namespace: String,

    /// Change nothing: say what would be removed
    #[arg(long)]
    dry_run: bool,

    /// How long its pods may take to end; then it is told, and the rest is removed
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = duration)]
    timeout: Duration,
}

/// Who is asked in a dry run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DryRun {
    /// Nobody
    Client,
    /// The API server
    Server,
}

/// Installs, or writes what would be.
///
/// # Errors
/// Values that the chart refuses, and what the API server says.
pub fn run(args: &InstallArgs) -> Result<()> {
    if let Some(dir) = &args.chart {
        return write_chart(dir);
    }
    let values = args.values.read()?;
    if let Some(dir) = &args.kustomize {
        return write_kustomize(dir, &args.namespace, &values);
    }
    let objects = objects(&args.namespace, values)?;
    if args.dry_run == Some(DryRun::Client) {
        return print(&objects, args.output.unwrap_or(Format::Yaml));
    }
    block_on(apply(args, waves(objects)))
}

async fn apply(args: &InstallArgs, waves: Waves) -> Result<()> {
    let connection = args.connection.connect().await?;
    let installer = Installer::new(&connection.client, &args.namespace, args.dry_run.is_some());
    if args.dry_run.is_some() {
        return ask(&installer, &waves, args.output).await;
    }
    rehearse(&connection.client, &args.namespace, &waves, &[]).await?;
    install_with(&installer, &waves, args.timeout, !args.no_wait).await
}

/// What would become of an object. The field names are API of `-o json`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    group: String,
    kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    name: String,
    change: &'static str,
}

/// Prints what the API server says to all of it.
async fn ask(installer: &Installer<'_>, waves: &Waves, format: Option<Format>) -> Result<()> {
    let mut rows = Vec::new();
    let mut tell = |object: &ObjectKey, change| {
        if format.is_none() {
            return say(object, change, true);
        }
        let ObjectKey { group, kind, namespace, name } = object.clone();
        rows.push(Row { group, kind, namespace, name, change: word(change).0 });
    };
    all_of(installer, waves, &mut tell).await.map_err(|error| hinted(&error, true))?;
    match format {
        Some(format) => output::print(&output::format(&rows, format)?),
        None => Ok(()),
    }
}

/// All steps, for who is asked alone.
async fn all_of(
    installer: &Installer<'_>,
    waves: &Waves,
    tell: &mut impl FnMut(&ObjectKey, Change),
) -> Result<(), InstallError> {
    installer.apply(waves, tell).await?;
    installer.prune(waves, tell).await?;
    installer.withdraw(waves, tell).await
}

async fn install_with(installer: &Installer<'_>, waves: &Waves, timeout: Duration, waits: bool) -> Result<()> {
    let mut tell = |object: &ObjectKey, change| say(object, change, false);
    let mut waiting = |what: &str| output::note!("waiting: {what}");
    let failed = |error| hinted(&error, false);
    installer.wait_gone(waves, timeout, &mut waiting).await.map_err(failed)?;
    installer.apply(waves, &mut tell).await.map_err(failed)?;
    if waits {
        installer.wait(waves, timeout, &mut waiting).await.map_err(failed)?;
    }
    // What is of an earlier form works, by its own rights, until the new one does.
    installer.prune(waves, &mut tell).await.map_err(failed)?;
    installer.withdraw(waves, &mut tell).await.map_err(failed)?;
    if !waits {
        return Ok(());
    }
    if waves.workloads.iter().all(|workload| workload["spec"]["replicas"] == 0) {
        let message = "the operator is to have no replica, and nothing works until it has one: kubectl scale, or the same command \
                       with --set replicas=2\n";
        return output::print(message);
    }
    output::print("the operator runs; `clusterstack shards` shows its replicas\n")
}

/// Installs these objects and waits until the operator runs; the definitions that it `takes` may be Helm's.
///
/// # Errors
/// What the API server says, or it does not run in time.
pub async fn all(
    client: &kube::Client,
    namespace: &str,
    waves: &Waves,
    takes: &[String],
    timeout: Duration,
) -> Result<()> {
    install_with(&Installer::new(client, namespace, false).taking(takes), waves, timeout, true).await
}

/// Asks the API server what it would say to all of it, and changes nothing.
///
/// # Errors
/// What the API server says.
pub async fn rehearse(client: &kube::Client, namespace: &str, waves: &Waves, takes: &[String]) -> Result<()> {
    let installer = Installer::new(client, namespace, true).taking(takes);
    let mut quiet = |_: &ObjectKey, _| {};
    let asked = all_of(&installer, waves, &mut quiet).await;
    asked.map_err(|error| hinted(&error, true).context(unchanged(error.is_refusal())))
}

/// What is told above the failure of a rehearsal.
pub fn unchanged(is_refusal: bool) -> &'static str {
    if is_refusal { "nothing was changed: the API server would refuse a part of it" } else { "nothing was changed" }
}

/// Makes the operator's namespace, for what has to be there before it.
///
/// # Errors
/// What the API server says.
pub async fn make_namespace(client: &kube::Client, namespace: &str) -> Result<()> {
    let first = Waves { definitions: vec![namespace_object(namespace)], ..Waves::default() };
    let installer = Installer::new(client, namespace, false);
    let mut tell = |_: &ObjectKey, _| {};
    installer.apply(&first, &mut tell).await.map_err(|error| hinted(&error, false))
}

fn namespace_object(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": namespace, "labels": {"app.kubernetes.io/part-of": NAME}},
    })
}

/// Removes the operator.
///
/// # Errors
/// What the API server says.
pub fn uninstall(args: &UninstallArgs) -> Result<()> {
    is_namespace(&args.namespace)?;
    block_on(async {
        let connection = args.connection.connect().await?;
        let installer = Installer::new(&connection.client, &args.namespace, args.dry_run);
        let mut removed = 0;
        let mut tell = |object: &ObjectKey, change| {
            removed += 1;
            say(object, change, args.dry_run);
        };
        take_away(&installer, args.timeout, &mut tell).await.map_err(|error| kept(&error, args.dry_run))?;
        if removed == 0 {
            output::print(&format!("`clusterstack install` made nothing in {}\n", args.namespace))?;
        }
        Ok(())
    })
}

/// Removes all, in the order in which it ends well.
async fn take_away(
    installer: &Installer<'_>,
    timeout: Duration,
    tell: &mut impl FnMut(&ObjectKey, Change),
) -> Result<(), InstallError> {
    let mut waiting = |what: &str| output::note!("waiting: {what}");
    installer.keeps().await?;
    let ends = installer.stop(tell).await?;
    let left = installer.wait_ended(&ends, timeout, &mut waiting).await?;
    // A node that is gone must not keep all the rest.
    let left = left.iter().map(|what| {
        format!("after {} s still waiting for {what}; the rest is removed all the same", timeout.as_secs())
    });
    report::left_out(&left.collect::<Vec<_>>());
    installer.remove(tell, &mut waiting).await
}

/// Why it can't be taken away, with what to do.
fn kept(error: &InstallError, is_dry: bool) -> anyhow::Error {
    let hint = match error {
        InstallError::Foreign { .. } => {
            "remove it there: it would be brought back. Where that tool has the CRDs, they go when it is removed there, and with them all \
             ClusterStacks: docs/install.md"
        }
        error if refuses(error, 401) => LOG_IN,
        error if refuses(error, 403) && is_dry => "removing takes the rights of a cluster administrator",
        error if refuses(error, 403) => {
            "removing takes the rights of a cluster administrator; what is gone is gone, and the same command goes on"
        }
        _ if is_dry => "check --kubeconfig and --context",
        _ => "check --kubeconfig and --context; what is gone is gone, and the same command goes on",
    };
    Hinted::new(error.to_string(), hint).into()
}

fn word(change: Change) -> (&'static str, AnsiColor) {
    match change {
        Change::Created => ("created", AnsiColor::Green),
        Change::Configured => ("configured", AnsiColor::Yellow),
        Change::Unchanged => ("unchanged", AnsiColor::White),
        Change::Removed => ("removed", AnsiColor::Red),
        Change::Restarted => ("restarted", AnsiColor::Yellow),
    }
}

fn say(object: &ObjectKey, change: Change, is_dry: bool) {
    let (word, colour) = word(change);
    let style = Style::new().fg_color(Some(colour.into()));
    let dry = if is_dry { " (server dry run)" } else { "" };
    // The chart has them go with it: they hold what can be fetched and built again, and builds that run begin anew.
    let is_with_claims = object.kind == "StatefulSet";
    let more = match change {
        Change::Removed if is_with_claims => ", with its PersistentVolumeClaims",
        Change::Restarted => ", for its ServiceAccount is new",
        _ => "",
    };
    output::progress!("{object} {style}{word}{style:#}{more}{dry}");
}

/// Whether the namespace of an object is missing.
fn names_no_namespace(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.code == 404 && status.details.as_ref().is_some_and(|details| details.kind == "namespaces")
}

/// Whether the namespace of an object is being deleted.
fn names_namespace_that_goes(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.details.iter().flat_map(|details| &details.causes).any(|cause| cause.reason == "NamespaceTerminating")
}

/// Whether the API server said no by this code.
fn refuses(error: &InstallError, code: u16) -> bool {
    let InstallError::Refused { error, .. } = error else { return false };
    matches!(&**error, kube::Error::Api(status) if status.code == code)
}

fn hinted(error: &InstallError, is_dry: bool) -> anyhow::Error {
    let hint = match error {
        InstallError::Refused { error: cause, .. } if names_namespace_that_goes(cause) => {
            "wait until that namespace is gone, `kubectl wait --for=delete namespace/…`, make it anew, and give the same command again"
        }
        error if refuses(error, 401) => LOG_IN,
        error if refuses(error, 403) => {
            "installing takes the rights of a cluster administrator; --dry-run prints what one has to apply"
        }
        InstallError::Refused { error: cause, .. } if names_no_namespace(cause) && is_dry => {
            "make that namespace: kubectl create namespace; then the same command again"
        }
        InstallError::Refused { error: cause, .. } if names_no_namespace(cause) => {
            "make that namespace: kubectl create namespace; what was applied stays, and the same command goes on"
        }
        InstallError::Refused { .. } if is_dry => "check --kubeconfig and --context, and the values",
        InstallError::Refused { .. } => {
            "check --kubeconfig and --context; what was applied stays, and the same command goes on"
        }
        InstallError::Immutable { is_ours: false, .. } => {
            "it was not made by this command, and stays: give this operator another name, --set fullnameOverride=NAME"
        }
        InstallError::Immutable { object, .. } => &format!(
            "`{}`, then the same command again; claims that are there keep their size",
            install::make_way(object)
        ),
        InstallError::NoKind { .. } => "install what serves it, or leave it out: --set metrics.serviceMonitor=false",
        InstallError::Foreign { release: Some((namespace, name, records)), .. } => &format!(
            "upgrade it with Helm, or let it go there: `helm uninstall {name} -n {namespace}` keeps the CRDs, which are taken over \
             then; with --keep-history, `kubectl delete {} -n {namespace} -l owner=helm,name={name}` as well",
            records.join(",")
        ),
        InstallError::Foreign { .. } => {
            "upgrade it with the same tool. Where that has the CRDs, they go when it is removed there, and with them all \
             ClusterStacks: docs/install.md"
        }
        InstallError::Elsewhere { namespace, .. } => &format!(
            "-n {namespace} changes that one; a second one beside it takes another name: --set fullnameOverride=NAME"
        ),
        InstallError::Leaving { object: ObjectKey { kind, name, .. }, .. } if kind == "CustomResourceDefinition" => {
            &format!(
                "its objects go first: `kubectl get {name} -A`. What no operator is there to let go, goes when its finalizers are taken \
             out, and leaves behind what it brought: `kubectl patch {name} NAME -n NAMESPACE --type=merge -p \
             '{{\"metadata\":{{\"finalizers\":null}}}}'`. The same command waits on"
            )
        }
        InstallError::Leaving { .. } => "the same command waits on",
        InstallError::Timeout { .. } => {
            "kubectl describe pods, and kubectl logs, in its namespace say more; the same command waits on"
        }
    };
    let text = error.to_string();
    Hinted::new(text, hint).into()
}

/// All objects of an installation: the namespace, and what the chart renders by our own engine.
///
/// # Errors
/// Values that the chart refuses.
pub fn objects(namespace: &str, values: Map<String, Value>) -> Result<Vec<Value>> {
    is_namespace(namespace)?;
    let chart = Chart::load(&install::chart()).context("the chart of this binary can't be loaded")?;
    let capabilities = Capabilities::of(HelmVersion::V3);
    let input = RenderInput {
        values: Value::Object(values),
        ..RenderInput::new(Release::new(NAME, namespace), &capabilities, Timestamp::now())
    };
    let rendered = render(&chart, &input).map_err(|error| {
        Hinted::new(
            "these values make no installation",
            "clusterstack install --chart DIR writes values.yaml, which says what there is",
        )
        .because(error)
    })?;
    let mut objects = vec![namespace_object(namespace)];
    for document in rendered.documents {
        let mut object = document.object;
        if object.is_null() {
            continue;
        }
        // Not Helm: who looks, and Helm itself, would take it for a release of Helm's.
        object["metadata"]["labels"]["app.kubernetes.io/managed-by"] = MANAGED_BY.into();
        // All installations share the definitions.
        if object["kind"] != "CustomResourceDefinition" {
            object["metadata"]["labels"][INSTALLED_IN] = namespace.into();
        }
        objects.push(object);
    }
    judge(&objects)?;
    Ok(objects)
}

fn is_namespace(name: &str) -> Result<()> {
    if is_label(name) {
        return Ok(());
    }
    let message = format!("{name:?} is no name of a namespace");
    Err(Hinted::new(message, "lower-case letters, digits and '-' make one, up to 63 of them").into())
}

/// Refuses what the operator would refuse: its pods would end as soon as they start, or go on without their settings.
fn judge(objects: &[Value]) -> Result<()> {
    let refused = |message: String| {
        Hinted::new(
            message,
            "clusterstack operator --help has all flags; clusterstack install --chart DIR writes values.yaml, which says what \
             else there is",
        )
    };
    let workloads = objects.iter().filter(|object| object["kind"] == "Deployment" || object["kind"] == "StatefulSet");
    let maps = objects.iter().filter(|object| object["kind"] == "ConfigMap");
    let data: BTreeMap<String, String> = maps
        .filter_map(|map| map["data"].as_object())
        .flatten()
        .map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()))
        .collect();
    for workload in workloads {
        let arguments = workload.pointer("/spec/template/spec/containers/0/args").and_then(Value::as_array);
        // The first is the subcommand.
        let arguments = arguments.into_iter().flatten().filter_map(Value::as_str).skip(1);
        let flags = Flags::of_arguments(arguments).map_err(refused)?;
        flags.judge_overlay(&data).map_err(|error| refused(format!("settings: {error}")))?;
    }
    Ok(())
}

fn print(objects: &[Value], format: Format) -> Result<()> {
    match format {
        Format::Json => {
            output::print(&output::format(&json!({"apiVersion": "v1", "kind": "List", "items": objects}), format)?)
        }
        Format::Yaml => {
            let documents: Result<Vec<String>> = objects.iter().map(|object| output::format(object, format)).collect();
            output::print(&format!("---\n{}", documents?.join("---\n")))
        }
    }
}

/// What the overlays are: name, purpose, values.
const OVERLAYS: &[(&str, &str, &str)] = &[
    (
        "persistent",
        "A PersistentVolumeClaim for each replica: what builds of node images have made outlives the pod.",
        r#"{"storage": {"size": "50Gi"}}"#,
    ),
    ("one-replica", "One replica, for a cluster on a laptop.", r#"{"replicas": 1}"#),
    ("prometheus", "A ServiceMonitor, for Prometheus' operator.", r#"{"metrics": {"serviceMonitor": true}}"#),
];

fn write_kustomize(dir: &Path, namespace: &str, values: &Map<String, Value>) -> Result<()> {
    let base = objects(namespace, values.clone())?;
    let mut overlays = Vec::new();
    for (name, about, changes) in OVERLAYS {
        let mut merged = Value::Object(values.clone());
        json_patch::merge(&mut merged, &serde_json::from_str(changes)?);
        let Value::Object(merged) = merged else { continue };
        overlays.push(Overlay { name, about, objects: objects(namespace, merged)? });
    }
    let files = install::kustomize_files(&base, &overlays);
    written::write(dir, &files.into_iter().map(|(path, text)| (path, text.into_bytes())).collect())?;
    let names: Vec<&str> = OVERLAYS.iter().map(|(name, ..)| *name).collect();
    let dir = dir.display();
    output::print(&format!(
        "{dir}/base written, and {dir}/overlays: {}\nkubectl apply --server-side -k {dir}/base\n",
        names.join(", ")
    ))
}

fn write_chart(dir: &Path) -> Result<()> {
    let files: FileTree = install::chart();
    let files: BTreeMap<String, Vec<u8>> = files.into_iter().map(|(path, bytes)| (path, bytes.to_vec())).collect();
    written::write(dir, &files)?;
    let dir = dir.display();
    output::print(&format!("{dir} written\nhelm upgrade --install {NAME} {dir} -n {NAMESPACE} --create-namespace\n"))
}
