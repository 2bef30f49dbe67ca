//! `clusterstack provider-check`: whether a provider's kind keeps the contract, tried on the cluster of the kubeconfig.

mod object;
mod rights;

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use anyhow::Result;
use clap::{Args, ValueEnum};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde::Serialize;
use serde_json::Value;

use super::connection::{self, Connection, ConnectionArgs};
use super::output::{self, Format};
use super::report::Hinted;
use crate::core::duration::go_duration;
use crate::core::provider::checks::{self, Check, Outcome};
use crate::io::kinds::{Kind, Kinds};
use crate::io::observe;

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack provider-check ShopRelease                     # with the only ShopReleaseTemplate of this namespace
  clusterstack provider-check ShopRelease.shop.example.com --template gold -n team-a
  clusterstack provider-check ShopRelease --without-object    # definitions and rights alone; makes nothing
  clusterstack provider-check ShopRelease -o json | jq '.checks[] | select(.outcome == \"Failed\")'

It makes one object from the template, as the operator does for a release, waits for it and deletes it: what the provider
does for a release is done, and what it costs is spent. docs/provider-contract.md says what is asked of a provider.
Exit code 1 if a check fails.";

/// Flags of `clusterstack provider-check`.
#[derive(Args, Clone, Debug)]
pub struct ProviderCheckArgs {
    /// Kind of the provider's objects, with its API group where several have it: `Kind` or `Kind.group`
    #[arg(value_name = "KIND[.GROUP]")]
    kind: String,

    /// Template from which the object is made; the only one of the namespace by default
    #[arg(long, value_name = "NAME")]
    template: Option<String>,

    /// Namespace of the template and of the object; that of the kubeconfig's context by default
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// ClusterStackRelease that owns the object, for a provider that reads it; a ConfigMap made for it by default
    #[arg(long, value_name = "NAME")]
    release: Option<String>,

    /// The operator's ServiceAccount, whose rights are asked for; by default roles with the label are read
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = account)]
    operator: Option<Account>,

    /// How long the provider may take to make its object ready, and to let it go
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    timeout: Duration,

    /// Only look at definitions, rights and the template; make nothing
    #[arg(long, conflicts_with = "release")]
    without_object: bool,

    #[command(flatten)]
    connection: ConnectionArgs,

    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: CheckFormat,
}

/// A ServiceAccount.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Account {
    namespace: String,
    name: String,
}

fn account(text: &str) -> Result<Account, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok(Account { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        _ => Err("write NAMESPACE/NAME".to_owned()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    go_duration(text).filter(|time| !time.is_zero()).ok_or_else(|| "write it as 90s or 10m".to_owned())
}

/// Forms of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CheckFormat {
    /// For people, each check as it is done.
    Text,
    /// One object.
    Json,
    /// One object.
    Yaml,
}

/// All checks. The field names are API of `-o json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    api_version: String,
    kind: String,
    passed: bool,
    checks: Vec<Check>,
}

