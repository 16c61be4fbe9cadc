//! The tree with the least cost, by dynamic programming over row sets with bounds.
//!
//! Trees of two levels are solved outright (`shallow`). A deeper tree is a first question and the best trees of both sides. For one
//! feature, the first questions are a line of places; the rows below grow along it, those above shrink. The best cost of a row set
//! never falls when rows are added, and rises at least by what the added rows cost at their best. So for all places between two that
//! are solved, `best(below the left one) + best(above the right one) + least of the rows between` is a lower bound. The search takes
//! the interval with the least bound, solves its middle, and stops when no bound is below what it is asked for.
//!
//! It is asked several times. That no tree is below half of the best cost known takes far less work than that none is below the whole of
//! it, so the bound is raised step by step ([`STEPS`]): whenever the search ends, what was proved until then holds.

use super::depth_two::Scratch;
use super::intervals::{Interval, Line, Open};
use super::limits::{Event, Limits};
use super::problem::Problem;
use super::quadrants::{Half, Quadrants};
use super::shallow::{self, Ask};
use std::collections::HashMap;
use std::sync::Mutex;

/// Questions that the search looks for the best tree of; deeper ones are refined from there.
pub(super) const SEARCHED_DEPTH: usize = 4;
/// Intervals that are taken up together. It does not depend on the threads, so that neither does the result.
const BATCH: usize = 8;
/// Parts of the way from the least cost there can be to the best known, in the order in which they are proved, and the part of all work
/// after which each ends. The whole way comes first: it finds better trees as it goes, and is all there is to do where the search is short.
const STEPS: [(f64, f64); 11] = [
    (1.0, 0.2),
    (0.03, 1.0),
    (0.06, 1.0),
    (0.12, 1.0),
    (0.25, 1.0),
    (0.4, 1.0),
    (0.55, 1.0),
    (0.7, 1.0),
    (0.8, 1.0),
    (0.9, 1.0),
    (1.0, 1.0),
];

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

/// The best tree of at most `depth` questions over all rows, or the best found until the limits. `known` is a tree to begin with.
pub(super) fn solve(problem: &Problem, depth: usize, known: Found, limits: Limits<'_>) -> Found {
    let rows = problem.all_rows();
    let floor = problem.floor();
    let mut best = Found { lower: floor, ..known };
    if depth <= 2 {
        let ask = Ask { bound: f64::INFINITY, exact: true };
        let found = shallow::solve(problem, &rows, depth, ask, &limits, &mut Scratch::default());
        return if found.cost <= best.cost { found } else { Found { lower: found.lower, ..best } };
    }
    let cache = Cache::default();
    let search = Search { problem, cache: &cache };
    let mut known = Known { memo: Memo::default(), quadrants: Quadrants::new(problem), work: 0, batches: 0 };
    for (part, of_work) in STEPS {
        if best.lower >= best.cost {
            break;
        }
        let target = floor + (best.cost - floor) * part;
        if part < 1.0 && target <= best.lower {
            continue;
        }
        let bound = if part < 1.0 { target } else { f64::INFINITY };
        let step = limits.with_work((limits.work as f64 * of_work) as u64);
        let lower = search.root(&rows, depth, bound, &step, &mut known, &mut best);
        best.lower = best.lower.max(lower.min(best.cost));
        if limits.by_clock() {
            break;
        }
    }
    best
}

