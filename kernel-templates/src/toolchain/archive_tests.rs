//! Archives of made-up cubins: what is written comes back, and a file that is anything else is refused in words.

use super::*;
use crate::Class;
use crate::cuda::KernelOptions;
use proptest::prelude::*;
use std::fs;
use tilewright_heuristics::{Dtype, Tile};

const NVRTC: (u32, u32) = (13, 0);
const TILE: Tile = Tile::of("m16n64w4s2");

fn arch(name: &str) -> Arch {
    name.parse().unwrap()
}

fn class(head_dim: u32) -> Class {
    Class { head_dim, dtype: Dtype::F16 }
}

/// A kernel for `sm_90a`, its number as machine code.
fn entry(kernel: Kernel, number: u8) -> (Kernel, CachedCubin) {
    let cubin = (0..4000u32).map(|at| number ^ (at / 64) as u8).collect();
    (kernel, CachedCubin { cubin, log: format!("ptxas info: {number}") })
}

fn groups() -> Vec<ArchiveGroup> {
    let merges = [64, 128].map(|head_dim| Kernel::merge_states(&class(head_dim)));
    let [one, two] = merges;
    let append = Kernel::append(&class(64), None);
    vec![
        ArchiveGroup { arch: arch("sm_90a"), kernels: vec![entry(one.clone(), 1), entry(two, 2)] },
        ArchiveGroup { arch: arch("sm_80"), kernels: vec![entry(one, 3), entry(append, 4)] },
    ]
}

fn written() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cubins.bin");
    CubinArchive::write(&path, NVRTC, &groups()).unwrap();
    (folder, path)
}

fn message(path: &Path) -> String {
    CubinArchive::open(path).unwrap_err().to_string()
}

#[test]
fn what_is_written_comes_back() {
    let (_folder, path) = written();
    let archive = CubinArchive::open(&path).unwrap();
    assert_eq!((archive.len(), archive.nvrtc(), archive.path()), (4, NVRTC, path.as_path()));
    for ArchiveGroup { arch, kernels } in groups() {
        assert!(archive.serves(arch));
        for (kernel, cubin) in kernels {
            assert_eq!(archive.get(&kernel, arch), Some(cubin));
        }
    }
    assert!(!archive.serves(arch("sm_89")));
    assert_eq!(archive.archs(), [(arch("sm_80"), 2), (arch("sm_90a"), 2)]);
}

#[test]
fn others_may_read_what_was_written() {
    use std::os::unix::fs::PermissionsExt as _;
    let (folder, path) = written();
    let plain = folder.path().join("plain");
    fs::write(&plain, "").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&path), mode(&plain));
}

#[test]
fn alike_kernels_take_little_room() {
    let (_folder, path) = written();
    assert!(fs::metadata(&path).unwrap().len() < 3000);
}

#[test]
fn another_kernel_or_architecture_is_not_there() {
    let (_folder, path) = written();
    let archive = CubinArchive::open(&path).unwrap();
    let [(kernel, _), _] = &groups()[0].kernels[..] else { panic!("two kernels") };
    let changed = Kernel { text: format!("{} ", kernel.text), ..kernel.clone() };
    assert_eq!(archive.get(&changed, arch("sm_90a")), None);
    assert_eq!(archive.get(kernel, arch("sm_90")), None);
    assert_eq!(archive.get(kernel, arch("sm_100a")), None);
    let decode = Kernel::decode(&TILE, &class(64), KernelOptions::default(), arch("sm_90a"));
    assert_eq!(archive.get(&decode, arch("sm_90a")), None);
}

#[test]
fn an_archive_of_nothing_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none");
    let empty = ArchiveGroup { arch: arch("sm_90a"), kernels: Vec::new() };
    CubinArchive::write(&path, NVRTC, &[empty]).unwrap();
    let archive = CubinArchive::open(&path).unwrap();
    assert!(archive.is_empty() && !archive.serves(arch("sm_90a")));
}

