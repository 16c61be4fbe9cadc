//! Plans that follow a batch by its page table, for engines that say what a batch is and not what has changed.

mod held;

use crate::{
    ChooseTiles, LengthsError, LiveError, LivePlanner, Packing, PageRows, Plan, PlanError, PlanOptions, Split,
};
use held::{Changes, Held};
use tilewright_heuristics::Geometry;

/// One request in this many may lose pages, and one in this many may have others, in a batch that is followed by its changes.
const LOSING: usize = 4;

/// How a plan differs from the one that was taken before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// By the lengths of its requests alone, which end in the same pages.
    Lengths,
    /// By what has changed.
    Changes,
    /// In anything.
    Anew,
}

/// Keeps the plan of a batch up to date by the batch's page table, which it compares with that of the batch before.
///
/// Where requests only grew inside their last pages, the plan stays but for its lengths. Where few others changed, a [`LivePlanner`] follows
/// them; its hysteresis and its order of items are this one's. Else the plan is made from nothing. Pages are compared one by one, all of
/// them: a plan never rests on what an engine may have changed unseen. Memory that has not changed is read once.
///
/// Each plan is offered to `take` of [`FollowingPlanner::update`], which may have no room for it. A plan that is followed has more entries than
/// it needs: then that of [`Plan::build`] is offered, and at last one with other packs, if there are some for that case
/// ([`FollowingPlanner::with_last_resort`]). What is not taken changes nothing: plan and batch are as they were.
///
/// In a steady step, where requests grow and none comes or goes, nothing is allocated.
///
/// ```
/// use tilewright_heuristics::{Dtype, Geometry, Tile};
/// use tilewright_plan::{FollowingPlanner, PageRows, Plan, PlanError, PlanOptions, Step};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let geometry = Geometry { q_heads: 8, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F16 };
/// let mut planner = FollowingPlanner::new(&geometry, PlanOptions::default())?;
/// let mut steps = Vec::new();
/// for seq_lens in [[32, 30], [32, 31], [33, 32]] {
///     planner.compare(&PageRows::dense(&[7, 8, 3, 7, 9, -1], 3, 3, &seq_lens, 16)?, 0)?;
///     planner.update(Tile::of("m16n32w1s2"), |plan, step| {
///         steps.push((step, plan.seq_lens().to_vec()));
///         Ok::<bool, PlanError>(true)
///     })?;
/// }
/// assert_eq!(steps[1..], [(Step::Lengths, vec![32, 31]), (Step::Changes, vec![33, 32])]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FollowingPlanner {
    geometry: Geometry,
    options: PlanOptions,
    last_resort: Option<Packing>,
    live: LivePlanner,
    /// The plan that was taken, if it is not the live planner's.
    other: Option<Plan>,
    /// The batch whose plan was taken, memory for one from nothing, and what the next one changes.
    batch: Held,
    spare: Held,
    changes: Changes,
    /// The changes are those of a batch that is to be planned.
    compared: bool,
    /// The plan of the batch was taken, and whoever takes plans has it.
    taken: bool,
}

impl FollowingPlanner {
    /// A planner of an empty batch.
    ///
    /// # Errors
    /// A layout that makes no sense, or another packing than [`Packing::Priced`].
    pub fn new(geometry: &Geometry, options: PlanOptions) -> Result<Self, LiveError> {
        Ok(Self {
            geometry: *geometry,
            options,
            last_resort: None,
            live: LivePlanner::new(geometry, options)?,
            other: None,
            batch: Held::default(),
            spare: Held::default(),
            changes: Changes::default(),
            compared: false,
            taken: false,
        })
    }

    /// Plans with these packs, and without cuts for their length, what there is no room for otherwise. Batch-invariant plans are cut where
    /// they always are.
    #[must_use]
    pub fn with_last_resort(self, packing: Packing) -> Self {
        Self { last_resort: Some(packing), ..self }
    }

    /// Compares a batch with the one before: [`FollowingPlanner::update`] plans it. Rows up to `batch` that the table does not have are of requests
    /// without tokens.
    ///
    /// # Errors
    /// Other pages than the layout's, or a negative page.
    pub fn compare(&mut self, rows: &PageRows<'_>, batch: usize) -> Result<(), PlanError> {
        if rows.page_size() != self.geometry.page_size {
            let (table, geometry) = (rows.page_size(), self.geometry.page_size);
            return Err(PlanError::PageSize { table, geometry });
        }
        self.compared = false;
        self.changes.find(&self.batch, rows, batch)?;
        self.compared = true;
        Ok(())
    }

    /// The largest page among those that the compared batch has and the one before had not.
    pub fn largest_new_page(&self) -> Option<i32> {
        self.changes.new_pages().iter().copied().max()
    }

    /// Plans the batch that was compared last, and offers its plans until one is taken; false if none was. Without one since the last plan, the
    /// batch stays what it is.
    ///
    /// # Errors
    /// A batch beyond 32-bit counts, or what `take` gives: the next plan is then offered as one from nothing.
    pub fn update<E: From<PlanError>>(
        &mut self,
        choose: impl ChooseTiles + Clone,
        mut take: impl FnMut(&Plan, Step) -> Result<bool, E>,
    ) -> Result<bool, E> {
        if !std::mem::take(&mut self.compared) {
            self.changes.clear(&self.batch);
        }
        if self.taken && self.changes.moved.is_empty() && !self.changes.resized {
            self.taken = self.take_lengths(choose.clone());
            if self.taken {
                let result = take(self.plan(), Step::Lengths);
                if !matches!(result, Ok(true)) {
                    // Those before.
                    self.taken = self.take_lengths(choose) && result.is_ok();
                }
                return result;
            }
        }
        let result = self.offer(choose.clone(), &mut take);
        if !matches!(result, Ok(true)) {
            // What was planned before is planned again.
            let restored = self.restore(choose).is_ok();
            self.taken &= restored && result.is_ok();
        }
        result
    }

