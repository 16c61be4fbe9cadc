//! What conformance cases expect, by an f64 reference, computed beside the measuring: a class has a hundred cases, which take up to two seconds of one thread.

use super::cases::seed;
use rayon::ThreadPoolBuilder;
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tilewright_conformance::{self as conformance, ConformanceCase};
use tilewright_kernel_templates::Class;

/// Threads that compute ahead: few, as compilers need the others more.
const AHEAD: usize = 3;

/// The cases of a class, each computed when it is first asked for.
#[derive(Debug)]
pub(super) struct OfClass {
    /// For all tiles.
    pub(super) common: Vec<ConformanceCase>,
    /// For batch-invariant kernels, beside the others.
    pub(super) invariant: Vec<ConformanceCase>,
}

type ByClass = Mutex<BTreeMap<Class, Arc<OfClass>>>;

/// The cases of the classes that were asked for, as long as the bench lives.
#[derive(Debug, Default)]
pub(super) struct References {
    by_class: Arc<ByClass>,
}

impl References {
    /// The cases of a class. What is computed of them is kept, and copied with each of them.
    pub(super) fn of(&self, class: &Class) -> Arc<OfClass> {
        of(&self.by_class, class)
    }

    /// Has the cases of these classes computed by threads that wait for the processor behind others: the plain ones of all classes first, then those with options where
    /// they are wanted.
    pub(super) fn compute_ahead(&self, wanted: Vec<(Class, bool)>) {
        let known = Arc::downgrade(&self.by_class);
        // Without the thread each class's are computed when it is verified.
        let _ = std::thread::Builder::new().name("references".to_owned()).spawn(move || {
            let pool = ThreadPoolBuilder::new().num_threads(AHEAD);
            let Ok(pool) = pool.start_handler(|_| crate::system::lower_priority_of_thread()).build() else {
                return;
            };
            pool.install(|| compute(&known, &wanted));
        });
    }
}

fn of(by_class: &ByClass, class: &Class) -> Arc<OfClass> {
    let mut by_class = by_class.lock().unwrap_or_else(PoisonError::into_inner);
    let author = || {
        Arc::new(OfClass {
            common: conformance::cases(class, seed()),
            invariant: conformance::invariant_cases(class, seed()),
        })
    };
    by_class.entry(*class).or_insert_with(author).clone()
}

/// Computes as long as the bench lives.
fn compute(known: &Weak<ByClass>, wanted: &[(Class, bool)]) {
    for plain in [true, false] {
        for (class, options) in wanted {
            let Some(by_class) = known.upgrade() else { return };
            let of_class = of(&by_class, class);
            let OfClass { common, invariant } = &*of_class;
            let common = common.iter().filter(|case| case.is_plain() == plain && (plain || *options));
            let invariant = invariant.iter().filter(|_| plain);
            let cases: Vec<&ConformanceCase> = common.chain(invariant).collect();
            cases.par_iter().for_each(|case| {
                case.expected();
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};
    use tilewright_heuristics::Dtype;

    const CLASSES: [Class; 2] =
        [Class { head_dim: 64, dtype: Dtype::Bf16 }, Class { head_dim: 64, dtype: Dtype::F16 }];

    /// Which of its cases are computed.
    fn computed(references: &References, class: &Class) -> Vec<bool> {
        let of_class = references.of(class);
        of_class.common.iter().chain(&of_class.invariant).map(ConformanceCase::is_computed).collect()
    }

    #[test]
    fn what_is_wanted_is_computed_ahead_and_nothing_else() {
        let references = References::default();
        let [with_options, plain] = CLASSES;
        assert!(!computed(&references, &plain).contains(&true));
        references.compute_ahead(vec![(plain, false), (with_options, true)]);
        let until = Instant::now() + Duration::from_secs(60);
        while computed(&references, &with_options).contains(&false) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!computed(&references, &with_options).contains(&false));
        let of_plain = references.of(&plain);
        for case in of_plain.common.iter().chain(&of_plain.invariant) {
            assert_eq!(case.is_computed(), case.is_plain(), "{}", case.name);
        }
        // A copy has what its case has, and numbers of the same seed expect the same.
        let case = &of_plain.common[0];
        let alone = conformance::cases(&plain, seed()).remove(0);
        assert!(case.clone().is_computed() && !alone.is_computed());
        assert_eq!(case.expected(), alone.expected());
    }

    #[test]
    fn a_bench_that_is_gone_has_nothing_computed() {
        let known = Arc::downgrade(&References::default().by_class);
        compute(&known, &[(CLASSES[0], true)]);
        assert!(known.upgrade().is_none());
    }
}
