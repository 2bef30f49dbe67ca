//! Executes templates, as `text/template` does.

mod bounds;
mod call;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Weak;
use std::sync::Arc;

use jiff::Timestamp;
use memchr::memchr_iter;
use smallvec::SmallVec;

use super::super::error::{Location, MADE, TemplateError};
use super::super::{Drawn, Lookup, Needs, RenderInput, Secrets};
use super::ast::{Body, Branch, Command, Expr, File, Node, Operand, Pipe, Pos};
use super::functions::Function;
use super::memo::Memo;
use super::object::Object;
use super::print;
use super::value::{Map, Value, held, lossy};

/// Why a function failed.
#[derive(Debug)]
pub(crate) enum Fault {
    Message(String),
    /// A template that the function executed failed.
    Template(Box<TemplateError>),
}

impl From<String> for Fault {
    fn from(message: String) -> Self {
        Self::Message(message)
    }
}

impl From<&str> for Fault {
    fn from(message: &str) -> Self {
        Self::Message(message.into())
    }
}

/// The result of evaluating something.
type Res<T> = Result<T, Box<TemplateError>>;

/// What is to happen after a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// A template that can be executed by name.
#[derive(Clone, Debug)]
pub(crate) struct Definition {
    pub(crate) body: Arc<Body>,
    /// The file it stands in.
    pub(crate) file: Arc<str>,
}

/// Templates by name.
pub(crate) type Definitions = HashMap<Arc<str>, Definition>;

/// Adds a file's templates; a later one replaces an earlier one of its name, unless it is empty.
pub(crate) fn define(definitions: &mut Definitions, file: &Arc<str>, parsed: &File) {
    let named = parsed.defines.iter();
    for (name, body) in named.chain([(file, &parsed.main)]) {
        if body.empty && definitions.get(name).is_some_and(|old| !old.body.empty) {
            continue;
        }
        definitions.insert(name.clone(), Definition { body: body.clone(), file: file.clone() });
    }
}

/// The variables of the template that is executed, and where it stands.
struct Frame<'f> {
    slots: SmallVec<[Value; 8]>,
    body: &'f Body,
    name: &'f str,
    file: &'f Arc<str>,
}

/// One rendering.
pub(crate) struct Eval<'a> {
    pub(crate) input: &'a RenderInput<'a>,
    /// The chart's templates, and on top what texts given to `tpl` define.
    definitions: Vec<Definitions>,
    pub(crate) out: Vec<u8>,
    pub(crate) missing_lookups: BTreeSet<Lookup>,
    pub(crate) memo: &'a Memo,
    /// Maps that were put into maps: they may hold cycles, which would never be freed.
    linked: Vec<Weak<Map>>,
    /// Where draws of random functions are made, and how many were made there.
    pub(crate) draws: HashMap<[u8; 32], u32>,
    /// The file and place of the call being made.
    pub(crate) site: (Arc<str>, Pos),
    /// The text in which it is made.
    site_source: Arc<str>,
    /// The file that is rendered.
    pub(crate) entry: Arc<str>,
    /// Keys and certificates that were used.
    pub(crate) drawn: Drawn,
    /// Lookups that had an answer.
    pub(crate) answered_lookups: BTreeSet<Lookup>,
    /// What was drawn: no error may show it.
    pub(crate) secrets: Secrets,
    /// Something was to be drawn, and there is no seed.
    pub(crate) needs_seed: bool,
    /// The time was asked for.
    pub(crate) asked_time: bool,
    /// The first line of the last file that is not in UTF-8.
    pub(crate) not_text: Option<usize>,
    produced: usize,
    /// What lists and maps took at the beginning.
    held_before: usize,
    steps: u64,
    depth: usize,
}

impl<'a> Eval<'a> {
    pub(crate) fn new(input: &'a RenderInput<'a>, memo: &'a Memo, definitions: Definitions) -> Self {
        Self {
            input,
            memo,
            definitions: vec![definitions],
            out: Vec::new(),
            missing_lookups: BTreeSet::new(),
            linked: Vec::new(),
            draws: HashMap::new(),
            site: ("".into(), 0),
            site_source: "".into(),
            entry: "".into(),
            drawn: Drawn::new(),
            answered_lookups: BTreeSet::new(),
            secrets: Secrets::default(),
            needs_seed: false,
            asked_time: false,
            not_text: None,
            produced: 0,
            held_before: held(),
            steps: 0,
            depth: 0,
        }
    }

