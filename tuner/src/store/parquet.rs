//! Measurements as Parquet: one row a measurement, the schema version and the provenance in the file's metadata.

use super::checksum::{self, checksum};
use super::measurement::coalesce;
use super::{Conditions, Level, Measurement, Provenance, Resources, Status, StoreError};
use polars::prelude::*;
use std::fs::File;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tilewright_heuristics::{BatchShape, Tile};

/// Version of the columns and of the metadata. A reader refuses every other one.
pub const SCHEMA_VERSION: u32 = 3;

const VERSION_KEY: &str = "tilewright.schema";
const PROVENANCE_KEY: &str = "tilewright.provenance";
const BATCH_PREFIX: &str = "batch_";
const TILE_PREFIX: &str = "tile_";

/// A file of measurements: where it comes from, and its rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// Where the rows come from.
    pub provenance: Provenance,
    /// The rows, in the order in which they were measured.
    pub rows: Vec<Measurement>,
}

/// Writes a recording. The file appears whole or not at all.
///
/// # Errors
/// The file system's; a full disk as [`StoreError::Io`] with kind `StorageFull`.
pub fn write(path: &Path, recording: &Recording) -> Result<(), StoreError> {
    let bytes = encode(path, recording)?;
    write_whole(path, &bytes)
}

/// Writes a file aside and renames it, so that readers see the old or the new one, never a part.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(StoreError::io("create the folder of", path))?;
    let mut aside = tempfile::Builder::new()
        .prefix(".writing-")
        .tempfile_in(folder)
        .map_err(StoreError::io("create a file beside", path))?;
    aside.write_all(bytes).map_err(StoreError::io("write", path))?;
    aside.as_file().sync_all().map_err(StoreError::io("write", path))?;
    make_readable(aside.as_file(), path)?;
    aside.persist(path).map_err(|error| StoreError::io("replace", path)(error.error))?;
    Ok(())
}

/// Temporary files are private to their owner; a finished one is as readable as any other.
#[cfg(unix)]
fn make_readable(file: &File, path: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
        .map_err(StoreError::io("set the mode of", path))
}

#[cfg(not(unix))]
fn make_readable(_: &File, _: &Path) -> Result<(), StoreError> {
    Ok(())
}

fn encode(path: &Path, recording: &Recording) -> Result<Vec<u8>, StoreError> {
    let unreadable =
        |error: PolarsError| StoreError::Unreadable { path: path.to_owned(), detail: error.to_string() };
    let provenance =
        serde_json::to_string(&recording.provenance).expect("provenance holds only text and whole numbers");
    let mut frame = to_frame(&recording.rows, &recording.provenance.device.name).map_err(unreadable)?;
    let sum = checksum(&[&SCHEMA_VERSION.to_string(), &provenance], &frame).map_err(unreadable)?;
    let metadata = KeyValueMetadata::from_static(vec![
        (VERSION_KEY.to_owned(), SCHEMA_VERSION.to_string()),
        (PROVENANCE_KEY.to_owned(), provenance),
        (checksum::KEY.to_owned(), sum),
    ]);
    let mut bytes = Vec::new();
    ParquetWriter::new(&mut bytes)
        .with_key_value_metadata(Some(metadata))
        .with_compression(ParquetCompression::Zstd(None))
        .finish(&mut frame)
        .map_err(unreadable)?;
    Ok(bytes)
}

/// Reads a recording.
///
/// # Errors
/// The file is missing, cut off, not ours, of another schema version, or holds a cell that makes no sense.
pub fn read(path: &Path) -> Result<Recording, StoreError> {
    let file = File::open(path).map_err(StoreError::io("read", path))?;
    // The reader panics on some damaged pages; for a user that is one more unreadable file.
    let outcome = catch_unwind(AssertUnwindSafe(|| decode(path, file)));
    outcome.unwrap_or_else(|_| {
        Err(StoreError::Unreadable { path: path.to_owned(), detail: "its pages are damaged".to_owned() })
    })
}

