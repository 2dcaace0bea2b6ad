//! Activations against their formulas in double precision.

use mlxcel_graph::layers::activate;
use mlxcel_models::Activation;

use crate::layers::support::{elements, tensor};

fn activated(activation: Activation, values: &[f32]) -> Vec<f32> {
    elements(&[tensor(&[values.len()], values)], |b, x| activate(b, activation, x[0]))
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
