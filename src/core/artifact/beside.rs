//! What is said of a release beside it: signatures, attestations, lists of what is in it.

use bytes::Bytes;
use serde_json::Value;

use super::{Artifact, ArtifactError, Manifest, is_digest, signature_tag};

/// What cosign keeps beside a manifest, by the ends of its tags.
pub const KINDS: [&str; 3] = ["sig", "att", "sbom"];
/// The kind of which there is one: cosign reads no second list.
const SINGLE: &str = "sbom";

/// A release and what is beside it in an archive.
#[derive(Debug)]
pub struct Family<'a> {
    /// The release.
    pub release: &'a Artifact,
    /// What is beside it.
    pub beside: Vec<&'a Artifact>,
}

/// What of an archive is a release, with what is beside it, and the rest.
pub fn families(artifacts: &[Artifact]) -> (Vec<Family<'_>>, Vec<&Artifact>) {
    let (releases, others): (Vec<_>, Vec<_>) = artifacts.iter().partition(|artifact| artifact.release().is_some());
    let (mut families, mut rest) = (Vec::new(), others.clone());
    for release in releases {
        let digest = release.digest();
        let is_beside = |other: &&Artifact| other.is_beside(&digest);
        rest.retain(|other| !is_beside(other));
        families.push(Family { release, beside: others.iter().copied().filter(is_beside).collect() });
    }
    (families, rest)
}

impl Artifact {
    /// Whether it is beside the manifest `digest`, by its tag or by what it says.
    pub fn is_beside(&self, digest: &str) -> bool {
        let by_tag = |tag: &str| KINDS.iter().any(|kind| tag == signature_tag(digest, kind));
        self.tag.as_deref().is_some_and(by_tag)
            || self.read().is_ok_and(|read| read.subject.is_some_and(|subject| subject.digest == digest))
    }

    /// The kind of what its tag says that it is, if that is something beside a manifest.
    fn kind(&self) -> Option<&str> {
        let (stem, kind) = self.tag.as_deref()?.rsplit_once('.')?;
        (KINDS.contains(&kind) && is_digest(&stem.replacen('-', ":", 1))).then_some(kind)
    }

    /// The manifest to have at its tag where `there` is: such a tag collects what is said of a manifest, and is no release.
    /// `None` where nothing may be added.
    ///
    /// # Errors
    /// One of the two is no manifest.
    pub fn added_to(&self, there: &Bytes) -> Result<Option<Bytes>, ArtifactError> {
        let Some(kind) = self.kind() else { return Ok(None) };
        let read = |bytes: &[u8]| {
            let problem = |error: serde_json::Error| {
                let what = format!("the manifest {}", self.tag.as_deref().unwrap_or_default());
                ArtifactError::Form { what, problem: error.to_string() }
            };
            let value: Value = serde_json::from_slice(bytes).map_err(problem)?;
            let manifest: Manifest = serde_json::from_value(value.clone()).map_err(problem)?;
            Ok((value, manifest.layers))
        };
        let ((mut merged, theirs), (ours_whole, ours)) = (read(there)?, read(&self.manifest)?);
        if ours.iter().all(|layer| theirs.contains(layer)) {
            return Ok(Some(there.clone()));
        }
        // As its signer made it, where nothing is lost by that.
        if kind == SINGLE || theirs.iter().all(|layer| ours.contains(layer)) {
            return Ok(Some(self.manifest.clone()));
        }
        let whole = ours_whole.get("layers").and_then(Value::as_array).cloned().unwrap_or_default();
        let new = whole.into_iter().zip(&ours).filter(|(_, layer)| !theirs.contains(layer)).map(|(whole, _)| whole);
        // Who reads signatures reads the manifest's layers; its configuration stays.
        if let Some(layers) = merged.get_mut("layers").and_then(Value::as_array_mut) {
            layers.extend(new);
        }
        Ok(Some(Bytes::from(merged.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Blobs, digest};
    use super::*;

    fn of_layers(tag: &str, layers: &[&str]) -> Artifact {
        let layer = |text: &&str| json!({"mediaType": "x", "digest": digest(b"payload"), "size": 7, "annotations": {"signature": text}, "urls": []});
        let layers: Vec<Value> = layers.iter().map(layer).collect();
        let config = json!({"mediaType": "x", "digest": digest(b"{}"), "size": 2});
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers}).to_string();
        Artifact { tag: Some(tag.to_owned()), manifest: Bytes::from(manifest), blobs: Blobs::new() }
    }

    fn signatures(manifest: &Bytes) -> Vec<String> {
        let read: Manifest = serde_json::from_slice(manifest).unwrap();
        read.layers.into_iter().map(|layer| layer.annotations["signature"].clone()).collect()
    }

    #[test]
    fn what_is_beside_a_release_adds_up_and_a_release_never_changes() {
        let sig = signature_tag(&digest(b"release"), "sig");
        let sbom = signature_tag(&digest(b"release"), "sbom");
        for (case, tag, there, ours, expected) in [
            ("one more", &sig, &["a"][..], &["a", "b"][..], &["a", "b"][..]),
            ("fewer", &sig, &["a", "b"], &["b"], &["a", "b"]),
            ("others", &sig, &["a", "b"], &["c", "b"], &["a", "b", "c"]),
            ("the same", &sig, &["a"], &["a"], &["a"]),
            ("one list alone", &sbom, &["a"], &["b"], &["b"]),
        ] {
            let (there, ours) = (of_layers(tag, there).manifest, of_layers(tag, ours));
            let merged = ours.added_to(&there).unwrap().unwrap();
            assert_eq!(signatures(&merged), expected, "{case}");
            let whole: Value = serde_json::from_slice(&merged).unwrap();
            assert!(whole["layers"].as_array().unwrap().iter().all(|layer| layer["urls"] == json!([])), "{case}");
            for same in [&there, &ours.manifest] {
                assert_eq!(merged == *same, signatures(same) == expected, "{case}");
            }
        }
        for tag in ["docker-scs-1-30-v1", "sha256-0.sig", &sig.replace(".sig", ".exe"), &sig.replace("sha256-", "x-")] {
            assert_eq!(of_layers(tag, &["b"]).added_to(&of_layers(tag, &["a"]).manifest).unwrap(), None, "{tag}");
        }
        let error = of_layers(&sig, &["a"]).added_to(&Bytes::from("[]")).unwrap_err().to_string();
        assert!(error.contains(&sig), "{error}");
    }

    #[test]
    fn what_is_beside_a_release_is_found_by_its_tag_and_by_what_it_says() {
        let release = of_layers("docker-scs-1-30-v1", &["a"]);
        let other = of_layers("docker-scs-1-30-v2", &["b"]);
        let by_tag = of_layers(&signature_tag(&release.digest(), "att"), &["c"]);
        let mut says = serde_json::from_slice::<Value>(&by_tag.manifest).unwrap();
        says["subject"] = json!({"mediaType": "x", "digest": other.digest(), "size": 1});
        let by_subject = Artifact { tag: None, manifest: Bytes::from(says.to_string()), ..by_tag.clone() };
        let stray = of_layers(&signature_tag(&digest(b"stray"), "sig"), &["d"]);
        let all = [by_tag, release, stray, by_subject, other];
        let (families, rest) = families(&all);
        let found: Vec<_> = families.iter().map(|family| (family.release, family.beside.clone())).collect();
        assert_eq!(found, [(&all[1], vec![&all[0]]), (&all[4], vec![&all[3]])]);
        assert_eq!(rest, [&all[2]]);
    }
}
