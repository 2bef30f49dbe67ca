//! Regular expressions. Go's are RE2's, which the `regex` crate is close to: patterns are translated where they differ.

pub(crate) mod pattern;

use regex::Regex;

use super::super::eval::{Eval, Fault};
use super::super::value::{ListType, Value};
use super::math::int;
use super::{Function, Out, Ty, exact, text};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::new("regexMatch", &[Ty::Str, Ty::Str], |eval, args| {
        Ok(Value::Bool(compile(eval, &args[0]).is_ok_and(|regex| regex.is_match(&text(&args[1])))))
    }),
    Function::new("mustRegexMatch", &[Ty::Str, Ty::Str], |eval, args| {
        Ok(Value::Bool(compile(eval, &args[0])?.is_match(&text(&args[1]))))
    }),
    Function::new("regexFind", &[Ty::Str, Ty::Str], find),
    Function::new("mustRegexFind", &[Ty::Str, Ty::Str], find),
    Function::new("regexFindAll", &[Ty::Str, Ty::Str, Ty::Int], find_all),
    Function::new("mustRegexFindAll", &[Ty::Str, Ty::Str, Ty::Int], find_all),
    Function::new("regexReplaceAll", &[Ty::Str, Ty::Str, Ty::Str], |eval, args| replace(eval, args, false)),
    Function::new("mustRegexReplaceAll", &[Ty::Str, Ty::Str, Ty::Str], |eval, args| replace(eval, args, false)),
    Function::new("regexReplaceAllLiteral", &[Ty::Str, Ty::Str, Ty::Str], |eval, args| replace(eval, args, true)),
    Function::new("mustRegexReplaceAllLiteral", &[Ty::Str, Ty::Str, Ty::Str], |eval, args| replace(eval, args, true)),
    Function::new("regexSplit", &[Ty::Str, Ty::Str, Ty::Int], split),
    Function::new("mustRegexSplit", &[Ty::Str, Ty::Str, Ty::Int], split),
    Function::new("regexQuoteMeta", &[Ty::Str], |_, args| {
        let mut out = String::new();
        for c in exact(&args[0])?.chars() {
            if r"\.+*?()|[]{}^$".contains(c) {
                out.push('\\');
            }
            out.push(c);
        }
        Ok(Value::from(out))
    }),
];

/// Compiled patterns take at most this much memory.
const SIZE_LIMIT: usize = 4 << 20;

/// Longer patterns are not read: what is made of one on the way to the compiled one is many times as large.
const MAX_PATTERN: usize = 256 << 10;

fn compile(eval: &mut Eval<'_>, pattern: &Value) -> Result<Regex, Fault> {
    let pattern = text(pattern);
    eval.memo.regex(&pattern, || build(&pattern).map_err(Fault::from))
}

/// Compiles a pattern that Go reads.
///
/// # Errors
/// Go's words, also for a pattern that takes too much memory.
pub(crate) fn build(pattern: &str) -> Result<Regex, String> {
    let refused = |why: &dyn std::fmt::Display| format!("error parsing regexp: {why}");
    if pattern.len() > MAX_PATTERN {
        return Err(refused(&"expression too large"));
    }
    let translated = pattern::translate(pattern).map_err(|why| refused(&why))?;
    let compiled = regex::RegexBuilder::new(&translated).size_limit(SIZE_LIMIT).build();
    compiled.map_err(|error| {
        let reason = error.to_string();
        let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        refused(&format_args!("{reason}: `{pattern}`"))
    })
}

fn find(eval: &mut Eval<'_>, args: &[Value]) -> Out {
    let regex = compile(eval, &args[0])?;
    let source = exact(&args[1])?;
    Ok(Value::from(regex.find(&source).map_or("", |found| found.as_str())))
}

fn count(value: &Value) -> usize {
    usize::try_from(int(value)).unwrap_or(usize::MAX)
}

/// How many bytes the searches of one call may read. Each reads what is left of the text where a pattern looks far ahead for
/// a better match: all matches then take the square of the text.
struct Searches {
    left: usize,
}

impl Searches {
    /// Where few do look far ahead, a text of a megabyte may be all matches.
    fn new(output: usize) -> Self {
        Self { left: output.saturating_mul(1 << 14) }
    }

