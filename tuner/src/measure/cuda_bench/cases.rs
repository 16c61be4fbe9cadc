//! Verification: every tile on conformance cases, which stay on the device while tiles of their class are verified.

use super::references::OfClass;
use super::{CudaBench, failure_of};
use crate::measure::{Coverage, Failure};
use crate::store::Status;
use rayon::ThreadPoolBuilder;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use std::collections::BTreeMap;
use std::thread::available_parallelism;
use tilewright_conformance::{self as conformance, ConformanceCase, CudaCase, options_of};
use tilewright_cuda::{CudaDevice, CudaError, TrialMemory};
use tilewright_heuristics::{Dtype, MaskOptions, Tile};
use tilewright_kernel_templates::cuda::{GRANULE, KernelOptions, KvLoad};
use tilewright_kernel_templates::{Arch, Class};

/// What K and V of more than 2^31 elements need, and some room beside them.
const FAR_CACHE_BYTES: u64 = 10 << 30;

/// Conformance cases on the device, with their references, for one [`KvLoad`]; those of a tile by its n, on which they depend.
#[derive(Debug, Default)]
pub(super) struct Cases {
    /// The class, how its kernels load K and V, and whether those with options are among them.
    made_for: Option<(Class, KvLoad, bool)>,
    common: Vec<CudaCase>,
    by_n: BTreeMap<u16, Vec<CudaCase>>,
    /// Those that only batch-invariant kernels are verified on.
    invariant: Vec<CudaCase>,
}

impl CudaBench {
    /// Makes the cases of a class and of a tile's n that these variants of a coverage serve.
    fn make_cases(
        &mut self,
        tile: &Tile,
        class: &Class,
        (coverage, sets): (Coverage, &[KernelOptions]),
    ) -> Result<(), Failure> {
        let (seed, arch) = (seed(), self.backend.compiler().arch());
        let kv_load = sets.iter().map(|options| options.kv_load).max().unwrap_or_default();
        let is_served = |case: &&ConformanceCase| variant_for(options_of(case), class, arch, sets).is_some();
        let of_class = self.references.of(class);
        let OfClass { common, invariant } = &*of_class;
        let of_tile = conformance::tile_cases(class, tile, seed);
        let made_for = Some((*class, kv_load, coverage.options));
        if self.cases.made_for != made_for {
            // First the memory of those before.
            self.cases = Cases::default();
            let mut common = upload(common.iter().filter(is_served).collect(), &self.device)?;
            let far = of_tile.iter().filter(is_served).find(|case| case.is_plain());
            // A device that has no room for such a cache cannot be asked for one either.
            let has_room = |device: &CudaDevice| device.free_memory().map(|free| free > FAR_CACHE_BYTES);
            if !has_room(&self.device).map_err(failure_of)? {
                self.pools.clear();
            }
            let room = has_room(&self.device).map_err(failure_of)?;
            if let Some(far) = far.filter(|_| room) {
                common.push(upload_far(far.clone(), &self.device)?);
            }
            self.cases = Cases { made_for, common, ..Cases::default() };
        }
        if coverage.invariant && self.cases.invariant.is_empty() {
            self.cases.invariant = upload(invariant.iter().filter(is_served).collect(), &self.device)?;
        }
        if !self.cases.by_n.contains_key(&tile.n) {
            let cases = upload(of_tile.iter().filter(is_served).collect(), &self.device)?;
            self.cases.by_n.insert(tile.n, cases);
        }
        Ok(())
    }

    /// Tries a tile in the memory of the one before, if that was of the same class. After a failure nothing of it is used again.
    fn try_one(&mut self, tile: &Tile, class: &Class, options: KernelOptions) -> Result<(), CudaError> {
        let mut memory = match self.trials.take() {
            Some(memory) if memory.serves(&self.backend, class, options) => memory,
            _ => TrialMemory::new(&self.backend, class, options)?,
        };
        self.backend.try_tile_in(&mut memory, tile, None)?;
        self.trials = Some(memory);
        Ok(())
    }

