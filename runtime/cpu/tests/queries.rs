//! Several query tokens a request in one step are as many steps of one token each.

use proptest::prelude::*;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilewright_cpu::ExecError;
use tilewright_cpu::{CpuBackend, DecodeArgs, KvCache};
use tilewright_heuristics::{Dtype, Geometry, Tile};
use tilewright_plan::{KvStrides, Packing, PageTable, Plan, PlanOptions, Queries, Split};

/// Requests over shared pages, all slots of which are filled.
#[derive(Clone, Debug)]
struct Batch {
    geometry: Geometry,
    entries: Vec<i32>,
    max_pages: usize,
    seq_lens: Vec<u32>,
    query_lens: Vec<u32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    query: Vec<f32>,
}

/// How a batch is planned.
#[derive(Clone, Copy, Debug)]
struct Way {
    options: PlanOptions,
    tile: Tile,
}

impl Batch {
    /// From (pages shared with the request before, own tokens, wanted queries).
    fn new(geometry: Geometry, requests: &[(usize, u32, u32)], seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut rows, mut pages) = (Vec::<Vec<usize>>::new(), 0);
        let (mut seq_lens, mut query_lens) = (Vec::new(), Vec::new());
        for &(shared, own, wanted) in requests {
            let mut row: Vec<usize> =
                rows.last().map_or(Vec::new(), |row| row[..shared.min(row.len())].to_vec());
            let seq_len = row.len() as u32 * geometry.page_size + own;
            while (row.len() as u32) < seq_len.div_ceil(geometry.page_size) {
                row.push(pages);
                pages += 1;
            }
            rows.push(row);
            seq_lens.push(seq_len);
            query_lens.push(wanted.min(seq_len));
        }
        let mut physical: Vec<i32> = (0..pages as i32).collect();
        physical.shuffle(&mut rng);
        let max_pages = rows.iter().map(Vec::len).max().unwrap_or(0) + 1;
        let mut entries = Vec::new();
        for row in &rows {
            entries.extend(row.iter().map(|&page| physical[page]));
            entries.extend((row.len()..max_pages).map(|_| -1));
        }
        let cache = pages * (geometry.page_size * geometry.kv_heads * geometry.head_dim) as usize;
        let queries = query_lens.iter().sum::<u32>() as usize;
        let mut random = |count: usize| (0..count).map(|_| rng.random_range(-1.0..1.0)).collect::<Vec<f32>>();
        let (keys, values) = (random(cache), random(cache));
        let query = random(queries * (geometry.q_heads * geometry.head_dim) as usize);
        Self { geometry, entries, max_pages, seq_lens, query_lens, keys, values, query }
    }

    fn table<'a>(&'a self, seq_lens: &'a [u32]) -> PageTable<'a> {
        PageTable::new(&self.entries, self.max_pages, seq_lens, self.geometry.page_size).unwrap()
    }

    /// Output and LSE.
    fn decode(
        &self,
        backend: &mut CpuBackend,
        table: &PageTable<'_>,
        query: &[f32],
        way: &Way,
    ) -> Result<(Vec<f32>, Vec<f32>), ExecError> {
        let plan = Plan::build(&self.geometry, table, &way.options, way.tile).unwrap();
        let mut output = vec![f32::NAN; query.len()];
        let mut lse = vec![f32::NAN; query.len() / self.geometry.head_dim as usize];
        let strides = KvStrides::nhd(&self.geometry);
        let args = DecodeArgs {
            lse: Some(&mut lse),
            scale: Some(0.3),
            ..DecodeArgs::new(query, KvCache { keys: &self.keys, values: &self.values, strides }, &mut output)
        };
        backend.decode(&plan, args).map(|()| (output, lse))
    }

    /// Elements of a query in query and output.
    fn row(&self) -> usize {
        (self.geometry.q_heads * self.geometry.head_dim) as usize
    }

    /// For each request the number of its first query.
    fn firsts(&self) -> Vec<usize> {
        let mut next = 0;
        let first = |count: &u32| {
            next += *count as usize;
            next - *count as usize
        };
        self.query_lens.iter().map(first).collect()
    }

    /// Query j of every request in a step of its own, in which a request has no tokens yet behind that query's.
    fn one_by_one(&self, backend: &mut CpuBackend, way: &Way) -> (Vec<f32>, Vec<f32>) {
        let (row, heads) = (self.row(), self.geometry.q_heads as usize);
        let mut output = vec![f32::NAN; self.query.len()];
        let mut lse = vec![f32::NAN; self.query.len() / self.geometry.head_dim as usize];
        let firsts = self.firsts();
        for step in 0..self.query_lens.iter().copied().max().unwrap_or(0) {
            let mut query = vec![0.0; self.seq_lens.len() * row];
            let mut lens = vec![0; self.seq_lens.len()];
            for (request, (&count, &first)) in self.query_lens.iter().zip(&firsts).enumerate() {
                if step < count {
                    lens[request] = self.seq_lens[request] - count + step + 1;
                    let from = &self.query[(first + step as usize) * row..][..row];
                    query[request * row..][..row].copy_from_slice(from);
                }
            }
            let (found, found_lse) = self.decode(backend, &self.table(&lens), &query, way).unwrap();
            for (request, (&count, &first)) in self.query_lens.iter().zip(&firsts).enumerate() {
                if step < count {
                    let at = first + step as usize;
                    output[at * row..][..row].copy_from_slice(&found[request * row..][..row]);
                    lse[at * heads..][..heads].copy_from_slice(&found_lse[request * heads..][..heads]);
                }
            }
        }
        (output, lse)
    }
}

