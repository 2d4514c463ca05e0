//! Answers about names that come from the memory of this machine. Many network filesystems bring the attributes along
//! with the names of a directory. Such an answer says nothing about the speed of the source.

use std::time::Duration;

/// A name takes no longer.
const NAME: Duration = Duration::from_micros(20);

/// A call costs as much as so many names.
const CALL_IN_NAMES: u128 = 8;

/// Whether a call about so many names was answered from memory.
pub fn is_prompt(took: Duration, names: usize) -> bool {
    took.as_nanos() <= NAME.as_nanos() * (names as u128 + CALL_IN_NAMES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_may_take_longer_than_few() {
        let ms = Duration::from_millis(1);
        assert_eq!([0, 8, 64].map(|names| is_prompt(ms, names)), [false, false, true]);
        assert!(is_prompt(ms * 1_000_000, usize::MAX));
    }
}
