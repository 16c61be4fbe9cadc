//! Verification: every tile on awkward cases, which stay on the device while tiles of their class are verified.

use super::{CudaBench, failure_of};
use crate::measure::{Coverage, Failure};
use crate::store::Status;
use std::collections::BTreeMap;
use tilewright_heuristics::{Dtype, Tile};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::AttentionOptions;
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
        for &options in option_sets(coverage) {
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
            let Some(options) = variant_for(case, coverage) else { continue };
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
/// serve all cases.
pub(super) const fn option_sets(coverage: Coverage) -> &'static [AttentionOptions] {
    const PLAIN: AttentionOptions =
        AttentionOptions { window: false, softcap: false, sinks: false, timeline: false };
    const WINDOW_SINKS: AttentionOptions = AttentionOptions { window: true, sinks: true, ..PLAIN };
    const ALL: AttentionOptions = AttentionOptions { softcap: true, ..WINDOW_SINKS };
    match coverage {
        Coverage::Plain => &[PLAIN],
        Coverage::Options => &[PLAIN, WINDOW_SINKS, ALL],
    }
}

/// The first variant that serves a case; `None` if the coverage has none.
fn variant_for(case: &CudaCase, coverage: Coverage) -> Option<AttentionOptions> {
    let wanted = case.options();
    let serves = |have: &AttentionOptions| {
        have.softcap == wanted.softcap && have.window >= wanted.window && have.sinks >= wanted.sinks
    };
    option_sets(coverage).iter().copied().find(serves)
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
