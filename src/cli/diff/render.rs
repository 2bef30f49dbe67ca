//! A plan as text: a heading per subject, a sign per object, a line per field.

use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use serde_json::Value;

use crate::cli::output::{one_line, visible};
use crate::core::upgrade::addons::{AddonChanges, Compared};
use crate::core::upgrade::difference::{Change, Fate, ObjectChange};
use crate::core::upgrade::rollout::{Rollout, Verdict};
use crate::core::upgrade::variables::{VariableChange, VariableFate};
use crate::core::upgrade::{AcceptanceState, Plan};

const HEADING: Style = Style::new().bold();
const COMES: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Green)));
const GOES: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red)));
const CHANGES: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Yellow)));
const QUIET: Style = Style::new().dimmed();

/// Most fields of one object that are shown.
const FIELDS: usize = 20;
/// Longest text of a value, in characters.
const WIDTH: usize = 100;

/// The plan, coloured.
pub fn text(plan: &Plan) -> String {
    let mut out = String::new();
    header(&mut out, plan);
    objects(&mut out, plan);
    machines(&mut out, plan);
    addons(&mut out, &plan.addons);
    variables(&mut out, &plan.variables);
    if !plan.images.is_empty() {
        heading(&mut out, "Node images to build");
        for image in &plan.images {
            let from = if image.url.is_empty() {
                String::new()
            } else {
                format!("  {QUIET}{}{QUIET:#}", one_line(&image.url))
            };
            let (sign, style) = if image.replaces { ('~', CHANGES) } else { ('+', COMES) };
            line(&mut out, 0, &format!("{style}{sign}{style:#} {}{from}", one_line(&image.name)));
        }
    }
    if !plan.unknown.is_empty() {
        heading(&mut out, "Not known");
        plan.unknown.iter().for_each(|note| line(&mut out, 0, &one_line(note)));
    }
    out
}

/// Writing to a String can't fail.
fn line(out: &mut String, depth: usize, text: &str) {
    let _ = writeln!(out, "{:1$}{text}", "", depth * 2);
}

fn heading(out: &mut String, text: &str) {
    let _ = writeln!(out, "\n{HEADING}{text}{HEADING:#}");
}

fn header(out: &mut String, plan: &Plan) {
    let arrow = |from: &str, to: &str| one_line(&if from == to { from.to_owned() } else { format!("{from} → {to}") });
    let release = arrow(&plan.from.release, &plan.to.release);
    let version = arrow(&plan.from.kubernetes_version, &plan.to.kubernetes_version);
    let cluster = one_line(&plan.cluster);
    line(out, 0, &format!("{HEADING}Cluster {cluster}{HEADING:#}: {release}, Kubernetes {version}"));
    let message = one_line(&plan.acceptance.message);
    let said = match plan.acceptance.state {
        AcceptanceState::Accepted => format!("{COMES}Cluster API would take it{COMES:#}"),
        AcceptanceState::Refused => format!("{GOES}Cluster API would refuse it{GOES:#}: {message}"),
        AcceptanceState::Unknown => {
            format!("{CHANGES}Whether Cluster API would take it is not known{CHANGES:#}: {message}")
        }
    };
    line(out, 0, &said);
    for problem in &plan.problems {
        line(out, 0, &format!("{GOES}It would get stuck{GOES:#}: {}", one_line(problem)));
    }
    match (plan.is_change(), plan.is_known()) {
        (true, _) => {}
        (false, true) => line(out, 0, "nothing changes"),
        (false, false) => {
            line(out, 0, &format!("{CHANGES}not all could be found out{CHANGES:#}; of the rest nothing changes"));
        }
    }
}

fn objects(out: &mut String, plan: &Plan) {
    if plan.objects.is_empty() {
        return;
    }
    heading(out, "ClusterClass and templates");
    plan.objects.iter().for_each(|change| object(out, 0, change));
}

fn object(out: &mut String, depth: usize, change: &ObjectChange) {
    let (sign, style) = match change.fate {
        Fate::Added => ('+', COMES),
        Fate::Changed => ('~', CHANGES),
        Fate::Rotated => ('=', QUIET),
        Fate::Removed => ('-', GOES),
        Fate::Kept => ('!', CHANGES),
        Fate::Refused => ('!', GOES),
    };
    let place =
        if change.namespace.is_empty() || depth == 0 { String::new() } else { format!("{}/", change.namespace) };
    let mut text = format!("{style}{sign}{style:#} {}", one_line(&format!("{} {place}{}", change.kind, change.name)));
    if !change.new_name.is_empty() {
        let _ = write!(text, " → {}", one_line(&change.new_name));
    }
    match change.fate {
        Fate::Rotated => text.push_str(": rotates, nothing but its name differs"),
        Fate::Refused => _ = write!(text, ": {}", one_line(&change.message)),
        _ if !change.message.is_empty() => _ = write!(text, ": {}", one_line(&change.message)),
        _ => {}
    }
    line(out, depth, &text);
    fields(out, depth + 2, &change.changes);
}

