//! A word to a build: cancel, or try again; and whether it was heard.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{Image, KINDS, NameArgs, Named};
use crate::api::image_release::{ImagePhase, ProviderNodeImageReleaseStatus as Status};
use crate::api::{CANCEL_AT, RETRY_AT};
use crate::cli::output;
use crate::cli::report::Hinted;
use crate::settings::duration;

/// How often is looked whether it was heard.
const LOOK: Duration = Duration::from_millis(300);

/// Flags of `clusterstack images cancel`.
#[derive(Args, Clone, Debug)]
pub struct AskArgs {
    #[command(flatten)]
    image: NameArgs,

    /// How long to wait until the operator has acted on it
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    wait: Duration,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Stop the build.
    Cancel,
    /// Start it again.
    Retry,
}

impl Wish {
    fn annotation(self) -> &'static str {
        match self {
            Self::Cancel => CANCEL_AT,
            Self::Retry => RETRY_AT,
        }
    }

    /// Whether the operator has acted on what was asked for at `asked`.
    fn is_heard(self, status: &Status, asked: &str) -> bool {
        match self {
            Self::Cancel => status.last_handled_cancel_at == asked,
            Self::Retry => status.last_handled_retry_at == asked,
        }
    }

    /// Why there is nothing to ask for.
    fn needless(self, status: &Status) -> Option<&'static str> {
        match (self, status.phase) {
            (Self::Cancel, ImagePhase::Succeeded) => {
                Some("the image is at its destination: nothing is to be cancelled")
            }
            (Self::Cancel, ImagePhase::Cancelled) => Some("the build is cancelled already"),
            (Self::Cancel, ImagePhase::Failed) => Some("the build was given up: nothing runs any more"),
            (Self::Retry, ImagePhase::Succeeded) => {
                Some("the image is at its destination: nothing is to be tried again")
            }
            (Self::Retry, ImagePhase::Running) => Some("the build runs already"),
            (Self::Retry, ImagePhase::Suspended) => Some("the build is held: set spec.suspend to false"),
            (Self::Retry, ImagePhase::Queued) if status.not_before.is_none() => {
                Some("the build waits for a place already")
            }
            _ => None,
        }
    }

    /// What became of it.
    fn outcome(self, status: &Status) -> String {
        let attempt = status.attempt;
        match (self, status.phase) {
            (Self::Cancel, ImagePhase::Cancelled) => {
                let attempt = if attempt > 0 { format!(" in attempt {attempt}") } else { String::new() };
                format!("cancelled{attempt}; `clusterstack images retry` starts it again")
            }
            (Self::Cancel, ImagePhase::Succeeded) => "it was at its end before it could be cancelled".to_owned(),
            (Self::Cancel, ImagePhase::Failed) => "it failed before it could be cancelled".to_owned(),
            // It may fail sooner than one looks.
            (Self::Retry, ImagePhase::Queued) if status.not_before.is_some() => {
                format!("attempt {attempt} failed already, and there will be another one: {}", status.message)
            }
            (Self::Retry, ImagePhase::Failed) => format!("attempt {attempt} failed already: {}", status.message),
            (Self::Retry, ImagePhase::Queued) => "it waits for a place to build".to_owned(),
            (Self::Retry, ImagePhase::Running) => format!("attempt {attempt} runs"),
            (Self::Retry, ImagePhase::Succeeded) => "the image is at its destination".to_owned(),
            (_, phase) => format!("the build is {phase:?}"),
        }
    }
}

/// Asks, and tells what became of it.
///
/// # Errors
/// No such image, no right to change it, or an operator that does not hear.
pub async fn cancel(args: &AskArgs) -> Result<ExitCode> {
    let (named, image) = args.image.find().await?;
    ask(Wish::Cancel, &named, &image.status.unwrap_or_default(), args.wait, json!({})).await
}

