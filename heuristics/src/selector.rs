//! A selector: the decision tree of one device, as emitted.

use crate::decision_tree::DecisionTree;
use crate::{BatchShape, Device, Dtype, Fp8, Prices, Tile, TileSet, TreePath, Unfollowed};

/// The box of batch shapes that were measured. Beyond it, the tree answers as at its nearest face.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Smallest measured value of each feature.
    pub min: BatchShape,
    /// Largest measured value of each feature.
    pub max: BatchShape,
}

impl Domain {
    /// The features of `shape` that are outside of what was measured.
    pub fn outside(&self, shape: &BatchShape) -> impl Iterator<Item = &'static str> + use<> {
        let (min, max, values) = (self.min.values(), self.max.values(), shape.values());
        let is_outside = move |&i: &usize| !(min[i]..=max[i]).contains(&values[i]);
        (0..BatchShape::COUNT).filter(is_outside).map(|i| BatchShape::NAMES[i])
    }

    /// What a tree of this domain is asked about a batch. Where no FP8 was measured, K and V in FP8 are taken for elements of the query's type.
    /// Where e4m3 was and e5m2 was not, e5m2 is taken for e4m3: as many bytes, and one instruction less to widen them.
    #[inline]
    pub fn asked(&self, shape: &BatchShape) -> BatchShape {
        match Dtype::from_code(shape.dtype) {
            Some(dtype) if shape.dtype > self.max.dtype => {
                let e4m3 = dtype.with_kv(Fp8::E4m3).code();
                let is_near = dtype.fp8() == Some(Fp8::E5m2) && e4m3 <= self.max.dtype;
                let dtype = if is_near { e4m3 } else { dtype.query().code() };
                BatchShape { dtype, ..*shape }
            }
            _ => *shape,
        }
    }
}

/// The tile selector of one device.
#[derive(Clone, Copy, Debug)]
pub struct Selector {
    /// The device that it was measured on.
    pub device: Device<'static>,
    /// The batches that it was measured for.
    pub domain: Domain,
    /// Every set that the tree may choose.
    pub sets: &'static [TileSet<'static>],
    /// A tile that can run every supported class of kernels, but those of a GPU whose warps split heads (head dimension 512): the choice for classes that were
    /// not measured.
    pub safe_default: Tile,
    /// It alone.
    pub safe_set: TileSet<'static>,
    /// What packs and splits are decided by on the device.
    pub prices: Prices,
    /// The decision tree.
    pub choices: Choices,
}

/// A selector's decision tree.
#[derive(Clone, Copy, Debug)]
pub enum Choices {
    /// Emitted code.
    Code {
        /// The set for a batch.
        choose: fn(&BatchShape) -> TileSet<'static>,
        /// The same, which notes the questions on the way.
        follow: fn(&BatchShape, &mut TreePath) -> TileSet<'static>,
        /// The ranking that the tree ends in, and the sets whose tiles can all run the batch's kernels on the device, one bit each.
        ranked: fn(&BatchShape) -> (&'static [u8], u64),
    },
    /// A tree that was loaded.
    Data(DecisionTree),
}

impl Selector {
    /// The tiles for a batch; see [`Domain::asked`].
    #[inline]
    pub fn select(&self, batch: &BatchShape) -> TileSet<'static> {
        let asked = self.domain.asked(batch);
        match &self.choices {
            Choices::Code { choose, .. } => choose(&asked),
            Choices::Data(tree) => self.first(tree.ranked(&asked, &mut Unfollowed), tree.feasible(&asked)),
        }
    }

    /// Whether it was verified that some set runs kernels of a class; of others it chooses the safe default.
    pub fn knows(&self, head_dim: u32, dtype: Dtype) -> bool {
        let batch = BatchShape { head_dim, dtype: dtype.code(), ..self.domain.min };
        let asked = self.domain.asked(&batch);
        let feasible = match &self.choices {
            Choices::Code { ranked, .. } => ranked(&asked).1,
            Choices::Data(tree) => tree.feasible(&asked),
        };
        feasible != 0
    }

    /// As [`Selector::select`] on another device, where only the sets whose bits are set in `runnable` can run: the ranking's first of them.
    #[inline]
    pub fn select_among(&self, batch: &BatchShape, runnable: u64) -> Option<TileSet<'static>> {
        let asked = self.domain.asked(batch);
        let (ranked, feasible) = match &self.choices {
            Choices::Code { ranked, .. } => ranked(&asked),
            Choices::Data(tree) => (tree.ranked(&asked, &mut Unfollowed), tree.feasible(&asked)),
        };
        first_feasible(ranked, feasible & runnable).map(|choice| self.sets[usize::from(choice)])
    }

    /// The tiles for a batch, as [`Selector::select`], and the path through the tree.
    pub fn explain(&self, batch: &BatchShape) -> (TileSet<'static>, TreePath) {
        let mut path = TreePath::default();
        let asked = self.domain.asked(batch);
        let set = match &self.choices {
            Choices::Code { follow, .. } => follow(&asked, &mut path),
            Choices::Data(tree) => self.first(tree.ranked(&asked, &mut path), tree.feasible(&asked)),
        };
        (set, path)
    }

    /// The first feasible set of a ranking.
    fn first(&self, ranked: &[u8], feasible: u64) -> TileSet<'static> {
        first_feasible(ranked, feasible).map_or(self.safe_set, |choice| self.sets[usize::from(choice)])
    }

    /// Every tile that packs may get, each once, in order.
    pub fn tiles(&self) -> Vec<Tile> {
        let mut tiles: Vec<Tile> = self.sets.iter().flat_map(|set| set.tiles()).copied().collect();
        tiles.push(self.safe_default);
        tiles.sort_unstable();
        tiles.dedup();
        tiles
    }
}

