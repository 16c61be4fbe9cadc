//! What the host knows of a whole batch: whole numbers only.

use crate::record::whole_number_record;
use crate::{Dtype, Geometry, PackShape};

whole_number_record! {
    /// What a selector may ask about a batch. A choice is a pure function of these numbers, so it is equal on every rank.
    ///
    /// Tokens are counted in whole pages, so that a request that grows inside its last page changes nothing. A number too large for 32 bits
    /// stops at the largest.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct BatchShape: u32 {
        #[doc = "requests"]
        requests,
        #[doc = "requests x query heads: query rows of all KV heads"]
        all_rows,
        #[doc = "prefix trees: groups of requests that share a first page, and requests alone"]
        trees,
        #[doc = "requests that share no page with another"]
        lone,
        #[doc = "KV tokens of the longest request"]
        longest,
        #[doc = "distinct KV tokens"]
        unique_tokens,
        #[doc = "distinct KV tokens x KV heads: what CTAs read, each token once"]
        unique_kv,
        #[doc = "of the distinct KV tokens, those of one request alone, in percent"]
        private_percent,
        #[doc = "query rows of one KV head that see a shared token, on average; 0 where nothing is shared"]
        shared_rows,
        #[doc = "query rows of one KV head that see a distinct token, on average"]
        mean_rows,
        #[doc = "distinct KV tokens of one request alone x KV heads, on average over the requests"]
        private_kv,
        #[doc = "KV heads"]
        kv_heads,
        #[doc = "query heads per KV head"]
        gqa_ratio,
        #[doc = "elements of one head's vector"]
        head_dim,
        #[doc = "tokens of one page"]
        page_size,
        #[doc = "element types: 0 f16, 1 bf16, 2 f32; with K and V in e4m3: 3 f16, 4 bf16, 5 f32; in e5m2: 6 f16, 7 bf16, 8 f32"]
        dtype,
    }
}

/// What a [`BatchShape`] is counted from: the nodes of a batch's prefix trees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchSums {
    /// Requests with tokens.
    pub requests: u64,
    /// Prefix trees.
    pub trees: u64,
    /// Trees of one request.
    pub lone: u64,
    /// Tokens of the longest request.
    pub longest: u64,
    /// Distinct tokens.
    pub unique: u64,
    /// Of these, those of one request alone.
    pub private: u64,
    /// Tokens of all requests together.
    pub seen: u64,
}

impl BatchSums {
    /// Counts a node: tokens that `requests` requests share, or that one has for itself.
    #[inline]
    pub const fn add_node(&mut self, tokens: u64, requests: u64) {
        self.unique += tokens;
        self.seen += tokens.saturating_mul(requests);
        if requests == 1 {
            self.private += tokens;
        }
    }

    /// Counts a tree of `requests` requests.
    #[inline]
    pub const fn add_tree(&mut self, requests: u64) {
        self.trees += 1;
        self.requests += requests;
        self.lone += (requests == 1) as u64;
    }
}

impl BatchShape {
    /// No batch: nothing was counted.
    pub const UNKNOWN: Self = Self::from_values([0; Self::COUNT]);

    /// The shape of a batch.
    pub fn of(geometry: &Geometry, sums: &BatchSums) -> Self {
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let ratio = u64::from(geometry.q_heads / geometry.kv_heads.max(1));
        let kv_heads = u64::from(geometry.kv_heads);
        let rows = |seen: u64, tokens: u64| seen.saturating_mul(ratio).checked_div(tokens).unwrap_or(0);
        let &BatchSums { requests, trees, lone, longest, unique, private, seen } = sums;
        let private_kv = private.saturating_mul(kv_heads) / requests.max(1);
        Self {
            requests: narrow(requests),
            all_rows: narrow(requests.saturating_mul(geometry.q_heads.into())),
            trees: narrow(trees),
            lone: narrow(lone),
            longest: narrow(longest),
            unique_tokens: narrow(unique),
            unique_kv: narrow(unique.saturating_mul(kv_heads)),
            private_percent: narrow(private.saturating_mul(100) / unique.max(1)),
            shared_rows: narrow(rows(seen.saturating_sub(private), unique.saturating_sub(private))),
            mean_rows: narrow(rows(seen, unique)),
            private_kv: narrow(private_kv),
            kv_heads: geometry.kv_heads,
            gqa_ratio: narrow(ratio),
            head_dim: geometry.head_dim,
            page_size: geometry.page_size,
            dtype: geometry.dtype.code(),
        }
    }

