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
use super::sides::{Any, Vectors, lesser};

/// Candidates that a step of work adds up: those of a small portfolio, and half of those of a large one.
pub(super) const WORK_LANES: usize = MAX_PORTFOLIO / 2;

/// Memory that solving reuses.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Costs of the rows in question, in their order.
    pub(super) costs: Vec<Lanes>,
    /// The same in the order of the feature that is asked first.
    sorted: Vec<Lanes>,
    pairs: Pairs,
    /// For each feature, the bins that occur and the place of each row among them.
    present: Vec<Present>,
    seen: Vec<u16>,
    pub(super) ranker: Ranker,
    /// Work done: [`WORK_LANES`] of each cell and row that were added, comparable with [`Ranker::work`].
    work: u64,
}

#[derive(Debug, Default)]
struct Present {
    /// The bins that occur among the rows, in order.
    bins: Vec<u16>,
    /// For each row, which of them it has.
    place: Vec<u16>,
    /// The rows by place, and where those of each place begin.
    rows: Vec<u32>,
    begin: Vec<u32>,
    /// Costs of all rows up to each place.
    up_to: Vec<Lanes>,
}

impl Present {
    /// Sorts the rows by place, and adds up their costs.
    #[inline(always)]
    fn sort(&mut self, costs: &[Lanes]) {
        reset(&mut self.begin, self.bins.len() + 1, 0);
        reset(&mut self.up_to, self.bins.len(), [0.0; MAX_PORTFOLIO]);
        for (costs, &place) in costs.iter().zip(&self.place) {
            self.begin[usize::from(place) + 1] += 1;
            add::<MAX_PORTFOLIO>(&mut self.up_to[usize::from(place)], costs);
        }
        for place in 1..self.bins.len() {
            self.begin[place + 1] += self.begin[place];
            let below = self.up_to[place - 1];
            add::<MAX_PORTFOLIO>(&mut self.up_to[place], &below);
        }
        let mut next = self.begin.clone();
        reset(&mut self.rows, self.place.len(), 0);
        for (row, &place) in self.place.iter().enumerate() {
            let at = &mut next[usize::from(place)];
            self.rows[*at as usize] = row as u32;
            *at += 1;
        }
    }
}

/// One row of a pair's table.
#[derive(Debug, Default)]
struct Pairs {
    /// Costs of the row itself.
    added: Vec<Lanes>,
    /// Costs of everything up to the row and the column.
    sums: Vec<Lanes>,
    /// The low and the high side of a first question about the first feature, by column of the second question.
    firsts: Vec<[f64; 2]>,
    /// The best of both sides of a first question about the second feature, and the row of the second question.
    seconds: Vec<([f64; 2], [f64; 2])>,
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

/// What [`Scratch::questions`] is asked.
struct AllQuestions<'a> {
    scratch: &'a mut Scratch,
    problem: &'a Problem,
    rows: &'a [u32],
    depth: usize,
}

impl AllQuestions<'_> {
    #[inline(always)]
    fn answer<V: Vectors>(self, vectors: V) -> Vec<Question> {
        if self.problem.lanes() <= WORK_LANES {
            self.scratch.all_questions::<V, WORK_LANES>(vectors, self.problem, self.rows, self.depth)
        } else {
            self.scratch.all_questions::<V, MAX_PORTFOLIO>(vectors, self.problem, self.rows, self.depth)
        }
    }
}

/// The same for a processor's vectors. A closure would be compiled without them: it is not inlined where they are known.
#[cfg(target_arch = "x86_64")]
struct With<'a> {
    vectors: pulp::x86::V3,
    asked: AllQuestions<'a>,
}

