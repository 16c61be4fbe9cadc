//! What a comparison found: plain data, as it is written to disk.

use crate::store::DeviceRecord;
use serde::Serialize;

/// A comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The device.
    pub device: DeviceRecord,
    /// Where our tiles come from.
    pub selector: String,
    /// How times, limits and errors come about, in sentences.
    pub method: Vec<String>,
    /// The software of either side.
    pub versions: Vec<(String, String)>,
    /// Peers that cannot be asked at all, and why.
    pub absent: Vec<(String, String)>,
    /// The batches, in the order in which they were measured.
    pub batches: Vec<BatchResult>,
}

/// One batch, computed by all.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BatchResult {
    /// Its name, unique in a comparison.
    pub name: String,
    /// Its tree, or what else its scenario calls it.
    pub variant: String,
    /// Query heads.
    pub q_heads: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Elements of a head's vector.
    pub head_dim: u32,
    /// Tokens of a page.
    pub page_size: u32,
    /// Element type.
    pub dtype: String,
    /// How it was scaled down to the device; empty if it was not.
    pub scaled: String,
    /// Requests.
    pub requests: usize,
    /// Bytes of distinct K and V.
    pub unique_bytes: u64,
    /// Bytes of K and V if nothing were shared.
    pub unshared_bytes: u64,
    /// The least time that the hardware needs, in µs.
    pub limit_us: f64,
    /// Ours, with the selector's tiles.
    pub ours: Outcome,
    /// Ours, batch-invariant: the same bits for a request whatever else is in the batch.
    pub invariant: Outcome,
    /// Ours, with one tile for all packs, each that the selector may choose, and with the sets that were asked for.
    pub tiles: Vec<Contender>,
    /// The peers.
    pub peers: Vec<Contender>,
    /// How far the f64 references of both sides are apart, relative to their norm; `None` where no peer computed one.
    pub references_apart: Option<f64>,
}

/// An implementation that computes batches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Contender {
    /// A tile, or a peer.
    pub name: String,
    /// What became of the batch.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What became of a batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was computed.
    Timed {
        /// Median time in µs.
        us: f64,
        /// The largest error of a row of one head against f64, relative to the row's norm.
        error: f64,
        /// How it was called.
        how: String,
    },
    /// It was not, or wrongly.
    LeftOut {
        /// Why.
        reason: String,
    },
}

impl Outcome {
    /// That something else was computed.
    pub fn wrong(error: f64, tolerance: f64) -> Self {
        let reason = format!("wrong: a row is off by {error:.1e} of its norm, allowed {tolerance:.0e}");
        Self::LeftOut { reason }
    }

    /// The time, if there is one.
    pub fn us(&self) -> Option<f64> {
        match self {
            Self::Timed { us, .. } => Some(*us),
            Self::LeftOut { .. } => None,
        }
    }

    /// The error, if it was computed.
    pub fn error(&self) -> Option<f64> {
        match self {
            Self::Timed { error, .. } => Some(*error),
            Self::LeftOut { .. } => None,
        }
    }
}

/// References farther apart than this are of other batches: both are f64, of the same numbers.
const REFERENCES_AGREE: f64 = 1e-9;

impl BatchResult {
    /// The time of batch-invariant plans over ours.
    pub fn invariant_over_ours(&self) -> Option<f64> {
        Some(self.invariant.us()? / self.ours.us()?)
    }

    /// The fastest of some contenders, and its time.
    fn fastest<'a>(contenders: impl Iterator<Item = &'a Contender>) -> Option<(&'a Contender, f64)> {
        let timed = contenders.filter_map(|contender| Some((contender, contender.outcome.us()?)));
        timed.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The oracle: the fastest single tile, and its time.
    pub fn best_tile(&self) -> Option<(&Contender, f64)> {
        let single = self.tiles.iter().filter(|tile| !tile.name.contains('+'));
        Self::fastest(single)
    }

    /// The fastest peer, and its time.
    pub fn best_peer(&self) -> Option<(&Contender, f64)> {
        Self::fastest(self.peers.iter())
    }

    /// Whether the two sides computed different batches.
    pub fn differs(&self) -> bool {
        // What is no number is not the same either.
        self.references_apart.is_some_and(|apart| apart.is_nan() || apart > REFERENCES_AGREE)
    }
}
