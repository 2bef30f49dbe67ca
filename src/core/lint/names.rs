//! Names and versions: `csctl.yaml`, `metadata.yaml`.

use super::{Desk, line_in};
use crate::core::metadata::Metadata;
use crate::core::package::{CSCTL, Identity, METADATA};

/// Helm's limit on names of releases.
const STEM: usize = 53;
/// Digits that a version may still need.
const VERSION: usize = 10;
/// Kubernetes' limit on values of labels.
const LABEL: usize = 63;

/// Looks at the names; `None` if nothing can be called by them.
pub(super) fn check(desk: &mut Desk<'_>) -> Option<Identity> {
    let identity = match Identity::of(desk.files) {
        Ok(identity) => identity,
        Err(error) => {
            let (message, there) = (error.to_string(), desk.files.contains_key(CSCTL));
            desk.find("csctl", there.then_some(CSCTL), line_in(&message), message);
            return None;
        }
    };
    for (field, text) in [("config.provider.type", &identity.provider), ("config.clusterStackName", &identity.stack)] {
        if text.contains('-') {
            let message =
                format!("{field} is {text:?}: the Go operator splits release names at dashes and can't read it");
            desk.find("name-dash", Some(CSCTL), line_of(desk.files.get(CSCTL), text), message);
        }
    }
    let stem = format!("{}-{}-{}", identity.provider, identity.stack, identity.kubernetes.dashed());
    if stem.len() > STEM {
        let message =
            format!("{stem} has {} characters, as a Helm release's name {STEM} at most: shorten it", stem.len());
        desk.find("name-length", Some(CSCTL), None, message);
    } else if stem.len() + VERSION > LABEL {
        let message = format!("{stem} leaves no room for a version in {LABEL} characters of a label: shorten it");
        desk.find("name-length", Some(CSCTL), None, message);
    }
    metadata(desk, &identity);
    Some(identity)
}

fn metadata(desk: &mut Desk<'_>, identity: &Identity) {
    let Some(bytes) = desk.files.get(METADATA) else { return };
    let problem = match std::str::from_utf8(bytes).map(Metadata::parse) {
        Err(_) => "it is not valid UTF-8".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Ok(Ok(metadata)) if metadata.kubernetes.minor != identity.kubernetes => {
            format!("it says Kubernetes {}, csctl.yaml says {}", metadata.kubernetes, identity.kubernetes_version)
        }
        Ok(Ok(_)) => return,
    };
    desk.find("metadata", Some(METADATA), line_in(&problem), format!("metadata.yaml can't be used: {problem}"));
}

/// The first line that holds a text.
pub(super) fn line_of(file: Option<&bytes::Bytes>, text: &str) -> Option<usize> {
    let file = std::str::from_utf8(file?).ok()?;
    file.lines().position(|line| line.contains(text)).map(|at| at + 1)
}