#[cfg(target_arch = "x86_64")]
impl pulp::NullaryFnOnce for With<'_> {
    type Output = Vec<Question>;

    #[inline(always)]
    fn call(self) -> Vec<Question> {
        self.asked.answer(self.vectors)
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
        let asked = AllQuestions { scratch: self, problem, rows, depth };
        #[cfg(target_arch = "x86_64")]
        if let Some(vectors) = pulp::x86::V3::try_new() {
            return vectors.vectorize(With { vectors, asked });
        }
        asked.answer(Any)
    }

    #[inline(always)]
    fn all_questions<V: Vectors, const L: usize>(
        &mut self,
        vectors: V,
        problem: &Problem,
        rows: &[u32],
        depth: usize,
    ) -> Vec<Question> {
        self.fill(problem, rows);
        let features: Vec<usize> =
            (0..problem.features()).filter(|&feature| self.present[feature].bins.len() > 1).collect();
        // For each feature that can be asked first and each place, the best of both sides.
        let mut sides: Vec<Vec<[Side; 2]>> =
            features.iter().map(|&feature| vec![[WORST; 2]; self.present[feature].bins.len() - 1]).collect();
        for (index, &feature) in features.iter().enumerate() {
            self.one_feature::<L>(feature, depth, &mut sides[index]);
        }
        if depth == 2 {
            for first in 0..features.len() {
                let Self { costs, sorted, present, .. } = self;
                sorted.clear();
                sorted.extend(present[features[first]].rows.iter().map(|&row| costs[row as usize]));
                for second in first + 1..features.len() {
                    let (head, tail) = sides.split_at_mut(second);
                    let pair = (features[first], features[second]);
                    self.pair::<V, L>(vectors, pair, (&mut head[first], &mut tail[0]));
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
            present.sort(&self.costs);
        }
        self.work += (rows.len() * problem.features()) as u64 / 8;
    }

    /// Sides that are leaves, and, with two questions left, sides that ask the same feature again.
    #[inline(always)]
    fn one_feature<const L: usize>(&mut self, feature: usize, depth: usize, sides: &mut [[Side; 2]]) {
        let present = &self.present[feature];
        let (cells, bins) = (&present.up_to, present.bins.len());
        let total = &cells[bins - 1];
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
        self.work +=
            (L / WORK_LANES * (self.costs.len() + if depth < 2 { bins } else { bins * bins })) as u64;
    }

    /// Sides that ask the other feature of a pair. The table of the pair is made one row of cells at a time.
    #[inline(always)]
    fn pair<V: Vectors, const L: usize>(
        &mut self,
        vectors: V,
        (first, second): (usize, usize),
        (first_sides, second_sides): (&mut [[Side; 2]], &mut [[Side; 2]]),
    ) {
        let Self { sorted, present, pairs, .. } = self;
        let (a, b) = (&present[first], &present[second]);
        let (height, width) = (a.bins.len(), b.bins.len());
        let Pairs { added, sums, firsts, seconds } = pairs;
        reset(added, width, [0.0; MAX_PORTFOLIO]);
        reset(sums, width, [0.0; MAX_PORTFOLIO]);
        reset(firsts, width, [0.0; 2]);
        reset(seconds, width, ([f64::INFINITY; 2], [0.0; 2]));
        for (i, of_first) in first_sides.iter_mut().enumerate() {
            let of_row = a.begin[i] as usize..a.begin[i + 1] as usize;
            for (&row, costs) in a.rows[of_row.clone()].iter().zip(&sorted[of_row]) {
                add::<L>(&mut added[usize::from(b.place[row as usize])], costs);
            }
            let row_total = &a.up_to[i];
            let beyond = minus(&a.up_to[height - 1], row_total);
            let mut left = [0.0; MAX_PORTFOLIO];
            let mut least = [f64::INFINITY; 2];
            let columns = added.iter_mut().zip(&mut *sums).zip(&b.up_to).zip(&mut *firsts).zip(&mut *seconds);
            for ((((added, sums), last), firsts), (costs, rows)) in columns {
                add::<L>(&mut left, added);
                add::<L>(sums, &left);
                *added = [0.0; MAX_PORTFOLIO];
                // Low or high in the first feature, then in the second.
                let [ll, lh, hl, hh] = vectors.quadrants::<L>(sums, row_total, last, &beyond);
                *firsts = [ll + lh, hl + hh];
                let of_second = [ll + hl, lh + hh];
                for side in 0..2 {
                    least[side] = lesser(firsts[side], least[side]);
                    let better = of_second[side] < costs[side];
                    costs[side] = if better { of_second[side] } else { costs[side] };
                    rows[side] = if better { i as f64 } else { rows[side] };
                }
            }
            for (side, first) in of_first.iter_mut().enumerate() {
                if least[side] < first.cost {
                    // The first of equals.
                    let j = firsts.iter().position(|sides| sides[side] == least[side]).unwrap_or(0);
                    first.improve(least[side], Some((second, b.bins[j])));
                }
            }
        }
        for (of_second, (costs, rows)) in second_sides.iter_mut().zip(&*seconds) {
            for (side, second) in of_second.iter_mut().enumerate() {
                second.improve(costs[side], Some((first, a.bins[rows[side] as usize])));
            }
        }
        self.work += (L / WORK_LANES * (self.costs.len() + height * width)) as u64;
    }
}

#[inline(always)]
fn reset<T: Copy>(places: &mut Vec<T>, len: usize, value: T) {
    places.clear();
    places.resize(len, value);
}

#[inline(always)]
fn add<const L: usize>(sum: &mut Lanes, more: &Lanes) {
    for lane in 0..L {
        sum[lane] += more[lane];
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
