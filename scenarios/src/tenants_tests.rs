//! What is drawn, from which seed, and under which layouts.

use super::*;
use crate::{Batch, BatchSpec, Scenario, Use};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tilewright_heuristics::Geometry;

const MINIMAL: &str = "name: t\ntenants: {batches: 8}\n";

fn specs(text: &str) -> Vec<BatchSpec> {
    Scenario::parse(text, "test.yaml").unwrap().batches().unwrap()
}

fn error(text: &str) -> String {
    Scenario::parse(text, "test.yaml").unwrap_err().to_string()
}

fn names(text: &str) -> Vec<String> {
    specs(text).iter().map(|spec| spec.name().to_owned()).collect()
}

#[test]
fn a_minimal_file_gives_numbered_batches_of_several_tenants() {
    assert_eq!(specs(MINIMAL), specs("name: t\ntenants: {}\n").as_slice().to_vec());
    let specs = specs(MINIMAL);
    assert_eq!(specs.len(), 8);
    assert_eq!((specs[7].name(), specs[7].variant()), ("t/t007/32x8", "t t007"));
    for spec in &specs {
        let batch = spec.build().unwrap();
        assert!(batch.unique_bytes() < batch.unshared_bytes(), "{}", batch.name);
    }
}

#[test]
fn the_same_seed_gives_the_same_batch_on_every_machine() {
    let text = "name: t\nseed: 3\ntenants:\n  batches: 1\n  prompts: 2\n  requests: {min: 1, max: 4}\n  prompt_tokens: {min: 32, max: 99}\n  own_tokens: {min: 5, max: 70, log: true}\n  lone_requests: 1\n";
    insta::assert_snapshot!(format!("{:?}", specs(text)[0].build().unwrap().seq_lens), @"[3625, 103, 118, 103, 103]");
    assert_ne!(specs(text)[0].shape, specs(&text.replace("seed: 3", "seed: 4"))[0].shape);
}

#[test]
fn both_heads_and_pages_take_turns() {
    let text = "name: t\nheads: [[32, 8], [8, 1], [4, 4]]\npage_sizes: [16, 32]\ntenants: {batches: 8}\n";
    let expected = [
        "t/t000/32x8/p16",
        "t/t001/8x1/p32",
        "t/t002/4x4/p16",
        "t/t003/32x8/p32",
        "t/t004/8x1/p16",
        "t/t005/4x4/p32",
        "t/t006/32x8/p16",
        "t/t007/8x1/p32",
    ];
    assert_eq!(names(text), expected);
}

#[test]
fn a_request_just_across_a_page_has_one_token_in_it() {
    let text = "name: t\npage_sizes: [16, 48]\ntenants: {own_tokens: {min: 40, max: 200}, lone_tokens: {min: 40, max: 200}, just_crossed: 1.0}\n";
    for spec in specs(text) {
        let batch = spec.build().unwrap();
        assert!(batch.seq_lens.iter().all(|len| len % batch.geometry.page_size == 1), "{}", batch.name);
    }
    // No such length is in the range: the drawn one stays.
    let lens = "name: t\ntenants: {prompts: 0, lone_requests: 3, lone_tokens: {min: 40, max: 60}, just_crossed: 1}\n";
    assert!(specs(lens)[0].build().unwrap().seq_lens.iter().all(|len| (40..=60).contains(len)));
}

#[test]
fn groups_of_a_tenant_share_more_than_its_prompt() {
    let text = "name: t\ntenants: {prompts: 1, requests: 40, depths: 3, groups: 2, lone_requests: 0}\n";
    for spec in specs(text) {
        let crate::spec::Shape::Layout(layout) = &spec.shape else { panic!("written out") };
        let roots = layout.nodes.iter().filter(|node| node.parent.is_none()).count();
        let depth = |mut node: u32| {
            let mut depth = 0;
            while let Some(parent) = layout.nodes[node as usize].parent {
                (node, depth) = (parent, depth + 1);
            }
            depth
        };
        let depths: BTreeSet<u32> = layout.requests.iter().map(|request| depth(request.node)).collect();
        assert_eq!((roots, depths), (1, BTreeSet::from([1, 2, 3])), "{}", spec.name());
    }
}

