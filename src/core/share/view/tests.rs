use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

fn member(id: &str) -> Member {
    Member { id: id.to_owned(), since: id.to_owned(), ..Member::default() }
}

fn sight(id: &str, renewed: &str, published: &str) -> Sight {
    let (renewed, published) = (renewed.to_owned(), published.to_owned());
    Sight { member: member(id), renewed, lasts: LEASE, published, released: false }
}

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn digest(ids: &[&str]) -> String {
    Members::new(ids.iter().map(|id| member(id))).digest().to_owned()
}

/// How many of 100 roots are of the share.
fn roots(view: &View) -> usize {
    let share = view.share();
    let root = |n: usize| Root { uid: format!("root-{n}"), ..Root::default() };
    (0..100).filter(|n| share.role(&root(*n)) == Role::Works).count()
}

/// A replica that has all of it since second 1.
fn first() -> View {
    let mut view = View::default();
    view.begin(member("a"), s(0), []);
    assert!(view.looked(s(0), s(0), &[sight("a", "0", "")]));
    assert_eq!((roots(&view), view.unsaid()), (0, Some(digest(&["a"]).as_str())));
    view.published(&digest(&["a"]), s(1));
    assert!(view.looked(s(1), s(1), &[sight("a", "1", &digest(&["a"]))]));
    assert_eq!((roots(&view), view.unsaid()), (100, None));
    view
}

#[test]
fn a_term_ends_a_margin_before_the_lease_and_does_not_come_back() {
    let mut view = first();
    assert_eq!(view.valid_until(), Some(TERM));
    assert!(view.renewed(s(2), s(4)));
    assert!(view.is_valid(s(11)) && !view.is_valid(s(12)));
    // A renewal that went through too late counts for nothing.
    assert!(!view.renewed(s(11), s(12)));
    assert!(!view.is_valid(s(12)) && roots(&view) == 0 && !view.share().leads());
}

#[test]
fn what_a_join_takes_is_given_at_once_and_what_it_gives_is_taken_when_all_have_said_so() {
    let (mut a, mut b) = (first(), View::default());
    let (one, two) = (digest(&["a"]), digest(&["a", "b"]));
    b.begin(member("b"), s(2), []);
    b.looked(s(2), s(2), &[sight("a", "1", &one), sight("b", "2", "")]);
    b.published(&two, s(2));
    // The elder one still acts by itself alone.
    b.looked(s(3), s(3), &[sight("a", "1", &one), sight("b", "2", &two)]);
    assert_eq!(roots(&b), 0);
    assert!(a.looked(s(3), s(3), &[sight("a", "1", &one), sight("b", "2", &two)]));
    let kept = roots(&a);
    assert!((25..75).contains(&kept) && a.unsaid() == Some(&two) && a.share().leads());
    a.published(&two, s(4));
    for view in [&mut a, &mut b] {
        assert!(view.looked(s(4), s(4), &[sight("a", "1", &two), sight("b", "2", &two)]));
        assert!(view.share().is_settled());
    }
    assert_eq!((roots(&a), roots(&b)), (kept, 100 - kept));
    assert!(a.share().leads() && !b.share().leads());
}

#[test]
fn what_was_read_before_we_said_it_settles_nothing() {
    let mut a = first();
    let two = digest(&["a", "b"]);
    a.looked(s(2), s(2), &[sight("a", "1", &digest(&["a"])), sight("b", "2", &two)]);
    a.published(&two, s(5));
    a.looked(s(4), s(6), &[sight("a", "1", &two), sight("b", "2", &two)]);
    assert!(!a.share().is_settled());
    a.looked(s(6), s(6), &[sight("a", "1", &two), sight("b", "2", &two)]);
    assert!(a.share().is_settled());
}

/// `a` and `b`, settled at second 4, as `a` sees them.
fn pair() -> View {
    let (mut a, two) = (first(), digest(&["a", "b"]));
    a.looked(s(2), s(2), &[sight("a", "1", ""), sight("b", "2", &two)]);
    a.published(&two, s(3));
    a.looked(s(4), s(4), &[sight("a", "1", &two), sight("b", "2", &two)]);
    assert!(a.share().is_settled() && roots(&a) < 100);
    a
}

