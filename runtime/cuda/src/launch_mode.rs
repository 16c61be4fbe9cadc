//! How forward and merge are launched.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use tilewright_heuristics::Tile;

/// How the work items of a plan are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Launch {
    /// A launch for each tile, one after the other on the caller's stream.
    Serial,
    /// A launch for each tile. Those after the first are on streams of the plan, forked from the caller's stream and joined to it again.
    Streams,
    /// One launch for all tiles, which are compiled together ([`super::CudaBackend::prepare_mix`]).
    Single,
}

/// Who merges the partials of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MergeBy {
    /// A launch after all of forward.
    Launch,
    /// The CTA of forward that leaves the last partial of a request and KV head. Such a plan is on one stream at a time: its launches
    /// share the counters of what has arrived. Its kernels are prepared for
    /// [`merge_by_last_cta`](tilewright_kernel_templates::cuda::KernelOptions::merge_by_last_cta), with code that others need not fetch.
    LastCta,
}

/// How forward and merge are launched. All modes give the same bits, but where some request has more than eight partials: a merge's launch
/// then sums with four warps a row, the last CTA with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaunchMode {
    /// How the work items are launched.
    pub launch: Launch,
    /// Who merges.
    pub merge: MergeBy,
}

impl LaunchMode {
    /// Default launch mode.
    pub const DEFAULT: Self = Self { launch: Launch::Serial, merge: MergeBy::Launch };

    /// Every combination.
    pub const ALL: [Self; 6] = [
        Self { launch: Launch::Serial, merge: MergeBy::Launch },
        Self { launch: Launch::Serial, merge: MergeBy::LastCta },
        Self { launch: Launch::Streams, merge: MergeBy::Launch },
        Self { launch: Launch::Streams, merge: MergeBy::LastCta },
        Self { launch: Launch::Single, merge: MergeBy::Launch },
        Self { launch: Launch::Single, merge: MergeBy::LastCta },
    ];
}

impl Default for LaunchMode {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for LaunchMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let launch = match self.launch {
            Launch::Serial => "serial",
            Launch::Streams => "streams",
            Launch::Single => "single",
        };
        let merge = match self.merge {
            MergeBy::Launch => "launch",
            MergeBy::LastCta => "last-cta",
        };
        write!(f, "{launch}+{merge}")
    }
}

/// No launch mode has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown launch mode `{0}`; expected {{serial,streams,single}}+{{launch,last-cta}}, as `serial+launch`"
)]
pub struct ParseLaunchModeError(String);

impl FromStr for LaunchMode {
    type Err = ParseLaunchModeError;

    /// By the name that it is shown with.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = |launch_mode: &Self| launch_mode.to_string() == text;
        Self::ALL.into_iter().find(named).ok_or_else(|| ParseLaunchModeError(text.to_owned()))
    }
}

/// Tiles that are compiled into one kernel: sorted, each once. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mix(Arc<[Tile]>);

impl Mix {
    /// More tiles than this are not worth compiling together: each costs every CTA instructions to skip, and a compilation seconds.
    /// [`super::TunedBackend`] does not try; callers of [`super::CudaBackend::prepare_mix`] may.
    pub const MOST: usize = 8;

    /// The mix of these tiles, in any order.
    pub fn of(tiles: &[Tile]) -> Self {
        let mut tiles = tiles.to_vec();
        tiles.sort_unstable();
        tiles.dedup();
        Self(tiles.into())
    }

    /// The tiles, in the order in which work items name them.
    pub fn tiles(&self) -> &[Tile] {
        &self.0
    }

    /// Which of the tiles this one is.
    pub fn index_of(&self, tile: &Tile) -> Option<u8> {
        self.0.binary_search(tile).ok().and_then(|index| u8::try_from(index).ok())
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, tile) in self.0.iter().enumerate() {
            write!(f, "{}{tile}", if index > 0 { " + " } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_has_a_name_of_its_own() {
        let mut names: Vec<String> = LaunchMode::ALL.map(|launch_mode| launch_mode.to_string()).to_vec();
        assert_eq!(names[0], LaunchMode::DEFAULT.to_string());
        assert_eq!(names[5], "single+last-cta");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 6);
        for launch_mode in LaunchMode::ALL {
            assert_eq!(launch_mode.to_string().parse(), Ok(launch_mode));
        }
        for text in ["", "serial", "serial+launch ", "Serial+launch", "single+last_cta"] {
            assert_eq!(text.parse::<LaunchMode>(), Err(ParseLaunchModeError(text.to_owned())));
        }
    }

    #[test]
    fn a_mix_is_the_same_in_any_order_of_its_tiles() {
        let [a, b] = [16, 64].map(|m| Tile::new(m, 32, 4, 1));
        assert_eq!(Mix::of(&[b, a, b]), Mix::of(&[a, b]));
        assert_eq!(Mix::of(&[b, a]).index_of(&b), Some(1));
        assert_eq!(Mix::of(&[a]).index_of(&b), None);
        assert_eq!(Mix::of(&[b, a]).to_string(), "m16n32w4s1 + m64n32w4s1");
    }
}
