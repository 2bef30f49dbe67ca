//! The steps by which a node image is made, as a release's list of images says them.
//!
//! An entry with a `url` is downloaded, verified, uploaded and registered. One that needs more lists its `steps`.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use url::Url;

use super::room;
use crate::api::condition::cut;
use crate::core::digest::hex;
use crate::core::limits::{Limits, check_path};
use crate::core::manifest::short_digest;
use crate::core::node_images::NodeImage;

/// Longest time that a step may ask for.
pub const LONGEST_STEP: SignedDuration = SignedDuration::from_hours(24);
/// Bytes of an image's name that is too long to be said whole.
const SPOKEN_NAME: usize = 128;
/// Most steps of an image.
pub const MAX_STEPS: usize = 32;

/// Why an image can't be built as it is described.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("image {image}{place}: {what}")]
pub struct PipelineError {
    image: String,
    /// `, step 2`, or nothing.
    place: String,
    what: String,
}

impl PipelineError {
    /// Name of the image that it is about.
    pub fn image(&self) -> &str {
        &self.image
    }
}

/// What bytes must be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Checksum {
    /// SHA-256, as 64 lowercase hexadecimal digits.
    Sha256(String),
    /// SHA-512, as 128 of them.
    Sha512(String),
}

impl TryFrom<String> for Checksum {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (algorithm, digits) = text.split_once(':').map_or((None, text.as_str()), |(a, d)| (Some(a), d));
        let digits = digits.to_ascii_lowercase();
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        match (algorithm, digits.len()) {
            (None | Some("sha256"), 64) if is_hex => Ok(Self::Sha256(digits)),
            (None | Some("sha512"), 128) if is_hex => Ok(Self::Sha512(digits)),
            _ => Err(format!("checksum {text:?} is none: write sha256: and 64, or sha512: and 128 hexadecimal digits")),
        }
    }
}

impl From<Checksum> for String {
    fn from(checksum: Checksum) -> Self {
        match checksum {
            Checksum::Sha256(digits) => format!("sha256:{digits}"),
            Checksum::Sha512(digits) => format!("sha512:{digits}"),
        }
    }
}

/// How a disk is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// QEMU's copy on write.
    Qcow2,
    /// As it is.
    Raw,
    /// That of `VMware`.
    Vmdk,
    /// Hyper-V's.
    Vhdx,
}

/// How bytes are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
    /// `.xz`.
    Xz,
}

/// Gets a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Download {
    /// Where it lies, by http or https.
    pub url: Url,
    /// Where it lies too, tried in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<Url>,
    /// What it must be, before anything else is done with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<Checksum>,
}

/// Checks a signature over what is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Verify {
    /// What it must be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<Checksum>,
    /// Where a detached signature lies, by http or https; the provider's template names the keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Url>,
}

/// Runs a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Tool {
    /// The tool and its arguments. No shell is between.
    pub command: Vec<String>,
    /// What it finds in its environment, beside what the provider gives.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Where it runs, inside of the work directory.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub directory: String,
    /// The file that it makes, inside of the work directory.
    pub output: String,
    /// How long it may take, for example `1h30m`.
    #[serde(default = "an_hour")]
    pub timeout: SignedDuration,
}

fn an_hour() -> SignedDuration {
    SignedDuration::from_hours(1)
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// Gets a file.
    Download(Download),
    /// Checks what is there.
    Verify(Verify),
    /// Runs a tool.
    Build(Tool),
    /// Writes the disk in another format.
    Convert {
        /// The format.
        format: Format,
    },
    /// Compresses the file.
    Compress {
        /// How.
        algorithm: Compression,
    },
    /// Brings it to the destination, under a name that nobody uses yet.
    Upload,
    /// Publishes it there by its name, with what is said of it.
    Register,
}

impl Work {
    /// What it is called where the list gives no name.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Download(_) => "download",
            Self::Verify(_) => "verify",
            Self::Build(_) => "build",
            Self::Convert { .. } => "convert",
            Self::Compress { .. } => "compress",
            Self::Upload => "upload",
            Self::Register => "register",
        }
    }
}

/// A step of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Its name, unique in the image.
    pub name: String,
    /// What it does.
    #[serde(flatten)]
    pub work: Work,
}