#[test]
fn a_lost_member_is_waited_for_by_our_own_clock() {
    let (mut a, one, two) = (pair(), digest(&["a"]), digest(&["a", "b"]));
    // It renewed at 5, and not since.
    for at in [5, 10, 21] {
        assert!(!a.looked(s(at), s(at), &[sight("a", "1", &two), sight("b", "r", &two)]), "{at}");
    }
    // A look that took long says how it was when it was asked for.
    assert!(!a.looked(s(21), s(40), &[sight("a", "1", &two), sight("b", "r", &two)]));
    assert!(a.looked(s(22), s(22), &[sight("a", "1", &two), sight("b", "r", &two)]));
    a.published(&one, s(22));
    a.looked(s(23), s(23), &[sight("a", "1", &one), sight("b", "r", &two)]);
    assert_eq!(roots(&a), 100);
    // It is over, whatever its Lease says later.
    assert!(!a.looked(s(24), s(24), &[sight("a", "1", &one), sight("b", "later", &two)]));
    assert_eq!((roots(&a), a.over().collect::<Vec<_>>()), (100, vec!["b"]));
    a.looked(s(25), s(25), &[sight("a", "1", &one)]);
    assert_eq!(a.over().count(), 0);
}

#[test]
fn a_lease_that_is_given_back_is_followed_at_once_and_one_that_vanished_is_waited_for() {
    let two = digest(&["a", "b"]);
    let released = Sight { released: true, ..sight("b", "2", &two) };
    let mut a = pair();
    assert!(a.looked(s(5), s(5), &[sight("a", "1", &two), released]));
    assert_eq!(a.members().len(), 1);
    let mut a = pair();
    // It may have renewed until right before.
    for at in [5, 10, 21] {
        a.looked(s(at), s(at), &[sight("a", "1", &two)]);
        assert_eq!(a.members().len(), 2, "{at}");
    }
    a.looked(s(22), s(22), &[sight("a", "1", &two)]);
    assert_eq!(a.members().len(), 1);
}

#[test]
fn who_misses_its_own_lease_has_nothing() {
    let mut a = first();
    assert!(a.looked(s(2), s(2), &[]));
    assert!(!a.is_valid(s(2)) && roots(&a) == 0);
    let mut a = first();
    a.looked(s(2), s(2), &[Sight { released: true, ..sight("a", "1", "") }]);
    assert!(!a.is_valid(s(2)));
}

#[test]
fn who_comes_back_does_not_wait_for_itself() {
    let mut a = first();
    a.end();
    let again = digest(&["a2"]);
    a.begin(member("a2"), s(30), []);
    a.looked(s(30), s(30), &[sight("a", "1", &digest(&["a"])), sight("a2", "30", "")]);
    assert_eq!((roots(&a), a.unsaid()), (0, Some(again.as_str())));
    a.published(&again, s(31));
    a.looked(s(31), s(31), &[sight("a", "1", &digest(&["a"])), sight("a2", "31", &again)]);
    assert_eq!((roots(&a), a.over().collect::<Vec<_>>()), (100, vec!["a"]));
}

#[test]
fn one_whose_lease_was_deleted_is_waited_for_by_who_finds_its_trace() {
    let mut b = View::default();
    b.begin(member("b"), s(2), ["a".to_owned()]);
    b.looked(s(2), s(2), &[sight("b", "2", "")]);
    for at in [3, 18] {
        b.published(&digest(&["a", "b"]), s(at));
        b.looked(s(at), s(at), &[sight("b", "2", &digest(&["a", "b"]))]);
        assert_eq!(roots(&b), 0, "{at}");
    }
    b.looked(s(19), s(19), &[sight("b", "2", "")]);
    b.published(&digest(&["b"]), s(19));
    b.looked(s(20), s(20), &[sight("b", "2", &digest(&["b"]))]);
    assert_eq!(roots(&b), 100);
}

#[test]
fn what_was_given_up_in_between_is_not_kept() {
    // c comes and goes before anybody has said anything: what it would have had may be another's by now.
    let (mut a, two) = (pair(), digest(&["a", "b"]));
    let before = roots(&a);
    a.looked(s(5), s(5), &[sight("a", "1", &two), sight("b", "5", &two), sight("c", "5", "")]);
    let during = roots(&a);
    assert!(during < before);
    let gone = Sight { released: true, ..sight("c", "5", "") };
    a.looked(s(6), s(6), &[sight("a", "1", &two), sight("b", "6", &digest(&["a", "b", "c"])), gone.clone()]);
    assert_eq!(roots(&a), during);
    a.looked(s(7), s(7), &[sight("a", "1", &two), sight("b", "7", &two), gone]);
    assert_eq!(roots(&a), before);
}

