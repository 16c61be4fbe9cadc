//! Memory that ends where nothing may be touched: a kernel that reads or writes one element too far is stopped at it, as `compute-sanitizer`
//! would on a device, and so is one that writes what it is given to read.

use std::ptr;

/// A copy of an array for a kernel. Behind its last element lies a page that nothing may touch.
pub(crate) struct Guarded {
    mapping: *mut libc::c_void,
    mapped: usize,
    data: *mut u8,
    bytes: usize,
}

impl Guarded {
    /// What a kernel reads and may not write.
    pub(crate) fn read_only<T: Copy>(elements: &[T]) -> Self {
        let guarded = Self::writable(elements);
        // SAFETY: these are whole pages of the mapping.
        let done = unsafe { libc::mprotect(guarded.mapping, guarded.mapped - page_bytes(), libc::PROT_READ) };
        assert_eq!(done, 0, "protecting {} bytes", guarded.mapped);
        guarded
    }

    /// What a kernel writes, filled with this.
    pub(crate) fn writable<T: Copy>(elements: &[T]) -> Self {
        let (bytes, page) = (size_of_val(elements), page_bytes());
        let mapped = bytes.next_multiple_of(page) + page;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, which concerns no other memory.
        let mapping = unsafe {
            libc::mmap(ptr::null_mut(), mapped, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(mapping, libc::MAP_FAILED, "mapping {mapped} bytes");
        // SAFETY: the array ends where the mapping's last page begins, which is then protected; both lie in the mapping, which is of this process alone.
        let data = unsafe {
            let guard = mapping.cast::<u8>().add(mapped - page);
            assert_eq!(libc::mprotect(guard.cast(), page, libc::PROT_NONE), 0, "protecting a page");
            let data = guard.sub(bytes);
            ptr::copy_nonoverlapping(elements.as_ptr().cast::<u8>(), data, bytes);
            data
        };
        Self { mapping, mapped, data, bytes }
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> u64 {
        self.data as u64
    }

    /// What it holds now.
    pub(crate) fn elements<T: Copy>(&self) -> Vec<T> {
        let count = self.bytes / size_of::<T>();
        // SAFETY: as many elements of the type that it was made of lie there, and kernels write whole numbers of that type.
        (0..count).map(|i| unsafe { ptr::read_unaligned(self.data.cast::<T>().add(i)) }).collect()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's own, and no kernel runs any more.
        unsafe { libc::munmap(self.mapping, self.mapped) };
    }
}

fn page_bytes() -> usize {
    // SAFETY: it only asks.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("pages have a size")
}
