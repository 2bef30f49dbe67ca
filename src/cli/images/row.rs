//! A node image as it is listed.

use kube::ResourceExt;
use serde::Serialize;

use crate::api::ProviderNodeImageRelease as Image;
use crate::api::image_release::ImagePhase;
use crate::core::status::waits;

/// A node image. The field names are API of `-o json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    pub namespace: String,
    pub name: String,
    /// What it is called at its destination.
    pub image: String,
    pub phase: ImagePhase,
    /// Name of the step whose turn it is.
    pub step: String,
    /// Hundredths of the step that are done, where it is known.
    pub percent: Option<u8>,
    pub bytes: String,
    pub rate: String,
    pub left: String,
    pub attempt: u32,
    pub holder: String,
    pub location: String,
    pub message: String,
    /// Names of the ProviderClusterStackReleases that have it.
    pub releases: Vec<String>,
}

impl Row {
    pub fn of(image: &Image) -> Self {
        let status = image.status.clone().unwrap_or_default();
        let progress = status.progress.unwrap_or_default();
        // Of a Job that runs its log tells what it waits for.
        let message = match waits(&status.log_tail) {
            Some(waits) if status.phase == ImagePhase::Running && status.message.is_empty() => waits.to_owned(),
            _ => status.message,
        };
        let owners = image.owner_references().iter().filter(|owner| owner.kind == "ProviderClusterStackRelease");
        Self {
            namespace: image.namespace().unwrap_or_default(),
            name: image.name_any(),
            image: image.spec.image.name.clone(),
            phase: status.phase,
            step: status.step,
            percent: progress.percent,
            bytes: progress.bytes,
            rate: progress.rate,
            left: progress.left,
            attempt: status.attempt,
            holder: status.holder.map(|holder| holder.identity).unwrap_or_default(),
            location: status.location,
            message,
            releases: owners.map(|owner| owner.name.clone()).collect(),
        }
    }

    /// Whether nothing more comes of itself.
    pub fn is_at_rest(&self) -> bool {
        is_at_rest(self.phase)
    }
}

/// Whether a build of this phase does nothing more of itself.
pub fn is_at_rest(phase: ImagePhase) -> bool {
    !matches!(phase, ImagePhase::Queued | ImagePhase::Running)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_job_waits_for_is_shown_while_it_runs() {
        let waits = format!("{}ImagePullBackOff", crate::core::status::WAITING);
        for (phase, tail, message, expected) in [
            ("Running", waits.as_str(), "", waits.as_str()),
            ("Running", "the container runs", "", ""),
            ("Failed", waits.as_str(), "given up", "given up"),
            ("Queued", waits.as_str(), "", ""),
        ] {
            let image = json!({
                "metadata": {"name": "a"},
                "spec": {"image": {"name": "a", "format": "raw", "steps": []}, "inputs": "", "templateRef": {"name": "t"}},
                "status": {"phase": phase, "logTail": tail, "message": message},
            });
            let image: Image = serde_json::from_value(image).unwrap();
            assert_eq!(Row::of(&image).message, expected, "{phase} {tail} {message}");
        }
    }
}
