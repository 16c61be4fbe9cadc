//! The default space is compiled for every architecture, with no GPU, and its figures are compared with NVIDIA's own tools.

mod machine_code;

use machine_code::assert_arrivals_wait;
use std::path::PathBuf;

use std::process::Command;
use std::sync::OnceLock;
use tilewright_heuristics::{Backend, Dtype, Fp8, Geometry, MaskOptions, Tile};
use tilewright_kernel_templates::cuda::{
    Arguments, Kernel, KernelOptions, KvLoad, MAX_STATES, MERGE_WARPS, WarpSplit, has_tma_producers,
    producer_warps, transposes,
};
use tilewright_kernel_templates::toolchain::{Compiler, Cubin, fetch_disassemblers};
use tilewright_kernel_templates::{
    Arch, Class, CudaLimits, Limits, RotaryPairs, Space, check, check_compiled, check_compiled_mix,
    check_mix, occupancy,
};
use tilewright_plan::Occupancy;

/// A device of each architecture.
const DEVICES: [&str; 4] = ["a100-80gb", "l40s", "h200", "b200"];
const USUAL: Class = Class { head_dim: 128, dtype: Dtype::F16 };
const ARGUMENTS_BYTES: u32 = size_of::<Arguments>() as u32;
const ALL_OPTIONS: KernelOptions =
    KernelOptions { mask: MaskOptions::ALL, sinks: true, ..KernelOptions::for_pages(16) };

/// Whether this many bytes of parameters are one `Arguments`. What lies before them in the constant bank need not be a multiple of their
/// alignment: a gap counts with them.
fn is_one_arguments(parameter_bytes: u32) -> bool {
    (ARGUMENTS_BYTES..ARGUMENTS_BYTES + align_of::<Arguments>() as u32).contains(&parameter_bytes)
}

fn cache() -> PathBuf {
    std::env::var_os("TILEWRIGHT_CACHE")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cache"), PathBuf::from)
}

fn limits(device: &str) -> CudaLimits {
    CudaLimits::named(device).unwrap()
}

fn compiler(arch: &str) -> Compiler {
    let compiler = Compiler::or_fetch(arch.parse::<Arch>().unwrap(), &cache()).unwrap();
    assert!(
        compiler.supports_arch(),
        "this NVRTC does not know {arch}; unset TILEWRIGHT_NVRTC to use the pinned one"
    );
    compiler
}

/// Compiles every `step`-th tile of the space of the usual class for a device; how many are feasible afterwards.
fn compile_space(device: &str, step: usize) -> usize {
    let limits = limits(device);
    let tiles = Space::of(Backend::Cuda).feasible(&USUAL, &Limits::Cuda(limits.clone()));
    let tiles: Vec<Tile> = tiles.into_iter().step_by(step).collect();
    let compiler = compiler(&limits.arch);
    let kernel = |tile| Kernel::decode(tile, &USUAL, KernelOptions::default(), compiler.arch());
    let kernels: Vec<Kernel> = tiles.iter().map(kernel).collect();
    let cubins = compiler.compile_all(&kernels, || ());
    let Class { head_dim, dtype } = USUAL;
    let geometry = Geometry { q_heads: 32, kv_heads: 8, head_dim, page_size: 16, dtype };
    let (mut feasible, mut misjudged) = (0, Vec::new());
    for ((tile, kernel), cubin) in tiles.iter().zip(&kernels).zip(cubins) {
        let cubin = cubin.unwrap_or_else(|error| panic!("{device}: {error}"));
        // The cubin and the assembler's report are two witnesses.
        assert_eq!(cubin.usage.registers, cubin.report.registers, "{device} {tile}");
        assert_eq!(cubin.usage.max_threads, kernel.threads, "{device} {tile}");
        assert!(is_one_arguments(cubin.usage.parameter_bytes), "{device} {tile}: {:?}", cubin.usage);
        assert_arrivals_wait(kernel, USUAL.head_dim, &limits.arch, &cubin.code);
        let options = KernelOptions::default();
        if check_compiled(tile, &USUAL, options, &limits, &cubin.usage, &cubin.report).is_err() {
            continue;
        }
        feasible += 1;
        let bytes = kernel.shared_bytes + cubin.usage.static_shared_bytes;
        let held = occupancy(&limits, kernel.threads, cubin.usage.registers, bytes).ctas_per_sm;
        let planned = Occupancy::of_capability(&limits.arch).of(tile, &geometry, false);
        if held != planned {
            misjudged.push(format!("{tile}: {held} CTAs an SM, planned for {planned}"));
        }
    }
    // Plans are made for as many CTAs as an SM holds. Where nobody has tuned, they may be made for others.
    let known = if limits.arch == "sm_90a" { 10 } else { 4 };
    assert!(misjudged.len() * known <= feasible, "{device}, of {feasible}: {misjudged:#?}");
    feasible
}

