//! Standard output, and the forms of what is written there.
//!
//! Guarantee: what others wrote into objects, and API servers and tools say, steers no terminal: it goes through
//! [`one_line`] or [`visible`].

use std::fmt::{Arguments, Write as _};
use std::io::Write;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use crate::core::direction::turns;
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
    write_all(anstream::stdout().lock(), text).context("cannot write to standard output")
}

/// A line of progress for standard output, as `println!` takes it. Where it can't be written what is under way goes on: it is not to
/// stop half done, and its result is told by [`print`].
macro_rules! progress {
    ($($words:tt)*) => {
        $crate::cli::output::to_output(format_args!($($words)*))
    };
}

/// A line for standard error, as `eprintln!` takes it; nobody is left to tell where that can't be written.
macro_rules! note {
    ($($words:tt)*) => {
        $crate::cli::output::to_error(format_args!("{}\n", format_args!($($words)*)))
    };
}

/// The same without a line break.
macro_rules! note_part {
    ($($words:tt)*) => {
        $crate::cli::output::to_error(format_args!($($words)*))
    };
}

pub(crate) use {note, note_part, progress};

/// What [`progress`] does.
pub(crate) fn to_output(line: Arguments<'_>) {
    // The reader may have gone, or the disk be full.
    let _ = write_all(anstream::stdout().lock(), &format!("{line}\n"));
}

/// What [`note`] does.
pub(crate) fn to_error(text: Arguments<'_>) {
    let _ = write_all(anstream::stderr().lock(), &text.to_string());
}

fn write_all(mut to: impl Write, text: &str) -> std::io::Result<()> {
    to.write_all(text.as_bytes())?;
    to.flush()
}

/// Text as it may reach a terminal: its characters that steer one, or turn the direction of what stands around them, are
/// spaces. Line breaks and tabs stay.
pub fn visible(text: &str) -> String {
    let steers = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    text.chars().map(|c| if steers(c) || turns(c) { ' ' } else { c }).collect()
}

/// The same on one line, without space that is nothing but room.
pub fn one_line(text: &str) -> String {
    visible(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Lines in columns, two spaces apart, as wide as they are shown.
pub fn columns<const N: usize>(lines: &[[String; N]]) -> String {
    let lines: Vec<[String; N]> = lines.iter().map(|line| line.each_ref().map(|cell| one_line(cell))).collect();
    let widths: Vec<usize> =
        (0..N).map(|at| lines.iter().map(|line| line[at].width()).max().unwrap_or_default()).collect();
    let mut text = String::new();
    for line in &lines {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_others_wrote_steers_a_terminal() {
        let steers = "a\u{1b}[31mred\u{1b}]0;title\u{7}\r\nb\u{9b}2J\tc\u{202e}txt.exe\u{2066}x\u{200f}";
        assert_eq!(one_line(steers), "a [31mred ]0;title b 2J c txt.exe x");
        assert_eq!(visible("a\u{1b}b\r\n\tc\u{202e}d"), "a b \n\tc d");
        let lines = [["a\u{1b}[2Kb".to_owned(), "x\ny".to_owned()]];
        assert_eq!(columns(&lines), "a [2Kb  x y\n");
    }
}
