//! `clusterstack template`: a chart's documents, as `helm template` prints them; templates in Tera too.

mod chart;
mod output_dir;
mod pattern;
mod strvals;
mod values;

pub use values::ValuesArgs;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{ArgAction, Args};
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::output::{self, Format};
use super::report::Hinted;
use crate::core::chart::{
    Capabilities, Chart, Document, HelmVersion, KubeVersion, Release, RenderError, RenderInput, Rendered, Schemas,
    Seed, WholeNumbers, render,
};

/// The namespace where none is named.
const DEFAULT: &str = "default";
/// The name of a release that has none, as `helm template CHART` has it.
const NAMELESS: &str = "release-name";

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack template docker-hello-1-34 ./stacks/docker/hello/cluster-class
  clusterstack template cilium cilium-1.19.6.tgz -n kube-system --set k8sServiceHost=10.0.0.1 --set-string a.b=1
  clusterstack template web ./chart -f base.yaml -f - --show-only templates/deployment.yaml < more.yaml
  clusterstack template ./chart                                # the release is called release-name
  clusterstack template web ./chart --include-crds -o json | jq '.items[].kind'
  clusterstack template web ./chart --output-dir ./rendered";

/// Flags of `clusterstack template`.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "flags")]
pub struct TemplateArgs {
    /// Name of the release, `release-name` without one, and a chart: a directory, for example the cluster-class directory of a
    /// stack, or a .tgz
    #[arg(value_name = "[NAME] CHART", required = true, num_args = 1..=2)]
    name_and_chart: Vec<OsString>,

    /// Namespace of the release
    #[arg(short, long, value_name = "NAMESPACE", default_value = DEFAULT, overrides_with = "namespace")]
    namespace: String,

    #[command(flatten)]
    values: ValuesArgs,

    /// Print the chart's crds/ too
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    include_crds: bool,

    /// Kubernetes version that the chart sees
    #[arg(long, value_name = "VERSION", overrides_with = "kube_version")]
    kube_version: Option<String>,

    /// Helm to render like, where 3.21 and 4.3 differ: 4 drops a chart's defaults that are null
    #[arg(long, value_name = "MAJOR", default_value = "3", value_parser = ["3", "4"])]
    helm_version: String,

    /// API versions that the chart sees besides Kubernetes' own, for example cert-manager.io/v1
    #[arg(short, long, value_name = "VERSIONS", value_delimiter = ',')]
    api_versions: Vec<String>,

    /// Print only what this template renders, for example templates/service.yaml; may be given several times
    #[arg(short, long, value_name = "TEMPLATE")]
    show_only: Vec<String>,

    /// Leave hooks out
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    no_hooks: bool,

    /// Leave tests out
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    skip_tests: bool,

    /// Do not check the values against the chart's values.schema.json
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    skip_schema_validation: bool,

    /// Render as for an upgrade: .Release.IsUpgrade instead of .Release.IsInstall
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    is_upgrade: bool,

    /// What random functions draw from: the same text gives the same passwords and keys. Certificates are valid from the
    /// time of the run on. Without it each run draws anew
    #[arg(long, value_name = "TEXT")]
    seed: Option<String>,

    /// Form of the output: texts as rendered, or one JSON List of the objects
    #[arg(short, long, value_name = "FORMAT", default_value = "yaml", overrides_with = "output")]
    output: Format,

    /// Write what each template renders to a file of its own in this directory, `DIRECTORY/CHART/templates/…`, instead
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "output")]
    output_dir: Option<PathBuf>,

    /// Write to `DIRECTORY/NAME/CHART/templates/…`; files in crds/ as without it
    #[arg(long)]
    release_name: bool,

    #[command(flatten)]
    _of_helm: HelmFlags,
}

