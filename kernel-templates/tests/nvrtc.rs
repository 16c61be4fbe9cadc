//! NVRTC for real: these compile, and download the pinned library where the machine has none.
//!
//! What depends on a process's environment, or on two processes, runs in children: this program again, told by a variable
//! to be one.

use object::{Object, ObjectSymbol};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tilewright_kernel_templates::Arch;
use tilewright_kernel_templates::toolchain::{
    CachedCubin, CubinCache, Nvrtc, NvrtcError, Source, fetch, fetch_disassemblers,
};

/// Tells a child what to do; the test `child` reads it.
const ROLE: &str = "TILEWRIGHT_TEST_ROLE";

/// The folder of the child's cubin cache.
const CUBINS: &str = "TILEWRIGHT_TEST_CUBINS";

const AXPY: Source<'static> = Source {
    name: "axpy.cu",
    text: r#"
extern "C" __global__ void axpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
"#,
    headers: &[],
};

/// Where downloads are kept from run to run.
fn cache() -> PathBuf {
    match std::env::var_os("TILEWRIGHT_CACHE") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"),
    }
}

fn nvrtc() -> &'static Nvrtc {
    Nvrtc::load_or_fetch(&cache()).unwrap()
}

fn options(arch: &str) -> Vec<String> {
    vec![arch.parse::<Arch>().unwrap().option()]
}

fn compile_cached(cache: &CubinCache, source: &Source<'_>, options: &[String]) -> (CachedCubin, bool) {
    let key = CubinCache::key(nvrtc().version(), options, source);
    if let Some(found) = cache.get(&key) {
        return (found, true);
    }
    let compiled = nvrtc().compile(source, options).unwrap();
    let entry = CachedCubin { cubin: compiled.cubin, log: compiled.log };
    cache.put(&key, &entry, source).unwrap();
    (entry, false)
}

/// Symbols of a cubin; fails for what is none.
fn symbols(cubin: &[u8]) -> Vec<String> {
    const EM_CUDA: u16 = 190;
    assert_eq!(cubin[18..20], EM_CUDA.to_le_bytes());
    let file = object::File::parse(cubin).unwrap();
    file.symbols().map(|symbol| symbol.name().unwrap().to_owned()).collect()
}

#[test]
fn compiles_for_every_architecture_in_use() {
    assert!(nvrtc().version() >= (12, 0));
    assert!(nvrtc().path().is_file(), "{}", nvrtc().path().display());
    for arch in ["sm_80", "sm_89", "sm_90a", "sm_100a"] {
        let number = arch.parse::<Arch>().unwrap().number();
        assert!(nvrtc().architectures().contains(&number), "{:?}", nvrtc().architectures());
        let compiled = nvrtc().compile(&AXPY, &options(arch)).unwrap();
        assert!(symbols(&compiled.cubin).iter().any(|name| name == "axpy"));
        assert_eq!(compiled.log, "");
    }
}

#[test]
fn headers_come_from_the_source() {
    let text = "#include \"scale.h\"\nextern \"C\" __global__ void scale(float* x) { *x *= SCALE; }";
    let headers = [("scale.h", "#define SCALE 3.0f\n")];
    nvrtc().compile(&Source { name: "scale.cu", text, headers: &headers }, &options("sm_80")).unwrap();
    let error =
        nvrtc().compile(&Source { name: "scale.cu", text, headers: &[] }, &options("sm_80")).unwrap_err();
    assert!(error.to_string().contains("scale.h"), "{error}");
}

#[test]
fn a_broken_kernel_is_named_with_its_line() {
    let text =
        "extern \"C\" __global__ void broken(float* x) {\n    float y = 1.0f;\n    x[0] = y + nothing;\n}\n";
    let source = Source { name: "broken.cu", text, headers: &[] };
    let error = nvrtc().compile(&source, &options("sm_90a")).unwrap_err();
    let NvrtcError::Compile { name, options, log } = &error else { panic!("{error}") };
    assert_eq!(
        (name.as_str(), options.as_slice()),
        ("broken.cu", &["--gpu-architecture=sm_90a".to_owned()][..])
    );
    assert!(log.contains("broken.cu(3): error") && log.contains("nothing"), "{log}");
    assert!(error.to_string().contains(log));
}

#[test]
fn warnings_are_in_the_log_of_a_success() {
    let text = "extern \"C\" __global__ void unused(float* x) {\n    int never_used;\n    x[0] = 0;\n}\n";
    let source = Source { name: "unused.cu", text, headers: &[] };
    let compiled = nvrtc().compile(&source, &options("sm_80")).unwrap();
    assert!(compiled.log.contains("never_used"), "{}", compiled.log);
}