    /// Executes a file's template and gives its text.
    pub(crate) fn render(&mut self, name: &str, data: &Value) -> Res<String> {
        self.out.clear();
        self.entry = name.into();
        // Files are counted as what is made on the way to them is.
        match self.execute(name, data).and_then(|()| self.made(self.out.len())) {
            Ok(()) => {
                let bad = std::str::from_utf8(&self.out).err().map(|error| &self.out[..error.valid_up_to()]);
                self.not_text = bad.map(|before| 1 + memchr_iter(b'\n', before).count());
                Ok(without_no_value(&lossy(&self.out)))
            }
            Err(Fault::Template(mut error)) => {
                error.lacks = self.lacks();
                Err(error)
            }
            Err(Fault::Message(message)) => Err(Box::new(TemplateError {
                message,
                location: Location {
                    file: name.into(),
                    template: name.into(),
                    line: 1,
                    column: 1,
                    text: String::new(),
                },
                included_from: Vec::new(),
                lacks: self.lacks(),
                quotes: true,
            })),
        }
    }

    /// What `now` gives.
    pub(crate) fn now(&mut self) -> Result<Timestamp, Fault> {
        self.asked_time = true;
        self.input.now.ok_or_else(|| "the time is needed".into())
    }

    fn lacks(&self) -> Needs {
        Needs {
            lookups: self.missing_lookups.clone(),
            seed: self.needs_seed,
            time: self.asked_time && self.input.now.is_none(),
        }
    }

    /// The text of the line of the call being made: it moves with edits elsewhere.
    pub(crate) fn line(&self) -> String {
        let (file, pos) = &self.site;
        locate(&self.site_source, *pos, file, file).text.trim().to_owned()
    }

    fn find(&self, name: &str) -> Option<Definition> {
        self.definitions.iter().rev().find_map(|definitions| definitions.get(name)).cloned()
    }

    /// Executes the template of that name; its text is appended to the output.
    fn execute(&mut self, name: &str, data: &Value) -> Result<(), Fault> {
        let Some(definition) = self.find(name) else {
            return Err(Fault::Message(format!("no template {name:?} associated with template \"gotpl\"")));
        };
        self.execute_body(name, &definition, data).map_err(Fault::Template)
    }

    fn execute_body(&mut self, name: &str, definition: &Definition, data: &Value) -> Res<()> {
        let body = &*definition.body;
        let mut slots = SmallVec::with_capacity(body.slots);
        slots.push(data.clone());
        slots.resize(body.slots, Value::Invalid);
        let mut frame = Frame { slots, body, name, file: &definition.file };
        self.depth += 1;
        if self.depth > self.input.limits.include_depth {
            let depth = self.depth - 1;
            self.depth -= 1;
            return Err(Self::error(&frame, 0, format!("templates include each other more than {depth} deep")));
        }
        let result = with_stack(|| self.walk(&mut frame, data, &body.nodes));
        self.depth -= 1;
        result.map(|_| ())
    }

    /// `include`: executes a template and gives its text.
    pub(crate) fn include(&mut self, name: &str, data: &Value) -> Result<Value, Fault> {
        let start = self.out.len();
        let data = data.clone().unwrap_interface();
        let result = self.execute(name, &data);
        let text = self.take(start);
        result.map(|()| text)
    }

    fn take(&mut self, start: usize) -> Value {
        let value = match std::str::from_utf8(&self.out[start..]) {
            Ok(text) => Value::Str(text.into()),
            Err(_) => Value::Raw(self.out[start..].into()),
        };
        self.out.truncate(start);
        value
    }

