//! `snakecase`, `kebabcase` and `camelcase`, which split words as the Go library `xstrings` does.

use unicode_general_category::{GeneralCategory, get_general_category};

/// What a stretch of characters is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    None,
    Number,
    Upper,
    Letters,
    Connector,
    Punctuation,
    Other,
}

fn is_connector(c: char) -> bool {
    c == '-' || c == '_' || c.is_whitespace()
}

fn is_punctuation(c: char) -> bool {
    use GeneralCategory::{
        ClosePunctuation, ConnectorPunctuation, DashPunctuation, FinalPunctuation, InitialPunctuation, OpenPunctuation,
        OtherPunctuation,
    };
    matches!(
        get_general_category(c),
        ConnectorPunctuation
            | DashPunctuation
            | OpenPunctuation
            | ClosePunctuation
            | InitialPunctuation
            | FinalPunctuation
            | OtherPunctuation
    )
}

fn is_upper(c: char) -> bool {
    get_general_category(c) == GeneralCategory::UppercaseLetter
}

/// Whether it is a letter, of which `xstrings` takes those of Chinese, Japanese and Korean for none.
fn is_letter(c: char) -> bool {
    use GeneralCategory::{LowercaseLetter, ModifierLetter, OtherLetter, TitlecaseLetter, UppercaseLetter};
    let is_of_cjk = matches!(c, '\u{4e00}'..='\u{9fcc}' | '\u{3400}'..='\u{4d85}' | '\u{20000}'..='\u{2b81d}');
    !is_of_cjk
        && matches!(
            get_general_category(c),
            UppercaseLetter | LowercaseLetter | TitlecaseLetter | ModifierLetter | OtherLetter
        )
}

fn is_number(c: char) -> bool {
    use GeneralCategory::{DecimalNumber, LetterNumber, OtherNumber};
    matches!(get_general_category(c), DecimalNumber | LetterNumber | OtherNumber)
}

/// A letter as a capital, one for one as in Go: `ß` stays.
pub(crate) fn upper(c: char) -> char {
    let capitals = match c {
        // Greek letters with a small iota, which all of Unicode's rules write beside the capital.
        '\u{1f80}'..='\u{1f87}' | '\u{1f90}'..='\u{1f97}' | '\u{1fa0}'..='\u{1fa7}' => 8,
        '\u{1fb3}' | '\u{1fc3}' | '\u{1ff3}' => 9,
        _ => 0,
    };
    let mut mapped = c.to_uppercase();
    match (mapped.next(), mapped.next()) {
        (Some(upper), None) => upper,
        _ => char::from_u32(u32::from(c) + capitals).unwrap_or(c),
    }
}

/// A letter as the first of a word, as Go's `unicode.ToTitle` has it.
pub(crate) fn titled(c: char) -> char {
    match c {
        '\u{1c4}'..='\u{1c6}' => '\u{1c5}',
        '\u{1c7}'..='\u{1c9}' => '\u{1c8}',
        '\u{1ca}'..='\u{1cc}' => '\u{1cb}',
        '\u{1f1}'..='\u{1f3}' => '\u{1f2}',
        // Georgian has capitals for whole words alone.
        '\u{10d0}'..='\u{10ff}' => c,
        _ => upper(c),
    }
}

/// A letter as a small one.
pub(crate) fn lower(c: char) -> char {
    // İ is the only letter that Rust lowers to two characters; Go takes the first.
    c.to_lowercase().next().unwrap_or(c)
}

/// The first word of `text` and its kind.
fn next_word(text: &[char]) -> (Word, &[char], &[char]) {
    let Some(&first) = text.first() else { return (Word::None, &[], &[]) };
    let run = |test: &dyn Fn(char) -> bool| text.iter().position(|c| !test(*c)).unwrap_or(text.len());
    let small = |c: char| is_letter(c) && !is_upper(c);
    let (word, length) = if is_connector(first) {
        (Word::Connector, run(&is_connector))
    } else if is_punctuation(first) {
        (Word::Punctuation, run(&is_punctuation))
    } else if is_upper(first) {
        let capitals = run(&is_upper);
        let length = if capitals > 1 {
            // In `HTTPStatus` the `S` belongs to the next word.
            if text.get(capitals).is_some_and(|c| is_letter(*c)) { capitals - 1 } else { capitals }
        } else {
            1 + text[1..].iter().position(|c| !small(*c)).unwrap_or(text.len() - 1)
        };
        (Word::Upper, length)
    } else if is_letter(first) {
        (Word::Letters, run(&small).max(1))
    } else if is_number(first) {
        (Word::Number, run(&is_number))
    } else {
        (Word::Other, run(&|c| !is_connector(c) && !is_letter(c) && !is_number(c) && !is_punctuation(c)).max(1))
    };
    let (word_text, rest) = text.split_at(length);
    (word, word_text, rest)
}

fn push(out: &mut String, word: Word, text: &[char], connector: char) {
    for c in text {
        match word {
            Word::Upper | Word::Connector if is_connector(*c) => out.push(connector),
            Word::Upper if is_upper(*c) => out.push(lower(*c)),
            _ => out.push(*c),
        }
    }
}

