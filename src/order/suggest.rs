//! "Did you mean": the known word nearest to an unknown one.

/// Words less alike than this (0: nothing in common, 1: equal) are not suggested.
const SIMILARITY_MIN: f64 = 0.6;

/// The candidate most similar to `word`, if any is similar enough. The first of equals.
pub(super) fn nearest<'c>(
    word: &str,
    candidates: impl IntoIterator<Item = &'c str>,
) -> Option<&'c str> {
    let mut best: Option<(f64, &str)> = None;
    for candidate in candidates {
        let score = strsim::normalized_damerau_levenshtein(word, candidate);
        if score >= SIMILARITY_MIN && best.is_none_or(|(found, _)| score > found) {
            best = Some((score, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// A hint that suggests the nearest of the known words, or lists them all.
pub(super) fn hint(word: &str, known: &[&str]) -> String {
    match nearest(word, known.iter().copied()) {
        Some(candidate) => format!("did you mean '{candidate}'?"),
        None => format!("known are {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_are_recognised_and_nonsense_is_not() {
        assert_eq!(nearest("sede", ["rank", "seed"]), Some("seed"));
        assert_eq!(nearest("zzz", ["rank", "seed"]), None);
        assert_eq!(hint("wrld", &["world", "rank"]), "did you mean 'world'?");
        assert_eq!(hint("x", &["world", "rank"]), "known are world, rank");
    }
}