/// Replaces the leaves by the best trees of two levels, again and again, until `levels` more questions are asked on every path that
/// gains by it, and no more than `depth` in all. Looking two questions ahead finds pairs of questions that gain nothing alone.
pub(super) fn refine(
    problem: &Problem,
    tree: Node,
    levels: usize,
    depth: usize,
    limits: &Limits<'_>,
) -> Node {
    fn grow(
        problem: &Problem,
        tree: Node,
        rows: &[u32],
        (levels, depth): (usize, usize),
        limits: &Limits<'_>,
        scratch: &mut Scratch,
    ) -> Node {
        match tree {
            Node::Split { feature, bin, low, high } => {
                let (below, above) = partition(problem, rows, feature, bin);
                let left = (levels, depth.saturating_sub(1));
                let low = grow(problem, *low, &below, left, limits, scratch);
                let high = grow(problem, *high, &above, left, limits, scratch);
                Node::split(feature, bin, low, high)
            }
            Node::Leaf if levels.min(depth) == 0 || rows.is_empty() => Node::Leaf,
            Node::Leaf => {
                let step = levels.min(depth).min(2);
                let ask = Ask { bound: f64::INFINITY, exact: false };
                let found = shallow::solve(problem, rows, step, ask, limits, scratch);
                match found.tree {
                    Node::Leaf => Node::Leaf,
                    split => grow(problem, split, rows, (levels - step, depth), limits, scratch),
                }
            }
        }
    }
    let rows = problem.all_rows();
    grow(problem, tree, &rows, (levels, depth), limits, &mut Scratch::default())
}

/// The rows that a question sends low, and those that it sends high, in order.
pub(super) fn partition(problem: &Problem, rows: &[u32], feature: usize, bin: u16) -> (Vec<u32>, Vec<u32>) {
    rows.iter().partition(|&&row| problem.bin(feature, row) <= bin)
}

/// Best trees of two levels of row sets without holes.
type Cache = Mutex<HashMap<u128, Kept>>;

/// A tree that is kept.
#[derive(Clone, Debug)]
struct Kept {
    found: Found,
    /// The work that it took, and the batch of first questions that it was found for. Whoever asks for it in the same batch is charged as much,
    /// whichever thread was first; later it is known to all, and free.
    work: u64,
    batch: usize,
}

/// What is known from step to step.
struct Known {
    memo: Memo,
    quadrants: Quadrants,
    work: u64,
    batches: usize,
}

/// What the sides of first questions cost at least, by feature and place.
type Memo = HashMap<(usize, usize), (f64, f64)>;

struct Search<'a> {
    problem: &'a Problem,
    cache: &'a Cache,
}

/// What became of the middle of an interval.
struct Solved {
    cost: f64,
    below: f64,
    above: f64,
    tree: Node,
    work: u64,
    learned: Vec<Learned>,
}

/// The questions that leave a set of rows.
#[derive(Clone, Copy, Debug)]
enum Path {
    /// None: these are all rows.
    All,
    /// One.
    Half(Half),
    /// Several.
    Deeper,
}

impl Path {
    const fn then(self, half: Half) -> Self {
        match self {
            Path::All => Path::Half(half),
            Path::Half(_) | Path::Deeper => Path::Deeper,
        }
    }

    /// The one question behind which another leaves rows for trees of two levels, where `depth` levels are to come.
    fn quadrants(self, depth: usize) -> Option<Half> {
        match self {
            Path::Half(half) if depth == 3 => Some(half),
            _ => None,
        }
    }
}

/// What the rows of two halves cost at least.
type Learned = (Half, Half, f64);

/// What a first question is solved with.
struct Task<'a> {
    limits: Limits<'a>,
    scratch: Scratch,
    /// What was known before: the same for all first questions that are solved at once, so that the result does not depend on the threads.
    known: &'a Known,
    learned: Vec<Learned>,
}

impl Task<'_> {
    fn ended(&self) -> bool {
        self.limits.reached(self.scratch.work())
    }
}

