//! Node images as a table; on a terminal in colour, with a bar for each build that runs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::row::Row;
use crate::api::image_release::ImagePhase;
use crate::cli::output::one_line;

/// Columns of a bar.
const BAR: usize = 16;
/// Columns of a name that stay, however narrow the terminal is: it begins as the image, and ends as no other does.
const NAME: usize = 16;

const PLAIN: Style = Style::new();
const HEADER: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const GOOD: Style = colour(AnsiColor::Green);
const BAD: Style = colour(AnsiColor::Red);
const UNSURE: Style = colour(AnsiColor::Yellow);
const ACTIVE: Style = colour(AnsiColor::Cyan);

const fn colour(colour: AnsiColor) -> Style {
    Style::new().fg_color(Some(anstyle::Color::Ansi(colour)))
}

/// What is drawn on.
#[derive(Clone, Copy, Debug)]
pub struct Canvas {
    /// Whether the namespace of each image is shown.
    pub namespaces: bool,
    /// Columns and lines of the terminal; `None` in a pipe.
    pub size: Option<(usize, usize)>,
}

/// A cell of the table.
struct Cell(String, Style);

impl Cell {
    fn plain(text: &str) -> Self {
        Self(one_line(text), PLAIN)
    }
}

/// The whole table. On a terminal no line is wider than that, names leave room for bars, and what is said of an image stands
/// below it.
pub fn table(rows: &[Row], canvas: Canvas) -> String {
    let head = titles(canvas).into_iter().map(|title| Cell(title.to_owned(), HEADER)).collect();
    let mut cells: Vec<Vec<Cell>> = std::iter::once(head).chain(rows.iter().map(|row| cells(row, canvas))).collect();
    let mut widths = widths(&cells);
    let width = canvas.size.map(|(width, _)| width);
    let has_bars = rows.iter().any(|row| row.phase == ImagePhase::Running);
    if let Some(width) = width.filter(|_| has_bars) {
        let name = usize::from(canvas.namespaces);
        let room = name_room(&widths, name, width);
        for cell in cells.iter_mut().filter_map(|line| line.get_mut(name)) {
            cell.0 = shortened(&cell.0, room);
        }
        widths = self::widths(&cells);
    }
    let mut text = String::new();
    for (at, line) in cells.iter().enumerate() {
        write_line(&mut text, line, &widths, width);
        let message = rows.get(at.wrapping_sub(1)).map(|row| one_line(&row.message)).unwrap_or_default();
        if let Some(width) = width.filter(|_| !message.is_empty()) {
            let shown = cut(&format!("  └ {message}"), width);
            let _ = writeln!(text, "{DIM}{shown}{DIM:#}");
        }
    }
    text
}

/// The table as it fits the terminal: what runs comes first, and what is left out is counted.
pub fn screen(rows: &[Row], canvas: Canvas) -> String {
    // The header, the count, and the line of the cursor.
    let room = canvas.size.map_or(usize::MAX, |(_, height)| height.saturating_sub(3).max(1));
    let lines = |row: &Row| 1 + usize::from(!row.message.trim().is_empty());
    if rows.iter().map(lines).sum::<usize>() <= room {
        return table(rows, canvas);
    }
    let mut sorted = rows.to_vec();
    sorted.sort_by_key(|row| match row.phase {
        ImagePhase::Running => 0,
        ImagePhase::Failed => 1,
        ImagePhase::Queued => 2,
        _ => 3,
    });
    let mut used = 0;
    let fits = |row: &&Row| {
        used += lines(row);
        used <= room
    };
    let shown = sorted.iter().take_while(fits).count();
    format!("{}{DIM}… and {} more{DIM:#}\n", table(&sorted[..shown], canvas), rows.len() - shown)
}

/// What brings the cursor back to the first of `lines` lines, and clears them.
pub fn above(lines: usize) -> String {
    if lines == 0 { String::new() } else { format!("\x1b[{lines}A\x1b[0J") }
}

