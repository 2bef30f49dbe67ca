//! Tera as one of the engines that charts are rendered with.

use serde_json::{Map, Value, json};

use super::TeraContext;
use crate::core::chart::engine::{Charts, Engine, Scope, Texts};
use crate::core::chart::error::RenderError;
use crate::core::chart::{Chart, Metadata, RenderInput};

/// What Tera templates are called: `templates/x.yaml.tera`.
const SUFFIX: &str = ".tera";

/// The Tera engine: it takes the templates whose name ends with `.tera`.
///
/// Each chart's templates see the partial ones of their own chart only, by their path in it: `templates/_x.tera`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tera;

impl Engine for Tera {
    fn handles(&self, template: &str) -> bool {
        template.ends_with(SUFFIX)
    }

    fn render(&self, charts: &Charts<'_>, input: &RenderInput<'_>) -> Result<Texts, RenderError> {
        let mut all = Texts::default();
        if !uses_tera(charts.tree.root.chart) {
            return Ok(all);
        }
        for scope in charts.scopes(self) {
            let (Some(templates), false) = (&scope.chart.tera, is_library(&scope.chart.metadata)) else { continue };
            let in_chart = |error: super::TeraError| error.in_chart(&scope.path);
            let templates = Result::as_ref(templates).map_err(|error| in_chart(error.clone()))?;
            let context = context(&scope, input);
            let rendered = templates.render_with(&context, input.lookups, &input.limits, input.stop.as_ref());
            let mut texts = rendered.map_err(in_chart)?;
            all.missing_lookups.append(&mut texts.missing_lookups);
            all.answered_lookups.append(&mut texts.answered_lookups);
            for (name, text) in texts.files {
                // Notes are known by their name.
                let name = if name.ends_with("/NOTES.txt.tera") { name.trim_end_matches(SUFFIX) } else { &name };
                all.files.insert(format!("{}/{name}", scope.path), text);
            }
        }
        Ok(all)
    }
}

fn uses_tera(chart: &Chart) -> bool {
    chart.tera.is_some() || chart.dependencies.iter().any(|chart| uses_tera(chart))
}

fn is_library(metadata: &Metadata) -> bool {
    metadata.kind.eq_ignore_ascii_case("library")
}

fn context(scope: &Scope<'_>, input: &RenderInput<'_>) -> TeraContext {
    let release = &input.release;
    let kube = &input.capabilities.kube_version;
    let extra = |name: &str| input.extra.get(name).cloned().unwrap_or_default();
    TeraContext {
        values: scope.values.clone(),
        release: json!({
            "name": release.name,
            "namespace": release.namespace,
            "service": "Helm",
            "revision": release.revision,
            "is_install": !release.is_upgrade,
            "is_upgrade": release.is_upgrade,
        }),
        chart: chart(&scope.name, &scope.chart.metadata),
        capabilities: json!({
            "kube_version": {"version": kube.version, "major": kube.major, "minor": kube.minor},
            "api_versions": input.capabilities.api_versions,
            "helm_version": input.capabilities.helm_version,
        }),
        files: scope.chart.files.as_ref().clone(),
        cluster: extra("Cluster"),
        control_plane: extra("ControlPlane"),
        infra_cluster: extra("InfraCluster"),
    }
}

/// `Chart.yaml`; fields that are empty aren't there.
fn chart(name: &str, metadata: &Metadata) -> Value {
    let annotations: Map<String, Value> =
        metadata.annotations.iter().map(|(key, value)| (key.clone(), value.as_str().into())).collect();
    let fields = [
        ("name", Value::from(name)),
        ("version", metadata.version.as_str().into()),
        ("appVersion", metadata.app_version.as_str().into()),
        ("apiVersion", metadata.api_version.as_str().into()),
        ("description", metadata.description.as_str().into()),
        ("home", metadata.home.as_str().into()),
        ("icon", metadata.icon.as_str().into()),
        ("kubeVersion", metadata.kube_version.as_str().into()),
        ("type", metadata.kind.as_str().into()),
        ("keywords", metadata.keywords.clone().into()),
        ("sources", metadata.sources.clone().into()),
        ("annotations", annotations.into()),
    ];
    fields.into_iter().filter(|(_, value)| *value != json!("")).map(|(key, value)| (key.to_owned(), value)).collect()
}
