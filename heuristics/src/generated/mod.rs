//! Selectors emitted from measurements, one module a device. Written by `tilewright emit`; do not edit.

mod cpu_amd_epyc_x_2_threads_x86_64_avx512;
mod nvidia_h100_80gb_hbm3;
mod nvidia_h200;

use crate::Selector;

/// Every emitted selector.
#[rustfmt::skip]
pub static SELECTORS: &[&Selector] = &[
    &cpu_amd_epyc_x_2_threads_x86_64_avx512::SELECTOR,
    &nvidia_h100_80gb_hbm3::SELECTOR,
    &nvidia_h200::SELECTOR,
];
