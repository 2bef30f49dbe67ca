//! What a build may use and how long it may take, as the provider's template says it or by default.

use std::time::Duration;

use thiserror::Error;

use super::pipeline::{LONGEST_STEP, Work};
use crate::api::image_template::ImageBuild;
use crate::core::duration::go_duration;

/// Failed attempts that are followed by another one.
pub const RETRIES: u32 = 5;
/// Builds of a template that run at once.
pub const CONCURRENCY: u16 = 4;
/// Builds of all templates that Jobs carry out at once, for each replica: of these it has a look now and then.
pub const JOBS: usize = 64;
const STEP_TIMEOUT: Duration = Duration::from_hours(1);
const NO_PROGRESS: Duration = Duration::from_mins(10);
/// As long as curl waits by default for a transfer that is too slow (`--speed-time`).
const TRICKLE: Duration = Duration::from_secs(30);
const CPU_SECONDS: u64 = 6 * 60 * 60;
const GIB: u64 = 1 << 30;
const OPEN_FILES: u64 = 1024;

/// A setting of the provider's template that can't be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("spec.build.{field} of the provider's template is {text:?}: write {expected}")]
pub struct BoundsError {
    field: &'static str,
    text: String,
    expected: &'static str,
}

/// Bounds of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How long a step may take, where the provider says it.
    pub step_timeout: Option<Duration>,
    /// How long a step may go without progress.
    pub no_progress: Duration,
    /// A server that in this time sends less than a build can go on with gives way to the next mirror, where there is one.
    pub trickle: Duration,
    /// Processor time in seconds, of each process of a tool.
    pub cpu_seconds: u64,
    /// Address space in bytes, of each process of a tool.
    pub memory: u64,
    /// Bytes of the work directory, and of the largest file.
    pub disk: u64,
    /// Open files of each process of a tool.
    pub open_files: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            step_timeout: None,
            no_progress: NO_PROGRESS,
            trickle: TRICKLE,
            cpu_seconds: CPU_SECONDS,
            memory: 8 * GIB,
            disk: 64 * GIB,
            open_files: OPEN_FILES,
        }
    }
}

impl Bounds {
    /// Of a template.
    ///
    /// # Errors
    /// A duration or a quantity can't be read.
    pub fn of(build: &ImageBuild) -> Result<Self, BoundsError> {
        let time = |field, text: &Option<String>| {
            let Some(text) = text else { return Ok(None) };
            let read = go_duration(text).filter(|time| !time.is_zero());
            let wrong = || BoundsError { field, text: text.clone(), expected: "a duration, for example 90m" };
            read.map(Some).ok_or_else(wrong)
        };
        let limits = build.limits.clone().unwrap_or_default();
        let size = |field, quantity: Option<k8s_openapi::apimachinery::pkg::api::resource::Quantity>, otherwise| {
            let Some(quantity) = quantity else { return Ok(otherwise) };
            let expected = "a quantity of bytes, for example 40Gi";
            bytes(&quantity.0).ok_or(BoundsError { field, text: quantity.0, expected })
        };
        let default = Self::default();
        Ok(Self {
            step_timeout: time("stepTimeout", &build.step_timeout)?,
            no_progress: time("noProgressTimeout", &build.no_progress_timeout)?.unwrap_or(default.no_progress),
            trickle: default.trickle,
            cpu_seconds: limits.cpu_seconds.unwrap_or(default.cpu_seconds),
            memory: size("limits.memory", limits.memory, default.memory)?,
            disk: size("limits.disk", limits.disk, default.disk)?,
            open_files: limits.open_files.unwrap_or(default.open_files),
        })
    }

    /// How long a step may take: what the provider says, and of a command the shorter of that and its own.
    pub fn deadline(&self, work: &Work) -> Duration {
        let longest = Duration::try_from(LONGEST_STEP).unwrap_or(STEP_TIMEOUT);
        match work {
            Work::Build(tool) => {
                let own = Duration::try_from(tool.timeout).unwrap_or(STEP_TIMEOUT);
                own.min(self.step_timeout.unwrap_or(longest))
            }
            _ => self.step_timeout.unwrap_or(STEP_TIMEOUT),
        }
    }
}

/// Bytes of a quantity as Kubernetes' `resource.Quantity` reads it: a number with or without fraction, and a suffix or an
/// exponent; rounded up, as its `Value()`. Only what is above 0.
fn bytes(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(at);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let (factor, exponent) = scale(suffix)?;
    let mantissa: u128 = format!("{whole}{fraction}").parse().ok()?;
    let exponent = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let power = 10_u128.checked_pow(exponent.unsigned_abs());
    let scaled = mantissa.checked_mul(factor)?;
    let bytes = match power {
        Some(power) if exponent >= 0 => scaled.checked_mul(power)?,
        Some(power) => scaled.div_ceil(power),
        None if exponent >= 0 => return None,
        // Less than one of it.
        None => u128::from(scaled > 0),
    };
    u64::try_from(bytes).ok().filter(|bytes| *bytes > 0)
}

/// What a suffix multiplies by, and the power of ten that comes to it.
fn scale(suffix: &str) -> Option<(u128, i32)> {
    let exponent = suffix.strip_prefix(['e', 'E']).filter(|exponent| !exponent.is_empty());
    if let Some(exponent) = exponent.filter(|exponent| *exponent != "i") {
        return exponent.parse().ok().map(|exponent| (1, exponent));
    }
    Some(match suffix {
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "" => (1, 0),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
