//! The status of a ProviderClusterStackRelease: what its images have come to.

use jiff::Timestamp;

use super::{StepState, Trouble};
use crate::api::condition::{self, ConditionType, Finding, MAX_MESSAGE, Reason, cut};
use crate::api::image_release::{ImagePhase, ProviderNodeImageReleaseStatus as ImageStatus};
use crate::api::provider_release::{ProviderClusterStackReleaseStatus as Status, ReleaseImage};
use crate::core::retry::ErrorClass;

/// Longest message of an image in the list, in bytes.
const MAX_ROW: usize = 512;

/// Longest words of the API server that are told of an image, in bytes.
const MAX_WORDS: usize = 600;
/// How the API server says that etcd takes no object of this size: as a fault of its own.
const TOO_LARGE: [&str; 2] = ["request is too large", "trying to send message larger than max"];
/// Longest name of the image that is waited for, in bytes.
const MAX_NAME: usize = 253;

/// What one pass over a ProviderClusterStackRelease found.
#[derive(Clone, Debug, Default)]
pub struct ProviderReleaseFacts {
    /// Generation of the object.
    pub generation: Option<i64>,
    /// Name of the template.
    pub template: String,
    /// Digest of the artifact that the list was read from.
    pub artifact: String,
    /// Whether every image has its object.
    pub synced: StepState,
    /// The images; `None` where they are not known, and what stands there stays.
    pub images: Option<Vec<ReleaseImage>>,
}

/// An image of the list, by what its object says.
pub fn release_image(object: &str, name: &str, status: Option<&ImageStatus>) -> ReleaseImage {
    let ready = status.and_then(|status| condition::find(&status.conditions, ConditionType::Ready));
    ReleaseImage {
        object: object.to_owned(),
        name: name.to_owned(),
        phase: status.map(|status| status.phase).unwrap_or_default(),
        location: status.map(|status| status.location.clone()).unwrap_or_default(),
        message: ready.filter(|ready| !ready.is_true()).map(|ready| cut(&ready.message, MAX_ROW)).unwrap_or_default(),
    }
}

/// The same of an image whose object the API server refused; `status` is that of the object, if it is there nevertheless.
pub fn refused_image(object: &str, name: &str, status: Option<&ImageStatus>, trouble: &Trouble) -> ReleaseImage {
    ReleaseImage { message: cut(&trouble.message, MAX_ROW), ..release_image(object, name, status) }
}

/// What is said of images whose objects the API server refused: of the first that only a new list helps, else of the first.
pub fn refused(troubles: &[Trouble]) -> Option<Trouble> {
    let lasting = troubles.iter().find(|trouble| trouble.class == ErrorClass::Invalid);
    let told = lasting.or(troubles.first())?;
    let more = match troubles.len() {
        1 => String::new(),
        many => format!("; {} more are refused", many - 1),
    };
    Some(Trouble { message: format!("{}{more}", told.message), ..told.clone() })
}

/// Why an image has no object, from the API server's words: what its schema or its size refuses takes another list, what a quota
/// or somebody's admission webhook refuses may come.
pub fn refusal_of_image(name: &str, reason: Reason, words: &str) -> Trouble {
    let (name, words) = (cut(name, MAX_NAME), cut(words, MAX_WORDS));
    let is_too_large = TOO_LARGE.iter().any(|sign| words.contains(sign));
    match reason {
        Reason::Invalid | Reason::ImmutableField => Trouble::new(
            ErrorClass::Invalid,
            Reason::NodeImagesInvalid,
            format!("image {name}: {words}; correct the list of node images and publish a new version"),
        ),
        _ if is_too_large => Trouble::new(
            ErrorClass::Invalid,
            Reason::NodeImagesInvalid,
            format!(
                "image {name} is too large for an object: {words}; make its steps or properties smaller and publish a new version"
            ),
        ),
        Reason::NamespaceTerminating => Trouble::new(ErrorClass::Waiting, reason, format!("image {name}: {words}")),
        reason => Trouble::new(ErrorClass::Transient, reason, format!("image {name}: {words}; it is tried again")),
    }
}