impl Search<'_> {
    /// Raises the bound on the trees over all rows to `bound`, or as far as the limits allow, improves `best` on the way, and returns the
    /// bound that was reached.
    fn root(
        &self,
        rows: &[u32],
        depth: usize,
        bound: f64,
        limits: &Limits<'_>,
        known: &mut Known,
        best: &mut Found,
    ) -> f64 {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(BATCH);
        let mut open = Open::of(self.problem, rows, best.lower);
        loop {
            let useful = best.cost.min(bound);
            let mut batch: Vec<Interval> = Vec::with_capacity(BATCH);
            while batch.len() < BATCH
                && let Some(next) = open.heap.peek().copied().filter(|next| next.bound < useful)
            {
                open.heap.pop();
                // What an earlier step has proved may do.
                match known.memo.get(&(next.feature, next.middle())) {
                    Some(&(below, above)) if below + above >= useful => open.halve(&next, below, above),
                    _ => batch.push(next),
                }
            }
            if batch.is_empty() {
                return open.lower();
            }
            if limits.reached(known.work) {
                open.heap.extend(batch);
                return open.lower();
            }
            let allowance = (limits.work - known.work) / batch.len() as u64;
            let of_each = limits.with_work(allowance);
            known.batches += 1;
            let solved = self.solve_batch(rows, depth, &batch, &open.lines, useful, threads, known, of_each);
            for (interval, solved) in batch.iter().zip(solved) {
                known.work += solved.work;
                solved.learned.iter().for_each(|&(a, b, least)| known.quadrants.learn(a, b, least));
                if solved.cost < best.cost {
                    best.cost = solved.cost;
                    best.tree = solved.tree;
                }
                let sides = known.memo.entry((interval.feature, interval.middle())).or_insert((0.0, 0.0));
                *sides = (sides.0.max(solved.below), sides.1.max(solved.above));
                let (below, above) = *sides;
                open.halve(interval, below, above);
            }
            let [found, bound] = [best.cost, best.lower.max(open.lower().min(useful))]
                .map(|cost| 100.0 * self.problem.mean_regret(cost));
            (limits.watch)(Event::At(format!("a tree of {found:.2} % is found, none is below {bound:.2} %")));
        }
    }

    /// The middle of each interval, in their order.
    #[expect(clippy::too_many_arguments, reason = "one step of `root`")]
    fn solve_batch(
        &self,
        rows: &[u32],
        depth: usize,
        batch: &[Interval],
        lines: &[Line],
        useful: f64,
        threads: usize,
        known: &Known,
        limits: Limits<'_>,
    ) -> Vec<Solved> {
        let next = std::sync::atomic::AtomicUsize::new(0);
        let solved: Vec<std::sync::OnceLock<Solved>> =
            batch.iter().map(|_| std::sync::OnceLock::new()).collect();
        let work = || {
            loop {
                let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let Some(interval) = batch.get(index) else { return };
                let scratch = Scratch::default();
                let mut task = Task { limits, scratch, known, learned: Vec::new() };
                let line = &lines[interval.feature];
                let mut found = self.middle(rows, depth, Path::All, interval, line, useful, &mut task);
                found.work = task.scratch.work();
                found.learned = task.learned;
                // Each place is taken by one thread only, so it is empty.
                let _ = solved[index].set(found);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads.min(batch.len()) {
                scope.spawn(work);
            }
            work();
        });
        solved.into_iter().map(|solved| solved.into_inner().expect("every interval was taken")).collect()
    }

    /// The best tree of at most `depth` questions over `rows`; one of `bound` or more is of no use.
    fn run(&self, rows: &[u32], depth: usize, path: Path, bound: f64, task: &mut Task<'_>) -> Found {
        let floor = self.problem.least_of(rows);
        if floor >= bound {
            return Found { cost: f64::INFINITY, lower: floor, tree: Node::Leaf };
        }
        let mut best = self.shallow(rows, depth.min(2), bound, task);
        if depth <= 2 || best.cost <= floor {
            return best;
        }
        let mut open = Open::of(self.problem, rows, floor);
        let half = path.quadrants(depth);
        while let Some(mut first) = open.heap.peek().copied() {
            let useful = best.cost.min(bound);
            if first.bound >= useful || task.ended() {
                break;
            }
            open.heap.pop();
            let line = &open.lines[first.feature];
            if let Some(half) = half {
                let [mut low, mut high] =
                    [(first.begin, false), (first.end - 1, true)].map(|(place, high)| {
                        task.known
                            .quadrants
                            .least(half, Half { feature: first.feature, bin: line.bins[place], high })
                    });
                (low, high) = (low.max(first.below), high.max(first.above));
                if low + high > first.bound {
                    first.bound = low + high;
                    open.heap.push(first);
                    continue;
                }
            }
            let solved = self.middle(rows, depth, path, &first, line, useful, task);
            if solved.cost < best.cost {
                best.cost = solved.cost;
                best.tree = solved.tree;
            }
            open.halve(&first, solved.below, solved.above);
        }
        // Whatever is still open is no better than the best tree, or of no use to the caller, unless the limits ended it.
        best.lower = open.lower().min(best.cost);
        best
    }

    /// The best tree of at most two levels.
    fn shallow(&self, rows: &[u32], depth: usize, bound: f64, task: &mut Task<'_>) -> Found {
        let ask = Ask { bound, exact: true };
        let Task { limits, scratch, known, .. } = task;
        if depth < 2 || rows.iter().any(|&row| self.problem.has_hole(row)) {
            return shallow::solve(self.problem, rows, depth, ask, limits, scratch);
        }
        let lock = || self.cache.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let key = self.problem.grid().key(rows);
        let kept = lock().get(&key).cloned();
        if let Some(Kept { found, work, batch }) = kept {
            if batch == known.batches {
                scratch.count(work);
            }
            return found;
        }
        let before = scratch.work();
        let found = shallow::solve(self.problem, rows, depth, ask, limits, scratch);
        let kept = Kept { found: found.clone(), work: scratch.work() - before, batch: known.batches };
        lock().insert(key, kept);
        found
    }

    #[expect(clippy::too_many_arguments, reason = "one step of `run`")]
    fn middle(
        &self,
        rows: &[u32],
        depth: usize,
        path: Path,
        interval: &Interval,
        line: &Line,
        useful: f64,
        task: &mut Task<'_>,
    ) -> Solved {
        let half = path.quadrants(depth);
        let middle = interval.middle();
        let (feature, bin) = (interval.feature, line.bins[middle]);
        let [low_half, high_half] = [false, true].map(|high| Half { feature, bin, high });
        // What the neighbours say of both sides.
        let mut below = interval.below + line.least_between(interval.begin, middle);
        let mut above = interval.above + line.least_between(middle + 1, interval.end);
        if let Some(half) = half {
            below = below.max(task.known.quadrants.least(half, low_half));
            above = above.max(task.known.quadrants.least(half, high_half));
        }
        let lost = |below: f64, above: f64| Solved {
            cost: f64::INFINITY,
            below,
            above,
            tree: Node::Leaf,
            work: 0,
            learned: Vec::new(),
        };
        if below + above >= useful {
            return lost(below, above);
        }
        let (low_rows, high_rows) = partition(self.problem, rows, feature, bin);
        // Each side first proves its share, by what two levels of it cost: half a proof of both takes less than a whole one of either.
        // Two levels are always solved to the end.
        let share = if depth > 3 { self.share(&low_rows, &high_rows, task) } else { 1.0 };
        let wanted = (useful * share).max(below).min(useful - above);
        let mut low = self.run(&low_rows, depth - 1, path.then(low_half), wanted, task);
        below = below.max(low.lower);
        if let Some(half) = half {
            task.learned.push((half, low_half, low.lower));
        }
        if below + above >= useful {
            // However good the other side is, this question cannot win.
            return lost(below, above);
        }
        let high = self.run(&high_rows, depth - 1, path.then(high_half), useful - below, task);
        above = above.max(high.lower);
        if let Some(half) = half {
            task.learned.push((half, high_half, high.lower));
        }
        if below + above < useful && low.lower < low.cost {
            low = self.run(&low_rows, depth - 1, path.then(low_half), useful - above, task);
            below = below.max(low.lower);
        }
        if !(low.cost + high.cost).is_finite() {
            return lost(below, above);
        }
        let tree = Node::split(feature, bin, low.tree, high.tree);
        let cost = low.cost + high.cost;
        Solved { cost, below, above, tree, work: 0, learned: Vec::new() }
    }

    /// The part of the cost of both sides that is likely to be the first one's.
    fn share(&self, low: &[u32], high: &[u32], task: &mut Task<'_>) -> f64 {
        if low.iter().chain(high).any(|&row| self.problem.has_hole(row)) {
            return 1.0;
        }
        let [low, high] = [low, high].map(|rows| self.shallow(rows, 2, f64::INFINITY, task).cost + 1.0);
        low / (low + high)
    }
}
