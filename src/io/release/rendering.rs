//! Renders the charts of a release: again with the answers to what it asked for, until it asks for nothing new.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::addon_chart::{Parts, addon_chart, capabilities, stack_values};
use super::{FetchedRelease, Place, Releases, lock, remember};
use crate::api::condition::Reason;
use crate::core::addon::cluster::{HELM_NAMESPACE, HELM_RELEASE};
use crate::core::addon::helm_hooks::HelmHook;
use crate::core::addon::values;
use crate::core::chart::{Capabilities, Document, Drawn, InputDigest, Kept, Lookup, Needs};
use crate::core::files::FileTree;
use crate::core::limits::Limits;
use crate::core::manifest::{Manifest, ManifestError, ObjectKey, manifests};
use crate::core::ownership::Owner;
use crate::core::retry::ErrorClass;
use crate::core::status::Trouble;
use crate::io::lookup::Reader;
use crate::io::render::{self, Subject};
use crate::io::seed;
use crate::io::stuck::{MAX_OF_ONE, MAX_STUCK, Refused, Stuck, Subject as Work};
use crate::io::unpack;

/// Longest time for rendering a chart.
const RENDER: Duration = Duration::from_mins(1);
/// How long what was stopped may take to end before it is told that it did not.
const ENDS: Duration = Duration::from_secs(2);
/// Renderings of each chart that nobody waits for any more and that have not ended.
static STUCK: LazyLock<Stuck> = LazyLock::new(Stuck::default);
/// Most renderings of a chart in a row: each answers what the one before looked up.
pub(super) const ROUNDS: usize = 8;
/// How often in a row somebody else may write the Secret first.
const CONFLICTS: usize = 8;

/// What of a release is rendered.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// The chart with the ClusterClass.
    Class,
    /// An addon chart.
    Addon {
        /// The stage; empty where the release has one chart for everything.
        stage: &'a str,
        /// Values over those of the chart.
        values: &'a Value,
        /// Some of them come from a Secret.
        secret_values: bool,
        /// Groups, versions and kinds that the cluster serves, beside those that Helm knows.
        served: &'a BTreeSet<String>,
    },
}

impl Part<'_> {
    /// What distinguishes the part from others of its release: empty for the class.
    fn suffix(&self) -> String {
        match self {
            Self::Class => String::new(),
            Self::Addon { stage, .. } => format!("/{stage}"),
        }
    }
}

/// How what an addon chart of a release, by the name of its object, keeps in a seed is filed.
pub fn addon_key(release: &str, stage: &str) -> String {
    format!("{release}/{stage}")
}

/// What is to be rendered, and where what it asks for is found.
pub struct Job<'a> {
    /// The release.
    pub release: &'a FetchedRelease,
    /// What of it.
    pub part: Part<'a>,
    /// Answers lookups.
    pub reader: &'a Reader<'a>,
    /// Reads and writes the seed.
    pub client: &'a Client,
    /// Whose seed it is.
    pub seed: &'a Owner,
    /// The releases of the target that exist.
    pub existing: &'a BTreeSet<String>,
}

/// What a release consists of.
pub struct Objects {
    /// In Helm's order, or what stands in the way.
    pub manifests: Result<Vec<Manifest>, Trouble>,
    /// Helm hooks of an addon chart. Those of other charts are among the objects.
    pub hooks: Vec<HelmHook>,
    /// Those of the objects that come from an addon chart's `crds/`.
    pub definitions: BTreeSet<ObjectKey>,
    /// The objects that it looked up by their names.
    pub looked_up: BTreeSet<ObjectKey>,
    /// What is to be told in events, in any case.
    pub told: Vec<(Reason, String)>,
    /// When a certificate in it is to be made anew.
    pub renew: Option<Timestamp>,
}

/// Objects of a chart at most: each has a row in a status, which etcd takes up to 1.5 MiB, and what is applied is found by them.
const MOST_OBJECTS: usize = 4000;

/// Bytes of the rows of a chart's objects at most, with [`ROW`] for what each row has beside the names in it.
const MOST_ROWS: usize = 1300 << 10;
/// What a row of a status takes beside the names of its object, in bytes.
const ROW: usize = 200;