/// The status of a ProviderClusterStackRelease.
pub fn provider_release_status(previous: &Status, facts: &ProviderReleaseFacts, now: Timestamp) -> Status {
    let images = facts.images.clone().unwrap_or_else(|| previous.node_images.clone());
    let is_ready = |image: &&ReleaseImage| image.phase == ImagePhase::Succeeded;
    let (total, there) = (images.len(), images.iter().filter(is_ready).count());
    let failed: Vec<&ReleaseImage> = images.iter().filter(|image| image.phase == ImagePhase::Failed).collect();
    let waiting = images.iter().find(|image| !is_ready(image));
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let failure = match (&facts.synced, failed.first()) {
        (StepState::Failed(trouble), _) if trouble.class == ErrorClass::Invalid => {
            Some((trouble.reason, trouble.message.clone()))
        }
        (_, Some(image)) => {
            let more = match failed.len() {
                1 => String::new(),
                many => format!("; {} more failed", many - 1),
            };
            Some((Reason::ImageFailed, format!("image {}: {}{more}", image.name, image.message)))
        }
        _ => None,
    };
    let (reason, message) = failure.clone().unzip();
    let done = format!("{there} of {total} node images are there");
    let ready = match (&facts.synced, failure, waiting) {
        (_, Some((reason, message)), _) => Finding::no(ConditionType::Ready, reason, message),
        // What is there does not go because the release can't be read just now. Where it can, an image has no object.
        (StepState::Failed(trouble), None, _) if !previous.ready || facts.images.is_some() => {
            Finding::no(ConditionType::Ready, trouble.reason, &trouble.message)
        }
        (_, None, Some(image)) => {
            let colon = if image.message.is_empty() { "" } else { ": " };
            let message = format!("{done}; waiting for {}{colon}{}", image.name, image.message);
            Finding::no(ConditionType::Ready, Reason::WaitingForImages, message)
        }
        (StepState::Running(reason, message), None, None) if !previous.ready => {
            Finding::no(ConditionType::Ready, *reason, message)
        }
        (_, None, None) => Finding::yes(ConditionType::Ready, Reason::Ready, done),
    };
    let is_ready = ready.status == Some(true);
    let mut findings = vec![ready.clone()];
    findings.extend(facts.synced.finding(ConditionType::NodeImagesSynced));
    if !is_ready {
        let type_ = if reason.is_some() { ConditionType::Stalled } else { ConditionType::Reconciling };
        findings.push(Finding::yes(type_, ready.reason, &ready.message));
    }
    Status {
        ready: is_ready,
        failure_reason: reason.map(|reason| reason.to_string()),
        failure_message: message.map(|message| cut(&message, MAX_MESSAGE)),
        images: format!("{there}/{total}"),
        images_total: count(total),
        images_ready: count(there),
        waits_for: waiting.map(|image| cut(&image.name, MAX_NAME)).unwrap_or_default(),
        node_images: images,
        template: facts.template.clone(),
        artifact: if facts.artifact.is_empty() { previous.artifact.clone() } else { facts.artifact.clone() },
        observed_generation: facts.generation,
        conditions: condition::set(&previous.conditions, &findings, facts.generation, now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str, phase: ImagePhase) -> ReleaseImage {
        ReleaseImage { object: name.into(), name: name.into(), phase, message: "m".into(), ..ReleaseImage::default() }
    }

    fn status(synced: StepState, images: Option<Vec<ReleaseImage>>) -> Status {
        after(&Status::default(), synced, images)
    }

    fn after(previous: &Status, synced: StepState, images: Option<Vec<ReleaseImage>>) -> Status {
        let facts = ProviderReleaseFacts { synced, images, ..ProviderReleaseFacts::default() };
        provider_release_status(previous, &facts, Timestamp::from_second(1).unwrap())
    }

    #[test]
    fn a_release_is_ready_when_its_images_are_and_says_which_one_it_waits_for() {
        use ImagePhase::{Cancelled, Failed, Queued, Running, Succeeded};
        let done = || StepState::Done(String::new());
        for (phases, ready, failure, waits_for, shown) in [
            (vec![], true, None, "", "0/0"),
            (vec![Succeeded, Succeeded], true, None, "", "2/2"),
            (vec![Succeeded, Running, Queued], false, None, "b", "1/3"),
            (vec![Queued, Failed], false, Some("ImageFailed"), "a", "0/2"),
            (vec![Succeeded, Cancelled], false, None, "b", "1/2"),
        ] {
            let images = ["a", "b", "c"].iter().zip(phases).map(|(name, phase)| image(name, phase)).collect();
            let status = status(done(), Some(images));
            assert_eq!(
                (status.ready, status.failure_reason.as_deref(), status.waits_for.as_str(), status.images.as_str()),
                (ready, failure, waits_for, shown)
            );
        }
        let waiting = status(done(), Some(vec![image("a", Queued)]));
        let ready = condition::find(&waiting.conditions, ConditionType::Ready).unwrap();
        assert_eq!(ready.message, "0 of 1 node images are there; waiting for a: m");
        let failed = status(done(), Some(vec![image("a", Failed), image("b", Failed)]));
        assert_eq!(failed.failure_message.unwrap(), "image a: m; 1 more failed");
    }

    #[test]
    fn an_image_without_an_object_is_told_whatever_was_there_before() {
        let too_large = "etcdserver: request is too large";
        for (reason, words, expected, class) in [
            (Reason::Invalid, "name is \"\"", Reason::NodeImagesInvalid, ErrorClass::Invalid),
            (Reason::ApplyFailed, too_large, Reason::NodeImagesInvalid, ErrorClass::Invalid),
            (Reason::Forbidden, "exceeded quota", Reason::Forbidden, ErrorClass::Transient),
            (Reason::ApplyFailed, "timeout", Reason::ApplyFailed, ErrorClass::Transient),
            (Reason::NamespaceTerminating, "going", Reason::NamespaceTerminating, ErrorClass::Waiting),
        ] {
            let trouble = refusal_of_image("b", reason, words);
            assert_eq!((trouble.reason, trouble.class), (expected, class), "{words}");
            let rows = vec![
                image("a", ImagePhase::Succeeded),
                refused_image("b-1", "b", None, &trouble),
                image("c", ImagePhase::Running),
            ];
            let before = Status { ready: true, images: "3/3".into(), ..Status::default() };
            for previous in [Status::default(), before] {
                let status = after(&previous, StepState::Failed(trouble.clone()), Some(rows.clone()));
                let ready = condition::find(&status.conditions, ConditionType::Ready).unwrap();
                assert_eq!((status.ready, status.images.as_str(), status.waits_for.as_str()), (false, "1/3", "b"));
                assert_eq!(ready.reason, expected.to_string());
                assert!(ready.message.contains("image b") && ready.message.contains(words), "{}", ready.message);
                assert_eq!(status.node_images[1].message, trouble.message);
                assert_eq!(status.failure_reason.is_some(), class == ErrorClass::Invalid);
            }
        }
    }

    #[test]
    fn of_many_refused_images_the_one_is_told_that_only_a_new_list_helps() {
        let quota = refusal_of_image("a", Reason::Forbidden, "exceeded quota");
        let invalid = refusal_of_image("b", Reason::Invalid, "too long");
        assert_eq!(refused(&[]), None);
        assert_eq!(refused(std::slice::from_ref(&quota)), Some(quota.clone()));
        let both = refused(&[quota, invalid]).unwrap();
        assert_eq!(both.class, ErrorClass::Invalid);
        assert!(both.message.starts_with("image b: ") && both.message.ends_with("; 1 more are refused"), "{both:?}");
    }

    #[test]
    fn a_long_name_is_cut_where_there_is_no_room_for_it() {
        let long = image(&"n".repeat(1024), ImagePhase::Running);
        let status = status(StepState::Done(String::new()), Some(vec![long]));
        assert_eq!((status.waits_for.len(), status.node_images[0].name.len()), (253, 1024));
    }

    #[test]
    fn what_is_there_stays_while_the_release_can_t_be_read() {
        let waits = || StepState::Failed(Trouble::new(ErrorClass::Waiting, Reason::Fetching, "not fetched yet"));
        let first = status(waits(), None);
        assert_eq!((first.ready, first.failure_reason.clone()), (false, None));
        let ready = after(&first, StepState::Done(String::new()), Some(vec![image("a", ImagePhase::Succeeded)]));
        let later = after(&ready, waits(), None);
        assert!(ready.ready && later.ready);
        assert_eq!(later.node_images, ready.node_images);
        let invalid = Trouble::new(ErrorClass::Invalid, Reason::NodeImagesInvalid, "step 2");
        let refused = after(&ready, StepState::Failed(invalid), None);
        assert_eq!((refused.ready, refused.failure_reason.as_deref()), (false, Some("NodeImagesInvalid")));
    }
}
