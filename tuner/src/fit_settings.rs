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
    /// Seconds that the search for the best tree may take
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub fit_seconds: u16,
    /// Folds of the cross-validation
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=20))]
    pub folds: u8,
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
}

impl FitChanges {
    /// The settings with these changes.
    pub fn of(&self, recorded: &FitSettings) -> FitSettings {
        let Self { portfolio, max_depth, max_leaves, noise_permille } = *self;
        FitSettings {
            portfolio: portfolio.unwrap_or(recorded.portfolio),
            max_depth: max_depth.unwrap_or(recorded.max_depth),
            max_leaves: max_leaves.unwrap_or(recorded.max_leaves),
            noise_permille: noise_permille.unwrap_or(recorded.noise_permille),
            ..recorded.clone()
        }
    }
}

impl Default for FitSettings {
    fn default() -> Self {
        Self { portfolio: 8, max_depth: 5, max_leaves: 16, noise_permille: 10, fit_seconds: 60, folds: 5 }
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
    }
}
