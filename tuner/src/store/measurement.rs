//! One measurement: one choice of tiles on one workload of one device.

use serde::{Deserialize, Serialize};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tilewright_heuristics::{BatchShape, Tile};

/// What kind of workload was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Nothing was timed: a tile of the space and what the rules say of it for a class of kernels.
    Space,
    /// Nothing was timed either: a tile that a selector may return, with the `cp.async` producer, in a class of kernels that has TMA producers.
    /// Not every tile of the space has such a row.
    CpAsync,
    /// Nothing was timed either: a tile that a selector may return, with mask options and sinks, in the class of kernels that most batches have. Older recordings have
    /// such tiles' options among [`Level::Space`].
    Options,
    /// Nothing was timed either: a tile of a family of batch-invariant plans, of whose kernels no selector is. Only classes whose batches are executed
    /// with such plans have such rows.
    Invariant,
    /// Packs of one shape, all with one tile: of older recordings. Nothing is made of them any more.
    Pack,
    /// A whole batch under one tile of a shape (rows, tokens, warps) that passed its trial: says which shapes' other tiles are worth trying. Never
    /// fitted or judged.
    FirstLook,
    /// A whole batch under a tile that passed its trial: says whether the tile is worth verifying. Never fitted or judged.
    Screen,
    /// A whole batch of a scenario, under one policy.
    Batch,
}

impl Level {
    /// What tiles that a selector may return are verified with at this level, if they are.
    pub const fn verified_with(self) -> Option<&'static str> {
        match self {
            Self::CpAsync => Some("`cp.async`"),
            Self::Options => Some("options"),
            Self::Space | Self::Invariant | Self::Pack | Self::FirstLook | Self::Screen | Self::Batch => None,
        }
    }
}

/// What became of a variant on a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Status {
    /// It ran, and its results were those of the reference.
    Correct,
    /// A feasibility rule rejected it.
    Constraints,
    /// It was slower than others where all were raced, so it was not verified.
    Unverified,
    /// It did not compile.
    Compile,
    /// It failed while running.
    Runtime,
    /// It did not end in time.
    Timeout,
    /// It ran, and its results were wrong.
    Correctness,
}

macro_rules! names {
    ($type:ident { $($variant:ident = $name:literal $(or $former:literal)*),+ $(,)? }) => {
        impl $type {
            /// Its name in files.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// The one with this name, or with one that older files have.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name $(| $former)* => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

names!(Level { Space = "space", CpAsync = "cp-async" or "gathers", Options = "options", Invariant = "invariant", Pack = "pack", FirstLook = "first-look", Screen = "screen", Batch = "batch" });
names!(Status {
    Correct = "correct",
    Constraints = "constraints",
    Unverified = "unverified",
    Compile = "compile",
    Runtime = "runtime",
    Timeout = "timeout",
    Correctness = "correctness",
});

/// What a variant needs of the device. Fields that a backend has no notion of are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Registers a thread (cuda).
    pub registers: Option<u32>,
    /// Shared memory a CTA in bytes (cuda).
    pub shared_bytes: Option<u32>,
    /// Spilled bytes a thread (cuda).
    pub spill_bytes: Option<u32>,
    /// Scratch a thread in bytes (cpu).
    pub scratch_bytes: Option<u32>,
}

/// The device's state when a workload had been measured. Fields that a backend or a machine does not tell are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Conditions {
    /// Clock of the multiprocessors in MHz.
    pub sm_clock_mhz: Option<u32>,
    /// Clock of the memory in MHz.
    pub memory_clock_mhz: Option<u32>,
    /// Temperature in °C.
    pub temperature_c: Option<u32>,
    /// Power in W.
    pub power_w: Option<u32>,
    /// What held the clocks down; empty if nothing did.
    pub throttled: String,
}

/// One row of a file of measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// Kind of workload.
    pub level: Level,
    /// Name of the workload: unique in its level. For [`Level::Space`], [`Level::CpAsync`], [`Level::Options`] and [`Level::Invariant`], the class of kernels.
    pub workload: String,
    /// Name of the scenario that the workload was made from.
    pub scenario: String,
    /// What a selector is told of the batch ([`Level::Batch`], [`Level::Screen`] and [`Level::FirstLook`]).
    pub batch: Option<BatchShape>,
    /// Whether the workload is only judged, never fitted.
    pub held_out: bool,
    /// The name of a set of tiles, or of a policy them.
    pub choice: String,
    /// The tile, where one tile served all packs.
    pub tile: Option<Tile>,
    /// What became of it.
    pub status: Status,
    /// Whether it stayed in the race to the end.
    pub survived: bool,
    /// Whether the race was run to its end; a run that goes on measures the workload again.
    pub complete: bool,
    /// All samples in µs, in the order in which they were taken, warm-up left out.
    pub samples_us: Vec<f64>,
    /// The least time that the hardware needs, in µs.
    pub limit_us: Option<f64>,
    /// Requests of the workload.
    pub requests: Option<u64>,
    /// Bytes of distinct K and V.
    pub unique_bytes: Option<u64>,
    /// Bytes of K and V if nothing were shared.
    pub unshared_bytes: Option<u64>,
    /// How the scenario was scaled down to fit; empty if it was not.
    pub scaled: String,
    /// Largest relative error against the f64 reference.
    pub relative_error: Option<f64>,
    /// What the variant needs.
    pub resources: Resources,
    /// The device's state.
    pub conditions: Conditions,
    /// Content hash of the selector that chose, where one did.
    pub selector_hash: String,
    /// The rule and reason, or the error.
    pub message: String,
}

