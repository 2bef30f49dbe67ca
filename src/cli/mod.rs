//! The command line: what each subcommand reads and prints. Decisions are in `core`, effects in `io`.

pub mod approve;
pub mod bundle;
pub mod connection;
pub mod crds;
pub mod demo;
pub mod diff;
pub mod doctor;
mod functions;
pub mod image_build;
pub mod image_tool;
pub mod images;
pub mod install;
pub mod lint;
pub mod migrate_from_cso;
pub mod operator;
pub mod output;
pub mod package;
pub mod provider_check;
pub mod push;
pub mod reconcile;
pub mod reference;
pub mod registry;
pub mod releases;
pub mod report;
mod rights;
pub mod settle;
pub mod shards;
pub mod suspend;
pub mod target;
pub mod template;
pub mod test;
pub mod tree;
pub mod version;

use std::process::ExitCode;

use anyhow::Result;
use clap::builder::Styles;
use clap::builder::styling::AnsiColor;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::settings::Flags;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Release manager for Kubernetes clusters: subscribes to releases of cluster stacks, renders, applies and watches over
/// them.
#[derive(Parser, Debug)]
#[command(name = "clusterstack", version, styles = STYLES, arg_required_else_help = true, max_term_width = 100)]
#[command(after_help = "\
Examples:
  Install the operator in the cluster of your kubeconfig:
    clusterstack install

  See what every ClusterStack has come to, and what is in the way:
    clusterstack tree --all-namespaces

  See what a chart renders to:
    clusterstack template demo ./stacks/docker/hello/cluster-class")]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the operator, in a pod or with a kubeconfig
    #[command(after_help = "\
Examples:
  clusterstack operator --leader-elect=false --log-level=debug
  clusterstack operator --namespace=team-a --metrics-bind-address=127.0.0.1:8080
  clusterstack operator --allow-source=/srv/stacks     # file:// sources below this directory

SIGTERM or SIGINT takes in nothing new and finishes what is under way; a second one ends at once.")]
    Operator(Box<Flags>),

    /// Install the operator in a cluster, or write a Helm chart or kustomize base that does
    #[command(after_help = install::EXAMPLES)]
    Install(Box<install::InstallArgs>),

    /// Check an installation of the Go operator (CSO), and put this one in its place
    #[command(after_help = migrate_from_cso::EXAMPLES)]
    MigrateFromCso(migrate_from_cso::MigrateArgs),

    /// Remove the operator; CRDs, ClusterStacks and what they brought stay
    #[command(after_help = install::UNINSTALL_EXAMPLES)]
    Uninstall(install::UninstallArgs),

    /// Print the CRDs
    #[command(after_help = "\
Examples:
  clusterstack crds | kubectl apply --server-side -f -
  clusterstack crds --dir crds/")]
    Crds(crds::CrdsArgs),

    /// Show ClusterStacks with their releases and objects, and why something is not ready
    #[command(after_help = tree::EXAMPLES)]
    Tree(tree::TreeArgs),

    /// Show which releases are subscribed, available and on offer, and why something is not taken
    #[command(after_help = releases::EXAMPLES)]
    Releases(releases::ReleasesArgs),

    /// Let a ClusterStack with `approval: manual` take a release
    #[command(after_help = approve::EXAMPLES)]
    Approve(approve::ApproveArgs),

    /// Have the operator look at objects now, and wait for what it finds
    #[command(after_help = reconcile::EXAMPLES)]
    Reconcile(reconcile::ReconcileArgs),

    /// Have the operator leave objects as they are
    #[command(after_help = suspend::EXAMPLES)]
    Suspend(suspend::SuspendArgs),

    /// Let the operator go on with objects that are suspended
    #[command(after_help = suspend::RESUME_EXAMPLES)]
    Resume(suspend::SuspendArgs),

    /// Show what the upgrade of a Cluster to another release would do: classes, machines, addons, variables, images
    #[command(after_help = diff::EXAMPLES)]
    Diff(Box<diff::DiffArgs>),

    /// Look at an installation: what is wrong with it, and what to do about it
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::DoctorArgs),

    /// Run the test hooks of a Cluster's addon charts, as `helm test` does
    #[command(after_help = test::EXAMPLES)]
    Test(test::TestArgs),

    /// Render a chart as `helm template` does, without a cluster
    #[command(after_help = template::EXAMPLES)]
    Template(Box<template::TemplateArgs>),

    /// Look at a stack before it is published: names, charts, addons, objects against CRDs or an API server
    #[command(after_help = lint::EXAMPLES)]
    Lint(lint::LintArgs),

    /// Make the assets of a release from a stack's directory
    #[command(after_help = package::EXAMPLES)]
    Package(Box<package::PackageArgs>),

    /// Publish releases to a registry, a directory, an OCI layout or a Git repository
    #[command(after_help = push::EXAMPLES)]
    Push(push::PushArgs),

    /// Put releases into one archive with their signatures, and bring them to the other side of an air gap
    #[command(after_help = bundle::EXAMPLES)]
    Bundle(bundle::BundleArgs),

    /// Check that a provider's kind keeps the contract, by an object that is made, waited for and deleted
    #[command(after_help = provider_check::EXAMPLES)]
    ProviderCheck(provider_check::ProviderCheckArgs),

    /// Show how far node images are, follow the log of a build, cancel it or start it again
    #[command(after_help = images::EXAMPLES)]
    Images(Box<images::ImagesArgs>),

    /// Show the replicas of the operator, and what each has of the work
    #[command(after_help = shards::EXAMPLES)]
    Shards(shards::ShardsArgs),

    /// Show the version of this program, and of what it works with
    #[command(after_help = version::EXAMPLES)]
    Version(version::VersionArgs),

    /// Print a completion script for a shell
    #[command(after_help = "\
