//! Good files, bad files, and what comes of them.

use super::*;
use crate::{Batch, catalogue};
use proptest::prelude::*;
use std::collections::BTreeSet;
use tilewright_heuristics::{Backend, Dtype};

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(text, "test.yaml")
}

fn error(text: &str) -> String {
    parse(text)
        .and_then(|scenario| scenario.batches()?.iter().map(BatchSpec::build).collect::<Result<Vec<_>, _>>())
        .unwrap_err()
        .to_string()
}

fn build(text: &str) -> Vec<Batch> {
    parse(text).unwrap().batches().unwrap().iter().map(|spec| spec.build().unwrap()).collect()
}

#[test]
fn the_catalogue_holds_what_it_promises() {
    for backend in [Backend::Cpu, Backend::Cuda] {
        assert_catalogue(&catalogue(backend));
    }
    let lengths: Vec<u32> = build(include_str!("../catalogue/mix-lengths.yaml"))[0].seq_lens.clone();
    assert!(lengths.contains(&1) && lengths.contains(&100_000));
}

fn assert_catalogue(scenarios: &[Scenario]) {
    let names: BTreeSet<&str> = scenarios.iter().map(Scenario::name).collect();
    assert_eq!(names.len(), scenarios.len());
    let fig9 = scenarios.iter().find(|scenario| scenario.name() == "pat-fig9").unwrap();
    assert_eq!(fig9.batches().unwrap().len(), 80);
    let mut workloads = BTreeSet::new();
    for spec in scenarios.iter().flat_map(|scenario| scenario.batches().unwrap()) {
        assert!(workloads.insert(spec.name().to_owned()), "{} twice", spec.name());
        let batch = spec.scaled(1 << 20).build().unwrap();
        assert!(batch.unique_bytes() <= batch.unshared_bytes());
        let pages: BTreeSet<i32> =
            (0..batch.requests()).flat_map(|request| batch.row(request).to_vec()).collect();
        assert_eq!(pages, (0..batch.pages as i32).collect(), "every page is used: {}", batch.name);
    }
}

#[test]
fn the_catalogue_has_batches_to_fit_and_to_judge_by() {
    let whole = |backend, held_out| -> Vec<BatchSpec> {
        let scenarios = catalogue(backend).into_iter().filter(|scenario| !scenario.is_pack_sweep());
        let chosen = scenarios.filter(|scenario| scenario.held_out() == held_out);
        chosen.flat_map(|scenario| scenario.batches().unwrap()).collect()
    };
    for scenario in [Backend::Cpu, Backend::Cuda].into_iter().flat_map(catalogue) {
        assert_eq!(scenario.invariant(), scenario.held_out(), "{}", scenario.name());
    }
    let (fit, held_out) = (whole(Backend::Cuda, false), whole(Backend::Cuda, true));
    assert!(fit.len() >= 300 && held_out.len() >= 200, "{} and {}", fit.len(), held_out.len());
    assert!(
        fit.iter().all(|one| held_out.iter().all(|other| one.shape != other.shape)),
        "a shape is in both"
    );
    let count = |specs: &[BatchSpec], scenario: &str| {
        specs.iter().filter(|spec| spec.provenance.scenario == scenario).count()
    };
    for (specs, scenario, batches) in [
        (&fit, "tenants-fit", 240),
        (&fit, "tenants-dims-fit", 300),
        (&fit, "trees-many-fit", 88),
        (&fit, "conversation-fit", 48),
        (&fit, "fp8-fit", 96),
        (&fit, "fp8-trees-fit", 144),
        (&fit, "fp8-trees-many-fit", 112),
        (&fit, "tenants-512-fit", 48),
        (&fit, "fp8-dims-fit", 120),
        (&held_out, "tenants-512-held-out", 24),
        (&held_out, "fp8-dims-held-out", 30),
        (&held_out, "fp8-held-out", 48),
        (&held_out, "fp8-trees-held-out", 40),
        (&held_out, "pat-fig9", 80),
        (&held_out, "tenants-held-out", 80),
        (&held_out, "conversation-held-out", 48),
    ] {
        assert_eq!(count(specs, scenario), batches, "{scenario}");
    }
    let heads = |specs: &[BatchSpec]| -> BTreeSet<(u32, u32)> {
        specs.iter().map(|spec| (spec.geometry().q_heads, spec.geometry().kv_heads)).collect()
    };
    let unseen: Vec<_> = heads(&held_out).difference(&heads(&fit)).copied().collect();
    assert_eq!(unseen, [(32, 2), (96, 8)]);
    for (held_out, batches) in [(false, [120, 47]), (true, [40, 23])] {
        let cpu = whole(Backend::Cpu, held_out);
        let of = |scenario: &'static str| cpu.iter().filter(move |spec| spec.name().starts_with(scenario));
        assert_eq!(["tenants-", "conversation-"].map(|scenario| of(scenario).count()), batches);
        let sizes: Vec<u64> =
            of("tenants-").chain(of("conversation-")).map(BatchSpec::unique_bytes).collect();
        assert!(sizes.iter().all(|&bytes| bytes <= 16 << 20), "they are measured as they are: {sizes:?}");
    }
}

