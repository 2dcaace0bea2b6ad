//! The kernels on the device: results against double precision, caches against the evaluator running what
//! they replace.

mod double;
mod kinds;
mod latent;
mod texts;

use mlxcel_core::Precision;
use mlxcel_graph::cached::{CachedAttention, CachedAttentionOperands, cached_attention};
use mlxcel_iree_target::ResolvedTarget;
use mlxcel_portable::eval::Tensor;
use mlxcel_stablehlo::{Builder, ElementType, Module, TensorType, Value};

use super::packed::{Random, floats};
use super::{arguments, as_f32, evaluated, lesser, lower, lowered, module_of};
use crate::testing::compiled;

use ElementType::{BF16, F16, F32, I8, I32};

/// One call of the composite.
#[derive(Clone, Debug)]
struct Case {
    rows: Vec<usize>,
    positions: Vec<usize>,
    heads: usize,
    groups: usize,
    width: usize,
    /// None are rotated where this is 0.
    pairs: usize,
    length: usize,
    cache: ElementType,
    out: ElementType,
    window: Option<usize>,
    chunked: bool,
    soft_cap: Option<f32>,
    sinks: Option<ElementType>,
}

const LAYERS: usize = 3;
const LAYER: usize = 1;
const SCALE: f32 = 0.3;

impl Default for Case {
    fn default() -> Self {
        Self {
            rows: vec![1],
            positions: vec![5],
            heads: 4,
            groups: 2,
            width: 16,
            pairs: 8,
            length: 64,
            cache: F32,
            out: F32,
            window: None,
            chunked: false,
            soft_cap: None,
            sinks: None,
        }
    }
}

/// A row with so many tokens from `position` on.
fn row(tokens: usize, position: usize) -> Case {
    Case { rows: vec![tokens], positions: vec![position], ..Case::default() }
}

impl Case {
    fn cache_type(&self) -> TensorType {
        let width = if self.cache == I8 { self.width + 4 } else { self.width };
        TensorType::new(self.cache, [LAYERS, 2, self.groups, self.length, width])
    }

