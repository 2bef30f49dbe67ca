//! Versions and constraints in the syntax of `Masterminds/semver`, which Helm uses everywhere.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::sync::LazyLock;

use regex::Regex;

/// A version; `1.2` and `v1` are allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    pub(crate) major: u64,
    pub(crate) minor: u64,
    pub(crate) patch: u64,
    pub(crate) pre: String,
    pub(crate) metadata: String,
    pub(crate) original: String,
}

const MAX_LENGTH: usize = 256;
const MAX_CONSTRAINT: usize = 512;
const MAX_GROUPS: usize = 32;

fn is_identifier(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

/// Identifiers joined by dots.
fn are_identifiers(text: &str) -> bool {
    text.split('.').all(|part| !part.is_empty() && part.bytes().all(is_identifier))
}

/// The number of a segment; leading zeros are allowed.
fn segment(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

impl Version {
    /// Reads a version.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_LENGTH {
            return Err(format!("version string is too long (max {MAX_LENGTH} bytes)"));
        }
        Self::parse_loose(text).ok_or_else(|| "invalid semantic version".to_owned())?
    }

    fn parse_loose(text: &str) -> Option<Result<Self, String>> {
        let body = text.strip_prefix('v').unwrap_or(text);
        let (body, metadata) = match body.split_once('+') {
            Some((body, metadata)) => (body, Some(metadata)),
            None => (body, None),
        };
        let (core, pre) = match body.split_once('-') {
            Some((core, pre)) => (core, Some(pre)),
            None => (body, None),
        };
        let mut numbers = core.split('.');
        let major = segment(numbers.next()?)?;
        let minor = numbers.next().map_or(Some(0), segment)?;
        let patch = numbers.next().map_or(Some(0), segment)?;
        if numbers.next().is_some() || !pre.is_none_or(are_identifiers) || !metadata.is_none_or(are_identifiers) {
            return None;
        }
        let pre = pre.unwrap_or_default();
        let zero = |part: &str| part.len() > 1 && part.starts_with('0') && part.bytes().all(|b| b.is_ascii_digit());
        if pre.split('.').any(zero) {
            return Some(Err("Version segment starts with 0".to_owned()));
        }
        Some(Ok(Self {
            major,
            minor,
            patch,
            pre: pre.to_owned(),
            metadata: metadata.unwrap_or_default().to_owned(),
            original: text.to_owned(),
        }))
    }

    /// The order of versions; build metadata don't count.
    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        (self.major, self.minor, self.patch).cmp(&(other.major, other.minor, other.patch)).then_with(|| {
            match (self.pre.is_empty(), other.pre.is_empty()) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => compare_pre(&self.pre, &other.pre),
            }
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)?;
        if !self.pre.is_empty() {
            write!(f, "-{}", self.pre)?;
        }
        if !self.metadata.is_empty() {
            write!(f, "+{}", self.metadata)?;
        }
        Ok(())
    }
}

