//! Round trips, and files that are not what they should be.

use super::*;
use crate::store::test_data::{measurement, provenance};
use polars::prelude::{Column, DataFrame, ParquetWriter};

fn recording() -> Recording {
    let failed = Measurement {
        status: Status::Correctness,
        survived: false,
        samples_us: Vec::new(),
        tile: None,
        limit_us: None,
        message: "relative error 0.3".to_owned(),
        ..measurement("b", "selector", &[])
    };
    Recording {
        provenance: provenance(),
        rows: vec![measurement("a", "m4n64w1s1", &[3.0, 1.0, 2.0]), failed],
    }
}

fn written(recording: &Recording) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.parquet");
    write(&path, recording).unwrap();
    (folder, path)
}

#[test]
fn what_is_written_is_read_back() {
    for recording in [recording(), Recording { provenance: provenance(), rows: Vec::new() }] {
        let (_folder, path) = written(&recording);
        assert_eq!(read(&path).unwrap(), recording);
    }
}

#[test]
fn a_file_without_prices_has_those_of_its_backend() {
    use tilewright_heuristics::Prices;
    let (_folder, path) = written(&recording());
    assert_eq!(read(&path).unwrap().provenance.prices(), Prices { flop: 5, ..Prices::CPU });
    let mut old = recording();
    let text = serde_json::to_string(&old.provenance).unwrap();
    let without_merges = text.replace(&format!(",\"merge\":{}", Prices::CPU.merge), "");
    assert!(without_merges.len() < text.len());
    let provenance: crate::store::Provenance = serde_json::from_str(&without_merges).unwrap();
    assert_eq!(
        provenance.prices(),
        old.provenance.prices(),
        "what merging at all costs was not measured once"
    );
    old.provenance.prices = None;
    assert!(!serde_json::to_string(&old.provenance).unwrap().contains("prices"), "as files were before");
    for (backend, prices) in [("cpu", Prices::CPU), ("cuda", Prices::H200)] {
        backend.clone_into(&mut old.provenance.device.backend);
        let (_folder, path) = written(&old);
        let found = read(&path).unwrap();
        assert_eq!(found, old);
        assert_eq!(found.provenance.prices(), prices);
    }
}

#[test]
fn the_file_holds_median_spread_and_count_for_other_readers() {
    let (_folder, path) = written(&recording());
    let frame = ParquetReader::new(File::open(path).unwrap()).finish().unwrap();
    assert_eq!(frame.column("median_us").unwrap().f64().unwrap().get(0), Some(2.0));
    assert_eq!(frame.column("spread_us").unwrap().f64().unwrap().get(0), Some(0.5));
    assert_eq!(frame.column("count").unwrap().u64().unwrap().get(0), Some(3));
    assert_eq!(frame.column("device").unwrap().str().unwrap().get(1), Some("Test CPU x 2 threads"));
}

#[test]
fn a_file_cut_off_anywhere_is_a_clear_error() {
    let (folder, path) = written(&recording());
    let whole = std::fs::read(&path).unwrap();
    let cut = folder.path().join("cut.parquet");
    for length in (0..whole.len()).step_by(97) {
        std::fs::write(&cut, &whole[..length]).unwrap();
        let error = read(&cut).unwrap_err();
        assert!(matches!(error, StoreError::Unreadable { .. }), "{length} bytes: {error}");
        assert!(error.to_string().contains("cut.parquet"), "{error}");
    }
}

#[test]
fn a_damaged_file_never_panics() {
    let (folder, path) = written(&recording());
    let whole = std::fs::read(&path).unwrap();
    let damaged = folder.path().join("damaged.parquet");
    for at in (4..whole.len()).step_by(41) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0xff;
        std::fs::write(&damaged, &bytes).unwrap();
        // Some damage is invisible (padding, statistics); what matters is that reading returns.
        let _ = read(&damaged);
    }
}

