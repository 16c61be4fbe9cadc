//! The `tilewright` command as a user meets it: a whole small run, stopped and resumed, replayed, checked; and its errors.

use assert_cmd::Command;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};
use tilewright_tuner::store::{
    Phases, Timeline, Timelines, is_timelines_path, read_timelines, timelines_path,
};

fn tilewright(folder: &Path) -> Command {
    let mut command = Command::cargo_bin("tilewright").unwrap();
    command.current_dir(folder);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    tilewright(folder).args(arguments).output().unwrap()
}

fn succeed(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    assert!(output.status.success(), "{arguments:?}\n{}\n{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn fail(folder: &Path, arguments: &[&str], code: i32) -> String {
    assert_fails(&run(folder, arguments), arguments, code)
}

/// As [`fail`], and the CPU seconds, user and system, of the command and its children. Other work on the machine stretches the time
/// that passes, and hardly this.
fn fail_and_time(folder: &Path, arguments: &[&str], code: i32) -> (String, f64) {
    let program = assert_cmd::cargo::cargo_bin("tilewright");
    let output = std::process::Command::new("bash")
        .current_dir(folder)
        .env("LC_ALL", "C") // with a decimal point
        .args(["-c", "TIMEFORMAT='%U %S'; time \"$0\" \"$@\""])
        .arg(program)
        .args(arguments)
        .output()
        .unwrap();
    let error = assert_fails(&output, arguments, code);
    let (error, times) = error.trim_end().rsplit_once('\n').expect("the last line is what `time` says");
    let seconds = times.split(' ').map(|seconds| seconds.parse::<f64>().unwrap()).sum();
    (error.to_owned(), seconds)
}

/// What a command said that ended with this code.
fn assert_fails(output: &Output, arguments: &[&str], code: i32) -> String {
    assert_eq!(
        output.status.code(),
        Some(code),
        "{arguments:?}\n{}\n{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stderr)
}

/// A sweep of eight batches, and two trees, small enough for a test.
fn scenarios(folder: &Path) {
    let packs =
        "name: few-packs\nheads: [[4, 1]]\npacks:\n  rows: [4, 16]\n  kv_len: [32, 256]\n  packs: [1, 4]\n";
    std::fs::write(folder.join("packs.yaml"), packs).unwrap();
    std::fs::write(
        folder.join("trees.yaml"),
        "name: small-trees\nheads: [[4, 1]]\ntrees: ['1,4_64,32', '8_96']\n",
    )
    .unwrap();
}

/// Ten batches are too few for a selector, and seconds for measuring: the gate has tests of its own.
const TUNE: [&str; 10] = [
    "tune",
    "packs.yaml",
    "trees.yaml",
    "--budget",
    "6",
    "--heuristics",
    "heuristics",
    "--out",
    "out",
    "--force",
];

fn measurements(folder: &Path) -> PathBuf {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder.join("heuristics/measurements"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !is_timelines_path(path))
        .collect();
    assert_eq!(files.len(), 1);
    files.remove(0)
}

/// The timelines beside measurements: of two batches of each scenario and the two longest others, each with all of its items.
fn assert_timelines(measurements: &Path) -> Timelines {
    let timelines = read_timelines(&timelines_path(measurements)).unwrap().unwrap();
    let told = timelines.batches.len() + timelines.skipped.len();
    assert!(told == 6 && !timelines.batches.is_empty(), "{timelines:?}");
    for batch in &timelines.batches {
        let Timeline { processors, tiles, predicted_idle, entries } = &batch.timeline;
        assert!((0.0..1.0).contains(predicted_idle) && !tiles.is_empty(), "{batch:?}");
        assert!(tiles.iter().all(|tile| tile.places == *processors), "a thread has one place");
        let Phases { waiting, computing, writing, idle } = batch.timeline.phases();
        assert!(waiting.is_none() && computing > 0.0 && writing >= 0.0, "{batch:?}");
        assert!((0.0..1.0).contains(&idle), "threads do one thing at a time: {batch:?}");
        let items: BTreeSet<u32> = entries.iter().map(|entry| entry.item).collect();
        assert!(
            items.iter().copied().eq(0..items.len() as u32),
            "every work item, from the first to the last"
        );
    }
    timelines
}

#[test]
fn a_stopped_run_resumes_and_ends_with_all_files() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    scenarios(folder);

    // Stopped while it races tiles: some parts are there, the run is not over.
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("tilewright"))
        .current_dir(folder)
        .args(TUNE)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let parts = || {
        let devices = std::fs::read_dir(folder.join("out")).ok();
        let parts = devices
            .and_then(|mut devices| std::fs::read_dir(devices.next()?.ok()?.path().join("parts")).ok());
        parts.map_or(0, |parts| {
            parts.filter(|part| part.as_ref().is_ok_and(|p| p.path().extension().is_some())).count()
        })
    };
    let (mut seen, mut since) = (0, Instant::now());
    while seen < 11 {
        assert!(since.elapsed() < Duration::from_secs(120), "the run does not get on: {seen} parts");
        std::thread::sleep(Duration::from_millis(10));
        let now = parts();
        if now > seen {
            (seen, since) = (now, Instant::now());
        }
    }
    std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let kept = parts();
    assert!(kept >= 11);

    let refused = fail(folder, &TUNE, 1);
    assert!(refused.contains("--resume") && refused.contains("--discard"), "{refused}");
    assert!(refused.contains("`tilewright tune packs.yaml trees.yaml --budget 6"), "{refused}");
    let others: Vec<&str> = TUNE.into_iter().filter(|argument| *argument != "packs.yaml").collect();
    let refused = fail(folder, &[&others[..], &["--resume"]].concat(), 1);
    assert!(refused.contains("its scenarios was `few-packs"), "{refused}");
    let stdout = succeed(folder, &[&TUNE[..], &["--resume", "--json"]].concat());
    let outputs: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    for key in ["measurements", "module", "report"] {
        let path = folder.join(outputs[key].as_str().unwrap());
        assert!(path.is_file(), "{key}: {}", path.display());
    }
    assert_eq!(outputs["held_out"][0]["policy"], "selector");
    for name in ["selector", "PAT's rules", "PAT's planner on our kernels"] {
        assert!(
            outputs["batches"].as_array().unwrap().iter().any(|policy| policy["policy"] == name),
            "{name}"
        );
    }
    let report = std::fs::read_to_string(folder.join(outputs["report"].as_str().unwrap())).unwrap();
    assert!(!report.contains("Launch modes"), "a processor has only one");
    let timelines = assert_timelines(&measurements(folder));
    let path = folder.join(outputs["timelines"].as_str().unwrap());
    assert_eq!(read_timelines(&path).unwrap().as_ref(), Some(&timelines));
    assert_eq!(report.matches("<svg class=\"timeline\"").count(), timelines.batches.len());
    assert_eq!(parts(), 0, "a finished run leaves no parts");
    // Who goes on with a run that is over gets its files once more.
    let module = folder.join(outputs["module"].as_str().unwrap());
    let text_of_module = std::fs::read_to_string(&module).unwrap();
    std::fs::remove_file(&module).unwrap();
    succeed(folder, &[&TUNE[..], &["--resume"]].concat());
    assert_eq!(std::fs::read_to_string(&module).unwrap(), text_of_module);

    // The module is what the measurements give, here and replayed elsewhere, and a changed one is found.
    succeed(folder, &["emit", "--check", "--heuristics", "heuristics"]);
    let file = measurements(folder);
    let module = folder.join(outputs["module"].as_str().unwrap());
    let replay = ["replay", file.to_str().unwrap(), "--out", "replayed", "--json"];
    // Whether so short a run is doubted depends on the machine; a doubted selector is not written.
    let unforced: serde_json::Value = serde_json::from_str(&text(&run(folder, &replay).stdout)).unwrap();
    assert_eq!(
        unforced["module"].is_null(),
        !unforced["doubts"].as_array().unwrap().is_empty(),
        "{unforced}"
    );
    let replayed = succeed(folder, &[&replay[..], &["--force"]].concat());
    let replayed: serde_json::Value = serde_json::from_str(&replayed).unwrap();
    let again = std::fs::read_to_string(folder.join(replayed["module"].as_str().unwrap())).unwrap();
    assert_eq!(
        again,
        std::fs::read_to_string(&module).unwrap(),
        "a replay gives the same module to the byte"
    );
    let copied = folder.join(replayed["timelines"].as_str().unwrap());
    assert_eq!(read_timelines(&copied).unwrap(), Some(timelines), "timelines go with their measurements");
    std::fs::write(&module, again + "// changed\n").unwrap();
    let difference = fail(folder, &["emit", "--check", "--heuristics", "heuristics"], 3);
    assert!(difference.contains(module.file_name().unwrap().to_str().unwrap()), "{difference}");
    succeed(folder, &["emit", "--heuristics", "heuristics"]);
    succeed(folder, &["emit", "--check", "--heuristics", "heuristics"]);

    let report = succeed(folder, &["report", file.to_str().unwrap(), "--output", "again.html"]);
    assert_eq!(report.trim(), "again.html");
    let again = || std::fs::read_to_string(folder.join("again.html")).unwrap();
    assert!(again().contains("<h2>Timelines</h2>"));
    // Recordings of before have none.
    std::fs::remove_file(timelines_path(&file)).unwrap();
    succeed(folder, &["report", file.to_str().unwrap(), "--output", "again.html"]);
    assert!(!again().contains("<h2>Timelines</h2>"));
    let fitted = succeed(folder, &["fit", file.to_str().unwrap(), "--json"]);
    let fitted: serde_json::Value = serde_json::from_str(&fitted).unwrap();
    assert!(fitted["fit"]["tree"].is_object());

    // Shards are measured apart and united.
    let shard = |part: &str| {
        let out = format!("shard{}", &part[..1]);
        let path = succeed(
            folder,
            &[
                "tune",
                "packs.yaml",
                "trees.yaml",
                "--budget",
                "6",
                "--shard",
                part,
                "--out",
                &out,
                "--force",
                "--json",
            ],
        );
        let path: serde_json::Value = serde_json::from_str(&path).unwrap();
        folder.join(path["shard"].as_str().unwrap()).to_str().unwrap().to_owned()
    };
    let (first, second) = (shard("1/2"), shard("2/2"));
    let united = succeed(folder, &["replay", &first, &second, "--out", "united", "--json", "--force"]);
    let united: serde_json::Value = serde_json::from_str(&united).unwrap();
    assert!(folder.join(united["report"].as_str().unwrap()).is_file());

    // A file that was cut off is named, not believed.
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(folder.join("cut.parquet"), &bytes[..bytes.len() / 2]).unwrap();
    assert!(fail(folder, &["report", "cut.parquet"], 1).contains("cut.parquet: not a complete Parquet file"));
}

