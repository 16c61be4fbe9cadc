//! Measuring a device and what runs on it: for the tuner and benches, not for engines.

pub mod probe;
mod timeline;
mod timer;

pub use timeline::Timeline;
pub use timer::Timer;
