//! The worker's side: requests are read, the bench is asked, answers are written.

use super::frames::{read_numbers, receive, send};
use super::protocol::{Answer, Description, Request};
use super::wire::BatchHead;
use crate::measure::{Bench, BenchError, Execution, PlanId, Preparation};
use std::io::{self, Read, Write};
use tilewright_heuristics::TileSetBuf;
use tilewright_kernel_templates::Class;

/// Answers requests until `input` ends. Whatever else the process has to say must go elsewhere than to `output`.
///
/// # Errors
/// A malformed request, or a pipe that broke.
pub fn serve(bench: &mut dyn Bench, input: &mut dyn Read, output: &mut dyn Write) -> io::Result<()> {
    let mut next = receive(input)?;
    while let Some(request) = next.take() {
        let answer = match request {
            Request::Load(head) => {
                next = serve_batch(bench, head, input, output)?;
                continue;
            }
            Request::Describe => Answer::Described(Box::new(Description::of(bench))),
            Request::AdoptPrices(prices) => {
                bench.adopt_prices(prices.into());
                Answer::PricesAdopted
            }
            Request::Resources { tile, class } => Answer::Resources(bench.resources(&tile, &class)),
            Request::Prepare(sent) => {
                let wanted: Vec<Preparation> = sent.into_iter().map(Preparation::from).collect();
                bench.prepare(&wanted);
                Answer::Prepared
            }
            Request::Expect(sent) => {
                let wanted: Vec<Preparation> = sent.into_iter().map(Preparation::from).collect();
                bench.expect(&wanted);
                Answer::Expected
            }
            Request::PrepareSets(wanted) => {
                let wanted: Vec<(TileSetBuf, Class)> =
                    wanted.into_iter().filter_map(|record| record.set()).collect();
                bench.prepare_sets(&wanted);
                Answer::Prepared
            }
            Request::Compile { .. } => refused("this process measures"),
            Request::Conditions => Answer::Conditions(bench.conditions()),
            Request::Verify { tile, class, coverage } => match bench.verify(&tile, &class, coverage) {
                Ok(error) => Answer::Verified(error),
                Err(failure) => Answer::Failed(failure),
            },
            Request::Unload => Answer::Unloaded,
            Request::Plan { .. }
            | Request::Sample { .. }
            | Request::Outputs { .. }
            | Request::Timeline { .. } => refused("no batch is loaded"),
        };
        send(output, &answer)?;
        next = receive(input)?;
    }
    Ok(())
}

/// Loads a batch and answers what concerns it; returns the first request that does not, for which the batch is given up.
fn serve_batch(
    bench: &mut dyn Bench,
    head: BatchHead,
    input: &mut dyn Read,
    output: &mut dyn Write,
) -> io::Result<Option<Request>> {
    let (page_table, seq_lens) = read_numbers(input, head.entries, head.requests)?;
    let batch = head.with(page_table, seq_lens);
    let mut loaded = match bench.load(&batch) {
        Ok(loaded) => loaded,
        Err(error) => {
            send(output, &Answer::Refused(error.into()))?;
            return receive(input);
        }
    };
    send(output, &Answer::Loaded { limit_us: loaded.limit_us() })?;
    let mut plans = 0;
    loop {
        let answer = match receive(input)? {
            Some(Request::Plan { execution, tiles }) => {
                let planned = match tiles.read() {
                    Ok(tiles) => loaded.plan(&Execution::from(execution), &tiles),
                    Err(name) => Err(BenchError::Worker { message: format!("`{name}` names no tiles") }),
                };
                match planned {
                    Ok(PlanId(plan)) => {
                        plans = plans.max(plan + 1);
                        Answer::Planned { plan, facts: loaded.plan_facts(PlanId(plan)) }
                    }
                    Err(error) => Answer::Refused(error.into()),
                }
            }
            Some(Request::Sample { plan }) if plan < plans => match loaded.sample(PlanId(plan)) {
                Ok(us) => Answer::Sampled(us),
                Err(failure) => Answer::Failed(failure),
            },
            Some(Request::Outputs { plan, requests }) if plan < plans => {
                match loaded.outputs(PlanId(plan), &requests) {
                    Ok(output) => Answer::Computed(output.into_iter().map(f32::to_bits).collect()),
                    Err(failure) => Answer::Failed(failure),
                }
            }
            Some(Request::Timeline { plan }) if plan < plans => match loaded.timeline(PlanId(plan)) {
                Ok(timeline) => Answer::Timeline(timeline),
                Err(failure) => Answer::Failed(failure),
            },
            Some(Request::Sample { plan } | Request::Outputs { plan, .. } | Request::Timeline { plan }) => {
                refused(&format!("there is no plan {plan}"))
            }
            other => return Ok(other),
        };
        send(output, &answer)?;
    }
}

fn refused(message: &str) -> Answer {
    Answer::Refused(BenchError::Worker { message: message.to_owned() }.into())
}
