//! A race: candidates take samples in turn, the slow ones leave early, and a tie ends it.
//!
//! Samples are interleaved round-robin, so that a drift of the device (clocks, other processes) meets all candidates alike;
//! the order changes from round to round, so that no candidate always follows the same one. The first sample of each
//! candidate warms it up and is dropped. A candidate leaves as soon as its samples say that it will not win; it keeps the
//! samples it has, since a fit needs the cost of every candidate, not only of the winner.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::time::{Duration, Instant};

use super::Failure;
use crate::statistics::{median, spread};

/// How long a race goes on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RaceOptions {
    /// Rounds before a tie is believed.
    pub min_rounds: usize,
    /// Rounds after which the race ends in any case.
    pub max_rounds: usize,
    /// Relative difference below which candidates tie.
    pub tie: f64,
    /// Time after which no further round begins, but for the first ones.
    pub time_limit: Duration,
    /// Rounds that are completed in any case, after the warm-up.
    pub least_rounds: usize,
    /// Whether slow candidates leave.
    pub eliminate: bool,
    /// Decides the order within each round.
    pub seed: u64,
}

impl Default for RaceOptions {
    fn default() -> Self {
        Self {
            min_rounds: 5,
            max_rounds: 15,
            tie: 0.02,
            time_limit: Duration::from_secs(5),
            least_rounds: 1,
            eliminate: true,
            seed: 0,
        }
    }
}

/// Why a race ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// One candidate was left, or none could run.
    Decided,
    /// All that were left tie.
    Tie,
    /// The last round was run.
    Rounds,
    /// The time was up.
    Time,
    /// The caller asked to stop.
    Interrupted,
}

/// What a race found out about one candidate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contestant {
    /// Samples in µs, in the order in which they were taken, warm-up left out.
    pub samples_us: Vec<f64>,
    /// Whether it stayed to the end.
    pub survived: bool,
    /// Why it could not run.
    pub error: Option<Failure>,
}

/// The outcome of a race.
#[derive(Clone, Debug, PartialEq)]
pub struct RaceResult {
    /// One entry a candidate, in their order.
    pub contestants: Vec<Contestant>,
    /// Why it ended.
    pub ended: Ended,
}

/// Who is slower than this many times the best leaves after one, after two rounds. What takes away one of two threads for a moment doubles a sample: one alone
/// must say more than that, and of two the faster one counts.
const HOPELESS: [f64; 2] = [3.0, 1.5];

/// Races `count` candidates. `sample` runs one of them once and says its time in µs, or why it could not run.
/// `interrupted` is asked before each sample.
pub fn race(
    count: usize,
    options: &RaceOptions,
    mut interrupted: impl FnMut() -> bool,
    mut sample: impl FnMut(usize) -> Result<f64, Failure>,
) -> RaceResult {
    let begin = Instant::now();
    let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
    let mut contestants = vec![Contestant { survived: true, ..Contestant::default() }; count];
    let mut order: Vec<usize> = (0..count).collect();
    let mut ended = Ended::Rounds;
    'rounds: for round in 0..=options.max_rounds {
        if round > options.least_rounds && begin.elapsed() >= options.time_limit {
            ended = Ended::Time;
            break;
        }
        order.retain(|&i| contestants[i].survived);
        order.shuffle(&mut rng);
        for &i in &order {
            if interrupted() {
                ended = Ended::Interrupted;
                break 'rounds;
            }
            match sample(i) {
                Ok(_) if round == 0 => {}
                Ok(us) => contestants[i].samples_us.push(us),
                Err(error) => {
                    contestants[i].survived = false;
                    contestants[i].error = Some(error);
                }
            }
        }
        if round == 0 {
            continue;
        }
        if options.eliminate {
            eliminate(&mut contestants, round, options.tie);
        }
        if let Some(end) = decided(&contestants, round, options) {
            ended = end;
            break;
        }
    }
    RaceResult { contestants, ended }
}

/// The smallest median among those that are still in the race.
fn best(contestants: &[Contestant]) -> Option<(usize, f64)> {
    contestants
        .iter()
        .enumerate()
        .filter(|(_, contestant)| contestant.survived)
        .filter_map(|(i, contestant)| Some((i, median(&contestant.samples_us)?)))
        .min_by(|a, b| a.1.total_cmp(&b.1))
}

fn eliminate(contestants: &mut [Contestant], round: usize, tie: f64) {
    let Some((leader, best)) = best(contestants) else { return };
    let doubt = |contestant: &Contestant| {
        spread(&contestant.samples_us).unwrap_or(0.0) / (contestant.samples_us.len() as f64).sqrt()
    };
    let leader_high = best + doubt(&contestants[leader]);
    for (i, contestant) in contestants.iter_mut().enumerate() {
        if i == leader || !contestant.survived {
            continue;
        }
        let Some(own) = median(&contestant.samples_us) else { continue };
        contestant.survived = match HOPELESS.get(round - 1) {
            Some(factor) => contestant.samples_us.iter().any(|&us| us <= best * factor),
            // From the third round on the samples' own spread decides: even the low end is beyond a tie.
            None => own - doubt(contestant) <= leader_high * (1.0 + tie),
        };
    }
}

