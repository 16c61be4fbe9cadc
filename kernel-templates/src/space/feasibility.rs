//! The rules that a tile must pass before it is measured. Each gives its reason in words.

use super::{CpuLimits, CudaLimits, Limits, bytes_in_flight, bytes_in_flight_needed, occupancy};
use crate::cuda::{self, KernelOptions, KvLoad, WarpSplit};
use crate::toolchain::{KernelUsage, PtxasReport};
use crate::{Class, cpu};
use core::fmt;
use tilewright_heuristics::{Dtype, Tile};

/// Why a tile cannot run, or is not worth running, on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Infeasible {
    /// The rule's name, equal for all tiles that it rejects.
    pub rule: &'static str,
    /// The reason with this tile's numbers.
    pub reason: String,
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.reason)
    }
}

/// Whether `tile` is feasible for `class` on a device with these limits.
///
/// # Errors
/// The first rule that rejects it.
pub fn check(tile: &Tile, class: &Class, limits: &Limits) -> Result<(), Infeasible> {
    match limits {
        Limits::Cpu(limits) => first_violated(CPU_RULES, tile, class, limits),
        Limits::Cuda(limits) => first_violated(CUDA_RULES, tile, class, limits),
    }
}

/// Whether a tile that passed [`check`] is still feasible now that it is compiled with these options (PAT, section 5.2).
///
/// # Errors
/// The first rule that rejects it.
pub fn check_compiled(
    tile: &Tile,
    class: &Class,
    options: KernelOptions,
    limits: &CudaLimits,
    usage: &KernelUsage,
    report: &PtxasReport,
) -> Result<(), Infeasible> {
    let threads = limits.threads(tile, class, options);
    let shared = limits.shared_bytes(tile, class, options);
    let ctas_per_sm = check_resources(threads, shared, limits, usage, report)?;
    // Less than latency x bandwidth under way leaves the memory idle (Little's law).
    let flying = bytes_in_flight(
        u32::from(tile.stages),
        u32::from(tile.n),
        class.head_dim,
        class.dtype.kv_bytes() as u32,
        ctas_per_sm,
    );
    let needed = bytes_in_flight_needed(limits);
    if flying < needed {
        return reject(
            "bytes in flight",
            format!("{ctas_per_sm} CTAs an SM load {flying} bytes at once, latency x bandwidth is {needed}"),
        );
    }
    Ok(())
}

/// Whether several tiles can be compiled into one kernel ([`Kernel::decode_mix`](cuda::Kernel::decode_mix)) with these options.
///
/// # Errors
/// The first tile that cannot run, or the rule that rejects them together.
pub fn check_mix(
    tiles: &[Tile],
    class: &Class,
    options: KernelOptions,
    limits: &CudaLimits,
) -> Result<(), Infeasible> {
    let [first, others @ ..] = tiles else {
        return reject("tiles", "there is no tile in it".to_owned());
    };
    for tile in tiles {
        first_violated(CUDA_RULES, tile, class, limits).map_err(|Infeasible { rule, reason }| {
            Infeasible { rule, reason: format!("{tile}: {reason}") }
        })?;
    }
    // A CTA's registers are given out when it is launched, to each warp as many, and change hands by whole warpgroups only (`setmaxnreg`):
    // those of a warp that a tile has no use for would be neither the consumer warps' nor another CTA's until the CTA ends.
    let other = others.iter().find(|tile| tile.warps != first.warps);
    if let Some(other) = other.filter(|_| limits.producer_warps(tiles, class, options) > 0) {
        return reject(
            "warps of a mix",
            format!(
                "{first} has {} warps and {other} {}: beside TMA producer warps all tiles of a kernel have as many, or registers lie idle",
                first.warps, other.warps
            ),
        );
    }
    Ok(())
}

