//! Strings. Lengths and positions count bytes, as in Go.

use memchr::memmem;

use super::super::case::{lower, titled, upper};
use super::super::eval::{Eval, Fault};
use super::super::print;
use super::super::value::{MapType, Value};
use super::math::int;
use super::{Function, Out, Ty, exact, text, to_text};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::new("hello", &[], |_, _| Ok(Value::from("Hello!"))),
    Function::new("abbrev", &[Ty::Int, Ty::Str], |_, args| {
        let (width, source) = (int(&args[0]), bytes(&args[1]));
        Ok(Value::from_bytes(if width < 4 {
            source.to_vec()
        } else {
            abbreviate(source, 0, width).unwrap_or_default()
        }))
    }),
    Function::new("abbrevboth", &[Ty::Int, Ty::Int, Ty::Str], |_, args| {
        let (left, right, source) = (int(&args[0]), int(&args[1]), bytes(&args[2]));
        Ok(Value::from_bytes(if right < 4 || left > 0 && right < 7 {
            source.to_vec()
        } else {
            abbreviate(source, left, right).unwrap_or_default()
        }))
    }),
    Function::new("trunc", &[Ty::Int, Ty::Str], trunc),
    Function::new("trim", &[Ty::Str], |_, args| Ok(part(&args[0], trimmed(bytes(&args[0]), char::is_whitespace)))),
    Function::new("upper", &[Ty::Str], |_, args| Ok(Value::from(cased(&text(&args[0]), upper)))),
    Function::new("lower", &[Ty::Str], |_, args| Ok(Value::from(cased(&text(&args[0]), lower)))),
    Function::new("title", &[Ty::Str], |_, args| Ok(Value::from(title(&text(&args[0]))))),
    Function::new("untitle", &[Ty::Str], |_, args| Ok(Value::from(untitle(&text(&args[0]))))),
    Function::new("substr", &[Ty::Int, Ty::Int, Ty::Str], substr),
    Function::new("repeat", &[Ty::Int, Ty::Str], |eval, args| {
        let bytes = args[1].bytes().unwrap_or_default();
        let Ok(count) = usize::try_from(int(&args[0])) else { return Err("strings: negative Repeat count".into()) };
        eval.fits(bytes.len().saturating_mul(count))?;
        Ok(Value::from_bytes(bytes.repeat(count)))
    }),
    Function::new("trimall", &[Ty::Str, Ty::Str], trim_all),
    Function::new("trimAll", &[Ty::Str, Ty::Str], trim_all),
    Function::new("trimSuffix", &[Ty::Str, Ty::Str], |_, args| {
        let source = bytes(&args[1]);
        Ok(part(&args[1], source.strip_suffix(bytes(&args[0])).unwrap_or(source)))
    }),
    Function::new("trimPrefix", &[Ty::Str, Ty::Str], |_, args| {
        let source = bytes(&args[1]);
        Ok(part(&args[1], source.strip_prefix(bytes(&args[0])).unwrap_or(source)))
    }),
    Function::new("nospace", &[Ty::Str], |_, args| {
        let source = args[0].bytes().unwrap_or_default();
        // goutils takes each byte for a character, and gives the text as it is when it finds no white space.
        let kept: String = source.iter().map(|byte| char::from(*byte)).filter(|c| !c.is_whitespace()).collect();
        Ok(if kept.chars().count() == source.len() { args[0].clone() } else { Value::from(kept) })
    }),
    Function::new("initials", &[Ty::Str], |_, args| {
        // goutils takes each byte for a character.
        let source: String = args[0].bytes().unwrap_or_default().iter().map(|byte| char::from(*byte)).collect();
        Ok(Value::from(source.split_whitespace().filter_map(|word| word.chars().next()).collect::<String>()))
    }),
    Function::new("swapcase", &[Ty::Str], |_, args| Ok(Value::from(swap_case(&text(&args[0]))))),
    Function::new("snakecase", &[Ty::Str], |_, args| {
        Ok(Value::from(super::super::case::separated(&exact(&args[0])?, '_')))
    }),
    Function::new("kebabcase", &[Ty::Str], |_, args| {
        Ok(Value::from(super::super::case::separated(&exact(&args[0])?, '-')))
    }),
    Function::new("camelcase", &[Ty::Str], |_, args| Ok(Value::from(super::super::case::pascal(&exact(&args[0])?)))),
    Function::new("wrap", &[Ty::Int, Ty::Str], |eval, args| wrap(eval, bytes(&args[1]), int(&args[0]), b"\n", false)),
    Function::new("wrapWith", &[Ty::Int, Ty::Str, Ty::Str], |eval, args| {
        wrap(eval, bytes(&args[2]), int(&args[0]), bytes(&args[1]), true)
    }),
    Function::new("contains", &[Ty::Str, Ty::Str], |_, args| {
        Ok(Value::Bool(memmem::find(bytes(&args[1]), bytes(&args[0])).is_some()))
    }),
    Function::new("hasPrefix", &[Ty::Str, Ty::Str], |_, args| {
        Ok(Value::Bool(bytes(&args[1]).starts_with(bytes(&args[0]))))
    }),
    Function::new("hasSuffix", &[Ty::Str, Ty::Str], |_, args| {
        Ok(Value::Bool(bytes(&args[1]).ends_with(bytes(&args[0]))))
    }),
    Function::variadic("quote", &[], Ty::Any, quote),
    Function::variadic("squote", &[], Ty::Any, |eval, args| {
        let (mut out, mut budget) = (Vec::new(), eval.budget());
        for arg in args.iter().filter(|arg| !arg.is_nil()) {
            if !out.is_empty() {
                out.push(b' ');
            }
            out.push(b'\'');
            print::write(&mut out, arg, &mut budget);
            out.push(b'\'');
        }
        Ok(Value::from_bytes(out))
    }),
    Function::variadic("cat", &[], Ty::Any, |eval, args| {
        let (mut out, mut budget) = (Vec::new(), eval.budget());
        for (index, arg) in args.iter().filter(|arg| !arg.is_nil()).enumerate() {
            if index > 0 {
                out.push(b' ');
            }
            print::write(&mut out, arg, &mut budget);
        }
        Ok(Value::from_bytes(out))
    }),
    Function::new("indent", &[Ty::Int, Ty::Str], |eval, args| indent(eval, args, "")),
    Function::new("nindent", &[Ty::Int, Ty::Str], |eval, args| indent(eval, args, "\n")),
    Function::new("replace", &[Ty::Str, Ty::Str, Ty::Str], replace),
    Function::new("plural", &[Ty::Str, Ty::Str, Ty::Int], |_, args| {
        Ok(if int(&args[2]) == 1 { args[0].clone() } else { args[1].clone() })
    }),
    Function::new("toString", &[Ty::Any], |eval, args| match &args[0] {
        Value::Raw(bytes) | Value::Bytes(bytes) => Ok(Value::from_bytes(bytes.to_vec())),
        other => Ok(Value::Str(to_text(other, &mut eval.budget()))),
    }),
    Function::new("toStrings", &[Ty::Any], |eval, args| Ok(Value::strings(strings(eval, &args[0])?))),
    Function::new("join", &[Ty::Str, Ty::Any], |eval, args| {
        let parts = strings(eval, &args[1])?;
        let (parts, separator): (Vec<&[u8]>, _) = (parts.iter().map(bytes).collect(), bytes(&args[0]));
        eval.fits(parts.iter().map(|part| part.len() + separator.len()).sum())?;
        Ok(Value::from_bytes(parts.join(separator)))
    }),
    Function::new("split", &[Ty::Str, Ty::Str], |eval, args| Ok(numbered(split(eval, &args[1], &args[0], -1)?))),
    Function::new("splitn", &[Ty::Str, Ty::Int, Ty::Str], |eval, args| {
        Ok(numbered(split(eval, &args[2], &args[0], int(&args[1]))?))
    }),
    Function::new("splitList", &[Ty::Str, Ty::Str], |eval, args| {
        Ok(Value::strings(split(eval, &args[1], &args[0], -1)?))
    }),
];