fn decode(path: &Path, file: File) -> Result<Recording, StoreError> {
    let unreadable =
        |error: PolarsError| StoreError::Unreadable { path: path.to_owned(), detail: error.to_string() };
    let foreign = |detail: String| StoreError::Foreign { path: path.to_owned(), detail };
    let mut reader = ParquetReader::new(file);
    let metadata = reader.get_metadata().map_err(unreadable)?.clone();
    let entries = metadata.key_value_metadata.as_deref().unwrap_or_default();
    let entry =
        |key: &str| entries.iter().find(|entry| entry.key == key).and_then(|entry| entry.value.clone());
    let version =
        entry(VERSION_KEY).ok_or_else(|| foreign(format!("its metadata has no `{VERSION_KEY}`")))?;
    if version != SCHEMA_VERSION.to_string() {
        return Err(StoreError::SchemaVersion {
            path: path.to_owned(),
            found: version,
            expected: SCHEMA_VERSION,
        });
    }
    let provenance =
        entry(PROVENANCE_KEY).ok_or_else(|| foreign(format!("its metadata has no `{PROVENANCE_KEY}`")))?;
    let frame = reader.finish().map_err(unreadable)?;
    if let Some(sum) = entry(checksum::KEY)
        && checksum(&[&version, &provenance], &frame).map_err(unreadable)? != sum
    {
        return Err(StoreError::Checksum { path: path.to_owned() });
    }
    let provenance =
        serde_json::from_str(&provenance).map_err(|error| foreign(format!("its provenance: {error}")))?;
    Ok(Recording { provenance, rows: from_frame(path, &frame)? })
}

/// The union of recordings of one device: shards of a run, or runs that were distributed.
///
/// # Errors
/// Recordings of different devices.
pub fn union(recordings: Vec<(std::path::PathBuf, Recording)>) -> Result<Option<Recording>, StoreError> {
    let mut all: Option<Recording> = None;
    for (path, next) in recordings {
        match &mut all {
            None => all = Some(next),
            Some(all) if all.provenance.device == next.provenance.device => {
                for scenario in next.provenance.scenarios {
                    if !all.provenance.scenarios.contains(&scenario) {
                        all.provenance.scenarios.push(scenario);
                    }
                }
                all.rows.extend(next.rows);
            }
            Some(all) => {
                return Err(StoreError::MixedDevices {
                    path,
                    first: all.provenance.device.to_string(),
                    other: next.provenance.device.to_string(),
                });
            }
        }
    }
    Ok(all.map(|all| Recording { rows: coalesce(all.rows), ..all }))
}

fn to_frame(rows: &[Measurement], device: &str) -> PolarsResult<DataFrame> {
    let text = |name: &str, of: &dyn Fn(&Measurement) -> String| {
        Column::new(name.into(), rows.iter().map(of).collect::<Vec<_>>())
    };
    let optional_f64 = |name: &str, of: &dyn Fn(&Measurement) -> Option<f64>| {
        Column::new(name.into(), rows.iter().map(of).collect::<Vec<_>>())
    };
    let optional_u64 = |name: &str, of: &dyn Fn(&Measurement) -> Option<u64>| {
        Column::new(name.into(), rows.iter().map(of).collect::<Vec<_>>())
    };
    let optional_u32 = |name: &str, of: &dyn Fn(&Measurement) -> Option<u32>| {
        Column::new(name.into(), rows.iter().map(of).collect::<Vec<_>>())
    };
    let mut columns = vec![
        text("device", &|_| device.to_owned()),
        text("level", &|row| row.level.name().to_owned()),
        text("workload", &|row| row.workload.clone()),
        text("scenario", &|row| row.scenario.clone()),
    ];
    for (i, name) in BatchShape::NAMES.iter().enumerate() {
        columns.push(optional_u32(&format!("{BATCH_PREFIX}{name}"), &|row| {
            row.batch.map(|batch| batch.values()[i])
        }));
    }
    columns.push(Column::new("held_out".into(), rows.iter().map(|row| row.held_out).collect::<Vec<_>>()));
    columns.push(text("choice", &|row| row.choice.clone()));
    for (i, name) in Tile::NAMES.iter().enumerate() {
        columns.push(optional_u32(&format!("{TILE_PREFIX}{name}"), &|row| {
            row.tile.map(|tile| tile.values()[i].into())
        }));
    }
    let samples: Vec<Series> = rows.iter().map(|row| Series::new("".into(), &row.samples_us)).collect();
    let samples = if rows.is_empty() {
        Column::new_empty("samples_us".into(), &DataType::List(Box::new(DataType::Float64)))
    } else {
        Column::new("samples_us".into(), samples)
    };
    columns.extend([
        text("status", &|row| row.status.name().to_owned()),
        Column::new("survived".into(), rows.iter().map(|row| row.survived).collect::<Vec<_>>()),
        Column::new("complete".into(), rows.iter().map(|row| row.complete).collect::<Vec<_>>()),
        optional_f64("median_us", &Measurement::median_us),
        optional_f64("spread_us", &Measurement::spread_us),
        Column::new("count".into(), rows.iter().map(|row| row.samples_us.len() as u64).collect::<Vec<_>>()),
        samples,
        optional_f64("limit_us", &|row| row.limit_us),
        optional_u64("requests", &|row| row.requests),
        optional_u64("unique_bytes", &|row| row.unique_bytes),
        optional_u64("unshared_bytes", &|row| row.unshared_bytes),
        text("scaled", &|row| row.scaled.clone()),
        optional_f64("relative_error", &|row| row.relative_error),
        optional_u32("registers", &|row| row.resources.registers),
        optional_u32("shared_bytes", &|row| row.resources.shared_bytes),
        optional_u32("spill_bytes", &|row| row.resources.spill_bytes),
        optional_u32("scratch_bytes", &|row| row.resources.scratch_bytes),
        optional_u32("sm_clock_mhz", &|row| row.conditions.sm_clock_mhz),
        optional_u32("memory_clock_mhz", &|row| row.conditions.memory_clock_mhz),
        optional_u32("temperature_c", &|row| row.conditions.temperature_c),
        optional_u32("power_w", &|row| row.conditions.power_w),
        text("throttled", &|row| row.conditions.throttled.clone()),
        text("selector_hash", &|row| row.selector_hash.clone()),
        text("message", &|row| row.message.clone()),
    ]);
    DataFrame::new(rows.len(), columns)
}

