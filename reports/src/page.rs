//! The page: everything put into the template, and written whole or not at all.

use crate::data::{InvariantCost, ReportData, ScenarioResult, SpaceRow, WorkloadResult};
use crate::format::{NOTHING, megabytes, micros, percent, ratio};
use crate::heat_map::{HeatMap, heat_maps};
use crate::latency_plot::{latency_plot, legend};
use crate::launching::{Launches, launches};
use crate::samples_plot::{Race, races};
use crate::summary;
use crate::table::{Cell, Table};
use crate::timelines::{TimelineSection, timeline_section};
use crate::tree_picture::tree_picture;
use crate::verdict;
use askama::Template;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Why a report could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The template cannot be filled.
    #[error("the report cannot be rendered: {0}")]
    Render(#[from] askama::Error),
    /// The file system refused.
    #[error("{path}: cannot write the report: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Infeasible tiles of one rule.
struct Rule {
    name: String,
    count: usize,
    example: String,
    classes: Vec<(String, usize)>,
}

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    data: &'a ReportData,
    style: &'static str,
    script: &'static str,
    verdict: Vec<String>,
    policies: Table,
    summary: Table,
    latency: Option<String>,
    legend: Vec<(usize, &'static str, &'static str)>,
    scenarios: Table,
    launching: Option<Launches>,
    timelines: Option<TimelineSection>,
    mean_map: Vec<HeatMap>,
    maps: Vec<HeatMap>,
    tree: String,
    worst: Table,
    races: Vec<Race>,
    feasible: usize,
    rules: Vec<Rule>,
}

/// Renders a report as one HTML page.
///
/// # Errors
/// The template cannot be filled.
pub fn render(data: &ReportData) -> Result<String, ReportError> {
    let mut maps = heat_maps(data);
    let rest = maps.split_off(maps.len().min(1));
    let page = Page {
        data,
        style: include_str!("../templates/report.css"),
        script: include_str!("../templates/report.js"),
        verdict: verdict::sentences(data),
        policies: policies(data),
        summary: summary::table(&data.scenarios),
        latency: latency_plot(data),
        legend: legend(data),
        scenarios: scenarios(data),
        launching: data.launching.as_ref().map(launches),
        timelines: data.timelines.as_ref().map(timeline_section),
        mean_map: maps,
        maps: rest,
        tree: tree_picture(&data.tree),
        worst: worst(data),
        races: races(data),
        feasible: data.space.iter().filter(|row| row.rule.is_empty()).count(),
        rules: rules(&data.space),
    };
    Ok(page.render()?)
}

/// Renders a report into a file. The file appears whole or not at all.
///
/// # Errors
/// The template cannot be filled, or the file system refuses.
pub fn write(data: &ReportData, path: &Path) -> Result<(), ReportError> {
    let html = render(data)?;
    let io = |source| ReportError::Io { path: path.to_owned(), source };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(io)?;
    let aside = path.with_extension("html.writing");
    let written = std::fs::File::create(&aside).and_then(|mut file| {
        file.write_all(html.as_bytes())?;
        file.sync_all()
    });
    written.and_then(|()| std::fs::rename(&aside, path)).map_err(|source| {
        // Half a page is of no use; that it cannot be removed either changes nothing.
        let _ = std::fs::remove_file(&aside);
        io(source)
    })
}

fn policies(data: &ReportData) -> Table {
    let header =
        ["judged on", "tiles chosen by", "mean", "p95", "worst", "count"].map(str::to_owned).to_vec();
    let judged = [("batches not fitted", &data.held_out), ("executed under the selector", &data.batches)];
    let regret = |value: f64| Cell::number(value, percent(value));
    let rows = judged.into_iter().flat_map(|(on, policies)| {
        policies.iter().map(move |policy| {
            vec![
                Cell::text(on),
                Cell::text(&policy.name),
                regret(policy.mean),
                regret(policy.p95),
                regret(policy.worst),
                Cell::number(policy.count as f64, policy.count.to_string()),
            ]
        })
    });
    let over_selector = |cost: &InvariantCost| {
        let over = |ratio: Option<f64>| regret(ratio.map_or(f64::NAN, |ratio| ratio - 1.0));
        vec![
            Cell::text("executed under the selector"),
            Cell::text(InvariantCost::ROW),
            over(cost.over_selector),
            over(cost.p95),
            over(cost.worst),
            Cell::number(cost.batches as f64, cost.batches.to_string()),
        ]
    };
    Table {
        caption: "Regret: time over that of the best set of tiles, less one".to_owned(),
        header,
        rows: rows.chain(data.invariant.as_ref().map(over_selector)).collect(),
    }
}

