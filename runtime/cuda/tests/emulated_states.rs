//! The CUDA kernel that merges states, run on the host by an emulation of the machine, against the definition in f64.

#[expect(dead_code, reason = "the kernels of plans have a suite of their own")]
mod emulation;

use emulation::Emulator;
use half::{bf16, f16};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilewright_cpu::{self as cpu, Element};
use tilewright_heuristics::{Backend, Dtype};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::{Kernel, MAX_STATES, StatesArguments};

/// Rows behind the last one, which no CTA may write: as many as a CTA has, so that one that does is found, and harms nothing else.
const BEHIND: usize = 16;

/// Which results take the place of state 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InPlace {
    output: bool,
    lse: bool,
}

const APART: InPlace = InPlace { output: false, lse: false };

/// States in buffers of their own; what is empty, or lies behind the last row, is NaN.
#[derive(Clone, Debug)]
struct States<E> {
    class: Class,
    rows: usize,
    outputs: Vec<Vec<E>>,
    lses: Vec<Vec<f32>>,
}

impl<E: Element> States<E> {
    fn new(head_dim: u32, count: usize, rows: usize, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let dim = head_dim as usize;
        let (mut outputs, mut lses) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let mut output = vec![E::from_f32(f32::NAN); (rows + BEHIND) * dim];
            let mut lse = vec![f32::NAN; rows + BEHIND];
            for row in 0..rows {
                // Some rows are empty in some states, some in all; in some a state is all that counts.
                lse[row] = match (row % 5, rng.random_range(0..4)) {
                    (3, _) | (1, 0..=1) => f32::NEG_INFINITY,
                    (2, 0) => 300.0,
                    (4, _) => rng.random_range(-1e4..1e4),
                    _ => rng.random_range(-4.0..4.0),
                };
                if lse[row] > f32::NEG_INFINITY {
                    output[row * dim..][..dim].fill_with(|| E::from_f32(rng.random_range(-1.0..1.0)));
                }
            }
            outputs.push(output);
            lses.push(lse);
        }
        Self { class: Class { head_dim, dtype: E::DTYPE }, rows, outputs, lses }
    }

    /// Output and LSE, with the rows behind. The states other than one merged in place are left as they are.
    fn merge(&self, emulator: &Emulator, place: InPlace, seed: u64) -> Result<(Vec<E>, Vec<f32>), String> {
        let mut own = self.clone();
        let mut output = vec![E::from_f32(f32::NAN); own.outputs[0].len()];
        let mut lse = vec![f32::NAN; own.lses[0].len()];
        let mut args = StatesArguments {
            rows: self.rows as u32,
            count: self.outputs.len() as u32,
            ..StatesArguments::default()
        };
        for (state, (output, lse)) in own.outputs.iter_mut().zip(&mut own.lses).enumerate() {
            (args.outputs[state], args.lses[state]) = (output.as_mut_ptr() as u64, lse.as_mut_ptr() as u64);
        }
        args.output = if place.output { args.outputs[0] } else { output.as_mut_ptr() as u64 };
        args.lse = if place.lse { args.lses[0] } else { lse.as_mut_ptr() as u64 };
        emulator.run_merge_states(&Kernel::merge_states(&self.class), &args, seed)?;
        if place.output {
            std::mem::swap(&mut output, &mut own.outputs[0]);
        }
        if place.lse {
            std::mem::swap(&mut lse, &mut own.lses[0]);
        }
        let (from_output, from_lse) = (usize::from(place.output), usize::from(place.lse));
        if own.outputs[from_output..]
            .iter()
            .map(|x| bits(x))
            .ne(self.outputs[from_output..].iter().map(|x| bits(x)))
            || own.lses[from_lse..].iter().map(|x| bits(x)).ne(self.lses[from_lse..].iter().map(|x| bits(x)))
        {
            return Err(format!("a state was written to, {place:?}, seed {seed}"));
        }
        Ok((output, lse))
    }

    fn check(&self, emulator: &Emulator, seed: u64) -> Result<(), String> {
        let what = |error: String| {
            format!(
                "{error}: {} states of {} rows, {}, seed {seed}",
                self.outputs.len(),
                self.rows,
                self.class
            )
        };
        let (output, lse) = self.merge(emulator, APART, seed).map_err(what)?;
        self.compare(&output, &lse).map_err(what)?;
        for place in [(true, false), (false, true), (true, true)].map(|(output, lse)| InPlace { output, lse })
        {
            let found = self.merge(emulator, place, seed).map_err(what)?;
            if (bits(&found.0), bits(&found.1)) != (bits(&output), bits(&lse)) {
                return Err(what(format!("{place:?} gives other bits")));
            }
        }
        Ok(())
    }

    /// With the definition, computed in f64.
    fn compare(&self, output: &[E], lse: &[f32]) -> Result<(), String> {
        let dim = self.class.head_dim as usize;
        let unit = if E::DTYPE == Dtype::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) };
        for (row, &lse) in lse.iter().enumerate().take(self.rows) {
            let own = |state: usize| f64::from(self.lses[state][row]);
            let states: Vec<usize> =
                (0..self.lses.len()).filter(|&state| own(state) > f64::NEG_INFINITY).collect();
            let max = states.iter().map(|&state| own(state)).fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = states.iter().map(|&state| (own(state) - max).exp()).sum();
            for (at, output) in output.iter().enumerate().skip(row * dim).take(dim) {
                let weighted = |&state: &usize| {
                    (own(state) - max).exp() / total * f64::from(self.outputs[state][at].to_f32())
                };
                let (found, expected) =
                    (f64::from(output.to_f32()), states.iter().map(weighted).sum::<f64>());
                // The result is rounded once to the element type; what leads to it is f32 of numbers up to 1.
                let close = (found - expected).abs() <= 1.01 * unit * expected.abs() + 2e-6;
                if !close || (states.is_empty() && output.to_f32().to_bits() != 0) {
                    return Err(format!("{found} for {expected} in row {row}"));
                }
            }
            let (found, expected) = (f64::from(lse), max + total.ln());
            let close = (found - expected).abs() <= 1e-6 * expected.abs().max(1.0);
            if !(if states.is_empty() { found == f64::NEG_INFINITY } else { close }) {
                return Err(format!("LSE {found} for {expected} in row {row}"));
            }
        }
        let behind =
            output[self.rows * dim..].iter().map(|x| x.to_f32()).chain(lse[self.rows..].iter().copied());
        if behind.into_iter().all(f32::is_nan) {
            Ok(())
        } else {
            Err("rows behind the last are written".to_owned())
        }
    }
}

