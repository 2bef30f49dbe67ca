//! Our Go templates against Helm's own engine, on charts and on generated templates.
//!
//! `DIFFERENTIAL_CASES` says how many templates are generated, `DIFFERENTIAL_SEED` from which seed. Each is rendered like
//! Helm 3 and like Helm 4. Where a template
//! renders otherwise than with Helm, it is shrunk and shown; it becomes a row of a table test in the engine.

#![allow(clippy::unwrap_used, clippy::format_push_string, reason = "a test")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use bytes::Bytes;
use clusterstack::core::chart::{
    Capabilities, Chart, Charts, Engine, GoTemplate, HelmVersion, KubeVersion, Release, RenderError, RenderInput,
    Texts, render_with,
};
use clusterstack::core::files::FileTree;
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::json;

mod generate;
mod grammar;
mod oracle;

use oracle::{Answer, Oracle};

/// Enough to find what broke, few enough for half a minute.
const CASES: usize = 1500;

/// Differences shown at once.
const SHOWN: usize = 30;

fn say(text: &str) {
    _ = std::io::Write::write_all(&mut std::io::stderr(), format!("differential: {text}\n").as_bytes());
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn oracle(helm: HelmVersion) -> Option<Oracle> {
    match Oracle::find(helm) {
        Ok(oracle) => Some(oracle),
        Err(why) => {
            say(&format!("SKIPPED, compares nothing with Helm: {why}"));
            None
        }
    }
}

/// Keeps the texts of the files as they are before they are taken apart into documents.
#[derive(Default)]
struct Capture(Mutex<BTreeMap<String, String>>);

impl Engine for Capture {
    fn handles(&self, template: &str) -> bool {
        GoTemplate.handles(template)
    }

    fn render(&self, charts: &Charts<'_>, input: &RenderInput<'_>) -> Result<Texts, RenderError> {
        *self.0.lock().unwrap() = GoTemplate.render(charts, input)?.files;
        Ok(Texts::default())
    }
}

fn texts(chart: &Chart, values: &str, helm: HelmVersion) -> Result<BTreeMap<String, String>, String> {
    let capabilities = Capabilities { kube_version: KubeVersion::parse("v1.34.2")?, ..Capabilities::of(helm) };
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let mut input = RenderInput::new(Release::new("demo", "demo-ns"), &capabilities, now);
    input.include_crds = false;
    input.helm = helm;
    input.values = clusterstack::core::yaml::parse(values).map_err(|error| error.to_string())?;
    let capture = Capture::default();
    render_with(chart, &input, &[&capture]).map_err(|error| error.to_string())?;
    Ok(capture.0.into_inner().unwrap())
}

fn ours(files: &FileTree, values: &str, helm: HelmVersion) -> Answer {
    match Chart::load(files).map_err(|error| error.to_string()).and_then(|chart| texts(&chart, values, helm)) {
        Ok(texts) => Answer::Texts(texts),
        Err(error) => Answer::Refused(error),
    }
}

/// What differs, if anything does.
fn compare(ours: &Answer, helms: &Answer) -> Option<String> {
    match (ours, helms) {
        (_, Answer::Lost) | (Answer::Refused(_), Answer::Refused(_)) => None,
        (Answer::Texts(ours), Answer::Texts(helms)) => helms.iter().find_map(|(name, helms)| {
            let ours = ours.get(name)?;
            (ours != helms).then(|| format!("{name}\n  ours:   {ours:?}\n  Helm's: {helms:?}"))
        }),
        (Answer::Texts(ours), Answer::Refused(error)) => {
            let text = ours.values().next().cloned().unwrap_or_default();
            Some(format!("only Helm refuses: {error}\n  ours:   {text:?}"))
        }
        (Answer::Refused(error), Answer::Texts(helms)) => {
            let text = helms.values().next().cloned().unwrap_or_default();
            Some(format!("only we refuse: {error}\n  Helm's: {text:?}"))
        }
        (Answer::Lost, _) => None,
    }
}

const CHART: &str =
    "apiVersion: v2\nname: demo\nversion: 1.2.3\nkeywords: [a, b]\nannotations: {x: y}\nmaintainers: [{name: m}]\n";

fn chart_files(template: &str) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("Chart.yaml", CHART.to_owned()),
        ("values.yaml", grammar::VALUES_YAML.to_owned()),
        ("templates/_t.tpl", grammar::HELPERS.to_owned()),
        ("templates/t.txt", template.to_owned()),
        ("a.txt", "one\ntwo: ü\n".to_owned()),
        ("bin", "\u{1}\u{7f}\n".to_owned()),
    ])
}

