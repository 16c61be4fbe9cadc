//! Which nodes a batch of changes touched, each of them once.

/// The nodes that changed since [`crate::LiveForest::clear_touched`]. A node is in one list only, in no particular order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched<'a> {
    /// Leaves of one request whose last pages came, went or were replaced. All else about them stayed: request, parent, first column.
    pub grown: &'a [u32],
    /// Nodes that are new, or whose parent, columns, children, ending requests or size changed otherwise. A node whose request was
    /// renamed is here, but none of those above it: they name no request.
    pub changed: &'a [u32],
    /// Numbers that are not in use any more. They may have come into use only since the last time.
    pub freed: &'a [u32],
}

impl Touched<'_> {
    /// Whether the trees are as they were.
    pub fn is_empty(&self) -> bool {
        self.grown.is_empty() && self.changed.is_empty() && self.freed.is_empty()
    }
}

/// In which list a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    Grown,
    Changed,
    Freed,
}

/// Three lists, and for each node its place in one of them. The lists keep their memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Touches {
    /// Its list and the place in it, for every node.
    stamps: Vec<Option<(Touch, u32)>>,
    lists: [Vec<u32>; 3],
}

impl Touches {
    /// Makes room for one node more.
    pub(super) fn push_node(&mut self) {
        self.stamps.push(None);
    }

    /// Puts a node into a list, and out of the one where it was. Growing is nothing new to a node that changed.
    pub(super) fn touch(&mut self, node: u32, touch: Touch) {
        match self.stamps[node as usize] {
            Some((old, _)) if old == touch || touch == Touch::Grown => return,
            Some((old, place)) => {
                let list = &mut self.lists[old as usize];
                list.swap_remove(place as usize);
                if let Some(&moved) = list.get(place as usize) {
                    self.stamps[moved as usize] = Some((old, place));
                }
            }
            None => {}
        }
        let list = &mut self.lists[touch as usize];
        self.stamps[node as usize] = Some((touch, list.len() as u32));
        list.push(node);
    }

    /// Empties the lists, in time proportional to what is in them.
    pub(super) fn clear(&mut self) {
        for list in &mut self.lists {
            list.drain(..).for_each(|node| self.stamps[node as usize] = None);
        }
    }

    pub(super) fn view(&self) -> Touched<'_> {
        let [grown, changed, freed] = &self.lists;
        Touched { grown, changed, freed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_listed_by_its_last_change() {
        let mut touches = Touches::default();
        (0..4).for_each(|_| touches.push_node());
        (0..4).for_each(|node| touches.touch(node, Touch::Grown));
        touches.touch(1, Touch::Changed);
        touches.touch(3, Touch::Freed);
        touches.touch(1, Touch::Grown);
        assert_eq!(touches.view(), Touched { grown: &[0, 2], changed: &[1], freed: &[3] });
        touches.touch(3, Touch::Changed);
        touches.touch(0, Touch::Changed);
        assert_eq!(touches.view(), Touched { grown: &[2], changed: &[1, 3, 0], freed: &[] });
        touches.clear();
        assert!(touches.view().is_empty());
        touches.touch(1, Touch::Grown);
        assert_eq!(touches.view(), Touched { grown: &[1], changed: &[], freed: &[] });
    }
}