    /// Adds the composite to a function whose results so far are `results`.
    fn build<'f>(
        &self,
        b: &mut Builder<'f>,
        number: usize,
        results: &mut Vec<Value<'f>>,
    ) -> mlxcel_stablehlo::Result<()> {
        let tokens = self.rows.iter().sum();
        let argument = |b: &mut Builder<'f>, name: &str, element, shape: &[usize]| {
            b.argument(format!("{name}.{number}"), TensorType::new(element, shape.to_vec()))
        };
        let query = argument(b, "query", F32, &[tokens, self.heads, self.width])?;
        let key = argument(b, "key", F32, &[tokens, self.groups, self.width])?;
        let value = argument(b, "value", F32, &[tokens, self.groups, self.width])?;
        let rotary = match self.pairs {
            0 => None,
            pairs => {
                let table = |b: &mut Builder<'f>, name| argument(b, name, F32, &[tokens, pairs]);
                Some((table(b, "cos")?, table(b, "sin")?))
            }
        };
        let positions = argument(b, "positions", I32, &[self.rows.len()])?;
        let sinks = match self.sinks {
            Some(element) => Some(argument(b, "sinks", element, &[self.heads])?),
            None => None,
        };
        let mut caches = Vec::new();
        for row in 0..self.rows.len() {
            let cache = argument(b, &format!("kv.{row}"), self.cache, &self.cache_type().shape)?;
            b.alias(cache, results.len() + 1 + row)?;
            caches.push(cache);
        }
        let operands =
            CachedAttentionOperands { query, key, value, rotary, positions, sinks, caches: &caches };
        let what = CachedAttention {
            rows: &self.rows,
            layer: LAYER,
            scale: SCALE,
            soft_cap: self.soft_cap,
            window: self.window,
            chunked: self.chunked,
            out: self.out,
        };
        let (mixed, caches) = cached_attention(b, &operands, &what)?;
        results.push(mixed);
        results.extend(caches);
        Ok(())
    }

    /// The operands; caches hold numbers before each row's position and `beyond` from its last token on.
    fn operands(&self, beyond: f32) -> Vec<Tensor> {
        let mut random = Random(7);
        let tokens: usize = self.rows.iter().sum();
        let mut tensors: Vec<_> = [self.heads, self.groups, self.groups]
            .map(|heads| random.floats(&[tokens, heads, self.width], F32, 1.0))
            .into();
        if self.pairs > 0 {
            tensors.extend([(); 2].map(|()| random.floats(&[tokens, self.pairs], F32, 1.0)));
        }
        tensors.push(integers(&self.positions));
        tensors.extend(self.sinks.map(|element| random.floats(&[self.heads], element, 3.0)));
        for (&position, &row) in self.positions.iter().zip(&self.rows) {
            tensors.push(self.cache_of(position, row, beyond, &mut random));
        }
        tensors
    }

    /// Whether a slot of the cache of a row with `tokens` tokens from `position` on holds a position that
    /// matters when those up to `end` are written. In a ring none matters that is out of the window of
    /// the row's first token.
    fn holds(&self, slot: usize, (position, tokens): (usize, usize), end: usize) -> bool {
        match self.window.filter(|window| window + tokens <= self.length + 1) {
            Some(window) => {
                let back = (end + self.length - 1 - slot) % self.length;
                end.checked_sub(back + 1).is_some_and(|held| held + window > position)
            }
            None => slot < end,
        }
    }

    /// A cache before a pass: numbers, and `beyond` in slots that do not matter; if that is NaN, it is also
    /// in those that the row is about to write.
    fn cache_of(&self, position: usize, tokens: usize, beyond: f32, random: &mut Random) -> Tensor {
        let ty = self.cache_type();
        let rows = LAYERS * 2 * self.groups * self.length;
        let mut values = Vec::with_capacity(rows * self.width);
        for row in 0..rows {
            let at = row % self.length;
            for _ in 0..self.width {
                let value = random.next();
                let end = if beyond.is_nan() { position } else { position + tokens };
                values.push(if self.holds(at, (position, tokens), end) { value } else { beyond });
            }
        }
        let shape = ty.shape.clone();
        match self.cache {
            I8 => {
                let mut bytes = Vec::new();
                for row in values.chunks(self.width) {
                    bytes.extend(row.iter().map(|value| (value * 127.0) as i8));
                    let scale = if row[0].is_nan() { f32::NAN } else { 1.0 / 100.0 };
                    bytes.extend(scale.to_le_bytes().map(|byte| byte as i8));
                }
                Tensor::from_slice(shape, &bytes).unwrap()
            }
            element => floats(element, &shape, &values),
        }
    }
}

impl Random {
    /// Floats of up to this size.
    fn floats(&mut self, shape: &[usize], element: ElementType, size: f32) -> Tensor {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| size * self.next()).collect();
        floats(element, shape, &values)
    }
}

fn integers(numbers: &[usize]) -> Tensor {
    let numbers: Vec<i32> = numbers.iter().map(|&number| number as i32).collect();
    Tensor::from_slice(vec![numbers.len()], &numbers).unwrap()
}

fn module(cases: &[Case]) -> Module {
    module_of("attention", cases, Case::build)
}

/// What the kernels for `target`, which runs here, give; caches in place.
fn on_device(module: &Module, target: &ResolvedTarget, tensors: &[Tensor]) -> Vec<Vec<u8>> {
    let results = super::on_device(module, tensors, target, Precision::Native);
    assert!(results.iter().all(|result| result.ty.rank() <= 2 || result.in_place), "a cache was copied");
    results.into_iter().map(|result| result.bytes).collect()
}

fn check(cases: &[Case], target: &ResolvedTarget) {
    let module = module(cases);
    let operands = |beyond: f32| cases.iter().flat_map(|case| case.operands(beyond)).collect::<Vec<_>>();
    // What is behind the last token counts for the decomposition, by zero; kernels do not look at it.
    let wanted = evaluated(&module, &operands(0.0));
    let got = on_device(&module, target, &operands(f32::NAN));
    let (mut got, mut wanted) = (&got[..], &wanted[..]);
    for case in cases {
        let count = 1 + case.rows.len();
        let caches: Vec<_> = wanted[1..count].iter().map(|cache| case.kept(cache.bytes())).collect();
        compare(case, &got[..count], &case.mixed(&case.operands(0.0), &caches), &caches);
        (got, wanted) = (&got[count..], &wanted[count..]);
    }
}

