//! What goes wrong with a source.

use std::time::Duration;

use thiserror::Error;

use crate::api::condition::Reason;
use crate::core::limits::TooLarge;
use crate::core::retry::ErrorClass;
use crate::core::source::Refused;
use crate::core::status::Trouble;
use crate::core::verification::{NotVerified, Signer};

/// Why a source could not be listed or a release not be fetched. Holds no secret.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SourceError {
    /// The operator may not use it.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The source leads to where the operator does not go.
    #[error("{action} {url} leads on: {refused}")]
    Led {
        /// What was tried.
        action: &'static str,
        /// On what.
        url: String,
        /// Why not.
        refused: Refused,
    },
    /// It does not answer, or breaks off.
    #[error("{action} {url} failed: {problem}; it is tried again")]
    Unreachable {
        /// What was tried.
        action: &'static str,
        /// The source.
        url: String,
        /// What happened.
        problem: String,
    },
    /// It does not let us in.
    #[error("{action} {url} is not permitted: {problem}{}", login_hint(.problem))]
    Unauthorized {
        /// What was tried.
        action: &'static str,
        /// The source.
        url: String,
        /// What happened.
        problem: String,
    },
    /// It is not who it says it is.
    #[error("{url} is not trusted: {problem}")]
    Untrusted {
        /// The source.
        url: String,
        /// Why, and what to do.
        problem: String,
    },
    /// The spec names none, several, or one of a kind that is not served.
    #[error("exactly one source is needed: git, github, gitlab, oci or directory")]
    NoSource,
    /// A text names no OCI repository, or no tag.
    #[error("{name:?} names no OCI repository or tag: {problem}; write host[:port]/path")]
    NoRepositoryName {
        /// The text.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A certificate, a key or a proxy's address can't be used.
    #[error("{what} can't be used: {problem}; correct the Secret")]
    Unusable {
        /// Which.
        what: String,
        /// What is wrong.
        problem: String,
    },
    /// The quota of requests is used up.
    #[error("{url} answers no more requests for now: {problem}; it is asked again when that is over")]
    RateLimited {
        /// The source.
        url: String,
        /// What it said.
        problem: String,
        /// After which time it may be asked again.
        after: Duration,
    },
    /// What came is not what was announced.
    #[error("{what} of {url} is damaged: {problem}; nothing of it is used")]
    Damaged {
        /// Which file or blob.
        what: String,
        /// The source.
        url: String,
        /// Expected and found digest or size.
        problem: String,
    },
    /// A signature that is asked for is missing or not valid.
    #[error("release {release} is not taken, for its signature: {problem}")]
    NotVerified {
        /// The release.
        release: String,
        /// What is missing or wrong.
        problem: NotVerified,
    },
    /// The signatures that are asked for held, and something else is wrong.
    #[error("{error}")]
    Signed {
        /// Who signed.
        signer: Signer,
        /// What is wrong.
        error: Box<SourceError>,
    },
    /// It is the operator's default source, whose login is no Secret.
    #[error("{}", of_default(.error, .variables))]
    OfDefault {
        /// What went wrong.
        error: Box<SourceError>,
        /// The environment variables that hold the login.
        variables: &'static str,
    },
    /// There is no repository.
    #[error("there is no repository at {url}: {problem}; check the URL, and whether it needs a secretRef")]
    NoRepository {
        /// The source.
        url: String,
        /// What happened.
        problem: String,
    },
    /// The tag was deleted.
    #[error("tag {tag} is not in {url} any more")]
    NotFound {
        /// The tag.
        tag: String,
        /// The source.
        url: String,
    },
    /// The tree holds no such stack.
    #[error(
        "the tree of tag {tag} holds no such stack: there is no cluster-class/Chart.yaml in {}; set source.git.path, or publish a new version with the stack in one of these places",
        .tried.join(", ")
    )]
    NoStack {
        /// The tag.
        tag: String,
        /// The directories that were looked at.
        tried: Vec<String>,
    },
    /// It is larger than a release may be.
    #[error("{of} is too large: {limit}; publish less there")]
    TooLarge {
        /// What is too large: a tag's tree, or the repository.
        of: String,
        /// The limit that was passed.
        limit: TooLarge,
    },
    /// The tag points at another commit than when it was listed.
    #[error("tag {tag} was moved: it pointed at {expected}, now it points at {found}")]
    TagMoved {
        /// The tag.
        tag: String,
        /// The commit in the listing.
        expected: String,
        /// The commit that was found.
        found: String,
    },
    /// The tag names another revision, and this one can't be had without it.
    #[error("{revision} can't be fetched from {url} any more: {problem}")]
    RevisionGone {
        /// The revision.
        revision: String,
        /// The source.
        url: String,
        /// Why not.
        problem: String,
    },
    /// The tree holds what a release may not hold.
    #[error("release {tag} can't be used: {path}: {problem}; correct it and publish a new version")]
    Layout {
        /// The tag.
        tag: String,
        /// Where.
        path: String,
        /// What.
        problem: String,
    },
    /// The operator's own disk, or the like.
    #[error("{action} {url} failed on the operator's side: {problem}; it is tried again")]
    Local {
        /// What was tried.
        action: &'static str,
        /// The source.
        url: String,
        /// What happened.
        problem: String,
    },
    /// It was called off.
    #[error("{action} {url} was cancelled")]
    Cancelled {
        /// What was called off.
        action: &'static str,
        /// The source.
        url: String,
    },
    /// It is under way for longer than a pass waits.
    #[error("{url} did not answer yet; it is being read, and looked at when it answered")]
    UnderWay {
        /// The source.
        url: String,
    },
    /// It waits for other sources for longer than a pass waits.
    #[error(
        "{url} was not asked yet: as many other sources as may be at once are being read; it is looked at when it answered"
    )]
    InLine {
        /// The source.
        url: String,
    },
    /// It took too long.
    #[error("{action} {url} took longer than {} s and was given up; it is tried again", .after.as_secs())]
    TimedOut {
        /// What was tried.
        action: &'static str,
        /// The source.
        url: String,
        /// How long was waited.
        after: Duration,
    },
}

