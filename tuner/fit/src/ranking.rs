//! The best ranking of candidates for the rows of a leaf.
//!
//! A leaf's rows take the first candidate of its ranking that is valid on them. Where all are valid everywhere that is one candidate, the
//! one with the least sum. Where there are holes, rows with the same valid candidates always take the same one, so they are one group. The
//! ranking is grown candidate by candidate, those first that look best, as long as it can still be better than the best one known: each
//! group that is not served yet costs at least what its own best candidate costs. Where that does not end soon, all sets of
//! candidates that can be in front are taken in turn (2^k sets, k² steps each), which is exact as well.

use super::options::MAX_PORTFOLIO;
use super::problem::Problem;

/// Groups that are looked at before all sets of candidates are, as a part of the steps that these take.
const SEARCHED: usize = 32;

/// A ranking of lanes, and what rows cost under it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ranking {
    pub(super) lanes: Vec<usize>,
    pub(super) cost: f64,
}

impl Ranking {
    /// The lane that a row takes.
    pub(super) fn lane_of(&self, problem: &Problem, row: u32) -> Option<usize> {
        self.lanes.iter().copied().find(|lane| problem.valid(row) & (1 << lane) != 0)
    }
}

/// Finds rankings; the memory is reused.
#[derive(Debug, Default)]
pub(super) struct Ranker {
    /// The group of each pattern, from 1; 0 for none.
    group_of: Vec<u32>,
    groups: Vec<Group>,
    best: Vec<usize>,
    best_cost: f64,
    looked_at: usize,
    limit: usize,
    /// Whether the ranking may be the safe default alone: only behind a lane that serves none of the rows. Anything else would cost less than
    /// each lane's bound ([`Problem`]'s costs of rows that lack it).
    default_alone: bool,
    /// Work done: steps of both searches, and rows.
    pub(super) work: u64,
}

/// Rows with the same valid lanes.
#[derive(Clone, Copy, Debug)]
struct Group {
    valid: u32,
    /// Their cost under each lane, and under the default lane behind them.
    sums: [f64; MAX_PORTFOLIO + 1],
    /// Their cost under the best of these.
    least: f64,
}

impl Ranker {
    /// The best ranking of rows, the first of equals; one that begins with `first` if that is asked for. It serves every row, and has no
    /// lane that serves none.
    pub(super) fn best(&mut self, problem: &Problem, rows: &[u32], first: Option<usize>) -> Ranking {
        self.group(problem, rows);
        self.work += rows.len() as u64;
        let lanes = problem.lanes();
        if let [Group { valid, sums, .. }] = self.groups[..]
            && valid == problem.full()
        {
            let least = (0..lanes).min_by(|&a, &b| sums[a].total_cmp(&sums[b])).unwrap_or(0);
            let lane = first.unwrap_or(least);
            return Ranking { lanes: vec![lane], cost: sums[lane] };
        }
        let open: Vec<u32> = (0..self.groups.len() as u32).collect();
        let mut path = Vec::new();
        let (mut open, mut cost) = (open, 0.0);
        if let Some(first) = first {
            cost = self.take(&mut open, first);
            path.push(first);
        }
        (self.best_cost, self.looked_at) = (f64::INFINITY, 0);
        self.best.clear();
        let used = self.groups.iter().fold(0, |all, group| all | group.valid) & problem.full();
        self.default_alone = first.is_some() || used != problem.full();
        let count = used.count_ones() as usize;
        self.limit = (((count * count) << count) / SEARCHED).max(256);
        self.descend(problem, &open, cost, &mut path);
        self.work += self.looked_at as u64;
        if self.looked_at > self.limit {
            return self.all_sets(problem, &open, used, cost, path);
        }
        Ranking { lanes: self.best.clone(), cost: self.best_cost }
    }

    fn group(&mut self, problem: &Problem, rows: &[u32]) {
        self.group_of.resize(problem.patterns(), 0);
        self.groups.clear();
        let lanes = problem.lanes();
        // Rows that no lane serves say nothing, unless there are no others.
        let all_settled = rows.iter().all(|&row| problem.is_settled(row));
        let asked = || rows.iter().copied().filter(|&row| all_settled || !problem.is_settled(row));
        for row in asked() {
            let group = &mut self.group_of[problem.pattern(row)];
            if *group == 0 {
                let valid = problem.valid(row);
                self.groups.push(Group { valid, sums: [0.0; MAX_PORTFOLIO + 1], least: 0.0 });
                *group = self.groups.len() as u32;
            }
            let group = &mut self.groups[*group as usize - 1];
            for (sum, cost) in group.sums[..lanes].iter_mut().zip(problem.costs(row)) {
                *sum += cost;
            }
            if problem.default_lane().is_some() {
                // Of no meaning where the default is invalid or not needed.
                let cost = problem.by_default(row);
                group.sums[lanes] += if cost.is_finite() { cost } else { 0.0 };
            }
        }
        for row in asked() {
            self.group_of[problem.pattern(row)] = 0;
        }
        for group in &mut self.groups {
            let of_lane =
                (0..lanes).filter(|lane| group.valid & (1 << lane) != 0).map(|lane| group.sums[lane]);
            let least = of_lane.fold(f64::INFINITY, f64::min);
            let default = group.valid >> lanes != 0;
            group.least = if default { least.min(group.sums[lanes]) } else { least };
        }
    }

    /// Serves what a lane can serve, and says what that costs.
    fn take(&self, open: &mut Vec<u32>, lane: usize) -> f64 {
        let mut cost = 0.0;
        open.retain(|&group| {
            let Group { valid, sums, .. } = &self.groups[group as usize];
            let served = valid & (1 << lane) != 0;
            cost += if served { sums[lane] } else { 0.0 };
            !served
        });
        cost
    }

