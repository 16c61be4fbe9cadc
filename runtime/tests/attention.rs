//! The API of engines on the CPU: what it computes is attention in f64, whichever way the batch came to be.

use half::{bf16, f16};
use proptest::prelude::*;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use tilewright_conformance::reference::{self, Attention as Reference};
use tilewright_runtime::cpu::{Element, Fp8Number};
use tilewright_runtime::{
    Attention, AttentionError, AttentionOptions, Cpu, Dtype, E4m3, E5m2, Heads, KvCache, KvCacheMut,
    KvLayout, KvStrides, Mask, NewTokens, PageTable, PerRow, Planned, Positions, Rotary, RotaryPairs,
};

const HEADS: Heads = Heads { query: 8, kv: 2, dim: 64 };
const PAGE_SIZE: u32 = 16;
const PAGES: usize = 24;
const ROW: usize = 8 * 64;

/// A cache of random numbers, and requests of random pages of it that share their first ones.
struct Batch<E> {
    keys: Vec<E>,
    values: Vec<E>,
    rows: Vec<(Vec<i32>, u32)>,
    query: Vec<E>,
}

impl<E: Element> Batch<E> {
    fn new(tokens: &[u32], seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut random =
            |count: usize| (0..count).map(|_| E::from_f32(rng.random_range(-1.0..1.0))).collect::<Vec<E>>();
        let elements = PAGES * (PAGE_SIZE * HEADS.kv * HEADS.dim) as usize;
        let (keys, values, query) = (random(elements), random(elements), random(tokens.len() * ROW));
        let row = |(request, &tokens): (usize, &u32)| {
            let pages = tokens.div_ceil(PAGE_SIZE) as usize;
            let page =
                |column| if column < 2 { column } else { (column * 5 + request * 3) % (PAGES - 2) + 2 };
            ((0..pages).map(|column| page(column) as i32).collect(), tokens)
        };
        Self { keys, values, rows: tokens.iter().enumerate().map(row).collect(), query }
    }

    fn csr(&self) -> (Vec<i32>, Vec<i32>, Vec<i32>) {
        let (mut indptr, mut indices, mut last) = (vec![0], Vec::new(), Vec::new());
        for (pages, tokens) in &self.rows {
            indices.extend(pages);
            indptr.push(indices.len() as i32);
            last.push(if *tokens == 0 { 0 } else { (*tokens - 1) % PAGE_SIZE + 1 } as i32);
        }
        (indptr, indices, last)
    }

    /// The relative error of output and LSE to attention in f64.
    fn error(&self, output: &[E], lse: &[f32], options: &AttentionOptions, sinks: Option<&[f32]>) -> f64 {
        let (indptr, indices, last) = self.csr();
        let table = PageTable::from_csr(&indptr, &indices, &last, PAGE_SIZE).unwrap();
        let geometry = attention(*options).geometry(PAGE_SIZE);
        let cache = tilewright_runtime::cpu::KvCache {
            keys: &self.keys[..],
            values: &self.values[..],
            strides: KvStrides::nhd(&geometry),
        };
        let AttentionOptions { scale, mask, .. } = *options;
        let wanted = Reference { scale: scale.unwrap_or(0.125), mask, sinks };
        let (expected, expected_lse) = reference::decode(&geometry, &table, &self.query, &cache, &wanted);
        let output: Vec<f64> = output.iter().map(|x| f64::from(x.to_f32())).collect();
        // An LSE of -inf stands for a request without tokens.
        let finite = |lse: f64| if lse == f64::NEG_INFINITY { -1e3 } else { lse };
        let lse: Vec<f64> = lse.iter().map(|&x| finite(f64::from(x))).collect();
        let expected_lse: Vec<f64> = expected_lse.into_iter().map(finite).collect();
        reference::relative_error(&output, &expected).max(reference::relative_error(&lse, &expected_lse))
    }
}

fn attention(options: AttentionOptions) -> Attention<Cpu> {
    Attention::cpu(HEADS, AttentionOptions { threads: Some(2), ..options }).unwrap()
}