/// A line for each image that changed since it was last said, under titles at the beginning.
pub fn changes(rows: &[Row], canvas: Canvas, said: &mut BTreeMap<(String, String), Row>) -> String {
    let is_first = said.is_empty();
    let text = table(rows, canvas);
    let mut lines = text.split_inclusive('\n');
    let mut new: String = lines.next().filter(|_| is_first).unwrap_or_default().to_owned();
    for (row, line) in rows.iter().zip(lines) {
        let before = said.insert((row.namespace.clone(), row.name.clone()), row.clone());
        if before.as_ref() != Some(row) {
            new.push_str(line);
        }
    }
    new
}

fn titles(canvas: Canvas) -> Vec<&'static str> {
    let progress = if canvas.size.is_some() { "PROGRESS" } else { "PERCENT" };
    let mut titles = vec!["NAME", "PHASE", "STEP", progress, "BYTES", "RATE", "LEFT", "RELEASES"];
    if canvas.size.is_none() {
        titles.push("MESSAGE");
    }
    if canvas.namespaces {
        titles.insert(0, "NAMESPACE");
    }
    titles
}

fn cells(row: &Row, canvas: Canvas) -> Vec<Cell> {
    let style = match row.phase {
        ImagePhase::Queued => PLAIN,
        ImagePhase::Running => ACTIVE,
        ImagePhase::Succeeded => GOOD,
        ImagePhase::Failed => BAD,
        ImagePhase::Cancelled | ImagePhase::Suspended => UNSURE,
    };
    let is_running = row.phase == ImagePhase::Running;
    let percent = row.percent.filter(|_| is_running).map_or_else(String::new, |percent| format!("{percent}%"));
    let progress =
        if canvas.size.is_some() && is_running { format!("{} {percent:>4}", bar(row.percent)) } else { percent };
    let mut cells = vec![
        Cell::plain(&row.name),
        Cell(format!("{:?}", row.phase), style),
        Cell::plain(&row.step),
        Cell(progress, style),
        Cell::plain(&row.bytes),
        Cell::plain(&row.rate),
        Cell::plain(&row.left),
        Cell::plain(&row.releases.join(",")),
    ];
    if canvas.size.is_none() {
        cells.push(Cell::plain(&row.message));
    }
    if canvas.namespaces {
        cells.insert(0, Cell::plain(&row.namespace));
    }
    cells
}

/// How far a step is; dots where nobody knows.
fn bar(percent: Option<u8>) -> String {
    let Some(percent) = percent else { return "·".repeat(BAR) };
    let eighths = usize::from(percent.min(100)) * BAR * 8 / 100;
    let part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    let full = eighths / 8;
    format!("{}{part}{}", "█".repeat(full), "░".repeat(BAR - full - usize::from(!part.is_empty())))
}

fn write_line(text: &mut String, cells: &[Cell], widths: &[usize], width: Option<usize>) {
    let mut left = width.unwrap_or(usize::MAX);
    let last = cells.iter().rposition(|cell| !cell.0.is_empty()).unwrap_or_default();
    for (at, (Cell(cell, style), column)) in cells.iter().zip(widths).enumerate().take(last + 1) {
        let shown = cut(cell, left);
        left = left.saturating_sub(shown.width());
        // Writing to a String can't fail.
        let _ = write!(text, "{style}{shown}{style:#}");
        if at < last {
            let gap = (column.saturating_sub(cell.width()) + 2).min(left);
            left -= gap;
            let _ = write!(text, "{:gap$}", "");
        }
    }
    text.push('\n');
}

fn widths(cells: &[Vec<Cell>]) -> Vec<usize> {
    let columns = cells.iter().map(Vec::len).max().unwrap_or_default();
    let widest = |at: usize| cells.iter().filter_map(|line| line.get(at)).map(|cell| cell.0.width()).max();
    (0..columns).map(|at| widest(at).unwrap_or_default()).collect()
}

/// Columns for names, of which the column is `name`: so many that bars, three columns on, are seen whole.
fn name_room(widths: &[usize], name: usize, width: usize) -> usize {
    let others = widths.iter().enumerate().take(name + 4).filter(|(at, _)| *at != name);
    let others: usize = others.map(|(_, column)| column + 2).sum();
    width.saturating_sub(others).max(NAME)
}

