//! What can go wrong with a chart.

use std::fmt;

use thiserror::Error;

use super::{Needs, Secrets};

/// A chart that can't be loaded.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ChartError {
    /// There is no `Chart.yaml`.
    #[error("Chart.yaml file is missing")]
    NoMetadata,
    /// A file can't be read as what it should be.
    #[error("cannot load {file}: {message}")]
    File {
        /// The file's path in its chart.
        file: String,
        /// Why not.
        message: String,
    },
    /// `Chart.yaml` says something that Helm refuses.
    #[error("validation: {0}")]
    Metadata(String),
    /// A chart below `charts/` can't be loaded.
    #[error("error unpacking subchart {name} in {parent}: {source}")]
    Subchart {
        /// Its folder below `charts/`.
        name: String,
        /// The chart it belongs to.
        parent: String,
        /// What is wrong with it.
        source: Box<ChartError>,
    },
    /// Charts are nested too deeply.
    #[error("charts are nested more than {0} deep")]
    TooDeep(usize),
}

/// A chart that can't be rendered with the given input.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RenderError {
    /// A template doesn't parse.
    #[error("parse error at {0}")]
    Parse(Box<TemplateError>),
    /// A template fails.
    #[error("{0}")]
    Template(Box<TemplateError>),
    /// The chart says that it can't be installed.
    #[error("{0} charts are not installable")]
    NotInstallable(String),
    /// Charts that `Chart.yaml` names are not below `charts/`.
    #[error("found in Chart.yaml, but missing in charts/ directory: {}", .0.join(", "))]
    MissingDependencies(Vec<String>),
    /// The chart wants another Kubernetes.
    #[error("chart requires kubeVersion: {wanted} which is incompatible with Kubernetes {found}")]
    KubeVersion {
        /// The chart's constraint.
        wanted: String,
        /// The version there is.
        found: String,
    },
    /// The values can't be merged.
    #[error("{0}")]
    Values(Told),
    /// The values are not what `values.schema.json` wants.
    #[error("values don't meet the specifications of the schema(s) in the following chart(s):\n{0}")]
    Schema(Told),
    /// A rendered document is no YAML, or no Kubernetes object.
    #[error("YAML parse error on {path}: {message}")]
    Manifest {
        /// The template it came from.
        path: String,
        /// What is wrong.
        message: String,
        /// What was asked for in vain: with it the document may be another.
        lacks: Needs,
    },
}

impl RenderError {
    /// With secrets hidden in all that is shown.
    pub(crate) fn hiding(mut self, secrets: &Secrets) -> Self {
        match &mut self {
            Self::Template(error) | Self::Parse(error) => {
                error.message = secrets.hide(&error.message);
                for location in std::iter::once(&mut error.location).chain(&mut error.included_from) {
                    location.text = secrets.hide(&location.text);
                }
            }
            Self::Manifest { message, .. } => *message = secrets.hide(message),
            Self::Values(told) | Self::Schema(told) => told.quoting = secrets.hide(&told.quoting),
            Self::NotInstallable(_) | Self::MissingDependencies(_) | Self::KubeVersion { .. } => {}
        }
        self
    }

    /// Without what may hold values: for where everybody reads it, when the chart handled secrets.
    #[must_use]
    pub fn without_values(mut self) -> Self {
        match &mut self {
            Self::Template(error) | Self::Parse(error) => error.without_values(),
            Self::Manifest { message, .. } => {
                let place = message.split(": ").find(|part| is_place(part));
                let place = place.map_or(String::new(), |place| format!("{place}: "));
                *message = format!("{place}{LEFT_OUT}");
            }
            Self::Values(told) | Self::Schema(told) => told.quoting.clone_from(&told.bare),
            Self::NotInstallable(_) | Self::MissingDependencies(_) | Self::KubeVersion { .. } => {}
        }
        self
    }

