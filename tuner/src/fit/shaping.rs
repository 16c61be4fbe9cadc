//! From the best tree to the one that is written: candidates for the leaves, and no split that gains nothing beyond noise.

use super::options::{FitOptions, MAX_PORTFOLIO};
use super::problem::Problem;
use super::search::{Node, partition};
use super::tree::Tree;

/// Candidates of a leaf tie if they differ by less than this part of the noise: below, it is no difference.
const TIE: f64 = 0.25;

/// A tree whose leaves have their rows.
#[derive(Clone, Debug)]
enum Grown {
    Split { feature: usize, bin: u16, low: Box<Grown>, high: Box<Grown> },
    Leaf(Vec<u32>),
}

/// Takes out splits that are not worth a leaf, then keeps within `max_leaves`, then names the candidates, and merges leaves that
/// agree.
pub(super) fn shape(problem: &Problem, tree: &Node, options: &FitOptions) -> Tree {
    let rows = (0..problem.rows() as u32).collect();
    let mut grown = grow(problem, tree, rows);
    let price = problem.cost_of(options.leaf_price / problem.rows().max(1) as f64);
    prune(problem, &mut grown, price, options.min_leaf_rows);
    while leaves(&grown) > options.max_leaves {
        collapse_cheapest(problem, &mut grown);
    }
    let mut places = Vec::new();
    collect(&grown, &mut places);
    let choices = choose(problem, &places);
    let mut next = choices.into_iter();
    name(problem, &grown, &mut next)
}

fn grow(problem: &Problem, tree: &Node, rows: Vec<u32>) -> Grown {
    match tree {
        Node::Leaf => Grown::Leaf(rows),
        Node::Split { feature, bin, low, high } => {
            let (below, above) = partition(problem, &rows, *feature, *bin);
            if below.is_empty() || above.is_empty() {
                // A question that all rows answer alike.
                let (side, rows) = if below.is_empty() { (high, above) } else { (low, below) };
                return grow(problem, side, rows);
            }
            let (low, high) = (Box::new(grow(problem, low, below)), Box::new(grow(problem, high, above)));
            Grown::Split { feature: *feature, bin: *bin, low, high }
        }
    }
}

fn leaf_cost(problem: &Problem, rows: &[u32]) -> f64 {
    problem.sum(rows).into_iter().fold(f64::INFINITY, f64::min)
}

fn cost(problem: &Problem, tree: &Grown) -> f64 {
    match tree {
        Grown::Leaf(rows) => leaf_cost(problem, rows),
        Grown::Split { low, high, .. } => cost(problem, low) + cost(problem, high),
    }
}

fn rows_of(tree: &Grown) -> Vec<u32> {
    let mut rows = Vec::new();
    collect_rows(tree, &mut rows);
    rows.sort_unstable();
    rows
}

fn collect_rows(tree: &Grown, rows: &mut Vec<u32>) {
    let mut places = Vec::new();
    collect(tree, &mut places);
    rows.extend(places.into_iter().flatten());
}

fn collect<'a>(tree: &'a Grown, places: &mut Vec<&'a [u32]>) {
    match tree {
        Grown::Leaf(rows) => places.push(rows),
        Grown::Split { low, high, .. } => {
            collect(low, places);
            collect(high, places);
        }
    }
}

fn leaves(tree: &Grown) -> usize {
    match tree {
        Grown::Leaf(_) => 1,
        Grown::Split { low, high, .. } => leaves(low) + leaves(high),
    }
}

/// From the bottom up: a question is left out if it saves less than the price of its further leaves, or if one side of it has too few
/// rows to tell.
fn prune(problem: &Problem, tree: &mut Grown, price: f64, min_rows: usize) {
    if let Grown::Split { low, high, .. } = tree {
        prune(problem, low, price, min_rows);
        prune(problem, high, price, min_rows);
        let few = [&**low, &**high]
            .into_iter()
            .any(|side| matches!(side, Grown::Leaf(rows) if rows.len() < min_rows));
        // Without the question: one leaf, or either side for all rows.
        let mut rows = Vec::new();
        collect_rows(low, &mut rows);
        collect_rows(high, &mut rows);
        rows.sort_unstable();
        let simpler =
            [Grown::Leaf(rows.clone()), regrow(problem, low, rows.clone()), regrow(problem, high, rows)];
        let worth = |tree: &Grown| cost(problem, tree) + price * leaves(tree) as f64;
        let least =
            simpler.into_iter().min_by(|a, b| worth(a).total_cmp(&worth(b)).then(leaves(a).cmp(&leaves(b))));
        if let Some(least) = least.filter(|least| few || worth(least) <= worth(tree)) {
            *tree = least;
        }
    }
}

/// The same questions for other rows; those that all of them answer alike are left out.
fn regrow(problem: &Problem, tree: &Grown, rows: Vec<u32>) -> Grown {
    let Grown::Split { feature, bin, low, high } = tree else { return Grown::Leaf(rows) };
    let (below, above) = partition(problem, &rows, *feature, *bin);
    match (below.is_empty(), above.is_empty()) {
        (true, _) => regrow(problem, high, above),
        (_, true) => regrow(problem, low, below),
        _ => Grown::Split {
            feature: *feature,
            bin: *bin,
            low: Box::new(regrow(problem, low, below)),
            high: Box::new(regrow(problem, high, above)),
        },
    }
}