fn compare_pre(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.split('.'), b.split('.'));
    loop {
        let ordering = match (a.next(), b.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
            (Some(a), Some(b)) => match (a.parse::<u64>(), b.parse::<u64>()) {
                (Ok(a), Ok(b)) => a.cmp(&b),
                (Ok(_), Err(_)) => Ordering::Less,
                (Err(_), Ok(_)) => Ordering::Greater,
                (Err(_), Err(_)) => a.cmp(b),
            },
        };
        if ordering != Ordering::Equal {
            return ordering;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    TildeOrEqual,
    NotEqual,
    Greater,
    Less,
    GreaterEqual,
    LessEqual,
    Tilde,
    Caret,
}

/// One comparison, `>= 1.2.x`.
#[derive(Clone, Debug)]
#[allow(clippy::struct_field_names)]
struct Comparison {
    operator: Operator,
    version: Version,
    /// A part is missing or `x`.
    dirty: bool,
    minor_dirty: bool,
    patch_dirty: bool,
}

/// A constraint: comparisons joined by commas or blanks, alternatives joined by `||`.
#[derive(Clone, Debug)]
pub struct Constraint {
    groups: Vec<Vec<Comparison>>,
}

/// The longer operators come first.
const OPERATORS: [(&str, Operator); 11] = [
    ("!=", Operator::NotEqual),
    (">=", Operator::GreaterEqual),
    ("=>", Operator::GreaterEqual),
    ("<=", Operator::LessEqual),
    ("=<", Operator::LessEqual),
    ("~>", Operator::Tilde),
    ("=", Operator::TildeOrEqual),
    (">", Operator::Greater),
    ("<", Operator::Less),
    ("~", Operator::Tilde),
    ("^", Operator::Caret),
];

impl Constraint {
    /// Reads a constraint.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_CONSTRAINT {
            return Err(format!("constraint string is too long (max {MAX_CONSTRAINT} bytes)"));
        }
        let text = ranges_written_out(text);
        let groups: Vec<&str> = text.split("||").collect();
        if groups.len() > MAX_GROUPS {
            return Err(format!("too many constraint groups (max {MAX_GROUPS})"));
        }
        let groups = groups
            .into_iter()
            .map(|group| parse_group(group).ok_or_else(|| format!("improper constraint: {group:?}"))?);
        Ok(Self { groups: groups.collect::<Result<_, _>>()? })
    }

    /// Whether the version satisfies the constraint. Pre-releases do only where the constraint names one.
    pub fn allows(&self, version: &Version) -> bool {
        self.groups.iter().any(|group| {
            let pre = group.iter().any(|comparison| !comparison.version.pre.is_empty());
            (version.pre.is_empty() || pre) && group.iter().all(|comparison| comparison.allows(version))
        })
    }

    /// Whether the version satisfies the constraint, a pre-release by its place in the order alone.
    pub(crate) fn holds(&self, version: &Version) -> bool {
        self.groups.iter().any(|group| group.iter().all(|comparison| comparison.allows(version)))
    }
}

/// Whether `version` satisfies `constraint`; what can't be read does not.
pub(crate) fn is_compatible(constraint: &str, version: &str) -> bool {
    match (Version::parse(version), Constraint::parse(constraint)) {
        (Ok(version), Ok(constraint)) => constraint.allows(&version),
        _ => false,
    }
}

/// `>= 1.0, <= 2.0 ` for `1.0 - 2.0`. As in the original this comes first, by a pattern to which `|` is a part of a version:
/// of `1.0||2.0 - 3.0`, without blanks, it makes `>= 1.0||2.0, <= 3.0 `.
fn ranges_written_out(text: &str) -> Cow<'_, str> {
    const VERSION: &str = r"v?[0-9|xX*]+(?:\.[0-9|xX*]+)?(?:\.[0-9|xX*]+)?(?:-[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?";
    const BLANK: &str = r"[\t\n\f\r ]";
    static RANGE: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(&format!("{BLANK}*({VERSION}){BLANK}+-{BLANK}+({VERSION}){BLANK}*")).ok());
    let Some(range) = RANGE.as_ref().filter(|_| text.contains('-')) else { return Cow::Borrowed(text) };
    let mut out = Cow::Borrowed(text);
    for found in range.captures_iter(text) {
        let (whole, [low, high]) = found.extract();
        out = Cow::Owned(out.replacen(whole, &format!(">= {low}, <= {high} "), 1));
    }
    out
}

/// `None`: no constraint at all.
fn parse_group(group: &str) -> Option<Result<Vec<Comparison>, String>> {
    let mut rest = group.trim_start();
    let mut comparisons = Vec::new();
    loop {
        let (operator, behind) = OPERATORS
            .iter()
            .find_map(|(text, operator)| Some((*operator, rest.strip_prefix(text)?)))
            .unwrap_or((Operator::TildeOrEqual, rest));
        let (parts, length) = Parts::scan(behind.trim_start())?;
        rest = &behind.trim_start()[length..];
        match parts.comparison(operator) {
            Ok(comparison) => comparisons.push(comparison),
            Err(error) => return Some(Err(error)),
        }
        let trimmed = rest.trim_start();
        if trimmed.is_empty() {
            return Some(Ok(comparisons));
        }
        if let Some(behind) = trimmed.strip_prefix(',') {
            rest = behind.trim_start();
        } else if trimmed.len() < rest.len() {
            rest = trimmed;
        } else {
            return None;
        }
    }
}

