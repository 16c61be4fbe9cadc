//! The same requests in many batches: what proves that a request's bits depend on nothing else ([`Split::Invariant`]).
//!
//! A [`Family`] has requests by their contents. A [`Pool`] lays them out in pages of one size, each of them twice and shared or not, and draws
//! batches of them.
//!
//! [`Split::Invariant`]: tilewright_plan::Split::Invariant

use super::random::{Random, seed_of};
use std::collections::HashMap;
use tilewright_cpu::Number;
use tilewright_heuristics::Geometry;
use tilewright_plan::{KvStrides, PageTable, PlanError};

/// Vectors that K, V and Q are made of.
const VECTORS: usize = 1024;

/// The first element of all keys, and how far that of some queries goes up or down: all logits of such a row lie far above 0, or far below it.
const FIRST_OF_KEYS: f32 = 8.0;
const FIRST_OF_QUERIES: [f32; 4] = [0.0, 0.0, 32.0, -32.0];

/// A request by its contents: streams of tokens, each up to a position; the last has no end.
#[derive(Clone, Debug)]
struct Text {
    streams: Vec<(u32, u32)>,
    tokens: u32,
}

impl Text {
    fn stream_at(&self, position: u32) -> u32 {
        self.streams.iter().find(|(end, _)| position < *end).map_or(0, |(_, stream)| *stream)
    }

    /// Tokens up to the first one that differs.
    #[cfg(test)]
    fn common(&self, other: &Self) -> u32 {
        let ends = self.streams.iter().chain(&other.streams).map(|(end, _)| *end);
        let mut begins: Vec<u32> = ends.filter(|end| *end < u32::MAX).chain([0]).collect();
        begins.sort_unstable();
        let differs = |begin: &u32| self.stream_at(*begin) != other.stream_at(*begin);
        begins.into_iter().find(differs).unwrap_or(u32::MAX)
    }
}

/// Requests by their contents, which share prefixes of any length.
#[derive(Clone, Debug)]
pub struct Family {
    texts: Vec<Text>,
    /// f32 `[VECTORS, head_dim]`.
    vectors: Vec<f32>,
    head_dim: usize,
}

impl Family {
    /// `count` requests of up to `longest` tokens, for heads of this size. Every third is one of the others two tokens earlier or one:
    /// steps of speculation. Then, where requests are so long, three that part at 512 and 640 tokens, whose own tokens fit one step: a chunk
    /// begins with some of them.
    pub fn new(count: usize, longest: u32, head_dim: u32, seed: u64) -> Self {
        let mut random = Random::new(seed_of(seed, &[1]));
        let mut texts: Vec<Text> = Vec::new();
        while texts.len() < count {
            if texts.len() % 3 == 2
                && let Some(before) = texts.last()
                && before.tokens > 3
            {
                let Text { streams, tokens } = before.clone();
                texts.push(Text { streams, tokens: tokens - 1 - texts.len() as u32 % 2 });
                continue;
            }
            let mut below = |bound: u32| random.below(bound as usize) as u32;
            let tokens = 1 + below(longest);
            // One of three roots, one of three branches of it, and a stream of its own, from anywhere.
            let (root, branch, own) = (below(3), below(3), 100 + texts.len() as u32);
            let root_end = longest * (1 + root) / 5 + 7 * root;
            let branch_end = root_end + longest * (1 + branch) / 7 + 16 * branch;
            let streams = vec![(root_end, root), (branch_end, 10 + 3 * root + branch), (u32::MAX, own)];
            texts.push(Text { streams, tokens });
        }
        let root = 200;
        for (end, own, tokens) in [(640, 201, 653), (640, 202, 649), (512, 203, 526)] {
            if tokens <= longest {
                texts.push(Text { streams: vec![(end, root), (u32::MAX, own)], tokens });
            }
        }
        let head_dim = head_dim as usize;
        let mut vectors = Vec::with_capacity(VECTORS * head_dim);
        for vector in 0..VECTORS {
            // Some are large, so that rows' maxima are raised again and again.
            let amplitude = [0.5, 1.0, 2.0, 5.0][vector % 4];
            vectors
                .extend((0..head_dim).map(|_| amplitude * (random.below(1 << 16) as f32 / 32_768.0 - 1.0)));
        }
        Self { texts, vectors, head_dim }
    }

    /// How many requests it has.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Where the vector of something begins.
    fn index(&self, of: [u64; 4]) -> usize {
        seed_of(0, &of) as usize % VECTORS * self.head_dim
    }

