//! Scripts that answer as peers do, and some that crash, hang or talk nonsense.

use super::*;
use std::time::Instant;
use tilewright_scenarios::{Batch, Scenario};

fn batch() -> Batch {
    let text = "name: t\nheads: [[2, 1]]\nhead_dims: [64]\ntrees: ['2_32']\n";
    Scenario::parse(text, "t.yaml").unwrap().batches().unwrap()[0].build().unwrap()
}

const HELLO: &str = r#"echo '{"kind":"hello","versions":[["torch","2.11"]],"peers":["a","b","c"],"absent":[["d","no module d"]]}'"#;

/// Peers whose process is this shell script. A peer `p` is asked unless the request names it among those to skip.
fn peers(script: &str) -> Peers {
    let functions = r#"
asked() { case "$line" in *'"skip":['*"\"$1\""*) return 1;; esac; echo "{\"kind\":\"begin\",\"peer\":\"$1\"}"; }
timed() { asked "$1" && echo "{\"kind\":\"timed\",\"peer\":\"$1\",\"us\":$2,\"error\":$3,\"how\":\"graph\"}"; }
"#;
    let script = format!("{functions}\n{HELLO}\nwhile read -r line; do\n{script}\ndone\n");
    let arguments = vec!["-c".into(), script.into()];
    let command = WorkerCommand { program: "sh".into(), arguments, environment: Vec::new() };
    Peers::with(command, None, Duration::from_secs(20), Duration::from_secs(1))
}

fn ask(peers: &mut Peers) -> Asked {
    let batch = batch();
    peers.ask(Request::of(7, &batch, &[0, 1], 1e-2))
}

fn said(asked: &Asked) -> Vec<(&str, String)> {
    let text = |outcome: &Outcome| match outcome {
        Outcome::Timed { us, .. } => us.to_string(),
        Outcome::LeftOut { reason } => reason.clone(),
    };
    asked.peers.iter().map(|peer| (peer.name.as_str(), text(&peer.outcome))).collect()
}

#[test]
fn peers_that_compute_something_else_are_not_timed() {
    let mut peers = peers(
        r#"echo '{"kind":"reference","id":7,"numbers":[0.5,-1]}'
           timed a 12.5 1e-3; timed b 3 null; timed c 0 1e-3; echo '{"kind":"done","id":7}'"#,
    );
    assert_eq!(peers.available(), ["a", "b", "c"]);
    assert_eq!(peers.absent(), [("d".to_owned(), "no module d".to_owned())]);
    assert_eq!(peers.versions()[0].1, "2.11");
    let asked = ask(&mut peers);
    assert_eq!(asked.reference, Some(vec![0.5, -1.0]));
    let wrong = "wrong: a row is off by inf of its norm, allowed 1e-2".to_owned();
    assert_eq!(
        said(&asked),
        [("a", "12.5".to_owned()), ("b", wrong), ("c", "failed: 0 is no time".to_owned())]
    );
    assert_eq!(ask(&mut peers), asked, "the same process takes the next batch");
}

#[test]
fn one_that_dies_or_hangs_costs_itself_this_batch_and_twice_all() {
    let mut peers = peers(
        r#"timed a 1 0; if asked b; then echo "b fell over" >&2; exit 3; fi
           if asked c; then sleep 60; fi; echo '{"kind":"done","id":7}'"#,
    );
    let begin = Instant::now();
    let died = "the process died: exit status 3: b fell over".to_owned();
    let hung = "nothing was heard for 1 s; the process was stopped".to_owned();
    let expected = [("a", "1".to_owned()), ("b", died), ("c", hung)];
    assert_eq!(said(&ask(&mut peers)), expected);
    assert_eq!(said(&ask(&mut peers)), expected);
    let no_more = "not asked again: it has ended its process twice".to_owned();
    assert_eq!(said(&ask(&mut peers)), [("b", no_more.clone()), ("c", no_more), ("a", "1".to_owned())]);
    assert!(begin.elapsed() < Duration::from_secs(30));
}

#[test]
fn after_a_broken_device_peers_run_in_another_process() {
    let mut peers = peers(
        r#"if asked a; then echo '{"kind":"left_out","peer":"a","reason":"failed: illegal address"}'
             echo '{"kind":"restart","reason":"the device is broken"}'; exit 0; fi
           timed b 2 0; timed c 3 0; echo '{"kind":"done","id":7}'"#,
    );
    let failed = "failed: illegal address".to_owned();
    let expected = [("a", failed), ("b", "2".to_owned()), ("c", "3".to_owned())];
    assert_eq!(said(&ask(&mut peers)), expected);
    assert_eq!(said(&ask(&mut peers)), expected, "such a peer is asked about the next batch");
}