fn scenarios(data: &ReportData) -> Table {
    // The oracle's tile changes from batch to batch: one column for all of them.
    let column = |policy: &str| policy.split(" (").next().unwrap_or(policy).to_owned();
    let mut columns: Vec<String> = Vec::new();
    for timing in data.scenarios.iter().flat_map(|scenario| &scenario.timings) {
        let name = column(&timing.policy);
        if !columns.contains(&name) {
            columns.push(name);
        }
    }
    let mut header: Vec<String> =
        ["batch", "requests", "unique MB", "unshared MB", "limit µs"].map(str::to_owned).to_vec();
    header.extend(columns.iter().map(|name| format!("{name} µs")));
    header.extend(["selector / limit", "scaled"].map(str::to_owned));
    let row = |scenario: &ScenarioResult| {
        let mut cells = vec![
            Cell::text(&scenario.name),
            Cell::number(scenario.requests as f64, scenario.requests.to_string()),
            Cell::number(scenario.unique_bytes as f64, megabytes(scenario.unique_bytes)),
            Cell::number(scenario.unshared_bytes as f64, megabytes(scenario.unshared_bytes)),
            Cell::number(scenario.limit_us, micros(scenario.limit_us)),
        ];
        for name in &columns {
            let timing = scenario.timings.iter().find(|timing| column(&timing.policy) == *name);
            cells.push(match timing {
                Some(timing) => {
                    let spread =
                        timing.spread_us.map_or("(n = 1)".to_owned(), |us| format!("± {}", micros(us)));
                    Cell::number(timing.median_us, format!("{} {spread}", micros(timing.median_us)))
                }
                None => Cell::number(f64::NAN, NOTHING.to_owned()),
            });
        }
        let selector = scenario.timings.iter().find(|timing| timing.policy.starts_with("selector"));
        let over = selector.map_or(f64::NAN, |timing| timing.median_us / scenario.limit_us);
        cells.push(Cell::number(over, ratio(over)));
        cells.push(Cell::text(&scenario.scaled));
        cells
    };
    let rows = data.scenarios.iter().map(row).collect();
    Table {
        caption: "Median ± half the interquartile range of all samples; n = 1 where there is only one"
            .to_owned(),
        header,
        rows,
    }
}

/// Most workloads that are listed where the selector loses.
const LOSSES: usize = 15;

fn worst(data: &ReportData) -> Table {
    let loss = |workload: &WorkloadResult| {
        let timed = |us: &f64| us.is_finite() && *us > 0.0;
        let best = workload
            .tiles
            .iter()
            .filter_map(|tile| Some((tile.median_us.filter(timed)?, tile.name.clone())))
            .min_by(|a, b| a.0.total_cmp(&b.0))?;
        let chosen =
            workload.tiles.iter().find(|tile| tile.name == workload.chosen)?.median_us.filter(timed)?;
        Some((chosen / best.0 - 1.0, chosen, best))
    };
    let mut losses: Vec<_> = data.workloads.iter().filter_map(|w| Some((w, loss(w)?))).collect();
    losses.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    let rows = losses.into_iter().take(LOSSES).map(|(workload, (regret, chosen, (best_us, best)))| {
        vec![
            Cell::text(&workload.name),
            Cell::text(&workload.chosen),
            Cell::number(chosen, micros(chosen)),
            Cell::text(best),
            Cell::number(best_us, micros(best_us)),
            Cell::number(regret, percent(regret)),
            Cell::number(workload.limit_us, micros(workload.limit_us)),
        ]
    });
    let header =
        ["workload", "chosen", "µs", "best", "best µs", "regret", "limit µs"].map(str::to_owned).to_vec();
    Table {
        caption: "On the workloads that were fitted, largest regret first".to_owned(),
        header,
        rows: rows.collect(),
    }
}

fn rules(space: &[SpaceRow]) -> Vec<Rule> {
    let mut rules: BTreeMap<&str, Vec<&SpaceRow>> = BTreeMap::new();
    for row in space.iter().filter(|row| !row.rule.is_empty()) {
        rules.entry(&row.rule).or_default().push(row);
    }
    rules
        .into_iter()
        .map(|(name, rows)| {
            let mut classes: BTreeMap<&str, usize> = BTreeMap::new();
            for row in &rows {
                *classes.entry(&row.class).or_default() += 1;
            }
            Rule {
                name: name.to_owned(),
                count: rows.len(),
                example: rows.first().map_or(String::new(), |row| format!("{}: {}", row.name, row.reason)),
                classes: classes.into_iter().map(|(class, count)| (class.to_owned(), count)).collect(),
            }
        })
        .collect()
}
