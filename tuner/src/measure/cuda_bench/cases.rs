//! Verification: every tile on awkward cases, which stay on the device while tiles of their class are verified.

use super::{CudaBench, failure_of};
use crate::measure::{Coverage, Failure};
use crate::store::Status;
use std::collections::BTreeMap;
use tilewright_heuristics::{Dtype, Tile};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::{Arch, AttentionOptions, GRANULE};
use tilewright_runtime::awkward::{self, AwkwardCase, CudaCase};
use tilewright_runtime::cuda::CudaDevice;

/// What K and V of more than 2^31 elements need, and some room beside them.
const FAR_CACHE_BYTES: u64 = 10 << 30;

/// Awkward cases on the device, with their references; those of a tile by its n, on which they depend.
#[derive(Debug, Default)]
pub(super) struct Cases {
    class: Option<Class>,
    common: Vec<CudaCase>,
    by_n: BTreeMap<u16, Vec<CudaCase>>,
}

impl CudaBench {
    /// Makes the cases of a class and of a tile's n.
    fn make_cases(&mut self, tile: &Tile, class: &Class) -> Result<(), Failure> {
        let seed = seed();
        if self.cases.class != Some(*class) {
            let mut common = upload(awkward::cases(class, seed), &self.device)?;
            let far = awkward::tile_cases(class, tile, seed).into_iter().find(AwkwardCase::is_plain);
            // A device that has no room for such a cache cannot be asked for one either.
            let room = self.device.free_memory().map_err(failure_of)? > FAR_CACHE_BYTES;
            if let Some(far) = far.filter(|_| room) {
                common.push(upload_far(far, &self.device)?);
            }
            self.cases = Cases { class: Some(*class), common, by_n: BTreeMap::new() };
        }
        if !self.cases.by_n.contains_key(&tile.n) {
            let cases = upload(awkward::tile_cases(class, tile, seed), &self.device)?;
            self.cases.by_n.insert(tile.n, cases);
        }
        Ok(())
    }

    /// Runs a tile that was compiled on all cases that the coverage has; the largest relative error.
    pub(super) fn verify_compiled(
        &mut self,
        tile: &Tile,
        class: &Class,
        coverage: Coverage,
    ) -> Result<f64, Failure> {
        self.make_cases(tile, class)?;
        let arch = self.backend.compiler().arch();
        let sets = option_sets(coverage, class, arch);
        for &options in &sets {
            self.compile(&[*tile], class, options);
        }
        let as_engines = self.plan_options();
        let mut worst: f64 = 0.0;
        let Cases { common, by_n, .. } = &mut self.cases;
        let of_tile = by_n.get_mut(&tile.n).into_iter().flatten().map(|case| (true, case));
        for (of_tile, case) in common.iter_mut().map(|case| (false, case)).chain(of_tile) {
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
            for planned in planned.into_iter().flatten() {
                let (output, lse) = case
                    .run_on(&self.backend, &self.stream, tile, options, planned)
                    .map_err(|error| fail(Status::Runtime, error.to_string()))?;
                let checked = case.case.check(&output, &lse);
                let error = checked.map_err(|message| fail(Status::Correctness, message))?;
                worst = worst.max(error);
            }
        }
        let allowed = awkward::tolerance(class.dtype);
        if worst < allowed {
            Ok(worst)
        } else {
            let message = format!("relative error {worst:.1e}, allowed {allowed:.0e}");
            Err(Failure { status: Status::Correctness, message })
        }
    }
}

/// The variants that cases are run on. A window and sinks can be compiled in without having an effect, a soft-cap cannot: three variants
/// serve all cases. Where kernels copy boxes, cases with other pages have as many of their own.
pub(super) fn option_sets(coverage: Coverage, class: &Class, arch: Arch) -> Vec<AttentionOptions> {
    const PLAIN: AttentionOptions = AttentionOptions::for_pages(GRANULE);
    const WINDOW_SINKS: AttentionOptions = AttentionOptions { window: true, sinks: true, ..PLAIN };
    const ALL: AttentionOptions = AttentionOptions { softcap: true, ..WINDOW_SINKS };
    let sets: &[AttentionOptions] = match coverage {
        Coverage::Plain => &[PLAIN],
        Coverage::Options => &[PLAIN, WINDOW_SINKS, ALL],
    };
    let gathering = sets.iter().map(|options| AttentionOptions { gathers: true, ..*options }.on(class, arch));
    sets.iter().copied().chain(gathering.filter(|options| options.gathers)).collect()
}