fn close(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs().max(1.0))
}

fn geometry() -> impl Strategy<Value = Geometry> {
    (1u32..3, prop::sample::select(vec![1u32, 2, 5, 8]), prop::sample::select(vec![1u32, 4, 16, 48]))
        .prop_map(|(kv_heads, ratio, page_size)| Geometry {
            q_heads: kv_heads * ratio,
            kv_heads,
            head_dim: 16,
            page_size,
            dtype: Dtype::F32,
        })
}

fn way() -> impl Strategy<Value = Way> {
    let packings =
        vec![Packing::Priced, Packing::PerTree, Packing::Pat, Packing::PerNode, Packing::PerRequest];
    let tiles = [(1, 16), (4, 32), (16, 16), (64, 64)].map(|(m, n)| Tile::new(m, n, 2, 2));
    let splits = vec![Split::None, Split::Mean, Split::Fill];
    (prop::sample::select(packings), prop::sample::select(splits), prop::sample::select(tiles.to_vec()))
        .prop_map(|(packing, split, tile)| Way {
            options: PlanOptions { packing, split, ..PlanOptions::default() }.with_max_concurrent_ctas(64),
            tile,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn queries_of_one_step_are_steps_of_one_query(
        geometry in geometry(),
        requests in prop::collection::vec((0usize..6, 0u32..90, 0u32..17), 1..9),
        way in way(),
        seed in 0u64..1000,
    ) {
        let batch = Batch::new(geometry, &requests, seed);
        let mut backend = CpuBackend::new(2);
        let mut memory = Queries::default();
        let table = batch.table(&batch.seq_lens).with_queries(&batch.query_lens, &mut memory).unwrap();
        let (output, lse) = batch.decode(&mut backend, &table, &batch.query, &way).unwrap();
        let (expected, expected_lse) = batch.one_by_one(&mut backend, &way);
        prop_assert!(close(&output, &expected), "the output differs");
        prop_assert!(close(&lse, &expected_lse), "the LSE differs: {lse:?} for {expected_lse:?}");
    }

    #[test]
    fn compressed_rows_give_the_same_plan(
        geometry in geometry(),
        requests in prop::collection::vec((0usize..6, 0u32..90, 0u32..17), 1..9),
        way in way(),
    ) {
        let batch = Batch::new(geometry, &requests, 1);
        let (mut indptr, mut indices, mut last_page_len) = (vec![0], Vec::new(), Vec::new());
        for (row, &len) in batch.entries.chunks(batch.max_pages).zip(&batch.seq_lens) {
            indices.extend_from_slice(&row[..len.div_ceil(geometry.page_size) as usize]);
            indptr.push(indices.len() as i32);
            last_page_len.push((len.max(1) as i32 - 1) % geometry.page_size as i32 + 1);
        }
        let (mut memory, mut again) = (Queries::default(), Queries::default());
        let csr = PageTable::from_csr(&indptr, &indices, &last_page_len, geometry.page_size).unwrap();
        let csr = csr.with_queries(&batch.query_lens, &mut memory).unwrap();
        let dense = batch.table(&batch.seq_lens).with_queries(&batch.query_lens, &mut again).unwrap();
        let plan = |table: &PageTable<'_>| Plan::build(&geometry, table, &way.options, way.tile).unwrap();
        prop_assert_eq!(plan(&csr), plan(&dense));
    }

    #[test]
    fn queries_of_a_request_are_neighbours_in_every_block(
        geometry in geometry(),
        requests in prop::collection::vec((0usize..6, 0u32..90, 0u32..17), 1..9),
        way in way(),
    ) {
        let batch = Batch::new(geometry, &requests, 1);
        let mut memory = Queries::default();
        let table = batch.table(&batch.seq_lens).with_queries(&batch.query_lens, &mut memory).unwrap();
        let plan = Plan::build(&geometry, &table, &way.options, way.tile).unwrap();
        for block in 0..plan.q_tiles().len() as u32 {
            let queries = plan.requests_of(block);
            let of_request = |&query: &u32| table.request_of(query as usize);
            let mut seen: Vec<usize> = queries.chunk_by(|a, b| a + 1 == *b).flat_map(|run| {
                let mut requests: Vec<usize> = run.iter().map(of_request).collect();
                requests.dedup();
                requests
            }).collect();
            let runs = seen.len();
            seen.sort_unstable();
            seen.dedup();
            prop_assert_eq!(seen.len(), runs, "{:?} comes in several pieces", queries);
        }
    }
}

#[test]
fn shapes_are_those_of_all_queries() {
    let geometry = Geometry { q_heads: 4, kv_heads: 2, head_dim: 16, page_size: 16, dtype: Dtype::F32 };
    let batch = Batch::new(geometry, &[(0, 40, 3), (1, 5, 0), (1, 20, 2)], 7);
    let way = Way { options: PlanOptions::default(), tile: Tile::of("m16n16w1s1") };
    let mut backend = CpuBackend::new(1);
    let mut memory = Queries::default();
    let table = batch.table(&batch.seq_lens).with_queries(&batch.query_lens, &mut memory).unwrap();
    assert_eq!((table.requests(), table.batch(), batch.query.len()), (3, 5, 5 * 64));
    assert!(batch.decode(&mut backend, &table, &batch.query, &way).is_ok());
    for query in [&batch.query[..3 * 64], &[&batch.query[..], &[0.0; 64]].concat()] {
        let error = batch.decode(&mut backend, &table, query, &way).unwrap_err();
        assert_eq!(error, ExecError::Length { name: "query", found: query.len(), needed: 5 * 64 });
    }
}
