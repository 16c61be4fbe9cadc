//! What a user may ask of a fit; recorded with the measurements, so that a fit can be repeated to the byte.

use crate::fit::FitOptions;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The settings of a fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
pub struct FitSettings {
    /// Tiles that the selector may choose from, 1 to 16
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub portfolio: u8,
    /// Questions on the longest path of the tree
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=8))]
    pub max_depth: u8,
    /// Leaves of the tree
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub max_leaves: u16,
    /// Differences below this many thousandths of the best time are ties, as are those below the measured noise
    #[arg(long, default_value_t = 10, value_name = "PERMILLE", value_parser = clap::value_parser!(u16).range(0..=500))]
    pub noise_permille: u16,
    /// What a further leaf must save on the rows that it is for, all together, in percent of the best time of one row
    #[serde(default = "default_leaf_price")]
    #[arg(long, default_value_t = default_leaf_price(), value_name = "PERCENT", value_parser = clap::value_parser!(u16).range(0..=10000))]
    pub leaf_price: u16,
    /// Rows that a leaf must have at least
    #[serde(default = "default_least_rows")]
    #[arg(long, default_value_t = default_least_rows(), value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub least_rows: u16,
    /// Seconds that fitting may take in all, the cross-validation included; half of them are for the tree
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub fit_seconds: u16,
    /// Folds of the cross-validation
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=20))]
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

/// Settings of a recorded fit that are to be others.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct FitChanges {
    /// Tiles that the selector may choose from, 1 to 16; without it, as recorded
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub portfolio: Option<u8>,
    /// Questions on the longest path of the tree; without it, as recorded
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=8))]
    pub max_depth: Option<u8>,
    /// Leaves of the tree; without it, as recorded
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub max_leaves: Option<u16>,
    /// Differences below this many thousandths of the best time are ties; without it, as recorded
    #[arg(long, value_name = "PERMILLE", value_parser = clap::value_parser!(u16).range(0..=500))]
    pub noise_permille: Option<u16>,
    /// What a further leaf must save on the rows that it is for, in percent of the best time of one row; without it, as recorded
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u16).range(0..=10000))]
    pub leaf_price: Option<u16>,
    /// Rows that a leaf must have at least; without it, as recorded
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub least_rows: Option<u16>,
}

impl FitChanges {
    /// The settings with these changes.
    pub fn of(&self, recorded: &FitSettings) -> FitSettings {
        let Self { portfolio, max_depth, max_leaves, noise_permille, leaf_price, least_rows } = *self;
        FitSettings {
            portfolio: portfolio.unwrap_or(recorded.portfolio),
            max_depth: max_depth.unwrap_or(recorded.max_depth),
            max_leaves: max_leaves.unwrap_or(recorded.max_leaves),
            noise_permille: noise_permille.unwrap_or(recorded.noise_permille),
            leaf_price: leaf_price.unwrap_or(recorded.leaf_price),
            least_rows: least_rows.unwrap_or(recorded.least_rows),
            ..recorded.clone()
        }
    }
}

impl Default for FitSettings {
    fn default() -> Self {
        Self {
            portfolio: 8,
            max_depth: 5,
            max_leaves: 16,
            noise_permille: 10,
            leaf_price: default_leaf_price(),
            least_rows: default_least_rows(),
            fit_seconds: 60,
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
    fn changes_leave_the_rest_as_recorded() {
        let recorded = FitSettings { folds: 3, max_leaves: 7, ..FitSettings::default() };
        assert_eq!(FitChanges::default().of(&recorded), recorded);
        let changes = FitChanges { max_depth: Some(2), noise_permille: Some(0), ..FitChanges::default() };
        let expected = FitSettings { max_depth: 2, noise_permille: 0, ..recorded.clone() };
        assert_eq!(changes.of(&recorded), expected);
        let changes = FitChanges { leaf_price: Some(0), least_rows: Some(1), ..FitChanges::default() };
        assert_eq!(changes.of(&recorded), FitSettings { leaf_price: 0, least_rows: 1, ..recorded });
    }

    #[test]
    fn settings_recorded_before_leaves_had_a_price_load() {
        let old =
            r#"{"portfolio":4,"max_depth":5,"max_leaves":16,"noise_permille":10,"fit_seconds":60,"folds":5}"#;
        let read: FitSettings = serde_json::from_str(old).unwrap();
        assert_eq!(read, FitSettings { portfolio: 4, ..FitSettings::default() });
        let options = read.options();
        assert_eq!((options.leaf_price, options.min_leaf_rows), (0.2, 3));
        let back = serde_json::to_string(&FitSettings { least_rows: 9, ..read }).unwrap();
        assert_eq!(serde_json::from_str::<FitSettings>(&back).unwrap().least_rows, 9);
    }
}
