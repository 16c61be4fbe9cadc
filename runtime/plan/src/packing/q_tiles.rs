//! Packs cut into Q tiles: which requests one CTA computes, and which segments of pages it reads for them.

use crate::PrefixTree;
use std::ops::Range;

/// Requests of a pack that one CTA computes together, for one KV head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QTileNodes {
    /// The requests, as a range of [`QTiles::requests`].
    pub requests: Range<u32>,
    /// The segments that it reads, root first, as a range of [`QTiles::segments`].
    pub segments: Range<u32>,
}

/// The pages of a node that a Q tile reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSegment {
    /// The node.
    pub node: u32,
    /// The Q tile's requests that have the pages, counted from the first of the Q tile; rows of the others are masked.
    pub members: Range<u32>,
}

/// The Q tiles of packs, one pack behind the other.
///
/// A pack is a connected part of a tree: a top node and those of its descendants that are *joined* to their parents; a node that
/// is not joined is *apart*, the top of another pack. The requests of a pack are all requests of its top, in depth-first order: a
/// node's ending requests, then its children's. A Q tile takes some of them that follow each other and reads the segments of all the
/// pack's nodes that they have. A node that does not end with its Q tile goes on in the next one, which reads it again.
#[derive(Clone, Debug, Default)]
pub struct QTiles {
    requests: Vec<u32>,
    q_tiles: Vec<QTileNodes>,
    segments: Vec<NodeSegment>,
    stack: Vec<Visit>,
    /// The pack's nodes from the top to the current one, and the requests of all packs before each.
    path: Vec<(u32, u32)>,
    /// Of the first of them, the places in `segments` of the segments that have begun in the current Q tile.
    begun: Vec<u32>,
}

/// A node to visit: how many nodes of the pack are above it, and whether it is in the pack itself.
#[derive(Clone, Copy, Debug)]
struct Visit {
    node: u32,
    depth: u32,
    joined: bool,
}

impl QTiles {
    /// The requests of all packs.
    pub fn requests(&self) -> &[u32] {
        &self.requests
    }

    /// The Q tiles of all packs.
    pub fn q_tiles(&self) -> &[QTileNodes] {
        &self.q_tiles
    }

    /// The segments of all Q tiles: of each, the nodes in pre-order.
    pub fn segments(&self) -> &[NodeSegment] {
        &self.segments
    }

    /// The requests of a Q tile.
    pub fn requests_of(&self, q_tile: &QTileNodes) -> &[u32] {
        &self.requests[q_tile.requests.start as usize..q_tile.requests.end as usize]
    }

    /// The segments of a Q tile.
    pub fn segments_of(&self, q_tile: &QTileNodes) -> &[NodeSegment] {
        &self.segments[q_tile.segments.start as usize..q_tile.segments.end as usize]
    }

    /// Forgets all packs and keeps the memory.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.q_tiles.clear();
        self.segments.clear();
    }

    /// Appends the pack of `top` and returns its Q tiles, as a range of [`QTiles::q_tiles`]. A Q tile takes up to `capacity` requests
    /// (one, if that is zero). `joined` is asked for the nodes below the top.
    ///
    /// A joined node starts the next Q tile, and leaves the room in the current one empty, if it would be in one Q tile more otherwise,
    /// unless the room is missing later: its own pages must be more than those of the nodes above it that will be in one Q tile more.
    ///
    /// The time is linear in the nodes below the top and the segments that come out, and in the depth of nodes that may leave room. Once the largest batch has been seen, it
    /// allocates nothing.
    pub fn push_pack(
        &mut self,
        tree: &impl PrefixTree,
        top: u32,
        joined: impl Fn(u32) -> bool,
        capacity: u32,
    ) -> Range<u32> {
        let capacity = capacity.max(1);
        let first_q_tile = self.q_tiles.len() as u32;
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
                    room = self.make_room(room, first_q_tile, capacity) - 1;
                    self.begin_segments();
                    let member = self.in_q_tile();
                    self.segments.push(NodeSegment { node, members: member..member + 1 });
                    self.requests.push(request);
                    continue;
                }
                self.path.push((node, self.requests.len() as u32));
                below += 1;
            }
            let mut ending = ending;
            while !ending.is_empty() {
                room = self.make_room(room, first_q_tile, capacity);
                self.begin_segments();
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
        self.close(first_q_tile);
        first_q_tile..self.q_tiles.len() as u32
    }

    /// Whether a node that comes next had better start the next Q tile.
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

    /// Leaves the nodes of the path from `depth` on: their segments end here.
    #[inline]
    fn leave(&mut self, depth: u32) {
        self.path.truncate(depth as usize);
        let members = self.in_q_tile();
        while self.begun.len() > depth as usize {
            if let Some(segment) = self.begun.pop() {
                self.segments[segment as usize].members.end = members;
            }
        }
    }

    /// Closes the last Q tile of the pack, if it has one: all its segments end.
    #[inline]
    fn close(&mut self, first_q_tile: u32) {
        let members = self.in_q_tile();
        for segment in self.begun.drain(..) {
            self.segments[segment as usize].members.end = members;
        }
        if self.q_tiles.len() as u32 > first_q_tile
            && let Some(q_tile) = self.q_tiles.last_mut()
        {
            q_tile.requests.end = self.requests.len() as u32;
            q_tile.segments.end = self.segments.len() as u32;
        }
    }

    /// The room in the current Q tile, which is a new one if there was none.
    #[inline]
    fn make_room(&mut self, room: u32, first_q_tile: u32, capacity: u32) -> u32 {
        if room > 0 {
            return room;
        }
        self.close(first_q_tile);
        self.open();
        capacity
    }

    #[inline]
    fn open(&mut self) {
        let (requests, segments) = (self.requests.len() as u32, self.segments.len() as u32);
        self.q_tiles.push(QTileNodes { requests: requests..requests, segments: segments..segments });
    }

    /// Begins the segments of those nodes of the path that have none in the current Q tile yet.
    #[inline]
    fn begin_segments(&mut self) {
        let members = self.in_q_tile();
        for level in self.begun.len()..self.path.len() {
            self.begun.push(self.segments.len() as u32);
            self.segments.push(NodeSegment { node: self.path[level].0, members: members..members });
        }
    }

    /// Requests that are in the current Q tile so far.
    #[inline]
    fn in_q_tile(&self) -> u32 {
        self.q_tiles.last().map_or(0, |q_tile| self.requests.len() as u32 - q_tile.requests.start)
    }
}

/// Whether `requests` requests are in as few Q tiles if none of them is in the room of the current one.
#[inline]
pub(super) fn fits_without(room: u32, requests: u32, capacity: u32) -> bool {
    requests > room && (requests - room).div_ceil(capacity) >= requests.div_ceil(capacity)
}
