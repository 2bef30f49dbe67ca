//! The syntax tree of a template. It is shared between threads and renderings.

use std::collections::HashMap;
use std::sync::Arc;

use super::functions::Function;

/// A byte offset in the source of a file.
pub(crate) type Pos = u32;

/// A part of the source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) start: Pos,
    pub(crate) end: Pos,
}

impl Span {
    /// Its text.
    pub(crate) fn of(self, source: &str) -> &str {
        &source[self.start as usize..self.end as usize]
    }
}

/// One parsed file: its own body and what it defines.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) main: Arc<Body>,
    pub(crate) defines: HashMap<Arc<str>, Arc<Body>>,
    /// The first function that Helm 4 alone knows: Helm 3 refuses the file.
    pub(crate) of_helm_4: Option<(Pos, &'static str)>,
}

/// What a template, a `define` or a `block` executes.
#[derive(Debug)]
pub(crate) struct Body {
    /// The source it stands in; its name is known when it is rendered (an aliased chart gives other names).
    pub(crate) source: Arc<str>,
    pub(crate) nodes: Vec<Node>,
    /// How many variables it declares, `$` included.
    pub(crate) slots: usize,
    /// Nothing but blanks and comments: doesn't replace a template of the same name.
    pub(crate) empty: bool,
}

/// A part of a template.
#[derive(Debug)]
pub(crate) enum Node {
    Text(Span),
    Action(Pipe),
    If(Branch),
    With(Branch),
    Range(Branch),
    Template { name: Arc<str>, pipe: Option<Pipe>, pos: Pos },
    Break,
    Continue,
}

/// `if`, `with` and `range`.
#[derive(Debug)]
pub(crate) struct Branch {
    pub(crate) pipe: Pipe,
    pub(crate) body: Vec<Node>,
    pub(crate) otherwise: Vec<Node>,
}

/// `$x, $y := a | b | c`
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) pos: Pos,
    pub(crate) targets: Vec<Slot>,
    pub(crate) commands: Vec<Command>,
}

/// The place of a variable in the frame of its template; `None`: assigned, but never declared.
pub(crate) type Slot = Option<u16>;

/// `word arg arg`
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) word: Operand,
    pub(crate) args: Vec<Operand>,
}

/// A word of a command.
#[derive(Debug)]
pub(crate) struct Operand {
    pub(crate) pos: Pos,
    pub(crate) expr: Expr,
}

/// What an operand is.
#[derive(Debug)]
pub(crate) enum Expr {
    Dot,
    Nil,
    Bool(bool),
    Int(i64),
    /// A float, and the integer it equals, if any: `5.0` will do where an int is wanted.
    Float(f64, Option<i64>),
    Str(Arc<str>),
    Raw(Arc<[u8]>),
    /// `.a.b`
    Field(Box<[Arc<str>]>),
    /// `$x.a.b`
    Variable(u16, Box<[Arc<str>]>),
    /// `$x`, which nothing has set wherever this is run.
    Undefined(Arc<str>),
    /// `(pipe).a.b`, `function.a.b`
    Chain(Box<Operand>, Box<[Arc<str>]>),
    Pipe(Box<Pipe>),
    Function(&'static Function),
}