impl Measurement {
    /// Median of the samples in µs; `None` without samples.
    pub fn median_us(&self) -> Option<f64> {
        crate::statistics::median(&self.samples_us)
    }

    /// Half the interquartile range of the samples in µs; `None` without samples.
    pub fn spread_us(&self) -> Option<f64> {
        crate::statistics::spread(&self.samples_us)
    }
}

/// The variants that failed with `cp.async` or with options, by the class of kernels as its rows name it: no selector may return them,
/// whatever the space says of them.
pub(crate) fn failed_variants(rows: &[Measurement]) -> BTreeMap<(&str, Tile), &Measurement> {
    let failed = |row: &&Measurement| row.level.verified_with().is_some() && row.status != Status::Correct;
    rows.iter().filter(failed).filter_map(|row| Some(((row.workload.as_str(), row.tile?), row))).collect()
}

/// The variants that no selector may return although batches were raced under them, by the class of kernels: those that failed with `cp.async` or with options, and those that
/// passed before their race and failed in it or after it.
pub(crate) fn failed_since(rows: &[Measurement]) -> BTreeSet<(&str, Tile)> {
    let failed = |row: &&Measurement| {
        let has_passed = matches!(row.status, Status::Correct | Status::Constraints | Status::Unverified);
        row.level == Level::Space && !has_passed
    };
    let of_space = rows.iter().filter(failed).filter_map(|row| Some((row.workload.as_str(), row.tile?)));
    of_space.chain(failed_variants(rows).into_keys()).collect()
}

/// Of the classes of kernels that were verified with `cp.async` or with options, those in which some of these tiles were not, and with what: a fit with other
/// settings may choose tiles that the run's did not.
pub(crate) fn unverified_variants(
    rows: &[Measurement],
    tiles: &BTreeSet<Tile>,
) -> BTreeMap<(String, &'static str), Vec<Tile>> {
    let mut seen: BTreeMap<(&str, &str), BTreeSet<Tile>> = BTreeMap::new();
    for row in rows {
        if let Some(with) = row.level.verified_with() {
            seen.entry((&row.workload, with)).or_default().extend(row.tile);
        }
    }
    let missing = seen
        .into_iter()
        .map(|((class, with), seen)| ((class.to_owned(), with), tiles.difference(&seen).copied().collect()));
    missing.filter(|(_, tiles): &(_, Vec<Tile>)| !tiles.is_empty()).collect()
}

/// Unites rows of the same choice on the same workload, as an interrupted race or overlapping shards leave them: the samples
/// follow each other, everything else is the last row's. The order is that of the first rows.
pub(super) fn coalesce(rows: Vec<Measurement>) -> Vec<Measurement> {
    let mut place = HashMap::new();
    let mut united: Vec<Measurement> = Vec::with_capacity(rows.len());
    for mut row in rows {
        let key = (row.level, row.workload.clone(), row.choice.clone(), row.selector_hash.clone());
        match place.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(united.len());
                united.push(row);
            }
            Entry::Occupied(entry) => {
                let first = &mut united[*entry.get()];
                let mut samples = std::mem::take(&mut first.samples_us);
                samples.append(&mut row.samples_us);
                *first = Measurement { samples_us: samples, ..row };
            }
        }
    }
    united
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::test_data::measurement;

    #[test]
    fn an_interrupted_race_is_united_with_the_one_that_went_on() {
        let cut = Measurement { complete: false, ..measurement("a", "m4n64w1s1", &[3.0]) };
        let rows =
            vec![cut, measurement("b", "m4n64w1s1", &[9.0]), measurement("a", "m4n64w1s1", &[1.0, 2.0])];
        let united = coalesce(rows);
        assert_eq!(united.len(), 2);
        assert_eq!((united[0].samples_us.as_slice(), united[0].complete), ([3.0, 1.0, 2.0].as_slice(), true));
        assert_eq!(united[1].workload, "b");
    }

    #[test]
    fn tiles_unverified_with_cp_async_or_options_are_named() {
        let at = |level, class, choice| Measurement { level, ..measurement(class, choice, &[]) };
        let rows = [
            at(Level::CpAsync, "a", "m4n64w1s1"),
            at(Level::CpAsync, "a", "m8n64w1s1"),
            at(Level::CpAsync, "b", "m8n64w1s1"),
            at(Level::Options, "a", "m8n64w1s1"),
        ];
        let tiles = |names: &[&str]| names.iter().map(|name| name.parse().unwrap()).collect();
        assert!(unverified_variants(&rows, &tiles(&["m8n64w1s1"])).is_empty());
        let both = unverified_variants(&rows, &tiles(&["m4n64w1s1", "m8n64w1s1"]));
        let missing = || vec!["m4n64w1s1".parse().unwrap()];
        let expected =
            [(("a".to_owned(), "options"), missing()), (("b".to_owned(), "`cp.async`"), missing())];
        assert_eq!(both, BTreeMap::from(expected));
        assert!(
            unverified_variants(&[measurement("c", "m4n64w1s1", &[1.0])], &tiles(&["m4n64w1s1"])).is_empty()
        );
    }

    #[test]
    fn another_selector_is_another_choice() {
        let old = Measurement { selector_hash: "old".to_owned(), ..measurement("a", "selector", &[3.0]) };
        let new = Measurement { selector_hash: "new".to_owned(), ..measurement("a", "selector", &[1.0]) };
        assert_eq!(coalesce(vec![old, new]).len(), 2);
    }
}
