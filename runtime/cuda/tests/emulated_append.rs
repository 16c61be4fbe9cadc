//! The CUDA kernel that appends K and V, run on the host by an emulation of the machine: it writes the very bits of the CPU backend, and
//! nothing else.

#[expect(dead_code, reason = "the kernels of plans have a suite of their own")]
mod emulation;

use emulation::Emulator;
use half::{bf16, f16};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use tilewright_cpu::{self as cpu, Element, Number, Positions, Rotary};
use tilewright_heuristics::{Backend, Dtype, Geometry};
use tilewright_kernel_templates::cuda::{AppendArguments, Kernel};
use tilewright_kernel_templates::{Class, RotaryPairs};
use tilewright_plan::{E4m3, E5m2, KvStrides, Scale};

/// Elements behind the last.
const BEHIND: usize = 16 << 10;

/// Positions of the table.
const ROWS: usize = 40;

/// How tokens lie in memory: dense, in rows with gaps that are whole chunks, or somewhere.
#[derive(Clone, Copy, Debug)]
enum Tokens {
    Dense,
    Gaps,
    Odd,
}

/// One launch.
#[derive(Clone, Copy, Debug)]
struct Case {
    geometry: Geometry,
    pairs: Option<RotaryPairs>,
    hnd: bool,
    tokens: usize,
    rotary_dim: u32,
    of_lengths: bool,
    per_head: bool,
    lie: Tokens,
    seed: u64,
}

/// Elements at an address that is a multiple of 16 bytes, or of less, with others behind them that a wrong kernel may reach without harm.
struct Aligned<T>(Vec<T>, usize);

impl<T: Copy> Aligned<T> {
    /// Begins `shift` elements behind a multiple of 16 bytes.
    fn new(elements: &[T], filler: T, shift: usize) -> Self {
        let mut memory = vec![filler; elements.len() + BEHIND];
        let first = memory.as_ptr().align_offset(16) + shift;
        memory[first..first + elements.len()].copy_from_slice(elements);
        Self(memory, first)
    }

    fn address(&mut self) -> u64 {
        self.0[self.1..].as_mut_ptr() as u64
    }

    /// From the first one on, with those behind.
    fn elements(&self) -> &[T] {
        &self.0[self.1..]
    }
}

