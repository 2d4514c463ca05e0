//! Edits of order files, line by line: cut, concatenate, interleave.
//!
//! An edit looks nothing up, because a line names the same sample in every order file. It emits lines as they
//! stand in the text, so it needs no memory beyond the text.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use super::PROBE_BYTES;
use super::builder::InputLocation;
use super::text::{Line, Shape, bad_number, count_lines, decimal};
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
        return Err(super::partial_entry(bytes.len()));
    }
    let lines = entries.iter().map(|entry| format!("{}\n", u32::from_le_bytes(*entry)));
    Ok(Cow::Owned(lines.collect::<String>().into_bytes()))
}

/// The text of an order file, divided into its epochs.
#[derive(Clone, Debug)]
pub struct OrderFile<'t> {
    epochs: Vec<Epoch<'t>>,
    /// Whether the samples are numbers, not paths.
    has_numbers: bool,
    /// Whether the file says `# unique`.
    is_unique: bool,
}

#[derive(Clone, Copy, Debug)]
struct Epoch<'t> {
    number: u64,
    text: &'t [u8],
    samples: u64,
}

/// Which samples of an epoch belong to a rank: `batch` of every `world * batch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankShare {
    /// The rank, from 0.
    pub rank: u64,
    /// Number of ranks, 1 or more.
    pub world: u64,
    /// How many consecutive samples belong to one rank, 1 or more.
    pub batch: u64,
}

impl RankShare {
    pub const WHOLE: RankShare = RankShare { rank: 0, world: 1, batch: 1 };

    fn has(self, place: u64) -> bool {
        place / self.batch % self.world == self.rank
    }
}

impl<'t> OrderFile<'t> {
    /// Finds the epochs of a text.
    ///
    /// # Errors
    /// When epoch numbers do not count up by one, an epoch has no sample, or a directive lacks its number or
    /// stands after the first sample. The error names the line.
    pub fn read(text: &'t [u8]) -> Result<Self> {
        let mut file = OrderFile {
            epochs: Vec::new(),
            has_numbers: Shape::of(text).first_path.is_none(),
            is_unique: false,
        };
        let mut epoch = Epoch { number: 0, text: &[], samples: 0 };
        let (mut from, mut at, mut labelled) = (0, 0, false);
        for (number, line) in (1..).zip(text.split_inclusive(|byte| *byte == b'\n')) {
            let location = InputLocation::Line(number);
            let begin = at;
            at += line.len();
            match Line::of(without_end(line)) {
                Line::Sample(_) => epoch.samples += 1,
                Line::Epoch(label) => {
                    if labelled || epoch.samples > 0 {
                        file.push(Epoch { text: &text[from..begin], ..epoch }, location)?;
                    }
                    if labelled && epoch.number.checked_add(1) != Some(label) {
                        let before = epoch.number;
                        return Err(location.error(format!("epoch {label} follows epoch {before}")));
                    }
                    epoch = Epoch { number: label, text: &[], samples: 0 };
                    (from, labelled) = (at, true);
                }
                Line::Unique if epoch.samples + file.epochs.len() as u64 == 0 => {
                    file.is_unique = true;
                }
                Line::Unique => {
                    return Err(location.error("a directive has to stand before the first sample"));
                }
                // `# count` is dropped: the edited epochs have other lengths.
                Line::Nothing | Line::Count(_) => {}
                Line::BadNumber(line) => return Err(bad_number(line, location)),
            }
        }
        let last_line = InputLocation::Line(count_lines(text));
        file.push(Epoch { text: &text[from..], ..epoch }, last_line)?;
        Ok(file)
    }

    fn push(&mut self, epoch: Epoch<'t>, location: InputLocation) -> Result<()> {
        if epoch.samples == 0 {
            return Err(location.error(format!("epoch {} ends without a sample", epoch.number)));
        }
        self.epochs.push(epoch);
        Ok(())
    }

