//! Launch modes the selector's plans, compared with the default on the whole batches that were measured.

use crate::choice::Choice;
use crate::statistics::{mean, median};
use crate::store::{Level, Measurement, Status};
use reports::{LaunchBatch, LaunchFamily, LaunchModeResult, Launching};
use std::collections::{BTreeMap, BTreeSet};
use tilewright_cuda::LaunchMode;
use tilewright_reports as reports;

/// What was measured of the selector on one batch.
#[derive(Default)]
struct Launched<'a> {
    family: &'a str,
    samples: BTreeMap<LaunchMode, Vec<f64>>,
    failures: BTreeMap<LaunchMode, &'a str>,
}

impl Launched<'_> {
    /// The mode's median over the default's; `None` without both.
    fn over_default(&self, launch_mode: LaunchMode) -> Option<f64> {
        let time = |launch_mode| self.samples.get(&launch_mode).and_then(|samples| median(samples));
        Some(time(launch_mode)? / time(LaunchMode::DEFAULT)?)
    }

    /// As [`Launched::over_default`]; 1 for what was not timed, since it is launched as the default is: its launches would be the same, or
    /// it cannot be had.
    fn over_default_or_same(&self, launch_mode: LaunchMode) -> f64 {
        self.over_default(launch_mode).unwrap_or(1.0)
    }
}

/// The comparison; `None` where nothing but the default was measured.
pub(super) fn launching(rows: &[Measurement]) -> Option<Launching> {
    let mut batches: BTreeMap<&str, Launched<'_>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.level == Level::Batch) {
        let Ok(Choice::Selector(launch_mode)) = row.choice.parse() else { continue };
        let batch = batches.entry(&row.workload).or_default();
        batch.family = &row.scenario;
        if row.status == Status::Correct {
            batch.samples.entry(launch_mode).or_default().extend(&row.samples_us);
        } else {
            batch.failures.insert(launch_mode, &row.message);
        }
    }
    batches.retain(|_, batch| batch.over_default(LaunchMode::DEFAULT).is_some());
    let tried = |batch: &Launched<'_>| batch.samples.len() + batch.failures.len() > 1;
    if !batches.values().any(tried) {
        return None;
    }
    let modes = LaunchMode::ALL.map(|launch_mode| mode(launch_mode, &batches)).to_vec();
    let shown = batches.iter().map(|(name, batch)| LaunchBatch {
        name: (*name).to_owned(),
        default_us: batch
            .samples
            .get(&LaunchMode::DEFAULT)
            .and_then(|samples| median(samples))
            .unwrap_or(f64::NAN),
        over_default: LaunchMode::ALL.map(|launch_mode| batch.over_default(launch_mode)).to_vec(),
    });
    Some(Launching { modes, batches: shown.collect(), families: families(&batches) })
}

fn mode(launch_mode: LaunchMode, batches: &BTreeMap<&str, Launched<'_>>) -> LaunchModeResult {
    let all: Vec<f64> = batches.values().map(|batch| batch.over_default_or_same(launch_mode)).collect();
    let measured: Vec<f64> = batches.values().filter_map(|batch| batch.over_default(launch_mode)).collect();
    let mut failures = batches.values().filter_map(|batch| batch.failures.get(&launch_mode)).peekable();
    let fastest = |batch: &&Launched<'_>| {
        let timed = LaunchMode::ALL.into_iter().filter_map(|other| Some((other, batch.over_default(other)?)));
        timed.min_by(|a, b| a.1.total_cmp(&b.1)).is_some_and(|(other, _)| other == launch_mode)
    };
    LaunchModeResult {
        name: launch_mode.to_string(),
        over_default: geometric_mean(&all).unwrap_or(1.0),
        measured_over_default: geometric_mean(&measured),
        measured: measured.len() as u64,
        fastest: batches.values().filter(fastest).count() as u64,
        failure: failures.peek().map_or(String::new(), |message| (**message).to_owned()),
        failed: failures.count() as u64,
    }
}