fn from_frame(path: &Path, frame: &DataFrame) -> Result<Vec<Measurement>, StoreError> {
    let columns = Columns { path, frame };
    let level = columns.text("level")?;
    let workload = columns.text("workload")?;
    let scenario = columns.text("scenario")?;
    let batch = columns.record(BATCH_PREFIX, &BatchShape::NAMES)?;
    let held_out = columns.typed("held_out", Column::bool)?;
    let choice = columns.text("choice")?;
    let tile = columns.tile()?;
    let status = columns.text("status")?;
    let survived = columns.typed("survived", Column::bool)?;
    let complete = columns.typed("complete", Column::bool)?;
    let samples = columns.typed("samples_us", Column::list)?;
    let limit = columns.f64("limit_us")?;
    let requests = columns.u64("requests")?;
    let unique = columns.u64("unique_bytes")?;
    let unshared = columns.u64("unshared_bytes")?;
    let scaled = columns.text("scaled")?;
    let relative_error = columns.f64("relative_error")?;
    let [registers, shared, spill, scratch] =
        ["registers", "shared_bytes", "spill_bytes", "scratch_bytes"].map(|name| columns.u32(name));
    let (registers, shared, spill, scratch) = (registers?, shared?, spill?, scratch?);
    let [sm_clock, memory_clock, temperature, power] =
        ["sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w"].map(|name| columns.u32(name));
    let (sm_clock, memory_clock, temperature, power) = (sm_clock?, memory_clock?, temperature?, power?);
    let throttled = columns.text("throttled")?;
    let selector_hash = columns.text("selector_hash")?;
    let message = columns.text("message")?;

    let string = |column: &StringChunked, row| column.get(row).unwrap_or_default().to_owned();
    (0..frame.height())
        .map(|row| {
            let bad = |column: &str, detail: String| columns.bad(row, column, detail);
            let values = |record: &[&UInt32Chunked]| -> Vec<u32> {
                record.iter().filter_map(|column| column.get(row)).collect()
            };
            let level_name = string(level, row);
            let status_name = string(status, row);
            Ok(Measurement {
                level: Level::from_name(&level_name)
                    .ok_or_else(|| bad("level", format!("`{level_name}` is unknown")))?,
                workload: string(workload, row),
                scenario: string(scenario, row),
                batch: values(&batch).try_into().ok().map(BatchShape::from_values),
                held_out: held_out.get(row).unwrap_or(false),
                choice: string(choice, row),
                tile: tile_of(&tile, row).map_err(|detail| bad("tile", detail))?,
                status: Status::from_name(&status_name)
                    .ok_or_else(|| bad("status", format!("`{status_name}` is unknown")))?,
                survived: survived.get(row).unwrap_or(false),
                complete: complete.get(row).unwrap_or(false),
                samples_us: samples_of(samples, row).map_err(|detail| bad("samples_us", detail))?,
                limit_us: limit.get(row),
                requests: requests.get(row),
                unique_bytes: unique.get(row),
                unshared_bytes: unshared.get(row),
                scaled: string(scaled, row),
                relative_error: relative_error.get(row),
                resources: Resources {
                    registers: registers.get(row),
                    shared_bytes: shared.get(row),
                    spill_bytes: spill.get(row),
                    scratch_bytes: scratch.get(row),
                },
                conditions: Conditions {
                    sm_clock_mhz: sm_clock.get(row),
                    memory_clock_mhz: memory_clock.get(row),
                    temperature_c: temperature.get(row),
                    power_w: power.get(row),
                    throttled: string(throttled, row),
                },
                selector_hash: string(selector_hash, row),
                message: string(message, row),
            })
        })
        .collect()
}

