//! Latency of whole batches against the limit: a line a scenario, a mark a policy.

use crate::data::{ReportData, ScenarioResult};
use crate::palette::{FAINT, INK, SERIES, themed};
use crate::policy_names::{BATCH_INVARIANT, BEST_SINGLE_TILE, ORACLE, PAT_RULES, PATS_PLANNER, SELECTOR};
use plotters::prelude::*;

const ROW_HEIGHT: u32 = 15;
const WIDTH: u32 = 980;
const NAMES_WIDTH: u32 = 400;

/// The policies that are shown, by their names without what stands in brackets.
const SHOWN: [&str; 6] = [SELECTOR, ORACLE, BEST_SINGLE_TILE, PAT_RULES, PATS_PLANNER, BATCH_INVARIANT];

/// The drawing; none if no scenario was timed.
pub(crate) fn latency_plot(data: &ReportData) -> Option<String> {
    let rows: Vec<(&ScenarioResult, Vec<(usize, f64)>)> = data
        .scenarios
        .iter()
        .map(|scenario| (scenario, ratios(scenario)))
        .filter(|(_, ratios)| !ratios.is_empty())
        .collect();
    let every = || rows.iter().flat_map(|(_, ratios)| ratios).map(|(_, ratio)| *ratio);
    let largest = every().fold(1.0, f64::max);
    // A time below the limit means a wrong limit: it must be seen, not drawn over the names.
    let smallest = every().fold(1.0, f64::min);
    if rows.is_empty() {
        return None;
    }
    let height = rows.len() as u32 * ROW_HEIGHT + 70;
    let mut svg = String::new();
    draw(&mut svg, &rows, (smallest, largest), height).ok()?;
    Some(themed(&svg, "Time over limit of each batch"))
}

/// Time over limit of each shown way.
fn ratios(scenario: &ScenarioResult) -> Vec<(usize, f64)> {
    let ratio = |(series, name): (usize, &&str)| {
        let bare = |policy: &'_ str| policy.split(" (").next() == Some(*name);
        let timing = scenario.timings.iter().find(|timing| bare(&timing.policy))?;
        let ratio = timing.median_us / scenario.limit_us;
        (ratio.is_finite() && ratio > 0.0).then_some((series, ratio))
    };
    SHOWN.iter().enumerate().filter_map(ratio).collect()
}

