//! How a batch is planned and launched, beside the choice of its tiles.

use serde::{Deserialize, Serialize};
use tilewright_cuda::{Launch, LaunchMode, MergeBy, Mix};
use tilewright_heuristics::TileSetBuf;
use tilewright_plan::{Packing, Plan, PlanOptions, Split};

/// How a batch is planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Planning {
    /// As a decoder plans on the device: packs by its prices, KV ranges cut so that its concurrent CTAs finish together.
    #[default]
    AsDecoders,
    /// As PAT plans: its TreeHeuristic makes packs (PAT, Algorithm 1), and those longer than the mean are cut (section 6).
    AsPat,
    /// As a decoder plans whose requests' bits depend on nothing else: packs are trees, and KV ranges are cut at absolute positions.
    Invariant,
}

impl Planning {
    /// Each of them.
    pub const ALL: [Self; 3] = [Self::AsDecoders, Self::AsPat, Self::Invariant];

    /// The options of a plan on a device whose decoders plan with `device`.
    pub fn options(self, device: PlanOptions) -> PlanOptions {
        match self {
            Self::AsDecoders => device,
            Self::AsPat => PlanOptions { packing: Packing::Pat, split: Split::Mean, ..device },
            Self::Invariant => PlanOptions { split: Split::Invariant, ..device },
        }
    }
}

/// How a batch is planned and launched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Execution {
    /// How it is planned.
    pub planning: Planning,
    /// How the plan is launched.
    pub launch_mode: LaunchMode,
    /// What a single launch is compiled of; `None` for the tiles of each plan and no others.
    pub mix: Option<Mix>,
}

/// How a batch is planned and launched as decoders do: where its set has several tiles, in one launch of their kernel if the bench has such.
pub fn execution_of_set(set: &TileSetBuf, launch_modes: &[LaunchMode]) -> Execution {
    let single = LaunchMode { launch: Launch::Single, merge: MergeBy::Launch };
    if set.single().is_none() && launch_modes.contains(&single) {
        Execution { planning: Planning::AsDecoders, launch_mode: single, mix: Some(Mix::of(set.tiles())) }
    } else {
        Execution::default()
    }
}

/// What of a plan decides whether launch modes it differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanFacts {
    /// Tiles among its work items.
    pub tiles: usize,
    /// Whether any row has several partials.
    pub merges: bool,
}

impl PlanFacts {
    /// Those of a plan.
    pub fn of(plan: &Plan) -> Self {
        Self { tiles: plan.tile_groups().len(), merges: !plan.merges().is_empty() }
    }

    /// Whether `execution` launches this plan differently from a simpler launch mode: streams and a kernel of several tiles do nothing for
    /// one, nor does it matter who merges where nothing is merged.
    pub fn tell_apart(self, execution: &Execution) -> bool {
        let launched = match execution.launch_mode.launch {
            Launch::Serial => true,
            Launch::Streams | Launch::Single => self.tiles > 1,
        };
        launched && (execution.launch_mode.merge == MergeBy::Launch || self.merges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_heuristics::{Dtype, Geometry, PackShape, Prices, Tile};
    use tilewright_plan::PageTable;

    const SMALL: Tile = Tile::of("m16n32w1s1");
    const LARGE: Tile = Tile::of("m64n32w4s1");

    fn told_apart(facts: PlanFacts, mix: Option<&Mix>) -> Vec<String> {
        let execution = |launch_mode| Execution { launch_mode, mix: mix.cloned(), ..Execution::default() };
        let differ =
            LaunchMode::ALL.into_iter().filter(|&launch_mode| facts.tell_apart(&execution(launch_mode)));
        differ.map(|launch_mode| launch_mode.to_string()).collect()
    }

    #[test]
    fn launch_modes_that_come_to_the_same_are_told() {
        let facts = |tiles, merges| PlanFacts { tiles, merges };
        assert_eq!(told_apart(facts(2, true), None).len(), LaunchMode::ALL.len());
        assert_eq!(told_apart(facts(1, false), None), ["serial+launch"]);
        assert_eq!(told_apart(facts(1, true), None), ["serial+launch", "serial+last-cta"]);
        assert_eq!(told_apart(facts(2, false), None), ["serial+launch", "streams+launch", "single+launch"]);
        // Decoders launch a plan of one tile as that tile's kernel, whatever set it was chosen from.
        let mix = Mix::of(&[SMALL, LARGE]);
        assert_eq!(told_apart(facts(1, false), Some(&mix)), ["serial+launch"]);
        assert_eq!(told_apart(facts(1, false), Some(&Mix::of(&[SMALL]))), ["serial+launch"]);
    }

    #[test]
    fn plans_as_pats_are_pats_and_know_what_they_launch() {
        let geometry = Geometry { q_heads: 4, kv_heads: 1, head_dim: 64, page_size: 16, dtype: Dtype::F16 };
        // Eight pages that two requests share, then one page each.
        let row = |last: i32| (0..8).chain([last]).collect::<Vec<i32>>();
        let (entries, lengths) = ([row(8), row(9)].concat(), [144; 2]);
        let table = PageTable::new(&entries, 9, &lengths, 16).unwrap();
        let device =
            PlanOptions::default().with_max_concurrent_ctas(3).with_prices(Prices { cta: 7, ..Prices::CPU });
        assert_eq!(Planning::AsDecoders.options(device), device);
        let options = Planning::AsPat.options(device);
        assert_eq!((options.packing, options.split), (Packing::Pat, Split::Mean));
        assert_eq!(options.device, device.device);

        let plan = Plan::build(
            &geometry,
            &table,
            &options,
            |shape: &PackShape| if shape.rows > 4 { LARGE } else { SMALL },
        )
        .unwrap();
        assert_eq!(PlanFacts::of(&plan), PlanFacts { tiles: 2, merges: true });
        let alone = PageTable::new(&entries[..9], 9, &lengths[..1], 16).unwrap();
        let plan = Plan::build(&geometry, &alone, &options, SMALL).unwrap();
        assert_eq!(PlanFacts::of(&plan), PlanFacts { tiles: 1, merges: false });
    }
}
