//! What a user may say to `compare`.

use crate::compare::{COMPARED, PEER_NAMES};
use crate::device_name::DeviceName;
use crate::wanted::Heads;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use tilewright_heuristics::{Dtype, TileSetBuf};
use tilewright_scenarios::Tree;

/// Arguments of `compare`.
#[derive(Args, Debug)]
pub struct CompareArguments {
    /// Scenario files (YAML), or names of scenarios of the catalogue; without any, the decode batches of PAT, figure 9: 20 trees under 4 head configurations
    #[arg(value_name = "SCENARIO", value_hint = ValueHint::FilePath)]
    pub scenarios: Vec<PathBuf>,
    /// Only this tree, such as `1,10_4096,416`; may be given several times
    #[arg(long, value_name = "TREE")]
    pub trees: Vec<Tree>,
    /// Only these query heads / KV heads
    #[arg(long, value_name = "Q/KV", value_delimiter = ',')]
    pub heads: Vec<Heads>,
    /// Tokens of a page, instead of what the scenario says
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub page_size: Option<u32>,
    /// Element type, f16, bf16, fp8-f16 or fp8-bf16 (FP8 K and V beside Q of 16 bits), instead of what the scenario says
    #[arg(long, value_name = "TYPE", value_parser = compared_dtype)]
    pub dtype: Option<Dtype>,
    /// Where to compute: `cpu`, `cuda` or `cuda:N`; without it, on the first GPU if there is one
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceName>,
    /// Threads to measure ours with on a processor; without it, all of them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Batches with more distinct KV are scaled down to this, in MB; without it, 16 MB for a processor and 24 GB for a GPU
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_batch_mb: Option<u32>,
    /// Time these sets of tiles, too, such as `m64n64w4s2` or `m16n64w4s2+m64n64w4s2`, beside the tiles that the selector may choose
    #[arg(long, value_name = "SET", value_delimiter = ',')]
    pub tiles: Vec<TileSetBuf>,
    /// Time ours alone
    #[arg(long, conflicts_with_all = ["peers", "python", "fa3", "peer_timeout"])]
    pub no_peers: bool,
    /// Only these peers
    #[arg(long, value_name = "PEER", value_delimiter = ',', value_parser = PEER_NAMES)]
    pub peers: Vec<String>,
    /// The Python that has torch and the peers
    #[arg(long, default_value = "python3", value_name = "PROGRAM", value_hint = ValueHint::CommandName)]
    pub python: PathBuf,
    /// A library with FlashAttention 3's paged operator (`_vllm_fa3_C.abi3.so` of vLLM's wheel), where no package has it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub fa3: Option<PathBuf>,
    /// Seconds that a peer may take for a batch, its compilation included
    #[arg(long, default_value_t = 300, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub peer_timeout: u32,
    /// Folder for all results (`compare.json`) and the table (`compare.txt`), both written after each batch
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: Option<PathBuf>,
    /// Decide by this selector, a JSON file that `emit` or `tune` wrote, instead of the best that is known
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub selector: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn compared_dtype(text: &str) -> Result<Dtype, String> {
    let known = text.parse().ok().filter(|dtype| COMPARED.contains(dtype));
    known.ok_or_else(|| format!("peers compute {}", COMPARED.map(Dtype::name).join(", ")))
}