/// Asks with annotations beside, and tells what became of it; `before` is the status as it was read.
pub(super) async fn ask(wish: Wish, named: &Named, before: &Status, wait: Duration, beside: Value) -> Result<ExitCode> {
    if let Some(why) = wish.needless(before) {
        output::note!("{}: {why}", named.shown);
        return Ok(ExitCode::SUCCESS);
    }
    let asked = Timestamp::now().to_string();
    let mut annotations = beside;
    annotations[wish.annotation()] = json!(asked);
    annotate(named, &annotations).await?;
    let until = Instant::now() + wait;
    loop {
        let status = named.read().await?.status.unwrap_or_default();
        if wish.is_heard(&status, &asked) {
            output::print(&format!("{}: {}\n", named.shown, wish.outcome(&status)))?;
            return Ok(ExitCode::SUCCESS);
        }
        if wait.is_zero() {
            output::note!("{}: asked for; the operator was not waited for", named.shown);
            return Ok(ExitCode::SUCCESS);
        }
        if Instant::now() >= until {
            let hint = "is it running, and does it work on this namespace? What is asked for stays in the annotation \
                        and is acted on when it is";
            let message = format!("the operator did not act on {}/{} yet", named.namespace, named.name);
            return Err(Hinted::new(message, hint).into());
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn annotate(named: &Named, annotations: &Value) -> Result<()> {
    let patch = json!({"metadata": {"annotations": annotations}});
    let params = PatchParams { field_manager: Some("clusterstack-images".to_owned()), ..PatchParams::default() };
    let patched: Result<Image, kube::Error> =
        named.connection.answer(named.api.patch(&named.name, &params, &Patch::Merge(patch))).await?;
    match patched {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => {
            Err(super::missing(&named.name, &named.namespace).into())
        }
        Err(error) => Err(named.connection.refused("changed", KINDS, error).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ImagePhase::{Cancelled, Failed, Queued, Running, Succeeded, Suspended};

    fn status(phase: ImagePhase) -> Status {
        Status { phase, attempt: 2, ..Status::default() }
    }

    #[test]
    fn only_what_changes_something_is_asked_for() {
        for (wish, expected) in
            [(Wish::Cancel, [Queued, Running, Suspended].as_slice()), (Wish::Retry, [Failed, Cancelled].as_slice())]
        {
            for phase in [Queued, Running, Succeeded, Failed, Cancelled, Suspended] {
                assert_eq!(wish.needless(&status(phase)).is_none(), expected.contains(&phase), "{wish:?} {phase:?}");
            }
        }
        let pauses =
            Status { not_before: serde_json::from_value(json!("2026-01-01T00:00:00.000000Z")).ok(), ..status(Queued) };
        assert_eq!(Wish::Retry.needless(&pauses), None);
    }

    #[test]
    fn it_is_heard_when_the_status_has_its_value() {
        let status =
            Status { last_handled_cancel_at: "2".into(), last_handled_retry_at: "1".into(), ..status(Cancelled) };
        assert!(Wish::Cancel.is_heard(&status, "2") && !Wish::Cancel.is_heard(&status, "1"));
        assert!(Wish::Retry.is_heard(&status, "1") && !Wish::Retry.is_heard(&status, "2"));
    }

    #[test]
    fn the_outcome_is_said_in_words() {
        for (wish, phase, expected) in [
            (Wish::Cancel, Cancelled, "cancelled in attempt 2; `clusterstack images retry` starts it again"),
            (Wish::Cancel, Succeeded, "it was at its end before it could be cancelled"),
            (Wish::Retry, Queued, "it waits for a place to build"),
            (Wish::Retry, Running, "attempt 2 runs"),
            (Wish::Retry, Suspended, "the build is Suspended"),
        ] {
            assert_eq!(wish.outcome(&status(phase)), expected);
        }
        let failed = Status { message: "the network".into(), ..status(Failed) };
        assert_eq!(Wish::Retry.outcome(&failed), "attempt 2 failed already: the network");
        let not_before = serde_json::from_value(json!("2026-01-01T00:00:00.000000Z")).ok();
        let pauses = Status { phase: Queued, not_before, ..failed };
        assert_eq!(
            Wish::Retry.outcome(&pauses),
            "attempt 2 failed already, and there will be another one: the network"
        );
    }
}