#[test]
fn a_budget_that_is_too_small_is_refused_before_it_is_spent() {
    let folder = tempfile::tempdir().unwrap();
    scenarios(folder.path());
    let (error, cpu_seconds) = fail_and_time(folder.path(), &["tune", "--device", "cpu", "--budget", "1"], 1);
    assert!(
        error.contains("leaves nothing of a budget of 1 s") && error.contains("use `--budget"),
        "{error}"
    );
    assert!(cpu_seconds > 0.0 && cpu_seconds < 30.0, "{cpu_seconds} s");
    assert!(!folder.path().join("tilewright-out").exists());
}

#[test]
fn a_bad_scenario_is_refused_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("bad.yaml"), "name: t\ntress: ['1_32']\n").unwrap();
    let error = fail(folder.path(), &["tune", "bad.yaml"], 1);
    assert!(error.contains("bad.yaml:2:") && error.contains("did you mean `trees`?"), "{error}");
    assert!(!folder.path().join("tilewright-out").exists());
}

#[test]
fn scenarios_without_batches_to_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = "name: judged\nuse: held-out\nheads: [[4, 1]]\ntrees: ['8_96']\n";
    std::fs::write(folder.path().join("judged.yaml"), text).unwrap();
    let error = fail(folder.path(), &["tune", "judged.yaml", "--device", "cpu"], 1);
    assert!(
        error.contains("no batches to fit a selector to") && error.contains("`use: held-out`"),
        "{error}"
    );
    assert!(!folder.path().join("tilewright-out").exists());
}

