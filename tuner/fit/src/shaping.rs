//! From the best tree to the one that is written: rankings for the leaves, and no split that gains nothing beyond noise.

use super::options::FitOptions;
use super::problem::Problem;
use super::ranking::{Ranker, Ranking};
use super::regrets::Regrets;
use super::search::{Node, partition};
use super::tree::Tree;

/// Candidates of a leaf tie if they differ by less than this part of the noise: below, it is no difference.
const TIE: f64 = 0.25;

/// Sums that differ by less than this part are equal: their terms were added in different orders.
const ROUNDING: f64 = 1e-12;

/// A tree whose leaves have their rows, and what these cost.
#[derive(Clone, Debug)]
enum Grown {
    Split { feature: usize, bin: u16, low: Box<Grown>, high: Box<Grown> },
    Leaf { rows: Vec<u32>, cost: f64 },
}

/// What shaping works on.
struct Shaping<'a> {
    problem: &'a Problem,
    searched: &'a Problem,
    regrets: &'a Regrets,
    ranker: Ranker,
}

/// Takes out splits that are not worth a leaf, then keeps within `max_leaves`, then names the candidates, and merges leaves that
/// agree. Returns the tree, and what it costs in the numbers of `searched`; `problem` is the same with its costs as they are.
pub(super) fn shape(
    problem: &Problem,
    searched: &Problem,
    regrets: &Regrets,
    tree: &Node,
    options: &FitOptions,
) -> (Tree, f64) {
    let rows = problem.all_rows();
    let mut shaping = Shaping { problem, searched, regrets, ranker: Ranker::default() };
    let mut grown = shaping.grow(tree, rows);
    let price = problem.cost_of(options.leaf_price / problem.rows().max(1) as f64);
    shaping.prune(&mut grown, price, options.min_leaf_rows);
    while leaves(&grown) > options.max_leaves {
        shaping.collapse_cheapest(&mut grown);
    }
    let mut places = Vec::new();
    collect(&grown, &mut places);
    let choices = shaping.choose(&places);
    let named = shaping.name(&grown, &mut choices.into_iter());
    let mut cost = 0.0;
    let tree = shaping.finish(named, &mut Vec::new(), &mut cost);
    (tree, cost)
}

/// A tree whose leaves have their rankings.
enum Named {
    Split { feature: usize, bin: u16, low: Box<Named>, high: Box<Named> },
    Leaf { rows: Vec<u32>, ranking: Ranking },
}

impl Named {
    fn rows(&self) -> Vec<u32> {
        match self {
            Named::Leaf { rows, .. } => rows.clone(),
            Named::Split { low, high, .. } => merged(low.rows(), high.rows()),
        }
    }
}