    /// Whether a number of `other` is more than an eighth away from this one's: what has to happen before a batch that changes step by step
    /// is decided on again.
    pub fn differs_much(&self, other: &Self) -> bool {
        let far = |(&a, &b): (&u32, &u32)| a.abs_diff(b) > a.max(b) / 8;
        self.values().iter().zip(&other.values()).any(far)
    }

    /// The pack that all requests would be if they shared evenly: as many rows as see a shared token, as many tokens as a request has on
    /// average. What rules for packs are asked about a batch.
    pub fn as_pack(&self) -> PackShape {
        let rows = self.shared_rows.max(self.gqa_ratio);
        let seen = u64::from(self.unique_tokens) * u64::from(self.mean_rows)
            / u64::from((self.requests.saturating_mul(self.gqa_ratio)).max(1));
        PackShape {
            rows,
            kv_len: u32::try_from(seen).unwrap_or(u32::MAX).max(self.page_size),
            packs: self.trees,
            kv_heads: self.kv_heads,
            gqa_ratio: self.gqa_ratio,
            head_dim: self.head_dim,
            page_size: self.page_size,
            dtype: self.dtype,
            ..PackShape::UNKNOWN
        }
        .counted()
    }

    /// The element types.
    pub fn dtype(&self) -> Option<Dtype> {
        Dtype::from_code(self.dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: Geometry =
        Geometry { q_heads: 32, kv_heads: 8, head_dim: 128, page_size: 32, dtype: Dtype::F16 };

    /// Three requests that share 64 tokens and have 32 each, and one of 320 alone.
    fn sums() -> BatchSums {
        let mut sums = BatchSums { longest: 320, ..BatchSums::default() };
        sums.add_tree(3);
        sums.add_node(64, 3);
        (0..3).for_each(|_| sums.add_node(32, 1));
        sums.add_tree(1);
        sums.add_node(320, 1);
        sums
    }

    #[test]
    fn a_batch_is_counted_from_its_nodes() {
        let shape = BatchShape::of(&LLAMA, &sums());
        assert_eq!((shape.requests, shape.all_rows, shape.trees, shape.lone), (4, 128, 2, 1));
        assert_eq!((shape.unique_tokens, shape.unique_kv, shape.longest), (480, 3840, 320));
        assert_eq!((shape.private_percent, shape.private_kv), (86, 832));
        // 64 tokens are seen by three requests of four rows; all 480 by 608 / 480 requests on average.
        assert_eq!((shape.shared_rows, shape.mean_rows), (12, 5));
        assert_eq!(BatchShape::from_values(shape.values()), shape);
    }

    #[test]
    fn an_empty_batch_and_an_absurd_one_are_no_panic() {
        assert_eq!(BatchShape::of(&LLAMA, &BatchSums::default()).requests, 0);
        let most = BatchSums {
            requests: u64::MAX,
            trees: u64::MAX,
            lone: u64::MAX,
            longest: u64::MAX,
            unique: u64::MAX,
            private: u64::MAX,
            seen: u64::MAX,
        };
        assert_eq!(BatchShape::of(&LLAMA, &most).unique_kv, u32::MAX);
        BatchShape::from_values([u32::MAX; BatchShape::COUNT]).as_pack();
        BatchShape::from_values([0; BatchShape::COUNT]).as_pack();
    }

    #[test]
    fn a_little_more_is_not_another_batch() {
        let shape = BatchShape::of(&LLAMA, &sums());
        let more = BatchShape { unique_tokens: shape.unique_tokens + 60, ..shape };
        assert!(!shape.differs_much(&more) && !more.differs_much(&shape));
        assert!(shape.differs_much(&BatchShape { unique_tokens: shape.unique_tokens + 90, ..shape }));
        assert!(shape.differs_much(&BatchShape { lone: 0, ..shape }));
    }
}
