//! What is known of rows that two questions leave.
//!
//! Two questions about different features leave four sets of rows, whichever is asked first. Such a set only grows if a threshold moves away
//! from it, and what the best tree of two levels over it costs never falls then. So one set that was solved bounds all that contain it,
//! also below other first questions. On 3 000 noisy rows that spares every sixth of 64 000 such trees.

use super::problem::Problem;

/// Numbers that are kept; above that (some hundred features of many bins) nothing is.
const MOST: usize = 1 << 23;

/// One side of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Half {
    pub(super) feature: usize,
    pub(super) bin: u16,
    /// Whether these are the rows above.
    pub(super) high: bool,
}

/// What the best trees of two levels over the rows of two halves cost at least.
#[derive(Debug)]
pub(super) struct Quadrants {
    /// For each feature, its bins.
    bins: Vec<usize>,
    /// Where the tables of a pair of features begin: four of them, for low and high sides of either.
    begin: Vec<usize>,
    least: Vec<f64>,
}

impl Quadrants {
    pub(super) fn new(problem: &Problem) -> Self {
        let bins: Vec<usize> = (0..problem.features()).map(|feature| problem.bin_count(feature)).collect();
        let mut begin = Vec::new();
        let mut len = 0usize;
        for first in 0..bins.len() {
            for second in 0..bins.len() {
                begin.push(len);
                if first < second {
                    len = len.saturating_add(4 * bins[first] * bins[second]);
                }
            }
        }
        let least = if len <= MOST { vec![0.0; len] } else { Vec::new() };
        Self { bins, begin, least }
    }

    /// Where the table of two halves begins, and its two bins: those of the first feature, then those of the second.
    fn table(&self, a: Half, b: Half) -> Option<(usize, Half, Half)> {
        if a.feature == b.feature || self.least.is_empty() {
            return None;
        }
        let (a, b) = if a.feature < b.feature { (a, b) } else { (b, a) };
        let table = usize::from(a.high) * 2 + usize::from(b.high);
        let of_pair = self.begin[a.feature * self.bins.len() + b.feature];
        Some((of_pair + table * self.bins[a.feature] * self.bins[b.feature], a, b))
    }

    /// What the rows of both halves cost at least.
    pub(super) fn least(&self, a: Half, b: Half) -> f64 {
        self.table(a, b).map_or(0.0, |(begin, a, b)| {
            self.least[begin + usize::from(a.bin) * self.bins[b.feature] + usize::from(b.bin)]
        })
    }

    /// Notes what the rows of both halves cost at least, for them and all sets that contain them.
    pub(super) fn learn(&mut self, a: Half, b: Half, least: f64) {
        let Some((begin, a, b)) = self.table(a, b) else { return };
        let (height, width) = (self.bins[a.feature], self.bins[b.feature]);
        let larger = |half: Half, bins: usize| {
            let bin = usize::from(half.bin);
            // From the bin away, nearest first.
            (0..bins).filter_map(move |step| match half.high {
                true => bin.checked_sub(step),
                false => Some(bin + step).filter(|&bin| bin < bins),
            })
        };
        for i in larger(a, height) {
            for j in larger(b, width) {
                let known = &mut self.least[begin + i * width + j];
                if *known >= least {
                    // And so are all that contain it.
                    break;
                }
                *known = least;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::problem::{Problem, grid};
    use super::super::regrets::Regrets;
    use super::super::tests::table;
    use super::*;

    /// Two features of five values each.
    fn problem() -> Problem {
        let rows: Vec<[u64; 2]> = (0..25).map(|row| [row % 5, row / 5]).collect();
        let rows: Vec<&[u64]> = rows.iter().map(|row| &row[..]).collect();
        let table = table(&rows, &[&[Some(1.0), Some(2.0)][..]; 25]);
        Problem::new(grid(&table, 64), &Regrets::of(&table, 0.0), &[0, 1], 0, 1.0)
    }

    #[test]
    fn a_set_bounds_those_that_contain_it_and_no_others() {
        let mut quadrants = Quadrants::new(&problem());
        let half = |feature, bin, high| Half { feature, bin, high };
        // Values up to 1 of the first feature, above 2 of the second.
        quadrants.learn(half(1, 2, true), half(0, 1, false), 7.0);
        for (first, second) in (0..4).flat_map(|first| (0..4).map(move |second| (first, second))) {
            let contains = first >= 1 && second <= 2;
            let [low, high] = [half(0, first, false), half(1, second, true)];
            assert_eq!(quadrants.least(low, high), if contains { 7.0 } else { 0.0 });
            assert_eq!(quadrants.least(high, low), quadrants.least(low, high));
            assert_eq!(quadrants.least(low, half(1, second, false)), 0.0);
        }
        // A lower bound on a set inside hides nothing.
        quadrants.learn(half(0, 0, false), half(1, 3, true), 5.0);
        assert_eq!(quadrants.least(half(0, 0, false), half(1, 0, true)), 5.0);
        assert_eq!(quadrants.least(half(0, 3, false), half(1, 1, true)), 7.0);
    }
}