    /// `tpl`: parses a text and executes it.
    pub(crate) fn tpl(&mut self, source: &str, data: &Value) -> Result<Value, Fault> {
        if !source.contains("{{") {
            return Ok(Value::from(without_no_value(source)));
        }
        let parsed = self.memo.parsed(source).and_then(|parsed| parsed.check(self.input.helm).map(|()| parsed));
        let parsed = parsed.map_err(|error| {
            Fault::Template(Box::new(TemplateError {
                message: format!("cannot parse template: {}", error.message),
                location: locate(source, error.pos, MADE, MADE),
                included_from: Vec::new(),
                lacks: Needs::default(),
                quotes: true,
            }))
        })?;
        let file: Arc<str> = MADE.into();
        let overlay = !parsed.defines.is_empty();
        if overlay {
            let mut definitions = Definitions::new();
            for (name, body) in &parsed.defines {
                if body.empty && self.find(name).is_some_and(|old| !old.body.empty) {
                    continue;
                }
                definitions.insert(name.clone(), Definition { body: body.clone(), file: file.clone() });
            }
            self.definitions.push(definitions);
        }
        let start = self.out.len();
        let data = data.clone().unwrap_interface();
        let definition = Definition { body: parsed.main.clone(), file };
        let result = self.execute_body(MADE, &definition, &data);
        if overlay {
            self.definitions.pop();
        }
        let text = self.take(start);
        result.map_err(Fault::Template)?;
        Ok(match text {
            Value::Str(text) if text.contains("<no value>") => Value::from(without_no_value(&text)),
            text => text,
        })
    }

    /// Counts a map that was put into another.
    pub(crate) fn link(&mut self, value: &Value) {
        if let Some(map) = value.as_map() {
            self.linked.push(std::rc::Rc::downgrade(map));
        }
    }

    fn error(frame: &Frame<'_>, pos: Pos, message: impl Into<String>) -> Box<TemplateError> {
        Box::new(TemplateError {
            message: message.into(),
            location: locate(&frame.body.source, pos, frame.file, frame.name),
            included_from: Vec::new(),
            lacks: Needs::default(),
            quotes: false,
        })
    }

    /// With a message that holds values.
    fn quoting(frame: &Frame<'_>, pos: Pos, message: impl Into<String>) -> Box<TemplateError> {
        let mut error = Self::error(frame, pos, message);
        error.quotes = true;
        error
    }

    fn fault(frame: &Frame<'_>, pos: Pos, function: &Function, fault: Fault) -> Box<TemplateError> {
        match fault {
            Fault::Message(message) => Self::quoting(frame, pos, format!("error calling {}: {message}", function.name)),
            Fault::Template(mut error) => {
                error.included_from.push(locate(&frame.body.source, pos, frame.file, frame.name));
                error
            }
        }
    }

    fn walk(&mut self, frame: &mut Frame<'_>, dot: &Value, nodes: &[Node]) -> Res<Flow> {
        for node in nodes {
            match node {
                Node::Text(span) => {
                    self.out.extend_from_slice(span.of(&frame.body.source).as_bytes());
                    self.check_output(frame, 0)?;
                }
                Node::Action(pipe) => {
                    let value = self.pipe(frame, dot, pipe)?;
                    if pipe.targets.is_empty() {
                        let mut budget = self.budget();
                        print::write_action(&mut self.out, &value, &mut budget);
                        self.check_output(frame, pipe.pos)?;
                    }
                }
                Node::If(branch) | Node::With(branch) => {
                    let with = matches!(node, Node::With(_));
                    let flow = with_stack(|| self.if_or_with(frame, dot, branch, with))?;
                    if flow != Flow::Next {
                        return Ok(flow);
                    }
                }
                Node::Range(branch) => {
                    let flow = with_stack(|| self.range(frame, dot, branch))?;
                    if flow != Flow::Next {
                        return Ok(flow);
                    }
                }
                Node::Template { name, pipe, pos } => {
                    self.step(frame, *pos)?;
                    let data = match pipe {
                        Some(pipe) => self.pipe(frame, dot, pipe)?,
                        None => Value::Invalid,
                    };
                    let Some(definition) = self.find(name) else {
                        return Err(Self::error(frame, *pos, format!("template {name:?} not defined")));
                    };
                    self.execute_body(name, &definition, &data).map_err(|mut error| {
                        error.included_from.push(locate(&frame.body.source, *pos, frame.file, frame.name));
                        error
                    })?;
                }
                Node::Break => return Ok(Flow::Break),
                Node::Continue => return Ok(Flow::Continue),
            }
        }
        Ok(Flow::Next)
    }

    fn if_or_with(&mut self, frame: &mut Frame<'_>, dot: &Value, branch: &Branch, with: bool) -> Res<Flow> {
        let value = self.pipe(frame, dot, &branch.pipe)?;
        if !value.truth() {
            return self.walk(frame, dot, &branch.otherwise);
        }
        if with { self.walk(frame, &value, &branch.body) } else { self.walk(frame, dot, &branch.body) }
    }

