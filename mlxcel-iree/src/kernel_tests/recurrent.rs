//! Recurrences on the device, against the evaluator running what the kernels replace.

use mlxcel_core::Precision;
use mlxcel_graph::layers::{self, RecurrentRows};
use mlxcel_iree_kernels::Layouts;
use mlxcel_iree_target::ResolvedTarget;
use mlxcel_portable::eval::Tensor;
use mlxcel_stablehlo::ElementType::{F32, I32};
use mlxcel_stablehlo::{Builder, Module, TensorType, Value};

use super::packed::Random;
use super::{arguments, as_f32, evaluated, lesser, lower, lowered, module_of, run};
use crate::testing::{compiled, host};

/// One call of a composite.
#[derive(Clone, Debug)]
struct Case {
    rule: Rule,
    rows: Vec<usize>,
    counts: Vec<i32>,
    /// Key heads, or groups.
    shared: usize,
    heads: usize,
    /// The shape of a head's state.
    state: [usize; 2],
}

#[derive(Clone, Copy, Debug)]
enum Rule {
    Delta { by_channel: bool },
    StateSpace { by_number: bool },
    Generalized,
}

const DELTA: Rule = Rule::Delta { by_channel: false };
const DELTA_BY_CHANNEL: Rule = Rule::Delta { by_channel: true };
const STATE_SPACE: Rule = Rule::StateSpace { by_number: false };
const STATE_SPACE_BY_NUMBER: Rule = Rule::StateSpace { by_number: true };
const RULES: [Rule; 4] = [DELTA, DELTA_BY_CHANNEL, STATE_SPACE, STATE_SPACE_BY_NUMBER];

const LAYERS: usize = 3;
const LAYER: usize = 1;

impl Case {
    fn new(rule: Rule, [shared, heads]: [usize; 2], state: [usize; 2]) -> Self {
        Self { rule, rows: vec![5], counts: vec![4], shared, heads, state }
    }

    /// The shapes of the operands before the counts.
    fn shapes(&self) -> Vec<Vec<usize>> {
        let Self { shared, heads, state: [height, width], .. } = *self;
        let tokens = self.rows.iter().sum();
        match self.rule {
            Rule::Delta { by_channel } => {
                let keys = vec![tokens, shared, height];
                let decay = if by_channel { vec![tokens, heads, height] } else { vec![tokens, heads] };
                vec![keys.clone(), keys, vec![tokens, heads, width], decay, vec![tokens, heads]]
            }
            Rule::StateSpace { by_number } => {
                let shared = vec![tokens, shared, width];
                let rate = if by_number { vec![1, heads, width] } else { vec![1, heads] };
                vec![vec![tokens, heads, height], vec![tokens, heads], rate, shared.clone(), shared]
            }
            Rule::Generalized => {
                let (keys, values) = (vec![tokens, heads, height], vec![tokens, heads, width]);
                vec![keys.clone(), keys.clone(), values, keys.clone(), keys.clone(), keys]
            }
        }
    }

    fn types(&self) -> Vec<TensorType> {
        let [height, width] = self.state;
        let mut types: Vec<_> = self.shapes().into_iter().map(|shape| TensorType::new(F32, shape)).collect();
        types.push(TensorType::new(I32, [self.rows.len()]));
        types.extend(vec![TensorType::new(F32, [LAYERS, self.heads, height, width]); self.rows.len()]);
        types
    }

    /// Adds the composite to a function whose results so far are `results`.
    fn build<'f>(
        &self,
        b: &mut Builder<'f>,
        number: usize,
        results: &mut Vec<Value<'f>>,
    ) -> mlxcel_stablehlo::Result<()> {
        let values = arguments(b, &format!("x{number}"), &self.types())?;
        let (operands, rest) = values.split_at(self.shapes().len());
        let (&counts, states) = rest.split_first().unwrap();
        for (row, &state) in states.iter().enumerate() {
            b.alias(state, results.len() + 1 + row)?;
        }
        let rows = RecurrentRows { rows: &self.rows, counts, layer: LAYER, states };
        let (mixed, states) = match self.rule {
            Rule::Delta { .. } => layers::gated_delta_rule(b, operands.try_into().unwrap(), &rows)?,
            Rule::StateSpace { .. } => layers::selective_state_space(b, operands.try_into().unwrap(), &rows)?,
            Rule::Generalized => layers::generalized_delta_rule(b, operands.try_into().unwrap(), &rows)?,
        };
        results.push(mixed);
        results.extend(states);
        Ok(())
    }

    /// The operands: keys of about length one, and decays and rates that are not positive.
    fn operands(&self, random: &mut Random) -> Vec<Tensor> {
        let [height, _] = self.state;
        let scale = (height as f32).powf(-0.5);
        let value = |index: usize, x: f32| match (self.rule, index) {
            (Rule::Delta { .. }, 0 | 1) | (Rule::Generalized, 0 | 1 | 4 | 5) => x * scale,
            (Rule::Delta { .. } | Rule::Generalized, 3) | (Rule::StateSpace { .. }, 2) => -2.0 * x.abs(),
            (Rule::Delta { .. }, 4) | (Rule::StateSpace { .. }, 1) => x.abs(),
            _ => x,
        };
        let mut tensor = |(index, ty): (usize, TensorType)| {
            if ty.element == I32 {
                return Tensor::from_slice(ty.shape, &self.counts).unwrap();
            }
            let values: Vec<f32> = (0..ty.elements()).map(|_| value(index, random.next())).collect();
            Tensor::from_slice(ty.shape, &values).unwrap()
        };
        self.types().into_iter().enumerate().map(&mut tensor).collect()
    }
}

