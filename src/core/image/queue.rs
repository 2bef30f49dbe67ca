//! Who builds next, in a line per template: who has more steps behind it, and of these who came first.
//!
//! Between lines it is first come, first served: a line has the turns of those who asked in it, whoever of them takes them.
//! Those that only begin are not starved: a build has so many steps and so many retries, and nobody who comes new is ahead.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::time::Duration;

/// How long after its begin a process lets builds ask first that are further: they were all there before it was.
const HEAD_START: Duration = Duration::from_secs(5);

/// How long a build with so many steps behind it lets others of its line ask for a place first, which did not ask yet and have
/// so many behind them; the process began so long ago.
pub fn head_start(began: Duration, finished: usize, others: impl IntoIterator<Item = usize>) -> Option<Duration> {
    let left = HEAD_START.checked_sub(began).filter(|left| !left.is_zero())?;
    others.into_iter().any(|other| other > finished).then_some(left)
}

/// Lines of those who wait for a place, and who has one. `L` names a line, `B` a build.
#[derive(Debug)]
pub struct Queue<L, B> {
    lines: HashMap<L, Line<B>>,
    /// In which line each build is.
    of: HashMap<B, L>,
    /// Places in all lines together.
    limit: usize,
    /// Who asked so far.
    asked: u64,
}

#[derive(Debug)]
struct Line<B> {
    /// In the order in which they asked.
    waiting: Vec<Waiting<B>>,
    running: HashSet<B>,
    places: usize,
}

#[derive(Debug)]
struct Waiting<B> {
    asked: u64,
    /// Steps that are behind it.
    finished: usize,
    build: B,
}

impl<B> Line<B> {
    /// Those whose turn it is in this line, each with the number of its turn.
    fn next(&self) -> impl Iterator<Item = (u64, &B)> {
        let mut order: Vec<&Waiting<B>> = self.waiting.iter().collect();
        order.sort_by_key(|one| (Reverse(one.finished), one.asked));
        let turns = self.waiting.iter().map(|one| one.asked).zip(order);
        let free = self.places.saturating_sub(self.running.len());
        turns.map(|(turn, one)| (turn, &one.build)).take(free)
    }
}

impl<B: PartialEq> Line<B> {
    /// Takes a build off that got a place. The turns of the others stay as they were but for the first, which it used up.
    fn served(&mut self, build: &B) {
        let Some(at) = self.waiting.iter().position(|one| one.build == *build) else { return };
        let turns: Vec<u64> = self.waiting.iter().map(|one| one.asked).skip(1).collect();
        self.waiting.remove(at);
        for (one, turn) in self.waiting.iter_mut().zip(turns) {
            one.asked = turn;
        }
    }
}

impl<L, B> Default for Queue<L, B> {
    fn default() -> Self {
        Self::limited(usize::MAX)
    }
}

impl<L, B> Queue<L, B> {
    /// Lines that have at most so many places together.
    pub fn limited(limit: usize) -> Self {
        Self { lines: HashMap::new(), of: HashMap::new(), limit, asked: 0 }
    }

    /// So many places together from now on; who has one keeps it.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }
}

impl<L: Clone + Eq + Hash, B: Clone + Eq + Hash> Queue<L, B> {
    /// Asks for a place in a line that has so many `places`, for a build with so many steps behind it. `true` if there is one:
    /// it is held until [`Queue::leave`]. Otherwise the build waits, behind those who are further or asked before.
    pub fn ask(&mut self, line: &L, build: &B, places: usize, finished: usize) -> bool {
        if self.of.get(build).is_some_and(|other| other != line) {
            // The template is another one now.
            self.leave(build);
        }
        self.of.insert(build.clone(), line.clone());
        let of = self.lines.entry(line.clone()).or_insert_with(|| Line {
            waiting: Vec::new(),
            running: HashSet::new(),
            places,
        });
        of.places = places.max(1);
        if of.running.contains(build) {
            return true;
        }
        if let Some(known) = of.waiting.iter_mut().find(|one| one.build == *build) {
            known.finished = finished;
        } else {
            of.waiting.push(Waiting { asked: self.asked, finished, build: build.clone() });
            self.asked += 1;
        }
        let is_its_turn = self.next().contains(build);
        if is_its_turn && let Some(of) = self.lines.get_mut(line) {
            of.served(build);
            of.running.insert(build.clone());
        }
        is_its_turn
    }

    /// Those whose turn it is.
    fn next(&self) -> Vec<B> {
        let mut next: Vec<(u64, &B)> = self.lines.values().flat_map(Line::next).collect();
        next.sort_by_key(|(turn, _)| *turn);
        let free = self.limit.saturating_sub(self.counts().1);
        next.into_iter().take(free).map(|(_, build)| build.clone()).collect()
    }