Examples:
  source <(clusterstack completions bash)
  clusterstack completions zsh > \"${fpath[1]}/_clusterstack\"
  clusterstack completions fish > ~/.config/fish/completions/clusterstack.fish")]
    Completions(CompletionsArgs),

    /// Show what the operator does, on a control plane of its own; `hack/demo` calls it
    #[command(hide = true)]
    Demo(demo::DemoArgs),

    /// Build a node image inside of a Job's pod; the operator's Jobs call it
    #[command(hide = true)]
    ImageBuild(image_build::ImageBuildArgs),

    /// Look after a tool of an image's build; the operator calls it
    #[command(hide = true)]
    ImageTool(image_tool::ImageToolArgs),

    /// Print what is generated: references as Markdown, roles as manifests
    #[command(hide = true)]
    Reference {
        /// What it is of
        #[arg(value_enum, default_value = "api")]
        of: Reference,
    },
}

/// What a reference is of.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Reference {
    /// The kinds, conditions and reasons
    Api,
    /// The commands and their flags
    Cli,
    /// The functions of Helm templates
    Functions,
    /// Who may do what
    Rights,
    /// The roles of the operator, as manifests
    OperatorRights,
    /// Its role where images are built by Jobs, as manifests
    ImageJobRights,
    /// The roles for people, as manifests
    PeopleRights,
    /// All roles, as the chart of `deploy/chart` reads them
    ChartRights,
}

#[derive(Args, Debug)]
struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

impl Cli {
    /// Does what was asked for.
    ///
    /// # Errors
    /// What went wrong, to be told by [`report::failure`].
    pub fn run(self) -> Result<ExitCode> {
        match self.command {
            Command::Operator(flags) => return operator::run(*flags),
            Command::Demo(args) => return demo::run(&args),
            Command::ImageBuild(args) => return image_build::run(&args),
            Command::ImageTool(args) => return image_tool::run(&args),
            Command::Install(args) => install::run(&args)?,
            Command::Uninstall(args) => install::uninstall(&args)?,
            Command::Crds(args) => crds::run(&args)?,
            Command::Tree(args) => tree::run(&args)?,
            Command::Releases(args) => releases::run(&args)?,
            Command::Approve(args) => approve::run(&args)?,
            Command::Reconcile(args) => return reconcile::run(&args),
            Command::Suspend(args) => return suspend::suspend(&args),
            Command::Resume(args) => return suspend::resume(&args),
            Command::Diff(args) => return diff::run(&args),
            Command::Doctor(args) => return doctor::run(&args),
            Command::MigrateFromCso(args) => return migrate_from_cso::run(&args),
            Command::Test(args) => return test::run(&args),
            Command::Template(args) => template::run(&args)?,
            Command::Lint(args) => return lint::run(&args),
            Command::Package(args) => package::run(&args)?,
            Command::Push(args) => push::run(&args)?,
            Command::Bundle(args) => bundle::run(&args)?,
            Command::Images(args) => return images::run(&args),
            Command::Shards(args) => shards::run(&args)?,
            Command::ProviderCheck(args) => return provider_check::run(&args),
            Command::Version(args) => version::run(&args)?,
            Command::Completions(args) => completions(args.shell)?,
            Command::Reference { of: Reference::Api } => {
                output::print(&reference::markdown(&crate::api::custom_resource_definitions())?)?;
            }
            Command::Reference { of: Reference::Cli } => output::print(&reference::commands(Cli::command()))?,
            Command::Reference { of: Reference::Functions } => output::print(&functions::markdown())?,
            Command::Reference { of: Reference::Rights } => output::print(&rights::markdown())?,
            Command::Reference { of: Reference::OperatorRights } => output::print(&rights::operator())?,
            Command::Reference { of: Reference::ImageJobRights } => output::print(&rights::image_jobs())?,
            Command::Reference { of: Reference::ChartRights } => output::print(&crate::core::install::rights())?,
            Command::Reference { of: Reference::PeopleRights } => output::print(&rights::people())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn completions(shell: Shell) -> Result<()> {
    output::print_raw(&script(shell))
}

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut offered(), "clusterstack", &mut script);
    script
}

/// The commands without those that people are not to call: scripts would offer them.
fn offered() -> clap::Command {
    let all = Cli::command();
    let commands = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    clap::Command::new("clusterstack").version(env!("CARGO_PKG_VERSION")).subcommands(commands)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_shell_offers_what_is_not_hidden() {
        // That of bash is names alone.
        let script = String::from_utf8(script(Shell::Bash)).unwrap();
        for command in Cli::command().get_subcommands() {
            let is_offered = script.split_whitespace().any(|word| word == command.get_name());
            assert_eq!(is_offered, !command.is_hide_set(), "{}", command.get_name());
        }
    }
}
