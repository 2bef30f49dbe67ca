//! Many node images that tasks of the operator download, compress and bring to a directory, all at once: what a build costs the
//! operator itself. What tools take is their own, and bounded by the template.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use clusterstack::api::image_release::{
    ImagePhase, ProviderNodeImageRelease as Image, ProviderNodeImageReleaseSpec, TemplateReference,
};
use clusterstack::api::image_template::ProviderClusterStackReleaseTemplate as Template;
use clusterstack::core::image::pipeline::Pipeline;
use clusterstack::core::image::recipe;
use clusterstack::core::node_images::{API_VERSION, NodeImages};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::audit::Counts;
use crate::operator::Operator;
use crate::plane::Plane;
use crate::{Cli, REPORTS, each};

/// Where all of it is.
const NAMESPACE: &str = "bench";
/// The template of all images.
const TEMPLATE: &str = "bench";
/// Size of a disk: half of it is noise.
const DISK: usize = 128 << 20;
/// How long all builds may take.
const PATIENCE: Duration = Duration::from_mins(30);

/// What was found with a number of builds.
#[derive(Serialize)]
struct Found {
    builds: usize,
    /// From the first creation of an image to the last that is at its destination.
    seconds: f64,
    /// Requests in that time, but for Leases.
    requests: Counts,
    /// Processor time of the operator in that time, in seconds.
    cpu_seconds: f64,
    /// Resident memory before, in MiB.
    memory_before: f64,
    /// The most until all are done.
    memory_peak: f64,
    /// A while after that.
    memory_at_rest: f64,
    /// The most of the disk that work directories took, in MiB.
    disk_peak: f64,
}

/// Measures each number that is asked for.
pub(crate) async fn measure(cli: &Cli) -> Result<()> {
    let (server, checksum) = serve().await?;
    let of = async |builds: &usize| {
        measured(cli, *builds, server, &checksum).await.with_context(|| format!("{builds} builds"))
    };
    each(cli.output, &cli.builds, of, table).await
}