#[test]
fn what_was_recorded_before_keeps_its_hash() {
    for (name, hash) in [
        ("pat-fig9", "1ba6876e7c4febed"),
        ("mix-roots", "75b6c576d07c3924"),
        ("conversation", "d7bf907c0ff5444c"),
    ] {
        let scenarios = catalogue(Backend::Cuda);
        let scenario = scenarios.iter().find(|scenario| scenario.name() == name).unwrap();
        assert_eq!(scenario.hash(), hash, "{name}");
    }
}

#[test]
fn a_mix_is_called_by_its_scenario() {
    let spec = &parse("name: t\nmix: [{tokens: 3}]\n").unwrap().batches().unwrap()[0];
    assert_eq!((spec.name(), spec.variant()), ("t/mix/32x8", "t"));
}

#[test]
fn bytes_of_pats_trees_are_those_of_their_tokens() {
    let batch = &build("name: t\ntrees: ['1,4,8_64,32,96']\n")[0];
    assert_eq!(batch.requests(), 8);
    assert_eq!(batch.seq_lens, [192; 8]);
    // 32/8 heads of 128 in f16: 4 KB a token.
    assert_eq!(batch.unique_bytes(), (64 + 4 * 32 + 8 * 96) * 4096);
    assert_eq!(batch.unshared_bytes(), 8 * 192 * 4096);
    assert_eq!(batch.row(0)[..3], batch.row(1)[..3]);
    assert_ne!(batch.row(0)[2], batch.row(2)[2]);
    assert_eq!(batch.row(0)[..2], batch.row(7)[..2]);
}

#[test]
fn the_same_file_gives_the_same_batch_on_every_machine() {
    let text = "name: pinned\nseed: 7\ntrees: ['1,4_64,96']\n";
    let batches = build(text);
    assert_eq!(batches, build(text));
    insta::assert_snapshot!(format!("{:?}", batches[0].page_table), @"[5, 1, 12, 8, 11, 5, 1, 7, 4, 3, 5, 1, 13, 9, 6, 5, 1, 0, 10, 2]");
    assert_ne!(batches[0].page_table, build(&text.replace("seed: 7", "seed: 8"))[0].page_table);
}

#[test]
fn the_hash_is_that_of_the_content() {
    let hash = |text: &str| parse(text).unwrap().hash().to_owned();
    let text = "name: t\ntrees: ['1_32']\nseed: 1\n";
    assert_eq!(hash(text), hash("# a comment\nseed: 1\nname: t\ntrees:\n- 1_32\n"));
    assert_ne!(hash(text), hash(&text.replace("seed: 1", "seed: 2")));
}

#[test]
fn requests_may_end_inside_of_a_shared_node() {
    let text = "name: t\nmix:\n- tokens: 96\n  ends_inside: [1, 40]\n  children:\n  - tokens: 5\n";
    let batch = &build(text)[0];
    assert_eq!(batch.seq_lens, [1, 40, 101]);
    assert_eq!((batch.row(0).len(), batch.row(1).len(), batch.row(2).len()), (1, 2, 4));
    assert_eq!(batch.row(1), &batch.row(2)[..2]);
    assert_eq!(batch.unique_bytes(), 101 * 4096);
}