/// The parts of a version in a constraint.
struct Parts<'t> {
    numbers: [&'t str; 3],
    pre: &'t str,
}

impl<'t> Parts<'t> {
    /// Reads a version with wildcards at the start of `text`, and its length.
    fn scan(text: &'t str) -> Option<(Self, usize)> {
        let number = |from: usize| {
            let bytes = &text.as_bytes()[from..];
            let wild = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'x' | b'X' | b'*' | b'|');
            bytes.iter().position(|byte| !wild(byte)).unwrap_or(bytes.len())
        };
        let identifiers = |from: usize| {
            let bytes = &text.as_bytes()[from..];
            let mut end = 0;
            let mut at = 0;
            loop {
                let length = bytes[at..].iter().position(|byte| !is_identifier(*byte)).unwrap_or(bytes.len() - at);
                if length == 0 {
                    return end;
                }
                end = at + length;
                if bytes.get(end) != Some(&b'.') {
                    return end;
                }
                at = end + 1;
            }
        };
        let mut at = usize::from(text.starts_with('v'));
        let mut numbers = [""; 3];
        for (index, slot) in numbers.iter_mut().enumerate() {
            let from = if index == 0 {
                at
            } else if text.as_bytes().get(at) == Some(&b'.') {
                at + 1
            } else {
                break;
            };
            let length = number(from);
            if length == 0 {
                if index == 0 {
                    return None;
                }
                break;
            }
            *slot = &text[from..from + length];
            at = from + length;
        }
        let mut pre = "";
        if text.as_bytes().get(at) == Some(&b'-') && identifiers(at + 1) > 0 {
            let end = at + 1 + identifiers(at + 1);
            pre = &text[at + 1..end];
            at = end;
        }
        if text.as_bytes().get(at) == Some(&b'+') && identifiers(at + 1) > 0 {
            at += 1 + identifiers(at + 1);
        }
        Some((Self { numbers, pre }, at))
    }

    fn comparison(&self, operator: Operator) -> Result<Comparison, String> {
        let wild = |text: &str| text.is_empty() || matches!(text, "x" | "X" | "*");
        let [major, minor, patch] = self.numbers;
        let (text, dirty, minor_dirty, patch_dirty) = if wild(major) {
            ("0.0.0".to_owned(), true, false, false)
        } else if wild(minor) {
            (format!("{major}.0.0"), true, true, false)
        } else if wild(patch) {
            (format!("{major}.{minor}.0"), true, false, true)
        } else {
            (format!("{major}.{minor}.{patch}"), false, false, false)
        };
        let text = if self.pre.is_empty() { text } else { format!("{text}-{}", self.pre) };
        let version = Version::parse(&text).map_err(|_| "constraint parser error".to_owned())?;
        Ok(Comparison { operator, version, dirty, minor_dirty, patch_dirty })
    }
}

impl Comparison {
    fn allows(&self, version: &Version) -> bool {
        let own = &self.version;
        let ordering = version.compare(own);
        match self.operator {
            Operator::TildeOrEqual if self.dirty => self.tilde(version),
            Operator::TildeOrEqual => ordering == Ordering::Equal,
            Operator::NotEqual => self.differs(version),
            Operator::Greater if !self.dirty => ordering == Ordering::Greater,
            Operator::Greater => match version.major.cmp(&own.major) {
                Ordering::Greater => true,
                Ordering::Less => false,
                Ordering::Equal if self.minor_dirty => false,
                Ordering::Equal if self.patch_dirty => version.minor > own.minor,
                Ordering::Equal => ordering == Ordering::Greater,
            },
            Operator::Less => ordering == Ordering::Less,
            Operator::GreaterEqual => ordering != Ordering::Less,
            Operator::LessEqual if !self.dirty => ordering != Ordering::Greater,
            Operator::LessEqual => {
                version.major <= own.major
                    && !(version.major == own.major && version.minor > own.minor && !self.minor_dirty)
            }
            Operator::Tilde => self.tilde(version),
            Operator::Caret => self.caret(version),
        }
    }

