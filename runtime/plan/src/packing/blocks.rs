//! Packs cut into blocks: which requests one CTA computes, and which runs of pages it walks for them.

use crate::PrefixTree;
use std::ops::Range;

/// Requests of a pack that one CTA computes together, for one KV head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockNodes {
    /// The requests, as a range of [`Blocks::requests`].
    pub requests: Range<u32>,
    /// The runs that it walks, root first, as a range of [`Blocks::runs`].
    pub runs: Range<u32>,
}

/// The pages of a node that a block walks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRun {
    /// The node.
    pub node: u32,
    /// The block's requests that have the pages, counted from the first of the block; rows of the others are masked.
    pub members: Range<u32>,
}

/// The blocks of packs, one pack behind the other.
///
/// A pack is a connected part of a tree: a top node and those of its descendants that are *joined* to their parents; a node that
/// is not joined is *apart*, the top of another pack. The requests of a pack are all requests of its top, in depth-first order: a
/// node's ending requests, then its children's. A block takes some of them that follow each other and walks the runs of all the
/// pack's nodes that they have. A node that does not end with its block goes on in the next one, which reads it again.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    requests: Vec<u32>,
    blocks: Vec<BlockNodes>,
    runs: Vec<NodeRun>,
    stack: Vec<Visit>,
    /// The pack's nodes from the top to the current one, and the requests of all packs before each.
    path: Vec<(u32, u32)>,
    /// Of the first of them, the places in `runs` of the runs that have begun in the current block.
    begun: Vec<u32>,
}

/// A node to walk: how many nodes of the pack are above it, and whether it is in the pack itself.
#[derive(Clone, Copy, Debug)]
struct Visit {
    node: u32,
    depth: u32,
    joined: bool,
}

impl Blocks {
    /// The requests of all packs.
    pub fn requests(&self) -> &[u32] {
        &self.requests
    }

    /// The blocks of all packs.
    pub fn blocks(&self) -> &[BlockNodes] {
        &self.blocks
    }

    /// The runs of all blocks: of each, the nodes in pre-order.
    pub fn runs(&self) -> &[NodeRun] {
        &self.runs
    }

    /// The requests of a block.
    pub fn requests_of(&self, block: &BlockNodes) -> &[u32] {
        &self.requests[block.requests.start as usize..block.requests.end as usize]
    }

    /// The runs of a block.
    pub fn runs_of(&self, block: &BlockNodes) -> &[NodeRun] {
        &self.runs[block.runs.start as usize..block.runs.end as usize]
    }

