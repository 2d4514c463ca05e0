//! Ranges of an archive that lie one behind the other are read with one request.
//!
//! The header of the next member lies between two of them. The request reads it, too.

use super::super::{ReadError, ReadRequest};

/// The most bytes between two members that are read along with them: a tar header, one for a long name or for times,
/// with its bytes, and what fills up blocks of 512 bytes.
const GAP_MAX: u64 = 4096;

/// Whether a range that begins at `offset` lies right behind one that ends at `end`.
pub(super) fn is_behind(end: u64, offset: u64) -> bool {
    (end..=end.saturating_add(GAP_MAX)).contains(&offset)
}

/// Joins the requests that lie behind those before them.
pub(super) fn join(requests: impl Iterator<Item = ReadRequest>) -> Vec<ReadRequest> {
    let mut runs: Vec<Vec<ReadRequest>> = Vec::new();
    for request in requests {
        match runs.last_mut() {
            Some(run) if run.last().is_some_and(|last| is_followed_by(last, &request)) => {
                run.push(request);
            }
            _ => runs.push(vec![request]),
        }
    }
    runs.into_iter().filter_map(one_of).collect()
}

fn is_followed_by(before: &ReadRequest, next: &ReadRequest) -> bool {
    before.path == next.path
        && before.fingerprint == next.fingerprint
        && (before.urgency, before.exact) == (next.urgency, next.exact)
        && is_behind(before.offset + before.length as u64, next.offset)
}

/// One request for all of a run, whose answer is handed out to each of its requests.
fn one_of(mut run: Vec<ReadRequest>) -> Option<ReadRequest> {
    if run.len() < 2 {
        return run.pop();
    }
    let (first, last) = (run.first()?, run.last()?);
    let offset = first.offset;
    let joined = ReadRequest {
        path: first.path.clone(),
        fingerprint: first.fingerprint,
        is_sized: first.is_sized,
        exact: first.exact,
        offset,
        length: (last.offset - offset) as usize + last.length,
        urgency: first.urgency,
        deliver: Box::new(|_| ()),
    };
    let deliver = move |read: Result<Vec<u8>, ReadError>| {
        for request in run {
            let start = (request.offset - offset) as usize;
            let own =
                |bytes: &Vec<u8>| bytes.get(start..start + request.length).map(<[u8]>::to_vec);
            let own = read.as_ref().map_err(|error| *error).map(own);
            (request.deliver)(own.and_then(|own| own.ok_or(ReadError::Changed)));
        }
    };
    Some(ReadRequest { deliver: Box::new(deliver), ..joined })
}
