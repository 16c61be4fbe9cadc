//! Selectors emitted from measurements, one module a device. Written by `tilewright emit`; do not edit.

use crate::Selector;

/// Every emitted selector.
pub static SELECTORS: &[&Selector] = &[];
