//! Times our rendering against Helm's, for `hack/bench render`.
//!
//! `time` times one chart in this process and prints one JSON line, as `oracle bench` does for Helm's engine. `compare`
//! runs both, and both commands, in turns, so that a busy machine slows all of them, and prints a table of ratios.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clusterstack::core::chart::{Capabilities, Chart, Release, RenderInput, Seed, render, render_texts};
use clusterstack::core::files::{FileTree, below};
use clusterstack::core::limits::Limits;
use clusterstack::core::yaml;
use clusterstack::io::unpack;
use mimalloc::MiMalloc;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// As in the command.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Times rendering.
#[derive(Parser)]
struct Cli {
    /// What `cargo bench` passes
    #[arg(long, hide = true, global = true)]
    bench: bool,

    #[command(subcommand)]
    task: Option<Task>,
}

#[derive(Subcommand)]
enum Task {
    /// Times one chart in this process
    Time(TimeArgs),
    /// Times all charts against Helm
    Compare(CompareArgs),
}

#[derive(Args)]
struct TimeArgs {
    /// What the line is called
    #[arg(long, default_value = "chart")]
    name: String,

    /// What is timed
    #[arg(long, default_value = "warm")]
    mode: Mode,

    /// Renders for that long
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,

    /// Values for the chart
    #[arg(long, value_name = "FILE")]
    values: Option<PathBuf>,

    /// A packaged chart
    chart: PathBuf,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
enum Mode {
    /// To texts, which is what Helm's engine does; the chart was parsed before, as in the operator
    Warm,
    /// To documents, read and sorted
    Documents,
    /// To texts, from the files of the chart on
    Cold,
}

#[derive(Args)]
struct CompareArgs {
    /// Directory with `oracle` and `helm`
    #[arg(long)]
    oracle: PathBuf,

    /// Our command
    #[arg(long)]
    clusterstack: PathBuf,

    /// Directory with the charts
    #[arg(long)]
    charts: PathBuf,

    /// Each is measured for that long in each round
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,

    /// Rounds
    #[arg(long, default_value_t = 3)]
    rounds: usize,

    /// Measures only the charts with this in their name
    #[arg(long, default_value = "")]
    only: String,