/// Whether several tiles that pass [`check_mix`] are feasible together now that they are compiled with these options. How many bytes are in
/// flight depends on which of them a plan uses, and is no rule here.
///
/// # Errors
/// The first rule that rejects it.
pub fn check_compiled_mix(
    tiles: &[Tile],
    class: &Class,
    options: KernelOptions,
    limits: &CudaLimits,
    usage: &KernelUsage,
    report: &PtxasReport,
) -> Result<(), Infeasible> {
    let producers = limits.producer_warps(tiles, class, options);
    let threads = cuda::mix_threads(tiles, producers);
    let shared = cuda::mix_shared_bytes(tiles, class, producers, options);
    check_resources(threads, shared, limits, usage, report).map(drop)
}

/// Local memory that a thread may have: a few counters, read from the L1 cache. On an H200 a tile with 24 bytes of it is the best of
/// nine on four heavy batches.
const MOST_LOCAL_BYTES: u32 = 32;

/// CTAs an SM of a compiled kernel with these threads and bytes of dynamic shared memory.
fn check_resources(
    threads: u32,
    shared: u32,
    limits: &CudaLimits,
    usage: &KernelUsage,
    report: &PtxasReport,
) -> Result<u32, Infeasible> {
    let registers = usage.registers;
    let held = occupancy(limits, threads, registers, shared + usage.static_shared_bytes);
    // What the register file cannot hold cannot be launched.
    if held.ctas_per_sm == 0 {
        return reject("registers", format!("{threads} threads of {registers} registers do not fit an SM"));
    }
    // Local memory lies in device memory: each step would read and write it beside the cache.
    if usage.local_bytes > MOST_LOCAL_BYTES {
        let spilled = report.spill_store_bytes;
        return reject(
            "spills",
            format!("{} bytes of local memory a thread ({spilled} spilled)", usage.local_bytes),
        );
    }
    Ok(held.ctas_per_sm)
}

const fn reject<T>(rule: &'static str, reason: String) -> Result<T, Infeasible> {
    Err(Infeasible { rule, reason })
}

struct Rule<L> {
    name: &'static str,
    violated: fn(&Tile, &Class, &L) -> Option<String>,
}

fn first_violated<L>(rules: &[Rule<L>], tile: &Tile, class: &Class, limits: &L) -> Result<(), Infeasible> {
    rules.iter().try_for_each(|rule| match (rule.violated)(tile, class, limits) {
        Some(reason) => Err(Infeasible { rule: rule.name, reason }),
        None => Ok(()),
    })
}

