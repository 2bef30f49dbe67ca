//! `clusterstack doctor`: what is wrong with an installation, and what to do about it.

use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use anyhow::Result;
use clap::Args;

use super::connection::{self, ConnectionArgs};
use super::output::{self, Format, one_line};
use crate::core::doctor::{self, Finding, Grade};
use crate::io::doctor as io;

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack doctor                    # all that is looked at, with what to do
  clusterstack doctor --all=false        # only what is not as it should be
  clusterstack doctor -o json | jq '.[] | select(.grade == \"bad\")'

Exit code: 0 nothing is wrong, or only to be looked at; 1 something does not work, or nobody
answered; 2 nothing bad was found, but neither the operator nor any object of ours could be looked
at. Nothing is written; the rights of the operator are asked for with SubjectAccessReviews.";

/// Flags of `clusterstack doctor`.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// Show also what is as it should be
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    all: bool,

    /// Form of the output for a script
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Format>,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Prints what is found.
///
/// # Errors
/// No way to the API server, or nobody to print to.
pub fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let facts = connection::block_on(async {
        let connection = args.connection.connect().await?;
        connection.answer(Box::pin(io::facts(&connection.client))).await
    })?;
    let mut findings = match &facts {
        Ok(facts) => doctor::findings(facts),
        Err(why) => doctor::unreachable(why),
    };
    let worst = doctor::worst(&findings);
    let saw_nothing = doctor::saw_nothing(&findings);
    findings.retain(|finding| args.all || finding.grade != Grade::Good);
    match args.output {
        Some(format) => output::print(&output::format(&findings, format)?)?,
        None => output::print(&text(&findings))?,
    }
    Ok(match worst {
        Grade::Bad => ExitCode::FAILURE,
        _ if saw_nothing => ExitCode::from(2),
        _ => ExitCode::SUCCESS,
    })
}

fn text(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return "nothing is wrong\n".to_owned();
    }
    findings.iter().map(line).collect()
}

fn line(finding: &Finding) -> String {
    let (word, colour) = match finding.grade {
        Grade::Good => ("good", AnsiColor::Green),
        Grade::Unknown => ("unknown", AnsiColor::Cyan),
        Grade::Warning => ("warning", AnsiColor::Yellow),
        Grade::Bad => ("bad", AnsiColor::Red),
    };
    let style = Style::new().fg_color(Some(colour.into()));
    let gap = " ".repeat(8_usize.saturating_sub(word.len()));
    let (check, message, remedy) = (finding.check, one_line(&finding.message), one_line(&finding.remedy));
    let remedy = if remedy.is_empty() { String::new() } else { format!("         → {remedy}\n") };
    format!("{style}{word}{style:#}{gap} {check}: {message}\n{remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_told_with_what_to_do() {
        let finding = |grade, remedy: &str| Finding {
            check: "operator",
            grade,
            message: "Deployment a/b: 1 of 2 replicas are ready".into(),
            remedy: remedy.into(),
        };
        let shown = text(&[finding(Grade::Good, ""), finding(Grade::Bad, "look at its pods")]);
        let plain = anstream::adapter::strip_str(&shown).to_string();
        let message = "operator: Deployment a/b: 1 of 2 replicas are ready";
        assert_eq!(plain, format!("good     {message}\nbad      {message}\n         → look at its pods\n"));
        assert_eq!(text(&[]), "nothing is wrong\n");
        let steering = Finding {
            check: "operator",
            grade: Grade::Good,
            message: "a\u{1b}]0;x\u{7}b\rc".into(),
            remedy: "d\u{202e}e".into(),
        };
        assert!(line(&steering).ends_with(" operator: a ]0;x b c\n         → d e\n"), "{:?}", line(&steering));
    }
}