#[test]
fn errors_name_file_line_and_key_and_say_what_is_right() {
    let good = "name: t\ntenants:\n  batches: 8\n  requests:\n    min: 1\n    max: 40\n  depths: {min: 1, max: 3}\n  just_crossed: 0.1\n";
    specs(good);
    for (from, to, expected) in [
        (
            "requests:",
            "request:",
            vec!["test.yaml:4:", "unknown field `request`", "did you mean `requests`?"],
        ),
        ("    max: 40", "    mix: 40", vec!["test.yaml:6:", "unknown field `mix`", "did you mean `max`?"]),
        ("    max: 40\n", "", vec!["test.yaml:5:", "tenants.requests", "missing field `max`"]),
        (
            "min: 1, max: 3",
            "min: 3, max: 1",
            vec!["test.yaml:7:", "tenants.depths", "`min` 3 must be at most `max` 1"],
        ),
        ("min: 1, max: 3", "min: 0, max: 3", vec!["test.yaml:7:", "tenants.depths", "must be from 1 to 16"]),
        ("{min: 1, max: 3}", "17", vec!["test.yaml:7:", "tenants.depths", "must be from 1 to 16"]),
        ("{min: 1, max: 3}", "-1", vec!["test.yaml:7:", "tenants.depths", "a number, `{min: .., max: ..}`"]),
        (
            "{min: 1, max: 3}",
            "[1, 3]",
            vec!["test.yaml:7:", "tenants.depths", "a number, `{min: .., max: ..}`"],
        ),
        (
            "depths: {min: 1, max: 3}",
            "prompts: {min: 0, max: 3, log: true}",
            vec!["test.yaml:7:", "tenants.prompts", "`log: true` must have a `min` of at least 1"],
        ),
        ("batches: 8", "batches: 0", vec!["test.yaml:3:", "tenants.batches", "from 1 to 4096"]),
        ("batches: 8", "batches: 4097", vec!["test.yaml:3:", "tenants.batches", "from 1 to 4096"]),
        ("0.1", "1.5", vec!["test.yaml:8:", "tenants.just_crossed", "from 0 to 1"]),
        (
            "depths: {min: 1, max: 3}",
            "prompts: {min: 0, max: 3}",
            vec!["test.yaml:7:", "may have no requests"],
        ),
        ("max: 40", "max: 60000", vec!["test.yaml:4:", "480020 requests", "smaller `max`"]),
        ("batches: 8", "batches: 4096\n  lone_requests: 2000", vec!["test.yaml:3:", "fewer batches"]),
        (
            "requests:\n    min: 1\n    max: 40",
            "prompts: 1024\n  lone_requests: 65536\n  groups: 1\n  requests: 200",
            vec!["test.yaml:7:", "270336 requests"],
        ),
        ("name: t", "name: t\npage_sizes: [4095, 4096]", vec!["test.yaml:2:", "multiples of each other"]),
        ("name: t", "name: t\ntrees: ['1_1']", vec!["only one of", "`tenants`"]),
    ] {
        let text = good.replace(from, to);
        let found = error(&text);
        for expected in expected {
            assert!(found.contains(expected), "`{expected}` is not in: {found}\n{text}");
        }
    }
}

#[test]
fn what_a_file_is_for_is_no_part_of_its_content() {
    let parse = |text: &str| Scenario::parse(text, "test.yaml").unwrap();
    let (fit, held_out) = (parse(MINIMAL), parse(&format!("use: held-out\n{MINIMAL}")));
    assert_eq!((fit.purpose(), fit.held_out()), (Use::Fit, false));
    assert_eq!((held_out.purpose(), held_out.held_out()), (Use::HeldOut, true));
    assert_eq!(fit.hash(), held_out.hash());
    let found = error(&format!("use: heldout\n{MINIMAL}"));
    assert!(found.contains("test.yaml:1:") && found.contains("did you mean `held-out`?"), "{found}");
}