    /// Forgets all packs and keeps the memory.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.blocks.clear();
        self.runs.clear();
    }

    /// Appends the pack of `top` and returns its blocks, as a range of [`Blocks::blocks`]. A block takes up to `capacity` requests
    /// (one, if that is zero). `joined` is asked for the nodes below the top.
    ///
    /// A joined node starts the next block, and leaves the room in the current one empty, if it would be in one block more otherwise,
    /// unless the room is missing later: its own pages must be more than those of the nodes above it that will be in one block more.
    ///
    /// The time is linear in the nodes below the top and the runs that come out, and in the depth of nodes that may leave room. Once the largest batch has been seen, it
    /// allocates nothing.
    pub fn push_pack(
        &mut self,
        tree: &impl PrefixTree,
        top: u32,
        joined: impl Fn(u32) -> bool,
        capacity: u32,
    ) -> Range<u32> {
        let capacity = capacity.max(1);
        let first_block = self.blocks.len() as u32;
        self.path.clear();
        self.begun.clear();
        self.stack.clear();
        self.stack.push(Visit { node: top, depth: 0, joined: true });
        let mut room = 0;
        while let Some(Visit { node, depth, joined: in_pack }) = self.stack.pop() {
            self.leave(depth);
            let ending = tree.ending(node);
            let size = tree.size(node);
            let mut below = depth;
            if in_pack {
                if room > 0 && depth > 0 && size > room && self.is_worth_the_room(tree, node, room, capacity)
                {
                    room = 0;
                }
                if let &[request] = ending
                    && size == 1
                {
                    // A leaf of one request, as most are, does not go onto the path only to leave it.
                    room = self.make_room(room, first_block, capacity) - 1;
                    self.begin_runs();
                    let member = self.in_block();
                    self.runs.push(NodeRun { node, members: member..member + 1 });
                    self.requests.push(request);
                    continue;
                }
                self.path.push((node, self.requests.len() as u32));
                below += 1;
            }
            let mut ending = ending;
            while !ending.is_empty() {
                room = self.make_room(room, first_block, capacity);
                self.begin_runs();
                let taken = ending.len().min(room as usize);
                self.requests.extend_from_slice(&ending[..taken]);
                ending = &ending[taken..];
                room -= taken as u32;
            }
            self.stack.extend(tree.children(node).rev().map(|child| Visit {
                node: child,
                depth: below,
                joined: in_pack && joined(child),
            }));
        }
        self.leave(0);
        self.close(first_block);
        first_block..self.blocks.len() as u32
    }

    /// Whether a node that comes next had better start the next block.
    fn is_worth_the_room(&self, tree: &impl PrefixTree, node: u32, room: u32, capacity: u32) -> bool {
        let fits_without = |requests: u32| fits_without(room, requests, capacity);
        if !fits_without(tree.size(node)) {
            return false;
        }
        let placed = self.requests.len() as u32;
        let left = |above: u32, before: u32| tree.size(above).saturating_sub(placed - before);
        let pages = |node: u32| tree.columns(node).len() as u64;
        let once_more = self.path.iter().filter(|(above, before)| !fits_without(left(*above, *before)));
        once_more.map(|(above, _)| pages(*above)).sum::<u64>() < pages(node)
    }

    /// Leaves the nodes of the path from `depth` on: their runs end here.
    #[inline]
    fn leave(&mut self, depth: u32) {
        self.path.truncate(depth as usize);
        let members = self.in_block();
        while self.begun.len() > depth as usize {
            if let Some(run) = self.begun.pop() {
                self.runs[run as usize].members.end = members;
            }
        }
    }

    /// Closes the last block of the pack, if it has one: all its runs end.
    #[inline]
    fn close(&mut self, first_block: u32) {
        let members = self.in_block();
        for run in self.begun.drain(..) {
            self.runs[run as usize].members.end = members;
        }
        if self.blocks.len() as u32 > first_block
            && let Some(block) = self.blocks.last_mut()
        {
            block.requests.end = self.requests.len() as u32;
            block.runs.end = self.runs.len() as u32;
        }
    }

    /// The room in the current block, which is a new one if there was none.
    #[inline]
    fn make_room(&mut self, room: u32, first_block: u32, capacity: u32) -> u32 {
        if room > 0 {
            return room;
        }
        self.close(first_block);
        self.open();
        capacity
    }

    #[inline]
    fn open(&mut self) {
        let (requests, runs) = (self.requests.len() as u32, self.runs.len() as u32);
        self.blocks.push(BlockNodes { requests: requests..requests, runs: runs..runs });
    }

    /// Begins the runs of those nodes of the path that have none in the current block yet.
    #[inline]
    fn begin_runs(&mut self) {
        let members = self.in_block();
        for level in self.begun.len()..self.path.len() {
            self.begun.push(self.runs.len() as u32);
            self.runs.push(NodeRun { node: self.path[level].0, members: members..members });
        }
    }

    /// Requests that are in the current block so far.
    #[inline]
    fn in_block(&self) -> u32 {
        self.blocks.last().map_or(0, |block| self.requests.len() as u32 - block.requests.start)
    }
}

/// Whether so many requests are in as few blocks if none of them is in the room of the current one.
#[inline]
pub(super) fn fits_without(room: u32, requests: u32, capacity: u32) -> bool {
    requests > room && (requests - room).div_ceil(capacity) >= requests.div_ceil(capacity)
}
