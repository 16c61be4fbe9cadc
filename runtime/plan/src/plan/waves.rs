//! How long the KV chunks of a step may be, so that all CTA slots of a GPU finish together.
//!
//! CTAs start in the order of the plan, longest first, each where a CTA slot gets free first: list scheduling (Graham 1969, "Bounds on
//! multiprocessing timing anomalies"). KV ranges are put into classes by their length. All limits that make up to eight waves are looked at,
//! with equal chunks and with chunks as long as the limit; those that seem to end first by their longest chunk, their load and their waves are
//! scheduled, and the one whose schedule ends first wins. Times are in tokens: what a CTA takes for one while all CTA slots are busy. Where
//! fewer are, each has more of the GPU for itself, and the most if it has an SM for itself.

use super::list_schedule::{BUSY, Chunks, Pace, elapsed_from, running, schedule};
use crate::Occupancy;

/// What a limit is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waves {
    /// CTAs that the device runs at once.
    pub(super) max_concurrent_ctas: u32,
    /// How they share its SMs.
    pub(super) occupancy: Occupancy,
    /// The shortest limit.
    pub(super) shortest: u32,
    /// What a CTA takes beyond its tokens.
    pub(super) cta: u32,
    /// What a row of a partial takes, to be written, read and merged.
    pub(super) row: u32,
    /// What merging at all takes, after the last CTA slot has finished.
    pub(super) merge: u32,
    /// Whether chunks of a KV range may be unequal.
    pub(super) uneven: bool,
}

/// A Q tile of a plan: CTAs that do the same to different KV heads.
#[derive(Clone, Copy, Debug)]
pub(super) struct KvWork {
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
    chunks: Vec<(u64, u64)>,
    cta_slots: Vec<(u64, u64)>,
}

/// CTAs of about the same length.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    ctas: u64,
    tokens: u64,
    longest: u64,
    rows: u64,
    /// Of one of them.
    mean_tokens: u64,
    mean_rows: u64,
}

/// How KV ranges are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Longer ones are, in tokens or what these count for. At least 1.
    pub(super) limit: u32,
    /// Whether into equal chunks, or into some as long as the limit and one of what is left.
    pub(super) equal: bool,
}

/// Chunks are whole multiples of this many tokens, or of a smaller page.
pub(super) const UNIT: u32 = 64;

/// Steps of classes within a power of two, as a power of two.
const CLASS_STEPS: u32 = 5;
const CLASSES: usize = 32 << CLASS_STEPS;
/// Limits too, so that a small change of the batch rarely moves them.
const LIMIT_STEPS: u32 = 5;
/// Limits are looked at that make as many chunks as fill this many waves, of CTAs that have an SM for themselves, or four of those that share one.
const MOST_WAVES: u32 = 8;
/// How many of them are scheduled.
const SCHEDULED: usize = 16;
/// Unequal chunks are taken where they save one part in this many of the time.
const UNEVEN_SAVES: u64 = 64;
impl Waves {
    /// CTAs that run at once if an SM runs `ctas_per_sm`.
    pub(super) fn running(&self, ctas_per_sm: u32) -> u64 {
        running(self.max_concurrent_ctas, &self.occupancy, ctas_per_sm)
    }

