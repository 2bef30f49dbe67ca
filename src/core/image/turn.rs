//! What a look at an image's object tells its build.

use jiff::Timestamp;

use super::build::{Build, Event, Phase, Recipe};

/// What is known of who builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderState {
    /// It is at work in this process.
    Here,
    /// It is surely gone: an earlier life of this process, or of a replica that leads no more.
    Gone,
    /// It lives, and has ended the build without failing: a replica that gave it to this one.
    HandedOver,
    /// It is another one: it shows by its heartbeat whether it lives.
    Elsewhere,
    /// It is another one, and lives. Where its heartbeat is old it does not get on, as after an outage of the API server.
    Lives,
}

impl HolderState {
    /// The same where `living` are all processes that are known to live: one of them that is at work no more was not lost.
    #[must_use]
    pub fn among(self, living: &[String], build: &Build) -> Self {
        let lives = build.holder.as_ref().is_some_and(|holder| living.contains(&holder.identity));
        match self {
            Self::Gone if lives => Self::HandedOver,
            Self::Elsewhere if lives => Self::Lives,
            other => other,
        }
    }
}

/// An object as it is seen.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// What its build has to be.
    pub recipe: &'a Recipe,
    /// `spec.suspend`.
    pub suspend: bool,
    /// The annotation that cancels, and the value that was acted on.
    pub cancel_at: (&'a str, &'a str),
    /// The annotation that asks for another try, and the value that was acted on.
    pub retry_at: (&'a str, &'a str),
    /// Who builds.
    pub holder: HolderState,
    /// Now.
    pub now: Timestamp,
}

/// When a build may ask for a place to be made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Now.
    Now,
    /// When what is at work of it in this process has ended, which tells of it.
    AtItsEnd,
    /// When its holder, elsewhere, was silent for too long.
    AfterSilence,
    /// Not before then.
    At(Timestamp),
    /// Not before somebody changes something.
    Never,
}

/// When a build may begin; `is_at_work` says that an attempt of it is at work in this process. One that failed may be
/// cleaning up still when somebody wants another try: a claim beside it would be one that nobody carries out.
pub fn begin(build: &Build, is_at_work: bool, now: Timestamp) -> Begin {
    match (build.phase, build.not_before) {
        (Phase::Running | Phase::Queued, _) if is_at_work => Begin::AtItsEnd,
        (Phase::Running, _) => Begin::AfterSilence,
        (Phase::Queued, Some(at)) if at > now => Begin::At(at),
        (Phase::Queued, _) => Begin::Now,
        _ => Begin::Never,
    }
}

/// What the build has to be. An image that is there is not made anew because another executor has other steps.
pub fn wanted(build: &Build, recipe: &Recipe) -> Recipe {
    let is_there = build.phase == Phase::Succeeded && build.recipe.inputs == recipe.inputs;
    if is_there { Recipe { steps: build.recipe.steps.clone(), ..recipe.clone() } } else { recipe.clone() }
}

/// What happened to the build as far as the object tells.
pub fn events(build: &Build, seen: &Seen<'_>) -> Vec<Event> {
    let is_new = |(now, handled): (&str, &str)| !now.is_empty() && now != handled;
    let mut events = vec![Event::Wanted(seen.recipe.clone())];
    if build.phase == Phase::Running {
        match seen.holder {
            HolderState::HandedOver => events.push(Event::ShutDown { attempt: build.attempt }),
            // Had it ended properly, it had said so.
            HolderState::Gone => events.push(Event::Lost { attempt: build.attempt }),
            HolderState::Elsewhere => events.push(Event::Looked { now: seen.now }),
            // Somebody else goes on, and nobody was lost.
            HolderState::Lives if build.is_silent(seen.now) => events.push(Event::ShutDown { attempt: build.attempt }),
            HolderState::Here | HolderState::Lives => {}
        }
    }
    if is_new(seen.cancel_at) {
        events.push(Event::Cancel);
    }
    if is_new(seen.retry_at) {
        events.push(Event::Retry);
    }
    events.push(if seen.suspend { Event::Suspend } else { Event::Resume });
    events
}