/// Runs a plan with everything that a call can write.
fn run<E: Element>(
    attention: &Attention<Cpu>,
    plan: &impl Planned<Cpu>,
    batch: &Batch<E>,
    sinks: Option<&[f32]>,
) -> (Vec<E>, Vec<f32>) {
    let mut output = vec![E::from_f32(f32::NAN); batch.rows.len() * ROW];
    let mut lse = vec![f32::NAN; batch.rows.len() * HEADS.query as usize];
    let cache = KvCache::nhd(&batch.keys, &batch.values);
    let per_row = PerRow { lse: Some(&mut lse[..]), sinks };
    attention.run_with(plan, &(), &batch.query, &cache, &mut output, per_row).unwrap();
    (output, lse)
}

fn check<E: Element>(tokens: &[u32], options: AttentionOptions, with_sinks: bool, bound: f64) {
    let options = AttentionOptions { dtype: E::DTYPE, ..options };
    let (attention, batch) = (attention(options), Batch::<E>::new(tokens, 7));
    let sinks = [0.5, -1.0, 0.0, 2.0, 1.0, -3.0, 0.25, 4.0];
    let sinks = with_sinks.then_some(&sinks[..]);
    let (indptr, indices, last) = batch.csr();
    let plan = attention.plan(&PageTable::from_csr(&indptr, &indices, &last, PAGE_SIZE).unwrap()).unwrap();
    let (output, lse) = run(&attention, &plan, &batch, sinks);
    let error = batch.error(&output, &lse, &options, sinks);
    assert!(error < bound, "{tokens:?}, {options:?}: {error:.1e}");
}

#[test]
fn every_type_and_option_agrees_with_f64() {
    let tokens = [200, 33, 32, 0, 310, 1, 90];
    let plain = AttentionOptions::default();
    check::<f32>(&tokens, plain, false, 1e-5);
    check::<f16>(&tokens, plain, false, 2e-3);
    check::<bf16>(&tokens, plain, false, 1e-2);
    check::<f32>(&tokens, AttentionOptions { mask: Mask::window(40), ..plain }, true, 1e-5);
    check::<f32>(
        &tokens,
        AttentionOptions { mask: Mask::softcap(3.0), scale: Some(0.5), ..plain },
        false,
        1e-5,
    );
    check::<f32>(&[], plain, false, 1e-5);
}

#[test]
fn fp8_with_scales_is_the_widened_cache() {
    check_fp8::<E4m3>();
    check_fp8::<E5m2>();
}

fn check_fp8<F: Fp8Number>() {
    let narrow = |numbers: &[f32]| numbers.iter().map(|&x| F::from_f32(x * 64.0)).collect::<Vec<_>>();
    let mut batch = Batch::<f32>::new(&[200, 33, 70], 3);
    let (keys, values) = (narrow(&batch.keys), narrow(&batch.values));
    batch.keys = keys.iter().map(|x| x.to_f32() / 64.0).collect();
    batch.values = values.iter().map(|x| x.to_f32() / 64.0).collect();
    let options = AttentionOptions { dtype: Dtype::F32.with_kv(F::FORMAT), ..AttentionOptions::default() };
    let attention = attention(options);
    let (indptr, indices, last) = batch.csr();
    let plan = attention.plan(&PageTable::from_csr(&indptr, &indices, &last, PAGE_SIZE).unwrap()).unwrap();
    for scales in [&[1.0 / 64.0][..], &[1.0 / 64.0; 2]] {
        let mut output = vec![f32::NAN; batch.query.len()];
        let cache = KvCache::nhd(&keys, &values).with_scales(&scales, &scales);
        attention.run(&plan, &(), &batch.query, &cache, &mut output).unwrap();
        let wide = AttentionOptions { dtype: Dtype::F32, ..AttentionOptions::default() };
        let (expected, _) = {
            let attention = self::attention(wide);
            let (indptr, indices, last) = batch.csr();
            let table = PageTable::from_csr(&indptr, &indices, &last, PAGE_SIZE).unwrap();
            run(&attention, &attention.plan(&table).unwrap(), &batch, None)
        };
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        assert!(reference::relative_error(&wide(&output), &wide(&expected)) < 1e-5);
    }
}

