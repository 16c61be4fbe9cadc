//! Order statistics of samples: robust against the odd sample that the system interrupted.

/// The `q`-quantile (0 to 1) by linear interpolation; `None` for no values.
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let position = q.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let (low, part) = (position.floor() as usize, position.fract());
    let high = (low + 1).min(sorted.len() - 1);
    Some(sorted[low] + (sorted[high] - sorted[low]) * part)
}

/// The median; `None` for no values.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// Half the interquartile range; `None` for fewer than two values: one says nothing of how they spread.
pub fn spread(values: &[f64]) -> Option<f64> {
    (values.len() > 1).then_some(())?;
    Some((quantile(values, 0.75)? - quantile(values, 0.25)?) / 2.0)
}

/// The arithmetic mean; `None` for no values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The geometric mean of positive values; `None` for no values.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    let logarithms: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    mean(&logarithms).map(f64::exp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_interrupted_sample_does_not_move_the_median() {
        assert_eq!(median(&[10.0, 11.0, 12.0, 500.0, 11.0]), Some(11.0));
        assert_eq!(spread(&[10.0, 11.0, 12.0, 500.0, 11.0]), Some(0.5));
    }

    #[test]
    fn even_counts_interpolate_and_nothing_is_nothing() {
        assert_eq!(median(&[1.0, 2.0]), Some(1.5));
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.95), Some(2.9));
        assert_eq!((median(&[]), spread(&[]), mean(&[])), (None, None, None));
        assert_eq!((spread(&[3.0]), spread(&[3.0, 3.0])), (None, Some(0.0)));
    }
}
