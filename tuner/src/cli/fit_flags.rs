//! What a user may say of a fit.

use crate::fit_settings::FitSettings;
use clap::{Args, value_parser};

/// How the tree is fitted.
#[derive(Clone, Debug, Args)]
pub struct FitFlags {
    /// Tiles that the selector may choose from, 1 to 16
    #[arg(long, default_value_t = FitSettings::default().portfolio, value_name = "N", value_parser = value_parser!(u8).range(1..=16))]
    pub portfolio: u8,
    /// Questions on the longest path of the tree
    #[arg(long, default_value_t = FitSettings::default().max_depth, value_name = "N", value_parser = value_parser!(u8).range(0..=8))]
    pub max_depth: u8,
    /// Leaves of the tree
    #[arg(long, default_value_t = FitSettings::default().max_leaves, value_name = "N", value_parser = value_parser!(u16).range(1..=256))]
    pub max_leaves: u16,
    /// Differences below this many thousandths of the best time are ties, as are those below the measured noise
    #[arg(long, default_value_t = FitSettings::default().noise_permille, value_name = "PERMILLE", value_parser = value_parser!(u16).range(0..=500))]
    pub noise_permille: u16,
    /// What a further leaf must save on the rows that it is for, all together, in percent of the best time of one row
    #[arg(long, default_value_t = FitSettings::default().leaf_price, value_name = "PERCENT", value_parser = value_parser!(u16).range(0..=10000))]
    pub leaf_price: u16,
    /// Rows that a leaf must have at least
    #[arg(long, default_value_t = FitSettings::default().least_rows, value_name = "N", value_parser = value_parser!(u16).range(1..))]
    pub least_rows: u16,
    /// Seconds that a fit may take, the cross-validation included; half of them are for the tree. `tune` fits up to three times
    #[arg(long, default_value_t = FitSettings::default().fit_seconds, value_name = "SECONDS", value_parser = value_parser!(u16).range(1..=3600))]
    pub fit_seconds: u16,
    /// Folds of the cross-validation
    #[arg(long, default_value_t = FitSettings::default().folds, value_name = "N", value_parser = value_parser!(u8).range(2..=20))]
    pub folds: u8,
}

impl FitFlags {
    /// The settings that they are.
    pub fn settings(&self) -> FitSettings {
        let Self {
            portfolio,
            max_depth,
            max_leaves,
            noise_permille,
            leaf_price,
            least_rows,
            fit_seconds,
            folds,
        } = *self;
        FitSettings {
            portfolio,
            max_depth,
            max_leaves,
            noise_permille,
            leaf_price,
            least_rows,
            fit_seconds,
            folds,
        }
    }
}

/// Settings of a recorded fit that are to be others.
#[derive(Clone, Debug, Default, Args)]
pub struct FitChanges {
    /// Tiles that the selector may choose from, 1 to 16; without it, as recorded
    #[arg(long, value_name = "N", value_parser = value_parser!(u8).range(1..=16))]
    pub portfolio: Option<u8>,
    /// Questions on the longest path of the tree; without it, as recorded
    #[arg(long, value_name = "N", value_parser = value_parser!(u8).range(0..=8))]
    pub max_depth: Option<u8>,
    /// Leaves of the tree; without it, as recorded
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=256))]
    pub max_leaves: Option<u16>,
    /// Differences below this many thousandths of the best time are ties; without it, as recorded
    #[arg(long, value_name = "PERMILLE", value_parser = value_parser!(u16).range(0..=500))]
    pub noise_permille: Option<u16>,
    /// What a further leaf must save on the rows that it is for, in percent of the best time of one row; without it, as recorded
    #[arg(long, value_name = "PERCENT", value_parser = value_parser!(u16).range(0..=10000))]
    pub leaf_price: Option<u16>,
    /// Rows that a leaf must have at least; without it, as recorded
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..))]
    pub least_rows: Option<u16>,
    /// Seconds that the fit may take, half of them for the tree; without it, as recorded
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u16).range(1..=3600))]
    pub fit_seconds: Option<u16>,
}

impl FitChanges {
    /// The settings with these changes.
    pub fn of(&self, recorded: &FitSettings) -> FitSettings {
        let Self { portfolio, max_depth, max_leaves, noise_permille, leaf_price, least_rows, fit_seconds } =
            *self;
        FitSettings {
            portfolio: portfolio.unwrap_or(recorded.portfolio),
            max_depth: max_depth.unwrap_or(recorded.max_depth),
            max_leaves: max_leaves.unwrap_or(recorded.max_leaves),
            noise_permille: noise_permille.unwrap_or(recorded.noise_permille),
            leaf_price: leaf_price.unwrap_or(recorded.leaf_price),
            least_rows: least_rows.unwrap_or(recorded.least_rows),
            fit_seconds: fit_seconds.unwrap_or(recorded.fit_seconds),
            ..recorded.clone()
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
        assert_eq!(changes.of(&recorded), FitSettings { leaf_price: 0, least_rows: 1, ..recorded.clone() });
        let changes = FitChanges { fit_seconds: Some(3), ..FitChanges::default() };
        assert_eq!(changes.of(&recorded), FitSettings { fit_seconds: 3, ..recorded });
    }
}
