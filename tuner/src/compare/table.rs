//! A comparison as people read it: a table for each head configuration, what it comes to, and who was left out.

use super::results::{BatchResult, Comparison, Contender, Outcome};
use crate::text_table::table;
use std::collections::BTreeMap;

/// The lines of a comparison. Times are in µs.
pub fn lines(comparison: &Comparison) -> Vec<String> {
    let mut lines = vec![
        format!("Decode attention on {}, tiles {}.", comparison.device, comparison.selector),
        "Times are in us. \"x limit\" is a time over the limit; in brackets is a peer's time over ours."
            .to_owned(),
    ];
    lines.extend(comparison.method.iter().cloned());
    let software = comparison.versions.iter().map(|(name, version)| format!("{name} {version}"));
    lines.push(format!("Software: {}.", software.collect::<Vec<_>>().join(", ")));
    for group in groups(&comparison.batches) {
        lines.push(String::new());
        lines.extend(group_lines(&group));
    }
    if !comparison.batches.is_empty() {
        let all: Vec<&BatchResult> = comparison.batches.iter().collect();
        lines.push(String::new());
        lines.push(format!("All {} batches: {}", all.len(), summary(&all, false)));
        lines.extend(each_peer(&all));
        lines.extend(doubts(&all));
    }
    lines.extend(left_out(comparison));
    lines
}

/// Batches of the same head configuration, page size and element type, in the order in which each first comes.
fn groups(batches: &[BatchResult]) -> Vec<Vec<&BatchResult>> {
    let mut groups: Vec<Vec<&BatchResult>> = Vec::new();
    for batch in batches {
        match groups.iter_mut().find(|group| heading(group[0]) == heading(batch)) {
            Some(group) => group.push(batch),
            None => groups.push(vec![batch]),
        }
    }
    groups
}

fn heading(batch: &BatchResult) -> String {
    let BatchResult { q_heads, kv_heads, head_dim, page_size, dtype, .. } = batch;
    format!("{q_heads}/{kv_heads} heads of {head_dim}, pages of {page_size}, {dtype}")
}

fn group_lines(group: &[&BatchResult]) -> Vec<String> {
    let peers = timed_peers(group);
    let mut header = vec![
        "batch",
        "limit",
        "ours",
        "x limit",
        "error",
        "invariant",
        "x ours",
        "best tile",
        "x limit",
        "which",
    ];
    header.extend(peers.iter().copied());
    let row = |batch: &&BatchResult| {
        let over_limit =
            |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{:.2}", us / batch.limit_us));
        let (ours, best) = (batch.ours.us(), batch.best_tile());
        let mut row = vec![
            batch.variant.clone(),
            format!("{:.1}", batch.limit_us),
            ours.map_or("-".to_owned(), |us| format!("{us:.1}")),
            over_limit(ours),
            batch.ours.error().map_or("-".to_owned(), |error| format!("{error:.0e}")),
            batch.invariant.us().map_or("-".to_owned(), |us| format!("{us:.1}")),
            batch.invariant_over_ours().map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
            best.map_or("-".to_owned(), |(_, us)| format!("{us:.1}")),
            over_limit(best.map(|(_, us)| us)),
            best.map_or("-".to_owned(), |(tile, _)| tile.name.clone()),
        ];
        row.extend(peers.iter().map(|&peer| {
            let us = batch.peers.iter().find(|found| found.name == peer).and_then(|found| found.outcome.us());
            match (us, ours) {
                (Some(us), Some(ours)) => format!("{us:>8.1} ({:.2})", us / ours),
                (Some(us), None) => format!("{us:>8.1}"),
                (None, _) => "       -".to_owned(),
            }
        }));
        row
    };
    let rows: Vec<Vec<String>> = group.iter().map(row).collect();
    let mut lines = vec![heading(group[0])];
    lines.extend(table(&header, &rows));
    lines.push(summary(group, true));
    let mut scaled: Vec<&str> =
        group.iter().map(|batch| batch.scaled.as_str()).filter(|s| !s.is_empty()).collect();
    scaled.dedup();
    if !scaled.is_empty() {
        lines.push(format!("Scaled down to the device: {}.", scaled.join("; ")));
    }
    lines
}

/// Peers with a time for any of the batches, in the order in which they were asked.
fn timed_peers<'a>(batches: &[&'a BatchResult]) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for peer in batches.iter().flat_map(|batch| &batch.peers).filter(|peer| peer.outcome.us().is_some()) {
        if !names.contains(&peer.name.as_str()) {
            names.push(&peer.name);
        }
    }
    names
}

/// The geometric mean; `None` of nothing.
fn geometric_mean(ratios: impl Iterator<Item = f64>) -> Option<f64> {
    let logs: Vec<f64> = ratios.map(f64::ln).collect();
    crate::statistics::mean(&logs).map(f64::exp)
}