/// The bytes of an argument that was checked to be a string.
fn bytes(value: &Value) -> &[u8] {
    value.bytes().unwrap_or_default()
}

/// A part of a text; one that is the whole is not copied.
fn part(whole: &Value, part: &[u8]) -> Value {
    if part.len() == bytes(whole).len() { whole.clone() } else { Value::from_bytes(part.to_vec()) }
}

/// Without such characters at both ends; bytes that are no UTF-8 are none.
fn trimmed(text: &[u8], is_cut: impl Fn(char) -> bool) -> &[u8] {
    let first = text.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let text = &text[first.len() - first.trim_start_matches(&is_cut).len()..];
    let last = text.utf8_chunks().last().filter(|chunk| chunk.invalid().is_empty()).map_or("", |chunk| chunk.valid());
    &text[..text.len() - (last.len() - last.trim_end_matches(&is_cut).len())]
}

fn replace(eval: &mut Eval<'_>, args: &[Value]) -> Out {
    let (from, to, source) = (bytes(&args[0]), bytes(&args[1]), bytes(&args[2]));
    if from.is_empty() {
        // Between characters: only a text has them.
        let (to, source) = (exact(&args[1])?, exact(&args[2])?);
        eval.fits(source.len().saturating_add((source.len() + 1).saturating_mul(to.len())))?;
        return Ok(Value::from(source.replace("", &to)));
    }
    if from.len() < to.len() {
        let count = memmem::find_iter(source, from).count();
        eval.fits(source.len().saturating_add(count.saturating_mul(to.len())))?;
    }
    let (mut out, mut end) = (Vec::new(), None);
    for at in memmem::find_iter(source, from) {
        out.extend_from_slice(&source[end.unwrap_or(0)..at]);
        out.extend_from_slice(to);
        end = Some(at + from.len());
    }
    let Some(end) = end else { return Ok(args[2].clone()) };
    out.extend_from_slice(&source[end..]);
    Ok(Value::from_bytes(out))
}