#[test]
fn wrong_arguments_are_errors_that_say_why() {
    let failure = |source: &Source<'_>, options: &[String]| nvrtc().compile(source, options).unwrap_err();

    let error = failure(&AXPY, &["--no-such-option".to_owned()]);
    assert!(error.to_string().contains("no-such-option"), "{error}");

    let error = failure(&AXPY, &["--gpu-architecture=compute_80".to_owned()]);
    assert!(matches!(error, NvrtcError::NoCubin { .. }), "{error}");

    let error = failure(&Source { text: "int a;\0int b;", ..AXPY }, &options("sm_80"));
    assert!(matches!(&error, NvrtcError::Nul { what } if what == "axpy.cu"), "{error}");

    let error = failure(&AXPY, &["-D\0".to_owned()]);
    assert!(matches!(error, NvrtcError::Nul { .. }), "{error}");
}

#[test]
fn threads_compile_at_once_and_agree() {
    let alone = nvrtc().compile(&AXPY, &options("sm_90a")).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..3 {
                    assert_eq!(nvrtc().compile(&AXPY, &options("sm_90a")).unwrap(), alone);
                }
            });
        }
    });
}

#[test]
fn the_second_time_comes_from_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let cubins = CubinCache::open(folder.path(), 1 << 20).unwrap();
    let (first, was_cached) = compile_cached(&cubins, &AXPY, &options("sm_80"));
    assert!(!was_cached);
    let (second, was_cached) = compile_cached(&cubins, &AXPY, &options("sm_80"));
    assert!(was_cached);
    assert_eq!(first, second);
    // Another architecture is another entry.
    assert!(!compile_cached(&cubins, &AXPY, &options("sm_89")).1);
}

#[test]
fn a_damaged_cubin_is_compiled_anew() {
    let folder = tempfile::tempdir().unwrap();
    let cubins = CubinCache::open(folder.path(), 1 << 20).unwrap();
    let (first, _) = compile_cached(&cubins, &AXPY, &options("sm_80"));
    let key = CubinCache::key(nvrtc().version(), &options("sm_80"), &AXPY);
    let file = folder.path().join(key).join("kernel.cubin");
    std::fs::write(&file, &first.cubin[..first.cubin.len() / 2]).unwrap();
    assert_eq!(compile_cached(&cubins, &AXPY, &options("sm_80")), (first.clone(), false));
    assert_eq!(compile_cached(&cubins, &AXPY, &options("sm_80")), (first, true));
}

#[test]
fn the_size_limit_keeps_the_kernels_used_last() {
    let one = nvrtc().compile(&AXPY, &options("sm_80")).unwrap().cubin.len() as u64;
    let folder = tempfile::tempdir().unwrap();
    let cubins = CubinCache::open(folder.path(), 3 * one).unwrap();
    for size in 1..=6 {
        let options = [options("sm_80"), vec![format!("-DSIZE={size}")]].concat();
        compile_cached(&cubins, &AXPY, &options);
        assert!(compile_cached(&cubins, &AXPY, &options).1);
    }
    let entries = std::fs::read_dir(folder.path()).unwrap().count();
    assert!((1..=2).contains(&entries), "{entries}");
}

#[test]
fn disassemblers_read_a_cubin() {
    let tools = fetch_disassemblers(&cache()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("axpy.cubin");
    std::fs::write(&file, nvrtc().compile(&AXPY, &options("sm_90a")).unwrap().cubin).unwrap();
    for (tool, option) in [(&tools.cuobjdump, "--dump-sass"), (&tools.nvdisasm, "--print-code")] {
        let output = Command::new(tool).arg(option).arg(&file).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("FFMA"), "{}: {output:?}", tool.display());
    }
}

