//! Templates from a tape of numbers: a shorter tape with smaller numbers gives a simpler template, so that proptest's
//! shrinking of the tape shrinks the template.

use super::grammar::*;

/// Reads choices off a tape; behind its end every choice is the first.
struct Tape<'a> {
    rest: std::slice::Iter<'a, u16>,
    variables: usize,
    loops: usize,
}

/// A template.
pub fn template(tape: &[u16]) -> String {
    let mut tape = Tape { rest: tape.iter(), variables: 0, loops: 0 };
    let mut out = String::new();
    loop {
        tape.statement(&mut out, 2);
        if tape.rest.len() == 0 {
            return out;
        }
    }
}

fn literal(text: &str) -> String {
    if !text.contains(['`', '\r']) && text.len() % 5 == 4 {
        return format!("`{text}`");
    }
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\u{feff}' => out.push_str("\\ufeff"),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

impl Tape<'_> {
    fn pick(&mut self, count: usize) -> usize {
        usize::from(self.rest.next().copied().unwrap_or(0)) % count
    }

    fn one<'t>(&mut self, from: &[&'t str]) -> &'t str {
        from[self.pick(from.len())]
    }

    fn block(&mut self, out: &mut String, depth: usize) {
        let variables = self.variables;
        for _ in 0..=self.pick(2) {
            self.statement(out, depth);
        }
        self.variables = variables;
    }

    fn statement(&mut self, out: &mut String, depth: usize) {
        let choice = if depth == 0 { self.pick(12) } else { self.pick(22) };
        let (open, close) = match self.pick(12) {
            9 => ("{{- ", " }}"),
            10 => ("{{ ", " -}}"),
            11 => ("{{- ", " -}}"),
            _ => ("{{ ", " }}"),
        };
        match choice {
            10 => out.push_str(self.one(&["\n", " x ", "{{/* c */}}", " {{- /* c */ -}} ", "{}", "\t"])),
            11 => {
                let value = self.any(3);
                out.push_str(&format!("{open}$v{} := {value}{close}", self.variables));
                self.variables += 1;
            }
            12 | 13 => {
                let condition = self.any(3);
                let word = if choice == 12 { "if" } else { "with" };
                out.push_str(&format!("{open}{word} {condition}{close}"));
                self.block(out, depth - 1);
                match self.pick(4) {
                    1 => {
                        out.push_str("{{ else }}");
                        self.block(out, depth - 1);
                    }
                    2 => {
                        let condition = self.any(2);
                        out.push_str(&format!("{{{{ else {word} {condition} }}}}"));
                        self.block(out, depth - 1);
                        out.push_str("{{- else -}}");
                        self.block(out, depth - 1);
                    }
                    _ => {}
                }
                out.push_str("{{ end }}");
            }
            14..=16 => {
                let over = match self.pick(5) {
                    0 => self.expression('k', 1),
                    1 | 2 => self.expression('m', 2),
                    _ => self.expression('l', 2),
                };
                let names = self.pick(3);
                match names {
                    0 => out.push_str(&format!("{open}range {over}{close}")),
                    1 => out.push_str(&format!("{open}range $v{} := {over}{close}", self.variables)),
                    _ => out.push_str(&format!(
                        "{open}range $v{}, $v{} := {over}{close}",
                        self.variables,
                        self.variables + 1
                    )),
                }
                let before = self.variables;
                self.variables += names;
                self.loops += 1;
                self.block(out, depth - 1);
                if self.pick(3) == 1 {
                    let condition = self.any(1);
                    let word = self.one(&["break", "continue"]);
                    out.push_str(&format!("{{{{ if {condition} }}}}{{{{ {word} }}}}{{{{ end }}}}"));
                }
                out.push_str(self.one(&["{{ . }},", ";", "{{ else }}none"]));
                self.loops -= 1;
                self.variables = before;
                out.push_str("{{ end }}");
            }
            17 if self.variables > 0 => {
                let name = self.pick(self.variables);
                let value = self.any(2);
                out.push_str(&format!("{open}$v{name} = {value}{close}"));
            }
            18 => {
                let value = self.any(2);
                let name = self.one(NAMES);
                out.push_str(&format!("{open}template \"{name}\" {value}{close}"));
            }
            19 => {
                let map = self.expression('m', 1);
                let key = literal(self.one(KEYS));
                let value = self.any(2);
                let change = self.one(&["set", "unset"]);
                let value = if change == "set" { format!(" {value}") } else { String::new() };
                out.push_str(&format!("{open}$_ := {change} {map} {key}{value}{close}"));
            }
            _ => {
                let value = self.any(3);
                out.push_str(&format!("{open}{value}{close}"));
            }
        }
    }

    /// A value of any type, most often the result of a function.
    fn any(&mut self, depth: usize) -> String {
        let index = self.pick(FUNCTIONS.len() + 24);
        if depth == 0 || index >= FUNCTIONS.len() {
            let kind = ['s', 'i', 'f', 'b', 'l', 'm', 'a', 't', 'v'][self.pick(9)];
            return self.expression(kind, depth);
        }
        self.call(index, depth)
    }

    fn call(&mut self, index: usize, depth: usize) -> String {
        let (name, signature) = FUNCTIONS[index];
        let (parameters, _) = signature.split_once('>').unwrap();
        let mut args = Vec::new();
        let mut last = 'a';
        for parameter in parameters.chars() {
            if parameter == '*' {
                for _ in 0..self.pick(3) {
                    args.push(self.expression(last, depth - 1));
                }
            } else {
                args.push(self.expression(parameter, depth - 1));
                last = parameter;
            }
        }
        // Too few or too many, once in a while.
        match self.pick(60) {
            58 => _ = args.pop(),
            59 => args.push(self.expression(last, 0)),
            _ => {}
        }
        if self.pick(4) == 1
            && let Some(piped) = args.pop()
        {
            return format!("({})", [&format!("{piped} | {name}"), args.join(" ").as_str()].join(" ").trim_end());
        }
        format!("({name} {})", args.join(" ")).replace(" )", ")")
    }

    /// A value of a type, or, once in a while, of another.
    fn expression(&mut self, kind: char, depth: usize) -> String {
        let choice = self.pick(20);
        match choice {
            // What is no time is now for sprig, and Helm's now is not ours.
            17.. if kind == 't' => return self.leaf('t'),
            // Complaints about syntax are in other words.
            17.. if kind == 'T' => return self.leaf('T'),
            18 => {
                let other = ['s', 'i', 'f', 'l', 'm', 'b', 'x', 'N'][self.pick(8)];
                return self.leaf(other);
            }
            19 if self.variables > 0 => return format!("$v{}", self.pick(self.variables)),
            17 => {
                let (path, _) = VALUES[self.pick(VALUES.len())];
                return path.into();
            }
            _ => {}
        }
        if depth > 0 && choice >= 9 {
            let wanted = match kind {
                'k' | 'n' => 'i',
                'r' | 'd' | 'z' | 'u' | 'p' | 'c' | 'e' | 'j' | 'Y' | 'J' | 'T' | 'K' | 'w' | 'x' | 'F' | 'I' | 'P'
                | 'y' => '-',
                other => other,
            };
            match kind {
                'Y' => return format!("(toYaml {})", self.any(depth - 1)),
                'J' => return format!("(toJson {})", self.any(depth - 1)),
                'T' => return format!("(toToml {})", self.leaf('m')),
                'j' => return format!("(b64enc {})", self.expression('s', depth - 1)),
                _ => {}
            }
            let fitting: Vec<usize> =
                (0..FUNCTIONS.len()).filter(|index| FUNCTIONS[*index].1.ends_with(wanted) || wanted == 'a').collect();
            if !fitting.is_empty() {
                let index = fitting[self.pick(fitting.len())];
                return self.call(index, depth);
            }
        }
        if (6..9).contains(&choice) {
            let fitting: Vec<&str> = VALUES
                .iter()
                .filter(|(_, found)| *found == kind || kind == 'n' && *found == 'f')
                .map(|(path, _)| *path)
                .collect();
            if !fitting.is_empty() {
                return self.one(&fitting).into();
            }
        }
        self.leaf(kind)
    }

    fn part_of_regex(&mut self, out: &mut String) {
        match self.pick(6) {
            0..3 => out.push_str(self.one(REGEX_ATOMS)),
            3 | 4 => {
                out.push_str(self.one(&["[", "[^"]));
                for _ in 0..=self.pick(3) {
                    out.push_str(self.one(REGEX_CLASS));
                }
                out.push_str(self.one(&["]", "]", "]", ""]));
            }
            _ => {
                out.push_str(self.one(REGEX_GROUPS));
                out.push_str(self.one(REGEX_ATOMS));
                out.push_str(self.one(&[")", ")", "|b)", ""]));
            }
        }
        if self.pick(3) == 1 {
            out.push_str(self.one(REGEX_REPEATS));
        }
    }

    fn leaf(&mut self, kind: char) -> String {
        match kind {
            's' => literal(self.one(STRINGS)),
            'i' => self.one(INTS).into(),
            'k' => self.one(COUNTS).into(),
            'f' => self.one(FLOATS).into(),
            'b' => self.one(&["true", "false"]).into(),
            'N' => "nil".into(),
            'n' => match self.pick(4) {
                0 => self.one(INTS).into(),
                1 => self.one(FLOATS).into(),
                2 => literal(self.one(STRINGS)),
                _ => self
                    .one(&["true", ".Values.big", "nil", ".Values.f", "(list)", "\"0x1F\"", "\"1e6\"", "\"017\""])
                    .into(),
            },
            'l' => {
                let choices = [
                    "(list 1 \"a\" nil)",
                    "(list)",
                    "(list \"b\" \"a\" \"b\")",
                    "(list 1.5 2)",
                    ".Values.mixed",
                    ".Values.strs",
                    "(until 3)",
                    "(splitList \",\" \"a,b,,c\")",
                    "(list (list 1) (dict \"a\" 1))",
                    ".Values.none",
                    "(dict \"a\" 1 | values)",
                ];
                self.one(&choices).into()
            }
            'm' => {
                let choices = [
                    "(dict \"a\" 1)",
                    "(dict)",
                    ".Values.m",
                    "(dict \"a\" (dict \"b\" 1 \"c\" nil) \"x\" \"y\")",
                    ".Values.awkward",
                    "(split \",\" \"a,b\")",
                    "(urlParse \"https://h/p\")",
                    ".Values.nest",
                    "(dict \"l\" (list 1 (dict \"k\" \"v\")) \"n\" nil)",
                    "(dict 1 2 true 3)",
                    "(dict \"a\")",
                    ".Values",
                    "(dict \"m\" .Values)",
                    "(dict \"m\" (dict \"m\" (dict \"a\" 7)))",
                ];
                self.one(&choices).into()
            }
            't' => {
                let choices = [
                    "(toDate \"2006-01-02\" \"2024-02-29\")",
                    "(toDate \"2006-01-02T15:04:05Z07:00\" \"2024-07-01T12:34:56.789+02:00\")",
                    "0",
                    "1700000000",
                    "(int64 1700000000)",
                    "(toDate \"x\" \"y\")",
                    "(mustToDate \"2006-01-02 15:04:05\" \"1999-12-31 23:59:59\")",
                    "-1",
                ];
                self.one(&choices).into()
            }
            'v' => format!("(semver {})", literal(self.one(VERSIONS))),
            'r' if self.pick(2) == 0 => literal(self.one(REGEXES)),
            'r' => {
                let mut pattern = String::new();
                for _ in 0..=self.pick(4) {
                    self.part_of_regex(&mut pattern);
                }
                literal(&pattern)
            }
            'x' => literal(self.one(REPLACEMENTS)),
            'd' => literal(self.one(DURATIONS)),
            'y' => literal(self.one(LAYOUTS)),
            'z' => literal(self.one(ZONES)),
            'u' => literal(self.one(URLS)),
            'p' => literal(self.one(PATHS)),
            'c' => literal(self.one(CONSTRAINTS)),
            'e' => literal(self.one(VERSIONS)),
            'j' => literal(self.one(BASE64)),
            'Y' => literal(self.one(YAMLS)),
            'J' => literal(self.one(JSONS)),
            'T' => literal(self.one(TOMLS)),
            'F' => literal(self.one(FORMATS)),
            'w' => literal(self.one(TYPES)),
            'K' => literal(self.one(KEYS)),
            'I' => literal(self.one(NAMES)),
            'P' => literal(self.one(INNER)),
            _ => {
                let kind = ['s', 'i', 'f', 'b', 'l', 'm', 'N', 't', 'v', 's'][self.pick(10)];
                self.leaf(kind)
            }
        }
    }
}
