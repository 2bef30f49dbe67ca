//! Nesting that Tera doesn't bound itself, and that would overflow the stack.

use std::collections::BTreeMap;

use super::error::{TeraError, TeraErrorKind};

/// How deep templates may include each other.
const MAX_INCLUDES: usize = 16;

/// How many `elif` a template may have: Tera reads each inside of the one before.
const MAX_ELIFS: usize = 128;

/// Room for 20 components inside of each other, in each of them as many includes as there may be.
const STACK: usize = 64 << 20;

/// Refuses templates that nest too deeply.
///
/// This looks for tags in the text and may count one in a comment; it never misses one.
pub(super) fn check(templates: &BTreeMap<&str, &str>) -> Result<(), TeraError> {
    for (name, text) in templates {
        if let Some((at, _)) = text.match_indices("elif").nth(MAX_ELIFS) {
            return Err(error(name, text, at, &format!("more than {MAX_ELIFS} `elif`")));
        }
    }
    let included: BTreeMap<_, Vec<_>> =
        templates.iter().map(|(name, text)| (*name, includes(text).collect())).collect();
    // Each round knows the depths that the one before didn't: one round more than there may be levels tells.
    let mut depths: BTreeMap<&str, usize> = BTreeMap::new();
    for _ in 0..=MAX_INCLUDES {
        let depth = |name: &str| depths.get(name).copied().unwrap_or_default();
        let deeper = |names: &Vec<&str>| names.iter().map(|name| 1 + depth(name)).max().unwrap_or_default();
        depths = included.iter().map(|(name, names)| (*name, deeper(names))).collect();
    }
    match templates.iter().find(|(name, _)| depths.get(*name).is_some_and(|depth| *depth > MAX_INCLUDES)) {
        Some((name, text)) => {
            let at = text.find("include").or_else(|| text.find("extends")).unwrap_or_default();
            let message = format!("templates include each other in a circle, or more than {MAX_INCLUDES} deep");
            Err(error(name, text, at, &message))
        }
        None => Ok(()),
    }
}

/// The names behind `include` (and `extends`, which nests as well).
fn includes(text: &str) -> impl Iterator<Item = &str> {
    let tags = text.match_indices("include").chain(text.match_indices("extends"));
    tags.filter_map(|(at, tag)| {
        let rest = text[at + tag.len()..].trim_start();
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\'' | '`'))?;
        rest[1..].split(quote).next()
    })
}

fn error(name: &str, text: &str, at: usize, message: &str) -> TeraError {
    let before = &text[..at];
    let mut error = TeraError::new(TeraErrorKind::Parse, name, message);
    let location = &mut error.details.location;
    location.line = before.matches('\n').count() + 1;
    location.column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    text.lines().nth(location.line - 1).unwrap_or_default().clone_into(&mut location.text);
    error
}

/// Runs `work` where the allowed nesting has room: Tera's frames are large.
pub(super) fn with_room<T>(work: impl FnOnce() -> T) -> Result<T, TeraError> {
    // A panic of Tera's is its template's error, not the end of the process.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stacker::grow(STACK, work)))
        .map_err(|_| TeraError::new(TeraErrorKind::Render, "", "internal error: the renderer panicked"))
}