    /// Compiles the variants of a tile, and runs them on all cases that they serve; the largest relative error.
    pub(super) fn verify_variants(
        &mut self,
        tile: &Tile,
        class: &Class,
        coverage: Coverage,
    ) -> Result<f64, Failure> {
        let arch = self.backend.compiler().arch();
        let sets = option_sets(coverage, class, arch);
        // The others are nothing without the plain one, and it alone has to be possible.
        for (i, &options) in sets.iter().enumerate() {
            self.compile(&[*tile], class, options);
            if let (0, Some(Err(failure))) = (i, self.compiled.get(&(*class, options, *tile))) {
                return Err(failure.clone());
            }
        }
        if coverage.trial {
            return self.try_one(tile, class, sets[0]).map(|()| 0.0).map_err(failure_of);
        }
        self.make_cases(tile, class, (coverage, &sets))?;
        let as_engines = self.plan_options();
        let mut worst: f64 = 0.0;
        let Cases { common, by_n, invariant, .. } = &mut self.cases;
        let of_tile = by_n.get_mut(&tile.n).into_iter().flatten().map(|case| (true, case));
        let of_plans = invariant.iter_mut().filter(|_| coverage.invariant).map(|case| (true, case));
        let all = common.iter_mut().map(|case| (false, case)).chain(of_tile).chain(of_plans);
        let planned_so = |case: &CudaCase| !coverage.invariant || case.case.serves_invariant_plans();
        for (of_tile, case) in all.filter(|(_, case)| planned_so(case)) {
            let name = case.case.name;
            let fail = |status, message: String| Failure {
                status,
                message: format!("{name}: {message} (seed {})", seed()),
            };
            let Some(options) = variant_for(case.options(), class, arch, &sets) else { continue };
            // Options need registers of their own: a tile may have room for plain attention only.
            match self.compiled.get(&(*class, options, *tile)) {
                Some(Err(Failure { status: Status::Constraints, .. })) => continue,
                Some(Err(failure)) => return Err(fail(failure.status, failure.message.clone())),
                _ => {}
            }
            // As the case wants to be planned; cases of the tile also as engines plan.
            let planned = [Some(case.case.options), of_tile.then_some(as_engines)];
            for planned in planned.into_iter().flatten().map(|planned| coverage.planning().options(planned)) {
                let (output, lse) = case
                    .run_on(&self.backend, &self.stream, tile, options, planned)
                    .map_err(|error| fail(Status::Runtime, error.to_string()))?;
                let checked = case.case.check(&output, &lse);
                let error = checked.map_err(|message| fail(Status::Correctness, message))?;
                worst = worst.max(error);
            }
        }
        let allowed = conformance::tolerance(class.dtype);
        if worst < allowed {
            Ok(worst)
        } else {
            let message = format!("relative error {worst:.1e}, allowed {allowed:.0e}");
            Err(Failure { status: Status::Correctness, message })
        }
    }
}

/// The variants that a coverage names, the plain one first. Most options can be compiled in without having an effect
/// ([`MaskOptions::CAN_BE_IDLE`]), and so can sinks: three variants serve all cases of a [`KvLoad`].
pub(super) fn option_sets(coverage: Coverage, class: &Class, arch: Arch) -> Vec<KernelOptions> {
    const PLAIN: KernelOptions = KernelOptions::for_pages(GRANULE);
    const IDLE: KernelOptions = KernelOptions { mask: MaskOptions::CAN_BE_IDLE, sinks: true, ..PLAIN };
    const ALL: KernelOptions = KernelOptions { mask: MaskOptions::ALL, ..IDLE };
    let sets: &[KernelOptions] = if coverage.options { &[PLAIN, IDLE, ALL] } else { &[PLAIN] };
    let Coverage { timeline, invariant, .. } = coverage;
    let of = |options: &KernelOptions| KernelOptions {
        kv_load: coverage.kv_load(),
        timeline,
        invariant,
        ..*options
    };
    sets.iter().map(|options| of(options).on(class, arch)).collect()
}

/// The first variant that serves a case with these options; `None` if there is none.
fn variant_for(
    wanted: KernelOptions,
    class: &Class,
    arch: Arch,
    sets: &[KernelOptions],
) -> Option<KernelOptions> {
    let wanted = wanted.on(class, arch);
    let serves = |have: &KernelOptions| {
        have.mask.serves(wanted.mask) && have.kv_load == wanted.kv_load && have.sinks >= wanted.sinks
    };
    sets.iter().copied().find(serves)
}

/// Fresh numbers in every run; a failure names them.
pub(super) fn seed() -> u64 {
    u64::from(std::process::id())
}

/// Threads that draw cases and compute what they expect, at most. The compilers beside them are many, and of lower priority.
const DRAWING: usize = 8;

/// Draws cases, computes what they expect where it was not computed ahead, and uploads them.
fn upload(cases: Vec<&ConformanceCase>, device: &CudaDevice) -> Result<Vec<CudaCase>, Failure> {
    let drawn = |case: &ConformanceCase| {
        case.expected();
        upload_one(case.clone(), device)
    };
    let threads = DRAWING.min(available_parallelism().map_or(1, usize::from));
    match ThreadPoolBuilder::new().num_threads(threads).build() {
        Ok(pool) => pool.install(|| cases.into_par_iter().map(drawn).collect()),
        // A machine that has no more threads takes longer.
        Err(_) => cases.into_iter().map(drawn).collect(),
    }
}