    /// Gives the place up, or leaves the line. Those whose turn it is now, who have to ask again.
    pub fn leave(&mut self, build: &B) -> Vec<B> {
        let Some(name) = self.of.remove(build) else { return Vec::new() };
        let Some(line) = self.lines.get_mut(&name) else { return Vec::new() };
        line.running.remove(build);
        line.waiting.retain(|one| one.build != *build);
        if line.waiting.is_empty() && line.running.is_empty() {
            self.lines.remove(&name);
        }
        self.next()
    }

    /// Whether the build has a place or waits for one.
    pub fn holds(&self, build: &B) -> bool {
        self.of.contains_key(build)
    }

    /// Whether the build has a place.
    pub fn has_place(&self, build: &B) -> bool {
        self.of.get(build).and_then(|line| self.lines.get(line)).is_some_and(|line| line.running.contains(build))
    }

    /// How many wait, and how many have a place.
    pub fn counts(&self) -> (usize, usize) {
        let lines = self.lines.values();
        lines.fold((0, 0), |(waiting, running), line| (waiting + line.waiting.len(), running + line.running.len()))
    }
}

/// Places of a process: for builds that it carries out itself, and for those of Jobs, which take nothing of it but a look now and
/// then. A Job that never starts holds up no build of its own, and no Jobs but those of its template until so many wait.
#[derive(Debug)]
pub struct Queues<L, B> {
    own: Queue<L, B>,
    jobs: Queue<L, B>,
}

impl<L, B> Default for Queues<L, B> {
    fn default() -> Self {
        Self::limited(usize::MAX, usize::MAX)
    }
}

impl<L, B> Queues<L, B> {
    /// So many places for builds of its own, and so many for Jobs.
    pub fn limited(own: usize, jobs: usize) -> Self {
        Self { own: Queue::limited(own), jobs: Queue::limited(jobs) }
    }

    /// So many places for builds of its own from now on; who has one keeps it.
    pub fn set_limit(&mut self, own: usize) {
        self.own.set_limit(own);
    }
}

impl<L: Clone + Eq + Hash, B: Clone + Eq + Hash> Queues<L, B> {
    /// [`Queue::ask`] for a build that a Job carries out, or this process; it leaves the line of the other kind. Whether there
    /// is a place, and who has to ask again.
    pub fn ask(&mut self, is_job: bool, line: &L, build: &B, places: usize, finished: usize) -> (bool, Vec<B>) {
        let (queue, other) = if is_job { (&mut self.jobs, &mut self.own) } else { (&mut self.own, &mut self.jobs) };
        let next = other.leave(build);
        (queue.ask(line, build, places, finished), next)
    }

    /// [`Queue::leave`].
    pub fn leave(&mut self, build: &B) -> Vec<B> {
        let mut next = self.own.leave(build);
        next.extend(self.jobs.leave(build));
        next
    }

    /// [`Queue::holds`].
    pub fn holds(&self, build: &B) -> bool {
        self.own.holds(build) || self.jobs.holds(build)
    }

