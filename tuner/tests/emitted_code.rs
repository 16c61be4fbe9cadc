//! Emitted code against the model it was emitted from: compiled by `rustc` with the vocabulary crate, then asked.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use tilewright_heuristics::{BatchShape, Domain, Prices, Tile, TileSetBuf};
use tilewright_tuner::emit::{Emitted, Header, Heuristics, SelectorModel, TreeModel, render, selector_file};
use tilewright_tuner::store::DeviceRecord;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in a workspace").to_owned()
}

/// Sets of one to four tiles.
fn sets(count: usize) -> Vec<TileSetBuf> {
    let tile = |i: u16, j: u16| Tile::new((1 + j) << (i % 5), 16 << (i % 5), 1 + i, 1 + i % 3);
    let set = |i: u16| TileSetBuf::of(&(0..=i % 4).map(|j| tile(i, j)).collect::<Vec<_>>());
    (0..count as u16).map(|i| set(i).expect("its tiles ascend")).collect()
}

fn leaf(portfolio: usize) -> impl Strategy<Value = TreeModel> {
    (prop::collection::vec(0..portfolio as u8, 1..4), 0..99usize, 0.0..1.0f64).prop_map(
        |(mut ranked, support, regret)| {
            ranked.dedup();
            TreeModel::Leaf { ranked, support, regret }
        },
    )
}

fn tree(portfolio: usize) -> impl Strategy<Value = TreeModel> {
    leaf(portfolio).prop_recursive(5, 32, 2, |inner| {
        let threshold = prop_oneof![0u32..40, Just(u32::MAX - 1), Just(0)];
        (0..BatchShape::COUNT, threshold, inner.clone(), inner).prop_map(|(feature, threshold, low, high)| {
            TreeModel::Split { feature, threshold, low: Box::new(low), high: Box::new(high) }
        })
    })
}

fn model() -> impl Strategy<Value = SelectorModel> {
    (1usize..=16)
        .prop_flat_map(|portfolio| {
            let masks = prop::collection::vec(0u64..1 << portfolio, 4);
            (Just(portfolio), tree(portfolio), masks, 0u32..8, 20u32..40)
        })
        .prop_map(|(portfolio, tree, masks, min, max)| SelectorModel {
            device: DeviceRecord {
                backend: "cpu".to_owned(),
                name: "Quoted \"CPU\" \\ x 2 threads".to_owned(),
                capability: "x86_64-avx2".to_owned(),
                units: 2,
            },
            domain: Domain {
                min: BatchShape::from_values([min; BatchShape::COUNT]),
                max: BatchShape::from_values([max; BatchShape::COUNT]),
            },
            sets: sets(portfolio),
            safe_default: Tile::of("m3n48w1s1"),
            prices: Prices { cta: u64::from(max), ..Prices::CPU },
            feasible: BTreeMap::from([
                ((8, 8), masks[0]),
                ((16, 8), masks[1]),
                ((16, 16), masks[2]),
                ((20, 20), masks[3]),
            ]),
            tree,
        })
}

fn random_models(count: usize) -> Vec<SelectorModel> {
    let mut runner = TestRunner::deterministic();
    (0..count)
        .map(|_| model().new_tree(&mut runner).expect("the strategy has no filters").current())
        .collect()
}

fn header() -> Header {
    vec!["device and counts".to_owned(), String::new(), "two\nlines".to_owned()]
}

/// Shapes on a grid around every threshold that matters, inside and outside of the domain.
fn shapes() -> Vec<BatchShape> {
    let mut shapes = Vec::new();
    for class in [(8, 8), (16, 8), (16, 16), (20, 20), (16, 17), (0, 0)] {
        for first in (0..=42).chain([u32::MAX]) {
            for second in [0, 1, 7, 8, 15, 19, 20, 21, 30, 39, 40, 1 << 31] {
                let mut values = [20; BatchShape::COUNT];
                (values[0], values[1]) = (first, second);
                let of = |values| {
                    let shape = BatchShape::from_values(values);
                    BatchShape { head_dim: class.0, dtype: class.1, ..shape }
                };
                shapes.push(of(values));
                for (i, value) in values.iter_mut().enumerate() {
                    *value = first.wrapping_mul(3 + i as u32).wrapping_add(second) % (41 + i as u32);
                }
                shapes.push(of(values));
            }
        }
    }
    shapes
}