/// Who builds, as a process sees it that is `me` since it began: `runs_here` is the attempt that is at work in it; `alone`
/// says that no other process may be at work now.
pub fn holder_state(build: &Build, (me, began): (&str, Timestamp), runs_here: Option<u32>, alone: bool) -> HolderState {
    let Some(holder) = &build.holder else { return HolderState::Gone };
    if runs_here == Some(build.attempt) {
        return HolderState::Here;
    }
    // An identity is a pod's or host's name and a random tail.
    let place = |identity: &str| identity.rsplit_once('_').map(|(place, _)| place.to_owned());
    let is_here = place(&holder.identity).is_some_and(|there| there != "local" && Some(there) == place(me));
    // An earlier life has no heartbeat in this one: that is a second process of the same name.
    let was_here = is_here && holder.heartbeat <= began;
    if holder.identity == me || was_here || alone { HolderState::Gone } else { HolderState::Elsewhere }
}

#[cfg(test)]
mod tests {
    use super::super::build::{Command, Holder, Note};
    use super::*;
    use Phase::{Cancelled, Failed, Queued, Running, Succeeded, Suspended};

    #[test]
    fn a_build_begins_when_nothing_of_it_is_at_work() {
        let now = Timestamp::from_second(1000).unwrap();
        let later = Timestamp::from_second(1001).unwrap();
        for (phase, not_before, is_at_work, expected) in [
            (Queued, None, false, Begin::Now),
            (Queued, Some(now), false, Begin::Now),
            (Queued, Some(later), false, Begin::At(later)),
            // Tried again by a person while the attempt before cleans up.
            (Queued, None, true, Begin::AtItsEnd),
            (Queued, Some(later), true, Begin::AtItsEnd),
            (Running, None, true, Begin::AtItsEnd),
            (Running, None, false, Begin::AfterSilence),
            (Failed, None, true, Begin::Never),
            (Succeeded, None, false, Begin::Never),
            (Cancelled, None, false, Begin::Never),
            (Suspended, None, false, Begin::Never),
        ] {
            let build = Build { phase, not_before, ..Build::default() };
            assert_eq!(begin(&build, is_at_work, now), expected, "{phase:?} {not_before:?} {is_at_work}");
        }
    }

    fn recipe() -> Recipe {
        Recipe { inputs: "i".into(), steps: vec!["download".into(), "register".into()], retries: 1 }
    }

    fn build(phase: Phase) -> Build {
        let heartbeat = Timestamp::from_second(1000).unwrap();
        let holder = (phase == Phase::Running).then(|| Holder { identity: "a_1".into(), heartbeat });
        Build { recipe: recipe(), phase, holder, attempt: 2, ..Build::default() }
    }

    fn after(build: Build, seen: &Seen<'_>) -> (Phase, Vec<Command>) {
        let events = events(&build, seen);
        let (build, commands) = events.iter().fold((build, Vec::new()), |(build, mut all), event| {
            let (next, commands) = build.after(event);
            all.extend(commands);
            (next, all)
        });
        (build.phase, commands)
    }

