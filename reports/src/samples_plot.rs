//! All samples of the closest races: the tile that the tree chooses beside the best one.

use crate::data::{ReportData, TileResult, WorkloadResult};
use crate::palette::{FAINT, INK, SERIES, themed};
use plotters::prelude::*;

const RACES: usize = 8;

/// A race that is shown: its name, what the rows are, and the drawing.
pub(crate) struct Race {
    pub(crate) name: String,
    pub(crate) rows: Vec<String>,
    pub(crate) svg: String,
}

/// The races with the least distance between the best tile and the next one, relative to their spread.
pub(crate) fn races(data: &ReportData) -> Vec<Race> {
    let mut closest: Vec<(f64, &WorkloadResult, Vec<&TileResult>)> = data
        .workloads
        .iter()
        .filter_map(|workload| {
            let mut timed: Vec<&TileResult> = workload
                .tiles
                .iter()
                .filter(|tile| finite(tile).count() >= 3 && tile.median_us.is_some_and(f64::is_finite))
                .collect();
            timed.sort_by(|a, b| a.median_us.partial_cmp(&b.median_us).unwrap_or(std::cmp::Ordering::Equal));
            let [best, next, ..] = timed.as_slice() else { return None };
            let distance = next.median_us? / best.median_us? - 1.0;
            let mut shown: Vec<&TileResult> = timed.iter().take(3).copied().collect();
            shown.extend(timed.iter().skip(3).find(|tile| tile.name == workload.chosen));
            Some((distance, workload, shown))
        })
        .collect();
    closest.sort_by(|a, b| a.0.total_cmp(&b.0));
    closest
        .into_iter()
        .take(RACES)
        .filter_map(|(_, workload, shown)| {
            let svg = draw(&shown).ok()?;
            let label = |tile: &&TileResult| {
                let chosen = if tile.name == workload.chosen { " (chosen)" } else { "" };
                format!("{}{chosen}", tile.name)
            };
            Some(Race {
                name: workload.name.clone(),
                rows: shown.iter().map(label).collect(),
                svg: themed(&svg, "Samples of each tile, in µs"),
            })
        })
        .collect()
}

/// The samples that can be drawn.
fn finite(tile: &TileResult) -> impl Iterator<Item = f64> + '_ {
    tile.samples_us.iter().copied().filter(|us| us.is_finite())
}

fn draw(tiles: &[&TileResult]) -> Result<String, Box<dyn std::error::Error>> {
    let samples = tiles.iter().flat_map(|tile| finite(tile));
    let (low, high) = samples.fold((f64::INFINITY, 0.0f64), |(low, high), us| (low.min(us), high.max(us)));
    let pad = ((high - low) * 0.05).max(low * 1e-3).max(1e-3);
    if !(high + pad - (low - pad)).is_finite() {
        // The plotting library looks for ticks in such a range for ever.
        return Err("the samples span no finite range".into());
    }
    let mut svg = String::new();
    let height = 44 + 24 * tiles.len() as u32;
    {
        let root = SVGBackend::with_string(&mut svg, (460, height)).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin(6)
            .x_label_area_size(28)
            .build_cartesian_2d(low - pad..high + pad, -0.6f64..tiles.len() as f64 - 0.4)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .x_labels(6)
            .light_line_style(TRANSPARENT)
            .bold_line_style(FAINT)
            .axis_style(FAINT)
            .label_style(("sans-serif", 12).into_font().color(&INK))
            .x_label_formatter(&|us| format!("{us:.0} µs"))
            .draw()?;
        for (index, tile) in tiles.iter().enumerate() {
            let y = (tiles.len() - 1 - index) as f64;
            let colour = SERIES[index.min(SERIES.len() - 1)];
            chart.draw_series(finite(tile).map(|us| Circle::new((us, y), 3, colour.mix(0.7).filled())))?;
            if let Some(median) = tile.median_us {
                let line = [(median, y - 0.35), (median, y + 0.35)];
                chart.draw_series(LineSeries::new(line, INK.stroke_width(2)))?;
            }
        }
        root.present()?;
    }
    Ok(svg)
}
