//! How long the parts of a step may be, so that all slots of a GPU finish together.
//!
//! CTAs start in the order of the plan, longest first, each where a slot gets free first: list scheduling (Graham 1969, "Bounds on
//! multiprocessing timing anomalies"). A few limits are tried on walks put into classes by their length, and the one whose schedule ends
//! first wins. Times are in tokens: what a CTA takes for one while all slots are busy. Where fewer are, each has more of the GPU for itself,
//! and the most if it has an SM for itself.

use super::options::CTAS_PER_SM;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What a limit is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waves {
    /// CTAs that run at once, two on each SM.
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
    /// CTAs of its tile that an SM runs at once.
    pub(super) ctas_per_sm: u32,
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
    longest: u64,
    rows: u64,
}

impl Class {
    /// Into how many parts each of them is cut.
    fn parts(&self, limit: u32) -> u64 {
        self.longest.div_ceil(u64::from(limit.max(1))).max(1)
    }
}

/// Classes have so many steps a power of two, as a power of two.
const CLASS_STEPS: u32 = 3;
const CLASSES: usize = 32 << CLASS_STEPS;
/// Limits too, so that a small change of the batch rarely moves them.
const LIMIT_STEPS: u32 = 5;
/// Waves that are tried to be filled, in those of CTAs that have an SM for themselves.
const TRIED: [u32; 6] = [1, 2, 3, 4, 6, 8];
/// What a token takes while all slots are busy, in 16ths.
pub(super) const BUSY: u64 = 16;
/// The least that it takes a CTA that has an SM for itself. From limits of parts swept on an H200: 17 ns of 31.
const ALONE: u64 = 9;
/// And where two share one, however few others there are: 25 ns.
const IN_PAIRS: u64 = 13;

impl Waves {
    /// CTAs that run at once if an SM runs so many.
    fn running(&self, ctas_per_sm: u32) -> u64 {
        running(self.slots, ctas_per_sm)
    }

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
        let (mut count, mut longest, mut total, mut ctas_per_sm) = (0u64, 0, 0u64, 1);
        for walk in walks.filter(|walk| walk.tokens > 0) {
            let class = &mut histogram[class_of(walk.tokens)];
            let ctas = u64::from(walk.ctas);
            class.ctas += ctas;
            class.tokens += ctas * u64::from(walk.tokens);
            class.longest = class.longest.max(u64::from(walk.tokens));
            class.rows += ctas * u64::from(walk.rows);
            total += ctas * u64::from(walk.tokens);
            count += ctas;
            longest = longest.max(walk.tokens);
            ctas_per_sm = ctas_per_sm.max(walk.ctas_per_sm);
        }
        classes.clear();
        classes.extend(histogram.iter().filter(|class| class.ctas > 0));
        let running = self.running(ctas_per_sm);
        let whole = round_up(longest.max(self.shortest));
        let mean = u32::try_from(total.div_ceil(count.max(1))).unwrap_or(u32::MAX);
        let uncut = self.makespan(classes, whole, running, parts, slots);
        let mut best = (uncut, whole);
        let most = TRIED.iter().map(|tried| self.running(*tried));
        let filling = most.filter_map(|most| filling(classes, total, most, self.shortest));
        for limit in filling.chain([round_up(mean.max(self.shortest))]) {
            let limit = limit.min(whole);
            let makespan = self.makespan(classes, limit, running, parts, slots);
            if makespan < best.0 {
                best = (makespan, limit);
            }
        }
        let (cut, limit) = best;
        // Cuts have to pay for the merge too, if there is none without them.
        let pay = |merge: u32| cut + cut / 64 + u64::from(merge) < uncut;
        if pay(self.merge) || (pay(0) && merges_uncut()) { limit } else { whole }
    }

    /// When the last slot finishes, if walks longer than the limit are cut.
    fn makespan(
        &self,
        classes: &[Class],
        limit: u32,
        running: u64,
        parts: &mut Vec<(u64, u64)>,
        slots: &mut Vec<(u64, u64)>,
    ) -> u64 {
        parts.clear();
        parts.extend(classes.iter().map(|class| {
            let tokens = class.tokens.div_ceil(class.ctas);
            let cuts = class.parts(limit);
            let partial = if cuts > 1 { u64::from(self.row) * class.rows.div_ceil(class.ctas) } else { 0 };
            (tokens.div_ceil(cuts) + u64::from(self.cta) + partial, class.ctas * cuts)
        }));
        parts.sort_unstable_by(|a, b| b.cmp(a));
        schedule(parts, running, slots);
        self.elapsed(running, slots)
    }

    /// How long slots take that are free after so much work, (work, how many) in ascending order.
    fn elapsed(&self, running: u64, slots: &[(u64, u64)]) -> u64 {
        // Nobody begins faster for having the GPU to itself.
        let beginning = u64::from(self.cta);
        let (mut done, mut busy, mut elapsed) = (0, running, 0u64);
        for &(free, ctas) in slots {
            let begins = free.min(beginning).saturating_sub(done);
            let computes = free - done - begins;
            elapsed += begins * BUSY + computes * self.pace(busy);
            (done, busy) = (free, busy - ctas);
        }
        elapsed.div_ceil(BUSY)
    }

    /// [`pace`] on these slots.
    fn pace(&self, busy: u64) -> u64 {
        pace(self.slots, busy)
    }
}

