//! `clusterstack bundle`: releases in one archive, over an air gap.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use super::output::{self, Format};
use super::push::GitArgs;
use super::registry::RegistryArgs;
use super::report::{self, Hinted};
use crate::core::artifact::Artifact;
use crate::core::artifact::beside::{Family, families};
use crate::core::name::ReleaseName;
use crate::core::verification::checksums::is_signature;
use crate::io::publish::registry::{self, Registry};
use crate::io::publish::target::{self, Target};
use crate::io::publish::{Published, Release, directory};

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack bundle docker-hello-1-34-v1 docker-hello-1-34-v2 --source .release -f releases.tar
  clusterstack bundle inspect releases.tar
  clusterstack bundle import releases.tar /srv/releases
  clusterstack bundle import releases.tar oci://registry.example.com/platform/cluster-stacks

The archive is an OCI image layout. Manifests go through it byte by byte, so that their digests and signatures hold;
what is signed by a file beside it (SHA256SUMS.asc) keeps that file.";

/// Flags of `clusterstack bundle`.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct BundleArgs {
    #[command(subcommand)]
    command: Option<BundleCommand>,

    /// Names of releases
    #[arg(value_name = "RELEASE", required = true)]
    releases: Vec<String>,

    /// Where the releases are: a directory of packaged releases, layout:path, or a registry as in push
    #[arg(long, value_name = "SOURCE", default_value = ".release")]
    source: String,

    /// The archive to write
    #[arg(short, long, value_name = "FILE", required = true)]
    file: Option<PathBuf>,

    #[command(flatten)]
    registry: RegistryArgs,
}

#[derive(Subcommand, Clone, Debug)]
enum BundleCommand {
    /// Bring the releases of an archive to a registry, a directory, a layout or a Git repository
    Import {
        /// The archive
        file: PathBuf,
        /// Where to, as in `clusterstack push`
        target: String,
        #[command(flatten)]
        git: GitArgs,
        #[command(flatten)]
        registry: RegistryArgs,
    },
    /// List the releases of an archive
    Inspect {
        /// The archive
        file: PathBuf,
        /// Form of the output
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: InspectFormat,
    },
}

/// Forms of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum InspectFormat {
    /// For people
    Table,
    /// A list
    Json,
    /// A list
    Yaml,
}

/// A release in an archive, for people and machines.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    release: String,
    digest: String,
    bytes: u64,
    files: Vec<String>,
    signatures: Vec<String>,
}

/// Bundles, imports or lists.
///
/// # Errors
/// A release that is not there, an archive that is not what its digests say, a target that refuses.
pub fn run(args: &BundleArgs) -> Result<()> {
    match &args.command {
        Some(BundleCommand::Import { file, target, git, registry }) => {
            let targets = git.targets(std::slice::from_ref(target), registry)?;
            targets.iter().try_for_each(|(_, target)| import(file, target, registry))
        }
        Some(BundleCommand::Inspect { file, output }) => inspect(file, *output),
        None => create(args),
    }
}

/// Waits for what a registry does.
fn wait<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(work)
}

fn create(args: &BundleArgs) -> Result<()> {
    let file = args.file.as_ref().context("-f is missing")?;
    let source: Target = args.source.parse()?;
    let opened = args.registry.open(&source)?;
    let artifacts = match (&source, &opened.registry) {
        (_, Some(registry)) => wait(pulled(registry.as_ref(), &args.releases))?,
        (Target::Directory(path), None) => of_directory(path, &args.releases)?,
        _ => {
            let hint = "name a directory of packaged releases, or a layout";
            return Err(Hinted::new(format!("--source {} can't be bundled from", args.source), hint).into());
        }
    };
    registry::write_archive(file, &artifacts)?;
    let number = args.releases.len();
    output::note!("{}: {number} release{}", file.display(), if number == 1 { "" } else { "s" });
    Ok(())
}

async fn pulled(registry: &dyn Registry, releases: &[String]) -> Result<Vec<Artifact>> {
    let progress = Progress::new("reading", releases.len());
    let mut all = Vec::new();
    for release in releases {
        progress.at(release);
        let pulled = registry::pull(registry, release).await?;
        report::left_out(&pulled.left_out);
        let name: Option<ReleaseName> = release.parse().ok();
        let (Some(name), Some(found)) = (name, pulled.artifacts.first()) else {
            let hint = "a release is called <provider>-<stack>-<kubernetes version>-<version>";
            return Err(Hinted::new(format!("{release:?} is no name of a release"), hint).into());
        };
        // What is broken is found before it crosses the gap.
        Release { name, assets: found.files()? }.stack()?;
        all.extend(pulled.artifacts);
    }
    progress.done();
    Ok(all)
}

fn of_directory(path: &Path, wanted: &[String]) -> Result<Vec<Artifact>> {
    let there = directory::read(path)?;
    let mut artifacts = Vec::new();
    for name in wanted {
        let Some((_, found)) = there.iter().find(|(there, _)| there.object_name() == *name) else {
            let names: Vec<String> = there.iter().map(|(name, _)| name.object_name()).collect();
            let hint = format!("there are: {}", names.join(", "));
            return Err(Hinted::new(format!("no release {name} in {}", path.display()), hint).into());
        };
        let release = found.as_ref().map_err(|error| {
            Hinted::new(error.to_string(), "correct it, or package it anew; the releases beside it can be bundled")
        })?;
        // What is broken is found before it crosses the gap.
        release.stack()?;
        artifacts.push(release.artifact());
    }
    Ok(artifacts)
}