/// Why a status has no room for these objects.
fn has_no_room(objects: &[Manifest]) -> Option<String> {
    let found = objects.len();
    if found > MOST_OBJECTS {
        return Some(format!(
            "the chart renders {found} objects, and a status has room for {MOST_OBJECTS}: split it, or render less"
        ));
    }
    let row = |object: &Manifest| {
        let ObjectKey { group, kind, namespace, name } = &object.key;
        ROW + group.len() + object.version.len() + kind.len() + namespace.len() + name.len()
    };
    (objects.iter().map(row).sum::<usize>() > MOST_ROWS).then(|| {
        format!("the names of the {found} objects that the chart renders are too long together for a status: split it, or shorten them")
    })
}

/// What came of one rendering.
#[derive(Clone)]
pub(super) struct Attempt {
    pub(super) manifests: Result<Vec<Manifest>, Trouble>,
    pub(super) hooks: Vec<HelmHook>,
    pub(super) definitions: BTreeSet<ObjectKey>,
    /// What it asked for in vain.
    pub(super) lacks: Needs,
    /// Keys and certificates it used.
    drawn: Drawn,
    /// Lookups that had an answer.
    answered: BTreeSet<Lookup>,
    /// It asked for the time.
    asked_time: bool,
}

impl Attempt {
    /// Whether it is what would be rendered at that time too: no certificate is due.
    fn holds_at(&self, now: Timestamp) -> bool {
        self.renew().is_none_or(|at| now < at)
    }

    /// When the first of its certificates is to be made anew.
    fn renew(&self) -> Option<Timestamp> {
        self.drawn.values().filter_map(|kept| kept.renew).min()
    }

    /// The objects that it looked up by their names.
    pub(super) fn looked_up(&self) -> BTreeSet<ObjectKey> {
        self.answered.iter().filter_map(Lookup::key).collect()
    }

    fn objects(self, told: Vec<(Reason, String)>) -> Objects {
        let renew = self.renew();
        let looked_up = self.looked_up();
        Objects { manifests: self.manifests, hooks: self.hooks, definitions: self.definitions, looked_up, told, renew }
    }

    /// The certificates that it made anew.
    fn renewed(&self, before: &Drawn) -> Vec<String> {
        let older = |place: &String, kept: &Kept| before.get(place).is_some_and(|old| old.generation < kept.generation);
        let renewed = self.drawn.iter().filter(|(place, kept)| older(place, kept));
        renewed
            .map(|(_, kept)| format!("two thirds of its life are over: made anew the certificate of {}", kept.of))
            .collect()
    }
}

impl Objects {
    fn none(trouble: Trouble, told: Vec<(Reason, String)>) -> Self {
        let (definitions, looked_up) = (BTreeSet::new(), BTreeSet::new());
        Self { manifests: Err(trouble), hooks: Vec::new(), definitions, looked_up, told, renew: None }
    }
}

impl Releases {
    /// The values of an addon chart of a Cluster in `namespace`: the stack's template of values over the Cluster's objects, then `user`.
    ///
    /// # Errors
    /// The template fails or gives no values.
    pub async fn addon_values(
        &self,
        release: &FetchedRelease,
        (namespace, stage): (&str, &str),
        data: &Arc<Value>,
        user: Value,
        served: &Arc<BTreeSet<String>>,
    ) -> Result<Value, Trouble> {
        let (bundle, stage, data) = (Arc::clone(&release.bundle), stage.to_owned(), Arc::clone(data));
        let served = Arc::clone(served);
        let what = format!("{}/{stage} values", release.artifact.digest);
        let of = Work { namespace: namespace.to_owned(), what };
        let what = ("the template of values", Reason::ValuesInvalid);
        let stack = in_time(of, what, move |stop| stack_values(&bundle, &stage, &data, &served, stop)).await??;
        Ok(values::merged([stack, user]))
    }

