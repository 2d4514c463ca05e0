//! Finds the class of a sample, by its path or by a list.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// The placeholder of the class in a pattern.
const CLASS: &str = "{class}";

/// How the class of a sample is known. Written as `directory`, as a pattern such as `train/{class}/*.jpg`, or
/// as the absolute path of a labels file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Classes {
    /// The class is the name of the directory that the file is in.
    #[default]
    Directory,
    /// The class is the part of the path at `{class}`. A file that does not fit has no class.
    Pattern(Pattern),
    /// The class is in a list of lines `path,class`. A file that is not listed has no class.
    Labels(PathBuf),
}

/// A path with one `{class}` in it. `*` matches any text without `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

/// The classes of files, by path within the dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(HashMap<Vec<u8>, String>);

fn wrong(message: String) -> Error {
    Error::new(ErrorKind::Config, message)
}

impl FromStr for Classes {
    type Err = Error;

    /// Parses one of the three forms.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if the text has none of them.
    fn from_str(text: &str) -> Result<Classes> {
        if text == "directory" {
            return Ok(Classes::Directory);
        }
        let forms = "write \"directory\", a pattern such as \"train/{class}/*.jpg\", or the \
                     absolute path of a labels file";
        match text.matches(CLASS).count() {
            1 if !text.starts_with('/') => Ok(Classes::Pattern(Pattern(text.to_owned()))),
            0 if text.starts_with('/') => Ok(Classes::Labels(PathBuf::from(text))),
            0 => Err(wrong(format!("{text:?} says nothing of classes; {forms}"))),
            1 => Err(wrong(format!("the pattern {text:?} is not of a path within the dataset"))),
            _ => Err(wrong(format!("the pattern {text:?} has {CLASS} more than once"))),
        }
    }
}

impl fmt::Display for Classes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Classes::Directory => f.write_str("directory"),
            Classes::Pattern(pattern) => f.write_str(&pattern.0),
            Classes::Labels(file) => file.display().fmt(f),
        }
    }
}

impl TryFrom<String> for Classes {
    type Error = Error;

    fn try_from(text: String) -> Result<Classes> {
        text.parse()
    }
}

impl From<Classes> for String {
    fn from(classes: Classes) -> String {
        classes.to_string()
    }
}

impl Classes {
    /// The class of the file at a path within the dataset, if it has one. `labels` is the content of the file
    /// of [`Classes::Labels`].
    pub fn of<'a>(&self, path: &'a [u8], labels: &'a Labels) -> Option<&'a [u8]> {
        match self {
            Classes::Directory => path.rsplit(|byte| *byte == b'/').nth(1),
            Classes::Pattern(pattern) => pattern.class(path),
            Classes::Labels(_) => labels.0.get(path).map(String::as_bytes),
        }
    }
}

impl Pattern {
    /// The class of a path. `None` if the path does not fit.
    fn class<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let mut parts = path.split(|byte| *byte == b'/');
        let mut class = None;
        for pattern in self.0.split('/') {
            let part = parts.next()?;
            match pattern.split_once(CLASS) {
                None => fits(pattern.as_bytes(), part).then_some(())?,
                Some((before, after)) => {
                    // The shortest class that fits, at the earliest beginning.
                    let begins = |at: &usize| fits(before.as_bytes(), &part[..*at]);
                    let begin = (0..part.len()).find(begins)?;
                    let ends = |at: &usize| fits(after.as_bytes(), &part[*at..]);
                    let end = (begin + 1..=part.len()).find(ends)?;
                    class = Some(&part[begin..end]);
                }
            }
        }
        parts.next().is_none().then_some(class)?
    }
}

