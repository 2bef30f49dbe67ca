//! Tera as an engine of charts: the templates named `*.tera`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{TeraContext, TeraError, TeraErrorKind, TeraLimits, TeraLookup, TeraTemplates};
use crate::core::chart::engine::{Charts, Engine, Scope, Texts};
use crate::core::chart::{Location, Lookup, RenderError, RenderInput, TemplateError};

/// Renders the templates of a chart that are named `*.tera`, each chart of a tree for itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tera;

impl Engine for Tera {
    fn handles(&self, template: &str) -> bool {
        template.ends_with(".tera")
    }

    fn render(&self, charts: &Charts<'_>, input: &RenderInput<'_>) -> Result<Texts, RenderError> {
        let lookups: BTreeMap<TeraLookup, Value> =
            input.lookups.iter().map(|(lookup, answer)| (to_tera(lookup), answer.clone())).collect();
        let limits = TeraLimits { output: input.limits.output, steps: input.limits.steps, stop: input.stop.clone() };
        let mut texts = Texts::default();
        for scope in charts.scopes(self).iter().filter(|scope| !scope.templates.is_empty()) {
            let sources = sources(scope)?;
            let parsed = TeraTemplates::parse(sources.iter().map(|(path, text)| (path.as_str(), *text)))
                .map_err(|error| failure(error, &sources))?;
            let context = context(scope, input);
            let rendered = parsed.render_with(&context, &lookups, &limits).map_err(|error| failure(error, &sources))?;
            texts.files.extend(rendered.files);
            texts.missing_lookups.extend(rendered.missing_lookups.iter().map(from_tera));
        }
        Ok(texts)
    }
}

fn sources<'a>(scope: &'a Scope<'_>) -> Result<Vec<(String, &'a str)>, RenderError> {
    let text = |path: &String, data: &'a [u8]| {
        let text = std::str::from_utf8(data);
        text.map_err(|error| RenderError::Manifest { path: path.clone(), message: format!("it is no UTF-8: {error}") })
    };
    scope.templates.iter().map(|(path, data)| Ok((path.clone(), text(path, data)?))).collect()
}

fn context(scope: &Scope<'_>, input: &RenderInput<'_>) -> TeraContext {
    let metadata = &scope.chart.metadata;
    let extra = |name: &str| input.extra.get(name).cloned().unwrap_or(Value::Null);
    let files =
        scope.chart.files.iter().filter_map(|(path, data)| {
            Some((path.to_string(), Value::String(std::str::from_utf8(data).ok()?.to_owned())))
        });
    TeraContext {
        values: scope.values.clone(),
        release: json!({
            "name": input.release.name,
            "namespace": input.release.namespace,
            "service": "Helm",
            "revision": input.release.revision,
            "is_install": !input.release.is_upgrade,
            "is_upgrade": input.release.is_upgrade,
        }),
        chart: json!({
            "name": metadata.name,
            "version": metadata.version,
            "apiVersion": metadata.api_version,
            "appVersion": metadata.app_version,
            "description": metadata.description,
            "annotations": metadata.annotations.iter().cloned().collect::<BTreeMap<_, _>>(),
        }),
        capabilities: json!({
            "kube_version": {
                "version": input.capabilities.kube_version.version,
                "major": input.capabilities.kube_version.major,
                "minor": input.capabilities.kube_version.minor,
            },
            "api_versions": input.capabilities.api_versions,
        }),
        files: Value::Object(files.collect()),
        cluster: extra("Cluster"),
        control_plane: extra("ControlPlane"),
        infra_cluster: extra("InfraCluster"),
    }
}

fn failure(error: TeraError, sources: &[(String, &str)]) -> RenderError {
    let source = sources.iter().find(|(path, _)| *path == error.file).map_or("", |(_, text)| text);
    let text = source.lines().nth(error.line.saturating_sub(1)).unwrap_or_default().to_owned();
    let failure = Box::new(TemplateError {
        message: error.message,
        location: Location {
            template: error.file.clone(),
            file: error.file,
            line: error.line,
            column: error.column,
            text,
        },
        included_from: Vec::new(),
        missing_lookups: error.missing_lookups.iter().map(from_tera).collect::<BTreeSet<_>>(),
    });
    match error.kind {
        TeraErrorKind::Parse => RenderError::Parse(failure),
        TeraErrorKind::Render | TeraErrorKind::Limit => RenderError::Template(failure),
    }
}

fn to_tera(lookup: &Lookup) -> TeraLookup {
    TeraLookup {
        api_version: lookup.api_version.clone(),
        kind: lookup.kind.clone(),
        namespace: lookup.namespace.clone(),
        name: lookup.name.clone(),
    }
}

fn from_tera(lookup: &TeraLookup) -> Lookup {
    Lookup {
        api_version: lookup.api_version.clone(),
        kind: lookup.kind.clone(),
        namespace: lookup.namespace.clone(),
        name: lookup.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use jiff::Timestamp;

    use super::*;
    use crate::core::chart::{Capabilities, Chart, GoTemplate, Release, render_with};
    use crate::core::files::FileTree;

    fn render(template: &str) -> Result<Vec<String>, RenderError> {
        let files: FileTree = [
            ("Chart.yaml", "apiVersion: v2\nname: both\nversion: v1\n"),
            ("values.yaml", "color: blue\n"),
            ("templates/go.yaml", "kind: Go\nname: {{ .Values.color }}\n"),
            ("templates/tera.yaml.tera", template),
        ]
        .into_iter()
        .map(|(path, text)| (path.to_owned(), Bytes::from(text.to_owned())))
        .collect();
        let capabilities = Capabilities::default();
        let input = RenderInput::new(Release::new("demo", "shop"), &capabilities, Timestamp::UNIX_EPOCH);
        let rendered = render_with(&Chart::load(&files).unwrap(), &input, &[&GoTemplate, &Tera])?;
        Ok(rendered.documents.into_iter().map(|document| document.object.to_string()).collect())
    }

    #[test]
    fn one_chart_may_hold_templates_of_both_kinds() {
        let documents =
            render("kind: Tera\nname: {{ values.color }}-{{ release.name }}-{{ chart.version }}\n").unwrap();
        assert_eq!(documents, [r#"{"kind":"Go","name":"blue"}"#, r#"{"kind":"Tera","name":"blue-demo-v1"}"#]);
    }

    #[test]
    fn an_undefined_value_is_an_error_with_its_place() {
        let error = render("kind: Tera\nname: {{ values.colour }}\n").unwrap_err().to_string();
        assert!(error.contains("both/templates/tera.yaml.tera:2:") && error.contains("values.colour"), "{error}");
    }
}
