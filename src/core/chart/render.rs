//! From a chart and its input to documents.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

use super::dependencies::{Node, coalesce_at, missing, process_enabled, process_imports};
use super::engine::{Charts, Engine, GoTemplate, Texts};
use super::error::{RenderError, TemplateError, Told};
use super::go_template::eval::{Definitions, Eval, define, locate};
use super::go_template::json::{from_json, from_json_with_int64, to_json};
use super::go_template::memo::Memo;
use super::go_template::parse::parse;
use super::go_template::value::Value;
use super::load::{Chart, NO_TEXT};
use super::manifests::{self, Document};
use super::misfit::{Misfits, Place};
use super::schema;
use super::scope::Tree;
use super::tera::Tera;
use super::values::{Merging, new_map};
use super::version::is_compatible;
use super::{Needs, RenderInput, Rendered, Schemas, Secrets, WholeNumbers};

/// What the file with a chart's notes is called.
const NOTES: &str = "NOTES.txt";

/// Renders a chart: Go templates as `helm template` does, and Tera's.
///
/// # Errors
/// What Helm refuses, and what exceeds the input's limits.
pub fn render(chart: &Chart, input: &RenderInput<'_>) -> Result<Rendered, RenderError> {
    render_with(chart, input, &[&GoTemplate, &Tera])
}

/// Renders a chart with several engines, each of which takes its own templates.
///
/// # Errors
/// As [`render`], and what the engines refuse.
pub fn render_with(chart: &Chart, input: &RenderInput<'_>, engines: &[&dyn Engine]) -> Result<Rendered, RenderError> {
    let mut secrets = looked_up(input);
    let tree = prepared(chart, input).map_err(|error| error.hiding(&secrets))?;
    let mut crds = Vec::new();
    if input.include_crds {
        collect_crds(&tree.root, input.crds_as_text, &mut crds)?;
    }
    let texts = texts(&Charts { tree: &tree }, input, engines).map_err(|error| error.hiding(&secrets))?;
    let Texts { mut files, not_text, missing_lookups, answered_lookups, drawn, asked_time, secrets: mut more } = texts;
    secrets.append(&mut more);
    let notes_path = format!("{}/templates/{NOTES}", chart.name());
    let notes = files.remove(&notes_path);
    files.retain(|path, _| !path.ends_with(NOTES));
    let refused = |path: String, message: String| {
        let lacks = Needs { lookups: missing_lookups.clone(), ..Needs::default() };
        RenderError::Manifest { path, message, lacks }.hiding(&secrets)
    };
    // Notes are printed; all else is read as YAML, which is text.
    if let Some((path, line)) = not_text.into_iter().find(|(path, _)| files.contains_key(path)) {
        return Err(refused(path, format!("line {line} is no text: it is not in UTF-8")));
    }
    let mut documents = crds;
    let sorted = manifests::sorted(&files, input.include_comments).map_err(|error| match error {
        RenderError::Manifest { path, message, .. } => refused(path, message),
        other => other,
    });
    let (mut sorted, left_out) = sorted?;
    documents.append(&mut sorted);
    for document in &documents {
        secrets.add_object(&document.object);
    }
    let misfits = tree.misfits.clone();
    Ok(Rendered { documents, left_out, misfits, notes, missing_lookups, answered_lookups, drawn, asked_time, secrets })
}

/// What the templates of a chart render to, before any of it is read as YAML: what Helm's engine gives.
///
/// # Errors
/// As [`render`], but for what is no YAML.
pub fn render_texts(chart: &Chart, input: &RenderInput<'_>) -> Result<Texts, RenderError> {
    let tree = prepared(chart, input)?;
    texts(&Charts { tree: &tree }, input, &[&GoTemplate, &Tera])
}

