//! What a report shows of a recording.

mod launching;
mod timelines;

use crate::analysis::Analysis;
use crate::batch_regrets::{batch_policies, batch_times, best_single, best_single_name, samples_by_choice};
use crate::choice::{BATCH_INVARIANT, PAT_RULES, PATS_PLANNER, SELECTOR};
use crate::emit::TreeModel;
use crate::fit::PolicyRegret;
use crate::invariant_cost::invariant_cost;
use crate::statistics::{median, spread};
use crate::store::{Level, Measurement, Recording, Status, failed_variants};
use reports::{
    Policy, PolicyTiming, ReportData, ScenarioResult, SpaceRow, TileResult, TreeNode, WorkloadResult,
};
use std::collections::BTreeMap;
use tilewright_heuristics::{BatchShape, Tile, TileSetBuf};
use tilewright_reports as reports;

/// Everything that the report of a recording and its timelines shows.
pub fn report_data(
    recording: &Recording,
    analysis: &Analysis,
    recorded: &crate::store::Timelines,
) -> ReportData {
    let Recording { provenance, rows } = recording;
    let mut environment = provenance.limits.clone();
    environment.extend(provenance.versions.iter().cloned());
    environment.push(("kernel hash".to_owned(), provenance.hashes.kernel.clone()));
    environment.push(("space hash".to_owned(), provenance.hashes.space.clone()));
    let selector_hash = analysis.selector_hash();
    environment.push(("selector hash".to_owned(), selector_hash.clone()));
    environment.push(("started".to_owned(), provenance.started.clone()));
    environment.extend(
        provenance
            .scenarios
            .iter()
            .map(|scenario| (format!("scenario {}", scenario.name), scenario.hash.clone())),
    );
    let mut warnings = provenance.warnings.clone();
    warnings.extend(stale_selector(rows, analysis));
    ReportData {
        device: provenance.device.name.clone(),
        backend: provenance.device.backend.clone(),
        environment,
        command: provenance.command.clone(),
        cold_caches: provenance.cold_caches.clone(),
        limit_method: provenance.limit_method.clone(),
        warnings,
        headline: analysis.over_best_tile().map(|over| over.to_string()),
        held_out: analysis.validation.policies.iter().map(policy).collect(),
        batches: batch_policies(rows).iter().map(policy).collect(),
        invariant: invariant_cost(rows),
        launching: launching::launching(rows),
        timelines: timelines::timelines(recorded, &selector_hash),
        scenarios: scenarios(rows),
        features: BatchShape::NAMES.iter().map(|name| (*name).to_owned()).collect(),
        parameters: Tile::NAMES.iter().map(|name| (*name).to_owned()).collect(),
        workloads: workloads(rows, analysis),
        space: space(rows),
        tree: tree(&analysis.model.tree, &analysis.model.sets),
        proof: analysis.proof(),
        portfolio: portfolio(analysis),
        safe_default: analysis.model.safe_default.to_string(),
    }
}

fn policy(regret: &PolicyRegret) -> Policy {
    Policy {
        name: regret.name.clone(),
        mean: regret.mean,
        p95: regret.p95,
        worst: regret.worst,
        count: regret.count as u64,
    }
}

fn stale_selector(rows: &[Measurement], analysis: &Analysis) -> Option<String> {
    let measured = analysis.other_selector(rows)?;
    Some(format!(
        "The whole batches were measured with selector {measured}, this report's fit gives {}: run `tilewright tune` to measure it.",
        analysis.selector_hash()
    ))
}

fn scenarios(rows: &[Measurement]) -> Vec<ScenarioResult> {
    let batches = batch_times(rows);
    let mut judged = batches.clone();
    judged.retain(|_, times| times.contains_key(SELECTOR));
    let single = best_single(if judged.is_empty() { &batches } else { &judged }, rows);
    let mut measured: BTreeMap<&str, Vec<&Measurement>> = BTreeMap::new();
    let mut names: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| row.level == Level::Batch) {
        let of_batch = measured.entry(&row.workload).or_default();
        if of_batch.is_empty() {
            names.push(&row.workload);
        }
        of_batch.push(row);
    }
    names
        .into_iter()
        .filter_map(|name| {
            let measured = measured.get(name)?;
            let first = measured.first()?;
            let samples = samples_by_choice(measured.iter().copied());
            let timing = |label: String, choice: &str| {
                let samples = samples.get(choice)?;
                Some(PolicyTiming {
                    policy: label,
                    median_us: median(samples)?,
                    spread_us: spread(samples),
                    count: samples.len() as u64,
                })
            };
            let times = batches.get(name)?;
            let oracle = times.iter().min_by(|a, b| a.1.total_cmp(b.1)).map(|(choice, _)| *choice);
            let timings = [
                timing(SELECTOR.to_owned(), SELECTOR),
                oracle.and_then(|choice| timing(format!("oracle ({choice})"), choice)),
                single.and_then(|tile| timing(best_single_name(tile), tile)),
                timing(PAT_RULES.to_owned(), PAT_RULES),
                timing(PATS_PLANNER.to_owned(), PATS_PLANNER),
                timing(BATCH_INVARIANT.to_owned(), BATCH_INVARIANT),
            ];
            Some(ScenarioResult {
                name: name.to_owned(),
                held_out: first.held_out,
                requests: first.requests.unwrap_or(0),
                scaled: first.scaled.clone(),
                unique_bytes: first.unique_bytes.unwrap_or(0),
                unshared_bytes: first.unshared_bytes.unwrap_or(0),
                limit_us: first.limit_us.unwrap_or(f64::NAN),
                timings: timings.into_iter().flatten().collect(),
            })
        })
        .collect()
}

