//! Node images of a stack's releases: how far their builds are.

use std::sync::Arc;

use serde::Serialize;

use super::words::{Badge, clean, version};
use crate::api::image_release::{ImagePhase, ProviderNodeImageRelease, ProviderNodeImageReleaseStatus};
use crate::api::provider_release::ReleaseImage;
use crate::api::{ClusterStackRelease, ProviderClusterStackRelease};

/// Images of a page.
const IMAGES: usize = 200;

/// An image, for the template.
#[derive(Debug, Serialize)]
pub struct ImageRow {
    release: String,
    name: String,
    badge: Badge,
    step: String,
    percent: Option<u8>,
    progress: String,
    message: String,
    location: String,
}

/// The images of these releases, those in front whose build is not done; and how many more there are.
pub fn rows(
    releases: &[ClusterStackRelease],
    provided: &[Arc<ProviderClusterStackRelease>],
    images: &[Arc<ProviderNodeImageRelease>],
) -> (Vec<ImageRow>, usize) {
    let mut rows = Vec::new();
    for release in releases {
        let Some(provided) = of_release(release, provided) else { continue };
        for listed in provided.status.iter().flat_map(|status| &status.node_images) {
            let is_it = |image: &&Arc<ProviderNodeImageRelease>| {
                image.metadata.name.as_deref() == Some(&listed.object)
                    && image.metadata.namespace == provided.metadata.namespace
            };
            let image = images.iter().find(is_it).and_then(|image| image.status.as_ref());
            rows.push(row(release, listed, image));
        }
    }
    rows.sort_by_key(|row| row.badge == Badge::phase(ImagePhase::Succeeded));
    let more = rows.len().saturating_sub(IMAGES);
    rows.truncate(IMAGES);
    (rows, more)
}

fn of_release<'a>(
    release: &ClusterStackRelease,
    provided: &'a [Arc<ProviderClusterStackRelease>],
) -> Option<&'a ProviderClusterStackRelease> {
    let reference = release.spec.provider_ref.as_ref()?;
    let namespace = reference.namespace.as_ref().or(release.metadata.namespace.as_ref());
    let is_it = |one: &&Arc<ProviderClusterStackRelease>| {
        one.metadata.name == reference.name && one.metadata.namespace.as_ref() == namespace
    };
    let is_ours = reference.kind.as_deref() == Some("ProviderClusterStackRelease");
    provided.iter().find(is_it).filter(|_| is_ours).map(Arc::as_ref)
}

fn row(
    release: &ClusterStackRelease,
    listed: &ReleaseImage,
    image: Option<&ProviderNodeImageReleaseStatus>,
) -> ImageRow {
    let phase = image.map_or(listed.phase, |image| image.phase);
    let mut row = ImageRow {
        release: version(release.metadata.name.as_deref().unwrap_or_default()),
        name: clean(&listed.name),
        badge: Badge::phase(phase),
        step: String::new(),
        percent: None,
        progress: String::new(),
        message: clean(&listed.message),
        location: clean(&listed.location),
    };
    // Of its status neither the log nor the way to it is shown: who may not read the object may not read them.
    let Some(image) = image else { return row };
    if !image.message.is_empty() {
        row.message = clean(&image.message);
    }
    if phase != ImagePhase::Succeeded && !image.step.is_empty() {
        let at = image.steps.iter().position(|step| step.name == image.step);
        let of = at.map(|at| format!(" ({} of {})", at + 1, image.steps.len())).unwrap_or_default();
        row.step = clean(&format!("{}{of}", image.step));
    }
    if let Some(progress) = image.progress.as_ref().filter(|_| phase == ImagePhase::Running) {
        row.percent = progress.percent.map(|percent| percent.min(100));
        let left = if progress.left.is_empty() { String::new() } else { format!("{} left", progress.left) };
        let parts = [progress.bytes.as_str(), progress.rate.as_str(), &left];
        row.progress = clean(&parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", "));
    }
    row
}