#[test]
fn emitted_code_equals_the_model_on_every_input() {
    let models = random_models(12);
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libtilewright_heuristics.rlib");
    run(Command::new("rustc")
        .args([
            "--edition",
            "2024",
            "--crate-type",
            "lib",
            "--crate-name",
            "tilewright_heuristics",
            "-O",
            "-o",
        ])
        .arg(&library)
        .arg(workspace().join("heuristics/src/lib.rs")));
    // The vocabulary is `crate` to a module inside of it, and the library to one outside.
    let mut program = String::from("extern crate tilewright_heuristics;\nuse tilewright_heuristics::*;\n");
    for (i, model) in models.iter().enumerate() {
        std::fs::write(folder.path().join(format!("m{i}.rs")), render(model, &header())).unwrap();
        program += &format!("#[deny(warnings)]\n#[path = \"m{i}.rs\"]\nmod m{i};\n");
    }
    // The set, and the questions on the way to it.
    program += "fn answer(selector: &Selector, shape: &BatchShape) -> String {\n    \
        let (set, path) = selector.explain(shape);\n    assert_eq!(set, selector.select(shape));\n    \
        let questions: Vec<String> = path.questions.iter().map(|q| format!(\"{}<={}\", q.feature, q.threshold)).collect();\n    \
        format!(\"{set},{},{}\", questions.join(\",\"), path.batches)\n}\n";
    program += "fn main() {\n    let selectors = [";
    program += &(0..models.len()).map(|i| format!("&m{i}::SELECTOR")).collect::<Vec<_>>().join(", ");
    program += "];\n    for line in std::io::stdin().lines() {\n        let line = line.unwrap();\n        \
        let values: Vec<u32> = line.split(' ').map(|v| v.parse().unwrap()).collect();\n        \
        let shape = BatchShape::from_values(values.try_into().unwrap());\n        \
        let tiles: Vec<String> = selectors.iter().map(|s| answer(s, &shape)).collect();\n        \
        println!(\"{}\", tiles.join(\" \"));\n    }\n}\n";
    let source = folder.path().join("ask.rs");
    std::fs::write(&source, program).unwrap();
    let binary = folder.path().join("ask");
    run(Command::new("rustc")
        .args(["--edition", "2024", "-O", "--extern"])
        .arg(format!("tilewright_heuristics={}", library.display()))
        .arg("-o")
        .arg(&binary)
        .arg(&source));

    let shapes = shapes();
    let questions: Vec<String> =
        shapes.iter().map(|shape| shape.values().map(|value| value.to_string()).join(" ")).collect();
    let input = folder.path().join("questions");
    std::fs::write(&input, questions.join("\n")).unwrap();
    let answers = Command::new(&binary).stdin(std::fs::File::open(&input).unwrap()).output().unwrap();
    let answers = String::from_utf8(answers.stdout).unwrap();
    assert_eq!(answers.lines().count(), shapes.len());
    for (shape, line) in shapes.iter().zip(answers.lines()) {
        for (model, answer) in models.iter().zip(line.split(' ')) {
            let (questions, support) = path(model, shape);
            let expected = format!("{},{questions},{support}", model.choose(shape));
            assert_eq!(answer, expected, "{shape:?} of {model:?}");
        }
    }
}