/// Makes one leaf of the subtree that loses least for each leaf it gives up.
fn collapse_cheapest(problem: &Problem, tree: &mut Grown) {
    fn cheapest(problem: &Problem, tree: &Grown, path: &mut Vec<bool>, best: &mut Option<(f64, Vec<bool>)>) {
        if let Grown::Split { low, high, .. } = tree {
            let lost = leaf_cost(problem, &rows_of(tree)) - cost(problem, tree);
            let each = lost / (leaves(tree) - 1) as f64;
            if best.as_ref().is_none_or(|(least, _)| each < *least) {
                *best = Some((each, path.clone()));
            }
            for (side, child) in [(false, low), (true, high)] {
                path.push(side);
                cheapest(problem, child, path, best);
                path.pop();
            }
        }
    }
    let mut best = None;
    cheapest(problem, tree, &mut Vec::new(), &mut best);
    let Some((_, path)) = best else { return };
    let mut node = tree;
    for side in path {
        let Grown::Split { low, high, .. } = node else { return };
        node = if side { high } else { low };
    }
    *node = Grown::Leaf(rows_of(node));
}

/// A lane for each leaf. Among lanes that tie, those that serve most of all leaves' weight: few distinct candidates, and the same
/// ones when the table is measured again.
fn choose(problem: &Problem, places: &[&[u32]]) -> Vec<usize> {
    let lanes = problem.portfolio.len();
    let weight = |rows: &[u32]| rows.iter().map(|&row| problem.weight(row)).sum::<f64>();
    let tied: Vec<[bool; MAX_PORTFOLIO]> = places
        .iter()
        .map(|rows| {
            let sums = problem.sum(rows);
            let best = sums.into_iter().fold(f64::INFINITY, f64::min);
            let tie = problem.cost_of(TIE * problem.noise * weight(rows));
            let mut tied = [false; MAX_PORTFOLIO];
            for lane in 0..lanes {
                tied[lane] = sums[lane] <= best + tie;
            }
            tied
        })
        .collect();
    let mut choices = vec![None; places.len()];
    while choices.iter().any(Option::is_none) {
        let served = |lane: usize| {
            let open = places.iter().zip(&tied).zip(&choices);
            open.filter(|((_, tied), choice)| choice.is_none() && tied[lane])
                .map(|((rows, _), _)| weight(rows) + 1e-12)
                .sum::<f64>()
        };
        // The first of equals.
        let lane = (0..lanes).rev().max_by(|&a, &b| served(a).total_cmp(&served(b))).unwrap_or(0);
        for (choice, tied) in choices.iter_mut().zip(&tied) {
            if choice.is_none() && tied[lane] {
                *choice = Some(lane);
            }
        }
    }
    choices.into_iter().flatten().collect()
}

fn name(problem: &Problem, tree: &Grown, choices: &mut impl Iterator<Item = usize>) -> Tree {
    match tree {
        Grown::Leaf(rows) => leaf(problem, rows, choices.next().unwrap_or(0)),
        Grown::Split { feature, bin, low, high } => {
            let (named_low, named_high) = (name(problem, low, choices), name(problem, high, choices));
            if let (Tree::Leaf { ranked: a, .. }, Tree::Leaf { ranked: b, .. }) = (&named_low, &named_high)
                && a == b
            {
                let lane = problem.portfolio.iter().position(|candidate| *candidate == a[0]).unwrap_or(0);
                return leaf(problem, &rows_of(tree), lane);
            }
            let threshold = problem.threshold(*feature, *bin);
            Tree::Split { feature: *feature, threshold, low: Box::new(named_low), high: Box::new(named_high) }
        }
    }
}

/// A leaf with its ranking: the chosen candidate, then what serves the rows on which it is invalid. Where nothing serves all of them, the best one
/// for those that are left, and so on.
fn leaf(problem: &Problem, rows: &[u32], lane: usize) -> Tree {
    let mut ranked = vec![lane];
    let mut left: Vec<u32> =
        rows.iter().copied().filter(|&row| problem.valid(row) & (1 << lane) == 0).collect();
    if let (Some(substitute), false) = (problem.substitute, left.is_empty()) {
        ranked.push(substitute);
        left.clear();
    }
    while !left.is_empty() {
        let covered = |lane: usize| left.iter().filter(|&&row| problem.valid(row) & (1 << lane) != 0).count();
        let sums = problem.sum(&left);
        let order = |a: &usize, b: &usize| {
            covered(*b).cmp(&covered(*a)).then(sums[*a].total_cmp(&sums[*b])).then(a.cmp(b))
        };
        let Some(next) = (0..problem.portfolio.len()).min_by(order).filter(|&lane| covered(lane) > 0) else {
            break;
        };
        ranked.push(next);
        left.retain(|&row| problem.valid(row) & (1 << next) == 0);
    }
    let regret = |row: u32| {
        let chosen = ranked.iter().find(|&&lane| problem.valid(row) & (1 << lane) != 0);
        chosen.map_or(0.0, |&lane| problem.costs(row)[lane])
    };
    let weight: f64 = rows.iter().map(|&row| problem.weight(row)).sum();
    let cost: f64 = rows.iter().map(|&row| regret(row)).sum();
    Tree::Leaf {
        ranked: ranked.iter().map(|&lane| problem.portfolio[lane]).collect(),
        support: rows.len(),
        regret: if weight > 0.0 { problem.mean_regret(cost) / weight } else { 0.0 },
    }
}
