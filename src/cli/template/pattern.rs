//! Patterns of paths: Go's `filepath.Match`.

/// Whether `path` is named by `pattern`: `*` is any text without `/`, `?` one character, `[a-z]` and `[^a-z]` classes,
/// `\` takes what follows literally. A malformed pattern names nothing.
pub fn matches(pattern: &str, path: &str) -> bool {
    let (pattern, path): (Vec<char>, Vec<char>) = (pattern.chars().collect(), path.chars().collect());
    // The place of the last `*` and what it was tried to end at: no more backtracking is needed, stars don't nest.
    let mut star: Option<(usize, usize)> = None;
    let (mut p, mut t) = (0, 0);
    loop {
        if p < pattern.len() && pattern[p] == '*' {
            star = Some((p, t));
            p += 1;
            continue;
        }
        if p == pattern.len() && t == path.len() {
            return true;
        }
        if t < path.len()
            && let Some(next) = one(&pattern, p, path[t])
        {
            (p, t) = (next, t + 1);
            continue;
        }
        match star {
            Some((at, end)) if end < path.len() && path[end] != '/' => {
                star = Some((at, end + 1));
                (p, t) = (at + 1, end + 1);
            }
            _ => return false,
        }
    }
}

/// Where the pattern goes on if what stands at `p` takes `c`.
fn one(pattern: &[char], p: usize, c: char) -> Option<usize> {
    match pattern.get(p)? {
        '?' => (c != '/').then_some(p + 1),
        '\\' => (pattern.get(p + 1) == Some(&c)).then_some(p + 2),
        '[' => class(pattern, p + 1, c),
        literal => (*literal == c).then_some(p + 1),
    }
}

fn class(pattern: &[char], start: usize, c: char) -> Option<usize> {
    let negated = pattern.get(start) == Some(&'^');
    let mut p = start + usize::from(negated);
    let first = p;
    let mut found = false;
    loop {
        let mut low = *pattern.get(p)?;
        if low == ']' && p > first {
            return (found != negated && c != '/').then_some(p + 1);
        }
        if low == '\\' {
            p += 1;
            low = *pattern.get(p)?;
        }
        p += 1;
        let mut high = low;
        if pattern.get(p) == Some(&'-') {
            high = *pattern.get(p + 1)?;
            p += 2;
        }
        found |= (low..=high).contains(&c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_what_they_name_in_go() {
        for (pattern, path, expected) in [
            ("templates/a.yaml", "templates/a.yaml", true),
            ("templates/a.yaml", "templates/b.yaml", false),
            ("templates/*.yaml", "templates/a.yaml", true),
            ("templates/*", "templates/sub/a.yaml", false),
            ("*/*/a.yaml", "templates/sub/a.yaml", true),
            ("templates/?.yaml", "templates/a.yaml", true),
            ("templates/[a-c].yaml", "templates/b.yaml", true),
            ("templates/[^a-c].yaml", "templates/b.yaml", false),
            ("templates/\\*.yaml", "templates/*.yaml", true),
            ("templates/[a", "templates/a", false),
            ("*a*b*", "xxaxxbxx", true),
            ("", "", true),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }
}
