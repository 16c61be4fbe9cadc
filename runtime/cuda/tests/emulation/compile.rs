//! Kernels as C++ for the host, and the machine that runs them.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock};
use tempfile::TempDir;
use tilewright_kernel_templates::cuda::{Kernel, sources};

/// Files of the emulation, by name.
macro_rules! emulation {
    ($($name:literal),+) => {
        [$(($name, include_str!(concat!("../../../../kernel-templates/emulation/", $name)))),+]
    };
}

/// What kernels include.
const HEADERS: [(&str, &str); 4] =
    emulation!("emulation.hpp", "emulation_tma.hpp", "emulation_wgmma.hpp", "machine_calls.hpp");

/// What is compiled once, and linked to all kernels.
const MACHINE: [(&str, &str); 5] = emulation!(
    "machine.cpp",
    "machine.hpp",
    "machine_state.hpp",
    "machine_numbers.hpp",
    "machine_products.hpp"
);

/// Most of the time of a launch goes by in the machine.
const MACHINE_FLAGS: [&str; 1] = ["-O3"];

/// Kernels are compiled for a few launches: at level 1 the compiler takes half as long again, and they save less.
const KERNEL_FLAGS: [&str; 1] = ["-Og"];

/// Functions that tests call: those of the kernels, and what becomes of a call that a test may leave out ([`super::Emulator::leave_out`]).
const FUNCTIONS: &str = r#"
#define TILEWRIGHT_FOR_TESTS extern "C" __attribute__((visibility("default")))
TILEWRIGHT_FOR_TESTS bool tilewright_begins_chunk(u32 position, u32 kv_heads) { return begins_chunk(position, kv_heads); }
static __thread u32 left_out;
static __thread bool was_reached[1024];
bool tilewright::is_left_out(u32 call) {
  was_reached[call] = true;
  return call == left_out;
}
TILEWRIGHT_FOR_TESTS void tilewright_leave_out(u32 call) {
  left_out = call;
  for (bool &reached : was_reached) reached = false;
}
TILEWRIGHT_FOR_TESTS bool tilewright_was_reached(u32 call) { return was_reached[call]; }
"#;

/// Most kernels of one source file: compilers work on several files at once, and each file costs the headers once more.
const KERNELS_A_FILE: usize = 12;

/// Compiles kernels into a library in a folder of its own, from sources that `change` makes of each file's name and text.
pub(super) fn library(
    kernels: &[Kernel],
    flags: &[&str],
    change: impl Fn(&str, &str) -> String,
) -> (TempDir, PathBuf) {
    let folder = temporary_folder();
    for &(name, text) in sources().iter().chain(&HEADERS) {
        write(&folder.path().join(name), &change(name, text));
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let of_file = kernels.len().div_ceil(threads).clamp(1, KERNELS_A_FILE);
    let files: Vec<&[Kernel]> = kernels.chunks(of_file).collect();
    let objects: Vec<_> = (0..files.len()).map(|file| folder.path().join(format!("{file}.o"))).collect();
    let next = Mutex::new(files.iter().zip(&objects));
    let compile_files = || {
        loop {
            let Some((kernels, object)) = next.lock().unwrap().next() else { break };
            let source = object.with_extension("cpp");
            write(&source, &(source_text(kernels) + if *object == objects[0] { FUNCTIONS } else { "" }));
            compiler(folder.path(), &KERNEL_FLAGS, |command| {
                command.args(flags).args(["-c", "-o"]).arg(object).arg(&source);
            });
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.min(files.len())).map(|_| scope.spawn(compile_files)).collect();
        for worker in workers {
            if let Err(panic) = worker.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    let path = folder.path().join("kernels.so");
    compiler(folder.path(), &["-shared"], |command| {
        command.arg("-o").arg(&path).args(&objects).arg(machine());
    });
    (folder, path)
}

/// The machine's object file. It is compiled by the first test that needs it, and kept for those of other programs.
fn machine() -> &'static Path {
    static OBJECT: OnceLock<PathBuf> = OnceLock::new();
    OBJECT.get_or_init(|| {
        let mut hasher = DefaultHasher::new();
        (sources(), HEADERS, MACHINE, MACHINE_FLAGS, compiler_name()).hash(&mut hasher);
        let name = format!("machine-{:016x}.o", hasher.finish());
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        if !kept.exists() {
            let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder for the machine");
            for &(name, text) in sources().iter().chain(&HEADERS).chain(&MACHINE) {
                write(&folder.path().join(name), text);
            }
            compiler(folder.path(), &MACHINE_FLAGS, |command| {
                command.args(["-c", "-o", "machine.o", "machine.cpp"]);
            });
            // It appears whole, whoever else compiles it now.
            std::fs::rename(folder.path().join("machine.o"), &kept).expect("keeping the machine");
        }
        kept
    })
}

fn temporary_folder() -> TempDir {
    TempDir::new().expect("a temporary folder for the compiled kernels")
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).expect("writing to the temporary folder");
}

/// One entry point a kernel, under its name.
fn source_text(kernels: &[Kernel]) -> String {
    let mut text = String::from(
        "namespace tilewright { bool is_left_out(unsigned call); }\n#include \"mix.cuh\"\n#include \"merge_states.cuh\"\n\
         #include \"append.cuh\"\nusing namespace tilewright;\n",
    );
    for Kernel { name, template, threads, shared_bytes, .. } in kernels {
        let (args, grid) = match template.split('<').next() {
            Some("MergeStates") => ("StatesArguments", "divide_up(count, Variant::ROWS)"),
            Some("Merge") => ("Arguments", "divide_up(count, Variant::ROWS)"),
            Some("Append") => ("AppendArguments", "divide_up(count, Variant::THREADS)"),
            _ => ("Arguments", "count"),
        };
        writeln!(
            text,
            "extern \"C\" __attribute__((visibility(\"default\"))) Emulated {name}(const {args} *args, u32 count, u64 seed) {{\n  \
             using Variant = {template};\n  \
             static_assert(Variant::THREADS == {threads} && Variant::SHARED_BYTES == {shared_bytes}, \"as the host has it\");\n  \
             return emulate({grid}, {threads}, {shared_bytes}, [=] {{ Variant::run(*args); }}, seed);\n}}"
        )
        .expect("writing to a string");
    }
    text
}

/// The system's C++ compiler, or the one that `CXX` names.
fn compiler_name() -> String {
    std::env::var("CXX").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "c++".to_owned())
}

/// Runs the compiler in a folder.
fn compiler(folder: &Path, flags: &[&str], arguments: impl FnOnce(&mut Command)) {
    let name = compiler_name();
    // It may be a launcher and what it launches.
    let mut words = name.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("c++"));
    command.args(words).current_dir(folder);
    command.args(["-std=c++17", "-fPIC", "-fno-strict-aliasing", "-fvisibility=hidden"]).args(flags);
    arguments(&mut command);
    let Output { status, stderr, .. } = command.output().unwrap_or_else(|error| {
        panic!(
            "the kernels' tests compile them for the host, but `{name}` does not start ({error}): install a C++17 compiler \
             (Debian and Ubuntu: apt-get install g++), or name one in CXX"
        )
    });
    assert!(status.success(), "{command:?} failed:\n{}", String::from_utf8_lossy(&stderr));
}