/// sprig's `strslice`: the elements as text, without nil; a scalar is a list of one.
pub(crate) fn strings(eval: &mut Eval<'_>, value: &Value) -> Result<Vec<Value>, Fault> {
    let mut budget = eval.budget();
    let mut text = |value: &Value| match value {
        Value::Raw(bytes) | Value::Bytes(bytes) => {
            budget.text(bytes.len());
            Value::from_bytes(bytes.to_vec())
        }
        other => Value::Str(to_text(other, &mut budget)),
    };
    let texts: Vec<Value> = match value {
        Value::Invalid | Value::Nil => Vec::new(),
        Value::List(list) => list.items.iter().filter(|item| !item.is_nil()).map(text).collect(),
        Value::Bytes(bytes) => {
            eval.texts(bytes.len(), bytes.len())?;
            bytes.iter().map(|byte| byte.to_string().into()).collect()
        }
        other => vec![text(other)],
    };
    eval.within(&budget)?;
    eval.texts(texts.len(), eval.budget().left() - budget.left())?;
    Ok(texts)
}

fn trunc(_: &mut Eval<'_>, args: &[Value]) -> Out {
    let bytes = args[1].bytes().unwrap_or_default();
    let length = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
    let count = int(&args[0]);
    let cut = |at: i64| usize::try_from(at).unwrap_or(0).min(bytes.len());
    if count < 0 && length + count > 0 {
        return Ok(Value::from_bytes(bytes[cut(length + count)..].to_vec()));
    }
    if count >= 0 && length > count {
        return Ok(Value::from_bytes(bytes[..cut(count)].to_vec()));
    }
    Ok(args[1].clone())
}