/// A folder's files by their path in it.
fn read_folder(root: &Path) -> FileTree {
    let mut files = FileTree::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            let data = std::fs::read(&path).unwrap();
            let packed = path.extension().is_some_and(|extension| extension == "tgz");
            if packed && path.parent().is_some_and(|folder| folder.ends_with("charts")) {
                let inner = super::golden::unpack(&data).into_iter();
                files.extend(inner.map(|(inner, data)| (format!("{name}/chart/{inner}"), data)));
            } else {
                files.insert(name, Bytes::from(data));
            }
        }
    }
    files
}

/// The charts that Helm's own tests use, where its module is.
fn charts_of_helm(helm: HelmVersion) -> Vec<PathBuf> {
    let (module, project, folders) = match helm {
        HelmVersion::V3 => (
            "helm.sh/helm/v3",
            "hack/oracle",
            [
                "pkg/chartutil/testdata",
                "pkg/action/testdata/charts",
                "cmd/helm/testdata/testcharts",
                "pkg/lint/rules/testdata",
            ],
        ),
        HelmVersion::V4 => (
            "helm.sh/helm/v4",
            "hack/oracle/four",
            [
                "pkg/chart/v2/util/testdata",
                "pkg/action/testdata/charts",
                "pkg/cmd/testdata/testcharts",
                "pkg/chart/v2/lint/rules/testdata",
            ],
        ),
    };
    let found = Command::new("go")
        .args(["list", "-m", "-f", "{{.Dir}}", module])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(project))
        .env("GOWORK", "off")
        .output();
    let Ok(found) = found else { return Vec::new() };
    let root = PathBuf::from(String::from_utf8_lossy(&found.stdout).trim());
    let mut charts = Vec::new();
    for folder in folders {
        for entry in std::fs::read_dir(root.join(folder)).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.join("Chart.yaml").is_file() {
                charts.push(path);
            }
        }
    }
    charts.sort();
    charts
}

#[test]
fn charts_render_to_the_texts_that_helm_3_renders() {
    compare_charts(HelmVersion::V3);
}

#[test]
fn charts_render_to_the_texts_that_helm_4_renders() {
    compare_charts(HelmVersion::V4);
}

fn compare_charts(helm: HelmVersion) {
    let Some(mut oracle) = oracle(helm) else { return };
    let mut charts = charts_of_helm(helm);
    if let Some(shared) = super::golden::shared() {
        for entry in std::fs::read_dir(shared).unwrap() {
            let folder = entry.unwrap().path();
            // Charts with random parts are compared, but for these, by tests/golden.rs.
            if !folder.join("default.random").is_file() {
                charts.push(folder.join("chart.tgz"));
            }
        }
    }
    let only = std::env::var("DIFFERENTIAL_CHARTS").unwrap_or_default();
    let (mut compared, mut report) = (0, String::new());
    for path in charts.iter().filter(|path| path.to_string_lossy().contains(&only)) {
        let chart = if path.is_dir() {
            Chart::load_directory(&read_folder(path))
        } else {
            Chart::load(&super::golden::unpack(&std::fs::read(path).unwrap()))
        };
        let ours = match chart.map_err(|error| error.to_string()).and_then(|chart| texts(&chart, "{}", helm)) {
            Ok(texts) => Answer::Texts(texts),
            Err(error) => Answer::Refused(error),
        };
        let helms = oracle.render(&json!({ "chart": path }));
        compared += 1;
        // What Helm renders otherwise each time is random.
        if let Some(what) = compare(&ours, &helms)
            && oracle.render(&json!({ "chart": path })) == helms
        {
            report.push_str(&format!("== {}\n{what}\n", path.display()));
        }
    }
    say(&format!("{compared} charts compared, {helm:?}"));
    assert!(report.is_empty(), "{report}");
}

/// Schemas, one in a line, and values for each: what Helm's validator takes and refuses in each draft.
const SCHEMAS: &str = include_str!("differential/schemas.jsonl");

const DRAFTS: [&str; 7] = [
    "",
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-07/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
    "http://json-schema.org/schema#",
];

