//! How long the parts of a step may be, so that all slots of a GPU finish together.
//!
//! CTAs start in the order of the plan, longest first, each where a slot gets free first: list scheduling (Graham 1969, "Bounds on
//! multiprocessing timing anomalies"). A few limits are tried on walks put into classes by their length, and the one whose schedule ends
//! first wins. Times are in tokens: what a CTA takes for one while all slots are busy. Where fewer are, each has more of the GPU for itself.

use super::options::CTAS_PER_SM;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What a limit is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waves {
    /// CTAs that run at once.
    pub(super) slots: u32,
    /// The shortest limit.
    pub(super) shortest: u32,
    /// What a CTA takes beyond its tokens.
    pub(super) cta: u32,
    /// What a row of a partial takes, to be written, read and merged.
    pub(super) row: u32,
    /// What merging at all takes, after the last slot has finished.
    pub(super) merge: u32,
}

/// A block of a plan: CTAs that do the same to different KV heads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    pub(super) ctas: u32,
    pub(super) tokens: u32,
    /// Rows of one CTA.
    pub(super) rows: u32,
}

/// Memory that finding a limit needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct WavesScratch {
    histogram: Vec<Class>,
    classes: Vec<Class>,
    parts: Vec<(u64, u64)>,
    slots: Vec<(u64, u64)>,
}

/// CTAs of about the same length.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    ctas: u64,
    tokens: u64,
    rows: u64,
}

/// Classes, and limits too, have so many steps a power of two, as a power of two: a small change of the batch rarely moves the limit.
const STEPS: u32 = 3;
const CLASSES: usize = 32 << STEPS;
/// Waves that are tried to be filled exactly.
const TRIED: u64 = 4;
/// So many times as fast as beside all others is a CTA at most: as one that shares its SM with nobody.
const ALONE: u64 = CTAS_PER_SM as u64;

impl Waves {
    /// Walks longer than this many tokens are to be cut into equal parts. At least 1. `merges_uncut` says whether something is to be merged
    /// even if none is cut; it is asked only where that matters.
    pub(super) fn part_limit(
        &self,
        walks: impl Iterator<Item = Walk>,
        merges_uncut: impl FnOnce() -> bool,
        scratch: &mut WavesScratch,
    ) -> u32 {
        let WavesScratch { histogram, classes, parts, slots } = scratch;
        histogram.clear();
        histogram.resize(CLASSES, Class::default());
        let (mut count, mut longest, mut total) = (0u64, 0, 0u64);
        for walk in walks.filter(|walk| walk.tokens > 0) {
            let class = &mut histogram[class_of(walk.tokens)];
            let ctas = u64::from(walk.ctas);
            class.ctas += ctas;
            class.tokens += ctas * u64::from(walk.tokens);
            class.rows += ctas * u64::from(walk.rows);
            total += ctas * u64::from(walk.tokens);
            count += ctas;
            longest = longest.max(walk.tokens);
        }
        classes.clear();
        classes.extend(histogram.iter().filter(|class| class.ctas > 0));
        let whole = round_up(longest.max(self.shortest));
        let slots_count = u64::from(self.slots.max(1));
        let share = total.div_ceil(slots_count);
        let mean = total.div_ceil(count.max(1));
        let waves = (1..=TRIED).map(|waves| share.div_ceil(waves));
        let uncut = self.makespan(classes, whole, parts, slots);
        let mut best = (uncut, whole);
        for limit in waves.chain([mean]) {
            let limit = round_up(u32::try_from(limit).unwrap_or(u32::MAX).max(self.shortest)).min(whole);
            let makespan = self.makespan(classes, limit, parts, slots);
            if makespan < best.0 {
                best = (makespan, limit);
            }
        }
        let (cut, limit) = best;
        // Cuts have to pay: by more than what this model knows to a hundredth, and for the merge if there is none without them.
        let pay = |merge: u32| cut + cut / 64 + u64::from(merge) < uncut;
        if pay(self.merge) || (pay(0) && merges_uncut()) { limit } else { whole }
    }

