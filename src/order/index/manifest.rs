//! Manifests: files that list the files of a dataset, as text, CSV or JSON.

use serde_json::Value;

use super::Filter;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::FileId;
use crate::order::listing::{Listing, Lookup};

/// A file that lists a dataset as a job reads it. The order of its entries numbers the files.
///
/// Paths are relative to the dataset's directory, or absolute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manifest<'a> {
    pub text: &'a [u8],
    pub format: Format,
    /// Where the path stands in an entry.
    ///
    /// - In text: which word of the line, from 0. `None`: the whole line is the path.
    /// - In CSV: the column's name in the first line, or its number from 0. `None`: the first column that has
    ///   paths of the dataset.
    /// - In JSON: the names that lead to the path, with dots between them. Arrays need no name.
    pub column: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One entry a line.
    Text,
    /// Comma-separated values, quoted if necessary.
    Csv,
    /// The same, separated by tabs.
    Tsv,
    /// One JSON document, or several in sequence (JSON lines).
    Json,
}

impl Format {
    /// The format that the ending of a file's name means. An unknown ending means text.
    pub fn of_name(name: &str) -> Format {
        let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
        match ending.as_deref() {
            Some("csv") => Format::Csv,
            Some("tsv") => Format::Tsv,
            Some("json" | "jsonl" | "ndjson") => Format::Json,
            _ => Format::Text,
        }
    }
}

impl Manifest<'_> {
    /// The files in the order of the entries, without those that `filter` excludes.
    ///
    /// # Errors
    /// When the text is not of its format, has no such column, or names a file that does not exist. The error
    /// names the line or the entry.
    pub(super) fn files(&self, listing: &Listing<'_>, filter: &Filter) -> Result<Vec<FileId>> {
        let mut files = Files::new(listing, filter);
        match self.format {
            Format::Text => self.text(&mut files)?,
            Format::Csv => self.separated(b',', &mut files)?,
            Format::Tsv => self.separated(b'\t', &mut files)?,
            Format::Json => self.json(&mut files)?,
        }
        Ok(files.found)
    }

    fn text(&self, files: &mut Files<'_>) -> Result<()> {
        let word = self.column.map(|column| {
            column.parse::<usize>().map_err(|_| {
                let error = wrong(format!("column={column}: the columns of a text have no names"));
                error.hint("column=0 is the first word of a line; a list in CSV ends in .csv")
            })
        });
        let word = word.transpose()?;
        for (number, line) in (1u64..).zip(self.text.split(|byte| *byte == b'\n')) {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            let path = match word {
                None => line,
                Some(_) if words.clone().next().is_none() => continue,
                Some(at) => {
                    words.nth(at).ok_or_else(|| wrong(format!("line {number} has no word {at}")))?
                }
            };
            files.add(path, || format!("line {number}"))?;
        }
        Ok(())
    }

    fn separated(&self, delimiter: u8, files: &mut Files<'_>) -> Result<()> {
        let mut reader = csv::ReaderBuilder::new();
        let mut reader =
            reader.delimiter(delimiter).has_headers(false).flexible(true).from_reader(self.text);
        let mut at: Option<usize> = None;
        for (number, record) in (0u64..).zip(reader.byte_records()) {
            let record = record.map_err(|error| wrong(format!("not CSV: {error}")))?;
            let line = record.position().map_or(number + 1, |position| position.line());
            // One of the first two lines tells which column has the paths. The first may be a header.
            if number == 0 || at.is_none() {
                let (column, is_header) = self.column_of(&record, number, files)?;
                at = column;
                if is_header {
                    continue;
                }
            }
            let path = at.and_then(|at| record.get(at));
            let path = path.ok_or_else(|| wrong(format!("line {line} has no such column")))?;
            files.add(path, || format!("line {line}"))?;
        }
        Ok(())
    }

    /// Finds the column of the paths in one of the first two records, and whether that record is a header.
    fn column_of(
        &self,
        record: &csv::ByteRecord,
        number: u64,
        files: &Files<'_>,
    ) -> Result<(Option<usize>, bool)> {
        let known = |cell: &[u8]| files.find(cell).is_some();
        match self.column {
            Some(column) => match column.parse::<usize>() {
                Ok(at) => Ok((Some(at), !record.get(at).is_some_and(known))),
                Err(_) => {
                    let at = record.iter().position(|cell| cell == column.as_bytes());
                    let at = at.ok_or_else(|| wrong(format!("there is no column '{column}'")))?;
                    Ok((Some(at), true))
                }
            },
            None => match record.iter().position(known) {
                None if number > 0 => {
                    let error = wrong("neither of the first two lines has a path of the dataset");
                    Err(error
                        .hint("column= names the column, root= what its paths are relative to"))
                }
                at => Ok((at, at.is_none())),
            },
        }
    }

    fn json(&self, files: &mut Files<'_>) -> Result<()> {
        let names: Vec<&str> = self.column.map_or(Vec::new(), |column| column.split('.').collect());
        let documents = serde_json::Deserializer::from_slice(self.text).into_iter::<Value>();
        for document in documents {
            let document = document.map_err(|error| wrong(format!("not JSON: {error}")))?;
            paths_in(&document, &names, files)?;
        }
        Ok(())
    }
}

