//! `clusterstack lint`: a stack looked at before it is published.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde_json::Value;

use super::output::{self, Format};
use super::report::{self, Hinted};
use crate::core::addon::condition::STACK;
use crate::core::chart::Capabilities;
use crate::core::lint::report::{junit, level, place, sarif, to_json};
use crate::core::lint::{Finding, Options, RULES, Schemas, Severity, lint};
use crate::core::yaml;
use crate::io::{dry_run, stack};

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack lint stacks/docker/hello
  clusterstack lint stacks/docker/hello --crds ./crds                  # objects against schemas, without a cluster
  clusterstack lint stacks/docker/hello --server ~/.kube/config        # and against an API server, in a dry run
  clusterstack lint stacks/docker/hello -o sarif > lint.sarif

Exit codes: 0 nothing that stands in the way, 1 errors (with --strict warnings too), 2 it could not be looked at.";

/// Flags of `clusterstack lint`.
#[derive(Args, Clone, Debug)]
pub struct LintArgs {
    /// Directory of a stack, with its csctl.yaml
    #[arg(value_name = "STACK_DIR")]
    stack: PathBuf,

    /// Directory or file with CRDs, as `kubectl get crd -o yaml` writes them: objects are held against their schemas
    #[arg(long, value_name = "DIR")]
    crds: Option<PathBuf>,

    /// Kubeconfig of a cluster that is to take the objects in a dry run
    #[arg(long, value_name = "KUBECONFIG")]
    server: Option<PathBuf>,

    /// Namespace that the class is rendered for
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
    namespace: String,

    /// Kubernetes that addons see, for example 1.34; that of csctl.yaml without it
    #[arg(long, value_name = "VERSION")]
    kubernetes: Option<String>,

    /// File with the Cluster that addons are rendered for; one with nothing special without it
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,

    /// Warnings count as errors
    #[arg(long)]
    strict: bool,

    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: LintFormat,
}

/// Forms of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LintFormat {
    /// A line for each finding
    Text,
    /// One object
    Json,
    /// A test for each rule
    Junit,
    /// SARIF 2.1.0
    Sarif,
}

/// Looks at the stack and tells.
///
/// # Errors
/// Nobody to print to.
pub fn run(args: &LintArgs) -> Result<ExitCode> {
    let findings = match look(args) {
        Ok(findings) => findings,
        Err(error) => {
            report::failure(&error);
            return Ok(ExitCode::from(2));
        }
    };
    let stack = args.stack.display().to_string();
    match args.output {
        LintFormat::Text => output::print(&text(&findings))?,
        LintFormat::Json => output::print(&output::format(&to_json(&stack, &findings), Format::Json)?)?,
        LintFormat::Junit => output::print(&junit(&stack, &findings, args.strict, &skipped(args, &findings)))?,
        LintFormat::Sarif => output::print(&output::format(&sarif(&stack, &findings), Format::Json)?)?,
    }
    let worst = findings.iter().map(|finding| finding.rule.severity).max();
    let fails = worst == Some(Severity::Error) || (args.strict && worst.is_some());
    Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn look(args: &LintArgs) -> Result<Vec<Finding>> {
    if let Some(version) = &args.kubernetes {
        Capabilities::for_kube_version(version)
            .map_err(|error| Hinted::new(format!("--kubernetes: {error}"), "write it as 1.34 or v1.34.2"))?;
    }
    let hint = "STACK_DIR is a directory with csctl.yaml, cluster-class/ and cluster-addon/";
    let stack = stack::read(&args.stack)
        .map_err(|error| Hinted::new(format!("{} can't be looked at", args.stack.display()), hint).because(error))?;
    let schemas = args.crds.as_deref().map(schemas).transpose()?;
    let cluster = args.cluster.as_deref().map(cluster).transpose()?;
    let options = Options {
        schemas: schemas.as_ref(),
        kubernetes: args.kubernetes.as_deref(),
        cluster: cluster.as_ref(),
        namespace: &args.namespace,
        now: Timestamp::now(),
    };
    let mut looked = std::thread::scope(|scope| {
        let work = || lint(&stack.files, &stack.expanded, &options);
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
        let looked = thread.context("cannot start a thread")?.join();
        looked.map_err(|_| anyhow!("the stack could not be looked at to its end: please report it"))
    })?;
    if let Some(kubeconfig) = &args.server {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
        let more = runtime.block_on(async {
            let client = dry_run::client(kubeconfig).await?;
            client.apiserver_version().await.context("the API server of --server does not answer")?;
            anyhow::Ok(dry_run::check(&client, &looked.rendered, &args.namespace).await)
        })?;
        looked.findings.extend(more);
    }
    Ok(looked.findings)
}

/// The rules that nothing was looked at for: their flags are not given, or the stack could not be told from its files.
fn skipped(args: &LintArgs, findings: &[Finding]) -> Vec<&'static str> {
    let is_nameless = findings.iter().any(|finding| finding.rule.id == "csctl");
    let is_skipped = |id: &str| match id {
        "server" | "server-later" => args.server.is_none(),
        "object-schema" => args.crds.is_none(),
        _ => false,
    };
    // What is looked at whatever the stack is called.
    let always =
        ["csctl", "file-case", "dependency", "node-images", "image-checksum", "image-unverified", "image-command"];
    let rules = RULES.iter().map(|rule| rule.id);
    rules.filter(|id| is_skipped(id) || (is_nameless && !always.contains(id))).collect()
}

/// The Cluster in a file.
fn cluster(path: &Path) -> Result<Value> {
    let object = document(path)?;
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or("nothing");
    if kind == "Cluster" && object.get("spec").is_some_and(Value::is_object) {
        return Ok(object);
    }
    let message = format!("--cluster: {} is no Cluster: its kind is {kind}", path.display());
    let hint = "write one Cluster of Cluster API: kubectl get cluster NAME -o yaml";
    Err(Hinted::new(message, hint).into())
}

fn document(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    yaml::parse(&text).with_context(|| format!("{} is no YAML", path.display()))
}

/// The CRDs in a file, or in the files of a directory.
fn schemas(path: &Path) -> Result<Schemas> {
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        files.clear();
        for entry in std::fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))? {
            let file = entry.with_context(|| format!("cannot read {}", path.display()))?.path();
            if file.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json") {
                files.push(file);
            }
        }
        files.sort();
    }
    let mut schemas = Schemas::default();
    for file in files {
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        for document in yaml::parse_all(&text).with_context(|| format!("{} is no YAML", file.display()))? {
            schemas.add(&document.value);
        }
    }
    if schemas.is_empty() {
        let hint = "write some there with `kubectl get crd -o yaml > crds.yaml`";
        return Err(Hinted::new(format!("--crds {} holds no CustomResourceDefinition", path.display()), hint).into());
    }
    Ok(schemas)
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let severity = finding.rule.severity;
        let colour = if severity == Severity::Error { AnsiColor::Red } else { AnsiColor::Yellow };
        let style = Style::new().bold().fg_color(Some(colour.into()));
        let place = place(finding).map(|place| format!("{place}: ")).unwrap_or_default();
        let (level, rule) = (level(severity), finding.rule.id);
        _ = writeln!(text, "{place}{style}{level}{style:#}: {} [{rule}]", finding.message);
    }
    let count = |severity| findings.iter().filter(|finding| finding.rule.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let of = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    _ = writeln!(text, "{}, {}", of(errors, "error"), of(warnings, "warning"));
    text
}