/// Flags of `helm template` that ask for what is done here anyway: scripts may give them.
#[derive(Args, Clone, Debug)]
struct HelmFlags {
    #[arg(long, hide = true, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    debug: bool,
    #[arg(long, hide = true, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    skip_crds: bool,
    /// No cluster is asked.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "client",
        value_parser = ["client", "true", "none", "false"])]
    dry_run: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = ["false"])]
    validate: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    generate_name: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    create_namespace: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    dependency_update: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    disable_openapi_validation: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    render_subchart_notes: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    take_ownership: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    replace: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    hide_notes: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    atomic: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    wait: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    wait_for_jobs: Option<String>,
    #[arg(long, hide = true)]
    timeout: Option<String>,
    #[arg(long, hide = true)]
    description: Option<String>,
    #[arg(long, hide = true)]
    labels: Vec<String>,
}

impl TemplateArgs {
    /// The name of the release, and the chart.
    fn name_and_chart(&self) -> Result<(&str, &Path), Hinted> {
        let (name, chart) = match self.name_and_chart.as_slice() {
            [chart] => return Ok((NAMELESS, Path::new(chart))),
            [name, chart] => (name.to_str().unwrap_or_default(), Path::new(chart)),
            _ => return Err(Hinted::new("a name and a chart at most", "quote what has blanks in it")),
        };
        if Release::is_name(name) {
            return Ok((name, chart));
        }
        let most = Release::MAX_NAME;
        let hint = format!(
            "lower-case letters, digits, '-' and '.' make a name, up to {most} of them, with a letter or digit at each end"
        );
        Err(Hinted::new(format!("{name:?} is no name of a release"), hint))
    }
}

/// Renders and prints.
///
/// # Errors
/// What Helm refuses too.
pub fn run(args: &TemplateArgs) -> Result<()> {
    let (name, path) = args.name_and_chart()?;
    let chart = chart::read(path)?;
    let values = args.values.read_as_helm()?;
    let capabilities = capabilities(args)?;
    // A variable of a script that is empty is none.
    let namespace = if args.namespace.is_empty() { DEFAULT } else { &args.namespace };
    let release = Release { is_upgrade: args.is_upgrade, ..Release::new(name, namespace) };
    let input = RenderInput {
        values: Value::Object(values),
        whole_numbers: WholeNumbers::Int64,
        helm: helm(args),
        seed: Some(seed(args)),
        schemas: if args.skip_schema_validation { Schemas::PassedOver } else { Schemas::Checked },
        include_crds: args.include_crds,
        // Printed whole, they need not be understood.
        crds_as_text: args.output == Format::Yaml && args.show_only.is_empty(),
        include_comments: true,
        ..RenderInput::new(release, &capabilities, Timestamp::now())
    };
    let rendered = render(&chart, &input).map_err(|error| refused(error, path))?;
    warn(&chart, &rendered);
    let documents: Vec<Document> =
        rendered.documents.into_iter().filter(|document| is_wanted(document, args)).collect();
    let documents = shown(documents, &args.show_only)?;
    let printed = match args.output {
        _ if args.output_dir.is_some() => written(&documents, (name, args)),
        Format::Yaml => output::print_raw(text(&documents, !args.show_only.is_empty()).as_bytes()),
        Format::Json => {
            let items: Vec<&Value> = documents.iter().map(|d| &d.object).filter(|object| !object.is_null()).collect();
            output::print(&output::format(&json!({"apiVersion": "v1", "kind": "List", "items": items}), Format::Json)?)
        }
    };
    // The process ends now: giving back each small piece of memory would only take time.
    std::mem::forget((chart, documents));
    printed
}

/// Of what Helm warns too.
fn warn(chart: &Chart, rendered: &Rendered) {
    if chart.metadata.deprecated {
        output::note!("warning: {}: the chart is deprecated", chart.name());
    }
    for misfit in &rendered.misfits {
        output::note!("warning: value {misfit}");
    }
    for left_out in &rendered.left_out {
        output::note!("warning: {}: {left_out}", left_out.source);
    }
}