/// Whether a name fits a pattern with `*` in it.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let mut pieces = pattern.split(|byte| *byte == b'*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = pieces.next_back() else { return rest.is_empty() };
    for piece in pieces {
        let found = (0..=rest.len()).find(|at| rest[*at..].starts_with(piece));
        let Some(at) = found else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

impl Labels {
    /// Reads lines `path,class`, as CSV. Paths are within the dataset.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if a line does not have two fields, a class cannot be the name of a directory,
    /// or a path has two classes.
    pub fn parse(text: &[u8]) -> Result<Labels> {
        let mut labels = Labels::default();
        let mut reader =
            csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text);
        for (record, line) in reader.byte_records().zip(1..) {
            let record = record.map_err(|error| wrong(format!("line {line}: {error}")))?;
            let (Some(path), Some(class), None) = (record.get(0), record.get(1), record.get(2))
            else {
                return Err(wrong(format!("line {line} is not of the form path,class")));
            };
            let class = String::from_utf8_lossy(class.trim_ascii()).into_owned();
            if class.is_empty() || class.contains(['/', '\0']) || class.starts_with('.') {
                let message = format!("line {line}: {class:?} cannot be the name of a class");
                return Err(wrong(message).hint("classes are served as directories"));
            }
            let path = path.trim_ascii();
            let before = labels.0.insert(path.to_vec(), class.clone());
            if let Some(before) = before.filter(|before| *before != class) {
                let path = String::from_utf8_lossy(path);
                let message = format!("line {line}: {path} is {class} and was {before} before");
                return Err(wrong(message));
            }
        }
        Ok(labels)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn class(classes: &str, path: &str) -> Option<String> {
        let (classes, labels) = (classes.parse::<Classes>().unwrap(), Labels::default());
        assert_eq!(classes.to_string().parse::<Classes>().unwrap(), classes);
        let class = classes.of(path.as_bytes(), &labels)?;
        Some(String::from_utf8_lossy(class).into_owned())
    }

    #[test]
    fn a_class_is_read_from_the_path() {
        for (classes, path, expected) in [
            ("directory", "train/cat/1.jpg", Some("cat")),
            ("directory", "1.jpg", None),
            ("train/{class}/*.jpg", "train/cat/1.jpg", Some("cat")),
            ("train/{class}/*.jpg", "train/cat/1.png", None),
            ("train/{class}/*.jpg", "val/cat/1.jpg", None),
            ("train/{class}/*.jpg", "train/cat/more/1.jpg", None),
            ("train/{class}/*.jpg", "train/cat", None),
            ("images/{class}_*.png", "images/dog_12_3.png", Some("dog")),
            ("*-{class}-*", "a-b-c", Some("b")),
            ("*-{class}-*", "a--c", None),
            ("{class}", "cat", Some("cat")),
        ] {
            assert_eq!(class(classes, path).as_deref(), expected, "{classes} of {path}");
        }
    }

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("a*c", "ac", true),
            ("a*a", "a", false),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxcyyb", false),
            ("abc", "abcd", false),
        ] {
            assert_eq!(fits(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn labels_are_read_and_mistakes_named() {
        let labels = Labels::parse(b"a/1.jpg,cat\n\"b,2.jpg\", dog \na/1.jpg,cat\n").unwrap();
        let classes: Classes = "/data/labels.csv".parse().unwrap();
        assert_eq!(labels.0.len(), 2);
        assert_eq!(classes.of(b"b,2.jpg", &labels), Some(b"dog".as_slice()));
        assert_eq!(classes.of(b"c", &labels), None);
        for (text, message) in [
            ("a,cat\nb\n", "line 2 is not of the form path,class"),
            ("a,b,c\n", "line 1 is not of the form path,class"),
            ("a,cat\na,dog\n", "line 2: a is dog and was cat before"),
            ("a,../x\n", "line 1: \"../x\" cannot be the name of a class"),
        ] {
            assert_eq!(Labels::parse(text.as_bytes()).unwrap_err().message(), message);
        }
    }

    #[test]
    fn a_text_without_a_rule_for_classes_is_refused() {
        for text in ["", "folder", "train/*/x.jpg", "{class}/{class}", "/{class}/x"] {
            assert!(text.parse::<Classes>().is_err(), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn nothing_panics(pattern in "[a*/{}]{0,9}(\\{class\\})?[a*/]{0,5}", path in "[a/b]{0,12}") {
            let classes = pattern.parse::<Classes>().unwrap_or_default();
            if let Some(class) = classes.of(path.as_bytes(), &Labels::default()) {
                prop_assert!(!class.contains(&b'/'));
            }
            let _ = Labels::parse(path.as_bytes());
        }
    }
}