/// How an image is made. It is read only from where it was written by us.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pipeline {
    /// What the image is called at its destination.
    pub image: String,
    /// Its steps, in their order; the last two are upload and register.
    pub steps: Vec<Step>,
    /// What is said of it where it is registered.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub properties: Map<String, Value>,
}

/// A step as it is written: a name and one kind of work.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Written {
    name: String,
    download: Option<Download>,
    verify: Option<Verify>,
    build: Option<Tool>,
    convert: Option<WrittenConvert>,
    compress: Option<WrittenCompress>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenConvert {
    format: Format,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCompress {
    algorithm: Compression,
}

impl Written {
    fn work(self) -> Result<Work, String> {
        let all = [
            self.download.map(Work::Download),
            self.verify.map(Work::Verify),
            self.build.map(Work::Build),
            self.convert.map(|convert| Work::Convert { format: convert.format }),
            self.compress.map(|compress| Work::Compress { algorithm: compress.algorithm }),
        ];
        let mut found = all.into_iter().flatten();
        match (found.next(), found.next()) {
            (Some(work), None) => Ok(work),
            (None, _) => Err("it does nothing: write one of download, verify, build, convert, compress".to_owned()),
            (Some(first), Some(second)) => {
                Err(format!("it does {} and {}: make two steps of it", first.kind(), second.kind()))
            }
        }
    }
}

impl Pipeline {
    /// How an image of a list is made. `None` for one that is known by its name only: there is nothing to do.
    ///
    /// # Errors
    /// The first thing that is wrong, with the image and the step.
    pub fn of(image: &NodeImage) -> Result<Option<Self>, PipelineError> {
        let wrong = |place: String, what: String| PipelineError { image: image.name.clone(), place, what };
        let mut properties = image.options.clone();
        let written = properties.remove("steps");
        let mut steps = match (written, &image.url) {
            (Some(_), Some(_)) => {
                return Err(wrong(
                    String::new(),
                    "it has url and steps: write the url into a download step".to_owned(),
                ));
            }
            (Some(written), None) => from_list(written).map_err(|(place, what)| wrong(place, what))?,
            (None, Some(url)) => {
                let download = json!({"url": url, "mirrors": properties.remove("mirrors").unwrap_or(json!([])), "checksum": properties.remove("checksum")});
                let download =
                    serde_json::from_value(download).map_err(|error| wrong(String::new(), error.to_string()))?;
                vec![named(Work::Download(download))]
            }
            (None, None) => return Ok(None),
        };
        steps.extend([named(Work::Upload), named(Work::Register)]);
        for (number, step) in steps.iter().enumerate() {
            let checked = check(step, &steps[..number]);
            checked.map_err(|what| wrong(format!(", step {} ({})", number + 1, step.name), what))?;
        }
        let made = Self { image: image.name.clone(), steps, properties };
        let checked = room::check(&made).map_err(|(step, what)| (step.map(|step| step.name.clone()), what));
        checked.map_err(|(step, what)| {
            let number = made.steps.iter().position(|other| Some(&other.name) == step.as_ref());
            let place = number.zip(step).map(|(number, name)| format!(", step {} ({name})", number + 1));
            let name = cut(&made.image, SPOKEN_NAME);
            PipelineError { image: name, place: place.unwrap_or_default(), what }
        })?;
        Ok(Some(made))
    }

    /// Digest of the file that comes of it, where that is certain before: of one that is downloaded, and nothing else.
    pub fn foretold(&self) -> Option<String> {
        match self.steps.first().map(|step| &step.work) {
            Some(Work::Download(Download { checksum: Some(sum @ Checksum::Sha256(_)), .. }))
                if self.steps.len() == 3 =>
            {
                Some(sum.clone().into())
            }
            _ => None,
        }
    }

    /// What is said of the image at its destination: its options but for the format of its file, those below
    /// `properties`, as other tools group them, beside the others.
    pub fn description(&self) -> Map<String, Value> {
        let mut said = self.properties.clone();
        said.remove("format");
        if let Some(Value::Object(nested)) = said.get("properties") {
            let nested = nested.clone();
            said.remove("properties");
            said.extend(nested);
        }
        said
    }

    /// Where the file that is uploaded lies as it is: what was downloaded and only looked at since. None for one that was
    /// made here.
    pub fn origins(&self) -> Vec<&Url> {
        let mut found = Vec::new();
        for step in &self.steps {
            match &step.work {
                Work::Download(download) => found = [&download.url].into_iter().chain(&download.mirrors).collect(),
                Work::Build(_) | Work::Convert { .. } | Work::Compress { .. } => found.clear(),
                Work::Verify(_) | Work::Upload | Work::Register => {}
            }
        }
        found
    }

    /// Digest over all that the build depends on: the pipeline, and `settings` of the provider that change what comes out.
    pub fn inputs(&self, settings: &Value) -> String {
        // Keys of a `serde_json::Map` are sorted, so equal values print equal bytes.
        format!("sha256:{}", hex(&Sha256::digest(json!({"pipeline": self, "settings": settings}).to_string())))
    }

    /// Name of the object that stands for it: the same for the same image wherever it is named, and a DNS label.
    pub fn object_name(&self, settings: &Value) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let name: String = self.image.chars().map(plain).take(46).collect();
        let name = name.trim_matches('-');
        let digest = short_digest(&Value::String(self.inputs(settings)));
        if name.is_empty() { format!("image-{digest}") } else { format!("{name}-{digest}") }
    }
}

