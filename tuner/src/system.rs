//! What the operating system says of itself; nothing where it does not tell.

#![allow(unsafe_code)]

use sysinfo::System;

/// Steps of priority that a process which only helps gives up: of what computes beside it, it takes about a tenth of the time.
const STEPS: i32 = 10;

/// Has this process wait for the processor behind others.
pub fn lower_priority() {
    // SAFETY: it takes a number, and touches no memory. Where it is refused, the priority stays.
    unsafe { libc::nice(STEPS) };
}

/// Has the thread that calls it wait for the processor behind others, where a thread has a priority of its own.
pub fn lower_priority_of_thread() {
    if cfg!(target_os = "linux") {
        lower_priority();
    }
}

/// Bytes of memory that programs can still get.
pub fn available_memory() -> Option<u64> {
    let mut system = System::new().ok()?;
    system.refresh_memory();
    Some(system.available_memory()).filter(|&bytes| bytes > 0)
}

/// Runnable processes, mean over the last minute.
pub fn load() -> Option<f64> {
    System::load_average().ok().map(|load| load.one)
}

/// Names and versions of the system and its kernel.
pub fn versions() -> Vec<(String, String)> {
    let system = System::long_os_version().unwrap_or_else(|_| std::env::consts::OS.to_owned());
    let kernel = System::kernel_version().unwrap_or_else(|_| "unknown".to_owned());
    vec![("system".to_owned(), system), ("kernel".to_owned(), kernel)]
}