    /// The query vectors of these requests, `[requests, q_heads, head_dim]`.
    pub fn queries<E: Number>(&self, texts: &[usize], q_heads: u32) -> Vec<E> {
        let heads = texts.iter().flat_map(|&text| (0..q_heads).map(move |head| (text, head)));
        let mut queries = Vec::with_capacity(texts.len() * q_heads as usize * self.head_dim);
        for (text, head) in heads {
            let vector = self.index([7, text as u64, head.into(), 0]);
            let first = queries.len();
            queries
                .extend(self.vectors[vector..vector + self.head_dim].iter().map(|&value| E::from_f32(value)));
            let far = FIRST_OF_QUERIES[(text + head as usize) % FIRST_OF_QUERIES.len()];
            queries[first] = E::from_f32(self.vectors[vector] + far);
        }
        queries
    }
}

/// A request in pages.
#[derive(Clone, Debug)]
struct Row {
    text: usize,
    pages: Vec<i32>,
}

/// The requests of a family in pages, each in several ways.
#[derive(Clone, Debug)]
pub struct Pool {
    geometry: Geometry,
    rows: Vec<Row>,
    tokens: Vec<u32>,
    /// By page: which text's tokens it has, from which position on.
    contents: Vec<(usize, u32)>,
    /// Where each page lies.
    places: Vec<i32>,
}

/// A batch of a pool.
#[derive(Clone, Debug)]
pub struct PoolBatch {
    /// Which request of the family each row is.
    pub texts: Vec<usize>,
    /// Tokens of each row.
    pub seq_lens: Vec<u32>,
    /// `[rows, max_pages]`.
    pub entries: Vec<i32>,
    /// Columns of the page table.
    pub max_pages: usize,
    page_size: u32,
}

impl PoolBatch {
    /// Its page table.
    ///
    /// # Errors
    /// None that a pool's batch has.
    pub fn table(&self) -> Result<PageTable<'_>, PlanError> {
        PageTable::new(&self.entries, self.max_pages, &self.seq_lens, self.page_size)
    }

    /// The pages of a row.
    pub fn pages(&self, row: usize) -> &[i32] {
        let used = self.seq_lens[row].div_ceil(self.page_size) as usize;
        &self.entries[row * self.max_pages..][..used]
    }
}

impl Pool {
    /// Lays a family's requests out `copies` times in pages of `geometry.page_size` tokens. Each row shares a random part of what it
    /// could share with those before it: all, nothing, or the first pages.
    pub fn new(family: &Family, geometry: &Geometry, copies: usize, seed: u64) -> Self {
        let mut random = Random::new(seed_of(seed, &[2]));
        let page_size = geometry.page_size;
        let mut contents: Vec<(usize, u32)> = Vec::new();
        let mut rows: Vec<Row> = Vec::new();
        // By what comes before it and what it holds: a page that others may share.
        let mut shared: HashMap<(i64, Vec<u32>), i32> = HashMap::new();
        for _ in 0..copies {
            let policy = random.below(3);
            for (text, Text { tokens, .. }) in family.texts.iter().enumerate() {
                let columns = tokens.div_ceil(page_size);
                let shares = match policy {
                    0 => columns,
                    1 => random.below(columns as usize + 1) as u32,
                    _ => [0, columns][random.below(2)],
                };
                let mut pages: Vec<i32> = Vec::new();
                for column in 0..columns {
                    let before = pages.last().map_or(-1, |&page| i64::from(page));
                    let begin = column * page_size;
                    let key = (before, stretches(&family.texts[text], begin, page_size));
                    let fresh = contents.len() as i32;
                    let page = if column < shares { *shared.entry(key).or_insert(fresh) } else { fresh };
                    if page == fresh {
                        contents.push((text, begin));
                    }
                    pages.push(page);
                }
                rows.push(Row { text, pages });
            }
        }
        let mut places: Vec<i32> = (0..contents.len() as i32).collect();
        random.shuffle(&mut places);
        let tokens = family.texts.iter().map(|text| text.tokens).collect();
        Self { geometry: *geometry, rows, tokens, contents, places }
    }

    /// Pages of the cache.
    pub fn pages(&self) -> usize {
        self.contents.len()
    }

    /// K and V of all pages, dense in the order of [`KvStrides::nhd`].
    pub fn cache<E: Number>(&self, family: &Family) -> (Vec<E>, Vec<E>) {
        let strides = KvStrides::nhd(&self.geometry);
        let narrow: Vec<E> = family.vectors.iter().map(|&value| E::from_f32(value)).collect();
        let mut both = [false, true].map(|_| vec![E::from_f32(0.0); self.pages() * strides.page]);
        for (&(text, begin), &place) in self.contents.iter().zip(&self.places) {
            for within in 0..self.geometry.page_size {
                let position = begin + within;
                let stream = u64::from(family.texts[text].stream_at(position));
                for head in 0..self.geometry.kv_heads {
                    let at = place as usize * strides.page
                        + within as usize * strides.token
                        + head as usize * strides.head;
                    for (kind, side) in (0..).zip(&mut both) {
                        let vector = family.index([kind, stream, position.into(), head.into()]);
                        side[at..at + family.head_dim].copy_from_slice(&narrow[vector..][..family.head_dim]);
                        if kind == 0 {
                            side[at] = E::from_f32(FIRST_OF_KEYS);
                        }
                    }
                }
            }
        }
        let [keys, values] = both;
        (keys, values)
    }