/// Checks, and prints what was found.
///
/// # Errors
/// No way to the API server, nothing to ask for, or nobody to print to.
pub fn run(args: &ProviderCheckArgs) -> Result<ExitCode> {
    let report = connection::block_on(check(args))?;
    match args.output {
        CheckFormat::Json => output::print(&output::format(&report, Format::Json)?)?,
        CheckFormat::Yaml => output::print(&output::format(&report, Format::Yaml)?)?,
        CheckFormat::Text => output::print(&summary(&report))?,
    }
    Ok(if report.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn check(args: &ProviderCheckArgs) -> Result<Report> {
    let connection = args.connection.connect().await?;
    let namespace = args.namespace.clone().unwrap_or_else(|| connection.namespace.clone());
    let mut run = Run { args, connection: &connection, namespace, kinds: Kinds::default(), checks: Vec::new() };
    let (api_version, kind) = run.all().await?;
    let passed = !run.checks.iter().any(|check| check.outcome == Outcome::Failed);
    Ok(Report { api_version, kind, passed, checks: run.checks })
}

/// The checks as they are done.
struct Run<'a> {
    args: &'a ProviderCheckArgs,
    connection: &'a Connection,
    namespace: String,
    kinds: Kinds,
    checks: Vec<Check>,
}

impl Run<'_> {
    /// Notes a check, and shows it at once to people.
    fn add(&mut self, check: Check) -> Result<()> {
        if self.args.output == CheckFormat::Text {
            output::print(&line(&check))?;
        }
        self.checks.push(check);
        Ok(())
    }

    fn add_all(&mut self, checks: impl IntoIterator<Item = Check>) -> Result<()> {
        checks.into_iter().try_for_each(|check| self.add(check))
    }

    /// All checks, one behind the other; those behind one that they need are left out. API version and kind.
    async fn all(&mut self) -> Result<(String, String)> {
        let (name, group) = split(&self.args.kind);
        let Some(kind) = self.find(name, group).await? else {
            let todo = "install the provider's CustomResourceDefinitions, and see the spelling";
            self.add(Check::failed("served", format!("the API server serves no {}", self.args.kind), todo))?;
            return Ok((String::new(), name.to_owned()));
        };
        let (api_version, kind_name) = (kind.resource.api_version.clone(), kind.resource.kind.clone());
        self.add(Check::passed("served", format!("{kind_name} of {api_version}")))?;
        match self.definition(&kind).await? {
            Ok(definition) => self.add_all(checks::of_definition(&definition, &kind.resource.version))?,
            Err(why) => self.add(Check::skipped("definition", why))?,
        }
        let Some(template_kind) = self.template_kind(&kind).await? else {
            let todo = format!("install a definition of kind {kind_name}Template in group {}", kind.resource.group);
            self.add(Check::failed("template served", format!("the API server serves no {kind_name}Template"), todo))?;
            return Ok((api_version, kind_name));
        };
        let found = format!("{} of {}", template_kind.resource.kind, template_kind.resource.api_version);
        self.add(Check::passed("template served", found))?;
        match self.definition(&template_kind).await? {
            Ok(definition) => {
                self.add_all(checks::of_template_definition(&definition, &template_kind.resource.version))?;
            }
            Err(why) => self.add(Check::skipped("template definition", why))?,
        }
        let right = self.rights(&kind, &template_kind).await?;
        self.add(right)?;
        if let Some(template) = self.template(&template_kind).await?
            && !self.args.without_object
        {
            self.object(&kind, &template).await?;
        }
        Ok((api_version, kind_name))
    }

    /// The kind that is meant; `None` if it is not served.
    async fn find(&self, name: &str, group: Option<&str>) -> Result<Option<Kind>> {
        let client = &self.connection.client;
        if let Some(group) = group {
            let found = self.connection.answer(self.kinds.preferred(client, group, name)).await?;
            return Ok(found.map_err(|error| self.connection.refused("discovered", "kinds", error))?);
        }
        let all = self.connection.answer(self.kinds.all(client)).await?;
        let all = all.map_err(|error| self.connection.refused("discovered", "kinds", error))?;
        let mut found = all.into_iter().filter(|kind| kind.resource.kind == name);
        let (first, others) = (found.next(), found.map(|kind| kind.resource.group).collect::<Vec<_>>());
        match first {
            Some(first) if !others.is_empty() => {
                let groups = [vec![first.resource.group], others].concat().join(", ");
                let hint = format!("write {name}.GROUP with one of {groups}");
                Err(Hinted::new(format!("several API groups have a kind {name}"), hint).into())
            }
            first => Ok(first),
        }
    }

    /// The template's kind, found as the operator finds it.
    async fn template_kind(&self, kind: &Kind) -> Result<Option<Kind>> {
        let (client, resource) = (&self.connection.client, &kind.resource);
        let name = format!("{}Template", resource.kind);
        let found = self.connection.answer(async {
            match self.kinds.get(client, &resource.api_version, &name).await? {
                Some(kind) => Ok(Some(kind)),
                None => self.kinds.preferred(client, &resource.group, &name).await,
            }
        });
        Ok(found.await?.map_err(|error| self.connection.refused("discovered", "kinds", error))?)
    }

    /// The CustomResourceDefinition of a kind, null where there is none; or why it may not be read.
    async fn definition(&self, kind: &Kind) -> Result<Result<Value, String>> {
        let api: Api<CustomResourceDefinition> = Api::all(self.connection.client.clone());
        let name = format!("{}.{}", kind.resource.plural, kind.resource.group);
        match self.connection.answer(api.get_opt(&name)).await? {
            Ok(found) => Ok(Ok(serde_json::to_value(found)?)),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                Ok(Err(format!("it may not be read: {}", status.message)))
            }
            Err(error) => Err(self.connection.refused("read", "CustomResourceDefinitions", error).into()),
        }
    }

    /// The template that is cloned; `None`, and a check that failed, where there is none.
    async fn template(&mut self, kind: &Kind) -> Result<Option<Value>> {
        const CHECK: &str = "template";
        let api = observe::api(&self.connection.client, kind, &self.namespace);
        let name = &kind.resource.kind;
        let all = self.connection.answer(api.list(&ListParams::default())).await?;
        let mut all = all.map_err(|error| self.connection.refused("listed", name, error))?.items;
        if let Some(wanted) = &self.args.template {
            all.retain(|template| template.name_any() == *wanted);
        }
        let place = format!("namespace {}", self.namespace);
        let (template, more) = (all.pop(), all.len());
        let found = match (&template, more) {
            (Some(template), 0) => {
                let plain = observe::plain(template, kind);
                match plain.pointer("/spec/template") {
                    Some(_) => {
                        self.add(Check::passed(CHECK, format!("{name} {}", template.name_any())))?;
                        return Ok(Some(plain));
                    }
                    None => {
                        Check::failed(CHECK, format!("{} has no spec.template", template.name_any()), "give it one")
                    }
                }
            }
            (Some(_), _) => Check::failed(CHECK, format!("{} {name} in {place}", more + 1), "name one with --template"),
            (None, _) if self.args.without_object && self.args.template.is_none() => {
                Check::skipped(CHECK, format!("no {name} in {place}"))
            }
            (None, _) => Check::failed(
                CHECK,
                self.args
                    .template
                    .as_ref()
                    .map_or_else(|| format!("no {name} in {place}"), |wanted| format!("no {name} {wanted} in {place}")),
                "create one as a user of the provider would, or name its namespace with -n",
            ),
        };
        self.add(found)?;
        Ok(None)
    }
}

