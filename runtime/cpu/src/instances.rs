//! The backend's code for each type of elements, compiled here: crates that call it compile none of it, however many they are.

use super::timeline::Recorder;
use super::{CpuBackend, DecodeArgs, ExecError, Fp8KvCache, KvCache, Number, State, merge_states};
use half::{bf16, f16};
use tilewright_plan::{E4m3, E5m2, Plan, StatesError};

/// Conversions of whole slices, for callers outside of a SIMD dispatch.
pub trait Conversions: Sized {
    /// From f32, each to the nearest.
    fn narrowed(wide: &[f32]) -> Vec<Self>;

    /// Writes as many elements as `wide` takes, as f32.
    fn copy_wide(elements: &[Self], wide: &mut [f32]);
}

macro_rules! conversions {
    ($($number:ty),+) => {$(
        impl Conversions for $number {
            #[inline(never)]
            fn narrowed(wide: &[f32]) -> Vec<Self> {
                wide.iter().map(|number| <Self as Number>::from_f32(*number)).collect()
            }

            #[inline(never)]
            fn copy_wide(elements: &[Self], wide: &mut [f32]) {
                <Self as Number>::widen(elements, wide);
            }
        }
    )+};
}

conversions!(f16, bf16, f32, E4m3, E5m2);

/// What is compiled for a type of Q and the output. No function has a type parameter, so that each is compiled in this crate.
pub trait Instances: Sized {
    /// Decodes over pages of the same type.
    fn decode(
        backend: &mut CpuBackend,
        plan: &Plan,
        args: DecodeArgs<'_, Self, KvCache<'_, Self>>,
        recorder: Option<&Recorder>,
    ) -> Result<(), ExecError>;

    /// Decodes over pages of FP8 (e4m3).
    fn decode_e4m3(
        backend: &mut CpuBackend,
        plan: &Plan,
        args: DecodeArgs<'_, Self, Fp8KvCache<'_, E4m3>>,
        recorder: Option<&Recorder>,
    ) -> Result<(), ExecError>;

    /// Decodes over pages of FP8 (e5m2).
    fn decode_e5m2(
        backend: &mut CpuBackend,
        plan: &Plan,
        args: DecodeArgs<'_, Self, Fp8KvCache<'_, E5m2>>,
        recorder: Option<&Recorder>,
    ) -> Result<(), ExecError>;

    /// Merges states of separate parts of the KV.
    fn merge_states(
        states: &[State<'_, Self>],
        head_dim: u32,
        output: &mut [Self],
        lse: Option<&mut [f32]>,
    ) -> Result<(), StatesError>;
}

macro_rules! instances {
    ($($element:ty),+) => {$(
        impl Instances for $element {
            #[inline(never)]
            fn decode(
                backend: &mut CpuBackend,
                plan: &Plan,
                args: DecodeArgs<'_, Self, KvCache<'_, Self>>,
                recorder: Option<&Recorder>,
            ) -> Result<(), ExecError> {
                backend.execute(plan, args, recorder)
            }

            #[inline(never)]
            fn decode_e4m3(
                backend: &mut CpuBackend,
                plan: &Plan,
                args: DecodeArgs<'_, Self, Fp8KvCache<'_, E4m3>>,
                recorder: Option<&Recorder>,
            ) -> Result<(), ExecError> {
                backend.execute(plan, args, recorder)
            }

            #[inline(never)]
            fn decode_e5m2(
                backend: &mut CpuBackend,
                plan: &Plan,
                args: DecodeArgs<'_, Self, Fp8KvCache<'_, E5m2>>,
                recorder: Option<&Recorder>,
            ) -> Result<(), ExecError> {
                backend.execute(plan, args, recorder)
            }

            #[inline(never)]
            fn merge_states(
                states: &[State<'_, Self>],
                head_dim: u32,
                output: &mut [Self],
                lse: Option<&mut [f32]>,
            ) -> Result<(), StatesError> {
                merge_states::merge(states, head_dim, output, lse)
            }
        }
    )+};
}

instances!(f16, bf16, f32);