/// This program as a child in a role, with nothing in its environment that leads to an NVRTC.
fn child(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "in_a_child", "--nocapture"]).env(ROLE, role);
    for name in
        ["TILEWRIGHT_NVRTC", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH"]
    {
        command.env_remove(name);
    }
    command
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What children do. Run as a test of its own it does nothing.
#[test]
fn in_a_child() {
    match std::env::var(ROLE).as_deref() {
        Ok("load") => match Nvrtc::load(Path::new("/nowhere")) {
            Ok(nvrtc) => println!("loaded {}", nvrtc.path().display()),
            Err(error) => println!("refused {error}"),
        },
        Ok("write") => {
            let cubins = CubinCache::open(std::env::var_os(CUBINS).unwrap(), 1 << 20).unwrap();
            for _ in 0..5 {
                let (found, _) = compile_cached(&cubins, &AXPY, &options("sm_80"));
                assert!(symbols(&found.cubin).iter().any(|name| name == "axpy"));
                // So that the next round writes again, at the same time as the other processes.
                let key = CubinCache::key(nvrtc().version(), &options("sm_80"), &AXPY);
                let _ = std::fs::write(cubins.folder().join(key).join("kernel.cubin"), "damaged");
            }
            println!("wrote");
        }
        _ => {}
    }
}

#[test]
fn eight_processes_write_one_key_at_once() {
    nvrtc();
    let folder = tempfile::tempdir().unwrap();
    let writers: Vec<_> = (0..8)
        .map(|_| {
            let mut command = child("write");
            command.env("TILEWRIGHT_NVRTC", nvrtc().path()).env(CUBINS, folder.path());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for writer in writers {
        assert!(stdout(&writer.wait_with_output().unwrap()).contains("wrote"));
    }
    let cubins = CubinCache::open(folder.path(), 1 << 20).unwrap();
    let (entry, _) = compile_cached(&cubins, &AXPY, &options("sm_80"));
    assert_eq!(compile_cached(&cubins, &AXPY, &options("sm_80")), (entry, true));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_library_on_the_loaders_path_is_found_with_its_file() {
    let library = fetch(&cache()).unwrap();
    let mut command = child("load");
    command.env("LD_LIBRARY_PATH", library.parent().unwrap());
    let text = stdout(&command.output().unwrap());
    assert!(text.contains(&format!("loaded {}", library.canonicalize().unwrap().display())), "{text}");
}

#[test]
fn a_chosen_library_wins_over_another_on_the_loaders_path() {
    let library = fetch(&cache()).unwrap();
    // The names that a loader would rather find; behind them is a library without NVRTC's functions.
    let other = library.with_file_name("libnvrtc-builtins.so.13.0");
    let folder = tempfile::tempdir().unwrap();
    for name in ["libnvrtc.so", "libnvrtc.so.13"] {
        std::os::unix::fs::symlink(&other, folder.path().join(name)).unwrap();
    }
    let mut command = child("load");
    command.env("LD_LIBRARY_PATH", folder.path()).env("TILEWRIGHT_NVRTC", library.parent().unwrap());
    let text = stdout(&command.output().unwrap());
    assert!(text.contains(&format!("loaded {}", library.display())), "{text}");
}

#[test]
fn a_broken_setting_is_refused_though_others_would_do() {
    let library = fetch(&cache()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libnvrtc.so.13");
    std::fs::write(&file, "not a library").unwrap();
    let mut command = child("load");
    command.env("LD_LIBRARY_PATH", library.parent().unwrap()).env("TILEWRIGHT_NVRTC", folder.path());
    let text = stdout(&command.output().unwrap());
    assert!(text.contains("refused TILEWRIGHT_NVRTC is") && text.contains(file.to_str().unwrap()), "{text}");
}

#[test]
fn a_library_without_its_builtins_is_refused_in_words() {
    let library = fetch(&cache()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(&library, folder.path().join("libnvrtc.so.13")).unwrap();
    let mut command = child("load");
    command.env("TILEWRIGHT_NVRTC", folder.path());
    let text = stdout(&command.output().unwrap());
    assert!(text.contains("refused TILEWRIGHT_NVRTC is") && text.contains("builtins"), "{text}");
}

#[test]
fn the_search_goes_on_after_a_library_that_does_not_work() {
    let library = fetch(&cache()).unwrap().canonicalize().unwrap();
    let builtins = library.with_file_name("libnvrtc-builtins.so.13.0");
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("lib64")).unwrap();
    let broken = home.path().join("lib64/libnvrtc.so.13");
    // The loader finds a link; the builtins are where it leads to only.
    let loader = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(&library, loader.path().join("libnvrtc.so.13")).unwrap();

    let damages: [&dyn Fn(); 3] = [
        // The very library, without builtins: once it is open the loader would give it for the name.
        &|| std::fs::copy(&library, &broken).map(drop).unwrap(),
        &|| std::fs::copy(&builtins, &broken).map(drop).unwrap(),
        &|| std::fs::write(&broken, "not a library").unwrap(),
    ];
    for damage in damages {
        damage();
        let mut command = child("load");
        command.env("CUDA_HOME", home.path()).env("LD_LIBRARY_PATH", loader.path());
        let text = stdout(&command.output().unwrap());
        assert!(text.contains(&format!("loaded {}", library.display())), "{text}");
    }
}
