//! The tree with the least cost, by dynamic programming over row sets with bounds.
//!
//! Trees of two levels are solved outright (`depth_two`). A deeper tree is a first question and the best trees of both sides. For one
//! feature, the first questions are a line of places; the rows below grow along it, those above shrink. The best cost of a row set
//! never falls when rows are added, and rises at least by what the added rows cost at their best. So for all places between two that
//! are solved, `best(below the left one) + best(above the right one) + least of the rows between` is a lower bound. The search takes
//! the interval with the least bound, solves its middle, and stops when no bound is below the best tree: that tree is optimal.
//! When time runs out, the least remaining bound says how far from optimal it can be.

use super::depth_two::{self, Scratch};
use super::problem::Problem;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Instant;

/// Questions that the search proves; deeper trees are refined from there.
pub(super) const PROVEN_DEPTH: usize = 4;
/// Intervals that are taken up together. It does not depend on the threads, so that neither does the result.
const BATCH: usize = 8;

/// A tree whose leaves are still open.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Leaf,
    Split { feature: usize, bin: u16, low: Box<Node>, high: Box<Node> },
}

impl Node {
    pub(super) fn split(feature: usize, bin: u16, low: Node, high: Node) -> Self {
        Node::Split { feature, bin, low: Box::new(low), high: Box::new(high) }
    }
}

/// A tree with its cost, and a cost that no tree of the depth is below.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    pub(super) cost: f64,
    pub(super) lower: f64,
    pub(super) tree: Node,
}

impl Found {
    pub(super) fn exact(cost: f64, tree: Node) -> Self {
        Self { cost, lower: cost, tree }
    }
}

/// The best tree of at most `depth` questions over all rows, or the best found until the deadline.
pub(super) fn solve(problem: &Problem, depth: usize, deadline: Instant) -> Found {
    let rows: Vec<u32> = (0..problem.rows() as u32).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(BATCH);
    pulp::Arch::new().dispatch(|| {
        let search = Search { problem, rows: &rows, depth, bound: f64::INFINITY, deadline };
        search.run(threads, &mut Scratch::default())
    })
}

/// Replaces the leaves by the best trees of two levels, again and again, until `levels` more questions are asked on every path that
/// gains by it. Looking two questions ahead finds pairs of questions that gain nothing alone.
pub(super) fn refine(problem: &Problem, tree: Node, levels: usize) -> Node {
    fn grow(problem: &Problem, tree: Node, rows: &[u32], levels: usize, scratch: &mut Scratch) -> Node {
        match tree {
            Node::Split { feature, bin, low, high } => {
                let (below, above) = partition(problem, rows, feature, bin);
                let low = grow(problem, *low, &below, levels, scratch);
                let high = grow(problem, *high, &above, levels, scratch);
                Node::split(feature, bin, low, high)
            }
            Node::Leaf if levels == 0 || rows.is_empty() => Node::Leaf,
            Node::Leaf => {
                let step = levels.min(2);
                let found = depth_two::solve(problem, rows, step, scratch);
                match found.tree {
                    Node::Leaf => Node::Leaf,
                    split => grow(problem, split, rows, levels - step, scratch),
                }
            }
        }
    }
    let rows: Vec<u32> = (0..problem.rows() as u32).collect();
    grow(problem, tree, &rows, levels, &mut Scratch::default())
}

/// The rows that a question sends low, and those that it sends high, in order.
pub(super) fn partition(problem: &Problem, rows: &[u32], feature: usize, bin: u16) -> (Vec<u32>, Vec<u32>) {
    rows.iter().partition(|&&row| problem.bin(feature, row) <= bin)
}

/// First questions of one feature between two that are solved.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Interval {
    bound: f64,
    feature: usize,
    /// Places of the line that are still open: `begin..end`.
    begin: usize,
    end: usize,
    /// What the rows below the left neighbour cost at least, and those above the right neighbour.
    below: f64,
    above: f64,
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

/// The line of first questions of a feature.
struct Line {
    /// Bins after which the rows can be divided.
    bins: Vec<u16>,
    /// What the rows up to each place cost at least, each row at its best; one more entry for all rows.
    least_up_to: Vec<f64>,
}

struct Search<'a> {
    problem: &'a Problem,
    rows: &'a [u32],
    depth: usize,
    /// Trees of this cost or more are of no use to the caller.
    bound: f64,
    deadline: Instant,
}

/// What became of the middle of an interval.
struct Solved {
    cost: f64,
    /// No tree with this first question costs less; below `cost` only if its sides were not finished.
    lower: f64,
    below: f64,
    above: f64,
    tree: Node,
}

