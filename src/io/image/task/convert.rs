//! Writes a disk in another format, by `qemu-img`. The format that it has is always said to it, never guessed by it, and
//! what would make it open other files is refused before.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::command::{finished, limits};
use super::digest::{Sums, of_file};
use super::error::StepError;
use super::supervisor::Order;
use super::{Input, Made, Site, work_dir};
use crate::core::image::command::environment;
use crate::core::image::disk::{HEAD, by_magic, judge};
use crate::core::image::pipeline::Format;

const QEMU_IMG: &str = "qemu-img";

/// Converts.
///
/// # Errors
/// It is no disk that may be opened, or `qemu-img` fails.
pub(super) async fn run(site: &Site<'_>, to: Format, from: Option<Format>, input: &Input) -> Result<Made, StepError> {
    let size = input.size()?;
    let head = head(&input.path)?;
    let from = from.unwrap_or_else(|| by_magic(&head));
    judge(from, &head, site.settings.bounds.disk)
        .map_err(|problem| StepError::hopeless(format!("the disk can't be converted: {problem}")))?;
    if !site.settings.qemu_img.is_file() {
        return Err(StepError::hopeless(format!(
            "{} is not there: use an image of the operator that has it, or executor Job",
            site.settings.qemu_img.display()
        )));
    }
    let part = site.directory.empty_part(site.number, site.name)?;
    let made = part.join("data");
    let ask = ["info", "--output=json", "-f", from.name()].map(ToOwned::to_owned);
    let ask = ask.into_iter().chain([input.path.display().to_string()]).collect();
    let mut said = Vec::new();
    let ended = site
        .run_tool_with(&order(site, &part, ask)?, &mut |line| {
            said.extend_from_slice(line);
            true
        })
        .await?;
    finished(QEMU_IMG, &ended).map_err(|_| unreadable(from))?;
    whole_by_itself(&said).map_err(|problem| StepError::hopeless(format!("the disk can't be converted: {problem}")))?;
    let convert = ["convert", "-p", "-f", from.name(), "-O", to.name()].map(ToOwned::to_owned);
    let paths = [&input.path, &made].map(|path| path.display().to_string());
    let convert = convert.into_iter().chain(paths).collect();
    let gauge = site.watch.gauge().clone();
    gauge.set(0, Some(size));
    let mut progress = |line: &[u8]| {
        let thousandths = percent(line);
        if let Some(thousandths) = thousandths {
            gauge.set(size / 1000 * thousandths + size % 1000 * thousandths / 1000, Some(size));
        }
        thousandths.is_none()
    };
    finished(QEMU_IMG, &site.run_tool_with(&order(site, &part, convert)?, &mut progress).await?)?;
    let (sums, _) = of_file(made.clone(), Sums::for_checksum(None), site.cancel, |_| ()).await?;
    Ok(Made { path: made, digest: sums.digest() })
}

fn unreadable(from: Format) -> StepError {
    StepError::hopeless(format!("{QEMU_IMG} can't read the disk as {}: see the log", from.name()))
}

fn order(site: &Site<'_>, part: &Path, arguments: Vec<String>) -> Result<Order, StepError> {
    work_dir::make(part)?;
    let mut env = environment(&std::collections::BTreeMap::new(), &std::collections::BTreeMap::new())
        .map_err(|error| StepError::hopeless(error.to_string()))?;
    env.extend(["HOME", "TMPDIR"].map(|name| (name.to_owned(), part.display().to_string())));
    Ok(Order {
        program: site.settings.qemu_img.clone(),
        arguments,
        env,
        directory: part.to_owned(),
        lock: site.directory.tool_lock(),
        limits: limits(site),
        grace: site.settings.grace,
    })
}

fn head(path: &Path) -> Result<Vec<u8>, StepError> {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(HEAD as u64).read_to_end(&mut head));
    read.map_err(|error| StepError::file("reading", path, &error))?;
    Ok(head)
}

/// What `qemu-img info` says of a disk names no other file. Its header was looked at before; this is a second look.
fn whole_by_itself(said: &[u8]) -> Result<(), String> {
    let said: serde_json::Value =
        serde_json::from_slice(said).map_err(|error| format!("what {QEMU_IMG} says of it can't be read: {error}"))?;
    let data = said.pointer("/format-specific/data");
    let names = [said.get("backing-filename"), data.and_then(|data| data.get("data-file"))];
    if names.into_iter().flatten().any(|name| !name.is_null()) {
        return Err("it names other files".to_owned());
    }
    Ok(())
}

/// `    (12.34/100%)` as thousandths.
fn percent(line: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(line).ok()?.trim();
    let number = text.strip_prefix('(')?.strip_suffix("/100%)")?;
    let (whole, parts) = number.split_once('.').unwrap_or((number, "0"));
    let tenth = parts.get(..1)?.parse::<u64>().ok()?;
    Some((whole.parse::<u64>().ok()? * 10 + tenth).min(1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read() {
        for (line, expected) in [
            ("    (0.00/100%)", Some(0)),
            ("(12.34/100%)", Some(123)),
            ("(100.00/100%)", Some(1000)),
            ("(x/100%)", None),
        ] {
            assert_eq!(percent(line.as_bytes()), expected, "{line}");
        }
    }

    #[test]
    fn a_disk_that_names_others_is_refused_by_what_is_said_of_it_too() {
        assert!(whole_by_itself(br#"{"format": "qcow2", "format-specific": {"data": {"compat": "1.1"}}}"#).is_ok());
        for said in [
            r#"{"backing-filename": "/etc/passwd"}"#,
            r#"{"format-specific": {"data": {"data-file": "/etc/passwd"}}}"#,
            "",
        ] {
            assert!(whole_by_itself(said.as_bytes()).is_err(), "{said}");
        }
    }
}
