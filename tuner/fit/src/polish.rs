//! Questions of a tree moved where they cost less, one at a time.
//!
//! With the rest of the tree as it is, a question only decides which rows take what the low side gives them and which what the high side
//! gives them. So the best question there is one pass over each feature, with every threshold there is, not only those that the search has
//! tried. Questions are taken in turn, then leaves get their best rankings, as long as the tree gets cheaper (tree alternating
//! optimization, Carreira-Perpinan and Tavallali, NeurIPS 2018).

use super::problem::Problem;
use super::ranking::{Ranker, Ranking};
use super::search::{Node, partition};

/// Passes over the tree: each makes it cheaper, and few are ever needed.
const PASSES: usize = 20;

/// What is gained less than this part of the cost is rounding.
const ROUNDING: f64 = 1e-9;

/// A tree whose leaves have their rankings.
enum Placed {
    Leaf(Ranking),
    Split { feature: usize, bin: u16, low: Box<Placed>, high: Box<Placed> },
}

/// The tree with its questions moved. `problem` has its costs as they are, and bins as fine as are wanted.
pub(super) fn polish(problem: &Problem, mut tree: Node, ranker: &mut Ranker) -> Node {
    let rows = problem.all_rows();
    let everywhere = ranker.best(problem, &rows, None);
    for _ in 0..PASSES {
        let mut placed = place(problem, &tree, &rows, &everywhere, ranker);
        if !improve(problem, &mut placed, &rows) {
            break;
        }
        tree = questions(placed);
    }
    tree
}

fn place(problem: &Problem, tree: &Node, rows: &[u32], everywhere: &Ranking, ranker: &mut Ranker) -> Placed {
    match tree {
        Node::Leaf if rows.is_empty() => Placed::Leaf(everywhere.clone()),
        Node::Leaf => Placed::Leaf(ranker.best(problem, rows, None)),
        Node::Split { feature, bin, low, high } => {
            let (below, above) = partition(problem, rows, *feature, *bin);
            let low = Box::new(place(problem, low, &below, everywhere, ranker));
            let high = Box::new(place(problem, high, &above, everywhere, ranker));
            Placed::Split { feature: *feature, bin: *bin, low, high }
        }
    }
}

fn questions(tree: Placed) -> Node {
    match tree {
        Placed::Leaf(_) => Node::Leaf,
        Placed::Split { feature, bin, low, high } => {
            Node::split(feature, bin, questions(*low), questions(*high))
        }
    }
}

/// Moves every question to where it costs least, from the root down, and says whether one was moved.
fn improve(problem: &Problem, tree: &mut Placed, rows: &[u32]) -> bool {
    let Placed::Split { feature, bin, low, high } = tree else { return false };
    let costs: Vec<[f64; 2]> =
        rows.iter().map(|&row| [&*low, &*high].map(|side| cost(problem, side, row))).collect();
    let now: f64 = rows
        .iter()
        .zip(&costs)
        .map(|(&row, costs)| costs[usize::from(problem.bin(*feature, row) > *bin)])
        .sum();
    let mut moved = false;
    if let Some((least, best_feature, best_bin)) = best_question(problem, rows, &costs)
        && least < now * (1.0 - ROUNDING)
    {
        (*feature, *bin) = (best_feature, best_bin);
        moved = true;
    }
    let (below, above) = partition(problem, rows, *feature, *bin);
    moved |= improve(problem, low, &below);
    moved | improve(problem, high, &above)
}

/// What a row costs in a tree; infinite where nothing of its leaf's ranking is valid.
fn cost(problem: &Problem, tree: &Placed, row: u32) -> f64 {
    match tree {
        Placed::Split { feature, bin, low, high } => {
            cost(problem, if problem.bin(*feature, row) <= *bin { low } else { high }, row)
        }
        // The same in every tree.
        Placed::Leaf(_) if problem.is_settled(row) => 0.0,
        Placed::Leaf(ranking) => {
            ranking.lane_of(problem, row).map_or(f64::INFINITY, |lane| problem.cost(row, lane))
        }
    }
}

/// The question that sends rows to the cheaper side: what they cost then, its feature and bin; the first of equals.
fn best_question(problem: &Problem, rows: &[u32], costs: &[[f64; 2]]) -> Option<(f64, usize, u16)> {
    let mut best = None;
    for feature in 0..problem.features() {
        let mut of_bin = vec![[0.0f64; 2]; problem.bin_count(feature)];
        for (&row, costs) in rows.iter().zip(costs) {
            let sums = &mut of_bin[usize::from(problem.bin(feature, row))];
            *sums = [sums[0] + costs[0], sums[1] + costs[1]];
        }
        // What all rows above each bin cost on the high side.
        let mut above = vec![0.0; of_bin.len()];
        for bin in (1..of_bin.len()).rev() {
            above[bin - 1] = above[bin] + of_bin[bin][1];
        }
        let mut below = 0.0;
        for bin in 0..of_bin.len() - 1 {
            below += of_bin[bin][0];
            let cost = below + above[bin];
            if best.is_none_or(|(least, _, _)| cost < least) {
                best = Some((cost, feature, bin as u16));
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::super::grid::Grid;
    use super::super::problem::grid;
    use super::super::regrets::Regrets;
    use super::super::tests::table;
    use super::*;

    #[test]
    fn questions_move_to_thresholds_that_the_search_did_not_try() {
        // Best below 37 and 71 of two features; a coarse grid has neither.
        let rows: Vec<[u64; 2]> = (0..100).flat_map(|x| (0..100).map(move |y| [x, y])).collect();
        let cost = |best: bool| if best { Some(1.0) } else { Some(1.5) };
        let costs: Vec<[Option<f64>; 3]> = rows
            .iter()
            .map(|&[x, y]| [cost(x < 37), cost(x >= 37 && y < 71), cost(x >= 37 && y >= 71)])
            .collect();
        let rows: Vec<&[u64]> = rows.iter().map(|row| &row[..]).collect();
        let costs: Vec<&[Option<f64>]> = costs.iter().map(|costs| &costs[..]).collect();
        let table = table(&rows, &costs);
        let coarse: Grid = std::sync::Arc::into_inner(grid(&table, 4)).unwrap();
        let finer = std::sync::Arc::new(coarse.finer(&table));
        let problem = Problem::unrounded(finer.clone(), &Regrets::of(&table, 0.0), &[0, 1, 2], 0);
        let nearest = |feature, wanted: u64| {
            (0..4).min_by_key(|&bin| coarse.threshold(feature, bin).abs_diff(wanted)).unwrap()
        };
        let below = Node::split(1, nearest(1, 70), Node::Leaf, Node::Leaf);
        let tree = coarse.on(&finer, &Node::split(0, nearest(0, 36), Node::Leaf, below));
        let mut scratch = super::super::depth_two::Scratch::default();
        let mut cost_of =
            |tree: &Node| super::super::shallow::cost_of(&problem, tree, &problem.all_rows(), &mut scratch);
        assert!(cost_of(&tree) > 0.01);
        let polished = polish(&problem, tree, &mut Ranker::default());
        assert_eq!(cost_of(&polished), 0.0);
    }
}