/// Every sixth tile tells as much as all of them, in minutes less: all are compiled wherever a GPU is tuned. `TILEWRIGHT_SPACE_STEP=1` compiles
/// all here, too.
fn step() -> usize {
    std::env::var("TILEWRIGHT_SPACE_STEP").map_or(6, |step| step.parse().expect("a number of tiles"))
}

#[test]
fn the_space_compiles_for_sm_90a() {
    let feasible = compile_space("h200", step());
    assert!(feasible >= 150 / step(), "{feasible}");
}

#[test]
fn tiles_without_registers_for_their_accumulators_spill() {
    let limits = limits("h200");
    let compiler = compiler(&limits.arch);
    let wide = Class { head_dim: 256, ..USUAL };
    for (tile, class) in [("m16n256w1s1", USUAL), ("m64n256w4s1", USUAL), ("m16n128w1s1", wide)] {
        let (tile, options) = (Tile::of(tile), KernelOptions::default());
        let rejected = check(&tile, &class, &Limits::Cuda(limits.clone())).unwrap_err();
        assert_eq!(rejected.rule, "accumulators", "{tile}");
        let cubin = compiler.compile(&Kernel::decode(&tile, &class, options, compiler.arch())).unwrap();
        let compiled = check_compiled(&tile, &class, options, &limits, &cubin.usage, &cubin.report);
        assert_eq!(compiled.unwrap_err().rule, "spills", "{tile}");
    }
}

#[test]
fn the_space_compiles_for_sm_80() {
    let feasible = compile_space("a100-80gb", step());
    assert!(feasible >= 130 / step(), "{feasible}");
}

#[test]
fn the_space_compiles_for_sm_89() {
    let feasible = compile_space("l40s", step());
    assert!(feasible >= 70 / step(), "{feasible}");
}

#[test]
fn the_space_compiles_for_sm_100a() {
    // Its compiler spills where that of sm_90a just fits: fewer tiles are feasible in as much shared memory.
    let feasible = compile_space("b200", step());
    assert!(feasible >= 120 / step(), "{feasible}");
}

#[test]
fn fp8_stays_in_registers_and_converts_in_hardware() {
    let folder = tempfile::tempdir().unwrap();
    let tiles = [tile(16, 32, 2, 3), tile(64, 32, 4, 2)];
    for device in DEVICES {
        let limits = limits(device);
        let compiler = compiler(&limits.arch);
        for (dtype, tile) in [
            (Dtype::Fp8F16, tiles[0]),
            (Dtype::Fp8Bf16, tiles[1]),
            (Dtype::E5m2F16, tiles[1]),
            (Dtype::E5m2Bf16, tiles[0]),
        ] {
            let class = Class { dtype, ..USUAL };
            let kernel = Kernel::decode(&tile, &class, KernelOptions::default(), compiler.arch());
            let cubin = compiler.compile(&kernel).unwrap();
            let what = format!("{device} {class} {tile}: {:?}", cubin.usage);
            assert_eq!((cubin.usage.local_bytes, cubin.report.spill_store_bytes), (0, 0), "{what}");
            let path = folder.path().join("kernel.cubin");
            std::fs::write(&path, &cubin.code).unwrap();
            let code = run(&tools().nvdisasm, &["-c".as_ref(), path.as_os_str()]);
            // Devices from 8.9 on make f16 of e4m3, beside queries in bf16, too; on others its bits are moved, and multiplied. Bytes of
            // e5m2 are moved.
            let e5m2 = dtype.fp8() == Some(Fp8::E5m2);
            let converts = limits.arch != "sm_80" && !e5m2;
            assert_eq!(code.contains("F2FP.F16.E4M3.UNPACK_B"), converts, "{what}");
            assert!(!e5m2 || !code.contains("HMUL2") && !code.contains("E5M2.UNPACK"), "{what}");
        }
    }
}