#[test]
fn alone_is_all() {
    let share = Share::alone();
    assert_eq!(share.role(&Root::default()), Role::Works);
    assert!(share.leads() && share.is_settled());
    assert_eq!(Share::default().role(&Root::default()), Role::Nothing);
}

/// Replicas in a world where requests take any time or fail, processes pause, die, end cleanly and come.
struct World {
    dice: StdRng,
    now: u64,
    /// The Leases at the API server.
    leases: BTreeMap<String, Sight>,
    /// The `OperatorShard`s there: the traces of those who came and did not end cleanly.
    traces: BTreeSet<String>,
    replicas: Vec<Replica>,
    born: usize,
    gained: usize,
}

struct Replica {
    id: String,
    view: View,
    paused_until: u64,
    requests: Vec<Request>,
}

/// A request: sent, carried out and answered at these times.
struct Request {
    sent: u64,
    at: u64,
    answered: u64,
    what: What,
    result: Option<Vec<Sight>>,
}

#[derive(Clone)]
enum What {
    Renew(Option<String>),
    Look,
}

fn ms(at: u64) -> Duration {
    Duration::from_millis(at)
}

impl World {
    fn new(seed: u64) -> Self {
        let dice = StdRng::seed_from_u64(seed);
        let (leases, traces) = (BTreeMap::new(), BTreeSet::new());
        Self { dice, now: 0, leases, traces, replicas: Vec::new(), born: 0, gained: 0 }
    }

    fn come(&mut self) {
        let mut view = View::default();
        let id = self.begin(&mut view);
        self.replicas.push(Replica { id, view, paused_until: 0, requests: Vec::new() });
    }

    /// A new life: it looks for traces, leaves its own, and makes its Lease.
    fn begin(&mut self, view: &mut View) -> String {
        self.born += 1;
        let id = format!("r{}", self.born);
        let me = Member { since: format!("{:09}", self.now), ..member(&id) };
        view.begin(me.clone(), ms(self.now), self.traces.clone());
        self.traces.insert(id.clone());
        let first = Sight { member: me, renewed: self.now.to_string(), lasts: LEASE, ..Sight::default() };
        self.leases.insert(id.clone(), first);
        id
    }

    /// How long a way takes: mostly short, now and then longer than a Lease.
    fn delay(&mut self) -> u64 {
        match self.dice.random_range(0..80) {
            0 => self.dice.random_range(0..25_000),
            1..=8 => self.dice.random_range(0..4_000),
            _ => self.dice.random_range(0..300),
        }
    }

    fn step(&mut self) {
        self.now += 100;
        match self.dice.random_range(0..600) {
            0 if self.replicas.len() < 5 => self.come(),
            1 if self.replicas.len() > 1 => {
                // kill -9
                let at = self.dice.random_range(0..self.replicas.len());
                self.replicas.remove(at);
            }
            2 if self.replicas.len() > 1 => {
                let at = self.dice.random_range(0..self.replicas.len());
                let replica = self.replicas.remove(at);
                // A pass that is under way is waited for, so that nothing is sent any more; then it is given back.
                if replica.paused_until <= self.now
                    && replica.view.is_valid(ms(self.now))
                    && let Some(lease) = self.leases.get_mut(&replica.id)
                {
                    lease.released = true;
                    self.traces.remove(&replica.id);
                }
            }
            3 => {
                let until = self.now + self.dice.random_range(0..40_000);
                let at = self.dice.random_range(0..self.replicas.len());
                self.replicas[at].paused_until = until;
            }
            4 => {
                // Somebody deletes a Lease by hand.
                let any = self.leases.keys().nth(self.dice.random_range(0..self.leases.len().max(1))).cloned();
                any.map(|id| self.leases.remove(&id));
            }
            _ => {}
        }
        for at in 0..self.replicas.len() {
            let mut replica = std::mem::replace(
                &mut self.replicas[at],
                Replica { id: String::new(), view: View::default(), paused_until: 0, requests: Vec::new() },
            );
            self.turn(&mut replica);
            self.replicas[at] = replica;
        }
        self.collect();
        self.check();
    }

