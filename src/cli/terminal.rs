//! The one place that prints for people.
//!
//! A file name may hold any byte but a slash and a NUL. So it may hold the sequences by which a terminal
//! changes its title, its colours, or what it sends as input. All text for people passes here, and control
//! characters are shown as `\x1b`. Data for other programs are printed as they are, unless they go to a
//! terminal.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

/// Prints a line to stdout. It is no error if the reader has gone away.
pub(super) fn say(line: impl Display) {
    let _ = Escaping(io::stdout()).write_all(format!("{line}\n").as_bytes());
}

pub(super) fn warn(line: impl Display) {
    let _ = Escaping(io::stderr()).write_all(format!("{line}\n").as_bytes());
}

/// Prints a value as one line of JSON.
pub(super) fn say_json(value: &impl serde::Serialize) {
    let text = serde_json::to_string(value).unwrap_or_default();
    // JSON itself leaves some control characters as they are.
    let _ = writeln!(io::stdout(), "{}", replaced(&text, |c| format!("\\u{:04x}", u32::from(c))));
}

/// Prints a line of data to stdout, such as names for another program.
pub(super) fn say_data(line: &str) {
    match is_on_terminal() {
        true => say(line),
        false => drop(writeln!(io::stdout(), "{line}")),
    }
}

/// Whether stdout is a terminal.
pub(super) fn is_on_terminal() -> bool {
    io::stdout().is_terminal()
}

/// A text as a terminal may show it.
pub(super) fn escaped(text: &str) -> String {
    replaced(text, |c| match c.is_ascii() {
        true => format!("\\x{:02x}", u32::from(c)),
        false => format!("\\u{{{:x}}}", u32::from(c)),
    })
}

/// A text whose control characters are replaced. Line breaks and tabs stay.
fn replaced(text: &str, by: impl Fn(char) -> String) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() && !matches!(c, '\n' | '\t') {
            true => out += &by(c),
            false => out.push(c),
        }
    }
    out
}

/// Escapes what is written to it. Each character must be written as a whole.
#[derive(Debug)]
pub(super) struct Escaping<W>(pub(super) W);

impl<W: Write> Write for Escaping<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut out = String::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            out += &escaped(chunk.valid());
            chunk.invalid().iter().for_each(|byte| out += &format!("\\x{byte:02x}"));
        }
        self.0.write_all(out.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown() {
        for (text, shown) in [
            ("a\tb\nc", "a\tb\nc"),
            ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
            ("a\rb\x7f\0", "a\\x0db\\x7f\\x00"),
            // Terminals take these for sequences as well.
            ("\u{9b}31mé漢", "\\u{9b}31mé漢"),
        ] {
            assert_eq!(escaped(text), shown);
        }
    }

    #[test]
    fn what_is_no_text_is_shown_by_its_bytes() {
        let mut out = Escaping(Vec::new());
        assert_eq!(out.write(b"a\x9b\xff/b\x1b\n").unwrap(), 7);
        assert_eq!(out.0, b"a\\x9b\\xff/b\\x1b\n");
    }
}