fn draw(
    svg: &mut String,
    rows: &[(&ScenarioResult, Vec<(usize, f64)>)],
    (smallest, largest): (f64, f64),
    height: u32,
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    let count = rows.len();
    let text = ("sans-serif", 12).into_font().color(&INK);
    let mut chart = ChartBuilder::on(&root)
        .margin(8)
        .x_label_area_size(40)
        .y_label_area_size(NAMES_WIDTH)
        .build_cartesian_2d((smallest * 0.8..largest * 1.15).log_scale(), -0.5f64..count as f64 - 0.5)?;
    let name = |y: &f64| {
        let row = rows.get(count - 1 - (y.round().max(0.0) as usize).min(count - 1));
        row.map_or(String::new(), |(scenario, _)| shortened(&scenario.name))
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .axis_style(FAINT)
        .label_style(text.clone())
        .x_desc("time / limit (1 = the hardware's limit; logarithmic)")
        .x_label_formatter(&|x| format!("{x:.1}"))
        .y_labels(0)
        .draw()?;
    let limit = [(1.0, -0.5), (1.0, count as f64 - 0.5)];
    chart.draw_series(LineSeries::new(limit, INK.stroke_width(2)))?;
    for (index, (_, ratios)) in rows.iter().enumerate() {
        let y = (count - 1 - index) as f64;
        let (low, high) =
            ratios.iter().fold((1.0f64, 1.0f64), |(low, high), (_, r)| (low.min(*r), high.max(*r)));
        chart.draw_series(LineSeries::new([(low, y), (high, y)], FAINT))?;
        for &(series, ratio) in ratios {
            let colour = SERIES[series];
            let at = (ratio, y);
            match series {
                0 => chart.draw_series([Circle::new(at, 5, colour.filled())]).map(drop)?,
                1 => chart.draw_series([TriangleMarker::new(at, 5, colour.filled())]).map(drop)?,
                2 => chart.draw_series([Cross::new(at, 4, colour.stroke_width(2))]).map(drop)?,
                3 => chart.draw_series([Circle::new(at, 4, colour.stroke_width(2))]).map(drop)?,
                5 => {
                    let square = Rectangle::new([(-4, -4), (4, 4)], colour.stroke_width(2));
                    chart.draw_series([EmptyElement::at(at) + square]).map(drop)?;
                }
                _ => chart.draw_series([TriangleMarker::new(at, 5, colour.stroke_width(2))]).map(drop)?,
            }
        }
        // Names stand in the margin, right-aligned at the axis.
        let (_, pixel) = chart.backend_coord(&(1.0, y));
        let style = text.clone().pos(plotters::style::text_anchor::Pos::new(
            plotters::style::text_anchor::HPos::Right,
            plotters::style::text_anchor::VPos::Center,
        ));
        root.draw(&Text::new(name(&y), (NAMES_WIDTH as i32, pixel), style))?;
    }
    root.present()?;
    drop(chart);
    drop(root);
    Ok(())
}

/// At most as long as fits the margin; the end of a name tells more than its middle.
fn shortened(name: &str) -> String {
    const MOST: usize = 60;
    let length = name.chars().count();
    if length <= MOST {
        return name.to_owned();
    }
    let head: String = name.chars().take(MOST / 2).collect();
    let tail: String = name.chars().skip(length - MOST / 2 + 1).collect();
    format!("{head}…{tail}")
}

/// Marks and names of the shown ways.
const LEGEND: [(&str, &str); SHOWN.len()] = [
    ("●", "selector"),
    ("▲", "oracle: the best of all that were tried"),
    ("✕", "best single tile"),
    ("○", "PAT's rules for tiles, all else as for the selector"),
    ("△", "PAT's planner on our kernels: its packs, its split and its rules for tiles"),
    ("□", "batch-invariant plans, whose bits depend on nothing else of a batch"),
];

/// Number, mark and name of each way that is drawn.
pub(crate) fn legend(data: &ReportData) -> Vec<(usize, &'static str, &'static str)> {
    let drawn = |series: usize| {
        data.scenarios.iter().any(|scenario| ratios(scenario).iter().any(|(other, _)| *other == series))
    };
    let numbered = LEGEND.into_iter().enumerate().filter(|(series, _)| drawn(*series));
    numbered.map(|(series, (mark, name))| (series + 1, mark, name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::PolicyTiming;

    #[test]
    fn pat_and_its_rules_have_different_labels() {
        let timing = |policy: &str, median_us| PolicyTiming {
            policy: policy.to_owned(),
            median_us,
            spread_us: None,
            count: 1,
        };
        let scenario = |timings| ScenarioResult {
            held_out: true,
            name: "s".to_owned(),
            requests: 1,
            scaled: String::new(),
            unique_bytes: 1,
            unshared_bytes: 1,
            limit_us: 1.0,
            timings,
        };
        let rules = scenario(vec![timing("selector", 2.0), timing("PAT's rules", 3.0)]);
        assert_eq!(ratios(&rules), [(0, 2.0), (3, 3.0)]);
        let whole = scenario(vec![timing("oracle (PAT's rules)", 3.0), timing(PATS_PLANNER, 4.0)]);
        assert_eq!(ratios(&whole), [(1, 3.0), (4, 4.0)]);
        assert_eq!(ratios(&scenario(vec![timing(BATCH_INVARIANT, 5.0)])), [(5, 5.0)]);
    }
}