#[test]
fn a_batch_without_peers_says_why_and_the_next_is_asked() {
    let mut refusing = peers(r#"echo '{"kind":"refused","id":7,"reason":"out of memory"}'"#);
    let asked = ask(&mut refusing);
    assert!(said(&asked).iter().all(|(_, reason)| reason == "out of memory"), "{asked:?}");
    assert_eq!(asked.peers.len(), 3);
    for (script, reason) in [
        ("exit 9", "the process died: exit status 9"),
        ("echo INFO hello", "no answer"),
        (r#"echo '{"kind":"done","id":8}'"#, "lost its thread"),
    ] {
        let asked = ask(&mut peers(script));
        assert_eq!(asked.peers.len(), 3);
        assert!(said(&asked).iter().all(|(_, said)| said.contains(reason)), "{asked:?}");
    }
}

#[test]
fn without_a_python_no_peer_is_asked_and_that_is_said() {
    let options = PeerOptions {
        python: "no-such-python".into(),
        device: "cpu".to_owned(),
        fa3: None,
        only: Vec::new(),
        start: Duration::from_secs(20),
        peer: Duration::from_secs(20),
    };
    let mut peers = Peers::start(&options).unwrap();
    assert!(peers.available().is_empty());
    let (who, why) = &peers.absent()[0];
    assert_eq!(who, "all of them");
    assert!(why.starts_with("no-such-python: cannot start"), "{why}");
    assert_eq!(ask(&mut peers), Asked::default());
    let silent = PeerOptions { python: "false".into(), ..options };
    let peers = Peers::start(&silent).unwrap();
    assert!(peers.absent()[0].1.contains("the process died: exit status 1"), "{peers:?}");
}

/// What the script says on the host's Python, which needs no torch for it.
fn python(arguments: &[&str], text: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/compare/script");
    let mut command = std::process::Command::new("python3");
    command.current_dir(folder).env("PYTHONDONTWRITEBYTECODE", "1").args(arguments).arg(text);
    let output = command.output().expect("python3 is there: `scripts/test` installs it");
    let [said, errors] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success(), "{said}\n{errors}");
    said
}

#[test]
fn the_scripts_own_tests_pass() {
    python(&[], "tests.py");
}

#[test]
fn the_script_knows_the_peers_that_a_user_may_name() {
    let said = python(&["ask_peers.py", "--device", "cpu"], "--list");
    let names: std::collections::BTreeSet<&str> =
        said.lines().filter_map(|line| Some(line.split_once(": ")?.0)).collect();
    assert_eq!(names, PEER_NAMES.into());
}

#[test]
fn the_scripts_example_has_the_fields_of_a_request() {
    let example: serde_json::Value = serde_json::from_str(&python(&["ask_peers.py"], "--example")).unwrap();
    let batch = batch();
    let request = serde_json::to_value(Request::of(0, &batch, &[0], 1e-2)).unwrap();
    let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&example), keys(&request));
    assert_eq!(example["block"], request["block"]);
}

#[test]
fn both_sides_draw_the_same_numbers() {
    use crate::measure::numbers::{BLOCK, Stream, number};
    let places = [0, 1, 2, 12_345, 1 << 20, u32::try_from(BLOCK).unwrap() - 1];
    let program = format!(
        "from batches import number\nfor s in (1, 2, 3):\n  for p in {places:?}:\n    print(repr(number(s, p)))"
    );
    let said = python(&["-c"], &program);
    let theirs: Vec<f64> = said.lines().map(|line| line.parse().unwrap()).collect();
    let ours: Vec<f64> = [Stream::Keys, Stream::Values, Stream::Query]
        .iter()
        .flat_map(|&stream| places.map(|place| f64::from(number(stream, place))))
        .collect();
    assert_eq!(theirs, ours);
}

#[test]
fn the_script_says_hello_and_which_peers_it_has() {
    let options = PeerOptions {
        python: "python3".into(),
        device: "cpu".to_owned(),
        fa3: None,
        only: vec!["torch sdpa".to_owned(), "vllm triton".to_owned()],
        start: Duration::from_secs(120),
        peer: Duration::from_secs(120),
    };
    let mut peers = Peers::start(&options).unwrap();
    let absent: Vec<&str> = peers.absent().iter().map(|(peer, _)| peer.as_str()).collect();
    assert!(absent.contains(&"vllm triton"), "it computes on GPUs only: {peers:?}");
    assert_eq!(absent.len() + peers.available().len(), 2);
    assert_eq!(peers.versions()[0].0, "python");
    // Where there is a torch, it is asked, and computes the same as the reference.
    let asked = ask(&mut peers);
    assert_eq!(asked.peers.len(), peers.available().len());
    for peer in &asked.peers {
        assert!(peer.outcome.us().is_some(), "{peer:?}");
        let theirs = asked.reference.as_deref().unwrap_or_default();
        let ours = super::super::reference::reference(&batch(), &[0, 1]).unwrap();
        assert!(super::super::reference::apart(&ours, theirs) < 1e-9);
    }
    let misspelt = PeerOptions { only: vec!["torch".to_owned()], ..options };
    let peers = Peers::start(&misspelt).unwrap();
    assert!(
        peers.absent()[0].1.contains("no peer is called torch; there are flashinfer decode"),
        "{peers:?}"
    );
}
