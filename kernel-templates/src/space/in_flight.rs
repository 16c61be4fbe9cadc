//! Whether a kernel asks for enough memory at a time to keep it busy: Little's law, PAT section 5.2, constraint 2.
//!
//! PAT: "To saturate global memory bandwidth, the pipeline must keep enough data in flight to cover the inherent memory
//! latency": `D_flight >= L * B`, with `D_flight = S * C * n * h * b` for S SMs with C CTAs each, n tokens a tile, head
//! dimension h and elements of b bytes. Both sides are divided by S here, since a tile is judged on one SM. Figure 7a shows how
//! L and B are found (the flat and the linear part of transfer latency over size), figure 7b which tiles of an A100 80 GB each
//! constraint rules out.
//!
//! L times B is a floor, not a target: L is what a lone load takes, and loads take longer once memory is busy.

use super::CudaLimits;

/// Bytes that an SM must have under way at any time for the device to read memory at its full rate: latency times bandwidth,
/// divided among the SMs and rounded up. 0 for limits that state no clock or no SMs.
pub fn bytes_in_flight_needed(limits: &CudaLimits) -> u64 {
    // In 128 bits: the products overflow 64 for limits that a file or a device may state, however wrong.
    let cycles_times_bandwidth = u128::from(limits.memory_latency_cycles) * u128::from(limits.read_bandwidth);
    let sm_cycles_a_second = u128::from(limits.clock_hz) * u128::from(limits.sms);
    if sm_cycles_a_second == 0 {
        return 0;
    }
    u64::try_from(cycles_times_bandwidth.div_ceil(sm_cycles_a_second)).unwrap_or(u64::MAX)
}

/// Bytes of K and V that an SM has under way while `ctas_per_sm` CTAs each work on one stage of theirs and wait for the
/// others. A stage is the K and the V of `n` tokens, one kernel loading both together, where PAT counts "all K or V tiles
/// being loaded" by its double buffering. With one stage nothing overlaps: what a CTA loads before it computes counts.
pub fn bytes_in_flight(stages: u32, n: u32, head_dim: u32, element_bytes: u32, ctas_per_sm: u32) -> u64 {
    let stages_under_way = stages.saturating_sub(1).max(1);
    // Each pair of 32-bit factors fits 64 bits; their product may not.
    (u64::from(n) * u64::from(head_dim))
        .saturating_mul(2 * u64::from(element_bytes))
        .saturating_mul(u64::from(stages_under_way))
        .saturating_mul(u64::from(ctas_per_sm))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needed(name: &str) -> u64 {
        bytes_in_flight_needed(&CudaLimits::named(name).unwrap())
    }

    #[test]
    fn an_h200_needs_thirteen_kilobytes_an_sm() {
        // 707 cycles at 1.98 GHz are 357.1 ns; 4800 bytes a ns among 132 SMs are 36.36 each.
        assert_eq!(needed("h200"), 12_985);
        // 330.5 ns; 2039 bytes a ns among 108 SMs.
        assert_eq!(needed("a100-80gb"), 6_240);
    }

    #[test]
    fn bytes_grow_with_stages_and_ctas() {
        // n = 16, h = 128, 16-bit elements, double buffered: 4 KB of K and 4 KB of V under way.
        assert_eq!(bytes_in_flight(2, 16, 128, 2, 1), 8 << 10);
        assert_eq!(bytes_in_flight(2, 16, 128, 2, 4), 4 * (8 << 10));
        assert_eq!(bytes_in_flight(4, 16, 128, 2, 1), 3 * (8 << 10));
        assert_eq!(bytes_in_flight(2, 16, 128, 1, 1), 4 << 10);
    }

    #[test]
    fn a_single_stage_is_under_way_while_it_is_loaded() {
        assert_eq!(bytes_in_flight(1, 64, 128, 2, 2), bytes_in_flight(2, 64, 128, 2, 2));
    }

    #[test]
    fn absurd_figures_are_answered() {
        assert_eq!(bytes_in_flight(u32::MAX, u32::MAX, u32::MAX, u32::MAX, u32::MAX), u64::MAX);
        assert_eq!(bytes_in_flight(2, 64, 128, 2, 0), 0);
        let h200 = CudaLimits::named("h200").unwrap();
        assert_eq!(bytes_in_flight_needed(&CudaLimits { sms: 0, ..h200.clone() }), 0);
        let fast = CudaLimits { read_bandwidth: u64::MAX, clock_hz: 1, sms: 1, ..h200 };
        assert_eq!(bytes_in_flight_needed(&fast), u64::MAX);
    }
}
