//! What all emitted selectors have in common.

use std::collections::BTreeSet;
use tilewright_heuristics::BatchShape;
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

#[test]
fn where_all_sets_run_ranking_and_choice_agree() {
    for selector in SELECTORS {
        let (mut state, mut chosen, mut defaults) = (1u64, BTreeSet::new(), 0);
        for round in 0..20_000u32 {
            let values = std::array::from_fn(|i| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let (min, max) = (selector.domain.min.values()[i], selector.domain.max.values()[i]);
                let range = u64::from(max - min) + 1;
                min + ((state >> 33) % range) as u32
            });
            let head_dim = [64, 128, 256, 96, 192, 7][round as usize % 6];
            let batch = BatchShape { head_dim, dtype: round / 4 % 3, ..BatchShape::from_values(values) };
            match selector.select_among(&batch, u64::MAX) {
                Some(set) => {
                    assert_eq!(set, selector.select(&batch), "{batch:?}");
                    chosen.insert(set.to_string());
                }
                None => {
                    assert_eq!(selector.select(&batch).tiles(), [selector.safe_default], "{batch:?}");
                    defaults += 1;
                }
            }
            assert_eq!(selector.select_among(&batch, 0), None);
        }
        assert!(chosen.len() > 1 && defaults > 0, "{}: {chosen:?}, {defaults}", selector.device.name);
    }
}
