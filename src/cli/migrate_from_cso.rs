//! `clusterstack migrate-from-cso`: checks an installation of the Go operator, and puts ours in its place.

use std::fmt::Write as _;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Map, Value};

use super::connection::{self, ConnectionArgs};
use super::install;
use super::output::{self, Format};
use super::report::Hinted;
use super::template::ValuesArgs;
use crate::core::cso::{self, Facts, Note};
use crate::core::install::{NAMESPACE, waves};
use crate::io::cso::{Copied, Cso, CsoError};
use crate::settings::duration;

/// The file with the values that the operator was installed with.
const VALUES: &str = "clusterstack-values.yaml";
/// The same where an earlier one is there.
const NEW_VALUES: &str = "clusterstack-values.new.yaml";

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack migrate-from-cso                      # what is there, and what would be done; changes nothing
  clusterstack migrate-from-cso -o json | jq '.[] | select(.blocks)'
  clusterstack migrate-from-cso --set storage.size=50Gi --yes   # CSO's webhooks and hooks go, it is stopped, the operator is installed

ClusterStacks, releases, Clusters and their addons stay as they are and are taken over. To go back: `clusterstack uninstall`,
then `kubectl apply` the file of --backup and CSO's own manifest.";

/// Flags of `clusterstack migrate-from-cso`.
#[derive(Args, Clone, Debug)]
pub struct MigrateArgs {
    /// Do it
    #[arg(long, conflicts_with = "output")]
    yes: bool,

    /// Where CSO's webhooks, hooks and Deployment are written to before they are touched
    #[arg(long, value_name = "FILE", default_value = "cso-backup.yaml")]
    backup: PathBuf,

    /// Namespace of our operator
    #[arg(short, long, value_name = "NAMESPACE", default_value = NAMESPACE)]
    namespace: String,

    #[command(flatten)]
    values: ValuesArgs,

    /// How long CSO may take to stop, and the operator to run
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    timeout: Duration,

