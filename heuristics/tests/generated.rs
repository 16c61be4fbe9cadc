//! Every emitted selector, asked a million times: it never names a set that it does not vouch for.

use tilewright_heuristics::{BatchShape, Domain, generated::SELECTORS};

const QUESTIONS: usize = 1_000_000;

/// Random shapes: half of them from the domain's corners and inside, half from anywhere.
struct Shapes {
    state: u64,
    domain: Domain,
}

impl Shapes {
    fn number(&mut self) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.state >> 32
    }

    fn shape(&mut self) -> BatchShape {
        let inside = self.number().is_multiple_of(2);
        let (min, max) = (self.domain.min.values(), self.domain.max.values());
        let mut values = [0; BatchShape::COUNT];
        for (i, value) in values.iter_mut().enumerate() {
            let range = u64::from(max[i] - min[i]) + 1;
            *value = match (inside, self.number() % 4) {
                (true, 0) => min[i],
                (true, 1) => max[i],
                (true, _) => min[i] + (self.number() % range) as u32,
                (false, 0) => u32::MAX,
                (false, 1) => 0,
                (false, _) => self.number() as u32 >> (self.number() % 32),
            };
        }
        BatchShape::from_values(values)
    }
}

#[test]
fn selectors_only_name_sets_they_vouch_for() {
    for selector in SELECTORS {
        let mut shapes = Shapes { state: 1, domain: selector.domain };
        let (mut fitted, mut defaults) = (0, 0);
        for _ in 0..QUESTIONS {
            let shape = shapes.shape();
            let set = selector.select(&shape);
            if selector.sets.contains(&set) {
                fitted += 1;
            } else {
                defaults += 1;
                assert_eq!(set.tiles(), [selector.safe_default], "{shape:?}");
            }
        }
        // Random classes of kernels are mostly none that was measured.
        assert!(fitted > 0 && fitted + defaults == QUESTIONS, "{fitted} of the tree, {defaults} defaults");
    }
}

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
