//! A tile: one variant of the attention kernel.

use crate::record::whole_number_record;
use core::fmt;
use core::str::FromStr;

whole_number_record! {
    /// A kernel variant. Written as its parameters' first letters and values, e.g. `m16n64w4s2`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Tile: u16 {
        #[doc = "query rows that one pass over the KV serves"]
        m,
        #[doc = "KV tokens of one step of the online softmax"]
        n,
        #[doc = "warps of a CTA (cpu: threads that share one work item)"]
        warps,
        #[doc = "KV tiles in flight (cpu: prefetched ahead, the current one included)"]
        stages,
    }
}

impl Tile {
    /// The tile with these parameters, and all others at their defaults.
    pub const fn new(m: u16, n: u16, warps: u16, stages: u16) -> Self {
        let mut values = [0; Self::COUNT];
        let mut field = 0;
        while field < Self::COUNT {
            if let Some(default) = Self::DEFAULTS[field] {
                values[field] = default;
            }
            field += 1;
        }
        let mut tile = Self::from_values(values);
        (tile.m, tile.n, tile.warps, tile.stages) = (m, n, warps, stages);
        tile
    }

    /// A tile as it is written, for tiles that are known when the program is compiled: `Tile::of("m16n64w4s2")`.
    ///
    /// # Panics
    /// A text that is not a tile; in a constant that is an error of the compiler. [`str::parse`] returns errors.
    pub const fn of(text: &str) -> Self {
        match Self::read(text.as_bytes()) {
            Some(tile) => tile,
            None => panic!("not a tile: write every parameter as letter and value, like `m16n64w4s2`"),
        }
    }

    /// Every parameter in order as its first letter and a number of at least 1; those with a default may be left out.
    const fn read(text: &[u8]) -> Option<Self> {
        let (mut values, mut field, mut at) = ([0; Self::COUNT], 0, 0);
        while field < Self::COUNT {
            if at < text.len() && text[at] == Self::NAMES[field].as_bytes()[0] {
                at += 1;
                let mut value = 0u32;
                let begin = at;
                while at < text.len() && text[at].is_ascii_digit() {
                    value = value * 10 + (text[at] - b'0') as u32;
                    if value > u16::MAX as u32 {
                        return None;
                    }
                    at += 1;
                }
                if at == begin || value == 0 {
                    return None;
                }
                values[field] = value as u16;
            } else {
                match Self::DEFAULTS[field] {
                    Some(default) => values[field] = default,
                    None => return None,
                }
            }
            field += 1;
        }
        if at == text.len() { Some(Self::from_values(values)) } else { None }
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::with_capacity(4 * Self::COUNT);
        for ((name, value), default) in Self::NAMES.iter().zip(self.values()).zip(Self::DEFAULTS) {
            if default != Some(value) {
                text.push_str(&name[..1]);
                text.push_str(&value.to_string());
            }
        }
        f.pad(&text)
    }
}

/// A text that is not a tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseTileError {
    text: String,
}

impl fmt::Display for ParseTileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let example = Tile::new(16, 16, 16, 16);
        write!(
            f,
            "`{}` is not a tile; write every parameter as letter and value, like `{example}`",
            self.text
        )
    }
}

impl std::error::Error for ParseTileError {}

impl FromStr for Tile {
    type Err = ParseTileError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::read(text.as_bytes()).ok_or_else(|| ParseTileError { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_survives_the_round_trip_through_text() {
        let tile = Tile::new(16, 128, 4, 3);
        assert_eq!(Tile::of("m16n128w4s3"), tile);
        assert_eq!(tile.to_string(), "m16n128w4s3");
        assert_eq!("m16n128w4s3".parse(), Ok(tile));
    }

    #[test]
    fn parameters_have_distinct_first_letters() {
        for (i, name) in Tile::NAMES.iter().enumerate() {
            assert!(
                Tile::NAMES[..i].iter().all(|other| other[..1] != name[..1]),
                "{name} clashes with another parameter"
            );
        }
    }

    #[test]
    fn text_that_is_no_tile_is_refused() {
        for text in [
            "",
            "m16",
            "m16n64w4",
            "m16n64w4s2x",
            "n16m64w4s2",
            "m0n64w4s2",
            "m99999n64w4s2",
            "tile",
            "m16 n64 w4 s2",
        ] {
            assert!(text.parse::<Tile>().is_err(), "{text}");
        }
    }
}