    fn descend(&mut self, problem: &Problem, open: &[u32], cost: f64, path: &mut Vec<usize>) {
        self.looked_at += 1 + open.len();
        if self.looked_at > self.limit {
            return;
        }
        if open.is_empty() {
            if cost < self.best_cost {
                (self.best_cost, self.best) = (cost, path.clone());
            }
            return;
        }
        if (self.default_alone || !path.is_empty())
            && let Some(default) = self.ends_with_default(problem, open)
            && cost + default < self.best_cost
        {
            self.best_cost = cost + default;
            self.best.clone_from(path);
            self.best.push(problem.lanes());
        }
        // What each lane costs on the groups that it serves beyond their least.
        let least: f64 = open.iter().map(|&group| self.groups[group as usize].least).sum();
        let mut further = [(0.0, false); MAX_PORTFOLIO];
        for &group in open {
            let Group { valid, sums, least } = &self.groups[group as usize];
            let mut lanes = valid & problem.full();
            while lanes != 0 {
                let lane = lanes.trailing_zeros() as usize;
                lanes &= lanes - 1;
                further[lane] = (further[lane].0 + (sums[lane] - least), true);
            }
        }
        let mut next: Vec<(f64, usize)> = (0..problem.lanes())
            .filter(|&lane| further[lane].1)
            .map(|lane| (cost + least + further[lane].0, lane))
            .collect();
        next.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        for (bound, lane) in next {
            if bound >= self.best_cost || self.looked_at > self.limit {
                return;
            }
            let mut rest = open.to_vec();
            let cost = cost + self.take(&mut rest, lane);
            path.push(lane);
            self.descend(problem, &rest, cost, path);
            path.pop();
        }
    }

    /// What the groups cost that are open if the ranking ends here, and they take the safe default.
    fn ends_with_default(&self, problem: &Problem, open: &[u32]) -> Option<f64> {
        let lane = problem.default_lane()?;
        let cost = |&group: &u32| {
            let Group { valid, sums, .. } = &self.groups[group as usize];
            (valid & (1 << lane) != 0).then_some(sums[lane])
        };
        open.iter().map(cost).sum()
    }

    /// The best ranking of the open groups behind `path`, by the least cost of what is left behind every set of lanes.
    fn all_sets(
        &mut self,
        problem: &Problem,
        open: &[u32],
        used: u32,
        cost: f64,
        mut path: Vec<usize>,
    ) -> Ranking {
        let lanes: Vec<usize> = (0..problem.lanes()).filter(|lane| used & (1 << lane) != 0).collect();
        let (count, sets) = (lanes.len(), 1usize << lanes.len());
        self.work += (sets * count * count / 16) as u64;
        let compact = |valid: u32| -> usize {
            lanes.iter().enumerate().map(|(i, lane)| ((valid >> lane & 1) as usize) << i).sum()
        };
        // [kind][set]: sums over the groups whose valid lanes are all in the set: of each lane's costs, of the default's, of groups, and of
        // groups without default.
        let kinds = count + 3;
        let mut sums = vec![0.0; kinds * sets];
        for &group in open {
            let group = &self.groups[group as usize];
            let set = compact(group.valid);
            for (i, &lane) in lanes.iter().enumerate().filter(|(i, _)| set >> i & 1 != 0) {
                sums[i * sets + set] += group.sums[lane];
            }
            sums[count * sets + set] += group.sums[problem.lanes()];
            sums[(count + 1) * sets + set] += 1.0;
            sums[(count + 2) * sets + set] += f64::from(u8::from(group.valid >> problem.lanes() == 0));
        }
        for kind in sums.chunks_exact_mut(sets) {
            for bit in 0..count {
                for high in kind.chunks_exact_mut(2 << bit) {
                    let (without, with) = high.split_at_mut(1 << bit);
                    for (with, without) in with.iter_mut().zip(without) {
                        *with += *without;
                    }
                }
            }
        }
        // The least cost of what only the lanes outside of `front` can serve, and the lane that is next.
        const END: u8 = u8::MAX;
        let mut least = vec![(0.0, END); sets];
        let by_default = problem.default_lane().is_some();
        for front in (0..sets).rev() {
            let rest = sets - 1 - front;
            if sums[(count + 1) * sets + rest] == 0.0 {
                continue;
            }
            let mut best = (f64::INFINITY, END);
            let may_end = by_default && (front != 0 || self.default_alone);
            if may_end && sums[(count + 2) * sets + rest] == 0.0 {
                best.0 = sums[count * sets + rest];
            }
            for lane in (0..count).filter(|lane| front >> lane & 1 == 0) {
                let cost = sums[lane * sets + rest] + least[front | 1 << lane].0;
                if cost < best.0 {
                    best = (cost, lane as u8);
                }
            }
            least[front] = best;
        }
        let total = cost + least[0].0;
        let mut front = 0;
        loop {
            let rest = sets - 1 - front;
            if sums[(count + 1) * sets + rest] == 0.0 {
                break;
            }
            let next = least[front].1;
            if next == END {
                path.push(problem.lanes());
                break;
            }
            // A lane that serves nothing more costs nothing, and says nothing.
            let serves = open.iter().any(|&group| {
                let set = compact(self.groups[group as usize].valid);
                set & front == 0 && set >> next & 1 != 0
            });
            if serves {
                path.push(lanes[usize::from(next)]);
            }
            front |= 1 << next;
        }
        Ranking { lanes: path, cost: total }
    }
}
