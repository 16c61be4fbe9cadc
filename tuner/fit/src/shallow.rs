//! Trees of at most two levels, where candidates may be invalid on rows.
//!
//! Without holes `depth_two` says it all. With holes, what a leaf costs is the best of its rankings, and that is no sum over rows. Two sums
//! enclose it: each row that a candidate is invalid on costs at least what is best for it, and at most what it costs under the ranking
//! that is best for all rows together. The first sum bounds every first question from below, the second finds a good tree. The first
//! questions that may still be better are then solved one side at a time, the most promising first.

use super::depth_two::{Question, Scratch};
use super::limits::Limits;
use super::problem::Problem;
use super::search::{Found, Node, partition};

/// What the caller wants to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    /// Trees of this cost or more are of no use.
    pub(super) bound: f64,
    /// Whether a tree found is to be the best, and not merely good, with a bound on what the best one costs.
    pub(super) exact: bool,
}

/// The best tree of at most `depth` (0, 1 or 2) questions over `rows`.
pub(super) fn solve(
    problem: &Problem,
    rows: &[u32],
    depth: usize,
    ask: Ask,
    limits: &Limits<'_>,
    scratch: &mut Scratch,
) -> Found {
    let leaf = scratch.ranker.best(problem, rows, None);
    let mut best = Found::exact(leaf.cost, Node::Leaf);
    if depth == 0 || best.cost <= problem.least_of(rows) {
        return best;
    }
    scratch.load(problem, rows);
    let mut questions = scratch.questions(problem, rows, depth);
    let Some(first) = least(&questions) else { return best };
    if !rows.iter().any(|&row| problem.has_hole(row)) {
        if first.cost() < best.cost {
            best = Found::exact(first.cost(), first.node());
        }
        return best;
    }
    best.lower = first.cost().min(best.cost);
    if best.lower >= best.cost.min(ask.bound) {
        return best;
    }
    // Every row that a lane is invalid on takes what it takes now.
    for (costs, &row) in scratch.costs.iter_mut().zip(rows) {
        if problem.has_hole(row)
            && let Some(lane) = leaf.lane_of(problem, row)
        {
            let cost = problem.cost(row, lane);
            for lane in (0..problem.lanes()).filter(|lane| problem.valid(row) & (1 << lane) == 0) {
                costs[lane] = cost;
            }
        }
    }
    // Unused lanes repeat the first one.
    for costs in &mut scratch.costs {
        let first = costs[0];
        costs[problem.lanes()..].fill(first);
    }
    if let Some(good) = least(&scratch.questions(problem, rows, depth)) {
        let tree = good.node();
        let cost = cost_of(problem, &tree, rows, scratch);
        if cost < best.cost {
            (best.cost, best.tree) = (cost, tree);
        }
    }
    if ask.exact {
        questions.sort_by(|a, b| a.cost().total_cmp(&b.cost()));
        best.lower = settle(problem, rows, depth, ask, limits, &questions, &mut best, scratch);
    }
    best
}

/// Solves the first questions that may be better than `best`, in the order of their bounds, and returns what the best tree costs at least.
#[expect(clippy::too_many_arguments, reason = "one step of `solve`")]
fn settle(
    problem: &Problem,
    rows: &[u32],
    depth: usize,
    ask: Ask,
    limits: &Limits<'_>,
    questions: &[Question],
    best: &mut Found,
    scratch: &mut Scratch,
) -> f64 {
    let mut settled = f64::INFINITY;
    for question in questions {
        let useful = best.cost.min(ask.bound);
        if question.cost() >= useful || limits.reached(scratch.work()) {
            settled = settled.min(question.cost());
            break;
        }
        let (low_rows, high_rows) = partition(problem, rows, question.feature, question.bin);
        let ask = |other: f64| Ask { bound: useful - other, exact: true };
        let low = solve(problem, &low_rows, depth - 1, ask(question.high.cost), limits, scratch);
        let lower = low.lower + question.high.cost;
        if lower >= useful {
            settled = settled.min(lower);
            continue;
        }
        let high = solve(problem, &high_rows, depth - 1, ask(low.lower), limits, scratch);
        settled = settled.min(low.lower + high.lower.max(question.high.cost));
        if low.cost + high.cost < best.cost {
            best.cost = low.cost + high.cost;
            best.tree = Node::split(question.feature, question.bin, low.tree, high.tree);
        }
    }
    settled.min(best.cost)
}

fn least(questions: &[Question]) -> Option<Question> {
    // The first of equals.
    questions.iter().copied().reduce(|best, next| if next.cost() < best.cost() { next } else { best })
}

/// What a tree costs with the best ranking at each leaf.
pub(super) fn cost_of(problem: &Problem, tree: &Node, rows: &[u32], scratch: &mut Scratch) -> f64 {
    match tree {
        Node::Leaf => scratch.ranker.best(problem, rows, None).cost,
        Node::Split { feature, bin, low, high } => {
            let (below, above) = partition(problem, rows, *feature, *bin);
            cost_of(problem, low, &below, scratch) + cost_of(problem, high, &above, scratch)
        }
    }
}
