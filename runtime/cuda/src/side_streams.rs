//! Streams beside the caller's: work is forked to them and joined again by events, so that it may be captured too.
#![allow(unsafe_code)]

use super::CudaError;
use cudarc::driver::sys::{CUevent, CUevent_flags, CUevent_wait_flags, CUstream};
use cudarc::driver::{CudaContext, result};
use std::sync::{Arc, Mutex, PoisonError};

/// Launches that run beside the caller's stream at most; more take turns.
pub(super) const SIDE_STREAMS: usize = 7;

/// Streams of one plan. cudarc's own would make it record an event on every use of every slice.
#[derive(Debug)]
pub(super) struct SideStreams {
    sides: Vec<Side>,
    forked: Event,
    /// A fork and its join are queued by one thread at a time: between them the events are that thread's.
    queueing: Mutex<()>,
}

/// A stream, and when what was queued on it is done.
#[derive(Debug)]
struct Side {
    stream: Stream,
    joined: Event,
}

/// A stream that waits for no other.
#[derive(Debug)]
pub(super) struct Stream {
    context: Arc<CudaContext>,
    stream: CUstream,
}

#[derive(Debug)]
struct Event {
    context: Arc<CudaContext>,
    event: CUevent,
}

// SAFETY: streams are handles that the driver guards itself.
unsafe impl Send for Stream {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Stream {}
// SAFETY: events are handles that the driver guards itself.
unsafe impl Send for Event {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Event {}

impl SideStreams {
    /// For `launches` launches, the first of which stays on the caller's stream.
    pub(super) fn new(context: &Arc<CudaContext>, launches: usize) -> Result<Self, CudaError> {
        let sides = launches.saturating_sub(1).min(SIDE_STREAMS);
        let side = |_| Ok(Side { stream: Stream::new(context)?, joined: Event::new(context)? });
        Ok(Self {
            sides: (0..sides).map(side).collect::<Result<_, CudaError>>()?,
            forked: Event::new(context)?,
            queueing: Mutex::new(()),
        })
    }

    /// Whether `launches` launches can all run at once, as far as [`SIDE_STREAMS`] allows.
    pub(super) fn serve(&self, launches: usize) -> bool {
        self.sides.len() >= launches.saturating_sub(1).min(SIDE_STREAMS)
    }

    /// Calls `launch` for each launch with the stream that it belongs on: those after the first begin when the caller's stream comes to
    /// this point, and the caller's stream goes on when all are done. Joins what was forked also when a launch fails, or a capture of the
    /// stream could not be ended.
    ///
    /// # Safety
    /// The stream belongs to the context that the side streams were made in, which is current. While the stream is being captured, nothing
    /// else is forked to these streams from another.
    pub(super) unsafe fn fork(
        &self,
        stream: CUstream,
        launches: usize,
        mut launch: impl FnMut(usize, CUstream) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let used = &self.sides[..self.sides.len().min(launches.saturating_sub(1))];
        if used.is_empty() {
            return (0..launches).try_for_each(|index| launch(index, stream));
        }
        let fail = || CudaError::driver("cannot fork to another stream");
        let _queueing = self.queueing.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        let mut outcome = Ok(());
        let mut forked = 0;
        // SAFETY: all handles are alive; an event may be recorded anew, for a wait means the record before it.
        unsafe {
            result::event::record(self.forked.event, stream).map_err(fail())?;
            for side in used {
                if let Err(error) = result::stream::wait_event(side.stream.stream, self.forked.event, wait) {
                    outcome = Err(fail()(error));
                    break;
                }
                forked += 1;
            }
        }
        for index in 0..launches {
            outcome = outcome.and_then(|()| match index.checked_sub(1) {
                None => launch(index, stream),
                Some(other) => launch(index, used[other % used.len()].stream.stream),
            });
        }
        for side in &used[..forked] {
            // SAFETY: as above.
            let joined = unsafe {
                result::event::record(side.joined.event, side.stream.stream)
                    .and_then(|()| result::stream::wait_event(stream, side.joined.event, wait))
            };
            outcome = outcome.and(joined.map_err(CudaError::driver("cannot join a forked stream")));
        }
        outcome
    }
}

impl Stream {
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self, CudaError> {
        let fail = || CudaError::driver("cannot make a stream");
        context.bind_to_thread().map_err(fail())?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(fail())?;
        Ok(Self { context: Arc::clone(context), stream })
    }

    pub(super) const fn cu_stream(&self) -> CUstream {
        self.stream
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: made in `new`, destroyed once; the driver finishes what is queued.
            let _ = unsafe { result::stream::destroy(self.stream) };
        }
    }
}

impl Event {
    fn new(context: &Arc<CudaContext>) -> Result<Self, CudaError> {
        let fail = || CudaError::driver("cannot make an event");
        context.bind_to_thread().map_err(fail())?;
        let event = result::event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(fail())?;
        Ok(Self { context: Arc::clone(context), event })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: made in `new`, destroyed once; the driver frees it when nothing waits for it.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}
