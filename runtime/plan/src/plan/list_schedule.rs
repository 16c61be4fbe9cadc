//! List scheduling (Graham 1969, "Bounds on multiprocessing timing anomalies"): CTAs start in their order, each where a CTA slot gets free first.

use crate::Occupancy;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Chunks of about the same length: (what each takes, how many).
pub(super) type Chunks = (u64, u64);

/// What a token takes while all CTA slots are busy, in 16ths.
pub(super) const BUSY: u64 = 16;

/// When the last CTA slot is free, by the work that each has: (work, how many) in ascending order. The first CTA of each begins for so long, no
/// faster for having the GPU to itself.
pub(super) fn elapsed_from(
    beginning: u64,
    (all, occupancy): (u32, &Occupancy),
    running: u64,
    cta_slots: &[(u64, u64)],
) -> u64 {
    let pace = Pace::of(all, occupancy, used(cta_slots));
    let (mut done, mut busy, mut elapsed) = (0, running, 0u64);
    for &(free, ctas) in cta_slots {
        let begins = free.min(beginning).saturating_sub(done);
        let computes = free - done - begins;
        elapsed += begins * BUSY + computes * pace.of_busy(busy);
        (done, busy) = (free, busy - ctas);
    }
    elapsed.div_ceil(BUSY)
}

/// CTAs that run at once on this many CTA slots if an SM runs `ctas_per_sm`.
pub(super) fn running(cta_slots: u32, occupancy: &Occupancy, ctas_per_sm: u32) -> u64 {
    (u64::from(cta_slots) * u64::from(ctas_per_sm) / u64::from(occupancy.ctas_per_sm.max(1))).max(1)
}

/// How long a token of a CTA takes while few or many CTAs run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    cta_slots: u64,
    least: u64,
}

impl Pace {
    /// Of a launch of which `ctas` CTAs run at first. They have an SM each for themselves if they are no more than SMs: those that are left at the end
    /// of a larger launch may still share one.
    pub(super) fn of(cta_slots: u32, occupancy: &Occupancy, ctas: u64) -> Self {
        let shared = ctas > running(cta_slots, occupancy, 1);
        let least = if shared { occupancy.pace_shared } else { occupancy.pace_alone };
        Self { cta_slots: u64::from(cta_slots.max(1)), least }
    }

    /// While `busy` CTAs run, in [`BUSY`] parts of the time while every SM is full.
    pub(super) fn of_busy(self, busy: u64) -> u64 {
        (BUSY * busy).div_ceil(self.cta_slots).max(self.least)
    }
}

/// How many CTA slots, (when free, how many), had a CTA.
fn used(cta_slots: &[(u64, u64)]) -> u64 {
    cta_slots.iter().filter(|&&(free, _)| free > 0).map(|&(_, ctas)| ctas).sum()
}

/// Places chunks, (time, how many), on CTA slots, each where a CTA slot gets free first; leaves (when free, how many) in ascending order.
pub(super) fn schedule(chunks: &[Chunks], count: u64, cta_slots: &mut Vec<(u64, u64)>) {
    cta_slots.clear();
    cta_slots.push((0, count));
    for &(time, chunks) in chunks {
        let mut rest = chunks;
        while rest > 0 {
            let (first, here) = cta_slots[0];
            let (last, _) = cta_slots[cta_slots.len() - 1];
            if last - first <= time && rest >= count {
                // No CTA slot gets a second chunk before all have one: whole rounds leave the order as it is.
                cta_slots.iter_mut().for_each(|cta_slot| cta_slot.0 += rest / count * time);
                rest %= count;
                continue;
            }
            // The CTA slots that are free first take chunks until others are free before them, or some of them take the last ones.
            let until = cta_slots.get(1).map_or(1, |&(next, _)| (next - first).div_ceil(time.max(1)).max(1));
            let (taken, each) = if rest < here { (rest, 1) } else { (here, until.min(rest / here)) };
            rest -= taken * each;
            if taken == here {
                cta_slots.remove(0);
            } else {
                cta_slots[0].1 -= taken;
            }
            free_again(cta_slots, first + each * time, taken);
        }
    }
}

/// Puts CTA slots back where they belong by when they are free.
fn free_again(cta_slots: &mut Vec<(u64, u64)>, free: u64, count: u64) {
    let place = cta_slots.partition_point(|cta_slot| cta_slot.0 < free);
    match cta_slots.get_mut(place) {
        Some(cta_slot) if cta_slot.0 == free => cta_slot.1 += count,
        _ => cta_slots.insert(place, (free, count)),
    }
}

/// What CTA slots do while CTAs run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Placed {
    /// The time of all CTAs.
    pub(super) busy: u64,
    /// When the last one ends.
    pub(super) end: u64,
}

impl Placed {
    /// CTAs of these times that start in this order, each where a CTA slot gets free first.
    pub(super) fn on(cta_slots: u32, times: impl Iterator<Item = u64>) -> Self {
        let mut free: BinaryHeap<Reverse<u64>> = (0..cta_slots.max(1)).map(|_| Reverse(0)).collect();
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

    /// The share of the CTA slots' time in which no CTA runs, 0 to 1.
    pub(super) fn idle_share(self, cta_slots: u32) -> f64 {
        if self.end == 0 {
            0.0
        } else {
            1.0 - self.busy as f64 / (self.end as f64 * f64::from(cta_slots.max(1)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn idle_time_is_what_the_last_wave_leaves() {
        assert!((Placed::on(4, [10; 5].into_iter()).idle_share(4) - 3.0 / 8.0).abs() < 1e-12);
        assert_eq!(Placed::on(4, std::iter::empty()).idle_share(4), 0.0);
    }

    proptest! {
        #[test]
        fn classes_of_chunks_are_placed_as_one_by_one(times in prop::collection::vec((1u64..200, 1u64..60), 1..12), count in 1u64..24) {
            let mut times = times;
            times.sort_unstable_by(|a, b| b.cmp(a));
            let mut cta_slots = Vec::new();
            schedule(&times, count, &mut cta_slots);
            let mut free: BinaryHeap<Reverse<u64>> = (0..count).map(|_| Reverse(0)).collect();
            for &(time, chunks) in &times {
                for _ in 0..chunks {
                    free.peek_mut().unwrap().0 += time;
                }
            }
            let exact = free.into_iter().map(|cta_slot| cta_slot.0).max().unwrap();
            prop_assert_eq!(cta_slots.last().unwrap().0, exact);
            prop_assert_eq!(cta_slots.iter().map(|cta_slot| cta_slot.1).sum::<u64>(), count);
            prop_assert!(cta_slots.is_sorted());
        }
    }
}
