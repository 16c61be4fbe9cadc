//! What a steady decode step costs the host beyond its launches: requests grow inside their pages, and nothing else changes.
//!
//! A step is what an engine does between a token of each request and all launches of a layer queued: every request grows in the live
//! planner, which makes its plan; forward and merge are launched with the new lengths, as a graph that was captured once and copies the lengths
//! itself, or one by one behind a copy. Beside it stand as many bare launches of the driver (the graph without that copy, kernels that do
//! nothing), which are subtracted. A median does not show what is done every fourth step only: means do, of all steps but the slowest tenth.
//! Trees are written as in PAT: nodes of each level, tokens of a node of each level; the last page of each request has room. Without a device
//! only the planner's part is printed.
//!
//! `cargo bench -p tilewright-cuda --bench steady_step -- [TREE...] [--heads 32/8,64/8]`
#![allow(unsafe_code)]

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUfunction;
use std::ffi::{CString, c_void};
use std::sync::Arc;
use std::time::Instant;
use tilewright_cuda::{
    Bucket, CudaDevice, DeviceMemory, DevicePlan, Graph, GraphStep, RawArgs, TunedBackend,
};
use tilewright_heuristics::{Dtype, Geometry, Tile};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::{Kernel, KernelOptions};
use tilewright_plan::{ChooseTiles, KvStrides, LivePlanner, PageTable, PlanOptions};

const TREES: [&str; 2] = ["256_1024", "1,8,16,32,64,128,1024_256,128,64,32,32,32,32"];
const PAGE_SIZE: u32 = 32;
/// Steps of which the median is taken.
const STEPS: usize = 401;
/// Tokens that requests gain before they start again: all in their last page.
const GAINED: u32 = 16;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let (trees, heads) = options()?;
    let device = if CudaDevice::count() == 0 { None } else { Some(CudaDevice::open(0)?) };
    let mut on_device = match &device {
        Some(device) => Some(OnDevice::new(device)?),
        None => {
            println!("no CUDA device: the planner alone");
            None
        }
    };
    for tree in &trees {
        for &(q_heads, kv_heads) in &heads {
            let geometry =
                Geometry { q_heads, kv_heads, head_dim: 128, page_size: PAGE_SIZE, dtype: Dtype::F16 };
            let batch = Batch::of(tree, geometry)?;
            println!(
                "\n{tree} {q_heads}/{kv_heads}: {} requests, median us of {STEPS} steps",
                batch.lengths.len()
            );
            match &mut on_device {
                None => Steps::new(&batch, PlanOptions::default())?.planner_alone(Tile::of("m16n64w4s2"))?,
                Some(on_device) => on_device.measure(&batch)?,
            }
        }
    }
    Ok(())
}

/// Query heads and KV heads.
type Heads = (u32, u32);

fn options() -> Outcome<(Vec<String>, Vec<Heads>)> {
    let (mut trees, mut heads) = (Vec::new(), vec![(32, 8), (64, 8)]);
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        if word == "--heads" {
            let pair = |pair: &str| -> Outcome<Heads> {
                let (q, kv) = pair.split_once('/').ok_or("heads are written as 32/8")?;
                Ok((q.parse()?, kv.parse()?))
            };
            heads =
                words.next().ok_or("--heads needs a value")?.split(',').map(pair).collect::<Outcome<_>>()?;
        } else {
            trees.push(word);
        }
    }
    if trees.is_empty() {
        trees.extend(TREES.map(str::to_owned));
    }
    Ok((trees, heads))
}

/// A tree of shared prefixes, with room in the last page of each request.
struct Batch {
    geometry: Geometry,
    entries: Vec<i32>,
    max_pages: usize,
    lengths: Vec<u32>,
    pages: u32,
}

impl Batch {
    fn of(tree: &str, geometry: Geometry) -> Outcome<Self> {
        let (nodes, tokens) = tree.split_once('_').ok_or("a tree is written as 1,256_256,32")?;
        let numbers = |text: &str| text.split(',').map(str::parse).collect::<Result<Vec<u32>, _>>();
        let (nodes, tokens) = (numbers(nodes)?, numbers(tokens)?);
        let requests = *nodes.last().ok_or("a tree has levels")?;
        let columns: Vec<u32> = tokens.iter().map(|tokens| tokens / geometry.page_size).collect();
        let mut entries = Vec::new();
        for request in 0..requests {
            let mut first = 0;
            for (&nodes_of_level, &columns) in nodes.iter().zip(&columns) {
                let node = request * nodes_of_level / requests;
                entries.extend((0..columns).map(|column| (first + node * columns + column) as i32));
                first += nodes_of_level * columns;
            }
        }
        let max_pages: u32 = columns.iter().sum();
        Ok(Self {
            geometry,
            entries,
            max_pages: max_pages as usize,
            lengths: vec![max_pages * geometry.page_size - GAINED; requests as usize],
            pages: nodes.iter().zip(&columns).map(|(nodes, columns)| nodes * columns).sum(),
        })
    }

