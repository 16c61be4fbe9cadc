//! The suite's part about launch modes: all of them on the conformance cases, several at once, and captured graphs.

mod ahead;
mod one_graph;
mod several_tiles;
mod world;

use super::{backend, device, upload};
use half::f16;
use std::collections::BTreeSet;
use tilewright_conformance::{self as conformance, options_of};
use tilewright_cuda::{
    Bucket, CudaBackend, CudaDevice, DecodeArgs, DevicePlan, KvCache, Launch, LaunchMode, MergeBy, Mix,
};
use tilewright_heuristics::{Dtype, PackShape, Tile};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::{KernelOptions, mix_producer_warps};
use tilewright_plan::{Plan, Split};
use world::World;

const fn tile(m: u16, n: u16, warps: u16, stages: u16) -> Tile {
    Tile::new(m, n, warps, stages)
}

/// Four consumer warps each: with TMA tiles go together only so.
pub(super) const TILES: [Tile; 4] =
    [tile(16, 64, 4, 2), tile(16, 128, 4, 1), tile(32, 64, 4, 2), tile(64, 64, 4, 2)];
/// The same with eight.
pub(super) const WIDE_TILES: [Tile; 4] =
    [tile(16, 128, 8, 2), tile(32, 64, 8, 3), tile(64, 64, 8, 3), tile(128, 64, 8, 2)];

fn select(shape: &PackShape) -> Tile {
    select_of(&TILES, shape)
}

fn select_of(tiles: &[Tile; 4], shape: &PackShape) -> Tile {
    tiles[match shape.rows {
        ..=8 if shape.kv_len < 64 => 0,
        ..=8 => 1,
        9..=32 => 2,
        _ => 3,
    }]
}

pub(super) fn plan_for(device: &CudaDevice, forward: LaunchMode, tiles: &[Tile; 4]) -> DevicePlan {
    match forward.launch {
        Launch::Single => DevicePlan::with_mix(device, &Mix::of(tiles), forward.merge),
        Launch::Serial | Launch::Streams => DevicePlan::with_launch_mode(device, forward),
    }
}

/// All kernels of these options compiled on all cores, those of several tiles, too, which take longest.
fn prepare_at_once(backend: &mut CudaBackend, class: &Class, each_options: BTreeSet<KernelOptions>) {
    let each_options: Vec<_> = each_options.into_iter().flat_map(of_either_merge).collect();
    let alone = each_options.iter().flat_map(|&options| TILES.map(|tile| (tile, *class, options)));
    backend.prepare_all(&alone.collect::<Vec<_>>()).unwrap();
    let mixes: Vec<_> = each_options.iter().map(|&options| (Mix::of(&TILES), *class, options)).collect();
    backend.prepare_mixes(&mixes);
}

fn prepare(backend: &mut CudaBackend, class: &Class, options: KernelOptions) {
    prepare_tiles(backend, &TILES, class, options);
}

/// What kernels have compiled in for a launch mode, beside other options.
fn in_mode(mode: LaunchMode, options: KernelOptions) -> KernelOptions {
    KernelOptions { merge_by_last_cta: mode.merge == MergeBy::LastCta, ..options }
}

/// The same where a launch merges, and where the last CTA of a row does.
pub(super) fn of_either_merge(options: KernelOptions) -> [KernelOptions; 2] {
    [false, true].map(|merge_by_last_cta| KernelOptions { merge_by_last_cta, ..options })
}

pub(super) fn prepare_tiles(
    backend: &mut CudaBackend,
    tiles: &[Tile],
    class: &Class,
    options: KernelOptions,
) {
    let alone: Vec<u32> = backend
        .prepare(tiles, class, options, || ())
        .unwrap()
        .into_iter()
        .map(|prepared| prepared.unwrap().ctas_per_sm)
        .collect();
    let (mix, compiled) = backend.prepare_mix(tiles, class, options).unwrap();
    assert_eq!(mix.tiles().len(), tiles.len());
    assert!(compiled.ctas_per_sm > 0);
    let arch = backend.device().arch();
    if mix_producer_warps(tiles, class, options, arch) == 4 {
        assert_eq!(
            Some(&compiled.ctas_per_sm),
            alone.iter().min(),
            "{mix} costs an SM what its greediest tile costs"
        );
    }
}

