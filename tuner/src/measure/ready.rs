//! Kernels that pieces of work wait for, where they are compiled beside the measuring, and the time that benches spend.

use super::Preparation;
use super::compile_ahead::{CompileQueue, Need, Wanted, kernels};
use crate::interrupt::Interrupt;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tilewright_kernel_templates::Limits;

/// Waits that are told ([`tracing::debug`]), at least.
const TOLD: Duration = Duration::from_millis(2);

/// What benches spent with pieces, in ns of one of them.
#[derive(Debug, Default)]
pub(super) struct Spent {
    /// In all.
    pub(super) worked: AtomicU64,
    /// Of it, waiting for kernels.
    pub(super) waited: AtomicU64,
}

impl Spent {
    pub(super) fn add(to: &AtomicU64, time: Duration) {
        to.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Adds a piece that began then and is over.
    pub(super) fn work(&self, piece: &dyn fmt::Display, begin: Instant) {
        let took = begin.elapsed();
        Self::add(&self.worked, took);
        tracing::debug!("{piece}: took {:.3} s", took.as_secs_f64());
    }
}

/// What a piece of work waits for: its kernels, where they are compiled beside the measuring.
#[derive(Clone, Debug)]
pub struct Ready {
    pub(super) queue: Option<CompileQueue>,
    pub(super) limits: Limits,
    pub(super) spent: Arc<Spent>,
    /// What benches had waited when the stage began, and which part of a bench's wait moves deadlines.
    pub(super) before: u64,
    pub(super) moving: f64,
    pub(super) interrupt: Interrupt,
}

impl Ready {
    /// A deadline of the stage after what was waited for in it ([`super::Benches::moved`]).
    pub fn moved(&self, deadline: Instant) -> Instant {
        let waited = self.spent.waited.load(Relaxed).saturating_sub(self.before);
        deadline + Duration::from_nanos(waited).mul_f64(self.moving)
    }

    /// Waits until these kernels are compiled, or have failed, which their bench is told when it asks for them.
    pub fn wait(&self, wanted: &Preparation) {
        if let Some(queue) = &self.queue {
            let kernels = kernels(std::slice::from_ref(wanted), &[], &self.limits);
            let waited = queue.wait(&kernels, Need::Waiting, &self.interrupt);
            Spent::add(&self.spent.waited, waited);
            if waited >= TOLD {
                tracing::debug!("waited {:.3} s for kernels of {wanted}", waited.as_secs_f64());
            }
        }
    }
}

/// Kernels that are compiled beside the measuring.
#[derive(Clone, Debug)]
pub struct Awaited(Option<(CompileQueue, Vec<Wanted>)>);

impl Awaited {
    /// Of these kernels in a queue; without one, nothing is awaited.
    pub(super) const fn of(kernels: Option<(CompileQueue, Vec<Wanted>)>) -> Self {
        Self(kernels)
    }

    /// Whether all of them are compiled, or have failed.
    pub fn are_there(&self) -> bool {
        self.0.as_ref().is_none_or(|(queue, kernels)| !queue.works() || queue.has(kernels))
    }
}
