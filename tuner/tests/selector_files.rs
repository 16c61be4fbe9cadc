//! Selectors as data: equal to the emitted modules, and refused with the reason where they are damaged or make no sense.

use proptest::prelude::*;
use std::path::PathBuf;
use tilewright_heuristics::data::{SelectorFile, TreeEntry};
use tilewright_heuristics::generated::SELECTORS;
use tilewright_heuristics::{BatchShape, Selector};
use tilewright_tuner::emit::{Heuristics, module_name};
use tilewright_tuner::store::DeviceRecord;

fn path(selector: &Selector) -> PathBuf {
    let workspace = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../heuristics");
    let device = &selector.device;
    let record = DeviceRecord {
        backend: device.backend.name().to_owned(),
        name: device.name.to_owned(),
        capability: device.capability.to_owned(),
        units: device.units,
    };
    Heuristics::at(workspace).selector_path(&module_name(&record))
}

fn file(selector: &Selector) -> SelectorFile {
    serde_json::from_slice(&std::fs::read(path(selector)).unwrap()).unwrap()
}

/// Batches around the measured ones: inside, on the borders, and beyond.
fn batch(domain: (BatchShape, BatchShape)) -> impl Strategy<Value = BatchShape> {
    let bounds: Vec<_> = domain.0.values().into_iter().zip(domain.1.values()).collect();
    let values: Vec<_> = bounds
        .into_iter()
        .map(|(min, max)| prop_oneof![4 => min..=max, 1 => Just(min), 1 => Just(max), 1 => any::<u32>()])
        .collect();
    let head_dim = prop_oneof![Just(64u32), Just(128), Just(256), Just(80)];
    (values, head_dim, 0..7u32).prop_map(|(values, head_dim, dtype)| BatchShape {
        head_dim,
        dtype,
        ..BatchShape::from_values(values.try_into().unwrap())
    })
}

#[test]
fn loaded_selectors_answer_as_the_emitted_ones() {
    for emitted in SELECTORS {
        let loaded = Selector::load(&path(emitted)).unwrap();
        assert_eq!(
            (loaded.device, loaded.domain, loaded.prices),
            (emitted.device, emitted.domain, emitted.prices)
        );
        assert_eq!((loaded.sets, loaded.safe_default), (emitted.sets, emitted.safe_default));
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(20_000));
        let strategy = (batch((emitted.domain.min, emitted.domain.max)), any::<u64>());
        runner
            .run(&strategy, |(batch, runnable)| {
                prop_assert_eq!(loaded.select(&batch), emitted.select(&batch));
                prop_assert_eq!(
                    loaded.select_among(&batch, runnable),
                    emitted.select_among(&batch, runnable)
                );
                prop_assert_eq!(loaded.explain(&batch), emitted.explain(&batch));
                Ok(())
            })
            .unwrap();
    }
}

/// Without what leaves say of fitted batches.
fn bare(tree: &TreeEntry) -> TreeEntry {
    match tree {
        TreeEntry::Split { feature, at_most, low, high } => TreeEntry::Split {
            feature: feature.clone(),
            at_most: *at_most,
            low: Box::new(bare(low)),
            high: Box::new(bare(high)),
        },
        TreeEntry::Leaf { ranked, .. } => {
            TreeEntry::Leaf { ranked: ranked.clone(), batches: 0, regret_percent: None }
        }
    }
}

#[test]
fn a_tree_is_read_off_a_selector_of_either_form() {
    for emitted in SELECTORS {
        let tree = Some(bare(&file(emitted).tree));
        for selector in [emitted, Selector::load(&path(emitted)).unwrap()] {
            assert_eq!(TreeEntry::of(selector), tree, "{}", emitted.device.name);
        }
    }
}