    /// Form of the output
    #[arg(short, long, default_value = "table")]
    output: Form,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
enum Form {
    Table,
    Json,
}

/// What was measured of one engine on one chart.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Timing {
    engine: String,
    chart: String,
    mode: String,
    min_us: f64,
    median_us: f64,
    iterations: usize,
    peak_rss_kib: Option<u64>,
}

/// What is rendered.
struct Case {
    name: &'static str,
    folder: &'static str,
    values: Option<&'static str>,
}

const CASES: &[Case] = &[
    Case { name: "cilium", folder: "cilium-1.19.6", values: None },
    Case {
        name: "cilium, no keys",
        folder: "cilium-1.19.6",
        // A job makes the certificates; the chart makes none.
        values: Some("hubble:\n  tls:\n    auto:\n      method: cronJob\n"),
    },
    Case { name: "traefik", folder: "traefik", values: None },
    Case { name: "ingress-nginx", folder: "ingress-nginx", values: None },
    Case { name: "argo-workflows", folder: "argo-workflows", values: None },
    Case { name: "docker ClusterClass", folder: "docker-scs-cluster-class", values: None },
];

fn main() -> Result<()> {
    match Cli::parse().task {
        None => Ok(()),
        Some(Task::Time(args)) => {
            println!("{}", serde_json::to_string(&time(&args)?)?);
            Ok(())
        }
        Some(Task::Compare(args)) => compare(&args),
    }
}

fn time(args: &TimeArgs) -> Result<Timing> {
    let files = files(&args.chart)?;
    let values = match &args.values {
        Some(path) => yaml::parse(&std::fs::read_to_string(path)?)?,
        None => Value::Null,
    };
    let capabilities = Capabilities::for_kube_version("v1.34.2").map_err(anyhow::Error::msg)?;
    let release = Release::new("demo", "demo-ns");
    let now = "2026-01-01T00:00:00Z".parse()?;
    let input = RenderInput { values, include_crds: false, ..RenderInput::new(release, &capabilities, now) };
    let mut first = RenderInput { seed: Some(Seed([0; 32])), ..input };
    let chart = Chart::load(&files)?;
    // What was made in a first rendering is kept for all later ones, as the operator keeps it.
    let drawn = render(&chart, &first)?.drawn;
    let later = RenderInput { drawn: &drawn, ..first.clone() };
    let mut count = 0_u64;
    let times = repeat(args.seconds, || {
        match args.mode {
            Mode::Warm => drop(std::hint::black_box(render_texts(&chart, &later)?)),
            Mode::Documents => drop(std::hint::black_box(render(&chart, &later)?)),
            Mode::Cold => {
                // Finding a key takes longer with one seed than with another.
                count += 1;
                let mut seed = [0; 32];
                seed[..8].copy_from_slice(&count.to_be_bytes());
                first.seed = Some(Seed(seed));
                drop(std::hint::black_box(render_texts(&Chart::load(&files)?, &first)?));
            }
        }
        Ok(())
    })?;
    let mode = match args.mode {
        Mode::Warm => "warm",
        Mode::Documents => "documents",
        Mode::Cold => "cold",
    };
    Ok(Timing { peak_rss_kib: peak_memory(), ..timing("clusterstack", &args.name, mode, times) })
}

fn files(path: &Path) -> Result<FileTree> {
    let limits = Limits::default();
    let data = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let files = unpack::unpack(&data, &limits)?;
    let root = files.keys().find_map(|path| path.strip_suffix("/Chart.yaml").filter(|root| !root.contains('/')));
    let Some(root) = root else { bail!("no chart in {}", path.display()) };
    Ok(unpack::expand_charts(below(&files, root), &limits)?)
}

/// Runs it once unmeasured, and then until the time is over.
fn repeat(seconds: f64, mut run: impl FnMut() -> Result<()>) -> Result<Vec<Duration>> {
    run()?;
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut times = Vec::new();
    while times.len() < 5 || Instant::now() < end {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed());
    }
    Ok(times)
}

fn timing(engine: &str, chart: &str, mode: &str, mut times: Vec<Duration>) -> Timing {
    times.sort_unstable();
    let micros = |at: usize| times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e6);
    Timing {
        engine: engine.into(),
        chart: chart.into(),
        mode: mode.into(),
        min_us: micros(0),
        median_us: micros(times.len() / 2),
        iterations: times.len(),
        peak_rss_kib: None,
    }
}

/// The most memory that the process has held, in KiB, where the kernel tells.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.split_whitespace().next()?.parse().ok()
}

/// The rounds of one chart: what was measured, in a fixed order.
struct Row {
    name: &'static str,
    timings: Vec<Timing>,
}

impl Row {
    /// Adds a round: the shortest time counts, for it is the one that was disturbed least.
    fn add(&mut self, new: Timing) {
        match self.timings.iter_mut().find(|old| (&old.engine, &old.mode) == (&new.engine, &new.mode)) {
            None => self.timings.push(new),
            Some(old) => {
                old.min_us = old.min_us.min(new.min_us);
                old.median_us = old.median_us.min(new.median_us);
                old.iterations += new.iterations;
                old.peak_rss_kib = old.peak_rss_kib.max(new.peak_rss_kib);
            }
        }
    }

    fn find(&self, engine: &str, mode: &str) -> Option<&Timing> {
        self.timings.iter().find(|timing| timing.engine == engine && timing.mode == mode)
    }

    fn min(&self, engine: &str, mode: &str) -> f64 {
        self.find(engine, mode).map_or(f64::NAN, |timing| timing.min_us)
    }

    fn peak(&self, engine: &str, mode: &str) -> u64 {
        self.find(engine, mode).and_then(|timing| timing.peak_rss_kib).unwrap_or_default() / 1024
    }
}