#[test]
fn a_file_that_was_cut_is_refused_at_any_length() {
    let (_folder, path) = written();
    let whole = fs::read(&path).unwrap();
    for length in (0..whole.len()).step_by(7).chain([MAGIC.len(), HEAD, whole.len() - 1]) {
        fs::write(&path, &whole[..length]).unwrap();
        let error = message(&path);
        let reason = if length == 0 { "is no archive" } else { "was not written or copied whole" };
        assert!(error.contains(reason) && error.contains("cubins.bin"), "{length}: {error}");
    }
    fs::write(&path, [&whole[..], b"more"].concat()).unwrap();
    assert!(message(&path).contains(&format!("{} are expected", whole.len())), "{}", message(&path));
}

#[test]
fn other_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other");
    assert!(message(&path).contains("cannot read"));
    for content in [&b"PAR1"[..], &[0; 500], b"tilewright cubins 2\n\0\0\0\0 and more"] {
        fs::write(&path, content).unwrap();
        let error = message(&path);
        assert!(error.contains("no archive") && error.contains("cubin_archive"), "{error}");
    }
}

/// The archive with another index, which has its right hash.
fn with_index(path: &Path, change: impl Fn(&str) -> String) {
    let whole = fs::read(path).unwrap();
    let length = u64::from_le_bytes(whole[MAGIC.len()..][..8].try_into().unwrap()) as usize;
    let index = change(std::str::from_utf8(&whole[HEAD..][..length]).unwrap());
    let hash = blake3::hash(index.as_bytes());
    let parts = [&MAGIC[..], &(index.len() as u64).to_le_bytes(), hash.as_bytes(), index.as_bytes()];
    fs::write(path, [&parts.concat()[..], &whole[HEAD + length..]].concat()).unwrap();
}

#[test]
fn an_archive_of_other_sources_is_refused_with_both_hashes() {
    let (_folder, path) = written();
    let own = own_sources();
    with_index(&path, |index| index.replace(&own, "0123456789abcdef"));
    let error = message(&path);
    assert!(error.contains("sources 0123456789abcdef, this program has") && error.contains(&own), "{error}");
    assert!(error.contains("make it again"), "{error}");
}

#[test]
fn an_index_that_makes_no_sense_is_refused_by_its_line() {
    let changes: [(&str, &str); 5] = [
        ("nvrtc 13 0", "nvrtc 13"),
        ("group sm_90a", "group sm_"),
        ("group sm_80 ", "group sm_80 9"),
        ("kernel ", "kernel x 4294967296 18446744073709551615 1\nkernel "),
        ("group sm_90a", "kernel x 0 0 0\ngroup sm_90a"),
    ];
    for (from, to) in changes {
        let (_folder, path) = written();
        with_index(&path, |index| index.replacen(from, to, 1));
        let error = message(&path);
        assert!(error.contains("damaged") || error.contains("not written or copied whole"), "{to}: {error}");
    }
}

#[test]
fn one_process_opens_a_file_once() {
    let (_folder, path) = written();
    let [one, two] = [0; 2].map(|_| CubinArchive::load(&path).unwrap());
    assert!(std::ptr::eq(one, two));
    assert!(CubinArchive::load(&path.with_extension("none")).is_err());
}

proptest! {
    /// A flipped bit costs kernels, never gives wrong ones.
    #[test]
    fn a_damaged_archive_gives_what_was_written_or_nothing(at in any::<prop::sample::Index>(), bit in 0..8u8) {
        static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
        let mut bytes = WHOLE.get_or_init(|| {
            let (_folder, path) = written();
            fs::read(path).unwrap()
        }).clone();
        let at = at.index(bytes.len());
        bytes[at] ^= 1u8 << bit;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("damaged");
        fs::write(&path, &bytes).unwrap();
        let Ok(archive) = CubinArchive::open(&path) else { return Ok(()) };
        let mut lost = 0;
        for ArchiveGroup { arch, kernels } in groups() {
            for (kernel, cubin) in kernels {
                let found = archive.get(&kernel, arch);
                lost += usize::from(found.is_none());
                prop_assert!(found.is_none_or(|found| found == cubin));
            }
        }
        prop_assert_eq!(lost, 2, "of one group");
    }
}
