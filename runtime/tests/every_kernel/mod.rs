//! The suite's part about all kernels: tiles of every class, on every case and under every option. The classes of a head dimension take some 420
//! kernels, minutes of 16 cores: one dimension can be run at a time.

use crate::{backend, device, upload};
use std::collections::BTreeSet;
use tilewright_conformance::{self as conformance, ConformanceCase, options_of};
use tilewright_cuda::{CudaBackend, CudaDevice, CudaError};
use tilewright_heuristics::{Backend, Dtype, Fp8, MaskOptions, Tile};
use tilewright_kernel_templates::cuda::{KernelOptions, transposes};
use tilewright_kernel_templates::{Class, Limits, Space};

/// All classes; of e5m2, whose kernels differ from those of e4m3 in how they widen alone, one of each head dimension.
fn classes() -> impl Iterator<Item = Class> {
    let stands = |class: &Class| class.head_dim.is_multiple_of(128) == (class.dtype.query() == Dtype::F16);
    Class::all(Backend::Cuda).filter(move |class| class.dtype.fp8() != Some(Fp8::E5m2) || stands(class))
}

/// Tiles of every m, n, warps and stages that the class can run.
pub(crate) fn tiles(class: &Class, device: &CudaDevice) -> Vec<Tile> {
    Space::of(Backend::Cuda).feasible(class, &Limits::Cuda(device.limits().clone()))
}

/// Runs cases under tiles; panics with every failure.
fn check_all(backend: &mut CudaBackend, cases: Vec<ConformanceCase>, tiles: &[Tile]) {
    let device = backend.device().clone();
    let stream = device.context().new_stream().unwrap();
    let mut failures = Vec::new();
    let mut checked = 0;
    for case in cases {
        let mut case = upload(case, &device);
        let class = Class::of(&case.case.geometry);
        let prepared = backend.prepare(tiles, &class, case.options(), || ()).unwrap();
        for (tile, prepared) in tiles.iter().zip(prepared) {
            match prepared {
                Ok(_) => {}
                // Options take registers of their own: a tile may have room for plain attention only.
                Err(CudaError::Infeasible { .. }) => continue,
                Err(error) => panic!("{tile}: {error}"),
            }
            // As the case wants to be planned, and as engines plan.
            for planned in [case.case.options, device.plan_options()] {
                let outcome = case.run_on(backend, &stream, tile, case.options(), planned);
                let outcome = outcome.map_err(|error| error.to_string());
                let error = outcome.and_then(|(output, lse)| case.case.check(&output, &lse));
                checked += 1;
                match error {
                    Ok(error) if error < conformance::tolerance(class.dtype) => {}
                    Ok(error) => {
                        failures.push(format!("{class} {tile} {}: error {error:.1e}", case.case.name))
                    }
                    Err(error) => failures.push(format!("{class} {tile} {}: {error}", case.case.name)),
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} of {checked} fail:\n{}", failures.len(), failures.join("\n"));
    println!("{checked} pairs of case and tile are right");
}

#[test]
fn every_tile_of_the_usual_class_is_right_on_every_plain_case() {
    let (device, class) = (device(), Class { head_dim: 128, dtype: Dtype::F16 });
    let tiles = tiles(&class, &device);
    assert!(tiles.len() > 50);
    // Most of it is compiling, and comparing on the host.
    std::thread::scope(|scope| {
        for some in tiles.chunks(tiles.len().div_ceil(8)) {
            scope.spawn(move || {
                let cases =
                    conformance::cases(&class, 1).into_iter().filter(ConformanceCase::is_plain).collect();
                let device = self::device();
                check_all(&mut backend(&device), cases, some);
            });
        }
    });
}

#[test]
fn every_tile_that_is_prepared_passes_its_trial() {
    let device = device();
    let mut backend = backend(&device);
    let few = |class: &Class| -> Vec<Tile> {
        let all = tiles(class, &device);
        all.iter().copied().step_by(all.len() / 4).collect()
    };
    let each_options = [
        KernelOptions::for_pages(16),
        KernelOptions::for_pages(1),
        KernelOptions { mask: MaskOptions::ALL, sinks: true, ..KernelOptions::for_pages(16) },
    ];
    // All of them at once, on all cores.
    let wanted: Vec<(Tile, Class, KernelOptions)> = classes()
        .flat_map(|class| few(&class).into_iter().map(move |tile| (tile, class)))
        .flat_map(|(tile, class)| each_options.map(|options| (tile, class, options)))
        .collect();
    backend.prepare_all(&wanted).unwrap();
    for class in classes() {
        let all = tiles(&class, &device);
        let few = few(&class);
        for options in each_options {
            let prepared = backend.prepare(&few, &class, options, || ()).unwrap();
            let mut tried = 0;
            for tile in
                few.iter().zip(prepared).filter_map(|(tile, prepared)| prepared.is_ok().then_some(tile))
            {
                backend
                    .try_tile(tile, None, &class, options)
                    .unwrap_or_else(|error| panic!("{options:?}: {error}"));
                tried += 1;
            }
            assert!(tried > 0, "{class} {options:?}");
            // What was not prepared is not trusted either.
            let other = *all.iter().find(|tile| !few.contains(tile)).unwrap();
            let error = backend.try_tile(&other, None, &class, options).unwrap_err();
            assert!(matches!(error, CudaError::NotPrepared { .. }), "{error}");
        }
    }
}

/// The classes of a head dimension.
fn check_heads(of: u32) {
    // A thread a class: most of it is compiling, and comparing on the host.
    std::thread::scope(|scope| {
        for class in classes().filter(|class| class.head_dim == of) {
            scope.spawn(move || check_class(&class));
        }
    });
}

#[test]
fn heads_of_64_are_right_on_every_case_with_every_option() {
    check_heads(64);
}

#[test]
fn heads_of_96_are_right_on_every_case_with_every_option() {
    check_heads(96);
}

#[test]
fn heads_of_128_are_right_on_every_case_with_every_option() {
    check_heads(128);
}

#[test]
fn heads_of_192_are_right_on_every_case_with_every_option() {
    check_heads(192);
}

#[test]
fn heads_of_256_are_right_on_every_case_with_every_option() {
    check_heads(256);
}

#[test]
fn heads_of_512_are_right_on_every_case_with_every_option() {
    check_heads(512);
}

/// A few tiles of a class, on every case and under every option.
fn check_class(class: &Class) {
    let device = device();
    let all = tiles(class, &device);
    // The last ones have the most rows: warpgroups that part. Transposed products are those of few tiles.
    let transposed = all.iter().find(|tile| transposes(tile, class, KernelOptions::for_pages(16)));
    let few: Vec<Tile> =
        all.iter().step_by(all.len() / 6).chain(all.last()).chain(transposed).copied().collect();
    let mut cases = conformance::cases(class, 2);
    cases.extend(conformance::tile_cases(class, &few[0], 3));
    let options: BTreeSet<KernelOptions> = cases.iter().map(options_of).collect();
    assert!(options.len() >= 4, "{options:?}");
    check_all(&mut backend(&device), cases, &few);
}