fn compare(args: &CompareArgs) -> Result<()> {
    let place = tempfile::tempdir()?;
    let mut rows = Vec::new();
    for case in CASES.iter().filter(|case| case.name.contains(&args.only)) {
        let chart = args.charts.join(case.folder).join("chart.tgz");
        if !chart.is_file() {
            eprintln!("bench: SKIPPED {}: no {}", case.name, chart.display());
            continue;
        }
        let values = case.values.map(|_| place.path().join("values.yaml"));
        if let (Some(path), Some(text)) = (&values, case.values) {
            std::fs::write(path, text)?;
        }
        let mut row = Row { name: case.name, timings: Vec::new() };
        for round in 1..=args.rounds {
            eprintln!("bench: {}, round {round} of {}", case.name, args.rounds);
            for timing in measured(args, case.name, &chart, values.as_deref())? {
                row.add(timing);
            }
        }
        rows.push(row);
    }
    match args.output {
        Form::Table => print!("{}", table(&rows)),
        Form::Json => {
            for timing in rows.iter().flat_map(|row| &row.timings) {
                println!("{}", serde_json::to_string(timing)?);
            }
        }
    }
    Ok(())
}

/// One round: ours and Helm's in turns.
fn measured(args: &CompareArgs, name: &str, chart: &Path, values: Option<&Path>) -> Result<Vec<Timing>> {
    let own = std::env::current_exe()?;
    let seconds = args.seconds.to_string();
    let in_process = |program: &Path, task: &str, mode: &str| -> Result<Timing> {
        let mut command = Command::new(program);
        command.args([task, "--name", name, "--mode", mode, "--seconds", &seconds]);
        if let Some(values) = values {
            command.arg("--values").arg(values);
        }
        let output = command.arg(chart).stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            bail!("{} fails on {name}", program.display());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    };
    let process = |engine: &str, program: &Path| -> Result<Timing> {
        let times = repeat(args.seconds, || {
            let mut command = Command::new(program);
            command.args(["template", "demo"]).arg(chart);
            command.args(["-n", "demo-ns", "--kube-version", "v1.34.2", "--include-crds"]);
            if let Some(values) = values {
                command.arg("-f").arg(values);
            }
            let status = command.stdout(Stdio::null()).status()?;
            if status.success() { Ok(()) } else { bail!("{} fails on {name}", program.display()) }
        })?;
        Ok(timing(engine, name, "process", times))
    };
    let oracle = args.oracle.join("oracle");
    Ok(vec![
        in_process(&own, "time", "warm")?,
        in_process(&oracle, "bench", "engine")?,
        in_process(&own, "time", "cold")?,
        in_process(&own, "time", "documents")?,
        in_process(&oracle, "bench", "sorted")?,
        process("clusterstack", &args.clusterstack)?,
        process("helm", &args.oracle.join("helm"))?,
    ])
}

/// A Markdown table; times in milliseconds, memory in MiB.
fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| chart | Helm's engine | ours, warm | times faster | ours, cold | times faster | Helm, with documents | ours, with documents | times faster | helm process | our process | times faster | peak, Helm's engine | peak, ours |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for row in rows {
        let engine = row.min("helm", "engine");
        let (warm, cold) = (row.min("clusterstack", "warm"), row.min("clusterstack", "cold"));
        let (sorted, documents) = (row.min("helm", "sorted"), row.min("clusterstack", "documents"));
        let (helm, ours) = (row.min("helm", "process"), row.min("clusterstack", "process"));
        let ms = |micros: f64| format!("{:.2} ms", micros / 1000.0);
        _ = writeln!(
            text,
            "| {} | {} | {} | {:.1} | {} | {:.1} | {} | {} | {:.1} | {} | {} | {:.1} | {} MiB | {} MiB |",
            row.name,
            ms(engine),
            ms(warm),
            engine / warm,
            ms(cold),
            engine / cold,
            ms(sorted),
            ms(documents),
            sorted / documents,
            ms(helm),
            ms(ours),
            helm / ours,
            row.peak("helm", "engine"),
            row.peak("clusterstack", "warm"),
        );
    }
    text
}
