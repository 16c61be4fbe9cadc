//! A request that takes tokens back: what it still uses of the prefix cache.

use super::{PageError, PageManager, RequestId};

impl PageManager {
    /// Takes back all tokens of a request but the first `tokens` ones (drafts that were rejected, beams that go back). Pages beyond
    /// them are released, those reserved ahead too. What is known stays known, and other requests keep what they share; if the
    /// last page that stays is one of those and is not full, the next append copies it.
    ///
    /// Whether K and V of the tokens that stay are written is as before.
    ///
    /// # Errors
    /// Unknown request, or it has fewer tokens; nothing is changed then.
    pub fn truncate(&mut self, request: RequestId, tokens: u32) -> Result<(), PageError> {
        let (index, page_size) = (self.index(request)?, self.page_size());
        let request = &mut self.places[index].request;
        let before = request.sequence.tokens();
        if tokens > before {
            return Err(PageError::NoSuchTokens { begin: 0, end: tokens, tokens: before });
        }
        let (full, rest) = (tokens / page_size, tokens % page_size);
        let known = request.in_cache();
        let keep = known.len().min(full as usize + usize::from(rest > 0));
        // From the last to the first, as in `discard`.
        for &page in known[keep..].iter().rev() {
            self.cache.let_go(page);
        }
        let cut = known[..keep].get(full as usize).copied();
        let last = full.checked_sub(1).and_then(|last| known.get(last as usize)).copied();
        if full < request.published {
            request.unpublished.clear();
            if let Some(page) = cut {
                request.unpublished.extend_from_slice(&self.cache.content(page).1[..rest as usize]);
            }
            request.prefix = match last {
                Some(page) => self.cache.content(page).0.on(page),
                None => request.prefix.beginning(),
            };
            request.published = full;
        } else {
            request.unpublished.truncate((tokens - request.published * page_size) as usize);
        }
        // No page after a cut one is known, so it is the last page that stays.
        request.cut = cut.is_some();
        request.sequence.truncate(&self.pool, tokens)
    }
}
