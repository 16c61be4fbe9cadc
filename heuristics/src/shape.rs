//! What the host knows of a batch's layout and of one pack in it: whole numbers only.

use crate::record::whole_number_record;
use core::fmt;
use core::str::FromStr;

/// Element types of Q, K, V and the output: Q and the output have one, K and V the same or FP8. Accumulation is always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dtype {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single precision.
    F32,
    /// K and V in FP8 (e4m3, with scales), Q and the output in half precision.
    Fp8F16,
    /// K and V in FP8 (e4m3, with scales), Q and the output in bfloat16.
    Fp8Bf16,
    /// K and V in FP8 (e4m3, with scales), Q and the output in single precision.
    Fp8F32,
    /// K and V in FP8 (e5m2, with scales), Q and the output in half precision.
    E5m2F16,
    /// K and V in FP8 (e5m2, with scales), Q and the output in bfloat16.
    E5m2Bf16,
    /// K and V in FP8 (e5m2, with scales), Q and the output in single precision.
    E5m2F32,
}

/// A format of 8 bits that K and V may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fp8 {
    /// Four bits of exponent, three of mantissa, no infinities (e4m3fn): what is meant by FP8 alone.
    E4m3,
    /// Five bits of exponent, two of mantissa: the upper byte of a half.
    E5m2,
}

impl Dtype {
    /// Every one, in the order of [`Dtype::code`].
    pub const ALL: [Dtype; 9] = [
        Dtype::F16,
        Dtype::Bf16,
        Dtype::F32,
        Dtype::Fp8F16,
        Dtype::Fp8Bf16,
        Dtype::Fp8F32,
        Dtype::E5m2F16,
        Dtype::E5m2Bf16,
        Dtype::E5m2F32,
    ];

    /// The whole number that stands for it in features and measurements.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The element type with this [`Dtype::code`].
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.get(code as usize).copied()
    }

    /// That of Q and the output alone: what a batch has whose K and V are of the same type.
    #[must_use]
    pub const fn query(self) -> Self {
        match self {
            Dtype::F16 | Dtype::Fp8F16 | Dtype::E5m2F16 => Dtype::F16,
            Dtype::Bf16 | Dtype::Fp8Bf16 | Dtype::E5m2Bf16 => Dtype::Bf16,
            Dtype::F32 | Dtype::Fp8F32 | Dtype::E5m2F32 => Dtype::F32,
        }
    }

    /// The same Q and output with K and V in a format of FP8.
    #[must_use]
    pub const fn with_kv(self, format: Fp8) -> Self {
        match (format, self.query()) {
            (Fp8::E4m3, Dtype::Bf16) => Dtype::Fp8Bf16,
            (Fp8::E4m3, Dtype::F32) => Dtype::Fp8F32,
            (Fp8::E4m3, _) => Dtype::Fp8F16,
            (Fp8::E5m2, Dtype::Bf16) => Dtype::E5m2Bf16,
            (Fp8::E5m2, Dtype::F32) => Dtype::E5m2F32,
            (Fp8::E5m2, _) => Dtype::E5m2F16,
        }
    }

    /// The same Q and output with K and V in FP8 (e4m3).
    #[must_use]
    pub const fn with_fp8_kv(self) -> Self {
        self.with_kv(Fp8::E4m3)
    }

    /// The format of K and V if they are FP8.
    pub const fn fp8(self) -> Option<Fp8> {
        match self {
            Dtype::F16 | Dtype::Bf16 | Dtype::F32 => None,
            Dtype::Fp8F16 | Dtype::Fp8Bf16 | Dtype::Fp8F32 => Some(Fp8::E4m3),
            Dtype::E5m2F16 | Dtype::E5m2Bf16 | Dtype::E5m2F32 => Some(Fp8::E5m2),
        }
    }

    /// Whether K and V are FP8 (e4m3 or e5m2), which has scales.
    pub const fn has_fp8_kv(self) -> bool {
        self.fp8().is_some()
    }

    /// Bytes of one element of Q or the output.
    pub const fn query_bytes(self) -> usize {
        if matches!(self.query(), Dtype::F32) { 4 } else { 2 }
    }

    /// Bytes of one element of K or V.
    pub const fn kv_bytes(self) -> usize {
        if self.has_fp8_kv() { 1 } else { self.query_bytes() }
    }

    /// Its name as written in scenarios and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
            Dtype::F32 => "f32",
            Dtype::Fp8F16 => "fp8-f16",
            Dtype::Fp8Bf16 => "fp8-bf16",
            Dtype::Fp8F32 => "fp8-f32",
            Dtype::E5m2F16 => "e5m2-f16",
            Dtype::E5m2Bf16 => "e5m2-bf16",
            Dtype::E5m2F32 => "e5m2-f32",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no element type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownDtype(String);

