//! Measures the operator at scale, for `hack/bench scale`: many ClusterStacks with many releases on a control plane, and
//! beside it, on another control plane of the same kind, the floor: the same objects applied by a bare client.

mod audit;
mod builds;
mod clusters;
mod floor;
mod operator;
mod plane;
mod stacks;
mod table;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use serde::Serialize;

use audit::Counts;
use operator::Operator;
use plane::Plane;
use stacks::Stacks;

/// Times N ClusterStacks of M releases each, from their creation to all Ready.
#[derive(Parser)]
struct Cli {
    /// What `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,

    /// What is measured, one after the other: `STACKS` or `STACKSxRELEASES`
    #[arg(long, value_delimiter = ',', default_value = "1,100,1000", value_parser = size)]
    sizes: Vec<Size>,

    /// Instead of ClusterStacks alone, these numbers of Clusters of one ClusterStack, which get its addons, one after the other
    #[arg(long, value_delimiter = ',', conflicts_with = "sizes")]
    clusters: Vec<usize>,

    /// Instead, these numbers of node images that the operator builds at once, one after the other
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["sizes", "clusters"])]
    builds: Vec<usize>,

    /// How long the operator is watched while nothing happens, in seconds: longer than the interval of releases, unless told otherwise
    #[arg(long, default_value_t = 360)]
    quiet: u64,

    /// Objects that the bare client works on at once; the operator has its default, or what its flags say
    #[arg(long, default_value_t = 10)]
    concurrency: usize,

    /// The command that is measured
    #[arg(long)]
    clusterstack: PathBuf,

    /// Directory of the project
    #[arg(long)]
    project: PathBuf,

    /// Directory with CRDs of Cluster API and its providers
    #[arg(long)]
    crds: PathBuf,

    /// How results are written
    #[arg(short, long, default_value = "table")]
    output: Form,

    /// More flags for the operator
    #[arg(last = true)]
    flags: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    Table,
    Json,
}

/// Within this time after its last work a replica has said what it has of it.
const REPORTS: Duration = Duration::from_secs(35);

/// How many.
#[derive(Clone, Copy, Serialize)]
struct Size {
    stacks: usize,
    releases: usize,
}

fn size(text: &str) -> Result<Size, String> {
    let (stacks, releases) = text.split_once('x').unwrap_or((text, "1"));
    let number = |text: &str| text.parse().ok().filter(|number| (1..=100_000).contains(number));
    match (number(stacks), number(releases)) {
        (Some(stacks), Some(releases)) => Ok(Size { stacks, releases }),
        _ => Err("write 100, or 100x10 for ten releases each".to_owned()),
    }
}

/// What was found at one size.
#[derive(Serialize)]
pub(crate) struct Found {
    #[serde(flatten)]
    size: Size,
    /// From the first creation to the last ClusterStack that is Ready.
    seconds: f64,
    /// The same objects, by the bare client.
    floor_seconds: f64,
    /// Requests of the operator from the creation until it is at rest, but for Leases.
    requests: Counts,
    /// Processor time of the operator in the same time, in seconds.
    cpu_seconds: f64,
    /// Resident memory of the operator before there is a ClusterStack, in MiB.
    memory_before: f64,
    /// Of that the executable's.
    files_before: f64,
    /// Resident memory when all is done and it is at rest.
    memory_at_rest: f64,
    /// Of that the executable's.
    files_at_rest: f64,
    /// The most until then.
    memory_peak: f64,
    /// How long nothing happened, in seconds.
    quiet_seconds: u64,
    /// Requests in that time.
    quiet: Counts,
    /// Processor time in that time, in seconds.
    quiet_cpu_seconds: f64,
    /// From the start of the operator anew to its last request but for Leases.
    restart_seconds: f64,
    /// Requests of the new process.
    restart: Counts,
}

