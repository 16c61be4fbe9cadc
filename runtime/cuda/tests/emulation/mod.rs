//! Runs the CUDA kernels without a GPU: their sources, compiled as C++ for the host with `kernel-templates/emulation`.
#![allow(unsafe_code)]

mod compile;

use libloading::{Library, Symbol};
use std::ffi::{CStr, c_char, c_void};
use tilewright_heuristics::Geometry;
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::{
    AppendArguments, Arguments, BOX_TOKENS, CLIPPED_TOKENS, FastDiv, GRANULE, Kernel, StatesArguments,
    TensorMap, panel_row_bytes,
};
use tilewright_plan::KvStrides;

/// Makes every wait of the pipeline wait for one group fewer than it asks for.
#[allow(dead_code, reason = "one suite proves that it is caught")]
pub(crate) const EARLY_READ: &str = "-DTILEWRIGHT_EMULATE_EARLY_READ";

/// Emulates a device that converts FP8 by an instruction.
#[allow(dead_code, reason = "states are never FP8")]
pub(crate) const FP8_CONVERSION: &str = "-DTILEWRIGHT_EMULATE_FP8_CONVERSION";

/// Says where K and V lie as the emulated machine's tensors, as `machine_calls.hpp` has them; the driver does it for a device.
#[allow(dead_code, reason = "states have no K and V")]
pub(crate) fn describe_tensors(args: &mut Arguments, geometry: &Geometry, strides: &KvStrides) {
    let bytes = geometry.dtype.kv_bytes() as u64;
    let row_bytes = u64::from(panel_row_bytes(&Class::of(geometry)));
    let elements = row_bytes / bytes;
    let panels = u64::from(geometry.head_dim) / elements;
    // As `CudaBackend::decode_raw` takes them: with one KV head a page is all of its head.
    let head = if geometry.kv_heads == 1 { strides.page } else { strides.head };
    args.heads_a_page = (strides.page / head) as u32;
    let [token, head] = [strides.token, head].map(|elements| elements as u64 * bytes);
    let page_size = u64::from(geometry.page_size);
    let map = |address: u64, (inner, outer_stride): (u64, u64), outer: u64, of_box: [u64; 3]| {
        let sizes = [elements, inner, panels, outer, i32::MAX as u64];
        let mut words = [0; 16];
        words[..5].copy_from_slice(&[address, token, elements * bytes, outer_stride, head]);
        words[5..10].copy_from_slice(&sizes);
        words[10..].copy_from_slice(&[elements, of_box[0], of_box[1], of_box[2], 1, bytes]);
        TensorMap { words }
    };
    let boxes = |address: u64, tokens: u32| {
        // Tokens in one dimension and in another, and what a box has of them and of panels.
        let (inner, outer, of_box) = match tokens {
            1 if row_bytes < 128 => (1, page_size, [2, 1, 1]),
            0..8 => (8, page_size / 8, [u64::from(tokens), 1, 1]),
            _ => (8, page_size / 8, [8, panels, u64::from(tokens) / 8]),
        };
        map(address, (inner, inner * token), outer, of_box)
    };
    args.key_maps = boxes(args.keys, GRANULE);
    let clipped = u64::from(CLIPPED_TOKENS);
    let values = args.values - clipped * token;
    args.value_maps[BOX_TOKENS.len()] = map(values, (clipped, token), page_size, [clipped, panels, 1]);
    for (map, tokens) in args.value_maps.iter_mut().zip(BOX_TOKENS) {
        *map = boxes(args.values, tokens);
    }
}

/// `Emulated` of `machine_calls.hpp`.
#[repr(C)]
struct Emulated {
    error: *const c_char,
    poison_reads: u64,
}

type Entry = unsafe extern "C" fn(*const c_void, u32, u64) -> Emulated;

/// A library with kernels that run on the host. It can be used by several threads at once.
pub(crate) struct Emulator {
    library: &'static Library,
}

impl Emulator {
    /// More than the largest number of a call that may be left out: `compile::FUNCTIONS` has the same.
    pub(crate) const CALLS: usize = 1024;

    /// Compiles kernels with the system's C++ compiler, or the one that `CXX` names. `flags` are added to its own.
    ///
    /// # Panics
    /// If there is no compiler, or the sources do not compile.
    pub(crate) fn build(kernels: &[Kernel], flags: &[&str]) -> Self {
        Self::build_changed(kernels, flags, |_, text| text.to_owned())
    }

    /// The same from sources that `change` makes of each file's name and text.
    pub(crate) fn build_changed(
        kernels: &[Kernel],
        flags: &[&str],
        change: impl Fn(&str, &str) -> String,
    ) -> Self {
        let (_folder, path) = compile::library(kernels, flags, change);
        // SAFETY: the library was built just now, from our sources. When it is loaded it takes over the signals of bad addresses,
        // and hands on those that are not of its kernels; for that it has to stay, and does.
        let library =
            unsafe { Library::new(&path) }.expect("loading the kernels that were compiled for the host");
        Self { library: Box::leak(Box::new(library)) }
    }