const CUDA_RULES: &[Rule<CudaLimits>] = &[
    // Kernels know at compile time how a row lies in shared memory.
    Rule {
        name: "head dimension",
        violated: |_, class, _| {
            (!Class::HEAD_DIMS.contains(&class.head_dim)).then(|| {
                format!(
                    "no kernel has heads of {} elements, there are those of {}; the CPU backend takes any multiple of 16",
                    class.head_dim,
                    Class::HEAD_DIMS_IN_WORDS
                )
            })
        },
    },
    // `mma.sync` multiplies 16-bit elements at full rate; f32 inputs would be rounded to tf32.
    Rule {
        name: "element type",
        violated: |_, class, _| {
            (class.dtype.query() == Dtype::F32)
                .then(|| "tensor cores have no f32 product; use f16 or bf16".to_owned())
        },
    },
    // A warp owns the 16 rows of one matrix product; warps beyond m / 16 share rows, and all rows must be shared alike.
    Rule {
        name: "rows a warp",
        violated: |tile, _, _| {
            let row_warps = (tile.m / 16).max(1);
            (!tile.m.is_multiple_of(16) || !tile.warps.is_multiple_of(row_warps)).then(|| {
                format!(
                    "m = {} needs a multiple of {row_warps} warps of 16 rows, it has {}",
                    tile.m, tile.warps
                )
            })
        },
    },
    // The weights of 16 tokens are the depth of one matrix product.
    Rule {
        name: "tokens a warp",
        violated: |tile, class, _| {
            let WarpSplit { warps_keys, .. } = WarpSplit::of(tile, class, false);
            (!u32::from(tile.n).is_multiple_of(16 * warps_keys)).then(|| {
                format!(
                    "n = {} over {warps_keys} warps is no multiple of the 16 tokens of a matrix product",
                    tile.n
                )
            })
        },
    },
    // A thread has 255 registers. A warp's sums, of its 16 rows' logits and outputs in f32, take half as many as it has tokens of a step and elements of a head;
    // 192 and more leave too few for the query, operands and addresses: NVRTC 13.0 spills 48 bytes and more of all such tiles, which is rejected once they are
    // compiled, and takes longest with them. With head dimension 256 the query of a warpgroup lies in shared memory, and some fit.
    Rule {
        name: "accumulators",
        violated: |tile, class, _| {
            let WarpSplit { warps_keys, warps_d, .. } = WarpSplit::of(tile, class, false);
            let sums = (u32::from(tile.n) / warps_keys + class.head_dim / warps_d) / 2;
            (sums >= 192 && (tile.m < 64 || class.head_dim != 256)).then(|| {
                format!("{sums} registers a thread for sums of logits and outputs leave too few of 255 for all else")
            })
        },
    },
    // More than this many threads are no CTA. Kernels with producer warps have the most.
    Rule {
        name: "threads",
        violated: |tile, class, limits| {
            let threads = limits.threads(tile, class, KernelOptions::default());
            (threads > limits.threads_per_cta)
                .then(|| format!("{threads} threads, a CTA has at most {}", limits.threads_per_cta))
        },
    },
    // All buffers of a CTA lie in the memory of one SM. Kernels with the `cp.async` producer note the most, and pages of any size may come; those that
    // widen FP8 have more buffers.
    Rule {
        name: "shared memory",
        violated: |tile, class, limits| {
            let of = |kv_load| {
                limits.shared_bytes(tile, class, KernelOptions { kv_load, ..KernelOptions::default() })
            };
            let needed = of(KvLoad::CpAsync).max(of(KvLoad::Tma));
            (needed > limits.shared_bytes_per_cta).then(|| {
                format!(
                    "{} KB a CTA, the device has {} KB",
                    needed.div_ceil(1024),
                    limits.shared_bytes_per_cta / 1024
                )
            })
        },
    },
];

