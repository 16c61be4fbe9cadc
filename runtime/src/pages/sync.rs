//! The atomics that the pool is made of: the test with loom puts loom's in their place.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
