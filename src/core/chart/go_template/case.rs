//! `snakecase`, `kebabcase` and `camelcase`, which split words as the Go library `xstrings` does.

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
    c.is_ascii_punctuation() && !"$+<=>^`|~".contains(c)
}

fn is_upper(c: char) -> bool {
    c.is_uppercase()
}

fn is_letter(c: char) -> bool {
    c.is_alphabetic()
}

fn is_number(c: char) -> bool {
    c.is_numeric()
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
            Word::Upper if is_upper(*c) => out.extend(c.to_lowercase()),
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
    // Go maps one character to one: what has no such other stays.
    let one = |mut all: std::vec::IntoIter<char>, c: char| match (all.next(), all.next()) {
        (Some(only), None) => only,
        _ => c,
    };
    let upper = |c: char| one(c.to_uppercase().collect::<Vec<_>>().into_iter(), c);
    let lower = |c: char| one(c.to_lowercase().collect::<Vec<_>>().into_iter(), c);
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
