//! Several tiles in one launch give the bits of a launch for each.

use super::world::World;
use super::{TILES, WIDE_TILES, backend, device, prepare_tiles};
use cudarc::driver::CudaStream;
use half::{bf16, f16};
use std::sync::Arc;
use tilewright_cpu::Element;
use tilewright_cuda::{
    CudaBackend, CudaElement, DecodeArgs, DecodeMemory, DevicePlan, KvCache, Launch, LaunchMode, MergeBy, Mix,
};
use tilewright_heuristics::Tile;
use tilewright_kernel_templates::Class;
use tilewright_plan::Split;

/// The bits of a batch's rows, launched plainly with a plan's way, checked against the reference.
fn bits_of<E: Element + CudaElement>(
    backend: &CudaBackend,
    stream: &Arc<CudaStream>,
    world: &World<E>,
    uploaded: &DevicePlan,
    memory: &mut DecodeMemory<E>,
) -> Vec<u32> {
    let nan = vec![E::from_f32(f32::NAN); world.query.len()];
    stream.memcpy_htod(&nan, &mut memory.output).unwrap();
    let cache = KvCache { keys: &memory.keys, values: &memory.values, strides: memory.kv_strides };
    let args = DecodeArgs {
        lse: memory.lse.as_mut(),
        scale: memory.scale,
        ..DecodeArgs::new(&memory.query, cache, &mut memory.output, &mut memory.workspace)
    };
    backend.decode(stream, uploaded, args).unwrap();
    let output = stream.clone_dtoh(&memory.output).unwrap();
    let lse = stream.clone_dtoh(memory.lse.as_ref().unwrap()).unwrap();
    rows_of(world, &output, &lse, &uploaded.launch_mode().to_string())
}

fn rows_of<E: Element + CudaElement>(world: &World<E>, output: &[E], lse: &[f32], what: &str) -> Vec<u32> {
    world.check(output, lse, what);
    let rows = world.requests.len() * world.geometry.q_heads as usize;
    let elements = rows * world.geometry.head_dim as usize;
    let output = output[..elements].iter().map(|x| x.to_f32().to_bits());
    output.chain(lse[..rows].iter().map(|x| x.to_bits())).collect()
}

/// One launch of several tiles, plain, in a bucket and captured, beside a launch for each of them. Buckets merge with four warps a row, plain
/// plans only where a row has many partials: each is compared with its like.
fn assert_equals_serial<E: Element + CudaElement>(head_dim: u32, tiles: &[Tile; 4], seed: u64) {
    let device = device();
    let mut backend = backend(&device);
    let stream = device.context().new_stream().unwrap();
    let mut world = World::<E>::new(head_dim, seed);
    prepare_tiles(&mut backend, tiles, &Class::of(&world.geometry), world.options());
    let forward = |launch| LaunchMode { launch, merge: MergeBy::Launch };
    let [serial, single] = [Launch::Serial, Launch::Single].map(forward);
    let mut memory = world.memory(&stream, &world.bucket(serial, tiles));
    let mut plain = [DevicePlan::new(&device), DevicePlan::with_mix(&device, &Mix::of(tiles), single.merge)];
    let mut bucketed = [serial, single]
        .map(|forward| DevicePlan::with_bucket(&device, world.bucket(forward, tiles)).unwrap());
    let mut step = world.capture(&backend, &stream, world.bucket(single, tiles));
    world.arrive(170);
    (0..9).for_each(|_| world.fork());
    world.arrive(33);
    let mut groups = 0;
    for number in 0..20 {
        let plan = world.plan_of(tiles, [Split::Mean, Split::Fill, Split::None][number % 3]);
        groups = groups.max(plan.tile_groups().len());
        let mut run = |plans: &mut [DevicePlan; 2]| {
            plans.each_mut().map(|uploaded| {
                uploaded.upload(&plan, &stream).unwrap();
                bits_of(&backend, &stream, &world, uploaded, &mut memory)
            })
        };
        let [one_by_one, together] = run(&mut plain);
        assert!(one_by_one == together, "step {number}, plain");
        let [one_by_one, together] = run(&mut bucketed);
        assert!(one_by_one == together, "step {number}, in a bucket");
        step.upload(&plan).unwrap();
        step.launch().unwrap();
        let output = stream.clone_dtoh(&step.output()).unwrap();
        let lse = stream.clone_dtoh(&step.lse().unwrap()).unwrap();
        assert!(rows_of(&world, &output, &lse, "captured") == together, "step {number}, captured");
        world.step();
    }
    assert!(groups > 2, "some step uses {groups} tiles");
}

#[test]
fn several_tiles_in_one_launch_equal_a_launch_each_bit_for_bit() {
    for (seed, tiles) in [(81, &TILES), (82, &WIDE_TILES)] {
        assert_equals_serial::<f16>(128, tiles, seed);
        assert_equals_serial::<bf16>(64, tiles, seed);
        // TMA cannot load it.
        if tiles == &TILES {
            assert_equals_serial::<f16>(256, tiles, seed);
        } else {
            assert_equals_serial::<bf16>(96, tiles, seed);
        }
    }
}
