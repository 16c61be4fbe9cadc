//! Timelines as Parquet: one row an entry, in the metadata the schema version, the device and what is known of each batch.

use super::checksum::{self, checksum};
use super::{
    BatchTimeline, DeviceRecord, SkippedTimeline, StoreError, TilePlaces, Timeline, TimelineEntry, Timelines,
    timelines_path, write_whole,
};
use polars::prelude::*;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Version of the columns and of the metadata. A reader refuses every other one.
const VERSION: u32 = 1;
const VERSION_KEY: &str = "tilewright.timelines.schema";
const TIMELINES_KEY: &str = "tilewright.timelines";

/// What the metadata says.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    device: DeviceRecord,
    batches: Vec<BatchHead>,
    skipped: Vec<SkippedTimeline>,
}

/// A batch without its entries.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchHead {
    batch: String,
    choice: String,
    selector_hash: String,
    processors: u32,
    tiles: Vec<TilePlaces>,
    #[serde(with = "crate::serde_text")]
    predicted_idle: f64,
    /// Its rows, behind those of the batches before.
    entries: usize,
}

/// Writes timelines. The file appears whole or not at all.
///
/// # Errors
/// The file system's.
pub fn write_timelines(path: &Path, timelines: &Timelines) -> Result<(), StoreError> {
    let unwritable = |detail: String| StoreError::Timelines { path: path.to_owned(), detail };
    let Timelines { device, batches, skipped } = timelines;
    let head = Head {
        device: device.clone(),
        batches: batches.iter().map(BatchHead::of).collect(),
        skipped: skipped.clone(),
    };
    let head = serde_json::to_string(&head).map_err(|error| unwritable(error.to_string()))?;
    let mut frame = to_frame(batches).map_err(|error| unwritable(error.to_string()))?;
    let sum =
        checksum(&[&VERSION.to_string(), &head], &frame).map_err(|error| unwritable(error.to_string()))?;
    let metadata = KeyValueMetadata::from_static(vec![
        (VERSION_KEY.to_owned(), VERSION.to_string()),
        (TIMELINES_KEY.to_owned(), head),
        (checksum::KEY.to_owned(), sum),
    ]);
    let mut bytes = Vec::new();
    ParquetWriter::new(&mut bytes)
        .with_key_value_metadata(Some(metadata))
        .with_compression(ParquetCompression::Zstd(None))
        .finish(&mut frame)
        .map_err(|error| unwritable(error.to_string()))?;
    write_whole(path, &bytes)
}

/// Writes the timelines of measurements beside them. Where there are none, those of earlier measurements do not stay: they are of others.
///
/// # Errors
/// The file system's.
pub fn write_timelines_beside(measurements: &Path, timelines: &Timelines) -> Result<(), StoreError> {
    let path = timelines_path(measurements);
    if !timelines.is_empty() {
        return write_timelines(&path, timelines);
    }
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(StoreError::io("remove", &path)(error)),
        _ => Ok(()),
    }
}

/// Reads timelines; `None` if there is no such file: older recordings have none.
///
/// # Errors
/// A file that is cut off, not ours, of another schema version, or says what makes no sense.
pub fn read_timelines(path: &Path) -> Result<Option<Timelines>, StoreError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.map_err(StoreError::io("read", path))?,
    };
    // The reader panics on some damaged pages; for a user that is one more unreadable file.
    let outcome = catch_unwind(AssertUnwindSafe(|| decode(path, file)));
    outcome.unwrap_or_else(|_| {
        Err(StoreError::Timelines { path: path.to_owned(), detail: "its pages are damaged".to_owned() })
    })
}

