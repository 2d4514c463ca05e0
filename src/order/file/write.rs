//! Writes orders in the text form of order files.

use std::borrow::Cow;
use std::io::Write;
use std::ops::Range;

use super::text::{needs_dot_slash, split_range};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::FileId;
use crate::order::Order;

/// Writes epochs `epochs` of an order as an order file that reads back as the same order.
///
/// `path` gives the path of a file relative to the source.
///
/// # Errors
/// When a path cannot stand in a text order file; see [`write_sample`].
pub fn write_text<'n>(
    order: &Order,
    epochs: Range<u32>,
    path: impl Fn(FileId) -> Cow<'n, [u8]>,
) -> Result<Vec<u8>> {
    let mut out = format!("# {}\n", order.describe().escape_debug()).into_bytes();
    if order.is_permutation() {
        out.extend_from_slice(b"# unique\n");
    }
    for (number, epoch) in epochs.clone().zip(order.epochs(epochs.start)) {
        out.extend_from_slice(format!("# epoch {number}\n").as_bytes());
        for &id in epoch.iter() {
            let sample = order.samples().get(id);
            let range = sample.length.map(|length| (sample.offset, length));
            write_sample(&mut out, &path(sample.file), range)?;
        }
    }
    Ok(out)
}

/// Appends the line of a sample: a file, or the range `(offset, length)` of it in bytes.
///
/// # Errors
/// When a path holds a line feed, or ends like a byte range (tab, number, tab, number).
pub fn write_sample(out: &mut Vec<u8>, path: &[u8], range: Option<(u64, u64)>) -> Result<()> {
    if path.contains(&b'\n') || split_range(path).is_some() {
        let shown = String::from_utf8_lossy(path).escape_debug().to_string();
        let message = format!("'{shown}' cannot stand in a text order file");
        return Err(Error::new(ErrorKind::Order, message)
            .hint("rename the file, or give the order as indexes"));
    }
    if needs_dot_slash(path) {
        out.extend_from_slice(b"./");
    }
    out.extend_from_slice(path);
    if let Some((offset, length)) = range {
        // Writing to a Vec cannot fail.
        let _ = write!(out, "\t{offset}\t{length}");
    } else if path.ends_with(b"\r") {
        // The reader drops one carriage return.
        out.push(b'\r');
    }
    out.push(b'\n');
    Ok(())
}
