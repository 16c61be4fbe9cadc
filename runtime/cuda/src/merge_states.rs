//! Merge of states on a GPU: attention over several parts of the KV, combined into attention over all of it, in one launch.
#![allow(unsafe_code)]

use super::kernels::Begins;
use super::{CudaBackend, CudaElement, CudaError};
use cudarc::driver::sys::CUstream;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};
use std::ffi::c_void;
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::{Kernel, MAX_STATES, StatesArguments};
use tilewright_plan::StatesError;

/// Attention over one part of the KV, in device memory.
#[derive(Clone, Copy, Debug)]
pub struct State<'a, E> {
    /// `[rows, head_dim]`, a row being (request, query head). What a row of an empty part holds does not matter; it may be NaN.
    pub output: &'a CudaSlice<E>,
    /// f32 `[rows]`: natural-log sum of exponentials of the part's logits; -inf where the part is empty.
    pub lse: &'a CudaSlice<f32>,
}

/// Slices of device memory. They may be longer than is needed: the first rows count.
#[derive(Debug)]
pub struct MergeStatesArgs<'a, E> {
    /// 1 to [`MAX_STATES`] of them, in the order of the sums.
    pub states: &'a [State<'a, E>],
    /// Requests x query heads.
    pub rows: usize,
    /// Elements of a row.
    pub head_dim: u32,
    /// `[rows, head_dim]`; every element is written.
    pub output: &'a mut CudaSlice<E>,
    /// f32 `[rows]`, natural logarithm; -inf where all parts are empty.
    pub lse: Option<&'a mut CudaSlice<f32>>,
}

/// Addresses of a state: elements `[rows, head_dim]`, and f32 `[rows]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawState {
    /// As in [`State::output`]; a multiple of 16 bytes.
    pub output: u64,
    /// As in [`State::lse`]; a multiple of 4 bytes.
    pub lse: u64,
}

/// Addresses of device memory.
///
/// In place: `output` may be `states[0].output`, and `lse` may be `states[0].lse`, one without the other or both; other states are left as
/// they are. Nothing else that is read may overlap what is written, not even partly; the addresses are checked for that. States may overlap
/// each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawMergeStates<'a> {
    /// 1 to [`MAX_STATES`] of them, in the order of the sums. They usually come from separate buffers, so each has addresses of its own.
    pub states: &'a [RawState],
    /// Requests x query heads.
    pub rows: usize,
    /// As in [`MergeStatesArgs::output`]; a multiple of 16 bytes.
    pub output: u64,
    /// As in [`MergeStatesArgs::lse`]; a multiple of 4 bytes.
    pub lse: Option<u64>,
}

/// Two for each state, and two for the result.
type Guards<'a> = [Option<SyncOnDrop<'a>>; 2 * MAX_STATES + 2];

impl CudaBackend {
    /// Compiles and loads the kernel that merges states of a class; what is loaded already costs nothing.
    ///
    /// # Errors
    /// A head dimension that there is no kernel for, or the compiler's or the driver's.
    pub fn prepare_merge_states(&mut self, class: &Class) -> Result<(), CudaError> {
        check_head_dim(class.head_dim)?;
        self.kernels.prepare_states(class)
    }

    /// Merges states of separate parts of the KV into attention over all of them (Hydragen, section 3.1), on the stream: one launch, no
    /// allocation and no synchronisation. States may come from plans over parts of a page table, from other kernels or from other
    /// devices; no token may be in two of them.
    ///
    /// Each row of the output is `sum_s exp(lse_s) output_s / sum_s exp(lse_s)`, and its LSE `ln sum_s exp(lse_s)`. A row that is empty in
    /// all states becomes zeros and -inf. An LSE that is NaN or +inf makes NaN of its row. Sums are in f32 and in the order of the
    /// states, so the same states give the same bits. More states than [`MAX_STATES`] are merged in groups; each group rounds its output
    /// to the element type once more.
    ///
    /// May be captured into a graph as [`CudaBackend::decode`] may.
    ///
    /// # Errors
    /// Lengths that do not fit, a class that was not prepared, or the driver's refusal.
    pub fn merge_states<E: CudaElement>(
        &self,
        stream: &CudaStream,
        args: MergeStatesArgs<'_, E>,
    ) -> Result<(), CudaError> {
        check_lengths(&args)?;
        let MergeStatesArgs { states, rows, head_dim, output, lse } = args;
        let mut guards: Guards<'_> = std::array::from_fn(|_| None);
        let mut raw = [RawState { output: 0, lse: 0 }; MAX_STATES];
        for (i, (raw, state)) in raw.iter_mut().zip(states).enumerate() {
            // Each orders the stream after the slice's last uses.
            let (output, output_guard) = state.output.device_ptr(stream);
            let (lse, lse_guard) = state.lse.device_ptr(stream);
            *raw = RawState { output, lse };
            guards[2 * i] = Some(output_guard);
            guards[2 * i + 1] = Some(lse_guard);
        }
        let (output, output_guard) = output.device_ptr_mut(stream);
        let (lse, lse_guard) = lse.map(|lse| lse.device_ptr_mut(stream)).unzip();
        guards[2 * MAX_STATES] = Some(output_guard);
        guards[2 * MAX_STATES + 1] = lse_guard;
        let raw = RawMergeStates { states: &raw[..states.len()], rows, output, lse };
        // SAFETY: the slices hold as many rows as was checked; the guards, dropped when the launch is queued, make cudarc free and reuse the
        // slices after it.
        unsafe { self.merge_states_raw(stream.cu_stream(), &Class { head_dim, dtype: E::DTYPE }, &raw) }
    }

