//! The files of a build: what each step's is called, which format it is in, and whether it may be believed.

use serde_json::Value;
use url::Url;

use super::pipeline::{Compression, Format, Pipeline, Step, Work};

/// What a download is called whose URL ends in no name.
const NAMELESS: &str = "download";
/// Bytes of a name.
const LONGEST_NAME: usize = 128;

impl Format {
    /// As `qemu-img` and the lists call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Raw => "raw",
            Self::Vmdk => "vmdk",
            Self::Vhdx => "vhdx",
        }
    }

    /// The format of this name, or of this ending of a file's name.
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Qcow2, Self::Raw, Self::Vmdk, Self::Vhdx];
        all.into_iter().find(|format| format.name().eq_ignore_ascii_case(name))
    }
}

impl Compression {
    /// How the names of compressed files end.
    pub fn ending(self) -> &'static str {
        match self {
            Self::Gzip => "gz",
            Self::Zstd => "zst",
            Self::Xz => "xz",
        }
    }
}

impl Pipeline {
    /// Paths of the files that the steps make, inside of the work directory; one that makes none has the one before.
    pub fn files(&self) -> Vec<String> {
        let mut files: Vec<String> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let before = files.last().map_or(NAMELESS, String::as_str);
            files.push(match &step.work {
                Work::Download(download) => name_of(&download.url),
                Work::Build(tool) => plain_path(&tool.output),
                Work::Convert { format } => format!("{}.{}", without_format(before), format.name()),
                Work::Compress { algorithm } => format!("{before}.{}", algorithm.ending()),
                Work::Verify(_) | Work::Upload | Work::Register => before.to_owned(),
            });
        }
        files
    }

    /// Format of the disk before a step, where it is said; otherwise the file's beginning tells.
    pub fn format_before(&self, step: usize) -> Option<Format> {
        let before = &self.steps[..step.min(self.steps.len())];
        for (at, earlier) in before.iter().enumerate().rev() {
            match &earlier.work {
                Work::Convert { format } => return Some(*format),
                Work::Download(_) | Work::Build(_) => {
                    let file = &self.files()[at];
                    let by_ending = file.rsplit_once('.').and_then(|(_, ending)| Format::named(ending));
                    // What is said of an image without steps of its own is said of the file that is downloaded.
                    let is_whole = self.steps.iter().filter(|step| step.work.makes_a_disk()).count() == 1;
                    return by_ending.or_else(|| self.said_format().filter(|_| is_whole).and_then(Format::named));
                }
                _ => {}
            }
        }
        None
    }

    /// Format of the disk that is brought to the destination; empty where nobody says.
    pub fn final_format(&self) -> String {
        let converted = self.steps.iter().rev().find_map(|step| match step.work {
            Work::Convert { format } => Some(format),
            _ => None,
        });
        let said = || self.said_format().map(ToOwned::to_owned);
        let by_name = || self.format_before(self.steps.len()).map(|format| format.name().to_owned());
        converted.map(|format| format.name().to_owned()).or_else(said).or_else(by_name).unwrap_or_default()
    }

    /// How the file that is brought to the destination is compressed.
    pub fn compression(&self) -> Option<Compression> {
        let last = self.steps.iter().rev().find(|step| step.work.makes_a_file())?;
        if let Work::Compress { algorithm } = last.work { Some(algorithm) } else { None }
    }

    /// The same, with a step that writes the disk in the `format` that the destination wants, where it is in another one.
    #[must_use]
    pub fn in_format(mut self, format: Format) -> Self {
        if self.final_format() == format.name() {
            return self;
        }
        let is_packing = |step: &Step| !step.work.makes_a_disk();
        let at = self.steps.iter().rposition(|step| !is_packing(step)).map_or(0, |last| {
            // Behind the checks of what was made.
            let checks = self.steps[last + 1..].iter().take_while(|step| matches!(step.work, Work::Verify(_)));
            last + 1 + checks.count()
        });
        let names = |name: &str| self.steps.iter().any(|step| step.name == name);
        let name = ["convert", "convert-for-destination"].into_iter().find(|name| !names(name));
        let name = name.unwrap_or("convert-to-wanted-format").to_owned();
        self.steps.insert(at, Step { name, work: Work::Convert { format } });
        self
    }

    /// The first download whose bytes nothing vouches for: it names no checksum, and what follows is no `verify`.
    pub fn unverified(&self) -> Option<&Step> {
        self.steps.iter().enumerate().find_map(|(at, step)| match &step.work {
            Work::Download(download) if download.checksum.is_none() => {
                let is_checked = matches!(self.steps.get(at + 1).map(|next| &next.work), Some(Work::Verify(_)));
                (!is_checked).then_some(step)
            }
            _ => None,
        })
    }

    fn said_format(&self) -> Option<&str> {
        self.properties.get("format").and_then(Value::as_str).filter(|format| !format.is_empty())
    }
}

impl Work {
    fn makes_a_disk(&self) -> bool {
        matches!(self, Self::Download(_) | Self::Build(_) | Self::Convert { .. })
    }

    /// Whether a file comes out that was not there before.
    pub fn makes_a_file(&self) -> bool {
        self.makes_a_disk() || matches!(self, Self::Compress { .. })
    }
}

/// The last part of a URL's path, as a name that is safe anywhere.
fn name_of(url: &Url) -> String {
    let last = url.path_segments().and_then(|mut parts| parts.rfind(|part| !part.is_empty())).unwrap_or("");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '+');
    let name: String = last.chars().filter(|c| is_plain(*c)).take(LONGEST_NAME).collect();
    let name = name.trim_start_matches(['.', '-']);
    if name.is_empty() { NAMELESS.to_owned() } else { name.to_owned() }
}

/// Without empty and `.` parts; that it stays inside was checked when the list was read.
fn plain_path(path: &str) -> String {
    path.split('/').filter(|part| !part.is_empty() && *part != ".").collect::<Vec<_>>().join("/")
}

fn without_format(file: &str) -> &str {
    match file.rsplit_once('.') {
        Some((stem, ending)) if !stem.is_empty() && (Format::named(ending).is_some() || ending == "img") => stem,
        _ => file,
    }
}

#[cfg(test)]
mod tests;
