//! Scenarios and traces with something broken about them: whatever it is, they are read, or refused in words, soon and within limits.
//!
//! `PROPTEST_CASES` says how many are tried.

use proptest::prelude::*;
use std::time::{Duration, Instant};
use tilewright_scenarios::{Scenario, Trace};

const GOOD: [&str; 6] = [
    "name: t\nseed: 3\nheads: [[32, 8], [8, 8]]\nhead_dims: [64, 128]\ndtypes: [f16, bf16]\npage_sizes: [16, 32]\ntrees:\n  - 1,4_32,32\n  - \"8_64\"\n",
    "name: m # of roots\nuse: held-out\ninvariant: true\nmix:\n  - tokens: 64\n    repeat: 2\n    ends_inside: [10, 33]\n    children:\n      - {tokens: 5, requests: 3}\n      - tokens: 40\n",
    "name: n\ntenants:\n  batches: 3\n  prompts: {min: 1, max: 3}\n  prompt_tokens: {min: 64, max: 512, log: true}\n  requests: 4\n  lone_requests: 2\n  just_crossed: 0.25\n",
    "name: r\ntrace:\n  generate: {requests: 20, requests_per_second: 2, turn_tokens: 600, output_tokens: 100, follow_ups: 0.5}\n  max_batch: 8\n  tokens_per_second: 20\n  prefill_tokens_per_second: 5000\n  at: {from: 1, to: 20, every: 1}\n",
    "name: p\npacks:\n  rows: [4, 16]\n  kv_len: [32, 100]\n  packs: [1, 7]\n  own: [0, 5]\n  max_tokens: 4096\n",
    "name: q\npacks:\n  points:\n    - {rows: 4, kv_len: 64, packs: 2}\n    - rows: 16\n      kv_len: 33\n      packs: 1\n      own: 8\n",
];

/// What takes the place of something in a text.
const SPLICES: [&str; 24] = [
    "",
    "-1",
    "0",
    "4294967296",
    "18446744073709551616",
    "1e309",
    ".nan",
    "~",
    "[]",
    "{}",
    "[[[[",
    "\u{0}",
    "\u{feff}",
    "&a",
    "*a",
    "!!int",
    "\"",
    ": ",
    "- ",
    "\n  ",
    "\t",
    "134217728",
    "<<: ",
    "yes",
];

/// One change of a text: of its characters, so that it stays a text.
fn changed(text: &str, at: usize, len: usize, splice: usize, kind: u8) -> String {
    let chars: Vec<char> = text.chars().collect();
    let at = at % (chars.len() + 1);
    let end = (at + len).min(chars.len());
    let (before, cut, behind) = (&chars[..at], &chars[at..end], &chars[end..]);
    let splice: Vec<char> = SPLICES[splice % SPLICES.len()].chars().collect();
    let parts: [&[char]; 4] = match kind % 4 {
        0 => [before, &splice, behind, &[]],
        1 => [before, cut, cut, behind],
        2 => [before, behind, cut, &[]],
        _ => [before, &splice, cut, behind],
    };
    parts.concat().into_iter().collect()
}

/// Replaces the value of a line: what it says stays, what it is of does not.
fn with_value(text: &str, line: usize, splice: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let line = line % lines.len();
    let change = |(index, old): (usize, &&str)| match old.split_once(": ") {
        Some((key, _)) if index == line => format!("{key}: {}\n", SPLICES[splice % SPLICES.len()]),
        _ => format!("{old}\n"),
    };
    lines.iter().enumerate().map(change).collect()
}

fn assert_words(error: &str, start: &str) {
    assert!(error.starts_with(start), "{error}");
    for name in
        [" u8", " u32", " u64", " f64", " usize", "struct ", "tuple", "enum ", "Keys", "Option", "visitor"]
    {
        assert!(!error.contains(name), "`{name}` in: {error}");
    }
}

proptest! {
    #[test]
    fn a_changed_scenario_is_read_or_refused_in_words(
        good in 0..GOOD.len(),
        changes in prop::collection::vec((any::<usize>(), 0..12usize, any::<usize>(), any::<u8>()), 1..4),
    ) {
        let text = changes.iter().fold(GOOD[good].to_owned(), |text, &(at, len, splice, kind)| match kind {
            200.. => with_value(&text, at, splice),
            _ => changed(&text, at, len, splice, kind),
        });
        let begun = Instant::now();
        let built = Scenario::parse(&text, "s.yaml").and_then(|scenario| {
            // What is small is built as well.
            scenario.batches()?.iter().take(50).filter(|spec| spec.unique_bytes() < 1 << 32).try_for_each(|spec| spec.build().map(drop))
        });
        if let Err(error) = built {
            assert_words(&error.to_string(), "s.yaml:");
        }
        prop_assert!(begun.elapsed() < Duration::from_secs(20), "{:?} for {text:?}", begun.elapsed());
    }

    #[test]
    fn a_changed_trace_is_read_or_refused_in_words(
        at in any::<usize>(), len in 0..12usize, splice in any::<usize>(), kind in 0..4u8,
    ) {
        let line = r#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}"#;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.jsonl");
        std::fs::write(&path, format!("{line}\n{}\n", changed(line, at, len, splice, kind))).unwrap();
        if let Err(error) = Trace::read(&path) {
            assert_words(&error.to_string(), &format!("trace {}", path.display()));
        }
    }
}