fn substr(_: &mut Eval<'_>, args: &[Value]) -> Out {
    let (start, end) = (int(&args[0]), int(&args[1]));
    let bytes = args[2].bytes().unwrap_or_default();
    let part = if start < 0 {
        usize::try_from(end).ok().and_then(|end| bytes.get(..end))
    } else {
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        match usize::try_from(end) {
            Ok(end) if end <= bytes.len() => bytes.get(start..end),
            _ => bytes.get(start..),
        }
    };
    match part {
        Some(part) => Ok(Value::from_bytes(part.to_vec())),
        None => Err(format!("slice bounds out of range [{start}:{end}] with length {}", bytes.len()).into()),
    }
}

fn trim_all(_: &mut Eval<'_>, args: &[Value]) -> Out {
    let set = text(&args[0]);
    Ok(part(&args[1], trimmed(bytes(&args[1]), |c| set.contains(c))))
}

/// Maps each character to one, as Go's `strings.ToUpper` does: `ß` stays.
fn cased(text: &str, case: fn(char) -> char) -> String {
    text.chars().map(case).collect()
}

/// Go's `strings.Title`: the first letter of each word; digits, letters and `_` are parts of words.
fn title(text: &str) -> String {
    let separates = |c: char| {
        if c.is_ascii() { !c.is_ascii_alphanumeric() && c != '_' } else { !c.is_alphanumeric() && c.is_whitespace() }
    };
    let mut previous = ' ';
    text.chars()
        .map(|c| {
            let out = if separates(previous) { titled(c) } else { c };
            previous = c;
            out
        })
        .collect()
}

fn untitle(text: &str) -> String {
    let mut first = true;
    text.chars()
        .map(|c| {
            if c.is_whitespace() {
                first = true;
                c
            } else if std::mem::take(&mut first) {
                lower(c)
            } else {
                c
            }
        })
        .collect()
}

fn swap_case(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c.is_uppercase() {
                lower(c)
            } else if c.is_lowercase() {
                upper(c)
            } else {
                c
            }
        })
        .collect()
}

fn abbreviate(text: &[u8], offset: i64, width: i64) -> Option<Vec<u8>> {
    let width = usize::try_from(width).ok().filter(|width| *width >= 4)?;
    if text.len() <= width {
        return Some(text.to_vec());
    }
    let mut offset = usize::try_from(offset).unwrap_or(0).min(text.len());
    if text.len() - offset < width - 3 {
        offset = text.len() - (width - 3);
    }
    if offset <= 4 {
        return Some([&text[..width - 3], b"..."].concat());
    }
    if width < 7 {
        return None;
    }
    if offset + width - 3 < text.len() {
        let rest = abbreviate(&text[offset..], 0, i64::try_from(width - 3).ok()?).unwrap_or_default();
        return Some([b"...", rest.as_slice()].concat());
    }
    Some([b"...", &text[text.len() - (width - 3)..]].concat())
}

fn wrap(eval: &mut Eval<'_>, bytes: &[u8], width: i64, newline: &[u8], break_words: bool) -> Out {
    let newline = if newline.is_empty() { b"\n" } else { newline };
    let width = usize::try_from(width).unwrap_or(1).max(1);
    eval.fits(bytes.len().saturating_add((bytes.len() / width).saturating_mul(newline.len())))?;
    let mut out = Vec::with_capacity(bytes.len());
    let mut offset = 0;
    while bytes.len() - offset > width {
        if bytes[offset] == b' ' {
            offset += 1;
            continue;
        }
        let window = &bytes[offset..=offset + width];
        if let Some(space) = window.iter().rposition(|byte| *byte == b' ') {
            out.extend_from_slice(&bytes[offset..offset + space]);
            out.extend_from_slice(newline);
            offset += space + 1;
        } else if break_words {
            out.extend_from_slice(&bytes[offset..offset + width]);
            out.extend_from_slice(newline);
            offset += width;
        } else if let Some(space) = bytes[offset + width..].iter().position(|byte| *byte == b' ') {
            let end = offset + width + space;
            out.extend_from_slice(&bytes[offset..end]);
            out.extend_from_slice(newline);
            offset = end + 1;
        } else {
            break;
        }
    }
    out.extend_from_slice(&bytes[offset..]);
    Ok(Value::from_bytes(out))
}