fn workloads(rows: &[Measurement], analysis: &Analysis) -> Vec<WorkloadResult> {
    let mut by_name: BTreeMap<(BatchShape, &str), Vec<&Measurement>> = BTreeMap::new();
    let of_sets = |row: &&Measurement| row.level == Level::Batch && row.selector_hash.is_empty();
    for row in rows.iter().filter(of_sets) {
        if let Some(shape) = row.batch {
            by_name.entry((shape, &row.workload)).or_default().push(row);
        }
    }
    by_name
        .into_iter()
        .map(|((shape, name), rows)| WorkloadResult {
            name: name.to_owned(),
            features: shape.values().iter().map(|&value| u64::from(value)).collect(),
            limit_us: rows.iter().find_map(|row| row.limit_us).unwrap_or(f64::NAN),
            chosen: analysis.model.choose(&shape).to_string(),
            tiles: rows.into_iter().filter_map(tile_result).collect(),
        })
        .collect()
}

fn tile_result(row: &Measurement) -> Option<TileResult> {
    let status = match row.status {
        Status::Correct if row.survived => "correct",
        Status::Correct => "eliminated",
        Status::Correctness => "wrong",
        Status::Constraints | Status::Unverified | Status::Compile | Status::Runtime | Status::Timeout => {
            "error"
        }
    };
    Some(TileResult {
        name: row.choice.clone(),
        tile: row.tile.as_ref().map(tile_values).unwrap_or_default(),
        status: status.to_owned(),
        median_us: row.median_us(),
        spread_us: row.spread_us(),
        samples_us: row.samples_us.clone(),
        relative_error: row.relative_error,
        message: row.message.clone(),
    })
}

fn tile_values(tile: &Tile) -> Vec<u64> {
    tile.values().iter().map(|&value| u64::from(value)).collect()
}

fn space(rows: &[Measurement]) -> Vec<SpaceRow> {
    let failed = failed_variants(rows);
    let failed_invariant =
        |row: &&Measurement| row.level == Level::Invariant && row.status != Status::Correct;
    rows.iter()
        .filter(|row| row.level == Level::Space || failed_invariant(row))
        .filter_map(|row| {
            let tile = row.tile?;
            let variant = failed.get(&(row.workload.as_str(), tile));
            let (rule, reason) = match (row.status, variant) {
                (status, _) if row.level == Level::Invariant => {
                    (status.name(), format!("in batch-invariant plans: {}", row.message))
                }
                (Status::Correct, None) => ("", String::new()),
                (Status::Correct, Some(row)) => {
                    let with = row.level.verified_with().unwrap_or_default();
                    (row.status.name(), format!("with {with}: {}", row.message))
                }
                (Status::Constraints, _) => {
                    let (rule, reason) =
                        row.message.split_once(": ").unwrap_or(("constraints", &row.message));
                    (rule, reason.to_owned())
                }
                (status, _) => (status.name(), row.message.clone()),
            };
            Some(SpaceRow {
                class: row.workload.clone(),
                name: row.choice.clone(),
                tile: tile_values(&tile),
                rule: rule.to_owned(),
                reason,
            })
        })
        .collect()
}

fn tree(model: &TreeModel, sets: &[TileSetBuf]) -> TreeNode {
    match model {
        TreeModel::Split { feature, threshold, low, high } => TreeNode::Split {
            feature: BatchShape::NAMES[*feature].to_owned(),
            threshold: u64::from(*threshold),
            low: Box::new(tree(low, sets)),
            high: Box::new(tree(high, sets)),
        },
        TreeModel::Leaf { ranked, support, regret } => TreeNode::Leaf {
            ranked: ranked.iter().map(|&i| sets[usize::from(i)].to_string()).collect(),
            support: *support as u64,
            regret: *regret,
        },
    }
}

