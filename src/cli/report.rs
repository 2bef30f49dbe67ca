//! How a failure is told: `error: …`, its causes, and what to do about it.

use std::io::ErrorKind;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use kube::ResourceExt;
use kube::core::Status;

use super::output::{self, one_line, visible};
use crate::api::condition::{self, ConditionType, Reported};

/// An error that knows what the user can do about it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Hinted {
    message: String,
    hint: String,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Hinted {
    /// Without a cause.
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into(), source: None }
    }

    /// With other advice.
    #[must_use]
    pub fn advising(mut self, hint: &str) -> Self {
        hint.clone_into(&mut self.hint);
        self
    }

    /// With the name of what it is about in front of it.
    #[must_use]
    pub fn about(mut self, named: impl FnOnce(&str) -> String) -> Self {
        self.message = named(&self.message);
        self
    }

    /// What it came from.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

/// Tells standard error what went wrong and gives the exit code: 1, or 0 where only the reader of our output went away,
/// as `head` does.
pub fn failure(error: &anyhow::Error) -> ExitCode {
    if error.chain().any(is_closed_pipe) {
        return ExitCode::SUCCESS;
    }
    output::note_part!("{}", text(error));
    ExitCode::FAILURE
}

/// Tells standard error of what is not shown, and why.
pub fn left_out<'a>(notes: impl IntoIterator<Item = &'a String>) {
    let yellow = Style::new().fg_color(Some(AnsiColor::Yellow.into()));
    for note in notes {
        output::note!("{yellow}warning{yellow:#}: {}", one_line(note));
    }
}

/// Why there may be more releases than are known of an object: its source could not be read, or, where `is_empty` says that
/// none are known, whatever keeps it from being ready.
pub fn may_have_more<K: Reported + ResourceExt>(kind: &str, object: &K, is_empty: bool) -> Option<String> {
    let name = format!("{kind} {}/{}", object.namespace().unwrap_or_default(), object.name_any());
    let is_not = |type_| condition::find(object.conditions(), type_).filter(|condition| !condition.is_true());
    let why = is_not(ConditionType::AssetsClientAPIAvailable).or_else(|| is_not(ConditionType::ReleasesSynced));
    let why = why.or_else(|| object.ready().filter(|ready| is_empty && !ready.is_true()));
    match why {
        Some(why) => Some(format!("{name} may have others ({}): {}", why.reason, why.message)),
        None if is_empty && object.conditions().is_empty() => {
            Some(format!("{name} was not looked at by the operator yet: see clusterstack doctor"))
        }
        None => None,
    }
}

fn is_closed_pipe(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// What an error says: of an API server's refusal its own words, and not all of the answer that they stand in.
fn words(cause: &(dyn std::error::Error + 'static)) -> String {
    let refused = match cause.downcast_ref() {
        Some(kube::Error::Api(status)) => Some(&**status),
        _ => cause.downcast_ref::<Status>(),
    };
    match refused {
        Some(status) if status.message.is_empty() => format!("{} (HTTP {})", status.reason, status.code),
        Some(status) => status.message.clone(),
        None => cause.to_string(),
    }
}

/// The failure as text, coloured.
pub fn text(error: &anyhow::Error) -> String {
    let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    let cyan = Style::new().bold().fg_color(Some(AnsiColor::Cyan.into()));
    let mut text = format!("{red}error{red:#}: ");
    text.push_str(&causes(error).join("\n  caused by: "));
    text.push('\n');
    if let Some(hint) = hint(error) {
        text = format!("{text}{cyan}hint{cyan:#}: {hint}\n");
    }
    text
}

/// Logs the failure, for who reads the log alone.
pub fn logged(error: &anyhow::Error) -> ExitCode {
    tracing::error!(hint = hint(error), "{}", causes(error).join(": "));
    ExitCode::FAILURE
}

/// What went wrong, and what that came from.
pub(super) fn causes(error: &anyhow::Error) -> Vec<String> {
    let mut causes: Vec<String> = Vec::new();
    for cause in error.chain() {
        let cause = visible(&words(cause));
        // Many errors print their source themselves.
        if !causes.iter().any(|said| said.contains(&cause)) {
            causes.push(cause);
        }
    }
    causes
}

/// What can be done about it.
pub(super) fn hint(error: &anyhow::Error) -> Option<String> {
    let hinted = error.chain().find_map(|cause| cause.downcast_ref::<Hinted>())?;
    Some(visible(&hinted.hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_its_causes_once_and_its_hint() {
        let cause = std::io::Error::new(ErrorKind::NotFound, "no such file");
        let hinted = Hinted::new("cannot read a.yaml", "write - to read standard input").because(cause);
        let error = anyhow::Error::new(hinted).context("cannot read values: cannot read a.yaml").context("no values");
        let plain = anstream::adapter::strip_str(&text(&error)).to_string();
        insta::assert_snapshot!(plain, @r"
        error: no values
          caused by: cannot read values: cannot read a.yaml
          caused by: no such file
        hint: write - to read standard input
        ");
    }

    #[test]
    fn who_shows_no_releases_says_why() {
        let stack = |conditions: serde_json::Value| -> crate::api::ClusterStack {
            serde_json::from_value(serde_json::json!({
                "metadata": {"name": "scs", "namespace": "team"},
                "spec": {"provider": "docker", "name": "scs", "kubernetesVersion": "1.34"},
                "status": {"conditions": conditions},
            }))
            .unwrap()
        };
        let one = |type_: &str, status: &str, reason: &str| {
            serde_json::json!({"type": type_, "status": status, "reason": reason, "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let of = |conditions: Vec<serde_json::Value>, is_empty| {
            may_have_more("ClusterStack", &stack(conditions.into()), is_empty)
        };
        let unreachable = one("ReleasesSynced", "False", "SourceUnreachable");
        let told = Some("ClusterStack team/scs may have others (SourceUnreachable): m".to_owned());
        assert_eq!((of(vec![unreachable.clone()], true), of(vec![unreachable], false)), (told.clone(), told));
        let nothing = || vec![one("ReleasesSynced", "True", "Succeeded"), one("Ready", "False", "NothingSubscribed")];
        assert_eq!(of(nothing(), true).unwrap(), "ClusterStack team/scs may have others (NothingSubscribed): m");
        assert_eq!((of(nothing(), false), of(vec![one("Ready", "True", "Ready")], true)), (None, None));
        assert!(of(vec![], true).unwrap().contains("was not looked at by the operator yet"));
    }

    #[test]
    fn what_an_api_server_says_steers_no_terminal() {
        let error = anyhow::Error::new(Hinted::new("a\u{1b}[31mb\u{202e}c\nd", "e\u{7}f"));
        let plain = anstream::adapter::strip_str(&text(&error)).to_string();
        assert_eq!(plain, "error: a [31mb c\nd\nhint: e f\n");
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let closed = std::io::Error::from(ErrorKind::BrokenPipe);
        assert!(anyhow::Error::new(closed).context("cannot write").chain().any(is_closed_pipe));
    }
}