impl Case {
    /// Launches it, and compares every element of both caches.
    fn check<E: Element, S: Number + PartialEq>(&self, emulator: &Emulator) -> Result<(), String> {
        let Self { geometry, pairs, tokens, .. } = *self;
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let (heads, dim, page_size) =
            (geometry.kv_heads as usize, geometry.head_dim as usize, geometry.page_size as usize);
        let pages = tokens.div_ceil(page_size) + 2;
        // Numbers of every size, among them what FP8 rounds to nothing and to its largest; and products of 7 and numbers between two of FP8,
        // which products with a reciprocal miss.
        let mut random = |count: usize| -> Vec<E> {
            let number = |_| {
                let power = 2f32.powi(rng.random_range(-14..11));
                let tie = (2 * rng.random_range(8..16) + 1) as f32 / 16.0;
                E::from_f32(match rng.random_range(0..16) {
                    0 => -0.0,
                    // Rotations make NaN of it, of which no two machines have the same.
                    1 if geometry.dtype.has_fp8_kv() && pairs.is_none() => f32::NEG_INFINITY,
                    2..8 => rng.random_range(-1.0f32..1.0) * power,
                    _ => 7.0 * tie * power,
                })
            };
            (0..count).map(number).collect()
        };
        let (keys, values) = (random(tokens * heads * dim), random(tokens * heads * dim));
        let mut slots: Vec<i64> = (0..(pages * page_size) as i64).collect();
        slots.shuffle(&mut rng);
        slots.truncate(tokens);
        let mut positions: Vec<i64> = (0..tokens).map(|_| rng.random_range(0..ROWS as i64)).collect();
        // What is skipped: padding, slots and positions beyond the last.
        let mut written = slots.clone();
        for token in 0..tokens {
            match token % 7 {
                2 => slots[token] = -1 - rng.random_range(0..i64::MAX),
                4 => slots[token] = [(pages * page_size) as i64, 1 << 32, i64::MAX][token / 7 % 3],
                5 if pairs.is_some() => positions[token] = [ROWS as i64, -1][token / 7 % 2],
                _ => continue,
            }
            written[token] = -1;
        }
        let lengths: Vec<i32> = positions.iter().map(|&position| position as i32 + 1).collect();
        let rotary_dim = self.rotary_dim as usize;
        let table: Vec<f32> = (0..ROWS * rotary_dim).map(|_| rng.random_range(-1.0..1.0)).collect();
        let scale = |at: usize| match at % heads {
            0 => 0.4375,
            1 => 2f32.powf(rng.random_range(-9.0..3.0)),
            _ => 2f32.powi(-130),
        };
        let scales: Vec<f32> = (0..2 * heads).map(scale).collect();
        let strides = if self.hnd { KvStrides::hnd(&geometry) } else { KvStrides::nhd(&geometry) };

        let poison = S::from_f32(f32::NAN);
        let expected = [(&keys, 0), (&values, heads)].map(|(tokens, first)| {
            let mut cache = vec![poison; pages * page_size * heads * dim];
            let scale = match (geometry.dtype.has_fp8_kv(), self.per_head) {
                (false, _) => Scale::Tensor(1.0),
                (true, false) => Scale::Tensor(scales[first]),
                (true, true) => Scale::Heads(&scales[first..first + heads]),
            };
            let own =
                if self.of_lengths { Positions::OfLengths(&lengths) } else { Positions::Given(&positions) };
            let rotary = pairs.filter(|_| first == 0).map(|pairs| Rotary {
                table: &table,
                dim: self.rotary_dim,
                pairs,
                positions: own,
            });
            cpu::append(&geometry, tokens, &written, &mut cache, &strides, scale, rotary.as_ref()).unwrap();
            cache
        });

        let (token_stride, head_stride, shift) = match self.lie {
            Tokens::Dense => (heads * dim, dim, 0),
            Tokens::Gaps => (heads * dim + 24, dim + 8, 8),
            Tokens::Odd => (heads * dim + 33, dim + 3, 1),
        };
        let token_stride = token_stride.max(heads * head_stride);
        let lie = |dense: &[E]| {
            let mut apart = vec![E::from_f32(3.0); tokens * token_stride];
            for (row, vector) in dense.chunks_exact(dim).enumerate() {
                let at = row / heads * token_stride + row % heads * head_stride;
                apart[at..at + dim].copy_from_slice(vector);
            }
            Aligned::new(&apart, E::from_f32(3.0), shift)
        };
        let (mut keys, mut values) = (lie(&keys), lie(&values));
        let mut table = Aligned::new(&table, f32::NAN, 0);
        let empty = vec![poison; expected[0].len()];
        let mut caches = [Aligned::new(&empty, poison, 0), Aligned::new(&empty, poison, 0)];
        let [key_pages, value_pages] = &mut caches;
        let address_of = |given: bool, address: u64| if given { address } else { 0 };
        let args = AppendArguments {
            keys: keys.address(),
            values: values.address(),
            key_pages: key_pages.address(),
            value_pages: value_pages.address(),
            slots: slots.as_ptr() as u64,
            key_scales: scales.as_ptr() as u64,
            value_scales: scales[heads..].as_ptr() as u64,
            table: table.address(),
            positions: address_of(!self.of_lengths, positions.as_ptr() as u64),
            lengths: address_of(self.of_lengths, lengths.as_ptr() as u64),
            key_token: token_stride as i64,
            key_head: head_stride as i64,
            value_token: token_stride as i64,
            value_head: head_stride as i64,
            page: strides.page as i64,
            token: strides.token as i64,
            head: strides.head as i64,
            scale_head: i64::from(self.per_head),
            table_rows: ROWS as u64,
            tokens: tokens as u32,
            kv_heads: geometry.kv_heads,
            page_size: geometry.page_size,
            pages: pages as u32,
            rotary_dim: self.rotary_dim,
            wide: u32::from(!matches!(self.lie, Tokens::Odd)),
        };
        let kernel = Kernel::append(&Class::of(&geometry), pairs);
        let chunks = (tokens * heads * dim / 8) as u32;
        emulator
            .run_append(&kernel, &args, chunks, self.seed)
            .map_err(|error| format!("{error}: {self:?}"))?;
        for ((name, found), expected) in ["K", "V"].into_iter().zip(&caches).zip(&expected) {
            let found = found.elements();
            let behind = std::iter::repeat(&poison);
            let differs = |(a, b): (&S, &S)| a.to_f32().to_bits() != b.to_f32().to_bits();
            if let Some(at) = found.iter().zip(expected.iter().chain(behind)).position(differs) {
                let (found, expected) = (found[at], expected.get(at));
                return Err(format!("{found:?} for {expected:?} at {at} of {name}: {self:?}"));
            }
        }
        Ok(())
    }

