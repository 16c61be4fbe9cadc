//! The suite's part about timelines: each work item of each KV head notes when it ran, and where.
#![allow(unsafe_code)]

use super::{backend, device};
use tilewright_cuda::profiling::Timeline;
use tilewright_cuda::{DeviceMemory, DevicePlan, RawArgs};
use tilewright_heuristics::{Dtype, Geometry, PackShape, Tile};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::KernelOptions;
use tilewright_plan::{PageTable, Plan};

const SMALL: Tile = Tile::of("m16n32w1s2");
const LARGE: Tile = Tile::of("m32n64w4s2");

#[test]
fn every_work_item_of_every_kv_head_notes_when_it_ran_and_where() {
    let device = device();
    let mut backend = backend(&device);
    let stream = device.context().new_stream().unwrap();
    let geometry = Geometry { q_heads: 8, kv_heads: 2, head_dim: 128, page_size: 16, dtype: Dtype::F16 };
    // More items than an SM holds: requests of one to forty pages that share nothing, each with pages of its own.
    let (requests, columns) = (600usize, 40usize);
    let entries: Vec<i32> = (0..(requests * columns) as i32).collect();
    let seq_lens: Vec<u32> = (0..requests as u32).map(|request| 16 * (1 + request % 40)).collect();
    let table = PageTable::new(&entries, columns, &seq_lens, geometry.page_size).unwrap();
    let select = |shape: &PackShape| if shape.kv_len > 300 { LARGE } else { SMALL };
    let plan = Plan::build(&geometry, &table, &device.plan_options(), select).unwrap();
    assert_eq!(plan.tile_groups().len(), 2);

    let options = KernelOptions { timeline: true, ..KernelOptions::for_pages(geometry.page_size) };
    for prepared in backend.prepare(&[SMALL, LARGE], &Class::of(&geometry), options, || ()).unwrap() {
        assert!(prepared.unwrap().ctas_per_sm > 0);
    }
    let mut uploaded = DevicePlan::new(&device);
    uploaded.upload(&plan, &stream).unwrap();
    let memory = |bytes: usize| {
        let memory = DeviceMemory::new(device.context(), bytes).unwrap();
        memory.fill(0, &stream).unwrap();
        memory
    };
    let (vectors, pages) = (memory(requests * 8 * 128 * 2), entries.len() * 16 * 2 * 128 * 2);
    let (keys, values, output) = (memory(pages), memory(pages), memory(vectors.bytes()));
    let workspace = memory(uploaded.workspace_bytes());
    let args = RawArgs {
        query: vectors.address(),
        keys: keys.address(),
        values: values.address(),
        output: output.address(),
        workspace: workspace.address(),
        scale: 0.1,
        ..RawArgs::dense(&geometry)
    };
    // SAFETY: all memory is as large as the batch and the plan say; the record waits for its launches.
    let timeline = unsafe { Timeline::record(&backend, &stream, &uploaded, &args).unwrap() };

    let all = plan.work_items().len() as u32 * geometry.kv_heads;
    assert!(timeline.indices.iter().copied().eq(0..all), "{} of {all}", timeline.indices.len());
    assert_eq!(timeline.ctas.iter().map(|cta| cta.begin).min(), Some(0));
    for cta in &timeline.ctas {
        let ordered = cta.begin <= cta.ready && cta.ready <= cta.computed && cta.computed <= cta.end;
        assert!(ordered && cta.multiprocessor < device.limits().sms, "{cta:?}");
    }
    assert!(timeline.span_ns() > 0);
}
