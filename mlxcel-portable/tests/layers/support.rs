//! Running a function on tensors, and numbers to run it on.

use std::ops::Range;

use half::bf16;
use mlxcel_portable::eval::Tensor;
use mlxcel_stablehlo::{Builder, ElementType, Result, TensorType, Value};

pub(crate) use crate::eval_programs::support::{elements, eval as run, noise as random, tensor};

pub(crate) fn halves(numbers: &[f32]) -> Vec<bf16> {
    numbers.iter().map(|&x| bf16::from_f32(x)).collect()
}

/// Numbers between -1 and 1 that differ from seed to seed.
pub(crate) fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

pub(crate) fn near<T: Copy + Into<f64>>(got: &[f32], wanted: &[T], tolerance: f64) {
    assert_eq!(got.len(), wanted.len());
    for (i, (&got, &wanted)) in got.iter().zip(wanted).enumerate() {
        let (got, wanted): (f64, f64) = (got.into(), wanted.into());
        assert!((got - wanted).abs() <= tolerance, "element {i}: {got}, not {wanted}");
    }
}

pub(crate) fn zeros(element: ElementType, shape: &[usize]) -> Tensor {
    Tensor::zeros(TensorType::new(element, shape)).unwrap()
}

/// Rotates pairs of the first elements, halves apart, by the cosines and sines of their angles.
pub(crate) fn rotate(head: &mut [f64], [cos, sin]: &[Vec<f32>; 2]) {
    let (low, high) = head.split_at_mut(cos.len());
    for ((low, high), (&cos, &sin)) in low.iter_mut().zip(high).zip(cos.iter().zip(sin)) {
        let (cos, sin) = (f64::from(cos), f64::from(sin));
        (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
    }
}

/// Tokens of one sequence, fed as rows that start at the tokens' positions.
pub(crate) struct Rows<'a>(pub(crate) &'a [Range<usize>]);

impl Rows<'_> {
    pub(crate) fn counts(&self) -> Vec<usize> {
        self.0.iter().map(ExactSizeIterator::len).collect()
    }

    pub(crate) fn positions(&self) -> Tensor {
        let positions: Vec<i32> = self.0.iter().map(|row| row.start as i32).collect();
        tensor(&[positions.len()], &positions)
    }

    /// Of numbers of this shape for each token of the sequence, those of the tokens in the rows.
    pub(crate) fn part(&self, shape: &[usize], all: &[f32]) -> Tensor {
        let size: usize = shape.iter().product();
        let part: Vec<f32> =
            self.0.iter().flat_map(|row| &all[row.start * size..row.end * size]).copied().collect();
        tensor(&[&[part.len() / size], shape].concat(), &part)
    }
}

/// Runs a function of one result and of the caches, and answers both.
pub(crate) fn run_cached<F>(arguments: &[Tensor], caches: Vec<Tensor>, body: F) -> (Vec<f32>, Vec<Tensor>)
where
    F: for<'f> FnOnce(&mut Builder<'f>, &[Value<'f>]) -> Result<(Value<'f>, Vec<Value<'f>>)>,
{
    let mut results = run(&[arguments, &caches].concat(), |b, values| {
        let (result, caches) = body(b, values)?;
        Ok([vec![result], caches].concat())
    });
    let caches = results.split_off(1);
    (results[0].as_slice::<f32>().unwrap().to_vec(), caches)
}
