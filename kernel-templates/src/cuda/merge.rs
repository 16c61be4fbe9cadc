//! Host side of `merge.cuh`.

use super::kernel::{element, identifier};
use super::{Kernel, KernelOptions};
use crate::Class;

/// Warps that share a row in a merge: one for the usual few partials, four for rows with many.
pub const MERGE_WARPS: [u32; 2] = [1, 4];

impl Kernel {
    /// Merge of partials. Each CTA of four warps serves `4 / warps_a_row` rows (request, query head). What K and V are makes no difference.
    pub fn merge(warps_a_row: u32, class: &Class, options: KernelOptions) -> Self {
        let only_sinks = KernelOptions { sinks: options.sinks, ..KernelOptions::default() };
        let template =
            format!("Merge<{warps_a_row}, {}, {}, {}>", class.head_dim, element(class.dtype), options.sinks);
        let dtype = identifier(class.dtype.query());
        let name = format!("merge_w{warps_a_row}_d{}_{dtype}{}", class.head_dim, only_sinks.suffix());
        Self { name, template, threads: 128, shared_bytes: 4 * class.head_dim * 4, ..Self::default() }
            .of_plan("merge.cuh", "__launch_bounds__(128)")
    }
}
