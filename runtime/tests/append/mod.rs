//! The suite's part about appends: the bits of the CPU backend, by launches and by replays.
#![allow(unsafe_code)]

mod measured;

use super::{device, into_cuda};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use half::{bf16, f16};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use tilewright_cpu::Element;
use tilewright_cuda::{
    CudaDevice, CudaElement, CudaError, Graph, RawAppend, RawPositions, RawRotary, RawScales, RowStrides,
};
use tilewright_heuristics::{Dtype, Fp8};
use tilewright_plan::{AppendError, E4m3, E5m2, KvStrides};
use tilewright_runtime::{
    Attention, AttentionError, AttentionOptions, Cpu, Cuda, Heads, KvCacheMut, KvLayout, NewTokens,
    Positions, Rotary, RotaryPairs,
};

/// Positions of the table.
const ROWS: usize = 500;
const PAGES: usize = 12;

/// What one step appends.
struct Step<E> {
    keys: Vec<E>,
    values: Vec<E>,
    slots: Vec<i64>,
    positions: Vec<i64>,
    lengths: Vec<i32>,
}

impl<E: Element> Step<E> {
    fn new(heads: Heads, page_size: u32, tokens: usize, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut random = |count: usize| -> Vec<E> {
            let number = |_| {
                let power = 2f32.powi(rng.random_range(-14..11));
                let tie = (2 * rng.random_range(8..16) + 1) as f32 / 16.0;
                E::from_f32(match rng.random_range(0..8) {
                    0 => -0.0,
                    1..4 => rng.random_range(-1.0f32..1.0) * power,
                    _ => 7.0 * tie * power,
                })
            };
            (0..count).map(number).collect()
        };
        let elements = tokens * (heads.kv * heads.dim) as usize;
        let (keys, values) = (random(elements), random(elements));
        let mut slots: Vec<i64> = (0..(PAGES as i64 * i64::from(page_size))).collect();
        slots.shuffle(&mut rng);
        slots.truncate(tokens);
        let positions: Vec<i64> = (0..tokens).map(|_| rng.random_range(0..ROWS as i64)).collect();
        for slot in slots.iter_mut().step_by(5) {
            *slot = -1;
        }
        let lengths = positions.iter().map(|&position| position as i32 + 1).collect();
        Self { keys, values, slots, positions, lengths }
    }
}

/// How an attention's cache is appended to.
#[derive(Clone, Copy, Debug)]
struct Case {
    heads: Heads,
    dtype: Dtype,
    page_size: u32,
    layout: KvLayout,
    rotary: Option<(RotaryPairs, u32, bool)>,
    per_head: bool,
}

fn bits<T: tilewright_cpu::Number>(caches: &[Vec<T>; 2]) -> [Vec<u32>; 2] {
    caches.each_ref().map(|cache| cache.iter().map(|number| number.to_f32().to_bits()).collect())
}

/// What both backends are given beside the tokens.
struct Given {
    table: Vec<f32>,
    scales: [Vec<f32>; 2],
    elements: usize,
}

impl Case {
    fn options(&self) -> AttentionOptions {
        AttentionOptions {
            dtype: self.dtype,
            fetch_nvrtc: true,
            threads: Some(2),
            ..AttentionOptions::default()
        }
    }

    fn given(&self) -> Given {
        let mut rng = ChaCha8Rng::seed_from_u64(77);
        let dim = self.rotary.map_or(16, |(_, dim, _)| dim) as usize;
        let table = (0..ROWS * dim).map(|_| rng.random_range(-1.0..1.0)).collect();
        let count = if self.per_head { self.heads.kv as usize } else { 1 };
        let scales =
            [0.4375, 0.3].map(|first: f32| (0..count).map(|head| first / (head + 1) as f32).collect());
        let elements = PAGES * (self.page_size * self.heads.kv * self.heads.dim) as usize;
        Given { table, scales, elements }
    }

