//! How near a decode step on a GPU comes to merely reading its bytes.
//!
//! Prints the device's measured prices, then for each batch and tile the median time on a cold L2, beside the time of
//! reading as many bytes, measured in the same run, and the error of some requests against the f64 reference. Trees are written as in
//! PAT: nodes of each level, tokens of a node of each level.
//!
//! `cargo bench -p tilewright-runtime --bench cuda_decode -- [TREE...] [--heads 32/8] [--tiles m16n64w4s2,...] [--page 32] [--slots N] [--cta NS] [--merge NS] [--flush write]`
//!
//! Plans go by the default prices, but `--cta` is how long one of all CTAs takes beyond its tokens, and `--merge` how long merging at all
//! takes, in nanoseconds; `--slots` is for how many CTAs at once they are made, instead of two for each SM. With `--timeline` it prints for
//! each tile what its CTAs spent their time with.
//!
//! With `--flush write` the cache is emptied by writing 256 MB instead of reading, and a step's launches are timed one by one behind a delay,
//! not as a graph; reading as many bytes is timed in the same way. Other programs are often measured so.
//!
//! With `--forward` it prints a line a tree instead: the launch modes a plan side by side, in % of the time of reading. Packs get the
//! tile of `--tiles` with the fewest rows that holds theirs, of several such the first; without `--tiles` a few usual ones are taken. Below
//! stand, for each tile, plans of that tile alone, launched as a kernel of its own and by the kernel of all: what a batch that uses one
//! of them pays for the others.
#![allow(unsafe_code)]

use cudarc::driver::CudaStream;
use half::f16;
use std::time::Instant;
use tilewright_conformance::reference;
use tilewright_cpu::{self as cpu};
use tilewright_cuda::profiling::probe::{self, Figures, Flush, FlushBy};
use tilewright_cuda::profiling::{Timeline, Timer};
use tilewright_cuda::{
    CudaBackend, CudaDevice, DeviceMemory, DevicePlan, Launch, LaunchMode, MergeBy, Mix, RawArgs,
};
use tilewright_heuristics::{Backend, Dtype, Geometry, PackShape, Prices, Tile};
use tilewright_kernel_templates::cuda::{KernelOptions, TimelineEntry};
use tilewright_kernel_templates::{Class, Limits, Space};
use tilewright_plan::{KvStrides, PageTable, Plan, PlanOptions};

/// Requests whose output is compared with the reference.
const CHECKED: usize = 4;

/// Medians of which the best counts, where a set is compared with its tiles.
const SET_ROUNDS: usize = 3;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

struct Options {
    trees: Vec<String>,
    heads: Vec<(u32, u32)>,
    tiles: Vec<Tile>,
    page_size: u32,
    best: usize,
    /// Ways of launching, in place of tiles.
    forward: bool,
    /// What CTAs were busy with, too.
    timeline: bool,
    /// How the cache is emptied before each sample.
    flush: FlushBy,
    /// How plans are made.
    plan: PlanOptions,
}

/// What `--forward` mixes unless told otherwise: a tile for each number of rows.
const MIXED: [Tile; 3] = [Tile::of("m16n64w4s2"), Tile::of("m32n64w4s2"), Tile::of("m64n64w4s2")];

