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
/// How long a failure has to stand: what a ClusterStack says of its releases is behind what they say themselves.
const STEADY: Duration = Duration::from_secs(5);
/// Objects that are asked, or looked at, at once.
const TOGETHER: usize = 16;
/// What is waited for first of all.
const UNSEEN: &str = "waiting for the operator to see it";

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
    /// The operator has not come to it: what the object says of itself meanwhile, if that is worth to be told.
    Unseen(String),
    /// Not done yet: what it waits for.
    Waits(String),
}

impl Outcome {
    /// What is waited for; `None` where nothing is any more.
    fn awaited(&self) -> Option<String> {
        match self {
            Self::Unseen(says) if says.is_empty() => Some(UNSEEN.to_owned()),
            Self::Unseen(says) => Some(format!("{UNSEEN}; it says {says}")),
            Self::Waits(why) => Some(why.clone()),
            Self::Done(_) | Self::Failed(..) => None,
        }
    }
}

/// What is asked.
pub trait Wish: Sync {
    /// Who asks, in `metadata.managedFields`.
    const MANAGER: &'static str;

    /// Why it is not to be asked of the object as it is; `None` if it may be.
    fn refusal(&self, object: &Value) -> Option<Hinted>;

    /// What the person should know beside.
    fn warning(&self, object: &Value) -> Option<String>;

    /// The change of the object that asks; `None` where it is asked already.
    fn patch(&self, object: &Value) -> Option<Value>;

    /// What became of it, of an object as it was before and as it is now.
    fn outcome(&self, target: &Target, before: &Value, now: &Value) -> impl Future<Output = Result<Outcome>> + Send;

    /// What is said where nobody waits.
    fn asked(&self) -> &'static str;
}

/// An object and what became of it. The field names are API of `-o json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Row {
    kind: String,
    namespace: String,
    name: String,
    /// `done`, `asked`, `skipped`, `waiting`, `stalled` or `error`.
    outcome: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    message: String,
}

/// What came of asking.
enum Answer {
    /// It was asked of the object that is given.
    Asked(Value),
    /// It is not to be asked of one of all: why.
    Skipped(String),
}