impl fmt::Display for UnknownDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not an element type; use f16, bf16 or f32, or for K and V in FP8 fp8-f16, fp8-bf16 or fp8-f32 (e4m3), or e5m2-f16, \
             e5m2-bf16 or e5m2-f32",
            self.0
        )
    }
}

impl std::error::Error for UnknownDtype {}

impl FromStr for Dtype {
    type Err = UnknownDtype;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == text).ok_or_else(|| UnknownDtype(text.to_owned()))
    }
}

/// Layout of one attention layer: equal for all requests of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Geometry {
    /// Query heads.
    pub q_heads: u32,
    /// Heads of K and V; divides `q_heads`.
    pub kv_heads: u32,
    /// Elements of one head's vector.
    pub head_dim: u32,
    /// Tokens of one page.
    pub page_size: u32,
    /// Element types of Q, K, V and the output.
    pub dtype: Dtype,
}

/// Why a [`Geometry`] describes no attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeometryError {
    /// The named field is zero.
    Zero(&'static str),
    /// `q_heads` is not a multiple of `kv_heads`.
    HeadsDoNotDivide {
        /// Query heads.
        q_heads: u32,
        /// KV heads.
        kv_heads: u32,
    },
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero(field) => write!(f, "{field} must be at least 1"),
            Self::HeadsDoNotDivide { q_heads, kv_heads } => {
                write!(f, "q_heads ({q_heads}) must be a multiple of kv_heads ({kv_heads})")
            }
        }
    }
}

impl std::error::Error for GeometryError {}

impl Geometry {
    /// Checks that the numbers describe an attention layer.
    ///
    /// # Errors
    /// A zero field, or query heads that are not a multiple of the KV heads.
    pub fn validate(&self) -> Result<(), GeometryError> {
        let fields = [
            ("q_heads", self.q_heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("page_size", self.page_size),
        ];
        if let Some((name, _)) = fields.iter().find(|(_, value)| *value == 0) {
            return Err(GeometryError::Zero(name));
        }
        if !self.q_heads.is_multiple_of(self.kv_heads) {
            return Err(GeometryError::HeadsDoNotDivide { q_heads: self.q_heads, kv_heads: self.kv_heads });
        }
        Ok(())
    }

    /// Query heads that share one KV head.
    pub const fn gqa_ratio(&self) -> u32 {
        self.q_heads / self.kv_heads
    }

    /// Bytes of K and V of one token over all KV heads.
    pub const fn kv_bytes_per_token(&self) -> usize {
        2 * self.kv_heads as usize * self.head_dim as usize * self.dtype.kv_bytes()
    }
}

whole_number_record! {
    /// What a selector may ask about a pack. A choice is a pure function of these numbers, so it is equal on every rank.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct PackShape: u32 {
        #[doc = "query rows of one KV head: requests x GQA ratio"]
        rows,
        #[doc = "KV tokens that a request of the pack sees on average, rounded up to whole pages"]
        kv_len,
        #[doc = "of these, tokens that it shares with no other: 0 where all requests share all tokens"]
        private_kv_len,
        #[doc = "packs in the batch"]
        packs,
        #[doc = "KV heads"]
        kv_heads,
        #[doc = "packs x KV heads: work items that there are at least, before rows and KV are divided"]
        items,
        #[doc = "rows x items: query rows of all packs and KV heads, if all are like this one; what there is to fill a device with"]
        all_rows,
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

/// What a [`PackShape`] is counted from: the nodes of a pack that is a part of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackSums {
    /// Requests that see its first node, and so all that see any.
    pub requests: u32,
    /// Tokens that its requests see, all together.
    pub seen: u64,
    /// Its tokens, each once.
    pub tokens: u64,
}

impl PackSums {
    /// Nothing yet of a pack of so many requests.
    pub const fn of_requests(requests: u32) -> Self {
        Self { requests, seen: 0, tokens: 0 }
    }

