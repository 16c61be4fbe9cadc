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

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::with_capacity(4 * Self::COUNT);
        for (name, value) in Self::NAMES.iter().zip(self.values()) {
            text.push_str(&name[..1]);
            text.push_str(&value.to_string());
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
        let example = Tile::from_values([16; Tile::COUNT]);
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
        let error = || ParseTileError { text: text.to_owned() };
        let mut rest = text;
        let mut values = [0; Self::COUNT];
        for (value, name) in values.iter_mut().zip(Self::NAMES) {
            rest = rest.strip_prefix(&name[..1]).ok_or_else(error)?;
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            *value = rest[..digits].parse().map_err(|_| error())?;
            rest = &rest[digits..];
        }
        if rest.is_empty() && values.iter().all(|&value| value > 0) {
            Ok(Self::from_values(values))
        } else {
            Err(error())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_survives_the_round_trip_through_text() {
        let tile = Tile { m: 16, n: 128, warps: 4, stages: 3 };
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
