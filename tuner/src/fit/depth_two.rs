//! The best tree of at most two levels over a set of rows with fixed costs, exactly and fast.
//!
//! For a pair of features, the rows are counted into a table of bins x bins, a vector of candidate costs a cell. Prefix sums of it
//! give the costs of every quadrant, and so of every tree that asks one feature first and the other one on one side. All pairs
//! together give, for each first question, the best second question of each side on its own; their sum is the tree. Work grows with
//! bins² a pair and with rows only once a pair, not with rows x bins as for trees grown one split at a time.

use super::options::MAX_PORTFOLIO;
use super::problem::{Lanes, Problem, least};
use super::ranking::Ranker;
use super::search::Node;

/// Memory that solving reuses.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Costs of the rows in question, in their order.
    pub(super) costs: Vec<Lanes>,
    cells: Vec<Lanes>,
    /// For each feature, the bins that occur and the place of each row among them.
    present: Vec<Present>,
    seen: Vec<u16>,
    pub(super) ranker: Ranker,
    /// Work done: cells and rows that were added, comparable with [`Ranker::work`].
    work: u64,
}

#[derive(Debug, Default)]
struct Present {
    /// The bins that occur among the rows, in order.
    bins: Vec<u16>,
    /// For each row, which of them it has.
    place: Vec<u16>,
}

/// The best way found to go on from one side of a question.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    pub(super) cost: f64,
    /// Feature and bin of the second question; none for a leaf.
    question: Option<(usize, u16)>,
}

impl Side {
    fn improve(&mut self, cost: f64, question: Option<(usize, u16)>) {
        if cost < self.cost {
            *self = Self { cost, question };
        }
    }

    fn node(self) -> Node {
        match self.question {
            None => Node::Leaf,
            Some((feature, bin)) => Node::split(feature, bin, Node::Leaf, Node::Leaf),
        }
    }
}

const WORST: Side = Side { cost: f64::INFINITY, question: None };

/// A first question, and the best of both of its sides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) feature: usize,
    pub(super) bin: u16,
    pub(super) low: Side,
    pub(super) high: Side,
}

impl Question {
    pub(super) fn cost(&self) -> f64 {
        self.low.cost + self.high.cost
    }

    pub(super) fn node(&self) -> Node {
        Node::split(self.feature, self.bin, self.low.node(), self.high.node())
    }
}

impl Scratch {
    /// All work done.
    pub(super) fn work(&self) -> u64 {
        self.work + self.ranker.work
    }

    /// Counts work that was done before.
    pub(super) fn count(&mut self, work: u64) {
        self.work += work;
    }

    /// Takes up the rows' costs as the problem has them.
    pub(super) fn load(&mut self, problem: &Problem, rows: &[u32]) {
        self.costs.clear();
        self.costs.extend(rows.iter().map(|&row| *problem.costs(row)));
    }

    /// Every question that can be asked first, with the best of both sides at `depth` (1 or 2) questions in all, each row costing what
    /// [`Scratch::costs`] says.
    pub(super) fn questions(&mut self, problem: &Problem, rows: &[u32], depth: usize) -> Vec<Question> {
        pulp::Arch::new().dispatch(
            #[inline(always)]
            || self.all_questions(problem, rows, depth),
        )
    }

    #[inline(always)]
    fn all_questions(&mut self, problem: &Problem, rows: &[u32], depth: usize) -> Vec<Question> {
        self.fill(problem, rows);
        let features: Vec<usize> =
            (0..problem.features()).filter(|&feature| self.present[feature].bins.len() > 1).collect();
        let mut total = [0.0; MAX_PORTFOLIO];
        self.costs.iter().for_each(|costs| add(&mut total, costs));
        // For each feature that can be asked first and each place, the best of both sides.
        let mut sides: Vec<Vec<[Side; 2]>> =
            features.iter().map(|&feature| vec![[WORST; 2]; self.present[feature].bins.len() - 1]).collect();
        for (index, &feature) in features.iter().enumerate() {
            self.one_feature(feature, &total, depth, &mut sides[index]);
        }
        if depth == 2 {
            for first in 0..features.len() {
                for second in first + 1..features.len() {
                    let (head, tail) = sides.split_at_mut(second);
                    self.pair((features[first], features[second]), (&mut head[first], &mut tail[0]));
                }
            }
        }
        let questions = features.iter().zip(sides).flat_map(|(&feature, sides)| {
            let bins = &self.present[feature].bins;
            sides.into_iter().zip(bins).map(move |([low, high], &bin)| Question { feature, bin, low, high })
        });
        questions.collect()
    }