/// A kernel, and what it is of: a merge of no tile.
type Sampled = (Class, Option<(Tile, KernelOptions)>, Kernel);

/// Head dimensions whose rows have three panels, and those that warps split among themselves. The element types of queries differ in nothing there that they
/// do not elsewhere: one of them stands for both.
fn is_seldom(class: &Class) -> bool {
    !class.head_dim.is_power_of_two() || WarpSplit::splits_heads(class.head_dim)
}

/// Whether the kernels of a class are compiled: those of e5m2, which differ from those of e4m3 in how they widen and narrow alone, beside one type
/// of queries for heads of a power of two.
fn stands(class: &Class) -> bool {
    class.dtype.fp8() != Some(Fp8::E5m2) || (class.dtype.query() == Dtype::F16 && !is_seldom(class))
}

/// Kernels of the other classes, of all options, also of pages that TMA cannot load, and the merges.
fn sample(limits: &CudaLimits) -> Vec<Sampled> {
    let mut kernels = Vec::new();
    let arch = limits.arch.parse().unwrap();
    for class in Class::all(Backend::Cuda).filter(stands) {
        let mut tiles = Space::of(Backend::Cuda).feasible(&class, &Limits::Cuda(limits.clone()));
        if is_seldom(&class) {
            if class.dtype.query() != Dtype::F16 {
                continue;
            }
            // One that a warpgroup multiplies, where there are warpgroups and a CTA has room for it.
            if tiles.iter().any(|tile| tile.m >= 64) {
                tiles.retain(|tile| tile.m >= 64);
            }
            let half = tiles.len() / 2;
            tiles = tiles[half..=half].to_vec();
        }
        let most = if class.dtype.fp8() == Some(Fp8::E5m2) { 1 } else { 2 };
        for &tile in tiles.iter().step_by(tiles.len().div_ceil(most)) {
            for kv_load in [KvLoad::Tma, KvLoad::CpAsync] {
                let options = KernelOptions { kv_load, ..ALL_OPTIONS };
                if options.on(&class, arch) == options {
                    let kernel = Kernel::decode(&tile, &class, options, arch);
                    kernels.push((class, Some((tile, options)), kernel));
                }
            }
        }
        if class.dtype.fp8() == Some(Fp8::E5m2) {
            continue; // their merges are those of the query's type
        }
        for warps in MERGE_WARPS {
            kernels.push((class, None, Kernel::merge(warps, &class, ALL_OPTIONS)));
        }
        kernels.push((class, None, Kernel::merge_states(&class)));
    }
    kernels
}

#[test]
fn every_class_and_option_compiles_for_every_architecture() {
    let folder = tempfile::tempdir().unwrap();
    for device in DEVICES {
        let limits = limits(device);
        let compiler = compiler(&limits.arch);
        let sampled = sample(&limits);
        let kernels: Vec<Kernel> = sampled.iter().map(|(.., kernel)| kernel.clone()).collect();
        for (index, (sampled, cubin)) in sampled.iter().zip(compiler.compile_all(&kernels, || ())).enumerate()
        {
            let cubin = cubin.unwrap_or_else(|error| panic!("{device}: {error}"));
            let (class, _, kernel) = sampled;
            assert!((8..=255).contains(&cubin.usage.registers), "{device} {}", kernel.name);
            assert_arrivals_wait(kernel, class.head_dim, &limits.arch, &cubin.code);
            if index % 4 == 0 {
                assert_as_disassembled(device, compiler.arch(), sampled, &cubin, folder.path());
            }
        }
    }
}

