//! A tree as text: box drawing, columns, messages that fit the terminal.

use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use unicode_width::UnicodeWidthStr;

use crate::cli::output::one_line;
use crate::core::tree::Node;

/// Between two columns.
const GAP: &str = "  ";
/// A message column narrower than this is no column: what is said stands below the name.
const NARROWEST: usize = 28;

const HEADER: Style = Style::new().bold();
const GUIDE: Style = Style::new().dimmed();
const GOOD: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Green)));
const BAD: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red)));
const UNSURE: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Yellow)));
const PLAIN: Style = Style::new();

/// The width of the terminal that standard output is; `None` where it is none.
pub fn terminal_width() -> Option<usize> {
    use std::io::IsTerminal;
    if !std::io::stdout().is_terminal() {
        return None;
    }
    terminal_size::terminal_size().map(|(width, _)| usize::from(width.0))
}

/// One line of the table, before it is laid out.
struct Row {
    /// Box drawing in front of the name.
    branch: String,
    /// Box drawing in front of what is continued on further lines.
    trunk: String,
    name: String,
    ready: &'static str,
    style: Style,
    reason: String,
    message: String,
}

impl Row {
    fn head() -> Self {
        Self {
            branch: String::new(),
            trunk: String::new(),
            name: "NAME".into(),
            ready: "READY",
            style: HEADER,
            reason: "REASON".into(),
            message: "MESSAGE".into(),
        }
    }

    fn name_width(&self) -> usize {
        self.branch.width() + self.name.width()
    }
}

/// All trees as one table, coloured. Messages are wrapped to `width`, and whole on one line without it. Where `width` is
/// too small for a table, what is said of a thing stands below its name.
pub fn text(nodes: &[Node], width: Option<usize>) -> String {
    let mut rows = Vec::new();
    for node in nodes {
        push(node, "", "", "", &mut rows);
    }
    let columns = Columns::of(&rows);
    let mut out = String::new();
    match width {
        Some(width) if width < columns.before_message() + NARROWEST => {
            for row in &rows {
                write_narrow(&mut out, row, width);
            }
        }
        _ => {
            columns.write(&mut out, &Row::head(), None, HEADER);
            for row in &rows {
                columns.write(&mut out, row, width, PLAIN);
            }
        }
    }
    out
}

/// Adds a node and its parts. `namespace` is that of the parent: it is not said again.
fn push(node: &Node, namespace: &str, lead: &str, turn: &str, rows: &mut Vec<Row>) {
    let is_root = turn.is_empty();
    let below = match turn {
        "" => "",
        "├─ " => "│  ",
        _ => "   ",
    };
    let inner = format!("{lead}{below}");
    let name = if node.namespace.is_empty() || (node.namespace == namespace && !is_root) {
        format!("{}/{}", node.kind, node.name)
    } else {
        format!("{}/{}/{}", node.kind, node.namespace, node.name)
    };
    let (ready, style) = match node.ready {
        Some(true) => ("True", GOOD),
        Some(false) => ("False", BAD),
        None => ("Unknown", UNSURE),
    };
    rows.push(Row {
        branch: format!("{lead}{turn}"),
        trunk: if node.children.is_empty() { inner.clone() } else { format!("{inner}│  ") },
        name: one_line(&name),
        ready,
        style,
        reason: one_line(&node.reason),
        message: one_line(&node.own_message()),
    });
    for (index, child) in node.children.iter().enumerate() {
        let turn = if index + 1 == node.children.len() { "└─ " } else { "├─ " };
        push(child, &node.namespace, &inner, turn, rows);
    }
}

struct Columns {
    name: usize,
    ready: usize,
    reason: usize,
}

impl Columns {
    fn of(rows: &[Row]) -> Self {
        let widest = |of: fn(&Row) -> usize, head: &str| rows.iter().map(of).max().unwrap_or(0).max(head.len());
        Self {
            name: widest(Row::name_width, "NAME"),
            ready: widest(|row| row.ready.len(), "READY"),
            reason: widest(|row| row.reason.width(), "REASON"),
        }
    }