async fn measured(cli: &Cli, builds: usize, server: SocketAddr, checksum: &str) -> Result<Found> {
    let say = |text: &str| eprintln!("bench: {builds} builds: {text}");
    let plane = Plane::start(&cli.project, &cli.clusterstack, &cli.crds)?;
    let client = plane.client().await?;
    let (destination, work) = (plane.dir().join("shelf"), plane.dir().join("images"));
    fs::create_dir_all(&destination)?;
    let namespace = json!({"metadata": {"name": NAMESPACE}});
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &serde_json::from_value(namespace)?).await?;
    let mut flags = ["--image-build-concurrency", "0", "--allow-source", "127.0.0.1", "--allow-image-directory"]
        .map(ToOwned::to_owned)
        .to_vec();
    flags.push(destination.display().to_string());
    flags.extend(cli.flags.iter().cloned());
    let mut operator = Operator::start(&cli.clusterstack, &plane, &destination, &flags)?;
    operator.settled(&[&plane], Duration::from_secs(5)).await?;
    let before = operator.memory()?;

    let spec = json!({
        "template": {"spec": {}}, "destination": {"directory": {"path": destination}}, "build": {"concurrency": builds},
    });
    let object: Template = serde_json::from_value(json!({"metadata": {"name": TEMPLATE}, "spec": spec}))?;
    Api::<Template>::namespaced(client.clone(), NAMESPACE).create(&PostParams::default(), &object).await?;
    say("creating the images");
    let (mark, cpu) = (plane.audit_end(), operator.cpu()?);
    let url = format!("http://{server}/disk.raw");
    let entry = |at: usize| {
        let steps = json!([{"download": {"url": url, "checksum": checksum}}, {"compress": {"algorithm": "gzip"}}]);
        json!({"name": format!("image-{at}"), "format": "raw", "steps": steps})
    };
    let mut disk_peak = 0.0_f64;
    let watched = async {
        loop {
            disk_peak = disk_peak.max(mebibytes(&work));
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let seconds = tokio::select! {
        never = watched => never,
        took = until_done(&client, builds, entry) => took?.as_secs_f64(),
    };
    say(&format!("all are at their destination after {seconds:.2} s"));
    let (requests, cpu_seconds, memory) = (plane.counts(mark)?, operator.cpu()? - cpu, operator.memory()?);
    tokio::time::sleep(REPORTS).await;
    let at_rest = operator.memory()?;
    operator.end()?;
    Ok(Found {
        builds,
        seconds,
        requests,
        cpu_seconds,
        memory_before: before.resident,
        memory_peak: memory.peak,
        memory_at_rest: at_rest.resident,
        disk_peak,
    })
}

/// Serves a disk; where, and its checksum.
async fn serve() -> Result<(SocketAddr, String)> {
    let mut disk = vec![0; DISK];
    rand::fill(&mut disk[..DISK / 2]);
    let checksum = format!("sha256:{:x}", Sha256::digest(&disk));
    let disk = Bytes::from(disk);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let app = Router::new().route("/disk.raw", get(async move || disk.clone()));
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok((address, checksum))
}

/// Creates the images; how long until all are at their destination.
async fn until_done(client: &Client, builds: usize, entry: impl Fn(usize) -> Value) -> Result<Duration> {
    let api: Api<Image> = Api::namespaced(client.clone(), NAMESPACE);
    let events = watcher::watcher(api.clone(), watcher::Config::default());
    let mut events = std::pin::pin!(events);
    while !matches!(events.try_next().await?, Some(Event::InitDone) | None) {}
    let begin = Instant::now();
    let creation = async {
        for at in 0..builds {
            api.create(&PostParams::default(), &image(&entry(at))?).await?;
        }
        anyhow::Ok(())
    };
    let done = async {
        let mut done = BTreeSet::new();
        while done.len() < builds {
            let Some(event) = events.try_next().await? else { bail!("the watch ended") };
            let Event::Apply(image) = event else { continue };
            match image.status.as_ref().map(|status| status.phase) {
                Some(ImagePhase::Succeeded) => drop(done.insert(image.name_any())),
                Some(ImagePhase::Failed) => bail!("{} failed: {:?}", image.name_any(), image.status),
                _ => {}
            }
        }
        Ok(begin.elapsed())
    };
    let both = async { tokio::try_join!(creation, done) };
    let ((), took) = tokio::time::timeout(PATIENCE, both).await.context("not all were built")??;
    Ok(took)
}

/// The object of an entry of a list of images.
fn image(entry: &Value) -> Result<Image> {
    let list = NodeImages::parse(&json!({"apiVersion": API_VERSION, "images": [entry]}).to_string())?;
    let one = list.images.first().context("no image")?;
    let pipeline = Pipeline::of(one)?.context("an image without steps")?;
    let template = TemplateReference { name: TEMPLATE.to_owned(), namespace: None };
    let spec = ProviderNodeImageReleaseSpec {
        image: recipe::written(&pipeline).context("no recipe")?,
        inputs: pipeline.inputs(&recipe::identity(&template)),
        template_ref: template,
        suspend: false,
    };
    Ok(Image::new(&one.name, spec))
}

/// What the files of a directory take of its disk.
#[expect(clippy::cast_precision_loss, reason = "bytes of a disk, far below 2^52")]
fn mebibytes(dir: &Path) -> f64 {
    use std::os::unix::fs::MetadataExt as _;
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => mebibytes(&entry.path()),
        Ok(found) => (found.blocks() * 512) as f64 / 1024.0 / 1024.0,
        Err(_) => 0.0,
    });
    sizes.sum()
}

/// A Markdown table.
#[expect(clippy::cast_precision_loss, reason = "counts of requests, far below 2^52")]
fn table(all: &[Found]) -> String {
    let mut out = String::from(
        "| builds at once | all done | requests each | writes of status each | CPU each | before | most | at rest | work directories |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for found in all {
        let each = |count: usize| count as f64 / found.builds as f64;
        let _ = writeln!(
            out,
            "| {} | {:.1} s | {:.1} | {:.1} | {:.2} s | {:.0} MiB | {:.0} MiB | {:.0} MiB | {:.0} MiB |",
            found.builds,
            found.seconds,
            each(found.requests.all),
            each(found.requests.status),
            found.cpu_seconds / found.builds as f64,
            found.memory_before,
            found.memory_peak,
            found.memory_at_rest,
            found.disk_peak,
        );
    }
    out
}
