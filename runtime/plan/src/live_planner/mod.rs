//! Plans that follow a batch step by step: what did not change is not planned again.

mod error;

use crate::plan::{Changes, LivePlan};
use crate::{
    ChooseTiles, LiveForest, PackLayout, Packing, PageTable, Plan, PlanError, PlanOptions, Priced,
    batch_shape,
};
pub use error::LiveError;
use tilewright_heuristics::{BatchShape, Geometry, PackShape, Tile, TileSet};

/// Keeps the plan of a batch up to date by the batch's changes. [`Planner`](crate::Planner) makes the same from a page table.
///
/// At every step, the plan is that of [`Plan::build`] for the same requests, up to where things stand in its lists: the same work items,
/// and the same partials of each request in the same order. Only the order of the items lags behind their work, by little. Requests are
/// rows of the batch: rows of query and output; the number of rows is one more than the highest number in use, and a number
/// that is not in use is a request without tokens, whose output is zeros.
///
/// Packs are [`Packing::Priced`] always. Where a request brings several query tokens, each of them is a row of its own here: with the tokens
/// that it sees, and all pages of the request, so that they share a node.
///
/// | change | what is planned again |
/// |---|---|
/// | [`grow`](Self::grow), [`grow_all`](Self::grow_all) | nothing: lengths are stored |
/// | [`append`](Self::append) to a request that has its last node for itself | its leaf, in place |
/// | all else | the packs on the path of the request, then chunks and items |
///
/// A small forest that prefers the packs of [`Packing::Pat`] is planned again as a whole wherever this names more than a length.
///
/// What concerns all packs is looked at for all of them: the selector is asked about each where their number is another one, all chunks are
/// cut again where the limit beyond which KV ranges are cut moves so far that some KV range has other chunks ([`Split::Waves`](crate::Split::Waves)
/// seldom does), and everything is listed anew where more than half of the plan's lists is no longer in use.
///
/// It is [`Send`]: the next step can be planned by another thread while the device computes this one. In a steady step, where requests
/// grow and none comes or goes, nothing is allocated.
///
/// ```
/// use tilewright_heuristics::{Dtype, Geometry, Tile};
/// use tilewright_plan::{LivePlanner, PlanOptions};
///
/// # fn main() -> Result<(), tilewright_plan::LiveError> {
/// let geometry = Geometry { q_heads: 8, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F16 };
/// let tile = |_: &_| Tile::of("m16n32w1s2");
/// let mut planner = LivePlanner::new(&geometry, PlanOptions::default())?;
/// planner.add(0, &[7, 8], 32)?;
/// planner.add(1, &[7, 9], 30)?;
/// assert_eq!(planner.plan(tile)?.seq_lens(), [32, 30]);
///
/// planner.append(0, &[3], 33)?; // its page is full
/// planner.grow(1, 31)?; // inside its last page
/// let plan = planner.plan(tile)?;
/// assert_eq!((plan.seq_lens(), plan.largest_page()), (&[33, 31][..], Some(9)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LivePlanner {
    geometry: Geometry,
    options: PlanOptions,
    forest: LiveForest,
    priced: Priced,
    plan: LivePlan,
    /// Tokens of each request, 0 where there is none.
    seq_lens: Vec<u32>,
    /// Of requests that gained or lost pages, the first column that is another one than planned; else [`UNCHANGED`].
    columns: Vec<u32>,
    /// Those requests.
    moved: Vec<u32>,
    /// Nodes to decide on again.
    changed: Vec<u32>,
    /// Some request came to have tokens or to have none, or the batch got another size.
    others_have_tokens: bool,
    /// The plan does not belong to any state of the batch.
    anew: bool,
    /// The batch as its tiles were decided on, what has come and gone since, and the tiles.
    batch: BatchShape,
    drift: Drift,
    tiles: Option<[Tile; TileSet::MOST]>,
}

/// What has come to a batch and gone from it.
#[derive(Clone, Copy, Debug, Default)]
struct Drift {
    pages: u64,
    requests: u64,
}

impl Drift {
    /// Whether more than an eighth of the batch's distinct tokens or requests are others than they were.
    fn is_far(&self, batch: &BatchShape, page_size: u32) -> bool {
        let tokens = self.pages.saturating_mul(page_size.into());
        tokens > u64::from(batch.unique_tokens) / 8 || self.requests > u64::from(batch.requests) / 8
    }
}

