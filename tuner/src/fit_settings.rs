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
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=8))]
    pub max_depth: u8,
    /// Leaves of the tree
    #[arg(long, default_value_t = 12, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub max_leaves: u16,
    /// Differences below this many thousandths of the best time are ties, as are those below the measured noise
    #[arg(long, default_value_t = 30, value_name = "PERMILLE", value_parser = clap::value_parser!(u16).range(0..=500))]
    pub noise_permille: u16,
    /// Seconds that the search for the best tree may take
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub fit_seconds: u16,
    /// Folds of the cross-validation
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=20))]
    pub folds: u8,
}

impl Default for FitSettings {
    fn default() -> Self {
        Self { portfolio: 8, max_depth: 4, max_leaves: 12, noise_permille: 30, fit_seconds: 60, folds: 5 }
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
