//! Comparing what a variant computed with what the reference says.

use super::ConformanceCase;
use crate::reference::norm;
use tilewright_heuristics::Dtype;

/// What the reference computed.
#[derive(Clone, Debug, Default)]
pub(super) struct Expected {
    pub(super) output: Vec<f64>,
    pub(super) lse: Vec<f64>,
}

/// The relative error that a correct variant stays below (norm of the difference over norm of the reference). FP8 costs
/// nothing: the reference reads the same bytes.
pub const fn tolerance(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F16 | Dtype::Fp8F16 | Dtype::E5m2F16 => 2e-3,
        Dtype::Bf16 | Dtype::Fp8Bf16 | Dtype::E5m2Bf16 => 1e-2,
        Dtype::F32 | Dtype::Fp8F32 | Dtype::E5m2F32 => 1e-5,
    }
}

/// So many times the batch's tolerance a single row may be off, relative to its own norm.
const ROW_FACTOR: f64 = 4.0;
/// Rows whose norm is below this part of the typical one (the median of those that are not zero) are compared as if they had
/// it: where a sink outweighs all tokens, next to nothing is left of a row, and of its precision.
const TYPICAL_PART: f64 = 0.25;

impl ConformanceCase {
    /// Compares output `[queries, q_heads, head_dim]` and natural-log LSE `[queries, q_heads]` with the reference: as a whole,
    /// and each row on its own, so that one wrong row cannot hide in a large batch. Poison the outputs with NaN before:
    /// what was never written is then found.
    ///
    /// Gives the largest relative error: of the whole output, or of one LSE (relative to its size, or to 1 if that is less).
    ///
    /// # Errors
    /// What is wrong: an element that is not finite, an error beyond [`tolerance`], or a row beyond four times that, relative
    /// to its norm or to a quarter of the rows' typical norm.
    pub fn check(&self, output: &[f64], lse: &[f64]) -> Result<f64, String> {
        let found = compare_rows(
            self.reference(),
            output,
            lse,
            self.geometry.head_dim as usize,
            tolerance(self.geometry.dtype),
        );
        found.map_err(|(row, message)| {
            let q_heads = self.geometry.q_heads as usize;
            let place = row.map(|row| {
                let (query, head, table) = (row / q_heads, row % q_heads, self.table());
                let (request, tokens) = (table.request_of(query), table.seq_len(query));
                format!(", query {query} of request {request}, which sees {tokens} tokens, head {head}")
            });
            format!("{}{}: {message}", self.name, place.unwrap_or_default())
        })
    }
}

/// Compares output `[rows, head_dim]` and LSE `[rows]` with what was expected of them, as [`ConformanceCase::check`] does. Gives the largest relative error.
///
/// # Errors
/// Which row is wrong, and what is wrong with it.
pub fn compare(
    expected: (&[f64], &[f64]),
    found: (&[f64], &[f64]),
    head_dim: usize,
    tolerance: f64,
) -> Result<f64, String> {
    let expected = Expected { output: expected.0.to_vec(), lse: expected.1.to_vec() };
    compare_rows(&expected, found.0, found.1, head_dim, tolerance).map_err(|(row, message)| match row {
        Some(row) => format!("row {row}: {message}"),
        None => message,
    })
}