fn main() -> Outcome<()> {
    if CudaDevice::count() == 0 {
        println!("no CUDA device: nothing to measure");
        return Ok(());
    }
    let device = CudaDevice::open(0)?;
    let options = options(&device)?;
    let mut backend = CudaBackend::or_fetch(&device)?;
    let stream = device.context().new_stream()?;
    let begin = Instant::now();
    let figures = probe::measure_flushed(options.flush, &device, backend.compiler(), &stream)?;
    let seconds = begin.elapsed().as_secs_f64();
    let flush = Flush::with(options.flush, &device, backend.compiler(), &stream)?;
    print_figures(&device, &flush, &figures, seconds);
    let class = Class { head_dim: 128, dtype: Dtype::F16 };
    let begin = Instant::now();
    let prepared =
        backend.prepare(&options.tiles, &class, KernelOptions::for_pages(options.page_size), || ())?;
    println!(
        "{} tiles ready in {:.2} s, {} compiled",
        options.tiles.len(),
        begin.elapsed().as_secs_f64(),
        backend.compiler().compiled()
    );
    let timer = Timer::new(device.context())?;
    if options.forward {
        prepared.into_iter().try_for_each(|tile| tile.map(drop))?;
        let bench =
            Bench { device: &device, figures: &figures, flush: &flush, timer: &timer, stream: &stream };
        return bench.ways(&mut backend, &class, &options);
    }
    for tree in &options.trees {
        for &(q_heads, kv_heads) in &options.heads {
            let geometry = Geometry {
                q_heads,
                kv_heads,
                head_dim: 128,
                page_size: options.page_size,
                dtype: Dtype::F16,
            };
            let batch = Batch::of(tree, geometry)?;
            let on_device = OnDevice::new(&device, &batch)?;
            let limit = figures.read_us(batch.bytes());
            println!(
                "\n{tree} {q_heads}/{kv_heads}: {:.1} MB, reading takes {limit:.1} us",
                batch.bytes() as f64 / 1e6
            );
            let mut rows = Vec::new();
            for (tile, prepared) in options.tiles.iter().zip(&prepared) {
                let Ok(compiled) = prepared else { continue };
                let table = batch.table()?;
                let plan = Plan::build(&geometry, &table, &options.plan, *tile)?;
                let mut uploaded = DevicePlan::new(&device);
                uploaded.upload(&plan, &stream)?;
                let workspace = DeviceMemory::new(device.context(), uploaded.workspace_bytes())?;
                let args = on_device.args(&geometry, &workspace);
                let bench = Bench {
                    device: &device,
                    figures: &figures,
                    flush: &flush,
                    timer: &timer,
                    stream: &stream,
                };
                let us = bench.median_us(&backend, &uploaded, &args)?;
                rows.push((us, *tile, compiled.clone(), on_device.error(&batch, &stream)?));
                if options.timeline {
                    bench.print_timeline(&mut backend, tile, us, &plan, &uploaded, &args)?;
                }
            }
            rows.sort_by(|a, b| a.0.total_cmp(&b.0));
            for (us, tile, compiled, error) in rows.iter().take(options.best) {
                println!(
                    "  {:<14} {us:>9.1} us  {:>5.1} % of reading  {:>3} registers {:>4} KB x {:>2} CTAs  error {error:.1e}",
                    tile.to_string(),
                    100.0 * limit / us,
                    compiled.registers,
                    compiled.shared_bytes >> 10,
                    compiled.ctas_per_sm
                );
            }
            let worst = rows.iter().map(|row| row.3).fold(0.0, f64::max);
            println!("  {} tiles, largest error {worst:.1e}", rows.len());
        }
    }
    Ok(())
}

/// What times a plan.
struct Bench<'a> {
    device: &'a CudaDevice,
    figures: &'a Figures,
    flush: &'a Flush,
    timer: &'a Timer,
    stream: &'a CudaStream,
}