const fn tile(m: u16, n: u16, warps: u16, stages: u16) -> Tile {
    Tile::new(m, n, warps, stages)
}

/// Registers of a tile's kernel, and CTAs an SM.
fn alone(compiler: &Compiler, limits: &CudaLimits, kernel: &Kernel) -> (u32, u32) {
    let cubin = compiler.compile(kernel).unwrap();
    let held = occupancy(limits, kernel.threads, cubin.usage.registers, kernel.shared_bytes);
    (cubin.usage.registers, held.ctas_per_sm)
}

#[test]
fn mixes_of_feasible_tiles_compile_for_every_architecture() {
    // Tiles of as many warps, and tiles of different numbers of warps, rows and stages.
    let mixes = [
        vec![tile(16, 64, 4, 2), tile(64, 32, 4, 1)],
        vec![tile(16, 32, 1, 2), tile(32, 32, 2, 2), tile(64, 32, 8, 1)],
    ];
    for device in DEVICES {
        let limits = limits(device);
        let compiler = compiler(&limits.arch);
        for (class, options) in
            [(USUAL, KernelOptions::default()), (Class { head_dim: 64, dtype: Dtype::Bf16 }, ALL_OPTIONS)]
        {
            // With TMA, this is about pages that it cannot load.
            let options = KernelOptions { kv_load: KvLoad::CpAsync, ..options };
            let mixed: Vec<Kernel> = mixes
                .iter()
                .map(|tiles| Kernel::decode_mix(tiles, &class, options, compiler.arch()))
                .collect();
            for ((tiles, kernel), mix) in mixes.iter().zip(&mixed).zip(compiler.compile_all(&mixed, || ())) {
                let mix = mix.unwrap_or_else(|error| panic!("{device}: {error}"));
                let what = format!("{device} {}: {:?}", kernel.name, mix.usage);
                assert_eq!(check_mix(tiles, &class, options, &limits), Ok(()), "{what}");
                assert_eq!(mix.usage.max_threads, kernel.threads, "{what}");
                assert!(is_one_arguments(mix.usage.parameter_bytes), "{what}: one `Arguments`");
                // Every mix fits an SM. The compiler may rather spill a few registers of one with many threads than give up a second CTA.
                match check_compiled_mix(tiles, &class, options, &limits, &mix.usage, &mix.report) {
                    Ok(()) => {}
                    Err(error) => assert!(
                        error.rule == "spills" && tiles.len() > 2 && mix.usage.local_bytes <= 64,
                        "{what}: {error}"
                    ),
                }
                println!("{what}");
            }
        }
    }
}

/// Sets beside a producer warpgroup: four consumer warps, and eight.
const BESIDE_PRODUCERS: [&[Tile]; 5] = [
    &[tile(16, 64, 4, 2), tile(64, 64, 4, 2)],
    &[tile(16, 128, 4, 1), tile(64, 64, 4, 2)],
    &[tile(16, 64, 4, 3), tile(32, 64, 4, 2), tile(64, 64, 4, 2)],
    &[tile(16, 128, 4, 1), tile(32, 64, 4, 2), tile(64, 64, 4, 2)],
    &[tile(16, 128, 8, 2), tile(64, 64, 8, 3), tile(128, 64, 8, 2)],
];