fn decode(path: &Path, file: File) -> Result<Option<Timelines>, StoreError> {
    let wrong = |detail: String| StoreError::Timelines { path: path.to_owned(), detail };
    let mut reader = ParquetReader::new(file);
    let metadata = reader.get_metadata().map_err(|error| wrong(error.to_string()))?.clone();
    let entries = metadata.key_value_metadata.as_deref().unwrap_or_default();
    let entry = |key: &str| {
        let entry = entries.iter().find(|entry| entry.key == key).and_then(|entry| entry.value.clone());
        entry.ok_or_else(|| wrong(format!("its metadata has no `{key}`")))
    };
    let found = entry(VERSION_KEY)?;
    if found != VERSION.to_string() {
        return Err(StoreError::SchemaVersion { path: path.to_owned(), found, expected: VERSION });
    }
    let head = entry(TIMELINES_KEY)?;
    let frame = reader.finish().map_err(|error| wrong(error.to_string()))?;
    // Files of before have none.
    if let Ok(sum) = entry(checksum::KEY)
        && checksum(&[&found, &head], &frame).map_err(|error| wrong(error.to_string()))? != sum
    {
        return Err(StoreError::Checksum { path: path.to_owned() });
    }
    let Head { device, batches, skipped } =
        serde_json::from_str(&head).map_err(|error| wrong(error.to_string()))?;
    let rows = from_frame(&frame).map_err(wrong)?;
    let batches = with_entries(batches, rows).map_err(wrong)?;
    Ok(Some(Timelines { device, batches, skipped }))
}

impl BatchHead {
    fn of(batch: &BatchTimeline) -> Self {
        let BatchTimeline { batch, choice, selector_hash, timeline } = batch;
        Self {
            batch: batch.clone(),
            choice: choice.clone(),
            selector_hash: selector_hash.clone(),
            processors: timeline.processors,
            tiles: timeline.tiles.clone(),
            predicted_idle: timeline.predicted_idle,
            entries: timeline.entries.len(),
        }
    }
}

fn to_frame(batches: &[BatchTimeline]) -> PolarsResult<DataFrame> {
    let entries = || batches.iter().flat_map(|batch| &batch.timeline.entries);
    let u32s = |name: &str, of: fn(&TimelineEntry) -> u32| {
        Column::new(name.into(), entries().map(of).collect::<Vec<u32>>())
    };
    let u64s = |name: &str, of: fn(&TimelineEntry) -> u64| {
        Column::new(name.into(), entries().map(of).collect::<Vec<u64>>())
    };
    let names: Vec<&str> = batches
        .iter()
        .flat_map(|batch| batch.timeline.entries.iter().map(|_| batch.batch.as_str()))
        .collect();
    let columns = vec![
        Column::new("batch".into(), names),
        u32s("tile", |entry| entry.tile),
        u32s("item", |entry| entry.item),
        u32s("kv_head", |entry| entry.kv_head),
        u32s("share", |entry| entry.share),
        u32s("processor", |entry| entry.processor),
        u64s("begin_ns", |entry| entry.begin_ns),
        Column::new("ready_ns".into(), entries().map(|entry| entry.ready_ns).collect::<Vec<Option<u64>>>()),
        u64s("computed_ns", |entry| entry.computed_ns),
        u64s("end_ns", |entry| entry.end_ns),
    ];
    DataFrame::new(entries().count(), columns)
}

fn from_frame(frame: &DataFrame) -> Result<Vec<TimelineEntry>, String> {
    let column = |name: &str| frame.column(name).map_err(|_| format!("it has no column `{name}`"));
    let other = |column: &Column| format!("column `{}` has the type {}", column.name(), column.dtype());
    let u32s = |name: &str| column(name).and_then(|column| column.u32().map_err(|_| other(column)));
    let u64s = |name: &str| column(name).and_then(|column| column.u64().map_err(|_| other(column)));
    let (tile, item, kv_head) = (u32s("tile")?, u32s("item")?, u32s("kv_head")?);
    let (share, processor) = (u32s("share")?, u32s("processor")?);
    let (begin, ready) = (u64s("begin_ns")?, u64s("ready_ns")?);
    let (computed, end) = (u64s("computed_ns")?, u64s("end_ns")?);
    let entry = |row: usize| {
        Some(TimelineEntry {
            tile: tile.get(row)?,
            item: item.get(row)?,
            kv_head: kv_head.get(row)?,
            share: share.get(row)?,
            processor: processor.get(row)?,
            begin_ns: begin.get(row)?,
            ready_ns: ready.get(row),
            computed_ns: computed.get(row)?,
            end_ns: end.get(row)?,
        })
    };
    (0..frame.height()).map(|row| entry(row).ok_or_else(|| format!("row {row} has an empty cell"))).collect()
}