impl Bench<'_> {
    /// The median time of a plan on a cold L2.
    fn median_us(&self, backend: &CudaBackend, plan: &DevicePlan, args: &RawArgs) -> Outcome<f64> {
        let Self { flush, timer, stream, .. } = self;
        // SAFETY: all memory is as large as the batch says, and outlives this call, which waits for all launches.
        let us =
            unsafe { flush.median_us(timer, stream, || backend.decode_raw(stream.cu_stream(), plan, args))? };
        Ok(us)
    }

    /// Prints what the CTAs of a plan spent their time with, on a cold L2.
    fn print_timeline(
        &self,
        backend: &mut CudaBackend,
        tile: &Tile,
        us: f64,
        plan: &Plan,
        uploaded: &DevicePlan,
        args: &RawArgs,
    ) -> Outcome<()> {
        let class = Class::of(uploaded.geometry());
        let pages = KernelOptions::for_pages(uploaded.geometry().page_size);
        let options = KernelOptions { timeline: true, ..pages };
        let ctas_per_sm = match backend.prepare(&[*tile], &class, options, || ())?.remove(0) {
            Ok(compiled) => compiled.ctas_per_sm,
            Err(error) => {
                println!("  {tile}: {error}");
                return Ok(());
            }
        };
        let record = || -> Outcome<Timeline> {
            self.flush.queue(self.stream)?;
            // SAFETY: all memory is as large as the batch says; the record is waited for.
            Ok(unsafe { Timeline::record(backend, self.stream, uploaded, args)? })
        };
        record()?; // the first launch of a kernel loads it
        let timeline = record()?;
        let deciles = |of: &dyn Fn(&TimelineEntry) -> u64| {
            let mut all: Vec<u64> = timeline.ctas.iter().map(of).collect();
            all.sort_unstable();
            [0, 1, 5, 9, 10]
                .map(|tenth| format!("{:.1}", all[(all.len() - 1) * tenth / 10] as f64 / 1e3))
                .join(" ")
        };
        println!(
            "    {tile}: {us:.1} us; {} CTAs, {ctas_per_sm} an SM, {} merges; forward {:.1} us; us at 0, 10, 50, 90, 100 % of the CTAs:\n      \
             begin {}; until ready {}; computing {}; writing {}; end {}",
            timeline.ctas.len(),
            plan.merges().len(),
            timeline.span_ns() as f64 / 1e3,
            deciles(&|cta| cta.begin),
            deciles(&|cta| cta.ready - cta.begin),
            deciles(&|cta| cta.computed - cta.ready),
            deciles(&|cta| cta.end - cta.computed),
            deciles(&|cta| cta.end),
        );
        Ok(())
    }

    /// Prints every launch mode, a line a tree.
    fn ways(&self, backend: &mut CudaBackend, class: &Class, options: &Options) -> Outcome<()> {
        let pages = KernelOptions::for_pages(options.page_size);
        let mix = match backend.prepare_mix(&options.tiles, class, pages) {
            Ok((mix, compiled)) => {
                println!(
                    "{mix} together: {} registers, {} KB, {} CTAs an SM",
                    compiled.registers,
                    compiled.shared_bytes >> 10,
                    compiled.ctas_per_sm
                );
                Some(mix)
            }
            Err(error) => {
                println!("no single launch: {error}");
                None
            }
        };
        println!("{:>28} {:>9} {:>5} {:>6}  us (% of reading) of:", "tree", "limit us", "tiles", "merges");
        for tree in &options.trees {
            for &(q_heads, kv_heads) in &options.heads {
                let page_size = options.page_size;
                let geometry = Geometry { q_heads, kv_heads, head_dim: 128, page_size, dtype: Dtype::F16 };
                self.ways_of(backend, tree, geometry, mix.as_ref(), &options.tiles)?;
            }
        }
        Ok(())
    }

    fn ways_of(
        &self,
        backend: &CudaBackend,
        tree: &str,
        geometry: Geometry,
        mix: Option<&Mix>,
        tiles: &[Tile],
    ) -> Outcome<()> {
        let batch = Batch::of(tree, geometry)?;
        let on_device = OnDevice::new(self.device, &batch)?;
        let select = |shape: &PackShape| {
            let holding = tiles.iter().filter(|tile| u32::from(tile.m) >= shape.rows);
            let fewest = holding.min_by_key(|tile| tile.m).or(tiles.iter().max_by_key(|tile| tile.m));
            fewest.copied().unwrap_or(MIXED[0])
        };
        let plan = Plan::build(&geometry, &batch.table()?, &self.device.plan_options(), select)?;
        let limit = self.figures.read_us(batch.bytes());
        print!(
            "{:>28} {limit:>9.1} {:>5} {:>6} ",
            format!("{tree} {}/{}", geometry.q_heads, geometry.kv_heads),
            plan.tile_groups().len(),
            plan.merges().len()
        );
        let mut worst = 0.0f64;
        for forward in LaunchMode::ALL.into_iter().filter(|mode| mode.merge == MergeBy::Launch) {
            let mut uploaded = match (forward.launch, mix) {
                (Launch::Single, None) => continue,
                (Launch::Single, Some(mix)) => DevicePlan::with_mix(self.device, mix, forward.merge),
                (Launch::Serial | Launch::Streams, _) => DevicePlan::with_launch_mode(self.device, forward),
            };
            uploaded.upload(&plan, self.stream)?;
            let workspace = DeviceMemory::new(self.device.context(), uploaded.workspace_bytes())?;
            let us = self.median_us(backend, &uploaded, &on_device.args(&geometry, &workspace))?;
            worst = worst.max(on_device.error(&batch, self.stream)?);
            print!(" {forward} {us:.1} ({:.0})", 100.0 * limit / us);
        }
        println!("  error {worst:.1e}");
        for tile in mix.map_or(&[][..], Mix::tiles) {
            let plan = Plan::build(&geometry, &batch.table()?, &self.device.plan_options(), *tile)?;
            self.cost_of_a_set(backend, &plan, tile, mix, (&batch, &on_device))?;
        }
        Ok(())
    }

    /// Prints what a plan of one tile takes as a kernel of its own and by that of a set.
    fn cost_of_a_set(
        &self,
        backend: &CudaBackend,
        plan: &Plan,
        tile: &Tile,
        set: Option<&Mix>,
        (batch, on_device): (&Batch, &OnDevice),
    ) -> Outcome<()> {
        let Some(set) = set else { return Ok(()) };
        let geometry = plan.geometry();
        let mut plans =
            [DevicePlan::new(self.device), DevicePlan::with_mix(self.device, set, MergeBy::Launch)];
        let (mut us, mut worst) = ([f64::INFINITY; 2], 0.0f64);
        for uploaded in &mut plans {
            uploaded.upload(plan, self.stream)?;
        }
        let workspace = DeviceMemory::new(self.device.context(), plans[0].workspace_bytes())?;
        let args = on_device.args(geometry, &workspace);
        // In turns, so that clocks that change meet both.
        for _ in 0..SET_ROUNDS {
            for (best, uploaded) in us.iter_mut().zip(&plans) {
                *best = best.min(self.median_us(backend, uploaded, &args)?);
                worst = worst.max(on_device.error(batch, self.stream)?);
            }
        }
        let [alone, by_set] = us;
        println!(
            "{:>28} alone {alone:.1} us, by the set's kernel {by_set:.1} ({:+.1} %)  error {worst:.1e}",
            tile.to_string(),
            100.0 * (by_set / alone - 1.0)
        );
        Ok(())
    }
}