    fn range(&mut self, frame: &mut Frame<'_>, dot: &Value, branch: &Branch) -> Res<Flow> {
        let value = self.pipe(frame, dot, &branch.pipe)?;
        let pos = branch.pipe.pos;
        let mut ran = false;
        macro_rules! each {
            ($index:expr, $item:expr) => {{
                ran = true;
                match self.iteration(frame, branch, $index, &$item)? {
                    Flow::Break => break,
                    Flow::Next | Flow::Continue => {}
                }
            }};
        }
        match &value {
            Value::Invalid | Value::Nil => {}
            Value::List(list) => {
                for (index, item) in (0_i64..).zip(&list.items) {
                    each!(Value::Int(index), *item);
                }
            }
            Value::Map(map) | Value::Values(map) => {
                for (key, item) in map.entries() {
                    each!(Value::Str(key), item);
                }
            }
            Value::Bytes(bytes) => {
                for (index, byte) in (0_i64..).zip(bytes.iter()) {
                    each!(Value::Int(index), Value::Uint(u64::from(*byte)));
                }
            }
            Value::Object(object) if matches!(**object, Object::Files(_)) => {
                if let Object::Files(files) = &**object {
                    for (name, data) in files.iter() {
                        each!(Value::Str(name.clone()), Value::Bytes(data.as_ref().into()));
                    }
                }
            }
            Value::Int(count) | Value::Int64(count) => {
                if branch.pipe.targets.len() > 1 {
                    let message = format!("can't use {count} to iterate over more than one variable");
                    return Err(Self::error(frame, pos, message));
                }
                for index in 0..*count {
                    each!(Value::Invalid, Value::Int(index));
                }
            }
            Value::Object(object) if let Some(count) = object.integer() => {
                if branch.pipe.targets.len() > 1 {
                    let message = format!("can't use {} to iterate over more than one variable", print::text(&value));
                    return Err(Self::error(frame, pos, message));
                }
                for index in 0..count {
                    each!(Value::Invalid, Value::object(object.numbered(index)));
                }
            }
            other => {
                return Err(Self::quoting(frame, pos, format!("range can't iterate over {}", print::text(other))));
            }
        }
        if ran { Ok(Flow::Next) } else { self.walk(frame, dot, &branch.otherwise) }
    }

    fn iteration(&mut self, frame: &mut Frame<'_>, branch: &Branch, index: Value, item: &Value) -> Res<Flow> {
        self.step(frame, branch.pipe.pos)?;
        match branch.pipe.targets.as_slice() {
            [] | [None] => {}
            [Some(slot)] => frame.slots[*slot as usize] = item.clone(),
            [first, second, ..] => {
                if let Some(slot) = first {
                    frame.slots[*slot as usize] = index;
                }
                if let Some(slot) = second {
                    frame.slots[*slot as usize] = item.clone();
                }
            }
        }
        self.walk(frame, item, &branch.body)
    }

    /// A pipeline's value; a nil interface becomes no value. Variables are set.
    fn pipe(&mut self, frame: &mut Frame<'_>, dot: &Value, pipe: &Pipe) -> Res<Value> {
        self.step(frame, pipe.pos)?;
        let mut value: Option<Value> = None;
        for command in &pipe.commands {
            value = Some(self.command(frame, dot, command, value)?.unwrap_interface());
        }
        let value = value.unwrap_or_default();
        for target in &pipe.targets {
            match target {
                Some(slot) => frame.slots[*slot as usize] = value.clone(),
                None => return Err(Self::error(frame, pipe.pos, "undefined variable")),
            }
        }
        Ok(value)
    }