#[test]
fn schemas_take_and_refuse_what_helm_takes_and_refuses() {
    let Some(mut oracle) = oracle(HelmVersion::V3) else { return };
    let (mut compared, mut report) = (0, String::new());
    for (draft, line) in DRAFTS.iter().flat_map(|draft| SCHEMAS.lines().map(move |line| (draft, line))) {
        let mut parts = serde_json::Deserializer::from_str(line).into_iter::<serde_json::Value>().map(Result::unwrap);
        let (schema, values) = (parts.next().unwrap(), parts.next().unwrap());
        let string = json!({"x": {"type": "string"}});
        let mut whole = json!({"properties": {"v": schema}, "definitions": string, "$defs": string});
        if !draft.is_empty() {
            whole["$schema"] = (*draft).into();
        }
        for value in values.as_array().unwrap() {
            let mut files = chart_files("x");
            files.insert("values.schema.json", whole.to_string());
            files.insert("values.yaml", json!({"v": value}).to_string());
            let helms = oracle.render(&json!({ "files": files }));
            let files = files.into_iter().map(|(name, text)| (name.to_owned(), Bytes::from(text))).collect();
            compared += 1;
            if let Some(what) = compare(&ours(&files, "{}", HelmVersion::V3), &helms) {
                report.push_str(&format!("== {draft} {schema} {value}\n{what}\n"));
            }
        }
    }
    say(&format!("{compared} values held against schemas"));
    assert!(report.is_empty(), "{report}");
}

fn difference(oracle: &mut Oracle, template: &str, helm: HelmVersion) -> Option<String> {
    let files = chart_files(template);
    let helms = oracle.render(&json!({ "files": files }));
    let files = files.into_iter().map(|(name, text)| (name.to_owned(), Bytes::from(text))).collect();
    compare(&ours(&files, "{}", helm), &helms)
}

#[test]
fn every_function_of_helm_is_ours() {
    for helm in [HelmVersion::V3, HelmVersion::V4] {
        let Some(mut oracle) = oracle(helm) else { return };
        let mut helms = oracle.functions();
        helms.dedup();
        let states = clusterstack::core::chart::function_states();
        let missing: Vec<_> = helms.iter().filter(|name| !states.iter().any(|row| row.name == **name)).collect();
        assert!(missing.is_empty(), "not in docs/helm-functions.md: {missing:?}");
        assert_eq!(clusterstack::core::chart::function_names(helm), helms, "{helm:?}");
    }
}

#[test]
fn generated_templates_render_as_helm_3_renders_them() {
    compare_generated(HelmVersion::V3);
}

#[test]
fn generated_templates_render_as_helm_4_renders_them() {
    compare_generated(HelmVersion::V4);
}

fn compare_generated(helm: HelmVersion) {
    let Some(mut oracle) = oracle(helm) else { return };
    if let Ok(template) = std::env::var("DIFFERENTIAL_TEMPLATE") {
        let files = chart_files(&template);
        say(&format!("Helm's: {:?}", oracle.render(&json!({ "files": files }))));
        let files = files.into_iter().map(|(name, text)| (name.to_owned(), Bytes::from(text))).collect();
        say(&format!("ours:   {:?}", ours(&files, "{}", helm)));
        return;
    }
    if let Ok(path) = std::env::var("DIFFERENTIAL_TEMPLATES") {
        let templates = std::fs::read_to_string(path).unwrap();
        let differ = templates
            .lines()
            .filter_map(|template| Some(format!("{template}\n  {}\n", difference(&mut oracle, template, helm)?)));
        let report: String = differ.collect();
        assert!(report.is_empty(), "{helm:?}:\n{report}");
        return;
    }
    let (cases, seed) = (number("DIFFERENTIAL_CASES", CASES), number("DIFFERENTIAL_SEED", 0));
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&(seed as u64).to_le_bytes());
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let tapes = proptest::collection::vec(proptest::num::u16::ANY, 1..40);
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for _ in 0..cases {
        let mut tape = tapes.new_tree(&mut runner).unwrap();
        let Some(mut what) = difference(&mut oracle, &generate::template(&tape.current()), helm) else { continue };
        let mut smallest = generate::template(&tape.current());
        let mut more = tape.simplify();
        for _ in 0..400 {
            if !more {
                break;
            }
            let template = generate::template(&tape.current());
            more = match difference(&mut oracle, &template, helm) {
                Some(still) => {
                    (what, smallest) = (still, template);
                    tape.simplify()
                }
                None => tape.complicate(),
            };
        }
        found.insert(smallest, what);
        if found.len() >= SHOWN {
            break;
        }
    }
    say(&format!("{cases} generated templates, {helm:?}, seed {seed}, {} differ", found.len()));
    let report: String = found.iter().map(|(template, what)| format!("{template}\n  {what}\n")).collect();
    assert!(found.is_empty(), "seed {seed}:\n{report}");
}
