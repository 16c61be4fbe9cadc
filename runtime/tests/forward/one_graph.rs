//! One captured graph serves every batch of its bucket.

use super::world::{MOST_REQUESTS, World};
use super::{TILES, backend, device, in_mode, prepare};
use half::{bf16, f16};
use tilewright_cpu::Element;
use tilewright_cuda::{CudaBackend, CudaElement, CudaError, FitError, Launch, LaunchMode, MergeBy};
use tilewright_kernel_templates::Class;
use tilewright_plan::Split;

fn serve_by_one_graph<E: Element + CudaElement>(backend: &mut CudaBackend, forward: LaunchMode, seed: u64) {
    let stream = backend.device().context().new_stream().unwrap();
    let mut world = World::<E>::new(64, seed);
    prepare(backend, &Class::of(&world.geometry), in_mode(forward, world.options()));
    let mut step = world.capture(backend, &stream, world.bucket(forward, &TILES));
    let nan = vec![E::from_f32(f32::NAN); world.query.len()];
    world.arrive(70);
    world.fork();
    let (mut changed, mut kept) = (true, 0);
    for number in 0..40 {
        if changed {
            let split = if number % 2 == 0 { Split::Mean } else { Split::Fill };
            step.upload(&world.plan(split)).unwrap();
        } else {
            kept += 1;
            step.set_lengths(&world.lens()).unwrap();
        }
        let mut bits = Vec::new();
        for _ in 0..2 {
            stream.memcpy_htod(&nan, &mut step.output_mut()).unwrap();
            step.launch().unwrap();
            let output = stream.clone_dtoh(&step.output()).unwrap();
            let lse = stream.clone_dtoh(&step.lse().unwrap()).unwrap();
            world.check(&output, &lse, &format!("{forward}, step {number}"));
            let rows = world.requests.len() * world.query.len() / MOST_REQUESTS;
            assert!(output[rows..].iter().all(|x| x.to_f32().is_nan()), "rows of no request are left alone");
            bits.push(output[..rows].iter().map(|x| x.to_f32().to_bits()).collect::<Vec<_>>());
        }
        assert_eq!(bits[0], bits[1], "{forward}, step {number}: the same launch gives the same bits");
        changed = world.step();
    }
    assert!((5..35).contains(&kept), "{kept} steps changed lengths only");
    // What does not fit is refused, and what was there before goes on.
    if !changed {
        step.set_lengths(&world.lens()).unwrap();
    } else {
        step.upload(&world.plan(Split::Mean)).unwrap();
    }
    let fitting = world.requests.clone();
    for _ in 0..=MOST_REQUESTS {
        world.requests.push(fitting[0].clone());
    }
    let error = step.upload(&world.plan(Split::None)).unwrap_err();
    let is_named = matches!(&error, CudaError::Fit(FitError::Capacity { what: "requests", .. }));
    assert!(is_named, "{error}");
    world.requests = fitting;
    step.launch().unwrap();
    let output = stream.clone_dtoh(&step.output()).unwrap();
    let lse = stream.clone_dtoh(&step.lse().unwrap()).unwrap();
    world.check(&output, &lse, &format!("{forward}, after a refusal"));
}

#[test]
fn one_graph_serves_requests_that_come_grow_fork_and_leave() {
    let device = device();
    let mut backend = backend(&device);
    let serial = LaunchMode { launch: Launch::Serial, merge: MergeBy::Launch };
    let streams = LaunchMode { launch: Launch::Streams, merge: MergeBy::Launch };
    let single = LaunchMode { launch: Launch::Single, merge: MergeBy::LastCta };
    serve_by_one_graph::<f16>(&mut backend, serial, 21);
    serve_by_one_graph::<f16>(&mut backend, single, 22);
    serve_by_one_graph::<bf16>(&mut backend, single, 23);
    serve_by_one_graph::<f16>(&mut backend, streams, 24);
}
