//! Batches of many tenants: several system prompts, each with its requests, and requests that share nothing.
//!
//! A batch is drawn from the scenario's seed and the batch's number alone: it is the same however many batches the file asks for.

use crate::layout::MAX_REQUESTS;
use crate::range::{Number, Part, Range};
use crate::{Layout, LayoutRequest};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// Tokens of one node.
type Tokens = Range<1, { 1 << 20 }>;

/// What batches are drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TenantsKeys {
    /// How many batches.
    pub(crate) batches: Number<1, 4096>,
    /// System prompts of a batch, one for each tenant.
    pub(crate) prompts: Range<0, 1024>,
    /// Tokens of a prompt, before they are rounded up to whole pages.
    pub(crate) prompt_tokens: Tokens,
    /// Requests of a tenant.
    pub(crate) requests: Range<1, 65_536>,
    /// Tokens that a request has for itself behind the shared ones.
    pub(crate) own_tokens: Tokens,
    /// Shared levels of a tenant, the prompt included.
    pub(crate) depths: Range<1, 16>,
    /// Groups that the requests of a shared node form, while there are levels left.
    pub(crate) groups: Range<1, 64>,
    /// Tokens that a group shares behind the node above, before they are rounded up to whole pages.
    pub(crate) group_tokens: Tokens,
    /// Requests that share nothing.
    pub(crate) lone_requests: Range<0, 65_536>,
    /// Tokens of a request that shares nothing.
    pub(crate) lone_tokens: Tokens,
    /// Part of the requests that have just begun a page: it holds one token.
    pub(crate) just_crossed: Part,
}

impl Default for TenantsKeys {
    fn default() -> Self {
        Self {
            batches: Number(8),
            prompts: Range::even(2, 8),
            prompt_tokens: Range::log(256, 8192),
            requests: Range::log(1, 48),
            own_tokens: Range::log(17, 2500),
            depths: Range::even(1, 3),
            groups: Range::even(1, 4),
            group_tokens: Range::log(64, 2048),
            lone_requests: Range::even(0, 20),
            lone_tokens: Range::log(17, 8192),
            just_crossed: Part(0.1),
        }
    }
}

/// Most requests of all batches of a file: about 100 MB before any is built.
const MAX_REQUESTS_OF_ALL: u64 = 1 << 22;

impl TenantsKeys {
    /// Says which key is wrong and why, in words. Only ranges are looked at: nothing is drawn yet.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        if self.prompts.min == 0 && self.lone_requests.min == 0 {
            let message =
                "a batch may have no requests; `prompts` or `lone_requests` needs a `min` of at least 1";
            return Err(("prompts", message.to_owned()));
        }
        let shared = u64::from(self.prompts.max) * u64::from(self.requests.max);
        let requests = shared + u64::from(self.lone_requests.max);
        if requests > MAX_REQUESTS {
            return Err((
                "requests",
                format!(
                    "a batch may have {requests} requests, more than {MAX_REQUESTS}; \
                     use a smaller `max` of `prompts`, `requests` or `lone_requests`"
                ),
            ));
        }
        let batches = self.batches.0;
        let all = requests * u64::from(batches);
        if all > MAX_REQUESTS_OF_ALL {
            return Err((
                "batches",
                format!(
                    "{batches} batches may have {all} requests, more than {MAX_REQUESTS_OF_ALL}; \
                     use fewer batches or requests"
                ),
            ));
        }
        Ok(())
    }

    /// Draws a batch for pages of `page_size` tokens. Shared nodes are multiples of `whole_pages` tokens.
    pub(crate) fn draw(&self, seed: u64, number: u32, page_size: u32, whole_pages: u32) -> Layout {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // Streams of one seed are independent of each other.
        rng.set_stream(u64::from(number));
        let mut drawing = Drawing { keys: self, rng, page_size, whole_pages, layout: Layout::default() };
        for _ in 0..self.prompts.draw(&mut drawing.rng) {
            drawing.tenant();
        }
        for _ in 0..self.lone_requests.draw(&mut drawing.rng) {
            drawing.request(None, self.lone_tokens, self.lone_tokens);
        }
        // Requests of all tenants arrive in between each other.
        let Drawing { mut rng, mut layout, .. } = drawing;
        layout.requests.shuffle(&mut rng);
        layout
    }
}

/// A batch in the making.
struct Drawing<'a> {
    keys: &'a TenantsKeys,
    rng: ChaCha8Rng,
    page_size: u32,
    whole_pages: u32,
    layout: Layout,
}

impl Drawing<'_> {
    fn tenant(&mut self) {
        let prompt = self.shared(None, self.keys.prompt_tokens);
        let requests = self.keys.requests.draw(&mut self.rng);
        let levels = self.keys.depths.draw(&mut self.rng) - 1;
        // Requests of one tenant resemble each other more than those of different tenants do.
        let own_tokens = self.keys.own_tokens.draw_part(&mut self.rng);
        self.below(prompt, requests, levels, own_tokens);
    }

    /// Adds requests below a shared node: some directly, the others in groups while there are `levels` left.
    fn below(&mut self, node: u32, requests: u32, levels: u32, own_tokens: Tokens) {
        let groups = if levels == 0 { 0 } else { self.keys.groups.draw(&mut self.rng) };
        // The first place is that of the requests in no group.
        let mut members = vec![0u32; groups as usize + 1];
        for _ in 0..requests {
            members[self.rng.random_range(0..=groups) as usize] += 1;
        }
        let mut direct = members[0];
        for &members in &members[1..] {
            if members < 2 {
                // A request alone shares nothing more.
                direct += members;
            } else {
                let group = self.shared(Some(node), self.keys.group_tokens);
                self.below(group, members, levels - 1, own_tokens);
            }
        }
        for _ in 0..direct {
            self.request(Some(node), own_tokens, self.keys.own_tokens);
        }
    }

    fn shared(&mut self, parent: Option<u32>, tokens: Tokens) -> u32 {
        let tokens = tokens.draw(&mut self.rng).next_multiple_of(self.whole_pages);
        self.layout.push(parent, tokens)
    }

    /// Adds a request whose own tokens are drawn from `part` of a key's range.
    fn request(&mut self, parent: Option<u32>, part: Tokens, range: Tokens) {
        let mut tokens = part.draw(&mut self.rng);
        if self.rng.random_bool(self.keys.just_crossed.0) {
            // The nearest such length, if the range has one. The pages before are full, so the own tokens decide.
            let before = (tokens - 1) / self.page_size * self.page_size + 1;
            let lengths = [before, before + self.page_size];
            let in_range = |length: &u32| (range.min..=range.max).contains(length);
            tokens = lengths.into_iter().find(in_range).unwrap_or(tokens);
        }
        let node = self.layout.push(parent, tokens);
        self.layout.requests.push(LayoutRequest { node, tokens });
    }
}

#[cfg(test)]
#[path = "tenants_tests.rs"]
mod tests;