#[test]
fn requests_of_a_pack_may_have_tokens_of_their_own() {
    let text = "name: t\nheads: [[8, 2]]\npacks:\n  rows: [4, 12]\n  kv_len: [64]\n  packs: [2]\n  own: [0, 40]\n  max_tokens: 400\n";
    let batches = build(text);
    // A request alone has no tokens of its own besides those that it does not share.
    let found: Vec<_> =
        batches.iter().map(|batch| (batch.name.as_str(), batch.requests(), batch.seq_lens[0])).collect();
    let names =
        ["t/rows-4-kv-64-packs-2/8x2", "t/rows-12-kv-64-packs-2/8x2", "t/rows-12-kv-64-packs-2-own-40/8x2"];
    assert_eq!(found, [(names[0], 2, 64), (names[1], 6, 64), (names[2], 6, 104)]);
    let own = &batches[2];
    assert_eq!(own.row(0)[..2], own.row(1)[..2]);
    assert!(own.row(0)[2..].iter().all(|page| !own.row(1).contains(page)));
    assert!(own.row(0).iter().all(|page| !own.row(3).contains(page)));
    let spec = &parse(text).unwrap().batches().unwrap()[2];
    assert_eq!(spec.unique_bytes(), own.unique_bytes());
}

#[test]
fn a_sweep_gives_packs_of_identical_requests() {
    let text = "name: t\nheads: [[8, 2]]\npacks:\n  rows: [2, 8]\n  kv_len: [64]\n  packs: [3]\n  points: [{rows: 4, kv_len: 33, packs: 1}]\n";
    let scenario = parse(text).unwrap();
    assert!(scenario.is_pack_sweep());
    let batches = build(text);
    // Two rows are half a request under a ratio of four.
    assert_eq!(batches.iter().map(Batch::requests).collect::<Vec<_>>(), [6, 1]);
    assert_eq!(batches[0].row(0), batches[0].row(1));
    assert_ne!(batches[0].row(0), batches[0].row(2));
}

#[test]
fn errors_name_file_line_key_and_the_nearest_key() {
    let good = "name: t\nseed: 1\ntrees:\n- 1,4_32,32\n";
    for (from, to, expected) in [
        ("seed", "sead", vec!["test.yaml:2:", "unknown field `sead`", "did you mean `seed`?"]),
        ("trees", "treees", vec!["test.yaml:3:", "did you mean `trees`?"]),
        ("seed: 1", "seed: one", vec!["test.yaml:2:", "seed", "a whole number"]),
        ("seed: 1", "seed: -1", vec!["test.yaml:2:", "seed"]),
        ("seed: 1", "heads: [[32, 5]]", vec!["test.yaml:2:", "multiple of KV heads"]),
        ("seed: 1", "heads: [[32, 0]]", vec!["test.yaml:2:", "from 1 to 1024"]),
        (
            "seed: 1",
            "dtypes: [fp16]",
            vec!["test.yaml:2:", "`fp16` is not an element type", "did you mean `f16`?"],
        ),
        ("seed: 1", "head_dims: [80]", vec!["test.yaml:2:", "64, 96, 128, 192, 256 or 512"]),
        ("seed: 1", "page_sizes: [0]", vec!["test.yaml:2:", "from 1 to 4096"]),
        ("seed: 1", "page_sizes: []", vec!["test.yaml:2:", "must not be empty"]),
        ("seed: 1", "seed: 1\nseed: 2", vec!["test.yaml:3:", "duplicate", "seed"]),
        ("1,4_32,32", "1,4_32", vec!["test.yaml:4:", "2 levels of nodes, 1 of tokens"]),
        ("1,4_32,32", "1,4_33,32", vec!["test.yaml:4:", "33 tokens does not fill whole pages of 32"]),
        ("1,4_32,32", "4000000_32", vec!["test.yaml:4:", "requests are more than"]),
        ("name: t", "name: a/b", vec!["test.yaml:1:", "letters, digits"]),
        ("name: t\n", "", vec!["missing field `name`"]),
        ("trees:\n- 1,4_32,32\n", "", vec!["`trees`, `mix`, `tenants`, `trace`, `packs` is missing"]),
        ("seed: 1", "mix: [{tokens: 3}]", vec!["only one of"]),
        (
            "trees:\n- 1,4_32,32",
            "mix:\n- tokens: 5\n  children:\n  - tokns: 3",
            vec!["test.yaml:6:", "did you mean `tokens`?"],
        ),
        (
            "trees:\n- 1,4_32,32",
            "mix: [{tokens: 5, ends_inside: [6]}]",
            vec!["test.yaml:3:", "mix[0]", "after 6 of 5 tokens"],
        ),
        ("trees:\n- 1,4_32,32", "packs: {rows: [4]}", vec!["test.yaml:3:", "together"]),
        (
            "trees:\n- 1,4_32,32",
            "packs: {points: [{rows: 3, kv_len: 5, packs: 1}]}",
            vec!["multiple of the GQA ratio"],
        ),
        (
            "trees:\n- 1,4_32,32",
            "trace: {max_batch: 1, tokens_per_second: 0, prefill_tokens_per_second: 1, at: [1]}",
            vec!["test.yaml:3:", "above 0"],
        ),
        (
            "trees:\n- 1,4_32,32",
            "trace: {max_batch: 1, tokens_per_second: 1, prefill_tokens_per_second: 1, at: [1]}",
            vec!["either `file` or `generate`"],
        ),
        (
            "trees:\n- 1,4_32,32",
            "trace: {file: none.jsonl, max_batch: 1, tokens_per_second: 1, prefill_tokens_per_second: 1, at: [1]}",
            vec!["test.yaml", "none.jsonl", "cannot read"],
        ),
        ("trees", ": [", vec!["test.yaml:3:"]),
    ] {
        let text = good.replace(from, to);
        let found = error(&text);
        for expected in expected {
            assert!(found.contains(expected), "`{expected}` is not in: {found}\n{text}");
        }
    }
}