/// Lower-case words with a connector between them.
pub(crate) fn separated(text: &str, connector: char) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len() + 8);
    let (mut kind, mut word, mut rest) = next_word(&chars);
    while !rest.is_empty() {
        if kind != Word::Connector {
            push(&mut out, kind, word, connector);
        }
        let (previous, last) = (kind, word);
        (kind, word, rest) = next_word(rest);
        match previous {
            Word::Number => {
                while matches!(kind, Word::Letters | Word::Number) {
                    push(&mut out, kind, word, connector);
                    (kind, word, rest) = next_word(rest);
                }
                if !matches!(kind, Word::None | Word::Punctuation | Word::Connector) {
                    out.push(connector);
                }
            }
            Word::Connector => push(&mut out, previous, last, connector),
            Word::Punctuation => {}
            _ if kind != Word::Number => {
                if !matches!(kind, Word::Connector | Word::Punctuation) {
                    out.push(connector);
                }
            }
            _ if rest.is_empty() => {}
            _ => {
                let number = word;
                (kind, word, rest) = next_word(rest);
                if kind != Word::Letters {
                    push(&mut out, Word::Number, number, connector);
                    if !matches!(kind, Word::Connector | Word::Punctuation) {
                        out.push(connector);
                    }
                    continue;
                }
                out.push(connector);
                push(&mut out, Word::Number, number, connector);
                while matches!(kind, Word::Letters | Word::Number) {
                    push(&mut out, kind, word, connector);
                    (kind, word, rest) = next_word(rest);
                }
                if !matches!(kind, Word::None | Word::Connector | Word::Punctuation) {
                    out.push(connector);
                }
            }
        }
    }
    push(&mut out, kind, word, connector);
    out
}

/// Words joined, each with a capital.
pub(crate) fn pascal(text: &str) -> String {
    let mut chars = text.chars();
    let mut out = String::with_capacity(text.len());
    let mut current = loop {
        match chars.next() {
            // xstrings writes the last of nothing but connectors twice.
            None => {
                out.extend(out.chars().next_back());
                return out;
            }
            Some(c) if is_connector(c) => out.push(c),
            Some(c) => break c,
        }
    };
    let mut capital = is_upper(current);
    current = upper(current);
    for next in chars {
        let previous = std::mem::replace(&mut current, next);
        if is_connector(current) && is_connector(previous) {
            out.push(previous);
            continue;
        }
        if is_connector(previous) {
            capital = is_upper(current);
            current = upper(current);
        } else {
            if capital {
                if is_upper(current) {
                    current = lower(current);
                } else {
                    capital = false;
                }
            }
            out.push(previous);
        }
    }
    out.push(current);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_in_xstrings() {
        for (text, snake) in [
            ("HTTPServer", "http_server"),
            ("_camelCase", "_camel_case"),
            ("NoHTTPS", "no_https"),
            ("Wi_thF", "wi_th_f"),
            ("_AnotherTES_TCaseP", "_another_tes_t_case_p"),
            ("ALL", "all"),
            ("_HELLO_WORLD_", "_hello_world_"),
            ("HELLO____WORLD", "hello____world"),
            ("TW", "tw"),
            ("Duration2m3s", "duration_2m3s"),
            ("Bld4Floor3rd", "bld4_floor_3rd"),
            ("http2xx", "http_2xx"),
            ("first name", "first_name"),
        ] {
            assert_eq!(separated(text, '_'), snake, "{text}");
        }
    }

    #[test]
    fn letters_are_mapped_one_for_one() {
        for (c, expected) in [
            ('a', ['A', 'A', 'a']),
            ('ß', ['ß', 'ß', 'ß']),
            ('İ', ['İ', 'İ', 'i']),
            ('ǆ', ['Ǆ', 'ǅ', 'ǆ']),
            ('Ǳ', ['Ǳ', 'ǲ', 'ǳ']),
            ('ა', ['Ა', 'ა', 'ა']),
            ('ᾀ', ['ᾈ', 'ᾈ', 'ᾀ']),
            ('ῳ', ['ῼ', 'ῼ', 'ῳ']),
        ] {
            assert_eq!([upper(c), titled(c), lower(c)], expected, "{c}");
        }
    }

    /// As printed by xstrings 1.5.0.
    #[test]
    fn letters_of_all_scripts_are_what_they_are_to_go() {
        for (text, snake, pascal_text) in [
            ("FirstName日本語Text", "first_name_日本語_text", "FirstName日本語Text"),
            ("日本", "日本", "日本"),
            ("ab日本Cd", "ab_日本_cd", "Ab日本Cd"),
            ("Größe«Neu»X", "größe«neu»x", "Größe«Neu»X"),
            ("İstanbulABC", "istanbul_abc", "İstanbulABC"),
            ("Ⓐbc", "Ⓐ_bc", "Ⓐbc"),
            ("x²Y", "x²_y", "X²Y"),
            ("ǅabcǅ", "ǅabcǅ", "Ǆabcǅ"),
            ("ÄÖÜber", "äö_über", "Äöüber"),
            ("٣abc", "٣abc", "٣abc"),
            ("a—B", "a—b", "A—B"),
            ("$Abc+Def", "$_abc_+_def", "$Abc+Def"),
        ] {
            assert_eq!((separated(text, '_').as_str(), pascal(text).as_str()), (snake, pascal_text), "{text}");
        }
    }

    #[test]
    fn pascal_case_joins_words() {
        for (text, pascal_text) in [
            ("http_server", "HttpServer"),
            ("no_https", "NoHttps"),
            ("_complex__case_", "_Complex_Case_"),
            ("some words", "SomeWords"),
        ] {
            assert_eq!(pascal(text), pascal_text, "{text}");
        }
    }
}