#[test]
fn mixes_cost_an_sm_what_their_greediest_tile_costs() {
    let (limits, options) = (limits("h200"), KernelOptions::default());
    let compiler = compiler(&limits.arch);
    let classes = [(128, Dtype::F16), (64, Dtype::Bf16)];
    for (head_dim, dtype) in classes {
        let class = Class { head_dim, dtype };
        let mixed = BESIDE_PRODUCERS.map(|tiles| Kernel::decode_mix(tiles, &class, options, compiler.arch()));
        for ((tiles, kernel), mix) in
            BESIDE_PRODUCERS.iter().zip(&mixed).zip(compiler.compile_all(&mixed, || ()))
        {
            let mix = mix.unwrap();
            let held = occupancy(&limits, kernel.threads, mix.usage.registers, kernel.shared_bytes);
            let what = format!(
                "{}: {} threads of {} registers, {} bytes of local and {} of shared memory, {} CTAs an SM",
                kernel.name,
                kernel.threads,
                mix.usage.registers,
                mix.usage.local_bytes,
                kernel.shared_bytes,
                held.ctas_per_sm
            );
            println!("{what}");
            assert_eq!(check_mix(tiles, &class, options, &limits), Ok(()), "{what}");
            check_compiled_mix(tiles, &class, options, &limits, &mix.usage, &mix.report).unwrap();
            assert_eq!((mix.usage.local_bytes, mix.report.spill_store_bytes), (0, 0), "{what}");
            let alone = tiles.iter().map(|tile| {
                alone(&compiler, &limits, &Kernel::decode(tile, &class, options, compiler.arch()))
            });
            let (registers, ctas): (Vec<u32>, Vec<u32>) = alone.unzip();
            // Of tiles with warpgroups the number is a launch's: what threads have afterwards is shared out.
            assert_eq!(Some(&mix.usage.registers), registers.last(), "{what}");
            assert_eq!(Some(&held.ctas_per_sm), ctas.iter().min(), "{what}");
        }
    }
}

/// Every option, FP8, and sets beside one producer warp, whose registers are those of the tiles alone.
#[test]
fn tiles_beside_producers_compile_with_every_option() {
    let limits = limits("h200");
    let compiler = compiler(&limits.arch);
    let timeline = KernelOptions { timeline: true, ..KernelOptions::default() };
    let fp8 = Class { dtype: Dtype::Fp8F16, ..USUAL };
    let few: &[Tile] = &[tile(16, 64, 4, 2), tile(32, 64, 4, 2)];
    let narrow: &[Tile] = &[tile(16, 32, 2, 2), tile(32, 32, 2, 3)];
    let cases = [
        (BESIDE_PRODUCERS[2], USUAL, ALL_OPTIONS),
        (BESIDE_PRODUCERS[4], USUAL, ALL_OPTIONS),
        (BESIDE_PRODUCERS[2], USUAL, timeline),
        (BESIDE_PRODUCERS[2], fp8, KernelOptions::default()),
        (BESIDE_PRODUCERS[4], fp8, KernelOptions::default()),
        (few, USUAL, KernelOptions::default()),
        (narrow, USUAL, KernelOptions::default()),
    ];
    for (tiles, class, options) in cases {
        let kernel = Kernel::decode_mix(tiles, &class, options, compiler.arch());
        let mix = compiler.compile(&kernel).unwrap();
        let held = occupancy(&limits, kernel.threads, mix.usage.registers, kernel.shared_bytes);
        let what = format!("{}: {:?}, {} CTAs an SM", kernel.name, mix.usage, held.ctas_per_sm);
        println!("{what}");
        assert_arrivals_wait(&kernel, class.head_dim, &limits.arch, &mix.code);
        // Windows, caps and sinks at once take registers of their own, and fewer of them are left than of a tile alone.
        let most = if options == ALL_OPTIONS { 64 } else { 32 };
        assert!(mix.usage.local_bytes <= most, "{what}");
        let alone = tiles
            .iter()
            .map(|tile| alone(&compiler, &limits, &Kernel::decode(tile, &class, options, compiler.arch())).1);
        assert_eq!(Some(held.ctas_per_sm), alone.min(), "{what}");
    }
}

