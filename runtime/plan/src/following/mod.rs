//! Plans that follow a batch by its page table, for engines that say what a batch is and not what has changed.

mod held;

use crate::{
    ChooseTiles, LengthsError, LiveError, LivePlanner, Packing, PageRows, Plan, PlanError, PlanOptions,
    Planner, Split,
};
use held::{Changes, Held};
use tilewright_heuristics::Geometry;

/// Whose plan was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The live planner's, which knows the batch.
    Live,
    Nothing,
    LastResort,
}

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
/// | what changed | plan |
/// |---|---|
/// | lengths, inside last pages | stays but for these |
/// | pages of few requests, and which row each has | that of a [`LivePlanner`], with its hysteresis and its order of items |
/// | more, or pages for the first time or the second after that | from nothing, as that of a [`Planner`] |
///
/// A live planner costs about two plans from nothing to make, so it is made where a batch changes a little a second time. Pages are compared one by
/// one, all of them: a plan never rests on what an engine may have changed unseen. Only rows whose writes are counted
/// ([`PageRows::with_writes`]) are not read where none came.
///
/// Where many rows have requests that other rows had, as when all move up because one is gone, requests keep the numbers that the live planner knows
/// them by: the plan is then that of the batch in the order of these numbers, and names rows.
///
/// Each plan is offered to `take` of [`FollowingPlanner::update`], which may have no room for it. A plan that is followed has more entries than
/// it needs: then one from nothing is offered, and at last one with other packs, if there are some for that case
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
/// for seq_lens in [[32, 30], [32, 31], [33, 32], [49, 33], [65, 34], [66, 35]] {
///     planner.compare(&PageRows::dense(&[7, 8, 3, 4, 5, 7, 9, 6, -1, -1], 5, 5, &seq_lens, 16)?, 0)?;
///     planner.update(Tile::of("m16n32w1s2"), |plan, step| {
///         assert_eq!(plan.seq_lens(), seq_lens);
///         steps.push(step);
///         Ok::<bool, PlanError>(true)
///     })?;
/// }
/// assert_eq!(steps, [Step::Anew, Step::Lengths, Step::Anew, Step::Anew, Step::Changes, Step::Lengths]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FollowingPlanner {
    geometry: Geometry,
    options: PlanOptions,
    last_resort: Option<Packing>,
    live: LivePlanner,
    planner: Planner,
    taken_of: Source,
    /// The plan of last resort, if it was taken.
    other: Plan,
    /// The live planner's plan, with the rows of its requests, where these are others than it knows them by.
    renamed: Plan,
    /// The row of each number that it knows.
    row_of: Vec<u32>,
    /// The tokens of each.
    slot_lens: Vec<u32>,
    /// Few pages changed in the last step in which some did.
    is_calm: bool,
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
            planner: Planner::new(options),
            taken_of: Source::Nothing,
            other: Plan::default(),
            renamed: Plan::default(),
            row_of: Vec::new(),
            slot_lens: Vec::new(),
            is_calm: false,
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

    /// Whether the batch that was compared last has the pages of the one before, and at most other lengths.
    pub const fn stays_but_for_lengths(&self) -> bool {
        self.compared && self.taken && self.changes.is_empty()
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
        if self.taken && self.changes.is_empty() {
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
        match self.taken_of {
            Source::Live if self.batch.is_in_order() => self.live.last(),
            Source::Live => &self.renamed,
            Source::Nothing => self.planner.last(),
            Source::LastResort => &self.other,
        }
    }

    /// The number of the request of each row in the batch that the plan was made of: the row's own, unless the plan followed requests to other rows.
    pub fn numbers(&self) -> &[u32] {
        self.batch.slots()
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
        let before = self.batch.row_lens();
        if seq_lens.len() != before.len() {
            return Err(LengthsError::Count { found: seq_lens.len(), needed: before.len() });
        }
        let page_size = self.geometry.page_size;
        for (request, (&tokens, planned)) in seq_lens.iter().zip(before).enumerate() {
            let pages = planned.div_ceil(page_size);
            if tokens.div_ceil(page_size) != pages {
                return Err(LengthsError::Pages { request, tokens, pages, page_size });
            }
        }
        self.compared = false;
        self.changes.clear(&self.batch);
        self.changes.seq_lens.copy_from_slice(seq_lens);
        self.taken &= self.take_lengths(choose);
        Ok(())
    }

    /// Exchanges the lengths of batch and changes, all of which end in the same pages, and gives them to the plan; false if the live planner has
    /// lost the batch.
    fn take_lengths(&mut self, choose: impl ChooseTiles) -> bool {
        let seq_lens = &self.changes.seq_lens;
        match self.taken_of {
            Source::Live if self.batch.is_in_order() => {}
            Source::Live => self.renamed.take_lengths(seq_lens),
            Source::Nothing => self.planner.take_lengths(seq_lens),
            Source::LastResort => self.other.take_lengths(seq_lens),
        }
        self.batch.exchange_lengths(&mut self.changes);
        self.taken_of != Source::Live
            || self.live.grow_all(self.batch.slot_lens()).is_ok() && self.live.plan(choose).is_ok()
    }

    /// Plans the batch that was taken, unless its plan is still there.
    fn restore(&mut self, choose: impl ChooseTiles) -> Result<(), PlanError> {
        if self.taken_of == Source::LastResort {
            return Ok(());
        }
        self.taken_of = Source::Nothing;
        if !self.batch.is_in_order() {
            self.changes.clear(&self.batch);
            self.spare.become_next(&self.batch, &mut self.changes);
            std::mem::swap(&mut self.batch, &mut self.spare);
        }
        let table = self.batch.table(self.geometry.page_size);
        self.planner.plan(&self.geometry, &table, choose).map(drop)
    }

    /// Offers a plan that followed the changes, one from nothing, one of last resort.
    fn offer<E: From<PlanError>>(
        &mut self,
        choose: impl ChooseTiles + Clone,
        take: &mut impl FnMut(&Plan, Step) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let is_small = self.taken && self.changes.are_small();
        let was_calm = std::mem::replace(&mut self.is_calm, is_small);
        if is_small && self.taken_of == Source::Live && self.follow().is_ok() {
            // Too large a batch is refused again from nothing.
            if let Ok(plan) = self.live.plan(choose.clone())
                && take(
                    named_by_rows(plan, &self.changes, &mut self.row_of, &mut self.renamed),
                    Step::Changes,
                )?
            {
                self.batch.apply(&mut self.changes);
                return Ok(true);
            }
        }
        self.spare.become_next(&self.batch, &mut self.changes);
        let Some(source) = self.offer_anew(is_small && was_calm, choose, take)? else { return Ok(false) };
        std::mem::swap(&mut self.batch, &mut self.spare);
        (self.taken_of, self.taken) = (source, true);
        Ok(true)
    }

    /// Offers plans of the next batch, one by a planner that can follow it, if it is worth that; whose was taken.
    fn offer_anew<E: From<PlanError>>(
        &mut self,
        is_worth_following: bool,
        choose: impl ChooseTiles + Clone,
        take: &mut impl FnMut(&Plan, Step) -> Result<bool, E>,
    ) -> Result<Option<Source>, E> {
        let table = self.spare.table(self.geometry.page_size);
        if is_worth_following && let Ok(live) = LivePlanner::from_table(&self.geometry, self.options, &table)
        {
            self.live = live;
            if take(self.live.plan(choose.clone())?, Step::Anew)? {
                return Ok(Some(Source::Live));
            }
        }
        if take(self.planner.plan(&self.geometry, &table, choose.clone())?, Step::Anew)? {
            return Ok(Some(Source::Nothing));
        }
        let Some(packing) = self.last_resort else { return Ok(None) };
        let split = if self.options.split == Split::Invariant { Split::Invariant } else { Split::None };
        let options = PlanOptions { packing, split, ..self.options };
        let plan = Plan::build(&self.geometry, &table, &options, choose)?;
        if !take(&plan, Step::Anew)? {
            return Ok(None);
        }
        self.other = plan;
        Ok(Some(Source::LastResort))
    }

    /// Tells the live planner of the changes.
    fn follow(&mut self) -> Result<(), LiveError> {
        let Self { live, changes, geometry, slot_lens, .. } = self;
        slot_lens.resize(changes.seq_lens.len(), 0);
        for (&slot, &tokens) in changes.slots().iter().zip(&changes.seq_lens) {
            slot_lens[slot as usize] = tokens;
        }
        for (slot, moved, new) in changes.moved() {
            if moved.gone > 0 {
                live.truncate(slot, moved.kept, moved.kept * geometry.page_size)?;
            }
            if !new.is_empty() {
                live.append(slot, new, slot_lens[slot as usize])?;
            }
        }
        live.grow_all(slot_lens)
    }
}

/// The live planner's plan as it is, or a copy that names the rows of the changed batch.
fn named_by_rows<'a>(
    plan: &'a Plan,
    changes: &Changes,
    row_of: &mut Vec<u32>,
    renamed: &'a mut Plan,
) -> &'a Plan {
    let mut rows = (0..).zip(changes.slots());
    if rows.all(|(row, &slot)| row == slot) {
        return plan;
    }
    row_of.resize(changes.slots().len(), 0);
    for (row, &slot) in (0..).zip(changes.slots()) {
        row_of[slot as usize] = row;
    }
    renamed.clone_renamed(plan, row_of, &changes.seq_lens);
    renamed
}