#[test]
fn batches_are_measured_with_invariant_plans_where_a_file_says_so() {
    let parse = |text: &str| Scenario::parse(text, "test.yaml").unwrap();
    let without = parse(MINIMAL);
    let [no, yes] = [false, true].map(|invariant| parse(&format!("invariant: {invariant}\n{MINIMAL}")));
    assert_eq!([&without, &no, &yes].map(Scenario::invariant), [false, false, true]);
    assert!(without.hash() == no.hash() && no.hash() == yes.hash(), "the batches are the same");
    let found = error(&format!("{MINIMAL}\npage_sizes: [8, 16]\ninvariant: true\n"));
    assert!(found.contains("multiple of 16 tokens, not of 8") && found.contains("`page_sizes`"), "{found}");
    let line = format!("{MINIMAL}\npage_sizes: [8, 16]\n").lines().count() + 1;
    assert!(found.contains(&format!("test.yaml:{line}: invariant")), "{found}");
    assert!(
        Scenario::parse(&format!("{MINIMAL}\npage_sizes: [8, 16]\ninvariant: false\n"), "t.yaml").is_ok()
    );
    let found = error(&format!("invariant: yes please\n{MINIMAL}"));
    assert!(found.contains("test.yaml:1:") && found.contains("invariant"), "{found}");
}

/// Two numbers as a range, in the right order.
fn range(least: u32, most: u32) -> impl Strategy<Value = (u32, u32, bool)> {
    (least..=most, least..=most, any::<bool>())
        .prop_map(|(a, b, log)| (a.min(b), a.max(b), log && a.min(b) > 0))
}

fn written((min, max, log): (u32, u32, bool)) -> String {
    format!("{{min: {min}, max: {max}, log: {log}}}")
}