    fn command(&mut self, frame: &mut Frame<'_>, dot: &Value, command: &Command, last: Option<Value>) -> Res<Value> {
        let word = &command.word;
        match &word.expr {
            Expr::Field(names) => self.chain(frame, dot, dot.clone(), names, word.pos, &command.args, last),
            Expr::Chain(operand, names) => {
                let receiver = self.operand(frame, dot, operand)?;
                self.chain(frame, dot, receiver, names, word.pos, &command.args, last)
            }
            Expr::Function(function) => self.call(frame, dot, function, word.pos, None, &command.args, last),
            Expr::Variable(slot, names) if !names.is_empty() => {
                let receiver = frame.slots[*slot as usize].clone();
                self.chain(frame, dot, receiver, names, word.pos, &command.args, last)
            }
            Expr::Undefined(name) => Err(Self::undefined(frame, word.pos, name)),
            _ if !command.args.is_empty() || last.is_some() => {
                Err(Self::error(frame, word.pos, "can't give argument to non-function"))
            }
            Expr::Pipe(pipe) => self.nested(frame, dot, pipe),
            Expr::Variable(slot, _) => Ok(frame.slots[*slot as usize].clone()),
            Expr::Dot => Ok(dot.clone()),
            Expr::Nil => Err(Self::error(frame, word.pos, "nil is not a command")),
            constant => Ok(constant_value(constant)),
        }
    }

    fn undefined(frame: &Frame<'_>, pos: Pos, name: &str) -> Box<TemplateError> {
        Self::error(frame, pos, format!("undefined variable: {name}"))
    }

    fn nested(&mut self, frame: &mut Frame<'_>, dot: &Value, pipe: &Pipe) -> Res<Value> {
        with_stack(|| self.pipe(frame, dot, pipe))
    }

    /// The value of an operand that stands alone, not yet checked against a type.
    fn operand(&mut self, frame: &mut Frame<'_>, dot: &Value, operand: &Operand) -> Res<Value> {
        match &operand.expr {
            Expr::Dot => Ok(dot.clone()),
            Expr::Nil => Err(Self::error(frame, operand.pos, "nil is not a value")),
            Expr::Undefined(name) => Err(Self::undefined(frame, operand.pos, name)),
            Expr::Field(names) => self.chain(frame, dot, dot.clone(), names, operand.pos, &[], None),
            Expr::Variable(slot, names) => {
                let receiver = frame.slots[*slot as usize].clone();
                self.chain(frame, dot, receiver, names, operand.pos, &[], None)
            }
            Expr::Chain(inner, names) => {
                let receiver = self.operand(frame, dot, inner)?;
                self.chain(frame, dot, receiver, names, operand.pos, &[], None)
            }
            Expr::Pipe(pipe) => self.nested(frame, dot, pipe),
            Expr::Function(function) => self.call(frame, dot, function, operand.pos, None, &[], None),
            constant => Ok(constant_value(constant)),
        }
    }
}

impl Drop for Eval<'_> {
    fn drop(&mut self) {
        for map in self.linked.drain(..) {
            if let Some(map) = map.upgrade() {
                map.clear();
            }
        }
    }
}

/// Goes on with another piece of stack from the heap when little is left of this one.
pub(crate) fn with_stack<T>(run: impl FnOnce() -> T) -> T {
    const RESERVE: usize = 128 * 1024;
    const SIZE: usize = 1024 * 1024;
    stacker::maybe_grow(RESERVE, SIZE, run)
}

fn constant_value(expr: &Expr) -> Value {
    match expr {
        Expr::Bool(value) => Value::Bool(*value),
        Expr::Int(value) => Value::Int(*value),
        Expr::Float(value, _) => Value::Float(*value),
        Expr::Str(text) => Value::Str(text.clone()),
        Expr::Raw(bytes) => Value::Raw(bytes.clone()),
        _ => Value::Invalid,
    }
}

/// Helm drops Go's `<no value>` from what it renders.
fn without_no_value(text: &str) -> String {
    if text.contains("<no value>") { text.replace("<no value>", "") } else { text.to_owned() }
}

/// Where a position is in its file.
pub(crate) fn locate(source: &str, pos: Pos, file: &str, template: &str) -> Location {
    let before = source.get(..pos as usize).unwrap_or(source);
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    let text = source[start..].lines().next().unwrap_or_default();
    Location {
        file: file.into(),
        template: template.into(),
        line: before.bytes().filter(|byte| *byte == b'\n').count() + 1,
        column: before[start..].chars().count() + 1,
        text: text.into(),
    }
}

/// A map with string keys for the functions that make one.
pub(crate) fn entries<const N: usize>(pairs: [(&str, Value); N]) -> BTreeMap<Arc<str>, Value> {
    pairs.into_iter().map(|(key, value)| (key.into(), value)).collect()
}