fn quote(eval: &mut Eval<'_>, args: &[Value]) -> Out {
    let mut out = String::new();
    for arg in args.iter().filter(|arg| !arg.is_nil()) {
        if !out.is_empty() {
            out.push(' ');
        }
        match arg.bytes() {
            Some(bytes) => print::quote(&mut out, bytes),
            None => print::quote(&mut out, to_text(arg, &mut eval.budget()).as_bytes()),
        }
        eval.fits(out.len())?;
    }
    Ok(Value::from(out))
}

fn indent(eval: &mut Eval<'_>, args: &[Value], first: &str) -> Out {
    let Ok(spaces) = usize::try_from(int(&args[0])) else { return Err("strings: negative Repeat count".into()) };
    let source = args[1].bytes().unwrap_or_default();
    let lines = source.split(|byte| *byte == b'\n').count();
    let size = spaces.saturating_mul(lines).saturating_add(source.len() + first.len());
    eval.fits(size)?;
    let mut out = Vec::with_capacity(size);
    out.extend_from_slice(first.as_bytes());
    for (index, line) in source.split(|byte| *byte == b'\n').enumerate() {
        if index > 0 {
            out.push(b'\n');
        }
        out.resize(out.len() + spaces, b' ');
        out.extend_from_slice(line);
    }
    Ok(Value::from_bytes(out))
}

/// Go's `strings.SplitN`, of bytes that may be no UTF-8 too.
fn split(eval: &mut Eval<'_>, source: &Value, separator: &Value, count: i64) -> Result<Vec<Value>, Fault> {
    if let (Value::Raw(source), false) = (source, bytes(separator).is_empty()) {
        let limit = if count < 0 { usize::MAX } else { usize::try_from(count).unwrap_or(usize::MAX) };
        let separator = bytes(separator);
        let cuts: Vec<usize> = memmem::find_iter(source, separator).take(limit.saturating_sub(1)).collect();
        if limit == 0 {
            return Ok(Vec::new());
        }
        eval.texts(cuts.len() + 1, source.len())?;
        let starts = std::iter::once(0).chain(cuts.iter().map(|at| at + separator.len()));
        let ends = cuts.iter().copied().chain([source.len()]);
        return Ok(starts.zip(ends).map(|(start, end)| Value::from_bytes(source[start..end].to_vec())).collect());
    }
    split_n(eval, &exact(source)?, &text(separator), count)
}

/// Go's `strings.SplitN`; an empty separator splits into characters.
fn split_n(eval: &mut Eval<'_>, text: &str, separator: &str, count: i64) -> Result<Vec<Value>, Fault> {
    let limit = match count {
        0 => return Ok(Vec::new()),
        1.. => usize::try_from(count).unwrap_or(usize::MAX),
        _ => usize::MAX,
    };
    let parts = if separator.is_empty() { text.chars().count() } else { text.matches(separator).count() + 1 };
    eval.texts(parts.min(limit), text.len())?;
    if separator.is_empty() {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            if parts.len() + 1 == limit {
                break;
            }
            let (first, behind) = rest.split_at(c.len_utf8());
            parts.push(Value::from(first));
            rest = behind;
        }
        if !rest.is_empty() {
            parts.push(Value::from(rest));
        }
        return Ok(parts);
    }
    Ok(text.splitn(limit, separator).map(Value::from).collect())
}

/// sprig's `split`: a map with the keys `_0`, `_1`, and so on.
fn numbered(parts: Vec<Value>) -> Value {
    Value::typed_map(
        MapType::Str,
        parts.into_iter().enumerate().map(|(index, part)| (format!("_{index}").into(), part)).collect(),
    )
}