    /// The leader removes the traces of those who are no members any more, and have no Lease.
    fn collect(&mut self) {
        let leader = self.replicas.iter().find(|replica| {
            let view = &replica.view;
            replica.paused_until <= self.now && view.is_valid(ms(self.now)) && view.share().leads()
        });
        let Some(leader) = leader else { return };
        let members: BTreeSet<String> = leader.view.members().into_iter().map(|member| member.id).collect();
        self.traces.retain(|id| members.contains(id) || self.leases.contains_key(id));
    }

    fn turn(&mut self, replica: &mut Replica) {
        let (now, id) = (self.now, replica.id.clone());
        // The API server carries out what is on its way, also of a process that sleeps.
        for request in replica.requests.iter_mut().filter(|request| request.at <= now && request.result.is_none()) {
            if let What::Renew(published) = &request.what
                && let Some(lease) = self.leases.get_mut(&id)
            {
                lease.renewed = format!("{now} {}", request.sent);
                if let Some(published) = published {
                    lease.published.clone_from(published);
                }
            }
            request.result = Some(self.leases.values().cloned().collect());
        }
        if replica.paused_until > now {
            return;
        }
        if replica.view.me.is_none() {
            // It comes back as another one.
            self.traces.remove(&id);
            replica.id = self.begin(&mut replica.view);
            replica.requests.clear();
            return;
        }
        let (answered, waiting): (Vec<Request>, Vec<Request>) =
            std::mem::take(&mut replica.requests).into_iter().partition(|request| request.answered <= now);
        replica.requests = waiting;
        for Request { sent, what, result, .. } in answered {
            let Some(result) = result else { continue };
            match what {
                What::Renew(published) => {
                    let is_there = result.iter().any(|sight| sight.member.id == id);
                    if is_there
                        && replica.view.renewed(ms(sent), ms(now))
                        && let Some(published) = published
                    {
                        replica.view.published(&published, ms(now));
                    }
                }
                What::Look => {
                    let before = replica.view.share();
                    replica.view.looked(ms(sent), ms(now), &result);
                    self.gained += usize::from(!before.is_settled() && replica.view.share().is_settled());
                }
            }
        }
        if !replica.view.is_valid(ms(now)) {
            replica.view.end();
            return;
        }
        let has =
            |renews: bool| replica.requests.iter().any(|request| matches!(request.what, What::Renew(_)) == renews);
        // Renewals one after the other, as they carry what is published; looks likewise.
        for renews in [true, false] {
            if has(renews) || self.dice.random_range(0..8) > 0 {
                continue;
            }
            let at = now + self.delay();
            let answered = at + self.delay();
            let what = if renews { What::Renew(replica.view.unsaid().map(str::to_owned)) } else { What::Look };
            if let What::Renew(Some(digest)) = &what {
                replica.view.saying(digest);
            }
            replica.requests.push(Request { sent: now, at, answered, what, result: None });
            break;
        }
    }

    /// No root is of two, neither of those that are awake nor of one that sleeps and was checked at any time of its term.
    fn check(&self) {
        let roots: Vec<Root> = (0..8).map(|n| Root { uid: format!("root-{n}"), ..Root::default() }).collect();
        let shares: Vec<Share> = self
            .replicas
            .iter()
            .filter(|replica| replica.view.is_valid(ms(self.now)))
            .map(|replica| replica.view.share())
            .collect();
        for root in &roots {
            let owners: Vec<&str> =
                shares.iter().filter(|share| share.role(root) == Role::Works).map(Share::me).collect();
            assert!(owners.len() < 2, "{root:?} is of {owners:?} at {}", self.now);
        }
        let leaders: Vec<&str> = shares.iter().filter(|share| share.leads()).map(Share::me).collect();
        assert!(leaders.len() < 2, "{leaders:?} lead at {}", self.now);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn no_root_is_ever_of_two_whatever_is_slow_lost_paused_or_killed(seed in any::<u64>()) {
        let mut world = World::new(seed);
        world.come();
        for _ in 0..6_000 {
            world.step();
        }
        prop_assert!(world.gained > 0, "they never settled in ten minutes");
    }
}