fn options(device: &CudaDevice) -> Outcome<Options> {
    let class = Class { head_dim: 128, dtype: Dtype::F16 };
    let all = || Space::of(Backend::Cuda).feasible(&class, &Limits::Cuda(device.limits().clone()));
    let mut options = Options {
        trees: Vec::new(),
        heads: vec![(32, 8)],
        tiles: Vec::new(),
        page_size: 32,
        best: 8,
        forward: false,
        timeline: false,
        flush: FlushBy::default(),
        plan: device.plan_options(),
    };
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        if word == "--timeline" {
            options.timeline = true;
            continue;
        }
        if word == "--forward" {
            options.forward = true;
            continue;
        }
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--heads" => {
                let heads = value()?;
                let pair = |pair: &str| -> Outcome<(u32, u32)> {
                    let (q, kv) = pair.split_once('/').ok_or("heads are written as 32/8")?;
                    Ok((q.parse()?, kv.parse()?))
                };
                options.heads = heads.split(',').map(pair).collect::<Outcome<_>>()?;
            }
            "--tiles" => {
                options.tiles = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?;
            }
            "--slots" => options.plan.device.max_concurrent_ctas = value()?.parse()?,
            "--cta" => options.plan.device.prices.cta = Prices::of_seconds(value()?.parse::<f64>()? * 1e-9),
            "--merge" => {
                options.plan.device.prices.merge = Prices::of_seconds(value()?.parse::<f64>()? * 1e-9)
            }
            "--flush" => options.flush = value()?.parse()?,
            "--page" => options.page_size = value()?.parse()?,
            "--best" => options.best = value()?.parse()?,
            _ => options.trees.push(word),
        }
    }
    if options.tiles.is_empty() {
        options.tiles = if options.forward { MIXED.to_vec() } else { all() };
    }
    if options.trees.is_empty() {
        options.trees.push("256_1024".to_owned());
    }
    Ok(options)
}

