//! The tiles that the packs of one batch get.

use crate::{PackShape, Tile};
use core::fmt;
use core::str::FromStr;

/// Tiles of one launch, ascending by rows: a pack gets the one with the fewest rows that holds its own.
///
/// Tiles of as many rows ascend by tokens. A pack gets the first of them: they are of batch-invariant plans ([`crate::chunk::families`]), which weigh one tile for all packs
/// against another.
///
/// Written as its tiles with `+` between them, e.g. `m16n64w4s2+m64n64w4s2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TileSet<'a>(&'a [Tile]);

impl<'a> TileSet<'a> {
    /// The most tiles of a set: each costs the others' CTAs instructions to skip, and a compilation seconds.
    pub const MOST: usize = 4;

    /// A set of tiles.
    ///
    /// # Panics
    /// If there is no tile, if there are more than [`TileSet::MOST`], or if they do not ascend: in a `const`, that is an error of the compiler. [`TileSetBuf`] checks what was read.
    pub const fn new(tiles: &'a [Tile]) -> Self {
        assert!(is_set(tiles), "one to four tiles that ascend by rows, then by tokens");
        Self(tiles)
    }

    /// The tiles, ascending by rows.
    pub const fn tiles(&self) -> &'a [Tile] {
        self.0
    }

    /// The tile for a pack.
    #[inline]
    pub const fn tile(&self, pack: &PackShape) -> Tile {
        let mut i = 0;
        while i + 1 < self.0.len() {
            if self.0[i].m as u32 >= pack.rows {
                return self.0[i];
            }
            i += 1;
        }
        self.0[i]
    }

    /// The tiles, the last one repeated: by value, so that two decisions can be compared.
    pub const fn repeated(&self) -> [Tile; TileSet::MOST] {
        let last = self.0.len() - 1;
        let mut tiles = [self.0[last]; TileSet::MOST];
        let mut i = 0;
        while i < last {
            tiles[i] = self.0[i];
            i += 1;
        }
        tiles
    }
}

const fn is_set(tiles: &[Tile]) -> bool {
    if tiles.is_empty() || tiles.len() > TileSet::MOST {
        return false;
    }
    let mut i = 1;
    while i < tiles.len() {
        let (before, tile) = (tiles[i - 1], tiles[i]);
        if before.m > tile.m || (before.m == tile.m && before.n >= tile.n) {
            return false;
        }
        i += 1;
    }
    true
}

impl fmt::Display for TileSet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.iter().map(Tile::to_string).collect::<Vec<_>>().join("+"))
    }
}

/// A set that owns its tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TileSetBuf {
    /// The last one is repeated.
    tiles: [Tile; TileSet::MOST],
    len: u8,
}

impl TileSetBuf {
    /// The set of these tiles in any order; `None` if they are none, more than [`TileSet::MOST`], or two have the same rows and tokens.
    pub fn of(tiles: &[Tile]) -> Option<Self> {
        let mut tiles = tiles.to_vec();
        tiles.sort_unstable();
        is_set(&tiles).then(|| Self { tiles: TileSet(&tiles).repeated(), len: tiles.len() as u8 })
    }

    /// The set of one tile.
    pub const fn one(tile: Tile) -> Self {
        Self { tiles: [tile; TileSet::MOST], len: 1 }
    }

    /// The same, borrowed.
    pub fn as_set(&self) -> TileSet<'_> {
        TileSet(self.tiles())
    }

    /// The tiles, ascending by rows.
    pub fn tiles(&self) -> &[Tile] {
        &self.tiles[..usize::from(self.len)]
    }

    /// The only tile, if there is but one.
    pub const fn single(&self) -> Option<Tile> {
        if self.len == 1 { Some(self.tiles[0]) } else { None }
    }
}

impl From<TileSet<'_>> for TileSetBuf {
    fn from(set: TileSet<'_>) -> Self {
        Self { tiles: set.repeated(), len: set.tiles().len() as u8 }
    }
}

impl fmt::Display for TileSetBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_set().fmt(f)
    }
}

/// A text that is no set of tiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseTileSetError(String);

impl fmt::Display for ParseTileSetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not a set of tiles; write one to {} of them, ascending by rows, like `m16n64w4s2+m64n64w4s2`",
            self.0,
            TileSet::MOST
        )
    }
}

impl std::error::Error for ParseTileSetError {}

impl FromStr for TileSetBuf {
    type Err = ParseTileSetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let tiles: Option<Vec<Tile>> = text.split('+').map(|tile| tile.parse().ok()).collect();
        // One text a set: its tiles ascend.
        tiles
            .and_then(|tiles| Self::of(&tiles))
            .filter(|set| set.to_string() == text)
            .ok_or_else(|| ParseTileSetError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Tile = Tile::of("m16n64w4s2");
    const LARGE: Tile = Tile::of("m64n64w4s2");

    fn pack(rows: u32) -> PackShape {
        PackShape { rows, ..PackShape::from_values([1; PackShape::COUNT]) }
    }

    #[test]
    fn a_pack_gets_the_lowest_tile_that_holds_its_rows() {
        let set = TileSet::new(&[SMALL, LARGE]);
        assert_eq!([1, 16, 17, 64, 1000].map(|rows| set.tile(&pack(rows)).m), [16, 16, 64, 64, 64]);
        assert_eq!(TileSet::new(&[LARGE]).tile(&pack(1)), LARGE);
        assert_eq!(set.repeated(), [SMALL, LARGE, LARGE, LARGE]);
        assert_eq!(TileSet::new(&[LARGE]).repeated(), [LARGE; 4]);
    }

    #[test]
    fn a_set_survives_the_round_trip_through_text() {
        for tiles in [&[SMALL][..], &[SMALL, LARGE]] {
            let set = TileSetBuf::of(tiles).unwrap();
            assert_eq!(set.to_string().parse(), Ok(set));
        }
        assert_eq!(TileSetBuf::of(&[LARGE, SMALL]).unwrap().to_string(), "m16n64w4s2+m64n64w4s2");
        for text in ["", "+", "m16n64w4s2+", "m64n64w4s2+m16n64w4s2", "m16n64w4s2+m16n32w4s2", "m016n64w4s2"]
        {
            assert!(text.parse::<TileSetBuf>().is_err(), "{text}");
        }
    }

    #[test]
    fn tiles_that_differ_in_neither_rows_nor_tokens_are_no_set() {
        assert_eq!(TileSetBuf::of(&[]), None);
        assert_eq!(TileSetBuf::of(&[SMALL, Tile { stages: 1, ..SMALL }]), None);
        let of_rows = TileSetBuf::of(&[SMALL, Tile { n: 32, ..SMALL }]).unwrap();
        assert_eq!(of_rows.to_string(), "m16n32w4s2+m16n64w4s2");
        assert_eq!(of_rows.as_set().tile(&pack(1)).n, 32, "a pack gets the first");
        assert_eq!(TileSetBuf::of(&[16, 32, 48, 64, 80].map(|m| Tile { m, ..SMALL })), None);
        assert_eq!(TileSetBuf::one(LARGE).single(), Some(LARGE));
    }
}