    #[test]
    fn what_is_asked_for_is_done_once() {
        let recipe = recipe();
        let plain = Seen {
            recipe: &recipe,
            suspend: false,
            cancel_at: ("", ""),
            retry_at: ("", ""),
            holder: HolderState::Here,
            now: Timestamp::from_second(1001).unwrap(),
        };
        let late = Timestamp::from_second(2000).unwrap();
        for (was, seen, is) in [
            (Running, plain, Running),
            (Running, Seen { cancel_at: ("1", ""), ..plain }, Cancelled),
            (Running, Seen { cancel_at: ("1", "1"), ..plain }, Running),
            (Running, Seen { suspend: true, ..plain }, Suspended),
            (Queued, Seen { suspend: true, ..plain }, Suspended),
            (Suspended, plain, Queued),
            (Suspended, Seen { suspend: true, ..plain }, Suspended),
            (Succeeded, Seen { suspend: true, cancel_at: ("1", ""), ..plain }, Succeeded),
            (Failed, plain, Failed),
            (Failed, Seen { retry_at: ("2", "1"), ..plain }, Queued),
            (Cancelled, Seen { retry_at: ("2", "2"), ..plain }, Cancelled),
            // Both: it starts anew.
            (Running, Seen { cancel_at: ("1", ""), retry_at: ("1", ""), ..plain }, Queued),
            (Running, Seen { holder: HolderState::Gone, ..plain }, Queued),
            (Running, Seen { holder: HolderState::Elsewhere, ..plain }, Running),
            (Running, Seen { holder: HolderState::Elsewhere, now: late, ..plain }, Queued),
            (Running, Seen { holder: HolderState::Lives, ..plain }, Running),
            (Running, Seen { holder: HolderState::Lives, now: late, ..plain }, Queued),
        ] {
            assert_eq!(after(build(was), &seen).0, is, "{was:?} {seen:?}");
        }
        let silent = Seen { holder: HolderState::Elsewhere, now: late, ..plain };
        assert!(after(build(Running), &silent).1.contains(&Command::Tell(Note::HolderLost("a_1".into()))));
        let gone = Seen { holder: HolderState::Gone, ..plain };
        assert!(after(build(Running), &gone).1.contains(&Command::Tell(Note::HolderLost("a_1".into()))));
        let again = Build { failures: 1, ..build(Running) };
        assert_eq!(after(again.clone(), &gone), (Failed, vec![Command::Tell(Note::GaveUp)]));
        assert_eq!(
            after(again.clone(), &Seen { holder: HolderState::HandedOver, ..plain }),
            (Queued, vec![Command::Enqueue])
        );
        assert_eq!(after(again, &Seen { retry_at: ("1", ""), ..gone }).0, Queued);
    }

    #[test]
    fn an_image_that_is_there_is_not_made_anew_by_another_executor() {
        let job = Recipe { steps: vec!["job".into()], ..recipe() };
        assert_eq!(wanted(&build(Phase::Succeeded), &job), recipe());
        assert_eq!(wanted(&build(Phase::Queued), &job), job);
        let other = Recipe { inputs: "o".into(), ..job };
        assert_eq!(wanted(&build(Phase::Succeeded), &other), other);
    }

    #[test]
    fn a_holder_is_told_apart() {
        let running = build(Phase::Running);
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        for (me, began, runs_here, alone, expected) in [
            ("a_1", 900, Some(2), false, HolderState::Here),
            ("a_1", 900, Some(1), false, HolderState::Gone),
            ("a_1", 900, None, false, HolderState::Gone),
            // The same pod, started anew.
            ("a_2", 1001, None, false, HolderState::Gone),
            // Its heartbeat came when this process was there: two have one name.
            ("a_2", 900, None, false, HolderState::Elsewhere),
            ("b_1", 900, None, false, HolderState::Elsewhere),
            // Whoever leads is alone.
            ("b_1", 900, None, true, HolderState::Gone),
        ] {
            let state = holder_state(&running, (me, at(began)), runs_here, alone);
            assert_eq!(state, expected, "{me} {began} {runs_here:?} {alone}");
        }
        let living = ["c_1".to_owned(), "a_1".to_owned()];
        for (state, living, expected) in [
            (HolderState::Gone, &living[..], HolderState::HandedOver),
            (HolderState::Gone, &living[..1], HolderState::Gone),
            (HolderState::Gone, &[], HolderState::Gone),
            (HolderState::Here, &living, HolderState::Here),
            // It shows by its heartbeat.
            (HolderState::Elsewhere, &living, HolderState::Lives),
            (HolderState::Elsewhere, &living[..1], HolderState::Elsewhere),
        ] {
            assert_eq!(state.among(living, &running), expected, "{state:?} {living:?}");
        }
        let mut local = build(Phase::Running);
        local.holder.as_mut().unwrap().identity = "local_1".into();
        assert_eq!(holder_state(&local, ("local_2", at(2000)), None, false), HolderState::Elsewhere);
    }
}
