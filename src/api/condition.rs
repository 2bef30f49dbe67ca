//! Conditions: their types, their reasons, and the one function that sets them.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Longest message in a status, in bytes.
pub const MAX_MESSAGE: usize = 1024;

/// A condition by the Kubernetes API conventions (`metav1.Condition`).
///
/// Read leniently: what the Go operator stored (no reason on a true condition, a `severity`) is no error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition, in CamelCase.
    #[serde(rename = "type")]
    #[schemars(length(max = 316))]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    #[schemars(length(max = 16))]
    pub status: String,
    /// Generation of the object that was seen when the condition was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When the status last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// Why, in one CamelCase word that scripts may rely on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// Why, for people; what to do where something has to be done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32768))]
    pub message: String,
}

impl Condition {
    /// Whether the status is `True`.
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }
}

/// A closed vocabulary: its words on the wire and what they mean, each written once.
macro_rules! vocabulary {
    ($(#[$attr:meta])* $type:ident: $($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        $(#[$attr])*
        pub enum $type { $($(#[doc = $doc])+ $name),+ }

        impl $type {
            /// Every word, for the reference.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The word on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),+ }
            }

            /// The one with this word on the wire; `None` for any other word.
            pub fn named(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.as_str() == word)
            }

            /// What it means, for the reference.
            pub fn doc(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii()),+ }
            }
        }
    };
}

vocabulary! {
    /// The condition types of our objects. They are API.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    ConditionType:
    /// The summary of the others; `kubectl wait` looks at it.
    Ready,
    /// True while only a human can get the object on (kstatus).
    Stalled,
    /// True while the object is being worked on (kstatus).
    Reconciling,
    /// ClusterStack: the source was read and releases were selected.
    ReleasesSynced,
    /// ClusterStack: the source answers.
    AssetsClientAPIAvailable,
    /// ClusterStack: the ClusterStackReleases that are wanted exist, the others are gone.
    ClusterStackReleasesSynced,
    /// ClusterStackRelease: the signatures that `verify` asks for are there; the message names the signer.
    SourceVerified,
    /// True while the source has something else under the release's name than what is applied.
    ArtifactChanged,
    /// ClusterStackRelease: its files are fetched and verified.
    ClusterStackReleaseDownloaded,
    /// ClusterStackRelease: the cluster-class chart rendered.
    HelmChartTemplated,
    /// ClusterStackRelease: every object of the chart is applied.
    HelmChartApplied,
    /// ClusterStackRelease: the provider's object says ready.
    ProviderClusterStackReleaseReady,
    /// ClusterAddon: the API server of the workload cluster answers.
    ClusterReachable,
    /// ClusterAddon: every stage is done.
    StagesDone,
    /// ProviderClusterStackRelease: every image of the release has its object.
    NodeImagesSynced,
    /// ProviderNodeImageRelease: the image is at its destination.
    ImagePublished,
}