/// `Kind` and `group`.
fn split(text: &str) -> (&str, Option<&str>) {
    text.split_once('.').map_or((text, None), |(kind, group)| (kind, Some(group)))
}

const GOOD: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Green)));
const BAD: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red)));
const UNSURE: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Yellow)));
const QUIET: Style = Style::new().dimmed();

/// Width of the names of checks.
const NAME: usize = 23;

/// A check for people, with what to do on a line of its own.
fn line(check: &Check) -> String {
    let (mark, style) = match check.outcome {
        Outcome::Passed => ("✓", GOOD),
        Outcome::Failed => ("✗", BAD),
        Outcome::Advised => ("!", UNSURE),
        Outcome::Skipped => ("-", QUIET),
    };
    // A provider's words don't move the cursor.
    let message = output::visible(&check.message).replace(['\n', '\t'], " ");
    let mut text = format!("{style}{mark}{style:#} {:<NAME$} {message}\n", check.name);
    if !check.todo.is_empty() {
        // Writing to a String does not fail.
        let _ = writeln!(text, "  {:<NAME$} → {}", "", output::one_line(&check.todo));
    }
    text
}

fn summary(report: &Report) -> String {
    let count = |outcome| report.checks.iter().filter(|check| check.outcome == outcome).count();
    let (failed, advised, skipped) = (count(Outcome::Failed), count(Outcome::Advised), count(Outcome::Skipped));
    let kind = &report.kind;
    let verdict = if report.passed && skipped > 0 {
        format!("{kind} keeps the contract as far as it was looked at")
    } else if report.passed {
        format!("{kind} keeps the contract")
    } else {
        format!("{kind} does not keep the contract: {failed} of {} checks failed", report.checks.len())
    };
    let notes = [(advised, "to be improved"), (skipped, "not looked at")];
    let notes = notes.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("; {count} {what}"));
    format!("{verdict}{}\n", notes.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_told_with_what_to_do() {
        let checks = vec![
            Check::passed("served", "X of a.example.com/v1"),
            Check::failed("status subresource", "it has none", "give it one"),
            Check::advised("contract label", "nothing says which", "label it"),
            Check::skipped("definition", "it may not be read"),
        ];
        let mut text: String = checks.iter().map(line).collect();
        text += &summary(&Report { api_version: "a/v1".into(), kind: "X".into(), passed: false, checks });
        insta::assert_snapshot!(anstream::adapter::strip_str(&text).to_string(), @r"
        ✓ served                  X of a.example.com/v1
        ✗ status subresource      it has none
                                  → give it one
        ! contract label          nothing says which
                                  → label it
        - definition              it may not be read
        X does not keep the contract: 1 of 4 checks failed; 1 to be improved; 1 not looked at
        ");
    }

    #[test]
    fn what_was_not_looked_at_keeps_no_contract() {
        let told = |checks: Vec<Check>| {
            summary(&Report { api_version: "a/v1".into(), kind: "X".into(), passed: true, checks })
        };
        let passed = || Check::passed("served", "X of a.example.com/v1");
        assert_eq!(told(vec![passed()]), "X keeps the contract\n");
        let skipped = Check::skipped("definition", "it may not be read");
        assert_eq!(told(vec![passed(), skipped]), "X keeps the contract as far as it was looked at; 1 not looked at\n");
    }

    #[test]
    fn arguments_are_understood() {
        assert_eq!(split("Shop"), ("Shop", None));
        assert_eq!(split("Shop.a.example.com"), ("Shop", Some("a.example.com")));
        assert!(account("a/b").is_ok() && account("a").is_err() && account("/b").is_err());
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert!(duration("0s").is_err() && duration("soon").is_err());
    }
}