/// Gives each batch its rows, which must make sense.
fn with_entries(heads: Vec<BatchHead>, rows: Vec<TimelineEntry>) -> Result<Vec<BatchTimeline>, String> {
    let expected = heads.iter().fold(0usize, |sum, head| sum.saturating_add(head.entries));
    if expected != rows.len() {
        return Err(format!("its batches have {expected} entries, but it has {} rows", rows.len()));
    }
    let mut rows = rows.into_iter();
    heads
        .into_iter()
        .map(|head| {
            let BatchHead { batch, choice, selector_hash, processors, tiles, predicted_idle, entries } = head;
            let entries: Vec<TimelineEntry> = rows.by_ref().take(entries).collect();
            let sensible = |entry: &&TimelineEntry| {
                entry.in_order() == **entry
                    && entry.processor < processors
                    && (entry.tile as usize) < tiles.len()
            };
            if let Some(entry) = entries.iter().find(|entry| !sensible(entry)) {
                return Err(format!("{batch}: an entry makes no sense: {entry:?}"));
            }
            let timeline = Timeline { processors, tiles, predicted_idle, entries };
            Ok(BatchTimeline { batch, choice, selector_hash, timeline })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::test_data::{batch_timeline, provenance};
    use crate::store::{Recording, write};

    fn timelines() -> Timelines {
        let mut timelines = Timelines::none_of(provenance().device);
        timelines.keep(batch_timeline("a"));
        timelines.keep(batch_timeline("b"));
        timelines.skip(SkippedTimeline {
            batch: "c".to_owned(),
            selector_hash: "hash".to_owned(),
            reason: "the budget \"was\" spent".to_owned(),
        });
        timelines
    }

    #[test]
    fn what_is_written_is_read_back_and_no_file_is_no_timelines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.timelines.parquet");
        assert_eq!(read_timelines(&path).unwrap(), None);
        let mut second = timelines();
        second.batches[1].timeline.entries.truncate(1);
        second.batches[1].timeline.predicted_idle = f64::NAN;
        for timelines in [timelines(), Timelines::none_of(provenance().device)] {
            write_timelines(&path, &timelines).unwrap();
            assert_eq!(read_timelines(&path).unwrap(), Some(timelines));
        }
        write_timelines(&path, &second).unwrap();
        let found = read_timelines(&path).unwrap().unwrap();
        assert!(found.batches[1].timeline.predicted_idle.is_nan());
        assert_eq!(found.batches[1].timeline.entries, second.batches[1].timeline.entries);
    }

    /// Writes timelines that were changed so, and says why they cannot be read.
    fn refused(change: impl FnOnce(&mut Timelines)) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.timelines.parquet");
        let mut timelines = timelines();
        change(&mut timelines);
        write_timelines(&path, &timelines).unwrap();
        let error = read_timelines(&path).unwrap_err();
        assert!(matches!(error, StoreError::Timelines { .. }), "{error}");
        error.to_string()
    }

    #[test]
    fn entries_that_make_no_sense_are_refused() {
        let backwards = refused(|all| all.batches[1].timeline.entries[0].end_ns = 3);
        assert!(
            backwards.contains("b: an entry makes no sense") && backwards.contains("end_ns: 3"),
            "{backwards}"
        );
        refused(|all| all.batches[0].timeline.entries[1].tile = 2);
        refused(|all| all.batches[0].timeline.entries[1].processor = 2);
    }

    #[test]
    fn other_files_and_other_versions_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.parquet");
        write(&path, &Recording { provenance: provenance(), rows: Vec::new() }).unwrap();
        let error = read_timelines(&path).unwrap_err().to_string();
        assert!(error.contains("m.parquet: not a file of timelines: its metadata has no"), "{error}");
        write_timelines(&path, &timelines()).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        assert!(matches!(read_timelines(&path), Err(StoreError::Timelines { .. })));

        let mut frame = to_frame(&timelines().batches).unwrap();
        let metadata = KeyValueMetadata::from_static(vec![(VERSION_KEY.to_owned(), "2".to_owned())]);
        let mut newer = Vec::new();
        ParquetWriter::new(&mut newer).with_key_value_metadata(Some(metadata)).finish(&mut frame).unwrap();
        std::fs::write(&path, newer).unwrap();
        let error = read_timelines(&path).unwrap_err();
        assert!(matches!(error, StoreError::SchemaVersion { expected: VERSION, .. }), "{error}");
    }
}
