//! The time of a run, and what its phases took of it.

use crate::measure::Benches;
use std::fmt;
use std::time::{Duration, Instant};

/// Cores of a host with one GPU that the default budget is made for, which counts what they compile.
const CORES: f64 = 16.0;

/// The time that a run may take to measure, verification and compiling included. It is that of one device: where there are several, they divide it, so that each
/// batch has about the time that it would have on one. All cores compile, however many devices there are: compiling is faster by the cores alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    begin: Instant,
    whole: Duration,
    devices: f64,
    /// What a second of compiling is on a host with one device.
    compiling: f64,
}

impl Budget {
    /// A budget that begins now. One that was asked for is the time on the clock, however many devices there are.
    pub(super) fn begin(begin: Instant, whole: Duration, asked: bool, benches: &mut Benches<'_>) -> Self {
        if asked {
            return Self { begin, whole, devices: 1.0, compiling: 1.0 };
        }
        benches.divide_time();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::of(begin, whole, benches.living().max(1) as f64, cores as f64)
    }

    fn of(begin: Instant, whole: Duration, devices: f64, cores: f64) -> Self {
        Self { begin, whole, devices, compiling: (cores / CORES).clamp(1.0, devices) }
    }

    /// When this part of it is over, if so much was compiled, and nothing more is. The races before verification are short: what was compiled takes nothing of
    /// their time.
    pub(super) fn deadline(&self, part: f64, compiled: Duration) -> Instant {
        let measuring = self.whole.mul_f64(part).saturating_sub(compiled);
        self.begin + compiled + measuring.div_f64(self.devices)
    }

    /// What is left of it at this time, on the clock, and at least this part of the whole.
    pub(super) fn left(&self, now: Instant, compiled: Duration, least: f64) -> Duration {
        let measured = now.saturating_duration_since(self.begin).saturating_sub(compiled);
        let spent = compiled.mul_f64(self.compiling) + measured.mul_f64(self.devices);
        self.whole.saturating_sub(spent).max(self.whole.mul_f64(least)).div_f64(self.devices)
    }

    /// A time of one device, on the clock.
    pub(super) fn divided(&self, time: Duration) -> Duration {
        time.div_f64(self.devices)
    }
}

/// What the phases of a run took, one after the other.
#[derive(Debug)]
pub(super) struct Phases {
    last: Instant,
    compiled: Duration,
    took: Vec<(&'static str, Duration)>,
}

impl Phases {
    /// The first one begins.
    pub(super) fn begin(begin: Instant) -> Self {
        Self { last: begin, compiled: Duration::ZERO, took: Vec::new() }
    }

    /// A phase is over, in which so much was compiled, counted from the begin of the run.
    pub(super) fn end(&mut self, name: &'static str, compiled: Duration) {
        let now = Instant::now();
        let own = (now - self.last).saturating_sub(compiled.saturating_sub(self.compiled));
        self.took.push((name, own));
        (self.last, self.compiled) = (now, compiled);
    }
}

impl fmt::Display for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "compile {:.1} s", self.compiled.as_secs_f64())?;
        self.took.iter().try_for_each(|(name, took)| write!(f, ", {name} {:.1} s", took.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn of(devices: f64, cores: f64) -> Budget {
        Budget::of(Instant::now(), seconds(100.0), devices, cores)
    }

    #[test]
    fn two_devices_measure_in_half_of_the_time_and_compile_in_as_much() {
        let (one, two) = (of(1.0, 64.0), of(2.0, 64.0));
        let after = |budget: &Budget, part, compiled| {
            (budget.deadline(part, seconds(compiled)) - budget.begin).as_secs_f64().round()
        };
        assert_eq!((after(&one, 0.4, 20.0), after(&two, 0.4, 20.0)), (40.0, 30.0));
        assert_eq!(after(&two, 0.4, 0.0), 20.0);
        assert_eq!(after(&two, 0.1, 30.0), 30.0, "nothing is left to measure in");
    }

    #[test]
    fn what_is_left_is_divided_and_never_less_than_the_least() {
        let left = |budget: &Budget, spent: f64, compiled| {
            budget.left(budget.begin + seconds(spent), seconds(compiled), 0.2).as_secs_f64().round()
        };
        let one = of(1.0, 64.0);
        assert_eq!((left(&one, 60.0, 20.0), left(&one, 200.0, 20.0)), (40.0, 20.0));
        // Twice the devices with the same cores, and with twice the cores, which compile in half of the time.
        let (same, twice) = (of(2.0, 16.0), of(2.0, 32.0));
        assert_eq!((left(&same, 40.0, 20.0), left(&same, 200.0, 20.0)), (20.0, 10.0));
        assert_eq!(left(&twice, 30.0, 10.0), 20.0);
    }

    #[test]
    fn phases_are_told_without_what_was_compiled_in_them() {
        let begin = Instant::now() - seconds(10.0);
        let mut phases = Phases::begin(begin);
        phases.end("screen", seconds(4.0));
        assert_eq!(phases.to_string(), "compile 4.0 s, screen 6.0 s");
    }
}