    /// Form of what is found, for a script
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Format>,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Tells what is there; with `--yes` does it.
///
/// # Errors
/// Something blocks it, or the API server says no.
pub fn run(args: &MigrateArgs) -> Result<ExitCode> {
    let facts = connection::block_on(async {
        let connection = args.connection.connect().await?;
        Cso::new(&connection.client).facts().await.map_err(anyhow::Error::from)
    })?;
    let notes = cso::notes(&facts);
    let blocked = notes.iter().any(|note| note.blocks);
    match args.output {
        Some(format) => output::print(&output::format(&notes, format)?)?,
        None => output::print(&text(&facts, &notes, args))?,
    }
    if args.yes && blocked {
        return Err(Hinted::new("nothing was changed", "solve what blocks it, then run it again").into());
    }
    if args.yes {
        migrate(args, &facts)?;
    }
    Ok(if blocked { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn migrate(args: &MigrateArgs, facts: &Facts) -> Result<()> {
    let values = values(args, facts)?;
    let waves = waves(install::objects(&args.namespace, values.clone())?);
    let takes = cso::taken(facts);
    let backup = backup(args, facts)?;
    connection::block_on(async {
        let connection = args.connection.connect().await?;
        let client = &connection.client;
        let old = Cso::new(client);
        // Half of it would leave Clusters that nobody may change, and no operator.
        old.rehearse(facts).await.map_err(|error| {
            let headline = install::unchanged(error.is_refusal());
            hinted(error).context(headline)
        })?;
        install::rehearse(client, &args.namespace, &waves, &takes).await?;
        if facts.deployments.iter().any(cso::is_stopped) && !args.backup.exists() {
            output::progress!(
                "CSO was stopped before: {} holds what is left of it, the way back is what was written then",
                args.backup.display()
            );
        }
        write(&args.backup, &backup)?;
        // Should anything fail from here on, they are there for who goes on by hand.
        let kept = keep_values(args, &values)?;
        old.stop(facts, args.timeout, &mut |step| output::progress!("{step}")).await.map_err(hinted)?;
        let from = facts.deployments.first().and_then(|object| object["metadata"]["namespace"].as_str());
        install::make_namespace(client, &args.namespace).await?;
        for origin in cso::origins(facts) {
            let (to, (kind, name)) = (&args.namespace, &origin);
            match old.copy(&origin, from.unwrap_or_default(), to).await? {
                Copied::Nothing => {}
                Copied::Written => output::progress!("{kind} {to}/{name} copied"),
                Copied::Kept => output::progress!("{kind} {to}/{name} is there with other content, and stays"),
            }
        }
        install::all(client, &args.namespace, &waves, &takes, args.timeout).await?;
        let shown = kept.display();
        output::progress!(
            "values are not remembered: upgrade by `clusterstack install -f {shown}`, which holds what was taken over"
        );
        Ok(())
    })
}

/// Writes the values that are installed with, beside the backup: later upgrades need them. A file that is there may have been
/// edited, and stays; what was taken over this time is written beside it then. Gives the file with what was taken over.
fn keep_values(args: &MigrateArgs, values: &Map<String, Value>) -> Result<PathBuf> {
    let (path, text) = (args.backup.with_file_name(VALUES), output::format(values, Format::Yaml)?);
    let is_other = match fs::read_to_string(&path) {
        Ok(there) => there != text,
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let kept = if is_other { args.backup.with_file_name(NEW_VALUES) } else { path.clone() };
    write(&kept, &text)?;
    if is_other {
        let (there, new) = (path.display(), kept.display());
        output::progress!("{there} is there with other content, and stays: what is installed is in {new}");
    }
    Ok(kept)
}

fn hinted(error: CsoError) -> anyhow::Error {
    match error {
        CsoError::Runs { .. } => Hinted::new(
            error.to_string(),
            "the same command waits on; a pod whose node is gone for good goes by kubectl delete pod --force",
        )
        .into(),
        error @ CsoError::Refused { .. } => error.into(),
    }
}

/// CSO's own settings as values of our chart, under those that are given.
fn values(args: &MigrateArgs, facts: &Facts) -> Result<Map<String, Value>> {
    let mut values = Value::Object(cso::values(facts));
    json_patch::merge(&mut values, &Value::Object(args.values.read()?));
    Ok(values.as_object().cloned().unwrap_or_default())
}

/// The text of the backup, with what an earlier run wrote.
fn backup(args: &MigrateArgs, facts: &Facts) -> Result<String> {
    let path = &args.backup;
    let there = match fs::read_to_string(path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    cso::backup(facts, there.as_deref()).map_err(|error| {
        let message = format!("{} is no backup of this command", path.display());
        Hinted::new(message, "nothing was changed: name another file by --backup").because(error).into()
    })
}

/// Writes it whole or not at all, for its owner alone: variables of CSO may stand in it.
fn write(path: &Path, text: &str) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let written = || -> std::io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(".cso-backup-").tempfile_in(directory)?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    written().with_context(|| format!("cannot write {}", path.display()))
}

fn text(facts: &Facts, notes: &[Note], args: &MigrateArgs) -> String {
    let mut text = format!(
        "{} ClusterStacks, {} ClusterAddons, {} webhook configurations and {} ExtensionConfigs of CSO\n",
        facts.stacks.len(),
        facts.addons.len(),
        facts.webhooks.len(),
        facts.extensions.len()
    );
    for note in notes {
        let (word, colour) = if note.blocks { ("blocks", AnsiColor::Red) } else { ("note", AnsiColor::Yellow) };
        let style = Style::new().fg_color(Some(colour.into()));
        let Note { object, message, remedy, .. } = note;
        // Writing to a String can't fail.
        let _ = writeln!(text, "{style}{word}{style:#} {object}: {message}\n       → {remedy}");
    }
    for waits in facts.unfinished.iter().filter(|_| !facts.operators.is_empty()) {
        let _ = writeln!(text, "not finished: {waits}");
    }
    if cso::is_finished(facts) {
        let ours = facts.operators.join(", ");
        let _ = writeln!(text, "the migration is finished: nothing of CSO is in the way, and {ours} runs");
    } else if !args.yes && notes.iter().all(|note| !note.blocks) {
        text.push_str("--yes does it:\n");
        text.extend(steps(facts, args).iter().map(|step| format!("  {step}\n")));
    }
    text
}

/// What is done, in its order.
fn steps(facts: &Facts, args: &MigrateArgs) -> Vec<String> {
    let mut steps = vec![format!("{} is written with what is touched", args.backup.display())];
    let registered = facts.webhooks.iter().chain(&facts.extensions);
    steps.extend(registered.map(|object| format!("{} is removed", cso::named(object))));
    let already = |object: &Value| if cso::is_stopped(object) { " already" } else { "" };
    let stopped = |object: &Value| format!("{} is stopped{}", cso::named(object), already(object));
    steps.extend(facts.deployments.iter().map(stopped));
    let copied = |(kind, name): &cso::Origin| format!("{kind} {name} is copied to {}", args.namespace);
    steps.extend(cso::origins(facts).iter().map(copied));
    steps.extend(
        cso::taken(facts).iter().map(|name| format!("CustomResourceDefinition {name} is taken over from Helm")),
    );
    let values = cso::values(facts);
    let names = values.get("env").and_then(Value::as_array).into_iter().flatten();
    let names: Vec<&str> = names.filter_map(|variable| variable["name"].as_str()).collect();
    let env = if names.is_empty() { String::new() } else { format!(" with CSO's {}", names.join(", ")) };
    steps.push(format!("the operator is installed in {}{env}", args.namespace));
    let others = values.iter().filter(|(name, _)| *name != "env");
    steps.extend(others.map(|(name, value)| format!("  {name}: {value}")));
    steps
}
