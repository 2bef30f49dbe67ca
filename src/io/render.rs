//! Renders a release's charts. One input gives the same documents each time: neither the clock nor a random source is
//! asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use jiff::Timestamp;
use serde_json::Value;
use thiserror::Error;

use crate::core::chart::{
    Capabilities, Chart, ChartError, Document, Drawn, Lookup, Needs, Release, RenderError, RenderInput, Seed, render,
};
use crate::core::files::FileTree;

/// Why a chart gives no documents.
#[derive(Debug, Error)]
pub enum ChartFailure {
    /// It does not load.
    #[error(transparent)]
    Load(#[from] ChartError),
    /// It does not render.
    #[error(transparent)]
    Render(#[from] RenderError),
}

impl ChartFailure {
    /// What was asked for in vain: with it the chart may render.
    pub fn lacks(&self) -> Needs {
        match self {
            Self::Load(_) => Needs::default(),
            Self::Render(error) => error.lacks(),
        }
    }
}

/// What one rendering is of.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Name of the Helm release: `<provider>-<name>-<major>-<minor>`.
    pub release: String,
    /// Namespace it is rendered for.
    pub namespace: String,
    /// What `now` gives: when the release was subscribed.
    pub since: Timestamp,
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

/// What a class chart rendered to.
pub struct ClassChart {
    /// The objects in Helm's order.
    pub objects: Vec<Value>,
    /// What it looked up in vain.
    pub missing_lookups: BTreeSet<Lookup>,
    /// Keys and certificates that it used.
    pub drawn: Drawn,
}

/// The documents of a class chart, as `helm template <release> <chart> --namespace <namespace>` gives them, tests left out.
///
/// # Errors
/// The chart does not load or render.
pub fn class_chart(files: &FileTree, subject: &Subject) -> Result<ClassChart, ChartFailure> {
    let chart = Chart::load_directory(files)?;
    let capabilities = Capabilities::default();
    let release = Release::new(&subject.release, &subject.namespace);
    let input = RenderInput {
        seed: subject.seed,
        drawn: &subject.drawn,
        lookups: &subject.answers,
        clock: Some(subject.clock),
        include_crds: false,
        stop: subject.stop.clone(),
        ..RenderInput::new(release, &capabilities, subject.since)
    };
    let rendered = render(&chart, &input)?;
    let documents = rendered.documents.into_iter().filter(|document| !is_test(document));
    Ok(ClassChart {
        objects: documents.map(|document| document.object).collect(),
        missing_lookups: rendered.missing_lookups,
        drawn: rendered.drawn,
    })
}

fn is_test(document: &Document) -> bool {
    document.hook.as_ref().is_some_and(|hook| hook.events.iter().all(|event| event.starts_with("test")))
}
