//! Edits of order files, line by line: cut, concatenate, interleave.
//!
//! An edit looks nothing up, because a line names the same sample in every order file. It emits lines as they
//! stand in the text, so it needs no memory beyond the text.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use super::PROBE_BYTES;
use super::builder::Place;
use super::text::{Line, Shape, decimal};
use crate::error::{Error, ErrorKind, Result};

/// The text form of an order file. A binary file becomes a text of numbers.
///
/// # Errors
/// When the length of a binary file is no multiple of 4 bytes.
pub fn as_text(bytes: &[u8]) -> Result<Cow<'_, [u8]>> {
    if !bytes[..bytes.len().min(PROBE_BYTES)].contains(&0) {
        return Ok(Cow::Borrowed(bytes));
    }
    let (entries, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(super::not_binary(bytes.len()));
    }
    let lines = entries.iter().map(|entry| format!("{}\n", u32::from_le_bytes(*entry)));
    Ok(Cow::Owned(lines.collect::<String>().into_bytes()))
}

/// The epochs of an order file, each with its lines.
#[derive(Clone, Debug)]
pub struct Written<'t> {
    epochs: Vec<Epoch<'t>>,
    /// Whether the samples are numbers, not paths.
    numbers: bool,
    unique: bool,
}

#[derive(Clone, Copy, Debug)]
struct Epoch<'t> {
    number: u64,
    text: &'t [u8],
    samples: u64,
}

/// Which samples of an epoch belong to a rank: `batch` of every `world * batch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The rank, from 0.
    pub rank: u64,
    /// Number of ranks, 1 or more.
    pub world: u64,
    /// How many consecutive samples belong to one rank, 1 or more.
    pub batch: u64,
}

impl Share {
    pub const WHOLE: Share = Share { rank: 0, world: 1, batch: 1 };

    fn has(self, place: u64) -> bool {
        place / self.batch % self.world == self.rank
    }
}

impl<'t> Written<'t> {
    /// Finds the epochs of a text.
    ///
    /// # Errors
    /// When epoch numbers do not count up by one, an epoch has no sample, or a directive stands after the
    /// first sample. The error names the line.
    pub fn read(text: &'t [u8]) -> Result<Self> {
        let mut written = Written {
            epochs: Vec::new(),
            numbers: Shape::of(text).first_path.is_none(),
            unique: false,
        };
        let mut epoch = Epoch { number: 0, text: &[], samples: 0 };
        let (mut from, mut at, mut labelled) = (0, 0, false);
        for (number, line) in (1..).zip(text.split_inclusive(|byte| *byte == b'\n')) {
            let place = Place::Line(number);
            let begin = at;
            at += line.len();
            match Line::of(without_end(line)) {
                Line::Sample(_) => epoch.samples += 1,
                Line::Epoch(label) => {
                    if labelled || epoch.samples > 0 {
                        written.push(Epoch { text: &text[from..begin], ..epoch }, place)?;
                    }
                    if labelled && epoch.number.checked_add(1) != Some(label) {
                        let before = epoch.number;
                        return Err(place.error(format!("epoch {label} follows epoch {before}")));
                    }
                    epoch = Epoch { number: label, text: &[], samples: 0 };
                    (from, labelled) = (at, true);
                }
                Line::Unique if epoch.samples + written.epochs.len() as u64 == 0 => {
                    written.unique = true;
                }
                Line::Unique => {
                    return Err(place.error("a directive has to stand before the first sample"));
                }
                // `# count` is dropped: the edited epochs have other lengths.
                Line::Nothing | Line::Count(_) | Line::BadNumber(_) => {}
            }
        }
        written.push(Epoch { text: &text[from..], ..epoch }, Place::Line(1))?;
        Ok(written)
    }

    fn push(&mut self, epoch: Epoch<'t>, place: Place) -> Result<()> {
        if epoch.samples == 0 {
            return Err(place.error(format!("epoch {} ends without a sample", epoch.number)));
        }
        self.epochs.push(epoch);
        Ok(())
    }

    fn numbers_of_epochs(&self) -> Range<u64> {
        let first = self.epochs.first().map_or(0, |epoch| epoch.number);
        first..first + self.epochs.len() as u64
    }