    /// Counts a search that had so much before it.
    fn count(&mut self, eval: &Eval<'_>, bytes: usize) -> Result<(), Fault> {
        eval.go_on()?;
        self.spend(bytes)
    }

    fn spend(&mut self, bytes: usize) -> Result<(), Fault> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or_else(|| Fault::from("too many matches in so long a text"))?;
        Ok(())
    }
}

fn find_all(eval: &mut Eval<'_>, args: &[Value]) -> Out {
    let regex = compile(eval, &args[0])?;
    let source = exact(&args[1])?;
    let (mut found, mut searches) = (Vec::new(), Searches::new(eval.input.limits.output));
    // Go ignores an empty match right behind a match, as the `regex` crate does.
    for matched in regex.find_iter(&source).take(count(&args[2])) {
        searches.count(eval, source.len() - matched.start())?;
        found.push(matched.as_str());
        eval.items(found.len())?;
    }
    if found.is_empty() {
        return Ok(Value::nil_list(ListType::Str));
    }
    eval.texts(found.len(), found.iter().map(|text| text.len()).sum())?;
    Ok(Value::strings(found))
}

fn replace(eval: &mut Eval<'_>, args: &[Value], literal: bool) -> Out {
    let regex = compile(eval, &args[0])?;
    let (source, replacement) = (exact(&args[1])?, exact(&args[2])?);
    let references = if literal { 0 } else { replacement.matches('$').count() };
    let (mut out, mut end) = (String::new(), None);
    let mut searches = Searches::new(eval.input.limits.output);
    let mut add = |eval: &Eval<'_>, whole: regex::Match<'_>, captures: Option<&regex::Captures<'_>>| {
        searches.count(eval, source.len() - whole.start())?;
        out.push_str(&source[end.unwrap_or(0)..whole.start()]);
        // A quarter: a reference may be to less than all.
        eval.fits(whole.len().saturating_mul(references) / 4)?;
        match captures {
            Some(captures) => captures.expand(&replacement, &mut out),
            None => out.push_str(&replacement),
        }
        end = Some(whole.end());
        eval.fits(out.len())
    };
    if references == 0 {
        for whole in regex.find_iter(&source) {
            add(eval, whole, None)?;
        }
    } else {
        for captures in regex.captures_iter(&source) {
            if let Some(whole) = captures.get(0) {
                add(eval, whole, Some(&captures))?;
            }
        }
    }
    let Some(end) = end else { return Ok(args[1].clone()) };
    out.push_str(&source[end..]);
    Ok(Value::from(out))
}

/// Go's `Regexp.Split`.
fn split(eval: &mut Eval<'_>, args: &[Value]) -> Out {
    let limit = int(&args[2]);
    let regex = compile(eval, &args[0])?;
    if limit == 0 {
        return Ok(Value::nil_list(ListType::Str));
    }
    let source = exact(&args[1])?;
    if !text(&args[0]).is_empty() && source.is_empty() {
        return Ok(Value::strings([""]));
    }
    let mut parts: Vec<&str> = Vec::new();
    let (mut start, mut end) = (0, 0);
    let mut searches = Searches::new(eval.input.limits.output);
    for found in regex.find_iter(&source) {
        searches.count(eval, source.len() - found.start())?;
        eval.items(parts.len())?;
        if limit > 0 && i64::try_from(parts.len()).unwrap_or(i64::MAX) == limit - 1 {
            break;
        }
        end = found.start();
        if found.end() != 0 {
            parts.push(&source[start..end]);
        }
        start = found.end();
    }
    if end != source.len() {
        parts.push(&source[start..]);
    }
    eval.texts(parts.len(), source.len())?;
    Ok(Value::strings(parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_end_also_where_nobody_stops_them() {
        let (megabyte, mut searches) = (1 << 20, Searches::new(32 << 20));
        assert!((0..megabyte).step_by(2).all(|at| searches.spend(megabyte - at).is_ok()), "every other character");
        let mut searches = Searches::new(32 << 20);
        assert!((0..32 << 20).any(|at| searches.spend((32 << 20) - at).is_err()));
    }
}
