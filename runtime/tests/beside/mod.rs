//! Kernels beside others. Where others use an SM's shared memory, too, a kernel's reads of it take far longer than alone: what it has not read of a buffer
//! when TMA may fill it again comes out otherwise then.

use crate::lent::Lent;
use crate::{backend, device};
use cudarc::driver::{CudaSlice, CudaStream};
use half::{bf16, f16};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tilewright_conformance::invariance::{Family, Pool, PoolBatch};
use tilewright_cpu::Element;
use tilewright_cuda::{
    CudaBackend, CudaDevice, CudaElement, DecodeArgs, DevicePlan, Fp8KvCache, KvCache, KvPages,
};
use tilewright_heuristics::{Dtype, Geometry, Mask, Tile};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::KernelOptions;
use tilewright_plan::{E4m3, KvStrides, Plan, PlanOptions, Split};

/// A kernel, and how what it decodes is planned.
#[derive(Clone, Copy)]
struct Kind {
    tile: &'static str,
    head_dim: u32,
    dtype: Dtype,
    /// With a window, a soft-cap and sinks.
    bent: bool,
    invariant: bool,
}

const PLAIN: Kind =
    Kind { tile: "m16n64w4s2", head_dim: 128, dtype: Dtype::F16, bent: false, invariant: false };

/// Warps that read K and V themselves; private KV phases; steps, and heads, that warps share out; transposed products; widened FP8; a CTA that has its SM
/// for itself.
const KINDS: [Kind; 12] = [
    PLAIN,
    Kind { tile: "m64n64w4s2", ..PLAIN },
    Kind { tile: "m64n64w4s2", invariant: true, ..PLAIN },
    Kind { tile: "m16n64w4s2", dtype: Dtype::Bf16, bent: true, invariant: true, ..PLAIN },
    Kind { tile: "m16n64w4s2", dtype: Dtype::Fp8F16, invariant: true, ..PLAIN },
    Kind { tile: "m32n64w4s2", dtype: Dtype::Fp8F16, ..PLAIN },
    Kind { tile: "m32n64w4s3", dtype: Dtype::Fp8Bf16, ..PLAIN },
    Kind { tile: "m64n64w4s2", dtype: Dtype::Fp8F16, ..PLAIN },
    Kind { tile: "m16n32w4s2", head_dim: 512, ..PLAIN },
    Kind { tile: "m64n64w4s2", head_dim: 192, dtype: Dtype::Fp8F16, invariant: true, ..PLAIN },
    Kind { tile: "m16n64w4s1", head_dim: 256, dtype: Dtype::Fp8F16, ..PLAIN },
    Kind { tile: "m16n128w4s1", head_dim: 192, dtype: Dtype::Fp8Bf16, invariant: true, ..PLAIN },
];

const Q_HEADS: u32 = 8;
const KV_HEADS: u32 = 2;

impl Kind {
    fn decoder(&self) -> Box<dyn Decodes> {
        match self.dtype.query() {
            Dtype::Bf16 => Box::new(Decoder::<bf16>::new(self)),
            _ => Box::new(Decoder::<f16>::new(self)),
        }
    }

    fn geometry(&self) -> Geometry {
        let Self { head_dim, dtype, .. } = *self;
        Geometry { q_heads: Q_HEADS, kv_heads: KV_HEADS, head_dim, page_size: 16, dtype }
    }

    fn mask(&self) -> Mask {
        if self.bent { Mask { softcap: Some(20.0), ..Mask::window(1_500) } } else { Mask::NONE }
    }

    fn options(&self) -> KernelOptions {
        KernelOptions {
            mask: self.mask().options(),
            sinks: self.bent,
            invariant: self.invariant,
            ..KernelOptions::for_pages(self.geometry().page_size)
        }
    }
}

/// K and V of all batches.
enum Cache<E> {
    Same { keys: CudaSlice<E>, values: CudaSlice<E> },
    Fp8 { keys: CudaSlice<u8>, values: CudaSlice<u8>, scales: [CudaSlice<f32>; 2] },
}

impl<E: CudaElement + Element> Cache<E> {
    fn new(pool: &Pool, family: &Family, dtype: Dtype, stream: &Arc<CudaStream>) -> Self {
        if !dtype.has_fp8_kv() {
            let (keys, values) = pool.cache::<E>(family);
            let [keys, values] = [keys, values].map(|side| stream.clone_htod(&side).unwrap());
            return Self::Same { keys, values };
        }
        let (keys, values) = pool.cache::<E4m3>(family);
        let [keys, values] = [keys, values].map(|side| {
            let bytes: Vec<u8> = side.into_iter().map(E4m3::to_bits).collect();
            stream.clone_htod(&bytes).unwrap()
        });
        Self::Fp8 { keys, values, scales: [0.5f32, 1.7].map(|scale| stream.clone_htod(&[scale]).unwrap()) }
    }
}

/// A batch and its plan on the device.
struct Batch<E> {
    plan: DevicePlan,
    workspace: CudaSlice<u8>,
    query: CudaSlice<E>,
    output: CudaSlice<E>,
    lse: CudaSlice<f32>,
    sinks: Option<CudaSlice<f32>>,
}