    /// Emits the samples of `epochs` that lie within `places` and belong to `share`. Epochs keep their
    /// numbers.
    ///
    /// # Errors
    /// When none of the epochs exists, or nothing is left of an epoch.
    pub fn cut(
        &self,
        epochs: Range<u64>,
        places: Range<u64>,
        share: Share,
        emit: &mut impl FnMut(&[u8]),
    ) -> Result<()> {
        let wanted: Vec<&Epoch<'_>> =
            self.epochs.iter().filter(|epoch| epochs.contains(&epoch.number)).collect();
        if wanted.is_empty() {
            let Range { start, end } = self.numbers_of_epochs();
            let message = format!("there are epochs {start}..{end} in the file, and none of these");
            return Err(Error::new(ErrorKind::Order, message));
        }
        begin(self.unique, emit);
        for epoch in wanted {
            let mut left = 0;
            emit(format!("# epoch {}", epoch.number).as_bytes());
            let part = (0..).zip(epoch.lines()).skip_while(|(place, _)| *place < places.start);
            for (place, line) in part.take_while(|(place, _)| *place < places.end) {
                if share.has(place - places.start) {
                    self.emit(line, emit);
                    left += 1;
                }
            }
            if left == 0 {
                let (number, samples) = (epoch.number, epoch.samples);
                let message = format!("nothing is left of the {samples} samples of epoch {number}");
                return Err(Error::new(ErrorKind::Order, message));
            }
        }
        Ok(())
    }

    fn emit(&self, line: &[u8], emit: &mut impl FnMut(&[u8])) {
        // With `./` the name stays a path. If only such names are left, they would read as numbers.
        if !self.numbers && decimal(line.trim_ascii()).is_some() {
            emit(&[b"./", line].concat());
        } else {
            emit(line);
        }
    }
}