    /// When the last slot finishes, if walks longer than the limit are cut.
    fn makespan(
        &self,
        classes: &[Class],
        limit: u32,
        parts: &mut Vec<(u64, u64)>,
        slots: &mut Vec<(u64, u64)>,
    ) -> u64 {
        parts.clear();
        parts.extend(classes.iter().map(|class| {
            let tokens = class.tokens.div_ceil(class.ctas);
            let cuts = tokens.div_ceil(u64::from(limit.max(1))).max(1);
            let partial = if cuts > 1 { u64::from(self.row) * class.rows.div_ceil(class.ctas) } else { 0 };
            (tokens.div_ceil(cuts) + u64::from(self.cta) + partial, class.ctas * cuts)
        }));
        parts.sort_unstable_by(|a, b| b.cmp(a));
        schedule(parts, u64::from(self.slots.max(1)), slots);
        self.elapsed(slots)
    }

    /// How long slots take that are free after so much work, (work, how many) in ascending order.
    fn elapsed(&self, slots: &[(u64, u64)]) -> u64 {
        let count = u64::from(self.slots.max(1));
        // Nobody begins faster for having the GPU to itself.
        let beginning = u64::from(self.cta);
        let (mut done, mut busy, mut elapsed) = (0, count, 0u64);
        for &(free, ctas) in slots {
            let begins = free.min(beginning).saturating_sub(done);
            let computes = free - done - begins;
            elapsed += begins * ALONE * count + computes * count.max(ALONE * busy);
            (done, busy) = (free, busy - ctas);
        }
        elapsed.div_ceil(ALONE * count)
    }
}

/// Places parts, (time, how many), on slots, each where a slot gets free first; leaves (when free, how many) in ascending order.
fn schedule(parts: &[(u64, u64)], count: u64, slots: &mut Vec<(u64, u64)>) {
    slots.clear();
    slots.push((0, count));
    for &(time, parts) in parts {
        let mut rest = parts;
        while rest > 0 {
            let (first, here) = slots[0];
            let (last, _) = slots[slots.len() - 1];
            if last - first <= time && rest >= count {
                // Nobody gets a second part before all have one: whole rounds leave the order as it is.
                slots.iter_mut().for_each(|slot| slot.0 += rest / count * time);
                rest %= count;
                continue;
            }
            // The slots that are free first take parts until others are free before them, or some of them take the last ones.
            let until = slots.get(1).map_or(1, |&(next, _)| (next - first).div_ceil(time.max(1)).max(1));
            let (taken, each) = if rest < here { (rest, 1) } else { (here, until.min(rest / here)) };
            rest -= taken * each;
            if taken == here {
                slots.remove(0);
            } else {
                slots[0].1 -= taken;
            }
            free_again(slots, first + each * time, taken);
        }
    }
}

/// Puts slots back where they belong by when they are free.
fn free_again(slots: &mut Vec<(u64, u64)>, free: u64, count: u64) {
    let place = slots.partition_point(|slot| slot.0 < free);
    match slots.get_mut(place) {
        Some(slot) if slot.0 == free => slot.1 += count,
        _ => slots.insert(place, (free, count)),
    }
}

/// Which class a length belongs to: its leading bits.
fn class_of(tokens: u32) -> usize {
    let bits = tokens.ilog2();
    let below = (tokens << (31 - bits) >> (31 - STEPS)) as usize & ((1 << STEPS) - 1);
    ((bits as usize) << STEPS) + below
}

/// The next limit with few leading bits, a multiple of 16.
pub(super) fn round_up(limit: u32) -> u32 {
    let grain = (1u32 << limit.max(1).ilog2() >> STEPS).max(16);
    limit.checked_next_multiple_of(grain).unwrap_or(u32::MAX)
}

/// What slots do while CTAs run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Placed {
    /// The time of all CTAs.
    pub(super) busy: u64,
    /// When the last one ends.
    pub(super) end: u64,
}

impl Placed {
    /// CTAs of these times that start in this order, each where a slot gets free first.
    pub(super) fn on(slots: u32, times: impl Iterator<Item = u64>) -> Self {
        let mut free: BinaryHeap<Reverse<u64>> = (0..slots.max(1)).map(|_| Reverse(0)).collect();
        let mut placed = Self::default();
        for time in times {
            if let Some(mut first) = free.peek_mut() {
                first.0 += time;
                placed.end = placed.end.max(first.0);
            }
            placed.busy += time;
        }
        placed
    }

