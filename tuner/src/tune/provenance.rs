//! How this run's measurements come about.

use crate::analysis::short_hash;
use crate::fit_settings::FitSettings;
use crate::measure::Benches;
use crate::prior::Prior;
use crate::store::{Hashes, Provenance};
use crate::workloads::Workloads;
use std::borrow::Cow;
use std::time::SystemTime;
use tilewright_kernel_templates::Space;

pub(super) fn provenance(
    (benches, differing): (&Benches<'_>, Vec<String>),
    space: &Space,
    (workloads, which): (&Workloads, String),
    (fit, prior): (&FitSettings, Option<Prior>),
) -> Provenance {
    let bench = benches.first();
    let mut warnings = differing;
    for warning in benches.all().flat_map(|bench| bench.warnings()) {
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }
    let tiles: Vec<String> = space.tiles().iter().map(ToString::to_string).collect();
    let mut versions = vec![("tilewright".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
    versions.extend(bench.versions());
    Provenance {
        device: bench.device(),
        limits: bench.facts(),
        prices: Some(bench.prices().into()),
        versions,
        hashes: Hashes { kernel: bench.kernel_hash(), space: short_hash(tiles.join(" ").as_bytes()) },
        scenarios: workloads.records.clone(),
        workloads: which,
        command: recorded(std::env::args()),
        started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        cold_caches: bench.cold_caches(),
        limit_method: bench.limit_method(),
        warnings,
        fit: fit.clone(),
        prior,
    }
}

/// The command that goes on with this run.
pub fn command_to_go_on() -> String {
    go_on(std::env::args())
}

fn go_on(arguments: impl Iterator<Item = String>) -> String {
    let known = |argument: &String| argument != "--discard" && argument != "--resume";
    command(arguments.filter(known).chain(["--resume".to_owned()]))
}

/// The command without where files go: folders of a machine say nothing about the measurement.
fn recorded(arguments: impl Iterator<Item = String>) -> String {
    const PLACES: [&str; 2] = ["--out", "--heuristics"];
    let mut kept = Vec::new();
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let is_place = |place: &str| argument.strip_prefix(place).is_some_and(|rest| rest.starts_with('='));
        if PLACES.contains(&argument.as_str()) {
            arguments.next();
        } else if !PLACES.into_iter().any(is_place) {
            kept.push(argument);
        }
    }
    command(kept.into_iter())
}

/// The command as a shell would take it, the program by its name alone: its folder says nothing about the measurement.
fn command(arguments: impl Iterator<Item = String>) -> String {
    // Quoting fails only for text with NUL bytes, which no command line holds.
    let quoted = |argument: String| shlex::try_quote(&argument).map(Cow::into_owned).unwrap_or_default();
    std::iter::once("tilewright".to_owned())
        .chain(arguments.skip(1).map(quoted))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_can_be_pasted_into_a_shell() {
        let arguments = ["/somewhere/tilewright", "tune", "my file.yaml", "--budget", "5"];
        assert_eq!(
            command(arguments.map(str::to_owned).into_iter()),
            "tilewright tune 'my file.yaml' --budget 5"
        );
        let arguments = ["tilewright", "tune", "a.yaml", "--out", "o", "--heuristics=h", "--budget", "5"];
        assert_eq!(recorded(arguments.map(str::to_owned).into_iter()), "tilewright tune a.yaml --budget 5");
        let arguments = ["tilewright", "tune", "my file.yaml", "--discard", "--out", "o"];
        assert_eq!(
            go_on(arguments.map(str::to_owned).into_iter()),
            "tilewright tune 'my file.yaml' --out o --resume"
        );
    }
}
