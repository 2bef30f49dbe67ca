//! Who builds next: first come, first served, in a line per template.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;

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
    /// In the order in which they asked, with its number.
    waiting: VecDeque<(u64, B)>,
    running: HashSet<B>,
    places: usize,
}

impl<B> Line<B> {
    /// Those whose turn it is in this line.
    fn next(&self) -> impl Iterator<Item = &(u64, B)> {
        self.waiting.iter().take(self.places.saturating_sub(self.running.len()))
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
    /// Asks for a place in a line that has so many `places`. `true` if there is one: it is held until [`Queue::leave`].
    /// Otherwise the build waits, behind those who asked before.
    pub fn ask(&mut self, line: &L, build: &B, places: usize) -> bool {
        if self.of.get(build).is_some_and(|other| other != line) {
            // The template is another one now.
            self.leave(build);
        }
        self.of.insert(build.clone(), line.clone());
        let of = self.lines.entry(line.clone()).or_insert_with(|| Line {
            waiting: VecDeque::new(),
            running: HashSet::new(),
            places,
        });
        of.places = places.max(1);
        if of.running.contains(build) {
            return true;
        }
        if !of.waiting.iter().any(|(_, other)| other == build) {
            of.waiting.push_back((self.asked, build.clone()));
            self.asked += 1;
        }
        let is_its_turn = self.next().contains(build);
        if is_its_turn && let Some(of) = self.lines.get_mut(line) {
            of.waiting.retain(|(_, other)| other != build);
            of.running.insert(build.clone());
        }
        is_its_turn
    }

    /// Those whose turn it is.
    fn next(&self) -> Vec<B> {
        let mut next: Vec<&(u64, B)> = self.lines.values().flat_map(Line::next).collect();
        next.sort_by_key(|(asked, _)| *asked);
        let free = self.limit.saturating_sub(self.counts().1);
        next.into_iter().take(free).map(|(_, build)| build.clone()).collect()
    }

    /// Gives the place up, or leaves the line. Those whose turn it is now, who have to ask again.
    pub fn leave(&mut self, build: &B) -> Vec<B> {
        let Some(name) = self.of.remove(build) else { return Vec::new() };
        let Some(line) = self.lines.get_mut(&name) else { return Vec::new() };
        line.running.remove(build);
        line.waiting.retain(|(_, other)| other != build);
        if line.waiting.is_empty() && line.running.is_empty() {
            self.lines.remove(&name);
        }
        self.next()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_came_first_is_next() {
        let mut queue = Queue::default();
        let asked: Vec<bool> = (0..5).map(|build| queue.ask(&"t", &build, 2)).collect();
        assert_eq!(asked, [true, true, false, false, false]);
        // Asking again changes nothing.
        assert!(queue.ask(&"t", &0, 2) && !queue.ask(&"t", &4, 2));
        assert_eq!(queue.counts(), (3, 2));
        assert_eq!(queue.leave(&0), [2]);
        // One that is not next gets nothing, though a place is free.
        assert!(!queue.ask(&"t", &3, 2));
        assert!(queue.ask(&"t", &2, 2));
        assert_eq!(queue.leave(&3), Vec::<i32>::new());
        assert_eq!(queue.leave(&1), [4]);
        assert!(queue.ask(&"t", &4, 2) && queue.has_place(&4) && !queue.has_place(&1));
    }

    #[test]
    fn all_lines_together_have_a_limit() {
        let mut queue = Queue::limited(2);
        assert!(queue.ask(&"a", &1, 4) && queue.ask(&"b", &2, 1));
        assert!(!queue.ask(&"b", &3, 1) && !queue.ask(&"c", &4, 1) && !queue.ask(&"a", &5, 4));
        assert_eq!(queue.counts(), (3, 2));
        // Who asked first among those whose line has a place.
        assert_eq!(queue.leave(&1), [4]);
        assert!(!queue.ask(&"a", &5, 4) && queue.ask(&"c", &4, 1));
        assert_eq!(queue.leave(&2), [3]);
        assert!(queue.ask(&"b", &3, 1));
        assert_eq!(queue.leave(&4), [5]);
    }

    #[test]
    fn lines_don_t_wait_for_each_other() {
        let mut queue = Queue::default();
        assert!(queue.ask(&"a", &1, 1) && queue.ask(&"b", &2, 1));
        assert!(!queue.ask(&"a", &3, 1));
        // One that changes lines leaves the other one.
        assert!(!queue.ask(&"b", &1, 1));
        assert!(queue.ask(&"a", &3, 1));
    }

    #[test]
    fn more_places_are_taken_when_somebody_asks() {
        let mut queue = Queue::default();
        assert!(queue.ask(&"a", &1, 1) && !queue.ask(&"a", &2, 1));
        assert!(queue.ask(&"a", &2, 2));
        assert!(!queue.ask(&"a", &3, 1));
        assert_eq!(queue.leave(&1), Vec::<i32>::new());
        assert_eq!(queue.leave(&2), [3]);
        assert_eq!((queue.leave(&3), queue.counts()), (Vec::new(), (0, 0)));
    }

    #[test]
    fn two_hundred_builds_over_four_places_start_in_their_order() {
        let mut queue = Queue::default();
        let mut started: Vec<u32> = (0..200).filter(|build| queue.ask(&(), build, 4)).collect();
        let mut at = 0;
        while let Some(build) = started.get(at).copied() {
            at += 1;
            assert!(queue.counts().1 <= 4);
            for next in queue.leave(&build) {
                assert!(queue.ask(&(), &next, 4));
                started.push(next);
            }
        }
        assert_eq!(started, (0..200).collect::<Vec<_>>());
    }
}
