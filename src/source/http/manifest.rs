//! The text that names the files of a site.
//!
//! A line is a file: `PATH`, `PATH<TAB>SIZE` or `PATH<TAB>SIZE<TAB>ETAG`. Empty lines say nothing, and neither do lines
//! that begin with `#`.

use std::fmt;

use crate::source::object::bare_etag;

/// A file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    /// Relative to the directory of the manifest.
    pub(super) path: &'a str,
    pub(super) size: Option<u64>,
    /// Without quotes and without `W/`.
    pub(super) etag: Option<&'a str>,
}

/// Which line is wrong, and why.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LineFault {
    line: usize,
    why: String,
}

impl fmt::Display for LineFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of the manifest: {}", self.line, self.why)
    }
}

/// All files of a manifest.
///
/// # Errors
/// If a line is wrong.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<Line<'_>>, LineFault> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        LineFault { line, why: "it is not UTF-8".to_owned() }
    })?;
    let is_file = |text: &str| !text.is_empty() && !text.starts_with('#');
    let files = (1..).zip(text.lines()).filter(|(_, text)| is_file(text));
    files.map(|(line, text)| parse_line(text).map_err(|why| LineFault { line, why })).collect()
}

fn parse_line(text: &str) -> Result<Line<'_>, String> {
    let mut fields = text.split('\t');
    let path = fields.next().unwrap_or_default();
    let (size, etag) = (fields.next(), fields.next().map(bare_etag));
    if fields.next().is_some() {
        return Err("it has more than three fields".to_owned());
    }
    if path.is_empty() {
        return Err("it has no path".to_owned());
    }
    // No URL has one.
    if path.chars().any(|letter| letter.is_ascii_control()) {
        return Err(format!("the path {path:?} has a control character"));
    }
    if etag == Some("") {
        return Err("its ETag is empty".to_owned());
    }
    let number = |text: &str| {
        let number = text.parse::<u64>();
        number.map_err(|_| format!("its size {text:?} is no number"))
    };
    Ok(Line { path, size: size.map(number).transpose()?, etag })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_files() {
        let text = "# made by hand\na\n\nb c/ü.jpg\t0\r\nd\t17\t\"5e-1\"\n\
                    e\t18446744073709551615\tW/\"x\"";
        let line = |path, size, etag| Line { path, size, etag };
        let expected = [
            line("a", None, None),
            line("b c/ü.jpg", Some(0), None),
            line("d", Some(17), Some("5e-1")),
            line("e", Some(u64::MAX), Some("x")),
        ];
        assert_eq!(parse(text.as_bytes()).unwrap(), expected);
        assert_eq!(parse(b"").unwrap(), []);
    }

    #[test]
    fn a_wrong_line_is_named_with_the_reason() {
        for (text, why) in [
            (&b"a\nb\tmany"[..], "line 2 of the manifest: its size \"many\" is no number"),
            (b"a\t-1", "line 1 of the manifest: its size \"-1\" is no number"),
            (b"a\t18446744073709551616", "is no number"),
            (b"a\t\tetag", "its size \"\" is no number"),
            (b"# x\n\na\t1\t\"\"", "line 3 of the manifest: its ETag is empty"),
            (b"a\t1\tetag\t", "more than three fields"),
            (b"\t1", "it has no path"),
            (b"a\x07b", "has a control character"),
            (b"a\nb\xff\n", "line 2 of the manifest: it is not UTF-8"),
        ] {
            let said = parse(text).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
    }
}