#[test]
fn a_comparison_checks_ours_and_names_absent_peers() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let small =
        ["compare", "--device", "cpu", "--trees", "1,10_4096,416", "--trees", "256_1024", "--heads", "32/8"];
    let small = [&small[..], &["--max-batch-mb", "1"]].concat();
    for dtype in ["bf16", "fp8-f16"] {
        let options = ["--no-peers", "--json", "--dtype", dtype, "--page-size", "16"];
        let alone = succeed(folder, &[&small[..], &options].concat());
        let alone: serde_json::Value = serde_json::from_str(&alone).unwrap();
        assert_eq!(alone["batches"].as_array().unwrap().len(), 2);
        for batch in alone["batches"].as_array().unwrap() {
            let ours = &batch["ours"]["timed"];
            assert!(ours["us"].as_f64().unwrap() > 0.0 && ours["error"].as_f64().unwrap() < 4e-2, "{batch}");
            assert_eq!((&batch["dtype"], &batch["page_size"]), (&dtype.into(), &16.into()));
            assert!(!batch["tiles"].as_array().unwrap().is_empty());
            assert!(batch["peers"].as_array().unwrap().is_empty() && batch["references_apart"].is_null());
        }
    }

    // Peers that compute on GPUs are left out in any case. Where there is a torch, it must compute the same.
    let table = succeed(folder, &[&small[..], &["--out", "out"]].concat());
    assert!(table.contains("Left out:") && table.contains("flashinfer decode"), "{table}");
    assert_eq!(std::fs::read_to_string(folder.join("out/compare.txt")).unwrap(), table);
    let written = std::fs::read_to_string(folder.join("out/compare.json")).unwrap();
    let written: serde_json::Value = serde_json::from_str(&written).unwrap();
    for batch in written["batches"].as_array().unwrap() {
        for peer in batch["peers"].as_array().unwrap() {
            assert!(peer["timed"]["us"].as_f64().unwrap() > 0.0, "{batch}");
            assert!(batch["references_apart"].as_f64().unwrap() < 1e-9, "{batch}");
        }
    }

    let nowhere = succeed(folder, &[&small[..], &["--python", "no-such-python"]].concat());
    assert!(nowhere.contains("all of them: no-such-python: cannot start"), "{nowhere}");
    let unknown = fail(folder, &["compare", "--device", "cpu", "--trees", "1,11_32,32"], 1);
    assert!(unknown.contains("there are the trees 1,10_4096,416"), "{unknown}");
}