    /// The plan that was taken last; of an empty batch before the first.
    pub fn plan(&self) -> &Plan {
        self.other.as_ref().unwrap_or(self.live.last())
    }

    /// Gives the plan new lengths: requests have grown inside their last pages. [`FollowingPlanner::plan`] has them.
    ///
    /// # Errors
    /// Another number of lengths than queries, or a length that ends in another page. Nothing changes then.
    pub fn set_lengths(
        &mut self,
        seq_lens: &[u32],
        choose: impl ChooseTiles + Clone,
    ) -> Result<(), LengthsError> {
        let before = &self.batch.seq_lens;
        if seq_lens.len() != before.len() {
            return Err(LengthsError::Count { found: seq_lens.len(), needed: before.len() });
        }
        let page_size = self.geometry.page_size;
        for (request, (&tokens, &planned)) in seq_lens.iter().zip(before).enumerate() {
            let pages = planned.div_ceil(page_size);
            if tokens.div_ceil(page_size) != pages {
                return Err(LengthsError::Pages { request, tokens, pages, page_size });
            }
        }
        self.compared = false;
        self.changes.seq_lens.clear();
        self.changes.seq_lens.extend_from_slice(seq_lens);
        self.taken &= self.take_lengths(choose);
        Ok(())
    }

    /// Exchanges the lengths of batch and changes, all of which end in the same pages, and gives them to the plan; false if the live planner has
    /// lost the batch.
    fn take_lengths(&mut self, choose: impl ChooseTiles) -> bool {
        std::mem::swap(&mut self.batch.seq_lens, &mut self.changes.seq_lens);
        let seq_lens = &self.batch.seq_lens;
        if let Some(plan) = &mut self.other {
            plan.take_lengths(seq_lens);
        }
        self.live.grow_all(seq_lens).is_ok() && self.live.plan(choose).is_ok()
    }

    /// Plans the batch that was taken.
    fn restore(&mut self, choose: impl ChooseTiles) -> Result<(), PlanError> {
        self.live = self.live_planner_of(&self.batch)?;
        self.live.plan(choose).map(drop)
    }

    /// Offers a plan that followed the changes, one from nothing, one of last resort.
    fn offer<E: From<PlanError>>(
        &mut self,
        choose: impl ChooseTiles + Clone,
        take: &mut impl FnMut(&Plan, Step) -> Result<bool, E>,
    ) -> Result<bool, E> {
        if self.is_followed() && self.follow().is_ok() {
            // Too large a batch is refused again from nothing.
            if let Ok(plan) = self.live.plan(choose.clone())
                && take(plan, Step::Changes)?
            {
                self.batch.apply(&self.changes);
                (self.other, self.taken) = (None, true);
                return Ok(true);
            }
        }
        self.spare.clone_from(&self.batch);
        self.spare.apply(&self.changes);
        self.live = self.live_planner_of(&self.spare)?;
        if take(self.live.plan(choose.clone())?, Step::Anew)? {
            self.other = None;
        } else {
            // Even so it has room for pages to come, where a plan that is not followed has none.
            let last_resort = self.last_resort.map(|packing| PlanOptions {
                packing,
                split: if self.options.split == Split::Invariant { Split::Invariant } else { Split::None },
                ..self.options
            });
            let table = self.spare.table(self.geometry.page_size);
            let mut taken = None;
            for options in [Some(self.options), last_resort].into_iter().flatten() {
                let plan = Plan::build(&self.geometry, &table, &options, choose.clone())?;
                if take(&plan, Step::Anew)? {
                    taken = Some(plan);
                    break;
                }
            }
            if taken.is_none() {
                return Ok(false);
            }
            self.other = taken;
        }
        std::mem::swap(&mut self.batch, &mut self.spare);
        self.taken = true;
        Ok(true)
    }

    /// Whether so little has changed that following it takes less time than a plan from nothing.
    fn is_followed(&self) -> bool {
        let losing = self.changes.moved.iter().filter(|moved| moved.gone > 0).count();
        self.taken && !self.changes.resized && losing * LOSING <= self.changes.seq_lens.len()
    }

    /// Tells the live planner of the changes.
    fn follow(&mut self) -> Result<(), LiveError> {
        let Self { live, changes, geometry, .. } = self;
        for (moved, new) in changes.moved() {
            let tokens = changes.seq_lens[moved.request as usize];
            if moved.gone > 0 {
                live.truncate(moved.request, moved.kept, moved.kept * geometry.page_size)?;
            }
            if !new.is_empty() {
                live.append(moved.request, new, tokens)?;
            }
        }
        live.grow_all(&changes.seq_lens)
    }

    fn live_planner_of(&self, batch: &Held) -> Result<LivePlanner, PlanError> {
        let table = batch.table(self.geometry.page_size);
        LivePlanner::from_table(&self.geometry, self.options, &table).map_err(|error| match error {
            LiveError::Plan(error) => error,
            // `new` has refused other packings, and a table has nothing else that could be refused.
            _ => PlanError::TooLarge("requests"),
        })
    }
}
