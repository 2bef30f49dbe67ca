//! `clusterstack approve`: a human says that a release may be taken.

use std::str::FromStr;

use anyhow::Result;
use clap::Args;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::connection::{self, Connection, ConnectionArgs};
use super::output;
use super::report::{self, Hinted};
use crate::api::cluster_stack::AvailableRelease;
use crate::api::condition::Reason;
use crate::api::source::Approval;
use crate::api::{APPROVED, ClusterStack};
use crate::core::name::{NameError, ReleaseName, ReleaseVersion};
use crate::core::selection::Approvals;

/// How often somebody else may change the ClusterStack first.
const CONFLICTS: usize = 8;

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack approve scs              # what waits for approval, and what it contains
  clusterstack approve scs v3 -n team-a # v3 may be taken

The versions stand in the annotation clusterstack.x-k8s.io/approved of the ClusterStack, each with the revision that was on offer:
a tag that moves to another one has to be approved again. Without a revision (v3) any is approved.";

/// Flags of `clusterstack approve`.
#[derive(Args, Clone, Debug)]
pub struct ApproveArgs {
    /// Name of a ClusterStack
    name: String,

    /// Versions that may be taken, for example `v3`, or releases by their names; without them what waits is shown
    versions: Vec<Named>,

    /// Namespace; that of the kubeconfig's context by default
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// A release as somebody names it who approves it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Named {
    Version(ReleaseVersion),
    /// A name of a release, of whichever stack: `docker-scs-1-34-v3`, as it is shown.
    Release(String),
}

impl FromStr for Named {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match text.parse() {
            Ok(version) => Ok(Self::Version(version)),
            Err(_) if text.parse::<ReleaseName>().is_ok() => Ok(Self::Release(text.to_owned())),
            Err(error) => Err(error),
        }
    }
}

/// The versions of these releases of a ClusterStack.
fn versions_of(stack: &ClusterStack, named: &[Named]) -> Result<Vec<ReleaseVersion>, Hinted> {
    let version = |named: &Named| match named {
        Named::Version(version) => Ok(version.clone()),
        Named::Release(text) => {
            let spec = &stack.spec;
            let name = ReleaseName::of_stack(text, &spec.provider, &spec.name);
            let own = name.filter(|name| name.kubernetes.to_string() == spec.kubernetes_version);
            own.map(|name| name.version).ok_or_else(|| {
                let minor = spec.kubernetes_version.replace('.', "-");
                let hint = format!("its releases are called {}-{}-{minor}-v<N>", spec.provider, spec.name);
                Hinted::new(format!("{text} is no release of ClusterStack {}", stack.name_any()), hint)
            })
        }
    };
    named.iter().map(version).collect()
}

/// What is said where an approval changes nothing.
const NOT_MANUAL: &str = "spec.approval is not manual, so nothing waits for an approval here: releases are taken when they are found, or baked";

/// Approves, or shows what there is to approve.
///
/// # Errors
/// No such ClusterStack, no such release, or no right to change it.
pub fn run(args: &ApproveArgs) -> Result<()> {
    connection::block_on(approve(args))
}

