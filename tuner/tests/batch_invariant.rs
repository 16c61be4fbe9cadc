//! A run on the processor, some of whose batches are executed with batch-invariant plans, too.

use assert_cmd::cargo::cargo_bin;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use tilewright_tuner::analysis::Analysis;
use tilewright_tuner::choice::{BATCH_INVARIANT, SELECTOR};
use tilewright_tuner::fit_settings::FitSettings;
use tilewright_tuner::store::{Level, Measurement, Recording, Status, read};

fn succeed(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new(cargo_bin("tilewright")).current_dir(folder).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn batches_of_scenarios_that_say_so_are_executed_and_nothing_of_it_is_fitted() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let fit = "heads: [[4, 1]]\ntrees: ['1,4_64,32', '8_96', '2,8_32,48', '16_64']";
    for (name, keys) in [
        ("fit", fit),
        ("held", "use: held-out\ninvariant: true\nheads: [[4, 1]]\ntrees: ['1,4_1088,32']"),
        ("other", "use: held-out\nheads: [[4, 1]]\ntrees: ['4_80']"),
    ] {
        std::fs::write(folder.join(format!("{name}.yaml")), format!("name: {name}\n{keys}\n")).unwrap();
    }
    let tune = ["tune", "fit.yaml", "held.yaml", "other.yaml", "--budget", "6", "--out", "out", "--force"];
    let outputs: serde_json::Value =
        serde_json::from_str(&succeed(folder, &[&tune[..], &["--json"]].concat())).unwrap();
    let cost = &outputs["invariant"];
    assert_eq!((&cost["batches"], &cost["failed"]), (&1.into(), &0.into()), "{outputs}");
    assert!(cost["over_selector"].as_f64().unwrap() > 0.1 && cost["over_selector"] == cost["worst"]);
    let judged: Vec<&str> = outputs["batches"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|policy| policy["policy"].as_str())
        .collect();
    assert!(judged.contains(&SELECTOR) && !judged.iter().any(|policy| policy.contains(BATCH_INVARIANT)));

    let Recording { provenance, rows } =
        read(&folder.join(outputs["measurements"].as_str().unwrap())).unwrap();
    let verified: Vec<&Measurement> = rows.iter().filter(|row| row.level == Level::Invariant).collect();
    let classes: BTreeSet<&str> = verified.iter().map(|row| row.workload.as_str()).collect();
    assert_eq!(classes, ["head_dim 128 f16"].into());
    for row in &verified {
        assert!(
            row.status == Status::Correct && row.relative_error.is_some_and(|error| error > 0.0),
            "{row:?}"
        );
    }
    let executed: Vec<&Measurement> = rows.iter().filter(|row| row.choice == BATCH_INVARIANT).collect();
    assert_eq!(executed.len(), 1);
    let row = executed[0];
    assert_eq!((row.scenario.as_str(), row.level, row.status), ("held", Level::Batch, Status::Correct));
    assert!(row.held_out && !row.samples_us.is_empty() && !row.selector_hash.is_empty());
    let selector = |row: &&Measurement| row.choice == SELECTOR;
    assert_eq!(rows.iter().filter(selector).count(), 2, "both judged batches");

    // The same selector, and the same regrets, without it.
    let settings = FitSettings::default();
    let fitted = |rows: &[Measurement]| Analysis::of(&provenance, rows, &settings).unwrap();
    let is_other = |row: &&Measurement| row.choice != BATCH_INVARIANT && row.level != Level::Invariant;
    let others: Vec<Measurement> = rows.iter().filter(is_other).cloned().collect();
    assert!(others.len() < rows.len());
    let [with, without] = [&rows, &others].map(|rows| fitted(rows));
    assert_eq!(with.selector_hash(), without.selector_hash());
    assert_eq!(with.validation.policies, without.validation.policies);

    let report = std::fs::read_to_string(folder.join(outputs["report"].as_str().unwrap())).unwrap();
    let said = succeed(folder, &[&tune[..], &["--resume"]].concat());
    for text in [&report, &said] {
        assert!(text.contains("batch-invariant, over the selector (geometric mean)"), "{text}");
        assert!(text.contains("Batch-invariant plans take "), "{text}");
    }
    // What measurements give, replayed.
    let measurements = outputs["measurements"].as_str().unwrap();
    let replayed = succeed(folder, &["replay", measurements, "--out", "replayed", "--json", "--force"]);
    let replayed: serde_json::Value = serde_json::from_str(&replayed).unwrap();
    assert_eq!(replayed["invariant"], *cost);
}
