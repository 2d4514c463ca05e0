//! The parameters of samplers, by their names in a spec.
//!
//! Each sampler lists its keys once, as references to its own fields. Reading a spec, writing a spec and
//! listing the keys all use that list.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};
use crate::order::suggest;

/// One parameter of a sampler.
#[derive(Debug)]
pub struct Key<'s> {
    /// Its name in a spec.
    pub name: &'static str,
    /// Help for a parameter that must be given. `None` if it has a default.
    pub required: Option<Required>,
    value: &'s mut dyn Value,
}

/// Help for a parameter without a default.
#[derive(Clone, Copy, Debug)]
pub struct Required {
    /// Stands for its value in the list of keys.
    pub placeholder: &'static str,
    /// What to do if it is missing.
    pub hint: &'static str,
}

/// A seed that must be given.
pub(super) const SEED: Required =
    Required { placeholder: "N", hint: "seed the script's generator and name its seed here" };

/// A parameter's value.
pub(super) trait Value: Debug {
    /// Parses the text after the `=` of the key.
    fn set(&mut self, key: &str, text: &str) -> Result<()>;

    /// The value as a spec writes it.
    fn text(&self) -> String;
}

impl<'s> Key<'s> {
    pub(super) fn new(name: &'static str, value: &'s mut dyn Value) -> Self {
        Key { name, value, required: None }
    }

    /// The same key, which must be given.
    pub(super) fn required(self, required: Required) -> Self {
        Key { required: Some(required), ..self }
    }

    /// Parses the text after the `=`.
    ///
    /// # Errors
    /// When the text is not of the key's form.
    pub fn set(&mut self, text: &str) -> Result<()> {
        self.value.set(self.name, text)
    }

    /// The parameter as a spec writes it.
    pub fn text(&self) -> String {
        self.value.text()
    }
}

/// A value with few choices, each with a word.
pub(super) trait Words: Copy + PartialEq + Debug + 'static {
    const WORDS: &'static [(&'static str, Self)];
}

impl<T: Words> Value for T {
    fn set(&mut self, key: &str, text: &str) -> Result<()> {
        let found = T::WORDS.iter().find(|(word, _)| *word == text);
        let (_, value) = found.ok_or_else(|| {
            let known: Vec<_> = T::WORDS.iter().map(|(word, _)| *word).collect();
            wrong(format!("{key}={text}: no such word")).hint(suggest::hint(text, &known))
        })?;
        *self = *value;
        Ok(())
    }

    fn text(&self) -> String {
        let found = T::WORDS.iter().find(|(_, known)| known == self);
        found.map_or_else(String::new, |(word, _)| (*word).to_owned())
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Value for $number {
            fn set(&mut self, key: &str, text: &str) -> Result<()> {
                *self = parse_number(key, text)?;
                Ok(())
            }

            fn text(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

numbers!(u32, u64);

impl Value for bool {
    fn set(&mut self, key: &str, text: &str) -> Result<()> {
        *self = match text {
            "true" => true,
            "false" => false,
            _ => return Err(wrong(format!("{key}={text} is neither true nor false"))),
        };
        Ok(())
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl<T: Value + Default> Value for Option<T> {
    /// Parses a value, or `none`.
    fn set(&mut self, key: &str, text: &str) -> Result<()> {
        let mut value = T::default();
        *self = match text {
            "none" => None,
            _ => value.set(key, text).map(|()| Some(value))?,
        };
        Ok(())
    }

    fn text(&self) -> String {
        self.as_ref().map_or("none".to_owned(), T::text)
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

impl Value for PythonSeed {
    fn set(&mut self, key: &str, text: &str) -> Result<()> {
        let quoted = ['\'', '"'].iter().find_map(|quote| {
            text.strip_prefix(*quote)?.strip_suffix(*quote).filter(|inner| !inner.contains('\''))
        });
        *self = match quoted {
            Some(inner) => PythonSeed::Text(inner.to_owned()),
            None => parse_number(key, text).map(PythonSeed::Number).map_err(|error| {
                error.hint("a seed is a number, or a text in quotes where the script gives a str")
            })?,
        };
        Ok(())
    }

    fn text(&self) -> String {
        match self {
            PythonSeed::Number(number) => number.to_string(),
            PythonSeed::Text(text) => format!("'{text}'"),
        }
    }
}

/// A fraction: 0 or more and less than 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fraction(f64);

impl Fraction {
    pub const ZERO: Fraction = Fraction(0.0);

    /// This fraction of `n`, rounded down, as Python's `int(fraction * n)`.
    pub fn floor_of(self, n: u32) -> u32 {
        (self.0 * f64::from(n)).floor() as u32
    }

    /// This fraction of `n`, rounded up, as Python's `math.ceil(fraction * n)`.
    pub fn ceil_of(self, n: u32) -> u32 {
        (self.0 * f64::from(n)).ceil() as u32
    }

    pub(in crate::order) fn value(self) -> f64 {
        self.0
    }

    pub(in crate::order) fn parse(name: &str, text: &str) -> Result<Self> {
        let value: f64 = parse_number(name, text)?;
        if !(0.0..1.0).contains(&value) {
            return Err(wrong(format!("{name}={text} is not a fraction from 0 to below 1")));
        }
        // Minus zero is zero.
        Ok(Fraction(value.abs()))
    }
}

/// A fraction is never NaN.
impl Eq for Fraction {}

impl Value for Fraction {
    fn set(&mut self, key: &str, text: &str) -> Result<()> {
        *self = Fraction::parse(key, text)?;
        Ok(())
    }

    fn text(&self) -> String {
        self.0.to_string()
    }
}

pub(in crate::order) fn wrong(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Order, message)
}

pub(in crate::order) fn parse_number<T: FromStr<Err: Display>>(key: &str, text: &str) -> Result<T> {
    text.parse().map_err(|error| wrong(format!("{key}={text}: {error}")))
}

/// Refuses a rank that is not below `world`.
pub(super) fn check_rank(rank: u32, world: u32) -> Result<()> {
    if rank < world {
        return Ok(());
    }
    let message = format!("rank {rank} is not in a world of {world}");
    Err(wrong(message).hint("ranks count from 0 and world= says how many there are"))
}

/// Refuses a parameter that is 0.
pub(in crate::order) fn check_positive(name: &str, value: u64) -> Result<()> {
    if value > 0 { Ok(()) } else { Err(wrong(format!("{name}=0: must be at least 1"))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::samplers::Reshuffle;

    #[test]
    fn a_value_is_shown_as_it_was_set() {
        let (mut count, mut seed, mut word, mut part) =
            (None::<u32>, PythonSeed::Number(0), Reshuffle::Same, Fraction::ZERO);
        let mut keys = [
            Key::new("count", &mut count),
            Key::new("seed", &mut seed),
            Key::new("word", &mut word),
            Key::new("part", &mut part),
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
