//! Usage read from real cubins, and from damaged ones.
//!
//! `cubins/usage.cu` was compiled by NVRTC 13.0.88 with `--gpu-architecture=ARCH --ptxas-options=-v --std=c++17`; beside each
//! cubin lies the log. The expected figures are those of `cuobjdump --dump-resource-usage` (13.2.51: REG, STACK, SHARED), but:
//!
//! - for `sm_90a` and `sm_100a` it prints 5120 bytes of shared memory where the source declares 4096 and ptxas reports 4096:
//!   the section holds the system's 1024 as well;
//! - parameters are the source's (two pointers and an int; a pointer and a float), as is the launch bound;
//! - code is the size of `.text.KERNEL` by `readelf -S`.

use proptest::prelude::*;
use tilewright_kernel_templates::toolchain::{CubinError, KernelUsage, kernel_usage, parse_ptxas_log};

struct Fixture {
    arch: &'static str,
    cubin: &'static [u8],
    log: &'static str,
    heavy: KernelUsage,
    light: KernelUsage,
}

macro_rules! fixture {
    ($arch:literal, heavy: ($registers:expr, $local:expr, $code:expr), light: $light_registers:expr) => {
        Fixture {
            arch: $arch,
            cubin: include_bytes!(concat!("cubins/usage.", $arch, ".cubin")),
            log: include_str!(concat!("cubins/usage.", $arch, ".log")),
            heavy: KernelUsage {
                registers: $registers,
                static_shared_bytes: 4096,
                local_bytes: $local,
                parameter_bytes: 20,
                max_threads: 1024,
                code_bytes: $code,
            },
            light: KernelUsage {
                registers: $light_registers,
                static_shared_bytes: 0,
                local_bytes: 0,
                parameter_bytes: 12,
                max_threads: 0,
                code_bytes: 384,
            },
        }
    };
}

const FIXTURES: [Fixture; 4] = [
    fixture!("sm_80", heavy: (32, 240, 5376), light: 8),
    fixture!("sm_89", heavy: (64, 40, 5888), light: 8),
    fixture!("sm_90a", heavy: (32, 240, 5376), light: 10),
    fixture!("sm_100a", heavy: (32, 240, 5504), light: 10),
];

#[test]
fn usage_is_what_cuobjdump_prints() {
    for fixture in &FIXTURES {
        let usage = kernel_usage(fixture.cubin).unwrap();
        assert_eq!(usage.len(), 2, "{}", fixture.arch);
        assert_eq!(usage["heavy"], fixture.heavy, "{}", fixture.arch);
        assert_eq!(usage["light"], fixture.light, "{}", fixture.arch);
    }
}

#[test]
fn the_log_agrees_with_the_cubin_and_adds_the_spills() {
    let spills = [268, 60, 268, 280];
    for (fixture, spilled) in FIXTURES.iter().zip(spills) {
        let reports = parse_ptxas_log(fixture.log);
        assert_eq!(reports.len(), 2, "{}", fixture.arch);
        for (kernel, usage) in [("heavy", fixture.heavy), ("light", fixture.light)] {
            let report = reports[kernel];
            assert_eq!(report.registers, usage.registers, "{} {kernel}", fixture.arch);
            assert_eq!(report.static_shared_bytes, usage.static_shared_bytes, "{} {kernel}", fixture.arch);
            assert_eq!(report.stack_bytes, usage.local_bytes, "{} {kernel}", fixture.arch);
        }
        let heavy = reports["heavy"];
        assert_eq!((heavy.spill_store_bytes, heavy.spill_load_bytes), (spilled, spilled), "{}", fixture.arch);
        assert_eq!(reports["light"].spill_store_bytes, 0, "{}", fixture.arch);
    }
}

#[test]
fn a_cubin_may_start_anywhere_in_memory() {
    let mut shifted = vec![0];
    shifted.extend_from_slice(FIXTURES[0].cubin);
    assert_eq!(kernel_usage(&shifted[1..]), kernel_usage(FIXTURES[0].cubin));
}

#[test]
fn what_is_no_cubin_is_told_so() {
    let ptx = b".version 9.0\n.target sm_80\n.address_size 64\n.visible .entry light() { ret; }\n";
    for bytes in [&ptx[..], b"", b"\x7fELF", &FIXTURES[0].cubin[..63]] {
        let error = kernel_usage(bytes).unwrap_err();
        assert!(matches!(error, CubinError::NotElf { .. }), "{error}");
        assert!(error.to_string().contains("not to PTX"), "{error}");
    }
    let mut other = FIXTURES[0].cubin.to_vec();
    other[18] = 62;
    assert_eq!(kernel_usage(&other), Err(CubinError::NotCubin { machine: 62 }));
}

#[test]
fn registers_that_disagree_are_not_believed() {
    // The header of .text.heavy is section 16 of the table at e_shoff; sh_info lies 44 bytes in, the registers in its top byte.
    let mut cubin = FIXTURES[0].cubin.to_vec();
    let table = usize::try_from(u64::from_le_bytes(cubin[40..48].try_into().unwrap())).unwrap();
    cubin[table + 16 * 64 + 44 + 3] = 40;
    let expected = CubinError::RegistersDisagree { kernel: "heavy".into(), info: 32, header: 40 };
    assert_eq!(kernel_usage(&cubin), Err(expected));
}

#[test]
fn no_prefix_of_a_cubin_passes_for_one() {
    for fixture in &FIXTURES {
        // The section table lies behind all sections; only the program headers, which are not read, lie behind it.
        let cubin = fixture.cubin;
        let table = usize::try_from(u64::from_le_bytes(cubin[40..48].try_into().unwrap())).unwrap();
        let sections = usize::from(u16::from_le_bytes(cubin[60..62].try_into().unwrap()));
        for length in 0..table + 64 * sections {
            assert!(kernel_usage(&cubin[..length]).is_err(), "{} cut at {length}", fixture.arch);
        }
    }
}

proptest! {
    #[test]
    fn damage_never_panics(
        which in 0..FIXTURES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..16),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut cubin = FIXTURES[which].cubin.to_vec();
        for (at, byte) in changes {
            let at = at.index(cubin.len());
            cubin[at] = byte;
        }
        if let Some(cut) = cut {
            cubin.truncate(cut.index(cubin.len() + 1));
        }
        if let Err(error) = kernel_usage(&cubin) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    // Most of a cubin is code, which is not read: this aims at what is, the headers, names, symbols and attributes.
    #[test]
    fn damage_to_what_is_read_never_panics(
        which in 0..FIXTURES.len(),
        in_table in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut cubin = FIXTURES[which].cubin.to_vec();
        let table = usize::try_from(u64::from_le_bytes(cubin[40..48].try_into().unwrap())).unwrap();
        let region = if in_table { table..cubin.len() } else { 0..0xe00 };
        for (at, byte) in changes {
            let at = region.start + at.index(region.len());
            cubin[at] = byte;
        }
        if let Err(error) = kernel_usage(&cubin) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn any_log_is_read(log in "(ptxas info|Compiling entry function '|Used |[0-9]{1,12}| registers| bytes smem| bytes stack frame|'|\n|.){0,40}") {
        parse_ptxas_log(&log);
    }
}
