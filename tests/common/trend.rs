//! A judgement of figures that are taken again and again: one line through them.

/// Slope of the line that lies best among figures at equal distances (least squares): by how much each is larger than the one
/// before it. Rounded towards zero; 0 of fewer than two.
pub(crate) fn slope(figures: &[u64]) -> i64 {
    let number = |n: u64| i64::try_from(n).expect("a figure");
    let count = i64::try_from(figures.len()).expect("few");
    // Twice the distance from the middle, which is whole.
    let places = (0..count).map(|n| 2 * n - (count - 1));
    let squares: i64 = places.clone().map(|place| place * place).sum();
    let sum: i64 = places
        .zip(figures)
        .map(|(place, figure)| place * number(*figure))
        .sum();
    (2 * sum).checked_div(squares).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::slope;

    #[test]
    fn lines_among_figures() {
        for (figures, by) in [
            (&[][..], 0),
            (&[7], 0),
            (&[7, 7], 0),
            (&[7, 10], 3),
            (&[10, 7, 4, 1], -3),
            // One that is odd among equal ones counts by its place.
            (&[100, 100, 100, 130], 9),
            (&[100, 130, 100, 100], -3),
            // A step in the middle.
            (&[100, 100, 200, 200], 40),
        ] {
            assert_eq!(slope(figures), by, "{figures:?}");
        }
    }
}
