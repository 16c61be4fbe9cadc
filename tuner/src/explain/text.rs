//! An explanation for people.

use super::{BatchExplanation, Explanation, PathStep};

/// Alike packs that are written out; those with fewer tokens are counted.
const MOST_PACKS: usize = 8;
/// Sets that are written out beside the chosen one.
const MOST_SETS: usize = 4;

/// The lines of an explanation.
pub fn lines(explanation: &Explanation) -> Vec<String> {
    let Explanation { device, backend, capability, units, slots, selector, measured_on, batches } =
        explanation;
    let unit = if *backend == "cpu" { "threads" } else { "SMs" };
    let mut lines =
        vec![format!("{device} ({backend}, {capability}, {units} {unit}, planned as {slots} slots)")];
    lines.push(match measured_on {
        Some(measured) => format!("selector: {selector}, measured on {measured}"),
        None => {
            "selector: none for such a device; PAT's analytic rules choose one tile for all packs".to_owned()
        }
    });
    for batch in batches {
        lines.push(String::new());
        write_batch(batch, &mut lines);
    }
    lines
}

fn write_batch(batch: &BatchExplanation, lines: &mut Vec<String>) {
    lines.push(batch.name.clone());
    let mut line = |label: &str, text: String| lines.push(format!("  {label:<10} {text}"));
    let numbers = batch.numbers.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>();
    for (index, chunk) in numbers.chunks(8).enumerate() {
        line(if index == 0 { "batch" } else { "" }, chunk.join(", "));
    }
    if !batch.outside.is_empty() {
        line("beyond", format!("what was measured: {}", batch.outside.join(", ")));
    }
    if batch.asked_as_query_type {
        line("beyond", "no such KV type was measured: asked as if K and V were of the query's".to_owned());
    }
    if let Some(leaf) = &batch.leaf {
        let path = batch.path.iter().map(PathStep::to_string).collect::<Vec<_>>();
        line("path", if path.is_empty() { "the tree is one leaf".to_owned() } else { path.join(", ") });
        let noun = if leaf.batches == 1 { "batch" } else { "batches" };
        let regret = if leaf.regret_percent.is_finite() {
            format!("{:.2} % above the best set of each", leaf.regret_percent)
        } else {
            "no set was valid on each".to_owned()
        };
        line("leaf", format!("{} fitted {noun}, {regret}", leaf.batches));
    }
    line("set", batch.set.clone());
    let written = batch.packs.len().min(MOST_PACKS);
    for (index, pack) in batch.packs[..written].iter().enumerate() {
        let own = if pack.own == 0 { String::new() } else { format!(", {} of them own", pack.own) };
        let text =
            format!("{} of {} rows x {} tokens{own}: {}", pack.packs, pack.rows, pack.kv_len, pack.tile);
        line(if index == 0 { "packs" } else { "" }, text);
    }
    if batch.packs.len() > written {
        let rest: usize = batch.packs[written..].iter().map(|pack| pack.packs).sum();
        line("", format!("and {rest} smaller ones; --json has all"));
    }
    line("plan", format!("{} CTAs, {} partials", batch.ctas, batch.partials));
    let predicted = &batch.predicted;
    let text = format!(
        "{:.1} us ({:.1} forward, {:.1} merge); reading K and V once takes {:.1}",
        predicted.us(),
        predicted.forward_us,
        predicted.merge_us,
        batch.read_once_us
    );
    line("predicted", text);
    if let Some(invariant) = &batch.invariant {
        let (set, us) = (&invariant.set, invariant.us());
        line("invariant", format!("{us:.1} us with {set}, {:.2} of that", us / predicted.us()));
    }
    let others: Vec<String> = batch
        .sets
        .iter()
        .filter(|other| other.set != batch.set)
        .take(MOST_SETS)
        .map(|other| format!("{} {:.1} us", other.set, other.us()))
        .collect();
    if !others.is_empty() {
        line("others", others.join(", "));
    }
}

impl std::fmt::Display for PathStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { feature, value, threshold, at_most } = self;
        write!(f, "{feature} {value} {} {threshold}", if *at_most { "<=" } else { ">" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::{Leaf, PackRow, Predicted};

    fn predicted(set: &str, forward_us: f64) -> Predicted {
        Predicted { set: set.to_owned(), forward_us, merge_us: 4.0 }
    }

    #[test]
    fn people_read_why() {
        let step =
            |feature, value, threshold| PathStep { feature, value, threshold, at_most: value <= threshold };
        let pack =
            |packs, rows, own| PackRow { packs, rows, kv_len: 512, own, tile: "m64n64w4s2".to_owned() };
        let batch = BatchExplanation {
            name: "tenants/t1/32x8/p16".to_owned(),
            numbers: [
                "requests",
                "trees",
                "lone",
                "longest",
                "kv_heads",
                "gqa_ratio",
                "head_dim",
                "page_size",
                "dtype",
            ]
            .into_iter()
            .zip(1..)
            .collect(),
            outside: vec!["kv_heads"],
            asked_as_query_type: true,
            path: vec![step("requests", 62, 88), step("longest", 900, 512)],
            leaf: Some(Leaf { ranked: vec!["m64n64w4s2".to_owned()], batches: 1, regret_percent: 1.234 }),
            set: "m64n64w4s2".to_owned(),
            packs: (1..=10).rev().map(|rows| pack(2, rows, if rows == 10 { 32 } else { 0 })).collect(),
            ctas: 264,
            partials: 12,
            predicted: predicted("m64n64w4s2", 20.0),
            invariant: Some(predicted("m64n64w4s2", 21.2)),
            read_once_us: 17.25,
            sets: vec![predicted("m64n64w4s2", 20.0), predicted("m16n64w4s2", 25.5)],
        };
        let rules = BatchExplanation {
            name: "tenants/t2/32x8/p16".to_owned(),
            outside: Vec::new(),
            asked_as_query_type: false,
            path: Vec::new(),
            leaf: None,
            packs: vec![pack(1, 4, 0)],
            sets: vec![predicted("m64n64w4s2", 20.0)],
            ..batch.clone()
        };
        let explanation = Explanation {
            device: "NVIDIA H200".to_owned(),
            backend: "cuda",
            capability: "sm_90a".to_owned(),
            units: 132,
            slots: 264,
            selector: "exact",
            measured_on: Some("NVIDIA H200"),
            batches: vec![batch, rules],
        };
        insta::assert_snapshot!(lines(&explanation).join("\n"));
    }
}