fn upload_one(case: ConformanceCase, device: &CudaDevice) -> Result<CudaCase, Failure> {
    let uploaded = match case.geometry.dtype {
        Dtype::Bf16 | Dtype::Fp8Bf16 | Dtype::E5m2Bf16 => CudaCase::new::<half::bf16>(case, device),
        Dtype::F16 | Dtype::Fp8F16 | Dtype::E5m2F16 | Dtype::F32 | Dtype::Fp8F32 | Dtype::E5m2F32 => {
            CudaCase::new::<half::f16>(case, device)
        }
    };
    uploaded.map_err(failure_of)
}

fn upload_far(case: ConformanceCase, device: &CudaDevice) -> Result<CudaCase, Failure> {
    let uploaded = match case.geometry.dtype {
        Dtype::Bf16 | Dtype::Fp8Bf16 | Dtype::E5m2Bf16 => CudaCase::far::<half::bf16>(case, device),
        Dtype::F16 | Dtype::Fp8F16 | Dtype::E5m2F16 | Dtype::F32 | Dtype::Fp8F32 | Dtype::E5m2F32 => {
            CudaCase::far::<half::f16>(case, device)
        }
    };
    uploaded.map_err(failure_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: Class = Class { head_dim: 128, dtype: Dtype::F16 };
    const TILE: Tile = Tile::of("m16n64w4s2");

    fn arch(name: &str) -> Arch {
        name.parse().unwrap()
    }

    fn coverages() -> impl Iterator<Item = Coverage> {
        [false, true].into_iter().flat_map(|cp_async| {
            [false, true].map(|options| Coverage { options, cp_async, ..Coverage::PLAIN })
        })
    }

    #[test]
    fn a_coverage_has_one_kv_load_the_plain_variant_first() {
        for coverage in coverages() {
            for (class, name) in [
                (CLASS, "sm_80"),
                (CLASS, "sm_90a"),
                (Class { head_dim: 256, ..CLASS }, "sm_90a"),
                (Class { dtype: Dtype::Fp8F16, ..CLASS }, "sm_90a"),
                (Class { dtype: Dtype::Fp8F16, head_dim: 96 }, "sm_90a"),
            ] {
                let sets = option_sets(coverage, &class, arch(name));
                let two_ways = name == "sm_90a" && (class.head_dim == 128 || class.dtype == CLASS.dtype);
                let kv_load = if two_ways { coverage.kv_load() } else { KvLoad::Tma };
                let plain = KernelOptions { kv_load, ..Default::default() };
                assert_eq!(sets[0], plain, "{class} {name}");
                assert_eq!(sets.len(), if coverage.options { 3 } else { 1 });
                assert!(sets.iter().all(|options| options.kv_load == plain.kv_load));
            }
        }
    }

    #[test]
    fn batch_invariant_kernels_are_variants_of_their_own_for_the_same_cases() {
        let invariant = Coverage { options: true, ..Coverage::INVARIANT };
        let [sets, others] = [invariant, Coverage { options: true, ..Coverage::PLAIN }]
            .map(|coverage| option_sets(coverage, &CLASS, arch("sm_90a")));
        for (options, other) in sets.iter().zip(&others) {
            assert_eq!(*options, KernelOptions { invariant: true, ..*other });
        }
        let cases = conformance::cases(&CLASS, 1).into_iter().chain(conformance::invariant_cases(&CLASS, 1));
        let served = |case: &ConformanceCase| {
            case.serves_invariant_plans()
                && variant_for(options_of(case), &CLASS, arch("sm_90a"), &sets[..1]).is_some()
        };
        assert!(cases.filter(served).count() > 20);
    }

    #[test]
    fn every_case_is_served_by_the_producer_its_pages_need() {
        for name in ["sm_80", "sm_90a"] {
            for class in [CLASS, Class { dtype: Dtype::Fp8F16, head_dim: 96 }] {
                let two_ways = name == "sm_90a" && class == CLASS;
                let [tma, cp_async] = [false, true].map(|cp_async| {
                    option_sets(Coverage { options: true, cp_async, ..Coverage::PLAIN }, &class, arch(name))
                });
                let (mut by_tma, mut by_cp_async) = (0, 0);
                let cases = conformance::cases(&class, 1)
                    .into_iter()
                    .chain(conformance::tile_cases(&class, &TILE, 1));
                for case in cases {
                    let wanted = options_of(&case).on(&class, arch(name));
                    let [for_tma, for_cp_async] =
                        [&tma, &cp_async].map(|sets| variant_for(wanted, &class, arch(name), sets).is_some());
                    assert_eq!(for_tma, wanted.kv_load == KvLoad::Tma, "{name} {class} {}", case.name);
                    assert_eq!(
                        for_cp_async,
                        wanted.kv_load == KvLoad::CpAsync || !two_ways,
                        "{name} {class} {}",
                        case.name
                    );
                    *(if for_tma { &mut by_tma } else { &mut by_cp_async }) += 1;
                }
                assert!(
                    by_tma > 10 && (by_cp_async > 5) == two_ways,
                    "{name} {class}: {by_tma}, {by_cp_async}"
                );
            }
        }
    }
}
