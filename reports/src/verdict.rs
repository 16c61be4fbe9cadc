//! The verdict: what a reader wants to know first, in sentences.

use crate::data::{InvariantCost, Policy, ReportData};
use crate::format::percent;

/// The headline, one sentence for batches that were not fitted, and one for those that were executed under the selector as well, and what
/// batch-invariant plans took of them; what was not measured is left out.
pub(crate) fn sentences(data: &ReportData) -> Vec<String> {
    let about = [
        (&data.held_out, "batches that were not fitted", "batches"),
        (&data.batches, "batches that were executed under it", "batches"),
    ];
    let mut sentences: Vec<String> = data.headline.iter().cloned().collect();
    sentences.extend(about.into_iter().filter_map(|(policies, on, noun)| sentence(policies, on, noun)));
    sentences.extend(data.invariant.as_ref().map(InvariantCost::to_string));
    if sentences.is_empty() {
        sentences.push("Nothing was judged yet: there are no measured batches.".to_owned());
    }
    sentences
}

fn sentence(policies: &[Policy], on: &str, noun: &str) -> Option<String> {
    let (selector, others) = policies.split_first()?;
    let mut text = format!(
        "On {on} the selector is {} slower than the best set of each on average ({} at the 95th percentile, {} at worst, \
         {} {noun})",
        percent(selector.mean),
        percent(selector.p95),
        percent(selector.worst),
        selector.count,
    );
    let compared: Vec<String> =
        others.iter().map(|other| format!("{} {}", other.name, percent(other.mean))).collect();
    if !compared.is_empty() {
        text += &format!("; beside it, on average: {}", compared.join(", "));
    }
    Some(text + ".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_says_its_numbers() {
        let policy =
            |name: &str, mean: f64| Policy { name: name.to_owned(), mean, p95: 0.05, worst: 0.2, count: 60 };
        let policies =
            [policy("selector", 0.012), policy("best single tile", 0.18), policy("PAT's rules", 0.31)];
        insta::assert_snapshot!(
            sentence(&policies, "batches that were not fitted", "batches").unwrap(),
            @"On batches that were not fitted the selector is 1.2 % slower than the best set of each on average (5.0 % at the 95th percentile, 20.0 % at worst, 60 batches); beside it, on average: best single tile 18.0 %, PAT's rules 31.0 %."
        );
        assert_eq!(sentence(&[], "x", "y"), None);
    }
}
