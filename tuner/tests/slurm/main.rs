//! The scripts for clusters against a real Slurm: tasks of an array are killed and sent back into the queue, and nothing that was measured is lost.

mod cluster;

use cluster::{Cluster, succeeded};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tilewright_tuner::store::{Level, Recording, read};

const SHARDS: usize = 3;
/// What is measured, and how: seconds for small batches, which suffice for no selector that the gate lets pass.
const TUNE: [&str; 9] =
    ["packs.yaml", "trees.yaml", "--device", "cpu", "--threads", "1", "--budget", "6", "--force"];
/// Long enough for a machine that does other things, too.
const LONG: Duration = Duration::from_secs(300);

/// What a sample is known by: workload, choice, and its time to the bit.
type Sample = (String, String, u64);

#[test]
fn killed_tasks_of_an_array_lose_nothing_and_its_shards_unite_to_a_whole_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let packs = "name: few\nheads: [[4, 1]]\npacks:\n  rows: [4, 16, 64]\n  kv_len: [32, 64, 128, 256]\n  packs: [1, 4]\n";
    std::fs::write(folder.join("packs.yaml"), packs).unwrap();
    let trees = "name: small\nheads: [[4, 1]]\ntrees: ['1,4_64,32', '8_96', '1,8_128,64']\n";
    std::fs::write(folder.join("trees.yaml"), trees).unwrap();
    let cluster = Cluster::start(&folder.join("slurm"));
    let program = assert_cmd::cargo::cargo_bin("tilewright");

    let submit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/slurm/submit");
    let path = [program.parent().unwrap().into(), PathBuf::from(std::env::var_os("PATH").unwrap())];
    let path = path.map(|path| path.into_os_string()).join(std::ffi::OsStr::new(":"));
    let submitted = |command: &mut Command| {
        let command = command.current_dir(folder).env("PATH", &path);
        succeeded(command.output().unwrap())
    };
    let said = submitted(cluster.command(submit).arg(SHARDS.to_string()).arg("shared").args(TUNE));
    // "array 1: shards into ...; job 4: ..."
    let number = |before: &str| said.split(before).nth(1).and_then(|rest| rest.split(':').next()).unwrap();
    let (array, unite) = (number("array "), number("; job "));
    // A whole run beside them.
    let tune = format!("tilewright tune {} --out whole", TUNE.join(" "));
    let whole =
        submitted(cluster.command("sbatch").args(["--parsable", "--output=whole.log", "--wrap", &tune]));

    // One task is killed, and another one is told to end and to begin again, as a preemption does.
    let shared = folder.join("shared");
    let shard = |index: usize| shared.join(format!("shard-{index}"));
    let task = |index: usize| format!("{array}_{index}");
    let kill = || {
        let lock = std::fs::read_to_string(run_folder(&shard(1)).unwrap().join(".lock")).unwrap();
        let process = lock.trim().strip_prefix("process ").unwrap();
        assert!(Command::new("kill").args(["-KILL", process]).status().unwrap().success());
    };
    let requeue = || {
        cluster.slurm("scontrol", &["requeue", &task(2)]);
    };
    let mut to_do: Vec<(usize, &dyn Fn())> = vec![(1, &kill), (2, &requeue)];
    cluster.wait("a shard that measures", LONG, |_| {
        to_do.retain(|(index, end)| {
            let measures = parts(&shard(*index)).len() >= 5;
            if measures {
                end();
            }
            !measures
        });
        to_do.is_empty().then_some(())
    });
    let mut known = BTreeSet::new();
    for index in [1, 2] {
        let ended = |cluster: &Cluster| (cluster.field(&task(index), "Restarts") == "1").then_some(());
        cluster.wait("a task in the queue again", LONG, ended);
        let found: BTreeSet<Sample> =
            parts(&shard(index)).iter().flat_map(|part| samples(&read(part).unwrap())).collect();
        assert!(!found.is_empty());
        known.extend(found);
    }

    for job in [unite, whole.trim()] {
        cluster.wait("a finished job", LONG, |cluster| match cluster.field(job, "JobState").as_str() {
            "COMPLETED" => Some(()),
            "PENDING" | "RUNNING" | "COMPLETING" => None,
            other => panic!("job {job} is {other}\n{}", cluster.logs()),
        });
    }
    let log = |name: &str| std::fs::read_to_string(shared.join("logs").join(name)).unwrap();
    assert!(log("shard-1.log").contains("ended by signal 9"), "{}", log("shard-1.log"));
    assert!(log("shard-2.log").contains("holds everything measured so far"), "{}", log("shard-2.log"));

    let united = run_folder(&shared.join("united")).unwrap();
    let recording = read(&united.join("measurements.parquet")).unwrap();
    let found = samples(&recording);
    assert!(known.is_subset(&found), "{} samples are gone", known.difference(&found).count());
    let whole = read(&run_folder(&folder.join("whole")).unwrap().join("measurements.parquet")).unwrap();
    assert_eq!(workloads(&recording), workloads(&whole));
    assert_eq!(workloads(&recording).len(), 24 + 3);
    let files = |extension: &str| {
        let entries = std::fs::read_dir(&united).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|found| found == extension)).count()
    };
    assert_eq!(["rs", "json", "html"].map(files), [1; 3], "module, selector and report");

    // Who submits the same once more has it at once: what is over is left as it is.
    let again = Command::new(&program)
        .current_dir(folder)
        .arg("tune")
        .args(TUNE)
        .args(["--shard", "1/3", "--out", "shared/shard-1", "--resume"])
        .output()
        .unwrap();
    let said = succeeded(again);
    assert_eq!(Path::new(said.trim()).file_name().unwrap(), "shard-1-of-3.parquet");
}

/// The folder of the one device in a folder of results.
fn run_folder(out: &Path) -> Option<PathBuf> {
    Some(std::fs::read_dir(out).ok()?.next()?.ok()?.path())
}

/// What a run that is not over has measured.
fn parts(out: &Path) -> Vec<PathBuf> {
    let parts = run_folder(out).and_then(|run| std::fs::read_dir(run.join("parts")).ok());
    let is_part = |path: &PathBuf| {
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        path.extension().is_some_and(|extension| extension == "parquet")
            && stem.is_some_and(|stem| stem.parse::<u32>().is_ok())
    };
    parts.into_iter().flatten().flatten().map(|part| part.path()).filter(is_part).collect()
}

fn samples(recording: &Recording) -> BTreeSet<Sample> {
    let mut found = BTreeSet::new();
    for row in &recording.rows {
        found
            .extend(row.samples_us.iter().map(|us| (row.workload.clone(), row.choice.clone(), us.to_bits())));
    }
    found
}

/// The batches that were measured.
fn workloads(recording: &Recording) -> BTreeSet<String> {
    let batches = recording.rows.iter().filter(|row| row.level == Level::Batch && !row.samples_us.is_empty());
    batches.map(|row| row.workload.clone()).collect()
}
