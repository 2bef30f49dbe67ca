//! How one replica sees the members, and what it may act on.
//!
//! Every replica keeps a Lease and reads those of all. Times are of the replica's own monotonic clock, since any origin;
//! clocks are never compared.
//!
//! Guarantees: two replicas never act on one root at once, if a write that was begun arrives within [`MARGIN`]. A replica
//! acts while its last successful renewal was sent less than [`TERM`] ago; who missed that is over for good, whatever
//! becomes of a renewal that was under way, and comes back under another name. A peer is over when its Lease was released,
//! or when it was not seen to change for its duration and [`SLACK`]. What a replica gains by another set of members it
//! takes only when all of them have said in their Leases that they act by it: who said so has given up what it lost. One
//! whose Lease somebody deletes is waited for as one that is lost, also by who comes after that: it left a trace elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{Member, Members, Owner, Reach, Root};

/// How long a Lease lasts without renewal.
pub const LEASE: Duration = Duration::from_secs(15);
/// How much of its Lease a replica does not use: what it sent before has arrived when others take over.
pub const MARGIN: Duration = Duration::from_secs(5);
/// How long a replica acts after it sent its last successful renewal.
pub const TERM: Duration = LEASE.saturating_sub(MARGIN);
/// How long others wait beyond the Lease.
pub const SLACK: Duration = Duration::from_secs(1);

/// A Lease as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// Whose it is.
    pub member: Member,
    /// Its `renewTime`, as it stands there.
    pub renewed: String,
    /// Its duration.
    pub lasts: Duration,
    /// The digest of the members by which its holder acts.
    pub published: String,
    /// Its holder gave it back.
    pub released: bool,
}

/// What is known of a peer.
#[derive(Clone, Debug)]
struct Peer {
    sight: Sight,
    /// When it was first seen like this.
    since: Duration,
    /// Its Lease is not there any more.
    is_missing: bool,
}

/// What a replica may do with a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It works on it.
    Works,
    /// It says that nobody takes its class.
    Tells,
    /// It leaves it alone.
    Nothing,
}

/// What a replica may act on, as long as its term lasts.
#[derive(Clone, Debug, Default)]
pub struct Share {
    me: String,
    /// Without members: all of it.
    alone: bool,
    /// The members by which all act, and those that are to be since. What all of them give is ours.
    sets: Vec<Arc<Members>>,
}

impl Share {
    /// All of it: of a process that is alone.
    pub fn alone() -> Self {
        Self { alone: true, ..Self::default() }
    }

    /// Whose it is.
    pub fn me(&self) -> &str {
        &self.me
    }

    /// What may be done with a root.
    pub fn role(&self, root: &Root) -> Role {
        if self.alone {
            return Role::Works;
        }
        let all = |owner: Owner<'_>| !self.sets.is_empty() && self.sets.iter().all(|set| set.owner(root) == owner);
        if all(Owner::Works(&self.me)) {
            Role::Works
        } else if all(Owner::Tells(&self.me)) {
            Role::Tells
        } else {
            Role::Nothing
        }
    }

    /// Whether it does what one alone does.
    pub fn leads(&self) -> bool {
        self.alone || !self.sets.is_empty() && self.sets.iter().all(|set| set.eldest() == Some(&self.me))
    }

    /// Whether it registers what it serves: of all who serve it, one does.
    pub fn registers(&self, what: &str) -> bool {
        self.alone || !self.sets.is_empty() && self.sets.iter().all(|set| set.eldest_serving(what) == Some(&self.me))
    }

    /// Whether no member serves it.
    pub fn is_unserved(&self, what: &str) -> bool {
        self.alone || !self.sets.is_empty() && self.sets.iter().all(|set| set.eldest_serving(what).is_none())
    }

    /// The members that are to be.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.sets.last().into_iter().flat_map(|set| set.iter())
    }

    /// Whether all members act by the same set.
    pub fn is_settled(&self) -> bool {
        self.alone || matches!(self.sets.as_slice(), [only] if only.iter().any(|member| member.id == self.me))
    }
}

/// The view of one replica.
#[derive(Clone, Debug, Default)]
pub struct View {
    me: Option<Member>,
    peers: BTreeMap<String, Peer>,
    /// Those that are over, as long as their Lease is there.
    over: BTreeSet<String>,
    /// The set that all act by, then those that came since, each once; the last one is the members as they are.
    sets: Vec<Arc<Members>>,
    /// When the last successful renewal was sent.
    renewed: Option<Duration>,
    /// What our Lease says since when.
    published: Option<(String, Duration)>,
}

impl View {
    /// A Lease of ours was made by a request that was sent at `sent`: a new life, which has nothing yet. `traces` are ids of
    /// replicas that came before and did not say that they ended: their Leases may be gone without their knowing it.
    pub fn begin(&mut self, me: Member, sent: Duration, traces: impl IntoIterator<Item = String>) {
        for id in traces.into_iter().filter(|id| !self.over.contains(id)) {
            let member = Member { id: id.clone(), ..Member::default() };
            let sight = Sight { member, lasts: LEASE, ..Sight::default() };
            self.peers.entry(id).or_insert(Peer { sight, since: sent, is_missing: false });
        }
        self.me = Some(me);
        self.renewed = Some(sent);
        self.sets = vec![Arc::default()];
        self.published = None;
    }

