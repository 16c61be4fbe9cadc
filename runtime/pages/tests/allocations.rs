//! A steady step takes no memory from the system: appends inside pages, new pages, copies of tables.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use tilewright_pages::{Csr, PageManager, PagePool, RequestId};

thread_local! {
    /// Allocations of this thread: the test harness has threads of its own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is handed on to the system's allocator unchanged; the counter neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System.alloc` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    work();
    ALLOCATIONS.with(Cell::get) - before
}

const PAGE_SIZE: u32 = 16;
const MAX_PAGES: usize = 64;

#[test]
fn a_steady_step_takes_no_memory() {
    let mut pages = PageManager::new(Arc::new(PagePool::new(4096).unwrap()), PAGE_SIZE).unwrap();
    let prompt: Vec<u32> = (0..500).collect();
    let mut requests: Vec<RequestId> = Vec::new();
    for _ in 0..32 {
        let created = pages.create(0, &prompt).unwrap();
        pages.append(created.request, &prompt[created.cached_tokens as usize..]).unwrap();
        requests.push(created.request);
    }
    let (mut entries, mut seq_lens) = (vec![-1; 32 * MAX_PAGES], vec![0; 32]);
    let mut csr = Csr::default();
    let mut step = |token: u32| {
        for (&request, own) in requests.iter().zip(0..) {
            let appended = pages.append(request, &[token * 100 + own]).unwrap();
            for slot in pages.slots(request, appended.tokens).unwrap() {
                assert!(slot.slot < PAGE_SIZE);
            }
        }
        pages.write_page_table(&requests, MAX_PAGES, &mut entries, &mut seq_lens).unwrap();
        pages.write_csr(&requests, &mut csr).unwrap();
    };
    let warm = allocations(|| step(0));
    assert!(warm > 0, "the counter counts");
    (1..40).for_each(&mut step);
    // 100 steps, each of which begins new pages for some or all, makes others known, and writes both tables: a list of pages may
    // double once.
    let counted = allocations(|| (40..140).for_each(&mut step));
    assert!(counted <= 2 * 32, "{counted} allocations in 3200 appends");
    let in_page: u64 = (140..150).map(|token| allocations(|| step(token))).min().unwrap();
    assert_eq!(in_page, 0);
}
