//! The peers: other programs' kernels, asked by a Python script in a process of its own. One that crashes or hangs costs that peer this
//! batch, never the run.

use super::connection::Connection;
use super::protocol::{Answer, Request};
use super::results::{Contender, Outcome};
use crate::measure::worker::WorkerCommand;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The script. It is part of the program, and can be run by hand.
const SCRIPT: [(&str, &str); 4] = [
    ("ask_peers.py", include_str!("script/ask_peers.py")),
    ("batches.py", include_str!("script/batches.py")),
    ("callers.py", include_str!("script/callers.py")),
    ("clock.py", include_str!("script/clock.py")),
];

/// The peers that the script knows, in the order in which it asks them.
pub const PEER_NAMES: [&str; 6] = [
    "flashinfer decode",
    "flashinfer cascade",
    "flash-attention 3",
    "vllm triton",
    "torch flex",
    "torch sdpa",
];

/// Processes that a peer may end before it is asked no more.
const MAX_DEATHS: usize = 2;
/// Processes that may end one after the other without a word about any peer.
const MAX_SILENT: usize = 2;

/// How the peers are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerOptions {
    /// The Python that has torch and the peers.
    pub python: PathBuf,
    /// Where to compute: `cuda:0` or `cpu`.
    pub device: String,
    /// A library with FlashAttention 3's paged operator, for a Python that has no package of it.
    pub fa3: Option<PathBuf>,
    /// The peers to ask; all if there are none.
    pub only: Vec<String>,
    /// How long a process may take to start: imports are slow.
    pub start: Duration,
    /// How long a peer may take for a batch, its compilation included.
    pub peer: Duration,
}

/// The peers.
#[derive(Debug)]
pub struct Peers {
    command: WorkerCommand,
    /// Kept until the last process has ended.
    _script: Option<tempfile::TempDir>,
    start: Duration,
    peer: Duration,
    connection: Option<Connection>,
    /// Processes that each peer has ended.
    deaths: BTreeMap<String, usize>,
    available: Vec<String>,
    absent: Vec<(String, String)>,
    versions: Vec<(String, String)>,
    /// Why no peer can be asked any more.
    defect: Option<String>,
}

/// What the peers made of a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked {
    /// Those that were asked.
    pub peers: Vec<Contender>,
    /// What the sampled requests should be, as the peers' side computes it.
    pub reference: Option<Vec<f64>>,
}

