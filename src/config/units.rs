//! Quantities as people write them: [`Bytes`], [`Size`], [`BufferSize`] and [`Period`].
//!
//! A text is split into a decimal number and a unit. The arithmetic is in integers, so a quantity is exactly
//! what was written. Display chooses the largest unit that keeps the value exact, so its text can be read
//! back. Units may be in any case. A unit without `B` ("64G") is refused, since tools disagree on whether it
//! is binary.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toml::Value;

use crate::buffer::Capacity;
use crate::error::{Error, ErrorKind};

/// Units of bytes, largest first within each family; Display prefers the binary family.
const BYTE_UNITS: [(&str, u64); 11] = [
    ("PiB", 1 << 50),
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("PB", 1_000_000_000_000_000),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Units of time in nanoseconds, largest first.
const TIME_UNITS: [(&str, u64); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// The most digits after the point. More would overflow the arithmetic and mean nothing.
const FRACTION_DIGITS_MAX: usize = 12;

/// The most characters of a wrong value that messages show.
const SHOWN_CHARS_MAX: usize = 60;

/// A number of bytes, written `"64GiB"`, `"1.5 TB"` or `"4096"`.
///
/// KiB to PiB are binary, kB to PB decimal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "String")]
pub struct Bytes(pub u64);

/// An amount of memory or disk: bytes, a share of a whole, or left to belady.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "String")]
pub enum Size {
    /// `"auto"`: derived from the host when the configuration is resolved.
    Auto,
    /// A number of bytes, `"64GiB"`.
    Bytes(Bytes),
    /// A share, `"25%"`, from 0 to 100. Each key says what the whole is.
    Percent(f64),
}

/// How much a rehearsal buffer holds: samples, written `5000`, or bytes, written `"2GiB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "String")]
pub struct BufferSize(pub Capacity);

impl Default for BufferSize {
    fn default() -> Self {
        BufferSize(Capacity::Samples(0))
    }
}

/// A length of time, written `"200ms"`, `"60s"`, `"5m"`, `"1h"` or `"2d"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "String")]
pub struct Period(pub Duration);

impl Bytes {
    /// The amount to one decimal for people, `5.9 GiB`. It is not exact, so it is not to be read back.
    pub fn human(self) -> String {
        let unit = BYTE_UNITS.iter().take(5).find(|(_, unit)| self.0 >= *unit);
        let Some((name, unit)) = unit else { return format!("{} B", self.0) };
        let rounded = format!("{:.1}", self.0 as f64 / *unit as f64);
        format!("{} {name}", rounded.strip_suffix(".0").unwrap_or(&rounded))
    }
}

impl Size {
    /// This size in bytes, of a whole of `whole` bytes; `None` for [`Size::Auto`].
    pub fn of(self, whole: u64) -> Option<u64> {
        match self {
            Size::Auto => None,
            Size::Bytes(bytes) => Some(bytes.0),
            Size::Percent(percent) => Some(share(percent, whole)),
        }
    }
}

/// `percent` of `whole`, rounded down and never more than `whole`.
pub(super) fn share(percent: f64, whole: u64) -> u64 {
    ((whole as f64 * (percent / 100.0)) as u64).min(whole)
}

impl FromStr for Bytes {
    type Err = Error;

    /// # Errors
    /// [`ErrorKind::Config`] if the text is not a number with a known unit, or exceeds 16 EiB.
    fn from_str(text: &str) -> Result<Self, Error> {
        bytes(text).ok_or_else(|| text_error(text, "a number of bytes", "\"64GiB\" or \"500MB\""))
    }
}

impl FromStr for Size {
    type Err = Error;

    /// # Errors
    /// [`ErrorKind::Config`] if the text is neither `auto`, nor a share from 0% to 100%, nor what [`Bytes`]
    /// reads.
    fn from_str(text: &str) -> Result<Self, Error> {
        let trimmed = text.trim();
        let size = if trimmed == "auto" {
            Some(Size::Auto)
        } else if let Some(number) = trimmed.strip_suffix('%') {
            percent(number.trim_end()).map(Size::Percent)
        } else {
            bytes(trimmed).map(Size::Bytes)
        };
        size.ok_or_else(|| text_error(text, "a size", "\"64GiB\", \"500MB\", \"25%\" or \"auto\""))
    }
}

impl FromStr for BufferSize {
    type Err = Error;

    /// A bare number counts samples.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if the text is neither a whole number nor what [`Bytes`] reads.
    fn from_str(text: &str) -> Result<Self, Error> {
        let capacity = match text.trim().parse() {
            Ok(samples) => Some(Capacity::Samples(samples)),
            Err(_) => bytes(text).map(|bytes| Capacity::Bytes(bytes.0)),
        };
        let size = capacity.map(BufferSize);
        size.ok_or_else(|| text_error(text, "the size of a buffer", "5000 samples or \"2GiB\""))
    }
}

impl FromStr for Period {
    type Err = Error;

    /// # Errors
    /// [`ErrorKind::Config`] if the text is not a number with a unit; a bare number is an error, too.
    fn from_str(text: &str) -> Result<Self, Error> {
        period(text)
            .ok_or_else(|| text_error(text, "a duration", "\"200ms\", \"60s\", \"5m\" or \"1h\""))
    }
}

/// The error for a text that is not `what`, with examples of how to write it.
fn text_error(text: &str, what: &str, examples: &str) -> Error {
    value_error(&Value::String(text.to_owned()), what, examples)
}

fn value_error(value: &Value, what: &str, examples: &str) -> Error {
    let shown = shown(value);
    Error::new(ErrorKind::Config, format!("{shown} is not {what}; write it like {examples}"))
}

/// A value as messages show it: on one line, and cut if it is long.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Table(_) => "a table".to_owned(),
        Value::String(text) if text.chars().count() > SHOWN_CHARS_MAX => {
            let head: String = text.chars().take(SHOWN_CHARS_MAX).collect();
            format!("{head:?}...")
        }
        // Not as TOML, which would write a text with line breaks on several lines.
        Value::String(text) => format!("{text:?}"),
        other => {
            other.to_string().lines().collect::<String>().chars().take(SHOWN_CHARS_MAX).collect()
        }
    }
}