#[test]
fn a_missing_file_is_named() {
    let error = Scenario::load("no/such.yaml").unwrap_err().to_string();
    assert!(error.starts_with("no/such.yaml: cannot read"), "{error}");
}

#[test]
fn a_trace_beside_the_file_is_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let generator = crate::Generator {
        requests: 50,
        requests_per_second: 2.0,
        turn_tokens: 900,
        output_tokens: 200,
        follow_ups: 0.5,
    };
    generator.generate(1).write(&folder.path().join("t.jsonl.gz")).unwrap();
    let path = folder.path().join("s.yaml");
    let text = "name: t\ntrace:\n  file: t.jsonl.gz\n  max_batch: 8\n  tokens_per_second: 20\n  prefill_tokens_per_second: 10000\n  at: [5, 10.5]\n";
    std::fs::write(&path, text).unwrap();
    let specs = Scenario::load(&path).unwrap().batches().unwrap();
    assert_eq!(specs.iter().map(BatchSpec::name).collect::<Vec<_>>(), ["t/at-5s/32x8", "t/at-10.5s/32x8"]);
    let batch = specs[1].build().unwrap();
    assert!((1..=8).contains(&batch.requests()) && batch.unique_bytes() < batch.unshared_bytes());
    std::fs::write(&path, text.replace("10.5", "100000")).unwrap();
    let error = Scenario::load(&path).unwrap().batches().unwrap_err().to_string();
    assert!(error.contains("decodes at 100000 s"), "{error}");
}

#[test]
fn scaling_shrinks_heads_then_requests_then_tokens() {
    let spec = &parse("name: t\ntrees: ['1,64_4096,1024']\n").unwrap().batches().unwrap()[0];
    let full = spec.unique_bytes();
    assert_eq!(spec.scaled(full), *spec);
    let scaled = spec.scaled(full / 8);
    assert_eq!((scaled.geometry().kv_heads, scaled.geometry().gqa_ratio()), (1, 4));
    assert_eq!(scaled.build().unwrap().provenance.scaling, "heads / 8");
    let small = spec.scaled(1 << 20).build().unwrap();
    assert!(small.unique_bytes() <= 1 << 20);
    assert_eq!(small.provenance.scaling, "heads / 8, requests / 16, tokens / 4");
    assert_eq!(small.requests(), 4);
}

/// A sweep of packs with all its keys.
const PACKS: &str = "\
name: packs-one-head
description: Pack shapes under one KV head, as under tensor parallelism.
heads: [[4, 1]]
packs:
  rows: [4, 64]
  kv_len: [128, 1024, 8192]
  packs: [1, 8, 64]
  own: [0, 40]
  max_tokens: 32768
  max_row_tokens: 262144
  points:
    - {rows: 4, kv_len: 131072, packs: 1}
    - {rows: 512, kv_len: 128, packs: 8}