    fn epoch_numbers(&self) -> Range<u64> {
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
        share: RankShare,
        emit: &mut impl FnMut(&[u8]),
    ) -> Result<()> {
        let wanted: Vec<&Epoch<'_>> =
            self.epochs.iter().filter(|epoch| epochs.contains(&epoch.number)).collect();
        if wanted.is_empty() {
            let Range { start, end } = self.epoch_numbers();
            let message = format!("there are epochs {start}..{end} in the file, and none of these");
            return Err(Error::new(ErrorKind::Order, message));
        }
        emit_unique(self.is_unique, emit);
        for epoch in wanted {
            let mut left = 0;
            emit(format!("# epoch {}", epoch.number).as_bytes());
            let part = (0..).zip(epoch.lines()).skip_while(|(place, _)| *place < places.start);
            for (place, line) in part.take_while(|(place, _)| *place < places.end) {
                if share.has(place - places.start) {
                    self.emit_sample(line, emit);
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

    fn emit_sample(&self, line: &[u8], emit: &mut impl FnMut(&[u8])) {
        // With `./` the name stays a path. If only such names are left, they would read as numbers.
        if !self.has_numbers && decimal(line.trim_ascii()).is_some() {
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

fn emit_unique(is_unique: bool, emit: &mut impl FnMut(&[u8])) {
    if is_unique {
        emit(b"# unique");
    }
}

fn refuse_mixed(files: &[OrderFile<'_>]) -> Result<()> {
    if files.iter().any(|file| file.has_numbers != files[0].has_numbers) {
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
pub fn concatenate(files: &[OrderFile<'_>], emit: &mut impl FnMut(&[u8])) -> Result<()> {
    refuse_mixed(files)?;
    emit_unique(files.iter().all(|file| file.is_unique), emit);
    let first = files.first().map_or(0, |file| file.epoch_numbers().start);
    let epochs = files.iter().flat_map(|file| file.epochs.iter().map(move |epoch| (file, epoch)));
    for (number, (file, epoch)) in (first..).zip(epochs) {
        emit(format!("# epoch {number}").as_bytes());
        epoch.lines().for_each(|line| file.emit_sample(line, emit));
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
    files: &[OrderFile<'_>],
    batch: u64,
    once: bool,
    emit: &mut impl FnMut(&[u8]),
) -> Result<()> {
    refuse_mixed(files)?;
    let Some(first) = files.first() else { return Ok(()) };
    let expected = first.epoch_numbers();
    if let Some(found) = files.iter().map(OrderFile::epoch_numbers).find(|e| *e != expected) {
        let message = format!("one file has the epochs {expected:?}, another {found:?}");
        let hint = "`belady order cut --epochs` takes those out that all have";
        return Err(Error::new(ErrorKind::Order, message).hint(hint));
    }
    emit_unique(once, emit);
    for (at, number) in expected.enumerate() {
        emit(format!("# epoch {number}").as_bytes());
        let mut ranks: Vec<_> = files.iter().map(|file| file.epochs[at].lines().fuse()).collect();
        let (mut emitted, mut any_left) = (HashSet::new(), true);
        while any_left {
            any_left = false;
            for (file, rank) in files.iter().zip(&mut ranks) {
                for line in rank.take(batch as usize) {
                    any_left = true;
                    if !once || emitted.insert(without_end(line)) {
                        file.emit_sample(line, emit);
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

    fn cut(text: &str, epochs: Range<u64>, places: Range<u64>, share: RankShare) -> Result<String> {
        let file = OrderFile::read(text.as_bytes())?;
        lines(|mut emit| file.cut(epochs, places, share, &mut emit))
    }

    fn merged(ranks: &[&str], batch: u64, once: bool) -> Result<String> {
        let files: Result<Vec<_>> = ranks.iter().map(|t| OrderFile::read(t.as_bytes())).collect();
        let files = files?;
        lines(|mut emit| interleave(&files, batch, once, &mut emit))
    }

    const ALL: Range<u64> = 0..u64::MAX;

    #[test]
    fn parts_are_cut_out() {
        let text = "# unique\n# epoch 3\na\nb\r\n\n# said\nc\nd\n# epoch 4\ne\nf\ng\nh";
        let whole = cut(text, ALL, ALL, RankShare::WHOLE).unwrap();
        assert_eq!(whole, "# unique|# epoch 3|a|b\r|c|d|# epoch 4|e|f|g|h|");
        assert_eq!(cut(text, 4..5, 1..3, RankShare::WHOLE).unwrap(), "# unique|# epoch 4|f|g|");
        let second = RankShare { rank: 1, world: 2, batch: 1 };
        assert_eq!(cut(text, 4..9, ALL, second).unwrap(), "# unique|# epoch 4|f|h|");
        let in_pairs = RankShare { batch: 2, ..second };
        assert_eq!(cut(text, 3..4, ALL, in_pairs).unwrap(), "# unique|# epoch 3|c|d|");
        let none = cut(text, 5..9, ALL, RankShare::WHOLE).unwrap_err();
        assert!(none.message().contains("epochs 3..5"), "{none}");
        assert!(cut(text, ALL, 4..9, RankShare::WHOLE).unwrap_err().message().contains("nothing"));
    }

    #[test]
    fn a_name_that_is_a_number_stays_a_name() {
        assert_eq!(cut("12\nx\n", ALL, 0..1, RankShare::WHOLE).unwrap(), "# epoch 0|./12|");
        assert_eq!(cut("12\n13\n", ALL, 0..1, RankShare::WHOLE).unwrap(), "# epoch 0|12|");
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
    fn ranks_that_were_cut_apart_merge_to_the_whole() {
        let text: String = (0..100).map(|n| format!("file{n}\n")).collect();
        let whole = cut(&text, ALL, ALL, RankShare::WHOLE).unwrap();
        for batch in [1, 8] {
            let parts: Vec<String> = (0..3)
                .map(|rank| cut(&text, ALL, ALL, RankShare { rank, world: 3, batch }).unwrap())
                .map(|part| part.replace('|', "\n"))
                .collect();
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            assert_eq!(merged(&parts, batch, false).unwrap(), whole);
        }
    }

    #[test]
    fn epochs_are_numbered_on() {
        let texts = ["# epoch 7\na\n", "b\nc\n", "# epoch 0\nd\n# epoch 1\ne\n"];
        let files: Vec<_> = texts.iter().map(|t| OrderFile::read(t.as_bytes()).unwrap()).collect();
        let all = lines(|mut emit| concatenate(&files, &mut emit)).unwrap();
        assert_eq!(all, "# epoch 7|a|# epoch 8|b|c|# epoch 9|d|# epoch 10|e|");
    }

    #[test]
    fn errors_name_the_line() {
        let wrong = |text: &str| OrderFile::read(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(wrong("# epoch 1\na\n# epoch 3\nb\n"), "line 3: epoch 3 follows epoch 1");
        assert_eq!(wrong("# epoch 1\n# epoch 2\nb\n"), "line 2: epoch 1 ends without a sample");
        assert!(wrong("a\n# unique\n").starts_with("line 2: a directive"));
        assert_eq!(&*as_text(&[1, 0, 0, 0, 0, 1, 0, 0]).unwrap(), b"1\n256\n");
        assert!(as_text(&[1, 0, 0]).is_err());
    }

    #[test]
    fn an_empty_last_epoch_is_at_the_last_line() {
        let wrong = |text: &str| OrderFile::read(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(wrong("# epoch 0\nb\n# epoch 1\n"), "line 4: epoch 1 ends without a sample");
        assert_eq!(wrong("b\n# epoch 1\n\n# word"), "line 4: epoch 1 ends without a sample");
        assert_eq!(wrong(""), "line 1: epoch 0 ends without a sample");
    }

    #[test]
    fn a_directive_without_its_number_is_refused() {
        let wrong = |text: &str| OrderFile::read(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(wrong("a\n# epoch x\nb\n"), "line 2: '# epoch x' has to end with a number");
        assert_eq!(wrong("# count two\na\nb\n"), "line 1: '# count two' has to end with a number");
        assert!(OrderFile::read(b"# epoch of wonder\na\n").is_ok(), "a comment");
    }
}
