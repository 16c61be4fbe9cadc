//! `docs/known-bugs.md` names tests that exist: one that is renamed or removed takes its bug's cover with it, and has to be named again.

use std::collections::BTreeMap;
use std::path::Path;

const BUGS: u32 = 35;

#[test]
fn every_known_bug_has_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(root.join("docs/known-bugs.md")).unwrap();
    let mut sources: BTreeMap<&str, String> = BTreeMap::new();
    let mut next = 1;
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, number, _, tests, places, _] = cells[..] else { continue };
        let Ok(number) = number.parse::<u32>() else { continue };
        assert_eq!(number, next, "bugs are numbered in order");
        next += 1;
        let named: Vec<(&str, &str)> = tests
            .split('`')
            .filter_map(|name| name.split_once(".rs::").map(|(file, _)| (file, name)))
            .collect();
        assert!(!named.is_empty(), "bug {number} has no test");
        let mut on_gpu = 0;
        for (_, name) in &named {
            let (file, test) = name.split_once("::").unwrap();
            let source = sources.entry(file).or_insert_with(|| {
                std::fs::read_to_string(root.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
            });
            assert!(is_test(source, test), "bug {number}: {file} has no test `{test}`");
            on_gpu += usize::from(is_on_gpu(file));
        }
        let places: Vec<&str> = places.split(", ").collect();
        assert!(places.iter().all(|place| ["CPU", "emulation", "NVRTC", "GPU"].contains(place)), "{line}");
        assert_eq!(on_gpu > 0, places.contains(&"GPU"), "bug {number}: {places:?}");
        assert_eq!(on_gpu < named.len(), places != ["GPU"], "bug {number}: {places:?}");
    }
    assert_eq!(next, BUGS + 1);
}

/// Whether a file is of the GPU suite: its root, or a module in one of its folders.
fn is_on_gpu(file: &str) -> bool {
    file.strip_prefix("runtime/tests/").is_some_and(|rest| rest == "gpu.rs" || rest.contains('/'))
}

/// Whether a file has a test function of this name: the attribute stands above it, comments and other attributes between them.
fn is_test(source: &str, name: &str) -> bool {
    let declares = |line: &str| {
        line.trim_start()
            .strip_prefix("fn ")
            .and_then(|rest| rest.strip_prefix(name))
            .is_some_and(|rest| rest.starts_with('('))
    };
    let lines: Vec<&str> = source.lines().collect();
    let at = lines.iter().position(|line| declares(line));
    let above = |at: usize| lines[..at].iter().rev().map(|line| line.trim());
    at.is_some_and(|at| {
        above(at)
            .take_while(|line| line.starts_with('#') || line.starts_with("//"))
            .any(|line| line == "#[test]")
    })
}