    /// Whether a chunk of batch-invariant attention begins at a position, as kernels find it.
    #[allow(dead_code, reason = "only batch-invariant kernels ask")]
    pub(crate) fn begins_chunk(&self, position: u32, kv_heads: u32) -> bool {
        type Function = unsafe extern "C" fn(u32, u32) -> bool;
        // SAFETY: `compile::FUNCTIONS` has a function of this name and type, which reads its arguments alone.
        unsafe {
            let function: Symbol<'_, Function> =
                self.library.get(b"tilewright_begins_chunk").expect("it is compiled with all kernels");
            function(position, kv_heads)
        }
    }

    /// Leaves out a call of the kernels that this thread launches from now on; the calls that may be are counted from 1, and 0 is none of them. The sources say by
    /// `is_left_out(call)` what becomes of one.
    #[allow(dead_code, reason = "one suite proves that no call is superfluous")]
    pub(crate) fn leave_out(&self, call: u32) {
        type Function = unsafe extern "C" fn(u32);
        // SAFETY: `compile::FUNCTIONS` has a function of this name and type, which writes variables of this thread alone.
        unsafe {
            let function: Symbol<'_, Function> =
                self.library.get(b"tilewright_leave_out").expect("it is compiled with all kernels");
            function(call);
        }
    }

    /// Whether kernels that this thread launched have come by a call since [`Self::leave_out`], be it left out or not.
    #[allow(dead_code, reason = "one suite proves that no call is superfluous")]
    pub(crate) fn was_reached(&self, call: u32) -> bool {
        type Function = unsafe extern "C" fn(u32) -> bool;
        assert!((call as usize) < Self::CALLS, "call {call}");
        // SAFETY: `compile::FUNCTIONS` has a function of this name and type, which reads a variable of this thread that has room for this call.
        unsafe {
            let function: Symbol<'_, Function> =
                self.library.get(b"tilewright_was_reached").expect("it is compiled with all kernels");
            function(call)
        }
    }

    /// Launches a kernel made by [`Kernel::decode`] or [`Kernel::decode_mix`] with `count` CTAs: work items times KV heads. `seed` is the order in which warps and lanes run; 0 is
    /// the natural one.
    pub(crate) fn run_decode(
        &self,
        kernel: &Kernel,
        args: &Arguments,
        ctas: u32,
        seed: u64,
    ) -> Result<(), String> {
        let launch_items = FastDiv::new(ctas / args.kv_heads.by);
        self.run(kernel, &Arguments { launch_items, ..*args }, ctas, seed)
    }

    /// Launches a kernel made by [`Kernel::merge`] for `rows` rows: merge items times query heads.
    pub(crate) fn run_merge(
        &self,
        kernel: &Kernel,
        args: &Arguments,
        rows: u32,
        seed: u64,
    ) -> Result<(), String> {
        self.run(kernel, args, rows, seed)
    }

    /// Launches a kernel made by [`Kernel::merge_states`].
    #[allow(dead_code, reason = "the suite of the plans' kernels has no use for it")]
    pub(crate) fn run_merge_states(
        &self,
        kernel: &Kernel,
        args: &StatesArguments,
        seed: u64,
    ) -> Result<(), String> {
        self.run(kernel, args, args.rows, seed)
    }

    /// Launches a kernel made by [`Kernel::append`] for `chunks` chunks of 8 elements.
    #[allow(dead_code, reason = "the suites of the plans' kernels have no use for it")]
    pub(crate) fn run_append(
        &self,
        kernel: &Kernel,
        args: &AppendArguments,
        chunks: u32,
        seed: u64,
    ) -> Result<(), String> {
        self.run(kernel, args, chunks, seed)
    }

    fn run<T>(&self, kernel: &Kernel, args: &T, count: u32, seed: u64) -> Result<(), String> {
        // SAFETY: `compile::library` gives every entry point this type.
        let entry: Symbol<'_, Entry> = unsafe { self.library.get(kernel.name.as_bytes()) }
            .unwrap_or_else(|_| panic!("{} is not among the kernels that were compiled", kernel.name));
        // SAFETY: each kind of kernel has a function above with its type of arguments, which hold addresses of memory that is as large as the plan that they come from says.
        let result = unsafe { entry(std::ptr::from_ref(args).cast::<c_void>(), count, seed) };
        if !result.error.is_null() {
            // SAFETY: a message that ends with a zero, valid until this thread's next launch.
            let message = unsafe { CStr::from_ptr(result.error) }.to_string_lossy();
            return Err(format!("{}, seed {seed}: {message}", kernel.name));
        }
        if result.poison_reads > 0 {
            return Err(format!(
                "{}, seed {seed}: {} reads of shared memory that nothing had been copied to yet",
                kernel.name, result.poison_reads
            ));
        }
        Ok(())
    }
}
