//! Held-out batches by scenario: what each policy takes of the hardware's limit. The first thing a reader looks for.

use crate::data::{PolicyTiming, ReportData, ScenarioResult};
use crate::format::{NOTHING, ratio};
use crate::policy_names::{BATCH_INVARIANT, BEST_SINGLE_TILE, ORACLE, PAT_RULES, PATS_PLANNER, SELECTOR};
use crate::table::{Cell, Table};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::collections::BTreeMap;

/// The ways that are summed up, and what the picture calls them.
const WAYS: [(&str, &str, RGBColor); 6] = [
    (SELECTOR, "selector", RGBColor(0x1f, 0x6f, 0xb4)),
    (ORACLE, "best of each batch, in hindsight", RGBColor(0x9f, 0xc5, 0xe3)),
    (BEST_SINGLE_TILE, "one tile for all", RGBColor(0x8a, 0x8a, 0x8a)),
    (PAT_RULES, "PAT's rules for tiles", RGBColor(0xe0, 0x9f, 0x3e)),
    (PATS_PLANNER, "PAT's planner on our kernels", RGBColor(0xb5, 0x5d, 0x1f)),
    (BATCH_INVARIANT, "batch-invariant plans", RGBColor(0x5b, 0x8c, 0x5a)),
];

const WIDTH: u32 = 880;
const NAMES_WIDTH: i32 = 190;
const BAR: i32 = 13;
const GAP: i32 = 12;
/// Pixels above the bars, beside the names of the ways.
const TITLE: i32 = 44;
const NAME: i32 = 18;
/// Ways whose names have room in any case.
const NAMES: usize = 5;
const FOOT: i32 = 34;
const DARK: RGBColor = RGBColor(0x22, 0x22, 0x22);

/// The batches of one scenario.
#[derive(Clone, Debug, PartialEq)]
struct Kind {
    name: String,
    batches: usize,
    /// Time over limit of each of [`WAYS`], the geometric mean over the batches; none where one of them was not timed.
    ratios: [Option<f64>; WAYS.len()],
}

/// One kind a scenario that was held out, those farthest from their limit under the selector first, then all together.
fn kinds(scenarios: &[ScenarioResult]) -> Vec<Kind> {
    let mut by_name: BTreeMap<&str, Vec<&ScenarioResult>> = BTreeMap::new();
    for scenario in scenarios.iter().filter(|scenario| scenario.held_out) {
        by_name.entry(scenario.name.split('/').next().unwrap_or_default()).or_default().push(scenario);
    }
    let mut kinds: Vec<Kind> = by_name.iter().map(|(name, batches)| kind(name, batches)).collect();
    let order = |kind: &Kind| kind.ratios[0].unwrap_or(0.0);
    kinds.sort_by(|a, b| order(b).total_cmp(&order(a)).then_with(|| a.name.cmp(&b.name)));
    if kinds.len() > 1 {
        kinds.push(kind("all", &by_name.values().flatten().copied().collect::<Vec<_>>()));
    }
    kinds
}