impl<'t> Epoch<'t> {
    fn lines(&self) -> impl Iterator<Item = &'t [u8]> + use<'t> {
        let lines = self.text.split(|byte| *byte == b'\n');
        lines.filter(|line| matches!(Line::of(without_end(line)), Line::Sample(_)))
    }
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn begin(unique: bool, emit: &mut impl FnMut(&[u8])) {
    if unique {
        emit(b"# unique");
    }
}

fn refuse_mixed(files: &[Written<'_>]) -> Result<()> {
    if files.iter().any(|file| file.numbers != files[0].numbers) {
        let message = "some of the files hold numbers and others paths";
        let hint = "`belady order show FILE DATASET` writes any of them with paths";
        return Err(Error::new(ErrorKind::Order, message).hint(hint));
    }
    Ok(())
}

/// Emits the epochs of all files in sequence. Their numbers continue from the first epoch of the first file.
///
/// # Errors
/// When some files hold numbers and others hold paths.
pub fn concatenate(files: &[Written<'_>], emit: &mut impl FnMut(&[u8])) -> Result<()> {
    refuse_mixed(files)?;
    begin(files.iter().all(|file| file.unique), emit);
    let first = files.first().map_or(0, |file| file.numbers_of_epochs().start);
    let epochs = files.iter().flat_map(|file| file.epochs.iter().map(move |epoch| (file, epoch)));
    for (number, (file, epoch)) in (first..).zip(epochs) {
        emit(format!("# epoch {number}").as_bytes());
        epoch.lines().for_each(|line| file.emit(line, emit));
    }
    Ok(())
}

/// Merges the orders of several ranks into one. Each epoch takes `batch` samples of the first file, then of
/// the second, and so on in turn until all files end. With `once`, a sample that the epoch already has is
/// left out: samplers repeat such samples to give every rank the same number.
///
/// # Errors
/// When the files do not have the same epochs, or some hold numbers and others hold paths.
pub fn interleave(
    files: &[Written<'_>],
    batch: u64,
    once: bool,
    emit: &mut impl FnMut(&[u8]),
) -> Result<()> {
    refuse_mixed(files)?;
    let Some(first) = files.first() else { return Ok(()) };
    let expected = first.numbers_of_epochs();
    if let Some(found) = files.iter().map(Written::numbers_of_epochs).find(|e| *e != expected) {
        let message = format!("one file has the epochs {expected:?}, another {found:?}");
        let hint = "`belady order cut --epochs` takes those out that all have";
        return Err(Error::new(ErrorKind::Order, message).hint(hint));
    }
    begin(once, emit);
    for (at, number) in expected.enumerate() {
        emit(format!("# epoch {number}").as_bytes());
        let mut ranks: Vec<_> = files.iter().map(|file| file.epochs[at].lines().fuse()).collect();
        let (mut known, mut goes_on) = (HashSet::new(), true);
        while goes_on {
            goes_on = false;
            for (file, rank) in files.iter().zip(&mut ranks) {
                for line in rank.take(batch as usize) {
                    goes_on = true;
                    if !once || known.insert(without_end(line)) {
                        file.emit(line, emit);
                    }
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(edit: impl FnOnce(&mut dyn FnMut(&[u8])) -> Result<()>) -> Result<String> {
        let mut out = String::new();
        edit(&mut |line: &[u8]| out += &format!("{}|", String::from_utf8_lossy(line)))?;
        Ok(out)
    }

    fn cut(text: &str, epochs: Range<u64>, places: Range<u64>, share: Share) -> Result<String> {
        let written = Written::read(text.as_bytes())?;
        lines(|mut emit| written.cut(epochs, places, share, &mut emit))
    }

    fn merged(ranks: &[&str], batch: u64, once: bool) -> Result<String> {
        let files: Result<Vec<_>> = ranks.iter().map(|t| Written::read(t.as_bytes())).collect();
        let files = files?;
        lines(|mut emit| interleave(&files, batch, once, &mut emit))
    }

    const ALL: Range<u64> = 0..u64::MAX;

    #[test]
    fn parts_are_cut_out() {
        let text = "# unique\n# epoch 3\na\nb\r\n\n# said\nc\nd\n# epoch 4\ne\nf\ng\nh";
        let whole = cut(text, ALL, ALL, Share::WHOLE).unwrap();
        assert_eq!(whole, "# unique|# epoch 3|a|b\r|c|d|# epoch 4|e|f|g|h|");
        assert_eq!(cut(text, 4..5, 1..3, Share::WHOLE).unwrap(), "# unique|# epoch 4|f|g|");
        let second = Share { rank: 1, world: 2, batch: 1 };
        assert_eq!(cut(text, 4..9, ALL, second).unwrap(), "# unique|# epoch 4|f|h|");
        let blocks = Share { batch: 2, ..second };
        assert_eq!(cut(text, 3..4, ALL, blocks).unwrap(), "# unique|# epoch 3|c|d|");
        let none = cut(text, 5..9, ALL, Share::WHOLE).unwrap_err();
        assert!(none.message().contains("epochs 3..5"), "{none}");
        assert!(cut(text, ALL, 4..9, Share::WHOLE).unwrap_err().message().contains("nothing"));
    }

    #[test]
    fn a_name_that_is_a_number_stays_a_name() {
        assert_eq!(cut("12\nx\n", ALL, 0..1, Share::WHOLE).unwrap(), "# epoch 0|./12|");
        assert_eq!(cut("12\n13\n", ALL, 0..1, Share::WHOLE).unwrap(), "# epoch 0|12|");
    }

    #[test]
    fn ranks_take_turns() {
        let (first, second) = ("a\nc\ne\n", "b\nd\na\n");
        assert_eq!(merged(&[first, second], 1, false).unwrap(), "# epoch 0|a|b|c|d|e|a|");
        assert_eq!(merged(&[first, second], 2, true).unwrap(), "# unique|# epoch 0|a|c|b|d|e|");
        assert_eq!(merged(&["a\nb\nc\n", "d\n"], 1, false).unwrap(), "# epoch 0|a|d|b|c|");
        let other = merged(&[first, "# epoch 1\nx\n"], 1, false).unwrap_err();
        assert!(other.message().contains("0..1, another 1..2"), "{other}");
        assert!(merged(&[first, "1\n2\n"], 1, false).unwrap_err().message().contains("numbers"));
    }

    #[test]
    fn what_was_cut_by_rank_merges_to_what_it_was() {
        let text: String = (0..100).map(|n| format!("file{n}\n")).collect();
        let whole = cut(&text, ALL, ALL, Share::WHOLE).unwrap();
        for batch in [1, 8] {
            let parts: Vec<String> = (0..3)
                .map(|rank| cut(&text, ALL, ALL, Share { rank, world: 3, batch }).unwrap())
                .map(|part| part.replace('|', "\n"))
                .collect();
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            assert_eq!(merged(&parts, batch, false).unwrap(), whole);
        }
    }

    #[test]
    fn epochs_are_numbered_on() {
        let texts = ["# epoch 7\na\n", "b\nc\n", "# epoch 0\nd\n# epoch 1\ne\n"];
        let files: Vec<_> = texts.iter().map(|t| Written::read(t.as_bytes()).unwrap()).collect();
        let all = lines(|mut emit| concatenate(&files, &mut emit)).unwrap();
        assert_eq!(all, "# epoch 7|a|# epoch 8|b|c|# epoch 9|d|# epoch 10|e|");
    }

    #[test]
    fn what_is_wrong_is_said_with_the_line() {
        let wrong = |text: &str| Written::read(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(wrong("# epoch 1\na\n# epoch 3\nb\n"), "line 3: epoch 3 follows epoch 1");
        assert_eq!(wrong("# epoch 1\n# epoch 2\nb\n"), "line 2: epoch 1 ends without a sample");
        assert!(wrong("a\n# unique\n").starts_with("line 2: a directive"));
        assert!(wrong("").contains("without a sample"));
        assert_eq!(&*as_text(&[1, 0, 0, 0, 0, 1, 0, 0]).unwrap(), b"1\n256\n");
        assert!(as_text(&[1, 0, 0]).is_err());
    }
}
