//! A host that is steps ahead of the device: each step sees its own lengths.

use super::world::{MOST_REQUESTS, World};
use super::{TILES, backend, device, in_mode, prepare};
use cudarc::driver::{CudaStream, CudaViewMut, result};
use half::{bf16, f16};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tilewright_cpu::Element;
use tilewright_cuda::{Bucket, CudaBackend, CudaElement, DecodeArgs, DevicePlan, KvCache, LaunchMode};
use tilewright_kernel_templates::Class;
use tilewright_plan::{Plan, Split};

/// Puts a sleep on the stream; counted when it is over.
#[allow(unsafe_code)]
fn sleep_on(stream: &CudaStream, over: &'static AtomicUsize) {
    unsafe extern "C" fn sleep(over: *mut c_void) {
        std::thread::sleep(Duration::from_millis(5));
        // SAFETY: it is the counter below, which lives for ever.
        unsafe { &*over.cast::<AtomicUsize>() }.fetch_add(1, Ordering::SeqCst);
    }
    let counter = std::ptr::from_ref(over).cast_mut().cast::<c_void>();
    // SAFETY: the stream is alive, and the function calls nothing of CUDA.
    unsafe { result::stream::launch_host_function(stream.cu_stream(), sleep, counter) }.unwrap();
}

/// Queues steps of new lengths behind a device that sleeps now and then, waiting for none, and then compares the outputs of all of them.
/// `queue` queues a step, which has a new plan or not, and the copies of its output and LSE.
fn run_ahead<E: Element + CudaElement>(
    world: &mut World<E>,
    stream: &Arc<CudaStream>,
    mut queue: impl FnMut(usize, &World<E>, Option<&Plan>, &mut CudaViewMut<'_, E>, &mut CudaViewMut<'_, f32>),
) {
    const STEPS: usize = 120;
    let elements = world.query.len();
    let rows = MOST_REQUESTS * world.geometry.q_heads as usize;
    let mut outputs = stream.clone_htod(&vec![E::from_f32(f32::NAN); STEPS * elements]).unwrap();
    let mut lses = stream.clone_htod(&vec![f32::NAN; STEPS * rows]).unwrap();
    let over: &AtomicUsize = Box::leak(Box::default());
    let (mut slept_before, mut steps, mut most_ahead) = (Vec::new(), Vec::new(), 0);
    for number in 0..STEPS {
        let plan = (number % 40 == 0).then(|| {
            while !world.step() {}
            world.plan(Split::Mean)
        });
        if number % 7 == 1 {
            sleep_on(stream, over);
            slept_before.push(number);
        }
        world.change_lengths();
        let mut output = outputs.slice_mut(number * elements..(number + 1) * elements);
        let mut lse = lses.slice_mut(number * rows..(number + 1) * rows);
        queue(number, world, plan.as_ref(), &mut output, &mut lse);
        steps.push(world.requests.clone());
        if let Some(sleeps_before) = slept_before.get(over.load(Ordering::SeqCst)) {
            most_ahead = most_ahead.max(number + 1 - sleeps_before);
        }
    }
    let outputs = stream.clone_dtoh(&outputs).unwrap();
    let lses = stream.clone_dtoh(&lses).unwrap();
    for (number, requests) in steps.into_iter().enumerate() {
        world.requests = requests;
        let (output, lse) = (&outputs[number * elements..][..elements], &lses[number * rows..][..rows]);
        world.check(output, lse, &format!("step {number}"));
    }
    assert!(most_ahead >= 4, "the host was at most {most_ahead} steps ahead: nothing could be overwritten");
}

fn run_captured_ahead<E: Element + CudaElement>(backend: &mut CudaBackend, forward: LaunchMode, seed: u64) {
    let stream = backend.device().context().new_stream().unwrap();
    let mut world = World::<E>::new(64, seed);
    prepare(backend, &Class::of(&world.geometry), in_mode(forward, world.options()));
    let mut step = world.capture(backend, &stream, world.bucket(forward, &TILES));
    world.arrive(150);
    (0..8).for_each(|_| world.fork());
    world.arrive(33);
    run_ahead(&mut world, &stream, |number, world, plan, output, lse| {
        if number % 3 == 0 {
            // Lengths that are never launched.
            step.set_lengths(&vec![1; step.plan().batch()]).unwrap();
        }
        if let Some(plan) = plan {
            step.upload(plan).unwrap();
            step.launch().unwrap(); // with the plan's lengths, not those before
        }
        step.set_lengths(&world.lens()).unwrap();
        // What was uploaded stays.
        (0..=number % 2).for_each(|_| step.launch().unwrap());
        stream.memcpy_dtod(&step.output(), output).unwrap();
        stream.memcpy_dtod(&step.lse().unwrap(), lse).unwrap();
    });
}

#[test]
fn captured_steps_ahead_of_the_device_have_their_own_lengths() {
    let device = device();
    let mut backend = backend(&device);
    for (seed, forward) in (51..).zip(LaunchMode::ALL) {
        run_captured_ahead::<f16>(&mut backend, forward, seed);
    }
    run_captured_ahead::<bf16>(&mut backend, LaunchMode::default(), 50);
}

#[test]
fn a_newer_plan_overrides_lengths_given_before() {
    let device = device();
    let mut backend = backend(&device);
    let stream = device.context().new_stream().unwrap();
    let mut world = World::<f16>::new(64, 61);
    prepare(&mut backend, &Class::of(&world.geometry), world.options());
    world.arrive(70);
    world.fork();
    let plan = world.plan(Split::Mean);
    let bucket = Bucket::of(&plan, LaunchMode::default()).unwrap();
    let mut step = world.capture(&backend, &stream, bucket);
    step.upload(&plan).unwrap();
    step.set_lengths(&[65, 65]).unwrap();
    step.upload(&plan).unwrap();
    step.launch().unwrap();
    let output = stream.clone_dtoh(&step.output()).unwrap();
    let lse = stream.clone_dtoh(&step.lse().unwrap()).unwrap();
    world.check(&output, &lse, "behind an upload");
}

#[test]
fn plain_launches_ahead_of_the_device_have_their_own_lengths() {
    let device = device();
    let mut backend = backend(&device);
    let stream = device.context().new_stream().unwrap();
    let mut world = World::<f16>::new(64, 71);
    prepare(&mut backend, &Class::of(&world.geometry), world.options());
    world.arrive(150);
    (0..8).for_each(|_| world.fork());
    let forward = LaunchMode::default();
    let mut memory = world.memory(&stream, &world.bucket(forward, &TILES));
    let mut uploaded = DevicePlan::with_launch_mode(&device, forward);
    run_ahead(&mut world, &stream, |_, world, plan, output, lse| {
        if let Some(plan) = plan {
            uploaded.upload(plan, &stream).unwrap();
        }
        uploaded.set_lengths(&world.lens(), &stream).unwrap();
        let cache = KvCache { keys: &memory.keys, values: &memory.values, strides: memory.kv_strides };
        let args = DecodeArgs {
            lse: memory.lse.as_mut(),
            scale: memory.scale,
            ..DecodeArgs::new(&memory.query, cache, &mut memory.output, &mut memory.workspace)
        };
        backend.decode(&stream, &uploaded, args).unwrap();
        stream.memcpy_dtod(&memory.output, output).unwrap();
        stream.memcpy_dtod(memory.lse.as_ref().unwrap(), lse).unwrap();
    });
}
