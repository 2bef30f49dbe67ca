//! Renders a release's charts. One input gives the same documents each time: neither the clock nor a random source is
//! asked.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use serde_json::Value;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::core::chart::{
    Capabilities, Chart, ChartError, Document, Drawn, Lookup, Needs, Release, RenderError, RenderInput, Secrets, Seed,
    render,
};
use crate::core::files::FileTree;
use crate::io::client::shallow::{LEVELS, is_cut};

/// Why a chart gives no documents.
#[derive(Debug, Error)]
pub enum ChartFailure {
    /// It does not load.
    #[error(transparent)]
    Load(#[from] ChartError),
    /// It does not render.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// What it is rendered with could not be read whole.
    #[error("its values, or an object that it looks up, are nested deeper than {LEVELS} levels")]
    TooDeep,
}

impl ChartFailure {
    /// For conditions and events: of a rendering that handled secrets without what may hold values.
    #[must_use]
    pub fn shown(self, subject: &Subject) -> String {
        match self {
            Self::Render(error) if subject.handles_secrets() => {
                let mut secrets = Secrets::default();
                if subject.secret_values {
                    secrets.add_values(&subject.values);
                }
                error.without(&secrets).to_string()
            }
            other => other.to_string(),
        }
    }

    /// What was asked for in vain: with it the chart may render.
    pub fn lacks(&self) -> Needs {
        match self {
            Self::Load(_) | Self::TooDeep => Needs::default(),
            Self::Render(error) => error.lacks(),
        }
    }
}

/// What one rendering is of.
#[derive(Clone)]
pub struct Subject {
    /// Name of the Helm release: `<provider>-<name>-<major>-<minor>`.
    pub release: String,
    /// Namespace it is rendered for.
    pub namespace: String,
    /// Values over those of the chart.
    pub values: Value,
    /// Some of them come from a Secret.
    pub secret_values: bool,
    /// What the cluster can do.
    pub capabilities: Capabilities,
    /// Whether the files in `crds/` are among the objects.
    pub include_crds: bool,
    /// What `now` gives: when the input was first rendered. `None` until it is known that the chart asks.
    pub first: Option<Timestamp>,
    /// What random functions draw from.
    pub seed: Option<Seed>,
    /// Keys and certificates that were made before.
    pub drawn: Drawn,
    /// What was looked up.
    pub answers: BTreeMap<Lookup, Value>,
    /// The time that decides whether a certificate is made anew.
    pub clock: Timestamp,
    /// Set to stop.
    pub stop: Option<Arc<AtomicBool>>,
}

impl Subject {
    /// Something could be drawn, a Secret was looked up, or values come from one.
    pub fn handles_secrets(&self) -> bool {
        self.secret_values || self.seed.is_some() || self.answers.keys().any(|lookup| lookup.kind == "Secret")
    }
}

/// Answers and keys are secret.
impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Subject");
        shown.field("release", &self.release).field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// What a chart rendered to.
pub struct RenderedChart {
    /// The objects in Helm's order, hooks last.
    pub documents: Vec<Document>,
    /// What it looked up in vain.
    pub missing_lookups: BTreeSet<Lookup>,
    /// What it looked up and got.
    pub answered_lookups: BTreeSet<Lookup>,
    /// Keys and certificates that it used.
    pub drawn: Drawn,
    /// It asked for the time.
    pub asked_time: bool,
    /// What no message about the objects may show.
    pub secrets: Secrets,
}

/// The documents of a chart, as `helm template <release> <chart> --namespace <namespace>` gives them, tests left out.
///
/// # Errors
/// The chart does not load or render.
pub fn chart(files: &FileTree, subject: &Subject) -> Result<RenderedChart, ChartFailure> {
    if is_cut(&subject.values) || subject.answers.values().any(is_cut) {
        return Err(ChartFailure::TooDeep);
    }
    let chart = loaded(files)?;
    let release = Release::new(&subject.release, &subject.namespace);
    let input = RenderInput {
        seed: subject.seed,
        drawn: &subject.drawn,
        lookups: &subject.answers,
        clock: Some(subject.clock),
        values: subject.values.clone(),
        include_crds: subject.include_crds,
        stop: subject.stop.clone(),
        now: subject.first,
        ..RenderInput::new(release, &subject.capabilities, subject.clock)
    };
    let rendered = render(&chart, &input)?;
    Ok(RenderedChart {
        documents: rendered.documents,
        missing_lookups: rendered.missing_lookups,
        answered_lookups: rendered.answered_lookups,
        drawn: rendered.drawn,
        asked_time: rendered.asked_time,
        secrets: rendered.secrets,
    })
}

/// Charts that were parsed, by what their files hold; the one used last is the last.
#[derive(Debug, Default)]
struct Parsed(VecDeque<(Digest256, Arc<Chart>, usize)>);

type Digest256 = [u8; 32];

/// As many charts as that stay parsed.
const MAX_PARSED: usize = 16;
/// Most bytes of their files.
const PARSED_BYTES: usize = 64 << 20;

impl Parsed {
    fn find(&mut self, digest: &Digest256) -> Option<Arc<Chart>> {
        let at = self.0.iter().position(|(known, ..)| known == digest)?;
        let entry = self.0.remove(at)?;
        let chart = entry.1.clone();
        self.0.push_back(entry);
        Some(chart)
    }

