//! `tilewright fit`.

use super::read_all;
use crate::cli::exit::Ended;
use crate::cli::{FitArguments, output};
use crate::costs::{TableColumns, from_measurements, from_table};
use crate::fit::{CostTable, Fit, Tree, Validation, cross_validate, fit as fit_table};
use serde::Serialize;

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
    let table = match &arguments.costs {
        Some(path) => {
            let columns = TableColumns {
                features: arguments.features.clone(),
                weight: arguments.weight.clone(),
                group: arguments.group.clone(),
                ignore: arguments.ignore.clone(),
            };
            from_table(path, &columns)?
        }
        None => from_measurements(&read_all(&arguments.measurements)?.rows)?,
    };
    let options = arguments.fit.options();
    let fit = fit_table(&table, &options)?;
    let validation = cross_validate(&table, &options, usize::from(arguments.fit.folds))?;
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