    /// A batch of up to `most` of its rows, in any order.
    pub fn batch(&self, most: usize, seed: u64) -> PoolBatch {
        let mut random = Random::new(seed_of(seed, &[3]));
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        random.shuffle(&mut order);
        order.truncate(1 + random.below(most.min(order.len())));
        let rows = || order.iter().map(|&row| &self.rows[row]);
        let max_pages = rows().map(|row| row.pages.len()).max().unwrap_or(0);
        let entries = rows().flat_map(|row| {
            let places = row.pages.iter().map(|&page| self.places[page as usize]);
            places.chain(std::iter::repeat_n(-1, max_pages - row.pages.len()))
        });
        PoolBatch {
            texts: rows().map(|row| row.text).collect(),
            seq_lens: rows().map(|row| self.tokens[row.text]).collect(),
            entries: entries.collect(),
            max_pages,
            page_size: self.geometry.page_size,
        }
    }
}

/// What a page holds: its streams, and where each begins.
fn stretches(text: &Text, begin: u32, tokens: u32) -> Vec<u32> {
    let ends =
        text.streams.iter().map(|(end, _)| *end).filter(|end| (begin + 1..begin + tokens).contains(end));
    let begins = std::iter::once(begin).chain(ends);
    begins.flat_map(|begin| [begin, text.stream_at(begin)]).collect()
}

/// Bits of each request as they were when it was first met, and how often they were compared.
#[derive(Clone, Debug)]
pub struct SeenBits {
    first: Vec<Option<Vec<u32>>>,
    /// Requests that were met again, and so compared with themselves in another batch.
    pub pairs: u64,
    /// Of these, those whose bits were others.
    pub differ: u64,
}

/// A row of a batch whose bits are not those seen first.
#[derive(Clone, Copy, Debug)]
pub struct Difference {
    /// Its number in the batch.
    pub row: usize,
    /// Its request's number in the family.
    pub text: usize,
    /// Words of 32 bits that differ.
    pub words: usize,
    /// The first of them, as the row has them.
    pub word: usize,
    /// Its bits as they were seen first.
    pub before: u32,
    /// Its bits now.
    pub now: u32,
}

impl SeenBits {
    /// Nothing seen of a family's requests.
    pub fn new(family: &Family) -> Self {
        Self { first: vec![None; family.len()], pairs: 0, differ: 0 }
    }

    /// Compares the bits of a batch's rows with those seen before. Says of rows that differ which they are, how many of their words differ,
    /// and which is the first.
    pub fn compare(&mut self, texts: &[usize], bits: &[u32]) -> Vec<Difference> {
        let row = bits.len() / texts.len().max(1);
        let mut differences = Vec::new();
        for ((index, &text), bits) in texts.iter().enumerate().zip(bits.chunks_exact(row.max(1))) {
            let Some(first) = &self.first[text] else {
                self.first[text] = Some(bits.to_vec());
                continue;
            };
            self.pairs += 1;
            let mut others = (0..).zip(first.iter().zip(bits)).filter(|(_, (before, now))| before != now);
            let Some((word, (&before, &now))) = others.next() else { continue };
            self.differ += 1;
            differences.push(Difference { row: index, text, words: 1 + others.count(), word, before, now });
        }
        differences
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_heuristics::Dtype;

    #[test]
    fn rows_share_what_they_have_in_common_and_hold_the_same_tokens() {
        let family = Family::new(12, 700, 64, 1);
        let geometry = Geometry { q_heads: 2, kv_heads: 1, head_dim: 64, page_size: 16, dtype: Dtype::F32 };
        let pool = Pool::new(&family, &geometry, 3, 5);
        let (keys, _) = pool.cache::<f32>(&family);
        let columns: usize = pool.rows.iter().map(|row| row.pages.len()).sum();
        assert!(pool.pages() < columns * 9 / 10, "{} of {columns} pages", pool.pages());
        let key = |row: &Row, position: u32| {
            let page = pool.places[row.pages[(position / 16) as usize] as usize] as usize;
            &keys[(page * 16 + (position % 16) as usize) * 64..][..64]
        };
        for (index, row) in pool.rows.iter().enumerate() {
            let other = &pool.rows[(index * 7 + 3) % pool.rows.len()];
            let (one, two) = (&family.texts[row.text], &family.texts[other.text]);
            let shortest = one.tokens.min(two.tokens);
            let common = one.common(two).min(shortest);
            for position in (0..shortest).step_by(13) {
                assert_eq!(
                    key(row, position) == key(other, position),
                    position < common,
                    "{position} {common}"
                );
            }
        }
    }
}
