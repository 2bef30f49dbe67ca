//! The image that an object remembers beside its status: the one that its build brought to the destination, or one there
//! that somebody said is to be taken as it is.
//!
//! A status is lost with a restore from a backup. A build that does not make the same bytes twice could then never be
//! finished: what it made before has its name.

/// Digest of the file and of what it was made of, as [`IMAGE_DIGEST`](crate::api::IMAGE_DIGEST) has it.
pub fn written(digest: &str, inputs: &str) -> String {
    format!("{digest} of {inputs}")
}

/// Digest of the file that the annotation names; `None` where it was made of other inputs, or can't be read.
pub fn known(annotation: &str, inputs: &str) -> Option<String> {
    let (digest, of) = annotation.split_once(" of ")?;
    (of == inputs && is_digest(digest)).then(|| digest.to_owned())
}

/// Whether a text is `sha256:` and 64 hexadecimal digits in lower case.
pub fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|digits| {
        digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_image_of_the_same_inputs_is_known() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        let annotation = written(&digest, "sha256:in");
        assert_eq!(known(&annotation, "sha256:in"), Some(digest.clone()));
        for (annotation, inputs) in [
            (annotation.as_str(), "sha256:other"),
            (digest.as_str(), "sha256:in"),
            ("sha256:0a of sha256:in", "sha256:in"),
            ("", "sha256:in"),
            ("", ""),
        ] {
            assert_eq!(known(annotation, inputs), None, "{annotation} {inputs}");
        }
        assert!(!is_digest(&digest.to_uppercase()));
    }
}
