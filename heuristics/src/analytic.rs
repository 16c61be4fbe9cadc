//! PAT's analytic tile rules (PAT, section 5.2): the last fallback, and a baseline that a fitted selector must beat.

use crate::{PackShape, Tile};

/// The tile that PAT's rules choose among `feasible`; `None` if that is empty.
///
/// m is rounded up: the smallest m that holds all rows, else the largest. n follows the KV length: the largest n whose last
/// step wastes at most half of what it computes; a KV shorter than the smallest n takes that. Parameters that the rules do
/// not speak about follow the order of `Tile`: the first one with that m and n. PAT's packs are one run each: others are taken for such.
pub fn pat(feasible: impl Iterator<Item = Tile> + Clone, shape: &PackShape) -> Option<Tile> {
    let shape = &shape.as_one_run();
    let m = feasible
        .clone()
        .map(|tile| tile.m)
        .filter(|&m| u32::from(m) >= shape.rows)
        .min()
        .or_else(|| feasible.clone().map(|tile| tile.m).max())?;
    let with_m = || feasible.clone().filter(move |tile| tile.m == m);
    let n = with_m()
        .map(|tile| tile.n)
        .filter(|&n| last_step_waste(shape.kv_len, u32::from(n)) * 2 <= u32::from(n))
        .max()
        .or_else(|| with_m().map(|tile| tile.n).min())?;
    with_m().filter(|tile| tile.n == n).min()
}

/// Tokens of the last step over `kv_len` tokens that do not exist.
const fn last_step_waste(kv_len: u32, n: u32) -> u32 {
    kv_len.div_ceil(n) * n - kv_len
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dtype, Geometry};

    fn choose(rows: u32, kv_len: u32) -> Tile {
        let geometry = Geometry { q_heads: 1, kv_heads: 1, head_dim: 128, page_size: 1, dtype: Dtype::F16 };
        let mut tiles = Vec::new();
        for m in [16, 32, 64] {
            for n in [32, 64, 128] {
                tiles.push(Tile::new(m, n, 4, 2));
            }
        }
        pat(tiles.into_iter(), &PackShape::of_pack(&geometry, rows, kv_len, 1)).expect("there are tiles")
    }

    #[test]
    fn m_is_rounded_up_and_capped() {
        assert_eq!(
            [1, 16, 20, 32, 33, 64, 500].map(|rows| choose(rows, 4096).m),
            [16, 16, 32, 32, 64, 64, 64]
        );
    }

    #[test]
    fn long_kv_takes_the_largest_n_and_short_kv_fills_its_steps() {
        assert_eq!(choose(16, 4096).n, 128);
        assert_eq!(choose(16, 64).n, 128, "half of a step is still allowed");
        assert_eq!(choose(16, 48).n, 64);
        assert_eq!(choose(16, 4).n, 32);
    }

    #[test]
    fn no_tiles_means_no_choice() {
        let geometry = Geometry { q_heads: 1, kv_heads: 1, head_dim: 128, page_size: 1, dtype: Dtype::F16 };
        assert_eq!(pat(std::iter::empty(), &PackShape::of_pack(&geometry, 1, 1, 1)), None);
    }
}
