//! What all kinds of scenarios come down to: prefix trees whose nodes hold tokens, and requests that end somewhere in them.

use std::collections::HashMap;

/// A run of tokens that requests share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutNode {
    /// Index of the node that comes before; a parent comes before its children. Its tokens fill whole pages.
    pub parent: Option<u32>,
    /// Tokens.
    pub tokens: u32,
}

/// A request: all tokens of the nodes above, and some of the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutRequest {
    /// The node that it ends in.
    pub node: u32,
    /// Tokens of that node that it has, at least 1.
    pub tokens: u32,
}

/// The prefix trees of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The nodes, parents before children.
    pub nodes: Vec<LayoutNode>,
    /// The requests.
    pub requests: Vec<LayoutRequest>,
}

/// Largest batches that are made: a typo must not eat all memory.
pub(crate) const MAX_REQUESTS: u64 = 1 << 18;
const MAX_TABLE_ENTRIES: u64 = 1 << 27;

impl Layout {
    /// Adds a node and says its index.
    pub fn push(&mut self, parent: Option<u32>, tokens: u32) -> u32 {
        self.nodes.push(LayoutNode { parent, tokens });
        self.nodes.len() as u32 - 1
    }

    /// Tokens of each node that some request really has: all of them if a child is used, else as far as the longest request.
    pub fn used_tokens(&self) -> Vec<u32> {
        let mut used = vec![0u32; self.nodes.len()];
        for request in &self.requests {
            let node = &mut used[request.node as usize];
            *node = (*node).max(request.tokens);
        }
        for index in (0..self.nodes.len()).rev() {
            if let (Some(parent), true) = (self.nodes[index].parent, used[index] > 0) {
                used[parent as usize] = self.nodes[parent as usize].tokens;
            }
        }
        used
    }

    /// Distinct tokens.
    pub fn unique_tokens(&self) -> u64 {
        self.used_tokens().into_iter().map(u64::from).sum()
    }

    /// Tokens before each node.
    fn tokens_before(&self) -> Vec<u64> {
        let mut before = vec![0u64; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            if let Some(parent) = node.parent {
                before[index] = before[parent as usize] + u64::from(self.nodes[parent as usize].tokens);
            }
        }
        before
    }

    /// Tokens of each request.
    pub fn seq_lens(&self) -> Vec<u64> {
        let before = self.tokens_before();
        self.requests
            .iter()
            .map(|request| before[request.node as usize] + u64::from(request.tokens))
            .collect()
    }

    /// Checks sizes, and that shared prefixes fill whole pages.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self, page_size: u32) -> Result<(), String> {
        if self.requests.is_empty() {
            return Err("there are no requests".to_owned());
        }
        if self.requests.len() as u64 > MAX_REQUESTS {
            return Err(format!("{} requests are more than {MAX_REQUESTS}", self.requests.len()));
        }
        for node in &self.nodes {
            let parent = node.parent.map(|parent| self.nodes[parent as usize].tokens);
            if let Some(tokens) = parent.filter(|tokens| !tokens.is_multiple_of(page_size)) {
                return Err(format!(
                    "a shared prefix of {tokens} tokens does not fill whole pages of {page_size}; use a multiple of the page size"
                ));
            }
        }
        let longest = self.seq_lens().into_iter().max().unwrap_or(0);
        if longest > u64::from(i32::MAX as u32) {
            return Err(format!("a request of {longest} tokens is too long"));
        }
        let entries = longest.div_ceil(u64::from(page_size)) * self.requests.len() as u64;
        if entries > MAX_TABLE_ENTRIES {
            return Err(format!(
                "{} requests of up to {longest} tokens need a page table of {entries} entries, more than {MAX_TABLE_ENTRIES}",
                self.requests.len()
            ));
        }
        Ok(())
    }

    /// Keeps every second request, beginning with the first, and the nodes that they need.
    pub(crate) fn halve_requests(&mut self) {
        let mut index = 0;
        self.requests.retain(|_| {
            index += 1;
            index % 2 == 1
        });
        let used = self.used_tokens();
        let mut renamed = HashMap::new();
        let mut nodes = Vec::new();
        for (old, node) in self.nodes.iter().enumerate() {
            if used[old] > 0 {
                renamed.insert(old as u32, nodes.len() as u32);
                nodes.push(LayoutNode { parent: node.parent.map(|parent| renamed[&parent]), ..*node });
            }
        }
        for request in &mut self.requests {
            request.node = renamed[&request.node];
        }
        self.nodes = nodes;
    }

    /// Halves the tokens of all nodes: whole pages where others go on, at least one page there and one token elsewhere.
    pub(crate) fn halve_tokens(&mut self, page_size: u32) {
        let mut has_children = vec![false; self.nodes.len()];
        for parent in self.nodes.iter().filter_map(|node| node.parent) {
            has_children[parent as usize] = true;
        }
        let before: Vec<u32> = self.nodes.iter().map(|node| node.tokens).collect();
        for (node, inner) in self.nodes.iter_mut().zip(has_children) {
            let half = node.tokens / 2;
            node.tokens = if inner { (half / page_size).max(1) * page_size } else { half.max(1) };
        }
        for request in &mut self.requests {
            let (old, new) = (before[request.node as usize], self.nodes[request.node as usize].tokens);
            request.tokens = if request.tokens == old { new } else { (request.tokens / 2).clamp(1, new) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root of 64 tokens with two leaves, one request ending inside the root.
    fn layout() -> Layout {
        let mut layout = Layout::default();
        let root = layout.push(None, 64);
        for tokens in [10, 33] {
            let node = layout.push(Some(root), tokens);
            layout.requests.push(LayoutRequest { node, tokens });
        }
        layout.requests.push(LayoutRequest { node: root, tokens: 20 });
        layout
    }

    #[test]
    fn tokens_are_counted_once_and_for_each_request() {
        assert_eq!(layout().unique_tokens(), 64 + 10 + 33);
        assert_eq!(layout().seq_lens(), [74, 97, 20]);
        assert_eq!(layout().check(32), Ok(()));
    }

    #[test]
    fn a_prefix_must_fill_its_pages() {
        assert!(layout().check(48).unwrap_err().contains("whole pages of 48"));
        assert!(Layout::default().check(32).is_err());
    }

    #[test]
    fn only_what_requests_have_counts() {
        let mut layout = layout();
        layout.requests.retain(|request| request.tokens == 20);
        assert_eq!(layout.unique_tokens(), 20);
    }

    #[test]
    fn halving_keeps_the_shape() {
        let mut fewer = layout();
        fewer.halve_requests();
        assert_eq!((fewer.requests.len(), fewer.nodes.len()), (2, 2));
        let mut shorter = layout();
        shorter.halve_tokens(32);
        assert_eq!(shorter.nodes.iter().map(|node| node.tokens).collect::<Vec<_>>(), [32, 5, 16]);
        assert_eq!(shorter.seq_lens(), [37, 48, 10]);
        shorter.halve_tokens(32);
        assert_eq!(shorter.nodes[0].tokens, 32, "a shared prefix keeps a page");
    }
}
