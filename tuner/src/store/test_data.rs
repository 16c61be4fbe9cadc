//! Rows and provenance for tests.

use super::{
    BatchTimeline, Conditions, DeviceRecord, Hashes, Level, Measurement, Provenance, Resources,
    ScenarioRecord, Status, TilePlaces, Timeline, TimelineEntry,
};
use tilewright_heuristics::{Prices, Tile};

pub(crate) fn provenance() -> Provenance {
    Provenance {
        device: DeviceRecord {
            backend: "cpu".to_owned(),
            name: "Test CPU x 2 threads".to_owned(),
            capability: "x86_64-avx2".to_owned(),
            units: 2,
        },
        limits: vec![("threads".to_owned(), "2".to_owned())],
        prices: Some(Prices { flop: 5, ..Prices::CPU }.into()),
        versions: vec![("tilewright".to_owned(), "0.1.0".to_owned())],
        hashes: Hashes { kernel: "k".to_owned(), space: "s".to_owned() },
        scenarios: vec![ScenarioRecord { name: "packs".to_owned(), hash: "h".to_owned() }],
        workloads: String::new(),
        command: "tilewright tune".to_owned(),
        started: "2026-01-01T00:00:00Z".to_owned(),
        cold_caches: "each sample reads other pages".to_owned(),
        limit_method: "bytes over bandwidth".to_owned(),
        warnings: Vec::new(),
        fit: crate::fit_settings::FitSettings::default(),
        prior: None,
    }
}

pub(crate) fn measurement(workload: &str, choice: &str, samples_us: &[f64]) -> Measurement {
    Measurement {
        level: Level::Batch,
        workload: workload.to_owned(),
        scenario: "packs".to_owned(),
        batch: None,
        held_out: false,
        choice: choice.to_owned(),
        tile: choice.parse().ok(),
        status: Status::Correct,
        survived: true,
        complete: true,
        samples_us: samples_us.to_vec(),
        limit_us: Some(0.5),
        requests: Some(1),
        unique_bytes: Some(1024),
        unshared_bytes: Some(4096),
        scaled: String::new(),
        relative_error: Some(1e-4),
        resources: Resources { scratch_bytes: Some(4096), ..Resources::default() },
        conditions: Conditions {
            sm_clock_mhz: Some(1980),
            throttled: "power cap".to_owned(),
            ..Conditions::default()
        },
        selector_hash: String::new(),
        message: String::new(),
    }
}

/// 100 ns of two tiles: the first item waits, computes and writes, the second does not say when its tokens came.
pub(crate) fn batch_timeline(batch: &str) -> BatchTimeline {
    let tile = |m, places| TilePlaces { tile: Tile::new(m, 64, 1, 1), places };
    let first = TimelineEntry {
        tile: 0,
        item: 0,
        kv_head: 1,
        share: 0,
        processor: 1,
        begin_ns: 0,
        ready_ns: Some(10),
        computed_ns: 60,
        end_ns: 80,
    };
    let second = TimelineEntry {
        tile: 1,
        item: 7,
        share: 2,
        begin_ns: 60,
        ready_ns: None,
        computed_ns: 100,
        end_ns: 100,
        ..first
    };
    BatchTimeline {
        batch: batch.to_owned(),
        choice: "selector".to_owned(),
        selector_hash: "hash".to_owned(),
        timeline: Timeline {
            processors: 2,
            tiles: vec![tile(4, 2), tile(8, 4)],
            // No decimal fraction is equal to it.
            predicted_idle: 1.0 / 3.0,
            entries: vec![first, second],
        },
    }
}