fn bytes(text: &str) -> Option<Bytes> {
    let (number, unit) = split(text);
    let unit = if unit.is_empty() { "B" } else { unit };
    u64::try_from(scaled(number, unit, &BYTE_UNITS)?).ok().map(Bytes)
}

fn period(text: &str) -> Option<Period> {
    let (number, unit) = split(text);
    let nanos = scaled(number, unit, &TIME_UNITS)?;
    let seconds = u64::try_from(nanos / 1_000_000_000).ok()?;
    let nanos = u32::try_from(nanos % 1_000_000_000).ok()?;
    Some(Period(Duration::new(seconds, nanos)))
}

fn percent(number: &str) -> Option<f64> {
    // Only digits and a point: `f64` would also take "inf", "nan" and "1e1".
    let plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let percent: f64 = number.parse().ok().filter(|_| plain)?;
    (percent <= 100.0).then_some(percent)
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim_start())
}

/// `number` of `unit` in the smallest unit, rounded down; `None` if either cannot be read.
fn scaled(number: &str, unit: &str, units: &[(&str, u64)]) -> Option<u128> {
    let (_, unit) = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    let unit = u128::from(*unit);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if fraction.is_empty() || fraction.len() > FRACTION_DIGITS_MAX {
        return None;
    }
    let whole: u128 = whole.parse().ok()?;
    let parts: u64 = fraction.parse().ok()?;
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    whole.checked_mul(unit)?.checked_add(u128::from(parts) * unit / scale)
}

/// Writes `amount` in the first of `units` that keeps it exact.
fn exact(f: &mut fmt::Formatter<'_>, amount: u128, units: &[(&str, u64)]) -> fmt::Result {
    let fits = |unit: u64| amount > 0 && amount.is_multiple_of(u128::from(unit));
    match units.iter().find(|(_, unit)| fits(*unit)) {
        Some((name, unit)) => write!(f, "{}{name}", amount / u128::from(*unit)),
        None => f.write_str("0"),
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        exact(f, u128::from(self.0), &BYTE_UNITS)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Size::Auto => f.write_str("auto"),
            Size::Bytes(bytes) => bytes.fmt(f),
            Size::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl fmt::Display for BufferSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Capacity::Samples(samples) => samples.fmt(f),
            // Without a unit, 0 bytes would be read back as samples.
            Capacity::Bytes(0) => f.write_str("0B"),
            Capacity::Bytes(limit) => Bytes(limit).fmt(f),
        }
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_nanos() {
            0 => f.write_str("0s"),
            // The one usual value whose largest unit is not the usual one.
            60_000_000_000 => f.write_str("60s"),
            nanos => exact(f, nanos, &TIME_UNITS),
        }
    }
}

/// TOML values: text as [`FromStr`] reads it. Bytes and samples may also be bare integers.
macro_rules! from_value {
    ($($type:ident: $what:literal, $examples:literal, $integer:expr;)*) => { $(
        impl TryFrom<Value> for $type {
            type Error = Error;

            fn try_from(value: Value) -> Result<Self, Error> {
                let integer: fn(u64) -> Option<Self> = $integer;
                match &value {
                    Value::String(text) => text.parse(),
                    Value::Integer(number) => u64::try_from(*number).ok().and_then(integer)
                        .ok_or_else(|| value_error(&value, $what, $examples)),
                    other => Err(value_error(other, $what, $examples)),
                }
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> String {
                value.to_string()
            }
        }
    )* };
}

from_value! {
    Bytes: "a number of bytes", "\"64GiB\" or \"500MB\"", |n| Some(Bytes(n));
    Size: "a size", "\"64GiB\", \"500MB\", \"25%\" or \"auto\"", |n| Some(Size::Bytes(Bytes(n)));
    BufferSize: "the size of a buffer", "5000 samples or \"2GiB\"",
        |n| Some(BufferSize(Capacity::Samples(n)));
    Period: "a duration", "\"200ms\", \"60s\", \"5m\" or \"1h\"", |_| None;
}