fn module(cases: &[Case]) -> Module {
    module_of("recurrent", cases, Case::build)
}

/// Compares what kernels for `target`, which runs here, give with what the evaluator gives.
fn check(cases: &[Case], target: &ResolvedTarget) {
    compare(cases, target, true);
}

/// The same of recurrences that have kernels, or none of which has.
fn compare(cases: &[Case], target: &ResolvedTarget, in_kernels: bool) {
    let module = module(cases);
    let mut random = Random(7);
    let tensors: Vec<Tensor> = cases.iter().flat_map(|case| case.operands(&mut random)).collect();
    let wanted = evaluated(&module, &tensors);

    let text = lower(&module, target, Precision::Exact).unwrap();
    assert_eq!(!text.contains("stablehlo.composite"), in_kernels, "{text}");
    let results = run(&module, &compiled(&text, target), &tensors, &Layouts::default());
    assert_eq!(results.len(), wanted.len());
    let names = cases.iter().flat_map(|case| (0..=case.rows.len()).map(move |result| (case, result)));
    for (((case, number), result), wanted) in names.zip(&results).zip(&wanted) {
        assert!(number == 0 || result.in_place, "{case:?}: state {number} was copied");
        let (got, wanted) = (as_f32(wanted.ty(), &result.bytes), wanted.as_slice::<f32>().unwrap());
        assert_eq!(got.len(), wanted.len());
        for (at, (got, wanted)) in got.iter().zip(wanted).enumerate() {
            let off = (got - wanted).abs();
            assert!(off <= 2e-6 * (1.0 + wanted.abs()), "{case:?}, {number}: {got} is not {wanted} at {at}");
        }
    }
}

#[test]
fn recurrences_of_published_sizes_have_kernels() {
    let cases = [
        Case::new(DELTA, [2, 4], [128, 128]),
        Case::new(DELTA_BY_CHANNEL, [2, 2], [128, 128]),
        Case::new(DELTA, [3, 3], [96, 192]),
        Case::new(STATE_SPACE, [1, 4], [64, 128]),
        Case::new(STATE_SPACE, [2, 4], [64, 256]),
        Case::new(STATE_SPACE_BY_NUMBER, [1, 512], [1, 16]),
    ];
    check(&cases, &host());
}

#[test]
fn recurrences_of_odd_sizes_have_kernels() {
    let sizes = [[72, 72], [6, 10], [1, 1], [1, 6], [7, 3], [20, 24]];
    let cases: Vec<_> =
        sizes.into_iter().flat_map(|state| RULES.map(|rule| Case::new(rule, [3, 6], state))).collect();
    check(&cases, &host());
}

#[test]
fn rows_of_a_recurrence_use_their_own_tokens_and_states() {
    let rows: [(&[usize], &[i32]); 5] = [
        (&[1], &[1]),
        (&[1, 1, 1], &[1, 1, 1]),
        (&[16, 1, 1], &[9, 1, 1]),
        (&[4, 4, 8], &[4, 1, 7]),
        (&[40], &[40]),
    ];
    let cases: Vec<_> = rows
        .into_iter()
        .flat_map(|(rows, counts)| {
            RULES.map(|rule| Case {
                rows: rows.to_vec(),
                counts: counts.to_vec(),
                ..Case::new(rule, [2, 4], [24, 16])
            })
        })
        // The compiler's code is as fast for these.
        .filter(|case| {
            case.rows.len() < case.rows.iter().sum()
                || !matches!(case.rule, Rule::StateSpace { by_number: true })
        })
        .collect();
    check(&cases, &host());
}

#[test]
fn recurrences_with_narrower_vectors_give_the_same_result() {
    let Some(lesser) = lesser() else { return };
    let cases = RULES.map(|rule| Case::new(rule, [2, 4], [48, 32]));
    check(&cases, &lesser);
}

#[test]
fn arm_has_kernels_of_recurrences_too() {
    let cases = RULES.map(|rule| Case::new(rule, [2, 4], [32, 32]));
    let target = crate::testing::resolved("llvm-cpu:apple-m1");
    compiled(&lowered(&module(&cases), &target, Precision::Native).text, &target);
}

#[test]
fn targets_without_vectors_run_the_loop_over_tokens() {
    let cases = RULES.map(|rule| Case::new(rule, [2, 4], [8, 8]));
    let target = crate::testing::resolved("llvm-cpu:x86-64-v2");
    let text = lower(&module(&cases), &target, Precision::Native).unwrap();
    for name in ["mlxcel.gated_delta_rule", "mlxcel.selective_state_space"] {
        assert!(text.contains(&format!("stablehlo.composite \"{name}\"")));
    }
    compiled(&text, &target);
}

#[test]
fn the_generalised_delta_rule_runs_as_a_loop_in_place() {
    let states = [[16, 16], [20, 20], [7, 3]];
    let rows: [&[usize]; 2] = [&[1], &[4, 1]];
    let case = |state: [usize; 2], rows: &[usize]| Case {
        rows: rows.to_vec(),
        counts: rows.iter().map(|&tokens| tokens as i32).collect(),
        ..Case::new(Rule::Generalized, [3, 3], state)
    };
    let cases: Vec<_> = states.into_iter().flat_map(|state| rows.map(|rows| case(state, rows))).collect();
    compare(&cases, &host(), false);
}