    /// Without what may hold values, and with these hidden in what was taken for the chart's own words.
    #[must_use]
    pub fn without(self, secrets: &Secrets) -> Self {
        let mut error = self.without_values();
        if let Self::Template(at) | Self::Parse(at) = &mut error {
            at.message = secrets.hide(&at.message);
        }
        error
    }

    /// What was asked for in vain when the error occurred: with it the chart may render.
    pub fn lacks(&self) -> Needs {
        match self {
            Self::Template(error) => error.lacks.clone(),
            Self::Manifest { lacks, .. } => lacks.clone(),
            _ => Needs::default(),
        }
    }
}

/// Whether it is `line 1, column 2`.
fn is_place(part: &str) -> bool {
    let numbers = part.strip_prefix("line ").and_then(|rest| rest.split_once(", column "));
    numbers.is_some_and(|(line, column)| [line, column].iter().all(|number| number.parse::<usize>().is_ok()))
}

/// What is said of values: as Helm says it, and without anything that they hold but keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    quoting: String,
    bare: String,
}

impl Told {
    pub(super) fn new(quoting: String, bare: String) -> Self {
        Self { quoting, bare }
    }

    /// What holds nothing of the values.
    pub(super) fn bare(text: String) -> Self {
        Self { quoting: text.clone(), bare: text }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.quoting.is_empty()
    }

    pub(super) fn append(&mut self, more: &Self) {
        self.quoting.push_str(&more.quoting);
        self.bare.push_str(&more.bare);
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.quoting)
    }
}

/// A place in a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The file, as `chart/templates/x.yaml`.
    pub file: String,
    /// The template that was executed: the file itself or what `define` named.
    pub template: String,
    /// From 1; 0 if only the file is known.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// The line's text.
    pub text: String,
}

impl Location {
    /// Whether it is in a text that was made while rendering.
    fn is_made(&self) -> bool {
        self.file == MADE
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if self.template != self.file {
            write!(f, " in {:?}", self.template)?;
        }
        Ok(())
    }
}

/// A failure in a template.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub struct TemplateError {
    /// What happened, in Go's words.
    pub message: String,
    /// Where.
    pub location: Location,
    /// The places that included it, innermost first.
    pub included_from: Vec<Location>,
    /// What was asked for in vain up to then.
    pub lacks: Needs,
    /// The message may hold values, and not only what the template says itself.
    pub quotes: bool,
}

impl TemplateError {
    /// Drops what may hold values: they may be made from secrets. Names of files, places and what the chart's own
    /// templates say are left.
    fn without_values(&mut self) {
        let mut own = std::iter::once(&self.location).chain(&self.included_from).filter(|location| !location.is_made());
        let (what, told) = match self.message.split_once(": ") {
            Some((what, told)) if what.starts_with("error calling ") => (what, told),
            _ => ("the template fails", self.message.as_str()),
        };
        if self.quotes && !own.any(|location| location.text.contains(told)) {
            self.message = format!("{what}: {LEFT_OUT}");
        }
        for location in std::iter::once(&mut self.location).chain(&mut self.included_from) {
            if location.is_made() {
                location.text.clear();
                location.template.clone_from(&location.file);
            }
        }
    }
}

/// In place of what may be secret.
pub(super) const LEFT_OUT: &str = "left out, for the chart handles secrets; `clusterstack template` shows it";

/// What a text that was given to `tpl` is called.
pub(crate) const MADE: &str = "the text given to tpl";

/// How much of a line is shown, in characters.
const LINE: usize = 240;

/// What of a line is shown with a place in it, and where the place is then.
fn around(line: &str, place: usize) -> (String, usize) {
    let length = line.chars().count();
    let place = place.min(length);
    let start = place.saturating_sub(LINE / 2).min(length.saturating_sub(LINE));
    (line.chars().skip(start).take(LINE).collect(), place - start)
}