    /// The objects of a chart of a release. The same release with the same answers and the same seed is rendered once.
    ///
    /// A chart says what it lacks by asking: it is rendered again with the answers, until it asks for nothing new.
    ///
    /// # Errors
    /// The chart does not render, what it renders are no objects, or what it asks for can't be had.
    #[tracing::instrument(name = "render", skip_all)]
    pub async fn render(&self, job: &Job<'_>) -> Result<Objects, Trouble> {
        let (place, release) = job.place();
        let mut needs = lock(&self.needs).get(&place).cloned().unwrap_or_default();
        let mut told = Vec::new();
        let (mut rounds, mut conflicts) = (0, 0);
        while rounds < ROUNDS && conflicts < CONFLICTS {
            let (answers, unanswered) = job.reader.answers(&needs.lookups).await?;
            let wanted = needs.seed || needs.time;
            let kept = if wanted { Some(seed::read_or_make(job.client, job.seed).await?) } else { None };
            if kept.as_ref().is_some_and(|kept| kept.is_new) {
                let note = format!(
                    "made Secret {}: random functions draw from it, and it keeps the time",
                    seed::name(job.seed)
                );
                told.push((Reason::SeedCreated, note));
            }
            let now = Timestamp::now();
            let answered = digest_of(&answers, &job.part);
            let digest = kept.as_ref().map(|kept| InputDigest::new(&kept.seed, &input_of(&place, &answered)));
            let first =
                kept.as_ref().zip(digest.as_ref()).and_then(|(kept, digest)| kept.memory.times.first(&release, digest));
            let first = needs.time.then(|| first.unwrap_or(now));
            let input = (answered, kept.as_ref().map(|kept| kept.version.clone()));
            let known =
                lock(&self.rendered).get(&place).filter(|(of, known)| *of == input && known.holds_at(now)).cloned();
            let attempt = match known {
                Some((_, known)) => known,
                None => self.attempt(job, answers, kept.as_ref(), (first, now)).await?,
            };
            if needs.extend(&attempt.lacks) {
                rounds += 1;
                continue;
            }
            let trouble = attempt.lacks.lookups.iter().find_map(|lookup| unanswered.get(lookup));
            let trouble = trouble.or(attempt.manifests.as_ref().err()).cloned();
            // A rendering that fails may have asked for it too.
            let asked = digest.zip(first).filter(|_| attempt.asked_time || trouble.is_some());
            if let Some(trouble) = trouble {
                if let Some(kept) = kept.as_ref().filter(|_| asked.is_some()) {
                    let times = kept.memory.times.settled(&release, asked, job.existing);
                    let memory = seed::Memory { times, ..kept.memory.clone() };
                    if memory != kept.memory {
                        // Another one's write is as good: the next pass finds what it finds.
                        seed::write(job.client, job.seed, kept, memory).await?;
                    }
                }
                // What it asked for may have been a mistake: the next pass finds out anew.
                lock(&self.needs).remove(&place);
                return Ok(Objects::none(trouble, told));
            }
            needs.lookups.clone_from(&attempt.answered);
            remember(&self.needs, place.clone(), needs);
            let Some(kept) = kept else {
                remember(&self.rendered, place, (input, attempt.clone()));
                return Ok(attempt.objects(told));
            };
            let renewed = attempt.renewed(&kept.memory.keyring.drawn());
            let memory = seed::Memory {
                keyring: kept.memory.keyring.settled(&release, &attempt.drawn, job.existing),
                times: kept.memory.times.settled(&release, asked, job.existing),
            };
            let kept = if memory == kept.memory {
                kept
            } else {
                // Kept before it is applied: a process that dies in between finds the same again.
                let Some(written) = seed::write(job.client, job.seed, &kept, memory).await? else {
                    conflicts += 1;
                    needs = lock(&self.needs).get(&place).cloned().unwrap_or_default();
                    continue;
                };
                written
            };
            told.extend(renewed.into_iter().map(|what| (Reason::CertificateRenewed, what)));
            remember(&self.rendered, place, ((answered, Some(kept.version)), attempt.clone()));
            return Ok(attempt.objects(told));
        }
        lock(&self.needs).remove(&place);
        let asked: Vec<String> =
            needs.lookups.iter().take(8).map(|l| format!("{} {}/{}", l.kind, l.namespace, l.name)).collect();
        let trouble = if conflicts < CONFLICTS {
            let message =
                format!("the chart looked up something new in each of {ROUNDS} renderings: {}", asked.join(", "));
            Trouble::new(ErrorClass::Invalid, Reason::RenderFailed, message)
        } else {
            let message = format!("Secret {} was changed by others again and again", seed::name(job.seed));
            Trouble::new(ErrorClass::Transient, Reason::RenderFailed, message)
        };
        Ok(Objects::none(trouble, told))
    }