    /// As [`CudaBackend::merge_states`], from addresses, also in place ([`RawMergeStates`]).
    ///
    /// # Errors
    /// Addresses that are not aligned or overlap, a class that was not prepared, or the driver's refusal.
    ///
    /// # Safety
    /// The stream belongs to the device's context. All addresses point to device memory of `rows` rows, which stays until the stream has
    /// passed this point; nothing else writes to it meanwhile. The result's output and LSE do not overlap each other.
    pub unsafe fn merge_states_raw(
        &self,
        stream: CUstream,
        class: &Class,
        args: &RawMergeStates<'_>,
    ) -> Result<(), CudaError> {
        let mut arguments = arguments(class, args)?;
        let kernel = self.kernels.states(class)?;
        self.device().context().bind_to_thread().map_err(CudaError::driver("cannot use the device"))?;
        // The head dimension is one of the kernels', so that a CTA has rows.
        let ctas = arguments.rows.div_ceil(Kernel::rows_of_states(class));
        let mut parameters = [(&raw mut arguments).cast::<c_void>()];
        // SAFETY: the kernel takes one `StatesArguments`, which the driver copies; the caller vouches for the addresses.
        unsafe { kernel.launch(ctas, Begins::Late, stream, &mut parameters) }
    }
}

fn check_head_dim(head_dim: u32) -> Result<(), StatesError> {
    if Class::HEAD_DIMS.contains(&head_dim) {
        return Ok(());
    }
    Err(StatesError::HeadDim { head_dim, supported: Class::HEAD_DIMS_IN_WORDS })
}

fn check_count(states: usize) -> Result<(), StatesError> {
    match states {
        0 => Err(StatesError::NoState),
        1..=MAX_STATES => Ok(()),
        found => Err(StatesError::TooMany { found, most: MAX_STATES }),
    }
}

fn check_lengths<E>(args: &MergeStatesArgs<'_, E>) -> Result<(), StatesError> {
    check_count(args.states.len())?;
    check_head_dim(args.head_dim)?;
    let rows = args.rows;
    let elements = rows.saturating_mul(args.head_dim as usize);
    let check = |name, state, found: usize, needed| {
        if found < needed { Err(StatesError::Length { name, state, found, needed }) } else { Ok(()) }
    };
    for (i, state) in args.states.iter().enumerate() {
        check("output", Some(i), state.output.len(), elements)?;
        check("lse", Some(i), state.lse.len(), rows)?;
    }
    check("output", None, args.output.len(), elements)?;
    check("lse", None, args.lse.as_ref().map_or(rows, |lse| lse.len()), rows)
}

