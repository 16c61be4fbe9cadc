//! What a user may ask of a fit; recorded with the measurements, so that a fit can be repeated to the byte.

use crate::fit::FitOptions;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The settings of a fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FitSettings {
    /// Tiles that the selector may choose from, 1 to 16
    pub portfolio: u8,
    /// Questions on the longest path of the tree
    pub max_depth: u8,
    /// Leaves of the tree
    pub max_leaves: u16,
    /// Differences below this many thousandths of the best time are ties, as are those below the measured noise
    pub noise_permille: u16,
    /// What a further leaf must save on the rows that it is for, all together, in percent of the best time of one row
    #[serde(default = "default_leaf_price")]
    pub leaf_price: u16,
    /// Rows that a leaf must have at least
    #[serde(default = "default_least_rows")]
    pub least_rows: u16,
    /// Seconds that a fit may take, the cross-validation included; half of them are for the tree. `tune` fits up to three times
    pub fit_seconds: u16,
    /// Folds of the cross-validation
    pub folds: u8,
}

/// Recordings from before there was a choice have this.
const fn default_leaf_price() -> u16 {
    20
}

/// Recordings from before there was a choice have this.
const fn default_least_rows() -> u16 {
    3
}

/// Of a leaf of fewer batches the next one like them is often not: with three, one of an H200's took 1.77 times the best tile (`docs/tried.md`).
const LEAST_ROWS: u16 = 6;

impl Default for FitSettings {
    fn default() -> Self {
        Self {
            portfolio: 8,
            max_depth: 5,
            max_leaves: 16,
            noise_permille: 10,
            leaf_price: default_leaf_price(),
            least_rows: LEAST_ROWS,
            fit_seconds: 15,
            folds: 5,
        }
    }
}

impl FitSettings {
    /// The fitter's options.
    pub fn options(&self) -> FitOptions {
        FitOptions {
            portfolio: usize::from(self.portfolio),
            max_depth: usize::from(self.max_depth),
            max_leaves: usize::from(self.max_leaves),
            noise: f64::from(self.noise_permille) / 1000.0,
            leaf_price: f64::from(self.leaf_price) / 100.0,
            min_leaf_rows: usize::from(self.least_rows),
            time_limit: Duration::from_secs(u64::from(self.fit_seconds)),
            ..FitOptions::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_recorded_before_leaves_had_a_price_load() {
        let old =
            r#"{"portfolio":4,"max_depth":5,"max_leaves":16,"noise_permille":10,"fit_seconds":60,"folds":5}"#;
        let read: FitSettings = serde_json::from_str(old).unwrap();
        assert_eq!(
            read,
            FitSettings { portfolio: 4, fit_seconds: 60, least_rows: 3, ..FitSettings::default() }
        );
        let options = read.options();
        assert_eq!((options.leaf_price, options.min_leaf_rows), (0.2, 3));
        let back = serde_json::to_string(&FitSettings { least_rows: 9, ..read }).unwrap();
        assert_eq!(serde_json::from_str::<FitSettings>(&back).unwrap().least_rows, 9);
    }
}