fn refused(error: RenderError, chart: &Path) -> anyhow::Error {
    let what = format!("{} does not render", chart.display());
    match error {
        RenderError::MissingDependencies(_) => {
            let hint = format!(
                "`helm dependency build {}` brings them: nothing is downloaded while rendering",
                chart.display()
            );
            Hinted::new(what, hint).because(error).into()
        }
        error => anyhow::Error::from(error).context(what),
    }
}

fn written(documents: &[Document], (name, args): (&str, &TemplateArgs)) -> Result<()> {
    let directory = args.output_dir.as_deref().unwrap_or_else(|| Path::new("."));
    let of_release = if args.release_name { directory.join(name) } else { directory.to_owned() };
    output_dir::write(documents, |document| if document.is_crd { directory } else { &of_release })
}

fn seed(args: &TemplateArgs) -> Seed {
    Seed(args.seed.as_ref().map_or_else(rand::random, |text| Sha256::digest(text).into()))
}

fn helm(args: &TemplateArgs) -> HelmVersion {
    if args.helm_version == "4" { HelmVersion::V4 } else { HelmVersion::V3 }
}

fn capabilities(args: &TemplateArgs) -> Result<Capabilities> {
    let helm = helm(args);
    let mut capabilities = Capabilities::of(helm);
    // An empty one is none, as scripts give it to Helm.
    if let Some(version) = args.kube_version.as_ref().filter(|version| !version.is_empty()) {
        let parsed = match helm {
            HelmVersion::V3 => KubeVersion::parse(version),
            HelmVersion::V4 => KubeVersion::parse_whole(version),
        };
        capabilities.kube_version =
            parsed.map_err(|error| Hinted::new(format!("--kube-version: {error}"), "write it as 1.34 or v1.34.2"))?;
    }
    capabilities.api_versions.extend(args.api_versions.iter().filter(|version| !version.is_empty()).cloned());
    Ok(capabilities)
}

fn is_wanted(document: &Document, args: &TemplateArgs) -> bool {
    match &document.hook {
        None => true,
        Some(_) if args.no_hooks => false,
        Some(hook) => !args.skip_tests || hook.events.iter().all(|event| event != "test"),
    }
}

/// What the user's patterns name, in their order; everything without one.
fn shown(documents: Vec<Document>, patterns: &[String]) -> Result<Vec<Document>> {
    if patterns.is_empty() {
        return Ok(documents);
    }
    let mut shown = Vec::new();
    for pattern in patterns {
        let found = documents.iter().filter(|document| pattern::matches(pattern, path_in_chart(document)));
        let before = shown.len();
        shown.extend(found.cloned());
        if shown.len() == before {
            let mut there: Vec<&str> = documents.iter().map(path_in_chart).collect();
            there.sort_unstable();
            there.dedup();
            let hint = format!("there are: {}", there.join(", "));
            return Err(Hinted::new(format!("could not find template {pattern} in chart"), hint).into());
        }
    }
    Ok(shown)
}

/// `templates/x.yaml` of `chart/templates/x.yaml`.
fn path_in_chart(document: &Document) -> &str {
    document.source.split_once('/').map_or(document.source.as_str(), |(_, path)| path)
}

/// As `helm template` prints it: the files in `crds/` whole, blanks at the ends of the release's own text trimmed, hooks
/// behind it.
fn text(documents: &[Document], only: bool) -> String {
    let length: usize = documents.iter().map(|document| document.source.len() + document.text.len() + 20).sum();
    let mut text = String::with_capacity(length);
    let add = |text: &mut String, document: &Document| {
        for part in ["---\n# Source: ", &document.source, "\n", &document.text, "\n"] {
            text.push_str(part);
        }
    };
    documents.iter().filter(|document| document.hook.is_none()).for_each(|document| add(&mut text, document));
    if !only {
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    documents.iter().filter(|document| document.hook.is_some()).for_each(|document| add(&mut text, document));
    text
}