#[test]
fn a_tree_that_no_fit_makes_is_not_read_off() {
    let folder = tempfile::tempdir().unwrap();
    for (at_most, inner) in [(100, 100), (100, 7), (u32::MAX, 0)] {
        let mut file = file(SELECTORS[0]);
        let leaf = || Box::new(TreeEntry::Leaf { ranked: vec![0], batches: 1, regret_percent: None });
        let split =
            |at_most, high| TreeEntry::Split { feature: "trees".to_owned(), at_most, low: leaf(), high };
        // Nothing of more than 100 trees has at most 100, or at most 7.
        file.tree = split(at_most, Box::new(split(inner, leaf())));
        let path = folder.path().join("contradiction.json");
        std::fs::write(&path, file.to_text()).unwrap();
        assert_eq!(TreeEntry::of(Selector::load(&path).unwrap()), None, "{at_most}, {inner}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_the_reason() {
    type Spoil = fn(&mut SelectorFile);
    let cases: [(Spoil, &str); 11] = [
        (|file| file.schema = 2, "its schema is 2"),
        (|file| file.device.backend = "tpu".to_owned(), "`tpu`"),
        (|file| file.sets.clear(), "sets: 0 of them"),
        (|file| file.sets[0] = "m16".to_owned(), "sets: `m16`"),
        (|file| file.safe_default = "fast".to_owned(), "safe_default"),
        (|file| file.prices.retain(|name, _| name != "flop"), "prices: `flop` is missing"),
        (|file| file.prices.extend([("speed".to_owned(), 1)]), "prices: `speed` is unknown"),
        (|file| file.domain_min.retain(|name, _| name != "requests"), "domain_min: `requests` is missing"),
        (|file| file.feasible[0].dtype = 99, "feasible: 99 is no code"),
        (|file| file.feasible[0].sets.push(63), "feasible: there is no set 63"),
        (
            |file| {
                let leaf = || Box::new(TreeEntry::Leaf { ranked: vec![0], batches: 1, regret_percent: None });
                file.tree =
                    TreeEntry::Split { feature: "colour".to_owned(), at_most: 1, low: leaf(), high: leaf() };
            },
            "tree: `colour` is no feature",
        ),
    ];
    for (spoil, reason) in cases {
        let mut file = file(SELECTORS[0]);
        spoil(&mut file);
        let error = Selector::from_json(file.to_text().as_bytes()).unwrap_err();
        assert!(error.contains(reason), "{error} instead of {reason}");
    }
    let mut edited = file(SELECTORS[0]);
    edited.device.units += 1;
    let edited = serde_json::to_vec(&edited).unwrap();
    assert!(Selector::from_json(&edited).unwrap_err().contains("checksum"));
}

#[test]
fn deep_and_long_files_are_refused() {
    let (open, close) = ("{\"split\":{\"low\":".repeat(50_000), "}}".repeat(50_000));
    let nested = format!("{{\"schema\":1,\"tree\":{open}1{close}}}");
    assert!(Selector::from_json(nested.as_bytes()).unwrap_err().contains("recursion limit"));
    let folder = tempfile::tempdir().unwrap();
    let long = folder.path().join("long.json");
    std::fs::write(&long, " ".repeat(3 << 20)).unwrap();
    assert!(Selector::load(&long).unwrap_err().to_string().contains("longer than 1024 KB"));
    let missing = Selector::load(&folder.path().join("none.json")).unwrap_err().to_string();
    assert!(missing.contains("none.json: cannot read"), "{missing}");
    std::fs::copy(path(SELECTORS[0]), folder.path().join("good.json")).unwrap();
    let all = Selector::load_folder(folder.path()).unwrap();
    assert_eq!(all.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false]);
}

proptest! {
    #[test]
    fn a_damaged_file_is_refused_or_says_the_same(at in any::<prop::sample::Index>(), bit in 0..8u32) {
        let good = file(SELECTORS[0]);
        let mut text = good.to_text().into_bytes();
        let at = at.index(text.len());
        text[at] ^= 1 << bit;
        if Selector::from_json(&text).is_ok() {
            let read: SelectorFile = serde_json::from_slice(&text).unwrap();
            prop_assert_eq!(read.to_text(), good.to_text(), "only white space may differ");
        }
    }

    #[test]
    fn any_bytes_are_an_error_and_no_panic(text in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Selector::from_json(&text).is_err());
    }
}
