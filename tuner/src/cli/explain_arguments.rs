//! What a user may say to `explain`.

use crate::wanted::Heads;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use tilewright_heuristics::{Dtype, TileSetBuf};
use tilewright_scenarios::Tree;

/// Arguments of `explain`.
#[derive(Args, Debug)]
pub struct ExplainArguments {
    /// Scenario files (YAML), or names of scenarios of the catalogue, such as `tenants-held-out`
    #[arg(value_name = "SCENARIO", required = true, value_hint = ValueHint::FilePath)]
    pub scenarios: Vec<PathBuf>,
    /// `cpu`, `cuda` or `cuda:N` of this machine, or a device that need not be here, such as `h200` or `NVIDIA H100 80GB HBM3`; without it, that
    /// of `--selector`, else the first GPU if there is one
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Only this tree, such as `1,10_4096,416`; may be given several times
    #[arg(long, value_name = "TREE")]
    pub trees: Vec<Tree>,
    /// Only these query heads / KV heads
    #[arg(long, value_name = "Q/KV", value_delimiter = ',')]
    pub heads: Vec<Heads>,
    /// Tokens of a page, instead of what the scenario says
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub page_size: Option<u32>,
    /// Element type, instead of what the scenario says
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<Dtype>,
    /// Predict these sets of tiles, too, such as `m64n64w4s2` or `m16n64w4s2+m64n64w4s2`, beside those that the selector may choose
    #[arg(long, value_name = "SET", value_delimiter = ',')]
    pub tiles: Vec<TileSetBuf>,
    /// Decide by this selector, a JSON file that `emit` or `tune` wrote, instead of the best that is known
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub selector: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