const UNCHANGED: u32 = u32::MAX;

impl LivePlanner {
    /// A planner of an empty batch.
    ///
    /// # Errors
    /// A layout that makes no sense, or another packing than [`Packing::Priced`].
    pub fn new(geometry: &Geometry, options: PlanOptions) -> Result<Self, LiveError> {
        geometry.validate().map_err(PlanError::from)?;
        if geometry.gqa_ratio() > u32::from(u16::MAX) {
            return Err(PlanError::GqaRatio(geometry.gqa_ratio()).into());
        }
        if options.packing != Packing::Priced {
            return Err(LiveError::Packing(options.packing));
        }
        Ok(Self {
            geometry: *geometry,
            options,
            forest: LiveForest::default(),
            priced: Priced::default(),
            plan: LivePlan::default(),
            seq_lens: Vec::new(),
            columns: Vec::new(),
            moved: Vec::new(),
            changed: Vec::new(),
            others_have_tokens: true,
            anew: true,
            batch: BatchShape::UNKNOWN,
            drift: Drift::default(),
            tiles: None,
        })
    }

    /// A planner of a batch, whose rows become the requests 0, 1, …
    ///
    /// # Errors
    /// As [`Self::new`], or the page table counts other pages than the layout.
    pub fn from_table(
        geometry: &Geometry,
        options: PlanOptions,
        table: &PageTable<'_>,
    ) -> Result<Self, LiveError> {
        let mut planner = Self::new(geometry, options)?;
        if table.page_size() != geometry.page_size {
            let (table, geometry) = (table.page_size(), geometry.page_size);
            return Err(PlanError::PageSize { table, geometry }.into());
        }
        planner.forest = LiveForest::from_table(table);
        planner.seq_lens.extend(table.seq_lens());
        planner.columns.resize(table.batch(), UNCHANGED);
        Ok(planner)
    }

    /// A request arrives with these pages. Give those that its tokens use: more of them are walked in vain.
    ///
    /// # Errors
    /// The number is taken or too large, a page is negative, or the tokens do not lie in the pages.
    pub fn add(&mut self, request: u32, pages: &[i32], tokens: u32) -> Result<(), LiveError> {
        self.check_tokens(request, tokens, pages.len() as u64)?;
        self.forest.add(request, pages)?;
        self.drift.pages += pages.len() as u64;
        self.drift.requests += 1;
        self.arrive(request, tokens);
        Ok(())
    }

    /// A request leaves.
    ///
    /// # Errors
    /// There is no such request.
    pub fn remove(&mut self, request: u32) -> Result<(), LiveError> {
        let pages = self.pages(request)?;
        self.forest.remove(request)?;
        self.drift.pages += u64::from(pages);
        self.drift.requests += 1;
        self.leave(request);
        Ok(())
    }

    /// A request gains pages behind those that it has, and has `tokens` tokens in all. Where several are known, give them at once.
    ///
    /// # Errors
    /// There is no such request, a page is negative, or the tokens do not lie in the pages.
    pub fn append(&mut self, request: u32, new_pages: &[i32], tokens: u32) -> Result<(), LiveError> {
        let pages = self.pages(request)?;
        self.check_tokens(request, tokens, u64::from(pages) + new_pages.len() as u64)?;
        self.forest.append(request, new_pages)?;
        self.drift.pages += new_pages.len() as u64;
        self.drift.requests += u64::from(pages == 0 && !new_pages.is_empty());
        self.move_pages(request, pages);
        self.set_tokens(request, tokens);
        Ok(())
    }

    /// A request has `tokens` tokens now, in the pages that it has.
    ///
    /// # Errors
    /// There is no such request, or the tokens do not lie in its pages.
    pub fn grow(&mut self, request: u32, tokens: u32) -> Result<(), LiveError> {
        let page_size = self.geometry.page_size;
        if let Some(before) = self.seq_lens.get_mut(request as usize).filter(|before| **before > 0) {
            // Mostly it ends on the page that it ended on: that page is there.
            let page = (*before - 1) / page_size * page_size;
            if tokens > page && tokens - page <= page_size {
                *before = tokens;
                return Ok(());
            }
        }
        let pages = self.pages(request)?;
        self.check_tokens(request, tokens, pages.into())?;
        self.set_tokens(request, tokens);
        Ok(())
    }