fn decided(contestants: &[Contestant], round: usize, options: &RaceOptions) -> Option<Ended> {
    let Some((_, best)) = best(contestants) else { return Some(Ended::Decided) };
    if !options.eliminate || round < options.min_rounds {
        return None;
    }
    let mut survivors = contestants.iter().filter(|contestant| contestant.survived);
    if survivors.clone().count() == 1 {
        return Some(Ended::Decided);
    }
    survivors
        .all(|contestant| median(&contestant.samples_us).is_some_and(|own| own <= best * (1.0 + options.tie)))
        .then_some(Ended::Tie)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Status;

    fn run(times: &[f64], options: &RaceOptions) -> RaceResult {
        race(times.len(), options, || false, |i| Ok(times[i]))
    }

    #[test]
    fn slow_candidates_leave_early_with_the_samples_they_have() {
        let result = run(&[100.0, 1000.0, 160.0, 105.0], &RaceOptions::default());
        let counts: Vec<usize> = result.contestants.iter().map(|c| c.samples_us.len()).collect();
        assert_eq!(counts, [5, 1, 2, 3], "10x leaves after one sample, 1.6x after two, 1.05x after three");
        assert_eq!(result.ended, Ended::Decided);
        assert!(result.contestants[0].survived && !result.contestants[3].survived);
    }

    #[test]
    fn the_first_rounds_are_completed_whatever_the_time() {
        let options = RaceOptions { eliminate: false, time_limit: Duration::ZERO, ..RaceOptions::default() };
        let samples = |least_rounds| {
            let result = run(&[100.0, 200.0], &RaceOptions { least_rounds, ..options });
            assert_eq!(result.ended, Ended::Time);
            result.contestants.iter().map(|c| c.samples_us.len()).collect::<Vec<_>>()
        };
        assert_eq!([1, 7].map(samples), [[1, 1], [7, 7]]);
    }

    #[test]
    fn a_tie_ends_the_race_instead_of_burning_samples() {
        let result = run(&[100.0, 101.0, 100.5], &RaceOptions::default());
        assert_eq!(result.ended, Ended::Tie);
        assert!(result.contestants.iter().all(|c| c.survived && c.samples_us.len() == 5));
    }

    #[test]
    fn the_first_sample_of_each_candidate_is_dropped() {
        let mut first = [true; 2];
        let result = race(
            2,
            &RaceOptions::default(),
            || false,
            |i| Ok(if std::mem::take(&mut first[i]) { 1e6 } else { 10.0 }),
        );
        assert!(result.contestants.iter().all(|c| c.samples_us.iter().all(|&us| us == 10.0)));
    }

    #[test]
    fn samples_are_interleaved_in_changing_order() {
        let mut taken = Vec::new();
        let options = RaceOptions { eliminate: false, max_rounds: 6, ..RaceOptions::default() };
        race(
            4,
            &options,
            || false,
            |i| {
                taken.push(i);
                Ok(1.0)
            },
        );
        let rounds: Vec<&[usize]> = taken.chunks(4).collect();
        assert_eq!(rounds.len(), 7, "the warm-up and six rounds");
        for round in &rounds {
            let mut sorted = round.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3]);
        }
        assert!(rounds.iter().any(|round| round != &rounds[0]));
    }

    #[test]
    fn noise_does_not_eliminate_the_best() {
        // The best of three by 3 %, under 20 % of noise, must survive whatever the noise does.
        for seed in 0..50 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let result = race(
                3,
                &RaceOptions { seed, ..RaceOptions::default() },
                || false,
                |i| {
                    let base = [100.0, 103.0, 103.0][i];
                    Ok(base * rand::RngExt::random_range(&mut rng, 0.9..1.1))
                },
            );
            assert!(result.contestants[0].samples_us.len() >= 3, "seed {seed}");
        }
    }

    #[test]
    fn a_failing_candidate_is_recorded_and_the_race_goes_on() {
        let boom = || Failure { status: Status::Timeout, message: "boom".to_owned() };
        let result = race(
            2,
            &RaceOptions::default(),
            || false,
            |i| {
                if i == 0 { Err(boom()) } else { Ok(5.0) }
            },
        );
        assert_eq!(result.contestants[0].error, Some(boom()));
        assert!(result.contestants[1].survived && result.contestants[1].samples_us.len() == 5);
        let none = race(1, &RaceOptions::default(), || false, |_| Err(boom()));
        assert_eq!(none.ended, Ended::Decided);
    }

    #[test]
    fn an_interrupt_keeps_what_was_sampled() {
        let mut left = 7;
        let result = race(
            2,
            &RaceOptions::default(),
            || {
                left -= 1;
                left < 0
            },
            |_| Ok(1.0),
        );
        assert_eq!(result.ended, Ended::Interrupted);
        assert_eq!(result.contestants.iter().map(|c| c.samples_us.len()).sum::<usize>(), 5);
    }

    #[test]
    fn no_candidates_is_no_race() {
        assert_eq!(run(&[], &RaceOptions::default()).ended, Ended::Decided);
    }
}
