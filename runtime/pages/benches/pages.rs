//! Operations a second of the page pool and of what is built on it, over 1 to twice as many threads as the machine has.
//!
//! What is printed is the total over all threads of one pool, which do nothing else: the worst case, for real threads also do
//! something else in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tilewright_pages::{Csr, PageManager, PagePool, Sequence};

const PAGES: u32 = 1 << 16;
const PAGE_SIZE: u32 = 16;
const TIME: Duration = Duration::from_millis(400);
/// Work between two looks at the clock.
const ROUND: u64 = 256;

fn main() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "{cores} cores, {PAGES} pages of {PAGE_SIZE} tokens; millions of operations a second over all threads"
    );
    println!(
        "{:<52} {}",
        "threads",
        (1..=2 * cores).map(|threads| format!("{threads:>8}")).collect::<String>()
    );
    row(cores, "pool: reserve 1 page, release it (2 operations)", |pool| {
        let mut pages = Vec::new();
        move || {
            pages.clear();
            pool.reserve(1, &mut pages).expect("there are pages for all threads");
            pool.release(pages[0]).expect("the page is owned");
            2
        }
    });
    row(cores, "pool: reserve 16 pages at once, release them (2)", |pool| {
        let mut pages = Vec::new();
        move || {
            pages.clear();
            pool.reserve(16, &mut pages).expect("there are pages for all threads");
            pool.release_all(&pages).expect("the pages are owned");
            2
        }
    });
    row(cores, "pool: share and release an own page (2)", |pool| {
        let mut pages = Vec::new();
        pool.reserve(1, &mut pages).expect("there are pages for all threads");
        move || {
            pool.share(pages[0]).expect("the page is owned");
            pool.release(pages[0]).expect("the page is owned");
            2
        }
    });
    row(cores, "sequence: append 1 token, free at 256 tokens (1)", |pool| {
        let mut sequence = Sequence::new(PAGE_SIZE).expect("the page size is not 0");
        move || {
            if sequence.tokens() == 256 {
                sequence.free(pool).expect("the pages are owned");
            }
            sequence.append(pool, 1).expect("there are pages for all threads");
            1
        }
    });
    row(cores, "sequence: fork 8 pages, copy on write, free (3)", |pool| {
        let mut sequence = Sequence::new(PAGE_SIZE).expect("the page size is not 0");
        sequence.append(pool, 8 * PAGE_SIZE - 1).expect("there are pages for all threads");
        move || {
            let mut fork = sequence.fork(pool).expect("the pages are owned");
            fork.append(pool, 1).expect("there are pages for all threads");
            fork.free(pool).expect("the pages are owned");
            3
        }
    });
    manager();
}

/// Measures what `make` makes for each thread, which returns how many operations a call was.
fn row<W: FnMut() -> u64>(cores: usize, name: &str, make: impl Fn(&'static PagePool) -> W + Sync) {
    let mut line = format!("{name:<52} ");
    for threads in 1..=2 * cores {
        // Leaked, so that what is made of it can be kept by a closure: a few MB.
        let pool: &'static PagePool = Box::leak(Box::new(PagePool::new(PAGES).expect("few pages")));
        let (go, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let (operations, elapsed) = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(|| {
                        let mut work = make(pool);
                        while !go.load(Ordering::Acquire) {
                            std::thread::yield_now();
                        }
                        let mut operations = 0;
                        while !stop.load(Ordering::Relaxed) {
                            operations += (0..ROUND).map(|_| work()).sum::<u64>();
                        }
                        operations
                    })
                })
                .collect();
            let begin = Instant::now();
            go.store(true, Ordering::Release);
            std::thread::sleep(TIME);
            stop.store(true, Ordering::Relaxed);
            let operations: u64 = workers.into_iter().map(|worker| worker.join().expect("no panic")).sum();
            (operations, begin.elapsed())
        });
        line += &format!("{:>8.1}", operations as f64 / elapsed.as_secs_f64() / 1e6);
    }
    println!("{line}");
}

/// What an engine's step costs, on one thread.
fn manager() {
    const BATCH: u32 = 256;
    const TOKENS: usize = 4096;
    println!("\nmanager, one thread, {BATCH} requests of {TOKENS} tokens that share the first half");
    let mut pages = PageManager::new(Arc::new(PagePool::new(PAGES).expect("few pages")), PAGE_SIZE)
        .expect("sizes make sense");
    let prompt = |request: u32| -> Vec<u32> {
        (0..TOKENS as u32)
            .map(|token| if token < TOKENS as u32 / 2 { token } else { token + (request << 16) })
            .collect()
    };
    let prompts: Vec<Vec<u32>> = (0..BATCH).map(prompt).collect();
    let mut cached = 0;
    let begin = Instant::now();
    let requests: Vec<_> = prompts
        .iter()
        .map(|prompt| {
            let created = pages.create(0, prompt).expect("few owners");
            cached += u64::from(created.cached_tokens);
            pages
                .append(created.request, &prompt[created.cached_tokens as usize..])
                .expect("there are pages");
            pages.publish(created.request).expect("the request is known");
            created.request
        })
        .collect();
    let tokens = f64::from(BATCH) * TOKENS as f64;
    let per_token = begin.elapsed().as_secs_f64() / tokens * 1e9;
    println!(
        "admit, all tokens hashed or found: {per_token:.1} ns a token, {:.0} % found",
        1e2 * cached as f64 / tokens
    );
    let steps = 200;
    let mut append = Duration::ZERO;
    let (mut table, mut rows) = (Duration::ZERO, Duration::ZERO);
    let max_pages = TOKENS / PAGE_SIZE as usize + steps;
    let (mut entries, mut seq_lens) = (vec![-1; BATCH as usize * max_pages], vec![0; BATCH as usize]);
    let mut csr = Csr::default();
    for step in 0..steps as u32 {
        let begin = Instant::now();
        for (&request, own) in requests.iter().zip(0..) {
            pages.append(request, &[step * BATCH + own]).expect("there are pages");
        }
        append += begin.elapsed();
        let begin = Instant::now();
        pages.write_page_table(&requests, max_pages, &mut entries, &mut seq_lens).expect("sizes fit");
        table += begin.elapsed();
        let begin = Instant::now();
        pages.write_csr(&requests, &mut csr).expect("the requests are known");
        rows += begin.elapsed();
    }
    let per = |time: Duration, count: u32| time.as_secs_f64() * 1e9 / f64::from(count) / steps as f64;
    println!("append a token: {:.0} ns", per(append, BATCH));
    println!(
        "write the page table: {:.1} µs a batch; compressed rows: {:.1} µs",
        per(table, 1) / 1e3,
        per(rows, 1) / 1e3
    );
    println!("waste: {:.2} %", 1e2 * pages.waste().fraction());
}
