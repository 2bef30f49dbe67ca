//! Asks something of objects, waits until the operator has acted on it, and tells what became of each.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use anyhow::Result;
use clap::Args;
use futures::{StreamExt, stream};
use kube::api::{Patch, PatchParams};
use serde::Serialize;
use serde_json::Value;

use super::output::{self, Format, one_line};
use super::report::{self, Hinted};
use super::target::Target;
use crate::settings::duration;

/// How often an object is looked at.
const PAUSE: Duration = Duration::from_secs(1);
/// Objects that are asked and waited for at once.
const TOGETHER: usize = 16;

/// Flags that say how long to wait, and how to tell.
#[derive(Args, Clone, Debug)]
pub struct SettleArgs {
    /// How long to wait for all of them
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    timeout: Duration,

    /// Ask, and do not wait for the operator
    #[arg(long)]
    no_wait: bool,

    /// Form of the output for a script: a list with what became of each
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Format>,
}

/// What became of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done, and in order.
    Done(String),
    /// Done, and not in order: reason and message.
    Failed(String, String),
    /// Not done yet: what it waits for.
    Waits(String),
}

/// What is asked.
pub trait Wish: Sync {
    /// Who asks, in `metadata.managedFields`.
    const MANAGER: &'static str;

    /// Why it is not to be asked of the object as it is; `None` if it may be.
    fn refusal(&self, target: &Target, object: &Value) -> Option<Hinted>;

    /// What the person should know beside.
    fn warning(&self, object: &Value) -> Option<String>;

    /// The change of the object that asks; `None` where it is asked already.
    fn patch(&self, object: &Value) -> Option<Value>;

    /// What became of it.
    fn outcome(&self, target: &Target, object: &Value) -> impl Future<Output = Result<Outcome>> + Send;

    /// What is said where nobody waits.
    fn asked(&self) -> &'static str;
}

/// An object and what became of it. The field names are API of `-o json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Row {
    kind: String,
    namespace: String,
    name: String,
    /// `done`, `asked`, `waiting`, `stalled` or `error`.
    outcome: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    message: String,
}

/// Asks all of them, and tells what became of each as soon as it is known. One that can't be asked stops no other.
///
/// # Errors
/// Nobody to print to.
pub async fn settle<W: Wish>(targets: Vec<Target>, wish: &W, args: &SettleArgs) -> Result<ExitCode> {
    let until = Instant::now() + args.timeout;
    let several = targets.len() > 1;
    let mut ended = stream::iter(targets)
        .map(|target| async move {
            let outcome = one(&target, wish, (until, args.no_wait)).await;
            (target, outcome)
        })
        .buffer_unordered(TOGETHER);
    let mut rows = Vec::new();
    while let Some((target, outcome)) = ended.next().await {
        if let (Err(error), false) = (&outcome, several) {
            return Ok(report::failure(error));
        }
        let row = row(&target, wish.asked(), outcome);
        if args.output.is_none() {
            output::print(&line(&target, &row))?;
        }
        rows.push(row);
    }
    rows.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    match args.output {
        Some(format) => output::print(&output::format(&rows, format)?)?,
        None if rows.is_empty() => anstream::eprintln!("there are none"),
        None => {}
    }
    let is_good = |row: &Row| matches!(row.outcome, "done" | "asked");
    Ok(if rows.iter().all(is_good) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Asks one, and waits; `None` where nobody waits.
async fn one<W: Wish>(target: &Target, wish: &W, (until, no_wait): (Instant, bool)) -> Result<Option<Outcome>> {
    let object = target.read().await?;
    if let Some(refusal) = wish.refusal(target, &object) {
        return Err(refusal.into());
    }
    if let Some(warning) = wish.warning(&object) {
        report::left_out([&format!("{}: {warning}", target.shown())]);
    }
    if let Some(patch) = wish.patch(&object) {
        change(target, W::MANAGER, &patch).await?;
    }
    if no_wait {
        return Ok(None);
    }
    let mut told = String::new();
    loop {
        let outcome = wish.outcome(target, &target.read().await?).await?;
        match &outcome {
            Outcome::Waits(why) if Instant::now() < until => {
                if told != *why {
                    anstream::eprintln!("{}: {}", target.shown(), one_line(why));
                    told.clone_from(why);
                }
            }
            _ => return Ok(Some(outcome)),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn change(target: &Target, manager: &str, patch: &Value) -> Result<()> {
    let connection = &target.connection;
    let api = target.kind.api(connection.client.clone(), &target.namespace);
    let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
    match connection.answer(api.patch(&target.name, &params, &Patch::Merge(patch))).await? {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Err(target.missing().into()),
        Err(error) => Err(connection.refused("changed", &target.kind.many(), error).into()),
    }
}

fn row(target: &Target, asked: &str, outcome: Result<Option<Outcome>>) -> Row {
    let (outcome, reason, message) = match outcome {
        Ok(None) => ("asked", String::new(), asked.to_owned()),
        Ok(Some(Outcome::Done(message))) => ("done", String::new(), message),
        Ok(Some(Outcome::Failed(reason, message))) => ("stalled", reason, message),
        Ok(Some(Outcome::Waits(why))) => ("waiting", String::new(), format!("it did not come to rest in time: {why}")),
        Err(error) => ("error", String::new(), report::causes(&error).join(": ")),
    };
    Row {
        kind: target.kind.resource().kind,
        namespace: target.namespace.clone(),
        name: target.name.clone(),
        outcome,
        reason,
        message: one_line(&message),
    }
}

fn line(target: &Target, row: &Row) -> String {
    let (mark, colour) = match row.outcome {
        "done" | "asked" => ('✓', AnsiColor::Green),
        _ => ('✗', AnsiColor::Red),
    };
    let style = Style::new().fg_color(Some(colour.into()));
    let reason = if row.reason.is_empty() { String::new() } else { format!("{}: ", one_line(&row.reason)) };
    format!("{style}{mark}{style:#} {}: {reason}{}\n", target.shown(), row.message)
}
