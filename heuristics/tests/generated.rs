//! Every emitted selector, asked a million times: it never names a tile that it does not vouch for.

use tilewright_heuristics::{Domain, PackShape, generated::SELECTORS};

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

    fn shape(&mut self) -> PackShape {
        let inside = self.number().is_multiple_of(2);
        let (min, max) = (self.domain.min.values(), self.domain.max.values());
        let mut values = [0; PackShape::COUNT];
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
        PackShape::from_values(values)
    }
}

#[test]
fn selectors_only_name_tiles_they_vouch_for() {
    for selector in SELECTORS {
        let mut shapes = Shapes { state: 1, domain: selector.domain };
        let (mut inside, mut outside) = (0, 0);
        for _ in 0..QUESTIONS {
            let shape = shapes.shape();
            let tile = selector.select(&shape);
            if selector.domain.contains(&selector.domain.asked(&shape)) {
                inside += 1;
                assert!(
                    selector.portfolio.contains(&tile) || tile == selector.safe_default,
                    "{tile} for {shape:?}"
                );
            } else {
                outside += 1;
                assert_eq!(tile, selector.safe_default, "outside of the domain: {shape:?}");
            }
        }
        assert!(inside > QUESTIONS / 4 && outside > QUESTIONS / 4, "{inside} inside, {outside} outside");
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