    /// Finds the bins that occur.
    #[inline(always)]
    fn fill(&mut self, problem: &Problem, rows: &[u32]) {
        self.present.resize_with(problem.features(), Present::default);
        for (feature, present) in self.present.iter_mut().enumerate() {
            self.seen.clear();
            self.seen.resize(problem.bin_count(feature), 0);
            for &row in rows {
                self.seen[usize::from(problem.bin(feature, row))] = 1;
            }
            present.bins.clear();
            for (bin, seen) in self.seen.iter_mut().enumerate() {
                if *seen != 0 {
                    *seen = present.bins.len() as u16;
                    present.bins.push(bin as u16);
                }
            }
            present.place.clear();
            present.place.extend(rows.iter().map(|&row| self.seen[usize::from(problem.bin(feature, row))]));
        }
        self.work += (rows.len() * problem.features()) as u64 / 8;
    }

    /// Sides that are leaves, and, with two questions left, sides that ask the same feature again.
    #[inline(always)]
    fn one_feature(&mut self, feature: usize, total: &Lanes, depth: usize, sides: &mut [[Side; 2]]) {
        let Self { costs, cells, present, .. } = self;
        let present = &present[feature];
        let bins = present.bins.len();
        clear(cells, bins);
        for (costs, &place) in costs.iter().zip(&present.place) {
            add(&mut cells[usize::from(place)], costs);
        }
        for i in 1..bins {
            let below = cells[i - 1];
            add(&mut cells[i], &below);
        }
        for (i, [low, high]) in sides.iter_mut().enumerate() {
            low.improve(least(&cells[i]), None);
            high.improve(least(&minus(total, &cells[i])), None);
            if depth < 2 {
                continue;
            }
            for j in 0..i {
                let cost = least(&cells[j]) + least(&minus(&cells[i], &cells[j]));
                low.improve(cost, Some((feature, present.bins[j])));
            }
            for j in i + 1..bins - 1 {
                let cost = least(&minus(&cells[j], &cells[i])) + least(&minus(total, &cells[j]));
                high.improve(cost, Some((feature, present.bins[j])));
            }
        }
        self.work += (self.costs.len() + if depth < 2 { bins } else { bins * bins }) as u64;
    }

    /// Sides that ask the other feature of a pair.
    #[inline(always)]
    fn pair(
        &mut self,
        (first, second): (usize, usize),
        (first_sides, second_sides): (&mut [[Side; 2]], &mut [[Side; 2]]),
    ) {
        let Self { costs, cells, present, .. } = self;
        let (a, b) = (&present[first], &present[second]);
        let (height, width) = (a.bins.len(), b.bins.len());
        clear(cells, height * width);
        for ((costs, &i), &j) in costs.iter().zip(&a.place).zip(&b.place) {
            add(&mut cells[usize::from(i) * width + usize::from(j)], costs);
        }
        for i in 0..height {
            // Along the row, then the rows above: cells become sums over everything up to them.
            for j in 1..width {
                let left = cells[i * width + j - 1];
                add(&mut cells[i * width + j], &left);
            }
            if i > 0 {
                let (above, this) = cells.split_at_mut(i * width);
                for (cell, above) in this[..width].iter_mut().zip(&above[(i - 1) * width..]) {
                    add(cell, above);
                }
            }
        }
        let last = &cells[(height - 1) * width..];
        let total = last[width - 1];
        for i in 0..height - 1 {
            let row_total = cells[i * width + width - 1];
            let beyond = minus(&total, &row_total);
            let [low, high] = &mut first_sides[i];
            for j in 0..width - 1 {
                let low_low = cells[i * width + j];
                let high_low = minus(&last[j], &low_low);
                // Low or high in the first feature, then in the second.
                let ll = least(&low_low);
                let lh = least(&minus(&row_total, &low_low));
                let hl = least(&high_low);
                let hh = least(&minus(&beyond, &high_low));
                low.improve(ll + lh, Some((second, b.bins[j])));
                high.improve(hl + hh, Some((second, b.bins[j])));
                let [second_low, second_high] = &mut second_sides[j];
                second_low.improve(ll + hl, Some((first, a.bins[i])));
                second_high.improve(lh + hh, Some((first, a.bins[i])));
            }
        }
        self.work += (self.costs.len() + height * width) as u64;
    }
}

#[inline(always)]
fn clear(cells: &mut Vec<Lanes>, len: usize) {
    cells.clear();
    cells.resize(len, [0.0; MAX_PORTFOLIO]);
}

#[inline(always)]
fn add(sum: &mut Lanes, more: &Lanes) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum += more;
    }
}

#[inline(always)]
fn minus(all: &Lanes, part: &Lanes) -> Lanes {
    let mut rest = *all;
    for (rest, part) in rest.iter_mut().zip(part) {
        *rest -= part;
    }
    rest
}