fn import(file: &Path, target: &Target, registry: &RegistryArgs) -> Result<()> {
    // Every digest is checked in here, before anything is written.
    let artifacts = registry::read_archive(file)?;
    let opened = registry.open(target)?;
    let (families, others) = families(&artifacts);
    if families.is_empty() {
        let hint = "`clusterstack bundle` writes such archives";
        return Err(Hinted::new(format!("{} holds no release", file.display()), hint).into());
    }
    let (mut releases, mut unsigned) = (Vec::new(), Vec::new());
    for Family { release, beside, .. } in &families {
        let name = release.release().context("a release has a name")?;
        if opened.registry.is_none() && !beside.is_empty() {
            unsigned.push(format!("the signatures of {name} stay behind: they are of its manifest, which registries alone have; sign anew what is there now"));
        }
        let release = Release { name, assets: release.files()? };
        if matches!(target, Target::Git(_)) && release.assets.keys().any(|file| is_signature(file)) {
            let name = &release.name;
            unsigned.push(format!(
                "the signed checksums of {name} stay behind: in Git are the files of the stack alone; sign the tag anew"
            ));
        }
        release.stack()?;
        releases.push(release);
    }
    let mut imported = Imported { lines: String::new(), failures: Vec::new() };
    let progress = Progress::new("importing", families.len());
    wait(async {
        match &opened.registry {
            Some(registry) => to_registry(registry.as_ref(), &families, &others, &progress, &mut imported).await,
            None => {
                for release in &releases {
                    let name = release.name.object_name();
                    progress.at(&name);
                    match target::publish(target, None, release).await {
                        Ok(published) => imported.told(&name, &published),
                        Err(error) => imported.failures.push(format!("{name}: {error}")),
                    }
                }
            }
        }
        Ok(())
    })?;
    progress.done();
    output::print(&imported.lines)?;
    report::left_out(&unsigned);
    match imported.failures.as_slice() {
        [] => Ok(()),
        all => Err(Hinted::new(
            format!("{} not imported: {}", all.len(), all.join("; ")),
            "what was imported stays; import again when the rest is corrected",
        )
        .into()),
    }
}

/// What came of an import.
struct Imported {
    lines: String,
    failures: Vec<String>,
}

impl Imported {
    fn told(&mut self, name: &str, published: &Published) {
        let (state, revision) = match published {
            Published::New { revision } => ("imported", revision),
            Published::Unchanged { revision } => ("unchanged", revision),
        };
        _ = writeln!(self.lines, "{name} {state} {revision}");
    }
}

/// Each release behind what signs it; one that is refused keeps no other one back.
async fn to_registry(
    registry: &dyn Registry,
    families: &[Family<'_>],
    others: &[&Artifact],
    progress: &Progress,
    imported: &mut Imported,
) {
    for family in families {
        let name = family.release.tag.clone().unwrap_or_default();
        progress.at(&name);
        let mut told = |name: &str, published: &Published| imported.told(name, published);
        if let Err(error) = registry::push_family(registry, family, &mut told).await {
            imported.failures.push(format!("{name}: {error}"));
        }
    }
    for artifact in others {
        let digest = artifact.digest();
        let name = artifact.tag.as_deref().unwrap_or(&digest);
        match registry::push(registry, artifact).await {
            Ok(published) => imported.told(name, &published),
            Err(error) => imported.failures.push(format!("{name}: {error}")),
        }
    }
}

fn inspect(file: &Path, format: InspectFormat) -> Result<()> {
    let artifacts = registry::read_archive(file)?;
    let rows =
        artifacts.iter().filter(|artifact| artifact.release().is_some()).map(|artifact| row(artifact, &artifacts));
    let rows: Vec<Row> = rows.collect::<Result<_>>()?;
    match format {
        InspectFormat::Json => output::print(&output::format(&rows, Format::Json)?),
        InspectFormat::Yaml => output::print(&output::format(&rows, Format::Yaml)?),
        InspectFormat::Table => output::print(&table(&rows)),
    }
}

fn row(artifact: &Artifact, all: &[Artifact]) -> Result<Row> {
    let digest = artifact.digest();
    let files = artifact.files()?;
    let mut signatures: Vec<String> = files.keys().filter(|file| is_signature(file)).cloned().collect();
    let beside = all.iter().filter(|other| other.is_beside(&digest));
    signatures.extend(beside.map(|other| other.tag.clone().unwrap_or_else(|| other.digest())));
    Ok(Row {
        release: artifact.tag.clone().unwrap_or_default(),
        bytes: files.values().map(|content| content.len() as u64).sum(),
        files: files.into_keys().collect(),
        digest,
        signatures,
    })
}

fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.release.len()).max().unwrap_or_default().max("RELEASE".len());
    let mut text = format!("{:width$}  {:>9}  {:>5}  {:>10}  DIGEST\n", "RELEASE", "BYTES", "FILES", "SIGNATURES");
    for Row { release, digest, bytes, files, signatures } in rows {
        let (files, signatures) = (files.len(), signatures.len());
        _ = writeln!(text, "{release:width$}  {bytes:>9}  {files:>5}  {signatures:>10}  {digest}");
    }
    text
}

/// One line that says what is under way, on a terminal alone.
struct Progress {
    what: &'static str,
    all: usize,
    at: std::cell::Cell<usize>,
    shown: bool,
}

impl Progress {
    fn new(what: &'static str, all: usize) -> Self {
        Self { what, all, at: std::cell::Cell::new(0), shown: std::io::stderr().is_terminal() }
    }

    fn at(&self, name: &str) {
        self.at.set(self.at.get() + 1);
        if self.shown {
            output::note_part!("\r\x1b[K{} {}/{}: {name}", self.what, self.at.get(), self.all);
        }
    }

    fn done(&self) {
        if self.shown {
            output::note_part!("\r\x1b[K");
        }
    }
}