    /// As [`Self::grow`] of every request, all or none: one number for each slot of the batch, 0 where there is no request. Requests that
    /// need a page get it by [`Self::append`] before.
    ///
    /// # Errors
    /// Another number of rows; otherwise those of [`Self::grow`], for the first request that has one.
    pub fn grow_all(&mut self, tokens: &[u32]) -> Result<(), LiveError> {
        if tokens.len() != self.seq_lens.len() {
            return Err(LiveError::Targets { found: tokens.len(), needed: self.seq_lens.len() });
        }
        if !same_last_pages(&self.seq_lens, tokens, self.geometry.page_size) {
            for (request, (&before, &tokens)) in (0..).zip(self.seq_lens.iter().zip(tokens)) {
                if before != tokens {
                    let pages = self.pages(request)?;
                    self.check_tokens(request, tokens, pages.into())?;
                }
            }
        }
        // A request with tokens has pages, and keeps them: none gains its first token here or loses its last.
        self.seq_lens.copy_from_slice(tokens);
        Ok(())
    }

    /// A request keeps only its first pages, and `tokens` tokens. Followed by [`Self::append`], this replaces its last pages, as copy on
    /// write does.
    ///
    /// # Errors
    /// There is no such request, it has fewer pages, or the tokens do not lie in those kept.
    pub fn truncate(&mut self, request: u32, pages_kept: u32, tokens: u32) -> Result<(), LiveError> {
        let pages = self.pages(request)?;
        self.check_tokens(request, tokens, pages_kept.into())?;
        self.forest.truncate(request, pages_kept)?;
        self.drift.pages += u64::from(pages.saturating_sub(pages_kept));
        self.drift.requests += u64::from(pages > 0 && pages_kept == 0);
        self.move_pages(request, pages_kept);
        self.set_tokens(request, tokens);
        Ok(())
    }

    /// A request gets another number, as when an engine moves its last slot into a hole.
    ///
    /// # Errors
    /// There is no request `from`, or the number `to` is taken or too large.
    pub fn rename(&mut self, from: u32, to: u32) -> Result<(), LiveError> {
        self.forest.rename(from, to)?;
        if from != to {
            let (tokens, column) = (self.seq_lens[from as usize], self.columns[from as usize]);
            self.leave(from);
            self.arrive(to, tokens);
            self.move_pages(to, column);
        }
        Ok(())
    }

    /// All requests leave.
    pub fn clear(&mut self) {
        self.forest.clear();
        self.seq_lens.clear();
        self.columns.clear();
        self.moved.clear();
        self.anew = true;
    }

    /// How many tokens a request has; `None` if there is no such request.
    pub fn tokens(&self, request: u32) -> Option<u32> {
        self.forest.request_pages(request).map(|_| self.seq_lens[request as usize])
    }

    /// The plan of the batch as it is now. `choose` is asked about the batch, and about packs that are new or look different to it than before:
    /// it has to answer the same shape with the same tile each time.
    ///
    /// What it is told of the batch is what the batch was when its tiles were decided on, until one of its numbers ([`BatchShape`]) has moved by
    /// more than an eighth: a batch that changes a little keeps its tiles.
    ///
    /// # Errors
    /// A batch beyond 32-bit counts. The plan before is lost then, and [`Self::last`] that of an empty batch, but the batch is not: take
    /// what is too large out of it, and the next call makes the plan of the rest, from nothing.
    pub fn plan(&mut self, mut choose: impl ChooseTiles) -> Result<&Plan, PlanError> {
        let tiles = self.decide(&mut choose);
        let mut select = |pack: &PackShape| choose.pack(pack);
        let layout = PackLayout::new(&self.geometry).with_tiles(tiles);
        let layout = layout.for_batch(self.seq_lens.len(), &self.options.device);
        let prices = &self.options.device.prices;
        if self.anew {
            self.priced.decide(&self.forest, &layout, prices);
        }
        let touched = self.forest.touched();
        let flipped = if self.anew || touched.is_empty() && !self.others_have_tokens {
            &[]
        } else {
            self.changed.clear();
            self.changed.extend(touched.changed.iter().chain(touched.grown));
            self.priced.update(&self.forest, &self.changed, touched.freed, &layout, prices);
            self.priced.flipped()
        };
        let changes = Changes {
            forest: &self.forest,
            priced: &self.priced,
            flipped,
            seq_lens: &self.seq_lens,
            columns: &self.columns,
            others_have_tokens: self.others_have_tokens,
            tiles,
        };
        let result = if self.anew {
            self.plan.rebuild(&self.geometry, &changes, &self.options, &mut select)
        } else {
            self.plan.update(&changes, &self.options, &mut select)
        };
        self.forest.clear_touched();
        for request in self.moved.drain(..) {
            if let Some(column) = self.columns.get_mut(request as usize) {
                *column = UNCHANGED;
            }
        }
        self.others_have_tokens = false;
        self.anew = result.is_err();
        if let Err(error) = result {
            self.plan.clear();
            return Err(error);
        }
        Ok(self.plan.plan())
    }