    fn before_message(&self) -> usize {
        self.name + self.ready + self.reason + 3 * GAP.len()
    }

    fn write(&self, out: &mut String, row: &Row, width: Option<usize>, style: Style) {
        let fill = |column: usize, used: usize| " ".repeat(column.saturating_sub(used));
        let Row { branch, name, ready, reason, .. } = row;
        let mut line = format!("{GUIDE}{branch}{GUIDE:#}{style}{name}{style:#}{}", fill(self.name, row.name_width()));
        let _ = write!(line, "{GAP}{0}{ready}{0:#}{1}", row.style, fill(self.ready, ready.len()));
        let _ = write!(line, "{GAP}{style}{reason}{style:#}{}", fill(self.reason, reason.width()));
        let room = width.map_or(usize::MAX, |width| width.saturating_sub(self.before_message()));
        for (index, part) in wrap(&row.message, room).iter().enumerate() {
            if index > 0 {
                let space = " ".repeat(self.before_message().saturating_sub(row.trunk.width()));
                let _ = write!(line, "\n{GUIDE}{}{GUIDE:#}{space}{part}", row.trunk);
            } else {
                let _ = write!(line, "{GAP}{style}{part}{style:#}");
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

/// What is said of a thing on lines below its name.
fn write_narrow(out: &mut String, row: &Row, width: usize) {
    let Row { branch, trunk, name, ready, reason, message, style, .. } = row;
    let _ = writeln!(out, "{GUIDE}{branch}{GUIDE:#}{name}");
    let said = [*ready, reason, message].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
    let room = width.saturating_sub(trunk.width() + GAP.len()).max(NARROWEST / 2);
    for (index, part) in wrap(&said, room).iter().enumerate() {
        let part = match part.strip_prefix(ready) {
            Some(rest) if index == 0 => format!("{style}{ready}{style:#}{rest}"),
            _ => part.clone(),
        };
        let _ = writeln!(out, "{GUIDE}{trunk}{GUIDE:#}{GAP}{part}");
    }
}

/// Words on lines of at most `room` columns; a longer word is taken apart.
fn wrap(text: &str, room: usize) -> Vec<String> {
    let room = room.max(1);
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let mut word = word;
        let gap = usize::from(!line.is_empty());
        if line.width() + gap + word.width() <= room {
            if gap == 1 {
                line.push(' ');
            }
            line.push_str(word);
            continue;
        }
        if !line.is_empty() {
            lines.push(std::mem::take(&mut line));
        }
        while word.width() > room {
            let (head, tail) = word.split_at(fitting(word, room));
            lines.push(head.to_owned());
            word = tail;
        }
        line.push_str(word);
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

/// How many bytes of a word fit; at least one character.
fn fitting(word: &str, room: usize) -> usize {
    let ends = word.char_indices().map(|(start, c)| start + c.len_utf8());
    let first = word.chars().next().map_or(0, char::len_utf8);
    ends.take_while(|end| word[..*end].width() <= room).last().unwrap_or(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(kind: &str, name: &str, ready: Option<bool>, reason: &str, message: &str, children: Vec<Node>) -> Node {
        Node {
            kind: kind.into(),
            namespace: "shop".into(),
            name: name.into(),
            ready,
            reason: reason.into(),
            message: message.into(),
            children,
        }
    }

    fn example() -> Vec<Node> {
        let refused = ".spec.resource.properties.diskBus: field not declared in schema";
        let image = node("Image", "ubuntu", Some(false), "Invalid", refused, Vec::new());
        let class = node("ClusterClass", "openstack-scs-1-30-v3", Some(true), "Synced", "", Vec::new());
        let why = format!("1 of 2 objects not synced: Image shop/ubuntu: {refused}");
        let v3 = node(
            "ClusterStackRelease",
            "openstack-scs-1-30-v3",
            Some(false),
            "FailedToApplyObjects",
            &why,
            vec![image, class],
        );
        let mut role = node("ClusterRole", "scs", Some(true), "Synced", "", Vec::new());
        role.namespace = String::new();
        let v1 =
            node("ClusterStackRelease", "openstack-scs-1-30-v1", Some(true), "Ready", "1 object synced", vec![role]);
        let all = format!("openstack-scs-1-30-v3: {why}; usable: v1");
        let stack = node("ClusterStack", "scs", Some(false), "NewestReleaseNotReady", &all, vec![v3, v1]);
        vec![stack, node("ClusterStack", "new", None, "NoStatus", "no operator has looked at it yet", Vec::new())]
    }

    fn plain(width: Option<usize>) -> String {
        anstream::adapter::strip_str(&text(&example(), width)).to_string()
    }

    #[test]
    fn in_a_pipe_every_message_is_whole() {
        insta::assert_snapshot!(plain(None), @r"
        NAME                                          READY    REASON                 MESSAGE
        ClusterStack/shop/scs                         False    NewestReleaseNotReady  openstack-scs-1-30-v3; usable: v1
        ├─ ClusterStackRelease/openstack-scs-1-30-v3  False    FailedToApplyObjects   1 of 2 objects not synced
        │  ├─ Image/ubuntu                            False    Invalid                .spec.resource.properties.diskBus: field not declared in schema
        │  └─ ClusterClass/openstack-scs-1-30-v3      True     Synced
        └─ ClusterStackRelease/openstack-scs-1-30-v1  True     Ready                  1 object synced
           └─ ClusterRole/scs                         True     Synced
        ClusterStack/shop/new                         Unknown  NoStatus               no operator has looked at it yet
        ");
    }

    #[test]
    fn on_a_terminal_messages_are_wrapped_in_their_column() {
        insta::assert_snapshot!(plain(Some(120)), @r"
        NAME                                          READY    REASON                 MESSAGE
        ClusterStack/shop/scs                         False    NewestReleaseNotReady  openstack-scs-1-30-v3; usable: v1
        ├─ ClusterStackRelease/openstack-scs-1-30-v3  False    FailedToApplyObjects   1 of 2 objects not synced
        │  ├─ Image/ubuntu                            False    Invalid                .spec.resource.properties.diskBus: field
        │  │                                                                          not declared in schema
        │  └─ ClusterClass/openstack-scs-1-30-v3      True     Synced
        └─ ClusterStackRelease/openstack-scs-1-30-v1  True     Ready                  1 object synced
           └─ ClusterRole/scs                         True     Synced
        ClusterStack/shop/new                         Unknown  NoStatus               no operator has looked at it yet
        ");
        assert!(plain(Some(120)).lines().all(|line| line.width() <= 120));
    }

    #[test]
    fn on_a_narrow_terminal_what_is_said_goes_below() {
        insta::assert_snapshot!(plain(Some(60)), @r"
        ClusterStack/shop/scs
        │    False NewestReleaseNotReady openstack-scs-1-30-v3;
        │    usable: v1
        ├─ ClusterStackRelease/openstack-scs-1-30-v3
        │  │    False FailedToApplyObjects 1 of 2 objects not synced
        │  ├─ Image/ubuntu
        │  │    False Invalid .spec.resource.properties.diskBus:
        │  │    field not declared in schema
        │  └─ ClusterClass/openstack-scs-1-30-v3
        │       True Synced
        └─ ClusterStackRelease/openstack-scs-1-30-v1
           │    True Ready 1 object synced
           └─ ClusterRole/scs
                True Synced
        ClusterStack/shop/new
          Unknown NoStatus no operator has looked at it yet
        ");
    }

    #[test]
    fn words_that_do_not_fit_are_taken_apart() {
        for (text, room, expected) in [
            ("a bc d", 4, vec!["a bc", "d"]),
            ("abcdefgh", 3, vec!["abc", "def", "gh"]),
            ("日本語", 4, vec!["日本", "語"]),
            ("日", 1, vec!["日"]),
            ("", 5, vec![]),
        ] {
            assert_eq!(wrap(text, room), expected, "{text}");
        }
    }

    #[test]
    fn control_characters_never_reach_the_terminal() {
        assert_eq!(one_line("a\u{1b}[31m\r\nb\tc"), "a [31m b c");
    }
}