    /// Two steps, one after the other, into pages of NaN.
    fn on_cpu<E: Element>(&self, steps: &[Step<E>; 2]) -> [Vec<u32>; 2] {
        let attention: Attention<Cpu> = Attention::cpu(self.heads, self.options()).unwrap();
        let Given { table, scales: [key_scales, value_scales], elements } = &self.given();
        let mut wide = [vec![E::from_f32(f32::NAN); *elements], vec![E::from_f32(f32::NAN); *elements]];
        let mut e4m3 = [vec![E4m3::from_bits(0xff); *elements], vec![E4m3::from_bits(0xff); *elements]];
        let mut e5m2 = [vec![E5m2::from_bits(0xff); *elements], vec![E5m2::from_bits(0xff); *elements]];
        for step in steps {
            let rotary = self.rotary.map(|(pairs, dim, of_lengths)| Rotary {
                table: &table[..],
                dim,
                pairs,
                positions: match of_lengths {
                    true => Positions::OfLengths(&step.lengths[..]),
                    false => Positions::Given(&step.positions[..]),
                },
            });
            let tokens =
                NewTokens { rotary, ..NewTokens::new(&step.keys[..], &step.values[..], &step.slots[..]) };
            match self.dtype.fp8() {
                Some(Fp8::E4m3) => {
                    let [keys, values] = &mut e4m3;
                    let mut cache =
                        KvCacheMut::new(keys, values, self.layout).with_scales(key_scales, value_scales);
                    attention.append(self.page_size, &(), &tokens, &mut cache).unwrap();
                }
                Some(Fp8::E5m2) => {
                    let [keys, values] = &mut e5m2;
                    let mut cache =
                        KvCacheMut::new(keys, values, self.layout).with_scales(key_scales, value_scales);
                    attention.append(self.page_size, &(), &tokens, &mut cache).unwrap();
                }
                None => {
                    let [keys, values] = &mut wide;
                    let mut cache = KvCacheMut::new(keys, values, self.layout);
                    attention.append(self.page_size, &(), &tokens, &mut cache).unwrap();
                }
            }
        }
        match self.dtype.fp8() {
            Some(Fp8::E4m3) => bits(&e4m3),
            Some(Fp8::E5m2) => bits(&e5m2),
            None => bits(&wide),
        }
    }

    /// The first step by a launch; the second by replaying a graph of that launch with other tokens, slots and positions.
    fn on_gpu<E: Element + CudaElement>(&self, device: &CudaDevice, steps: &[Step<E>; 2]) -> [Vec<u32>; 2] {
        let context = Arc::clone(device.context());
        let stream = context.new_stream().unwrap();
        let attention: Attention<Cuda> = Attention::cuda(context, self.heads, self.options()).unwrap();
        let Given { table, scales, elements } = self.given();
        let table = stream.clone_htod(&table).unwrap();
        let [key_scales, value_scales] = scales.map(|scales| stream.clone_htod(&scales).unwrap());
        let [first, second] = steps;
        let mut keys = stream.clone_htod(&first.keys).unwrap();
        let mut values = stream.clone_htod(&first.values).unwrap();
        let mut slots = stream.clone_htod(&first.slots).unwrap();
        let mut positions = stream.clone_htod(&first.positions).unwrap();
        let mut lengths = stream.clone_htod(&first.lengths).unwrap();
        let nan = vec![E::from_f32(f32::NAN); elements];
        let mut wide = [stream.clone_htod(&nan).unwrap(), stream.clone_htod(&nan).unwrap()];
        let mut fp8 = [0, 1].map(|_| stream.clone_htod(&vec![0xffu8; elements]).unwrap());

        let mut append = || {
            let rotary = self.rotary.map(|(pairs, dim, of_lengths)| Rotary {
                table: &table,
                dim,
                pairs,
                positions: match of_lengths {
                    true => Positions::OfLengths(&lengths),
                    false => Positions::Given(&positions),
                },
            });
            let tokens = NewTokens { rotary, ..NewTokens::new(&keys, &values, &slots) };
            if self.dtype.has_fp8_kv() {
                let [keys, values] = &mut fp8;
                let mut cache =
                    KvCacheMut::new(keys, values, self.layout).with_scales(&key_scales, &value_scales);
                attention.append(self.page_size, &stream, &tokens, &mut cache)
            } else {
                let [keys, values] = &mut wide;
                let mut cache = KvCacheMut::new(keys, values, self.layout);
                attention.append(self.page_size, &stream, &tokens, &mut cache)
            }
        };
        append().unwrap();
        // SAFETY: the slices and the kernels outlive the graph, whose replay is waited for.
        let graph = unsafe { Graph::capture(&stream, || append().map_err(into_cuda)).unwrap() };
        stream.memcpy_htod(&second.keys, &mut keys).unwrap();
        stream.memcpy_htod(&second.values, &mut values).unwrap();
        stream.memcpy_htod(&second.slots, &mut slots).unwrap();
        stream.memcpy_htod(&second.positions, &mut positions).unwrap();
        stream.memcpy_htod(&second.lengths, &mut lengths).unwrap();
        graph.launch(&stream).unwrap();
        let bytes = fp8.each_ref().map(|cache| stream.clone_dtoh(cache).unwrap());
        match self.dtype.fp8() {
            Some(Fp8::E4m3) => bits(&bytes.map(|bytes| bytes.into_iter().map(E4m3::from_bits).collect())),
            Some(Fp8::E5m2) => bits(&bytes.map(|bytes| bytes.into_iter().map(E5m2::from_bits).collect())),
            None => bits(&wide.each_ref().map(|cache| stream.clone_dtoh(cache).unwrap())),
        }
    }