";

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[ -~\n]{0,200}") {
        let _ = parse(&text).map(|scenario| scenario.batches());
    }

    #[test]
    fn no_damage_to_a_good_file_makes_it_panic(
        file in 0usize..6, at in 0usize..2000, cut in 0usize..20, insert in "[-0-9a-z:,\\[\\]{} \n_.]{0,6}"
    ) {
        let files = [
            include_str!("../catalogue/mix-roots.yaml"),
            PACKS,
            include_str!("../catalogue/conversation.yaml"),
            include_str!("../catalogue/batch-of-one.yaml"),
            include_str!("../catalogue/cpu/tenants-held-out.yaml"),
            include_str!("../catalogue/cuda/conversation-held-out.yaml"),
        ];
        let mut text = files[file].to_owned();
        let begin = at % text.len();
        let end = (begin + cut).min(text.len());
        text.replace_range(begin..end, &insert);
        if let Ok(scenario) = parse(&text) {
            for spec in scenario.batches().into_iter().flatten().take(4) {
                let _ = spec.scaled(1 << 18).build();
            }
        }
    }

    #[test]
    fn scaling_reaches_its_goal_or_says_so_by_its_size(
        nodes in prop::collection::vec(1u32..5, 1..4), tokens in prop::collection::vec(1u32..40, 4), mb in 1u64..64
    ) {
        let mut count = 1;
        let nodes: Vec<String> = nodes.iter().map(|n| { count *= n; count.to_string() }).collect();
        let tokens: Vec<String> = tokens[..nodes.len()].iter().map(|t| (t * 32).to_string()).collect();
        let text = format!("name: t\ntrees: ['{}_{}']\n", nodes.join(","), tokens.join(","));
        let spec = &parse(&text).unwrap().batches().unwrap()[0];
        let goal = mb << 14;
        let scaled = spec.scaled(goal).build().unwrap();
        prop_assert!(scaled.unique_bytes() <= goal.max(40 * 32 * 512));
        prop_assert_eq!(scaled.geometry.gqa_ratio(), 4);
    }
}

#[test]
fn a_batch_is_rebuilt_from_its_parts() {
    let text = "name: t\nheads: [[4, 1]]\ntrees: ['1,4_64,33', '8_96']\n";
    for batch in build(text) {
        let Batch { name, geometry, page_table, max_pages, seq_lens, pages, provenance, .. } = batch.clone();
        let again = Batch::from_pages(name, geometry, page_table, max_pages, seq_lens, pages, provenance);
        assert_eq!(again, batch);
        let Batch { name, geometry, max_pages, seq_lens, provenance, .. } = batch;
        let empty = Batch::from_pages(name, geometry, vec![-1, 7], max_pages, seq_lens, 0, provenance);
        assert_eq!(empty.unique_bytes(), 0, "pages that there are not hold nothing");
    }
}

#[test]
fn a_batch_in_another_layout_says_so_and_keeps_its_tree() {
    let spec = &parse("name: t\ntrees: ['1,4_64,33']\n").unwrap().batches().unwrap()[0];
    assert_eq!((spec.variant(), spec.geometry().page_size), ("1,4_64,33", 32));
    assert_eq!(spec.with_layout(Some(32), Some(Dtype::F16)), *spec, "nothing is another");
    let other = spec.with_layout(Some(16), Some(Dtype::Bf16));
    assert_eq!(other.name(), "t/1,4_64,33/32x8/p16/bf16");
    let (batch, before) = (other.build().unwrap(), spec.build().unwrap());
    assert_eq!((batch.geometry.page_size, batch.geometry.dtype), (16, Dtype::Bf16));
    assert_eq!(
        (batch.seq_lens.clone(), batch.unique_bytes()),
        (before.seq_lens.clone(), before.unique_bytes())
    );
    assert_eq!((batch.pages, before.pages), (4 + 4 * 3, 2 + 4 * 2));
    let error = spec.with_layout(Some(48), None).build().unwrap_err().to_string();
    assert!(error.contains("64"), "{error}");
}