/// Geometric means over batches, each over those batches that have both times; and with `named` the batches on which a peer was faster.
fn summary(batches: &[&BatchResult], named: bool) -> String {
    let over_limit = |us: fn(&BatchResult) -> Option<f64>| {
        geometric_mean(batches.iter().filter_map(|batch| Some(us(batch)? / batch.limit_us)))
    };
    let mut parts = Vec::new();
    if let Some(mean) = over_limit(|batch| batch.ours.us()) {
        parts.push(format!("ours takes {mean:.2} of the limit"));
    }
    if let Some(mean) = over_limit(|batch| Some(batch.best_tile()?.1)) {
        parts.push(format!("the best tile of each batch {mean:.2}"));
    }
    if let Some(mean) = over_limit(|batch| Some(batch.best_peer()?.1)) {
        parts.push(format!("the best peer of each batch {mean:.2}"));
    }
    let faster = |batch: &&&BatchResult| Some(batch.best_peer()?.1 / batch.ours.us()?);
    let ratios: Vec<(&BatchResult, f64)> =
        batches.iter().filter_map(|batch| Some((*batch, faster(&batch)?))).collect();
    let mut text = format!("Geometric means: {}.", parts.join(", "));
    text += &invariant_cost(batches);
    if let Some(mean) = geometric_mean(ratios.iter().map(|(_, ratio)| *ratio)) {
        text += &format!(" Ours is {mean:.2} times as fast as the best peer");
        let lost: Vec<String> = ratios
            .iter()
            .filter(|(_, ratio)| *ratio < 1.0)
            .map(|(batch, ratio)| {
                let who = batch.best_peer().map_or("", |(peer, _)| peer.name.as_str());
                format!("{} ({who}, {ratio:.2})", batch.variant)
            })
            .collect();
        text += &format!("; a peer was faster on {} of {}", lost.len(), ratios.len());
        let who = if named && !lost.is_empty() { format!(": {}", lost.join(", ")) } else { String::new() };
        text += &format!("{who}.");
    }
    text
}

/// What batch-invariant plans cost over the selector's: on average, and at worst.
fn invariant_cost(batches: &[&BatchResult]) -> String {
    let ratios: Vec<(f64, &str)> = batches
        .iter()
        .filter_map(|batch| Some((batch.invariant_over_ours()?, batch.variant.as_str())))
        .collect();
    let worst = ratios.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0));
    match (geometric_mean(ratios.iter().map(|(ratio, _)| *ratio)), worst) {
        (Some(mean), Some((most, variant))) => {
            format!(" Batch-invariant plans take {mean:.3} of ours, {most:.2} at worst ({variant}).")
        }
        _ => String::new(),
    }
}

/// A table with a line for each peer.
fn each_peer(batches: &[&BatchResult]) -> Vec<String> {
    let row = |name: &str| {
        let of_peer = |batch: &&BatchResult| batch.peers.iter().find(|peer| peer.name == name).cloned();
        let found: Vec<(&BatchResult, Contender)> =
            batches.iter().filter_map(|batch| Some((*batch, of_peer(batch)?))).collect();
        let over = |reference: fn(&BatchResult) -> Option<f64>| {
            let ratios =
                found.iter().filter_map(|(batch, peer)| Some(peer.outcome.us()? / reference(batch)?));
            ratios.collect::<Vec<f64>>()
        };
        let (over_ours, over_limit) = (over(|batch| batch.ours.us()), over(|batch| Some(batch.limit_us)));
        let mean = |ratios: &[f64]| {
            geometric_mean(ratios.iter().copied()).map_or("-".to_owned(), |mean| format!("{mean:.2}"))
        };
        let error = found.iter().filter_map(|(_, peer)| peer.outcome.error()).fold(0.0, f64::max);
        vec![
            name.to_owned(),
            over_limit.len().to_string(),
            mean(&over_limit),
            mean(&over_ours),
            over_ours.iter().filter(|ratio| **ratio < 1.0).count().to_string(),
            format!("{error:.0e}"),
        ]
    };
    let names = timed_peers(batches);
    if names.is_empty() {
        return Vec::new();
    }
    let rows: Vec<Vec<String>> = names.into_iter().map(row).collect();
    let mut lines = vec![String::new()];
    lines
        .extend(table(&["peer", "batches", "x limit", "x ours", "faster than ours", "largest error"], &rows));
    lines
}

/// What keeps the figures from being believed.
fn doubts(batches: &[&BatchResult]) -> Vec<String> {
    let mut lines = Vec::new();
    let checked = batches.iter().filter(|batch| batch.references_apart.is_some()).count();
    let differ: Vec<&str> =
        batches.iter().filter(|batch| batch.differs()).map(|batch| batch.name.as_str()).collect();
    if !differ.is_empty() {
        lines.push(format!("The two sides did not compute the same batch: {}.", differ.join(", ")));
    } else if checked > 0 {
        lines.push(format!("Both sides' f64 references agree on {checked} of {} batches.", batches.len()));
    }
    for batch in batches {
        if let Outcome::LeftOut { reason } = &batch.ours {
            lines.push(format!("{}: ours has no time: {reason}", batch.name));
        }
    }
    lines
}

/// Who was left out, and why, each reason once.
fn left_out(comparison: &Comparison) -> Vec<String> {
    let mut reasons: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for batch in &comparison.batches {
        for peer in &batch.peers {
            if let Outcome::LeftOut { reason } = &peer.outcome {
                reasons.entry((&peer.name, reason)).or_default().push(&batch.name);
            }
        }
    }
    if reasons.is_empty() && comparison.absent.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![String::new(), "Left out:".to_owned()];
    let mut absent: Vec<(&str, Vec<&str>)> = Vec::new();
    for (peer, why) in &comparison.absent {
        match absent.iter_mut().find(|(reason, _)| reason == why) {
            Some((_, peers)) => peers.push(peer),
            None => absent.push((why, vec![peer])),
        }
    }
    lines.extend(absent.into_iter().map(|(why, peers)| format!("  {}: {why}", peers.join(", "))));
    lines.extend(reasons.into_iter().map(|((peer, reason), batches)| match batches[..] {
        [batch] => format!("  {peer}: {reason} ({batch})"),
        _ => format!("  {peer}: {reason} ({} batches, {} the first)", batches.len(), batches[0]),
    }));
    lines
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