/// What the kernel takes, checked as far as addresses can be.
fn arguments(class: &Class, args: &RawMergeStates<'_>) -> Result<StatesArguments, StatesError> {
    check_count(args.states.len())?;
    check_head_dim(class.head_dim)?;
    let rows = u32::try_from(args.rows).map_err(|_| StatesError::TooManyRows(args.rows))?;
    let align = |name, state, address: u64, multiple: u64| {
        if address.is_multiple_of(multiple) {
            return Ok(());
        }
        Err(StatesError::Misaligned { name, state, address, multiple })
    };
    align("output", None, args.output, 16)?;
    align("lse", None, args.lse.unwrap_or(0), 4)?;
    // An element has 2 bytes.
    let (output_bytes, lse_bytes) = (u64::from(rows) * u64::from(class.head_dim) * 2, u64::from(rows) * 4);
    let overlap = |a: u64, a_bytes: u64, b: u64, b_bytes: u64| {
        a < b.saturating_add(b_bytes) && b < a.saturating_add(a_bytes)
    };
    let mut arguments = StatesArguments {
        output: args.output,
        lse: args.lse.unwrap_or(0),
        rows,
        count: args.states.len() as u32,
        ..StatesArguments::default()
    };
    for (i, state) in args.states.iter().enumerate() {
        align("output", Some(i), state.output, 16)?;
        align("lse", Some(i), state.lse, 4)?;
        let written =
            [Some(("output", args.output, output_bytes)), args.lse.map(|lse| ("lse", lse, lse_bytes))];
        let read = [("output", state.output, output_bytes), ("lse", state.lse, lse_bytes)];
        for (written, to, to_bytes) in written.into_iter().flatten() {
            for (read, from, from_bytes) in read {
                let in_place = i == 0 && written == read && to == from;
                if !in_place && overlap(to, to_bytes, from, from_bytes) {
                    return Err(StatesError::Overlap { written, read, state: i });
                }
            }
        }
        (arguments.outputs[i], arguments.lses[i]) = (state.output, state.lse);
    }
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_heuristics::Dtype;

    const CLASS: Class = Class { head_dim: 64, dtype: Dtype::F16 };
    /// Ten rows: 1280 bytes of output, 40 of LSE.
    const STATES: [RawState; 2] =
        [RawState { output: 0x1000, lse: 0x8000 }, RawState { output: 0x2000, lse: 0x9000 }];
    const ARGS: RawMergeStates<'static> =
        RawMergeStates { states: &STATES, rows: 10, output: 0x3000, lse: Some(0xa000) };

    #[test]
    fn addresses_stand_where_the_kernel_looks_for_them() {
        let found = arguments(&CLASS, &ARGS).unwrap();
        assert_eq!(
            (found.outputs[..2].to_vec(), found.lses[..2].to_vec()),
            (vec![0x1000, 0x2000], vec![0x8000, 0x9000])
        );
        assert_eq!((found.output, found.lse, found.rows, found.count), (0x3000, 0xa000, 10, 2));
        assert_eq!(arguments(&CLASS, &RawMergeStates { lse: None, ..ARGS }).unwrap().lse, 0);
    }

    #[test]
    fn only_state_0_is_merged_in_place() {
        let merge = |output, lse| arguments(&CLASS, &RawMergeStates { output, lse, ..ARGS }).map(drop);
        let overlap = |written, read, state| Err(StatesError::Overlap { written, read, state });
        merge(0x1000, Some(0x8000)).unwrap();
        merge(0x1000, None).unwrap();
        merge(0x3000, Some(0x8000)).unwrap();
        // Right beside a state.
        merge(0x1000 + 1280, Some(0x8000 + 40)).unwrap();
        merge(0x1000 - 1280, Some(0x8000 - 40)).unwrap();
        for output in [0x1000 + 16, 0x1000 - 16, 0x1000 + 1264] {
            assert_eq!(merge(output, None), overlap("output", "output", 0));
        }
        assert_eq!(merge(0x2000, None), overlap("output", "output", 1));
        assert_eq!(merge(0x9000, None), overlap("output", "lse", 1));
        assert_eq!(merge(0x3000, Some(0x8004)), overlap("lse", "lse", 0));
        assert_eq!(merge(0x3000, Some(0x9000)), overlap("lse", "lse", 1));
        assert_eq!(merge(0x3000, Some(0x1000)), overlap("lse", "output", 0));
    }

    #[test]
    fn what_the_kernel_cannot_serve_is_said() {
        let error = |class: &Class, args| arguments(class, &args).unwrap_err();
        let of = |states| RawMergeStates { states, ..ARGS };
        assert_eq!(error(&CLASS, of(&[])), StatesError::NoState);
        assert_eq!(error(&CLASS, of(&[STATES[0]; 9])), StatesError::TooMany { found: 9, most: 8 });
        let class = Class { head_dim: 80, ..CLASS };
        let supported = "64, 96, 128, 192, 256 or 512";
        assert_eq!(error(&class, ARGS), StatesError::HeadDim { head_dim: 80, supported });
        let rows = u32::MAX as usize + 1;
        assert_eq!(error(&CLASS, RawMergeStates { rows, ..ARGS }), StatesError::TooManyRows(rows));
        let misaligned =
            |name, state, address, multiple| StatesError::Misaligned { name, state, address, multiple };
        let found = error(&CLASS, RawMergeStates { output: 0x3008, ..ARGS });
        assert_eq!(found, misaligned("output", None, 0x3008, 16));
        let found = error(&CLASS, RawMergeStates { lse: Some(0xa002), ..ARGS });
        assert_eq!(found, misaligned("lse", None, 0xa002, 4));
        let found = error(&CLASS, of(&[STATES[0], RawState { output: 0x2004, ..STATES[1] }]));
        assert_eq!(found, misaligned("output", Some(1), 0x2004, 16));
        assert!(found.to_string().starts_with("`output` of state 1 lies at 0x2004"), "{found}");
        let found = error(&CLASS, of(&[RawState { lse: 0x8001, ..STATES[0] }]));
        assert_eq!(found, misaligned("lse", Some(0), 0x8001, 4));
    }
}
