//! What belongs to one rendering and can't be handed to Tera's filters as an argument.
//!
//! Filters are registered when templates are parsed, renderings are many. Each runs on one thread from its beginning
//! to its end, so what it may use up lives with the thread for that long.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::core::chart::Lookup;

/// What a rendering has at its disposal and what it leaves behind.
#[derive(Default)]
pub(super) struct Session {
    pub(super) steps: u64,
    pub(super) output: usize,
    /// What `output` was at the start.
    pub(super) whole_output: usize,
    /// What may still be printed, into captured text too: it is written again when that is printed.
    pub(super) captured: usize,
    pub(super) stop: Option<Arc<AtomicBool>>,
    pub(super) answers: BTreeMap<Lookup, tera::Value>,
    pub(super) missing: BTreeSet<Lookup>,
    pub(super) answered: BTreeSet<Lookup>,
    /// The limit that was reached. Tera passes errors of writers on without their text.
    pub(super) limit: Option<&'static str>,
}

thread_local! {
    static SESSION: RefCell<Session> = RefCell::default();
}

impl Session {
    /// Runs `work` with this session; gives back what is left of it.
    pub(super) fn run<T>(self, work: impl FnOnce() -> T) -> (T, Self) {
        let outer = SESSION.replace(self);
        let result = work();
        (result, SESSION.replace(outer))
    }

    fn reached(&mut self, limit: &'static str) -> Result<(), &'static str> {
        self.limit = Some(limit);
        Err(limit)
    }

    /// Looks at each part of a value, as far as it may be written.
    fn measure(
        &mut self,
        value: &tera::Value,
        see: fn(&mut Self) -> Result<(), &'static str>,
        limit: &'static str,
    ) -> Result<(), &'static str> {
        let mut parts = vec![value];
        let mut bytes = 0_usize;
        while let Some(part) = parts.pop() {
            see(self)?;
            bytes = bytes.saturating_add(part.as_str().map_or(16, str::len));
            bytes = bytes.saturating_add(part.as_bytes().map_or(0, <[u8]>::len));
            if bytes > self.whole_output {
                return self.reached(limit);
            }
            parts.extend(part.as_array().unwrap_or_default());
            parts.extend(part.as_map().into_iter().flat_map(|map| map.values()));
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), &'static str> {
        if self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            return self.reached("stopped: it took too long");
        }
        match self.steps.checked_sub(1) {
            Some(left) => {
                self.steps = left;
                Ok(())
            }
            None => self.reached("takes more steps than allowed"),
        }
    }
}

/// Counts a step for each part of a value, and refuses what is larger than all that may be written.
pub(super) fn bound(value: &tera::Value) -> Result<(), &'static str> {
    SESSION
        .with_borrow_mut(|session| session.measure(value, Session::step, "a variable holds more than may be written"))
}

/// Refuses what is larger than all that may be written: a text that a value holds many times takes no room until a filter
/// makes a text of it.
pub(super) fn takes(value: &tera::Value) -> Result<(), &'static str> {
    SESSION.with_borrow_mut(|session| session.measure(value, |_| Ok(()), "a filter is given more than may be written"))
}

/// Counts what a round of a loop or a component writes of the template's own text.
pub(super) fn captured(bytes: usize) -> Result<(), &'static str> {
    SESSION.with_borrow_mut(|session| match session.captured.checked_sub(bytes) {
        Some(left) => {
            session.captured = left;
            Ok(())
        }
        None => session.reached("writes more than allowed"),
    })
}

/// Counts a value that is printed.
pub(super) fn printed(value: &tera::Value) -> Result<(), &'static str> {
    match value.as_str() {
        // A text reaches a writer, which counts it, but for an empty one.
        Some("") => step(),
        Some(text) => captured(text.len()),
        None if value.is_undefined() => Ok(()),
        None => {
            bound(value)?;
            captured(value.to_string().len())
        }
    }
}

/// Refuses a text of so many bytes, before it is made, if it is larger than all that may be written.
pub(super) fn fits(bytes: usize) -> Result<(), &'static str> {
    SESSION.with_borrow_mut(|session| {
        if bytes > session.whole_output { session.reached("a text is larger than may be written") } else { Ok(()) }
    })
}

/// Counts one step.
pub(super) fn step() -> Result<(), &'static str> {
    SESSION.with_borrow_mut(Session::step)
}

/// Counts one step and what it writes.
pub(super) fn write(bytes: usize) -> Result<(), &'static str> {
    SESSION.with_borrow_mut(|session| {
        session.step()?;
        match session.output.checked_sub(bytes) {
            Some(left) => {
                session.output = left;
                Ok(())
            }
            None => session.reached("writes more than allowed"),
        }
    })
}

/// The answer to a lookup; an unanswered one is remembered.
pub(super) fn answer(lookup: Lookup) -> Option<tera::Value> {
    SESSION.with_borrow_mut(|session| {
        let answer = session.answers.get(&lookup).cloned();
        if answer.is_none() {
            session.missing.insert(lookup);
        } else {
            session.answered.insert(lookup);
        }
        answer
    })
}
