//! Charts: load, merge values, render with one of the engines.

mod tera;

pub use tera::{TeraContext, TeraError, TeraErrorKind, TeraLimits, TeraLookup, TeraTemplates, TeraTexts};