impl Peers {
    /// Starts the script. That it cannot be started is no error: no peer can be asked then, and [`Peers::absent`] says why.
    ///
    /// # Errors
    /// The script cannot be written to the folder for temporary files.
    pub fn start(options: &PeerOptions) -> std::io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("tilewright-peers-").tempdir()?;
        for (name, text) in SCRIPT {
            std::fs::write(folder.path().join(name), text)?;
        }
        let mut arguments = vec![folder.path().join(SCRIPT[0].0).into_os_string()];
        arguments.extend(["--device".into(), options.device.clone().into()]);
        if let Some(fa3) = &options.fa3 {
            arguments.extend(["--fa3".into(), fa3.into()]);
        }
        for peer in &options.only {
            arguments.extend(["--peer".into(), peer.into()]);
        }
        // Compilers inside of the process: what they start must not outlive it.
        let environment = [("TORCHINDUCTOR_COMPILE_THREADS", "1"), ("VLLM_LOGGING_LEVEL", "ERROR")];
        let environment = environment.map(|(name, value)| (name.into(), value.into())).to_vec();
        let command = WorkerCommand { program: options.python.clone(), arguments, environment };
        Ok(Self::with(command, Some(folder), options.start, options.peer))
    }

    fn with(
        command: WorkerCommand,
        script: Option<tempfile::TempDir>,
        start: Duration,
        peer: Duration,
    ) -> Self {
        let mut peers = Self {
            command,
            _script: script,
            start,
            peer,
            connection: None,
            deaths: BTreeMap::new(),
            available: Vec::new(),
            absent: Vec::new(),
            versions: Vec::new(),
            defect: None,
        };
        if let Err(error) = peers.connect() {
            peers.give_up(error);
        }
        peers
    }

    /// Peers that can be asked.
    pub fn available(&self) -> &[String] {
        &self.available
    }

    /// Peers that cannot be asked, and why.
    pub fn absent(&self) -> &[(String, String)] {
        &self.absent
    }

    /// Their software.
    pub fn versions(&self) -> &[(String, String)] {
        &self.versions
    }

    /// Asks all of them about a batch. Those whose error is above the request's tolerance have computed something else: they get no time.
    pub fn ask(&mut self, mut request: Request<'_>) -> Asked {
        let bad = self.deaths.iter().filter(|(_, deaths)| **deaths >= MAX_DEATHS);
        let banned = bad.map(|(peer, _)| left_out(peer, "not asked again: it has ended its process twice"));
        let mut asked = Asked { peers: banned.collect(), reference: None };
        let mut silent = 0;
        // Each turn but a silent one adds a peer to those that are skipped.
        loop {
            request.skip = asked.peers.iter().map(|peer| peer.name.clone()).collect();
            if self.available.iter().all(|peer| request.skip.contains(peer)) {
                return asked;
            }
            let before = asked.peers.len();
            let end = match self.connect() {
                Ok(()) => self.converse(&request, &mut asked),
                Err(error) => {
                    self.give_up(error.clone());
                    End::Silent(error)
                }
            };
            let why = match end {
                End::Done => return asked,
                End::Silent(why) if asked.peers.len() > before => {
                    tracing::warn!("the peers' process is started again: {why}");
                    silent = 0;
                    continue;
                }
                End::Silent(why) => why,
                End::Refused(why) => {
                    self.leave_out_the_rest(&mut asked, &why);
                    return asked;
                }
            };
            silent += 1;
            if self.defect.is_some() || silent >= MAX_SILENT {
                self.leave_out_the_rest(&mut asked, &why);
                return asked;
            }
        }
    }

    fn leave_out_the_rest(&self, asked: &mut Asked, why: &str) {
        for peer in &self.available {
            if asked.peers.iter().all(|asked| asked.name != *peer) {
                asked.peers.push(left_out(peer, why));
            }
        }
    }

    fn give_up(&mut self, why: String) {
        self.connection = None;
        if self.available.is_empty() && self.absent.is_empty() {
            self.absent.push(("all of them".to_owned(), why.clone()));
        }
        self.defect = Some(why);
    }

    /// A process that has said hello, started anew if there is none.
    fn connect(&mut self) -> Result<(), String> {
        if let Some(defect) = &self.defect {
            return Err(defect.clone());
        }
        if self.connection.as_mut().is_some_and(Connection::alive) {
            return Ok(());
        }
        self.connection = None;
        let mut connection = Connection::of(self.command.start()?);
        match connection.receive(self.start)? {
            Answer::Hello { versions, peers, absent } => {
                (self.versions, self.available, self.absent) = (versions, peers, absent);
                self.connection = Some(connection);
                Ok(())
            }
            other => Err(format!("the script began with {other:?}")),
        }
    }

    fn converse(&mut self, request: &Request<'_>, asked: &mut Asked) -> End {
        let Some(connection) = &mut self.connection else { return End::Silent("there is no process".into()) };
        let line = match serde_json::to_string(request) {
            Ok(line) => line,
            Err(error) => return End::Refused(format!("the batch cannot be sent: {error}")),
        };
        connection.send(line);
        // Whom to blame if nothing more is heard.
        let mut begun: Option<String> = None;
        loop {
            let answer = match connection.receive(self.peer) {
                Ok(answer) => answer,
                Err(why) => {
                    self.connection = None;
                    if let Some(peer) = begun {
                        *self.deaths.entry(peer.clone()).or_default() += 1;
                        asked.peers.push(left_out(&peer, &why));
                    }
                    return End::Silent(why);
                }
            };
            match answer {
                Answer::Reference { id, numbers } if id == request.id => asked.reference = Some(numbers),
                Answer::Begin { peer } => begun = Some(peer),
                Answer::Timed { peer, us, error, how } => {
                    let outcome = judge(us, error.unwrap_or(f64::INFINITY), how, request.tolerance);
                    asked.peers.push(Contender { name: peer, outcome });
                    begun = None;
                }
                Answer::LeftOut { peer, reason } => {
                    asked.peers.push(left_out(&peer, &reason));
                    begun = None;
                }
                Answer::Done { id } if id == request.id => return End::Done,
                Answer::Refused { id, reason } if id == request.id => return End::Refused(reason),
                Answer::Restart { reason } => {
                    self.connection = None;
                    return End::Silent(reason);
                }
                other => {
                    self.connection = None;
                    return End::Silent(format!("the script has lost its thread: {other:?}"));
                }
            }
        }
    }
}

/// How a conversation about a batch ended.
enum End {
    Done,
    /// The process is gone.
    Silent(String),
    /// The batch cannot be made.
    Refused(String),
}

fn left_out(peer: &str, reason: &str) -> Contender {
    Contender { name: peer.to_owned(), outcome: Outcome::LeftOut { reason: reason.to_owned() } }
}

/// A time, if what was computed is attention over the batch.
fn judge(us: f64, error: f64, how: String, tolerance: f64) -> Outcome {
    if !(us > 0.0 && us.is_finite()) {
        return Outcome::LeftOut { reason: format!("failed: {us} is no time") };
    }
    if error <= tolerance { Outcome::Timed { us, error, how } } else { Outcome::wrong(error, tolerance) }
}

#[cfg(all(test, unix))]
#[path = "peers_tests.rs"]
mod tests;