fn kind(name: &str, batches: &[&ScenarioResult]) -> Kind {
    let ratios = WAYS.map(|(way, ..)| {
        let logs: Option<Vec<f64>> = batches.iter().map(|batch| Some(over_limit(batch, way)?.ln())).collect();
        logs.map(|logs| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
    });
    Kind { name: name.to_owned(), batches: batches.len(), ratios }
}

fn over_limit(batch: &ScenarioResult, way: &str) -> Option<f64> {
    let is_way = |timing: &&PolicyTiming| timing.policy.split(" (").next() == Some(way);
    let ratio = batch.timings.iter().find(is_way)?.median_us / batch.limit_us;
    (ratio.is_finite() && ratio > 0.0).then_some(ratio)
}

/// The tile that stands for all, as it was named.
fn tile_for_all(scenarios: &[ScenarioResult]) -> Option<&str> {
    let timings = scenarios.iter().flat_map(|scenario| &scenario.timings);
    let names = timings.filter_map(|timing| timing.policy.strip_prefix(BEST_SINGLE_TILE));
    names.into_iter().find_map(|rest| rest.strip_prefix(" (")?.strip_suffix(')'))
}

/// What the picture calls a way.
fn label(scenarios: &[ScenarioResult], way: usize) -> String {
    match tile_for_all(scenarios) {
        Some(tile) if WAYS[way].0 == BEST_SINGLE_TILE => format!("{} ({tile})", WAYS[way].1),
        _ => WAYS[way].1.to_owned(),
    }
}

/// The figures of [`picture`].
pub(crate) fn table(scenarios: &[ScenarioResult]) -> Table {
    let drawn = drawn(&kinds(scenarios));
    let header = ["scenario", "batches"].map(str::to_owned).into_iter();
    let row = |kind: Kind| {
        let figures = drawn.iter().map(|&way| match kind.ratios[way] {
            Some(value) => Cell::number(value, ratio(value)),
            None => Cell::number(f64::NAN, NOTHING.to_owned()),
        });
        let count = Cell::number(kind.batches as f64, kind.batches.to_string());
        [Cell::text(kind.name), count].into_iter().chain(figures).collect()
    };
    Table {
        caption: "Batches that no selector was fitted to: time over the hardware's limit, geometric mean over a scenario".to_owned(),
        header: header.chain(drawn.iter().map(|&way| label(scenarios, way))).collect(),
        rows: kinds(scenarios).into_iter().map(row).collect(),
    }
}

/// The ways that any kind has.
fn drawn(kinds: &[Kind]) -> Vec<usize> {
    (0..WAYS.len()).filter(|&way| kinds.iter().any(|kind| kind.ratios[way].is_some())).collect()
}

/// The bars as an SVG file of its own, for documents; none where no whole batch was timed.
pub fn picture(data: &ReportData) -> Option<String> {
    bars(&data.device, &data.scenarios)
}

fn bars(device: &str, scenarios: &[ScenarioResult]) -> Option<String> {
    let kinds = kinds(scenarios);
    let drawn = drawn(&kinds);
    let largest = kinds.iter().flat_map(|kind| kind.ratios).flatten().fold(f64::NAN, f64::max);
    let mut svg = String::new();
    (largest.is_finite() && draw(&mut svg, (device, scenarios), &kinds, &drawn, largest.max(1.0)).is_ok())
        .then_some(svg)
}

fn draw(
    svg: &mut String,
    (device, scenarios): (&str, &[ScenarioResult]),
    kinds: &[Kind],
    drawn: &[usize],
    largest: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let block = drawn.len() as i32 * BAR + GAP;
    let head = TITLE + drawn.len().max(NAMES) as i32 * NAME;
    let height = head + kinds.len() as i32 * block + FOOT;
    let root = SVGBackend::with_string(svg, (WIDTH, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let text = |size: i32| ("sans-serif", size).into_font().color(&DARK);
    let aligned = |horizontal, size| text(size).pos(Pos::new(horizontal, VPos::Center));
    let title =
        format!("{}: decode batches that no selector was fitted to, time over the hardware's limit", device);
    root.draw(&Text::new(title, (12, 16), aligned(HPos::Left, 16)))?;
    for (line, &way) in (0..).zip(drawn) {
        let y = 42 + line * NAME;
        root.draw(&Rectangle::new([(NAMES_WIDTH, y - 5), (NAMES_WIDTH + 18, y + 5)], WAYS[way].2.filled()))?;
        root.draw(&Text::new(label(scenarios, way), (NAMES_WIDTH + 26, y), aligned(HPos::Left, 13)))?;
    }
    // Room for the figure at the end of the longest bar.
    let scale = f64::from(WIDTH as i32 - NAMES_WIDTH - 60) / largest;
    let x = |ratio: f64| NAMES_WIDTH + (ratio * scale).round() as i32;
    for (index, kind) in (0..).zip(kinds) {
        let top = head + index * block;
        let name = format!("{} ({})", kind.name, kind.batches);
        let middle = top + (block - GAP) / 2;
        root.draw(&Text::new(name, (NAMES_WIDTH - 10, middle), aligned(HPos::Right, 13)))?;
        for (line, &way) in (0..).zip(drawn) {
            let Some(value) = kind.ratios[way] else { continue };
            let y = top + line * BAR;
            root.draw(&Rectangle::new(
                [(NAMES_WIDTH, y + 1), (x(value), y + BAR - 1)],
                WAYS[way].2.filled(),
            ))?;
            root.draw(&Text::new(ratio(value), (x(value) + 5, y + BAR / 2), aligned(HPos::Left, 11)))?;
        }
    }
    let limit = [(x(1.0), head - 6), (x(1.0), height - FOOT + 2)];
    root.draw(&PathElement::new(limit, DARK.stroke_width(1)))?;
    let foot = "1 = the hardware's limit; geometric mean, number of batches in brackets; shorter is better";
    root.draw(&Text::new(foot, (NAMES_WIDTH, height - 14), aligned(HPos::Left, 12)))?;
    root.present()?;
    drop(root);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(name: &str, times: &[(&str, f64)]) -> ScenarioResult {
        let timing = |&(policy, median_us): &(&str, f64)| PolicyTiming {
            policy: policy.to_owned(),
            median_us,
            spread_us: Some(0.1),
            count: 7,
        };
        ScenarioResult {
            held_out: true,
            name: name.to_owned(),
            requests: 4,
            scaled: String::new(),
            unique_bytes: 1,
            unshared_bytes: 2,
            limit_us: 10.0,
            timings: times.iter().map(timing).collect(),
        }
    }

    fn scenarios() -> Vec<ScenarioResult> {
        let single = "best single tile (m64n64w4s2)";
        vec![
            batch("tenants/a", &[(SELECTOR, 20.0), (single, 30.0), ("oracle (m16n64w4s2)", 15.0)]),
            batch("tenants/b", &[(SELECTOR, 80.0), (single, 30.0)]),
            batch("trace/c", &[(SELECTOR, 11.0), (single, 12.0), (PAT_RULES, 33.0)]),
        ]
    }

    #[test]
    fn a_kind_has_the_geometric_mean_of_what_all_its_batches_have() {
        let kinds = kinds(&scenarios());
        let names: Vec<(&str, usize)> = kinds.iter().map(|kind| (kind.name.as_str(), kind.batches)).collect();
        assert_eq!(names, [("tenants", 2), ("trace", 1), ("all", 3)], "the farthest from its limit first");
        let tenants = kinds[0].ratios;
        assert!((tenants[0].unwrap() - 4.0).abs() < 1e-9 && (tenants[2].unwrap() - 3.0).abs() < 1e-9);
        assert_eq!((tenants[1], tenants[3]), (None, None), "not of part of the batches");
        assert!((kinds[1].ratios[3].unwrap() - 3.3).abs() < 1e-9);
    }

    #[test]
    fn batch_invariant_plans_have_a_bar_where_all_batches_have_them() {
        let mut batches = scenarios();
        let height = |batches: &[ScenarioResult]| {
            let picture = bars("NVIDIA H200", batches).unwrap();
            (picture.contains("batch-invariant plans"), picture)
        };
        let time = |us| PolicyTiming {
            policy: BATCH_INVARIANT.to_owned(),
            median_us: us,
            spread_us: None,
            count: 1,
        };
        batches[0].timings.push(time(25.0));
        assert!(!height(&batches).0, "not of part of the batches");
        batches[1].timings.push(time(90.0));
        let (drawn, picture) = height(&batches);
        assert!(drawn && picture.contains("4.74"), "the root of 2.5 times 9");
        assert_eq!(table(&batches).header.last().unwrap(), "batch-invariant plans");
    }

    #[test]
    fn the_picture_has_every_figure_of_the_table() {
        let (table, picture) = (table(&scenarios()), bars("NVIDIA H200", &scenarios()).unwrap());
        assert_eq!(
            table.header,
            ["scenario", "batches", "selector", "one tile for all (m64n64w4s2)", "PAT's rules for tiles"]
        );
        for row in &table.rows {
            let figures = row[2..].iter().filter(|cell| cell.text != NOTHING);
            assert!(
                figures.clone().count() > 0 && figures.into_iter().all(|cell| picture.contains(&cell.text))
            );
        }
        assert!(picture.contains("NVIDIA H200") && picture.contains("m64n64w4s2"));
        let fitted = ScenarioResult { held_out: false, ..scenarios()[0].clone() };
        assert_eq!(bars("NVIDIA H200", &[fitted]), None);
    }
}