    /// One rendering.
    pub(super) async fn attempt(
        &self,
        job: &Job<'_>,
        answers: BTreeMap<Lookup, Value>,
        kept: Option<&seed::Kept>,
        (first, now): (Option<Timestamp>, Timestamp),
    ) -> Result<Attempt, Trouble> {
        let bundle = Arc::clone(&job.release.bundle);
        let (files, release, namespace, values) = match job.part {
            Part::Class => (Some(&bundle.class_chart), bundle.name.stem(), job.seed.namespace.clone(), Value::Null),
            Part::Addon { stage, values, .. } => {
                (addon_chart(&bundle, stage), HELM_RELEASE.to_owned(), HELM_NAMESPACE.to_owned(), values.clone())
            }
        };
        let Some(files) = files.cloned() else {
            let message = format!("release {} has no addon chart of that stage", bundle.name);
            return Err(Trouble::new(ErrorClass::Bug, Reason::RenderFailed, message));
        };
        let is_addon = matches!(job.part, Part::Addon { .. });
        let mut subject = Subject {
            release,
            namespace,
            values,
            secret_values: matches!(job.part, Part::Addon { secret_values: true, .. }),
            capabilities: match job.part {
                Part::Addon { served, .. } => capabilities(&bundle.kubernetes_version, served),
                Part::Class => Capabilities::default(),
            },
            include_crds: is_addon,
            first,
            seed: kept.map(|kept| kept.seed),
            drawn: kept.map(|kept| kept.memory.keyring.drawn()).unwrap_or_default(),
            answers,
            clock: now,
            stop: None,
        };
        // Whoever it is rendered for: what never ends for one does not end for another.
        let what = format!("{}{}", job.release.artifact.digest, job.part.suffix());
        let of = Work { namespace: job.seed.namespace.clone(), what };
        in_time(of, ("the chart", Reason::RenderFailed), move |stop| {
            subject.stop = Some(stop);
            render_chart(files, &subject)
        })
        .await
    }
}

/// Tells a blocking worker to stop when the future that waits for it is dropped.
#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Job<'_> {
    /// Where what is known of this rendering is kept, in memory and in the seed.
    pub(super) fn place(&self) -> (Place, String) {
        let name = &self.release.bundle.name;
        let target = match self.part {
            Part::Class => self.seed.namespace.clone(),
            Part::Addon { .. } => format!("{}/{}", self.seed.namespace, self.seed.name),
        };
        let suffix = self.part.suffix();
        let place = (self.release.artifact.digest.clone(), format!("{name}{suffix}"), target);
        (place, format!("{}{suffix}", name.object_name()))
    }
}

fn all_of(documents: Vec<Document>) -> Result<Parts, ManifestError> {
    let is_test = |document: &Document| {
        document.hook.as_ref().is_some_and(|hook| hook.events.iter().all(|event| event.starts_with("test")))
    };
    let others = documents.into_iter().filter(|document| !is_test(document));
    let objects = manifests(others.map(|document| document.object))?;
    Ok(Parts { objects, ..Parts::default() })
}

fn render_chart(files: FileTree, subject: &Subject) -> Attempt {
    let failed = |error: String| Trouble::new(ErrorClass::Invalid, Reason::RenderFailed, error);
    let mut attempt = Attempt {
        manifests: Ok(Vec::new()),
        hooks: Vec::new(),
        definitions: BTreeSet::new(),
        lacks: Needs::default(),
        drawn: Drawn::new(),
        answered: BTreeSet::new(),
        asked_time: false,
    };
    let rendered = match unpack::expand_charts(files, &Limits::default()) {
        Ok(files) => render::chart(&files, subject),
        Err(error) => {
            attempt.manifests = Err(failed(error.to_string()));
            return attempt;
        }
    };
    match rendered {
        Ok(rendered) => {
            attempt.lacks.lookups = rendered.missing_lookups;
            attempt.answered = rendered.answered_lookups;
            attempt.drawn = rendered.drawn;
            attempt.asked_time = rendered.asked_time;
            let mut hidden = rendered.secrets;
            if subject.secret_values {
                hidden.add_values(&subject.values);
            }
            let hidden = Arc::new(hidden);
            let is_addon = subject.include_crds;
            let parts = if is_addon { Parts::of(rendered.documents) } else { all_of(rendered.documents) };
            match parts {
                Ok(parts) => {
                    if let Some(why) = has_no_room(&parts.objects) {
                        attempt.manifests = Err(failed(why));
                        return attempt;
                    }
                    attempt.definitions = parts.definitions;
                    let hooks = parts.hooks.into_iter();
                    attempt.hooks =
                        hooks.map(|hook| HelmHook { manifest: hook.manifest.hiding(&hidden), ..hook }).collect();
                    attempt.manifests = Ok(parts.objects.into_iter().map(|object| object.hiding(&hidden)).collect());
                }
                Err(error) => attempt.manifests = Err(failed(hidden.hide(&error.to_string()))),
            }
        }
        Err(error) => {
            attempt.lacks = error.lacks();
            attempt.manifests = Err(failed(error.shown(subject)));
        }
    }
    attempt
}

