//! A Slurm cluster of this machine alone: real `munged`, `slurmctld` and `slurmd`, as this user, in a folder of their own, until it is dropped.

use std::fmt::Write as _;
use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// CPUs that jobs may ask for, whatever the machine has: tasks of a job array run side by side.
const CPUS: usize = 4;
/// Where Debian has daemons, which a user's PATH may lack.
const DAEMONS: &str = "/usr/sbin";

pub(crate) struct Cluster {
    folder: PathBuf,
    daemons: Vec<Child>,
}

impl Cluster {
    /// Starts the daemons in a folder, and waits until a job can run.
    pub(crate) fn start(folder: &Path) -> Self {
        for daemon in ["munged", "slurmctld", "slurmd"] {
            assert!(
                Path::new(DAEMONS).join(daemon).exists(),
                "the scripts for clusters are tested with Slurm: install Debian's packages `slurmctld`, `slurmd`, `slurm-client` and `munge`, \
                 or run `scripts/test`, which does"
            );
        }
        for part in ["state", "spool", "run", "log"] {
            std::fs::create_dir_all(folder.join(part)).unwrap();
        }
        // The daemons want a folder that others cannot write, and clients one that they can pass.
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut key = [0; 64];
        std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut key).unwrap();
        std::fs::write(folder.join("munge.key"), key).unwrap();
        std::fs::set_permissions(folder.join("munge.key"), std::fs::Permissions::from_mode(0o400)).unwrap();
        std::fs::write(folder.join("slurm.conf"), configuration(folder)).unwrap();
        // Nothing uses control groups, which this user may not be allowed to make. Slurm loads a plugin for them all the same: that of
        // version 1 does nothing until it is asked, and from 23.02 on there can be none.
        let plugin = if version() < 23 { "cgroup/v1" } else { "disabled" };
        std::fs::write(folder.join("cgroup.conf"), format!("CgroupPlugin={plugin}\n")).unwrap();