/// CTAs that run at once on so many slots if an SM runs so many.
pub(super) fn running(slots: u32, ctas_per_sm: u32) -> u64 {
    (u64::from(slots) * u64::from(ctas_per_sm) / u64::from(CTAS_PER_SM)).max(1)
}

/// What a token takes while so many CTAs run, in [`BUSY`] parts of what it does while each SM has two.
pub(super) fn pace(slots: u32, busy: u64) -> u64 {
    let least = if busy > running(slots, 1) { IN_PAIRS } else { ALONE };
    (BUSY * busy / u64::from(slots.max(1))).max(least)
}

/// About the least limit that leaves no more parts than this; none if there are more without any cut.
fn filling(classes: &[Class], total: u64, most: u64, shortest: u32) -> Option<u32> {
    if classes.iter().map(|class| class.ctas).sum::<u64>() > most {
        return None;
    }
    let mut limit = round_up(u32::try_from(total.div_ceil(most.max(1))).unwrap_or(u32::MAX).max(shortest));
    for _ in 0..1 << LIMIT_STEPS {
        if classes.iter().map(|class| class.ctas * class.parts(limit)).sum::<u64>() <= most {
            break;
        }
        limit = round_up(limit.saturating_add(1));
    }
    Some(limit)
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
    let below = (tokens << (31 - bits) >> (31 - CLASS_STEPS)) as usize & ((1 << CLASS_STEPS) - 1);
    ((bits as usize) << CLASS_STEPS) + below
}