/// `TILEWRIGHT_FLIPS` says how many bits; all of them, where it is `all`.
#[test]
fn a_flipped_bit_is_found_or_changes_nothing() {
    let (folder, path) = written(&recording());
    let whole = std::fs::read(&path).unwrap();
    let bits = whole.len() * 8;
    let flips = match std::env::var("TILEWRIGHT_FLIPS") {
        Ok(all) if all == "all" => bits,
        Ok(count) => count.parse().unwrap(),
        Err(_) => 600,
    };
    let damaged = folder.path().join("damaged.parquet");
    let mut found = 0;
    for flip in 0..flips.min(bits) {
        // A stride without a common divisor with the size visits every bit once.
        let bit = if flips >= bits { flip } else { flip * 7919 % bits };
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&damaged, &bytes).unwrap();
        match read(&damaged) {
            Ok(read) => assert_eq!(read, recording(), "bit {bit} of {bits} gives something else"),
            Err(_) => found += 1,
        }
    }
    // The rest are of statistics and the like, which no row depends on.
    assert!(found > flips.min(bits) / 4, "{found} of {flips} flips were found");
}

#[test]
fn a_file_of_before_has_no_checksum_and_is_read() {
    let (folder, path) = written(&recording());
    let mut frame = ParquetReader::new(File::open(&path).unwrap()).finish().unwrap();
    let json = serde_json::to_string(&provenance()).unwrap();
    let mut rewritten = |entries: &[(&str, &str)]| {
        let entries = entries.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let old = folder.path().join("old.parquet");
        ParquetWriter::new(File::create(&old).unwrap())
            .with_key_value_metadata(Some(KeyValueMetadata::from_static(entries)))
            .finish(&mut frame)
            .unwrap();
        read(&old)
    };
    let version = SCHEMA_VERSION.to_string();
    let entries = [(VERSION_KEY, version.as_str()), (PROVENANCE_KEY, json.as_str())];
    assert_eq!(rewritten(&entries).unwrap(), recording());
    let wrong = [&entries[..], &[(checksum::KEY, "00")]].concat();
    assert!(matches!(rewritten(&wrong), Err(StoreError::Checksum { .. })));
}

fn with_metadata(entries: &[(&str, &str)]) -> StoreError {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.parquet");
    let mut frame = DataFrame::new(1, vec![Column::new("x".into(), [1u32])]).unwrap();
    let entries = entries.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    ParquetWriter::new(File::create(&path).unwrap())
        .with_key_value_metadata(Some(KeyValueMetadata::from_static(entries)))
        .finish(&mut frame)
        .unwrap();
    read(&path).unwrap_err()
}

#[test]
fn files_of_others_and_of_other_versions_are_named_as_such() {
    let foreign = with_metadata(&[]);
    assert!(matches!(foreign, StoreError::Foreign { .. }), "{foreign}");
    let next = (SCHEMA_VERSION + 1).to_string();
    let newer = with_metadata(&[(VERSION_KEY, &next)]);
    assert!(matches!(&newer, StoreError::SchemaVersion { found, .. } if *found == next), "{newer}");
    let json = serde_json::to_string(&provenance()).unwrap();
    let no_columns = with_metadata(&[(VERSION_KEY, &SCHEMA_VERSION.to_string()), (PROVENANCE_KEY, &json)]);
    assert!(no_columns.to_string().contains("no column `level`"), "{no_columns}");
    let bad_provenance = with_metadata(&[(VERSION_KEY, &SCHEMA_VERSION.to_string()), (PROVENANCE_KEY, "{}")]);
    assert!(bad_provenance.to_string().contains("provenance"), "{bad_provenance}");
}

#[test]
fn a_missing_file_is_named() {
    let error = read(Path::new("no/such/file.parquet")).unwrap_err();
    assert!(error.to_string().starts_with("no/such/file.parquet: cannot read"), "{error}");
}

#[test]
fn a_union_holds_one_device() {
    let first = recording();
    let mut other = recording();
    let both = union(vec![("a".into(), first.clone()), ("b".into(), other.clone())]).unwrap().unwrap();
    assert_eq!(both.rows.len(), 2, "the same workloads, united");
    assert_eq!(both.rows[0].samples_us.len(), 6);
    other.provenance.device.name = "another".to_owned();
    let error = union(vec![("a".into(), first), ("b".into(), other)]).unwrap_err();
    assert!(error.to_string().contains("another"), "{error}");
}
