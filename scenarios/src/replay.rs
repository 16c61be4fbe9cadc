//! Replays a trace through continuous batching, and takes the decode batches at given times.
//!
//! The model: requests are admitted in the order of arrival, as soon as fewer than `max_batch` run. An admitted request first
//! prefills, at a rate of prompt tokens a second, then decodes at a rate of tokens a second until it has its output. Rates do not
//! depend on the batch. Prefixes are shared by block: requests whose hash ids begin alike share those blocks, as far as the
//! blocks are full.

use crate::{BLOCK_TOKENS, Layout, LayoutRequest, Trace, TraceError, TraceRequest};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// How requests run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Replay {
    /// Requests that run at once.
    pub max_batch: u32,
    /// Tokens a second that each running request gains.
    pub tokens_per_second: f64,
    /// Prompt tokens a second while a request prefills.
    pub prefill_tokens_per_second: f64,
}

/// A request that decodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Running<'a> {
    /// The request.
    pub request: &'a TraceRequest,
    /// Tokens generated so far, the one in progress included.
    pub generated: u32,
}

/// When a request begins and ends to decode, in µs.
struct Span<'a> {
    request: &'a TraceRequest,
    begin: u64,
    end: u64,
}

impl Replay {
    /// The requests that decode at `seconds`, in the order of their arrival.
    ///
    /// # Errors
    /// No request decodes then.
    pub fn running_at<'a>(&self, trace: &'a Trace, seconds: f64) -> Result<Vec<Running<'a>>, TraceError> {
        self.running_in(&self.spans(trace), seconds)
    }

    /// [`Replay::running_at`] for many times; the trace is replayed once.
    pub(crate) fn running_at_all<'a>(
        &self,
        trace: &'a Trace,
        seconds: &[f64],
    ) -> impl Iterator<Item = Result<Vec<Running<'a>>, TraceError>> {
        let spans = self.spans(trace);
        seconds.iter().map(move |&seconds| self.running_in(&spans, seconds))
    }

    fn running_in<'a>(&self, spans: &[Span<'a>], seconds: f64) -> Result<Vec<Running<'a>>, TraceError> {
        let now = (seconds * 1e6) as u64;
        let running: Vec<Running<'a>> = spans
            .iter()
            .filter(|span| (span.begin..span.end).contains(&now))
            .map(|span| {
                let since = (now - span.begin) as f64 / 1e6;
                let generated = (since * self.tokens_per_second) as u32 + 1;
                Running { request: span.request, generated: generated.min(span.request.output_length.max(1)) }
            })
            .collect();
        if running.is_empty() {
            let second = |us: Option<u64>| us.unwrap_or(0) as f64 / 1e6;
            return Err(TraceError::Idle {
                at: format!("{seconds}"),
                from: second(spans.iter().map(|span| span.begin).min()),
                to: second(spans.iter().map(|span| span.end).max()),
            });
        }
        Ok(running)
    }

    fn spans<'a>(&self, trace: &'a Trace) -> Vec<Span<'a>> {
        let mut ends: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
        let us = |tokens: u32, rate: f64| (f64::from(tokens) / rate * 1e6).min(1e15) as u64;
        trace
            .requests()
            .iter()
            .map(|request| {
                let arrival = request.timestamp.saturating_mul(1000);
                let free = if ends.len() < self.max_batch.max(1) as usize { None } else { ends.pop() };
                let admitted = free.map_or(arrival, |Reverse(end)| end.max(arrival));
                let begin = admitted.saturating_add(us(request.input_length, self.prefill_tokens_per_second));
                let end = begin.saturating_add(us(request.output_length.max(1), self.tokens_per_second));
                ends.push(Reverse(end));
                Span { request, begin, end }
            })
            .collect()
    }
}

/// The prefix trees of running requests.
pub(crate) fn layout(running: &[Running<'_>]) -> Layout {
    let mut layout = Layout::default();
    // A block is known by the one before it and its id: equal ids in different places are different blocks.
    let mut blocks: HashMap<(Option<u32>, u64), u32> = HashMap::new();
    for Running { request, generated } in running {
        let full = (request.input_length / BLOCK_TOKENS) as usize;
        let mut node = None;
        for &id in &request.hash_ids[..full] {
            node = Some(*blocks.entry((node, id)).or_insert_with(|| layout.push(node, BLOCK_TOKENS)));
        }
        let own = request.input_length - full as u32 * BLOCK_TOKENS + generated;
        let node = layout.push(node, own);
        layout.requests.push(LayoutRequest { node, tokens: own });
    }
    layout
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Generator;

    fn trace(requests: u32) -> Trace {
        Generator {
            requests,
            requests_per_second: 2.0,
            turn_tokens: 3000,
            output_tokens: 200,
            follow_ups: 0.4,
        }
        .generate(3)
    }

    const REPLAY: Replay =
        Replay { max_batch: 16, tokens_per_second: 20.0, prefill_tokens_per_second: 20_000.0 };

    #[test]
    fn never_more_than_the_limit_run() {
        let trace = trace(400);
        let mut most = 0;
        for second in 10..190 {
            let running = REPLAY.running_at(&trace, f64::from(second)).unwrap();
            most = most.max(running.len());
            assert!(running.iter().all(|r| r.generated >= 1 && r.generated <= r.request.output_length));
        }
        assert!((8..=16).contains(&most), "{most}");
    }

    #[test]
    fn requests_share_the_full_blocks_that_they_begin_with() {
        let trace = trace(400);
        let running = REPLAY.running_at(&trace, 100.0).unwrap();
        let layout = layout(&running);
        let lens: Vec<u64> =
            running.iter().map(|r| u64::from(r.request.input_length + r.generated)).collect();
        assert_eq!(layout.seq_lens(), lens);
        let roots = layout.nodes.iter().filter(|node| node.parent.is_none()).count();
        assert_eq!(roots, 1, "everyone shares the system prompt");
        assert!(layout.unique_tokens() < lens.iter().sum::<u64>());
    }

    #[test]
    fn a_time_without_decoding_requests_is_an_error() {
        let error = REPLAY.running_at(&trace(10), 1e6).unwrap_err().to_string();
        assert!(error.contains("at 1000000 s") && error.contains("decode from"), "{error}");
    }

    #[test]
    fn a_request_gains_tokens_at_the_rate() {
        let trace = trace(1);
        let begin = REPLAY.spans(&trace)[0].begin as f64 / 1e6;
        let generated = |after: f64| REPLAY.running_at(&trace, begin + after).unwrap()[0].generated;
        assert_eq!(generated(0.001), 1);
        assert_eq!(generated(0.101), 3);
    }
}
