//! Makes templates count what Tera does not: rounds of loops, the size of variables, and what is written into captured
//! text, which reaches no writer: components, their bodies, `set` blocks, sections of filters.
//!
//! Behind each `for` and `component` a step and the text up to its end are counted, behind each `include` a step, behind
//! each `set` the size of the variable, by tags that print nothing; what is printed passes a filter, or is counted behind it where it is but a path,
//! so that errors about undefined variables stay Tera's own. Places in errors are told as if nothing were added.

use super::error::{TeraError, TeraErrorKind};
use crate::core::chart::Location;

/// The function that counts a round of a loop.
pub(super) const STEP: &str = "clusterstack_step";
/// The filter that bounds a variable: a function would refuse one that is undefined.
pub(super) const BOUND: &str = "clusterstack_bound";

/// The filter through which everything goes that is printed.
pub(super) const PRINTED: &str = "clusterstack_printed";

/// How many texts a tag may join: each may be as large as a variable.
const MAX_JOINED: usize = 64;

/// A template with the tags that count.
#[derive(Debug)]
pub(super) struct Metered {
    /// What Tera reads.
    pub(super) text: String,
    original: String,
    /// Where in the new text something was added, and how long it is, in bytes: it is ASCII.
    added: Vec<(usize, usize)>,
}

impl Metered {
    /// Adds the tags.
    ///
    /// # Errors
    /// A tag that joins too much.
    pub(super) fn new(name: &str, original: &str) -> Result<Self, TeraError> {
        let mut metered = Self { text: String::new(), original: original.to_owned(), added: Vec::new() };
        let mut sets: Vec<&str> = Vec::new();
        let mut literals = literals(original).into_iter();
        let mut rest = original;
        while let Some((before, token, after)) = next(rest) {
            metered.text.push_str(before);
            rest = after;
            if token.starts_with("{{") {
                if joined(token) > MAX_JOINED {
                    return Err(metered.joins_too_much(name));
                }
                metered.print(token);
                continue;
            }
            metered.text.push_str(token);
            let Some((word, arguments)) = tag(token) else { continue };
            if joined(token) > MAX_JOINED {
                return Err(metered.joins_too_much(name));
            }
            match word {
                "raw" => {
                    let end = end_of_raw(rest);
                    metered.text.push_str(&rest[..end]);
                    rest = &rest[end..];
                }
                "for" | "component" => {
                    let bytes = literals.next().unwrap_or_default();
                    metered.add(token, &format!("{STEP}(bytes={bytes})"));
                }
                // It may include others that write nothing.
                "include" => metered.add(token, &format!("{STEP}(bytes=0)")),
                "set" | "set_global" => {
                    let (variable, is_block) = variable(arguments);
                    if is_block {
                        sets.push(variable);
                    } else {
                        metered.add(token, &format!("{variable} | {BOUND}"));
                    }
                }
                "endset" => {
                    if let Some(variable) = sets.pop() {
                        metered.add(token, &format!("{variable} | {BOUND}"));
                    }
                }
                _ => {}
            }
        }
        metered.text.push_str(rest);
        Ok(metered)
    }

    /// A tag that prints, counted.
    fn print(&mut self, token: &str) {
        let (open, inner, close) = brackets(token);
        let expression = inner.trim();
        if is_path(expression) {
            self.text.push_str(token);
            let end = if close == "-}}" { "-%}" } else { "%}" };
            self.insert(&format!("{{% set clusterstack_ = {expression} | {PRINTED} {end}"));
            return;
        }
        self.text.push_str(open);
        let (start, end) = (inner.len() - inner.trim_start().len(), inner.trim_end().len());
        self.text.push_str(&inner[..start]);
        self.insert("(");
        self.text.push_str(expression);
        self.insert(&format!(") | {PRINTED}"));
        self.text.push_str(&inner[end.max(start)..]);
        self.text.push_str(close);
    }

    /// A call behind `tag`, which trims as the tag did.
    fn add(&mut self, tag: &str, call: &str) {
        let end = if tag.ends_with("-%}") { "-%}" } else { "%}" };
        self.insert(&format!("{{% set clusterstack_ = {call} {end}"));
    }

    fn insert(&mut self, added: &str) {
        self.added.push((self.text.len(), added.len()));
        self.text.push_str(added);
    }