/// Adds the paths that `names` lead to. Numbers and other values are skipped, because lists of pairs have
/// labels among them.
fn paths_in(value: &Value, names: &[&str], files: &mut Files<'_>) -> Result<()> {
    match (value, names) {
        (Value::Array(values), _) => {
            values.iter().try_for_each(|value| paths_in(value, names, files))
        }
        (Value::Object(fields), [name, rest @ ..]) => match fields.get(*name) {
            Some(value) => paths_in(value, rest, files),
            None => Err(wrong(format!("entry {}: there is no '{name}'", files.entries + 1))),
        },
        (Value::Object(fields), []) => {
            let error = wrong("an object stands where a path should");
            let names: Vec<_> = fields.keys().take(5).map(String::as_str).collect();
            Err(error.hint(format!("column= says which of its values it is: {}", names.join(", "))))
        }
        (Value::String(path), []) => {
            let entry = files.entries + 1;
            files.add(path.as_bytes(), || format!("entry {entry}"))
        }
        (_, []) => Ok(()),
        (_, [name, ..]) => {
            Err(wrong(format!("entry {}: '{name}' of what is no object", files.entries + 1)))
        }
    }
}

fn wrong(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Order, message)
}

/// The files that a manifest has named so far.
struct Files<'l> {
    lookup: Lookup<'l>,
    filter: &'l Filter,
    found: Vec<FileId>,
    entries: u64,
}

impl<'l> Files<'l> {
    fn new(listing: &'l Listing<'l>, filter: &'l Filter) -> Self {
        Files { lookup: Lookup::new(listing), filter, found: Vec::new(), entries: 0 }
    }

    /// Adds the file of a path, unless the path is empty or excluded.
    fn add(&mut self, path: &[u8], location: impl Fn() -> String) -> Result<()> {
        self.entries += 1;
        if path.is_empty() || !self.filter.takes(path, &[]) {
            return Ok(());
        }
        let file = self.find(path).ok_or_else(|| self.unknown(path, &location()))?;
        self.found.push(file);
        Ok(())
    }

    fn find(&self, path: &[u8]) -> Option<FileId> {
        self.lookup.find(&self.with_root(path)).map(|entry| entry.file)
    }

    /// The path with the dataset's directory before it.
    fn with_root(&self, path: &[u8]) -> Vec<u8> {
        let root = self.filter.directory().as_bytes();
        if root.is_empty() || path.starts_with(b"/") {
            return path.to_vec();
        }
        [root, b"/", path.strip_prefix(b"./").unwrap_or(path)].concat()
    }

