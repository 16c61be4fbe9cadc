//! What the libraries report, on stderr.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::uptime;

/// Shows warnings; with `verbose`, what is done and how long it takes; with twice `verbose`, each part of it with the thread that did it and the time since
/// the program began. `RUST_LOG` overrides what is shown.
pub fn start(verbose: u8) {
    let default = match verbose {
        0 => "warn",
        1 => "info",
        _ => "info,tilewright_tuner=debug",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(colour);
    if verbose > 1 {
        lines.with_timer(uptime()).with_thread_names(true).init();
    } else {
        lines.without_time().init();
    }
}
