//! `tilewright fit`.

use super::read_all;
use crate::cli::exit::Ended;
use crate::cli::{FitArguments, output};
use crate::costs::{ForeignTable, Part, TableColumns, from_batches, from_table};
use crate::fit::{CostRow, CostTable, Event, Fit, Tree, Validation, fit_and_validate};
use crate::progress::Progress;
use serde::Serialize;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

#[derive(Serialize)]
struct FitOutput<'a> {
    features: &'a [String],
    candidates: &'a [String],
    fit: &'a Fit,
    validation: &'a Validation,
}

/// Fits a tree to measurements or to any table of costs, and says what it is worth.
///
/// # Errors
/// Files that are no measurements or no table, or a table that nothing can be fitted to.
pub fn fit(arguments: &FitArguments) -> anyhow::Result<Ended> {
    let progress = Progress::detect();
    let table = match &arguments.costs {
        Some(path) => read_foreign(path, arguments, progress)?,
        None => from_batches(&read_all(&arguments.measurements)?.rows, Part::Fit)?,
    };
    let options = arguments.fit.settings().options();
    let folds = usize::from(arguments.fit.folds);
    let phase = Mutex::new(progress.phase("fitting", 1 + folds));
    let watch = |event| {
        let mut phase = phase.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::At(text) => phase.at(&text),
            Event::Done => phase.step(),
        }
    };
    let begin = Instant::now();
    let (fit, validation) = fit_and_validate(&table, &options, folds, &watch)?;
    let phase = phase.into_inner().unwrap_or_else(PoisonError::into_inner);
    phase.finish(&format!("fitted and validated in {:.1} s", begin.elapsed().as_secs_f64()));
    if fit.uncovered > 0 {
        tracing::warn!("{}", uncovered(&table, &fit));
    }
    if arguments.json {
        let output = FitOutput {
            features: table.features(),
            candidates: table.candidates(),
            fit: &fit,
            validation: &validation,
        };
        output::json(&output)?;
    } else {
        say(&table, &fit, &validation)?;
    }
    Ok(Ended::Done)
}

/// Reads a foreign table, and says what was made of its columns and rows.
fn read_foreign(path: &Path, arguments: &FitArguments, progress: Progress) -> anyhow::Result<CostTable> {
    let columns = TableColumns {
        features: arguments.features.clone(),
        candidates: arguments.candidates.clone(),
        weight: arguments.weight.clone(),
        group: arguments.group.clone(),
        ignore: arguments.ignore.clone(),
    };
    let ForeignTable { table, left_out, first_left_out } = from_table(path, &columns)?;
    progress.note(&format!("features: {}", table.features().join(", ")));
    progress.note(&format!("candidates: {}", table.candidates().join(", ")));
    if let Some(first) = first_left_out {
        let rows = if left_out == 1 { "1 row has".to_owned() } else { format!("{left_out} rows have") };
        tracing::warn!(
            "{}: {rows} no valid candidate and are left out; the first is {first}",
            path.display()
        );
    }
    Ok(table)
}

/// What the rows get that no candidate of the portfolio can run.
fn uncovered(table: &CostTable, fit: &Fit) -> String {
    let runs_default = |row: &&CostRow| {
        fit.portfolio.iter().all(|&candidate| row.costs[candidate].is_none())
            && row.costs[fit.safe_default].is_some()
    };
    let by_default = table.rows().iter().filter(runs_default).count();
    format!(
        "on {} of {} workloads no candidate of the portfolio is valid: {by_default} get the safe default, {} nothing that is valid (they count \
         as their worst candidate); a larger `--portfolio` covers more",
        fit.uncovered,
        table.rows().len(),
        fit.uncovered - by_default
    )
}

fn say(table: &CostTable, fit: &Fit, validation: &Validation) -> anyhow::Result<()> {
    let mut lines = vec![format!(
        "{} workloads, {} candidates; portfolio: {}",
        table.rows().len(),
        table.candidates().len(),
        fit.portfolio.iter().map(|&i| table.candidates()[i].as_str()).collect::<Vec<_>>().join(", ")
    )];
    lines.push(format!("safe default: {}", table.candidates()[fit.safe_default]));
    lines.push(format!("mean regret {} on what was fitted: {}", output::percent(fit.regret), fit.proved()));
    lines.push(String::new());
    write_tree(table, &fit.tree, 0, &mut lines);
    lines.push(String::new());
    lines.push("Regret on workloads that were not fitted:".to_owned());
    output::lines(lines)?;
    let rows: Vec<Vec<String>> = validation
        .policies
        .iter()
        .map(|policy| {
            vec![
                policy.name.clone(),
                output::percent(policy.mean),
                output::percent(policy.p95),
                output::percent(policy.worst),
            ]
        })
        .collect();
    output::table(&["chosen by", "mean", "p95", "worst"], &rows)
}

fn write_tree(table: &CostTable, tree: &Tree, depth: usize, lines: &mut Vec<String>) {
    let indent = "  ".repeat(depth);
    match tree {
        Tree::Split { feature, threshold, low, high } => {
            lines.push(format!("{indent}{} <= {threshold}?", table.features()[*feature]));
            write_tree(table, low, depth + 1, lines);
            lines.push(format!("{indent}else"));
            write_tree(table, high, depth + 1, lines);
        }
        Tree::Leaf { ranked, support, regret } => {
            let names: Vec<&str> = ranked.iter().map(|&i| table.candidates()[i].as_str()).collect();
            lines.push(format!(
                "{indent}{} ({support} workloads, mean regret {})",
                names.join(", else "),
                output::percent(*regret)
            ));
        }
    }
}
