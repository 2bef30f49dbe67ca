//! Patterns of `.Files.Glob`.

/// A pattern as the Go library `gobwas/glob` reads it, with `/` as separator.
///
/// Not all of its shortcuts, which change what matches, are repeated: it misses files where braces that hold wildcards have
/// something behind them (`{**/,}x.yaml`), and where wildcards beside each other stand for nothing (`a***a`). Here they match.
pub(crate) struct Glob(Vec<Part>);

#[derive(Debug)]
enum Part {
    Char(char),
    /// `?`: not a separator
    Any,
    /// `*`
    Star,
    /// `**`: separators too
    Deep,
    /// `[abc]`
    Set {
        negated: bool,
        chars: Vec<char>,
    },
    /// `[a-c]`
    Range {
        negated: bool,
        low: char,
        high: char,
    },
    /// `{a,b}`
    Choice(Vec<Vec<Part>>),
}

/// Braces may be nested that deep.
const MAX_DEPTH: usize = 64;

impl Glob {
    /// Reads a pattern. As in Helm, one that is none matches every file.
    pub(crate) fn new(pattern: &str) -> Self {
        let mut reader = Reader { rest: pattern };
        Self(merged(reader.sequence(0).unwrap_or_else(|| vec![Part::Deep])))
    }

    pub(crate) fn matches(&self, path: &str) -> bool {
        let path: Vec<char> = path.chars().collect();
        let whole: Vec<&[Part]> = match self.0.as_slice() {
            // What all of them begin or end with is taken out of the braces first.
            [Part::Choice(choices)] if choices.len() == 1 || !have_much_in_common(choices) => {
                choices.iter().map(Vec::as_slice).collect()
            }
            parts => vec![parts],
        };
        let is_between = |(head, tail): (Vec<char>, Vec<char>)| path.starts_with(&head) && path.ends_with(&tail);
        if whole.into_iter().filter_map(ends).any(is_between) {
            return true;
        }
        let mut reachable = vec![false; path.len() + 1];
        reachable[0] = true;
        step(&self.0, reachable, &path)[path.len()]
    }
}

/// The texts before and behind the only wildcard, `**`. The library holds a path against each of them, and they may share
/// characters: `config/**/a.yaml` matches `config/a.yaml`.
fn ends(parts: &[Part]) -> Option<(Vec<char>, Vec<char>)> {
    let deep = parts.iter().position(|part| matches!(part, Part::Deep))?;
    let text = |parts: &[Part]| {
        let chars = parts.iter().map(|part| if let Part::Char(c) = part { Some(*c) } else { None });
        chars.collect::<Option<Vec<char>>>().filter(|chars| !chars.is_empty())
    };
    Some((text(&parts[..deep])?, text(&parts[deep + 1..])?))
}

/// Whether alternatives all begin, or all end, with the same text.
fn have_much_in_common(choices: &[Vec<Part>]) -> bool {
    let begin = |parts: &Vec<Part>| text_of(parts.iter());
    let end = |parts: &Vec<Part>| text_of(parts.iter().rev());
    let same = |of: &dyn Fn(&Vec<Part>) -> Vec<char>| {
        let first = choices.first().map(of).unwrap_or_default();
        !first.is_empty() && choices.iter().all(|choice| of(choice) == first)
    };
    same(&begin) || same(&end)
}

/// The characters before the first wildcard.
fn text_of<'p>(parts: impl Iterator<Item = &'p Part>) -> Vec<char> {
    parts.map_while(|part| if let Part::Char(c) = part { Some(*c) } else { None }).collect()
}

/// Without braces around a `**` alone, and with one `**` for several beside each other: as the library makes them.
fn merged(parts: Vec<Part>) -> Vec<Part> {
    let mut all = Vec::new();
    for part in parts {
        all.push(match part {
            Part::Choice(choices) => {
                let choices: Vec<Vec<Part>> = choices.into_iter().map(merged).collect();
                match choices.as_slice() {
                    [choice] if matches!(choice.as_slice(), [Part::Deep]) => Part::Deep,
                    _ => Part::Choice(choices),
                }
            }
            part => part,
        });
    }
    all.dedup_by(|next, part| matches!((next, part), (Part::Deep, Part::Deep)));
    all
}