    /// Counts a node's tokens, which `requests` requests see.
    #[inline]
    pub const fn add_node(&mut self, tokens: u64, requests: u32) {
        self.seen += tokens * requests as u64;
        self.tokens += tokens;
    }

    /// Tokens that a request sees on average, rounded up.
    pub const fn mean_seen(&self) -> u64 {
        self.seen.div_ceil(if self.requests == 0 { 1 } else { self.requests as u64 })
    }
}

impl PackShape {
    /// No pack: nothing was counted.
    pub const UNKNOWN: Self = Self::from_values([0; Self::COUNT]);

    /// The shape of a pack of `requests` that share all `kv_tokens` tokens, in a batch of `packs` packs.
    ///
    /// `kv_tokens` is rounded up to whole pages, so that a request that grows inside its last page keeps its choice.
    pub const fn of_pack(geometry: &Geometry, requests: u32, kv_tokens: u32, packs: u32) -> Self {
        let page_size = geometry.page_size;
        let rows = requests.saturating_mul(geometry.gqa_ratio());
        let items = packs.saturating_mul(geometry.kv_heads);
        Self {
            rows,
            kv_len: kv_tokens.div_ceil(page_size).saturating_mul(page_size),
            private_kv_len: 0,
            packs,
            kv_heads: geometry.kv_heads,
            items,
            all_rows: rows.saturating_mul(items),
            gqa_ratio: geometry.gqa_ratio(),
            head_dim: geometry.head_dim,
            page_size,
            dtype: geometry.dtype.code(),
        }
    }

    /// The shape of a pack that is a part of a tree. It is told as the tree of two levels with these numbers: what all requests share, and what
    /// each has for itself.
    pub const fn of_tree(geometry: &Geometry, sums: &PackSums, packs: u32) -> Self {
        let (requests, kv_tokens) = (sums.requests, sums.mean_seen());
        let kv_tokens = if kv_tokens > u32::MAX as u64 { u32::MAX } else { kv_tokens as u32 };
        let shape = Self::of_pack(geometry, requests, kv_tokens, packs);
        let page_size = geometry.page_size;
        if requests < 2 || page_size == 0 {
            return shape;
        }
        let own = sums.tokens.saturating_sub(kv_tokens as u64).div_ceil(requests as u64 - 1);
        let own = own.div_ceil(page_size as u64).saturating_mul(page_size as u64);
        let own = if own < shape.kv_len as u64 { own as u32 } else { shape.kv_len };
        Self { private_kv_len: own, ..shape }
    }

    /// The packs whose requests share all of their tokens that come nearest to this one: as many requests as share a token here on average,
    /// and as many packs as have the same rows together. What selectors are asked that know no others.
    #[must_use]
    pub const fn as_one_run(&self) -> Self {
        if self.private_kv_len == 0 {
            return *self;
        }
        let ratio = if self.gqa_ratio == 0 { 1 } else { self.gqa_ratio };
        let requests = (self.rows / ratio) as u64;
        let distinct = self.kv_len as u64 + self.private_kv_len as u64 * requests.saturating_sub(1);
        let seen = self.kv_len as u64 * requests;
        let sharing = if distinct == 0 { 1 } else { seen.div_ceil(distinct) };
        let sharing = if sharing == 0 { 1 } else { sharing };
        let packs = (self.packs as u64).saturating_mul(requests) / sharing;
        let packs = if packs > u32::MAX as u64 { u32::MAX } else { packs as u32 };
        let packs = if packs == 0 { 1 } else { packs };
        // No more than the requests that there are.
        let rows = sharing as u32 * ratio;
        Self { rows, private_kv_len: 0, packs, ..*self }.counted()
    }