fn families(batches: &BTreeMap<&str, Launched<'_>>) -> Vec<LaunchFamily> {
    let names: BTreeSet<&str> = batches.values().map(|batch| batch.family).collect();
    let family = |name: &str| {
        let members: Vec<_> = batches.values().filter(|batch| batch.family == name).collect();
        let over_default = LaunchMode::ALL.map(|launch_mode| {
            let all: Vec<f64> = members.iter().map(|batch| batch.over_default_or_same(launch_mode)).collect();
            geometric_mean(&all).unwrap_or(1.0)
        });
        LaunchFamily {
            name: name.to_owned(),
            batches: members.len() as u64,
            over_default: over_default.to_vec(),
        }
    };
    names.into_iter().map(family).collect()
}

fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    let logarithms: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    mean(&logarithms).map(f64::exp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choice::PATS_PLANNER;
    use crate::store::test_data::measurement;

    fn batch(workload: &str, choice: &str, us: &[f64]) -> Measurement {
        let scenario = workload[..1].to_owned();
        Measurement { level: Level::Batch, scenario, ..measurement(workload, choice, us) }
    }

    fn failed(workload: &str, choice: &str) -> Measurement {
        Measurement {
            status: Status::Constraints,
            message: "no room".to_owned(),
            ..batch(workload, choice, &[])
        }
    }

    #[test]
    fn ways_are_judged_over_all_batches_and_where_they_differ() {
        let rows = [
            batch("a1", "selector", &[100.0, 90.0, 110.0]),
            batch("a1", "selector, streams+launch", &[80.0]),
            batch("a1", "selector, single+launch", &[125.0]),
            batch("a1", "m4n64w1s1", &[1.0]),
            batch("a2", "selector", &[10.0]),
            failed("a2", "selector, single+launch"),
            batch("b1", "selector", &[10.0]),
            batch("b1", "selector, streams+launch", &[20.0]),
            // Its default failed: there is nothing to compare with.
            failed("c1", "selector"),
            batch("c1", "selector, streams+launch", &[1.0]),
        ];
        let launching = launching(&rows).unwrap();
        let mode = |name: &str| launching.modes.iter().find(|mode| mode.name == name).unwrap();
        assert_eq!(launching.modes[0].name, LaunchMode::DEFAULT.to_string());
        let default = mode("serial+launch");
        assert_eq!((default.over_default, default.measured, default.fastest, default.failed), (1.0, 3, 2, 0));
        let streams = mode("streams+launch");
        assert!((streams.over_default - (0.8f64 * 2.0).cbrt()).abs() < 1e-12);
        assert!((streams.measured_over_default.unwrap() - 1.6f64.sqrt()).abs() < 1e-12);
        assert_eq!((streams.measured, streams.fastest, streams.failed), (2, 1, 0));
        let single = mode("single+launch");
        assert_eq!((single.measured, single.fastest, single.failed), (1, 0, 1));
        assert_eq!(single.failure, "no room");
        let never = mode("serial+last-cta");
        assert_eq!((never.over_default, never.measured_over_default, never.measured), (1.0, None, 0));

        let names: Vec<&str> = launching.batches.iter().map(|batch| batch.name.as_str()).collect();
        assert_eq!(names, ["a1", "a2", "b1"]);
        let place = |name| launching.modes.iter().position(|mode| mode.name == name).unwrap();
        assert_eq!(launching.batches[0].default_us, 100.0);
        assert_eq!(launching.batches[0].over_default[place("streams+launch")], Some(0.8));
        assert_eq!(launching.batches[1].over_default[place("single+launch")], None);
        let families: Vec<_> = launching.families.iter().map(|f| (f.name.as_str(), f.batches)).collect();
        assert_eq!(families, [("a", 2), ("b", 1)]);
        assert!((launching.families[0].over_default[place("streams+launch")] - 0.8f64.sqrt()).abs() < 1e-12);
        assert_eq!(launching.families[1].over_default[place("streams+launch")], 2.0);
    }

    #[test]
    fn the_default_alone_is_nothing_to_compare() {
        let rows = [
            batch("a1", "selector", &[1.0]),
            batch("a1", PATS_PLANNER, &[2.0]),
            batch("a1", "m4n64w1s1", &[3.0]),
        ];
        assert_eq!(launching(&rows), None);
        assert_eq!(launching(&[]), None);
        let unlaunched = [rows[0].clone(), failed("a1", "selector, single+launch")];
        assert_eq!(
            launching(&unlaunched).unwrap().modes[4].failed,
            1,
            "that a mode cannot be had is a result"
        );
    }
}