/// What is said where a source asks for credentials and none are given.
pub const NO_LOGIN: &str = "it asks for credentials, and there is no secretRef";
/// What is said where a source refuses who shows nothing.
pub(super) const NO_SECRET: &str = "there is no secretRef";
/// How it is said that a registry's host is not among the logins.
pub(in crate::io) const NO_REGISTRY_LOGIN: &str = "there is no login for";

/// What to do about it where `problem` does not say it. No Secret is blamed that nobody named.
fn login_hint(problem: &str) -> &'static str {
    if problem.contains(NO_SECRET) {
        ": name a Secret with credentials in secretRef"
    } else if problem.contains(NO_REGISTRY_LOGIN) {
        ": name a Secret that holds one in secretRef"
    } else if problem.contains("SecretRef") {
        // It says what to put into the Secret of the proxy, or of the certificate.
        ""
    } else {
        "; check the Secret that secretRef names, and its rights"
    }
}

/// What went wrong with the default source. Who runs the operator sets its login; none of the users can.
fn of_default(error: &SourceError, variables: &str) -> String {
    match error {
        SourceError::Unauthorized { action, url, problem } => {
            let problem = problem.strip_suffix(NO_SECRET).map_or(problem.as_str(), |said| said.trim_end_matches("; "));
            format!(
                "{action} {url} is not permitted: {problem}; this is the operator's default source: whoever runs the operator checks its environment variables {variables}, and their rights"
            )
        }
        SourceError::NoRepository { url, problem } => format!(
            "there is no repository at {url}: {problem}; this is the operator's default source: whoever runs the operator checks the place in its environment variables, and whether it needs {variables}"
        ),
        other => other.to_string(),
    }
}

impl SourceError {
    /// The same of a release whose signatures held, if they were asked for.
    #[must_use]
    pub(super) fn signed_by(self, signer: Option<&Signer>) -> Self {
        match signer {
            Some(signer) => Self::Signed { signer: signer.clone(), error: Box::new(self) },
            None => self,
        }
    }

    /// Whether it may go away by itself.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::RateLimited { .. }
            | Self::Damaged { .. }
            | Self::Local { .. }
            | Self::Cancelled { .. }
            | Self::UnderWay { .. }
            | Self::InLine { .. }
            | Self::TimedOut { .. } => true,
            Self::Signed { error, .. } | Self::OfDefault { error, .. } => error.is_transient(),
            Self::Refused(_)
            | Self::Led { .. }
            | Self::NoSource
            | Self::NoRepositoryName { .. }
            | Self::Unusable { .. }
            | Self::NotVerified { .. }
            | Self::Unauthorized { .. }
            | Self::Untrusted { .. }
            | Self::NoRepository { .. }
            | Self::NotFound { .. }
            | Self::NoStack { .. }
            | Self::TooLarge { .. }
            | Self::TagMoved { .. }
            | Self::RevisionGone { .. }
            | Self::Layout { .. } => false,
        }
    }
}