#[tokio::main]
async fn main() -> Result<()> {
    let cli = Cli::parse();
    rustls::crypto::ring::default_provider().install_default().ok();
    if !cli.clusters.is_empty() {
        return clusters::measure(&cli).await;
    }
    if !cli.builds.is_empty() {
        return builds::measure(&cli).await;
    }
    let of_stacks = async |size: &Size| measured(&cli, *size).await.with_context(|| format!("{} stacks", size.stacks));
    each(cli.output, &cli.sizes, of_stacks, table::table).await
}

/// Measures one size after the other, and writes what was found.
pub(crate) async fn each<S, T: Serialize>(
    output: Form,
    sizes: &[S],
    measured: impl AsyncFn(&S) -> Result<T>,
    table: fn(&[T]) -> String,
) -> Result<()> {
    let mut all = Vec::new();
    for size in sizes {
        let found = measured(size).await?;
        if output == Form::Json {
            println!("{}", serde_json::to_string(&found)?);
        }
        all.push(found);
    }
    if output == Form::Table {
        print!("{}", table(&all));
    }
    Ok(())
}

async fn measured(cli: &Cli, size: Size) -> Result<Found> {
    let say = |text: &str| eprintln!("bench: {} stacks of {} releases: {text}", size.stacks, size.releases);
    let plane = Plane::start(&cli.project, &cli.clusterstack, &cli.crds)?;
    let client = plane.client().await?;
    say("packaging releases");
    let stacks = Stacks::package(size, &cli.project, &cli.clusterstack, plane.dir())?;
    stacks.namespaces(&client, "bench").await?;
    let mut operator = Operator::start(&cli.clusterstack, &plane, stacks.source(), &cli.flags)?;
    operator.settled(&[&plane], Duration::from_secs(5)).await?;
    let before = operator.memory()?;

    say("creating ClusterStacks");
    let (mark, cpu) = (plane.audit_end(), operator.cpu()?);
    let seconds = stacks.until_ready(&client, cli.concurrency).await?.as_secs_f64();
    say(&format!("all Ready after {seconds:.2} s"));
    operator.settled(&[&plane], Duration::from_secs(5)).await?;
    let (requests, cpu_seconds, memory) = (plane.counts(mark)?, operator.cpu()? - cpu, operator.memory()?);

    // What is said by the clock is said.
    tokio::time::sleep(REPORTS).await;
    say(&format!("nothing happens for {} s", cli.quiet));
    let (mark, cpu) = (plane.audit_end(), operator.cpu()?);
    tokio::time::sleep(Duration::from_secs(cli.quiet)).await;
    let (quiet, quiet_cpu_seconds) = (plane.counts(mark)?, operator.cpu()? - cpu);
    let at_rest = operator.memory()?;

    say("the operator starts anew");
    operator.end()?;
    let (mark, begin) = (plane.audit_end(), Instant::now());
    let mut operator = Operator::start(&cli.clusterstack, &plane, stacks.source(), &cli.flags)?;
    let last = operator.settled(&[&plane], Duration::from_secs(5)).await?;
    let restart_seconds = last.saturating_duration_since(begin).as_secs_f64();
    let restart = plane.counts(mark)?;
    operator.end()?;

    let samples = floor::samples(&client, &stacks).await?;
    // One that is as new as the operator's was: what a control plane has in memory slows it down.
    drop(plane);
    let plane = Plane::start(&cli.project, &cli.clusterstack, &cli.crds)?;
    say("the floor");
    let floor_seconds = floor::applied(&plane.client().await?, &stacks, &samples, cli.concurrency).await?.as_secs_f64();
    Ok(Found {
        size,
        seconds,
        floor_seconds,
        requests,
        cpu_seconds,
        memory_before: before.resident,
        files_before: before.files,
        memory_at_rest: at_rest.resident,
        files_at_rest: at_rest.files,
        memory_peak: memory.peak,
        quiet_seconds: cli.quiet,
        quiet,
        quiet_cpu_seconds,
        restart_seconds,
        restart,
    })
}