#[test]
fn tiles_of_unequal_warps_go_together_only_where_all_warps_copy() {
    let tiles = [tile(16, 64, 4, 2), tile(128, 64, 8, 2)];
    let [tma, cp_async] = [16, 1].map(KernelOptions::for_pages);
    let rule = |device, class: &Class, options| {
        check_mix(&tiles, class, options, &limits(device)).err().map(|error| error.rule)
    };
    assert_eq!(rule("h200", &USUAL, tma), Some("warps of a mix"));
    assert_eq!(rule("h200", &USUAL, cp_async), None);
    assert_eq!(
        rule("h200", &Class { head_dim: 96, dtype: Dtype::Fp8F16 }, tma),
        None,
        "no tile of it has producers"
    );
    assert_eq!(rule("a100-80gb", &USUAL, tma), None);
    let none = check_mix(&[], &USUAL, tma, &limits("h200")).unwrap_err();
    assert_eq!(none.rule, "tiles");
}

#[test]
fn timelines_compile_for_every_architecture() {
    let options = KernelOptions { timeline: true, ..KernelOptions::default() };
    let tiles = [Tile::of("m16n64w4s2"), Tile::of("m64n64w4s2")];
    for device in DEVICES {
        let limits = limits(device);
        let compiler = compiler(&limits.arch);
        let kernels = tiles.map(|tile| Kernel::decode(&tile, &USUAL, options, compiler.arch()));
        for (tile, cubin) in tiles.iter().zip(compiler.compile_all(&kernels, || ())) {
            let cubin = cubin.unwrap_or_else(|error| panic!("{device}: {error}"));
            check_compiled(tile, &USUAL, options, &limits, &cubin.usage, &cubin.report)
                .unwrap_or_else(|error| panic!("{device} {tile}: {error}"));
        }
    }
}

#[test]
fn probes_compile_for_every_architecture() {
    let folder = tempfile::tempdir().unwrap();
    for device in DEVICES {
        let limits = limits(device);
        let mut kernels = vec![Kernel::read_probe(false), Kernel::read_probe(true), Kernel::latency_probe()];
        kernels.extend([Kernel::again_probe(), Kernel::write_probe(), Kernel::flop_probe()]);
        kernels.push(Kernel::cta_probe(limits.shared_bytes_per_cta));
        for (kernel, cubin) in kernels.iter().zip(compiler(&limits.arch).compile_all(&kernels, || ())) {
            let cubin = cubin.unwrap_or_else(|error| panic!("{device}: {error}"));
            let what = format!("{device} {}: {:?}", kernel.name, cubin.usage);
            assert!((8..=255).contains(&cubin.usage.registers), "{what}");
            assert_eq!(cubin.report.spill_store_bytes, 0, "{what}");
            let path = folder.path().join("kernel.cubin");
            std::fs::write(&path, &cubin.code).unwrap();
            let code = run(&tools().nvdisasm, &["-c".as_ref(), path.as_os_str()]);
            // Nothing that is measured was found to be useless and removed.
            let least: &[(&str, usize)] = match kernel.name.as_str() {
                "read_again" => &[("LDG.E.128", 4)],
                "write_and_read" => &[("STG.E.128", 1), ("LDG.E.128", 1)],
                "multiply" => &[("HMMA.16816.F32", 8)],
                "cta" => &[("LDG.E", 4), ("BAR.SYNC", 1)],
                _ => &[],
            };
            for &(instruction, count) in least {
                assert!(code.matches(instruction).count() >= count, "{what}: {instruction}\n{code}");
            }
        }
    }
}

