//! First questions that are still open, as intervals of thresholds between two that are solved.

use super::problem::Problem;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// First questions of one feature between two that are solved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    pub(super) bound: f64,
    pub(super) feature: usize,
    /// Places of the line that are still open: `begin..end`.
    pub(super) begin: usize,
    pub(super) end: usize,
    /// What the rows below the left neighbour cost at least, and those above the right neighbour.
    pub(super) below: f64,
    pub(super) above: f64,
}

impl Eq for Interval {}

impl Ord for Interval {
    /// The greatest has the least bound; equals in a fixed order.
    fn cmp(&self, other: &Self) -> Ordering {
        let bound = other.bound.total_cmp(&self.bound);
        bound.then(other.feature.cmp(&self.feature)).then(other.begin.cmp(&self.begin))
    }
}

impl PartialOrd for Interval {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Interval {
    pub(super) const fn middle(&self) -> usize {
        self.begin + (self.end - self.begin) / 2
    }
}

/// The line of first questions of a feature.
pub(super) struct Line {
    /// Bins after which the rows can be divided.
    pub(super) bins: Vec<u16>,
    /// What the rows up to each place cost at least, each row at its best; one more entry for all rows.
    least_up_to: Vec<f64>,
}

impl Line {
    fn of(problem: &Problem, rows: &[u32], feature: usize) -> Self {
        let mut least = vec![None; problem.bin_count(feature)];
        for &row in rows {
            *least[usize::from(problem.bin(feature, row))].get_or_insert(0.0) += problem.least_of(&[row]);
        }
        let mut line = Self { bins: Vec::new(), least_up_to: Vec::new() };
        let mut sum = 0.0;
        for (bin, least) in least.into_iter().enumerate() {
            if let Some(least) = least {
                sum += least;
                line.bins.push(bin as u16);
                line.least_up_to.push(sum);
            }
        }
        // After the last bin there is nothing to divide; its sum stays, as that of all rows.
        line.bins.pop();
        line
    }

    /// What the rows after place `begin - 1` up to place `end` cost at least.
    pub(super) fn least_between(&self, begin: usize, end: usize) -> f64 {
        self.least_up_to[end] - if begin == 0 { 0.0 } else { self.least_up_to[begin - 1] }
    }
}

/// Intervals that are still open, and what was settled.
pub(super) struct Open {
    pub(super) lines: Vec<Line>,
    pub(super) heap: BinaryHeap<Interval>,
    /// The least that a first question already taken out of `heap` may still cost.
    settled: f64,
}

impl Open {
    pub(super) fn of(problem: &Problem, rows: &[u32], floor: f64) -> Self {
        let lines: Vec<Line> =
            (0..problem.features()).map(|feature| Line::of(problem, rows, feature)).collect();
        let whole =
            lines.iter().enumerate().filter(|(_, line)| !line.bins.is_empty()).map(|(feature, line)| {
                Interval { bound: floor, feature, begin: 0, end: line.bins.len(), below: 0.0, above: 0.0 }
            });
        let heap = whole.collect();
        Self { lines, heap, settled: f64::INFINITY }
    }

    /// No tree costs less.
    pub(super) fn lower(&self) -> f64 {
        self.heap.peek().map_or(f64::INFINITY, |next| next.bound).min(self.settled)
    }

    /// Puts back what is left of an interval on both sides of its solved middle.
    pub(super) fn halve(&mut self, interval: &Interval, below: f64, above: f64) {
        self.settled = self.settled.min(below + above);
        let middle = interval.middle();
        let line = &self.lines[interval.feature];
        for (begin, end, below, above) in [
            (interval.begin, middle, interval.below, above),
            (middle + 1, interval.end, below, interval.above),
        ] {
            if begin < end {
                let bound = (below + above + line.least_between(begin, end)).max(interval.bound);
                self.heap.push(Interval { bound, feature: interval.feature, begin, end, below, above });
            }
        }
    }
}
