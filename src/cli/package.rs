//! `clusterstack package`: a stack's directory as the assets of a release.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use serde_json::json;

use super::output::{self, Format};
use super::report::Hinted;
use crate::core::name::{ReleaseName, ReleaseVersion};
use crate::core::package::{self, Mode, Package, Previous};
use crate::io::publish::directory::{self, Found};
use crate::io::publish::{Published, Release};
use crate::io::{pack, stack};

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack package stacks/docker/hello                          # v1, into .release/docker-hello-1-34-v1
  clusterstack package stacks/docker/hello --previous .release/docker-hello-1-34-v1
  clusterstack package stacks/docker/hello --mode hash -o json      # v0-sha.<hash>, to test before there is a tag
  clusterstack package stacks/docker/hello --mode custom --version v0-alpha.3

What is made is the same bytes each time. A release that is there with other content is never overwritten.";

/// How the version is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModeArg {
    /// vN: --version, or the one after --previous, or v1
    Stable,
    /// v0-sha.<hash>: by the content of all components
    Hash,
    /// --version as it is, for example v0-alpha.3
    Custom,
}

/// Flags of `clusterstack package`.
#[derive(Args, Clone, Debug)]
pub struct PackageArgs {
    /// Directory of a stack, with its csctl.yaml
    #[arg(value_name = "STACK_DIR")]
    stack: PathBuf,

    /// How the version is chosen
    #[arg(short, long, value_enum, default_value = "stable")]
    mode: ModeArg,

    /// Version of the release
    #[arg(long, value_name = "VERSION", required_if_eq("mode", "custom"))]
    version: Option<ReleaseVersion>,

    /// Version of the addon charts, with --mode custom
    #[arg(long, value_name = "VERSION")]
    addon_version: Option<ReleaseVersion>,

    /// Version of the node images, with --mode custom
    #[arg(long, value_name = "VERSION")]
    node_image_version: Option<ReleaseVersion>,

    /// Assets of the release before: the version follows it, and what did not change keeps its version
    #[arg(long, value_name = "DIR")]
    previous: Option<PathBuf>,

    /// Directory that the release's directory is made in
    #[arg(long, value_name = "DIR", default_value = ".release")]
    out: PathBuf,

    /// Form of the output: JSON or YAML with the name, the directory and the versions; a line for people without it
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Format>,
}

/// Packages and says what it made.
///
/// # Errors
/// A stack that makes no release, or a release that is there with other content.
pub fn run(args: &PackageArgs) -> Result<()> {
    let mode = mode(args)?;
    let before = args.previous.as_deref().map(previous).transpose()?;
    let stack = stack::read(&args.stack).with_context(|| format!("{} is no stack", args.stack.display()))?;
    let package = package::package(&stack.files, &stack.expanded, &mode, before.as_ref().map(|(_, previous)| previous))
        .with_context(|| format!("{} can't be packaged", args.stack.display()))?;
    if let Some((name, _)) = before.filter(|(name, _)| name.stem() != package.name.stem()) {
        let message = format!("--previous is a release of another stack: {name}, and this one is {}", package.name);
        let hint = "name the release before of this stack, or leave it out for its first one";
        return Err(Hinted::new(message, hint).into());
    }
    let release = Release { name: package.name.clone(), assets: assets(&package)? };
    // What a subscriber does with it: an archive that would be refused there is refused here.
    release.stack()?;
    let published = match directory::signed(&args.out, &release)? {
        Some(published) => published,
        None => directory::write(&args.out, &release)?,
    };
    for remark in &package.remarks {
        output::note!("note: {remark}");
    }
    told(args, &package, &release, &published)
}

fn mode(args: &PackageArgs) -> Result<Mode> {
    let components = args.addon_version.is_some() || args.node_image_version.is_some();
    match (args.mode, &args.version) {
        (ModeArg::Custom, Some(version)) => Ok(Mode::Custom {
            version: version.clone(),
            addon: args.addon_version.clone(),
            node_image: args.node_image_version.clone(),
        }),
        _ if components => {
            let hint = "with the other modes the versions of components follow from the content";
            Err(Hinted::new("--addon-version and --node-image-version are for --mode custom", hint).into())
        }
        (ModeArg::Stable, version) => Ok(Mode::Stable(version.clone())),
        (ModeArg::Hash, None) => Ok(Mode::Hash),
        (ModeArg::Hash | ModeArg::Custom, _) => {
            Err(Hinted::new("--mode hash takes no --version", "leave it out, or use --mode custom").into())
        }
    }
}

fn previous(path: &Path) -> Result<(ReleaseName, Previous)> {
    let given = || format!("--previous {}", path.display());
    let all = directory::read(path).with_context(given)?;
    match <[Found; 1]>::try_from(all) {
        Ok([(name, release)]) => Ok((name, Previous::read(&release.with_context(given)?.assets)?)),
        Err(several) => {
            let names: Vec<String> = several.iter().map(|(name, _)| name.object_name()).collect();
            let hint = format!("name one of them: {}", names.join(", "));
            Err(Hinted::new(format!("{} holds several releases", given()), hint).into())
        }
    }
}

fn assets(package: &Package) -> Result<BTreeMap<String, Bytes>> {
    let mut assets = package.files.clone();
    for (name, files) in &package.archives {
        assets.insert(name.clone(), pack::tar_gz(files).with_context(|| format!("cannot make {name}"))?);
    }
    Ok(assets)
}

fn told(args: &PackageArgs, package: &Package, release: &Release, published: &Published) -> Result<()> {
    let name = package.name.object_name();
    let directory = args.out.join(&name);
    let (state, digest) = match published {
        Published::New { revision } => ("new", revision),
        Published::Unchanged { revision } => ("unchanged", revision),
    };
    if let Some(format) = args.output {
        let value = json!({
            "release": name,
            "directory": directory,
            "state": state,
            "digest": digest,
            "versions": {
                "clusterStack": package.versions.cluster_stack.to_string(),
                "clusterAddon": package.versions.cluster_addon.to_string(),
                "nodeImage": package.versions.node_image.to_string(),
            },
            "assets": release.assets.keys().collect::<Vec<_>>(),
            "remarks": package.remarks,
        });
        return output::print(&output::format(&value, format)?);
    }
    let files = release.assets.len();
    output::print(&format!("{} ({state}, {files} files, {digest})\n", directory.display()))
}
