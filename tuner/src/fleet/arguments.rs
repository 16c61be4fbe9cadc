//! The command of a worker: that of the run, for the devices of one model.

use super::Worker;
use std::ffi::OsString;

/// Options that each worker has of its own, with whether a value follows.
const OWN: [(&str, bool); 5] =
    [("--device", true), ("--out", true), ("--resume", false), ("--discard", false), ("--json", false)];

/// The arguments of a worker, from those of the run without the program: the same but for devices and folder.
pub fn worker_arguments(
    run: impl IntoIterator<Item = OsString>,
    worker: &Worker,
    start: Option<&str>,
) -> Vec<OsString> {
    let mut arguments = Vec::new();
    let mut run = run.into_iter();
    while let Some(argument) = run.next() {
        if argument == "--" {
            // What follows are scenarios, whatever they are called.
            arguments.push(argument);
            arguments.extend(run);
            break;
        }
        let text = argument.to_string_lossy();
        let own = OWN.iter().find(|(name, takes_value)| {
            text == *name
                || (*takes_value && text.strip_prefix(name).is_some_and(|rest| rest.starts_with('=')))
        });
        match own {
            Some((name, true)) if text == *name => drop(run.next()),
            Some(_) => {}
            None => arguments.push(argument),
        }
    }
    let behind = arguments.iter().position(|argument| argument == "tune").map_or(0, |at| at + 1);
    let mut of_worker: Vec<OsString> = vec![
        "--device".into(),
        worker.device_list().to_string().into(),
        "--out".into(),
        worker.out.clone().into(),
        "--json".into(),
    ];
    of_worker.extend(start.map(OsString::from));
    arguments.splice(behind..behind, of_worker);
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_name::DeviceName;

    #[test]
    fn a_worker_gets_the_runs_command_for_its_devices() {
        let devices = vec![DeviceName::Cuda(1), DeviceName::Cuda(3)];
        let worker = Worker { devices, out: "o/w".into() };
        let of = |run: &str, start| {
            let run = run.split(' ').map(OsString::from);
            let arguments = worker_arguments(run, &worker, start);
            arguments.into_iter().map(|a| a.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            of(
                "-v tune a.yaml --device=cuda:all --budget 9 --out o --json --resume -- --out",
                Some("--resume")
            ),
            "-v tune --device cuda:1,cuda:3 --out o/w --json --resume a.yaml --budget 9 -- --out"
        );
        assert_eq!(
            of("tune --out=o --device cuda:all --discard", None),
            "tune --device cuda:1,cuda:3 --out o/w --json"
        );
    }
}
