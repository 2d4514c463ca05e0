//! The parameters of samplers by the names that they have in a spec.
//!
//! Each sampler lists its keys once, as references to its own fields; reading a spec, writing one
//! and telling what keys there are all go through that list.

use std::fmt::Display;
use std::str::FromStr;

use super::dlio::Reads;
use super::keras::Subset;
use super::shuffle::Epochs;
use super::torch::Weights;
use crate::error::{Error, ErrorKind, Result};
use crate::order::suggest;

/// One parameter of a sampler.
#[derive(Debug)]
pub struct Key<'s> {
    /// Its name in a spec.
    pub name: &'static str,
    /// Whether it has to be given.
    pub required: bool,
    field: Field<'s>,
}

/// Where a parameter is kept.
#[derive(Debug)]
pub(super) enum Field<'s> {
    U32(&'s mut u32),
    U64(&'s mut u64),
    /// A number, or `none`.
    Maybe32(&'s mut Option<u32>),
    /// A number, or `none`.
    Maybe64(&'s mut Option<u64>),
    Bool(&'s mut bool),
    Seed(&'s mut PythonSeed),
    Fraction(&'s mut Fraction),
    Epochs(&'s mut Epochs),
    Subset(&'s mut Subset),
    Reads(&'s mut Reads),
    Weights(&'s mut Weights),
}

impl<'s> Key<'s> {
    pub(super) fn new(name: &'static str, field: Field<'s>) -> Self {
        Key { name, field, required: false }
    }

    pub(super) fn required(name: &'static str, field: Field<'s>) -> Self {
        Key { name, field, required: true }
    }

    /// What stands for the parameter where people are told of it and it has no default.
    pub fn placeholder(&self) -> &'static str {
        if matches!(self.field, Field::Weights(_)) { "FILE" } else { "N" }
    }

    /// Reads the parameter from what stands after the `=`.
    ///
    /// # Errors
    /// When it is not of the key's form.
    pub fn set(&mut self, text: &str) -> Result<()> {
        let name = self.name;
        match &mut self.field {
            Field::U32(field) => **field = number(name, text)?,
            Field::U64(field) => **field = number(name, text)?,
            Field::Maybe32(field) => **field = maybe(name, text)?,
            Field::Maybe64(field) => **field = maybe(name, text)?,
            Field::Bool(field) => **field = boolean(name, text)?,
            Field::Seed(field) => **field = PythonSeed::parse(name, text)?,
            Field::Fraction(field) => **field = Fraction::parse(name, text)?,
            Field::Epochs(field) => **field = choice(name, text, &Epochs::WORDS)?,
            Field::Subset(field) => **field = choice(name, text, &Subset::WORDS)?,
            Field::Reads(field) => **field = choice(name, text, &Reads::WORDS)?,
            Field::Weights(_) if text.is_empty() => {
                return Err(wrong("the file of weights has no name"));
            }
            Field::Weights(field) => **field = Weights::in_file(text),
        }
        Ok(())
    }

    /// The parameter as a spec writes it.
    pub fn text(&self) -> String {
        match &self.field {
            Field::U32(field) => field.to_string(),
            Field::U64(field) => field.to_string(),
            Field::Maybe32(field) => field.map_or("none".to_owned(), |value| value.to_string()),
            Field::Maybe64(field) => field.map_or("none".to_owned(), |value| value.to_string()),
            Field::Bool(field) => field.to_string(),
            Field::Seed(PythonSeed::Number(number)) => number.to_string(),
            Field::Seed(PythonSeed::Text(text)) => format!("'{text}'"),
            Field::Fraction(field) => field.0.to_string(),
            Field::Epochs(field) => word(**field, &Epochs::WORDS),
            Field::Subset(field) => word(**field, &Subset::WORDS),
            Field::Reads(field) => word(**field, &Reads::WORDS),
            Field::Weights(field) => field.file.display().to_string(),
        }
    }
}

/// A seed of `random.Random`: a number, or a text in quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PythonSeed {
    /// `random.seed(7)`
    Number(u64),
    /// `random.seed("7")`
    Text(String),
}

impl PythonSeed {
    fn parse(name: &str, text: &str) -> Result<Self> {
        let quoted = ['\'', '"'].iter().find_map(|quote| {
            text.strip_prefix(*quote)?.strip_suffix(*quote).filter(|inner| !inner.contains('\''))
        });
        match quoted {
            Some(inner) => Ok(PythonSeed::Text(inner.to_owned())),
            None => number(name, text).map(PythonSeed::Number).map_err(|error| {
                error.hint("a seed is a number, or a text in quotes where the script gives a str")
            }),
        }
    }
}

/// A part of a whole: 0 or more and less than 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fraction(f64);

impl Fraction {
    /// No part at all.
    pub const ZERO: Fraction = Fraction(0.0);

    /// This part of `n`, rounded down, as Python's `int(fraction * n)`.
    pub fn floor_of(self, n: u32) -> u32 {
        (self.0 * f64::from(n)).floor() as u32
    }

    /// This part of `n`, rounded up, as Python's `math.ceil(fraction * n)`.
    pub fn ceil_of(self, n: u32) -> u32 {
        (self.0 * f64::from(n)).ceil() as u32
    }

    pub(in crate::order) fn value(self) -> f64 {
        self.0
    }

    pub(in crate::order) fn parse(name: &str, text: &str) -> Result<Self> {
        let value: f64 = number(name, text)?;
        if !(0.0..1.0).contains(&value) {
            return Err(wrong(format!("{name}={text} is not a fraction from 0 to below 1")));
        }
        // Minus zero is zero.
        Ok(Fraction(value.abs()))
    }
}

/// A fraction is never NaN.
impl Eq for Fraction {}

/// An error about an order.
pub(in crate::order) fn wrong(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Order, message)
}

pub(in crate::order) fn number<T: FromStr<Err: Display>>(key: &str, text: &str) -> Result<T> {
    text.parse().map_err(|error| wrong(format!("{key}={text}: {error}")))
}

fn maybe<T: FromStr<Err: Display>>(key: &str, text: &str) -> Result<Option<T>> {
    if text == "none" { Ok(None) } else { number(key, text).map(Some) }
}

fn boolean(key: &str, text: &str) -> Result<bool> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(wrong(format!("{key}={text} is neither true nor false"))),
    }
}

/// The value that a word stands for.
fn choice<T: Copy>(key: &str, text: &str, words: &[(&'static str, T)]) -> Result<T> {
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        wrong(format!("{key}={text}: no such word")).hint(suggest::hint(text, &known))
    })
}

fn word<T: Copy + PartialEq>(value: T, words: &[(&'static str, T)]) -> String {
    let found = words.iter().find(|(_, known)| *known == value);
    found.map_or_else(String::new, |(word, _)| (*word).to_owned())
}

/// Refuses a rank that is not in its world.
pub(super) fn check_rank(rank: u32, world: u32) -> Result<()> {
    if rank < world {
        return Ok(());
    }
    let message = format!("rank {rank} is not in a world of {world}");
    Err(wrong(message).hint("ranks count from 0 and world= says how many there are"))
}

/// Refuses a parameter that has to be at least 1.
pub(in crate::order) fn check_positive(name: &str, value: u64) -> Result<()> {
    if value > 0 { Ok(()) } else { Err(wrong(format!("{name}=0: must be at least 1"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_shown() {
        let (mut count, mut seed, mut word, mut part) =
            (None, PythonSeed::Number(0), Epochs::Same, Fraction::ZERO);
        let mut keys = [
            Key::new("count", Field::Maybe32(&mut count)),
            Key::new("seed", Field::Seed(&mut seed)),
            Key::new("word", Field::Epochs(&mut word)),
            Key::new("part", Field::Fraction(&mut part)),
        ];
        for (key, text) in keys.iter_mut().zip(["7", "'a b'", "again", "0.25"]) {
            key.set(text).unwrap();
            assert_eq!(key.text(), text);
        }
        keys[0].set("none").unwrap();
        assert_eq!(keys[0].text(), "none");
        for (at, text) in [(0, "-1"), (1, "x"), (1, "''x''"), (2, "agian"), (3, "1"), (3, "nan")] {
            assert!(keys[at].set(text).is_err(), "{text}");
        }
        assert!(keys[2].set("agian").unwrap_err().to_string().contains("did you mean 'again'"));
    }
}