#[test]
fn merges_of_states_stay_in_registers_on_every_architecture() {
    let folder = tempfile::tempdir().unwrap();
    for device in DEVICES {
        let limits = limits(device);
        let compiler = compiler(&limits.arch);
        for class in Class::all(Backend::Cuda).filter(|class| class.outputs() == *class) {
            let kernel = Kernel::merge_states(&class);
            let cubin = compiler.compile(&kernel).unwrap_or_else(|error| panic!("{device}: {error}"));
            let what = format!("{device} {}: {:?}", kernel.name, cubin.usage);
            assert_eq!(cubin.usage.parameter_bytes, 152, "{what}: one `StatesArguments`");
            assert_eq!(cubin.usage.max_threads, kernel.threads, "{what}");
            // Neither the states' elements nor the pointers, which lanes index, become an array in memory.
            assert_eq!((cubin.usage.local_bytes, cubin.report.spill_store_bytes), (0, 0), "{what}");
            let path = folder.path().join("kernel.cubin");
            std::fs::write(&path, &cubin.code).unwrap();
            let code = run(&tools().nvdisasm, &["-c".as_ref(), path.as_os_str()]);
            // 16 bytes of each state at once, and as many to write: nothing was taken apart. A lane has 32 bytes of a row of 512 elements.
            let vectors = (class.head_dim as usize).div_ceil(32 * 8);
            for (instruction, count) in [("LDG.E.128", MAX_STATES * vectors), ("STG.E.128", vectors)] {
                assert_eq!(code.matches(instruction).count(), count, "{what}: {instruction}");
            }
        }
    }
}

#[test]
fn appends_read_and_write_whole_words_on_every_architecture() {
    let folder = tempfile::tempdir().unwrap();
    let rotaries = [None, Some(RotaryPairs::Halves), Some(RotaryPairs::Interleaved)];
    for device in DEVICES {
        let limits = limits(device);
        let compiler = compiler(&limits.arch);
        let represented = |class: &Class, pairs: &Option<RotaryPairs>| {
            !is_seldom(class) || (class.dtype.query() == Dtype::F16 && *pairs == Some(RotaryPairs::Halves))
        };
        let variants: Vec<(Class, Option<RotaryPairs>)> = Class::all(Backend::Cuda)
            .filter(stands)
            .flat_map(|class| rotaries.map(|pairs| (class, pairs)))
            .filter(|(class, pairs)| represented(class, pairs))
            .collect();
        let kernels: Vec<Kernel> =
            variants.iter().map(|(class, pairs)| Kernel::append(class, *pairs)).collect();
        for (((class, pairs), kernel), cubin) in
            variants.iter().zip(&kernels).zip(compiler.compile_all(&kernels, || ()))
        {
            let cubin = cubin.unwrap_or_else(|error| panic!("{device}: {error}"));
            let what = format!("{device} {}: {:?}", kernel.name, cubin.usage);
            assert_eq!(cubin.usage.parameter_bytes, 176, "{what}: one `AppendArguments`");
            assert_eq!((cubin.usage.local_bytes, cubin.report.spill_store_bytes), (0, 0), "{what}");
            // 1 024 tokens of 8 heads of 128 elements are on the device at once.
            let held = occupancy(&limits, kernel.threads, cubin.usage.registers, 0);
            assert!(held.ctas_per_sm >= 8, "{what}: {} CTAs an SM", held.ctas_per_sm);
            if class.head_dim != 128 {
                continue;
            }
            let path = folder.path().join("kernel.cubin");
            std::fs::write(&path, &cubin.code).unwrap();
            let code = run(&tools().nvdisasm, &["-c".as_ref(), path.as_os_str()]);
            let (fp8, narrows) = (class.dtype.has_fp8_kv(), limits.arch != "sm_80");
            let store = if fp8 { "STG.E.64" } else { "STG.E.128" };
            assert_eq!(code.matches(store).count(), 2, "{what}: {store}");
            // K and V; of halves the other one of K, and cosines and sines of four angles at a time.
            let loads = match pairs {
                None => 2,
                Some(RotaryPairs::Interleaved) => 4,
                Some(RotaryPairs::Halves) => 7,
            };
            assert_eq!(code.matches("LDG.E.128").count(), loads, "{what}");
            let format = if class.dtype.fp8() == Some(Fp8::E5m2) { "E5M2" } else { "E4M3" };
            let instruction = format!("F2FP.SATFINITE.{format}");
            assert_eq!(code.contains(&instruction), fp8 && narrows, "{what}: {instruction}");
        }
    }
}

