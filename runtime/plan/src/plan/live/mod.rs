//! A plan that is patched instead of made anew.
//!
//! A pack is emitted again, behind all others, only if its requests, nodes or tile changed; where it was before becomes garbage. A leaf
//! of one request that gains or loses pages is patched where it stands: it lies in one Q tile only, and how Q tiles are cut does not depend
//! on its pages. Chunks, destinations and work items are listed anew, unless only such leaves changed and no KV range is cut elsewhere.
//! PAT's packs, which few small forests prefer, are not patched.

mod emit;
mod finish;
mod garbage;
mod grow;
mod invariant;
mod order;
mod pat;

use super::invariant::Tiles;
use super::split::Limit;
use super::{Plan, PlanOptions, Scratch, Split};
use crate::{LiveForest, Packs, PlanError, PrefixTree, Priced};
use garbage::Arenas;
use std::ops::Range;
use tilewright_heuristics::{Geometry, PackShape, PackSums, Tile};

const NONE: u32 = u32::MAX;

/// What the plan knows of a node.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The top of its pack.
    top: u32,
    /// Where its pages stand in the plan, how many they are, and how many may stand there.
    pages: u32,
    len: u32,
    room: u32,
    /// Of a leaf of one request: its Q tile.
    q_tile: u32,
    /// Of a top: its pack, and the tops before and behind it in the order of packs.
    pack: u32,
    before: u32,
    behind: u32,
    /// The last steps in which its ancestors were looked at, its pack was given up, and emitted again.
    seen_in: u32,
    stale_in: u32,
    emitted_in: u32,
}

impl Place {
    const NOWHERE: Self = Self {
        top: NONE,
        pages: NONE,
        len: 0,
        room: 0,
        q_tile: NONE,
        pack: NONE,
        before: NONE,
        behind: NONE,
        seen_in: 0,
        stale_in: 0,
        emitted_in: 0,
    };
}

/// What is known of a pack besides what the plan says.
#[derive(Clone, Debug)]
struct PackState {
    /// Its top; [`NONE`] for the pack of the requests without tokens.
    top: u32,
    sums: PackSums,
    /// CTAs of a Q tile, over all KV heads.
    ctas: u32,
    /// The last step in which a leaf of it gained or lost pages.
    seen_in: u32,
    /// What it has in the plan's lists.
    requests: Range<u32>,
    segments: Range<u32>,
    /// Pages of its nodes, and room for more.
    pages: usize,
}

/// What changed since the last update.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changes<'a> {
    pub(crate) forest: &'a LiveForest,
    pub(crate) priced: &'a Priced,
    /// Nodes of which [`Priced`] decided otherwise than before.
    pub(crate) flipped: &'a [u32],
    /// Tokens of each request; none where there is no request.
    pub(crate) seq_lens: &'a [u32],
    /// Of each request that gained or lost pages, at most the first column that is another one now.
    pub(crate) columns: &'a [u32],
    /// Whether others have tokens than before, or the batch has another size.
    pub(crate) others_have_tokens: bool,
    /// Which tiles the packs may get.
    pub(crate) tiles: Tiles,
}

/// A plan, and what it takes to patch it.
#[derive(Clone, Debug, Default)]
pub(crate) struct LivePlan {
    plan: Plan,
    scratch: Scratch,
    arenas: Arenas,
    /// By node.
    nodes: Vec<Place>,
    /// By pack.
    packs: Vec<PackState>,
    /// The top of the first pack, in an order in which each pack comes behind the one above it.
    first: u32,
    /// The pack of the requests without tokens.
    empty: Option<u32>,
    /// How many packs selectors are told of.
    packs_asked: u32,
    /// Tokens of all CTAs.
    work: u64,
    /// KV ranges longer than this are cut; as of the last full listing of the chunks.
    limit: Limit,
    /// Tokens that came to KV ranges or went since the items were sorted.
    unsorted: u64,
    /// By Q tile: its chunks, the first one and how many.
    q_tile_chunks: Vec<(u32, u32)>,
    /// Counts updates, from 1 on.
    step: u32,
    /// Tops of packs to give up, tops of packs to emit, patched Q tiles, packs that see another number of tokens.
    stale: Vec<u32>,
    fresh: Vec<u32>,
    patched: Vec<u32>,
    reshaped: Vec<u32>,
    chunks: Vec<super::split::Chunk>,
    /// PAT's packs, and whether the plan is that of these: then nothing else is known but the plan.
    pats: Packs,
    has_pats: bool,
}