    fn check_any(&self, emulator: &Emulator) -> Result<(), String> {
        match self.geometry.dtype {
            Dtype::Bf16 => self.check::<bf16, bf16>(emulator),
            Dtype::Fp8F16 => self.check::<f16, E4m3>(emulator),
            Dtype::Fp8Bf16 => self.check::<bf16, E4m3>(emulator),
            Dtype::E5m2F16 => self.check::<f16, E5m2>(emulator),
            Dtype::E5m2Bf16 => self.check::<bf16, E5m2>(emulator),
            _ => self.check::<f16, f16>(emulator),
        }
    }
}

fn rotaries() -> [Option<RotaryPairs>; 3] {
    [None, Some(RotaryPairs::Halves), Some(RotaryPairs::Interleaved)]
}

/// Cases of a class, in every layout.
fn cases(class: Class, pairs: Option<RotaryPairs>) -> impl Iterator<Item = Case> {
    let shapes = [(1, 16, 1), (2, 5, 23), (3, 1, 30), (8, 64, 9)];
    shapes.into_iter().enumerate().map(move |(index, (kv_heads, page_size, tokens))| Case {
        geometry: Geometry {
            q_heads: kv_heads,
            kv_heads,
            head_dim: class.head_dim,
            page_size,
            dtype: class.dtype,
        },
        pairs,
        hnd: index % 2 == 1,
        tokens,
        rotary_dim: [class.head_dim, 16, 48, class.head_dim / 2][index],
        of_lengths: index % 2 == 0,
        per_head: index >= 2,
        lie: [Tokens::Dense, Tokens::Odd, Tokens::Gaps, Tokens::Dense][index],
        seed: index as u64,
    })
}

#[test]
fn every_variant_writes_the_bits_of_the_cpu_backend() {
    let variants =
        || Class::all(Backend::Cuda).flat_map(|class| rotaries().map(|pairs| (class, pairs)).into_iter());
    let kernels: Vec<Kernel> = variants().map(|(class, pairs)| Kernel::append(&class, pairs)).collect();
    let emulator = Emulator::build(&kernels, &[]);
    for (class, pairs) in variants() {
        for case in cases(class, pairs) {
            case.check_any(&emulator).unwrap();
        }
    }
}

#[test]
fn a_kernel_that_forgets_a_case_is_caught() {
    let class = Class { head_dim: 64, dtype: Dtype::Fp8F16 };
    let plain = Class { dtype: Dtype::F16, ..class };
    let changes = [
        ("pages behind the last", None, "page >= args.pages", "page > args.pages"),
        ("threads behind the last token", None, "if (token >= args.tokens) return;", ""),
        ("slots beyond 32 bits", None, "u64(slot) >> 32 ? u64(slot) / args.page_size : ", ""),
        ("a scale a head", None, "args.key_scales[head * args.scale_head]", "args.key_scales[0]"),
        ("the correction", None, "counts ? corrected : quotient", "quotient"),
        ("what cannot be corrected", None, "counts ? corrected : quotient", "corrected"),
        ("scales near the ends of f32", None, "size > 0x1p-60f && size < 0x1p60f", "true"),
        ("ties to even", None, "HALF + (magnitude >> CUT & 1)", "HALF + 1"),
        ("small numbers", None, "magnitude < NORMAL", "false"),
        ("positions behind the last", Some(RotaryPairs::Halves), "u64(position) >= args.table_rows", "false"),
        (
            "the last of so many",
            Some(RotaryPairs::Halves),
            "i64(args.lengths[token]) - 1",
            "args.lengths[token]",
        ),
        (
            "elements that stay",
            Some(RotaryPairs::Interleaved),
            "rotated = at < args.rotary_dim",
            "rotated = true",
        ),
        ("which half", Some(RotaryPairs::Halves), "is_second ? angle : at + half", "at + half"),
        ("the sign", Some(RotaryPairs::Interleaved), "-(second * sine)", "second * sine"),
    ];
    changes.into_par_iter().for_each(|(what, pairs, from, to)| {
        let change = |name: &str, text: &str| {
            let ours = name == "append.cuh" || name == "fp8_narrow.cuh";
            if ours { text.replace(from, to) } else { text.to_owned() }
        };
        let sources = tilewright_kernel_templates::cuda::sources();
        let places = |name| {
            sources.iter().find(|(own, _)| *own == name).map_or(0, |(_, text)| text.matches(from).count())
        };
        assert_eq!(places("append.cuh") + places("fp8_narrow.cuh"), 1, "{from}");
        let classes = [class, plain];
        let kernels = classes.map(|class| Kernel::append(&class, pairs));
        let emulator = Emulator::build_changed(&kernels, &[], change);
        let caught =
            classes.iter().any(|&class| cases(class, pairs).any(|case| case.check_any(&emulator).is_err()));
        assert!(caught, "nothing shows that {what} ({from})");
    });
}