    fn joins_too_much(&self, name: &str) -> TeraError {
        self.error(name, &format!("joins more than {MAX_JOINED} texts in one tag"))
    }

    /// A place in the new text as one in the template.
    pub(super) fn locate(&self, location: &mut Location) {
        let before = location.line.saturating_sub(1);
        let start: usize = self.text.split_inclusive('\n').take(before).map(str::len).sum();
        let line = self.text[start..].lines().next().unwrap_or_default();
        let end = line.char_indices().nth(location.column.saturating_sub(1)).map_or(line.len(), |(at, _)| at) + start;
        let on_the_way = self.added.iter().filter(|(at, _)| (start..end).contains(at));
        let less: usize = on_the_way.map(|(at, length)| (*length).min(end - at)).sum();
        location.column = location.column.saturating_sub(less);
        if let Some(text) = location.line.checked_sub(1).and_then(|line| self.original.lines().nth(line)) {
            text.clone_into(&mut location.text);
        }
    }

    fn error(&self, name: &str, message: &str) -> TeraError {
        let mut error = TeraError::new(TeraErrorKind::Parse, name, message);
        error.details.location.line = self.text.matches('\n').count() + 1;
        error.details.location.column = 1;
        self.locate(&mut error.details.location);
        error
    }
}

/// For each `for` and `component`, in their order, how many bytes of text stand between it and its end, those within
/// another one left out: what one round writes of the template's own.
fn literals(original: &str) -> Vec<usize> {
    let (mut bytes, mut open): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut rest = original;
    while let Some((before, token, after)) = next(rest) {
        if let Some(at) = open.last() {
            bytes[*at] += before.len();
        }
        rest = after;
        match tag(token).map(|(word, _)| word) {
            Some("raw") => {
                let end = end_of_raw(rest);
                if let Some(at) = open.last() {
                    bytes[*at] += end;
                }
                rest = &rest[end..];
            }
            Some("for" | "component") => {
                open.push(bytes.len());
                bytes.push(0);
            }
            Some("endfor" | "endcomponent") => {
                open.pop();
            }
            _ => {}
        }
    }
    bytes
}

/// How many texts a tag may join: those of an array or a map are joined where that is.
fn joined(token: &str) -> usize {
    let joins = token.matches('~').count();
    let inner = token.get(2..).unwrap_or_default();
    if joins > 0 && inner.contains(['[', '{']) { joins + token.matches(',').count() } else { joins }
}

/// The first word of a `{% … %}` and what follows it.
fn tag(token: &str) -> Option<(&str, &str)> {
    let inner = token.strip_prefix("{%")?.trim_start_matches('-').trim_end_matches("%}").trim_end_matches('-').trim();
    // Tera wants no blank behind the word: `{% include"x" %}`.
    let end = inner.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(inner.len());
    Some((&inner[..end], inner[end..].trim_start()))
}

/// A `{{ … }}` in its brackets, trims among them, and what is between.
fn brackets(token: &str) -> (&str, &str, &str) {
    let open = if token.starts_with("{{-") { 3 } else { 2 };
    let close = if token.len() > open + 3 && token.ends_with("-}}") { 3 } else { 2 };
    let (rest, close) = token.split_at(token.len() - close);
    let (open, inner) = rest.split_at(open.min(rest.len()));
    (open, inner, close)
}

/// `a.b.c`: what can be looked at twice.
fn is_path(expression: &str) -> bool {
    !expression.is_empty() && expression.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.'))
}

/// The text before the next tag, the tag with its brackets, and what follows. `None` where no tag is left, or one has no
/// end: Tera complains about that.
fn next(text: &str) -> Option<(&str, &str, &str)> {
    let start = text.match_indices('{').map(|(at, _)| at).find(|at| {
        let bracket = text.as_bytes().get(at + 1);
        matches!(bracket, Some(b'{' | b'%' | b'#'))
    })?;
    let (before, tag) = text.split_at(start);
    let length = match tag.as_bytes().get(1) {
        Some(b'#') => tag.find("#}")? + 2,
        Some(b'%') => end(tag, "%}")?,
        _ => end(tag, "}}")?,
    };
    let (tag, after) = tag.split_at(length);
    Some((before, tag, after))
}