    fn table(&self) -> Outcome<PageTable<'_>> {
        Ok(PageTable::new(&self.entries, self.max_pages, &self.lengths, self.geometry.page_size)?)
    }
}

/// A batch that gains a token of each request in every step, and starts again where its pages are full.
struct Steps {
    planner: LivePlanner,
    lengths: Vec<u32>,
    gained: u32,
}

impl Steps {
    fn new(batch: &Batch, options: PlanOptions) -> Outcome<Self> {
        let planner = LivePlanner::from_table(&batch.geometry, options, &batch.table()?)?;
        Ok(Self { planner, lengths: batch.lengths.clone(), gained: 0 })
    }

    /// What an engine knows before the step.
    fn next(&mut self) {
        self.gained = self.gained % GAINED + 1;
        for (length, tokens) in self.lengths.iter_mut().zip(self.planner.last().seq_lens()) {
            *length =
                if self.gained == 1 { tokens.next_multiple_of(PAGE_SIZE) - GAINED + 1 } else { tokens + 1 };
        }
    }

    fn grow(&mut self) -> Outcome<()> {
        Ok(self.planner.grow_all(&self.lengths)?)
    }

    fn planner_alone(&mut self, choose: impl ChooseTiles + Copy) -> Outcome<()> {
        self.planner.plan(choose)?;
        let (mut grown, mut planned) = (Vec::new(), Vec::new());
        for _ in 0..STEPS {
            self.next();
            let begin = Instant::now();
            self.grow()?;
            let middle = Instant::now();
            self.planner.plan(choose)?;
            grown.push(us(middle - begin));
            planned.push(us(middle.elapsed()));
        }
        println!("  all grow {:>15.2}\n  their plan {:>13.2}", median(grown), median(planned));
        Ok(())
    }
}

struct OnDevice<'a> {
    device: &'a CudaDevice,
    stream: Arc<CudaStream>,
    decoder: TunedBackend,
    nothing: CUfunction,
}

/// Who launches.
#[derive(Clone, Copy)]
enum By {
    Graph,
    Calls,
}

impl<'a> OnDevice<'a> {
    fn new(device: &'a CudaDevice) -> Outcome<Self> {
        let mut decoder = TunedBackend::or_fetch(device)?;
        let class = Class { head_dim: 128, dtype: Dtype::F16 };
        decoder.prepare(&class, KernelOptions::for_pages(PAGE_SIZE))?;
        let kernel = Kernel::read_probe(true);
        let cubin = decoder.backend().compiler().compile(&kernel)?;
        device.context().bind_to_thread()?;
        // SAFETY: the image is a whole cubin; the module stays loaded until the process ends.
        let nothing = unsafe {
            let module = cudarc::driver::result::module::load_data(cubin.code.as_ptr().cast::<c_void>())?;
            cudarc::driver::result::module::get_function(module, CString::new(kernel.name)?)?
        };
        println!("{} ({}), CUDA {:?}", device.name(), device.arch(), device.driver());
        Ok(Self { device, stream: device.context().new_stream()?, decoder, nothing })
    }