    fn check<E: Element + CudaElement>(&self, device: &CudaDevice) {
        let most = PAGES as u32 * self.page_size / 2;
        let steps =
            [1, 2].map(|seed| Step::<E>::new(self.heads, self.page_size, most.min(60) as usize, seed));
        let (found, expected) = (self.on_gpu(device, &steps), self.on_cpu(&steps));
        for ((name, found), expected) in ["K", "V"].into_iter().zip(&found).zip(&expected) {
            let differs = found.iter().zip(expected).position(|(a, b)| a != b);
            if let Some(at) = differs {
                let [found, expected] = [found[at], expected[at]].map(f32::from_bits);
                panic!("{found} for {expected} at {at} of {name}: {self:?}");
            }
        }
    }
}

#[test]
fn appends_write_the_bits_of_the_cpu_backend_when_launched_and_when_replayed() {
    let device = device();
    let rotaries = |dim: u32| {
        let [halves, interleaved] = RotaryPairs::ALL;
        [None, Some((halves, dim, false)), Some((interleaved, dim, true)), Some((halves, dim / 4, true))]
    };
    let mut checked = 0;
    for (index, heads) in
        [(8, 2, 128), (3, 3, 64), (4, 1, 256), (4, 2, 192), (2, 1, 512)].into_iter().enumerate()
    {
        let heads = Heads { query: heads.0, kv: heads.1, dim: heads.2 };
        let page_size = [16, 5, 64, 16, 32][index];
        let e5m2 = [Dtype::E5m2F16, Dtype::E5m2Bf16][index % 2];
        for (dtype, layout) in [Dtype::F16, Dtype::Bf16, Dtype::Fp8F16, Dtype::Fp8Bf16, e5m2]
            .into_iter()
            .flat_map(|dtype| [(dtype, KvLayout::Nhd), (dtype, KvLayout::Hnd)])
        {
            for rotary in rotaries(heads.dim) {
                let per_head = layout == KvLayout::Hnd;
                let case = Case { heads, dtype, page_size, layout, rotary, per_head };
                match dtype {
                    Dtype::Bf16 | Dtype::Fp8Bf16 | Dtype::E5m2Bf16 => case.check::<bf16>(&device),
                    _ => case.check::<f16>(&device),
                }
                checked += 1;
            }
        }
    }
    println!("{checked} cases of two steps are equal to the bit");
}

fn address<T>(slice: &CudaSlice<T>, stream: &CudaStream) -> u64 {
    slice.device_ptr(stream).0
}

