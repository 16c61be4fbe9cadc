use super::*;
use half::{bf16, f16};
use proptest::prelude::*;

/// States of rows, with what a row of each was made of.
#[derive(Clone, Debug)]
struct Parts<E> {
    head_dim: usize,
    outputs: Vec<Vec<E>>,
    lses: Vec<Vec<f32>>,
}

impl<E: Element> Parts<E> {
    /// `lses` is `[states][rows]`; elements come from a formula that no two of them share, and are NaN in empty states.
    fn new(head_dim: usize, lses: Vec<Vec<f32>>) -> Self {
        let element = |state: usize, at: usize| ((state * 7919 + at * 104_729) % 2003) as f32 / 1001.5 - 1.0;
        let outputs = lses.iter().enumerate().map(|(state, lses)| {
            let value = |at: usize| {
                if lses[at / head_dim] == f32::NEG_INFINITY { f32::NAN } else { element(state, at) }
            };
            (0..lses.len() * head_dim).map(|at| E::from_f32(value(at))).collect()
        });
        Self { head_dim, outputs: outputs.collect(), lses }
    }

    fn merge(&self) -> (Vec<E>, Vec<f32>) {
        let states: Vec<State<'_, E>> =
            self.outputs.iter().zip(&self.lses).map(|(output, lse)| State { output, lse }).collect();
        let mut output = vec![E::from_f32(f32::NAN); self.outputs[0].len()];
        let mut lse = vec![f32::NAN; self.lses[0].len()];
        merge_states(&states, self.head_dim as u32, &mut output, Some(&mut lse)).unwrap();
        (output, lse)
    }

    /// The same in f64, by the definition.
    fn expected(&self) -> (Vec<f64>, Vec<f64>) {
        let rows = self.lses[0].len();
        let (mut output, mut lse) = (vec![0.0; rows * self.head_dim], vec![f64::NEG_INFINITY; rows]);
        for (row, lse) in lse.iter_mut().enumerate() {
            let own = |state: usize| f64::from(self.lses[state][row]);
            let states: Vec<usize> = (0..self.lses.len()).filter(|&s| own(s) > f64::NEG_INFINITY).collect();
            let max = states.iter().map(|&state| own(state)).fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = states.iter().map(|&state| (own(state) - max).exp()).sum();
            for &state in &states {
                let weight = (own(state) - max).exp() / total;
                let elements = row * self.head_dim..(row + 1) * self.head_dim;
                for (output, own) in output[elements.clone()].iter_mut().zip(&self.outputs[state][elements]) {
                    *output += weight * f64::from(own.to_f32());
                }
                *lse = max + total.ln();
            }
        }
        (output, lse)
    }

    /// Panics unless every element is within rounding of the definition.
    fn check(&self, unit: f64) {
        let ((output, lse), (expected, expected_lse)) = (self.merge(), self.expected());
        for (at, (found, expected)) in output.iter().zip(&expected).enumerate() {
            let found = f64::from(found.to_f32());
            // Elements are within ±1; what is summed is rounded in f32, the result to the element type.
            let error = (found - expected).abs();
            assert!(error <= unit * expected.abs() + 1e-6, "{found} for {expected} at {at}: {self:?}");
        }
        for (row, (&found, &expected)) in lse.iter().zip(&expected_lse).enumerate() {
            let found = f64::from(found);
            let close = found == expected || (found - expected).abs() <= 1e-6 * expected.abs().max(1.0);
            assert!(close, "LSE {found} for {expected} in row {row}: {self:?}");
        }
    }
}

fn lse() -> impl Strategy<Value = f32> {
    prop_oneof![
        2 => Just(f32::NEG_INFINITY),
        6 => -20.0f32..20.0,
        1 => -1e4f32..1e4,
        1 => prop_oneof![Just(f32::MIN), Just(f32::MAX), Just(0.0), Just(-1e-40)],
    ]
}

/// `[states][rows]`.
fn lses() -> impl Strategy<Value = Vec<Vec<f32>>> {
    (1usize..=10, 0usize..5)
        .prop_flat_map(|(states, rows)| prop::collection::vec(prop::collection::vec(lse(), rows), states))
}

