//! Go's `fmt.Sprint` and `fmt.Sprintf`.

mod float;

use std::io::Write as _;

use super::super::super::HelmVersion;
use super::super::json::Budget;
use super::super::object::Object;
use super::super::print;
use super::super::value::{Value, lossy};

/// `fmt.Sprint`: a space between operands when neither is a string.
pub(crate) fn sprint(args: &[Value], budget: &mut Budget) -> Vec<u8> {
    let mut out = Vec::new();
    let is_string = |value: &Value| matches!(value, Value::Str(_) | Value::Raw(_));
    for (index, arg) in args.iter().enumerate() {
        if index > 0 && !is_string(arg) && !is_string(&args[index - 1]) {
            out.push(b' ');
        }
        print::write(&mut out, arg, budget);
    }
    out
}

/// `fmt.Sprintln`
pub(crate) fn sprintln(args: &[Value], budget: &mut Budget) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, arg) in args.iter().enumerate() {
        if index > 0 {
            out.push(b' ');
        }
        print::write(&mut out, arg, budget);
    }
    out.push(b'\n');
    out
}

#[derive(Clone, Default)]
#[allow(clippy::struct_excessive_bools, reason = "the flags of a verb")]
struct Spec {
    plus: bool,
    /// `%+v`: names of fields, and no sign.
    plus_v: bool,
    minus: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    width: Option<usize>,
    precision: Option<usize>,
}

struct Formatter<'v> {
    out: Vec<u8>,
    args: &'v [Value],
    next: usize,
    reordered: bool,
    /// Whether an index was looked for that has no end.
    is_unclosed: bool,
    limit: usize,
    budget: Budget,
    helm: HelmVersion,
    depth: usize,
}

/// `fmt.Sprintf`. Widths and precisions are cut at `limit`.
pub(crate) fn sprintf(format: &[u8], args: &[Value], limit: usize, helm: HelmVersion) -> Vec<u8> {
    let mut formatter = Formatter {
        out: Vec::with_capacity(format.len() + 16),
        args,
        next: 0,
        reordered: false,
        is_unclosed: false,
        limit,
        budget: Budget::default(),
        helm,
        depth: 0,
    };
    formatter.run(format);
    formatter.out
}