/// Steps that append what they attend: the cache becomes that of a batch that had it all along.
#[test]
fn what_is_appended_is_attended() {
    let tokens = [70u32, 33, 20];
    let options = AttentionOptions { dtype: Dtype::F32, ..AttentionOptions::default() };
    let (attention, batch) = (attention(options), Batch::<f32>::new(&tokens, 9));
    let strides = KvStrides::hnd(&attention.geometry(PAGE_SIZE));
    let mut caches = [vec![f32::NAN; batch.keys.len()], vec![f32::NAN; batch.values.len()]];
    let columns = 5;
    let entries: Vec<i32> =
        batch.rows.iter().flat_map(|(pages, _)| (0..columns).map(|i| *pages.get(i).unwrap_or(&-1))).collect();
    for step in 0..70u32 {
        // Requests that have ended are padding: no token, no slot.
        let lens = tokens.map(|tokens| if step < tokens { step + 1 } else { 0 });
        let table = PageTable::new(&entries, columns, &lens, PAGE_SIZE).unwrap();
        let slots: Vec<i64> = table.slots().collect();
        let new = |cache: &[f32]| -> Vec<f32> {
            let token = |&slot: &i64| cache[slot.max(0) as usize * 128..][..128].to_vec();
            slots.iter().flat_map(token).collect()
        };
        let (keys, values) = (new(&batch.keys), new(&batch.values));
        let [key_pages, value_pages] = &mut caches;
        let mut cache = KvCacheMut::new(key_pages, value_pages, KvLayout::Strides(strides));
        attention
            .append(PAGE_SIZE, &(), &NewTokens::new(&keys[..], &values[..], &slots[..]), &mut cache)
            .unwrap();
    }
    let table = PageTable::new(&entries, columns, &tokens, PAGE_SIZE).unwrap();
    let plan = attention.plan(&table).unwrap();
    let mut output = vec![f32::NAN; batch.query.len()];
    let cache = KvCache::hnd(&caches[0], &caches[1]);
    attention.run(&plan, &(), &batch.query, &cache, &mut output).unwrap();
    assert_eq!(output, run(&attention, &plan, &batch, None).0);
}

#[test]
fn appends_that_do_not_fit_are_refused() {
    let attention = attention(AttentionOptions { dtype: Dtype::Fp8F16, ..AttentionOptions::default() });
    let (tokens, one) = (vec![f16::ONE; 2 * 128], [1.0f32]);
    let mut pages = [(); 2].map(|()| vec![E4m3::default(); 2 * 16 * 128]);
    let mut append = |slots: &[i64], rotary: Option<Rotary<'_, Cpu>>, page_size: u32| {
        let [keys, values] = &mut pages;
        let tokens = NewTokens { rotary, ..NewTokens::new(&tokens[..], &tokens[..], slots) };
        let mut cache = KvCacheMut::nhd(keys, values).with_scales(&one, &one);
        attention.append(page_size, &(), &tokens, &mut cache).map_err(|error| error.to_string())
    };
    let table = vec![0.5f32; 10 * 64];
    let rotary = |positions: &'static [i64]| Rotary {
        table: &table[..],
        dim: 64,
        pairs: RotaryPairs::Halves,
        positions: Positions::Given(positions),
    };
    assert_eq!(append(&[0, 31], Some(rotary(&[0, 9])), 16), Ok(()));
    let error = append(&[0, 32], None, 16).unwrap_err();
    assert!(error.contains("token 1 goes to slot 32"), "{error}");
    let error = append(&[0], None, 16).unwrap_err();
    assert!(error.contains("`tokens` has 256 elements, the append needs 128"), "{error}");
    let error = append(&[0, 1], Some(rotary(&[0, 10])), 16).unwrap_err();
    assert!(error.contains("token 1 has position 10, the rotary table has 10 positions"), "{error}");
    assert!(append(&[0, 1], None, 0).is_err());
    let mut halves = [(); 2].map(|()| vec![f16::ZERO; 2 * 16 * 128]);
    let [keys, values] = &mut halves;
    let tokens = NewTokens::new(&tokens[..], &tokens[..], &[0, 1][..]);
    let error = attention.append(PAGE_SIZE, &(), &tokens, &mut KvCacheMut::nhd(keys, values)).unwrap_err();
    assert!(error.to_string().contains("the plan is for fp8-f16"), "{error}");
    let mut other = [(); 2].map(|()| vec![E5m2::default(); 2 * 16 * 128]);
    let [keys, values] = &mut other;
    let mut cache = KvCacheMut::nhd(keys, values).with_scales(&one, &one);
    let error = attention.append(PAGE_SIZE, &(), &tokens, &mut cache).unwrap_err();
    assert!(error.to_string().contains("the plan is for fp8-f16"), "{error}");
}