proptest! {
    #[test]
    fn states_of_any_lse_merge_as_the_definition_says(
        head_dim in prop_oneof![Just(1usize), Just(64), Just(80), Just(96), Just(128), Just(192), Just(256), Just(257), Just(600)],
        lses in lses(),
    ) {
        Parts::<f32>::new(head_dim, lses.clone()).check(1e-6);
        Parts::<f16>::new(head_dim, lses.clone()).check(2f64.powi(-11) * 1.01);
        Parts::<bf16>::new(head_dim, lses).check(2f64.powi(-8) * 1.01);
    }

    #[test]
    fn merging_in_groups_is_merging_at_once(lses in lses(), cut in 0usize..10) {
        let parts = Parts::<f32>::new(64, lses);
        let cut = cut % parts.lses.len() + 1;
        let (first, second) = (
            Parts { head_dim: 64, outputs: parts.outputs[..cut].to_vec(), lses: parts.lses[..cut].to_vec() },
            Parts { head_dim: 64, outputs: parts.outputs[cut..].to_vec(), lses: parts.lses[cut..].to_vec() },
        );
        let mut groups = Parts { head_dim: 64, outputs: Vec::new(), lses: Vec::new() };
        for group in [first, second].iter().filter(|group| !group.lses.is_empty()) {
            let (output, lse) = group.merge();
            groups.outputs.push(output);
            groups.lses.push(lse);
        }
        let ((whole, whole_lse), (grouped, grouped_lse)) = (parts.merge(), groups.merge());
        // A group's LSE is rounded to f32, and weights are as wrong as LSEs are: of 10 000 by half a thousandth.
        for (row, lse) in whole_lse.iter().enumerate() {
            let tolerance = 2e-6 + if lse.is_finite() { lse.abs().max(1.0) * 2.4e-7 } else { 0.0 };
            for (a, b) in whole[row * 64..][..64].iter().zip(&grouped[row * 64..]) {
                prop_assert!((a - b).abs() <= tolerance, "{a} and {b}, LSE {lse}");
            }
        }
        for (a, b) in whole_lse.iter().zip(&grouped_lse) {
            prop_assert!(a == b || (a - b).abs() <= 2e-6 * a.abs().max(1.0), "{a} and {b}");
        }
    }
}

#[test]
fn states_beside_empty_ones_keep_their_values() {
    let empty = f32::NEG_INFINITY;
    let parts =
        Parts::<f16>::new(128, vec![vec![empty, -3.5, empty], vec![2.25, empty, empty], vec![empty; 3]]);
    let (output, lse) = parts.merge();
    assert_eq!(output[..128], parts.outputs[1][..128]);
    assert_eq!(output[128..256], parts.outputs[0][128..256]);
    assert!(output[256..].iter().all(|x| x.to_bits() == 0), "zeros where all states are empty");
    assert_eq!(lse, [2.25, -3.5, empty]);
}

#[test]
fn an_lse_that_is_no_number_is_not_hidden() {
    for bad in [f32::NAN, f32::INFINITY] {
        for others in [f32::NEG_INFINITY, 0.0] {
            let (output, lse) = Parts::<f32>::new(2, vec![vec![others, 1.0], vec![bad, 1.0]]).merge();
            assert!(output[..2].iter().all(|x| x.is_nan()) && lse[0].is_nan(), "{bad}: {output:?} {lse:?}");
            assert!(output[2..].iter().all(|x| !x.is_nan()) && !lse[1].is_nan(), "{bad}: {output:?} {lse:?}");
        }
    }
}

#[test]
fn the_lse_may_be_left_out_and_changes_no_bit() {
    let parts = Parts::<f32>::new(64, vec![vec![0.5, 1.0], vec![-0.5, 3.0]]);
    let states: Vec<State<'_, f32>> =
        parts.outputs.iter().zip(&parts.lses).map(|(output, lse)| State { output, lse }).collect();
    let mut output = vec![f32::NAN; 128];
    merge_states(&states, 64, &mut output, None).unwrap();
    assert_eq!(output, parts.merge().0);
}

#[test]
fn wrong_lengths_are_errors_and_leave_the_output_alone() {
    let parts = Parts::<f32>::new(4, vec![vec![0.0; 3], vec![1.0; 3]]);
    let states = [
        State { output: &parts.outputs[0], lse: &parts.lses[0] },
        State { output: &parts.outputs[1], lse: &parts.lses[1] },
    ];
    let mut output = [7.0f32; 12];
    let (mut lse, mut short) = ([7.0f32; 3], [7.0f32; 2]);
    let mut check = |states: &[State<'_, f32>], head_dim, len: usize, lse: &mut [f32]| {
        let error = merge_states(states, head_dim, &mut output[..len], Some(lse)).unwrap_err();
        assert!(output.iter().chain(&*lse).all(|&x| x == 7.0));
        error
    };
    assert_eq!(check(&[], 4, 12, &mut lse), StatesError::NoState);
    let error = check(&states, 0, 12, &mut lse);
    assert_eq!(error, StatesError::HeadDim { head_dim: 0, supported: "at least 1" });
    assert_eq!(check(&states, 4, 11, &mut lse), StatesError::Rows { found: 11, head_dim: 4 });
    let error = check(&states, 4, 12, &mut short);
    assert_eq!(error, StatesError::Length { name: "lse", state: None, found: 2, needed: 3 });
    let error = check(&[states[0], State { lse: &[0.0; 4], ..states[1] }], 4, 12, &mut lse);
    assert_eq!(error, StatesError::Length { state: Some(1), name: "lse", found: 4, needed: 3 });
    let error = check(&[State { output: &[0.0; 8], ..states[0] }, states[1]], 4, 12, &mut lse);
    assert_eq!(error, StatesError::Length { state: Some(0), name: "output", found: 8, needed: 12 });
    assert_eq!(error.to_string(), "`output` of state 0 has 8 elements, the merge needs 12");
}
