//! What the libraries report, on stderr.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Shows warnings; with `verbose`, what is done and how long it takes. `RUST_LOG` overrides both.
pub fn start(verbose: bool) {
    let default = if verbose { "info" } else { "warn" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .without_time()
        .with_ansi(colour)
        .init();
}
