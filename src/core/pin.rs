//! Pins: which digest or revision a release must have.

use crate::api::condition::Reason;
use crate::api::source::Pin;
use crate::core::name::{ReleaseName, ReleaseVersion};
use crate::core::retry::ErrorClass;
use crate::core::status::Trouble;

/// Whether a release with this digest and revision is the one that `pins` ask for, if they ask for any.
///
/// # Errors
/// It is another one.
pub fn check(pins: &[Pin], name: &ReleaseName, digest: &str, revision: &str) -> Result<(), Trouble> {
    let of_release = |pin: &&Pin| pin.version.parse::<ReleaseVersion>().is_ok_and(|version| version == name.version);
    for pin in pins.iter().filter(of_release) {
        // The pattern of the field takes the digits alone, too.
        let is_it = |found: &str| pin.digest == found || found.strip_prefix("sha256:") == Some(&pin.digest);
        if !is_it(digest) && !is_it(revision) {
            let message = format!(
                "spec.pin wants {} of release {name}, but its digest is {digest} and its revision {revision}; it is not \
                 taken, what is applied stays. Correct the pin, or find out who changed the release",
                pin.digest
            );
            return Err(Trouble::new(ErrorClass::Invalid, Reason::DigestMismatch, message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_release_must_have_the_digest_or_the_revision() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let revision = "b".repeat(40);
        let stable: ReleaseName = "docker-x-1-34-v2".parse().unwrap();
        let custom: ReleaseName = "docker-x-1-34-v0-sha.abc".parse().unwrap();
        for (case, pins, name, good) in [
            ("nothing is pinned", vec![], &stable, true),
            ("another version is", vec![("v1", "c")], &stable, true),
            ("digest", vec![("v2", digest.as_str())], &stable, true),
            ("digits of the digest", vec![("v2", &digest["sha256:".len()..])], &stable, true),
            ("other digits", vec![("v2", "b".repeat(64).as_str())], &stable, false),
            ("revision", vec![("v2", revision.as_str())], &stable, true),
            ("neither", vec![("v2", "c")], &stable, false),
            ("a part of it", vec![("v2", "sha256:aaaa")], &stable, false),
            ("in either spelling", vec![("v0-sha-abc", "c")], &custom, false),
            ("pre-release", vec![("v0-sha.abc", digest.as_str())], &custom, true),
            ("one of two is wrong", vec![("v2", digest.as_str()), ("v2", "c")], &stable, false),
        ] {
            let pins: Vec<Pin> = pins
                .into_iter()
                .map(|(version, digest)| Pin { version: version.into(), digest: digest.into() })
                .collect();
            let found = check(&pins, name, &digest, &revision);
            assert_eq!(found.is_ok(), good, "{case}");
            assert!(found.err().is_none_or(|trouble| trouble.reason == Reason::DigestMismatch), "{case}");
        }
    }
}
