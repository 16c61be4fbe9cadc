//! Sample data for tests of the page: made up, and labelled as such.

use tilewright_reports::{
    BatchTimeline, LaunchBatch, LaunchFamily, LaunchModeResult, Launching, Policy, PolicyTiming, ReportData,
    ScenarioResult, SpaceRow, TileResult, TimelineBar, Timelines, TreeNode, WorkloadResult,
};

fn policy(name: &str, mean: f64) -> Policy {
    Policy { name: name.to_owned(), mean, p95: mean * 3.0, worst: mean * 8.0, count: 60 }
}

/// Two modes, of which the second is the better one and cannot be had on one batch.
fn launching() -> Launching {
    let mode = |name: &str, over_default, measured, failure: &str| LaunchModeResult {
        name: name.to_owned(),
        over_default,
        measured_over_default: Some(over_default - 0.03125),
        measured,
        fastest: measured / 2,
        failed: 30 - measured,
        failure: failure.to_owned(),
    };
    let batch = |i: u64| LaunchBatch {
        name: format!("launched-{i}"),
        default_us: 140.0 + i as f64,
        over_default: vec![Some(1.0), (i > 0).then_some(0.75 + i as f64 / 128.0)],
    };
    Launching {
        modes: vec![
            mode("serial+launch", 1.0, 30, ""),
            mode("single+last-cta", 0.8125, 29, "the mix <of tiles> has no room"),
        ],
        families: vec![LaunchFamily {
            name: "family".to_owned(),
            batches: 30,
            over_default: vec![1.0, 0.828125],
        }],
        batches: (0..30).map(batch).collect(),
    }
}

/// Two timelines, and one that was skipped.
fn timelines() -> Timelines {
    let bar = |i: u64| {
        let begin = i / 8 * 10_000 + i % 4 * 300;
        TimelineBar {
            processor: (i % 4) as u32,
            begin_ns: begin,
            ready_ns: Some(begin + 900),
            computed_ns: begin + 8_000,
            end_ns: begin + 9_000,
        }
    };
    let batch = |name: &str, items| BatchTimeline {
        name: name.to_owned(),
        tiles: vec![("m16n64w4s2".to_owned(), 8)],
        processors: 4,
        predicted_idle: 0.0625,
        measured_idle: 0.171875,
        waiting: Some(0.078125),
        computing: 0.65625,
        writing: 0.09375,
        bars: (0..items).map(bar).collect(),
    };
    Timelines {
        processor: "SM".to_owned(),
        batches: vec![batch("drawn <first>", 64), batch("drawn second", 8)],
        skipped: vec![("not drawn".to_owned(), "no room <left>".to_owned())],
    }
}

/// A report of a device that does not exist.
pub(crate) fn sample() -> ReportData {
    let parameters = ["m", "n", "warps", "stages"].map(str::to_owned).to_vec();
    let tiles: Vec<Vec<u64>> = [1, 4, 16].iter().flat_map(|&m| [16, 64].map(|n| vec![m, n, 1, 2])).collect();
    let name = |tile: &[u64]| format!("m{}n{}w{}s{}", tile[0], tile[1], tile[2], tile[3]);
    let tile_result = |tile: &Vec<u64>, workload: u64| {
        let us = 50.0 + 7.0 * ((tile[0] * 3 + tile[1] + workload) % 11) as f64;
        TileResult {
            name: name(tile),
            tile: tile.clone(),
            status: "correct".to_owned(),
            median_us: Some(us),
            spread_us: Some(1.5),
            samples_us: vec![us - 2.0, us, us + 1.0, us + 3.0, us - 0.5],
            relative_error: Some(2e-4),
            message: String::new(),
        }
    };
    let leaf = |tile: &str, support| {
        Box::new(TreeNode::Leaf { ranked: vec![tile.to_owned()], support, regret: 0.012 })
    };
    let split = |feature: &str, threshold, low, high| TreeNode::Split {
        feature: feature.to_owned(),
        threshold,
        low,
        high,
    };
    ReportData {
        device: "Sample device (made-up data for tests)".to_owned(),
        backend: "cpu".to_owned(),
        environment: vec![
            ("threads".to_owned(), "2".to_owned()),
            ("kernel hash".to_owned(), "0123abcd".to_owned()),
        ],
        command: "tilewright tune --budget 60".to_owned(),
        cold_caches: "Each sample reads other pages.".to_owned(),
        limit_method: "Bytes over bandwidth.".to_owned(),
        warnings: vec!["The machine was busy <b>".to_owned()],
        headline: Some("On 60 batches that were not fitted the selector takes 0.970 of the time of the best single tile.".to_owned()),
        held_out: vec![
            policy("selector", 0.012),
            policy("best single tile", 0.18),
            policy("PAT's rules", 0.31),
        ],
        batches: vec![
            policy("selector", 0.02),
            policy("best single tile (m4n64w1s2)", 0.1),
            policy("PAT's rules", 0.2),
        ],
        invariant: None,
        launching: Some(launching()),
        timelines: Some(timelines()),
        scenarios: (0..30)
            .map(|i| ScenarioResult {
held_out: true,
                name: format!("pat-fig9/1,{i},256_256,32,256/32x8"),
                requests: 256 - i,
                scaled: if i % 2 == 0 { "heads / 8".to_owned() } else { String::new() },
                unique_bytes: 1_000_000 * (i + 1),
                unshared_bytes: 9_000_000 * (i + 1),
                limit_us: 100.0 + i as f64,
                timings: [
                    ("selector", 1.5),
                    ("oracle (m4n64w1s2)", 1.45),
                    ("best single tile (m4n64w1s2)", 1.8),
                    ("PAT's rules", 2.2),
                ]
                .map(|(policy, factor)| PolicyTiming {
                    policy: policy.to_owned(),
                    median_us: (100.0 + i as f64) * factor * (1.0 + (i % 7) as f64 / 10.0),
                    // The first batch had time for one sample.
                    spread_us: (i > 0).then_some(2.0),
                    count: if i > 0 { 9 } else { 1 },
                })
                .to_vec(),
            })
            .collect(),
        features: ["rows", "kv_len"].map(str::to_owned).to_vec(),
        parameters,
        workloads: (0..12)
            .map(|i| WorkloadResult {
                name: format!("rows-{}-kv-{}", 1 << (i % 4), 64 << (i % 5)),
                features: vec![1 << (i % 4), 64 << (i % 5)],
                limit_us: 30.0,
                chosen: "m4n64w1s2".to_owned(),
                tiles: tiles.iter().map(|tile| tile_result(tile, i)).collect(),
            })
            .collect(),
        space: tiles
            .iter()
            .map(|tile| SpaceRow {
                class: "head_dim 128 f16".to_owned(),
                name: name(tile),
                tile: tile.clone(),
                rule: if tile[0] == 16 { "threads".to_owned() } else { String::new() },
                reason: if tile[0] == 16 {
                    "4 threads share an item, the processor runs 2".to_owned()
                } else {
                    String::new()
                },
            })
            .collect(),
        tree: split(
            "rows",
            8,
            leaf("m4n16w1s2", 20),
            Box::new(split("kv_len", 512, leaf("m4n64w1s2", 30), leaf("m16n64w1s2", 10))),
        ),
        proof: "no tree of depth 4 over this portfolio has less mean regret (proven)".to_owned(),
        portfolio: vec![
            ("m4n16w1s2".to_owned(), 20),
            ("m4n64w1s2".to_owned(), 30),
            ("m16n64w1s2".to_owned(), 10),
        ],
        safe_default: "m4n64w1s2".to_owned(),
    }
}