/// The column of a tile's parameter, and its default. Files from before the parameter have no column.
type Parameter<'a> = (Option<&'a UInt32Chunked>, Option<u16>);

/// A tile out of its parameters' cells; none if any of them is empty.
fn tile_of(parameters: &[Parameter<'_>; Tile::COUNT], row: usize) -> Result<Option<Tile>, String> {
    let mut narrow = [0u16; Tile::COUNT];
    for (narrow, (column, default)) in narrow.iter_mut().zip(parameters) {
        let value = match column {
            Some(column) => column.get(row),
            None => default.map(u32::from),
        };
        let Some(value) = value else { return Ok(None) };
        *narrow = u16::try_from(value)
            .ok()
            .filter(|&v| v > 0)
            .ok_or(format!("{value} is no value of a parameter"))?;
    }
    Ok(Some(Tile::from_values(narrow)))
}

fn samples_of(column: &ListChunked, row: usize) -> Result<Vec<f64>, String> {
    let Some(series) = column.get_as_series(row) else { return Ok(Vec::new()) };
    let samples = series.f64().map_err(|error| error.to_string())?;
    samples
        .iter()
        .map(|sample| {
            sample.filter(|s| s.is_finite() && *s > 0.0).ok_or("a sample must be a positive time".to_owned())
        })
        .collect()
}

/// Fields by the name they have now and the one that older files have.
const FORMER_NAMES: [(&str, &str); 1] = [("private_kv_len", "own")];

/// Typed access to the columns of a file, with errors that name them.
struct Columns<'a> {
    path: &'a Path,
    frame: &'a DataFrame,
}

impl<'a> Columns<'a> {
    fn typed<T>(
        &self,
        name: &str,
        cast: impl FnOnce(&'a Column) -> PolarsResult<&'a T>,
    ) -> Result<&'a T, StoreError> {
        let foreign = |detail: String| StoreError::Foreign { path: self.path.to_owned(), detail };
        let column = self.frame.column(name).map_err(|_| foreign(format!("it has no column `{name}`")))?;
        cast(column).map_err(|_| foreign(format!("column `{name}` has the type {}", column.dtype())))
    }

    fn text(&self, name: &str) -> Result<&'a StringChunked, StoreError> {
        self.typed(name, Column::str)
    }

    fn u32(&self, name: &str) -> Result<&'a UInt32Chunked, StoreError> {
        self.typed(name, Column::u32)
    }

    /// The columns of a record's fields. Files written before a field was renamed have its old name.
    fn record(&self, prefix: &str, names: &[&str]) -> Result<Vec<&'a UInt32Chunked>, StoreError> {
        let column = |name: &str| {
            let old =
                FORMER_NAMES.iter().find(|(now, _)| *now == name).map(|(_, old)| format!("{prefix}{old}"));
            match old.filter(|old| self.frame.column(old).is_ok()) {
                Some(old) => self.u32(&old),
                None => self.u32(&format!("{prefix}{name}")),
            }
        };
        names.iter().map(|name| column(name)).collect()
    }

    /// The columns of a tile's parameters.
    fn tile(&self) -> Result<[Parameter<'a>; Tile::COUNT], StoreError> {
        let mut parameters = [(None, None); Tile::COUNT];
        for ((parameter, name), default) in parameters.iter_mut().zip(Tile::NAMES).zip(Tile::DEFAULTS) {
            let name = format!("{TILE_PREFIX}{name}");
            let absent = default.is_some() && self.frame.column(&name).is_err();
            *parameter = (if absent { None } else { Some(self.u32(&name)?) }, default);
        }
        Ok(parameters)
    }

    fn u64(&self, name: &str) -> Result<&'a UInt64Chunked, StoreError> {
        self.typed(name, Column::u64)
    }

    fn f64(&self, name: &str) -> Result<&'a Float64Chunked, StoreError> {
        self.typed(name, Column::f64)
    }

    fn bad(&self, row: usize, column: &str, detail: String) -> StoreError {
        StoreError::BadCell { path: self.path.to_owned(), row, column: column.to_owned(), detail }
    }
}

#[cfg(test)]
#[path = "parquet_tests.rs"]
mod tests;