fn texts(charts: &Charts<'_>, input: &RenderInput<'_>, engines: &[&dyn Engine]) -> Result<Texts, RenderError> {
    let mut all = Texts::default();
    for engine in engines {
        let mut texts = engine.render(charts, input)?;
        all.files.append(&mut texts.files);
        all.not_text.append(&mut texts.not_text);
        all.missing_lookups.append(&mut texts.missing_lookups);
        all.drawn.append(&mut texts.drawn);
        all.answered_lookups.append(&mut texts.answered_lookups);
        all.asked_time |= texts.asked_time;
        all.secrets.append(&mut texts.secrets);
    }
    Ok(all)
}

/// What the Secrets hold that were looked up.
fn looked_up(input: &RenderInput<'_>) -> Secrets {
    let mut secrets = Secrets::default();
    for (_, answer) in input.lookups.iter().filter(|(lookup, _)| lookup.kind == "Secret") {
        let items = answer.get("items").and_then(Json::as_array).map_or(std::slice::from_ref(answer), Vec::as_slice);
        for value in items.iter().filter_map(|item| item.get("data")?.as_object()).flat_map(|data| data.values()) {
            let Some(encoded) = value.as_str() else { continue };
            secrets.add(encoded);
            if let Some(text) = STANDARD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok()) {
                secrets.add(&text);
            }
        }
    }
    secrets
}

/// Refuses what can't be installed, and merges values.
fn prepared<'c>(chart: &'c Chart, input: &RenderInput<'_>) -> Result<Tree<'c>, RenderError> {
    if !matches!(chart.metadata.kind.as_str(), "" | "application") {
        return Err(RenderError::NotInstallable(chart.metadata.kind.clone()));
    }
    let missing = missing(chart);
    if !missing.is_empty() {
        return Err(RenderError::MissingDependencies(missing));
    }
    let tree = resolve(chart, input)?;
    let wanted = &chart.metadata.kube_version;
    let found = &input.capabilities.kube_version;
    if !wanted.is_empty() && !is_compatible(wanted, &found.normalized()) {
        return Err(RenderError::KubeVersion { wanted: wanted.clone(), found: found.version.clone() });
    }
    Ok(tree)
}

/// Enables subcharts, merges values and checks them.
fn resolve<'a>(chart: &'a Chart, input: &RenderInput<'_>) -> Result<Tree<'a>, RenderError> {
    let given = || match &input.values {
        Json::Null => Ok(new_map()),
        json @ Json::Object(_) => {
            let values = match input.whole_numbers {
                WholeNumbers::Float64 => from_json(json),
                WholeNumbers::Int64 => from_json_with_int64(json),
            };
            Ok(values.as_map().cloned().unwrap_or_else(new_map))
        }
        other => {
            let kind = super::metadata::json_type(other);
            Err(RenderError::Values(Told::bare(format!("values are no map but {kind}"))))
        }
    };
    let root = Node::new(chart, input.helm)?;
    let mut misfits = Misfits::new();
    process_enabled(&root, &given()?, "", input.helm, &mut misfits)?;
    process_imports(&root, Place::ROOT, input.helm, &mut misfits)?;
    let values = given()?;
    // What does not fit is put down here, and not where the same values were merged before to look at them.
    coalesce_at(&root, &values, Merging { merge: false, helm: input.helm }, Place::ROOT, &mut misfits)?;
    let tree = Tree { root, values, misfits };
    if input.schemas == Schemas::Checked {
        schema::validate(&tree)?;
    }
    Ok(tree)
}

/// The files in `crds/`, of the chart and then of its subcharts.
fn collect_crds(node: &Node<'_>, as_text: bool, documents: &mut Vec<Document>) -> Result<(), RenderError> {
    let path = node.path();
    for (name, data) in node.chart.files.iter() {
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        let manifest = ["yaml", "yml", "json"].iter().any(|known| extension.eq_ignore_ascii_case(known));
        if name.starts_with("crds/") && manifest {
            let source = format!("{path}/{name}");
            let Ok(text) = std::str::from_utf8(data) else {
                let (path, message, lacks) = (source, NO_TEXT.to_owned(), Needs::default());
                return Err(RenderError::Manifest { path, message, lacks });
            };
            if as_text {
                documents.push(manifests::unread_crds(source, text.to_owned()));
            } else {
                manifests::crds(&source, text, documents)?;
            }
        }
    }
    for child in node.children() {
        collect_crds(&child, as_text, documents)?;
    }
    Ok(())
}