fn portfolio(analysis: &Analysis) -> Vec<(String, u64)> {
    let mut counts: BTreeMap<TileSetBuf, u64> = analysis.model.sets.iter().map(|set| (*set, 0)).collect();
    for row in analysis.table.rows() {
        let mut values = [0; BatchShape::COUNT];
        for (value, &feature) in values.iter_mut().zip(&row.features) {
            *value = u32::try_from(feature).unwrap_or(u32::MAX);
        }
        if let Some(count) = counts.get_mut(&analysis.model.choose(&BatchShape::from_values(values))) {
            *count += 1;
        }
    }
    counts.into_iter().map(|(set, count)| (set.to_string(), count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::test_data::measurement;

    fn batch(workload: &str, choice: &str, us: f64) -> Measurement {
        Measurement { level: Level::Batch, ..measurement(workload, choice, &[us]) }
    }

    #[test]
    fn batches_compare_selector_best_tile_and_pats_rules() {
        let rows = [
            batch("a", SELECTOR, 10.0),
            batch("a", PAT_RULES, 20.0),
            batch("a", "m1n16w1s1", 10.0),
            batch("a", "m4n16w1s1", 15.0),
            batch("b", SELECTOR, 11.0),
            batch("b", PAT_RULES, 10.0),
            batch("b", "m1n16w1s1", 30.0),
            batch("b", "m4n16w1s1", 10.0),
        ];
        let policies = batch_policies(&rows);
        let names: Vec<&str> = policies.iter().map(|policy| policy.name.as_str()).collect();
        assert_eq!(names, [SELECTOR, "best single tile (m4n16w1s1)", PAT_RULES]);
        assert!((policies[0].mean - 0.05).abs() < 1e-9 && (policies[0].worst - 0.1).abs() < 1e-9);
        assert!((policies[1].mean - 0.25).abs() < 1e-9);
        assert!((policies[2].worst - 1.0).abs() < 1e-9);
        let shown = scenarios(&rows);
        assert_eq!(shown.len(), 2);
        assert!(
            shown[1].timings.iter().any(
                |timing| timing.policy == "oracle (PAT's rules)" || timing.policy == "oracle (m4n16w1s1)"
            )
        );
    }

    #[test]
    fn times_beside_the_selector_stand_for_those_of_the_race_before() {
        // The device was twice as fast in the race.
        let beside = |choice, us| Measurement { selector_hash: "s".to_owned(), ..batch("a", choice, us) };
        let rows = [
            batch("a", "m1n16w1s1", 5.0),
            batch("a", "m4n16w1s1", 7.0),
            batch("a", "m8n16w1s1", 9.0),
            beside(SELECTOR, 10.0),
            beside("m1n16w1s1", 10.0),
            beside("m4n16w1s1", 14.0),
        ];
        let times = &batch_times(&rows)["a"];
        assert_eq!(times["m1n16w1s1"], 10.0);
        assert_eq!(times["m8n16w1s1"], 9.0, "what was not measured again has the time that it has");
        let policies = batch_policies(&rows[3..]);
        assert_eq!((policies[0].mean, policies[1].name.as_str()), (0.0, "best single tile (m1n16w1s1)"));
        let single =
            scenarios(&rows)[0].timings.iter().find(|timing| timing.policy.contains("best single")).cloned();
        assert!(single.is_some_and(|single| single.count == 1));
    }

    #[test]
    fn pats_planner_is_compared_where_it_was_measured() {
        let mut rows = vec![
            batch("a", SELECTOR, 10.0),
            batch("a", "selector, streams+launch", 5.0),
            batch("a", PAT_RULES, 20.0),
            batch("a", PATS_PLANNER, 30.0),
        ];
        let policies = batch_policies(&rows);
        let means: Vec<(&str, f64)> =
            policies.iter().map(|policy| (policy.name.as_str(), policy.mean)).collect();
        assert_eq!(means, [(SELECTOR, 0.0), (PAT_RULES, 1.0), (PATS_PLANNER, 2.0)]);
        let timings = &scenarios(&rows)[0].timings;
        let names: Vec<&str> = timings.iter().map(|timing| timing.policy.as_str()).collect();
        assert_eq!(names, [SELECTOR, "oracle (selector)", PAT_RULES, PATS_PLANNER]);
        rows.push(batch("a", BATCH_INVARIANT, 5.0));
        let timings = &scenarios(&rows)[0].timings;
        let names: Vec<&str> = timings.iter().map(|timing| timing.policy.as_str()).collect();
        assert_eq!(names, [SELECTOR, "oracle (selector)", PAT_RULES, PATS_PLANNER, BATCH_INVARIANT]);
        // A run of before, one batch of which was measured again.
        rows.push(batch("b", SELECTOR, 1.0));
        rows.push(batch("b", PAT_RULES, 1.0));
        assert!(batch_policies(&rows).iter().all(|policy| policy.name != PATS_PLANNER));
    }

    #[test]
    fn tiles_that_fail_in_batch_invariant_plans_are_said() {
        let row = |status| Measurement {
            level: Level::Invariant,
            status,
            message: "wrong".to_owned(),
            ..measurement("head_dim 128 f16", "m16n64w1s2", &[])
        };
        let shown = space(&[row(Status::Correct), row(Status::Correctness)]);
        assert_eq!(shown.len(), 1);
        assert_eq!(
            (shown[0].rule.as_str(), shown[0].reason.as_str()),
            ("correctness", "in batch-invariant plans: wrong")
        );
    }

    #[test]
    fn without_batches_there_is_nothing_to_compare() {
        assert!(batch_policies(&[]).is_empty());
    }
}
