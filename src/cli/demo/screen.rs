//! What the demo shows: on a terminal a table that is redrawn in place below what was said, in a pipe a line per change.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use anyhow::{Context, Result};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::rows::{Row, TITLES};

pub(super) const BOLD: Style = Style::new().bold();
pub(super) const GOOD: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Green)));
pub(super) const BAD: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red)));
const DIM: Style = Style::new().dimmed();
const UNSURE: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Yellow)));
/// The cursor is hidden while a table is drawn again and again.
const HIDE: &str = "\x1b[?25l";
const SHOW: &str = "\x1b[?25h";

/// Standard output.
pub(super) struct Screen {
    is_terminal: bool,
    coloured: bool,
    began: Instant,
    /// Lines of the table that stand below what was said.
    drawn: usize,
    /// What was last said of a release, in a pipe.
    said: BTreeMap<String, String>,
    waiting: String,
}

impl Screen {
    /// As standard output and the environment want it.
    pub(super) fn new() -> Self {
        let stdout = std::io::stdout();
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self {
            is_terminal: stdout.is_terminal() && !is_dumb,
            coloured: AutoStream::choice(&stdout) != ColorChoice::Never,
            began: Instant::now(),
            drawn: 0,
            said: BTreeMap::new(),
            waiting: String::new(),
        }
    }

    /// Says something that stays.
    pub(super) fn say(&mut self, text: &str) -> Result<()> {
        let erase = self.erase();
        self.write(&format!("{erase}{text}\n"))
    }

    /// Says a title; times are counted from here.
    pub(super) fn title(&mut self, text: &str) -> Result<()> {
        self.began = Instant::now();
        self.say(&format!("\n{BOLD}{text}{BOLD:#}"))
    }

    /// Shows the releases, and what is waited for and for how long.
    pub(super) fn show(&mut self, rows: &[Row], waiting: &str, since: Duration) -> Result<()> {
        if !self.is_terminal {
            return self.changes(rows, waiting);
        }
        let size = terminal_size::terminal_size();
        let (width, height) = size.map_or((80, 24), |(w, h)| (usize::from(w.0), usize::from(h.0)));
        let mut lines = table(rows, width);
        lines.truncate(height.saturating_sub(3));
        let wait = format!("  {:>7}  waiting for {waiting}", seconds(since));
        lines.push(format!("{DIM}{}{DIM:#}", cut(&wait, width)));
        // The cursor is below, so that it is no nuisance while it is drawn.
        let text = format!("{HIDE}{}{}\n{SHOW}", self.erase(), lines.join("\n"));
        self.drawn = lines.len();
        self.write(&text)
    }

    /// Takes the table away; what was said stays.
    pub(super) fn clear(&mut self) -> Result<()> {
        let erase = self.erase();
        self.waiting.clear();
        self.write(&erase)
    }

    fn changes(&mut self, rows: &[Row], waiting: &str) -> Result<()> {
        let mut text = String::new();
        if self.waiting != waiting {
            waiting.clone_into(&mut self.waiting);
            let _ = writeln!(text, "         waiting for {waiting}");
        }
        let at = seconds(self.began.elapsed());
        for row in rows {
            let line = sentence(row);
            if self.said.get(&row.name) != Some(&line) {
                let _ = writeln!(text, "{at:>8} {line}");
                self.said.insert(row.name.clone(), line);
            }
        }
        let is_there = |name: &String| rows.iter().any(|row| row.name == *name);
        let gone: Vec<String> = self.said.keys().filter(|name| !is_there(name)).cloned().collect();
        for name in gone {
            let _ = writeln!(text, "{at:>8} {name}  gone");
            self.said.remove(&name);
        }
        self.write(&text)
    }

    /// What moves to the start of the table and clears the rest of the screen.
    fn erase(&mut self) -> String {
        let lines = std::mem::take(&mut self.drawn);
        if lines == 0 { String::new() } else { format!("\r\x1b[{lines}A\x1b[J") }
    }

    fn write(&self, text: &str) -> Result<()> {
        // Without colours the table is still redrawn: only styles are taken away.
        let text = if self.coloured { text.to_owned() } else { without_styles(text) };
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write to standard output")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.is_terminal {
            // Nobody is left to see it otherwise.
            let _ = self.write(SHOW);
        }
    }
}

