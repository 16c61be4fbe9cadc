//! The search at the resolution that its result needs.

use super::depth_two::Scratch;
use super::grid::Grid;
use super::limits::Limits;
use super::problem::Problem;
use super::ranking::Ranker;
use super::regrets::Regrets;
use super::search::{self, Found, Node, SEARCHED_DEPTH, partition};
use super::shallow::{self, Ask};
use std::sync::Arc;

/// Costs are resolved again once the best tree known costs less than this part of what they are resolved for.
const COARSE: f64 = 1.0 / 64.0;
/// Part of the work that the search may take where deeper levels are refined; the rest raises the bound for these.
const SEARCH_PART: f64 = 0.8;
/// The least that costs are resolved for.
const LEAST_CAP: f64 = 1e-30;

/// What is searched: a portfolio, and what fills the gaps.
pub(super) struct Asked<'a> {
    pub(super) grid: Arc<Grid>,
    pub(super) regrets: &'a Regrets,
    pub(super) portfolio: &'a [usize],
    pub(super) safe_default: usize,
    pub(super) depth: usize,
}

impl Asked<'_> {
    fn problem(&self, least_known: f64) -> Problem {
        // Above the tree that is known, so that its own costs are below.
        let cap = (least_known * 1.001).max(LEAST_CAP);
        Problem::new(self.grid.clone(), self.regrets, self.portfolio, self.safe_default, cap)
    }

    /// Mean regret of a tree with the best ranking at each leaf, without the rows that are the same for every tree.
    fn exact(&self, problem: &Problem, tree: &Node, rows: &[u32], ranker: &mut Ranker) -> f64 {
        match tree {
            Node::Leaf => {
                let ranking = ranker.best(problem, rows, None);
                let ranked: Vec<usize> = ranking.lanes.iter().map(|&lane| problem.candidate(lane)).collect();
                self.under(problem, &ranked, rows)
            }
            Node::Split { feature, bin, low, high } => {
                let (below, above) = partition(problem, rows, *feature, *bin);
                self.exact(problem, low, &below, ranker) + self.exact(problem, high, &above, ranker)
            }
        }
    }

    fn under(&self, problem: &Problem, ranked: &[usize], rows: &[u32]) -> f64 {
        let open = rows.iter().filter(|&&row| !problem.is_settled(row));
        let regret = |&row: &u32| {
            self.regrets.weight(row as usize)
                * self.regrets.of_ranking(row as usize, ranked, self.safe_default)
        };
        open.map(regret).sum()
    }

    /// Mean regret of the best of a few single rankings: a tree of no questions.
    fn simplest(&self) -> f64 {
        let any = self.problem(f64::MAX / 2.0);
        let rows = any.all_rows();
        let valid = |candidate: usize| {
            (0..rows.len()).filter(|&row| self.regrets.get(row, candidate).is_some()).count()
        };
        let mut behind = self.portfolio.to_vec();
        behind.sort_by_key(|&candidate| std::cmp::Reverse(valid(candidate)));
        let ranking = |&first: &usize| [&[first], &behind[..]].concat();
        self.portfolio
            .iter()
            .map(|first| self.under(&any, &ranking(first), &rows))
            .fold(f64::MAX / 2.0, f64::min)
    }
}

/// The best tree, or the best found within the limits, with the problem that its cost is of.
pub(super) fn best_tree(asked: &Asked<'_>, limits: Limits<'_>) -> (Problem, Found) {
    let mut ranker = Ranker::default();
    let mut scratch = Scratch::default();
    let mut known = asked.simplest();
    let (problem, quick) = loop {
        let problem = asked.problem(known);
        let rows = problem.all_rows();
        let ask = Ask { bound: f64::INFINITY, exact: false };
        let quick = shallow::solve(&problem, &rows, asked.depth.min(2), ask, &limits, &mut scratch);
        let reached = asked.exact(&problem, &quick.tree, &rows, &mut ranker);
        if reached >= known * COARSE || known <= LEAST_CAP {
            break (problem, quick);
        }
        known = reached;
    };
    let rows = problem.all_rows();
    let found = search(&problem, asked.depth, quick.tree, limits, &mut scratch);
    let reached = asked.exact(&problem, &found.tree, &rows, &mut ranker);
    if reached >= known * COARSE || known <= LEAST_CAP || limits.by_clock() {
        return (problem, found);
    }
    // What the deep tree costs was hardly resolved beside the shallow one.
    let finer = asked.problem(reached);
    let found = search(&finer, asked.depth, found.tree, limits, &mut scratch);
    (finer, found)
}

fn search(problem: &Problem, depth: usize, start: Node, limits: Limits<'_>, scratch: &mut Scratch) -> Found {
    let rows = problem.all_rows();
    let searched = depth.min(SEARCHED_DEPTH);
    let deeper = depth - searched;
    let known = |tree: Node, scratch: &mut Scratch| {
        let cost = shallow::cost_of(problem, &tree, &rows, scratch);
        Found { cost, lower: problem.floor(), tree }
    };
    let start = search::refine(problem, start, searched.saturating_sub(2), searched, &limits);
    let start = known(start, scratch);
    if deeper == 0 {
        return search::solve(problem, searched, start, limits);
    }
    let part = limits.with_work((limits.work as f64 * SEARCH_PART) as u64);
    let found = search::solve(problem, searched, start, part);
    let refined = search::refine(problem, found.tree, deeper, depth, &limits);
    let refined = known(refined, scratch);
    search::solve(problem, depth, refined, limits.with_work(limits.work - part.work))
}
