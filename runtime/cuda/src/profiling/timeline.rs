//! When each CTA of a plan's forward ran, and where (PAT, figure 12).
#![allow(unsafe_code)]

use crate::{CudaBackend, CudaError, DeviceMemory, DevicePlan, RawArgs};
use cudarc::driver::CudaStream;
use tilewright_kernel_templates::cuda::TimelineEntry;

/// What the CTAs of one launch of a plan noted. Times are nanoseconds since the first of them began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// In the order of work items, those of an item's KV heads side by side.
    pub ctas: Vec<TimelineEntry>,
    /// Which of all they are: the index of each one's work item times the number of KV heads, plus its KV head.
    pub indices: Vec<u32>,
}

impl Timeline {
    /// Launches a plan, whose kernels are prepared with [`tilewright_kernel_templates::cuda::KernelOptions::timeline`], waits for it,
    /// and reads what its CTAs noted.
    ///
    /// # Errors
    /// As [`CudaBackend::decode_raw`], or no memory.
    ///
    /// # Safety
    /// As [`CudaBackend::decode_raw`].
    pub unsafe fn record(
        backend: &CudaBackend,
        stream: &CudaStream,
        plan: &DevicePlan,
        args: &RawArgs,
    ) -> Result<Self, CudaError> {
        let mut ctas = vec![TimelineEntry::default(); plan.timeline_entries()];
        let memory = DeviceMemory::new(backend.device().context(), size_of_val(&ctas[..]).max(1))?;
        memory.fill(0, stream)?;
        let args = RawArgs { timeline: Some(memory.address()), ..*args };
        // SAFETY: the caller's promises; the entries outlive the launch, which the read waits for.
        unsafe { backend.decode_raw(stream.cu_stream(), plan, &args)? };
        let bytes: &mut [u64] = &mut vec![0; size_of_val(&ctas[..]) / 8];
        memory.read(0, bytes, stream)?;
        for (cta, words) in ctas.iter_mut().zip(bytes.chunks(size_of::<TimelineEntry>() / 8)) {
            if let &[begin, ready, computed, end, multiprocessor] = words {
                *cta = TimelineEntry {
                    begin,
                    ready,
                    computed,
                    end,
                    multiprocessor: multiprocessor as u32,
                    unused: 0,
                };
            }
        }
        Ok(Self::of(ctas))
    }

    /// Makes times of the device's clock times since the first CTA began. CTAs that had nothing to do are left out.
    fn of(all: Vec<TimelineEntry>) -> Self {
        let worked = (0u32..).zip(all).filter(|(_, cta)| cta.end > 0);
        let (indices, mut ctas): (Vec<u32>, Vec<TimelineEntry>) = worked.unzip();
        let first = ctas.iter().map(|cta| cta.begin).min().unwrap_or(0);
        for cta in &mut ctas {
            for time in [&mut cta.begin, &mut cta.ready, &mut cta.computed, &mut cta.end] {
                *time = time.saturating_sub(first);
            }
        }
        Self { ctas, indices }
    }

    /// Nanoseconds until the last CTA ended.
    pub fn span_ns(&self) -> u64 {
        self.ctas.iter().map(|cta| cta.end).max().unwrap_or(0)
    }

    /// The share of the CTA slots' time in which no CTA runs, as [`tilewright_plan::Plan`] predicts it.
    pub fn idle_share(&self, places: u32) -> f64 {
        let busy: u64 = self.ctas.iter().map(|cta| cta.end.saturating_sub(cta.begin)).sum();
        let all = self.span_ns() as f64 * f64::from(places);
        if all > 0.0 { (1.0 - busy as f64 / all).max(0.0) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cta(begin: u64, end: u64) -> TimelineEntry {
        TimelineEntry { begin, ready: begin + 1, computed: end - 1, end, ..TimelineEntry::default() }
    }

    #[test]
    fn times_are_since_the_first_cta_and_empty_slots_are_idle() {
        let timeline = Timeline::of(vec![
            cta(100, 140),
            TimelineEntry { begin: 80, ..TimelineEntry::default() },
            cta(90, 130),
        ]);
        assert_eq!(timeline.ctas, [cta(10, 50), cta(0, 40)]);
        assert_eq!(timeline.indices, [0, 2]);
        assert_eq!(timeline.span_ns(), 50);
        assert!((timeline.idle_share(2) - 0.2).abs() < 1e-9);
        assert!((timeline.idle_share(1) - 0.0).abs() < 1e-9);
        assert!(Timeline::default().idle_share(1) == 0.0);
    }
}