    /// [`Queue::counts`] of both.
    pub fn counts(&self) -> (usize, usize) {
        let (own, jobs) = (self.own.counts(), self.jobs.counts());
        (own.0 + jobs.0, own.1 + jobs.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_take_no_place_of_the_process() {
        let mut queues = Queues::limited(1, 2);
        let mut ask = |is_job, line, build| queues.ask(is_job, &line, &build, 2, 0);
        for build in 1..=2 {
            assert_eq!(ask(true, "jobs", build), (true, vec![]));
        }
        assert_eq!(ask(true, "jobs", 3), (false, vec![]));
        assert_eq!(ask(true, "others", 4), (false, vec![]), "all Jobs have a limit of their own");
        assert_eq!(ask(false, "own", 5), (true, vec![]));
        assert_eq!(ask(false, "own", 6), (false, vec![]));
        // The template says another executor now: a place of a Job is free.
        assert_eq!(ask(false, "jobs", 1), (false, vec![3]));
        assert_eq!(ask(true, "jobs", 3), (true, vec![]));
        assert_eq!(queues.counts(), (3, 3));
        assert_eq!(queues.leave(&5), [6]);
        queues.set_limit(2);
        assert_eq!(queues.leave(&6), [1]);
        assert!(queues.holds(&1) && queues.holds(&4) && !queues.holds(&5));
    }

    #[test]
    fn who_came_first_is_next() {
        let mut queue = Queue::default();
        let asked: Vec<bool> = (0..5).map(|build| queue.ask(&"t", &build, 2, 0)).collect();
        assert_eq!(asked, [true, true, false, false, false]);
        // Asking again changes nothing.
        assert!(queue.ask(&"t", &0, 2, 0) && !queue.ask(&"t", &4, 2, 0));
        assert_eq!(queue.counts(), (3, 2));
        assert_eq!(queue.leave(&0), [2]);
        // One that is not next gets nothing, though a place is free.
        assert!(!queue.ask(&"t", &3, 2, 0));
        assert!(queue.ask(&"t", &2, 2, 0));
        assert_eq!(queue.leave(&3), Vec::<i32>::new());
        assert_eq!(queue.leave(&1), [4]);
        assert!(queue.ask(&"t", &4, 2, 0) && queue.has_place(&4) && !queue.has_place(&1));
    }

    #[test]
    fn all_lines_together_have_a_limit() {
        let mut queue = Queue::limited(2);
        assert!(queue.ask(&"a", &1, 4, 0) && queue.ask(&"b", &2, 1, 0));
        assert!(!queue.ask(&"b", &3, 1, 0) && !queue.ask(&"c", &4, 1, 0) && !queue.ask(&"a", &5, 4, 0));
        assert_eq!(queue.counts(), (3, 2));
        // Who asked first among those whose line has a place.
        assert_eq!(queue.leave(&1), [4]);
        assert!(!queue.ask(&"a", &5, 4, 0) && queue.ask(&"c", &4, 1, 0));
        assert_eq!(queue.leave(&2), [3]);
        assert!(queue.ask(&"b", &3, 1, 0));
        assert_eq!(queue.leave(&4), [5]);
    }

    #[test]
    fn who_is_further_is_next_in_its_line() {
        let mut queue = Queue::default();
        assert!(queue.ask(&"t", &0, 1, 0));
        for (build, finished) in [(1, 0), (2, 3), (3, 1), (4, 3)] {
            assert!(!queue.ask(&"t", &build, 1, finished));
        }
        // One that went further since it asked last is told so.
        assert!(!queue.ask(&"t", &3, 1, 4));
        for (before, next, finished) in [(0, 3, 4), (3, 2, 3), (2, 4, 3), (4, 1, 0)] {
            assert_eq!(queue.leave(&before), [next]);
            assert!(queue.ask(&"t", &next, 1, finished));
        }
        // Who has a place keeps it.
        assert!(!queue.ask(&"t", &5, 1, 9) && queue.has_place(&1));
    }

    #[test]
    fn who_is_further_takes_no_turn_of_another_line() {
        let mut queue = Queue::limited(1);
        assert!(queue.ask(&"a", &0, 4, 0));
        for (line, build, finished) in [("a", 1, 0), ("b", 2, 0), ("a", 3, 5), ("b", 4, 0), ("a", 5, 5)] {
            assert!(!queue.ask(&line, &build, 4, finished));
        }
        // The turns are those of a, b, a, b, a.
        let mut order = Vec::new();
        let mut ended = 0;
        while let [next] = queue.leave(&ended)[..] {
            let (line, finished) = if matches!(next, 2 | 4) { ("b", 0) } else { ("a", if next == 1 { 0 } else { 5 }) };
            assert!(queue.ask(&line, &next, 4, finished));
            order.push(next);
            ended = next;
        }
        assert_eq!(order, [3, 2, 5, 4, 1]);
    }

    #[test]
    fn after_a_restart_those_that_are_further_ask_first() {
        let secs = Duration::from_secs;
        for (began, finished, others, expected) in [
            (0, 0, vec![], None),
            (0, 0, vec![0, 0], None),
            (0, 0, vec![0, 1], Some(5)),
            (4, 1, vec![1, 3], Some(1)),
            (4, 3, vec![1, 3], None),
            (5, 0, vec![3], None),
            (600, 0, vec![3], None),
        ] {
            let said = format!("{began} {finished} {others:?}");
            assert_eq!(head_start(secs(began), finished, others), expected.map(secs), "{said}");
        }
    }

    #[test]
    fn lines_don_t_wait_for_each_other() {
        let mut queue = Queue::default();
        assert!(queue.ask(&"a", &1, 1, 0) && queue.ask(&"b", &2, 1, 0));
        assert!(!queue.ask(&"a", &3, 1, 0));
        // One that changes lines leaves the other one.
        assert!(!queue.ask(&"b", &1, 1, 0));
        assert!(queue.ask(&"a", &3, 1, 0));
    }

    #[test]
    fn more_places_are_taken_when_somebody_asks() {
        let mut queue = Queue::default();
        assert!(queue.ask(&"a", &1, 1, 0) && !queue.ask(&"a", &2, 1, 0));
        assert!(queue.ask(&"a", &2, 2, 0));
        assert!(!queue.ask(&"a", &3, 1, 0));
        assert_eq!(queue.leave(&1), Vec::<i32>::new());
        assert_eq!(queue.leave(&2), [3]);
        assert_eq!((queue.leave(&3), queue.counts()), (Vec::new(), (0, 0)));
    }

    #[test]
    fn two_hundred_builds_over_four_places_start_in_their_order() {
        let mut queue = Queue::default();
        let mut started: Vec<u32> = (0..200).filter(|build| queue.ask(&(), build, 4, 0)).collect();
        let mut at = 0;
        while let Some(build) = started.get(at).copied() {
            at += 1;
            assert!(queue.counts().1 <= 4);
            for next in queue.leave(&build) {
                assert!(queue.ask(&(), &next, 4, 0));
                started.push(next);
            }
        }
        assert_eq!(started, (0..200).collect::<Vec<_>>());
    }
}