#[test]
fn a_safe_default_exists_on_every_architecture() {
    // Tiles that every class can run by the declared limits, compiled for the class with the largest head: some must have room.
    for device in DEVICES {
        let limits = limits(device);
        let universal = Space::of(Backend::Cuda).universally_feasible(&Limits::Cuda(limits.clone()));
        let class = Class { head_dim: 256, dtype: Dtype::Bf16 };
        let (compiler, options) = (compiler(&limits.arch), KernelOptions::default());
        // One is enough: those behind it are not compiled.
        let fits = universal.iter().take(8).any(|tile| {
            let compiled = compiler.compile(&Kernel::decode(tile, &class, options, compiler.arch()));
            compiled.is_ok_and(|cubin| {
                check_compiled(tile, &class, options, &limits, &cubin.usage, &cubin.report).is_ok()
            })
        });
        assert!(fits, "{device}");
    }
}

/// NVIDIA's disassemblers, fetched once for all tests of this file.
fn tools() -> &'static tilewright_kernel_templates::toolchain::Disassemblers {
    static TOOLS: OnceLock<tilewright_kernel_templates::toolchain::Disassemblers> = OnceLock::new();
    TOOLS.get_or_init(|| fetch_disassemblers(&cache()).unwrap())
}

fn run(program: &std::path::Path, arguments: &[&std::ffi::OsStr]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}: {}", program.display(), String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The number behind `NAME:` in cuobjdump's line.
fn figure(line: &str, name: &str) -> u32 {
    let value = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix(':'));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} in `{line}`"))
}

/// Figures and instructions are those that NVIDIA's tools find.
fn assert_as_disassembled(
    device: &str,
    arch: Arch,
    (class, tile, kernel): &Sampled,
    cubin: &Cubin,
    folder: &std::path::Path,
) {
    let path = folder.join("kernel.cubin");
    std::fs::write(&path, &cubin.code).unwrap();
    let usage = run(&tools().cuobjdump, &["--dump-resource-usage".as_ref(), path.as_os_str()]);
    let line = usage.lines().find(|line| line.contains("REG:")).unwrap_or_else(|| panic!("{usage}"));
    let what = format!("{device} {class} {}", kernel.name);
    assert_eq!(figure(line, "REG"), cubin.usage.registers, "{what}");
    assert_eq!(figure(line, "STACK"), cubin.usage.local_bytes, "{what}");
    let Some((tile, options)) = tile else { return };
    let code = run(&tools().nvdisasm, &["-c".as_ref(), path.as_os_str()]);
    let producers = producer_warps(tile, class, *options, arch);
    // A query that does not fit the registers is where warpgroups find it only beside producers.
    let together = has_tma_producers(class, arch)
        && tile.m % 64 == 0
        && (class.head_dim <= 128 && !class.dtype.has_fp8_kv() || producers > 0);
    let transposed = producers > 0 && transposes(tile, class, *options);
    let products = match together || transposed {
        true => ("HGMMA.64x", "warpgroup's products"),
        false => ("HMMA.16816.F32", "tensor cores"),
    };
    let copies = match producers {
        0 => ("LDGSTS", "asynchronous copies"),
        _ => ("UTMALDG.5D", "copies of tma"),
    };
    let shared_out = ("USETMAXREG", "registers shared out");
    // Warpgroups read K and V where they are, and beside producers the query comes from memory.
    let fragments = ("LDSM", "ldmatrix");
    let rest = [(producers == 4).then_some(shared_out), (!together || producers == 0).then_some(fragments)];
    for (instruction, meaning) in [products, copies].into_iter().chain(rest.into_iter().flatten()) {
        assert!(code.contains(instruction), "{what}: no {meaning} ({instruction})");
    }
}
