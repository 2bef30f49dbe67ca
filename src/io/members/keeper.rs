//! Keeps this replica's Lease, and looks at those of all.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::patience::{Failed, Patience};
use super::trace::Traces;
use super::word::{self, Heard};
use super::{Members, lease};
use crate::api::{MEMBER_LABEL, TOLD};
use crate::core::share::Reach;
use crate::core::share::view::{Sight, View};
use crate::io::patient_watch::patient;

/// How often the Lease is renewed, and all are looked at.
const RENEW: Duration = Duration::from_millis(2500);
/// Shortest pause between two turns.
const PAUSE: Duration = Duration::from_millis(100);
/// Pause before another try where the API server does not answer.
const RETRY: Duration = Duration::from_millis(500);
/// Longest pause before who may not come as a member tries again: each try leaves a trace and takes it away.
const REFUSED: Duration = Duration::from_secs(8);
/// How long the Lease of a member that is over stays: by then everybody has seen it.
const KEPT: Duration = Duration::from_mins(1);

pub(super) struct Keeper {
    api: Api<Lease>,
    members: Members,
    identity: String,
    reach: watch::Receiver<Reach>,
    view: View,
    traces: Traces,
    patience: Patience,
    /// When what our Lease says was sent last.
    sent: Duration,
    /// Our Lease as it was written last.
    lease: Option<Lease>,
    /// The one that was lost, as it was written last.
    lost: Option<Lease>,
    /// What it said last, as far as that is known: by which members we act.
    said: String,
    /// What it may say: nothing is under way any more that these members take from us.
    may_say: String,
    /// Of which members that is waited for, or was.
    waits_for: String,
    drained: Option<BoxFuture<'static, String>>,
    /// Since when members are over.
    over: HashMap<String, Duration>,
    /// What other members told.
    heard: Heard,
    /// What was told last of a trouble.
    told: String,
    /// How often in a row no Lease could be made.
    refused: u32,
    /// The newest version of the API server's state that was seen.
    newest: u64,
}

/// Pause before another try, after so many in a row that no Lease could be made.
fn retry(refused: u32) -> Duration {
    RETRY.saturating_mul(1 << refused.saturating_sub(1).min(16)).min(REFUSED)
}

/// Somebody has something to tell.
async fn told(members: &Members) {
    members.0.tells.notified().await;
}

