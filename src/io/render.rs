//! Renders a release's charts. One input gives the same documents each time: neither the clock nor a random source is
//! asked.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use jiff::Timestamp;
use serde_json::Value;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::core::chart::{Capabilities, Chart, ChartError, Document, Release, RenderError, RenderInput, render};
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

/// What one rendering is of.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Name of the Helm release: `<provider>-<name>-<major>-<minor>`.
    pub release: String,
    /// Namespace it is rendered for.
    pub namespace: String,
    /// What `now` gives: when the release was subscribed.
    pub since: Timestamp,
    /// Set to stop.
    pub stop: Option<Arc<AtomicBool>>,
}

/// The documents of a class chart, as `helm template <release> <chart> --namespace <namespace>` gives them, tests left out.
///
/// # Errors
/// The chart does not load or render.
pub fn class_chart(files: &FileTree, subject: &Subject) -> Result<Vec<Value>, ChartFailure> {
    let chart = Chart::load_directory(files)?;
    let capabilities = Capabilities::default();
    let release = Release::new(&subject.release, &subject.namespace);
    let input = RenderInput {
        seed: Sha256::digest(format!("{}/{}", subject.namespace, subject.release)).into(),
        include_crds: false,
        stop: subject.stop.clone(),
        ..RenderInput::new(release, &capabilities, subject.since)
    };
    let rendered = render(&chart, &input)?;
    Ok(rendered.documents.into_iter().filter(|document| !is_test(document)).map(|document| document.object).collect())
}

fn is_test(document: &Document) -> bool {
    document.hook.as_ref().is_some_and(|hook| hook.events.iter().all(|event| event.starts_with("test")))
}