impl<E: CudaElement + Element> Batch<E> {
    fn new(
        kind: &Kind,
        device: &CudaDevice,
        stream: &Arc<CudaStream>,
        family: &Family,
        batch: &PoolBatch,
    ) -> Self {
        let split = if kind.invariant { Split::Invariant } else { device.plan_options().split };
        let options = PlanOptions { split, ..device.plan_options() };
        let planned =
            Plan::build(&kind.geometry(), &batch.table().unwrap(), &options, Tile::of(kind.tile)).unwrap();
        let mut plan = DevicePlan::new(device);
        plan.upload(&planned, stream).unwrap();
        let rows = batch.texts.len() * Q_HEADS as usize;
        Self {
            workspace: stream.alloc_zeros(plan.workspace_bytes()).unwrap(),
            query: stream.clone_htod(&family.queries::<E>(&batch.texts, Q_HEADS)).unwrap(),
            output: stream.clone_htod(&vec![E::from_f32(0.0); rows * kind.head_dim as usize]).unwrap(),
            lse: stream.alloc_zeros(rows).unwrap(),
            sinks: kind.bent.then(|| stream.clone_htod(&[0.5; Q_HEADS as usize]).unwrap()),
            plan,
        }
    }

    /// The bits of output and LSE.
    fn decode(
        &mut self,
        backend: &CudaBackend,
        stream: &Arc<CudaStream>,
        cache: impl KvPages<E>,
        mask: Mask,
    ) -> Vec<u32> {
        let Self { plan, workspace, query, output, lse, sinks } = self;
        let args = DecodeArgs {
            lse: Some(lse),
            mask,
            sinks: sinks.as_ref(),
            ..DecodeArgs::new(query, cache, output, workspace)
        };
        backend.decode(stream, plan, args).unwrap();
        let (output, lse) = (stream.clone_dtoh(output).unwrap(), stream.clone_dtoh(lse).unwrap());
        output.iter().map(|x| x.to_f32().to_bits()).chain(lse.iter().map(|x| x.to_bits())).collect()
    }
}

/// What decodes the batches of a kind.
struct Decoder<E> {
    kind: Kind,
    batches: [Batch<E>; 3],
    cache: Cache<E>,
    stream: Arc<CudaStream>,
    backend: CudaBackend,
    _lent: Lent,
}

trait Decodes: Send {
    /// The bits of output and LSE of each batch, one behind the other.
    fn decode(&mut self) -> Vec<Vec<u32>>;
}

impl<E: CudaElement + Element> Decoder<E> {
    fn new(kind: &Kind) -> Self {
        let lent = device();
        let mut backend = backend(&lent);
        let stream = lent.context().new_stream().unwrap();
        let (geometry, tile) = (kind.geometry(), Tile::of(kind.tile));
        let prepared = backend.prepare(&[tile], &Class::of(&geometry), kind.options(), || ()).unwrap();
        assert!(prepared[0].is_ok(), "{tile}: {prepared:?}");
        let family = Family::new(24, 2_600, kind.head_dim, 5);
        let pool = Pool::new(&family, &geometry, 2, 1);
        Self {
            kind: *kind,
            batches: [3, 24, 48].map(|rows| Batch::new(kind, &lent, &stream, &family, &pool.batch(rows, 3))),
            cache: Cache::new(&pool, &family, kind.dtype, &stream),
            stream,
            backend,
            _lent: lent,
        }
    }
}

impl<E: CudaElement + Element + Send> Decodes for Decoder<E> {
    fn decode(&mut self) -> Vec<Vec<u32>> {
        let Self { kind, batches, cache, stream, backend, .. } = self;
        let (mask, strides) = (kind.mask(), KvStrides::nhd(&kind.geometry()));
        let bits = batches.iter_mut().map(|batch| match cache {
            Cache::Same { keys, values } => {
                batch.decode(backend, stream, KvCache { keys, values, strides }, mask)
            }
            Cache::Fp8 { keys, values, scales: [key_scales, value_scales] } => {
                let cache = Fp8KvCache { keys, values, strides, key_scales, value_scales };
                batch.decode(backend, stream, cache, mask)
            }
        });
        bits.collect()
    }
}

/// Long enough for some dozen failures of kernels that let TMA fill what they still read.
const LASTS: Duration = Duration::from_secs(12);

#[test]
fn every_kind_of_kernel_gives_the_same_bits_beside_others() {
    // Compiling takes a kind as long as another, or longer.
    let decoders = std::thread::scope(|scope| {
        KINDS.map(|kind| scope.spawn(move || kind.decoder())).map(|thread| thread.join().unwrap())
    });
    let repeated = std::thread::scope(|scope| {
        let threads = decoders.map(|mut decoder| {
            scope.spawn(move || {
                let (first, begin) = (decoder.decode(), Instant::now());
                let (mut rounds, mut others) = (0, 0);
                while begin.elapsed() < LASTS {
                    others += usize::from(decoder.decode() != first);
                    rounds += 1;
                }
                (rounds, others)
            })
        });
        threads.map(|thread| thread.join().unwrap())
    });
    let said: Vec<String> = KINDS
        .iter()
        .zip(repeated)
        .map(|(kind, (rounds, others))| {
            format!("{} {} {}: {others} of {rounds} rounds", kind.tile, kind.head_dim, kind.dtype)
        })
        .collect();
    println!("{said:#?}");
    let all_ran = repeated.iter().all(|&(rounds, _)| rounds > 300);
    assert!(all_ran && repeated.iter().all(|&(_, others)| others == 0), "have other bits: {said:#?}");
}