#[test]
fn foreign_costs_are_fitted() {
    let folder = tempfile::tempdir().unwrap();
    let mut csv = String::from("rows,kv_len,a,b\n");
    for i in 0..40 {
        let (rows, kv_len) = (1 << (i % 8), 64 << (i % 5));
        let costs = match rows {
            1..=8 => "1.0,2.0",
            9..=32 => ",1.5",
            _ => "3.0,1.5",
        };
        csv += &format!("{rows},{kv_len},{costs}\n");
    }
    std::fs::write(folder.path().join("costs.csv"), csv).unwrap();
    insta::assert_snapshot!(succeed(folder.path(), &["fit", "--costs", "costs.csv"]));
    let error = fail(folder.path(), &["fit", "--costs", "costs.csv", "--features", "cols"], 1);
    assert!(error.contains("no column `cols`") && error.contains("rows, kv_len, a, b"), "{error}");
}

#[test]
fn a_foreign_tables_columns_and_rows_are_accounted_for() {
    let folder = tempfile::tempdir().unwrap();
    let write = |text: &str| std::fs::write(folder.path().join("costs.csv"), text).unwrap();
    // The table on which a hole was once a penalty; rows 7 and 8 have no candidate.
    write(
        "x,a,b,c\n1,1.0,,3.0\n2,,1.0,3.0\n3,1.0,3.0,\n4,3.0,1.0,\n5,,1.0,3.0\n6,1.0,,3.0\n7,,nan,\n8,inf,,NA\n",
    );
    let least = ["--max-depth", "1", "--least-rows", "1", "--leaf-price", "0", "--noise-permille", "0"];
    let output = run(folder.path(), &[&["fit", "--costs", "costs.csv"][..], &least].concat());
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{err}");
    assert!(err.contains("features: x\n") && err.contains("candidates: a, b, c\n"), "{err}");
    assert!(err.contains("2 rows have no valid candidate and are left out; the first is line 8"), "{err}");
    assert!(out.contains("mean regret 0.00 % on what was fitted: no tree of depth 1 over this portfolio has less mean regret (proven)"), "{out}");
    write("x,a,b\n1,1.5,2\n2,1.0,3\n");
    let error = fail(folder.path(), &["fit", "--costs", "costs.csv"], 1);
    assert!(error.contains("`b` has whole numbers only") && error.contains("--candidates c,d"), "{error}");
    succeed(folder.path(), &["fit", "--costs", "costs.csv", "--candidates", "a,b"]);
}

