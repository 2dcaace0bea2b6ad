//! Nonlinearities.

use mlxcel_models::Activation;
use mlxcel_stablehlo::{Builder, ElementType, Result, Value};

/// The activation of `x` in float32.
///
/// `Gelu` is x·Φ(x) and `GeluTanh` its approximation by tanh (arXiv:1606.08415), as transformers' `ACT2FN`
/// names them.
pub fn activate<'f>(b: &mut Builder<'f>, activation: Activation, x: Value<'f>) -> Result<Value<'f>> {
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
