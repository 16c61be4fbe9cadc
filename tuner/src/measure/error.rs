//! How far an output is from what is expected.

/// The largest difference of a row of `row` numbers, relative to the norm of what is expected of it; infinite where a number is missing, or
/// either is none.
pub fn worst_row<E: Copy + Into<f64>>(found: &[f32], expected: &[E], row: usize) -> f64 {
    if found.len() != expected.len() {
        return f64::INFINITY;
    }
    let error = |(found, expected): (&[f32], &[E])| {
        let expected = expected.iter().map(|&x| x.into());
        let off: f64 = found.iter().zip(expected.clone()).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum();
        match expected.map(|x| x.powi(2)).sum::<f64>() {
            _ if off == 0.0 => 0.0,
            norm if off.is_finite() && norm > 0.0 => (off / norm).sqrt(),
            _ => f64::INFINITY,
        }
    };
    let row = row.max(1);
    found.chunks(row).zip(expected.chunks(row)).map(error).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_row_or_number_is_seen_among_many() {
        let expected: Vec<f32> = (0..4096).map(|i| (i % 7) as f32 - 3.0).collect();
        assert_eq!(worst_row(&expected, &expected, 64), 0.0);
        let mut found = expected.clone();
        found[100] += 0.25;
        let norm = expected[64..128].iter().map(|x| x * x).sum::<f32>().sqrt();
        assert!((worst_row(&found, &expected, 64) - f64::from(0.25 / norm)).abs() < 1e-6);
        found[4000] = f32::NAN;
        assert_eq!(worst_row(&found, &expected, 64), f64::INFINITY);
        assert_eq!(worst_row(&[1.0, 0.0], &[0.0, 0.0], 2), f64::INFINITY, "nothing was expected");
        assert_eq!(worst_row(&[f32::NAN], &[f32::NAN], 1), f64::INFINITY, "neither was written");
    }

    #[test]
    fn one_wrong_row_shows_and_missing_rows_are_infinite() {
        let expected = [3.0, 4.0, 0.0, 1.0];
        assert_eq!(worst_row(&[3.0, 4.0, 0.0, 1.0], &expected, 2), 0.0);
        assert!((worst_row(&[3.0, 4.5, 0.0, 1.0], &expected, 2) - 0.1).abs() < 1e-9);
        for found in [&[3.0, f32::NAN, 0.0, 1.0][..], &[3.0, 4.0], &[]] {
            assert_eq!(worst_row(found, &expected, 2), f64::INFINITY);
        }
    }
}
