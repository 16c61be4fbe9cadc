//! Device memory and pinned host memory that free themselves.
#![allow(unsafe_code)]

use super::CudaError;
use cudarc::driver::sys::{CUdeviceptr, CUstream};
use cudarc::driver::{CudaContext, CudaStream, DeviceRepr, DriverError, result};
use std::ops::Range;
use std::sync::Arc;

/// Memory of a device, taken with a plain allocation. cudarc's own slices record events on every use, which a captured graph and raw
/// launches have no need of.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Arc<CudaContext>,
    address: CUdeviceptr,
    bytes: usize,
}

impl DeviceMemory {
    /// So many bytes, not initialised.
    ///
    /// # Errors
    /// The device has less left.
    pub fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self, CudaError> {
        let what = || format!("cannot allocate {} MB of device memory", bytes.div_ceil(1 << 20));
        context.bind_to_thread().map_err(CudaError::driver(what()))?;
        // SAFETY: the context is current on this thread; the memory is freed in `drop` and never before.
        let address = unsafe { result::malloc_sync(bytes.max(1)) }.map_err(CudaError::driver(what()))?;
        Ok(Self { context: Arc::clone(context), address, bytes })
    }

    /// The context that it belongs to.
    pub const fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Its address on the device.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Its size in bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies from the host, beginning at byte `offset`. The slice may be reused when the call returns.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If the slice reaches beyond the memory.
    pub fn write<T: DeviceRepr>(&self, offset: usize, from: &[T]) -> Result<(), CudaError> {
        assert!(offset + size_of_val(from) <= self.bytes, "a copy stays inside its memory");
        let fail = || CudaError::driver("cannot copy to the device");
        self.context.bind_to_thread().map_err(fail())?;
        // SAFETY: the range lies inside the allocation, and the call returns when the source was read.
        unsafe { result::memcpy_htod_sync(self.address + offset as u64, from) }.map_err(fail())?;
        arrived().map_err(fail())
    }

    /// Fills all of it with copies of a block. Copies on the device double what is there, so large memory is filled at its own speed.
    ///
    /// # Errors
    /// The driver's.
    pub fn repeat<T: DeviceRepr>(&self, block: &[T]) -> Result<(), CudaError> {
        let fail = || CudaError::driver("cannot fill device memory");
        let mut filled = size_of_val(block).min(self.bytes);
        self.write(0, &block[..filled / size_of::<T>()])?;
        filled -= filled % size_of::<T>();
        while filled > 0 && filled < self.bytes {
            let more = filled.min(self.bytes - filled);
            // SAFETY: both ranges lie inside the allocation, and do not overlap.
            unsafe { result::memcpy_dtod_sync(self.address + filled as u64, self.address, more) }
                .map_err(fail())?;
            filled += more;
        }
        arrived().map_err(fail())
    }

    /// Copies to the host, beginning at byte `offset`, when the stream has done what was queued before. Only that stream is waited for:
    /// waiting for the whole device would break captures on others.
    ///
    /// # Errors
    /// The driver's; an error of a kernel that ran before shows here.
    ///
    /// # Panics
    /// If the slice reaches beyond the memory.
    pub fn read<T: DeviceRepr>(
        &self,
        offset: usize,
        to: &mut [T],
        stream: &CudaStream,
    ) -> Result<(), CudaError> {
        // SAFETY: a stream that cudarc made is alive; one of another context is refused by the driver.
        unsafe { self.read_raw(offset, to, stream.cu_stream()) }
    }

    /// As [`DeviceMemory::read`], on a raw stream.
    ///
    /// # Safety
    /// The stream is alive, and belongs to the context.
    pub(super) unsafe fn read_raw<T: DeviceRepr>(
        &self,
        offset: usize,
        to: &mut [T],
        stream: CUstream,
    ) -> Result<(), CudaError> {
        assert!(offset + size_of_val(to) <= self.bytes, "a copy stays inside its memory");
        let fail = || CudaError::driver("cannot copy from the device");
        self.context.bind_to_thread().map_err(fail())?;
        // SAFETY: the range lies inside the allocation; any bytes are a valid plain number of the callers' types; the slice is borrowed until
        // the copy is done.
        unsafe {
            result::memcpy_dtoh_async(to, self.address + offset as u64, stream).map_err(fail())?;
            result::stream::synchronize(stream).map_err(fail())
        }
    }

    /// Sets every byte.
    ///
    /// # Errors
    /// The driver's.
    pub fn fill(&self, value: u8, stream: &CudaStream) -> Result<(), CudaError> {
        // SAFETY: a stream that cudarc made is alive; one of another context is refused by the driver.
        unsafe { self.fill_raw(value, stream.cu_stream()) }
    }

    /// As [`DeviceMemory::fill`], on a raw stream.
    ///
    /// # Safety
    /// The stream is alive, and belongs to the context.
    pub(super) unsafe fn fill_raw(&self, value: u8, stream: CUstream) -> Result<(), CudaError> {
        let fail = || CudaError::driver("cannot fill device memory");
        self.context.bind_to_thread().map_err(fail())?;
        // SAFETY: the range is the allocation.
        unsafe { result::memset_d8_async(self.address, value, self.bytes, stream) }.map_err(fail())
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // A context that a kernel broke cannot free; its memory goes with it.
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated in `new`, freed once. The driver waits for work that uses it.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Waits for the copies of calls without a stream: they may return when the source was read, before the target is there, and other
/// streams do not wait for them.
fn arrived() -> Result<(), DriverError> {
    // SAFETY: the null stream always exists.
    unsafe { result::stream::synchronize(std::ptr::null_mut()) }
}

/// Page-locked host memory of u32: copies from it run on their own.
#[derive(Debug)]
pub(super) struct PinnedWords {
    context: Arc<CudaContext>,
    words: *mut u32,
    len: usize,
}

// SAFETY: it owns its memory, which no thread but the owner's reaches.
unsafe impl Send for PinnedWords {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for PinnedWords {}

impl PinnedWords {
    pub(super) fn new(context: &Arc<CudaContext>, len: usize) -> Result<Self, CudaError> {
        let fail = || CudaError::driver("cannot allocate pinned host memory");
        context.bind_to_thread().map_err(fail())?;
        let len = len.max(1);
        // SAFETY: freed in `drop`; zeroed before any slice of it is made.
        let words = unsafe {
            let words = result::malloc_host(len * size_of::<u32>(), 0).map_err(fail())?.cast::<u32>();
            words.write_bytes(0, len);
            words
        };
        Ok(Self { context: Arc::clone(context), words, len })
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u32] {
        // SAFETY: `len` initialised words that only this owner reaches.
        unsafe { std::slice::from_raw_parts_mut(self.words, self.len) }
    }

    /// Starts the copy of some words.
    ///
    /// # Safety
    /// The words must not change until the stream has passed this point, and `target` must have room for them.
    ///
    /// # Panics
    /// If there are fewer words.
    pub(super) unsafe fn copy_to(
        &self,
        target: CUdeviceptr,
        range: Range<usize>,
        stream: CUstream,
    ) -> Result<(), CudaError> {
        // SAFETY: `len` words are initialised; the caller promises the rest.
        unsafe {
            let words = std::slice::from_raw_parts(self.words, self.len);
            result::memcpy_htod_async(target, &words[range], stream)
                .map_err(CudaError::driver("cannot upload the plan"))
        }
    }
}

impl Drop for PinnedWords {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated in `new`, freed once.
            let _ = unsafe { result::free_host(self.words.cast()) };
        }
    }
}
