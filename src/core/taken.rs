//! A release that was taken, and can't be had again: what is said of it.

use crate::api::cluster_stack_release::Artifact;
use crate::api::condition::Reason;
use crate::core::name::ReleaseName;
use crate::core::retry::ErrorClass;
use crate::core::status::Trouble;

/// What a tag of the source names.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// The tag.
    pub tag: &'a str,
    /// What it names.
    pub revision: &'a str,
}

/// Whether it was verified as `asked`.
pub fn is_proved(artifact: &Artifact, asked: &str) -> bool {
    asked.is_empty() || artifact.verify_digest == asked
}

/// Whether it is about what the files are, and not about whether they can be had or by whom they were signed.
pub fn is_of_files(trouble: &Trouble) -> bool {
    let others = [Reason::NotVerified, Reason::SourceUnauthorized, Reason::SourceUnreachable];
    trouble.class == ErrorClass::Invalid && !others.contains(&trouble.reason)
}

/// What to say where what was fetched before can't be had any more, as the source has something else `now`. What is no
/// word of that is said as it is.
pub fn lost(
    had: &Artifact,
    now: Option<Named<'_>>,
    (release, asked): (&ReleaseName, &str),
    trouble: Trouble,
) -> Trouble {
    let is_moved = now.is_none_or(|now| now.revision != had.revision);
    let is_mended_there = [Reason::SourceUnauthorized, Reason::SourceUnreachable].contains(&trouble.reason);
    if trouble.class == ErrorClass::Transient || is_mended_there {
        return trouble;
    }
    let is_applied = !had.digest.is_empty();
    let named = now.map_or_else(
        || format!("the source has no tag of release {release} any more"),
        |now| format!("tag {} names {} {}", now.tag, now.revision, if is_moved { "now" } else { "still" }),
    );
    let is_changed = trouble.reason == Reason::ArtifactChanged;
    if trouble.reason == Reason::NotVerified || !(is_moved || is_changed) {
        let stays = match (is_applied, is_moved) {
            (false, _) => return trouble,
            (true, true) => format!("; {named}, {} is applied and stays", had.revision),
            (true, false) => "; what is applied stays".to_owned(),
        };
        return Trouble { message: trouble.message.clone() + &stays, ..trouble };
    }
    let (why, rest) = match is_applied {
        false => ("was chosen and can't be had", "nothing else is taken for it"),
        true if is_proved(had, asked) => ("was applied and is in the store no more", "what is applied stays"),
        true => ("was applied and was not verified as verify asks", "what is applied stays"),
    };
    let (what, back) = if is_moved {
        (format!("{named}, but {}", had.revision), "the tag back, or spec.source as it was")
    } else {
        (format!("{named}, with other files: what"), "spec.source back as it was (its path, too)")
    };
    let (class, reason) = if now.is_some() || is_applied {
        (ErrorClass::Invalid, Reason::ArtifactChanged)
    } else {
        (ErrorClass::Waiting, Reason::ReleaseNotFound)
    };
    let message = format!(
        "{what} {why} ({}); {rest}. Put {back}, or delete this release to take what the source has",
        trouble.message
    );
    Trouble::new(class, reason, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_not_be_had_again_is_told_by_what_became_of_it() {
        use ErrorClass::{Invalid, Transient, Waiting};
        use Reason::{ArtifactChanged, NotVerified, ReleaseInvalid, ReleaseNotFound, SourceUnreachable};
        let release = "docker-x-1-34-v1".parse().unwrap();
        let applied = Artifact { revision: "r".into(), digest: "sha256:d".into(), ..Artifact::default() };
        let chosen = Artifact { digest: String::new(), ..applied.clone() };
        let tag = |revision| Some(Named { tag: "t", revision });
        for (had, now, asked, (class, reason), expected, part) in [
            (
                &applied,
                tag("s"),
                "",
                (Invalid, ArtifactChanged),
                (Invalid, ArtifactChanged),
                "t names s now, but r was applied",
            ),
            (&applied, tag("r"), "", (Invalid, ArtifactChanged), (Invalid, ArtifactChanged), "still, with other files"),
            (
                &applied,
                tag("s"),
                "v",
                (Invalid, ArtifactChanged),
                (Invalid, ArtifactChanged),
                "not verified as verify asks",
            ),
            (&applied, None, "", (Invalid, ArtifactChanged), (Invalid, ArtifactChanged), "has no tag of release"),
            (&chosen, tag("s"), "", (Invalid, ArtifactChanged), (Invalid, ArtifactChanged), "nothing else is taken"),
            (&chosen, None, "", (Invalid, ArtifactChanged), (Waiting, ReleaseNotFound), "was chosen"),
            (
                &applied,
                tag("s"),
                "v",
                (Invalid, NotVerified),
                (Invalid, NotVerified),
                "t names s now, r is applied and stays",
            ),
            (
                &applied,
                tag("r"),
                "",
                (Invalid, ReleaseInvalid),
                (Invalid, ReleaseInvalid),
                "why; what is applied stays",
            ),
            (&chosen, tag("r"), "", (Invalid, ReleaseInvalid), (Invalid, ReleaseInvalid), "why"),
            (&applied, tag("s"), "", (Transient, SourceUnreachable), (Transient, SourceUnreachable), "why"),
        ] {
            let told = lost(had, now, (&release, asked), Trouble::new(class, reason, "why"));
            assert_eq!((told.class, told.reason), expected, "{}", told.message);
            assert!(told.message.contains(part), "{part}: {}", told.message);
        }
    }
}