fn bits<E: Element>(elements: &[E]) -> Vec<u32> {
    elements.iter().map(|x| x.to_f32().to_bits()).collect()
}

/// Those of outputs: what K and V were, states do not know.
fn classes() -> impl Iterator<Item = Class> {
    Class::all(Backend::Cuda).filter(|class| class.outputs() == *class)
}

fn emulator() -> Emulator {
    let kernels: Vec<Kernel> = classes().map(|class| Kernel::merge_states(&class)).collect();
    Emulator::build(&kernels, &[])
}

#[test]
fn any_number_of_states_and_rows_merges_as_the_definition_says() {
    let emulator = emulator();
    for class in classes() {
        let of_a_cta = Kernel::rows_of_states(&class) as usize;
        for count in 1..=MAX_STATES {
            for rows in [0, 1, of_a_cta - 1, of_a_cta, of_a_cta + 1, 3 * of_a_cta + 5] {
                // Every order of warps: the natural one, shuffled ones, and those in which warps overtake each other.
                let seed = (count + rows) as u64 % 5;
                let outcome = match class.dtype {
                    Dtype::F16 => {
                        States::<f16>::new(class.head_dim, count, rows, seed).check(&emulator, seed)
                    }
                    _ => States::<bf16>::new(class.head_dim, count, rows, seed).check(&emulator, seed),
                };
                outcome.unwrap();
            }
        }
    }
}

#[test]
fn the_order_of_warps_changes_no_bit() {
    let emulator = emulator();
    let states = States::<f16>::new(128, 5, 21, 7);
    let (output, lse) = states.merge(&emulator, APART, 0).unwrap();
    for seed in 1..7 {
        let found = states.merge(&emulator, APART, seed).unwrap();
        assert_eq!((bits(&found.0), bits(&found.1)), (bits(&output), bits(&lse)), "seed {seed}");
    }
}