/// The questions that a model's tree asks about a shape, and the batches of the leaf.
fn path(model: &SelectorModel, shape: &BatchShape) -> (String, usize) {
    let (mut node, mut questions) = (&model.tree, Vec::new());
    loop {
        match node {
            TreeModel::Split { feature, threshold, low, high } => {
                questions.push(format!("{}<={threshold}", BatchShape::NAMES[*feature]));
                node = if shape.values()[*feature] <= *threshold { low } else { high };
            }
            TreeModel::Leaf { support, .. } => return (questions.join(","), *support),
        }
    }
}

#[test]
fn emitted_code_is_rustfmt_clean_and_reproducible() {
    let folder = tempfile::tempdir().unwrap();
    let configuration = workspace().join("rustfmt.toml");
    for (i, model) in random_models(12).iter().enumerate() {
        let text = render(model, &header());
        assert_eq!(text, render(&model.clone(), &header()));
        let path = folder.path().join(format!("m{i}.rs"));
        std::fs::write(&path, &text).unwrap();
        run(Command::new("rustfmt")
            .args(["--edition", "2024", "--check", "--config-path"])
            .arg(&configuration)
            .arg(&path));
        // A user's own workspace may have no configuration at all.
        run(Command::new("rustfmt").args(["--edition", "2024", "--check"]).arg(&path));
    }
}

#[test]
fn the_module_list_follows_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let heuristics = Heuristics::at(folder.path());
    let model = &random_models(1)[0];
    let text = render(model, &header());
    let json = selector_file(model, BTreeMap::new()).to_text();
    let [a, b] = ["a_device", "b_device"].map(|module| Emitted {
        module: module.to_owned(),
        rust: text.clone(),
        json: json.clone(),
    });
    heuristics.write_module(&b).unwrap();
    heuristics.write_module(&a).unwrap();
    let list = std::fs::read_to_string(folder.path().join("src/generated/mod.rs")).unwrap();
    insta::assert_snapshot!(list);
    let expected = [a, b];
    assert_eq!(heuristics.differences(&expected).unwrap(), Vec::<String>::new());

    std::fs::write(heuristics.module_path("a_device"), text.replace("DOMAIN", "DOMAINE")).unwrap();
    let differences = heuristics.differences(&expected).unwrap();
    assert!(differences.len() == 1 && differences[0].contains("a_device.rs: line"), "{differences:?}");
    let orphan = heuristics.differences(&expected[..1]).unwrap();
    assert!(orphan.iter().any(|line| line.contains("b_device.rs: no measurements")), "{orphan:?}");
}

#[test]
fn the_text_of_a_module_reads_well() {
    let split = |feature, threshold, low, high| TreeModel::Split {
        feature,
        threshold,
        low: Box::new(low),
        high: Box::new(high),
    };
    let leaf = |ranked: &[u8], support, regret| TreeModel::Leaf { ranked: ranked.to_vec(), support, regret };
    let model = SelectorModel {
        tree: split(1, 512, leaf(&[0], 12, 0.004), split(0, 8, leaf(&[1, 0], 1, 0.0), leaf(&[2], 7, 0.0123))),
        sets: sets(3),
        feasible: BTreeMap::from([((64, 0), 0b111), ((128, 0), 0b101)]),
        domain: Domain {
            min: BatchShape::from_values([1; BatchShape::COUNT]),
            max: BatchShape::from_values([8192; BatchShape::COUNT]),
        },
        device: DeviceRecord {
            backend: "cpu".to_owned(),
            name: "Example CPU x 2 threads".to_owned(),
            capability: "x86_64-avx2".to_owned(),
            units: 2,
        },
        safe_default: Tile::of("m4n64w1s1"),
        prices: Prices::CPU,
    };
    insta::assert_snapshot!(render(&model, &vec!["limits: threads 2".to_owned()]));
    // Prices are measured anew in each run: a hash that they changed would make every selector another.
    let priced = SelectorModel { prices: Prices::H200, ..model.clone() };
    assert_eq!(priced.choices(), model.choices());
    assert_ne!(render(&priced, &header()), render(&model, &header()));
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}\n{}\n{}", text(&output.stdout), text(&output.stderr));
}
