//! Where a feature may be asked: between neighbouring values, at the roundest number there.

/// Thresholds for the values of a feature, in order; `value <= threshold` goes low.
///
/// One for each gap between distinct values, if there are at most `limit`; else those gaps that cut the rows most evenly.
pub(super) fn choose(values: &[u64], limit: usize) -> Vec<u64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    // Each gap with the rows below it.
    let gaps: Vec<(usize, u64)> = sorted
        .windows(2)
        .enumerate()
        .filter(|(_, pair)| pair[0] < pair[1])
        .map(|(below, pair)| (below + 1, roundest(pair[0], pair[1] - 1)))
        .collect();
    if gaps.len() <= limit {
        return gaps.into_iter().map(|(_, threshold)| threshold).collect();
    }
    // For each of `limit` even cuts the nearest gap; gaps that are nearest to several cuts leave others unused.
    let mut chosen = Vec::with_capacity(limit);
    for cut in 1..=limit {
        let wanted = cut * sorted.len() / (limit + 1);
        let after = gaps.partition_point(|&(below, _)| below < wanted);
        let nearest = [after.saturating_sub(1), after.min(gaps.len() - 1)]
            .into_iter()
            .min_by_key(|&i| gaps[i].0.abs_diff(wanted))
            .unwrap_or(0);
        chosen.push(gaps[nearest].1);
    }
    chosen.dedup();
    chosen
}

/// The number from `low` to `high` that most powers of two divide: a power of two where there is one, page multiples elsewhere.
fn roundest(low: u64, high: u64) -> u64 {
    let mut round = high;
    loop {
        // Without its lowest set bit.
        let rounder = round & round.wrapping_sub(1);
        if round == 0 || rounder < low {
            return round;
        }
        round = rounder;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_lie_in_their_gaps_at_round_numbers() {
        assert_eq!(choose(&[100, 1, 4, 300, 4, 96], 64), [2, 64, 96, 256]);
        assert_eq!(choose(&[5, 5, 5], 64), [0u64; 0]);
        assert_eq!(choose(&[0, u64::MAX], 64), [0]);
        assert_eq!(roundest(65, 95), 80);
        assert_eq!(roundest(64, 255), 128);
        assert_eq!(roundest(7, 7), 7);
    }

    #[test]
    fn many_values_are_cut_evenly() {
        let values: Vec<u64> = (0..1000).collect();
        let thresholds = choose(&values, 9);
        assert_eq!(thresholds.len(), 9);
        assert!(
            thresholds.iter().enumerate().all(|(i, &t)| t.abs_diff((i as u64 + 1) * 100) <= 1),
            "{thresholds:?}"
        );
        assert_eq!(choose(&values, 999).len(), 999);
    }
}