        let mut cluster = Self { folder: folder.to_owned(), daemons: Vec::new() };
        let at = |name: &str| folder.join(name).display().to_string();
        cluster.daemon(
            "munged",
            &[
                "--foreground",
                "--force",
                &format!("--key-file={}", at("munge.key")),
                &format!("--socket={}", at("run/munge.socket")),
                &format!("--pid-file={}", at("run/munged.pid")),
                &format!("--seed-file={}", at("run/munged.seed")),
                &format!("--log-file={}", at("log/munged.log")),
            ],
        );
        cluster.wait("munged", Duration::from_secs(20), |_| {
            folder.join("run/munge.socket").exists().then_some(())
        });
        cluster.daemon("slurmctld", &["-D", "-f", &at("slurm.conf")]);
        cluster.daemon("slurmd", &["-D", "-f", &at("slurm.conf")]);
        cluster.wait("a node that is idle", Duration::from_secs(30), |cluster| {
            let state = cluster.command("sinfo").args(["--noheader", "--format=%T"]).output().ok()?;
            (text(&state.stdout).trim() == "idle").then_some(())
        });
        cluster
    }

    /// A program that speaks to this cluster.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.folder.join("slurm.conf")).stdin(Stdio::null());
        command
    }

    /// What a program of Slurm says that must succeed.
    pub(crate) fn slurm(&self, program: &str, arguments: &[&str]) -> String {
        succeeded(self.command(program).args(arguments).output().unwrap())
    }

    /// A field of what Slurm knows of a job; empty where it knows none.
    pub(crate) fn field(&self, job: &str, name: &str) -> String {
        let shown = self.slurm("scontrol", &["show", "job", "--oneliner", job]);
        let of = |word: &str| Some(word.split_once('=').filter(|(key, _)| *key == name)?.1.to_owned());
        shown.split_whitespace().find_map(of).unwrap_or_default()
    }

    /// Waits for something, and tells what the daemons and jobs said if it does not come.
    pub(crate) fn wait<T>(&self, what: &str, time: Duration, mut come: impl FnMut(&Self) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            if let Some(it) = come(self) {
                return it;
            }
            assert!(begin.elapsed() < time, "{what} did not come in {time:?}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The queue, and the last lines of all logs in the folder around the cluster's.
    pub(crate) fn logs(&self) -> String {
        let queue = self.command("squeue").args(["--all", "--array"]).output();
        let mut all = queue.map(|queue| text(&queue.stdout)).unwrap_or_default();
        let mut folders = vec![self.folder.parent().unwrap_or(&self.folder).to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "log" || extension == "out") {
                    let text = std::fs::read(&path).map(|bytes| text(&bytes)).unwrap_or_default();
                    let lines: Vec<&str> = text.lines().rev().take(25).collect();
                    let lines: Vec<&str> = lines.into_iter().rev().collect();
                    let _ = writeln!(all, "--- {}\n{}", path.display(), lines.join("\n"));
                }
            }
        }
        all
    }

    /// Starts a daemon that ends with this test, in whatever way the test ends.
    fn daemon(&mut self, name: &str, arguments: &[&str]) {
        let said = std::fs::File::create(self.folder.join(format!("log/{name}.out"))).unwrap();
        let child = self
            .command("setpriv")
            .args(["--pdeathsig", "TERM"])
            .arg(Path::new(DAEMONS).join(name))
            .args(arguments)
            .stdout(said.try_clone().unwrap())
            .stderr(said)
            .spawn();
        self.daemons.push(child.expect("util-linux has setpriv"));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Jobs outlive slurmd.
        let _ = self
            .command("scancel")
            .args(["--full", "--signal=KILL", "--state=RUNNING"])
            .arg("--user")
            .arg(user())
            .output();
        let _ = self.command("scancel").arg("--user").arg(user()).output();
        for daemon in self.daemons.iter_mut().rev() {
            let _ = Command::new("kill").arg(daemon.id().to_string()).output();
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(5) && matches!(daemon.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// One node, no control groups, and a queue that takes a requeued task back in seconds (`cred_expire`).
fn configuration(folder: &Path) -> String {
    let (host, user, folder) = (host(), user(), folder.display());
    let [controller, node] = free_ports();
    format!(
        "ClusterName=tilewright\n\
         SlurmctldHost={host}(127.0.0.1)\n\
         SlurmctldPort={controller}\n\
         SlurmdPort={node}\n\
         SlurmUser={user}\n\
         SlurmdUser={user}\n\
         AuthType=auth/munge\n\
         AuthInfo=socket={folder}/run/munge.socket,cred_expire=5\n\
         StateSaveLocation={folder}/state\n\
         SlurmdSpoolDir={folder}/spool\n\
         SlurmctldPidFile={folder}/run/slurmctld.pid\n\
         SlurmdPidFile={folder}/run/slurmd.pid\n\
         SlurmctldLogFile={folder}/log/slurmctld.log\n\
         SlurmdLogFile={folder}/log/slurmd.log\n\
         ProctrackType=proctrack/linuxproc\n\
         TaskPlugin=task/none\n\
         JobAcctGatherType=jobacct_gather/none\n\
         AccountingStorageType=accounting_storage/none\n\
         MpiDefault=none\n\
         MailProg=/bin/true\n\
         SelectType=select/cons_tres\n\
         SelectTypeParameters=CR_Core\n\
         SchedulerType=sched/builtin\n\
         ReturnToService=2\n\
         KillWait=10\n\
         SlurmdParameters=config_overrides\n\
         NodeName={host} NodeAddr=127.0.0.1 CPUs={CPUS} RealMemory=512\n\
         PartitionName=all Nodes=ALL Default=YES\n"
    )
}

/// Ports that are free now.
fn free_ports() -> [u16; 2] {
    let listeners = [0, 0].map(|port| TcpListener::bind(("127.0.0.1", port)).unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// The year of Slurm's version.
fn version() -> u32 {
    // "slurm-wlm 22.05.8"
    let said = succeeded(Command::new(Path::new(DAEMONS).join("slurmd")).arg("-V").output().unwrap());
    said.split_whitespace()
        .nth(1)
        .and_then(|version| version.split('.').next()?.parse().ok())
        .expect("a version")
}

fn host() -> String {
    succeeded(Command::new("uname").arg("-n").output().unwrap()).trim().split('.').next().unwrap().to_owned()
}

fn user() -> String {
    succeeded(Command::new("id").arg("-un").output().unwrap()).trim().to_owned()
}

pub(crate) fn succeeded(output: Output) -> String {
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
