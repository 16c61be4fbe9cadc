//! What a processor is measured to take.

use tilewright_cpu::CpuBackend;
use tilewright_cpu::probe::prices;
use tilewright_heuristics::Prices;

#[test]
fn prices_are_those_of_a_computer() {
    let prices = prices(&mut CpuBackend::new(1), 8 << 20);
    let rate = |price: u64| 1e18 / price as f64;
    for (name, price) in Prices::NAMES.into_iter().zip(prices.values()).take(4) {
        assert!((1e8..1e13).contains(&rate(price)), "{name}: {:e} a second", rate(price));
    }
    // Busy neighbours take of the caches, too.
    assert!(prices.l2_byte <= 2 * prices.hbm_byte, "{prices:?}");
    assert!(prices.partial_byte > prices.l2_byte / 2, "{prices:?}: a partial is written, too");
    // Between ten nanoseconds and a tenth of a millisecond.
    assert!((10_000_000_000..100_000_000_000_000).contains(&prices.cta), "{prices:?}");
    // At most ten milliseconds, on a busy machine.
    assert!((10_000_000_000..10_000_000_000_000_000).contains(&prices.merge), "{prices:?}");
}