impl LivePlan {
    pub(crate) const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Becomes the plan of an empty batch, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.start();
        self.plan.seq_lens.clear();
        self.plan.items.clear();
        self.plan.groups.clear();
        self.plan.targets.clear();
        self.plan.merges.clear();
        self.plan.partials = 0;
    }

    fn start(&mut self) {
        self.plan.packs.clear();
        self.plan.q_tiles.clear();
        self.plan.segments.clear();
        self.plan.requests.clear();
        self.plan.pages.clear();
        self.arenas = Arenas::default();
        self.nodes.clear();
        self.packs.clear();
        self.q_tile_chunks.clear();
        (self.first, self.empty, self.work, self.step) = (NONE, None, 0, 0);
        self.has_pats = false;
    }

    /// Becomes the plan of the trees, whatever it was before. An error leaves something that only [`Self::rebuild`] and
    /// [`Self::clear`] understand.
    pub(crate) fn rebuild(
        &mut self,
        geometry: &Geometry,
        changes: &Changes<'_>,
        options: &PlanOptions,
        select: &mut impl FnMut(&PackShape) -> Tile,
    ) -> Result<(), PlanError> {
        self.plan.geometry = *geometry;
        self.plan.invariant = false;
        if options.split == Split::Invariant {
            return self.rebuild_invariant(changes, options, select);
        }
        if changes.priced.prefers_pat() {
            return self.rebuild_pats(changes, options, select);
        }
        self.take_lengths(changes);
        self.emit_all(changes, select)?;
        self.emit_empty(changes, true, select)?;
        self.finish(options)
    }

    /// Follows the changes that the forest names as touched. An error leaves something that only [`Self::rebuild`] and [`Self::clear`]
    /// understand.
    pub(crate) fn update(
        &mut self,
        changes: &Changes<'_>,
        options: &PlanOptions,
        select: &mut impl FnMut(&PackShape) -> Tile,
    ) -> Result<(), PlanError> {
        let Changes { forest, priced, .. } = *changes;
        if options.split == Split::Invariant {
            return self.update_invariant(changes, options, select);
        }
        if self.has_pats || priced.prefers_pat() {
            return self.update_pats(changes, options, select);
        }
        if self.step == u32::MAX {
            let geometry = self.plan.geometry;
            return self.rebuild(&geometry, changes, options, select);
        }
        self.take_lengths(changes);
        if forest.touched().is_empty() && changes.flipped.is_empty() && !changes.others_have_tokens {
            // Requests grew inside their pages: no KV range is another one.
            return Ok(());
        }
        self.step += 1;
        self.nodes.resize(self.nodes.len().max(forest.capacity()), Place::NOWHERE);
        for list in [&mut self.stale, &mut self.fresh, &mut self.patched, &mut self.reshaped] {
            list.clear();
        }
        let touched = forest.touched();
        touched.freed.iter().for_each(|&node| self.give_up(node));
        for &node in touched.changed {
            // All packs above name the requests that end here, in this order.
            let mut next = Some(node);
            while let Some(node) = next
                && std::mem::replace(&mut self.nodes[node as usize].seen_in, self.step) != self.step
            {
                self.give_up(node);
                if !priced.joined(node) {
                    self.emit_later(node);
                }
                next = forest.parent(node);
            }
        }
        for &node in changes.flipped {
            self.flip(changes, node);
        }
        self.grown_packs(changes, select)?;
        self.ask_again(changes, select)?;
        self.grow_leaves(changes)?;
        let emits = !self.stale.is_empty() || !self.fresh.is_empty();
        let all = emits && self.emit_stale(changes, select)?;
        let empty = self.emit_empty(changes, all || changes.others_have_tokens, select)?;
        if self.arenas.mostly_garbage(&self.plan) {
            self.emit_all(changes, select)?;
            self.emit_empty(changes, true, select)?;
        } else if !emits && !empty && !changes.others_have_tokens && self.patch_chunks(options) {
            return Ok(());
        }
        self.finish(options)
    }

    fn take_lengths(&mut self, changes: &Changes<'_>) {
        self.plan.seq_lens.clear();
        self.plan.seq_lens.extend_from_slice(changes.seq_lens);
    }

    /// The pack that a node is in is not what it was.
    fn give_up(&mut self, node: u32) {
        let Some(&Place { top, .. }) = self.nodes.get(node as usize) else { return };
        if let Some(top_place) = self.nodes.get_mut(top as usize)
            && top_place.stale_in != self.step
        {
            top_place.stale_in = self.step;
            self.stale.push(top);
        }
    }

    /// A node is the top of a pack that has to be emitted.
    fn emit_later(&mut self, top: u32) {
        let place = &mut self.nodes[top as usize];
        if place.emitted_in != self.step {
            place.emitted_in = self.step;
            self.fresh.push(top);
        }
    }

    /// A node joins the pack above or leaves it.
    fn flip(&mut self, changes: &Changes<'_>, node: u32) {
        let Changes { forest, priced, .. } = *changes;
        if (self.nodes[node as usize].top == node) != priced.joined(node) {
            // Only the height of the tile that the decision reckons with is another one.
            return;
        }
        self.give_up(node);
        let mut top = node;
        while priced.joined(top)
            && let Some(parent) = forest.parent(top)
        {
            self.give_up(parent);
            top = parent;
        }
        self.emit_later(top);
    }

    /// Asks the selector again about all packs if the number of packs that it is told is another one.
    fn ask_again(
        &mut self,
        changes: &Changes<'_>,
        select: &mut impl FnMut(&PackShape) -> Tile,
    ) -> Result<(), PlanError> {
        self.emit_what_stays(changes);
        let kept = self.packs.len() - usize::from(self.empty.is_some()) - self.stale.len();
        let asked = super::count(kept + self.fresh.len(), "packs")?;
        if std::mem::replace(&mut self.packs_asked, asked) == asked {
            return Ok(());
        }
        for pack in 0..self.packs.len() {
            let PackState { top, .. } = self.packs[pack];
            if top != NONE && self.nodes[top as usize].stale_in != self.step {
                self.reshape(pack as u32, select)?;
            }
        }
        self.emit_what_stays(changes);
        Ok(())
    }

    /// Packs that were given up and still have their top are to be emitted again.
    fn emit_what_stays(&mut self, changes: &Changes<'_>) {
        for index in 0..self.stale.len() {
            let top = self.stale[index];
            if changes.forest.size(top) > 0 && !changes.priced.joined(top) {
                self.emit_later(top);
            }
        }
    }

    /// Asks the selector about a pack that stays as it is but for its shape. With another tile, it does not stay.
    fn reshape(&mut self, pack: u32, select: &mut impl FnMut(&PackShape) -> Tile) -> Result<(), PlanError> {
        let PackState { top, sums, .. } = self.packs[pack as usize];
        let shape = self.plan.shape_of(&sums, self.packs_asked)?;
        let planned = &mut self.plan.packs[pack as usize];
        if planned.shape != shape {
            planned.shape = shape;
            if select(&shape) != planned.tile {
                self.give_up(top);
            }
        }
        Ok(())
    }
}
