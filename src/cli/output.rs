//! Standard output, and the forms of what is written there.

use std::fmt::Write as _;
use std::io::Write;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use crate::core::yaml;

/// Forms for machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// YAML documents.
    Yaml,
    /// JSON, indented.
    Json,
}

/// Writes text to standard output; its colours only where they can be seen.
pub fn print(text: &str) -> Result<()> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write to standard output")
}

/// Lines in columns, two spaces apart, as wide as they are shown.
pub fn columns<const N: usize>(lines: &[[String; N]]) -> String {
    let widths: Vec<usize> =
        (0..N).map(|at| lines.iter().map(|line| line[at].width()).max().unwrap_or_default()).collect();
    let mut text = String::new();
    for line in lines {
        let mut out = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            let gap = width.saturating_sub(cell.width()) + 2;
            // Writing to a String can't fail.
            let _ = write!(out, "{cell}{:gap$}", "");
        }
        text.push_str(out.trim_end());
        text.push('\n');
    }
    text
}

/// Writes bytes to standard output as they are.
pub fn print_raw(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).context("cannot write to standard output")
}

/// A value in one of the forms, with a line break at its end.
pub fn format(value: &impl Serialize, format: Format) -> Result<String> {
    Ok(match format {
        Format::Yaml => yaml::to_string(&serde_json::to_value(value)?),
        // Fields in the order of their type: a name before what it names.
        Format::Json => serde_json::to_string_pretty(value)? + "\n",
    })
}
