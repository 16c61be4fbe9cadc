//! Element types that peers compute.

use tilewright_heuristics::Dtype;
use tilewright_scenarios::BatchSpec;

/// Element types that are compared: Q of 16 bits, K and V of the same type or in e4m3.
pub const COMPARED: [Dtype; 4] = [Dtype::F16, Dtype::Bf16, Dtype::Fp8F16, Dtype::Fp8Bf16];

/// Refuses batches of other types.
///
/// # Errors
/// Names the batch and the types that are compared.
pub fn require_compared(specs: &[BatchSpec]) -> anyhow::Result<()> {
    let other = specs.iter().find(|spec| !COMPARED.contains(&spec.geometry().dtype));
    other.map_or(Ok(()), |spec| {
        let (name, dtype) = (spec.name(), spec.geometry().dtype);
        anyhow::bail!("{name}: {dtype} is not compared with peers; {}", use_compared())
    })
}

/// What to say of other types.
pub(super) fn use_compared() -> String {
    let [one, two, three, four] = COMPARED.map(Dtype::name);
    format!("use --dtype {one}, {two}, {three} or {four}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wanted::Wanted;
    use tilewright_heuristics::Backend;

    fn specs(dtype: Dtype) -> Vec<BatchSpec> {
        Wanted { dtype: Some(dtype), ..Wanted::default() }.specs(Backend::Cuda).unwrap()
    }

    #[test]
    fn every_compared_type_is_taken_and_no_other() {
        for dtype in COMPARED {
            assert!(specs(dtype).iter().all(|spec| spec.geometry().dtype == dtype), "{dtype}");
            require_compared(&specs(dtype)).unwrap();
        }
        for dtype in [Dtype::F32, Dtype::E5m2F16] {
            let error = require_compared(&specs(dtype)).unwrap_err().to_string();
            assert!(error.contains(&format!("{dtype} is not compared")), "{error}");
            assert!(error.contains("--dtype f16, bf16, fp8-f16 or fp8-bf16"), "{error}");
        }
    }
}