/// Asks all of them first, then waits for them, and tells what became of each as soon as it is known. One that can't be asked stops no
/// other.
///
/// # Errors
/// Nobody to print to.
pub async fn settle<W: Wish>(targets: Vec<Target>, wish: &W, args: &SettleArgs) -> Result<ExitCode> {
    let until = Instant::now().checked_add(args.timeout);
    let is_alone = targets.len() == 1 && args.output.is_none();
    let asked = stream::iter(targets).map(|target| async move {
        let answer = ask(&target, wish).await;
        (target, answer)
    });
    // All of them, before anything is printed: who reads may go away.
    let asked: Vec<(Target, Result<Answer>)> = asked.buffered(TOGETHER).collect().await;
    let mut rows = Vec::new();
    let mut waiting = Vec::new();
    for (target, answer) in asked {
        match answer {
            Err(error) if is_alone => return Ok(report::failure(&error)),
            Err(error) => rows.push(row(&target, wish.asked(), Err(error))),
            Ok(Answer::Skipped(why)) => rows.push(Row { outcome: "skipped", message: why, ..blank(&target) }),
            Ok(Answer::Asked(_)) if args.no_wait => rows.push(row(&target, wish.asked(), Ok(None))),
            Ok(Answer::Asked(object)) => waiting.push((target, object)),
        }
    }
    if args.output.is_none() {
        output::print(&rows.iter().map(line).collect::<String>())?;
    }
    // Each of them looks by itself, so that none waits for another; few requests are under way at once.
    let looks = tokio::sync::Semaphore::new(TOGETHER);
    let looks = &looks;
    let mut ended = waiting
        .into_iter()
        .map(|(target, object)| async move {
            let outcome = follow(&target, wish, &object, (until, looks)).await.map(Some);
            (target, outcome)
        })
        .collect::<stream::FuturesUnordered<_>>();
    while let Some((target, outcome)) = ended.next().await {
        let row = row(&target, wish.asked(), outcome);
        if args.output.is_none() {
            output::print(&line(&row))?;
        }
        rows.push(row);
    }
    rows.sort_by(|one, other| {
        (&one.namespace, &one.kind, &one.name).cmp(&(&other.namespace, &other.kind, &other.name))
    });
    match args.output {
        Some(format) => output::print(&output::format(&rows, format)?)?,
        None if rows.is_empty() => output::note!("there are none"),
        None => {}
    }
    let is_good = |row: &Row| matches!(row.outcome, "done" | "asked" | "skipped");
    Ok(if rows.iter().all(is_good) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn ask<W: Wish>(target: &Target, wish: &W) -> Result<Answer> {
    let object = target.read().await?.ok_or_else(|| target.missing())?;
    if let Some(refusal) = wish.refusal(&object) {
        let named = |what: &str| format!("{} {what}", target.shown());
        return if target.is_one_of_all {
            Ok(Answer::Skipped(format!("left out: it {refusal}")))
        } else {
            Err(refusal.about(named).into())
        };
    }
    if let Some(warning) = wish.warning(&object) {
        report::left_out([&format!("{}: {warning}", target.shown())]);
    }
    if let Some(patch) = wish.patch(&object) {
        change(target, W::MANAGER, &patch).await?;
    }
    Ok(Answer::Asked(object))
}

/// Waits for one object. An API server that is away for a while ends no wait.
async fn follow<W: Wish>(
    target: &Target,
    wish: &W,
    before: &Value,
    (until, looks): (Option<Instant>, &tokio::sync::Semaphore),
) -> Result<Outcome> {
    // Said before the first look, which may be later than all that is waited for.
    let mut told = UNSEEN.to_owned();
    output::note!("{}: {told}", target.shown());
    let mut failed: Option<(Instant, Outcome)> = None;
    loop {
        let is_over = until.is_some_and(|until| Instant::now() >= until);
        let looked = {
            let _permit = looks.acquire().await;
            match target.read().await {
                Ok(Some(now)) => wish.outcome(target, before, &now).await,
                Ok(None) => Ok(Outcome::Failed(String::new(), "it is not there any more".to_owned())),
                Err(error) => Err(error),
            }
        };
        let outcome = match looked {
            Err(error) if is_over => return Err(error),
            Err(error) => Outcome::Waits(report::causes(&error).join(": ")),
            Ok(outcome) => outcome,
        };
        if is_over {
            return Ok(outcome);
        }
        match (outcome.awaited(), &failed) {
            (Some(why), _) => {
                failed = None;
                if told != why {
                    output::note!("{}: {}", target.shown(), one_line(&why));
                    told = why;
                }
            }
            (None, Some((since, before))) if *before == outcome => {
                if since.elapsed() >= STEADY {
                    return Ok(outcome);
                }
            }
            (None, _) if matches!(outcome, Outcome::Failed(..)) => failed = Some((Instant::now(), outcome)),
            (None, _) => return Ok(outcome),
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

fn blank(target: &Target) -> Row {
    Row {
        kind: target.kind.resource().kind,
        namespace: target.namespace.clone(),
        name: target.name.clone(),
        outcome: "error",
        reason: String::new(),
        message: String::new(),
    }
}

fn row(target: &Target, asked: &str, outcome: Result<Option<Outcome>>) -> Row {
    let (outcome, reason, message) = match outcome {
        Ok(None) => ("asked", String::new(), asked.to_owned()),
        Ok(Some(Outcome::Done(message))) => ("done", String::new(), message),
        Ok(Some(Outcome::Failed(reason, message))) => ("stalled", reason, message),
        Ok(Some(waits)) => {
            let hint = match &waits {
                Outcome::Unseen(_) => {
                    "; `clusterstack shards` shows whether one is at work; a slow source is waited for, too"
                }
                _ => "",
            };
            let why = waits.awaited().unwrap_or_default();
            ("waiting", String::new(), format!("it did not come to rest in time: {why}{hint}"))
        }
        Err(error) => {
            let own = target.shown() + " ";
            let causes: Vec<String> = report::causes(&error);
            let said =
                causes.iter().map(|cause| cause.strip_prefix(&own).unwrap_or(cause)).collect::<Vec<_>>().join(": ");
            let hint = report::hint(&error).map(|hint| format!("; {hint}")).unwrap_or_default();
            ("error", String::new(), said + &hint)
        }
    };
    Row { outcome, reason, message: one_line(&message), ..blank(target) }
}

fn line(row: &Row) -> String {
    let (mark, colour) = match row.outcome {
        "done" | "asked" => ('✓', AnsiColor::Green),
        "skipped" => ('-', AnsiColor::Yellow),
        _ => ('✗', AnsiColor::Red),
    };
    let style = Style::new().fg_color(Some(colour.into()));
    let reason = if row.reason.is_empty() { String::new() } else { format!("{}: ", one_line(&row.reason)) };
    format!("{style}{mark}{style:#} {} {}/{}: {reason}{}\n", row.kind, row.namespace, row.name, row.message)
}