impl Search<'_> {
    fn run(&self, threads: usize, scratch: &mut Scratch) -> Found {
        let Self { problem, rows, depth, bound, deadline } = *self;
        let mut best = depth_two::solve(problem, rows, depth.min(2), scratch);
        let floor = problem.least_of(rows);
        if depth <= 2 || best.cost <= floor {
            return best;
        }
        let lines: Vec<Line> = (0..problem.features()).map(|feature| self.line(feature)).collect();
        let mut open: BinaryHeap<Interval> = BinaryHeap::new();
        for (feature, line) in lines.iter().enumerate() {
            let whole =
                Interval { bound: floor, feature, begin: 0, end: line.bins.len(), below: 0.0, above: 0.0 };
            if whole.begin < whole.end {
                open.push(whole);
            }
        }
        // The least that a first question already taken out of `open` may still cost: one whose sides ran out of time is not settled.
        let mut unsettled = f64::INFINITY;
        while let Some(first) = open.peek() {
            let useful = best.cost.min(bound);
            if first.bound >= useful {
                break;
            }
            if Instant::now() >= deadline {
                best.lower = first.bound.min(unsettled).min(best.cost);
                return best;
            }
            let mut batch = Vec::with_capacity(BATCH);
            while batch.len() < BATCH && open.peek().is_some_and(|next| next.bound < useful) {
                batch.extend(open.pop());
            }
            let solved = self.solve_batch(&batch, &lines, useful, threads, scratch);
            for (interval, solved) in batch.iter().zip(solved) {
                unsettled = unsettled.min(solved.lower);
                if solved.cost < best.cost {
                    best.cost = solved.cost;
                    best.tree = solved.tree.clone();
                }
                let line = &lines[interval.feature];
                open.extend(halves(interval, &solved, line).into_iter().flatten());
            }
        }
        // Whatever is still open is no better than the best tree, or of no use to the caller, unless time ran out inside it.
        best.lower = open.peek().map_or(best.cost, |next| next.bound).min(unsettled).min(best.cost);
        best
    }

    /// The middle of each interval, in their order.
    fn solve_batch(
        &self,
        batch: &[Interval],
        lines: &[Line],
        useful: f64,
        threads: usize,
        scratch: &mut Scratch,
    ) -> Vec<Solved> {
        if threads < 2 || batch.len() < 2 {
            return batch
                .iter()
                .map(|interval| self.solve_middle(interval, lines, useful, scratch))
                .collect();
        }
        let next = std::sync::atomic::AtomicUsize::new(0);
        let solved: Vec<std::sync::OnceLock<Solved>> =
            batch.iter().map(|_| std::sync::OnceLock::new()).collect();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    pulp::Arch::new().dispatch(|| {
                        let mut scratch = Scratch::default();
                        while let Some(index) = Some(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                            .filter(|&i| i < batch.len())
                        {
                            // Each place is taken by one thread only, so it is empty.
                            let _ = solved[index].set(self.solve_middle(
                                &batch[index],
                                lines,
                                useful,
                                &mut scratch,
                            ));
                        }
                    });
                });
            }
        });
        solved.into_iter().map(|solved| solved.into_inner().expect("every interval was taken")).collect()
    }

    fn solve_middle(
        &self,
        interval: &Interval,
        lines: &[Line],
        useful: f64,
        scratch: &mut Scratch,
    ) -> Solved {
        let Self { problem, rows, depth, deadline, .. } = *self;
        let bin = lines[interval.feature].bins[middle(interval)];
        let (low_rows, high_rows) = partition(problem, rows, interval.feature, bin);
        let solve = |rows: &[u32], bound: f64, scratch: &mut Scratch| {
            Search { problem, rows, depth: depth - 1, bound, deadline }.run(1, scratch)
        };
        let least_high = problem.least_of(&high_rows);
        let low = solve(&low_rows, useful - least_high, scratch);
        if low.lower + least_high >= useful {
            // However good the other side is, this question cannot win.
            return Solved {
                cost: f64::INFINITY,
                lower: low.lower + least_high,
                below: low.lower,
                above: least_high,
                tree: Node::Leaf,
            };
        }
        let high = solve(&high_rows, useful - low.lower, scratch);
        Solved {
            cost: low.cost + high.cost,
            lower: low.lower + high.lower,
            below: low.lower,
            above: high.lower,
            tree: Node::split(interval.feature, bin, low.tree, high.tree),
        }
    }

    fn line(&self, feature: usize) -> Line {
        let problem = self.problem;
        let mut least = vec![None; problem.bin_count(feature)];
        for &row in self.rows {
            *least[usize::from(problem.bin(feature, row))].get_or_insert(0.0) += problem.least_of(&[row]);
        }
        let mut line = Line { bins: Vec::new(), least_up_to: Vec::new() };
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
}

const fn middle(interval: &Interval) -> usize {
    interval.begin + (interval.end - interval.begin) / 2
}

/// What is left of an interval on both sides of its solved middle.
fn halves(interval: &Interval, solved: &Solved, line: &Line) -> [Option<Interval>; 2] {
    let middle = middle(interval);
    // Rows between the solved neighbours: after place `begin - 1` up to place `end`.
    let least_between = |begin: usize, end: usize| {
        let up_to = |place: usize| line.least_up_to[place];
        up_to(end) - if begin == 0 { 0.0 } else { up_to(begin - 1) }
    };
    let part = |begin: usize, end: usize, below: f64, above: f64| {
        let bound = (below + above + least_between(begin, end)).max(interval.bound);
        (begin < end).then_some(Interval { bound, feature: interval.feature, begin, end, below, above })
    };
    [
        part(interval.begin, middle, interval.below, solved.above),
        part(middle + 1, interval.end, solved.below, interval.above),
    ]
}