/// What we take is something else. Who would say so may be gone.
async fn changed(reach: &mut watch::Receiver<Reach>) {
    if reach.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

impl Keeper {
    pub(super) fn new(api: Api<Lease>, members: Members, identity: &str, reach: watch::Receiver<Reach>) -> Self {
        let identity = identity.to_owned();
        let traces = Traces::new(api.clone().into_client(), members.namespace());
        Self {
            api,
            members,
            identity,
            reach,
            view: View::default(),
            traces,
            patience: Patience::default(),
            sent: Duration::ZERO,
            lease: None,
            lost: None,
            said: String::new(),
            may_say: String::new(),
            waits_for: String::new(),
            drained: None,
            over: HashMap::new(),
            heard: Heard::default(),
            told: String::new(),
            refused: 0,
            newest: 0,
        }
    }

    /// Keeps the Lease until `end`, then gives it back.
    pub(super) async fn run(mut self, end: CancellationToken) {
        let (noticed, mut changes) = mpsc::channel(1);
        let _watching = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(watch_leases(self.api.clone(), noticed)));
        let mut due = true;
        loop {
            let worked = tokio::select! {
                () = end.cancelled() => return self.give_back().await,
                worked = self.turn(due) => worked,
            };
            self.tell(worked);
            due = tokio::select! {
                () = end.cancelled() => return self.give_back().await,
                () = tokio::time::sleep(self.pause()) => true,
                () = told(&self.members) => true,
                () = changed(&mut self.reach) => true,
                // Looking again takes as long as an answer: what is due by then is not put off.
                _ = changes.recv() => self.pause() <= PAUSE,
                may_say = next(&mut self.drained) => {
                    self.drained = None;
                    self.may_say = may_say;
                    true
                }
            };
        }
    }

    /// Until the next renewal: counted from when the last one was sent, however long its answer took.
    fn pause(&self) -> Duration {
        if !self.told.is_empty() {
            return retry(self.refused);
        }
        RENEW.saturating_sub(self.members.now().saturating_sub(self.sent)).max(PAUSE)
    }

    /// Renews where that is due, and looks.
    async fn turn(&mut self, due: bool) -> Result<(), String> {
        if !self.view.is_valid(self.members.now()) && self.lease.is_some() {
            tracing::error!("the Lease was not renewed in time: what it held is left to others");
            self.lose();
        }
        if self.lease.is_none() {
            self.join().await?;
        } else if due {
            self.renew().await?;
        }
        self.look().await?;
        self.prepare();
        Ok(())
    }

    /// Waits for what other members take from us, so that our Lease may say that we act by them.
    fn prepare(&mut self) {
        let Some(unsaid) = self.view.unsaid().map(str::to_owned) else {
            self.drained = None;
            return self.waits_for.clear();
        };
        if self.waits_for != unsaid {
            self.waits_for.clone_from(&unsaid);
            self.drained = Some(self.members.drained().map(move |()| unsaid).boxed());
        }
    }

    /// Comes as a new member.
    async fn join(&mut self) -> Result<(), String> {
        let name = lease::name_of(&self.identity);
        let traces = self.traces.leave(&name, &self.identity).await?;
        let sent = self.members.now();
        self.sent = sent;
        let made = lease::made(&name, &self.identity, &self.reach.borrow());
        let made = self.patience.answer(self.api.create(&PostParams::default(), &made)).await;
        self.refused = if made.is_ok() { 0 } else { self.refused.saturating_add(1) };
        let made = made.map_err(|failed| failed.text("a Lease can't be created"))?;
        self.view.begin(lease::member(&made), sent, traces);
        self.lease = Some(made);
        for text in [&mut self.said, &mut self.may_say, &mut self.waits_for] {
            text.clear();
        }
        self.drained = None;
        tracing::info!(lease = name, "joining");
        Ok(())
    }

    /// What was ours is others' now.
    fn lose(&mut self) {
        self.view.end();
        self.lost = self.lease.take();
        self.drained = None;
        self.members.set(self.view.share(), None, true);
    }

    async fn renew(&mut self) -> Result<(), String> {
        let Some(known) = self.lease.clone() else { return Ok(()) };
        let name = known.name_any();
        // Only what the members are now: what they were to be once is not what we act by.
        let says = if self.view.unsaid() == Some(&self.may_say) { self.may_say.clone() } else { self.said.clone() };
        self.view.saying(&says);
        let sent = self.members.now();
        self.sent = sent;
        let told = word::written(&self.members.0.told.lock().unwrap_or_else(PoisonError::into_inner));
        let reach = self.reach.borrow().clone();
        let renewed = lease::renewed(known, &says, told, &reach);
        let written = self.patience.answer(self.api.replace(&name, &PostParams::default(), &renewed)).await;
        let now = self.members.now();
        match written {
            Ok(written) => {
                self.lease = Some(written);
                if !self.view.renewed(sent, now) {
                    tracing::error!(lease = name, "the Lease was renewed too late: what it held is left to others");
                    self.lose();
                    return Ok(());
                }
                if !says.is_empty() {
                    self.view.published(&says, now);
                }
                self.view.reaches(&reach);
                self.said = says;
                self.members.renewed(self.view.valid_until());
                Ok(())
            }
            Err(Failed::Gone) => self.reread(&name).await,
            Err(failed) => Err(failed.text(&format!("Lease {name} can't be renewed"))),
        }
    }

    /// After a conflict: a renewal of ours may have gone through without an answer.
    async fn reread(&mut self, name: &str) -> Result<(), String> {
        let read = self.patience.answer(self.api.get_opt(name)).await;
        match read.map_err(|failed| failed.text(&format!("Lease {name} can't be read")))? {
            Some(now) if !lease::sight(&now).released => {
                if self.lease.as_ref().is_some_and(|written| lease::is_older(&now, written)) {
                    self.begin_anew();
                }
                self.lease = Some(now);
                Err(format!("Lease {name} was changed meanwhile"))
            }
            _ => {
                tracing::error!(lease = name, "the Lease is gone: what it held is left to others");
                self.lose();
                Ok(())
            }
        }
    }

    /// Reads all Leases afresh.
    async fn look(&mut self) -> Result<(), String> {
        let sent = self.members.now();
        let params = ListParams::default().labels(MEMBER_LABEL);
        let listed = self.patience.answer(self.api.list(&params)).await;
        let listed = listed.map_err(|failed| failed.text("Leases of members can't be listed"))?;
        self.compare(listed.metadata.resource_version.as_deref());
        let listed = listed.items;
        // Who could not ask while versions grew past those of before sees it by what was written last.
        if self.lost.take().is_some_and(|written| listed.iter().any(|now| lease::is_older(now, &written))) {
            self.begin_anew();
        }
        let now = self.members.now();
        let sights: Vec<Sight> = listed.iter().map(lease::sight).collect();
        if self.view.looked(sent, now, &sights) {
            self.changed();
        }
        for word in self.heard.news(&listed) {
            // Nobody may listen yet.
            let _ = self.members.0.heard.send(word);
        }
        self.collect(listed, now).await;
        Ok(())
    }

    /// Whether the API server went back in time: versions of resources grow (KEP-5504), and what a list says is the newest.
    fn compare(&mut self, version: Option<&str>) {
        let version = version.and_then(|version| version.parse().ok()).unwrap_or(self.newest);
        if version < self.newest {
            tracing::info!(version, before = self.newest, "resources have older versions than before");
            self.begin_anew();
        }
        self.newest = self.newest.max(version);
    }

    /// Ends this process, which knows what is no more.
    fn begin_anew(&self) {
        tracing::error!(
            "the API server has an older state than it had, as after a restore of a backup: beginning anew"
        );
        self.members.0.rewound.cancel();
    }

    /// Tells what is ours now.
    fn changed(&mut self) {
        let Some(valid_until) = self.view.valid_until() else {
            tracing::error!("our Lease is not among those of the members: what it held is left to others");
            return self.lose();
        };
        let share = self.view.share();
        let names: Vec<&str> = share.members().map(|member| member.id.as_str()).collect();
        tracing::info!(members = names.join(", "), settled = share.is_settled(), leads = share.leads(), "members");
        let moves = self.view.unsaid().is_some();
        self.members.set(share, Some(valid_until), moves);
    }

    /// The leader removes Leases of members that are over.
    async fn collect(&mut self, leases: Vec<Lease>, now: Duration) {
        let over: Vec<String> = self.view.over().map(str::to_owned).collect();
        self.over.retain(|id, _| over.contains(id));
        for id in over {
            self.over.entry(id).or_insert(now);
        }
        // Where answers are slow, the own Lease is due by now.
        if !self.members.leads() || self.members.now().saturating_sub(self.sent) > RENEW {
            return;
        }
        for lease in leases {
            let name = lease.name_any();
            if self.over.get(&name).is_none_or(|since| now.saturating_sub(*since) < KEPT) {
                continue;
            }
            let preconditions = Preconditions { uid: lease.uid(), resource_version: lease.resource_version() };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            if let Err(Failed::Trouble(error)) = self.patience.answer(self.api.delete(&name, &params)).await {
                tracing::debug!(lease = name, error, "the Lease of a member that is over stays");
            }
            // One a turn: our own Lease is to be renewed meanwhile.
            return;
        }
    }

    async fn give_back(mut self) {
        for _ in 0..2 {
            let Some(known) = self.lease.take() else { return };
            let name = known.name_any();
            match self.patience.answer(self.api.replace(&name, &PostParams::default(), &lease::released(known))).await {
                Ok(_) => return tracing::info!(lease = name, "the Lease is given back"),
                Err(Failed::Gone) => {
                    let read = self.patience.answer(self.api.get_opt(&name)).await.ok().flatten();
                    self.lease = read.filter(|now| !lease::sight(now).released);
                }
                Err(failed) => {
                    let message = failed.text("not given back");
                    return tracing::warn!(lease = name, message, "the Lease runs out by itself");
                }
            }
        }
    }

    /// Logs a trouble once.
    fn tell(&mut self, worked: Result<(), String>) {
        match worked {
            Ok(()) => self.told.clear(),
            Err(error) => {
                if self.told != error {
                    tracing::warn!(error, "membership; trying again");
                }
                self.told = error;
            }
        }
    }
}