    /// The same with the numbers that follow from others: `items` and `all_rows`.
    #[must_use]
    pub const fn counted(&self) -> Self {
        let items = self.packs.saturating_mul(self.kv_heads);
        Self { items, all_rows: self.rows.saturating_mul(items), ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: Geometry =
        Geometry { q_heads: 32, kv_heads: 8, head_dim: 128, page_size: 32, dtype: Dtype::F16 };

    #[test]
    fn a_shape_counts_whole_pages_and_packed_rows() {
        let shape = PackShape::of_pack(&LLAMA, 3, 33, 7);
        assert_eq!((shape.rows, shape.kv_len, shape.packs), (12, 64, 7));
        assert_eq!(PackShape::from_values(shape.values()), shape);
    }

    #[test]
    fn a_part_of_a_tree_is_told_as_two_levels() {
        // A root of 64 tokens, and 32 more for each of three requests.
        let mut sums = PackSums::of_requests(3);
        sums.add_node(64, 3);
        (0..3).for_each(|_| sums.add_node(32, 1));
        let shape = PackShape::of_tree(&LLAMA, &sums, 7);
        assert_eq!(
            (shape.rows, shape.kv_len, shape.private_kv_len, shape.packs, shape.items),
            (12, 96, 32, 7, 56)
        );
        assert_eq!((shape.all_rows, shape.counted()), (12 * 56, shape));
        // Where all share all, it is a pack of one run.
        let mut sums = PackSums::of_requests(3);
        sums.add_node(33, 3);
        assert_eq!(PackShape::of_tree(&LLAMA, &sums, 7), PackShape::of_pack(&LLAMA, 3, 33, 7));
        // A token is shared by 288 / 160 requests on average: two.
        let alike = PackShape::of_pack(&LLAMA, 2, 96, 10);
        assert_eq!(shape.as_one_run(), alike);
        assert_eq!(alike.as_one_run(), alike);
    }

    #[test]
    fn absurd_shapes_are_no_panic() {
        let most = PackShape::from_values([u32::MAX; PackShape::COUNT]);
        for shape in [most, PackShape { gqa_ratio: 0, ..most }, PackShape { rows: 0, kv_len: 0, ..most }] {
            let alike = shape.as_one_run();
            assert_eq!((alike.private_kv_len, alike.as_one_run()), (0, alike));
        }
        let most = PackSums { requests: u32::MAX, seen: u64::MAX, tokens: u64::MAX };
        assert_eq!(PackShape::of_tree(&LLAMA, &most, u32::MAX).packs, u32::MAX);
        let none = PackSums { tokens: 9, ..PackSums::default() };
        assert_eq!(PackShape::of_tree(&LLAMA, &none, 1).private_kv_len, 0);
    }

    #[test]
    fn dtype_codes_and_names_are_inverse() {
        for dtype in Dtype::ALL {
            assert_eq!(Dtype::from_code(dtype.code()), Some(dtype));
            assert_eq!(dtype.name().parse(), Ok(dtype));
        }
        assert_eq!(Dtype::from_code(9), None);
        // Measurements on disk have these.
        assert_eq!([Dtype::F16, Dtype::Bf16, Dtype::F32].map(Dtype::code), [0, 1, 2]);
        assert_eq!([Dtype::Fp8F16, Dtype::Fp8Bf16, Dtype::Fp8F32].map(Dtype::code), [3, 4, 5]);
    }

    #[test]
    fn fp8_halves_the_bytes_of_k_and_v_alone() {
        for (dtype, format) in
            Dtype::ALL.into_iter().flat_map(|dtype| [(dtype, Fp8::E4m3), (dtype, Fp8::E5m2)])
        {
            let fp8 = dtype.with_kv(format);
            assert_eq!((fp8.fp8(), dtype.query().fp8()), (Some(format), None));
            assert_eq!(
                (fp8.query(), fp8.query_bytes(), fp8.kv_bytes()),
                (dtype.query(), dtype.query_bytes(), 1)
            );
            assert_eq!(dtype.query().kv_bytes(), dtype.query_bytes());
        }
        let fp8 = Geometry { dtype: Dtype::Fp8F16, ..LLAMA };
        assert_eq!(2 * fp8.kv_bytes_per_token(), LLAMA.kv_bytes_per_token());
    }

    #[test]
    fn heads_that_do_not_divide_are_refused() {
        assert_eq!(LLAMA.validate(), Ok(()));
        let odd = Geometry { q_heads: 10, ..LLAMA };
        assert!(odd.validate().is_err_and(|e| e.to_string().contains("multiple")));
        assert_eq!(Geometry { page_size: 0, ..LLAMA }.validate(), Err(GeometryError::Zero("page_size")));
    }
}