fn compare(case: &Case, got: &[Vec<u8>], mixed: &[f64], caches: &[Vec<f32>]) {
    double::compare(case, case.out, &got[0], mixed);
    let rows = LAYERS * 2 * case.groups * case.length;
    for ((got, wanted), (&position, &row)) in
        got[1..].iter().zip(caches).zip(case.positions.iter().zip(&case.rows))
    {
        let got = case.kept(got);
        let part = |row: usize| row / case.length / case.groups / 2 == LAYER;
        let used = |at: usize| {
            let end = if part(at) { position + row } else { position };
            case.holds(at % case.length, (position, row), end)
        };
        for at in (0..rows).filter(|&at| used(at)) {
            let range = at * case.width..(at + 1) * case.width;
            for (got, wanted) in got[range.clone()].iter().zip(&wanted[range]) {
                assert!((got - wanted).abs() <= case.cache_tolerance(), "{case:?}: {got} is not {wanted}");
            }
        }
    }
}

impl Case {
    /// What a cache keeps, as numbers.
    fn kept(&self, bytes: &[u8]) -> Vec<f32> {
        if self.cache != I8 {
            return as_f32(&self.cache_type(), bytes);
        }
        let row = |row: &[u8]| {
            let (values, scale) = row.split_at(self.width);
            let scale = f32::from_le_bytes(scale.try_into().unwrap());
            values.iter().map(|&value| f32::from(value as i8) * scale).collect::<Vec<_>>()
        };
        bytes.chunks(self.width + 4).flat_map(row).collect()
    }

    /// Products may be summed without rounding between: the last bit, or the nearest multiple, can be
    /// another.
    fn cache_tolerance(&self) -> f32 {
        match self.cache {
            F32 => 1e-6,
            F16 => 2e-3,
            _ => 1.7e-2,
        }
    }
}

#[test]
fn one_token_attends_to_earlier_positions() {
    let case = |position| Case { length: 320, ..row(1, position) };
    check(&[0, 1, 31, 32, 63, 200].map(case), &crate::testing::host());
}

#[test]
fn prompt_chunks_attend_causally() {
    let several = [(2, 0), (5, 3), (7, 30), (13, 100), (128, 0), (128, 77)];
    let few = (3..=16).map(|tokens| (tokens, 2 * tokens + 1));
    let cases: Vec<_> = (several.into_iter().chain(few))
        .map(|(tokens, position)| Case { length: 256, ..row(tokens, position) })
        .collect();
    check(&cases, &crate::testing::host());
}

#[test]
fn every_cache_type_and_result_type_has_kernels() {
    let types = [(F32, BF16), (BF16, BF16), (BF16, F32), (F16, F16), (I8, F32), (I8, BF16)];
    let cases: Vec<_> = (types.into_iter())
        .flat_map(|types| [1, 20].map(|tokens| (types, tokens)))
        .map(|((cache, out), tokens)| Case { cache, out, length: 96, ..row(tokens, 37) })
        .collect();
    check(&cases, &crate::testing::host());
}

#[test]
fn every_head_size_and_gqa_group_has_kernels() {
    let sizes = [
        (4, 1, 64, 32),
        (8, 8, 64, 32),
        (16, 2, 80, 40),
        (6, 2, 96, 48),
        (2, 1, 128, 64),
        (3, 1, 5, 2),
        (4, 2, 6, 3),
        (2, 2, 12, 4),
    ];
    let cases: Vec<_> = (sizes.into_iter())
        .flat_map(|sizes| [1, 9].map(|tokens| (sizes, tokens)))
        .map(|((heads, groups, width, pairs), tokens)| Case {
            heads,
            groups,
            width,
            pairs,
            ..row(tokens, 40)
        })
        .collect();
    check(&cases, &crate::testing::host());
}

#[test]
fn a_window_masks_earlier_positions() {
    let cases = [(1, 100, 7), (1, 3, 7), (1, 150, 64), (24, 90, 7), (24, 0, 5), (24, 60, 33)].map(
        |(tokens, position, window)| Case { window: Some(window), length: 192, ..row(tokens, position) },
    );
    check(&cases, &crate::testing::host());
}