/// Tokens of the nodes above.
fn before(layout: &Layout, mut node: u32) -> u64 {
    let mut tokens = 0;
    while let Some(parent) = layout.nodes[node as usize].parent {
        tokens += u64::from(layout.nodes[parent as usize].tokens);
        node = parent;
    }
    tokens
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_batch_does_not_depend_on_how_many_are_drawn(seed: u64, few in 1u32..6, more in 1u32..20) {
        let text = |batches: u32| {
            format!("name: t\nseed: {seed}\nheads: [[8, 2], [4, 4]]\npage_sizes: [16, 32]\ntenants: {{batches: {batches}}}\n")
        };
        let (few_specs, all) = (specs(&text(few)), specs(&text(few + more)));
        for (one, other) in few_specs.iter().zip(&all) {
            prop_assert_eq!((one.name(), one.geometry(), &one.shape), (other.name(), other.geometry(), &other.shape));
            let pages = |spec: &BatchSpec| spec.build().unwrap().page_table;
            prop_assert_eq!(pages(one), pages(other));
        }
        prop_assert!(all.windows(2).all(|pair| pair[0].shape != pair[1].shape));
    }

    #[test]
    fn every_layout_comes_as_often_as_every_other(
        heads in 1u32..6, pages in 1u32..5, dims in 1usize..4, dtypes in 1usize..3, batches in 1usize..200
    ) {
        let heads: Vec<String> = (0..heads).map(|index| format!("[{}, 1]", index + 1)).collect();
        let pages: Vec<String> = (0..pages).map(|index| (8 << index).to_string()).collect();
        let text = format!(
            "name: t\nheads: [{}]\npage_sizes: [{}]\nhead_dims: [{}]\ndtypes: [{}]\ntenants: {{batches: {batches}, prompts: 1, requests: 1, lone_requests: 0}}\n",
            heads.join(", "), pages.join(", "), ["64", "128", "256"][..dims].join(", "), ["f16", "bf16"][..dtypes].join(", ")
        );
        let specs = specs(&text);
        let layouts = heads.len() * pages.len() * dims * dtypes;
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for spec in &specs {
            let Geometry { q_heads, kv_heads, head_dim, page_size, dtype } = spec.geometry();
            *counts.entry(format!("{q_heads} {kv_heads} {head_dim} {page_size} {dtype}")).or_default() += 1;
        }
        prop_assert_eq!(counts.len(), layouts.min(batches));
        prop_assert!(counts.values().all(|count| (batches / layouts..=batches.div_ceil(layouts)).contains(count)));
        let names: BTreeSet<&str> = specs.iter().map(BatchSpec::name).collect();
        let variants: BTreeSet<&str> = specs.iter().map(BatchSpec::variant).collect();
        prop_assert_eq!((names.len(), variants.len()), (batches, batches));
    }

    #[test]
    fn what_is_drawn_keeps_to_the_keys(
        seed: u64,
        prompts in range(0, 6), prompt in range(1, 500), requests in range(1, 20), own in range(1, 300),
        depths in range(1, 4), groups in range(1, 4), group in range(1, 200),
        lone in range(1, 5), lone_tokens in range(1, 300), just_crossed in 0.0..1.0f64
    ) {
        let keys = [
            ("prompts", prompts), ("prompt_tokens", prompt), ("requests", requests), ("own_tokens", own), ("depths", depths),
            ("groups", groups), ("group_tokens", group), ("lone_requests", lone), ("lone_tokens", lone_tokens),
        ];
        let mut text = format!("name: t\nseed: {seed}\npage_sizes: [16, 24]\ntenants:\n  batches: 4\n  just_crossed: {just_crossed}\n");
        for (key, range) in keys {
            text += &format!("  {key}: {}\n", written(range));
        }
        let within = |(min, max, _): (u32, u32, bool), found: u32| (min..=max).contains(&found);
        let pages_within = |(min, max, _): (u32, u32, bool), found: u32| {
            found.is_multiple_of(48) && (min.next_multiple_of(48)..=max.next_multiple_of(48)).contains(&found)
        };
        for spec in specs(&text) {
            let crate::spec::Shape::Layout(layout) = &spec.shape else { panic!("written out") };
            let batch: Batch = spec.build().unwrap();
            let ends: BTreeSet<u32> = layout.requests.iter().map(|request| request.node).collect();
            prop_assert_eq!(ends.len(), layout.requests.len(), "a request has a node of its own");
            let (mut found_prompts, mut found_lone) = (0, 0);
            for (node, index) in layout.nodes.iter().zip(0u32..) {
                match (node.parent, ends.contains(&index)) {
                    (None, true) => {
                        found_lone += 1;
                        prop_assert!(within(lone_tokens, node.tokens));
                    }
                    (None, false) => {
                        found_prompts += 1;
                        prop_assert!(pages_within(prompt, node.tokens));
                    }
                    (Some(_), true) => prop_assert!(within(own, node.tokens)),
                    (Some(_), false) => prop_assert!(pages_within(group, node.tokens)),
                }
            }
            prop_assert!(within(prompts, found_prompts) && within(lone, found_lone));
            let shared = layout.requests.len() as u32 - found_lone;
            prop_assert!((found_prompts * requests.0..=found_prompts * requests.1).contains(&shared));
            for ((request, &len), row) in layout.requests.iter().zip(&batch.seq_lens).zip(0..) {
                prop_assert_eq!(u64::from(len), before(layout, request.node) + u64::from(request.tokens));
                prop_assert!(batch.row(row).iter().all(|page| (0..batch.pages as i32).contains(page)));
            }
            let pages: BTreeSet<i32> = (0..batch.requests()).flat_map(|row| batch.row(row).to_vec()).collect();
            prop_assert_eq!(pages.len(), batch.pages as usize, "every page is used");
        }
    }
}
