use crate::{Scenario, Trace};
use flate2::{Compression, write::GzEncoder};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

const TREE: &str = "name: a\ntrees: [\"1,2_32,64\"]\n";

/// The message, which must come soon.
fn refused(text: &str) -> String {
    let begun = Instant::now();
    let error =
        Scenario::parse(text, "x.yaml").and_then(|scenario| scenario.batches()).unwrap_err().to_string();
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    error
}

#[test]
fn a_byte_order_mark_is_accepted() {
    let plain = Scenario::parse(TREE, "x.yaml").unwrap();
    let marked = Scenario::parse(&format!("\u{feff}{TREE}"), "x.yaml").unwrap();
    assert_eq!(plain.hash(), marked.hash());
}

#[test]
fn deep_nesting_is_refused_at_once() {
    for text in ["[".repeat(100_000), "{".repeat(100_000)] {
        let error = refused(&format!("name: a\ntrees: {text}"));
        assert!(error.starts_with("x.yaml:2: more than"), "{error}");
    }
    let error = refused(&format!("name: a\ntrees:\n{}", "- ".repeat(100_000)));
    assert!(error.starts_with("x.yaml:3: more than"), "{error}");
}

#[test]
fn a_sweep_is_counted_before_it_is_expanded() {
    let list = (1..=600).map(|n: u32| n.to_string()).collect::<Vec<_>>().join(", ");
    let error = refused(&format!(
        "name: a\npacks:\n  rows: [{list}]\n  kv_len: [{list}]\n  packs: [{list}]\n  own: [{list}]\n"
    ));
    assert!(error.starts_with("x.yaml:2: packs: ") && error.contains("129600000000"), "{error}");
}

#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_refused() {
    let begun = Instant::now();
    for path in ["/dev/zero", "/"] {
        let error = Scenario::load(path).unwrap_err().to_string();
        assert!(error.contains("name a regular file"), "{error}");
        let error = Trace::read(Path::new(path)).unwrap_err().to_string();
        assert!(error.contains("name a regular file"), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let error = Scenario::load(&pipe).unwrap_err().to_string();
    assert!(error.contains("name a regular file"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[test]
fn an_endless_line_in_a_small_gzip_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl.gz");
    let mut gzip = GzEncoder::new(std::fs::File::create(&path).unwrap(), Compression::fast());
    for _ in 0..64 {
        gzip.write_all(&[b'a'; 1 << 20]).unwrap();
    }
    gzip.finish().unwrap();
    let error = Trace::read(&path).unwrap_err().to_string();
    assert!(error.contains("line 1") && error.contains("bytes"), "{error}");
}

#[test]
fn a_chain_of_errors_says_each_thing_once() {
    use std::error::Error;
    let text = "name: a\ntrace: {file: no.jsonl, max_batch: 4, tokens_per_second: 9, prefill_tokens_per_second: 9, at: [1]}\n";
    let error = Scenario::parse(text, "x.yaml").unwrap_err();
    assert!(error.source().is_none(), "its message holds its cause: {error}");
    assert_eq!(error.to_string().matches("cannot read").count(), 1, "{error}");
}

#[test]
fn a_generator_too_large_for_memory_is_refused() {
    let error = refused(
        "name: a\ntrace:\n  generate: {requests: 1048576, requests_per_second: 9, turn_tokens: 131072, output_tokens: 9, follow_ups: 1}\n  \
         max_batch: 4\n  tokens_per_second: 9\n  prefill_tokens_per_second: 9\n  at: [1]\n",
    );
    assert!(error.starts_with("x.yaml:3: trace.generate.requests: ") && error.contains("blocks"), "{error}");
}