/// What stands in the way, for a condition.
pub fn trouble(error: &SourceError) -> Trouble {
    let (class, reason) = match error {
        SourceError::Signed { signer, error } => return trouble(error).signed_by(&signer.0),
        SourceError::OfDefault { error: what, .. } => {
            return Trouble { message: error.to_string(), ..trouble(what) };
        }
        SourceError::Refused(_) => (ErrorClass::Invalid, Reason::SourceRefused),
        // Where it leads is the source's to mend, without an edit here.
        SourceError::Led { .. } => (ErrorClass::Waiting, Reason::SourceRefused),
        SourceError::NoSource | SourceError::NoRepositoryName { .. } => (ErrorClass::Invalid, Reason::SourceInvalid),
        SourceError::Unusable { .. } => (ErrorClass::Waiting, Reason::SecretInvalid),
        SourceError::RateLimited { .. } => (ErrorClass::Transient, Reason::SourceRateLimited),
        SourceError::UnderWay { .. } | SourceError::InLine { .. } => (ErrorClass::Transient, Reason::Progressing),
        SourceError::Unreachable { .. }
        | SourceError::Local { .. }
        | SourceError::TimedOut { .. }
        | SourceError::Cancelled { .. } => (ErrorClass::Transient, Reason::SourceUnreachable),
        // A Secret or the server may be mended without an edit of the spec.
        SourceError::Unauthorized { .. } | SourceError::Untrusted { .. } => {
            (ErrorClass::Waiting, Reason::SourceUnauthorized)
        }
        SourceError::NoRepository { .. } => (ErrorClass::Waiting, Reason::SourceUnreachable),
        SourceError::NotFound { .. } => (ErrorClass::Waiting, Reason::ReleaseNotFound),
        SourceError::RevisionGone { .. } => (ErrorClass::Invalid, Reason::ArtifactChanged),
        SourceError::TagMoved { .. } | SourceError::Damaged { .. } => (ErrorClass::Transient, Reason::FetchFailed),
        // Keys may be added, or the release be signed, without an edit of the spec.
        SourceError::NotVerified { .. } => (ErrorClass::Waiting, Reason::NotVerified),
        SourceError::NoStack { .. } | SourceError::TooLarge { .. } | SourceError::Layout { .. } => {
            (ErrorClass::Invalid, Reason::ReleaseInvalid)
        }
    };
    Trouble::new(class, reason, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_has_one_hint() {
        let limit = || TooLarge { what: "the number of files".to_owned(), limit: 7 };
        let release = SourceError::TooLarge { of: "release x".to_owned(), limit: limit() }.to_string();
        assert_eq!(release, "release x is too large: the number of files is over the limit of 7; publish less there");
        let (tag, path, problem) = ("x".to_owned(), "a.tgz".to_owned(), limit().to_string());
        let archive = SourceError::Layout { tag, path, problem }.to_string();
        assert!(archive.ends_with("over the limit of 7; correct it and publish a new version"), "{archive}");
    }

    #[test]
    fn hints_do_not_contradict_what_happened() {
        let error = |problem: &str| {
            let (action, url) = ("listing the tags of", "https://x".to_owned());
            SourceError::Unauthorized { action, url, problem: problem.to_owned() }.to_string()
        };
        for (problem, end) in [
            (NO_LOGIN, "there is no secretRef: name a Secret with credentials in secretRef"),
            (
                "it answers 403; there is no secretRef",
                "there is no secretRef: name a Secret with credentials in secretRef",
            ),
            (
                "there is no login for r.example.com",
                "login for r.example.com: name a Secret that holds one in secretRef",
            ),
            ("put it into the Secret of proxySecretRef", "put it into the Secret of proxySecretRef"),
            ("it answers 403", "403; check the Secret that secretRef names, and its rights"),
        ] {
            let said = error(problem);
            assert!(said.ends_with(end), "{said}");
        }
    }

    #[test]
    fn a_signature_that_held_is_told_with_what_went_wrong_behind_it() {
        let error = SourceError::Layout { tag: "x".into(), path: "a".into(), problem: "it is a submodule".into() };
        let signer = Signer("SSH key SHA256:abc".to_owned());
        for (signer, told) in [(Some(&signer), "SSH key SHA256:abc"), (None, "")] {
            let signed = error.clone().signed_by(signer);
            let found = trouble(&signed);
            assert_eq!((found.reason, found.signer.as_str()), (Reason::ReleaseInvalid, told));
            assert_eq!((found.message, signed.is_transient()), (error.to_string(), false));
        }
    }

    #[test]
    fn the_default_source_blames_the_operators_environment_and_no_secret() {
        let (action, url) = ("listing the releases of", "https://api.github.com/x".to_owned());
        for (error, reason) in [
            (
                SourceError::Unauthorized { action, url: url.clone(), problem: "HTTP 401: Bad credentials".into() },
                Reason::SourceUnauthorized,
            ),
            (
                SourceError::Unauthorized {
                    action,
                    url: url.clone(),
                    problem: "HTTP 403; there is no secretRef".into(),
                },
                Reason::SourceUnauthorized,
            ),
            (SourceError::NoRepository { url: url.clone(), problem: "HTTP 404".into() }, Reason::SourceUnreachable),
        ] {
            let found = trouble(&SourceError::OfDefault { error: Box::new(error), variables: "GIT_ACCESS_TOKEN" });
            assert_eq!(found.reason, reason);
            assert!(found.message.contains("environment variables") && found.message.contains("GIT_ACCESS_TOKEN"));
            assert!(!found.message.contains("secretRef") && found.message.contains(&url), "{}", found.message);
        }
        let down = SourceError::Unreachable { action, url, problem: "down".into() };
        let said = SourceError::OfDefault { error: Box::new(down.clone()), variables: "GIT_ACCESS_TOKEN" };
        assert_eq!((said.to_string(), said.is_transient()), (down.to_string(), true));
    }
}
