//! Files of weights: one number for each sample of a dataset.

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::Result;
use crate::order::containers::npy::{self, Header};
use crate::order::grouped;
use crate::order::samplers::keys::{Value, wrong};

/// `torch.multinomial` refuses more weights.
const WEIGHTS_MAX: usize = 1 << 24;

const FORMS: &str = "a file of weights is a text with a number a line, or an array of doubles in .npy: \
                     numpy.savetxt or numpy.save of a one-dimensional float64 array writes one";

/// The weights of a dataset's samples, from a file.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    pub file: PathBuf,
    /// The file's content. Empty until it is [read](Self::read).
    values: Arc<[f64]>,
}

impl PartialEq for Weights {
    /// Two values that were read together share their weights, and the comparison of each weight is skipped.
    fn eq(&self, other: &Self) -> bool {
        let same = Arc::ptr_eq(&self.values, &other.values) || self.values == other.values;
        same && self.file == other.file
    }
}

/// No weight is NaN.
impl Eq for Weights {}

impl Weights {
    /// The weights. Empty if the file was not read.
    pub fn values(&self) -> &Arc<[f64]> {
        &self.values
    }

    /// The weights with the file's content: a number a line, or an array of doubles or floats in numpy's
    /// format. Empty lines of a text are skipped, and lines that begin with `#`.
    ///
    /// # Errors
    /// When a weight is negative or not finite. The error names its line or its entry, from 1 on. Also when
    /// there are too many weights, or their sum is 0 or too large.
    pub fn read(&self, bytes: &[u8]) -> Result<Self> {
        let values = match bytes.starts_with(npy::MAGIC) {
            true => parse_array(bytes),
            false => parse_text(bytes),
        };
        match values.and_then(|values| checked_sum(&values).map(|()| values)) {
            Ok(values) => Ok(Weights { file: self.file.clone(), values: values.into() }),
            Err(error) => {
                let name = format!("weights {}", self.file.display());
                Err(error.context(name).or_hint(FORMS))
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn of(file: &str, values: &[f64]) -> Self {
        Weights { file: file.into(), values: values.into() }
    }
}

impl Value for Weights {
    /// Takes the name of the file, which is read later.
    fn set(&mut self, _: &str, text: &str) -> Result<()> {
        if text.is_empty() {
            return Err(wrong("the file of weights has no name"));
        }
        *self = Weights { file: text.into(), values: Arc::default() };
        Ok(())
    }

    fn text(&self) -> String {
        self.file.display().to_string()
    }
}

fn parse_text(text: &[u8]) -> Result<Vec<f64>> {
    let mut values = Vec::new();
    for (number, line) in (1u64..).zip(text.split(|byte| *byte == b'\n')) {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let value = std::str::from_utf8(line).ok().and_then(|line| line.parse().ok());
        let value = value.ok_or_else(|| {
            let shown = String::from_utf8_lossy(&line[..line.len().min(40)]);
            wrong(format!("line {number}: '{shown}' is no number"))
        })?;
        values.push(checked(value, || format!("line {number}"))?);
        check_count(values.len())?;
    }
    Ok(values)
}

/// The entries of an array in numpy's format.
fn parse_array(file: &[u8]) -> Result<Vec<f64>> {
    let header = Header::parse(file)?;
    let data = &file[header.end..];
    let [count] = header.shape[..] else {
        return Err(wrong("it is not an array of one dimension"));
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    check_count(count)?;
    let (size, values): (usize, Vec<f64>) = match header.descr.as_str() {
        "'<f8'" => {
            (8, data.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect())
        }
        "'<f4'" => (
            4,
            data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes).into()).collect(),
        ),
        other => return Err(wrong(format!("it is an array of {other}, not of '<f8' or '<f4'"))),
    };
    if data.len() != count * size {
        let (has, wants) = (data.len(), count * size);
        return Err(wrong(format!("its numbers have {has} bytes and not {wants}"))
            .hint("was it cut off while it was copied?"));
    }
    let entries = (1..).zip(values);
    entries.map(|(entry, value)| checked(value, || format!("entry {entry}"))).collect()
}

fn check_count(count: usize) -> Result<()> {
    if count <= WEIGHTS_MAX {
        return Ok(());
    }
    let most = grouped(WEIGHTS_MAX as u64);
    Err(wrong(format!("there are more than {most} weights")).hint("torch refuses them, too"))
}

fn checked(value: f64, location: impl Fn() -> String) -> Result<f64> {
    if value.is_finite() && value >= 0.0 {
        return Ok(value);
    }
    let error = wrong(format!("{}: a weight cannot be {value}", location()));
    Err(error.hint("a weight is 0 or a finite number above it; torch refuses others, too"))
}

fn checked_sum(values: &[f64]) -> Result<()> {
    let sum: f64 = values.iter().sum();
    match sum {
        0.0 => Err(wrong("no weight is above 0").hint(FORMS)),
        sum if sum.is_finite() => Ok(()),
        _ => Err(wrong("the sum of the weights is beyond what a double holds")
            .hint("divide all of them by the same number, also in the script")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<f64>> {
        Weights::of("w.txt", &[]).read(bytes).map(|weights| weights.values().to_vec())
    }

    /// A file as `numpy.save` writes it.
    fn npy(version: u8, header: &str, data: &[u8]) -> Vec<u8> {
        let length = (header.len() as u32).to_le_bytes();
        let length = if version == 1 { &length[..2] } else { &length[..] };
        [npy::MAGIC, &[version, 0], length, header.as_bytes(), data].concat()
    }

    fn doubles(values: &[f64]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    const HEADER: &str = "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }      \n";

    #[test]
    fn a_text_has_a_number_a_line() {
        let text = b"# of each image\n0.1\n\r\n  3 \n1.000000000000000056e-01\r\n0\n5e-324";
        assert_eq!(read(text).unwrap(), [0.1, 3.0, 0.1, 0.0, 5e-324]);
    }

    #[test]
    fn an_array_of_numpy_is_read() {
        let values = [0.1, 0.0, 7.5];
        for version in [1, 2, 3] {
            assert_eq!(read(&npy(version, HEADER, &doubles(&values))).unwrap(), values);
        }
        let singles: Vec<u8> = values.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect();
        let header = HEADER.replace("f8", "f4");
        assert_eq!(read(&npy(1, &header, &singles)).unwrap(), values.map(|v| f64::from(v as f32)));
    }

    #[test]
    fn errors_name_the_location_and_a_remedy() {
        let array = |header: &str, values: &[f64]| npy(1, header, &doubles(values));
        for (bytes, why) in [
            (b"1\n\nx y\n".to_vec(), "line 3: 'x y' is no number"),
            (b"1\n\xff\xfe\n".to_vec(), "line 2: "),
            (b"1\n-0.5\n".to_vec(), "line 2: a weight cannot be -0.5"),
            (b"nan\n".to_vec(), "line 1: a weight cannot be NaN"),
            (b"1e999".to_vec(), "line 1: a weight cannot be inf"),
            (b"".to_vec(), "no weight is above 0"),
            (b"0\n-0\n".to_vec(), "no weight is above 0"),
            (b"1e308\n1e308\n".to_vec(), "the sum of the weights"),
            (b"1\n".repeat(WEIGHTS_MAX + 1), "more than 16,777,216 weights"),
            (npy::MAGIC.to_vec(), "it ends in its header"),
            (npy(1, HEADER, &[])[..30].to_vec(), "it ends in its header"),
            (array(HEADER, &[1.0, 2.0]), "have 16 bytes and not 24"),
            (array(HEADER, &[1.0, f64::NAN, 2.0]), "entry 2: a weight cannot be NaN"),
            (array(&HEADER.replace("<f8", "<i8"), &[1.0]), "an array of '<i8'"),
            (array(&HEADER.replace("(3,)", "(3, 1)"), &[1.0]), "not an array of one dimension"),
            (array(&HEADER.replace("(3,)", "(99999999,)"), &[1.0]), "more than 16,777,216"),
            (array("", &[1.0]), "tells no shape"),
        ] {
            let error = read(&bytes).unwrap_err().to_string();
            assert!(error.starts_with("weights w.txt: "), "{error}");
            assert!(error.contains(why) && error.contains("hint: "), "{why}: {error}");
        }
    }
}
