//! What the runtime has to say (tiles that were not measured on this very device, kernels left out) goes to Python's logger `tilewright`.

use pyo3::prelude::*;
use std::fmt::{self, Write};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

struct ToPython;

/// From now on.
pub(crate) fn to_python() {
    // Another interpreter of this process has done it already.
    let _ = tracing::subscriber::set_global_default(ToPython);
}

impl Subscriber for ToPython {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("tilewright")
    }

    fn event(&self, event: &Event<'_>) {
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            _ => "info",
        };
        let mut text = Text::default();
        event.record(&mut text);
        // No interpreter is left at the very end of a process, and a logger that fails must not stop what is computed.
        let _ = Python::try_attach(|py| -> PyResult<()> {
            let logger = py.import("logging")?.call_method1("getLogger", ("tilewright",))?;
            logger.call_method1(level, ("%s", text.0)).map(drop)
        });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
        debug_assert!(written.is_ok(), "text takes all");
    }
}