    /// Has the tiles of the batch chosen. The batch is counted again once more than an eighth of its distinct tokens or requests have come or
    /// gone, and is another one to the selector only if it [differs much](BatchShape::differs_much). Another set is another plan, from nothing.
    fn decide(&mut self, choose: &mut impl ChooseTiles) -> Option<[Tile; TileSet::MOST]> {
        if choose.decides_batches() && (self.anew || self.drift.is_far(&self.batch, self.geometry.page_size))
        {
            let batch = batch_shape(&self.geometry, &self.forest);
            if self.anew || batch.differs_much(&self.batch) {
                self.batch = batch;
                self.drift = Drift::default();
            }
        }
        let tiles = choose.batch(&self.batch);
        if std::mem::replace(&mut self.tiles, tiles) != tiles {
            self.anew = true;
        }
        tiles
    }

    /// The last plan that was made; one of an empty batch before the first and after an error.
    pub const fn last(&self) -> &Plan {
        self.plan.plan()
    }

    fn pages(&self, request: u32) -> Result<u32, LiveError> {
        let pages = self.forest.request_pages(request);
        Ok(pages.ok_or(crate::ForestError::UnknownRequest { request })?)
    }

    fn check_tokens(&self, request: u32, tokens: u32, pages: u64) -> Result<(), LiveError> {
        let page_size = self.geometry.page_size;
        if u64::from(tokens.div_ceil(page_size)) <= pages && (tokens == 0) == (pages == 0) {
            Ok(())
        } else {
            Err(LiveError::Tokens { request, tokens, pages, page_size })
        }
    }

    /// Its columns from `column` on are others than planned.
    fn move_pages(&mut self, request: u32, column: u32) {
        let first = &mut self.columns[request as usize];
        if *first == UNCHANGED && column != UNCHANGED {
            self.moved.push(request);
        }
        *first = column.min(*first);
    }

    fn set_tokens(&mut self, request: u32, tokens: u32) {
        let before = std::mem::replace(&mut self.seq_lens[request as usize], tokens);
        self.others_have_tokens |= (before == 0) != (tokens == 0);
    }

    fn arrive(&mut self, request: u32, tokens: u32) {
        let batch = self.seq_lens.len().max(request as usize + 1);
        self.seq_lens.resize(batch, 0);
        self.columns.resize(batch, UNCHANGED);
        self.seq_lens[request as usize] = tokens;
        self.others_have_tokens = true;
        // The number may have belonged to another one since the last plan.
        self.move_pages(request, 0);
    }

    fn leave(&mut self, request: u32) {
        self.seq_lens[request as usize] = 0;
        self.others_have_tokens = true;
        while let Some(last) = self.seq_lens.len().checked_sub(1)
            && self.forest.request_pages(last as u32).is_none()
        {
            self.seq_lens.pop();
            self.columns.pop();
        }
    }
}

/// Whether every request ends on the page that it ended on: that page is there.
fn same_last_pages(before: &[u32], after: &[u32], page_size: u32) -> bool {
    let mut both = before.iter().zip(after);
    if page_size.is_power_of_two() {
        // Neither a division nor a branch: the compiler looks at several at once. Of no tokens the last one wraps around to a page that others
        // may have.
        let others = both.fold(0, |others, (&before, &after)| {
            let pages = before.wrapping_sub(1) ^ after.wrapping_sub(1);
            others | pages & !(page_size - 1) | u32::from((before == 0) != (after == 0))
        });
        others == 0
    } else {
        both.all(|(&before, &after)| match (before.checked_sub(1), after.checked_sub(1)) {
            (Some(before), Some(after)) => before / page_size == after / page_size,
            (before, after) => before == after,
        })
    }
}