/// The first of `ranked` (indices into the sets of a selector) whose bit is set in `feasible`.
///
/// Emitted leaves call this where their best set cannot run every batch that reaches them.
#[inline]
pub const fn first_feasible(ranked: &[u8], feasible: u64) -> Option<u8> {
    let mut i = 0;
    while i < ranked.len() {
        if feasible & (1 << ranked[i]) != 0 {
            return Some(ranked[i]);
        }
        i += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Backend;

    const TILES: [Tile; 2] = [Tile::of("m16n16w1s1"), Tile::of("m64n16w4s1")];
    static SETS: [TileSet<'static>; 2] = [TileSet::new(&[TILES[0]]), TileSet::new(&TILES)];

    /// Chooses a set by the element type that it is asked for, among those up to `largest`.
    fn selector(largest: Dtype) -> Selector {
        let max = BatchShape { dtype: largest.code(), ..BatchShape::from_values([100; BatchShape::COUNT]) };
        Selector {
            device: Device { backend: Backend::Cuda, name: "any", capability: "sm_90a", units: 1 },
            domain: Domain { min: BatchShape::from_values([0; BatchShape::COUNT]), max },
            sets: &SETS,
            safe_default: TILES[0],
            prices: Prices::H200,
            safe_set: SETS[0],
            choices: Choices::Code {
                choose: |shape| SETS[usize::from(shape.dtype != 0)],
                follow: |shape, _| SETS[usize::from(shape.dtype != 0)],
                ranked: |shape| if shape.dtype != 0 { (&[1, 0], 0b11) } else { (&[0], 0b01) },
            },
        }
    }

    #[test]
    fn unmeasured_fp8_is_chosen_for_as_its_query_type() {
        let asked = |largest: Dtype, dtype: Dtype| {
            let shape = BatchShape { dtype: dtype.code(), ..BatchShape::from_values([1; BatchShape::COUNT]) };
            selector(largest).select(&shape).tiles().len() - 1
        };
        assert_eq!(asked(Dtype::Bf16, Dtype::Fp8F16), 0);
        assert_eq!(asked(Dtype::Bf16, Dtype::Fp8Bf16), 1);
        assert_eq!(asked(Dtype::Bf16, Dtype::Bf16), 1);
        assert_eq!(asked(Dtype::Fp8Bf16, Dtype::Fp8F16), 1);
    }

    #[test]
    fn unmeasured_e5m2_is_chosen_for_as_e4m3_where_that_was_measured() {
        let asked = |largest: Dtype, dtype: Dtype| {
            let shape = BatchShape { dtype: dtype.code(), ..BatchShape::from_values([1; BatchShape::COUNT]) };
            selector(largest).domain.asked(&shape).dtype()
        };
        for (largest, dtype, as_if) in [
            (Dtype::Bf16, Dtype::E5m2F16, Dtype::F16),
            (Dtype::F32, Dtype::E5m2F32, Dtype::F32),
            (Dtype::Fp8F16, Dtype::E5m2F16, Dtype::Fp8F16),
            (Dtype::Fp8F16, Dtype::E5m2Bf16, Dtype::Bf16),
            (Dtype::Fp8Bf16, Dtype::E5m2Bf16, Dtype::Fp8Bf16),
            (Dtype::Fp8F32, Dtype::E5m2F16, Dtype::Fp8F16),
            (Dtype::Fp8Bf16, Dtype::F32, Dtype::F32),
            (Dtype::E5m2Bf16, Dtype::E5m2F16, Dtype::E5m2F16),
            (Dtype::E5m2Bf16, Dtype::E5m2F32, Dtype::Fp8F32),
        ] {
            assert_eq!(asked(largest, dtype), Some(as_if), "{dtype}, measured up to {largest}");
        }
    }

    #[test]
    fn another_device_gets_the_first_of_the_ranking_that_it_runs() {
        let shape =
            BatchShape { dtype: Dtype::Bf16.code(), ..BatchShape::from_values([1; BatchShape::COUNT]) };
        let chosen = |runnable| selector(Dtype::Bf16).select_among(&shape, runnable);
        assert_eq!(
            [u64::MAX, 0b01, 0b10, 0].map(chosen),
            [Some(SETS[1]), Some(SETS[0]), Some(SETS[1]), None]
        );
    }

    #[test]
    fn what_was_not_measured_is_named() {
        let domain = selector(Dtype::Bf16).domain;
        let shape = BatchShape { requests: 101, trees: 3, ..BatchShape::from_values([1; BatchShape::COUNT]) };
        assert_eq!(domain.outside(&shape).collect::<Vec<_>>(), ["requests"]);
    }

    #[test]
    fn a_selectors_tiles_are_listed_once() {
        assert_eq!(selector(Dtype::F16).tiles(), TILES);
    }

    #[test]
    fn the_first_set_that_can_run_is_taken() {
        assert_eq!(first_feasible(&[3, 1], 0b0010), Some(1));
        assert_eq!(first_feasible(&[3, 1], 0b1010), Some(3));
        assert_eq!(first_feasible(&[3, 1], 0b0101), None);
    }
}
