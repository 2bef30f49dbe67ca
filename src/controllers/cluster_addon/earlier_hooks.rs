//! Helm hooks that run for a rendering which is no longer that of their chart: they are waited for, to their end.

use jiff::Timestamp;

use super::super::Error;
use super::deliver::Chart;
use super::helm_hooks::{Ran, chart_of, records};
use super::work::Work;
use crate::api::cluster_addon::HelmHookStatus;
use crate::api::condition::Reason;
use crate::core::addon::helm_hooks::{Change, Ended, api_version, earlier, ended, find, runs};
use crate::core::manifest::ObjectKey;
use crate::core::status::AddonFacts;
use crate::io::{apply, observe};

impl Work<'_> {
    /// Waits for what runs of a chart and did not begin with this change to this rendering: `None` when nothing does any more.
    pub(super) async fn finish_earlier(
        &self,
        chart: &Chart,
        change: Change,
        facts: &mut AddonFacts,
    ) -> Result<Option<Ran>, Error> {
        for run in earlier(records(chart, facts), &runs(&chart.hooks, change, &chart.run)) {
            if let Some(what) = self.finish(&run).await {
                let message = format!("{} hook, begun before the chart changed: waiting for {what}", run.event);
                return Ok(Some(Ran::Waits(message)));
            }
            chart_of(chart, facts).hooks.retain(|known| find(std::slice::from_ref(&run), known).is_none());
        }
        Ok(None)
    }

    /// What an earlier run is waited for; its object is deleted when it is over, as its policies say.
    async fn finish(&self, run: &HelmHookStatus) -> Option<String> {
        let version = api_version(run)?;
        let client = &self.workload.client;
        let (group, _) = crate::core::manifest::split_api_version(version);
        let key = ObjectKey {
            group: group.to_owned(),
            kind: run.kind.clone(),
            namespace: run.namespace.clone(),
            name: run.name.clone(),
        };
        let unread = |error: &kube::Error| Some(format!("{key}: {}", apply::refusal(error).message));
        let kind = match self.workload.kinds.get(client, version, &run.kind).await {
            Ok(kind) => kind?,
            Err(error) => return unread(&error),
        };
        let found = observe::api(client, &kind, &key.namespace).get_opt(&observe::segment(&key.name)).await;
        let live = match found {
            Ok(found) => found.map(|object| observe::plain(&object, &kind)),
            Err(error) => return unread(&error),
        };
        let (delete, failed) = match ended(run, live.as_ref(), Timestamp::now()) {
            Ended::NotYet(what) => return Some(what),
            Ended::Over { delete, failed } => (delete, failed),
        };
        if let (true, Some(live)) = (delete, &live)
            && let Err(refusal) = apply::delete(client, &kind, &key, live).await
        {
            return Some(format!("{key}, which can't be deleted: {}", refusal.message));
        }
        if let Some(message) = failed {
            let note = format!("{} hook {key}, begun before its chart changed: {message}", run.event);
            self.pass.ctx.events.say(self.pass.addon, Reason::HelmHookFailed, &note).await;
        }
        None
    }
}
