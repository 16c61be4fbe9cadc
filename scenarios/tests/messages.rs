//! Broken scenarios and what is said of them: where, which key, what is wrong, what would be right.

use std::fmt::Write as _;
use tilewright_scenarios::Scenario;

/// Keys that belong to every kind of scenario, then one kind each.
const BROKEN: &[&str] = &[
    // No map of keys at all.
    "",
    "~",
    "12",
    "just words",
    "- name: t",
    "name: t\n\tmix: []",
    "name: [t",
    "name: {t",
    "name: \"t",
    "name: t\ntrees: [\"1_32\"]\n---\nname: u\n",
    "name: &a t\ntrees: [*b]\n",
    "{}",
    // A file of several kinds, or none.
    "name: t\n",
    "trees: [\"1_32\"]\n",
    "name: t\ntrees: [\"1_32\"]\npacks: {points: []}\n",
    // Keys.
    "name: t\ntree: [\"1_32\"]\n",
    "name: t\nfoo: 1\ntrees: [\"1_32\"]\n",
    "name: t\ntrees: [\"1_32\"]\nseed: 1\nseed: 2\n",
    "name: t\ntrees: [\"1_32\"]\ntrees: [\"1_64\"]\n",
    "name: t\nmix:\n  - tokens: 32\n    tokens: 64\n",
    "name: t\nmix:\n  - {tokens: 32, tokens: 64}\n",
    "name: t\nmix:\n  - tokens: 32\n    child: []\n",
    // Names.
    "name: \"\"\ntrees: [\"1_32\"]\n",
    "name: a b\ntrees: [\"1_32\"]\n",
    "name: 12\ntrees: [\"1_32\"]\n",
    "name: [t]\ntrees: [\"1_32\"]\n",
    // Numbers and words of the layers.
    "name: t\nseed: -1\ntrees: [\"1_32\"]\n",
    "name: t\nseed: 99999999999999999999999\ntrees: [\"1_32\"]\n",
    "name: t\nuse: fitt\ntrees: [\"1_32\"]\n",
    "name: t\ninvariant: 1\ntrees: [\"1_32\"]\n",
    "name: t\ninvariant: true\npage_sizes: [8]\ntrees: [\"1_32\"]\n",
    "name: t\nheads: [32, 8]\ntrees: [\"1_32\"]\n",
    "name: t\nheads: [[32, 8, 1]]\ntrees: [\"1_32\"]\n",
    "name: t\nheads: [[32, 5]]\ntrees: [\"1_32\"]\n",
    "name: t\nheads: [[32, 0]]\ntrees: [\"1_32\"]\n",
    "name: t\nheads: []\ntrees: [\"1_32\"]\n",
    "name: t\nhead_dims: [100]\ntrees: [\"1_32\"]\n",
    "name: t\nhead_dims: 128\ntrees: [\"1_32\"]\n",
    "name: t\nhead_dims: [128.5]\ntrees: [\"1_32\"]\n",
    "name: t\ndtypes: [fp16]\ntrees: [\"1_32\"]\n",
    "name: t\ndtypes: [1]\ntrees: [\"1_32\"]\n",
    "name: t\npage_sizes: [0]\ntrees: [\"1_32\"]\n",
    "name: t\npage_sizes: [5000]\ntrees: [\"1_32\"]\n",
    "name: t\npage_sizes: [x]\ntrees: [\"1_32\"]\n",
    // Trees.
    "name: t\ntrees: []\n",
    "name: t\ntrees: 1_32\n",
    "name: t\ntrees: [1_32]\n",
    "name: t\ntrees: [12]\n",
    "name: t\ntrees:\n  - \"1,4_32\"\n",
    "name: t\ntrees:\n  - \"1_32\"\n  - \"2,5_32,32\"\n",
    "name: t\ntrees: [\"1,262145_32,32\"]\n",
    "name: t\ntrees: [\"1,4_40,32\"]\n",
    "name: t\ntrees: [\"1_4294967295\"]\n",
    "name: t\ntrees: [\"262144_4294967295\"]\n",
    // Mixes.
    "name: t\nmix: []\n",
    "name: t\nmix: {tokens: 32}\n",
    "name: t\nmix:\n  - repeat: 2\n",
    "name: t\nmix:\n  - tokens: 0\n",
    "name: t\nmix:\n  - tokens: many\n",
    "name: t\nmix:\n  - tokens: 32\n    ends_inside: [40]\n",
    "name: t\nmix:\n  - tokens: 32\n    requests: 0\n",
    "name: t\nmix:\n  - tokens: 32\n    repeat: 134217728\n",
    "name: t\nmix:\n  - tokens: 33\n    children:\n      - tokens: 5\n",
    // Tenants.
    "name: t\ntenants: 3\n",
    "name: t\ntenants: {batches: 0}\n",
    "name: t\ntenants: {prompts: {min: 3, max: 2}}\n",
    "name: t\ntenants: {prompts: {min: 3}}\n",
    "name: t\ntenants: {prompts: {min: 3, most: 5}}\n",
    "name: t\ntenants: {prompts: lots}\n",
    "name: t\ntenants: {just_crossed: 2}\n",
    "name: t\ntenants: {prompts: 1024, requests: 65536}\n",
    "name: t\ntenants:\n  prompts: 0\n  lone_requests: 0\n",
    "name: t\npage_sizes: [1000, 7]\ntenants: {}\n",
    // Traces.
    "name: t\ntrace: 0\n",
    "name: t\ntrace: {}\n",
    "name: t\ntrace: {max_batch: 0, tokens_per_second: 9, prefill_tokens_per_second: 9, at: [1], file: a}\n",
    "name: t\ntrace:\n  file: a\n  max_batch: 4\n  tokens_per_second: 0\n  prefill_tokens_per_second: 9\n  at: [1]\n",
    "name: t\ntrace: {max_batch: 4, tokens_per_second: 9, prefill_tokens_per_second: 9, at: [1]}\n",
    "name: t\ntrace: {max_batch: 4, tokens_per_second: 9, prefill_tokens_per_second: 9, at: [1], file: no.jsonl}\n",
    "name: t\ntrace: {max_batch: 4, tokens_per_second: 9, prefill_tokens_per_second: 9, at: [1], file: /dev/zero}\n",
    "name: t\ntrace: {max_batch: 4, tokens_per_second: 9, prefill_tokens_per_second: 9, at: [], file: no.jsonl}\n",
    "name: t\ntrace: {max_batch: 4, tokens_per_second: 9, prefill_tokens_per_second: 9, at: [-1], file: no.jsonl}\n",
    "name: t\npage_sizes: [48]\ntrace: {max_batch: 4, tokens_per_second: 9, prefill_tokens_per_second: 9, at: [1], file: no.jsonl}\n",
    "name: t\ntrace:\n  generate: {requests: 0, requests_per_second: 9, turn_tokens: 9, output_tokens: 9, follow_ups: 0.5}\n  max_batch: 4\n  tokens_per_second: 9\n  prefill_tokens_per_second: 9\n  at: [1]\n",
    "name: t\ntrace:\n  generate: {requests: 9, requests_per_second: 9, turn_tokens: 9, output_tokens: 9, follow_ups: 1.5}\n  max_batch: 4\n  tokens_per_second: 9\n  prefill_tokens_per_second: 9\n  at: [1]\n",
    "name: t\ntrace:\n  generate: {requests: 9, requests_per_second: 9, turn_tokens: 9, output_tokens: 9, follow_ups: 0.5}\n  max_batch: 4\n  tokens_per_second: 9\n  prefill_tokens_per_second: 9\n  at: [5000]\n",
    // Packs.
    "name: t\npacks: {}\n",
    "name: t\npacks: {rows: [16]}\n",
    "name: t\npacks: {rows: [16], kv_len: [64], packs: []}\n",
    "name: t\npacks: {rows: [3], kv_len: [64], packs: [1]}\n",
    "name: t\npacks: {rows: [-4], kv_len: [64], packs: [1]}\n",
    "name: t\npacks: {points: [{rows: 4, kv_len: 64}]}\n",
    "name: t\npacks: {points: [{rows: 4, kv_len: 64, packs: 1, kv: 3}]}\n",
    "name: t\npacks:\n  points:\n    - rows: 4\n      kv_len: 134217729\n      packs: 1\n",
    "name: t\npacks: {points: [{rows: 4, kv_len: 134217728, packs: 134217728}]}\n",
];

/// What is said of a text: of reading it, else of its batches, else of building them.
fn message(text: &str) -> String {
    let built = Scenario::parse(text, "s.yaml")
        .and_then(|scenario| scenario.batches()?.iter().try_for_each(|spec| spec.build().map(drop)));
    built.map_or_else(|error| error.to_string(), |()| "is fine".to_owned())
}

#[test]
fn broken_scenarios_are_told_where_and_what() {
    let mut said = String::new();
    for text in BROKEN {
        let message = message(text);

        writeln!(said, "{text:?}\n    {message}").expect("a text grows");
    }
    insta::assert_snapshot!(said);
}
