//! How many CTAs of a kernel reside on an SM at a time, by the rules of CUDA's occupancy calculator (`cuda_occupancy.h`).

use super::CudaLimits;

/// Threads of a warp.
pub const WARP_THREADS: u32 = 32;

/// Parts of an SM, each with its own share of the registers: a warp's registers lie in one of them.
const SUB_PARTITIONS: u32 = 4;

/// What keeps another CTA off an SM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limiter {
    /// Its warps' registers, or a thread's.
    Registers,
    /// Its shared memory.
    SharedMemory,
    /// Its warps, or its threads.
    Warps,
    /// The number of CTAs itself.
    CtaSlots,
}

/// CTAs of one kernel on an SM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// CTAs that reside on an SM at a time; 0 if not even one fits, so that the kernel cannot be launched.
    pub ctas_per_sm: u32,
    /// What keeps the next one off. If several do, the first of them in [`Limiter`]'s order.
    pub limited_by: Limiter,
}

/// The occupancy of a kernel with `threads_per_cta` threads of `registers_per_thread` registers and `shared_bytes_per_cta`
/// bytes of shared memory, static and dynamic together, without the system's share. A CTA of no
/// threads never fits.
pub fn occupancy(
    limits: &CudaLimits,
    threads_per_cta: u32,
    registers_per_thread: u32,
    shared_bytes_per_cta: u32,
) -> Occupancy {
    let warps = threads_per_cta.div_ceil(WARP_THREADS);
    let by_limiter = [
        (Limiter::Registers, ctas_by_registers(limits, warps, registers_per_thread)),
        (Limiter::SharedMemory, ctas_by_shared_memory(limits, shared_bytes_per_cta)),
        (Limiter::Warps, ctas_by_warps(limits, threads_per_cta)),
        (Limiter::CtaSlots, limits.ctas_per_sm),
    ];
    let [first, rest @ ..] = by_limiter;
    let (limited_by, ctas_per_sm) =
        rest.into_iter().fold(first, |least, next| if next.1 < least.1 { next } else { least });
    Occupancy { ctas_per_sm, limited_by }
}

fn ctas_by_registers(limits: &CudaLimits, warps: u32, registers_per_thread: u32) -> u32 {
    if registers_per_thread > limits.max_registers_per_thread {
        return 0;
    }
    let asked = registers_per_thread.max(1).saturating_mul(WARP_THREADS);
    let per_warp = round_up(asked, limits.register_allocation_unit);
    let warps_per_part = limits.registers_per_sm / SUB_PARTITIONS / per_warp;
    // A warp does not straddle parts: what is left over in each is lost.
    quotient(warps_per_part * SUB_PARTITIONS, warps)
}

fn ctas_by_shared_memory(limits: &CudaLimits, shared_bytes_per_cta: u32) -> u32 {
    if shared_bytes_per_cta > limits.shared_bytes_per_cta {
        return 0;
    }
    let asked = shared_bytes_per_cta.saturating_add(limits.shared_reserved_per_cta);
    match round_up(asked, limits.shared_allocation_unit) {
        0 => u32::MAX,
        taken => limits.shared_bytes_per_sm / taken,
    }
}

fn ctas_by_warps(limits: &CudaLimits, threads_per_cta: u32) -> u32 {
    if threads_per_cta > limits.threads_per_cta {
        return 0;
    }
    quotient(limits.warp_slots_per_sm, threads_per_cta.div_ceil(WARP_THREADS))
}

/// `value` rounded up to a multiple of `unit`, or as it is if there is no unit.
fn round_up(value: u32, unit: u32) -> u32 {
    if unit == 0 { value } else { value.div_ceil(unit).saturating_mul(unit) }
}

fn quotient(slots: u32, each: u32) -> u32 {
    slots.checked_div(each).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Limiter::*;
    use proptest::prelude::*;

    fn on(name: &str, threads: u32, registers: u32, shared: u32) -> (u32, Limiter) {
        let occupancy = occupancy(&CudaLimits::named(name).unwrap(), threads, registers, shared);
        (occupancy.ctas_per_sm, occupancy.limited_by)
    }

    #[test]
    fn known_values_of_hopper() {
        // 170 registers are 5632 a warp, two warps a part; 99 KB and 1 KB reserved are 100 of 228 KB.
        assert_eq!(on("h100-sxm", 128, 170, 99 << 10), (2, Registers));
        assert_eq!(on("h100-sxm", 64, 32, 50 << 10), (4, SharedMemory));
        assert_eq!(on("h100-sxm", 32, 166, 17 << 10), (12, Registers));
        assert_eq!(on("h100-sxm", 32, 32, 0), (32, CtaSlots));
        assert_eq!(on("h100-sxm", 256, 32, 0), (8, Registers));
        assert_eq!(on("h100-sxm", 256, 24, 0), (8, Warps));
        assert_eq!(on("h100-sxm", 128, 40, 227 << 10), (1, SharedMemory));
    }

    #[test]
    fn known_values_of_ampere_and_ada() {
        assert_eq!(on("a100-80gb", 128, 128, 32 << 10), (4, Registers));
        assert_eq!(on("a100-80gb", 128, 64, 40 << 10), (4, SharedMemory));
        assert_eq!(on("a100-80gb", 128, 64, 41 << 10), (3, SharedMemory));
        // 1536 threads an SM.
        assert_eq!(on("rtx-4090", 1024, 32, 0), (1, Warps));
        assert_eq!(on("rtx-4090", 32, 16, 0), (24, CtaSlots));
        assert_eq!(on("l40s", 128, 32, 49 << 10), (2, SharedMemory));
    }

    #[test]
    fn registers_left_over_in_each_part_are_lost() {
        // 176 registers are 5632 a warp: 11 warps by the whole file, but 2 in each of four parts.
        assert_eq!(on("h200", 32, 176, 0), (8, Registers));
    }

    #[test]
    fn what_cannot_be_launched_has_none() {
        assert_eq!(on("h200", 2048, 16, 0), (0, Warps));
        assert_eq!(on("h200", 1024, 128, 0), (0, Registers));
        assert_eq!(on("h200", 128, 256, 0), (0, Registers));
        assert_eq!(on("h200", 128, 32, (227 << 10) + 1), (0, SharedMemory));
        assert_eq!(on("h200", 0, 32, 0).0, 0);
    }

    proptest! {
        #[test]
        fn what_resides_fits_and_any_number_is_answered(
            device in proptest::sample::select(CudaLimits::NAMED),
            threads in any::<u32>().prop_map(|x| x >> (x % 32)),
            registers in any::<u32>().prop_map(|x| x >> (x % 32)),
            shared in any::<u32>().prop_map(|x| x >> (x % 32)),
        ) {
            let ctas = u64::from(occupancy(&device, threads, registers, shared).ctas_per_sm);
            prop_assert!(ctas * u64::from(threads) <= u64::from(device.warp_slots_per_sm * WARP_THREADS));
            prop_assert!(ctas * u64::from(threads) * u64::from(registers) <= u64::from(device.registers_per_sm));
            prop_assert!(ctas * u64::from(shared) <= u64::from(device.shared_bytes_per_sm));
        }
    }
}
