//! `clusterstack push`: releases to where they are found.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};

use super::output::{self, Format};
use super::registry::RegistryArgs;
use super::report::Hinted;
use crate::io::publish::Published;
use crate::io::publish::directory::{self, Found};
use crate::io::publish::git::Git;
use crate::io::publish::registry::Registry;
use crate::io::publish::target::{self, Target};

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack push .release/docker-hello-1-34-v1 /srv/releases
  clusterstack push .release oci://registry.example.com/platform/cluster-stacks
  clusterstack push .release git+https://git.example.com/platform/releases.git --branch main
  clusterstack push .release layout:./layout dir:///srv/releases     # several at once

A release that is there with other content stays as it is, and the command fails. Git asks who you are as `git push`
does: an SSH agent, or your credential helpers.";

/// What a target is.
const TARGETS: &str = "Where to: oci://host/repository, dir:///path or a path, layout:path (an OCI image layout), git+https://…, git+ssh://…, git+file:///…";

/// Flags of `clusterstack push`.
#[derive(Args, Clone, Debug)]
pub struct PushArgs {
    /// Directory of a release, or one that holds several
    #[arg(value_name = "RELEASE_DIR")]
    releases: PathBuf,

    #[arg(value_name = "TARGET", required = true, help = TARGETS)]
    targets: Vec<String>,

    #[command(flatten)]
    git: GitArgs,

    #[command(flatten)]
    registry: RegistryArgs,

    /// Form of the output: JSON or YAML with a row for each release and target; lines for people without it
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Format>,
}

/// Where in a Git repository releases go.
#[derive(Args, Clone, Debug)]
pub struct GitArgs {
    /// Branch of a Git repository that gets the commits; without one only the tags hold them
    #[arg(long, value_name = "NAME")]
    branch: Option<String>,

    /// Directory of the stack in a Git repository; stacks/<provider>/<name> without it
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
}

impl GitArgs {
    /// Reads targets.
    ///
    /// # Errors
    /// One that is none, and flags for Git where none is of Git.
    pub fn targets<'a>(&self, texts: &'a [String], registry: &RegistryArgs) -> Result<Vec<(&'a String, Target)>> {
        let read = |text: &'a String| {
            let target = match text.parse::<Target>()? {
                Target::Git(git) => {
                    let git =
                        Git { branch: self.branch.clone(), ca_file: registry.ca_file().map(Path::to_owned), ..git };
                    Target::Git(match &self.path {
                        Some(path) => git.at_path(path)?,
                        None => git,
                    })
                }
                target => target,
            };
            Ok((text, target))
        };
        let targets: Vec<(&String, Target)> = texts.iter().map(read).collect::<Result<_>>()?;
        let is_for_git = self.branch.is_some() || self.path.is_some();
        if is_for_git && !targets.iter().any(|(_, target)| matches!(target, Target::Git(_))) {
            let hint = "name one: git+https://…";
            return Err(Hinted::new("--branch and --path are for Git, and no target is", hint).into());
        }
        Ok(targets)
    }
}

/// Pushes all releases to all targets and says what became of each.
///
/// # Errors
/// No release, a target that is none, a release that can't be read, or one that a target refused; the others are pushed nevertheless.
pub fn run(args: &PushArgs) -> Result<()> {
    let targets = args.git.targets(&args.targets, &args.registry)?;
    let releases = directory::read(&args.releases)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for (text, target) in &targets {
        let shown = crate::core::source::redact(text);
        let opened = match args.registry.open(target) {
            Ok(opened) => opened,
            Err(error) => {
                failures.push(format!("{shown}: {error:#}"));
                rows.extend(
                    releases.iter().map(|(name, _)| failed(&name.object_name(), &shown, &format!("{error:#}"))),
                );
                continue;
            }
        };
        let results = runtime.block_on(to_one(target, opened.registry.as_deref(), &releases));
        for ((name, _), result) in releases.iter().zip(results) {
            let name = name.object_name();
            rows.push(row(&name, &shown, &result));
            failures.extend(result.err().map(|error| format!("{name}: {error}")));
        }
    }
    if let Some(format) = args.output {
        output::print(&output::format(&rows, format)?)?;
    } else {
        let (failed, done): (Vec<&Value>, Vec<&Value>) = rows.iter().partition(|row| is_failed(row));
        output::print(&done.into_iter().map(line).collect::<String>())?;
        for row in failed {
            output::note_part!("{}", line(row));
        }
    }
    match failures.as_slice() {
        [] => Ok(()),
        all => Err(Hinted::new(
            format!(
                "{} of {} not pushed: {}",
                rows.iter().filter(|row| is_failed(row)).count(),
                rows.len(),
                all.join("; ")
            ),
            "what was pushed stays; push again when the rest is corrected",
        )
        .into()),
    }
}

async fn to_one(
    target: &Target,
    registry: Option<&dyn Registry>,
    releases: &[Found],
) -> Vec<Result<Published, String>> {
    let mut results = Vec::new();
    for (_, release) in releases {
        results.push(match release {
            Ok(release) => target::publish(target, registry, release).await.map_err(|error| error.to_string()),
            Err(unreadable) => Err(unreadable.to_string()),
        });
    }
    results
}

fn row(release: &str, target: &str, result: &Result<Published, String>) -> Value {
    match result {
        Ok(Published::New { revision }) => {
            json!({"release": release, "target": target, "state": "pushed", "revision": revision})
        }
        Ok(Published::Unchanged { revision }) => {
            json!({"release": release, "target": target, "state": "unchanged", "revision": revision})
        }
        Err(error) => failed(release, target, error),
    }
}

fn failed(release: &str, target: &str, error: &str) -> Value {
    json!({"release": release, "target": target, "state": "failed", "error": error})
}

fn is_failed(row: &Value) -> bool {
    row["state"] == "failed"
}

fn line(row: &Value) -> String {
    let text = |field: &str| row.get(field).and_then(Value::as_str).unwrap_or_default();
    let way = if text("state") == "unchanged" { "in" } else { "to" };
    let line = format!("{} {} {way} {} {}", text("release"), text("state"), text("target"), text("revision"));
    format!("{}\n", line.trim_end())
}
