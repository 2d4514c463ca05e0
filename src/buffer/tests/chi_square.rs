//! Pearson's chi-square test, which prints its p-value.

/// Tests fail below this. Seeds are fixed, so a failure is not bad luck.
const P_MIN: f64 = 1e-3;

/// The probability that a chi-square with `degrees` degrees of freedom is at least this large, by the
/// approximation of Wilson and Hilferty (1931): its cube root is nearly normal.
fn p_value(chi_square: f64, degrees: f64) -> f64 {
    let spread = 2.0 / (9.0 * degrees);
    let z = ((chi_square / degrees).cbrt() - (1.0 - spread)) / spread.sqrt();
    // The upper tail of the normal distribution (Abramowitz and Stegun 26.2.17).
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let factors = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let sum = factors.iter().rev().fold(0.0, |sum, factor| (sum + factor) * t);
    let tail = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * sum;
    if z < 0.0 { 1.0 - tail } else { tail }
}

fn judge(what: &str, chi_square: f64, degrees: usize) {
    let p = p_value(chi_square, degrees as f64);
    println!("{what}: chi-square {chi_square:.1} of {degrees} degrees of freedom, p = {p:.4}");
    assert!(p > P_MIN, "{what}: p = {p:.6}");
}

/// For counts that should be equal.
pub(in super::super) fn uniform(what: &str, counts: &[u64]) {
    let all: u64 = counts.iter().sum();
    let expected = all as f64 / counts.len() as f64;
    let squares = counts.iter().map(|count| (*count as f64 - expected).powi(2) / expected);
    judge(what, squares.sum(), counts.len() - 1);
}

/// For counts that should be in these proportions.
pub(in super::super) fn proportional(what: &str, counts: &[u64], weights: &[f64]) {
    let (all, sum) = (counts.iter().sum::<u64>() as f64, weights.iter().sum::<f64>());
    let of = |(count, weight): (&u64, &f64)| {
        let expected = all * weight / sum;
        (*count as f64 - expected).powi(2) / expected
    };
    judge(what, counts.iter().zip(weights).map(of).sum(), counts.len() - 1);
}

/// For two lists of counts from equally many trials that should have the same distribution. Cells that are
/// empty in both are ignored.
pub(in super::super) fn alike(what: &str, one: &[u64], other: &[u64]) {
    let cells: Vec<(f64, f64)> = one
        .iter()
        .zip(other)
        .filter(|(a, b)| **a + **b > 0)
        .map(|(a, b)| (*a as f64, *b as f64))
        .collect();
    let squares = cells.iter().map(|(a, b)| (a - b).powi(2) / (a + b));
    judge(what, squares.sum(), cells.len() - 1);
}

#[test]
fn p_values_are_those_of_the_tables() {
    for (chi_square, degrees, p) in
        [(18.307, 10.0, 0.05), (2.558, 10.0, 0.99), (63.691, 40.0, 0.01), (99.334, 100.0, 0.5)]
    {
        let found = p_value(chi_square, degrees);
        assert!((found - p).abs() < 0.003, "{found} for {p}");
    }
}

#[test]
fn unfair_counts_are_found() {
    let caught = std::panic::catch_unwind(|| uniform("unfair", &[1000, 1200, 1000, 1000]));
    assert!(caught.is_err());
}