#[test]
fn one_state_and_states_beside_empty_ones_keep_their_values() {
    let emulator = emulator();
    let one = States::<bf16>::new(256, 1, 9, 1);
    let mut padded = one.clone();
    padded.outputs = vec![vec![bf16::NAN; one.outputs[0].len()]; MAX_STATES];
    padded.lses = vec![vec![f32::NEG_INFINITY; one.lses[0].len()]; MAX_STATES];
    (padded.outputs[6], padded.lses[6]) = (one.outputs[0].clone(), one.lses[0].clone());
    for states in [&one, &padded] {
        let (output, lse) = states.merge(&emulator, APART, 3).unwrap();
        for (row, (&found, &own)) in lse.iter().zip(&one.lses[0]).enumerate().take(one.rows) {
            assert_eq!(found, own, "row {row}");
            let elements = row * 256..(row + 1) * 256;
            if own > f32::NEG_INFINITY {
                assert_eq!(output[elements.clone()], one.outputs[0][elements], "row {row}");
            } else {
                assert!(output[elements].iter().all(|x| x.to_bits() == 0), "row {row}");
            }
        }
    }
}

#[test]
fn an_lse_that_is_no_number_is_not_hidden() {
    let emulator = emulator();
    for bad in [f32::NAN, f32::INFINITY] {
        for others in [f32::NEG_INFINITY, 0.0] {
            let mut states = States::<f16>::new(64, 2, 2, 5);
            let lses = |first| [vec![first, 1.0], vec![0.0; BEHIND]].concat();
            states.outputs.iter_mut().for_each(|output| output.fill(f16::ONE));
            states.lses = vec![lses(others), lses(bad)];
            let (output, lse) = states.merge(&emulator, APART, 0).unwrap();
            assert!(
                output[..64].iter().all(|x| x.is_nan()) && lse[0].is_nan(),
                "{bad} beside {others}: {lse:?}"
            );
            assert!(
                output[64..128].iter().all(|&x| x == f16::ONE) && (lse[1] - 1.0 - 2f32.ln()).abs() < 1e-6
            );
        }
    }
}

#[test]
fn both_backends_agree() {
    let emulator = emulator();
    let states = States::<f16>::new(128, 4, 50, 11);
    let (output, lse) = states.merge(&emulator, APART, 2).unwrap();
    let parts: Vec<cpu::State<'_, f16>> = (states.outputs.iter().zip(&states.lses))
        .map(|(output, lse)| cpu::State { output: &output[..50 * 128], lse: &lse[..50] })
        .collect();
    let (mut on_cpu, mut lse_on_cpu) = (vec![f16::NAN; 50 * 128], vec![f32::NAN; 50]);
    cpu::merge_states(&parts, 128, &mut on_cpu, Some(&mut lse_on_cpu)).unwrap();
    for (a, b) in output.iter().zip(&on_cpu) {
        // Sums that differ in the last bit of f32 may round to neighbours.
        let (a, b) = (a.to_f32(), b.to_f32());
        assert!((a - b).abs() <= a.abs() / 1024.0 + 1e-6, "{a} and {b}");
    }
    for (a, b) in lse.iter().zip(&lse_on_cpu) {
        assert!(a == b || (a - b).abs() <= 1e-6 * a.abs().max(1.0), "{a} and {b}");
    }
}

const SOURCE: &str = include_str!("../../../kernel-templates/src/cuda/merge_states.cuh");

#[test]
fn a_kernel_that_forgets_a_case_is_caught() {
    let changes = [
        ("what is empty is multiplied", "if (weight != 0.f && ", "if (true && "),
        ("all are empty", "own - finite_or_zero(max)", "own - max"),
        ("all are empty", "empty ? 0.f : 1.f / total", "1.f / total"),
        ("rows of a warp are mixed", "from_lane(own_weight, first_lane + s)", "from_lane(own_weight, s)"),
        ("maxima of rows are mixed", "u32 mask = LANES / 2", "u32 mask = 16"),
        ("rows behind the last are written", "if (!has_elements) return;", ""),
        ("lanes behind the row's last elements write", "|| lane * 8 < HEAD_DIM", "|| true"),
        ("the base of the logarithm", "* LOG2_E", ""),
    ];
    for (what, from, to) in changes {
        assert_eq!(SOURCE.matches(from).count(), 1, "{from}");
        // Of 96 elements a row has four lanes too many.
        let class = Class { head_dim: if from.contains("HEAD_DIM") { 96 } else { 64 }, dtype: Dtype::F16 };
        let change = |name: &str, text: &str| {
            if name == "merge_states.cuh" { text.replace(from, to) } else { text.to_owned() }
        };
        let emulator = Emulator::build_changed(&[Kernel::merge_states(&class)], &[], change);
        let states = States::<f16>::new(class.head_dim, 3, 21, 1);
        assert!(states.check(&emulator, 0).is_err(), "nothing shows that {what} ({from})");
    }
}