impl Formatter<'_> {
    fn run(&mut self, format: &[u8]) {
        let mut at = 0;
        while at < format.len() {
            if format[at] != b'%' {
                let end = format[at..].iter().position(|byte| *byte == b'%').map_or(format.len(), |found| at + found);
                self.out.extend_from_slice(&format[at..end]);
                at = end;
                continue;
            }
            if self.is_full() {
                return;
            }
            at = self.verb(format, at + 1);
        }
        if !self.reordered && self.next < self.args.len() {
            self.out.extend_from_slice(b"%!(EXTRA ");
            for (index, arg) in self.args[self.next..].iter().enumerate() {
                if index > 0 {
                    self.out.extend_from_slice(b", ");
                }
                if self.is_full() {
                    return;
                }
                self.typed(arg);
            }
            self.out.push(b')');
        }
    }

    /// Whether there is more than may be: the caller refuses it.
    fn is_full(&self) -> bool {
        self.out.len() > self.limit
    }

    /// `type=value`
    fn typed(&mut self, arg: &Value) {
        if arg.is_nil() {
            self.out.extend_from_slice(b"<nil>");
        } else {
            self.out.extend_from_slice(arg.type_name_in(self.helm).as_bytes());
            self.out.push(b'=');
            print::write(&mut self.out, arg, &mut Budget::new(self.limit.saturating_add(1)));
        }
    }

    /// Reads `[n]` if it is there: where it ends, and whether it was there.
    fn index(&mut self, format: &[u8], at: usize, good: &mut bool) -> (usize, bool) {
        if format.get(at) != Some(&b'[') {
            return (at, false);
        }
        self.reordered = true;
        // Where there was none behind an earlier place there is none behind this one.
        let rest = if self.is_unclosed { &[] } else { &format[at..] };
        let Some(end) = rest.iter().position(|byte| *byte == b']').map(|found| at + found) else {
            (*good, self.is_unclosed) = (false, true);
            return (at + 1, false);
        };
        let number = std::str::from_utf8(&format[at + 1..end]).ok().and_then(|text| text.parse::<usize>().ok());
        match number {
            Some(number) if number >= 1 && number <= self.args.len() => self.next = number - 1,
            _ => *good = false,
        }
        (end + 1, true)
    }

    fn star(&mut self) -> Option<i64> {
        let arg = self.args.get(self.next)?;
        self.next += 1;
        match arg {
            Value::Int(value) | Value::Int64(value) => Some(*value),
            Value::Object(object) => object.integer(),
            _ => None,
        }
    }

    fn clamp(&self, value: i64) -> usize {
        usize::try_from(value.unsigned_abs()).unwrap_or(usize::MAX).min(self.limit).min(1_000_000)
    }

    fn verb(&mut self, format: &[u8], start: usize) -> usize {
        let mut at = start;
        let mut spec = Spec::default();
        let mut good = true;
        while let Some(flag) = format.get(at) {
            match flag {
                b'+' => spec.plus = true,
                b'-' => {
                    spec.minus = true;
                    spec.zero = false;
                }
                b'#' => spec.sharp = true,
                b' ' => spec.space = true,
                b'0' => spec.zero = !spec.minus,
                _ => break,
            }
            at += 1;
        }
        let (behind, mut is_indexed) = self.index(format, at, &mut good);
        at = behind;
        if format.get(at) == Some(&b'*') {
            at += 1;
            is_indexed = false;
            match self.star() {
                Some(width) => {
                    spec.width = Some(self.clamp(width));
                    if width < 0 {
                        spec.minus = true;
                        spec.zero = false;
                    }
                }
                None => self.out.extend_from_slice(b"%!(BADWIDTH)"),
            }
        } else {
            let (number, end) = digits(format, at);
            spec.width = number.map(|number| self.clamp(number));
            at = end;
            // An index stands right before what it is for: `%[1]2d` is refused.
            good &= !is_indexed || number.is_none();
        }
        if format.get(at) == Some(&b'.') {
            good &= !is_indexed;
            (at, is_indexed) = self.index(format, at + 1, &mut good);
            if format.get(at) == Some(&b'*') {
                at += 1;
                is_indexed = false;
                match self.star() {
                    Some(precision) if precision >= 0 => spec.precision = Some(self.clamp(precision)),
                    Some(_) | None => self.out.extend_from_slice(b"%!(BADPREC)"),
                }
            } else {
                let (number, end) = digits(format, at);
                spec.precision = Some(number.map_or(0, |number| self.clamp(number)));
                at = end;
            }
        }
        if !is_indexed {
            at = self.index(format, at, &mut good).0;
        }
        let rest = &format[at..];
        // No character has more bytes: to look at all of the rest would be done again for each verb.
        let first = &rest[..rest.len().min(4)];
        let Some(verb) = first.utf8_chunks().next().and_then(|chunk| chunk.valid().chars().next()) else {
            self.out.extend_from_slice(b"%!(NOVERB)");
            return format.len();
        };
        at += verb.len_utf8();
        if verb == '%' {
            self.out.push(b'%');
        } else if !good {
            self.bad(verb, "BADINDEX");
        } else if let Some(arg) = self.args.get(self.next).cloned() {
            self.next += 1;
            if verb == 'v' {
                spec.plus_v = std::mem::take(&mut spec.plus);
            }
            self.argument(verb, &arg, &spec);
        } else {
            self.bad(verb, "MISSING");
        }
        at
    }

    fn bad(&mut self, verb: char, what: &str) {
        _ = write!(self.out, "%!{verb}({what})");
    }

    /// The value in place of what the verb can't print: by `%v`, with the verb's flags.
    fn bad_verb(&mut self, verb: char, arg: &Value, spec: &Spec) {
        _ = write!(self.out, "%!{verb}(");
        if arg.is_nil() {
            self.out.extend_from_slice(b"<nil>");
        } else {
            self.out.extend_from_slice(arg.type_name_in(self.helm).as_bytes());
            self.out.push(b'=');
            match arg {
                // The flag stays, and for floats it means trailing noughts.
                Value::Float(_) => self.argument('g', arg, spec),
                Value::Object(object) if object.integer().is_some() => self.argument('d', arg, spec),
                _ => self.argument('v', arg, &Spec { sharp: false, ..spec.clone() }),
            }
        }
        self.out.push(b')');
    }

    fn argument(&mut self, verb: char, arg: &Value, spec: &Spec) {
        if self.is_full() {
            return;
        }
        match verb {
            'T' | 'v' if arg.is_nil() => return self.pad(b"<nil>", spec),
            'T' => return self.string('s', arg, arg.type_name_in(self.helm).as_bytes(), spec),
            _ => {}
        }
        if let Some(number) = named_integer(verb, arg, spec) {
            return self.integer(verb, arg, number < 0, number.unsigned_abs(), spec);
        }
        match arg {
            Value::Invalid | Value::Nil => self.bad_verb(verb, arg, spec),
            Value::Bool(value) => match verb {
                't' | 'v' => self.pad(if *value { b"true" } else { b"false" }, spec),
                _ => self.bad_verb(verb, arg, spec),
            },
            Value::Int(value) | Value::Int64(value) => {
                self.integer(verb, arg, *value < 0, value.unsigned_abs(), spec);
            }
            Value::Uint(value) => self.integer(verb, arg, false, *value, spec),
            Value::Float(value) => self.float(verb, arg, *value, spec),
            Value::Str(_) | Value::Raw(_) => self.string(verb, arg, arg.bytes().unwrap_or_default(), spec),
            Value::Bytes(bytes) if verb != 'v' && verb != 'd' => self.string(verb, arg, bytes, spec),
            Value::Bytes(bytes) if !spec.sharp => {
                self.out.push(b'[');
                for (index, byte) in bytes.iter().enumerate() {
                    if self.is_full() {
                        break;
                    }
                    if index > 0 {
                        self.out.push(b' ');
                    }
                    self.integer('d', arg, false, u64::from(*byte), spec);
                }
                self.out.push(b']');
            }
            Value::List(_) | Value::Map(_) | Value::Values(_) if !self.budget.spend(self.depth) => {}
            Value::List(_) | Value::Map(_) | Value::Values(_) if verb == 'v' && spec.sharp => self.go_syntax(arg, spec),
            Value::List(list) => {
                self.depth += 1;
                self.out.push(b'[');
                for (index, item) in list.items.iter().enumerate() {
                    if index > 0 {
                        self.out.push(b' ');
                    }
                    self.element(verb, item, spec);
                }
                self.depth -= 1;
                self.out.push(b']');
            }
            Value::Map(map) | Value::Values(map) => {
                self.depth += 1;
                self.out.extend_from_slice(b"map[");
                for (index, (key, item)) in map.entries().into_iter().enumerate() {
                    if index > 0 {
                        self.out.push(b' ');
                    }
                    self.argument(verb, &Value::Str(key), spec);
                    self.out.push(b':');
                    self.element(verb, &item, spec);
                }
                self.depth -= 1;
                self.out.push(b']');
            }
            Value::Object(object) if let Object::Struct(inner) = &**object => {
                self.depth += 1;
                self.out.extend_from_slice(if inner.pointer { b"&{" } else { b"{" });
                let named = spec.plus_v || spec.sharp;
                if inner.embedded > 0 {
                    self.out.extend_from_slice(if named { b"Metadata:{" } else { b"{" });
                }
                for (index, field) in inner.fields.iter().enumerate() {
                    if inner.embedded > 0 && index == inner.embedded {
                        self.out.push(b'}');
                    }
                    if index > 0 {
                        self.out.push(b' ');
                    }
                    if named {
                        self.out.extend_from_slice(field.name.as_bytes());
                        self.out.push(b':');
                    }
                    self.argument(verb, &field.value, spec);
                }
                self.depth -= 1;
                self.out.push(b'}');
            }
            Value::Object(object) if let Object::Files(files) = &**object => {
                let bytes = files.iter().map(|(name, data)| (name.clone(), Value::Bytes(data.as_ref().into())));
                self.argument(verb, &Value::map(bytes.collect()), spec);
            }
            Value::Bytes(_) | Value::Object(_) => {
                let text = print::text(arg);
                self.string(if matches!(verb, 'q' | 'x' | 'X') { verb } else { 's' }, arg, text.as_bytes(), spec);
            }
        }
    }

    /// `%#v` of a list or a map.
    fn go_syntax(&mut self, arg: &Value, spec: &Spec) {
        self.out.extend_from_slice(arg.type_name_in(self.helm).as_bytes());
        if arg.is_null() {
            self.out.extend_from_slice(b"(nil)");
            return;
        }
        self.depth += 1;
        self.out.push(b'{');
        let keyed: Vec<(Option<Value>, Value)> = match arg {
            Value::List(list) => list.items.iter().map(|item| (None, item.clone())).collect(),
            other => {
                let entries = other.as_map().map(|map| map.entries()).unwrap_or_default();
                entries.into_iter().map(|(key, item)| (Some(Value::Str(key)), item)).collect()
            }
        };
        for (index, (key, item)) in keyed.iter().enumerate() {
            if index > 0 {
                self.out.extend_from_slice(b", ");
            }
            if let Some(key) = key {
                self.argument('v', key, spec);
                self.out.push(b':');
            }
            if item.is_nil() {
                self.out.extend_from_slice(b"interface {}(nil)");
            } else {
                self.argument('v', item, spec);
            }
        }
        self.depth -= 1;
        self.out.push(b'}');
    }

    /// A part of a list or a map: nil is `<nil>` there for every verb, of no width.
    fn element(&mut self, verb: char, value: &Value, spec: &Spec) {
        if value.is_nil() { self.out.extend_from_slice(b"<nil>") } else { self.argument(verb, value, spec) }
    }

    fn pad(&mut self, text: &[u8], spec: &Spec) {
        let length = lossy(text).chars().count();
        let fill = spec.width.unwrap_or(0).saturating_sub(length);
        if spec.minus {
            self.out.extend_from_slice(text);
            self.out.resize(self.out.len() + fill, b' ');
        } else {
            self.out.resize(self.out.len() + fill, if spec.zero { b'0' } else { b' ' });
            self.out.extend_from_slice(text);
        }
    }

    fn string(&mut self, verb: char, arg: &Value, bytes: &[u8], spec: &Spec) {
        let cut: Vec<u8>;
        let bytes = match spec.precision {
            Some(precision) if matches!(verb, 's' | 'v' | 'q') => {
                cut = lossy(bytes).chars().take(precision).collect::<String>().into_bytes();
                &cut
            }
            Some(precision) => &bytes[..precision.min(bytes.len())],
            None => bytes,
        };
        match verb {
            'v' if spec.sharp => {
                let mut text = String::new();
                print::quote(&mut text, bytes);
                self.pad(text.as_bytes(), spec);
            }
            's' | 'v' => self.pad(bytes, spec),
            'q' => {
                let mut text = String::new();
                let raw = |c: char| c == '\t' || !(c < ' ' || matches!(c, '`' | '\u{7f}' | '\u{feff}'));
                match std::str::from_utf8(bytes) {
                    Ok(plain) if spec.sharp && plain.chars().all(raw) => text = format!("`{plain}`"),
                    _ => print::quote(&mut text, bytes),
                }
                if spec.plus {
                    text = ascii(&text);
                }
                self.pad(text.as_bytes(), spec);
            }
            'x' | 'X' => {
                let mut text = String::new();
                for (index, byte) in bytes.iter().enumerate() {
                    if spec.space && index > 0 {
                        text.push(' ');
                    }
                    if spec.sharp && (index == 0 || spec.space) {
                        text.push_str(if verb == 'x' { "0x" } else { "0X" });
                    }
                    let digits = if verb == 'x' { format!("{byte:02x}") } else { format!("{byte:02X}") };
                    text.push_str(&digits);
                }
                self.pad(text.as_bytes(), spec);
            }
            _ => self.bad_verb(verb, arg, spec),
        }
    }

    fn integer(&mut self, verb: char, arg: &Value, negative: bool, value: u64, spec: &Spec) {
        let (digits, prefix) = match verb {
            'd' | 'v' => (value.to_string(), ""),
            'b' => (format!("{value:b}"), "0b"),
            'o' => (format!("{value:o}"), if value == 0 { "" } else { "0" }),
            'O' => (format!("0o{value:o}"), ""),
            'x' => (format!("{value:x}"), "0x"),
            'X' => (format!("{value:X}"), "0X"),
            'c' | 'q' | 'U' => {
                return self.code_point(verb, if negative { value.wrapping_neg() } else { value }, spec);
            }
            _ => return self.bad_verb(verb, arg, spec),
        };
        let sign = if negative { "-" } else { spec.sign() };
        let prefix = if spec.sharp { prefix } else { "" };
        let width = match (spec.precision, spec.zero) {
            (Some(0), _) if value == 0 => return self.pad(b"", &Spec { zero: false, ..spec.clone() }),
            (Some(precision), _) => precision,
            (None, true) => spec.width.unwrap_or(0).saturating_sub(sign.len() + prefix.len()),
            (None, false) => 0,
        };
        let zeros = "0".repeat(width.saturating_sub(digits.len()));
        self.pad(format!("{sign}{prefix}{zeros}{digits}").as_bytes(), &Spec { zero: false, ..spec.clone() });
    }

    /// A code point as the character, as that in quotes, or as `U+0041`, with `#` followed by the character.
    fn code_point(&mut self, verb: char, value: u64, spec: &Spec) {
        let c = u32::try_from(value).ok().and_then(char::from_u32);
        if verb == 'U' {
            let digits = format!("{value:X}");
            let zeros = "0".repeat(spec.precision.unwrap_or(0).max(4).saturating_sub(digits.len()));
            let shown = c.filter(|c| spec.sharp && print::is_print(*c)).map(|c| format!(" '{c}'")).unwrap_or_default();
            return self.pad(format!("U+{zeros}{digits}{shown}").as_bytes(), &Spec { zero: false, ..spec.clone() });
        }
        let c = c.unwrap_or(char::REPLACEMENT_CHARACTER);
        if verb == 'c' {
            return self.pad(c.encode_utf8(&mut [0; 4]).as_bytes(), spec);
        }
        let mut text = String::from("'");
        print::quote_char(&mut text, c, '\'');
        text.push('\'');
        self.pad(if spec.plus { ascii(&text) } else { text }.as_bytes(), spec);
    }

    fn float(&mut self, verb: char, arg: &Value, value: f64, spec: &Spec) {
        if !matches!(verb, 'v' | 'b' | 'g' | 'G' | 'x' | 'X' | 'e' | 'E' | 'f' | 'F') {
            return self.bad_verb(verb, arg, spec);
        }
        let unpadded = Spec { zero: false, ..spec.clone() };
        if value.is_nan() {
            return self.pad(format!("{}NaN", spec.sign()).as_bytes(), &unpadded);
        }
        if value.is_infinite() {
            let sign = if value < 0.0 { "-" } else { Some(spec.sign()).filter(|sign| !sign.is_empty()).unwrap_or("+") };
            return self.pad(format!("{sign}Inf").as_bytes(), &unpadded);
        }
        let magnitude = value.abs();
        let text = match (verb, spec.precision.map(|precision| precision.min(10_000))) {
            ('b', _) => float::binary(magnitude),
            ('x', None) if spec.sharp => float::padded(&float::hexadecimal(magnitude, None), 6),
            ('x', Some(precision)) if spec.sharp => {
                float::padded(&float::hexadecimal(magnitude, Some(precision)), precision)
            }
            ('X', precision) if spec.sharp => float::padded(&float::hexadecimal(magnitude, precision), 0),
            ('x' | 'X', precision) => float::hexadecimal(magnitude, precision),
            ('e' | 'E', precision) => float::scientific(magnitude, precision.unwrap_or(6)),
            ('f' | 'F', precision) => format!("{magnitude:.*}", precision.unwrap_or(6)),
            ('g' | 'G', None) if spec.sharp => float::padded(&print::float(magnitude), 6),
            (_, Some(precision)) => float::general(magnitude, precision, spec.sharp),
            (_, None) => print::float(magnitude),
        };
        let text = if verb.is_ascii_uppercase() { text.to_uppercase() } else { text };
        let sign = if value.is_sign_negative() { "-" } else { spec.sign() };
        let width = if spec.zero && !spec.minus { spec.width.unwrap_or(0) } else { 0 };
        let zeros = "0".repeat(width.saturating_sub(sign.len() + text.len()));
        self.pad(format!("{sign}{zeros}{text}").as_bytes(), &unpadded);
    }
}

