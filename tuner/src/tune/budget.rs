//! The time of a run, and what its phases took of it.

use crate::measure::Benches;
use std::fmt;
use std::time::{Duration, Instant};

/// The time that a run may take to measure, verification and waiting for kernels included. It is that of one device: where there are several, they divide
/// what they measure, so that each batch has about the time that it would have on one. Kernels are waited for as long, however many devices there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    begin: Instant,
    whole: Duration,
    devices: f64,
}

impl Budget {
    /// A budget that begins now. One that was asked for is the time on the clock, however many devices there are.
    pub(super) fn begin(begin: Instant, whole: Duration, asked: bool, benches: &mut Benches<'_>) -> Self {
        if asked {
            return Self { begin, whole, devices: 1.0 };
        }
        benches.divide_time();
        Self { begin, whole, devices: benches.living().max(1) as f64 }
    }

    /// When this part of it is over, if kernels were waited for so long, and are no more. The races before verification are short: the wait takes nothing of
    /// their time.
    pub(super) fn deadline(&self, part: f64, waited: Duration) -> Instant {
        let measuring = self.whole.mul_f64(part).saturating_sub(waited);
        self.begin + waited + measuring.div_f64(self.devices)
    }

    /// What is left of it at this time, on the clock, and at least this part of the whole.
    pub(super) fn left(&self, now: Instant, waited: Duration, least: f64) -> Duration {
        let measured = now.saturating_duration_since(self.begin).saturating_sub(waited);
        let spent = waited + measured.mul_f64(self.devices);
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
    last: Spent,
    took: Vec<(&'static str, Spent)>,
}

/// Time on the clock since the run began, and of it what was spent with waiting for kernels, and with pieces of work, in the mean of the benches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Spent {
    clock: Duration,
    waited: Duration,
    worked: Duration,
}

impl Spent {
    fn since(self, before: Self) -> Self {
        let since = |now: Duration, before| now.saturating_sub(before);
        Self {
            clock: since(self.clock, before.clock),
            waited: since(self.waited, before.waited),
            worked: since(self.worked, before.worked),
        }
    }
}

impl Phases {
    /// The first one begins with the run.
    pub(super) fn begin() -> Self {
        Self { last: Spent::default(), took: Vec::new() }
    }

    /// A phase of the run that began then is over.
    pub(super) fn end(&mut self, name: &'static str, begin: Instant, benches: &Benches<'_>) {
        self.add(
            name,
            Spent { clock: begin.elapsed(), waited: benches.compiled(), worked: benches.worked() },
        );
    }

    fn add(&mut self, name: &'static str, now: Spent) {
        tracing::debug!("{name}: over");
        self.took.push((name, now.since(self.last)));
        self.last = now;
    }
}

impl fmt::Display for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |name: &str, Spent { clock, waited, worked }: Spent| {
            let [clock, waited, worked] = [clock, waited, worked].map(|time| time.as_secs_f64());
            let busy = 100.0 * worked / clock.max(f64::MIN_POSITIVE);
            format!("{name} {clock:.1} s ({waited:.1} s waiting for kernels, benches {busy:.0} % busy)")
        };
        write!(f, "{}", said("all", self.last))?;
        self.took.iter().try_for_each(|(name, took)| write!(f, ", {}", said(name, *took)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn of(devices: f64) -> Budget {
        Budget { begin: Instant::now(), whole: seconds(100.0), devices }
    }

    #[test]
    fn two_devices_measure_in_half_of_the_time_and_wait_as_long() {
        let (one, two) = (of(1.0), of(2.0));
        let after = |budget: &Budget, part, waited| {
            (budget.deadline(part, seconds(waited)) - budget.begin).as_secs_f64().round()
        };
        assert_eq!((after(&one, 0.4, 20.0), after(&two, 0.4, 20.0)), (40.0, 30.0));
        assert_eq!(after(&two, 0.4, 0.0), 20.0);
        assert_eq!(after(&two, 0.1, 30.0), 30.0, "nothing is left to measure in");
    }

    #[test]
    fn what_is_left_is_divided_and_never_less_than_the_least() {
        let left = |budget: &Budget, spent: f64, waited| {
            budget.left(budget.begin + seconds(spent), seconds(waited), 0.2).as_secs_f64().round()
        };
        let (one, two) = (of(1.0), of(2.0));
        assert_eq!((left(&one, 60.0, 20.0), left(&one, 200.0, 20.0)), (40.0, 20.0));
        // What took 40 s on one takes 20 on two, which wait as long: each batch has as much time as on one.
        assert_eq!((left(&two, 40.0, 20.0), left(&two, 200.0, 20.0)), (20.0, 10.0));
    }

    #[test]
    fn phases_tell_the_wait_for_kernels_and_how_busy_benches_were() {
        let at = |clock, waited, worked| {
            let [clock, waited, worked] = [clock, waited, worked].map(seconds);
            Spent { clock, waited, worked }
        };
        let mut phases = Phases::begin();
        phases.add("screen", at(10.0, 4.0, 5.0));
        phases.add("verify", at(30.0, 5.0, 20.0));
        assert_eq!(
            phases.to_string(),
            "all 30.0 s (5.0 s waiting for kernels, benches 67 % busy), screen 10.0 s (4.0 s waiting for kernels, benches 50 % busy), \
             verify 20.0 s (1.0 s waiting for kernels, benches 75 % busy)"
        );
    }
}