fn fields(out: &mut String, depth: usize, changes: &[Change]) {
    for change in changes.iter().take(FIELDS) {
        let values = match (&change.before, &change.after) {
            (None, Some(after)) => format!("{COMES}+ {}{COMES:#}", shown(after)),
            (Some(before), None) => format!("{GOES}- {}{GOES:#}", shown(before)),
            (before, after) => {
                let none = Value::Null;
                let (before, after) = pair(before.as_ref().unwrap_or(&none), after.as_ref().unwrap_or(&none));
                format!("{GOES}{before}{GOES:#} → {COMES}{after}{COMES:#}")
            }
        };
        line(out, depth, &format!("{}: {values}", one_line(&change.path)));
    }
    if changes.len() > FIELDS {
        line(out, depth, &format!("and {} fields more: -o json shows all", changes.len() - FIELDS));
    }
}

/// Two values as text; of texts of several lines, the first lines that differ.
fn pair(before: &Value, after: &Value) -> (String, String) {
    let lines = |value: &Value| value.as_str().filter(|text| text.trim_end().contains('\n')).map(ToOwned::to_owned);
    if let (Some(old), Some(new)) = (lines(before), lines(after)) {
        let differs = |(old, new): &(&str, &str)| old != new;
        let at = old.lines().zip(new.lines()).take_while(|pair| !differs(pair)).count();
        let of = |text: &str| {
            let line = text.lines().nth(at).map_or_else(|| "its end".to_owned(), |line| shown(&line.into()));
            format!("line {}: {line}", at + 1)
        };
        return (of(&old), of(&new));
    }
    (shown(before), shown(after))
}

fn shown(value: &Value) -> String {
    // JSON leaves some that steer a terminal as they are.
    let text = visible(&value.to_string());
    if text.chars().count() <= WIDTH {
        return text;
    }
    let start: String = text.chars().take(WIDTH).collect();
    format!("{start}…")
}

fn machines(out: &mut String, plan: &Plan) {
    if plan.rollouts.is_empty() && plan.external_patches.is_empty() {
        return;
    }
    heading(out, "Machines");
    let title = |rollout: &Rollout| one_line(&format!("{} {}", rollout.kind, rollout.name));
    let width = plan.rollouts.iter().map(|rollout| title(rollout).chars().count()).max().unwrap_or_default();
    for rollout in &plan.rollouts {
        let (word, style) = match rollout.verdict {
            Verdict::Unchanged => ("stays as it is", QUIET),
            Verdict::InPlace => ("changed in place", CHANGES),
            Verdict::MayRoll => ("may roll", CHANGES),
            Verdict::Unknown if rollout.kind == "InfrastructureCluster" => ("not known", CHANGES),
            Verdict::Unknown => ("not known, may roll", CHANGES),
            Verdict::Rolls => ("rolls", GOES),
        };
        line(out, 0, &format!("{:width$}  {style}{word}{style:#}", title(rollout)));
        for reason in &rollout.reasons {
            line(out, 1, &one_line(&reason.what));
            fields(out, 2, &reason.fields);
        }
    }
    for patch in &plan.external_patches {
        line(out, 0, &format!("{CHANGES}what the external patch {} changes is not known{CHANGES:#}", one_line(patch)));
    }
}

fn addons(out: &mut String, addons: &AddonChanges) {
    let how = match addons.compared {
        Compared::NoAddons => return,
        Compared::DryRun => "tried by a dry run in the workload cluster".to_owned(),
        Compared::Rendering => format!("renderings compared, for {}", addons.message),
        Compared::Nothing => format!("not known: {}", addons.message),
    };
    heading(out, &format!("Addons, {}", one_line(&how)));
    if addons.compared != Compared::Nothing && !addons.is_change() {
        line(out, 0, "nothing changes");
        return;
    }
    for stage in &addons.stages {
        let name = if stage.stage.is_empty() { "the addon chart" } else { &stage.stage };
        let action = if stage.action == "delete" { ", deleted" } else { "" };
        let count = match (stage.objects.len(), stage.unchanged) {
            (0, _) => "nothing changes".to_owned(),
            (changed, 0) => format!("{changed} to change"),
            (changed, unchanged) => format!("{changed} to change, {unchanged} stay"),
        };
        line(out, 0, &one_line(&format!("{name}{action} ({}): {count}", stage.hook)));
        stage.objects.iter().for_each(|change| object(out, 1, change));
    }
    if !addons.pruned.is_empty() {
        line(out, 0, "when all stages are done and healthy:");
        addons.pruned.iter().for_each(|change| object(out, 1, change));
    }
}

fn variables(out: &mut String, changes: &[VariableChange]) {
    if changes.is_empty() {
        return;
    }
    heading(out, "Variables of the class");
    for change in changes {
        let default = |value: &Option<Value>| value.as_ref().map_or_else(|| "none".to_owned(), shown);
        let (sign, style, what) = match change.change {
            VariableFate::Added => ('+', COMES, format!("added, default {}", default(&change.after))),
            VariableFate::Removed => ('-', GOES, "removed".to_owned()),
            VariableFate::Required => ('~', CHANGES, "required now".to_owned()),
            VariableFate::Default => {
                let set = if change.set { ", set by the Cluster" } else { "" };
                ('~', CHANGES, format!("default {} → {}{set}", default(&change.before), default(&change.after)))
            }
            VariableFate::Schema => ('~', CHANGES, "takes other values".to_owned()),
        };
        let blocks = if change.blocks.is_empty() {
            String::new()
        } else {
            format!("; {GOES}{}{GOES:#}", one_line(&change.blocks))
        };
        line(out, 0, &format!("{style}{sign}{style:#} {}: {what}{blocks}", one_line(&change.name)));
    }
}

#[cfg(test)]
mod tests;