impl Shaping<'_> {
    fn leaf(&mut self, rows: Vec<u32>) -> Grown {
        let cost = self.ranker.best(self.problem, &rows, None).cost;
        Grown::Leaf { rows, cost }
    }

    fn grow(&mut self, tree: &Node, rows: Vec<u32>) -> Grown {
        match tree {
            Node::Leaf => self.leaf(rows),
            Node::Split { feature, bin, low, high } => {
                let (below, above) = partition(self.problem, &rows, *feature, *bin);
                if below.is_empty() || above.is_empty() {
                    // A question that all rows answer alike.
                    let (side, rows) = if below.is_empty() { (high, above) } else { (low, below) };
                    return self.grow(side, rows);
                }
                let (low, high) = (Box::new(self.grow(low, below)), Box::new(self.grow(high, above)));
                Grown::Split { feature: *feature, bin: *bin, low, high }
            }
        }
    }

    /// From the bottom up: a question is left out if it saves less than the price of its further leaves, or if one side of it has too
    /// few rows to tell.
    fn prune(&mut self, tree: &mut Grown, price: f64, min_rows: usize) {
        if let Grown::Split { low, high, .. } = tree {
            self.prune(low, price, min_rows);
            self.prune(high, price, min_rows);
            let few = [&**low, &**high]
                .into_iter()
                .any(|side| matches!(side, Grown::Leaf { rows, .. } if rows.len() < min_rows));
            // Without the question: one leaf, or either side for all rows.
            let rows = merged(rows_of(low), rows_of(high));
            let simpler = [self.leaf(rows.clone()), self.regrow(low, rows.clone()), self.regrow(high, rows)];
            let worth = |tree: &Grown| cost(tree) + price * leaves(tree) as f64;
            let least = simpler
                .into_iter()
                .min_by(|a, b| worth(a).total_cmp(&worth(b)).then(leaves(a).cmp(&leaves(b))));
            if let Some(least) = least.filter(|least| few || worth(least) <= worth(tree) * (1.0 + ROUNDING)) {
                *tree = least;
            }
        }
    }

    /// The same questions for other rows; those that all of them answer alike are left out.
    fn regrow(&mut self, tree: &Grown, rows: Vec<u32>) -> Grown {
        let Grown::Split { feature, bin, low, high } = tree else { return self.leaf(rows) };
        let (below, above) = partition(self.problem, &rows, *feature, *bin);
        match (below.is_empty(), above.is_empty()) {
            (true, _) => self.regrow(high, above),
            (_, true) => self.regrow(low, below),
            _ => Grown::Split {
                feature: *feature,
                bin: *bin,
                low: Box::new(self.regrow(low, below)),
                high: Box::new(self.regrow(high, above)),
            },
        }
    }

    /// Makes one leaf of the subtree that loses least for each leaf it gives up.
    fn collapse_cheapest(&mut self, tree: &mut Grown) {
        let mut best = None;
        self.cheapest(tree, &mut Vec::new(), &mut best);
        let Some((_, path)) = best else { return };
        let mut node = tree;
        for side in path {
            let Grown::Split { low, high, .. } = node else { return };
            node = if side { high } else { low };
        }
        let rows = rows_of(node);
        *node = self.leaf(rows);
    }

    fn cheapest(&mut self, tree: &Grown, path: &mut Vec<bool>, best: &mut Option<(f64, Vec<bool>)>) {
        if let Grown::Split { low, high, .. } = tree {
            let lost = cost(&self.leaf(rows_of(tree))) - cost(tree);
            let each = lost / (leaves(tree) - 1) as f64;
            if best.as_ref().is_none_or(|(least, _)| each < *least) {
                *best = Some((each, path.clone()));
            }
            for (side, child) in [(false, low), (true, high)] {
                path.push(side);
                self.cheapest(child, path, best);
                path.pop();
            }
        }
    }

    /// A lane for each leaf, the first of its ranking. Among lanes that tie, those that serve most of all leaves' weight: few distinct
    /// candidates, and the same ones when the table is measured again.
    fn choose(&mut self, places: &[&[u32]]) -> Vec<usize> {
        let lanes = self.problem.lanes();
        let weight = |rows: &[u32]| rows.iter().map(|&row| self.problem.weight(row)).sum::<f64>();
        let weights: Vec<f64> = places.iter().map(|rows| weight(rows)).collect();
        let tied: Vec<Vec<bool>> =
            places.iter().zip(&weights).map(|(rows, &weight)| self.tied(rows, weight)).collect();
        let mut choices = vec![None; places.len()];
        while choices.iter().any(Option::is_none) {
            let served = |lane: usize| {
                let open = weights.iter().zip(&tied).zip(&choices);
                open.filter(|((_, tied), choice)| choice.is_none() && tied[lane])
                    .map(|((weight, _), _)| weight + 1e-12)
                    .sum::<f64>()
            };
            // The first of equals.
            let lane = (0..=lanes).rev().max_by(|&a, &b| served(a).total_cmp(&served(b))).unwrap_or(0);
            for (choice, tied) in choices.iter_mut().zip(&tied) {
                if choice.is_none() && tied[lane] {
                    *choice = Some(lane);
                }
            }
        }
        choices.into_iter().flatten().collect()
    }

    /// The lanes with which a leaf's ranking can begin at about the least cost.
    fn tied(&mut self, rows: &[u32], weight: f64) -> Vec<bool> {
        let lanes = self.problem.lanes();
        let best = self.ranker.best(self.problem, rows, None);
        let enough = best.cost * (1.0 + ROUNDING) + self.problem.cost_of(TIE * self.problem.noise * weight);
        let at_least = self.problem.sum(rows);
        let all_settled = rows.iter().all(|&row| self.problem.is_settled(row));
        let asked = rows.iter().filter(|&&row| all_settled || !self.problem.is_settled(row));
        let some_valid = asked.fold(0, |all, &row| all | self.problem.valid(row));
        let mut tied: Vec<bool> = (0..lanes)
            .map(|lane| {
                some_valid & (1 << lane) != 0
                    && at_least[lane] <= enough
                    && self.ranker.best(self.problem, rows, Some(lane)).cost <= enough
            })
            .collect();
        // A leaf of the safe default alone ties with nothing.
        let first = best.lanes.first().copied();
        tied.push(first == Some(lanes));
        if let Some(first) = first {
            tied[first] = true;
        }
        tied
    }

    fn name(&mut self, tree: &Grown, choices: &mut impl Iterator<Item = usize>) -> Named {
        match tree {
            Grown::Leaf { rows, .. } => {
                let ranking = self.ranker.best(self.problem, rows, choices.next());
                Named::Leaf { rows: rows.clone(), ranking }
            }
            Grown::Split { feature, bin, low, high } => {
                let (low, high) = (self.name(low, choices), self.name(high, choices));
                if let (Named::Leaf { rows: a, ranking: low }, Named::Leaf { rows: b, ranking: high }) =
                    (&low, &high)
                    && low.lanes.first() == high.lanes.first()
                {
                    // One leaf does for both if its ranking costs no more than theirs.
                    let rows = merged(a.clone(), b.clone());
                    let ranking = self.ranker.best(self.problem, &rows, low.lanes.first().copied());
                    if ranking.cost <= (low.cost + high.cost) * (1.0 + ROUNDING) {
                        return Named::Leaf { rows, ranking };
                    }
                }
                Named::Split { feature: *feature, bin: *bin, low: Box::new(low), high: Box::new(high) }
            }
        }
    }

    /// The tree as it is written. `above` has the rows of each question on the path.
    fn finish(&mut self, tree: Named, above: &mut Vec<Vec<u32>>, cost: &mut f64) -> Tree {
        match tree {
            Named::Leaf { rows, ranking } => {
                let searched = self.searched;
                let of_row =
                    |&row: &u32| ranking.lane_of(searched, row).map_or(0.0, |lane| searched.cost(row, lane));
                *cost += rows.iter().map(of_row).sum::<f64>();
                let lanes = self.completed(ranking.lanes, &rows, above);
                let ranked: Vec<usize> = lanes.iter().map(|&lane| self.problem.candidate(lane)).collect();
                let weight: f64 = rows.iter().map(|&row| self.problem.weight(row)).sum();
                let regret = |&row: &u32| {
                    self.problem.weight(row)
                        * self.regrets.of_ranking(row as usize, &ranked, self.problem.safe_default())
                };
                let regret = rows.iter().map(regret).sum::<f64>();
                Tree::Leaf {
                    support: rows.len(),
                    regret: if weight > 0.0 { regret / weight } else { 0.0 },
                    ranked,
                }
            }
            Named::Split { feature, bin, low, high } => {
                above.push(merged(low.rows(), high.rows()));
                let threshold = self.problem.grid().threshold(feature, bin);
                let low = Box::new(self.finish(*low, above, cost));
                let high = Box::new(self.finish(*high, above, cost));
                above.pop();
                Tree::Split { feature, threshold, low, high }
            }
        }
    }

    /// A leaf's ranking, and behind it what serves the rows that it does not: those of the question above, then those of the one above
    /// that. A row that ends here later may lack what all of the leaf's own rows have.
    fn completed(&mut self, mut lanes: Vec<usize>, own: &[u32], above: &[Vec<u32>]) -> Vec<usize> {
        for rows in above.iter().rev().map(Vec::as_slice).chain([own]) {
            let served = |row: u32| {
                let valid = self.problem.valid(row);
                self.problem.is_settled(row) || lanes.iter().any(|lane| valid & (1 << lane) != 0)
            };
            let left: Vec<u32> = rows.iter().copied().filter(|&row| !served(row)).collect();
            if !left.is_empty() {
                let behind = self.ranker.best(self.problem, &left, None).lanes;
                lanes.extend(behind);
            }
        }
        lanes
    }
}

fn cost(tree: &Grown) -> f64 {
    match tree {
        Grown::Leaf { cost, .. } => *cost,
        Grown::Split { low, high, .. } => cost(low) + cost(high),
    }
}

fn rows_of(tree: &Grown) -> Vec<u32> {
    let mut places = Vec::new();
    collect(tree, &mut places);
    let mut rows: Vec<u32> = places.into_iter().flatten().copied().collect();
    rows.sort_unstable();
    rows
}

fn merged(mut rows: Vec<u32>, more: Vec<u32>) -> Vec<u32> {
    rows.extend(more);
    rows.sort_unstable();
    rows
}

fn collect<'a>(tree: &'a Grown, places: &mut Vec<&'a [u32]>) {
    match tree {
        Grown::Leaf { rows, .. } => places.push(rows),
        Grown::Split { low, high, .. } => {
            collect(low, places);
            collect(high, places);
        }
    }
}

fn leaves(tree: &Grown) -> usize {
    match tree {
        Grown::Leaf { .. } => 1,
        Grown::Split { low, high, .. } => leaves(low) + leaves(high),
    }
}