/// How many places of a chain of includes are shown.
const SHOWN: usize = 12;

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.location.line == 0 {
            return write!(f, "{}: {}", self.location, self.message);
        }
        let text = self.location.text.trim_end();
        let indent = text.len() - text.trim_start().len();
        let (text, caret) = around(&text[indent..], self.location.column.saturating_sub(1).saturating_sub(indent));
        write!(f, "{}: {}", self.location, self.message)?;
        if !text.is_empty() {
            write!(f, "\n  | {text}\n  | {:caret$}^", "")?;
        }
        for location in self.included_from.iter().take(SHOWN) {
            write!(f, "\n  included from {location}")?;
        }
        if self.included_from.len() > SHOWN {
            write!(f, "\n  and {} more", self.included_from.len() - SHOWN)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::{Capabilities, Chart, Lookup, Release, RenderInput, Seed, render};

    /// What everybody reads of the error.
    fn shown(files: &[(&str, &str)]) -> String {
        let chart = ("Chart.yaml", "apiVersion: v2\nname: demo\nversion: 1.0.0\n");
        let files = files.iter().chain([&chart]).map(|(path, text)| ((*path).to_owned(), (*text).to_owned().into()));
        let chart = Chart::load(&files.collect()).unwrap();
        let capabilities = Capabilities::default();
        let secret = Lookup {
            api_version: "v1".into(),
            kind: "Secret".into(),
            namespace: "shop".into(),
            name: "credentials".into(),
        };
        // swordfish
        let answers = BTreeMap::from([(secret, serde_json::json!({"data": {"password": "c3dvcmRmaXNo"}}))]);
        let input = RenderInput {
            seed: Some(Seed([7; 32])),
            lookups: &answers,
            ..RenderInput::new(Release::new("r", "shop"), &capabilities, "2026-01-01T00:00:00Z".parse().unwrap())
        };
        render(&chart, &input).unwrap_err().without_values().to_string()
    }

    const PASSWORD: &str = r#"{{ $p := (lookup "v1" "Secret" "shop" "credentials").data.password | b64dec }}"#;

    #[test]
    fn nothing_made_from_a_secret_is_shown() {
        for (template, place) in [
            (r"{{ fail (upper $p) }}", "error calling fail"),
            (r"{{ fail (trunc 5 $p) }}", "error calling fail"),
            (r"{{ fail (sha256sum $p) }}", "error calling fail"),
            (r#"{{ fail (printf "%s: see above" (reverse (splitList "" $p))) }}"#, "error calling fail"),
            (r"{{ range $p }}{{ end }}", "the template fails"),
            (r"{{ include (upper $p) . }}", "error calling include"),
            (r#"{{ tpl (printf "{{ fail %q }}" (upper $p)) . }}"#, "error calling fail"),
            (r#"{{ tpl (printf "{{ %s }}" (upper $p)) . }}"#, "the template fails"),
            (r#"{{ tpl (printf "{{ define %q }}{{ .a.b.c }}{{ end }}{{ template %q (dict) }}" $p $p) . }}"#, ""),
            (
                r#"{{ regexMatch (print (upper $p) "(") "x" | required (upper $p) }}{{ mustRegexMatch (print (upper $p) "(") "x" }}"#,
                "",
            ),
            (r#"{{ toDate "2006" $p | fail }}{{ mustToDate (upper $p) (upper $p) }}"#, ""),
            ("a: &x {{ upper $p }}\nb: *{{ upper $p }}\n", "line 2"),
            ("a: {{ upper $p }}\n  {{ upper $p }}: [\n", "left out"),
        ] {
            let text = format!("{PASSWORD}\n{template}");
            let shown = shown(&[("templates/a.yaml", &text)]);
            let low = shown.to_lowercase();
            assert!(!low.contains("sword") && !low.contains("h s i f") && !low.contains("b9f1"), "{template}: {shown}");
            assert!(shown.contains("demo/templates/a.yaml") && shown.contains(place), "{template}: {shown}");
        }
    }

    /// A refusal of these values, as the command line and as everybody reads it.
    fn refused(files: &[(&str, &str)], values: serde_json::Value) -> (String, String) {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned().into()));
        let chart = Chart::load(&files.collect()).unwrap();
        let capabilities = Capabilities::default();
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let input = RenderInput { values, ..RenderInput::new(Release::new("r", "shop"), &capabilities, now) };
        let error = render(&chart, &input).unwrap_err();
        (error.to_string(), error.without_values().to_string())
    }

    #[test]
    fn refused_values_are_shown_by_their_path_and_rule_alone() {
        for (schema, rule) in [
            (r#"{"type": "string", "minLength": 20}"#, "value is shorter than 20 characters"),
            (r#"{"type": "integer"}"#, "value is not of type \"integer\""),
            (r#"{"enum": ["a", "b"]}"#, "value is not one of \"a\" or \"b\""),
            (r#"{"pattern": "^x"}"#, "value does not match \"^x\""),
            (r#"{"format": "ipv4", "not": {"type": "string"}}"#, "is not allowed for value"),
            (r#"{"anyOf": [{"type": "null"}]}"#, "value is not valid under any of the schemas"),
        ] {
            let schema = format!(r#"{{"properties":{{"db":{{"properties":{{"password":{schema}}}}}}}}}"#);
            let chart = "apiVersion: v2\nname: demo\nversion: 1.0.0\n";
            let files = [("Chart.yaml", chart), ("values.schema.json", &schema)];
            let (told, shown) = refused(&files, serde_json::json!({"db": {"password": "hunter2"}}));
            assert!(told.contains("demo:\n- at '/db/password': ") && told.contains("hunter2"), "{schema}: {told}");
            assert!(shown.contains("demo:\n- at '/db/password': ") && shown.contains(rule), "{schema}: {shown}");
            assert!(!shown.contains("hunter2"), "{schema}: {shown}");
        }
    }

    #[test]
    fn a_list_and_a_subchart_that_are_refused_show_none_of_their_values() {
        let sub = ("charts/sub/Chart.yaml", "apiVersion: v2\nname: sub\nversion: 1.0.0\n");
        let chart = ("Chart.yaml", "apiVersion: v2\nname: demo\nversion: 1.0.0\n");
        for (schema, values, rule) in [
            ("{}", serde_json::json!({"sub": "hunter2"}), "type mismatch on sub: a map is wanted"),
            ("{}", serde_json::json!({"sub": ["hunter2"]}), "type mismatch on sub: a map is wanted"),
            (
                r#"{"properties":{"a":{"items":[{}],"additionalItems":false}},"$schema":"http://json-schema.org/draft-07/schema#"}"#,
                serde_json::json!({"a": [1, "hunter2"]}),
                "- at '/a': Additional items are not allowed (1 item)",
            ),
            (
                r#"{"properties":{"a":{"propertyNames":{"maxLength":3}}}}"#,
                serde_json::json!({"a": {"hunter2": 1}}),
                "- at '/a': a key is longer than 3 characters",
            ),
        ] {
            let (told, shown) = refused(&[chart, sub, ("values.schema.json", schema)], values);
            assert!(told.contains("hunter2"), "{told}");
            assert!(shown.contains(rule) && !shown.contains("hunter2"), "{shown}");
        }
    }

    #[test]
    fn what_the_chart_says_itself_is_shown() {
        for (template, said) in [
            (r#"{{ fail "say more" }}"#, "error calling fail: say more"),
            (r#"{{ required "a host is needed" .Values.host }}"#, "error calling required: a host is needed"),
            ("{{ .Values.a.b.c }}", "nil pointer evaluating interface {}.c (.Values.a.b is nil)"),
            ("{{ upper 5 }}", "expected string; found 5"),
            (r#"{{ template "none" }}"#, r#"template "none" not defined"#),
        ] {
            let text = format!("{PASSWORD}\n{template}");
            let shown = shown(&[("values.yaml", "a: {}"), ("templates/a.yaml", &text)]);
            assert!(shown.contains(said) && shown.contains(":2:") && shown.contains(template), "{template}: {shown}");
        }
    }
}
