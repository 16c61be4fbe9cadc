//! A live planner over a long time: random arrivals, growth, forks, truncations and departures, with a plan after each.
//!
//! The ordinary test takes 3000 steps. For more, say how many, and wait for the optimised build:
//!
//! ```sh
//! TILEWRIGHT_STEPS=10000000 cargo test --release -p tilewright-runtime --test live_long_run
//! ```
//!
//! After each step, every request's tokens are covered once, and what it leaves is merged once. Every 100 steps, the plan is compared with
//! one from nothing. The memory of the plan stays bounded.

mod live;

use live::{Engine, canonical, geometry, tile};
use tilewright_plan::{PlanOptions, Planner};

const REQUESTS: usize = 64;
/// Steps from one full comparison to the next.
const FULL: u64 = 100;

fn steps() -> u64 {
    match std::env::var("TILEWRIGHT_STEPS") {
        Ok(text) => text.parse().expect("TILEWRIGHT_STEPS is a number of steps, such as 10000000"),
        Err(_) => 3000,
    }
}

#[test]
fn a_long_segment_keeps_to_the_plans_from_nothing() {
    let steps = steps();
    let (geometry, options) = (geometry(4, 16), PlanOptions::default().with_max_concurrent_ctas(60));
    let mut engine = Engine::new(&geometry, options, REQUESTS, 1);
    let mut planner = Planner::new(options);
    let begin = std::time::Instant::now();
    let mut planning = std::time::Duration::ZERO;
    let mut longest = [0; 4];
    for step in 0..steps {
        engine.step();
        let before = std::time::Instant::now();
        engine.planner.plan(tile).unwrap();
        planning += before.elapsed();
        let plan = engine.planner.last();
        engine.check_cheaply(plan);
        let lens = [plan.q_tiles().len(), plan.segments().len(), plan.requests().len(), plan.pages().len()];
        longest.iter_mut().zip(lens).for_each(|(longest, len)| *longest = len.max(*longest));
        if step % FULL == 0 || step + 1 == steps {
            live::check_garbage(plan);
            assert_eq!(canonical(plan), canonical(engine.rebuild(&geometry, &mut planner)), "step {step}");
        }
    }
    println!(
        "{steps} steps in {:.2?}, {:.2?} of them planning; longest lists {longest:?}; {:?}",
        begin.elapsed(),
        planning,
        engine.happened
    );
    // The pages of all requests, were none shared, with room behind them, and as much garbage again.
    let pages: usize = 2 * REQUESTS * (engine.longest_row + engine.longest_row / 8 + 16);
    assert!(longest[3] <= pages, "{longest:?}, {pages}");
    let live::Happened { arrivals, forks, pages, tokens, copies, truncations, departures, renames } =
        engine.happened;
    // The segment is worth something only if it gets everywhere.
    let seldom = [arrivals, forks, pages, tokens, copies, truncations, departures, renames];
    assert!(seldom.into_iter().min().unwrap_or(0) >= steps / 200, "{:?}", engine.happened);
}
