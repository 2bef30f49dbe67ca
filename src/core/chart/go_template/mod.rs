//! The Helm engine: Go's templates with sprig's and Helm's functions.

pub(crate) mod ast;
pub(crate) mod case;
pub(crate) mod eval;
pub(crate) mod files;
pub(crate) mod functions;
pub(crate) mod glob;
pub(crate) mod json;
mod lex;
pub(crate) mod memo;
pub(crate) mod object;
pub(crate) mod parse;
pub(crate) mod pretty;
pub(crate) mod print;
pub(crate) mod shared;
pub(crate) mod toml;
pub(crate) mod value;

#[cfg(test)]
mod differences;
#[cfg(test)]
mod tests;