/// A duration as people read it.
pub(super) fn seconds(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 10.0 { format!("{seconds:.2} s") } else { format!("{seconds:.1} s") }
}

fn table(rows: &[Row], width: usize) -> Vec<String> {
    if rows.is_empty() {
        return Vec::new();
    }
    let widest = |column: usize| {
        let cells = rows.iter().map(|row| row.cells[column].width());
        cells.max().unwrap_or(0).max(TITLES[column].len())
    };
    let widths: Vec<usize> = (0..TITLES.len()).map(widest).collect();
    let line = |cells: &[String]| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| {
            let fill = " ".repeat(width.saturating_sub(cell.width()));
            format!("{cell}{fill}")
        });
        cut(format!("  {}", padded.collect::<Vec<_>>().join("  ")).trim_end(), width)
    };
    let mut lines = vec![format!("{BOLD}{}{BOLD:#}", line(&TITLES.map(ToOwned::to_owned)))];
    for row in rows {
        let style = if row.ready { GOOD } else { UNSURE };
        lines.push(format!("{style}{}{style:#}", line(&row.cells)));
    }
    lines
}

fn sentence(row: &Row) -> String {
    let [name, _, phase, kept, synced, message] = &row.cells;
    let ready = if row.ready { "ready" } else { "not ready" };
    let mut line = format!("{name}  {ready}, {phase}, {synced} objects synced");
    if !kept.is_empty() {
        let _ = write!(line, ", kept: {kept}");
    }
    if !message.is_empty() {
        let _ = write!(line, ": {message}");
    }
    line
}

/// A text that is at most `width` columns wide.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut used = 1;
    let fits = |c: &char| {
        used += c.width().unwrap_or(0);
        used <= width
    };
    format!("{}…", text.chars().take_while(fits).collect::<String>())
}

/// Leaves `ESC [ … m` out, and keeps what moves and clears.
fn without_styles(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("\x1b[") {
        let end = rest[at + 2..].find(|c: char| c.is_ascii_alphabetic()).map_or(rest.len(), |n| at + 2 + n + 1);
        out.push_str(&rest[..at]);
        if !rest[at..end].ends_with('m') {
            out.push_str(&rest[at..end]);
        }
        rest = &rest[end..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, ready: bool, message: &str) -> Row {
        let cells = [name, if ready { "True" } else { "False" }, "done", "InUse", "3/3", message];
        Row { name: name.into(), ready, cells: cells.map(ToOwned::to_owned) }
    }

    #[test]
    fn a_table_fits_the_terminal() {
        let rows = [row("docker-x-1-34-v1", true, ""), row("docker-x-1-34-v2", false, &"ä".repeat(200))];
        let lines: Vec<String> = table(&rows, 60).iter().map(|line| without_styles(line)).collect();
        assert!(lines.iter().all(|line| line.width() <= 60), "{lines:?}");
        insta::assert_snapshot!(lines.join("\n"), @r"
          RELEASE           READY  PHASE  KEPT   SYNCED  MESSAGE
          docker-x-1-34-v1  True   done   InUse  3/3
          docker-x-1-34-v2  False  done   InUse  3/3     ääääääääää…
        ");
    }

    #[test]
    fn a_sentence_leaves_out_what_is_not_to_be_said() {
        assert_eq!(sentence(&row("v1", true, "")), "v1  ready, done, 3/3 objects synced, kept: InUse");
        assert!(sentence(&row("v1", false, "why")).ends_with("kept: InUse: why"));
    }

    #[test]
    fn styles_go_and_movements_stay() {
        assert_eq!(without_styles("\x1b[2A\x1b[J\x1b[1mx\x1b[0m y\x1b[?25h"), "\x1b[2A\x1b[Jx y\x1b[?25h");
    }

    #[test]
    fn times_have_the_digits_that_matter() {
        assert_eq!(seconds(Duration::from_millis(423)), "0.42 s");
        assert_eq!(seconds(Duration::from_millis(12_345)), "12.3 s");
    }
}