vocabulary! {
    /// Reasons of conditions, events and resource rows. They are API: names never change their meaning.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
    Reason:
    /// All is as wanted.
    Ready,
    /// The step succeeded.
    Succeeded,
    /// Work is under way.
    Progressing,
    /// `spec.suspend` is set: nothing is done.
    Suspended,
    /// The object is being deleted.
    Deleting,
    /// A Cluster, a roll-out or a ClusterAddon still uses the release: nothing is deleted.
    InUse,
    /// Clusters could not be listed: nothing is collected or deleted until they can.
    UsageUnknown,
    /// The source can't be reached; it is tried again with growing pauses.
    SourceUnreachable,
    /// The source wants other credentials.
    SourceUnauthorized,
    /// The operator's flags don't allow this source.
    SourceRefused,
    /// `spec.source` is missing or holds not exactly one kind of source.
    SourceInvalid,
    /// The source's quota of requests is used up; it is asked again when the server says so.
    SourceRateLimited,
    /// The ClusterStackSource that `sourceRef` names does not exist, or does not allow this namespace.
    SourceNotAllowed,
    /// The ClusterStackSource that `sourceRef` names is suspended.
    SourceSuspended,
    /// The source has the release, but does not offer it to this ClusterStack.
    NotOffered,
    /// The release waits for `clusterstack approve`.
    WaitsForApproval,
    /// The release was not on offer for as long as `bakeTime` asks.
    Baking,
    /// A signature that `verify` asks for is missing or not valid; nothing was unpacked.
    NotVerified,
    /// The release's digest is not the one that `pin` asks for; nothing was unpacked.
    DigestMismatch,
    /// A signature was verified; the message names the signer.
    Verified,
    /// The Secret that `secretRef` names is missing or lacks its keys.
    SecretInvalid,
    /// No tag of the source is a release that matches the spec.
    NoReleaseFound,
    /// The source has no tag of this release's name.
    ReleaseNotFound,
    /// The tag now names another commit than the one that was applied; the applied one stays.
    ArtifactChanged,
    /// The tag's tree does not hold this cluster stack, or its files contradict each other.
    ReleaseInvalid,
    /// The release's files are fetched.
    Fetching,
    /// The release's files could not be fetched; it is tried again.
    FetchFailed,
    /// The chart does not render.
    RenderFailed,
    /// The chart renders no object, or no ClusterClass where another release has one; what is applied is held.
    EmptyRender,
    /// Some objects could not be applied; `status.resources` says which and why.
    FailedToApplyObjects,
    /// Some applied objects are not healthy yet.
    ObjectsNotHealthy,
    /// Applied objects report a failure.
    ObjectsFailed,
    /// Objects could not be deleted; the deletion goes on when they can.
    FailedToDeleteObjects,
    /// The ServiceAccount by which it was applied is gone, or its rights are: nothing is deleted with other rights.
    ServiceAccountMissing,
    /// An object was left where it is: its release went with its namespace, and the rights to delete it were gone; or it has nothing but
    /// the labels of a release whose inventory was lost.
    Orphaned,
    /// The namespace is being deleted: nothing is applied any more.
    NamespaceTerminating,
    /// `clusterctl move` takes it to another management cluster, or has just brought it here: nothing is made for it.
    Moving,
    /// A release that is wanted is not ready.
    ReleaseNotReady,
    /// The newest release is not ready; an older one is usable.
    NewestReleaseNotReady,
    /// A ClusterStackRelease could not be created or deleted.
    FailedToCreateOrUpdate,
    /// The provider's template does not exist.
    ProviderTemplateNotFound,
    /// The provider's template is of another namespace, which does not share it with this one.
    ProviderTemplateNotAllowed,
    /// The provider's object is not ready yet.
    ProcessOngoing,
    /// The provider's object says it failed.
    ProviderFailed,
    /// The API server serves no such kind; applied when its CustomResourceDefinition comes.
    NoKindMatch,
    /// The API server refuses the object as invalid.
    Invalid,
    /// The API server refuses to change a field that can't be changed once the object is there.
    ImmutableField,
    /// An object was deleted and made anew, because a field that can't be changed did, and the stack allows it.
    Replaced,
    /// The rights do not reach: of the operator, or of `serviceAccountName`.
    Forbidden,
    /// The object belongs to somebody else and is left alone.
    OwnedByOther,
    /// Somebody puts our fields back again and again; the object is left to them for a while.
    DriftFight,
    /// The object differs from the release, and `driftMode: warn` leaves it; or one that waits for its stage was deleted.
    Drifted,
    /// The API server did not answer as hoped; it is tried again.
    ApplyFailed,
    /// The object was changed or deleted by hand and was put back.
    DriftCorrected,
    /// An object that the release no longer contains was deleted.
    Pruned,
    /// The Secret that keeps what random functions draw from was made.
    SeedCreated,
    /// A certificate that a chart makes was made anew, at two thirds of its life.
    CertificateRenewed,
    /// A release was subscribed; the note says what is usable if that is so already.
    ReleaseCreated,
    /// A release that nobody uses was deleted.
    ReleaseCollected,
    /// The ClusterStack asks for no release: it follows none, and names none.
    NothingSubscribed,
    /// The object itself can't be understood; its spec has to change.
    SpecInvalid,
    /// The ClusterStack that owns the release is gone, or the Cluster of the ClusterAddon has not come yet.
    OwnerMissing,
    /// No replica of the operator takes the object's shard class: nothing is done about it.
    ShardClassUnserved,
    /// The object was stored under another schema than this version of the operator knows: it is left alone.
    Unreadable,
    /// The settings in the operator's ConfigMap can't be used: the replicas keep those from before, and do nothing where none were good.
    SettingsInvalid,
    /// A fault of the operator itself ended the pass over this object; it is tried again, ever more seldom.
    InternalError,
    /// The API server of the workload cluster does not answer, or its kubeconfig is not there yet.
    ClusterUnreachable,
    /// The kubeconfig of the workload cluster would run a program or read a file of the operator's: it is not used.
    KubeconfigRefused,
    /// The Cluster is paused: nothing is written to the workload cluster.
    Paused,
    /// The Cluster's ClusterClass is of no release that is known here; what is applied stays.
    ReleaseUnknown,
    /// Values for the addons can't be used; the message names where they come from.
    ValuesInvalid,
    /// The pre-condition of a stage does not hold yet.
    WaitingForPreCondition,
    /// The post-condition of a stage does not hold yet.
    WaitingForPostCondition,
    /// The condition of a stage can't be evaluated.
    ConditionInvalid,
    /// A Helm hook of an addon chart runs; what comes behind it waits.
    WaitingForHelmHook,
    /// A Helm hook of an addon chart failed; it runs again with another rendering, or when somebody asks.
    HelmHookFailed,
    /// The `test` hooks of the addon charts succeeded.
    HelmTestSucceeded,
    /// A `test` hook of an addon chart failed; those behind it were not run.
    HelmTestFailed,
    /// An annotation names a stage that there is not.
    StageUnknown,
    /// Objects of a stage are being deleted.
    DeletingObjects,
    /// A stage is done.
    StageDone,
    /// The time of a stage is over: it goes on to be tried, or was left where it says `onDeadline: continue`.
    StageDeadlineExceeded,
    /// A stage was passed because the annotation `clusterstack.x-k8s.io/skip-stage` asks for it.
    StageSkipped,
    /// A stage of BeforeClusterDelete holds what the cluster needs to its end: it was left.
    StageRefused,
    /// A runtime hook of Cluster API waits for stages; the message names the one whose turn it is.
    HookBlocked,
    /// The release's list of node images can't be used; it has to be corrected and published anew.
    NodeImagesInvalid,
    /// Node images are not there yet; the message names the one that is waited for.
    WaitingForImages,
    /// A node image can't be built before somebody changes something.
    ImageFailed,
    /// A build waits for a place: as many as may run at once do.
    BuildQueued,
    /// A build was held up for a while after a failure, and is tried again.
    BuildRetried,
    /// A build failed, and is not tried again before somebody asks for it.
    BuildFailed,
    /// Somebody cancelled the build; `clusterstack.x-k8s.io/retry-at` starts it anew.
    BuildCancelled,
    /// A step of a build began.
    BuildStepStarted,
    /// A step of a build is done.
    BuildStepDone,
    /// What a finished step had made was lost: it runs again.
    BuildStepRepeated,
    /// Who built was silent for too long; another one goes on.
    BuildHolderLost,
    /// The image is at its destination.
    ImageReady,
    /// The image is not at its destination any more: it is built again.
    ImageLost,
    /// The image at its destination did not say any more that this management cluster uses it: it does again.
    ImageMarked,
    /// No release has the image any more: it was removed from its destination.
    ImageRemoved,
    /// No release has the image any more, and it stays at its destination; the message says why.
    ImageRetained,
    /// No release has the image any more; it is removed when the time of grace is over.
    ImageUnused,
    /// The image can't be removed from its destination; it is tried again.
    ImageRemovalFailed,
    /// A reason of another version of the operator, which this one does not know.
    Unknown,
}

