//! Renders the charts of a release for those who only look: nothing is written, also no seed.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::Releases;
use super::rendering::{Job, ROUNDS, digest_of, input_of};
use crate::api::condition::Reason;
use crate::core::chart::{InputDigest, Needs};
use crate::core::manifest::{Manifest, ObjectKey};
use crate::core::retry::ErrorClass;
use crate::core::status::Trouble;
use crate::io::seed;

/// What a chart would render to.
pub struct Previewed {
    /// In Helm's order.
    pub manifests: Vec<Manifest>,
    /// Those that come from an addon chart's `crds/`.
    pub definitions: BTreeSet<ObjectKey>,
    /// The objects that it looked up by their names.
    pub looked_up: BTreeSet<ObjectKey>,
}

impl Releases {
    /// The objects of a chart as [`Releases::render`] would give them, but for what it would draw anew: keys and passwords
    /// of a seed that does not exist yet are others. Without `asks`, the job's reader is not asked.
    ///
    /// # Errors
    /// As [`Releases::render`]; without `asks` also what the chart looks up.
    pub async fn preview(&self, job: &Job<'_>, asks: bool) -> Result<Previewed, Trouble> {
        let (place, release) = job.place();
        let mut needs = Needs::default();
        let mut imagined = None;
        for _ in 0..ROUNDS {
            let (answers, unanswered) = match needs.lookups.first() {
                None => (BTreeMap::new(), BTreeMap::new()),
                Some(_) if asks => job.reader.answers(&needs.lookups).await?,
                Some(lookup) => {
                    let message = format!("the chart looks up {} in a cluster that can't be asked", lookup.kind);
                    return Err(Trouble::new(ErrorClass::Transient, Reason::RenderFailed, message));
                }
            };
            if (needs.seed || needs.time) && imagined.is_none() {
                imagined = Some(seed::read_or_imagine(job.client, job.seed).await?);
            }
            let now = Timestamp::now();
            let first = imagined.as_ref().map(|kept| {
                let digest = InputDigest::new(&kept.seed, &input_of(&place, &digest_of(&answers, &job.part)));
                kept.memory.times.first(&release, &digest).unwrap_or(now)
            });
            let first = first.filter(|_| needs.time);
            let attempt = self.attempt(job, answers, imagined.as_ref(), (first, now)).await?;
            if needs.extend(&attempt.lacks) {
                continue;
            }
            if let Some(trouble) = attempt.lacks.lookups.iter().find_map(|lookup| unanswered.get(lookup)) {
                return Err(trouble.clone());
            }
            let looked_up = attempt.looked_up();
            return Ok(Previewed { manifests: attempt.manifests?, definitions: attempt.definitions, looked_up });
        }
        let message = format!("the chart looked up something new in each of {ROUNDS} renderings");
        Err(Trouble::new(ErrorClass::Invalid, Reason::RenderFailed, message))
    }
}