async fn approve(args: &ApproveArgs) -> Result<()> {
    let connection = args.connection.connect().await?;
    let namespace = args.namespace.clone().unwrap_or_else(|| connection.namespace.clone());
    let api: Api<ClusterStack> = Api::namespaced(connection.client.clone(), &namespace);
    for _ in 0..CONFLICTS {
        let stack = read(&connection, &api, &args.name, &namespace).await?;
        if args.versions.is_empty() {
            return show(&stack);
        }
        let versions = versions_of(&stack, &args.versions)?;
        check(&stack, &versions)?;
        let before = Approvals::read(stack.annotations().get(APPROVED).map_or("", String::as_str));
        let after = with(before.clone(), &versions, &stack);
        if before == after {
            output::note!("approved already: {}", listed(&after));
            return Ok(());
        }
        let patch = json!({"metadata": {
            "resourceVersion": stack.resource_version(),
            "annotations": {APPROVED: after.to_string()},
        }});
        let params = PatchParams { field_manager: Some("clusterstack-approve".to_owned()), ..PatchParams::default() };
        match connection.answer(api.patch(&args.name, &params, &Patch::Merge(patch))).await? {
            Ok(_) => {
                if stack.spec.approval != Some(Approval::Manual) {
                    report::left_out([&NOT_MANUAL.to_owned()]);
                }
                return output::print(&format!(
                    "approved for ClusterStack {namespace}/{}: {}\n",
                    args.name,
                    listed(&after)
                ));
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(connection.refused("changed", "ClusterStacks", error).into()),
        }
    }
    let hint = "try again, and find out who changes it";
    Err(Hinted::new(format!("ClusterStack {} was changed by others again and again", args.name), hint).into())
}

fn listed(approvals: &Approvals) -> String {
    approvals.versions().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// More approvals, each of the revision that is on offer: another one would be another release.
fn with(mut approvals: Approvals, versions: &[ReleaseVersion], stack: &ClusterStack) -> Approvals {
    for version in versions {
        let is_it = |release: &&AvailableRelease| version_of(stack, &release.name).as_ref() == Some(version);
        let revision = available(stack).iter().find(is_it).map_or("", |release| release.revision.as_str());
        approvals.approve(version.clone(), revision);
    }
    approvals
}

async fn read(connection: &Connection, api: &Api<ClusterStack>, name: &str, namespace: &str) -> Result<ClusterStack> {
    let found = connection.answer(api.get_opt(name)).await?;
    let found = found.map_err(|error| connection.refused("read", "ClusterStacks", error))?;
    let missing = || {
        let hint = "see what there is with `clusterstack releases -A`";
        Hinted::new(format!("no ClusterStack {name:?} in namespace {namespace}"), hint)
    };
    Ok(found.ok_or_else(missing)?)
}

fn available(stack: &ClusterStack) -> &[AvailableRelease] {
    stack.status.as_ref().map_or(&[], |status| &status.available)
}

fn version_of(stack: &ClusterStack, name: &str) -> Option<ReleaseVersion> {
    ReleaseName::of_stack(name, &stack.spec.provider, &stack.spec.name).map(|name| name.version)
}

fn waiting(release: &AvailableRelease) -> String {
    format!("{}  {}\n", output::one_line(&release.name), output::one_line(&release.message))
}

fn show(stack: &ClusterStack) -> Result<()> {
    let waits = |release: &&AvailableRelease| release.reason == Reason::WaitsForApproval.as_str();
    let rows = available(stack).iter().filter(waits).map(waiting);
    let text: String = rows.collect();
    let unread = report::may_have_more("ClusterStack", stack, text.is_empty());
    report::left_out(&unread);
    if text.is_empty() {
        output::note!("nothing waits for approval in ClusterStack {}", stack.name_any());
        return Ok(());
    }
    output::print(&text)
}

/// That each version is one that the operator has seen: a slip would otherwise wait for a release that never comes.
fn check(stack: &ClusterStack, versions: &[ReleaseVersion]) -> Result<(), Hinted> {
    let summary = stack.status.as_ref().map_or(&[][..], |status| &status.summary);
    let listed = available(stack).iter().map(|release| &release.name);
    let known: Vec<ReleaseVersion> =
        listed.chain(summary.iter().map(|release| &release.name)).filter_map(|name| version_of(stack, name)).collect();
    let Some(unknown) = versions.iter().find(|version| !known.contains(version)) else { return Ok(()) };
    let waiting: Vec<String> = available(stack)
        .iter()
        .filter_map(|release| version_of(stack, &release.name))
        .map(|version| version.to_string())
        .collect();
    let hint = if waiting.is_empty() {
        let (name, namespace) = (stack.name_any(), stack.namespace().unwrap_or_default());
        format!(
            "nothing is available beyond what is taken; `clusterstack reconcile {name} -n {namespace}` has the source read again"
        )
    } else {
        format!("available are: {}", waiting.join(", "))
    };
    Err(Hinted::new(format!("version {unknown} is not available to ClusterStack {}", stack.name_any()), hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack() -> ClusterStack {
        serde_json::from_value(json!({
            "metadata": {"name": "scs"},
            "spec": {"provider": "docker", "name": "scs", "kubernetesVersion": "1.34"},
            "status": {
                "summary": [{"name": "docker-scs-1-34-v1", "ready": true, "phase": "done"}],
                "available": [{"name": "docker-scs-1-34-v3"}, {"name": "docker-scs-1-34-v2"}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn what_is_said_of_a_release_steers_no_terminal() {
        let release = AvailableRelease {
            name: "docker-scs-1-34-v3".into(),
            message: "new\u{1b}[2K\rold".into(),
            ..AvailableRelease::default()
        };
        assert_eq!(waiting(&release), "docker-scs-1-34-v3  new [2K old\n");
    }

    #[test]
    fn a_release_is_named_by_its_version_or_as_it_is_shown() {
        for (text, expected) in [
            ("v3", Ok("v3")),
            ("docker-scs-1-34-v3", Ok("v3")),
            ("docker-scs-1-34-v0-sha-abc", Ok("v0-sha.abc")),
            ("docker-other-1-34-v3", Err("docker-other-1-34-v3 is no release of ClusterStack scs")),
            ("docker-scs-1-33-v3", Err("docker-scs-1-33-v3 is no release of ClusterStack scs")),
        ] {
            let found = versions_of(&stack(), &[text.parse().unwrap()]).map(|versions| versions[0].to_string());
            assert_eq!(
                found.map_err(|error| error.to_string()),
                expected.map(Into::into).map_err(Into::into),
                "{text}"
            );
        }
        for text in ["", "3", "latest", "v", "docker-scs-1-34"] {
            assert!(matches!(text.parse::<Named>(), Err(NameError::Version(_))), "{text:?}");
        }
    }

    #[test]
    fn only_what_was_seen_can_be_approved() {
        for (versions, refused) in [(vec!["v3"], None), (vec!["v1", "v2"], None), (vec!["v2", "v4"], Some("v4"))] {
            let parsed: Vec<ReleaseVersion> = versions.iter().map(|version| version.parse().unwrap()).collect();
            let result = check(&stack(), &parsed);
            assert_eq!(
                result.err().map(|error| error.to_string().contains(refused.unwrap_or("?"))),
                refused.map(|_| true)
            );
        }
        let error = anyhow::Error::new(check(&stack(), &["v9".parse().unwrap()]).unwrap_err());
        let text = anstream::adapter::strip_str(&super::super::report::text(&error)).to_string();
        insta::assert_snapshot!(text, @r"
        error: version v9 is not available to ClusterStack scs
        hint: available are: v3, v2
        ");
    }
}
