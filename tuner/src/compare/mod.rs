//! Our decode beside the installed peers': the same batches in one run, all checked against f64.
//!
//! Both sides draw K, V and Q by the same function of where an element lies ([`crate::measure::numbers`]), and each computes a few requests
//! in f64. That those agree proves that the batches are the same. Ours is measured by the tuner's [`Bench`]; the peers are asked by a
//! Python script ([`Peers`]).

mod connection;
mod dtypes;
mod ours;
mod peers;
mod protocol;
mod reference;
mod results;
mod table;

pub use dtypes::{COMPARED, require_compared};
pub use ours::{Ours, limit_method, measure, said, selection, tolerance};
pub use peers::{Asked, PEER_NAMES, PeerOptions, Peers};
pub use protocol::{Answer, Request};
pub use reference::{reference, sampled_requests};
pub use results::{BatchResult, Comparison, Contender, Outcome};
pub use table::lines;

use crate::interrupt::Interrupt;
use crate::measure::Bench;
use crate::progress::Progress;
use crate::workloads::batch_shape_of;
use anyhow::Context as _;
use tilewright_heuristics::{Selector, TileSetBuf};
use tilewright_scenarios::BatchSpec;

/// How a comparison ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// All batches were measured.
    Done,
    /// The user stopped it.
    Interrupted,
}

/// How peers are timed, in a sentence.
const PEERS_METHOD: &str = "Peers: the smaller of two medians of 15 cold calls counts: queued behind a delay on the device, and replayed from \
                            a CUDA graph where the call can be captured. Not timed: plans, and gathering K and V for torch's FlexAttention \
                            and SDPA, which are given contiguous copies without pages.";

/// What is compared beside the peers.
#[derive(Clone, Copy, Debug)]
pub struct Contest<'a> {
    /// The batches.
    pub specs: &'a [BatchSpec],
    /// Sets beside the selector's tiles.
    pub tiles: &'a [TileSetBuf],
    /// A selector that was loaded, instead of the best that is known.
    pub selector: Option<&'static Selector>,
}

/// Compares on batches: the selector, each of its tiles alone, the other sets, and the peers. `done` gets what there is after each of them.
///
/// # Errors
/// No tile can be run, a batch that does not fit or is malformed, a bench that is lost, or what `done` says.
pub fn compare(
    contest: Contest<'_>,
    bench: &mut dyn Bench,
    peers: Option<&mut Peers>,
    progress: Progress,
    interrupt: &Interrupt,
    mut done: impl FnMut(&Comparison) -> anyhow::Result<()>,
) -> anyhow::Result<(Comparison, Compared)> {
    let Contest { specs, tiles, selector } = contest;
    let selection = selection(bench, selector)?;
    let mut comparison = Comparison {
        device: bench.device(),
        selector: said(&selection),
        method: vec![
            format!(
                "Ours: medians of up to 15 samples, the selector, batch-invariant plans and the selector's tiles in turn. {}",
                bench.cold_caches()
            ),
            format!("Limit: {}", limit_method(bench)),
        ],
        versions: vec![("tilewright".to_owned(), env!("CARGO_PKG_VERSION").to_owned())],
        absent: Vec::new(),
        batches: Vec::new(),
    };
    comparison.versions.extend(bench.versions());
    if let Some(peers) = &peers {
        comparison.method.push(PEERS_METHOD.to_owned());
        comparison.versions.extend(peers.versions().iter().cloned());
        comparison.absent = peers.absent().to_vec();
    }
    for warning in bench.warnings() {
        progress.note(&warning);
    }
    let mut peers = peers;
    let mut phase = progress.phase("compare", specs.len());
    for (id, spec) in specs.iter().enumerate() {
        if interrupt.requested() {
            return Ok((comparison, Compared::Interrupted));
        }
        phase.at(spec.name());
        let Some(result) = one(id, spec, tiles, bench, &selection, peers.as_deref_mut(), interrupt)? else {
            return Ok((comparison, Compared::Interrupted));
        };
        comparison.batches.push(result);
        done(&comparison)?;
        phase.step();
    }
    phase.finish(&format!("{} batches compared", specs.len()));
    Ok((comparison, Compared::Done))
}

/// One batch; `None` if the user asked to stop.
fn one(
    id: usize,
    spec: &BatchSpec,
    tiles: &[TileSetBuf],
    bench: &mut dyn Bench,
    selection: &tilewright_heuristics::Selection,
    peers: Option<&mut Peers>,
    interrupt: &Interrupt,
) -> anyhow::Result<Option<BatchResult>> {
    let batch = spec.build()?;
    let sampled = sampled_requests(&batch);
    let expected = reference(&batch, &sampled)?;
    let Some(ours) = measure(
        bench,
        selection,
        (&batch, &batch_shape_of(&batch).with_context(|| batch.name.clone())?),
        tiles,
        &sampled,
        &expected,
        &|| interrupt.requested(),
    )?
    else {
        return Ok(None);
    };
    let asked = peers.map(|peers| peers.ask(Request::of(id, &batch, &sampled, tolerance(&batch))));
    let asked = asked.unwrap_or_default();
    let geometry = &batch.geometry;
    Ok(Some(BatchResult {
        name: batch.name.clone(),
        variant: spec.variant().to_owned(),
        q_heads: geometry.q_heads,
        kv_heads: geometry.kv_heads,
        head_dim: geometry.head_dim,
        page_size: geometry.page_size,
        dtype: geometry.dtype.to_string(),
        scaled: batch.provenance.scaling.clone(),
        requests: batch.requests(),
        unique_bytes: batch.unique_bytes(),
        unshared_bytes: batch.unshared_bytes(),
        limit_us: ours.limit_us,
        ours: ours.selector,
        invariant: ours.invariant,
        tiles: ours.tiles,
        peers: asked.peers,
        references_apart: asked.reference.map(|theirs| reference::apart(&expected, &theirs)),
    }))
}
