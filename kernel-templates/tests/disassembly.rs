//! The machine code of kernels, with no GPU, where it does not follow from the sources that it is right.

mod machine_code;

use machine_code::{Reads, arrivals, assert_arrivals_wait};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tilewright_heuristics::{Dtype, Tile};
use tilewright_kernel_templates::cuda::{Kernel, KernelOptions, MERGE_WARPS, sources};
use tilewright_kernel_templates::toolchain::{Compiler, Nvrtc, Source, fetch_disassemblers};
use tilewright_kernel_templates::{Arch, Class, shipped_kernels};

const USUAL: Class = Class { head_dim: 128, dtype: Dtype::F16 };

fn cache() -> PathBuf {
    std::env::var_os("TILEWRIGHT_CACHE")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cache"), PathBuf::from)
}

fn compiler(arch: &str) -> Compiler {
    Compiler::or_fetch(arch.parse::<Arch>().unwrap(), &cache()).unwrap()
}

/// What NVIDIA's disassembler prints of a cubin's code.
fn disassembled(cubin: &[u8]) -> String {
    static NVDISASM: OnceLock<PathBuf> = OnceLock::new();
    let nvdisasm: &Path = NVDISASM.get_or_init(|| fetch_disassemblers(&cache()).unwrap().nvdisasm);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kernel.cubin");
    std::fs::write(&file, cubin).unwrap();
    let output = Command::new(nvdisasm).arg("--print-code").arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Registers that products of a warpgroup take their left sides from: those with K, and those with V, which is transposed.
fn left_sides(code: &str) -> [BTreeSet<&str>; 2] {
    let mut sides = [BTreeSet::new(), BTreeSet::new()];
    for line in code.lines().filter(|line| line.contains("GMMA.64x")) {
        let mut operands = line.split(", ").skip(1);
        if let (Some(left), Some(right)) = (operands.next(), operands.next())
            && left.starts_with('R')
        {
            sides[usize::from(right.contains("tnspB"))].insert(left);
        }
    }
    sides
}

/// Weights are made in other registers than the query's: `ptxas` had put them into these in one kernel, and did not bring the query back.
#[test]
fn weights_leave_the_query_in_its_registers() {
    let compiler = compiler("sm_90a");
    let tiles = ["m64n96w4s2", "m64n128w4s1", "m64n128w8s2", "m128n128w8s2"].map(Tile::of);
    let classes = [Dtype::F16, Dtype::Fp8F16, Dtype::Fp8Bf16].map(|dtype| Class { dtype, ..USUAL });
    let kernels: Vec<Kernel> = classes
        .iter()
        .flat_map(|class| {
            tiles.map(|tile| Kernel::decode(&tile, class, KernelOptions::default(), compiler.arch()))
        })
        .collect();
    for (kernel, cubin) in kernels.iter().zip(compiler.compile_all(&kernels, || ())) {
        let cubin = cubin.unwrap();
        assert_arrivals_wait(kernel, USUAL.head_dim, "sm_90a", &cubin.code);
        let code = disassembled(&cubin.code);
        let [query, weights] = left_sides(&code);
        assert!(!query.is_empty() && !weights.is_empty(), "{}", kernel.name);
        assert!(query.is_disjoint(&weights), "{}: {query:?} and {weights:?}", kernel.name);
    }
}

/// So do arrivals in what the recorded selectors return: a change of the sources that alters no such word can have `ptxas` move an arrival before reads.
#[test]
fn arrivals_of_recorded_selectors_wait_for_reads() {
    let compiler = compiler("sm_90a");
    for dtype in [Dtype::F16, Dtype::Fp8Bf16] {
        let mut kernels = shipped_kernels(compiler.arch(), &Class { dtype, ..USUAL });
        kernels.retain(|kernel| kernel.name.starts_with("decode"));
        assert!(kernels.len() >= 10, "{}", kernels.len());
        for (kernel, cubin) in kernels.iter().zip(compiler.compile_all(&kernels, || ())) {
            assert_arrivals_wait(kernel, USUAL.head_dim, "sm_90a", &cubin.unwrap().code);
        }
    }
}

/// What the search takes for granted of heads of more than 128 elements: the sources read nothing but the query by two words.
#[test]
fn the_query_alone_is_read_by_two_words() {
    let reads = |text: &str| text.contains("load_words(");
    let of = sources().iter().filter(|(_, text)| reads(text)).map(|(name, _)| *name);
    assert_eq!(of.collect::<BTreeSet<&str>>(), BTreeSet::from(["ptx.cuh", "query.cuh"]));
}

/// What tests look for in each kernel that they compile is found where it is: `ptxas` lets an arrival pass a read, though the source has it behind.
#[test]
fn an_arrival_that_passes_a_read_is_found() {
    let kernel = |address: &str| {
        format!(
            r#"
extern "C" __global__ void passed(unsigned* out, unsigned zero) {{
    extern __shared__ unsigned memory[];
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(memory)), r[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%0, %1, %2, %3}}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at + threadIdx.x * 16 + 16) : "memory");
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"({address}) : "memory");
    out[threadIdx.x] = r[0] ^ r[1] ^ r[2] ^ r[3];
}}"#
        )
    };
    let nvrtc = Nvrtc::load_or_fetch(&cache()).unwrap();
    let found = ["at", "at + (r[0] & zero)"].map(|address| {
        let source = Source { name: "passed.cu", text: &kernel(address), headers: &[] };
        let option = "sm_90a".parse::<Arch>().unwrap().option();
        let (all, early) = arrivals(&nvrtc.compile(&source, &[option]).unwrap().cubin, Reads::Matrices);
        (all, early.len())
    });
    assert_eq!(found, [(1, 1), (1, 0)]);
}

/// What lets a dependent launch begin early, and what makes it wait, are there in the machine code: an `#if` that leaves them out would be noticed
/// only by races.
#[test]
fn dependent_launches_wait_in_the_machine_code() {
    let tile = Tile::of("m16n64w4s2");
    for (arch, dependent) in [("sm_80", false), ("sm_90a", true), ("sm_100a", true)] {
        let compiler = compiler(arch);
        let decode = Kernel::decode(&tile, &USUAL, KernelOptions::default(), compiler.arch());
        let merge = Kernel::merge(MERGE_WARPS[0], &USUAL, KernelOptions::default());
        for (kernel, instruction) in [(decode, "PREEXIT"), (merge, "ACQBULK")] {
            let cubin = compiler.compile_all(std::slice::from_ref(&kernel), || ()).remove(0).unwrap();
            let code = disassembled(&cubin.code);
            assert!(code.contains("EXIT"), "{arch}: {code}");
            assert_eq!(code.contains(instruction), dependent, "{arch} {}: {instruction}", kernel.name);
        }
    }
}
