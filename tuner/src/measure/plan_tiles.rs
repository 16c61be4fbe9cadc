//! How the packs of a plan get their tiles, as a bench is told: plain data, which a worker can be sent.

use serde::{Deserialize, Serialize};
use tilewright_heuristics::{BatchShape, PackShape, Tile, TileSet, TileSetBuf, analytic};
use tilewright_plan::ChooseTiles;

/// How the packs of a plan get their tiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanTiles {
    /// Of one set, by their rows.
    Set(TileSetBuf),
    /// By PAT's analytic rules, pack by pack, among these; where the rules find none, the last.
    PatRules(Vec<Tile>),
}

impl PlanTiles {
    /// Whether a plan may have this tile.
    pub fn may_have(&self, tile: &Tile) -> bool {
        match self {
            Self::Set(set) => set.tiles().contains(tile),
            Self::PatRules(tiles) => tiles.contains(tile),
        }
    }
}

impl From<Tile> for PlanTiles {
    fn from(tile: Tile) -> Self {
        Self::Set(TileSetBuf::one(tile))
    }
}

impl ChooseTiles for &PlanTiles {
    fn batch(&mut self, _: &BatchShape) -> Option<[Tile; TileSet::MOST]> {
        match self {
            PlanTiles::Set(set) => Some(set.as_set().repeated()),
            PlanTiles::PatRules(_) => None,
        }
    }

    fn pack(&mut self, pack: &PackShape) -> Tile {
        match self {
            PlanTiles::Set(set) => set.as_set().tile(pack),
            PlanTiles::PatRules(tiles) => {
                let any = tiles.last().copied().unwrap_or(Tile::of("m16n16w1s1"));
                analytic::pat(tiles.iter().copied(), pack).unwrap_or(any)
            }
        }
    }

    fn decides_batches(&self) -> bool {
        false
    }
}

/// As it is sent: the tiles by name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum PlanTilesRecord {
    Set(String),
    PatRules(Vec<String>),
}

impl From<&PlanTiles> for PlanTilesRecord {
    fn from(tiles: &PlanTiles) -> Self {
        match tiles {
            PlanTiles::Set(set) => Self::Set(set.to_string()),
            PlanTiles::PatRules(tiles) => Self::PatRules(tiles.iter().map(Tile::to_string).collect()),
        }
    }
}

impl PlanTilesRecord {
    /// What was sent; the name that is none otherwise.
    pub(super) fn read(self) -> Result<PlanTiles, String> {
        match self {
            Self::Set(text) => text.parse().map(PlanTiles::Set).map_err(|_| text),
            Self::PatRules(names) => {
                let tile = |name: String| name.parse::<Tile>().map_err(|_| name);
                names.into_iter().map(tile).collect::<Result<_, _>>().map(PlanTiles::PatRules)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Tile = Tile::of("m16n64w4s2");
    const LARGE: Tile = Tile::of("m64n64w4s2");

    #[test]
    fn what_is_sent_comes_back() {
        let set = TileSetBuf::of(&[LARGE, SMALL]).unwrap();
        for tiles in [PlanTiles::Set(set), LARGE.into(), PlanTiles::PatRules(vec![SMALL, LARGE])] {
            let text = serde_json::to_string(&PlanTilesRecord::from(&tiles)).unwrap();
            let back: PlanTilesRecord = serde_json::from_str(&text).unwrap();
            assert_eq!(back.read(), Ok(tiles));
        }
        assert_eq!(PlanTilesRecord::Set("m16".to_owned()).read(), Err("m16".to_owned()));
    }

    #[test]
    fn rules_are_asked_pack_by_pack_and_a_set_by_rows() {
        let pack = |rows| PackShape { rows, kv_len: 64, ..PackShape::from_values([1; PackShape::COUNT]) };
        let set = PlanTiles::Set(TileSetBuf::of(&[SMALL, LARGE]).unwrap());
        let rules = PlanTiles::PatRules(vec![SMALL, LARGE]);
        for tiles in [&set, &rules] {
            let mut choose = tiles;
            assert_eq!([8, 40].map(|rows| choose.pack(&pack(rows))), [SMALL, LARGE]);
        }
        assert_eq!((&set).batch(&BatchShape::UNKNOWN), Some([SMALL, LARGE, LARGE, LARGE]));
        assert_eq!((&rules).batch(&BatchShape::UNKNOWN), None);
    }
}