/// Reads parts; `None` where the library refuses the pattern.
struct Reader<'p> {
    rest: &'p str,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn next_is(&mut self, wanted: char) -> bool {
        let rest = self.rest.strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Parts up to the end of the pattern or of the choice that they are in, which need not be closed.
    fn sequence(&mut self, depth: usize) -> Option<Vec<Part>> {
        let mut parts = Vec::new();
        loop {
            if depth > 0 && self.rest.starts_with([',', '}']) {
                return Some(parts);
            }
            let Some(c) = self.next() else { return Some(parts) };
            parts.push(match c {
                '?' => Part::Any,
                '*' if self.next_is('*') => Part::Deep,
                '*' => Part::Star,
                '[' => self.set()?,
                '{' => self.choice(depth + 1)?,
                '\\' => match self.next() {
                    Some(c) => Part::Char(c),
                    None => return Some(parts),
                },
                c => Part::Char(c),
            });
        }
    }

    fn choice(&mut self, depth: usize) -> Option<Part> {
        if depth > MAX_DEPTH {
            return None;
        }
        let mut choices = vec![self.sequence(depth)?];
        while self.next_is(',') {
            choices.push(self.sequence(depth)?);
        }
        self.next_is('}');
        Some(Part::Choice(choices))
    }

    /// What follows `[`: one range, or characters.
    fn set(&mut self) -> Option<Part> {
        let negated = self.next_is('!');
        let first = self.rest.chars().next()?;
        if let Some(rest) = self.rest[first.len_utf8()..].strip_prefix('-') {
            self.rest = rest;
            let high = self.next()?;
            return (self.next_is(']') && high >= first).then_some(Part::Range { negated, low: first, high });
        }
        let mut chars = Vec::new();
        loop {
            match self.next()? {
                ']' => break,
                '\\' => chars.push(self.next()?),
                c => chars.push(c),
            }
        }
        (!chars.is_empty()).then_some(Part::Set { negated, chars })
    }
}

/// Where in the path one can be behind the parts, from where one can be before them: no search, and no way back.
fn step(parts: &[Part], mut reachable: Vec<bool>, path: &[char]) -> Vec<bool> {
    for part in parts {
        let single = |fits: &dyn Fn(char) -> bool| {
            let mut next = vec![false; path.len() + 1];
            for (at, c) in path.iter().enumerate().filter(|(at, _)| reachable[*at]) {
                next[at + 1] = fits(*c);
            }
            next
        };
        reachable = match part {
            Part::Star | Part::Deep => {
                let mut open = false;
                let mut beyond = |at: usize| {
                    open |= reachable[at];
                    let is_reached = open;
                    open &= matches!(part, Part::Deep) || path.get(at) != Some(&'/');
                    is_reached
                };
                (0..=path.len()).map(&mut beyond).collect()
            }
            Part::Char(wanted) => single(&|c| c == *wanted),
            Part::Any => single(&|c| c != '/'),
            Part::Set { negated, chars } => single(&|c| chars.contains(&c) != *negated),
            Part::Range { negated, low, high } => single(&|c| (*low..=*high).contains(&c) != *negated),
            Part::Choice(choices) => {
                let mut next = vec![false; path.len() + 1];
                for choice in choices {
                    let behind = step(choice, reachable.clone(), path);
                    next.iter_mut().zip(behind).for_each(|(all, one)| *all |= one);
                }
                next
            }
        };
    }
    reachable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_as_in_go() {
        for (pattern, path, matched) in [
            ("config/*", "config/a.yaml", true),
            ("config/*", "config/sub/a.yaml", false),
            ("config/**", "config/sub/a.yaml", true),
            ("**.yaml", "config/sub/a.yaml", true),
            ("*.yaml", "config/a.yaml", false),
            ("dash{boards,es}/*.json", "dashes/x.json", true),
            ("a?c", "abc", true),
            ("a?c", "a/c", false),
            ("[a-c].txt", "b.txt", true),
            ("[!a-c].txt", "b.txt", false),
            ("[!abc].txt", "d.txt", true),
            ("[\\]a].txt", "].txt", true),
            ("{a,b{c,d}}", "bd", true),
            ("{a,b{c,d}}", "b", false),
            ("{a,}x", "x", true),
            ("{a,b", "b", true),
            ("a}", "a}", true),
            ("b\\", "b", true),
            ("", "a", false),
            // What is before `**` and what is behind it may share characters.
            ("config/**/x.yaml", "config/x.yaml", true),
            ("config/**/x.yaml", "config/a/b/x.yaml", true),
            ("config/**/x.yaml", "config/ax.yaml", false),
            ("config/**/x.yaml", "config2/x.yaml", false),
            ("ab**ba", "aba", true),
            ("a**a", "a", true),
            ("a\\***a", "a*a", true),
            ("config/****/a.yaml", "config/a.yaml", true),
            ("{config/**/a.yaml}", "config/a.yaml", true),
            ("{config/**/a.yaml,x}", "config/a.yaml", true),
            ("{config/**/a.yaml,x}", "x", true),
            ("config/{**}/a.yaml", "config/a.yaml", true),
            ("config/**/{a}.yaml", "config/a.yaml", false),
            ("config/{**/}a.yaml", "config/a.yaml", false),
            ("{a**a,b**a}", "a", false),
            ("{a**a,b**c}", "a", true),
            // Not where there are other wildcards.
            ("config/**/*.yaml", "config/x.yaml", false),
            ("**/x.yaml", "x.yaml", false),
        ] {
            assert_eq!(Glob::new(pattern).matches(path), matched, "{pattern} {path}");
        }
    }

    #[test]
    fn what_is_no_pattern_matches_every_file() {
        for pattern in ["[", "[]", "[!]", "[a-]", "[c-a]", "[a-cx]", "**/[x", "{a,[}"] {
            assert!(Glob::new(pattern).matches("any/file"), "{pattern}");
        }
        let deep = "{".repeat(100_000);
        assert!(Glob::new(&deep).matches("any/file"));
    }
}