async fn next(drained: &mut Option<BoxFuture<'static, String>>) -> String {
    match drained {
        Some(drained) => drained.await,
        None => std::future::pending().await,
    }
}

/// Says when Leases changed in more than their time of renewal.
async fn watch_leases(api: Api<Lease>, noticed: mpsc::Sender<()>) {
    let config = watcher::Config::default().labels(MEMBER_LABEL);
    let mut events = patient(api, config);
    let mut known: HashMap<String, (String, bool, Option<String>)> = HashMap::new();
    loop {
        let event = match events.try_next().await {
            Ok(Some(event)) => event,
            Ok(None) => return,
            Err(_) => continue,
        };
        let is_news = match event {
            watcher::Event::Apply(lease) | watcher::Event::InitApply(lease) => {
                let Sight { member, published, released, .. } = lease::sight(&lease);
                let now = (published, released, lease.annotations().get(TOLD).cloned());
                known.insert(member.id, now.clone()) != Some(now)
            }
            watcher::Event::Delete(lease) => known.remove(&lease.name_any()).is_some(),
            watcher::Event::Init | watcher::Event::InitDone => false,
        };
        if is_news {
            // One that is waited for tells of all.
            let _ = noticed.try_send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_come_as_a_member_tries_less_and_less() {
        let pauses: Vec<u128> = (0..8).map(|refused| retry(refused).as_millis()).collect();
        assert_eq!(pauses, [500, 500, 1000, 2000, 4000, 8000, 8000, 8000]);
        assert_eq!(retry(u32::MAX), REFUSED);
    }
}