    fn add(&mut self, digest: Digest256, chart: Arc<Chart>, bytes: usize) {
        let mut all: usize = self.0.iter().map(|(.., bytes)| bytes).sum();
        while self.0.len() >= MAX_PARSED || all.saturating_add(bytes) > PARSED_BYTES {
            let Some((.., oldest)) = self.0.pop_front() else { break };
            all -= oldest;
        }
        self.0.push_back((digest, chart, bytes));
    }
}

/// The chart of these files, parsed now or before: a release is rendered anew for each namespace.
fn loaded(files: &FileTree) -> Result<Arc<Chart>, ChartError> {
    static PARSED: Mutex<Parsed> = Mutex::new(Parsed(VecDeque::new()));
    let parsed = || PARSED.lock().unwrap_or_else(PoisonError::into_inner);
    let digest = digest(files);
    if let Some(chart) = parsed().find(&digest) {
        return Ok(chart);
    }
    // Without the lock: others may go on.
    let chart = Arc::new(Chart::load_directory(files)?);
    parsed().add(digest, chart.clone(), files.values().map(bytes::Bytes::len).sum());
    Ok(chart)
}

/// What two trees have in common only if all their paths and contents are equal.
fn digest(files: &FileTree) -> Digest256 {
    let mut digest = Sha256::new();
    for (path, content) in files {
        for part in [path.as_bytes(), content] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
    }
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(name: &str) -> FileTree {
        let text = format!("apiVersion: v2\nname: {name}\nversion: 1.0.0\n");
        [("Chart.yaml".to_owned(), text.into())].into()
    }

    fn subject(values: Value, secret_values: bool) -> Subject {
        Subject {
            release: "x".into(),
            namespace: "shop".into(),
            values,
            secret_values,
            capabilities: Capabilities::default(),
            include_crds: false,
            first: None,
            seed: None,
            drawn: Drawn::new(),
            answers: BTreeMap::new(),
            clock: Timestamp::UNIX_EPOCH,
            stop: None,
        }
    }

    #[test]
    fn an_error_of_a_chart_with_values_of_a_secret_shows_none_of_them() {
        let mut tree = files("x");
        tree.insert("templates/a.yaml".to_owned(), "{{ fail .Values.password }}".into());
        for (secret_values, shows) in [(false, true), (true, false)] {
            let subject = subject(serde_json::json!({"password": "swordfish"}), secret_values);
            let Err(error) = chart(&tree, &subject) else { panic!("it renders") };
            let shown = error.shown(&subject);
            assert!(shown.contains("templates/a.yaml") && shown.contains("swordfish") == shows, "{shown}");
        }
    }

    #[test]
    fn values_of_a_secret_that_a_schema_refuses_are_shown_nowhere() {
        let mut tree = files("x");
        let schema = r#"{"properties":{"db":{"properties":{"password":{"type":"string","minLength":20}}}}}"#;
        tree.insert("values.schema.json".to_owned(), schema.into());
        let sub = "apiVersion: v1\nname: sub\nversion: 1.0.0\n";
        tree.insert("charts/sub/Chart.yaml".to_owned(), sub.into());
        for (values, says) in [
            (serde_json::json!({"db": {"password": "hunter2"}}), "x:\n- at '/db/password': value is shorter than 20"),
            (serde_json::json!({"sub": "hunter2"}), "type mismatch on sub: a map is wanted"),
        ] {
            for secret_values in [false, true] {
                let subject = subject(values.clone(), secret_values);
                let Err(error) = chart(&tree, &subject) else { panic!("it renders") };
                let shown = error.shown(&subject);
                assert_eq!(
                    (shown.contains("hunter2"), shown.contains(says)),
                    (!secret_values, secret_values),
                    "{shown}"
                );
            }
        }
    }

    #[test]
    fn debug_shows_nothing_of_what_was_looked_up() {
        let lookup = Lookup {
            api_version: "v1".into(),
            kind: "Secret".into(),
            namespace: "shop".into(),
            name: "credentials".into(),
        };
        let subject = Subject {
            release: "docker-x".into(),
            seed: Some(Seed([77; 32])),
            answers: [(lookup, serde_json::json!({"data": {"password": "swordfish"}}))].into(),
            ..subject(Value::Null, false)
        };
        let shown = format!("{subject:?}");
        assert!(!shown.contains("swordfish") && !shown.contains("77") && shown.contains("docker-x"), "{shown}");
    }

    #[test]
    fn a_chart_with_the_same_files_is_parsed_once() {
        let first = loaded(&files("parsed-once")).unwrap();
        assert!(Arc::ptr_eq(&first, &loaded(&files("parsed-once")).unwrap()));
        assert!(!Arc::ptr_eq(&first, &loaded(&files("parsed-other")).unwrap()));
    }

    #[test]
    fn the_chart_that_was_not_used_for_longest_is_forgotten() {
        let chart = Arc::new(Chart::load_directory(&files("bounded")).unwrap());
        let mut parsed = Parsed::default();
        for n in 0..MAX_PARSED {
            parsed.add([u8::try_from(n).unwrap(); 32], chart.clone(), 1);
        }
        assert!(parsed.find(&[0; 32]).is_some());
        parsed.add([255; 32], chart.clone(), 1);
        assert_eq!(parsed.0.len(), MAX_PARSED);
        assert!(parsed.find(&[1; 32]).is_none());
        assert!(parsed.find(&[0; 32]).is_some());
        // Two large ones are as many as there is room for.
        parsed.add([254; 32], chart.clone(), PARSED_BYTES - 1);
        parsed.add([253; 32], chart.clone(), 1);
        assert!(parsed.0.len() == 2 && parsed.find(&[254; 32]).is_some());
        parsed.add([252; 32], chart, 2 * PARSED_BYTES);
        assert_eq!(parsed.0.len(), 1);
    }
}