    fn differs(&self, version: &Version) -> bool {
        let own = &self.version;
        if self.dirty {
            if own.major != version.major || (own.minor != version.minor && !self.minor_dirty) {
                return true;
            }
            if self.minor_dirty {
                return false;
            }
            if own.patch != version.patch && !self.patch_dirty {
                return true;
            }
            if self.patch_dirty {
                return compare_pre(&version.pre, &own.pre) != Ordering::Equal;
            }
        }
        version.compare(own) != Ordering::Equal
    }

    fn tilde(&self, version: &Version) -> bool {
        let own = &self.version;
        if version.compare(own) == Ordering::Less {
            return false;
        }
        if own.major == 0 && own.minor == 0 && own.patch == 0 && !self.minor_dirty && !self.patch_dirty {
            return true;
        }
        version.major == own.major && (version.minor == own.minor || self.minor_dirty)
    }

    fn caret(&self, version: &Version) -> bool {
        let own = &self.version;
        if version.compare(own) == Ordering::Less {
            return false;
        }
        if own.major > 0 || self.minor_dirty {
            return version.major == own.major;
        }
        if version.major > 0 {
            return false;
        }
        if own.minor > 0 || self.patch_dirty {
            return version.minor == own.minor;
        }
        version.minor == 0 && own.patch == version.patch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraints_allow_what_masterminds_allows() {
        for (constraint, version, allowed) in [
            (">=1.21-0", "v1.34.2", true),
            (">=1.21.0-0", "1.21.0-gke.1", true),
            (">=1.21", "1.21.0-gke.1", false),
            ("^1.2.3", "1.9.0", true),
            ("^1.2.3", "2.0.0", false),
            ("^0.2.3", "0.3.0", false),
            ("~1.2", "1.2.9", true),
            ("~1.2", "1.3.0", false),
            ("1.x", "1.34.2", true),
            ("*", "1.34.2", true),
            ("*", "1.34.2-rc.1", false),
            ("*-0", "1.34.2-rc.1", true),
            (">1.30, <1.35", "1.34.2", true),
            (">1.30 <1.34", "1.34.2", false),
            ("1.2 - 1.34.5", "1.34.2", true),
            ("1.2 - 1.4||2.0", "2.0.0", true),
            ("1.2 - 1.4 || 2.0 - 2.5", "2.3.0", true),
            ("1.2 - 1.4 || 2.0 - 2.5", "1.9.0", false),
            ("1.0||2.0 - 3.0", "9.0.0", true),
            ("1.0 || 2.0 - 3.0", "9.0.0", false),
            ("v1.2.3-rc.1 - 1.4.x", "1.4.9", true),
            ("<1.0 || >=1.34", "1.34.2", true),
            (">11", "11.1.0", false),
            (">11.1", "11.1.1", false),
            ("!=1.34.x", "1.34.2", false),
            ("<=1.34", "1.34.2", true),
            (">= 1.2.3 , < 2", "1.5.0", true),
            ("=1.34.2", "1.34.2+build", true),
        ] {
            assert_eq!(is_compatible(constraint, version), allowed, "{constraint} {version}");
        }
    }

    #[test]
    fn improper_constraints_are_refused() {
        for constraint in ["", ">=1.0<2.0", ">1.0 - 2.0", "abc", "1.2.3.4", ">>1"] {
            assert!(Constraint::parse(constraint).is_err(), "{constraint}");
        }
    }

    #[test]
    fn versions_may_be_short() {
        assert_eq!(Version::parse("v1.2").unwrap().to_string(), "1.2.0");
        assert!(Version::parse("1.2.3.4").is_err());
        assert!(Version::parse("").is_err());
        assert!(Version::parse("1.2.3-01").is_err());
    }
}