#[test]
fn any_layout_of_the_cache_gives_the_same() {
    let batch = Batch::<f32>::new(&[150, 40, 64], 5);
    let attention = attention(AttentionOptions { dtype: Dtype::F32, ..AttentionOptions::default() });
    let (indptr, indices, last) = batch.csr();
    let plan = attention.plan(&PageTable::from_csr(&indptr, &indices, &last, PAGE_SIZE).unwrap()).unwrap();
    let (expected, _) = run(&attention, &plan, &batch, None);
    let geometry = attention.geometry(PAGE_SIZE);
    let (nhd, hnd) = (KvStrides::nhd(&geometry), KvStrides::hnd(&geometry));
    let moved = |from: &[f32], to: KvStrides, offset: usize, elements: usize| {
        let mut moved = vec![f32::NAN; elements];
        for (page, token, head) in (0..PAGES).flat_map(|page| {
            (0..PAGE_SIZE as usize).flat_map(move |token| (0..2).map(move |head| (page, token, head)))
        }) {
            let at = |strides: KvStrides| page * strides.page + token * strides.token + head * strides.head;
            moved[offset + at(to)..][..64].copy_from_slice(&from[at(nhd)..][..64]);
        }
        moved
    };
    let elements = batch.keys.len();
    let [keys, values] = [&batch.keys, &batch.values].map(|cache| moved(cache, hnd, 0, elements));
    let mut output = vec![f32::NAN; expected.len()];
    attention.run(&plan, &(), &batch.query, &KvCache::hnd(&keys, &values), &mut output).unwrap();
    assert_eq!(output, expected, "[page, head, token, element]");
    // K and V of a page side by side in one slice, as vLLM has them.
    let both = KvStrides { page: 2 * nhd.page, ..nhd };
    let one = moved(&batch.keys, both, 0, 2 * elements);
    let two = moved(&batch.values, both, 0, 2 * elements);
    let cache = KvCache::new(&one, &two, KvLayout::Strides(both));
    attention.run(&plan, &(), &batch.query, &cache, &mut output).unwrap();
    assert_eq!(output, expected, "strided");
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let options = AttentionOptions { dtype: Dtype::F32, ..AttentionOptions::default() };
    assert!(matches!(Attention::cpu(Heads { query: 3, ..HEADS }, options), Err(AttentionError::Heads(_))));
    let (attention, batch) = (attention(options), Batch::<f32>::new(&[20, 40], 1));
    let (indptr, indices, last) = batch.csr();
    let mut plan =
        attention.plan(&PageTable::from_csr(&indptr, &indices, &last, PAGE_SIZE).unwrap()).unwrap();
    let mut output = vec![0.0; 2 * ROW];
    let cache = KvCache::nhd(&batch.keys, &batch.values);
    let error = attention.run(&plan, &(), &batch.query[1..], &cache, &mut output).unwrap_err();
    assert!(error.to_string().contains("`query`"), "{error}");
    let (short, halves) = (vec![0.0f32; 10], vec![f16::ZERO; batch.keys.len()]);
    let error = attention.run(&plan, &(), &batch.query, &KvCache::nhd(&short, &short), &mut output);
    assert!(error.unwrap_err().to_string().contains("`keys`"));
    let half_query = vec![f16::ZERO; 2 * ROW];
    let error =
        attention.run(&plan, &(), &half_query, &KvCache::nhd(&halves, &halves), &mut half_query.clone());
    assert!(error.unwrap_err().to_string().contains("the plan is for f32"));
    assert!(matches!(plan.set_lengths(&[33, 40]), Err(AttentionError::Lengths(_))));
    assert!(attention.live_plan(0).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A live plan, and a plan that only gets new lengths, compute what a plan from nothing does.
    #[test]
    fn plans_that_follow_a_batch_compute_it(
        tokens in prop::collection::vec(1u32..300, 1..6), steps in prop::collection::vec((0usize..6, 1u32..30), 1..12),
    ) {
        let options = AttentionOptions { dtype: Dtype::F32, ..AttentionOptions::default() };
        let attention = attention(options);
        let mut batch = Batch::<f32>::new(&tokens, 11);
        let mut live = attention.live_plan(PAGE_SIZE).unwrap();
        for (request, (pages, tokens)) in (0..).zip(&batch.rows) {
            live.add(request, pages, *tokens).unwrap();
        }
        let mut followed = None;
        for (request, grown) in steps {
            let request = request % batch.rows.len();
            let (pages, tokens) = &mut batch.rows[request];
            *tokens += grown;
            let more = tokens.div_ceil(PAGE_SIZE) as usize - pages.len();
            if more == 0 {
                live.grow(request as u32, *tokens).unwrap();
            } else {
                let new: Vec<i32> = (0..more).map(|i| ((pages.len() + i) * 7 % (PAGES - 2) + 2) as i32).collect();
                pages.extend(&new);
                live.append(request as u32, &new, *tokens).unwrap();
                followed = None;
            }
            live.update().unwrap();
            let (output, lse) = run(&attention, &live, &batch, None);
            prop_assert!(batch.error(&output, &lse, &options, None) < 1e-5);

            let lengths: Vec<u32> = batch.rows.iter().map(|(_, tokens)| *tokens).collect();
            let (indptr, indices, last) = batch.csr();
            let table = PageTable::from_csr(&indptr, &indices, &last, PAGE_SIZE).unwrap();
            let plan = followed.get_or_insert_with(|| attention.plan(&table).unwrap());
            plan.set_lengths(&lengths).unwrap();
            let (output, lse) = run(&attention, plan, &batch, None);
            prop_assert!(batch.error(&output, &lse, &options, None) < 1e-5);
        }
    }
}

/// A process that only decodes on the CPU may fork: importing the crate, planning and decoding open neither the driver nor NVRTC.
#[test]
#[cfg(target_os = "linux")]
fn the_cpu_backend_opens_nothing_of_cuda() {
    let batch = Batch::<f32>::new(&[150, 40, 64], 5);
    let attention = attention(AttentionOptions { dtype: Dtype::F32, ..AttentionOptions::default() });
    let (indptr, indices, last) = batch.csr();
    let plan = attention.plan(&PageTable::from_csr(&indptr, &indices, &last, PAGE_SIZE).unwrap()).unwrap();
    run(&attention, &plan, &batch, None);
    let mapped = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(mapped.contains("libc"), "{mapped}");
    for library in ["libcuda", "libnvrtc", "libcudart"] {
        assert!(!mapped.contains(library), "{library} is open");
    }
}

#[test]
fn a_request_has_the_same_bits_in_every_batch_if_asked_for() {
    let options = AttentionOptions { dtype: Dtype::F32, ..AttentionOptions::default() }.invariant();
    let attention = attention(options);
    // More than one chunk of 512 tokens, of pages that others have, too.
    let tokens = [1_300, 700, 33, 0, 1_290];
    let all = Batch::<f32>::new(&tokens, 3);
    let run_rows = |rows: &[usize]| {
        let batch = Batch {
            keys: all.keys.clone(),
            values: all.values.clone(),
            rows: rows.iter().map(|&row| all.rows[row].clone()).collect(),
            query: rows.iter().flat_map(|&row| &all.query[row * ROW..][..ROW]).copied().collect(),
        };
        let (indptr, indices, last) = batch.csr();
        let plan =
            attention.plan(&PageTable::from_csr(&indptr, &indices, &last, PAGE_SIZE).unwrap()).unwrap();
        let fresh = run(&attention, &plan, &batch, None);
        let mut live = attention.live_plan(PAGE_SIZE).unwrap();
        for (request, (pages, tokens)) in (0..).zip(&batch.rows) {
            if *tokens > 0 {
                live.add(request, pages, *tokens).unwrap();
            }
        }
        live.update().unwrap();
        if live.plan().batch() == rows.len() {
            assert_eq!(run(&attention, &live, &batch, None), fresh);
        }
        fresh
    };
    let (together, lse) = run_rows(&[0, 1, 2, 3, 4]);
    assert!(all.error(&together, &lse, &options, None) < 1e-5);
    for rows in [&[0][..], &[4, 0], &[2, 1], &[1]] {
        let (found, found_lse) = run_rows(rows);
        for (place, &row) in rows.iter().enumerate() {
            assert_eq!(found[place * ROW..][..ROW], together[row * ROW..][..ROW]);
            assert_eq!(found_lse[place * 8..][..8], lse[row * 8..][..8]);
        }
    }
    let error = attention.plan(&PageTable::new(&[0], 1, &[3], 8).unwrap()).unwrap_err();
    assert!(matches!(error, AttentionError::InvariantPages { page_size: 8 }), "{error}");
}