/// A text without its middle, where it has no room.
fn shortened(text: &str, room: usize) -> String {
    if text.width() <= room {
        return text.to_owned();
    }
    let part = |room: usize, letters: &mut dyn Iterator<Item = char>| {
        let mut used = 0;
        let fits = |c: &char| {
            used += c.width().unwrap_or_default();
            used <= room
        };
        letters.take_while(fits).collect::<Vec<char>>()
    };
    let tail = room.saturating_sub(1) / 2;
    let head = part(room.saturating_sub(1 + tail), &mut text.chars());
    let tail = part(tail, &mut text.chars().rev());
    head.into_iter().chain(['…']).chain(tail.into_iter().rev()).collect()
}

/// As much of a text as fits, with a sign where it was cut.
fn cut(text: &str, room: usize) -> String {
    if text.width() <= room {
        return text.to_owned();
    }
    let mut used = 0;
    let fits = |c: &char| {
        used += c.width().unwrap_or_default();
        used < room
    };
    let head: String = text.chars().take_while(fits).collect();
    if room == 0 { head } else { head + "…" }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::ProviderNodeImageRelease as Image;

    fn row(name: &str, releases: &[&str], status: &serde_json::Value) -> Row {
        let owner = |name: &&str| json!({"apiVersion": "i/v1", "kind": "ProviderClusterStackRelease", "name": name, "uid": name});
        let image: Image = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "shop", "ownerReferences": releases.iter().map(owner).collect::<Vec<_>>()},
            "spec": {"templateRef": {"name": "t"}, "image": {"name": name, "steps": []}, "inputs": "sha256:1"},
            "status": status,
        }))
        .unwrap();
        Row::of(&image)
    }

    fn example() -> Vec<Row> {
        let progress = json!({"done": 41, "total": 100, "percent": 41, "bytes": "1.2GiB/3.0GiB", "rate": "38.1MiB/s", "left": "48s"});
        vec![
            row(
                "flatcar-7d",
                &["openstack-scs-1-34-v2"],
                &json!({"phase": "Failed", "step": "build", "message": "the tool ended with 1:\n\u{1b}[31mno space"}),
            ),
            row(
                "rocky-2b",
                &["openstack-scs-1-34-v2"],
                &json!({"phase": "Running", "step": "build", "holder": {"identity": "op_1", "heartbeat": "2026-01-01T00:00:00.000000Z"}, "progress": {"done": 0}}),
            ),
            row("sles-9c", &[], &json!({"phase": "Queued", "step": "download"})),
            row(
                "ubuntu-5f",
                &["openstack-scs-1-34-v1", "openstack-scs-1-34-v2"],
                &json!({"phase": "Running", "step": "download", "progress": progress}),
            ),
            row("old-1a", &["openstack-scs-1-34-v1"], &json!({"phase": "Succeeded", "step": "register"})),
        ]
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn in_a_pipe_every_message_is_whole() {
        insta::assert_snapshot!(plain(&table(&example(), Canvas { namespaces: true, size: None })), @r"
        NAMESPACE  NAME        PHASE      STEP      PERCENT  BYTES          RATE       LEFT  RELEASES                                     MESSAGE
        shop       flatcar-7d  Failed     build                                              openstack-scs-1-34-v2                        the tool ended with 1: [31mno space
        shop       rocky-2b    Running    build                                              openstack-scs-1-34-v2
        shop       sles-9c     Queued     download
        shop       ubuntu-5f   Running    download  41%      1.2GiB/3.0GiB  38.1MiB/s  48s   openstack-scs-1-34-v1,openstack-scs-1-34-v2
        shop       old-1a      Succeeded  register                                           openstack-scs-1-34-v1
        ");
    }

    #[test]
    fn on_a_terminal_what_runs_has_a_bar_and_no_line_is_too_wide() {
        let text = plain(&table(&example(), Canvas { namespaces: false, size: Some((130, 40)) }));
        insta::assert_snapshot!(text, @r"
        NAME        PHASE      STEP      PROGRESS               BYTES          RATE       LEFT  RELEASES
        flatcar-7d  Failed     build                                                            openstack-scs-1-34-v2
          └ the tool ended with 1: [31mno space
        rocky-2b    Running    build     ················                                       openstack-scs-1-34-v2
        sles-9c     Queued     download
        ubuntu-5f   Running    download  ██████▌░░░░░░░░░  41%  1.2GiB/3.0GiB  38.1MiB/s  48s   openstack-scs-1-34-v1,openstack-scs-1-34-…
        old-1a      Succeeded  register                                                         openstack-scs-1-34-v1
        ");
        for width in [1, 20, 60, 130] {
            let text = plain(&table(&example(), Canvas { namespaces: true, size: Some((width, 40)) }));
            assert!(text.lines().all(|line| line.width() <= width), "{text}");
        }
    }

    #[test]
    fn a_low_terminal_shows_what_runs_and_counts_the_rest() {
        let text = plain(&screen(&example(), Canvas { namespaces: false, size: Some((100, 7)) }));
        insta::assert_snapshot!(text, @r"
        NAME        PHASE    STEP      PROGRESS               BYTES          RATE       LEFT  RELEASES
        rocky-2b    Running  build     ················                                       openstack-scs…
        ubuntu-5f   Running  download  ██████▌░░░░░░░░░  41%  1.2GiB/3.0GiB  38.1MiB/s  48s   openstack-scs…
        flatcar-7d  Failed   build                                                            openstack-scs…
          └ the tool ended with 1: [31mno space
        … and 2 more
        ");
        assert_eq!(above(0), "");
        assert_eq!(above(5), "\x1b[5A\x1b[0J");
    }

    #[test]
    fn in_a_pipe_only_what_changed_is_said_again() {
        let canvas = Canvas { namespaces: false, size: None };
        let (mut rows, mut said) = (example(), BTreeMap::new());
        assert_eq!(changes(&rows, canvas, &mut said), table(&rows, canvas));
        assert_eq!(changes(&rows, canvas, &mut said), "");
        rows[2].phase = ImagePhase::Running;
        insta::assert_snapshot!(plain(&changes(&rows, canvas, &mut said)), @"sles-9c     Running    download");
    }

    #[test]
    fn a_long_name_leaves_room_for_a_bar() {
        let name = format!("{}-5f0c3b2a9d8e7f61", "u".repeat(47));
        let progress = json!({"done": 41, "total": 100, "percent": 41});
        let rows = [
            row(&name, &[], &json!({"phase": "Running", "step": "download", "progress": progress})),
            row("old-1a", &[], &json!({"phase": "Succeeded", "step": "register"})),
        ];
        for (namespaces, size, seen) in
            [(false, Some((80, 24)), 16), (true, Some((80, 24)), 16), (false, Some((200, 24)), 16), (false, None, 0)]
        {
            let text = plain(&table(&rows, Canvas { namespaces, size }));
            let line = text.lines().nth(1).unwrap();
            let bar = line.chars().filter(|c| "█▏▎▍▌▋▊▉░".contains(*c)).count();
            let is_short = size.is_some_and(|(width, _)| width == 80);
            assert!(bar == seen && line.contains("f61  ") && line.contains("41%"), "{text}");
            assert_eq!(line.contains(&name), !is_short, "{text}");
        }
        // Where nothing runs there is no bar to make room for.
        let done = [row(&name, &[], &json!({"phase": "Succeeded", "step": "register"}))];
        assert!(plain(&table(&done, Canvas { namespaces: false, size: Some((80, 24)) })).contains(&name));
    }

    #[test]
    fn names_lose_their_middle() {
        for (text, room, expected) in [
            ("ubuntu-5f", 9, "ubuntu-5f"),
            ("ubuntu-5f", 8, "ubun…-5f"),
            ("ubuntu-5f", 3, "u…f"),
            ("ubuntu-5f", 2, "u…"),
            ("ubuntu-5f", 1, "…"),
            ("漢字漢字", 5, "漢…字"),
        ] {
            assert_eq!(shortened(text, room), expected, "{text} {room}");
        }
    }

    #[test]
    fn bars_grow_by_eighths() {
        for (percent, expected) in [
            (None, "················"),
            (Some(0), "░░░░░░░░░░░░░░░░"),
            (Some(1), "▏░░░░░░░░░░░░░░░"),
            (Some(50), "████████░░░░░░░░"),
            (Some(99), "███████████████▊"),
            (Some(100), "████████████████"),
            (Some(200), "████████████████"),
        ] {
            assert_eq!(bar(percent), expected, "{percent:?}");
        }
    }
}