#[test]
fn what_is_only_for_foreign_tables_is_refused_for_recordings() {
    let folder = tempfile::tempdir().unwrap();
    for option in ["--weight", "--group", "--ignore", "--features", "--candidates"] {
        let error = fail(folder.path(), &["fit", "recorded.parquet", option, "w"], 2);
        assert!(error.contains(option) && error.contains("cannot be used with"), "{error}");
    }
}

#[test]
fn data_goes_to_stdout_and_is_json_where_asked() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [&["devices", "--json"][..], &["space", "--json"]] {
        let rows: serde_json::Value = serde_json::from_str(&succeed(folder.path(), arguments)).unwrap();
        assert!(!rows.as_array().unwrap().is_empty());
    }
    let checks = run(folder.path(), &["doctor", "--json"]);
    // 3 says that something is to be mended, a busy machine for example.
    assert!(matches!(checks.status.code(), Some(0 | 3)));
    let checks: serde_json::Value = serde_json::from_slice(&checks.stdout).unwrap();
    assert!(checks.as_array().unwrap().iter().all(|check| check["name"].is_string()));
    assert!(succeed(folder.path(), &["space", "--head-dim", "64"]).contains("feasible"));
    assert!(succeed(folder.path(), &["completions", "bash"]).contains("tilewright"));
}

#[test]
fn usage_errors_and_help_are_as_documented() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [
        &["tune", "--shard", "3/2"][..],
        &["fit"],
        &["tune", "--portfolio", "17"],
        &["nonsense"],
        &["space", "--dtype", "f8"],
        &["compare", "--dtype", "f32"],
        &["compare", "--heads", "8/32"],
        &["compare", "--peers", "torch"],
        &["compare", "--trees", "1,x_32,32"],
        &["compare", "--no-peers", "--fa3", "lib.so"],
    ] {
        fail(folder.path(), arguments, 2);
    }
    insta::assert_snapshot!(succeed(folder.path(), &["--help"]));
    let missing = fail(folder.path(), &["report", "none.parquet"], 1);
    assert!(missing.contains("none.parquet: cannot read"), "{missing}");
    let nowhere = fail(folder.path(), &["emit", "--check"], 1);
    assert!(nowhere.contains("--heuristics"), "{nowhere}");
}

#[test]
fn a_selector_file_is_explained_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let good = Path::new(env!("CARGO_MANIFEST_DIR")).join("../heuristics/selectors/nvidia_h200.json");
    let named = good.to_str().unwrap();
    let explained = succeed(folder, &["explain", "mix-roots", "--selector", named]);
    assert_eq!(explained, succeed(folder, &["explain", "mix-roots", "--device", "h200"]));
    assert!(explained.contains("NVIDIA H200"));
    // Another device follows it.
    let other =
        succeed(folder, &["explain", "mix-roots", "--selector", named, "--device", "h100-sxm", "--json"]);
    let other: serde_json::Value = serde_json::from_str(&other).unwrap();
    assert_eq!(
        (&other["selector"], &other["measured_on"]),
        (&"same capability".into(), &"NVIDIA H200".into())
    );

    let edited = std::fs::read_to_string(&good).unwrap().replacen("\"units\": 132", "\"units\": 133", 1);
    std::fs::write(folder.join("edited.json"), edited).unwrap();
    let refused = fail(folder, &["explain", "mix-roots", "--selector", "edited.json"], 1);
    assert!(refused.contains("edited.json: no selector: its checksum"), "{refused}");
    let checked = run(folder, &["doctor", "--selector", "edited.json"]);
    assert_eq!(checked.status.code(), Some(3));
    assert!(
        text(&checked.stdout).contains("its checksum is of another content"),
        "{}",
        text(&checked.stdout)
    );
}

#[test]
fn a_folder_of_selectors_goes_before_those_compiled_in() {
    let folder = tempfile::tempdir().unwrap();
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../heuristics/selectors");
    for entry in std::fs::read_dir(workspace).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    std::fs::write(folder.path().join("bad.json"), "{}").unwrap();
    let output = tilewright(folder.path())
        .env("TILEWRIGHT_SELECTORS", folder.path())
        .args(["explain", "mix-roots", "--device", "h200", "--json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("bad.json: no selector"), "{}", text(&output.stderr));
    let plain = succeed(folder.path(), &["explain", "mix-roots", "--device", "h200", "--json"]);
    assert_eq!(text(&output.stdout), plain);
}
