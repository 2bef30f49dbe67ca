//! `.helmignore`

use std::iter::Peekable;
use std::str::Chars;

use super::error::ChartError;
use crate::core::files::FileTree;

const FILE: &str = ".helmignore";

/// The rules of a file, with the one that Helm always has.
struct Rules {
    rules: Vec<Rule>,
}

struct Rule {
    pattern: Vec<String>,
    negated: bool,
    only_directories: bool,
    /// The pattern has a `/`: it is matched against the whole path.
    anchored: bool,
}

/// The files of a chart's directory that `.helmignore` leaves.
///
/// # Errors
/// It holds a pattern that Helm does not load a chart with.
pub fn filter(files: &FileTree) -> Result<FileTree, ChartError> {
    let text = files.get(FILE).map(|data| String::from_utf8_lossy(data).into_owned()).unwrap_or_default();
    let rules = Rules::parse(&text).map_err(|message| ChartError::File { file: FILE.to_owned(), message })?;
    Ok(files.iter().filter(|(path, _)| !rules.ignores(path)).map(|(path, data)| (path.clone(), data.clone())).collect())
}

impl Rules {
    fn parse(text: &str) -> Result<Self, String> {
        let lines = text.trim_start_matches('\u{feff}').lines().chain(["templates/.?*"]);
        let rules = lines.filter_map(|line| Rule::parse(line).transpose());
        Ok(Self { rules: rules.collect::<Result<_, _>>()? })
    }

    /// A file is ignored if it or a directory above it is.
    fn ignores(&self, path: &str) -> bool {
        let directories = path.match_indices('/').map(|(at, _)| (&path[..at], true));
        directories.chain([(path, false)]).any(|(path, directory)| self.ignores_one(path, directory))
    }

    /// Helm's rule: what a negated pattern doesn't match is ignored.
    fn ignores_one(&self, path: &str, directory: bool) -> bool {
        for rule in &self.rules {
            let matched = rule.matches(path);
            if rule.negated {
                if rule.only_directories && !directory || !matched {
                    return true;
                }
                continue;
            }
            if rule.only_directories && !directory {
                continue;
            }
            if matched {
                return true;
            }
        }
        false
    }
}

impl Rule {
    fn parse(line: &str) -> Result<Option<Self>, String> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || line == "/" {
            return Ok(None);
        }
        let shown: String = line.chars().take(64).collect();
        if line.contains("**") {
            return Err(format!("double-star (**) syntax is not supported: {shown:?}"));
        }
        if !is_pattern(line) {
            return Err(format!("syntax error in pattern {shown:?}"));
        }
        let (negated, line) = line.strip_prefix('!').map_or((false, line), |rest| (true, rest));
        let (only_directories, line) = line.strip_suffix('/').map_or((false, line), |rest| (true, rest));
        let (rooted, line) = line.strip_prefix('/').map_or((false, line), |rest| (true, rest));
        let anchored = rooted || line.contains('/');
        let pattern = line.split('/').map(str::to_owned).collect();
        Ok(Some(Self { pattern, negated, only_directories, anchored }))
    }

    fn matches(&self, path: &str) -> bool {
        let parts: Vec<&str> = path.split('/').collect();
        if self.anchored {
            return parts.len() == self.pattern.len()
                && self.pattern.iter().zip(&parts).all(|(pattern, part)| glob(pattern, part));
        }
        match (self.pattern.as_slice(), parts.last()) {
            ([pattern], Some(name)) => glob(pattern, name),
            _ => false,
        }
    }
}

/// Whether Go's `filepath.Match` takes it.
fn is_pattern(pattern: &str) -> bool {
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        let is_good = match c {
            '\\' => chars.next().is_some(),
            '[' => is_set(&mut chars),
            _ => true,
        };
        if !is_good {
            return false;
        }
    }
    true
}

/// Whether what follows a bracket is a set of characters.
fn is_set(chars: &mut Peekable<Chars<'_>>) -> bool {
    let one = |chars: &mut Peekable<Chars<'_>>| {
        let is_one = match chars.next() {
            None | Some('-' | ']') => false,
            Some('\\') => chars.next().is_some(),
            Some(_) => true,
        };
        is_one && chars.peek().is_some()
    };
    chars.next_if_eq(&'^');
    loop {
        if !one(chars) || chars.next_if_eq(&'-').is_some() && !one(chars) {
            return false;
        }
        if chars.next_if_eq(&']').is_some() {
            return true;
        }
    }
}

/// Go's `filepath.Match` within one path element.
fn glob(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let mut reachable = vec![false; name.len() + 1];
    reachable[0] = true;
    let mut at = 0;
    while at < pattern.len() {
        let mut next = vec![false; name.len() + 1];
        let single: Box<dyn Fn(char) -> bool> = match pattern[at] {
            '*' => {
                let mut open = false;
                for (slot, reached) in next.iter_mut().zip(&reachable) {
                    open |= reached;
                    *slot = open;
                }
                reachable = next;
                at += 1;
                continue;
            }
            '?' => Box::new(|_| true),
            '\\' if at + 1 < pattern.len() => {
                at += 1;
                let wanted = pattern[at];
                Box::new(move |c| c == wanted)
            }
            '[' => {
                let Some(end) = pattern[at + 1..].iter().position(|c| *c == ']').map(|found| at + 1 + found) else {
                    return false;
                };
                let body = pattern[at + 1..end].to_vec();
                at = end;
                Box::new(move |c| in_set(&body, c))
            }
            wanted => Box::new(move |c| c == wanted),
        };
        for (index, c) in name.iter().enumerate() {
            next[index + 1] = reachable[index] && single(*c);
        }
        reachable = next;
        at += 1;
    }
    reachable[name.len()]
}

fn in_set(body: &[char], c: char) -> bool {
    let (negated, body) = match body {
        ['^', rest @ ..] => (true, rest),
        body => (false, body),
    };
    let mut at = 0;
    let mut found = false;
    while at < body.len() {
        if body.get(at + 1) == Some(&'-') && at + 2 < body.len() {
            found |= (body[at]..=body[at + 2]).contains(&c);
            at += 3;
        } else {
            found |= body[at] == c;
            at += 1;
        }
    }
    found != negated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_ignore_what_helm_ignores() {
        let rules = Rules::parse("# c\n*.bak\n/root.txt\n.git/\ndocs/*.md\n").unwrap();
        for (path, ignored) in [
            ("a.bak", true),
            ("deep/a.bak", true),
            ("root.txt", true),
            ("deep/root.txt", false),
            (".git/config", true),
            ("docs/a.md", true),
            ("docs/deep/a.md", false),
            ("templates/.hidden", true),
            ("templates/x.yaml", false),
        ] {
            assert_eq!(rules.ignores(path), ignored, "{path}");
        }
    }
    #[test]
    fn what_helm_can_not_read_is_refused() {
        for line in
            ["**/x", "a**", "foo/**", "[", "x\\", "a[", "[]", "[]a]", "[a-]", "[-a]", "[^]", "[a\\", "*[a", "b/[x"]
        {
            assert!(Rules::parse(line).is_err(), "{line}");
        }
        for line in ["a\\*", "[a-z]", "[^a-z]x*", "[\\]]", "[a]]", "!keep", "a]", "/"] {
            assert!(Rules::parse(line).is_ok(), "{line}");
        }
        // What no name matches leaves nothing.
        let files: FileTree = [("Chart.yaml".to_owned(), bytes::Bytes::new()), (FILE.to_owned(), "!".into())].into();
        assert!(filter(&files).unwrap().is_empty());
    }
}