#[test]
fn every_way_of_launching_is_right_on_every_case() {
    let device = device();
    let mut backend = backend(&device);
    let stream = device.context().new_stream().unwrap();
    let (mut checked, mut groups, mut failures) = (0, 0, Vec::new());
    for class in [Class { head_dim: 128, dtype: Dtype::F16 }, Class { head_dim: 64, dtype: Dtype::Bf16 }] {
        let mut cases = conformance::cases(&class, 11);
        cases.extend(conformance::tile_cases(&class, &TILES[3], 12));
        prepare_at_once(&mut backend, &class, cases.iter().map(options_of).collect());
        // One plan for each way serves all cases: what one leaves behind must not be seen by the next.
        let mut plans = LaunchMode::ALL.map(|forward| (forward, plan_for(&device, forward, &TILES)));
        for case in cases {
            let case = upload(case, &device);
            for options in of_either_merge(case.options()) {
                prepare(&mut backend, &class, options);
            }
            for planned in [case.case.options, device.plan_options()] {
                let plan = Plan::build(&case.case.geometry, &case.case.table(), &planned, select).unwrap();
                groups = groups.max(plan.tile_groups().len());
                for (forward, uploaded) in &mut plans {
                    let outcome = case.run_in(&backend, &stream, uploaded, planned, select);
                    let outcome = outcome.map_err(|error| error.to_string());
                    checked += 1;
                    match outcome.and_then(|(output, lse)| case.case.check(&output, &lse)) {
                        Ok(error) if error < conformance::tolerance(class.dtype) => {}
                        Ok(error) => {
                            failures.push(format!("{class} {forward} {}: error {error:.1e}", case.case.name))
                        }
                        Err(error) => failures.push(format!("{class} {forward} {}: {error}", case.case.name)),
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} of {checked} fail:\n{}", failures.len(), failures.join("\n"));
    assert!(groups > 2, "some case uses at most {groups} tiles");
    println!("{checked} pairs of case and way are right, with up to {groups} tiles in one plan");
}

#[test]
fn two_plans_fork_to_their_streams_at_once() {
    let device = device();
    let mut backend = backend(&device);
    for merge in [MergeBy::Launch, MergeBy::LastCta] {
        let forward = LaunchMode { launch: Launch::Streams, merge };
        let worlds = [31, 32].map(|seed| {
            let mut world = World::<f16>::new(128, seed);
            world.arrive(100);
            (0..9).for_each(|_| world.fork());
            world.arrive(20);
            world
        });
        let class = Class::of(&worlds[0].geometry);
        prepare(&mut backend, &class, in_mode(forward, worlds[0].options()));
        let mut sides: Vec<_> = worlds
            .iter()
            .map(|world| {
                let stream = device.context().new_stream().unwrap();
                let plan = world.plan(Split::Fill);
                assert!(plan.tile_groups().len() > 1, "there is something to fork");
                let memory = world.memory(&stream, &Bucket::of(&plan, forward).unwrap());
                let mut uploaded = DevicePlan::with_launch_mode(&device, forward);
                uploaded.upload(&plan, &stream).unwrap();
                (stream, uploaded, memory)
            })
            .collect();
        for _ in 0..20 {
            for (stream, uploaded, memory) in &mut sides {
                let cache =
                    KvCache { keys: &memory.keys, values: &memory.values, strides: memory.kv_strides };
                let args = DecodeArgs {
                    lse: memory.lse.as_mut(),
                    ..DecodeArgs::new(&memory.query, cache, &mut memory.output, &mut memory.workspace)
                };
                backend.decode(stream, uploaded, args).unwrap();
            }
        }
        for (world, (stream, _, memory)) in worlds.iter().zip(&sides) {
            let output = stream.clone_dtoh(&memory.output).unwrap();
            let lse = stream.clone_dtoh(memory.lse.as_ref().unwrap()).unwrap();
            world.check(&output, &lse, &forward.to_string());
        }
    }
}