impl<'de> Deserialize<'de> for Reason {
    /// Any word: what a later version wrote must not make an object unreadable after a rollback.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = std::borrow::Cow::<str>::deserialize(deserializer)?;
        Ok(Self::named(&word).unwrap_or(Self::Unknown))
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A message cut at [`MAX_MESSAGE`] bytes, at a character, with an ellipsis.
pub fn cut(message: &str, max: usize) -> String {
    if message.len() <= max {
        return message.to_owned();
    }
    let mut end = max.saturating_sub('…'.len_utf8());
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &message[..end])
}

/// What a condition says, before it is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The condition.
    pub type_: ConditionType,
    /// `Some(true)` is `True`, `None` is `Unknown`.
    pub status: Option<bool>,
    /// Stable reason.
    pub reason: Reason,
    /// For people.
    pub message: String,
}

impl Finding {
    /// `True` with a reason.
    pub fn yes(type_: ConditionType, reason: Reason, message: impl Into<String>) -> Self {
        Self { type_, status: Some(true), reason, message: message.into() }
    }

    /// `False` with a reason.
    pub fn no(type_: ConditionType, reason: Reason, message: impl Into<String>) -> Self {
        Self { type_, status: Some(false), reason, message: message.into() }
    }

    /// `Unknown` with a reason.
    pub fn unknown(type_: ConditionType, reason: Reason, message: impl Into<String>) -> Self {
        Self { type_, status: None, reason, message: message.into() }
    }
}

