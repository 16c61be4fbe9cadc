//! Host side of `merge.cuh`.

use super::kernel::{element, identifier};
use super::{Kernel, KernelOptions};
use crate::Class;

/// Warps that share a row in a merge: one for the usual few partials, four for rows with many.
pub const MERGE_WARPS: [u32; 2] = [1, 4];

impl Kernel {
    /// Merge of partials. Each CTA of four warps serves `4 / warps_a_row` rows (request, query head). What K and V are makes no difference.
    /// Batch-invariant merges have one warp a row.
    pub fn merge(warps_a_row: u32, class: &Class, options: KernelOptions) -> Self {
        let KernelOptions { sinks, invariant, .. } = options;
        let suffix = KernelOptions { sinks, invariant, ..KernelOptions::default() }.suffix();
        let (head_dim, element) = (class.head_dim, element(class.dtype));
        let invariant = if invariant { ", true" } else { "" };
        let template = format!("Merge<{warps_a_row}, {head_dim}, {element}, {sinks}{invariant}>");
        let dtype = identifier(class.dtype.query());
        let name = format!("merge_w{warps_a_row}_d{head_dim}_{dtype}{suffix}");
        Self {
            name,
            template,
            threads: 128,
            shared_bytes: 4 * class.head_dim.next_power_of_two() * 4,
            ..Self::default()
        }
        .of_plan("merge.cuh", "__launch_bounds__(128)")
    }
}