/// The error, or the row that is wrong (`None`: all of them) and what is wrong with it.
fn compare_rows(
    expected: &Expected,
    output: &[f64],
    lse: &[f64],
    head_dim: usize,
    tolerance: f64,
) -> Result<f64, (Option<usize>, String)> {
    let lengths = [("output", output.len(), expected.output.len()), ("LSE", lse.len(), expected.lse.len())];
    for (name, found, needed) in lengths {
        if found != needed {
            return Err((None, format!("the {name} has {found} elements, not {needed}")));
        }
    }
    let head_dim = head_dim.max(1);
    let rows = || output.chunks(head_dim).zip(expected.output.chunks(head_dim)).enumerate();
    let mut norms: Vec<f64> =
        rows().map(|(_, (_, row))| norm(row.iter().copied())).filter(|&norm| norm > 0.0).collect();
    norms.sort_unstable_by(f64::total_cmp);
    let typical = norms.get(norms.len() / 2).copied().unwrap_or(0.0);
    let mut difference = 0.0;
    for (row, (found, expected)) in rows() {
        if let Some(i) = found.iter().position(|x| !x.is_finite()) {
            let message = format!("element {i} of the output is {}: not written, or not a number", found[i]);
            return Err((Some(row), message));
        }
        let off = distance(found, expected);
        let size = norm(expected.iter().copied()).max(TYPICAL_PART * typical);
        let allowed = ROW_FACTOR * tolerance;
        if off > allowed * size {
            let message = format!("relative error {:.1e} of a row, allowed {allowed:.0e}", off / size);
            return Err((Some(row), message));
        }
        difference += off * off;
    }
    let size = norm(expected.output.iter().copied());
    // Without a size no row was allowed any difference.
    let mut worst = if size > 0.0 { difference.sqrt() / size } else { 0.0 };
    if worst >= tolerance {
        return Err((None, format!("relative error {worst:.1e}, allowed {tolerance:.0e}")));
    }
    for (row, (&found, &expected)) in lse.iter().zip(&expected.lse).enumerate() {
        // Equal infinities, the LSE of nothing, differ by nothing; anything else and an infinity by infinity or NaN.
        let error = if found == expected { 0.0 } else { (found - expected).abs() / expected.abs().max(1.0) };
        if error.is_nan() || error >= tolerance {
            let message = format!("LSE {found} instead of {expected}: relative error {error:.1e}");
            return Err((Some(row), message));
        }
        worst = worst.max(error);
    }
    Ok(worst)
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    norm(a.iter().zip(b).map(|(a, b)| a - b))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four thousand rows of two elements; the last one is that of nothing.
    fn expected() -> Expected {
        let mut output = vec![3.0; 8000];
        let mut lse = vec![2.0; 4000];
        output[7998..].fill(0.0);
        lse[3999] = f64::NEG_INFINITY;
        Expected { output, lse }
    }

    /// The error after a change of output or LSE.
    fn after(change: impl FnOnce(&mut Expected)) -> Result<f64, (Option<usize>, String)> {
        let mut found = expected();
        change(&mut found);
        compare_rows(&expected(), &found.output, &found.lse, 2, 1e-2)
    }

    #[test]
    fn an_error_is_relative_to_the_whole_and_to_each_row() {
        assert_eq!(after(|_| ()), Ok(0.0));
        let error = after(|found| found.output[..7998].iter_mut().for_each(|x| *x *= 1.005)).unwrap();
        assert!((error - 0.005).abs() < 1e-9, "{error}");
        assert!(after(|found| found.output[..7998].iter_mut().for_each(|x| *x *= 1.02)).is_err());
        // Over all of them, this one row is an error of 1e-3.
        assert_eq!(after(|found| found.output[100] *= 1.1).unwrap_err().0, Some(50));
        assert!(after(|found| found.output[100] *= 1.01).is_ok());
    }

    #[test]
    fn what_was_not_written_is_infinitely_wrong() {
        assert_eq!(after(|found| found.output[7999] = f64::NAN).unwrap_err().0, Some(3999));
        assert_eq!(after(|found| found.output[0] = f64::INFINITY).unwrap_err().0, Some(0));
        assert_eq!(after(|found| found.lse[7] = f64::NAN).unwrap_err().0, Some(7));
        assert!(after(|found| _ = found.output.pop()).unwrap_err().1.contains("7999 elements"));
        assert!(after(|found| _ = found.lse.pop()).is_err());
    }

    #[test]
    fn infinities_match_exactly_and_large_lse_relatively() {
        assert!(after(|found| found.lse[3999] = -1e30).is_err());
        assert!(after(|found| found.lse[3999] = f64::INFINITY).is_err());
        assert!(after(|found| found.lse[0] = f64::NEG_INFINITY).is_err());
        assert!(after(|found| found.lse[0] = 2.01).is_ok());
        let large = Expected { output: vec![1.0], lse: vec![-1e4] };
        assert!(compare_rows(&large, &[1.0], &[-1e4 - 50.0], 1, 1e-2).is_ok());
        assert!(compare_rows(&large, &[1.0], &[-1e4 - 150.0], 1, 1e-2).is_err());
    }

    #[test]
    fn where_nothing_is_expected_nothing_is_allowed() {
        let nothing = Expected { output: vec![0.0; 4], lse: vec![f64::NEG_INFINITY; 2] };
        assert_eq!(compare_rows(&nothing, &nothing.output, &nothing.lse, 2, 1e-2), Ok(0.0));
        assert!(compare_rows(&nothing, &[0.0, 1e-9, 0.0, 0.0], &nothing.lse, 2, 1e-2).is_err());
        let none = Expected::default();
        assert_eq!(compare_rows(&none, &[], &[], 64, 1e-2), Ok(0.0));
    }
}
