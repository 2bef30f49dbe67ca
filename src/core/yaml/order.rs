//! The order in which Go writes the keys of a map: *natural*, so that `a2` comes before `a10`.

use std::sync::LazyLock;

use regex::Regex;

/// Whose order it is: they differ where a letter follows digits that two keys have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sorter {
    /// `go.yaml.in/yaml/v2`, of `toYaml`.
    V2,
    /// `go.yaml.in/yaml/v3`, of `toYamlPretty`.
    V3,
}

/// Sorts entries by their keys as `sorter.go` of `go.yaml.in/yaml` does.
///
/// That order isn't transitive (`a2` < `a10` < `a1b` < `a2`). Go's result is then a matter of luck; ours depends on
/// the set of the keys alone. The standard library's sort may panic on such an order, so this merges by itself.
pub fn sort_by_key<T: Copy>(entries: &mut [T], sorter: Sorter, key: impl Fn(&T) -> &str) {
    let less = |a: &str, b: &str| less(a, b, sorter);
    entries.sort_unstable_by(|a, b| key(a).cmp(key(b)));
    let mut width = 1;
    let mut scratch = Vec::with_capacity(entries.len());
    while width < entries.len() {
        for run in entries.chunks_mut(2 * width) {
            if run.len() <= width || !less(key(&run[width]), key(&run[width - 1])) {
                continue;
            }
            scratch.clear();
            let (mut left, mut right) = run.split_at(width);
            while let (Some(a), Some(b)) = (left.first(), right.first()) {
                if less(key(b), key(a)) {
                    scratch.push(*b);
                    right = &right[1..];
                } else {
                    scratch.push(*a);
                    left = &left[1..];
                }
            }
            scratch.extend_from_slice(left);
            scratch.extend_from_slice(right);
            run.copy_from_slice(&scratch);
        }
        width *= 2;
    }
}

/// Whether `a` comes before `b`.
fn less(a: &str, b: &str, sorter: Sorter) -> bool {
    if a.is_ascii() && b.is_ascii() {
        return less_in(a.as_bytes(), b.as_bytes(), sorter);
    }
    less_in(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>(), sorter)
}

fn less_in<C: Copy + Into<char>>(a: &[C], b: &[C], sorter: Sorter) -> bool {
    let at = |text: &[C], index: usize| -> char { text[index].into() };
    let Some(i) = (0..a.len().min(b.len())).find(|i| at(a, *i) != at(b, *i)) else {
        return a.len() < b.len();
    };
    let (left, right) = (at(a, i), at(b, i));
    match (is_letter(left), is_letter(right)) {
        (true, true) => return left < right,
        (false, false) => {}
        (left_is_letter, right_is_letter) => {
            let is_behind_digits = sorter == Sorter::V3 && i > 0 && is_digit(at(a, i - 1));
            return if is_behind_digits { left_is_letter } else { right_is_letter };
        }
    }
    // Zeros after a digit that isn't zero count: 100 and 10 differ, 001 and 01 don't.
    let mut start = 0;
    if left == '0' || right == '0' {
        let significant = (0..i).rev().map(|j| at(a, j)).take_while(|c| is_digit(*c)).any(|c| c != '0');
        start = i64::from(significant);
    }
    let number = |text: &[C]| {
        let digits = text[i..].iter().map(|c| (*c).into()).take_while(|c| is_digit(*c));
        digits.fold((start, 0), |(number, length): (i64, usize), digit| {
            let digit = i64::from(u32::from(digit)) - i64::from(u32::from('0'));
            (number.wrapping_mul(10).wrapping_add(digit), length + 1)
        })
    };
    let ((left_number, left_length), (right_number, right_length)) = (number(a), number(b));
    (left_number, left_length, left) < (right_number, right_length, right)
}

/// Go's `unicode.IsLetter`. (Rust's `is_alphabetic` counts some marks as well.)
fn is_letter(c: char) -> bool {
    static LETTER: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\p{L}").ok());
    if c.is_ascii() { c.is_ascii_alphabetic() } else { matches(LETTER.as_ref(), c) }
}

/// Go's `unicode.IsDigit`.
fn is_digit(c: char) -> bool {
    static DIGIT: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\p{Nd}").ok());
    if c.is_ascii() { c.is_ascii_digit() } else { matches(DIGIT.as_ref(), c) }
}

fn matches(class: Option<&Regex>, c: char) -> bool {
    class.is_some_and(|class| class.is_match(c.encode_utf8(&mut [0; 4])))
}