fn print_figures(device: &CudaDevice, flush: &Flush, figures: &Figures, seconds: f64) {
    println!("{} ({}), CUDA {:?}", device.name(), device.arch(), device.driver());
    let (by, megabytes) = (flush.by(), flush.bytes() >> 20);
    let launches = match by {
        FlushBy::Reading => "a graph",
        FlushBy::Writing => "plain launches behind a delay",
    };
    println!("flush: {by} {megabytes} MB, then {launches}; median of {}", by.samples());
    println!(
        "read {:.2} TB/s, launch {:.2} us, latency {} cycles, L2 {} cycles; measured in {seconds:.2} s",
        figures.bandwidth() / 1e12,
        figures.launch_us,
        figures.memory_latency_cycles,
        figures.l2_latency_cycles
    );
    for (name, value) in figures.prices.facts() {
        println!("  {name}: {value}");
    }
    for point in figures.reads.iter().step_by(4) {
        println!(
            "  {:>8.1} MB {:>8.2} us {:>7.0} GB/s",
            point.bytes as f64 / 1e6,
            point.us,
            point.bytes as f64 / point.us / 1e3
        );
    }
}

/// A tree of shared prefixes, its pages scattered.
struct Batch {
    geometry: Geometry,
    entries: Vec<i32>,
    max_pages: usize,
    seq_lens: Vec<u32>,
    pages: u32,
    keys: Vec<f16>,
    values: Vec<f16>,
    query: Vec<f16>,
}

impl Batch {
    fn of(tree: &str, geometry: Geometry) -> Outcome<Self> {
        let (nodes, tokens) = tree.split_once('_').ok_or("a tree is written as 1,256_256,32")?;
        let numbers = |text: &str| text.split(',').map(str::parse).collect::<Result<Vec<u32>, _>>();
        let (nodes, tokens) = (numbers(nodes)?, numbers(tokens)?);
        let requests = *nodes.last().ok_or("a tree has levels")?;
        let columns: Vec<u32> = tokens.iter().map(|tokens| tokens / geometry.page_size).collect();
        let pages: u32 = nodes.iter().zip(&columns).map(|(nodes, columns)| nodes * columns).sum();
        let scattered = |page: u32| (u64::from(page) * 2_654_435_761 % u64::from(pages)) as i32;
        let mut entries = Vec::new();
        for request in 0..requests {
            let mut first = 0;
            for (&nodes_of_level, &columns) in nodes.iter().zip(&columns) {
                let node = request * nodes_of_level / requests;
                entries.extend((0..columns).map(|column| scattered(first + node * columns + column)));
                first += nodes_of_level * columns;
            }
        }
        let elements = pages as usize * (geometry.page_size * geometry.kv_heads * geometry.head_dim) as usize;
        let queries = (requests * geometry.q_heads * geometry.head_dim) as usize;
        Ok(Self {
            geometry,
            entries,
            max_pages: columns.iter().sum::<u32>() as usize,
            seq_lens: vec![tokens.iter().sum(); requests as usize],
            pages,
            keys: noise(elements, 1),
            values: noise(elements, 2),
            query: noise(queries, 3),
        })
    }