    /// How these KV ranges are to be cut. `merges_uncut` says whether something is to be merged even if none is cut; it is asked only where that matters.
    pub(super) fn cut(
        &self,
        kv_ranges: impl Iterator<Item = KvWork>,
        merges_uncut: impl FnOnce() -> bool,
        scratch: &mut WavesScratch,
    ) -> Cut {
        let WavesScratch { histogram, classes, chunks, cta_slots } = scratch;
        // Empty but for the classes of this call.
        histogram.resize(CLASSES, Class::default());
        let (mut first, mut end) = (CLASSES, 0);
        let (mut longest, mut total, mut ctas_per_sm) = (0, 0u64, 1);
        for kv_range in kv_ranges.filter(|kv_range| kv_range.tokens > 0) {
            let index = class_of(kv_range.tokens);
            (first, end) = (first.min(index), end.max(index + 1));
            let class = &mut histogram[index];
            let ctas = u64::from(kv_range.ctas);
            class.ctas += ctas;
            class.tokens += ctas * u64::from(kv_range.tokens);
            class.longest = class.longest.max(u64::from(kv_range.tokens));
            class.rows += ctas * u64::from(kv_range.rows);
            total += ctas * u64::from(kv_range.tokens);
            longest = longest.max(kv_range.tokens);
            ctas_per_sm = ctas_per_sm.max(kv_range.ctas_per_sm);
        }
        classes.clear();
        let touched = &mut histogram[first.min(end)..end];
        classes.extend(touched.iter().filter(|class| class.ctas > 0).map(|class| Class {
            mean_tokens: class.tokens.div_ceil(class.ctas),
            mean_rows: class.rows.div_ceil(class.ctas),
            ..*class
        }));
        touched.fill(Class::default());
        let running = self.running(ctas_per_sm);
        let whole = Cut { limit: round_up(longest.max(self.shortest)), equal: true };
        let uncut = self.makespan(classes, whole, running, chunks, cta_slots);
        let (mut equal, mut uneven) = ((uncut, whole), (u64::MAX, whole));
        for cut in self.promising(classes, total, (whole.limit, ctas_per_sm)) {
            let makespan = self.makespan(classes, cut, running, chunks, cta_slots);
            let best = if cut.equal { &mut equal } else { &mut uneven };
            if makespan < best.0 {
                *best = (makespan, cut);
            }
        }
        // Chunks that begin where others end depend on these, which may be slower than their tokens say.
        let (cut, best) = if uneven.0 < equal.0 - equal.0 / UNEVEN_SAVES { uneven } else { equal };
        // Cuts have to pay for the merge too, if there is none without them.
        let pay = |merge: u32| cut + cut / 64 + u64::from(merge) < uncut;
        if pay(self.merge) || (pay(0) && merges_uncut()) { best } else { whole }
    }

    /// The cuts below the limit `whole` whose schedules seem to end first: with the longest chunk if each has a CTA slot, else when all chunks are through
    /// on all CTA slots, or when as many waves are as the longer half of the chunks takes.
    fn promising(
        &self,
        classes: &[Class],
        total: u64,
        (whole, ctas_per_sm): (u32, u32),
    ) -> impl Iterator<Item = Cut> + use<> {
        let running = self.running(ctas_per_sm);
        let fills = |waves: u32| u32::try_from(total / self.running(waves).max(1)).unwrap_or(u32::MAX);
        let mut found = [(u64::MAX, Cut { limit: whole, equal: true }); SCHEDULED];
        let mut limit = round_up(fills(MOST_WAVES.max(ctas_per_sm.saturating_mul(4))).max(self.shortest));
        let mut note = |ends: u64, cut: Cut| {
            let place = found.partition_point(|&(other, _)| other <= ends);
            if place < SCHEDULED {
                found[place..].rotate_right(1);
                found[place] = (ends, cut);
            }
        };
        let (mut count_before, mut rounded_before) = (0, 0);
        // Longer ones leave most SMs without a chunk.
        while limit < whole && limit / 2 <= fills(1).max(self.shortest) {
            let equal = Cut { limit, equal: true };
            let (ends, count) = self.seems_to_end(classes, equal, running);
            // As many equal chunks are the same.
            if count != count_before {
                note(ends, equal);
            }
            count_before = count;
            // Ends of unequal chunks would be rounded up one after the other. Where all equal chunks begin at once, the longest one ends last, and none is
            // longer than the limit.
            let rounded = limit.checked_next_multiple_of(UNIT).unwrap_or(u32::MAX);
            if self.uneven && count > running && rounded != rounded_before {
                let uneven = Cut { limit: rounded, equal: false };
                note(self.seems_to_end(classes, uneven, running).0, uneven);
                rounded_before = rounded;
            }
            limit = round_up(limit.saturating_add(1));
        }
        found.into_iter().filter(|&(ends, _)| ends < u64::MAX).map(|(_, cut)| cut)
    }

    /// When the schedule of a cut seems to end, and how many chunks there are.
    fn seems_to_end(&self, classes: &[Class], cut: Cut, running: u64) -> (u64, u64) {
        let (mut longest, mut load, mut count) = (0, 0, 0);
        let (mut load_of_long, mut long) = (0, 0);
        let half = u64::from(cut.limit) / 2 + u64::from(self.cta);
        for (time, chunks) in classes.iter().flat_map(|class| self.chunks_of(class, cut, self.cta.into())) {
            longest = longest.max(time);
            load += time * chunks;
            count += chunks;
            if time > half {
                load_of_long += time * chunks;
                long += chunks;
            }
        }
        let waves = || (load / running).max(load_of_long / long.max(1) * long.div_ceil(running));
        (if count <= running { longest } else { longest.max(waves()) }, count)
    }

