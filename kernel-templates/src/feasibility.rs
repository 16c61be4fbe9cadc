//! The rules that a tile must pass before it is measured. Each gives its reason in words.

use crate::{Class, CpuLimits, Limits, cpu};
use core::fmt;
use tilewright_heuristics::Tile;

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
        Limits::Cpu(limits) => {
            CPU_RULES.iter().try_for_each(|rule| match (rule.violated)(tile, class, limits) {
                Some(reason) => Err(Infeasible { rule: rule.name, reason }),
                None => Ok(()),
            })
        }
    }
}

struct CpuRule {
    name: &'static str,
    violated: fn(&Tile, &Class, &CpuLimits) -> Option<String>,
}

const CPU_RULES: &[CpuRule] = &[
    // A thread more than the processor runs waits for its share of the item while the others are done.
    CpuRule {
        name: "threads",
        violated: |tile, _, limits| {
            (u32::from(tile.warps) > limits.threads).then(|| {
                format!("{} threads share an item, the processor runs {}", tile.warps, limits.threads)
            })
        },
    },
    // Scratch is walked once a KV tile: beyond the second-level cache each step pays for it at the speed of the next level.
    CpuRule {
        name: "second-level cache",
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
    CpuRule {
        name: "prefetch distance",
        violated: |tile, class, limits| {
            let ahead = cpu::prefetched_bytes(tile, class);
            (2 * ahead > limits.l2_bytes).then(|| {
                format!(
                    "{} KB fetched ahead, half of the second-level cache is {} KB",
                    ahead.div_ceil(1024),
                    limits.l2_bytes / 2048
                )
            })
        },
    },
    // Each step pays one rescale of [m, head_dim] accumulators: it must be small beside the [m, n] x [n, head_dim] product.
    CpuRule {
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

    const SMALL: Tile = Tile { m: 4, n: 64, warps: 1, stages: 1 };
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
        assert_eq!(rejected_by(Tile { m: 1024, ..SMALL }), Some("second-level cache"));
        assert_eq!(rejected_by(Tile { n: 512, stages: 3, ..SMALL }), Some("prefetch distance"));
        assert_eq!(rejected_by(Tile { n: 8, ..SMALL }), Some("step length"));
    }

    #[test]
    fn reasons_name_the_numbers() {
        let limits = Limits::Cpu(CpuLimits::BASELINE);
        let error = check(&Tile { warps: 4, ..SMALL }, &CLASS, &limits).unwrap_err();
        assert_eq!(error.to_string(), "threads: 4 threads share an item, the processor runs 1");
    }
}