    /// A renewal that was sent at `sent` was answered at `now`. `false` if it came too late.
    pub fn renewed(&mut self, sent: Duration, now: Duration) -> bool {
        if !self.is_valid(now) {
            self.end();
            return false;
        }
        self.renewed = self.renewed.max(Some(sent));
        true
    }

    /// Our Lease says that we take something else now: other members in which we are, which all have to agree on.
    pub fn reaches(&mut self, reach: &Reach) {
        if let Some(me) = self.me.as_mut().filter(|me| me.reach != *reach) {
            me.reach.clone_from(reach);
        }
    }

    /// Our Lease is about to say that we act by these members. What it says is not known until that is answered.
    pub fn saying(&mut self, digest: &str) {
        self.published.take_if(|(what, _)| what != digest);
    }

    /// Our Lease says, since `now`, that we act by these members: nothing that they take from us is under way any more.
    pub fn published(&mut self, digest: &str, now: Duration) {
        self.published = Some((digest.to_owned(), now));
    }

    /// The term is over for good. Nobody acts by it, so that we don't wait for it when we come back.
    pub fn end(&mut self) {
        if let Some(me) = self.me.take() {
            self.over.insert(me.id);
        }
        self.renewed = None;
        self.sets.clear();
        self.published = None;
    }

    /// Until when we may act.
    pub fn valid_until(&self) -> Option<Duration> {
        self.renewed.filter(|_| self.me.is_some()).map(|sent| sent + TERM)
    }

    /// Whether we may act.
    pub fn is_valid(&self, now: Duration) -> bool {
        self.valid_until().is_some_and(|until| now < until)
    }

    /// All Leases were read afresh: asked for at `sent`, seen at `seen`. `true` if this changed what is ours.
    pub fn looked(&mut self, sent: Duration, seen: Duration, sights: &[Sight]) -> bool {
        let Some(me) = self.me.clone() else { return false };
        if !sights.iter().any(|sight| sight.member.id == me.id && !sight.released) {
            // Who does not see it takes what is ours.
            self.end();
            return true;
        }
        self.meet(sent, seen, sights, &me.id);
        let members = Members::new(self.peers.values().map(|peer| peer.sight.member.clone()).chain([me]));
        let before: Vec<String> = self.sets.iter().map(|set| set.digest().to_owned()).collect();
        self.sets.retain(|set| set.digest() != members.digest());
        let digest = members.digest().to_owned();
        self.sets.push(Arc::new(members));
        let said = self.published.as_ref().is_some_and(|(what, since)| *what == digest && *since <= sent);
        if said && self.peers.values().all(|peer| peer.sight.published == digest) {
            self.sets.drain(..self.sets.len() - 1);
        }
        self.sets.iter().map(|set| set.digest()).ne(before.iter().map(String::as_str))
    }

    fn meet(&mut self, sent: Duration, seen: Duration, sights: &[Sight], me: &str) {
        self.over.retain(|id| sights.iter().any(|sight| sight.member.id == *id));
        for peer in self.peers.values_mut() {
            let is_there = sights.iter().any(|sight| sight.member.id == peer.sight.member.id);
            if !is_there && !peer.is_missing {
                // One whose Lease is gone without a word says nothing any more, and may have renewed it unseen before.
                peer.sight.published.clear();
                (peer.is_missing, peer.since) = (true, seen);
            }
        }
        for sight in sights.iter().filter(|sight| sight.member.id != me) {
            let id = &sight.member.id;
            if sight.released {
                self.peers.remove(id);
                self.over.insert(id.clone());
            }
            if self.over.contains(id) {
                continue;
            }
            let since = match self.peers.get(id) {
                Some(known) if known.sight.renewed == sight.renewed && !known.is_missing => known.since,
                _ => seen,
            };
            self.peers.insert(id.clone(), Peer { sight: sight.clone(), since, is_missing: false });
        }
        let is_over = |peer: &Peer| sent.saturating_sub(peer.since) > peer.sight.lasts + SLACK;
        let over: Vec<String> = self.peers.iter().filter(|(_, peer)| is_over(peer)).map(|(id, _)| id.clone()).collect();
        for id in over {
            self.peers.remove(&id);
            self.over.insert(id);
        }
    }

    /// The digest that our Lease is to say and does not yet. It may say it when nothing is under way any more that is not in
    /// [`Self::share`].
    pub fn unsaid(&self) -> Option<&str> {
        let digest = self.sets.last()?.digest();
        let said = self.published.as_ref().is_some_and(|(what, _)| what == digest);
        (self.me.is_some() && !said).then_some(digest)
    }

    /// What is ours.
    pub fn share(&self) -> Share {
        let me = self.me.as_ref().map(|me| me.id.clone()).unwrap_or_default();
        Share { me, alone: false, sets: self.sets.clone() }
    }

    /// The members that live, us too.
    pub fn members(&self) -> Vec<Member> {
        self.sets.last().map(|set| set.iter().cloned().collect()).unwrap_or_default()
    }

    /// Leases of members that are over: they may be collected.
    pub fn over(&self) -> impl Iterator<Item = &str> {
        self.over.iter().map(String::as_str)
    }
}

#[cfg(test)]
mod tests;
