//! Nonlinearities.

use mlxcel_models::Activation;
use mlxcel_stablehlo::{Builder, ElementType, Result, Value};

/// The activation of `x` in float32.
///
/// `Gelu` is x·Φ(x) and `GeluTanh` its approximation by tanh (arXiv:1606.08415), as transformers' `ACT2FN` names them.
pub(super) fn activate<'f>(b: &mut Builder<'f>, activation: Activation, x: Value<'f>) -> Result<Value<'f>> {
    let shape = b.shape(x);
    match activation {
        Activation::Silu => {
            let gate = b.logistic(x)?;
            b.multiply(x, gate)
        }
        Activation::Relu => {
            let zero = b.splat(ElementType::F32, 0.0, &shape)?;
            b.maximum(x, zero)
        }
        Activation::GeluTanh => {
            // 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
            let square = b.multiply(x, x)?;
            let cube = b.multiply(square, x)?;
            let weight = b.splat(ElementType::F32, 0.044715, &shape)?;
            let cubic = b.multiply(cube, weight)?;
            let inner = b.add(x, cubic)?;
            let scale = b.splat(ElementType::F32, (2.0 / std::f64::consts::PI).sqrt(), &shape)?;
            let inner = b.multiply(inner, scale)?;
            let tanh = b.tanh(inner)?;
            let one = b.splat(ElementType::F32, 1.0, &shape)?;
            let sum = b.add(tanh, one)?;
            let half = b.splat(ElementType::F32, 0.5, &shape)?;
            let half = b.multiply(x, half)?;
            b.multiply(half, sum)
        }
        Activation::Gelu => {
            let scale = b.splat(ElementType::F32, std::f64::consts::FRAC_1_SQRT_2, &shape)?;
            let scaled = b.multiply(x, scale)?;
            let erf = erf(b, scaled)?;
            let one = b.splat(ElementType::F32, 1.0, &shape)?;
            let sum = b.add(erf, one)?;
            let half = b.splat(ElementType::F32, 0.5, &shape)?;
            let half = b.multiply(x, half)?;
            b.multiply(half, sum)
        }
        Activation::ReluSquared => {
            let zero = b.splat(ElementType::F32, 0.0, &shape)?;
            let positive = b.maximum(x, zero)?;
            b.multiply(positive, positive)
        }
        Activation::Sigmoid => b.logistic(x),
        Activation::Tanh => b.tanh(x),
        Activation::Softplus => {
            // max(x, 0) + ln(1 + e^-|x|), which neither overflows nor loses small results.
            let zero = b.splat(ElementType::F32, 0.0, &shape)?;
            let positive = b.maximum(x, zero)?;
            let magnitude = b.abs(x)?;
            let below = b.negate(magnitude)?;
            let power = b.exponential(below)?;
            let rest = b.log_plus_one(power)?;
            b.add(positive, rest)
        }
    }
}

/// The error function in float32, by Abramowitz and Stegun's formula 7.1.26, whose error is at most 1.5e-7.
fn erf<'f>(b: &mut Builder<'f>, x: Value<'f>) -> Result<Value<'f>> {
    const COEFFICIENTS: [f64; 5] =
        [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
    let shape = b.shape(x);
    let one = b.splat(ElementType::F32, 1.0, &shape)?;
    let magnitude = b.abs(x)?;
    let step = b.splat(ElementType::F32, 0.327_591_1, &shape)?;
    let t = b.multiply(magnitude, step)?;
    let t = b.add(t, one)?;
    let t = b.divide(one, t)?;
    let mut sum = b.splat(ElementType::F32, 0.0, &shape)?;
    for coefficient in COEFFICIENTS {
        let coefficient = b.splat(ElementType::F32, coefficient, &shape)?;
        sum = b.add(sum, coefficient)?;
        sum = b.multiply(sum, t)?;
    }
    let square = b.multiply(x, x)?;
    let decay = b.negate(square)?;
    let decay = b.exponential(decay)?;
    let tail = b.multiply(sum, decay)?;
    let value = b.subtract(one, tail)?;
    let sign = b.sign(x)?;
    b.multiply(sign, value)
}

#[cfg(test)]
mod tests {
    use mlxcel_stablehlo::eval::{Input, Program, Tensor};
    use mlxcel_stablehlo::{ModuleBuilder, TensorType};

    use super::*;

    fn activated(activation: Activation, values: &[f32]) -> Vec<f32> {
        let mut module = ModuleBuilder::new("test");
        let ty = TensorType::new(ElementType::F32, [values.len()]);
        module
            .function("main", |b| {
                let x = b.argument("x", ty.clone())?;
                Ok(vec![activate(b, activation, x)?])
            })
            .unwrap();
        let program = Program::plan(&module.finish(), "main").unwrap();
        let x = Tensor::from_slice([values.len()], values).unwrap();
        program.run(vec![Input::Owned(x)]).unwrap()[0].as_slice::<f32>().unwrap().to_vec()
    }

    /// The error function by Simpson's rule over its integral.
    fn erf(x: f64) -> f64 {
        let steps = 2000;
        let width = x / f64::from(steps);
        let term = |i: i32| {
            let weight = if i == 0 || i == steps { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
            weight * (-(f64::from(i) * width).powi(2)).exp()
        };
        (0..=steps).map(term).sum::<f64>() * width / 3.0 * std::f64::consts::FRAC_2_SQRT_PI
    }

    #[test]
    fn activations_match_their_formulas() {
        let values: Vec<f32> = (-60..=60).map(|i| i as f32 / 10.0).collect();
        type Formula = fn(f64) -> f64;
        let formulas: [(Activation, Formula); 4] = [
            (Activation::Silu, |x| x / (1.0 + (-x).exp())),
            (Activation::Relu, |x| x.max(0.0)),
            (Activation::Gelu, |x| 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2))),
            (Activation::GeluTanh, |x| {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
            }),
        ];
        for (activation, formula) in formulas {
            for (value, result) in values.iter().zip(activated(activation, &values)) {
                let wanted = formula(f64::from(*value));
                assert!(
                    (f64::from(result) - wanted).abs() < 2e-6,
                    "{activation:?} of {value}: {result}, not {wanted}"
                );
            }
        }
    }
}