#[test]
fn appends_from_addresses_take_any_strides() {
    let device = device();
    let (context, heads) = (Arc::clone(device.context()), Heads { query: 8, kv: 2, dim: 128 });
    let stream = context.new_stream().unwrap();
    let options =
        AttentionOptions { dtype: Dtype::Fp8Bf16, fetch_nvrtc: true, ..AttentionOptions::default() };
    let attention = Attention::cuda(context, heads, options).unwrap();
    // Q, K and V of a token side by side, and one element before them: nothing is aligned. K and V of a page side by side.
    let step = Step::<bf16>::new(heads, 16, 40, 3);
    let row = (8 + 2 + 2) * 128;
    let mut qkv = vec![bf16::ONE; 1 + 40 * row];
    for (token, (keys, values)) in step.keys.chunks(256).zip(step.values.chunks(256)).enumerate() {
        qkv[1 + token * row + 8 * 128..][..256].copy_from_slice(keys);
        qkv[1 + token * row + 10 * 128..][..256].copy_from_slice(values);
    }
    let qkv = stream.clone_htod(&qkv).unwrap();
    let slots = stream.clone_htod(&step.slots).unwrap();
    let cache = stream.clone_htod(&vec![0x55u8; PAGES * 2 * 16 * 256]).unwrap();
    let scales = stream.clone_htod(&[0.5f32, 0.25]).unwrap();
    let table: Vec<f32> = (0..ROWS * 128).map(|i| (i as f32).sin()).collect();
    let (on_device, positions) =
        (stream.clone_htod(&table).unwrap(), stream.clone_htod(&step.positions).unwrap());
    let strides = RowStrides { request: row, head: 128 };
    let args = RawAppend {
        tokens: 40,
        keys: address(&qkv, &stream) + 2 * (1 + 8 * 128),
        key_strides: strides,
        values: address(&qkv, &stream) + 2 * (1 + 10 * 128),
        value_strides: strides,
        slots: address(&slots, &stream),
        key_pages: address(&cache, &stream),
        value_pages: address(&cache, &stream) + 16 * 256,
        kv_strides: KvStrides { page: 2 * 16 * 256, token: 256, head: 128 },
        pages: PAGES,
        scales: Some(RawScales {
            keys: address(&scales, &stream),
            values: address(&scales, &stream) + 4,
            per_head: false,
        }),
        rotary: Some(RawRotary {
            table: address(&on_device, &stream),
            rows: ROWS,
            dim: 128,
            pairs: RotaryPairs::Halves,
            positions: RawPositions::Given(address(&positions, &stream)),
        }),
    };
    // SAFETY: the slices are as large as tokens, pages and strides say, and live until the stream is waited for.
    unsafe { attention.append_raw(16, &stream, &args) }.unwrap();
    let found: Vec<E4m3> = stream.clone_dtoh(&cache).unwrap().into_iter().map(E4m3::from_bits).collect();

    let on_cpu: Attention<Cpu> =
        Attention::cpu(heads, AttentionOptions { threads: Some(1), ..options }).unwrap();
    let mut expected =
        [vec![E4m3::from_bits(0x55); PAGES * 16 * 256], vec![E4m3::from_bits(0x55); PAGES * 16 * 256]];
    let [keys, values] = &mut expected;
    let rotary = Rotary {
        table: &table[..],
        dim: 128,
        pairs: RotaryPairs::Halves,
        positions: Positions::Given(&step.positions[..]),
    };
    let tokens = NewTokens::new(&step.keys[..], &step.values[..], &step.slots[..]).rotated(rotary);
    let mut cache = KvCacheMut::nhd(keys, values).with_scales(&[0.5f32], &[0.25f32]);
    on_cpu.append(16, &(), &tokens, &mut cache).unwrap();
    for (page, both) in found.chunks(2 * 16 * 256).enumerate() {
        let of = |cache: &[E4m3]| cache[page * 16 * 256..][..16 * 256].to_vec();
        assert_eq!(
            (&both[..16 * 256], &both[16 * 256..]),
            (&of(&expected[0])[..], &of(&expected[1])[..]),
            "page {page}"
        );
    }
}

#[test]
fn what_an_append_cannot_do_is_said() {
    let device = device();
    let (context, heads) = (Arc::clone(device.context()), Heads { query: 8, kv: 2, dim: 128 });
    let stream = context.new_stream().unwrap();
    let options = AttentionOptions { fetch_nvrtc: true, ..AttentionOptions::default() };
    let attention = Attention::cuda(context, heads, options).unwrap();
    let zeros = |count: usize| stream.alloc_zeros::<f16>(count).unwrap();
    let (tokens, short) = (zeros(4 * 256), zeros(3 * 256));
    let (mut keys, mut values) = (zeros(2 * 16 * 256), zeros(2 * 16 * 256));
    let slots = stream.clone_htod(&[0i64, 1, 31, 32]).unwrap();
    let mut append = |values_of: &CudaSlice<f16>| {
        let tokens = NewTokens::new(&tokens, values_of, &slots);
        attention.append(16, &stream, &tokens, &mut KvCacheMut::nhd(&mut keys, &mut values))
    };
    // SAFETY: nothing is captured.
    let refused = unsafe {
        Graph::capture(&stream, || {
            let refused = append(&tokens).unwrap_err();
            assert!(matches!(refused, AttentionError::Captured { .. }), "{refused}");
            Err(CudaError::NoBucket)
        })
    };
    assert!(matches!(refused, Err(CudaError::NoBucket)));
    let error = append(&short).unwrap_err();
    let AttentionError::Cuda(CudaError::Append(error)) = error else { panic!("{error}") };
    assert_eq!(error, AppendError::Length { name: "values", found: 768, needed: 1024 });
    append(&tokens).unwrap();
    let attention = Attention::cuda(
        Arc::clone(device.context()),
        heads,
        AttentionOptions { dtype: Dtype::Bf16, ..options },
    );
    let tokens = NewTokens::new(&tokens, &tokens, &slots);
    let error = attention.unwrap().append(16, &stream, &tokens, &mut KvCacheMut::nhd(&mut keys, &mut values));
    assert!(matches!(error, Err(AttentionError::Cuda(CudaError::Dtype { .. }))));
}