/// Renders one template text with `root` as its data: what a stack's `cluster-addon-values.yaml` is.
///
/// # Errors
/// Syntax errors, failures of the template, exceeded limits.
pub fn render_text(name: &str, template: &str, root: &Json, input: &RenderInput<'_>) -> Result<String, RenderError> {
    let parsed = parse(template).and_then(|parsed| parsed.check(input.helm).map(|()| parsed)).map_err(|error| {
        RenderError::Parse(Box::new(TemplateError {
            message: error.message,
            location: locate(template, error.pos, name, name),
            included_from: Vec::new(),
            lacks: Needs::default(),
            quotes: false,
        }))
    })?;
    let name: Arc<str> = name.into();
    let mut definitions = Definitions::new();
    define(&mut definitions, &name, &parsed);
    let data = from_json(root).unwrap_interface();
    let memo = Memo::default();
    let text = Eval::new(input, &memo, definitions).render(&name, &data).map_err(RenderError::Template);
    // What the template linked into the data may hold cycles.
    if let Some(map) = data.as_map() {
        map.clear();
    }
    text
}

/// The merged values of a chart as its templates see them, for those who want to look at them.
///
/// # Errors
/// Values that don't fit.
pub fn merged_values(chart: &Chart, input: &RenderInput<'_>) -> Result<Json, RenderError> {
    let tree = resolve(chart, input)?;
    Ok(to_json(&Value::Map(tree.values)).unwrap_or(Json::Null))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Capabilities, Release, Seed};
    use super::*;

    fn rendered(values: &str, whole_numbers: WholeNumbers, given: Json, template: &str) -> String {
        let files = [
            ("Chart.yaml", "apiVersion: v2\nname: one\nversion: 1.0.0\n"),
            ("values.yaml", values),
            ("templates/a.yaml", template),
        ];
        let chart = Chart::load(&files.map(|(path, text)| (path.to_owned(), text.to_owned().into())).into()).unwrap();
        let capabilities = Capabilities::default();
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let input = RenderInput {
            values: given,
            whole_numbers,
            ..RenderInput::new(Release::new("r", "n"), &capabilities, now)
        };
        render(&chart, &input).unwrap().documents[0].object["a"].as_str().unwrap_or_default().to_owned()
    }

    #[test]
    fn values_of_a_chart_are_merged_as_the_map_that_they_are() {
        for (template, expected) in [
            (
                r#"{{ $d := mergeOverwrite (deepCopy .) (dict "Values" (dict "x" (dict "s" 9))) }}{{ $d.Values.x.s }} {{ .Values.x.s }} {{ $d.Values.x.w.z }}"#,
                "9 2 1",
            ),
            (
                r#"{{ $d := merge (dict "Values" (dict "k" 1)) . }}{{ $d.Values | toJson }}"#,
                r#"{"k":1,"x":{"s":2,"w":{"z":1}}}"#,
            ),
            (
                r#"{{ $d := mergeOverwrite (dict "v" .Values) (dict "v" dict) }}{{ typeOf $d.v }} {{ $d.v.x.s }}"#,
                "chartutil.Values 2",
            ),
            (r#"{{ $d := merge (dict "v" dict) (dict "v" .Values) }}{{ typeOf $d.v }}"#, "map[string]interface {}"),
        ] {
            let template =
                format!("a: {{{{ $r := tpl {} . }}}}{{{{ $r | quote }}}}", serde_json::to_string(template).unwrap());
            assert_eq!(
                rendered("x: {w: {z: 1}, s: 2}\n", WholeNumbers::Float64, json!({}), &template),
                expected,
                "{template}"
            );
        }
    }

    #[test]
    fn numbers_where_chart_yaml_wants_texts_are_written_as_in_go() {
        for (written, expected) in [
            ("1.29", "1.29"),
            ("20240101", "20240101"),
            ("20240101.0", "2.02401e+07"),
            ("1e6", "1e+06"),
            ("1000000.0", "1e+06"),
            ("1234567e1", "1.234567e+07"),
            ("1.23456789", "1.2345679"),
            ("20240101.5", "2.0240102e+07"),
            ("true", "true"),
            ("'1e6'", "1e6"),
        ] {
            let files = [
                ("Chart.yaml", format!("apiVersion: v2\nname: one\nversion: 1.0.0\nappVersion: {written}\n")),
                ("templates/a.yaml", "a: {{ .Chart.AppVersion | quote }}\n".to_owned()),
            ];
            let chart = Chart::load(&files.map(|(path, text)| (path.to_owned(), text.into())).into()).unwrap();
            let capabilities = Capabilities::default();
            let input =
                RenderInput::new(Release::new("r", "n"), &capabilities, "2026-01-01T00:00:00Z".parse().unwrap());
            assert_eq!(render(&chart, &input).unwrap().documents[0].object, json!({"a": expected}), "{written}");
        }
    }

    #[test]
    fn what_helm_embeds_has_a_name_and_capabilities_can_be_copied() {
        let template =
            "a: {{ .Chart.Metadata.Name }} {{ typeOf .Chart.Metadata }} {{ .Capabilities.Copy.KubeVersion.Major }}";
        assert_eq!(rendered("", WholeNumbers::Float64, json!({}), template), "one chart.Metadata 1");
    }

    #[test]
    fn whole_numbers_of_assignments_are_integers() {
        let template = r#"a: "{{ typeOf .Values.q }} {{ .Values.q }} {{ .Values.l }} {{ typeOf .Values.f }} {{ typeOf .Values.own }}""#;
        let given = || json!({"q": 12_345_678, "l": [10_000_000, 2.0], "f": 3.0});
        let [set, yaml] =
            [WholeNumbers::Int64, WholeNumbers::Float64].map(|whole| rendered("own: 5\n", whole, given(), template));
        assert_eq!(set, "int64 12345678 [10000000 2] float64 float64");
        assert_eq!(yaml, "float64 1.2345678e+07 [1e+07 2] float64 float64");
    }

    #[test]
    fn a_rendering_leaves_nothing_that_the_next_one_could_see() {
        let template = r#"{{- $_ := set .Values "count" (add1 .Values.count) -}}
{{- $_ := set .Values.deep "m" (tpl "{{ add1 .Values.deep.m }}" .) -}}
sum: {{ .Values.count }}{{ .Values.deep.m }}{{ regexMatch "^a+$" "aa" }}
cert: {{ (genCA "name" 1).Cert | quote }}
"#;
        let files = [
            ("Chart.yaml", "apiVersion: v2\nname: twice\nversion: 1.0.0\n"),
            ("values.yaml", "count: 1\ndeep: {m: 1}\n"),
            ("templates/a.yaml", template),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.into())).into();
        let chart = Chart::load(&files).unwrap();
        let capabilities = Capabilities::default();
        let input = |now: &str| RenderInput {
            seed: Some(Seed([1; 32])),
            ..RenderInput::new(Release::new("r", "n"), &capabilities, now.parse().unwrap())
        };
        let first = render(&chart, &input("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(first.documents[0].object["sum"], "22true");
        assert_eq!(render(&chart, &input("2026-01-01T00:00:00Z")).unwrap(), first);
        // A certificate says from when on it is valid: one made at another time is another one.
        assert_ne!(render(&chart, &input("2026-01-02T00:00:00Z")).unwrap(), first);
    }
}
