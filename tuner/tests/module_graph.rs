//! Imports between the modules of a crate: no circles, and command-line types in `cli` alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// The code of a file, without tests and comments; none of a file of tests.
fn code(path: &Path) -> String {
    let name = path.file_stem().unwrap().to_str().unwrap();
    if name == "tests" || name.ends_with("_tests") || name == "test_data" {
        return String::new();
    }
    let text = std::fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The top-level module that a file is of.
fn module(root: &Path, path: &Path) -> String {
    let inside = path.strip_prefix(root).unwrap();
    inside.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_owned()
}

type Graph = BTreeMap<String, BTreeSet<String>>;

/// Which modules each top-level module imports.
fn imports(root: &Path) -> Graph {
    let mut graph = Graph::new();
    for path in sources(root) {
        let from = module(root, &path);
        if from == "lib" || from == "main" {
            continue;
        }
        let targets = graph.entry(from.clone()).or_default();
        let code = code(&path);
        for (at, found) in code.match_indices("crate::") {
            let rest = &code[at + found.len()..];
            let to: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let is_module =
                !to.is_empty() && (root.join(format!("{to}.rs")).exists() || root.join(&to).is_dir());
            if is_module && to != from {
                targets.insert(to);
            }
        }
    }
    graph
}

/// A circle of imports, if there is one: modules without imports are taken away until none is left, or only circles are.
fn circle(mut graph: Graph) -> Vec<String> {
    while let Some(leaf) = graph.iter().find(|(_, to)| to.is_empty()).map(|(module, _)| module.clone()) {
        graph.remove(&leaf);
        for to in graph.values_mut() {
            to.remove(&leaf);
        }
    }
    graph.into_keys().collect()
}

fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn no_module_imports_itself_through_others() {
    for root in ["src", "../reports/src"] {
        let graph = imports(&folder(root));
        assert!(graph.values().map(BTreeSet::len).sum::<usize>() > 10, "{graph:?}");
        assert_eq!(circle(graph), [""; 0], "these import each other in {root}, or what does");
    }
}

#[test]
fn a_circle_is_found() {
    let graph = |edges: &[(&str, &str)]| {
        let mut graph = Graph::new();
        for (from, to) in edges {
            graph.entry((*to).to_owned()).or_default();
            graph.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        circle(graph)
    };
    assert!(graph(&[("a", "b"), ("b", "c"), ("a", "c")]).is_empty());
    assert_eq!(graph(&[("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")]), ["a", "b", "c"]);
}

#[test]
fn only_the_command_line_knows_clap() {
    let root = folder("src");
    let knows = |path: &PathBuf| code(path).contains("clap");
    let modules: BTreeSet<String> =
        sources(&root).iter().filter(|path| knows(path)).map(|path| module(&root, path)).collect();
    assert_eq!(modules, ["cli", "main"].map(str::to_owned).into());
}
