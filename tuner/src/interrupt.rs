//! Ctrl-C and SIGTERM: the first one ends a run in good order, the second one at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the user has asked to stop.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    requested: Arc<AtomicBool>,
}

/// The exit code of a run that was stopped: what a shell reports for SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;

impl Interrupt {
    /// Listens for SIGINT and SIGTERM.
    ///
    /// # Errors
    /// The system refuses to install a handler.
    pub fn listen() -> io::Result<Self> {
        let interrupt = Self::default();
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // Registered first, so that it sees the flag as it was before this signal: only a second one ends at once.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                i32::from(EXIT_INTERRUPTED),
                Arc::clone(&interrupt.requested),
            )?;
            signal_hook::flag::register(signal, Arc::clone(&interrupt.requested))?;
        }
        Ok(interrupt)
    }

    /// Whether a signal has come.
    pub fn requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    /// Asks to stop, as a signal would.
    pub fn request(&self) {
        self.requested.store(true, Ordering::Relaxed);
    }
}