    /// The share of so many slots' time in which no CTA runs, 0 to 1.
    pub(super) fn idle_share(self, slots: u32) -> f64 {
        if self.end == 0 { 0.0 } else { 1.0 - self.busy as f64 / (self.end as f64 * f64::from(slots.max(1))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    /// As of an H200, but merging at all costs nothing.
    const WAVES: Waves = Waves { slots: 264, shortest: 128, cta: 33, row: 2, merge: 0 };

    fn limit(waves: &Waves, walks: &[Walk]) -> u32 {
        waves.part_limit(walks.iter().copied(), || false, &mut WavesScratch::default())
    }

    /// When the last slot finishes, CTA by CTA.
    fn end(waves: &Waves, walks: &[Walk], limit: u32) -> u64 {
        let mut times = Vec::new();
        for walk in walks.iter().filter(|walk| walk.tokens > 0) {
            let cuts = walk.tokens.div_ceil(limit);
            let partial = if cuts > 1 { waves.row * walk.rows } else { 0 };
            let time = u64::from(walk.tokens.div_ceil(cuts) + waves.cta + partial);
            times.extend(std::iter::repeat_n(time, (walk.ctas * cuts) as usize));
        }
        times.sort_unstable_by(|a, b| b.cmp(a));
        let mut free: BinaryHeap<Reverse<u64>> = (0..waves.slots).map(|_| Reverse(0)).collect();
        for time in times {
            free.peek_mut().unwrap().0 += time;
        }
        // All that are busy get on equally fast.
        let free: Vec<u64> = free.into_sorted_vec().into_iter().rev().map(|slot| slot.0).collect();
        let (mut done, mut elapsed) = (0u64, 0.0);
        for (index, &work) in free.iter().enumerate() {
            let share = (free.len() - index) as f64 / free.len() as f64;
            let begins = work.min(u64::from(waves.cta)).saturating_sub(done);
            elapsed +=
                begins as f64 + (work - done - begins) as f64 * share.max(1.0 / f64::from(CTAS_PER_SM));
            done = work;
        }
        elapsed as u64
    }

    #[test]
    fn one_long_walk_is_cut_for_all_slots_and_many_short_ones_are_left_whole() {
        let alone = [Walk { ctas: 8, tokens: 100_000, rows: 4 }];
        let parts = 100_000u32.div_ceil(limit(&WAVES, &alone)) * 8;
        assert!((240..=264).contains(&parts), "{parts} parts");
        let many = vec![Walk { ctas: 8, tokens: 1024, rows: 4 }; 1024];
        assert_eq!(limit(&WAVES, &many), 1024);
    }

    #[test]
    fn a_second_wave_for_one_more_cta_is_avoided() {
        let walks = vec![Walk { ctas: 1, tokens: 4096, rows: 4 }; 265];
        let (whole, cut) = (end(&WAVES, &walks, 4096), end(&WAVES, &walks, limit(&WAVES, &walks)));
        assert!(cut * 10 < whole * 8, "{cut} of {whole}");
    }

    #[test]
    fn what_saves_less_than_the_merge_costs_is_cut_only_if_something_is_merged_anyway() {
        // 256 tokens and a CTA, or two parts of 128 and a partial: 120 tokens' time less.
        let (walks, dear) = ([Walk { ctas: 1, tokens: 256, rows: 4 }], Waves { merge: 134, ..WAVES });
        assert_eq!((limit(&WAVES, &walks), limit(&dear, &walks)), (128, 256));
        assert_eq!(dear.part_limit(walks.iter().copied(), || true, &mut WavesScratch::default()), 128);
        assert_eq!(limit(&dear, &[Walk { tokens: 512, ..walks[0] }]), 128, "what saves more is cut");
    }

    #[test]
    fn idle_time_is_what_the_last_wave_leaves() {
        assert!((Placed::on(4, [10; 5].into_iter()).idle_share(4) - 3.0 / 8.0).abs() < 1e-12);
        assert_eq!(Placed::on(4, std::iter::empty()).idle_share(4), 0.0);
    }

    fn walks() -> impl Strategy<Value = Vec<Walk>> {
        let tokens = prop_oneof![1u32..400, 400u32..5_000, Just(4096u32), 5_000u32..150_000];
        let walk = (1u32..9, tokens, 1u32..64).prop_map(|(ctas, tokens, rows)| Walk { ctas, tokens, rows });
        prop::collection::vec(walk, 1..60)
    }

    /// Limits are coarse and lengths in classes, and one CTA more than slots is a wave more: no limit of so few is best every time. One that was
    /// found as if a CTA alone were as slow as beside all others takes 0.949 on average, 1.068 and 1.322.
    #[test]
    fn the_limit_is_better_than_the_best_of_simple_rules_on_average_and_rarely_worse() {
        let mut runner = TestRunner::deterministic();
        let batches = (walks(), 1u32..300);
        let mut ratios: Vec<f64> = (0..5_000)
            .map(|_| {
                let (walks, slots) = batches.new_tree(&mut runner).unwrap().current();
                let waves = Waves { slots, ..WAVES };
                let ctas: u32 = walks.iter().map(|walk| walk.ctas).sum();
                let total: u64 = walks.iter().map(|walk| u64::from(walk.ctas * walk.tokens)).sum();
                let fill = total.div_ceil(u64::from(slots)).max(128) as u32;
                let mean = total.div_ceil(u64::from(ctas)).max(128) as u32;
                let rules = [u32::MAX, fill, mean].map(|limit| end(&waves, &walks, limit));
                let found = limit(&waves, &walks);
                assert!(found >= waves.shortest);
                end(&waves, &walks, found) as f64 / rules.into_iter().min().unwrap() as f64
            })
            .collect();
        ratios.sort_by(f64::total_cmp);
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        let (nearly_all, worst) = (ratios[ratios.len() * 99 / 100], ratios[ratios.len() - 1]);
        assert!(mean < 0.95 && nearly_all < 1.03 && worst < 1.31, "{mean}, {nearly_all}, {worst}");
    }

    proptest! {
        #[test]
        fn cuts_are_those_of_free_merges_or_none_and_pay_for_the_merge(
            walks in walks(), slots in 1u32..300, merge in prop_oneof![Just(0u32), 1u32..5_000, Just(u32::MAX)],
        ) {
            let waves = Waves { slots, merge, ..WAVES };
            let free = limit(&Waves { merge: 0, ..waves }, &walks);
            let WavesScratch { classes, mut parts, slots, .. } = {
                let mut scratch = WavesScratch::default();
                let anyway = waves.part_limit(walks.iter().copied(), || true, &mut scratch);
                prop_assert_eq!(anyway, free, "what is paid anyway does not matter");
                scratch
            };
            let (found, mut slots) = (limit(&waves, &walks), slots);
            let whole = round_up(walks.iter().map(|walk| walk.tokens).max().unwrap().max(waves.shortest));
            prop_assert!(found == free || found == whole);
            prop_assert!(merge != 0 || found == free);
            prop_assert!(merge != u32::MAX || found == whole);
            let mut end = |limit| waves.makespan(&classes, limit, &mut parts, &mut slots);
            let price = if found == whole { 0 } else { u64::from(merge) };
            prop_assert!(end(found) + price <= end(whole), "no cut would be better");
            // What is left whole for the merge's sake would gain less than that, and what the model does not know.
            prop_assert!(found == free || end(free) + end(free) / 64 + u64::from(merge) >= end(whole));
        }

        #[test]
        fn classes_of_parts_are_placed_as_one_by_one(times in prop::collection::vec((1u64..200, 1u64..60), 1..12), count in 1u64..24) {
            let mut times = times;
            times.sort_unstable_by(|a, b| b.cmp(a));
            let mut slots = Vec::new();
            schedule(&times, count, &mut slots);
            let mut free: BinaryHeap<Reverse<u64>> = (0..count).map(|_| Reverse(0)).collect();
            for &(time, parts) in &times {
                for _ in 0..parts {
                    free.peek_mut().unwrap().0 += time;
                }
            }
            let exact = free.into_iter().map(|slot| slot.0).max().unwrap();
            prop_assert_eq!(slots.last().unwrap().0, exact);
            prop_assert_eq!(slots.iter().map(|slot| slot.1).sum::<u64>(), count);
            prop_assert!(slots.is_sorted());
        }
    }
}