    fn table(&self) -> Outcome<PageTable<'_>> {
        Ok(PageTable::new(&self.entries, self.max_pages, &self.seq_lens, self.geometry.page_size)?)
    }

    /// Distinct K and V, the query and the output.
    fn bytes(&self) -> u64 {
        let tokens = u64::from(self.pages) * u64::from(self.geometry.page_size);
        tokens * self.geometry.kv_bytes_per_token() as u64 + 2 * size_of_val(&self.query[..]) as u64
    }
}

/// Copies of one block of noise whose length divides nothing: fast to make, and different on every page.
fn noise(count: usize, seed: u64) -> Vec<f16> {
    const BLOCK: usize = (1 << 16) + 1;
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f16::from_f32(((state >> 40) as f32 / (1u32 << 23) as f32) - 1.0)
    };
    let block: Vec<f16> = (0..BLOCK.min(count)).map(|_| next()).collect();
    let mut all = Vec::with_capacity(count);
    while all.len() < count {
        all.extend_from_slice(&block[..BLOCK.min(count - all.len())]);
    }
    all
}

struct OnDevice {
    keys: DeviceMemory,
    values: DeviceMemory,
    query: DeviceMemory,
    output: DeviceMemory,
}

impl OnDevice {
    fn new(device: &CudaDevice, batch: &Batch) -> Outcome<Self> {
        let upload = |elements: &[f16]| -> Outcome<DeviceMemory> {
            let memory = DeviceMemory::new(device.context(), size_of_val(elements))?;
            memory.write(0, elements)?;
            Ok(memory)
        };
        Ok(Self {
            keys: upload(&batch.keys)?,
            values: upload(&batch.values)?,
            query: upload(&batch.query)?,
            output: upload(&batch.query)?,
        })
    }

    fn args(&self, geometry: &Geometry, workspace: &DeviceMemory) -> RawArgs {
        RawArgs {
            query: self.query.address(),
            keys: self.keys.address(),
            values: self.values.address(),
            output: self.output.address(),
            workspace: workspace.address(),
            ..RawArgs::dense(geometry)
        }
    }

    /// Relative error of some requests; the output is poisoned afterwards.
    fn error(&self, batch: &Batch, stream: &CudaStream) -> Outcome<f64> {
        let vector = (batch.geometry.q_heads * batch.geometry.head_dim) as usize;
        let mut output = vec![f16::NAN; batch.query.len()];
        self.output.read(0, &mut output, stream)?;
        let requests = batch.seq_lens.len();
        let (mut difference, mut norm) = (0.0, 0.0);
        for request in (0..CHECKED).map(|i| i * (requests - 1) / (CHECKED - 1).max(1)) {
            let row = &batch.entries[request * batch.max_pages..][..batch.max_pages];
            let seq_lens = [batch.seq_lens[request]];
            let table = PageTable::new(row, batch.max_pages, &seq_lens, batch.geometry.page_size)?;
            let cache = cpu::KvCache {
                keys: &batch.keys,
                values: &batch.values,
                strides: KvStrides::nhd(&batch.geometry),
            };
            let query = &batch.query[request * vector..][..vector];
            let scale = 1.0 / (batch.geometry.head_dim as f32).sqrt();
            let attention = reference::Attention::plain(scale);
            let (expected, _) = reference::decode(&batch.geometry, &table, query, &cache, &attention);
            for (found, expected) in output[request * vector..][..vector].iter().zip(&expected) {
                difference += (f64::from(found.to_f32()) - expected).powi(2);
                norm += expected.powi(2);
            }
        }
        let poison = vec![f16::NAN; batch.query.len()];
        self.output.write(0, &poison)?;
        let error = (difference / norm).sqrt();
        Ok(if error.is_nan() { f64::INFINITY } else { error })
    }
}