/// The first variant that serves a case with these options; `None` if there is none.
fn variant_for(
    wanted: AttentionOptions,
    class: &Class,
    arch: Arch,
    sets: &[AttentionOptions],
) -> Option<AttentionOptions> {
    let wanted = wanted.on(class, arch);
    let serves = |have: &AttentionOptions| {
        have.softcap == wanted.softcap
            && have.gathers == wanted.gathers
            && have.window >= wanted.window
            && have.sinks >= wanted.sinks
    };
    sets.iter().copied().find(serves)
}

/// Fresh numbers in every run; a failure names them.
fn seed() -> u64 {
    u64::from(std::process::id())
}

fn upload(cases: Vec<AwkwardCase>, device: &CudaDevice) -> Result<Vec<CudaCase>, Failure> {
    cases.into_iter().map(|case| upload_one(case, device)).collect()
}

fn upload_one(case: AwkwardCase, device: &CudaDevice) -> Result<CudaCase, Failure> {
    let uploaded = match case.geometry.dtype {
        Dtype::Bf16 | Dtype::Fp8Bf16 => CudaCase::new::<half::bf16>(case, device),
        Dtype::F16 | Dtype::Fp8F16 | Dtype::F32 | Dtype::Fp8F32 => CudaCase::new::<half::f16>(case, device),
    };
    uploaded.map_err(failure_of)
}

fn upload_far(case: AwkwardCase, device: &CudaDevice) -> Result<CudaCase, Failure> {
    let uploaded = match case.geometry.dtype {
        Dtype::Bf16 | Dtype::Fp8Bf16 => CudaCase::far::<half::bf16>(case, device),
        Dtype::F16 | Dtype::Fp8F16 | Dtype::F32 | Dtype::Fp8F32 => CudaCase::far::<half::f16>(case, device),
    };
    uploaded.map_err(failure_of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_runtime::awkward::options_of;

    const CLASS: Class = Class { head_dim: 128, dtype: Dtype::F16 };
    const TILE: Tile = Tile { m: 16, n: 64, warps: 4, stages: 2 };

    fn arch(name: &str) -> Arch {
        name.parse().unwrap()
    }

    #[test]
    fn variants_double_only_where_kernels_copy_boxes() {
        let count = |coverage, class, name| option_sets(coverage, &class, arch(name)).len();
        assert_eq!(count(Coverage::Plain, CLASS, "sm_80"), 1);
        assert_eq!(count(Coverage::Options, CLASS, "sm_80"), 3);
        assert_eq!(count(Coverage::Plain, CLASS, "sm_90a"), 2);
        assert_eq!(count(Coverage::Options, CLASS, "sm_90a"), 6);
        assert_eq!(count(Coverage::Options, Class { head_dim: 256, ..CLASS }, "sm_90a"), 3);
        assert_eq!(count(Coverage::Options, Class { dtype: Dtype::Fp8F16, ..CLASS }, "sm_90a"), 3);
    }

    #[test]
    fn every_case_has_a_variant_that_copies_as_its_pages_want() {
        for name in ["sm_80", "sm_90a"] {
            for class in [CLASS, Class { head_dim: 256, ..CLASS }] {
                let sets = option_sets(Coverage::Options, &class, arch(name));
                let (mut boxes, mut gather) = (0, 0);
                let cases =
                    awkward::cases(&class, 1).into_iter().chain(awkward::tile_cases(&class, &TILE, 1));
                for case in cases {
                    let found = variant_for(options_of(&case), &class, arch(name), &sets);
                    let found = found.unwrap_or_else(|| panic!("{name} {class} {}", case.name));
                    let wanted = options_of(&case).on(&class, arch(name));
                    assert_eq!(found.gathers, wanted.gathers, "{name} {class} {}", case.name);
                    *(if found.gathers { &mut gather } else { &mut boxes }) += 1;
                }
                let both = name == "sm_90a" && class == CLASS;
                assert!(boxes > 10 && (gather > 5) == both, "{name} {class}: {boxes}, {gather}");
            }
        }
    }
}
