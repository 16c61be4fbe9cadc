//! Following trees as they change: only what changed is decided again, but for small forests.

use super::Priced;
use crate::packing::small::SMALL;
use crate::packing::summary::{Choice, NONE, STATES, Summary};
use crate::{PackLayout, PrefixTree, Prices};

impl Priced {
    /// Decides again after changes, and returns the nodes that have another decision than before: joined or apart, or the tile of a
    /// pack's top. The result is that of [`Self::decide`].
    ///
    /// `changed`: every node in the trees that is new, has another parent or other columns, lost a child, or that requests end with
    /// which came or went; one whose requests changed only below it need not be named. `freed`: numbers that nodes had which are no
    /// more, also if a changed node has the number now. With another layout or other prices everything is decided anew, and so it is where
    /// the forest is a small one or was. [`Self::prefers_pat`] may say otherwise than before in each case.
    pub fn update(
        &mut self,
        tree: &impl PrefixTree,
        changed: &[u32],
        freed: &[u32],
        layout: &PackLayout,
        prices: &Prices,
    ) -> &[u32] {
        self.flipped.clear();
        for &node in freed {
            if let Some(summary) = self.nodes.get_mut(node as usize) {
                summary.choice = Choice::Unknown;
            }
        }
        let Some(model) = self.known_model(layout, prices) else {
            self.list(tree);
            self.remember();
            let model = self.start(tree, layout, prices);
            self.decide_listed(&model, tree);
            return self.note_flipped();
        };
        if self.nodes.len() < tree.capacity() {
            self.grow(tree.capacity());
        }
        if self.was_small || tree.node_count() <= SMALL {
            // Not by starting from nothing: the numbers that were ever in use may be many more than the nodes.
            freed.iter().for_each(|&node| self.forget(node));
            self.list(tree);
            self.remember();
            for index in 0..self.order.len() {
                self.forget(self.order[index]);
            }
            self.decide_listed(&model, tree);
            return self.note_flipped();
        }

        // A node that left is no longer counted where it was; then each sum holds exactly the children that stayed.
        freed.iter().for_each(|&node| self.take_back(node));
        let in_tree = |node: &&u32| (**node as usize) < tree.capacity();
        for &node in changed.iter().filter(in_tree) {
            if self.nodes[node as usize].given_to != tree.parent(node).unwrap_or(NONE) {
                self.take_back(node);
            }
        }

        // Changed nodes and those above them, children first.
        self.stack.clear();
        for &node in changed.iter().filter(in_tree) {
            let mut next = Some(node);
            while let Some(node) = next {
                let summary = &mut self.nodes[node as usize];
                if std::mem::replace(&mut summary.touched, true) {
                    break;
                }
                self.stack.push(node);
                next = tree.parent(node);
                if let Some(parent) = next {
                    self.nodes[parent as usize].pending += 1;
                }
            }
        }
        self.order.clear();
        let ready = |node: &u32| self.nodes[*node as usize].pending == 0;
        self.order.extend(self.stack.iter().copied().filter(ready));
        let mut done = 0;
        while let Some(&node) = self.order.get(done) {
            done += 1;
            self.nodes[node as usize].touched = false;
            self.reckon(&model, tree, node);
            if let Some(parent) = tree.parent(node) {
                let pending = &mut self.nodes[parent as usize].pending;
                *pending -= 1;
                if *pending == 0 {
                    self.order.push(parent);
                }
            }
        }

        // Parents first again; where the state of a pack changed, down to where it no longer matters.
        for index in (0..self.order.len()).rev() {
            self.stack.clear();
            self.stack.push(self.order[index]);
            while let Some(node) = self.stack.pop() {
                let above = self.state_above(node);
                let summary = &mut self.nodes[node as usize];
                let (choice, state) = summary.choose(above);
                if std::mem::replace(&mut summary.choice, choice) != choice {
                    self.flipped.push(node);
                }
                if std::mem::replace(&mut summary.state, state) != state {
                    self.stack.extend(tree.children(node));
                }
            }
        }
        &self.flipped
    }

    /// Remembers what is decided for the nodes that are listed.
    fn remember(&mut self) {
        let choice = |node: &u32| self.nodes.get(*node as usize).map_or(Choice::Unknown, |node| node.choice);
        self.before.clear();
        self.before.extend(self.order.iter().map(choice));
    }

    /// Which of the nodes that are listed have another decision than the one that was remembered.
    fn note_flipped(&mut self) -> &[u32] {
        let differs = |(node, before): &(&u32, &Choice)| self.nodes[**node as usize].choice != **before;
        let flipped = self.order.iter().zip(&self.before).filter(differs);
        self.flipped.extend(flipped.map(|(node, _)| *node));
        &self.flipped
    }

    /// Forgets all that is known of a number.
    fn forget(&mut self, node: u32) {
        let node = node as usize;
        if node < self.nodes.len() {
            self.nodes[node] = Summary::EMPTY;
            (self.below[node], self.given[node]) = ([0; STATES], [0; STATES]);
        }
    }

    /// Takes what a node gave to its parent back.
    fn take_back(&mut self, node: u32) {
        let Some(summary) = self.nodes.get_mut(node as usize) else { return };
        let given = std::mem::replace(&mut self.given[node as usize], [0; STATES]);
        let parent = std::mem::replace(&mut summary.given_to, NONE);
        if let Some(below) = self.below.get_mut(parent as usize) {
            below.iter_mut().zip(given).for_each(|(sum, given)| *sum = sum.wrapping_sub(given));
        }
    }
}
