//! How a file of measurements came about.

use crate::fit_settings::FitSettings;
use crate::prior::Prior;
use serde::{Deserialize, Serialize};
use tilewright_heuristics::{Backend, Prices};

/// The device, as recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceRecord {
    /// `cpu` or `cuda`.
    pub backend: String,
    /// The exact device.
    pub name: String,
    /// What code it can run.
    pub capability: String,
    /// Threads or multiprocessors.
    pub units: u32,
}

impl From<tilewright_heuristics::Device<'_>> for DeviceRecord {
    fn from(device: tilewright_heuristics::Device<'_>) -> Self {
        Self {
            backend: device.backend.name().to_owned(),
            name: device.name.to_owned(),
            capability: device.capability.to_owned(),
            units: device.units,
        }
    }
}

impl DeviceRecord {
    /// The record as the selector's vocabulary knows it; `None` if the backend is unknown.
    pub fn as_device(&self) -> Option<tilewright_heuristics::Device<'_>> {
        let backend: Backend = self.backend.parse().ok()?;
        Some(tilewright_heuristics::Device {
            backend,
            name: &self.name,
            capability: &self.capability,
            units: self.units,
        })
    }
}

impl std::fmt::Display for DeviceRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}, {})", self.name, self.backend, self.capability)
    }
}

/// Measured prices, as recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PricesRecord {
    /// Attoseconds of a byte read from memory.
    #[serde(alias = "first_byte")]
    pub hbm_byte: u64,
    /// Of a byte read again from L2.
    #[serde(alias = "again_byte")]
    pub l2_byte: u64,
    /// Of a byte of a partial.
    pub partial_byte: u64,
    /// Of a floating-point operation.
    pub flop: u64,
    /// Of a CTA.
    pub cta: u64,
    /// Of merging at all; 0 in older files, where it was not measured.
    #[serde(default)]
    pub merge: u64,
}

impl From<Prices> for PricesRecord {
    fn from(Prices { hbm_byte, l2_byte, partial_byte, flop, cta, merge }: Prices) -> Self {
        Self { hbm_byte, l2_byte, partial_byte, flop, cta, merge }
    }
}

impl From<PricesRecord> for Prices {
    fn from(PricesRecord { hbm_byte, l2_byte, partial_byte, flop, cta, merge }: PricesRecord) -> Self {
        Self { hbm_byte, l2_byte, partial_byte, flop, cta, merge }
    }
}

/// A scenario that was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioRecord {
    /// Its name.
    pub name: String,
    /// Its content hash.
    pub hash: String,
}

/// Hashes of what decides a result beside the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hashes {
    /// The kernel's sources.
    pub kernel: String,
    /// The declared space.
    pub space: String,
}

/// Where a file of measurements comes from; stored in the file as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// The device.
    pub device: DeviceRecord,
    /// Its limits, by name, in the order to show.
    pub limits: Vec<(String, String)>,
    /// Its measured prices; older files have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prices: Option<PricesRecord>,
    /// The software: tilewright, operating system, driver and compiler where there is one.
    pub versions: Vec<(String, String)>,
    /// What decides a result beside the device.
    pub hashes: Hashes,
    /// The scenarios.
    pub scenarios: Vec<ScenarioRecord>,
    /// What beside the scenarios decides which workloads there are, in words: their scale, and the shard. Older files do not say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub workloads: String,
    /// The exact command.
    pub command: String,
    /// When the run began, RFC 3339, UTC.
    pub started: String,
    /// How caches were made cold, in a sentence.
    pub cold_caches: String,
    /// How the limit was found, in a sentence.
    pub limit_method: String,
    /// What a reader must know before trusting the figures.
    pub warnings: Vec<String>,
    /// What a fit of these measurements uses, so that anyone who repeats it gets the same module.
    pub fit: FitSettings,
    /// The selector that the device would have used; its tree stays where the fitted one is not clearly better. Older files have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prior: Option<Prior>,
}

impl Provenance {
    /// The device's prices: as measured, or else, where some or all were not, its backend's defaults.
    pub fn prices(&self) -> Prices {
        let default = self.device.backend.parse().map_or_else(|_| Prices::default(), Prices::default_for);
        let mut prices = self.prices.map_or(default, Prices::from);
        if prices.merge == 0 {
            prices.merge = default.merge;
        }
        prices
    }
}