/// The next limit with few leading bits, a multiple of 16.
pub(super) fn round_up(limit: u32) -> u32 {
    let grain = (1u32 << limit.max(1).ilog2() >> LIMIT_STEPS).max(16);
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
        let crowded = walks.iter().any(|walk| walk.ctas_per_sm == 2);
        let places = if crowded { waves.slots } else { waves.slots / 2 };
        let mut free: BinaryHeap<Reverse<u64>> = (0..places.max(1)).map(|_| Reverse(0)).collect();
        for time in times {
            free.peek_mut().unwrap().0 += time;
        }
        // All that are busy get on equally fast.
        let free: Vec<u64> = free.into_sorted_vec().into_iter().rev().map(|slot| slot.0).collect();
        let (mut done, mut elapsed) = (0u64, 0.0);
        for (index, &work) in free.iter().enumerate() {
            let share = (free.len() - index) as f64 / f64::from(waves.slots);
            let least = if share > 0.5 { 13.0 } else { 9.0 } / 16.0;
            let begins = work.min(u64::from(waves.cta)).saturating_sub(done);
            elapsed += begins as f64 + (work - done - begins) as f64 * share.max(least);
            done = work;
        }
        elapsed as u64
    }

    #[test]
    fn one_long_walk_is_cut_for_all_slots_and_many_short_ones_are_left_whole() {
        let alone = [Walk { ctas: 8, tokens: 100_000, rows: 4, ctas_per_sm: 2 }];
        let parts = 100_000u32.div_ceil(limit(&WAVES, &alone)) * 8;
        assert!((240..=264).contains(&parts), "{parts} parts");
        let many = vec![Walk { ctas: 8, tokens: 1024, rows: 4, ctas_per_sm: 2 }; 1024];
        assert_eq!(limit(&WAVES, &many), 1024);
    }

    #[test]
    fn a_second_wave_for_one_more_cta_is_avoided() {
        let walks = vec![Walk { ctas: 1, tokens: 4096, rows: 4, ctas_per_sm: 2 }; 265];
        let (whole, cut) = (end(&WAVES, &walks, 4096), end(&WAVES, &walks, limit(&WAVES, &walks)));
        assert!(cut * 10 < whole * 8, "{cut} of {whole}");
    }

    #[test]
    fn what_saves_less_than_the_merge_costs_is_cut_only_if_something_is_merged_anyway() {
        // 256 tokens and a CTA, or two parts of 128 and a partial: 120 tokens' time less.
        let (walks, dear) =
            ([Walk { ctas: 1, tokens: 256, rows: 4, ctas_per_sm: 2 }], Waves { merge: 134, ..WAVES });
        assert_eq!((limit(&WAVES, &walks), limit(&dear, &walks)), (128, 256));
        assert_eq!(dear.part_limit(walks.iter().copied(), || true, &mut WavesScratch::default()), 128);
        assert_eq!(limit(&dear, &[Walk { tokens: 512, ..walks[0] }]), 128, "what saves more is cut");
    }

    #[test]
    fn idle_time_is_what_the_last_wave_leaves() {
        assert!((Placed::on(4, [10; 5].into_iter()).idle_share(4) - 3.0 / 8.0).abs() < 1e-12);
        assert_eq!(Placed::on(4, std::iter::empty()).idle_share(4), 0.0);
    }

    #[test]
    fn ctas_with_an_sm_for_themselves_are_half_as_many_at_once() {
        // 16 parts for each of eight KV heads are 128 CTAs, 33 are 264.
        let parts = |ctas_per_sm, tokens: u32| {
            let walk = Walk { ctas: 8, tokens, rows: 4, ctas_per_sm };
            tokens.div_ceil(limit(&WAVES, &[walk]))
        };
        assert_eq!((parts(1, 8256), parts(2, 100_000)), (16, 33));
        let mixed = [
            Walk { ctas: 8, tokens: 100_000, rows: 4, ctas_per_sm: 1 },
            Walk { ctas: 1, tokens: 128, rows: 4, ctas_per_sm: 2 },
        ];
        assert!(100_000u32.div_ceil(limit(&WAVES, &mixed)) > 16, "others fit beside them");
    }

    #[test]
    fn few_ctas_are_faster_alone_than_in_pairs() {
        // 132 SMs: 128 CTAs do not gain from being twice as many, as all partials are written twice.
        let walk = |tokens, rows| [Walk { ctas: 128, tokens, rows, ctas_per_sm: 2 }];
        assert_eq!(limit(&WAVES, &walk(1024, 64)), 1024);
        // 140 on 128 SMs do: some of them share an SM, and all others wait for those.
        let shared = Waves { slots: 256, ..WAVES };
        assert!(limit(&shared, &[Walk { ctas: 140, ..walk(65_536, 4)[0] }]) < 65_536);
    }

    fn walks() -> impl Strategy<Value = Vec<Walk>> {
        let tokens = prop_oneof![1u32..400, 400u32..5_000, Just(4096u32), 5_000u32..150_000];
        let walk = (1u32..9, tokens, 1u32..64);
        let walk = walk.prop_map(|(ctas, tokens, rows)| Walk { ctas, tokens, rows, ctas_per_sm: 2 });
        prop::collection::vec(walk, 1..60)
    }

    /// Limits are coarse and lengths in classes, and one CTA more than slots is a wave more: no limit of so few is best every time. One that was
    /// found as if a CTA alone were as slow as beside all others takes 0.928 on average, 1.034 and 1.270.
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
        assert!(mean < 0.93 && nearly_all < 1.03 && worst < 1.11, "{mean}, {nearly_all}, {worst}");
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
            let mut end = |limit| waves.makespan(&classes, limit, waves.running(2), &mut parts, &mut slots);
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