/// Where a tag ends that may hold strings.
fn end(tag: &str, bracket: &str) -> Option<usize> {
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in tag.char_indices().skip(2) {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(open) if c == open => quote = None,
            None if matches!(c, '"' | '\'' | '`') => quote = Some(c),
            None if tag[at..].starts_with(bracket) => return Some(at + bracket.len()),
            _ => {}
        }
    }
    None
}

/// The variable of a `set`, and whether it is set to a block.
fn variable(arguments: &str) -> (&str, bool) {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let end = arguments.find(|c| !is_name(c)).unwrap_or(arguments.len());
    (&arguments[..end], !arguments[end..].trim_start().starts_with('='))
}

/// Where `{% endraw %}` ends; nothing in between is a tag.
fn end_of_raw(text: &str) -> usize {
    let is_end = |at: &usize| text[at + 2..].trim_start_matches('-').trim_start().starts_with("endraw");
    let tag = text.match_indices("{%").map(|(at, _)| at).find(is_end);
    tag.and_then(|at| Some(at + text[at..].find("%}")? + 2)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_that_count_stand_behind_loops_and_variables() {
        let call = |of: &str| format!("{{% set clusterstack_ = {of} %}}");
        let step = |bytes: usize| call(&format!("clusterstack_step(bytes={bytes})"));
        let printed = |of: &str| call(&format!("{of} | clusterstack_printed"));
        let x = call("x | clusterstack_bound");
        for (template, metered) in [
            ("a {{ b }} {# {% for #} c", format!("a {{{{ b }}}}{} {{# {{% for #}} c", printed("b"))),
            ("{{- b.c -}} d", "{{- b.c -}}{% set clusterstack_ = b.c | clusterstack_printed -%} d".to_owned()),
            ("{{- b | upper -}} c", "{{- (b | upper) | clusterstack_printed -}} c".to_owned()),
            ("{{<d/>}}", "{{(<d/>) | clusterstack_printed}}".to_owned()),
            (
                "{% for a in b %}12{{ a }}3{% for c in d %}45{% endfor %}{% endfor %}678",
                format!(
                    "{{% for a in b %}}{}12{{{{ a }}}}{}3{{% for c in d %}}{}45{{% endfor %}}{{% endfor %}}678",
                    step(3),
                    printed("a"),
                    step(2)
                ),
            ),
            (
                "{%- for a in b -%} c{% endfor %}",
                "{%- for a in b -%}{% set clusterstack_ = clusterstack_step(bytes=2) -%} c{% endfor %}".to_owned(),
            ),
            (
                "{% component d() %}1{% raw %}{{2{% endraw %}{% endcomponent %}",
                format!("{{% component d() %}}{}1{{% raw %}}{{{{2{{% endraw %}}{{% endcomponent %}}", step(16)),
            ),
            ("{% set x = \"%}\" ~ '}}' %}d", format!("{{% set x = \"%}}\" ~ '}}}}' %}}{x}d")),
            ("{% set x %}y{% endset %}", format!("{{% set x %}}y{{% endset %}}{x}")),
            ("{% set x | upper %}y{% endset %}", format!("{{% set x | upper %}}y{{% endset %}}{x}")),
            ("{% set_global x=1 %}", format!("{{% set_global x=1 %}}{x}")),
            ("{% raw %}{% for a in b %}{%- endraw -%}", "{% raw %}{% for a in b %}{%- endraw -%}".to_owned()),
            ("{% include 'a' -%} b", format!("{{% include 'a' -%}}{} b", step(0).replace(" %}", " -%}"))),
            ("{% for a in b", "{% for a in b".to_owned()),
            ("{{}}", "{{() | clusterstack_printed}}".to_owned()),
            ("ü { {", "ü { {".to_owned()),
        ] {
            assert_eq!(Metered::new("t", template).unwrap().text, metered);
        }
        assert!(Metered::new("t", &format!("{{{{ {} }}}}", "x ~ ".repeat(65))).is_err());
    }

    #[test]
    fn places_are_told_as_in_the_template() {
        let template = "ä\n{% set x = 1 %}{{ nope }}";
        let metered = Metered::new("t", template).unwrap();
        let column = metered.text.lines().nth(1).unwrap().find("nope").unwrap() + 1;
        let (file, text) = (String::new(), String::new());
        let mut location = Location { template: file.clone(), file, line: 2, column, text };
        metered.locate(&mut location);
        assert_eq!((location.column, location.text.as_str()), (19, "{% set x = 1 %}{{ nope }}"));
    }
}
