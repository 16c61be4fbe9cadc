//! Pages on a trace of conversations: what is wasted, and what the prefix cache finds.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use tilewright_pages::{PageError, PageManager, PagePool, RequestId};
use tilewright_scenarios::{BLOCK_TOKENS, Generator, Trace, TraceRequest};

/// Requests that run at once.
const BATCH: usize = 64;
/// Tokens that a request appends before its pages are looked at again. More than one a step, to be quick.
const STEP: u32 = 8;

/// The prompt as tokens: equal blocks, equal tokens. The last block of a prompt may be part of one, and is no less its own.
fn prompt(request: &TraceRequest) -> Vec<u32> {
    let block = |id: u64| (0..BLOCK_TOKENS).map(move |token| (id as u32).wrapping_mul(0x9e37_79b1) ^ token);
    request.hash_ids.iter().flat_map(|&id| block(id)).take(request.input_length as usize).collect()
}

struct Run {
    /// The largest and the mean waste over all looks.
    most: f64,
    mean: f64,
    /// Prompt tokens, and those of them that were cached.
    asked: u64,
    cached: u64,
    /// Tokens of all requests over tokens held, where it was largest.
    shared: f64,
    refusals: u64,
}

struct Running {
    id: RequestId,
    left: u32,
}

/// Continuous batching: as many requests as fit, in the order of arrival, until all are done.
fn run(trace: &Trace, total: u32, page_size: u32) -> Run {
    let pool = Arc::new(PagePool::new(total).unwrap());
    let mut pages = PageManager::new(Arc::clone(&pool), page_size).unwrap();
    let mut waiting: VecDeque<&TraceRequest> = trace.requests().iter().collect();
    let mut running: Vec<Running> = Vec::new();
    let mut run = Run { most: 0.0, mean: 0.0, asked: 0, cached: 0, shared: 0.0, refusals: 0 };
    let (mut looks, mut sum) = (0u32, 0.0);
    while !waiting.is_empty() || !running.is_empty() {
        while running.len() < BATCH
            && let Some(&request) = waiting.front()
        {
            let prompt = prompt(request);
            let created = pages.create(0, &prompt).unwrap();
            // The whole answer is reserved for, so that no request is preempted.
            let more = request.input_length - created.cached_tokens + request.output_length;
            let held = running.iter().map(|running| running.left.div_ceil(page_size)).sum::<u32>();
            if pages.available() < more.div_ceil(page_size) + held + BATCH as u32 {
                run.refusals += 1;
                pages.discard(created.request).unwrap();
                assert!(!running.is_empty(), "a request alone must fit");
                break;
            }
            pages.append(created.request, &prompt[created.cached_tokens as usize..]).unwrap();
            // Prompts are computed in the order of admission, so the next one may read this one's pages.
            pages.publish(created.request).unwrap();
            run.asked += u64::from(request.input_length);
            run.cached += u64::from(created.cached_tokens);
            running.push(Running { id: created.request, left: request.output_length });
            waiting.pop_front();
        }
        for Running { id, left } in &mut running {
            let count = STEP.min(*left);
            let begin = pages.tokens(*id).unwrap();
            let said: Vec<u32> = (begin..begin + count).map(|token| token ^ 0x5555_0000).collect();
            pages.append(*id, &said).unwrap();
            *left -= count;
        }
        if looks.is_multiple_of(16) {
            let waste = pages.waste();
            assert!(waste.slots <= u64::from(total) * u64::from(page_size));
            run.shared = run.shared.max(waste.unshared_tokens as f64 / waste.tokens.max(1) as f64);
            run.most = run.most.max(waste.fraction());
            sum += waste.fraction();
        }
        looks += 1;
        running.retain(|running| {
            if running.left == 0 {
                pages.free(running.id).unwrap();
            }
            running.left > 0
        });
    }
    run.mean = sum / f64::from(looks.div_ceil(16));
    assert_eq!(pages.available(), total, "all requests are done");
    run
}

fn conversations() -> Trace {
    Generator {
        requests: 400,
        requests_per_second: 3.0,
        turn_tokens: 4000,
        output_tokens: 300,
        follow_ups: 0.4,
    }
    .generate(7)
}

/// PagedFlex: less than 5 % of what the tokens need.
#[test]
fn less_than_a_twentieth_is_wasted_on_conversations() {
    let trace = conversations();
    for page_size in [16, 32, 64, 128] {
        let run = run(&trace, (1 << 20) / page_size, page_size);
        println!(
            "page_size {page_size:>3}: waste mean {:.2} %, most {:.2} %; {:.0} % of prompt tokens cached, sharing up to {:.2}x",
            1e2 * run.mean,
            1e2 * run.most,
            1e2 * run.cached as f64 / run.asked as f64,
            run.shared,
        );
        assert!(run.mean < 0.05, "page_size {page_size}: {}", run.mean);
        assert!(run.most < 0.05, "page_size {page_size}: {}", run.most);
        assert_eq!(run.refusals, 0, "the pool is large enough for {BATCH} requests");
    }
}

/// Prompt tokens that some earlier request had too, in whole blocks; one is always left to compute.
fn repeated_tokens(trace: &Trace, page_size: u32) -> u64 {
    let mut seen: HashSet<u64> = HashSet::new();
    let repeated = |request: &TraceRequest| {
        let blocks = request.hash_ids.iter().take_while(|id| seen.contains(*id)).count() as u32;
        seen.extend(&request.hash_ids);
        u64::from((blocks * BLOCK_TOKENS).min((request.input_length - 1) / page_size * page_size))
    };
    trace.requests().iter().map(repeated).sum()
}

/// A prefix is found again if its pages are still there: all of what a trace repeats in a large pool, less in a small one.
#[test]
fn the_cache_finds_what_the_trace_repeats() {
    let trace = conversations();
    let (large, small) = (run(&trace, 1 << 18, 16), run(&trace, 1 << 14, 16));
    let part = |run: &Run| 1e2 * run.cached as f64 / run.asked as f64;
    println!("{:.0} % of prompt tokens cached, in a small pool {:.0} %", part(&large), part(&small));
    assert_eq!(large.cached, repeated_tokens(&trace, 16));
    assert!(part(&small) < part(&large) && small.cached > 0 && small.refusals > 0);
}

#[test]
fn a_request_larger_than_the_pool_is_refused_and_others_go_on() {
    let mut pages = PageManager::new(Arc::new(PagePool::new(8).unwrap()), 16).unwrap();
    let large = pages.create(0, &[7; 200]).unwrap().request;
    assert!(matches!(
        pages.append(large, &[7; 200]),
        Err(PageError::OutOfPages { wanted: 13, available: 8, total: 8 })
    ));
    let small = pages.create(0, &[7; 100]).unwrap().request;
    pages.append(small, &[7; 100]).unwrap();
    assert_eq!(pages.tokens(small), Ok(100));
}