#[test]
fn rows_of_a_pass_use_their_own_caches() {
    let case = |rows: &[usize], positions: &[usize]| Case {
        rows: rows.to_vec(),
        positions: positions.to_vec(),
        cache: BF16,
        length: 128,
        ..Case::default()
    };
    let cases = [
        case(&[1, 1, 1], &[3, 90, 0]),
        case(&[16, 1, 1], &[40, 0, 127]),
        case(&[1, 4, 4, 1], &[9, 0, 77, 50]),
        case(&[1; 16], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
    ];
    check(&cases, &crate::testing::host());
}

#[test]
fn long_caches_are_read_in_parts() {
    let case = |position| Case { length: 8192, cache: BF16, ..row(1, position) };
    let mut cases = [0, 500, 511, 512, 513, 6000, 8190].map(case).to_vec();
    cases.push(Case { window: Some(5000), ..case(7000) });
    check(&cases, &crate::testing::host());
}

#[test]
fn tokens_do_not_depend_on_hidden_values_that_overflow_the_cache() {
    let case = Case { cache: F16, pairs: 0, ..row(5, 3) };
    let module = module(std::slice::from_ref(&case));
    let mut operands = case.operands(0.0);
    let mut last = as_f32(operands[2].ty(), operands[2].bytes());
    let hidden = last.len() - case.groups * case.width;
    last[hidden..].fill(1e6);
    operands[2] = floats(F32, &operands[2].ty().shape, &last);
    let decomposed: Vec<_> =
        evaluated(&module, &operands).iter().map(|result| result.bytes().to_vec()).collect();
    let kernel = on_device(&module, &crate::testing::host(), &operands);
    for (what, results) in [("decomposition", decomposed), ("kernel", kernel)] {
        let mixed: &[f32] = bytemuck::cast_slice(&results[0]);
        let before = mixed.len() - case.heads * case.width;
        assert!(mixed[..before].iter().all(|value| value.is_finite()), "{what}: {mixed:?}");
    }
}

#[test]
fn a_row_that_does_not_fit_is_written_at_the_end() {
    let case = row(4, 62);
    let module = module(std::slice::from_ref(&case));
    let operands = case.operands(0.0);
    let wanted = evaluated(&module, &operands);
    let got = on_device(&module, &crate::testing::host(), &operands);
    let (got, wanted) = (case.kept(&got[1]), case.kept(wanted[1].bytes()));
    assert!(got.iter().zip(&wanted).all(|(got, wanted)| (got - wanted).abs() < 1e-6));
}

#[test]
fn narrower_vectors_give_the_same_result() {
    let Some(lesser) = lesser() else { return };
    let mut cases = [(1, BF16), (24, F16), (1, I8), (7, F32)]
        .map(|(tokens, cache)| Case { width: 64, pairs: 32, cache, ..row(tokens, 40) })
        .to_vec();
    cases.push(Case {
        rows: vec![7, 1],
        positions: vec![60, 100],
        window: Some(30),
        soft_cap: Some(1.5),
        sinks: Some(BF16),
        ..Case::default()
    });
    check(&cases, &lesser);
}

#[test]
fn arm_has_kernels_too() {
    let case = Case { rows: vec![5, 1], positions: vec![3, 9], cache: BF16, ..Case::default() };
    let wide = Case { window: Some(7), soft_cap: Some(5.0), sinks: Some(BF16), pairs: 0, ..case.clone() };
    let target = crate::testing::resolved("llvm-cpu:apple-m1");
    compiled(&lowered(&module(&[case, wide]), &target, Precision::Native).text, &target);
}

#[test]
fn targets_without_vectors_run_the_decomposition() {
    let case = Case { rows: vec![5, 1], positions: vec![3, 9], cache: I8, ..Case::default() };
    let target = crate::testing::resolved("llvm-cpu:x86-64-v2");
    let text = lower(&module(&[case]), &target, Precision::Native).unwrap();
    assert!(text.contains("stablehlo.composite \"mlxcel.cached_attention\""));
    compiled(&text, &target);
}
