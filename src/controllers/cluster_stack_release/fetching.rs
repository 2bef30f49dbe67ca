//! The files of a release, and what they render to.

use std::collections::BTreeSet;

use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::reflector::ObjectRef;
use serde_json::json;

use super::Pass;
use crate::api::cluster_stack_release::Artifact;
use crate::api::condition::{Reason, Reported};
use crate::api::{APPROVED, ClusterStackRelease, DIGEST, FIELD_MANAGER, REVISION};
use crate::controllers::origin::{Origin, own_demand};
use crate::controllers::turns::in_turn;
use crate::controllers::{cluster_stack, deletion, provider};
use crate::core::manifest::Manifest;
use crate::core::name::ReleaseName;
use crate::core::retry::ErrorClass;
use crate::core::selection::{has_gate, may_take};
use crate::core::status::{ReleaseFacts, StepState, Trouble};
use crate::io::lookup::Reader;
use crate::io::release::{FetchedRelease, Job, Objects, Part, Upstream, Wanted};
use crate::io::report;
use crate::io::source::flights::Waiter;
use crate::io::source::trust::{Demand, asked_of};

impl Pass<'_> {
    /// Fetches, verifies, reads and renders the release; waits for its provider. `None` where the pass ends there.
    pub(super) async fn fetch_and_render(&self, facts: &mut ReleaseFacts) -> Option<Vec<Manifest>> {
        let Some(name) =
            ReleaseName::of_stack(&self.release.name_any(), &self.stack.spec.provider, &self.stack.spec.name)
        else {
            let message = "its name is no release of its ClusterStack; delete it";
            facts.downloaded = StepState::Failed(Trouble::new(ErrorClass::Invalid, Reason::SpecInvalid, message));
            return None;
        };
        facts.artifact = facts.artifact.take().or_else(|| self.remembered());
        // Its source may lead elsewhere from now on.
        let is_edited = !facts.reconcile_at.is_empty() && self.asked != facts.reconcile_at;
        if let Some(had) = facts.artifact.as_ref().filter(|had| is_edited && !had.digest.is_empty()) {
            self.note_files(had).await;
        }
        let origin = Origin::of(self.stack, self.ctx).await;
        facts.verify = asked_of(&self.demands(origin.as_ref().ok()));
        let before = self.fetch(&name, origin.as_ref(), facts.artifact.as_ref()).await;
        let fetched = match self.as_it_is_now(before, &name, origin.as_ref(), facts).await {
            Ok(fetched) => fetched,
            Err(trouble) => {
                // What was applied does not get worse because its source is away and the store was lost.
                facts.holds = self.release.status.as_ref().is_some_and(|status| status.ready);
                if trouble.reason == Reason::ArtifactChanged {
                    facts.changed_upstream = Some(trouble.message.clone());
                }
                facts.downloaded = StepState::Failed(trouble);
                return None;
            }
        };
        match &fetched.upstream {
            Upstream::Changed(changed) => {
                if facts.changed_upstream.as_ref() != Some(changed) {
                    self.ctx.events.say(self.release, Reason::ArtifactChanged, changed).await;
                }
                facts.changed_upstream = Some(changed.clone());
            }
            Upstream::Same => facts.changed_upstream = None,
            // It was so when the source last answered.
            Upstream::Unknown => {}
        }
        facts.downloaded = match &facts.changed_upstream {
            Some(changed) => StepState::Remarked(Reason::ArtifactChanged, changed.clone()),
            None => StepState::Done(fetched.bundle.remarks.join("; ")),
        };
        facts.kubernetes_version.clone_from(&fetched.bundle.kubernetes_version);
        facts.node_versions = fetched.bundle.node_versions();
        facts.artifact = Some(fetched.artifact.clone());
        if !self.notes(REVISION, &fetched.artifact.revision) && !self.note_files(&fetched.artifact).await {
            let message = "which files it has could not be noted in its annotations, and nothing is applied before";
            facts.downloaded = StepState::Failed(Trouble::new(ErrorClass::Transient, Reason::FetchFailed, message));
            return None;
        }
        if let Some(reference) = &self.release.spec.provider_ref {
            let template = origin.and_then(|origin| origin.template(self.stack));
            let state = provider::ensure(self.release, template, reference, self.ctx).await;
            let is_done = matches!(state, StepState::Done(_));
            facts.provider = Some(state);
            // What was applied before is looked after while the release goes, too.
            if !is_done && (facts.deletion.is_none() || facts.resources.is_empty()) {
                return None;
            }
        }
        let rendered = match self.render(&fetched).await {
            Ok(objects) => {
                for (reason, note) in &objects.told {
                    self.ctx.events.say(self.release, *reason, note).await;
                }
                facts.renew = objects.renew;
                objects.manifests
            }
            Err(trouble) => Err(trouble),
        };
        match rendered {
            Ok(manifests) => {
                facts.templated = StepState::Done(String::new());
                Some(manifests)
            }
            Err(trouble) => {
                facts.templated = StepState::Failed(trouble);
                None
            }
        }
    }

    /// What the release was made for, as its annotation tells that it has from the poll that found it: where its status is lost, as by a
    /// move or a restore, or where a human approved it or it was on offer for a time. A tag that moved meanwhile is another release.
    fn remembered(&self) -> Option<Artifact> {
        let is_bound = self.is_lost() || has_gate(&self.stack.spec);
        let noted = self.release.annotations();
        let revision = noted.get(REVISION).filter(|_| is_bound)?.clone();
        let digest = noted.get(DIGEST).cloned().unwrap_or_default();
        Some(Artifact { revision, digest, ..Artifact::default() })
    }

    /// Whether the release lost its status, or the process that made it ended before it had one.
    fn is_lost(&self) -> bool {
        self.release.conditions().is_empty() && !self.ctx.memory.is_new(&self.uid())
    }

    /// The files that the source has now where nothing came of those that were fetched before: they need no protection.
    async fn as_it_is_now(
        &self,
        before: Result<FetchedRelease, Trouble>,
        name: &ReleaseName,
        origin: Result<&Origin, &Trouble>,
        facts: &ReleaseFacts,
    ) -> Result<FetchedRelease, Trouble> {
        // Somebody edited the ClusterStack, the place in its source perhaps, or asks for another look.
        let asks = self.asked != facts.reconcile_at;
        let may_be_another = match &before {
            Ok(fetched) => asks || matches!(fetched.upstream, Upstream::Changed(_)),
            Err(trouble) => {
                [Reason::ArtifactChanged, Reason::DigestMismatch, Reason::NotVerified].contains(&trouble.reason)
            }
        };
        // Of a status that is lost nobody knows yet what came of it, nor whether its objects are still to come.
        let came_of_it = !facts.resources.is_empty()
            || !facts.retained.is_empty()
            || self.release.spec.provider_ref.is_some()
            || self.is_lost();
        let Some(had) = facts.artifact.as_ref().filter(|_| may_be_another && !came_of_it) else { return before };
        let now = match self.fetch(name, origin, None).await {
            Ok(now) => now,
            // What was found wrong with the files of before is not what comes of those that are on their way to who asked.
            Err(trouble) if trouble.reason == Reason::Progressing && self.is_awaited(&before) => return Err(trouble),
            Err(_) => return before,
        };
        let is_same = now.artifact.digest == had.digest && (before.is_ok() || now.artifact.revision == had.revision);
        let approved = self.stack.annotations().get(APPROVED).map_or("", String::as_str);
        let may_be_taken = may_take(&self.stack.spec, approved, &name.version, &now.artifact.revision);
        if is_same || !may_be_taken || self.has_objects().await {
            return before;
        }
        let note = format!(
            "nothing of {name} at {} ({}) was applied, so what the source has now is taken: {} ({})",
            had.revision, had.digest, now.artifact.revision, now.artifact.digest
        );
        self.ctx.events.say(self.release, Reason::ArtifactChanged, &note).await;
        Ok(now)
    }

    /// Whether the source has other files than those of before, or somebody asked for what it has since they were looked at.
    fn is_awaited(&self, before: &Result<FetchedRelease, Trouble>) -> bool {
        let attempted = self.release.status.as_ref().map(|status| &status.last_attempted_reconcile_at);
        let handled = self.stack.status.as_ref().map(|status| &status.last_handled_reconcile_at);
        let is_changed = before.as_ref().is_ok_and(|before| matches!(before.upstream, Upstream::Changed(_)));
        is_changed || attempted.map_or("", String::as_str) != handled.map_or("", String::as_str)
    }

    /// Whether anything that is there was applied for the release, whatever its inventory says: a status that is lost has none, nor
    /// has that of a process that was killed at its first object. What is not known may be.
    async fn has_objects(&self) -> bool {
        let found = deletion::rows_by_labels(self.release, self.stack, self.ctx).await;
        found.map_or(true, |rows| !rows.is_empty())
    }

    /// Notes at the release itself what it is made of: that is asked for where the status is lost. Whether it is noted.
    async fn note_files(&self, artifact: &Artifact) -> bool {
        let Artifact { revision, digest, .. } = artifact;
        if self.notes(REVISION, revision) && self.notes(DIGEST, digest) {
            return true;
        }
        let name = self.release.name_any();
        let api: Api<ClusterStackRelease> =
            Api::namespaced(self.ctx.clients.own(), &self.release.namespace().unwrap_or_default());
        let metadata = json!({"uid": self.release.uid(), "annotations": {REVISION: revision, DIGEST: digest}});
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let noted = api.patch(&name, &params, &Patch::Merge(json!({"metadata": metadata}))).await;
        match &noted {
            Ok(now) => report::changed(self.release, now),
            Err(error) => tracing::debug!(%error, release = name, "its files could not be noted"),
        }
        noted.is_ok()
    }

    /// Whether an annotation of the release says this.
    fn notes(&self, key: &str, value: &str) -> bool {
        self.release.annotations().get(key).is_some_and(|noted| noted == value)
    }

    /// Signatures that are asked for; the ClusterStack's own where its source is not known.
    fn demands(&self, origin: Option<&Origin>) -> Vec<Demand> {
        origin.map_or_else(|| own_demand(self.stack).into_iter().collect(), |origin| origin.verify.clone())
    }

    /// The release's files: from the store if they were there before, whatever has become of the source.
    async fn fetch(
        &self,
        name: &ReleaseName,
        origin: Result<&Origin, &Trouble>,
        had: Option<&Artifact>,
    ) -> Result<FetchedRelease, Trouble> {
        let client = self.ctx.clients.own();
        let held = match origin {
            Err(trouble) => Some(trouble.clone()),
            // What was taken once may be fetched again: it may be in use.
            Ok(origin) => origin.suspended().or_else(|| origin.refusal(name).filter(|_| !self.was_taken(had))),
        };
        let verify = self.demands(origin.ok());
        let waiter = Waiter::Release(ObjectRef::from_obj(self.release));
        let wanted = Wanted {
            waiter: Some(&waiter),
            held: held.as_ref(),
            had,
            verify: &verify,
            pin: &self.stack.spec.pin,
            again: &self.asked,
            insists: self.ctx.memory.asks_anew(&self.uid(), &self.asked),
            ..origin.map_or_else(|_| Wanted::of_nowhere(name), |origin| origin.wanted(name))
        };
        let mut fetched = self.ctx.releases.fetch(&client, &wanted, &self.ctx.cancel).await?;
        fetched.artifact.offered_by = offered_by(had, &fetched.artifact, origin.ok());
        Ok(fetched)
    }

    /// Whether these files were fetched before, or may have been.
    fn was_taken(&self, had: Option<&Artifact>) -> bool {
        had.is_some_and(|had| !had.digest.is_empty() || !self.ctx.memory.is_new(&self.uid()))
    }

    async fn render(&self, fetched: &FetchedRelease) -> Result<Objects, Trouble> {
        let namespace = self.release.namespace().unwrap_or_default();
        let rights = self.ctx.rights(&namespace, Some(&self.stack.spec));
        let rights =
            rights.map_err(|error| Trouble::new(ErrorClass::Transient, Reason::RenderFailed, error.to_string()))?;
        let existing: BTreeSet<String> =
            cluster_stack::owned(self.stack, self.ctx).iter().map(|release| release.name_any()).collect();
        // The cache may not have this one yet.
        let with_own = || existing.iter().cloned().chain([self.release.name_any()]).collect();
        let reader = Reader {
            client: rights.client,
            kinds: &self.ctx.kinds,
            only_namespace: rights.only_namespace,
            secrets_of: rights.account.is_none().then(with_own),
        };
        let job = Job {
            release: fetched,
            part: Part::Class,
            reader: &reader,
            client: &self.ctx.clients.own(),
            seed: &deletion::seed_of(self.stack),
            existing: &existing,
        };
        in_turn(|| self.ctx.releases.render(&job)).await
    }
}

/// Through which ClusterStackSource the files came. What was fetched from elsewhere does not become a source's own because
/// the ClusterStack names that source later: it may hold other bytes under the same name.
fn offered_by(had: Option<&Artifact>, now: &Artifact, origin: Option<&Origin>) -> String {
    match had.filter(|had| had.digest == now.digest) {
        Some(had) => had.offered_by.clone(),
        None => origin.and_then(|origin| origin.shared.as_ref()).map(|shared| shared.name.clone()).unwrap_or_default(),
    }
}
