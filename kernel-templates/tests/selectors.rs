//! Every emitted selector, asked a million times: what it names can run, by the rules, on the device that it was measured on.

use std::collections::{BTreeMap, BTreeSet};
use tilewright_heuristics::generated::SELECTORS;
use tilewright_heuristics::{Backend, BatchShape, Domain, Dtype, Selector, TileSet};
use tilewright_kernel_templates::cuda::WarpSplit;
use tilewright_kernel_templates::{Class, CpuLimits, CudaLimits, Limits, check};

const QUESTIONS: usize = 1_000_000;

/// Random batches: half of them from the domain's corners and inside, half from anywhere.
struct Batches {
    state: u64,
    domain: Domain,
}

impl Batches {
    fn number(&mut self) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.state >> 32
    }

    fn batch(&mut self) -> BatchShape {
        let inside = self.number().is_multiple_of(2);
        let (min, max) = (self.domain.min.values(), self.domain.max.values());
        let mut values = [0; BatchShape::COUNT];
        for (i, value) in values.iter_mut().enumerate() {
            let range = u64::from(max[i] - min[i]) + 1;
            *value = match (inside, self.number() % 4) {
                (true, 0) => min[i],
                (true, 1) => max[i],
                (true, _) => min[i] + (self.number() % range) as u32,
                (false, 0) => u32::MAX,
                (false, 1) => 0,
                (false, _) => self.number() as u32 >> (self.number() % 32),
            };
        }
        let mut batch = BatchShape::from_values(values);
        // Head dimensions that there are kernels for, more often than chance would have it.
        if let Some(&head_dim) = Class::HEAD_DIMS.get((self.number() % 10) as usize) {
            batch.head_dim = head_dim;
        }
        batch
    }
}

fn limits_of(selector: &Selector) -> Limits {
    let device = &selector.device;
    match device.backend {
        Backend::Cpu => Limits::Cpu(CpuLimits { threads: device.units, ..CpuLimits::BASELINE }),
        Backend::Cuda => {
            let known = CudaLimits::recognised(device.name);
            Limits::Cuda(known.unwrap_or_else(|| panic!("{}: no limits are known", device.name)))
        }
    }
}

/// The tiles of a set that cannot run the batch's kernels.
fn unfit(set: TileSet<'_>, class: &Class, limits: &Limits) -> Vec<String> {
    let verdicts = set.tiles().iter().map(|tile| (tile, check(tile, class, limits)));
    verdicts.filter_map(|(tile, verdict)| Some(format!("{tile}: {}", verdict.err()?.reason))).collect()
}

#[test]
fn what_a_selector_names_can_run_by_the_rules() {
    for selector in SELECTORS {
        let limits = limits_of(selector);
        let mut batches = Batches { state: 1, domain: selector.domain };
        let mut judged: BTreeMap<(Class, Vec<String>), BTreeSet<String>> = BTreeMap::new();
        let mut unknown = 0;
        for _ in 0..QUESTIONS {
            let batch = batches.batch();
            let set = selector.select(&batch);
            let class = Dtype::from_code(batch.dtype)
                .map(|dtype| Class { head_dim: batch.head_dim, dtype })
                .filter(|class| Class::HEAD_DIMS.contains(&class.head_dim));
            let Some(class) = class else {
                // No kernel computes it: the safe default, which an executor refuses by name.
                assert_eq!(set.tiles(), [selector.safe_default], "{batch:?}");
                unknown += 1;
                continue;
            };
            if class.dtype.query() == Dtype::F32 && selector.device.backend == Backend::Cuda {
                // Tensor cores have no f32 product: an executor refuses the class before anything is asked.
                continue;
            }
            if WarpSplit::splits_heads(class.head_dim)
                && selector.device.backend == Backend::Cuda
                && !selector.knows(class.head_dim, class.dtype)
            {
                // The safe default is one for all other classes: a device's `Selection` has tiles for these.
                assert_eq!(set.tiles(), [selector.safe_default], "{batch:?}");
                continue;
            }
            let names = set.tiles().iter().map(ToString::to_string).collect();
            let unfit = || unfit(set, &class, &limits).into_iter().collect();
            let found = judged.entry((class, names)).or_insert_with(unfit);
            assert!(found.is_empty(), "{}: {class} gets {set}: {found:?}", selector.device.name);
        }
        let classes: BTreeSet<&Class> = judged.keys().map(|(class, _)| class).collect();
        assert!(
            classes.len() >= 3 && unknown > 0,
            "{classes:?} and {unknown} without kernels were asked about"
        );
        let choices: BTreeSet<&Vec<String>> = judged.keys().map(|(_, names)| names).collect();
        assert!(choices.len() >= selector.sets.len().min(3), "only {choices:?} was chosen");
    }
}
