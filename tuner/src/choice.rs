//! What whole batches are executed under, by the names that measurements and reports have for it.

use std::fmt;
use std::str::FromStr;
use tilewright_cuda::LaunchMode;
use tilewright_heuristics::TileSetBuf;

pub use tilewright_reports::policy_names::{BATCH_INVARIANT, PAT_RULES, PATS_PLANNER, SELECTOR};

/// One way to plan a batch, to choose its tiles and to launch it. Its name parses back, and is what measurements are kept under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Choice {
    /// The fitted selector, launched so: `selector` where that is the default, else for example `selector, single+last-cta`.
    Selector(LaunchMode),
    /// PAT's analytic rules choose the tiles; all else is as for the selector.
    PatRules,
    /// The whole of PAT on our kernels: its TreeHeuristic packs (PAT, Algorithm 1), packs longer than the mean are cut (section 6), its
    /// analytic rules choose tiles (section 5.2), and each tile has a stream of its own where the device has streams.
    Pat,
    /// Batch-invariant plans, each of one tile of its class's family. Never fitted, and no part of a selector.
    Invariant,
    /// The packs get the tiles of this set, by their rows: of one tile, the same for all packs.
    Set(TileSetBuf),
}

impl Choice {
    /// The selector, launched in the default way.
    pub const SELECTOR: Self = Self::Selector(LaunchMode::DEFAULT);

    /// The launch mode that sets it apart from [`Choice::SELECTOR`], if nothing else does.
    pub fn other_launch_mode(self) -> Option<LaunchMode> {
        match self {
            Self::Selector(launch_mode) if launch_mode != LaunchMode::DEFAULT => Some(launch_mode),
            _ => None,
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Selector(LaunchMode::DEFAULT) => f.write_str(SELECTOR),
            Self::Selector(launch_mode) => write!(f, "{SELECTOR}, {launch_mode}"),
            Self::PatRules => f.write_str(PAT_RULES),
            Self::Pat => f.write_str(PATS_PLANNER),
            Self::Invariant => f.write_str(BATCH_INVARIANT),
            Self::Set(set) => set.fmt(f),
        }
    }
}

/// No choice has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` names nothing that batches are measured under: neither a selector, nor PAT, nor batch-invariant plans, and no set of tiles"
)]
pub struct ParseChoiceError(String);

impl FromStr for Choice {
    type Err = ParseChoiceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseChoiceError(text.to_owned());
        let selector = text.strip_prefix(SELECTOR).and_then(|rest| rest.strip_prefix(", "));
        let choice = match (text, selector) {
            (SELECTOR, _) => Self::SELECTOR,
            (PAT_RULES, _) => Self::PatRules,
            (PATS_PLANNER, _) => Self::Pat,
            (BATCH_INVARIANT, _) => Self::Invariant,
            (_, Some(launch_mode)) => Self::Selector(launch_mode.parse().map_err(|_| error())?),
            _ => Self::Set(text.parse().map_err(|_| error())?),
        };
        // One name each: the default launch mode is not spelled out, nor has a tile other spellings.
        if choice.to_string() == text { Ok(choice) } else { Err(error()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tilewright_cuda::{Launch, MergeBy};
    use tilewright_heuristics::Tile;

    fn any_choice() -> impl Strategy<Value = Choice> {
        prop_oneof![
            (0..LaunchMode::ALL.len()).prop_map(|i| Choice::Selector(LaunchMode::ALL[i])),
            Just(Choice::PatRules),
            Just(Choice::Pat),
            Just(Choice::Invariant),
            // A tile of zeros has no name.
            prop::collection::vec([const { 1..=u16::MAX }; Tile::COUNT], 1..4).prop_filter_map(
                "no set",
                |tiles| {
                    let tiles: Vec<Tile> = tiles.into_iter().map(Tile::from_values).collect();
                    TileSetBuf::of(&tiles).map(Choice::Set)
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn a_choice_parses_back_from_its_name(choice in any_choice()) {
            prop_assert_eq!(choice.to_string().parse(), Ok(choice));
        }

        #[test]
        fn two_choices_never_share_a_name(a in any_choice(), b in any_choice()) {
            prop_assert_eq!(a == b, a.to_string() == b.to_string());
        }
    }

    #[test]
    fn names_are_those_that_recordings_have() {
        let single = LaunchMode { launch: Launch::Single, merge: MergeBy::LastCta };
        let tile = Tile::of("m16n64w4s3");
        let tile = Choice::Set(TileSetBuf::one(tile));
        let choices = [
            Choice::SELECTOR,
            Choice::Selector(single),
            Choice::PatRules,
            Choice::Pat,
            Choice::Invariant,
            tile,
        ];
        let names = [
            "selector",
            "selector, single+last-cta",
            "PAT's rules",
            PATS_PLANNER,
            "batch-invariant",
            "m16n64w4s3",
        ];
        assert_eq!(choices.map(|choice| choice.to_string()), names);
        assert_eq!(choices.map(Choice::other_launch_mode), [None, Some(single), None, None, None, None]);
    }

    #[test]
    fn what_is_no_choice_is_refused() {
        for text in [
            "",
            "selector,",
            "selector, ",
            "selector, serial+launch",
            "pat",
            "PAT ",
            "batch-invariant ",
            "invariant",
            "m16n64",
            "m016n64w4s3",
        ] {
            assert_eq!(text.parse::<Choice>(), Err(ParseChoiceError(text.to_owned())));
        }
    }
}