const CPU_RULES: &[Rule<CpuLimits>] = &[
    // A thread more than the processor runs waits for its share of the item while the others are done.
    Rule {
        name: "threads",
        violated: |tile, _, limits| {
            (u32::from(tile.warps) > limits.threads).then(|| {
                format!("{} threads share an item, the processor runs {}", tile.warps, limits.threads)
            })
        },
    },
    // Scratch is walked once a KV tile: beyond L2 each step pays for it at the speed of the next level.
    Rule {
        name: "L2",
        violated: |tile, class, limits| {
            let scratch = cpu::scratch_bytes(tile, class);
            (scratch > limits.l2_bytes).then(|| {
                format!(
                    "{} KB of scratch a thread, the cache has {} KB",
                    scratch.div_ceil(1024),
                    limits.l2_bytes / 1024
                )
            })
        },
    },
    // Lines fetched ahead must still be there when they are used; half of the cache is left to the scratch.
    Rule {
        name: "prefetch distance",
        violated: |tile, class, limits| {
            let ahead = cpu::prefetched_bytes(tile, class);
            (2 * ahead > limits.l2_bytes).then(|| {
                format!(
                    "{} KB fetched ahead, half of L2 is {} KB",
                    ahead.div_ceil(1024),
                    limits.l2_bytes / 2048
                )
            })
        },
    },
    // Each step pays one rescale of [m, head_dim] accumulators: it must be small beside the [m, n] x [n, head_dim] product.
    Rule {
        name: "step length",
        violated: |tile, _, _| {
            (tile.n < 16)
                .then(|| format!("{} tokens a step do not pay for rescaling the accumulators", tile.n))
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_heuristics::Dtype;

    const SMALL: Tile = Tile::of("m4n64w1s1");
    const CLASS: Class = Class { head_dim: 128, dtype: Dtype::F16 };

    fn rejected_by(tile: Tile) -> Option<&'static str> {
        check(&tile, &CLASS, &Limits::Cpu(CpuLimits { threads: 2, ..CpuLimits::BASELINE }))
            .err()
            .map(|e| e.rule)
    }

    #[test]
    fn each_rule_rejects_what_it_is_about() {
        assert_eq!(rejected_by(SMALL), None);
        assert_eq!(rejected_by(Tile { warps: 4, ..SMALL }), Some("threads"));
        assert_eq!(rejected_by(Tile { m: 1024, ..SMALL }), Some("L2"));
        assert_eq!(rejected_by(Tile { n: 512, stages: 3, ..SMALL }), Some("prefetch distance"));
        assert_eq!(rejected_by(Tile { n: 8, ..SMALL }), Some("step length"));
    }

    #[test]
    fn each_cuda_rule_rejects_what_it_is_about() {
        let limits = Limits::Cuda(CudaLimits::named("a100-80gb").unwrap());
        let good = Tile::of("m32n64w4s2");
        let rejected_by =
            |tile: Tile, class: &Class| check(&tile, class, &limits).err().map(|infeasible| infeasible.rule);
        assert_eq!(rejected_by(good, &CLASS), None);
        assert_eq!(rejected_by(good, &Class { head_dim: 80, ..CLASS }), Some("head dimension"));
        assert_eq!(rejected_by(good, &Class { dtype: Dtype::F32, ..CLASS }), Some("element type"));
        assert_eq!(rejected_by(good, &Class { dtype: Dtype::Fp8F32, ..CLASS }), Some("element type"));
        assert_eq!(rejected_by(Tile { m: 24, ..good }, &CLASS), Some("rows a warp"));
        assert_eq!(rejected_by(Tile { warps: 1, ..good }, &CLASS), Some("rows a warp"));
        assert_eq!(rejected_by(Tile { n: 16, ..good }, &CLASS), Some("tokens a warp"));
        assert_eq!(rejected_by(Tile::of("m16n256w1s1"), &CLASS), Some("accumulators"));
        assert_eq!(rejected_by(Tile::of("m16n256w2s1"), &CLASS), None);
        let wide = Class { head_dim: 256, ..CLASS };
        assert_eq!(rejected_by(Tile::of("m32n128w2s1"), &wide), Some("accumulators"));
        let h200 = Limits::Cuda(CudaLimits::named("h200").unwrap());
        assert_eq!(check(&Tile::of("m64n128w4s1"), &wide, &h200), Ok(()));
        // Longer heads are split among warps that share rows.
        let longest = Class { head_dim: 512, ..CLASS };
        for (tile, rule) in [
            ("m16n32w1s1", Some("accumulators")),
            ("m16n32w2s2", None),
            ("m16n64w2s1", None),
            ("m32n32w2s1", Some("accumulators")),
            ("m64n32w8s2", None),
            ("m128n32w8s1", Some("accumulators")),
            ("m16n64w4s2", Some("shared memory")),
        ] {
            let rejected = check(&Tile::of(tile), &longest, &h200).err();
            assert_eq!(rejected.map(|infeasible| infeasible.rule), rule, "{tile}");
        }
        assert_eq!(rejected_by(Tile { warps: 64, n: 1024, ..good }, &CLASS), Some("threads"));
        assert_eq!(rejected_by(Tile { stages: 6, ..good }, &CLASS), Some("shared memory"));
        assert_eq!(rejected_by(Tile { stages: 6, ..good }, &Class { dtype: Dtype::Fp8F16, ..CLASS }), None);
    }

    #[test]
    fn reasons_name_the_numbers() {
        let limits = Limits::Cpu(CpuLimits::BASELINE);
        let error = check(&Tile { warps: 4, ..SMALL }, &CLASS, &limits).unwrap_err();
        assert_eq!(error.to_string(), "threads: 4 threads share an item, the processor runs 1");
    }
}