    /// The error about an entry that names no file.
    fn unknown(&self, path: &[u8], location: &str) -> Error {
        let shown = String::from_utf8_lossy(path);
        let error = wrong(format!("{location}: unknown path '{shown}'"));
        let first = path.split(|byte| b" \t,;".contains(byte)).next().unwrap_or(path);
        if first.len() < path.len() && self.find(first).is_some() {
            return error
                .hint("column=0 takes the first word of a line; a list in CSV ends in .csv");
        }
        error.hint(self.lookup.hint(&self.with_root(path)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{IndexOrder, index_order};
    use super::*;
    use crate::order::Entry;

    const PATHS: [&str; 4] = ["train/a.jpg", "train/b c.jpg", "val/a.jpg", "train/d,e.png"];

    fn read(name: &str, text: &str, column: Option<&str>, root: &str) -> Result<Vec<u32>> {
        let entry = |(row, path): (usize, &&'static str)| Entry {
            path: path.as_bytes(),
            file: FileId(row as u32),
            size: 1,
        };
        let listing = Listing::new(PATHS.iter().enumerate().map(entry).collect());
        let manifest = Manifest { text: text.as_bytes(), format: Format::of_name(name), column };
        let filter = Filter { root: root.into(), ext: Vec::new() };
        let files = index_order(&listing, IndexOrder::Manifest(manifest), &filter)?;
        Ok(files.into_iter().map(|file| file.0).collect())
    }

    #[test]
    fn text_is_taken_as_it_stands() {
        let read = |text, column, root| read("m.txt", text, column, root).unwrap();
        assert_eq!(read("b c.jpg\r\n\n./a.jpg\nb c.jpg", None, "train"), [1, 0, 1]);
        assert_eq!(read("val/a.jpg 3\n\n  train/a.jpg\t0\n", Some("0"), ""), [2, 0]);
        assert_eq!(read("7 val/a.jpg\n", Some("1"), ""), [2]);
    }

    #[test]
    fn csv_has_its_column_found_or_named() {
        let read = |name, text, column| read(name, text, column, "train").unwrap();
        assert_eq!(read("m.csv", "label,file\n3,a.jpg\n4,\"d,e.png\"\n", None), [0, 3]);
        assert_eq!(read("m.csv", "a.jpg,1\nb c.jpg,2", None), [0, 1]);
        assert_eq!(read("m.CSV", "x,file\na.jpg,b c.jpg", Some("file")), [1]);
        assert_eq!(read("m.tsv", "x\tfile\n1\ta.jpg", Some("1")), [0]);
    }

    #[test]
    fn json_is_gone_through_to_the_paths() {
        let read = |name, text, column| read(name, text, column, "").unwrap();
        assert_eq!(read("m.json", r#"["val/a.jpg", "train/a.jpg"]"#, None), [2, 0]);
        assert_eq!(read("m.json", r#"[["val/a.jpg", 3], ["train/a.jpg", 4]]"#, None), [2, 0]);
        let coco = r#"{"images": [{"file_name": "val/a.jpg", "id": 1}], "info": {}}"#;
        assert_eq!(read("m.json", coco, Some("images.file_name")), [2]);
        let lines = "{\"p\": \"train/a.jpg\"}\n{\"p\": \"val/a.jpg\"}\n";
        assert_eq!(read("m.jsonl", lines, Some("p")), [0, 2]);
    }

    #[test]
    fn errors_name_the_location() {
        for (name, text, column, expected) in [
            ("m.txt", "train/a.jpg\n\nc\n", None, "line 3: unknown path 'c'"),
            ("m.txt", "train/a.jpg 0\n", None, "column=0"),
            ("m.txt", "train/a.jpg\n", Some("1"), "line 1 has no word 1"),
            ("m.txt", "train/a.jpg\n", Some("file"), "have no names"),
            ("m.txt", "", None, "index is empty"),
            ("m.csv", "a,b\nc,d\n", None, "neither of the first two lines"),
            ("m.csv", "a,b\n", Some("c"), "there is no column 'c'"),
            ("m.csv", "f,l\ntrain/a.jpg,1\nx\n", None, "line 3: unknown path 'x'"),
            ("m.csv", "l,f\n1,train/a.jpg\nx\n", Some("f"), "line 3 has no such column"),
            ("m.json", "[{\"a\": \"b\"}]", None, "which of its values it is: a"),
            ("m.json", "[{\"a\": \"b\"}]", Some("c"), "entry 1: there is no 'c'"),
            ("m.json", "[\"train/a.jpg\", \"b\"]", None, "entry 2: unknown path 'b'"),
            ("m.json", "[1, 2", None, "not JSON"),
            ("m.json", "[3]", Some("a"), "'a' of what is no object"),
        ] {
            let error = read(name, text, column, "").unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