    /// The chunks of a class, each of which takes `start` beyond its tokens and partials.
    fn chunks_of(&self, class: &Class, cut: Cut, start: u64) -> [Chunks; 2] {
        let limit = u64::from(cut.limit.max(1));
        let chunks = class.longest.div_ceil(limit).max(1);
        let partial = if chunks > 1 { u64::from(self.row) * class.mean_rows } else { 0 };
        let beyond = start + partial;
        if cut.equal || chunks == 1 || class.mean_tokens <= limit {
            return [(class.mean_tokens.div_ceil(chunks) + beyond, class.ctas * chunks), (0, 0)];
        }
        let (full, rest) = ((class.mean_tokens - 1) / limit, (class.mean_tokens - 1) % limit + 1);
        if rest < u64::from(self.shortest) {
            let shared = (limit + rest).div_ceil(2);
            return [(limit + beyond, class.ctas * (full - 1)), (shared + beyond, 2 * class.ctas)];
        }
        [(limit + beyond, class.ctas * full), (rest + beyond, class.ctas)]
    }

    /// When the last CTA slot finishes. A CTA starts no faster for having an SM to itself, whatever its tokens do.
    fn makespan(
        &self,
        classes: &[Class],
        cut: Cut,
        running: u64,
        chunks: &mut Vec<Chunks>,
        cta_slots: &mut Vec<(u64, u64)>,
    ) -> u64 {
        let chunks_from = |start| classes.iter().flat_map(move |class| self.chunks_of(class, cut, start));
        let count = chunks_from(0).map(|(_, count)| count).sum::<u64>().min(running);
        let of = (self.max_concurrent_ctas, &self.occupancy);
        let pace = Pace::of(of.0, of.1, count).of_busy(count);
        chunks.clear();
        chunks
            .extend(chunks_from((u64::from(self.cta) * BUSY).div_ceil(pace)).filter(|&(_, count)| count > 0));
        chunks.sort_unstable_by(|a, b| b.cmp(a));
        schedule(chunks, running, cta_slots);
        elapsed_from(0, of, running, cta_slots)
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    /// As of an H200, but merging at all costs nothing.
    const WAVES: Waves = Waves {
        max_concurrent_ctas: 264,
        occupancy: Occupancy::H200,
        shortest: 128,
        cta: 33,
        row: 2,
        merge: 0,
        uneven: true,
    };

    fn cut(waves: &Waves, kv_ranges: &[KvWork]) -> Cut {
        waves.cut(kv_ranges.iter().copied(), || false, &mut WavesScratch::default())
    }

    fn equal(limit: u32) -> Cut {
        Cut { limit, equal: true }
    }

    /// Tokens of the chunks of a KV range.
    fn chunks(tokens: u32, cut: Cut) -> Vec<u32> {
        let chunks = tokens.div_ceil(cut.limit);
        if cut.equal || chunks == 1 {
            return vec![tokens.div_ceil(chunks); chunks as usize];
        }
        let mut each = vec![cut.limit; chunks as usize];
        let last = each.len() - 1;
        each[last] = tokens - cut.limit * (chunks - 1);
        if each[last] < WAVES.shortest {
            let shared = (each[last] + cut.limit).div_ceil(2);
            each[last - 1..].fill(shared);
        }
        each
    }

    /// When the last CTA slot finishes, CTA by CTA.
    fn end(waves: &Waves, kv_ranges: &[KvWork], cut: Cut) -> u64 {
        let mut times = Vec::new();
        for kv_range in kv_ranges.iter().filter(|kv_range| kv_range.tokens > 0) {
            let chunks = chunks(kv_range.tokens, cut);
            let partial = if chunks.len() > 1 { waves.row * kv_range.rows } else { 0 };
            let times_of = chunks.iter().map(|tokens| f64::from(tokens + partial));
            times.extend(times_of.flat_map(|time| std::iter::repeat_n(time, kv_range.ctas as usize)));
        }
        times.sort_by(|a, b| b.total_cmp(a));
        let crowded = kv_ranges.iter().any(|kv_range| kv_range.ctas_per_sm == 2);
        let places = if crowded { waves.max_concurrent_ctas } else { waves.max_concurrent_ctas / 2 };
        let least = if times.len() as u32 > waves.max_concurrent_ctas / 2 { 13.0 } else { 9.0 } / 16.0;
        let pace = |busy: usize| (busy as f64 / f64::from(waves.max_concurrent_ctas)).max(least);
        // A start takes as long whatever the pace is.
        let start = f64::from(waves.cta) / pace(times.len().min(places.max(1) as usize));
        let mut free = vec![0.0f64; places.max(1) as usize];
        for time in times {
            let first = free.iter_mut().min_by(|a, b| a.total_cmp(b)).unwrap();
            *first += time + start;
        }
        // All that are busy get on equally fast.
        free.sort_by(f64::total_cmp);
        let (mut done, mut elapsed) = (0.0, 0.0);
        for (index, &work) in free.iter().enumerate() {
            elapsed += (work - done) * pace(free.len() - index);
            done = work;
        }
        elapsed as u64
    }

    #[test]
    fn one_long_kv_range_is_cut_and_many_short_ones_are_not() {
        let alone = [KvWork { ctas: 8, tokens: 100_000, rows: 4, ctas_per_sm: 2 }];
        let chunks = chunks(100_000, cut(&WAVES, &alone)).len() * 8;
        assert!((240..=264).contains(&chunks), "{chunks} chunks");
        let many = vec![KvWork { ctas: 8, tokens: 1024, rows: 4, ctas_per_sm: 2 }; 1024];
        assert_eq!(cut(&WAVES, &many), equal(1024));
    }

    #[test]
    fn a_second_wave_for_one_more_cta_is_avoided() {
        let kv_ranges = vec![KvWork { ctas: 1, tokens: 4096, rows: 4, ctas_per_sm: 2 }; 265];
        let (whole, cut) =
            (end(&WAVES, &kv_ranges, equal(4096)), end(&WAVES, &kv_ranges, cut(&WAVES, &kv_ranges)));
        assert!(cut * 10 < whole * 8, "{cut} of {whole}");
    }

    #[test]
    fn a_cut_pays_for_the_merge_unless_one_happens_anyway() {
        // 256 tokens and a CTA, or two parts of 128 and a partial: 120 tokens' time less.
        let (kv_ranges, dear) =
            ([KvWork { ctas: 1, tokens: 256, rows: 4, ctas_per_sm: 2 }], Waves { merge: 134, ..WAVES });
        assert_eq!((cut(&WAVES, &kv_ranges), cut(&dear, &kv_ranges)), (equal(128), equal(256)));
        assert_eq!(dear.cut(kv_ranges.iter().copied(), || true, &mut WavesScratch::default()), equal(128));
        assert_eq!(
            cut(&dear, &[KvWork { tokens: 512, ..kv_ranges[0] }]),
            equal(128),
            "what saves more is cut"
        );
    }

    #[test]
    fn ctas_with_an_sm_for_themselves_are_half_as_many_at_once() {
        // 16 chunks for each of eight KV heads are 128 CTAs, 33 are 264.
        let count = |ctas_per_sm, tokens: u32| {
            let kv_range = KvWork { ctas: 8, tokens, rows: 4, ctas_per_sm };
            chunks(tokens, cut(&WAVES, &[kv_range])).len()
        };
        assert_eq!((count(1, 8256), count(2, 100_000)), (16, 33));
        let mixed = [
            KvWork { ctas: 8, tokens: 100_000, rows: 4, ctas_per_sm: 1 },
            KvWork { ctas: 1, tokens: 128, rows: 4, ctas_per_sm: 2 },
        ];
        assert!(chunks(100_000, cut(&WAVES, &mixed)).len() > 16, "others fit beside them");
    }

    #[test]
    fn few_ctas_are_faster_alone_than_in_pairs() {
        // 132 SMs: 128 CTAs do not gain from being twice as many, as all partials are written twice.
        let kv_range = |tokens, rows| [KvWork { ctas: 128, tokens, rows, ctas_per_sm: 2 }];
        assert_eq!(cut(&WAVES, &kv_range(1024, 64)), equal(1024));
        // 140 on 128 SMs do: some of them share an SM, and all others wait for those.
        let shared = Waves { max_concurrent_ctas: 256, ..WAVES };
        assert!(cut(&shared, &[KvWork { ctas: 140, ..kv_range(65_536, 4)[0] }]).limit < 65_536);
    }

    fn kv_ranges() -> impl Strategy<Value = Vec<KvWork>> {
        let tokens = prop_oneof![1u32..400, 400u32..5_000, Just(4096u32), 5_000u32..150_000];
        let kv_range = (1u32..9, tokens, 1u32..64);
        let kv_range =
            kv_range.prop_map(|(ctas, tokens, rows)| KvWork { ctas, tokens, rows, ctas_per_sm: 2 });
        prop::collection::vec(kv_range, 1..60)
    }

    /// Limits are coarse and lengths in classes, and one CTA more than CTA slots is a wave more: no limit is best every time. It takes 0.865 on average,
    /// 1.005 and 1.030; unequal chunks, on 1 610 of them, 0.988 of the best equal ones, 1.018 and 1.041.
    #[test]
    fn the_cut_beats_simple_rules_on_average() {
        let mut runner = TestRunner::deterministic();
        let batches = (kv_ranges(), 1u32..300);
        let (mut ratios, mut over_equal) = (Vec::new(), Vec::new());
        for _ in 0..5_000 {
            let (kv_ranges, cta_slots) = batches.new_tree(&mut runner).unwrap().current();
            let waves = Waves { max_concurrent_ctas: cta_slots, ..WAVES };
            let ctas: u32 = kv_ranges.iter().map(|kv_range| kv_range.ctas).sum();
            let total: u64 =
                kv_ranges.iter().map(|kv_range| u64::from(kv_range.ctas * kv_range.tokens)).sum();
            let fill = total.div_ceil(u64::from(cta_slots)).max(128) as u32;
            let mean = total.div_ceil(u64::from(ctas)).max(128) as u32;
            let rules = [u32::MAX, fill, mean].map(|limit| end(&waves, &kv_ranges, equal(limit)));
            let found = cut(&waves, &kv_ranges);
            assert!(found.limit >= waves.shortest);
            let end_of = |cut| end(&waves, &kv_ranges, cut) as f64;
            ratios.push(end_of(found) / rules.into_iter().min().unwrap() as f64);
            if !found.equal {
                let best_equal = cut(&Waves { uneven: false, ..waves }, &kv_ranges);
                assert!(best_equal.equal);
                over_equal.push(end_of(found) / end_of(best_equal));
            }
        }
        let spread = |ratios: &mut Vec<f64>| {
            ratios.sort_by(f64::total_cmp);
            let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
            (mean, ratios[ratios.len() * 99 / 100], ratios[ratios.len() - 1])
        };
        let (mean, nearly_all, worst) = spread(&mut ratios);
        assert!(mean < 0.88 && nearly_all < 1.02 && worst < 1.06, "{mean}, {nearly_all}, {worst}");
        let (mean, nearly_all, worst) = spread(&mut over_equal);
        let many = over_equal.len();
        assert!(many > 1_000 && mean < 0.99 && nearly_all < 1.03, "{many}: {mean}, {nearly_all}, {worst}");
    }

    proptest! {
        #[test]
        fn cuts_are_those_of_free_merges_or_none_and_pay_for_the_merge(
            kv_ranges in kv_ranges(), cta_slots in 1u32..300, merge in prop_oneof![Just(0u32), 1u32..5_000, Just(u32::MAX)],
        ) {
            let waves = Waves { max_concurrent_ctas: cta_slots, merge, ..WAVES };
            let free = cut(&Waves { merge: 0, ..waves }, &kv_ranges);
            let WavesScratch { classes, mut chunks, cta_slots, .. } = {
                let mut scratch = WavesScratch::default();
                let anyway = waves.cut(kv_ranges.iter().copied(), || true, &mut scratch);
                prop_assert_eq!(anyway, free, "what is paid anyway does not matter");
                scratch
            };
            let (found, mut cta_slots) = (cut(&waves, &kv_ranges), cta_slots);
            let whole = equal(round_up(kv_ranges.iter().map(|kv_range| kv_range.tokens).max().unwrap().max(waves.shortest)));
            prop_assert!(found == free || found == whole);
            prop_assert!(merge != 0 || found == free);
            prop_assert!(merge != u32::MAX || found == whole);
            let mut end = |cut| waves.makespan(&classes, cut, waves.running(2), &mut chunks, &mut cta_slots);
            let price = if found == whole { 0 } else { u64::from(merge) };
            prop_assert!(end(found) + price <= end(whole), "no cut would be better");
            // What is left whole for the merge's sake would gain less than that, and what the model does not know.
            prop_assert!(found == free || end(free) + end(free) / 64 + u64::from(merge) >= end(whole));
        }

    }
}