fn named(work: Work) -> Step {
    Step { name: work.kind().to_owned(), work }
}

/// The steps of a list; where something is wrong and what.
fn from_list(list: Value) -> Result<Vec<Step>, (String, String)> {
    let Value::Array(list) = list else { return Err((String::new(), "steps is no list".to_owned())) };
    if list.is_empty() || list.len() > MAX_STEPS {
        return Err((String::new(), format!("it has {} steps: write 1 to {MAX_STEPS}", list.len())));
    }
    let step = |(number, value): (usize, Value)| {
        let wrong = |what: String| (format!(", step {}", number + 1), what);
        let mut written: Written = serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
        let name = std::mem::take(&mut written.name);
        let work = written.work().map_err(wrong)?;
        Ok(if name.is_empty() { named(work) } else { Step { name, work } })
    };
    list.into_iter().enumerate().map(step).collect()
}

/// What is wrong with a step behind those `before` it.
fn check(step: &Step, before: &[Step]) -> Result<(), String> {
    if before.iter().any(|other| other.name == step.name) {
        return Err("two steps have this name: give one another `name`".to_owned());
    }
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if step.name.len() > 63 || !step.name.chars().all(is_plain) {
        return Err("its name is not of at most 63 lowercase letters, digits and dashes".to_owned());
    }
    let is_made = before.iter().any(|other| matches!(other.work, Work::Download(_) | Work::Build(_)));
    match &step.work {
        Work::Download(download) => [&download.url].into_iter().chain(&download.mirrors).try_for_each(web),
        Work::Build(tool) => checked_tool(tool),
        _ if !is_made => Err("there is no file yet: download or build one before".to_owned()),
        Work::Verify(Verify { checksum: None, signature: None }) => {
            Err("it names neither checksum nor signature".to_owned())
        }
        Work::Verify(verify) => verify.signature.iter().try_for_each(web),
        _ => Ok(()),
    }
}

fn web(url: &Url) -> Result<(), String> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("{} is not asked for by http or https", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            "its url holds a user or a password: a release is read by many; put them into the provider's Secret"
                .to_owned(),
        );
    }
    Ok(())
}

fn checked_tool(tool: &Tool) -> Result<(), String> {
    if tool.command.first().is_none_or(String::is_empty) {
        return Err("command is empty".to_owned());
    }
    if tool.command.iter().chain(tool.env.iter().flat_map(|(key, value)| [key, value])).any(|text| text.contains('\0'))
    {
        return Err("command and env can't hold a NUL".to_owned());
    }
    if tool.env.keys().any(|key| key.is_empty() || key.contains('=')) {
        return Err("env has a name that is empty or holds `=`".to_owned());
    }
    let inside =
        |what: &str, path: &str| check_path(path, &Limits::default()).map_err(|error| format!("{what}: {error}"));
    inside("directory", &tool.directory)?;
    if inside("output", &tool.output)?.is_empty() {
        return Err("output names no file".to_owned());
    }
    if tool.timeout <= SignedDuration::ZERO || tool.timeout > LONGEST_STEP {
        return Err(format!("timeout is not between 0 and {} h", LONGEST_STEP.as_hours()));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
