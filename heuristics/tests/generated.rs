//! What all emitted selectors have in common.

use tilewright_heuristics::generated::SELECTORS;

#[test]
fn every_tile_of_a_selector_is_listed() {
    for selector in SELECTORS {
        let tiles = selector.tiles();
        assert!(tiles.is_sorted() && tiles.contains(&selector.safe_default));
        assert!(selector.sets.iter().flat_map(|set| set.tiles()).all(|tile| tiles.contains(tile)));
    }
}

#[test]
fn devices_are_emitted_once() {
    for (i, selector) in SELECTORS.iter().enumerate() {
        assert!(
            SELECTORS[..i].iter().all(|other| other.device != selector.device),
            "{}",
            selector.device.name
        );
    }
}