    fn measure(&mut self, batch: &Batch) -> Outcome<()> {
        let Self { device, stream, decoder, .. } = &*self;
        let geometry = &batch.geometry;
        let choose = decoder.choose();
        let mut planner = LivePlanner::new(geometry, decoder.plan_options())?;
        let table = batch.table()?;
        for (request, &tokens) in (0..).zip(&batch.lengths) {
            planner.add(request, table.pages(request as usize), tokens)?;
        }
        let mut steps = Steps { planner, lengths: batch.lengths.clone(), gained: 0 };
        steps.planner_alone(choose)?;

        let plan = steps.planner.last().clone();
        let bucket = Bucket::of(&plan, decoder.launch_mode())?;
        let workspace = DeviceMemory::new(device.context(), bucket.workspace_bytes())?;
        let vectors = batch.lengths.len() * (geometry.q_heads * geometry.head_dim) as usize * 2;
        let cache = batch.pages as usize * KvStrides::nhd(geometry).page * 2;
        let memory = |bytes| -> Outcome<DeviceMemory> {
            let memory = DeviceMemory::new(device.context(), bytes)?;
            memory.fill(0, stream)?;
            Ok(memory)
        };
        let (query, output) = (memory(vectors)?, memory(vectors)?);
        let (keys, values) = (memory(cache)?, memory(cache)?);
        let args = RawArgs {
            query: query.address(),
            keys: keys.address(),
            values: values.address(),
            output: output.address(),
            workspace: workspace.address(),
            ..RawArgs::dense(geometry)
        };
        let mut plain = DevicePlan::new(device);
        let (mode, mix) = decoder.launch_of(&plan);
        plain.set_launch_mode(mode, mix);
        plain.upload(&plan, stream)?;
        let in_bucket = DevicePlan::with_bucket(device, bucket)?;
        // SAFETY: all memory is as large as the batch and the bucket say, and is dropped after the graphs.
        let (mut step, bare) = unsafe {
            let mut step = GraphStep::capture(decoder.backend(), stream, in_bucket, &args)?;
            step.upload(&plan)?;
            let bare = Graph::capture(stream, || {
                decoder.backend().decode_raw(stream.cu_stream(), step.plan(), &args)
            })?;
            (step, bare)
        };
        let launches = plan.tile_groups().len() + usize::from(!plan.merges().is_empty());
        println!("  launches {launches:>15}");
        for by in [By::Graph, By::Calls] {
            let (mut whole, mut grown, mut uploads, mut queued, mut bares) =
                (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for _ in 0..STEPS {
                steps.next();
                stream.synchronize()?;
                let begin = Instant::now();
                steps.grow()?;
                let lengths = steps.planner.plan(choose)?.seq_lens();
                let upload = Instant::now();
                match by {
                    By::Graph => step.set_lengths(lengths)?,
                    By::Calls => plain.set_lengths(lengths, stream)?,
                }
                let launch = Instant::now();
                match by {
                    By::Graph => step.launch()?,
                    // SAFETY: as above; each step is waited for.
                    By::Calls => unsafe { decoder.backend().decode_raw(stream.cu_stream(), &plain, &args)? },
                }
                let end = Instant::now();
                whole.push(us(end - begin));
                grown.push(us(upload - begin));
                uploads.push(us(launch - upload));
                queued.push(us(end - launch));

                stream.synchronize()?;
                let begin = Instant::now();
                match by {
                    By::Graph => bare.launch(stream)?,
                    By::Calls => (0..launches).try_for_each(|_| self.launch_nothing(keys.address()))?,
                }
                bares.push(us(begin.elapsed()));
            }
            let (mean_beyond, beyond) =
                (mean(&mut whole) - mean(&mut bares), median(whole.clone()) - median(bares.clone()));
            println!(
                "  {}: grow and plan {:.2}, {} {:.2}, {} {:.2}; whole step {:.2}, bare launches {:.2}, beyond them {beyond:.2} (mean {mean_beyond:.2})",
                match by {
                    By::Graph => "a graph",
                    By::Calls => "one by one",
                },
                median(grown),
                match by {
                    By::Graph => "lengths are written",
                    By::Calls => "lengths go up",
                },
                median(uploads),
                match by {
                    By::Graph => "launch with their copy",
                    By::Calls => "launches",
                },
                median(queued),
                median(whole),
                median(bares),
            );
        }
        stream.synchronize()?;
        Ok(())
    }

    /// A call of the driver, and a kernel that reads no bytes.
    fn launch_nothing(&self, address: u64) -> Outcome<()> {
        let (mut data, mut count, mut sink) = (address, 0u64, address);
        let mut parameters = [
            (&raw mut data).cast::<c_void>(),
            (&raw mut count).cast::<c_void>(),
            (&raw mut sink).cast::<c_void>(),
        ];
        // SAFETY: the kernel takes two addresses and a count, and touches nothing where that is zero.
        unsafe {
            let (grid, block) = ((1, 1, 1), (256, 1, 1));
            cudarc::driver::result::launch_kernel(
                self.nothing,
                grid,
                block,
                0,
                self.stream.cu_stream(),
                &mut parameters,
            )?;
        }
        Ok(())
    }
}

fn us(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Of all but the slowest tenth, in which something else ran.
fn mean(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    let kept = &samples[..samples.len() - samples.len() / 10];
    kept.iter().sum::<f64>() / kept.len() as f64
}