/// The new list of conditions: exactly those of `findings`, in their order. A transition time is kept while the status
/// stays the same (Kubernetes API conventions).
pub fn set(previous: &[Condition], findings: &[Finding], generation: Option<i64>, now: Timestamp) -> Vec<Condition> {
    findings
        .iter()
        .map(|finding| {
            let status = match finding.status {
                Some(true) => "True",
                Some(false) => "False",
                None => "Unknown",
            };
            let since = previous
                .iter()
                .find(|c| c.type_ == finding.type_.as_str() && c.status == status)
                .and_then(|c| c.last_transition_time.clone());
            Condition {
                type_: finding.type_.as_str().to_owned(),
                status: status.to_owned(),
                observed_generation: generation,
                last_transition_time: Some(since.unwrap_or_else(|| Time(whole_seconds(now)))),
                reason: finding.reason.as_str().to_owned(),
                message: cut(&finding.message, MAX_MESSAGE),
            }
        })
        .collect()
}

/// `metav1.Time` has a resolution of seconds; more would differ after a round trip.
pub fn whole_seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// The condition of a type, if there is one.
pub fn find(conditions: &[Condition], type_: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|c| c.type_ == type_.as_str())
}

/// Ready as it is now, where its state or reason is not what it was.
pub fn readiness_turned<'a>(before: &[Condition], now: &'a [Condition]) -> Option<&'a Condition> {
    let is = |c: &Condition| (c.status.clone(), c.reason.clone());
    let now = find(now, ConditionType::Ready)?;
    (find(before, ConditionType::Ready).map(is) != Some(is(now))).then_some(now)
}

/// A kind whose status has conditions.
pub trait Reported {
    /// What its status says; empty before the first pass.
    fn conditions(&self) -> &[Condition];

    /// Whether it is ready, and why not; `None` before that is said.
    fn ready(&self) -> Option<&Condition> {
        find(self.conditions(), ConditionType::Ready)
    }
}

macro_rules! reported {
    ($($kind:ty),+ $(,)?) => {$(
        impl Reported for $kind {
            fn conditions(&self) -> &[Condition] {
                self.status.as_ref().map_or(&[], |status| &status.conditions)
            }
        }
    )+};
}

reported!(
    super::ClusterAddon,
    super::ClusterStack,
    super::ClusterStackRelease,
    super::ClusterStackSource,
    super::ProviderClusterStackRelease,
    super::ProviderNodeImageRelease,
);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn readiness_turns_with_its_state_or_reason_alone() {
        let ready = |status: &str, reason: &str, message: &str| {
            vec![Condition {
                type_: "Ready".into(),
                status: status.into(),
                reason: reason.into(),
                message: message.into(),
                observed_generation: None,
                last_transition_time: None,
            }]
        };
        let now = ready("False", "ApplyFailed", "b");
        for (before, turns) in [
            (vec![], true),
            (ready("True", "Ready", ""), true),
            (ready("Unknown", "ApplyFailed", "b"), true),
            (ready("False", "RenderFailed", "b"), true),
            (ready("False", "ApplyFailed", "a"), false),
        ] {
            assert_eq!(readiness_turned(&before, &now).is_some(), turns, "{before:?}");
        }
        assert_eq!(readiness_turned(&now, &[]), None, "nothing is said");
    }

    #[test]
    fn a_reason_of_another_version_is_read() {
        let read = |word: &str| serde_json::from_value::<Reason>(word.into()).unwrap();
        assert_eq!([read("Pruned"), read("OfAnotherVersion")], [Reason::Pruned, Reason::Unknown]);
    }

    #[test]
    fn a_transition_time_changes_only_with_the_status() {
        let first = set(&[], &[Finding::no(ConditionType::Ready, Reason::Progressing, "a")], Some(1), at(100));
        let same = set(&first, &[Finding::no(ConditionType::Ready, Reason::FetchFailed, "b")], Some(2), at(200));
        assert_eq!(same[0].last_transition_time, Some(Time(at(100))));
        assert_eq!(same[0].reason, "FetchFailed");
        let flipped = set(&same, &[Finding::yes(ConditionType::Ready, Reason::Ready, "")], Some(2), at(300));
        assert_eq!(flipped[0].last_transition_time, Some(Time(at(300))));
    }

    #[test]
    fn conditions_of_the_go_operator_are_read() {
        let stored = r#"[{"type":"Ready","status":"True","lastTransitionTime":"2025-01-01T00:00:00Z"},
            {"type":"X","status":"False","severity":"Error","reason":"Broken","message":"m","lastTransitionTime":"2025-01-01T00:00:00Z"}]"#;
        let read: Vec<Condition> = serde_json::from_str(stored).unwrap();
        assert!(read[0].is_true());
        assert_eq!(read[1].reason, "Broken");
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let long = "ä".repeat(1000);
        let short = cut(&long, MAX_MESSAGE);
        assert!(short.len() <= MAX_MESSAGE && short.ends_with('…'));
        assert_eq!(cut("short", MAX_MESSAGE), "short");
    }
}
