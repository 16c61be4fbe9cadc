//! Lengths on their way to the device, so that a steady step waits for nothing and makes no call of the driver but its copy.
#![allow(unsafe_code)]

use super::CudaError;
use super::memory::PinnedWords;
use cudarc::driver::sys::{CUdeviceptr, CUevent_flags, CUstream};
use cudarc::driver::{CudaContext, CudaEvent, result};
use std::sync::Arc;

/// The host may be ahead of the device by as many copies, and always by half as many.
pub(super) const BUFFERS: usize = 8;
const HALF: usize = BUFFERS / 2;

/// Pinned buffers that lengths are copied from in turn. An event stands for the copies from half of them: it is recorded when the last of these
/// is queued, and waited for when the first is to be written again. All copies are queued on one stream, or those on another are done.
#[derive(Debug)]
pub(super) struct LengthBuffers {
    context: Arc<CudaContext>,
    words: PinnedWords,
    /// Words of a buffer.
    capacity: usize,
    ring: Ring,
    copied: [CudaEvent; 2],
}

impl LengthBuffers {
    /// Each with room for `lengths` lengths.
    pub(super) fn new(context: &Arc<CudaContext>, lengths: usize) -> Result<Self, CudaError> {
        let event = || {
            context
                .new_event(Some(CUevent_flags::CU_EVENT_DISABLE_TIMING))
                .map_err(CudaError::driver("cannot make an event"))
        };
        // Buffers share no line of the processor's caches.
        let capacity = lengths.next_multiple_of(32);
        Ok(Self {
            context: Arc::clone(context),
            words: PinnedWords::new(context, BUFFERS * capacity)?,
            capacity,
            ring: Ring::default(),
            copied: [event()?, event()?],
        })
    }

    /// Lengths that there is room for.
    pub(super) const fn capacity(&self) -> usize {
        self.capacity
    }

    /// The buffer whose turn it is.
    pub(super) const fn turn(&self) -> usize {
        self.ring.buffer
    }

    /// That buffer, to be written. Waits until the last copy from it is done; it is, unless the host is far ahead of the device.
    pub(super) fn next(&mut self) -> Result<&mut [u32], CudaError> {
        if let Some(half) = self.ring.begins() {
            self.copied[half].synchronize().map_err(CudaError::driver("cannot wait for an upload"))?;
        }
        let begin = self.ring.buffer * self.capacity;
        Ok(&mut self.words.as_mut_slice()[begin..begin + self.capacity])
    }

    /// Queues the copy of a buffer's first words, or captures it.
    ///
    /// # Safety
    /// `target` has room for them, the stream is one of the context, which is current, and the buffers stay until the copy is done. It is counted
    /// by [`Self::queued`] in the buffer's turn.
    pub(super) unsafe fn copy(
        &self,
        buffer: usize,
        target: CUdeviceptr,
        len: usize,
        stream: CUstream,
    ) -> Result<(), CudaError> {
        let begin = buffer * self.capacity;
        // SAFETY: the words are written again only when an event says that the copy is done; the caller promises the rest.
        unsafe { self.words.copy_to(target, begin..begin + len.min(self.capacity), stream) }
    }

    /// The copy from the buffer whose turn it is was queued on the stream: it is the next one's turn.
    ///
    /// # Safety
    /// The stream is one of the context.
    pub(super) unsafe fn queued(&mut self, stream: CUstream) -> Result<(), CudaError> {
        let Some(half) = self.ring.ends() else { return Ok(()) };
        self.context.bind_to_thread().map_err(CudaError::driver("cannot use the device"))?;
        // SAFETY: event and stream are alive and of one context. Without a new record the event would say too much, and only waiting helps.
        unsafe {
            result::event::record(self.copied[half].cu_event(), stream)
                .or_else(|_| result::stream::synchronize(stream))
                .map_err(CudaError::driver("cannot record an event"))
        }
    }
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, Default)]
struct Ring {
    buffer: usize,
}

impl Ring {
    /// The half that begins with the buffer: its copies have to be done before anything of it is written.
    const fn begins(self) -> Option<usize> {
        if self.buffer.is_multiple_of(HALF) { Some(self.buffer / HALF) } else { None }
    }

    /// Goes on to the next buffer. The half that ended: its copies are all queued.
    const fn ends(&mut self) -> Option<usize> {
        let half = self.buffer / HALF;
        self.buffer = (self.buffer + 1) % BUFFERS;
        if self.buffer.is_multiple_of(HALF) { Some(half) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that does nothing until it is waited for, and then no more than it has to.
    #[test]
    fn no_buffer_is_written_before_its_copy_is_done() {
        let mut ring = Ring::default();
        // Copies queued and done, copies that an event stands for, the copy that is the last from a buffer.
        let (mut queued, mut done) = (0usize, 0usize);
        let mut recorded = [0; 2];
        let mut last: [Option<usize>; BUFFERS] = [None; BUFFERS];
        let mut most_ahead = 0;
        for step in 0..100 {
            // What is written twice before its copy is queued is waited for twice.
            for _ in 0..=step % 2 {
                if let Some(half) = ring.begins() {
                    done = done.max(recorded[half]);
                }
                assert!(last[ring.buffer].is_none_or(|copy| copy < done), "step {step}");
            }
            last[ring.buffer] = Some(queued);
            queued += 1;
            if let Some(half) = ring.ends() {
                recorded[half] = queued;
            }
            assert!(step < BUFFERS || queued - done > HALF, "step {step} waits for more than it needs");
            most_ahead = most_ahead.max(queued - done);
        }
        assert_eq!(most_ahead, BUFFERS);
    }
}