impl Spec {
    /// What stands before a number that is not negative.
    fn sign(&self) -> &'static str {
        match (self.plus, self.space) {
            (true, _) => "+",
            (false, true) => " ",
            (false, false) => "",
        }
    }
}

fn digits(format: &[u8], start: usize) -> (Option<i64>, usize) {
    let end =
        format[start..].iter().position(|byte| !byte.is_ascii_digit()).map_or(format.len(), |found| start + found);
    let number = std::str::from_utf8(&format[start..end]).ok().and_then(|text| text.parse().ok());
    (number, end)
}

/// A quoted text with what is not ASCII escaped.
fn ascii(quoted: &str) -> String {
    let escaped = |c: char| match c {
        c if c.is_ascii() => c.to_string(),
        c if (c as u32) < 0x1_0000 => format!("\\u{:04x}", c as u32),
        c => format!("\\U{:08x}", c as u32),
    };
    quoted.chars().map(escaped).collect()
}

/// The integer of a type with a name, as a month, where the verb asks for the number and not for the name.
fn named_integer(verb: char, arg: &Value, spec: &Spec) -> Option<i64> {
    // Their method `String` answers to the verbs of texts.
    let wants_number = !matches!(verb, 'v' | 's' | 'q' | 'x' | 'X') || (verb == 'v' && spec.sharp);
    match arg {
        Value::Object(object) if wants_number => object.integer(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(format: &str, args: &[Value]) -> String {
        String::from_utf8(sprintf(format.as_bytes(), args, 1000, HelmVersion::V3)).unwrap()
    }

    #[test]
    fn widths_and_precisions_of_any_size_are_cut() {
        for verb in ["s", "d", "x", "b", "U", "c", "q", "v", "T", "f", "e", "g"] {
            for arg in [Value::Int(65), Value::Float(1.5), Value::from("a")] {
                for format in ["%99999999", "%.99999999", "%#0100000.100000", "%-70000.70000"] {
                    sprintf(format!("{format}{verb}").as_bytes(), std::slice::from_ref(&arg), 1 << 20, HelmVersion::V3);
                }
            }
        }
        assert_eq!(format("%.999U", &[Value::Int(65)]).len(), 1001);
    }

    #[test]
    fn verbs_print_as_in_go() {
        let cases: &[(&str, &[Value], &str)] = &[
            ("%s-%s", &[Value::from("a"), Value::from("b")], "a-b"),
            ("%d", &[Value::Float(80.0)], "%!d(float64=80)"),
            (
                "%d|%5d|%-5d|%05d|%+d",
                &[Value::Int(7), Value::Int(7), Value::Int(7), Value::Int(7), Value::Int(7)],
                "7|    7|7    |00007|+7",
            ),
            ("%v", &[Value::Nil], "<nil>"),
            ("%s", &[Value::Nil], "%!s(<nil>)"),
            ("%s", &[Value::Int(1)], "%!s(int=1)"),
            ("%s", &[Value::Bool(true)], "%!s(bool=true)"),
            ("%q", &[Value::from("a\"b")], "\"a\\\"b\""),
            ("%t", &[Value::Bool(true)], "true"),
            (
                "%.2f|%8.3f|%e",
                &[Value::Float(1.005), Value::Float(2.5), Value::Float(1234.5)],
                "1.00|   2.500|1.234500e+03",
            ),
            ("%g", &[Value::Float(1e6)], "1e+06"),
            ("%x|%X", &[Value::Int(255), Value::from("hi")], "ff|6869"),
            ("%s", &[], "%!s(MISSING)"),
            ("a", &[Value::Int(1)], "a%!(EXTRA int=1)"),
            ("%[2]s %[1]s", &[Value::from("a"), Value::from("b")], "b a"),
            ("%%|%c|%U", &[Value::Int(65), Value::Int(0x1f600)], "%|A|U+1F600"),
            ("%-5s|%5s|%.1s", &[Value::from("ab"), Value::from("ab"), Value::from("ab")], "ab   |   ab|a"),
            ("%s", &[Value::list(vec![Value::from("a"), Value::Int(1)])], "[a %!s(int=1)]"),
            ("%", &[], "%!(NOVERB)"),
            ("%T", &[Value::Float(1.0)], "float64"),
            ("%.2T|%6.2T", &[Value::from("a"), Value::from("a")], "st|    st"),
            (
                "%b|%b|%b",
                &[Value::Float(1.5), Value::Float(-0.0), Value::Float(5e-324)],
                "6755399441055744p-52|-0p-1074|1p-1074",
            ),
            (
                "%.2x|%.0X|%.1x",
                &[Value::Float(1.5), Value::Float(1.75), Value::Float(1.999)],
                "0x1.80p+00|0X1P+01|0x1.0p+01",
            ),
            (
                "%x|%x|%.17x",
                &[Value::Float(5e-324), Value::Float(0.1), Value::Float(0.5)],
                "0x1p-1074|0x1.999999999999ap-04|0x1.00000000000000000p-01",
            ),
            ("%+q|%q", &[Value::Int(233), Value::Int(233)], "'\\u00e9'|'é'"),
            (
                "%U|%#U|%.6U",
                &[Value::Int(-3), Value::Int(233), Value::Int(65)],
                "U+FFFFFFFFFFFFFFFD|U+00E9 'é'|U+000041",
            ),
            (
                "%f|%05.1f|% d|%e",
                &[Value::Float(f64::INFINITY), Value::Float(f64::NEG_INFINITY), Value::Int(3), Value::Float(f64::NAN)],
                "+Inf| -Inf| 3|NaN",
            ),
            ("%03d", &[Value::Int(-5)], "-05"),
            ("%*d", &[Value::Int(4), Value::Int(5)], "   5"),
        ];
        for (verb, args, expected) in cases {
            assert_eq!(format(verb, args), *expected, "{verb}");
        }
    }
}
