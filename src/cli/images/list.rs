//! The list of node images, once or until all builds are at an end.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, ValueEnum};
use kube::ResourceExt;
use kube::api::ListParams;

use super::render::{self, Canvas};
use super::row::Row;
use super::{Image, KINDS};
use crate::api::image_release::ImagePhase;
use crate::cli::connection::{Connection, ConnectionArgs};
use crate::cli::output::{self, Format};
use crate::cli::report;
use crate::io::stored;

/// How often is looked.
const LOOK: Duration = Duration::from_secs(1);
/// How long an API server that answered before may be silent.
const SILENCE: Duration = Duration::from_mins(1);

/// Exit code of a watch that has nothing to watch.
const NONE: u8 = 2;

/// Flags of the list.
#[derive(Args, Clone, Debug)]
pub struct ListArgs {
    /// Namespace; that of the kubeconfig's context by default
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// In all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,

    #[command(flatten)]
    connection: ConnectionArgs,

    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: ImagesFormat,

    /// Draw it again until all builds are at an end; in a pipe a line for each change
    #[arg(short, long, conflicts_with = "output")]
    watch: bool,
}

/// Forms of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ImagesFormat {
    /// For people.
    Text,
    /// A list of images.
    Json,
    /// A list of images.
    Yaml,
}

/// Prints the list.
///
/// # Errors
/// No way to the API server, no right to list, or nobody to print to.
pub async fn run(args: &ListArgs) -> Result<ExitCode> {
    let connection = args.connection.connect().await?;
    let namespace = args.namespace.clone().unwrap_or_else(|| connection.namespace.clone());
    let only = (!args.all_namespaces).then_some(namespace.as_str());
    let place = only.map_or_else(|| "in any namespace".to_owned(), |namespace| format!("in namespace {namespace}"));
    let (rows, unread) = read(&connection, only).await?;
    report::left_out(&unread);
    match args.output {
        ImagesFormat::Json => output::print(&output::format(&rows, Format::Json)?)?,
        ImagesFormat::Yaml => output::print(&output::format(&rows, Format::Yaml)?)?,
        ImagesFormat::Text if rows.is_empty() => {
            output::note!("no node images {place}");
            // Who waits for them must not take it for their success.
            return Ok(if args.watch { ExitCode::from(NONE) } else { ExitCode::SUCCESS });
        }
        ImagesFormat::Text if args.watch => return watch(&connection, only, rows).await,
        ImagesFormat::Text => output::print(&render::table(&rows, canvas(args.all_namespaces)))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The rows, and what could not be read.
async fn read(connection: &Connection, namespace: Option<&str>) -> Result<(Vec<Row>, Vec<String>)> {
    let listed =
        connection.answer(stored::list::<Image>(&connection.client, namespace, &ListParams::default())).await?;
    let (mut images, unread) = listed.map_err(|error| connection.refused("listed", KINDS, error))?;
    images.sort_by_key(|image| (image.namespace(), image.name_any()));
    Ok((images.iter().map(Row::of).collect(), unread))
}

fn canvas(namespaces: bool) -> Canvas {
    let size = std::io::stdout().is_terminal().then(terminal_size::terminal_size).flatten();
    Canvas { namespaces, size: size.map(|(width, height)| (usize::from(width.0), usize::from(height.0))) }
}

/// Shows the list again and again until all builds are at an end.
async fn watch(connection: &Connection, namespace: Option<&str>, rows: Vec<Row>) -> Result<ExitCode> {
    let mut rows = rows;
    let mut drawn = 0;
    let mut said = BTreeMap::new();
    loop {
        let canvas = canvas(namespace.is_none());
        if canvas.size.is_some() {
            let screen = render::screen(&rows, canvas);
            output::print(&format!("{}{screen}", render::above(drawn)))?;
            drawn = screen.lines().count();
        } else {
            output::print(&render::changes(&rows, canvas, &mut said))?;
        }
        if rows.iter().all(Row::is_at_rest) {
            let is_good = rows.iter().all(|row| row.phase == ImagePhase::Succeeded);
            return Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        let since = Instant::now();
        rows = loop {
            tokio::time::sleep(LOOK).await;
            match read(connection, namespace).await {
                Ok((rows, _)) => break rows,
                // One that answered before is about to come back.
                Err(error) if since.elapsed() > SILENCE => return Err(error),
                Err(_) => {}
            }
        };
    }
}