/// All that a rendering depends on but for what the Secret keeps.
pub(super) fn input_of((artifact, release, namespace): &Place, answers: &[u8; 32]) -> Vec<u8> {
    [artifact.as_bytes(), release.as_bytes(), namespace.as_bytes(), answers].join(&0)
}

pub(super) fn digest_of(answers: &BTreeMap<Lookup, Value>, part: &Part<'_>) -> [u8; 32] {
    let mut digest = Sha256::new();
    if let Part::Addon { values, served, .. } = part {
        digest.update(format!("{values}\0"));
        for version in *served {
            digest.update(format!("{version}\0"));
        }
    }
    for (lookup, answer) in answers {
        digest.update(format!("{lookup:?}\0{answer}\0"));
    }
    digest.finalize().into()
}

/// Renders, for a limited time: then, and when nobody waits for it any more, the flag is set that `work` is given. A worker
/// that does not heed it is counted: what it renders is not begun again, and nothing is where there are many.
async fn in_time<T: Send + 'static>(
    of: Work,
    (what, reason): (&str, Reason),
    work: impl FnOnce(Arc<AtomicBool>) -> T + Send + 'static,
) -> Result<T, Trouble> {
    let seconds = RENDER.as_secs();
    if let Some(why) = STUCK.refused_after(ENDS, &of).await {
        let message = match why {
            Refused::Own => {
                format!("a rendering of {what} that took too long has not ended yet: let it make less at once")
            }
            Refused::Namespace => format!(
                "{what} is not rendered: {MAX_OF_ONE} renderings for this namespace took more than {seconds} s and have not ended yet"
            ),
            Refused::Full => format!(
                "{what} is not rendered: {MAX_STUCK} renderings took more than {seconds} s and have not ended yet"
            ),
        };
        return Err(Trouble::new(ErrorClass::Transient, reason, message));
    }
    let stop = StopOnDrop::default();
    let flag = Arc::clone(&stop.0);
    let (awaited, worker) = STUCK.begin(of);
    let work = blocking(move || {
        let _ended = worker;
        work(flag)
    });
    let rendered = tokio::time::timeout(RENDER, work).await.unwrap_or_else(|_| {
        Err(Trouble::new(ErrorClass::Invalid, reason, format!("{what} did not render within {seconds} s")))
    });
    drop(awaited);
    rendered
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Trouble> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Trouble::new(ErrorClass::Bug, Reason::RenderFailed, format!("a worker failed: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_room_for_so_many_objects_with_names_of_such_length() {
        let objects = |count: usize, group: usize| -> Vec<Manifest> {
            let object = |at: usize| {
                let api_version = format!("{}.example.com/v1", "g".repeat(group));
                let name = format!("object-{at}");
                let object =
                    serde_json::json!({"apiVersion": api_version, "kind": "Thing", "metadata": {"name": name}});
                Manifest::from_value(object).unwrap()
            };
            (0..count).map(object).collect()
        };
        for (count, group, expected) in [
            (MOST_OBJECTS, 40, None),
            (MOST_OBJECTS + 1, 1, Some("has room for 4000")),
            (MOST_OBJECTS, 200, Some("too long together")),
            (1000, 200, None),
        ] {
            let why = has_no_room(&objects(count, group));
            assert_eq!(why.is_some(), expected.is_some(), "{why:?}");
            assert!(expected.is_none_or(|part| why.unwrap_or_default().contains(part)));
        }
    }
}
