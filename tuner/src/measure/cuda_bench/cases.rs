//! Verification: every tile on conformance cases, which stay on the device while tiles of their class are verified.

use super::{CudaBench, failure_of};
use crate::measure::{Coverage, Failure};
use crate::store::Status;
use std::collections::BTreeMap;
use tilewright_conformance::{self as conformance, ConformanceCase, CudaCase, options_of};
use tilewright_cuda::CudaDevice;
use tilewright_heuristics::{Dtype, Tile};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::{Arch, AttentionOptions, GRANULE};

/// What K and V of more than 2^31 elements need, and some room beside them.
const FAR_CACHE_BYTES: u64 = 10 << 30;

/// Awkward cases on the device, with their references, for one way of copying K and V; those of a tile by its n, on which they depend.
#[derive(Debug, Default)]
pub(super) struct Cases {
    /// The class, and whether its kernels gather tokens.
    made_for: Option<(Class, bool)>,
    common: Vec<CudaCase>,
    by_n: BTreeMap<u16, Vec<CudaCase>>,
}

impl CudaBench {
    /// Makes the cases of a class and of a tile's n that these variants serve.
    fn make_cases(&mut self, tile: &Tile, class: &Class, sets: &[AttentionOptions]) -> Result<(), Failure> {
        let (seed, arch) = (seed(), self.backend.compiler().arch());
        let gathers = sets.iter().any(|options| options.gathers);
        let served = |cases: Vec<ConformanceCase>| -> Vec<ConformanceCase> {
            let served = |case: &ConformanceCase| variant_for(options_of(case), class, arch, sets).is_some();
            cases.into_iter().filter(served).collect()
        };
        if self.cases.made_for != Some((*class, gathers)) {
            // First the memory of those before.
            self.cases = Cases::default();
            let mut common = upload(served(conformance::cases(class, seed)), &self.device)?;
            let far = served(conformance::tile_cases(class, tile, seed))
                .into_iter()
                .find(ConformanceCase::is_plain);
            // A device that has no room for such a cache cannot be asked for one either.
            let room = self.device.free_memory().map_err(failure_of)? > FAR_CACHE_BYTES;
            if let Some(far) = far.filter(|_| room) {
                common.push(upload_far(far, &self.device)?);
            }
            self.cases = Cases { made_for: Some((*class, gathers)), common, by_n: BTreeMap::new() };
        }
        if !self.cases.by_n.contains_key(&tile.n) {
            let cases = upload(served(conformance::tile_cases(class, tile, seed)), &self.device)?;
            self.cases.by_n.insert(tile.n, cases);
        }
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
        self.make_cases(tile, class, &sets)?;
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
        let allowed = conformance::tolerance(class.dtype);
        if worst < allowed {
            Ok(worst)
        } else {
            let message = format!("relative error {worst:.1e}, allowed {allowed:.0e}");
            Err(Failure { status: Status::Correctness, message })
        }
    }
}

/// The variants that a coverage names, the plain one first. A window and sinks can be compiled in without having an effect, a soft-cap
/// cannot: three variants serve all cases of a way of copying.
pub(super) fn option_sets(coverage: Coverage, class: &Class, arch: Arch) -> Vec<AttentionOptions> {
    const PLAIN: AttentionOptions = AttentionOptions::for_pages(GRANULE);
    const WINDOW_SINKS: AttentionOptions = AttentionOptions { window: true, sinks: true, ..PLAIN };
    const ALL: AttentionOptions = AttentionOptions { softcap: true, ..WINDOW_SINKS };
    let sets: &[AttentionOptions] = if coverage.options { &[PLAIN, WINDOW_SINKS, ALL] } else { &[PLAIN] };
    let copies = |options: &AttentionOptions| AttentionOptions { gathers: coverage.gathers, ..*options };
    sets.iter().map(|options| copies(options).on(class, arch)).collect()
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

fn upload(cases: Vec<ConformanceCase>, device: &CudaDevice) -> Result<Vec<CudaCase>, Failure> {
    cases.into_iter().map(|case| upload_one(case, device)).collect()
}

fn upload_one(case: ConformanceCase, device: &CudaDevice) -> Result<CudaCase, Failure> {
    let uploaded = match case.geometry.dtype {
        Dtype::Bf16 | Dtype::Fp8Bf16 => CudaCase::new::<half::bf16>(case, device),
        Dtype::F16 | Dtype::Fp8F16 | Dtype::F32 | Dtype::Fp8F32 => CudaCase::new::<half::f16>(case, device),
    };
    uploaded.map_err(failure_of)
}

fn upload_far(case: ConformanceCase, device: &CudaDevice) -> Result<CudaCase, Failure> {
    let uploaded = match case.geometry.dtype {
        Dtype::Bf16 | Dtype::Fp8Bf16 => CudaCase::far::<half::bf16>(case, device),
        Dtype::F16 | Dtype::Fp8F16 | Dtype::F32 | Dtype::Fp8F32 => CudaCase::far::<half::f16>(case, device),
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
        [false, true]
            .into_iter()
            .flat_map(|gathers| [false, true].map(|options| Coverage { options, gathers }))
    }

    #[test]
    fn a_coverage_names_one_way_of_copying_the_plain_variant_first() {
        for coverage in coverages() {
            for (class, name) in [
                (CLASS, "sm_80"),
                (CLASS, "sm_90a"),
                (Class { head_dim: 256, ..CLASS }, "sm_90a"),
                (Class { dtype: Dtype::Fp8F16, ..CLASS }, "sm_90a"),
                (Class { dtype: Dtype::Fp8F16, head_dim: 64 }, "sm_90a"),
            ] {
                let sets = option_sets(coverage, &class, arch(name));
                let two_ways = (class.head_dim, name) == (128, "sm_90a");
                let plain = AttentionOptions { gathers: coverage.gathers && two_ways, ..Default::default() };
                assert_eq!(sets[0], plain, "{class} {name}");
                assert_eq!(sets.len(), if coverage.options { 3 } else { 1 });
                assert!(sets.iter().all(|options| options.gathers == plain.gathers));
            }
        }
    }

    #[test]
    fn every_case_is_served_by_the_producer_its_pages_need() {
        for name in ["sm_80", "sm_90a"] {
            for class in [CLASS, Class { head_dim: 256, ..CLASS }] {
                let two_ways = name == "sm_90a" && class == CLASS;
                let [boxes, gather] = [false, true]
                    .map(|gathers| option_sets(Coverage { options: true, gathers }, &class, arch(name)));
                let (mut by_boxes, mut gathered) = (0, 0);
                let cases = conformance::cases(&class, 1)
                    .into_iter()
                    .chain(conformance::tile_cases(&class, &TILE, 1));
                for case in cases {
                    let wanted = options_of(&case).on(&class, arch(name));
                    let [by_box, by_token] =
                        [&boxes, &gather].map(|sets| variant_for(wanted, &class, arch(name), sets).is_some());
                    assert_eq!(by_box, !wanted.gathers, "{name} {class} {}", case.name);
                    assert_eq!(by_token, wanted.gathers || !two_ways, "{name} {class} {}", case.name);
                    *(if by_box { &mut by_boxes } else { &mut gathered }) += 1;
                }
                assert!(
                    by_boxes > 10 && (gathered > 5) == two_ways,
                    "{name} {class}: {by_boxes}, {gathered}"
                );
            }
        }
    }
}
